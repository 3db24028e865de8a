"""Folders of others: a command writes only into the folder that the user names."""

from __future__ import annotations

import json
import shutil
from contextlib import suppress
from pathlib import Path

import pytest
from tests.factories.command_line import accept
from tests.factories.keys import sign_evidence, write_keys
from tests.promises import pool
from tests.promises.pool import Kind, PooledRun

from accept.backends.keys import new_keys
from accept.core import evidence
from accept.core.errors import BadEvidence, BadInput

pytestmark = pytest.mark.usefixtures("runs")


@pytest.fixture(scope="module")
def key(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_keys(tmp_path_factory.mktemp("key"), new_keys("mallory"))


def use(sent: Path, key: Path) -> None:
    """Call every command that writes something beside or into evidence that somebody sent."""
    folder = sent / "evidence"
    accept("judge", folder)
    accept("report", folder)
    with suppress(BadInput, BadEvidence, OSError):
        sign_evidence(folder, key, evidence.USER_SIGNATURE)
    bad = json.loads(accept("show", "nodes", folder, "--json").out or "{}").get("bad", [])
    for subject in (*bad[:1], "--fabric"):
        for redact in ((), ("--redact",)):
            accept("ticket", folder, subject, *redact)


def contents(folder: Path) -> dict[str, bytes | None]:
    """Return the content of each file below a folder; None for folders."""
    paths = {path.relative_to(folder).as_posix(): path for path in folder.rglob("*")}
    return {name: path.read_bytes() if path.is_file() else None for name, path in paths.items()}


#: The place of the links, and their target.
LINKS = {
    "files to a file": (True, "authorized_keys"),
    "files to a new file": (True, "new"),
    "folders to a folder": (False, "."),
}


@pytest.mark.parametrize("run", pool.runs(Kind.EVIDENCE))
def test_no_command_writes_through_a_link(run: PooledRun, key: Path, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "authorized_keys").write_text("mine\n")
    expected = contents(outside)
    honest = tmp_path / "honest"
    shutil.copytree(run.folder, honest / "evidence")
    before = contents(honest)
    accept("judge", honest / "evidence")
    assert contents(honest) == before, "`judge` only reads"
    use(honest, key)
    after = contents(honest)
    written = {name for name, content in after.items() if before.get(name, ...) != content}
    assert {"report.html", "nodes", "nodes/bad.txt"} <= written
    for kind, (of_files, target) in LINKS.items():
        hostile = tmp_path / kind
        shutil.copytree(run.folder, hostile / "evidence")
        # Every place that the commands write to, and the file that older versions wrote first.
        for name in written:
            if (after[name] is not None) == of_files:
                for place in (hostile / name, hostile / f"{name}.new"):
                    place.parent.mkdir(exist_ok=True)
                    place.unlink(missing_ok=True)
                    place.symlink_to(outside / target)
        use(hostile, key)
        assert contents(outside) == expected, kind


def test_a_folder_of_evidence_that_is_a_link_is_not_used(tmp_path: Path) -> None:
    run = pool.runs(Kind.EVIDENCE)[0]
    outside = shutil.copytree(run.folder, tmp_path / "outside")
    before = contents(outside)
    sent = tmp_path / "sent"
    sent.mkdir()
    (sent / "evidence").symlink_to(outside)
    for command in ("judge", "report"):
        assert accept(command, sent).code == 6
    assert contents(outside) == before
