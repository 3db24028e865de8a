"""Define what a check declares about itself."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from accept.core.judge.evidence import CheckRules
from accept.core.model import GroupKind, Parsed

#: What a check's programs need on a node. "nccl-tests-or-torch": `*_perf` where there are GPUs,
#: else torch.
Need = Literal["sh", "mpirun", "torch", "mpi4py", "nccl-tests-or-torch"]

#: Reads the lines of one raw log; it never raises. Checks of one launch share the function, which
#: serves all of them at once.
Parse = Callable[[Iterable[bytes]], Parsed]


#: Starting the ranks of one wave, in seconds: a constant, and a share for each host.
_LAUNCH, _LAUNCH_HOST = 4.0, 0.05


def launch_seconds(hosts: int) -> float:
    """What starting one wave takes, to be added once to the sum of its checks' estimates."""
    return _LAUNCH + _LAUNCH_HOST * hosts


def param(default: Any, doc: str) -> Any:
    """A field of a parameter class: its default and the line `accept list checks` shows."""
    return field(default=default, metadata={"doc": doc})


@dataclass(frozen=True, kw_only=True)
class Check(CheckRules):
    """One acceptance test."""

    #: One line for `accept list checks`.
    summary: str
    #: Step template under `launchers/steps`.
    template: str
    #: What nccl-tests calls what it runs, where that is not the check's name.
    runs: str = ""
    #: Frozen dataclass of the parameters, each with a default and `metadata["doc"]`.
    params: type[Any]
    #: Group kinds it works on; the first is the default.
    groups: tuple[GroupKind, ...]
    needs: tuple[Need, ...]
    #: Checks of equal launch, parameters and groups share one step; None: a step of its own.
    launch: str | None = None
    #: What `--budget` keeps first: higher is kept longer.
    worth: int = 0
    #: (params, hosts of a group, ranks a host) -> seconds of work in one wave. Starting it comes on
    #: top, once a launch: `launch_seconds`.
    estimate: Callable[[Any, int, int], float]
    parse: Parse
    #: Each GPU is measured by itself, so that its bounds hold for a part of a node too.
    devices: bool = False
    #: Faults that its program can be told to have, for drills, and how many ranks a group must have
    #: for the one that has it to be named.
    faults: Mapping[str, int] = field(default_factory=dict)
