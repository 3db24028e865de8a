"""Judge a collective: results, bandwidth bounds, peers, and the network that NCCL used."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from accept.core import sentences
from accept.core.catalog.metrics import WRONG
from accept.core.causes import Cause, Judgement
from accept.core.facts import NCCL_DETOURS, NCCL_NETWORKS, NCCL_TESTS, FactKind
from accept.core.judge import bounds, completeness, pauses
from accept.core.judge.effects.explanation import Normal
from accept.core.judge.evidence import Evidence, Judged
from accept.core.judge.explained import Effects, limit_of
from accept.core.judge.parts import (
    MAX_LOGS,
    distance_findings,
    open_findings,
    rare_findings,
    suspects_of,
    wave_findings,
)
from accept.core.judge.results import compare
from accept.core.judge.rounds import FEWEST, SIGMAS, slowdown_found
from accept.core.judge.summary import verdict_of
from accept.core.judge.suspects import from_problems
from accept.core.model import (
    OF_HOST,
    Bound,
    BoundKind,
    Executions,
    Finding,
    GroupKind,
    PlannedMachine,
    Problem,
    Record,
    State,
    Step,
    Strength,
    Suspect,
    SuspectKind,
)
from accept.core.table import BANDWIDTH, Measure, Row, Table, planned_sizes
from accept.core.text import count, format_size, number, shortened

#: Predicate of a sentence about a host, for each path between GPUs that is slower than NVLink.
_SLOW_PATHS = {
    "SHM": "moved data between its GPUs through shared memory",
    "P2P off": "reports that P2P is disabled between its GPUs",
}
_NVLS_OFF = "NVLS off"
_MNNVL_OFF = "MNNVL off"
_NETWORK_PATH = "moved data between its GPUs over the network"
#: Maximum number of hosts in one message.
_MAX_EXPLAINED = 3
#: Groups that are compared with each other, besides pairs.
_COMPARED = (GroupKind.EACH, GroupKind.RAILS, GroupKind.LADDER)
#: Kind of the finding that results were not checked.
_UNCHECKED = (Cause.NO_MEASUREMENT, Judgement.CORRECTNESS)


def judge(evidence: Evidence, measure: Measure = BANDWIDTH, noise: float = 0.0) -> Judged:
    """Judge one collective by all steps that it is part of.

    `noise`: noise of healthy groups, if it is larger than that of the machine.
    """
    check = evidence.check
    results = evidence.results(measure)
    outcomes = {id(row.execution.record): row.outcome for row in results}
    promised = evidence.plan.machine.speed_promised
    findings = completeness.step_findings(evidence)
    fallbacks = tuple(transport_problems(evidence))
    findings += completeness.problem_findings(evidence, outcomes=outcomes, more=fallbacks)
    findings += transport_unknown(evidence)
    findings += _result_findings(evidence, results, {f.cause for f in findings if f.cause})
    bound_findings = bounds.findings(evidence)
    findings += bound_findings
    pause_findings, pausing = pauses.examine(evidence)
    findings += pause_findings
    effects = evidence.effects
    if effects is None or measure.inverse:
        effects = compare([evidence], measure=measure, noise=noise)
    comparisons: list[Comparison] = []
    if promised or not measure.inverse:
        comparisons = list(_comparisons(evidence, effects, measure))
    suspects = [*from_problems(fallbacks, "", len(evidence.hosts)), *pausing]
    for comparison in comparisons:
        own = _proven(comparison.suspects, promised=promised)
        if evidence.plan.origin and comparison.groups < FEWEST:
            # Without peers, nothing but its log shows why a group failed.
            rows = ((suspect, suspect.cause.row) for suspect in own)
            own = [suspect for suspect, row in rows if not (row.relative or row.consequence)]
        suspects += own
        findings.append(_population_finding(evidence, comparison, own, effects, measure))
        if promised and comparison.uneven and not own and not measure.inverse:
            findings.append(_uneven_finding(check, comparison, measure))
    if promised or not measure.inverse:
        findings += open_findings(evidence, effects, measure)
    if promised:
        accused = {host for s in suspects for host in (*s.hosts, *s.others)}
        findings += distance_findings(evidence, effects, accused, measure)
        findings += wave_findings(evidence, effects)
        if not measure.inverse:
            findings += rare_findings(evidence, effects)
    single_rank = False
    needs_bound = promised and bool(evidence.records) and not evidence.partial
    if needs_bound and not _has_bound(evidence, bound_findings):
        one_rank = len(evidence.hosts) == 1 and all(r.ranks == 1 for r in evidence.records)
        passed = all(f.state is State.PASS for f in findings)
        single_rank = one_rank and not bound_findings and passed
        if single_rank:
            findings.append(_single_rank_finding(check))
        else:
            findings.append(_no_bound_finding(evidence, results, measure))
    verdict = verdict_of(
        evidence,
        findings,
        measured=_measured(evidence, results, measure),
        required=_required(evidence, bound_findings, comparisons, effects, measure),
    )
    return Judged(replace(verdict, optional=verdict.optional or single_rank), tuple(suspects))


# Comparison of groups


class Comparison(NamedTuple):
    """The result of comparing the groups of one step."""

    step: Step
    suspects: tuple[Suspect, ...]
    #: Number of executions that were compared.
    groups: int
    #: What healthy groups reach; None: too few to compare.
    normal: Normal | None
    #: Most groups are slow without a reason, so slow and normal ones cannot be distinguished.
    uneven: bool


def _comparisons(evidence: Evidence, effects: Effects, measure: Measure) -> Iterator[Comparison]:
    """Compare the groups of each step."""
    for step in evidence.steps:
        indexes = effects.speed.of(evidence.check, step)
        suspects = suspects_of(effects, evidence.check, step)
        if step.groups is GroupKind.EACH:
            below = list(_below_bound(evidence, step, measure))
            known = {suspect.part for suspect in below}
            suspects = [*below, *(s for s in suspects if s.part not in known)]
        compared = step.groups.of_pairs or step.groups in _COMPARED
        if evidence.of_step(step) and (compared or suspects):
            yield Comparison(
                step,
                tuple(suspects),
                len(indexes),
                effects.speed.normal(evidence.check, step),
                effects.speed.is_uneven(evidence.check, step),
            )


def _below_bound(evidence: Evidence, step: Step, measure: Measure) -> Iterator[Suspect]:
    """Yield the hosts that are always below their bound, unless most are."""
    bound = lowest(evidence, step, measure)
    best: dict[str, Row] = {}
    for row in evidence.results(measure, step):
        known = best.get(row.hosts[0]) if row.hosts else None
        if row.hosts and (known is None or (row.score or 0.0) > (known.score or 0.0)):
            best[row.hosts[0]] = row
    below = {
        host: row
        for host, row in best.items()
        if bound is not None and row.score is not None and row.score < bound
    }
    for host, row in below.items() if len(best) == 1 or 2 * len(below) <= len(best) else ():
        yield Suspect(
            kind=SuspectKind.NODE,
            hosts=(host,),
            cause=Cause.BELOW_REFERENCE,
            strength=Strength.STRONG,
            why=sentences.below_bound(
                evidence.check,
                measure.text(row.score or 0.0),
                measure.text(bound or 0.0),
                len(below) - 1,
                len(best) - 1,
            ),
            evidence=(row.log,) if row.log else (),
        )


def lowest(evidence: Evidence, step: Step, measure: Measure) -> float | None:
    """Return the value that the groups of a step must reach; None: unknown."""
    records = tuple(evidence.of_step(step))
    # Bounds of a latency are for single sizes, not for the median. One rank has no peer.
    if measure.inverse or all(not r.local_ranks and r.ranks == 1 for r in records):
        return None
    part = replace(evidence, steps=(step,), records=records)
    nodes = max(len(record.hosts) for record in records)
    top = planned_sizes(step)[-1:]
    return bounds.highest_lower_bound(part, nodes, measure.metric, top=top)


def _proven(suspects: Sequence[Suspect], *, promised: bool) -> list[Suspect]:
    """Remove weak suspects without a speed target: one slow run of a shared link proves nothing."""
    return [
        suspect
        for suspect in suspects
        if promised
        or suspect.strength is not Strength.WEAK
        or suspect.cause is not Cause.SLOW_OUTLIER
    ]


def _population_finding(
    evidence: Evidence,
    comparison: Comparison,
    suspects: Sequence[Suspect],
    effects: Effects,
    measure: Measure,
) -> Finding:
    step, check, normal = comparison.step, evidence.check, comparison.normal
    what = f"step {step.id}, {comparison.groups} groups ({step.groups})"
    reached = f"the normal value {measure.text(normal.value)}" if normal else ""
    if not suspects:
        unknown = effects.speed.explanation.unknown if step.groups.of_pairs else ()
        if normal is None:
            text = sentences.too_few(what, FEWEST)
        else:
            shown = _detectable(comparison, effects)
            text = sentences.no_outlier(what, reached, shown, completeness.host_list(unknown))
        return Finding(check=check, judgement=Judgement.POPULATION, state=State.PASS, message=text)
    weak_nodes = all(s.strength is Strength.WEAK and s.kind in OF_HOST for s in suspects)
    return Finding(
        check=check,
        judgement=Judgement.POPULATION,
        state=State.INCONCLUSIVE if step.groups.of_pairs and weak_nodes else State.FAIL,
        cause=suspects[0].cause,
        message=sentences.named(
            what,
            [(s.name, s.why) for s in suspects],
            measure.text(normal.value) if normal else "",
        ),
        metric=measure.metric,
        unit=measure.unit,
        bound=_population_bound(normal, measure) if normal else None,
        hosts=tuple(host for s in suspects if s.kind is SuspectKind.NODE for host in s.hosts),
        evidence=tuple(dict.fromkeys(log for s in suspects for log in s.evidence))[:MAX_LOGS],
    )


def _detectable(comparison: Comparison, effects: Effects) -> float | None:
    """Return the slowdown of a node that the pairs of a step would show; None: unknown."""
    normal = comparison.normal
    if normal is None or not comparison.step.groups.of_pairs:
        return None
    return slowdown_found(normal.sigma, len(effects.order))


def _uneven_finding(check: str, comparison: Comparison, measure: Measure) -> Finding:
    normal = comparison.normal
    reached = measure.text(normal.value) if normal else "normal"
    return Finding(
        check=check,
        judgement=Judgement.POPULATION,
        state=State.INCONCLUSIVE,
        message=sentences.uneven(comparison.step.id, comparison.groups, reached),
    )


def _population_bound(normal: Normal, measure: Measure) -> Bound:
    source = f"normal value of {normal.values} in this run"
    limit = limit_of(normal)
    if not measure.inverse:
        return Bound(lower=limit, kind=BoundKind.POPULATION, source=source)
    return Bound(
        upper=1e6 / limit if limit > 0 else limit, kind=BoundKind.POPULATION, source=source
    )


# Results


def _result_findings(evidence: Evidence, results: Table, known: set[Cause]) -> list[Finding]:
    """Return findings on results that are wrong, unchecked, missing, or lack the largest size.

    Causes in `known` have a finding already.
    """
    by_kind: dict[tuple[Cause, Judgement], list[tuple[Record, str]]] = {}

    def add(cause: Cause, record: Record, text: str) -> None:
        by_kind.setdefault((cause, cause.row.judgement), []).append((record, text))

    names = {} if evidence.plan.origin else completeness.hosts_by_short_name(evidence)
    for result in results:
        record = result.execution.record
        for text in _rank_mismatches(evidence, names, record) if record.exit == 0 else ():
            add(Cause.RANK_COUNT, record, text)
        for flaw in result.flaws:
            if flaw.cause is Cause.WRONG_DATA:
                add(flaw.cause, record, _wrong_text(flaw.value or 0.0))
            elif flaw.cause is Cause.NOT_FINITE:
                add(flaw.cause, record, "a number is not finite")
            elif record.exit != 0:
                continue
            elif flaw.metric == WRONG.name:
                by_kind.setdefault(_UNCHECKED, []).append((record, "the results were not checked"))
                break
            elif flaw.cause is Cause.TOP_SIZE_MISSING:
                text = f"the largest message measured is {format_size(flaw.size or 0)}"
                add(flaw.cause, record, text)
            elif not flaw.execution.problems(evidence.check):
                add(Cause.NO_MEASUREMENT, record, "nothing was measured")
    return [
        _result_finding(evidence, *kind, records)
        for kind, records in by_kind.items()
        if kind == _UNCHECKED or kind[0] not in known
    ]


def _wrong_text(elements: float) -> str:
    # Untrusted evidence may contain a count that is not finite.
    if not math.isfinite(elements):
        return f"{elements} wrong elements"
    return count(math.ceil(elements), "wrong element")


def _rank_mismatches(
    evidence: Evidence, names: Mapping[str, set[str]], record: Record
) -> Iterator[str]:
    """Yield the differences between the table's ranks or hosts and those of the record."""
    for fact, table in NCCL_TESTS.of(record):
        if fact.check != evidence.check:
            continue
        if table.ranks is not None and table.ranks != record.ranks:
            yield f"{count(table.ranks, 'rank')} took part, but {record.ranks} were started"
        elif table.hosts is not None and not evidence.plan.origin:
            yield from completeness.host_mismatches(evidence, names, record, table.hosts)


