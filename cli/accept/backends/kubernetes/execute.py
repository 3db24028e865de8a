"""Commands in a container, over a websocket of the API."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode

from accept.backends.kubernetes.client import Api, ApiError
from accept.core.text import plain

#: The first byte of a frame, in the protocols v4 and v5 of channel.k8s.io.
_OUT, _ERR, _STATUS = 1, 2, 3
#: How long one read waits, so that the deadline of the whole is seen, in seconds.
_READ = 1.0


@dataclass(frozen=True, kw_only=True)
class Done:
    """What a command in a container left; `exit` is None where the connection broke."""

    exit: int | None
    out: str
    err: str


def execute(
    api: Api,
    pod: str,
    container: str,
    command: Sequence[str],
    *,
    timeout: float = 60.0,
    sink: Callable[[bytes], None] | None = None,
) -> Done:
    """Run a command in a container, for at most `timeout` seconds. Raises ApiError.

    With a `sink` its output goes there as it comes, byte for byte, and nothing of it is kept; else
    it is read as text.
    """
    from kubernetes.stream.ws_client import create_websocket
    from websocket import WebSocketException

    settings, headers = api.access()
    query = [("container", container), ("stdout", "true"), ("stderr", "true")]
    query += [("command", word) for word in command]
    path = f"/api/v1/namespaces/{api.place.namespace}/pods/{pod}/exec"
    url = f"{settings.host}{path}?{urlencode(query)}".replace("http", "ws", 1)
    until = time.monotonic() + timeout
    try:
        socket = create_websocket(settings, url, headers)
    except (WebSocketException, OSError, ValueError) as error:
        status = getattr(error, "status_code", None) or 0
        raise ApiError(f"exec in {plain(pod)}: {plain(error)}", status=int(status)) from None
    kept: dict[int, list[bytes]] = {_OUT: [], _ERR: [], _STATUS: []}
    broken = ""
    try:
        for channel, content in _frames(socket, until):
            if isinstance(content, Exception):
                broken = plain(content)
            elif channel == _OUT and sink is not None:
                sink(content)
            elif channel in kept:
                kept[channel].append(content)
    finally:
        # Closing alone leaves the socket open where the other side closed first.
        socket.shutdown()
    out, err, told = (b"".join(kept[c]) for c in (_OUT, _ERR, _STATUS))
    return Done(
        exit=_exit_of(told),
        out=out.decode(errors="replace"),
        err=broken or err.decode(errors="replace"),
    )


def _frames(socket: Any, until: float) -> Iterator[tuple[int, bytes | Exception]]:
    """Channel and content of each frame until the other side closes or the time is over.

    A connection that breaks comes as its error: what is done with a frame may fail in ways alike.
    """
    from websocket import ABNF, WebSocketException, WebSocketTimeoutException

    socket.settimeout(_READ)
    while time.monotonic() < until:
        try:
            code, frame = socket.recv_data_frame()
        except WebSocketTimeoutException:
            # What came of a frame so far is kept by the socket.
            continue
        except (WebSocketException, OSError) as error:
            yield 0, error
            return
        if code == ABNF.OPCODE_CLOSE:
            return
        if frame.data:
            yield frame.data[0], frame.data[1:]


def _exit_of(told: bytes) -> int | None:
    """The exit status that comes last; None where the connection ended before it."""
    try:
        status = json.loads(told)
        if status["status"] == "Success":
            return 0
        return int(status["details"]["causes"][0]["message"])
    except (ValueError, TypeError, KeyError, IndexError):
        return None
