"""Keep a program on each host that starts ranks without a new start of Python and torch.

The program is `launchers/programs/resident.py`, which also describes the messages. It runs as long
as its session of ssh, so it needs no port, and nobody else can give it orders.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import secrets
import shlex
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from accept.core.checks import checks_of
from accept.core.groups import Group
from accept.core.plan import GroupKind, Step
from accept.core.runner.ssh import Host, Session, arguments, environment
from accept.core.serde import Bounds, Invalid, from_json, read
from accept.core.text import parse_size, plain

_NAME = "the resident program"
#: Maximum time for the programs to import torch, and for one to open a port.
_START_SECONDS, _PORT_SECONDS = 180.0, 20.0
#: When half of the programs are ready, all must be within so many times their time, but at least
#: so many seconds: one host must not use up the time of the others.
_LATE, _LEAST_SECONDS = 3.0, 30.0
#: A program that ends is started again so often.
_MOST_STARTS = 2
#: Maximum time for a program to end after its input has ended.
_END_SECONDS = 2.0


@dataclass(frozen=True, kw_only=True)
class _Report:
    """A line of a program, which is as untrusted as all that hosts print."""

    job: int = -1
    text: str | None = None
    exit: Annotated[int, Bounds(min=0, max=255)] | None = None
    port: Annotated[int, Bounds(min=1, max=65535)] | None = None
    #: Its version.
    torch: str | None = None
    #: The reason why it cannot measure.
    unusable: str | None = None


class ResidentJob:
    """An execution by the programs of its hosts, which looks like the process of a step script."""

    def __init__(self, number: int, programs: Sequence[_Program]) -> None:
        self.number = number
        self.stdout = asyncio.StreamReader()
        self._programs = {program.host.name: program for program in programs}
        #: Exit status of the ranks of each host.
        self._exits: dict[str, int] = {}

    def print(self, host: str, text: bytes) -> None:
        """Take output of a host's ranks; what follows their end is ignored."""
        if host not in self._exits:
            self.stdout.feed_data(text)

    def ended(self, host: str, status: int) -> None:
        """Note that the ranks of a host have ended; after a failure, end those of the others."""
        self._exits.setdefault(host, status)
        left = [name for name in self._programs if name not in self._exits]
        if not left:
            self.stdout.feed_eof()
        elif status:
            for name in left:
                self._programs[name].order(kill=self.number)

    def refuse(self, host: str, reason: str) -> None:
        """End with a failed launch, because the program of a host cannot measure."""
        if host not in self._exits:
            record = {"problem": "launch-failed", "message": f"{host}: {plain(reason, 300)}"}
            line = json.dumps(record, separators=(",", ":"))
            self.stdout.feed_data(f"ACCEPT {line}\n".encode())
            for name in self._programs:
                self._programs[name].order(kill=self.number)
                self.ended(name, 1)

    async def wait(self) -> int:
        """Return the exit status, after the end of the output."""
        return next((status for status in self._exits.values() if status), 0)

    async def kill(self, lost: Collection[str], seconds: float) -> dict[Host, str]:
        """Kill the ranks, and return the hosts that do not confirm it, with the programs' marks."""
        waiting = {name: p for name, p in self._programs.items() if name not in self._exits}
        for program in waiting.values():
            program.order(kill=self.number)
        until = asyncio.get_running_loop().time() + seconds
        while asyncio.get_running_loop().time() < until and any(
            name not in self._exits and name not in lost for name in waiting
        ):
            await asyncio.sleep(0.05)
        stuck = [p for name, p in waiting.items() if name not in self._exits and name not in lost]
        return {program.host: program.mark for program in stuck}

    async def close(self) -> None:
        """Forget the execution."""
        for program in self._programs.values():
            program.jobs.pop(self.number, None)


