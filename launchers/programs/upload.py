"""Send evidence to a bucket or a folder; resume, and never overwrite finished evidence.

    python upload.py FOLDER URL --attempt NAME                          everything, and finish
    python upload.py FOLDER URL --attempt NAME --partial                the files so far
    python upload.py 3.log  URL --attempt NAME --partial --under pods   one pod's own log
    python upload.py FOLDER URL --attempt NAME --has-ended              nothing: only look

URL is gs://, s3://, az://, file:// or an absolute path that exists. Everything goes below
URL/runs/NAME, or below URL itself without --attempt. Buckets are written with obstore if it can be
imported, else with `gcloud storage` or `aws s3`; folders by a copy with fsync.

MANIFEST.json is written last: {"schema": 1, "files": {PATH: {"size", "sha256"}}, "leftOver":
[PATH]}. `leftOver` lists files that an earlier --partial sent and that are gone since. Evidence is
finished when the manifest exists. From then on its files are not written again: sending the same
evidence succeeds and sends nothing, and different evidence is refused. Exceptions are the files
that a new judgement rewrites, pods/, where every pod leaves its log when it ends, and report.html,
which the workstation adds.

A file that exists is compared by size and by MD5 if the bucket's ETag is an MD5, else by reading it
back. Objects that appear while this program runs come from another sender: equal ones are accepted,
others are refused.

Exit status 0: sent now or earlier; 1: not sent, with the reason and the remedy on stderr.
With --has-ended, 0: the URL has the finished evidence of a run that was not interrupted; 1: it has
not, or that is unknown.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import commands
from object_store import (
    MANIFEST,
    MANIFEST_BYTES,
    PODS,
    Files,
    Folder,
    Refused,
    Unreachable,
    again,
    blocks,
    check,
    digests,
    files_of,
    is_open,
    manifest,
    manifest_in,
    place_of,
    tidy,
)

#: The file of the evidence that has the reason of an interruption.
RUN_END = "run-end.json"
#: Files above this size in bytes are sent in parts; then their ETag is not an MD5.
IN_ONE = 32 << 20
AT_ONCE = 32


def upload(files: dict[str, Path], place: Any, url: str, *, whole: bool, until: float) -> str:
    """Send files by name; return a summary. Raises Refused and FileNotFoundError."""
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
                    return None  # A file that is still being written may be moved.
                raise Refused(f"{path} disappeared while it was sent: send again") from None
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
                            f"{tidy(url)}: another process is sending a different {tidy(name)}; "
                            "send again when it has finished"
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


class Tool:
    """A bucket, through a command line tool. Raises Refused if no installed tool supports it."""

    def __init__(self, url: str, until: float) -> None:
        scheme = url.partition(":")[0]
        self.name = {"gs": "gcloud", "s3": "aws"}.get(scheme, "")
        if not self.name or not shutil.which(self.name):
            raise Refused(
                f"{scheme}:// needs the Python package obstore, which {sys.executable} lacks: "
                "pip install obstore" + f", or install {self.name}" * bool(self.name)
            )
        self.url, self.until = url, until
        self.is_gcloud = self.name == "gcloud"

    def call(self, *arguments: str) -> bytes:
        """Run a command of the tool. Raises FileNotFoundError and OSError."""
        ran = commands.run(
            max(1.0, self.until - time.monotonic()),
            *(self.name, "storage" if self.is_gcloud else "s3", *arguments),
            most=MANIFEST_BYTES,
        )
        if ran.exit != 0:
            message = ran.err.strip()
            if re.search("404|[Nn]ot [Ff]ound|matched no|does not exist|NoSuchKey", message):
                raise FileNotFoundError(message)
            raise OSError(f"{self.name}: {(message or 'failed').splitlines()[-1]}")
        return ran.raw

    def read(self, name: str) -> list[bytes]:
        """Return the content of an object. Raises FileNotFoundError."""
        source = f"{self.url}/{name}"
        return [self.call("cat", source) if self.is_gcloud else self.call("cp", source, "-")]

    def close(self) -> None:
        """Do nothing: no connection is kept open."""


def with_tool(files: dict[str, Path], url: str, *, whole: bool, until: float) -> str:
    """Send files with a command line tool, for images without obstore; return a summary."""
    tool = Tool(url, until)
    done = again(lambda: manifest_in(tool), url, until)
    with tempfile.TemporaryDirectory(prefix="accept-upload-") as scratch:
        # Send a copy: files may grow, and the manifest must match what was sent.
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
        if tool.is_gcloud:
            sending = ["rsync", "--recursive", "--checksums-only", *sending]
        else:
            sending = ["cp", "--recursive", "--only-show-errors", *sending]
        again(lambda: tool.call(*sending), url, until)
        if whole and done is None:
            last = Path(scratch) / MANIFEST
            last.write_bytes(manifest(ours, []))
            again(lambda: tool.call("cp", str(last), f"{url}/{MANIFEST}"), url, until)
    return f"sent {len(files)} files with {tool.name} to {tidy(url)}"


def has_ended(arguments: argparse.Namespace, until: float) -> bool:
    """Return True if there is finished evidence of a run that was not interrupted."""
    url = f"{arguments.url.rstrip('/')}/runs/{arguments.attempt}"
    try:
        place: Any = place_of(url, arguments.seconds)
    except ImportError:
        place = Tool(url, until)
    if again(lambda: manifest_in(place), url, until) is None:
        return False
    try:
        end = json.loads(b"".join(again(lambda: list(place.read(RUN_END)), url, until)))
    except (FileNotFoundError, ValueError):
        return True
    # A queue that takes an evicted run back starts the same attempt again.
    return not (isinstance(end, dict) and end.get("interruption"))


def send(arguments: argparse.Namespace, until: float) -> str:
    """Send what the command line requests; return a summary."""
    base, source = arguments.url.rstrip("/") or "/", Path(arguments.folder)
    attempt, under = arguments.attempt, arguments.under.strip("/")
    if {".", ".."} & {attempt, *under.split("/")} or "/" in attempt:
        raise Refused(
            f"--attempt {tidy(attempt)!r} --under {tidy(under)!r}: "
            "an attempt has no /, and neither may be . or .."
        )
    found = files_of(source)
    files = {f"{under}/{n}" if under else n: p for n, p in found.items() if n != MANIFEST}
    if not files:
        raise Refused(f"{source} contains no files: name the folder of the evidence")
    url = f"{base}/runs/{attempt}" if attempt else base
    whole = not (arguments.partial or under)
    try:
        place, above = place_of(url, arguments.seconds), place_of(base, arguments.seconds)
    except ImportError:
        return with_tool(files, url, whole=whole, until=until)
    if isinstance(above, Folder) and not above.root.is_dir():
        raise Refused(f"{tidy(base)} is missing: create or mount it")
    try:
        return upload(files, place, url, whole=whole, until=until)
    finally:
        place.close()


def main() -> int:
    """Read the command line and send; return the exit status."""
    parser = argparse.ArgumentParser(
        description="Send a folder of evidence to a bucket or a folder. Files that exist there are "
        "not sent again, MANIFEST.json is written last, and finished evidence is never changed.",
    )
    parser.add_argument("folder", metavar="FOLDER", help="folder or file to send")
    parser.add_argument(
        "url", metavar="URL", help="gs://, s3://, az://, file:/// or an existing absolute path"
    )
    parser.add_argument("--attempt", default="", help="send to URL/runs/ATTEMPT")
    parser.add_argument(
        "--partial", action="store_true", help="upload the files so far, without MANIFEST.json"
    )
    parser.add_argument(
        "--under", default="", metavar="SUB", help="send to its folder SUB, as with --partial"
    )
    parser.add_argument(
        "--has-ended",
        action="store_true",
        help="send nothing: succeed if this attempt has run to its end and its evidence is there",
    )
    parser.add_argument(
        "--seconds", type=float, default=300.0, help="time limit in seconds (%(default)s)"
    )
    arguments = parser.parse_args()
    # Runs keep their own files to themselves. What they send to a shared folder, others may read.
    os.umask(0o022)
    # Keep the time limit even if a library hangs.
    last = threading.Timer(
        arguments.seconds + 15, end, [1, f"not finished within {arguments.seconds:.0f} s"]
    )
    last.daemon = True
    last.start()
    try:
        until = time.monotonic() + arguments.seconds
        if arguments.has_ended:
            return 0 if has_ended(arguments, until) else 1
        message = send(arguments, until)
    except Unreachable as error:
        end(1, f"{error}, then send again: the rest will be sent")
    except Refused as error:
        end(1, str(error))
    except FileNotFoundError as error:
        end(1, f"{tidy(error)}: make the bucket or folder, or name another")
    except (OSError, ValueError) as error:
        end(1, f"{tidy(error)}; send again")
    print(message)
    return 0


def end(code: int, message: str) -> None:
    """Print a message and exit immediately, even if threads still wait for an answer."""
    sys.stderr.write(f"upload: {message}\n")
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    sys.exit(main())
