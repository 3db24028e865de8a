"""Find the hosts of a run in parallel, within a deadline; report why the others are missing."""

from __future__ import annotations

import asyncio
import contextlib
import re
import shlex
import socket
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from accept.core.causes import Cause
from accept.core.checks.inventory import CLOCK_OFFSET, INVENTORY_CHECK
from accept.core.facts import HOSTNAMES, ORDER, PLACE
from accept.core.model import Fact, Metric, Problem
from accept.core.runner.ssh import Answer, Host, environment, marked_arguments, run

#: Maximum number of ssh handshakes at the same time: they load the coordinator's host.
_HANDSHAKES = 32
_CONNECT_SECONDS = 3.0
_PROBE_SECONDS = 20.0
#: Extra time for a host that has printed something: without persistence mode, nvidia-smi first
#: starts all GPUs.
_SMI_SECONDS = 90.0
_NAME = re.compile(r"[\w.:-]{1,253}")
#: Hostnames that ssh and mpirun accept. They contain no spaces, which separate words in `group`.
_HOSTNAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,252}")
#: Up to 999; empty if nvidia-smi is missing.
_GPU_COUNT = re.compile(r"\d{0,3}", re.ASCII)
_TOPOLOGY = re.compile(r"[\w./:@+=-]{1,200}\Z")

#: Folder in which GKE mounts nvidia-smi, as in launchers/env.sh.
_DRIVER_FOLDER = "/usr/local/nvidia/bin"

#: Text in the errors of ssh -> cause; the first match counts.
_SSH_ERRORS = (
    ("host key verification failed", Cause.HOST_KEY_MISMATCH),
    ("host identification has changed", Cause.HOST_KEY_MISMATCH),
    ("permission denied", Cause.KEY_REFUSED),
    ("could not resolve hostname", Cause.UNREACHABLE_DNS),
    ("connection refused", Cause.UNREACHABLE_REFUSED),
)


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """A requested host: its addresses, or the reason why it is missing.

    On the host, the file `pod` contains `name` and the file `host` the name for reports. Without a
    file `pod`, both names are in `host`.
    """

    name: str
    #: Addresses or names, tried in this order.
    addresses: tuple[str, ...] = ()
    port: int = 22
    #: True if the coordinator runs on it, so that no ssh is needed.
    local: bool = False
    #: The reason why the back end could not prepare the host; None if it did.
    problem: Problem | None = None


@dataclass(frozen=True, kw_only=True)
class Found:
    """The hosts that take part, in rank order, with the problems, facts and metrics found."""

    hosts: tuple[Host, ...]
    problems: tuple[Problem, ...]
    facts: tuple[Fact, ...]
    metrics: tuple[Metric, ...]


@dataclass(frozen=True, kw_only=True)
class _Reachable:
    """A reachable host."""

    host: Host
    gpus: int
    #: Seconds by which its clock is ahead of the coordinator's.
    clock_offset: float
    #: Its place in the topology; empty if unknown.
    place: str


@dataclass(frozen=True)
class _Failure:
    """The cause of a failed attempt to reach a host, and the reason for people."""

    cause: Cause
    reason: str


def ssh_cause(text: str) -> Cause:
    """Return the cause that matches the errors `text` of ssh."""
    lowered = text.lower()
    causes = (cause for phrase, cause in _SSH_ERRORS if phrase in lowered)
    return next(causes, Cause.UNREACHABLE_TIMEOUT)


async def discover(
    candidates: Sequence[Candidate],
    *,
    folder: Path,
    attempt: str,
    ranks: int | None,
    topology: str,
    seconds: float,
) -> Found:
    """Find the hosts within `seconds`, and report the last failure of each that never answered.

    If `ranks` is None, the number of ranks per host is the lowest GPU count of all hosts. Hosts
    without GPUs are not counted for that, because a run on GPUs continues without them.
    """
    handshakes = asyncio.Semaphore(_HANDSHAKES)
    until = time.monotonic() + seconds
    tasks = [
        _find_host(
            candidate,
            folder=folder,
            attempt=attempt,
            topology=topology,
            until=until,
            handshakes=handshakes,
        )
        for candidate in candidates
    ]
    results = await asyncio.gather(*tasks)
    reachable, problems = _split(candidates, results)
    slots = ranks or max(1, min((r.gpus for r in reachable if r.gpus), default=1))
    ordered, order = _in_order(reachable)
    other_addresses = [r.host.address for r in ordered if not r.host.local]
    has_duplicates = len({r.host.mpi_name for r in ordered}) < len(ordered)
    hosts = tuple(
        replace(
            r.host,
            mpi_name=r.host.name if has_duplicates else r.host.mpi_name,
            address=_own_address(other_addresses) if r.host.local else r.host.address,
            slots=slots,
        )
        for r in ordered
    )
    hostnames = {r.host.name: r.host.mpi_name for r in ordered if r.host.mpi_name != r.host.name}
    facts = [
        Fact(name=ORDER.name, value=order, check="hosts"),
        # Programs such as nccl-tests report these names, not those of the run.
        Fact(name=HOSTNAMES.name, value=hostnames, check="hosts"),
    ]
    facts += [
        Fact(name=PLACE.name, value=r.place, check="hosts", host=r.host.name)
        for r in ordered
        if r.place
    ]
    metrics = tuple(
        Metric(
            check=INVENTORY_CHECK.name,
            name=CLOCK_OFFSET.name,
            value=r.clock_offset,
            unit=CLOCK_OFFSET.unit,
            host=r.host.name,
        )
        for r in ordered
    )
    return Found(hosts=hosts, problems=problems, facts=tuple(facts), metrics=metrics)


