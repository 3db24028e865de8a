"""burn: which GPU or host of four hosts is named if a load shows a fault, and who never is."""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.factories import verdicts

from accept import config
from accept.config.floors import bounds
from accept.core.checks import REGISTRY
from accept.core.judge.devices import LIMITING_FAULTS
from accept.core.judge.evidence import Evidence, Judged
from accept.core.model import Fact, Metric, Record, State, Step

GPUS = 8
HOSTS = verdicts.hosts(4)
STEP: Step = verdicts.step("burn", "each", params={}, checks=("burn",))
MACHINE = config.load_machine("h100-8").value
#: Samples of 90 s.
SAMPLES = 360


def metric(name: str, value: float, unit: str, host: str, rank: int | None = None) -> Metric:
    gpu = None if rank is None else str(rank)
    return Metric(check="burn", name=name, value=value, unit=unit, host=host, rank=rank, gpu=gpu)


def record(number: int, seed: int, gather: float = 300.0, **changed: Any) -> Record:
    """Return the record of a host; `speed` and `held` (reason -> share) change its GPU 3.

    Healthy GPUs differ by up to 6 % at their power limit, which limits them most of the time.
    """
    host, draw = HOSTS[number], random.Random(seed)
    metrics, facts = [], []
    for rank in range(GPUS):
        values = {"bf16": (600 * draw.uniform(0.97, 1.03), "TFLOP/s"), "wrong": (0.0, "count")}
        held = {"power-cap": draw.uniform(0.9, 1), "thermal-software": draw.uniform(0, 0.04)}
        if rank == 3:
            values["bf16"] = (values["bf16"][0] * changed.get("speed", 1), "TFLOP/s")
            held |= changed.get("held", {})
        load = {"type": "bf16", "looks": changed.get("samples", SAMPLES), "held": held}
        facts.append(Fact(name="load", value=load, check="burn", host=host, rank=rank))
        for name, (value, unit) in values.items():
            metrics.append(metric(name, value, unit, host, rank))
    metrics.append(metric("all-gather", gather * draw.uniform(0.8, 1.2), "GB/s", host))
    return verdicts.record(STEP, (host,), *metrics, number=number, ranks=GPUS, facts=tuple(facts))


def judged(seed: int, **changed: Any) -> Judged:
    """Judge four hosts; `changed` is for the last one."""
    records = [record(n, seed + n, **(changed if n == 3 else {})) for n in range(len(HOSTS))]
    evidence = Evidence(
        check="burn",
        plan=verdicts.plan(STEP, machine=MACHINE.planned(), references=bounds(MACHINE)),
        steps=(STEP,),
        records=tuple(records),
        hosts=HOSTS,
        devices=("NVIDIA H100 80GB HBM3",),
    )
    return REGISTRY["burn"].judge(evidence)


def blamed(found: Judged) -> dict[str, str]:
    return {suspect.name: suspect.cause for suspect in found.suspects}


seeds = st.integers(0, 10**6)


@given(seeds)
def test_gpus_at_their_power_limit_and_uneven_links_accuse_nobody(seed: int) -> None:
    found = judged(seed)
    assert (found.verdict.state, found.suspects) == (State.PASS, ())


@given(seeds, st.floats(0.2, 0.75))
def test_a_gpu_that_is_slow_under_load_is_named(seed: int, speed: float) -> None:
    assert list(blamed(judged(seed, speed=speed))) == ["h3:3"]


@given(seeds, st.sampled_from(sorted(LIMITING_FAULTS)), st.floats(0.05, 1))
def test_a_clock_limited_by_a_fault_in_a_twentieth_of_the_samples_names_the_gpu(
    seed: int, reason: str, share: float
) -> None:
    found = judged(seed, held={reason: share})
    assert found.verdict.state is State.FAIL
    assert blamed(found) == {"h3:3": LIMITING_FAULTS[reason]}


@given(seeds, st.sampled_from(sorted(LIMITING_FAULTS)), st.floats(0, 0.049))
def test_a_reason_in_fewer_samples_accuses_nobody(seed: int, reason: str, share: float) -> None:
    assert judged(seed, held={reason: share}).verdict.state is State.PASS


@pytest.mark.parametrize("samples", [0, 1, 20])
def test_a_single_sample_accuses_nobody(samples: int) -> None:
    share = 1 / samples if samples else 1.0
    assert judged(1, samples=samples, held={"power-brake": share}).suspects == ()


@given(seeds, st.floats(1, 100))
def test_a_host_whose_links_are_slow_under_load_is_named(seed: int, gather: float) -> None:
    assert list(blamed(judged(seed, gather=gather))) == ["h3"]
