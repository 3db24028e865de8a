"""Strict reading and exact writing of frozen dataclasses as plain JSON or YAML data.

Outside the keys are camelCase, inside the fields are snake_case; they are translated here and
nowhere else. Keys of plain mappings (`dict[str, T]`, `Any`) are data and stay as they are.

A field may be str, int, float, bool, None, `Any` (plain JSON), `Literal`, an Enum with values of
text, another dataclass, `tuple[T, ...]`, `dict[str, T]`, a union of these, or `Annotated` with the
markers of `accept.core.shape`. An int is a good float; a bool is never a number; NaN and infinity
are refused except where `NonFinite` allows them. A ValueError out of a class's `__post_init__`
becomes an `Invalid`; one that is `Invalid` already may lead to a key of that class.
"""

from __future__ import annotations

import dataclasses
import json
import math
from enum import Enum
from typing import Any, TypeVar

from accept.core.serde import reader
from accept.core.shape import (
    Bounds,
    Doc,
    Invalid,
    NonFinite,
    Path,
    Pattern,
    Text,
    fields_of,
)

__all__ = [
    "Bounds",
    "Doc",
    "Invalid",
    "NonFinite",
    "Path",
    "Pattern",
    "Text",
    "dump",
    "from_json",
    "read",
    "to_json",
]

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
