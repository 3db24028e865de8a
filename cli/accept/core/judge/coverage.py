"""Report which GPUs, NICs, rails and links each step exercised.

A device counts only in an execution that ended well and measured something. A NIC counts only if
NCCL's log reports traffic over the machine's network; a group inside one host or one NVLink domain
usually has none.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from accept.core.causes import Cause, Judgement
from accept.core.facts import NCCL_DETOURS, NCCL_NETWORKS, NCCL_NICS
from accept.core.judge.completeness import host_list
from accept.core.judge.evidence import Checks
from accept.core.judge.hosts import Found
from accept.core.limits import MOST_RANKS
from accept.core.model import (
    CheckVerdict,
    Coverage,
    Finding,
    GroupKind,
    Plan,
    PlannedMachine,
    Record,
    State,
    Step,
    StepCoverage,
)
from accept.core.text import count

#: A host and the number of one of its GPUs or NICs, or the name of the NIC.
_Part = tuple[str, int | str]


@dataclass(frozen=True, kw_only=True)
class HostCoverage:
    """The parts of one host that steps exercised, and the steps that did."""

    #: The steps that load GPUs: those that measured something here, that failed, and that did not
    #: run here.
    steps: tuple[str, ...]
    steps_failed: tuple[str, ...]
    steps_not_run: tuple[str, ...]
    #: Local ranks: GPUs that worked, those that only took part in failed executions, and the rest.
    gpus: tuple[int, ...]
    gpus_failed: tuple[int, ...]
    gpus_unused: tuple[int, ...]
    #: NICs with traffic, and the number that the host should have.
    nics: int
    nics_of: int


def coverage_by_host(
    plan: Plan, records: Sequence[Record], found: Found, checks: Checks
) -> dict[str, HostCoverage]:
    """Return what the steps exercised on each host, in the run's order."""
    names = _names(found)
    ran = {record.step for record in records}
    # A step that was not needed does not leave a gap.
    steps = {
        step.id: step
        for step in plan.steps
        if _loads_gpus(step, checks) and (step.id in ran or not step.if_open)
    }
    done: dict[str, dict[str, set[int]]] = {}
    failed: dict[str, set[int]] = {}
    nics: set[_Part] = set()
    for record in records:
        if record.step not in steps:
            continue
        is_done = _measured(record)
        if is_done:
            nics |= _nics(record, plan.machine_in(steps[record.step]), names)
        for host in record.hosts:
            ranks = done.setdefault(host, {}).setdefault(record.step, set())
            (ranks if is_done else failed.setdefault(host, set())).update(_ranks(record))
    exercised = {host: set().union(*by_step.values()) for host, by_step in done.items()}
    most = max((1 + rank for ranks in exercised.values() for rank in ranks), default=0)
    expected = range(_ranks_of(plan, most))
    nics_of_host = Counter(host for host, _ in nics)
    return {
        host: HostCoverage(
            steps=tuple(step for step in steps if done.get(host, {}).get(step)),
            steps_failed=tuple(step for step in steps if not done.get(host, {}).get(step, True)),
            steps_not_run=tuple(step for step in steps if step not in done.get(host, {})),
            gpus=tuple(sorted(own := exercised.get(host, set()))),
            gpus_failed=tuple(sorted(bad := failed.get(host, set()) - own)),
            gpus_unused=tuple(rank for rank in expected if rank not in own | bad),
            nics=nics_of_host[host],
            nics_of=_nics_of(plan),
        )
        for host in found.present
    }


def _measured(record: Record) -> bool:
    """Return True if an execution ended well and measured something."""
    return record.exit == 0 and bool(record.metrics)


def _ranks_of(plan: Plan, seen: int) -> int:
    """Return the number of GPUs of a host that should take part; `seen` if none is planned."""
    return plan.gpus_used or plan.machine.gpus or plan.machine.ranks or seen


def _nics_of(plan: Plan) -> int:
    return max((m.nics for m in (plan.machine, *plan.profiles.values())), default=0)


