"""Hosts that you can ssh to: a private sshd on each, the coordinator on the first."""

from __future__ import annotations

import io
import json
import os
import subprocess
import tarfile
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from shlex import quote

from accept.archives import unpack
from accept.backends import Job, Say
from accept.core.coordinator import HOSTS, Launch
from accept.core.errors import BadEvidence, BadInput, BrokenOff, NotStarted
from accept.core.hosts import Candidate, ssh_cause
from accept.core.model import Problem
from accept.core.remote import HOST_KEY_ALIAS
from accept.core.typed import dump
from accept.probe import TOOLS, Need, answers, machine_of, needs_of, tool_lines
from accept.remoting import Reply, call, on_all, ssh_options
from accept.render import Bundle
from accept.resolve import Resolved
from accept.spec import Site

_SECONDS = 60.0
#: What a guard allows beyond start and deadline, for the hold, the judging and the packing.
_SLACK = 300.0
#: Not worth another try: the same answer would come.
_FINAL = (
    "key-refused",
    "host-key-mismatch",
    "unreachable-dns",
    "disk-full",
    "tool-missing",
    "launch-failed",
)
_OLDEST_PYTHON = (3, 10)


@dataclass(frozen=True, kw_only=True)
class _Ready:
    """A host on which the run's own sshd listens."""

    name: str
    port: int
    addresses: tuple[str, ...]
    python: tuple[int, ...]
    busy: tuple[str, ...]


def detect(hosts: tuple[str, ...], site: Site, place: dict[str, str]) -> str:
    """The machine of the hosts: `gpu` where any of those that answer has an NVIDIA GPU."""
    options = ssh_options(site)
    replies = on_all(hosts, lambda h: call(options, h, TOOLS, timeout=_SECONDS))
    found = [answers(r.out.decode(errors="replace")) for r in replies.values() if r.exit == 0]
    if not found:
        host, reply = next(iter(replies.items()))
        raise NotStarted(
            f"no host answers; {host}: {_last(reply.err)}",
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
        found = _make_ready(run, bundle, job, until=until, say=say)
        ready = [r for r in found.values() if isinstance(r, _Ready)]
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
            timeout=_SECONDS,
        )
        if b"started" not in started.out:
            raise NotStarted(f"{first.name}: the coordinator did not start: {_last(started.err)}")
    except BaseException:
        on_all(run.hosts, lambda h: _remove(options, h, place))
        raise
    return replace(job, first=first.name)


def _make_ready(
    run: Resolved, bundle: Bundle, job: Job, *, until: float, say: Say
) -> Mapping[str, _Ready | Problem]:
    with tempfile.TemporaryDirectory(prefix="accept-key-") as scratch:
        key = Path(scratch) / "key"
        try:
            subprocess.run(
                [
                    "ssh-keygen",
                    "-q",
                    "-t",
                    "ed25519",
                    "-N",
                    "",
                    "-C",
                    HOST_KEY_ALIAS,
                    "-f",
                    str(key),
                ],
                check=True,
                capture_output=True,
            )
        except (OSError, subprocess.CalledProcessError) as error:
            raise NotStarted(
                f"ssh-keygen: {error}", hint="install the OpenSSH client here"
            ) from None
        public = key.with_suffix(".pub").read_text(encoding="utf-8")
        secrets = {
            "key": key.read_bytes(),
            "authorized_keys": f"restrict,pty {public}".encode(),
            "known_hosts": f"{HOST_KEY_ALIAS} {public}".encode(),
            "run": f"{job.attempt}\n".encode(),
        }
    archive = bundle.archive()
    plan = run.plan
    life = int(plan.start_seconds + plan.deadline_seconds + plan.hold_seconds + _SLACK)
    command = _set_up(job.folder, life, int(plan.keep_seconds))
    say(f"making {len(run.hosts)} hosts ready")

    def ready(host: str) -> _Ready | Problem:
        extra = _tar({**secrets, "host": f"{host}\n".encode()})
        told = False
        while True:
            reply = call(
                job.ssh,
                host,
                command.replace("@HOST@", quote(host)),
                stdin=_joined(archive, extra),
                timeout=_SECONDS,
            )
            result = _understood(host, reply)
            if isinstance(result, _Ready) or result.cause in _FINAL or time.monotonic() > until:
                return result
            if not told:
                say(f"  waiting for {result.message} ({result.cause})")
                told = True
            time.sleep(1.0)

    return on_all(run.hosts, ready)


def _set_up(folder: str, life: int, keep: int) -> str:
    """The sh line that unpacks what comes on its stdin and makes the host ready.

    A folder that is there already is left over from a try whose connection broke, or belongs to
    another host: then the two share the file system, and would overwrite each other.
    """
    d = quote(folder)
    return (
        f'umask 077; if [ -e {d} ]; then if [ "$(cat {d}/host 2>/dev/null)" = @HOST@ ]; then '
        f"[ ! -p {d}/events ] || echo remove 1<>{d}/events; n=200; "
        f"while [ -e {d} ] && [ $n -gt 0 ]; do n=$((n - 1)); sleep 0.1; done; rm -rf {d}; else "
        f"echo 'problem launch-failed {folder} is there already: do hosts share it? "
        "Set tools.scratch to a local disk'; "
        f"exit 1; fi; fi; mkdir {d} && cd {d} || exit 1; "
        f"tar xf - || {{ cd /; rm -rf {d}; exit 1; }}; exec /bin/sh ./host.sh {life} {keep}"
    )


