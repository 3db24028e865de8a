"""Execute the groups of a step, write their records, and find the ranks that made them hang."""

from __future__ import annotations

import asyncio
import re
import shlex
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from accept.core import evidence, record_protocol
from accept.core.causes import Cause
from accept.core.checks import parse_log, with_problems_seen
from accept.core.facts import BEGAN, WAITED
from accept.core.groups import Group, Wave
from accept.core.plan import Step
from accept.core.records import FailedLaunch, Problem, Record
from accept.core.runner import nccl
from accept.core.runner.clock import now
from accept.core.runner.log import say
from accept.core.runner.ssh import Host
from accept.core.runner.state import Run, lose_silent_hosts
from accept.core.runner.supervise import Outcome, has_residents, supervise
from accept.core.text import plain

#: Ranks that entered an operation less than this many seconds before the end were still working.
STILL_SECONDS = 5
#: Ranks that give up by themselves wait for each other at least 60 s (torch_io.py). If all ranks
#: were idle for this many seconds when they ended, they gave up waiting; nothing crashed, because
#: launchers end all ranks within seconds after one has died.
_GAVE_UP_SECONDS = 30
#: Progress files dated more than this many seconds ahead of their host's clock have no usable time.
_MAX_CLOCK_SKEW = 5
#: Maximum number of ranks that are reported.
_MAX_REPORTED = 16
#: A line that `progress_command` prints.
_LINE = re.compile(
    r"(?P<rank>\d{1,9}) (?P<now>\d{1,12}) (?P<entered>\d{1,12}) +(?P<sequence>\d{1,12}) "
    r"(?P<what>[^\n]{0,64}?)(?: +(?P<own>\d{1,6})s)?\s*",
    re.ASCII,
)


@dataclass(frozen=True, kw_only=True)
class Place:
    """The operation that a rank entered last."""

    host: str
    rank: int
    #: Number of the operation.
    sequence: int
    #: Its name and size.
    what: str
    #: Seconds between entering it and the end of the execution.
    idle: float
    #: Seconds after entering it during which the rank may work alone while the others wait.
    own: int = 0


def progress_command(folder: str) -> str:
    """Return the sh line that prints the progress files of a host's ranks, which are in `folder`.

    Each file is named after its rank. The rank writes `SEQUENCE OPERATION SIZE` into it when it
    enters an operation that needs the others, and adds `SECONDSs` when it works alone.
    """
    return (
        f"cd {shlex.quote(folder)} 2>/dev/null || exit 0; "
        'for each in [0-9]*; do echo "$each $(date +%s) $(stat -c %Y "$each")'
        ' $(head -c 80 "$each")"; done 2>/dev/null'
    )


def places(host: str, answer: str, ago: float) -> list[Place]:
    """Parse the output of `progress_command` on a host, `ago` seconds after the execution ended."""
    host_places = []
    for line in answer.splitlines():
        if match := _LINE.fullmatch(line):
            now, entered = int(match["now"]), int(match["entered"])
            idle = float("inf") if entered > now + _MAX_CLOCK_SKEW else now - entered - ago
            host_places.append(
                Place(
                    host=host,
                    rank=int(match["rank"]),
                    sequence=int(match["sequence"]),
                    what=" ".join(match["what"].split()),
                    idle=idle,
                    own=int(match["own"] or 0),
                )
            )
    return host_places


def moving(ranks: Sequence[Place], still_seconds: float = STILL_SECONDS) -> bool:
    """Return True if a rank was still working; then no rank is known to have stopped."""
    return any(place.idle < max(still_seconds, place.own) for place in ranks)


def cause_of_end(ranks: Sequence[Place]) -> Cause:
    """Return why ranks that fell behind ended an execution that ended by itself."""
    return Cause.CRASHED if moving(ranks, _GAVE_UP_SECONDS) else Cause.RANK_HUNG