class _Program:
    """The program of one host."""

    def __init__(self, host: Host, mark: str) -> None:
        self.host, self.mark = host, mark
        self.jobs: dict[int, ResidentJob] = {}
        #: None: it ended before it opened the port.
        self.ports: dict[int, asyncio.Future[int | None]] = {}
        #: Set when it is ready or has ended.
        self.settled = asyncio.Event()
        self.is_ready = self.has_ended = False
        #: Why it cannot measure, by itself; and the last line that was not a message.
        self.unusable = self.last_line = ""
        self._session: Session | None = None
        self._reading: asyncio.Task[None] | None = None

    async def start(self, folder: Path, attempt: str, profile: str, peers: str) -> None:
        """Start it, and read what it prints."""
        variables = {"ACCEPT_EXEC": self.mark, "ACCEPT_PROFILE": profile, "ACCEPT_PEERS": peers}
        assigned = " ".join(f"{name}={shlex.quote(value)}" for name, value in variables.items())
        script = shlex.quote(str(folder / "resident.sh"))
        self._session = await Session.start(
            arguments(folder, self.host, f"export {assigned}; exec /bin/sh {script}"),
            stdin=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            env=environment(folder, attempt),
        )
        self._reading = asyncio.create_task(self._read(self._session))

    @property
    def can_measure(self) -> bool:
        """Return True if it is ready and has not ended."""
        return self.is_ready and not self.has_ended

    async def _read(self, session: Session) -> None:
        assert session.stdout is not None
        while True:
            line = b""
            try:
                line = await session.stdout.readline()
                if not line:
                    break
                self._take(read(_Report, from_json(line)))
            except (Invalid, ValueError, RecursionError):
                # A login shell may greet, and libraries warn.
                self.last_line = plain(line.decode(errors="replace").strip(), 300) or self.last_line
        self.has_ended = True
        self.settled.set()
        for port in self.ports.values():
            if not port.done():
                port.set_result(None)
        for job in [*self.jobs.values()]:
            job.refuse(self.host.name, f"{_NAME} has ended: {self.last_line}")

    def _take(self, report: _Report) -> None:
        """Pass a message on."""
        if report.torch is not None or report.unusable is not None:
            self.is_ready, self.unusable = report.unusable is None, report.unusable or ""
            self.settled.set()
        port = self.ports.get(report.job)
        if report.port is not None and port and not port.done():
            port.set_result(report.port)
        if job := self.jobs.get(report.job):
            if report.text is not None:
                job.print(self.host.name, report.text.encode("latin-1", "replace"))
            if report.exit is not None:
                job.ended(self.host.name, report.exit)

    def order(self, **words: object) -> None:
        """Send an order."""
        if self._session is not None and not self.has_ended:
            assert self._session.stdin is not None
            with contextlib.suppress(OSError):
                self._session.stdin.write(f"{json.dumps(words)}\n".encode())

    async def listen(self, job: int, address: str) -> int | None:
        """Return the port that it opens for a job; None if it opens none in time."""
        port = self.ports[job] = asyncio.get_running_loop().create_future()
        try:
            self.order(listen=job, address=address)
            return await asyncio.wait_for(port, _PORT_SECONDS)
        except asyncio.TimeoutError:
            return None
        finally:
            del self.ports[job]

    async def close(self) -> None:
        """End it."""
        if self._session is not None:
            assert self._session.stdin is not None
            self._session.stdin.close()
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._session.wait(), _END_SECONDS)
            await self._session.close()
        if self._reading is not None:
            self._reading.cancel()
            await asyncio.wait([self._reading])
        self.has_ended = True
        self.settled.set()


