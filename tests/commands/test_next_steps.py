"""Each command shows what to type next, and the line works."""

from __future__ import annotations

import re
import shlex
import shutil
from pathlib import Path

import pytest
from tests.factories import sample_evidence
from tests.factories.command_line import accept
from tests.factories.paths import TESTS

pytestmark = pytest.mark.usefixtures("runs")


def next_steps(*words: object) -> list[str]:
    """Call a command, and return the commands of the lines that start with "next:"."""
    done = accept(*words)
    assert "next: " not in done.out
    return re.findall(r"^next: (.*)$", done.err, re.MULTILINE)


def test_values_for_helm_are_installed_and_a_rendered_folder_is_submitted(working: Path) -> None:
    render = ("render", "-m", "cpu", "-n", 2, "--site", TESTS / "site.yaml")
    (step,) = next_steps(*render)
    assert step.startswith("helm install ")
    assert "accept chart" in step
    (step,) = next_steps(*render, "--out", working / "one")
    assert step.startswith("accept submit ")
    assert accept(*shlex.split(step)[1:], "--dry-run").code == 0


def test_collected_evidence_is_judged_and_a_report_is_opened(runs: Path) -> None:
    sample_evidence.write(runs / "one" / "evidence")
    (step,) = next_steps("collect", "one")
    assert accept(*shlex.split(step)[1:]).code == 0
    assert next_steps("collect", "one", "-q") == []
    assert len(next_steps("report", "one")) == 1


@pytest.mark.real
def test_a_ready_machine_is_tested() -> None:
    (step,) = next_steps("doctor", "-m", "cpu", "--only", "inventory", "-v")
    assert step == "accept run -m cpu --only inventory"
    assert accept(*shlex.split(step)[1:], "--dry-run").code == 0


def test_logs_without_a_run_get_a_report_that_is_printed(working: Path) -> None:
    shutil.copytree(TESTS / "data" / "nccl-logs", working / "my logs")
    (step,) = next_steps("judge", "my logs")
    words = shlex.split(step)
    assert accept(*words[1 : words.index(">")]).out.startswith("<!doctype html>")
