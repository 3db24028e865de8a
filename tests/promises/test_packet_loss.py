"""Lost packets of RDMA ports, from the files of the kernel to the verdict.

Each host has a folder like `/sys` with the counters of mlx5. A step adds the packets of its waves:
a lost packet is sent again by its sender, and its receiver gets the next ones out of sequence.
"""

from __future__ import annotations

import random
import subprocess
import sys
from collections.abc import Callable, Iterator
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
from accept.core.model import GroupKind, State, Verdict

PORTS = ("mlx5_0/1", "mlx5_1/1")
PACKETS = 1_000_000
#: Packets that arrive after a lost one until it is sent again; each counts at the receiver.
AFTER = 20
BAD = ("h3", "mlx5_1/1")
MACHINE = verdicts.GPU
READ = (
    "out_of_sequence", "packet_seq_err", "np_cnp_sent", "port_xmit_packets", "port_rcv_packets",
)  # fmt: skip

_Port = tuple[str, str]
#: (sender, receiver) -> the share of its packets that is lost.
Loss = Callable[[_Port, _Port], float]


def lossy(*, sent: float = 0.0, received: float = 0.0, bad: _Port = BAD) -> Loss:
    return lambda a, b: sent * (a == bad) + received * (b == bad)


@dataclass
class World:
    """The counters of all ports."""

    hosts: tuple[str, ...]
    loss: Loss
    ports: tuple[str, ...] = PORTS
    #: Packets out of sequence for each packet that took another path.
    reordered: Loss = lambda a, b: 0.0
    counters: dict[_Port, dict[str, int]] = field(default_factory=dict)

    def run(self, kind: str, rounds: int, seed: int = 1) -> None:
        """Send the packets of all waves of a step around a ring in each group."""
        for wave in waves(GroupKind(kind), self.hosts, rounds=rounds, seed=seed):
            for group in wave:
                ring = zip(group.hosts, (*group.hosts[1:], group.hosts[0]), strict=True)
                for a, b in ring if len(group.hosts) > 1 else ():
                    for port in self.ports:
                        self._send((a, port), (b, port))

    def _send(self, a: _Port, b: _Port) -> None:
        lost = int(PACKETS * self.loss(a, b))
        other = int(PACKETS * self.reordered(a, b))
        self._add(a, port_xmit_packets=PACKETS, packet_seq_err=lost, np_cnp_sent=PACKETS // 50)
        self._add(b, port_rcv_packets=PACKETS, out_of_sequence=lost * AFTER + other)

    def _add(self, port: _Port, **grown: int) -> None:
        own = self.counters.setdefault(port, dict.fromkeys(READ, 0))
        for name, number in grown.items():
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


def judged(
    world: World,
    rounds: int,
    seed: int = 1,
    look: Callable[[], dict[str, Reading]] | None = None,
    pause: str = "",
    kinds: tuple[str, ...] = ("all", "pairs"),
) -> Verdict:
    """Return the verdict on a run of steps of these kinds of groups.

    The step of the kind `pause` sends nothing.
    """
    look = look or world.readings
    first = before = look()
    changes: list[tuple[str, int, Change]] = []
    later = tuple(
        verdicts.step(
            "script",
            kind,
            number=n,
            rounds=rounds if kind == "pairs" else 1,
            params={"name": "load"},
        )
        for n, kind in enumerate(kinds, start=20)
    )
    for number, step in enumerate(later, start=3):
        if step.groups != pause:
            world.run(step.groups, step.rounds, seed)
        now = look()
        for host in world.hosts:
            grown = change(before[host], now[host], since=number - 1, watched=WATCHED)
            changes.append((host, number, grown))
        before = now
    return run_of(
        *changes,
        count=len(world.hosts),
        machine=verdicts.CPU,
        others=first,
        sweeps=(1, 2, 3, 4),
        later=later,
        seed=seed,
    )


def named(verdict: Verdict) -> set[tuple[str, str, str]]:
    return {(one.kind, one.name, one.cause) for one in verdict.suspects}


EXPECTED = {("nic", ":".join(BAD), "nic-errors")}


@pytest.mark.parametrize("hosts", [6, 16])
@pytest.mark.parametrize("rounds", [3, 5])
@pytest.mark.parametrize(
    "loss",
    [lossy(sent=0.01), lossy(received=0.01), lossy(sent=0.01, received=0.01), lossy(sent=0.002)],
    ids=["sent", "received", "both", "0.2 %"],
)
def test_a_port_that_loses_packets_with_different_partners_is_named(
    loss: Loss, rounds: int, hosts: int
) -> None:
    for seed in range(5):
        verdict = judged(World(verdicts.hosts(hosts), loss), rounds, seed)
        assert named(verdict) == EXPECTED
        # Its partners saw its losses, and pass without it.
        assert (verdict.state, verdict.exit) == (State.DEGRADED, Exit.REJECTED)
        assert {h for f in health_of(verdict).findings if f.cause for h in f.hosts} == {BAD[0]}


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
        for hosts in (2, 8, 16):
            world = World(verdicts.hosts(hosts), loss, ports=ports, reordered=reordered)
            verdict = judged(world, 4, seed)
            assert (named(verdict), health_of(verdict).state) == (set(), State.PASS)


def test_two_nodes_that_lose_packets_in_different_directions_are_set_aside() -> None:
    def loss(a: _Port, b: _Port) -> float:
        return max(lossy(sent=0.01)(a, b), lossy(received=0.01, bad=("h1", PORTS[0]))(a, b))

    for hosts in (6, 8):
        verdict = judged(World(verdicts.hosts(hosts), loss), 7)
        assert {name for _, name, _ in named(verdict)} == {":".join(BAD), f"h1:{PORTS[0]}"}
        assert (verdict.state, verdict.exit) == (State.DEGRADED, Exit.REJECTED)


@pytest.mark.parametrize("port", [lossy(sent=0.01), lossy(received=0.01)])
def test_losses_between_other_hosts_do_not_pass_without_the_named_one(port: Loss) -> None:
    path = on_paths(("h5", "h6"))
    for seed in range(20):
        world = World(verdicts.hosts(8), lambda a, b: max(port(a, b), path(a, b)))
        assert judged(world, 7, seed).state in (State.FAIL, State.INCONCLUSIVE), seed


def on_paths(*paths: tuple[str, str]) -> Loss:
    """Return the loss from the first port of one host to that of another."""
    ends = [tuple((host, PORTS[0]) for host in path) for path in paths]
    return lambda a, b: 0.01 * ((a, b) in ends)


@pytest.mark.parametrize(
    ("hosts", "loss"),
    [
        (2, lossy(sent=0.01, bad=("h1", PORTS[0]))),
        (8, on_paths(("h1", "h2"))),
        (8, on_paths(("h1", "h2"), ("h4", "h6"))),
    ],
)
def test_losses_that_follow_no_single_port_are_inconclusive(hosts: int, loss: Loss) -> None:
    verdict = judged(World(verdicts.hosts(hosts), loss), 7)
    assert (named(verdict), health_of(verdict).state) == (set(), State.INCONCLUSIVE)


def test_a_partner_that_meets_more_of_the_losses_is_not_named_instead() -> None:
    port = lossy(sent=0.01, received=0.01)
    world = World(verdicts.hosts(8), lambda a, b: port(a, b) * (3 if "h5" in (a[0], b[0]) else 1))
    for kinds in (("all", "pairs"), ("pairs", "pairs")):
        verdict = judged(world, 7, kinds=kinds)
        assert (named(verdict), verdict.state) == (EXPECTED, State.DEGRADED)


@pytest.mark.parametrize(
    "first",
    [lossy(sent=0.01, bad=("h6", PORTS[0])), lossy(received=0.01)],
    ids=["port", "direction"],
)
def test_a_port_that_is_not_among_the_worst_of_another_step_is_not_named(first: Loss) -> None:
    looks: list[int] = []

    def loss(a: _Port, b: _Port) -> float:
        # The first step runs after the first reading.
        return (first if len(looks) == 1 else lossy(sent=0.01))(a, b)

    world = World(verdicts.hosts(8), loss)

    def look() -> dict[str, Reading]:
        looks.append(1)
        return world.readings()

    verdict = judged(world, 7, look=look)
    assert (named(verdict), health_of(verdict).state) == (set(), State.INCONCLUSIVE)


def test_packets_that_were_sent_again_never_pass_if_no_receiver_missed_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sys.modules[__name__], "AFTER", 0)
    verdict = judged(World(verdicts.hosts(8), lossy(sent=0.01)), 4)
    assert (named(verdict), health_of(verdict).state) == (set(), State.INCONCLUSIVE)


