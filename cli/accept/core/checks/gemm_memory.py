"""Define the checks `gemm` and `memory`, which measure every GPU by itself."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from accept.core import record_protocol
from accept.core.checks.check import Check, param
from accept.core.judge.completeness import device_label
from accept.core.judge.consistency import digest_problems, missing_digest_problems
from accept.core.judge.devices import Measured, judge_devices
from accept.core.judge.evidence import Evidence, Judged
from accept.core.judge.summary import params_of
from accept.core.model import Parsed, Problem
from accept.core.text import parse_size

#: Data types of `gemm`, in the order they are measured.
TYPES = ("bf16", "fp8", "tf32", "fp32")
#: As `Check.faults`. One that dies leaves all of its host without a figure.
FAULTS = {"flip": 1, "nan": 1, "hang": 2, "full-disk": 1}
#: Starting Python and torch, and making operands of the default size, in seconds.
_START, _PREPARE, _SIZE = 4.0, 2.0, 8192


@dataclass(frozen=True, kw_only=True)
class Params:
    """Parameters of `gemm` and `memory`; each reads those that concern it."""

    seconds: float = param(
        5.0, "how long all GPUs of a host work at once: for each data type, and for copies"
    )
    alone: float = param(0.5, "how long each GPU then works alone; 0: not at all")
    types: str = param("", "data types of gemm, such as bf16,fp8; empty: what the hardware has")
    size: int = param(0, "gemm: rows and columns; 0: by the device, 8192 on large GPUs")
    share: float = param(0.9, "memory: share of a GPU's free memory that is tested")
    # What contexts of CUDA and other programs hold leaves more than half even of small GPUs.
    least: float = param(0.5, "memory: how much of that share of all its memory a GPU must test")
    most: str = param("256M", "memory: what a rank without a GPU tests, at most")
    noise: float = param(0.02, "noise floor when GPUs are compared, as a share of the median")

    def __post_init__(self) -> None:
        """Raise ValueError, naming the parameter, for what cannot be run."""
        if not 0 < self.seconds <= 86400 or not 0 <= self.alone <= 86400:
            raise ValueError("seconds must lie between 0 and 86400, alone be at least 0")
        unknown = set(filter(None, self.types.split(","))) - set(TYPES)
        if unknown:
            raise ValueError(f"types: no type {sorted(unknown)[0]!r}; known: {', '.join(TYPES)}")
        if self.size and not 254 <= self.size <= 65536:
            raise ValueError(f"size must be 0, or from 254 to 65536, not {self.size}")
        if not 0 < self.share <= 0.98:
            raise ValueError(f"share must lie between 0 and 0.98, not {self.share}")
        if not 0 <= self.least <= 1:
            raise ValueError(f"least must lie between 0 and 1, not {self.least}")
        if parse_size(self.most) < 1 << 20:
            raise ValueError(f"most must be at least 1M, not {self.most}")
        if not 0 <= self.noise < 1:
            raise ValueError(f"noise must lie between 0 and 1, not {self.noise}")


def gemm_seconds(params: Params, _hosts: int, ranks: int) -> float:
    """Seconds: each type at once and alone, and what making and proving its matrices takes."""
    kinds = len(params.types.split(",")) if params.types else len(TYPES)
    prepare = _PREPARE * (params.size or _SIZE) / _SIZE
    return _START + kinds * (params.seconds + ranks * params.alone + prepare)


def memory_seconds(params: Params, _hosts: int, ranks: int) -> float:
    """Seconds: copy and triad at once, copies alone, and a second a GPU for the rest."""
    return _START + 2 * params.seconds + ranks * (params.alone + (1.0 if params.alone else 0.1))


def parse(lines: Iterable[bytes]) -> Parsed:
    """The records of all devices, which name their check; serves both."""
    return record_protocol.parse(lines)


def judge_gemm(evidence: Evidence) -> Judged:
    """Every GPU computed right, reached its bounds, and is as fast as its equals."""
    params = params_of(evidence, Params)
    seen = {m.name for record in evidence.records for m in record.metrics}
    kinds = tuple(kind for kind in TYPES if kind in seen or f"{kind}-wrong" in seen)
    measured = Measured(
        unit="TFLOP/s",
        rates=kinds,
        wrong={f"{kind}-wrong": "wrong-result" for kind in kinds},
        others=tuple(f"{kind}{tail}" for kind in kinds for tail in ("-p5", "-alone")),
        needed=tuple(filter(None, params.types.split(","))) or kinds[:1] or TYPES[:1],
    )
    more = (*digest_problems(evidence), *missing_digest_problems(evidence))
    return judge_devices(evidence, measured, noise=params.noise, more=more)


GEMM = Check(
    name="gemm",
    summary="matrix products on every GPU: TFLOP/s over time, and every element is right",
    template="devices.sh.j2",
    params=Params,
    groups=("each",),
    needs=("mpirun", "torch"),
    launch="devices",
    worth=70,
    estimate=gemm_seconds,
    parse=parse,
    judge=judge_gemm,
    devices=True,
    faults=FAULTS,
)


WAYS = ("host-to-device", "device-to-host")
#: The rates of the ways to and from the host depend on the socket whose memory a rank was given, so
#: of equal GPUs half may be slower by a good part. The slowest of several ways, each measured for a
#: moment, varies more than their median.
MEASURED = Measured(
    unit="GB/s",
    rates=("copy", "triad"),
    wrong={"wrong": "wrong-data"},
    others=("copy-p5", "copy-alone", "p2p-out", "p2p-in"),
    needed=("copy", "triad", "tested"),
    uneven=(*WAYS, "p2p-least"),
    by_first=("p2p-out", "p2p-in", "p2p-least"),
    shares=("p2p-least",),
)


#: GB/s that a lane of PCI Express carries at most, by generation: GT/s of its Base Specification,
#: less what coding takes.
_LANE = {1: 0.25, 2: 0.5, 3: 0.985, 4: 1.969, 5: 3.938, 6: 7.563}


def judge_memory(evidence: Evidence) -> Judged:
    """Every GPU keeps what is written, reached its bounds, and is as fast as its equals."""
    params = params_of(evidence, Params)
    more = [*_untested(evidence, params.share * params.least), *_narrow(evidence)]
    return judge_devices(evidence, MEASURED, noise=params.noise, more=more)


def _untested(evidence: Evidence, least: float) -> Iterator[Problem]:
    """Devices of whose memory too little held a pattern; on a CPU it is little by design."""
    for record in evidence.records:
        for m in record.metrics:
            if m.check != "memory" or m.name != "tested":
                continue
            if not m.value > 0 or (m.gpu and m.value < least):
                device = device_label(m.host, m.rank, m.gpu)
                said = f"{m.value:.1%} of the memory of {device} was tested"
                said += f"; at least {least:.0%} is required" if m.gpu else ""
                yield Problem(
                    cause="no-measurement", message=said, host=m.host, rank=m.rank, gpu=m.gpu
                )


def _narrow(evidence: Evidence) -> Iterator[Problem]:
    """GPUs whose PCIe link was less than it can be while it carried data.

    Where more arrived than such a link carries, they came another way (NVLink-C2C), or it was read
    at a moment of rest.
    """
    for record in evidence.records:
        gpus = {m.rank: m.gpu for m in record.metrics if m.check == "memory" and m.gpu}
        for fact in record.facts:
            if fact.name != "pcie" or fact.check != "memory" or not isinstance(fact.value, dict):
                continue
            width, widest, generation, latest = (
                value if isinstance(value := fact.value.get(name), int) else 0
                for name in ("width", "width-max", "generation", "generation-max")
            )
            if not width or not generation or (width >= widest and generation >= latest):
                continue
            carried = width * _LANE.get(generation, math.inf)
            ways = [m.value for m in record.metrics if m.rank == fact.rank and m.name in WAYS]
            if math.isinf(carried) or max(ways, default=math.inf) > carried:
                continue
            gpu = gpus.get(fact.rank)
            said = (
                f"{device_label(fact.host, fact.rank, gpu)} used PCIe generation {generation} with "
            )
            said += f"{width} lanes for data; it supports generation {latest} with {widest} lanes"
            yield Problem(
                cause="pcie-degraded", message=said, host=fact.host, rank=fact.rank, gpu=gpu
            )


MEMORY = Check(
    name="memory",
    summary="memory of every GPU: bandwidth, a pattern test over nearly all of it, ways in and out",
    template="devices.sh.j2",
    params=Params,
    groups=("each",),
    needs=("mpirun", "torch"),
    launch="devices",
    worth=65,
    estimate=memory_seconds,
    parse=parse,
    judge=judge_memory,
    devices=True,
    faults=FAULTS,
)

CHECKS = (GEMM, MEMORY)
