"""Blame the right host, link, rail or GPU for being slow."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest
from tests.factories.judging import (
    ALL,
    EIGHT,
    PAIRS,
    blamed,
    causes,
    gpu_inventory,
    gpu_plan,
    judged,
)
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
from accept.core.judge.rounds import MOST_REPEATS
from accept.core.judge.suspects import merged
from accept.core.model import (
    Fact,
    GroupKind,
    Problem,
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
def test_the_name_is_made_from_kind_hosts_and_device(
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


def test_a_gpu_node_six_percent_slow_is_caught_by_its_pairs_although_above_the_floor() -> None:
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


def test_a_slow_pair_of_two_hosts_fails_and_names_neither() -> None:
    of, listed = gpu_inventory(2)
    verdict = judged(
        gpu_plan(of, PAIRS, references=(FLOOR,)),
        hosts_record(["h0", "h1"]),
        *listed,
        *measured(PAIRS, ["h0", "h1"], slow(usual=100)),
    )
    assert verdict.suspects == ()
    assert verdict.state is State.FAIL


def test_two_cpu_hosts_pass_and_the_report_shows_that_nothing_could_be_compared() -> None:
    verdict = judged(
        plan(PAIRS), hosts_record(["h0", "h1"]), *measured(PAIRS, ["h0", "h1"], slow())
    )
    assert verdict.state is State.PASS
    assert any("too few" in f.message for f in verdict.checks[1].findings)


def test_one_slow_pair_that_was_not_measured_again_is_open() -> None:
    records = measured(PAIRS, EIGHT, slow())
    records[4] = replace(records[4], metrics=table("all-reduce", 3))
    unpromised = judged(plan(PAIRS), hosts_record(EIGHT), *records)
    assert (unpromised.state, causes(unpromised)) == (State.INCONCLUSIVE, {"unproven"})
    of, listed = gpu_inventory()
    verdict = judged(
        gpu_plan(of, PAIRS, references=(replace(FLOOR, lower=1.0),)),
        hosts_record(EIGHT),
        *listed,
        *records,
    )
    assert verdict.suspects == ()
    assert verdict.state is State.INCONCLUSIVE
    measure_again(PAIRS, records, EIGHT, slow())
    assert judged(plan(PAIRS), hosts_record(EIGHT), *records).state is State.PASS


def test_a_slow_host_among_hosts_measured_alone_is_named() -> None:
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


def test_slow_rails_are_measured_again_during_the_run() -> None:
    of, records = rails(5, None)
    whole = [r for r in records if r.wave == 0]

    def followed(records: list[Record]) -> set[tuple[int, ...]]:
        waves = waves_again(gpu_plan(of), of, records, EIGHT, {}, checks=REGISTRY)
        return {group.local_ranks for wave in waves for group in wave}

    assert followed(whole) == {(5,)}
    dead = [replace(whole[2], metrics=(), exit=1)]
    assert followed([*whole[:2], *dead, *whole[3:]]) == {(2,), (5,)}
    assert followed(whole[:5]) == set()


def test_pairs_on_all_rails_below_their_bound_follow_and_name_a_host() -> None:
    """No rail is an outlier if all are slow."""
    of, records = rails(5, "h2")
    whole = [replace(r, metrics=tuple(table("all-reduce", 50))) for r in records if r.wave == 0]
    inventory, listed = gpu_inventory()
    bound = replace(FLOOR, lower=70.0, per_rail=True, min_nodes=2)
    planned = gpu_plan(inventory, of, references=(bound,))
    (*_, last) = waves_again(planned, of, whole, EIGHT, {}, checks=REGISTRY)
    assert {group.local_ranks[0] for group in last} == set(range(8))
    follow = [r for r in records if r.wave > 0]
    verdict = judged(planned, hosts_record(EIGHT), *listed, *whole, *follow)
    assert {(s.kind, s.hosts, s.device) for s in verdict.suspects} == {("gpu", ("h2",), "5")}


def test_a_slow_rail_whose_pairs_name_nobody_is_accused_itself() -> None:
    of, records = rails(5, None)
    inventory, listed = gpu_inventory()
    verdict = judged(
        gpu_plan(inventory, of, references=(FLOOR,)), hosts_record(EIGHT), *listed, *records
    )
    assert [suspect.part for suspect in verdict.suspects] == [("rail", (), "5")]


@pytest.mark.parametrize(("slow", "cause"), [(1, None), (2, "intermittent")])
@pytest.mark.parametrize("groups", [GroupKind.RAILS, GroupKind.LADDER, GroupKind.EACH])
def test_a_part_that_is_slow_in_part_of_five_executions_has_a_cause(
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
    found = {str(s.cause) for s in verdict.suspects}
    if groups is GroupKind.LADDER or (groups is GroupKind.RAILS and cause == "intermittent"):
        found = causes(verdict) & {"intermittent", "slow-outlier"}
    assert found == ({cause} if cause else set())
    if cause == "intermittent" and verdict.suspects:
        assert f"slow in {slow} of 5 executions" in verdict.suspects[0].why


def test_a_bad_block_of_a_ladder_is_a_finding_with_counts_and_accuses_nobody() -> None:
    of = step("all-reduce", "ladder")
    inventory, listed = gpu_inventory(16)
    records = measured(of, hosts(16), slow(usual=400))
    records[3] = replace(records[3], metrics=table("all-reduce", 350))
    again = replace(records[3], wave=9, log="again")
    verdict = judged(
        gpu_plan(inventory, of, references=(FLOOR,)),
        hosts_record(hosts(16)),
        *listed,
        *records,
        again,
    )
    assert (verdict.state, verdict.suspects) == (State.FAIL, ())
    messages = [f.message for c in verdict.checks for f in c.findings if f.cause == "slow-outlier"]
    assert any("in 2 of 2 executions" in text and "0 of 7" in text for text in messages)


def measure_again(
    of: Step, records: list[Record], names: Sequence[str], speed: Callable[[Group], float | None]
) -> None:
    """Add the records of the waves that a run would measure again."""
    of = replace(of, repeats=MOST_REPEATS)
    while again := waves_again(gpu_plan(of), of, records, names, {}, checks=REGISTRY):
        first = 1 + max(r.wave for r in records)
        records += [replace(r, wave=first + r.wave) for r in executed(of, again, speed)]


# -- one suspect for one part ----------------------------------------------------------------------


def full_nodes(
    speed: Callable[[Group], float],
    *,
    problems: tuple[Problem, ...] = (),
    facts: tuple[Fact, ...] = (),
) -> Verdict:
    """Judge 16 hosts: alone, in pairs and by rails; only groups of a rail use one GPU."""
    names = hosts(16)
    inventory, records = gpu_inventory(16)
    steps = [
        step("all-reduce", "each", number=20),
        step("all-reduce", "pairs", rounds=5, number=30),
        step("all-reduce", "rails", number=40),
    ]
    for of in steps:
        own = measured(of, names, speed, ranks=8)
        measure_again(of, own, names, speed)
        records += [replace(r, facts=(*r.facts, *facts)) if len(r.hosts) > 1 else r for r in own]
    planned = gpu_plan(inventory, *steps, references=(FLOOR,))
    return judged(planned, hosts_record(names, *problems), *records)


def uses(group: Group, rank: int) -> bool:
    return not group.local_ranks or rank in group.local_ranks


def test_a_gpu_that_is_slow_alone_in_pairs_and_on_its_rail_is_one_suspect() -> None:
    verdict = full_nodes(lambda g: 200.0 if "h5" in g.hosts and uses(g, 3) else 400.0)
    assert [s.part for s in verdict.suspects] == [("gpu", ("h5",), "3")]
    assert verdict.state is State.DEGRADED


def test_two_slow_gpus_of_a_host_are_one_suspect_and_no_fault_of_their_rails() -> None:
    verdict = full_nodes(
        lambda g: 200.0 if "h5" in g.hosts and (uses(g, 3) or uses(g, 4)) else 400.0
    )
    assert [s.part for s in verdict.suspects] == [("node", ("h5",), None)]
    assert "GPUs 3, 4" in verdict.suspects[0].why


def test_a_host_that_is_slow_through_all_gpus_is_a_node() -> None:
    verdict = full_nodes(lambda g: 200.0 if "h5" in g.hosts else 400.0)
    assert [s.part for s in verdict.suspects] == [("node", ("h5",), None)]


@pytest.mark.parametrize("size", [3, 6])
def test_a_leaf_in_runs_of_full_nodes_is_one_suspect(size: int) -> None:
    group = set(hosts(16)[:size])

    def speed(of: Group) -> float:
        return 200.0 if uses(of, 3) and 0 < len(group & set(of.hosts)) < len(of.hosts) else 400.0

    verdict = full_nodes(speed)
    assert [(s.kind, set(s.hosts), s.device) for s in verdict.suspects] == [("leaf", group, "3")]


def test_a_border_is_named_although_a_gpu_slows_one_of_its_rails_more() -> None:
    group = set(hosts(16)[:6])

    def speed(of: Group) -> float:
        if "h9" in of.hosts and uses(of, 3):
            return 100.0
        return 250.0 if 0 < len(group & set(of.hosts)) < len(of.hosts) else 400.0

    bad, network = full_nodes(speed).suspects
    assert (bad.hosts, bad.of_network) == (("h9",), False)
    # Only rail 3 was measured in pairs again, so its leaf would explain the pairs, too.
    assert {*network.hosts} in (group, {*hosts(16)} - group)
    assert network.kind in (SuspectKind.BORDER, SuspectKind.LEAF)


@pytest.mark.parametrize(
    ("of_gpu", "of_node", "kinds"),
    [
        (Cause.SLOW_OUTLIER, Cause.BELOW_REFERENCE, ["gpu"]),
        (Cause.WRONG_DATA, Cause.WRONG_DATA, ["gpu"]),
        (Cause.SLOW_OUTLIER, Cause.WRONG_DATA, ["node", "gpu"]),
        (Cause.GPU_ECC, Cause.SLOW_OUTLIER, ["node", "gpu"]),
    ],
)
def test_a_node_and_its_gpu_with_faults_of_one_sort_are_one_suspect(
    of_gpu: Cause, of_node: Cause, kinds: list[str]
) -> None:
    def suspect(kind: SuspectKind, cause: Cause, device: str | None) -> Suspect:
        return Suspect(
            kind=kind,
            hosts=("h1",),
            device=device,
            cause=cause,
            strength=Strength.STRONG,
            why=f"counts of {kind}",
            evidence=(f"{kind}.log",),
        )

    gpu, node = suspect(SuspectKind.GPU, of_gpu, "3"), suspect(SuspectKind.NODE, of_node, None)
    found = merged([node, gpu], EIGHT)
    assert [s.kind for s in found] == kinds
    if kinds == ["gpu"]:
        assert found[0].evidence == ("gpu.log", "node.log")
        assert "counts of node" in found[0].why
    assert len(merged([node, gpu, replace(gpu, device="4")], EIGHT)) == 3


@pytest.mark.parametrize(
    ("alone", "gpu", "expected"),
    [
        # Slow only in pairs: the NIC with errors is the reason.
        (False, None, [("nic", "mlx5_3")]),
        (False, 3, [("nic", "mlx5_3")]),
        # Slow also without other hosts: there are two faults.
        (True, None, [("node", None), ("nic", "mlx5_3")]),
        (True, 3, [("gpu", "3"), ("nic", "mlx5_3")]),
    ],
)
def test_a_nic_with_errors_explains_a_host_that_is_slow_only_with_others(
    *, alone: bool, gpu: int | None, expected: list[tuple[str, str | None]]
) -> None:
    def speed(group: Group) -> float:
        is_slow = "h5" in group.hosts and (gpu is None or uses(group, gpu))
        return 200.0 if is_slow and (alone or len(group.hosts) > 1) else 400.0

    errors = Problem(
        cause=Cause.NIC_ERRORS, message="9 symbol errors", check="health", host="h5", nic="mlx5_3"
    )
    verdict = full_nodes(speed, problems=(errors,))
    assert [(s.kind, s.device) for s in verdict.suspects] == expected
    if gpu is not None:
        # NCCL uses another NIC for this GPU.
        other = Fact(name="nccl-nics", value={"h5": {str(gpu): ["mlx5_7"]}})
        assert len(full_nodes(speed, problems=(errors,), facts=(other,)).suspects) == 2
    (nic,) = (s for s in verdict.suspects if s.kind is SuspectKind.NIC)
    assert nic.cause is Cause.NIC_ERRORS
    assert ("pairs" in nic.why) is not alone


#: GPUs 2 and 3 share a NIC, or each GPU has its own.
SHARED = {gpu: [f"mlx5_{gpu // 2}"] for gpu in range(8)}
OWN = {gpu: [f"mlx5_{gpu}"] for gpu in range(8)}


@pytest.mark.parametrize(
    ("nics", "bad", "parts"),
    [
        (SHARED, (2, 3), {("nic", "mlx5_1"): "no other GPU uses mlx5_1"}),
        (
            SHARED,
            (1, 2),
            {("gpu", "1"): "GPU 1 or its NIC mlx5_0", ("gpu", "2"): "GPU 2 or its NIC mlx5_1"},
        ),
        (
            OWN,
            (2, 3),
            {
                ("nic", "mlx5_2"): "GPU 2 or its NIC mlx5_2",
                ("nic", "mlx5_3"): "GPU 3 or its NIC mlx5_3",
            },
        ),
        (OWN, (3,), {("nic", "mlx5_3"): "GPU 3 or its NIC mlx5_3"}),
        ({}, (3,), {("gpu", "3"): "GPU 3 or its NIC"}),
    ],
)
def test_a_nic_is_named_if_its_gpus_are_slow_and_no_others(
    nics: dict[int, list[str]], bad: tuple[int, ...], parts: dict[tuple[str, str], str]
) -> None:
    def speed(group: Group) -> float:
        is_slow = "h5" in group.hosts and any(uses(group, gpu) for gpu in bad)
        return 200.0 if is_slow and len(group.hosts) > 1 else 400.0

    by_gpu = {str(gpu): names for gpu, names in nics.items()}
    fact = Fact(name="nccl-nics", value=dict.fromkeys(hosts(16), by_gpu))
    suspects = {(str(s.kind), s.device or ""): s for s in full_nodes(speed, facts=(fact,)).suspects}
    assert suspects.keys() == parts.keys()
    assert all(one.hosts == ("h5",) for one in suspects.values())
    assert all(label in suspects[part].why for part, label in parts.items())


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


def test_positions_distinguish_a_host_alone_under_its_switch_from_a_slow_one() -> None:
    unknown = pairs_of_ten(1, {"h3"})
    assert unknown.state is not State.PASS
    assert pairs_of_ten(1, {"h3"}, places=True).state is State.PASS
