"""Make the JSON Schema (draft 2020-12) of types that `accept.core.serde` reads.

The description of a key comes from its `Doc`, from the field's `metadata["doc"]`, or from the `#:`
comment above it.
"""

from __future__ import annotations

import dataclasses
import inspect
import re
from enum import Enum
from typing import Any, Literal, get_args, get_origin

from accept.core.serde import (
    Bounds,
    Doc,
    NonFinite,
    Pattern,
    Text,
    camel,
    dump,
    fields_of,
    members,
    required,
    split,
)

_COMMENT = re.compile(r"((?:^ +#:.*\n)+) +(\w+):", re.MULTILINE)
_SIMPLE: dict[Any, dict[str, Any]] = {
    str: {"type": "string"},
    int: {"type": "integer"},
    float: {"type": "number"},
    bool: {"type": "boolean"},
    type(None): {"type": "null"},
    Any: {},
    object: {},
}


def schema(cls: type[Any]) -> dict[str, Any]:
    """Return the schema of a dataclass; nested dataclasses are under `$defs`."""
    definitions: dict[str, Any] = {}
    top = _of_class(cls, definitions)
    result = {"$schema": "https://json-schema.org/draft/2020-12/schema", **top}
    if definitions:
        result["$defs"] = dict(sorted(definitions.items()))
    return result


def schema_of_chart(cls: type[Any]) -> dict[str, Any]:
    """Return the schema in draft-07, which every version of Helm supports."""

    def renamed(data: Any) -> Any:
        if isinstance(data, list):
            return [renamed(item) for item in data]
        if not isinstance(data, dict):
            return data
        ref = data.get("$ref")
        if isinstance(ref, str):
            # Draft-07 ignores other keys beside `$ref`.
            return {"$ref": ref.replace("#/$defs/", "#/definitions/")}
        return {key: renamed(value) for key, value in data.items()}

    result = schema(cls)
    definitions = result.pop("$defs", {})
    result["$schema"] = "http://json-schema.org/draft-07/schema#"
    return {**renamed(result), "definitions": renamed(definitions)}


def _of_class(cls: type[Any], definitions: dict[str, Any]) -> dict[str, Any]:
    comments = _comments(cls)
    properties = {}
    for item, key, hint in fields_of(cls):
        properties[key] = _of_type(hint, definitions)
        text = item.metadata.get("doc") or comments.get(item.name)
        if text and "description" not in properties[key]:
            properties[key]["description"] = text
        if item.default not in (dataclasses.MISSING, None):
            properties[key]["default"] = dump(item.default)
    result: dict[str, Any] = {
        "title": cls.__name__,
        "description": inspect.cleandoc(cls.__doc__ or ""),
        "type": "object",
        "properties": properties,
        "additionalProperties": False,
    }
    required_keys = [camel(item.name) for item in dataclasses.fields(cls) if required(item)]
    if required_keys:
        result["required"] = required_keys
    return result


def _of_type(hint: Any, definitions: dict[str, Any]) -> dict[str, Any]:
    base, markers = split(hint)
    result = _of_plain(base, definitions)
    for marker in markers:
        if isinstance(marker, Doc):
            result["description"] = marker.text
        elif isinstance(marker, Bounds):
            low, high = _bound_keys(base)
            result.update({low: marker.min} if marker.min is not None else {})
            result.update({high: marker.max} if marker.max is not None else {})
        elif isinstance(marker, Pattern):
            result["pattern"] = f"^(?:{marker.regex})$"
        elif isinstance(marker, NonFinite):
            result = {"anyOf": [result, {"enum": ["nan", "inf", "-inf"]}]}
    for marker in markers:
        if isinstance(marker, Text):
            description = {key: result.pop(key) for key in ("description",) if key in result}
            result = {"anyOf": [result, {"type": "string", "title": marker.form}], **description}
    return result


def _bound_keys(base: Any) -> tuple[str, str]:
    if base is str:
        return "minLength", "maxLength"
    if get_origin(base) is tuple:
        return "minItems", "maxItems"
    return "minimum", "maximum"


def _of_plain(hint: Any, definitions: dict[str, Any]) -> dict[str, Any]:
    if hint in _SIMPLE:
        return dict(_SIMPLE[hint])
    origin, args = get_origin(hint), get_args(hint)
    if union := members(hint):
        return {"anyOf": [_of_type(member, definitions) for member in union]}
    if origin is Literal:
        return {"enum": list(args)}
    if origin is tuple:
        return {"type": "array", "items": _of_type(args[0], definitions)}
    if origin is dict:
        return {"type": "object", "additionalProperties": _of_type(args[1], definitions)}
    if issubclass(hint, Enum):
        return {"enum": [member.value for member in hint]}
    if hint.__name__ not in definitions:
        definitions[hint.__name__] = {}
        definitions[hint.__name__] = _of_class(hint, definitions)
    return {"$ref": f"#/$defs/{hint.__name__}"}


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
