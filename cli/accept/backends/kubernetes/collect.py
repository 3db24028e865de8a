"""Fetch the evidence of a run from its pods, its bucket or its log, and release the pods."""

from __future__ import annotations

import json
import shutil
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

from accept.backends.job import Job
from accept.backends.kubernetes.client import Api, ApiError
from accept.backends.kubernetes.exec import execute
from accept.backends.kubernetes.objects import (
    EVENT,
    MAIN_CONTAINER,
    NODE,
    POD,
    Pod,
    PodPhase,
    value_at,
)
from accept.backends.kubernetes.status import (
    State,
    find_controllers,
    place_of,
    query_state,
    run_selector,
)
from accept.backends.kubernetes.watch import FOLDER, FOLLOWED, written_exit_code
from accept.backends.protocol import Say, still_running
from accept.core import evidence
from accept.core.error_codes import Code
from accept.core.errors import AcceptError, BadEvidence, NoEvidence
from accept.core.runner.launch import RECORDS_COPY, Launch
from accept.core.serde import dump
from accept.core.text import command_line, decimal, plain
from accept.core.verdict import EXITS
from accept.evidence import archive as evidence_archive
from accept.evidence import bucket, rundir

Answer = TypeVar("Answer")

_ARCHIVE = f"{FOLDER}/evidence.tar"
#: Seconds that index 0 may take from its verdict to its archive, or to write to a bucket.
_PACKING_SECONDS, _UPLOADING_SECONDS = 120.0, 1800.0


def take_archive(
    api: Api, job: Job, state: State, target: Path, *, say: Say, seconds: float | None = None
) -> str:
    """Fetch the archive that index 0 holds, check it, and unpack it to `target`.

    With `seconds`, fetch it within this time, and do not wait until index 0 has made it.
    Returns the source of the evidence for people; empty if index 0 holds no archive.
    """
    location = place_of(job).results
    patience = _UPLOADING_SECONDS if location else _PACKING_SECONDS
    until = time.monotonic() + (patience if seconds is None else seconds)
    reported = False
    while True:
        first = state.first
        if first is None or first.phase != PodPhase.RUNNING:
            return ""
        try:
            done = execute(
                api,
                first.name,
                ["sh", "-c", f"wc -c < {_ARCHIVE} && sha256sum < {_ARCHIVE}"],
                timeout=60.0 if seconds is None else max(0.0, until - time.monotonic()),
            )
        except ApiError as error:
            # The pod keeps the archive for a while, so a temporary error does not end the attempts.
            if not error.passing or time.monotonic() >= until:
                raise
            time.sleep(2.0)
            state = query_state(api, job.attempt)
            continue
        words = done.text.split()
        size = decimal(words[0]) if done.exit == 0 and len(words) >= 2 else None
        if size is not None:
            break
        if seconds is not None:
            return ""
        if time.monotonic() > until or state.ended or written_exit_code(api, state) is None:
            return ""
        if location and not reported:
            say(f"waiting until index 0 has written to {location}")
            reported = True
        time.sleep(1.0 if location else 0.2)
        state = query_state(api, job.attempt)
    announced = evidence_archive.Announced(size=size, digest=words[1])
    say(f"fetching {size / 1e6:.1f} MB of evidence from {first.name}")
    with tempfile.TemporaryDirectory(prefix="unpack-", dir=target.parent) as scratch:
        archive = Path(scratch) / "evidence.tar"
        limit = None if seconds is None else until
        copy_archive(api, first.name, archive, announced, say=say, until=limit)
        evidence_archive.unpack_evidence(archive, target, source="the archive from index 0")
    return "index 0"


def copy_archive(
    api: Api,
    pod: str,
    archive: Path,
    announced: evidence_archive.Announced,
    *,
    say: Say,
    until: float | None = None,
) -> None:
    """Write the archive of a pod to a file as it arrives, across broken connections.

    `until` is the time of `time.monotonic` at which to give up. Raises BadEvidence at that time,
    and if the bytes differ from those that index 0 announced.
    """

    def read_from(at: int, sink: Callable[[bytes], None]) -> None:
        command = ["tail", "-c", f"+{at + 1}", _ARCHIVE]
        timeout = 600.0 if until is None else until - time.monotonic()
        if timeout <= 0:
            raise BadEvidence(
                f"the archive from {pod}: only {at} of {announced.size} bytes arrived in time",
                code=Code.ARCHIVE_INCOMPLETE,
            )
        try:
            execute(api, pod, command, timeout=timeout, sink=sink)
        except ApiError as error:
            if not error.passing:
                raise
            raise ConnectionError(error.message) from None

    evidence_archive.download(
        read_from, archive, announced, source=f"the archive from {pod}", say=say
    )


