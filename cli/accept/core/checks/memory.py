"""Memory of every GPU: bandwidth, whether it keeps what is written, and the ways in and out.

The program prints for every rank the metrics `copy` and `triad` (GB/s, medians over time; `-p5`,
`-least`, `-most` as well), `copy-alone`, `tested` (share of the memory that held a pattern) and
`wrong` (words that came back wrong); on GPUs `host-to-device` and `device-to-host`, and where a
host has several `p2p-out` and `p2p-in`, medians over the other GPUs.
"""

from __future__ import annotations

from accept.core import devices
from accept.core.checks import Check, Evidence, Judged
from accept.core.judge.devices import judge_devices
from accept.core.judge.slow_devices import Measured
from accept.core.judge.states import params_of

#: The ways to and from the host are held against bounds alone: their rates depend on the socket
#: whose memory a rank was given, so of equal GPUs half may be slower by a good part.
MEASURED = Measured(
    unit="GB/s",
    rates=("copy", "triad"),
    wrong={"wrong": "wrong-data"},
    others=("copy-p5", "copy-alone", "p2p-out", "p2p-in"),
    needed=("copy", "triad"),
)


def judge(evidence: Evidence) -> Judged:
    """Every GPU keeps what is written, reached its bounds, and is as fast as its equals."""
    return judge_devices(evidence, MEASURED, noise=params_of(evidence, devices.Params).noise)


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
