"""Define what a check declares about itself."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from accept.core.judge.evidence import CheckRules
from accept.core.model import GroupKind, Parsed

#: A program that a check needs on a node. "nccl-tests-or-torch": `*_perf` on nodes with GPUs, else
#: torch.
Need = Literal["sh", "mpirun", "torch", "mpi4py", "nccl-tests-or-torch"]

#: Parses the lines of one raw log and never raises. Checks that share a launch share the function,
#: and its result is for all of them.
Parse = Callable[[Iterable[bytes]], Parsed]


#: Seconds to start the ranks of one wave: a constant, and an addition per host.
_LAUNCH_SECONDS, _LAUNCH_SECONDS_PER_HOST = 4.0, 0.05


def launch_seconds(hosts: int) -> float:
    """Return the seconds to start one wave, which come on top of its checks' estimates."""
    return _LAUNCH_SECONDS + _LAUNCH_SECONDS_PER_HOST * hosts


def param(default: Any, doc: str) -> Any:
    """Return a field of a parameter class, with the description for `accept list checks`."""
    return field(default=default, metadata={"doc": doc})


@dataclass(frozen=True, kw_only=True)
class Check(CheckRules):
    """Declare one acceptance test."""

    #: One line for `accept list checks`.
    summary: str
    #: Step template under `launchers/steps`.
    template: str
    #: Name of the collective in nccl-tests, if it is not the check's name.
    runs: str = ""
    #: Frozen dataclass of the parameters, each with a default and `metadata["doc"]`.
    params: type[Any]
    #: Supported group kinds; the first is the default.
    groups: tuple[GroupKind, ...]
    needs: tuple[Need, ...]
    #: Checks with the same launch, parameters and groups share one step; None: a separate step.
    launch: str | None = None
    #: Priority under `--budget`: checks with lower values are dropped first.
    worth: int = 0
    #: (params, hosts of a group, ranks per host) -> seconds of work in one wave. `launch_seconds`
    #: comes on top, once per launch.
    estimate: Callable[[Any, int, int], float]
    parse: Parse
    #: True if each GPU is measured alone, so that the bounds also hold for a part of a node.
    devices: bool = False
    #: Faults that its program can simulate in drills, each with the smallest number of ranks in a
    #: group that lets the verdict name the faulty rank.
    faults: Mapping[str, int] = field(default_factory=dict)
