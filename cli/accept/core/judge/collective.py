"""Judge a collective: results, bandwidth bounds, peers, and the network that NCCL used."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial

from accept.core.judge import bounds, completeness
from accept.core.judge.collective_metrics import (
    BANDWIDTH,
    Measure,
    Reading,
    nominal,
    planned_sizes,
    reached,
    read,
)
from accept.core.judge.crosscheck import SLOW, explained_by_place, place_finding
from accept.core.judge.evidence import Evidence, Judged
from accept.core.judge.groups import Comparison, compare
from accept.core.judge.robust_stats import FEWEST, Spread
from accept.core.judge.summary import verdict_of
from accept.core.judge.suspects import from_problems
from accept.core.judge.topology import ambiguous_hosts, split_by_distance
from accept.core.model import Finding, PlannedMachine, Problem, Record, State, Step, Suspect
from accept.core.text import format_size

_FACT, _DETOURS = "nccl-networks", "nccl-detours"
_BETWEEN_GPUS = {
    "SHM": "moved data between its GPUs through shared memory",
    "P2P off": "says that P2P is disabled between its GPUs",
}
_AROUND = "moved data between its GPUs over the network"


def _between_hosts(evidence: Evidence) -> list[Record]:
    """Finished executions whose ranks had to use a network."""
    return [r for r in evidence.records if len(r.hosts) > 1 and r.exit == 0]


def transport_problems(evidence: Evidence) -> Iterator[Problem]:
    """Hosts that used another network, or another way to it or between GPUs, than is promised."""
    told: set[tuple[str, str]] = set()
    for said, host in _ways(evidence):
        if (said, host) not in told:
            told.add((said, host))
            known = host if host in evidence.hosts else None
            yield Problem(cause="transport-fallback", message=f"{host} {said}", host=known)


def _ways(evidence: Evidence) -> Iterator[tuple[str, str]]:
    """What each host used that it should not have: in words, and the host."""
    machine = evidence.plan.machine
    promised = machine.transport
    for record in _between_hosts(evidence) if promised else ():
        for network, host in _said(record, _FACT):
            if not _kept(machine, network):
                yield f"used the network {network}; {promised} is promised", host
    for record in evidence.records:
        alone = len(record.hosts) == 1
        for way, host in _said(record, _DETOURS):
            _, net, network = way.partition("NET/")
            if net and machine.gpu_direct and _kept(machine, network) and not alone:
                yield f"used {network} without GDRDMA: data go through host memory", host
            elif machine.peer_to_peer and (way in _BETWEEN_GPUS or (way == "NET" and alone)):
                yield f"{_BETWEEN_GPUS.get(way, _AROUND)}; NVLink is promised", host


def _kept(machine: PlannedMachine, network: str) -> bool:
    """Whether what NCCL calls the network is the promised one."""
    names = (machine.transport, *machine.transport_aliases)
    return any(name.lower() in network.lower() for name in names)


def _said(record: Record, name: str) -> Iterator[tuple[str, str]]:
    for fact in record.facts:
        if fact.name == name and isinstance(fact.value, dict):
            for way, hosts in fact.value.items():
                for host in hosts if isinstance(hosts, list) else ():
                    yield str(way)[:80], str(host)


def transport_unknown(evidence: Evidence) -> list[Finding]:
    """A finding where a network is promised and nothing says which one was used."""
    records = _between_hosts(evidence) if evidence.plan.machine.transport else []
    said = any(fact.name == _FACT for record in records for fact in record.facts)
    if not records or said or evidence.partial:
        return []
    return [
        Finding(
            check=evidence.check,
            judgement="correctness",
            state=State.INCONCLUSIVE,
            cause="no-measurement",
            message="the logs do not show which network NCCL used (expected "
            f"{evidence.plan.machine.transport}); rerun with NCCL_DEBUG=INFO",
        )
    ]


#: Nobody looked whether the data were right: told beside whatever else was not measured.
_UNCHECKED = "unchecked"
_CORRECTNESS = ("wrong-data", "not-finite", _UNCHECKED)


def score(found: Reading, step: Step) -> tuple[float | None, str]:
    """What groups are compared by: a reading that reached the planned sizes; see `Check.score`."""
    if found.wrong:
        return found.value, "wrong-data"
    # Where none of them was to check its data (`-c 0`) that is no fault of one.
    known = reached(found, step) and not (found.unchecked and step.params.get("check", 1))
    return (found.value if known else None), ""


def judge(evidence: Evidence, measure: Measure = BANDWIDTH, noise: float = 0.0) -> Judged:
    """Judge one collective by all steps that it is part of.

    `noise`: of healthy groups, where it is more than that of the machine.
    """
    check = evidence.check
    readings = {id(record): read(record.metrics, check, measure) for record in evidence.records}

    def known(record: Record, step: Step) -> tuple[float | None, str]:
        return score(readings[id(record)], step)

    findings = completeness.step_findings(evidence)
    fallen_back = tuple(transport_problems(evidence))
    findings += completeness.problem_findings(evidence, score=known, more=fallen_back)
    findings += transport_unknown(evidence)
    findings += _damage(evidence, readings, {f.cause for f in findings if f.cause})
    held = bounds.findings(evidence, nominal)
    findings += held
    promised = evidence.plan.machine.speed_promised
    compared: list[Comparison] = []
    noisier = _noisier(evidence, noise)
    for step in evidence.steps if promised or not measure.inverse else ():
        # Bounds are about whole nodes; those of a latency about one size each, not their median.
        whole = not all(r.local_ranks or r.ranks == 1 for r in evidence.of_step(step))
        # What groups are compared by is measured at the largest size of their step.
        top = planned_sizes(step)[-1:]
        for part in split_by_distance(noisier, step):
            least = partial(bounds.highest_lower_bound, part, metric=measure.metric, top=top)
            bound = least if whole and not measure.inverse else lambda _: None
            compared += compare(part, known, bound)
    suspects = list(from_problems(fallen_back, "", len(evidence.hosts)))
    far = [explained_by_place(check, one, evidence.shares) for one in compared]
    excused = {suspect.name for some in far for suspect in some}
    for one, some in zip(compared, far, strict=True):
        mine = _solid(one.suspects, promised=promised)
        if evidence.plan.origin and one.groups < FEWEST:
            mine = [suspect for suspect in mine if suspect.cause != "slow-outlier"]
        if some:
            findings.append(place_finding(check, one, some))
        mine = [s for s in mine if s.name not in excused or s.cause not in SLOW]
        suspects += mine
        findings += _population(check, one, mine, measure)
        if promised and one.uneven and not mine and not measure.inverse:
            findings.append(_fallen_apart(check, one, measure))
    accused = {suspect.name for suspect in suspects}
    for step in evidence.steps if promised else ():
        findings += ambiguous_hosts(evidence, step, accused)
    # A figure for one node says nothing of what is between nodes.
    between = tuple(record for record in evidence.records if len(record.hosts) > 1)
    asked = held
    if promised and 0 < len(between) < len(evidence.records):
        asked = bounds.findings(replace(evidence, records=between), nominal)
    bounded = any(f.state is not State.INCONCLUSIVE for f in asked)
    alone = False
    if promised and not bounded and evidence.records and not evidence.partial:
        one_rank = len(evidence.hosts) == 1 and all(r.ranks == 1 for r in evidence.records)
        alone = one_rank and not held and all(f.state is State.PASS for f in findings)
        nothing = _nobody(check) if alone else _unbounded(evidence, readings.values(), measure)
        findings.append(nothing)
    verdict = verdict_of(
        evidence,
        findings,
        measured=_measured(evidence, readings, measure),
        against=_against(evidence, held, compared, measure),
    )
    return Judged(replace(verdict, optional=verdict.optional or alone), tuple(suspects))


def _noisier(evidence: Evidence, noise: float) -> Evidence:
    machine = evidence.plan.machine
    machine = replace(machine, noise=max(noise, machine.noise))
    return replace(evidence, plan=replace(evidence.plan, machine=machine))


def _solid(suspects: Sequence[Suspect], *, promised: bool) -> list[Suspect]:
    """Where no speed is promised, one slow execution of a shared link proves nothing."""
    return [
        suspect
        for suspect in suspects
        if promised or suspect.strength != "weak" or suspect.cause != "slow-outlier"
    ]


def _damage(evidence: Evidence, readings: dict[int, Reading], known: set[str]) -> list[Finding]:
    """Findings about the numbers: wrong, unchecked, missing, or short of the largest size."""
    steps = {step.id: step for step in evidence.steps}
    found: dict[str, list[tuple[Record, str]]] = {}
    whose = (None, evidence.check)
    names = {} if evidence.plan.origin else completeness.hosts_by_short_name(evidence)
    for record in evidence.records:
        one = readings[id(record)]
        if one.wrong:
            found.setdefault("wrong-data", []).append((record, _wrong(one.wrong)))
        if one.damaged:
            found.setdefault("not-finite", []).append((record, "a figure is not a finite number"))
        if record.exit != 0:
            continue
        for text in _others_listed(evidence, names, record):
            found.setdefault("rank-count", []).append((record, text))
        if one.unchecked:
            found.setdefault(_UNCHECKED, []).append((record, "the results were not checked"))
        elif one.value is None and not any(p.check in whose for p in record.problems):
            found.setdefault("no-measurement", []).append((record, "nothing was measured"))
        elif one.value is not None and not reached(one, steps[record.step]):
            text = f"the largest message measured is {format_size(one.top)}"
            found.setdefault("top-size-missing", []).append((record, text))
    return [
        _number_finding(evidence.check, kind, records)
        for kind, records in found.items()
        if kind not in known
    ]


def _wrong(elements: float) -> str:
    return f"{elements:.0f} element{' is' if elements == 1 else 's are'} wrong"


def _others_listed(
    evidence: Evidence, names: Mapping[str, set[str]], record: Record
) -> Iterator[str]:
    """What the table lists that is not the record's: another number of ranks, or other hosts."""
    for fact in record.facts:
        if fact.name != "nccl-tests" or fact.check != evidence.check:
            continue
        said = fact.value if isinstance(fact.value, dict) else {}
        ranks, listed = said.get("ranks"), said.get("hosts")
        if isinstance(ranks, int) and ranks != record.ranks:
            yield f"{ranks} ranks took part where {record.ranks} were started"
        elif isinstance(listed, dict) and not evidence.plan.origin:
            yield from completeness.host_mismatches(evidence, names, record, listed)


