"""`accept diff`: separate slowdowns between two runs or folders of logs from noise."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from tests.factories import sample_evidence
from tests.factories.command_line import accept, refused
from tests.factories.nccl_logs import NODES, corpus, fine, slow, table

from accept.commands.diff import Diff
from accept.core.serde import dump, read

pytestmark = pytest.mark.usefixtures("runs")


@pytest.fixture
def before(tmp_path: Path) -> Path:
    return corpus(tmp_path / "before", seed=1)


def compared(a: Path, b: Path) -> dict[str, Any]:
    done = accept("diff", a, b, "--json")
    assert dump(read(Diff, json.loads(done.out))) == json.loads(done.out)
    found: dict[str, Any] = json.loads(done.out)
    assert done.code == (3 if found["regression"] else 0)
    return found


class TestNoise:
    def test_equal_logs_do_not_differ(self, before: Path) -> None:
        found = compared(before, before)
        assert not any(one["significant"] for one in found["changes"])
        assert {one["change"] for one in found["changes"]} == {0.0}

    def test_two_days_of_the_same_cluster_do_not_differ(self, before: Path, tmp_path: Path) -> None:
        after = corpus(tmp_path / "after", seed=2)
        assert not compared(before, after)["regression"]
        assert not compared(after, before)["regression"]

    def test_one_group_alone_must_change_more_than_many(self, tmp_path: Path) -> None:
        def log(name: str, busbw: float, nodes: int) -> Path:
            folder = tmp_path / name
            folder.mkdir(exist_ok=True)
            for node in NODES[:nodes]:
                (folder / f"{node}.log").write_text(table("all_reduce", [node], (0, 1), busbw))
            return folder

        assert not compared(log("a", 100, 1), log("b", 97, 1))["regression"]
        assert compared(log("c", 100, 8), log("d", 97, 8))["regression"]
        assert compared(log("a", 100, 1), log("e", 90, 1))["regression"]

    def test_a_missing_host_is_reported(self, before: Path, tmp_path: Path) -> None:
        after = corpus(tmp_path / "after", nodes=NODES[:-1])
        assert compared(before, after)["hostsOnlyInA"] == [NODES[-1]]
        assert f"Hosts only in A: {NODES[-1]}" in accept("diff", before, after).out


class TestSlower:
    def test_everything(self, before: Path, tmp_path: Path) -> None:
        after = corpus(tmp_path / "after", lambda *_: 0.96, seed=2)
        pairs = [one for one in compared(before, after)["changes"] if one["groups"] == "pairs"]
        assert all(one["significant"] for one in pairs)
        assert all(-0.045 < one["change"] < -0.035 for one in pairs)
        assert {one["paired"] for one in pairs} == {28}

    def test_one_slow_node_is_named(self, before: Path, tmp_path: Path) -> None:
        found = compared(before, corpus(tmp_path / "after", slow("node3"), seed=2))
        lost = {host["host"] for one in found["changes"] for host in one["hosts"]}
        assert lost == {"node3"}
        assert found["b"]["state"] == "degraded"
        text = accept("diff", before, tmp_path / "after").out
        assert text.startswith("slower: ")
        assert "node3: -10" in text

    def test_a_node_that_was_always_slow_is_not_a_change(self, tmp_path: Path) -> None:
        a = corpus(tmp_path / "a", slow("node3"), seed=1)
        b = corpus(tmp_path / "b", slow("node3"), seed=2)
        assert not compared(a, b)["regression"]

    def test_faster_results_are_not_a_regression(self, before: Path, tmp_path: Path) -> None:
        found = compared(before, corpus(tmp_path / "after", lambda *_: 1.05, seed=2))
        assert not found["regression"]
        assert any(one["significant"] and one["change"] > 0 for one in found["changes"])

    def test_a_pair_that_no_longer_runs_is_a_regression(self, before: Path, tmp_path: Path) -> None:
        def speed(_: str, hosts: Sequence[str], __: Sequence[int]) -> float | None:
            return None if tuple(hosts) == ("node1", "node2") else 1.0

        found = compared(before, corpus(tmp_path / "after", speed, seed=2))
        assert found["regression"]
        assert {tuple(one["hosts"]) for one in found["failed"]} == {("node1", "node2")}


class TestComparedKinds:
    def test_new_damage_is_a_regression_although_a_was_degraded(self, tmp_path: Path) -> None:
        before = corpus(tmp_path / "a", slow("node3"))
        after = corpus(tmp_path / "b", slow("node3"))
        log = after / "G0-1-2-3-4-5-6-7_node5.log"
        text = log.read_text().replace("      0 ", "     17 ", 1)
        log.write_text(text.replace("values : 0 OK", "values : 1 FAILED", 1))
        found = compared(before, after)
        assert found["regression"]
        assert [(one["hosts"], one["cause"]) for one in found["accused"]] == [
            (["node5"], "wrong-data")
        ]
        assert not compared(after, before)["regression"]
        assert "Accused only in B: node5 (wrong-data)" in accept("diff", before, after).out

    def test_kinds_that_one_side_lacks_are_listed(self, before: Path, tmp_path: Path) -> None:
        after = corpus(tmp_path / "after", gpus=(range(8), range(4)), seed=2)
        found = compared(before, after)
        assert found["onlyInA"] == []
        assert {kind["gpus"] for kind in found["onlyInB"]} == {4}

    def test_evidence_of_runs(self, tmp_path: Path) -> None:
        one, two = (sample_evidence.write(tmp_path / name) for name in ("one", "two"))
        assert accept("diff", one, two).error == "E-DIFF-NOTHING-IN-COMMON"


class TestRefused:
    def test_nothing_in_common(self, before: Path, tmp_path: Path) -> None:
        other = corpus(tmp_path / "other", fine, nodes=NODES[:2], gpus=(range(4),))
        (other / "G0-1-2-3_node1_node2.log").unlink()
        for path in other.iterdir():
            path.write_text(path.read_text().replace("1073741824", "1073741820"))
        for path in before.glob("*"):
            if path.name.count("node") < 2:
                path.unlink()
        assert accept("diff", before, other).error == "E-DIFF-NOTHING-IN-COMMON"

    def test_a_missing_run(self, before: Path) -> None:
        refused("diff", before, "nosuch", error="E-RUN-UNKNOWN")

    def test_one_path_alone(self, before: Path) -> None:
        assert accept("diff", before).code == 2

    def test_a_file_that_is_neither_evidence_nor_a_log(self, before: Path, tmp_path: Path) -> None:
        (tmp_path / "x").write_text("x")
        refused("diff", before, tmp_path / "x", code=6, error="E-LOGS-NOT-A-LOG")
