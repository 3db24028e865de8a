"""Evidence in buckets, through obstore: moto as S3, and a stand-in for Google's."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.cluster.kube.build import cache
from tests.factories import buckets, sample_evidence
from tests.factories.buckets import BUCKET, Proxy
from tests.factories.clock import PATIENCE
from tests.factories.command_line import accept
from tests.factories.upload import command, evidence_in, send

from accept.core.error_codes import Code
from accept.core.errors import BadEvidence, NotStarted
from accept.evidence import bucket

pytest.importorskip("obstore", reason="the extra `storage` is not installed")


@pytest.fixture(scope="module", params=["s3", "gs"])
def server(request: pytest.FixtureRequest) -> Iterator[Proxy]:
    if request.param == "s3":
        with buckets.s3() as found:
            yield found
        return
    built = sorted((cache() / "bin").glob("fake-gcs-server-*"))
    if not built:
        pytest.skip("fake-gcs-server is not built: python -m tests.cluster.kube.build")
    with buckets.gs(built[-1]) as found:
        yield found


@pytest.fixture
def place(
    server: Proxy, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> Iterator[str]:
    """Return a URL for this test only."""
    for name in [n for n in os.environ if n.startswith(("AWS_", "GOOGLE_"))]:
        monkeypatch.delenv(name)
    for name, value in server.environment().items():
        monkeypatch.setenv(name, value)
    server.written.clear()
    server.down = False
    scheme = "gs" if server.google else "s3"
    yield f"{scheme}://{BUCKET}/{abs(hash(request.node.name))}"
    server.down = False


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return evidence_in(tmp_path)


def names(server: Proxy) -> list[str]:
    return [name.partition("/runs/a1/")[2] for name in server.written]


def test_all_files_arrive_and_the_manifest_last(
    folder: Path, place: str, server: Proxy, tmp_path: Path
) -> None:
    done = send(folder, place)
    assert (done.returncode, done.stderr) == (0, "")
    assert names(server)[-1] == "MANIFEST.json"
    assert len(names(server)) == 4
    assert bucket.fetch(f"{place}/runs/a1", tmp_path / "fetched")
    for path in (p for p in folder.rglob("*") if p.is_file()):
        assert (tmp_path / "fetched" / path.relative_to(folder)).read_bytes() == path.read_bytes()


def test_objects_have_types_with_which_a_browser_shows_them(folder: Path, place: str) -> None:
    import obstore
    from obstore.store import from_url

    (folder / "report.html").write_text("<p>hello")
    assert send(folder, place).returncode == 0
    options: Any = {"allow_http": True}
    store = from_url(f"{place}/runs/a1", client_options=options)
    types = {
        one["path"]: obstore.get(store, one["path"]).attributes["Content-Type"]
        for one in obstore.list(store).collect()
    }
    assert types["report.html"].startswith("text/html")
    assert types["MANIFEST.json"] == "application/json"
    assert {kind for name, kind in types.items() if name.endswith((".log", ".jsonl"))} == {
        "text/plain; charset=utf-8"
    }


def test_a_report_is_added_to_finished_evidence_and_replaced(
    folder: Path, place: str, server: Proxy, tmp_path: Path
) -> None:
    assert send(folder, place).returncode == 0
    for text in ("<p>one", "<p>two"):
        (tmp_path / "report.html").write_text(text)
        error = bucket.send(tmp_path / "report.html", place, attempt="a1", partial=True)
        assert error == ""
    assert bucket.fetch(f"{place}/runs/a1", tmp_path / "fetched", partial=False)
    assert (tmp_path / "fetched" / "report.html").read_text() == "<p>two"
    (tmp_path / "records.jsonl").write_text("changed\n")
    assert bucket.send(tmp_path / "records.jsonl", place, attempt="a1", partial=True) != ""


def test_the_runs_of_a_bucket_are_listed_with_their_verdicts(
    folder: Path, place: str, tmp_path: Path
) -> None:
    assert bucket.runs_at(place) == ()
    assert send(folder, place, "--partial").returncode == 0
    whole = sample_evidence.write(tmp_path / "whole")
    assert bucket.send(whole, place, attempt="a2") == ""
    one, two = bucket.runs_at(place)
    assert (one.name, one.verdict, one.finished) == ("a1", None, False)
    assert (two.name, two.finished) == ("a2", True)
    assert two.verdict is not None
    assert two.verdict.headline
    listed = json.loads(accept("list", "runs", place, "--json").out)["runs"]
    assert [run["name"] for run in listed] == ["a2", "a1"]
    assert listed[0]["folder"] == f"{place}/runs/a2"


def test_a_resumed_upload_writes_the_rest_only(folder: Path, place: str, server: Proxy) -> None:
    assert send(folder, place, "--partial").returncode == 0
    server.written.clear()
    (folder / "logs" / "new.log").write_text("new\n")
    assert send(folder, place).returncode == 0
    assert names(server) == ["logs/new.log", "MANIFEST.json"]
    server.written.clear()
    assert send(folder, place).returncode == 0
    assert names(server) == []


def test_finished_evidence_is_not_overwritten(folder: Path, place: str, server: Proxy) -> None:
    assert send(folder, place).returncode == 0
    server.written.clear()
    (folder / "records.jsonl").write_text("two\n")
    done = send(folder, place)
    assert (done.returncode, len(done.stderr.splitlines())) == (1, 1)
    assert "nothing was overwritten" in done.stderr
    assert names(server) == []


def test_an_upload_to_a_bucket_that_was_down_can_be_resumed(
    folder: Path, place: str, server: Proxy
) -> None:
    server.down = True
    done = send(folder, place, "--seconds", "6")
    assert (done.returncode, len(done.stderr.splitlines())) == (1, 1)
    assert "send again" in done.stderr
    # More than one try.
    assert server.refused > 1
    server.down = False
    assert send(folder, place).returncode == 0


def test_an_upload_waits_for_a_bucket_that_comes_back(
    folder: Path, place: str, server: Proxy
) -> None:
    server.down, before = True, server.refused
    with subprocess.Popen(command(folder, place), stdout=subprocess.PIPE, text=True) as running:
        while server.refused == before:
            assert running.poll() is None
        server.down = False
        out, _ = running.communicate(timeout=PATIENCE)
    assert (running.returncode, out[:16]) == (0, "sent 3 of 3 file")


def test_a_missing_bucket_is_reported_at_once(folder: Path, place: str, server: Proxy) -> None:
    scheme = place.partition(":")[0]
    done = send(folder, f"{scheme}://nobody-made-this/x")
    assert (done.returncode, len(done.stderr.splitlines())) == (1, 1)
    assert "make the bucket" in done.stderr
    judged = accept("judge", f"{scheme}://nobody-made-this/x")
    assert (judged.code, judged.error) == (6, Code.BUCKET_UNREADABLE)


def test_denied_access_is_reported(
    place: str, server: Proxy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    places = bucket._object_store()

    class PermissionDeniedError(Exception):
        pass

    def no(self: object) -> object:
        raise PermissionDeniedError("403")

    monkeypatch.setattr(places.Bucket, "look", no)
    with pytest.raises(BadEvidence) as error:
        bucket.fetch(f"{place}/runs/a1", tmp_path / "fetched")
    assert error.value.code is Code.BUCKET_UNREADABLE


def test_invalid_credentials_are_reported_in_one_line(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GOOGLE_SERVICE_ACCOUNT_KEY", "no key at all")
    done = send(folder, f"gs://{BUCKET}/x")
    assert (done.returncode, len(done.stderr.splitlines())) == (1, 1)
    assert "check its address and credentials" in done.stderr
    assert "no key at all" not in done.stderr
    assert accept("judge", f"gs://{BUCKET}/x").error == Code.BUCKET_UNREADABLE


@pytest.mark.parametrize(
    ("url", "environment", "login"),
    [
        ("s3://b/x", {"AWS_METADATA_ENDPOINT": "http://127.0.0.1:1"}, "aws sso login"),
        ("az://b/x", {}, "AZURE_STORAGE_ACCOUNT_NAME=ACCOUNT"),
        (
            "az://b/x",
            {"AZURE_STORAGE_ACCOUNT_NAME": "a", "AZURE_MSI_ENDPOINT": "http://127.0.0.1:1"},
            "az login",
        ),
    ],
)
def test_missing_credentials_are_named_soon_with_the_login(
    url: str, environment: dict[str, str], login: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [n for n in os.environ if n.startswith(("AWS_", "AZURE_"))]:
        monkeypatch.delenv(name)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    waits: list[float] = []
    monkeypatch.setattr(bucket._object_store().time, "sleep", waits.append)
    done = accept("judge", url)
    assert done.error == Code.BUCKET_UNREADABLE
    assert login in done.err
    assert len(waits) < 3


def test_missing_certificate_authorities_are_reported(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("SSL_CERT_DIR", str(tmp_path / "nowhere"))
    done = send(folder, f"s3://{BUCKET}/x")
    assert (done.returncode, len(done.stderr.splitlines())) == (1, 1)
    assert "no certificate authorities here; install ca-certificates" in done.stderr


def test_an_object_that_grows_while_it_is_read_is_refused(
    folder: Path, place: str, server: Proxy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert send(folder, place, "--partial").returncode == 0
    endless = iter(lambda: b"x" * 1000, None)
    monkeypatch.setattr(bucket._object_store().Bucket, "read", lambda _, name: endless)
    monkeypatch.setattr(bucket._object_store(), "manifest_in", lambda _: None)
    with pytest.raises(BadEvidence) as error:
        bucket.fetch(f"{place}/runs/a1", tmp_path / "fetched")
    assert error.value.code is Code.EVIDENCE_CHANGED


@pytest.mark.parametrize(
    "names", [("../../x",), ("logs", "logs/10-script/0-0.log"), ("n" * 256,), (".",)]
)
def test_names_that_no_folder_can_have_are_refused(
    names: tuple[str, ...],
    folder: Path,
    place: str,
    server: Proxy,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    objects = dict.fromkeys(names, (1, ""))
    monkeypatch.setattr(bucket._object_store().Bucket, "look", lambda _: objects)
    with pytest.raises(BadEvidence) as error:
        bucket.fetch(f"{place}/runs/a1", tmp_path / "fetched")
    assert error.value.code is Code.BUCKET_UNSAFE
    assert [p.name for p in tmp_path.iterdir()] == ["evidence"]


def test_unfinished_evidence_is_never_judged(folder: Path, place: str) -> None:
    assert send(folder, place, "--partial").returncode == 0
    done = accept("judge", f"{place}/runs/a1")
    assert (done.code, done.error) == (6, Code.BUCKET_UNFINISHED)


def test_a_file_that_was_changed_later_is_named(folder: Path, place: str, tmp_path: Path) -> None:
    import obstore
    from obstore.store import from_url

    assert send(folder, place).returncode == 0
    options = {"allow_http": True}
    store = from_url(f"{place}/runs/a1", client_options=options)
    obstore.put(store, "records.jsonl", b"two\n", mode="overwrite", use_multipart=False)
    with pytest.raises(BadEvidence, match=r"records\.jsonl") as error:
        bucket.fetch(f"{place}/runs/a1", tmp_path / "fetched")
    assert error.value.code is Code.EVIDENCE_CHANGED


def test_a_missing_extra_is_named(
    place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "obstore", None)
    with pytest.raises(NotStarted) as raised:
        bucket.fetch(f"{place}/runs/a1", tmp_path / "fetched")
    assert raised.value.code is Code.BUCKET_LIBRARY
    assert "[storage]'" in raised.value.hint


def test_the_key_of_the_test_server_is_not_a_secret() -> None:
    key = json.loads(buckets.google("http://127.0.0.1:1")["GOOGLE_SERVICE_ACCOUNT_KEY"])
    assert key["private_key"] == ""


class TestReach:
    def test_if_it_can_be_listed(self, place: str) -> None:
        assert bucket.reach(place) == (True, "")

    def test_not_if_it_does_not_exist(self, place: str) -> None:
        there, why = bucket.reach(f"{place.partition('://')[0]}://nobodys-bucket/x")
        assert there is False
        assert "nobodys-bucket" in why

    def test_unknown_if_nothing_answers(
        self, place: str, server: Proxy, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(bucket, "_FIRST", 1.0)
        server.down = True
        there, why = bucket.reach(place)
        assert there is None
        assert why
        assert "send again" not in why
