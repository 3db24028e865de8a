"""Fetch the evidence of a run from its pods, its bucket or its log, and release the pods."""

from __future__ import annotations

import json
import shutil
import tempfile
import time
from collections.abc import Callable, Iterable
from pathlib import Path

from accept.backends.job import Job
from accept.backends.kubernetes.client import Api, ApiError, execute
from accept.backends.kubernetes.dump import describe
from accept.backends.kubernetes.status import MAIN, State, look, place_of
from accept.backends.kubernetes.watch import FOLDER, status
from accept.backends.protocol import Say
from accept.core import evidence
from accept.core.errors import AcceptError, BadEvidence, BrokenOff, Exit, NoEvidence
from accept.core.runner.coordinator import HOSTS, Launch
from accept.core.serde import dump
from accept.core.text import decimal
from accept.evidence import archive as evidence_archive
from accept.evidence import bucket, rundir

_ARCHIVE = f"{FOLDER}/evidence.tar"
#: How long index 0 may take from its verdict to its archive, or to write to a bucket, in seconds.
_PACKING, _UPLOADING = 120.0, 1800.0


def take(api: Api, job: Job, state: State, target: Path, *, say: Say) -> str:
    """The archive that index 0 holds, checked, unpacked to `target`; empty: it holds none."""
    location = job.place.get("results", "")
    until = time.monotonic() + (_UPLOADING if location else _PACKING)
    told = False
    while True:
        first = state.first
        if first is None or first.phase != "running":
            return ""
        try:
            done = execute(
                api,
                first.name,
                MAIN,
                ["sh", "-c", f"wc -c < {_ARCHIVE} && sha256sum < {_ARCHIVE}"],
            )
        except ApiError as error:
            # It holds the archive for a while yet: what passes is no reason to do without it.
            if not error.passing or time.monotonic() > until:
                raise
            time.sleep(2.0)
            state = look(api, job.attempt)
            continue
        words = done.out.split()
        size = decimal(words[0]) if done.exit == 0 and len(words) >= 2 else None
        if size is not None:
            break
        if time.monotonic() > until or state.ended or status(api, state) is None:
            return ""
        if location and not told:
            say(f"waiting until index 0 has written to {location}")
            told = True
        time.sleep(1.0)
        state = look(api, job.attempt)
    digest = words[1]
    say(f"fetching {size / 1e6:.1f} MB of evidence from {first.name}")
    with tempfile.TemporaryDirectory(prefix="unpack-", dir=target.parent) as scratch:
        archive = Path(scratch) / "evidence.tar"
        copy_archive(api, first.name, archive, size, digest, say=say)
        unpack_archive(archive, Path(scratch), target)
    return "index 0"


def copy_archive(api: Api, pod: str, archive: Path, size: int, digest: str, *, say: Say) -> None:
    """Write the archive of a pod to a file as it comes, across connections that break.

    Raises BadEvidence if the bytes are not those that index 0 announced.
    """

    def read_from(at: int, sink: Callable[[bytes], None]) -> None:
        command = ["tail", "-c", f"+{at + 1}", _ARCHIVE]
        try:
            execute(api, pod, MAIN, command, timeout=600.0, sink=sink)
        except ApiError as error:
            if not error.passing:
                raise
            raise ConnectionError(error.message) from None

    announced = evidence_archive.Announced(size=size, digest=digest)
    evidence_archive.download(
        read_from, archive, announced, source=f"the archive from {pod}", say=say
    )


def unpack_archive(archive: Path, scratch: Path, target: Path) -> None:
    """Unpack and check an archive. Raises BadEvidence where anything is not as it was closed."""
    evidence_archive.unpack(archive, scratch / "all", source="the archive")
    inner = scratch / "all" / "evidence"
    if not (inner / evidence.PLAN).is_file():
        raise BadEvidence("the archive from index 0 holds no plan", hint="collect again")
    if (inner / evidence.CHECKSUMS).is_file() and (wrong := evidence.check_checksums(inner)):
        raise BadEvidence(f"the archive: {'; '.join(wrong[:3])}", hint="collect again")
    inner.rename(target)


def release(api: Api, pod: str) -> None:
    """Tell index 0 that it need not hold any longer; where it cannot be told, its time ends it."""
    try:
        execute(api, pod, MAIN, ["touch", f"{FOLDER}/collected"], timeout=20.0)
    except ApiError:
        return


CLUSTER = "cluster"
#: Exit statuses of a coordinator that formed a verdict on a whole run.
_VERDICTS = (Exit.PASS, Exit.REJECTED, Exit.INCOMPLETE, Exit.INCONCLUSIVE)


