"""Run on hosts over ssh: each gets its own sshd for the run, the first also the coordinator."""

from __future__ import annotations

import json
import re
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from shlex import quote

from accept.backends.job import Job
from accept.backends.protocol import Phase, Progress, Say
from accept.backends.requirements import (
    SECONDS,
    TOOLS,
    Need,
    answers,
    machine_of,
    needs_of,
    scratch_lines,
    tool_lines,
)
from accept.backends.ssh import manage
from accept.backends.ssh import watch as ssh_watch
from accept.backends.ssh.client import Reply, access_of, call, last_line, on_all, ssh_options
from accept.backends.ssh.prepare import Ready, make_ready
from accept.config import Site
from accept.core.errors import BadEvidence, BadInput, BrokenOff, NoEvidence, NotStarted
from accept.core.model import Problem
from accept.core.runner.coordinator import HOSTS, Launch
from accept.core.runner.discovery import Candidate
from accept.core.serde import dump
from accept.core.text import decimal, plain
from accept.evidence.archive import Announced, download, unpack
from accept.plan.bundle import Bundle
from accept.plan.resolve import Resolved

_OLDEST_PYTHON = (3, 10)
_SHA256 = re.compile(r"[0-9a-f]{64}")


def detect(hosts: tuple[str, ...], site: Site, place: dict[str, str]) -> str:
    """Return the machine of the hosts: `gpu` if any reachable host has an NVIDIA GPU."""
    _refuse_no_hosts(hosts)
    options = ssh_options(site)
    replies = on_all(hosts, lambda h: call(options, h, TOOLS, timeout=SECONDS))
    tools = [answers(r.out.decode(errors="replace")) for r in replies.values() if r.exit == 0]
    if not tools:
        host, reply = next(iter(replies.items()))
        raise NotStarted(
            f"no host answers; {host}: {last_line(reply.err)}",
            hint=f"try: ssh {host}; or give --machine",
        )
    return machine_of(*tools)


def _refuse_no_hosts(hosts: Sequence[str]) -> None:
    if not hosts:
        raise BadInput(
            "the ssh back end needs a list of hosts",
            hint="give --hosts a,b,c or set ssh.hosts in the site file",
        )


def attempt_name(attempt: str, place: dict[str, str], nodes: int) -> str:
    """Return the name unmodified."""
    return attempt


def check_job(job: Job, folder: Path) -> None:
    """Accept any job: `Job` itself refuses values that `submit` would not have written."""


def progress(job: Job, *, folder: Path) -> Progress:
    """Return that the run was submitted: only its hosts know more."""
    return Progress(phase=Phase.SUBMITTED)


def submit(run: Resolved, bundle: Bundle, *, attempt: str, folder: Path, say: Say) -> Job:
    """Prepare all hosts at the same time, then start the coordinator on the first usable one."""
    _refuse_no_hosts(run.hosts)
    access = access_of(run.site)
    options = access.options()
    run_folder = f"{run.site.tools.scratch.rstrip('/')}/accept-{attempt}"
    job = Job(
        schema=1,
        backend="ssh",
        attempt=attempt,
        hosts=run.hosts,
        first="",
        folder=run_folder,
        ssh_access=access,
        submitted=datetime.now(UTC).isoformat(timespec="seconds"),
    )
    until = time.monotonic() + run.plan.start_seconds
    try:
        results = make_ready(run, bundle, job, until=until, say=say)
        ready = [r for r in results.values() if isinstance(r, Ready)]
        _refuse_unusable(run, results, ready)
        first = next((r for r in ready if r.python >= _OLDEST_PYTHON), None)
        if first is None:
            raise NotStarted(
                "no host has Python 3.10 or newer, which the coordinator needs",
                hint="set tools.python in the site file",
            )
        candidates = tuple(_candidate(name, r, first) for name, r in results.items())
        # The sshds are up, so the coordinator only has to connect to them.
        launch = Launch(
            attempt=attempt, hosts=candidates, start_seconds=min(30.0, run.plan.start_seconds)
        )
        started = call(
            options,
            first.name,
            f"cd {quote(run_folder)} && cat > {HOSTS} && . ./env.sh && "
            '{ setsid /bin/sh ./coordinate.sh "$ACCEPT_PYTHON" </dev/null >/dev/null 2>&1 & } && '
            "echo started",
            stdin=(json.dumps(dump(launch)) + "\n").encode(),
            timeout=SECONDS,
        )
        if not started.out.endswith(b"started\n"):
            raise NotStarted(
                f"{first.name}: the coordinator did not start: {last_line(started.err)}"
            )
    except BaseException:
        for host, leftovers in manage.end(options, run.hosts, run_folder).items():
            if leftovers.startswith("left"):
                say(f"  {host}: {leftovers}")
        raise
    return replace(job, first=first.name)


