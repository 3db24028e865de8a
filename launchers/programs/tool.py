"""Run a program of others on this host, and leave nothing of it behind.

    tool.py TOOL.json

The file is a `Tool` of the plan (accept/core/model.py) as JSON. Its command runs without a shell.
Output is printed after `tool out| ` and `tool err| `; a line that is longer than `PIECE` continues
after `tool out+| `. The fact `tool` states how it ended; the reader judges it
(accept/core/tool_output.py). Exit status: 0.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import re
import selectors
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import commands
import rank_io

#: Bytes of a line that are printed at once, and most bytes and lines of output and of errors.
PIECE, MOST, MOST_LINES = 8000, {"out": 4 << 20, "err": 256 << 10}, 50_000
#: Seconds until a version must be printed, until the children of a tool end after it, in which a
#: killed process ends, and between two looks.
VERSION_SECONDS, GRACE_SECONDS, END_SECONDS, LOOK_SECONDS = 30.0, 2.0, 4.0, 0.2
#: Free space that must remain, as a share of what the tool needs.
SPARE = 0.05
#: `prctl`: orphans below this process become its children, also if they leave its session.
SUBREAPER = 36
#: Removes a folder when the process that holds the other end of its input is gone.
GUARD = "import shutil, sys; sys.stdin.read(); shutil.rmtree(sys.argv[1], ignore_errors=True)"


class Missing(Exception):
    """The tool is not installed."""


class Unusable(Exception):
    """The host lacks something that the tool needs."""


class Ran(NamedTuple):
    """The end of a tool: its status (None: it was ended), the reason to end it, what it left."""

    exit: int | None
    ended: str
    left: tuple[str, ...]


def main(path: str) -> None:
    """Run the tool, and print how that ended."""
    tool = json.loads(Path(path).read_text(encoding="utf-8"))
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    ctypes.CDLL(None).prctl(SUBREAPER, 1, 0, 0, 0)
    value: dict[str, Any] = {}
    try:
        program = find(tool)
        value["version"] = version(tool)
        check_needs(tool["needs"])
        with own_folder(tool) as folder:
            values = {"program": program, "folder": folder}
            command = [program, *(fill(one, values) for one in tool["command"][1:])]
            rank_io.say("# " + " ".join(command))
            env = {**os.environ, **{k: fill(v, values) for k, v in tool["env"].items()}}
            ran = run(command, env, tool["timeout"], folder or "/")
        value |= {"exit": ran.exit, "ended": ran.ended, "left": list(ran.left)}
        if folder and os.path.lexists(folder):
            value["left"].append(folder)
    except Missing as error:
        value["missing"] = str(error)
    except Unusable as error:
        value["unusable"] = str(error)
    rank_io.fact("tool", value, check=tool["name"], host=rank_io.host_name())


def find(tool: Mapping[str, Any]) -> str:
    """Return the path of the program. Raises Missing."""
    name = str(tool["command"][0])
    if found := shutil.which(name):
        return found
    raise Missing(f"{name} is not installed{': ' if tool['install'] else ''}{tool['install']}")


def version(tool: Mapping[str, Any]) -> str:
    """Return the version of the tool. Raises Unusable if it is unknown or too old."""
    if not tool["version"]:
        return ""
    try:
        ran = commands.run(VERSION_SECONDS, *tool["version"])
    except subprocess.TimeoutExpired:
        raise Unusable(f"{' '.join(tool['version'])} did not end") from None
    found = re.search(r"\d+(?:\.\d+)+", ran.out + ran.err)
    if not found:
        raise Unusable(f"{' '.join(tool['version'])} prints no version")
    if tool["least"] and numbers(found[0]) < numbers(tool["least"]):
        raise Unusable(f"{tool['name']} {found[0]} is too old: {tool['least']} is required")
    return found[0][:40]


def numbers(text: str) -> list[int]:
    """Return the numbers of a version."""
    return [int(one) for one in text.split(".")]


def check_needs(needs: Mapping[str, Any]) -> None:
    """Raise Unusable if this user or host lacks something that the tool needs."""
    if needs["root"] and os.geteuid() != 0:
        raise Unusable(f"it needs root, and the user is number {os.geteuid()}")
    for device in needs["devices"]:
        if not os.access(device, os.R_OK | os.W_OK):
            raise Unusable(f"it needs {device}, which cannot be opened or is missing")
    status = rank_io.read(Path("/proc/self/status"))
    effective = int((re.search(r"CapEff:\s*([0-9a-f]+)", status) or ("", "0"))[1], 16)
    for name, bit in needs["capabilities"].items():
        if not effective >> bit & 1:
            raise Unusable(f"it needs the capability {name}")


@contextlib.contextmanager
def own_folder(tool: Mapping[str, Any]) -> Iterator[str]:
    """Yield a folder of the tool's own, and remove it; "" if it needs none. Raises Unusable."""
    parent, space = tool["folder"], tool["needs"]["space"]
    if not parent:
        yield ""
        return
    try:
        state = os.statvfs(parent)
        free = state.f_bavail * state.f_frsize
        if free < space * (1 + SPARE):
            raise Unusable(f"{parent} has {free / 1e9:.3g} GB free; {space / 1e9:.3g} GB needed")
        folder = tempfile.mkdtemp(prefix="accept-", dir=parent)
    except OSError as error:
        raise Unusable(f"{parent}: {error.strerror}") from None
    # Without the mark of the run in its environment, so that it outlives this process.
    guard = subprocess.Popen(
        (sys.executable, "-ISc", GUARD, folder),
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env={},
        cwd="/",
        start_new_session=True,
    )
    try:
        yield folder
    finally:
        # The guard removes it also in the usual case, so this way is never untried.
        assert guard.stdin is not None
        guard.stdin.close()
        guard.wait()


