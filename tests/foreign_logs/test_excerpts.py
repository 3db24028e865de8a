"""Excerpts and old builds: missing facts are inferred from the figures, or left open."""

from __future__ import annotations

from typing import Any

import pytest
from benchmarks.nccl_text import row_text, table_text
from hypothesis import given
from hypothesis import strategies as st

from accept.core import nccl_tests
from accept.core.nccl_tests.table import Log, NamedBy, Table
from accept.foreign_logs.excerpt import named_in
from accept.foreign_logs.reader import parse

CLEAN = table_text(speed=200.0)
NAMED = ("all_reduce", "all_gather", "reduce_scatter", "alltoall", "sendrecv")


def divided_row(collective: str, ranks: int, size: int, *, speed: float) -> str:
    """Return a row with the elements of one rank, as nccl-tests prints them."""
    text = row_text(collective, ranks, size, speed=speed)
    parts = ranks if collective in ("all_gather", "reduce_scatter", "alltoall") else 1
    return text.replace(f"{size // 4:12d}", f"{size // 4 // parts:12d}", 1)


def table_of(name: str, **options: Any) -> str:
    """Return a table with the operation of a collective."""
    text = table_text(name, row=divided_row, **options)
    return text if "reduce" in name else text.replace("     sum  ", "    none  ")


def unnamed(text: str) -> str:
    """Return a table of a build that does not print the collective."""
    return text[text.index("# nThread") :].partition("# Collective test concluded")[0]


def excerpt(text: str, *names: str) -> Log:
    return parse(text.encode(), names=names)


def only(log: Log) -> Table:
    assert len(log.tables) == 1
    return log.tables[0]


def halves(text: str, *, in_place: bool = False, align: bool = True) -> str:
    """Return a table whose rows have one side only."""
    lines, speeds = text.splitlines(), []
    for i, line in enumerate(lines):
        if line.startswith(" "):
            head, out, inside = line[:52], line[52:85], line[85:]
            side = " " * len(out) + inside if in_place else out
            speeds.append(float(side.split()[2]))
            lines[i] = head + side if align else " ".join((head + side).split())
    average = next(i for i, line in enumerate(lines) if "Avg" in line)
    lines[average] = f"# Avg bus bandwidth    : {sum(speeds) / len(speeds):g}"
    return "\n".join(lines) + "\n"


@pytest.mark.parametrize("name", NAMED)
@pytest.mark.parametrize("ranks", [3, 8, 32])
@pytest.mark.parametrize("listed", [True, False])
def test_the_figures_show_the_collective(name: str, ranks: int, *, listed: bool) -> None:
    text = unnamed(table_of(name, ranks=ranks, least=1 << 20, most=1 << 30, speed=200.0))
    if not listed:
        text = "\n".join(line for line in text.splitlines() if "Rank" not in line)
    table = only(excerpt(text))
    assert (table.collective, table.named_by) == (name, NamedBy.TABLE)
    assert table.complete
    assert table.ranks == ranks or (name == "sendrecv" and not listed)


@given(
    name=st.sampled_from(NAMED),
    ranks=st.integers(2, 600),
    speed=st.floats(0.05, 900),
    listed=st.booleans(),
)
def test_the_figures_never_show_another_collective(
    name: str, ranks: int, speed: float, *, listed: bool
) -> None:
    text = unnamed(table_of(name, ranks=ranks, least=1 << 24, most=1 << 27, speed=speed))
    if not listed:
        text = "\n".join(line for line in text.splitlines() if "Rank" not in line)
    assert only(excerpt(text)).collective in (name, None)


@pytest.mark.parametrize(
    ("file", "names"),
    [
        ("nccl_allreduce.log", ("all_reduce",)),
        ("alltoall_output.dat.5", ("alltoall",)),
        ("AllGather-2nodes.txt", ("all_gather",)),
        ("reduce-scatter.out", ("reduce_scatter",)),
        ("nccl_all_reduce1_h800.txt", ("all_reduce",)),
        ("broadcast_perf.log", ("broadcast",)),
        ("a2a.log", ()),
        ("reduced_logs.txt", ()),
        ("all_reduce_and_all_gather.log", ("all_reduce", "all_gather")),
    ],
)
def test_names_of_files_contain_collectives(file: str, names: tuple[str, ...]) -> None:
    assert named_in(file) == names


