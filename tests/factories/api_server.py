"""A stand-in for a cluster's API: plays answers, for errors that no real cluster gives on demand.

Everything else about clusters is tested on a real one, in tests/cluster/kube.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import json
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import yaml

#: What answers a path: gets the query and the number of the request, returns status and body.
Answer = Callable[[dict[str, str], int], tuple[int, Any]]
#: What a command in a container writes, by channel: its output, its errors, and how it ended.
Frames = Iterator[tuple[int, bytes]]
OUT, ERR, STATUS = 1, 2, 3
#: Gets the words of the command and the number of the request; ConnectionError breaks the line.
Command = Callable[[list[str], int], Frames]
#: RFC 6455, 1.3.
_WEBSOCKET = "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"


@dataclass(kw_only=True)
class ApiServer:
    """The stand-in: answers by path, and the requests it saw."""

    port: int = 0
    answers: dict[str, Answer] = field(default_factory=dict)
    commands: dict[str, Command] = field(default_factory=dict)
    seen: list[tuple[str, str, dict[str, str]]] = field(default_factory=list)
    #: Authorization headers, in the order of the requests.
    tokens: list[str] = field(default_factory=list)
    bodies: list[Any] = field(default_factory=list)

    def says(self, path: str, *bodies: Any) -> None:
        """Answer a path with these, one after the other; the last again and again.

        An int is a status, a text is a whole log; bytes are one whose connection breaks at its end.
        """

        def answer(_: dict[str, str], number: int) -> tuple[int, Any]:
            body = bodies[min(number, len(bodies) - 1)]
            return (body, {"message": f"status {body}"}) if isinstance(body, int) else (200, body)

        self.answers[path] = answer

    def count(self, path: str) -> int:
        """How often a path was asked for."""
        return sum(1 for _, one, _ in self.seen if one == path)

    def kubeconfig(self, folder: Path, token: str = "one", namespace: str = "lab") -> Path:
        """A kubeconfig that leads here."""
        file = folder / "kubeconfig"
        cluster = {"server": f"http://127.0.0.1:{self.port}"}
        context = {"cluster": "here", "user": "me", "namespace": namespace}
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "standin",
            "clusters": [{"name": "here", "cluster": cluster}],
            "users": [{"name": "me", "user": {"token": token}}],
            "contexts": [{"name": "standin", "context": context}],
        }
        file.write_text(yaml.safe_dump(config), encoding="utf-8")
        return file


@contextlib.contextmanager
def api_server() -> Iterator[ApiServer]:
    """A stand-in that listens on a free port until the end of the block."""
    server = ApiServer()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def _answer(self) -> None:
            parts = urlsplit(self.path)
            query = dict(parse_qsl(parts.query))
            length = int(self.headers.get("Content-Length") or 0)
            if length:
                server.bodies.append(json.loads(self.rfile.read(length)))
            number = server.count(parts.path)
            server.seen.append((self.command, parts.path, query))
            server.tokens.append(self.headers.get("Authorization", ""))
            if parts.path in server.commands:
                words = [word for key, word in parse_qsl(parts.query) if key == "command"]
                self._frames(server.commands[parts.path](words, number))
                return
            answer = server.answers.get(parts.path)
            status, body = answer(query, number) if answer else (404, {"message": "not found"})
            self.send_response(status)
            if isinstance(body, bytes):
                # In pieces, as a log comes, and without the piece that says that it is the last.
                self.send_header("Transfer-Encoding", "chunked")
                self.end_headers()
                if body:
                    self.wfile.write(b"%x\r\n%s\r\n" % (len(body), body))
                self.close_connection = True
                return
            data = body.encode() if isinstance(body, str) else json.dumps(body).encode()
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def _frames(self, frames: Frames) -> None:
            """A websocket, as the API speaks v4.channel.k8s.io over it."""
            key = (self.headers["Sec-WebSocket-Key"] + _WEBSOCKET).encode()
            self.send_response(101)
            self.send_header("Upgrade", "websocket")
            self.send_header("Connection", "Upgrade")
            accepted = base64.b64encode(hashlib.sha1(key, usedforsecurity=False).digest())
            self.send_header("Sec-WebSocket-Accept", accepted.decode())
            self.send_header("Sec-WebSocket-Protocol", "v4.channel.k8s.io")
            self.end_headers()
            self.close_connection = True
            # Who reads may leave before the end.
            with contextlib.suppress(ConnectionError):
                for channel, content in frames:
                    body = bytes([channel]) + content
                    self.wfile.write(b"\x82\x7f" + len(body).to_bytes(8, "big") + body)
                self.wfile.write(b"\x88\x00")

        do_GET = do_POST = do_DELETE = _answer  # noqa: N815 - as http.server calls them

        def log_message(self, *_: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as http:
        server.port = http.server_port
        thread = threading.Thread(target=http.serve_forever, args=(0.02,), daemon=True)
        thread.start()
        try:
            yield server
        finally:
            http.shutdown()
            thread.join()
