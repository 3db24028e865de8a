"""Show the progress of a run on a terminal: a line for each step, and the time that is left.

A run reports its progress as events. Their times are those of the coordinator's host, so the view
first learns how far that clock is from this one.
"""

from __future__ import annotations

import textwrap
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from accept.core.plan import Step
from accept.core.runner.events import Event, EventKind
from accept.core.text import count, plain
from accept.report.console import Line

_SPINNER = "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏"
#: Columns of the elapsed time, and of the time that is left.
_ELAPSED, _LEFT = 8, 13
#: Maximum length of a step's name in the list, and columns of the bar.
_MAX_NAME, _BAR = 32, 30
#: Maximum number of lines for steps that have not begun, and of suspects.
_PENDING_LINES, _MAX_SUSPECTS = 2, 6
#: Number of lines besides those for ended steps.
_OTHER_LINES = 9
#: The share of the planned time from which on the steps show how much longer the rest takes.
_LEAST_WEIGHT = 0.1
_SEPARATOR = " · "


@dataclass(kw_only=True)
class _Row:
    """The progress of one step, or of the discovery of hosts."""

    name: str
    seconds: float = 0.0
    if_open: bool = False
    left_out: bool = False
    began: float | None = None
    ended: float | None = None
    last: Event | None = None

    @property
    def is_pending(self) -> bool:
        return self.began is None and not self.left_out

    @property
    def is_running(self) -> bool:
        return self.began is not None and self.ended is None


@dataclass(kw_only=True)
class RunView:
    """The plan of a run and its events so far, as lines of a terminal."""

    #: The parts of the first line.
    title: Sequence[str]
    steps: Sequence[Step]
    _rows: dict[str, _Row] = field(init=False)
    #: Seconds by which this clock is ahead of the coordinator's, at most.
    _ahead: float | None = None
    _start: float | None = None
    _is_over: bool = False

    def __post_init__(self) -> None:
        """Add a row for the hosts and for each step."""
        rows = [_Row(name="hosts", began=0.0)]
        rows += [_Row(name=s.id, seconds=s.estimate, if_open=s.if_open) for s in self.steps]
        self._rows = {row.name: row for row in rows}

    def update(self, event: Event, received: float | None = None) -> None:
        """Process an event that was received at a Unix time; by default now."""
        ahead = (time.time() if received is None else received) - event.time
        # Old events arrive late, when a command follows a run that began before.
        self._ahead = ahead if self._ahead is None else min(self._ahead, ahead)
        if event.event is EventKind.VERDICT:
            self._is_over = True
            return
        row = self._rows.get("hosts" if event.event is EventKind.HOSTS else event.step)
        if row is None:
            return
        if event.event is EventKind.STEP_LEFT_OUT:
            row.left_out = True
            return
        row.last = event
        if event.event is EventKind.HOSTS:
            row.began = row.ended = self._start = event.time
        elif event.event is EventKind.STEP_KEPT:
            row.began = row.ended = event.time
        elif event.event is EventKind.STEP_BEGAN:
            row.began = event.time
        elif event.event is EventKind.STEP_ENDED:
            row.ended = event.time

    def lines(self, now: float, width: int = 80, height: int = 24) -> list[Line]:
        """Return the lines at a Unix time, none wider than `width`."""
        now -= self._ahead or 0.0
        rows = self._rows.values()
        ended = [row for row in rows if row.ended is not None]
        lines: list[Line] = [((line, "bold"),) for line in _wrapped(self.title, width, "", 2)]
        hidden = ended[: max(0, len(ended) - max(1, height - _OTHER_LINES))]
        if hidden:
            lines.append((("  ✔ ", "green"), (count(len(hidden), "earlier step"), "")))
        lines += [self._row(row, now, width) for row in ended[len(hidden) :]]
        lines += [self._row(row, now, width) for row in rows if row.is_running]
        pending = [row.name + (" (if needed)" * row.if_open) for row in rows if row.is_pending]
        if pending and not self._is_over:
            lines += [((line, "dim"),) for line in _wrapped(pending, width, "    ", _PENDING_LINES)]
        if suspects := [*self._suspects()]:
            texts = [f"▲ so far: {suspects[0]}", *suspects[1:]]
            lines += [((line, "yellow"),) for line in _wrapped(texts, width, "  ", 2)]
        if self._start is not None:
            lines.append(self._bar(now, width))
        return lines

    def _row(self, row: _Row, now: float, width: int) -> Line:
        event = row.last
        mark = (_SPINNER[int(now * 8) % len(_SPINNER)], "cyan")
        if row.ended is not None:
            is_bad = event is not None and (
                event.bad > 0 or (row.name == "hosts" and event.done < event.total)
            )
            mark = ("▲", "yellow") if is_bad else ("✔", "green")
        widest = max(len(row.name) for row in self._rows.values())
        name = row.name.ljust(min(_MAX_NAME, widest))
        # A step that ended has its figures in the column of the time that is left.
        room = width - 4 - len(name) - 2 - _ELAPSED - (_LEFT if row.ended is None else 0)
        text = textwrap.shorten(_detail(row), max(room, 10), placeholder=" …")
        for figure in row.last.figures if row.last else ():
            if len(longer := f"{text}{_SEPARATOR}{plain(figure, 80)}") > room:
                break  # a figure without its unit is worse than none
            text = longer
        elapsed = left = ""
        if row.name != "hosts" and row.began is not None:
            seconds = (now if row.ended is None else row.ended) - row.began
            elapsed = clock(seconds)
            if row.ended is None and row.seconds > seconds:
                left = f"~{clock(row.seconds - seconds)} left"
            elif row.ended is None and row.seconds:
                left = "late"
        return (
            ("  ", ""),
            mark,
            (f" {name}  {text.ljust(room)}", ""),
            (f"{left:>{0 if row.ended else _LEFT}}{elapsed:>{_ELAPSED}}".rstrip(), "dim"),
        )

    def _suspects(self) -> Iterator[str]:
        """Yield the hosts that findings name, with the steps."""
        steps: dict[str, list[str]] = {}
        for row in self._rows.values():
            for host in row.last.suspects if row.last and row.ended is not None else ():
                steps.setdefault(host, []).append(row.name)
        shown = sorted(steps, key=lambda host: -len(steps[host]))
        for host in shown[:_MAX_SUSPECTS]:
            yield f"{plain(host, 60)} ({', '.join(steps[host][:2])})"
        if len(shown) > _MAX_SUSPECTS:
            yield f"{len(shown) - _MAX_SUSPECTS} more"

    def _bar(self, now: float, width: int) -> Line:
        done = left = 0.0
        for row in self._rows.values():
            if row.left_out or (row.is_pending and row.if_open):
                continue
            spent = row.seconds if row.ended is not None else 0.0
            if row.is_running and row.began is not None:
                spent = min(row.seconds, now - row.began)
            done += spent
            left += row.seconds - spent
        share = 1.0 if self._is_over else min(0.99, done / max(done + left, 1e-9))
        left = 0.0 if self._is_over else left * self._slowness(now)
        columns = max(10, min(_BAR, width - 48))
        filled = round(share * columns)
        elapsed = clock(now - (self._start or now))
        text = f"  {share:4.0%}   {elapsed} elapsed"
        if left > 0:
            text += f" · ~{clock(left)} left"
        bar = "▓" * filled + "░" * (columns - filled)
        return ((f"  {bar}", "cyan"), (text, "dim"))

    def _slowness(self, now: float) -> float:
        """Return how much longer than planned the steps took that ended, or that are late."""
        spent = planned = 0.0
        for row in (row for row in self._rows.values() if row.began is not None and row.seconds):
            seconds = (now if row.ended is None else row.ended) - (row.began or 0.0)
            kept = row.last is not None and row.last.event is EventKind.STEP_KEPT
            if not kept and (row.ended is not None or seconds > row.seconds):
                spent, planned = spent + seconds, planned + row.seconds
        # The first short steps show little.
        weight = planned / max(sum(row.seconds for row in self._rows.values()), 1e-9)
        slowness = min(4.0, max(0.5, spent / planned)) if planned else 1.0
        return slowness if weight > _LEAST_WEIGHT else 1.0


