"""Test decisions of a drill without a run: the place of a fault, and whether it was caught."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.factories.verdicts import (
    CPU,
    FLOOR,
    GPU,
    hosts,
    hosts_record,
    measured,
    plan,
    record,
    slow,
    step,
)

from accept.commands.drill_faults import Choice, Drilled, DrillReason, choose, outcome
from accept.config.faults import parse_faults
from accept.core.catalog.faults import FAULTS, Scope
from accept.core.causes import Cause
from accept.core.checks import REGISTRY
from accept.core.judge import judge
from accept.core.plan import Injection, Plan
from accept.core.records import Fact, Problem, Record
from accept.core.verdict import State

ALL = step("all-reduce", "all")
PAIRS = step("all-reduce", "pairs", rounds=3, number=20)
TRAIN = step("train", "all", number=30)
SUITE = plan(step("inventory", "each", number=1), ALL, PAIRS, TRAIN)
ON_RANKS = [fault.name for fault in FAULTS.values() if fault.scope is Scope.RANK]
FABRIC = replace(GPU, transport="gIB")


class TestChoice:
    @given(st.sampled_from([*FAULTS]), st.integers(1, 70), st.integers())
    def test_is_one_of_the_hosts_and_depends_only_on_the_seed(
        self, fault: str, count: int, seed: int
    ) -> None:
        chosen = choose(SUITE, FAULTS[fault], hosts(count), seed)
        assert chosen == choose(SUITE, FAULTS[fault], hosts(count), seed)
        assert bool(chosen.injected) is not bool(chosen.reason)
        if chosen.injected:
            assert parse_faults([chosen.injected], hosts(count)) == (chosen.injection,)
            assert set(chosen.steps) <= {one.id for one in SUITE.steps}

    @given(st.integers(2, 70), st.integers())
    def test_never_cuts_off_the_first_host(self, count: int, seed: int) -> None:
        assert choose(SUITE, FAULTS["unreachable"], hosts(count), seed).injected != "unreachable@h0"

    @given(st.integers())
    def test_takes_an_existing_rank(self, seed: int) -> None:
        chosen = choose(plan(ALL, machine=GPU), FAULTS["wrong"], hosts(4), seed)
        assert chosen.injection is not None
        assert chosen.injection.rank in range(8)

    def test_differs_between_seeds_and_faults(self) -> None:
        chosen = {
            choose(SUITE, FAULTS[fault], hosts(64), seed).injection
            for fault in ("wrong", "hang")
            for seed in range(8)
        }
        assert len(chosen) > 8


#: Fault, plan, number of hosts, and the reason.
LEFT_OUT = [
    ("slow", SUITE, 1, DrillReason.TOO_FEW_HOSTS),
    ("slow", SUITE, 3, DrillReason.NO_BOUND),
    ("slow", plan(ALL, TRAIN), 8, DrillReason.NO_PAIRS),
    ("slow-link", plan(step(groups="each")), 8, DrillReason.NO_PAIRS),
    ("slow-link", plan(PAIRS, machine=GPU), 8, DrillReason.BYPASSES_KERNEL),
    ("wrong", plan(step("inventory", "each")), 8, DrillReason.NOT_IN_SUITE),
    ("wrong", plan(TRAIN), 1, DrillReason.TOO_FEW_RANKS),
    ("flip", SUITE, 8, DrillReason.NOT_IN_SUITE),
    ("sockets", SUITE, 8, DrillReason.NO_NETWORK),
    ("sockets", plan(ALL, machine=FABRIC), 1, DrillReason.TWO_HOSTS),
    ("unreachable", SUITE, 1, DrillReason.TWO_HOSTS),
]


@pytest.mark.parametrize(("fault", "of", "count", "code"), LEFT_OUT)
def test_faults_that_cannot_be_found_are_left_out_with_a_reason(
    fault: str, of: Plan, count: int, code: DrillReason
) -> None:
    chosen = choose(of, FAULTS[fault], hosts(count), 1)
    assert chosen.reason is not None
    assert chosen.reason.code is code
    assert (chosen.injection, chosen.steps) == (None, ())


SEEN_BY = [
    ("slow", SUITE, 4, (PAIRS.id,)),
    ("slow", plan(step(groups="each")), 4, (step(groups="each").id,)),
    ("slow", plan(PAIRS, references=(FLOOR,)), 3, (PAIRS.id,)),
    ("wrong", SUITE, 2, (ALL.id, PAIRS.id, TRAIN.id)),
    ("hang", SUITE, 1, (ALL.id, PAIRS.id, TRAIN.id)),
    ("sockets", plan(ALL, machine=FABRIC), 2, (ALL.id,)),
    ("unreachable", SUITE, 2, ()),
]


@pytest.mark.parametrize(("fault", "of", "count", "steps"), SEEN_BY)
def test_the_steps_that_detect_a_fault_are_listed(
    fault: str, of: Plan, count: int, steps: tuple[str, ...]
) -> None:
    assert choose(of, FAULTS[fault], hosts(count), 1).steps == steps


def drilled(
    fault: str,
    injected: str,
    of: Plan,
    records: Sequence[Record],
    *,
    name: str = "injected",
    value: str = "",
) -> Drilled:
    """Return the outcome of a run with these records, in which the fault struck as planned."""
    (injection,) = parse_faults([injected], ())
    where = injection.host if injection.host != "*" else None
    mark = Fact(name=name, value=value or injected, check="hosts", host=where)
    marked = replace(records[0], facts=(*records[0].facts, mark))
    choice = Choice(fault=FAULTS[fault], injection=injection)
    kept = (marked, *records[1:])
    return outcome(choice, of, kept, judge(of, kept, checks=REGISTRY, attempt="a"))


EIGHT = hosts(8)
PAIRED = plan(PAIRS)


def rejected(cause: Cause, *names: str) -> list[Record]:
    """Return a run in which one execution has a problem with this cause on some hosts."""
    problems = tuple(Problem(cause=cause, message="m", host=name) for name in names)
    return [hosts_record(EIGHT), record(ALL, EIGHT, status=1, problems=problems)]


class TestCaught:
    @given(st.sampled_from(EIGHT))
    def test_a_slow_host_that_pairs_find(self, bad: str) -> None:
        records = [hosts_record(EIGHT), *measured(PAIRS, EIGHT, slow(bad))]
        done = drilled("slow", f"slow@{bad}:0", PAIRED, records)
        assert (done.result, done.why) == ("caught", f"{bad}: slow-outlier")

    @given(st.sampled_from(EIGHT), st.sampled_from(EIGHT))
    def test_only_if_the_faulty_host_is_blamed(self, bad: str, injected: str) -> None:
        records = [hosts_record(EIGHT), *measured(PAIRS, EIGHT, slow(bad))]
        done = drilled("slow", f"slow@{injected}:0", PAIRED, records)
        assert done.result == ("caught" if bad == injected else "missed")
        if bad != injected:
            assert done.code is DrillReason.BLAMES_OTHERS

    @given(st.sampled_from(ON_RANKS), st.sampled_from(EIGHT))
    def test_never_if_the_run_passed(self, fault: str, host: str) -> None:
        records = [hosts_record(EIGHT), *measured(PAIRS, EIGHT, slow())]
        done = drilled(fault, f"{fault}@{host}:0", PAIRED, records)
        assert (done.result, done.code) == ("missed", DrillReason.NOT_REJECTED)

    def test_not_if_another_host_is_blamed_too(self) -> None:
        done = drilled("hang", "hang@h3:0", plan(ALL), rejected(Cause.RANK_HUNG, "h3", "h4"))
        assert (done.result, done.code) == ("missed", DrillReason.BLAMES_OTHERS)
        assert "h4" in done.why
        assert "h3" not in done.why

    @pytest.mark.parametrize(
        ("gpus", "result"),
        [(("3",), "caught"), (("GPU-1f",), "caught"), (("0",), "missed"), (("0", "3"), "caught")],
    )
    def test_only_if_the_faulty_gpu_is_among_numbered_suspects(
        self, gpus: Sequence[str], result: str
    ) -> None:
        problems = tuple(
            Problem(cause=Cause.WRONG_DATA, message="m", host="h3", gpu=gpu, rank=int(gpu[-1], 16))
            for gpu in gpus
        )
        records = [hosts_record(EIGHT), record(ALL, EIGHT, status=1, problems=problems)]
        assert drilled("wrong", "wrong@h3:3", plan(ALL), records).result == result

    def test_a_consequence_of_the_fault_is_not_another_cause(self) -> None:
        problems = (
            Problem(cause=Cause.RANK_HUNG, message="m", host="h3", rank=3),
            Problem(cause=Cause.NO_MEASUREMENT, message="m", host="h3", gpu="2", rank=2),
        )
        records = [
            hosts_record(EIGHT),
            *(record(ALL, EIGHT, status=1, problems=(one,)) for one in problems),
        ]
        assert drilled("hang", "hang@h3:3", plan(ALL), records).result == "caught"

    def test_not_if_nothing_is_blamed(self) -> None:
        done = drilled("hang", "hang@h3:0", plan(ALL), rejected(Cause.TIMED_OUT))
        assert (done.result, done.code) == ("missed", DrillReason.BLAMES_NOBODY)

    def test_not_for_another_cause(self) -> None:
        done = drilled("wrong", "wrong@h3:0", plan(ALL), rejected(Cause.RANK_HUNG, "h3"))
        assert (done.result, done.code) == ("missed", DrillReason.OTHER_CAUSE)
        assert Cause.RANK_HUNG in done.why

    def test_not_if_the_fault_was_never_injected(self) -> None:
        records = rejected(Cause.RANK_HUNG, "h3")
        verdict = judge(plan(ALL), records, checks=REGISTRY, attempt="a")
        choice = Choice(fault=FAULTS["hang"], injection=Injection(fault="hang", host="h3", rank=0))
        done = outcome(choice, plan(ALL), records, verdict)
        assert (done.result, done.code) == ("missed", DrillReason.NEVER_INJECTED)

    def test_a_fault_of_all_hosts_blames_no_single_host(self) -> None:
        of = plan(ALL, machine=FABRIC, references=(FLOOR,))
        facts = (Fact(name="nccl-networks", value={"Socket": list(EIGHT)}),)
        (ran,) = measured(ALL, EIGHT, slow(usual=350.0), ranks=8)
        done = drilled("sockets", "sockets@*", of, [hosts_record(EIGHT), replace(ran, facts=facts)])
        assert (done.result, done.why) == ("caught", "transport-fallback")

    def test_an_absent_host_under_another_name(self) -> None:
        away = Problem(cause=Cause.UNREACHABLE_REFUSED, message="m", check="hosts", host="pod-1")
        mark = Fact(name="injected", value="unreachable@#1", host="pod-1")
        records = [replace(hosts_record(["h0"], away), facts=(mark,)), record(ALL, ["h0"])]
        injection = Injection(fault="unreachable", host="#1")
        choice = Choice(fault=FAULTS["unreachable"], injection=injection)
        done = outcome(
            choice, plan(ALL), records, judge(plan(ALL), records, checks=REGISTRY, attempt="a")
        )
        assert done.result == "caught"

    def test_a_refused_fault_is_left_out_and_one_that_stays_is_missed(self) -> None:
        def reported(name: str, value: str) -> Drilled:
            found = [hosts_record(EIGHT)]
            return drilled("slow-link", "slow-link@h1", PAIRED, found, name=name, value=value)

        refused = reported("not-injected", "h1: no tc")
        assert (refused.result, refused.code) == ("left-out", DrillReason.NOT_INJECTED)
        assert "h1: no tc" in refused.why
        left = reported("not-undone", "h1: eth0")
        assert (left.result, left.code) == ("missed", DrillReason.NOT_UNDONE)
        assert "h1: eth0" in left.why

    def test_reports_the_time_until_the_fault_is_known(self) -> None:
        """It was known when the pairs were done, and not before."""
        of = plan(ALL, PAIRS)
        ran = [*measured(ALL, EIGHT, slow("h2")), *measured(PAIRS, EIGHT, slow("h2"))]
        timed = [replace(one, start=10.0 * i, end=10.0 * i + 9) for i, one in enumerate(ran, 1)]
        first = replace(hosts_record(EIGHT), start=5.0, end=6.0)
        done = drilled("slow", "slow@h2:0", of, [first, *timed])
        assert done.after == timed[-1].end - 5.0


def test_a_run_with_a_caught_fault_is_never_accepted() -> None:
    records = [hosts_record(EIGHT), *measured(PAIRS, EIGHT, slow("h1"))]
    injected = parse_faults(["slow@h1"], ())
    verdict = judge(replace(PAIRED, injected=injected), records, checks=REGISTRY, attempt="a")
    assert not verdict.accepted
    assert verdict.headline.startswith("drill: ")
    assert verdict.state is not State.PASS


def test_one_rank_per_host_is_enough() -> None:
    machine = replace(CPU, ranks=1)
    injection = choose(plan(PAIRS, machine=machine), FAULTS["slow"], EIGHT, 3).injection
    assert injection is not None
    assert injection.rank == 0
