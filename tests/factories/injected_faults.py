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

from accept.commands import judge
from accept.core.model import Suspect, SuspectKind, Verdict

ROW = re.compile(r" +\d+ +\d+ +[a-z]+ ")
#: PCI addresses of the GPUs of each node, in their order.
BUSES = ("1b", "43", "52", "61", "9d", "c3", "d1", "df")
NODE = "cnode3-{:03d}".format

Pair = tuple[str, str]
#: Lines of a table's devices -> share of its speed.
Speed = Callable[[Sequence[str]], float]
#: (name of a log, its text) -> text; None: the log is left out.
Change = Callable[[str, str], str | None]
HOSTS = tuple(NODE(number) for number in range(2, 12))


def slowed(text: str, speed: Speed) -> str:
    """Return a log with the speed of each table multiplied by a share."""
    result: list[str] = []
    devices: list[str] = []
    speeds: list[float] = []
    for line in text.split("\n"):
        made = line
        if line.startswith("# Using devices"):
            devices, speeds = [], []
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
    bus = f"[0000:{BUSES[number]}:00]"
    return lambda _, text: slowed(
        text,
        lambda devices: (
            share if any(f" on {host} " in line and bus in line for line in devices) else 1.0
        ),
    )


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
    return judge.judge_path(str(folder), expect=()).verdict


def named(verdict: Verdict) -> list[tuple[str, str]]:
    return sorted((suspect.kind, suspect.name) for suspect in verdict.suspects)


# Faults at random


@dataclass(frozen=True, kw_only=True)
class Draw:
    """Changes to the healthy logs, and the names of the suspects that they should lead to."""

    changes: tuple[Change, ...]
    injected: frozenset[str] = frozenset()


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


def _bad_pairs(rate: float, share: float) -> Callable[[random.Random], Draw]:
    return lambda chance: Draw(changes=(bad_pairs(_pairs(chance, rate), share),))


def _bad_node(chance: random.Random) -> Draw:
    """Make one node bad in all its pairs, but not alone, and a tenth of all other pairs as well."""
    host = chance.choice(HOSTS)
    others = [name for name in HOSTS if name != host]
    bad = [(host, other) for other in others] + _pairs(chance, 0.1, others)
    return Draw(changes=(bad_pairs(bad, 0.7),), injected=frozenset((host,)))


def _slow_gpu(share: float) -> Callable[[random.Random], Draw]:
    def make(chance: random.Random) -> Draw:
        host, number = chance.choice(HOSTS), chance.randrange(len(BUSES))
        return Draw(changes=(gpu(host, number, share),), injected=frozenset((f"{host}:{number}",)))

    return make


def _two_slow_nodes(chance: random.Random) -> Draw:
    hosts = chance.sample(HOSTS, 2)
    return Draw(changes=tuple(node(host, 0.93) for host in hosts), injected=frozenset(hosts))


def _subset(chance: random.Random) -> Draw:
    """Keep each log with the same random probability."""
    kept = chance.uniform(0.2, 0.9)
    return Draw(changes=(lambda _, text: text if chance.random() < kept else None,))


WORLDS: dict[str, Callable[[random.Random], Draw]] = {
    **{
        f"{rate:.0%} of pairs at {share:.0%}": _bad_pairs(rate, share)
        for rate in (0.05, 0.1, 0.2)
        for share in (0.7, 0.06)
    },
    "a node bad in all pairs, 10% of pairs at 70%": _bad_node,
    "a GPU at 93%": _slow_gpu(0.93),
    "a GPU at 80%": _slow_gpu(0.8),
    "two nodes at 93%": _two_slow_nodes,
    "healthy, a random part of the logs": _subset,
}


def draw(world: str, seed: int) -> Draw:
    """Return one draw of a world."""
    return WORLDS[world](random.Random(f"{world}:{seed}"))


def accused(verdict: Verdict) -> list[Suspect]:
    """Return all suspects that are or hold a host: no links, and not the fabric."""
    other = (SuspectKind.LINK, SuspectKind.FABRIC)
    return [suspect for suspect in verdict.suspects if suspect.kind not in other]


def innocent(verdict: Verdict, injected: Collection[str]) -> set[str]:
    """Return the names of suspects without a fault. Without enough logs, a GPU is its node."""
    guilty = {name.partition(":")[0] for name in injected}
    return {s.name for s in accused(verdict) if not s.hosts or not guilty.issuperset(s.hosts)}
