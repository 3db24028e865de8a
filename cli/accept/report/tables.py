"""List what a report shows in tables: bad executions, coverage, changes of devices, and gaps."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from accept.core.checks import REGISTRY
from accept.core.judge import health
from accept.core.judge.coverage import Exercise, exercises, loads_gpus, nics_of, ranks_of
from accept.core.judge.summary import node_lists
from accept.core.judge.suspects import HOSTS_STEP
from accept.core.text import folded, host_list, shortened, spans
from accept.core.verdict import State
from accept.report.data import Run, share_of

_MOST_EXECUTIONS, _MOST_CHANGES = 40, 200


@dataclass(frozen=True, kw_only=True)
class BadExecution:
    """A bad result of a pair of nodes, or of one node alone."""

    host: str
    #: Empty: it ran alone.
    partner: str
    check: str
    #: The value beside the normal one.
    measured: str
    #: Seconds since 1970; 0: unknown.
    start: float
    log: str


def bad_executions(run: Run) -> tuple[tuple[BadExecution, ...], int]:
    """Return the bad executions, accused nodes and the slowest first, and the number of others."""
    found = []
    members = {host for suspect in run.verdict.suspects for host in suspect.hosts}
    for population in run.populations:
        for sample in population.samples:
            if sample.bad:
                host, *others = sorted(sample.hosts, key=lambda one: one not in members)
                share = share_of(sample, population.normal) or 0.0
                key = host not in run.suspects, share, host, population.name
                row = BadExecution(
                    host=host,
                    partner=", ".join(others),
                    check=population.name,
                    measured=population.values_of([sample]),
                    start=sample.start,
                    log=sample.log,
                )
                found.append((key, row))
    rows = tuple(row for _, row in sorted(found, key=lambda one: one[0]))
    return rows[:_MOST_EXECUTIONS], max(0, len(rows) - _MOST_EXECUTIONS)


@dataclass(frozen=True, kw_only=True)
class CoverageRow:
    """Hosts on which the same was tested."""

    #: The names of the hosts as a list such as `node[01-16]`, and their number.
    hosts: str = ""
    count: int = 0
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
        alike.setdefault(CoverageRow(gaps=gaps), []).append(host)
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
        steps=f"{len(done)} of {len(steps)}",
        gpus=f"{_spans(gpus)} ({len(gpus)} of {total})" if has_gpus else "",
        nics=f"{nics} of {nics_planned}" if nics_planned else "",
        gaps=tuple(gaps),
    )


def _spans(numbers: Iterable[int]) -> str:
    """Return numbers in order, with ranges: "0-3, 5"; a dash if there are none."""
    texts = (f"{a}" if a == b else f"{a}-{b}" for a, b in spans(numbers))
    return ", ".join(texts) or "-"


@dataclass(frozen=True, kw_only=True)
class HealthRow:
    """One change of one device."""

    host: str
    when: str
    device: str
    change: str


def health_rows(run: Run) -> tuple[tuple[HealthRow, ...], int, int]:
    """Return the changes, the number of those left out, and the number of readings."""
    rows: list[HealthRow] = []
    asked = [record for record in run.records if record.step == HOSTS_STEP]
    for sweep in health.changes_of(asked, run.plan.steps):
        change = sweep.change

        def add(device: str, text: str, host: str = sweep.host, when: str = sweep.when) -> None:
            rows.append(HealthRow(host=host, when=when, device=device, change=text))

        if change.rebooted:
            add("host", "rebooted")
        for device, kind, code, fatal, _ in change.events:
            add(device, f"{kind} {code} {fatal}".strip())
        for device in change.gone:
            add(device, "disappeared")
        for device, levels in change.levels.items():
            for name, pair in levels.items():
                add(device, f"{name} {' to '.join(f'{value:g}' for value in pair)}")
        if not sweep.total:
            for device, counters in change.counters.items():
                for name, growth in counters.items():
                    add(device, f"{name} +{growth}")
        for gap in change.unread:
            add("", f"no longer readable: {gap.reason}")
    return (
        tuple(rows[:_MOST_CHANGES]),
        max(0, len(rows) - _MOST_CHANGES),
        len({record.wave for record in asked} - {0}),
    )


@dataclass(frozen=True, kw_only=True)
class Gap:
    """Something that was not tested, and the reason."""

    subject: str
    reason: str


def gaps(run: Run) -> tuple[Gap, ...]:
    """Return what was not tested, the largest gaps first."""
    return tuple(dict.fromkeys(_gaps(run)))


def _gaps(run: Run) -> Iterator[Gap]:
    verdict = run.verdict
    if verdict.interruption:
        yield Gap(subject="the rest of the run", reason=f"interrupted: {verdict.interruption}")
    if verdict.injected:
        yield Gap(subject="the nodes", reason="this was a drill with injected faults")
    if verdict.missing:
        yield Gap(subject=host_list(verdict.missing), reason="did not take part")
    for node in verdict.left_out:
        yield Gap(subject=node.name, reason=node.reason)
    if not verdict.gpu_tested and run.plan.machine.gpus != 0:
        yield Gap(subject="GPUs", reason="no check detected a GPU")
    if verdict.part:
        yield Gap(subject="the rest of each node", reason=f"only {verdict.part} took part")
    unshown = [host for host in verdict.hosts if host in node_lists(verdict).untested]
    if unshown and verdict.suspects:
        reason = "the run does not show that they pass without the suspects"
        yield Gap(subject=host_list(unshown), reason=reason)
    for check in verdict.checks:
        for finding in check.findings:
            if finding.state in (State.NOT_TESTED, State.INCONCLUSIVE):
                subject = check.check
                yield Gap(subject=subject, reason=finding.message)
    for skipped in run.plan.skipped:
        yield Gap(subject=skipped.subject, reason=skipped.reason)
