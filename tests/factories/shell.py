"""Programs that tests run to their end."""

from __future__ import annotations

import subprocess
from collections.abc import Iterable
from typing import Any

from tests.factories.clock import PATIENCE


def run_program(
    words: Iterable[object], *, check: bool = False, **options: Any
) -> subprocess.CompletedProcess[str]:
    """Run a program without input; return it with its output as text."""
    usual = {"stdin": subprocess.DEVNULL, "capture_output": True, "text": True}
    options = {**usual, "timeout": PATIENCE, **options}
    return subprocess.run([str(word) for word in words], check=check, **options)
