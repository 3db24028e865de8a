"""Execute one group of a step, write its record, and find the rank that a hung group waits for."""

from __future__ import annotations

import asyncio
import re
import shlex
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from accept.core import evidence, record_protocol
from accept.core.checks import parse_log, with_problems_seen
from accept.core.groups import Group, Wave
from accept.core.model import Parsed, Problem, Record, Step
from accept.core.runner.ssh import Host
from accept.core.runner.state import Run, lose_silent_hosts
from accept.core.runner.supervise import Outcome, supervise

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


def progress_command(folder: str) -> str:
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


async def execute_wave(state: Run, step: Step, number: int, wave: Wave) -> tuple[Record, ...]:
    """Run the groups of a wave at the same time; records and logs are written as each one ends.

    Where the run's time ends one, there is a record of it only if somebody is known to have held it
    up: that there was no more time is no failure of its own.
    """
    records = await asyncio.gather(
        *(_execute(state, step, number, index, group) for index, group in enumerate(wave))
    )
    return tuple(record for record in records if record is not None)


async def _execute(state: Run, step: Step, wave: int, index: int, group: Group) -> Record | None:
    hosts = [state.host(name) for name in group.hosts]
    mark = f"{state.attempt}/{step.id}/{wave}-{index}"
    log = evidence.log_path(step.id, wave, index)
    path = state.evidence / log
    path.parent.mkdir(parents=True, exist_ok=True)
    start = time.time()
    outcome = await supervise(state, step, mark, group, path)
    parsed = parse_log(step.checks, evidence.open_log(state.evidence, log) or (), group.hosts)
    problems = outcome.problems
    if outcome.exit != 0:
        await lose_silent_hosts(state, hosts)
        if outcome.exit is None or not any(problem.host for problem in parsed.problems):
            problems = await _who_is_behind(state, mark, hosts, outcome)
        # Also those that were lost while it ran, which is why it was ended.
        problems += tuple(state.lost[h.name] for h in hosts if h.name in state.lost)
        problems += await _full_disks(state, hosts)
    if outcome.late and not problems:
        return None
    per_host = len(group.local_ranks) or hosts[0].slots
    record = Record(
        step=step.id,
        checks=step.checks,
        wave=wave,
        group=index,
        hosts=group.hosts,
        local_ranks=group.local_ranks,
        ranks=len(hosts) * per_host,
        command=_mpirun_line(path),
        exit=outcome.exit,
        start=start,
        began=_began(parsed),
        end=outcome.end,
        log=log,
        metrics=parsed.metrics,
        facts=parsed.facts,
        problems=with_problems_seen(problems, parsed),
    )
    return state.keep(record)


async def _who_is_behind(
    state: Run, mark: str, hosts: Sequence[Host], outcome: Outcome
) -> tuple[Problem, ...]:
    """Problems of an execution that failed, with those that name the ranks the others waited for.

    Where one that had to be ended was still going on, nobody stopped: that is said instead. After a
    crash this names whoever died in silence; a rank that told its own end needs no such guess.
    """
    command = progress_command(str(state.folder / "progress" / mark))
    asked = [h for h in hosts if h.name not in state.lost]
    ago = time.time() - outcome.end
    answers = await asyncio.gather(*(state.ask(h, command) for h in asked))
    ranks = [
        place
        for host, answer in zip(asked, answers, strict=True)
        for place in places(host.name, answer.out, ago)
    ]
    if outcome.exit is not None:
        return (*outcome.problems, *stopped(ranks, "crashed"))
    if not moving(ranks):
        return (*outcome.problems, *stopped(ranks, "rank-hung"))
    return tuple(
        replace(
            p, message=f"{p.message}, but its ranks were still going on: it is slow or needs more"
        )
        if p.cause == "timed-out"
        else p
        for p in outcome.problems
    )


async def _full_disks(state: Run, hosts: Sequence[Host]) -> tuple[Problem, ...]:
    """The hosts on which nothing can be written to the run's folder any more."""
    command = f". {shlex.quote(str(state.folder / 'check_writable.sh'))}"
    asked = [h for h in hosts if h.name not in state.lost]
    answers = await asyncio.gather(*(state.ask(h, command) for h in asked))
    return tuple(
        replace(problem, host=host.name)
        for host, answer in zip(asked, answers, strict=True)
        if "No space left" in answer.err
        for problem in record_protocol.parse([answer.err.encode()]).problems
    )


def _mpirun_line(path: Path) -> str:
    """The launcher's command line, which the step prints before it uses it."""
    with path.open("rb") as file:
        for _ in range(50):
            line = file.readline(1 << 14)
            if line.startswith(b"# Open MPI "):
                return line.decode(errors="replace").partition(": ")[2].strip()[:8000]
    return ""


def _began(parsed: Parsed) -> float | None:
    values = [f.value for f in parsed.facts if f.name == "began"]
    return float(values[0]) if values and isinstance(values[0], int | float) else None