def release_coordinator(api: Api, pod: str) -> None:
    """Tell index 0 that its evidence was collected. If that fails, it ends after its hold time."""
    try:
        execute(api, pod, ["touch", f"{FOLDER}/collected"], timeout=20.0)
    except ApiError:
        return


CLUSTER_FOLDER = "cluster"
#: Pods whose records are read, in the order of their nodes' names: the coordinator copies them
#: to the first that is alive.
_COPIES = 3
#: Attempts to read the copy of a pod, and seconds for each.
_COPY_TRIES, _COPY_SECONDS = 3, 20.0


def collect(job: Job, *, folder: Path, say: Say) -> Path:
    """Fetch the evidence, and let index 0 end. Raises Interrupted while the run goes on.

    Evidence that was rebuilt from a log is marked with `rundir.FROM_LOG`, and a later call replaces
    it if it finds more.
    """
    api = Api(place_of(job))
    place = folder / rundir.EVIDENCE
    state = query_state(api, job.attempt)
    first = state.first
    alive = first is not None and first.phase == PodPhase.RUNNING and not state.ended
    if alive and written_exit_code(api, state) is None:
        raise still_running(job)
    if not state.exists and not state.pods and not place_of(job).results:
        if place.is_dir():
            return place
        raise NoEvidence(
            f"{job.attempt} is no longer in namespace {api.place.namespace}",
            code=Code.RUN_GONE,
            hint="it was deleted, or its retention time is over",
        )

    def fetch(target: Path) -> str:
        found = take_archive(api, job, state, target, say=say)
        return found or _fetch_from_results(job, target, say=say)

    source = _save(api, job, state, folder, fetch, say=say)
    if source == "index 0" and first is not None:
        release_coordinator(api, first.name)
    return place


def save_before_removal(job: Job, *, folder: Path, say: Say, seconds: float) -> None:
    """Save what only the pods of a run hold: the archive of index 0, or else its log.

    Commands in the pod get `seconds`. The results location is not read, because it outlives the
    pods: `collect` reads it later. Complete evidence is not replaced.
    Raises AcceptError or OSError if nothing can be saved.
    """
    if (folder / rundir.EVIDENCE).is_dir() and not (folder / rundir.FROM_LOG).is_file():
        return
    api = Api(place_of(job))
    state = query_state(api, job.attempt)

    def fetch(target: Path) -> str:
        try:
            return take_archive(api, job, state, target, say=say, seconds=seconds)
        except AcceptError as error:
            shutil.rmtree(target, ignore_errors=True)
            say(f"not collected: the archive of index 0: {error.message}")
            return ""

    _save(api, job, state, folder, fetch, say=say)


def _save(
    api: Api, job: Job, state: State, folder: Path, fetch: Callable[[Path], str], *, say: Say
) -> str:
    """Save the objects of a run, and its evidence from `fetch` or else from its log.

    `fetch` writes evidence to a folder and returns its source, as this function does; empty if
    there is none.
    """
    place = folder / rundir.EVIDENCE
    # Without pods, do not replace what was saved while there were some.
    known = place.is_dir() and not state.pods
    missing = [] if known else describe(api, job.attempt, folder / CLUSTER_FOLDER)
    with tempfile.TemporaryDirectory(prefix=".collect-", dir=folder) as scratch:
        target = Path(scratch) / "evidence"
        source = fetch(target)
        if not source and not place.is_dir():
            missing += _from_log(job, state, folder, target)
            evidence.write(
                folder / rundir.FROM_LOG, f"fetch everything: accept collect {job.attempt}\n"
            )
        if missing:
            _report_missing(folder / CLUSTER_FOLDER, missing, say)
        if target.is_dir():
            if place.is_dir():
                place.rename(Path(scratch) / "less")
            target.rename(place)
    if source:
        (folder / rundir.FROM_LOG).unlink(missing_ok=True)
    return source


def _report_missing(folder: Path, missing: Iterable[str], say: Say) -> None:
    lines = list(missing)
    evidence.write(folder / "missing.txt", "".join(f"{line}\n" for line in lines))
    for line in lines[:8]:
        say(f"not collected: {line}")
    if len(lines) > 8:
        say(f"not collected: {len(lines) - 8} more, see {folder / 'missing.txt'}")