def stopped(
    ranks: Sequence[Place], cause: Cause, waited: Collection[int] = ()
) -> tuple[Problem, ...]:
    """Return the ranks that never entered the operation the others wait in, as problems of `cause`.

    Ranks are reported only if they are behind the furthest rank and a minority, and did not report
    that they `waited` for others themselves.
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
        for place in sorted(behind, key=lambda place: (place.host, place.rank))[:_MAX_REPORTED]
        if place.rank not in waited
    )


async def execute_wave(
    state: Run, step: Step, number: int, wave: Wave, ended: Callable[[Record | None], None]
) -> tuple[Record, ...]:
    """Run the groups of a wave at the same time, and write the record of each when it ends.

    `ended` is called with each record, or with None for a group that gets none.

    A group that the run's deadline ends gets a record only if a host or rank is known to have
    delayed it: a group does not fail because the run is late.
    """

    async def execute(index: int, group: Group) -> Record | None:
        record = await _execute(state, step, number, index, group)
        ended(record)
        return record

    if has_residents(state, step):
        hosts = {name: state.host(name) for group in wave for name in group.hosts}
        seconds = state.until - time.monotonic()
        await state.residents.prepare(step.profile, [*hosts.values()], seconds)
        if state.residents.refusal:
            say(f"  {plain(state.residents.refusal, 300)}: mpirun starts each group by itself")
    records = await asyncio.gather(*(execute(index, group) for index, group in enumerate(wave)))
    return tuple(record for record in records if record is not None)


async def _execute(state: Run, step: Step, wave: int, index: int, group: Group) -> Record | None:
    """Run a group and keep its record; None if only the run's deadline ended it.

    If its launch fails while all of its hosts answer, it is started once more, and the second
    record counts.
    """
    per_host = len(group.local_ranks) or state.host(group.hosts[0]).slots
    log = evidence.log_path(
        step,
        wave,
        index,
        hosts=group.hosts,
        local_ranks=group.local_ranks,
        ranks=len(group.hosts) * per_host,
        start=now(),
    )
    mark = f"{state.attempt}/{step.id}/{wave}-{index}"
    record = await _execute_once(state, step, wave, index, group, mark=mark, log=log)
    if record is None or (failure := _failed_launch(record)) is None or state.is_over():
        return state.keep(record) if record is not None else None
    path = state.evidence / log
    first = path.with_name(f"{path.stem}-failed-launch{path.suffix}")
    path.replace(first)
    say(f"  {' '.join(group.hosts[:4])}: {plain(failure.message, 300)}; started once more")
    again = await _execute_once(state, step, wave, index, group, mark=f"{mark}-again", log=log)
    if again is None:
        return None
    launch = FailedLaunch(message=failure.message, log=first.relative_to(state.evidence).as_posix())
    return state.keep(replace(again, failed_launch=launch))


def _failed_launch(record: Record) -> Problem | None:
    """Return why no rank could be started; None if ranks started, or if a host explains it."""
    if any(problem.cause.row.root_cause for problem in record.problems):
        return None
    return _launch_problem(record.problems)


def _launch_problem(problems: Iterable[Problem]) -> Problem | None:
    return next((p for p in problems if p.cause is Cause.LAUNCH_FAILED), None)


async def _execute_once(
    state: Run, step: Step, wave: int, index: int, group: Group, *, mark: str, log: str
) -> Record | None:
    """Run a group and return its record; None if only the run's deadline ended it.

    Its processes have `mark` in their environment, and its output goes to `log`.
    """
    hosts = [state.host(name) for name in group.hosts]
    path = state.evidence / log
    path.parent.mkdir(parents=True, exist_ok=True)
    start = now()
    outcome = await supervise(state, step, mark, group, path)
    if outcome.exit != 0:
        await lose_silent_hosts(state, hosts)
        await nccl.keep_logs(state, mark, hosts, path)
        nccl.keep_ras(outcome.ras, path)
    per_host = len(group.local_ranks) or hosts[0].slots
    lines = evidence.open_log(state.evidence, log) or ()
    parsed = parse_log(step.checks, lines, group.hosts, status=outcome.exit, tool=step.tool)
    problems = outcome.problems
    if outcome.exit == 0 and _launch_problem(parsed.problems):
        # mpirun may lose a host and end with status 0.
        await lose_silent_hosts(state, hosts)
        problems += tuple(state.lost[h.name] for h in hosts if h.name in state.lost)
    if outcome.exit != 0:
        if outcome.exit is None or not any(problem.host for problem in parsed.problems):
            waited = [fact.rank for fact, _ in WAITED.among(parsed.facts) if fact.rank is not None]
            problems = await _locate_hang(state, mark, hosts, outcome, waited)
            if not any(problem.host for problem in problems):
                problems += nccl.ras_problems(outcome.ras, hosts, per_host)
        # This includes hosts that were lost earlier: their loss was the reason to end the group.
        problems += tuple(state.lost[h.name] for h in hosts if h.name in state.lost)
        problems += await _full_disks(state, hosts)
    if outcome.late and not problems:
        return None
    return Record(
        step=step.id,
        checks=step.checks,
        wave=wave,
        group=index,
        hosts=group.hosts,
        local_ranks=group.local_ranks,
        ranks=len(hosts) * per_host,
        command=_command_line(path),
        exit=outcome.exit,
        start=start,
        began=next((began for _, began in BEGAN.among(parsed.facts)), None),
        end=outcome.end,
        log=log,
        metrics=parsed.metrics,
        facts=parsed.facts,
        problems=with_problems_seen(problems, parsed),
    )


async def _locate_hang(
    state: Run, mark: str, hosts: Sequence[Host], outcome: Outcome, waited: Collection[int]
) -> tuple[Problem, ...]:
    """Return the problems of a failed execution, with those of the ranks the others waited for.

    If ranks were still working when the execution was ended, none of them hung, and the message
    reports that. After a crash the ranks that fell behind are those that died without a message;
    but if all ranks were idle for long, the others gave up waiting for them. `waited` are the ranks
    that reported that.
    """
    command = progress_command(str(state.folder / "progress" / mark))
    ago = now() - outcome.end
    ranks = [
        place
        for host, answer in await state.ask_living(hosts, command)
        for place in places(host.name, answer.text, ago)
    ]
    if outcome.exit is not None:
        return (*outcome.problems, *stopped(ranks, cause_of_end(ranks), waited))
    if not moving(ranks):
        return (*outcome.problems, *stopped(ranks, Cause.RANK_HUNG))
    note = "its ranks were still working: they are slow, or the step needs a longer timeout"
    return tuple(
        replace(p, message=f"{p.message}, but {note}") if p.cause is Cause.TIMED_OUT else p
        for p in outcome.problems
    )


async def _full_disks(state: Run, hosts: Sequence[Host]) -> tuple[Problem, ...]:
    """Return a problem for each host on which the run's folder has no space left."""
    command = f". {shlex.quote(str(state.folder / 'check_writable.sh'))}"
    return tuple(
        replace(problem, host=host.name)
        for host, answer in await state.ask_living(hosts, command)
        if "No space left" in answer.errors
        for problem in record_protocol.parse([answer.err]).problems
    )


def _command_line(path: Path) -> str:
    """Return the command line of a launch, which the step prints at the beginning of its log."""
    with path.open("rb") as file:
        for _ in range(50):
            line = file.readline(1 << 14)
            if line.startswith((b"# Open MPI ", b"# srun:")):
                return line.decode(errors="replace").partition(": ")[2].strip()[:8000]
    return ""
