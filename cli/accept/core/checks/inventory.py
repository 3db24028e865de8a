"""Define the check `inventory`: hardware, limits and versions of each host, and differences.

Its program prints one fact `inventory` on every host. The value has these keys (null: not known):

    hostname, kernel   text
    serial             serial number of the host; only root may read it
    vendor, model      of the host
    bios               version of its BIOS
    cpus               number of CPUs available to the run
    memoryBytes        bytes
    gpus               list of {index, uuid, serial, name, memoryMiB, memoryUsedMiB, driver,
                       eccUncorrected, pci, vbios, inforom (version of its image), part (number of
                       the board), processes: list of "PID NAME", error, errorCode};
                       `error` is what the driver reports for a GPU, with NVML's return code; null:
                       the driver did not answer in time
    driverWords        why the driver shows no GPU, or not all; empty: it shows them
    driverCode         NVML's return code if the driver shows no GPU; null: it does, or has no code
    forbidden          indexes or addresses of the GPUs that the run has no permission to open
    given              CUDA_VISIBLE_DEVICES as {list, count, shown, fault, entry}: its value, the
                       number of GPUs that it gives, of how many, and why not all
                       (`given_gpus.Fault`) with the entry; null: it is not set
    domain             name of the NVLink domain of its GPUs; null: no domain spans hosts; missing:
                       not known
    imexChannels       number of IMEX channels, for NVLink between hosts; null: no driver
    imex               the NVLink domain by `launchers/programs/imex.py`; null: no nvidia-imex-ctl
    pciNvidia          number of NVIDIA GPUs on the PCI bus, even without a driver
    nics               list of {name, speed (Mbit/s), state}, for RDMA devices also {rdma: true,
                       model, firmware, board (the PSID of NVIDIA's), pci, slot}
    memlock            "unlimited" or KiB
    ipcLock            true if the kernel ignores the limit of locked memory (CAP_IPC_LOCK)
    versions           of python, mpi, torch, nccl, cuda, mpi4py, ncclTests, if installed; null: the
                       program did not answer in time
    env                effective settings of NCCL and MPI, through an allow-list
    settings           texts of `launchers/programs/host_settings.py` by name; null: unknown
    chosen             names of the settings that the host chose itself

Discovery reads the clocks: metric `clock-offset` in seconds, one per host.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial

from accept.core import record_protocol
from accept.core.catalog.metrics import MetricSpec
from accept.core.causes import Cause, Judgement
from accept.core.checks.check import Check, CheckParams
from accept.core.facts import INVENTORY, Inventory, inventories_of
from accept.core.judge import consistency, imex
from accept.core.judge.conclusion import conclude
from accept.core.judge.evidence import Evidence, Judged
from accept.core.judge.findings import Problems, finding
from accept.core.judge.summary import params_of
from accept.core.plan import GroupKind
from accept.core.records import Metric, Problem
from accept.core.serde import param
from accept.core.text import host_list
from accept.core.verdict import Finding, State

#: Measured during discovery, so only `max_clock_offset` limits it.
CLOCK_OFFSET = MetricSpec(name="clock-offset", unit="s", bounds=False)


@dataclass(frozen=True, kw_only=True)
class Params(CheckParams):
    """Parameters of `inventory`."""

    max_clock_offset: float = param(
        1.0, "largest clock difference from the hosts' median, in s", least=0
    )
    require_unlimited_memlock: bool = param(
        False, "fail on a limited `ulimit -l`; always on for machines with RDMA to GPU memory"
    )
    busy_mib: int = param(
        1024, "GPU memory in use above which a GPU counts as busy, in MiB", least=0
    )

    def estimate(self, _hosts: int, _ranks: int) -> float:
        """Return the time to read files and query nvidia-smi, in seconds."""
        return 3.0


def judge(evidence: Evidence) -> Judged:
    """Pass if every host reported its inventory and nothing is missing, broken or different."""
    plan, machine, params = evidence.plan, evidence.plan.machine, params_of(evidence, Params)
    inventories = inventories_of(evidence.records, evidence.hosts)
    # Hosts that have more GPUs than the run may use are not compared.
    hidden = consistency.withheld(inventories, plan)
    comparable = {host: one for host, one in inventories.items() if host not in hidden}
    differences = list(consistency.differences(comparable))
    domains = Problems([], [], [])
    problems = list(consistency.gpu_problems(inventories, plan, busy_mib=params.busy_mib))
    problems += consistency.nic_problems(inventories, machine)
    if _spans_hosts(evidence) and len(inventories) > 1:
        domains = imex.problems(inventories)
        problems += [*consistency.domain_problems(inventories), *domains.problems]
    problems += consistency.clock_problems(_clock_offsets(evidence), params.max_clock_offset)
    if params.require_unlimited_memlock or (machine.gpu_direct and len(evidence.hosts) > 1):
        problems += consistency.memlock_problems(inventories)
    # Hosts of a machine without a speed target need not be equal.
    problems += differences if machine.speed_promised else ()
    problems += [
        Problem(
            cause=Cause.NO_MEASUREMENT, message=f"{host_list(record.hosts)} reported no inventory"
        )
        for record in evidence.records
        if record.exit == 0 and not set(record.hosts) <= set(inventories) and not record.problems
    ]
    noted = [*consistency.differences(comparable, noted=True)]
    noted = noted if machine.speed_promised else differences + noted
    return conclude(
        evidence,
        problems=problems,
        unclear=domains.unclear,
        notes=domains.notes,
        findings=[
            *map(_note, noted[:20]),
            *_unknown_domain(evidence, inventories),
            *_partly_unknown(comparable),
        ],
        measured=_measured(evidence, inventories),
        required="machine and majority of the nodes",
    )


def _clock_offsets(evidence: Evidence) -> list[Metric]:
    return [
        metric
        for record in evidence.host_answers
        for metric in record.metrics
        if metric.name == CLOCK_OFFSET.name and metric.host not in evidence.set_aside
    ]


def _note(problem: Problem) -> Finding:
    text = f"{problem.host}: {problem.message}" if problem.host else problem.message
    hosts = (problem.host,) if problem.host else ()
    return finding("inventory", Judgement.CONSISTENCY, State.PASS, text, hosts=hosts)


def _partly_unknown(inventories: Mapping[str, Inventory]) -> Iterator[Finding]:
    for name, hosts in consistency.partly_unknown(inventories):
        text = f"{name} is unknown on {host_list(hosts)}, so it was not compared"
        state, cause = State.NOT_TESTED, Cause.NO_MEASUREMENT
        yield finding("inventory", Judgement.CONSISTENCY, state, text, cause, hosts=hosts)


def _spans_hosts(evidence: Evidence) -> bool:
    """Return True if the machine has NVLink between hosts, because bounds concern it."""
    return any(reference.one_domain for reference in evidence.plan.references)


def _unknown_domain(evidence: Evidence, inventories: Mapping[str, Inventory]) -> Iterator[Finding]:
    """Yield a finding if bounds concern NVLink between hosts and no host reported its domain."""
    known = any(inventory.domain is not None for inventory in inventories.values())
    if _spans_hosts(evidence) and not known and len(inventories) > 1:
        text = "no host reports the NVLink domain of its GPUs, so the bounds for NVLink between "
        text += "hosts were not applied; check with "
        text += "nvidia-smi --query-gpu=fabric.clusterUuid,fabric.cliqueId"
        state, cause = State.INCONCLUSIVE, Cause.NO_MEASUREMENT
        yield finding("inventory", Judgement.ABSOLUTE, state, text, cause)


def _measured(evidence: Evidence, inventories: Mapping[str, Inventory]) -> str:
    gpus = sorted({len(inventory.gpus) for inventory in inventories.values()} or {0})
    each = " or ".join(map(str, gpus))
    names = f" ({', '.join(evidence.devices[:2])})" if evidence.devices else ""
    hosts = f"{len(inventories)} of {len(evidence.hosts)} nodes reported"
    text = f"{hosts}; {each} {'GPU' if gpus == [1] else 'GPUs'} each{names}"
    without = [host for host, i in inventories.items() if i.domain and i.imex is None]
    if without and _spans_hosts(evidence):
        text += f"; IMEX not read on {host_list(without)} (no nvidia-imex-ctl)"
    unknown = consistency.unknown_properties(inventories)
    return f"{text}; not reported: {', '.join(unknown)}" if unknown else text


INVENTORY_CHECK = Check(
    name="inventory",
    summary="GPUs, memory, network, limits and versions of each host; differences are findings",
    template="inventory.sh.j2",
    params=Params,
    groups=(GroupKind.EACH,),
    metrics=(CLOCK_OFFSET,),
    facts=(INVENTORY,),
    read_only=True,
    shows_gpus=True,
    worth=100,
    parse=partial(record_protocol.parse, check="inventory"),
    judge=judge,
)

CHECKS = (INVENTORY_CHECK,)
