"""The site file of commands that name none: where it is found, and what it must not change."""

from __future__ import annotations

import json
import os
import shutil
import tarfile
from pathlib import Path

import pytest
from tests.factories import sample_evidence
from tests.factories.command_line import Done, accept, trust
from tests.factories.paths import TESTS

from accept.config import site_file
from accept.core.error_codes import Code
from accept.evidence import rundir

#: A site file that changes a plan, and the option that shows it.
SITE = "name: found\nparameters: {all-reduce: {max: 64K}}\n"
pytestmark = pytest.mark.usefixtures("runs", "working")
PLAN = ("run", "-m", "cpu", "--dry-run", "-v")


@pytest.fixture
def config_file(tmp_path: Path) -> Path:
    """Return the user's own site file, which does not exist yet."""
    path = tmp_path / "config" / "accept" / "site.yaml"
    path.parent.mkdir(parents=True)
    return path


def uses(done: Done) -> bool:
    """Return True if the run has the parameter of SITE."""
    assert done.code == 0, done.err
    return "max 64K" in done.err


class TestASiteFile:
    @pytest.mark.parametrize(
        ("trusted", "own", "words", "used"),
        [
            (SITE, "", (), "site.yaml"),
            (SITE, "", ("-q",), "site.yaml"),
            ("", SITE, (), "accept/site.yaml"),
            (SITE, "name: other\n", (), "site.yaml"),
            (SITE, "", ("--site", "own.yaml"), ""),
            (SITE, "", ("--site", "none"), ""),
        ],
    )
    def test_is_used_and_named_unless_an_option_names_another(
        self, working: Path, config_file: Path, trusted: str, own: str, words: tuple[str, ...],
        used: str,
    ) -> None:  # fmt: skip
        (working / "own.yaml").write_text("name: own\n")
        if trusted:
            trust(working / "site.yaml", trusted)
        if own:
            config_file.write_text(own)
        done = accept(*PLAN, *words)
        assert ("site file:" in done.err, used in done.err) == (bool(used), True)
        assert "-q" in words or uses(done) is bool(used)

    def test_of_the_environment_is_used_and_named_unless_an_option_names_one(
        self, working: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        (working / "other.yaml").write_text(SITE)
        monkeypatch.setenv("ACCEPT_SITE", "other.yaml")
        done = accept(*PLAN)
        assert uses(done)
        assert "site file: other.yaml (ACCEPT_SITE)" in done.err
        assert not uses(accept(*PLAN, "--site", "none"))
        monkeypatch.setenv("ACCEPT_SITE", "missing.yaml")
        assert accept(*PLAN).code == 2

    def test_in_the_home_folder_is_used_without_xdg(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("HOME", str(tmp_path / "me"))
        for value in ("", "relative"):
            monkeypatch.setenv("XDG_CONFIG_HOME", value)
            assert site_file.candidates()[1] == tmp_path / "me/.config/accept/site.yaml"

    def test_gives_the_machine_unless_an_option_names_one(self, working: Path) -> None:
        trust(working / "site.yaml", "machine: h100-8\nbackend: ssh\nssh: {hosts: [a, b]}\n")
        for words, machine in (((), "h100-8"), (("-m", "cpu"), "cpu")):
            done = accept("run", "--dry-run", "--json", *words)
            assert done.code == 0, done.err
            assert json.loads(done.out)["machine"] == machine

    def test_with_an_error_is_named_in_it(self, working: Path) -> None:
        trust(working / "site.yaml", "naam: x\n")
        done = accept(*PLAN)
        assert done.code == 2
        assert "site.yaml:1" in done.err

    def test_is_listed(self, working: Path, config_file: Path) -> None:
        trust(working / "site.yaml", SITE)
        listed = json.loads(accept("list", "sites", "--json").out)["sites"]
        assert [entry["name"] for entry in listed] == ["site.yaml", str(config_file), "example"]

    @pytest.mark.parametrize("command", ["run", "submit", "render", "drill"])
    def test_is_used_by_every_command_that_plans(self, working: Path, command: str) -> None:
        trust(working / "site.yaml", SITE)
        more = ["--out", "run"] if command == "render" else ["--dry-run"]
        done = accept(command, "-m", "cpu", *more)
        assert done.code == 0, done.err
        assert "site file: site.yaml" in done.err

    def test_does_not_change_a_rendered_run(self, working: Path) -> None:
        assert accept("render", "-m", "cpu", "-n", 1, "--out", "run").code == 0
        trust(working / "site.yaml", SITE)
        done = accept("submit", "run", "--dry-run", "-v")
        assert not uses(done)
        assert "site file:" not in done.err


class TestAFileOfOthers:
    """A site file names programs to run."""

    @pytest.mark.parametrize("how", ["writable", "replaceable", "foreign", "link", "folder"])
    def test_is_not_used_if_somebody_else_can_have_written_it(
        self, working: Path, how: str
    ) -> None:
        path = working / "site.yaml"
        if how == "folder":
            path.mkdir()
            assert not uses(accept(*PLAN))
            return
        if how in ("foreign", "link") and os.getuid() != 0:
            pytest.skip("only root can give a file away")
        (working / "own.yaml").write_text(SITE)
        path.symlink_to("own.yaml") if how == "link" else path.write_text(SITE)
        if how in ("foreign", "link"):
            os.chown(path, 65534, 65534, follow_symlinks=False)
        else:
            (path if how == "writable" else working).chmod(0o777)
        done = accept(*PLAN)
        assert not uses(done)
        assert Code.SITE_IGNORED in done.err
        assert how == "link" or uses(accept(*PLAN, "--site", "site.yaml"))


class TestEvidence:
    """Commands that judge or read evidence use no site file."""

    #: It would replace a bound of each run, and its errors would end every command that reads it.
    HOSTILE = "expect: ['all-reduce<=0']\nbackend: nonsense\n"

    def test_has_the_same_verdict_with_any_site_file(
        self, working: Path, config_file: Path, runs: Path
    ) -> None:
        recorded = sorted((TESTS / "data" / "gpu").glob("*/run-*.tar.gz"))
        assert recorded
        sample_evidence.write(runs / "good" / rundir.EVIDENCE)
        sample_evidence.write(runs / "bad" / rundir.EVIDENCE, status=1)
        logs = shutil.copytree(TESTS / "data" / "nccl-logs", working / "nccl-logs")
        places = [runs / "good", runs / "bad", logs, *recorded]

        def judged() -> list[tuple[int, str]]:
            found = []
            for place in places:
                for words in (["judge", place, "--json"], ["report", place, "--format", "md"]):
                    done = accept(*words)
                    assert "site file:" not in done.err
                    found.append((done.code, done.out))
            return found

        before = judged()
        assert any(code == 3 for code, _ in before)
        for path in (working / "site.yaml", config_file):
            path.write_text(self.HOSTILE)
        assert judged() == before

    def test_that_contains_a_site_file_is_judged_without_it(
        self, working: Path, runs: Path
    ) -> None:
        folder = runs / "one" / rundir.EVIDENCE
        sample_evidence.write(folder)
        before = accept("judge", folder, "--json").out
        archive = working / "sent.tar.gz"
        (working / "site.yaml").write_text(self.HOSTILE)
        with tarfile.open(archive, "w:gz") as packed:
            packed.add(folder, "evidence")
            packed.add(working / "site.yaml", "site.yaml")
        assert (
            json.loads(accept("judge", archive, "--json").out)["state"]
            == json.loads(before)["state"]
        )
