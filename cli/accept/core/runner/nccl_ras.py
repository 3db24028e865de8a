"""Ask NCCL's RAS which ranks of a hung execution are dead or behind, before they are killed.

`launchers/programs/nccl_ras.py` does so on each host. nccl-tests write no progress files, so RAS is
the only source that can name a rank of theirs.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from accept.core import facts
from accept.core.causes import Cause
from accept.core.model import Problem
from accept.core.runner.ssh import Host
from accept.core.runner.state import Run

#: Maximum time of the program after its first output, in seconds.
_MORE_SECONDS = 10.0
#: Maximum size of an answer, in bytes: about 400 for each rank, twice.
_LIMIT = 8 << 20


@dataclass(frozen=True, kw_only=True)
class Status:
    """The state of the ranks of an execution, as RAS reports it."""

    #: Rank -> number of collectives that it has started.
    started: Mapping[int, int]
    #: Ranks whose process is dead, or does not answer.
    dead: frozenset[int]
    silent: frozenset[int]


async def ask(state: Run, mark: str, hosts: Sequence[Host]) -> dict[str, str]:
    """Return the answers of RAS by host, two lines of JSON each, or a text of NCCL before 2.28.

    Hosts without RAS are left out.
    """
    folder = shlex.quote(str(state.folder))
    command = (
        f"ACCEPT_DIR={folder}; "
        '[ -n "${ACCEPT_SHELL:-}" ] || . "$ACCEPT_DIR/env.sh"; . "$ACCEPT_DIR/programs/python.sh"; '
        '[ -z "$python" ] || '
        f'exec "$python" "$ACCEPT_DIR/programs/nccl_ras.py" {shlex.quote(mark)}'
    )
    alive = [host for host in hosts if host.name not in state.lost]
    answers = await asyncio.gather(*(state.ask(h, command, more=_MORE_SECONDS) for h in alive))
    return {h.name: a.out[:_LIMIT] for h, a in zip(alive, answers, strict=True) if a.out.strip()}


def keep(answers: Mapping[str, str], log: Path) -> None:
    """Write the answers to a file beside the log, whose name ends with `.ras.log`."""
    if answers:
        text = "".join(f"##### {host}\n{answer}" for host, answer in answers.items())
        with contextlib.suppress(OSError):
            log.with_suffix(".ras.log").write_text(text, encoding="utf-8")


def problems(
    answers: Mapping[str, str], hosts: Sequence[Host], ranks_per_host: int
) -> tuple[Problem, ...]:
    """Return the ranks that RAS reports as dead, silent or behind, as problems of their hosts.

    All answers must agree: a rank that moved between two of them is not named, and neither are
    others, because the execution was slow and did not hang.
    """
    total = len(hosts) * ranks_per_host
    reports = [s for answer in answers.values() for s in statuses(answer, total)]
    if len(reports) < 2 or any(report.started != reports[0].started for report in reports):
        return ()
    found: list[Problem] = []

    def name(rank: int, cause: Cause, text: str) -> None:
        host = hosts[rank // ranks_per_host].name
        message = f"NCCL's RAS reports that rank {rank} on {host} {text}"
        found.append(Problem(cause=cause, message=message, host=host, rank=rank))

    dead = frozenset.intersection(*(report.dead for report in reports))
    silent = frozenset.intersection(*(report.silent for report in reports)) - dead
    started = reports[0].started
    most = max(started.values(), default=0)
    behind = [rank for rank, number in sorted(started.items()) if number < most]
    if 2 * len({*dead, *silent, *behind}) > total:
        return ()
    for rank in sorted(dead):
        name(rank, Cause.CRASHED, "is dead")
    for rank in sorted(silent):
        name(rank, Cause.RANK_HUNG, "does not answer")
    for rank in behind:
        name(rank, Cause.RANK_HUNG, f"started {started[rank]} collectives, and others {most}")
    return tuple(found)


def statuses(answer: str, total: int) -> Iterator[Status]:
    """Yield the state in each line of a host's answer, of the communicator with all `total` ranks.

    If there are several, the one with the most collectives counts. The keys are those of NCCL's
    src/ras/client_support.cc. Other lines are skipped, such as those of a text.
    """
    for line in answer.splitlines():
        try:
            status = facts.mapping(json.loads(line))
        except (ValueError, RecursionError):
            continue
        communicators = [facts.mapping(each) for each in facts.items(status.get("communicators"))]
        complete = [_status(each, total) for each in communicators if each.get("size") == total]
        if complete:
            yield max(complete, key=lambda each: sum(each.started.values()))


def _status(communicator: Mapping[str, object], total: int) -> Status:
    started: dict[int, int] = {}
    missing: dict[int, Mapping[str, object]] = {}
    for rank in map(facts.mapping, facts.items(communicator.get("ranks"))):
        number = facts.integer(rank.get("rank"))
        if number is not None and 0 <= number < total:
            counts = facts.mapping(rank.get("collective_counts")).values()
            started[number] = sum(map(facts.whole, counts))
    for rank in map(facts.mapping, facts.items(communicator.get("missing_ranks"))):
        number = facts.integer(rank.get("rank"))
        if number is not None and 0 <= number < total:
            missing[number] = facts.mapping(rank.get("status"))
    return Status(
        started=started,
        dead=frozenset(r for r, s in missing.items() if s.get("considered_dead") is True),
        silent=frozenset(r for r, s in missing.items() if s.get("unresponsive") is True),
    )