def _result_finding(
    evidence: Evidence, cause: Cause, judgement: Judgement, records: Sequence[tuple[Record, str]]
) -> Finding:
    first, text = records[0]
    others = len(records) - 1
    more = f" (and in {count(others, 'more group')})" if others else ""
    common = set.intersection(*(set(record.hosts) for record, _ in records))
    return Finding(
        check=evidence.check,
        judgement=judgement,
        state=State.FAIL,
        cause=cause,
        message=f"{text} in step {first.step} on {completeness.host_list(first.hosts)}{more}",
        hosts=tuple(dict.fromkeys(host for record, _ in records for host in record.hosts)),
        executions=Executions(
            bad=len({id(record) for record, _ in records}),
            total=len(evidence.records),
            common_hosts=tuple(host for host in evidence.hosts if host in common),
        ),
        evidence=tuple(dict.fromkeys(record.log for record, _ in records if record.log))[:8],
    )


# Transport


def transport_problems(evidence: Evidence) -> Iterator[Problem]:
    """Yield the hosts that used a network or path other than the one that the machine promises."""
    yield from _domains_off(evidence)
    for cause, text, host in dict.fromkeys(_fallbacks(evidence)):
        known = host if host in evidence.hosts else None
        yield Problem(cause=cause, message=f"{host} {text}", host=known)


