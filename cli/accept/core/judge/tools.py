"""Judge programs of others: how they ended, the bounds of their results, and their peers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from accept.core.causes import Cause
from accept.core.judge import bounds
from accept.core.judge.conclusion import conclude
from accept.core.judge.evidence import Evidence, Judged
from accept.core.judge.findings import first_logs, problem_of
from accept.core.judge.peers import compare_rows
from accept.core.judge.rounds import FEWEST
from accept.core.judge.summary import state_of
from accept.core.judge.suspects import from_problems
from accept.core.model import Finding, Problem, State, Suspect, ToolResult
from accept.core.table import Execution, rows_of
from accept.core.text import count, number, value_range
from accept.core.tool_output import ENDING


def judge(evidence: Evidence) -> Judged:
    """Pass if the tool ended well on every host, and its results reach their bounds and peers."""
    results = {one.name: one for step in evidence.steps if step.tool for one in step.tool.results}
    values = evidence.table.by(lambda row: row.metric)
    measured = [
        f"{name} {value_range(values[name].values)} {one.unit}".strip()
        for name, one in results.items()
        if name in values and values[name].values
    ]
    peers = [name for name, one in results.items() if one.noise]
    return conclude(
        evidence,
        problems=[p for one in results.values() for p in _bad(evidence, one)],
        suspects=_failed(evidence),
        findings=_without_bound(evidence, results),
        measured="; ".join(measured),
        required=f"as good as peers: {', '.join(peers)}" if peers else "status 0",
    )


def _failed(evidence: Evidence) -> Iterator[Suspect]:
    """Yield the hosts on which the tool failed, unless it failed on most of them."""
    problems = [
        (replace(problem, host=record.hosts[0]), record.log)
        for record in evidence.records
        for problem in record.problems
        if problem.check == evidence.check and state_of(problem.cause) is State.FAIL
        if len(record.hosts) == 1 and not (problem.host or problem.cause.row.names_no_node)
    ]
    logs = {problem.host: log for problem, log in problems}
    for suspect in from_problems([p for p, _ in problems], "", len(evidence.hosts)):
        yield replace(suspect, evidence=first_logs([logs[suspect.hosts[0]]]))


def _bad(evidence: Evidence, result: ToolResult) -> Iterator[Problem]:
    """Yield the hosts that lack a result which most have, or are worse than their peers."""
    for step in evidence.steps:
        ran = [e for e in evidence.executions if e.step.id == step.id and e.record.exit == 0]
        rows = [
            row
            for execution in ran
            for row in rows_of(execution, evidence.check, {result.name})
            if row.is_plausible
        ]
        measured = {host for row in rows for host in row.hosts}
        lacking = [h for e in ran if _ended_well(e) for h in e.record.hosts]
        lacking = [host for host in lacking if host not in measured]
        for host in lacking if 2 * len(lacking) < len(ran) else ():
            message = f"{host} has no {result.name}, unlike {count(len(measured), 'other node')}"
            yield Problem(cause=Cause.NO_MEASUREMENT, message=message, host=host)
        for outlier in compare_rows(rows, result.noise)[0] if result.noise else ():
            row = outlier.row
            message = f"{result.name} of {row.device} is {number(row.value or 0.0)} {row.unit}, "
            yield problem_of(row, outlier.cause, message + outlier.text)


def _ended_well(execution: Execution) -> bool:
    return any(end.exit == 0 and not end.left for _, end in ENDING.of(execution.record))


def _without_bound(evidence: Evidence, results: dict[str, ToolResult]) -> Iterator[Finding]:
    """Yield a finding if nothing separates good results from bad ones."""
    bounded = {bound.metric for bound in bounds.bounds_of(evidence)}
    compared = len(evidence.hosts) >= FEWEST and any(one.noise for one in results.values())
    rows = evidence.table.rows if evidence.plan.machine.speed_promised else ()
    if rows and bounded.isdisjoint(results) and not compared:
        one = next(iter(rows))
        sign = "<=" if one.score != one.value else ">="
        example = f"{evidence.check}.{one.metric}{sign}{number(one.value or 0.0)}"
        yield bounds.no_bound_finding(evidence.check, example)
