"""Memory of every GPU: bandwidth, whether it keeps what is written, and the ways in and out.

The program prints for every rank the metrics `copy` and `triad` (GB/s, medians over time; `-p5`,
`-least`, `-most` as well), `copy-alone`, `tested` (share of the memory that held a pattern) and
`wrong` (words that came back wrong); on GPUs `host-to-device` and `device-to-host`, and where a
host has several `p2p-out` and `p2p-in`, medians over the other GPUs, and `p2p-least`, its slowest
way as a share of what the two GPUs it joins usually reach.
"""

from __future__ import annotations

from collections.abc import Iterator

from accept.core import devices
from accept.core.checks import Check, Evidence, Judged
from accept.core.judge.complete import place
from accept.core.judge.devices import judge_devices
from accept.core.judge.slow_devices import Measured
from accept.core.judge.states import params_of
from accept.core.model import Problem

#: The rates of the ways to and from the host depend on the socket whose memory a rank was given, so
#: of equal GPUs half may be slower by a good part. The slowest of several ways, each measured for a
#: moment, varies more than their median.
MEASURED = Measured(
    unit="GB/s",
    rates=("copy", "triad"),
    wrong={"wrong": "wrong-data"},
    others=("copy-p5", "copy-alone", "p2p-out", "p2p-in"),
    needed=("copy", "triad", "tested"),
    uneven=("host-to-device", "device-to-host", "p2p-least"),
    by_first=("p2p-out", "p2p-in", "p2p-least"),
    shares=("p2p-least",),
)


def judge(evidence: Evidence) -> Judged:
    """Every GPU keeps what is written, reached its bounds, and is as fast as its equals."""
    params = params_of(evidence, devices.Params)
    more = _untested(evidence, params.share * params.least)
    return judge_devices(evidence, MEASURED, noise=params.noise, more=more)


def _untested(evidence: Evidence, least: float) -> Iterator[Problem]:
    """Devices of whose memory too little held a pattern; on a CPU it is little by design."""
    for record in evidence.records:
        for m in record.metrics:
            if m.check != "memory" or m.name != "tested":
                continue
            if not m.value > 0 or (m.gpu and m.value < least):
                said = f"{place(m.host, m.rank, m.gpu)}: {m.value:.1%} of the memory was tested"
                said += f", {least:.0%} is the least" if m.gpu else ""
                yield Problem(
                    cause="no-measurement", message=said, host=m.host, rank=m.rank, gpu=m.gpu
                )


CHECK = Check(
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
    judge=judge,
    devices=True,
    faults=devices.FAULTS,
)
