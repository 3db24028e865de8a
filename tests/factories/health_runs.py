"""Runs of two steps with the check `health`, from readings of hosts and changes between them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tests.factories.verdicts import CPU, hosts, hosts_record, plan, record, step

from accept.core.checks import REGISTRY
from accept.core.groups import waves
from accept.core.health_readings import Change, Device, DeviceKind, Log, Reading
from accept.core.judge import judge
from accept.core.plan import Plan, PlannedMachine, Step
from accept.core.records import Fact, Record
from accept.core.serde import dump
from accept.core.verdict import CheckVerdict, Verdict

HEALTH = step("health", "each", number=10, params={})
LATER = step("script", "all", number=20, params={"name": "load"})
#: A machine with any number of GPUs.
ANY = PlannedMachine(name="any", gpus=None, ranks=None)


def reading(*, gpus: int = 0, **more: Any) -> Reading:
    devices = [Device(kind=DeviceKind.NET, name="eth0", levels={"active": 1.0, "run": 1.0})]
    devices += [
        Device(kind=DeviceKind.GPU, name=str(i), pci=f"0000:{i:02x}:00") for i in range(gpus)
    ]
    values: dict[str, Any] = {
        "uptime": 9.0,
        "devices": tuple(devices),
        "log": Log(),
        "whole": True,
    }
    return Reading(**values | more)


def run_of(*changes: tuple[str, int, Change | dict[str, Any]], **options: Any) -> Verdict:
    """Return the verdict on a run; the arguments are those of `recorded`."""
    return judge(*recorded(*changes, **options), checks=REGISTRY, attempt="one")


def recorded(
    *changes: tuple[str, int, Change | dict[str, Any]],
    count: int = 4,
    machine: PlannedMachine = CPU,
    first: Reading | dict[str, Any] | None = None,
    others: dict[str, Reading] | None = None,
    sweeps: tuple[int, ...] = (1, 2, 3),
    later: tuple[Step, ...] = (LATER,),
    seed: int = 1,
) -> tuple[Plan, list[Record]]:
    """Return the plan and the records of a run; each change belongs to a host and a sweep.

    All hosts have the `first` reading, except those in `others`. The steps `later` follow `health`.
    """
    names = hosts(count)
    whole = first or reading(gpus=machine.gpus or 0)
    records = [hosts_record(names)]
    for number in sweeps:
        facts = [
            Fact(name="health-change", check="health", host=host, value=dump(change))
            for host, at, change in changes
            if at == number
        ]
        records.append(replace(hosts_record(names), wave=number, facts=tuple(facts)))
    for index, name in enumerate(names):
        fact = Fact(
            name="health", check="health", host=name, value=dump((others or {}).get(name, whole))
        )
        records.append(record(HEALTH, (name,), number=index, facts=(fact,)))
    records += [
        record(one, group, wave=number, number=index)
        for one in later
        for number, wave in enumerate(waves(one.groups, names, rounds=one.rounds, seed=seed))
        for index, group in enumerate(wave)
    ]
    return plan(HEALTH, *later, machine=machine, nodes=count), records


def health_of(verdict: Verdict) -> CheckVerdict:
    return next(one for one in verdict.checks if one.check == "health")
