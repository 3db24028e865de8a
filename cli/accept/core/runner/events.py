"""Report the progress of a run as records in its log or in a file, for a program that shows it."""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from accept.core.records import Record
from accept.core.runner.clock import now
from accept.core.runner.log import show
from accept.core.serde import Invalid, dump, read
from accept.core.text import TextEnum

_MARK = "ACCEPT "
#: Environment variable with the path of the file of the records, if the log is for people.
FILE = "ACCEPT_PROGRESS"
#: Maximum length of a record, and maximum number of suspects in one.
_MAX_LINE, _MAX_SUSPECTS = 4096, 8
#: Shortest time between two records on the groups of one wave.
_SECONDS = 5.0


class EventKind(TextEnum):
    """Something that happened in a run."""

    #: The hosts were found.
    HOSTS = "hosts"
    STEP_BEGAN = "step-began"
    #: A wave began, ended, or some of its groups ended.
    WAVE = "wave"
    STEP_ENDED = "step-ended"
    #: An earlier attempt has finished the step.
    STEP_KEPT = "step-kept"
    #: The step was not needed.
    STEP_LEFT_OUT = "step-left-out"
    #: The rest of the log is the verdict.
    VERDICT = "verdict"


@dataclass(frozen=True, kw_only=True)
class Event:
    """The progress of a run at one time."""

    event: EventKind
    #: Unix time on the host of the coordinator.
    time: float = field(default_factory=now)
    #: The id of the step.
    step: str = ""
    #: The wave, counted from 1, and the number of waves that are planned so far.
    wave: int = 0
    waves: int = 0
    #: Hosts, or groups of a wave or step: those that are done, and all.
    done: int = 0
    total: int = 0
    #: Groups of the step with problems.
    bad: int = 0
    #: True if the wave measures outliers again.
    again: bool = False
    #: Hosts that findings of the step name.
    suspects: tuple[str, ...] = ()
    #: What the step measured, for people: "all-reduce 478 to 484 GB/s".
    figures: tuple[str, ...] = ()


def report(event: Event) -> None:
    """Write a record to the file in the environment variable `FILE`; without it, to the log."""
    line = _MARK + json.dumps(dump(event), separators=(",", ":"))
    if not (file := os.environ.get(FILE)):
        show(line)
        return
    # A full disk must not end a run that only reports its progress.
    with contextlib.suppress(OSError), Path(file).open("a", encoding="utf-8") as log:
        log.write(line + "\n")


def parse_event(line: str) -> Event | None:
    """Return the event of a line of a log; None for any other line."""
    if not line.startswith(_MARK + '{"event"') or len(line) > _MAX_LINE:
        return None
    try:
        return read(Event, json.loads(line[len(_MARK) :]))
    except (Invalid, ValueError, RecursionError):
        return None


def few(hosts: Sequence[str]) -> tuple[str, ...]:
    """Return each host once, up to the number that one record may contain."""
    return tuple(dict.fromkeys(hosts))[:_MAX_SUSPECTS]


def has_failed(record: Record) -> bool:
    """Return True if an execution failed or has problems."""
    return record.exit != 0 or bool(record.problems)


def wave_reporter(
    step: str, *, wave: int, waves: int, total: int, bad: int, again: bool
) -> Callable[[Record | None], None]:
    """Report the start of a wave, and return a function that reports each group when it ends.

    `bad` counts the groups of earlier waves of the step. A group without a record counts as done.
    """
    done, reported = 0, time.monotonic()

    def event() -> Event:
        return Event(
            event=EventKind.WAVE,
            step=step,
            wave=wave,
            waves=waves,
            done=done,
            total=total,
            bad=bad,
            again=again,
        )

    def ended(record: Record | None) -> None:
        nonlocal done, bad, reported
        done += 1
        bad += record is not None and has_failed(record)
        if done == total or time.monotonic() - reported >= _SECONDS:
            reported = time.monotonic()
            report(event())

    report(event())
    return ended
