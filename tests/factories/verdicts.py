"""Invented plans and records, for tests of the judge."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from accept.core.groups import Group, Wave, waves
from accept.core.plan import BoundKind, GroupKind, ParamValue, Plan, PlannedMachine, Reference, Step
from accept.core.records import Fact, Metric, Placement, Problem, Record

COLLECTIVE: dict[str, ParamValue] = {"min": "1M", "max": "4M", "factor": 2, "iters": 5}
COLLECTIVE |= {"warmup": 1, "dtype": "float", "sizes": 0, "jitter": False}
TOP = 4 << 20
CPU = PlannedMachine(name="cpu", gpus=0, ranks=2, speed_promised=False, noise=0.05)
#: Two ranks per host, which is also the default of `record`.
GPU = PlannedMachine(name="big", gpus=8, ranks=2, device="B200", noise=0.01)
FLOOR = Reference(
    check="all-reduce",
    metric="busbw",
    unit="GB/s",
    kind=BoundKind.FLOOR,
    source="the machine's data sheet",
    lower=300.0,
    peak=400.0,
)


def hosts(count: int) -> tuple[str, ...]:
    return tuple(f"h{i}" for i in range(count))


def step(
    check: str = "all-reduce",
    groups: str = "all",
    *,
    rounds: int = 1,
    number: int = 10,
    **more: Any,
) -> Step:
    return Step(
        id=f"{number}-{check}-{groups}",
        checks=more.pop("checks", (check,)),
        script=f"steps/{number}.sh",
        groups=GroupKind(groups),
        params=more.pop("params", COLLECTIVE if check not in ("train", "inventory") else {}),
        rounds=rounds,
        **more,
    )


def plan(
    *steps: Step, machine: PlannedMachine = CPU, nodes: int | None = None, **more: Any
) -> Plan:
    return Plan(
        schema=1,
        version="0",
        hash="0123456789abcdef",
        machine=machine,
        suite="imagined",
        nodes=nodes,
        steps=steps,
        **more,
    )


def hosts_record(
    names: Sequence[str], *problems: Problem, metrics: tuple[Metric, ...] = ()
) -> Record:
    """Return the record of the step that finds the hosts."""
    return Record(
        step="00-hosts",
        checks=("hosts",),
        wave=0,
        group=0,
        hosts=tuple(names),
        exit=0,
        problems=problems,
        metrics=metrics,
    )


def table(
    check: str,
    busbw: float,
    *,
    top: int | None = None,
    wrong: float = 0,
    sizes: Sequence[int] = (1 << 20, 2 << 20, TOP),
) -> tuple[Metric, ...]:
    """Return the metrics of a complete nccl-tests table whose speeds grow with the size."""
    checked = [*Placement] if check not in ("alltoall", "sendrecv") else [Placement.OUT]
    rows = [
        Metric(
            check=check,
            name="busbw",
            value=busbw * size / sizes[-1],
            unit="GB/s",
            size=size,
            placement=placement,
        )
        for size in sizes
        if size <= (top or sizes[-1])
        for placement in Placement
    ]
    counts = [
        Metric(check=check, name="wrong", value=wrong, unit="elements", placement=placement)
        for placement in checked
    ]
    return (*rows, *counts)


def of_gpu(check: str, name: str, value: float, unit: str, host: str, gpu: int) -> Metric:
    """Return a value of one GPU, whose rank has the same number."""
    own: dict[str, Any] = {"host": host, "rank": gpu, "gpu": str(gpu)}
    return Metric(check=check, name=name, value=value, unit=unit, **own)


def record(
    of: Step,
    group: Group | Sequence[str],
    *metrics: Metric,
    wave: int = 0,
    number: int = 0,
    status: int | None = 0,
    problems: tuple[Problem, ...] = (),
    facts: tuple[Fact, ...] = (),
    ranks: int | None = None,
) -> Record:
    where = group if isinstance(group, Group) else Group(hosts=tuple(group))
    return Record(
        step=of.id,
        checks=of.checks,
        wave=wave,
        group=number,
        hosts=where.hosts,
        local_ranks=where.local_ranks,
        ranks=(len(where.local_ranks) or 2) * len(where.hosts) if ranks is None else ranks,
        exit=status,
        log=f"logs/{of.id}/{wave}-{number}.log",
        metrics=metrics,
        facts=facts,
        problems=problems,
    )


Speed = Callable[[Group], float | None]


def measured(
    of: Step,
    names: Iterable[str],
    speed: Speed,
    *,
    seed: int = 1,
    ranks: int = 2,
    pairs: Sequence[tuple[str, ...]] = (),
) -> list[Record]:
    """Return all records of a collective step. A group whose speed is None crashed."""
    hosts = tuple(names)
    planned = waves(of.groups, hosts, rounds=of.rounds, seed=seed, ranks=ranks, pairs=pairs)
    return executed(of, planned, speed)


def executed(of: Step, planned: Iterable[Wave], speed: Speed) -> list[Record]:
    """Return the records of these waves. A group whose speed is None crashed."""
    result = []
    for wave, groups in enumerate(planned):
        for number, group in enumerate(groups):
            busbw = speed(group)
            tables = [] if busbw is None else [m for c in of.checks for m in table(c, busbw)]
            made = record(
                of,
                group,
                *tables,
                wave=wave,
                number=number,
                status=0 if busbw is not None else 1,
            )
            result.append(made)
    return result


def slow(*names: str, usual: float = 10.0, factor: float = 0.5) -> Speed:
    """Return a speed that is lower by `factor` for groups with one of `names`."""
    return lambda group: usual * (factor if set(names) & set(group.hosts) else 1.0)


def inventory_of(host: str, **changes: Any) -> Fact:
    """Return the inventory of a host without GPUs."""
    value: dict[str, Any] = {
        "cpus": 16,
        "memoryBytes": 64 << 30,
        "gpus": [],
        "pciNvidia": 0,
        "nics": [{"name": "eth0", "speed": 10000, "state": "up"}],
        "memlock": "unlimited",
        "kernel": "6.1.0",
        "versions": {"mpi": "5.0.8", "python": "3.11.2"},
        "env": {},
    }
    return Fact(name="inventory", check="inventory", host=host, value={**value, **changes})


def inventories(of: Step, facts: Iterable[Fact], **more: Any) -> list[Record]:
    """Return the records of an inventory step with the inventory of one host each."""
    return [
        record(of, [str(fact.host)], facts=(fact,), number=number, **more)
        for number, fact in enumerate(facts)
    ]


def gpus(host: str, count: int = 8, **changes: Any) -> list[dict[str, Any]]:
    """Return GPUs as an inventory lists them; `changes` apply to the first."""
    listed: list[dict[str, Any]] = [
        {
            "index": i,
            "uuid": f"GPU-{host}-{i}",
            "name": "NVIDIA B200",
            "memoryMiB": 183359,
            "memoryUsedMiB": 0,
            "driver": "570.1",
            "eccUncorrected": 0,
            "processes": [],
        }
        for i in range(count)
    ]
    listed[0].update(changes)
    return listed
