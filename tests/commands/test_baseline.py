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

    def test_the_same_logs_pass_with_it_and_slower_ones_fail(
        self, file: Path, logs: Path, tmp_path: Path
    ) -> None:
        assert accept("judge", logs, "--machine", file).code == 0
        done = accept("judge", corpus(tmp_path / "after", lambda *_: 0.9), "--machine", file)
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

    def test_it_is_printed_or_reported_as_json(self, logs: Path, tmp_path: Path) -> None:
        assert "kind: measured" in accept("baseline", logs).out
        made = json.loads(accept("baseline", logs, "--json").out)
        assert made["baseline"]["attempt"] == "logs"
        target = tmp_path / "mine.yaml"
        done = accept("baseline", logs, "--json", "--out", target)
        written = read(BaselineFile, json.loads(done.out))
        assert written.machine == str(target)
        assert written.figures == target.read_text().count("kind: measured") > 0
        assert "state: pass" in accept("baseline", logs, "--machine", target).out

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

    @pytest.mark.parametrize(
        ("option", "value", "error"),
        [
            *(("--share", share, "E-OPTION-RANGE") for share in ("0", "1.5", "-1", "nan")),
            ("--out", "no/such/mine.yaml", "E-OUTPUT-WRITE"),
            ("--out", "My Machine.yaml", "E-BASELINE-FILE"),
            ("--machine", "nosuch", "E-MACHINE-UNKNOWN"),
        ],
    )
    @pytest.mark.usefixtures("working")
    def test_an_invalid_option(self, logs: Path, option: str, value: str, error: str) -> None:
        refused("baseline", logs, option, value, error=error)
        assert not Path(value).exists()

    def test_an_existing_file_is_kept_if_the_new_one_is_invalid(
        self, logs: Path, tmp_path: Path
    ) -> None:
        target = tmp_path / "My_Machine.yaml"
        target.write_text("precious: 1")
        refused("baseline", logs, "--out", target, error="E-BASELINE-FILE")
        assert target.read_text() == "precious: 1"
        assert [path.name for path in tmp_path.iterdir() if "Machine" in path.name] == [target.name]

    def test_a_run_without_references_or_that_is_missing(self, tmp_path: Path) -> None:
        refused("baseline", sample_evidence.write(tmp_path / "e"), error="E-BASELINE-EMPTY")
        refused("baseline", "nosuch", error="E-RUN-UNKNOWN")


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
