"""Folders of others: a command writes only into the folder that the user names."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
from tests.factories.command_line import accept
from tests.factories.keys import sign_evidence, write_keys
from tests.promises import pool
from tests.promises.pool import Kind, PooledRun

from accept.config.resources import demo
from accept.core import evidence
from accept.core.errors import BadEvidence, BadInput
from accept.core.runner.keys import new_keys
from accept.evidence import archive, rundir

pytestmark = pytest.mark.usefixtures("runs")


@pytest.fixture(scope="module")
def key(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_keys(tmp_path_factory.mktemp("key"), new_keys("mallory"))


def use(sent: Path, key: Path) -> None:
    """Call every command that writes something about evidence that somebody sent, or into it."""
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


ABOUT = "sent-report"
#: Whether the links replace files, the folder of reports or folders in it, and their target.
LINKS: dict[str, tuple[Callable[[str, bytes | None], bool], str]] = {
    "files to a file": (lambda name, content: content is not None, "authorized_keys"),
    "files to a new file": (lambda name, content: content is not None, "new"),
    "folders to a folder": (lambda name, content: content is None and name != ABOUT, "."),
    "the folder to a folder": (lambda name, content: name == ABOUT, "."),
}


@pytest.mark.parametrize("run", pool.runs(Kind.EVIDENCE))
def test_nothing_is_written_beside_evidence_of_others_or_through_a_link(
    run: PooledRun, key: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    outside, working = tmp_path / "outside", tmp_path / "working"
    outside.mkdir()
    working.mkdir()
    monkeypatch.chdir(working)
    (outside / "authorized_keys").write_text("mine\n")
    expected = contents(outside)
    sent = tmp_path / "sent"
    shutil.copytree(run.folder, sent / "evidence")
    before = contents(sent)
    accept("judge", sent / "evidence")
    assert (contents(sent), contents(working)) == (before, {}), "`judge` only reads"
    use(sent, key)
    signature = {f"evidence/{evidence.USER_SIGNATURE}"}
    assert {name for name, _ in contents(sent).items() ^ before.items()} <= signature
    written = contents(working)
    about = {"verdict.json", "report.html", "nodes", "nodes/bad.txt"}
    assert {f"{ABOUT}/{name}" for name in about} <= written.keys()
    for kind, (is_place, target) in LINKS.items():
        shutil.rmtree(working)
        working.mkdir()
        monkeypatch.chdir(working)
        places = [working / name for name, content in written.items() if is_place(name, content)]
        for place in (*places, *(sent / name for name in signature if is_place(name, b""))):
            for link in (place, place.with_name(f"{place.name}.new")):
                link.parent.mkdir(parents=True, exist_ok=True)
                link.unlink(missing_ok=True)
                link.symlink_to(outside / target)
        use(sent, key)
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


def unpack_demo(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    archive.unpack_evidence(demo(), folder / "evidence", source="demo")


def bad_nodes(run: str | Path) -> str:
    """Return the nodes that a run accuses, or the code of an error; gpu17 is that of the demo."""
    done = accept("show", "nodes", run, "--bad")
    return done.out.strip() or str(done.error)


def test_a_run_is_not_mistaken_for_a_file_of_its_name(working: Path, runs: Path) -> None:
    unpack_demo(runs / "one")
    (working / "one").write_text("x")
    assert bad_nodes("one") == "gpu17"
    assert bad_nodes("./one") != "gpu17"
    assert accept("verify", "one").out.startswith("demo: ")


def test_no_file_in_the_evidence_of_a_run_makes_it_a_series(working: Path, runs: Path) -> None:
    unpack_demo(working)
    (runs / "one" / "evidence").mkdir(parents=True)
    (runs / "one" / "evidence" / rundir.RUN).touch()
    assert bad_nodes("evidence") == "gpu17"


@pytest.mark.parametrize("folder", [".", "link"])
def test_the_next_steps_name_the_run_and_not_the_path_to_it(
    runs: Path, monkeypatch: pytest.MonkeyPatch, folder: str
) -> None:
    unpack_demo(runs / "one")
    (runs / "one" / "link").symlink_to(runs / "one")
    monkeypatch.chdir(runs / "one")
    assert " accept explain one gpu17 " in accept("judge", folder).out
