"""Find the commands of `accept` that a text suggests.

`accept.core.text.command_line` makes those with values. `accept.app.help.as_called` writes what
starts the program before each of them, so it shows where a command begins. It ends at the end of
the line, or before two spaces, a closing bracket, a backquote, or a comma, semicolon, colon or
period that ends a word.
"""

from __future__ import annotations

import ast
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import yaml
from tests.factories.command_line import parsers
from tests.factories.paths import CLI, ROOT

from accept.app.help import COMMANDS

_END = r"  |(?<=\S)[,;:.](?= |$)|[)`]|$"
_COMMAND = (
    rf"(?:{'|'.join(COMMANDS)}|--help|--version)\b"
    rf"""(?:'[^'\n]*'|"[^"\n]*"|(?!{_END})[^\n])*"""
)
#: Stands for a value that a text names only while it runs.
VALUE = "X"


def suggested(text: str, called: str = "accept") -> list[str]:
    """Return the commands in a text, without what starts the program."""
    start = rf"(?:^|(?<![\w./-])){re.escape(called)} "
    return [found.strip() for found in re.findall(f"{start}({_COMMAND})", text, re.MULTILINE)]


def parse(command: str) -> None:
    """Parse a command with the real command line. Raises if an option or argument is wrong."""
    words = shlex.split(command.partition(" > ")[0].partition(" | ")[0])
    if not {"--help", "--version"} & {*words}:
        parsers().commands[words[0]].make_context(words[0], words[1:])


def in_sources() -> Iterator[tuple[str, str]]:
    """Yield place and command of each suggestion in the texts of the program and of its data."""
    for path in sorted((CLI / "accept").rglob("*.py")):
        tree = ast.parse(path.read_text())
        left_out = {id(part) for node in ast.walk(tree) for part in _not_shown(node, path)}
        for node in ast.walk(tree):
            if words := _words(node):
                yield f"{path.relative_to(ROOT)}:{getattr(node, 'lineno', 0)}", shlex.join(words)
            text = _text(node) if id(node) not in left_out else ""
            for command in suggested(text):
                yield f"{path.relative_to(ROOT)}:{getattr(node, 'lineno', 0)}", command
    for path in (ROOT / "values" / "errors.yaml",):
        for code, text in _texts(yaml.safe_load(path.read_text())):
            for command in suggested(text):
                yield f"{path.relative_to(ROOT)}: {code}", command


def _words(node: ast.AST) -> list[str]:
    """Return the words of a call command_line("accept", ...), if all of them are listed there."""
    if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.args):
        return []
    if node.func.id != "command_line":
        return []
    first, *others = node.args
    if not (isinstance(first, ast.Constant) and first.value == "accept"):
        return []
    if any(isinstance(word, ast.Starred) for word in others):
        return []
    return [str(word.value) if isinstance(word, ast.Constant) else VALUE for word in others]


def _not_shown(node: ast.AST, path: Path) -> Iterator[ast.AST]:
    """Yield the parts of a text, and docstrings that are not shown as help."""
    if isinstance(node, ast.JoinedStr):
        yield from node.values
    if isinstance(node, ast.Expr) and path.name != "commands.py":
        yield node.value


def _text(node: ast.AST) -> str:
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.JoinedStr):
        return "".join(map(_part, node.values))
    return ""


def _part(node: ast.expr) -> str:
    """Return a part of an f-string; a command stays one, so that what follows it is seen."""
    if isinstance(node, ast.Constant):
        return str(node.value)
    words = _words(node.value) if isinstance(node, ast.FormattedValue) else []
    return f"accept {shlex.join(words)}" if words else VALUE


def _texts(value: object, name: str = "") -> Iterator[tuple[str, str]]:
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from _texts(inner, str(key))
    elif isinstance(value, str):
        yield name, value
