"""Send and fetch evidence in buckets and shared folders, on the workstation.

The code is the same as on nodes: `launchers/programs/upload.py` sends, `object_store.py` reads.
"""

from __future__ import annotations

import importlib.util
import json
import os
import re
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path, PurePosixPath
from types import ModuleType
from typing import Protocol, TypeVar

from accept.config import resources
from accept.config.extras import Extra, install_hint
from accept.core import bounded, evidence
from accept.core.error_codes import Code
from accept.core.errors import BadEvidence, NotStarted
from accept.core.serde import read
from accept.core.text import command_line, plain
from accept.evidence.archive import MOST_BYTES, MOST_FILES

T = TypeVar("T")
#: Timeout of a fetch.
_SECONDS = 300.0
#: Timeout of the first answer, for which the user waits.
_FIRST = 30.0
#: Maximum length of a file's name in bytes.
_MAX_NAME = 255
#: Maximum size of a verdict, in bytes, that a list of runs reads.
_VERDICT_BYTES = 16 << 20
#: Number of files that are fetched at the same time.
_AT_ONCE = 16


def is_url(text: str) -> bool:
    """Return True if a text is the URL of a bucket or a folder."""
    return re.match(r"(?:gs|s3|az|file)://", text) is not None


def results_of(url: str) -> str:
    """Return the location of results that a URL is in, without `/runs` and the name of a run."""
    return re.sub(r"(?<=[^/])/runs(?:/[^/]*)?$", "", url.rstrip("/"))


def list_hint(url: str) -> str:
    """Return the hint for a URL that is not that of a run."""
    listing = command_line("accept", "list", "runs", results_of(url))
    return f"give the URL of a run, …/runs/ATTEMPT; list the runs: {listing}"


def send(path: Path, url: str, *, attempt: str, partial: bool = False) -> str:
    """Send evidence, or one file of it, to URL/runs/ATTEMPT. Return the error message, or "".

    With `partial`, the evidence is not yet complete afterwards.
    """
    program = resources.launchers() / "programs" / "upload.py"
    words = [sys.executable, str(program), str(path), url, "--attempt", attempt]
    words += ["--seconds", str(_SECONDS), *(["--partial"] if partial else [])]
    # The program ends 15 s after its own limit, also if a library hangs.
    done = bounded.run(words, session=True, timeout=_SECONDS + 30)
    if done.exit == 0:
        return ""
    reason = done.errors.strip().splitlines()[-1:] or [f"exit {done.exit}"]
    return plain(reason[0], 300)


def fetch(url: str, target: Path, *, partial: bool = True) -> bool:
    """Fetch the evidence at `url` into the new folder `target`; return True if it is complete.

    Complete evidence has a manifest, and its files must match it. Incomplete evidence is fetched
    only if `partial` is True, and without its checksums, so that it is judged as an interrupted
    run. Raises BadEvidence if there is no evidence, or if it cannot be read or was modified.
    """
    store = _object_store()
    until = time.monotonic() + _SECONDS
    with _readable(url):
        place = store.place_of(url.rstrip("/"), _SECONDS)
        objects: dict[str, tuple[int, str]] = _first(place.look, url)
        manifest: dict[str, dict[str, object]] | None = store.again(
            lambda: store.manifest_in(place), url, until
        )
    _refuse_unsafe(url, objects)
    names = set(objects) - {store.MANIFEST}
    if evidence.PLAN not in names:
        raise BadEvidence(
            f"{plain(url, 200)} holds no evidence",
            code=Code.BUCKET_NO_EVIDENCE,
            hint=list_hint(url),
        )
    if manifest is None and not partial:
        raise BadEvidence(
            f"{plain(url, 200)} was never finished: it has no {store.MANIFEST}",
            code=Code.BUCKET_UNFINISHED,
            hint=f"the part that was sent: {command_line('accept', 'collect', url)}",
        )
    wanted = names - {evidence.CHECKSUMS} if manifest is None else names
    target.mkdir(parents=True)

    def fetch_file(name: str) -> str:
        path = target / name
        path.parent.mkdir(parents=True, exist_ok=True)

        def copy() -> tuple[int, str]:
            left = objects[name][0]
            with path.open("wb") as file:
                for block in place.read(name):
                    left -= len(block)
                    if left < 0:
                        raise store.Refused("it grew while it was read; fetch it again")
                    file.write(block)
            size, sha, _ = store.digests(store.blocks(path))
            return size, sha

        try:
            size, sha = store.again(copy, url, until)
        except (store.Refused, OSError) as error:
            return f"{name}: {plain(str(error), 200)}"
        listed = (manifest or {}).get(name)
        if listed is None or name in store.LATER or listed == {"size": size, "sha256": sha}:
            return ""
        return f"{name} was modified (differs from {store.MANIFEST})"

    with ThreadPoolExecutor(_AT_ONCE) as pool:
        errors = [error for error in pool.map(fetch_file, sorted(wanted)) if error]
    errors += [f"{name} is missing" for name in sorted(set(manifest or {}) - names)]
    if errors:
        raise BadEvidence(
            f"{plain(url, 200)}: {'; '.join(plain(text, 200) for text in errors[:3])}",
            code=Code.EVIDENCE_CHANGED,
            hint="fetch it again, or ask who changed it",
        )
    return manifest is not None