def _detail(row: _Row) -> str:
    """Return the state of a step in a few words."""
    event = row.last
    if event is None:
        return "searching" if row.name == "hosts" else ""
    problems = f"▲ {event.bad} bad" if event.bad else ""
    if event.event is EventKind.HOSTS:
        return f"{event.done}/{event.total} ready"
    if event.event is EventKind.STEP_KEPT:
        return "kept from an earlier attempt"
    if event.event is EventKind.STEP_ENDED:
        return f"{event.total - event.bad}/{event.total} good"
    if event.event is not EventKind.WAVE:
        return ""
    kind = "again" if event.again else "wave"
    wave = f"{kind} {event.wave}/{event.waves}" if event.waves > 1 or event.again else ""
    return _SEPARATOR.join(filter(None, (problems, wave, f"{event.done}/{event.total} done")))


def _wrapped(parts: Sequence[str], width: int, indent: str, most: int) -> list[str]:
    """Return parts in at most `most` lines with dots between them, and never cut one."""
    lines: list[list[str]] = [[]]
    for part in parts:
        if lines[-1] and len(indent + _SEPARATOR.join([*lines[-1], part])) > width:
            lines.append([])
        lines[-1].append(part)
    shown, rest = lines[:most], sum(map(len, lines[most:]))
    if rest:
        last = shown[-1]
        while last and len(indent + _SEPARATOR.join([*last, f"{rest} more"])) > width:
            last.pop()
            rest += 1
        last.append(f"{rest} more")
    return [indent + _SEPARATOR.join(line) for line in shown]


def clock(seconds: float) -> str:
    """Return a duration as 0:04, 13:20 or 1:02:03."""
    minutes, rest = divmod(max(0, int(seconds)), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"
