"""Copies of the logs of healthy nodes, with faults injected at random.

`WORLDS` names the faults; `draw` returns one of its copies. Pairs are bad in all their logs,
however many GPUs took part.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path

from accept.commands.judged import judge_path
from accept.core.verdict import Suspect, SuspectKind, Verdict

ROW = re.compile(r" +\d+ +\d+ +[a-z]+ ")
_DEVICE = re.compile(r" on (\S+) device +\d+ \[0000:(\w\w):00\]")
#: PCI addresses of the GPUs of each node, in their order.
BUSES = ("1b", "43", "52", "61", "9d", "c3", "d1", "df")
NODE = "cnode3-{:03d}".format

Pair = tuple[str, str]
#: The line with a table's collective, and those of its devices -> share of its speed.
Speed = Callable[[Sequence[str]], float]
#: (name of a log, its text) -> text; None: the log is left out.
Change = Callable[[str, str], str | None]
HOSTS = tuple(NODE(number) for number in range(2, 12))


def slowed(text: str, speed: Speed) -> str:
    """Return a log with the speed of each table multiplied by a share."""
    result: list[str] = []
    devices: list[str] = []
    speeds: list[float] = []
    collective = ""
    for line in text.split("\n"):
        made = line
        if line.startswith("# Collective test starting"):
            collective = line
        elif line.startswith("# Using devices"):
            devices, speeds = [collective], []
        elif line.startswith("#  Rank"):
            devices.append(line)
        elif ROW.match(line):
            cells = line.split()
            share = speed(devices)
            for time in (5, 9):
                cells[time] = f"{float(cells[time]) / share:.6g}"
                for bandwidth in (time + 1, time + 2):
                    cells[bandwidth] = f"{float(cells[bandwidth]) * share:.2f}"
                speeds.append(float(cells[time + 2]))
            made = "  " + "  ".join(cells)
        elif "Avg bus bandwidth" in line:
            made = f"# Avg bus bandwidth    : {sum(speeds) / len(speeds):.6g} "
        result.append(made)
    return "\n".join(result)


def node(host: str, share: float) -> Change:
    """Make all tables slow in which a node took part."""
    return lambda _, text: slowed(
        text, lambda devices: share if any(f" on {host} " in line for line in devices) else 1.0
    )


def gpu(host: str, number: int, share: float) -> Change:
    """Make all tables slow in which one GPU of a node took part."""
    return lambda _, text: slowed(
        text, lambda devices: share if (host, number) in _used(devices) else 1.0
    )


def _used(devices: Sequence[str]) -> set[tuple[str, int]]:
    """Return the nodes and GPUs of the lines of a table's devices."""
    found = (_DEVICE.search(line) for line in devices)
    return {(one[1], BUSES.index(one[2])) for one in found if one}


def _on_the_network(devices: Sequence[str]) -> set[tuple[str, int]]:
    """Return the nodes and GPUs whose NICs exchange data with other nodes.

    With sendrecv, the last GPU of a node sends to the first one of the next node. The data leaves
    by the sender's GPU with the number of the receiver, if that takes part (NCCL's PXN).
    """
    if "sendrecv" not in devices[0]:
        return _used(devices)
    of_host: dict[str, list[int]] = {}
    for line in devices:
        if found := _DEVICE.search(line):
            of_host.setdefault(found[1], []).append(BUSES.index(found[2]))
    result = set()
    for host, after in zip(of_host, [*of_host][1:] + [*of_host][:1], strict=True):
        own, first = of_host[host], of_host[after][0]
        result |= {(host, first if first in own else own[-1]), (after, first)}
    return result


def nic(host: str, numbers: Collection[int], share: float) -> Change:
    """Make all tables slow in which one of some GPUs of a node exchanges data with other nodes."""

    def speed(devices: Sequence[str]) -> float:
        used = _on_the_network(devices)
        hit = any((host, number) in used for number in numbers)
        return share if hit and len({name for name, _ in used}) > 1 else 1.0

    return lambda _, text: slowed(text, speed)


def rail(number: int, share: float) -> Change:
    """Make all tables slow in which GPUs with this number exchange data with other nodes."""

    def speed(devices: Sequence[str]) -> float:
        used = _on_the_network(devices)
        hit = any(gpu == number for _, gpu in used)
        return share if hit and len({name for name, _ in used}) > 1 else 1.0

    return lambda _, text: slowed(text, speed)


def border(group: Collection[str], share: float) -> Change:
    """Make all tables slow with nodes on both sides of a border."""

    def speed(devices: Sequence[str]) -> float:
        return share if len({name in group for name, _ in _used(devices)}) > 1 else 1.0

    return lambda _, text: slowed(text, speed)


def leaf(group: Collection[str], number: int, share: float) -> Change:
    """Make all tables slow in which data leaves a group of nodes through one GPU."""

    def speed(devices: Sequence[str]) -> float:
        used = _on_the_network(devices)
        inside = any((name, number) in used for name in group)
        return share if inside and any(name not in group for name, _ in used) else 1.0

    return lambda _, text: slowed(text, speed)


