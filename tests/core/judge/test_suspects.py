"""Which host, link, rail or GPU is blamed for being slow."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest
from tests.factories.judging import ALL, EIGHT, PAIRS, blamed, gpu_inventory, gpu_plan, judged
from tests.factories.verdicts import (
    FLOOR,
    executed,
    hosts,
    hosts_record,
    measured,
    plan,
    record,
    slow,
    step,
    table,
)

from accept.core.causes import Cause
from accept.core.checks import REGISTRY
from accept.core.groups import Group
from accept.core.judge.remeasure import waves_again
from accept.core.judge.robust_stats import MOST_REPEATS
from accept.core.model import (
    Fact,
    GroupKind,
    Record,
    State,
    Step,
    Strength,
    Suspect,
    SuspectKind,
    Verdict,
)
from accept.core.serde import dump, read

# -- names ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "hosts", "device", "name"),
    [
        (SuspectKind.NODE, ("h1",), None, "h1"),
        (SuspectKind.GPU, ("h1",), "3", "h1:3"),
        (SuspectKind.NIC, ("h1",), "mlx5_0", "h1:mlx5_0"),
        (SuspectKind.LINK, ("h1", "h2"), None, "h1 - h2"),
        (SuspectKind.SWITCH, ("h1", "h2", "h9"), None, "h1 .. h9"),
        (SuspectKind.RAIL, (), "2", "rail 2"),
    ],
)
def test_name_for_people_follows_from_kind_hosts_and_device(
    kind: SuspectKind, hosts: tuple[str, ...], device: str | None, name: str
) -> None:
    suspect = Suspect(
        kind=kind, hosts=hosts, device=device, cause=Cause.CRASHED, strength=Strength.WEAK, why=""
    )
    assert dump(suspect)["name"] == suspect.name == name
    assert read(Suspect, {**dump(suspect), "name": "edited"}) == suspect


# -- population and degraded ----------------------------------------------------------------------


@pytest.mark.parametrize("bad", EIGHT)
def test_a_slow_host_among_eight_is_named_and_the_rest_passes(bad: str) -> None:
    verdict = judged(
        plan(ALL, PAIRS),
        hosts_record(EIGHT),
        *measured(ALL, EIGHT, slow(bad)),
        *measured(PAIRS, EIGHT, slow(bad)),
    )
    assert blamed(verdict) == {("node", bad, "slow-outlier")}
    assert verdict.suspects[0].evidence
    assert (verdict.state, verdict.exit, verdict.accepted) == (State.DEGRADED, 3, False)
    assert verdict.headline == f"degraded: {bad} slow-outlier (strong)"


def test_minus_six_percent_of_one_gpu_node_is_caught_by_the_pairs_though_above_the_floor() -> None:
    of, listed = gpu_inventory()
    speed = slow("h6", usual=360, factor=0.94)
    verdict = judged(
        gpu_plan(of, ALL, PAIRS, references=(FLOOR,)),
        hosts_record(EIGHT),
        *listed,
        *measured(ALL, EIGHT, speed),
        *measured(PAIRS, EIGHT, speed),
    )
    assert blamed(verdict) == {("node", "h6", "slow-outlier")}
    assert verdict.state is State.DEGRADED


def test_slow_pair_of_two_hosts_fails_and_names_neither() -> None:
    of, listed = gpu_inventory(2)
    verdict = judged(
        gpu_plan(of, PAIRS, references=(FLOOR,)),
        hosts_record(["h0", "h1"]),
        *listed,
        *measured(PAIRS, ["h0", "h1"], slow(usual=100)),
    )
    assert verdict.suspects == ()
    assert verdict.state is State.FAIL


def test_two_cpu_hosts_pass_and_the_report_says_that_nothing_could_be_compared() -> None:
    verdict = judged(
        plan(PAIRS), hosts_record(["h0", "h1"]), *measured(PAIRS, ["h0", "h1"], slow())
    )
    assert verdict.state is State.PASS
    assert any("too few" in f.message for f in verdict.checks[1].findings)


def test_one_slow_pair_that_was_not_measured_again_is_open_if_speed_is_promised() -> None:
    records = measured(PAIRS, EIGHT, slow())
    records[4] = replace(records[4], metrics=table("all-reduce", 3))
    assert judged(plan(PAIRS), hosts_record(EIGHT), *records).state is State.PASS
    of, listed = gpu_inventory()
    verdict = judged(
        gpu_plan(of, PAIRS, references=(replace(FLOOR, lower=1.0),)),
        hosts_record(EIGHT),
        *listed,
        *records,
    )
    assert verdict.suspects == ()
    assert verdict.state is State.INCONCLUSIVE


def test_a_slow_host_alone_among_each_is_named() -> None:
    of = step("all-reduce", "each")
    verdict = judged(plan(of), hosts_record(EIGHT), *measured(of, EIGHT, slow("h4")))
    assert blamed(verdict) == {("node", "h4", "slow-outlier")}


def rails(bad_rail: int, bad_host: str | None) -> tuple[Step, list[Record]]:
    of = step("all-reduce", "rails")
    records = [
        record(
            of,
            Group(hosts=EIGHT, local_ranks=(rail,)),
            *table("all-reduce", 50 if rail == bad_rail else 100),
            number=rail,
        )
        for rail in range(8)
    ]
    follow = [
        record(
            of,
            Group(hosts=r.hosts, local_ranks=(bad_rail,)),
            *r.metrics,
            wave=1 + r.wave,
            number=r.group,
        )
        for r in measured(
            replace(of, groups=GroupKind.PAIRS, rounds=3),
            EIGHT,
            slow(*([bad_host] if bad_host else []), usual=100),
        )
    ]
    return of, [*records, *follow]


def test_a_slow_rail_whose_pairs_name_a_host_accuses_its_gpu() -> None:
    of, records = rails(5, "h2")
    inventory, listed = gpu_inventory()
    verdict = judged(
        gpu_plan(inventory, of, references=(FLOOR,)), hosts_record(EIGHT), *listed, *records
    )
    parts = {suspect.part for suspect in verdict.suspects}
    assert ("gpu", ("h2",), "5") in parts
    assert not any(kind == "rail" for kind, _, _ in parts)


def test_slow_rails_are_known_while_the_run_goes_on() -> None:
    of, records = rails(5, None)
    whole = [r for r in records if r.wave == 0]

    def followed(records: list[Record]) -> set[tuple[int, ...]]:
        waves = waves_again(gpu_plan(of), of, records, EIGHT, {}, checks=REGISTRY)
        return {group.local_ranks for wave in waves for group in wave}

    assert followed(whole) == {(5,)}
    dead = [replace(whole[2], metrics=(), exit=1)]
    assert followed([*whole[:2], *dead, *whole[3:]]) == {(2,), (5,)}
    assert followed(whole[:5]) == set()


def test_a_slow_rail_whose_pairs_name_nobody_is_accused_itself() -> None:
    of, records = rails(5, None)
    inventory, listed = gpu_inventory()
    verdict = judged(
        gpu_plan(inventory, of, references=(FLOOR,)), hosts_record(EIGHT), *listed, *records
    )
    assert [suspect.part for suspect in verdict.suspects] == [("rail", (), "5")]


@pytest.mark.parametrize(("slow", "cause"), [(1, None), (2, "intermittent")])
@pytest.mark.parametrize("groups", [GroupKind.RAILS, GroupKind.LADDER, GroupKind.EACH])
def test_what_is_slow_in_some_of_five_executions(
    groups: GroupKind, slow: int, cause: str | None
) -> None:
    def group(number: int) -> Group:
        if groups is GroupKind.RAILS:
            return Group(hosts=EIGHT, local_ranks=(number,))
        return Group(
            hosts=hosts(16)[2 * number : 2 * number + (2 if groups is GroupKind.LADDER else 1)]
        )

    of = step("all-reduce", groups)
    records = [
        record(of, group(number), *table("all-reduce", 50 if bad else 100), number=number, wave=run)
        for run in range(5)
        for number in range(8)
        for bad in [number == 3 and run < slow]
    ]
    inventory, listed = gpu_inventory()
    names = EIGHT if groups is GroupKind.RAILS else hosts(16)
    verdict = judged(
        gpu_plan(inventory, of, references=(FLOOR,)), hosts_record(names), *listed, *records
    )
    assert {s.cause for s in verdict.suspects} == ({cause} if cause else set())
    if cause == "intermittent":
        assert f"slow in {slow} of 5 executions" in verdict.suspects[0].why


def measure_again(
    of: Step, records: list[Record], names: Sequence[str], speed: Callable[[Group], float]
) -> None:
    """Add the records of the waves that a run would measure again."""
    of = replace(of, repeats=MOST_REPEATS)
    while again := waves_again(gpu_plan(of), of, records, names, {}, checks=REGISTRY):
        first = 1 + max(r.wave for r in records)
        records += [replace(r, wave=first + r.wave) for r in executed(of, again, speed)]


# -- near and far ---------------------------------------------------------------------------------


def test_hosts_that_are_slower_across_racks_only_are_healthy() -> None:
    """Pairs in a rack are 8 % faster; the other pairs are still as fast as they should be."""
    names = hosts(32)
    of = step("all-reduce", "pairs", rounds=4)
    rack = {name: index // 8 for index, name in enumerate(names)}

    def speed(group: Group) -> float:
        a, b = group.hosts
        return 432.0 if rack[a] == rack[b] else 400.0

    records = measured(of, names, speed, ranks=8)
    inventory, listed = gpu_inventory(32)
    verdict = judged(
        gpu_plan(inventory, of, references=(FLOOR,)), hosts_record(names), *listed, *records
    )
    assert blamed(verdict) == set()
    measure_again(of, records, names, speed)
    verdict = judged(
        gpu_plan(inventory, of, references=(FLOOR,)), hosts_record(names), *listed, *records
    )
    assert blamed(verdict) == set()
    assert verdict.state is State.PASS

    def speed_with_h3(group: Group) -> float:
        return speed(group) * (0.9 if "h3" in group.hosts else 1)

    bad = measured(of, names, speed_with_h3, ranks=8)
    measure_again(of, bad, names, speed_with_h3)
    verdict = judged(
        gpu_plan(inventory, of, references=(FLOOR,)), hosts_record(names), *listed, *bad
    )
    assert {name for kind, name, _ in blamed(verdict) if kind == "node"} == {"h3"}


def pairs_of_ten(seed: int, near: set[str], bad: str = "", *, places: bool = False) -> Verdict:
    """Judge ten hosts, `near` under a second switch; pairs under one switch are 10 % faster."""
    names = hosts(10)
    of = step("all-reduce", "pairs", rounds=4)

    def speed(group: Group) -> float:
        together = len(near.intersection(group.hosts)) != 1
        return (440.0 if together else 400.0) * (0.9 if bad in group.hosts else 1)

    records = measured(of, names, speed, seed=seed, ranks=8)
    measure_again(of, records, names, speed)
    inventory, listed = gpu_inventory(10)
    start = hosts_record(names)
    if places:
        facts = [Fact(name="place", host=h, value=f"row/{h in near}/{h}") for h in names]
        start = replace(start, facts=tuple(facts))
    return judged(gpu_plan(inventory, of, references=(FLOOR,)), start, *listed, *records)


@pytest.mark.parametrize("seed", range(1, 21))
def test_two_hosts_far_from_all_others_meet_before_they_are_accused(seed: int) -> None:
    verdict = pairs_of_ten(seed, {"h3", "h7"})
    assert blamed(verdict) == set()
    assert verdict.state is State.PASS


@pytest.mark.parametrize("seed", range(1, 11))
def test_a_slow_host_near_others_is_never_taken_for_a_far_one(seed: int) -> None:
    verdict = pairs_of_ten(seed, {"h3", "h7"}, "h5")
    assert verdict.state is not State.PASS
    assert all("h5" in suspect.hosts for suspect in verdict.suspects)


def test_places_tell_a_host_that_is_alone_under_its_switch_from_a_slow_one() -> None:
    unknown = pairs_of_ten(1, {"h3"})
    assert unknown.state is not State.PASS
    assert pairs_of_ten(1, {"h3"}, places=True).state is State.PASS
