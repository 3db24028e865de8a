"""The verdict does not depend on how evidence travelled."""

from __future__ import annotations

import json
import os
import shutil
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Literal

import pytest
from tests.factories.command_line import accept
from tests.promises import pool
from tests.promises.pool import Kind, PooledRun

from accept.commands.judged import judge_path
from accept.core import evidence
from accept.core.error_codes import Code
from accept.core.errors import BadEvidence
from accept.core.serde import dump
from accept.evidence import bucket

pytestmark = pytest.mark.usefixtures("runs")


def tar(folder: Path, scratch: Path) -> Path:
    return _tar(folder, scratch / "evidence.tar", "w")


def tar_gz(folder: Path, scratch: Path) -> Path:
    return _tar(folder, scratch / "evidence.tar.gz", "w:gz")


def tar_xz(folder: Path, scratch: Path) -> Path:
    return _tar(folder, scratch / "evidence.tar.xz", "w:xz")


def _tar(folder: Path, target: Path, mode: Literal["w", "w:gz", "w:xz"]) -> Path:
    with tarfile.open(target, mode) as packed:
        packed.add(folder, arcname="evidence")
    return target


def zipped(folder: Path, scratch: Path) -> Path:
    return _zip(folder, scratch / "evidence.zip", Path("evidence"))


def zip_without_a_folder(folder: Path, scratch: Path) -> Path:
    return _zip(folder, scratch / "evidence.zip", Path())


def _zip(folder: Path, target: Path, inner: Path) -> Path:
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as packed:
        for path in sorted(folder.rglob("*")):
            packed.write(path, inner / path.relative_to(folder))
    return target


def archive_in_archive(folder: Path, scratch: Path) -> Path:
    target = scratch / "ticket.zip"
    with zipfile.ZipFile(target, "w") as packed:
        packed.write(tar_gz(folder, scratch), "from-customer/evidence.tar.gz")
    return target


def one_folder_deeper(folder: Path, scratch: Path) -> Path:
    shutil.copytree(folder, scratch / "sent" / "by" / folder.name)
    return scratch / "sent"


def renamed_folder(folder: Path, scratch: Path) -> Path:
    return shutil.copytree(folder, scratch / "monday")


def other_times_and_owners(folder: Path, scratch: Path) -> Path:
    target = shutil.copytree(folder, scratch / "evidence")
    for number, path in enumerate(sorted(target.rglob("*"))):
        os.utime(path, (number * 86400, number * 86400))
        path.chmod(0o555 if path.is_dir() else 0o444)
        if os.geteuid() == 0:
            os.chown(path, 12345, 54321)
    return target


def bucket_of_files(folder: Path, scratch: Path) -> str:
    pytest.importorskip("obstore", reason="the extra `storage` is not installed")
    url = (scratch / "bucket").as_uri()
    (scratch / "bucket").mkdir()
    assert bucket.send(folder, url, attempt="sent") == ""
    return f"{url}/runs/sent"


def log_of_the_first_pod(folder: Path, scratch: Path) -> Path:
    plan, records = evidence.read_plan(folder), tuple(evidence.read_records(folder))
    if dump(plan) != json.loads((folder / "plan.json").read_text()):
        pytest.skip("an older version rendered its plan, and only pods of that version pack it")
    packed = evidence.pack(plan, records, judge_path(str(folder)).verdict)
    lines = f"10-inventory starts\n{packed}VERDICT\n".splitlines()
    log = scratch / "pod.log"
    # As `kubectl logs --timestamps --prefix` prints them.
    log.write_text("".join(f"[pod/run-0/accept] 2026-11-22T15:01:28Z {line}\n" for line in lines))
    try:
        evidence.unpack(packed.encode().splitlines(), "the log")
    except BadEvidence as error:
        if error.code is not Code.EVIDENCE_TOO_LARGE_FOR_LOG:
            raise
        pytest.skip("its records are too many for the log of a pod")
    return log


WAYS: list[Callable[[Path, Path], Path | str]] = [
    tar,
    tar_gz,
    tar_xz,
    zipped,
    zip_without_a_folder,
    archive_in_archive,
    one_folder_deeper,
    renamed_folder,
    other_times_and_owners,
    bucket_of_files,
    log_of_the_first_pod,
]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("run", pool.runs(Kind.EVIDENCE))
def test_evidence_has_the_same_verdict_however_it_was_sent(
    run: PooledRun, way: Callable[[Path, Path], Path | str], tmp_path: Path
) -> None:
    expected = accept("judge", run.folder, *run.options, "--json")
    found = accept("judge", way(run.folder, tmp_path), *run.options, "--json")
    assert (found.out, found.code) == (expected.out, expected.code)
    assert expected.out.startswith("{")


def tar_of_logs(folder: Path, target: Path) -> None:
    with tarfile.open(target, "w:gz") as packed:
        for path in sorted(folder.iterdir()):
            packed.add(path, arcname=path.name)


def zip_of_logs(folder: Path, target: Path) -> None:
    _zip(folder, target, Path())


@pytest.mark.parametrize("copy", [shutil.copytree, tar_of_logs, zip_of_logs])
@pytest.mark.parametrize("run", pool.runs(Kind.LOGS))
def test_logs_have_the_same_verdict_in_another_folder_or_an_archive(
    run: PooledRun, copy: Callable[[Path, Path], object], tmp_path: Path
) -> None:
    # The name of the path is the name of the run in the verdict.
    given = tmp_path / run.folder.name
    copy(run.folder, given)
    expected, found = (
        accept("judge", place, *run.options, "--json") for place in (run.folder, given)
    )
    assert (found.code, found.error) == (expected.code, expected.error)
    assert _relative(found.out, given) == _relative(expected.out, run.folder)


def _relative(output: str, place: Path) -> str:
    """Return output with the names of files below `place`, which may be an archive."""
    return output.replace(f"{place}/", "").replace(f"{place}:", "").replace(str(place), "logs")
