"""Styled output on a terminal, and plain text that is never cut in a pipe."""

from __future__ import annotations

import contextlib
import io
import json
from collections.abc import Callable

import pytest

from accept.report.console import Table, Terminal

TABLE = Table(header=("NAME", "ABOUT"), rows=[("a", "[red]x[/red] " * 30), ("bc", "\x1b[2Jy")])


class Screen(io.StringIO):
    """A stream that is a terminal."""

    def isatty(self) -> bool:
        return True


@pytest.fixture(autouse=True)
def terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.delenv("NO_COLOR", raising=False)


def on_screen(print_: Callable[[Terminal], None]) -> str:
    """Return the output on a terminal of 80 columns."""
    screen = Screen()
    with contextlib.redirect_stdout(screen), contextlib.redirect_stderr(screen):
        print_(Terminal())
    return screen.getvalue()


def test_a_table_fits_a_terminal() -> None:
    shown = on_screen(lambda terminal: terminal.result(None, TABLE))
    assert "\x1b[1m" in shown
    assert shown.count("[red]x[/red]") > 20
    assert "\x1b[2J" not in shown
    assert len(shown.splitlines()) > len(TABLE.rows) + 1


def test_progress_has_no_markup_and_no_control_characters() -> None:
    text = f"[bold]{'long ' * 40}\x1b[2Jend"
    line = on_screen(lambda terminal: terminal.progress(text))
    assert line.count("\n") == 1
    assert f"  [bold]{'long ' * 40}end" in line
    assert "\x1b[2J" not in line


@pytest.mark.parametrize(("name", "value"), [("NO_COLOR", "1"), ("TERM", "dumb")])
def test_a_user_can_turn_styles_off(name: str, value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(name, value)
    assert on_screen(lambda terminal: terminal.result(None, TABLE)) == f"{TABLE.plain()}\n"
    assert "\x1b" not in on_screen(lambda terminal: terminal.progress("step"))


def test_a_pipe_gets_every_value_on_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    Terminal().result(None, "text", TABLE)
    head, *lines = capsys.readouterr().out.splitlines()
    assert head == "text"
    assert [line.split(maxsplit=1)[0] for line in lines] == ["NAME", "a", "bc"]
    assert lines[1].count("[red]x[/red]") == 30
    assert lines[2] == "bc    y"


@pytest.mark.parametrize("color", [True, False])
def test_a_result_controls_no_terminal_and_keeps_our_colors(
    *, color: bool, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Text of hosts and evidence is in results, too."""
    monkeypatch.setattr(Terminal, "color", color)
    Terminal().result(None, "\x1b[31mred\x1b[0m\ta\x1b[2Jb\x1b]0;title\x07\u202ec\x9b1md\n\n  e\n")
    red, end = ("\x1b[31m", "\x1b[0m") if color else ("", "")
    assert capsys.readouterr().out == f"{red}red{end}\tabc1md\n\n  e\n"


def test_json_escapes_what_controls_a_terminal() -> None:
    text = "né\x1b[2J\x9b2J\u202ey\ufffe"
    screen = Screen()
    with contextlib.redirect_stdout(screen):
        Terminal(json=True).result(text)
    assert screen.getvalue() == '"né\\u001b[2J\\u009b2J\\u202ey\\ufffe"\n'
    assert json.loads(screen.getvalue()) == text
