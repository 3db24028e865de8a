"""Turn the records of checks into executions that can be compared, and explain these.

All collectives of a run are explained together, because a part shows in several of them. Wrong
data is explained apart from speed, because it has other reasons. What was measured one by one,
such as GPUs and full rails, is compared with its peers.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

from accept.core.causes import Cause
from accept.core.facts import NCCL_NICS
from accept.core.judge import bounds
from accept.core.judge.effects.executions import Execution, Network
from accept.core.judge.effects.explanation import Explanation
from accept.core.judge.effects.search import explain
from accept.core.judge.evidence import Checks, Evidence
from accept.core.judge.explained import Effects, Explained, Population
from accept.core.limits import MOST_RANKS
from accept.core.plan import Step
from accept.core.records import Record
from accept.core.table import BANDWIDTH, Measure, Outcome


def scored(evidences: Iterable[Evidence], checks: Checks) -> Iterator[Evidence]:
    """Yield the evidence of each check that compares groups."""
    for evidence in evidences:
        rules = checks.get(evidence.check)
        if rules is not None and rules.measure is not None:
            yield evidence


def is_full_rail(record: Record, hosts: Sequence[str]) -> bool:
    """Return True if a record covers a full rail, not one of the pairs that follow a slow rail."""
    return len(record.local_ranks) == 1 and (len(record.hosts) > 2 or len(hosts) <= 2)


# Executions of groups of hosts


class _Measured(NamedTuple):
    execution: Execution
    cause: Cause | None
    population: Population


def compare(
    evidences: Iterable[Evidence],
    *,
    measure: Measure = BANDWIDTH,
    noise: float = 0.0,
    of_nics: bool = False,
) -> Effects:
    """Explain the results of some checks, which share their hosts and network.

    `noise`: noise of healthy groups, if it is larger than that of the machine. `of_nics`: NICs were
    measured, and local ranks are their numbers.
    """
    found: list[_Measured] = []
    bounds_of: dict[str, float] = {}
    nics: dict[str, dict[int, frozenset[str]]] = {}
    first: Evidence | None = None
    for evidence in evidences:
        first = first or evidence
        _add_nics(nics, evidence)
        for step in evidence.steps:
            own = list(_measured(evidence, step, measure))
            found += own
            for population in {one.population for one in own if one.population.nodes <= 2}:
                bound = bounds.lowest(evidence, step, measure, population.nodes)
                if bound is not None:
                    bounds_of[population.key] = bound
    if first is None:
        return Effects()
    network = Network(
        places=first.found.places,
        domains=first.found.domains,
        nics=nics,
        of_nics=of_nics,
        noise=max(noise, first.plan.machine.noise),
        bounds=bounds_of,
    )
    return Effects(
        speed=_explained(_of_speed(found), network),
        wrong=_explained(_of_results(found), replace(network, bounds={})),
        network=network,
        order=first.hosts,
    )


def _explained(found: Sequence[_Measured], network: Network) -> Explained:
    executions = tuple(one.execution for one in found)
    return Explained(
        executions=executions,
        causes={i: one.cause for i, one in enumerate(found) if one.cause is not None},
        populations={one.population.key: one.population for one in found},
        explanation=explain(executions, network) if executions else Explanation(),
        noise=network.noise,
    )


def _measured(evidence: Evidence, step: Step, measure: Measure) -> Iterator[_Measured]:
    """Yield the results of one step that show anything about their hosts."""
    for row in evidence.results(measure, step):
        if row.outcome is Outcome.MISSING or len({*row.hosts}) != len(row.hosts) or not row.hosts:
            continue
        # More of them on one host are damage of a log.
        gpus = tuple(
            None if own is None or len(own) > MOST_RANKS else tuple(sorted(own))
            for own in row.execution.gpus
        )
        population = Population(
            evidence.check,
            step.id,
            row.nodes,
            tuple(sorted(len(own or ()) for own in gpus)),
            evidence.together(row.hosts),
            step.groups.of_pairs,
            measure,
        )
        execution = Execution(
            hosts=row.hosts,
            population=population.key,
            value=None if row.outcome is Outcome.FAILED else row.score,
            gpus=gpus,
            flow=evidence.flow,
            log=row.log,
            wave=(step.id, row.wave),
            repeated=row.execution.repeated,
        )
        yield _Measured(execution, row.cause, population)


def _add_nics(nics: dict[str, dict[int, frozenset[str]]], evidence: Evidence) -> None:
    own_names = {name: host for host, name in (evidence.found.hostnames or {}).items()}
    for _, by_host in NCCL_NICS.of(*evidence.records):
        for host, by_gpu in by_host.items():
            known = nics.setdefault(own_names.get(host, host), {})
            for gpu, names in by_gpu.items():
                known[gpu] = known.get(gpu, frozenset()) | names


def _of_speed(found: Iterable[_Measured]) -> list[_Measured]:
    """Return executions in which wrong data is not bad; those without a value are left out."""
    result = []
    for one in found:
        if one.cause is Cause.WRONG_DATA:
            if one.execution.value is not None:
                result.append(one._replace(cause=None))
        elif one.cause is not None:
            result.append(one._replace(execution=one.execution._replace(value=None)))
        else:
            result.append(one)
    return result


def _of_results(found: Sequence[_Measured]) -> list[_Measured]:
    """Return executions in which only wrong data is bad; none if all results are correct."""
    if not any(one.cause is Cause.WRONG_DATA for one in found):
        return []
    return [
        one._replace(execution=one.execution._replace(value=None if one.cause else 1.0))
        for one in found
        if one.cause in (None, Cause.WRONG_DATA) and one.execution.value is not None
    ]
