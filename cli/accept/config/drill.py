"""What a drill came to, as `drill.json` keeps it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

SCHEMA = 1

Result = Literal["caught", "missed", "left-out", "unknown"]


@dataclass(frozen=True, kw_only=True)
class Drilled:
    """One fault, and what became of it."""

    fault: str
    #: As the plan of its run carries it (FAULT@HOST:LOCALRANK); empty where it was left out.
    planted: str = ""
    #: Steps of the suite that are to see it.
    steps: tuple[str, ...] = ()
    #: Caught: rejected for one of its causes, and blamed on whom it was planted on and nobody else.
    result: Result
    #: What was seen; why it was missed, left out, or is not known.
    why: str
    #: Whom the verdict blames, as "NAME: CAUSE".
    blamed: tuple[str, ...] = ()
    #: Seconds from the start of the run, its hosts found, to the end of the step that showed it.
    after: float | None = None
    #: What the run took, in seconds.
    seconds: float | None = None
    #: Attempt of its run, in the folder of the drill.
    attempt: str = ""


@dataclass(frozen=True, kw_only=True)
class Drill:
    """A suite run clean and then with faults planted one by one."""

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
    #: Why it ended early, where it did.
    broken_off: str = ""
    exit: int
