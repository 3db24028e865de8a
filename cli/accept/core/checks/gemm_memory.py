"""Define the checks `gemm` and `memory`, which measure every GPU by itself."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from accept.core import facts, record_protocol
from accept.core.catalog.metrics import Better, MetricSpec
from accept.core.catalog.tools import MPIRUN, TORCH
from accept.core.causes import Cause
from accept.core.checks.check import Check, CheckParams
from accept.core.facts import FactKind
from accept.core.judge.consistency import digest_problems, missing_digest_problems
from accept.core.judge.devices import Measured, judge_devices
from accept.core.judge.evidence import Evidence, Judged
from accept.core.judge.findings import problem_of
from accept.core.judge.summary import params_of
from accept.core.plan import GroupKind
from accept.core.records import Problem
from accept.core.serde import param
from accept.core.table import Row, rows_of
from accept.core.text import parse_size

#: Data types of `gemm`, in the order they are measured.
TYPES = ("bf16", "fp8", "tf32", "fp32")
#: As `Check.faults`. There is no "die", because it would leave the whole host without results.
FAULTS = {"flip": 1, "nan": 1, "hang": 2, "full-disk": 1}
#: Seconds to start Python and torch, and to make operands of the default size.
_START_SECONDS, _OPERAND_SECONDS, _DEFAULT_SIZE = 4.0, 2.0, 8192


#: Suffixes of a rate: none: median over time while all GPUs of a host work; -p5: slower only 5 % of
#: the time; -least and -most: extremes; -alone: while one GPU of the host works.
_TAILS = ("", "-p5", "-least", "-most")


def _rates(unit: str, *names: str) -> tuple[MetricSpec, ...]:
    """Return the metrics of rates that `windowed_timer.print_rates` prints."""
    full_names = (f"{name}{tail}" for tail in _TAILS for name in names)
    return tuple(MetricSpec(name=n, unit=unit, better=Better.HIGHER) for n in full_names)


@dataclass(frozen=True, kw_only=True)
class _DeviceParams(CheckParams):
    """Parameters of `gemm` and `memory`; each check ignores those of the other."""

    seconds: float = param(
        5.0,
        "seconds that all GPUs of a host work at once, for each data type and for copies",
        above=0,
        most=86400,
    )
    alone: float = param(
        0.5, "seconds that each GPU then works alone; 0: never", least=0, most=86400
    )
    types: str = param("", "data types of gemm, such as bf16,fp8; empty: all the hardware supports")
    size: int = param(
        0,
        "gemm: rows and columns; 0: by the device, 8192 on large GPUs",
        least=254,
        most=65536,
        or_zero=True,
    )
    share: float = param(
        0.9, "memory: share of a GPU's free memory that is tested", above=0, most=0.98
    )
    # Even on small GPUs, CUDA contexts and other programs leave more than half free.
    least: float = param(
        0.5,
        "memory: a GPU must test at least this part of `share` of its whole memory",
        least=0,
        most=1,
    )
    most: str = param("256M", "memory: upper limit of what a rank without a GPU tests")
    noise: float = param(
        0.02, "noise floor when GPUs are compared, as a share of the median", least=0, below=1
    )

    def __post_init__(self) -> None:
        """Raise ValueError, which names the parameter, for invalid values."""
        super().__post_init__()
        unknown = set(filter(None, self.types.split(","))) - set(TYPES)
        if unknown:
            raise ValueError(
                f"types: unknown type {sorted(unknown)[0]!r}; known types: {', '.join(TYPES)}"
            )
        if parse_size(self.most) < 1 << 20:
            raise ValueError(f"most must be at least 1M, not {self.most}")


class GemmParams(_DeviceParams):
    """Parameters of `gemm`."""

    def estimate(self, _hosts: int, ranks: int) -> float:
        """Return seconds: measure each type on all GPUs and alone, and prove its operands."""
        types = len(self.types.split(",")) if self.types else len(TYPES)
        prepare = _OPERAND_SECONDS * (self.size or _DEFAULT_SIZE) / _DEFAULT_SIZE
        return _START_SECONDS + types * (self.seconds + ranks * self.alone + prepare)


class MemoryParams(_DeviceParams):
    """Parameters of `memory`."""

    def estimate(self, _hosts: int, ranks: int) -> float:
        """Return seconds: copy and triad on all GPUs, copies alone, and 1 s per GPU for the rest.

        Without measurements alone, the rest takes 0.1 s per GPU.
        """
        rest = 1.0 if self.alone else 0.1
        return _START_SECONDS + 2 * self.seconds + ranks * (self.alone + rest)


def judge_gemm(evidence: Evidence) -> Judged:
    """Pass if every GPU computed correctly, met its bounds, and is as fast as its peers."""
    params = params_of(evidence, GemmParams)
    names = {m.name for record in evidence.records for m in record.metrics}
    types = tuple(name for name in TYPES if name in names or f"{name}-wrong" in names)
    measured = Measured(
        unit="TFLOP/s",
        rates=types,
        wrong={f"{name}-wrong": Cause.WRONG_RESULT for name in types},
        others=tuple(f"{name}{suffix}" for name in types for suffix in ("-p5", "-alone")),
        needed=tuple(filter(None, params.types.split(","))) or types[:1] or TYPES[:1],
    )
    more = (*digest_problems(evidence), *missing_digest_problems(evidence))
    return judge_devices(evidence, measured, noise=params.noise, more=more)


GEMM = Check(
    name="gemm",
    summary="matrix products on every GPU: TFLOP/s over time, and every element is checked",
    template="devices.sh.j2",
    params=GemmParams,
    groups=(GroupKind.EACH,),
    needs=((MPIRUN,), (TORCH,)),
    metrics=(
        *_rates("TFLOP/s", *TYPES, *(f"{kind}-alone" for kind in TYPES)),
        *(MetricSpec(name=f"{kind}-wrong", unit="count") for kind in TYPES),
    ),
    facts=(facts.DIGEST, facts.LOAD, facts.LEFT_OUT),
    launch="devices",
    program="devices",
    worth=70,
    parse=record_protocol.parse,
    judge=judge_gemm,
    devices=True,
    loads_gpus=True,
    faults=FAULTS,
)


WAYS = ("host-to-device", "device-to-host")
#: The same with memory that may belong to another NUMA node; without bounds and peers.
_FAR_WAYS = tuple(f"{way}-far" for way in WAYS)
#: Two kinds of rates are `uneven` on healthy GPUs. What all GPUs copy at once depends on shared
#: switches and on the sockets, and on some hosts the copies of single GPUs do, too. `p2p-least` is
#: the slowest of several short measurements and varies more than their median.
MEASURED = Measured(
    unit="GB/s",
    rates=("copy", "triad"),
    wrong={"wrong": Cause.WRONG_DATA},
    others=("copy-p5", "copy-alone", "p2p-out", "p2p-in"),
    needed=("copy", "triad", "tested"),
    uneven=(*WAYS, "host-both", "p2p-least"),
    by_first=("p2p-out", "p2p-in", "p2p-least"),
    shares=("p2p-least",),
)


#: Maximum GB/s of a PCI Express lane by generation: the GT/s of its Base Specification, less the
#: overhead of the encoding.
_LANE_GBPS = {1: 0.25, 2: 0.5, 3: 0.985, 4: 1.969, 5: 3.938, 6: 7.563}


@dataclass(frozen=True, kw_only=True)
class Pcie:
    """The PCIe link of a GPU while it carried data, and what the GPU supports; 0: unknown."""

    width: int
    widest: int
    generation: int
    latest: int


def _pcie(value: object) -> Pcie:
    keys = {
        "width": "width",
        "widest": "width-max",
        "generation": "generation",
        "latest": "generation-max",
    }
    return Pcie(**{name: facts.whole(facts.mapping(value).get(key)) for name, key in keys.items()})


PCIE = FactKind("pcie", _pcie)


def judge_memory(evidence: Evidence) -> Judged:
    """Pass if every GPU kept all patterns, met its bounds, and is as fast as its peers."""
    params = params_of(evidence, MemoryParams)
    more = [*_untested(evidence, params.share * params.least), *_degraded_links(evidence)]
    return judge_devices(evidence, MEASURED, noise=params.noise, more=more)


def _untested(evidence: Evidence, least: float) -> Iterator[Problem]:
    """Yield GPUs that tested less than `least` of their memory, and CPUs that tested nothing."""
    for execution in evidence.executions:
        for row in rows_of(execution, evidence.check, {"tested"}):
            share = row.value or 0.0
            if not share > 0 or (row.gpu and share < least):
                message = f"{share:.1%} of the memory of {row.device} was tested"
                message += f"; at least {least:.0%} is required" if row.gpu else ""
                yield problem_of(row, Cause.NO_MEASUREMENT, message)


def _degraded_links(evidence: Evidence) -> Iterator[Problem]:
    """Yield GPUs whose PCIe link was narrower or slower than possible while it carried data.

    A GPU whose copies were faster than such a link is not among them: the data took another path
    (NVLink-C2C), or the state of the link was read while it idled.
    """
    ways = (*WAYS, *_FAR_WAYS)
    for execution in evidence.executions:
        record = execution.record
        gpus = {m.rank: m.gpu for m in record.metrics if m.check == "memory" and m.gpu}
        for fact, link in PCIE.of(record):
            degraded = link.width < link.widest or link.generation < link.latest
            if fact.check != evidence.check or not (link.width and link.generation and degraded):
                continue
            capacity = link.width * _LANE_GBPS.get(link.generation, math.inf)
            rates = [m.value for m in record.metrics if m.rank == fact.rank and m.name in ways]
            if math.isinf(capacity) or max(rates, default=math.inf) > capacity:
                continue
            of = Row("memory", execution, host=fact.host, rank=fact.rank, gpu=gpus.get(fact.rank))
            message = f"{of.device} used PCIe generation {link.generation} with {link.width} lanes "
            message += f"for data; it supports generation {link.latest} with {link.widest} lanes"
            yield problem_of(of, Cause.PCIE_DEGRADED, message)


MEMORY = Check(
    name="memory",
    summary="memory of every GPU: bandwidth, a pattern test of nearly all bytes, copies in and out",
    template="devices.sh.j2",
    params=MemoryParams,
    groups=(GroupKind.EACH,),
    needs=((MPIRUN,), (TORCH,)),
    metrics=(
        *_rates("GB/s", "copy", "triad", "copy-alone", *WAYS, *_FAR_WAYS, "host-both"),
        # For information: a copy by the driver, whose speed differs between releases.
        MetricSpec(name="memcpy", unit="GB/s", better=Better.HIGHER),
        MetricSpec(name="p2p-out", unit="GB/s", better=Better.HIGHER),
        MetricSpec(name="p2p-in", unit="GB/s", better=Better.HIGHER),
        MetricSpec(name="p2p-least", unit=""),
        MetricSpec(name="tested", unit=""),
        MetricSpec(name="wrong", unit="count"),
    ),
    facts=(PCIE, facts.LEFT_OUT),
    launch="devices",
    program="devices",
    worth=65,
    parse=record_protocol.parse,
    judge=judge_memory,
    devices=True,
    loads_gpus=True,
    faults=FAULTS,
)

CHECKS = (GEMM, MEMORY)
