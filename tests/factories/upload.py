"""Evidence to upload, and calls of upload.py."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.factories.clock import PATIENCE

from accept.config import resources

PROGRAM = resources.launchers() / "programs" / "upload.py"


def evidence_in(folder: Path) -> Path:
    """Write a small evidence folder; return it."""
    made = folder / "evidence"
    (made / "logs").mkdir(parents=True)
    (made / "plan.json").write_text("{}")
    (made / "records.jsonl").write_text("one\n")
    (made / "logs" / "odd name %20 ü.log").write_bytes(b"\xff\x00")
    return made


def command(source: Path, place: Path | str, *options: str) -> list[str]:
    """Return the command line that uploads as attempt `a1`."""
    return [sys.executable, str(PROGRAM), str(source), str(place), "--attempt", "a1", *options]


def send(source: Path, place: Path | str, *options: str) -> subprocess.CompletedProcess[str]:
    """Upload and wait for the end."""
    words = command(source, place, *options)
    return subprocess.run(words, capture_output=True, text=True, check=False, timeout=PATIENCE)
