"""All checks by name, and the reading of a raw log for the checks of one step.

Each module of this folder declares one or several checks in its tuple `CHECKS`; there is no list to
keep in step. Check modules do not import each other.
"""

from __future__ import annotations

import pkgutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from importlib import import_module

from accept.core import launcher_errors
from accept.core.checks.check import Check
from accept.core.model import Parsed, Problem

#: The only module of this folder that declares no checks.
_DEFINITION = "check"


@lru_cache(maxsize=1)
def _checks() -> dict[str, Check]:
    """Import all check modules, and return their checks sorted by name."""
    checks: dict[str, Check] = {}
    for module in pkgutil.iter_modules(__path__):
        if module.name == _DEFINITION:
            continue
        for check in import_module(f"{__name__}.{module.name}").CHECKS:
            assert isinstance(check, Check)
            assert check.name not in checks, f"two checks are called {check.name}"
            checks[check.name] = check
    return dict(sorted(checks.items()))


def names() -> tuple[str, ...]:
    """Return the names of all checks, sorted."""
    return tuple(_checks())


def load(name: str) -> Check:
    """Return the check called `name`. Raises KeyError if there is none."""
    return _checks()[name]


class _Registry(Mapping[str, Check]):
    """All checks by name; the modules are imported at the first look-up."""

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
