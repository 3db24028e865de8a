"""List what our sources use of other people's modules, by reading the sources.

`.venv-torch26/bin/python -m tests.factories.foreign_uses` prints the record of the oldest supported
torch, for tests/data/torch/2.6.0.json. Only the standard library is imported.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import json
from collections import defaultdict
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from tests.factories.paths import ROOT

#: The modules that are listed.
MODULES = ("kubernetes", "obstore", "torch")
_SOURCES = (ROOT / "cli" / "accept", ROOT / "launchers" / "programs")
#: Functions of ours that return a module.
_RETURNED = {"library": "kubernetes.client", "client_config": "kubernetes.config"}
#: Parameters and attributes that are a module wherever they appear.
_PASSED = {"torch": "torch", "_torch": "torch", "dist": "torch.distributed"}


@dataclass(frozen=True, order=True)
class Use:
    """A name of a module, and the keyword arguments of a call of it."""

    name: str
    keywords: tuple[str, ...] = ()
    place: str = field(default="", compare=False)


@cache
def uses() -> tuple[Use, ...]:
    """Return every use of a module once, sorted."""
    found: dict[Use, Use] = {}
    for folder in _SOURCES:
        for path in sorted(folder.rglob("*.py")):
            text = path.read_text(encoding="utf-8")
            # Most files use none of them, and parsing takes long.
            if not any(word in text for word in (*MODULES, *_RETURNED, *_PASSED)):
                continue
            for use in _File(path, text).uses():
                found.setdefault(use, use)
    return tuple(sorted(found))


def names_of_torch() -> list[str]:
    """Return the names of torch that our sources use."""
    return sorted({use.name for use in uses() if use.name.startswith("torch.")})


def found(name: str) -> Any:
    """Return what a name is in the real module, which is imported."""
    first, *parts = name.split(".")
    thing, path = importlib.import_module(first), first
    for part in parts:
        path = f"{path}.{part}"
        thing = getattr(thing, part) if hasattr(thing, part) else importlib.import_module(path)
    return thing


def keywords(name: str) -> list[str] | None:
    """Return the keyword arguments that a name of the real torch takes; None if not known."""
    thing = found(name)
    if not callable(thing):
        return None
    with suppress(TypeError, ValueError):
        parameters = inspect.signature(thing).parameters.values()
        if not any(p.kind is p.VAR_KEYWORD for p in parameters):
            return sorted(p.name for p in parameters)
    return sorted(_in_c()[name.rpartition(".")[2]]) or None


@cache
def _in_c() -> dict[str, set[str]]:
    """Return the arguments of the functions and classes that are written in C, by name."""
    taken: dict[str, set[str]] = defaultdict(set)
    for path in Path(found("torch._C").__file__).parent.joinpath("_C").glob("*.pyi"):
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            for one in node.body if isinstance(node, ast.ClassDef) else [node]:
                if isinstance(one, ast.FunctionDef):
                    own = one.name in ("__init__", "__new__") or one is node
                    names = (a.arg for a in (*one.args.args, *one.args.kwonlyargs) if own)
                    taken[getattr(node, "name", "")] |= {*names} - {"self", "cls"}
    return taken


class _File:
    """The uses in one file, function by function: each has names of its own."""

    def __init__(self, path: Path, text: str) -> None:
        self.tree = ast.parse(text)
        self.path = path.relative_to(ROOT)
        self.returned = _RETURNED if "kubernetes" in self.path.parts else {}
        self.passed = _PASSED if "programs" in self.path.parts else {}
        #: Names and attributes of `self` that are a module or a part of it.
        self.names: dict[str, str] = {}
        self.attributes: dict[str, str] = {}

    def uses(self) -> Iterator[Use]:
        functions = [n for n in ast.walk(self.tree) if isinstance(n, ast.FunctionDef)]
        inside = {id(n) for function in functions for n in ast.walk(function)}
        outside = [n for n in ast.walk(self.tree) if id(n) not in inside]
        for node in outside:
            yield from (self._use(name, node) for name in self._imported(node))
        shared = dict(self.names)
        # Attributes are set in one method and used in others.
        for again in (False, True):
            for nodes in (outside, *(list(ast.walk(function)) for function in functions)):
                self.names = dict(shared)
                found = list(self._of_scope(nodes))
                yield from found if again else ()

    def _of_scope(self, nodes: list[ast.AST]) -> Iterator[Use]:
        yield from (self._use(name, node) for node in nodes for name in self._imported(node))
        for node in nodes:
            if isinstance(node, ast.Assign) and len(node.targets) == 1:
                self._assign(node.targets[0], node.value)
            elif isinstance(node, ast.For | ast.comprehension) and isinstance(
                node.target, ast.Name
            ):
                self.names[node.target.id] = ""
        for node in nodes:
            if isinstance(node, ast.Call) and (name := self._dotted(node.func)):
                keywords = (keyword.arg for keyword in node.keywords)
                yield self._use(name, node, tuple(sorted(filter(None, keywords))))
            elif isinstance(node, ast.Attribute) and (name := self._dotted(node)):
                yield self._use(name, node)

    def _use(self, name: str, node: ast.AST, keywords: tuple[str, ...] = ()) -> Use:
        return Use(name, keywords, f"{self.path}:{getattr(node, 'lineno', 0)}")

    def _imported(self, node: ast.AST) -> Iterator[str]:
        """Yield the names that an import takes, and remember what they are called here."""
        if isinstance(node, ast.Import):
            for alias in node.names:
                first = alias.name.partition(".")[0]
                if first in MODULES:
                    self.names[alias.asname or first] = alias.name if alias.asname else first
                    yield alias.name
        elif isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names if node.module.partition(".")[0] in MODULES else ():
                self.names[alias.asname or alias.name] = f"{node.module}.{alias.name}"
                yield f"{node.module}.{alias.name}"

    def _assign(self, target: ast.expr, value: ast.expr) -> None:
        if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple):
            for one, its_value in zip(target.elts, value.elts, strict=False):
                self._assign(one, its_value)
        elif name := self._dotted(value):
            if isinstance(target, ast.Name):
                self.names[target.id] = name
            elif isinstance(target, ast.Attribute) and _is_self(target.value):
                self.attributes[target.attr] = name
        elif isinstance(target, ast.Name):
            self.names[target.id] = ""

    def _dotted(self, node: ast.expr) -> str:
        """Return the name of an expression in its module; "" if it is not of one."""
        if isinstance(node, ast.Name):
            return self.names.get(node.id, self.passed.get(node.id, ""))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            return self.returned.get(node.func.id, "")
        if isinstance(node, ast.Attribute):
            if base := self._dotted(node.value):
                return f"{base}.{node.attr}"
            own = self.attributes.get(node.attr, "") if _is_self(node.value) else ""
            return own or self.passed.get(node.attr, "")
        return ""


def _is_self(node: ast.expr) -> bool:
    return isinstance(node, ast.Name) and node.id == "self"


if __name__ == "__main__":
    print(json.dumps({name: keywords(name) for name in names_of_torch()}))
