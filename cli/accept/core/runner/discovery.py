"""Find the hosts of a run in parallel, within a deadline; report why the others are missing."""

from __future__ import annotations

import asyncio
import contextlib
import re
import shlex
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from accept.core.causes import Cause
from accept.core.checks.inventory import CLOCK_OFFSET, INVENTORY_CHECK
from accept.core.facts import HOSTNAMES, ORDER, PLACE, POSITION
from accept.core.judge.consistency import usual_number
from accept.core.limits import is_host_name
from accept.core.records import Fact, Metric, Problem
from accept.core.runner.log import say
from accept.core.runner.registration import Registrations
from accept.core.runner.ssh import Host, environment, marked_arguments, run
from accept.core.text import duration, folded, plain

#: Maximum number of ssh handshakes at the same time, because they load the coordinator's host.
_HANDSHAKES = 32
_CONNECT_SECONDS = 3.0
_PROBE_SECONDS = 20.0
#: Extra time for a host that has printed something: without persistence mode, nvidia-smi first
#: starts all GPUs.
_SMI_SECONDS = 90.0
#: The run starts before the deadline if at most this share of the hosts, or one host, is missing
#: and no other host has answered for this time. A run of fewer hosts waits for all of them, because
#: without one too little of the run is left.
_QUORUM_MISSING, _QUORUM_SECONDS, _QUORUM_HOSTS = 0.01, 60.0, 16
#: Interval at which new registrations are read.
_LOOK_SECONDS = 0.1
#: Seconds between two lines of the log about missing hosts.
_REPORT_SECONDS = 60.0
#: Hostnames that ssh and mpirun accept. They contain no spaces, which separate words in `group`.
HOSTNAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,252}")
#: Number of GPUs up to 999.
_GPU_COUNT = re.compile(r"\d{1,3}", re.ASCII)

#: Folder in which GKE mounts nvidia-smi, as in launchers/env.sh.
_DRIVER_FOLDER = "/usr/local/nvidia/bin"

#: Text in the errors of ssh -> cause; the first match counts.
_SSH_ERRORS = (
    ("host identification has changed", Cause.HOST_KEY_MISMATCH),
    ("host key verification failed", Cause.HOST_KEY_UNKNOWN),
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
    #: Addresses or names, tried in this order. A pod announces its addresses when it registers.
    addresses: tuple[str, ...] = ()
    port: int = 22
    #: True if the coordinator runs on it, so that no ssh is needed.
    local: bool = False
    #: Its place in the network if the back end knows it: `row/rack`.
    place: str = ""
    #: The reason why the back end could not prepare the host; None if it did.
    problem: Problem | None = None


@dataclass(frozen=True, kw_only=True)
class Found:
    """The hosts that take part, in rank order, with the problems, facts and metrics found."""

    hosts: tuple[Host, ...]
    problems: tuple[Problem, ...]
    facts: tuple[Fact, ...]
    metrics: tuple[Metric, ...]
    #: Reasons for refused registrations of pods.
    refused: tuple[str, ...] = ()


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


@dataclass(kw_only=True)
class _Search:
    """The search for all hosts: its input, and whether it still waits for hosts."""

    folder: Path
    attempt: str
    topology: str
    handshakes: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(_HANDSHAKES))
    #: Registrations of pods; None if the back end knows all addresses.
    registrations: Registrations | None = None
    #: Set when the run starts with the hosts that were found.
    over: asyncio.Event = field(default_factory=asyncio.Event)
    last_arrival: float = field(default_factory=time.monotonic)
    #: By index; set when the pod registers, or the search is over.
    _arrivals: dict[int, asyncio.Event] = field(default_factory=dict)

    def look(self) -> None:
        """Read new registrations."""
        if self.registrations is not None and self.registrations.read():
            self.last_arrival = time.monotonic()
            for index in self.registrations.by_index.keys() & self._arrivals.keys():
                self._arrivals.pop(index).set()

    def end(self) -> None:
        """End the search, so that the run starts with the hosts that were found."""
        self.over.set()
        for arrival in self._arrivals.values():
            arrival.set()

    async def arrival(self, index: int) -> None:
        """Wait until a pod registers, or the search is over."""
        if not self.over.is_set():
            await self._arrivals.setdefault(index, asyncio.Event()).wait()

    async def pause(self, seconds: float) -> None:
        """Wait for a time, or until the search is over."""
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self.over.wait(), seconds)

    def is_outdated(self, index: int, result: _Reachable | Problem) -> bool:
        """Return True if a pod registered again, with another address, after it was found."""
        if self.registrations is None or isinstance(result, Problem):
            return False
        registration = self.registrations.by_index.get(index)
        return registration is not None and result.host.address not in registration.addresses


