"""Parse faults to inject (`FAULT@HOST[:LOCALRANK]`), and define the result of a drill."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from accept.core.catalog.faults import FAULTS, Fault, Injector, Scope
from accept.core.error_codes import Code
from accept.core.errors import BadInput
from accept.core.model import Suspect
from accept.core.serde import escaped, known

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


@dataclass(frozen=True, kw_only=True)
class Drilled:
    """One injected fault and its result."""

    fault: str
    #: The fault in the plan of its run, as FAULT@HOST:LOCALRANK; empty if it was left out.
    injected: str = ""
    #: Steps of the suite that should detect it.
    steps: tuple[str, ...] = ()
    result: Result
    #: What the run detected, or why the fault was missed or left out, or its result is unknown.
    why: str
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


#: FAULT@HOST[:LOCALRANK]; a host is also `*` for all, or `#N` by its number from 0.
_FORM = re.compile(
    r"(?P<fault>[a-z][a-z-]*)@(?P<host>[A-Za-z0-9_][A-Za-z0-9_.-]*|\*|#[0-9]{1,4})"
    r"(?P<rank>:[0-9]{1,3})?"
)
_SYNTAX = {
    Scope.RANK: "FAULT@HOST:LOCALRANK",
    Scope.HOST: "FAULT@HOST",
    Scope.EVERYWHERE: "FAULT@*",
}


def _hint() -> str:
    """Return the syntax of each scope, with its faults."""
    faults = {s: ", ".join(f.name for f in FAULTS.values() if f.scope is s) for s in Scope}
    forms = [f"{_SYNTAX[scope]} ({faults[scope]})" for scope in Scope]
    return f"write {', '.join(forms[:-1])} or {forms[-1]}"


def parse_faults(texts: Sequence[str], hosts: Sequence[str]) -> tuple[str, ...]:
    """Return the faults in normal form: FAULT@HOST:LOCALRANK (default rank 0), or FAULT@HOST.

    `hosts` are the hosts that take part; empty if they are unknown. Raises BadInput.
    """
    faults = []
    for text in texts:
        match = _FORM.fullmatch(text)
        fault = FAULTS.get(match["fault"]) if match else None
        if not match or not fault or not _fits(fault, match["host"], match["rank"]):
            raise BadInput(
                f"--inject {escaped(text)!r} is not a valid fault",
                code=Code.FAULT_SYNTAX,
                hint=_hint(),
            )
        host = match["host"]
        if hosts and host[0] not in "*#" and host not in hosts:
            raise BadInput(
                f"--inject {escaped(text)}: {escaped(host)} is not a host of this run",
                code=Code.FAULT_HOST,
                hint=known(host, hosts, "hosts"),
            )
        faults.append(text if match["rank"] or fault.scope is not Scope.RANK else f"{text}:0")
    return tuple(faults)


def _fits(fault: Fault, host: str, rank: str | None) -> bool:
    """Return True if the fault can be injected at that host and rank."""
    if fault.scope is Scope.RANK:
        return host[0] not in "*#"
    if rank or (host == "*") != (fault.scope is Scope.EVERYWHERE):
        return False
    return not host.startswith("#") or fault.injector is Injector.PORT
