"""Variants of nccl-tests' text by version, option, launcher and damage give the same results."""

from __future__ import annotations

import io
import os
import tracemalloc
from collections.abc import Iterator
from pathlib import Path

import pytest
from benchmarks.nccl_text import row_text, table_text

from accept.core.nccl_tests import metrics, parse
from accept.core.nccl_tests.lines import Side
from accept.core.nccl_tests.table import COLLECTIVES, Log, Table

CLEAN = table_text()
ROWS = [line for line in CLEAN.splitlines() if line.startswith(" ")]
HEADER = next(line for line in CLEAN.splitlines() if "#wrong" in line)


def only(log: Log) -> Table:
    assert len(log.tables) == 1
    return log.tables[0]


def causes(log: Log) -> list[str]:
    return [problem.cause for problem in log.problems]


def read(text: str, collective: str | None = None) -> Log:
    return parse(text.encode(), collective=collective)


def with_rows(rows: list[str], header: str, text: str = CLEAN) -> str:
    """Return the table with other columns."""
    for old, new in zip(ROWS, rows, strict=True):
        text = text.replace(old, new)
    return text.replace(HEADER, header)


# -- columns --------------------------------------------------------------------------------------


@pytest.mark.parametrize("stamps", [False, True])
@pytest.mark.parametrize("per_iteration", [False, True])
@pytest.mark.parametrize("named", [True, False])
def test_options_add_columns(*, stamps: bool, per_iteration: bool, named: bool) -> None:
    more = "    50.01    60.10    60.10     3.12" if per_iteration else ""
    stamp = "  2026-07-10 12:00:01" if stamps else ""
    rows = [" ".join([*r.split()[:9], more, *r.split()[9:], more, stamp]) for r in ROWS]
    names = HEADER.split()
    columns = ["i_min", "i_max", "i_p99", "i_cv%"] if per_iteration else []
    header = [*names[:10], *columns, *names[10:], *columns, *(["timestamp"] if stamps else [])]
    text = with_rows([f" {row}" for row in rows], " ".join(header))
    if not named:
        # The width of a row shows which columns it has.
        text = text.replace(" ".join(header), "#")
    sides = [side for row in only(read(text)).rows for _, side in row.sides() if side]
    expected = [side for row in only(read(CLEAN)).rows for _, side in row.sides() if side]
    slowest = 60.1 if per_iteration else None
    assert sides == [side._replace(p99=slowest, longest=slowest) for side in expected]


@pytest.mark.parametrize(
    ("columns", "redop", "root"),
    [
        ((0, 1, 2), "none", -1),  # all_gather, alltoall
        ((0, 1, 2, 3), "sum", -1),  # all_reduce, reduce_scatter
        ((0, 1, 2, 4), "none", 0),  # broadcast
        ((0, 1, 2, 3, 4), "sum", 0),  # reduce
    ],
)
def test_old_builds_leave_out_columns(columns: tuple[int, ...], redop: str, root: int) -> None:
    """NCCL 2.4 to 2.7: src/all_gather.cu and similar files print the columns themselves."""

    def picked(line: str) -> str:
        cells = line.removeprefix("#").split()
        return " ".join([*(cells[i] for i in columns), *cells[5:]])

    rows = [f" {picked(row.replace('    -1', '     0', 1))}" for row in ROWS]
    header = "# " + picked(HEADER).replace("#wrong", "error")
    log = read(with_rows(rows, header))
    assert log.problems == ()
    assert {(row.redop, row.root) for row in only(log).rows} == {(redop, root)}
    assert [m.value for m in metrics(log, names=("busbw",))] == [
        m.value for m in metrics(read(CLEAN), names=("busbw",))
    ]


def test_versions_of_2025_may_have_columns_of_copies() -> None:
    rows = [
        " ".join([*r.split()[:8], "12.50", *r.split()[8:12], "12.50", r.split()[12]]) for r in ROWS
    ]
    names = HEADER.split()
    header = " ".join([*names[:9], "copybw", *names[9:13], "copybw", names[13]])
    log = read(with_rows([f" {row}" for row in rows], header) + "# Base Copy BW : 12.5 \n")
    assert log.problems == ()
    assert only(log).rows == only(read(CLEAN)).rows


