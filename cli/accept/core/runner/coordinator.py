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
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from accept.core import evidence
from accept.core.catalog.faults import NOT_PLANTED
from accept.core.checks import REGISTRY
from accept.core.errors import Exit
from accept.core.groups import Wave, waves
from accept.core.judge import failures, judge
from accept.core.judge.hosts import LEFT_OUT, domains, places, without_gpus
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
from accept.core.text import plain

#: The pipe in a host's folder on which its guard waits to be told.
EVENTS = "events"
#: Ends a hold early.
RELEASE = "release"
_OVER_SECONDS = 60.0


async def hold(state: Run, cancelled: asyncio.Event, say: Callable[[str], None]) -> None:
    """Keep the hosts for a while, so that somebody can look; `release` in the folder ends it."""
    if cancelled.is_set():
        return
    until = time.monotonic() + state.plan.hold_seconds
    say(f"held for {state.plan.hold_seconds:.0f} s. To get in, on this host:")
    for host in state.alive():
        options = f"-F {shlex.quote(str(state.folder / 'ssh_config'))} -o HostName={host.address}"
        say(
            f"  ssh -t {options} -p {host.port} {host.name}"
            if not host.local
            else f"  {host.name}: here"
        )
    say(f"to end it now: touch {shlex.quote(str(state.folder / RELEASE))}")
    released = state.folder / RELEASE
    while time.monotonic() < until and not released.exists() and not cancelled.is_set():
        await asyncio.sleep(1.0)


async def tell_over(state: Run) -> None:
    """Tell every other host that the run is over, and wait until their sshds are gone."""
    others = [h for h in state.hosts if not h.local]
    folder = shlex.quote(str(state.folder))
    await asyncio.gather(*(state.ask(h, f"echo over 1<>{folder}/{EVENTS}") for h in others))
    told = [h for h in others if h.name not in state.lost]
    until = time.monotonic() + _OVER_SECONDS
    await asyncio.gather(*(_until_gone(h, until) for h in told))


async def _until_gone(host: Host, until: float) -> None:
    # One that is silent once may be busy.
    silent = 0
    while time.monotonic() < until and silent < 2:
        try:
            connecting = asyncio.open_connection(host.address, host.port)
            _, writer = await asyncio.wait_for(connecting, 2.0)
        except asyncio.TimeoutError:
            silent += 1
            continue
        except OSError:
            return
        silent = 0
        writer.close()
        await asyncio.sleep(0.2)


HOSTS = "hosts.json"
#: The verdict's reason for an early end, if a user or a scheduler ended the run.
CANCELLED = "the run was cancelled"
#: Longest that a copy of the evidence after a step takes, and the next where that one failed.
_PUBLISH_SECONDS, _PUBLISH_AGAIN_SECONDS = 60.0, 10.0
#: How long a host may answer whose end has made a step fail: a second's grace for a pod, and more.
_DYING_SECONDS = 5.0
#: Longest that is taken, once the run's time is over, to find out who held it up.
_LATE_SECONDS = 120.0


@dataclass(frozen=True, kw_only=True)
class Launch:
    """What a back end hands over beside the plan, as `hosts.json`."""

    attempt: str
    hosts: tuple[Candidate, ...]
    #: What is left of the time to find hosts.
    start_seconds: float
    #: Bucket or folder that the evidence is copied to after each step; empty: none.
    results: str = ""


class _BreakOff(Exception):
    """The run cannot go on; the text says why."""


async def coordinate(folder: Path) -> int:
    """Run the plan in `folder` to its end and return the exit status."""
    plan = read(Plan, json.loads((folder / evidence.PLAN).read_text(encoding="utf-8")))
    launch = read(Launch, json.loads((folder / HOSTS).read_text(encoding="utf-8")))
    seconds = launch.start_seconds + plan.deadline_seconds
    state = Run(folder=folder, attempt=launch.attempt, plan=plan, seconds=seconds)
    _prepare(state)
    broken = ""
    cancelled = asyncio.Event()
    work = asyncio.create_task(_work(state, launch))

    def cancel() -> None:
        cancelled.set()
        work.cancel()

    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, cancel)
    _say_plan(plan, launch)
    try:
        await asyncio.wait_for(work, seconds + _LATE_SECONDS)
    except asyncio.TimeoutError:
        broken = _late(state)
    except asyncio.CancelledError:
        broken = CANCELLED
    except _BreakOff as reason:
        broken = str(reason)
    except Exception as error:
        # A defect of ours must not cost the evidence of what was measured until here.
        traceback.print_exc(file=sys.stdout)
        broken = f"the coordinator failed: {type(error).__name__}: {error}"
    try:
        for left in await fault_injection.undo(state):
            _say(f"NOT UNDONE: {left}")
        code = _conclude(state, broken)
        if plan.hold_seconds and code != 0:
            await hold(state, cancelled, _say)
    except OSError as error:
        # A full disk, mostly: without a verdict on it nothing was accepted.
        sys.stderr.write(f"no verdict could be written: {error}\n")
        code = Exit.BROKEN_OFF
    finally:
        await tell_over(state)
    return code


