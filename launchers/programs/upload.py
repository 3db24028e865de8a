"""Sends evidence to a bucket or a folder; whole, resumed, and never over what is finished.

    python upload.py FOLDER URL --attempt NAME                          all of it, and finished
    python upload.py FOLDER URL --attempt NAME --partial                what there is so far
    python upload.py 3.log  URL --attempt NAME --partial --under pods   one pod's own log

URL is gs://, s3://, az://, file:// or an absolute path, which must be there. Everything goes below
URL/runs/NAME (without --attempt below URL itself). Buckets are written by obstore where it can be
imported, else by `gcloud storage` or `aws s3` where they are on PATH; folders by a copy with fsync.

MANIFEST.json is written last: {"schema": 1, "files": {PATH: {"size", "sha256"}}, "leftOver":
[PATH]}; left over is what a part sent earlier and the whole no longer has. Evidence in a bucket is
finished when it is there, and from then on nothing of it is written again: the same once more is
success and sends nothing, something else is refused. Two things are no part of that promise: what a
judgement made again rewrites, and pods/, where every pod leaves its log when it ends.

What is there already is known by its size and its MD5, where the bucket's ETag is that; else by
reading it back. Objects that appear while this runs are somebody else's: equal ones will do,
others are refused.

Exit status 0: sent, or there already; 1: not, with one line on stderr that says why and what to do.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import unquote, urlsplit

T = TypeVar("T")
#: Size and SHA-256 of every file, by its path.
Files = dict[str, dict[str, Any]]

MANIFEST = "MANIFEST.json"
PODS = "pods/"
#: A judgement made again rewrites these, and the console ends after the rest.
LATER = ("verdict.json", "report.md", "report.html", "junit.xml", "console.log")
#: Above this many bytes a file is sent in parts; an ETag is an MD5 only of what was sent in one.
IN_ONE = 32 << 20
#: Tries where the answer is no: rights may be on their way.
DENIED = 3
AT_ONCE = 32


class Refused(Exception):
    """Why it was not sent, and what to do: one line."""


class Folder:
    """A folder, or a mount of something. Its files appear whole."""

    def __init__(self, root: Path) -> None:
        self.root = root
        # Beside the evidence: what is cut off here must not be taken for a part of it.
        self.scratch = root.parent / f".{root.name}.sending"

    def look(self) -> dict[str, tuple[int, str]]:
        """Size and MD5 (where it is known) of everything there."""
        return {name: (path.stat().st_size, "") for name, path in files_of(self.root).items()}

    def read(self, name: str) -> Iterator[bytes]:
        """Content in blocks; FileNotFoundError where it is not there."""
        return blocks(self.root / name)

    def write(self, name: str, content: bytes | Path, *, new: bool) -> None:
        """Write a file; FileExistsError where it was to be new and is there."""
        target, scratch = self.root / name, self.scratch / uuid.uuid4().hex
        for folder in (target.parent, self.scratch):
            folder.mkdir(parents=True, exist_ok=True)
        with scratch.open("xb") as file:
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

    def close(self) -> None:
        """Remove what was only on the way."""
        with contextlib.suppress(OSError):  # Another one writes there.
            self.scratch.rmdir()


class Bucket:
    """A bucket through obstore; ImportError where there is none."""

    def __init__(self, url: str, seconds: float) -> None:
        import obstore
        from obstore.store import from_url

        self.api = obstore
        options: Any = {"timeout": f"{max(1, int(min(300, seconds)))}s", "connect_timeout": "10s"}
        # Options given here hide the one that the environment gives.
        vendor = {"gs": "GOOGLE", "s3": "AWS", "az": "AZURE"}[url.partition(":")[0]]
        if os.environ.get(f"{vendor}_ALLOW_HTTP", "").lower() in ("1", "true"):
            options["allow_http"] = True
        # Trying again is done here, where the time for all of it is known.
        try:
            self.store: Any = from_url(url, client_options=options, retry_config={"max_retries": 0})
        except Exception as error:
            why = f"{tidy(error)}; check its address and credentials"
            if "No CA certificates" in str(error):
                why = "no certificate authorities here; install ca-certificates"
            raise Refused(f"{tidy(url)}: {why}") from None

    def look(self) -> dict[str, tuple[int, str]]:
        """Size and ETag of everything there."""
        listed: Any = self.api.list(self.store)
        return {
            o["path"]: (o["size"], (o["e_tag"] or "").strip('"')) for page in listed for o in page
        }

    def read(self, name: str) -> Iterator[bytes]:
        """Content in blocks; FileNotFoundError where it is not there."""
        return map(bytes, self.api.get(self.store, name).stream(min_chunk_size=1 << 20))

    def write(self, name: str, content: bytes | Path, *, new: bool) -> None:
        """Write an object; FileExistsError where it was to be new and is there."""
        parts = isinstance(content, Path)
        mode: Any = "create" if new and not parts else "overwrite"
        try:
            self.api.put(self.store, name, content, mode=mode, use_multipart=parts)
        except self.api.exceptions.AlreadyExistsError:
            raise FileExistsError(name) from None

    def close(self) -> None:
        """Nothing is left open."""


def blocks(content: bytes | Path) -> Iterator[bytes]:
    """A file's content piece by piece."""
    if isinstance(content, bytes):
        yield content
        return
    with content.open("rb") as file:
        while block := file.read(1 << 20):
            yield block