def _understood(host: str, reply: Reply) -> _Ready | Problem:
    lines = reply.out.decode(errors="replace").splitlines()
    values: dict[str, list[str]] = {}
    for line in lines:
        key, _, value = line.partition(" ")
        values.setdefault(key, []).append(value)
    if reply.exit == 0 and "ready" in values and values.get("port", [""])[0].isdigit():
        python = values.get("python", [""])[0].split(".")
        return _Ready(
            name=host,
            port=int(values["port"][0]),
            addresses=tuple(dict.fromkeys(values.get("address", ()))),
            python=tuple(int(p) for p in python if p.isdigit()),
            busy=tuple(values.get("busy", ())),
        )
    if "problem" in values:
        cause, _, message = values["problem"][0].partition(" ")
    elif "no space left" in reply.err.lower():
        cause, message = "disk-full", _last(reply.err)
    elif reply.exit in (255, None):
        cause, message = ssh_cause(reply.err), _last(reply.err)
    else:
        cause, message = (
            "launch-failed",
            _last(reply.err) or f"it could not be made ready: exit {reply.exit}",
        )
    return Problem(cause=cause, message=f"{host}: {message}", check="hosts", host=host)


def _refuse(run: Resolved, found: Mapping[str, _Ready | Problem], ready: list[_Ready]) -> None:
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


def _candidate(name: str, found: _Ready | Problem, first: _Ready) -> Candidate:
    if isinstance(found, Problem):
        return Candidate(name=name, problem=found)
    addresses = tuple(dict.fromkeys((name, *found.addresses)))
    return Candidate(name=name, addresses=addresses, port=found.port, local=name == first.name)


def _tar(files: Mapping[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.USTAR_FORMAT) as tar:
        for name, content in files.items():
            info = tarfile.TarInfo(name)
            info.size, info.mode = len(content), 0o600
            tar.addfile(info, io.BytesIO(content))
    return buffer.getvalue()


def _joined(archive: bytes, extra: bytes) -> bytes:
    """Two tar archives as one: the first without the zero blocks that end it."""
    return archive.rstrip(b"\0") + b"\0" * (-len(archive.rstrip(b"\0")) % 512) + extra


def watch(job: Job, *, folder: Path, say: Say) -> int:
    """Follow the console on the first host; a connection that drops is made again."""
    seen, rest, failures = 0, b"", 0
    while True:
        process = subprocess.Popen(
            [
                "ssh",
                *job.ssh,
                "--",
                job.first,
                f"exec /bin/sh -c {quote(_follow(job.folder, seen))}",
            ],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
        assert process.stdout is not None
        code = None
        try:
            while chunk := os.read(process.stdout.fileno(), 1 << 16):
                failures = 0
                rest += chunk
                *lines, rest = rest.split(b"\n")
                for line in lines:
                    if line.startswith(b"\x1eended "):
                        code = line.split()[1]
                        break
                    seen += len(line) + 1
                    say(line.decode(errors="replace"))
        finally:
            process.kill()
            process.wait()
        if code is not None:
            if code.isdigit():
                return int(code)
            raise BrokenOff(
                f"{job.attempt} is no longer on {job.first}",
                hint="it was removed, or its time to be kept is over",
            )
        rest = b""
        failures += 1
        if failures > 60:
            raise BrokenOff(
                f"{job.first} has not answered for some minutes; the run goes on there",
                hint=f"later: accept watch {job.attempt}",
            )
        if failures == 2:
            say(f"no connection to {job.first}; the run goes on there, and so does the asking")
        time.sleep(min(5.0, failures))


def _follow(folder: str, seen: int) -> str:
    """The sh text that prints the console from byte `seen` on, until the run has ended."""
    return (
        f"cd {quote(folder)} 2>/dev/null || {{ printf '\\036ended gone\\n'; exit; }}; n={seen}; "
        "while :; do s=; [ ! -e status ] || { s=$(cat status); s=${s:-5}; }; "
        "size=$(wc -c < console.log 2>/dev/null || echo 0); "
        '[ "$size" -le "$n" ] || { '
        "tail -c +$((n + 1)) console.log | head -c $((size - n)) || exit; n=$size; }; "
        '[ -z "$s" ] || { printf \'\\036ended %s\\n\' "$s"; exit; }; '
        "[ -e run ] || { printf '\\036ended gone\\n'; exit; }; sleep 0.5; done"
    )


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
        raise BadEvidence(
            f"{job.first} has no evidence of {job.attempt}: {_last(reply.err)}",
            hint="is its time to be kept over?",
        )
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
        timeout=_SECONDS,
    )
    others = (h for h in job.hosts if h != job.first)
    gone = on_all(others, lambda h: _remove(job.ssh, h, job.folder))
    for host in (h for h, done in gone.items() if not done):
        say(f"  {host} could not be asked; its guard removes everything when its time is over")


def delete(job: Job, *, dry_run: bool, say: Say) -> tuple[str, ...]:
    """Remove the run's folder from every host that still has it, and what lives of it there."""
    d = quote(job.folder)
    asked = on_all(job.hosts, lambda h: call(job.ssh, h, f"[ -d {d} ]", timeout=_SECONDS))
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
    return call(options, host, command, timeout=_SECONDS).exit == 0


def doctor(run: Resolved, *, say: Say) -> tuple[Need, ...]:
    """What each host has for the run's checks."""
    options = ssh_options(run.site)
    command = tool_lines(run.site.tools) + TOOLS
    replies = on_all(run.hosts, lambda h: call(options, h, command, timeout=_SECONDS))
    needs: list[Need] = []
    for host, reply in replies.items():
        if reply.exit != 0 and reply.exit != 1:
            advice = f"try: ssh {host}"
            needs.append(
                Need(host=host, what="ssh", good=False, found=_last(reply.err), advice=advice)
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


def _last(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1][:300] if lines else "no answer"