def transport_unknown(evidence: Evidence) -> list[Finding]:
    """Return a finding if a network is promised and no log shows which one was used.

    Logs of others often do not show it; that is reported once for all checks.
    """
    steps = {step.id for step in evidence.steps if evidence.plan.machine_in(step).transport}
    records = [record for record in _between_hosts(evidence) if record.step in steps]
    shown = any(True for _ in NCCL_NETWORKS.of(*records))
    if not records or shown or evidence.partial or evidence.plan.origin:
        return []
    return [
        Finding(
            check=evidence.check,
            judgement=Judgement.CORRECTNESS,
            state=State.INCONCLUSIVE,
            cause=Cause.NO_MEASUREMENT,
            message="the logs do not show which network NCCL used (expected "
            f"{evidence.plan.machine.transport}); rerun with NCCL_DEBUG=INFO",
        )
    ]


def _between_hosts(evidence: Evidence) -> list[Record]:
    """Return the finished executions whose ranks had to use a network."""
    return [r for r in evidence.records if len(r.hosts) > 1 and r.exit == 0]


def _fallbacks(evidence: Evidence) -> Iterator[tuple[Cause, str, str]]:
    """Yield what a host should not have used, as the predicate of a sentence, and the host."""
    fallback = Cause.TRANSPORT_FALLBACK
    machines = {step.id: evidence.plan.machine_in(step) for step in evidence.steps}
    for record in _between_hosts(evidence):
        machine = machines[record.step]
        for network, host in _users(record, NCCL_NETWORKS) if machine.transport else ():
            if not _is_promised(machine, network):
                text = f"used the network {network}; {machine.transport} is promised"
                yield fallback, text, host
    for record in evidence.records:
        machine = machines[record.step]
        single_host = len(record.hosts) == 1
        for path, host in _users(record, NCCL_DETOURS):
            _, net, network = path.partition("NET/")
            if net and machine.gpu_direct and _is_promised(machine, network) and not single_host:
                text = f"used {network} without GDRDMA: data goes through host memory"
                yield fallback, text, host
            elif path == _NVLS_OFF and machine.nvls:
                yield Cause.NVLS_OFF, "has no NVLS, although its switches can reduce", host
            elif machine.peer_to_peer and (path in _SLOW_PATHS or (path == "NET" and single_host)):
                yield fallback, f"{_SLOW_PATHS.get(path, _NETWORK_PATH)}; NVLink is promised", host


