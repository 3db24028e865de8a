"""How often bad nodes are named, and healthy ones accused, over simulated clusters.

`python -m benchmarks.blame` prints the whole table with its seed, `python -m benchmarks.blame 4096`
what of it is about so many nodes; `rows()` has the cells whose rates are promised. What others do
is tried on the same clusters: all pairs, judged by each node's mean; bisection, which halves the
set that is slow; and a random partner, by which both nodes of a slow pair are blamed.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Collection, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from statistics import mean, median, stdev

from tests.factories.simulated_cluster import LAWS, Cluster, Law, accept, cluster, rate

from accept.core.groups import Group, pair_rounds
from accept.core.judge.robust_stats import CANDIDATES
from benchmarks import Row

SEED = 20_261_121
#: What a slow group is for those who compare with a figure known beforehand: half of 6 %.
_SLOW = 97.0


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One kind of cluster."""

    count: int
    bad: int = 0
    deficit: float = 0.0
    often: float = 1.0
    noise: float = 0.01
    law: Law = "normal"

    def cluster(self, seed: int) -> Cluster:
        """The one of this kind with that seed."""
        return cluster(
            self.count,
            self.bad,
            deficit=self.deficit,
            often=self.often,
            noise=self.noise,
            law=self.law,
            seed=seed,
        )

    def __str__(self) -> str:
        lack = "dead" if self.deficit >= 1 else f"{self.deficit:.0%} slow"
        lack += "" if self.often == 1 else f" at {self.often:.0%} of times"
        bad = f"{self.bad} bad, {lack}" if self.bad else "healthy"
        return f"{self.count:,} nodes, {bad}, noise {self.noise:.1%} {self.law}"


@dataclass(frozen=True, kw_only=True)
class Rates:
    """Sums over the clusters of a cell."""

    trials: int = 0
    bad: int = 0
    found: int = 0
    accused: int = 0
    #: Clusters in which a healthy node was accused.
    wronged: int = 0
    rejected: int = 0
    rounds: int = 0
    again: int = 0

    def __add__(self, other: Rates) -> Rates:
        return Rates(**{name: getattr(self, name) + getattr(other, name) for name in _NAMES})


_NAMES = ("trials", "bad", "found", "accused", "wronged", "rejected", "rounds", "again")
Method = Callable[[Cluster], Rates]


def ours(one: Cluster) -> Rates:
    """Rounds of pairs, and one wave that confirms."""
    outcome = accept(one)
    return Rates(
        trials=1,
        bad=len(one.bad),
        found=len(outcome.found),
        accused=len(outcome.accused),
        wronged=int(bool(outcome.accused)),
        rejected=int(outcome.rejected),
        rounds=outcome.rounds,
        again=outcome.again,
    )


def all_pairs(one: Cluster) -> Rates:
    """N - 1 rounds; a node is bad whose mean is three standard deviations below that of all."""
    waves = pair_rounds(one.hosts, rounds=len(one.hosts), seed=1)
    seen: dict[str, list[float]] = {host: [] for host in one.hosts}
    for wave in waves:
        for sample in one.measure(wave):
            for host in sample.hosts:
                seen[host].append(sample.value or 0.0)
    means = {host: mean(values) for host, values in seen.items()}
    limit = median(means.values()) - 3 * stdev(means.values())
    return _named(one, {host for host, value in means.items() if value < limit}, len(waves))


def random_partner(one: Cluster) -> Rates:
    """One round, and another with new partners for those in slow pairs: slow twice is bad."""
    suspects = set(one.hosts)
    for seed in (1, 2):
        (wave,) = pair_rounds(one.hosts, rounds=1, seed=seed)
        slow = {h for s in one.measure(wave) if (s.value or 0.0) < _SLOW for h in s.hosts}
        suspects &= slow
    return _named(one, suspects, 2)


