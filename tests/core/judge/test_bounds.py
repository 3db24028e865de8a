"""Floors, ceilings and expectations: which apply, and how measurements compare with them."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.factories.judging import (
    ALL,
    EACH,
    EIGHT,
    PAIRS,
    blamed,
    causes,
    gpu_inventory,
    gpu_plan,
    healthy_records,
    judged,
)
from tests.factories.verdicts import (
    COLLECTIVE,
    FLOOR,
    GPU,
    TOP,
    gpus,
    hosts,
    hosts_record,
    inventory_of,
    measured,
    plan,
    record,
    slow,
    step,
    table,
)

from accept.config import load_machine
from accept.core.causes import Cause
from accept.core.model import Bound, BoundKind, CheckVerdict, Metric, Reference, Skipped, State


def test_a_fast_gpu_run_passes_against_its_floor() -> None:
    of, listed = gpu_inventory()
    verdict = judged(
        gpu_plan(of, ALL, references=(FLOOR,)),
        hosts_record(EIGHT),
        *listed,
        *measured(ALL, EIGHT, slow(usual=360)),
    )
    assert (verdict.state, verdict.gpu_tested) == (State.PASS, True)
    held = next(f for f in verdict.checks[2].findings if f.judgement == "absolute")
    assert held.value == 360
    assert held.bound == Bound(lower=300, kind=BoundKind.FLOOR, source=FLOOR.source)
    assert held.peak_share == pytest.approx(0.9)


def test_a_uniformly_slow_cluster_fails_and_accuses_nobody() -> None:
    of, listed = gpu_inventory()
    verdict = judged(
        gpu_plan(of, ALL, PAIRS, references=(FLOOR,)),
        hosts_record(EIGHT),
        *listed,
        *measured(ALL, EIGHT, slow(usual=200)),
        *measured(PAIRS, EIGHT, slow(usual=200)),
    )
    assert (verdict.state, verdict.suspects) == (State.FAIL, ())
    assert causes(verdict) == {"below-reference"}


def test_between_the_bound_and_the_expected_value_a_run_is_inconclusive() -> None:
    of, listed = gpu_inventory()
    plan_of = gpu_plan(of, ALL, references=(replace(FLOOR, expected=340),))
    for usual, state, cause in (
        (299, State.FAIL, {"below-reference"}),
        (301, State.INCONCLUSIVE, {"below-expected"}),
        (341, State.PASS, set()),
    ):
        records = measured(ALL, EIGHT, slow(usual=usual))
        verdict = judged(plan_of, hosts_record(EIGHT), *listed, *records)
        assert (verdict.state, causes(verdict)) == (state, cause)


@pytest.mark.parametrize(("usual", "advised"), [(299, True), (301, True), (341, False)])
def test_a_slow_network_is_advised_the_faster_profile_that_was_not_used(
    usual: float, *, advised: bool
) -> None:
    of, listed = gpu_inventory()
    for profile in ("quick-pairs", ""):
        planned = gpu_plan(of, ALL, references=(replace(FLOOR, expected=340),))
        machine = replace(planned.machine, faster_profile=profile)
        records = measured(ALL, EIGHT, slow(usual=usual))
        verdict = judged(replace(planned, machine=machine), hosts_record(EIGHT), *listed, *records)
        shown = any("--nccl-profile quick-pairs" in line for line in verdict.advice)
        assert shown is (advised and bool(profile))


def test_only_profiles_that_a_run_did_not_use_are_advised() -> None:
    machine = load_machine("h100-8").value
    assert machine.planned().faster_profile == "tuned"
    assert machine.planned("tuned").faster_profile == ""


def test_an_expectation_of_the_user_replaces_the_expected_value_too() -> None:
    of, listed = gpu_inventory()
    user = replace(FLOOR, kind=BoundKind.EXPECTATION, lower=200)
    plan_of = gpu_plan(of, ALL, references=(replace(FLOOR, expected=340), user))
    verdict = judged(plan_of, hosts_record(EIGHT), *listed, *measured(ALL, EIGHT, slow(usual=250)))
    assert verdict.state is State.PASS


def test_without_any_bound_a_gpu_collective_is_inconclusive_and_shows_what_to_add() -> None:
    of, listed = gpu_inventory()
    verdict = judged(
        gpu_plan(of, ALL), hosts_record(EIGHT), *listed, *measured(ALL, EIGHT, slow(usual=360))
    )
    assert (verdict.state, verdict.exit) == (State.INCONCLUSIVE, 7)
    assert causes(verdict) == {"no-reference"}
    assert "--expect 'all-reduce@4M>=GB/s'" in verdict.checks[2].findings[-1].message


def test_a_bound_inside_a_node_does_not_cover_the_network_between_nodes() -> None:
    of, listed = gpu_inventory()
    each = step("all-reduce", "each", number=15)
    inside = replace(FLOOR, max_nodes=1)
    records = [r for one in (each, ALL) for r in measured(one, EIGHT, slow(usual=360))]
    verdict = judged(
        gpu_plan(of, each, ALL, references=(inside,)), hosts_record(EIGHT), *listed, *records
    )
    assert (verdict.state, causes(verdict)) == (State.INCONCLUSIVE, {"no-reference"})


@pytest.mark.parametrize(
    ("tables", "state"),
    [
        (table("all-reduce", 0), State.PASS),
        (table("all-reduce", 0, wrong=1), State.FAIL),
        ((), State.FAIL),
    ],
)
def test_a_single_gpu_has_no_peers_and_is_judged_by_its_other_checks(
    tables: tuple[Metric, ...], state: State
) -> None:
    one = replace(GPU, gpus=1, ranks=1)
    of, listed = step("inventory", "each", number=10), gpus("h0", 1)
    listing = record(of, ["h0"], facts=(inventory_of("h0", gpus=listed, pciNvidia=1),), ranks=1)
    planned = plan(of, ALL, machine=one, references=(FLOOR,))
    verdict = judged(planned, hosts_record(["h0"]), listing, record(ALL, ["h0"], *tables, ranks=1))
    assert verdict.state is state
    fabric = verdict.checks[-1]
    if state is State.PASS:
        assert (fabric.state, fabric.optional) == (State.NOT_TESTED, True)


def test_several_hosts_with_one_gpu_each_have_peers() -> None:
    one = replace(GPU, gpus=1, ranks=1)
    alone = [
        record(EACH, [h], *table("all-reduce", 0), ranks=1, number=n) for n, h in enumerate(EIGHT)
    ]
    verdict = judged(plan(EACH, machine=one), hosts_record(EIGHT), *alone)
    assert verdict.checks[-1].state is State.INCONCLUSIVE
    assert not verdict.accepted


def test_an_expectation_of_a_collective_cannot_be_met_by_a_single_gpu() -> None:
    own = replace(FLOOR, kind=BoundKind.EXPECTATION, source="--expect")
    made = record(ALL, ["h0"], *table("all-reduce", 0), ranks=1)
    one = replace(GPU, gpus=1, ranks=1)
    verdict = judged(plan(ALL, machine=one, references=(own,)), hosts_record(["h0"]), made)
    assert (verdict.state, verdict.exit) == (State.INCONCLUSIVE, 7)


def test_a_reference_of_two_nodes_does_not_apply_to_eight() -> None:
    of, listed = gpu_inventory()
    two = replace(FLOOR, min_nodes=2, max_nodes=2)
    verdict = judged(
        gpu_plan(of, ALL, references=(two,)),
        hosts_record(EIGHT),
        *listed,
        *measured(ALL, EIGHT, slow(usual=360)),
    )
    assert verdict.state is State.INCONCLUSIVE


def test_a_reference_of_another_device_does_not_apply() -> None:
    of, listed = gpu_inventory()
    other = replace(FLOOR, device="H200")
    verdict = judged(
        gpu_plan(of, ALL, references=(other,)),
        hosts_record(EIGHT),
        *listed,
        *measured(ALL, EIGHT, slow(usual=360)),
    )
    assert verdict.state is State.INCONCLUSIVE


@pytest.mark.parametrize(("lower", "state"), [(350.0, State.PASS), (370.0, State.FAIL)])
def test_the_users_expectation_replaces_references(lower: float, state: State) -> None:
    of, listed = gpu_inventory()
    own = replace(FLOOR, kind=BoundKind.EXPECTATION, source="--expect", lower=lower)
    strict = replace(FLOOR, lower=399.0)
    verdict = judged(
        gpu_plan(of, ALL, references=(strict, own)),
        hosts_record(EIGHT),
        *listed,
        *measured(ALL, EIGHT, slow(usual=360)),
    )
    assert verdict.state is state
    kinds = {f.bound.kind for f in verdict.checks[2].findings if f.bound}
    assert kinds == {"expectation"}


def bounded(busbw: float, *references: Reference) -> CheckVerdict:
    """Return the verdict on an all-reduce over eight hosts that reached `busbw` GB/s."""
    of, listed = gpu_inventory()
    verdict = judged(
        gpu_plan(of, ALL, references=references),
        hosts_record(EIGHT),
        *listed,
        *measured(ALL, EIGHT, slow(usual=busbw)),
    )
    return next(check for check in verdict.checks if check.check == "all-reduce")


def sides(check: CheckVerdict) -> set[tuple[float | None, float | None]]:
    return {(f.bound.lower, f.bound.upper) for f in check.findings if f.bound}


BOTH = replace(FLOOR, lower=300.0, upper=400.0)
LOWER = replace(FLOOR, kind=BoundKind.EXPECTATION, source="--expect", lower=300.0)
UPPER = replace(LOWER, lower=None, upper=400.0)


@pytest.mark.parametrize(
    ("references", "expected"),
    [
        ((BOTH,), {(300.0, 400.0)}),
        ((LOWER, UPPER), {(300.0, None), (None, 400.0)}),
        # An expectation replaces only the side of a reference that it bounds.
        ((UPPER, FLOOR), {(None, 400.0), (300.0, None)}),
        ((UPPER, replace(BOTH, upper=9.0)), {(None, 400.0), (300.0, None)}),
        ((LOWER, replace(BOTH, lower=9999.0)), {(300.0, None), (None, 400.0)}),
    ],
)
def test_both_sides_of_a_bound_are_compared_and_shown(
    references: tuple[Reference, ...], expected: set[tuple[float | None, float | None]]
) -> None:
    states = {busbw: bounded(busbw, *references).state for busbw in (299.0, 350.0, 401.0)}
    assert states == {299.0: State.FAIL, 350.0: State.PASS, 401.0: State.FAIL}
    check = bounded(350.0, *references)
    assert sides(check) == expected
    assert ">= 300" in check.required
    assert "<= 400" in check.required


def test_an_upper_expectation_leaves_the_lower_reference_to_name_a_slow_host() -> None:
    of, listed = gpu_inventory(3)
    pairs = step("all-reduce", "pairs", rounds=3, number=30)
    verdict = judged(
        gpu_plan(of, pairs, references=(UPPER, replace(FLOOR, size=TOP))),
        hosts_record(hosts(3)),
        *listed,
        *measured(pairs, hosts(3), slow("h1", usual=360)),
    )
    assert blamed(verdict) == {("node", "h1", "slow-outlier")}


@pytest.mark.parametrize("size", [None, TOP])
def test_of_three_hosts_a_bound_at_the_largest_size_names_the_slow_one(size: int | None) -> None:
    # Two of three pairs are slow: without a bound it is unknown which speed is normal.
    own = replace(
        FLOOR, kind=BoundKind.EXPECTATION, source="--expect", lower=9.0, size=size, max_nodes=None
    )
    names = hosts(3)
    of = plan(PAIRS, references=(own,))
    verdict = judged(of, hosts_record(names), *measured(PAIRS, names, slow("h1")))
    assert [(s.name, s.cause) for s in verdict.suspects] == [("h1", "slow-outlier")]


def test_a_bound_at_a_size_that_a_step_does_not_reach_accuses_nobody_in_it() -> None:
    of, listed = gpu_inventory()
    few = hosts(3)
    small = replace(PAIRS, id="30-small", params={**COLLECTIVE, "max": "1M"})
    records = [
        *measured(ALL, few, slow(usual=360)),
        *(
            replace(r, metrics=tuple(m for m in r.metrics if m.size in (None, 1 << 20)))
            for r in measured(small, few, slow("h1", usual=1300, factor=0.8))
        ),
    ]
    bounds = (replace(FLOOR, size=TOP),)
    verdict = judged(
        gpu_plan(of, ALL, small, references=bounds), hosts_record(few), *listed[:3], *records
    )
    # Nothing shows whether the two pairs of h1 are slow, or the third one is fast.
    assert (verdict.state, verdict.suspects) == (State.INCONCLUSIVE, ())


def test_an_expectation_that_was_never_measured_is_inconclusive() -> None:
    own = replace(FLOOR, kind=BoundKind.EXPECTATION, source="--expect", size=8 << 30)
    verdict = judged(plan(ALL, references=(own,)), *healthy_records(ALL))
    assert (verdict.state, verdict.exit) == (State.INCONCLUSIVE, 7)


def test_each_expectation_must_have_been_measured() -> None:
    met = replace(FLOOR, kind=BoundKind.EXPECTATION, source="--expect", size=TOP, lower=9.0)
    never = replace(met, size=8 << 30)
    verdict = judged(plan(ALL, references=(never, met)), *healthy_records(ALL))
    assert (verdict.state, causes(verdict)) == (State.INCONCLUSIVE, {"no-measurement"})


def test_an_expectation_of_a_check_that_did_not_run_is_inconclusive() -> None:
    own = replace(FLOOR, check="gemm", metric="bf16", kind=BoundKind.EXPECTATION, source="--expect")
    verdict = judged(plan(ALL, references=(own,)), *healthy_records(ALL))
    assert (verdict.state, verdict.exit) == (State.INCONCLUSIVE, 7)
    assert causes(verdict) == {"no-measurement"}


@pytest.mark.parametrize(("optional", "state"), [(True, State.PASS), (False, State.NOT_TESTED)])
def test_an_expectation_of_a_check_that_was_left_out_adds_nothing_to_that(
    optional: bool,  # noqa: FBT001
    state: State,
) -> None:
    own = replace(FLOOR, check="gemm", metric="bf16", kind=BoundKind.EXPECTATION, source="--expect")
    left = Skipped(check="gemm", reason="no room", cause=Cause.OVER_BUDGET, optional=optional)
    verdict = judged(plan(ALL, references=(own,), skipped=(left,)), *healthy_records(ALL))
    assert (verdict.state, "no-measurement" in causes(verdict)) == (state, False)


def test_an_average_over_sizes_is_never_judged() -> None:
    """Small sizes are far below the bound; only the largest is compared with it."""
    verdict = judged(plan(ALL, references=(replace(FLOOR, lower=9.5),)), *healthy_records(ALL))
    assert verdict.state is State.PASS
