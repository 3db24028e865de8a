"""Parse faults to inject (`FAULT@HOST[:LOCALRANK]`), and define the result of a drill."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from accept.core.catalog.faults import EVERYWHERE, ON_HOSTS
from accept.core.errors import BadInput
from accept.core.serde import escaped, known

SCHEMA = 1

Result = Literal["caught", "missed", "left-out", "unknown"]


@dataclass(frozen=True, kw_only=True)
class Drilled:
    """One fault, and what became of it."""

    fault: str
    #: As the plan of its run carries it (FAULT@HOST:LOCALRANK); empty where it was left out.
    planted: str = ""
    #: Steps of the suite that are to see it.
    steps: tuple[str, ...] = ()
    #: Caught: rejected for one of its causes, and blamed on whom it was planted on and nobody else.
    result: Result
    #: What was seen; why it was missed, left out, or is not known.
    why: str
    #: Whom the verdict blames, as "NAME: CAUSE".
    blamed: tuple[str, ...] = ()
    #: Seconds from the start of the run, its hosts found, to the end of the step that showed it.
    after: float | None = None
    #: What the run took, in seconds.
    seconds: float | None = None
    #: Attempt of its run, in the folder of the drill.
    attempt: str = ""


@dataclass(frozen=True, kw_only=True)
class Drill:
    """A suite run clean and then with faults planted one by one."""

    schema: int
    drill: str
    machine: str
    suite: str
    backend: str
    seed: int
    hosts: tuple[str, ...]
    #: First line of the clean run's verdict, and its attempt.
    clean: str
    clean_attempt: str
    faults: tuple[Drilled, ...]
    #: Why it ended early, where it did.
    broken_off: str = ""
    exit: int


#: What the programs of the ranks can do wrong when they are told to: FAULT@HOST:LOCALRANK.
FAULTS = ("wrong", "nan", "hang", "die", "slow", "flip")
_HOST = r"(?P<host>[A-Za-z0-9_][A-Za-z0-9_.-]*|\*|#[0-9]{1,4})"
_FORM = re.compile(
    rf"(?P<fault>{'|'.join((*FAULTS, *ON_HOSTS, *EVERYWHERE))})@{_HOST}(?P<rank>:[0-9]{{1,3}})?"
)
_HINT = (
    f"write FAULT@HOST:LOCALRANK ({', '.join(FAULTS)}), FAULT@HOST ({', '.join(ON_HOSTS)}) "
    f"or FAULT@* ({', '.join(EVERYWHERE)})"
)


def read_plants(texts: Sequence[str], hosts: Sequence[str]) -> tuple[str, ...]:
    """Each as FAULT@HOST:LOCALRANK, rank 0 where none is given; FAULT@HOST where a host is meant.

    `hosts` are those that take part, empty where they are not known yet. Raises BadInput.
    """
    read = []
    for text in texts:
        match = _FORM.fullmatch(text)
        if not match or not _fits(match["fault"], match["host"], match["rank"]):
            raise BadInput(f"--plant {escaped(text)!r} is no fault", hint=_HINT)
        host = match["host"]
        if hosts and host[0] not in "*#" and host not in hosts:
            raise BadInput(
                f"--plant {escaped(text)}: {escaped(host)} takes no part",
                hint=known(host, hosts, "hosts"),
            )
        read.append(text if match["rank"] or match["fault"] not in FAULTS else f"{text}:0")
    return tuple(read)


def _fits(fault: str, host: str, rank: str | None) -> bool:
    """Whether the fault is one that such a place can have."""
    if fault in FAULTS:
        return host[0] not in "*#"
    if rank or (host == "*") != (fault in EVERYWHERE):
        return False
    return not host.startswith("#") or fault == "unreachable"
