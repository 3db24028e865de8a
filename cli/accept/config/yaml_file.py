"""Read YAML files strictly: one document, no duplicate keys; merge a file with its bases."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NoReturn, TypeVar

import yaml

from accept.config import resources
from accept.core.error_codes import Code
from accept.core.errors import BadInput
from accept.core.safe_read import open_regular
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

# The parser of libyaml is about ten times as fast, but not every PyYAML has it.
_Loader: type[yaml.SafeLoader | yaml.CSafeLoader] = getattr(yaml, "CSafeLoader", yaml.SafeLoader)

#: Keys of mappings and indices of lists, from the outside in.
Keys = tuple[str | int, ...]


@dataclass(frozen=True, kw_only=True)
class Document:
    """The data of a YAML file, and the line where each key path starts."""

    #: The file as the user named it.
    name: str
    data: dict[str, object]
    lines: dict[Keys, int]
    #: The file of each path that comes from a base.
    files: dict[Keys, str] = field(default_factory=dict)
    #: Hash of the bytes that `data` was parsed from; empty for a text that is not from a file.
    sha256: str = ""

    def where(self, path: Keys = ()) -> str:
        """Return FILE:LINE of a path, or of the nearest enclosing path that the file has."""
        while path not in self.lines and path:
            path = path[:-1]
        return f"{self.files.get(path, self.name)}:{self.lines.get(path, 1)}"

    def bad(
        self, path: Keys, message: str, hint: str = "", *, code: Code = Code.VALUE_INVALID
    ) -> BadInput:
        """Return an error about one key: `FILE:LINE: KEYPATH: MESSAGE`."""
        keys = f"{show_path(path)}: " if path else ""
        return BadInput(f"{self.where(path)}: {keys}{message}", code=code, hint=hint)

    def refusal(self, error: Invalid, path: Keys = ()) -> BadInput:
        """Return the error about the value at a path, or below it, with its place in the file."""
        return self.bad((*path, *error.path), error.message, error.hint, code=error.code)

    def read(self, cls: type[T]) -> T:
        """Return the file as an instance of `cls`. Raises BadInput."""
        try:
            return read(cls, self.data)
        except Invalid as error:
            raise self.refusal(error) from None


def load(path: Path | str, *, of_file: bool = False) -> Document:
    """Read a YAML file. Raises BadInput with FILE:LINE, the problem and a hint.

    `of_file`: another file names it, so it must be a regular file and not a pipe.
    """
    name = str(path)
    raw = _read(name, of_file=of_file)
    return replace(parse(_text(raw, name), name=name), sha256=hashlib.sha256(raw).hexdigest())


def read_file(cls: type[T], path: Path | str) -> T:
    """Read a YAML file as an instance of `cls`. Raises BadInput."""
    return load(path).read(cls)


def read_values(cls: type[T], name: str) -> T:
    """Read a data file that comes with `accept` as an instance of `cls`. Raises BadInput."""
    return read_file(cls, resources.values() / f"{name}.yaml")


def parse(text: str, *, name: str) -> Document:
    """Parse YAML text as a Document called `name`. Raises BadInput."""
    return _Parser(text, name).document()


def _read(name: str, *, of_file: bool) -> bytes:
    try:
        with open_regular(Path(name), follow=True, inherited=not of_file) as file:
            raw = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise BadInput(
            f"{escaped(name, 300)}: {error.strerror or error}",
            code=Code.YAML_UNREADABLE,
            hint="check the path and the permissions of the file",
        ) from None
    if len(raw) > MAX_BYTES:
        raise BadInput(
            f"{name}: larger than 1 MiB",
            code=Code.YAML_TOO_LARGE,
            hint="check that this is the intended file; instead of the positions of many nodes, "
            "set kubernetes.readNodes",
        )
    return raw


def _text(raw: bytes, name: str) -> str:
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = raw[: error.start].count(b"\n") + 1
        raise BadInput(
            f"{name}:{line}: not UTF-8 text", code=Code.YAML_ENCODING, hint="save the file as UTF-8"
        ) from None


class _Parser:
    """Build data from parser events; without aliases, the data is never larger than the file."""

    def __init__(self, text: str, name: str) -> None:
        self.name = name
        self.text = text
        self.events: Iterator[yaml.Event] = yaml.parse(text, Loader=_Loader)
        self.lines: dict[Keys, int] = {}
        self.line = 1

    def document(self) -> Document:
        try:
            self._next()  # the start of the stream
            if isinstance(self._next(), yaml.StreamEndEvent):
                message, hint = "the file is empty", "write `key: value` lines"
                self._fail(message, hint, code=Code.YAML_FORM, line=1)
            event = self._next()
            if not isinstance(event, yaml.MappingStartEvent):
                message = "the file must contain a mapping"
                self._fail(message, "write `key: value` lines", code=Code.YAML_FORM)
            self.lines[()] = self.line
            data = self._mapping(())
            self._next()  # the end of the document
            if not isinstance(self._next(), yaml.StreamEndEvent):
                self._refuse("a second document", "put it into another file")
        except yaml.YAMLError as error:
            self._fail_syntax(error)
        return Document(name=self.name, data=data, lines=self.lines)

    def _next(self) -> yaml.Event:
        event = next(self.events)
        if event.start_mark:
            self.line = event.start_mark.line + 1
        if isinstance(event, yaml.AliasEvent):
            self._refuse(f"alias *{escaped(str(event.anchor))}", "repeat the value")
        if anchor := getattr(event, "anchor", None):
            self._refuse(f"anchor &{escaped(anchor)}", "remove it")
        tag = getattr(event, "tag", None)
        if isinstance(tag, str) and tag != "!":
            self._refuse(f"tag {escaped(tag)}", "remove it, and put text into quotes")
        return event

    def _value(self, event: yaml.Event, path: Keys) -> object:
        self.lines.setdefault(path, self.line)
        if isinstance(event, yaml.ScalarEvent):
            return _scalar(event)
        if len(path) >= MAX_DEPTH:
            message = f"nested deeper than {MAX_DEPTH} levels"
            self._fail(message, "use a flatter structure", code=Code.YAML_TOO_DEEP)
        return (
            self._mapping(path) if isinstance(event, yaml.MappingStartEvent) else self._list(path)
        )

    def _list(self, path: Keys) -> list[object]:
        items: list[object] = []
        while not isinstance(event := self._next(), yaml.SequenceEndEvent):
            items.append(self._value(event, (*path, len(items))))
        return items

    def _mapping(self, path: Keys) -> dict[str, object]:
        data: dict[str, object] = {}
        while not isinstance(event := self._next(), yaml.MappingEndEvent):
            key = _scalar(event) if isinstance(event, yaml.ScalarEvent) else []
            if not isinstance(key, str):
                what = "a list or mapping" if key == [] else describe_value(key)
                message = f"keys must be text, found {what} as a key"
                self._fail(message, "write the key in quotes", code=Code.KEY_TYPE)
            if key in data:
                first = self.lines[(*path, key)]
                message = (
                    f"{show_path((*path, key))}: the key is given twice, first in line {first}"
                )
                self._fail(message, "remove one of them", code=Code.YAML_DUPLICATE_KEY)
            self.lines[(*path, key)] = self.line
            data[key] = self._value(self._next(), (*path, key))
        return data

    def _fail(self, message: str, hint: str, *, code: Code, line: int | None = None) -> NoReturn:
        raise BadInput(f"{self.name}:{line or self.line}: {message}", code=code, hint=hint)

    def _refuse(self, what: str, hint: str) -> NoReturn:
        self._fail(f"{what} is not supported", hint, code=Code.YAML_UNSUPPORTED)

    def _fail_syntax(self, error: yaml.YAMLError) -> NoReturn:
        mark = getattr(error, "problem_mark", None) or getattr(error, "context_mark", None)
        line = mark.line + 1 if mark else self.line
        for number in range(line, max(line - 2, 0), -1):
            lines = self.text.split("\n", number)[number - 1 : number]
            if lines and "\t" in lines[0][: len(lines[0]) - len(lines[0].lstrip())]:
                message = "a tab in the indentation"
                self._fail(message, "indent with spaces", code=Code.YAML_SYNTAX, line=number)
        problem = getattr(error, "problem", None) or getattr(error, "reason", None) or "unreadable"
        context = getattr(error, "context", None)
        reason = f"{context}: {problem}" if context else str(problem)
        hint = "check the indentation, and quote text with special characters"
        message = f"invalid YAML: {escaped(reason, 160)}"
        self._fail(message, hint, code=Code.YAML_SYNTAX, line=line)


def _scalar(event: yaml.ScalarEvent) -> object:
    """Return the value of a scalar; quoted scalars and block scalars are text."""
    text = event.value
    if not event.implicit[0]:
        return text
    if text in _WORDS:
        return _WORDS[text]
    if _INT.fullmatch(text):
        return int(text)
    return float(text) if _FLOAT.fullmatch(text) else text


#: The list that a file extends; it replaces all other lists of its bases.
_EXTENDED = "references"
#: Maximum length of a chain of bases.
_MAX_BASES = 5


def with_bases(
    document: Document,
    find: Callable[[str, Path], Path],
    load: Callable[[Path], Document],
    *,
    depth: int = 0,
) -> Document:
    """Merge a document with its bases.

    `find` gets the name of a base and the folder of the file, and returns the path of the base or
    raises Invalid. Raises BadInput if a base does not exist or refers to itself.
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
        if depth == _MAX_BASES:
            raise document.bad(
                ("base", index),
                f"more than {_MAX_BASES} bases in a chain",
                "check that no base refers to itself",
                code=Code.MACHINE_BASE_CHAIN,
            )
        try:
            path = find(name, Path(document.name).parent)
        except Invalid as error:
            raise document.refusal(error, ("base", index)) from None
        merged = _merged(with_bases(load(path), find, load, depth=depth + 1), merged)
    return replace(merged, data={**merged.data, "base": names}) if names else merged