def _fetch_from_results(job: Job, target: Path, *, say: Say) -> str:
    """Fetch the evidence that the pods wrote to the results location.

    Returns its URL; empty if no location is configured, or if it cannot be read.
    """
    location = place_of(job).results
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


def _evidence_elsewhere(job: Job, code: int | None, why: str, log: Path) -> NoEvidence:
    """Return the error for a run with a verdict whose records cannot be fetched; name where."""
    location = place_of(job).results
    url = f"{location.rstrip('/')}/runs/{job.attempt}"
    hints = [f"its log has the verdict: {log}"] if log.is_file() else []
    if not location:
        where = "index 0 kept its records for a while, and they are gone"
        hints = hints or ["run it again, and collect sooner or name a results.location"]
    elif location.startswith(("/", "file://")):
        where = f"its evidence is at {url} in the pods, which cannot be read here"
        hints.insert(0, "accept judge FOLDER where that volume is mounted")
    else:
        where = f"its evidence is at {url}, which cannot be read here"
        hints.insert(0, f"{command_line('accept', 'judge', url)}, as a user who may read it")
    hint = "; ".join(hints)
    return NoEvidence(
        f"{job.attempt} ended with exit status {code}; {where} ({why})",
        code=Code.KUBE_EVIDENCE_ELSEWHERE,
        hint=hint,
    )


def _from_log(job: Job, state: State, folder: Path, target: Path) -> list[str]:
    """Rebuild evidence from the log of index 0; return what is missing.

    Raises NoEvidence if the run reached a verdict but the log is not enough to judge it.
    """
    target.mkdir()
    console = target / evidence.CONSOLE
    pod = state.first.name if state.first else ""
    saved = folder / CLUSTER_FOLDER / "logs" / f"{pod}.{MAIN_CONTAINER}.log"
    missing = ["the log of index 0"]
    # A pod that was deleted may be gone, and its log with it or in parts.
    for file in (saved, folder / FOLLOWED):
        if not file.is_file():
            continue
        shutil.copyfile(file, console)
        try:
            with console.open("rb") as log_lines:
                evidence.unpack(log_lines, "the log of index 0")
        except BadEvidence as error:
            missing = [error.message]
        else:
            where = place_of(job).results or "index 0 alone, which no longer holds them"
            return [f"the raw logs: they were written to {where}"]
    # The coordinator reached a verdict on a complete run.
    if state.first is not None and state.first.code in EXITS.values():
        raise _evidence_elsewhere(job, state.first.code, missing[0], saved)
    kept, reasons = _kept_for_coordinator(job, state, folder)
    if kept:
        with console.open("ab") as log:
            log.write(kept)
        return ["the raw logs: they were lost with the coordinator's pod"]
    # The plan without records is judged as a run that was interrupted.
    shutil.copyfile(folder / rundir.RENDERED / evidence.PLAN, target / evidence.PLAN)
    evidence.write(target / evidence.RECORDS, "")
    launch = Launch(attempt=job.attempt, hosts=(), start_seconds=0.0)
    evidence.write(target / evidence.HOSTS, json.dumps(dump(launch)) + "\n")
    return [*missing, *reasons, "records and raw logs: no copy exists anymore"]


def _kept_for_coordinator(job: Job, state: State, folder: Path) -> tuple[bytes, list[str]]:
    """Return the packed records that another pod keeps in case the coordinator is lost.

    If there is none, return the reason for each pod. If several pods have records, the copy with
    the most records is used.
    """
    api = Api(place_of(job))
    kept, most = b"", -1
    reasons: list[str] = []
    others = sorted((p for p in state.pods if not p.coordinates and p.ran), key=lambda p: p.node)
    for pod in others[:_COPIES]:
        try:
            text = _copied_records(api, pod, folder)
            _, records, _ = evidence.unpack(text.splitlines(), f"the copy on {pod.name}")
        except (ApiError, BadEvidence, OSError) as error:
            reasons.append(f"the copy of the records on {pod.name}: {plain(error, 200)}")
            continue
        if len(records) > most:
            kept, most = text, len(records)
    return kept, [] if kept else reasons


