"""Read untrusted JSON and YAML data into typed dataclasses, write them as JSON, make their schema.

`_kind` is the one place that knows the supported types: how each is read, described and published.
"""

from __future__ import annotations

import dataclasses
import difflib
import inspect
import json
import math
import re
import sys
import types
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from enum import Enum
from functools import cache
from operator import ge, gt, le, lt
from typing import (
    Annotated,
    Any,
    ClassVar,
    Literal,
    Protocol,
    TypeVar,
    Union,
    get_args,
    get_origin,
    get_type_hints,
    overload,
)

from accept.core.error_codes import Code
from accept.core.text import plain

T = TypeVar("T")

#: Data as JSON and YAML represent it.
Plain = bool | int | float | str | list["Plain"] | dict[str, "Plain"] | None
#: Keys of mappings and indices of lists, from the outside in.
Path = tuple[str | int, ...]


class _Dataclass(Protocol):
    """Any instance of a dataclass."""

    __dataclass_fields__: ClassVar[dict[str, dataclasses.Field[Any]]]


_Reader = Callable[[object], Any]
_Schema = dict[str, Any]


class Invalid(ValueError):
    """Data that does not fit its type, with its path. Message and hint are one line each."""

    def __init__(
        self, path: Path, message: str, hint: str = "", *, code: Code = Code.VALUE_INVALID
    ) -> None:
        super().__init__(message)
        self.path = path
        self.message = message
        self.hint = hint
        self.code = code

    def under(self, *keys: str | int) -> Invalid:
        """Return this error with `keys` in front of its path."""
        return Invalid((*keys, *self.path), self.message, self.hint, code=self.code)

    def __str__(self) -> str:
        text = f"{show_path(self.path)}: {self.message}" if self.path else self.message
        return f"{text} ({self.hint})" if self.hint else text


@dataclass(frozen=True)
class _Kind:
    """The values of one type: their description in words, their reader, and their JSON Schema."""

    words: str
    #: Returns the value, or raises Invalid.
    read: _Reader
    #: Returns a new schema; adds the schemas of dataclasses to its argument.
    schema: Callable[[_Schema], _Schema]


@dataclass(frozen=True)
class Doc:
    """Description of a field, for the schema and for people."""

    text: str

    def apply(self, kind: _Kind) -> _Kind:
        """Return the kind with this description in its schema."""
        return replace(kind, schema=lambda defs: {**kind.schema(defs), "description": self.text})


def param(
    default: T,
    doc: str,
    *,
    least: float | None = None,
    above: float | None = None,
    most: float | None = None,
    below: float | None = None,
    or_zero: bool = False,
) -> T:
    """Return a field of a parameter class: its default, its description and its limits.

    `or_zero`: 0 is allowed as well. See `check_limits`.
    """
    limits: tuple[tuple[object, str, float | None], ...]
    limits = ((ge, "at least", least), (gt, "above", above), (le, "at most", most))
    given = tuple(one for one in (*limits, (lt, "below", below)) if one[2] is not None)
    return field(default=default, metadata={"doc": doc, "limits": given, "or_zero": or_zero})


def check_limits(params: _Dataclass) -> None:
    """Raise ValueError, which names the parameter, for a value outside of its limits."""
    for item in dataclasses.fields(params):
        value, limits = getattr(params, item.name), item.metadata.get("limits", ())
        or_zero = item.metadata.get("or_zero", False)
        if not (or_zero and not value) and not all(holds(value, n) for holds, _, n in limits):
            words = " and ".join(f"{words} {limit:g}" for _, words, limit in limits)
            zero = "0, or " if or_zero else ""
            raise ValueError(f"{camel(item.name)} must be {zero}{words}, not {value}")


