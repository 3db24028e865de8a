"""Verdicts on invented runs of eight hosts: steps, healthy records, and views of a verdict."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import pytest
from tests.factories.verdicts import GPU, gpus, hosts, inventories, inventory_of, plan, step

from accept.core.checks import REGISTRY
from accept.core.judge import judge
from accept.core.judge.evidence import Evidence, Found, Judged
from accept.core.plan import Plan, PlannedMachine, Reference, Step
from accept.core.records import Record
from accept.core.verdict import Verdict

EIGHT = hosts(8)
ALL = step("all-reduce", "all", number=20)
EACH = step("all-reduce", "each", number=25)
PAIRS = step("all-reduce", "pairs", rounds=3, number=30)
INVENTORY = step("inventory", "each")


def judged(planned: Plan, *records: Record, interruption: str = "") -> Verdict:
    """Return the verdict on records with all registered checks."""
    return judge(planned, records, checks=REGISTRY, attempt="a-1", interruption=interruption)


def blamed(verdict: Verdict) -> set[tuple[str, str, str]]:
    """Return kind, name and cause of every suspect."""
    return {(suspect.kind, suspect.name, suspect.cause) for suspect in verdict.suspects}


def causes(verdict: Verdict) -> set[str]:
    """Return the causes of all findings that did not pass."""
    return {f.cause for c in verdict.checks for f in c.findings if f.cause and f.state != "pass"}


def outcome(verdict: Verdict) -> str:
    """Return what a verdict decides: "degraded: wrong-data, node h2 wrong-data"."""
    found = [*sorted(causes(verdict)), *sorted(map(" ".join, blamed(verdict)))]
    return f"{verdict.state}: {', '.join(found)}" if found else str(verdict.state)


#: Outcome -> the runs that have it, by name.
Cases = Mapping[str, Mapping[str, Callable[[], Verdict]]]


def by_outcome(cases: Cases) -> pytest.MarkDecorator:
    """Parametrize a test with `expected`, an outcome, and `case`, a run that has it."""
    rows = [
        pytest.param(expected, case, id=f"{expected} - {name}")
        for expected, own in cases.items()
        for name, case in own.items()
    ]
    return pytest.mark.parametrize(("expected", "case"), rows)


def evidence(
    of: Step,
    records: Iterable[Record],
    hosts: Iterable[str],
    machine: PlannedMachine = GPU,
    references: Iterable[Reference] = (),
    **more: Any,
) -> Evidence:
    """Return what the judge of a step's first check gets."""
    return Evidence(
        check=of.checks[0],
        plan=plan(of, machine=machine, references=tuple(references)),
        steps=(of,),
        records=tuple(records),
        found=Found(present=tuple(hosts)),
        **more,
    )


def accused(found: Judged) -> dict[str, str]:
    """Return the suspects of one check, each with its cause."""
    return {suspect.name: suspect.cause for suspect in found.suspects}


def gpu_plan(*steps: Step, **more: Any) -> Plan:
    """Return a plan for GPU hosts."""
    return plan(*steps, machine=GPU, **more)


def gpu_inventory(count: int = 8) -> tuple[Step, list[Record]]:
    """Return the inventory step of healthy GPU hosts, and its records."""
    of = step("inventory", "each", number=10)
    facts = (inventory_of(host, gpus=gpus(host), pciNvidia=8) for host in hosts(count))
    return of, inventories(of, facts)
