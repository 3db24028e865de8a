"""Judge a collective: results, bandwidth bounds, peers, and the network that NCCL used."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial

from accept.core.catalog.metrics import WRONG
from accept.core.causes import Cause, Judgement
from accept.core.facts import NCCL_DETOURS, NCCL_NETWORKS, NCCL_TESTS, FactKind
from accept.core.judge import bounds, completeness, pauses
from accept.core.judge.attribution import examine
from accept.core.judge.blame import Unit
from accept.core.judge.evidence import Evidence, Judged
from accept.core.judge.groups import Comparison, compare, counts
from accept.core.judge.outliers import is_uneven
from accept.core.judge.pair_results import Gap, PairResults
from accept.core.judge.robust_stats import FEWEST, Spread, slowdown_found
from accept.core.judge.summary import verdict_of
from accept.core.judge.suspects import from_problems
from accept.core.judge.topology import DISTANCE
from accept.core.model import (
    Bound,
    BoundKind,
    Executions,
    Finding,
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
#: Maximum number of pairs, and of suspects, in one message.
_MAX_UNPROVEN, _MAX_EXPLAINED = 5, 3
#: Maximum number of steps in one message.
_MAX_STEPS = 5
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
    pairs = evidence.pairs
    if pairs is None or measure.inverse:
        own_hosts = evidence.places, evidence.domains
        pairs = examine([evidence], *own_hosts, measure=measure, noise=noise)
    comparisons: list[Comparison] = []
    if promised or not measure.inverse:
        comparisons = _comparisons(evidence, pairs, measure, noise)
    suspects = [*from_problems(fallbacks, "", len(evidence.hosts)), *pausing]
    for comparison in comparisons:
        own = _proven(comparison.suspects, promised=promised)
        if evidence.plan.origin and comparison.groups < FEWEST:
            # Without peers, nothing but its log shows why a group failed.
            rows = ((suspect, suspect.cause.row) for suspect in own)
            own = [suspect for suspect, row in rows if not (row.relative or row.consequence)]
        suspects += own
        findings.append(_population_finding(check, comparison, own, measure))
        if not own and (unequal := pairs.unequal(check, comparison.step)):
            findings.append(_unequal_finding(check, comparison.step, unequal, measure))
        findings += _block_findings(evidence, comparison, measure, promised=promised)
        if promised and comparison.uneven and not own and not measure.inverse:
            findings.append(_uneven_finding(check, comparison, measure))
    if promised or not measure.inverse:
        findings += _unproven_findings(evidence, pairs)
    if promised:
        findings += _distance_findings(evidence, pairs, suspects, measure)
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
        required=_required(evidence, bound_findings, comparisons, measure),
    )
    return Judged(replace(verdict, optional=verdict.optional or single_rank), tuple(suspects))


# Comparison of groups


def _comparisons(
    evidence: Evidence, pairs: PairResults, measure: Measure, noise: float
) -> list[Comparison]:
    """Compare the groups of each step."""
    machine = evidence.plan.machine
    machine = replace(machine, noise=max(noise, machine.noise))
    evidence = replace(evidence, plan=replace(evidence.plan, machine=machine))
    comparisons = []
    for step in evidence.steps:
        if step.groups.of_pairs:
            if evidence.of_step(step):
                own = pairs.suspects(evidence.check, step)
                comparisons.append(_pair_comparison(evidence, step, pairs, own))
            continue
        # Bounds of a latency are for single sizes, not for the median.
        has_peers = not all(not r.local_ranks and r.ranks == 1 for r in evidence.of_step(step))
        use_bound = has_peers and not measure.inverse
        # Groups are compared by the value at the largest size of their step.
        top = planned_sizes(step)[-1:]
        part = replace(evidence, steps=(step,), records=tuple(evidence.of_step(step)))
        lower = partial(bounds.highest_lower_bound, part, metric=measure.metric, top=top)
        lowest = lower if use_bound else lambda _: None
        comparisons += compare(part, measure, lowest, pairs.suspects_of_rails(evidence.check, step))
    return comparisons


def _pair_comparison(
    evidence: Evidence, step: Step, pairs: PairResults, suspects: Sequence[Suspect]
) -> Comparison:
    """Return the comparison of the pairs of a step, from the results of all pairs."""
    check = evidence.check
    healthy, detectable = pairs.spread(check, step), None
    if healthy is not None and healthy.median > 0:
        detectable = slowdown_found(healthy.sigma / healthy.median, len(pairs.order))
    return Comparison(
        step=step,
        suspects=tuple(suspects),
        groups=pairs.pairs(check, step),
        spread=healthy,
        unknown=pairs.slow.unknown,
        detectable=detectable,
        uneven=healthy is not None and is_uneven(healthy, evidence.plan.machine.noise),
    )


def _unproven_findings(evidence: Evidence, pairs: PairResults) -> Iterator[Finding]:
    """Yield the pairs of each step that collapsed without a known reason."""
    for step in evidence.steps:
        units = pairs.unproven(evidence.check, step) if step.groups.of_pairs else []
        if not units:
            continue
        shown = "this pair shows it" if len(units) == 1 else "these pairs show it"
        logs = dict.fromkeys(e.log for unit in units for e in unit.events if e.log)
        yield Finding(
            check=evidence.check,
            judgement=Judgement.POPULATION,
            state=State.INCONCLUSIVE,
            cause=Cause.UNPROVEN,
            message=f"step {step.id}: {_collapsed(units)}: the path or either host may be the "
            f"reason. No part is named, because only {shown}",
            evidence=tuple(logs)[:8],
        )


def _distance_findings(
    evidence: Evidence, pairs: PairResults, suspects: Sequence[Suspect], measure: Measure
) -> Iterator[Finding]:
    """Yield which hosts are slower with each other, with what the steps measured that show it.

    Distance is a note. Hosts that are alone under their switch, or slow, are open, and so are
    pairs across blocks that distance does not explain and for which nobody is accused.
    """
    check = evidence.check
    accused = {host for s in suspects for host in (*s.hosts, *s.others)}
    near: list[Gap] = []
    unexplained: list[Gap] = []
    groups: dict[tuple[str, ...], list[Gap]] = {}
    lone: dict[str, list[Gap]] = {}
    for step in (step for step in evidence.steps if step.groups.of_pairs):
        if gap := pairs.across_blocks(check, step):
            if pairs.is_explained(check, step):
                near.append(gap)
            elif not pairs.suspects(check, step):
                unexplained.append(gap)
        for group, gap in pairs.far_groups(check, step):
            groups.setdefault(group.hosts, []).append(gap)
        # Hosts in one NVLink domain are known to be near each other: distance explains nothing.
        for host, gap in [] if evidence.domains else pairs.ambiguous(check, step):
            if host not in accused:
                lone.setdefault(host, []).append(gap)

    def finding(who: str, gaps: Sequence[Gap], what: str, hosts: Sequence[str] = ()) -> Finding:
        return Finding(
            check=check,
            judgement=Judgement.POPULATION,
            state=State.INCONCLUSIVE if hosts or gaps is unexplained else State.PASS,
            message=f"{who} reached {_slower(gaps, measure)}: {what}",
            metric=measure.metric,
            unit=measure.unit,
            hosts=tuple(hosts),
            executions=Executions(
                bad=sum(gap.slow for gap in gaps), total=sum(len(gap.values) for gap in gaps)
            ),
            evidence=tuple(log for gap in gaps for log in gap.logs if log)[:8],
        )

    across = f"pairs across {count(len(pairs.blocks), 'block')} of near hosts"
    if near:
        yield finding(across, near, "distance")
    if unexplained:
        yield finding(across, unexplained, f"distance explains {DISTANCE:.0%} at most")
    for names, gaps in groups.items():
        yield finding(
            f"pairs of {completeness.host_list(names)} with other hosts", gaps, "distance"
        )
    for host, gaps in lone.items():
        reason = "slow, or on another switch. "
        reason += "A `topology` command in the machine's file would show which"
        yield finding(f"pairs of {host}", gaps, reason, [host])


def _slower(gaps: Sequence[Gap], measure: Measure) -> str:
    """Return how much slower some pairs are than the others of a step, in each of some steps."""
    texts = [
        f"{measure.text(gap.values[0])} to {measure.text(gap.values[-1])} instead of "
        f"{measure.text(gap.normal)}, slower in {gap.slow} of {len(gap.values)} (step {gap.step})"
        for gap in gaps
    ]
    return shortened(texts, _MAX_STEPS, "; ")


def _collapsed(units: Sequence[Unit]) -> str:
    """Return how slow some pairs are, such as "h1 - h2 reached 52% of normal"."""
    texts = []
    for unit in units:
        shares = [event.share for event in unit.events if event.bad and event.share is not None]
        result = f"reached {min(shares):.0%} of normal" if shares else "failed"
        texts.append(f"{' - '.join(unit.hosts)} {result}")
    return shortened(texts, _MAX_UNPROVEN)


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
    check: str, comparison: Comparison, suspects: Sequence[Suspect], measure: Measure
) -> Finding:
    step = comparison.step
    what = f"step {step.id}, {comparison.groups} groups ({step.groups})"
    peers = comparison.spread
    if not suspects:
        if peers is None:
            text = f"{what}: too few to compare ({FEWEST} needed)"
        else:
            median = f"the median {measure.text(peers.median)}"
            text = f"{what}: none {_beyond(peers, measure)} {median}"
            if comparison.detectable is not None:
                text = f"{what}: no outlier from {median}; "
                text += f"a node {comparison.detectable:.1%} slow would be detected"
        if comparison.unknown:
            text += f"; {completeness.host_list(comparison.unknown)} could not be judged"
        return Finding(check=check, judgement=Judgement.POPULATION, state=State.PASS, message=text)
    weak_nodes = all(
        s.strength is Strength.WEAK and s.kind in (SuspectKind.NODE, SuspectKind.GPU)
        for s in suspects
    )
    texts = shortened([f"{s.name}: {s.why}" for s in suspects], _MAX_EXPLAINED, " | ")
    side = "above" if measure.inverse else "below"
    limit = f"; slow is {side} {measure.text(peers.limit)}" if peers else ""
    return Finding(
        check=check,
        judgement=Judgement.POPULATION,
        state=State.INCONCLUSIVE if step.groups.of_pairs and weak_nodes else State.FAIL,
        cause=suspects[0].cause,
        message=f"{what}: {texts}{limit}",
        metric=measure.metric,
        unit=measure.unit,
        bound=_population_bound(peers, measure) if peers else None,
        hosts=tuple(host for s in suspects if s.kind is SuspectKind.NODE for host in s.hosts),
        evidence=tuple(dict.fromkeys(log for s in suspects for log in s.evidence))[:8],
    )


def _block_findings(
    evidence: Evidence, comparison: Comparison, measure: Measure, *, promised: bool
) -> Iterator[Finding]:
    """Yield a finding on the bad blocks of a ladder; slow ones need a speed target."""
    few = evidence.plan.origin and comparison.groups < FEWEST
    blocks = [
        block
        for block in comparison.blocks
        if (promised or block.cause is not Cause.SLOW_OUTLIER)
        and not (few and block.cause.row.relative)
    ]
    if not blocks:
        return
    texts = [
        f"{completeness.host_list(block.sample.hosts)}: "
        + counts(block, f"blocks of {count(len(block.sample.hosts), 'host')}")
        for block in blocks
    ]
    hosts = (host for block in blocks for host in block.sample.hosts)
    yield Finding(
        check=evidence.check,
        judgement=Judgement.POPULATION,
        state=State.FAIL,
        cause=blocks[0].cause,
        message=f"step {comparison.step.id}: {shortened(texts, _MAX_EXPLAINED, ' | ')}. No part is "
        "named: pairs show whether a host or the network is the reason",
        metric=measure.metric,
        unit=measure.unit,
        hosts=tuple(dict.fromkeys(hosts)),
        evidence=tuple(dict.fromkeys(b.sample.log for b in blocks if b.sample.log))[:8],
    )


def _uneven_finding(check: str, comparison: Comparison, measure: Measure) -> Finding:
    peers = comparison.spread
    median = f" around {measure.text(peers.median)}" if peers else ""
    return Finding(
        check=check,
        judgement=Judgement.POPULATION,
        state=State.INCONCLUSIVE,
        message=f"step {comparison.step.id}: {comparison.groups} groups that should be equal fall "
        f"apart{median}, by more than noise explains: many are slow, or they are of several kinds. "
        "Judge each kind separately, or give a bound: --expect",
    )


def _unequal_finding(
    check: str, step: Step, unequal: Sequence[tuple[str, float]], measure: Measure
) -> Finding:
    """Return the finding on pairs that differ while they are too few to show which are slow."""
    texts = [f"{name} {measure.text(value)}" for name, value in unequal]
    return Finding(
        check=check,
        judgement=Judgement.POPULATION,
        state=State.INCONCLUSIVE,
        message=f"step {step.id}: pairs are unequal: {', '.join(texts)}. Nothing shows which speed "
        f"is normal: that needs {FEWEST} hosts, or a bound: --expect '{check}>={measure.unit}'",
        metric=measure.metric,
        unit=measure.unit,
    )


def _population_bound(peers: Spread, measure: Measure) -> Bound:
    source = f"median of {peers.count} in this run"
    if not measure.inverse:
        return Bound(lower=peers.limit, kind=BoundKind.POPULATION, source=source)
    longest = 1e6 / peers.limit if peers.limit > 0 else peers.limit
    return Bound(upper=longest, kind=BoundKind.POPULATION, source=source)


def _beyond(peers: Spread, measure: Measure) -> str:
    if measure.inverse and peers.share > 0:
        return f"above {1 / peers.share:.0%} of"
    return f"below {peers.share:.0%} of"


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
    reason = " at this number of nodes"
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
    measure: Measure,
) -> str:
    """Return what the measurement was compared with."""
    parts = bounds.sources(bound_findings)
    compared = next((c for c in comparisons if c.spread is not None), None)
    if compared is not None and compared.spread is not None:
        median = f"the median of {compared.spread.count}"
        if compared.detectable is None:
            parts.append(f"none {_beyond(compared.spread, measure)} {median}")
        else:
            parts.append(f"no node {compared.detectable:.1%} below {median}")
    if not evidence.plan.machine.speed_promised:
        parts.append("results correct; no speed target")
    return "; ".join(parts)
