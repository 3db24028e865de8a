"""Print results on stdout and progress on stderr: with rich on a terminal, else as plain text.

Text from hosts and logs is untrusted: control characters are removed, and markup has no effect.
"""

from __future__ import annotations

import contextlib
import errno
import io
import json
import os
import re
import stat
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import IO, TYPE_CHECKING, Protocol, TextIO

from accept.core.error_codes import Code
from accept.core.errors import BadInput
from accept.core.text import inert, plain, visible

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer
    from rich.text import Text

#: The sequence for a color.
_COLOR = re.compile(r"(\x1b\[[0-9;]*m)")


#: The parts of a line, each with its style as rich names it.
Line = Sequence[tuple[str, str]]


class View(Protocol):
    """Something that stays in place on a terminal."""

    def lines(self, now: float, width: int, height: int) -> Sequence[Line]:
        """Return the view at a Unix time, in at most `height` lines of `width` columns."""


@dataclass(frozen=True, kw_only=True)
class Table:
    """Rows of cells. On a terminal the last column is wrapped; elsewhere nothing is."""

    header: tuple[str, ...] = ()
    rows: Sequence[tuple[str, ...]]

    def plain(self) -> str:
        """Return the rows as aligned lines, with two spaces between columns."""
        rows = [row for row in (self.header, *self.rows) if row]
        widths = [max(map(len, column)) for column in zip(*(row[:-1] for row in rows), strict=True)]
        lines = []
        for row in rows:
            cells = [cell.ljust(width) for cell, width in zip(row, widths, strict=False)]
            lines.append("  ".join((*cells, row[-1])))
        return visible("\n".join(lines))

    def print_styled(self) -> None:
        """Print the rows on a terminal."""
        from rich.console import Console
        from rich.table import Table as Grid
        from rich.text import Text

        grid = Grid.grid(padding=(0, 2, 0, 0))
        columns = len(self.header or next(iter(self.rows), ()))
        for column in range(columns):
            is_last = column == columns - 1
            grid.add_column(no_wrap=not is_last, overflow="fold")
        if self.header:
            grid.add_row(*(Text(cell, style="bold") for cell in self.header))
        for row in self.rows:
            grid.add_row(*(Text(visible(cell)) for cell in row))
        Console(file=sys.stdout, highlight=False).print(grid)


def _is_styled(stream: TextIO) -> bool:
    """Return True for a terminal with colors; NO_COLOR and TERM=dumb turn them off."""
    wanted = not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
    return wanted and stream.isatty()


@dataclass(kw_only=True)
class Terminal:
    """The output settings of a command, from its options."""

    json: bool = False
    quiet: bool = False
    verbose: bool = False
    #: Where results are written; None: stdout.
    file: Path | None = None
    #: Returns a text whose commands have the name that the program was called by.
    as_called: Callable[[str], str] = str
    _began: float = field(default_factory=time.monotonic)
    #: What the file has so far.
    _texts: list[str] = field(default_factory=list)
    #: Prints a line above the progress of a run, while that is on the terminal.
    _print_above: Callable[[Text], None] | None = None

    @property
    def is_live(self) -> bool:
        """Return True if the progress of a run can stay in place on stderr."""
        is_utf8 = (sys.stderr.encoding or "").lower().replace("-", "") == "utf8"
        return not self.quiet and is_utf8 and _is_styled(sys.stderr)

    @property
    def color(self) -> bool:
        """Return True if results are written to a terminal with colors."""
        if self.file is not None:
            return False
        forced = os.environ.get("FORCE_COLOR", "") not in ("", "0")
        return _is_styled(sys.stdout) or (forced and not os.environ.get("NO_COLOR"))

    @property
    def width(self) -> int:
        """Return the columns of the terminal, from 60 to 140; 100 if stdout is not a terminal."""
        try:
            return max(60, min(140, os.get_terminal_size(sys.stdout.fileno()).columns))
        except (OSError, ValueError):
            return 100

    @property
    def is_narrow(self) -> bool:
        """Return True for a terminal on which a table of seven columns has no room."""
        return sys.stdout.isatty() and self.width < 110

    def progress(self, text: str) -> None:
        """Print one line of progress on stderr, with the seconds since the start."""
        if not self.quiet:
            self.notice(text)

    def notice(self, text: str) -> None:
        """Print a line on stderr like progress, but with --quiet, too."""
        text = self.as_called(inert(visible(text)))
        self._print_progress(f"{time.monotonic() - self._began:7.1f} s", f"  {text}")

    def suggest(self, text: str) -> None:
        """Print what to type next on stderr."""
        if not self.quiet:
            self._print_progress("", f"next: {self.as_called(inert(visible(text)))}")

    def log(self, line: str) -> None:
        """Print a line of a run's log on stderr, which has a time of its own."""
        if not self.quiet:
            self._print_progress("", f"  {inert(visible(line))}")

    def _print_progress(self, dimmed: str, text: str) -> None:
        if not _is_styled(sys.stderr):
            sys.stderr.write(f"{dimmed}{text}\n")
            sys.stderr.flush()
            return
        from rich.console import Console
        from rich.text import Text

        # Long lines are not wrapped here.
        line = Text.assemble((dimmed, "dim"), text)
        if self._print_above:
            self._print_above(line)
        else:
            Console(file=sys.stderr, highlight=False).print(line, soft_wrap=True)

    @contextlib.contextmanager
    def showing(self, view: View | None) -> Iterator[Callable[[], None]]:
        """Keep a view on the terminal, with other lines above it; yield a function to end it early.

        If `view` is None, nothing is shown.
        """
        if view is None:
            yield lambda: None
            return
        from rich.console import Console
        from rich.live import Live
        from rich.text import Text

        console = Console(file=sys.stderr, highlight=False)

        def render() -> Text:
            lines = view.lines(time.time(), console.width, console.height)
            return Text("\n", no_wrap=True).join(
                [Text.assemble(*line, no_wrap=True) for line in lines]
            )

        with Live(get_renderable=render, console=console, redirect_stdout=False) as live:
            self._print_above = partial(console.print, soft_wrap=True)

            def end() -> None:
                self._print_above = None
                live.stop()

            try:
                yield end
            finally:
                self._print_above = None

    def detail(self, text: str) -> None:
        """Print a line of progress with -v only."""
        if self.verbose:
            self.progress(text)

    def result(self, value: object, *parts: str | Table) -> None:
        """Print the result: `value` as JSON with --json, else the texts and tables for people."""
        self.document(value, *(self._called(part) for part in parts))

    def _called(self, part: str | Table) -> str | Table:
        """Return a part whose commands start as the user's shell needs it."""
        if isinstance(part, str):
            return self.as_called(inert(part))
        rows = [tuple(self.as_called(inert(cell)) for cell in row) for row in part.rows]
        return Table(header=part.header, rows=rows)

    def document(self, value: object, *parts: str | Table) -> None:
        """Print a file, which is the same on every machine; `value` as JSON with --json."""
        shown = (_json(value),) if self.json else parts
        if self.file is not None:
            self._texts += [_text(part) for part in shown]
            _write_file(self.file, "".join(self._texts))
            return
        for part in shown:
            if isinstance(part, Table) and self.color:
                # Rich writes to the same stream.
                sys.stdout.flush()
                part.print_styled()
            else:
                sys.stdout.write(_text(part, keeps_colors=self.color))
        sys.stdout.flush()