def test_a_name_that_contradicts_the_figures_does_not_count() -> None:
    text = unnamed(CLEAN)
    assert only(excerpt(text, "all_gather.log")).collective == "all_reduce"
    single = unnamed(table_text(ranks=1, hosts=["node1"]))
    assert only(excerpt(single)).collective is None
    assert only(excerpt(single, "x_all_reduce_1.log", "logs")).named_by is NamedBy.FILE
    assert only(excerpt(single, "1.log", "all-reduce")).collective == "all_reduce"


def test_each_table_has_the_collective_of_the_command_above_it() -> None:
    single = unnamed(table_text(ranks=1, hosts=["node1"]))
    commands = ("+ mpirun -np 1 ./build/all_reduce_perf -b 8", "$ reduce_scatter_perf -b 8")
    log = excerpt("".join(f"{command}\n{single}" for command in commands))
    assert [table.collective for table in log.tables] == ["all_reduce", "reduce_scatter"]
    assert {table.named_by for table in log.tables} == {NamedBy.COMMAND}


def test_the_option_names_a_collective_that_the_log_does_not_show() -> None:
    single = unnamed(table_text(ranks=1, hosts=["node1"])).encode()
    table = only(parse(single, collective="all_reduce"))
    assert (table.collective, table.named_by) == ("all_reduce", NamedBy.OPTION)
    assert only(nccl_tests.parse(CLEAN.encode(), collective="alltoall")).named_by is NamedBy.LOG


@pytest.mark.parametrize("part", ["nThread", "Rank", "Rank  2", "Using devices", "#wrong"])
def test_lines_above_a_complete_table_may_be_missing(part: str) -> None:
    text = "".join(line for line in CLEAN.splitlines(keepends=True) if part not in line)
    log = excerpt(text)
    assert (log.problems, only(log).complete, only(log).ranks) == ((), True, 4)
    assert only(log).rows == only(excerpt(CLEAN)).rows


@pytest.mark.parametrize("part", ["Out of bounds", "   4194304 "])
def test_lines_below_a_table_may_not_be_missing(part: str) -> None:
    text = "".join(line for line in CLEAN.splitlines(keepends=True) if part not in line)
    assert not only(excerpt(text)).complete
    rows = text[text.index("    1048576") :]
    assert not only(excerpt(rows)).complete


def test_dots_in_a_list_of_devices_stand_for_the_gpus_between() -> None:
    text = table_text(ranks=16, speed=200.0)
    middle = [f"#  Rank {rank:2d} " for rank in (*range(1, 7), *range(9, 15))]
    lines = [line for line in text.splitlines() if not line.startswith(tuple(middle))]
    assert [d[:4] for d in only(excerpt("\n".join(lines))).devices] == [
        d[:4] for d in only(excerpt(text)).devices
    ]


def test_a_damaged_last_device_is_not_forgotten() -> None:
    text = table_text(ranks=2, speed=200.0).replace("#  Rank  1", "#  Rank ank  1")
    text = text.replace("# Collective test starting", "# Col")
    assert only(excerpt(text)).ranks != 1


@pytest.mark.parametrize("name", ["all_gather", "alltoall", "sendrecv"])
@pytest.mark.parametrize("has_root", [True, False])
def test_cells_of_old_builds_are_blank(name: str, *, has_root: bool) -> None:
    text = table_of(name, speed=200.0)
    row = "    none      -1"
    blank = text.replace(row, "              -1" if has_root else " " * len(row))
    assert [r[4:] for r in only(excerpt(blank)).rows] == [r[4:] for r in only(excerpt(text)).rows]
    assert excerpt(blank).problems == ()


@pytest.mark.parametrize("in_place", [False, True])
def test_rows_may_have_one_side(*, in_place: bool) -> None:
    table, full = only(excerpt(halves(CLEAN, in_place=in_place))), only(excerpt(CLEAN))
    assert table.complete
    assert [row.in_place for row in table.rows] == [
        row.in_place if in_place else None for row in full.rows
    ]
    assert [row.out_of_place for row in table.rows] == [
        None if in_place else row.out_of_place for row in full.rows
    ]


