"""Define the check `script`: the user's own script, its exit status and its metrics."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial

from accept.core import record_protocol
from accept.core.catalog.metrics import BETTER_BY_UNIT, Better
from accept.core.causes import Cause
from accept.core.checks.check import Check, CheckParams
from accept.core.judge import bounds
from accept.core.judge.conclusion import conclude
from accept.core.judge.evidence import Evidence, Judged
from accept.core.plan import GroupKind
from accept.core.records import Problem, Record
from accept.core.serde import param
from accept.core.text import format_size, host_list, number
from accept.core.verdict import Finding


@dataclass(frozen=True, kw_only=True)
class Params(CheckParams):
    """Parameters of `script`; the suite names the script itself."""

    name: str = param("", "name in the report; empty: the name of the file")
    seconds: float = param(60.0, "expected duration in seconds", above=0)

    def estimate(self, _hosts: int, _ranks: int) -> float:
        """Return the parameter `seconds`."""
        return self.seconds


def _failed(record: Record) -> Problem:
    message = f"step {record.step} on {host_list(record.hosts)} ended with status {record.exit}"
    host = record.hosts[0] if len(record.hosts) == 1 else None
    return Problem(cause=Cause.SCRIPT_FAILED, message=message, host=host)


def _without_bound(evidence: Evidence) -> Iterator[Finding]:
    """Yield a finding for each step of figures from files that has no bound for any of them."""
    bounded = {bound.metric for bound in bounds.bounds_of(evidence)}
    for step in evidence.steps:
        metrics = [metric for record in evidence.of_step(step) for metric in record.metrics]
        if metrics and bounded.isdisjoint(metric.name for metric in metrics):
            one = metrics[0]
            values = [m.value for m in metrics if (m.name, m.size) == (one.name, one.size)]
            size = f"@{format_size(one.size)}" if one.size else ""
            is_lower = BETTER_BY_UNIT.get(one.unit) is Better.LOWER
            worst = (max if is_lower else min)(values)
            subject = f"script.{one.name}{size}"
            example = bounds.example(subject, worst, upper=is_lower) if worst > 0 else ""
            yield bounds.no_bound_finding("script", example)


def judge(evidence: Evidence) -> Judged:
    """Pass if every execution ended with status 0 and the user's expectations hold."""
    records = tuple(
        replace(record, problems=(_failed(record),))
        if record.exit not in (0, None) and not record.problems
        else record
        for record in evidence.records
    )
    metrics = [m for r in evidence.records for m in r.metrics if m.check == "script"]
    figures = [f"{m.name} {number(m.value)} {m.unit}".strip() for m in metrics[:3]]
    succeeded = sum(record.exit == 0 for record in evidence.records)
    outcome = f"{succeeded} of {len(evidence.records)} executions ended with status 0"
    return conclude(
        replace(evidence, records=records),
        findings=_without_bound(evidence) if evidence.plan.origin else (),
        measured="; ".join([*([] if evidence.plan.origin else [outcome]), *figures]),
        required="exit status 0, and the expected values of its metrics",
    )


SCRIPT = Check(
    name="script",
    summary="your own script: its exit status and the metrics it prints",
    template="script.sh.j2",
    params=Params,
    groups=(GroupKind.ALL, GroupKind.EACH, GroupKind.PAIRS, GroupKind.HALVES),
    user_script=True,
    worth=50,
    parse=partial(record_protocol.parse, check="script"),
    judge=judge,
)

CHECKS = (SCRIPT,)
