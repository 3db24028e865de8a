"""Folders of the repository that tests read."""

from __future__ import annotations

from pathlib import Path

#: The repository's top folder.
ROOT = Path(__file__).resolve().parents[2]
TESTS = ROOT / "tests"
CLI = ROOT / "cli"
LAUNCHERS = ROOT / "launchers"
PROGRAMS = LAUNCHERS / "programs"
DOCS = ROOT / "docs"
