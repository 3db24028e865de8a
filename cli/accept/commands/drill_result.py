"""Define the result of a drill, as `drill.json` and `--json` have it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

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


class DrillReason(StrEnum):
    """The reason why a fault was left out, or why a run did not prove that it is detected."""

    TWO_HOSTS = "D-TWO-HOSTS"
    NO_NETWORK = "D-NO-NETWORK"
    BYPASSES_KERNEL = "D-BYPASSES-KERNEL"
    NOT_IN_SUITE = "D-NOT-IN-SUITE"
    TOO_FEW_RANKS = "D-TOO-FEW-RANKS"
    TOO_FEW_HOSTS = "D-TOO-FEW-HOSTS"
    NO_BOUND = "D-NO-BOUND"
    NO_PAIRS = "D-NO-PAIRS"
    NOT_INJECTED = "D-NOT-INJECTED"
    NOT_UNDONE = "D-NOT-UNDONE"
    NEVER_INJECTED = "D-NEVER-INJECTED"
    NOT_REJECTED = "D-NOT-REJECTED"
    BLAMES_NOBODY = "D-BLAMES-NOBODY"
    BLAMES_OTHERS = "D-BLAMES-OTHERS"
    OTHER_CAUSE = "D-OTHER-CAUSE"
    NO_VERDICT = "D-NO-VERDICT"


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
