"""Training: loss, parameters, stragglers, and gradients that hosts compute alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.factories.judging import EIGHT, blamed, causes, judged
from tests.factories.verdicts import CPU, GPU, hosts_record, plan, record, step

from accept import config
from accept.config.floors import bounds
from accept.core.causes import Cause
from accept.core.plan import GroupKind, PlannedMachine, Step
from accept.core.records import Fact, Metric, Problem, Record
from accept.core.verdict import CheckVerdict, State, Verdict

TRAIN = step("train", params={"ratio": 0.5})


def trained(
    first: float,
    last: float,
    *problems: Problem,
    status: int = 0,
    of: Step = TRAIN,
    facts: dict[str, Any] | None = None,
    own: Sequence[Metric] = (),
    machine: PlannedMachine = CPU,
    more: Mapping[str, float] | None = None,
) -> Verdict:
    """Return the verdict on a run with these losses; `more` are its other metrics."""
    values = {"loss-first": first, "loss-last": last, "throughput": 900.0, **(more or {})}
    metrics = [Metric(check="train", name=k, value=v, unit="") for k, v in values.items()]
    facts = {"compared": {"times": 4, "differed": 0}} if facts is None else facts
    made = record(
        of,
        EIGHT,
        *metrics,
        *own,
        problems=problems,
        status=status,
        facts=tuple(Fact(name=k, value=v, check="train") for k, v in facts.items()),
    )
    return judged(plan(of, machine=machine), hosts_record(EIGHT), made)


BY = step("train", params={"by": 30})
SAVED = step("train", params={"checkpoint": "/scratch"})
REFERENCE = {"compared": {"times": 4}, "training": {"reference": True}}


def curve(deviation: float) -> dict[str, float]:
    return {"curve-deviation": deviation, "curve-tolerance": 1e-3}


@pytest.mark.parametrize(
    ("last", "options", "expected"),
    [
        (0.4, {}, set()),
        (1.0, {}, set()),
        (1.5, {}, {"loss-not-falling"}),
        # The ranks must have been compared, and what was planned must have been measured.
        *((0.4, {"facts": facts}, {"no-measurement"})
          for facts in ({}, {"compared": 7}, {"compared": {"times": 0}})),
        (0.1, {"of": BY, "more": {"loss-by": 0.9}}, set()),
        (0.1, {"of": BY, "more": {"loss-by": 1.1}}, {"loss-not-falling"}),
        (0.1, {"of": BY}, {"no-measurement"}),
        (0.1, {"of": SAVED}, {"no-measurement"}),
        (0.1, {"of": SAVED, "more": {"checkpoint-write": 1.0, "checkpoint-read": 2.0}}, set()),
        (0.4, {"facts": REFERENCE, "more": curve(2e-4)}, set()),
        (0.4, {"facts": REFERENCE, "more": curve(2e-3)}, {"loss-differs"}),
        (0.4, {"facts": REFERENCE}, {"no-measurement"}),
    ],
)  # fmt: skip
def test_a_training_must_show_that_it_learned_what_was_planned(
    last: float, options: Any, expected: set[str]
) -> None:
    verdict = trained(2.0, last, **options)
    assert (causes(verdict), verdict.suspects) == (expected, ())
    assert (verdict.state is State.PASS) is not bool(expected)


def test_a_rank_whose_parameters_differ_is_named() -> None:
    differ = Problem(cause=Cause.PARAMETERS_DIFFER, message="", check="train", host="h6", rank=12)
    verdict = trained(2.0, 0.4, differ, status=7)
    assert blamed(verdict) == {("node", "h6", "parameters-differ")}
    assert verdict.state is State.FAIL


LOADED = step("train", "each", params={"model": "gpt-fit", "ratio": 0.9})


def loaded(
    speeds: Sequence[float | None], machine: str
) -> tuple[CheckVerdict, set[tuple[str, ...]]]:
    """Judge a training that loads the GPUs of each host, at these TFLOP/s per GPU."""
    of = config.load_machine(machine).value
    records = []
    for number, (host, speed) in enumerate(zip(EIGHT, speeds, strict=True)):
        values = {"loss-first": 10.0, "loss-last": 5.0, "throughput": 9.0, "sustained": speed}
        metrics = [
            Metric(check="train", name=name, value=value, unit="")
            for name, value in values.items()
            if value is not None
        ]
        compared = Fact(name="compared", value={"times": 2}, check="train")
        made = record(LOADED, (host,), *metrics, facts=(compared,), number=number, ranks=8)
        records.append(made)
    planned = replace(of.planned(), transport="", nvls=False, rdma_devices=0)
    verdict = judged(
        plan(LOADED, machine=planned, references=bounds(of)), hosts_record(EIGHT), *records
    )
    (check,) = [check for check in verdict.checks if check.check == "train"]
    return check, {tuple(s.hosts) for s in verdict.suspects}


@pytest.mark.parametrize(
    ("machine", "speeds", "state", "cause", "accused"),
    [
        ("h100-8", [390.0] * 8, State.PASS, None, set()),
        ("h100-8", [390.0 - n for n in range(8)], State.PASS, None, set()),
        # A training that is equally slow everywhere is not accepted.
        ("h100-8", [180.0] * 8, State.INCONCLUSIVE, "below-expected", set()),
        ("h100-8", [110.0] * 8, State.FAIL, "below-reference", set()),
        ("h100-8", [None] * 8, State.FAIL, "no-measurement", set()),
        ("h100-8", [390.0] * 7 + [330.0], State.DEGRADED, None, {(EIGHT[7],)}),
        # Without a known peak, hosts are compared with their peers.
        ("gpu", [100.0] * 8, State.PASS, None, set()),
        ("gpu", [100.0] * 7 + [80.0], State.DEGRADED, None, {(EIGHT[7],)}),
    ],
)
def test_a_training_that_loads_gpus_is_compared_with_bounds_and_peers(
    machine: str,
    speeds: list[float | None],
    state: State,
    cause: str | None,
    accused: set[tuple[str, ...]],
) -> None:
    check, suspects = loaded(speeds, machine)
    assert (check.state, suspects) == (state, accused)
    shown = {f.cause for f in check.findings if f.state is state}
    assert shown - {None} == {cause} - {None}


def owns(*slow: int, seconds: float, usual: float = 0.1, gpu: bool = True) -> list[Metric]:
    """Return the own times of 16 ranks, two per host."""
    return [
        Metric(
            check="train",
            name="rank-own",
            value=seconds if rank in slow else usual * (1 + rank % 3 / 1000),
            unit="s",
            host=EIGHT[rank // 2],
            rank=rank,
            gpu=str(rank % 2) if gpu else None,
        )
        for rank in range(16)
    ]


FOUR_A_HOST = [replace(m, host=EIGHT[(m.rank or 0) // 4]) for m in owns(5, seconds=0.12)]


@pytest.mark.parametrize(
    ("machine", "own", "named"),
    [
        (GPU, FOUR_A_HOST, {("gpu", "h1:1", "slow-outlier")}),
        (GPU, owns(5, seconds=0.1), set()),
        # Half of the ranks of a host.
        (GPU, owns(5, seconds=0.3), {("node", "h2", "slow-outlier")}),
        (GPU, owns(5, seconds=0.3, gpu=False), {("node", "h2", "slow-outlier")}),
        # Steps that depend on the CPU vary by milliseconds, and ranks that share CPUs by more.
        (GPU, owns(5, seconds=0.006, usual=0.004), set()),
        (CPU, owns(5, seconds=0.15, gpu=False), set()),
        (CPU, owns(5, seconds=0.005, usual=0.001, gpu=False), set()),
        (CPU, owns(5, seconds=0.3, gpu=False), {("node", "h2", "slow-outlier")}),
    ],
)
def test_the_rank_that_the_others_wait_for_is_named(
    machine: PlannedMachine, own: list[Metric], named: set[tuple[str, str, str]]
) -> None:
    verdict = trained(2.0, 0.4, own=own, machine=machine)
    assert blamed(verdict) == named
    states = {found.state for check in verdict.checks for found in check.findings}
    assert (State.FAIL in states) is bool(named)


def digested(odd: str, device: str = "CPU") -> Verdict:
    """Judge a training on each single host; the host `odd` got another gradient on `device`."""
    alone = replace(TRAIN, groups=GroupKind.EACH)

    def one(host: str) -> Record:
        values = {"loss-first": 2.0, "loss-last": 0.4, "throughput": 900.0}
        metrics = [Metric(check="train", name=k, value=v, unit="") for k, v in values.items()]
        digest = {"type": "gradient of mlp", "size": 8, "random": "aa", "device": "CPU"}
        if host == odd:
            digest |= {"random": "bb", "device": device}
        facts = (
            Fact(name="compared", value={"times": 2, "differed": 0}, check="train"),
            Fact(name="digest", value=digest, check="train", host=host, rank=0),
        )
        return record(alone, [host], *metrics, facts=facts)

    return judged(plan(alone, machine=CPU), hosts_record(EIGHT), *[one(host) for host in EIGHT])


def test_results_that_hosts_compute_alone_are_compared_among_equal_devices() -> None:
    verdict = digested("h3")
    assert blamed(verdict) == {("node", "h3", "gradients-differ")}
    assert "a different result from 7 of 8 equal devices" in verdict.suspects[0].why
    assert digested("h3", device="another CPU").state is State.PASS


@given(st.sets(st.integers(0, 15)), st.floats(1.2, 50))
def test_slow_ranks_are_named_while_they_are_the_minority(slow: set[int], factor: float) -> None:
    own = owns(*slow, seconds=0.1 * factor, gpu=False)
    verdict = trained(2.0, 0.4, own=own, machine=GPU)
    hosts = {EIGHT[rank // 2] for rank in slow}
    accused = {suspect.name for suspect in verdict.suspects}
    assert accused <= hosts
    if len(slow) <= 3:
        assert accused == hosts
