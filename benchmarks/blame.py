"""Measure on simulated clusters how often bad nodes are found, and healthy nodes accused.

`python -m benchmarks.blame` prints the full table with its seed, `python -m benchmarks.blame 4096`
only the rows with 4,096 nodes. `rows()` measures the cells whose rates accept promises. For
comparison, three other methods run on the same clusters: all pairs, judged by each node's mean;
bisection of slow sets; and a random partner, which blames both nodes of a slow pair.
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
#: Clusters per promised cell.
PROMISED_TRIALS = 3000
#: Methods that know the healthy speed, 100, call a group slow below this: half of 6 % is missing.
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
        """Return the cluster of this kind with a seed."""
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
        fault = "dead" if self.deficit >= 1 else f"{self.deficit:.0%} slow"
        fault += "" if self.often == 1 else f" at {self.often:.0%} of times"
        bad = f"{self.bad} bad, {fault}" if self.bad else "healthy"
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


def ours(simulated: Cluster) -> Rates:
    """Measure rounds of pairs, and one wave that confirms."""
    outcome = accept(simulated)
    return Rates(
        trials=1,
        bad=len(simulated.bad),
        found=len(outcome.found),
        accused=len(outcome.accused),
        wronged=int(bool(outcome.accused)),
        rejected=int(outcome.rejected),
        rounds=outcome.rounds,
        again=outcome.again,
    )


def all_pairs(simulated: Cluster) -> Rates:
    """Measure N - 1 rounds; a node is bad if its mean is 3 standard deviations below the median."""
    waves = pair_rounds(simulated.hosts, rounds=len(simulated.hosts), seed=1)
    values_of: dict[str, list[float]] = {host: [] for host in simulated.hosts}
    for wave in waves:
        for sample in simulated.measure(wave):
            for host in sample.hosts:
                values_of[host].append(sample.value or 0.0)
    means = {host: mean(values) for host, values in values_of.items()}
    limit = median(means.values()) - 3 * stdev(means.values())
    return _rates(simulated, {host for host, value in means.items() if value < limit}, len(waves))


def random_partner(simulated: Cluster) -> Rates:
    """Measure two rounds with different partners; a node is bad if both its pairs are slow."""
    suspects = set(simulated.hosts)
    for seed in (1, 2):
        (wave,) = pair_rounds(simulated.hosts, rounds=1, seed=seed)
        slow = {h for s in simulated.measure(wave) if (s.value or 0.0) < _SLOW for h in s.hosts}
        suspects &= slow
    return _rates(simulated, suspects, 2)


def bisection(simulated: Cluster) -> Rates:
    """Measure both halves of every slow set, all sets of a size at once, down to pairs."""
    sets, rounds = [simulated.hosts], 0
    while sets and len(sets[0]) > 2:
        halves = [half for s in sets for half in (s[: len(s) // 2], s[len(s) // 2 :])]
        values = simulated.measure(tuple(Group(hosts=half) for half in halves))
        sets = [s.hosts for s in values if (s.value or 0.0) < _SLOW]
        rounds += 1
    return _rates(simulated, {host for pair in sets for host in pair}, rounds)


def _rates(simulated: Cluster, named: set[str], rounds: int) -> Rates:
    return Rates(
        trials=1,
        bad=len(simulated.bad),
        found=len(named & simulated.bad),
        accused=len(named - simulated.bad),
        wronged=int(bool(named - simulated.bad)),
        rejected=int(bool(named)),
        rounds=rounds,
    )


def _chunk(method: Method, cell: Cell, first: int, trials: int) -> Rates:
    rates = (method(cell.cluster(SEED + seed)) for seed in range(first, first + trials))
    return sum(rates, Rates())


def tried(pool: ProcessPoolExecutor, cell: Cell, trials: int, method: Method = ours) -> Rates:
    """Return the rates over `trials` clusters of a cell, in chunks on all cores."""
    step = max(1, trials // 16)
    firsts = range(0, trials, step)
    parts = (pool.submit(_chunk, method, cell, f, min(step, trials - f)) for f in firsts)
    return sum((part.result() for part in list(parts)), Rates())


def promised() -> Iterator[Cell]:
    """Yield the cells whose rates accept promises."""
    for count in (256, 1024):
        for law in LAWS:
            yield Cell(count=count, law=law)
            yield Cell(count=count, bad=round(0.02 * count), deficit=0.06, law=law)


def others() -> Iterator[Cell]:
    """Yield all other cells."""
    for count in (16, 64, 256, 1024, 4096):
        for noise in (0.005, 0.01, 0.03):
            yield Cell(count=count, noise=noise)
            few = sorted({1, max(1, round(0.02 * count)), max(1, round(0.1 * count))})
            for bad in few:
                for deficit in (0.03, 0.06, 0.15, 0.5, 1.0):
                    yield Cell(count=count, bad=bad, deficit=deficit, noise=noise)
            yield Cell(count=count, bad=few[0], deficit=0.5, often=0.5, noise=noise)


def described(rates: Rates) -> str:
    """Return rates as text, with their 95 % bounds."""
    low, _ = rate(rates.found, rates.bad)
    _, high = rate(rates.wronged, rates.trials)
    _, rejected_bound = rate(rates.rejected, rates.trials)
    parts = []
    if rates.bad:
        parts += [f"found {rates.found:,} of {rates.bad:,} (>= {low:.2%})"]
        parts += [f"healthy accused {rates.accused:,}, in <= {1000 * high:.2f} of 1,000 clusters"]
    else:
        parts += [f"rejected {rates.rejected:,} (<= {1000 * rejected_bound:.2f} in 1,000)"]
    return ", ".join(parts)


def rows(trials: int = PROMISED_TRIALS) -> list[Row]:
    """Measure the promised cells, and the other methods on one kind of cluster."""
    measured = []
    with ProcessPoolExecutor() as pool:
        for cell in promised():
            rates = tried(pool, cell, trials)
            met = (
                rates.rejected < trials / 1000
                if not rates.bad
                else (rates.found >= 0.999 * rates.bad and rates.accused < trials / 1000)
            )
            measured.append(
                Row(
                    what=f"{trials:,} x {cell}",
                    measured=described(rates),
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
            text = f"{rounds}, {described(rates)}"
            measured.append(Row(what=f"{few} x {cell}: {name}", measured=text))
    return measured


def main(sizes: Collection[int] = (), trials: int = 200) -> None:
    """Print the table for clusters of these sizes, or of all sizes."""
    began = time.monotonic()
    print(
        f"seed {SEED}; candidates {CANDIDATES:g}; "
        f"{PROMISED_TRIALS:,} clusters per promised cell, {trials:,} per other cell\n"
    )
    print("| cluster | trials | rounds | rates, with their 95 % bounds | rejected |")
    print("| --- | --- | --- | --- | --- |")
    with ProcessPoolExecutor() as pool:
        plan = [(cell, PROMISED_TRIALS) for cell in promised()]
        plan += [(cell, trials if cell.count < 4096 else 10) for cell in others()]
        for cell, count in plan:
            if sizes and cell.count not in sizes:
                continue
            rates = tried(pool, cell, count)
            waves = (rates.rounds + rates.again) / rates.trials
            cells = f"{cell} | {count:,} | {waves:.1f} | {described(rates)} | {rates.rejected:,}"
            print(f"| {cells} |", flush=True)
    print(f"\n{time.monotonic() - began:.0f} s", file=sys.stderr)


if __name__ == "__main__":
    main({int(size) for size in sys.argv[1:]})
