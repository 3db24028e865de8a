"""Blame the right host, link, rail or GPU for being slow."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from functools import partial

import pytest
from tests.factories.judging import EIGHT, PAIRS, blamed, causes, gpu_inventory, gpu_plan, judged
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
from accept.core.plan import GroupKind, Reference, Step
from accept.core.records import Fact, Problem, Record
from accept.core.serde import dump, read
from accept.core.verdict import State, Strength, Suspect, SuspectKind, Verdict

Speed = Callable[[Group], float]
SIXTEEN = hosts(16)
EACH, LADDER, RAILS = step(groups="each"), step(groups="ladder"), step(groups="rails")


def gpu_judged(
    *records: Record,
    steps: Sequence[Step],
    names: Sequence[str] = EIGHT,
    bound: Reference = FLOOR,
    problems: Sequence[Problem] = (),
    facts: Sequence[Fact] = (),
) -> Verdict:
    """Judge GPU hosts; `problems` and `facts` of the step that finds them."""
    of, listed = gpu_inventory(len(names))
    start = replace(hosts_record(names, *problems), facts=tuple(facts))
    return judged(gpu_plan(of, *steps, references=(bound,)), start, *listed, *records)


def parts(verdict: Verdict) -> set[str]:
    return {f"{suspect.kind} {suspect.name}" for suspect in verdict.suspects}


def again(
    of: Step, records: list[Record], names: Sequence[str], speed: Callable[[Group], float | None]
) -> list[Record]:
    """Return the records with those of the waves that a run would measure again."""
    of = replace(of, repeats=MOST_REPEATS)
    while waves := waves_again(gpu_plan(of), of, records, names, {}, checks=REGISTRY):
        first = 1 + max(r.wave for r in records)
        more = executed(of, waves, speed)
        records = [*records, *(replace(r, wave=first + r.wave) for r in more)]
    return records


# -- one suspect for one part ----------------------------------------------------------------------


def suspect(
    kind: SuspectKind, cause: Cause, *names: str, device: str | None = None, weak: bool = False
) -> Suspect:
    return Suspect(
        kind=kind,
        hosts=names,
        device=device,
        cause=cause,
        strength=Strength.WEAK if weak else Strength.STRONG,
        why=f"counts of {kind}",
        evidence=(f"{kind}.log",),
    )


_NODE, _GPU, _SLOW = SuspectKind.NODE, SuspectKind.GPU, Cause.SLOW_OUTLIER


def test_the_name_is_made_from_kind_hosts_and_device() -> None:
    names = {
        "h1": suspect(_NODE, _SLOW, "h1"),
        "h1:3": suspect(_GPU, _SLOW, "h1", device="3"),
        "h1:mlx5_0": suspect(SuspectKind.NIC, _SLOW, "h1", device="mlx5_0"),
        "h1 - h2": suspect(SuspectKind.LINK, _SLOW, "h1", "h2"),
        "h1 .. h9": suspect(SuspectKind.SWITCH, _SLOW, "h1", "h2", "h9"),
        "rail 2": suspect(SuspectKind.RAIL, _SLOW, device="2"),
    }
    for name, one in names.items():
        assert dump(one)["name"] == one.name == name
        assert read(Suspect, {**dump(one), "name": "edited"}) == one


slow_node = partial(suspect, _NODE, _SLOW)
slow_gpu = partial(suspect, _GPU, _SLOW, "h1")
slow_rail = partial(suspect, SuspectKind.RAIL, Cause.SLOW_NETWORK)
slow_link = partial(suspect, SuspectKind.LINK, Cause.SLOW_NETWORK)
WRONG = suspect(_NODE, Cause.WRONG_DATA, "h2", weak=True)
LEAF = suspect(SuspectKind.LEAF, Cause.SLOW_NETWORK, "h0", "h1", device="3")


@pytest.mark.parametrize(
    ("suspects", "expected"),
    [
        # Wrong data comes before stronger evidence of slowness.
        ([slow_node("h1"), slow_node("h2"), WRONG], "h2 wrong-data, h1 slow-outlier"),
        # A leaf explains its rail, a node its links, and no other ones.
        (
            [slow_rail(device="3"), slow_rail(device="4"), LEAF],
            "h0 .. h1 GPU 3 slow-network, rail 4 slow-network",
        ),
        (
            [slow_link("h1", "h2"), slow_link("h3", "h4"), slow_node("h1")],
            "h1 slow-outlier, h3 - h4 slow-network",
        ),
        # A GPU explains its node if both have a fault of one sort.
        *(
            ([suspect(_NODE, of_node, "h1"), suspect(_GPU, of_gpu, "h1", device="3")], expected)
            for of_gpu, of_node, expected in (
                (_SLOW, Cause.BELOW_REFERENCE, "h1:3 slow-outlier"),
                (Cause.WRONG_DATA, Cause.WRONG_DATA, "h1:3 wrong-data"),
                (_SLOW, Cause.WRONG_DATA, "h1 wrong-data, h1:3 slow-outlier"),
                (Cause.GPU_ECC, _SLOW, "h1 slow-outlier, h1:3 gpu-ecc"),
            )
        ),
        (
            [slow_node("h1"), slow_gpu(device="3"), slow_gpu(device="4")],
            "h1 slow-outlier, h1:3 slow-outlier, h1:4 slow-outlier",
        ),
    ],
)
def test_accusations_of_a_part_are_a_suspect(suspects: list[Suspect], expected: str) -> None:
    found = merged(suspects, EIGHT)
    assert ", ".join(f"{one.name} {one.cause}" for one in found) == expected
    logs = {log for one in found for log in one.evidence}
    if not any(one.of_network for one in suspects):
        assert logs == {log for one in suspects for log in one.evidence}


# -- rails, blocks and repeated executions ---------------------------------------------------------


def rails(bad_host: str | None) -> tuple[list[Record], list[Record]]:
    """Return the records of rails, one of them slow, and of pairs on it that follow."""
    full = [
        record(
            RAILS,
            Group(hosts=EIGHT, local_ranks=(rail,)),
            *table("all-reduce", 50 if rail == 5 else 100),
            number=rail,
        )
        for rail in range(8)
    ]
    speed = slow(*([bad_host] if bad_host else []), usual=100)
    pairs = measured(replace(RAILS, groups=GroupKind.PAIRS, rounds=3), EIGHT, speed)
    return full, [replace(r, local_ranks=(5,), ranks=2, wave=1 + r.wave) for r in pairs]


@pytest.mark.parametrize(("bad_host", "expected"), [("h2", "gpu h2:5"), (None, "rail rail 5")])
def test_pairs_show_whether_a_slow_rail_has_a_bad_gpu(bad_host: str | None, expected: str) -> None:
    full, follow = rails(bad_host)
    found = parts(gpu_judged(*full, *follow, steps=[RAILS]))
    assert expected in found
    assert len({one.split()[0] for one in found}) == 1


def test_slow_rails_are_measured_again_during_the_run() -> None:
    full, follow = rails("h2")
    low = [replace(r, metrics=table("all-reduce", 50)) for r in full]
    bound = replace(FLOOR, lower=70.0, per_rail=True, min_nodes=2)
    planned = gpu_plan(RAILS, references=(bound,))

    def followed(records: list[Record]) -> set[int]:
        waves = waves_again(planned, RAILS, records, EIGHT, {}, checks=REGISTRY)
        return {rank for wave in waves for group in wave for rank in group.local_ranks}

    assert followed(full) == {5}
    assert followed([*full[:2], replace(full[2], metrics=(), exit=1), *full[3:]]) == {2, 5}
    assert followed(full[:5]) == followed([*full, *follow]) == set()
    # No rail is an outlier if all are slow; then the bound shows it.
    assert followed(low) == {*range(8)}
    found = gpu_judged(*low, *follow, steps=[RAILS], bound=bound)
    assert parts(found) == {"gpu h2:5"}


@pytest.mark.parametrize(("slow", "cause"), [(1, None), (2, "intermittent")])
@pytest.mark.parametrize("of", [RAILS, LADDER, EACH], ids=lambda of: of.groups)
def test_a_part_that_is_slow_in_part_of_five_executions_has_a_cause(
    of: Step, slow: int, cause: str | None
) -> None:
    groups = [Group(hosts=SIXTEEN[2 * n : 2 * n + 1 + (of is LADDER)]) for n in range(8)]
    if of is RAILS:
        groups = [Group(hosts=EIGHT, local_ranks=(n,)) for n in range(8)]
    records = [
        record(of, group, *table("all-reduce", 50 if bad else 100), number=number, wave=run)
        for run in range(5)
        for number, group in enumerate(groups)
        for bad in [number == 3 and run < slow]
    ]
    verdict = gpu_judged(*records, steps=[of], names=EIGHT if of is RAILS else SIXTEEN)
    assert causes(verdict) & {"intermittent", "slow-outlier"} == ({cause} if cause else set())
    assert {s.cause for s in verdict.suspects} == ({cause} if cause and of is EACH else set())


def test_a_bad_block_of_a_ladder_is_a_finding_with_counts_and_accuses_nobody() -> None:
    records = measured(LADDER, SIXTEEN, slow(usual=400))
    records[3] = replace(records[3], metrics=table("all-reduce", 350))
    repeated = replace(records[3], wave=9, log="again")
    verdict = gpu_judged(*records, repeated, steps=[LADDER], names=SIXTEEN)
    assert (verdict.state, verdict.suspects) == (State.FAIL, ())
    (found,) = (f for f in verdict.checks[2].findings if f.cause == "slow-outlier")
    assert found.hosts == records[3].hosts
    assert "in 2 of 2 executions" in found.message
    assert "0 of 7" in found.message


# -- runs of full nodes ----------------------------------------------------------------------------


def full_nodes(
    speed: Speed, *, problems: Sequence[Problem] = (), nics: dict[str, list[str]] | None = None
) -> Verdict:
    """Judge 16 hosts: alone, in pairs and by rails; only groups of a rail use one GPU."""
    facts = (Fact(name="nccl-nics", value=dict.fromkeys(SIXTEEN, nics)),) if nics else ()
    steps = [replace(of, id=f"{n}") for n, of in enumerate((EACH, PAIRS, RAILS))]
    steps[1] = replace(steps[1], rounds=5)
    records = []
    for of in steps:
        own = again(of, measured(of, SIXTEEN, speed, ranks=8), SIXTEEN, speed)
        records += [replace(r, facts=(*r.facts, *facts)) if len(r.hosts) > 1 else r for r in own]
    return gpu_judged(*records, steps=steps, names=SIXTEEN, problems=problems)


def of_gpus(host: str, *gpus: int, alone: bool = True) -> Speed:
    """Return a speed that is low if a host takes part with one of these GPUs; none: any."""

    def speed(group: Group) -> float:
        uses = not gpus or not group.local_ranks or {*gpus} & {*group.local_ranks}
        return 200.0 if host in group.hosts and uses and (alone or len(group.hosts) > 1) else 400.0

    return speed


def of_group(group: Collection[str], rank: int | None = None, low: float = 200.0) -> Speed:
    """Return a speed that is low across the edge of a group, on all rails or on one."""

    def speed(of: Group) -> float:
        uses = rank is None or not of.local_ranks or rank in of.local_ranks
        return low if uses and 0 < len({*group} & {*of.hosts}) < len(of.hosts) else 400.0

    return speed


@pytest.mark.parametrize(
    ("speed", "expected"),
    [
        (of_gpus("h5", 3), "gpu h5:3"),
        (of_gpus("h5", 3, 4), "node h5"),
        (of_gpus("h5"), "node h5"),
        (of_group(SIXTEEN[:3], 3), "leaf h0 .. h2 GPU 3"),
        (of_group(SIXTEEN[:6], 3), "leaf h0 .. h5 GPU 3"),
    ],
)
def test_a_fault_that_shows_in_all_steps_is_one_suspect(speed: Speed, expected: str) -> None:
    verdict = full_nodes(speed)
    assert (parts(verdict), verdict.state) == ({expected}, State.DEGRADED)


def test_a_border_is_named_although_a_gpu_slows_one_of_its_rails_more() -> None:
    group, bad = {*SIXTEEN[:6]}, of_gpus("h9", 3)
    across = of_group(group, low=250.0)
    first, network = full_nodes(lambda g: 100.0 if bad(g) < 400 else across(g)).suspects
    assert (first.hosts, first.of_network) == (("h9",), False)
    # Only rail 3 was measured in pairs again, so its leaf would explain the pairs, too.
    assert {*network.hosts} in (group, {*SIXTEEN} - group)
    assert network.kind in (SuspectKind.BORDER, SuspectKind.LEAF)


#: GPUs 2 and 3 share a NIC, or each GPU has its own.
SHARED = {f"{gpu}": [f"mlx5_{gpu // 2}"] for gpu in range(8)}
OWN = {f"{gpu}": [f"mlx5_{gpu}"] for gpu in range(8)}
ERRORS = Problem(cause=Cause.NIC_ERRORS, message="9", check="health", host="h5", nic="mlx5_3")


@pytest.mark.parametrize(
    ("nics", "bad", "expected"),
    [
        (SHARED, (2, 3), {"nic h5:mlx5_1"}),
        (SHARED, (1, 2), {"gpu h5:1", "gpu h5:2"}),
        (OWN, (2, 3), {"nic h5:mlx5_2", "nic h5:mlx5_3"}),
        (OWN, (3,), {"nic h5:mlx5_3"}),
        (None, (3,), {"gpu h5:3"}),
    ],
)
def test_a_nic_is_named_if_its_gpus_are_slow_and_no_others(
    nics: dict[str, list[str]] | None, bad: tuple[int, ...], expected: set[str]
) -> None:
    assert parts(full_nodes(of_gpus("h5", *bad, alone=False), nics=nics)) == expected


@pytest.mark.parametrize(
    ("alone", "gpus", "nics", "expected"),
    [
        # Slow only in pairs: the NIC with errors is the reason, unless NCCL uses another one.
        (False, (), None, {"nic h5:mlx5_3"}),
        (False, (3,), None, {"nic h5:mlx5_3"}),
        (False, (3,), {"3": ["mlx5_7"]}, {"nic h5:mlx5_7", "nic h5:mlx5_3"}),
        # Slow also without other hosts: there are two faults.
        (True, (), None, {"node h5", "nic h5:mlx5_3"}),
        (True, (3,), None, {"gpu h5:3", "nic h5:mlx5_3"}),
    ],
)
def test_a_nic_with_errors_explains_a_host_that_is_slow_only_with_others(
    *, alone: bool, gpus: tuple[int, ...], nics: dict[str, list[str]] | None, expected: set[str]
) -> None:
    verdict = full_nodes(of_gpus("h5", *gpus, alone=alone), problems=[ERRORS], nics=nics)
    assert parts(verdict) == expected
    (nic,) = (s for s in verdict.suspects if s.cause is Cause.NIC_ERRORS)
    assert ("pairs" in nic.why) is (len(expected) == 1)


# -- near and far, and pairs that nothing explains -------------------------------------------------


def pairs_of(
    count: int, seed: int, near: Callable[[str], object], bad: str = "", *, places: bool = False
) -> Verdict:
    """Judge pairs of hosts; those with equal `near` are 10 % faster, those of `bad` slower."""
    names, of = hosts(count), replace(PAIRS, rounds=4)

    def speed(group: Group) -> float:
        together = len({*map(near, group.hosts)}) == 1
        return (440.0 if together else 400.0) * (0.9 if bad in group.hosts else 1)

    records = again(of, measured(of, names, speed, seed=seed, ranks=8), names, speed)
    known = [Fact(name="place", host=h, value=f"row/{near(h)}/{h}") for h in names if places]
    return gpu_judged(*records, steps=[of], names=names, facts=known)


def test_hosts_that_are_slower_across_racks_only_are_healthy() -> None:
    def rack(host: str) -> int:
        return int(host[1:]) // 8

    verdict = pairs_of(16, 1, rack)
    assert (verdict.state, verdict.suspects) == (State.PASS, ())
    assert {n for kind, n, _ in blamed(pairs_of(16, 1, rack, "h3")) if kind == "node"} == {"h3"}


@pytest.mark.parametrize("seed", range(1, 11))
def test_two_hosts_far_from_all_others_meet_before_they_are_accused(seed: int) -> None:
    def near(host: str) -> bool:
        return host in ("h3", "h7")

    verdict = pairs_of(10, seed, near)
    assert (verdict.state, verdict.suspects) == (State.PASS, ())
    slower = pairs_of(10, seed, near, "h5")
    assert slower.state is not State.PASS
    assert all("h5" in one.hosts for one in slower.suspects)


def test_positions_distinguish_a_host_alone_under_its_switch_from_a_slow_one() -> None:
    for places in (False, True):
        state = pairs_of(10, 1, lambda host: host == "h3", places=places).state
        assert (state is State.PASS) is places


def test_one_slow_pair_passes_if_it_is_normal_when_measured_again() -> None:
    records = measured(PAIRS, EIGHT, slow())
    records[4] = replace(records[4], metrics=table("all-reduce", 3))
    verdict = gpu_judged(*records, steps=[PAIRS], bound=replace(FLOOR, lower=1.0))
    assert (verdict.state, verdict.suspects) == (State.INCONCLUSIVE, ())
    records = again(PAIRS, records, EIGHT, slow())
    assert judged(plan(PAIRS), hosts_record(EIGHT), *records).state is State.PASS
