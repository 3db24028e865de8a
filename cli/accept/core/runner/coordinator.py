"""Run the plan on the hosts: find them, execute the steps, judge, and release the hosts."""

from __future__ import annotations

import asyncio
import io
import json
import re
import resource
import shlex
import shutil
import signal
import sys
import time
import traceback
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from accept.core import bounded, evidence
from accept.core.causes import Cause
from accept.core.checks import REGISTRY, collectives
from accept.core.errors import AcceptError, Exit
from accept.core.facts import NOT_INJECTED, PLACE
from accept.core.judge import has_final_failure, is_open, judge
from accept.core.judge.versions import NOT_SUPPORTED, unsupported
from accept.core.plan import Plan
from accept.core.report import text as report_text
from accept.core.report import write_judgement
from accept.core.report.result_files import write_result_files
from accept.core.runner import collectors, events, fault_injection, resume
from accept.core.runner.clock import now
from accept.core.runner.discovery import discover
from accept.core.runner.events import Event, EventKind
from accept.core.runner.health_sweep import Watch, sweep
from accept.core.runner.launch import CANCELLED, INTERRUPTION, LOST, PREEMPTED, RECORDS_COPY, Launch
from accept.core.runner.log import say, show
from accept.core.runner.logins import restrict
from accept.core.runner.positions import read_positions
from accept.core.runner.ssh import KEY, Host, run
from accept.core.runner.state import Run
from accept.core.runner.step import Aborted, execute_step, measure_without_lost, over_deadline
from accept.core.runner.supervise import has_residents
from accept.core.sentences import not_run
from accept.core.serde import dump, read, to_json
from accept.core.signatures import sign
from accept.core.text import count, duration, folded, plain

#: Named pipe in a host's folder from which its guard reads events.
_EVENTS = "events"
#: Files in the run's folder for `pod_entrypoint.sh`: the verdict in a few lines, and the evidence
#: as text.
_SUMMARY, _PACKED = "summary", "packed"
#: Larger records are not copied to another pod: packed they would not fit, and it takes long.
_COPY_LIMIT = 16 << 20
#: File in the folder of a host that makes its pod stay after the run.
_STAY = "stay"
#: File in the run's folder that ends a hold early.
_RELEASE = "release"
#: Time for the file with the reason of a signal to appear: Slurm may end the coordinator first.
_EXPLAIN_SECONDS = 2.0
#: Output of `scontrol` for a job that Slurm preempts, with and without a grace time.
_PREEMPTED = re.compile(r" PreemptTime=\d| JobState=PREEMPTED ")
#: Maximum time for `scontrol`, because Slurm kills the job soon after the signal.
_SHOW_SECONDS = 5.0
#: Maximum time to copy the evidence after a step, and the same if the previous copy failed.
_PUBLISH_SECONDS, _PUBLISH_AGAIN_SECONDS = 60.0, 10.0
#: Maximum time to copy the finished evidence before a hold, and to wait for the log before that.
_SEND_SECONDS, _LOG_SECONDS = 300.0, 5.0
#: A dying host may still answer for this long after a step failed: pods have a grace period.
_DYING_SECONDS = 5.0
#: Maximum time after the run's deadline to find the host or rank that delayed the run.
_LATE_SECONDS = 120.0
#: Maximum time to wait for the sshds of the hosts to end.
_RELEASE_SECONDS = 60.0


