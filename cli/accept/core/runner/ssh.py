"""Run commands on hosts for the coordinator: over the run's own ssh, or directly on its own host.

Connections are kept and shared (ControlMaster). Therefore checking that 1,000 hosts are alive needs
no handshakes, and a connection that ends shows that its host died.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shlex
import signal
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from accept.core import bounded

#: Name under which known_hosts lists the one host key of the run, for all addresses. It is also in
#: launchers/ssh_config.in.
HOST_KEY_ALIAS = "accept-run"
#: The private key of the run, in its folder: for logins, as host key, and to sign the evidence.
KEY = "key"

#: Remote commands print this before their own output. Text before it comes from the login shell:
#: sshd starts one for every command, and its `.bashrc` may print a greeting.
MARKER = b"\x1eaccept\n"
PRINT_MARKER = "printf '\\036accept\\n'; "
#: Maximum time for a killed process to end. One that waits for a dead disk does not end.
_KILL_SECONDS = 5.0


@dataclass(frozen=True, kw_only=True)
class Host:
    """A host that takes part."""

    name: str
    #: Its own hostname, by which MPI recognizes the host it runs on.
    mpi_name: str
    #: Numeric address: names are resolved once, at the start.
    address: str
    port: int
    #: Number of ranks.
    slots: int
    #: True if the coordinator runs on it.
    local: bool = False

    def group_line(self) -> str:
        """Return the line that describes the host to `launchers/lib.sh`."""
        return f"{self.name} {self.mpi_name} {self.address} {self.port} {self.slots}\n"


@dataclass(frozen=True, kw_only=True)
class Answer(bounded.Output):
    """The result of a command."""

    @property
    def reason(self) -> str:
        """Return why it failed, never empty: the last line of its errors, or else its status."""
        lines = [line.strip() for line in self.errors.splitlines() if line.strip()]
        status = "no answer in time" if self.exit is None else f"exit status {self.exit}"
        return (lines[-1] if lines else status)[:300]


class Session(asyncio.subprocess.Process):
    """A process that leads its own session, and whose output is read."""

    def __init__(
        self,
        transport: asyncio.SubprocessTransport,
        protocol: asyncio.subprocess.SubprocessStreamProtocol,
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        super().__init__(transport, protocol, loop)
        self._pipes = transport

    @classmethod
    async def start(
        cls, argv: Sequence[str], *, stdin: int, stderr: int, env: Mapping[str, str] | None
    ) -> Session:
        """Start a process; `stdin` and `stderr` are as for `asyncio.create_subprocess_exec`."""
        loop = asyncio.get_running_loop()
        transport, protocol = await loop.subprocess_exec(
            lambda: asyncio.subprocess.SubprocessStreamProtocol(limit=1 << 16, loop=loop),
            *argv,
            stdin=stdin,
            stdout=asyncio.subprocess.PIPE,
            stderr=stderr,
            env=env,
            start_new_session=True,
        )
        return cls(transport, protocol, loop)

    def kill_session(self) -> None:
        """Kill the process and all others in its process group."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)

    async def close(self) -> None:
        """Kill what has not ended, and close the pipes, which other sessions may keep open.

        asyncio prints errors for processes and pipes that outlive the event loop.
        """
        if self.returncode is None:
            self.kill_session()
            # Do not wait for processes that cannot be killed.
            until = time.monotonic() + _KILL_SECONDS
            while self._pipes.get_returncode() is None and time.monotonic() < until:
                await asyncio.sleep(0.01)
        self._pipes.close()


def arguments(folder: Path, host: Host, command: str) -> list[str]:
    """Return the argument vector that runs the sh `command` on `host`."""
    if host.local:
        return ["/bin/sh", "-c", command]
    return [
        *("ssh", "-F", str(folder / "ssh_config")),
        *("-o", f"HostName={host.address}", "-o", f"Port={host.port}"),
        *("-o", "ControlMaster=auto", "-o", "ControlPersist=yes"),
        *(host.name, command),
    ]


def command_elsewhere(folder: Path, host: Host, command: str) -> str:
    """Return the sh command that runs `command` on `host` from another host of the run."""
    own = shlex.quote(str(folder))
    options = f"-o HostName={host.address} -o Port={host.port} -o ConnectTimeout=5"
    return (
        f'cd {own} && sed "s|@FOLDER@|$PWD|" ssh_config.in > ssh_config.own && '
        f"exec ssh -F ssh_config.own -o ControlPath=none {options} {host.name} "
        f"{shlex.quote(command)}"
    )


