"""The checks there are: one module each, found by listing this folder.

Module `all_reduce` holds `CHECK`, the check `all-reduce`. Checks do not import each other; what the
collective ones share is `accept.core.collectives`.
"""

from __future__ import annotations

import pkgutil
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from importlib import import_module
from typing import Any, Literal

from accept.core.model import CheckVerdict, GroupKind, Parsed, Plan, Record, Step

#: What a check's programs need on a node. "nccl-tests-or-torch": `*_perf` where there are GPUs,
#: else torch.
Need = Literal["sh", "mpirun", "torch", "mpi4py", "nccl-tests-or-torch"]

#: Reads one raw log: (lines, hosts of the record, its local ranks or () for all) -> Parsed.
#: It never raises. Checks of one launch share the function, which serves all of them at once.
Parse = Callable[[Iterable[bytes], tuple[str, ...], tuple[int, ...]], Parsed]


#: Starting the ranks of one wave, in seconds: a constant, and a share for each host.
_LAUNCH, _LAUNCH_HOST = 4.0, 0.05


def launch_seconds(hosts: int) -> float:
    """What starting one wave takes, to be added once to the sum of its checks' estimates."""
    return _LAUNCH + _LAUNCH_HOST * hosts


def param(default: Any, doc: str) -> Any:
    """A field of a parameter class: its default and the line `accept list checks` shows."""
    return field(default=default, metadata={"doc": doc})


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """What a check is judged by: its planned steps and the records of exactly those."""

    check: str
    plan: Plan
    steps: tuple[Step, ...]
    records: tuple[Record, ...]
    #: Hosts that answered at the start, in the run's order.
    hosts: tuple[str, ...]
    #: Hosts asked for that never answered.
    missing: tuple[str, ...] = ()
    broken_off: str = ""

    @property
    def optional(self) -> bool:
        """Whether the suite can do without this check: every step of it is optional."""
        return bool(self.steps) and all(step.optional for step in self.steps)


@dataclass(frozen=True, kw_only=True)
class Check:
    """One acceptance test."""

    name: str
    #: One line for `accept list checks`.
    summary: str
    #: Step template under `launchers/steps`.
    template: str
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
    judge: Callable[[Evidence], CheckVerdict]


@lru_cache(maxsize=1)
def names() -> tuple[str, ...]:
    """Names of all checks, sorted."""
    found = (module.name for module in pkgutil.iter_modules(__path__))
    return tuple(sorted(name.replace("_", "-") for name in found))


def load(name: str) -> Check:
    """The check called `name`; KeyError where there is none."""
    if name not in names():
        raise KeyError(name)
    check = import_module(f"{__name__}.{name.replace('-', '_')}").CHECK
    assert isinstance(check, Check) and check.name == name
    return check


def parse_log(
    checks: Sequence[str],
    lines: Iterable[bytes],
    hosts: tuple[str, ...] = (),
    local_ranks: tuple[int, ...] = (),
) -> Parsed:
    """What the raw log of one execution says, for all `checks` of its step.

    The lines are read once where the checks share one parser, as those of one launch do.
    """
    parsers = tuple(dict.fromkeys(load(name).parse for name in checks))
    if len(parsers) == 1:
        return parsers[0](lines, hosts, local_ranks)
    kept = tuple(lines)
    parts = [parse(kept, hosts, local_ranks) for parse in parsers]
    return Parsed(
        metrics=tuple(metric for part in parts for metric in part.metrics),
        facts=tuple(fact for part in parts for fact in part.facts),
        problems=tuple(problem for part in parts for problem in part.problems),
    )
