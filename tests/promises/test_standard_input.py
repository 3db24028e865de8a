"""Commands read standard input if `-` names it, and never ignore what is piped."""

from __future__ import annotations

import inspect
import os
import pty
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TextIO

import pytest
from tests.factories import sample_evidence
from tests.factories.clock import PATIENCE
from tests.factories.command_line import SOURCE, Done, accept, program

from accept.__main__ import main
from accept.app.commands import COMMANDS
from accept.commands import demo
from accept.evidence import standard_input

#: Commands that act on a run that this workstation started. They read no evidence from elsewhere.
ACT = {"watch", "collect", "cancel", "retest"}
#: Commands that read the newest run if no other is named.
READ = sorted(
    name
    for name, function in COMMANDS.items()
    if name not in ACT
    and (
        "paths" in (named := inspect.signature(function).parameters)
        or ("run" in named and named["run"].default == "last")
    )
)


def started(*command: str, **standard_input: Any) -> Done:
    """Start a program with another standard input than the test has."""
    done = subprocess.run(
        command,
        env={**os.environ, "PYTHONPATH": str(SOURCE)},
        capture_output=True,
        timeout=PATIENCE,
        check=False,
        **standard_input,
    )
    return Done(code=done.returncode, out=done.stdout.decode(), err=done.stderr.decode())


def piped(*arguments: str, data: bytes) -> Done:
    """Start `accept` with a pipe that holds `data`."""
    return started(sys.executable, "-m", "accept", *arguments, input=data)


@pytest.fixture
def newest(runs: Path) -> Path:
    """Leave a run that the commands would read by default; return its evidence."""
    return demo.unpack_demo() / "evidence"


@pytest.fixture
def log(tmp_path: Path) -> bytes:
    """Return the console log of another run, with packed evidence."""
    sample_evidence.write(tmp_path / "evidence")
    return sample_evidence.console(sample_evidence.record()).encode()


def test_commands_that_read_the_newest_run_are_known() -> None:
    assert READ == ["baseline", "judge", "report", "verify"]


@pytest.mark.usefixtures("newest")
class TestWithoutAPath:
    @pytest.mark.parametrize("command", READ)
    def test_a_pipe_is_refused_with_the_right_command(self, command: str, log: bytes) -> None:
        for data in (log, b""):
            done = piped(command, "-q", data=data)
            assert (done.code, done.out, done.error) == (2, "", "E-STDIN-UNNAMED")
            assert f"{command} -q -;" in done.err

    @pytest.mark.parametrize("command", READ)
    def test_a_file_is_refused(self, command: str, tmp_path: Path, log: bytes) -> None:
        saved = tmp_path / "log"
        saved.write_bytes(log)
        with saved.open("rb") as file:
            done = started(sys.executable, "-m", "accept", command, stdin=file)
        assert (done.code, done.out, done.error) == (2, "", "E-STDIN-UNNAMED")

    @pytest.mark.parametrize("redirection", ["</dev/null", "<&-"])
    def test_no_input_means_the_newest_run(self, redirection: str) -> None:
        script = f'"$1" -m accept judge --json {redirection}'
        done = started("sh", "-c", script, "sh", sys.executable)
        assert (done.code, '"gpu17"' in done.out) == (3, True), done.err

    def test_a_terminal_means_the_newest_run(self, monkeypatch: pytest.MonkeyPatch) -> None:
        with terminal() as file:
            monkeypatch.setattr("sys.stdin", file)
            assert accept("judge", "--json").code == 3

    def test_the_newest_run_can_be_named_in_a_loop_that_reads_a_file(self, log: bytes) -> None:
        assert piped("judge", "last", "--json", data=log).code == 3