def dead(pair: Pair) -> Change:
    """Cut the logs of a pair of nodes before their results."""

    def change(name: str, text: str) -> str:
        return text[:900] if all(host in name for host in pair) else text

    return change


def dealt(logs: Path, chance: random.Random, *changes: Change) -> Change:
    """Give each pair the results of another one with as many GPUs, after some changes."""
    texts = {path.name: path.read_text() for path in sorted(logs.rglob("*_N2_*.log"))}
    for change in changes:
        texts = {name: change(name, text) or "" for name, text in texts.items()}
    source: dict[str, str] = {}
    for kind in {name.partition("_cnode")[0] for name in texts}:
        own = [name for name in texts if name.partition("_cnode")[0] == kind]
        source |= dict(zip(own, chance.sample(own, len(own)), strict=True))

    def deal(name: str, text: str) -> str | None:
        if name not in source:
            return None
        old, new = _hosts(source[name]), _hosts(name)
        named = texts[source[name]].replace(old[0], "first").replace(old[1], new[1])
        return named.replace("first", new[0])

    return deal


def _hosts(name: str) -> list[str]:
    return [host for host in HOSTS if host in name]


def only(*parts: str) -> Change:
    """Keep logs with one of `parts` in their name."""
    return lambda name, text: text if any(part in name for part in parts) else None


def judged(logs: Path, folder: Path, *changes: Change) -> Verdict:
    """Copy the logs into a folder, make each change, and judge them."""
    for path in sorted(logs.rglob("*.log")):
        text: str | None = path.read_text()
        for change in changes:
            text = change(path.name, text) if text is not None else None
        if text is not None:
            (folder / path.name).write_text(text)
    return judge_path(str(folder)).verdict


def named(verdict: Verdict) -> list[tuple[str, str]]:
    return sorted((suspect.kind, suspect.name) for suspect in verdict.suspects)


# Faults at random


@dataclass(frozen=True, kw_only=True)
class Draw:
    """Changes to the healthy logs, and what they should lead to."""

    changes: tuple[Change, ...]
    #: The names of the suspects that are nodes or their parts.
    injected: frozenset[str] = frozenset()
    #: Names that are as good for what was injected.
    parts: frozenset[str] = frozenset()
    #: The nodes behind a bad part of the network, and the number of a bad rail.
    group: frozenset[str] = frozenset()
    rail: str | None = None

    def __add__(self, other: Draw) -> Draw:
        return Draw(
            changes=(*self.changes, *other.changes),
            injected=self.injected | other.injected,
            parts=self.parts | other.parts,
            group=self.group | other.group,
            rail=self.rail or other.rail,
        )


def bad_pairs(pairs: Iterable[Pair], share: float) -> Change:
    """Make all tables of some pairs of hosts slow."""
    slow = {frozenset(pair) for pair in pairs}

    def change(name: str, text: str) -> str:
        hosts = frozenset(host for host in HOSTS if host in name)
        return slowed(text, lambda _: share) if hosts in slow else text

    return change


def _pairs(chance: random.Random, rate: float, hosts: Sequence[str] = HOSTS) -> list[Pair]:
    pairs = list(combinations(hosts, 2))
    return chance.sample(pairs, round(rate * len(pairs)))


_Draws = Callable[[random.Random], Draw]


def _bad_pairs(rate: float, share: float) -> _Draws:
    return lambda chance: Draw(changes=(bad_pairs(_pairs(chance, rate), share),))


def _bad_logs(rate: float, share: float) -> _Draws:
    """Make each log of several nodes slow with the same probability."""

    def make(chance: random.Random) -> Draw:
        seed = chance.random()

        def change(name: str, text: str) -> str:
            hit = "_N1_" not in name and random.Random(f"{seed}:{name}").random() < rate
            return slowed(text, lambda _: share) if hit else text

        return Draw(changes=(change,))

    return make


def _bad_node(chance: random.Random) -> Draw:
    """Make one node bad in all its pairs, but not alone, and a tenth of all other pairs as well."""
    host = chance.choice(HOSTS)
    others = [name for name in HOSTS if name != host]
    bad = [(host, other) for other in others] + _pairs(chance, 0.1, others)
    return Draw(changes=(bad_pairs(bad, 0.7),), injected=frozenset((host,)))


def _slow_gpu(share: float) -> _Draws:
    def make(chance: random.Random) -> Draw:
        host, number = chance.choice(HOSTS), chance.randrange(len(BUSES))
        return Draw(changes=(gpu(host, number, share),), injected=frozenset((f"{host}:{number}",)))

    return make


