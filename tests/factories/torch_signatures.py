"""Read the names and keyword arguments of a release of torch from its files; nothing is imported.

`python -m tests.factories.torch_signatures` prints the record of the names that our sources use
of the oldest supported release, for tests/data/torch/2.6.0.json.
"""

from __future__ import annotations

import ast
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from pathlib import Path

import pytest
from tests.factories.foreign_uses import uses
from tests.factories.paths import ROOT, TESTS

#: The Python with the oldest supported release; made by `make .venv-torch26/.stamp`.
OLDEST = ROOT / ".venv-torch26" / "bin" / "python"
#: The Pythons beside which a supported torch is installed.
RELEASES = (
    pytest.param(Path(sys.executable), id="newest"),
    pytest.param(OLDEST, id="oldest", marks=pytest.mark.oldest),
)
#: The record of the oldest supported release.
RECORD = TESTS / "data" / "torch" / "2.6.0.json"
#: Where torch takes names from that its modules list by a loop.
_BESIDE = {
    "torch": ("torch._C._VariableFunctions", "torch._C", "torch.functional"),
    "torch.distributed": ("torch.distributed.distributed_c10d",),
}
#: Parts of a module that torch replaces by an object.
_OBJECTS = {
    "torch.backends.cudnn": ("torch.backends.cudnn", "CudnnModule"),
    "torch.backends.cuda.matmul": ("torch.backends.cuda", "cuBLASModule"),
}
_MOST_STEPS = 12

#: The keyword arguments of a name; None: any, or not known.
Keywords = tuple[str, ...] | None


class Missing(LookupError):
    """The release has no such name."""


class Torch:
    """The Python files of a release, by their paths."""

    def __init__(self, read: Callable[[str], str | None]) -> None:
        self._read = cache(read)
        self.definitions = cache(self._definitions)

    def keywords(self, name: str) -> Keywords:
        """Return the keyword arguments of a name. Raises Missing."""
        module, parts = "torch", name.split(".")[1:]
        while parts and self._is_module(f"{module}.{parts[0]}"):
            module = f"{module}.{parts.pop(0)}"
        if not parts or parts[0] == "aten" or name.startswith("torch.ops."):
            return None
        nodes = self._find(module, parts[0])
        if not nodes:
            raise Missing(name)
        for part in parts[1:]:
            inner = [
                n
                for m, node in nodes
                if isinstance(node, ast.ClassDef)
                for n in self._in(m, node, part)
            ]
            if not inner and any(isinstance(node, ast.ClassDef) for _, node in nodes):
                raise Missing(name)
            nodes = inner or [(module, ast.Pass())]
        return self._signature(nodes)

    def _is_module(self, name: str) -> bool:
        return name not in _OBJECTS and any(self._sources(name))

    def _sources(self, module: str) -> Iterator[str]:
        path = module.replace(".", "/")
        for name in (f"{path}.py", f"{path}/__init__.py", f"{path}.pyi", f"{path}/__init__.pyi"):
            if text := self._read(name):
                yield text

    def _definitions(self, module: str) -> tuple[dict[str, list[ast.AST]], list[str]]:
        """Return the definitions of a module by name, and the modules of its star imports."""
        found: dict[str, list[ast.AST]] = {}
        stars: list[str] = []
        for text in self._sources(module):
            for node in _flat(ast.parse(text).body):
                for name in _names(node):
                    if name == "*" and isinstance(node, ast.ImportFrom):
                        stars.append(self._source(module, node))
                    found.setdefault(name, []).append(node)
        return found, stars

    def _source(self, module: str, node: ast.ImportFrom) -> str:
        """Return the absolute name of the module that an import names."""
        if not node.level:
            return node.module or ""
        is_package = self._read(f"{module.replace('.', '/')}/__init__.py") is not None
        parts = module.split(".")
        base = parts[: len(parts) - node.level + is_package]
        return ".".join([*base, *([node.module] if node.module else [])])

    def _find(self, module: str, name: str, steps: int = 0) -> list[tuple[str, ast.AST]]:
        """Return the definitions of a name, with the module of each."""
        if steps > _MOST_STEPS or not module.startswith("torch"):
            return []
        if place := _OBJECTS.get(f"{module}.{name}"):
            return self._find(*place, steps + 1)
        definitions, stars = self.definitions(module)
        found: list[tuple[str, ast.AST]] = []
        for node in definitions.get(name, ()):
            if isinstance(node, ast.ImportFrom):
                original = next(a.name for a in node.names if (a.asname or a.name) == name)
                source = self._source(module, node)
                found += self._find(source, original, steps + 1) or [(module, node)]
            else:
                found.append((module, node))
        if not any(isinstance(node, ast.FunctionDef | ast.ClassDef) for _, node in found):
            for other in (*stars, *_BESIDE.get(module, ())):
                found += self._find(other, name, steps + 1)
        return found

    def _in(self, module: str, node: ast.ClassDef, name: str) -> list[tuple[str, ast.AST]]:
        """Return the definitions of a name in a class or its bases."""
        own: list[tuple[str, ast.AST]] = [
            (module, one) for one in _flat(node.body) if name in _names(one)
        ]
        own += [
            (module, one)
            for one in ast.walk(node)
            if isinstance(one, ast.Compare) and _compares(one, name)
        ]
        if own:
            return own
        for base in node.bases:
            if isinstance(base, ast.Name):
                for of, one in self._find(module, base.id):
                    if isinstance(one, ast.ClassDef) and (found := self._in(of, one, name)):
                        return found
        return []

    def _signature(self, nodes: Sequence[tuple[str, ast.AST]]) -> Keywords:
        known: set[str] = set()
        has_function = False
        for module, node in nodes:
            functions = [(module, node)]
            if isinstance(node, ast.ClassDef):
                functions = self._in(module, node, "__init__") or self._in(module, node, "__new__")
            for _, one in functions:
                if isinstance(one, ast.FunctionDef):
                    if one.args.kwarg:
                        return None
                    has_function = True
                    known.update(a.arg for a in (*one.args.args, *one.args.kwonlyargs))
        return tuple(sorted(known - {"self", "cls"})) if has_function else None