@dataclass(frozen=True)
class Bounds:
    """Limits, both inclusive, of a number or of the length of a list or text."""

    min: float | None = None
    max: float | None = None

    def apply(self, kind: _Kind) -> _Kind:
        """Return the kind with these limits."""
        low = -math.inf if self.min is None else self.min
        high = math.inf if self.max is None else self.max

        def read_bounded(data: object) -> Any:
            value = kind.read(data)
            number = value if isinstance(value, (int, float)) else len(value)
            if low <= number <= high:
                return value
            limit = f"at least {low:g}" if number < low else f"at most {high:g}"
            subject = describe_value(value) if number is value else f"the length {number}"
            raise Invalid((), f"{subject} is not possible here", f"it must be {limit}")

        def schema_bounded(defs: _Schema) -> _Schema:
            result = kind.schema(defs)
            suffix = {"string": "Length", "array": "Items"}.get(result["type"], "imum")
            limits = {f"min{suffix}": self.min, f"max{suffix}": self.max}
            return {**result, **{key: n for key, n in limits.items() if n is not None}}

        return replace(kind, read=read_bounded, schema=schema_bounded)


@dataclass(frozen=True)
class Pattern:
    """A regular expression that matches the whole text; `form` describes it in words."""

    regex: str
    form: str

    def apply(self, kind: _Kind) -> _Kind:
        """Return the kind with this expression."""
        regex = re.compile(self.regex)

        def read_matching(data: object) -> Any:
            value = kind.read(data)
            if not regex.fullmatch(value):
                raise _wrong(self.form, value)
            return value

        return _Kind(
            words=self.form,
            read=read_matching,
            schema=lambda defs: {**kind.schema(defs), "pattern": f"^(?:{self.regex})$"},
        )


@dataclass(frozen=True)
class Keys:
    """A regular expression that matches each key of a mapping; `form` describes it in words."""

    regex: str
    form: str

    def apply(self, kind: _Kind) -> _Kind:
        """Return the kind with this expression for its keys."""
        regex = re.compile(self.regex)

        def read_matching(data: object) -> Any:
            value = kind.read(data)
            for key in value:
                if not regex.fullmatch(key):
                    raise _wrong(self.form, key).under(key)
            return value

        def schema_matching(defs: _Schema) -> _Schema:
            return {**kind.schema(defs), "propertyNames": {"pattern": f"^(?:{self.regex})$"}}

        return replace(kind, read=read_matching, schema=schema_matching)


@dataclass(frozen=True)
class Text:
    """Allow a number to be written as text; `parse` reads the text or raises ValueError."""

    parse: Callable[[str], int | float]
    form: str

    def apply(self, kind: _Kind) -> _Kind:
        """Return the kind that also accepts this text."""

        def read_textual(data: object) -> Any:
            if not isinstance(data, str):
                return kind.read(data)
            try:
                number = self.parse(data)
            except ValueError as error:
                raise Invalid((), str(error), f"expected {self.form}") from None
            return kind.read(number)

        text = {"type": "string", "title": self.form}
        return _Kind(
            words=self.form,
            read=read_textual,
            schema=lambda defs: {"anyOf": [kind.schema(defs), text]},
        )


@dataclass(frozen=True)
class Prepared:
    """Convert data before they are read, such as a number to text; `convert` may raise Invalid."""

    convert: Callable[[object], object]

    def apply(self, kind: _Kind) -> _Kind:
        """Return the kind that reads the converted data."""
        return replace(kind, read=lambda data: kind.read(self.convert(data)))


# Read, write and publish


def read(cls: type[T], data: object, *, path: Path = ()) -> T:
    """Return an instance of `cls`, a dataclass or any other type of a field, from plain data.

    A dataclass may have a static method `adapt`, which first converts data of other versions.
    Raise Invalid with `path`, extended by the path inside `data`.
    """
    try:
        value: T = _kind(cls).read(data)
    except Invalid as error:
        raise error.under(*path) from None
    return value


