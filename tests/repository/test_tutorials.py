"""The tutorials, typed as they are shown."""

from __future__ import annotations

import re
import shlex
import subprocess
from pathlib import Path

import pytest
from tests.factories.command_line import accept
from tests.factories.doc_examples import CODE_BLOCK, examples
from tests.factories.paths import ROOT

TUTORIALS = sorted((ROOT / "docs" / "tutorials").glob("*.md"))


def typed(command: str) -> str:
    """Run a command in the current folder, and return what it prints."""
    words = shlex.split(command)
    if words[0] == "accept":
        done = accept(*words[1:])
        return done.out + done.err
    result = subprocess.run(["sh", "-c", command], capture_output=True, text=True, check=True)
    return result.stdout


def shown(block: str) -> list[str]:
    """Return the pieces of a shortened screen that its command must print, in their order."""
    return [piece for line in block.splitlines() for piece in line.split("…") if piece.strip()]


def missing(block: str, output: str) -> list[str]:
    """Return the pieces that an output lacks."""
    lacking = []
    for piece in shown(block):
        before, found, after = output.partition(piece)
        output = after if found else before
        lacking += [] if found else [piece]
    return lacking


def screens(page: Path) -> list[tuple[str, str]]:
    """Return the commands of a page, each with the screen that follows it, or an empty text."""
    pairs: list[tuple[str, str]] = []
    for kind, _, block in CODE_BLOCK.findall(page.read_text()):
        if kind == "console":
            pairs += [(line.removeprefix("$ "), "") for line in block.splitlines()]
        elif kind == "text":
            pairs[-1] = (pairs[-1][0], block)
    return pairs


@pytest.fixture
def _home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Start with an empty home folder, as the current one."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("ACCEPT_RUNS", "XDG_STATE_HOME"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.usefixtures("_home")
def test_the_tutorial_about_evidence_runs_from_its_first_to_its_last_command() -> None:
    steps = screens(ROOT / "docs" / "tutorials" / "evidence.md")
    assert [(command, missing(screen, typed(command))) for command, screen in steps] == [
        (command, []) for command, _ in steps
    ]


@pytest.mark.usefixtures("_home")
@pytest.mark.parametrize("page", TUTORIALS, ids=lambda page: page.stem)
def test_what_needs_no_nodes_prints_what_is_shown(page: Path) -> None:
    for name, content in examples(str(page.relative_to(ROOT))).items():
        Path(name).write_text(content)
    steps = [step for step in screens(page) if re.search("--dry-run|accept demo", step[0])]
    assert steps
    assert [missing(screen, typed(command)) for command, screen in steps] == [[] for _ in steps]


@pytest.mark.parametrize("page", TUTORIALS, ids=lambda page: page.stem)
def test_every_tutorial_ends_with_what_next(page: Path) -> None:
    assert re.findall(r"^## (.*)$", page.read_text(), re.MULTILINE)[-1] == "What next"
