"""Memory of every GPU: bandwidth, whether it keeps what is written, and the ways in and out.

The program prints for every rank the metrics `copy` and `triad` (GB/s, medians over time; `-p5`,
`-least`, `-most` as well), `copy-alone`, `tested` (share of the memory that held a pattern) and
`wrong` (words that came back wrong); on GPUs `host-to-device` and `device-to-host`, and where a
host has several `p2p-out` and `p2p-in`, medians over the other GPUs, and `p2p-least`, its slowest
way as a share of what the two GPUs it joins usually reach.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from accept.core.checks import Check, devices
from accept.core.judge.completeness import place
from accept.core.judge.devices import judge_devices
from accept.core.judge.evidence import Evidence, Judged
from accept.core.judge.slow_devices import Measured
from accept.core.judge.states import params_of
from accept.core.model import Problem

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
    params = params_of(evidence, devices.Params)
    more = [*_untested(evidence, params.share * params.least), *_narrow(evidence)]
    return judge_devices(evidence, MEASURED, noise=params.noise, more=more)


def _untested(evidence: Evidence, least: float) -> Iterator[Problem]:
    """Devices of whose memory too little held a pattern; on a CPU it is little by design."""
    for record in evidence.records:
        for m in record.metrics:
            if m.check != "memory" or m.name != "tested":
                continue
            if not m.value > 0 or (m.gpu and m.value < least):
                said = f"{m.value:.1%} of the memory of {place(m.host, m.rank, m.gpu)} was tested"
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
            said = f"{place(fact.host, fact.rank, gpu)} used PCIe generation {generation} with "
            said += f"{width} lanes for data; it supports generation {latest} with {widest} lanes"
            yield Problem(
                cause="pcie-degraded", message=said, host=fact.host, rank=fact.rank, gpu=gpu
            )


MEMORY = Check(
    name="memory",
    summary="memory of every GPU: bandwidth, a pattern test over nearly all of it, ways in and out",
    template="devices.sh.j2",
    params=devices.Params,
    groups=("each",),
    needs=("mpirun", "torch"),
    launch="devices",
    worth=65,
    estimate=devices.memory_seconds,
    parse=devices.parse,
    judge=judge_memory,
    devices=True,
    faults=devices.FAULTS,
)
CHECK = MEMORY