def digests(parts: Iterable[bytes]) -> tuple[int, str, str]:
    """Size, SHA-256 and MD5."""
    size, sha, md5 = 0, hashlib.sha256(), hashlib.md5(usedforsecurity=False)
    for part in parts:
        size += len(part)
        sha.update(part)
        md5.update(part)
    return size, sha.hexdigest(), md5.hexdigest()


def files_of(source: Path) -> dict[str, Path]:
    """The files to send, by name; none that is being written."""
    if source.is_file():
        return {source.name: source}
    found = sorted(p for p in source.rglob("*") if p.is_file() and not p.is_symlink())
    return {p.relative_to(source).as_posix(): p for p in found if p.suffix != ".new"}


def place_of(url: str, seconds: float) -> Folder | Bucket:
    """Where a URL leads. Raises ImportError where that takes obstore, and there is none."""
    if re.match("(gs|s3|az)://.", url):
        return Bucket(url, seconds)
    path = unquote(urlsplit(url).path) if url.startswith("file:///") else url
    if not path.startswith("/"):
        raise Refused(f"{tidy(url)} is no gs://, s3://, az://, file:/// or absolute path: name one")
    return Folder(Path(path))


def tidy(text: object) -> str:
    """One short line without what a URL may hold that is secret."""
    line = re.sub(r"//[^/@\s]*@|\?\S*", lambda m: "//" if m[0][0] == "/" else "", str(text).strip())
    return re.sub(r"[^\x20-\x7e\xa0-\uffff]+", " ", line.split("\n")[0])[:300]


def again(work: Callable[[], T], url: str, until: float) -> T:
    """Try until it succeeds or its time is over. Raises Refused; what is (not) there passes."""
    wait, tries = 0.2, 0
    while True:
        try:
            return work()
        except (FileExistsError, FileNotFoundError, Refused):
            raise
        except Exception as error:
            tries += 1
            kind = type(error).__name__
            if re.search("404 Not Found|NoSuchBucket", str(error)):
                raise FileNotFoundError(f"{tidy(url)} is not there") from None
            denied = kind in ("PermissionDeniedError", "UnauthenticatedError", "PermissionError")
            if time.monotonic() + wait > until or (denied and tries == DENIED):
                why = "it may not be read or written" if denied else tidy(error) or kind
                what = "rights and credentials" if denied else "the way there"
                raise Refused(
                    f"{tidy(url)}: {why}; check {what}, then send again: it goes on from here"
                ) from None
        time.sleep(wait * random.uniform(0.5, 1))
        wait = min(2 * wait, 10)


def manifest_in(place: Any) -> Files | None:
    """What is finished there; None: nothing is, also where the manifest itself is cut off."""
    try:
        files = json.loads(b"".join(place.read(MANIFEST)))["files"]
        return {str(name): {"size": e["size"], "sha256": e["sha256"]} for name, e in files.items()}
    except (FileNotFoundError, ValueError, KeyError, TypeError, AttributeError):
        return None


