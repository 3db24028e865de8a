"""Define the result of a drill, as `drill.json` and `--json` have it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from accept.core.error_codes import ExplainedCode
from accept.core.model import Suspect

SCHEMA = 1


class Result(StrEnum):
    """The result of injecting one fault."""

    #: Rejected for one of the fault's causes, and only the faulty part is blamed.
    CAUGHT = "caught"
    MISSED = "missed"
    #: Not injected.
    LEFT_OUT = "left-out"
    #: The run had no verdict.
    UNKNOWN = "unknown"


class DrillReason(ExplainedCode):
    """The reason why a fault was left out, or why a run did not prove that it is detected."""

    TWO_HOSTS = (
        "D-TWO-HOSTS",
        "The fault needs at least 2 hosts. Run the drill on more hosts.",
    )
    NO_NETWORK = (
        "D-NO-NETWORK",
        "The machine specifies no network transport, so the fault does not apply to it.",
    )
    BYPASSES_KERNEL = (
        "D-BYPASSES-KERNEL",
        (
            "The fault slows traffic through the kernel, and the traffic between GPUs bypasses the "
            "kernel. The fault does not apply to this machine."
        ),
    )
    NOT_IN_SUITE = (
        "D-NOT-IN-SUITE",
        "No check of the suite can detect the fault. Use a suite with such a check.",
    )
    TOO_FEW_RANKS = (
        "D-TOO-FEW-RANKS",
        (
            "The fault is detected by comparing ranks, and no step has enough of them. Run the "
            "drill on more hosts."
        ),
    )
    TOO_FEW_HOSTS = (
        "D-TOO-FEW-HOSTS",
        (
            "A slow host is detected by comparing hosts, and there are too few. The message states "
            "how many are needed."
        ),
    )
    NO_BOUND = (
        "D-NO-BOUND",
        (
            "With so few hosts, a slow one is detected only by a bound, and none is known. Give "
            "one with --expect, or use more hosts."
        ),
    )
    NO_PAIRS = (
        "D-NO-PAIRS",
        (
            "The suite has no collective on pairs or on each host, which finds a slow host. Use a "
            "suite with such a step."
        ),
    )
    NOT_INJECTED = (
        "D-NOT-INJECTED",
        "The host refused the fault, for the reason in the message.",
    )
    NOT_UNDONE = (
        "D-NOT-UNDONE",
        (
            "The fault was injected but could not be removed from the host, so nothing else of the "
            "run counts. Remove it by hand: docs/drill.md."
        ),
    )
    NEVER_INJECTED = (
        "D-NEVER-INJECTED",
        "No rank and no host reported the fault. Read the log of the run for the reason.",
    )
    NOT_REJECTED = (
        "D-NOT-REJECTED",
        "The run was not rejected although the fault was injected: the suite misses it.",
    )
    BLAMES_NOBODY = (
        "D-BLAMES-NOBODY",
        "The run was rejected, but the verdict does not name the faulty host.",
    )
    BLAMES_OTHERS = (
        "D-BLAMES-OTHERS",
        "The run was rejected, but the verdict blames a part without a fault.",
    )
    OTHER_CAUSE = (
        "D-OTHER-CAUSE",
        "The run was rejected, but for a cause that the fault cannot have.",
    )
    NO_VERDICT = (
        "D-NO-VERDICT",
        "The run with the fault ended without a verdict, for the reason in the message.",
    )


@dataclass(frozen=True, kw_only=True)
class Drilled:
    """One injected fault and its result."""

    fault: str
    #: The fault in the plan of its run, as FAULT@HOST:LOCALRANK; empty if it was left out.
    injected: str = ""
    #: HOST or HOST:LOCALRANK, the part of the run that it affects.
    target: str = ""
    #: Steps of the suite that should detect it.
    steps: tuple[str, ...] = ()
    result: Result
    #: What the run detected, or why the fault was missed or left out, or its result is unknown.
    why: str
    #: Code of that reason; None if the fault was caught.
    code: DrillReason | None = None
    #: The parts that the verdict blames.
    blamed: tuple[Suspect, ...] = ()
    #: Seconds from the start of the run (all hosts found) to the end of the step that detected it.
    after: float | None = None
    #: Duration of the run in seconds.
    seconds: float | None = None
    #: Attempt of its run, a folder in that of the drill.
    attempt: str = ""


@dataclass(frozen=True, kw_only=True)
class Drill:
    """Runs of a suite: first a clean one, then one for each injected fault."""

    schema: int
    drill: str
    machine: str
    suite: str
    backend: str
    seed: int
    hosts: tuple[str, ...]
    #: First line of the clean run's verdict, and its attempt.
    clean: str
    clean_attempt: str
    faults: tuple[Drilled, ...]
    #: Why the drill ended early; empty if it did not.
    interruption: str = ""
    exit: int
