"""How the coordinator runs a command on a host: over the run's own ssh, or in place on its own.

Connections are kept and shared (ControlMaster), so that asking a thousand hosts whether they are
alive costs no handshake, and a connection that dies tells of a host that died.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

#: Name under which the run's one host key is pinned, whatever address a host has; also in
#: launchers/ssh_config.in.
HOST_KEY_ALIAS = "accept-run"

#: Remote commands print this before their own output. Text before it comes from the login shell,
#: which sshd starts for every command, and whose `.bashrc` may print a greeting.
_MARKER = b"\x1eaccept\n"
_PRINT_MARKER = "printf '\\036accept\\n'; "


@dataclass(frozen=True, kw_only=True)
class Host:
    """A host that takes part."""

    name: str
    #: What it calls itself; MPI tells by this which host is its own.
    mpi_name: str
    #: Numeric: names were resolved once, at the start.
    address: str
    port: int
    slots: int
    #: The coordinator runs on it.
    local: bool = False

    def group_line(self) -> str:
        """The line by which `launchers/lib.sh` knows the host."""
        return f"{self.name} {self.mpi_name} {self.address} {self.port} {self.slots}\n"


@dataclass(frozen=True, kw_only=True)
class Answer:
    """What a command left: exit status (None: ended by its timeout), its output and its errors."""

    exit: int | None
    out: str
    err: str


def ssh_arguments(folder: Path, host: Host) -> list[str]:
    """The ssh command line that reaches `host`; the command follows."""
    return [
        *("ssh", "-F", str(folder / "ssh_config")),
        *("-o", f"HostName={host.address}", "-o", f"Port={host.port}"),
        *("-o", "ControlMaster=auto", "-o", "ControlPersist=yes"),
        host.name,
    ]


def arguments(folder: Path, host: Host, command: str) -> list[str]:
    """The argument vector that runs the sh `command` on `host`."""
    if host.local:
        return ["/bin/sh", "-c", command]
    return [*ssh_arguments(folder, host), command]


def marked_arguments(folder: Path, host: Host, command: str) -> list[str]:
    """Return the same for `run`, which leaves out what the login shell of the host prints."""
    return arguments(folder, host, command if host.local else _PRINT_MARKER + command)


def environment(folder: Path, attempt: str) -> dict[str, str]:
    """The environment for commands on the coordinator's own host."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("ACCEPT_", "OMPI_", "PMIX_"))}
    return {**kept, "ACCEPT_DIR": str(folder), "ACCEPT_RUN": attempt}


async def run(
    argv: list[str],
    *,
    env: Mapping[str, str] | None = None,
    timeout: float,
    more: float = 0.0,
    heard: Callable[[], None] = lambda: None,
) -> Answer:
    """Run `argv`, with at most 1 MiB of its output kept; past `timeout` seconds it is killed.

    Where it has said something by then it has `more` seconds; `heard` is called when it does. What
    it said until it was killed is kept too. See `marked_arguments` for greetings.
    """
    process = await asyncio.create_subprocess_exec(
        *argv,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env=env,
        start_new_session=True,
    )
    assert process.stdout is not None
    assert process.stderr is not None
    out, err = bytearray(), bytearray()
    marker = _MARKER if argv[-1].startswith(_PRINT_MARKER) else b""
    work = asyncio.gather(
        _keep(process.stdout, out, heard, marker), _keep(process.stderr, err), process.wait()
    )
    try:
        done, _ = await asyncio.wait({work}, timeout=timeout)
        if not done and out and more:
            timeout += more
            done, _ = await asyncio.wait({work}, timeout=more)
    except asyncio.CancelledError:
        kill_session(process)
        work.cancel()
        raise
    if not done:
        kill_session(process)
        # What cannot be killed is not waited for.
        await asyncio.wait({work}, timeout=1.0)
        work.cancel()
        err[:] = f"no answer within {timeout:.0f} s".encode()
    return Answer(
        exit=process.returncode if done else None,
        out=out.decode(errors="replace"),
        err=err.decode(errors="replace"),
    )


async def _keep(
    stream: asyncio.StreamReader,
    kept: bytearray,
    heard: Callable[[], None] = lambda: None,
    marker: bytes = b"",
) -> None:
    """Read a stream to its end, into `kept` while there is room: all, or what follows `marker`."""
    before = b""
    while block := await stream.read(1 << 16):
        if marker:
            before, found, block = (before + block).partition(marker)
            if not found:
                # It may be split between two blocks.
                before = before[-len(marker) :]
                continue
            marker = b""
            if not block:
                continue
        if not kept:
            heard()
        kept += block[: (1 << 20) - len(kept)]


def kill_session(process: asyncio.subprocess.Process) -> None:
    """End a process that leads a session of its own, and all that stayed in that session."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)


def has_connection(folder: Path, host: Host) -> bool:
    """Whether the kept connection to `host` stands; ssh drops it 15 s after a host falls silent."""
    return host.local or (folder / "c" / f"{host.address}-{host.port}").exists()
