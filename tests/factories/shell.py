"""Programs that tests write, and run to their end."""

from __future__ import annotations

import subprocess
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from tests.factories.clock import PATIENCE


def run_program(
    words: Iterable[object], *, check: bool = False, **options: Any
) -> subprocess.CompletedProcess[str]:
    """Run a program without input; return it with its output as text."""
    usual = {"stdin": subprocess.DEVNULL, "capture_output": True, "text": True}
    options = {**usual, "timeout": PATIENCE, **options}
    return subprocess.run([str(word) for word in words], check=check, **options)


def write_program(path: Path, script: str) -> Path:
    """Write a program that runs a script of sh; return its path."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return path