def conflict(ours: Files, theirs: Files, *, whole: bool) -> str:
    """The first file in which `ours` is not what was finished; empty: there is none."""
    names: set[str] = {*ours, *theirs} if whole else {*ours}
    for name in sorted(names):
        if name in LATER or (name.startswith(PODS) and not (name in ours and name in theirs)):
            continue
        if ours.get(name) != theirs.get(name):
            return name
    return ""


def check(ours: Files, done: Files | None, url: str, *, whole: bool) -> None:
    """Raise Refused where something else is finished there."""
    if done is not None and (name := conflict(ours, done, whole=whole)):
        raise Refused(
            f"{tidy(url)} is finished, and its {tidy(name)} is not this one: nothing was written "
            "over; send to another place or under another attempt"
        )


def manifest(files: Files, left: list[str]) -> bytes:
    """The manifest's text: the same for the same evidence, whoever sends it."""
    text = json.dumps({"schema": 1, "files": files, "leftOver": left}, indent=1, sort_keys=True)
    return f"{text}\n".encode()


def is_open(name: str, done: Files | None) -> bool:
    """Whether a file may be written, with that finished there."""
    return done is None or (name.startswith(PODS) and name not in done)


def upload(files: dict[str, Path], place: Any, url: str, *, whole: bool, until: float) -> str:
    """Send files by their names; returns what was done. Raises Refused, and what is not there."""
    there = again(place.look, url, until)
    done = again(lambda: manifest_in(place), url, until) if MANIFEST in there else None
    sent: list[int] = []

    def equal(name: str, size: int, sha: str) -> bool:
        return again(lambda: digests(place.read(name))[:2] == (size, sha), url, until)

    def one(name: str) -> dict[str, Any] | None:
        path = files[name]
        while True:
            try:
                before = path.stat()
                content = path if before.st_size > IN_ONE else path.read_bytes()
                size, sha, md5 = digests(blocks(content))
            except FileNotFoundError:
                if not whole:
                    return None  # What is still written moves now and then.
                raise Refused(f"{path} went away while it was sent: send again") from None
            known = there.get(name)
            same = known is not None and known[0] == size
            if is_open(name, done) and not (
                same and known and (known[1] == md5 or equal(name, size, sha))
            ):
                try:
                    again(partial(place.write, name, content, new=known is None), url, until)
                    sent.append(size)
                except FileExistsError:
                    if not equal(name, size, sha):
                        raise Refused(
                            f"{tidy(url)}: somebody else sends another {tidy(name)} there now; "
                            "send again when that is over"
                        ) from None
            if isinstance(content, bytes) or path.stat().st_mtime_ns == before.st_mtime_ns:
                return {"size": size, "sha256": sha}

    with ThreadPoolExecutor(AT_ONCE) as pool:
        waiting = {name: pool.submit(one, name) for name in files}
        try:
            results = {name: future.result() for name, future in waiting.items()}
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    ours = {name: entry for name, entry in results.items() if entry}
    if whole and done is None:
        left = sorted(n for n in {*there} - {*ours, MANIFEST} if not n.startswith(PODS))
        text = manifest(ours, left)
        try:
            again(lambda: place.write(MANIFEST, text, new=MANIFEST not in there), url, until)
        except FileExistsError:
            done = again(lambda: manifest_in(place), url, until) or {}
    check(ours, done, url, whole=whole)
    return f"sent {len(sent)} of {len(files)} files, {sum(sent)} bytes, to {tidy(url)}"


