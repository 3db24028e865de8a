"""Find which hosts took part, which never answered, which were lost, and which GPUs they have."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import replace

from accept.core.causes import Cause, Judgement
from accept.core.facts import HOSTNAMES, INVENTORY, LEFT_OUT_HOST, PLACE, RANK
from accept.core.judge.completeness import merge_findings
from accept.core.judge.effects.populations import FEWEST
from accept.core.judge.evidence import Found
from accept.core.judge.findings import finding
from accept.core.judge.summary import state_of, with_finding, worst_state
from accept.core.judge.suspects import HOSTS_STEP
from accept.core.plan import GroupKind, Plan, Skipped
from accept.core.records import Problem, Record
from accept.core.text import host_list
from accept.core.verdict import CheckVerdict, Finding, State

#: The name of the check on which hosts took part.
CHECK = "hosts"
#: Words that distinguish a card from a module with the same chip: NVIDIA H200 NVL, NVIDIA H100
#: PCIe.
_CARDS = ("nvl", "pcie")


def find(records: Sequence[Record]) -> Found:
    """Read the hosts from the record of the step that found them, else from all records."""
    first = next((r for r in records if r.step == HOSTS_STEP and r.wave == 0), None)
    seen = dict.fromkeys(host for r in records if r.step != HOSTS_STEP for host in r.hosts)
    present = dict.fromkeys(first.hosts if first else ()) | seen
    problems = first.problems if first else ()
    missing = dict.fromkeys(p.host for p in problems if p.host and p.host not in present)
    lost = {
        p.host: p.cause for r in records for p in r.problems if p.host and p.cause.row.loses_host
    }
    asked = [record for record in records if record.step == HOSTS_STEP]
    lost |= {fact.host: cause for fact, cause in LEFT_OUT_HOST.of(*asked) if fact.host}
    return Found(
        present=tuple(present),
        missing=tuple(missing),
        lost=lost,
        problems=problems,
        places=places(records),
        domains=domains(records),
        hostnames=_hostnames(first),
        recorded=first is not None,
    )


def _hostnames(first: Record | None) -> dict[str, str] | None:
    return next((names for _, names in HOSTNAMES.among(first.facts)), None) if first else None


def places(records: Iterable[Record]) -> dict[str, str]:
    """Return the place of each host in the network: `row/rack/host`."""
    asked = [record for record in records if record.step == HOSTS_STEP]
    return {fact.host: place for fact, place in PLACE.of(*asked) if fact.host}


def domains(records: Iterable[Record]) -> tuple[frozenset[str], ...]:
    """Return the NVLink domains of more than one host, as the drivers reported them."""
    hosts_of: dict[str, set[str]] = {}
    for record in records:
        for fact, inventory in INVENTORY.of(record):
            host = record.host_of(fact)
            if inventory.domain and host:
                hosts_of.setdefault(inventory.domain, set()).add(host)
    return tuple(frozenset(hosts) for hosts in hosts_of.values() if len(hosts) > 1)


def verdict(
    plan: Plan, found: Found, records: Sequence[Record], unreported: Iterable[Problem] = ()
) -> CheckVerdict:
    """Return the verdict on whether all requested hosts took part until the end.

    `unreported`: problems that no check's findings cover.
    """
    own = dict.fromkeys(p for p in found.problems if plan.origin or p.host in found.missing)
    findings = [merge_findings(CHECK, one.cause, [_without_log(one)]) for one in own]
    gone = {*found.missing, *found.lost}
    by_cause: dict[Cause, list[Problem]] = {}
    for problem in dict.fromkeys(unreported):
        if problem not in own and problem.host not in gone:
            by_cause.setdefault(problem.cause, []).append(problem)
    findings += [
        merge_findings(CHECK, cause, [*map(_without_log, problems)])
        for cause, problems in by_cause.items()
    ]
    known = len(found.present) + len(found.missing)
    # Without any record, nothing is known about the hosts, and they are not to blame.
    if plan.nodes is not None and known < plan.nodes and (found.recorded or known):
        findings.append(_failed(Cause.RANK_COUNT, f"{known} of {plan.nodes} hosts were found", ()))
    findings += [
        _failed(cause, _lost_text(host, cause), (host,), state_of(cause))
        for host, cause in found.lost.items()
    ]
    untested = "" if found.recorded or plan.origin else "no record shows which hosts were found"
    if not known:
        untested = "the logs do not show their nodes" if plan.origin else "no node took part"
    if untested:
        findings.append(_failed(Cause.EVIDENCE_MISSING, untested, (), State.NOT_TESTED))
    if plan.origin:
        findings += _uncompared(plan, records)
        measured, required = f"{len(found.present)} in the logs", ""
    else:
        requested = max(plan.nodes or 0, known)
        more = f", {host_list(found.missing)} did not" if found.missing else ""
        measured = f"{len(found.present)} of {requested} nodes took part{more}"
        measured += _unknown_positions(plan, found)
        required = "all requested hosts"
    return CheckVerdict(
        check=CHECK,
        state=worst_state(one.state for one in findings),
        measured=measured,
        required=required,
        findings=tuple(findings),
    )


def is_only_absence(verdict: CheckVerdict, absent: Collection[str]) -> bool:
    """Return True if every failed finding of the check `hosts` is about one absent host."""
    failed = (one for one in verdict.findings if one.state is not State.PASS)
    return all(len(one.hosts) == 1 and one.hosts[0] in absent for one in failed)


def _unknown_positions(plan: Plan, found: Found) -> str:
    """Return a remark if positions in the network should be known and are not."""
    unknown = [host for host in found.present if host not in found.places]
    if len(found.present) < 2 or not unknown or not (plan.machine.topology or found.places):
        return ""
    return f"; positions {f'of {len(unknown)} ' if found.places else ''}unknown"


def _lost_text(host: str, cause: Cause) -> str:
    if cause.row.loses_host:
        return f"{host} was lost during the run"
    return f"{host} was excluded from the rest of the run: {cause.row.meaning}"


def _uncompared(plan: Plan, records: Sequence[Record]) -> Iterator[Finding]:
    """Yield a finding on hosts that were not compared, while others were. Only for logs."""
    compared_kinds = (GroupKind.EACH, GroupKind.LADDER)
    steps = {s.id for s in plan.steps if s.groups.of_pairs or s.groups in compared_kinds}
    groups: dict[str, list[Record]] = {}
    for record in records:
        if record.metrics and record.exit == 0:
            groups.setdefault(record.step, []).append(record)
    measured = dict.fromkeys(h for rs in groups.values() for r in rs for h in r.hosts)
    compared = {
        host
        for step, step_records in groups.items()
        if step in steps and len({r.hosts for r in step_records}) >= FEWEST
        for record in step_records
        for host in record.hosts
    }
    uncompared = tuple(host for host in measured if host not in compared)
    if compared and uncompared:
        text = f"{host_list(uncompared)} cannot be compared with others: fewer than {FEWEST} logs "
        text += "have the same sizes, number of GPUs and GPU name"
        state = State.INCONCLUSIVE
        yield finding(CHECK, Judgement.POPULATION, state, text, hosts=uncompared)


def _without_log(problem: Problem) -> tuple[Problem, str, tuple[str, ...]]:
    """Return a problem for `merge_findings`; a problem without message gets the host's name."""
    return replace(problem, message=problem.message or problem.host or ""), "", ()