async def discover(
    candidates: Sequence[Candidate],
    *,
    folder: Path,
    attempt: str,
    ranks: int | None,
    topology: str,
    seconds: float,
    positions: Callable[[], Mapping[str, str]] = dict,
    register: bool = False,
    require_all: bool = False,
) -> Found:
    """Find the hosts within `seconds`, and report the last failure of each that never answered.

    If nearly all of many hosts answer, do not wait until the deadline for the rest, unless
    `require_all`.
    If `register`, hosts without an address announce themselves. `positions` returns the places of
    hosts in the network by name. They count if `topology` reports no more of them. It is called
    last, because new nodes may join the cluster until then.

    If `ranks` is None, the number of ranks per host is the GPU count of most hosts. Hosts without
    GPUs are not counted for that, because a run on GPUs continues without them.
    """
    search = _Search(folder=folder, attempt=attempt, topology=topology)
    if register:
        first = int(any(candidate.local for candidate in candidates))
        indexes = range(first, len(candidates))
        search.registrations = Registrations(folder, attempt=attempt, indexes=indexes)
    tasks = [
        asyncio.create_task(_find_host(index, candidate, search))
        for index, candidate in enumerate(candidates)
    ]
    try:
        names = {task: candidate.name for task, candidate in zip(tasks, candidates, strict=True)}
        await _wait_for_hosts(search, names, seconds, require_all=require_all)
        results = await asyncio.gather(*tasks)
        for index, candidate in enumerate(candidates):
            if search.is_outdated(index, results[index]):
                results[index] = await _find_host(index, candidate, search)
    finally:
        for task in tasks:
            task.cancel()
    reachable, problems = _split(candidates, results)
    slots = ranks or usual_number(r.gpus for r in reachable if r.gpus)
    known = await asyncio.to_thread(positions)
    placed = [replace(r, place=known.get(r.host.name, "")) for r in reachable]
    if sum(bool(r.place) for r in placed) >= sum(bool(r.place) for r in reachable):
        reachable = placed
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
    return Found(
        hosts=hosts,
        problems=problems,
        facts=tuple(facts),
        metrics=metrics,
        refused=tuple(search.registrations.refused) if search.registrations else (),
    )


async def _wait_for_hosts(
    search: _Search,
    tasks: Mapping[asyncio.Task[_Reachable | Problem], str],
    seconds: float,
    *,
    require_all: bool,
) -> None:
    """Wait until all hosts are found, the time is over, or a quorum of them has been waiting.

    `tasks` has the name of each host. Report every minute which hosts are missing.
    """
    began = reported = time.monotonic()
    until = began + seconds
    has_quorum = len(tasks) >= _QUORUM_HOSTS and not require_all
    most_missing = max(1, int(len(tasks) * _QUORUM_MISSING))
    pending, missing = set(tasks), len(tasks)
    while pending:
        search.look()
        done, pending = await asyncio.wait(
            pending, timeout=_LOOK_SECONDS, return_when=asyncio.FIRST_COMPLETED
        )
        found = sum(isinstance(task.result(), _Reachable) for task in done)
        missing -= found
        now = time.monotonic()
        if found:
            search.last_arrival = now
        if pending and now - reported >= _REPORT_SECONDS:
            reported = now
            absent = [
                name
                for task, name in tasks.items()
                if task in pending or isinstance(task.result(), Problem)
            ]
            say(
                f"hosts: {len(tasks) - len(absent)} of {len(tasks)} after "
                f"{duration(now - began)}; missing: {plain(folded(absent), 400)}"
            )
        is_quiet = now - search.last_arrival >= _QUORUM_SECONDS
        if now >= until or (has_quorum and is_quiet and missing <= most_missing):
            break
    search.end()


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
                    cause=Cause.DUPLICATE_HOST, message=message, check="hosts", host=candidate.name
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