@overload
def dump(value: _Dataclass) -> dict[str, Plain]: ...
@overload
def dump(value: object) -> Plain: ...
def dump(value: object) -> Plain:
    """Return plain data from which `read` restores `value`.

    A field with `init=False` is written, but not restored: the class derives it from the others.
    Fields that are None are left out if None is their default. Keys of mappings are sorted and
    fields keep their order, so that equal values give equal bytes.
    """
    if isinstance(value, Enum):
        plain: Plain = value.value
        return plain
    if value is None or isinstance(value, (str, int)):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    kind = type(value)
    if dataclasses.is_dataclass(kind):
        data = {}
        for item, key in keys_of(kind):
            field_value = getattr(value, item.name)
            if field_value is not None or item.default is not None:
                data[key] = dump(field_value)
        return data
    if isinstance(value, (list, tuple)):
        return [dump(item) for item in value]
    if isinstance(value, dict):
        return {key: dump(value[key]) for key in sorted(value)}
    raise TypeError(f"{kind.__name__} is not plain data")


#: Most values in one JSON document of evidence. Python needs up to 200 bytes for each, and `[],`
#: is one. Plans and records have 17 bytes or more for each, so files of 32 MiB are below this.
_MOST_VALUES = 1 << 21


def from_json(text: bytes, *, repeated: object = None) -> object:
    """Parse JSON of unknown origin. Raise ValueError if it is invalid or has too many values.

    `repeated`, if given, replaces the values of a key that an object has with different ones.
    """
    if sum(map(text.count, (b"[", b"{", b","))) > _MOST_VALUES:
        raise ValueError(f"more than {_MOST_VALUES:,} values")

    def object_of(pairs: list[tuple[str, object]]) -> dict[str, object]:
        found = dict(pairs)
        if len(found) < len(pairs):
            found |= {key: repeated for key, value in pairs if found[key] != value}
        return found

    return json.loads(text, object_pairs_hook=object_of if repeated is not None else None)


def to_json(value: object) -> str:
    """Return JSON text on one line; equal values give equal bytes."""
    return json.dumps(dump(value), ensure_ascii=False, allow_nan=False, separators=(",", ":"))


def schema(cls: type[object]) -> _Schema:
    """Return the JSON Schema (draft 2020-12) of a dataclass; nested ones are under `$defs`.

    The description of a key comes from its `Doc`, from the field's `metadata["doc"]`, or from the
    `#:` comment above it.
    """
    defs: _Schema = {}
    result: _Schema = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        **_schema_of_fields(cls, defs),
    }
    return {**result, "$defs": dict(sorted(defs.items()))} if defs else result


# Texts


def camel(name: str) -> str:
    """Return the name of a field in files: minNodes for `min_nodes`, memoryGB for `memory_gb`."""
    first, *rest = name.split("_")
    return first + "".join("GB" if part == "gb" else part.capitalize() for part in rest)


def show_path(path: Path) -> str:
    """Return a path in the usual notation: `checks[2].params.max`."""
    parts = (f"[{key}]" if isinstance(key, int) else f".{escaped(str(key))}" for key in path)
    return "".join(parts).removeprefix(".")


def escaped(text: str, limit: int = 60) -> str:
    """Return the user's text for a message, with visible escapes for invisible characters.

    It has at most `limit` characters, not counting the escapes. `accept.core.text.plain` removes
    such characters instead, because they carry no meaning in untrusted text.
    """
    short = text if len(text) <= limit else text[: limit - 3] + "..."
    return short if short.isprintable() else json.dumps(short)[1:-1]


def describe_value(data: object) -> str:
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


def describe(hint: object) -> str:
    """Describe a type in words: "a whole number", "one of a, b"."""
    return _kind(hint).words


#: With more names than these, a list of all is as good.
_MOST_SUGGESTIONS = 3


def nearest(asked: str, names: Iterable[str]) -> tuple[str, ...]:
    """Return the names that `asked` was probably intended to be, at most three.

    Names that begin with it come first: "a4" is "a4-highgpu-8g" rather than "a4x-highgpu-4g".
    Otherwise it is the most similar name.
    """
    by_lower = {name.lower(): name for name in names}
    start = asked.lower()[:200]
    begun = [name for name in by_lower if start and name.startswith(start)]
    whole_words = [name for name in begun if not name[len(start) :][:1].isalnum()]
    close = whole_words or begun or difflib.get_close_matches(start, by_lower, 1, 0.6)
    return tuple(by_lower[name] for name in close) if len(close) <= _MOST_SUGGESTIONS else ()