def test_one_side_without_its_columns_is_out_of_place() -> None:
    table = only(excerpt(halves(CLEAN, align=False)))
    assert table.complete
    assert all(row.out_of_place and not row.in_place for row in table.rows)


#: github.com/NVIDIA/nccl-tests/issues/78: eight nodes of eight V100.
OLD_ALLTOALL = """\
#                                                       out-of-place                       in-place
#       size         count      type   redop     time   algbw   busbw  error     time   algbw   busbw  error
#        (B)    (elements)                       (us)  (GB/s)  (GB/s)            (us)  (GB/s)  (GB/s)
   268435456       1048576     float           520935    0.52    0.51  0e+00   519562    0.52    0.51  1e+00
   536870912       2097152     float          1041974    0.52    0.51  0e+00  1041299    0.52    0.51  1e+00
# Out of bounds values : 0 OK
# Avg bus bandwidth    : 0.507636
"""  # noqa: E501 - as printed


def test_deviations_in_place_that_do_not_count_show_alltoall() -> None:
    table = only(excerpt(OLD_ALLTOALL))
    assert (table.collective, table.ranks, table.problems) == ("alltoall", 64, ())
    checked = only(excerpt(OLD_ALLTOALL.replace("1e+00", "0e+00")))
    assert checked.collective == "all_gather"


def test_the_layout_of_2018_has_milliseconds() -> None:
    lines = []
    for line in unnamed(CLEAN).splitlines():
        cells = line.split()
        if line.startswith(" "):
            times = [f"{float(cells[i]) / 1000:.3f}" for i in (5, 9)]
            kept = (*cells[:4], times[0], *cells[6:8], "2e-07", times[1], *cells[10:12], "0e+00")
            lines.append("  ".join(kept))
        elif "size" in cells:
            side = "time  algbw  busbw      res"
            lines.append(f"#      bytes             N    type      op     {side}     {side}")
        else:
            lines.append(line.replace(" Group  0 Pid  41000", ""))
    table, full = only(excerpt("\n".join(lines))), only(excerpt(CLEAN))
    assert (table.collective, table.complete) == ("all_reduce", True)
    for row, other in zip(table.rows, full.rows, strict=True):
        assert row.out_of_place
        assert other.out_of_place
        assert row.out_of_place.time == pytest.approx(other.out_of_place.time, abs=0.51)
        assert row.out_of_place.busbw == other.out_of_place.busbw


def test_tests_of_rccl_are_read() -> None:
    text = unnamed(CLEAN).replace(
        "nThread 1 nGpus 1 minBytes 1048576 maxBytes 8388608 step: 2(factor) warmup iters: 5",
        "nThread: 1 nGpus: 1 minBytes: 1048576 maxBytes: 8388608 step: 2(factor) warmupIters: 5",
    )
    text = text.replace("# Using devices", "rccl-tests: Version develop:448c4c7\n# Using devices")
    text = text.replace("NVIDIA H100 80GB HBM3", "AMD Instinct MI250X").replace(":00]", ":00.0]")
    log = excerpt(text)
    assert (log.problems, only(log).collective) == ((), "all_reduce")
    assert {device.name for device in only(log).devices} == {"AMD Instinct MI250X"}


def test_a_program_that_ends_because_of_wrong_data_did_not_crash() -> None:
    wrong = CLEAN.replace("values : 0 OK", "values : 4 FAILED")
    log = excerpt(wrong + "  Exit code:    1\n")
    assert [problem.cause for problem in log.problems] == ["wrong-data"]
    assert [p.cause for p in excerpt(CLEAN + "  Exit code:    1\n").problems] == ["crashed"]


def test_tables_have_the_variables_of_nccl_they_ran_with() -> None:
    info = "node1:1:2 [0] NCCL INFO NCCL_ALGO set by environment to {}.\n"
    log = excerpt(info.format("Ring") + CLEAN + "+ export NCCL_ALGO=Tree NCCL_DEBUG=INFO\n" + CLEAN)
    assert [table.environment for table in log.tables] == [
        (("NCCL_ALGO", "Ring"),),
        (("NCCL_ALGO", "Tree"),),
    ]
