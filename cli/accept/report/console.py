"""Print results on stdout and progress on stderr: with rich on a terminal, else as plain text.

Text from hosts and logs is untrusted: control characters are removed, and markup has no effect.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TextIO

from accept.core.serde import dump
from accept.core.text import visible


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
    _began: float = field(default_factory=time.monotonic)

    @property
    def color(self) -> bool:
        """Return True if stdout is a terminal with colors."""
        return _is_styled(sys.stdout)

    @property
    def width(self) -> int:
        """Columns of the terminal, from 60 to 140; 100 if stdout is not a terminal."""
        try:
            return max(60, min(140, os.get_terminal_size(sys.stdout.fileno()).columns))
        except (OSError, ValueError):
            return 100

    def progress(self, text: str) -> None:
        """Print one line of progress on stderr, with the seconds since the start."""
        if self.quiet:
            return
        seconds = f"{time.monotonic() - self._began:7.1f} s"
        if _is_styled(sys.stderr):
            _print_dimmed(seconds, visible(text))
        else:
            sys.stderr.write(f"{seconds}  {visible(text)}\n")
            sys.stderr.flush()

    def detail(self, text: str) -> None:
        """Print a line of progress with -v only."""
        if self.verbose:
            self.progress(text)

    def result(self, value: object, *parts: str | Table) -> None:
        """Print the result: `value` as JSON with --json, else the texts and tables."""
        if self.json:
            parts = (json.dumps(dump(value), indent=1, ensure_ascii=False),)
        for part in parts:
            if isinstance(part, Table) and self.color:
                # Rich writes to the same stream.
                sys.stdout.flush()
                part.print_styled()
            else:
                text = part.plain() if isinstance(part, Table) else part
                sys.stdout.write(text.rstrip("\n") + "\n")
        sys.stdout.flush()


def _print_dimmed(first: str, text: str) -> None:
    """Print a line on stderr, its first part dimmed; long lines are not wrapped here."""
    from rich.console import Console
    from rich.text import Text

    line = Text.assemble((first, "dim"), f"  {text}")
    Console(file=sys.stderr, highlight=False).print(line, soft_wrap=True)
