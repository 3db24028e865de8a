"""The positions of nodes in the network, from the run's folder or from the API server."""

from __future__ import annotations

import gzip
import json
import ssl
import subprocess
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest

from accept.core.facts import position_of
from accept.core.runner.positions import PACKED_POSITIONS, POSITIONS, read_positions

LABELS = ("block", "rack")


def written(folder: Path, **positions: str) -> Path:
    (folder / POSITIONS).write_text(json.dumps({"labels": LABELS, "positions": positions}))
    return folder


def test_a_position_needs_all_labels() -> None:
    assert position_of({"block": "b1", "rack": "r1", "other": "x"}, LABELS) == "b1/r1"
    for rack in ({}, {"rack": ""}, {"rack": "two words"}, {"rack": "r" * 300}):
        assert position_of({"block": "b1", **rack}, LABELS) == ""


def test_without_a_request_the_positions_are_those_of_the_folder(tmp_path: Path) -> None:
    assert read_positions(tmp_path, tmp_path) == ({}, "")
    assert read_positions(written(tmp_path), tmp_path / "no identity") == ({}, "")
    assert read_positions(written(tmp_path, n1="b1/r1"), tmp_path) == ({"n1": "b1/r1"}, "")


def test_an_invalid_file_and_a_missing_token_are_reported(tmp_path: Path) -> None:
    (tmp_path / POSITIONS).write_text("[")
    assert read_positions(tmp_path, tmp_path)[1]
    whole = gzip.compress(b'{"positions": {"n1": "b1/r1"}}')
    bomb = gzip.compress(b'{"positions": {"n1": "b1/r1"}' + b" " * (1 << 25) + b"}")
    changed = whole[:12] + b"x" + whole[13:]
    for damaged in (b"", whole[:-12], changed, bomb):
        (tmp_path / PACKED_POSITIONS).write_bytes(damaged)
        assert read_positions(tmp_path, tmp_path)[1]
    (tmp_path / PACKED_POSITIONS).unlink()
    assert read_positions(written(tmp_path), tmp_path)[1]


@pytest.fixture
def identity(tmp_path: Path) -> Path:
    """Return an identity as a pod has it, with a certificate for this machine."""
    folder = tmp_path / "identity"
    folder.mkdir()
    (folder / "token").write_text("secret\n")
    subject = ("-subj", "/CN=api", "-addext", "subjectAltName=IP:127.0.0.1")
    key = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")
    files = ("-keyout", folder / "key", "-out", folder / "ca.crt")
    subprocess.run(
        ["openssl", "req", "-x509", *key, *files, *subject], check=True, capture_output=True
    )
    return folder


def test_index_0_reads_the_labels_of_all_nodes_page_by_page(
    tmp_path: Path, identity: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = []

    class Api(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            url = urlsplit(self.path)
            page = parse_qs(url.query).get("continue", [""])[0]
            seen.append((url.path, page, self.headers["Authorization"]))
            name = "n2" if page else "n1"
            item = {"metadata": {"name": name, "labels": {"block": "b1", "rack": name}}}
            listed = {"items": [item], "metadata": {} if page else {"continue": "next"}}
            body = json.dumps(listed).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Print nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Api) as server:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(identity / "ca.crt", identity / "key")
        server.socket = context.wrap_socket(server.socket, server_side=True)
        monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "127.0.0.1")
        monkeypatch.setenv("KUBERNETES_SERVICE_PORT", str(server.server_port))
        threading.Thread(target=server.serve_forever, daemon=True).start()
        found = read_positions(written(tmp_path), identity)
        server.shutdown()
    assert found == ({"n1": "b1/n1", "n2": "b1/n2"}, "")
    pages = [("/api/v1/nodes", page, "Bearer secret") for page in ("", "next")]
    assert seen == pages