def test_unknown_columns_are_not_guessed() -> None:
    log = read(CLEAN.replace("busbw", "zusbw"))
    assert causes(log) == ["incomplete-log"]


@pytest.mark.parametrize("time", ["1.0e+07", "11163", "1806.7"])
def test_times_have_the_digits_that_fit(time: str) -> None:
    speed = (1 << 20) / float(time) * 1e-3
    cells = f"{time:>7}  {speed:6.2f}  {speed * 1.5:6.2f}       0"
    row = f"     1048576        262144     float     sum      -1  {cells}  {cells}"
    text = table_text(least=1 << 20, most=1 << 20, row=lambda *given, **more: row)
    log = read(text)
    assert log.problems == ()
    assert only(log).rows[0].out_of_place == Side(float(time), round(speed * 1.5, 2), 0)


def test_a_size_below_one_element_per_rank_is_listed_as_zero() -> None:
    nothing = (
        "           0             0     float     sum      -1     5.00    0.00    0.00       0"
    )
    rows = [f"{nothing}     5.00    0.00    0.00       0", row_text("all_gather", 4, 16)]

    def row(collective: str, ranks: int, size: int, *, speed: float) -> str:
        return rows[size > 8]

    log = read(table_text("all_gather", least=8, most=16, row=row))
    assert log.problems == ()
    assert [row.size for row in only(log).rows] == [0, 16]


# -- text above and below the table ---------------------------------------------------------------


@pytest.mark.parametrize(
    "lines",
    [
        "# nccl-tests version 2.19.6 nccl-headers=22902 nccl-library=22902\n",
        CLEAN[: CLEAN.index("# nThread")],
        "# Collective test starting: all_reduce_perf_mpi\n",
        "# Collective test starting: /opt/nccl-tests/build/all_reduce_perf\n",
        "# Collective test starting: all_reduce_perf.exe\n",
        "",
    ],
)
def test_the_first_lines_differ(lines: str) -> None:
    begin = CLEAN.index("# nThread")
    log = read(f"{lines}{CLEAN[begin:]}", collective="all_reduce")
    assert log.problems == ()
    assert only(log).check == "all-reduce"


@pytest.mark.parametrize(
    "tail",
    [
        "",
        " graph: 0 unalign: 4",
        " graph: 0 side_work: 0 work_sms: 0 direction: none",
        " graph: 0\n# Blocking Enabled: wait and barrier after each iteration",
        " graph: 0\n# Parallel Init Enabled: threads init concurrently",
        " graph: 0\n# Writing JSON output to out.json",
    ],
)
def test_the_line_of_parameters_differs(tail: str) -> None:
    assert read(CLEAN.replace(" graph: 0", tail)).problems == ()


@pytest.mark.parametrize(
    ("head", "bus", "name"),
    [
        ("#  Rank {rank:2d} Group  0 Pid", "[0000:1b:00]", "NVIDIA H100 80GB HBM3"),
        ("#  Rank {rank:2d} Group  0 Pid", "[0x1b]", "NVIDIA H100 80GB HBM3"),
        ("#   Rank {rank:2d} Pid", "[0x1b]", "Tesla V100-SXM2-32GB"),
        ("#  Rank {rank:2d} Group {group:2d} Pid", "[0009:01:00]", "NVIDIA GB200"),
    ],
)
def test_lines_of_devices_differ(head: str, bus: str, name: str) -> None:
    lines = [
        f"{head.format(rank=n, group=0)}  41000 on   pod-{n}.svc device {n:2d} {bus} {name}"
        for n in range(4)
    ]
    begin, end = CLEAN.index("#  Rank"), CLEAN.index("#\n#    ")
    log = read(CLEAN[:begin] + "\n".join(lines) + "\n" + CLEAN[end:])
    assert log.problems == ()
    assert [(d.host, d.device) for d in only(log).devices] == [
        (f"pod-{n}.svc", n) for n in range(4)
    ]
    assert {d.name for d in only(log).devices} == {name}