class _Pipe(io.FileIO):
    """A pipe whose reader may end early, as in `accept judge | head -1`.

    The rest is discarded, because no exit code may depend on whether the reader ends before or
    after the last line: it stays that of the verdict, and a run on the cluster goes on.
    """

    def write(self, data: ReadableBuffer, /) -> int:
        try:
            return super().write(data)
        except BrokenPipeError:
            discard_output(self)
            return memoryview(data).nbytes


def outlive_reader(stream: TextIO) -> TextIO:
    """Return a stream that discards the rest of the output when the reader of its pipe ends."""
    if not isinstance(stream, io.TextIOWrapper):
        return stream
    # A character set that lacks a character of a message must not end the command.
    stream.reconfigure(errors="replace")
    try:
        mode = os.fstat(stream.fileno()).st_mode
    except io.UnsupportedOperation:
        return stream
    if not (stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode)):
        return stream
    return io.TextIOWrapper(
        io.BufferedWriter(_Pipe(stream.fileno(), "w", closefd=False)),
        encoding=stream.encoding,
        errors=stream.errors,
        line_buffering=stream.line_buffering,
    )


def discard_output(stream: IO[str] | IO[bytes]) -> None:
    """Redirect a stream to /dev/null, so that later output and the flush at exit do not fail."""
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def unwritable(path: Path, error: OSError, *, hint: str) -> BadInput:
    """Return the error for a file or folder of the user that cannot be written."""
    return BadInput(
        f"{plain(str(path), 200)} cannot be written: {error.strerror}",
        code=Code.OUTPUT_WRITE,
        hint=hint,
    )


def _write_file(path: Path, text: str) -> None:
    """Write a result to a file that the user named. Raises BadInput if that is not possible."""
    # Its types take 40 ms, which every other command would wait for.
    from accept.core.evidence import write

    try:
        # Devices and links are not replaced, because /dev/stdout is one.
        if path.is_symlink() or (path.exists() and not path.is_file()):
            raise OSError(errno.EINVAL, "not a regular file", str(path))
        write(path.parent.resolve() / path.name, text)
    except OSError as error:
        hint = "choose another file, or leave out --out for standard output"
        raise unwritable(path, error, hint=hint) from None


def _text(part: str | Table, *, keeps_colors: bool = False) -> str:
    text = part.plain() if isinstance(part, Table) else part
    return _without_controls(text, keeps_colors=keeps_colors).rstrip("\n") + "\n"


def _without_controls(text: str, *, keeps_colors: bool) -> str:
    """Return a text with nothing that controls a terminal, except colors if they are kept."""
    return "\n".join(
        line if line.isprintable() else _printable(line, keeps_colors=keeps_colors)
        for line in text.split("\n")
    )


def _printable(line: str, *, keeps_colors: bool) -> str:
    parts = _COLOR.split(line) if keeps_colors else [line]
    return "".join(
        # Scripts in the values of the chart may contain tabs.
        part if index % 2 else "\t".join(map(visible, part.split("\t")))
        for index, part in enumerate(parts)
    )


def _json(value: object) -> str:
    """Return a value as JSON; characters that control a terminal or are invisible are escaped."""
    # The help needs this module, but prints no JSON.
    from accept.core.serde import dump

    text = json.dumps(dump(value), indent=1, ensure_ascii=False)
    return re.sub(
        # Azure Pipelines takes the last form for a command, anywhere in a line.
        r"[^\x20-\x7e\n]|##(?=(?:vso)?\[)",
        lambda match: (
            r"#\u0023"
            if match[0] == "##"
            else match[0]
            if visible(match[0])
            else json.dumps(match[0])[1:-1]
        ),
        text,
    )
