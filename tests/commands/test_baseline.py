"""`accept baseline`: use a good run as the user's own references."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.factories import sample_evidence
from tests.factories.command_line import accept, refused
from tests.factories.nccl_logs import TOP, corpus, slow, table

from accept import config
from accept.commands.baseline import BaselineFile
from accept.core.serde import read

pytestmark = pytest.mark.usefixtures("runs")


@pytest.fixture
def logs(tmp_path: Path) -> Path:
    return corpus(tmp_path / "logs")


@pytest.fixture
def file(logs: Path, tmp_path: Path) -> Path:
    """Return a machine file that was created from the logs."""
    target = tmp_path / "mine.yaml"
    assert accept("baseline", logs, "--force", "--out", target).code == 0
    return target


class TestTheFile:
    def test_it_is_a_machine_with_its_provenance(self, file: Path, logs: Path) -> None:
        machine = config.load_machine(str(file)).value
        assert machine.name == "mine"
        assert machine.baseline is not None
        assert machine.baseline.attempt == logs.name
        assert machine.baseline.state == "inconclusive"
        assert len(machine.baseline.hosts) == 8
        assert machine.baseline.versions["nccl-tests"] == "2.17.8"

    def test_its_figures_are_medians_of_what_was_measured(self, file: Path) -> None:
        own = [f for f in config.load_machine(str(file)).value.references if f.kind == "measured"]
        own = [figure for figure in own if figure.source == "run:logs"]
        assert {(f.check, f.min_nodes, f.max_nodes) for f in own} == {
            (check, nodes, nodes) for check in ("all-reduce", "alltoall") for nodes in (1, 2, 8)
        }
        one = next(f for f in own if f.check == "alltoall" and f.min_nodes == 2)
        assert one.value == pytest.approx(92, rel=0.01)
        assert (one.share, one.size) == (0.95, TOP)

    def test_the_same_logs_pass_with_it(self, file: Path, logs: Path) -> None:
        assert accept("judge", logs, "--machine", file).code == 0

    def test_slower_logs_fail_with_it(self, file: Path, tmp_path: Path) -> None:
        after = corpus(tmp_path / "after", lambda *_: 0.9)
        done = accept("judge", after, "--machine", file)
        assert done.code == 3
        assert "run:logs" in done.out

    def test_a_collective_without_a_check_becomes_no_reference(
        self, logs: Path, tmp_path: Path
    ) -> None:
        wrong = table("broadcast", ["node1"], range(8), 400.0).replace("       0", "       5", 1)
        (logs / "node1-broadcast.log").write_text(wrong)
        target = tmp_path / "mine.yaml"
        assert accept("baseline", logs, "--force", "--out", target).code == 0
        assert "check: broadcast" not in target.read_text()

    def test_the_user_sets_the_share(self, logs: Path, tmp_path: Path) -> None:
        target = tmp_path / "half.yaml"
        accept("baseline", logs, "--force", "--share", "0.5", "--out", target)
        after = corpus(tmp_path / "after", lambda *_: 0.9)
        assert accept("judge", after, "--machine", target).code == 0

    def test_without_out_the_machine_is_printed(self, logs: Path) -> None:
        assert "kind: measured" in accept("baseline", logs, "--force").out
        made = json.loads(accept("baseline", logs, "--force", "--json").out)
        assert made["baseline"]["attempt"] == "logs"

    def test_the_written_file_is_reported_as_json(self, logs: Path, tmp_path: Path) -> None:
        target = tmp_path / "mine.yaml"
        made = json.loads(accept("baseline", logs, "--force", "--json", "--out", target).out)
        written = read(BaselineFile, made)
        assert written.machine == str(target)
        assert written.figures == target.read_text().count("kind: measured") > 0

    def test_an_accepted_run_needs_no_force(self, logs: Path, file: Path) -> None:
        done = accept("baseline", logs, "--machine", file)
        assert done.code == 0
        assert "state: pass" in done.out


class TestRefused:
    def test_a_run_that_was_not_accepted(self, tmp_path: Path) -> None:
        bad = corpus(tmp_path / "bad", slow("node3"))
        error = refused("baseline", bad, error="E-BASELINE-NOT-ACCEPTED")
        assert "node3" in error
        assert "--force" in error

    def test_an_existing_file(self, file: Path, logs: Path) -> None:
        old = file.read_text()
        refused("baseline", logs, "--machine", file, "--out", file, error="E-OUTPUT-EXISTS")
        assert file.read_text() == old

    @pytest.mark.parametrize("share", ["0", "1.5", "-1", "nan"])
    def test_an_invalid_share(self, logs: Path, share: str) -> None:
        refused("baseline", logs, "--force", "--share", share, error="E-OPTION-RANGE")

    def test_an_unwritable_path(self, logs: Path, tmp_path: Path) -> None:
        target = tmp_path / "no" / "such" / "mine.yaml"
        refused("baseline", logs, "--force", "--out", target, error="E-OUTPUT-WRITE")

    def test_an_invalid_machine_name(self, logs: Path, tmp_path: Path) -> None:
        target = tmp_path / "My Machine.yaml"
        refused("baseline", logs, "--force", "--out", target, error="E-BASELINE-FILE")
        assert not target.exists()

    def test_an_existing_file_is_kept_if_the_new_one_is_invalid(
        self, logs: Path, tmp_path: Path
    ) -> None:
        target = tmp_path / "My_Machine.yaml"
        target.write_text("precious: 1")
        refused("baseline", logs, "--force", "--out", target, error="E-BASELINE-FILE")
        assert target.read_text() == "precious: 1"
        assert [path.name for path in tmp_path.iterdir() if "Machine" in path.name] == [target.name]

    def test_a_run_without_references(self, tmp_path: Path) -> None:
        folder = sample_evidence.write(tmp_path / "evidence")
        refused("baseline", folder, error="E-BASELINE-EMPTY")

    def test_a_missing_run(self) -> None:
        refused("baseline", "nosuch", error="E-RUN-UNKNOWN")

    def test_a_missing_machine(self, logs: Path) -> None:
        refused("baseline", logs, "--force", "--machine", "nosuch", error="E-MACHINE-UNKNOWN")
