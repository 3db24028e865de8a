"""Read untrusted JSON and YAML data into typed dataclasses, and write dataclasses as JSON."""

from __future__ import annotations

import dataclasses
import difflib
import json
import math
import re
import types
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import Enum
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

#: Keys of mappings and indices of lists, outermost first.
Path = tuple[Any, ...]


class Invalid(ValueError):
    """Data that does not fit its type. `path` leads to it; message and hint are one line each."""

    def __init__(self, path: Path, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.path = path
        self.message = message
        self.hint = hint

    def under(self, *keys: Any) -> Invalid:
        """The same, seen from further up."""
        return Invalid((*keys, *self.path), self.message, self.hint)

    def __str__(self) -> str:
        text = f"{show_path(self.path)}: {self.message}" if self.path else self.message
        return f"{text} ({self.hint})" if self.hint else text


@dataclass(frozen=True)
class Doc:
    """What a field means, for the schema and for people."""

    text: str


@dataclass(frozen=True)
class Bounds:
    """Smallest and largest value of a number, or length of a list or text; both inclusive."""

    min: float | None = None
    max: float | None = None


@dataclass(frozen=True)
class Pattern:
    """A regular expression that the whole text matches; `form` says it in words."""

    regex: str
    form: str


@dataclass(frozen=True)
class Text:
    """A number that may be written as text too; `parse` reads it or raises ValueError."""

    parse: Callable[[str], int | float]
    form: str


@dataclass(frozen=True)
class NonFinite:
    """Allows NaN and infinity, which JSON holds as the texts "nan", "inf" and "-inf"."""


def camel(name: str) -> str:
    """The outside name of a field: `min_nodes` is minNodes, `memory_gb` is memoryGB."""
    first, *rest = name.split("_")
    return first + "".join("GB" if part == "gb" else part.capitalize() for part in rest)


def show_path(path: Path) -> str:
    """A path as people write it: `checks[2].params.max`."""
    parts = (f"[{key}]" if isinstance(key, int) else f".{escaped(str(key))}" for key in path)
    return "".join(parts).removeprefix(".")


def escaped(text: str, limit: int = 60) -> str:
    """Text for a one-line message: cut at `limit` characters, control characters escaped."""
    cut = text if len(text) <= limit else text[: limit - 3] + "..."
    return cut if cut.isprintable() else json.dumps(cut)[1:-1]


def describe_value(data: Any) -> str:
    """What was found, in a few words."""
    if data is None:
        return "nothing"
    if isinstance(data, bool):
        return "true" if data else "false"
    if isinstance(data, (int, float)):
        # An int of thousands of digits can't be printed, and need not be.
        huge = isinstance(data, int) and data.bit_length() > 100
        return "a number of more than 30 digits" if huge else f"the number {data}"
    if isinstance(data, str):
        return f'the text "{escaped(data)}"'
    return "a list" if isinstance(data, (list, tuple)) else "a mapping"


def nearest(asked: str, names: Iterable[str]) -> str | None:
    """The name that `asked` was probably meant to be."""
    by_lower = {name.lower(): name for name in names}
    close = difflib.get_close_matches(asked.lower()[:200], by_lower, 1, 0.6)
    return by_lower[close[0]] if close else None


def known(asked: str, names: Iterable[str], what: str = "known") -> str:
    """The hint for a name that does not exist: the nearest one, and all there are."""
    listed = list(names)
    close = nearest(asked, listed)
    everything = f"{what}: {', '.join(listed)}" if listed else f"{what}: none"
    return f"did you mean {close}? {everything}" if close else everything


def required(item: dataclasses.Field[Any]) -> bool:
    """Whether a field has no default."""
    return item.default is dataclasses.MISSING and item.default_factory is dataclasses.MISSING


_FIELDS: dict[Any, tuple[tuple[dataclasses.Field[Any], str, Any], ...]] = {}


def fields_of(cls: Any) -> tuple[tuple[dataclasses.Field[Any], str, Any], ...]:
    """The fields of a dataclass: the field, its outside key, its type with the markers."""
    if cls not in _FIELDS:
        hints = get_type_hints(cls, include_extras=True)
        _FIELDS[cls] = tuple((i, camel(i.name), hints[i.name]) for i in dataclasses.fields(cls))
    return _FIELDS[cls]


def split(hint: Any) -> tuple[Any, tuple[Any, ...]]:
    """A type without its markers, and the markers, in the order they were written."""
    if get_origin(hint) is Annotated:
        inner, *markers = get_args(hint)
        return inner, tuple(markers)
    return hint, ()


def members(hint: Any) -> tuple[Any, ...] | None:
    """The types of a union, None for any other type."""
    return get_args(hint) if get_origin(hint) in (Union, types.UnionType) else None


_WORDS: dict[Any, str] = {
    str: "text",
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    type(None): "nothing",
    Any: "plain data",
}


def describe(hint: Any) -> str:
    """What a type holds, in words: "a whole number", "one of a, b"."""
    base, markers = split(hint)
    for marker in markers:
        if isinstance(marker, (Text, Pattern)):
            return marker.form
    if base in _WORDS:
        return _WORDS[base]
    union, origin = members(base), get_origin(base)
    if union:
        return " or ".join(describe(member) for member in union if member is not type(None))
    if origin is Literal:
        values = [f'"{value}"' for value in get_args(base)]
        return values[0] if len(values) == 1 else f"one of {', '.join(values)}"
    return "a list" if origin is tuple else "a mapping"


Read = Callable[[Any], Any]

#: Deepest nesting of an `Any`: far below Python's own limit.
_MAX_DEPTH = 50

_READERS: dict[Any, Read] = {}


def reader(hint: Any) -> Read:
    """The function that reads one value of this type or raises Invalid; made once a type."""
    if hint not in _READERS:
        _READERS[hint] = _make(hint)
    return _READERS[hint]


def _make(hint: Any) -> Read:
    base, markers = split(hint)
    if any(isinstance(marker, NonFinite) for marker in markers):
        return _any_float
    read_base = _make_plain(base)
    for marker in markers:
        if isinstance(marker, Bounds):
            read_base = _bounded(read_base, marker)
        elif isinstance(marker, Pattern):
            read_base = _matching(read_base, marker)
        elif isinstance(marker, Text):
            read_base = _textual(read_base, marker)
    return read_base


def _make_plain(hint: Any) -> Read:
    if hint in _SIMPLE:
        return _SIMPLE[hint]
    origin, args = get_origin(hint), get_args(hint)
    if union := members(hint):
        return _union(union)
    if origin is Literal:
        return _choice({value: value for value in args})
    if origin is tuple and len(args) == 2 and args[1] is Ellipsis:
        return _tuple(args[0])
    if origin is dict and args[0] is str:
        return _dict(args[1])
    if isinstance(hint, type) and issubclass(hint, Enum):
        return _choice({member.value: member for member in hint})
    if isinstance(hint, type) and dataclasses.is_dataclass(hint):
        return _dataclass(hint)
    raise TypeError(f"no reader for the type {hint}")


def _wrong(hint: Any, data: Any, hint_text: str = "") -> Invalid:
    return Invalid((), f"expected {describe(hint)}, found {describe_value(data)}", hint_text)


def _str(data: Any) -> str:
    if not isinstance(data, str):
        scalar = isinstance(data, (int, float))
        raise _wrong(str, data, "write it in quotes" if scalar else "")
    return data


def _int(data: Any) -> int:
    if not isinstance(data, int) or isinstance(data, bool):
        raise _wrong(int, data)
    return data


def _any_float(data: Any) -> float:
    if isinstance(data, str) and data in ("nan", "inf", "-inf"):
        return float(data)
    if not isinstance(data, (int, float)) or isinstance(data, bool):
        raise _wrong(float, data)
    try:
        return float(data)
    except OverflowError:
        raise _wrong(float, data) from None


def _float(data: Any) -> float:
    value = math.nan if isinstance(data, str) else _any_float(data)
    if not math.isfinite(value):
        raise _wrong(float, data)
    return value


def _bool(data: Any) -> bool:
    if not isinstance(data, bool):
        word = isinstance(data, str) and data.lower() in ("yes", "no", "on", "off", "y", "n")
        raise _wrong(bool, data, "yes, no, on and off are plain text here" if word else "")
    return data


def _none(data: Any) -> None:
    if data is not None:
        raise _wrong(type(None), data)


def _any(data: Any, depth: int = 0) -> Any:
    if data is None or isinstance(data, (str, int)):
        return data
    if isinstance(data, float):
        return _float(data)
    if depth > _MAX_DEPTH:
        raise Invalid((), f"nested deeper than {_MAX_DEPTH} levels")
    if isinstance(data, (list, tuple)):
        return [_at(index, _any, item, depth + 1) for index, item in enumerate(data)]
    if isinstance(data, dict):
        return {_key(key): _at(key, _any, item, depth + 1) for key, item in data.items()}
    raise Invalid((), f"expected plain data, found {type(data).__name__}")


_SIMPLE: dict[Any, Read] = {
    str: _str,
    int: _int,
    float: _float,
    bool: _bool,
    type(None): _none,
    Any: _any,
}


def _at(key: Any, read_item: Callable[..., Any], *arguments: Any) -> Any:
    try:
        return read_item(*arguments)
    except Invalid as error:
        raise error.under(key) from None


def _key(key: Any) -> str:
    if not isinstance(key, str):
        raise Invalid(
            (), f"keys must be text, found {describe_value(key)} as a key", "write it in quotes"
        )
    return key


def _tuple(item_type: Any) -> Read:
    read_item = reader(item_type)

    def read_tuple(data: Any) -> tuple[Any, ...]:
        if not isinstance(data, (list, tuple)):
            raise Invalid((), f"expected a list, found {describe_value(data)}")
        return tuple([_at(index, read_item, item) for index, item in enumerate(data)])

    return read_tuple


def _dict(item_type: Any) -> Read:
    read_item = reader(item_type)

    def read_dict(data: Any) -> dict[str, Any]:
        if not isinstance(data, dict):
            raise Invalid((), f"expected a mapping, found {describe_value(data)}")
        return {_key(key): _at(key, read_item, item) for key, item in data.items()}

    return read_dict


def _choice(values: dict[Any, Any]) -> Read:
    # With its type: True equals 1 and must not stand for it.
    table = {(type(value), value): result for value, result in values.items()}
    texts = [str(value) for value in values]

    def read_choice(data: Any) -> Any:
        if isinstance(data, (str, int)) and (type(data), data) in table:
            return table[type(data), data]
        raise Invalid(
            (), f"{describe_value(data)} is not possible here", known(str(data)[:200], texts)
        )

    return read_choice


def _union(union: tuple[Any, ...]) -> Read:
    choices = [(member, reader(member)) for member in union if member is not type(None)]
    optional = len(choices) < len(union)
    expected = " or ".join(describe(member) for member, _ in choices)

    def read_union(data: Any) -> Any:
        if data is None and optional:
            return None
        hints = []
        for member, read_member in choices:
            try:
                return read_member(data)
            except Invalid as error:
                # An error inside says more than that none of the types fits.
                if len(choices) == 1 or _holds(member, data):
                    raise
                hints.append(error.hint)
        hint = next((hint for hint in reversed(hints) if hint), "")
        raise Invalid((), f"expected {expected}, found {describe_value(data)}", hint)

    return read_union


def _holds(member: Any, data: Any) -> bool:
    """Whether data of this kind can only have been meant for this type of a union."""
    base = split(member)[0]
    if isinstance(data, dict):
        return dataclasses.is_dataclass(base) or get_origin(base) is dict
    return type(data) is base or (get_origin(base) is tuple and isinstance(data, list))


def _dataclass(cls: type[Any]) -> Read:
    readers = {key: (item.name, reader(hint)) for item, key, hint in fields_of(cls)}
    needed = [(item.name, key) for item, key, _ in fields_of(cls) if required(item)]

    def read_dataclass(data: Any) -> Any:
        if not isinstance(data, dict):
            listed = f"known keys: {', '.join(readers)}"
            raise Invalid((), f"expected a mapping, found {describe_value(data)}", listed)
        values = {}
        for key, item in data.items():
            entry = readers.get(_key(key))
            if entry is None:
                raise Invalid((key,), "there is no such key", known(key, readers, "known keys"))
            try:
                values[entry[0]] = entry[1](item)
            except Invalid as error:
                raise error.under(key) from None
        missing = [key for name, key in needed if name not in values]
        if missing:
            raise Invalid((), f"{'keys' if missing[1:] else 'key'} missing: {', '.join(missing)}")
        try:
            return cls(**values)
        except Invalid:
            raise
        except ValueError as error:
            raise Invalid((), str(error)) from None

    return read_dataclass


def _bounded(read_base: Read, bounds: Bounds) -> Read:
    low = -math.inf if bounds.min is None else bounds.min
    high = math.inf if bounds.max is None else bounds.max

    def read_bounded(data: Any) -> Any:
        value = read_base(data)
        number = value if isinstance(value, (int, float)) else len(value)
        if low <= number <= high:
            return value
        limit = f"at least {low:g}" if number < low else f"at most {high:g}"
        what = describe_value(value) if number is value else f"the length {number}"
        raise Invalid((), f"{what} is not possible here", f"it must be {limit}")

    return read_bounded


def _matching(read_base: Read, pattern: Pattern) -> Read:
    match = re.compile(pattern.regex).fullmatch

    def read_matching(data: Any) -> Any:
        value = read_base(data)
        if not match(value):
            raise Invalid((), f"expected {pattern.form}, found {describe_value(value)}")
        return value

    return read_matching


def _textual(read_base: Read, marker: Text) -> Read:
    def read_textual(data: Any) -> Any:
        if not isinstance(data, str):
            return read_base(data)
        try:
            number = marker.parse(data)
        except ValueError as error:
            raise Invalid((), str(error), f"expected {marker.form}") from None
        return read_base(number)

    return read_textual


T = TypeVar("T")


def read(cls: type[T], data: Any, *, path: Path = ()) -> T:
    """An instance of `cls`, a dataclass or any type a field may have, from plain data.

    Raises Invalid, whose path is `path` and then the way inside `data`.
    """
    try:
        value: T = reader(cls)(data)
    except Invalid as error:
        raise error.under(*path) from None
    return value


def from_json(cls: type[T], text: str | bytes) -> T:
    """An instance of `cls` from JSON text; text that is no JSON raises Invalid as well."""
    try:
        data = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise Invalid((), f"this is no JSON: {error}") from None
    return read(cls, data)


def dump(value: Any) -> Any:
    """Plain data that `read` turns into `value` again.

    Fields that are None and None by default are left out. Keys of plain mappings are sorted and
    fields keep their order, so equal values give equal bytes.
    """
    kind = type(value)
    if kind is str or kind is int or value is None or kind is bool:
        return value
    if kind is float:
        return value if math.isfinite(value) else str(value)
    if isinstance(value, Enum):
        return value.value
    if dataclasses.is_dataclass(kind):
        data = {}
        for item, key, _ in fields_of(kind):
            field_value = getattr(value, item.name)
            if field_value is not None or item.default is not None:
                data[key] = dump(field_value)
        return data
    if isinstance(value, (list, tuple)):
        return [dump(item) for item in value]
    if isinstance(value, dict):
        return {key: dump(value[key]) for key in sorted(value)}
    raise TypeError(f"{kind.__name__} is no plain data")


def to_json(value: Any, *, indent: int | None = None) -> str:
    """`value` as JSON text, one line where no indent is given; equal values give equal bytes."""
    separators = (",", ":") if indent is None else (",", ": ")
    return json.dumps(
        dump(value), ensure_ascii=False, allow_nan=False, indent=indent, separators=separators
    )
