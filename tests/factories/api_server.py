"""A stand-in for the Kubernetes API with scripted answers, for errors that are hard to provoke.

The tests in tests/cluster/kube use a real cluster for everything else.
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

#: Answers a path: takes the query and the number of the request, returns status and body.
Answer = Callable[[dict[str, str], int], tuple[int, Any]]
#: Output of a command in a container, by channel: stdout, stderr and exit status.
Frames = Iterator[tuple[int, bytes]]
OUT, ERR, STATUS = 1, 2, 3
#: Takes the words of the command and the number of the request; ConnectionError cuts it off.
Command = Callable[[list[str], int], Frames]
#: The fixed key of RFC 6455, section 1.3.
_WEBSOCKET = "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"


@dataclass(kw_only=True)
class ApiServer:
    """A running stand-in: its answers by path, and the requests so far."""

    port: int = 0
    answers: dict[str, Answer] = field(default_factory=dict)
    commands: dict[str, Command] = field(default_factory=dict)
    seen: list[tuple[str, str, dict[str, str]]] = field(default_factory=list)
    #: Authorization headers, in the order of the requests.
    tokens: list[str] = field(default_factory=list)
    #: Versions by group of the API.
    groups: dict[str, tuple[str, ...]] = field(default_factory=dict)
    bodies: list[Any] = field(default_factory=list)
    #: The number of frames of each message on a websocket.
    parts: int = 1

    def answer_with(self, path: str, *bodies: Any) -> None:
        """Answer a path with these bodies in turn, and then always with the last.

        An int is an HTTP status, a str is a full log, and bytes are a log whose connection is cut
        at the end.
        """

        def answer(_: dict[str, str], number: int) -> tuple[int, Any]:
            body = bodies[min(number, len(bodies) - 1)]
            return (body, {"message": f"status {body}"}) if isinstance(body, int) else (200, body)

        self.answers[path] = answer

    def serves(self, group: str, *versions: str) -> None:
        """Let the discovery of the API list these versions of a group."""
        self.groups[group] = versions
        listed = [
            {"name": name, "versions": [{"version": version} for version in served]}
            for name, served in self.groups.items()
        ]
        self.answer_with("/apis", {"groups": listed})

    def count(self, path: str) -> int:
        """Return the number of requests for a path."""
        return sum(1 for _, requested, _ in self.seen if requested == path)

    def kubeconfig(self, folder: Path, token: str = "one", namespace: str = "lab") -> Path:
        """Write a kubeconfig that points to this server; return its path."""
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
    """Run a stand-in on a free port until the end of the block."""
    server = ApiServer()
    server.answer_with("/apis", {"groups": []})

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def _answer(self) -> None:
            # The client asks for `/version/` and `/apis/`.
            path = urlsplit(self.path).path.rstrip("/")
            raw_query = urlsplit(self.path).query
            query = dict(parse_qsl(raw_query))
            length = int(self.headers.get("Content-Length") or 0)
            if length:
                server.bodies.append(json.loads(self.rfile.read(length)))
            number = server.count(path)
            server.seen.append((self.command, path, query))
            server.tokens.append(self.headers.get("Authorization", ""))
            if path in server.commands:
                words = [word for key, word in parse_qsl(raw_query) if key == "command"]
                self._frames(server.commands[path](words, number))
                return
            answer = server.answers.get(path)
            status, body = answer(query, number) if answer else (404, {"message": "not found"})
            self.send_response(status)
            if isinstance(body, bytes):
                # Chunked like a real log, but without the final chunk.
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
            """Answer with a websocket of the subprotocol v4.channel.k8s.io."""
            key = (self.headers["Sec-WebSocket-Key"] + _WEBSOCKET).encode()
            self.send_response(101)
            self.send_header("Upgrade", "websocket")
            self.send_header("Connection", "Upgrade")
            accepted = base64.b64encode(hashlib.sha1(key, usedforsecurity=False).digest())
            self.send_header("Sec-WebSocket-Accept", accepted.decode())
            self.send_header("Sec-WebSocket-Protocol", "v4.channel.k8s.io")
            self.end_headers()
            self.close_connection = True
            # The client may close the connection before the end.
            with contextlib.suppress(ConnectionError):
                for channel, content in frames:
                    body = bytes([channel]) + content
                    size = -(-len(body) // server.parts)
                    for at in range(0, len(body), size):
                        part = body[at : at + size]
                        is_last = at + size >= len(body)
                        kind = (0x80 if is_last else 0) | (0x02 if at == 0 else 0)
                        self.wfile.write(bytes([kind, 0x7F]) + len(part).to_bytes(8, "big") + part)
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