@pytest.mark.usefixtures("newest")
class TestAHyphen:
    @pytest.mark.rare
    @pytest.mark.parametrize("suffix", ["tar", "tgz", "zip"])
    def test_judges_a_piped_archive(self, suffix: str, newest: Path, tmp_path: Path) -> None:
        kind = {"tar": "tar", "tgz": "gztar", "zip": "zip"}[suffix]
        archive = Path(shutil.make_archive(str(tmp_path / "a"), kind, newest.parent, "evidence"))
        data = archive.read_bytes()
        done = piped("judge", "-", "--json", data=data)
        assert (done.code, done.out) == (3, accept("judge", archive, "--json").out)
        assert piped("explain", "-", "gpu17", data=data).code == 0
        assert piped("report", "-", "--format", "md", data=data).code == 0
        assert piped("diff", "-", "last", data=data).code == 0
        assert piped("verify", "-", data=data).code == 7  # no key

    def test_judges_a_piped_log_and_not_the_newest_run(self, log: bytes) -> None:
        done = piped("judge", "-", "--json", data=log)
        assert (done.code, "gpu17" in done.out) == (0, False)
        assert "next:" not in done.err  # the input cannot be read again

    def test_errors_name_no_temporary_file(self) -> None:
        done = piped("judge", "-", data=b"no table")
        assert done.code == 6
        assert "accept-stdin" not in done.err

    def test_without_content_is_refused(self) -> None:
        assert piped("judge", "-", data=b"").error == "E-STDIN-EMPTY"
        assert program("judge", "-").error == "E-STDIN-EMPTY"  # /dev/null

    def test_does_not_wait_for_a_person(self, monkeypatch: pytest.MonkeyPatch) -> None:
        with terminal() as file:
            monkeypatch.setattr("sys.stdin", file)
            assert accept("judge", "-").error == "E-STDIN-EMPTY"

    def test_has_a_limit(self, log: bytes, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        (tmp_path / "log").write_bytes(log)
        monkeypatch.setattr(standard_input, "_MAX_BYTES", 10)
        with (tmp_path / "log").open() as file:
            monkeypatch.setattr("sys.stdin", file)
            assert accept("judge", "-").error == "E-STDIN-TOO-LARGE"


@contextmanager
def terminal() -> Iterator[TextIO]:
    """Open the end of a terminal that a program would have as its standard input."""
    leader, follower = pty.openpty()
    with os.fdopen(follower) as file:
        yield file
    os.close(leader)


#: A call of each command, and its exit code.
ONCE = {
    "baseline": ("demo --out b.yaml", 2),
    "cancel": ("demo", 2),
    "chart": ("", 0),
    "clean": ("demo", 2),
    "collect": ("demo", 0),
    "demo": ("--no-open", 0),
    "diff": ("demo demo", 0),
    "doctor": ("--machine cpu --hosts localhost -q", 4),
    "drill": ("--machine cpu --dry-run", 0),
    "explain": ("demo gpu17", 0),
    "gate": ("-m cpu --dry-run", 0),
    "help": ("all", 0),
    "init": ("--backend local", 2),
    "judge": ("demo", 3),
    "list": ("errors", 0),
    "pick": ("--hosts a,b --need 1 -m cpu --dry-run", 0),
    "render": ("-m cpu -n 2 --image i", 0),
    "report": ("demo", 0),
    "retest": ("demo", 2),
    "run": ("-m cpu --dry-run", 0),
    "show": ("machine h100-8", 0),
    "submit": ("-m cpu --dry-run", 0),
    "ticket": ("demo gpu17", 0),
    "verify": ("demo", 7),
    "watch": ("demo", 3),
}


def test_each_command_has_a_call() -> None:
    assert set(ONCE) == set(COMMANDS)


@pytest.mark.sampled
@pytest.mark.usefixtures("newest")
@pytest.mark.parametrize("command", sorted({*ONCE} - {"baseline", "help", "init", "render"}))
def test_a_file_gets_what_standard_output_would_get(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    arguments, code = ONCE[command]
    words = [command, *arguments.split(), "-q"]
    printed = accept(*words, "-o", "-")
    (tmp_path / "taken").write_text("old")
    written = accept(*words, "--out", "taken")
    assert (written.code, written.out, written.error) == (code, "", printed.error)
    assert (tmp_path / "taken").read_text() == (printed.out or "old")


@pytest.mark.parametrize("name", ["link", "no-folder/file", "/dev/null"])
def test_what_is_not_a_regular_file_is_refused(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("link").symlink_to("target")
    assert accept("list", "errors", "-o", name).error == "E-OUTPUT-WRITE"
    assert not Path("target").exists()


def test_rendered_values_are_written_to_a_file(tmp_path: Path) -> None:
    words = ("render", "-m", "cpu", "-N", 2, "--image", "i")
    assert accept(*words, "-o", tmp_path / "values.yaml").out == ""
    assert (tmp_path / "values.yaml").read_text() == accept(*words, "-o", "-").out


@pytest.mark.sampled
@pytest.mark.usefixtures("newest")
@pytest.mark.parametrize("command", COMMANDS)
def test_a_reader_that_ends_early_changes_no_exit_code(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The pipe of output and progress is closed before the command writes to it."""
    monkeypatch.chdir(tmp_path)
    arguments, code = ONCE[command]
    read, write = os.pipe()
    os.close(read)
    monkeypatch.setattr(sys, "argv", ["accept", command, *arguments.split()])
    with os.fdopen(write, "w") as out, os.fdopen(os.dup(write), "w") as err:
        monkeypatch.setattr(sys, "stdout", out)
        monkeypatch.setattr(sys, "stderr", err)
        with pytest.raises(SystemExit) as ended:
            main()
    assert ended.value.code == code
