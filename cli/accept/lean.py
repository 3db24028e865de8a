"""Python source without what only its readers need, for the archive that travels to every node."""

from __future__ import annotations

import re

#: A triple-quoted text that has its lines to itself: in this project a docstring.
_DOCSTRING = re.compile(r'^( *)r?"""(?:[^"]|"(?!""))*"""$', re.MULTILINE)
_COMMENT = re.compile(r"^ *#.*$", re.MULTILINE)


def lean(source: str) -> str:
    """`source` with `...` for its docstrings, and without comments that have a line to themselves.

    Lines keep their numbers, so that a traceback from a node leads into the real file. It knows
    this project's own style and no other; a test holds every module against its syntax tree.
    Reading the tree here would cost `accept render` more than everything else it does.
    """
    return _COMMENT.sub("", _DOCSTRING.sub(_blank, source))


def _blank(match: re.Match[str]) -> str:
    # Nothing may stand before `from __future__ import`.
    stand_in = f"{match[1]}..." if match.start() else ""
    return stand_in + "\n" * match[0].count("\n")
