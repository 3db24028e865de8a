"""Find executions in which a single repetition paused, from the times of their repetitions.

A pause of one rank stops all ranks of its execution, so one pause names nobody. A host or link is a
suspect if the pauses follow it through executions with different partners.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import combinations
from math import comb
from typing import NamedTuple

from accept.core.catalog.metrics import TIME, TIME_LONGEST
from accept.core.causes import Cause, Judgement
from accept.core.facts import whole
from accept.core.judge.completeness import host_list
from accept.core.judge.evidence import Evidence
from accept.core.judge.findings import finding
from accept.core.model import (
    BadPair,
    Finding,
    Placement,
    Record,
    State,
    Step,
    Strength,
    Suspect,
    SuspectKind,
)
from accept.core.text import count

#: A repetition paused if it took this many microseconds longer than the mean of the others, and
#: this many times as long. Interruptions by the operating system last milliseconds; a link that
#: comes back after it was down, or a lost packet that is sent again, take longer than 100 ms.
#: In 204 logs of ten healthy hosts (tests/data/nccl-logs has 21 of them), no repetition within a
#: host can have taken 4 ms longer, and none between two 3 times as long: 80,000 repetitions.
_PAUSE, _TIMES = 100e3, 3.0
#: A pause counts if it is this many times as long as any delay in executions without a pause.
_FAR = 3.0
#: Highest probability that pauses which strike executions at random follow any host, or any link,
#: as closely. Fewer than one healthy run in ten has two pauses: none was in 80,000 repetitions.
_CHANCE = 0.01
#: Executions with a pause, and partners that are good with third hosts, that name a host.
_FEWEST = 2
_MAX_LOGS = 8

_Row = tuple[str, int | None, Placement | None]


class TimedExecution(NamedTuple):
    """An execution and its longest pause, in microseconds; 0: no pause."""

    record: Record
    pause: float
    #: The longest delay of a repetition of this size in executions without a pause.
    usual: float = 0.0

    @property
    def hosts(self) -> frozenset[str]:
        """Return the hosts of the execution."""
        return frozenset(self.record.hosts)


def examine(evidence: Evidence) -> tuple[list[Finding], list[Suspect]]:
    """Return a finding about the pauses of a check, and the hosts and links that they follow.

    Pauses are at least inconclusive. Without a speed target they are a note: programs on shared
    machines are often stopped.
    """
    executions = list(_executions(evidence))
    paused = [execution for execution in executions if execution.pause]
    if not paused:
        return [], []
    far = [execution for execution in paused if execution.pause >= _FAR * execution.usual]
    suspects: list[Suspect] = []
    if evidence.plan.machine.speed_promised:
        paused = far or paused
        suspects = _suspects(executions, evidence)
    judged = bool(far) and evidence.plan.machine.speed_promised
    state = State.FAIL if suspects else State.INCONCLUSIVE
    found = finding(
        evidence.check,
        Judgement.POPULATION if suspects else Judgement.ABSOLUTE,
        state if judged else State.PASS,
        _message(paused, len(executions), evidence.hosts),
        Cause.PAUSES if judged else None,
        logs=(execution.record.log for execution in paused),
    )
    return [found], suspects


def _message(paused: Sequence[TimedExecution], total: int, hosts: Sequence[str]) -> str:
    worst = max(paused, key=lambda execution: execution.pause)
    text = f"a repetition took up to {worst.pause / 1e6:.2g} s longer than the others"
    text += f" in {len(paused)} of {count(total, 'execution')}"
    if worst.usual:
        text += f" (without a pause at most {worst.usual / 1e6:.2g} s)"
    counts = Counter(host for execution in paused for host in execution.hosts)
    most = max(counts.values(), default=0)
    if most >= _FEWEST:
        text += f"; {most} of them with {host_list([h for h in hosts if counts[h] == most])}"
    elif len(paused) == 1:
        text += f": {host_list(paused[0].record.hosts)}"
    return text


# Pauses


def _executions(evidence: Evidence) -> Iterator[TimedExecution]:
    """Yield each execution whose repetitions were timed."""
    timed = [
        (execution.record, rows)
        for execution in evidence.executions
        if (rows := dict(_delays(execution.record, evidence.check, execution.step)))
    ]
    usual: dict[_Row, float] = {}
    for _, rows in timed:
        for row, (delay, paused) in rows.items():
            usual[row] = max(usual.get(row, 0.0), 0.0 if paused else delay)
    for record, rows in timed:
        pauses = [(delay, usual[row]) for row, (delay, paused) in rows.items() if paused]
        yield TimedExecution(record, *max(pauses, default=(0.0, 0.0)))


def _delays(record: Record, check: str, step: Step) -> Iterator[tuple[_Row, tuple[float, bool]]]:
    """Yield how much longer the longest repetition of each size took, and whether it paused.

    If the program ran fewer repetitions than planned, the mean of the others is overestimated.
    """
    repetitions = whole(step.params.get("iters"))
    times: dict[_Row, dict[str, float]] = {}
    for metric in record.metrics:
        if metric.check == check and metric.name in (TIME.name, TIME_LONGEST.name):
            row = (step.id, metric.size, metric.placement)
            times.setdefault(row, {})[metric.name] = metric.value
    for row, values in times.items():
        mean, longest = values.get(TIME.name), values.get(TIME_LONGEST.name)
        if mean is None or longest is None or repetitions < 2:
            continue
        others = max(0.0, (repetitions * mean - longest) / (repetitions - 1))
        delay = longest - others
        if delay < 1e12:
            yield row, (delay, delay >= _PAUSE and longest >= _TIMES * others)


# Suspects


def _suspects(executions: Sequence[TimedExecution], evidence: Evidence) -> list[Suspect]:
    """Return the hosts, and then the links, that the pauses of pairs and single hosts follow."""
    small = [e for e in executions if 0 < len(e.hosts) <= 2 and not e.record.local_ranks]
    suspects: list[Suspect] = []
    for kind in (SuspectKind.NODE, SuspectKind.LINK):
        while named := _likeliest(small, kind, evidence.hosts):
            part, suspect = named
            suspects.append(suspect)
            small = [execution for execution in small if not part <= execution.hosts]
    return suspects


def _worst_of_each_group(executions: Iterable[TimedExecution]) -> list[TimedExecution]:
    """Return one execution of each group of hosts, so that a link counts once against its hosts."""
    worst: dict[frozenset[str], TimedExecution] = {}
    for execution in executions:
        if execution.hosts not in worst or execution.pause > worst[execution.hosts].pause:
            worst[execution.hosts] = execution
    return [*worst.values()]


def _likeliest(
    executions: Sequence[TimedExecution], kind: SuspectKind, order: Sequence[str]
) -> tuple[frozenset[str], Suspect] | None:
    """Return the part that the pauses follow more closely than chance explains; None: none."""
    size = 1 if kind is SuspectKind.NODE else 2
    executions = _worst_of_each_group(executions) if size == 1 else executions
    parts = Counter(part for e in executions for part in _parts(e.hosts, size))
    bad = Counter(part for e in executions if _is_bad(e) for part in _parts(e.hosts, size))
    total, paused = len(executions), sum(map(_is_bad, executions))
    chances = {
        part: len(parts) * _tail(bad[part], parts[part], paused, total)
        for part in parts
        if bad[part] >= _FEWEST and _is_separate(part, executions)
    }
    part = min(chances, key=lambda one: (chances[one], sorted(one)), default=frozenset[str]())
    if not part or chances[part] > _CHANCE:
        return None
    own = [e for e in executions if part <= e.hosts and _is_bad(e)]
    longest = max(execution.pause for execution in own) / 1e6
    what = "pair" if size == 1 else "execution"
    text = f"a repetition paused for up to {longest:.2g} s in {bad[part]} of "
    text += f"{count(parts[part], what)}; others {paused - bad[part]} of {total - parts[part]}"
    often = size == 1 and 2 * bad[part] > parts[part]
    logs = tuple(e.record.log for e in own if e.record.log)[:_MAX_LOGS]
    pairs = [e.record for e in own if len(e.hosts) == 2]
    return part, Suspect(
        kind=kind,
        hosts=tuple(host for host in order if host in part),
        cause=Cause.PAUSES,
        strength=Strength.STRONG if often else Strength.MODERATE,
        why=text,
        pairs=tuple(BadPair(hosts=record.hosts, log=record.log) for record in pairs),
        evidence=logs,
    )


def _is_bad(execution: TimedExecution) -> bool:
    return execution.pause > 0 and execution.pause >= _FAR * execution.usual


def _parts(hosts: Iterable[str], size: int) -> Iterator[frozenset[str]]:
    return map(frozenset, combinations(sorted(hosts), size))


def _is_separate(part: frozenset[str], executions: Sequence[TimedExecution]) -> bool:
    """Return True if third hosts show that the part, and none of its partners, is the reason.

    For a host, at least two of its partners must work with most third hosts without a pause. For a
    link, both hosts with all of them.
    """
    if len(part) == 1:
        partners = {h for e in executions if part <= e.hosts and _is_bad(e) for h in e.hosts - part}
        good = [h for h in partners if _paused_share(h, part, executions) < 0.5]
        return len(good) >= _FEWEST
    return all(_paused_share(host, part - {host}, executions) == 0 for host in part)


def _paused_share(host: str, other: frozenset[str], executions: Sequence[TimedExecution]) -> float:
    """Return the share of the executions of a host without the `other` that paused; 1: none ran."""
    third = [_is_bad(e) for e in executions if host in e.hosts and not other <= e.hosts]
    return sum(third) / len(third) if third else 1.0


def _tail(bad: int, own: int, paused: int, total: int) -> float:
    """Return the probability that at least `bad` of `own` executions paused by chance.

    `paused` of `total` executions paused: the upper tail of the hypergeometric distribution.
    """
    ways = sum(
        comb(own, k) * comb(total - own, paused - k) for k in range(bad, min(own, paused) + 1)
    )
    return ways / comb(total, paused)
