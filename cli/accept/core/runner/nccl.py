"""Ask NCCL about an execution that failed: keep its own logs, and name ranks by its RAS.

`launchers/programs/nccl_ras.py` asks RAS on each host which ranks are dead or behind, before they
are killed. nccl-tests write no progress files, so RAS is the only source that can name a rank of
theirs.
"""

from __future__ import annotations

import contextlib
import re
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path

from accept.core.causes import Cause
from accept.core.nccl_tests.nccl_info import is_warning
from accept.core.records import Problem
from accept.core.runner.nccl_ras_answers import statuses
from accept.core.runner.ssh import Host
from accept.core.runner.state import Run
from accept.core.text import count

#: Upper limits of the logs of one host, and of all hosts of an execution, in bytes.
_HOST_LIMIT, _LOGS_LIMIT = 512 << 10, 8 << 20
#: Maximum time after the first output, in seconds, to read these logs and to ask RAS.
_LOGS_SECONDS, _RAS_SECONDS = 20.0, 10.0
#: Maximum size of an answer of RAS, in bytes: about 400 for each rank, twice.
_ANSWER_LIMIT = 8 << 20


def collect_command(folder: Path, mark: str, limit: int) -> str:
    """Return the sh line that prints the warnings and logs of the ranks of one host."""
    script = shlex.quote(str(folder / "nccl_log.sh"))
    progress = shlex.quote(str(folder / "progress" / mark))
    return f". {script} && collect_nccl_logs {progress} {limit}"


async def keep_logs(state: Run, mark: str, hosts: Sequence[Host], log: Path) -> None:
    """Add the warnings of the ranks to `log`, and write all their logs to a file beside it.

    The name of the file ends with `.nccl.log`. If NCCL wrote nothing, there is no file.
    """
    alive = [host for host in hosts if host.name not in state.lost]
    limit = min(_HOST_LIMIT, _LOGS_LIMIT // max(1, len(alive)))
    command = collect_command(state.folder, mark, limit)
    warnings, logs = [], []
    for host, answer in await state.ask_living(alive, command, more=_LOGS_SECONDS):
        before, *texts = re.split(r"^=$", answer.text, maxsplit=1, flags=re.MULTILINE)
        warnings += [line for line in before.splitlines() if is_warning(line.encode())]
        for text in texts:
            logs.append(f"##### {host.name}{text}\n")
    if not logs:
        return
    file = log.with_suffix(".nccl.log")
    with contextlib.suppress(OSError):
        file.write_text("".join(logs), encoding="utf-8")
        with log.open("ab") as raw:
            lines = [f"# NCCL's own logs are in {file.name}. Its warnings so far:", *warnings]
            raw.write(("\n" + "\n".join(lines) + "\n").encode())


async def ask_ras(state: Run, mark: str, hosts: Sequence[Host]) -> dict[str, str]:
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
    answers = await state.ask_living(hosts, command, more=_RAS_SECONDS)
    return {
        host.name: answer.text[:_ANSWER_LIMIT] for host, answer in answers if answer.out.strip()
    }


def keep_ras(answers: Mapping[str, str], log: Path) -> None:
    """Write the answers to a file beside the log, whose name ends with `.ras.log`."""
    if answers:
        text = "".join(f"##### {host}\n{answer}" for host, answer in answers.items())
        with contextlib.suppress(OSError):
            log.with_suffix(".ras.log").write_text(text, encoding="utf-8")


def ras_problems(
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
