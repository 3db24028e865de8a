"""Generate tables of keys from the JSON Schemas of files and results."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Final

from docs.site.program import Json, code, items, mapping, prose, result_of, table

from accept.commands.choices import Schema

#: Files that people write or read; the other schemas are those of results of commands.
FILES: Final = ("site", "machine", "suite", "tool", "values")

Schemas = Mapping[str, Json]


def schema_of(name: str) -> Schemas:
    """Return a JSON Schema that `accept show schema` prints."""
    return result_of("show", "schema", name)


def keys(name: str) -> str:
    """Return a table of the keys of a file, and one for each part of it."""
    return "\n".join(_Tables(name).sections())


def results() -> str:
    """Return a section for each schema that is not of a file, with its keys."""
    return "\n".join(
        part
        for schema in Schema
        if schema not in FILES
        for part in (f"## {schema}\n", *_Tables(schema).sections(depth=3))
    )


class _Tables:
    """The sections of one schema; each part has one section, at its first path."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.root = schema_of(name)
        definitions = self.root.get("$defs") or self.root.get("definitions") or {}
        self.parts = mapping(definitions)
        #: Parts with a section, and the path of each: the keys that lead to it.
        self.paths: dict[str, str] = {}

    def sections(self, depth: int = 2) -> Iterator[str]:
        """Yield the table of the top-level keys, then a section for each part."""
        yield f"{prose(str(self.root.get('description', '')))}\n"
        yield self._table(self.root, "")
        done: set[str] = set()
        while open_parts := [part for part in self.paths if part not in done]:
            for part in open_parts:
                done.add(part)
                schema, path = mapping(self.parts[part]), self.paths[part]
                yield f"({self._anchor(part)})=\n{'#' * depth} `{path}`\n"
                yield f"{prose(str(schema.get('description', '')))}\n"
                yield self._table(schema, f"{path}.")

    def _anchor(self, part: str) -> str:
        return f"schema-{self.name}-{part.lower()}"

    def _table(self, schema: Schemas, before: str) -> str:
        required = [str(key) for key in items(schema.get("required", ()))]
        rows = []
        for key, value in mapping(schema.get("properties", {})).items():
            item = mapping(value)
            meaning = prose(self._description(item))
            if key in required:
                meaning = f"{meaning} Required.".strip()
            elif item.get("default") not in (None, "", [], {}):
                meaning += f" Default: `{json.dumps(item['default'], ensure_ascii=False)}`."
            rows.append((code(key), self._type(item, f"{before}{key}"), meaning))
        return table(("key", "type", "meaning"), rows)

    def _description(self, schema: Schemas) -> str:
        """Return the description of a value, or else that of the part that it is."""
        for member in (schema, *map(mapping, items(schema.get("anyOf", ())))):
            if "description" in member:
                return str(member["description"])
            if "$ref" in member:
                return str(self._part(member).get("description", ""))
        return ""

    def _part(self, schema: Schemas) -> Schemas:
        return mapping(self.parts[_name(schema)])

    def _type(self, schema: Schemas, path: str) -> str:
        """Return the type of a value in words, with links to the sections of its parts."""
        if "$ref" in schema:
            part = _name(schema)
            if part not in self.paths:
                self.paths[part] = path
            return f"[{self.paths[part]}](#{self._anchor(part)})"
        if "anyOf" in schema:
            members = [mapping(member) for member in items(schema["anyOf"])]
            types = [self._type(member, path) for member in members if member != {"type": "null"}]
            return " or ".join(dict.fromkeys(types))
        if "enum" in schema:
            return ", ".join(code(str(value)) for value in items(schema["enum"]))
        if "const" in schema:
            return code(str(schema["const"]))
        kind = schema.get("type")
        if kind == "array":
            return f"list of {self._type(mapping(schema.get('items', {})), f'{path}[]')}"
        if kind == "object":
            # Without other keys than those of its properties, `additionalProperties` is false.
            if not (others := schema.get("additionalProperties", {})) and "properties" in schema:
                return f"map of {', '.join(map(code, mapping(schema['properties'])))}"
            return f"map of {self._type(mapping(others), f'{path}.*')}"
        if kind in ("integer", "number"):
            return str(kind) + _range(schema)
        return prose(str(schema.get("title", kind or "any")))


def _name(schema: Schemas) -> str:
    """Return the name of the part that a schema refers to."""
    return str(schema["$ref"]).rpartition("/")[2]


def _range(schema: Schemas) -> str:
    low, high = schema.get("minimum"), schema.get("maximum")
    if low is None and high is None:
        return ""
    if high is None:
        return f", at least {low}"
    return f", {low} to {high}" if low is not None else f", at most {high}"
