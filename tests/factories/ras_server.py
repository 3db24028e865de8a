"""A stand-in for NCCL's RAS: a server that answers as NCCL's src/ras/client_support.cc does.

`python -m tests.factories.ras_server PORT RANK:COLLECTIVES...` serves a job of these ranks, whose
processes all are the server itself. `python -m tests.factories.ras_server 0 text` serves the text
of its standard input as NCCL 2.24 to 2.27 do, and prints its port.
"""

from __future__ import annotations

import copy
import json
import os
import socketserver
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from tests.factories.paths import ROOT

_RECORDED = json.loads((ROOT / "tests/data/gpu/h100-80gb-hbm3/nccl-ras.json").read_text())


def status(
    started: Mapping[int, int],
    *,
    size: int = 8,
    pid: int = 0,
    dead: tuple[int, ...] = (),
    silent: tuple[int, ...] = (),
) -> dict[str, Any]:
    """Return the status of a job in the form that an H100 gave: rank -> collectives started."""
    answer: dict[str, Any] = copy.deepcopy(_RECORDED)
    (communicator,) = answer["communicators"]
    (one,) = communicator["ranks"]
    communicator["size"] = size
    communicator["ranks"] = [
        {**one, "rank": r, "pid": pid, "collective_counts": {"AllReduce": n, "Broadcast": 1}}
        for r, n in started.items()
    ]
    communicator["missing_ranks"] = [
        {
            "rank": r,
            "host": "192.0.2.9",
            "pid": 1,
            "cuda_dev": 0,
            "nvml_dev": 0,
            "status": {"unresponsive": True, "considered_dead": r in dead},
        }
        for r in (*dead, *silent)
    ]
    return answer


@contextmanager
def server(
    answer: Callable[[], bytes], port: int = 0, *, json: bool = True
) -> Iterator[socketserver.TCPServer]:
    """Listen on a port; `answer` gives the reply to STATUS on each connection.

    Without `json` it refuses another format, as NCCL 2.24 to 2.27 do.
    """

    class Connection(socketserver.StreamRequestHandler):
        def handle(self) -> None:
            for line in self.rfile:
                words = line.decode().strip().lower()
                if words in ("status", "verbose status"):
                    self.wfile.write(answer())
                    return
                if words.startswith("client protocol "):
                    self.wfile.write(b"SERVER PROTOCOL 2\n")
                elif json or words.startswith("timeout "):
                    self.wfile.write(b"OK\n")
                else:
                    self.wfile.write(b"ERROR: Unknown command %s" % line)

    socketserver.ThreadingTCPServer.allow_reuse_address = True
    with socketserver.ThreadingTCPServer(("127.0.0.1", port), Connection) as listening:
        threading.Thread(target=listening.serve_forever, daemon=True).start()
        yield listening
        listening.shutdown()


def main(port: str, *ranks: str) -> None:
    """Serve one status until the process is killed."""
    if ranks == ("text",):
        text = sys.stdin.buffer.read()
        with server(lambda: text, int(port), json=False) as listening:
            print(listening.server_address[1], flush=True)
            threading.Event().wait()
    started = {int(rank): int(number) for rank, _, number in (r.partition(":") for r in ranks)}
    text = json.dumps(status(started, size=len(started), pid=os.getpid())).encode()
    with server(lambda: text, int(port)):
        threading.Event().wait()


if __name__ == "__main__":
    main(*sys.argv[1:])