def _conclude(state: Run, broken: str) -> int:
    """Judge, write down what follows from it, and say so; returns the exit status."""
    evidence.write_run_end(state.evidence, broken)
    verdict = judge(
        state.plan, state.records, checks=REGISTRY, attempt=state.attempt, broken_off=broken
    )
    evidence.write_judgement(state.evidence, state.plan, verdict)
    evidence.write_checksums(state.evidence)
    _say("verdict of the coordinator:")
    _say(report_text.table(verdict, width=100))
    _say(evidence.pack(state.plan, state.records, verdict).rstrip("\n"))
    return verdict.exit


def _prepare(state: Run) -> None:
    """Make the folders and the ssh configuration, and copy what the evidence is to hold."""
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
    await _find_hosts(state, launch)
    patience = _PUBLISH_SECONDS
    watch = Watch.of(state)
    for number, step in enumerate(state.plan.steps, 1):
        await sweep(state, watch, number, final=False)
        await _execute(state, step, f"{number}/{len(state.plan.steps)}")
        if launch.results:
            sent = await _publish(state, launch.results, patience)
            patience = _PUBLISH_SECONDS if sent else _PUBLISH_AGAIN_SECONDS
    # A host that was dying while the last step failed may have answered once more.
    if _unexplained(state):
        await asyncio.sleep(_DYING_SECONDS)
    await sweep(state, watch, len(state.plan.steps) + 1, final=True)


def _unexplained(state: Run) -> bool:
    """Whether the last step failed, and nobody is known to have caused it."""
    last = [step.id for step in state.plan.steps[-1:]]
    mine = [record for record in state.records if record.step in last]
    named = any(problem.host for record in mine for problem in record.problems)
    return not named and any(record.exit != 0 for record in mine)


async def _find_hosts(state: Run, launch: Launch) -> None:
    plan = state.plan
    began = time.time()
    candidates, cut = fault_injection.cut_off(plan.planted, launch.hosts)
    found = await discover(
        candidates,
        folder=state.folder,
        attempt=state.attempt,
        ranks=plan.gpus_used or plan.machine.ranks,
        topology=plan.machine.topology,
        seconds=launch.start_seconds,
    )
    state.hosts = found.hosts
    planted = (*cut, *await fault_injection.plant(state))
    facts = (*found.facts, *planted)
    state.keep_asked(0, began, facts=facts, metrics=found.metrics, problems=found.problems)
    group = "".join(h.group_line() for h in found.hosts)
    evidence.write(state.folder / "group", group)
    evidence.write(state.evidence / "group", group)
    _say(
        f"hosts: {len(found.hosts)} of {len(launch.hosts)} answered in {time.time() - began:.1f} s"
    )
    placed = sum(fact.name == "place" for fact in found.facts)
    if plan.machine.topology and placed < len(found.hosts):
        _say(f"  {placed} of them told their place (`topology`): they are in the order given")
    for problem in found.problems:
        _say(f"  missing: {plain(problem.message, 300)} ({problem.cause})")
    if not found.hosts:
        raise _BreakOff("no host answered")
    if found.problems and plan.require_all_nodes:
        raise _BreakOff("not all nodes answered, and requireAllNodes is set")
    for fact in planted:
        if fact.name == NOT_PLANTED:
            raise _BreakOff(f"a fault could not be planted: {fact.value}")


async def _publish(state: Run, results: str, seconds: float) -> bool:
    """Copy the evidence so far, so that the loss of this host costs one step at most.

    Returns whether that worked. Where not it is no reason to stop: all is sent at the end again.
    """
    program = state.folder / "programs" / "upload.py"
    argv = [sys.executable, str(program), str(state.evidence), results]
    argv += ["--attempt", state.attempt, "--partial"]
    answer = await run(argv, timeout=seconds)
    if answer.exit != 0:
        said = answer.err.strip().splitlines()[-1:] or [f"exit {answer.exit}"]
        _say(f"  the evidence so far could not be copied: {plain(said[0], 300)}")
    return answer.exit == 0


async def _execute(state: Run, step: Step, place: str) -> None:
    alive = state.alive()
    if not alive:
        raise _BreakOff("no host is left")
    plan_waves = waves(
        step.groups,
        [h.name for h in alive],
        rounds=step.rounds,
        seed=state.plan.seed,
        ranks=alive[0].slots,
    )
    began = time.time()
    mine: list[Record] = []
    await _execute_waves(state, step, plan_waves, mine)
    names = [h.name for h in state.alive()]
    again = waves_again(
        state.plan,
        step,
        mine,
        names,
        places(state.records),
        domains(state.records),
        checks=REGISTRY,
    )
    if again:
        many = sum(map(len, again))
        _say(f"  {step.id}: something stood out; measured again, {many} group{'s' * (many > 1)}")
        await _execute_waves(state, step, again, mine)
    if len(mine) > evidence.LOOSE_LOGS:
        evidence.archive_logs(state.evidence, step.id)
    findings = failures(state.plan, step, state.records, checks=REGISTRY)
    failed = [r for r in mine if r.exit != 0 or r.problems or _is_accused(r, findings)]
    groups = f"{len(mine)} group{'s' * (len(mine) != 1)}"
    _say(
        f"[{place}] {step.id} ({', '.join(step.checks)}) {step.groups}, {groups}: "
        f"{len(mine) - len(failed)} good, {len(failed)} with problems, {time.time() - began:.1f} s"
    )
    broken = [record for record in failed if record.exit != 0 or record.problems]
    for record in broken[:20]:
        _say(f"  {' '.join(record.hosts[:4])}{' …' * (len(record.hosts) > 4)}: {_why(record)}")
    reported = {problem.cause for record in broken for problem in record.problems}
    for finding in [f for f in findings if f.cause not in reported][:20]:
        where = f"{' '.join(finding.hosts[:4])}{' …' * (len(finding.hosts) > 4)}"
        _say(f"  {where or finding.check}: {plain(finding.message, 300)} ({finding.cause})")
    for line in report_text.measured(mine):
        _say(f"  {line}")
    if not {"inventory", "connectivity"}.isdisjoint(step.checks):
        _leave_out_hosts_without_gpus(state, began)
    if "connectivity" in step.checks:
        _stop_unless_all_ranks(state, mine)


