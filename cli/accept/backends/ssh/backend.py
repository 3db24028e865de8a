"""Run on hosts over ssh: each gets its own sshd for the run, the first also the coordinator."""

from __future__ import annotations

import json
import re
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from shlex import quote

from accept.backends import containers, manage
from accept.backends.host_survey import HostSurvey, find, host_script, scalar
from accept.backends.job import Job
from accept.backends.protocol import Record, Say
from accept.backends.protocol import attempt_name as attempt_name
from accept.backends.protocol import check_job as check_job
from accept.backends.protocol import drain as drain
from accept.backends.protocol import progress as progress
from accept.backends.protocol import rehearse as rehearse
from accept.backends.remote import Reach, call, last_line
from accept.backends.requirements import (
    SECONDS,
    Need,
    Requirement,
    answers,
    machine_of,
    need_of,
    needs_of,
    scratch_lines,
    survey_script,
    tool_lines,
    tool_need,
)
from accept.backends.ssh.client import access_of, reach_of
from accept.backends.ssh.follow import cancel as cancel
from accept.backends.ssh.follow import collect as collect
from accept.backends.ssh.follow import delete as delete
from accept.backends.ssh.follow import watch as watch
from accept.backends.ssh.prepare import (
    NAME_ONCE,
    Absent,
    make_ready,
    print_machine,
    same_machine,
)
from accept.config import Site
from accept.core import evidence
from accept.core.bounded import on_all
from accept.core.error_codes import Code
from accept.core.errors import BadInput, NotStarted
from accept.core.runner.discovery import Candidate
from accept.core.runner.host_setup import Ready, busy_gpus, candidate, is_own
from accept.core.runner.keys import new_keys
from accept.core.runner.launch import Launch
from accept.core.runner.resume import EARLIER, pack_finished
from accept.core.runner.ssh import HOST_KEY_ALIAS
from accept.core.serde import dump
from accept.core.text import command_line, count, folded, plain, shortened
from accept.plan.bundle import Bundle
from accept.plan.resolve import ClusterPlace, Options, Resolved

_OLDEST_PYTHON = (3, 10)
#: Options of a run that `accept doctor` needs to report on the same run.
_OF_DOCTOR = ("--site", "--machine", "-m")
#: Requirements of every host for any run: key in the survey's output, name for people, advice.
_NEEDED_ON_HOSTS = (
    ("sshd", "sshd", "install the OpenSSH server"),
    ("unpacker", "bzip2 or Python", "install bzip2, or a Python with the module bz2"),
)

#: Shell commands that start the coordinator in the run's folder, and return. Only the watchdog can
#: start it in a container.
_BY_LOGIN = """ACCEPT_DIR=$PWD && . ./env.sh &&
    { setsid /bin/sh ./coordinate.sh "$ACCEPT_PYTHON" </dev/null >/dev/null 2>&1 & }"""
_BY_WATCHDOG = "echo coordinate 1<>events"

#: Maximum time to send the finished steps of an earlier attempt.
_SEND_SECONDS = 300.0