def test_a_port_whose_packets_are_not_counted_is_not_named() -> None:
    world = World(verdicts.hosts(8), lossy(sent=0.01))

    def look() -> dict[str, Reading]:
        found = world.readings()
        for device in found[BAD[0]].devices:
            device.counters.update(port_xmit_packets=0, port_rcv_packets=0)
        return found

    assert named(judged(world, 4, look=look)) == set()


def test_a_port_with_a_single_partner_is_not_named() -> None:
    verdict = judged(World(verdicts.hosts(8), lossy(sent=0.01)), 1)
    assert (named(verdict), health_of(verdict).state) == (set(), State.INCONCLUSIVE)


@pytest.mark.parametrize(
    ("share", "expected"), [(3.2e-4, (set(), State.PASS)), (5e-4, (EXPECTED, State.DEGRADED))]
)
def test_a_port_must_lose_a_hundred_times_as_much_as_most(
    share: float, expected: tuple[set[tuple[str, str, str]], State]
) -> None:
    bad = lossy(received=share)
    # Each lost packet of most ports brings 20 out of sequence: 8e-5, below what counts as seen.
    world = World(verdicts.hosts(8), lambda a, b: max(bad(a, b), 4e-6))
    verdict = judged(world, 4)
    assert (named(verdict), verdict.state) == expected


