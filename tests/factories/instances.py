"""Instances of dataclasses of any content, for properties."""

from __future__ import annotations

from dataclasses import fields, is_dataclass
from types import UnionType
from typing import Annotated, Any, Union, get_args, get_origin, get_type_hints

from hypothesis import strategies as st

from accept.core.serde import Bounds, Keys, Pattern

WORDS = st.text(max_size=4)
NUMBERS = st.floats(allow_nan=False, allow_infinity=False)
#: Values that JSON can have.
PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | NUMBERS | WORDS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(WORDS, inner, max_size=3),
    max_leaves=8,
)


def instances(cls: Any, **given: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """Return a strategy for instances of a dataclass: finite numbers, short lists, plain data.

    `given`: other strategies for single fields.
    """
    hints = get_type_hints(cls, include_extras=True)
    own = {item.name: _values(hints[item.name]) for item in fields(cls) if item.init}
    return st.builds(cls, **own | given)


def _values(hint: Any) -> st.SearchStrategy[Any]:
    args = get_args(hint)
    if is_dataclass(hint):
        return instances(hint)
    if get_origin(hint) is Annotated:
        return _limited(*args)
    if get_origin(hint) in (Union, UnionType):
        return st.one_of(*map(_values, args))
    if get_origin(hint) is tuple:
        return st.lists(_values(args[0]), max_size=2).map(tuple)
    if get_origin(hint) is dict:
        return st.dictionaries(WORDS, _values(args[1]), max_size=2)
    simple = {str: WORDS, float: NUMBERS, Any: PLAIN, object: PLAIN}
    return simple[hint] if hint in simple else st.from_type(hint)


def _limited(hint: Any, marker: Bounds | Pattern | Keys) -> st.SearchStrategy[Any]:
    """Return a strategy for the values of a type that a marker allows."""
    if isinstance(marker, Keys):
        keys = st.from_regex(marker.regex, fullmatch=True)
        return st.dictionaries(keys, _values(get_args(hint)[1]), max_size=2)
    if isinstance(marker, Pattern):
        return st.from_regex(marker.regex, fullmatch=True)
    if hint is str:
        return st.text(max_size=20)
    numbers = st.integers if hint is int else st.floats
    return numbers(marker.min, marker.max)  # type: ignore[arg-type]
