"""Which hosts there are: found in parallel, within a deadline, each absence with its reason."""

from __future__ import annotations

import asyncio
import contextlib
import re
import shlex
import socket
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from accept.core.model import Fact, Metric, Problem
from accept.core.runner.ssh import Answer, Host, environment, marked_arguments, run

#: Handshakes under way at once: they cost processor time on the coordinator's host.
_HANDSHAKES = 32
_CONNECT_SECONDS = 3.0
_PROBE_SECONDS = 20.0
#: More for a host that has said something: nvidia-smi starts the GPUs where nothing keeps them up.
_SMI_SECONDS = 90.0
_NAME = re.compile(r"[\w.:-]{1,253}")
#: What ssh and mpirun take as a host's name, and a line of words keeps as one.
_OWN_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,252}")
#: No machine has more GPUs than this shows.
_GPUS = re.compile(r"\d{0,3}", re.ASCII)
_TOPOLOGY = re.compile(r"[\w./:@+=-]{1,200}\Z")

#: Where GKE mounts nvidia-smi: env.sh.
_DRIVER = "/usr/local/nvidia/bin"

#: What ssh says -> cause. The first that is found counts.
_SSH_ERRORS = (
    ("host key verification failed", "host-key-mismatch"),
    ("host identification has changed", "host-key-mismatch"),
    ("permission denied", "key-refused"),
    ("could not resolve hostname", "unreachable-dns"),
    ("connection refused", "unreachable-refused"),
)


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """A host that was asked for: where it may be reached, or why it is known not to be there.

    Reports call a host by what its file `host` says: `name`, unless it has a file `pod` for that.
    """

    name: str
    #: Addresses or names, tried in this order.
    addresses: tuple[str, ...] = ()
    port: int = 22
    #: The coordinator runs on it, and no ssh is needed.
    local: bool = False
    #: Why the back end could not get the host at all, where it could not.
    problem: Problem | None = None


@dataclass(frozen=True, kw_only=True)
class Found:
    """The hosts that take part, in rank order, and what was learnt on the way."""

    hosts: tuple[Host, ...]
    problems: tuple[Problem, ...]
    facts: tuple[Fact, ...]
    metrics: tuple[Metric, ...]


@dataclass(frozen=True, kw_only=True)
class _Seen:
    host: Host
    gpus: int
    offset: float
    place: str


def ssh_cause(text: str) -> str:
    """The cause out of the closed list for what ssh printed."""
    lowered = text.lower()
    return next((cause for sign, cause in _SSH_ERRORS if sign in lowered), "unreachable-timeout")


async def discover(
    candidates: Sequence[Candidate],
    *,
    folder: Path,
    attempt: str,
    ranks: int | None,
    topology: str,
    seconds: float,
) -> Found:
    """Find the hosts within `seconds`; those that never answer are named with their last reason.

    If `ranks` is None, every host takes as many as the host with the fewest GPUs has. Hosts that
    show no GPU do not count: a run on GPUs goes on without them.
    """
    handshakes = asyncio.Semaphore(_HANDSHAKES)
    deadline = time.monotonic() + seconds
    tasks = [
        _find(c, folder=folder, attempt=attempt, topology=topology, until=deadline, gate=handshakes)
        for c in candidates
    ]
    answers = await asyncio.gather(*tasks)
    seen, problems = _apart(candidates, answers)
    slots = ranks or max(1, min((s.gpus for s in seen if s.gpus), default=1))
    order, how = _in_order(seen)
    others = [s.host.address for s in order if not s.host.local]
    repeated = len({s.host.mpi_name for s in order}) < len(order)
    hosts = tuple(
        Host(
            name=s.host.name,
            mpi_name=s.host.name if repeated else s.host.mpi_name,
            address=_own_address(others) if s.host.local else s.host.address,
            port=s.host.port,
            slots=slots,
            local=s.host.local,
        )
        for s in order
    )
    own = {s.host.name: s.host.mpi_name for s in order if s.host.mpi_name != s.host.name}
    facts = [
        Fact(name="order", value=how, check="hosts"),
        # What programs that know no run call their hosts.
        Fact(name="hostnames", value=own, check="hosts"),
    ]
    facts += [
        Fact(name="place", value=s.place, check="hosts", host=s.host.name) for s in order if s.place
    ]
    metrics = tuple(
        Metric(check="inventory", name="clock-offset", value=s.offset, unit="s", host=s.host.name)
        for s in order
    )
    return Found(hosts=hosts, problems=problems, facts=tuple(facts), metrics=metrics)


