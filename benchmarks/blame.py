"""Measure on simulated clusters how often the judge finds faults and accuses innocent nodes.

`make bench ARGS=blame` prints all tables; `python -m benchmarks.blame --sizes 64 --trials 20
--worlds w1 w6` a part. The same seed gives the same clusters.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial

from tests.factories.simulated_cluster import Cluster, rate
from tests.factories.simulated_runs import SimulatedRun, run_of
from tests.factories.simulated_worlds import BY_NAME, COMPARED, KINDS, MIXED, WORLDS, score

from benchmarks import Row
from benchmarks.blame_methods import METHODS

SEED = 20_261_123
#: Rounds of pairs of the suites `quick` and `standard`.
QUICK, STANDARD = 4, 8
#: Clusters per world and size.
TRIALS: Mapping[int, int] = {10: 20, 16: 20, 64: 80, 256: 20, 1024: 2, 4096: 1}
#: From this size on, only the worlds in which the methods are compared.
_LARGE = 4096
#: Clusters of 64 nodes per method, of the mixed benchmark, and judged twice.
_PER_METHOD, _MIXED, _TWICE = 200, 1000, 4


@dataclass(frozen=True, kw_only=True)
class Tally:
    """Sums over clusters."""

    clusters: int = 0
    #: As in `Score`; of `innocent` to `network`, the number of clusters.
    faults: int = 0
    found: int = 0
    right: int = 0
    named: int = 0
    true: int = 0
    innocent: int = 0
    member: int = 0
    other: int = 0
    network: int = 0
    #: Clusters in which anything is named that is not a fault.
    accused: int = 0
    waves: int = 0
    #: Waves that the judge added to the planned ones.
    added: int = 0
    #: CPU time of simulation and judging.
    seconds: float = 0.0
    #: Clusters whose second measurement gave other suspects.
    changed: int = 0
    #: Clusters in which an innocent node was accused or a fault was missed.
    failed: tuple[int, ...] = ()

    def __add__(self, other: Tally) -> Tally:
        return Tally(**{name: getattr(self, name) + getattr(other, name) for name in _NAMES})


_KIND_OF = {world.name: kind for kind, own in KINDS.items() for world in own}
_NAMES = tuple(Tally.__dataclass_fields__)


def scored(cluster: Cluster, run: SimulatedRun, rounds: int, seed: int) -> Tally:
    """Return the sums of one cluster."""
    result = score(cluster, run)
    wrong = result.innocent or result.other or result.right < result.faults
    return Tally(
        clusters=1,
        **result._asdict(),
        accused=int(result.named > result.true),
        waves=rounds + run.added,
        added=run.added,
        failed=(seed,) if wrong else (),
    )


def ours(name: str, count: int, rounds: int, seeds: Iterable[int]) -> Tally:
    """Judge clusters of a world."""
    total = Tally()
    for seed in seeds:
        began = time.process_time()
        cluster = BY_NAME[name].cluster(count, rounds, SEED + seed, schedule=seed)
        run = run_of(cluster, rounds, seed=seed, again=True)
        total += scored(cluster, run, rounds, seed)
        total += Tally(seconds=time.process_time() - began)
    return total


def twice(name: str, count: int, rounds: int, seeds: Iterable[int]) -> Tally:
    """Measure each cluster of a world twice, with the same schedule and other noise."""
    total = Tally()
    for seed in seeds:
        verdicts = []
        for noise in (0, 1):
            cluster = BY_NAME[name].cluster(count, rounds, SEED + seed, noise=noise, schedule=seed)
            found = run_of(cluster, rounds, seed=seed, again=True).verdict.suspects
            verdicts.append({(one.kind, one.hosts, one.device) for one in found})
        changed = verdicts[0] != verdicts[1]
        total += Tally(clusters=1, changed=int(changed), failed=(seed,) if changed else ())
    return total


def theirs(method: str, name: str, count: int, seeds: Iterable[int]) -> Tally:
    """Run another method on clusters of a world; any node that is not bad is innocent."""
    total = Tally()
    for seed in seeds:
        cluster = BY_NAME[name].cluster(count, QUICK, SEED + seed)
        nodes, rounds = METHODS[method](cluster)
        found = len(nodes & cluster.bad)
        total += Tally(
            clusters=1,
            faults=len(cluster.bad),
            found=found,
            right=found,
            innocent=int(bool(nodes - cluster.bad)),
            waves=rounds,
        )
    return total


class Pool:
    """Run clusters on all cores, in chunks."""

    def __init__(self, executor: ProcessPoolExecutor) -> None:
        self._executor = executor

    def start(self, run: Callable[[Iterable[int]], Tally], trials: int) -> list[Future[Tally]]:
        """Start the clusters with seeds from 0 on."""
        step = max(1, trials // 8)
        firsts = range(0, trials, step)
        return [self._executor.submit(run, range(f, min(f + step, trials))) for f in firsts]


def total(parts: Iterable[Future[Tally]]) -> Tally:
    """Return the sum of chunks when they are done."""
    return sum((part.result() for part in parts), Tally())


def share(events: int, trials: int) -> str:
    """Return a rate with its 95 % bounds."""
    if not trials:
        return ""
    low, high = rate(events, trials)
    return f"{events / trials:.1%} ({low:.1%} to {high:.1%})"


def bound(events: int, trials: int) -> str:
    """Return a number of clusters with the upper 95 % bound of their rate."""
    return f"{events} (≤ {1000 * rate(events, trials)[1]:.2f} in 1,000)"


def _line(*cells: object) -> str:
    return "| " + " | ".join(map(str, cells)) + " |"


def _head(*cells: str) -> str:
    return f"{_line(*cells)}\n{_line(*('---' for _ in cells))}"


@dataclass(frozen=True, kw_only=True)
class Options:
    """A part of the tables."""

    sizes: Collection[int] = tuple(TRIALS)
    #: Clusters per world, for all sizes; 0: as in `TRIALS`.
    trials: int = 0
    worlds: Collection[str] = tuple(world.name for world in WORLDS)
    rounds: Sequence[int] = (QUICK, STANDARD)
    tables: Collection[str] = ("worlds", "methods", "mixed", "twice")

    def per_world(self, count: int) -> int:
        """Return the number of clusters of a size."""
        return self.trials or TRIALS[count]


def worlds(pool: Pool, options: Options) -> dict[tuple[int, int], Tally]:
    """Print the results of each world and kind; return the sums for each size and rounds."""
    sums: dict[tuple[int, int], Tally] = {}
    for count in options.sizes:
        for rounds in options.rounds:
            trials = options.per_world(count)
            print(f"\n{count:,} nodes, {rounds} rounds, {trials:,} clusters in each world:\n")
            print(
                _head(
                    "world",
                    "found",
                    "right kind and members",
                    "innocent accused",
                    "member accused",
                    "other cause named",
                    "fabric or link named",
                    "waves",
                )
            )
            of_kind: dict[str, Tally] = {}
            jobs = {
                name: pool.start(partial(ours, name, count, rounds), trials)
                for name in options.worlds
                if count < _LARGE or BY_NAME[name] in COMPARED
            }
            for name, parts in jobs.items():
                tally = total(parts)
                of_kind[_KIND_OF[name]] = of_kind.get(_KIND_OF[name], Tally()) + tally
                print(
                    _line(
                        f"{name}: {BY_NAME[name].text}",
                        share(tally.found, tally.faults),
                        share(tally.right, tally.faults),
                        tally.innocent,
                        tally.member,
                        tally.other,
                        tally.network,
                        f"{tally.waves / tally.clusters:.1f}",
                    ),
                    flush=True,
                )
                _report(name, count, rounds, tally)
            tally = sums[count, rounds] = sum(of_kind.values(), Tally())
            cells = (
                bound(tally.innocent, tally.clusters),
                tally.member,
                tally.other,
                tally.network,
                "",
            )
            print(_line(f"all {tally.clusters:,} clusters", "", "", *cells), flush=True)
            _kinds({**of_kind, "all": tally})
    return sums


def _kinds(tallies: Mapping[str, Tally]) -> None:
    """Print the figures of each kind of fault."""
    print()
    print(
        _head(
            "kind of fault",
            "clusters",
            "found",
            "right kind and members",
            "clusters with anything else named",
            "waves added",
            "CPU seconds",
        )
    )
    for kind, tally in tallies.items():
        print(
            _line(
                kind,
                tally.clusters,
                share(tally.found, tally.faults),
                share(tally.right, tally.faults),
                bound(tally.accused, tally.clusters),
                f"{tally.added / tally.clusters:.2f}",
                f"{tally.seconds / tally.clusters:.2f}",
            ),
            flush=True,
        )


def _report(name: str, count: int, rounds: int, tally: Tally) -> None:
    if tally.failed:
        seeds = " ".join(map(str, tally.failed[:12]))
        sys.stderr.write(f"{name} n={count} rounds={rounds} to look at: {seeds}\n")


def methods(pool: Pool, trials: int, count: int = 64) -> None:
    """Print the table of methods: found, clusters with an innocent node accused, rounds."""
    names = (*METHODS, "accept, 4 rounds", "accept, 8 rounds")
    print(f"\n{count} nodes, {trials:,} clusters in each cell: found / innocent accused / rounds\n")
    print(_head("world", *names))
    for world in COMPARED:
        jobs = [pool.start(partial(theirs, name, world.name, count), trials) for name in METHODS]
        jobs += [
            pool.start(partial(ours, world.name, count, rounds), trials)
            for rounds in (QUICK, STANDARD)
        ]
        cells = []
        for parts in jobs:
            tally = total(parts)
            found = f"{tally.right / tally.faults:.1%}" if tally.faults else "-"
            wrong = (tally.innocent + tally.member) / tally.clusters
            cells.append(f"{found} / {wrong:.1%} / {tally.waves / tally.clusters:.1f}")
        print(_line(f"{world.name}: {world.text}", *cells), flush=True)


def mixed(pool: Pool, trials: int, options: Options) -> dict[tuple[int, int], Tally]:
    """Print precision and recall over clusters with any fault."""
    print(f"\nAny fault, {trials:,} clusters in each line:\n")
    print(_head("nodes", "rounds", "precision", "recall", "innocent accused", "waves"))
    sums = {}
    for count in (c for c in options.sizes if c in (64, 256)):
        for rounds in options.rounds:
            tally = total(pool.start(partial(ours, MIXED.name, count, rounds), trials))
            sums[count, rounds] = tally
            cells = share(tally.true, tally.named), share(tally.right, tally.faults)
            waves = f"{tally.waves / tally.clusters:.1f}"
            wrong = bound(tally.innocent, tally.clusters)
            print(_line(count, rounds, *cells, wrong, waves), flush=True)
            _report(MIXED.name, count, rounds, tally)
    return sums


def same(pool: Pool, trials: int, options: Options, count: int = 64) -> Tally:
    """Print the share of clusters whose second measurement gives the same suspects."""
    print(f"\n{count} nodes, {STANDARD} rounds, measured twice, {trials} clusters in each world:\n")
    sums = Tally()
    names = (*options.worlds, MIXED.name)
    jobs = {n: pool.start(partial(twice, n, count, STANDARD), trials) for n in names}
    print(_head("world", "same suspects"))
    for name, parts in jobs.items():
        tally = total(parts)
        sums += tally
        if tally.changed:
            cells = share(tally.clusters - tally.changed, tally.clusters)
            print(_line(f"{name}: {BY_NAME[name].text}", cells), flush=True)
            _report(f"twice {name}", count, STANDARD, tally)
    print(_line("all worlds", share(sums.clusters - sums.changed, sums.clusters)), flush=True)
    return sums


def measured(options: Options) -> Iterator[Row]:
    """Print the tables, and yield the figures that have a bar."""
    with ProcessPoolExecutor() as executor:
        pool = Pool(executor)
        if "worlds" in options.tables:
            for (count, rounds), tally in worlds(pool, options).items():
                yield Row(
                    what=f"{tally.clusters:,} clusters of {count:,} nodes, {rounds} rounds",
                    measured=f"innocent accused in {bound(tally.innocent, tally.clusters)}",
                    bar="0",
                    met=not tally.innocent,
                )
        if "methods" in options.tables:
            methods(pool, options.trials or _PER_METHOD)
        if "mixed" in options.tables:
            sums = mixed(pool, options.trials or _MIXED, options)
            for (count, rounds), tally in sums.items():
                precision = tally.true / max(tally.named, 1)
                recall = tally.right / max(tally.faults, 1)
                yield Row(
                    what=f"any fault, {count:,} nodes, {rounds} rounds",
                    measured=f"precision {precision:.3f}, recall {recall:.3f}",
                    bar="0.99, 0.95",
                    met=precision >= 0.99 and recall >= 0.95,
                )
        if "twice" in options.tables:
            tally = same(pool, options.trials or _TWICE, options)
            unchanged = 1 - tally.changed / max(tally.clusters, 1)
            yield Row(
                what=f"{tally.clusters:,} clusters measured twice",
                measured=f"the same suspects in {unchanged:.1%}",
                bar="99.5%",
                met=unchanged >= 0.995,
            )


def rows(options: Options = Options()) -> list[Row]:
    """Print all tables, and return the figures that have a bar."""
    began = time.monotonic()
    print(f"Seed {SEED}.")
    result = list(measured(options))
    print(f"\n{time.monotonic() - began:.0f} s\n")
    return result


def main(arguments: Sequence[str]) -> None:
    """Print a part of the tables."""
    every = Options()
    parser = argparse.ArgumentParser()
    parser.add_argument("--sizes", type=int, nargs="+", default=every.sizes)
    parser.add_argument("--trials", type=int, default=0)
    parser.add_argument("--rounds", type=int, nargs="+", default=every.rounds)
    parser.add_argument("--worlds", nargs="+", choices=BY_NAME, default=every.worlds)
    parser.add_argument("--tables", nargs="+", choices=every.tables, default=every.tables)
    for row in rows(Options(**vars(parser.parse_args(arguments)))):
        print(_line(*row.cells()))


if __name__ == "__main__":
    main(sys.argv[1:])