@pytest.mark.parametrize(
    ("bounds", "average"),
    [
        ("# Out of bounds values : 0 OK", "# Avg bus bandwidth    : "),
        ("# Out of bounds values: 0 OK", "# Avg bus bandwidth: "),
        ("# Out of bounds values     :  0   OK", "# Avg bus bandwidth        :   "),
        ("#Out of bounds values : 0 OK", "#Avg bus bandwidth : "),
    ],
)
def test_footers_are_spaced_in_many_ways(bounds: str, average: str) -> None:
    text = CLEAN.replace("# Out of bounds values : 0 OK", bounds)
    assert read(text.replace("# Avg bus bandwidth    : ", average)).problems == ()


@pytest.mark.parametrize("verdict", ["OK", "FAILED", ""])
def test_a_verdict_on_the_mean_is_not_a_finding(verdict: str) -> None:
    """NCCL_TESTS_MIN_BW limits a mean over all sizes, which does not judge a machine."""
    lines = CLEAN.splitlines()
    at = next(i for i, line in enumerate(lines) if "Avg bus" in line)
    lines[at] += verdict
    assert read("\n".join(lines)).problems == ()


def test_lines_after_the_footer_are_ignored() -> None:
    tail = ["# GPU memory usage : Initialization 5.2 GB | Total  7 GB", "#", "# error: 1", "words"]
    assert read(CLEAN + "\n".join(tail)) == read(CLEAN)


def test_all_types_one_after_another_repeat_the_sizes() -> None:
    rows = "\n".join(ROWS)
    more = "\n".join(rows.replace("float", f"{name:>5}") for name in ("int8", "half"))
    log = read(CLEAN.replace(rows, f"{rows}\n{more}"))
    assert log.problems == ()
    assert [row.type for row in only(log).rows[::4]] == ["float", "int8", "half"]


def test_memory_too_small_for_the_least_size_measures_one() -> None:
    text = table_text(least=1 << 20, most=1 << 20).replace(
        "minBytes 1048576 maxBytes 1048576", "minBytes 2097152 maxBytes 8388608"
    )
    note = "#\n# Reducing maxBytes to 1048576 due to memory limitation\n#\n#  "
    table = only(read(text.replace("#\n#  ", note, 1)))
    assert table.complete
    assert (table.max_bytes, table.reduced_max, table.top_size) == (1 << 23, 1 << 20, 1 << 20)


@pytest.mark.parametrize("name", sorted(COLLECTIVES))
def test_every_program_of_nccl_tests_is_known(name: str) -> None:
    cells = "   52.43   20.00    0.00       0" * 2
    row = f"     1048576        262144     float    none      -1{cells}"
    text = table_text(name, least=1 << 20, most=1 << 20, row=lambda *given, **more: row)
    log = read(text)
    assert only(log).check == name.replace("_", "-")
    assert "not a known collective" not in " ".join(problem.message for problem in log.problems)


# -- runs that were ended -------------------------------------------------------------------------

HEAD = CLEAN[: CLEAN.index(ROWS[2])]


@pytest.mark.parametrize(
    "message",
    [
        # Open MPI 5.0.11, which cuts the line here, and 4.1.8.
        "prterun noticed that process rank 1 with PID 1140 on node node2 exited on\nsignal 9",
        "mpirun noticed that process rank 1 with PID 0 on node node2 exited on signal 9 (Killed).",
        "srun: error: node2: task 3: Killed",
        "srun: error: node2: tasks 2-3: Segmentation fault (core dumped)",
    ],
)
def test_a_rank_that_a_signal_ended_is_named_by_its_host(message: str) -> None:
    log = read(f"{HEAD}{ROWS[2][:50]}{'-' * 20}\n{message}\nsrun: error: node1: task 0: Killed\n")
    assert [(p.cause, p.host) for p in log.problems] == [
        ("crashed", "node2"),
        ("incomplete-log", None),
    ]


@pytest.mark.parametrize(
    "message",
    [
        "srun: error: node1: tasks 0-1: Terminated",
        "srun: error: Unable to create step for job 7: More processors requested than permitted",
        "   Exit code:    0",
        "   Exit code:    7",
        "srun: error: node1: task 0: Exited with exit code 7",
    ],
)
def test_other_messages_of_launchers_name_no_host(message: str) -> None:
    assert causes(read(f"{HEAD}{message}\n")) == ["incomplete-log"]


