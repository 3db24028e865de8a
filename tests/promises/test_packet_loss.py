"""Lost packets of RDMA ports, from the files of the kernel to the verdict.

Each host has a folder like `/sys` with the counters of mlx5. A step adds the packets of its waves:
a lost packet is sent again by its sender, and its receiver gets the next ones out of sequence.
"""

from __future__ import annotations

import random
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from tests.factories import verdicts
from tests.factories.health_runs import health_of, run_of
from tests.factories.paths import PROGRAMS

from accept.core import record_protocol
from accept.core.errors import Exit
from accept.core.groups import waves
from accept.core.health_readings import Change, Device, DeviceKind, Reading, change, reading_of
from accept.core.judge.health_rules import WATCHED
from accept.core.plan import Step
from accept.core.verdict import State, Verdict

PORTS = ("mlx5_0/1", "mlx5_1/1")
BAD = ("h3", "mlx5_1/1")
READ = (
    "out_of_sequence", "packet_seq_err", "np_cnp_sent", "port_xmit_packets", "port_rcv_packets",
)  # fmt: skip

_Port = tuple[str, str]
#: (sender, receiver) -> the share of its packets that is lost.
Loss = Callable[[_Port, _Port], float]


def lossy(*, sent: float = 0.0, received: float = 0.0, bad: _Port = BAD) -> Loss:
    return lambda a, b: sent * (a == bad) + received * (b == bad)


def on_paths(*paths: tuple[str, str]) -> Loss:
    """Return the loss from the first port of one host to that of another."""
    ends = [tuple((host, PORTS[0]) for host in path) for path in paths]
    return lambda a, b: 0.01 * ((a, b) in ends)


def most(*losses: Loss) -> Loss:
    return lambda a, b: max(loss(a, b) for loss in losses)


@dataclass(kw_only=True)
class World:
    """The counters of all ports, and the steps that send packets between them."""

    loss: Loss = lambda a, b: 0.0
    count: int = 8
    ports: tuple[str, ...] = PORTS
    #: Packets out of sequence for each packet that took another path.
    reordered: Loss = lambda a, b: 0.0
    #: Packets that each port sends in a wave.
    packets: int = 1_000_000
    #: Packets that arrive after a lost one until it is sent again; each counts at the receiver.
    after: int = 20
    #: Groups of each step, and rounds of pairs. The step of the groups `silent` sends nothing.
    kinds: tuple[str, ...] = ("all", "pairs")
    rounds: int = 7
    silent: str = ""
    #: Groups of a step -> its losses, if they differ from `loss`.
    loss_in: Mapping[str, Loss] = field(default_factory=dict)
    #: The host whose ports count no packets.
    uncounted: str = ""
    seed: int = 1
    counters: dict[_Port, dict[str, int]] = field(default_factory=dict)

    @property
    def hosts(self) -> tuple[str, ...]:
        return verdicts.hosts(self.count)

    def run(self, step: Step) -> None:
        """Send the packets of all waves of a step around a ring in each group."""
        if step.groups == self.silent:
            return
        loss = self.loss_in.get(step.groups, self.loss)
        for wave in waves(step.groups, self.hosts, rounds=step.rounds, seed=self.seed):
            for group in wave:
                ring = zip(group.hosts, (*group.hosts[1:], group.hosts[0]), strict=True)
                for a, b in ring if len(group.hosts) > 1 else ():
                    for port in self.ports:
                        self._send((a, port), (b, port), loss)

    def _send(self, a: _Port, b: _Port, loss: Loss) -> None:
        lost = int(self.packets * loss(a, b))
        other = int(self.packets * self.reordered(a, b))
        congested = self.packets // 50
        self._add(a, port_xmit_packets=self.packets, packet_seq_err=lost, np_cnp_sent=congested)
        self._add(b, port_rcv_packets=self.packets, out_of_sequence=lost * self.after + other)

    def _add(self, port: _Port, **grown: int) -> None:
        own = self.counters.setdefault(port, dict.fromkeys(READ, 0))
        for name, number in grown.items():
            if port[0] != self.uncounted or not name.startswith("port_"):
                own[name] += number

    def readings(self) -> dict[str, Reading]:
        """Return the readings of all hosts, without files."""
        return {
            host: Reading(
                boot="b",
                uptime=9.0,
                whole=True,
                read={"rdma": READ},
                devices=tuple(
                    Device(
                        kind=DeviceKind.RDMA,
                        name=port,
                        counters=dict(self.counters.get((host, port), {})),
                        levels={"active": 1.0, "rate": 400.0},
                    )
                    for port in self.ports
                )
                # Other devices count no lost packets: they are not peers.
                + tuple(Device(kind=DeviceKind.NET, name=f"eth{n}") for n in range(4)),
            )
            for host in self.hosts
        }

    def write(self, folder: Path) -> None:
        """Write the counters like the kernel."""
        for host in self.hosts:
            for name in self.ports:
                device, _, number = name.partition("/")
                port = folder / host / "sys/class/infiniband" / device / "ports" / number
                own = self.counters.get((host, name), dict.fromkeys(READ, 0))
                for counter, value in own.items():
                    kind = "counters" if counter.startswith("port_") else "hw_counters"
                    (port / kind).mkdir(parents=True, exist_ok=True)
                    (port / kind / counter).write_text(f"{value}\n")
                (port / "state").write_text("4: ACTIVE\n")
                (port / "rate").write_text("400 Gb/sec (4X NDR)\n")


