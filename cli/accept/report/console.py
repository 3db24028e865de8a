"""Print results on stdout and progress on stderr."""

from __future__ import annotations

import json
import os
import sys
import time
from dataclasses import dataclass, field
from typing import Any

from accept.core.serde import dump


@dataclass(kw_only=True)
class Terminal:
    """The output settings of a command, from its options."""

    json: bool = False
    quiet: bool = False
    verbose: bool = False
    _began: float = field(default_factory=time.monotonic)

    @property
    def color(self) -> bool:
        """Whether stdout is a terminal with colors; NO_COLOR and TERM=dumb turn them off."""
        return (
            sys.stdout.isatty()
            and not os.environ.get("NO_COLOR")
            and os.environ.get("TERM") != "dumb"
        )

    @property
    def width(self) -> int:
        """Columns of the terminal, from 60 to 140; 100 if stdout is not a terminal."""
        try:
            return max(60, min(140, os.get_terminal_size(sys.stdout.fileno()).columns))
        except (OSError, ValueError):
            return 100

    def progress(self, text: str) -> None:
        """Print one line of progress on stderr, with the seconds since the start."""
        if not self.quiet:
            if not text.isprintable():
                from accept.core.text import visible

                text = visible(text)
            sys.stderr.write(f"{time.monotonic() - self._began:7.1f} s  {text}\n")
            sys.stderr.flush()

    def detail(self, text: str) -> None:
        """Print a line of progress with -v only."""
        if self.verbose:
            self.progress(text)

    def result(self, value: Any, text: str) -> None:
        """Print the result: `value` as JSON with --json, else `text`."""
        if self.json:
            text = json.dumps(dump(value), indent=1, ensure_ascii=False)
        sys.stdout.write(text.rstrip("\n") + "\n")
        sys.stdout.flush()