def _number_finding(check: str, kind: str, found: Sequence[tuple[Record, str]]) -> Finding:
    record, text = found[0]
    others = f"{len(found) - 1} more group{'s' * (len(found) > 2)}"
    more = f"; the same holds for {others}" if len(found) > 1 else ""
    return Finding(
        check=check,
        judgement="correctness" if kind in _CORRECTNESS else "completeness",
        state=State.FAIL,
        cause="no-measurement" if kind == _UNCHECKED else kind,
        message=f"{text} in step {record.step} on {completeness.host_list(record.hosts)}{more}",
        hosts=tuple(dict.fromkeys(host for record, _ in found for host in record.hosts)),
        evidence=tuple(dict.fromkeys(record.log for record, _ in found if record.log))[:8],
    )


def _population(
    check: str, compared: Comparison, suspects: Sequence[Suspect], measure: Measure
) -> list[Finding]:
    what = f"step {compared.step.id}, {compared.groups} groups ({compared.step.groups})"
    among = compared.spread
    if not suspects:
        if among is None:
            text = f"{what}: too few to compare, {FEWEST} are needed; nothing is concluded"
        else:
            usual = f"the median {measure.text(among.median)}"
            text = f"{what}: none {_beyond(among, measure)} {usual}"
            if compared.detectable is not None:
                found = f"a node {compared.detectable:.1%} slow would"
                text = f"{what}: none stands out from {usual}; {found}"
        if compared.unknown:
            text += f"; nothing is known of {completeness.host_list(compared.unknown)}"
        return [Finding(check=check, judgement="population", state=State.PASS, message=text)]
    names = completeness.host_list([suspect.name for suspect in suspects])
    side = "above" if measure.inverse else "below"
    limit = f"; slow is {side} {measure.text(among.limit)}" if among else ""
    bound = _shown(among.limit, measure) if among else None
    hosts = [s.name for s in suspects if s.kind == "node"]
    return [
        Finding(
            check=check,
            judgement="population",
            state=State.FAIL,
            cause=suspects[0].cause,
            message=f"{what}: {names} stand{'s' * (len(suspects) == 1)} out{limit}",
            metric=measure.metric,
            unit=measure.unit,
            bound=bound,
            lower=None if measure.inverse else bound,
            upper=bound if measure.inverse else None,
            bound_kind="population" if among else "",
            source=f"median of {among.count} in this run" if among else "",
            hosts=tuple(hosts),
            evidence=tuple(dict.fromkeys(log for s in suspects for log in s.evidence))[:8],
        )
    ]


