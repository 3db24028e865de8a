"""Find all checks by name, and parse raw logs for the checks of one step.

Each module of this folder declares its checks in a tuple `CHECKS`, so a new module needs no
registration. Check modules do not import each other.
"""

from __future__ import annotations

import pkgutil
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from importlib import import_module
from typing import Final, TypeVar

from accept.core import failures, tool_output
from accept.core.catalog.metrics import BETTER_BY_UNIT, Better, MetricSpec
from accept.core.causes import Cause
from accept.core.checks.check import Check
from accept.core.facts import NCCL_WARNINGS
from accept.core.nccl_tests import nccl_info
from accept.core.plan import Step, Tool
from accept.core.records import Fact, Metric, Parsed, Problem, Record
from accept.core.signs import Finder, Match, catalog
from accept.core.table import table_of

_OfHost = TypeVar("_OfHost", Metric, Fact, Problem)

#: The only module of this folder that declares no checks.
_DEFINITION = "check"


def _find() -> dict[str, Check]:
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


#: All checks by name, sorted.
REGISTRY: Final[Mapping[str, Check]] = _find()


def load(name: str) -> Check:
    """Return the check called `name`. Raises KeyError if there is none."""
    return REGISTRY[name]


def checks_of(step: Step) -> list[Check]:
    """Return the checks of a step that this version has."""
    return [REGISTRY[name] for name in step.checks if name in REGISTRY]


def metric_spec(check: str, metric: str) -> MetricSpec | None:
    """Return what a check declares about a metric; None if it does not declare it."""
    return REGISTRY[check].metric(metric) if check in REGISTRY else None


def better(check: str, metric: str, unit: str) -> Better:
    """Return the direction in which a metric improves; by its unit if no check declares it."""
    spec = metric_spec(check, metric)
    return spec.better if spec is not None else BETTER_BY_UNIT.get(unit, Better.NONE)


def log_lines(step: Step, records: Sequence[Record]) -> list[str]:
    """Return what the executions of a step measured, for the log of a run."""
    by_check = table_of((step,), records).by(lambda row: row.check)
    known = ((REGISTRY[name], own) for name, own in by_check.items() if name in REGISTRY)
    return [line for check, own in known for line in check.lines(own)]


def _known_host(name: str | None, hosts: tuple[str, ...]) -> str | None:
    """Return the one of `hosts` that a log calls `name`; None if that is ambiguous.

    So the log of a group has no word about a host outside of it.
    """
    if not name or not hosts or name in hosts:
        return name
    short_name = name.partition(".")[0]
    matches = [host for host in hosts if host.partition(".")[0] == short_name]
    return matches[0] if len(matches) == 1 else None


def _of_known_host(item: _OfHost, hosts: tuple[str, ...]) -> _OfHost:
    """Return an item of a log with its host renamed to one of `hosts`; without it if unclear."""
    host = _known_host(item.host, hosts)
    return item if host == item.host else replace(item, host=host)


def _match_of_known_host(match: Match, hosts: tuple[str, ...]) -> Match:
    """Return the match with its host renamed to one of `hosts`, if that is clear."""
    return match._replace(host=_known_host(match.problem().host, hosts) or match.host)


def parse_log(
    checks: Sequence[str],
    lines: Iterable[bytes],
    hosts: tuple[str, ...] = (),
    *,
    status: int | None = 0,
    tool: Tool | None = None,
) -> Parsed:
    """Parse the raw log of one execution for those `checks` of its step that this version has.

    In a group of one host, facts without a host belong to that host. Launchers use the hosts' own
    names; what a log reports of a host that is not in `hosts`, such as a pod, loses its host. If
    the launch failed, problems about missing results are left out. `status` is the exit status of
    the execution, None if it was killed: if it is not 0 and no program began, the launch failed.
    `tool` is the program of others that the step ran.
    """
    launch, finder = failures.Launch(), Finder(catalog())
    nccl_warnings: list[str] = []
    watched = nccl_info.watch(finder.watch(launch.watch(lines)), nccl_warnings)
    # Checks of one launch share one parser, so that the lines are read only once.
    parsers = tuple(dict.fromkeys(REGISTRY[name].parse for name in checks if name in REGISTRY))
    if tool is not None:
        parsers = (partial(tool_output.parse, tool=tool),)
    source = watched if len(parsers) == 1 else tuple(watched)
    parts = [parse(source) for parse in parsers]
    facts = [fact for part in parts for fact in part.facts]
    # The reader of nccl-tests reports them itself, also if they cut a line of a table.
    if nccl_warnings and not any(fact.name == NCCL_WARNINGS.name for fact in facts):
        facts.append(Fact(name=NCCL_WARNINGS.name, value=nccl_warnings))
    facts = [_of_known_host(fact, hosts) for fact in facts]
    if len(hosts) == 1:
        facts = [fact if fact.host else replace(fact, host=hosts[0]) for fact in facts]
    metrics = tuple(_of_known_host(metric, hosts) for part in parts for metric in part.metrics)
    problems = [problem for part in parts for problem in part.problems]
    users = any(REGISTRY[name].user_script for name in checks if name in REGISTRY)
    found = [_match_of_known_host(match, hosts) for match in finder.ranked()]
    problems = list(failures.decided(problems, found))
    began = launch.began or failures.ended(found)
    never_began = status != 0 and not began and not metrics and not users
    launch_problems = failures.launch_problems(found)
    if never_began and status is not None and not launch_problems:
        launch_problems.append(launch.failure(status))
    if (launch_problems or never_began) and not metrics:
        rest = (problem for problem in problems if not problem.cause.row.no_result)
        problems = [*failures.decided(launch_problems, found), *rest]
    if status and not failures.explain_end(problems, metrics):
        problems = [*failures.end_problems(found), *problems]
    if status != 0 or len(problems) > 1:
        # Then something else than the script may be the reason.
        problems = [
            replace(p, cause=Cause.UNPARSABLE) if p.cause is Cause.NO_TABLE else p for p in problems
        ]
    problems = [_of_known_host(problem, hosts) for problem in problems]
    return Parsed(metrics=metrics, facts=tuple(facts), problems=_deduplicated(problems))


def with_problems_seen(outside: Sequence[Problem], parsed: Parsed) -> tuple[Problem, ...]:
    """Return the problems of an execution: those seen from `outside`, then those of its raw log.

    Of duplicates, the one from the log is kept, so that parsing the log again changes nothing.
    """
    logged = {_identity(problem) for problem in parsed.problems}
    outside = _deduplicated(failures.without_innocent(outside, parsed.problems))
    return (*(p for p in outside if _identity(p) not in logged), *parsed.problems)


def _deduplicated(problems: Iterable[Problem]) -> tuple[Problem, ...]:
    """Return the first of equal problems, because several ranks may report the same one.

    Messages are cut at 500 characters.
    """
    unique: dict[tuple[object, ...], Problem] = {}
    for problem in problems:
        unique.setdefault(_identity(problem), replace(problem, message=problem.message[:500]))
    return tuple(unique.values())


def _identity(problem: Problem) -> tuple[object, ...]:
    """Return the properties that equal problems share, without their messages."""
    return problem.cause, problem.check, problem.host, problem.rank, problem.gpu, problem.nic