def _copied_records(api: Api, pod: Pod, folder: Path) -> bytes:
    """Return the copy of the records that a pod keeps in a file, or that it printed at its end.

    Raises ApiError or OSError. Connections to a busy node may end early, so it tries again.
    """
    if pod.phase != PodPhase.RUNNING:
        name = f"{pod.name}.{MAIN_CONTAINER}.log"
        return (folder / CLUSTER_FOLDER / "logs" / name).read_bytes()
    command = ["cat", f"{FOLDER}/{RECORDS_COPY}"]
    for left in reversed(range(_COPY_TRIES)):
        try:
            done = execute(api, pod.name, command, timeout=_COPY_SECONDS)
        except ApiError:
            if not left:
                raise
            continue
        if done.exit is not None:
            return done.out
    raise ApiError("the connection ended before the whole copy had arrived", status=0)


#: Annotation that contains a copy of the whole object, with its values.
_APPLIED = "kubectl.kubernetes.io/last-applied-configuration"
_HIDDEN = "(not kept)"


def scrubbed(value: object) -> object:
    """Return the object without environment values, managed fields and applied copies of itself."""
    if isinstance(value, list):
        return [scrubbed(item) for item in value]
    if not isinstance(value, Mapping):
        return value
    return {
        key: [_scrubbed_variable(v) for v in item]
        if key == "env" and isinstance(item, list)
        else scrubbed(item)
        for key, item in value.items()
        if key not in ("managedFields", _APPLIED)
    }


def _scrubbed_variable(variable: object) -> object:
    """Return a variable with its name and source, but without its value."""
    if not isinstance(variable, Mapping):
        return _HIDDEN
    return {k: (_HIDDEN if k == "value" else scrubbed(v)) for k, v in variable.items()}


#: Maximum number of bytes kept of each container's log, and of logs fetched at once.
_LOG_LIMIT = 16 << 20
_AT_ONCE = 16


def describe(api: Api, name: str, folder: Path) -> list[str]:
    """Save the cluster's objects and events of a run; return what could not be read."""
    (folder / "logs").mkdir(parents=True, exist_ok=True)
    missing: list[str] = []
    owners = _ask(missing, "the JobSet and the Job", lambda: find_controllers(api, name))
    for kind, owner in zip(("jobset", "job"), owners or (), strict=False):
        if owner is not None:
            _write_json(folder / f"{kind}.json", scrubbed(owner.document))
    pods = _ask(missing, "the pods", lambda: api.find_all(POD, labels=run_selector(name))) or ()
    _write_json(folder / "pods.json", [scrubbed(pod.document) for pod in pods])
    events = _ask(missing, "events", lambda: api.find_all(EVENT)) or ()
    names = {name, *(o.name for o in (*(owners or ()), *pods) if o)}
    _write_json(folder / "events.json", [scrubbed(e.document) for e in events if e.about in names])
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        used = sorted({pod.node for pod in pods if pod.node})
        nodes = list(pool.map(lambda node: _node(api, node, missing), used))
        list(
            pool.map(
                lambda names: _save_log(api, names[0], names[1], folder / "logs", missing),
                _started_containers(pods),
            )
        )
    _write_json(folder / "nodes.json", [node for node in nodes if node])
    return sorted(missing)


def _ask(missing: list[str], what: str, ask: Callable[[], Answer]) -> Answer | None:
    """Return the answer of `ask`; if the API refuses, return None and add a line to `missing`."""
    try:
        return ask()
    except ApiError as error:
        missing.append(f"{what}: {error.message}")
        return None


def _started_containers(pods: Iterable[Pod]) -> Iterator[tuple[str, str]]:
    """Yield pod and container for every container that has a log."""
    for pod in pods:
        for container in (*pod.init_containers, *pod.containers):
            if container.running or container.ended:
                yield pod.name, container.name


def _save_log(api: Api, pod: str, container: str, folder: Path, missing: list[str]) -> None:
    def save() -> None:
        with (folder / f"{pod}.{container}.log").open("wb") as file:
            for line in api.log(pod, container, limit=_LOG_LIMIT):
                file.write(line)

    _ask(missing, f"the log of {pod}, container {container}", save)


def _node(api: Api, name: str, missing: list[str]) -> dict[str, object] | None:
    """Return the parts of a node that show its type and its condition."""
    node = _ask(missing, f"node {name}", lambda: api.get(NODE, name))
    if node is None:
        return None
    status = ("conditions", "capacity", "allocatable", "nodeInfo")
    return {
        "name": name,
        "labels": node.labels,
        "providerID": node.provider_id,
        "taints": value_at(node.document, "spec", "taints") or [],
        "unschedulable": node.cordoned,
        **{key: value_at(node.document, "status", key) for key in status},
    }


def _write_json(file: Path, value: object) -> None:
    evidence.write(file, json.dumps(value, indent=1, sort_keys=True) + "\n")
