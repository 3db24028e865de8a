"""Which hosts took part, which never did, which were lost, and what GPUs they have."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from accept.core import causes
from accept.core.judge.completeness import host_list, merge_findings
from accept.core.judge.robust_stats import FEWEST
from accept.core.judge.summary import judgement_of, worst
from accept.core.judge.suspects import HOSTS_STEP
from accept.core.model import CheckVerdict, Finding, Plan, Problem, Record, Skipped, State

#: Words for the cards of a chip, beside its modules: NVIDIA H200 NVL, NVIDIA H100 PCIe.
_CARDS = ("nvl", "pcie")
#: What takes a host out of the rest of the run.
_LOSSES = frozenset({"host-died", "unkillable"})
#: The fact by which the coordinator records a host that it left out; its value is the cause.
LEFT_OUT = "left-out-host"
#: Group kinds whose groups are compared, and so their hosts.
_COMPARED = frozenset({"each", "pairs", "ladder"})


@dataclass(frozen=True, kw_only=True)
class Found:
    """The hosts of a run, in its order."""

    present: tuple[str, ...]
    missing: tuple[str, ...]
    #: Lost on the way, with the cause.
    lost: dict[str, str]
    #: What was said about hosts that never answered; of logs also about what the others lack.
    problems: tuple[Problem, ...]
    #: Where hosts are, of those that said.
    places: dict[str, str]
    #: Hosts of one NVLink domain, as the driver said on each: domains of several.
    domains: tuple[frozenset[str], ...]
    #: Host -> what it calls itself, where that is another name; None: nobody wrote it down.
    hostnames: Mapping[str, str] | None
    #: Whether there is a record of how the hosts were found.
    recorded: bool


def find(records: Sequence[Record]) -> Found:
    """Read the hosts from the record of the step that found them, else from all records."""
    first = next((r for r in records if r.step == HOSTS_STEP and r.wave == 0), None)
    seen = dict.fromkeys(host for r in records if r.step != HOSTS_STEP for host in r.hosts)
    present = dict.fromkeys(first.hosts if first else ()) | seen
    problems = first.problems if first else ()
    missing = dict.fromkeys(p.host for p in problems if p.host and p.host not in present)
    lost = {p.host: p.cause for r in records for p in r.problems if p.host and p.cause in _LOSSES}
    lost |= {
        fact.host: str(fact.value)
        for record in records
        if record.step == HOSTS_STEP
        for fact in record.facts
        if fact.name == LEFT_OUT and fact.host
    }
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
    for fact in first.facts if first else ():
        if fact.name == "hostnames" and isinstance(fact.value, dict):
            return {host: str(name) for host, name in fact.value.items()}
    return None


def places(records: Iterable[Record]) -> dict[str, str]:
    """Where hosts are, as the machine's `topology` said on each: `row/rack/host`."""
    return {
        fact.host: fact.value
        for record in records
        if record.step == HOSTS_STEP
        for fact in record.facts
        if fact.name == "place" and fact.host and isinstance(fact.value, str)
    }


def domains(records: Iterable[Record]) -> tuple[frozenset[str], ...]:
    """Hosts whose GPUs are in one NVLink domain, as the driver said on each: several at a time."""
    found: dict[str, set[str]] = {}
    for record in records:
        for fact in record.facts:
            name = fact.value.get("domain") if isinstance(fact.value, dict) else None
            host = fact.host or (record.hosts[0] if len(record.hosts) == 1 else "")
            if fact.name == "inventory" and isinstance(name, str) and name and host:
                found.setdefault(name, set()).add(host)
    return tuple(frozenset(one) for one in found.values() if len(one) > 1)


def verdict(
    plan: Plan, found: Found, records: Sequence[Record], untold: Iterable[Problem] = ()
) -> CheckVerdict:
    """Whether all hosts asked for took part, to the end; `untold`: problems that no check tells."""
    own = dict.fromkeys(p for p in found.problems if plan.origin or p.host in found.missing)
    findings = [merge_findings("hosts", problem.cause, [_unlogged(problem)]) for problem in own]
    gone = {*found.missing, *found.lost}
    by_cause: dict[str, list[Problem]] = {}
    for problem in dict.fromkeys(untold):
        if problem not in own and problem.host not in gone:
            by_cause.setdefault(problem.cause, []).append(problem)
    findings += [
        merge_findings("hosts", cause, [*map(_unlogged, mine)]) for cause, mine in by_cause.items()
    ]
    said = len(found.present) + len(found.missing)
    # Where nothing was written down, nothing is known of the hosts: that is no fault of theirs.
    known = found.recorded or said > 0
    if plan.nodes is not None and said < plan.nodes and known:
        findings.append(_finding("rank-count", f"{said} of {plan.nodes} hosts are known", ()))
    findings += [
        _finding(cause, _lost_text(host, cause), (host,)) for host, cause in found.lost.items()
    ]
    lacking = "" if found.recorded or plan.origin else "no record shows which hosts were found"
    lacking = "no host took part" if not found.present and not found.missing else lacking
    if lacking:
        findings.append(_finding("evidence-missing", lacking, (), State.NOT_TESTED))
    more = f", {host_list(found.missing)} did not" if found.missing else ""
    if plan.origin:
        findings += _uncompared(plan, records)
        return CheckVerdict(
            check="hosts",
            state=worst(finding.state for finding in findings),
            measured=f"{len(found.present)} in the logs",
            findings=tuple(findings),
        )
    asked = plan.nodes if plan.nodes is not None else said
    return CheckVerdict(
        check="hosts",
        state=worst(finding.state for finding in findings),
        measured=f"{len(found.present)} of {max(asked, said)} hosts took part{more}",
        against="all that were asked for",
        findings=tuple(findings),
    )