async def coordinate(folder: Path) -> int:
    """Run the plan in `folder` to its end and return the exit status."""
    launch = read(Launch, json.loads((folder / evidence.HOSTS).read_text(encoding="utf-8")))
    plan = _plan_with_edits(folder / evidence.PLAN, launch)
    seconds = launch.start_seconds + plan.deadline_seconds
    state = Run(
        folder=folder,
        attempt=launch.attempt,
        plan=plan,
        seconds=seconds,
        starts=asyncio.Semaphore(launch.starts),
    )
    _prepare(state)
    abort_reason = ""
    cancelled = asyncio.Event()
    work = asyncio.create_task(_work(state, launch))

    def cancel() -> None:
        # A second signal must not interrupt what the first one started.
        if not cancelled.is_set():
            cancelled.set()
            work.cancel()

    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, cancel)
    _print_plan(plan, launch)
    try:
        await asyncio.wait_for(work, seconds + _LATE_SECONDS)
    except asyncio.TimeoutError:
        abort_reason = over_deadline(state)
    except asyncio.CancelledError:
        abort_reason = await _cancel_reason(state, launch.job)
    except Aborted as aborted:
        abort_reason = str(aborted)
    except Exception as error:
        # Even after a bug in this program, what was measured so far must be judged and kept.
        traceback.print_exc(file=sys.stdout)
        abort_reason = f"the coordinator failed: {type(error).__name__}: {error}"
    try:
        for message in await fault_injection.undo(state):
            say(f"NOT UNDONE: {message}")
        await _collect(state, abort_reason, cancelled)
        code = _conclude(state, launch, abort_reason)
        if plan.hold_seconds and (code != 0 or plan.hold_always) and not cancelled.is_set():
            hold = asyncio.create_task(_hold(state, launch))
            stop = asyncio.create_task(cancelled.wait())
            await asyncio.wait((hold, stop), return_when=asyncio.FIRST_COMPLETED)
            hold.cancel()
            stop.cancel()
    except OSError as error:
        # The disk may be full. Without a written verdict the cluster is not accepted.
        sys.stderr.write(f"cannot write the verdict: {error}\n")
        code = Exit.INTERRUPTED
    finally:
        await state.residents.close()
        await _release_hosts(state, launch)
    return code


async def _cancel_reason(state: Run, job: str) -> str:
    """Return why the run was cancelled, from the file of the signal's sender or from Slurm.

    The first line of the file is the reason, the others are hosts that were lost by that. To
    preempt a job, Slurm sends TERM to the coordinator, but not to the batch script.
    """
    path = state.folder / INTERRUPTION
    until = time.monotonic() + (_EXPLAIN_SECONDS if job else 0.0)
    while not path.exists() and time.monotonic() < until:
        await asyncio.sleep(0.05)
    try:
        reason, *lost = path.read_text(encoding="utf-8").splitlines()
    except (OSError, ValueError):
        reason, lost = "", []
    for name in sorted(set(lost) & {host.name for host in state.hosts}):
        # The record of the execution that has lost it may be missing.
        problem = state.lose(name, Cause.HOST_DIED, reason)
        state.keep_asked(len(state.plan.steps) + 1, now(), problems=(problem,))
    if reason or not job:
        return reason or CANCELLED
    words = ["scontrol", "show", "job", "--oneliner", job]
    try:
        shown = bounded.run(words, timeout=_SHOW_SECONDS).text
    except (OSError, bounded.TooLong):
        return CANCELLED
    return PREEMPTED if _PREEMPTED.search(shown) else CANCELLED


def _plan_with_edits(path: Path, launch: Launch) -> Plan:
    """Return the plan, with the edits if a user changed what it runs: that is another run."""
    plan = read(Plan, json.loads(path.read_text(encoding="utf-8")))
    if launch.edited:
        ranks = plan.ranks or 1
        changes = launch.collectives or collectives.CollectiveChanges()
        plan = replace(
            plan,
            edited=launch.edited,
            hold_seconds=plan.hold_seconds if launch.hold_seconds is None else launch.hold_seconds,
            hold_always=plan.hold_always if launch.hold_always is None else launch.hold_always,
            deadline_seconds=max(plan.deadline_seconds, launch.deadline_seconds or 0.0),
            steps=tuple(
                collectives.changed(step, changes, hosts=plan.nodes or 1, ranks=ranks)
                for step in plan.steps
            ),
        )
        plan = replace(plan, hash=evidence.plan_hash(dump(plan)))
        evidence.write(path, to_json(plan) + "\n")
    return plan