def bisection(one: Cluster) -> Rates:
    """Halves of every set that is slow, all sets of a size at once, down to pairs."""
    sets, rounds = [one.hosts], 0
    while sets and len(sets[0]) > 2:
        halves = [half for s in sets for half in (s[: len(s) // 2], s[len(s) // 2 :])]
        values = one.measure(tuple(Group(hosts=half) for half in halves))
        sets = [s.hosts for s in values if (s.value or 0.0) < _SLOW]
        rounds += 1
    return _named(one, {host for pair in sets for host in pair}, rounds)


def _named(one: Cluster, named: set[str], rounds: int) -> Rates:
    return Rates(
        trials=1,
        bad=len(one.bad),
        found=len(named & one.bad),
        accused=len(named - one.bad),
        wronged=int(bool(named - one.bad)),
        rejected=int(bool(named)),
        rounds=rounds,
    )


def _some(method: Method, cell: Cell, first: int, trials: int) -> Rates:
    found = (method(cell.cluster(SEED + seed)) for seed in range(first, first + trials))
    return sum(found, Rates())


def tried(pool: ProcessPoolExecutor, cell: Cell, trials: int, method: Method = ours) -> Rates:
    """Many clusters of a cell, in chunks on all cores."""
    step = max(1, trials // 16)
    firsts = range(0, trials, step)
    parts = (pool.submit(_some, method, cell, f, min(step, trials - f)) for f in firsts)
    return sum((part.result() for part in list(parts)), Rates())


def promised() -> Iterator[Cell]:
    """The cells whose rates are promised."""
    for count in (256, 1024):
        for law in LAWS:
            yield Cell(count=count, law=law)
            yield Cell(count=count, bad=round(0.02 * count), deficit=0.06, law=law)


def others() -> Iterator[Cell]:
    """All other cells."""
    for count in (16, 64, 256, 1024, 4096):
        for noise in (0.005, 0.01, 0.03):
            yield Cell(count=count, noise=noise)
            few = sorted({1, max(1, round(0.02 * count)), max(1, round(0.1 * count))})
            for bad in few:
                for deficit in (0.03, 0.06, 0.15, 0.5, 1.0):
                    yield Cell(count=count, bad=bad, deficit=deficit, noise=noise)
            yield Cell(count=count, bad=few[0], deficit=0.5, often=0.5, noise=noise)


def told(rates: Rates) -> str:
    """Rates with their 95 % bounds."""
    low, _ = rate(rates.found, rates.bad)
    _, high = rate(rates.wronged, rates.trials)
    _, most = rate(rates.rejected, rates.trials)
    parts = []
    if rates.bad:
        parts += [f"found {rates.found:,} of {rates.bad:,} (>= {low:.2%})"]
        parts += [f"healthy accused {rates.accused:,}, in <= {1000 * high:.2f} of 1,000 clusters"]
    else:
        parts += [f"rejected {rates.rejected:,} (<= {1000 * most:.2f} in 1,000)"]
    return ", ".join(parts)


def rows(trials: int = 3000) -> list[Row]:
    """The promised cells, and what others do on clusters of their kind."""
    found = []
    with ProcessPoolExecutor() as pool:
        for cell in promised():
            rates = tried(pool, cell, trials)
            met = (
                rates.rejected < trials / 1000
                if not rates.bad
                else (rates.found >= 0.999 * rates.bad and rates.accused < trials / 1000)
            )
            found.append(
                Row(
                    what=f"{trials:,} x {cell}",
                    measured=told(rates),
                    bar="found 99.9%, accused < 1 in 1,000" if rates.bad else "< 1 in 1,000",
                    met=met,
                )
            )
        cell = Cell(count=256, bad=5, deficit=0.06)
        few = 50
        for method in (all_pairs, bisection, random_partner, ours):
            rates = tried(pool, cell, few, method)
            name = method.__name__.replace("_", " ")
            rounds = f"{(rates.rounds + rates.again) / few:.0f} rounds"
            found.append(Row(what=f"{few} x {cell}: {name}", measured=f"{rounds}, {told(rates)}"))
    return found


def main(sizes: Collection[int] = (), trials: int = 200) -> None:
    """Print the table, of clusters of these sizes or of all."""
    began = time.monotonic()
    print(
        f"seed {SEED}; candidates {CANDIDATES:g}; 3,000 clusters a promised cell, {trials} others\n"
    )
    print("| cluster | trials | rounds | rates, with their 95 % bounds | rejected |")
    print("| --- | --- | --- | --- | --- |")
    with ProcessPoolExecutor() as pool:
        plan = [(cell, 3000) for cell in promised()]
        plan += [(cell, trials if cell.count < 4096 else 10) for cell in others()]
        for cell, many in plan:
            if sizes and cell.count not in sizes:
                continue
            r = tried(pool, cell, many)
            waves = (r.rounds + r.again) / r.trials
            line = f"| {cell} | {many:,} | {waves:.1f} | {told(r)} | {r.rejected:,} |"
            print(line, flush=True)
    print(f"\n{time.monotonic() - began:.0f} s", file=sys.stderr)


if __name__ == "__main__":
    main({int(size) for size in sys.argv[1:]})
