"""Records of any content can be judged."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from tests.factories.judging import ALL, EIGHT, PAIRS, judged
from tests.factories.verdicts import (
    COLLECTIVE,
    CPU,
    FLOOR,
    GPU,
    plan,
    step,
)

from accept.core.causes import Cause
from accept.core.model import (
    BoundKind,
    Fact,
    Metric,
    Placement,
    Problem,
    Record,
    Reference,
    State,
    Verdict,
)
from accept.core.serde import dump, read

TEXT = st.text(max_size=8)
NUMBERS = st.floats() | st.integers(-(2**70), 2**70).map(float)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=6,
)
CHECKS = ["all-reduce", "alltoall", "inventory", "connectivity", "train", "script", "hosts", "none"]
CHECKS += ["gemm", "memory"]
HOST = st.sampled_from([*EIGHT, "", "x y"])
WILD = st.builds(
    Record,
    step=st.sampled_from([ALL.id, PAIRS.id, "00-hosts", *(f"10-{c}-all" for c in CHECKS), "?"]),
    checks=st.lists(st.sampled_from(CHECKS), max_size=2).map(tuple),
    wave=st.integers(-1, 3),
    group=st.integers(-1, 3),
    hosts=st.lists(HOST, max_size=4).map(tuple),
    local_ranks=st.lists(st.integers(-1, 9), max_size=2).map(tuple),
    ranks=st.integers(-1, 20),
    exit=st.none() | st.integers(-2, 255),
    log=TEXT,
    metrics=st.lists(
        st.builds(
            Metric,
            check=st.sampled_from(CHECKS),
            name=st.sampled_from(
                ["busbw", "wrong", "loss-first", "loss-last", "throughput", "ping", "bf16", "copy"]
            ),
            value=NUMBERS,
            unit=TEXT,
            size=st.none() | st.integers(-5, 2**70),
            host=st.none() | HOST,
            rank=st.none() | st.integers(0, 9),
            gpu=st.none() | TEXT,
            placement=st.sampled_from([None, *Placement]),
        ),
        max_size=6,
    ).map(tuple),
    facts=st.lists(
        st.builds(
            Fact,
            name=st.sampled_from(["inventory", "rank", "digest", "load", "left-out", "?"]),
            check=st.none() | st.sampled_from(CHECKS),
            value=JSON
            | st.fixed_dictionaries({"type": JSON, "exact": JSON, "held": JSON, "C": JSON})
            | st.fixed_dictionaries(
                {"gpus": JSON | st.lists(JSON), "pciNvidia": JSON, "nics": JSON, "versions": JSON}
            ),
            host=st.none() | HOST,
            rank=st.none() | st.integers(-1, 9),
        ),
        max_size=4,
    ).map(tuple),
    problems=st.lists(
        st.builds(
            Problem,
            cause=st.sampled_from(Cause),
            message=TEXT,
            check=st.none() | st.sampled_from(CHECKS),
            host=st.none() | HOST,
            gpu=st.none() | TEXT,
        ),
        max_size=3,
    ).map(tuple),
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
