"""Define the check `burn`: every GPU of a host under full load, with NVLink, until it is hot."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from accept.core import facts, record_protocol
from accept.core.catalog.metrics import Better, MetricSpec
from accept.core.catalog.tools import MPIRUN, TORCH
from accept.core.causes import Cause, Judgement
from accept.core.checks.check import Check, CheckParams
from accept.core.judge.devices import Measured, judge_devices
from accept.core.judge.evidence import Evidence, Judged
from accept.core.judge.findings import finding
from accept.core.judge.peers import compare_rows, far_from_median
from accept.core.judge.summary import params_of
from accept.core.judge.values import SIGMAS
from accept.core.plan import GroupKind
from accept.core.records import Problem
from accept.core.serde import param
from accept.core.table import rows_of
from accept.core.text import number, parse_size, shortened
from accept.core.verdict import Finding, State

#: Data types of the products: on GPUs, and on CPUs and old GPUs.
TYPES = ("bf16", "fp32")
#: Seconds to start Python, torch and NCCL, and to warm up.
_START_SECONDS = 8.0


@dataclass(frozen=True, kw_only=True)
class BurnParams(CheckParams):
    """Parameters of `burn`."""

    seconds: float = param(
        90.0, "seconds of products and all-gathers on all GPUs of each host", above=0, most=86400
    )
    size: int = param(
        0,
        "rows and columns of the matrices; 0: by the device, 8192 on large GPUs",
        least=64,
        most=65536,
        or_zero=True,
    )
    room: str = param("", "bytes that each all-gather delivers; empty: 256M, on a CPU 1M")
    # GPUs of one kind differ more at their power limit than in short measurements.
    noise: float = param(
        0.03, "noise floor when GPUs are compared, as a share of the median", least=0, below=1
    )

    def __post_init__(self) -> None:
        """Raise ValueError, which names the parameter, for invalid values."""
        super().__post_init__()
        if self.room and parse_size(self.room) < 1024:
            raise ValueError(f"room must be at least 1K, not {self.room}")

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
    return judge_devices(
        evidence,
        measured,
        noise=noise,
        more=_slow_links(evidence),
        notes=_notes(evidence, noise),
    )


def _slow_links(evidence: Evidence) -> Iterator[Problem]:
    """Yield hosts whose GPUs exchanged data at less than half of the median of the hosts."""
    if not evidence.plan.machine.speed_promised:
        return
    rows = [
        row
        for execution in evidence.executions
        for row in rows_of(execution, evidence.check, {GATHER.name})
        if row.is_plausible and row.hosts
    ]
    for outlier in compare_rows(rows, evidence.plan.machine.noise, uneven=True)[0]:
        host, value = outlier.row.hosts[0], outlier.row.value
        text = f"all-gathers under load on {host}: {value:.3g} {GATHER.unit}, {outlier.text}"
        yield Problem(cause=outlier.cause, message=text, host=host)


#: Name of a GPU or host -> its host, its log and its value.
_Values = dict[str, tuple[str, str, float]]


def _far(
    evidence: Evidence, what: str, values: _Values, noise: float, *, long_steps: bool = False
) -> Iterator[Finding]:
    """Yield a note on the GPUs or hosts whose value is far from that of the others.

    `long_steps`: only higher values count, and are inconclusive if they follow one host alone.
    """
    of = {name: value for name, (_, _, value) in values.items()}
    normal, far = far_from_median(of, noise) if len(of) >= _FEWEST_NOTED else (None, [])
    far = [name for name in far if normal and not (long_steps and of[name] <= normal.value)]
    if normal is None or not far:
        return
    alone = long_steps and len(far) == 1 and of[far[0]] > _LONG * normal.value
    listed = shortened([f"{name} {number(of[name])}" for name in far], _MAX_NOTED)
    margin = number(SIGMAS * normal.sigma * abs(normal.value))
    text = f"{what}, far from the others: {listed}; the median of {normal.values} is "
    text += f"{number(normal.value)}, and {margin} away is normal"
    yield finding(
        evidence.check,
        Judgement.POPULATION,
        State.INCONCLUSIVE if alone else State.PASS,
        text,
        Cause.INTERMITTENT if alone else None,
        hosts=[values[name][0] for name in far],
        logs=[values[name][1] for name in far] if long_steps else (),
    )


def _notes(evidence: Evidence, noise: float) -> Iterator[Finding]:
    """Yield notes on unusual power or temperature of GPUs, and on hosts with long steps.

    What heat costs is judged by itself: speed, and the reasons for lower clocks. A host that is hot
    or at its power limit has smaller variations of its steps.
    """
    sampled: dict[str, _Values] = {unit: {} for unit in _SAMPLED}
    ratios: _Values = {}
    for execution in evidence.executions:
        record = execution.record
        host = record.hosts[0] if record.hosts else ""
        gpus = {metric.rank: metric.gpu for metric in record.metrics if metric.gpu}
        for fact, load in facts.LOAD.of(record) if host else ():
            if fact.check == evidence.check and fact.rank in gpus:
                for unit in sampled.keys() & load.medians.keys():
                    own = host, record.log, load.medians[unit]
                    sampled[unit][f"{host}:{gpus[fact.rank]}"] = own
        rows = rows_of(execution, evidence.check, {MEDIAN_STEP.name, LONG_STEP.name})
        times = {row.metric: row.value or 0.0 for row in rows if row.is_plausible}
        median, longest = times.get(MEDIAN_STEP.name, 0.0), times.get(LONG_STEP.name, 0.0)
        # Others are damaged: no step of 20 ms takes hours.
        if 0 < median <= longest < 1e6 * median and host:
            ratios[host] = host, record.log, longest / median
    for unit, values in sampled.items():
        yield from _far(evidence, f"{_SAMPLED[unit]} of GPUs under load in {unit}", values, noise)
    what = f"{LONG_STEP.name} / {MEDIAN_STEP.name} of steps under load"
    yield from _far(evidence, what, ratios, noise, long_steps=True)


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
