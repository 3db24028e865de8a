"""Faults that the tests inject, the back ends they run on, and what a test saw of each.

    @injects(Fault.SIGTERM, BackEnd.LOCAL, BackEnd.SSH)
    def test_sigterm_cancels_a_run(make_place, fault_record):
        ...
        fault_record.begins("workstation")
        os.kill(run.process.pid, signal.SIGTERM)
        done = fault_record.judged(run.wait(), place)

A test for one back end only has the mark `fault(Fault.HOST_LOST, BackEnd.SSH)`.
`python -m tests.reliability` turns the records into docs/reliability.md.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from enum import Enum, StrEnum
from typing import Any

import pytest
from tests.cluster.runs import Check, Done, Workstation


class BackEnd(StrEnum):
    """A back end, by its name in the table."""

    LOCAL = "local"
    SSH = "ssh"
    SLURM = "Slurm"
    KUBERNETES = "Kubernetes"


class Fault(Enum):
    """A fault by its description; and why some back ends cannot have it."""

    HOST_LOST = "a host loses power in a step"
    HOST_ABSENT = "a host is lost before the start"
    HOST_LOST_COLLECTING = "a host is lost while evidence is collected"
    FIRST_HOST_LOST = "the first host is lost in a step"
    RANK_HANGS = "a rank hangs"
    WRONG_DATA = "a rank sends wrong data"
    SLOW_LINK = "a link has half of its rate"
    LOSS = "a link loses 1 % of the packets"
    PAUSES = "a link goes down for 200 ms, every 2 s"
    HOST_DISK_FULL = "the disk of a host is full"
    FIRST_HOST_DISK_FULL = "the disk of the first host is full"
    WORKSTATION_DISK_FULL = "the disk of the workstation is full"
    BUCKET_DOWN = "the bucket is down for the whole run"
    BUCKET_DOWN_AT_END = "the bucket is down at the end"
    BUCKET_SLOW = "the bucket is slow"
    DNS_LATE = "DNS names appear late"
    API_AWAY = "the API server is away for 60 s"
    WORKSTATION_KILLED = "the workstation is killed"
    SIGTERM = "SIGTERM on the workstation"
    CTRL_C_TWICE = "Ctrl-C twice"
    CLOCK_SKEW = "the clock of a host is 1 h ahead"
    HOST_REBOOTED = "a host reboots in a step"
    TWO_RUNS = "two runs on the same hosts"
    PARTITION = "the first host is cut off from half of the others"


def injects(fault: Fault, *back_ends: BackEnd, ci: Iterable[BackEnd] = ()) -> pytest.MarkDecorator:
    """Run a test with a fault on each back end, for `make_place`; CI runs only those in `ci`."""
    return pytest.mark.parametrize(
        "back_end",
        [
            pytest.param(
                back_end,
                id=back_end.value,
                marks=[
                    pytest.mark.fault(fault, back_end),
                    *(() if back_end in ci else (pytest.mark.reliability,)),
                ],
            )
            for back_end in back_ends
        ],
    )


_ONE_HOST = "one host, without a network"
_NO_BUCKET = "writes to no bucket"
_NO_API = "no API server"

#: Why a back end cannot have a fault.
NO_SUCH_PART: dict[tuple[Fault, BackEnd], str] = {
    **{
        (fault, BackEnd.LOCAL): _ONE_HOST
        for fault in (
            Fault.HOST_LOST,
            Fault.HOST_ABSENT,
            Fault.HOST_LOST_COLLECTING,
            Fault.SLOW_LINK,
            Fault.LOSS,
            Fault.PAUSES,
            Fault.HOST_DISK_FULL,
            Fault.DNS_LATE,
            Fault.CLOCK_SKEW,
            Fault.HOST_REBOOTED,
            Fault.PARTITION,
        )
    },
    (Fault.FIRST_HOST_LOST, BackEnd.LOCAL): "the only host is the workstation",
    (Fault.FIRST_HOST_DISK_FULL, BackEnd.LOCAL): "the only host is the workstation",
    **{
        (fault, back_end): _NO_BUCKET
        for fault in (Fault.BUCKET_DOWN, Fault.BUCKET_DOWN_AT_END, Fault.BUCKET_SLOW)
        for back_end in (BackEnd.LOCAL, BackEnd.SSH, BackEnd.SLURM)
    },
    (Fault.CLOCK_SKEW, BackEnd.SLURM): "munge refuses clocks that differ, so the node is down",
    (Fault.DNS_LATE, BackEnd.SLURM): "Slurm uses no node whose name it cannot resolve",
    (Fault.API_AWAY, BackEnd.LOCAL): _NO_API,
    (Fault.API_AWAY, BackEnd.SSH): _NO_API,
}


@dataclass(frozen=True, kw_only=True)
class Observation:
    """The outcome of a run with a fault, as a test saw it: the cells of its row."""

    on: str
    state: str
    causes: str
    named: str
    exit: int
    #: From the fault to the verdict, or from the start of the run if the fault came before it.
    seconds: float
    evidence: bool
    left: str


class FaultRecord:
    """Record when the fault began and how the run was judged; the fixture saves it at the end."""

    def __init__(self) -> None:
        self._on = ""
        self._began = 0.0
        self._left = ""
        self._judged: tuple[Done, Workstation, Done] | None = None

    def begins(self, *on: str) -> None:
        """Note that the fault, or a run with it, begins now, and on which hosts or parts."""
        self._on = ", ".join(on)
        self._began = time.monotonic()

    def judged(self, done: Done, workstation: Workstation, verdict: Done | None = None) -> Done:
        """Note the end of the run; return it. `verdict`: that of `accept judge`, if another."""
        self._judged = done, workstation, verdict or done
        return done

    def leaves(self, text: str) -> None:
        """Note what the run leaves behind, and what removes it."""
        self._left = text

    def observation(self) -> Observation | None:
        """Return what was seen; None if the test did not come so far."""
        if self._judged is None:
            return None
        done, workstation, judged = self._judged
        return Observation(
            on=_for_readers(self._on),
            exit=done.exit,
            seconds=done.ended - self._began,
            evidence=Check.EVIDENCE in workstation.checked,
            left=self._left or ("nothing" if Check.NOTHING_LEFT in workstation.checked else ""),
            **_verdict(judged),
        )

    def save(self, record_property: Callable[[str, object], None]) -> None:
        """Write what was seen into the report of the test run."""
        if seen := self.observation():
            record_property(PROPERTY, json.dumps(asdict(seen)))


#: Properties of a test in the report: its observation, and names of its fault and back end.
PROPERTY, CELL = "observation", "cell"


def _verdict(done: Done) -> dict[str, str]:
    """Return state, causes and names of a verdict; of a run that did not start, its error."""
    if not done.out:
        codes = (word.partition("]")[0] for word in done.err.split("error[")[1:])
        return {"state": "no verdict", "causes": _listed(codes), "named": ""}
    result: Any = done.result
    causes = [each["cause"] for each in result["suspects"]] or sorted(done.causes())
    interruption = [result["interruption"]] if result.get("interruption") else []
    return {
        "state": result["state"],
        "causes": _listed([*causes, *interruption]),
        "named": _listed(_for_readers(each["name"]) for each in result["suspects"]),
    }


def _for_readers(text: str) -> str:
    """Return a text without the name of this machine, which has no meaning on the page."""
    return text.replace(os.uname().nodename, "localhost")


def _listed(texts: Iterable[str]) -> str:
    return ", ".join(dict.fromkeys(texts))
