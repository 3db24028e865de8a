"""Define the check `inventory`: hardware, limits and versions of each host, and differences.

Its program prints one fact `inventory` on every host. The value has these keys (null: not known):

    hostname, kernel   text
    serial             serial number of the host
    cpus               number of CPUs available to the run
    memoryBytes        bytes
    gpus               list of {index, uuid, serial, name, memoryMiB, memoryUsedMiB, driver,
                       eccUncorrected, pci, vbios, processes: list of "PID NAME", error, errorCode};
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
    nics               list of {name, speed (Mbit/s), state, rdma: true for RDMA devices}
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

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial

from accept.core import record_protocol
from accept.core.catalog.metrics import MetricSpec
from accept.core.causes import Cause, Judgement
from accept.core.checks.check import Check, CheckParams, param
from accept.core.facts import INVENTORY, Inventory, inventories_of
from accept.core.judge import bounds, completeness, consistency, imex
from accept.core.judge.evidence import Evidence, Judged
from accept.core.judge.summary import params_of, verdict_of
from accept.core.judge.suspects import from_problems
from accept.core.model import Finding, GroupKind, Problem, State

#: Measured during discovery, so only `max_clock_offset` limits it.
CLOCK_OFFSET = MetricSpec(name="clock-offset", unit="s", bounds=False)


@dataclass(frozen=True, kw_only=True)
class Params(CheckParams):
    """Parameters of `inventory`."""

    max_clock_offset: float = param(1.0, "largest clock difference from the hosts' median, in s")
    require_unlimited_memlock: bool = param(
        False, "fail on a limited `ulimit -l`; always on for machines with RDMA to GPU memory"
    )
    busy_mib: int = param(1024, "GPU memory in use above which a GPU counts as busy, in MiB")

    def estimate(self, _hosts: int, _ranks: int) -> float:
        """Return the time to read files and query nvidia-smi, in seconds."""
        return 3.0


def _problems(
    evidence: Evidence, inventories: Mapping[str, Inventory]
) -> tuple[list[Problem], list[Problem], list[Problem]]:
    """Return the problems that fail the check, unclear ones, and those that are only notes."""
    plan, machine = evidence.plan, evidence.plan.machine
    params = params_of(evidence, Params)
    problems = list(consistency.gpu_problems(inventories, plan, busy_mib=params.busy_mib))
    problems += consistency.nic_problems(inventories, machine)
    domains = imex.Problems([], [], [])
    if _spans_hosts(evidence) and len(inventories) > 1:
        problems += consistency.domain_problems(inventories)
        domains = imex.problems(inventories)
        problems += domains.problems
    metrics = (metric for record in evidence.host_answers for metric in record.metrics)
    offsets = [
        metric
        for metric in metrics
        if metric.name == CLOCK_OFFSET.name and metric.host not in evidence.set_aside
    ]
    problems += consistency.clock_problems(offsets, params.max_clock_offset)
    if params.require_unlimited_memlock or (machine.gpu_direct and len(evidence.hosts) > 1):
        problems += consistency.memlock_problems(inventories)
    comparable = _comparable(evidence, inventories)
    differences = list(consistency.differences(comparable))
    notes = [*domains.notes, *consistency.differences(comparable, noted=True)]
    # Hosts of a machine without a speed target need not be equal.
    if machine.speed_promised:
        return problems + differences, domains.unclear, notes
    return problems, domains.unclear, differences + notes


def _comparable(evidence: Evidence, inventories: Mapping[str, Inventory]) -> dict[str, Inventory]:
    """Return the inventories without those of hosts that have more GPUs than the run may use."""
    hidden = consistency.withheld(inventories, evidence.plan)
    return {host: one for host, one in inventories.items() if host not in hidden}


def judge(evidence: Evidence) -> Judged:
    """Pass if every host reported its inventory and nothing is missing, broken or different."""
    inventories = inventories_of(evidence.records, evidence.hosts)
    problems, unclear, notes = _problems(evidence, inventories)
    silent = [
        record.hosts
        for record in evidence.records
        if record.exit == 0 and not set(record.hosts) <= set(inventories) and not record.problems
    ]
    problems += [
        Problem(
            cause=Cause.NO_MEASUREMENT,
            message=f"{completeness.host_list(hosts)} reported no inventory",
        )
        for hosts in silent
    ]
    # Missing hardware comes first, because it may explain a wrong number of ranks.
    findings = completeness.problem_findings(evidence, more=problems)
    findings += completeness.step_findings(evidence)
    findings += bounds.findings(evidence)
    findings += [_note(note) for note in notes[:20]]
    findings += [
        replace(_note(problem), state=State.INCONCLUSIVE, cause=problem.cause)
        for problem in unclear
    ]
    findings += _unknown_domain(evidence, inventories)
    findings += [
        Finding(
            check="inventory",
            judgement=Judgement.CONSISTENCY,
            state=State.NOT_TESTED,
            cause=Cause.NO_MEASUREMENT,
            message=f"{name} is unknown on {completeness.host_list(hosts)}, so it was not compared",
            hosts=hosts,
        )
        for name, hosts in consistency.partly_unknown(_comparable(evidence, inventories))
    ]
    suspects = tuple(from_problems(problems, "", len(evidence.hosts)))
    return Judged(
        verdict_of(
            evidence,
            findings,
            measured=_measured(evidence, inventories),
            required="machine and majority of the hosts",
        ),
        suspects,
    )


def _spans_hosts(evidence: Evidence) -> bool:
    """Return True if the machine has NVLink between hosts, because bounds concern it."""
    return any(reference.one_domain for reference in evidence.plan.references)


def _unknown_domain(evidence: Evidence, inventories: Mapping[str, Inventory]) -> list[Finding]:
    """Return a finding if bounds concern NVLink between hosts and no host reported its domain."""
    known = any(inventory.domain is not None for inventory in inventories.values())
    if not _spans_hosts(evidence) or known or len(inventories) < 2:
        return []
    return [
        Finding(
            check="inventory",
            judgement=Judgement.ABSOLUTE,
            state=State.INCONCLUSIVE,
            cause=Cause.NO_MEASUREMENT,
            message="no host reports the NVLink domain of its GPUs, so the bounds for NVLink "
            "between hosts were not applied; check with "
            "nvidia-smi --query-gpu=fabric.clusterUuid,fabric.cliqueId",
        )
    ]


def _note(problem: Problem) -> Finding:
    return Finding(
        check="inventory",
        judgement=Judgement.CONSISTENCY,
        state=State.PASS,
        message=f"{problem.host}: {problem.message}" if problem.host else problem.message,
        hosts=(problem.host,) if problem.host else (),
    )


def _measured(evidence: Evidence, inventories: Mapping[str, Inventory]) -> str:
    gpus = sorted({len(inventory.gpus) for inventory in inventories.values()} or {0})
    each = " or ".join(map(str, gpus))
    names = f" ({', '.join(evidence.devices[:2])})" if evidence.devices else ""
    hosts = f"{len(inventories)} of {len(evidence.hosts)} hosts reported"
    text = f"{hosts}; {each} {'GPU' if gpus == [1] else 'GPUs'} each{names}"
    without = [host for host, i in inventories.items() if i.domain and i.imex is None]
    if without and _spans_hosts(evidence):
        text += f"; IMEX not read on {completeness.host_list(without)} (no nvidia-imex-ctl)"
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
