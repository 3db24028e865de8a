"""Simulated runs of a shipped suite on GPU nodes whose NICs have different speeds.

Only the collectives of the suite are simulated, with the figures that the makers publish. A ring is
as fast as its slowest NIC. An all-reduce over two nodes can send less than its share over the NICs,
as NVLS does on Hopper (https://github.com/NVIDIA/nccl-tests/issues/153).
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import product

from tests.factories.judging import judged
from tests.factories.simulated_runs import records_of
from tests.factories.verdicts import gpus, hosts, hosts_record, inventory_of, record

from accept.config import load_machine
from accept.core.checks import REGISTRY
from accept.core.facts import NCCL_DETOURS, NCCL_NETWORKS, NCCL_NICS
from accept.core.groups import Group, Wave
from accept.core.judge import is_open
from accept.core.plan import Plan, Step
from accept.core.records import Fact, Metric, Placement, Record
from accept.core.table import planned_sizes
from accept.core.verdict import Verdict
from accept.plan.resolve import Options, resolve

#: Share of the line rate that a NIC reaches.
_NIC_SHARE = 0.94
_NOISE = 0.005


#: Share of NVLink, and of a GPU's share of the NICs, that collectives reach.
_OF_NVLINK = {"all-reduce": 1.0, "all-gather": 0.8, "reduce-scatter": 0.8, "alltoall": 0.7}
_OF_NVLINK["sendrecv"] = 0.75

#: Host and local rank of a NIC -> the share of the normal speed that it has.
SlowNics = Mapping[tuple[str, int], float]


@dataclass(frozen=True, kw_only=True)
class Fabric:
    """Nodes of one machine, and their slow NICs."""

    machine: str = "h100-8"
    suite: str = "standard"
    count: int = 64
    slow: SlowNics = field(default_factory=dict)
    #: Local rank -> the share of its normal speed that a rail of more than two hosts reaches.
    crowded: Mapping[int, float] = field(default_factory=dict)
    expect: tuple[str, ...] = ()
    #: Group kind of the steps that leave no records, as if the run had ended before them.
    without: str = ""
    #: True if all steps use the NICs that the profile of the step allows; False: none does.
    uses_nics: bool = True

    @property
    def hosts(self) -> tuple[str, ...]:
        """Return the names of the hosts."""
        return hosts(self.count)

    @property
    def ranks(self) -> int:
        """Return the number of GPUs of a node."""
        count = load_machine(self.machine).value.gpus.count
        assert isinstance(count, int)
        return count

    def plan(self) -> Plan:
        """Return the suite's plan, with only the inventory and the collectives."""
        options = Options(
            machine=self.machine,
            suite=self.suite,
            hosts=self.hosts,
            backend="ssh",
            seed=7,
            expect=self.expect,
        )
        planned = resolve(options).plan
        steps = (s for s in planned.steps if s.checks[0] in (*_OF_NVLINK, "inventory"))
        # The inventories of tests are of B200.
        machine = replace(planned.machine, device="B200", rdma_devices=0)
        return replace(planned, machine=machine, steps=tuple(steps), skipped=())

    def speed(self, step: Step, check: str, group: Group) -> float:
        """Return the bus bandwidth of a check on a group."""
        machine = load_machine(self.machine).value
        assert machine.nvlink is not None
        assert machine.nics is not None
        inside = machine.nvlink.gbytes_per_second * _OF_NVLINK[check] * 1.05
        ranks = group.local_ranks or tuple(range(self.ranks))
        if not self.over_nics(step, group):
            return inside
        slowest = min(self.slow.get(nic, 1.0) for nic in product(group.hosts, ranks))
        nic = (machine.nics.reachable_gbps or machine.nics.gbps) / 8 * _NIC_SHARE * slowest
        per_gpu = nic * machine.nics.count / self.ranks
        nodes = len(group.hosts)
        if nodes == 1:
            return per_gpu
        if check == "sendrecv":
            return 0.9 * nic
        if check == "alltoall":
            # A part of the data stays inside the nodes.
            return 0.9 * per_gpu * (nodes / (nodes - 1) if nodes <= 4 else 0.6)
        if group.local_ranks:
            crowding = min(self.crowded.get(rank, 1.0) for rank in ranks) if nodes > 2 else 1.0
            return max(nic, per_gpu) * len(ranks) * crowding
        if check == "all-reduce" and nodes == 2:
            return min(inside, 1.87 * len(ranks) * per_gpu)
        return per_gpu * len(ranks)

    def over_nics(self, step: Step, group: Group) -> bool:
        """Return True if a group uses NICs: between NVLink domains, or by the profile of a step."""
        link = load_machine(self.machine).value.nvlink
        domain = link.nodes if link else 1
        return len(group.hosts) > domain or bool(step.profile)


