"""`accept baseline`: use a good run as the user's own references."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.factories import sample_evidence
from tests.factories.command_line import accept, refused
from tests.factories.nccl_logs import NODES, TOP, corpus, slow, table
from tests.factories.simulated_runs import run_of
from tests.factories.simulated_worlds import BY_NAME

from accept import config
from accept.commands.baseline import BaselineFile, divisions, measured_kinds
from accept.core.serde import read

pytestmark = pytest.mark.usefixtures("runs")


@pytest.fixture
def logs(tmp_path: Path) -> Path:
    return corpus(tmp_path / "logs")


@pytest.fixture
def file(logs: Path, tmp_path: Path) -> Path:
    """Return a machine file that was created from the logs."""
    target = tmp_path / "mine.yaml"
    assert accept("baseline", logs, "--out", target).code == 0
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
        assert "below-reference" in done.out

    def test_a_collective_without_a_check_becomes_no_reference(
        self, logs: Path, tmp_path: Path
    ) -> None:
        (logs / "node1-broadcast.log").write_text(table("broadcast", ["node1"], range(8), 400.0))
        target = tmp_path / "mine.yaml"
        assert accept("baseline", logs, "--out", target).code == 0
        assert "check: broadcast" not in target.read_text()

    def test_the_user_sets_the_share(self, logs: Path, tmp_path: Path) -> None:
        target = tmp_path / "half.yaml"
        done = accept("baseline", logs, "--share", "0.5", "--out", target)
        assert "warning[W-BASELINE-LOW]" in done.err
        after = corpus(tmp_path / "after", lambda *_: 0.9)
        assert accept("judge", after, "--machine", target).code == 0

    def test_without_out_the_machine_is_printed(self, logs: Path) -> None:
        assert "kind: measured" in accept("baseline", logs).out
        made = json.loads(accept("baseline", logs, "--json").out)
        assert made["baseline"]["attempt"] == "logs"

    def test_the_written_file_is_reported_as_json(self, logs: Path, tmp_path: Path) -> None:
        target = tmp_path / "mine.yaml"
        made = json.loads(accept("baseline", logs, "--json", "--out", target).out)
        written = read(BaselineFile, made)
        assert written.machine == str(target)
        assert written.figures == target.read_text().count("kind: measured") > 0

    def test_an_accepted_run_is_a_reference(self, logs: Path, file: Path) -> None:
        done = accept("baseline", logs, "--machine", file)
        assert done.code == 0
        assert "state: pass" in done.out

    def test_uniformly_slow_results_need_force(self, file: Path, tmp_path: Path) -> None:
        after = corpus(tmp_path / "after", lambda *_: 0.9)
        refused("baseline", after, "--machine", file, error="E-BASELINE-NOT-ACCEPTED")
        assert accept("baseline", after, "--machine", file, "--force").code == 0


class TestRefused:
    def test_a_suspect_also_with_force(self, tmp_path: Path) -> None:
        bad = corpus(tmp_path / "bad", slow("node3"))
        assert "node3" in refused("baseline", bad, "--force", error="E-BASELINE-DIVIDED")

    def test_three_nodes_that_differ(self, tmp_path: Path) -> None:
        """The verdict does not compare so few nodes with each other."""
        uneven = corpus(tmp_path / "uneven", slow("node3", share=0.7), nodes=NODES[:3])
        assert "node3" not in accept("judge", uneven).out.splitlines()[0]
        refused("baseline", uneven, "--force", error="E-BASELINE-DIVIDED")

    def test_an_existing_file(self, file: Path, logs: Path) -> None:
        old = file.read_text()
        refused("baseline", logs, "--machine", file, "--out", file, error="E-OUTPUT-EXISTS")
        assert file.read_text() == old

    @pytest.mark.parametrize("share", ["0", "1.5", "-1", "nan"])
    def test_an_invalid_share(self, logs: Path, share: str) -> None:
        refused("baseline", logs, "--share", share, error="E-OPTION-RANGE")

    def test_an_unwritable_path(self, logs: Path, tmp_path: Path) -> None:
        target = tmp_path / "no" / "such" / "mine.yaml"
        refused("baseline", logs, "--out", target, error="E-OUTPUT-WRITE")

    def test_an_invalid_machine_name(self, logs: Path, tmp_path: Path) -> None:
        target = tmp_path / "My Machine.yaml"
        refused("baseline", logs, "--out", target, error="E-BASELINE-FILE")
        assert not target.exists()

    def test_an_existing_file_is_kept_if_the_new_one_is_invalid(
        self, logs: Path, tmp_path: Path
    ) -> None:
        target = tmp_path / "My_Machine.yaml"
        target.write_text("precious: 1")
        refused("baseline", logs, "--out", target, error="E-BASELINE-FILE")
        assert target.read_text() == "precious: 1"
        assert [path.name for path in tmp_path.iterdir() if "Machine" in path.name] == [target.name]

    def test_a_run_without_references(self, tmp_path: Path) -> None:
        folder = sample_evidence.write(tmp_path / "evidence")
        refused("baseline", folder, error="E-BASELINE-EMPTY")

    def test_a_missing_run(self) -> None:
        refused("baseline", "nosuch", error="E-RUN-UNKNOWN")

    def test_a_missing_machine(self, logs: Path) -> None:
        refused("baseline", logs, "--machine", "nosuch", error="E-MACHINE-UNKNOWN")


class TestSimulatedClusters:
    """Seventeen hosts in a few rounds of pairs, as in a run."""

    @pytest.mark.parametrize(
        "world",
        ["w0", "w9", "apart-5", "apart-10", "apart-15", "by-switch", "some-gpus", "same-gpus"],
    )
    def test_a_healthy_cluster_is_one_population(self, world: str) -> None:
        run = run_of(BY_NAME[world].cluster(17, 4, 1), 4)
        assert [*divisions(run, measured_kinds(run))] == []

    @pytest.mark.parametrize(
        "world",
        ["w1", "w7", "switch", "leaf", "rail", "rail-same", "gpu", "pairs-10-6", "collisions"],
    )
    def test_a_broken_cluster_is_not_one_population(self, world: str) -> None:
        run = run_of(BY_NAME[world].cluster(17, 8, 1), 8)
        assert [*divisions(run, measured_kinds(run))]

    def test_a_pair_that_failed_is_not_one_population(self) -> None:
        run = run_of(BY_NAME["pairs-dead"].cluster(17, 4, 1), 4)
        assert any("failed on" in reason for reason in divisions(run, measured_kinds(run)))