def marked_arguments(folder: Path, host: Host, command: str) -> list[str]:
    """Return the arguments for `run`, which then removes what the host's login shell prints."""
    return arguments(folder, host, command if host.local else PRINT_MARKER + command)


def outer_environment() -> dict[str, str]:
    """Return this process's environment, without variables that change how mpirun starts ranks.

    In a job of Slurm, mpirun would start its daemons as steps of the job.
    """
    left_out = ("ACCEPT_", "OMPI_", "PMI_", "PMIX_", "SLURM_", "SLURMD_")
    return {
        name: value
        for name, value in os.environ.items()
        if name == "SLURM_CONF" or not name.startswith(left_out)
    }


def environment(folder: Path, attempt: str) -> dict[str, str]:
    """Return the environment for commands on the coordinator's own host."""
    return {**outer_environment(), "ACCEPT_DIR": str(folder), "ACCEPT_RUN": attempt}


async def run(
    argv: list[str],
    *,
    env: Mapping[str, str] | None = None,
    timeout: float,
    more: float = 0.0,
    heard: Callable[[], None] = lambda: None,
    stdin: Path | None = None,
    take: Callable[[bytes], None] | None = None,
) -> Answer:
    """Run `argv`, keep at most 1 MiB of its output, and kill it after `timeout` seconds.

    The file `stdin` is its standard input. A command that has printed something by then gets `more`
    seconds; `heard` is called at its first output. The output of a killed command is kept. `take`
    gets the output in blocks instead, and what it raises ends the command. See `marked_arguments`
    for greetings.
    """
    with (stdin or Path(os.devnull)).open("rb") as file:
        process = await Session.start(
            argv, stdin=file.fileno(), stderr=asyncio.subprocess.PIPE, env=env
        )
    assert process.stdout is not None
    assert process.stderr is not None
    out, err = bytearray(), bytearray()
    marker = MARKER if argv[-1].startswith(PRINT_MARKER) else b""
    work = [
        asyncio.create_task(_read(process.stdout, take or _kept_in(out), heard, marker)),
        asyncio.create_task(_read(process.stderr, _kept_in(err))),
        asyncio.create_task(process.wait()),
    ]
    try:
        _, pending = await asyncio.wait(work, timeout=timeout, return_when=asyncio.FIRST_EXCEPTION)
        if pending and out and more:
            timeout += more
            _, pending = await asyncio.wait(work, timeout=more)
        if pending:
            process.kill_session()
            # Do not wait for processes that cannot be killed.
            await asyncio.wait(work, timeout=1.0)
            err[:] = f"no answer within {timeout:.0f} s".encode()
        for task in work:
            if task.done():
                task.result()
    finally:
        for task in work:
            task.cancel()
        await process.close()
    status = None if pending else process.returncode
    return Answer(exit=status, out=bytes(out), err=bytes(err))


def _kept_in(kept: bytearray) -> Callable[[bytes], None]:
    """Return a function that keeps the first 1 MiB of its blocks."""
    return lambda block: kept.extend(block[: (1 << 20) - len(kept)])


async def _read(
    stream: asyncio.StreamReader,
    take: Callable[[bytes], None],
    heard: Callable[[], None] = lambda: None,
    marker: bytes = b"",
) -> None:
    """Pass the blocks of a stream to `take`, from its start or after `marker`, until its end."""
    is_first = True
    async for block in _blocks_of(stream, marker):
        if is_first:
            heard()
        is_first = False
        take(block)


async def _blocks_of(stream: asyncio.StreamReader, marker: bytes) -> AsyncIterator[bytes]:
    """Yield what a stream has until its end, or what follows `marker`."""
    before = b""
    while block := await stream.read(1 << 16):
        if marker:
            before, found, block = (before + block).partition(marker)
            if not found:
                # The marker may be split between two blocks.
                before = before[-len(marker) :]
                continue
            marker = b""
        if block:
            yield block


def has_connection(folder: Path, host: Host) -> bool:
    """Return True if the shared connection to `host` is open.

    ssh closes it when the host has not answered for 15 s.
    """
    return host.local or (folder / "c" / f"{host.address}-{host.port}").exists()
