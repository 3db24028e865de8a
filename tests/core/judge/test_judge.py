"""Records of any content can be judged."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from tests.factories.instances import PLAIN, instances
from tests.factories.judging import ALL, EIGHT, PAIRS, judged
from tests.factories.verdicts import COLLECTIVE, CPU, FLOOR, GPU, plan, step

from accept.core.plan import BoundKind, Reference
from accept.core.records import Fact, Metric, Problem, Record
from accept.core.serde import dump, read
from accept.core.verdict import State, Verdict

CHECKS = ["all-reduce", "alltoall", "inventory", "connectivity", "train", "script", "hosts", "none"]
CHECKS += ["gemm", "memory"]
NAMES = ["busbw", "wrong", "loss-first", "loss-last", "throughput", "ping", "bf16", "copy"]
CHECK, HOST = st.sampled_from(CHECKS), st.sampled_from([*EIGHT, "", "x y"])
LABELS = {"check": CHECK, "host": st.none() | HOST, "rank": st.none() | st.integers(-1, 9)}
ANY = PLAIN | st.floats()
METRICS = instances(
    Metric,
    **LABELS,
    name=st.sampled_from(NAMES),
    value=st.floats() | st.integers(-(2**70), 2**70).map(float),
    size=st.none() | st.integers(-5, 2**70),
)
FACTS = instances(
    Fact,
    **LABELS,
    name=st.sampled_from(["inventory", "rank", "digest", "load", "left-out", "?"]),
    value=ANY
    | st.fixed_dictionaries({"type": ANY, "exact": ANY, "held": ANY, "C": ANY})
    | st.fixed_dictionaries(
        {"gpus": ANY | st.lists(ANY), "pciNvidia": ANY, "nics": ANY, "versions": ANY}
    ),
)
WILD = instances(
    Record,
    step=st.sampled_from([ALL.id, PAIRS.id, "00-hosts", *(f"10-{c}-all" for c in CHECKS), "?"]),
    checks=st.lists(CHECK, max_size=2).map(tuple),
    wave=st.integers(-1, 3),
    hosts=st.lists(HOST, max_size=4).map(tuple),
    ranks=st.integers(-1, 20),
    exit=st.sampled_from([0, 0, 1, None]),
    metrics=st.lists(METRICS, max_size=6).map(tuple),
    facts=st.lists(FACTS, max_size=4).map(tuple),
    problems=st.lists(instances(Problem, **LABELS), max_size=3).map(tuple),
)
EVERY = [step(check) for check in CHECKS]
BOUND = Reference(
    check="train", metric="throughput", unit="1/s", kind=BoundKind.SPEC, source="", upper=5.0
)


@given(
    st.lists(WILD, max_size=8),
    st.sampled_from([CPU, GPU]),
    st.sampled_from(["", "cancelled"]),
    st.sampled_from([COLLECTIVE, {}, {"min": "x", "max": 3, "factor": 0}, {"ratio": "a"}]),
)
def test_any_records_can_be_judged_and_every_verdict_can_be_written(
    records: list[Record], machine: Any, interruption: str, params: dict[str, Any]
) -> None:
    steps = [replace(of, params=params) for of in (ALL, PAIRS, *EVERY)]
    wild = plan(*steps, machine=machine, references=(FLOOR, BOUND))
    verdict = judged(wild, *records, interruption=interruption)
    assert verdict.accepted == (verdict.exit == 0) == (verdict.state is State.PASS)
    assert read(Verdict, json.loads(json.dumps(dump(verdict), allow_nan=False))) == verdict
