"""Measure the upload of 1,000 files of evidence to a bucket, with 20 ms more for each request.

The yardstick uploads the same files one by one with the same library. Both use moto behind the
proxy of tests/factories/buckets.py, which adds the delay.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from unittest import mock

from accept.config import resources
from benchmarks import Row, beside

_FILES = 1000
_DELAY = 0.02
_BAR = 0.2
_ONE_BY_ONE = """
import sys
from pathlib import Path
import obstore
from obstore.store import from_url
store = from_url(sys.argv[2], client_options={"allow_http": True})
root = Path(sys.argv[1])
for path in sorted(p for p in root.rglob("*") if p.is_file()):
    obstore.put(store, path.relative_to(root).as_posix(), path.read_bytes(), use_multipart=False)
"""


def _seconds(*command: str) -> float:
    began = time.perf_counter()
    subprocess.run([sys.executable, *command], check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - began


def rows(files: int = _FILES) -> list[Row]:
    """Measure one upload of each kind, to separate prefixes. Every file must arrive."""
    from tests.factories import buckets

    program = str(resources.launchers() / "programs" / "upload.py")
    with tempfile.TemporaryDirectory(prefix="accept-bench-") as scratch, buckets.s3() as server:
        folder = Path(scratch) / "evidence"
        (folder / "logs").mkdir(parents=True)
        for n in range(files):
            (folder / "logs" / f"{n}.log").write_text(f"{n}\n" * 500)
        server.delay = _DELAY
        with mock.patch.dict(os.environ, server.environment()):
            bucket = f"s3://{buckets.BUCKET}"
            theirs = _seconds("-c", _ONE_BY_ONE, str(folder), f"{bucket}/theirs")
            if len(server.written) != files:
                raise RuntimeError(f"{len(server.written)} of {files} files were written")
            server.written.clear()
            ours = _seconds(program, str(folder), f"{bucket}/ours", "--attempt", "a1")
            if len(server.written) != files + 1:
                raise RuntimeError(f"{len(server.written)} of {files + 1} files were written")
    return [
        beside(
            f"evidence of {files:,} files to a bucket, {_DELAY * 1e3:.0f} ms per request",
            f"{ours:.1f} s",
            f"one by one {theirs:.1f} s",
            ours=ours,
            theirs=theirs,
            bar=_BAR,
        )
    ]
