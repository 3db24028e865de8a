"""burn: which GPU or host of several hosts is named if a load shows a fault, and who never is."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from tests.factories import verdicts
from tests.factories.judging import accused, evidence

from accept import config
from accept.config.floors import bounds
from accept.core.checks import REGISTRY
from accept.core.judge.devices import LIMITING_FAULTS
from accept.core.judge.evidence import Judged
from accept.core.plan import Step
from accept.core.records import Fact, Metric, Record
from accept.core.verdict import State

GPUS = 8
HOSTS = verdicts.hosts(8)
LAST = len(HOSTS) - 1
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
        for unit, usual in (("W", 680), ("C", 60)):
            value = usual * draw.uniform(0.97, 1.03)
            value *= changed.get(unit, 1) if rank == 3 else changed.get(f"{unit}-host", 1)
            load[unit] = [value - 5, value, value + 5]
        facts.append(Fact(name="load", value=load, check="burn", host=host, rank=rank))
        for name, (value, unit) in values.items():
            metrics.append(metric(name, value, unit, host, rank))
    step = 0.02 * draw.uniform(0.97, 1.03)
    metrics.append(metric("step-p50", step, "s", host))
    long = step * draw.uniform(1.05, 1.1) * changed.get("long", 1)
    metrics.append(metric("step-p99", long, "s", host))
    metrics.append(metric("all-gather", gather * draw.uniform(0.8, 1.2), "GB/s", host))
    return verdicts.record(STEP, (host,), *metrics, number=number, ranks=GPUS, facts=tuple(facts))


def judged(seed: int, **changed: Any) -> Judged:
    """Judge the hosts; `changed` is for the last one."""
    return judged_with(seed, {LAST: changed})


def judged_with(
    seed: int, changed: Mapping[int, dict[str, Any]], count: int = len(HOSTS)
) -> Judged:
    """Judge `count` hosts; `changed`: changes of each of them."""
    records = [record(n, seed + n, **changed.get(n, {})) for n in range(count)]
    devices = ("NVIDIA H100 80GB HBM3",)
    of = evidence(STEP, records, HOSTS[:count], MACHINE.planned(), bounds(MACHINE), devices=devices)
    return REGISTRY["burn"].judge(of)


seeds = st.integers(0, 10**6)


@given(seeds)
def test_gpus_at_their_power_limit_and_uneven_links_accuse_nobody(seed: int) -> None:
    found = judged(seed)
    assert (found.verdict.state, found.suspects) == (State.PASS, ())
    assert noted(found, "far from the others") == []


@given(seeds, st.floats(0.2, 0.75))
def test_a_gpu_that_is_slow_under_load_is_named(seed: int, speed: float) -> None:
    assert list(accused(judged(seed, speed=speed))) == [f"h{LAST}:3"]


@given(seeds, st.sampled_from(sorted(LIMITING_FAULTS)), st.floats(0, 1))
def test_a_clock_limited_by_a_fault_in_a_twentieth_of_the_samples_names_the_gpu(
    seed: int, reason: str, share: float
) -> None:
    found = judged(seed, held={reason: share})
    assert accused(found) == ({f"h{LAST}:3": LIMITING_FAULTS[reason]} if share >= 0.05 else {})


@given(seeds, st.floats(1, 100))
def test_a_host_whose_links_are_slow_under_load_is_named(seed: int, gather: float) -> None:
    assert list(accused(judged(seed, gather=gather))) == [f"h{LAST}"]


def noted(found: Judged, words: str) -> list[tuple[tuple[str, ...], State]]:
    return [(f.hosts, f.state) for f in found.verdict.findings if words in f.message]


@given(seeds, st.sampled_from(["W", "C"]), st.floats(0.3, 3).filter(lambda x: abs(x - 1) > 0.25))
def test_a_gpu_of_unusual_power_or_temperature_is_noted_and_accused_by_nothing(
    seed: int, unit: str, factor: float
) -> None:
    found = judged(seed, **{unit: factor})
    assert (found.verdict.state, found.suspects) == (State.PASS, ())
    (note,) = (f for f in found.verdict.findings if "far from the others" in f.message)
    assert (note.hosts, f" {unit}, " in note.message) == ((f"h{LAST}",), True)
    assert f"h{LAST}:3 " in note.message


@given(seeds, st.floats(1.75, 50), st.floats(1.25, 1.35), st.floats(1, 1.4))
def test_long_steps_are_inconclusive_only_on_one_host_alone(
    seed: int, long: float, longer: float, heat: float
) -> None:
    for changed, hosts, state in (
        ({LAST: {"C-host": heat}}, None, State.PASS),
        ({LAST: {"long": long}}, (f"h{LAST}",), State.INCONCLUSIVE),
        ({LAST: {"long": longer}}, (f"h{LAST}",), State.PASS),
        ({0: {"long": long}, LAST: {"long": long}}, ("h0", f"h{LAST}"), State.PASS),
    ):
        found = judged_with(seed, changed)
        assert (found.verdict.state, found.suspects) == (state, ())
        notes = [(tuple(sorted(of)), shown) for of, shown in noted(found, "step-p99")]
        assert notes == ([(hosts, state)] if hosts else [])


@given(seeds)
def test_few_hosts_do_not_show_what_is_normal(seed: int) -> None:
    found = judged_with(seed, {2: {"long": 50}}, count=4)
    assert (noted(found, "step-p99"), found.verdict.state) == ([], State.PASS)
