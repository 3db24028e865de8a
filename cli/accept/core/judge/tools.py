"""Judge programs of others: how they ended, the bounds of their results, and their peers.

Single hosts are compared with each other. What pairs of hosts reached goes through the same model
as collectives between two hosts, each NIC as one of the GPUs that took part.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from statistics import median

from accept.core import sentences
from accept.core.catalog.metrics import BETTER_BY_UNIT, Better
from accept.core.causes import Cause, Judgement
from accept.core.facts import NCCL_NICS
from accept.core.judge import bounds
from accept.core.judge.conclusion import conclude
from accept.core.judge.effects.populations import FEWEST
from accept.core.judge.evidence import Evidence, Judged
from accept.core.judge.findings import finding, first_logs, problem_of
from accept.core.judge.open_questions import effect_findings
from accept.core.judge.parts import compare_steps
from accept.core.judge.peers import compare_rows
from accept.core.judge.results import compare
from accept.core.judge.summary import state_of
from accept.core.judge.suspects import from_problems
from accept.core.plan import BoundKind, GroupKind, ToolResult
from accept.core.records import Fact, Problem, Record
from accept.core.table import Measure, rows_of
from accept.core.text import count, number, value_range
from accept.core.tool_output import ENDING
from accept.core.verdict import Finding, State, Suspect

#: Hosts that reach less than this share of themselves alone, all at the same time, share something.
_SHARED = 0.75


def judge(evidence: Evidence) -> Judged:
    """Pass if the tool ended well on every host, and its results reach their bounds and peers."""
    results = {one.name: one for step in evidence.steps if step.tool for one in step.tool.results}
    values = evidence.table.by(lambda row: row.metric)
    measured = [
        f"{name} {value_range(values[name].values)} {one.unit}".strip()
        for name, one in results.items()
        if name in values and values[name].values
    ]
    problems = [problem for one in results.values() for problem in _bad(evidence, one)]
    findings, suspects = [*_without_bound(evidence, results, problems)], [*_failed(evidence)]
    for result in results.values():
        own, accused = _between_hosts(evidence, result)
        findings += [*own, *_together(evidence, result)]
        suspects += accused
    peers = [name for name, one in results.items() if one.noise]
    return conclude(
        evidence,
        problems=problems,
        suspects=suspects,
        findings=findings,
        measured="; ".join(measured),
        required=f"as good as peers: {', '.join(peers)}" if peers else "status 0",
    )


def _failed(evidence: Evidence) -> Iterator[Suspect]:
    """Yield the hosts on which the tool failed, unless it failed on most of them."""
    # How a tool ends may be the fault of its command: without peers, only what it found counts.
    has_peers = len(evidence.hosts) > 1
    problems = [
        (replace(problem, host=record.hosts[0]), record.log)
        for record in evidence.records
        for problem in record.problems
        if problem.check == evidence.check and state_of(problem.cause) is State.FAIL
        if len(record.hosts) == 1 and not (problem.host or problem.cause.row.names_no_node)
        if has_peers or problem.cause is not Cause.TOOL_FAILED or _ended_well(record)
    ]
    logs = {problem.host: log for problem, log in problems}
    for suspect in from_problems([p for p, _ in problems], "", len(evidence.hosts)):
        yield replace(suspect, evidence=first_logs([logs[suspect.hosts[0]]]))


def _bad(evidence: Evidence, result: ToolResult) -> Iterator[Problem]:
    """Yield the hosts that lack a result which most have, or are worse than their peers."""
    for step in (step for step in evidence.steps if step.groups.of_single_hosts):
        ran = [e for e in evidence.executions if e.step.id == step.id and e.record.exit == 0]
        rows = [
            row
            for execution in ran
            for row in rows_of(execution, evidence.check, {result.name})
            if row.is_plausible
        ]
        measured = {host for row in rows for host in row.hosts}
        lacking = [h for e in ran if _ended_well(e.record) for h in e.record.hosts]
        lacking = [host for host in lacking if host not in measured]
        for host in lacking if 2 * len(lacking) < len(ran) else ():
            message = f"{host} has no {result.name}, unlike {count(len(measured), 'other node')}"
            yield Problem(cause=Cause.NO_MEASUREMENT, message=message, host=host)
        for outlier in compare_rows(rows, result.noise)[0] if result.noise else ():
            row = outlier.row
            message = f"{result.name} of {row.device} is {number(row.value or 0.0)} {row.unit}, "
            yield problem_of(row, outlier.cause, message + outlier.text)
    yield from _outside(evidence, result)


def _outside(evidence: Evidence, result: ToolResult) -> Iterator[Problem]:
    """Yield the hosts and GPUs beyond a bound, unless most are: then it does not fit them."""
    single = [row for row in evidence.table if row.step.groups.of_single_hosts]
    measured = {row.device for row in single if row.metric == result.name}
    bad = [(b, r) for b, r in bounds.outside(evidence, result.name) if r.device in measured]
    if len(measured) > 1 and 2 * len({row.device for _, row in bad}) > len(measured):
        return
    for bound, row in bad:
        message = f"{result.name} of {row.device} is {number(row.value or 0.0)} {row.unit}, "
        message += f"outside {sentences.bound_text(bound)}"
        yield problem_of(row, Cause.BELOW_REFERENCE, message)


def _ended_well(record: Record) -> bool:
    return any(end.ended_well for _, end in ENDING.of(record))


def _together(evidence: Evidence, result: ToolResult) -> Iterator[Finding]:
    """Yield what all hosts reach at the same time, as a share of each of them alone."""
    values: dict[GroupKind, list[float]] = {}
    for step in evidence.steps:
        values.setdefault(step.groups, []).extend(
            row.score or 0.0
            for row in evidence.table
            if row.step == step and row.metric == result.name and row.is_plausible
        )
    alone, every = values.get(GroupKind.ALONE), values.get(GroupKind.EACH)
    if len(evidence.hosts) < 2 or not (alone and every and median(alone)):
        return
    share = median(every) / median(alone)
    reason = "each node has its own"
    if share < _SHARED:
        reason = "the nodes share what limits them, such as a file system or its network"
    text = f"{result.name}: all nodes at the same time reach {share:.0%} of one alone: {reason}"
    yield finding(evidence.check, Judgement.POPULATION, State.PASS, text)


# Pairs of hosts


def _between_hosts(
    evidence: Evidence, result: ToolResult
) -> tuple[tuple[Finding, ...], tuple[Suspect, ...]]:
    """Return what explains the results of pairs, and the parts that are to blame."""
    steps = tuple(step for step in evidence.steps if step.groups.of_pairs)
    if not steps:
        return (), ()
    records = tuple(one for r in evidence.records for one in _of_nics(r))
    own = replace(evidence, steps=steps, records=records)
    inverse = BETTER_BY_UNIT[result.unit] is Better.LOWER
    measure = Measure(result.name, result.unit, inverse=inverse)
    effects = compare([own], measure=measure, noise=result.noise, of_nics=True)
    findings, suspects, _ = compare_steps(own, effects, measure)
    accused = {host for s in suspects for host in (*s.hosts, *s.others)}
    return (*findings, *effect_findings(own, effects, measure, accused)), suspects


def _of_nics(record: Record) -> Iterator[Record]:
    """Yield a pair's record once for each of its NICs, as if this were the GPU of that number."""
    nics: dict[int, dict[str, str]] = {}
    for fact, ending in ENDING.of(record):
        if ending.nic and fact.host:
            nics.setdefault(ending.number, {})[fact.host] = ending.nic
    if not nics:
        yield record
        return
    used = {
        host: {str(n): [own[host]] for n, own in nics.items() if host in own}
        for host in record.hosts
    }
    for one, names in nics.items():
        yield replace(
            record,
            local_ranks=(one,),
            metrics=tuple(m for m in record.metrics if m.nic in _client(record, names)),
            problems=tuple(p for p in record.problems if not p.nic or p.nic in names.values()),
            facts=(*record.facts, Fact(name=NCCL_NICS.name, value=used)),
        )


