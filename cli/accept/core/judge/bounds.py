"""Compare every measurement with its absolute bounds.

A bound without a size applies to the largest message of an execution, never to an average over
sizes. It applies to executions that span whole hosts; a rail is compared with its peers. If the
user has an expectation for one side of a measurement (lower or upper), it replaces that side of
all references.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

from accept.core.judge.collective_metrics import number
from accept.core.judge.completeness import device_label, host_list
from accept.core.judge.evidence import Evidence
from accept.core.judge.hosts import is_device
from accept.core.model import (
    CheckVerdict,
    Finding,
    Metric,
    Plan,
    Record,
    Reference,
    State,
    Step,
)
from accept.core.text import format_size

#: (size of a metric, its step) -> the size that was asked for; programs round sizes down.
Nominal = Callable[[int, Step], int]
#: Beyond any measurement; not-a-number compares false as well.
_ABSURD = 1e300


class Measurement(NamedTuple):
    """A measurement that a bound is about, and the device where it is one's own ("": a group's)."""

    value: float
    record: Record
    device: str


def findings(evidence: Evidence, nominal: Nominal | None = None) -> list[Finding]:
    """One finding for each bound and step with anything to hold against it: its worst value."""
    bounds = bounds_of(evidence)
    result = []
    spoken: set[Reference] = set()
    for step in evidence.steps:
        measured: dict[Reference, list[Measurement]] = {}
        if bounds:
            for record in evidence.records:
                if record.step == step.id and not record.local_ranks:
                    together = evidence.together(record.hosts)
                    mine = [
                        b
                        for b in bounds
                        if covers_nodes(b, len(record.hosts), together=together)
                        and _same_way(b, record)
                    ]
                    _hold(evidence.check, mine, record, step, nominal, measured)
        result += [_finding(evidence.check, bound, found) for bound, found in measured.items()]
        spoken.update(measured)
    for bound in bounds:
        if bound.kind == "expectation" and bound not in spoken and not evidence.partial:
            result.append(unmeasured(evidence.check, bound))
    return result


def verdicts_without_step(plan: Plan) -> Iterator[CheckVerdict]:
    """A verdict for each check that the user expects something of and that no step runs.

    Runs that are resolved have none: it is for plans of others, and for what `accept judge` is told
    to expect. What a plan left out is told already, and a drill runs what is to find its fault.
    """
    run = {check for step in plan.steps for check in step.checks}
    run |= {one.check for one in plan.skipped}
    lacking: dict[str, list[Finding]] = {}
    for bound in plan.references if not plan.planted else ():
        if bound.kind == "expectation" and bound.check not in run:
            lacking.setdefault(bound.check, []).append(unmeasured(bound.check, bound))
    for check, found in lacking.items():
        yield CheckVerdict(check=check, state=State.INCONCLUSIVE, findings=tuple(found))


def bounds_of(evidence: Evidence) -> tuple[Reference, ...]:
    """The bounds of the plan that concern this check on these devices."""
    machine = evidence.plan.machine
    devices = evidence.devices or ((machine.device,) if machine.device else ())
    return tuple(
        bound
        for bound in evidence.plan.references
        if bound.check == evidence.check
        and (bound.lower is not None or bound.upper is not None)
        and (not bound.device or _all_are(bound.device, devices))
    )


def _all_are(wanted: str, devices: Sequence[str]) -> bool:
    return bool(devices) and all(is_device(wanted, device) for device in devices)


def highest_lower_bound(
    evidence: Evidence, nodes: int, metric: str, *, top: Collection[int] = ()
) -> float | None:
    """The greatest lower bound of `metric` on `nodes` hosts, at a size in `top` or at any.

    One of an NVLink domain counts where each record is of one.
    """
    together = all(evidence.together(record.hosts) for record in evidence.records)
    fitting = [
        b
        for b in bounds_of(evidence)
        if b.metric == metric
        and covers_nodes(b, nodes, together=together)
        and (b.size is None or b.size in top)
    ]
    return max((b.lower for b in _in_force(fitting) if b.lower is not None), default=None)


def _in_force(bounds: Sequence[Reference]) -> list[Reference]:
    """Return the bounds of one measurement that apply: expectations, and what they do not replace.

    A lower expectation replaces the lower side of references, an upper one their upper side.
    """
    own = [bound for bound in bounds if bound.kind == "expectation"]
    if not own:
        return list(bounds)
    has_lower = any(bound.lower is not None for bound in own)
    has_upper = any(bound.upper is not None for bound in own)
    rest = (
        replace(
            bound,
            lower=None if has_lower else bound.lower,
            upper=None if has_upper else bound.upper,
        )
        for bound in bounds
        if bound.kind != "expectation"
    )
    return own + [b for b in rest if b.lower is not None or b.upper is not None]


def peak(
    evidence: Evidence, hosts: Sequence[str], metric: str, size: int
) -> tuple[float, str] | None:
    """The theoretical peak of `metric` on `hosts`, and its source; None: none is known."""
    together = evidence.together(hosts)
    for bound in bounds_of(evidence):
        same = bound.metric == metric and bound.size in (None, size)
        if bound.peak and same and covers_nodes(bound, len(hosts), together=together):
            return bound.peak, bound.peak_source or bound.source
    return None


def covers_nodes(bound: Reference, nodes: int, *, together: bool = False) -> bool:
    """Whether a bound is about so many nodes; `together`: they are of one NVLink domain."""
    return (
        (together or not bound.one_domain)
        and (bound.min_nodes is None or nodes >= bound.min_nodes)
        and (bound.max_nodes is None or nodes <= bound.max_nodes)
    )


def _hold(
    check: str,
    bounds: Sequence[Reference],
    record: Record,
    step: Step,
    nominal: Nominal | None,
    measured: dict[Reference, list[Measurement]],
) -> None:
    """Add what one record measured to those bounds about its hosts that it is held against."""
    # The bus bandwidth of one rank is 0 by definition: nccl-tests, doc/PERFORMANCE.md.
    none = "busbw" if record.ranks == 1 else ""
    names = {bound.metric for bound in bounds} - {none}
    metrics = [
        m
        for m in record.metrics
        if m.name in names and m.check == check and m.placement != "in" and abs(m.value) < _ABSURD
    ]
    tops: dict[str, int] = {}
    for metric in metrics:
        if metric.size is not None:
            tops[metric.name] = max(tops.get(metric.name, 0), metric.size)
    for metric in metrics:
        asked = metric.size
        if asked is not None and nominal is not None:
            asked = nominal(asked, step)
        top = metric.size == tops.get(metric.name)
        mine = [bound for bound in bounds if _concerns(bound, metric, asked, is_top=top)]
        for bound in _in_force(mine):
            host = metric.host or host_list(record.hosts)
            device = device_label(host, metric.rank, metric.gpu) if metric.rank is not None else ""
            measured.setdefault(bound, []).append(Measurement(metric.value, record, device))


def _same_way(bound: Reference, record: Record) -> bool:
    """Whether a record was measured as a bound was.

    Times of small messages are nccl-tests' own: who starts each operation from Python, and says by
    a fact which program it is, takes longer. What the user expects holds for any.
    """
    other = any(fact.name == "program" for fact in record.facts)
    return not other or bound.metric != "time" or bound.kind == "expectation"


def measured_by_another_program(evidence: Evidence) -> bool:
    """Whether there are bounds that do not hold only because something else measured."""
    bounds = bounds_of(evidence)
    return any(not _same_way(bound, record) for bound in bounds for record in evidence.records)


def _concerns(bound: Reference, metric: Metric, size: int | None, *, is_top: bool) -> bool:
    if bound.metric != metric.name:
        return False
    if bound.algorithm is not None and bound.algorithm != metric.algorithm:
        return False
    return bound.size == size if bound.size is not None else is_top or size is None


def _limit(bound: Reference, value: float | None = None) -> float | None:
    """Return the side of a bound that `value` violates, else its lower side if it has one."""
    too_high = value is not None and bound.upper is not None and value > bound.upper
    return bound.upper if bound.lower is None or too_high else bound.lower


def _holds(bound: Reference, value: float) -> bool:
    return (bound.lower is None or value >= bound.lower) and (
        bound.upper is None or value <= bound.upper
    )


def _finding(check: str, bound: Reference, found: Sequence[Measurement]) -> Finding:
    bad = [one for one in found if not _holds(bound, one.value)]
    above = bound.lower is None or any(one.value >= bound.lower for one in bad)
    pick = max if above and bound.upper is not None else min
    value, record, device = pick(bad or found, key=lambda one: one.value)
    what = "devices" if device else "groups"
    where = f" in {len(bad)} of {len(found)} {what}, worst" if len(found) > 1 and bad else ""
    says = f"{number(value)} {bound.unit} is {'outside' if bad else 'within'} {bound_text(bound)}"
    says += f"{where} on {device or host_list(record.hosts)}"
    return Finding(
        check=check,
        judgement="absolute",
        state=State.FAIL if bad else State.PASS,
        message=f"{bound.metric}{_at(bound.size)} of {says}",
        cause="below-reference" if bad else None,
        metric=bound.metric,
        value=value,
        unit=bound.unit,
        size=bound.size,
        bound=_limit(bound, value),
        lower=bound.lower,
        upper=bound.upper,
        bound_kind=bound.kind,
        source=bound.source,
        peak_share=value / bound.peak if bound.peak else None,
        peak=bound.peak,
        peak_source=(bound.peak_source or bound.source) if bound.peak else "",
        hosts=_hosts(one.record for one in bad),
        evidence=tuple(dict.fromkeys(one.record.log for one in bad if one.record.log))[:8],
    )


def _hosts(records: Iterable[Record]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(host for record in records for host in record.hosts))


def unbounded(check: str, expectation: str, where: str = "") -> Finding:
    """That there is nothing to hold a check against; `expectation`: one that would do."""
    return Finding(
        check=check,
        judgement="absolute",
        state=State.INCONCLUSIVE,
        cause="no-reference",
        message=f"there is no bound for {check} on this machine{where}; "
        f"add one: --expect '{expectation}'",
    )


def unmeasured(check: str, bound: Reference) -> Finding:
    """That nothing was measured of what a bound is about."""
    return Finding(
        check=check,
        judgement="absolute",
        state=State.INCONCLUSIVE,
        message=f"{bound.metric}{_at(bound.size)} was never measured; expected {bound_text(bound)}",
        cause="no-measurement",
        metric=bound.metric,
        unit=bound.unit,
        size=bound.size,
        bound=_limit(bound),
        lower=bound.lower,
        upper=bound.upper,
        bound_kind=bound.kind,
        source=bound.source,
    )


def _at(size: int | None) -> str:
    return "" if size is None else f" at {format_size(size)}"


def sources(held: Sequence[Finding]) -> list[str]:
    """Return what findings were compared with, with sources: two bounds, failed first; two peaks.

    If one of the two has another side in another bound, that bound is shown, too.
    """
    shown: dict[str, Finding] = {}
    for f in sorted(held, key=lambda f: f.state is State.PASS):
        if f.lower is None and f.upper is None:
            continue
        same = [one for one in shown.values() if (one.metric, one.size) == (f.metric, f.size)]
        other_side = same and (
            (f.lower is not None and all(one.lower is None for one in same))
            or (f.upper is not None and all(one.upper is None for one in same))
        )
        if len(shown) < 2 or other_side:
            bound = f"{f.metric} {_sides(f.lower, f.upper)} {f.unit}"
            shown.setdefault(f"{bound}, {f.bound_kind}: {f.source}", f)
    peaks = [f"peak {number(f.peak)} {f.unit}: {f.peak_source}" for f in held if f.peak]
    return [*shown, *list(dict.fromkeys(peaks))[:2]]


def bound_text(bound: Reference) -> str:
    """Return a bound for people: ">= 360 GB/s (floor)"."""
    return f"{_sides(bound.lower, bound.upper)} {bound.unit} ({bound.kind})"


def _sides(lower: float | None, upper: float | None) -> str:
    """Return the sides of a bound: ">= 1", "<= 2" or ">= 1 and <= 2"."""
    parts = [f">= {number(lower)}"] if lower is not None else []
    parts += [f"<= {number(upper)}"] if upper is not None else []
    return " and ".join(parts)
