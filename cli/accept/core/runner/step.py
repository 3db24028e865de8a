"""Execute a step: its waves, without lost hosts and again after outliers, and its results."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from accept.core import evidence
from accept.core.causes import Cause
from accept.core.checks import REGISTRY, checks_of, log_lines
from accept.core.facts import LEFT_OUT_HOST, RANK, inventories_of
from accept.core.groups import Wave, waves
from accept.core.judge import conclude_step, to_set_aside
from accept.core.judge.consistency import withheld
from accept.core.judge.hosts import domains, places, without_gpus
from accept.core.judge.remeasure import waves_again
from accept.core.judge.suspects import HOSTS_STEP
from accept.core.judge.versions import shown
from accept.core.plan import Step
from accept.core.records import Fact, Record
from accept.core.runner import events
from accept.core.runner.clock import now
from accept.core.runner.events import Event, EventKind
from accept.core.runner.execute import execute_wave
from accept.core.runner.log import largest_table, say, show
from accept.core.runner.state import Run
from accept.core.text import count, duration, plain, value_range
from accept.core.verdict import Finding


class Aborted(Exception):
    """The run cannot continue; the text is the reason."""


async def execute_step(state: Run, step: Step, position: str) -> None:
    """Execute a step, measure its outliers again, and print the results.

    `position` is the step's number, such as `2/5`.
    """
    if not state.alive():
        raise Aborted("no host is left")
    plan_waves = _waves(state, step)
    began = now()
    say(
        f"step {position} starts: {step.id}: {', '.join(step.checks)} on {step.groups}, "
        f"{count(len(plan_waves), 'wave')}, about {duration(step.estimate)}"
    )
    events.report(Event(event=EventKind.STEP_BEGAN, step=step.id, waves=len(plan_waves)))
    records: list[Record] = []
    await _execute_waves(state, step, plan_waves, records)
    await measure_without_lost(state, step, records)
    while repeated_waves := waves_again(
        state.plan,
        step,
        records,
        [h.name for h in state.alive()],
        places(state.records),
        domains(state.records),
        checks=REGISTRY,
    ):
        measured = len(records)
        groups = count(sum(map(len, repeated_waves)), "group")
        say(f"  {step.id}: outliers; measuring {groups} again")
        await _execute_waves(state, step, repeated_waves, records, again=True)
        if len(records) == measured:
            break  # no host of these groups is alive
    if len(records) > evidence.LOOSE_LOGS:
        evidence.archive_logs(state.evidence, step.id)
    _print_results(state, step, position, records, took=now() - began)
    checks = checks_of(step)
    if any(check.shows_gpus or check.read_only for check in checks):
        _set_aside_faulty_hosts(state, step, began)
    if any(check.gate for check in checks):
        _stop_unless_all_ranks(state, records)


def _print_results(
    state: Run, step: Step, position: str, records: Sequence[Record], *, took: float
) -> None:
    """Report what a step measured, with the problems, findings and tables."""
    findings, measured_ranges = conclude_step(state.plan, step, state.records, checks=REGISTRY)
    failed = [r for r in records if events.has_failed(r) or _is_accused(r, findings)]
    groups = count(len(records), "group")
    events.report(
        Event(
            event=EventKind.STEP_ENDED,
            step=step.id,
            done=len(records),
            total=len(records),
            bad=len(failed),
            suspects=events.few([host for finding in findings for host in finding.hosts]),
            figures=tuple(
                f"{one.check} {value_range((one.worst, one.median))} {one.unit}"
                for one in measured_ranges
            ),
        )
    )
    say(
        f"[{position}] {step.id} ({', '.join(step.checks)}) {step.groups}, {groups}: "
        f"{len(records) - len(failed)} good, {len(failed)} with problems, "
        f"{duration(took)}"
    )
    with_problems = [record for record in failed if events.has_failed(record)]
    for record in with_problems[:20]:
        say(f"  {_shown_hosts(record.hosts)}: {_reason(record)}")
    reported = {problem.cause for record in with_problems for problem in record.problems}
    for finding in [f for f in findings if f.cause not in reported][:20]:
        subject = _shown_hosts(finding.hosts) or finding.check
        say(f"  {subject}: {plain(finding.message, 300)} ({finding.cause})")
    for line in log_lines(step, records):
        say(f"  {line}")
    for line in _new_versions(state, step, records):
        say(f"  {line}")
    for line in largest_table(state.evidence, records, step.profile):
        show(line)


def _new_versions(state: Run, step: Step, records: Sequence[Record]) -> list[str]:
    """Return what a step shows about the versions that it loaded, unless earlier steps did."""
    inventories = inventories_of(state.records, [host.name for host in state.hosts])
    earlier = [record for record in state.records if record.step != step.id]
    known = shown(state.plan, earlier, inventories)
    return [line for line in shown(state.plan, records, inventories) if line not in known][:10]


def _waves(state: Run, step: Step) -> tuple[Wave, ...]:
    """Return the waves of a step on the hosts that are alive, at least one."""
    alive = state.alive()
    return waves(
        step.groups,
        [h.name for h in alive],
        rounds=step.rounds,
        seed=state.plan.seed,
        ranks=alive[0].slots,
        pairs=state.plan.pairs,
    )


async def measure_without_lost(state: Run, step: Step, records: list[Record]) -> None:
    """Measure hosts again that were measured only together with a lost one, and add to `records`.

    Stop if that loses no other host.
    """
    known = -1
    while len(state.lost) > known and _lost_others(state, step, records):
        known = len(state.lost)
        say(f"  {step.id}: measuring the other hosts without the lost ones")
        await _execute_waves(state, step, _waves(state, step), records, again=True)


def _lost_others(state: Run, step: Step, records: Sequence[Record]) -> bool:
    """Return True if a lost host ended executions, and other hosts have no good one."""
    if step.groups.of_pairs or step.groups.of_single_hosts:
        return False
    bad = [record for record in records if events.has_failed(record)]
    measured = {host for record in records if record not in bad for host in record.hosts}
    return any(not state.lost.keys().isdisjoint(record.hosts) for record in bad) and any(
        host.name not in measured for host in state.alive()
    )


def _shown_hosts(hosts: Sequence[str]) -> str:
    """Return the first four hosts, and an ellipsis if there are more."""
    return f"{' '.join(hosts[:4])}{' …' * (len(hosts) > 4)}"


def _is_accused(record: Record, findings: Sequence[Finding]) -> bool:
    """Return True if a failed finding is about a record: its hosts, its log, or all records."""
    return any(
        not set(finding.hosts).isdisjoint(record.hosts)
        or record.log in finding.evidence
        or not (finding.hosts or finding.evidence)
        for finding in findings
    )


def _set_aside_faulty_hosts(state: Run, step: Step, began: float) -> None:
    """Continue without the hosts that a step shows to have a hard fault.

    Ranks of a host without any GPU would compute on the CPU, so without other hosts the run ends.
    """
    faults = {
        host: (suspect.cause, suspect.why)
        for host, suspect in to_set_aside(state.plan, step, state.records, checks=REGISTRY).items()
    }
    alive = [host.name for host in state.alive()]
    not_given = withheld(inventories_of(state.records, alive), state.plan)
    empty = without_gpus(state.plan, state.records)
    for host, cause in empty.items():
        by = "CUDA_VISIBLE_DEVICES gives" if cause is Cause.GPU_LIST else "it shows"
        faults.setdefault(host, (cause, f"{by} no GPU"))
    faults |= not_given
    faulty = [name for name in alive if name in faults]
    if not faulty:
        return
    if len(faulty) == len(alive) or (state.plan.require_all_nodes and (empty or not_given)):
        shown = f"{faulty[0]}: {faults[faulty[0]][1]}"
        more = f", and {len(faulty) - 1} more" if len(faulty) > 1 else ""
        raise Aborted(f"hosts cannot take part: {plain(shown, 300)}{more}")
    for name in faulty:
        cause, why = faults[name]
        say(f"  set aside: {name}: {plain(why, 300)} ({cause})")
        state.lose(name, cause, f"{name} takes no further part: {why}")
    # The record counts as part of the health sweep before this step.
    number = max([1, *(r.wave for r in state.records if r.step == HOSTS_STEP)])
    facts = [
        Fact(name=LEFT_OUT_HOST.name, value=faults[name][0].value, check="hosts", host=name)
        for name in faulty
    ]
    # The checks name the others, some with the GPU.
    problems = [state.lost[n] for n in faulty if n in empty and not faults[n][0].row.not_tested]
    state.keep_asked(number, began, facts=facts, problems=problems)


async def _execute_waves(
    state: Run,
    step: Step,
    plan_waves: Sequence[Wave],
    records: list[Record],
    *,
    again: bool = False,
) -> None:
    """Run waves one after the other and add to `records`, from whose waves the numbers continue."""
    first = 1 + max((r.wave for r in records), default=-1)
    for number, wave in enumerate(plan_waves, first):
        _stop_when_over(state)
        began = now()
        # Skip groups with a host that was lost in an earlier wave.
        kept = tuple(g for g in wave if not any(name in state.lost for name in g.hosts))
        title = f"  wave {number - first + 1} of {len(plan_waves)}"
        if len(plan_waves) > 1:
            say(f"{title} starts: {count(len(kept), 'group')}")
        ended = events.wave_reporter(
            step.id,
            wave=number - first + 1,
            waves=len(plan_waves),
            total=len(kept),
            bad=sum(map(events.has_failed, records)),
            again=again,
        )
        done = await execute_wave(state, step, number, kept, ended)
        records += done
        if len(plan_waves) > 1:
            good = len(done) - sum(map(events.has_failed, done))
            took = duration(now() - began)
            say(f"{title} ended: {good} of {len(done)} without problems, {took}")
    _stop_when_over(state)


def _stop_when_over(state: Run) -> None:
    if state.is_over():
        raise Aborted(over_deadline(state))


def over_deadline(state: Run) -> str:
    """Return the reason of a run that ended because it took too long."""
    return f"the run did not end within {duration(state.seconds)}"


def _stop_unless_all_ranks(state: Run, records: Sequence[Record]) -> None:
    """Raise Aborted unless the planned ranks answered: measurements would mean nothing.

    Groups with a lost host are skipped: the host is reported and left out of the next steps.
    """
    for record in records:
        answered = Counter(fact.host for fact, _ in RANK.of(record))
        planned = {name: state.host(name).slots for name in record.hosts}
        if dict(answered) != planned and not any(name in state.lost for name in record.hosts):
            total = sum(planned.values())
            raise Aborted(
                f"{count(answered.total(), 'rank')} on {count(len(answered), 'host')} answered, "
                f"{total} on {len(planned)} were planned: nothing can be measured"
            )


def _reason(record: Record) -> str:
    """Return why a group failed."""
    messages = [f"{plain(p.message, 300)} ({p.cause})" for p in record.problems[:3]]
    return "; ".join(messages) or f"exit {record.exit}"
