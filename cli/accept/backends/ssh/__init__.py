"""Hosts that you can ssh to: a private sshd on each, the coordinator on the first."""

from __future__ import annotations

import io
import json
import tempfile
import time
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from shlex import quote

from accept.archives import unpack
from accept.backends import Job, Say
from accept.backends.ssh import follow
from accept.backends.ssh.ready import Ready, make_ready
from accept.core.coordinator import HOSTS, Launch
from accept.core.errors import BadEvidence, BadInput, BrokenOff, NoEvidence, NotStarted
from accept.core.hosts import Candidate
from accept.core.model import Problem
from accept.core.typed import dump
from accept.probe import (
    SECONDS,
    TOOLS,
    Need,
    answers,
    machine_of,
    needs_of,
    scratch_lines,
    tool_lines,
)
from accept.remoting import call, last_line, on_all, ssh_options
from accept.render import Bundle
from accept.resolve import Resolved
from accept.spec import Site

_OLDEST_PYTHON = (3, 10)


def detect(hosts: tuple[str, ...], site: Site, place: dict[str, str]) -> str:
    """The machine of the hosts: `gpu` where any of those that answer has an NVIDIA GPU."""
    options = ssh_options(site)
    replies = on_all(hosts, lambda h: call(options, h, TOOLS, timeout=SECONDS))
    found = [answers(r.out.decode(errors="replace")) for r in replies.values() if r.exit == 0]
    if not found:
        host, reply = next(iter(replies.items()))
        raise NotStarted(
            f"no host answers; {host}: {last_line(reply.err)}",
            hint="try: ssh " + host + "; or name the --machine",
        )
    return machine_of(*found)


def named(attempt: str, place: dict[str, str]) -> str:
    """The attempt's name, as it was chosen."""
    return attempt


def submit(run: Resolved, bundle: Bundle, *, attempt: str, folder: Path, say: Say) -> Job:
    """Make all hosts ready at the same time, then start the coordinator on the first that is."""
    if not run.hosts:
        raise BadInput(
            "over ssh the hosts must be named",
            hint="give --hosts a,b,c or ssh.hosts in the site file",
        )
    options = ssh_options(run.site)
    place = f"{run.site.tools.scratch.rstrip('/')}/accept-{attempt}"
    job = Job(
        schema=1,
        backend="ssh",
        attempt=attempt,
        hosts=run.hosts,
        first="",
        folder=place,
        ssh=options,
        submitted=datetime.now(UTC).isoformat(timespec="seconds"),
    )
    until = time.monotonic() + run.plan.start_seconds
    try:
        found = make_ready(run, bundle, job, until=until, say=say)
        ready = [r for r in found.values() if isinstance(r, Ready)]
        _refuse(run, found, ready)
        first = next((r for r in ready if r.python >= _OLDEST_PYTHON), None)
        if first is None:
            raise NotStarted(
                "no host has Python 3.10 or newer, which the first needs",
                hint="name one: tools.python in the site file",
            )
        candidates = tuple(_candidate(name, r, first) for name, r in found.items())
        # The sshds are up: what is left is finding the way between the hosts.
        launch = Launch(
            attempt=attempt, hosts=candidates, start_seconds=min(30.0, run.plan.start_seconds)
        )
        started = call(
            options,
            first.name,
            f"cd {quote(place)} && cat > {HOSTS} && . ./env.sh && "
            '{ setsid /bin/sh ./coordinate.sh "$ACCEPT_PYTHON" </dev/null >/dev/null 2>&1 & } && '
            "echo started",
            stdin=(json.dumps(dump(launch)) + "\n").encode(),
            timeout=SECONDS,
        )
        if b"started" not in started.out:
            raise NotStarted(
                f"{first.name}: the coordinator did not start: {last_line(started.err)}"
            )
    except BaseException:
        on_all(run.hosts, lambda h: _remove(options, h, place))
        raise
    return replace(job, first=first.name)


def _refuse(run: Resolved, found: Mapping[str, Ready | Problem], ready: list[Ready]) -> None:
    """Raise NotStarted where too few hosts came, or where somebody uses the GPUs."""
    problems = [p for p in found.values() if isinstance(p, Problem)]
    if not ready or (problems and run.plan.require_all_nodes):
        shown = "; ".join(f"{p.message} ({p.cause})" for p in problems[:4])
        more = f" and {len(problems) - 4} more" if len(problems) > 4 else ""
        raise NotStarted(
            f"{len(ready)} of {len(found)} hosts can be used: {shown}{more}",
            hint="accept doctor says what each host lacks",
        )
    if not run.plan.busy_ok and (busy := [f"{r.name}: {b}" for r in ready for b in r.busy]):
        raise NotStarted(
            f"GPUs are in use: {'; '.join(busy[:4])}", hint="wait for them, or give --busy-ok"
        )


def _candidate(name: str, found: Ready | Problem, first: Ready) -> Candidate:
    if isinstance(found, Problem):
        return Candidate(name=name, problem=found)
    addresses = tuple(dict.fromkeys((name, *found.addresses)))
    return Candidate(name=name, addresses=addresses, port=found.port, local=name == first.name)