def fill(text: str, values: Mapping[str, str]) -> str:
    """Return an argument with what only this host knows."""
    return re.sub(r"\{(\w+)\}", lambda found: values.get(found[1], found[0]), text)


def run(command: Sequence[str], env: Mapping[str, str], seconds: float, folder: str) -> Ran:
    """Run a command, print its output, and end everything that it started."""
    others = children()
    process = subprocess.Popen(
        command,
        env=env,
        cwd=folder,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    assert process.stdout is not None
    assert process.stderr is not None
    ended, finished, until = "", 0.0, time.monotonic() + seconds
    try:
        with process.stdout, process.stderr, selectors.DefaultSelector() as selector:
            selector.register(process.stdout, selectors.EVENT_READ, Copied("out"))
            selector.register(process.stderr, selectors.EVENT_READ, Copied("err"))
            # What it leaves behind may keep its output open for ever.
            while (open_ := selector.get_map()) or process.poll() is None or children() - others:
                if not open_:
                    time.sleep(LOOK_SECONDS)
                for key, _ in selector.select(LOOK_SECONDS) if open_ else ():
                    if not key.data.take(os.read(key.fd, 1 << 16)):
                        selector.unregister(key.fileobj)
                    ended = "output" if key.data.name == "out" and key.data.is_full else ended
                now = time.monotonic()
                if process.poll() is not None:
                    finished = finished or now
                elif now > until:
                    ended = "time"
                if ended or (finished and now > finished + GRACE_SECONDS):
                    break
        left = () if ended else names(others)
    finally:
        end(others)
    return Ran(None if ended else process.returncode, ended, left)


class Copied:
    """Print the output of a tool while it comes, line by line."""

    def __init__(self, name: str) -> None:
        self.name, self.size, self.lines, self._rest, self._inside = name, 0, 0, b"", ""

    @property
    def is_full(self) -> bool:
        """Return True if nothing more is printed."""
        return self.size > MOST[self.name] or self.lines > MOST_LINES

    def take(self, block: bytes) -> bool:
        """Print the lines that are complete; at the end also the last one, and return False."""
        self.size += len(block)
        self.lines += block.count(b"\n")
        if self.is_full:
            return bool(block)
        *lines, self._rest = (self._rest + block).split(b"\n")
        for line in lines:
            self._say(line)
        if len(self._rest) >= PIECE or (not block and self._rest):
            self._say(self._rest, complete=not block)
            self._rest = b""
        return bool(block)

    def _say(self, line: bytes, *, complete: bool = True) -> None:
        for start in range(0, max(len(line), 1), PIECE):
            piece = line[start : start + PIECE].decode(errors="replace").rstrip("\r")
            rank_io.say(f"tool {self.name}{self._inside}| {piece}")
            self._inside = "+"
        self._inside = "" if complete else "+"


def children() -> frozenset[int]:
    """Return all processes below this one. Orphans become its children."""
    parents: dict[int, int] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        # The name of a process may contain blanks and parentheses.
        state, parent, *_ = rank_io.read(path).rpartition(")")[2].split() or ("Z", "0")
        if state != "Z":
            parents[int(path.parent.name)] = int(parent)
    found, new = set[int](), {os.getpid()}
    while new:
        new = {pid for pid, parent in parents.items() if parent in new} - found
        found |= new
    return frozenset(found)


def names(others: frozenset[int]) -> tuple[str, ...]:
    """Return the names of the processes below this one, without `others`."""
    found = (rank_io.read(Path(f"/proc/{pid}/comm")) for pid in sorted(children() - others))
    return tuple(name for name in found if name)[:10]


def end(others: frozenset[int]) -> None:
    """Kill the processes below this one, without `others`, until none is left."""
    until = time.monotonic() + END_SECONDS
    while (living := children() - others) and time.monotonic() < until:
        for pid in living:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.02)


if __name__ == "__main__":
    main(sys.argv[1])