def _lost_text(host: str, cause: str) -> str:
    if cause in _LOSSES:
        return f"{host} was lost in the middle of the run"
    return f"{host} was left out of the rest of the run: {causes.meaning(cause)}"


def _uncompared(plan: Plan, records: Sequence[Record]) -> Iterator[Finding]:
    """A finding on hosts that were compared with nobody, where others were. For logs alone."""
    steps = {step.id for step in plan.steps if step.groups in _COMPARED}
    groups: dict[str, list[Record]] = {}
    for record in records:
        if record.metrics and record.exit == 0:
            groups.setdefault(record.step, []).append(record)
    everybody = dict.fromkeys(h for mine in groups.values() for r in mine for h in r.hosts)
    compared = {
        host
        for step, mine in groups.items()
        if step in steps and len({r.hosts for r in mine}) >= FEWEST
        for record in mine
        for host in record.hosts
    }
    alone = tuple(host for host in everybody if host not in compared)
    if compared and alone:
        yield Finding(
            check="hosts",
            judgement="population",
            state=State.INCONCLUSIVE,
            message=f"{host_list(alone)} cannot be compared with others: fewer than {FEWEST} logs "
            "are of the same sizes, on as many GPUs of that name",
            hosts=alone,
        )


def _unlogged(problem: Problem) -> tuple[Problem, str, tuple[str, ...]]:
    """A problem that is of no log; one without words has the name of its host."""
    return replace(problem, message=problem.message or problem.host or ""), "", ()


def _finding(
    cause: str, message: str, hosts: tuple[str | None, ...], state: State = State.FAIL
) -> Finding:
    return Finding(
        check="hosts",
        judgement=judgement_of(cause),
        state=state,
        cause=cause,
        message=message,
        hosts=tuple(host for host in hosts if host),
    )


def with_skipped(
    verdicts: Sequence[CheckVerdict], skipped: Sequence[Skipped]
) -> list[CheckVerdict]:
    """Add what the plan leaves out: a note where the check has other steps, else a verdict."""
    result = {one.check: one for one in verdicts}
    for one in skipped:
        made = _skipped(one)
        known = result.get(one.check)
        if known is None:
            result[one.check] = made
            continue
        state = State.PASS if one.optional else State.NOT_TESTED
        finding = replace(made.findings[0], state=state)
        result[one.check] = replace(
            known, state=worst((known.state, state)), findings=(*known.findings, finding)
        )
    return list(result.values())


def _skipped(one: Skipped) -> CheckVerdict:
    over = "budget" in one.reason
    finding = Finding(
        check=one.check,
        judgement="completeness",
        state=State.NOT_TESTED,
        cause="over-budget" if over else None,
        message=one.reason,
    )
    return CheckVerdict(
        check=one.check, state=State.NOT_TESTED, optional=one.optional, findings=(finding,)
    )


def no_gpu_seen() -> CheckVerdict:
    """Return the verdict for a machine with GPUs on which everything passed and no GPU was seen."""
    finding = Finding(
        check="hosts",
        judgement="completeness",
        state=State.INCONCLUSIVE,
        cause="gpu-missing",
        message="no check detected a GPU; add inventory or connectivity to the suite",
    )
    return CheckVerdict(check="gpus", state=State.INCONCLUSIVE, findings=(finding,))


def gpus_of(value: Any) -> list[dict[str, Any]]:
    """The GPUs that an inventory fact lists; [] where it is damaged."""
    listed = value.get("gpus") if isinstance(value, dict) else None
    return [gpu for gpu in listed if isinstance(gpu, dict)] if isinstance(listed, list) else []


def without_gpus(plan: Plan, records: Iterable[Record]) -> tuple[str, ...]:
    """Return the hosts of a GPU machine that show no GPU, neither in an inventory nor to a rank.

    A host whose driver did not answer is not among them: its GPUs are not known.
    """
    shown: dict[str, bool] = {}
    for record in records if plan.machine.gpus != 0 else ():
        for fact in record.facts:
            host = fact.host or (record.hosts[0] if len(record.hosts) == 1 else "")
            value = fact.value if isinstance(fact.value, dict) else {}
            if fact.name == "inventory" and isinstance(value.get("gpus"), list):
                shown[host] = shown.get(host, False) or bool(gpus_of(value))
            elif fact.name == "rank":
                shown[host] = shown.get(host, False) or bool(value.get("gpu"))
    return tuple(host for host, has_gpu in shown.items() if host and not has_gpu)


def is_device(wanted: str, name: str) -> bool:
    """Whether a GPU called `name` is what a machine or a bound calls `wanted`.

    It may say more, as its memory; but not that it is a card of that chip, which is another product
    with figures of its own. Logs may cut names short.
    """
    before, found, after = name.lower().partition(wanted.lower())
    words = re.split(r"[\s-]+", f"{before} {after}")
    return bool(found) and not any(form.startswith(w) for w in words if w for form in _CARDS)


def devices(records: Sequence[Record]) -> tuple[str, ...]:
    """Names of the GPUs found, each once."""
    names = (gpu.get("name") for gpu in _gpus(records))
    return tuple(dict.fromkeys(name for name in names if isinstance(name, str) and name))


def _gpus(records: Sequence[Record]) -> Iterator[dict[str, Any]]:
    for record in records:
        for fact in record.facts:
            if fact.name == "inventory":
                yield from gpus_of(fact.value)


def gpu_tested(plan: Plan, records: Sequence[Record]) -> bool:
    """Whether the run is one of GPUs, and met any."""
    if plan.machine.gpus == 0:
        return False
    if any(True for _ in _gpus(records)):
        return True
    ranks = (f.value for r in records for f in r.facts if f.name == "rank")
    return any(isinstance(value, dict) and value.get("gpu") for value in ranks)