def detect(hosts: tuple[str, ...], site: Site, place: ClusterPlace) -> str:
    """Return the machine of the hosts: `gpu` if any reachable host has an NVIDIA GPU."""
    _refuse_no_hosts(hosts)
    reach = reach_of(access_of(site))
    replies = on_all(hosts, lambda h: call(reach, h, survey_script(), timeout=SECONDS))
    tools = [answers(r.text) for r in replies.values() if r.exit == 0]
    if not tools:
        host, reply = next(iter(replies.items()))
        raise NotStarted(
            f"none of {count(len(hosts), 'host')} answers; {host}: {last_line(reply.errors)}",
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


def reach(job: Job, _run: Resolved) -> Reach:
    """Return how commands reach a node of a run after its end: by ssh."""
    return reach_of(job.ssh_access)


def submit(
    run: Resolved, bundle: Bundle, *, attempt: str, folder: Path, record: Record, say: Say
) -> Job:
    """Prepare all hosts at the same time, then start the coordinator on the first usable one."""
    _refuse_no_hosts(run.hosts)
    access = access_of(run.site)
    reach = reach_of(access)
    run_folder = f"{run.site.tools.scratch.rstrip('/')}/accept-{attempt}"
    job = Job(
        schema=1,
        backend="ssh",
        attempt=attempt,
        hosts=run.hosts,
        first="",
        folder=run_folder,
        ssh_access=access,
    )
    record(job)
    until = time.monotonic() + run.plan.start_seconds
    try:
        keys = new_keys(HOST_KEY_ALIAS)
        results = make_ready(run, bundle, job, keys, until=until, say=say)
        ready = [r for r in results.values() if isinstance(r, Ready)]
        _refuse_unusable(run, results, ready)
        first = next((r for r in ready if r.python >= _OLDEST_PYTHON), None)
        if first is None:
            raise NotStarted(
                "no host has Python 3.10 or newer, which the coordinator needs",
                code=Code.SSH_NO_PYTHON,
                hint="set tools.python in the site file",
            )
        candidates = tuple(
            candidate(name, r if isinstance(r, Ready) else r.problem, first.name)
            for name, r in results.items()
        )
        candidates += tuple(
            Candidate(name=problem.host, problem=problem) for problem in run.lost if problem.host
        )
        # The sshds are running, so the coordinator only has to connect to them.
        launch = Launch(
            attempt=attempt,
            hosts=candidates,
            start_seconds=min(30.0, run.plan.start_seconds),
            earlier=_send_earlier(run, reach, first.name, run_folder) if run.earlier else "",
        )
        started = call(
            reach,
            first.name,
            f"{is_own(run_folder)} && cd {quote(run_folder)} && cat > {evidence.HOSTS} && "
            + (_BY_WATCHDOG if run.site.container.image else _BY_LOGIN)
            + " && echo started",
            stdin=(json.dumps(dump(launch)) + "\n").encode(),
            timeout=SECONDS,
        )
        if not started.out.endswith(b"started\n"):
            raise NotStarted(
                f"{first.name}: the coordinator did not start: {last_line(started.errors)}",
                code=Code.SSH_NO_COORDINATOR,
                hint=f"what the host lacks: {_doctor([first.name])}",
            )
    except BaseException:
        for host, leftovers in manage.end(reach, run.hosts, run_folder).items():
            if leftovers.startswith("left"):
                say(f"  {host}: {leftovers}")
        raise
    # Later commands ask every host of the job, and report those that do not answer.
    hosts = tuple(h for h, r in results.items() if isinstance(r, Ready) or r.has_files)
    return replace(job, first=first.name, hosts=hosts, signer=keys.public.strip())


def _send_earlier(run: Resolved, reach: Reach, host: str, run_folder: str) -> str:
    """Send the finished steps of an earlier attempt to a host, and return their folder there."""
    sent = call(
        reach,
        host,
        f"{is_own(run_folder)} && cd {quote(run_folder)} && tar -xf - && echo sent",
        stdin=pack_finished(Path(run.earlier), run.plan),
        timeout=_SEND_SECONDS,
    )
    if not sent.out.endswith(b"sent\n"):
        raise NotStarted(
            f"{host}: the finished steps were not received: {last_line(sent.errors)}",
            code=Code.RESUME_NOT_SENT,
            hint="check the free space on that host, or start again without --resume",
        )
    return f"{run_folder}/{EARLIER}"


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
            hint=f"what each lacks: {_doctor(run.hosts)}",
        )
    if not run.plan.busy_ok and (busy := busy_gpus(ready)):
        raise NotStarted(
            busy,
            code=Code.GPUS_IN_USE,
            hint="wait until they are idle, or give --busy-ok",
        )


def _doctor(hosts: Sequence[str]) -> str:
    """Return the command that shows what hosts lack, with site and machine of this command line."""
    words = [
        word
        for before, word in pairwise(sys.argv)
        if word in _OF_DOCTOR or before in _OF_DOCTOR or word.partition("=")[0] in _OF_DOCTOR
    ]
    return command_line("accept", "doctor", "--hosts", folded(hosts), *words)