def _client(record: Record, names: Mapping[str, str]) -> tuple[str, ...]:
    """Return the NIC of the first host, whose figures the tool prints."""
    return tuple(names[host] for host in record.hosts[:1] if host in names)


def _without_bound(
    evidence: Evidence, results: dict[str, ToolResult], problems: Iterable[Problem]
) -> Iterator[Finding]:
    """Yield a finding if nothing separates good results from bad ones.

    Its example of a bound is what all results reach that have no problem.
    """
    bounded = {
        bound.metric
        for bound in bounds.bounds_of(evidence)
        if bound.kind is BoundKind.EXPECTATION
        or not (bound.metric in results and results[bound.metric].floor)
    }
    compared = len(evidence.hosts) >= FEWEST and any(one.noise for one in results.values())
    rows = [row for row in evidence.table.rows if row.metric in results and row.value]
    promised = evidence.plan.machine.speed_promised
    if rows and promised and bounded.isdisjoint(results) and not compared:
        bad, example = {(p.host, p.rank, p.gpu) for p in problems}, ""
        good = [row for row in rows if (row.host, row.rank, row.gpu) not in bad]
        if good:
            one = min(good, key=lambda row: (row.metric != good[0].metric, row.score or 0.0))
            subject, upper = f"{evidence.check}.{one.metric}", one.better is Better.LOWER
            example = bounds.example(subject, one.value or 0.0, upper=upper)
        yield bounds.no_bound_finding(evidence.check, example)