def read(folder: Path, host: str) -> Reading:
    """Read a host with the program that hosts run."""
    command = [sys.executable, str(PROGRAMS / "health.py"), "--quiet", "--root", str(folder / host)]
    ran = subprocess.run(command, capture_output=True, check=True)
    return reading_of(record_protocol.parse([ran.stdout], "health").facts)


def judged(world: World, look: Callable[[], dict[str, Reading]] | None = None) -> Verdict:
    """Return the verdict on a run of the steps of a world; `look` reads its counters."""
    look = look or world.readings
    first = before = look()
    changes: list[tuple[str, int, Change]] = []
    later = tuple(
        verdicts.step(
            "script",
            kind,
            number=n,
            rounds=world.rounds if kind == "pairs" else 1,
            params={"name": "load"},
        )
        for n, kind in enumerate(world.kinds, start=20)
    )
    for number, step in enumerate(later, start=3):
        world.run(step)
        now = look()
        for host in world.hosts:
            grown = change(before[host], now[host], since=number - 1, watched=WATCHED)
            changes.append((host, number, grown))
        before = now
    return run_of(
        *changes,
        count=world.count,
        machine=verdicts.CPU,
        others=first,
        sweeps=(1, 2, 3, 4),
        later=later,
        seed=world.seed,
    )


def named(verdict: Verdict) -> set[_Port]:
    """Return the ports that a verdict accuses of errors."""
    assert {(one.kind, one.cause) for one in verdict.suspects} <= {("nic", "nic-errors")}
    return {(one.hosts[0], one.device or "") for one in verdict.suspects}


SENT, BOTH = lossy(sent=0.01), lossy(sent=0.01, received=0.01)


def more_with_h5(a: _Port, b: _Port) -> float:
    return BOTH(a, b) * (3 if "h5" in (a[0], b[0]) else 1)


def of_most(share: float) -> World:
    """Return a world in which a port receives fewer packets, and most ports lose some.

    Each lost packet of most ports brings 20 out of sequence: 8e-5, below what counts as seen.
    """
    return World(loss=most(lossy(received=share), lambda a, b: 4e-6), rounds=4)