def _apart(
    candidates: Sequence[Candidate], answers: Sequence[_Seen | Problem]
) -> tuple[list[_Seen], tuple[Problem, ...]]:
    """Hosts and problems; of several pods on one node the first counts, the others are none."""
    seen: dict[str, _Seen] = {}
    problems = []
    for candidate, answer in zip(candidates, answers, strict=True):
        if isinstance(answer, Problem):
            problems.append(answer)
        elif answer.host.name in seen:
            message = f"{candidate.name} is on {answer.host.name} too, which was counted already"
            problems.append(
                Problem(cause="launch-failed", message=message, check="hosts", host=candidate.name)
            )
        else:
            seen[answer.host.name] = answer
    return list(seen.values()), tuple(problems)


def _own_address(others: Sequence[str]) -> str:
    """The address by which the others reach this host: that of its route to them. Sends nothing."""
    for other in others[:1]:
        family = socket.AF_INET6 if ":" in other else socket.AF_INET
        with socket.socket(family, socket.SOCK_DGRAM) as probe, contextlib.suppress(OSError):
            probe.connect((other, 9))
            return str(probe.getsockname()[0])
    return "127.0.0.1"


def _in_order(seen: Sequence[_Seen]) -> tuple[list[_Seen], str]:
    """By topology where every host told its place, else as asked for; the coordinator's leads."""
    if seen and all(s.place for s in seen):
        ordered = sorted(seen, key=lambda s: s.place)
        how = "topology"
    else:
        ordered, how = list(seen), "as given"
    return sorted(ordered, key=lambda s: not s.host.local), how


async def _find(
    candidate: Candidate,
    *,
    folder: Path,
    attempt: str,
    topology: str,
    until: float,
    gate: asyncio.Semaphore,
) -> _Seen | Problem:
    if candidate.problem is not None:
        return candidate.problem
    cause, reason = "unreachable-timeout", "never asked: no time was left"
    pause, failed = 0.25, False
    while not failed or time.monotonic() < until:
        for address in ("localhost",) if candidate.local else candidate.addresses:
            # A knock costs the other side as much as half a login: only who failed is asked first.
            reach = _knock if failed else _resolve
            reached = "127.0.0.1" if candidate.local else await reach(address, candidate.port)
            if isinstance(reached, str):
                host = Host(
                    name=candidate.name,
                    mpi_name=candidate.name,
                    address=reached,
                    port=candidate.port,
                    slots=1,
                    local=candidate.local,
                )
                await gate.acquire()
                with contextlib.ExitStack() as held:
                    held.callback(gate.release)
                    # Who has said something has shaken hands; starting its GPUs keeps nobody.
                    result = await _probe(
                        host, folder=folder, attempt=attempt, topology=topology, heard=held.close
                    )
                if isinstance(result, _Seen):
                    return result
                if not failed and not candidate.local and result[0].startswith("unreachable"):
                    # ssh tells less well than a knock why it came to nothing.
                    knocked = await _knock(reached, candidate.port)
                    result = result if isinstance(knocked, str) else knocked
                reached = result
            failed = True
            cause, reason = reached
        await asyncio.sleep(min(pause, max(0.0, until - time.monotonic())))
        pause = min(2.0, pause * 2)
    message = f"{candidate.name}: {reason}"
    return Problem(cause=cause, message=message, check="hosts", host=candidate.name)


async def _addresses(address: str, port: int) -> list[str] | tuple[str, str]:
    """The numeric addresses of a name, at least one, or cause and reason."""
    loop = asyncio.get_running_loop()
    try:
        found = await loop.getaddrinfo(address, port, type=socket.SOCK_STREAM)
    except OSError as error:
        return "unreachable-dns", f"{address} does not resolve: {error.strerror or error}"
    numeric = [str(target[0]) for *_, target in found[:4]]
    return numeric or ("unreachable-dns", f"{address} has no address")


async def _resolve(address: str, port: int) -> str | tuple[str, str]:
    """The first numeric address of a name, or cause and reason."""
    found = await _addresses(address, port)
    return found[0] if isinstance(found, list) else found


