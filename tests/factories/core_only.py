"""Print the test files that need only the standard library, pytest, hypothesis and `accept.core`.

The oldest Python that nodes may have runs `python -m tests.factories.core_only`. It follows imports
through helpers, so that it does not matter in which folder a test is.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

from tests.factories.paths import ROOT

_PACKAGES = {"pytest", "hypothesis"}
#: Folders whose modules tests import.
_HELPERS = {"tests", "benchmarks"}


def _imports(path: Path) -> Iterator[str]:
    """Yield every module, or name in a module, that a file imports.

    Of a conftest.py, only the imports at its loading count: its fixtures may not be used.
    """
    tree = ast.parse(path.read_text(encoding="utf-8"))
    for node in tree.body if path.name == "conftest.py" else ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def _helper(name: str) -> Path | None:
    """Return the file behind a module, or behind a name in a module, of the test helpers."""
    for module in (name, name.rpartition(".")[0]):
        file = ROOT / f"{module.replace('.', '/')}.py"
        if file.exists():
            return file
    return None


def _is_core_only(path: Path) -> bool:
    """Return True if all imports of a file, and of the helpers behind them, are allowed."""
    waiting, seen = [path], {path}
    while waiting:
        for name in _imports(waiting.pop()):
            top = name.partition(".")[0]
            if top in _HELPERS:
                helper = _helper(name)
                if helper is None:
                    return False
                waiting += {helper} - seen
                seen.add(helper)
            elif top == "accept":
                if not f"{name}.".startswith("accept.core."):
                    return False
            elif top not in _PACKAGES and top not in sys.stdlib_module_names:
                return False
    return True


def files() -> list[Path]:
    """Return the test files, each with every conftest.py above it, that import nothing else.

    Files that import nothing of `accept.core` are left out.
    """
    found = []
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        folders = [folder for folder in path.parents if folder.is_relative_to(ROOT / "tests")]
        above = [folder / "conftest.py" for folder in folders]
        needed = [path, *(file for file in above if file.exists())]
        uses_core = any(name.startswith("accept.core") for name in _imports(path))
        if uses_core and all(map(_is_core_only, needed)):
            found.append(path)
    return found


if __name__ == "__main__":
    print(*(path.relative_to(ROOT) for path in files()), sep="\n")
