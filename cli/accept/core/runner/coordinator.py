"""Run the plan on the hosts: find them, execute the steps, judge, and release the hosts."""

from __future__ import annotations

import asyncio
import json
import resource
import shlex
import signal
import sys
import time
import traceback
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from accept.core import evidence
from accept.core.causes import Cause
from accept.core.checks import REGISTRY, checks_of, log_lines
from accept.core.errors import Exit
from accept.core.facts import LEFT_OUT_HOST, NOT_INJECTED, PLACE, RANK
from accept.core.groups import Wave, waves
from accept.core.judge import failures, judge
from accept.core.judge.hosts import domains, places, without_gpus
from accept.core.judge.remeasure import waves_again
from accept.core.judge.suspects import HOSTS_STEP
from accept.core.model import Fact, Finding, Plan, Problem, Record, Step
from accept.core.report import text as report_text
from accept.core.runner import fault_injection
from accept.core.runner.discovery import Candidate, discover
from accept.core.runner.execute import execute_wave
from accept.core.runner.health_sweep import Watch, sweep
from accept.core.runner.ssh import Host, run
from accept.core.runner.state import Run
from accept.core.serde import read
from accept.core.text import count, duration, plain

HOSTS = "hosts.json"
#: Named pipe in a host's folder from which its guard reads events.
_EVENTS = "events"
#: File in the run's folder that ends a hold early.
_RELEASE = "release"
#: The line before the verdict; commands that judge the evidence leave the rest out.
VERDICT_FOLLOWS = "verdict of the coordinator:"
#: The verdict's reason for an early end, if a user or a scheduler ended the run.
CANCELLED = "the run was cancelled"
#: Maximum time to copy the evidence after a step, and the same if the previous copy failed.
_PUBLISH_SECONDS, _PUBLISH_AGAIN_SECONDS = 60.0, 10.0
#: A dying host may still answer for this long after a step failed: pods have a grace period.
_DYING_SECONDS = 5.0
#: Maximum time after the run's deadline to find the host or rank that delayed the run.
_LATE_SECONDS = 120.0
#: Maximum time to wait for the sshds of the hosts to end.
_RELEASE_SECONDS = 60.0


@dataclass(frozen=True, kw_only=True)
class Launch:
    """The input of a run besides its plan, which a back end writes to `hosts.json`."""

    attempt: str
    hosts: tuple[Candidate, ...]
    #: Time that is left to find hosts.
    start_seconds: float
    #: Bucket or folder to which the evidence is copied after each step; empty: none.
    results: str = ""


class _Aborted(Exception):
    """The run cannot continue; the text is the reason."""


async def coordinate(folder: Path) -> int:
    """Run the plan in `folder` to its end and return the exit status."""
    plan = read(Plan, json.loads((folder / evidence.PLAN).read_text(encoding="utf-8")))
    launch = read(Launch, json.loads((folder / HOSTS).read_text(encoding="utf-8")))
    seconds = launch.start_seconds + plan.deadline_seconds
    state = Run(folder=folder, attempt=launch.attempt, plan=plan, seconds=seconds)
    _prepare(state)
    abort_reason = ""
    cancelled = asyncio.Event()
    work = asyncio.create_task(_work(state, launch))

    def cancel() -> None:
        cancelled.set()
        work.cancel()

    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, cancel)
    _print_plan(plan, launch)
    try:
        await asyncio.wait_for(work, seconds + _LATE_SECONDS)
    except asyncio.TimeoutError:
        abort_reason = _over_deadline(state)
    except asyncio.CancelledError:
        abort_reason = CANCELLED
    except _Aborted as aborted:
        abort_reason = str(aborted)
    except Exception as error:
        # Even after a bug in this program, what was measured so far must be judged and kept.
        traceback.print_exc(file=sys.stdout)
        abort_reason = f"the coordinator failed: {type(error).__name__}: {error}"
    try:
        for message in await fault_injection.undo(state):
            _say(f"NOT UNDONE: {message}")
        code = _conclude(state, abort_reason)
        if plan.hold_seconds and code != 0:
            await _hold(state, cancelled)
    except OSError as error:
        # The disk may be full. Without a written verdict the cluster is not accepted.
        sys.stderr.write(f"cannot write the verdict: {error}\n")
        code = Exit.INTERRUPTED
    finally:
        await _release_hosts(state)
    return code


