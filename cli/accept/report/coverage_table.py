"""Show what was tested on each host, GPU and NIC, and why the rest was not."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from accept.core.checks import REGISTRY
from accept.core.judge.coverage import Exercise, exercises, loads_gpus, nics_of, ranks_of
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
    missing = {p.host: p.message for p in run.found.problems if p.host in run.verdict.missing}
    alike: dict[CoverageRow, list[str]] = {}
    for host in run.verdict.missing:
        gaps = (f"everything: {missing.get(host, 'it did not take part')}",)
        alike.setdefault(CoverageRow(hosts="", count=0, gaps=gaps), []).append(host)
    every = list(exercises(run.plan, run.records, run.found, REGISTRY))
    ranks = ranks_of(run.plan, (e for e in every if e.is_done))
    by_host: dict[str, list[Exercise]] = {host: [] for host in run.found.present}
    for exercise in every:
        by_host[exercise.host].append(exercise)
    for host, own in by_host.items():
        alike.setdefault(_row(run, host, own, ranks), []).append(host)
    rows = [replace(row, hosts=folded(hosts), count=len(hosts)) for row, hosts in alike.items()]
    return tuple(sorted(rows, key=lambda row: not row.gaps))


def _row(run: Run, host: str, own: Sequence[Exercise], ranks: int) -> CoverageRow:
    """Return what the steps exercised on one host with `ranks` GPUs that should take part."""
    plan, lost = run.plan, run.found.lost.get(host)
    ran = {record.step for record in run.records}
    # A step that was not needed does not leave a gap.
    steps = [
        step.id
        for step in plan.steps
        if loads_gpus(step, REGISTRY) and (step.id in ran or not step.if_open)
    ]
    started = {e.record.step for e in own}
    done = {e.record.step for e in own if e.is_done and e.ranks}
    failed = [step for step in steps if step in started - done]
    not_run = [step for step in steps if step not in started]
    gpus = {rank for e in own if e.is_done for rank in e.ranks}
    gpus_failed = {rank for e in own for rank in e.ranks} - gpus
    unused = {*range(ranks)} - gpus - gpus_failed
    nics, nics_planned = len({nic for e in own for nic in e.nics}), nics_of(plan)
    has_gpus = plan.machine.gpus != 0
    gaps = []
    if failed:
        gaps.append(f"{shortened(failed, 3)}: every execution with it failed")
    if not_run:
        gaps.append(f"{shortened(not_run, 3)}: {lost or 'did not run on it'}")
    if has_gpus and gpus_failed:
        gaps.append(f"GPU {_spans(gpus_failed)}: all its executions failed")
    if has_gpus and unused:
        gaps.append(f"GPU {_spans(unused)}: {lost or 'no step used it'}")
    if has_gpus and run.verdict.part:
        gaps.append(f"other GPUs: only {run.verdict.part} took part")
    if has_gpus and nics < nics_planned:
        reason = "NCCL's log shows no traffic over them"
        if not any(step.profile or len(run.verdict.hosts) > 1 for step in plan.steps):
            reason = "no step connects hosts"
        gaps.append(f"{nics_planned - nics} of {nics_planned} NICs: {lost or reason}")
    total = len(gpus | gpus_failed | unused)
    return CoverageRow(
        hosts="",
        count=0,
        steps=f"{len(done)} of {len(steps)}",
        gpus=f"{_spans(gpus)} ({len(gpus)} of {total})" if has_gpus else "",
        nics=f"{nics} of {nics_planned}" if nics_planned else "",
        gaps=tuple(gaps),
    )


def _spans(numbers: Iterable[int]) -> str:
    """Return numbers in order, with ranges: "0-3, 5"; a dash if there are none."""
    parts: list[list[int]] = []
    for number in sorted(numbers):
        if parts and parts[-1][-1] == number - 1:
            parts[-1][1:] = [number]
        else:
            parts.append([number])
    return ", ".join("-".join(map(str, part)) for part in parts) or "-"
