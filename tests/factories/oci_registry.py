"""A registry of OCI packages in memory, as far as `helm push` and `helm install` use one."""

from __future__ import annotations

import contextlib
import hashlib
import json
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlsplit


@dataclass(kw_only=True)
class OciRegistry:
    """A running registry."""

    port: int
    #: Blobs and manifests by digest: media type and content.
    stored: dict[str, tuple[str, bytes]] = field(default_factory=dict)
    #: Digests of manifests by `name:tag`.
    tags: dict[str, str] = field(default_factory=dict)

    def store(self, media_type: str, content: bytes) -> str:
        """Store content and return its digest."""
        digest = f"sha256:{hashlib.sha256(content).hexdigest()}"
        self.stored[digest] = (media_type, content)
        return digest


@contextlib.contextmanager
def oci_registry() -> Iterator[OciRegistry]:
    """Run a registry on a free port until the end of the block."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def _send(self, status: int, content: bytes = b"", **headers: str) -> None:
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name.replace("_", "-"), value)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(content)

        def _body(self) -> bytes:
            return self.rfile.read(int(self.headers.get("Content-Length") or 0))

        def do_GET(self) -> None:
            """Return a blob, a manifest, or the tags of a package."""
            path = urlsplit(self.path).path
            if path == "/v2/":
                return self._send(200)
            name, _, reference = path.removeprefix("/v2/").rpartition("/")
            name, _, kind = name.rpartition("/")
            if kind == "tags":
                own = [tag.removeprefix(f"{name}:") for tag in registry.tags if f"{name}:" in tag]
                return self._send(200, json.dumps({"name": name, "tags": own}).encode())
            digest = registry.tags.get(f"{name}:{reference}", reference)
            if digest not in registry.stored:
                return self._send(404, b'{"errors": [{"code": "MANIFEST_UNKNOWN"}]}')
            media_type, content = registry.stored[digest]
            return self._send(200, content, Content_Type=media_type, Docker_Content_Digest=digest)

        def do_HEAD(self) -> None:
            """Return only the head of the answer to GET."""
            self.do_GET()

        def do_POST(self) -> None:
            """Begin an upload: its content follows in one request."""
            self._send(202, Location=f"{urlsplit(self.path).path}upload")

        def do_PUT(self) -> None:
            """Store a blob, or a manifest under its tag."""
            path, body = urlsplit(self.path), self._body()
            digest = registry.store(self.headers.get("Content-Type", ""), body)
            name, kind, reference = path.path.removeprefix("/v2/").rsplit("/", 2)
            if kind == "manifests":
                registry.tags[f"{name}:{reference}"] = digest
            elif parse_qs(path.query)["digest"] != [digest]:
                return self._send(400, b'{"errors": [{"code": "DIGEST_INVALID"}]}')
            return self._send(201, Location=path.path, Docker_Content_Digest=digest)

        def log_message(self, *_: object) -> None:
            """Log nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    registry = OciRegistry(port=server.server_address[1])
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield registry
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