def _conclude(state: Run, abort_reason: str) -> int:
    """Judge the run, write and print the verdict, and return the exit status."""
    evidence.write_run_end(state.evidence, abort_reason)
    verdict = judge(
        state.plan, state.records, checks=REGISTRY, attempt=state.attempt, interruption=abort_reason
    )
    evidence.write_judgement(state.evidence, state.plan, verdict)
    evidence.write_checksums(state.evidence)
    _say(VERDICT_FOLLOWS)
    _say(report_text.table(verdict, width=100))
    _say(evidence.pack(state.plan, state.records, verdict).rstrip("\n"))
    return verdict.exit


async def _hold(state: Run, cancelled: asyncio.Event) -> None:
    """Keep the hosts for inspection until the hold is over, or the file `release` ends it."""
    if cancelled.is_set():
        return
    until = time.monotonic() + state.plan.hold_seconds
    _say(f"held for {duration(state.plan.hold_seconds)}. To log in, on this host:")
    for host in state.alive():
        options = f"-F {shlex.quote(str(state.folder / 'ssh_config'))} -o HostName={host.address}"
        _say(
            f"  ssh -t {options} -p {host.port} {host.name}"
            if not host.local
            else f"  {host.name}: here"
        )
    released = state.folder / _RELEASE
    _say(f"to end it now: touch {shlex.quote(str(released))}")
    while time.monotonic() < until and not released.exists() and not cancelled.is_set():
        await asyncio.sleep(1.0)


async def _release_hosts(state: Run) -> None:
    """Tell every other host that the run is over, and wait until their sshds have ended."""
    others = [h for h in state.hosts if not h.local]
    folder = shlex.quote(str(state.folder))
    await asyncio.gather(*(state.ask(h, f"echo over 1<>{folder}/{_EVENTS}") for h in others))
    until = time.monotonic() + _RELEASE_SECONDS
    await asyncio.gather(
        *(_wait_until_closed(h, until) for h in others if h.name not in state.lost)
    )


async def _wait_until_closed(host: Host, until: float) -> None:
    """Wait until the host refuses connections, or twice in a row does not answer."""
    timeouts = 0
    while time.monotonic() < until and timeouts < 2:
        try:
            connecting = asyncio.open_connection(host.address, host.port)
            _, writer = await asyncio.wait_for(connecting, 2.0)
        except asyncio.TimeoutError:
            timeouts += 1
            continue
        except OSError:
            return
        timeouts = 0
        writer.close()
        await asyncio.sleep(0.2)


def _prepare(state: Run) -> None:
    """Make the folders and the ssh configuration, and copy the input files to the evidence."""
    for name in ("c", "evidence", "progress", "exec"):
        (state.folder / name).mkdir(mode=0o700, exist_ok=True)
    text = (state.folder / "ssh_config.in").read_text(encoding="utf-8")
    evidence.write(state.folder / "ssh_config", text.replace("@FOLDER@", str(state.folder)))
    for name in (evidence.PLAN, HOSTS, "env.sh"):
        evidence.write(state.evidence / name, (state.folder / name).read_text(encoding="utf-8"))
    (state.evidence / evidence.RECORDS).touch()
    scripts = state.evidence / "steps"
    scripts.mkdir(exist_ok=True)
    for path in sorted((state.folder / "steps").iterdir()):
        evidence.write(scripts / path.name, path.read_text(encoding="utf-8", errors="replace"))


async def _work(state: Run, launch: Launch) -> None:
    """Execute the plan, with a health sweep before each step and after the last one."""
    await _find_hosts(state, launch)
    publish_seconds = _PUBLISH_SECONDS
    watch = Watch.of(state)
    for number, step in enumerate(state.plan.steps, 1):
        await sweep(state, watch, number, final=False)
        await _execute(state, step, f"{number}/{len(state.plan.steps)}")
        if launch.results:
            published = await _publish(state, launch.results, publish_seconds)
            publish_seconds = _PUBLISH_SECONDS if published else _PUBLISH_AGAIN_SECONDS
    # A dying host can make the last step fail and still answer right afterwards.
    if _last_step_failed_unexplained(state):
        await asyncio.sleep(_DYING_SECONDS)
    await sweep(state, watch, len(state.plan.steps) + 1, final=True)


def _last_step_failed_unexplained(state: Run) -> bool:
    """Return True if the last step failed and no problem of it names a host."""
    last = [step.id for step in state.plan.steps[-1:]]
    records = [record for record in state.records if record.step in last]
    is_explained = any(problem.host for record in records for problem in record.problems)
    return not is_explained and any(record.exit != 0 for record in records)


