"""The archive that index 0 holds once a run is over: fetched through the API, checked, unpacked."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from accept.backends import Job, Say
from accept.backends.kubernetes.client import Api, ApiError
from accept.backends.kubernetes.execute import execute
from accept.backends.kubernetes.look import look
from accept.backends.kubernetes.pod import MAIN
from accept.backends.kubernetes.status import State
from accept.backends.kubernetes.watch import FOLDER, status
from accept.core import evidence
from accept.core.errors import BadEvidence
from accept.core.text import decimal
from accept.evidence import archive as evidence_archive

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
        copy(api, first.name, archive, size, digest, say=say)
        unpack(archive, Path(scratch), target)
    return "index 0"


def copy(api: Api, pod: str, archive: Path, size: int, digest: str, *, say: Say) -> None:
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


def unpack(archive: Path, scratch: Path, target: Path) -> None:
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
