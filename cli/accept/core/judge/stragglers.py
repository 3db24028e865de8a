"""Find the rank that the others wait for: its own work takes longer than that of its peers.

It compares the time that each rank needs before it waits for others, so a waiting rank never counts
as slow. The suspect is a GPU if the program names it, else its host. It is the host, too, if at
least half of its ranks are slow. Hosts that train alone are compared by their speed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from accept.core.catalog.metrics import MetricSpec
from accept.core.causes import Cause, Judgement
from accept.core.judge.completeness import host_list
from accept.core.judge.evidence import Evidence
from accept.core.judge.findings import finding, suspect_of
from accept.core.judge.peers import Peer, compare_peers
from accept.core.judge.rounds import FEWEST, GROSS
from accept.core.judge.values import limit_of
from accept.core.model import Bound, BoundKind, Finding, State, Strength, Suspect
from accept.core.table import Execution, Row, rows_of
from accept.core.text import number

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
        peers = [Peer(str(rank.rank), _speed(rank)) for rank in ranks]
        found = compare_peers(peers, evidence.plan.machine.noise)
        if found.normal is None:
            continue
        speed_of_most = found.normal.value
        median, limit = 1 / speed_of_most, limit_of(found.normal)
        if promised:
            limit = min(limit, 1 / (median + _KERNEL_START_SECONDS))
        else:
            limit = min(limit, speed_of_most * (1 - GROSS), 1 / (median + _SCHEDULING_SECONDS))
        slow = [ranks[one.at] for one in found.bad if _speed(ranks[one.at]) < limit]
        result.suspects.extend(_suspects(slow, ranks, median))
        result.findings.append(_finding(ranks, slow, median, limit))
    return result


def _slow_hosts(evidence: Evidence, speed: MetricSpec) -> Stragglers:
    """Compare a speed between the hosts that ran alone."""
    rows = [
        row
        for execution in evidence.executions
        for row in [
            row
            for row in rows_of(execution, evidence.check, {speed.name})
            if row.nodes == 1 and row.rank is None and _is_plausible(row)
        ][-1:]
    ]
    noise = max(evidence.plan.machine.noise, _TRAINING_NOISE)
    found = compare_peers([Peer(row.hosts[0], row.value, log=row.log) for row in rows], noise)
    if found.normal is None:
        return Stragglers([], [])
    suspects = [
        suspect_of(
            rows[outlier.at],
            outlier.cause,
            Strength.MODERATE,
            f"{evidence.check}: {number(rows[outlier.at].value or 0.0)} {speed.unit}, "
            f"{outlier.text}",
        )
        for outlier in found.bad
    ]
    hosts = [host for suspect in suspects for host in suspect.hosts]
    text = f"{speed.name} of {found.normal.hosts} hosts, normal {number(found.normal.value)} "
    text += f"{speed.unit}: {f'{host_list(hosts)} slow' if suspects else 'none is slow'}"
    one = finding(
        evidence.check,
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
        row.rank: row
        for row in rows_of(execution, check, {metric})
        if row.rank is not None and row.host in row.hosts and _is_plausible(row)
    }
    return list(latest.values()) if len(latest) >= FEWEST else []


def _is_plausible(row: Row) -> bool:
    return 1 / _MAX_SECONDS <= (row.value or 0.0) <= _MAX_SECONDS


def _speed(row: Row) -> float:
    return 1 / (row.value or _MAX_SECONDS)


def _suspects(slow: Sequence[Row], ranks: Sequence[Row], median: float) -> Iterator[Suspect]:
    for host in dict.fromkeys(rank.host for rank in slow):
        own = [rank for rank in slow if rank.host == host]
        if 2 * len(own) >= sum(rank.host == host for rank in ranks) or not own[0].gpu:
            own = [own[0]._replace(gpu=None)]
        for rank in own:
            worst = next(one for one in slow if one.rank == rank.rank)
            why = f"the others wait for {worst.device}: it computes for {rank.value:.3g} s per "
            why += f"step, the median is {median:.3g} s"
            yield suspect_of(rank, Cause.SLOW_OUTLIER, Strength.MODERATE, why)


def _finding(ranks: Sequence[Row], slow: Sequence[Row], median: float, limit: float) -> Finding:
    first, longest = ranks[0], 1 / limit if limit > 0 else float("inf")
    text = f"none computes for more than {longest:.3g} s per step, the median is {median:.3g} s"
    if slow:
        names = host_list([rank.device for rank in slow])
        text = f"{names} {'keep' if len(slow) > 1 else 'keeps'} the others waiting"
    return finding(
        first.check,
        Judgement.POPULATION,
        State.FAIL if slow else State.PASS,
        f"step {first.step.id}, {len(ranks)} ranks: {text}",
        Cause.SLOW_OUTLIER if slow else None,
        metric=first.metric,
        unit="s",
        bound=Bound(
            upper=longest if limit > 0 else None,
            kind=BoundKind.POPULATION,
            source=f"median of {len(ranks)} in this run",
        ),
        hosts=(rank.host or "" for rank in slow),
        logs=(first.log,) if slow else (),
    )
