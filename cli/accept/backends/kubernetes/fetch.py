"""Fetching what a run leaves: its evidence, from wherever it is, and what the cluster says of it.

What the cluster says goes into `cluster/` of the run's folder, beside the evidence and not into it:
the evidence is as the nodes closed it, under their check sums.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import tempfile
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import chain
from pathlib import Path
from typing import Any

from accept import archives, rundir, storage
from accept.backends import Job, Say
from accept.backends.kubernetes.api import Api, ApiError, decoded
from accept.backends.kubernetes.follow import FOLDER, status
from accept.backends.kubernetes.look import jobs, look, of_run, path, place_of
from accept.backends.kubernetes.scrub import scrubbed
from accept.backends.kubernetes.state import MAIN, State
from accept.core import evidence
from accept.core.coordinator import HOSTS, Launch
from accept.core.errors import AcceptError, BadEvidence, BrokenOff
from accept.core.plaintext import plain
from accept.core.typed import dump

_ARCHIVE = f"{FOLDER}/evidence.tar"
#: How long index 0 may take from its verdict to its archive, or to write to a bucket, in seconds.
_PACKING, _UPLOADING = 120.0, 1800.0
_TRIES = 20
#: What is kept of each container's log, in bytes, and how many are fetched at once.
_LOG_LIMIT = 16 << 20
_AT_ONCE = 16
CLUSTER = "cluster"


def fetch(job: Job, *, folder: Path, say: Say, whatever: bool = False) -> Path:
    """Fetch the evidence and release index 0; `whatever`: what there is of a run that goes on."""
    api = Api(place_of(job))
    state = look(api, job.attempt)
    first = state.first
    alive = first is not None and first.phase == "running" and not state.ended
    if alive and not whatever and status(api, state) is None:
        raise BrokenOff(
            f"{job.attempt} is still running",
            hint=f"accept watch {job.attempt}, or accept cancel {job.attempt}",
        )
    if not state.there and not state.pods and not job.place.get("results"):
        raise BadEvidence(
            f"{job.attempt} is not in namespace {api.place.namespace} any more",
            hint="it was deleted, or its time to be kept is over",
        )
    missing = _describe(api, job.attempt, folder / CLUSTER)
    with tempfile.TemporaryDirectory(prefix=".collect-", dir=folder) as scratch:
        target = Path(scratch) / "evidence"
        source = _archive(api, job, state, target, say=say) or _bucket(job, target, say=say)
        if not source:
            missing += _from_log(job, state, folder, target)
        if missing:
            _say_missing(folder / CLUSTER, missing, say)
        target.rename(folder / rundir.EVIDENCE)
    if source == "index 0" and first is not None:
        _release(api, first.name)
    return folder / rundir.EVIDENCE


def _say_missing(folder: Path, missing: Iterable[str], say: Say) -> None:
    said = list(missing)
    evidence.write(folder / "missing.txt", "".join(f"{line}\n" for line in said))
    for line in said[:8]:
        say(f"not collected: {line}")
    if len(said) > 8:
        say(f"not collected: {len(said) - 8} more, see {folder / 'missing.txt'}")


def _archive(api: Api, job: Job, state: State, target: Path, *, say: Say) -> str:
    """The archive that index 0 holds, checked, unpacked to `target`; empty: it holds none."""
    location = job.place.get("results", "")
    until = time.monotonic() + (_UPLOADING if location else _PACKING)
    told = False
    while True:
        first = state.first
        if first is None or first.phase != "running":
            return ""
        try:
            done = api.execute(
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
        if done.exit == 0 and len(words) >= 2 and words[0].isdigit():
            break
        if time.monotonic() > until or state.ended or status(api, state) is None:
            return ""
        if location and not told:
            say(f"waiting until index 0 has written to {location}")
            told = True
        time.sleep(1.0)
        state = look(api, job.attempt)
    size, digest = int(words[0]), words[1]
    say(f"fetching {size / 1e6:.1f} MB of evidence from {first.name}")
    with tempfile.TemporaryDirectory(prefix="unpack-", dir=target.parent) as scratch:
        archive = Path(scratch) / "evidence.tar"
        _copy(api, first.name, archive, size, digest)
        _unpack(archive, Path(scratch), target)
    return "index 0"


def _copy(api: Api, pod: str, archive: Path, size: int, digest: str) -> None:
    """The archive's bytes, going on where a connection broke.

    As base64: the client's streams are text, which would change bytes that are none.
    """
    done, whole = 0, hashlib.sha256()
    with archive.open("wb") as file:
        for _ in range(_TRIES):
            command = ["sh", "-c", f"tail -c +{done + 1} {_ARCHIVE} | base64"]
            try:
                part = api.execute(pod, MAIN, command, timeout=600.0)
            except ApiError as error:
                if not error.passing:
                    raise
                time.sleep(3.0)
                continue
            try:
                content = decoded(part.out)
            except ValueError as error:
                raise BadEvidence(
                    f"the archive from {pod} did not come as base64: {plain(error)}",
                    hint="does the image have `base64`? accept judge takes its saved log, too",
                ) from None
            file.write(content)
            whole.update(content)
            done += len(content)
            if done >= size:
                break
    if done != size or whole.hexdigest() != digest:
        raise BadEvidence(
            f"{done} of {size} bytes of the evidence came whole", hint="collect again"
        )


def _unpack(archive: Path, scratch: Path, target: Path) -> None:
    """Unpack and check an archive. Raises BadEvidence where anything is not as it was closed."""
    archives.unpack(archive, scratch / "all", source="the archive")
    inner = scratch / "all" / "evidence"
    if not (inner / evidence.PLAN).is_file():
        raise BadEvidence("the archive from index 0 holds no plan", hint="collect again")
    if (inner / evidence.CHECKSUMS).is_file() and (wrong := evidence.check_checksums(inner)):
        raise BadEvidence(f"the archive: {'; '.join(wrong[:3])}", hint="collect again")
    inner.rename(target)


def _release(api: Api, pod: str) -> None:
    """Tell index 0 that it need not hold any longer; where it cannot be told, its time ends it."""
    try:
        api.execute(pod, MAIN, ["touch", f"{FOLDER}/collected"], timeout=20.0)
    except ApiError:
        return


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
        finished = storage.fetch(url, target)
    except AcceptError as error:
        shutil.rmtree(target, ignore_errors=True)
        say(f"{url}: {error.message}")
        return ""
    say(f"evidence from {url}" + ("" if finished else ", which was never finished"))
    return url


def _from_log(job: Job, state: State, folder: Path, target: Path) -> list[str]:
    """What the log of index 0 still tells; returns what is missing then."""
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
    # What was planned is known, what was measured is not: judged as a run that broke off.
    shutil.copyfile(folder / rundir.RENDERED / evidence.PLAN, target / evidence.PLAN)
    evidence.write(target / evidence.RECORDS, "")
    launch = Launch(attempt=job.attempt, hosts=(), start_seconds=0.0)
    evidence.write(target / HOSTS, json.dumps(dump(launch)) + "\n")
    return [*missing, "records and raw logs: nothing holds them any more"]


def _describe(api: Api, name: str, folder: Path) -> list[str]:
    """Save what the cluster says of a run; returns what could not be had."""
    (folder / "logs").mkdir(parents=True, exist_ok=True)
    missing: list[str] = []
    owners = _had(missing, "the JobSet and the Job", lambda: jobs(api, name)) or (None, None)
    for kind, one in zip(("jobset", "job"), owners, strict=True):
        if one is not None:
            _save(folder / f"{kind}.json", scrubbed(one))
    pods: list[dict[str, Any]] = (
        _had(
            missing,
            "the pods",
            lambda: api.items(path(api, "api/v1", "pods"), labelSelector=of_run(name)),
        )
        or []
    )
    _save(folder / "pods.json", [scrubbed(p) for p in pods])
    events = _had(missing, "events", lambda: api.items(path(api, "api/v1", "events"))) or []
    of_this = {name, *(str(o["metadata"]["name"]) for o in (*owners, *pods) if o)}
    mine = [e for e in events if (e.get("involvedObject") or {}).get("name") in of_this]
    _save(folder / "events.json", [scrubbed(e) for e in mine])
    used = sorted({p["spec"]["nodeName"] for p in pods if p.get("spec", {}).get("nodeName")})
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        nodes = list(pool.map(lambda n: _node(api, n, missing), used))
        list(pool.map(lambda w: _log(api, w[0], w[1], folder / "logs", missing), _containers(pods)))
    _save(folder / "nodes.json", [n for n in nodes if n])
    return sorted(missing)


def _had(missing: list[str], what: str, ask: Any) -> Any:
    """The answer of `ask`; None, and a line of what is missing, where the API refused."""
    try:
        return ask()
    except ApiError as error:
        missing.append(f"{what}: {error.message}")
        return None


def _containers(pods: Iterable[dict[str, Any]]) -> Iterator[tuple[str, str]]:
    """Pod and container of every container that has a log."""
    for pod in pods:
        told = pod.get("status", {})
        each = (told.get("initContainerStatuses") or [], told.get("containerStatuses") or [])
        for one in chain(*each):
            now = one.get("state") or {}
            if "running" in now or "terminated" in now:
                yield pod["metadata"]["name"], one["name"]


def _log(api: Api, pod: str, container: str, folder: Path, missing: list[str]) -> None:
    def save() -> None:
        with (folder / f"{pod}.{container}.log").open("wb") as file:
            for line in api.log(pod, container, limitBytes=_LOG_LIMIT):
                file.write(line)

    _had(missing, f"the log of {pod}, container {container}", save)


def _node(api: Api, name: str, missing: list[str]) -> Any:
    """What says how a node is, and what it is."""
    node = _had(missing, f"node {name}", lambda: api.get(f"/api/v1/nodes/{name}"))
    if node is None:
        return None
    told, spec = node.get("status", {}), node.get("spec", {})
    return {
        "name": name,
        "labels": node["metadata"].get("labels") or {},
        "taints": spec.get("taints") or [],
        "unschedulable": bool(spec.get("unschedulable")),
        **{key: told.get(key) for key in ("conditions", "capacity", "allocatable", "nodeInfo")},
    }


def _save(file: Path, value: object) -> None:
    evidence.write(file, json.dumps(value, indent=1, sort_keys=True) + "\n")