def doctor(run: Resolved) -> tuple[Need, ...]:
    """Return the line of each requirement of the run's checks on each host."""
    _refuse_no_hosts(run.hosts)
    reach = reach_of(access_of(run.site))
    if run.site.container.image:
        command = containers.survey(run, pull=False)
    else:
        command = tool_lines(run.site.tools) + survey_script()
    command += scratch_lines(run.site.tools.scratch) + print_machine(run.site.tools.scratch)
    replies = on_all(run.hosts, lambda h: call(reach, h, command, timeout=SECONDS))
    needs: list[Need] = []
    machines: dict[str, str] = {}
    for host, reply in replies.items():
        if reply.exit not in (0, 1):
            # ssh begins its messages with its own name.
            found, advice = last_line(reply.errors).removeprefix("ssh: "), f"try: ssh {host}"
            needs.append(need_of(Requirement.SSH, found, advice, host=host, good=False))
            continue
        if other := same_machine(host, reply.text, machines):
            text = f"it is the same machine as {other}"
            needs.append(need_of(Requirement.OWN_MACHINE, text, NAME_ONCE, host=host, good=False))
        tools = answers(reply.text)
        if run.site.container.image:
            needs += containers.needs(host, tools, run)
        if not run.site.container.image or containers.is_surveyed(tools):
            for key, what, advice in _NEEDED_ON_HOSTS:
                needs.append(tool_need(host, what, (tools.get(key) or [""])[0], advice))
            needs += needs_of(host, tools, run)
        if greeting := plain(reply.greeting.decode(errors="replace"), 60):
            found = f'prints text before each command: "{greeting}"'
            advice = (
                "a run skips this text, but scp and rsync do not: in .bashrc or .cshrc, print only "
                "if the shell is interactive"
            )
            needs.append(need_of(Requirement.LOGIN_SHELL, found, advice, host=host))
    return tuple(needs)


def survey(options: Options) -> HostSurvey:
    """Ask all hosts. Raises BadInput without hosts, and NotStarted if none of them answers."""
    hosts = options.hosts
    if not hosts:
        raise BadInput(
            "the hosts are missing",
            code=Code.SSH_NO_HOSTS,
            hint="accept init --hosts 'node[01-16]'",
        )
    reach = reach_of(access_of(Site()))
    replies = on_all(hosts, lambda host: call(reach, host, host_script(), timeout=SECONDS))
    by_host = {
        host: answers(reply.text)
        for host, reply in replies.items()
        if reply.began and reply.exit in (0, 1)
    }
    absent = [host for host in hosts if host not in by_host]
    if not by_host:
        raise NotStarted(
            f"no host answers; {absent[0]}: {last_line(replies[absent[0]].errors)}",
            code=Code.SSH_NO_ANSWER,
            hint=f"try: ssh {absent[0]}",
        )
    found = find(by_host)
    notes = [f"{len(by_host)} of {count(len(hosts), 'host')} answered"]
    if absent:
        error = last_line(replies[absent[0]].errors)
        text = f"no answer from {folded(absent)}: {plain(error, 200)}; they stay in the site file"
        notes.append(text)
    notes += found.remarks
    section = (
        f"hosts: [{', '.join(map(scalar, _patterns(hosts)))}]",
        "# user: ubuntu",
        "# jumpHost: bastion.example.org",
    )
    return HostSurvey(
        name=re.sub(r"[^a-z].*", "", hosts[0].lower()) or "hosts",
        backend="ssh",
        section=lambda _: section,
        found=found,
        notes=tuple(notes),
    )


def _patterns(hosts: tuple[str, ...]) -> list[str]:
    """Return the hosts as patterns; a comma inside brackets separates none."""
    return re.findall(r"(?:[^,\[]|\[[^\]]*\])+", folded(hosts))