@pytest.mark.parametrize(
    ("code", "cause"),
    [*((code, "crashed") for code in (1, 2, 3, 5, 6, 137, 255)), (4, "timed-out")],
)
@pytest.mark.parametrize(
    "form", ["   Exit code:    {}", "srun: error: node1: task 0: Exited with exit code {}"]
)
def test_the_exit_code_of_a_rank_gives_the_cause(code: int, cause: str, form: str) -> None:
    log = read(f"{HEAD}{form.format(code)}\n")
    assert [(p.cause, p.host) for p in log.problems] == [(cause, None), ("incomplete-log", None)]
    assert str(code) in log.problems[0].message


def test_an_exit_code_after_the_failure_is_ignored() -> None:
    message = "node2: Test NCCL failure common.cu:303 'x'\n   Exit code:    3\n"
    log = read(HEAD + message)
    assert [(p.cause, p.host) for p in log.problems] == [
        ("crashed", "node2"),
        ("incomplete-log", None),
    ]


def test_data_that_were_wrong_in_time_are_still_wrong_when_the_run_is_killed() -> None:
    bad = ROWS[0][:-1] + "7"
    assert causes(read(HEAD.replace(ROWS[0], bad))) == ["wrong-data", "incomplete-log"]


# -- files that are not logs ----------------------------------------------------------------------

FOREIGN = {
    "ELF": b"\x7fELF\x02\x01\x01\x00" + os.urandom(3000),
    "gzip": b"\x1f\x8b\x08\x00" + os.urandom(3000),
    "UTF-16": CLEAN.encode("utf-16"),
    "CSV": b"size,time,algbw,busbw\n1048576,46.21,22.69,34.03\n" * 50,
    "HTML": b"<html><body><pre>504 Gateway Timeout</pre></body></html>\n" * 50,
    "numbers": b"1 2 3 4 5 6 7 8 9 10 11 12 13\n" * 50,
    "words": b"a b c d e f g h i j k l m\n" * 50,
    "OSU": b"# OSU MPI Allreduce Latency Test v7.4\n# Size       Avg Latency(us)\n8       3.21\n"
    * 9,
    "no newline": b"x" * 3_000_000,
}


@pytest.mark.parametrize("name", FOREIGN)
def test_a_file_without_a_table_is_refused(name: str) -> None:
    log = parse(FOREIGN[name])
    assert log.tables == ()
    assert causes(log) == ["no-table"]


# -- memory ---------------------------------------------------------------------------------------


def peak(source: Iterator[bytes] | io.BufferedReader) -> int:
    """Return the peak memory of reading, in bytes."""
    tracemalloc.start()
    parse(source)
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return most


BLOCKS = {
    "NCCL's lines": b"node2:41001:41050 [1] NCCL INFO Channel 00/0 : 1[0] -> 0[0] via NET/IB/0\n"
    * 99,
    "failures": b"".join(b"h%d: Test NCCL failure x.cu:1 'y'\n" % n for n in range(99)),
    "no newline": b"x" * 9999,
    "cut rows": b"   1048576   262144  float\n" * 99,
    "comments": b"# nThread # Using devices # Rank\n" * 99,
    "words": b"some words that mean nothing here\n" * 99,
    "escapes": b"\x1b[31m\x1b]0;title\x07 red\r\n" * 99,
}


@pytest.mark.parametrize("name", BLOCKS)
def test_memory_does_not_grow_with_the_length_of_a_log(name: str) -> None:
    def source(size: int) -> Iterator[bytes]:
        yield HEAD.encode()
        for _ in range(size // len(BLOCKS[name])):
            yield BLOCKS[name]

    peak(source(250_000))  # The known failures are read once.
    assert peak(source(500_000)) < peak(source(250_000)) + 125_000


def test_a_file_with_a_hole_of_half_a_gigabyte_is_read_in_a_few_megabytes(tmp_path: Path) -> None:
    path = tmp_path / "log"
    with path.open("wb") as file:
        file.write(b"begin\n")
        file.seek(512 << 20)
        file.write(b"\n" + CLEAN.encode())
    with path.open("rb") as file:
        assert peak(file) < 16_000_000
    with path.open("rb") as file:
        assert parse(file).tables == read(CLEAN).tables