@dataclass(frozen=True, kw_only=True)
class StoredRun:
    """A run in a bucket or a shared folder."""

    name: str
    #: None if it is missing or unreadable.
    verdict: evidence.StoredVerdict | None
    #: True if the upload was finished.
    finished: bool


def runs_at(url: str) -> tuple[StoredRun, ...]:
    """Return the runs below URL/runs, in the order of their names.

    Reads only the verdict of each. Raises NotStarted without obstore, and BadEvidence if the bucket
    cannot be read.
    """
    store = _object_store()
    until = time.monotonic() + _SECONDS
    with _readable(url):
        place = store.place_of(url.rstrip("/"), _SECONDS)
        names: list[str] = _first(place.runs, url)
        if len(names) > MOST_FILES:
            raise store.Refused(f"{len(names)} runs are too many to list")

        def run(name: str) -> StoredRun:
            inner = store.place_of(f"{url.rstrip('/')}/runs/{name}", _SECONDS)
            listed = store.again(lambda: store.manifest_in(inner), url, until)
            verdict = store.again(lambda: _verdict_in(inner), url, until)
            return StoredRun(name=name, verdict=verdict, finished=listed is not None)

        with ThreadPoolExecutor(_AT_ONCE) as pool:
            return tuple(pool.map(run, names))


@contextmanager
def _readable(url: str) -> Iterator[None]:
    """Raise NotStarted without obstore, and BadEvidence if the bucket or folder is unreadable."""
    store = _object_store()
    try:
        yield
    except ImportError:
        raise NotStarted(
            f"{plain(url, 200)}: reading buckets needs obstore, which is not installed",
            code=Code.BUCKET_LIBRARY,
            hint=install_hint(Extra.STORAGE),
        ) from None
    except (store.Refused, OSError) as error:
        login = _LOGINS.get(url.partition(":")[0]) if isinstance(error, store.NoAccess) else None
        raise BadEvidence(
            plain(str(error), 400), code=Code.BUCKET_UNREADABLE, hint=login or "check the URL"
        ) from None


#: How to get credentials that obstore finds: it reads no profile of `aws`, and `az` only if asked.
_LOGINS = {
    "gs": "log in with access to the bucket: gcloud auth application-default login",
    "s3": "log in with access to the bucket: aws sso login; profiles are not read, so export its "
    'keys: eval "$(aws configure export-credentials --format env)"',
    "az": "log in with access to the container: az login, then "
    "export AZURE_USE_AZURE_CLI=true AZURE_STORAGE_ACCOUNT_NAME=ACCOUNT",
}


def _first(work: Callable[[], T], url: str) -> T:
    """Return the first answer of a bucket or folder, for which the user waits."""
    until = time.monotonic() + _FIRST
    answer: T = _object_store().again(work, url, until, awaits_credentials=False)
    return answer


class _Place(Protocol):
    def read(self, name: str) -> Iterator[bytes]:
        """Yield the content of an object in blocks. Raises FileNotFoundError."""


def _verdict_in(place: _Place) -> evidence.StoredVerdict | None:
    """Return the verdict of a run; None if it is missing, too large or unreadable."""
    content = b""
    try:
        for block in place.read(evidence.VERDICT):
            content += block
            if len(content) > _VERDICT_BYTES:
                return None
        return read(evidence.StoredVerdict, json.loads(content))
    except (FileNotFoundError, ValueError, RecursionError):
        return None


def reach(url: str) -> tuple[bool | None, str]:
    """Return whether a bucket exists and can be listed from here, and the error.

    The first value is None if that cannot be determined.
    """
    store = _object_store()
    # List a name that does not exist: listing everything in a large bucket would take too long.
    try:
        place = store.place_of(f"{url.rstrip('/')}/runs/accept-doctor", _FIRST)
        _first(place.look, url)
    except ImportError:
        return None, f"obstore is not installed: {install_hint(Extra.STORAGE)}"
    except FileNotFoundError as error:
        return False, plain(str(error), 400)
    except (store.Refused, OSError) as error:
        return None, plain(str(error), 400)
    return True, ""


def _refuse_unsafe(url: str, objects: Mapping[str, tuple[int, str]]) -> None:
    """Raise BadEvidence for names that no folder can have, and for too much data.

    `objects` contains the size and the MD5 or ETag of each name.
    """
    folders = {parent for name in objects for parent in PurePosixPath(name).parents}
    folders.add(PurePosixPath())
    for name in objects:
        path = PurePosixPath(name)
        is_outside = name.startswith("/") or ".." in path.parts
        is_too_long = any(len(os.fsencode(part)) > _MAX_NAME for part in path.parts)
        if is_outside or is_too_long or "\0" in name or path in folders:
            raise BadEvidence(
                f"{plain(url, 200)} holds an object named {plain(name, 100)!r}",
                code=Code.BUCKET_UNSAFE,
                hint="accept never writes such names; find out who did",
            )
    size = sum(size for size, _ in objects.values())
    if len(objects) > MOST_FILES or size > MOST_BYTES:
        raise BadEvidence(
            f"{plain(url, 200)}: {len(objects)} files, {size / 1e9:.0f} GB are too much for a run",
            code=Code.BUCKET_TOO_LARGE,
            hint=list_hint(url),
        )


@cache
def _object_store() -> ModuleType:
    """Load the module by which nodes read and write, which is not part of this package."""
    path = resources.launchers() / "programs" / "object_store.py"
    spec = importlib.util.spec_from_file_location("accept_object_store", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
