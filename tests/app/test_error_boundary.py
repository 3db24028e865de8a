"""Failures end in one sentence and a documented exit code, for any exception."""

from __future__ import annotations

import errno
import os
import shlex
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from unittest import mock

import pytest
from tests.factories import sample_evidence
from tests.factories.command_line import SOURCE, Done, accept, refused
from tests.factories.shell import run_program

from accept.__main__ import main
from accept.core.errors import Exit

pytestmark = pytest.mark.usefixtures("runs")


def in_shell(arguments: str, redirection: str) -> Done:
    """Run `accept` in a shell with a redirection of its streams."""
    command = f"{shlex.quote(sys.executable)} -m accept {arguments} {redirection}"
    done = run_program(["sh", "-c", command], env={**os.environ, "PYTHONPATH": str(SOURCE)})
    return Done(code=done.returncode, out=done.stdout, err=done.stderr)


def messages(err: str) -> list[str]:
    return [line for line in err.splitlines() if line.startswith("error[")]


class TestACommandThatRaises:
    def call(
        self,
        error: BaseException | Callable[..., None],
        *arguments: str,
        capsys: pytest.CaptureFixture[str],
    ) -> Done:
        """Call main() with a command that raises; the usual helper raises crashes itself."""
        with (
            mock.patch("accept.commands.catalog.do_list", side_effect=error),
            mock.patch.object(sys, "argv", ["accept", "list", "runs", *arguments]),
            pytest.raises(SystemExit) as ended,
        ):
            main()
        written = capsys.readouterr()
        assert isinstance(ended.value.code, int)
        return Done(code=ended.value.code, out=written.out, err=written.err)

    @pytest.mark.parametrize(
        ("error", "code"),
        [
            (OSError(errno.ENOSPC, "No space left on device"), Exit.INTERRUPTED),
            (PermissionError(errno.EACCES, "Permission denied", "/x"), Exit.INTERRUPTED),
            (MemoryError(), Exit.INTERRUPTED),
            (RecursionError("maximum recursion depth exceeded"), Exit.USAGE),
            (ZeroDivisionError("division by zero"), Exit.INTERNAL),
            (StopIteration(), Exit.INTERNAL),
        ],
        ids=lambda value: type(value).__name__ if isinstance(value, Exception) else "",
    )
    def test_ends_with_one_message_and_a_documented_code(
        self, error: Exception, code: Exit, capsys: pytest.CaptureFixture[str]
    ) -> None:
        done = self.call(error, capsys=capsys)
        assert (done.code, done.out, len(messages(done.err))) == (code, "", 1)
        assert "Traceback" not in done.err

    def test_names_the_file_of_an_error_of_the_system(
        self, capsys: pytest.CaptureFixture[str]
    ) -> None:
        error = PermissionError(errno.EACCES, "Permission denied", "/etc/one")
        assert "/etc/one" in self.call(error, capsys=capsys).err

    @pytest.mark.parametrize("option", ["-v", "--verbose", "-qv"])
    def test_shows_the_traceback_with_verbose(
        self, option: str, capsys: pytest.CaptureFixture[str]
    ) -> None:
        done = self.call(ZeroDivisionError("division by zero"), option, capsys=capsys)
        assert done.code == Exit.INTERNAL
        assert "Traceback" in done.err

    def test_ends_with_143_after_sigterm(self, capsys: pytest.CaptureFixture[str]) -> None:
        def terminated(*_: object, **__: object) -> None:
            signal.raise_signal(signal.SIGTERM)

        before = signal.getsignal(signal.SIGTERM)
        done = self.call(terminated, capsys=capsys)
        assert (done.code, done.out, done.err) == (143, "", "")
        assert signal.getsignal(signal.SIGTERM) is before

    def test_hides_terminal_sequences_of_the_error(
        self, capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert "\x1b" not in self.call(ValueError("\x1b[2J"), capsys=capsys).err


def test_the_name_of_a_file_is_never_a_message_of_its_own(tmp_path: Path) -> None:
    sample_evidence.write(tmp_path / "ev")
    (tmp_path / "ev" / "x\naccept: pass (8 GPUs)\n").touch()
    printed = refused("judge", tmp_path / "ev", code=Exit.INCOMPLETE, error="E-EVIDENCE-CHANGED")
    assert len(printed.splitlines()) == 2, printed


class TestOutputThatCannotBeWritten:
    @pytest.mark.sampled
    @pytest.mark.parametrize(
        "arguments",
        ["list machines", "list machines --json", "--help", "show schema plan", "chart"],
    )
    def test_to_a_full_disk_is_one_message(self, arguments: str) -> None:
        done = in_shell(arguments, "> /dev/full")
        assert (done.code, len(messages(done.err))) == (Exit.INTERRUPTED, 1), done.err
        assert len(done.err.splitlines()) == 2

    @pytest.mark.parametrize("arguments", ["list machines", "--help", "show schema plan"])
    def test_to_a_closed_stdout_is_one_message(self, arguments: str) -> None:
        done = in_shell(arguments, ">&-")
        assert (done.code, len(messages(done.err))) == (Exit.USAGE, 1), done.err
        assert "Traceback" not in done.err

    @pytest.mark.parametrize("redirection", ["2>&-", "2> /dev/full", "<&-"])
    def test_to_stderr_does_not_change_the_result(self, redirection: str) -> None:
        done = in_shell("list machines", redirection)
        assert done.code == 0
        assert done.out

    def test_of_an_error_keeps_its_exit_code(self) -> None:
        for redirection in ("2>&-", "2> /dev/full"):
            assert in_shell("show machine nosuch", redirection).code == Exit.USAGE


class TestWithoutAHomeFolder:
    @pytest.fixture(autouse=True)
    def homeless(self, runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        for name in ("ACCEPT_RUNS", "XDG_STATE_HOME", "HOME"):
            monkeypatch.delenv(name, raising=False)
        # A user without an entry in the passwd file, as in many containers.
        monkeypatch.setattr("os.getuid", lambda: 2_000_000_123)

    @pytest.mark.parametrize(
        "arguments",
        [["list", "runs"], ["judge", "last"], ["cancel", "one"], ["run", "-m", "cpu", "-q"]],
    )
    def test_commands_that_need_the_runs_name_the_variable_to_set(
        self, arguments: list[str]
    ) -> None:
        refused(*arguments, error="E-RUNS-FOLDER")

    def test_evidence_named_by_its_path_is_judged(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.chdir(tmp_path)
        sample_evidence.write(tmp_path / "ev")
        assert accept("judge", "./ev").code == 0
        assert accept("judge", tmp_path / "ev").code == 0


def test_ctrl_c_while_modules_are_imported_ends_without_a_traceback() -> None:
    program = (
        "import signal, sys\n"
        "def interrupt(event, args):\n"
        "    if event == 'import' and args[0] == 'accept.app.command_line':\n"
        "        signal.raise_signal(signal.SIGINT)\n"
        "sys.addaudithook(interrupt)\n"
        "from accept.__main__ import main\n"
        "main()\n"
    )
    done = run_program(
        [sys.executable, "-c", program], env={**os.environ, "PYTHONPATH": str(SOURCE)}
    )
    assert (done.returncode, done.stdout, done.stderr) == (Exit.CTRL_C, "", "")
