"""Find executions in which a single repetition paused, from the times of their repetitions.

A pause of one rank stops all ranks of its execution, so one pause names nobody. A host or link is a
suspect if the pauses follow it through executions with different partners, by the effects model.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from accept.core.catalog.metrics import TIME, TIME_LONGEST
from accept.core.causes import Cause, Judgement
from accept.core.facts import whole
from accept.core.judge.effects.executions import Execution, Network
from accept.core.judge.effects.search import explain
from accept.core.judge.evidence import Evidence
from accept.core.judge.findings import finding, first_logs
from accept.core.plan import Step
from accept.core.records import Placement, Record
from accept.core.text import count, host_list
from accept.core.verdict import BadPair, Finding, State, Strength, Suspect, SuspectKind

#: A repetition paused if it took this many microseconds longer than the mean of the others, and
#: this many times as long. Interruptions by the operating system last milliseconds; a link that
#: comes back after it was down, or a lost packet that is sent again, take longer than 100 ms.
#: In 204 logs of ten healthy hosts (tests/data/nccl-logs has 21 of them), no repetition within a
#: host can have taken 4 ms longer, and none between two 3 times as long: 80,000 repetitions.
_PAUSE, _TIMES = 100e3, 3.0
#: A pause counts if it is this many times as long as any delay in executions without a pause.
_FAR = 3.0
#: Partners that are good with third hosts, to name a host.
_FEWEST = 2
#: The value of an execution with a pause, as a share of one without: a collapse.
_PAUSED = 0.1

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
    far = [*filter(_is_far, paused)]
    suspects: list[Suspect] = []
    if evidence.plan.machine.speed_promised:
        paused = far or paused
        suspects = [*_suspects(executions, evidence)]
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
    if most > 1:
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


def _suspects(executions: Sequence[TimedExecution], evidence: Evidence) -> Iterator[Suspect]:
    """Yield the hosts and links that the pauses of pairs and of single hosts follow."""
    small = [e for e in executions if 0 < len(e.hosts) <= 2 and not e.record.local_ranks]
    given = [
        Execution(
            hosts=e.record.hosts,
            population=str(len(e.hosts)),
            value=_PAUSED if _is_far(e) else 1.0,
            log=e.record.log,
            wave=(e.record.step, e.record.wave),
        )
        for e in small
    ]
    for fault in explain(given, Network(noise=evidence.plan.machine.noise)).faults:
        # Partners that are good with third hosts show that a host, and none of them, is the reason.
        is_host = fault.part.kind is SuspectKind.NODE and len(fault.cleared) >= _FEWEST
        if not is_host and fault.part.kind is not SuspectKind.LINK:
            continue
        own = [small[index] for index in fault.hits]
        longest = max(execution.pause for execution in own) / 1e6
        yield Suspect(
            kind=fault.part.kind,
            hosts=tuple(host for host in evidence.hosts if host in fault.part.hosts),
            cause=Cause.PAUSES,
            strength=Strength.MODERATE if fault.intermittent else Strength.STRONG,
            why=f"a repetition paused for up to {longest:.2g} s in {len(fault.hits)} of "
            f"{count(len(fault.covered), 'execution')}; in {fault.other_hit} of "
            f"{fault.other_pairs} other pairs",
            pairs=tuple(
                BadPair(hosts=e.record.hosts, log=e.record.log) for e in own if len(e.hosts) == 2
            ),
            evidence=first_logs(e.record.log for e in own),
        )


def _is_far(execution: TimedExecution) -> bool:
    return execution.pause > 0 and execution.pause >= _FAR * execution.usual