def _domains_off(evidence: Evidence) -> Iterator[Problem]:
    """Yield a problem if groups in one NVLink domain did without NVLink between their hosts.

    It counts where a bound requires that NVLink. NCCL decides for the whole group, so no host is
    accused.
    """
    spans = {r.profile for r in evidence.plan.references if r.one_domain}
    steps = {step.id for step in evidence.steps if step.profile in spans}
    off = [
        record
        for record in _between_hosts(evidence)
        if record.step in steps
        and evidence.together(record.hosts)
        and any(path == _MNNVL_OFF for path, _ in _users(record, NCCL_DETOURS))
    ]
    if off:
        hosts = shortened(sorted(off[0].hosts), _MAX_EXPLAINED)
        text = f"NCCL used no NVLink between hosts of one domain in {count(len(off), 'execution')}"
        yield Problem(cause=Cause.NVLINK_DOMAIN_OFF, message=f"{text}, first with {hosts}")


def _is_promised(machine: PlannedMachine, network: str) -> bool:
    """Return True if NCCL's name of a network means the promised one."""
    names = (machine.transport, *machine.transport_aliases)
    return any(name.lower() in network.lower() for name in names)


def _users(record: Record, kind: FactKind[dict[str, tuple[str, ...]]]) -> Iterator[tuple[str, str]]:
    """Yield each network or path in the facts of this kind with each host that used it."""
    for _, users in kind.of(record):
        for path, hosts in users.items():
            for host in hosts:
                yield path, host


