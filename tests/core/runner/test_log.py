"""The tables of measurements in the log of a run."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from tests.factories import verdicts

from accept.core.runner.log import largest_table
from accept.core.text import nccl_version

HEADER = [
    "#       size         count      type   redop    root     time   algbw   busbw #wrong",
    "#        (B)    (elements)                               (us)  (GB/s)  (GB/s)",
]


def row(size: int) -> str:
    return f"{size:>12} {size // 4:>13}     float     sum      -1    12.0    1.00    2.00      0"


def test_the_table_of_the_largest_group_is_shown_with_a_title_and_its_average(
    tmp_path: Path,
) -> None:
    rows = [row(1 << n) for n in range(10, 40)]
    noise = ["# nThread 1 nGpus 1", "h0:1:2 [0] NCCL INFO Using network gIB", "\x1b[31mhello", ""]
    average = "# Avg bus bandwidth    : 47.8165"
    step = verdicts.step("all-reduce", "each")
    version = "# nccl-tests version 2.19.6 nccl-headers=22803 nccl-library=22803"
    for before, title in (
        (
            [version, "# Collective test starting: all_reduce_perf"],
            "# all_reduce_perf, 16 ranks on 2 nodes, NCCL 2.28.3, profile channels",
        ),
        ([], "# nccl-tests, 16 ranks on 2 nodes, profile channels"),
    ):
        records = []
        for number, hosts in enumerate((["h0"], ["h0", "h1"])):
            record = replace(verdicts.record(step, hosts, number=number), ranks=8 * len(hosts))
            path = tmp_path / record.log
            path.parent.mkdir(parents=True, exist_ok=True)
            table = [*before, *noise, *HEADER, *rows[: 30 * number], *noise, f"{average} "]
            path.write_text("\n".join(table * 2))
            records.append(record)
        shown = largest_table(tmp_path, records, "channels")
        assert shown == [title, *HEADER, *rows[:25], average] * 2


def test_versions_of_nccl_are_read_from_their_number() -> None:
    versions = {2708: "2.7.8", 22803: "2.28.3", 21100: "2.11.0"}
    assert {code: nccl_version(code) for code in versions} == versions


def test_without_a_log_or_a_table_nothing_is_shown(tmp_path: Path) -> None:
    assert largest_table(tmp_path, []) == []
    assert largest_table(tmp_path, [verdicts.record(verdicts.step("a", "each"), ["h0"])]) == []
