"""Find the rank that the others wait for: its own work takes longer than that of its peers.

It compares the time that each rank needs before it waits for others, so a waiting rank never counts
as slow. The suspect is a GPU if the program names it, else its host. It is the host, too, if at
least half of its ranks are slow. Hosts that train alone are compared by their speed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import inf
from typing import NamedTuple

from accept.core.catalog.metrics import MetricSpec
from accept.core.causes import Cause, Judgement
from accept.core.judge.effects.populations import FEWEST
from accept.core.judge.evidence import Evidence
from accept.core.judge.findings import finding, suspect_of
from accept.core.judge.peers import compare_rows
from accept.core.judge.rounds import GROSS
from accept.core.judge.values import is_bad, limit_of
from accept.core.plan import Bound, BoundKind
from accept.core.table import Execution, Row, rows_of
from accept.core.text import host_list, number
from accept.core.verdict import Finding, State, Strength, Suspect

#: Smallest difference, in seconds, that counts if ranks share CPUs: each turn of the scheduler that
#: a rank loses takes several ms.
_SCHEDULING_SECONDS = 0.02
#: Smallest difference, in seconds, that counts otherwise: with small models, starting the kernels
#: on the CPU takes most of the time, and that differs between healthy hosts.
_KERNEL_START_SECONDS = 0.005
#: Noise of the speed of a training, as a share of the median: GPUs of one kind differ by a few
#: percent if their power limits them.
_TRAINING_NOISE = 0.02
#: Longer times, and shorter ones than the inverse, are damage.
_MAX_SECONDS = 1e6


class Stragglers(NamedTuple):
    """The findings on the times of ranks, and the suspects."""

    findings: list[Finding]
    suspects: list[Suspect]


def judge(evidence: Evidence, metric: str, speed: MetricSpec) -> Stragglers:
    """Compare each rank's `metric`, in seconds, with the other ranks of its execution.

    If there is a speed target, compare `speed` between the hosts that ran alone, too. If more than
    half of the ranks or hosts are slow, none counts as slow.
    """
    promised = evidence.plan.machine.speed_promised
    result = _slow_hosts(evidence, speed) if promised else Stragglers([], [])
    for execution in evidence.executions:
        ranks = _ranks(execution, evidence.check, metric)
        bad, normal = compare_rows(ranks, evidence.plan.machine.noise)
        if normal is None:
            continue
        median, limit = 1 / normal.value, limit_of(normal)
        if promised:
            limit = min(limit, 1 / (median + _KERNEL_START_SECONDS))
        else:
            limit = min(limit, normal.value * (1 - GROSS), 1 / (median + _SCHEDULING_SECONDS))
        slow = [one.row for one in bad if is_bad(one.row.score or 0.0, limit)]
        result.suspects.extend(_suspects(slow, ranks, median))
        longest = 1 / limit if limit > 0 else None
        names = host_list([rank.device for rank in slow])
        text = f"the median is {median:.3g} s per step, {longest or inf:.3g} s are normal; "
        text += f"waiting for {names}" if slow else "none takes longer"
        one = finding(
            evidence.check,
            Judgement.POPULATION,
            State.FAIL if slow else State.PASS,
            f"step {execution.step.id}, {len(ranks)} ranks: {text}",
            Cause.SLOW_OUTLIER if slow else None,
            metric=metric,
            unit="s",
            bound=Bound(
                upper=longest,
                kind=BoundKind.POPULATION,
                source=f"median of {len(ranks)} in this run",
            ),
            hosts=(rank.host or "" for rank in slow),
            logs=(execution.record.log,) if slow else (),
        )
        result.findings.append(one)
    return result


def _slow_hosts(evidence: Evidence, speed: MetricSpec) -> Stragglers:
    """Compare a speed between the hosts that ran alone."""
    check, rows = evidence.check, []
    for execution in evidence.executions:
        own = [
            row
            for row in rows_of(execution, check, {speed.name})
            if row.nodes == 1 and row.rank is None and _is_plausible(row)
        ]
        rows += own[-1:]
    bad, normal = compare_rows(rows, max(evidence.plan.machine.noise, _TRAINING_NOISE))
    if normal is None:
        return Stragglers([], [])
    suspects = [
        suspect_of(
            outlier.row,
            outlier.cause,
            Strength.MODERATE,
            f"{check}: {number(outlier.row.value or 0.0)} {speed.unit}, {outlier.text}",
        )
        for outlier in bad
    ]
    hosts = [host for suspect in suspects for host in suspect.hosts]
    text = f"{speed.name} of {normal.hosts} hosts, normal {number(normal.value)} "
    text += f"{speed.unit}: {f'{host_list(hosts)} slow' if suspects else 'none is slow'}"
    one = finding(
        check,
        Judgement.POPULATION,
        State.FAIL if suspects else State.PASS,
        text,
        suspects[0].cause if suspects else None,
        metric=speed.name,
        unit=speed.unit,
        hosts=hosts,
    )
    return Stragglers([one], suspects)


def _ranks(execution: Execution, check: str, metric: str) -> list[Row]:
    """Return the last value of the metric for each rank, without damaged ones.

    Return [] if there are too few to compare.
    """
    latest = {
        row.rank: row._replace(unit="s")
        for row in rows_of(execution, check, {metric})
        if row.rank is not None and row.host in row.hosts and _is_plausible(row)
    }
    return list(latest.values()) if len(latest) >= FEWEST else []


def _is_plausible(row: Row) -> bool:
    return 1 / _MAX_SECONDS <= (row.value or 0.0) <= _MAX_SECONDS


def _suspects(slow: Sequence[Row], ranks: Sequence[Row], median: float) -> Iterator[Suspect]:
    for host in dict.fromkeys(rank.host for rank in slow):
        own = [rank for rank in slow if rank.host == host]
        whole = 2 * len(own) >= sum(rank.host == host for rank in ranks) or not own[0].gpu
        for rank in own[:1] if whole else own:
            why = f"the others wait for {rank.device}: it computes for {rank.value:.3g} s per "
            why += f"step, the median is {median:.3g} s"
            of = rank._replace(gpu=None) if whole else rank
            yield suspect_of(of, Cause.SLOW_OUTLIER, Strength.MODERATE, why)
