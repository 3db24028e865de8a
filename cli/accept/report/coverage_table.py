"""Show what was tested on each host, GPU and NIC, and why the rest was not."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from accept.core.checks import REGISTRY
from accept.core.judge.coverage import HostCoverage, coverage_by_host
from accept.core.text import folded, shortened
from accept.report.data import Run


@dataclass(frozen=True, kw_only=True)
class CoverageRow:
    """Hosts on which the same was tested."""

    #: The names of the hosts as a list such as `node[01-16]`, and their number.
    hosts: str
    count: int
    #: Number of steps, such as "14 of 14"; empty for hosts that did not take part.
    steps: str = ""
    gpus: str = ""
    nics: str = ""
    #: Parts that were not tested, with the reasons.
    gaps: tuple[str, ...] = ()


def coverage_rows(run: Run) -> tuple[CoverageRow, ...]:
    """Return a row for all hosts with the same coverage, those with gaps first."""
    covered = coverage_by_host(run.plan, run.records, run.found, REGISTRY)
    missing = {p.host: p.message for p in run.found.problems if p.host in run.verdict.missing}
    alike: dict[CoverageRow, list[str]] = {}
    for host in run.verdict.missing:
        gaps = (f"everything: {missing.get(host, 'it did not take part')}",)
        alike.setdefault(CoverageRow(hosts="", count=0, gaps=gaps), []).append(host)
    for host, own in covered.items():
        alike.setdefault(_row(run, host, own), []).append(host)
    rows = [
        CoverageRow(
            hosts=folded(hosts),
            count=len(hosts),
            steps=row.steps,
            gpus=row.gpus,
            nics=row.nics,
            gaps=row.gaps,
        )
        for row, hosts in alike.items()
    ]
    return tuple(sorted(rows, key=lambda row: not row.gaps))


def _row(run: Run, host: str, own: HostCoverage) -> CoverageRow:
    total = len(own.gpus) + len(own.gpus_failed) + len(own.gpus_unused)
    steps = len(own.steps) + len(own.steps_failed) + len(own.steps_not_run)
    has_gpus = run.plan.machine.gpus != 0
    return CoverageRow(
        hosts="",
        count=0,
        steps=f"{len(own.steps)} of {steps}",
        gpus=f"{_spans(own.gpus)} ({len(own.gpus)} of {total})" if has_gpus else "",
        nics=f"{own.nics} of {own.nics_of}" if own.nics_of else "",
        gaps=tuple(_gaps(run, host, own)),
    )


def _gaps(run: Run, host: str, own: HostCoverage) -> Iterator[str]:
    """Yield what was not tested on a host that took part, and why."""
    lost = run.found.lost.get(host)
    plan = run.plan
    if own.steps_failed:
        yield f"{shortened(own.steps_failed, 3)}: every execution with it failed"
    if own.steps_not_run:
        yield f"{shortened(own.steps_not_run, 3)}: {lost or 'did not run on it'}"
    if plan.machine.gpus == 0:
        return
    if own.gpus_failed:
        yield f"GPU {_spans(own.gpus_failed)}: all its executions failed"
    if own.gpus_unused:
        yield f"GPU {_spans(own.gpus_unused)}: {lost or 'no step used it'}"
    if run.verdict.part:
        yield f"other GPUs: only {run.verdict.part} took part"
    if own.nics < own.nics_of:
        left = own.nics_of - own.nics
        reason = "NCCL's log shows no traffic over them"
        if not any(step.profile or len(run.verdict.hosts) > 1 for step in plan.steps):
            reason = "no step connects hosts"
        yield f"{left} of {own.nics_of} NICs: {lost or reason}"


def _spans(numbers: Sequence[int]) -> str:
    """Return sorted numbers with ranges: "0-3, 5"; a dash if there are none."""
    parts: list[list[int]] = []
    for number in numbers:
        if parts and parts[-1][-1] == number - 1:
            parts[-1][1:] = [number]
        else:
            parts.append([number])
    return ", ".join("-".join(map(str, part)) for part in parts) or "-"