class Residents:
    """The programs of all hosts, with the NCCL profile of the step that they last measured."""

    def __init__(self, folder: Path, attempt: str) -> None:
        self._folder, self._attempt = folder, attempt
        self._profile = ""
        self._programs: dict[str, _Program] = {}
        self._starts: dict[str, int] = {}
        self._jobs = self._marks = 0
        #: Why they cannot be used in this run; empty: they can.
        self.refusal = ""

    def serves(self, step: Step) -> bool:
        """Return True if they can measure a step: pairs of hosts, or each host alone."""
        return (
            not self.refusal
            and (step.groups.of_pairs or step.groups is GroupKind.EACH)
            and step.tool is None
            and step.params.get("dtype", "float") == "float"
            and all(check.program for check in checks_of(step))
        )

    async def start(self, profile: str, hosts: Sequence[Host]) -> None:
        """Start the programs of hosts that have none with this NCCL profile."""
        if profile != self._profile:
            await self.close()
            self._profile = profile
        for host in hosts:
            program = self._programs.get(host.name)
            starts = self._starts.get(host.name, 0)
            if starts < _MOST_STARTS and (program is None or program.has_ended):
                # Each start has its own mark, so that the end of an earlier one cannot hurt it.
                self._marks += 1
                program = _Program(host, f"{self._attempt}/resident-{self._marks}")
                self._programs[host.name] = program
                self._starts[host.name] = starts + 1
                peers = [other.address for other in hosts if other.name != host.name][:2]
                await program.start(self._folder, self._attempt, profile, " ".join(peers))

    async def prepare(self, profile: str, hosts: Sequence[Host], seconds: float) -> None:
        """Start the programs of hosts that have none, and wait until they are ready.

        Sets `refusal` if one of them reports that it cannot measure.
        """
        await self.start(profile, hosts)
        programs = [p for host in hosts if (p := self._programs.get(host.name))]
        await _wait_for(programs, min(seconds, _START_SECONDS))
        for program in programs:
            if not program.settled.is_set():
                program.last_line = "it did not start in time"
                await program.close()
        self.refusal = self.refusal or next((p.unusable for p in programs if p.unusable), "")

    async def execute(
        self, step: Step, mark: str, group: Group, hosts: Sequence[Host], inject: str
    ) -> ResidentJob:
        """Start an execution on hosts that are prepared."""
        programs = [self._programs[host.name] for host in hosts]
        self._jobs += 1
        job = ResidentJob(self._jobs, programs)
        address = hosts[0].address if len(hosts) > 1 else "127.0.0.1"
        port = None
        if all(program.can_measure for program in programs):
            port = await programs[0].listen(job.number, address)
        for program in programs:
            if not program.can_measure:
                job.refuse(program.host.name, f"{_NAME} does not run: {program.last_line}")
                return job
        if port is None:
            job.refuse(hosts[0].name, f"{_NAME} opened no port")
            return job
        for program in programs:
            # Only now, because nobody reads what it prints before the start.
            program.jobs[job.number] = job
        per_host = len(group.local_ranks) or hosts[0].slots
        local_ranks = group.local_ranks or range(per_host)
        secret = secrets.token_hex(16)
        for index, program in enumerate(programs):
            program.order(
                run=job.number,
                mark=mark,
                program=checks_of(step)[0].program,
                arguments=_arguments(step),
                ranks={local: index * per_host + n for n, local in enumerate(local_ranks)},
                size=per_host * len(programs),
                address=address,
                port=port,
                secret=secret,
                inject=inject,
            )
        return job

    async def close(self) -> None:
        """End all programs."""
        programs, self._programs, self._starts = [*self._programs.values()], {}, {}
        await asyncio.gather(*(program.close() for program in programs))


async def _wait_for(programs: Collection[_Program], seconds: float) -> None:
    """Wait until programs are ready or have ended; not long for a few that are late."""
    clock = asyncio.get_running_loop().time
    begun = clock()
    until = begun + seconds
    pending = {asyncio.create_task(program.settled.wait()) for program in programs}
    try:
        while pending and (left := until - clock()) > 0:
            _, pending = await asyncio.wait(
                pending, timeout=left, return_when=asyncio.FIRST_COMPLETED
            )
            if 2 * len(pending) <= len(programs):
                until = min(until, begun + max(_LEAST_SECONDS, _LATE * (clock() - begun)))
    finally:
        for wait in pending:
            wait.cancel()


def _arguments(step: Step) -> list[str]:
    """Return the options of the step's program, as its script has them."""
    checks = checks_of(step)
    if checks[0].launch == "devices":
        most = parse_size(str(step.params["most"]))
        words = ["--checks", ",".join(step.checks), "--most", str(most)]
        names = ("seconds", "alone", "types", "size", "share")
    else:
        words = ["--collectives", ",".join(check.collective for check in checks)]
        words += ["--jitter"] if step.params.get("jitter") else []
        names = ("min", "max", "factor", "iters", "warmup")
    return [*words, *(word for name in names for word in (f"--{name}", str(step.params[name])))]