def with_tool(files: dict[str, Path], url: str, *, whole: bool, until: float) -> str:
    """The same through a command line tool, for images that have no obstore."""
    scheme = url.partition(":")[0]
    tool = {"gs": "gcloud", "s3": "aws"}.get(scheme, "")
    if not tool or not shutil.which(tool):
        raise Refused(
            f"{scheme}:// takes the Python package obstore, and {sys.executable} has none: "
            "pip install obstore" + f", or install {tool}" * bool(tool)
        )
    cloud = tool == "gcloud"

    def call(*arguments: str) -> bytes:
        ran = subprocess.run(
            [tool, "storage" if cloud else "s3", *arguments],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            check=False,
            timeout=max(1.0, until - time.monotonic()),
        )
        if ran.returncode:
            said = ran.stderr.decode(errors="replace").strip()
            if re.search("404|[Nn]ot [Ff]ound|matched no|does not exist|NoSuchKey", said):
                raise FileNotFoundError(said)
            raise OSError(f"{tool}: {(said or 'failed').splitlines()[-1]}")
        return ran.stdout

    class There:
        @staticmethod
        def read(name: str) -> list[bytes]:
            return [call("cat", f"{url}/{name}") if cloud else call("cp", f"{url}/{name}", "-")]

    done = again(lambda: manifest_in(There), url, until)
    with tempfile.TemporaryDirectory(prefix="accept-upload-") as scratch:
        # A copy: files grow, and the manifest is to say what was sent.
        ours: Files = {}
        for name, path in files.items():
            copy = Path(scratch) / "files" / name
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, copy)
            size, sha, _ = digests(blocks(copy))
            ours[name] = {"size": size, "sha256": sha}
            if not is_open(name, done):
                copy.unlink()
        check(ours, done, url, whole=whole)
        sending = [f"{scratch}/files", url]
        if cloud:
            sending = ["rsync", "--recursive", "--checksums-only", *sending]
        else:
            sending = ["cp", "--recursive", "--only-show-errors", *sending]
        again(lambda: call(*sending), url, until)
        if whole and done is None:
            last = Path(scratch) / MANIFEST
            last.write_bytes(manifest(ours, []))
            again(lambda: call("cp", str(last), f"{url}/{MANIFEST}"), url, until)
    return f"sent {len(files)} files with {tool} to {tidy(url)}"


def send(arguments: argparse.Namespace, until: float) -> str:
    """Do what the command line says."""
    base, source = arguments.url.rstrip("/") or "/", Path(arguments.folder)
    attempt, under = arguments.attempt, arguments.under.strip("/")
    if {".", ".."} & {attempt, *under.split("/")} or "/" in attempt:
        raise Refused(f"{tidy(attempt)} {tidy(under)}: name an attempt, and a folder in it")
    found = files_of(source)
    files = {f"{under}/{n}" if under else n: p for n, p in found.items() if n != MANIFEST}
    if not files:
        raise Refused(f"{source} holds no files: name the folder of the evidence")
    url = f"{base}/runs/{attempt}" if attempt else base
    whole = not (arguments.partial or under)
    try:
        place, above = place_of(url, arguments.seconds), place_of(base, arguments.seconds)
    except ImportError:
        return with_tool(files, url, whole=whole, until=until)
    if isinstance(above, Folder) and not above.root.is_dir():
        raise Refused(f"{tidy(base)} is not there: make it, or mount it")
    try:
        return upload(files, place, url, whole=whole, until=until)
    finally:
        place.close()


def main() -> int:
    """Read the command line and send; returns the exit status."""
    parser = argparse.ArgumentParser(
        description="Sends a folder of evidence to a bucket or a folder. What is there already is "
        "not sent again, MANIFEST.json is written last, and what is finished stays as it is.",
    )
    parser.add_argument("folder", metavar="FOLDER", help="what to send; a file does, too")
    parser.add_argument(
        "url", metavar="URL", help="gs://, s3://, az://, file:/// or an absolute path that is there"
    )
    parser.add_argument("--attempt", default="", help="send to URL/runs/ATTEMPT")
    parser.add_argument(
        "--partial", action="store_true", help="what there is so far: without MANIFEST.json"
    )
    parser.add_argument(
        "--under", default="", metavar="SUB", help="to a folder in it; as --partial does"
    )
    parser.add_argument(
        "--seconds", type=float, default=300.0, help="limit of time for all of it (%(default)s)"
    )
    arguments = parser.parse_args()
    # Whatever hangs in a library: the time is what was said.
    last = threading.Timer(arguments.seconds + 15, end, [1, f"no end in {arguments.seconds:.0f} s"])
    last.daemon = True
    last.start()
    try:
        said = send(arguments, time.monotonic() + arguments.seconds)
    except Refused as error:
        end(1, str(error))
    except FileNotFoundError as error:
        end(1, f"{tidy(error)}: make the bucket or folder, or name another")
    except (OSError, ValueError) as error:
        end(1, f"{tidy(error)}; send again")
    print(said)
    return 0


def end(code: int, said: str) -> None:
    """Say it and end at once, also where threads still wait for an answer."""
    sys.stderr.write(f"upload: {said}\n")
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    sys.exit(main())
