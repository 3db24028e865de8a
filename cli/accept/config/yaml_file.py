"""Read YAML files strictly: one document, no duplicate keys; merge a file with its bases."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NoReturn, TypeVar

import yaml

from accept.core.errors import BadInput
from accept.core.serde import Invalid, describe_value, escaped, read, show_path

T = TypeVar("T")

MAX_BYTES = 1 << 20
MAX_DEPTH = 20

_INT = re.compile(r"[-+]?(?:0|[1-9][0-9]{0,18})")
_FLOAT = re.compile(r"[-+]?(?:0|[1-9][0-9]{0,18}|(?=\.[0-9]))(?:\.[0-9]*)?(?:[eE][-+]?[0-9]{1,3})?")
_WORDS = {
    "": None, "~": None, "null": None, "Null": None, "NULL": None,
    "true": True, "True": True, "TRUE": True, "false": False, "False": False, "FALSE": False,
}  # fmt: skip

# libyaml's parser where PyYAML was built with it: some ten times as fast.
_Loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


@dataclass(frozen=True, kw_only=True)
class Document:
    """A YAML file as data, with the line that each path in it begins at."""

    #: The file as the user named it.
    name: str
    data: dict[str, Any]
    lines: dict[tuple[Any, ...], int]
    #: The file of paths that are not in this one.
    files: dict[tuple[Any, ...], str] = field(default_factory=dict)

    def where(self, path: tuple[Any, ...] = ()) -> str:
        """FILE:LINE of a path, or of the nearest enclosing one that the file has."""
        while path not in self.lines and path:
            path = path[:-1]
        return f"{self.files.get(path, self.name)}:{self.lines.get(path, 1)}"

    def bad(self, path: tuple[Any, ...], message: str, hint: str = "") -> BadInput:
        """The error about one key: FILE:LINE: KEYPATH: what is wrong."""
        keys = f"{show_path(path)}: " if path else ""
        return BadInput(f"{self.where(path)}: {keys}{message}", hint=hint)

    def read(self, cls: type[T], path: tuple[Any, ...] = ()) -> T:
        """The whole file, or what is under `path`, as `cls`. Raises BadInput."""
        data: Any = self.data
        for key in path:
            data = data[key]
        try:
            return read(cls, data, path=path)
        except Invalid as error:
            raise self.bad(error.path, error.message, error.hint) from None


def load(path: Path | str) -> Document:
    """The YAML file at `path`. Raises BadInput with FILE:LINE, what is wrong and what to do."""
    name = str(path)
    return parse(_text(name), name=name)


def read_file(cls: type[T], path: Path | str) -> T:
    """The YAML file at `path` as `cls`. Raises BadInput."""
    return load(path).read(cls)


def parse(text: str, *, name: str) -> Document:
    """YAML text as a Document called `name`. Raises BadInput."""
    parser = _Parser(text, name)
    return parser.document()


def _text(name: str) -> str:
    try:
        with Path(name).open("rb") as file:
            raw = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise BadInput(f"{escaped(name, 300)}: {error.strerror or error}") from None
    if len(raw) > MAX_BYTES:
        raise BadInput(f"{name}: larger than 1 MiB", hint="is this the right file?")
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = raw[: error.start].count(b"\n") + 1
        raise BadInput(f"{name}:{line}: not UTF-8 text", hint="save the file as UTF-8") from None


class _Parser:
    """Builds data from parser events, so that nothing is ever larger than the file itself."""

    def __init__(self, text: str, name: str) -> None:
        self.name = name
        self.text = text
        self.lines: dict[tuple[Any, ...], int] = {}
        self.line = 1

    def document(self) -> Document:
        loader = None
        try:
            loader = _Loader(self.text)
            self.loader = loader
            while not isinstance(
                event := self._next(), (yaml.StreamEndEvent, yaml.DocumentStartEvent)
            ):
                pass
            if isinstance(event, yaml.StreamEndEvent):
                self._fail("the file is empty", line=1)
            event = self._next()
            if not isinstance(event, yaml.MappingStartEvent):
                self._fail("the file must hold a mapping, `key: value` lines")
            data = self._value(event, ())
            while not isinstance(event := self._next(), yaml.StreamEndEvent):
                if isinstance(event, yaml.DocumentStartEvent):
                    self._fail("a second document", "one file holds one document: remove the `---`")
        except yaml.YAMLError as error:
            self._fail_syntax(error)
        finally:
            if loader is not None:
                loader.dispose()
        return Document(name=self.name, data=data, lines=self.lines)

    def _next(self) -> Any:
        event = self.loader.get_event()
        self.line = event.start_mark.line + 1
        if isinstance(event, yaml.AliasEvent):
            self._fail(
                f"alias *{escaped(str(event.anchor))}", "aliases are not read: write the value out"
            )
        if getattr(event, "anchor", None):
            self._fail(f"anchor &{escaped(event.anchor)}", "anchors are not read: remove it")
        tag = getattr(event, "tag", None)
        if isinstance(tag, str) and tag != "!":
            self._fail(f"tag {escaped(tag)}", "tags are not read: remove it, quote text instead")
        return event

    def _value(self, event: Any, path: tuple[Any, ...]) -> Any:
        self.lines.setdefault(path, self.line)
        if isinstance(event, yaml.ScalarEvent):
            return _scalar(event)
        if len(path) >= MAX_DEPTH:
            self._fail(f"nested deeper than {MAX_DEPTH} levels")
        return (
            self._mapping(path) if isinstance(event, yaml.MappingStartEvent) else self._list(path)
        )

    def _list(self, path: tuple[Any, ...]) -> list[Any]:
        items: list[Any] = []
        while not isinstance(event := self._next(), yaml.SequenceEndEvent):
            items.append(self._value(event, (*path, len(items))))
        return items

    def _mapping(self, path: tuple[Any, ...]) -> dict[str, Any]:
        data: dict[str, Any] = {}
        while not isinstance(event := self._next(), yaml.MappingEndEvent):
            key = _scalar(event) if isinstance(event, yaml.ScalarEvent) else []
            if not isinstance(key, str):
                what = "a list or mapping" if key == [] else describe_value(key)
                self._fail(f"keys must be text, found {what} as a key", "write the key in quotes")
            if key in data:
                first = self.lines[(*path, key)]
                self._fail(
                    f"{show_path((*path, key))}: the key is given twice, first in line {first}"
                )
            self.lines[(*path, key)] = self.line
            data[key] = self._value(self._next(), (*path, key))
        return data

    def _fail(self, message: str, hint: str = "", *, line: int | None = None) -> NoReturn:
        raise BadInput(f"{self.name}:{line or self.line}: {message}", hint=hint)

    def _fail_syntax(self, error: yaml.YAMLError) -> NoReturn:
        mark = getattr(error, "problem_mark", None) or getattr(error, "context_mark", None)
        line = mark.line + 1 if mark else self.line
        for number in range(line, max(line - 2, 0), -1):
            around = self.text.split("\n", number)[number - 1 : number]
            if around and "\t" in around[0][: len(around[0]) - len(around[0].lstrip())]:
                self._fail("a tab in the indentation", "indent with spaces", line=number)
        problem = getattr(error, "problem", None) or getattr(error, "reason", None) or "unreadable"
        context = getattr(error, "context", None)
        said = f"{context}: {problem}" if context else str(problem)
        hint = "look at the indentation, and quote text with special characters"
        self._fail(f"this is no YAML: {escaped(said, 160)}", hint, line=line)


def _scalar(event: Any) -> Any:
    """What a scalar stands for; quoted ones and block ones are text."""
    text: str = event.value
    if not event.implicit[0]:
        return text
    if text in _WORDS:
        return _WORDS[text]
    if _INT.fullmatch(text):
        return int(text)
    return float(text) if _FLOAT.fullmatch(text) else text


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
        raise document.bad(
            ("base",), f"expected a list, found {describe_value(names)}", "write [NAME]"
        )
    merged = document
    for index, name in enumerate(names):
        if not isinstance(name, str):
            raise document.bad(("base", index), f"expected a name, found {describe_value(name)}")
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
