"""What typed data is made of: the markers of fields, names inside and outside, and errors.

`accept.core.typed` reads and writes by it, `accept.config.schema` describes it.
"""

from __future__ import annotations

import dataclasses
import difflib
import json
import types
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

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
    parts = (f"[{key}]" if isinstance(key, int) else f".{plain(str(key))}" for key in path)
    return "".join(parts).removeprefix(".")


def plain(text: str, limit: int = 60) -> str:
    """Text for a one-line message: cut at `limit` characters, control characters escaped."""
    cut = text if len(text) <= limit else text[: limit - 3] + "..."
    return cut if cut.isprintable() else json.dumps(cut)[1:-1]


def found(data: Any) -> str:
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
        return f'the text "{plain(data)}"'
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