def collect(job: Job, *, folder: Path, say: Say, whatever: bool = False) -> Path:
    """Fetch the evidence and release index 0; `whatever`: what there is of a run that goes on.

    What came out of a log alone is marked with `rundir.FROM_LOG`, and gives way to more.
    """
    api = Api(place_of(job))
    place = folder / rundir.EVIDENCE
    state = look(api, job.attempt)
    first = state.first
    alive = first is not None and first.phase == "running" and not state.ended
    if alive and not whatever and status(api, state) is None:
        raise BrokenOff(
            f"{job.attempt} is still running",
            hint=f"accept watch {job.attempt}, or accept cancel {job.attempt}",
        )
    if not state.there and not state.pods and not job.place.get("results"):
        if place.is_dir():
            return place
        raise NoEvidence(
            f"{job.attempt} is not in namespace {api.place.namespace} any more",
            hint="it was deleted, or its time to be kept is over",
        )
    # What was said while there were pods is not written over with nothing.
    known = place.is_dir() and not state.pods
    missing = [] if known else describe(api, job.attempt, folder / CLUSTER)
    with tempfile.TemporaryDirectory(prefix=".collect-", dir=folder) as scratch:
        target = Path(scratch) / "evidence"
        source = take(api, job, state, target, say=say) or _bucket(job, target, say=say)
        if not source and not place.is_dir():
            missing += _from_log(job, state, folder, target)
            evidence.write(folder / rundir.FROM_LOG, "accept collect asks for all of it again\n")
        if missing:
            _say_missing(folder / CLUSTER, missing, say)
        if target.is_dir():
            if place.is_dir():
                place.rename(Path(scratch) / "less")
            target.rename(place)
    if source:
        (folder / rundir.FROM_LOG).unlink(missing_ok=True)
    if source == "index 0" and first is not None:
        release(api, first.name)
    return place


def _say_missing(folder: Path, missing: Iterable[str], say: Say) -> None:
    said = list(missing)
    evidence.write(folder / "missing.txt", "".join(f"{line}\n" for line in said))
    for line in said[:8]:
        say(f"not collected: {line}")
    if len(said) > 8:
        say(f"not collected: {len(said) - 8} more, see {folder / 'missing.txt'}")


def _bucket(job: Job, target: Path, *, say: Say) -> str:
    """The evidence that the pods wrote to the results location; empty: there is none named."""
    location = job.place.get("results", "")
    if not location:
        return ""
    url = f"{location.rstrip('/')}/runs/{job.attempt}"
    if location.startswith("/") and not Path(url).is_dir():
        say(f"{url} is on the pods' volume, which is not mounted here")
        return ""
    try:
        finished = bucket.fetch(url, target)
    except AcceptError as error:
        shutil.rmtree(target, ignore_errors=True)
        say(f"{url}: {error.message}")
        return ""
    say(f"evidence from {url}" + ("" if finished else ", which was never finished"))
    return url


def _elsewhere(job: Job, code: int | None, why: str, log: Path) -> NoEvidence:
    """A run with a verdict whose records are not to be had here: where they are, if anywhere."""
    location = job.place.get("results", "")
    url = f"{location.rstrip('/')}/runs/{job.attempt}"
    hints = [f"its log has the verdict: {log}"] if log.is_file() else []
    if not location:
        where = "its records were held on index 0 for a while, and are gone"
        hints = hints or ["run it again, and collect sooner or name a results.location"]
    elif location.startswith(("/", "file://")):
        where = f"its evidence is at {url} in the pods, which cannot be read here"
        hints.insert(0, "accept judge FOLDER where that volume is mounted")
    else:
        where = f"its evidence is at {url}, which cannot be read here"
        hints.insert(0, f"accept judge {url} by whoever may read it")
    hint = "; ".join(hints)
    return NoEvidence(f"{job.attempt} ended with exit status {code}; {where} ({why})", hint=hint)


def _from_log(job: Job, state: State, folder: Path, target: Path) -> list[str]:
    """What the log of index 0 still tells; returns what is missing then.

    Raises NoEvidence where that is too little to judge a run that came to its end.
    """
    target.mkdir()
    console = target / evidence.CONSOLE
    pod = state.first.name if state.first else ""
    saved = folder / CLUSTER / "logs" / f"{pod}.{MAIN}.log"
    if pod and saved.is_file():
        shutil.copyfile(saved, console)
        try:
            with console.open("rb") as lines_:
                evidence.unpack(lines_, "the log of index 0")
        except BadEvidence as error:
            missing = [error.message]
        else:
            where = job.place.get("results") or "index 0 alone, which no longer holds them"
            return [f"the raw logs: they were written to {where}"]
    else:
        missing = ["the log of index 0"]
    if state.first is not None and state.first.code in _VERDICTS:
        raise _elsewhere(job, state.first.code, missing[0], saved)
    # What was planned is known, what was measured is not: judged as a run that broke off.
    shutil.copyfile(folder / rundir.RENDERED / evidence.PLAN, target / evidence.PLAN)
    evidence.write(target / evidence.RECORDS, "")
    launch = Launch(attempt=job.attempt, hosts=(), start_seconds=0.0)
    evidence.write(target / HOSTS, json.dumps(dump(launch)) + "\n")
    return [*missing, "records and raw logs: nothing holds them any more"]