@pytest.mark.parametrize(("share", "found"), [(0.008, set()), (0.015, EXPECTED)])
def test_fewer_than_a_hundred_lost_packets_in_a_step_name_no_port(
    share: float, found: set[tuple[str, str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.modules[__name__], "PACKETS", 10_000)
    assert named(judged(World(verdicts.hosts(8), lossy(sent=share)), 4)) == found


def test_a_port_that_loses_less_than_twice_as_much_as_another_is_not_named() -> None:
    def loss(a: _Port, b: _Port) -> float:
        return max(lossy(sent=0.01)(a, b), lossy(sent=0.006, bad=("h5", PORTS[0]))(a, b))

    verdict = judged(World(verdicts.hosts(8), loss), 7)
    assert (named(verdict), health_of(verdict).state) == (set(), State.INCONCLUSIVE)


def test_losses_in_one_step_only_are_inconclusive() -> None:
    world = World(verdicts.hosts(8), lossy(sent=0.01))
    verdict = judged(world, 4, pause="all")
    assert (named(verdict), health_of(verdict).state) == (set(), State.INCONCLUSIVE)


@pytest.mark.parametrize("hosts", [3, 8, 16, 64])
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

        def loss(a: _Port, b: _Port, ways: dict[_Port, tuple[float, float]] = ways) -> float:
            return max(ways.get(a, (0.0,))[0], ways.get(b, (0.0, 0.0))[1])

        verdict = judged(World(verdicts.hosts(hosts), loss), draw.choice([3, 4, 5]), seed)
        names = {name for _, name, _ in named(verdict)}
        assert names <= {":".join(port) for port in ways}, (seed, ways)
        if hosts == 3:
            # Most ports may have losses then, as with congestion.
            continue
        assert len(names) == 1 or bad > 1, (seed, ways)
        health = health_of(verdict)
        assert health.state in (State.INCONCLUSIVE, State.DEGRADED, State.FAIL)
        if hosts >= 16:
            found = {one.hosts[0] for one in verdict.suspects} == {host for host, _ in ways}
            assert (verdict.state is State.DEGRADED) == found, (seed, ways)
        for finding in (f for f in health.findings if f.cause == "nic-errors"):
            # The shares, the counts, and the limit.
            assert all(text in finding.message for text in (" of its packets (", "0.001"))


def test_two_bad_ports_of_a_host_with_several_partners_are_both_named() -> None:
    world = World(verdicts.hosts(8), lambda a, b: 0.01 * (a[0] == "h3"))
    assert {name for _, name, _ in named(judged(world, 4))} == {f"h3:{port}" for port in PORTS}


def test_counters_of_the_kernel_name_the_port(tmp_path: Path) -> None:
    for name, loss, expected, state in (
        ("sending", lossy(sent=0.01), EXPECTED, State.DEGRADED),
        ("receiving", lossy(received=0.01), EXPECTED, State.DEGRADED),
        ("healthy", lossy(sent=0.0), set(), State.PASS),
    ):
        world = World(verdicts.hosts(6), loss)

        def look(world: World = world, folder: Path = tmp_path / name) -> dict[str, Reading]:
            world.write(folder)
            return {host: read(folder, host) for host in world.hosts}

        verdict = judged(world, 3, look=look)
        assert (named(verdict), verdict.state) == (expected, state)