# Bounds


def _has_bound(evidence: Evidence, bound_findings: Sequence[Finding]) -> bool:
    """Return True if a bound applied to a measurement, between nodes if the run has any such."""
    # A bound for one node does not cover the network between nodes.
    between = tuple(record for record in evidence.records if len(record.hosts) > 1)
    if 0 < len(between) < len(evidence.records):
        bound_findings = bounds.findings(replace(evidence, records=between))
    return any(f.cause is not Cause.NO_MEASUREMENT for f in bound_findings)


def _no_bound_finding(evidence: Evidence, results: Iterable[Row], measure: Measure) -> Finding:
    top = max((row.size or 0 for row in results), default=0)
    if measure.inverse:
        top = min((planned_sizes(s)[0] for s in evidence.steps if planned_sizes(s)), default=top)
    at = f"@{format_size(top)}" if top else ""
    bound = f"{'<=' if measure.inverse else '>='}{measure.unit}"
    check = evidence.check
    sizes = " or ".join(map(format_size, bounds.other_sizes(evidence, measure.metric)))
    reason = f" at this size; measure also {sizes}" if sizes else " at this number of nodes"
    if bounds.measured_by_another_program(evidence):
        reason = " for torch, which measured it (its bounds are for nccl-tests)"
    return bounds.no_bound_finding(check, f"{check}{at}{bound}", reason)


def _single_rank_finding(check: str) -> Finding:
    """Return the finding on a run of one rank: its results were correct, but it has no peer."""
    return Finding(
        check=check,
        judgement=Judgement.ABSOLUTE,
        state=State.NOT_TESTED,
        message="one rank has no peer: nothing between GPUs or nodes was tested",
    )


# Columns of the results table


def _measured(evidence: Evidence, results: Table, measure: Measure) -> str:
    """Return the slowest value among the groups of each step."""
    parts = []
    measured = results.where(lambda row: row.value is not None and row.execution.has_peer)
    for own in measured.by(lambda row: row.step.id).values():
        worst = own.worst
        step, value, top = worst.step, worst.value or 0.0, worst.nominal_size or 0
        if len(own) > 1:
            groups = f"slowest of {len(own)} {step.groups}"
        else:
            groups = count(worst.nodes, "host") if worst.hosts else "hosts not known"
        at = f"up to {format_size(top)}" if measure.inverse else f"at {format_size(top)}"
        peak = bounds.peak(evidence, worst.hosts, measure.metric, top, step.profile)
        share = f", {value / peak[0]:.0%} of the peak" if peak and not worst.ranks else ""
        parts.append(f"{number(value)} {worst.unit} {at} ({groups}{share})")
    return "; ".join(parts[:3])


def _required(
    evidence: Evidence,
    bound_findings: Sequence[Finding],
    comparisons: Sequence[Comparison],
    effects: Effects,
    measure: Measure,
) -> str:
    """Return what the measurement was compared with."""
    parts = bounds.sources(bound_findings)
    compared = next((c for c in comparisons if c.normal is not None), None)
    if compared is not None and compared.normal is not None:
        of = f"the normal value of {compared.normal.values}"
        shown = _detectable(compared, effects)
        share = 1 - SIGMAS * compared.normal.sigma
        if measure.inverse and share > 0:
            parts.append(f"none above {1 / share:.0%} of {of}")
        elif shown is None:
            parts.append(f"none below {share:.0%} of {of}")
        else:
            parts.append(f"no node {shown:.1%} below {of}")
    if not evidence.plan.machine.speed_promised:
        parts.append("results correct; no speed target")
    return "; ".join(parts)
