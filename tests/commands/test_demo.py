"""Judge the simulated run that comes with `accept`: `accept demo`."""

from __future__ import annotations

import json
import tarfile
import webbrowser
from io import BytesIO
from pathlib import Path

import pytest
from tests.factories import demo_evidence
from tests.factories.command_line import accept

from accept.config import resources
from accept.core import evidence
from accept.core.error_codes import Code
from accept.core.errors import Exit


def logs(archive: bytes) -> dict[str, bytes]:
    """Return the raw logs of an archive, by path."""
    with tarfile.open(fileobj=BytesIO(archive)) as tar:
        files = {name: tar.extractfile(name) for name in tar.getnames() if name.endswith(".log")}
        return {name: file.read() for name, file in files.items() if file is not None}


def test_names_the_bad_node_and_no_other(runs: Path) -> None:
    done = accept("demo", "--json")
    verdict = json.loads(done.out)
    assert done.code == Exit.PASS
    assert verdict["state"] == "degraded"
    assert [suspect["hosts"] for suspect in verdict["suspects"]] == [[demo_evidence.BAD]]
    assert (runs / "demo" / "report.html").is_file()
    assert (runs / "demo" / "nodes" / "bad.txt").read_text() == f"{demo_evidence.BAD}\n"


@pytest.mark.rare
def test_can_be_repeated_and_used_like_a_run(runs: Path) -> None:
    assert accept("demo").code == accept("demo").code == Exit.PASS
    assert accept("judge", "last").code == Exit.REJECTED
    assert accept("explain", "demo", demo_evidence.BAD).code == Exit.PASS
    assert accept("ticket", "demo", demo_evidence.BAD).code == Exit.PASS
    assert accept("retest", "demo").error == Code.RUN_UNREADABLE


def test_leaves_a_run_of_the_same_name_alone(runs: Path) -> None:
    assert accept("render", "-m", "cpu", "--out", runs / "demo").code == Exit.PASS
    files = sorted((runs / "demo").rglob("*"))
    assert accept("demo").error == Code.ATTEMPT_EXISTS
    assert sorted((runs / "demo").rglob("*")) == files


def test_opens_no_browser_without_a_desktop(runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[str] = []
    monkeypatch.setattr(webbrowser, "open", opened.append)
    monkeypatch.delenv("DISPLAY", raising=False)
    monkeypatch.delenv("WAYLAND_DISPLAY", raising=False)
    assert accept("demo").code == Exit.PASS
    assert opened == []


class TestEvidence:
    SHIPPED = resources.demo().read_bytes()

    def test_has_the_logs_of_the_simulator(self) -> None:
        """If this fails: `python -m tests.factories.demo_evidence`."""
        assert logs(self.SHIPPED) == logs(demo_evidence.archive())

    def test_is_marked_as_simulated(self) -> None:
        assert all(
            log.startswith(demo_evidence.MARK.encode()) for log in logs(self.SHIPPED).values()
        )
        with tarfile.open(fileobj=BytesIO(self.SHIPPED)) as tar:
            plan = tar.extractfile(f"evidence/{evidence.PLAN}")
            assert plan is not None
            assert json.load(plan)["suite"] == "simulated"