def did_you_mean(asked: str, names: Iterable[str]) -> str:
    """Return "did you mean …? " for an unknown name; "" if no name is near."""
    *others, last = [plain(name, 80) for name in nearest(asked, names)] or [""]
    choices = f"{', '.join(others)} or {last}" if others else last
    return f"did you mean {choices}? " if choices else ""


def known(asked: str, names: Iterable[str], what: str = "known") -> str:
    """Return the hint for an unknown name: the nearest existing names, and a list of all."""
    all_names = list(names)
    return f"{did_you_mean(asked, all_names)}{what}: {', '.join(all_names) or 'none'}"


# Types


def _cached(make: Callable[[Any], T]) -> Callable[[Any], T]:
    """Return `make` with a cache: every record is read with it, so speed matters here."""
    return cache(make)


@_cached
def keys_of(cls: Any) -> tuple[tuple[dataclasses.Field[Any], str], ...]:
    """Return (field, key in files) for each field of a dataclass."""
    return tuple((item, camel(item.name)) for item in dataclasses.fields(cls))


def fields_of(cls: Any) -> tuple[tuple[dataclasses.Field[Any], str, Any], ...]:
    """Return (field, key in files, type with markers) for each field of a dataclass."""
    hints = get_type_hints(cls, include_extras=True)
    return tuple((item, key, hints[item.name]) for item, key in keys_of(cls))


def split(hint: Any) -> tuple[Any, tuple[Any, ...]]:
    """Return a type without its markers, and the markers in their order."""
    if get_origin(hint) is Annotated:
        inner, *markers = get_args(hint)
        return inner, tuple(markers)
    return hint, ()


def members(hint: Any) -> tuple[Any, ...] | None:
    """Return the types of a union, or None for any other type."""
    return get_args(hint) if get_origin(hint) in (Union, types.UnionType) else None


@_cached
def _kind(hint: Any) -> _Kind:
    base, markers = split(hint)
    kind = _SIMPLE.get(base) or _composite(base)
    for marker in markers:
        kind = marker.apply(kind)
    return kind


def _composite(hint: Any) -> _Kind:
    origin, args = get_origin(hint), get_args(hint)
    if union := members(hint):
        return _union(union)
    if origin is Literal:
        return _choice({value: value for value in args})
    if origin is tuple and len(args) == 2 and args[1] is Ellipsis:
        return _tuple(_kind(args[0]))
    if origin is dict and args[0] is str:
        return _dict(_kind(args[1]))
    if isinstance(hint, type) and issubclass(hint, Enum):
        return _choice({member.value: member for member in hint})
    if isinstance(hint, type) and dataclasses.is_dataclass(hint):
        return _dataclass(hint)
    raise TypeError(f"no reader for the type {hint}")


def _wrong(words: str, data: object, hint: str = "") -> Invalid:
    return Invalid((), f"expected {words}, found {describe_value(data)}", hint)


def _simple(
    words: str,
    fits: Callable[[object], bool],
    schema: _Schema,
    advice: Callable[[object], str] = lambda _: "",
) -> _Kind:
    def read_simple(data: object) -> Any:
        if not fits(data):
            raise _wrong(words, data, advice(data))
        return data

    return _Kind(words=words, read=read_simple, schema=lambda _: dict(schema))


def _bool_advice(data: object) -> str:
    is_word = isinstance(data, str) and data.lower() in ("yes", "no", "on", "off", "y", "n")
    return "yes, no, on and off are plain text here" if is_word else ""


def _text_advice(data: object) -> str:
    if isinstance(data, dict) and list(data) == ["name"]:
        return f"write only the name: {escaped(str(data['name']))}"
    return "write it in quotes" if isinstance(data, (int, float)) else ""


def _is_number(data: object) -> bool:
    """Return True for a number that a float can hold; NaN and infinity are refused."""
    if isinstance(data, bool) or not isinstance(data, (int, float)):
        return False
    return abs(data) <= sys.float_info.max


