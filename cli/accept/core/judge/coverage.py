"""Report which GPUs, NICs, rails and links each step exercised.

A device counts only in an execution that ended well and measured something. A NIC counts only if
NCCL's log reports traffic over the machine's network, or if a tool such as `rdma` ran on it; a
group inside one host or one NVLink domain usually has no traffic.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from accept.core.causes import Cause, Judgement
from accept.core.facts import NCCL_DETOURS, NCCL_NETWORKS, NCCL_NICS, users_of
from accept.core.judge.evidence import Checks, Found
from accept.core.judge.findings import finding
from accept.core.limits import MOST_RANKS
from accept.core.plan import Plan, PlannedMachine, Step
from accept.core.records import Record
from accept.core.text import count, host_list
from accept.core.tool_output import ENDING
from accept.core.verdict import CheckVerdict, Coverage, State, StepCoverage

#: The number of a NIC, or its name.
_Nic = int | str


class Exercise(NamedTuple):
    """The parts of one host that one execution exercised."""

    record: Record
    host: str
    #: True if the execution ended well and measured something.
    is_done: bool
    #: The local ranks that took part.
    ranks: Sequence[int]
    #: The NICs with traffic; none unless `is_done`.
    nics: frozenset[_Nic]


def exercises(
    plan: Plan, records: Iterable[Record], found: Found, checks: Checks
) -> Iterator[Exercise]:
    """Yield what the executions exercised, in the order of the records."""
    names = _names(found)
    machines = {s.id: plan.machine_in(s) for s in plan.steps if _exercises(s, checks)}
    for record in records:
        if record.step not in machines:
            continue
        is_done = record.exit == 0 and bool(record.metrics)
        ranks = record.local_ranks or range(
            min(record.ranks // max(1, len(record.hosts)), MOST_RANKS)
        )
        nics = _nics(record, ranks, machines[record.step], names) if is_done else {}
        for host in record.hosts:
            yield Exercise(record, host, is_done, ranks, nics.get(host, frozenset()))


def ranks_of(plan: Plan, done: Iterable[Exercise]) -> int:
    """Return the GPUs of a host that should take part; if none is planned, what was exercised."""
    planned = plan.gpus_used or plan.machine.gpus or plan.machine.ranks
    return planned or max((1 + rank for e in done for rank in e.ranks), default=0)


def nics_of(plan: Plan) -> int:
    """Return the NICs of a host that should carry data."""
    return max(m.nics for m in (plan.machine, *plan.profiles.values()))


def coverage(plan: Plan, records: Sequence[Record], found: Found, checks: Checks) -> Coverage:
    """Return what each step exercised, and the parts that no step exercised."""
    by_step: dict[str, list[Exercise]] = {s.id: [] for s in plan.steps if _exercises(s, checks)}
    done = [e for e in exercises(plan, records, found, checks) if e.is_done]
    for exercise in done:
        by_step[exercise.record.step].append(exercise)
    with_gpus = plan.machine.gpus != 0 and not plan.origin
    gpus, nics = _gpus(done), {(e.host, nic) for e in done for nic in e.nics}
    ranks = ranks_of(plan, done)
    idle = [
        f"{host}:{rank}"
        for host in found.present
        for rank in range(ranks)
        if (host, rank) not in gpus
    ]
    machine_nics = nics_of(plan)
    used = {host for host, _ in nics}
    rows = (_step(step, by_step[step.id]) for step in plan.steps if step.id in by_step)
    return Coverage(
        steps=tuple(rows) if with_gpus else (),
        gpus=len(gpus) if with_gpus else 0,
        gpus_of=ranks * len(found.present) if with_gpus else 0,
        gpus_untested=tuple(idle) if with_gpus else (),
        nics=min(len(nics), machine_nics * len(found.present)),
        nics_of=machine_nics * len(found.present),
        nics_untested=tuple(h for h in found.present if machine_nics and h not in used),
    )


def _step(step: Step, own: Sequence[Exercise]) -> StepCoverage:
    pairs = (e.record.hosts for e in own)
    return StepCoverage(
        step=step.id,
        checks=step.checks,
        groups=step.groups,
        hosts=len({e.host for e in own}),
        gpus=len(_gpus(own)),
        nics=len({(e.host, nic) for e in own for nic in e.nics}),
        rails=tuple(sorted({rank for e in own if len(e.record.hosts) > 1 for rank in e.ranks})),
        links=len({frozenset(hosts) for hosts in pairs if len({*hosts}) == 2}),
    )


def _gpus(own: Iterable[Exercise]) -> set[tuple[str, int]]:
    return {(e.host, rank) for e in own for rank in e.ranks}


def nics_verdict(
    plan: Plan, covered: Coverage, found: Found, checks: Checks
) -> CheckVerdict | None:
    """Return a verdict if the suite measures the network and no step used the NICs of some hosts.

    Logs of others rarely show which network was used, so they get none.
    """
    untested = [host for host in covered.nics_untested if host not in found.lost]
    if plan.origin or not untested or not measures_network(plan, len(found.present), checks):
        return None
    text = f"no step used the NICs of {host_list(untested)}: NCCL's log reports no traffic of "
    text += f"{count(len(untested), 'node')} over {plan.machine.transport or 'the network'}"
    judgement, cause = Judgement.COMPLETENESS, Cause.NICS_NOT_TESTED
    own = finding("nics", judgement, State.INCONCLUSIVE, text, cause=cause, hosts=untested)
    return CheckVerdict(check="nics", state=own.state, findings=(own,))


def measures_network(plan: Plan, hosts: int, checks: Checks) -> bool:
    """Return True if collectives of a plan connect hosts, or force traffic over NICs."""
    return any(
        (hosts > 1 and not step.groups.of_single_hosts) or step.profile
        for step in plan.steps
        if any((rules := checks.get(name)) and rules.measure for name in step.checks)
    )


def loads_gpus(step: Step, checks: Checks) -> bool:
    """Return True if ranks of a step work on GPUs."""
    return any((rules := checks.get(name)) and rules.loads_gpus for name in step.checks)


def _exercises(step: Step, checks: Checks) -> bool:
    """Return True if a step exercises GPUs or NICs."""
    return loads_gpus(step, checks) or bool(step.tool and step.tool.per_nic)


def _names(found: Found) -> Mapping[str, str]:
    """Return the hosts by the names that logs may show."""
    known: dict[str, str] = {}
    for host in found.present:
        for name in (host, (found.hostnames or {}).get(host, host)):
            known.setdefault(name, host)
            known.setdefault(name.partition(".")[0].lower(), host)
    return known


def _nics(
    record: Record, ranks: Iterable[int], machine: PlannedMachine, names: Mapping[str, str]
) -> dict[str, frozenset[_Nic]]:
    """Return the NICs that each host used: by name, or by number if the log names none.

    Without names, a host used the NICs that belong to the GPUs that took part.
    """
    on_network = {
        names.get(host, host)
        for network, host in users_of(NCCL_NETWORKS, record)
        if machine.promises(network)
    }
    sent = {names.get(h, h) for path, h in users_of(NCCL_DETOURS, record) if path == "NET"}
    named: dict[str, set[str]] = {}
    for _, by_host in NCCL_NICS.of(record):
        for host, by_gpu in by_host.items():
            named.setdefault(names.get(host, host), set()).update(*by_gpu.values())
    gpus = machine.gpus or machine.ranks or 1
    shares = ((rank * machine.nics // gpus, (rank + 1) * machine.nics // gpus) for rank in ranks)
    by_number = {nic for first, end in shares for nic in range(first, max(first + 1, end))}
    hosts = on_network & sent & set(record.hosts)
    used = {host: named.get(host) or by_number for host in hosts}
    for fact, ending in ENDING.of(record):
        if ending.nic and ending.ended_well and fact.host in record.hosts:
            used[fact.host] = {*used.get(fact.host, ()), ending.nic}
    return {host: frozenset(nics) for host, nics in used.items()}