def _is_accused(record: Record, findings: Sequence[Finding]) -> bool:
    """Return True if a failed finding is about a record: its hosts, its log, or all records."""
    return any(
        not set(finding.hosts).isdisjoint(record.hosts)
        or record.log in finding.evidence
        or not (finding.hosts or finding.evidence)
        for finding in findings
    )


def _leave_out_hosts_without_gpus(state: Run, began: float) -> None:
    """Go on without the hosts of a GPU machine that show no GPU; end the run if none is left.

    Their ranks would work on the CPU: the figures would mean nothing, and take long to get.
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
                cause="gpu-missing", message=message, check="hosts", host=name
            )
        # The record belongs to the reading of the hosts before this step.
        number = max([1, *(r.wave for r in state.records if r.step == HOSTS_STEP)])
        facts = [
            Fact(name=LEFT_OUT, value="gpu-missing", check="hosts", host=name) for name in missing
        ]
        problems = [state.lost[name] for name in missing]
        state.keep_asked(number, began, facts=facts, problems=problems)
        return
    shown = f"{missing[0]} shows" if len(missing) == 1 else f"{len(missing)} hosts show"
    raise _BreakOff(f"{shown} no GPU, and machine {state.plan.machine.name} has GPUs")


async def _execute_waves(
    state: Run, step: Step, plan_waves: Sequence[Wave], mine: list[Record]
) -> None:
    """Run waves one after the other, and number them on from those that `mine` holds."""
    first = 1 + max((r.wave for r in mine), default=-1)
    for number, wave in enumerate(plan_waves, first):
        _stop_when_over(state)
        # A host that was lost in an earlier wave takes its groups of this one with it.
        kept = tuple(g for g in wave if not any(name in state.lost for name in g.hosts))
        mine += await execute_wave(state, step, number, kept)
    _stop_when_over(state)


def _stop_when_over(state: Run) -> None:
    if state.is_over():
        raise _BreakOff(_late(state))


def _late(state: Run) -> str:
    return f"the run did not end within {state.seconds:.0f} s"


def _stop_unless_all_ranks(state: Run, records: Sequence[Record]) -> None:
    """Exactly the planned ranks must answer before anything is measured, or numbers mean nothing.

    A host that died meanwhile is named and left out; what remains is asked for anew by each step.
    """
    for record in records:
        answered = Counter(f.host for f in record.facts if f.name == "rank")
        planned = {name: state.host(name).slots for name in record.hosts}
        if dict(answered) != planned and not any(name in state.lost for name in record.hosts):
            total = sum(planned.values())
            raise _BreakOff(
                f"{sum(answered.values())} ranks on {len(answered)} hosts answered, "
                f"{total} on {len(planned)} were planned: nothing can be measured"
            )


def _why(record: Record) -> str:
    said = [f"{plain(p.message, 300)} ({p.cause})" for p in record.problems[:3]]
    return "; ".join(said) or f"exit {record.exit}"


def _say_plan(plan: Plan, launch: Launch) -> None:
    _say(f"accept {plan.version}: run {plan.hash[:12]}, attempt {launch.attempt}")
    _say(f"machine {plan.machine.name}, suite {plan.suite}, {len(launch.hosts)} hosts asked for")
    for step in plan.steps:
        _say(f"  {step.id}: {', '.join(step.checks)} on {step.groups}, about {step.estimate:.0f} s")
    for skipped in plan.skipped:
        _say(f"  not planned: {skipped.check}: {skipped.reason}")
    if plan.planted:
        _say(f"DRILL: faults are planted on purpose: {', '.join(plan.planted)}")


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def main(argv: Sequence[str]) -> int:
    """Entry point on the node."""
    if len(argv) != 2:
        sys.stderr.write("usage: python3 -m accept.core.runner.coordinator FOLDER\n")
        return Exit.USAGE
    # Each group and each connection takes some files; the usual soft limit is for a handful.
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    return asyncio.run(coordinate(Path(argv[1]).resolve()))


if __name__ == "__main__":
    sys.exit(main(sys.argv))
