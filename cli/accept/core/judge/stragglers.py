"""Which rank the others wait for: its own work takes longer than that of its equals.

Comparison is what each rank needs before it has to wait for others, so who waits is never taken for
slow. A GPU is named where the program names it, else its host, as it is where half of its ranks or
more are slow.
"""

from __future__ import annotations

from typing import NamedTuple

from accept.core.judge.completeness import device_label, host_list
from accept.core.judge.evidence import Evidence
from accept.core.judge.robust_stats import FEWEST, GROSS, spread
from accept.core.model import Finding, Metric, Record, State, Suspect

#: Where ranks share CPUs with others they lose turns of the scheduler, of some ms each: less than
#: this, in seconds, says nothing there.
_TURNS = 0.02
#: Where they do not: steps of small models are the CPU's, which starts the kernels, and differ by a
#: part of themselves between healthy hosts. Less than this, in seconds, says nothing of a GPU.
_STARTS = 0.005
_MOST_SECONDS = 1e6


class Slow(NamedTuple):
    """What follows from the ranks' own times."""

    findings: list[Finding]
    suspects: tuple[Suspect, ...]


def judge(evidence: Evidence, metric: str) -> Slow:
    """Hold each rank's `metric` (seconds, one for each rank) against the others of its execution.

    Where more than half are slow nobody is.
    """
    findings: list[Finding] = []
    suspects: list[Suspect] = []
    for record in evidence.records:
        ranks = _ranks(record, evidence.check, metric)
        speeds = [1 / rank.value for rank in ranks]
        among = spread(speeds, evidence.plan.machine.noise)
        if among is None:
            continue
        usual, limit = 1 / among.median, among.limit
        if evidence.plan.machine.speed_promised:
            limit = min(limit, 1 / (usual + _STARTS))
        else:
            limit = min(limit, among.median * (1 - GROSS), 1 / (usual + _TURNS))
        slow = [rank for rank in ranks if 1 / rank.value < limit]
        if 2 * len(slow) > len(ranks):
            slow = []
        suspects += _suspects(slow, ranks, usual, record)
        findings.append(_finding(evidence.check, metric, slow, len(ranks), usual, limit, record))
    return Slow(findings, tuple(suspects))


def _ranks(record: Record, check: str, metric: str) -> list[Metric]:
    """One metric for each rank, the last it said; damaged ones are left out."""
    found = {
        one.rank: one
        for one in record.metrics
        if (one.check, one.name) == (check, metric)
        and one.rank is not None
        and one.host in record.hosts
        and 1 / _MOST_SECONDS <= one.value <= _MOST_SECONDS
    }
    return list(found.values()) if len(found) >= FEWEST else []


def _suspects(
    slow: list[Metric], ranks: list[Metric], usual: float, record: Record
) -> list[Suspect]:
    result = []
    for host in dict.fromkeys(rank.host or "" for rank in slow):
        mine = [rank for rank in slow if rank.host == host]
        whole = 2 * len(mine) >= sum(rank.host == host for rank in ranks)
        for rank in mine[:1] if whole or not mine[0].gpu else mine:
            named = rank.gpu and not whole
            result.append(
                Suspect(
                    kind="gpu" if named else "node",
                    name=f"{host}:{rank.gpu}" if named else host,
                    cause="slow-outlier",
                    strength="moderate",
                    why=f"the others wait for {device_label(host, rank.rank, rank.gpu)}: it "
                    f"computes for {rank.value:.3g} s a step, the median is {usual:.3g} s",
                    evidence=(record.log,) if record.log else (),
                )
            )
    return result


def _finding(
    check: str,
    metric: str,
    slow: list[Metric],
    count: int,
    usual: float,
    limit: float,
    record: Record,
) -> Finding:
    longest = 1 / limit if limit > 0 else float("inf")
    names = host_list([device_label(rank.host, rank.rank, rank.gpu) for rank in slow])
    what = f"step {record.step}, {count} ranks"
    text = f"none computes for more than {longest:.3g} s a step, the median is {usual:.3g} s"
    return Finding(
        check=check,
        judgement="population",
        state=State.FAIL if slow else State.PASS,
        message=f"{what}: {names} {'keep' if len(slow) > 1 else 'keeps'} the others waiting"
        if slow
        else f"{what}: {text}",
        cause="slow-outlier" if slow else None,
        metric=metric,
        unit="s",
        bound=longest if limit > 0 else None,
        upper=longest if limit > 0 else None,
        bound_kind="population",
        source=f"median of {count} in this run",
        hosts=tuple(dict.fromkeys(rank.host or "" for rank in slow)),
        evidence=(record.log,) if slow and record.log else (),
    )