_STR = _simple(
    "text",
    lambda data: isinstance(data, str),
    {"type": "string"},
    _text_advice,
)
_INT = _simple(
    "a whole number",
    lambda data: isinstance(data, int) and not isinstance(data, bool),
    {"type": "integer"},
)
_NUMBER = _simple("a number", _is_number, {"type": "number"})
_FLOAT = replace(_NUMBER, read=lambda data: float(_NUMBER.read(data)))
_BOOL = _simple(
    "true or false", lambda data: isinstance(data, bool), {"type": "boolean"}, _bool_advice
)
_NONE = _simple("nothing", lambda data: data is None, {"type": "null"})

#: Deepest nesting of data of any type, far below Python's recursion limit.
_MAX_DEPTH = 50


def _any(data: object, depth: int = 0) -> Any:
    if data is None or isinstance(data, (str, int)):
        return data
    if isinstance(data, float):
        return _FLOAT.read(data)
    if depth > _MAX_DEPTH:
        raise Invalid((), f"nested deeper than {_MAX_DEPTH} levels")
    if isinstance(data, (list, tuple)):
        return [_at(index, _any, item, depth + 1) for index, item in enumerate(data)]
    if isinstance(data, dict):
        return {_key(key): _at(key, _any, item, depth + 1) for key, item in data.items()}
    raise Invalid((), f"expected plain data, found {type(data).__name__}")


_ANY = _Kind(words="plain data", read=_any, schema=lambda _: {})
_SIMPLE: dict[Any, _Kind] = {
    str: _STR,
    int: _INT,
    float: _FLOAT,
    bool: _BOOL,
    type(None): _NONE,
    Any: _ANY,
    object: _ANY,
}


def _at(key: str | int, read_item: Callable[..., Any], *arguments: object) -> Any:
    try:
        return read_item(*arguments)
    except Invalid as error:
        raise error.under(key) from None


def _key(key: object) -> str:
    if not isinstance(key, str):
        message = f"keys must be text, found {describe_value(key)} as a key"
        raise Invalid((), message, "write it in quotes", code=Code.KEY_TYPE)
    return key


def _tuple(item: _Kind) -> _Kind:
    def read_tuple(data: object) -> tuple[Any, ...]:
        if not isinstance(data, (list, tuple)):
            raise _wrong("a list", data)
        return tuple([_at(index, item.read, value) for index, value in enumerate(data)])

    return _Kind(
        words="a list",
        read=read_tuple,
        schema=lambda defs: {"type": "array", "items": item.schema(defs)},
    )


def _dict(item: _Kind) -> _Kind:
    def read_dict(data: object) -> dict[str, Any]:
        if not isinstance(data, dict):
            raise _wrong("a mapping", data)
        return {_key(key): _at(key, item.read, value) for key, value in data.items()}

    return _Kind(
        words="a mapping",
        read=read_dict,
        schema=lambda defs: {"type": "object", "additionalProperties": item.schema(defs)},
    )


def _choice(values: dict[Any, Any]) -> _Kind:
    # The type is part of the key, because True == 1.
    table = {(type(value), value): result for value, result in values.items()}
    texts = [str(value) for value in values]

    def read_choice(data: object) -> Any:
        if isinstance(data, (str, int)) and (type(data), data) in table:
            return table[type(data), data]
        raise Invalid(
            (), f"{describe_value(data)} is not possible here", known(str(data)[:200], texts)
        )

    quoted = [f'"{text}"' for text in texts]
    return _Kind(
        words=quoted[0] if len(quoted) == 1 else f"one of {', '.join(quoted)}",
        read=read_choice,
        schema=lambda _: {"enum": list(values)},
    )


