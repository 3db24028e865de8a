"""Faults planted on purpose, for drills: what `--plant` takes."""

from __future__ import annotations

import re
from collections.abc import Sequence

from accept.core.errors import BadInput
from accept.core.shape import known, plain

#: What the programs of the ranks can do wrong when they are told to.
FAULTS = ("wrong", "nan", "hang", "die", "slow", "flip")
_FORM = re.compile(
    rf"(?:{'|'.join(FAULTS)})@(?P<host>[A-Za-z0-9_][A-Za-z0-9_.-]*)(?P<rank>:[0-9]{{1,3}})?"
)


def read_plants(texts: Sequence[str], hosts: Sequence[str]) -> tuple[str, ...]:
    """Each as FAULT@HOST:LOCALRANK; rank 0 where none is given. Raises BadInput.

    `hosts` are those that take part, empty where they are not known yet.
    """
    read = []
    for text in texts:
        match = _FORM.fullmatch(text)
        if not match:
            raise BadInput(
                f"--plant {plain(text)!r} is no fault",
                hint=f"write FAULT@HOST:LOCALRANK; faults: {', '.join(FAULTS)}",
            )
        if hosts and match["host"] not in hosts:
            raise BadInput(
                f"--plant {plain(text)}: {plain(match['host'])} takes no part",
                hint=known(match["host"], hosts, "hosts"),
            )
        read.append(text if match["rank"] else f"{text}:0")
    return tuple(read)
