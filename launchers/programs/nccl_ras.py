"""Ask NCCL which ranks of a hung job are dead or behind, and print its answers.

`nccl_ras.py MARK` asks the processes of this host whose environment has ACCEPT_EXEC=MARK, twice, so
that a rank that only is late is seen to move. Since NCCL 2.24 a thread of each process answers for
the whole job, also while its collectives hang. Since 2.28.7 the answers are two lines of JSON.
Older ones give texts for people, whose lines are printed after `# `. A text that arrived in full
ends with `# end of text`. Without an answer nothing is printed, and the reason goes to stderr.

Sources: src/ras/client.cc and client_support.cc of NCCL, https://github.com/NVIDIA/nccl, and
NCCL_RAS_ADDR in https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import socket
import sys
import time
from collections.abc import Iterator
from pathlib import Path

#: The default of NCCL_RAS_ADDR.
_ADDRESS = "localhost:28028"
#: Seconds that NCCL waits for ranks that do not answer, between two answers, and for everything.
_WAIT, _PAUSE, _SECONDS = 2, 1.5, 9.0
#: All jobs of a host listen on one port, and the kernel chooses one of them for each connection.
_TRIES = 24
_MAX_BYTES = 8 << 20
#: Maximum size of a text: it lists at most half of the ranks for each kind of collective.
_MAX_TEXT = 256 << 10


def answers(address: str, mark: str, until: float) -> Iterator[str]:
    """Yield each answer of a job with the mark, as one line of JSON or as the lines of a text.

    Raises OSError without RAS.
    """
    host, _, port = address.rpartition(":")
    for _ in range(_TRIES):
        if (left := until - time.monotonic()) <= 0:
            return
        with socket.create_connection((host.strip("[]"), int(port)), timeout=left) as connected:
            stream = connected.makefile("rwb")
            has_json = True
            for line in ("CLIENT PROTOCOL 2", f"TIMEOUT {_WAIT}", "SET FORMAT json"):
                stream.write(f"{line}\n".encode())
                stream.flush()
                answer = stream.readline(1024)
                if line.startswith("SET ") and answer.startswith(b"ERROR: Unknown command"):
                    has_json = False
                elif not answer.startswith((b"SERVER PROTOCOL", b"OK")):
                    raise OSError(f"RAS answers {line} with {answer[:80]!r}")
            if not has_json and not _is_process_of(mark, connected):
                continue
            # Without VERBOSE a text lists only small groups of ranks.
            stream.write(b"STATUS\n" if has_json else b"VERBOSE STATUS\n")
            stream.flush()
            if has_json:
                status = json.loads(stream.read(_MAX_BYTES))
                if is_of(mark, status):
                    yield json.dumps(status, separators=(",", ":"))
            elif text := _text(stream, until):
                yield text


def _text(stream: io.BufferedIOBase, until: float) -> str:
    """Return the text that arrives until the end of the stream or of the time, if there is one.

    It has no control characters, and each line is after `# `, so that none is JSON.
    """
    text, is_complete = b"", False
    with contextlib.suppress(OSError):
        while len(text) < _MAX_TEXT and until > time.monotonic():
            if not (more := stream.readline(_MAX_TEXT - len(text))):
                is_complete = True
                break
            text += more
    if not text.strip():
        return ""
    lines = text.decode("utf-8", "replace").split("\n")
    printable = ["".join(c if c.isprintable() else "?" for c in line) for line in lines]
    return "\n".join(f"# {line}" for line in [*printable, *(["end of text"] * is_complete)])


def _is_process_of(mark: str, connected: socket.socket) -> bool:
    """Return True if the process at the other end of a connection has the mark.

    A text does not list the processes of its job.
    """
    theirs, ours = (f":{end[1]:04X}" for end in (connected.getpeername(), connected.getsockname()))
    ends = set()
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        with contextlib.suppress(OSError):
            for line in Path(table).read_text().splitlines()[1:]:
                _, local, remote, *others = line.split()
                if local.endswith(theirs) and remote.endswith(ours):
                    ends.add(f"socket:[{others[6]}]")
    wanted = f"ACCEPT_EXEC={mark}".encode()
    ranks = (process for process in Path("/proc").iterdir() if wanted in _environment(process.name))
    return any(_target(file) in ends for rank in ranks for file in _files(rank / "fd"))


def _files(folder: Path) -> list[Path]:
    try:
        return list(folder.iterdir())
    except OSError:
        return []


def _target(link: Path) -> str:
    try:
        return str(link.readlink())
    except OSError:
        return ""


def is_of(mark: str, status: object) -> bool:
    """Return True if a process in the status is on this host and has the mark."""
    if not isinstance(status, dict):
        return False
    ranks = (rank for each in status.get("communicators", ()) for rank in each.get("ranks", ()))
    wanted = f"ACCEPT_EXEC={mark}".encode()
    return any(wanted in _environment(rank.get("pid")) for rank in ranks)


def _environment(pid: object) -> list[bytes]:
    try:
        return Path(f"/proc/{int(str(pid))}/environ").read_bytes().split(b"\0")
    except (OSError, ValueError):
        return []


def main(mark: str) -> int:
    """Print the answers. Return 1 without one."""
    reason = "no job with this mark answered"
    address = os.environ.get("NCCL_RAS_ADDR") or _ADDRESS
    until, printed = time.monotonic() + _SECONDS, 0
    try:
        for answer in answers(address, mark, until):
            print(answer, flush=True)
            if printed:
                return 0
            printed += 1
            time.sleep(_PAUSE)
    except (OSError, ValueError, AttributeError, TypeError) as error:
        reason = str(error) or type(error).__name__
    print(f"NCCL's RAS at {address}: {reason}", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
