"""Which ranks the others waited for, by where each of them was when its execution was ended."""

from __future__ import annotations

import re
import shlex
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from accept.core.model import Problem

#: Ranks that entered an operation less than this many seconds before the end were still going on.
STILL_SECONDS = 5
#: A file whose time lies further ahead of its host's clock says nothing of when it was written.
_CLOCK_SECONDS = 5
#: So many ranks are named at most.
_NAMED = 16
_LINE = re.compile(
    r"(?P<rank>\d{1,9}) (?P<now>\d{1,12}) (?P<entered>\d{1,12}) +(?P<sequence>\d{1,12}) "
    r"(?P<what>[^\n]{0,64}?)(?: +(?P<own>\d{1,6})s)?\s*",
    re.ASCII,
)


@dataclass(frozen=True, kw_only=True)
class Place:
    """Where a rank was: in operation number `sequence`, which it entered `idle` seconds before.

    `own`: for how many seconds from then on it may have worked by itself, the others waiting.
    """

    host: str
    rank: int
    sequence: int
    what: str
    idle: float
    own: int = 0


def command(folder: str) -> str:
    """The sh line that prints the places of a host's ranks, which they keep in files in `folder`.

    Each rank's file is named by its number; it writes `SEQUENCE OPERATION SIZE` there when it
    enters an operation that needs the others, and `SECONDSs` after it when it works by itself.
    """
    return (
        f"cd {shlex.quote(folder)} 2>/dev/null || exit 0; "
        'for each in [0-9]*; do echo "$each $(date +%s) $(stat -c %Y "$each")'
        ' $(head -c 80 "$each")"; done 2>/dev/null'
    )


def places(host: str, answer: str, ago: float) -> list[Place]:
    """The places that `command` printed on a host; the execution ended `ago` seconds before."""
    found = []
    for line in answer.splitlines():
        if match := _LINE.fullmatch(line):
            now, entered = int(match["now"]), int(match["entered"])
            idle = float("inf") if entered > now + _CLOCK_SECONDS else now - entered - ago
            found.append(
                Place(
                    host=host,
                    rank=int(match["rank"]),
                    sequence=int(match["sequence"]),
                    what=" ".join(match["what"].split()),
                    idle=idle,
                    own=int(match["own"] or 0),
                )
            )
    return found


def moving(ranks: Sequence[Place]) -> bool:
    """Whether any of them was still going on: then nobody is known to have stopped."""
    return any(place.idle < max(STILL_SECONDS, place.own) for place in ranks)


def stopped(ranks: Sequence[Place], cause: str) -> tuple[Problem, ...]:
    """The ranks that never entered the operation the others wait in, as problems of `cause`.

    Only ranks behind the furthest are named, and only where they are the minority.
    """
    counts = Counter(place.sequence for place in ranks)
    if len(counts) < 2:
        return ()
    furthest = max(counts)
    behind = [place for place in ranks if place.sequence < furthest]
    if 2 * len(behind) > len(ranks):
        behind = [place for place in behind if place.sequence == min(counts)]
        if 2 * len(behind) > len(ranks):
            return ()
    return tuple(
        Problem(
            cause=cause,
            message=f"rank {place.rank} on {place.host} stopped at operation {place.sequence} "
            f"({place.what}); others wait in {furthest}",
            host=place.host,
            rank=place.rank,
        )
        for place in sorted(behind, key=lambda place: (place.host, place.rank))[:_NAMED]
    )
