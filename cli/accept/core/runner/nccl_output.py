"""Keep NCCL's own logs of an execution that failed, even if its ranks were killed."""

from __future__ import annotations

import contextlib
import re
import shlex
from collections.abc import Sequence
from pathlib import Path

from accept.core.nccl_tests.nccl_info import is_warning
from accept.core.runner.ssh import Host
from accept.core.runner.state import Run

#: Upper limits of the logs of one host, and of all hosts of an execution, in bytes.
_HOST_LIMIT, _LIMIT = 512 << 10, 8 << 20
#: Maximum time after the first output, in seconds.
_MORE_SECONDS = 20.0


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
    limit = min(_HOST_LIMIT, _LIMIT // max(1, len(alive)))
    command = collect_command(state.folder, mark, limit)
    warnings, logs = [], []
    for host, answer in await state.ask_living(alive, command, more=_MORE_SECONDS):
        before, *texts = re.split(r"^=$", answer.out, maxsplit=1, flags=re.MULTILINE)
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
