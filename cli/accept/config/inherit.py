"""A machine on top of others: `base: [NAME, …]` takes what a file leaves out from there.

Mappings are merged key by key, at every depth; `references` add up; whatever else the file gives (a
text, a number, a list) replaces what a base has, and an earlier base what a later one has. An error
still names the file and line that the key is in.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from accept.config.yaml_file import Document
from accept.core.shape import Invalid, found

Keys = tuple[Any, ...]
#: Lists that grow, where others are replaced.
_ADDED = "references"
#: Longest chain of bases.
_MOST = 5


def with_bases(
    document: Document,
    find: Callable[[str, Path], Path],
    load: Callable[[Path], Document],
    *,
    depth: int = 0,
) -> Document:
    """The document with what its bases hold. `find`: name of a base, folder of the file -> path,
    or Invalid. Raises BadInput where a base does not exist, or leads to itself.
    """
    names = document.data.get("base", [])
    if not isinstance(names, list):
        raise document.bad(("base",), f"expected a list, found {found(names)}", "write [NAME]")
    merged = document
    for index, name in enumerate(names):
        if not isinstance(name, str):
            raise document.bad(("base", index), f"expected a name, found {found(name)}")
        if depth == _MOST:
            raise document.bad(("base", index), "the bases do not end: one leads to itself")
        try:
            path = find(name, Path(document.name).parent)
        except Invalid as error:
            raise document.bad(("base", index), error.message, error.hint) from None
        merged = _merged(with_bases(load(path), find, load, depth=depth + 1), merged)
    return replace(merged, data={**merged.data, "base": names}) if names else merged


def _merged(base: Document, own: Document) -> Document:
    """Both documents in one; what `own` says goes first."""
    replaced: set[Keys] = set()
    data = _mapping(base.data, own.data, (), replaced)
    mine, theirs = own.data.get(_ADDED), base.data.get(_ADDED)
    shift = 0
    if isinstance(mine, list) and isinstance(theirs, list):
        data[_ADDED] = [*mine, *theirs]
        shift = len(mine)
        replaced.discard((_ADDED,))
    lines, files = dict(own.lines), dict(own.files)
    for path, line in base.lines.items():
        if any(path[:n] in replaced for n in range(1, len(path) + 1)):
            continue
        moved = path
        if shift and len(path) > 1 and path[0] == _ADDED:
            moved = (_ADDED, path[1] + shift, *path[2:])
        if moved not in lines:
            lines[moved] = line
            files[moved] = base.files.get(path, base.name)
    return Document(name=own.name, data=data, lines=lines, files=files)


def _mapping(
    base: dict[str, Any], own: dict[str, Any], path: Keys, replaced: set[Keys]
) -> dict[str, Any]:
    data = dict(base)
    for key, value in own.items():
        there = base.get(key)
        if isinstance(value, dict) and isinstance(there, dict):
            data[key] = _mapping(there, value, (*path, key), replaced)
        else:
            data[key] = value
            replaced.add((*path, key))
    return data