def _fallen_apart(check: str, compared: Comparison, measure: Measure) -> Finding:
    among = compared.spread
    usual = f" around {measure.text(among.median)}" if among else ""
    return Finding(
        check=check,
        judgement="population",
        state=State.INCONCLUSIVE,
        message=f"step {compared.step.id}: {compared.groups} groups that should be equal fall apart"
        f"{usual}, by more than noise explains: many are slow, or they are not of one kind. "
        "Judge each kind by itself, or give a bound: --expect",
    )


def _shown(value: float, measure: Measure) -> float:
    return 1e6 / value if measure.inverse and value > 0 else value


def _beyond(among: Spread, measure: Measure) -> str:
    if measure.inverse and among.share > 0:
        return f"above {1 / among.share:.0%} of"
    return f"below {among.share:.0%} of"


def _unbounded(evidence: Evidence, readings: Iterable[Reading], measure: Measure) -> Finding:
    top = max((reading.top for reading in readings), default=0)
    if measure.inverse:
        top = min((planned_sizes(s)[0] for s in evidence.steps if planned_sizes(s)), default=top)
    at = f"@{format_size(top)}" if top else ""
    bound = f"{'<=' if measure.inverse else '>='}{measure.unit}"
    check = evidence.check
    where = " at this number of nodes"
    if bounds.measured_by_another_program(evidence):
        where = " but for nccl-tests, which did not measure it: it was torch"
    return bounds.unbounded(check, f"{check}{at}{bound}", where)


