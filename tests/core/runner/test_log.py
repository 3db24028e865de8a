"""The tables of measurements in the log of a run."""

from __future__ import annotations

from pathlib import Path

from tests.factories import verdicts

from accept.core.runner.log import largest_table

HEADER = [
    "#       size         count      type   redop    root     time   algbw   busbw #wrong",
    "#        (B)    (elements)                               (us)  (GB/s)  (GB/s)",
]


def row(size: int) -> str:
    return f"{size:>12} {size // 4:>13}     float     sum      -1    12.0    1.00    2.00      0"


def test_the_table_of_the_largest_group_is_shown_without_the_rest(tmp_path: Path) -> None:
    rows = [row(1 << n) for n in range(10, 40)]
    noise = ["# nThread 1 nGpus 1", "h0:1:2 [0] NCCL INFO Using network gIB", "\x1b[31mhello", ""]
    step = verdicts.step("all-reduce", "each")
    records = []
    for number, hosts in enumerate((["h0"], ["h0", "h1"])):
        record = verdicts.record(step, hosts, number=number)
        path = tmp_path / record.log
        path.parent.mkdir(parents=True, exist_ok=True)
        lines = [*noise, *HEADER, *rows[: 30 * number], *noise]
        path.write_text("\n".join(lines))
        records.append(record)
    shown = largest_table(tmp_path, records)
    assert shown == [*HEADER, *rows[:25]]


def test_without_a_log_or_a_table_nothing_is_shown(tmp_path: Path) -> None:
    assert largest_table(tmp_path, []) == []
    assert largest_table(tmp_path, [verdicts.record(verdicts.step("a", "each"), ["h0"])]) == []
