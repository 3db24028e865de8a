"""Faults planted on purpose, for drills: what `--plant` takes."""

from __future__ import annotations

import re
from collections.abc import Sequence

from accept.core.catalog.faults import EVERYWHERE, ON_HOSTS
from accept.core.errors import BadInput
from accept.core.shape import known, plain

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
            raise BadInput(f"--plant {plain(text)!r} is no fault", hint=_HINT)
        host = match["host"]
        if hosts and host[0] not in "*#" and host not in hosts:
            raise BadInput(
                f"--plant {plain(text)}: {plain(host)} takes no part",
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