#: Name -> a world, the ports that the verdict names, and the state of the check `health`.
CASES: dict[str, tuple[World, set[_Port], State]] = {
    "0.2 % of 6 hosts": (World(loss=lossy(sent=0.002), count=6, rounds=3), {BAD}, State.DEGRADED),
    "more with one partner": (World(loss=more_with_h5), {BAD}, State.DEGRADED),
    "more with one partner, pairs only": (
        World(loss=more_with_h5, kinds=("pairs", "pairs")),
        {BAD},
        State.DEGRADED,
    ),
    **{
        f"two nodes of {count} in different directions": (
            World(loss=most(SENT, lossy(received=0.01, bad=("h1", PORTS[0]))), count=count),
            {BAD, ("h1", PORTS[0])},
            State.DEGRADED,
        )
        for count in (6, 8)
    },
    "both ports of a host": (
        World(loss=lambda a, b: 0.01 * (a[0] == "h3"), rounds=4),
        {("h3", port) for port in PORTS},
        State.DEGRADED,
    ),
    # A port must lose a hundred times as much as most, and a hundred packets in a step.
    "80 times as much as most": (of_most(3.2e-4), set(), State.PASS),
    "125 times as much as most": (of_most(5e-4), {BAD}, State.DEGRADED),
    "80 packets": (
        World(loss=lossy(sent=0.008), packets=10_000, rounds=4),
        set(),
        State.INCONCLUSIVE,
    ),
    "150 packets": (World(loss=lossy(sent=0.015), packets=10_000, rounds=4), {BAD}, State.DEGRADED),
    # Losses that follow no single port.
    "two hosts": (
        World(loss=lossy(sent=0.01, bad=("h1", PORTS[0])), count=2),
        set(),
        State.INCONCLUSIVE,
    ),
    "one path": (World(loss=on_paths(("h1", "h2"))), set(), State.INCONCLUSIVE),
    "two paths": (World(loss=on_paths(("h1", "h2"), ("h4", "h6"))), set(), State.INCONCLUSIVE),
    "a single partner": (World(loss=SENT, rounds=1), set(), State.INCONCLUSIVE),
    "one step": (World(loss=SENT, rounds=4, silent="all"), set(), State.INCONCLUSIVE),
    "another port in the other step": (
        World(loss=SENT, loss_in={"all": lossy(sent=0.01, bad=("h6", PORTS[0]))}),
        set(),
        State.INCONCLUSIVE,
    ),
    "another direction in the other step": (
        World(loss=SENT, loss_in={"all": lossy(received=0.01)}),
        set(),
        State.INCONCLUSIVE,
    ),
    "less than twice as much as another": (
        World(loss=most(SENT, lossy(sent=0.006, bad=("h5", PORTS[0])))),
        set(),
        State.INCONCLUSIVE,
    ),
    "packets that no receiver missed": (
        World(loss=SENT, after=0, rounds=4),
        set(),
        State.INCONCLUSIVE,
    ),
    "packets that are not counted": (
        World(loss=SENT, uncounted=BAD[0], rounds=4),
        set(),
        State.PASS,
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_a_port_is_named_only_if_all_losses_follow_it(name: str) -> None:
    world, ports, state = CASES[name]
    verdict = judged(world)
    assert (named(verdict), health_of(verdict).state) == (ports, state)
    if ports:
        # Partners saw the losses, and pass without the port.
        assert (verdict.state, verdict.exit) == (State.DEGRADED, Exit.REJECTED)
        hosts = {h for f in health_of(verdict).findings if f.cause for h in f.hosts}
        assert hosts == {host for host, _ in ports}


def healthy() -> Iterator[object]:
    """Yield worlds whose ports count packets without a fault: loss, and packets out of sequence."""

    def nothing(_a: _Port, _b: _Port) -> float:
        return 0.0

    def unequal(share: float) -> Loss:
        draw = random.Random(5)
        drawn: dict[tuple[_Port, _Port], float] = {}
        return lambda a, b: drawn.setdefault((a, b), share * draw.lognormvariate(0, 1))

    def farther(a: _Port, b: _Port) -> float:
        return 0.05 if "h0" in (a[0], b[0]) else 0.0

    def incast(share: float) -> Loss:
        """Drop packets in front of each receiver, as switches without flow control do."""
        draw = random.Random(6)
        drawn: dict[_Port, float] = {}
        return lambda _a, b: drawn.setdefault(b, share * draw.lognormvariate(0, 1))

    yield pytest.param(incast(1e-3), unequal(0.05), id="incast and adaptive routing")
    yield pytest.param(nothing, nothing, id="lossless, with congestion notifications")
    yield pytest.param(unequal(1e-3), nothing, id="congested without flow control")
    yield pytest.param(unequal(1e-5), nothing, id="few lost packets")
    yield pytest.param(nothing, unequal(0.05), id="adaptive routing")
    yield pytest.param(nothing, farther, id="one host behind another switch")


@pytest.mark.parametrize(("loss", "reordered"), [*healthy()])
@pytest.mark.parametrize("ports", [PORTS, PORTS[:1]])
def test_a_congested_healthy_cluster_accuses_nobody(
    ports: tuple[str, ...], loss: Loss, reordered: Loss
) -> None:
    for seed in range(5):
        for count in (2, 8, 16):
            world = World(
                loss=loss, count=count, ports=ports, reordered=reordered, rounds=4, seed=seed
            )
            verdict = judged(world)
            assert (named(verdict), health_of(verdict).state) == (set(), State.PASS)


@pytest.mark.parametrize("port", [SENT, lossy(received=0.01)])
def test_losses_between_other_hosts_do_not_pass_without_the_named_one(port: Loss) -> None:
    for seed in range(20):
        world = World(loss=most(port, on_paths(("h5", "h6"))), seed=seed)
        assert judged(world).state in (State.FAIL, State.INCONCLUSIVE), seed


@pytest.mark.sampled
@pytest.mark.parametrize("hosts", [3, 6, 8, 16, 64])
@pytest.mark.parametrize("bad", [1, 2, 3])
def test_only_bad_ports_are_named_and_losses_never_pass(bad: int, hosts: int) -> None:
    for seed in range({3: 120, 64: 6}.get(hosts, 40)):
        draw = random.Random(f"{seed} {bad} {hosts}")
        ports = [(host, port) for host in verdicts.hosts(hosts) for port in PORTS]
        # A port loses packets that it sends, that it receives, or both.
        ways = {
            port: draw.choice([(share, 0.0), (0.0, share), (share, share)])
            for port in draw.sample(ports, bad)
            for share in (draw.choice([0.003, 0.01, 0.03]),)
        }
        loss = most(*(lossy(sent=s, received=r, bad=port) for port, (s, r) in ways.items()))
        verdict = judged(World(loss=loss, count=hosts, rounds=draw.choice([3, 4, 5]), seed=seed))
        names, health = named(verdict), health_of(verdict)
        assert names <= set(ways), (seed, ways)
        if hosts == 3:
            # Most ports may have losses then, as with congestion.
            continue
        assert health.state in (State.INCONCLUSIVE, State.DEGRADED, State.FAIL)
        if bad == 1:
            assert (names, verdict.state) == (set(ways), State.DEGRADED), (seed, ways)
        if hosts >= 16:
            found = {host for host, _ in names} == {host for host, _ in ways}
            assert (verdict.state is State.DEGRADED) == found, (seed, ways)
        for finding in (f for f in health.findings if f.cause == "nic-errors"):
            # The shares, the counts, and the limit.
            assert all(text in finding.message for text in (" of its packets (", "0.001"))


@pytest.mark.rare
@pytest.mark.parametrize(
    ("loss", "ports"), [(SENT, {BAD}), (lossy(received=0.01), {BAD}), (lossy(), set())]
)
def test_counters_of_the_kernel_name_the_port(
    loss: Loss, ports: set[_Port], tmp_path: Path
) -> None:
    world = World(loss=loss, count=6, rounds=3)

    def look() -> dict[str, Reading]:
        world.write(tmp_path)
        return {host: read(tmp_path, host) for host in world.hosts}

    verdict = judged(world, look)
    assert named(verdict) == ports
    assert verdict.state is (State.DEGRADED if ports else State.PASS)
