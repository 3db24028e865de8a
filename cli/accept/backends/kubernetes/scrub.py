"""Objects of the API without what they should not tell: values of variables, old copies."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

#: What holds a whole object once more, values and all.
_COPIES = ("kubectl.kubernetes.io/last-applied-configuration",)
_HIDDEN = "(not kept)"


def scrubbed(value: Any) -> Any:
    """The object without environment values, managed fields and applied copies of itself."""
    if isinstance(value, list):
        return [scrubbed(item) for item in value]
    if not isinstance(value, Mapping):
        return value
    kept = {}
    for key, item in value.items():
        if key == "managedFields" or key in _COPIES:
            continue
        kept[key] = [_variable(v) for v in item] if key == "env" and _list(item) else scrubbed(item)
    return kept


def _list(value: Any) -> bool:
    return isinstance(value, list)


def _variable(one: Any) -> Any:
    """A variable by its name; where it comes from stays, its value does not."""
    if not isinstance(one, Mapping):
        return _HIDDEN
    return {k: (_HIDDEN if k == "value" else scrubbed(v)) for k, v in one.items()}
