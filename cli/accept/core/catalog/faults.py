"""Declare the faults that a drill can inject, one row each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from accept.core.causes import Cause
from accept.core.plan import Injection
from accept.core.text import TextEnum

#: Answers of `launchers/inject_fault.sh` after it injected, and after it undid, a fault.
ANSWER_INJECTED, ANSWER_UNDONE = "injected", "undone"


class Scope(TextEnum):
    """The part of a run that a fault affects; it decides the form in which a fault is written."""

    #: FAULT@HOST:LOCALRANK
    RANK = "rank"
    #: FAULT@HOST
    HOST = "host"
    #: FAULT@*
    EVERYWHERE = "everywhere"


class Injector(TextEnum):
    """The part of `accept` that injects a fault."""

    #: The program of the rank: `launchers/programs/rank_io.py`.
    PROGRAM = "program"
    #: `launchers/inject_fault.sh`, on the host, before the first step.
    SCRIPT = "script"
    #: The coordinator, which connects to a closed port of the host.
    PORT = "port"
    #: The rendered settings, which disable the network of NCCL.
    SETTINGS = "settings"


class Detection(TextEnum):
    """The way in which a run detects a fault; it decides which steps of a suite can detect it."""

    #: By a result of a check that declares the fault (`Check.faults`), in a group of enough ranks.
    RESULT = "result"
    #: As a slow host among its peers or below a bound, by a check that declares the fault.
    PEERS = "peers"
    #: As the wrong network in NCCL's log, by a collective between hosts.
    NETWORK = "network"
    #: By the discovery of hosts.
    START = "start"


@dataclass(frozen=True, kw_only=True)
class Fault:
    """A fault that a drill injects on purpose."""

    name: str
    #: Its effect, as a sentence without a full stop.
    about: str
    scope: Scope
    injector: Injector
    detection: Detection = Detection.RESULT
    #: Causes for which a run with it is correctly rejected.
    causes: frozenset[Cause]
    #: The fault that checks declare instead, if both have the same effect on them; empty: its own
    #: name.
    seen_as: str = ""
    #: True if ranks stop, so that their steps take until the timeout.
    hangs: bool = False
    #: True if it acts on traffic through the kernel, which GPUs bypass.
    kernel_traffic: bool = False
    #: True if the injector must undo it at the end, because it changes more than the run's folder.
    undo: bool = False
    #: True if the ranks must know it, although it is a fault of their host. nccl-tests cannot
    #: simulate it, so our own programs measure.
    for_ranks: bool = False


_SLOW = frozenset(cause for cause in Cause if cause.row.slow)
_ROWS = (
    Fault(
        name="slow",
        about="a rank loses 50 ms before every operation",
        scope=Scope.RANK,
        injector=Injector.PROGRAM,
        detection=Detection.PEERS,
        causes=_SLOW,
    ),
    Fault(
        name="wrong",
        about="a rank contributes one wrong element",
        scope=Scope.RANK,
        injector=Injector.PROGRAM,
        causes=frozenset({Cause.WRONG_DATA, Cause.PARAMETERS_DIFFER, Cause.GRADIENTS_DIFFER}),
    ),
    Fault(
        name="nan",
        about="a rank contributes one NaN element",
        scope=Scope.RANK,
        injector=Injector.PROGRAM,
        causes=frozenset({Cause.WRONG_DATA, Cause.NOT_FINITE, Cause.PARAMETERS_DIFFER}),
    ),
    Fault(
        name="flip",
        about="one bit is flipped in a matrix product and in a memory pattern",
        scope=Scope.RANK,
        injector=Injector.PROGRAM,
        causes=frozenset({Cause.WRONG_RESULT, Cause.WRONG_DATA}),
    ),
    Fault(
        name="hang",
        about="a rank stops",
        scope=Scope.RANK,
        injector=Injector.PROGRAM,
        causes=frozenset({Cause.RANK_HUNG}),
        hangs=True,
    ),
    Fault(
        name="die",
        about="a rank is killed",
        scope=Scope.RANK,
        injector=Injector.PROGRAM,
        causes=frozenset({Cause.CRASHED}),
    ),
    Fault(
        name="sockets",
        about="the settings disable the fast network",
        scope=Scope.EVERYWHERE,
        injector=Injector.SETTINGS,
        detection=Detection.NETWORK,
        causes=frozenset({Cause.TRANSPORT_FALLBACK}),
    ),
    Fault(
        name="slow-link",
        about="a host sends at 20 Mbit/s",
        scope=Scope.HOST,
        injector=Injector.SCRIPT,
        detection=Detection.PEERS,
        causes=_SLOW,
        seen_as="slow",
        kernel_traffic=True,
        undo=True,
    ),
    Fault(
        name="full-disk",
        about="the disk of a host is full for its ranks",
        scope=Scope.HOST,
        injector=Injector.SCRIPT,
        causes=frozenset({Cause.DISK_FULL}),
        for_ranks=True,
    ),
    Fault(
        name="unreachable",
        about="the coordinator connects to a closed port of a host",
        scope=Scope.HOST,
        injector=Injector.PORT,
        detection=Detection.START,
        causes=frozenset({Cause.UNREACHABLE_REFUSED, Cause.UNREACHABLE_TIMEOUT}),
    ),
)
#: All faults by name, in the order in which a drill injects them.
FAULTS = {fault.name: fault for fault in _ROWS}


def for_ranks(injected: Sequence[Injection]) -> str:
    """Return the faults that the launchers and programs of the ranks must know, as one text."""
    faults = ((injection.text, FAULTS[injection.fault]) for injection in injected)
    return ",".join(text for text, f in faults if f.scope is Scope.RANK or f.for_ranks)
