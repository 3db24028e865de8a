"""Find executions in which a single repetition paused, from the times of their repetitions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import NamedTuple

from accept.core.catalog.metrics import TIME, TIME_LONGEST
from accept.core.causes import Cause, Judgement
from accept.core.facts import whole
from accept.core.judge.completeness import host_list
from accept.core.judge.evidence import Evidence
from accept.core.model import Finding, Record, State, Step

#: A repetition paused if it took this many microseconds longer than the mean of the others, and
#: this many times as long. Interruptions by the operating system last milliseconds; a link that
#: comes back after it was down, or a lost packet that is sent again, take longer than 100 ms.
_PAUSE, _TIMES = 100e3, 3.0
#: Executions of one host that must have paused, so that chance alone is not reported.
_REPEATED = 2


class Pause(NamedTuple):
    """An execution with a pause in microseconds."""

    record: Record
    longer: float


def findings(evidence: Evidence) -> Iterator[Finding]:
    """Yield a finding if executions paused: inconclusive if that happened repeatedly to a host.

    It accuses nobody, because a pause of one rank stops all ranks of its execution. Without a speed
    target it is a note: programs on shared machines are often stopped.
    """
    steps = {step.id: step for step in evidence.steps}
    paused = [
        Pause(record, longer)
        for record in evidence.records
        if (longer := _pause(record, evidence.check, steps[record.step])) is not None
    ]
    if not paused:
        return
    counts = Counter(host for pause in paused for host in set(pause.record.hosts))
    most = max(counts.values())
    repeated = most >= _REPEATED and evidence.plan.machine.speed_promised
    longest = max(pause.longer for pause in paused) / 1e6
    executions = "1 execution" if len(paused) == 1 else f"{len(paused)} executions"
    text = f"a repetition took up to {longest:.2g} s longer than the others in {executions}"
    if repeated:
        hosts = [host for host in evidence.hosts if counts[host] == most]
        text += f"; {most} of them with {host_list(hosts)}"
    yield Finding(
        check=evidence.check,
        judgement=Judgement.ABSOLUTE,
        state=State.INCONCLUSIVE if repeated else State.PASS,
        cause=Cause.PAUSES if repeated else None,
        message=text,
        evidence=tuple(pause.record.log for pause in paused if pause.record.log)[:8],
    )


def _pause(record: Record, check: str, step: Step) -> float | None:
    """Return how much longer the longest repetition of an execution took; None: no pause.

    If the program ran fewer repetitions than planned, the mean of the others is overestimated.
    """
    repetitions = whole(step.params.get("iters"))
    times: dict[tuple[object, ...], dict[str, float]] = {}
    for metric in record.metrics:
        if metric.check == check and metric.name in (TIME.name, TIME_LONGEST.name):
            times.setdefault((metric.size, metric.placement), {})[metric.name] = metric.value
    pauses = []
    for values in times.values():
        mean, longest = values.get(TIME.name), values.get(TIME_LONGEST.name)
        if mean is None or longest is None or repetitions < 2:
            continue
        others = max(0.0, (repetitions * mean - longest) / (repetitions - 1))
        if _PAUSE <= longest - others < 1e12 and longest >= _TIMES * others:
            pauses.append(longest - others)
    return max(pauses, default=None)
