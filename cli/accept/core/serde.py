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

T = TypeVar("T")

#: Keys of mappings and indices of lists, from the outside in.
Path = tuple[Any, ...]
_Reader = Callable[[Any], Any]


class Invalid(ValueError):
    """Data that does not fit its type, with its path. Message and hint are one line each."""

    def __init__(self, path: Path, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.path = path
        self.message = message
        self.hint = hint

    def under(self, *keys: Any) -> Invalid:
        """Return this error with `keys` in front of its path."""
        return Invalid((*keys, *self.path), self.message, self.hint)

    def __str__(self) -> str:
        text = f"{show_path(self.path)}: {self.message}" if self.path else self.message
        return f"{text} ({self.hint})" if self.hint else text


@dataclass(frozen=True)
class Doc:
    """Description of a field, for the schema and for people."""

    text: str


@dataclass(frozen=True)
class Bounds:
    """Limits, both inclusive, of a number or of the length of a list or text."""

    min: float | None = None
    max: float | None = None


@dataclass(frozen=True)
class Pattern:
    """A regular expression that matches the whole text; `form` describes it in words."""

    regex: str
    form: str


@dataclass(frozen=True)
class Text:
    """Allows a number to be written as text; `parse` reads that or raises ValueError."""

    parse: Callable[[str], int | float]
    form: str


@dataclass(frozen=True)
class NonFinite:
    """Allows NaN and infinity, written as the texts "nan", "inf" and "-inf"."""


def read(cls: type[T], data: Any, *, path: Path = ()) -> T:
    """Return an instance of `cls`, a dataclass or any other type of a field, from plain data.

    Raise Invalid with `path`, extended by the path inside `data`.
    """
    try:
        value: T = _reader(cls)(data)
    except Invalid as error:
        raise error.under(*path) from None
    return value


def from_json(cls: type[T], text: str | bytes) -> T:
    """Return an instance of `cls` from JSON text. Raise Invalid, also if the text is not JSON."""
    try:
        data = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise Invalid((), f"invalid JSON: {error}") from None
    return read(cls, data)


def dump(value: Any) -> Any:
    """Return plain data from which `read` restores `value`.

    Fields that are None are left out if None is their default. Keys of mappings are sorted and
    fields keep their order, so that equal values give equal bytes.
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
    raise TypeError(f"{kind.__name__} is not plain data")


def to_json(value: Any, *, indent: int | None = None) -> str:
    """Return JSON text, on one line without `indent`; equal values give equal bytes."""
    separators = (",", ":") if indent is None else (",", ": ")
    return json.dumps(
        dump(value), ensure_ascii=False, allow_nan=False, indent=indent, separators=separators
    )


def camel(name: str) -> str:
    """Return the name of a field in files: minNodes for `min_nodes`, memoryGB for `memory_gb`."""
    first, *rest = name.split("_")
    return first + "".join("GB" if part == "gb" else part.capitalize() for part in rest)


def show_path(path: Path) -> str:
    """Return a path in the usual notation: `checks[2].params.max`."""
    parts = (f"[{key}]" if isinstance(key, int) else f".{escaped(str(key))}" for key in path)
    return "".join(parts).removeprefix(".")


def escaped(text: str, limit: int = 60) -> str:
    """Return text for a message: at most `limit` characters, with control characters escaped."""
    short = text if len(text) <= limit else text[: limit - 3] + "..."
    return short if short.isprintable() else json.dumps(short)[1:-1]


def describe_value(data: Any) -> str:
    """Describe a value in a few words, for messages."""
    if data is None:
        return "nothing"
    if isinstance(data, bool):
        return "true" if data else "false"
    if isinstance(data, (int, float)):
        # Python refuses to print integers of thousands of digits.
        is_huge = isinstance(data, int) and data.bit_length() > 100
        return "a number of more than 30 digits" if is_huge else f"the number {data}"
    if isinstance(data, str):
        return f'the text "{escaped(data)}"'
    return "a list" if isinstance(data, (list, tuple)) else "a mapping"


def nearest(asked: str, names: Iterable[str]) -> str | None:
    """Return the name that `asked` was probably meant to be, or None."""
    by_lower = {name.lower(): name for name in names}
    close = difflib.get_close_matches(asked.lower()[:200], by_lower, 1, 0.6)
    return by_lower[close[0]] if close else None


def known(asked: str, names: Iterable[str], what: str = "known") -> str:
    """Return the hint for an unknown name: the nearest existing name, and a list of all."""
    all_names = list(names)
    nearest_name = nearest(asked, all_names)
    listing = f"{what}: {', '.join(all_names) or 'none'}"
    return f"did you mean {nearest_name}? {listing}" if nearest_name else listing


def required(item: dataclasses.Field[Any]) -> bool:
    """Return True if a field has no default."""
    return item.default is dataclasses.MISSING and item.default_factory is dataclasses.MISSING


_FIELDS: dict[Any, tuple[tuple[dataclasses.Field[Any], str, Any], ...]] = {}


def fields_of(cls: Any) -> tuple[tuple[dataclasses.Field[Any], str, Any], ...]:
    """Return (field, key in files, type with markers) for each field of a dataclass."""
    if cls not in _FIELDS:
        hints = get_type_hints(cls, include_extras=True)
        _FIELDS[cls] = tuple((i, camel(i.name), hints[i.name]) for i in dataclasses.fields(cls))
    return _FIELDS[cls]


def split(hint: Any) -> tuple[Any, tuple[Any, ...]]:
    """Return a type without its markers, and the markers in their order."""
    if get_origin(hint) is Annotated:
        inner, *markers = get_args(hint)
        return inner, tuple(markers)
    return hint, ()


def members(hint: Any) -> tuple[Any, ...] | None:
    """Return the types of a union, or None for any other type."""
    return get_args(hint) if get_origin(hint) in (Union, types.UnionType) else None


_WORDS: dict[Any, str] = {
    str: "text",
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    type(None): "nothing",
    Any: "plain data",
    object: "plain data",
}


def describe(hint: Any) -> str:
    """Describe a type in words: "a whole number", "one of a, b"."""
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


#: Deepest nesting of an `Any`, far below Python's recursion limit.
_MAX_DEPTH = 50

_READERS: dict[Any, _Reader] = {}


def _reader(hint: Any) -> _Reader:
    """Return the function that reads one value of this type or raises Invalid."""
    if hint not in _READERS:
        _READERS[hint] = _make_reader(hint)
    return _READERS[hint]


def _make_reader(hint: Any) -> _Reader:
    base, markers = split(hint)
    if any(isinstance(marker, NonFinite) for marker in markers):
        return _any_float
    read_base = _make_base_reader(base)
    for marker in markers:
        if isinstance(marker, Bounds):
            read_base = _bounded(read_base, marker)
        elif isinstance(marker, Pattern):
            read_base = _matching(read_base, marker)
        elif isinstance(marker, Text):
            read_base = _textual(read_base, marker)
    return read_base


def _make_base_reader(hint: Any) -> _Reader:
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
        is_number = isinstance(data, (int, float))
        raise _wrong(str, data, "write it in quotes" if is_number else "")
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
        is_word = isinstance(data, str) and data.lower() in ("yes", "no", "on", "off", "y", "n")
        raise _wrong(bool, data, "yes, no, on and off are plain text here" if is_word else "")
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


_SIMPLE: dict[Any, _Reader] = {
    str: _str,
    int: _int,
    float: _float,
    bool: _bool,
    type(None): _none,
    Any: _any,
    object: _any,
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


def _tuple(item_type: Any) -> _Reader:
    read_item = _reader(item_type)

    def read_tuple(data: Any) -> tuple[Any, ...]:
        if not isinstance(data, (list, tuple)):
            raise Invalid((), f"expected a list, found {describe_value(data)}")
        return tuple([_at(index, read_item, item) for index, item in enumerate(data)])

    return read_tuple


def _dict(item_type: Any) -> _Reader:
    read_item = _reader(item_type)

    def read_dict(data: Any) -> dict[str, Any]:
        if not isinstance(data, dict):
            raise Invalid((), f"expected a mapping, found {describe_value(data)}")
        return {_key(key): _at(key, read_item, item) for key, item in data.items()}

    return read_dict


def _choice(values: dict[Any, Any]) -> _Reader:
    # The type is part of the key, because True == 1.
    table = {(type(value), value): result for value, result in values.items()}
    texts = [str(value) for value in values]

    def read_choice(data: Any) -> Any:
        if isinstance(data, (str, int)) and (type(data), data) in table:
            return table[type(data), data]
        raise Invalid(
            (), f"{describe_value(data)} is not possible here", known(str(data)[:200], texts)
        )

    return read_choice


def _union(union: tuple[Any, ...]) -> _Reader:
    choices = [(member, _reader(member)) for member in union if member is not type(None)]
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
                # The error of the intended member is more precise than "none of the types fits".
                if len(choices) == 1 or _is_intended(member, data):
                    raise
                hints.append(error.hint)
        hint = next((hint for hint in reversed(hints) if hint), "")
        raise Invalid((), f"expected {expected}, found {describe_value(data)}", hint)

    return read_union


def _is_intended(member: Any, data: Any) -> bool:
    """Return True if the kind of data shows that this member of a union was meant."""
    base = split(member)[0]
    if isinstance(data, dict):
        return dataclasses.is_dataclass(base) or get_origin(base) is dict
    return type(data) is base or (get_origin(base) is tuple and isinstance(data, list))


def _dataclass(cls: type[Any]) -> _Reader:
    readers = {key: (item.name, _reader(hint)) for item, key, hint in fields_of(cls)}
    required_keys = {key: item.name for item, key, _ in fields_of(cls) if required(item)}

    def read_dataclass(data: Any) -> Any:
        if not isinstance(data, dict):
            hint = f"known keys: {', '.join(readers)}"
            raise Invalid((), f"expected a mapping, found {describe_value(data)}", hint)
        values = {}
        for key, item in data.items():
            entry = readers.get(_key(key))
            if entry is None:
                raise Invalid((key,), "there is no such key", known(key, readers, "known keys"))
            name, read_item = entry
            try:
                values[name] = read_item(item)
            except Invalid as error:
                raise error.under(key) from None
        missing = [key for key, name in required_keys.items() if name not in values]
        if missing:
            raise Invalid((), f"{'keys' if missing[1:] else 'key'} missing: {', '.join(missing)}")
        try:
            return cls(**values)
        except Invalid:
            raise
        except ValueError as error:
            raise Invalid((), str(error)) from None

    return read_dataclass


def _bounded(read_base: _Reader, bounds: Bounds) -> _Reader:
    low = -math.inf if bounds.min is None else bounds.min
    high = math.inf if bounds.max is None else bounds.max

    def read_bounded(data: Any) -> Any:
        value = read_base(data)
        number = value if isinstance(value, (int, float)) else len(value)
        if low <= number <= high:
            return value
        limit = f"at least {low:g}" if number < low else f"at most {high:g}"
        subject = describe_value(value) if number is value else f"the length {number}"
        raise Invalid((), f"{subject} is not possible here", f"it must be {limit}")

    return read_bounded


def _matching(read_base: _Reader, pattern: Pattern) -> _Reader:
    regex = re.compile(pattern.regex)

    def read_matching(data: Any) -> Any:
        value = read_base(data)
        if not regex.fullmatch(value):
            raise Invalid((), f"expected {pattern.form}, found {describe_value(value)}")
        return value

    return read_matching


def _textual(read_base: _Reader, marker: Text) -> _Reader:
    def read_textual(data: Any) -> Any:
        if not isinstance(data, str):
            return read_base(data)
        try:
            number = marker.parse(data)
        except ValueError as error:
            raise Invalid((), str(error), f"expected {marker.form}") from None
        return read_base(number)

    return read_textual
