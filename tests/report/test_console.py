"""What a terminal shows is styled, and what a pipe gets is plain text that is never cut."""

from __future__ import annotations

import io

import pytest

from accept.report.console import Table, Terminal

TABLE = Table(header=("NAME", "ABOUT"), rows=[("a", "[red]x[/red] " * 30), ("bc", "\x1b[2Jy")])


class Screen(io.StringIO):
    """A stream that is a terminal."""

    def isatty(self) -> bool:
        return True


@pytest.fixture
def screen(monkeypatch: pytest.MonkeyPatch) -> Screen:
    """Use one terminal of 80 columns for both streams."""
    screen = Screen()
    monkeypatch.setattr("sys.stdout", screen)
    monkeypatch.setattr("sys.stderr", screen)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.delenv("NO_COLOR", raising=False)
    return screen


def test_a_table_fits_a_terminal(screen: Screen) -> None:
    Terminal().result(None, TABLE)
    shown = screen.getvalue()
    assert "\x1b[1m" in shown
    assert shown.count("[red]x[/red]") > 20
    assert "\x1b[2J" not in shown
    assert len(shown.splitlines()) > len(TABLE.rows) + 1


def test_progress_has_no_markup_and_no_control_characters(screen: Screen) -> None:
    Terminal().progress(f"[bold]{'long ' * 40}\x1b[2Jend")
    line = screen.getvalue()
    assert line.count("\n") == 1
    assert f"  [bold]{'long ' * 40}end" in line
    assert "\x1b[2J" not in line


@pytest.mark.parametrize(("name", "value"), [("NO_COLOR", "1"), ("TERM", "dumb")])
def test_a_user_can_turn_styles_off(
    name: str, value: str, screen: Screen, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(name, value)
    Terminal().result(None, TABLE)
    Terminal().progress("step")
    assert "\x1b" not in screen.getvalue()
    assert TABLE.plain() in screen.getvalue()


def test_a_pipe_gets_every_value_on_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    Terminal().result(None, "text", TABLE)
    head, *lines = capsys.readouterr().out.splitlines()
    assert head == "text"
    assert [line.split(maxsplit=1)[0] for line in lines] == ["NAME", "a", "bc"]
    assert lines[1].count("[red]x[/red]") == 30
    assert lines[2] == "bc    y"