async def _collect(state: Run, abort_reason: str, cancelled: asyncio.Event) -> None:
    """Run the site's collectors on the suspects, unless the run is a drill or is cancelled."""
    if not state.plan.collectors or state.plan.injected or cancelled.is_set():
        return
    verdict = judge(
        state.plan, state.records, checks=REGISTRY, attempt=state.attempt, interruption=abort_reason
    )
    work = asyncio.create_task(collectors.collect(state, verdict.suspects))
    stop = asyncio.create_task(cancelled.wait())
    await asyncio.wait((work, stop), return_when=asyncio.FIRST_COMPLETED)
    stop.cancel()
    if not work.done():
        work.cancel()
    try:
        await work
    except (asyncio.CancelledError, OSError) as error:
        say(f"  the collectors were interrupted: {plain(str(error), 300)}")


def _conclude(state: Run, launch: Launch, abort_reason: str) -> int:
    """Judge the run, write and print the verdict, and return the exit status.

    The verdict follows the packed evidence, so that the log ends with it. If there is a bucket,
    this only goes to a file, which is printed if the upload to the bucket fails.
    """
    end = now()
    evidence.write_run_end(state.evidence, abort_reason, end)
    verdict = judge(
        state.plan,
        state.records,
        checks=REGISTRY,
        attempt=state.attempt,
        interruption=abort_reason,
        end=end,
    )
    write_judgement(state.evidence, state.plan, verdict, state.records)
    write_result_files(state.evidence, state.plan, state.attempt, state.records)
    evidence.write_log_index(state.evidence, state.records)
    evidence.write_readme(state.evidence, state.plan, state.attempt)
    _seal(state)
    evidence.write(state.folder / _SUMMARY, report_text.summary(verdict))
    packed = evidence.pack(state.plan, state.records, verdict)
    if launch.has_bucket:
        evidence.write(state.folder / _PACKED, packed)
    else:
        show(packed.rstrip("\n"))
    events.report(Event(event=EventKind.VERDICT))
    say("verdict of the coordinator:")
    show(report_text.table(verdict))
    return verdict.exit


def _seal(state: Run) -> None:
    """Sign the evidence with the key of the run, complete it with its checksums, print its hash.

    The signature comes first: checksums without one, and without a reason, are refused. A signature
    without checksums only shows that the run did not end.
    """
    checksums = evidence.checksums(state.evidence)
    try:
        signature = sign(checksums, state.folder / KEY)
        evidence.write(state.evidence / evidence.RUN_SIGNATURE, signature)
    except AcceptError as error:
        say(f"{evidence.NOT_SIGNED}: {error.message}")
    evidence.write(state.evidence / evidence.CHECKSUMS, checksums)
    say(f"evidence: SHA-256 {evidence.root_hash(state.evidence)}")


async def _hold(state: Run, launch: Launch) -> None:
    """Keep the hosts for inspection until the hold is over, or the file `release` ends it.

    The evidence is sent first, because a host may be lost during the hold.
    """
    seconds = state.plan.hold_seconds
    until = time.monotonic() + seconds
    if launch.results:
        await _send_all(state, launch.results, min(seconds, _SEND_SECONDS))
    say((state.folder / _SUMMARY).read_text(encoding="utf-8").partition("\n")[0])
    say(f"held for {duration(seconds)}. To log in, on this host:")
    for host in state.alive():
        options = f"-F {shlex.quote(str(state.folder / 'ssh_config'))} -o HostName={host.address}"
        say(
            f"  ssh -t {options} -p {host.port} {host.name}"
            if not host.local
            else f"  {host.name}: here"
        )
    released = state.folder / _RELEASE
    say(f"to end it now: touch {shlex.quote(str(released))}")
    while time.monotonic() < until and not released.exists():
        await asyncio.sleep(1.0)


async def _send_all(state: Run, results: str, seconds: float) -> None:
    """Copy the finished evidence, with the log up to here. If that fails, it is sent at the end."""
    line = "the evidence is copied before the hold"
    say(line)
    log, copy = state.folder / evidence.CONSOLE, state.evidence / evidence.CONSOLE
    until = time.monotonic() + _LOG_SECONDS
    try:
        # Another process may write the log, so wait for the line.
        while line.encode() not in log.read_bytes():
            if time.monotonic() > until:
                return
            await asyncio.sleep(0.05)
        shutil.copyfile(log, copy)
    except OSError as error:
        copy.unlink(missing_ok=True)
        say(f"  the log could not be copied: {plain(str(error), 300)}")
        return
    if await _publish(state, results, seconds, partial=False):
        say(f"evidence: {results.rstrip('/')}/runs/{state.attempt}")


