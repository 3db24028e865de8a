"""Judge a collective: results, bandwidth bounds, peers, and the network that NCCL used."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import replace

from accept.core.catalog.metrics import WRONG
from accept.core.causes import Cause, Judgement
from accept.core.facts import NCCL_DETOURS, NCCL_NETWORKS, NCCL_TESTS, PROGRAM, RESIDENT, users_of
from accept.core.judge import bounds, completeness, pauses
from accept.core.judge.conclusion import conclude
from accept.core.judge.evidence import Evidence, Judged
from accept.core.judge.findings import finding
from accept.core.judge.open_questions import effect_findings
from accept.core.judge.parts import compare_steps
from accept.core.judge.results import compare
from accept.core.judge.summary import state_of, with_finding
from accept.core.records import Problem, Record
from accept.core.table import BANDWIDTH, Measure, Table, planned_sizes
from accept.core.text import count, format_size, host_list, number, shortened
from accept.core.verdict import Executions, Finding, State

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


def judge(evidence: Evidence, measure: Measure = BANDWIDTH, noise: float = 0.0) -> Judged:
    """Judge one collective by all steps that it is part of.

    `noise`: noise of healthy groups, if it is larger than that of the machine.
    """
    results, bounded = evidence.results(measure), bounds.findings(evidence)
    promised = evidence.plan.machine.speed_promised
    fallbacks = tuple(transport_problems(evidence))
    paused, suspects = pauses.examine(evidence)
    findings = [
        *transport_unknown(evidence),
        *_result_findings(evidence, results),
        *paused,
    ]
    required = "" if promised else "results correct; no speed target"
    accused: set[str] = set()
    if promised or not measure.inverse:
        effects = evidence.effects
        if effects is None or measure.inverse:
            effects = compare([evidence], measure=measure, noise=noise)
        compared = compare_steps(evidence, effects, measure)
        suspects += compared.suspects
        accused = {host for s in suspects for host in (*s.hosts, *s.others)}
        findings += compared.findings
        findings += effect_findings(evidence, effects, measure, accused)
        required = "; ".join(filter(None, [compared.required, required]))
    judged = conclude(
        evidence,
        measured=_measured(evidence, results, measure),
        required=required,
        problems=fallbacks,
        findings=findings,
        suspects=suspects,
        outcomes={id(row.execution.record): row.outcome for row in results},
        bounded=bounded,
        host_count=len(evidence.hosts),
    )
    needs_bound = promised and bool(evidence.records) and not evidence.partial
    if not needs_bound or _has_bound(evidence, bounded):
        return judged
    verdict = judged.verdict
    single_rank = len(evidence.hosts) == 1 and all(r.ranks == 1 for r in evidence.records)
    single_rank = single_rank and not bounded and verdict.state is State.PASS
    missing = _no_bound_finding(evidence, results, measure, accused, single_rank=single_rank)
    verdict = replace(with_finding(verdict, missing), optional=verdict.optional or single_rank)
    return judged._replace(verdict=verdict)


# Results


def _result_findings(evidence: Evidence, results: Table) -> list[Finding]:
    """Return findings on results that are wrong, unchecked, missing, or lack the largest size.

    Causes that problems of the executions report have a finding already.
    """
    known = {p.cause for row in results for p in row.execution.problems(evidence.check)}
    by_cause: dict[Cause, list[tuple[Record, str]]] = {}

    def add(cause: Cause, record: Record, text: str) -> None:
        by_cause.setdefault(cause, []).append((record, text))

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
                add(Cause.RESULTS_UNCHECKED, record, "the results were not checked")
                break
            elif flaw.cause is Cause.TOP_SIZE_MISSING:
                text = f"the largest message measured is {format_size(flaw.size or 0)}"
                add(flaw.cause, record, text)
            elif not flaw.execution.problems(evidence.check):
                add(Cause.NO_MEASUREMENT, record, "nothing was measured")
    return [
        _result_finding(evidence, cause, records)
        for cause, records in by_cause.items()
        if cause not in known
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
    evidence: Evidence, cause: Cause, records: Sequence[tuple[Record, str]]
) -> Finding:
    first, text = records[0]
    others = len(records) - 1
    more = f" (and in {count(others, 'more group')})" if others else ""
    common = set.intersection(*(set(record.hosts) for record, _ in records))
    return finding(
        evidence.check,
        cause.row.judgement,
        state_of(cause),
        f"{text} in step {first.step} on {host_list(first.hosts)}{more}",
        cause=cause,
        hosts=(host for record, _ in records for host in record.hosts),
        executions=Executions(
            bad=len({id(record) for record, _ in records}),
            total=len(evidence.records),
            common_hosts=tuple(host for host in evidence.hosts if host in common),
        ),
        logs=(record.log for record, _ in records),
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
    text = "the logs do not show which network NCCL used (expected "
    text += f"{evidence.plan.machine.transport}); rerun with NCCL_DEBUG=INFO"
    judgement, cause = Judgement.CORRECTNESS, Cause.NO_MEASUREMENT
    return [finding(evidence.check, judgement, State.INCONCLUSIVE, text, cause=cause)]


def _between_hosts(evidence: Evidence) -> list[Record]:
    """Return the finished executions whose ranks had to use a network."""
    return [r for r in evidence.records if len(r.hosts) > 1 and r.exit == 0]


def _fallbacks(evidence: Evidence) -> Iterator[tuple[Cause, str, str]]:
    """Yield what a host should not have used, as the predicate of a sentence, and the host."""
    fallback = Cause.TRANSPORT_FALLBACK
    machines = {step.id: evidence.plan.machine_in(step) for step in evidence.steps}
    for record in _between_hosts(evidence):
        machine = machines[record.step]
        for network, host in users_of(NCCL_NETWORKS, record):
            if not machine.promises(network):
                text = f"used the network {network}; {machine.transport} is promised"
                yield fallback, text, host
    for record in evidence.records:
        machine = machines[record.step]
        single_host = len(record.hosts) == 1
        for path, host in users_of(NCCL_DETOURS, record):
            _, net, network = path.partition("NET/")
            if net and machine.gpu_direct and machine.promises(network) and not single_host:
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
        and any(path == _MNNVL_OFF for path, _ in users_of(NCCL_DETOURS, record))
    ]
    if off:
        hosts = shortened(sorted(off[0].hosts), _MAX_EXPLAINED)
        text = f"NCCL used no NVLink between hosts of one domain in {count(len(off), 'execution')}"
        yield Problem(cause=Cause.NVLINK_DOMAIN_OFF, message=f"{text}, first with {hosts}")


# Bounds


def _has_bound(evidence: Evidence, bound_findings: Sequence[Finding]) -> bool:
    """Return True if a bound applied to a measurement, between nodes if the run has any such."""
    # A bound for one node does not cover the network between nodes.
    between = tuple(record for record in evidence.records if len(record.hosts) > 1)
    if 0 < len(between) < len(evidence.records):
        bound_findings = bounds.findings(replace(evidence, records=between))
    return any(f.cause is not Cause.NO_MEASUREMENT for f in bound_findings)


def _no_bound_finding(
    evidence: Evidence,
    results: Table,
    measure: Measure,
    accused: Set[str],
    *,
    single_rank: bool,
) -> Finding:
    check = evidence.check
    if single_rank:
        # The results were correct, but it has no peer.
        text = "one rank has no peer: nothing between GPUs or nodes was tested"
        return finding(check, Judgement.ABSOLUTE, State.NOT_TESTED, text)
    top = max((row.nominal_size or 0 for row in results), default=0)
    # An example is a bound that all groups of whole hosts reach, except those of accused hosts.
    at_top = [
        row.value
        for row in results
        if row.nominal_size == top and row.value and not row.ranks and accused.isdisjoint(row.hosts)
    ]
    if measure.inverse:
        top = min((planned_sizes(s)[0] for s in evidence.steps if planned_sizes(s)), default=top)
    value = (max if measure.inverse else min)(at_top, default=0.0)
    example = ""
    if top and value:
        example = bounds.example(f"{check}@{format_size(top)}", value, upper=measure.inverse)
    sizes = " or ".join(map(format_size, bounds.other_sizes(evidence, measure.metric)))
    reason = f" at this size; measure also {sizes}" if sizes else " at this number of nodes"
    if bounds.measured_by_another_program(evidence):
        reason = " for torch, which measured it (its bounds are for nccl-tests)"
    return bounds.no_bound_finding(check, example, reason)


# Columns of the results table


def _measured(evidence: Evidence, results: Table, measure: Measure) -> str:
    """Return the slowest value among the groups of each step."""
    parts = []
    measured = results.where(lambda row: row.value is not None and row.execution.has_peer)
    for own in measured.by(lambda row: row.step.id).values():
        worst = own.worst
        top = worst.nominal_size or 0
        if len(own) > 1:
            groups = f"slowest of {len(own)} {worst.step.groups}"
        else:
            groups = count(worst.nodes, "node") if worst.hosts else "nodes not known"
        at = f"up to {format_size(top)}" if measure.inverse else f"at {format_size(top)}"
        share = bounds.peak_share(evidence, worst)
        # Otherwise it was nccl-tests, or its substitute.
        by = {program for row in own for _, program in PROGRAM.of(row.execution.record)}
        resident = f", by {RESIDENT}" if RESIDENT in by else ""
        parts.append(f"{number(worst.value or 0.0)} {worst.unit} {at} ({groups}{share}{resident})")
    return "; ".join(parts[:3])
