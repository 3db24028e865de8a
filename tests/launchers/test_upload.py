"""Upload evidence to a folder or a bucket: complete, resumable, never over finished evidence."""

from __future__ import annotations

import json
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from tests.factories import sample_evidence
from tests.factories.clock import PATIENCE
from tests.factories.command_line import accept, refused
from tests.factories.upload import command, evidence_in, send

from accept.core.error_codes import Code
from accept.core.errors import BadEvidence
from accept.evidence import bucket


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return evidence_in(tmp_path)


@pytest.fixture
def place(tmp_path: Path) -> Path:
    (tmp_path / "bucket").mkdir()
    return tmp_path / "bucket"


def there(place: Path) -> set[str]:
    base = place / "runs" / "a1"
    return {p.relative_to(base).as_posix() for p in base.rglob("*") if p.is_file()}


def test_all_files_are_sent_and_a_manifest_comes_last(folder: Path, place: Path) -> None:
    done = send(folder, place)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("sent 3 of 3 files")
    names = {p.relative_to(folder).as_posix() for p in folder.rglob("*") if p.is_file()}
    assert there(place) == {*names, "MANIFEST.json"}
    manifest = json.loads((place / "runs" / "a1" / "MANIFEST.json").read_text())
    assert set(manifest["files"]) == names
    assert manifest["files"]["plan.json"]["size"] == 2
    assert {p.name for p in place.iterdir()} == {"runs"}


def test_others_may_read_what_is_sent_to_a_folder(folder: Path, place: Path) -> None:
    words = ["sh", "-c", 'umask 077 && exec "$@"', "sh", *command(folder, place)]
    subprocess.run(words, check=True, timeout=PATIENCE)
    sent = place / "runs" / "a1"
    modes = {path: path.stat().st_mode & 0o777 for path in (sent.parent, sent, *sent.rglob("*"))}
    assert len(modes) == 7
    assert {path for path, mode in modes.items() if mode != (0o644, 0o755)[path.is_dir()]} == set()


def test_a_partial_upload_is_resumed_with_the_remaining_files(folder: Path, place: Path) -> None:
    assert send(folder, place, "--partial").returncode == 0
    assert "MANIFEST.json" not in there(place)
    with (folder / "records.jsonl").open("a") as file:
        file.write("two\n")
    assert "sent 1 of 3 files, 8 bytes" in send(folder, place).stdout
    assert "sent 0 of 3 files" in send(folder, place).stdout


@pytest.mark.parametrize(
    ("end", "options", "status"),
    [
        ('{"interruption": ""}', (), 0),
        ('{"interruption": "the run was cancelled"}', (), 1),
        ('{"interruption": ""}', ("--partial",), 1),
    ],
)
def test_only_the_finished_evidence_of_a_full_run_shows_that_it_has_ended(
    folder: Path, place: Path, end: str, options: tuple[str, ...], status: int
) -> None:
    assert send(folder, place, "--has-ended").returncode == 1
    assert not list(place.iterdir())
    (folder / "run-end.json").write_text(end)
    assert send(folder, place, *options).returncode == 0
    assert send(folder, place, "--has-ended").returncode == status


def test_finished_evidence_is_not_overwritten(folder: Path, place: Path) -> None:
    send(folder, place)
    (folder / "records.jsonl").write_text("another\n")
    done = send(folder, place)
    assert done.returncode == 1
    assert "records.jsonl" in done.stderr
    assert (place / "runs" / "a1" / "records.jsonl").read_text() == "one\n"


def test_a_pods_log_may_come_after_the_end(folder: Path, place: Path, tmp_path: Path) -> None:
    send(folder, place)
    (tmp_path / "3.log").write_text("over\n")
    done = send(tmp_path / "3.log", place, "--partial", "--under", "pods")
    assert (done.returncode, done.stderr) == (0, "")
    assert "pods/3.log" in there(place)
    assert send(folder, place).returncode == 0


def test_two_senders_of_the_same_evidence_both_succeed(folder: Path, place: Path) -> None:
    with ThreadPoolExecutor() as pool:
        done = list(pool.map(lambda _: send(folder, place), range(2)))
    assert [each.returncode for each in done] == [0, 0], [each.stderr for each in done]


def test_a_temporary_folder_that_another_sender_removes_is_created_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "bucket").mkdir()
    place = bucket._object_store().Folder(tmp_path / "bucket" / "a1")
    removed: list[Path] = []
    opened = Path.open

    def late(path: Path, *args: Any, **options: Any) -> Any:
        """Another upload ends just before the first file is opened."""
        if not removed and path.parent == place.scratch:
            removed.append(path)
            place.close()
        return opened(path, *args, **options)

    monkeypatch.setattr(Path, "open", late)
    place.write("records.jsonl", b"one\n", new=True)
    assert removed
    assert (tmp_path / "bucket" / "a1" / "records.jsonl").read_bytes() == b"one\n"


@pytest.mark.parametrize(
    ("where", "expected"),
    [
        ("/nowhere/at/all", "is missing: create or mount it"),
        ("ftp://bucket", "is not a gs://, s3://, az://"),
        ("relative", "is not a gs://, s3://, az://"),
    ],
)
def test_an_invalid_place_is_reported_in_one_line(folder: Path, where: str, expected: str) -> None:
    done = send(folder, where)
    assert done.returncode == 1
    assert expected in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_nothing_to_send_is_an_error(tmp_path: Path, place: Path) -> None:
    (tmp_path / "empty").mkdir()
    done = send(tmp_path / "empty", place)
    assert (done.returncode, len(done.stderr.splitlines())) == (1, 1)


