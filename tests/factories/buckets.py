"""Buckets to test against, behind a forwarding proxy: moto as S3, fake-gcs-server as Google's.

The proxy lists what is written, can answer 503, and can delay requests. For fake-gcs-server it also
translates: obstore writes an object with a PUT, which Google accepts, but fake-gcs-server accepts
only uploads of the JSON API. These tests therefore cannot show how Google answers a PUT.
"""

from __future__ import annotations

import http.client
import json
import socket
import subprocess
import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote, urlsplit

from tests.factories.clock import PATIENCE
from tests.factories.ports import free_port

BUCKET = "evidence"
#: moto requires a signature (Authorization) for reading, but does not check it.
_PASSED_ON = ("authorization", "content-type", "range", "if-none-match", "if-match")


@dataclass
class Proxy:
    """State of a proxy in front of a server, and the objects written through it."""

    port: int
    google: bool
    server: str = "127.0.0.1"
    url: str = ""
    #: Seconds added to each request. If `down`, all requests are answered with 503.
    delay: float = 0.0
    down: bool = False
    #: The proxy goes down when an object whose name ends like this is written; "" for never.
    until: str = ""
    written: list[str] = field(default_factory=list)
    refused: int = 0

    def environment(self) -> dict[str, str]:
        """Return the environment variables that make obstore use this proxy."""
        if self.google:
            return google(self.url)
        return {
            "AWS_ENDPOINT_URL": self.url,
            "AWS_ALLOW_HTTP": "true",
            "AWS_ACCESS_KEY_ID": "test",
            "AWS_SECRET_ACCESS_KEY": "test",
            "AWS_REGION": "us-east-1",
        }


def google(url: str) -> dict[str, str]:
    """Return the environment variables that make obstore use `url` for gs://, without OAuth."""
    key = {"gcs_base_url": url, "disable_oauth": True}
    nothing = {"client_email": "", "private_key": "", "private_key_id": ""}
    return {
        "GOOGLE_SERVICE_ACCOUNT_KEY": json.dumps({**key, **nothing}),
        "GOOGLE_ALLOW_HTTP": "true",
    }


@contextmanager
def proxy(
    port: int, *, google: bool, server: str = "127.0.0.1", listener: socket.socket | None = None
) -> Iterator[Proxy]:
    """Run a proxy for `port` of `server`; it listens on `listener` if given, and closes it."""
    state = Proxy(port=port, google=google, server=server)
    handler = type("Handler", (_Handler,), {"state": state})
    front = ThreadingHTTPServer(("127.0.0.1", 0), handler, bind_and_activate=False)
    front.socket.close()
    front.socket = listener or socket.create_server(("127.0.0.1", 0))
    front.daemon_threads = True
    host, bound = front.socket.getsockname()
    state.url = f"http://{host}:{bound}"
    threading.Thread(target=front.serve_forever, daemon=True).start()
    try:
        yield state
    finally:
        front.shutdown()
        front.server_close()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    state: Proxy

    def _any(self) -> None:
        state = self.state
        body = self.rfile.read(int(self.headers.get("content-length") or 0))
        time.sleep(state.delay)
        method, path = self.command, self.path
        _, bucket, name = [*urlsplit(path).path.split("/", 2), "", ""][:3]
        writes = method == "PUT" and bool(name)
        if writes and state.until and unquote(name).endswith(state.until):
            state.down, state.until = True, ""
        if state.down:
            state.refused += 1
            self._answer(503, {}, b"down")
            return
        kept = {k: v for k, v in self.headers.items() if k.lower() in _PASSED_ON}
        if writes and state.google:
            method, path = "POST", f"/upload/storage/v1/b/{bucket}/o?uploadType=media"
            path += f"&name={quote(unquote(name), safe='')}"
            if when := self.headers.get("x-goog-if-generation-match"):
                path += f"&ifGenerationMatch={when}"
        with closing(
            http.client.HTTPConnection(state.server, state.port, timeout=PATIENCE)
        ) as server:
            server.request(method, path, body, kept)
            answer = server.getresponse()
            content, status = answer.read(), answer.status
        headers = {k: v for k, v in answer.getheaders() if k.lower() in _ANSWERED}
        if state.google and status == 500 and b"no bucket named" in content:
            status = 404
        if writes and status == 200:
            state.written.append(unquote(name))
            if state.google:
                headers, content = {"ETag": f'"{json.loads(content)["etag"]}"'}, b""
        self._answer(status, headers, content)

    do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = _any  # noqa: N815 - http.server's names

    def _answer(self, status: int, headers: dict[str, str], content: bytes) -> None:
        self.send_response(status)
        for key, value in headers.items():
            self.send_header(key, value)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - http.server's name
        """Print no log lines."""


_ANSWERED = ("etag", "last-modified", "content-type", "content-range", "x-goog-generation")


@contextmanager
def s3() -> Iterator[Proxy]:
    """Run moto with a bucket, behind the proxy."""
    import logging

    from moto.server import ThreadedMotoServer

    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = ThreadedMotoServer("127.0.0.1", port=0, verbose=False)
    server.start()
    _, port = server.get_host_and_port()
    try:
        _ask(f"http://127.0.0.1:{port}/{BUCKET}", "PUT")
        with proxy(port, google=False) as state:
            yield state
    finally:
        _ask(f"http://127.0.0.1:{port}/moto-api/reset", "POST")
        server.stop()


@contextmanager
def gs(program: Path) -> Iterator[Proxy]:
    """Run fake-gcs-server with a bucket, behind the proxy that translates each PUT."""
    port = free_port()
    command = [str(program), "-scheme=http", "-host=127.0.0.1", f"-port={port}", "-backend=memory"]
    command.append(f"-public-host=127.0.0.1:{port}")
    quiet = subprocess.DEVNULL
    with subprocess.Popen(command, stdin=quiet, stdout=quiet, stderr=quiet) as server:
        try:
            for _ in range(1200):
                with closing(socket.socket()) as probe:
                    if not probe.connect_ex(("127.0.0.1", port)):
                        break
                time.sleep(0.05)
            make(f"http://127.0.0.1:{port}", BUCKET)
            with proxy(port, google=True) as state:
                yield state
        finally:
            server.kill()


def make(server: str, bucket: str) -> None:
    """Create a bucket in fake-gcs-server."""
    _ask(f"{server}/storage/v1/b?project=test", "POST", json.dumps({"name": bucket}).encode())


def _ask(url: str, method: str, body: bytes = b"") -> None:
    headers = {"Content-Type": "application/json"} if body else {}
    asked = urllib.request.Request(url, method=method, data=body, headers=headers)
    # Ignore the proxy settings of this machine: the server is local.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(asked, timeout=PATIENCE) as answer:
        answer.read()