def coverage(plan: Plan, records: Sequence[Record], found: Found, checks: Checks) -> Coverage:
    """Return what each step exercised, and the parts that no step exercised."""
    names = _names(found)
    by_step: dict[str, list[Record]] = {}
    for record in records:
        if _measured(record):
            by_step.setdefault(record.step, []).append(record)
    rows = []
    gpus: set[_Part] = set()
    nics: set[_Part] = set()
    per_host = 0
    for step in plan.steps:
        if not _loads_gpus(step, checks):
            continue
        own = by_step.get(step.id, [])
        machine = plan.machine_in(step)
        step_gpus = {(host, rank) for r in own for host in r.hosts for rank in _ranks(r)}
        step_nics = {nic for r in own for nic in _nics(r, machine, names)}
        rows.append(
            StepCoverage(
                step=step.id,
                checks=step.checks,
                groups=step.groups,
                hosts=len({host for r in own for host in r.hosts}),
                gpus=len(step_gpus),
                nics=len(step_nics),
                rails=tuple(sorted({rank for r in own if len(r.hosts) > 1 for rank in _ranks(r)})),
                links=len({frozenset(r.hosts) for r in own if len(set(r.hosts)) == 2}),
            )
        )
        gpus |= step_gpus
        nics |= step_nics
        per_host = max(per_host, *(1 + rank for _, rank in step_gpus), 0)
    with_gpus = plan.machine.gpus != 0 and not plan.origin
    ranks = _ranks_of(plan, per_host)
    idle = [
        f"{host}:{rank}"
        for host in found.present
        for rank in range(ranks)
        if (host, rank) not in gpus
    ]
    machine_nics = _nics_of(plan)
    used = {host for host, _ in nics}
    return Coverage(
        steps=tuple(rows) if with_gpus else (),
        gpus=len(gpus) if with_gpus else 0,
        gpus_of=ranks * len(found.present) if with_gpus else 0,
        gpus_untested=tuple(idle) if with_gpus else (),
        nics=len(nics),
        nics_of=machine_nics * len(found.present),
        nics_untested=tuple(h for h in found.present if machine_nics and h not in used),
    )


def nics_verdict(
    plan: Plan, covered: Coverage, found: Found, checks: Checks
) -> CheckVerdict | None:
    """Return a verdict if the suite measures the network and no step used the NICs of some hosts.

    Logs of others rarely show which network was used, so they get none.
    """
    untested = [host for host in covered.nics_untested if host not in found.lost]
    if plan.origin or not untested or not measures_network(plan, len(found.present), checks):
        return None
    finding = Finding(
        check="nics",
        judgement=Judgement.COMPLETENESS,
        state=State.INCONCLUSIVE,
        cause=Cause.NICS_NOT_TESTED,
        message=f"no step used the NICs of {host_list(untested)}: NCCL's log reports no traffic of "
        f"{count(len(untested), 'host')} over {plan.machine.transport or 'the network'}",
        hosts=tuple(untested),
    )
    return CheckVerdict(check="nics", state=State.INCONCLUSIVE, findings=(finding,))


def measures_network(plan: Plan, hosts: int, checks: Checks) -> bool:
    """Return True if collectives of a plan connect hosts, or force traffic over NICs."""
    return any(
        (hosts > 1 and step.groups is not GroupKind.EACH) or step.profile
        for step in plan.steps
        if any((rules := checks.get(name)) and rules.measure for name in step.checks)
    )


def _loads_gpus(step: Step, checks: Checks) -> bool:
    return any((rules := checks.get(name)) and rules.loads_gpus for name in step.checks)


def _names(found: Found) -> Mapping[str, str]:
    """Return the hosts by the names that logs may show."""
    known: dict[str, str] = {}
    for host in found.present:
        for name in (host, (found.hostnames or {}).get(host, host)):
            known.setdefault(name, host)
            known.setdefault(name.partition(".")[0].lower(), host)
    return known


def _ranks(record: Record) -> Iterable[int]:
    """Return the local ranks that took part on each host."""
    ranks = record.ranks // max(1, len(record.hosts))
    return record.local_ranks or range(min(ranks, MOST_RANKS))


def _nics(record: Record, machine: PlannedMachine, names: Mapping[str, str]) -> set[_Part]:
    """Return the NICs that an execution used: by name, or by number if the log names none.

    Without names, a host used the NICs that belong to the GPUs that took part.
    """
    promised = [machine.transport, *machine.transport_aliases] if machine.transport else []
    on_network = {
        names.get(host, host)
        for _, users in NCCL_NETWORKS.of(record)
        for network, hosts in users.items()
        if not promised or any(one.lower() in network.lower() for one in promised)
        for host in hosts
    }
    sent = {
        names.get(host, host)
        for _, users in NCCL_DETOURS.of(record)
        for host in users.get("NET", ())
    }
    named: dict[str, set[str]] = {}
    for _, by_host in NCCL_NICS.of(record):
        for host, by_gpu in by_host.items():
            named.setdefault(names.get(host, host), set()).update(*by_gpu.values())
    gpus = machine.gpus or machine.ranks or 1
    result: set[_Part] = set()
    for host in on_network & sent & set(record.hosts):
        if own := named.get(host):
            result |= {(host, nic) for nic in own}
            continue
        for rank in _ranks(record):
            first = rank * machine.nics // gpus
            last = max(first + 1, (rank + 1) * machine.nics // gpus)
            result |= {(host, nic) for nic in range(first, last)}
    return result