def _refuse_unusable(
    run: Resolved, results: Mapping[str, Ready | Problem], ready: list[Ready]
) -> None:
    """Raise NotStarted if too few hosts are ready, or if their GPUs are in use."""
    problems = [p for p in results.values() if isinstance(p, Problem)]
    if not ready or (problems and run.plan.require_all_nodes):
        shown = "; ".join(f"{p.message} ({p.cause})" for p in problems[:4])
        more = f" and {len(problems) - 4} more" if len(problems) > 4 else ""
        raise NotStarted(
            f"{len(ready)} of {len(results)} hosts can be used: {shown}{more}",
            hint="accept doctor shows what each host lacks",
        )
    if not run.plan.busy_ok and (busy := [f"{r.name}: {b}" for r in ready for b in r.busy]):
        raise NotStarted(
            f"GPUs are in use: {'; '.join(busy[:4])}",
            hint="wait until they are idle, or give --busy-ok",
        )


def _candidate(name: str, result: Ready | Problem, first: Ready) -> Candidate:
    """Return a host as the coordinator on the host `first` looks for it."""
    if isinstance(result, Problem):
        return Candidate(name=name, problem=result)
    addresses = tuple(dict.fromkeys((name, *result.addresses)))
    return Candidate(name=name, addresses=addresses, port=result.port, local=name == first.name)


def watch(job: Job, *, folder: Path, say: Say) -> int:
    """Follow the console on the first host, and reconnect if the connection fails."""
    return ssh_watch.follow(job, say=say)


def collect(job: Job, *, folder: Path, say: Say) -> Path:
    """Fetch the evidence archive from the first host, verify it, and remove the run there."""
    target = folder / "evidence"
    options = job.ssh_access.options()
    source = f"the archive from {job.first}"
    announced = _announced(job, manage.offer(options, job.first, job.folder))
    # A download that was interrupted is resumed by the next one.
    part = folder / f".evidence-{announced.digest[:16]}.part"
    for other in folder.glob(".evidence-*.part"):
        if other != part:
            other.unlink()

    def read_from(at: int, sink: Callable[[bytes], None]) -> None:
        with closing(manage.send(options, job.first, job.folder, at)) as chunks:
            for chunk in chunks:
                sink(chunk)

    say(f"fetching {announced.size / 1e6:.1f} MB of evidence from {job.first}")
    download(read_from, part, announced, source=source, say=say)
    with tempfile.TemporaryDirectory(prefix=".collect-", dir=folder) as scratch:
        unpack(part, Path(scratch), source=source)
        if not (Path(scratch) / "evidence" / "plan.json").is_file():
            raise BadEvidence(f"{source} contains no plan", hint="collect again")
        (Path(scratch) / "evidence").rename(target)
    part.unlink()
    # The coordinator has ended the run on the other hosts, except on those it could not reach.
    for host, leftovers in manage.end(options, job.hosts, job.folder).items():
        say(f"  {host}: {leftovers}; to remove it: accept delete {job.attempt}")
    return target


def _announced(job: Job, reply: Reply) -> Announced:
    """Return what the first host announces. Raises an AcceptError if it has no evidence to send."""
    if reply.exit == manage.STILL_RUNNING:
        raise BrokenOff(
            f"{job.attempt} is still running",
            hint=f"accept watch {job.attempt}, or accept cancel {job.attempt}",
        )
    if reply.exit == manage.NO_EVIDENCE:
        raise NoEvidence(
            f"{job.first} has no evidence of {job.attempt}",
            hint="it may have been removed because its retention time is over; run again",
        )
    if reply.exit == manage.NOT_OURS:
        raise NoEvidence(
            f"{job.first}: {job.folder} belongs to another user",
            hint="the run's own folder is gone; run again",
        )
    size, _, digest = reply.out.decode(errors="replace").strip().partition(" ")
    count = decimal(size)
    if reply.exit != 0 or count is None or not _SHA256.fullmatch(digest):
        raise BadEvidence(
            f"{job.first} cannot send the evidence of {job.attempt}: {last_line(reply.err)}",
            hint=f"check that the host answers: ssh {job.first}; then collect again",
        )
    return Announced(size=count, digest=digest)