async def _find_hosts(state: Run, launch: Launch) -> None:
    """Find the hosts and inject the faults of a drill. Raises _Aborted if the run cannot start."""
    plan = state.plan
    began = time.time()
    candidates, unreachable = fault_injection.cut_off(plan.injected, launch.hosts)
    found = await discover(
        candidates,
        folder=state.folder,
        attempt=state.attempt,
        ranks=plan.gpus_used or plan.machine.ranks,
        topology=plan.machine.topology,
        seconds=launch.start_seconds,
    )
    state.hosts = found.hosts
    faults = (*unreachable, *await fault_injection.inject(state))
    facts = (*found.facts, *faults)
    state.keep_asked(0, began, facts=facts, metrics=found.metrics, problems=found.problems)
    group = "".join(h.group_line() for h in found.hosts)
    evidence.write(state.folder / "group", group)
    evidence.write(state.evidence / "group", group)
    _say(
        f"hosts: {len(found.hosts)} of {len(launch.hosts)} answered in "
        f"{duration(time.time() - began)}"
    )
    placed = sum(1 for _ in PLACE.among(found.facts))
    if plan.machine.topology and placed < len(found.hosts):
        _say(
            f"  {placed} of {len(found.hosts)} reported their place (`topology`); "
            "the hosts stay in the given order"
        )
    for problem in found.problems:
        _say(f"  missing: {plain(problem.message, 300)} ({problem.cause})")
    if not found.hosts:
        raise _Aborted("no host answered")
    if found.problems and plan.require_all_nodes:
        raise _Aborted("not all nodes answered, and requireAllNodes is set")
    for _, reason in NOT_INJECTED.among(faults):
        raise _Aborted(f"a fault could not be injected: {reason}")


async def _publish(state: Run, results: str, seconds: float) -> bool:
    """Copy the evidence so far, so that the loss of this host costs at most one step.

    Return whether that worked. If not, the run continues, because everything is sent at its end.
    """
    program = state.folder / "programs" / "upload.py"
    argv = [sys.executable, str(program), str(state.evidence), results]
    argv += ["--attempt", state.attempt, "--partial"]
    answer = await run(argv, timeout=seconds)
    if answer.exit != 0:
        reason = answer.err.strip().splitlines()[-1:] or [f"exit {answer.exit}"]
        _say(f"  the evidence so far could not be copied: {plain(reason[0], 300)}")
    return answer.exit == 0


async def _execute(state: Run, step: Step, position: str) -> None:
    """Execute a step, measure its outliers again, and print the results.

    `position` is the step's number, such as `2/5`.
    """
    alive = state.alive()
    if not alive:
        raise _Aborted("no host is left")
    plan_waves = waves(
        step.groups,
        [h.name for h in alive],
        rounds=step.rounds,
        seed=state.plan.seed,
        ranks=alive[0].slots,
    )
    began = time.time()
    records: list[Record] = []
    await _execute_waves(state, step, plan_waves, records)
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
        _say(f"  {step.id}: outliers; measuring {groups} again")
        await _execute_waves(state, step, repeated_waves, records)
        if len(records) == measured:
            break  # no host of these groups is alive
    if len(records) > evidence.LOOSE_LOGS:
        evidence.archive_logs(state.evidence, step.id)
    findings = failures(state.plan, step, state.records, checks=REGISTRY)
    failed = [r for r in records if r.exit != 0 or r.problems or _is_accused(r, findings)]
    groups = count(len(records), "group")
    _say(
        f"[{position}] {step.id} ({', '.join(step.checks)}) {step.groups}, {groups}: "
        f"{len(records) - len(failed)} good, {len(failed)} with problems, "
        f"{duration(time.time() - began)}"
    )
    with_problems = [record for record in failed if record.exit != 0 or record.problems]
    for record in with_problems[:20]:
        _say(f"  {_shown_hosts(record.hosts)}: {_reason(record)}")
    reported = {problem.cause for record in with_problems for problem in record.problems}
    for finding in [f for f in findings if f.cause not in reported][:20]:
        subject = _shown_hosts(finding.hosts) or finding.check
        _say(f"  {subject}: {plain(finding.message, 300)} ({finding.cause})")
    for line in log_lines(records):
        _say(f"  {line}")
    checks = checks_of(step)
    if any(check.shows_gpus for check in checks):
        _leave_out_hosts_without_gpus(state, began)
    if any(check.gate for check in checks):
        _stop_unless_all_ranks(state, records)


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


