"""What GPUs, links, NICs and memory count while the steps run: the change is judged, not the level.

Its step takes one whole reading of every host, the fact `health` of `launchers/programs/health.py`.
That the plan has it makes the coordinator read the same before every step and after the last: fact
`health-change` of a host whose counters moved since the reading before, and after the last step
`health-total`, over the whole run, of the counters that nobody is blamed for.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, fields

from accept.core import record_protocol
from accept.core.checks.check import Check, param
from accept.core.health_readings import Reading, reading_of
from accept.core.judge import completeness, health
from accept.core.judge.evidence import Evidence, Judged
from accept.core.judge.health import Limits
from accept.core.judge.summary import params_of, verdict_of
from accept.core.judge.suspects import from_problems
from accept.core.model import Finding, Parsed, Problem, State
from accept.core.serde import camel

#: Most notes that a verdict holds.
_NOTES = 20


@dataclass(frozen=True, kw_only=True)
class Params(Limits):
    """Parameters of `health`.

    NVLink: CRC errors matter at 100 a second, and replays and recoveries from the first on; PCIe: 8
    replays a minute are the most that is recommended (NVIDIA/DCGM, DCGM_LIMIT_MAX_NVLINK_CRC_ERROR,
    DCGM_LIMIT_MAX_NVLINK_ERROR, DCGM_LIMIT_MAX_PCIREPLAY_RATE). facebookresearch/gcm tolerates no
    replay and no recovery either (check-dcgmi nvlink, thresholds 0). Ports: 1e-12 errors a bit is
    where ibdiagnet draws its line (its user manual, --ber_thresh).
    """

    nvlink_crc_per_second: float = param(
        100.0, "CRC errors a second of an NVLink that are no fault"
    )
    pcie_replays_per_minute: float = param(8.0, "replays a minute of a PCIe link that are no fault")
    bit_error_ratio: float = param(1e-12, "errors a bit of a port that are no fault")
    # The standard deviation of a count of ten is three: of fewer no rate can be told.
    few: int = param(10, "errors of a port in one step that are too few to be a rate")
    # What takes less of a step is below the noise of a measurement; DCGM failed GPUs for 0.0 s
    # (NVIDIA/DCGM issue 242).
    limited_share: float = param(0.01, "share of a step that a GPU may be slowed for, but by power")

    def __post_init__(self) -> None:
        """Raise ValueError for a limit that is none."""
        for item in fields(self):
            if (value := getattr(self, item.name)) < 0:
                raise ValueError(f"{camel(item.name)} must be at least 0, not {value}")


def estimate(_params: Params, _hosts: int, _ranks: int) -> float:
    """Seconds: it reads files and asks the driver."""
    return 2.0


def parse(lines: Iterable[bytes]) -> Parsed:
    """The facts of one host."""
    return record_protocol.parse(lines, check="health")


def readings_of(evidence: Evidence) -> dict[str, Reading]:
    """The whole reading of each host."""
    found = {}
    for record in evidence.records:
        for host in record.hosts:
            facts = [f for f in record.facts if f.name == "health" and f.host in (None, host)]
            if facts:
                found[host] = reading_of(facts)
    return found


def judge(evidence: Evidence) -> Judged:
    """Nothing broke while the steps ran, and everything that could tell was read."""
    limits = params_of(evidence, Params)
    readings = readings_of(evidence)
    said = list(health.said(evidence.asked, evidence.plan.steps))
    problems: list[Problem] = [p for one in said for p in health.problems(one, limits)]
    findings = completeness.step_findings(evidence)
    findings += completeness.problem_findings(evidence, more=problems)
    findings += [*_unread(evidence, readings, said), *_sweeps(evidence)]
    notes = [n for host, reading in readings.items() for n in health.before_the_run(host, reading)]
    notes += [note for one in said for note in health.notes(one, limits)]
    findings += [_finding(State.PASS, note, None) for note in notes[:_NOTES]]
    if len(notes) > _NOTES:
        findings.append(_finding(State.PASS, f"{len(notes) - _NOTES} more notes", None))
    verdict = verdict_of(
        evidence,
        findings,
        measured=_measured(evidence, readings),
        against="no device breaks while a step runs",
    )
    return Judged(verdict, tuple(from_problems(problems, "", len(evidence.hosts))))


def _finding(state: State, message: str, cause: str | None, hosts: Iterable[str] = ()) -> Finding:
    return Finding(
        check="health",
        judgement="consistency" if state is State.PASS else "completeness",
        state=state,
        cause=cause,
        message=message,
        hosts=tuple(hosts),
    )


def _unread(
    evidence: Evidence, readings: dict[str, Reading], said: list[health.Said]
) -> Iterator[Finding]:
    """Hosts of which nothing is known, at first or from some moment on: they are not tested."""
    silent = [r.hosts[0] for r in evidence.records if r.hosts and not set(r.hosts) & set(readings)]
    missing: dict[str, list[str]] = {}
    for host in silent:
        missing.setdefault("it said nothing", []).append(host)
    for host, reading in readings.items():
        for why in reading.unread:
            if _blind(evidence, why):
                missing.setdefault(why, []).append(host)
        seen = any(device.kind == "gpu" for device in reading.devices)
        blind = any(_blind(evidence, why) for why in reading.unread)
        if evidence.plan.machine.gpus != 0 and not seen and not blind:
            missing.setdefault("GPUs (the driver shows none)", []).append(host)
    for why, hosts in missing.items():
        message = f"not read on {completeness.host_list(hosts)}: {why}"
        yield _finding(State.NOT_TESTED, message, "tool-missing", hosts)
    later: dict[str, tuple[str, str]] = {}
    for one in said:
        for why in one.change.unread:
            if _blind(evidence, why) and not any(one.host in known for known in missing.values()):
                later.setdefault(one.host, (one.when, why))
    for host, (when, why) in later.items():
        message = f"{when}: not read on {host}: {why}; does nvidia-smi hang there?"
        yield _finding(State.NOT_TESTED, message, "no-measurement", (host,))


def _blind(evidence: Evidence, why: str) -> bool:
    """Whether a reason means that the check has nothing to go by: all of it, or the GPUs."""
    return why.startswith("anything") or (why.startswith("GPU") and evidence.plan.machine.gpus != 0)


def _sweeps(evidence: Evidence) -> Iterator[Finding]:
    """Sweeps that the plan has and the records have not."""
    if evidence.partial or evidence.broken_off or not evidence.records:
        return
    seen = {record.wave for record in evidence.asked}
    lacking = [n for n in range(1, len(evidence.plan.steps) + 2) if n not in seen]
    if lacking:
        message = f"{len(lacking)} of {len(evidence.plan.steps) + 1} readings have no record"
        yield _finding(State.NOT_TESTED, message, "evidence-missing")


def _measured(evidence: Evidence, readings: dict[str, Reading]) -> str:
    """One line: what was watched, how often, and what could not be."""
    kinds = Counter(device.kind for reading in readings.values() for device in reading.devices)
    gpus = _many(kinds["gpu"], "GPU") if kinds["gpu"] else "no GPU"
    nics, hosts = _many(kinds["rdma"] + kinds["net"], "NIC"), _many(len(readings), "host")
    times = len({record.wave for record in evidence.asked} - {0})
    text = f"{gpus}, {nics} on {hosts}, read {_many(times, 'time')}"
    unread = Counter(why for reading in readings.values() for why in reading.unread)
    if unread:
        text += f"; not read: {', '.join(why for why, _ in unread.most_common(3))}"
    return text


def _many(count: int, what: str) -> str:
    return f"{count} {what}{'s' * (count != 1)}"


HEALTH = Check(
    name="health",
    summary="errors that GPUs, links, NICs and memory count while the steps run",
    template="health.sh.j2",
    params=Params,
    groups=("each",),
    needs=("sh",),
    worth=90,
    estimate=estimate,
    parse=parse,
    judge=judge,
)

CHECKS = (HEALTH,)
