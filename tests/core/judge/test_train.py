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
from accept.core.model import (
    CheckVerdict,
    Fact,
    GroupKind,
    Metric,
    PlannedMachine,
    Problem,
    Record,
    State,
    Step,
    Verdict,
)

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


@pytest.mark.parametrize(
    ("last", "state"), [(0.4, State.PASS), (1.0, State.PASS), (1.5, State.FAIL)]
)
def test_the_loss_must_fall_to_its_share(last: float, state: State) -> None:
    assert trained(2.0, last).state is state


def test_a_rank_whose_parameters_differ_is_named() -> None:
    differ = Problem(cause=Cause.PARAMETERS_DIFFER, message="", check="train", host="h6", rank=12)
    verdict = trained(2.0, 0.4, differ, status=7)
    assert blamed(verdict) == {("node", "h6", "parameters-differ")}
    assert verdict.state is State.FAIL


def test_a_training_that_reports_nothing_fails() -> None:
    verdict = judged(plan(TRAIN), hosts_record(EIGHT), record(TRAIN, EIGHT))
    assert causes(verdict) == {"no-measurement"}


def test_a_training_whose_ranks_were_never_compared_fails() -> None:
    for facts in ({}, {"compared": 7}, {"compared": {"times": 0}}):
        assert causes(trained(2.0, 0.4, facts=facts)) == {"no-measurement"}


@pytest.mark.parametrize(
    ("deviation", "expected"), [(2e-4, set()), (2e-3, {"loss-differs"}), (None, {"no-measurement"})]
)
def test_the_curve_must_match_the_reference_if_there_is_one(
    deviation: float | None, expected: set[str]
) -> None:
    facts = {"compared": {"times": 4}, "training": {"reference": True}}
    measured = {"curve-deviation": deviation, "curve-tolerance": 1e-3}
    more = {name: value for name, value in measured.items() if value is not None}
    assert causes(trained(2.0, 0.4, facts=facts, more=more)) == expected


def test_the_loss_must_have_fallen_by_the_step_that_is_stated() -> None:
    early = step("train", params={"by": 30})
    assert trained(2.0, 0.1, of=early, more={"loss-by": 0.9}).state is State.PASS
    assert causes(trained(2.0, 0.1, of=early, more={"loss-by": 1.1})) == {"loss-not-falling"}
    assert causes(trained(2.0, 0.1, of=early)) == {"no-measurement"}


def test_a_requested_checkpoint_must_have_been_measured() -> None:
    saved = step("train", params={"checkpoint": "/scratch"})
    assert causes(trained(2.0, 0.1, of=saved)) == {"no-measurement"}
    measured = {"checkpoint-write": 1.0, "checkpoint-read": 2.0}
    assert trained(2.0, 0.1, of=saved, more=measured).state is State.PASS


LOADED = step("train", "each", params={"model": "gpt-fit", "ratio": 0.9})


def loaded(
    speeds: Sequence[float | None], machine: str = "h100-8"
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
    ("speed", "state", "cause"),
    [
        (390.0, State.PASS, None),
        (180.0, State.INCONCLUSIVE, "below-expected"),
        (110.0, State.FAIL, "below-reference"),
        (None, State.FAIL, "no-measurement"),
    ],
)
def test_a_training_that_is_equally_slow_everywhere_is_not_accepted(
    speed: float | None, state: State, cause: str | None
) -> None:
    check, accused = loaded([speed] * 8)
    assert (check.state, accused) == (state, set())
    assert {f.cause for f in check.findings if f.state is state} == {cause}


def test_a_host_that_trains_more_slowly_than_its_peers_is_named() -> None:
    check, accused = loaded([390.0] * 7 + [330.0])
    assert (check.state, accused) == (State.DEGRADED, {(EIGHT[7],)})
    _, accused = loaded([390.0 - n for n in range(8)])
    assert accused == set()


def test_without_a_known_peak_hosts_are_compared_with_their_peers() -> None:
    assert loaded([100.0] * 8, "gpu")[0].state is State.PASS
    assert loaded([100.0] * 7 + [80.0], "gpu")[1] == {(EIGHT[7],)}


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


def test_the_rank_that_the_others_wait_for_is_named_with_its_gpu() -> None:
    four_a_host = [replace(m, host=EIGHT[(m.rank or 0) // 4]) for m in owns(5, seconds=0.12)]
    verdict = trained(2.0, 0.4, own=four_a_host, machine=GPU)
    assert blamed(verdict) == {("gpu", "h1:1", "slow-outlier")}
    assert trained(2.0, 0.4, own=owns(5, seconds=0.1), machine=GPU).suspects == ()


def test_a_host_with_half_of_its_ranks_slow_is_named_itself() -> None:
    for gpu in (True, False):
        verdict = trained(2.0, 0.4, own=owns(5, seconds=0.3, gpu=gpu), machine=GPU)
        assert blamed(verdict) == {("node", "h2", "slow-outlier")}


@pytest.mark.parametrize(
    ("usual", "seconds", "named"), [(0.1, 0.15, 0), (0.001, 0.005, 0), (0.1, 0.3, 1)]
)
def test_if_ranks_share_cpus_only_gross_slowness_counts(
    usual: float, seconds: float, named: int
) -> None:
    verdict = trained(2.0, 0.4, own=owns(5, seconds=seconds, usual=usual, gpu=False))
    assert len(verdict.suspects) == named


def test_a_small_model_whose_steps_depend_on_the_cpu_accuses_no_gpu() -> None:
    """Its steps take 50 % longer, but only milliseconds: launching kernels varies this much."""
    verdict = trained(2.0, 0.4, own=owns(5, seconds=0.006, usual=0.004), machine=GPU)
    assert verdict.suspects == ()


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