def _split(
    candidates: Sequence[Candidate], results: Sequence[_Reachable | Problem]
) -> tuple[list[_Reachable], tuple[Problem, ...]]:
    """Return reachable hosts and problems; of several pods on one node only the first counts."""
    reachable: dict[str, _Reachable] = {}
    problems = []
    for candidate, result in zip(candidates, results, strict=True):
        if isinstance(result, Problem):
            problems.append(result)
        elif result.host.name in reachable:
            message = f"{candidate.name} is on {result.host.name}, which already takes part"
            problems.append(
                Problem(
                    cause=Cause.LAUNCH_FAILED, message=message, check="hosts", host=candidate.name
                )
            )
        else:
            reachable[result.host.name] = result
    return list(reachable.values()), tuple(problems)


def _own_address(others: Sequence[str]) -> str:
    """Return the source address of this host's route to the others. Sends no packet."""
    for other in others[:1]:
        family = socket.AF_INET6 if ":" in other else socket.AF_INET
        with socket.socket(family, socket.SOCK_DGRAM) as probe, contextlib.suppress(OSError):
            probe.connect((other, 9))
            return str(probe.getsockname()[0])
    return "127.0.0.1"


def _in_order(reachable: Sequence[_Reachable]) -> tuple[list[_Reachable], str]:
    """Return the hosts in rank order, and the name of that order.

    The order is by topology if every host reported its place, else as requested. The coordinator's
    host is always first.
    """
    if reachable and all(r.place for r in reachable):
        ordered, order = sorted(reachable, key=lambda r: r.place), "topology"
    else:
        ordered, order = list(reachable), "as given"
    return sorted(ordered, key=lambda r: not r.host.local), order


async def _find_host(
    candidate: Candidate,
    *,
    folder: Path,
    attempt: str,
    topology: str,
    until: float,
    handshakes: asyncio.Semaphore,
) -> _Reachable | Problem:
    """Try all addresses in turn, each at least once, until one answers or the time is over."""
    if candidate.problem is not None:
        return candidate.problem
    if not candidate.local and not candidate.addresses:
        message = f"{candidate.name} has no address"
        return Problem(
            cause=Cause.UNREACHABLE_DNS, message=message, check="hosts", host=candidate.name
        )
    pause = 0.25
    failure: _Failure | None = None
    while failure is None or time.monotonic() < until:
        for address in ("localhost",) if candidate.local else candidate.addresses:
            # A knock costs the host half as much as a login, so only retries start with one.
            find_ip = _resolve if failure is None else _knock
            ip = "127.0.0.1" if candidate.local else await find_ip(address, candidate.port)
            if isinstance(ip, _Failure):
                failure = ip
                continue
            host = Host(
                name=candidate.name,
                mpi_name=candidate.name,
                address=ip,
                port=candidate.port,
                slots=1,
                local=candidate.local,
            )
            await handshakes.acquire()
            with contextlib.ExitStack() as held:
                held.callback(handshakes.release)
                # The first output ends the handshake: hosts that start their GPUs block no others.
                result = await _probe(
                    host, folder=folder, attempt=attempt, topology=topology, heard=held.close
                )
            if isinstance(result, _Reachable):
                return result
            if failure is None and not candidate.local and result.cause.row.unreachable:
                # A knock shows the reason more precisely than the messages of ssh.
                knocked = await _knock(ip, candidate.port)
                result = result if isinstance(knocked, str) else knocked
            failure = result
        await asyncio.sleep(min(pause, max(0.0, until - time.monotonic())))
        pause = min(2.0, pause * 2)
    message = f"{candidate.name}: {failure.reason}"
    return Problem(cause=failure.cause, message=message, check="hosts", host=candidate.name)


async def _addresses(address: str, port: int) -> list[str] | _Failure:
    """Return the numeric addresses of a name, at least one."""
    loop = asyncio.get_running_loop()
    try:
        targets = await loop.getaddrinfo(address, port, type=socket.SOCK_STREAM)
    except OSError as error:
        return _Failure(
            Cause.UNREACHABLE_DNS, f"{address} does not resolve: {error.strerror or error}"
        )
    numeric = [str(target[0]) for *_, target in targets[:4]]
    return numeric or _Failure(Cause.UNREACHABLE_DNS, f"{address} has no address")


