"""Simulated clusters with faults: the judge names them, and never accuses innocent nodes.

Everything is judged from records, as a run is. `make bench ARGS=blame` measures the rates; these
tests use few clusters of each world, with seeds.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import product
from statistics import median

import pytest
from tests.factories.judging import judged
from tests.factories.relabeled import Renamed, dealt, part, renumbered, reordered, shown
from tests.factories.simulated_cluster import Cluster, border, rate, slow_nodes
from tests.factories.simulated_runs import REPEATS, SimulatedRun, run_of
from tests.factories.simulated_worlds import BY_NAME, KINDS, WORLDS, World, named, score

from accept.core.causes import Cause
from accept.core.records import Metric, Record
from accept.core.verdict import Strength, SuspectKind

#: Nodes of the clusters of each world.
_SIZES = (10, 16, 24)
_ROUNDS = 8
#: Worlds in which a fault may remain unnamed, because its effect is too small or too rare, or in
#: which the distance between blocks is at its limit.
_HARD = {"node-3", "w6", "often-pairs", "gpu-pairs", "rail-same", "apart-15"}
#: With so few nodes, one in 100 clusters has a node with most of its pairs bad by chance.
_BY_CHANCE = {("pairs-20-70", 10), ("pairs-20-6", 10)}


def planned(name: str, count: int, seed: int, rounds: int = _ROUNDS) -> SimulatedRun:
    """Return a run of a world without the waves that the judge would add."""
    cluster = BY_NAME[name].cluster(count, rounds, seed, schedule=seed)
    return run_of(cluster, rounds, seed=seed)


def accused(run: SimulatedRun, records: Sequence[Record]) -> set[int]:
    """Return the hosts that are accused, also as a part, if these are the records of a run."""
    return named(judged(run.plan, *records).suspects)


# -- faults ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", [20261139, 20261205, 20261218])
def test_a_bad_node_that_is_nearly_certain_beside_others_is_open(seed: int) -> None:
    """Two others are accused, and explain one or two of the four bad pairs of the third."""
    schedule = seed - 20_261_123
    cluster = BY_NAME["w2"].cluster(64, 4, seed, schedule=schedule)
    verdict = run_of(cluster, 4, seed=schedule).verdict
    findings = [one for check in verdict.checks for one in check.findings]
    unproven = {h for one in findings if one.cause is Cause.UNPROVEN for h in one.hosts}
    assert {int(host[1:]) for host in unproven} | named(verdict.suspects) == cluster.bad
    assert len(named(verdict.suspects)) == 2


@pytest.mark.sampled
@pytest.mark.parametrize("world", WORLDS, ids=lambda world: world.name)
def test_faults_are_named_and_no_innocent_node_is_accused(world: World) -> None:
    for seed, count in enumerate(_SIZES):
        if (world.name, count) in _BY_CHANCE:
            continue
        cluster = world.cluster(count, _ROUNDS, seed, schedule=seed)
        run = run_of(cluster, _ROUNDS, seed=seed, again=True)
        result = score(cluster, run)
        assert not result.innocent, count
        if count > min(_SIZES) and world.name not in _HARD:
            assert result.right == result.faults, count
            assert not result.other, count
        assert_waves(run)


@pytest.mark.rare
@pytest.mark.sampled
@pytest.mark.parametrize("seed", [9, 12, 14, 20])
def test_the_edge_of_a_leaf_is_found_beside_a_bad_node(seed: int) -> None:
    """Pairs of the node are slow on either side: it looked like a member, or like a bad GPU."""
    cluster = BY_NAME["leaf-node"].cluster(64, _ROUNDS, 20261123 + seed, schedule=seed)
    result = score(cluster, run_of(cluster, _ROUNDS, seed=seed, again=True))
    assert (result.right, result.other) == (result.faults, False)


@pytest.mark.rare
@pytest.mark.parametrize("seed", [41, 231])
def test_hosts_with_the_same_bad_gpu_meet_if_a_leaf_may_be_the_reason(seed: int) -> None:
    """Another GPU of one of them took part whenever that one did."""
    cluster = BY_NAME["leaf-two"].cluster(64, _ROUNDS, 20261123 + seed, schedule=seed)
    result = score(cluster, run_of(cluster, _ROUNDS, seed=seed, again=True))
    assert (result.right, result.named) == (1, 1)


@pytest.mark.rare
def test_hosts_that_a_leaf_explains_as_well_are_not_strong_suspects() -> None:
    """No wave happened to use the bad GPU of both hosts."""
    cluster = BY_NAME["leaf-two"].cluster(64, _ROUNDS, 20261123 + 264, schedule=264)
    run = run_of(cluster, _ROUNDS, seed=264, again=True)
    for one in run.verdict.suspects:
        assert one.strength is Strength.MODERATE
        assert "cannot be distinguished from leaf of h1, h9 through GPU 3" in one.why


def assert_waves(run: SimulatedRun) -> None:
    """Each host is in one group of a wave, and only so many waves are added."""
    assert run.added <= REPEATS * len(run.plan.steps)
    for key in {(r.step, r.wave) for r in run.records}:
        busy = [h for r in run.records if (r.step, r.wave) == key for h in r.hosts]
        assert len(busy) == len(set(busy)), key


@pytest.mark.sampled
@pytest.mark.parametrize("world", KINDS["healthy"], ids=lambda world: world.name)
def test_healthy_clusters_accuse_nothing(world: World) -> None:
    for seed, (count, rounds) in product(range(3), ((2, 1), (3, 3), (4, 3), (10, 4), (24, 5))):
        cluster = world.cluster(count, rounds, seed, schedule=seed)
        assert not run_of(cluster, rounds, seed=seed, again=True).verdict.suspects, (count, seed)


def test_the_fabric_is_named_if_bad_pairs_follow_no_host() -> None:
    for name in ("w3", "w4", "pairs-20-6", "pairs-dead"):
        run = run_of(BY_NAME[name].cluster(64, _ROUNDS, 1), _ROUNDS, again=True)
        assert [one.kind for one in run.verdict.suspects] == [SuspectKind.FABRIC], name


@pytest.mark.rare
def test_few_rounds_of_a_large_cluster_name_two_groups() -> None:
    cluster = BY_NAME["w7"].cluster(1024, 5, 1)
    (one,) = run_of(cluster, 5).verdict.suspects
    (fault,) = cluster.faults
    assert fault.is_named_by(one)
    assert len(one.hosts) == len(one.others) == 512


def test_nothing_is_measured_again_if_nothing_is_an_outlier() -> None:
    assert run_of(BY_NAME["w0"].cluster(64, _ROUNDS, 1), _ROUNDS, again=True).added == 0


@pytest.mark.sampled
@pytest.mark.parametrize("name", ["w1", "w5", "w7", "leaf", "gpu"])
def test_a_second_measurement_of_a_cluster_names_the_same_suspects(name: str) -> None:
    clusters = (BY_NAME[name].cluster(64, _ROUNDS, 1, noise=noise) for noise in (0, 1))
    one, two = (run_of(cluster, _ROUNDS, again=True).verdict.suspects for cluster in clusters)
    assert {*map(part, one)} == {*map(part, two)}


# -- what does not matter, and what only clears ----------------------------------------------------


@pytest.mark.sampled
@pytest.mark.parametrize(
    ("seed", "world"),
    [(seed, world) for seed in range(10) for world in WORLDS[seed % 3 :: 3]],
    ids=lambda one: one.name if isinstance(one, World) else None,
)
def test_names_and_order_of_hosts_and_gpus_do_not_matter(seed: int, world: World) -> None:
    count = (6, 8, 16)[seed // 3 % 3]
    chance = random.Random(f"{world.name}:{seed}")
    run = planned(world.name, count, seed)
    # GPUs that always take part together cannot be distinguished.
    numbers = list(range(8)) if "same" in world.name else chance.sample(range(8), 8)
    new = dealt(run.verdict.hosts, chance)
    records = renumbered(reordered(new.records(run.records[1:]), chance), numbers)
    again = judged(new.plan(run.plan), *new.records(run.records[:1]), *records)
    old = {str(number): str(gpu) for gpu, number in enumerate(numbers)}
    suspects = tuple(
        replace(one, device=old.get(one.device or "", one.device)) for one in again.suspects
    )
    assert shown(replace(again, suspects=suspects), new.old) == shown(run.verdict)


@pytest.mark.parametrize("seed", [0, 3, 5, 8])
def test_names_do_not_matter_if_a_bad_node_makes_both_sides_of_a_border_equal(seed: int) -> None:
    """The node looks like a member of the smaller side; then names decide which side is first."""
    effects = border(range(7), 0.7), slow_nodes({12}, 0.7)
    cluster = Cluster(count=16, effects=effects, chance=random.Random(seed))
    run = run_of(cluster, _ROUNDS, seed=seed)
    assert named(run.verdict.suspects, SuspectKind.NODE) == {12}
    hosts = run.verdict.hosts
    new = Renamed(dict(zip(hosts, reversed(hosts), strict=True)))
    again = judged(new.plan(run.plan), *new.records(run.records))
    assert shown(again, new.old) == shown(run.verdict)


def test_names_do_not_matter_if_two_groups_explain_as_much() -> None:
    """The order of the hosts by name chose between them, and one of them was shown to be open."""
    run = planned("leaf", 6, 0)
    new = dealt(run.verdict.hosts, random.Random("leaf:6:0"))
    again = judged(new.plan(run.plan), *new.records(run.records))
    assert shown(again, new.old) == shown(run.verdict)


#: Worlds in which at most a fifth of the pairs are bad.
_FEW_BAD = (
    *(world for kind in ("node", "bad pairs", "GPU", "link") for world in KINDS[kind]),
    BY_NAME["leaf-two"],
    BY_NAME["w9"],
)


@pytest.mark.sampled
@pytest.mark.parametrize("world", _FEW_BAD, ids=lambda world: world.name)
def test_speeds_that_are_dealt_to_random_pairs_accuse_only_the_fabric(world: World) -> None:
    for seed in range(3):
        run = planned(world.name, 24, seed)
        first, *pairs = (r for r in run.records if len(r.hosts) != 1)
        results = [(r.exit, r.metrics) for r in pairs]
        random.Random(seed).shuffle(results)
        mixed = [
            replace(r, exit=status, metrics=metrics)
            for r, (status, metrics) in zip(pairs, results, strict=True)
        ]
        kinds = {one.kind for one in judged(run.plan, first, *mixed).suspects}
        assert kinds <= {SuspectKind.FABRIC}, seed


@pytest.mark.sampled
@pytest.mark.parametrize("world", WORLDS, ids=lambda world: world.name)
def test_more_good_pairs_of_a_host_never_accuse_it(world: World) -> None:
    run = planned(world.name, 16, 2)
    before = named(run.verdict.suspects, *SuspectKind)
    free = [host for host in run.verdict.hosts if int(host[1:]) not in before]
    good = good_records(run, free)
    assert not accused(run, (*run.records, *good)).intersection(int(h[1:]) for h in free)


def good_records(run: SimulatedRun, hosts: Sequence[str]) -> list[Record]:
    """Return a wave of pairs of neighbors that reach the median of all values of each kind."""
    of = run.plan.steps[0]
    own = [r for r in run.records if r.step == of.id and r.metrics]
    values: dict[tuple[object, ...], list[float]] = {}
    for record in own:
        for metric in record.metrics:
            values.setdefault(_population(metric), []).append(metric.value)
    usual = max(own, key=lambda r: len(r.metrics))
    metrics = tuple(replace(m, value=median(values[_population(m)])) for m in usual.metrics)
    facts = {h: [f for r in own for f in r.facts if f.host == h][:1] for h in hosts}
    return [
        replace(
            usual,
            wave=1 + max(r.wave for r in own),
            group=number,
            hosts=pair,
            exit=0,
            log=f"logs/good/{number}.log",
            metrics=metrics,
            facts=tuple(fact for host in pair for fact in facts[host]),
        )
        for number, pair in enumerate(zip(hosts[::2], hosts[1::2], strict=False))
    ]


def _population(metric: Metric) -> tuple[object, ...]:
    return metric.check, metric.name, metric.size, metric.placement


@pytest.mark.sampled
@pytest.mark.parametrize("world", WORLDS, ids=lambda world: world.name)
def test_without_its_records_a_suspect_is_cleared_and_no_other_host_is_accused(
    world: World,
) -> None:
    run = planned(world.name, 24, 3)
    guilty = named(run.verdict.suspects)
    if not guilty:
        return
    hosts = {f"h{number}" for number in guilty}
    first = replace(run.records[0], hosts=tuple(h for h in run.verdict.hosts if h not in hosts))
    rest = [r for r in run.records[1:] if hosts.isdisjoint(r.hosts)]
    assert accused(run, (first, *rest)) == set()


# -- bad input -------------------------------------------------------------------------------------


_EXTREME: dict[str, Callable[[float], float]] = {
    "zero": lambda _: 0.0,
    "tiny": lambda value: value / 1e6,
    "huge": lambda value: value * 1e6,
    "negative": lambda value: -value,
    "NaN": lambda _: math.nan,
    "infinite": lambda _: math.inf,
}


@pytest.mark.parametrize("change", _EXTREME.values(), ids=list(_EXTREME))
@pytest.mark.parametrize(("count", "changed"), [(2, 1), (3, 1), (16, 1), (16, 999)])
def test_extreme_values_accuse_no_host(
    count: int, changed: int, change: Callable[[float], float]
) -> None:
    run = planned("w0", count, 1)
    odd = [
        replace(r, metrics=tuple(replace(m, value=change(m.value)) for m in r.metrics))
        for r in run.records[1 : 1 + changed]
    ]
    assert accused(run, (run.records[0], *odd, *run.records[1 + changed :])) == set()


@pytest.mark.parametrize("count", [1, 2, 3, 16])
def test_when_everything_fails_no_host_is_accused(count: int) -> None:
    cluster = Cluster(count=count, effects=(lambda _: 0.0,))
    assert named(run_of(cluster, 4, again=True).verdict.suspects) == set()


def test_hosts_that_occur_once_or_in_the_same_logs_twice_are_not_accused() -> None:
    for seed in range(5):
        assert named(planned("node-50", 32, seed, rounds=1).verdict.suspects) == set()
        run = planned("pairs-10-6", 16, seed)
        assert accused(run, (*run.records, *run.records[1:])) == set()


@pytest.mark.rare
def test_hundreds_of_collectives_are_judged() -> None:
    run = planned("four-node", 8, 1)
    steps = [replace(of, id=f"{n:03d}-{of.id}") for n in range(100) for of in run.plan.steps]
    records = [
        replace(r, step=of.id, log=f"{of.id}/{r.log}") for of in steps for r in run.records[1:]
    ]
    verdict = judged(replace(run.plan, steps=tuple(steps)), run.records[0], *records)
    assert named(verdict.suspects) <= BY_NAME["four-node"].cluster(8, _ROUNDS, 1).bad


# -- what a run states about itself ----------------------------------------------------------------


def test_bounds_of_a_rate_contain_the_measured_rate() -> None:
    low, high = rate(0, 3000)
    assert low == pytest.approx(0)
    assert high == pytest.approx(0.00128, abs=2e-5)
    assert rate(0, 0) == (0.0, 1.0)


@pytest.mark.parametrize(("count", "clusters"), [(8, 40), (16, 20), (64, 5)])
def test_the_slowdown_that_a_run_states_is_found(count: int, clusters: int) -> None:
    """A larger simulation gave 300 of 300, 299 of 300 and 199 of 200 clusters."""
    found = 0
    for seed in range(clusters):
        healthy = Cluster(count=count, chance=random.Random(f"{count}:{seed}"))
        stated = run_of(healthy, 5, seed=seed).verdict.detectable
        assert stated is not None
        bad = frozenset({seed % count})
        slow = Cluster(
            count=count,
            effects=(slow_nodes(bad, 1 - stated.slowdown),),
            chance=random.Random(f"{count}:{seed}"),
        )
        found += bad <= named(run_of(slow, 5, seed=seed, again=True).verdict.suspects)
    assert found >= clusters - 1


def test_no_slowdown_is_stated_for_few_hosts() -> None:
    assert planned("w0", 7, 1).verdict.detectable is None
    stated = planned("w0", 8, 1).verdict.detectable
    assert stated is not None
    assert 0.05 < stated.slowdown < 0.09
