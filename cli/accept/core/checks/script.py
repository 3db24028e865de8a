"""A script of the user's own as a check: its exit status, and metric lines in the record format."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from accept.core import record_protocol
from accept.core.checks.check import Check, param
from accept.core.judge import bounds, completeness
from accept.core.judge.collective_metrics import number
from accept.core.judge.evidence import Evidence, Judged
from accept.core.judge.summary import verdict_of
from accept.core.model import Parsed, Problem, Record


@dataclass(frozen=True, kw_only=True)
class Params:
    """Parameters of `script`; the script itself is named in the suite."""

    name: str = param("", "what the report calls it; empty: the file's name")
    seconds: float = param(60.0, "how long it is expected to take, in seconds")

    def __post_init__(self) -> None:
        """Raise ValueError for a time that cannot be."""
        if self.seconds <= 0:
            raise ValueError(f"seconds must be above 0, not {self.seconds}")


def estimate(params: Params, _hosts: int, _ranks: int) -> float:
    """Seconds, as the suite says."""
    return params.seconds


def parse(lines: Iterable[bytes]) -> Parsed:
    """The script's own records."""
    return record_protocol.parse(lines, check="script")


def _failed(record: Record) -> Problem:
    hosts = completeness.host_list(record.hosts)
    said = f"step {record.step} on {hosts} ended with status {record.exit}"
    alone = len(record.hosts) == 1
    return Problem(cause="script-failed", message=said, host=record.hosts[0] if alone else None)


def judge(evidence: Evidence) -> Judged:
    """Every execution ended with 0, and the user's expectations hold."""
    named = tuple(
        replace(record, problems=(_failed(record),))
        if record.exit not in (0, None) and not record.problems
        else record
        for record in evidence.records
    )
    findings = completeness.step_findings(evidence)
    findings += completeness.problem_findings(replace(evidence, records=named))
    findings += bounds.findings(evidence)
    metrics = [m for r in evidence.records for m in r.metrics if m.check == "script"]
    figures = [f"{m.name} {number(m.value)} {m.unit}".strip() for m in metrics[:3]]
    good = sum(record.exit == 0 for record in evidence.records)
    done = f"{good} of {len(evidence.records)} executions ended with 0"
    return Judged(
        verdict_of(
            evidence,
            findings,
            measured="; ".join([done, *figures]),
            against="exit status 0, and what is expected of its metrics",
        )
    )


SCRIPT = Check(
    name="script",
    summary="a script of your own: its exit status and the metrics it prints",
    template="script.sh.j2",
    params=Params,
    groups=("all", "each", "pairs", "halves"),
    needs=("sh",),
    worth=50,
    estimate=estimate,
    parse=parse,
    judge=judge,
)

CHECKS = (SCRIPT,)