def _failed(
    cause: Cause, message: str, hosts: Iterable[str] = (), state: State = State.FAIL
) -> Finding:
    return finding(CHECK, cause.row.judgement, state, message, cause, hosts=hosts)


def with_skipped(
    verdicts: Sequence[CheckVerdict], skipped: Sequence[Skipped]
) -> list[CheckVerdict]:
    """Add the steps that the plan skips: a note if the check has other steps, else a verdict."""
    result = {verdict.check: verdict for verdict in verdicts}
    for step in skipped:
        skipped_verdict = _skipped(step)
        known = result.get(step.check)
        if known is None:
            result[step.check] = skipped_verdict
            continue
        state = State.PASS if step.optional else State.NOT_TESTED
        note = replace(skipped_verdict.findings[0], state=state)
        result[step.check] = with_finding(known, note)
    return list(result.values())


def _skipped(step: Skipped) -> CheckVerdict:
    text, state = step.reason, State.NOT_TESTED
    if step.cause is Cause.DESELECTED:
        text = f"{step.subject} was left out by {step.reason}"
    one = finding(step.check, Judgement.COMPLETENESS, state, text, step.cause)
    return CheckVerdict(check=step.check, state=state, optional=step.optional, findings=(one,))


def no_gpu_seen() -> CheckVerdict:
    """Return the verdict for a machine with GPUs on which everything passed and no GPU was seen."""
    text = "no check detected a GPU; add inventory or connectivity to the suite"
    state = State.INCONCLUSIVE
    one = finding(CHECK, Judgement.COMPLETENESS, state, text, Cause.GPU_MISSING)
    return CheckVerdict(check="gpus", state=state, findings=(one,))