async def _release_hosts(state: Run, launch: Launch) -> None:
    """Tell every other host that the run is over, and wait until their sshds have ended.

    If the coordinator has a pod of its own and a host is missing, one of the others stays. Without
    that host their Job would fail, which would end the coordinator's pod before it has sent the
    evidence.
    """
    others = [h for h in state.hosts if not h.local]
    folder = shlex.quote(str(state.folder))
    alive = state.alive()
    if launch.is_separate and 0 < len(alive) < len(launch.hosts):
        await state.ask(alive[0], f": > {folder}/{_STAY}")
    await asyncio.gather(*(state.ask(h, f"echo over 1<>{folder}/{_EVENTS}") for h in others))
    until = time.monotonic() + _RELEASE_SECONDS
    await asyncio.gather(
        *(_wait_until_closed(h, until) for h in others if h.name not in state.lost)
    )


async def _wait_until_closed(host: Host, until: float) -> None:
    """Wait until the host refuses connections, or does not answer twice in a row."""
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
    for name in (evidence.PLAN, evidence.HOSTS, "env.sh", "settings.sh"):
        evidence.write(state.evidence / name, (state.folder / name).read_text(encoding="utf-8"))
    (state.evidence / evidence.RECORDS).touch()
    scripts = state.evidence / "steps"
    scripts.mkdir(exist_ok=True)
    for path in sorted((state.folder / "steps").iterdir()):
        evidence.write(scripts / path.name, path.read_text(encoding="utf-8", errors="replace"))


async def _work(state: Run, launch: Launch) -> None:
    """Find the hosts, then execute the plan within its deadline, which begins now."""
    needed = sum(step.estimate for step in state.plan.steps)
    if launch.collectives and needed > state.plan.deadline_seconds:
        raise Aborted(
            f"with the edited collectives the run takes about {duration(needed)}, and its deadline "
            f"is {duration(state.plan.deadline_seconds)}: set a longer deadlineSeconds, too"
        )
    earlier = Path(launch.earlier)
    kept = resume.finished(earlier, state.plan) if launch.earlier else ()
    if launch.earlier and not kept:
        say("the finished steps of the earlier attempt cannot be read here: every step runs")
    resume.keep(state, kept, earlier)
    await _find_hosts(state, launch)
    state.restart_clock(state.plan.deadline_seconds)
    await asyncio.wait_for(_execute_plan(state, launch), state.seconds + _LATE_SECONDS)


async def _execute_plan(state: Run, launch: Launch) -> None:
    """Execute the steps, with a health sweep before each one and after the last one."""
    copies = _Copies(state, launch)
    # They import torch while the first steps run, which measure no speed.
    if served := next((step for step in state.plan.steps if has_residents(state, step)), None):
        await state.residents.start(served.profile, state.alive())
    watch = Watch.of(state)
    kept = {record.step: record.attempt for record in state.records}
    for number, step in enumerate(state.plan.steps, 1):
        position = f"{number}/{len(state.plan.steps)}"
        if step.id in kept:
            say(f"[{position}] {step.id} was finished by attempt {plain(kept[step.id], 80)}")
            events.report(Event(event=EventKind.STEP_KEPT, step=step.id))
            continue
        evidence.write_step(state.evidence, number, len(state.plan.steps))
        await _sweep(state, watch, number)
        await copies.send()
        if step.if_open and not is_open(state.plan, step, state.records, checks=REGISTRY):
            say(f"[{position}] {step.id} is left out: earlier steps left no question")
            events.report(Event(event=EventKind.STEP_LEFT_OUT, step=step.id))
            continue
        await execute_step(state, step, position)
        copies.due = True
        if state.plan.fail_fast and has_final_failure(
            state.plan, step, state.records, checks=REGISTRY
        ):
            say(f"[{position}] {step.id} failed: the run ends here (--fail-fast)")
            break
    # A dying host can make the last step fail and still answer right afterwards.
    if _last_step_failed_unexplained(state):
        await asyncio.sleep(_DYING_SECONDS)
    # Nothing that the sweep measures again needs the resident programs, and torch ends slowly.
    await asyncio.gather(_sweep(state, watch, len(state.plan.steps) + 1), state.residents.close())
    await copies.send()


