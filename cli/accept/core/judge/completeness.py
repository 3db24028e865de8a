"""Check that every planned execution left a complete record; turn problems into findings."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType

from accept.core.causes import Cause, Judgement
from accept.core.facts import NCCL_WARNINGS
from accept.core.groups import waves
from accept.core.judge.evidence import Evidence
from accept.core.judge.findings import finding
from accept.core.judge.summary import state_of
from accept.core.plan import GroupKind, Step
from accept.core.records import Problem, Record
from accept.core.signs import catalog
from accept.core.table import Outcome
from accept.core.text import count, folded, host_list, plain
from accept.core.verdict import Finding, State

_MAX_QUOTE = 240
#: Group kinds that need two hosts.
_NEED_TWO = (
    GroupKind.PAIRS,
    GroupKind.RAILS,
    GroupKind.RAIL_PAIRS,
    GroupKind.LADDER,
    GroupKind.HALVES,
)


# Planned executions


def step_findings(evidence: Evidence) -> list[Finding]:
    """Return findings on planned executions without a record or with a wrong number of ranks."""
    if evidence.partial or evidence.plan.origin:
        return []
    missing = [found for step in evidence.steps for found in _missing(evidence, step)]
    return [*missing, *_rank_count(evidence)]


def _missing(evidence: Evidence, step: Step) -> Iterator[Finding]:
    """Yield findings on the hosts and groups of a step that have no record."""
    records = evidence.of_step(step)
    if not records:
        left = [host for host in evidence.hosts if host not in evidence.found.lost]
        if len(left) > 1 or step.groups not in _NEED_TWO:
            why = evidence.interruption or "it has no record"
            yield _not_run(evidence, f"step {step.id} did not run: {why}")
        return
    seen = {host for record in records for host in record.hosts}
    absent = [host for host in evidence.hosts if host not in seen]
    lost = [host for host in absent if host in evidence.found.lost]
    if lost:
        text = f"step {step.id} did not run on {host_list(lost)} (lost before the step)"
        cause, judgement = evidence.found.lost[lost[0]], Judgement.COMPLETENESS
        yield finding(evidence.check, judgement, state_of(cause), text, cause, hosts=lost)
    unrecorded = [host for host in absent if host not in evidence.found.lost]
    # With an odd number of hosts, one host sits out each round of pairs.
    odd = step.groups.of_pairs and (len(evidence.hosts) - len(lost)) % 2
    if unrecorded and not (odd and len(unrecorded) == 1):
        yield _not_run(evidence, f"step {step.id} has no record of {host_list(unrecorded)}")
        return
    plan = evidence.plan
    present = tuple(host for host in evidence.hosts if host in seen or host in unrecorded)
    highest = max((rank for record in records for rank in record.local_ranks), default=0)
    rails = plan.ranks or highest + 1
    # Each host that was lost during the step may be missing in one group of each later wave, and in
    # one of each rail if each pair has a group for each rail.
    lost_count = sum(host in evidence.found.lost for host in present)
    if step.groups is GroupKind.RAIL_PAIRS:
        lost_count *= rails
    planned = waves(
        step.groups,
        present,
        rounds=step.rounds,
        seed=plan.seed,
        ranks=rails if step.groups.of_rails else 1,
        pairs=plan.pairs,
    )
    counts = Counter(record.wave for record in records)
    for number, wave in enumerate(planned):
        if counts[number] < len(wave) - lost_count:
            text = f"step {step.id} has records of {counts[number]} of {len(wave)} groups "
            yield _not_run(evidence, f"{text}in wave {number}")


def _not_run(evidence: Evidence, message: str) -> Finding:
    cause = None if evidence.interruption else Cause.EVIDENCE_MISSING
    return finding(evidence.check, Judgement.COMPLETENESS, State.NOT_TESTED, message, cause)


def _rank_count(evidence: Evidence) -> Iterator[Finding]:
    """Yield a finding if executions started a wrong number of ranks."""
    planned = evidence.plan.ranks
    wrong = []
    for record in evidence.records:
        per_host = len(record.local_ranks) or planned
        lowest = max(1, per_host or 1) * len(record.hosts)
        if record.ranks != lowest if per_host else record.ranks < lowest:
            wrong.append((record, f"{lowest}" if per_host else f"at least {lowest}"))
    if wrong:
        first, expected = wrong[0]
        text = f"step {first.step} started {count(first.ranks, 'rank')} on "
        text += f"{host_list(first.hosts)} (planned: {expected}); "
        text += f"{len(wrong)} of {len(evidence.records)} executions have a wrong number of ranks"
        logs = (record.log for record, _ in wrong)
        judgement, cause = Judgement.COMPLETENESS, Cause.RANK_COUNT
        yield finding(evidence.check, judgement, State.FAIL, text, cause, logs=logs)


# Hosts that logs list


def host_mismatches(
    evidence: Evidence,
    by_short_name: Mapping[str, set[str]],
    record: Record,
    listed: Mapping[str, int | None],
) -> Iterator[str]:
    """Yield the differences between the hosts in a log and those of its record, for people.

    `listed` maps the host names in the log to their numbers of ranks. `by_short_name` is the
    result of `hosts_by_short_name`.
    """
    per_host = record.ranks // max(1, len(record.hosts))
    if len(listed) > len(record.hosts):
        yield f"ranks ran on {count(len(listed), 'node')}, but were started on {len(record.hosts)}"
        return
    for name, ranks in listed.items():
        hosts = by_short_name.get(_short(name), set())
        # An unknown name is wrong only if the names of all hosts were recorded.
        if not hosts.intersection(record.hosts) and (hosts or evidence.found.hostnames is not None):
            yield f"ranks ran on {name[:80]}, where none were started"
            return
        highest = per_host * (len(hosts.intersection(record.hosts)) or len(record.hosts))
        if ranks is None or ranks > highest or ranks % max(1, per_host):
            yield f"{ranks} ranks ran on {name[:80]}, but {per_host} were started on each host"
            return


def hosts_by_short_name(evidence: Evidence) -> dict[str, set[str]]:
    """Return the hosts of the run that may print a short host name, by that name.

    The cost grows with the number of hosts, so call it once for each check.
    """
    by_short_name: dict[str, set[str]] = {}
    for host in evidence.hosts:
        for name in (host, (evidence.found.hostnames or {}).get(host, host)):
            by_short_name.setdefault(_short(name), set()).add(host)
    return by_short_name


def _short(name: str) -> str:
    return name.partition(".")[0].lower()


# Problems


def problem_findings(
    evidence: Evidence,
    *,
    outcomes: Mapping[int, Outcome] = MappingProxyType({}),
    more: Iterable[Problem] = (),
) -> list[Finding]:
    """Return findings on executions that failed, one for each cause and known line.

    `outcomes`: id of a record -> the outcome of this check. If it measured everything and has no
    problem of its own, a failure of the shared launch belongs to the other checks. `more` are
    problems that the check itself found.
    """
    by_cause: dict[tuple[Cause, str | None], list[tuple[Problem, str, tuple[str, ...]]]] = {}

    def add(problem: Problem, log: str, hosts: tuple[str, ...], nccl: str = "") -> None:
        is_new = nccl.partition(": ")[2] not in problem.message
        if nccl and is_new and problem.cause.row.ends_launch:
            message = f"{problem.message or problem.cause}; NCCL on {nccl}"
            problem = replace(problem, message=message)
        key = problem.cause, problem.sign
        by_cause.setdefault(key, []).append((problem, log, hosts))

    for record in evidence.records:
        if record.exit == 0 and not record.problems:
            continue
        outcome = outcomes.get(id(record), Outcome.MISSING)
        problems = [p for p in record.problems if p.check in (None, evidence.check)]
        wrong = any(p.cause is Cause.WRONG_DATA for p in problems) or outcome is Outcome.WRONG
        done = outcome in (Outcome.OK, Outcome.WRONG) and len(record.checks) > 1
        nccl = decisive_warning(record) if record.exit != 0 else ""
        for problem in problems:
            ended = problem.check is None and problem.cause.row.ends_launch
            if not ended or not (done or (wrong and problem.cause is Cause.CRASHED)):
                add(problem, record.log, record.hosts, nccl)
        if record.exit != 0 and not problems and not done and not wrong:
            problem = Problem(cause=Cause.CRASHED, message=_exit_text(record))
            add(problem, record.log, record.hosts, nccl)
    for problem in more:
        add(problem, "", ())
    return [merge_findings(evidence.check, cause, own) for (cause, _), own in by_cause.items()]


def repeated_launches(evidence: Evidence) -> Iterator[Finding]:
    """Yield a note on the executions whose launch failed once and then succeeded."""
    found = [
        (Problem(cause=Cause.LAUNCH_FAILED, message=launch.message), launch.log, record.hosts)
        for record in evidence.records
        if (launch := record.failed_launch) is not None and record.exit == 0
    ]
    if found:
        note = merge_findings(evidence.check, Cause.LAUNCH_FAILED, found)
        message = f"{note.message}; started once more, and that result counts"
        yield replace(note, state=State.PASS, message=message)


def decisive_warning(record: Record) -> str:
    """Return the warning of NCCL that best explains a failure, as "HOST: TEXT"; "" if none.

    A warning of the network or of CUDA explains the timeouts and closed connections that follow.
    """
    warnings = [text for _, texts in NCCL_WARNINGS.of(record) for text in texts]
    found = []
    for text in warnings:
        message = text.partition(": ")[2].encode()
        if match := catalog().in_line(b"NCCL WARN " + message):
            found.append((match.sign.weight, text))
    best = max(found, key=lambda one: one[0])[1] if found else warnings[-1] if warnings else ""
    return plain(best, _MAX_QUOTE)


def merge_findings(
    check: str, cause: Cause, problems: Sequence[tuple[Problem, str, tuple[str, ...]]]
) -> Finding:
    """Return one finding on problems of one cause, each with its log and the hosts that took part.

    The finding names the hosts that the problems name, else all hosts that took part.
    """
    named = dict.fromkeys(problem.host for problem, _, _ in problems if problem.host)
    hosts = named or dict.fromkeys(host for _, _, hosts in problems for host in hosts)
    first = problems[0][0].message or cause
    others = len(problems) - 1
    text = f"{first} (and {count(others, 'more problem')})" if others else first
    if len(named) > 1 and all(
        problem.message == problems[0][0].message for problem, _, _ in problems
    ):
        text = f"{folded([*named])}: {first}"
    return finding(
        check,
        cause.row.judgement,
        state_of(cause),
        text,
        cause,
        hosts=hosts,
        logs=(log for _, log, _ in problems),
        sign=problems[0][0].sign,
    )


def _exit_text(record: Record) -> str:
    if record.exit is None:
        return f"step {record.step} on {host_list(record.hosts)} was killed or never started"
    return f"step {record.step} on {host_list(record.hosts)} ended with status {record.exit}"