def without_gpus(plan: Plan, records: Iterable[Record]) -> dict[str, Cause]:
    """Return the hosts of a GPU machine without a GPU in an inventory and at any rank, and why.

    A host whose driver did not answer is not included: its GPUs are unknown.
    """
    has_gpu: dict[str, bool] = {}
    causes: dict[str, Cause] = {}
    for record in records if plan.machine.gpus != 0 else ():
        shown = [
            (fact, bool(i.gpus), i.start_fault) for fact, i in INVENTORY.of(record) if i.gpus_listed
        ]
        for fact, rank in RANK.of(record):
            shown.append((fact, bool(rank.gpu), Cause.GPU_LIST if rank.beyond_list else None))
        for fact, has_any, cause in shown:
            host = record.host_of(fact)
            has_gpu[host] = has_gpu.get(host, False) or has_any
            if cause is not None:
                causes[host] = cause
    empty = (host for host, has_any in has_gpu.items() if host and not has_any)
    return {host: causes.get(host, Cause.GPU_MISSING) for host in empty}


def is_device(wanted: str, name: str) -> bool:
    """Return True if a GPU called `name` is the device that a machine or bound calls `wanted`.

    The name may have more words, such as the memory size. But a card of the same chip is another
    product with other bounds. Logs may truncate names, and old drivers leave out "NVIDIA".
    """
    full = name.lower() if "nvidia" in name.lower() else f"nvidia {name.lower()}"
    before, found, after = full.partition(wanted.lower())
    words = re.split(r"[\s-]+", f"{before} {after}")
    return bool(found) and not any(form.startswith(w) for w in words if w for form in _CARDS)


def devices(records: Sequence[Record]) -> tuple[str, ...]:
    """Return the names of the GPUs in the inventories, each once."""
    gpus = (gpu for _, inventory in INVENTORY.of(*records) for gpu in inventory.gpus)
    return tuple(dict.fromkeys(gpu.name for gpu in gpus if gpu.name))


def gpu_tested(plan: Plan, records: Sequence[Record]) -> bool:
    """Return True if the machine should have GPUs and an inventory, rank or tool shows one."""
    if plan.machine.gpus == 0:
        return False
    listed = any(inventory.gpus for _, inventory in INVENTORY.of(*records))
    of_gpus = {step.id for step in plan.steps if step.tool and step.tool.of_gpus}
    measured = any(record.metrics for record in records if record.step in of_gpus)
    return listed or measured or any(rank.gpu for _, rank in RANK.of(*records))