def cancel(job: Job, *, folder: Path, say: Say) -> None:
    """End the run on the first host, keep its evidence there, and remove it from all others.

    Raises BrokenOff after that if a host did not confirm it.
    """
    options = job.ssh_access.options()
    say("cancel: the coordinator ends what it started")
    leftovers = {
        **manage.end(options, (job.first,), job.folder, keep_evidence=True),
        **manage.end(options, (h for h in job.hosts if h != job.first), job.folder),
    }
    _refuse_leftovers(
        job,
        leftovers,
        f"accept collect {job.attempt} fetches what was measured; then accept delete",
    )


def delete(job: Job, *, dry_run: bool, say: Say) -> tuple[str, ...]:
    """Remove the run's folder from every host that still has it, and end its processes there.

    Raises BrokenOff after that if a host did not confirm it.
    """
    options = job.ssh_access.options()
    d = quote(job.folder)
    replies = on_all(
        job.hosts, lambda h: call(options, h, f"[ -e {d} ] || [ -L {d} ]", timeout=SECONDS)
    )
    # A host that does not answer may have the folder.
    hosts = [host for host, reply in replies.items() if reply.exit != 1]
    if silent := [host for host, reply in replies.items() if reply.exit not in (0, 1)]:
        say(f"no answer from {', '.join(silent)}; the guards there remove the run later")
    if not dry_run:
        leftovers = manage.end(options, hosts, job.folder)
        for host in hosts:
            if leftovers and host not in leftovers:
                say(f"removed {host}:{job.folder}")
        _refuse_leftovers(job, leftovers, f"accept delete {job.attempt} tries again")
    return tuple(f"{host}:{job.folder}{' (no answer)' if host in silent else ''}" for host in hosts)


def _refuse_leftovers(job: Job, leftovers: Mapping[str, str], hint: str) -> None:
    """Raise BrokenOff if parts of a run are left on hosts, or may be. `leftovers` is by host."""
    if leftovers:
        shown = "; ".join(f"{host}: {text}" for host, text in list(leftovers.items())[:4])
        more = f"; and {len(leftovers) - 4} more" if len(leftovers) > 4 else ""
        raise BrokenOff(
            f"{job.attempt} is not removed from {len(leftovers)} of {len(job.hosts)} hosts: "
            f"{shown}{more}",
            hint=hint,
        )


def doctor(run: Resolved, *, say: Say) -> tuple[Need, ...]:
    """Return what each host has for the run's checks."""
    _refuse_no_hosts(run.hosts)
    options = ssh_options(run.site)
    command = tool_lines(run.site.tools) + TOOLS + scratch_lines(run.site.tools.scratch)
    replies = on_all(run.hosts, lambda h: call(options, h, command, timeout=SECONDS))
    needs: list[Need] = []
    for host, reply in replies.items():
        if reply.exit not in (0, 1):
            advice = f"try: ssh {host}"
            needs.append(
                Need(host=host, what="ssh", good=False, found=last_line(reply.err), advice=advice)
            )
            continue
        tools = answers(reply.out.decode(errors="replace"))
        sshd = (tools.get("sshd") or [""])[0]
        needs.append(
            Need(
                host=host,
                what="sshd",
                good=bool(sshd),
                found=sshd or "not found",
                advice="" if sshd else "install the OpenSSH server",
            )
        )
        needs += needs_of(host, tools, run)
        if greeting := plain(reply.greeting.decode(errors="replace"), 60):
            needs.append(
                Need(
                    host=host,
                    what="login shell",
                    good=True,
                    found=f'prints text before each command: "{greeting}"',
                    advice="a run skips this text, but scp and rsync do not: in .bashrc or "
                    ".cshrc, print only if the shell is interactive",
                )
            )
    return tuple(needs)