def _slow_nic(chance: random.Random) -> Draw:
    host, first = chance.choice(HOSTS), 2 * chance.randrange(len(BUSES) // 2)
    numbers = (first, first + 1)
    return Draw(
        changes=(nic(host, numbers, 0.7),),
        injected=frozenset((host,)),
        parts=frozenset(f"{host}:{number}" for number in numbers),
    )


def _slow_nodes(share: float, count: int = 1) -> _Draws:
    def make(chance: random.Random) -> Draw:
        hosts = chance.sample(HOSTS, count)
        return Draw(changes=tuple(node(host, share) for host in hosts), injected=frozenset(hosts))

    return make


def _at_times(chance: random.Random) -> Draw:
    """Make one node slow in half of its logs."""
    host, seed = chance.choice(HOSTS), chance.random()
    slow = node(host, 0.6)

    def change(name: str, text: str) -> str | None:
        return slow(name, text) if random.Random(f"{seed}:{name}").random() < 0.5 else text

    return Draw(changes=(change,), injected=frozenset((host,)))


def _slow_border(chance: random.Random) -> Draw:
    group = frozenset(chance.sample(HOSTS, 4))
    return Draw(changes=(border(group, 0.7),), group=group)


def _slow_leaf(chance: random.Random) -> Draw:
    group, number = frozenset(chance.sample(HOSTS, 3)), chance.randrange(len(BUSES))
    return Draw(changes=(leaf(group, number, 0.6),), group=group)


def _slow_rail(chance: random.Random) -> Draw:
    number = chance.randrange(len(BUSES))
    return Draw(changes=(rail(number, 0.6),), rail=str(number))


def _dead_link(chance: random.Random) -> Draw:
    return Draw(changes=(dead(chance.choice(list(combinations(HOSTS, 2)))),))


def _subset(chance: random.Random) -> Draw:
    """Keep each log with the same random probability."""
    kept = chance.uniform(0.2, 0.9)
    return Draw(changes=(lambda _, text: text if chance.random() < kept else None,))


def _both(one: _Draws, other: _Draws) -> _Draws:
    return lambda chance: one(chance) + other(chance)


WORLDS: dict[str, _Draws] = {
    **{
        f"{rate:.0%} of pairs at {share:.0%}": _bad_pairs(rate, share)
        for rate in (0.05, 0.1, 0.2)
        for share in (0.7, 0.06)
    },
    **{f"{rate:.0%} of logs at 60%": _bad_logs(rate, 0.6) for rate in (0.05, 0.1, 0.2)},
    "a node bad in all pairs, 10% of pairs at 70%": _bad_node,
    **{f"a node at {share:.0%}": _slow_nodes(share) for share in (0.97, 0.93, 0.6, 0.06)},
    "a GPU at 93%": _slow_gpu(0.93),
    "a GPU at 80%": _slow_gpu(0.8),
    "a NIC of two GPUs at 70%": _slow_nic,
    "two nodes at 93%": _slow_nodes(0.93, 2),
    "two nodes at 60%": _slow_nodes(0.6, 2),
    "a node at 60% in half of its logs": _at_times,
    "a border at 70%": _slow_border,
    "a leaf at 60%": _slow_leaf,
    "a rail at 60%": _slow_rail,
    "a dead link": _dead_link,
    "a node at 60%, 10% of logs at 60%": _both(_slow_nodes(0.6), _bad_logs(0.1, 0.6)),
    "a node at 60%, a dead link": _both(_slow_nodes(0.6), _dead_link),
    "a node at 30%, a leaf at 60%": _both(_slow_nodes(0.3), _slow_leaf),
    "healthy, a random part of the logs": _subset,
}


def draw(world: str, seed: int) -> Draw:
    """Return one draw of a world."""
    return WORLDS[world](random.Random(f"{world}:{seed}"))


def accused(verdict: Verdict) -> list[Suspect]:
    """Return all suspects that are or hold a host: no links, and not the fabric."""
    other = (SuspectKind.LINK, SuspectKind.FABRIC)
    return [suspect for suspect in verdict.suspects if suspect.kind not in other]


def found(verdict: Verdict, one: Draw) -> bool:
    """Return True if all suspects that are or hold a host are those that were injected."""
    suspects = accused(verdict)
    nodes = {s.name for s in suspects if not s.of_network}
    groups = [s for s in suspects if s.kind is not SuspectKind.RAIL and s.of_network]
    members = {frozenset(side) - one.injected for s in groups for side in (s.hosts, s.others)}
    rails = {s.device for s in suspects if s.kind is SuspectKind.RAIL}
    return (
        (nodes == one.injected or (bool(nodes) and nodes <= one.parts))
        and (one.group - one.injected in members if one.group else not groups)
        and rails == ({one.rail} if one.rail else set())
    )


def innocent(verdict: Verdict, one: Draw) -> set[str]:
    """Return the names of suspects without a fault. Without enough logs, a GPU is its node."""
    guilty = {name.partition(":")[0] for name in one.injected}
    return {s.name for s in accused(verdict) if not _is_guilty(s, one, guilty)}


def _is_guilty(suspect: Suspect, one: Draw, guilty: Collection[str]) -> bool:
    if suspect.kind is SuspectKind.RAIL:
        return suspect.device == one.rail
    if suspect.of_network:
        behind = one.group.union(guilty)
        return any(side and behind.issuperset(side) for side in (suspect.hosts, suspect.others))
    return set(guilty).issuperset(suspect.hosts)
