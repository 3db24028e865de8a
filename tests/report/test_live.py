"""The progress of a run: the content of the view, and the output on a terminal."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import pty
import re
import struct
import termios
import threading
from pathlib import Path
from unittest import mock

import pytest
from tests.factories import verdicts

from accept import backends
from accept.backends.job import Job
from accept.backends.protocol import Say
from accept.commands import run as runs
from accept.core.runner.events import FILE, Event, EventKind, parse_event, report
from accept.core.serde import dump
from accept.report.console import Terminal
from accept.report.live import RunView, clock

EACH = verdicts.step("all-reduce", "each", number=20, estimate=60.0)
PAIRS = verdicts.step("all-reduce", "pairs", number=30, rounds=4, estimate=120.0)
LADDER = verdicts.step("all-reduce", "ladder", number=40, estimate=30.0, if_open=True)
TRAIN = verdicts.step("train", "all", number=50, estimate=60.0)
#: Clock of the coordinator at the start, a year behind this one.
START = 1.7e9
EVENTS = (
    Event(event=EventKind.HOSTS, time=START, done=63, total=64),
    Event(event=EventKind.STEP_BEGAN, time=START, step=EACH.id, waves=1),
    Event(event=EventKind.WAVE, time=START, step=EACH.id, wave=1, waves=1, total=63),
    Event(
        event=EventKind.STEP_ENDED,
        time=START + 70,
        step=EACH.id,
        done=63,
        total=63,
        bad=1,
        suspects=("gpu017",),
    ),
    Event(event=EventKind.STEP_BEGAN, time=START + 70, step=PAIRS.id, waves=4),
    Event(
        event=EventKind.WAVE,
        time=START + 90,
        step=PAIRS.id,
        wave=2,
        waves=4,
        done=22,
        total=31,
        bad=2,
    ),
)


def view(*events: Event) -> RunView:
    shown = RunView(title=["accept", "h100-8", "64 nodes"], steps=(EACH, PAIRS, LADDER, TRAIN))
    for event in events:
        shown.update(event, received=event.time + 3e7)
    return shown


def text(shown: RunView, seconds: float, width: int = 80, height: int = 24) -> list[str]:
    """Return the lines some seconds after the start."""
    lines = shown.lines(START + 3e7 + seconds, width, height)
    return ["".join(part for part, _ in line) for line in lines]


def test_a_running_step_has_its_wave_its_problems_and_the_time_that_is_left() -> None:
    title, hosts, each, pairs, pending, suspects, bar = text(view(*EVENTS), 100)
    assert title == "accept · h100-8 · 64 nodes"
    assert hosts.split() == ["▲", "hosts", "63/64", "ready"]
    assert each.split()[:2] == ["▲", EACH.id]
    assert each.split()[2:] == ["62/63", "good", "1:10"]
    assert pairs.split()[1:] == [
        *(PAIRS.id, "▲", "2", "bad", "·", "wave", "2/4", "·", "22/31", "done"),
        *("~1:30", "left", "0:30"),
    ]
    assert pending.strip() == f"{LADDER.id} (if needed) · {TRAIN.id}"
    assert "gpu017" in suspects
    # 60 s of the first step and 30 s of the second, of 240 s without the step that may not run;
    # the first took 70 s, so the 150 s that are left will take longer, too.
    assert bar.split()[1:] == ["38%", "1:40", "elapsed", "·", "~2:55", "left"]


def test_a_step_that_takes_longer_than_planned_is_late_and_so_is_the_run() -> None:
    (*_, pairs, _, _, bar) = text(view(*EVENTS), 70 + 3 * PAIRS.estimate)
    assert pairs.split()[-2] == "late"
    slowness = (70 + 3 * PAIRS.estimate) / (EACH.estimate + PAIRS.estimate)
    assert bar.endswith(f"~{clock(TRAIN.estimate * slowness)} left")


def test_an_ended_step_shows_its_figures() -> None:
    ended = Event(
        event=EventKind.STEP_ENDED,
        time=START + 70,
        step=EACH.id,
        total=63,
        figures=("all-reduce 478 to 484 GB/s",),
    )
    assert "63/63 good · all-reduce 478 to 484 GB/s" in "\n".join(text(view(*EVENTS, ended), 100))


def test_without_events_it_shows_that_hosts_are_searched() -> None:
    assert "searching" in " ".join(text(view(), 5))


@pytest.mark.parametrize("seconds", [0, 100, 1e5])
@pytest.mark.parametrize("width", [60, 80, 140])
def test_no_line_is_wider_than_the_terminal(width: int, seconds: float) -> None:
    for count in range(len(EVENTS) + 1):
        assert all(len(line) <= width for line in text(view(*EVENTS[:count]), seconds, width))


def test_a_small_terminal_keeps_the_running_step() -> None:
    lines = text(view(*EVENTS), 100, height=10)
    assert len(lines) <= 10
    assert any(PAIRS.id in line for line in lines)


def test_events_go_to_a_file_if_people_read_the_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for event in EVENTS:
        report(event)
    printed = capsys.readouterr().out
    monkeypatch.setenv(FILE, str(tmp_path / "progress.jsonl"))
    for event in EVENTS:
        report(event)
    assert capsys.readouterr().out == ""
    assert (tmp_path / "progress.jsonl").read_text() == printed
    assert [parse_event(line) for line in printed.splitlines()] == list(EVENTS)


@pytest.mark.parametrize(
    "line",
    [
        "12:00:00 step 1/2 starts",
        'ACCEPT {"metric": "x"}',
        'ACCEPT {"event":"gremlins","time":1}',
        'ACCEPT {"event":"wave","time":"x"}',
        'ACCEPT {"event":' + "[" * 5000,
    ],
)
def test_other_lines_give_no_event(line: str) -> None:
    assert parse_event(line) is None


class BackEnd:
    """A back end that follows a run which has ended."""

    def watch(self, _job: Job, *, folder: Path, say: Say, log: Say) -> int:
        assert folder.is_dir()
        log("12:00:00 machine cpu, suite small")
        for event in EVENTS:
            log("ACCEPT " + json.dumps(dump(event), separators=(",", ":")))
        say("no connection; reconnecting")
        log('ACCEPT {"event":"verdict","time":1.7e9}')
        log("12:00:02 verdict of the coordinator:")
        log("VERDICT pass")
        log("12:00:03 held for 10 min")
        return 0


def followed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Return the output of a run on a terminal of 80 columns."""
    monkeypatch.setenv("TERM", "xterm")
    for name in ("NO_COLOR", "COLUMNS", "LINES"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(backends, "load", lambda _: BackEnd())
    monkeypatch.setattr(runs, "_view", lambda *_, **__: view())
    job = mock.Mock(backend="local")
    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    parts: list[bytes] = []

    def drain() -> None:
        # At its end a terminal raises an error.
        with contextlib.suppress(OSError):
            while part := os.read(master, 1 << 16):
                parts.append(part)

    reader = threading.Thread(target=drain)
    reader.start()
    with os.fdopen(slave, "w", encoding="utf-8") as stderr, mock.patch("sys.stderr", stderr):
        runs.follow(job, tmp_path, Terminal())
    reader.join()
    os.close(master)
    return b"".join(parts).decode()


def test_a_terminal_gets_the_view_instead_of_the_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    printed = followed(tmp_path, monkeypatch)
    lines = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", printed).replace("\r", "").split("\n")
    assert all(len(line) <= 80 for line in lines)
    shown = "\n".join(lines)
    assert f"▲ {EACH.id}" in shown
    assert "no connection; reconnecting" in shown
    assert "held for 10 min" in shown
    for hidden in ("ACCEPT {", "machine cpu", "VERDICT"):
        assert hidden not in shown
