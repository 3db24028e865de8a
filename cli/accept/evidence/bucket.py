"""Evidence in buckets and shared folders, from the workstation.

As on nodes, `launchers/programs/upload.py` sends and `object_store.py` beside it reads.
"""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path, PurePosixPath
from typing import Any

from accept.config import resources
from accept.config.extras import Extra, install_hint
from accept.core import evidence
from accept.core.errors import BadEvidence, NotStarted
from accept.core.text import plain
from accept.evidence.archive import MOST_BYTES, MOST_FILES

_SECONDS = 300.0
#: For the first answer: somebody waits for it.
_FIRST = 30.0
_AT_ONCE = 16


def is_url(text: str) -> bool:
    """Whether a text names a place in a bucket, or a folder as a URL."""
    return re.match(r"(?:gs|s3|az|file)://", text) is not None


def send(folder: Path, url: str, *, attempt: str) -> str:
    """Send evidence to URL/runs/ATTEMPT; returns why that did not work, or nothing."""
    program = resources.launchers() / "programs" / "upload.py"
    done = subprocess.run(
        [sys.executable, str(program), str(folder), url, "--attempt", attempt],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode == 0:
        return ""
    said = done.stderr.strip().splitlines()[-1:] or [f"exit {done.returncode}"]
    return plain(said[0], 300)


def fetch(url: str, target: Path, *, partial: bool = True) -> bool:
    """Fetch the evidence at `url` into `target`, which is made; whether it was finished.

    What is finished has a manifest, and is as the manifest says. What is not is fetched without its
    check sums where `partial` allows it, so that it is judged as a run that broke off. Raises
    BadEvidence where nothing is there, it cannot be had, or it is not as it was written.
    """
    places = _places()
    until = time.monotonic() + _SECONDS
    try:
        place = places.place_of(url.rstrip("/"), _SECONDS)
        there = places.again(place.look, url, time.monotonic() + _FIRST)
        finished = places.again(lambda: places.manifest_in(place), url, until)
    except ImportError:
        raise NotStarted(
            f"{plain(url, 200)}: reading buckets needs obstore, which is not installed",
            hint=install_hint(Extra.STORAGE),
        ) from None
    except (places.Refused, OSError) as error:
        raise BadEvidence(plain(str(error), 400), hint="is it the right place?") from None
    _refuse_odd(url, there)
    names = set(there) - {places.MANIFEST}
    if evidence.PLAN not in names:
        raise BadEvidence(
            f"{plain(url, 200)} holds no evidence", hint="name the run: …/runs/ATTEMPT"
        )
    if finished is None and not partial:
        raise BadEvidence(
            f"{plain(url, 200)} was never finished: it has no {places.MANIFEST}",
            hint="accept collect fetches what there is of it",
        )
    wanted = names - {evidence.CHECKSUMS} if finished is None else names
    target.mkdir(parents=True)

    def one(name: str) -> str:
        path = target / name
        path.parent.mkdir(parents=True, exist_ok=True)

        def copy() -> tuple[int, str]:
            left = there[name][0]
            with path.open("wb") as file:
                for block in place.read(name):
                    left -= len(block)
                    if left < 0:
                        raise places.Refused("it grew while it was read; fetch it again")
                    file.write(block)
            size, sha, _ = places.digests(places.blocks(path))
            return size, sha

        try:
            size, sha = places.again(copy, url, until)
        except (places.Refused, OSError) as error:
            return f"{name}: {plain(str(error), 200)}"
        said = (finished or {}).get(name)
        if said is None or name in places.LATER or said == {"size": size, "sha256": sha}:
            return ""
        return f"{name} is not as it was written"

    with ThreadPoolExecutor(_AT_ONCE) as pool:
        wrong = [text for text in pool.map(one, sorted(wanted)) if text]
    wrong += [f"{name} is missing" for name in sorted(set(finished or {}) - names)]
    if wrong:
        raise BadEvidence(
            f"{plain(url, 200)}: {'; '.join(plain(text, 200) for text in wrong[:3])}",
            hint="fetch it again, or ask who changed it",
        )
    return finished is not None


def reach(url: str) -> tuple[bool | None, str]:
    """Whether a bucket is there and can be listed from here, and why not; None: it is not known."""
    program = _places()
    # Below it nothing has this name: a bucket may hold more than there is time to list.
    try:
        place = program.place_of(f"{url.rstrip('/')}/runs/accept-doctor", _FIRST)
        program.again(place.look, url, time.monotonic() + _FIRST)
    except ImportError:
        return None, f"obstore is not installed: {install_hint(Extra.STORAGE)}"
    except FileNotFoundError as error:
        return False, plain(str(error), 400)
    except (program.Refused, OSError) as error:
        return None, plain(str(error).removesuffix(", then send again: it goes on from here"), 400)
    return True, ""


def _refuse_odd(url: str, there: Mapping[str, tuple[int, str]]) -> None:
    """Raise BadEvidence for names that lead out of a folder, and for more than evidence can be."""
    for name in there:
        parts = PurePosixPath(name).parts
        if name.startswith("/") or ".." in parts or "\0" in name or not parts:
            raise BadEvidence(
                f"{plain(url, 200)} holds an object named {plain(name, 100)!r}",
                hint="no run writes that: who did?",
            )
    size = sum(size for size, _ in there.values())
    if len(there) > MOST_FILES or size > MOST_BYTES:
        raise BadEvidence(
            f"{plain(url, 200)}: {len(there)} files, {size / 1e9:.0f} GB", hint="name one run"
        )


@cache
def _places() -> Any:
    """The module by which nodes read and write, which is none of this package."""
    path = resources.launchers() / "programs" / "object_store.py"
    spec = importlib.util.spec_from_file_location("accept_places", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
