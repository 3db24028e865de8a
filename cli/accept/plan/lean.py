"""Python source without what only its readers need, for the archive that travels to every node."""

from __future__ import annotations

import re

#: A triple-quoted text that has its lines to itself: in this project a docstring. Both begin with
#: the line before them, which is found much faster than a place in front of spaces.
_DOCSTRING = re.compile(r'\n( *)r?"""[^"]*(?:"(?!"")[^"]*)*"""$', re.MULTILINE)
#: What a function returns, where its `def` or its last parameter ends: nothing reads it.
_RETURNS = re.compile(r"\) -> [^\n]+:$", re.MULTILINE)
#: Levels of indentation, one above what there is.
_DEEPEST = 12
_COMMENT = re.compile(r"\n *#.*")
_SHELL_COMMENT = re.compile(r"\n *#(?! shellcheck).*")


def lean(source: str) -> str:
    """`source` with `...` for its docstrings, tabs, and without comments that have lines to
    themselves and what functions are said to return.

    Lines keep their numbers, so that a traceback from a node leads into the real file. It knows
    this project's own style and no other; a test holds every module against its syntax tree.
    Reading the tree here would cost `accept render` more than everything else it does.
    """
    text = _COMMENT.sub("\n", _DOCSTRING.sub(_blank, "\n" + source))[1:]
    text = _RETURNS.sub("):", text)
    # The deepest first, or its beginning would be taken for a shallower one.
    for depth in range(_DEEPEST, 0, -1):
        text = text.replace("\n" + "    " * depth, "\n" + "\t" * depth)
    return text


def lean_shell(source: str) -> str:
    """`source` without comments that have lines to themselves, but the first and shellcheck's."""
    return _SHELL_COMMENT.sub("\n", source)


def _blank(match: re.Match[str]) -> str:
    # Nothing may stand before `from __future__ import`.
    stand_in = f"\n{match[1]}..." if match.start() else "\n"
    return stand_in + "\n" * (match[0].count("\n") - 1)
