"""Check that every planned execution left a complete record; turn problems into findings."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from accept.core.groups import Wave, waves
from accept.core.judge.evidence import Evidence, Score
from accept.core.judge.summary import judgement_of, state_of
from accept.core.model import Finding, Plan, Problem, Record, State, Step


def host_mismatches(
    evidence: Evidence, known: Mapping[str, set[str]], record: Record, listed: Mapping[str, Any]
) -> Iterator[str]:
    """What speaks against the hosts in `listed`, each with its number of ranks, in words.

    `known`: what `hosts_by_short_name` says of the evidence.
    """
    each = record.ranks // max(1, len(record.hosts))
    if len(listed) > len(record.hosts):
        yield f"ranks ran on {len(listed)} hosts, and were started on {len(record.hosts)}"
        return
    for name, ranks in listed.items():
        hosts = known.get(_short(name), set())
        # The names of all are known where they were written down.
        if not hosts.intersection(record.hosts) and (hosts or evidence.hostnames is not None):
            yield f"ranks ran on {name[:80]}, which is none of its hosts"
            return
        most = each * (len(hosts.intersection(record.hosts)) or len(record.hosts))
        if not isinstance(ranks, int) or ranks > most or ranks % max(1, each):
            yield f"{ranks} ranks ran on {name[:80]}, {each} were started on each host"
            return


def hosts_by_short_name(evidence: Evidence) -> dict[str, set[str]]:
    """Short name -> hosts of the run that may print it. Grows with the run: once for a check."""
    known: dict[str, set[str]] = {}
    for host in evidence.hosts:
        for name in (host, (evidence.hostnames or {}).get(host, host)):
            known.setdefault(_short(name), set()).add(host)
    return known


def _short(name: str) -> str:
    return name.partition(".")[0].lower()


#: Group kinds that need two hosts.
_NEED_TWO = ("pairs", "rails", "ladder", "halves")
#: What ends a launch, whichever of its checks was running.
_ENDINGS = frozenset(
    {"crashed", "timed-out", "rank-hung", "host-died", "unkillable", "script-failed"}
)


def step_findings(evidence: Evidence) -> list[Finding]:
    """Findings about executions that the plan has and the records have not."""
    if evidence.partial or evidence.plan.origin:
        return []
    return [
        *(
            finding
            for step in evidence.steps
            for finding in _missing(evidence, step, evidence.of_step(step))
        ),
        *_other_ranks(evidence),
    ]


def _other_ranks(evidence: Evidence) -> Iterator[Finding]:
    """Whether executions started other ranks than were planned, or none.

    All hosts start as many as the one with the fewest GPUs: who that is the inventory says.
    """
    planned = _planned_ranks(evidence.plan)
    odd = []
    for record in evidence.records:
        each = len(record.local_ranks) or planned
        least = max(1, each or 1) * len(record.hosts)
        if record.ranks != least if each else record.ranks < least:
            odd.append((record, f"{least}" if each else f"{least} or more"))
    if odd:
        first, wanted = odd[0]
        said = f"step {first.step} started {_ranks(first.ranks)} on {host_list(first.hosts)}, and "
        said += f"{wanted} were planned; {len(odd)} of {len(evidence.records)} executions did so"
        yield Finding(
            check=evidence.check,
            judgement="completeness",
            state=State.FAIL,
            cause="rank-count",
            message=said,
            evidence=tuple(dict.fromkeys(record.log for record, _ in odd if record.log))[:8],
        )


def _ranks(count: int) -> str:
    return f"{count} rank{'s' * (count != 1)}"


def _planned_ranks(plan: Plan) -> int | None:
    """Ranks a host; None: as many as there are GPUs."""
    return plan.gpus_used or plan.machine.ranks or plan.machine.gpus or None


def _missing(evidence: Evidence, step: Step, records: Sequence[Record]) -> list[Finding]:
    if not records:
        if len(evidence.hosts) == 1 and step.groups in _NEED_TWO:
            return []
        why = evidence.broken_off or "there is no record of it"
        return [_not_run(evidence.check, f"step {step.id} did not run: {why}", evidence.broken_off)]
    seen = {host for record in records for host in record.hosts}
    absent = [host for host in evidence.hosts if host not in seen]
    findings = []
    lost = [host for host in absent if host in evidence.lost]
    if lost:
        findings.append(
            Finding(
                check=evidence.check,
                judgement="completeness",
                state=State.FAIL,
                cause=evidence.lost[lost[0]],
                message=f"step {step.id} did not run on {host_list(lost)}, which had left the run",
                hosts=tuple(lost),
            )
        )
    silent = [host for host in absent if host not in evidence.lost]
    # Of an odd number of hosts one sits out each round of pairs.
    odd = step.groups == "pairs" and (len(evidence.hosts) - len(lost)) % 2
    if silent and not (odd and len(silent) == 1):
        message = f"step {step.id} has no record of {host_list(silent)}"
        return [*findings, _not_run(evidence.check, message, evidence.broken_off)]
    present = tuple(host for host in evidence.hosts if host in seen or host in silent)
    # A host lost on the way takes its later groups with it.
    fewer = sum(host in evidence.lost for host in present)
    counts = Counter(record.wave for record in records)
    for number, wave in enumerate(_schedule(evidence, step, present, records)):
        if counts[number] < len(wave) - fewer:
            message = f"wave {number} of step {step.id} has a record of {counts[number]} groups, "
            message += f"and {len(wave)} were planned"
            findings.append(_not_run(evidence.check, message, evidence.broken_off))
    return findings


def _not_run(check: str, message: str, broken_off: str) -> Finding:
    return Finding(
        check=check,
        judgement="completeness",
        state=State.NOT_TESTED,
        cause=None if broken_off else "evidence-missing",
        message=message,
    )


def _schedule(
    evidence: Evidence, step: Step, hosts: tuple[str, ...], records: Sequence[Record]
) -> tuple[Wave, ...]:
    ranks = _local_ranks(evidence, records) if step.groups == "rails" else 1
    return waves(step.groups, hosts, rounds=step.rounds, seed=evidence.plan.seed, ranks=ranks)


def _local_ranks(evidence: Evidence, records: Sequence[Record]) -> int:
    """Ranks a host: as planned, else as seen."""
    seen = max((rank for record in records for rank in record.local_ranks), default=0) + 1
    return _planned_ranks(evidence.plan) or seen


def problem_findings(
    evidence: Evidence, *, score: Score | None = None, more: Iterable[Problem] = ()
) -> list[Finding]:
    """Findings about executions that failed, one for each cause; `more` are the check's own.

    A launch that serves several checks may have failed after this one was done: with a score, and
    nothing said against this check, the failure is the others'.
    """
    steps = {step.id: step for step in evidence.steps}
    by_cause: dict[str, list[tuple[Problem, str, tuple[str, ...]]]] = {}

    def add(problem: Problem, log: str, hosts: tuple[str, ...]) -> None:
        by_cause.setdefault(problem.cause, []).append((problem, log, hosts))

    for record in evidence.records:
        if record.exit == 0 and not record.problems:
            continue
        value, bad = score(record, steps[record.step]) if score is not None else (None, "")
        mine = [p for p in record.problems if p.check in (None, evidence.check)]
        wrong = bad == "wrong-data" or any(p.cause == "wrong-data" for p in mine)
        done = value is not None and len(record.checks) > 1
        for problem in mine:
            ended = problem.check is None and problem.cause in _ENDINGS
            if not ended or not (done or (wrong and problem.cause == "crashed")):
                add(problem, record.log, record.hosts)
        if record.exit != 0 and not mine and not done and not wrong:
            add(Problem(cause="crashed", message=_exit_text(record)), record.log, record.hosts)
    for problem in more:
        add(problem, "", ())
    return [merge_findings(evidence.check, cause, found) for cause, found in by_cause.items()]


def _exit_text(record: Record) -> str:
    if record.exit is None:
        return f"step {record.step} on {host_list(record.hosts)} was killed or never started"
    return f"step {record.step} on {host_list(record.hosts)} ended with status {record.exit}"


def merge_findings(
    check: str, cause: str, found: Sequence[tuple[Problem, str, tuple[str, ...]]]
) -> Finding:
    """A finding on problems of one cause, each with its log and the hosts that took part."""
    named = dict.fromkeys(problem.host for problem, _, _ in found if problem.host)
    hosts = named or dict.fromkeys(host for _, _, hosts in found for host in hosts)
    first = found[0][0].message or cause
    return Finding(
        check=check,
        judgement=judgement_of(cause),
        state=state_of(cause),
        cause=cause,
        message=first if len(found) == 1 else f"{first} (and {len(found) - 1} more)",
        hosts=tuple(hosts),
        evidence=tuple(dict.fromkeys(log for _, log, _ in found if log))[:8],
    )


def device_label(host: str | None, rank: int | None, gpu: str | None) -> str:
    """A device for people: "GPU 3 of h1", or "rank 3 of h1" where there is no GPU."""
    return f"GPU {gpu} of {host}" if gpu else f"rank {rank} of {host}"


def host_list(hosts: Sequence[str], most: int = 4) -> str:
    """Names of a few hosts, and how many more there are."""
    more = f" and {len(hosts) - most} more" if len(hosts) > most else ""
    return ", ".join(hosts[:most]) + more
