"""Compare every measurement with its absolute bounds.

A bound without a size applies to the largest message of an execution, never to an average over
sizes. It applies to executions that span whole hosts, or only to single rails. If the
user has an expectation for one side of a measurement (lower or upper), it replaces that side of
all references.

Logs of others often end below the size of a reference. Busbw grows with the size, so a smaller
message that reaches a lower bound meets it; one that does not reach it decides nothing.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import replace

from accept.core import sentences
from accept.core.catalog.metrics import BUSBW, TIME
from accept.core.causes import Cause, Judgement
from accept.core.facts import PROGRAM
from accept.core.judge.evidence import Evidence
from accept.core.judge.findings import finding, first_logs
from accept.core.judge.hosts import is_device
from accept.core.judge.values import is_bad
from accept.core.plan import Bound, BoundKind, Plan, Reference, Step
from accept.core.records import Placement, Record
from accept.core.table import Execution, Measure, Row, planned_sizes, rows_of
from accept.core.text import host_list, met_bound
from accept.core.verdict import CheckVerdict, Finding, State

#: No measurement is that large. Not-a-number compares false as well.
_ABSURD = 1e300


# Findings


def findings(evidence: Evidence) -> list[Finding]:
    """Return one finding for each bound and step with measurements, about the worst value.

    An expectation without any measurement gets a finding as well.
    """
    bounds = bounds_of(evidence)
    measured: dict[tuple[str, Reference, bool], list[Row]] = {}
    for execution in evidence.executions if bounds else ():
        for bound, row in _bounded(evidence, bounds, execution):
            key = execution.step.id, bound, _is_smaller(row, bound)
            measured.setdefault(key, []).append(row)
    result = [_finding(evidence.check, bound, rows) for (_, bound, _), rows in measured.items()]
    known = {bound for _, bound, _ in measured}
    for bound in bounds if not evidence.partial else ():
        if bound.kind is BoundKind.EXPECTATION and bound not in known:
            result.append(unmeasured_finding(evidence.check, bound))
    return result


def outside(evidence: Evidence, metric: str) -> Iterator[tuple[Reference, Row]]:
    """Yield each value of a metric that is outside a bound, with that."""
    bounds = [bound for bound in bounds_of(evidence) if bound.metric == metric]
    for execution in evidence.executions if bounds else ():
        for bound, row in _bounded(evidence, bounds, execution):
            if not _is_smaller(row, bound) and is_bad(row.value or 0.0, bound.lower, bound.upper):
                yield bound, row


def verdicts_without_step(plan: Plan) -> Iterator[CheckVerdict]:
    """Yield a verdict for each check that the user has expectations for, but that no step runs.

    A planned run has no such check, but plans of other programs and the options of `accept judge`
    can. Skipped checks have a verdict already, and a drill runs only some of the checks.
    """
    known = {*plan.checks, *(skipped.check for skipped in plan.skipped)}
    by_check: dict[str, list[Finding]] = {}
    for bound in plan.references if not plan.injected else ():
        if bound.kind is BoundKind.EXPECTATION and bound.check not in known:
            by_check.setdefault(bound.check, []).append(unmeasured_finding(bound.check, bound))
    for check, unmeasured in by_check.items():
        yield CheckVerdict(check=check, state=State.INCONCLUSIVE, findings=tuple(unmeasured))


def no_bound_finding(check: str, expectation: str, reason: str = "") -> Finding:
    """Return the finding that a check has no bound; `expectation` is an example; empty: none."""
    text = sentences.no_bound(reason, expectation)
    cause = Cause.NO_REFERENCE
    return finding(check, Judgement.ABSOLUTE, State.INCONCLUSIVE, text, cause=cause)


def example(subject: str, value: float, *, upper: bool = False) -> str:
    """Return an expectation that a measured value meets, such as all-reduce@8G>=380."""
    return f"{subject}{'<=' if upper else '>='}{met_bound(value, upper=upper)}"


def other_sizes(evidence: Evidence, metric: str) -> tuple[int, ...]:
    """Return the message sizes for which the measured groups of hosts have a bound."""
    sizes = (
        bound.size
        for bound in bounds_of(evidence)
        if bound.metric == metric and any(_covers(evidence, bound, e) for e in evidence.executions)
    )
    return tuple(sorted({size for size in sizes if size is not None}))


def unmeasured_finding(check: str, bound: Reference) -> Finding:
    """Return the finding that nothing was measured for a bound."""
    return Finding(
        check=check,
        judgement=Judgement.ABSOLUTE,
        state=State.INCONCLUSIVE,
        message=sentences.unmeasured(bound),
        cause=Cause.NO_MEASUREMENT,
        metric=bound.metric,
        unit=bound.unit,
        size=bound.size,
        bound=bound.bound,
    )


# Which bounds apply


def bounds_of(evidence: Evidence) -> tuple[Reference, ...]:
    """Return the bounds of the plan for this check on these devices.

    An expectation is for whole hosts. Its share of one GPU also limits the bound of a rail.
    """
    machine = evidence.plan.machine
    devices = evidence.devices or ((machine.device,) if machine.device else ())
    return tuple(
        _expected_of_rail(evidence.plan, bound) if bound.per_rail else bound
        for bound in evidence.plan.references
        if bound.check == evidence.check
        and (bound.lower is not None or bound.upper is not None)
        and (not bound.device or _all_are(bound.device, devices))
    )


def _expected_of_rail(plan: Plan, bound: Reference) -> Reference:
    """Return the bound of a rail, lowered to a GPU's share of the user's expectations."""
    gpus = plan.gpus_used or plan.machine.gpus or plan.machine.ranks or 1
    shares = [
        expected.lower / gpus
        for expected in plan.references
        if expected.kind is BoundKind.EXPECTATION
        and (expected.check, expected.metric) == (bound.check, bound.metric)
        and expected.lower is not None
        and expected.size in (None, bound.size)
        and (expected.max_nodes is None or expected.max_nodes > 1)
    ]
    if bound.lower is None or not shares:
        return bound
    return replace(bound, lower=min(bound.lower, *shares))


def _all_are(wanted: str, devices: Sequence[str]) -> bool:
    return bool(devices) and all(is_device(wanted, device) for device in devices)


def lowest(
    evidence: Evidence, step: Step, measure: Measure, nodes: int | None = None
) -> float | None:
    """Return the value that the groups of a step must reach; None: unknown.

    `nodes`: the number of hosts of the groups; None: that of the largest.
    """
    # Bounds of a latency are for single sizes, not for the median. One rank has no peer.
    own = [
        e
        for e in evidence.executions
        if e.step.id == step.id and (e.record.local_ranks or e.has_peer)
    ]
    nodes = nodes or max((len(e.record.hosts) for e in own), default=0)
    own = [e for e in own if len(e.record.hosts) == nodes]
    if measure.inverse or not own:
        return None
    return _lowest(_lower_bounds(evidence, measure.metric, own, planned_sizes(step)[-1:]))


def lowest_of_devices(evidence: Evidence, metric: str) -> float | None:
    """Return the value that each device must reach; None: unknown."""
    return _lowest(_lower_bounds(evidence, metric, evidence.executions))


def deciding(
    evidence: Evidence,
    metric: str,
    executions: Sequence[Execution],
    worst: float,
    sizes: Collection[int] = (),
) -> Bound | None:
    """Return the bound that decides about the worst value of executions; None: there is none.

    Of those for which it fails, it is the highest, else the one that requires most. Bounds for one
    size count if it is in `sizes`, or if logs of others may meet them there.
    """
    failed = [
        b for b in _lower_bounds(evidence, metric, executions, sizes) if is_bad(worst, b.lower)
    ]
    if failed:
        return replace(max(failed, key=lambda bound: bound.lower or 0.0), expected=None)
    lower = _lower_bounds(evidence, metric, executions, sizes, larger=True)
    return max(lower, key=lambda bound: bound.required or 0.0, default=None)


def _lowest(lower: Sequence[Bound]) -> float | None:
    return max((bound.lower or 0.0 for bound in lower), default=None)


def _lower_bounds(
    evidence: Evidence,
    metric: str,
    executions: Iterable[Execution],
    sizes: Collection[int] = (),
    *,
    larger: bool = False,
) -> list[Bound]:
    executions = list(executions)
    covering = [
        bound
        for bound in bounds_of(evidence)
        if bound.metric == metric
        and (
            bound.size is None
            or bound.size in sizes
            or (larger and any(_may_meet(evidence, bound, metric, size) for size in sizes))
        )
        and all(_covers(evidence, bound, execution) for execution in executions)
    ]
    return [bound.bound for bound in _in_force(covering) if bound.lower is not None]


def _in_force(bounds: Sequence[Reference]) -> list[Reference]:
    """Return expectations, and the sides of references that no expectation replaces.

    A lower expectation replaces the lower side of references, an upper one their upper side.
    """
    expectations = [bound for bound in bounds if bound.kind is BoundKind.EXPECTATION]
    has_lower = any(bound.lower is not None for bound in expectations)
    has_upper = any(bound.upper is not None for bound in expectations)

    def rest(bound: Reference) -> Reference:
        if bound.kind is BoundKind.EXPECTATION:
            return bound
        if has_lower:
            bound = replace(bound, lower=None, expected=None)
        return replace(bound, upper=None) if has_upper else bound

    return [b for b in map(rest, bounds) if b.lower is not None or b.upper is not None]


def peak_share(evidence: Evidence, row: Row) -> str:
    """Return a value as a share of the theoretical peak, for people; empty: no peak is known."""
    for bound in bounds_of(evidence):
        same = bound.metric == row.metric and bound.size in (None, row.nominal_size)
        if bound.peak and same and _covers(evidence, bound, row.execution):
            return f", {(row.value or 0.0) / bound.peak:.0%} of the peak"
    return ""


def covers_nodes(bound: Reference, nodes: int, *, together: bool = False) -> bool:
    """Return True if a bound covers this number of nodes.

    `together`: the nodes are in one NVLink domain.
    """
    return (
        (together or not bound.one_domain)
        and (bound.min_nodes is None or nodes >= bound.min_nodes)
        and (bound.max_nodes is None or nodes <= bound.max_nodes)
    )


def _covers(evidence: Evidence, bound: Reference, execution: Execution) -> bool:
    """Return True if a bound is for these hosts in this profile, or for their rail."""
    record = execution.record
    together = bound.one_domain and evidence.together(record.hosts)
    return (
        covers_nodes(bound, len(record.hosts), together=together)
        and bound.profile == execution.step.profile
        and len(record.local_ranks) == bound.per_rail
    )


def measured_by_another_program(evidence: Evidence) -> bool:
    """Return True if some bounds do not apply only because another program measured."""
    bounds = bounds_of(evidence)
    return any(not _same_program(bound, record) for bound in bounds for record in evidence.records)


def _same_program(bound: Reference, record: Record) -> bool:
    """Return True if a bound applies to the program that made a record.

    References for the time of small messages are for nccl-tests. A program that starts each
    operation from Python takes longer; the fact `program` names it. Expectations apply to all.
    """
    other_program = any(True for _ in PROGRAM.of(record))
    return not other_program or bound.metric != TIME.name or bound.kind is BoundKind.EXPECTATION


def _bounded(
    evidence: Evidence, bounds: Sequence[Reference], execution: Execution
) -> Iterator[tuple[Reference, Row]]:
    """Yield the values of one execution, each with a bound that applies to it."""
    record = execution.record
    bounds = [b for b in bounds if _covers(evidence, b, execution) and _same_program(b, record)]
    # The bus bandwidth of one rank is 0 by definition: nccl-tests, doc/PERFORMANCE.md.
    undefined = BUSBW.name if record.ranks == 1 else ""
    rows = [
        row
        for row in rows_of(
            execution, evidence.check, {bound.metric for bound in bounds} - {undefined}
        )
        if row.placement is not Placement.IN and abs(row.value or 0.0) < _ABSURD
    ]
    top_sizes: dict[str, int] = {}
    for row in rows:
        if row.size is not None:
            top_sizes[row.metric] = max(top_sizes.get(row.metric, 0), row.size)
    for row in rows:
        is_top = row.size == top_sizes.get(row.metric)
        applicable = [
            bound
            for bound in bounds
            if _concerns(bound, row, is_top=is_top)
            or (
                is_top
                and row.nominal_size
                and _may_meet(evidence, bound, row.metric, row.nominal_size)
            )
        ]
        for bound in _in_force(applicable):
            yield bound, row


def _concerns(bound: Reference, row: Row, *, is_top: bool) -> bool:
    if bound.metric != row.metric or bound.algorithm not in (None, row.algorithm):
        return False
    return bound.size == row.nominal_size if bound.size is not None else is_top or row.size is None


def _may_meet(evidence: Evidence, bound: Reference, metric: str, size: int) -> bool:
    """Return True if logs of others may show at this smaller size that a bound is met."""
    return (
        bool(evidence.plan.origin)
        and bound.kind is not BoundKind.EXPECTATION
        and (bound.lower is not None and bound.upper is None)
        and (bound.metric, bound.algorithm) == (metric, None)
        and (bound.size or 0) > size
    )


def _is_smaller(row: Row, bound: Reference) -> bool:
    """Return True if a message was smaller than that of a bound."""
    return (row.nominal_size or math.inf) < (bound.size or 0)


# Values and texts


def _finding(check: str, bound: Reference, rows: Sequence[Row]) -> Finding:
    state, cause, reference = State.FAIL, Cause.BELOW_REFERENCE, bound
    is_smaller = _is_smaller(rows[0], bound)
    if is_smaller:
        state, cause = State.INCONCLUSIVE, Cause.SIZE_NOT_MEASURED
        bound = replace(bound, lower=bound.bound.required, expected=None)
    bad = [row for row in rows if is_bad(row.value or 0.0, bound.lower, bound.upper)]
    if not bad and bound.expected is not None:
        # The tier above the bound: not proven to be broken, but not good either.
        state, cause = State.INCONCLUSIVE, Cause.BELOW_EXPECTED
        bound = replace(bound, lower=bound.expected)
        bad = [row for row in rows if is_bad(row.value or 0.0, bound.lower, bound.upper)]
    only_too_high = bound.lower is None or any((row.value or 0.0) >= bound.lower for row in bad)
    pick = max if only_too_high and bound.upper is not None else min
    worst = pick(bad or rows, key=lambda row: row.value or 0.0)
    value, size = worst.value or 0.0, worst.nominal_size if is_smaller else bound.size
    # The expectation for a metric of a script has no unit.
    bound = replace(bound, unit=bound.unit or worst.unit)
    noun, where = "devices", worst.device
    if worst.rank is None:
        noun, where = "groups", host_list(worst.hosts)
    return Finding(
        check=check,
        judgement=Judgement.ABSOLUTE,
        state=state if bad else State.PASS,
        message=sentences.compared(bound, size, value, len(bad), len(rows), noun, where),
        cause=cause if bad else None,
        metric=bound.metric,
        value=value,
        unit=bound.unit,
        size=size,
        nodes=worst.nodes,
        bound=reference.bound,
        peak_share=value / bound.peak if bound.peak else None,
        peak=bound.peak,
        peak_source=(bound.peak_source or bound.source) if bound.peak else "",
        hosts=tuple(dict.fromkeys(host for row in bad for host in row.hosts)),
        evidence=first_logs(row.log for row in bad),
    )
