"""One host forges its own logs, as root on it can: nobody else is accused, and the run is judged.

The run is that of `accept demo`: 32 nodes, and gpu17 is bad.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from accept.commands import demo
from accept.core import evidence
from accept.core.causes import Cause
from accept.core.checks import REGISTRY, parse_log
from accept.core.judge import judge
from accept.core.records import Record
from accept.core.verdict import State

LIAR, VICTIM, BAD = "gpu05", "gpu03", "gpu17"


def _line(**record: object) -> bytes:
    kept = {name: value for name, value in record.items() if value is not None}
    return f"ACCEPT {json.dumps(kept)}\n".encode()


def _forged(of: Record, host: str | None) -> Iterator[bytes]:
    """Yield lines about a host: everything that the liar's own log has, with other values."""
    for metric in {(m.check, m.name): m for m in of.metrics}.values():
        for value in (0.0, metric.value / 100, metric.value * 100, "nan"):
            of_part = {"rank": metric.rank, "gpu": metric.gpu, "host": host}
            yield _line(
                metric=metric.name, value=value, unit=metric.unit, check=metric.check, **of_part
            )
    for fact in {f.name: f for f in of.facts}.values():
        # Damaged, or that of a host that lacks everything.
        gpus = {"gpus": [], "cpus": 1} if isinstance(fact.value, dict) else []
        for changed in (None, {}, gpus):
            yield _line(fact=fact.name, value=changed, host=host, rank=fact.rank, check=fact.check)
    for cause in (Cause.GPU_LOST, Cause.WRONG_DATA, Cause.CRASHED):
        yield _line(problem=cause, message="x", host=host, rank=0, gpu="0")


@pytest.mark.sampled
@pytest.mark.parametrize("number", [0, 1])
@pytest.mark.parametrize("host", [VICTIM, f"{VICTIM}.example", None])
def test_the_log_of_a_host_alone_accuses_no_other_host(
    host: str | None, number: int, runs: Path
) -> None:
    folder = demo.unpack_demo() / "evidence"
    plan, records = evidence.read_plan(folder), [*evidence.read_records(folder)]
    steps = {step.id: step for step in plan.steps}
    own = [r for r in records if r.hosts == (LIAR,)]
    assert len(own) == 2
    true = own[number]
    log = b"".join(evidence.open_log(folder, true.log) or ())
    for line in _forged(true, host):
        checks = steps[true.step].checks
        parsed = parse_log(checks, [log + line], true.hosts, status=true.exit)
        changed_record = replace(
            true, metrics=parsed.metrics, facts=parsed.facts, problems=parsed.problems
        )
        changed = [changed_record if record is true else record for record in records]
        verdict = judge(plan, changed, checks=REGISTRY, attempt="demo", interruption="")
        accused = {name for suspect in verdict.suspects for name in suspect.hosts}
        assert BAD in accused <= {BAD, LIAR}, line
        assert verdict.state in (State.DEGRADED, State.FAIL), line