def _compares(node: ast.Compare, name: str) -> bool:
    """Return True for `if name == "..."` in a `__setattr__`."""
    return any(isinstance(c, ast.Constant) and c.value == name for c in node.comparators)


def _flat(body: Sequence[ast.stmt]) -> Iterator[ast.stmt]:
    """Yield statements, also those in an `if`, `try` or `with`."""
    for node in body:
        yield node
        for part in (
            ("body", "orelse", "finalbody") if isinstance(node, ast.If | ast.Try | ast.With) else ()
        ):
            yield from _flat(getattr(node, part, []))
        for handler in getattr(node, "handlers", []):
            yield from _flat(handler.body)


def _names(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.FunctionDef | ast.ClassDef):
        yield node.name
    elif isinstance(node, ast.ImportFrom | ast.Import):
        yield from (alias.asname or alias.name for alias in node.names)
    elif isinstance(node, ast.Assign):
        yield from (target.id for target in node.targets if isinstance(target, ast.Name))
    elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
        yield node.target.id


def installed(python: Path) -> Torch:
    """Return the release beside a Python; skip the test if there is none."""
    (folder, *_) = [*python.parent.parent.glob("lib/python*/site-packages/torch"), None]
    if folder is None:
        pytest.skip(f"no torch beside {python}: make setup .venv-torch26/.stamp")
    place = folder.parent

    def read(name: str) -> str | None:
        path = place / name
        return path.read_text(encoding="utf-8") if path.is_file() else None

    return Torch(read)


def names() -> tuple[str, ...]:
    """Return the names of torch that our sources use."""
    return tuple(sorted({use.name for use in uses() if use.name.startswith("torch.")}))


if __name__ == "__main__":
    release = installed(OLDEST)
    print(json.dumps({name: release.keywords(name) for name in names()}))