def _merged(base: Document, own: Document) -> Document:
    """Merge two documents; values of `own` take precedence."""
    replaced: set[Keys] = set()
    data = _merged_data(base.data, own.data, (), replaced)
    own_list, base_list = own.data.get(_EXTENDED), base.data.get(_EXTENDED)
    shift = 0
    if isinstance(own_list, list) and isinstance(base_list, list):
        data[_EXTENDED] = [*own_list, *base_list]
        shift = len(own_list)
        replaced.discard((_EXTENDED,))
    lines, files = dict(own.lines), dict(own.files)
    for path, line in base.lines.items():
        if any(path[:n] in replaced for n in range(1, len(path) + 1)):
            continue
        moved = path
        if len(path) > 1 and path[0] == _EXTENDED and isinstance(path[1], int):
            moved = (_EXTENDED, path[1] + shift, *path[2:])
        if moved not in lines:
            lines[moved] = line
            files[moved] = base.files.get(path, base.name)
    return Document(name=own.name, data=data, lines=lines, files=files)


def _merged_data(
    base: dict[str, object], own: dict[str, object], path: Keys, replaced: set[Keys]
) -> dict[str, object]:
    """Merge mappings recursively; add the paths that `own` sets to `replaced`."""
    data = dict(base)
    for key, value in own.items():
        base_value = base.get(key)
        if isinstance(value, dict) and isinstance(base_value, dict):
            data[key] = _merged_data(base_value, value, (*path, key), replaced)
        else:
            data[key] = value
            replaced.add((*path, key))
    return data
