"""The minified program is the same, on the same lines, without comments and docstrings."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from accept.config import resources
from accept.plan.bundle import lean, lean_shell

MODULES = sorted(
    [*resources.core().rglob("*.py"), *(resources.launchers() / "programs").glob("*.py")]
)


def program(source: str) -> list[str]:
    """Return all statements with lines, without docstrings, their stand-ins and return types."""
    tree = ast.parse(source)
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            node.returns = None
        if isinstance(body, list):
            node.body = [one for one in body if not idle(one)]  # type: ignore[attr-defined]
    return [f"{statement.lineno}: {ast.dump(statement)}" for statement in tree.body]


def idle(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


@pytest.mark.parametrize("path", MODULES, ids=lambda p: p.name)
def test_the_program_is_the_same_on_the_same_lines(path: Path) -> None:
    source = path.read_text()
    assert program(lean(source)) == program(source)
    assert '"""\n' not in lean(source)


def test_docstrings_and_comments_go_and_code_stays() -> None:
    source = '"""Module."""\nclass E(Exception):\n    """Why."""\n\n# comment\ny = 1  # beside\n'
    assert lean(source) == "\nclass E(Exception):\n\t...\n\n\ny = 1  # beside\n"


def test_what_a_function_returns_goes_and_what_a_field_is_stays() -> None:
    source = "def f(\n    a: int,\n) -> dict[str, int]:\n    b: int = 1\n    return {a: b}\n"
    assert lean(source) == "def f(\n\ta: int,\n):\n\tb: int = 1\n\treturn {a: b}\n"


def test_of_a_script_its_first_line_and_what_shellcheck_reads_stay() -> None:
    source = "#!/bin/sh\n# why\n  # shellcheck disable=SC1\necho '#' # beside\n"
    assert lean_shell(source) == "#!/bin/sh\n\n  # shellcheck disable=SC1\necho '#' # beside\n"