class TestFetch:
    def url(self, place: Path) -> str:
        return f"{place.as_uri()}/runs/a1"

    def test_unfinished_evidence_is_reported(
        self, folder: Path, place: Path, tmp_path: Path
    ) -> None:
        (folder / "SHA256SUMS").write_text("")
        send(folder, place, "--partial")
        assert not bucket.fetch(self.url(place), tmp_path / "fetched")
        # Without its sums it does not look complete.
        assert not (tmp_path / "fetched" / "SHA256SUMS").exists()
        with pytest.raises(BadEvidence) as error:
            bucket.fetch(self.url(place), tmp_path / "again", partial=False)
        assert error.value.code is Code.BUCKET_UNFINISHED
        shown = refused("verify", self.url(place), code=6, error=Code.BUCKET_UNFINISHED)
        assert f"{self.url(place)} was never finished" in shown

    def test_a_missing_file_is_named(self, folder: Path, place: Path, tmp_path: Path) -> None:
        send(folder, place)
        (place / "runs" / "a1" / "records.jsonl").unlink()
        with pytest.raises(BadEvidence) as error:
            bucket.fetch(self.url(place), tmp_path / "fetched")
        assert error.value.code is Code.EVIDENCE_CHANGED
        assert "records.jsonl" in error.value.message

    def test_a_place_without_evidence_is_an_error(self, place: Path, tmp_path: Path) -> None:
        with pytest.raises(BadEvidence) as error:
            bucket.fetch(self.url(place), tmp_path / "fetched")
        assert error.value.code is Code.BUCKET_NO_EVIDENCE


@pytest.mark.real
def test_a_run_is_judged_from_where_it_was_sent(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ACCEPT_RUNS", str(tmp_path / "runs"))
    (tmp_path / "site.yaml").write_text(f"results: {{location: '{place.as_uri()}'}}\n")
    (tmp_path / "suite.yaml").write_text("name: s\ndescription: d\nchecks: [check: connectivity]\n")
    words = ["run", "-m", "cpu", "--site", str(tmp_path / "site.yaml"), "--attempt", "mine"]
    ran = accept(*words, "--suite", str(tmp_path / "suite.yaml"), "--json")
    assert ran.code == 0, ran.err
    url = f"{place.as_uri()}/runs/mine"
    assert f"sent to {url}" in ran.err
    judged = accept("judge", url, "--json")
    # The verdict is the same; `judge` also has the figures.
    full = json.loads(judged.out)
    assert (judged.code, {**full, **json.loads(ran.out)}) == (0, full)
    monkeypatch.setenv("ACCEPT_RUNS", str(tmp_path / "others"))
    assert accept("collect", url).code == 0
    assert accept("judge", "last").code == 0
    assert accept("collect", url).error == Code.ATTEMPT_EXISTS
    refused("judge", f"{place.as_uri()}/runs/other", code=6, error=Code.BUCKET_NO_EVIDENCE)


def test_the_runs_of_a_place_are_found_from_urls_above_and_below_it(
    place: Path, runs: Path, tmp_path: Path
) -> None:
    url = f"{place.as_uri()}/runs/mine"
    whole = sample_evidence.write(tmp_path / "whole")
    assert bucket.send(whole, place.as_uri(), attempt="mine") == ""
    for other in ("", "/runs", "/runs/other"):
        away = f"{place.as_uri()}{other}"
        shown = refused("judge", away, code=6, error=Code.BUCKET_NO_EVIDENCE)
        assert f"accept list runs {place.as_uri()}\n" in shown
        assert url in accept("list", "runs", away, "--json").out
    assert "results.location" in accept("list", "runs", place.parent.as_uri()).out
    assert accept("collect", url).code == 0
    assert "accept judge mine;" in refused("collect", url, error=Code.ATTEMPT_EXISTS)


@pytest.mark.real
def test_an_unusable_place_keeps_the_verdict_and_shows_how_to_send_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ACCEPT_RUNS", str(tmp_path / "runs"))
    place = tmp_path / "later"
    (tmp_path / "site.yaml").write_text(f"results: {{location: '{place}'}}\n")
    (tmp_path / "suite.yaml").write_text("name: s\ndescription: d\nchecks: [check: connectivity]\n")
    words = ["run", "-m", "cpu", "--site", str(tmp_path / "site.yaml"), "--attempt", "mine"]
    ran = accept(*words, "--suite", str(tmp_path / "suite.yaml"))
    assert ran.code == 0, ran.err
    assert f"not sent to {place}/runs/mine" in ran.err
    assert "again: accept collect mine" in ran.err
    place.mkdir()
    again = accept("collect", "mine")
    assert (again.code, f"sent to {place}/runs/mine" in again.err) == (0, True)
    assert (place / "runs" / "mine" / "MANIFEST.json").is_file()


def test_the_report_of_a_run_is_written_to_its_place(
    tmp_path: Path, place: Path, working: Path
) -> None:
    folder = sample_evidence.write(tmp_path / "evidence", plan=sample_evidence.PLAN)
    send(folder, place)
    url = f"{place.as_uri()}/runs/a1"
    done = accept("report", url)
    assert (done.code, done.out) == (0, f"{url}/report.html\n")
    accept("report", folder)
    own = working / f"{tmp_path.name}-report" / "report.html"
    assert (place / "runs/a1/report.html").read_bytes() == own.read_bytes()
    assert accept("judge", url).code == 0
    assert send(folder, place).returncode == 0


def test_a_report_that_cannot_be_written_to_its_place_is_refused(
    tmp_path: Path, place: Path
) -> None:
    folder = sample_evidence.write(tmp_path / "evidence")
    send(folder, place)
    (place / "runs/a1/report.html").mkdir()
    refused("report", f"{place.as_uri()}/runs/a1", code=2, error=Code.OUTPUT_WRITE)