def _nobody(check: str) -> Finding:
    """That it was one rank alone: its data were right, and that is all that can be said."""
    return Finding(
        check=check,
        judgement="absolute",
        state=State.NOT_TESTED,
        message="one rank has nobody to send to: nothing between GPUs or nodes was tested",
    )


def _measured(evidence: Evidence, readings: dict[int, Reading], measure: Measure) -> str:
    """The slowest figure of each step's groups."""
    parts = []
    for step in evidence.steps:
        found = [
            (
                readings[id(r)].value or 0.0,
                nominal(readings[id(r)].top, step),
                r.hosts,
                bool(r.local_ranks),
            )
            for r in evidence.of_step(step)
            if readings[id(r)].value is not None
        ]
        if found:
            value, top, hosts, part = min(found)
            groups = (
                f"slowest of {len(found)} {step.groups}" if len(found) > 1 else f"{len(hosts)} host"
            )
            groups += "s" * (len(found) == 1 and len(hosts) != 1)
            at = f"up to {format_size(top)}" if measure.inverse else f"at {format_size(top)}"
            line = None if part else bounds.peak(evidence, hosts, measure.metric, top)
            share = f", {value / line[0]:.0%} of the peak" if line else ""
            parts.append(f"{measure.text(value)} {at} ({groups}{share})")
    return "; ".join(parts[:3])


def _against(
    evidence: Evidence, held: Sequence[Finding], compared: Sequence[Comparison], measure: Measure
) -> str:
    """What the measurement was held against."""
    parts = bounds.sources(held)
    spreads = [(one.spread, one.detectable) for one in compared if one.spread is not None]
    for spread, least in spreads[:1]:
        usual = f"the median of {spread.count}"
        beyond = f"none {_beyond(spread, measure)} {usual}"
        parts.append(beyond if least is None else f"no node {least:.1%} below {usual}")
    if not evidence.plan.machine.speed_promised:
        parts.append("data right; no speed promised")
    return "; ".join(parts)