def whole(hosts_slow: Iterable[int], factor: float) -> SlowNics:
    """Return all eight NICs of some hosts as slow."""
    return {(f"h{i}", rank): factor for i in hosts_slow for rank in range(8)}


def run(fabric: Fabric, *, again: bool = True) -> Verdict:
    """Return the verdict on a simulated run; `again`: with what is measured after the plan."""
    chance = random.Random(7)
    planned = fabric.plan()
    (inventory,) = (step for step in planned.steps if step.checks == ("inventory",))
    records = [
        hosts_record(fabric.hosts),
        *(_inventory(fabric, inventory, host, i) for i, host in enumerate(fabric.hosts)),
    ]
    for step in planned.steps:
        needless = again and step.if_open and not is_open(planned, step, records, checks=REGISTRY)
        if step is inventory or needless or step.groups == fabric.without:
            continue
        measure = partial(_records, fabric, step, chance)
        records += records_of(planned, step, fabric.hosts, measure, ranks=fabric.ranks, again=again)
    return judged(planned, *records)


def _inventory(fabric: Fabric, step: Step, host: str, number: int) -> Record:
    fact = inventory_of(host, gpus=gpus(host, fabric.ranks), pciNvidia=fabric.ranks, domain="rack")
    return record(step, [host], facts=(fact,), number=number, ranks=fabric.ranks)


def _records(
    fabric: Fabric, step: Step, chance: random.Random, wave: Wave, number: int
) -> list[Record]:
    return [_record(fabric, step, group, number, index, chance) for index, group in enumerate(wave)]


def _record(
    fabric: Fabric, step: Step, group: Group, wave: int, index: int, chance: random.Random
) -> Record:
    over_nics = fabric.uses_nics and fabric.over_nics(step, group)
    ranks = group.local_ranks or tuple(range(fabric.ranks))
    transport = load_machine(fabric.machine).value.nccl.transport
    facts = [
        Fact(name=NCCL_NETWORKS.name, value={transport: list(group.hosts)}),
        Fact(name=NCCL_DETOURS.name, value={"NET": list(group.hosts)}),
        Fact(
            name=NCCL_NICS.name,
            value={host: {str(r): [f"mlx5_{r}"] for r in ranks} for host in group.hosts},
        ),
    ]
    return Record(
        step=step.id,
        checks=step.checks,
        wave=wave,
        group=index,
        hosts=group.hosts,
        local_ranks=group.local_ranks,
        ranks=len(group.hosts) * len(ranks),
        exit=0,
        log=f"logs/{step.id}/{wave}-{index}.log",
        metrics=tuple(
            m for check in step.checks for m in _table(fabric, step, check, group, chance)
        ),
        # NCCL reports the network of its choice even if nothing uses it.
        facts=tuple(facts) if over_nics else (facts[0],),
    )


def _table(
    fabric: Fabric, step: Step, check: str, group: Group, chance: random.Random
) -> list[Metric]:
    speed = fabric.speed(step, check, group) * (1 + chance.gauss(0, _NOISE))
    placements = [*Placement] if check not in ("alltoall", "sendrecv") else [Placement.OUT]
    make: Callable[..., Metric] = Metric
    return [
        *(
            make(
                check=check,
                name="busbw",
                value=speed,
                unit="GB/s",
                size=planned_sizes(step)[-1],
                placement=placement,
            )
            for placement in Placement
        ),
        *(
            make(check=check, name="wrong", value=0.0, unit="elements", placement=placement)
            for placement in placements
        ),
    ]
