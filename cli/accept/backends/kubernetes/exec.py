"""Run commands in pods: over a websocket that the official client opens."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, InvalidStateError, wait
from contextlib import suppress
from typing import TYPE_CHECKING

from accept.backends.kubernetes.client import Api, ApiError, library
from accept.backends.kubernetes.objects import MAIN_CONTAINER, list_at, text_at
from accept.core import bounded
from accept.core.text import decimal, duration, plain

if TYPE_CHECKING:
    from websocket import WebSocket

#: The first byte of a frame, in the protocols v4 and v5 of channel.k8s.io.
_IN, _OUT, _STATUS = 0, 1, 3
#: Maximum size of a frame that is sent, in bytes.
_FRAME = 32768
#: Seconds that one read waits, so that the deadline of the command is checked in time.
_RECEIVE_SECONDS = 1.0


def execute(
    api: Api,
    pod: str,
    command: Sequence[str],
    *,
    timeout: float = 60.0,
    sink: Callable[[bytes], None] | None = None,
    stdin: bytes = b"",
) -> bounded.Output:
    """Run a command in the main container of a pod, for at most `timeout` seconds. Raises ApiError.

    The command must know how many bytes `stdin` has, because it reads no end of file.

    With a `sink`, the output is passed to it unmodified as it comes, and is not kept. Without one,
    it is returned. `exit` is None if the connection broke before the command ended.
    """
    until = time.monotonic() + timeout
    socket = _open_websocket(api, pod, command, timeout, reads=bool(stdin))
    _bound(socket, pod)
    left = bounded.MOST_OUTPUT
    kept: dict[int, list[bytes]] = {_OUT: [], _STATUS: []}
    try:
        _send(socket, stdin, until, pod)
        for channel, content in _frames(socket, until):
            if channel == _OUT and sink is not None:
                sink(content)
            elif channel in kept:
                left -= len(content)
                if left < 0:
                    raise ApiError(f"exec in {plain(pod)}: the reply is too long", status=0)
                kept[channel].append(content)
    finally:
        # `close` leaves the socket open if the other side closed first.
        socket.shutdown()  # type: ignore[no-untyped-call]
    out, final_status = (b"".join(kept[c]) for c in (_OUT, _STATUS))
    return bounded.Output(exit=_exit_status(final_status), out=out)


def _bound(socket: WebSocket, pod: str) -> None:
    """Make a socket raise ApiError for a message without end.

    The client keeps a message until it is whole, and the kubelet of the node chooses its length.
    """
    reader, receive = socket.frame_buffer, socket.frame_buffer.recv

    def receive_bounded(size: int) -> bytes:
        message = socket.cont_frame.cont_data
        held = sum(map(len, reader.recv_buffer)) + len(message[1] if message else b"")
        if held > bounded.MOST_OUTPUT:
            raise ApiError(f"exec in {plain(pod)}: a message is too long", status=0)
        return receive(size)

    reader.recv = receive_bounded


def _send(socket: WebSocket, content: bytes, until: float, pod: str) -> None:
    """Send the standard input of a command. Raises ApiError if that fails or takes too long."""
    from websocket import ABNF, WebSocketException

    try:
        for start in range(0, len(content), _FRAME):
            socket.settimeout(max(0.001, until - time.monotonic()))
            frame = bytes([_IN]) + content[start : start + _FRAME]
            socket.send(frame, ABNF.OPCODE_BINARY)
    except (WebSocketException, OSError) as error:
        raise ApiError(f"exec in {plain(pod)}: cannot send: {plain(error)}", status=0) from None


def _open_websocket(
    api: Api, pod: str, command: Sequence[str], timeout: float, *, reads: bool
) -> WebSocket:
    """Open the websocket of an exec within `timeout` seconds. Raises ApiError.

    The client has no limit for a server that accepts the connection and does not answer, so a
    thread waits for it. A websocket that opens too late is closed.
    """
    from kubernetes.stream import stream

    # `stream` changes the client while it works, and other threads use that of `api`.
    client = library().ApiClient(configuration=api.connected().configuration)
    result: Future[WebSocket] = Future()

    def connect() -> None:
        try:
            socket = stream(
                library().CoreV1Api(client).connect_get_namespaced_pod_exec,
                pod,
                api.place.namespace,
                container=MAIN_CONTAINER,
                command=list(command),
                stdout=True,
                stderr=False,
                stdin=reads,
                tty=False,
                binary=True,
                _preload_content=False,
            ).sock
        except BaseException as error:
            with suppress(InvalidStateError):
                result.set_exception(error)
            return
        try:
            result.set_result(socket)
        except InvalidStateError:
            socket.shutdown()

    threading.Thread(target=connect, daemon=True).start()
    wait([result], timeout)
    if result.cancel():
        raise ApiError(f"exec in {plain(pod)}: no connection within {duration(timeout)}", status=0)
    try:
        return result.result()
    except (library().ApiException, OSError, ValueError) as error:
        # The client reports every failure with status 0, and keeps the refusal as the context.
        status = getattr(error.__context__, "status_code", None) or 0
        reason = error.__context__ or error
        raise ApiError(f"exec in {plain(pod)}: {plain(reason)}", status=int(status)) from None


def _frames(socket: WebSocket, until: float) -> Iterator[tuple[int, bytes]]:
    """Yield channel and content of each frame until the connection ends or the time is over.

    The client's own loop (`WSClient.update`) keeps everything that arrives in memory, and waits
    without limit for the rest of a frame.
    """
    from websocket import ABNF, WebSocketException, WebSocketTimeoutException

    socket.settimeout(_RECEIVE_SECONDS)
    while time.monotonic() < until:
        try:
            code, frame = socket.recv_data_frame()
        except WebSocketTimeoutException:
            # The socket keeps the part of a frame that has arrived.
            continue
        except (WebSocketException, OSError):
            return
        if code == ABNF.OPCODE_CLOSE:
            return
        if frame.data:
            yield frame.data[0], frame.data[1:]


def _exit_status(final_status: bytes) -> int | None:
    """Return the exit code in the last frame, or None if the connection ended before it."""
    try:
        status = json.loads(final_status)
    except (ValueError, RecursionError):
        return None
    if text_at(status, "status") == "Success":
        return 0
    causes = list_at(status, "details", "causes")
    return decimal(text_at(causes[0], "message")) if causes else None
