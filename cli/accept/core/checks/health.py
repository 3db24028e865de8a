"""Define the check `health`: damage of GPUs, links, NICs and memory, and their new errors in steps.

Its step takes one reading of every host: the facts `health` of `launchers/programs/health.py`. If a
plan has this check, the coordinator repeats the reading before every step and after the last. It
reports the fact `health-change` for each host whose counters changed since the previous reading.
After the last step, the fact `health-total` reports the growth of all other counters over the run.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial

from accept.core import record_protocol
from accept.core.causes import Cause, Judgement
from accept.core.checks.check import Check, CheckParams
from accept.core.health_readings import (
    HEALTH_CHANGE,
    HEALTH_READING,
    HEALTH_TOTAL,
    DeviceKind,
    Gap,
    Reading,
    Unread,
    reading_of,
)
from accept.core.judge import health, health_at_start, packet_loss
from accept.core.judge.conclusion import conclude
from accept.core.judge.evidence import Evidence, Judged
from accept.core.judge.findings import Problems, finding
from accept.core.judge.health_rules import Limits
from accept.core.judge.summary import params_of
from accept.core.plan import GroupKind
from accept.core.text import count, host_list
from accept.core.verdict import Finding, State

#: Maximum number of findings on what may be a fault, or not.
_MAX_UNCLEAR = 20


@dataclass(frozen=True, kw_only=True)
class Params(CheckParams, Limits):
    """Parameters of `health`: the limits of its rules."""

    def estimate(self, _hosts: int, _ranks: int) -> float:
        """Return the time of one reading of files and driver, in seconds."""
        return 2.0


def readings_of(evidence: Evidence) -> dict[str, Reading]:
    """Return the complete reading of each host."""
    readings = {}
    for record in evidence.records:
        for host in record.hosts:
            facts = [fact for fact in record.facts if fact.host in (None, host)]
            if any(HEALTH_READING.among(facts)):
                readings[host] = reading_of(facts)
    return readings


def judge(evidence: Evidence) -> Judged:
    """Pass if no device was damaged or had new errors, and all counters could be read."""
    limits, machine = params_of(evidence, Params), evidence.plan.machine
    readings = readings_of(evidence)
    sweeps = list(health.changes_of(evidence.host_answers, evidence.plan.steps))
    changes = [sweep for sweep in sweeps if sweep.host not in evidence.set_aside]
    found = Problems.all_of(
        (
            health_at_start.examine(readings, machine, limits, one_kind=len(evidence.devices) <= 1),
            *(health.examine(change, limits, gpus=machine.gpus != 0) for change in changes),
            packet_loss.examine(
                sweeps, readings, evidence.step_records, limits.packet_loss, evidence.set_aside
            ),
        )
    )
    if evidence.plan.origin:
        found = _of_files(found)
    return conclude(
        evidence,
        problems=found.problems,
        unclear=found.unclear[:_MAX_UNCLEAR],
        notes=found.notes,
        findings=[*_unread(evidence, readings, changes), *_missing_sweeps(evidence)],
        measured=_measured(evidence, readings),
        required="no damage, and no new device errors",
    )


def _of_files(found: Problems) -> Problems:
    """Return what rules found in files that no run wrote, and which may lack some readings."""

    def text(words: str) -> str:
        return words.removeprefix("before the run: ").removeprefix("before the run, ")

    problems = [replace(problem, message=text(problem.message)) for problem in found.problems]
    unclear = [
        replace(p, cause=Cause.PARTIAL_LOG) if p.cause is Cause.GPU_UNREPORTED else p
        for p in found.unclear
    ]
    return Problems(problems, unclear, [*map(text, found.notes)])


def _untested(message: str, cause: Cause, *hosts: str) -> Finding:
    judgement, state = Judgement.COMPLETENESS, State.NOT_TESTED
    return finding("health", judgement, state, message, cause, hosts=hosts)


def _unread(
    evidence: Evidence, readings: dict[str, Reading], changes: list[health.Sweep]
) -> Iterator[Finding]:
    """Yield findings for hosts that could not be read, from the start or later in the run."""
    by_reason: dict[str, list[str]] = {}
    for record in evidence.records:
        if record.hosts and not set(record.hosts) & set(readings):
            by_reason.setdefault("it reported nothing", []).append(record.hosts[0])
    for host, reading in readings.items():
        reasons = [gap.reason for gap in reading.unread if _makes_blind(evidence, gap)]
        if evidence.plan.machine.gpus != 0 and not reasons:
            if not any(device.kind is DeviceKind.GPU for device in reading.devices):
                reasons = ["GPUs (the job is shown none)"]
            elif not reading.reports_xids:
                reasons = ["Xids (neither the kernel log nor NVML's events)"]
        for reason in reasons:
            by_reason.setdefault(reason, []).append(host)
    for reason, hosts in by_reason.items():
        if evidence.plan.origin:
            judgement, state = Judgement.COMPLETENESS, State.INCONCLUSIVE
            text = f"the files of {host_list(hosts)} do not show {reason}"
            yield finding("health", judgement, state, text, Cause.PARTIAL_LOG, hosts=hosts)
            continue
        text = f"not read on {host_list(hosts)}: {reason}"
        yield _untested(text, Cause.TOOL_MISSING, *hosts)
    known = {host for hosts in by_reason.values() for host in hosts}
    for sweep in changes:
        gaps = [gap for gap in sweep.change.unread if _makes_blind(evidence, gap)]
        if gaps and sweep.host not in known:
            known.add(sweep.host)
            text = f"{sweep.when}: not read on {sweep.host}: {gaps[0].reason}"
            text += "; check whether nvidia-smi hangs there"
            yield _untested(text, Cause.NO_MEASUREMENT, sweep.host)


def _makes_blind(evidence: Evidence, gap: Gap) -> bool:
    """Return True if the check cannot judge a host with this gap."""
    if gap.devices in (Unread.GPUS, Unread.XIDS):
        return evidence.plan.machine.gpus != 0
    return gap.devices is Unread.ALL


def _missing_sweeps(evidence: Evidence) -> Iterator[Finding]:
    """Yield a finding if planned sweeps have no record."""
    if evidence.partial or evidence.interruption or not evidence.records or evidence.plan.origin:
        return
    planned = range(1, len(evidence.plan.steps) + 2)
    recorded = {record.wave for record in evidence.host_answers}
    missing = [sweep for sweep in planned if sweep not in recorded]
    if missing:
        text = f"{len(missing)} of {len(planned)} readings have no record"
        yield _untested(text, Cause.EVIDENCE_MISSING)


def _measured(evidence: Evidence, readings: dict[str, Reading]) -> str:
    """Return one line with the devices, the number of readings, and what was not readable."""
    kinds = Counter(device.kind for reading in readings.values() for device in reading.devices)
    gpus = count(kinds[DeviceKind.GPU], "GPU") if kinds[DeviceKind.GPU] else "no GPU"
    nics = count(kinds[DeviceKind.RDMA] + kinds[DeviceKind.NET], "NIC")
    hosts = count(len(readings), "node")
    if evidence.plan.origin:
        logs = count(sum(reading.log is not None for reading in readings.values()), "kernel log")
        read = sum(bool(d.levels) for r in readings.values() for d in r.devices)
        return f"{count(read, 'GPU')} and {logs} of {hosts}"
    sweeps = len({record.wave for record in evidence.host_answers} - {0})
    text = f"{gpus}, {nics} on {hosts}, {count(sweeps, 'reading')}"
    unread = Counter(gap.reason for reading in readings.values() for gap in reading.unread)
    if unread:
        text += f"; not readable: {', '.join(reason for reason, _ in unread.most_common(3))}"
    return text


HEALTH = Check(
    name="health",
    summary="damage of GPUs, links, NICs and memory, and their new errors while the steps run",
    template="health.sh.j2",
    params=Params,
    groups=(GroupKind.EACH,),
    facts=(HEALTH_READING, HEALTH_CHANGE, HEALTH_TOTAL),
    read_only=True,
    worth=90,
    parse=partial(record_protocol.parse, check="health"),
    judge=judge,
)

CHECKS = (HEALTH,)
