"""A site file in the working folder is used after the user trusted its content, and not before."""

from __future__ import annotations

import os
import stat
import sys
from pathlib import Path
from unittest import mock

import pytest
from tests.factories.command_line import SOURCE, accept, parsers, refused, trust
from tests.factories.shell import write_program
from tests.factories.standin_ssh import standin_ssh
from tests.factories.terminal import Terminal

from accept.config import site_file
from accept.core.error_codes import Code

GROUP = parsers()
#: The commands that plan a run, which are those that take a site file.
PLANNING = sorted(
    name
    for name, command in GROUP.commands.items()
    if any("--site" in param.opts for param in command.params)
)
pytestmark = pytest.mark.usefixtures("runs", "working")
PLAN = ("run", "-m", "cpu", "--dry-run", "-v")
#: A value that the output of PLAN shows.
SITE = "parameters: {all-reduce: {max: 64K}}\n"


@pytest.fixture
def ran(tmp_path: Path, working: Path) -> Path:
    """Write a site file that names a program; return the file that this program makes."""
    program, made = tmp_path / "python", tmp_path / "made"
    write_program(program, f"touch {made}\nexit 1")
    (working / "site.yaml").write_text(f"tools: {{python: {program}}}\n")
    return made


class TestAFileThatWasFound:
    @pytest.mark.parametrize("command", PLANNING)
    def test_is_refused_by_every_command_that_plans(self, command: str, ran: Path) -> None:
        required = {"pick": "pick --need 1", "list": "list nodes"}.get(command, command)
        words = f"{required} -m cpu"
        shown = refused(*words.split(), error=Code.SITE_TRUST)
        assert f"accept {words} --site site.yaml" in shown
        assert not ran.exists()

    def test_is_used_if_the_command_names_it(self, ran: Path) -> None:
        assert accept("doctor", "-m", "cpu", "--site", "site.yaml").error != Code.SITE_TRUST
        assert ran.exists()

    def test_is_used_until_it_changes(self, working: Path) -> None:
        trust(working / "site.yaml", SITE)
        assert "max 64K" in accept(*PLAN).err
        (working / "site.yaml").write_text(SITE + "\n")
        assert "changed after you trusted it" in refused(*PLAN, error=Code.SITE_TRUST)
        (working / "site.yaml").write_text(SITE)
        assert accept(*PLAN).code == 0

    def test_is_not_trusted_at_another_place(self, working: Path) -> None:
        trust(working / "own.yaml", SITE)
        (working / "own.yaml").rename(working / "site.yaml")
        refused(*PLAN, error=Code.SITE_TRUST)

    def test_is_parsed_as_it_was_compared(self, working: Path) -> None:
        """It changes while the user reads the question."""
        (working / "site.yaml").write_text(SITE)

        def change(*_: object) -> None:
            (working / "site.yaml").write_text(SITE.replace("64K", "32K"))

        with mock.patch("accept.app.parse.require_trust", side_effect=change):
            assert "max 64K" in accept(*PLAN).err

    def test_of_init_is_trusted(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        standin_ssh(tmp_path / "ssh", monkeypatch)
        assert accept("init", "--hosts", "n1").code == 0
        assert accept(*PLAN).code == 0


class TestTheRecord:
    def test_is_private(self, working: Path, tmp_path: Path) -> None:
        trust(working / "site.yaml", SITE)
        (record,) = (tmp_path / "config/accept/trusted").iterdir()
        assert stat.S_IMODE(record.stat().st_mode) == 0o600
        assert str(working / "site.yaml") in record.read_text()

    def test_that_others_can_write_has_no_effect(self, working: Path, tmp_path: Path) -> None:
        trust(working / "site.yaml", SITE)
        (record,) = (tmp_path / "config/accept/trusted").iterdir()
        record.chmod(0o666)
        refused(*PLAN, error=Code.SITE_TRUST)

    @pytest.mark.parametrize("what", ["link", "file"])
    def test_that_cannot_be_written_does_not_stop_init(
        self, what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        standin_ssh(tmp_path / "ssh", monkeypatch)
        settings, other = tmp_path / "config/accept", tmp_path / "other"
        other.mkdir()
        settings.mkdir(parents=True)
        if what == "link":
            (settings / "trusted").symlink_to(other)
        else:
            (settings / "trusted").touch()
        done = accept("init", "--hosts", "n1")
        assert done.code == 0
        assert "the next command asks" in done.err
        assert list(other.iterdir()) == []


class TestOnATerminal:
    def call(self, *answers: str) -> tuple[int, str]:
        """Call the plan, and type answers; return its exit code and what the terminal shows."""
        words = [sys.executable, "-m", "accept", *PLAN]
        terminal = Terminal(words, {**os.environ, "PYTHONPATH": str(SOURCE), "NO_COLOR": "1"})
        for answer in answers:
            terminal.types(f"{answer}\n")
        return terminal.ended(), terminal.shown

    def test_the_answer_is_kept_until_the_file_changes(self, working: Path) -> None:
        path = working / "site.yaml"
        path.write_text(SITE)
        for answers in (("n",), ("maybe", "n"), ("",)):
            code, shown = self.call(*answers)
            assert (code, Code.SITE_TRUST in shown) == (2, True), shown
        code, shown = self.call("y")
        assert (code, "[y/N]" in shown, "max 64K" in shown) == (0, True, True), shown
        code, shown = self.call()
        assert (code, "[y/N]" in shown) == (0, False), shown
        path.write_text(f"name: ours\n{SITE}")
        code, shown = self.call("yes")
        assert (code, "changed after you trusted it" in shown) == (0, True), shown

    def test_what_the_file_names_is_shown_escaped(self, working: Path) -> None:
        env = "".join(f", A{number}: '1'" for number in range(60))
        (working / "site.yaml").write_text(
            'name: "quiet"\ntools: {python: "/opt/\\e[2Jpython"}\n'
            "container: {image: 'registry.example/a:1', mounts: [/data]}\n"
            "collectors: {own: {command: own-program --all}}\n"
            f"nccl: {{env: {{NCCL_DEBUG: INFO{env}}}}}\n"
        )
        code, shown = self.call("n")
        assert code == 2
        question = shown.partition("[y/N]")[0]
        assert r"tools.python: /opt/\u001b[2Jpython" in question
        assert "\x1b" not in question
        for text in ("image: registry.example/a:1", "mounts[0]: /data", "own-program --all"):
            assert text in question
        assert "NCCL_DEBUG: INFO" in question
        assert "and 25 more lines: read the file" in question
        assert "quiet" not in question


def test_the_users_own_file_needs_no_trust(tmp_path: Path) -> None:
    own = tmp_path / "config/accept/site.yaml"
    own.parent.mkdir(parents=True)
    own.write_text(SITE)
    assert "max 64K" in accept(*PLAN).err
    assert site_file.trust_of(own, "") is site_file.Trust.TRUSTED
