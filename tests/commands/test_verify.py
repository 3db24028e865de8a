"""`accept verify`: evidence that is unmodified, signed, manipulated, or cannot be verified."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from tests.factories import sample_evidence
from tests.factories.command_line import accept, refused
from tests.factories.jobs import job_of, submitted
from tests.factories.keys import sign_evidence, write_keys

from accept import backends
from accept.core import evidence
from accept.core.error_codes import Code
from accept.core.errors import Exit
from accept.core.runner.keys import KeyPair, new_keys
from accept.core.verdict import Verification
from accept.evidence import bucket, rundir

Change = Callable[[Path], None]


@pytest.fixture(scope="module")
def keys() -> tuple[KeyPair, KeyPair]:
    """Make the key of the run, and one of somebody else."""
    return new_keys("accept-run"), new_keys("mallory")


@pytest.fixture
def key(tmp_path: Path, keys: tuple[KeyPair, KeyPair]) -> Path:
    return write_keys(tmp_path, keys[0])


@pytest.fixture
def run(runs: Path, key: Path, keys: tuple[KeyPair, KeyPair]) -> Path:
    """Make the folder of a run of this workstation that was collected."""
    folder = runs / "one"
    written = sample_evidence.write(folder / rundir.EVIDENCE, plan=sample_evidence.PLAN)
    sign_evidence(written, key, evidence.RUN_SIGNATURE)
    (folder / rundir.RENDERED).mkdir()
    shutil.copy(written / evidence.PLAN, folder / rundir.RENDERED)
    job = job_of(
        folder, hosts=("h0",), signer=keys[0].public.strip(), evidence=evidence.root_hash(written)
    )
    return submitted(folder, job)


def elsewhere(run: Path, tmp_path: Path) -> Path:
    """Copy the evidence to a place without any other files of the run."""
    copy = tmp_path / "mail" / rundir.EVIDENCE
    shutil.copytree(run / rundir.EVIDENCE, copy)
    shutil.rmtree(run)
    return copy


def outcome(*args: object, code: int = Exit.PASS) -> Verification:
    done = accept("verify", *args, "--json")
    assert done.code == code, done.err
    return Verification(json.loads(done.out)["outcome"])


def edit_log(folder: Path) -> None:
    (log,) = (folder / evidence.LOGS).rglob("*.log")
    log.write_text(log.read_text().replace("7.5", "9.5"))


def edit_plan(folder: Path) -> None:
    path = folder / evidence.PLAN
    path.write_text(path.read_text().replace('"cpu"', '"a4-highgpu-8g"'))
    assert "a4-highgpu-8g" in path.read_text()


def edit_end(folder: Path) -> None:
    evidence.write_run_end(folder, "the run was cancelled")


def add_file(folder: Path) -> None:
    (folder / evidence.LOGS / "more.log").write_text("speed 9\n")


def remove_log(folder: Path) -> None:
    (log,) = (folder / evidence.LOGS).rglob("*.log")
    log.unlink()


CHANGES = (edit_log, edit_plan, edit_end, add_file, remove_log)


def forged(change: Change) -> Change:
    """Return a change that also writes new checksums, as somebody does who wants to hide it."""

    def both(folder: Path) -> None:
        change(folder)
        evidence.write_checksums(folder)

    return both


def unsigned(change: Change) -> Change:
    """Return a change that also writes new checksums and removes the signature."""

    def all_three(folder: Path) -> None:
        forged(change)(folder)
        (folder / evidence.RUN_SIGNATURE).unlink()

    return all_three


class TestUnmodified:
    def test_is_signed_by_the_key_of_its_run(self, run: Path) -> None:
        assert outcome("last") is Verification.SIGNED
        assert outcome(run / rundir.EVIDENCE) is Verification.SIGNED

    def test_is_what_was_fetched_if_the_key_of_its_run_is_not_known(self, run: Path) -> None:
        submitted(run, replace(backends.load_job(run), signer=""))
        assert outcome("last") is Verification.UNMODIFIED

    def test_of_another_workstation_is_not_verifiable_without_a_key(
        self, run: Path, tmp_path: Path, key: Path
    ) -> None:
        copy = elsewhere(run, tmp_path)
        assert outcome(copy, code=Exit.INCONCLUSIVE) is Verification.NOT_VERIFIABLE
        assert outcome(copy, "--public-key", key.with_suffix(".pub")) is Verification.SIGNED

    def test_in_an_archive_is_compared_with_what_was_fetched(
        self, run: Path, tmp_path: Path
    ) -> None:
        sent = sample_evidence.archive(run / rundir.EVIDENCE, tmp_path / "sent.tar")
        assert outcome(sent) is Verification.SIGNED

    def test_stays_so_when_a_judgement_replaces_the_reports(self, run: Path) -> None:
        (run / rundir.EVIDENCE / evidence.VERDICT).write_text("{}")
        (run / rundir.EVIDENCE / evidence.REPORT).unlink()
        assert outcome("last") is Verification.SIGNED

    def test_can_be_signed_by_its_user(
        self, run: Path, tmp_path: Path, keys: tuple[KeyPair, KeyPair]
    ) -> None:
        own = write_keys(tmp_path, keys[1], "own")
        assert outcome("last", "--sign", own) is Verification.SIGNED
        copy = elsewhere(run, tmp_path)
        done = accept("verify", copy, "--public-key", own.with_suffix(".pub"), "--json")
        assert json.loads(done.out)["signedBy"] == ["mallory"]


class TestManipulated:
    @pytest.mark.parametrize("change", CHANGES)
    def test_is_refused_if_a_file_differs_from_its_checksum(
        self, run: Path, change: Change
    ) -> None:
        change(run / rundir.EVIDENCE)
        refused("verify", "last", code=Exit.INCOMPLETE, error=Code.EVIDENCE_CHANGED)

    @pytest.mark.parametrize("hide", [forged, unsigned])
    @pytest.mark.parametrize("change", CHANGES)
    def test_is_refused_with_new_checksums_too(
        self, run: Path, change: Change, hide: Callable[[Change], Change]
    ) -> None:
        hide(change)(run / rundir.EVIDENCE)
        of_plan = change is edit_plan
        code = Code.EVIDENCE_PLAN_CHANGED if of_plan else Code.EVIDENCE_CHANGED
        refused("verify", "last", code=Exit.INCOMPLETE, error=code)
        refused("judge", "last", code=Exit.INCOMPLETE, error=code)

    @pytest.mark.parametrize("hide", [forged, unsigned])
    def test_in_a_bucket_is_refused_by_the_workstation_that_started_the_run(
        self, run: Path, tmp_path: Path, hide: Callable[[Change], Change]
    ) -> None:
        copy = shutil.copytree(run / rundir.EVIDENCE, tmp_path / "copy")
        hide(edit_log)(copy)
        (tmp_path / "bucket").mkdir()
        place = f"file://{tmp_path}/bucket"
        assert bucket.send(copy, place, attempt="a1") == ""
        for command in ("verify", "judge"):
            sent = f"{place}/runs/a1"
            refused(command, sent, code=Exit.INCOMPLETE, error=Code.EVIDENCE_CHANGED)

    @pytest.mark.parametrize("hide", [forged, unsigned])
    def test_elsewhere_is_refused_with_the_key_of_the_run(
        self, run: Path, tmp_path: Path, key: Path, hide: Callable[[Change], Change]
    ) -> None:
        copy = elsewhere(run, tmp_path)
        hide(edit_log)(copy)
        public = ("--public-key", key.with_suffix(".pub"))
        refused("verify", copy, *public, code=Exit.INCOMPLETE, error=Code.EVIDENCE_SIGNATURE)

    def test_is_refused_if_somebody_else_signed_it(
        self, run: Path, tmp_path: Path, key: Path, keys: tuple[KeyPair, KeyPair]
    ) -> None:
        copy = elsewhere(run, tmp_path)
        forged(edit_log)(copy)
        sign_evidence(copy, write_keys(tmp_path, keys[1], "other"), evidence.RUN_SIGNATURE)
        public = ("--public-key", key.with_suffix(".pub"))
        refused("verify", copy, *public, code=Exit.INCOMPLETE, error=Code.EVIDENCE_SIGNATURE)


class TestBadInput:
    @pytest.mark.parametrize(
        ("option", "name", "code"),
        [
            ("--public-key", "no", Code.PUBLIC_KEY),
            ("--public-key", "missing", Code.PUBLIC_KEY),
            ("--sign", "no", Code.SIGNING_FAILED),
        ],
    )
    def test_of_a_file_without_keys(
        self, run: Path, tmp_path: Path, option: str, name: str, code: Code
    ) -> None:
        (tmp_path / "no").write_text("nothing\n")
        refused("verify", "last", option, tmp_path / name, error=code)

    def test_of_evidence_to_sign_that_nobody_vouches_for(
        self, run: Path, tmp_path: Path, key: Path
    ) -> None:
        copy = elsewhere(run, tmp_path)
        refused("verify", copy, "--sign", key, error=Code.SIGNING_FAILED)
        assert not (copy / evidence.USER_SIGNATURE).exists()

    def test_of_a_folder_without_evidence_or_checksums(self, run: Path, tmp_path: Path) -> None:
        (tmp_path / "empty").mkdir()
        refused("verify", tmp_path / "empty", error=Code.EVIDENCE_NONE)
        (run / rundir.EVIDENCE / evidence.CHECKSUMS).unlink()
        refused("verify", "last", code=Exit.INCOMPLETE, error=Code.EVIDENCE_CHANGED)
