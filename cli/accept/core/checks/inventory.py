"""What each host is, and whether hosts that should be equal are.

Its program prints on every host one fact `inventory`, whose value has these keys (null: not known):

    hostname, kernel   text
    cpus               number of CPUs that the run may use
    memoryBytes        bytes
    gpus               list of {index, uuid, name, memoryMiB, memoryUsedMiB, driver,
                       eccUncorrected, pci, processes: list of "PID NAME"}; null: nvidia-smi did
                       not answer in time
    domain             name of the NVLink domain of its GPUs; null: none that spans hosts; left out:
                       not known
    pciNvidia          number of NVIDIA GPUs on the PCI bus, whatever the driver shows
    nics               list of {name, speed (Mbit/s), state, rdma: true for RDMA devices}
    memlock            "unlimited" or KiB
    ipcLock            whether the kernel heeds no limit of locked memory (CAP_IPC_LOCK)
    versions           of python, mpi, torch, nccl, cuda, mpi4py, ncclTests, where they are
    env                settings of NCCL and MPI in effect, through an allow-list
    chosen             names of those that the host picked for itself

The clocks are read while the hosts are looked for: metric `clock-offset` in seconds, one a host.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from accept.core import record_protocol
from accept.core.checks.check import Check, param
from accept.core.judge import bounds, completeness, consistency
from accept.core.judge.consistency import Inventory
from accept.core.judge.evidence import Evidence, Judged
from accept.core.judge.hosts import gpus_of
from accept.core.judge.summary import params_of, verdict_of
from accept.core.judge.suspects import from_problems
from accept.core.model import Finding, Parsed, Problem, State


@dataclass(frozen=True, kw_only=True)
class Params:
    """Parameters of `inventory`."""

    max_clock_offset: float = param(1.0, "largest clock difference from the hosts' median, in s")
    require_unlimited_memlock: bool = param(
        False, "whether a limited `ulimit -l` is a failure, as it is where RDMA is promised"
    )
    busy_mib: int = param(1024, "GPU memory in use above which a GPU counts as busy, in MiB")


def estimate(_params: Params, _hosts: int, _ranks: int) -> float:
    """Seconds: it reads files and asks nvidia-smi."""
    return 3.0


def parse(lines: Iterable[bytes]) -> Parsed:
    """The fact of one host."""
    return record_protocol.parse(lines, check="inventory")


def inventory_of(evidence: Evidence) -> Inventory:
    """What each host said of itself; the last word counts."""
    found: dict[str, dict[str, Any]] = {}
    for record in evidence.records:
        for fact in record.facts:
            if fact.name == "inventory" and isinstance(fact.value, dict):
                host = fact.host or (record.hosts[0] if len(record.hosts) == 1 else "")
                found[host] = fact.value
    return {host: found[host] for host in evidence.hosts if host in found}


def _problems(evidence: Evidence, inventory: Inventory) -> tuple[list[Problem], list[Problem]]:
    """Problems that fail the check, and differences that are only worth a note."""
    plan, machine = evidence.plan, evidence.plan.machine
    params = params_of(evidence, Params)
    found = list(
        consistency.gpu_problems(
            inventory,
            machine,
            used=plan.gpus_used,
            given=plan.gpus_given,
            busy_ok=plan.busy_ok,
            busy_mib=params.busy_mib,
        )
    )
    found += consistency.nic_problems(inventory, machine)
    offsets = [metric for record in evidence.asked for metric in record.metrics]
    found += consistency.clock_problems(offsets, params.max_clock_offset)
    if params.require_unlimited_memlock or (machine.gpu_direct and len(evidence.hosts) > 1):
        found += consistency.memlock_problems(inventory)
    different = list(consistency.differences(inventory))
    # Of machines that promise nothing, nothing says that they should be equal.
    return (found + different, []) if machine.speed_promised else (found, different)


def judge(evidence: Evidence) -> Judged:
    """Every host has told what it is; nothing is missing, broken or different."""
    inventory = inventory_of(evidence)
    problems, notes = _problems(evidence, inventory)
    silent = [
        record.hosts
        for record in evidence.records
        if record.exit == 0 and not set(record.hosts) <= set(inventory) and not record.problems
    ]
    problems += [
        Problem(
            cause="no-measurement", message=f"{completeness.host_list(hosts)} reported no inventory"
        )
        for hosts in silent
    ]
    # What the hosts lack comes first: another number of ranks may follow from it.
    findings = completeness.problem_findings(evidence, more=problems)
    findings += completeness.step_findings(evidence)
    findings += bounds.findings(evidence)
    findings += [_note(note) for note in notes[:20]]
    findings += _domain_unsaid(evidence, inventory)
    suspects = tuple(from_problems(problems, "", len(evidence.hosts)))
    return Judged(
        verdict_of(
            evidence,
            findings,
            measured=_measured(evidence, inventory),
            against="machine and majority of the hosts",
        ),
        suspects,
    )


def _domain_unsaid(evidence: Evidence, inventory: Inventory) -> list[Finding]:
    """A finding where bounds are about NVLink between hosts, and no host says that it has any."""
    bound = any(reference.one_domain for reference in evidence.plan.references)
    told = any(value.get("domain") for value in inventory.values())
    if not bound or told or len(inventory) < 2:
        return []
    return [
        Finding(
            check="inventory",
            judgement="absolute",
            state=State.INCONCLUSIVE,
            cause="no-measurement",
            message="no host says which NVLink domain its GPUs are in, so nothing is held against "
            "NVLink between hosts: nvidia-smi --query-gpu=fabric.clusterUuid,fabric.cliqueId",
        )
    ]


def _note(problem: Problem) -> Finding:
    return Finding(
        check="inventory",
        judgement="consistency",
        state=State.PASS,
        message=f"{problem.host}: {problem.message}" if problem.host else problem.message,
        hosts=(problem.host,) if problem.host else (),
    )


def _measured(evidence: Evidence, inventory: Inventory) -> str:
    gpus = sorted({len(gpus_of(value)) for value in inventory.values()} or {0})
    each = "no" if gpus == [0] else " or ".join(map(str, gpus))
    names = f" ({', '.join(evidence.devices[:2])})" if evidence.devices else ""
    return f"{len(inventory)} told what they are; {each} GPUs each{names}"


INVENTORY = Check(
    name="inventory",
    summary="what each host is: GPUs, memory, network, limits, versions; differences are findings",
    template="inventory.sh.j2",
    params=Params,
    groups=("each",),
    needs=("sh",),
    worth=100,
    estimate=estimate,
    parse=parse,
    judge=judge,
)

CHECKS = (INVENTORY,)