def _leave_out_hosts_without_gpus(state: Run, began: float) -> None:
    """Continue without hosts of a GPU machine that show no GPU; end the run if no host is left.

    Their ranks would compute on the CPU: that is slow, and the results would mean nothing.
    """
    alive = [host.name for host in state.alive()]
    missing = [name for name in without_gpus(state.plan, state.records) if name in alive]
    if not missing:
        return
    left = [name for name in alive if name not in missing]
    if left and not state.plan.require_all_nodes:
        for name in missing:
            message = f"{name} shows no GPU and takes no further part"
            _say(f"  left out: {message} (gpu-missing)")
            state.lost[name] = Problem(
                cause=Cause.GPU_MISSING, message=message, check="hosts", host=name
            )
        # The record counts as part of the health sweep before this step.
        number = max([1, *(r.wave for r in state.records if r.step == HOSTS_STEP)])
        kind = LEFT_OUT_HOST.name
        facts = [
            Fact(name=kind, value=Cause.GPU_MISSING.value, check="hosts", host=h) for h in missing
        ]
        problems = [state.lost[name] for name in missing]
        state.keep_asked(number, began, facts=facts, problems=problems)
        return
    shown = f"{missing[0]} shows" if len(missing) == 1 else f"{len(missing)} hosts show"
    raise _Aborted(f"{shown} no GPU, and machine {state.plan.machine.name} has GPUs")


async def _execute_waves(
    state: Run, step: Step, plan_waves: Sequence[Wave], records: list[Record]
) -> None:
    """Run waves one after the other and add to `records`, from whose waves the numbers continue."""
    first = 1 + max((r.wave for r in records), default=-1)
    for number, wave in enumerate(plan_waves, first):
        _stop_when_over(state)
        # Skip groups with a host that was lost in an earlier wave.
        kept = tuple(g for g in wave if not any(name in state.lost for name in g.hosts))
        records += await execute_wave(state, step, number, kept)
    _stop_when_over(state)


def _stop_when_over(state: Run) -> None:
    if state.is_over():
        raise _Aborted(_over_deadline(state))


def _over_deadline(state: Run) -> str:
    return f"the run did not end within {duration(state.seconds)}"


def _stop_unless_all_ranks(state: Run, records: Sequence[Record]) -> None:
    """Raise _Aborted if other ranks than planned answered: measurements would mean nothing.

    Groups with a lost host are skipped: the host is reported and left out of the next steps.
    """
    for record in records:
        answered = Counter(fact.host for fact, _ in RANK.of(record))
        planned = {name: state.host(name).slots for name in record.hosts}
        if dict(answered) != planned and not any(name in state.lost for name in record.hosts):
            total = sum(planned.values())
            raise _Aborted(
                f"{count(answered.total(), 'rank')} on {count(len(answered), 'host')} answered, "
                f"{total} on {len(planned)} were planned: nothing can be measured"
            )


def _reason(record: Record) -> str:
    """Return why a group failed."""
    messages = [f"{plain(p.message, 300)} ({p.cause})" for p in record.problems[:3]]
    return "; ".join(messages) or f"exit {record.exit}"


def _print_plan(plan: Plan, launch: Launch) -> None:
    hosts = count(len(launch.hosts), "host")
    _say(f"accept {plan.version}: run {plan.hash[:12]}, attempt {launch.attempt}")
    _say(f"machine {plan.machine.name}, suite {plan.suite}, {hosts}")
    for step in plan.steps:
        estimate = duration(step.estimate)
        _say(f"  {step.id}: {', '.join(step.checks)} on {step.groups}, about {estimate}")
    for skipped in plan.skipped:
        _say(f"  not planned: {skipped.check}: {skipped.reason}")
    if plan.injected:
        _say(f"DRILL: faults are injected on purpose: {', '.join(plan.injected)}")


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def main(argv: Sequence[str]) -> int:
    """Run the coordinator on the node; the only argument is the run's folder."""
    if len(argv) != 2:
        sys.stderr.write("usage: python3 -m accept.core.runner.coordinator FOLDER\n")
        return Exit.USAGE
    # Each group and each connection needs several files, more than the usual soft limit allows.
    _, hard_limit = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard_limit, hard_limit))
    return asyncio.run(coordinate(Path(argv[1]).resolve()))


if __name__ == "__main__":
    sys.exit(main(sys.argv))
