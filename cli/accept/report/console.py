"""What is printed where: the result on stdout, progress on stderr, live on a terminal."""

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
    """How this command talks: set once from its options."""

    json: bool = False
    quiet: bool = False
    verbose: bool = False
    _began: float = field(default_factory=time.monotonic)

    @property
    def color(self) -> bool:
        """Whether stdout takes colors: a terminal, and the user did not say NO_COLOR."""
        return (
            sys.stdout.isatty()
            and not os.environ.get("NO_COLOR")
            and os.environ.get("TERM") != "dumb"
        )

    @property
    def width(self) -> int:
        """Columns of the terminal; 100 where there is none."""
        try:
            return max(60, min(140, os.get_terminal_size(sys.stdout.fileno()).columns))
        except (OSError, ValueError):
            return 100

    def progress(self, text: str) -> None:
        """One line of progress, with the time since the start, on stderr."""
        if not self.quiet:
            if not text.isprintable():
                from accept.core.text import visible

                text = visible(text)
            sys.stderr.write(f"{time.monotonic() - self._began:7.1f} s  {text}\n")
            sys.stderr.flush()

    def detail(self, text: str) -> None:
        """A line only for -v."""
        if self.verbose:
            self.progress(text)

    def result(self, value: Any, text: str) -> None:
        """The result: `value` as JSON where asked for, else `text`."""
        if self.json:
            text = json.dumps(dump(value), indent=1, ensure_ascii=False)
        sys.stdout.write(text.rstrip("\n") + "\n")
        sys.stdout.flush()
