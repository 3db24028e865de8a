"""Ask NCCL's RAS which ranks of a hung execution are dead or behind, before they are killed.

`launchers/programs/nccl_ras.py` does so on each host. nccl-tests write no progress files, so RAS is
the only source that can name a rank of theirs.
"""

from __future__ import annotations

import contextlib
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path

from accept.core.causes import Cause
from accept.core.model import Problem
from accept.core.runner.nccl_ras_answers import statuses
from accept.core.runner.ssh import Host
from accept.core.runner.state import Run
from accept.core.text import count

#: Maximum time of the program after its first output, in seconds.
_MORE_SECONDS = 10.0
#: Maximum size of an answer, in bytes: about 400 for each rank, twice.
_LIMIT = 8 << 20


async def ask(state: Run, mark: str, hosts: Sequence[Host]) -> dict[str, str]:
    """Return the answers of RAS by host: two lines of JSON each, or two texts of an older NCCL.

    Hosts without RAS are left out.
    """
    folder = shlex.quote(str(state.folder))
    command = (
        f"ACCEPT_DIR={folder}; "
        '[ -n "${ACCEPT_SHELL:-}" ] || . "$ACCEPT_DIR/env.sh"; . "$ACCEPT_DIR/programs/python.sh"; '
        '[ -z "$python" ] || '
        f'exec "$python" "$ACCEPT_DIR/programs/nccl_ras.py" {shlex.quote(mark)}'
    )
    answers = await state.ask_living(hosts, command, more=_MORE_SECONDS)
    return {host.name: answer.out[:_LIMIT] for host, answer in answers if answer.out.strip()}


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
        name(rank, Cause.RANK_HUNG, f"is {count(most - started[rank], 'collective')} behind")
    return tuple(found)