async def _sweep(state: Run, watch: Watch, number: int) -> None:
    """Read the hosts before step `number`, or after the last one.

    Only then, the loss of a host may be noticed that ended executions of the step before.
    """
    steps, lost = state.plan.steps, len(state.lost)
    await sweep(state, watch, number, final=number > len(steps))
    if len(state.lost) > lost and number > 1:
        own = [record for record in state.records if record.step == steps[number - 2].id]
        await measure_without_lost(state, steps[number - 2], own)


def _last_step_failed_unexplained(state: Run) -> bool:
    """Return True if the last step failed and no problem of it names a host."""
    last = [step.id for step in state.plan.steps[-1:]]
    records = [record for record in state.records if record.step in last]
    is_explained = any(problem.host for record in records for problem in record.problems)
    return not is_explained and any(record.exit != 0 for record in records)


async def _find_hosts(state: Run, launch: Launch) -> None:
    """Find the hosts and inject the faults of a drill. Raises Aborted if the run cannot start."""
    plan = state.plan
    began = now()
    kept = tuple(state.records)
    candidates, unreachable = fault_injection.cut_off(plan.injected, launch.hosts)

    def positions() -> dict[str, str]:
        known, reason = read_positions(state.folder)
        if reason:
            say(f"  positions unknown: {plain(reason, 300)}")
        return known

    found = await discover(
        candidates,
        folder=state.folder,
        attempt=state.attempt,
        ranks=plan.ranks,
        topology=plan.machine.topology,
        seconds=launch.start_seconds,
        positions=positions,
        register=launch.register,
        require_all=plan.require_all_nodes,
    )
    state.hosts = found.hosts
    faults = (*unreachable, *await fault_injection.inject(state))
    facts = (*found.facts, *faults)
    problems = resume.as_lost(found.problems, kept)
    state.keep_asked(0, began, facts=facts, metrics=found.metrics, problems=problems)
    group = "".join(h.group_line() for h in found.hosts)
    evidence.write(state.folder / "group", group)
    evidence.write(state.evidence / "group", group)
    events.report(Event(event=EventKind.HOSTS, done=len(found.hosts), total=len(launch.hosts)))
    say(
        f"hosts: {len(found.hosts)} of {len(launch.hosts)} answered in "
        f"{duration(now() - began)}"
        + (f": {plain(folded([host.name for host in found.hosts]), 400)}" if found.hosts else "")
    )
    placed = sum(1 for _ in PLACE.among(found.facts))
    if (plan.machine.topology or placed) and placed < len(found.hosts):
        say(
            f"  the positions of {placed} of {len(found.hosts)} in the network are known; "
            "the hosts stay in the given order"
        )
    for refused in found.refused:
        say(f"  {plain(refused, 400)}")
    for problem in found.problems:
        say(f"  missing: {plain(problem.message, 300)} ({problem.cause})")
    if not found.hosts:
        raise Aborted("no host answered")
    # A NetworkPolicy does this for pods, which may also start later.
    if not launch.register:
        known = [address for candidate in launch.hosts for address in candidate.addresses]
        if line := await restrict(state, known):
            say(f"  {line}")
    if found.problems and plan.require_all_nodes:
        raise Aborted("not all nodes answered, and requireAllNodes is set")
    for _, reason in NOT_INJECTED.among(faults):
        raise Aborted(f"a fault could not be injected: {reason}")


class _Copies:
    """Copies of the evidence so far, so that the loss of this host costs at most one step.

    Each is made between two steps, after the sweep that shows what the last step did to the hosts.
    """

    def __init__(self, state: Run, launch: Launch) -> None:
        self._state = state
        self._launch = launch
        self._seconds = _PUBLISH_SECONDS
        #: True if a step has ended since the last copy.
        self.due = False

    async def send(self) -> None:
        """Send a copy if one is due, and if there is a place for it: the site's, or another pod."""
        if self.due and self._launch.results:
            sent = await _publish(self._state, self._launch.results, self._seconds)
            self._seconds = _PUBLISH_SECONDS if sent else _PUBLISH_AGAIN_SECONDS
        elif self.due and self._launch.register:
            await _copy_records(self._state)
        self.due = False


