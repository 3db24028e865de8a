"""Ask NCCL which ranks of a hung job are dead or behind, and print its answers.

`nccl_ras.py MARK` asks the processes of this host whose environment has ACCEPT_EXEC=MARK, twice, so
that a rank that only is late is seen to move. Since NCCL 2.24 a thread of each process answers for
the whole job, also while its collectives hang. Since 2.28 the answers are two lines of JSON. Older
ones give a text for people, whose lines are printed after `# `; it may be of another job.
Without an answer nothing is printed, and the reason goes to stderr.

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
#: Maximum size of a text: it lists at most a few ranks of each kind.
_MAX_TEXT = 256 << 10


class TextError(ValueError):
    """RAS has no JSON; its text is the argument."""


def answers(address: str, until: float) -> Iterator[bytes]:
    """Yield the status that RAS reports on each connection, as JSON.

    Raises OSError without RAS, and TextError if it only has text.
    """
    host, _, port = address.rpartition(":")
    for _ in range(_TRIES):
        if (left := until - time.monotonic()) <= 0:
            return
        with socket.create_connection((host.strip("[]"), int(port)), timeout=left) as connected:
            stream = connected.makefile("rwb")
            for line in ("CLIENT PROTOCOL 2", f"TIMEOUT {_WAIT}", "SET FORMAT json"):
                stream.write(f"{line}\n".encode())
                stream.flush()
                answer = stream.readline(1024)
                if line.startswith("SET ") and answer.startswith(b"ERROR: Unknown command"):
                    stream.write(b"STATUS\n")
                    stream.flush()
                    raise TextError(_all_of(stream, until))
                if not answer.startswith((b"SERVER PROTOCOL", b"OK")):
                    raise OSError(f"RAS answers {line} with {answer[:80]!r}")
            stream.write(b"STATUS\n")
            stream.flush()
            yield stream.read(_MAX_BYTES)


def _all_of(stream: io.BufferedIOBase, until: float) -> bytes:
    """Return what arrives until the end of the stream or of the time."""
    text = b""
    with contextlib.suppress(OSError):
        while len(text) < _MAX_TEXT and until > time.monotonic():
            if not (more := stream.readline(_MAX_TEXT - len(text))):
                break
            text += more
    return text


def printable(text: bytes) -> str:
    """Return a text without control characters, each line after `# `, so that none is JSON."""
    lines = text.decode("utf-8", "replace").splitlines()
    return "".join(f"# {''.join(c if c.isprintable() else '?' for c in ln)}\n" for ln in lines)


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
        for answer in answers(address, until):
            status = json.loads(answer)
            if not is_of(mark, status):
                continue
            print(json.dumps(status, separators=(",", ":")), flush=True)
            if printed:
                return 0
            printed += 1
            time.sleep(_PAUSE)
    except TextError as text:
        (answer,) = text.args
        if answer.strip():
            print(printable(answer), end="", flush=True)
            return 0
        reason = "no text after STATUS"
    except (OSError, ValueError, AttributeError, TypeError) as error:
        reason = str(error) or type(error).__name__
    print(f"NCCL's RAS at {address}: {reason}", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