async def _find_host(index: int, candidate: Candidate, search: _Search) -> _Reachable | Problem:
    """Try all addresses in turn, each at least once, until one answers or the search is over."""
    if candidate.problem is not None:
        return candidate.problem
    registers = search.registrations is not None and not candidate.addresses
    if not candidate.local and not candidate.addresses and not registers:
        message = f"{candidate.name} has no address"
        return Problem(
            cause=Cause.UNREACHABLE_DNS, message=message, check="hosts", host=candidate.name
        )
    pause, has_tried = 0.25, False
    failure: _Failure | None = None
    while failure is None or not search.over.is_set():
        addresses = _addresses_of(index, candidate, search)
        if isinstance(addresses, _Failure):
            failure = addresses
            await search.arrival(index)
            continue
        for address in addresses:
            # A knock costs the host half as much as a login, so only retries start with one.
            find_ip = _knock if has_tried else _resolve
            ip = "127.0.0.1" if candidate.local else await find_ip(address, candidate.port)
            if isinstance(ip, _Failure):
                has_tried, failure = True, ip
                continue
            host = Host(
                name=candidate.name,
                mpi_name=candidate.name,
                address=ip,
                port=candidate.port,
                slots=1,
                local=candidate.local,
            )
            await search.handshakes.acquire()
            with contextlib.ExitStack() as held:
                held.callback(search.handshakes.release)
                # The first output ends the handshake: hosts that start their GPUs block no others.
                result = await _probe(host, search, heard=held.close)
            if isinstance(result, _Reachable):
                return replace(result, place=result.place or candidate.place)
            if not has_tried and not candidate.local and result.cause.row.unreachable:
                # A knock shows the reason more precisely than the messages of ssh.
                knocked = await _knock(ip, candidate.port)
                result = result if isinstance(knocked, str) else knocked
            has_tried, failure = True, result
        await search.pause(pause)
        pause = min(2.0, pause * 2)
    message = f"{candidate.name}: {failure.reason}"
    return Problem(cause=failure.cause, message=message, check="hosts", host=candidate.name)


def _addresses_of(index: int, candidate: Candidate, search: _Search) -> tuple[str, ...] | _Failure:
    """Return the addresses to try: those of a pod are in its registration."""
    if candidate.local:
        return ("localhost",)
    if candidate.addresses or search.registrations is None:
        return candidate.addresses
    registration = search.registrations.by_index.get(index)
    if registration is not None:
        return registration.addresses
    refused = search.registrations.refused_by_index.get(index)
    return _Failure(
        Cause.NOT_REGISTERED,
        refused or "never registered: mostly capacity or scheduling",
    )


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

    This costs less than a login, which is only worth another try if an sshd listens.
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
    host: Host, search: _Search, *, heard: Callable[[], None]
) -> _Reachable | _Failure:
    """Log in, check that it is the requested host, and query what starting ranks requires.

    `heard` is called at the first output.
    """
    topology, folder = search.topology, search.folder
    print_place = f'echo "$({{ {topology} ; }} 2>/dev/null | head -n 1)"' if topology else "echo"
    # Start as few processes as possible: hundreds of hosts may share one machine.
    command = (
        f"cd {shlex.quote(str(folder))} && PATH=$PATH:{_DRIVER_FOLDER} && date +%s.%N && "
        "read -r name < host && "
        "{ { read -r asked < pod; } 2>/dev/null || asked=$name; } && "
        "{ { read -r own < /proc/sys/kernel/hostname; } 2>/dev/null || own=$(hostname); } && "
        f'echo "$asked" && echo "$own" && {print_place} && . ./gpus.sh && '
        "{ list_gpus programs | grep -c '^GPU'; true; } && echo \"$name\""
    )
    argv = marked_arguments(folder, host, command)
    if not host.local:
        # A host that does not answer must not delay the others.
        argv[1:1] = ["-o", f"ConnectTimeout={_CONNECT_SECONDS:.0f}"]
    began = time.time()
    env = environment(folder, search.attempt)
    answer = await run(argv, env=env, timeout=_PROBE_SECONDS, more=_SMI_SECONDS, heard=heard)
    ended = time.time()
    lines = answer.text.split("\n")
    if answer.exit != 0 or len(lines) < 6:
        return _Failure(ssh_cause(answer.errors), answer.reason)
    if lines[1] != host.name:
        return _Failure(
            Cause.UNREACHABLE_TIMEOUT,
            f"{host.address}:{host.port} is another host: {lines[1][:100]}",
        )
    name, clock = lines[5].strip(), _clock(lines[0])
    if not is_host_name(name) or clock is None or not _GPU_COUNT.fullmatch(lines[4]):
        return _Failure(Cause.LAUNCH_FAILED, f"unexpected answer {answer.text[:200]!r}")
    hostname = HOSTNAME.fullmatch(lines[2].strip())
    # The host read its clock between `began` and `ended`: times in that span show no offset.
    clock_offset = clock - ended if clock > ended else min(0.0, clock - began)
    return _Reachable(
        host=replace(host, name=name, mpi_name=hostname[0] if hostname else host.name),
        gpus=int(lines[4]),
        clock_offset=clock_offset,
        place=lines[3] if POSITION.fullmatch(lines[3]) else "",
    )


def _clock(text: str) -> float | None:
    """Return the seconds since 1970 that `date` printed; None for anything else."""
    return float(text) if re.fullmatch(r"\d{1,12}(\.\d{0,9})?", text, re.ASCII) else None
