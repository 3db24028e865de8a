"""The checks there are: one module each, found by listing this folder.

Module `all_reduce` holds `CHECK`, the check `all-reduce`. Checks do not import each other; what the
collective ones share is `accept.core.checks.collectives`.
"""

from __future__ import annotations

import pkgutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from importlib import import_module
from typing import Any, Literal

from accept.core import launcher_errors
from accept.core.judge.evidence import CheckRules
from accept.core.model import GroupKind, Parsed, Problem

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


@lru_cache(maxsize=1)
def names() -> tuple[str, ...]:
    """Names of all checks, sorted."""
    found = (module.name for module in pkgutil.iter_modules(__path__))
    return tuple(sorted(name.replace("_", "-") for name in found))


@lru_cache(maxsize=64)
def load(name: str) -> Check:
    """The check called `name`; KeyError where there is none."""
    if name not in names():
        raise KeyError(name)
    check = import_module(f"{__name__}.{name.replace('-', '_')}").CHECK
    assert isinstance(check, Check)
    assert check.name == name
    return check


class _Registry(Mapping[str, Check]):
    """All checks by name; each is imported when it is first looked up."""

    def __getitem__(self, name: str) -> Check:
        return load(name)

    def __iter__(self) -> Iterator[str]:
        return iter(names())

    def __len__(self) -> int:
        return len(names())


REGISTRY = _Registry()


def _of_the_run(problem: Problem, hosts: tuple[str, ...]) -> Problem:
    """The problem with its host as the run calls it, where that can be told."""
    if not problem.host or not hosts or problem.host in hosts:
        return problem
    short = problem.host.partition(".")[0]
    same = [host for host in hosts if host.partition(".")[0] == short]
    return replace(problem, host=same[0] if len(same) == 1 else None)


def parse_log(checks: Sequence[str], lines: Iterable[bytes], hosts: tuple[str, ...] = ()) -> Parsed:
    """What the raw log of one execution says, for all `checks` of its step.

    The lines are read once where the checks share one parser, as those of one launch do. What a
    group of one host says is said of that host. A launcher names hosts as they call themselves: one
    that is none of `hosts`, such as a pod, accuses nobody. Where the launch failed it is no news
    that there is nothing to read.
    """
    launch: list[Problem] = []
    watched = launcher_errors.watch(lines, launch)
    parsers = tuple(dict.fromkeys(load(name).parse for name in checks))
    kept = watched if len(parsers) == 1 else tuple(watched)
    parts = [parse(kept) for parse in parsers]
    facts = [fact for part in parts for fact in part.facts]
    if len(hosts) == 1:
        facts = [fact if fact.host else replace(fact, host=hosts[0]) for fact in facts]
    metrics = tuple(metric for part in parts for metric in part.metrics)
    problems = tuple(_of_the_run(problem, hosts) for part in parts for problem in part.problems)
    if launch and not metrics:
        empty = ("unparsable", "no-measurement", "incomplete-log")
        rest = (problem for problem in problems if problem.cause not in empty)
        problems = (*(_of_the_run(problem, hosts) for problem in launch), *rest)
    return Parsed(metrics=metrics, facts=tuple(facts), problems=_once(problems))


def with_problems_seen(outside: Sequence[Problem], parsed: Parsed) -> tuple[Problem, ...]:
    """The problems of an execution: what was seen from outside, then what its raw log says.

    What both tell is told as in the log, so that reading the log again changes nothing.
    """
    said = {_what(problem) for problem in parsed.problems}
    return (*(p for p in _once(outside) if _what(p) not in said), *parsed.problems)


def _once(problems: Iterable[Problem]) -> tuple[Problem, ...]:
    """Problems once each, and bounded: several ranks may see the same thing."""
    kept: dict[tuple[object, ...], Problem] = {}
    for problem in problems:
        kept.setdefault(_what(problem), replace(problem, message=problem.message[:500]))
    return tuple(kept.values())


def _what(problem: Problem) -> tuple[object, ...]:
    """What makes two problems one, however they are worded."""
    return problem.cause, problem.check, problem.host, problem.rank, problem.gpu, problem.nic
