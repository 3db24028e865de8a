"""Define the check `burn`: every GPU of a host under full load, with NVLink, until it is hot."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from accept.core import facts, record_protocol
from accept.core.catalog.metrics import Better, MetricSpec
from accept.core.catalog.tools import MPIRUN, TORCH
from accept.core.causes import Cause
from accept.core.checks.check import Check, CheckParams, param
from accept.core.judge.devices import UNEVEN_NOISE, Measured, judge_devices
from accept.core.judge.evidence import Evidence, Judged
from accept.core.judge.outliers import Sample, outliers
from accept.core.judge.summary import params_of
from accept.core.model import GroupKind, Problem
from accept.core.table import rows_of
from accept.core.text import parse_size

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
    return judge_devices(evidence, measured, noise=noise, more=_slow_links(evidence))


def _slow_links(evidence: Evidence) -> Iterator[Problem]:
    """Yield hosts whose GPUs exchanged data at less than half of the median of the hosts."""
    if not evidence.plan.machine.speed_promised:
        return
    samples = [
        Sample(row.hosts, row.value, None, row.log)
        for execution in evidence.executions
        for row in rows_of(execution, evidence.check, {GATHER.name})
        if row.is_plausible
    ]
    for index, outlier in outliers(samples, UNEVEN_NOISE, fixed=True).bad.items():
        sample = samples[index]
        yield Problem(
            cause=outlier.cause,
            message=f"all-gathers under load on {sample.hosts[0]}: {sample.value:.3g} "
            f"{GATHER.unit}, {outlier.share}",
            host=sample.hosts[0],
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
        MetricSpec(name="step-p50", unit="s", better=Better.LOWER, in_log=True),
        MetricSpec(name="step-p99", unit="s", better=Better.LOWER, in_log=True),
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