async def _knock(address: str, port: int) -> str | tuple[str, str]:
    """The numeric address at which an sshd greets, or cause and reason.

    Cheap, so that ssh itself is only tried again where it can work.
    """
    found = await _addresses(address, port)
    if isinstance(found, tuple):
        return found
    failure = "unreachable-dns", f"{address} has no address"
    for ip in found:
        try:
            reader, writer = await asyncio.wait_for(
                asyncio.open_connection(ip, port), _CONNECT_SECONDS
            )
        except asyncio.TimeoutError:
            failure = "unreachable-timeout", f"{ip} port {port} does not answer"
            continue
        except OSError as error:
            refused = isinstance(error, ConnectionRefusedError)
            cause = "unreachable-refused" if refused else "unreachable-timeout"
            failure = cause, f"{ip} port {port}: {error.strerror or error}"
            continue
        try:
            banner = await asyncio.wait_for(reader.readline(), _CONNECT_SECONDS)
        except (asyncio.TimeoutError, OSError, ValueError):
            banner = b""
        finally:
            writer.close()
        if banner.startswith(b"SSH-"):
            return ip
        failure = "unreachable-refused", f"{ip} port {port} is no sshd"
    return failure


async def _probe(
    host: Host, *, folder: Path, attempt: str, topology: str, heard: Callable[[], None]
) -> _Seen | tuple[str, str]:
    """Log in, make sure that it is the host that was meant, and ask what starting ranks needs."""
    place = f'echo "$({{ {topology} ; }} 2>/dev/null | head -n 1)"' if topology else "echo"
    # As few processes as can be: with hundreds of hosts on one machine's ssh each one counts.
    command = (
        f"cd {shlex.quote(str(folder))} && PATH=$PATH:{_DRIVER} && date +%s.%N && "
        "read -r name < host && "
        "{ { read -r asked < pod; } 2>/dev/null || asked=$name; } && "
        "{ { read -r own < /proc/sys/kernel/hostname; } 2>/dev/null || own=$(hostname); } && "
        f'echo "$asked" && echo "$own" && {place} && if command -v nvidia-smi >/dev/null; '
        "then nvidia-smi -L 2>/dev/null | grep -c '^GPU'; true; else echo 0; fi && echo \"$name\""
    )
    argv = marked_arguments(folder, host, command)
    if not host.local:
        # Who does not answer must not keep others from being asked.
        argv[1:1] = ["-o", f"ConnectTimeout={_CONNECT_SECONDS:.0f}"]
    began = time.time()
    env = environment(folder, attempt)
    answer = await run(argv, env=env, timeout=_PROBE_SECONDS, more=_SMI_SECONDS, heard=heard)
    ended = time.time()
    lines = answer.out.split("\n")
    if answer.exit != 0 or len(lines) < 6:
        return ssh_cause(answer.err), _reason(answer)
    if lines[1] != host.name:
        return (
            "unreachable-timeout",
            f"{host.address}:{host.port} is {lines[1][:100]}, another host",
        )
    name, clock = _NAME.fullmatch(lines[5].strip()), _clock(lines[0])
    if name is None or clock is None or not _GPUS.fullmatch(lines[4]):
        return "launch-failed", f"unexpected answer {answer.out[:200]!r}"
    own = _OWN_NAME.fullmatch(lines[2].strip())
    # The clock was read somewhere between the two: inside that span there is no offset to see.
    offset = clock - ended if clock > ended else min(0.0, clock - began)
    return _Seen(
        host=Host(
            name=name[0],
            mpi_name=own[0] if own else host.name,
            address=host.address,
            port=host.port,
            slots=1,
            local=host.local,
        ),
        gpus=int(lines[4] or 0),
        offset=offset,
        place=lines[3] if _TOPOLOGY.match(lines[3]) else "",
    )


def _clock(text: str) -> float | None:
    """Seconds since 1970, as `date` prints them; None for anything else."""
    return float(text) if re.fullmatch(r"\d{1,12}(\.\d{0,9})?", text, re.ASCII) else None


def _reason(answer: Answer) -> str:
    lines = [line.strip() for line in answer.err.splitlines() if line.strip()]
    return (lines[-1] if lines else f"ssh ended with {answer.exit}")[:300]
