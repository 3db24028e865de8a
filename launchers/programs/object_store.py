"""Read and write evidence in a folder or a bucket, and find out what is finished there.

Uses the standard library, and obstore to open a bucket. It imports none of the other programs,
because the workstation loads this file to read what nodes have sent.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import random
import re
import stat
import time
import uuid
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, BinaryIO, TypeVar
from urllib.parse import unquote, urlsplit

T = TypeVar("T")
#: Size and SHA-256 of every file, by its path.
Files = dict[str, dict[str, Any]]

MANIFEST = "MANIFEST.json"
PODS = "pods/"
#: Files that may change later: a new judgement rewrites them, and the console log ends last.
LATER = ("verdict.json", "report.md", "report.html", "junit.xml", "console.log")
#: The report that the workstation adds to finished evidence. No manifest lists it.
REPORT = "report.html"
#: Types of objects that a browser shows instead of saving them; others are plain text or binary.
TYPES = {".html": "text/html; charset=utf-8", ".json": "application/json", ".xml": "text/xml"}
BINARY = (".tar", ".gz", ".bz2", ".zip")
#: Depth of folders in evidence.
DEEPEST = 16
#: Maximum size of the manifest in bytes; that of 100,000 files has about 20 MB.
MANIFEST_BYTES = 64 << 20
#: Errors that a retry cannot fix: of the local disk, of a name, or in our own code.
PERMANENT = (RecursionError, MemoryError, IsADirectoryError)
PERMANENT_NUMBERS = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.ENAMETOOLONG, errno.ELOOP)
#: Number of tries if access is denied, because new permissions take time to apply.
DENIED = 3
#: How obstore reports that it got no token from the vendor, and S3 that the one it got is too old.
NO_TOKEN = re.compile("token request|/api/token|get-access-token|ExpiredToken")


class Refused(Exception):
    """Evidence was not sent or read; the message has the reason and the remedy in one line."""


class Unreachable(Refused):
    """No try to reach the bucket or folder succeeded in time."""


class NoAccess(Unreachable):
    """The credentials are missing or invalid, or do not permit it."""


class Folder:
    """A folder, possibly a mount. A file appears in it only when it is complete."""

    def __init__(self, root: Path) -> None:
        self.root = root
        # Outside of the evidence, so that an incomplete file is not mistaken for evidence.
        self.scratch = root.parent / f".{root.name}.sending"

    def look(self) -> dict[str, tuple[int, str]]:
        """Return the size and the MD5 (or "") of every file."""
        return {name: (path.stat().st_size, "") for name, path in files_of(self.root).items()}

    def read(self, name: str) -> Iterator[bytes]:
        """Yield the content in blocks. Raises FileNotFoundError."""
        return blocks(self.root / name)

    def write(self, name: str, content: bytes | Path, *, new: bool) -> None:
        """Write a file. Raises FileExistsError if `new` is set and the file exists."""
        target, scratch = self.root / name, self.scratch / uuid.uuid4().hex
        target.parent.mkdir(parents=True, exist_ok=True)
        with self._opened(scratch) as file:
            for block in blocks(content):
                file.write(block)
            file.flush()
            os.fsync(file.fileno())
        try:
            if new:
                try:
                    os.link(scratch, target)
                except FileExistsError:
                    raise
                except OSError:  # A mount without links.
                    with target.open("xb"):
                        pass
            scratch.replace(target)
        finally:
            scratch.unlink(missing_ok=True)
        opened = os.open(target.parent, os.O_RDONLY)
        try:
            os.fsync(opened)
        finally:
            os.close(opened)

    def _opened(self, scratch: Path) -> BinaryIO:
        """Create a temporary file; other senders may remove its empty folder at any time."""
        for _ in range(100):
            with contextlib.suppress(FileNotFoundError, FileExistsError):
                self.scratch.mkdir(exist_ok=True)
                return scratch.open("xb")
        raise FileNotFoundError(f"{self.scratch} was removed 100 times while it was created")

    def runs(self) -> list[str]:
        """Return the names of the runs in it."""
        folder = self.root / "runs"
        found = folder.iterdir() if folder.is_dir() else ()
        return sorted(p.name for p in found if p.is_dir() and not p.name.startswith("."))

    def close(self) -> None:
        """Remove the folder of temporary files."""
        with contextlib.suppress(OSError):  # Another sender uses it.
            self.scratch.rmdir()


class Bucket:
    """A bucket, opened with obstore. Raises ImportError if obstore is not installed."""

    def __init__(self, url: str, seconds: float) -> None:
        import obstore
        from obstore.store import from_url

        self.api = obstore
        options: Any = {"timeout": f"{max(1, int(min(300, seconds)))}s", "connect_timeout": "10s"}
        # Options given here replace the one from the environment.
        vendor = {"gs": "GOOGLE", "s3": "AWS", "az": "AZURE"}[url.partition(":")[0]]
        if os.environ.get(f"{vendor}_ALLOW_HTTP", "").lower() in ("1", "true"):
            options["allow_http"] = True
        # `again` retries instead of obstore, because it knows the overall time limit.
        try:
            self.store: Any = from_url(url, client_options=options, retry_config={"max_retries": 0})
        except Exception as error:
            if "No CA certificates" in str(error):
                why = "no certificate authorities here; install ca-certificates"
                raise Refused(f"{tidy(url)}: {why}") from None
            why = f"{tidy(error)}; check its address and credentials"
            raise NoAccess(f"{tidy(url)}: {why}") from None

    def look(self) -> dict[str, tuple[int, str]]:
        """Return the size and the ETag of every object."""
        listed: Any = self.api.list(self.store)
        return {
            o["path"]: (o["size"], (o["e_tag"] or "").strip('"')) for page in listed for o in page
        }

    def read(self, name: str) -> Iterator[bytes]:
        """Yield the content in blocks. Raises FileNotFoundError."""
        return map(bytes, self.api.get(self.store, name).stream(min_chunk_size=1 << 20))

    def write(self, name: str, content: bytes | Path, *, new: bool) -> None:
        """Write an object. Raises FileExistsError if `new` is set and the object exists."""
        parts = isinstance(content, Path)
        mode: Any = "create" if new and not parts else "overwrite"
        types: Any = {"Content-Type": content_type(name)}
        try:
            self.api.put(
                self.store, name, content, attributes=types, mode=mode, use_multipart=parts
            )
        except self.api.exceptions.AlreadyExistsError:
            raise FileExistsError(name) from None

    def runs(self) -> list[str]:
        """Return the names of the runs in it, without listing their objects."""
        listed: Any = self.api.list_with_delimiter(self.store, "runs/")
        return sorted(prefix.rstrip("/").rpartition("/")[2] for prefix in listed["common_prefixes"])

    def close(self) -> None:
        """Do nothing: no connection is kept open."""


def content_type(name: str) -> str:
    """Return the type of an object, so that a browser opens logs, records and reports."""
    suffix = Path(name).suffix
    text = "application/octet-stream" if suffix in BINARY else "text/plain; charset=utf-8"
    return TYPES.get(suffix, text)


def blocks(content: bytes | Path) -> Iterator[bytes]:
    """Yield the content of a file in blocks."""
    if isinstance(content, bytes):
        yield content
        return
    # A pipe in a folder of others would wait for a writer.
    descriptor = os.open(content, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(descriptor, "rb") as file:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise Refused(f"{tidy(content)} is not a regular file")
        while block := file.read(1 << 20):
            yield block


def digests(parts: Iterable[bytes]) -> tuple[int, str, str]:
    """Return size, SHA-256 and MD5."""
    size, sha, md5 = 0, hashlib.sha256(), hashlib.md5(usedforsecurity=False)
    for part in parts:
        size += len(part)
        sha.update(part)
        md5.update(part)
    return size, sha.hexdigest(), md5.hexdigest()


def files_of(source: Path) -> dict[str, Path]:
    """Return the files to send, by name, without those that are being written.

    Raises Refused if folders are deeper than those of evidence ever are.
    """
    if source.is_file():
        return {source.name: source}
    found: dict[str, Path] = {}
    folders = [(source, 0)]
    while folders:
        folder, depth = folders.pop()
        if depth > DEEPEST:
            raise Refused(f"{tidy(source)} has more than {DEEPEST} levels of folders")
        try:
            entries = list(os.scandir(folder))
        except FileNotFoundError:
            continue
        for entry in entries:
            path = Path(entry.path)
            if entry.is_dir(follow_symlinks=False):
                folders.append((path, depth + 1))
            elif entry.is_file(follow_symlinks=False) and path.suffix != ".new":
                found[path.relative_to(source).as_posix()] = path
    return dict(sorted(found.items()))


def place_of(url: str, seconds: float) -> Folder | Bucket:
    """Open a URL. Raises ImportError if it needs obstore and obstore is not installed."""
    if re.match("(gs|s3|az)://.", url):
        return Bucket(url, seconds)
    path = unquote(urlsplit(url).path) if url.startswith("file:///") else url
    if not path.startswith("/"):
        raise Refused(f"{tidy(url)} is not a gs://, s3://, az://, file:/// or absolute path")
    return Folder(Path(path))


def tidy(text: object) -> str:
    """Return one short line, without the secrets that a URL may contain."""
    line = re.sub(r"//[^/@\s]*@|\?\S*", lambda m: "//" if m[0][0] == "/" else "", str(text).strip())
    return re.sub(r"[^\x20-\x7e\xa0-\uffff]+", " ", line.split("\n")[0])[:300]


def again(work: Callable[[], T], url: str, until: float, *, awaits_credentials: bool = True) -> T:
    """Retry `work` until it succeeds or the time is over.

    In a new pod, credentials can come seconds later; without `awaits_credentials`, a lack of them
    is retried only as often as denied access. Raises Unreachable. FileExistsError,
    FileNotFoundError and permanent errors are not retried.
    """
    wait, tries = 0.2, 0
    while True:
        try:
            return work()
        except (FileExistsError, FileNotFoundError, Refused):
            raise
        except Exception as error:
            tries += 1
            kind = type(error).__name__
            has_no_token = NO_TOKEN.search(str(error)) is not None
            if not has_no_token and re.search("404 Not Found|NoSuchBucket", str(error)):
                raise FileNotFoundError(f"{tidy(url)} is missing") from None
            if isinstance(error, PERMANENT) or getattr(error, "errno", 0) in PERMANENT_NUMBERS:
                raise Refused(f"{tidy(url)}: {tidy(error) or kind}") from None
            denied = kind in ("PermissionDeniedError", "UnauthenticatedError", "PermissionError")
            is_final = denied or (has_no_token and not awaits_credentials)
            if time.monotonic() + wait > until or (is_final and tries == DENIED):
                if denied:
                    why = "access is denied; check permissions and credentials"
                    raise NoAccess(f"{tidy(url)}: {why}") from None
                if has_no_token:
                    raise NoAccess(f"{tidy(url)}: no valid credentials: {tidy(error)}") from None
                raise Unreachable(
                    f"{tidy(url)}: {tidy(error) or kind}; check the network"
                ) from None
        time.sleep(wait * random.uniform(0.5, 1))
        wait = min(2 * wait, 10)


def manifest_in(place: Any) -> Files | None:
    """Return the files of the manifest; None if it is missing or incomplete."""
    try:
        content, size = [], 0
        for block in place.read(MANIFEST):
            content.append(block)
            size += len(block)
            if size > MANIFEST_BYTES:
                raise Refused(f"{MANIFEST} has more than {MANIFEST_BYTES >> 20} MiB")
        files = json.loads(b"".join(content))["files"]
        return {str(name): {"size": e["size"], "sha256": e["sha256"]} for name, e in files.items()}
    except (FileNotFoundError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None


def conflict(ours: Files, theirs: Files, *, whole: bool) -> str:
    """Return the first file that differs from the finished evidence, or ""."""
    names: set[str] = {*ours, *theirs} if whole else {*ours}
    for name in sorted(names):
        if name in LATER or (name.startswith(PODS) and not (name in ours and name in theirs)):
            continue
        if ours.get(name) != theirs.get(name):
            return name
    return ""


def check(ours: Files, done: Files | None, url: str, *, whole: bool) -> None:
    """Raise Refused if different evidence is finished at the URL."""
    if done is not None and (name := conflict(ours, done, whole=whole)):
        raise Refused(
            f"{tidy(url)} contains finished evidence with a different {tidy(name)}; nothing was "
            "overwritten; send to another location or under another attempt"
        )


def manifest(files: Files, left: list[str]) -> bytes:
    """Return the text of the manifest, which depends only on the evidence."""
    text = json.dumps({"schema": 1, "files": files, "leftOver": left}, indent=1, sort_keys=True)
    return f"{text}\n".encode()


def is_open(name: str, done: Files | None) -> bool:
    """Return True if a file may be written, given the finished files."""
    later = name.startswith(PODS) or name == REPORT
    return done is None or (later and name not in done)
