"""The functions that read one value of a type, made once for each type: see `accept.core.typed`."""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Callable
from enum import Enum
from typing import Any, Literal, get_args, get_origin

from accept.core.shape import (
    Bounds,
    Invalid,
    NonFinite,
    Pattern,
    Text,
    describe,
    fields_of,
    found,
    known,
    members,
    required,
    split,
)

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
    return Invalid((), f"expected {describe(hint)}, found {found(data)}", hint_text)


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
        raise Invalid((), f"keys must be text, found {found(key)} as a key", "write it in quotes")
    return key


def _tuple(item_type: Any) -> Read:
    read_item = reader(item_type)

    def read_tuple(data: Any) -> tuple[Any, ...]:
        if not isinstance(data, (list, tuple)):
            raise Invalid((), f"expected a list, found {found(data)}")
        return tuple([_at(index, read_item, item) for index, item in enumerate(data)])

    return read_tuple


def _dict(item_type: Any) -> Read:
    read_item = reader(item_type)

    def read_dict(data: Any) -> dict[str, Any]:
        if not isinstance(data, dict):
            raise Invalid((), f"expected a mapping, found {found(data)}")
        return {_key(key): _at(key, read_item, item) for key, item in data.items()}

    return read_dict


def _choice(values: dict[Any, Any]) -> Read:
    # With its type: True equals 1 and must not stand for it.
    table = {(type(value), value): result for value, result in values.items()}
    texts = [str(value) for value in values]

    def read_choice(data: Any) -> Any:
        if isinstance(data, (str, int)) and (type(data), data) in table:
            return table[type(data), data]
        raise Invalid((), f"{found(data)} is not possible here", known(str(data)[:200], texts))

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
        raise Invalid((), f"expected {expected}, found {found(data)}", hint)

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
            raise Invalid((), f"expected a mapping, found {found(data)}", listed)
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
        what = found(value) if number is value else f"the length {number}"
        raise Invalid((), f"{what} is not possible here", f"it must be {limit}")

    return read_bounded


def _matching(read_base: Read, pattern: Pattern) -> Read:
    match = re.compile(pattern.regex).fullmatch

    def read_matching(data: Any) -> Any:
        value = read_base(data)
        if not match(value):
            raise Invalid((), f"expected {pattern.form}, found {found(value)}")
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
