"""`accept diff`: separate slowdowns between two runs or folders of logs from noise."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Any

import pytest
from tests.factories import sample_evidence
from tests.factories.command_line import accept
from tests.factories.judging import EIGHT, gpu_plan, judged
from tests.factories.nccl_logs import NODES, corpus, fine, slow, table
from tests.factories.simulated_runs import run_of
from tests.factories.simulated_worlds import BY_NAME
from tests.factories.verdicts import hosts_record, measured, record, step

from accept.commands.diff import Diff, compare, text_of
from accept.commands.judged import Judged
from accept.core.errors import BadInput
from accept.core.records import Metric
from accept.core.serde import dump, read
from accept.core.text import number

pytestmark = pytest.mark.usefixtures("runs")


@pytest.fixture
def before(tmp_path: Path) -> Path:
    return corpus(tmp_path / "before", seed=1)


def compared(a: Path, b: Path) -> dict[str, Any]:
    done = accept("diff", a, b, "--json")
    assert dump(read(Diff, json.loads(done.out))) == json.loads(done.out)
    found: dict[str, Any] = json.loads(done.out)
    assert done.code == (3 if found["regression"] else 0 if found["complete"] else 6)
    return found


class TestNoise:
    def test_equal_logs_do_not_differ(self, before: Path) -> None:
        found = compared(before, before)
        assert not any(one["significant"] for one in found["changes"])
        assert {one["change"] for one in found["changes"]} == {0.0}

    def test_two_days_of_the_same_cluster_do_not_differ(self, tmp_path: Path) -> None:
        """Also with a node that was always slow."""
        for speed in (fine, slow("node3")):
            a, b = (corpus(tmp_path / f"{n}", speed, seed=n) for n in (1, 2))
            assert not compared(a, b)["regression"]
            assert not compared(b, a)["regression"]

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


@pytest.mark.parametrize("with_disk", [False, True])
def test_checks_of_single_gpus_are_named_as_not_compared(*, with_disk: bool) -> None:
    steps = step("gemm"), step("disk", number=20)
    metrics = (
        Metric(check="gemm", name="bf16", value=700.0, unit="TFLOP/s", host=EIGHT[0], rank=0),
        Metric(check="disk", name="wait", value=5.0, unit="us"),
    )
    records = [record(of, EIGHT, one) for of, one in zip(steps, metrics, strict=True)]
    plan, kept = gpu_plan(*steps), (hosts_record(EIGHT), *records[: 1 + with_disk])
    run = Judged(verdict=judged(plan, *kept), plan=plan, records=kept)
    if with_disk:
        assert "Not compared: results of single GPUs or NICs (gemm)" in text_of(
            compare("a", run, "b", run)
        )
    else:
        with pytest.raises(BadInput) as error:
            compare("a", run, "b", run)
        assert "(gemm)" in error.value.hint


def test_pings_are_not_compared_and_a_longer_time_is_a_factor() -> None:
    def run(microseconds: float) -> Judged:
        steps = step("connectivity"), step("disk", number=20)
        times = (
            Metric(check=name, name=metric, value=microseconds, unit="us")
            for name, metric in (("connectivity", "ping"), ("disk", "wait"))
        )
        records = [record(of, EIGHT, time) for of, time in zip(steps, times, strict=True)]
        plan = gpu_plan(*steps)
        verdict = judged(plan, hosts_record(EIGHT), *records)
        return Judged(verdict=verdict, plan=plan, records=tuple(records))

    found = compare("a", run(24), "b", run(12000))
    assert [one.check for one in found.changes] == ["disk"]
    assert "500 times as much" in text_of(found)


class TestNotMeasured:
    """A comparison without everything that A measured is incomplete."""

    def test_a_missing_host_is_named(self, before: Path, tmp_path: Path) -> None:
        after = corpus(tmp_path / "after", nodes=NODES[:-1])
        found = compared(before, after)
        assert found["hostsOnlyInA"] == [NODES[-1]]
        assert not found["complete"]
        assert {len(one["missing"]) for one in found["notMeasured"]} == {1, 7}
        assert f"Nodes only in A: {NODES[-1]}" in accept("diff", before, after).out

    def test_missing_pairs_are_counted(self, before: Path, tmp_path: Path) -> None:
        after = corpus(tmp_path / "after", seed=2)
        pairs = sorted(path for path in after.iterdir() if path.name.count("node") == 2)
        for path in pairs[::2]:
            path.unlink()
        found = compared(before, after)
        assert (found["regression"], found["complete"]) == (False, False)
        assert {(len(one["missing"]), one["groupsA"]) for one in found["notMeasured"]} == {(14, 28)}

    def test_more_in_b_is_complete(self, before: Path, tmp_path: Path) -> None:
        after = corpus(tmp_path / "after", nodes=NODES[:-1])
        assert compared(after, before)["complete"]

    def test_other_pairs_of_a_run_are_as_good(self) -> None:
        def run(seed: int) -> Judged:
            pairs = step("all-reduce", "pairs", rounds=3)
            chance = Random(seed)
            records = measured(pairs, EIGHT, lambda _: 100 + chance.gauss(0, 0.2), seed=seed)
            plan = gpu_plan(pairs, seed=seed)
            verdict = judged(plan, hosts_record(EIGHT), *records)
            return Judged(verdict=verdict, plan=plan, records=tuple(records))

        found = compare("a", run(1), "b", run(2))
        assert (found.regression, found.complete) == (False, True)
        assert found.changes[0].paired < 12


class TestSlower:
    def test_a_slowdown_of_all_nodes_is_significant_in_every_figure(
        self, before: Path, tmp_path: Path
    ) -> None:
        after = corpus(tmp_path / "after", lambda *_: 0.96, seed=2)
        pairs = [one for one in compared(before, after)["changes"] if one["groups"] == "pairs"]
        assert all(one["significant"] for one in pairs)
        assert all(-0.045 < one["change"] < -0.035 for one in pairs)
        assert {one["paired"] for one in pairs} == {28}

    def test_one_slow_node_is_named(self, before: Path, tmp_path: Path) -> None:
        found = compared(before, corpus(tmp_path / "after", slow("node3"), seed=2))
        assert [one["host"] for one in found["hosts"]] == ["node3"]
        assert found["hosts"][0]["change"] == pytest.approx(-0.1, abs=0.005)
        assert found["b"]["state"] == "fail"
        assert found["pairs"] == []
        (worst, *_) = own = [one for one in found["moved"] if one["hosts"] == ["node3"]]
        assert len(own) == found["hosts"][0]["ofFigures"]
        assert worst["b"] / worst["a"] == pytest.approx(1 + worst["change"], abs=1e-5)
        states = {one["host"]: (one["a"], one["b"]) for one in found["states"]}
        assert states.pop("node3") == ("untested", "bad")
        assert {*states.values()} <= {("untested", "untested")}
        text = accept("diff", before, tmp_path / "after").out
        assert text.startswith("node3 is 1")
        values = f"{number(worst['a'])} -> {number(worst['b'])} {worst['unit']}"
        assert values in text.splitlines()[0]
        assert f"  node3: untested -> bad: {worst['check']}" in text
        assert "nothing else changed" in text.splitlines()[0]

    def test_a_node_two_percent_slower_is_seen_in_all_figures_together(
        self, before: Path, tmp_path: Path
    ) -> None:
        found = compared(before, corpus(tmp_path / "after", slow("node3", share=0.98), seed=2))
        assert [(h["host"], h["figures"], h["ofFigures"]) for h in found["hosts"]] == [
            ("node3", 4, 4)
        ]
        assert not any(one["significant"] for one in found["changes"])

    def test_a_pair_that_collapsed_is_named_and_its_hosts_are_not(
        self, before: Path, tmp_path: Path
    ) -> None:
        def speed(_: str, hosts: Sequence[str], __: Sequence[int]) -> float:
            return 0.5 if tuple(hosts) == ("node1", "node2") else 1.0

        found = compared(before, corpus(tmp_path / "after", speed, seed=2))
        assert [(one["hosts"], one["figures"]) for one in found["pairs"]] == [
            (["node1", "node2"], 2)
        ]
        assert found["pairs"][0]["share"] == pytest.approx(0.5, rel=0.02)
        assert found["hosts"] == []
        assert accept("diff", before, tmp_path / "after").out.startswith("1 pair collapsed")

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
        assert accept("diff", before, after).out.startswith("node5 wrong-data")

    def test_kinds_that_one_side_lacks_are_listed(self, before: Path, tmp_path: Path) -> None:
        after = corpus(tmp_path / "after", gpus=(range(8), range(4)), seed=2)
        found = compared(before, after)
        assert found["onlyInA"] == []
        assert {kind["gpus"] for kind in found["onlyInB"]} == {4}

    def test_evidence_of_runs(self, tmp_path: Path) -> None:
        one, two = (sample_evidence.write(tmp_path / name) for name in ("one", "two"))
        assert accept("diff", one, two).error == "E-DIFF-NOTHING-IN-COMMON"


class TestSimulatedClusters:
    """Seventeen hosts in a few rounds of pairs, once healthy and once with a fault."""

    @pytest.mark.parametrize("world", ["w0", "w9", "apart-10", "by-switch", "some-gpus"])
    def test_two_healthy_runs_do_not_differ(self, world: str) -> None:
        a, b = (run_of(BY_NAME[world].cluster(17, 4, 1, noise=noise), 4) for noise in (1, 2))
        found = compare("a", a, "b", b)
        assert (found.regression, found.complete) == (False, True)

    def test_random_pairs_that_collapse_accuse_no_host(self) -> None:
        a, b = (run_of(BY_NAME[world].cluster(17, 8, 1), 8) for world in ("w0", "pairs-10-6"))
        found = compare("a", a, "b", b)
        assert found.pairs
        assert not found.hosts
