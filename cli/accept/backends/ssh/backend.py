"""Run on hosts over ssh: each gets its own sshd for the run, the first also the coordinator."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from shlex import quote

from accept.backends.job import Job
from accept.backends.protocol import Phase, Progress, Say
from accept.backends.requirements import (
    SECONDS,
    Need,
    answers,
    machine_of,
    needs_of,
    scratch_lines,
    survey_script,
    tool_lines,
    tool_need,
)
from accept.backends.ssh import manage
from accept.backends.ssh.client import access_of, call, last_line, on_all, ssh_options
from accept.backends.ssh.collect import collect
from accept.backends.ssh.delete import cancel, delete
from accept.backends.ssh.prepare import Absent, Ready, make_ready
from accept.backends.ssh.watch import watch
from accept.config import Site
from accept.core.error_codes import Code
from accept.core.errors import BadInput, NotStarted
from accept.core.runner.coordinator import HOSTS, Launch
from accept.core.runner.discovery import Candidate
from accept.core.serde import dump
from accept.core.text import count, plain, shortened
from accept.plan.bundle import Bundle
from accept.plan.resolve import ClusterPlace, Resolved

__all__ = [
    "attempt_name",
    "cancel",
    "check_job",
    "collect",
    "delete",
    "detect",
    "doctor",
    "progress",
    "submit",
    "watch",
]

_OLDEST_PYTHON = (3, 10)
#: What every host needs for any run: key in the output of the survey, name for people, and advice.
_NEEDED_ON_HOSTS = (
    ("sshd", "sshd", "install the OpenSSH server"),
    ("unpacker", "bzip2 or Python", "install bzip2, or a Python with the module bz2"),
)


def detect(hosts: tuple[str, ...], site: Site, place: ClusterPlace) -> str:
    """Return the machine of the hosts: `gpu` if any reachable host has an NVIDIA GPU."""
    _refuse_no_hosts(hosts)
    options = ssh_options(site)
    replies = on_all(hosts, lambda h: call(options, h, survey_script(), timeout=SECONDS))
    tools = [answers(r.out.decode(errors="replace")) for r in replies.values() if r.exit == 0]
    if not tools:
        host, reply = next(iter(replies.items()))
        raise NotStarted(
            f"no host answers; {host}: {last_line(reply.err)}",
            code=Code.SSH_NO_ANSWER,
            hint=f"try: ssh {host}; or give --machine",
        )
    return machine_of(*tools)


def _refuse_no_hosts(hosts: Sequence[str]) -> None:
    if not hosts:
        raise BadInput(
            "the ssh back end needs a list of hosts",
            code=Code.SSH_NO_HOSTS,
            hint="give --hosts a,b,c or set ssh.hosts in the site file",
        )


def attempt_name(attempt: str, place: ClusterPlace, nodes: int) -> str:
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
                code=Code.SSH_NO_PYTHON,
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
                f"{first.name}: the coordinator did not start: {last_line(started.err)}",
                code=Code.SSH_NO_COORDINATOR,
                hint=f"accept doctor --hosts {first.name} shows what the host lacks",
            )
    except BaseException:
        for host, leftovers in manage.end(options, run.hosts, run_folder).items():
            if leftovers.startswith("left"):
                say(f"  {host}: {leftovers}")
        raise
    # Later commands ask every host of the job, and report those that do not answer.
    hosts = tuple(h for h, r in results.items() if isinstance(r, Ready) or r.has_files)
    return replace(job, first=first.name, hosts=hosts)


def _refuse_unusable(
    run: Resolved, results: Mapping[str, Ready | Absent], ready: list[Ready]
) -> None:
    """Raise NotStarted if too few hosts are ready, or if their GPUs are in use."""
    problems = [r.problem for r in results.values() if isinstance(r, Absent)]
    if not ready or (problems and run.plan.require_all_nodes):
        shown = shortened([f"{p.message} ({p.cause})" for p in problems], 4, "; ")
        raise NotStarted(
            f"{len(ready)} of {count(len(results), 'host')} can be used: {shown}",
            code=Code.SSH_HOSTS_UNUSABLE,
            hint="accept doctor shows what each host lacks",
        )
    if not run.plan.busy_ok and (busy := [f"{r.name}: {b}" for r in ready for b in r.busy]):
        raise NotStarted(
            f"GPUs are in use: {'; '.join(busy[:4])}",
            code=Code.GPUS_IN_USE,
            hint="wait until they are idle, or give --busy-ok",
        )


def _candidate(name: str, result: Ready | Absent, first: Ready) -> Candidate:
    """Return a host as the coordinator on the host `first` looks for it."""
    if isinstance(result, Absent):
        return Candidate(name=name, problem=result.problem)
    addresses = tuple(dict.fromkeys((name, *result.addresses)))
    return Candidate(name=name, addresses=addresses, port=result.port, local=name == first.name)


def doctor(run: Resolved, *, say: Say) -> tuple[Need, ...]:
    """Return what each host has for the run's checks."""
    _refuse_no_hosts(run.hosts)
    options = ssh_options(run.site)
    command = tool_lines(run.site.tools) + survey_script() + scratch_lines(run.site.tools.scratch)
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
        for key, what, advice in _NEEDED_ON_HOSTS:
            needs.append(tool_need(host, what, (tools.get(key) or [""])[0], advice))
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