async def _publish(state: Run, results: str, seconds: float, *, partial: bool = True) -> bool:
    """Copy the evidence so far.

    Return whether that worked. If not, the run continues, because everything is sent at its end.
    Without `partial` the evidence is complete, and nothing may change it afterwards.
    """
    program = state.folder / "programs" / "upload.py"
    argv = [sys.executable, str(program), str(state.evidence), results]
    argv += ["--attempt", state.attempt, *(["--partial"] if partial else [])]
    answer = await run(argv, timeout=seconds)
    if answer.exit != 0:
        say(f"  the evidence so far could not be copied: {plain(answer.reason, 300)}")
    return answer.exit == 0


async def _copy_records(state: Run) -> None:
    """Copy plan and records so far to another pod: the one on the node whose name comes first."""
    others = [host for host in state.alive() if not host.local]
    if not others or (state.evidence / evidence.RECORDS).stat().st_size > _COPY_LIMIT:
        return
    holder = min(others, key=lambda host: host.name)
    verdict = judge(
        state.plan, state.records, checks=REGISTRY, attempt=state.attempt, interruption=LOST
    )
    file = state.folder / RECORDS_COPY
    evidence.write(file, evidence.pack(state.plan, state.records, verdict))
    answer = await state.put(holder, file)
    if answer.exit != 0:
        say(f"  the records so far could not be copied to another pod: {plain(answer.reason, 300)}")


def _print_plan(plan: Plan, launch: Launch) -> None:
    hosts = count(len(launch.hosts), "host")
    date = time.strftime("%Y-%m-%d", time.gmtime())
    say(f"{date} UTC, accept {plan.version}: run {launch.attempt}, plan {plan.hash[:12]}")
    say(f"machine {plan.machine.name}, suite {plan.suite}, {hosts}")
    for change in plan.edited:
        say(f"EDITED after rendering: {plain(change, 300)}")
    for text in unsupported(plan, launch.versions):
        say(f"{NOT_SUPPORTED}{plain(text, 300)}")
    for origin, names in plan.env_origins.items():
        settings = " ".join(f"{name}={plan.env[name]}" for name in names if name in plan.env)
        say(f"  settings of {plain(origin, 100)}: {plain(settings, 1000)}")
    if place := launch.bucket or launch.results:
        say(f"evidence goes to {plain(place.rstrip('/'), 300)}/runs/{launch.attempt}")
    else:
        most = launch.kept_seconds
        end = "" if most is None else f", for at most {duration(most)} after the run"
        say(f"evidence stays here until it is collected{end}")
    for step in plan.steps:
        estimate = duration(step.estimate)
        condition = ", if earlier steps leave a question" if step.if_open else ""
        checks = ", ".join(step.checks)
        say(f"  {step.id}: {checks} on {step.groups}, about {estimate}{condition}")
    for skipped in plan.skipped:
        if skipped.cause is not Cause.DESELECTED:
            say(f"  not planned: {skipped.check}: {skipped.reason}")
    if left_out := not_run(plan.skipped):
        say(f"  not run: {left_out}")
    if plan.fail_fast:
        say("the run ends after the first failure (--fail-fast)")
    if plan.injected:
        faults = ", ".join(fault.text for fault in plan.injected)
        say(f"DRILL: faults are injected on purpose: {faults}")


def main(argv: Sequence[str]) -> int:
    """Run the coordinator on the node; the only argument is the run's folder."""
    if len(argv) != 2:
        sys.stderr.write("usage: python3 -m accept.core.runner.coordinator FOLDER\n")
        return Exit.USAGE
    # The verdict has characters that a host's character set may lack.
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")
    # Each group and each connection needs several files, more than the usual soft limit allows.
    _, hard_limit = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard_limit, hard_limit))
    return asyncio.run(coordinate(Path(argv[1]).resolve()))


if __name__ == "__main__":
    sys.exit(main(sys.argv))
