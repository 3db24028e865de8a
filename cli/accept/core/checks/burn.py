"""Define the check `burn`: every GPU of a host under full load, with NVLink, until it is hot."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from accept.core import facts, record_protocol
from accept.core.catalog.metrics import Better, MetricSpec
from accept.core.catalog.tools import MPIRUN, TORCH
from accept.core.causes import Cause, Judgement
from accept.core.checks.check import Check, CheckParams, param
from accept.core.judge.devices import Measured, judge_devices
from accept.core.judge.effects.explanation import Normal
from accept.core.judge.evidence import Evidence, Judged
from accept.core.judge.findings import finding
from accept.core.judge.peers import Peer, compare_peers, far_from_median
from accept.core.judge.rounds import SIGMAS
from accept.core.judge.summary import params_of
from accept.core.model import Finding, GroupKind, Problem, State
from accept.core.table import rows_of
from accept.core.text import number, parse_size

#: Data types of the products: on GPUs, and on CPUs and old GPUs.
TYPES = ("bf16", "fp32")
#: Seconds to start Python, torch and NCCL, and to warm up.
_START_SECONDS = 8.0


@dataclass(frozen=True, kw_only=True)
class BurnParams(CheckParams):
    """Parameters of `burn`."""

    seconds: float = param(90.0, "seconds of products and all-gathers on all GPUs of each host")
    size: int = param(0, "rows and columns of the matrices; 0: by the device, 8192 on large GPUs")
    room: str = param("", "bytes that each all-gather delivers; empty: 256M, on a CPU 1M")
    # GPUs of one kind differ more at their power limit than in short measurements.
    noise: float = param(0.03, "noise floor when GPUs are compared, as a share of the median")

    def __post_init__(self) -> None:
        """Raise ValueError, which names the parameter, for invalid values."""
        if not 0 < self.seconds <= 86400:
            raise ValueError("seconds must be above 0 and at most 86400")
        if self.size and not 64 <= self.size <= 65536:
            raise ValueError(f"size must be 0, or from 64 to 65536, not {self.size}")
        if self.room and parse_size(self.room) < 1024:
            raise ValueError(f"room must be at least 1K, not {self.room}")
        if not 0 <= self.noise < 1:
            raise ValueError(f"noise must be at least 0 and below 1, not {self.noise}")

    def estimate(self, _hosts: int, _ranks: int) -> float:
        """Return the seconds of the load and of the start of its programs."""
        return _START_SECONDS + self.seconds


GATHER = MetricSpec(name="all-gather", unit="GB/s", better=Better.HIGHER, in_log=True)
MEDIAN_STEP = MetricSpec(name="step-p50", unit="s", better=Better.LOWER, in_log=True)
LONG_STEP = MetricSpec(name="step-p99", unit="s", better=Better.LOWER, in_log=True)
#: Fewer GPUs, or hosts, do not show what is normal for a value that nothing bounds.
_FEWEST_NOTED = 8
#: Long steps of one host alone, as a multiple of those of the others, are inconclusive from here.
_LONG = 1.5
#: Maximum number of GPUs or hosts in a note.
_MAX_NOTED = 8
#: Unit of a sampled value -> what it is.
_SAMPLED = {"W": "power", "C": "temperature"}


def judge(evidence: Evidence) -> Judged:
    """Pass if every GPU was correct and as fast as its peers, and no fault limited its clock."""
    names = {m.name for record in evidence.records for m in record.metrics}
    types = tuple(name for name in TYPES if name in names)
    measured = Measured(
        unit="TFLOP/s",
        rates=types,
        wrong={"wrong": Cause.WRONG_RESULT},
        others=(),
        needed=types[:1] or TYPES[:1],
    )
    noise = params_of(evidence, BurnParams).noise
    notes = [*_sampled_notes(evidence, noise), *_step_notes(evidence, noise)]
    return judge_devices(evidence, measured, noise=noise, more=_slow_links(evidence), notes=notes)


def _slow_links(evidence: Evidence) -> Iterator[Problem]:
    """Yield hosts whose GPUs exchanged data at less than half of the median of the hosts."""
    if not evidence.plan.machine.speed_promised:
        return
    peers = [
        Peer(row.hosts[0], row.value, log=row.log)
        for execution in evidence.executions
        for row in rows_of(execution, evidence.check, {GATHER.name})
        if row.is_plausible and row.hosts
    ]
    for outlier in compare_peers(peers, evidence.plan.machine.noise, uneven=True).bad:
        peer = peers[outlier.at]
        yield Problem(
            cause=outlier.cause,
            message=f"all-gathers under load on {peer.name}: {peer.value:.3g} "
            f"{GATHER.unit}, {outlier.text}",
            host=peer.name,
        )


def _far(values: Mapping[str, float], noise: float) -> tuple[Normal | None, list[str]]:
    """Return the peers, and the names far from their median, the farthest first."""
    return far_from_median(values, noise) if len(values) >= _FEWEST_NOTED else (None, [])


def _note(what: str, values: Mapping[str, float], peers: Normal, unit: str) -> str:
    listed = ", ".join(
        f"{name} {number(value)}" for name, value in list(values.items())[:_MAX_NOTED]
    )
    more = f" and {len(values) - _MAX_NOTED} more" if len(values) > _MAX_NOTED else ""
    text = f"{what} under load{unit and f' in {unit}'}, far from the others: {listed}{more}; the "
    margin = number(SIGMAS * peers.sigma * abs(peers.value))
    return f"{text}median of {peers.values} is {number(peers.value)}, and {margin} away is normal"


def _sampled_notes(evidence: Evidence, noise: float) -> Iterator[Finding]:
    """Yield notes on GPUs with unusual power or temperature, as in a hot aisle, and that is normal.

    What they cost is judged by itself: speed, and the reasons for lower clocks.
    """
    sampled: dict[str, dict[str, float]] = {unit: {} for unit in _SAMPLED}
    owners: dict[str, str] = {}
    for record in evidence.records:
        gpus = {metric.rank: metric.gpu for metric in record.metrics if metric.gpu}
        for fact, load in facts.LOAD.of(record):
            if fact.check == evidence.check and fact.rank in gpus and record.hosts:
                name = f"{record.hosts[0]}:{gpus[fact.rank]}"
                owners[name] = record.hosts[0]
                for unit in sampled.keys() & load.medians.keys():
                    sampled[unit][name] = load.medians[unit]
    for unit, values in sampled.items():
        peers, far = _far(values, noise)
        if peers and far:
            text = _note(f"{_SAMPLED[unit]} of GPUs", {n: values[n] for n in far}, peers, unit)
            hosts = (owners[name] for name in far)
            yield finding(evidence.check, Judgement.POPULATION, State.PASS, text, hosts=hosts)


def _step_notes(evidence: Evidence, noise: float) -> Iterator[Finding]:
    """Yield a note on hosts whose step times vary far more than those of the others.

    It is inconclusive if the long steps follow one host alone, and are half as long again as
    elsewhere. A host that is hot or at its power limit has smaller variations.
    """
    ratios: dict[str, float] = {}
    logs: dict[str, str] = {}
    for execution in evidence.executions:
        rows = rows_of(execution, evidence.check, {MEDIAN_STEP.name, LONG_STEP.name})
        times = {row.metric: row.value or 0.0 for row in rows if row.is_plausible}
        median, longest = times.get(MEDIAN_STEP.name, 0.0), times.get(LONG_STEP.name, 0.0)
        # Others are damaged: no step of 20 ms takes hours.
        if 0 < median <= longest < 1e6 * median and execution.record.hosts:
            ratios[execution.record.hosts[0]] = longest / median
            logs[execution.record.hosts[0]] = execution.record.log
    peers, far = _far(ratios, noise)
    far = [host for host in far if peers and ratios[host] > peers.value]
    if not peers or not far:
        return
    alone = len(far) == 1 and ratios[far[0]] > _LONG * peers.value
    what = f"{LONG_STEP.name} / {MEDIAN_STEP.name} of steps"
    text = _note(what, {host: ratios[host] for host in far}, peers, "")
    state = State.INCONCLUSIVE if alone else State.PASS
    yield finding(
        evidence.check,
        Judgement.POPULATION,
        state,
        text,
        Cause.INTERMITTENT if alone else None,
        hosts=far,
        logs=[logs[host] for host in far],
    )


BURN = Check(
    name="burn",
    summary="products and all-gathers on all GPUs of a host at once: speed, heat, power, clocks",
    template="burn.sh.j2",
    params=BurnParams,
    groups=(GroupKind.EACH,),
    needs=((MPIRUN,), (TORCH,)),
    metrics=(
        *(
            MetricSpec(name=f"{kind}{tail}", unit="TFLOP/s", better=Better.HIGHER)
            for tail in ("", "-p5", "-least", "-most")
            for kind in TYPES
        ),
        MetricSpec(name="wrong", unit="count"),
        GATHER,
        MEDIAN_STEP,
        LONG_STEP,
    ),
    facts=(facts.LOAD,),
    worth=50,
    parse=record_protocol.parse,
    judge=judge,
    devices=True,
    loads_gpus=True,
    faults={"flip": 1, "hang": 2, "full-disk": 1},
)

CHECKS = (BURN,)
