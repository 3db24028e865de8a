"""Folders with output of `-J`: judged like text; a run with both formats counts once."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from benchmarks.nccl_text import SECRET, document, json_text, split, table_text
from tests.factories.command_line import accept
from tests.factories.nccl_logs import NODES, corpus, slow

from accept.foreign_logs.tables import Duplicate

TABLE = "# nccl-tests version"


def judged(folder: Path) -> dict[str, Any]:
    verdict: dict[str, Any] = json.loads(accept("judge", folder, "--json").out)
    return verdict


def suspects(verdict: dict[str, Any]) -> set[tuple[str, str]]:
    return {(one["kind"], one["name"]) for one in verdict["suspects"]}


def add_json(folder: Path, *, keep: bool) -> None:
    """Write the output of `-J` for each log; several tables follow each other."""
    for path in sorted(folder.glob("*.log")):
        tables = [TABLE + part for part in path.read_text().split(TABLE)[1:]]
        text = "\n".join(json_text(document(table)) for table in tables)
        path.with_suffix(".json").write_text(text)
        if not keep:
            path.unlink()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "logs"


def test_the_slow_node_is_named_from_json_alone(folder: Path) -> None:
    add_json(corpus(folder, slow("node3")), keep=False)
    verdict = judged(folder)
    assert suspects(verdict) == {("node", "node3")}
    assert SECRET not in json.dumps(verdict)


def test_a_run_with_text_and_json_counts_once(folder: Path) -> None:
    corpus(folder, slow("node3"))
    alone = judged(folder)
    add_json(folder, keep=True)
    both = judged(folder)
    assert both["suspects"] == alone["suspects"]
    assert both["state"] == alone["state"]
    assert {one["reason"] for one in both["skipped"]} == {Duplicate.TEXT}
    assert len(both["skipped"]) == len(list(folder.glob("*.json")))


def test_a_run_of_the_same_hosts_at_another_time_is_another_run(
    folder: Path, tmp_path: Path
) -> None:
    corpus(folder, nodes=NODES[:4], seed=1)
    add_json(folder, keep=False)
    corpus(folder, nodes=NODES[:4], seed=2)
    assert judged(folder)["skipped"] == []


def rounds(folder: Path, *, each: bool, text: bool) -> Path:
    """Write five rounds of all pairs at once (NCCL_TESTS_SPLIT), in which node3 is slow."""
    folder.mkdir()
    for number in range(5):
        data = document(table_text(ranks=2, least=1 << 30, most=1 << 32))
        order = [NODES[0], *(NODES[1:][(i + number) % 7] for i in range(7))]
        placed = [host for i in range(4) for host in (order[i], order[7 - i])]
        bad = placed.index("node3") // 2

        def seconds(process: int, size: int, bad: int = bad) -> float:
            return (20e-6 + size / 40e9) * (1.3 if process // 2 == bad else 1 + process * 1e-4)

        split(data, 8, seconds)
        for device, host in zip(data["config"]["devices"], placed, strict=True):
            device["hostname"] = host
        if not each:
            for row in data["results"]:
                del row["in_place_per_iter"]
        if text:
            printed = table_text(ranks=2, least=1 << 30, most=1 << 32)
            head, _, rest = printed.partition("#  Rank")
            lines = [
                f"#  Rank {rank:2d} Group {rank // 2:2d} Pid 41000 on {host} device  0 [0x1b] H100"
                for rank, host in enumerate(placed)
            ]
            tail = rest[rest.index("#\n#   ") :]
            (folder / f"round{number}.log").write_text(head + "\n".join([*lines, tail]))
        (folder / f"round{number}.json").write_text(json_text(data))
    return folder


@pytest.mark.parametrize("text", [False, True])
def test_the_groups_of_a_split_run_are_pairs(folder: Path, *, text: bool) -> None:
    verdict = judged(rounds(folder, each=True, text=text))
    assert suspects(verdict) == {("node", "node3")}
    assert [one["reason"] for one in verdict["skipped"]] == [Duplicate.JSON] * (5 * text)


def test_the_mean_over_groups_accuses_nobody_and_acquits_nobody(folder: Path) -> None:
    verdict = judged(rounds(folder, each=False, text=False))
    assert suspects(verdict) == set()
    assert verdict["state"] != "pass"
