"""Define records as plain data: what one execution of a step left.

`accept.core.serde` reads and writes all classes as JSON, as those of `accept.core.plan`.
"""

from __future__ import annotations

from dataclasses import dataclass

from accept.core import causes
from accept.core.causes import Cause
from accept.core.limits import HostName, LogPath, Ranks, RanksOfAll, StepName
from accept.core.text import TextEnum


class Placement(TextEnum):
    """The buffer for a collective's result: separate from its input, or the same."""

    OUT = "out"
    IN = "in"


@dataclass(frozen=True, kw_only=True, slots=True)
class Metric:
    """One measured number of one check."""

    check: str
    name: str
    value: float
    unit: str
    size: int | None = None
    host: HostName | None = None
    rank: int | None = None
    gpu: str | None = None
    #: The NIC that was measured alone.
    nic: str | None = None
    #: Only for collectives.
    placement: Placement | None = None
    algorithm: str | None = None


@dataclass(frozen=True, kw_only=True)
class Fact:
    """A report of a program that is not a measured number: an inventory, a rank's identity."""

    name: str
    #: Untrusted; `accept.core.facts` reads it.
    value: object
    check: str | None = None
    host: HostName | None = None
    rank: int | None = None


@dataclass(frozen=True, kw_only=True)
class Problem:
    """Something that went wrong, with a cause from the closed list (`accept.core.causes`)."""

    cause: Cause
    message: str
    check: str | None = None
    host: HostName | None = None
    rank: int | None = None
    gpu: str | None = None
    nic: str | None = None
    #: The known line that shows it, in `values/signs.yaml`.
    sign: str | None = None

    @staticmethod
    def adapt(data: dict[str, object]) -> dict[str, object]:
        """Return JSON data of any version with a cause that this version knows."""
        text, message = data.get("cause"), data.get("message")
        if not isinstance(text, str) or not isinstance(message, str):
            return data
        cause, message = causes.reported(text, message)
        return {**data, "cause": cause.value, "message": message}


@dataclass(frozen=True, kw_only=True)
class Parsed:
    """The contents of a raw log: the result of a check's `parse`."""

    metrics: tuple[Metric, ...] = ()
    facts: tuple[Fact, ...] = ()
    problems: tuple[Problem, ...] = ()


@dataclass(frozen=True, kw_only=True)
class FailedLaunch:
    """The first launch of an execution that was started once more."""

    message: str
    #: Its raw log, relative to the evidence folder.
    log: LogPath


@dataclass(frozen=True, kw_only=True)
class Record:
    """One execution of a step on one group."""

    #: The earlier attempt that it was copied from; empty: it was executed by this one.
    attempt: str = ""
    step: StepName
    checks: tuple[str, ...]
    wave: int
    group: int
    hosts: tuple[HostName, ...]
    #: Local ranks that took part; empty: all.
    local_ranks: tuple[Ranks, ...] = ()
    ranks: RanksOfAll = 0
    command: str = ""
    #: Exit status of the step script; None if it was killed or never started.
    exit: int | None = None
    start: float = 0.0
    #: Time at which the program began its work, after the launch; None if it did not report that.
    began: float | None = None
    end: float = 0.0
    #: Raw log, relative to the evidence folder.
    log: LogPath = ""
    #: The first launch if it failed, so that the execution was started once more.
    failed_launch: FailedLaunch | None = None
    metrics: tuple[Metric, ...] = ()
    facts: tuple[Fact, ...] = ()
    problems: tuple[Problem, ...] = ()

    def host_of(self, fact: Fact) -> HostName:
        """Return the host of a fact, or that of an execution on one host; empty: unknown."""
        return fact.host or (self.hosts[0] if len(self.hosts) == 1 else "")