async def _resolve(address: str, port: int) -> str | _Failure:
    """Return the first numeric address of a name."""
    addresses = await _addresses(address, port)
    return addresses[0] if isinstance(addresses, list) else addresses


async def _knock(address: str, port: int) -> str | _Failure:
    """Return the numeric address at which an sshd sends its banner.

    This costs less than a login, which is only worth trying again if an sshd is there.
    """
    addresses = await _addresses(address, port)
    if isinstance(addresses, _Failure):
        return addresses
    failure = _Failure(Cause.UNREACHABLE_DNS, f"{address} has no address")
    for ip in addresses:
        try:
            reader, writer = await asyncio.wait_for(
                asyncio.open_connection(ip, port), _CONNECT_SECONDS
            )
        except asyncio.TimeoutError:
            failure = _Failure(Cause.UNREACHABLE_TIMEOUT, f"{ip} port {port} does not answer")
            continue
        except OSError as error:
            refused = isinstance(error, ConnectionRefusedError)
            cause = Cause.UNREACHABLE_REFUSED if refused else Cause.UNREACHABLE_TIMEOUT
            failure = _Failure(cause, f"{ip} port {port}: {error.strerror or error}")
            continue
        try:
            banner = await asyncio.wait_for(reader.readline(), _CONNECT_SECONDS)
        except (asyncio.TimeoutError, OSError, ValueError):
            banner = b""
        finally:
            writer.close()
        if banner.startswith(b"SSH-"):
            return ip
        failure = _Failure(Cause.UNREACHABLE_REFUSED, f"{ip} port {port} is not an ssh server")
    return failure


async def _probe(
    host: Host, *, folder: Path, attempt: str, topology: str, heard: Callable[[], None]
) -> _Reachable | _Failure:
    """Log in, check that it is the requested host, and query what starting ranks requires.

    `heard` is called at the first output.
    """
    print_place = f'echo "$({{ {topology} ; }} 2>/dev/null | head -n 1)"' if topology else "echo"
    # Start as few processes as possible: hundreds of hosts may share one machine.
    command = (
        f"cd {shlex.quote(str(folder))} && PATH=$PATH:{_DRIVER_FOLDER} && date +%s.%N && "
        "read -r name < host && "
        "{ { read -r asked < pod; } 2>/dev/null || asked=$name; } && "
        "{ { read -r own < /proc/sys/kernel/hostname; } 2>/dev/null || own=$(hostname); } && "
        f'echo "$asked" && echo "$own" && {print_place} && if command -v nvidia-smi >/dev/null; '
        "then nvidia-smi -L 2>/dev/null | grep -c '^GPU'; true; else echo 0; fi && echo \"$name\""
    )
    argv = marked_arguments(folder, host, command)
    if not host.local:
        # A host that does not answer must not delay the others.
        argv[1:1] = ["-o", f"ConnectTimeout={_CONNECT_SECONDS:.0f}"]
    began = time.time()
    env = environment(folder, attempt)
    answer = await run(argv, env=env, timeout=_PROBE_SECONDS, more=_SMI_SECONDS, heard=heard)
    ended = time.time()
    lines = answer.out.split("\n")
    if answer.exit != 0 or len(lines) < 6:
        return _Failure(ssh_cause(answer.err), _reason(answer))
    if lines[1] != host.name:
        return _Failure(
            Cause.UNREACHABLE_TIMEOUT,
            f"{host.address}:{host.port} is another host: {lines[1][:100]}",
        )
    name, clock = _NAME.fullmatch(lines[5].strip()), _clock(lines[0])
    if name is None or clock is None or not _GPU_COUNT.fullmatch(lines[4]):
        return _Failure(Cause.LAUNCH_FAILED, f"unexpected answer {answer.out[:200]!r}")
    hostname = _HOSTNAME.fullmatch(lines[2].strip())
    # The host read its clock between `began` and `ended`: times in that span show no offset.
    clock_offset = clock - ended if clock > ended else min(0.0, clock - began)
    return _Reachable(
        host=replace(host, name=name[0], mpi_name=hostname[0] if hostname else host.name),
        gpus=int(lines[4] or 0),
        clock_offset=clock_offset,
        place=lines[3] if _TOPOLOGY.match(lines[3]) else "",
    )


def _clock(text: str) -> float | None:
    """Return the seconds since 1970 that `date` printed; None for anything else."""
    return float(text) if re.fullmatch(r"\d{1,12}(\.\d{0,9})?", text, re.ASCII) else None


def _reason(answer: Answer) -> str:
    """Return the last line of errors."""
    lines = [line.strip() for line in answer.err.splitlines() if line.strip()]
    return (lines[-1] if lines else f"ssh ended with exit status {answer.exit}")[:300]