def _union(union: tuple[Any, ...]) -> _Kind:
    choices = [(member, _kind(member)) for member in union if member is not type(None)]
    optional = len(choices) < len(union)
    expected = " or ".join(kind.words for _, kind in choices)

    def read_union(data: object) -> Any:
        if data is None and optional:
            return None
        hints = []
        for member, kind in choices:
            try:
                return kind.read(data)
            except Invalid as error:
                # The error of the intended member is more precise than "none of the types fits".
                if len(choices) == 1 or _is_intended(member, data):
                    raise
                hints.append(error.hint)
        raise _wrong(expected, data, next((hint for hint in reversed(hints) if hint), ""))

    return _Kind(
        words=expected,
        read=read_union,
        schema=lambda defs: {"anyOf": [_kind(member).schema(defs) for member in union]},
    )


def _is_intended(member: Any, data: object) -> bool:
    """Return True if the kind of data shows that this member of a union was meant."""
    base = split(member)[0]
    if isinstance(data, dict):
        return dataclasses.is_dataclass(base) or get_origin(base) is dict
    return type(data) is base or (get_origin(base) is tuple and isinstance(data, list))


def _dataclass(cls: type[Any]) -> _Kind:
    readers = {key: (item.name, _kind(hint).read) for item, key, hint in fields_of(cls)}
    required_keys = {key: item.name for item, key in keys_of(cls) if _is_required(item)}
    derived = {item.name for item, _ in keys_of(cls) if not item.init}
    adapt = getattr(cls, "adapt", None)

    def read_dataclass(data: object) -> Any:
        if not isinstance(data, dict):
            raise _wrong("a mapping", data, f"known keys: {', '.join(readers)}")
        values = {}
        for key, item in (adapt(data) if adapt else data).items():
            entry = readers.get(_key(key))
            if entry is None:
                hint = known(key, readers, "known keys")
                raise Invalid((key,), "there is no such key", hint, code=Code.KEY_UNKNOWN)
            name, read_item = entry
            try:
                values[name] = read_item(item)
            except Invalid as error:
                raise error.under(key) from None
        missing = [key for key, name in required_keys.items() if name not in values]
        if missing:
            message = f"{'keys' if missing[1:] else 'key'} missing: {', '.join(missing)}"
            raise Invalid((), message, code=Code.KEY_MISSING)
        for name in derived:
            del values[name]
        try:
            return cls(**values)
        except Invalid:
            raise
        except ValueError as error:
            raise Invalid((), str(error)) from None

    def schema_reference(defs: _Schema) -> _Schema:
        if cls.__name__ not in defs:
            defs[cls.__name__] = {}
            defs[cls.__name__] = _schema_of_fields(cls, defs)
        return {"$ref": f"#/$defs/{cls.__name__}"}

    return _Kind(words="a mapping", read=read_dataclass, schema=schema_reference)


def _is_required(item: dataclasses.Field[Any]) -> bool:
    return item.default is dataclasses.MISSING and item.default_factory is dataclasses.MISSING


def _schema_of_fields(cls: type[Any], defs: _Schema) -> _Schema:
    comments = _comments(cls)
    properties = {}
    for item, key, hint in fields_of(cls):
        properties[key] = _kind(hint).schema(defs)
        text = item.metadata.get("doc") or comments.get(item.name)
        if text:
            properties[key].setdefault("description", text)
        if item.default not in (dataclasses.MISSING, None):
            properties[key]["default"] = dump(item.default)
    result: _Schema = {
        "title": cls.__name__,
        "description": inspect.cleandoc(cls.__doc__ or ""),
        "type": "object",
        "properties": properties,
        "additionalProperties": False,
    }
    required = [key for item, key in keys_of(cls) if _is_required(item)]
    return {**result, "required": required} if required else result


_COMMENT = re.compile(r"((?:^ +#:.*\n)+) +(\w+):", re.MULTILINE)


def _comments(cls: type[Any]) -> dict[str, str]:
    """Return the `#:` comments above the fields of a class; {} if its source is unavailable."""
    try:
        source = inspect.getsource(cls)
    except (OSError, TypeError):
        return {}
    return {
        name: " ".join(line.strip(" #:") for line in text.strip().splitlines())
        for text, name in _COMMENT.findall(source)
    }