def watch(job: Job, *, folder: Path, say: Say) -> int:
    """Follow the console on the first host; a connection that drops is made again."""
    return follow.follow(job, say=say)


def collect(job: Job, *, folder: Path, say: Say) -> Path:
    """Fetch the evidence archive from the first host, check it, and release it there."""
    target = folder / "evidence"
    d = quote(job.folder)
    reply = call(
        job.ssh,
        job.first,
        f"cd {d} || exit 4; [ -e status ] || exit 3; "
        "n=600; until [ -e evidence.tar ] || [ -e unpacked ] || [ $n = 0 ]; do "
        "n=$((n - 1)); sleep 0.1; done; "
        "if [ -e evidence.tar ]; then cat evidence.tar; else tar -cf - evidence; fi",
        timeout=600.0,
    )
    if reply.exit == 3:
        raise BrokenOff(
            f"{job.attempt} is still running",
            hint=f"accept watch {job.attempt}, or accept cancel {job.attempt}",
        )
    if reply.exit != 0:
        said = f"{job.first} has no evidence of {job.attempt}: {last_line(reply.err)}"
        if reply.exit == 4:
            raise NoEvidence(said, hint="is its time to be kept over?")
        raise BadEvidence(said, hint=f"does it answer? try: ssh {job.first}; then collect again")
    with tempfile.TemporaryDirectory(prefix=".collect-", dir=folder) as scratch:
        unpack(io.BytesIO(reply.out), Path(scratch), source=f"the archive from {job.first}")
        if not (Path(scratch) / "evidence" / "plan.json").is_file():
            raise BadEvidence(f"the archive from {job.first} holds no plan", hint="collect again")
        (Path(scratch) / "evidence").rename(target)
    # The others are told by the coordinator; one that it could not reach is told from here.
    on_all(job.hosts, lambda h: _remove(job.ssh, h, job.folder))
    return target


def cancel(job: Job, *, folder: Path, say: Say) -> None:
    """End the run on the first host, keep its evidence there, and remove it from all others."""
    d = quote(job.folder)
    say("cancel: the coordinator ends what it started")
    call(
        job.ssh,
        job.first,
        f"cd {d} || exit; [ -e status ] || echo stop 1<>events; n=450; "
        "until [ -e evidence.tar ] || [ -e unpacked ] || [ ! -e run ] || [ $n = 0 ]; do "
        "n=$((n - 1)); sleep 0.1; done",
        timeout=SECONDS,
    )
    others = (h for h in job.hosts if h != job.first)
    gone = on_all(others, lambda h: _remove(job.ssh, h, job.folder))
    for host in (h for h, done in gone.items() if not done):
        say(f"  {host} could not be asked; its guard removes everything when its time is over")


def delete(job: Job, *, dry_run: bool, say: Say) -> tuple[str, ...]:
    """Remove the run's folder from every host that still has it, and what lives of it there."""
    d = quote(job.folder)
    asked = on_all(job.hosts, lambda h: call(job.ssh, h, f"[ -d {d} ]", timeout=SECONDS))
    there = [host for host, reply in asked.items() if reply.exit == 0]
    if silent := [host for host, reply in asked.items() if reply.exit not in (0, 1)]:
        say(f"cannot be asked: {', '.join(silent)}; their guards remove everything in time")
    if not dry_run:
        on_all(there, lambda h: _remove(job.ssh, h, job.folder))
    return tuple(f"{host}:{job.folder}" for host in there)


def _remove(options: tuple[str, ...], host: str, folder: str) -> bool:
    """Tell a host's guard to remove everything, and wait until it has; whether it is gone."""
    d = quote(folder)
    command = (
        f"[ -d {d} ] || exit 0; cd {d} && {{ [ ! -p events ] || echo remove 1<>events; }}; "
        "cd /; n=200; "
        f"until [ ! -d {d} ] || [ $n = 0 ]; do n=$((n - 1)); sleep 0.1; done; [ ! -d {d} ]"
    )
    return call(options, host, command, timeout=SECONDS).exit == 0


def doctor(run: Resolved, *, say: Say) -> tuple[Need, ...]:
    """What each host has for the run's checks."""
    options = ssh_options(run.site)
    command = tool_lines(run.site.tools) + TOOLS + scratch_lines(run.site.tools.scratch)
    replies = on_all(run.hosts, lambda h: call(options, h, command, timeout=SECONDS))
    needs: list[Need] = []
    for host, reply in replies.items():
        if reply.exit != 0 and reply.exit != 1:
            advice = f"try: ssh {host}"
            needs.append(
                Need(host=host, what="ssh", good=False, found=last_line(reply.err), advice=advice)
            )
            continue
        found = answers(reply.out.decode(errors="replace"))
        sshd = (found.get("sshd") or [""])[0]
        needs.append(
            Need(
                host=host,
                what="sshd",
                good=bool(sshd),
                found=sshd or "not found",
                advice="" if sshd else "install the OpenSSH server",
            )
        )
        needs += needs_of(host, found, run)
    return tuple(needs)
