"""The reader of nccl-tests output: correct for all versions, and it reports all damage."""

from __future__ import annotations

import csv
import io
import json
import os
import random
import re
import tracemalloc
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from benchmarks.nccl_text import COLLECTIVES, row_text, table_text
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.factories.paths import TESTS
from tests.factories.real_logs import FOLDERS, PUBLISHED, folder_name
from tests.factories.verdicts import record, step
from tests.fuzz import mutate

from accept.core.facts import NCCL_NICS, mapping
from accept.core.nccl_tests import metrics, nccl_facts, nccl_info, parse, read
from accept.core.nccl_tests import reader as nccl_tests_reader
from accept.core.nccl_tests import table as nccl_tests_table
from accept.core.nccl_tests.lines import Side
from accept.core.nccl_tests.table import COLLECTIVES as KNOWN
from accept.core.nccl_tests.table import Log, Table, bus_factor
from accept.core.serde import dump

LOGS = TESTS / "logs"
CLEAN = table_text()
LINES = CLEAN.splitlines(keepends=True)
ROWS = [line for line in LINES if line.startswith(" ")]
HEADER = next(line for line in LINES if "#wrong" in line)
AVERAGE = next(line for line in LINES if "Avg bus" in line)
#: A log that ends after two rows.
HEAD = CLEAN[: CLEAN.index(ROWS[2])]
NCCL = "node2:41001:41050 [1] NCCL INFO Channel 00/0 : 1[0] -> 0[0] [send] via NET/IB/0/GDRDMA\n"


def of(text: str) -> Log:
    """Parse a log that was given its collective, as logs of old builds are."""
    return parse(text.encode(), collective="all_reduce")


def only(log: Log) -> Table:
    assert len(log.tables) == 1
    return log.tables[0]


def fixture(name: str) -> str:
    return (LOGS / f"{name}.log").read_text()


def causes(log: Log) -> str:
    return " ".join(problem.cause for problem in log.problems)


def changed(*pairs: tuple[str, str], text: str = CLEAN) -> str:
    """Return a log in which other parts are in the place of its own."""
    for old, new in pairs:
        assert old in text
        text = text.replace(old, new)
    return text


def without(part: str) -> str:
    """Return the log without the lines that contain `part`."""
    assert part in CLEAN
    return "".join(line for line in LINES if part not in line)


def after(number: int, *more: str) -> str:
    """Return the log with other lines after some of its own."""
    return "".join([*LINES[:number], *more, *LINES[number:]])


def with_cell(row: int, cell: int, new: str) -> str:
    """Return the log with another text in a cell of a row."""
    cells = list(re.finditer(r"\S+", ROWS[row]))
    begin, end = cells[cell].span()
    return changed((ROWS[row], f"{ROWS[row][:begin]}{new:>{end - begin}}{ROWS[row][end:]}"))


def other_digit(row: int, cell: int) -> str:
    """Return the log with another first digit in a cell of a row."""
    right = ROWS[row].split()[cell]
    return with_cell(row, cell, str(int(right[0]) % 9 + 1) + right[1:])


def with_mean(text: str, rows: Sequence[str]) -> str:
    """Return a log with the mean of these rows."""
    values = [float(row.split()[cell]) for row in rows for cell in (7, 11)]
    return changed((AVERAGE, f"# Avg bus bandwidth : {sum(values) / len(values):f}\n"), text=text)


# -- damage ----------------------------------------------------------------------------------------

INCOMPLETE, INFINITE, WRONG, UNCHECKED, NO_TABLE = (
    "incomplete-log",
    "not-finite",
    "wrong-data",
    "results-unchecked",
    "no-table",
)
#: Causes of its problems -> damaged logs, by the kind of damage.
BROKEN: dict[str, dict[str, str | bytes]] = {
    INCOMPLETE: {
        "it does not name its collective": without("Collective test"),
        "it is of an old build that does not name it": fixture("deviation"),
        "its end is of another table": changed(("concluded: all_reduce", "concluded: all_gather")),
        "its collective is unknown": changed(("all_reduce", "all_confuse")),
        "no parameters": without("nThread"),
        "no devices": without("#  Rank "),
        "a gap in the devices": without("#  Rank  1"),
        "an abbreviated device": changed(("[0000:1c:00] NVIDIA", "[0000:1c:00] ...")),
        "no column names": without("redop"),
        "unknown columns": changed(("busbw", "zusbw")),
        "no rows": without("    float"),
        "only rows": "".join(ROWS),
        "a row too few": without("     4194304"),
        "a row too few of repeated ones": changed((ROWS[3], "".join((ROWS[3], *ROWS[1:])))),
        "a row after the end": CLEAN + row_text("all_reduce", 4, 1 << 24) + "\n",
        "other sizes": changed(("     8388608       2097152", "    33554432       8388608")),
        "sizes without an end": changed(("step: 2(factor)", "step: 0(bytes)")),
        "a row that was cut": changed(("   232.01   36.16   54.23       0\n", "   232.01")),
        "no values out of bounds": without("Out of bounds"),
        "values out of bounds that are OK": changed((": 0 OK", ": 9 OK")),
        "no values out of bounds that failed": changed((": 0 OK", ": 0 FAILED")),
        "no mean": without("Avg bus"),
        "another mean": changed(("45.4313", "95.4313")),
        "a group that the rows do not fit": changed(("Rank  3 Group  0", "Rank  3 Group  1")),
        **{f"cell {n} contradicts its row": other_digit(2, n) for n in (0, 5, 7, 9, 11)},
        **{
            f"a row of {size} B that was not planned": changed(
                (ROWS[2], row_text("all_reduce", 4, size) + "\n")
            )
            for size in (1 << 14, 1 << 24)
        },
        **{
            f"a size of {text[:9]}": changed(("     1048576  ", f"{text}  "))
            for text in ("1_048_576", "+-1", "0x10", "1e3", "9" * 30, "-5")
        },
    },
    INFINITE: {
        **{f"a bandwidth of {word}": with_cell(3, 7, word) for word in ("nan", "-nan", "inf")},
        "no number is finite": re.sub(r"\d+\.\d\d(?= )", " nan", CLEAN),
    },
    f"{INFINITE} {INCOMPLETE}": {"a mean that is not finite": changed(("45.4313", "nan"))},
    WRONG: {
        "one wrong element": with_cell(3, 8, "1"),
        "wrong elements": with_cell(3, 8, "32"),
        "values out of bounds": changed(("values : 0 OK", "values : 4 FAILED")),
        "values out of bounds, and none in a second line": changed(
            ("# Out of", "# Out of bounds values : 4 FAILED\n# Out of")
        ),
    },
    f"{WRONG} {INCOMPLETE}": {"wrong elements before the end": HEAD[:-2] + "7\n"},
    UNCHECKED: {
        "nothing was checked": re.sub(" 0(?= |\n)", "N/A", "".join(ROWS)).join(
            CLEAN.split("".join(ROWS))
        ),
        "one size was not checked": with_cell(3, 8, "N/A"),
    },
    NO_TABLE: {
        "nothing": "",
        "no table": "hello\n" * 50,
        "only lines of NCCL": NCCL,
        "ELF": b"\x7fELF\x02\x01\x01\x00" + os.urandom(3000),
        "gzip": b"\x1f\x8b\x08\x00" + os.urandom(3000),
        "UTF-16": CLEAN.encode("utf-16"),
        "CSV": "size,time,algbw,busbw\n1048576,46.21,22.69,34.03\n" * 50,
        "HTML": "<html><body><pre>504 Gateway Timeout</pre></body></html>\n" * 50,
        "numbers": "1 2 3 4 5 6 7 8 9 10 11 12 13\n" * 50,
        "words": "a b c d e f g h i j k l m\n" * 50,
        "OSU": "# OSU MPI Allreduce Latency Test v7.4\n# Size  Avg Latency(us)\n8   3.21\n" * 9,
        "no newline": "x" * 3_000_000,
    },
    "rank-count": {
        "the same table of two hosts of one rank": table_text(ranks=1, hosts=["node1"])
        + table_text(ranks=1, hosts=["node2"]),
    },
    "gpu-missing": {
        "too few GPUs": "Invalid number of GPUs: 8 requested but only 4 were found\n",
    },
}
#: A message is a sentence if it has one of these verbs.
VERBS = re.compile(
    r"\b(is|are|was|were|has|have|ran|had|shows|reports|reported|gives|contradicts|ended|failed|took)\b"
)


def values(log: Log) -> set[tuple[int, str, float]]:
    """Return the measured bandwidths with their sizes and placements."""
    found = metrics(log, names=("busbw",))
    return {(m.size or 0, str(m.placement), m.value) for m in found}


TRUE = values(parse(CLEAN.encode()))


@pytest.mark.parametrize(
    ("expected", "text"),
    [
        pytest.param(expected, text, id=name)
        for expected, own in BROKEN.items()
        for name, text in own.items()
    ],
)
def test_damage_has_a_cause_in_full_sentences_and_is_not_measured(
    expected: str, text: str | bytes
) -> None:
    log = parse(text if isinstance(text, bytes) else text.encode())
    assert causes(log) == expected
    assert expected != NO_TABLE or log.tables == ()
    assert values(log) <= TRUE
    incomplete = [table for table in log.tables if not (table.complete or table.alone)]
    assert bool(incomplete) is (INCOMPLETE in expected)
    for message in (problem.message for problem in log.problems):
        head, _, rest = message.partition(": ")
        # The text after "reported" is a quotation.
        sentences = (rest if rest and not head.endswith("reported") else head).split("; ")
        assert [sentence for sentence in sentences if not VERBS.search(sentence)] == []


@pytest.mark.parametrize(
    ("limit", "most", "kept"),
    [
        ("MAX_ROWS", 6, [(4, 4), (4, 2), (4, 0)]),
        ("MAX_DEVICES", 6, [(4, 4), (None, 4), (None, 4)]),
        ("MAX_TABLES", 2, [(4, 4), (4, 4)]),
    ],
)
def test_more_than_can_be_kept_is_a_problem(
    monkeypatch: pytest.MonkeyPatch, limit: str, most: int, kept: list[tuple[int | None, int]]
) -> None:
    monkeypatch.setattr(nccl_tests_table, limit, most)
    log = of(CLEAN * 3)
    assert [(table.ranks, len(table.rows)) for table in log.tables] == kept
    assert log.problems[-1].cause == "unparsable"


# -- the same table in other words -----------------------------------------------------------------

PREFIXES: dict[str, Callable[[int, str], str]] = {
    "Open MPI 4": lambda i, line: "[1,0]<stdout>:" + line,
    "Open MPI 5": lambda i, line: "[prterun-node1-77@1,0]<stdout>: " + line,
    "srun": lambda i, line: "0: " + line,
    "srun of many tasks": lambda i, line: "   0: " + line,
    "hydra": lambda i, line: "[0] " + line,
    "host and rank": lambda i, line: "[node1:0]: " + line,
    "kubectl": lambda i, line: "[pod/accept-0-x7k2p/accept] " + line,
    "kubectl with times": lambda i, line: (
        f"[pod/run-workers-0-0-x7k2p/accept] 2026-07-10T12:00:{i % 60:02d}.123456789Z {line}"
    ),
    "stern": lambda i, line: (
        "accept-0-x7k2p accept \N{SINGLE RIGHT-POINTING ANGLE QUOTATION MARK} " + line
    ),
    "compose": lambda i, line: "accept-1  | " + line,
    "pdsh": lambda i, line: "node1: " + line,
    "time": lambda i, line: f"2026-07-10T12:00:{i % 60:02d}.123456789Z {line}",
    "time in brackets": lambda i, line: f"[2026-07-10 12:00:{i % 60:02d}] {line}",
    "containerd": lambda i, line: f"2026-07-10T12:00:{i % 60:02d}.1Z stdout F {line}",
    "time and tag": lambda i, line: f"2026-07-10T12:00:{i % 60:02d}.1Z [1,0]<stdout>:{line}",
    "colors": lambda i, line: f"\x1b[32m[1,0]<stdout>:\x1b[0m{line[:-1]}\x1b[K\n",
    "carriage returns": lambda i, line: line[:-1] + "\r\n",
}


def prefixed(text: str, add: Callable[[int, str], str]) -> str:
    lines = text.removesuffix("\n").split("\n")
    return "".join(add(i, f"{line}\n") for i, line in enumerate(lines))


def with_columns(names: str, cells: str, at: tuple[int, int] = (9, 13), end: str = "") -> str:
    """Return the log with more columns on both sides, after some cells, and a cell at the end."""

    def line(old: str, more: str) -> str:
        own, (first, second) = old.removeprefix("#").split(), at
        return " ".join([*own[:first], more, *own[first:second], more, *own[second:], end])

    rows = [(row, f" {line(row, cells)}\n") for row in ROWS]
    return changed(*rows, (HEADER, f"# {line(HEADER, names)}\n"))


FIRST = CLEAN[: CLEAN.index("# nThread")]
BOUNDS = "# Out of bounds values : 0 OK"
MEAN = "# Avg bus bandwidth    : "
SAME: dict[str, str] = {
    **{f"lines of {name}": prefixed(CLEAN, add) for name, add in PREFIXES.items()},
    **{
        f"the first lines: {lines}": changed((FIRST, lines))
        for lines in (
            "# nccl-tests version 2.19.6 nccl-headers=22902 nccl-library=22902\n",
            "# Collective test starting: all_reduce_perf_mpi\n",
            "# Collective test starting: /opt/nccl-tests/build/all_reduce_perf\n",
            "# Collective test starting: all_reduce_perf.exe\n",
            "",
        )
    },
    **{
        f"parameters: {tail}": changed((" graph: 0", tail))
        for tail in (
            "",
            " graph: 0 unalign: 4",
            " graph: 0 side_work: 0 work_sms: 0 direction: none",
            " graph: 0\n# Blocking Enabled: wait and barrier after each iteration",
            " graph: 0\n# Parallel Init Enabled: threads init concurrently",
            " graph: 0\n# Writing JSON output to out.json",
        )
    },
    **{
        f"the end: {bounds}, {mean}": changed((BOUNDS, bounds), (MEAN, mean))
        for bounds, mean in (
            ("# Out of bounds values: 0 OK", "# Avg bus bandwidth: "),
            ("# Out of bounds values     :  0   OK", "# Avg bus bandwidth        :   "),
            ("#Out of bounds values : 0 OK", "#Avg bus bandwidth : "),
        )
    },
    # NCCL_TESTS_MIN_BW limits a mean over all sizes, which does not judge a machine.
    **{
        f"the mean is {word}": changed((AVERAGE, f"{AVERAGE[:-1]}{word}\n"))
        for word in ("OK", "FAILED")
    },
    "lines after the end": f"{CLEAN}# GPU memory usage : Initialization 5.2 GB | Total  7 GB\n#\n"
    "# error: 1\nwords",
    "copies, as in versions of 2025": with_columns("copybw", "12.50", at=(8, 12))
    + "# Base Copy BW : 12.5 \n",
    "a long line": after(13, "x" * 200_000 + "\n"),
    "a long line of blanks": after(13, LINES[12][:-1] + " " * 70_000 + "\n"),
}


@pytest.mark.parametrize("name", SAME)
def test_versions_and_launchers_change_nothing(name: str) -> None:
    log, clean = of(SAME[name]), of(CLEAN)
    assert (log.problems, causes(clean)) == ((), "")
    found, expected = only(log), only(clean)
    assert (found.rows, found.devices) == (expected.rows, expected.devices)
    assert (found.check, found.complete) == ("all-reduce", True)


@pytest.mark.parametrize("stamp", ["", "2026-07-10 12:00:01"])
@pytest.mark.parametrize("longest", [None, 60.1])
@pytest.mark.parametrize("named", [True, False])
def test_options_add_columns(*, stamp: str, longest: float | None, named: bool) -> None:
    names, cells = ("i_min i_max i_p99 i_cv%", "50.01 60.10 60.10 3.12") if longest else ("", "")
    text = with_columns(names, cells, end=stamp)
    # Without names, the width of a row shows which columns it has.
    log = of(text if named else re.sub("# size.*", "#", text))
    sides = [side for row in only(log).rows for _, side in row.sides() if side]
    expected = [side for row in only(of(CLEAN)).rows for _, side in row.sides() if side]
    assert sides == [side._replace(p99=longest, longest=longest) for side in expected]


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

    rows = [(row, f" {picked(row.replace('    -1', '     0', 1))}\n") for row in ROWS]
    log = of(changed(*rows, (HEADER, f"# {picked(HEADER).replace('#wrong', 'error')}\n")))
    assert log.problems == ()
    assert {(row.redop, row.root) for row in only(log).rows} == {(redop, root)}
    assert values(log) == TRUE


@pytest.mark.parametrize("time", ["1.0e+07", "11163", "1806.7"])
def test_times_have_the_digits_that_fit(time: str) -> None:
    speed = (1 << 20) / float(time) * 1e-3
    cells = f"{time:>7}  {speed:6.2f}  {speed * 1.5:6.2f}       0"
    row = f"     1048576        262144     float     sum      -1  {cells}  {cells}"
    log = of(table_text(least=1 << 20, most=1 << 20, row=lambda *given, **more: row))
    assert log.problems == ()
    assert only(log).rows[0].out_of_place == Side(float(time), round(speed * 1.5, 2), 0)


def test_cpu_times_do_not_have_to_agree_with_the_bandwidth() -> None:
    text = with_cell(3, 5, "12.00")
    assert causes(of(text)) == INCOMPLETE
    assert causes(of(changed(("     time", "  cputime"), text=text))) == ""


def test_lines_of_devices_differ() -> None:
    own = [line for line in LINES if line.startswith("#  Rank")]
    for head, bus, name in (
        ("#  Rank {:2d} Group  0 Pid", "[0x1b]", "NVIDIA H100 80GB HBM3"),
        ("#   Rank {:2d} Pid", "[0x1b]", "Tesla V100-SXM2-32GB"),
        ("#  Rank {:2d} Group  0 Pid", "[0009:01:00]", "NVIDIA GB200"),
    ):
        new = [
            f"{head.format(n)}  41000 on   pod-{n}.svc device {n:2d} {bus} {name}\n"
            for n in range(4)
        ]
        log = of(changed(*zip(own, new, strict=True)))
        assert log.problems == ()
        shown = [(device.host, device.device, device.name) for device in only(log).devices]
        assert shown == [(f"pod-{n}.svc", n, name) for n in range(4)]


# -- captured logs, and which sizes belong to a table ----------------------------------------------

EXPECTED = json.loads((LOGS / "expected.json").read_text())


@pytest.mark.parametrize("path", sorted(LOGS.glob("*.log")), ids=lambda path: path.stem)
def test_a_captured_log_is_read_completely(path: Path) -> None:
    log = dump(of(path.read_text()))
    assert json.loads(json.dumps(log)) == EXPECTED[path.stem]
    assert fixture("clean") == CLEAN


def test_a_log_holds_a_table_for_each_collective() -> None:
    log = parse("\n".join(table_text(name) for name in COLLECTIVES).encode())
    assert log.problems == ()
    assert [table.collective for table in log.tables] == list(COLLECTIVES)


@pytest.mark.parametrize("name", sorted(KNOWN))
def test_every_program_of_nccl_tests_is_known(name: str) -> None:
    cells = "   52.43   20.00    0.00       0" * 2
    row = f"     1048576        262144     float    none      -1{cells}"
    log = parse(
        table_text(name, least=1 << 20, most=1 << 20, row=lambda *given, **more: row).encode()
    )
    assert only(log).check == name.replace("_", "-")
    assert "not a known collective" not in " ".join(problem.message for problem in log.problems)


def test_bus_factors_are_those_of_nccl_tests() -> None:
    expected = {("all_reduce", 16): 1.875, ("all_gather", 4): 0.75, ("sendrecv", 4): 1.0}
    expected |= {("alltoall", 2): 0.5, ("all_reduce", 1): 0.0}
    assert {one: bus_factor(*one) for one in expected} == expected
    assert bus_factor("hypercube", 4) is bus_factor("all_reduce", None) is None


TYPES = "".join("".join(ROWS).replace("float", f"{name:>5}") for name in ("int8", "half"))


def test_sizes_may_repeat_or_be_left_out_by_our_program() -> None:
    left_out = changed((ROWS[0], "# Size 1048576 left out: less than 16 B per rank\n"))
    for text, sizes in (
        (changed((ROWS[3], ROWS[3] + "".join(ROWS))), [20, 21, 22, 23] * 2),
        (changed((ROWS[3], ROWS[3] + TYPES)), [20, 21, 22, 23] * 3),
        (with_mean(left_out, ROWS[1:]), [21, 22, 23]),
    ):
        log = of(text)
        assert (log.problems, only(log).complete) == ((), True)
        assert [row.size for row in only(log).rows] == [1 << size for size in sizes]


def test_a_maximum_that_the_memory_reduces_is_noted() -> None:
    fewer = with_mean(changed((ROWS[3], "")), ROWS[:3])
    # Memory for one size, which is below the least that was requested.
    planned = ("minBytes 1048576 maxBytes 1048576", "minBytes 2097152 maxBytes 8388608")
    single = changed(planned, text=table_text(least=1 << 20, most=1 << 20))
    for text, reduced, top in ((fewer, 5_000_000, 1 << 22), (single, 1 << 20, 1 << 20)):
        note = f"#\n# Reducing maxBytes to {reduced} due to memory limitation\n#\n#    "
        table = only(of(changed(("#\n#    ", note), text=text)))
        assert table.complete
        assert (table.max_bytes, table.reduced_max, table.top_size) == (1 << 23, reduced, top)


def test_a_size_below_one_element_per_rank_is_listed_as_zero() -> None:
    cells = "     5.00    0.00    0.00       0" * 2
    rows = [f"{0:12}{0:14}     float     sum      -1{cells}", row_text("all_gather", 4, 16)]
    text = table_text("all_gather", least=8, most=16, row=lambda *given, **_: rows[given[2] > 8])
    log = of(text)
    assert log.problems == ()
    assert [row.size for row in only(log).rows] == [0, 16]


def test_groups_of_a_split_run_have_their_own_number_of_ranks() -> None:
    text = table_text(ranks=2)
    device = text[text.index("#  Rank  1") :].partition("\n")[0] + "\n"
    more = "".join(device.replace("Rank  1 Group  0", f"Rank  {rank} Group  1") for rank in (2, 3))
    log = of(changed((device, device + more), text=text))
    # The bandwidth is that of two ranks; the mean over the groups is not that of any group.
    assert (causes(log), only(log).complete, only(log).split) == ("no-measurement", True, True)
    assert (only(log).ranks, metrics(log)) == (4, ())


def test_consecutive_tables_of_one_gpu_are_not_a_build_without_mpi() -> None:
    assert of(table_text(ranks=1, hosts=["node1"]) * 2).problems == ()


# -- lines of NCCL ---------------------------------------------------------------------------------


@pytest.mark.parametrize("at", range(1, len(LINES[13])))
def test_a_line_of_nccl_may_land_at_any_byte_of_each_row(at: int) -> None:
    log = of(changed(*((row, row[:at] + NCCL + row[at:]) for row in ROWS)))
    assert (log.tables, log.problems, log.nccl_lines) == (of(CLEAN).tables, (), len(ROWS))
    assert log.networks == {"IB": ("node2",)}


@pytest.mark.parametrize("number", range(1, 14))
def test_lines_of_nccl_may_be_between_any_two_lines(number: int) -> None:
    log = of(after(number, NCCL, NCCL))
    assert (log.tables, log.problems) == (of(CLEAN).tables, ())
    assert log.nccl_lines == 2


def nccl(message: str, host: str = "node1", gpu: int = 0) -> str:
    return f"{host}:1:{gpu + 2} [{gpu}] NCCL INFO {message}\n"


@pytest.mark.parametrize("name", PREFIXES)
def test_launchers_change_no_line_of_nccl(name: str) -> None:
    plain = nccl("NCCL_ALGO set by environment to Ring") + NCCL + CLEAN
    assert of(prefixed(plain, PREFIXES[name])) == of(plain)


RECORDED = (TESTS / "data/gpu/h100-80gb-hbm3/all_reduce_perf.log").read_text()
(MNNVL,) = (line for line in RECORDED.splitlines() if line.endswith(" MNNVL 0"))


def group(nodes: int, used: int, clique: int | None = None) -> str:
    """Return what NCCL prints of a group of 8 ranks, and whether NVLink connects its hosts."""
    line = MNNVL.replace("nRanks 1 nNodes 1", f"nRanks 8 nNodes {nodes}")
    line = line.replace("MNNVL 0", f"MNNVL {used}").replace("vm:", "node1:")
    first = f"MNNVL 1 cliqueId 7ffe cliqueSize {clique} cliqueRank 0"
    return f"{nccl(first) if clique else ''}{line}\n"


NVLS = "NVLS multicast support is {}available on dev 0"
NICS = (
    nccl("NET/IB : Using [0]mlx5_3:1/IB [1]mlx5_2:1/RoCE [RO]; OOB eth0:1"),
    nccl("Channel 00/0 : 0[0] -> 8[0] [send] via NET/IB/0/GDRDMA"),
    nccl("Channel 01/0 : 8[0] -> 0[0] [receive] via NET/IB/1(3)/GDRDMA"),
    nccl("Channel 00/0 : 1[1] -> 9[1] [send] via NET/IB/0", gpu=1),
    nccl("Channel 00/0 : 2[2] -> 9[1] [send] via NET/IB/0", gpu=-1),
    # A number without a name, and a host without any.
    nccl("NET/IB : Using [0]mlx5_0:1/IB [RO]; OOB eth0:1", "node2"),
    nccl("Channel 00/0 : 1[1] -> 9[1] [send] via NET/IB/0", "node2", gpu=1),
    nccl("Channel 00/0 : 2[2] -> 9[1] [send] via NET/IB/7", "node2", gpu=2),
    nccl("Channel 00/0 : 1[1] -> 9[1] [send] via NET/IB/0", "node3", gpu=1),
)


@pytest.mark.parametrize(
    ("kind", "line", "found"),
    [
        ("networks", nccl("Using network gIB"), {"gIB": ["node1"]}),
        ("networks", nccl("Using network AWS Libfabric"), {"AWS Libfabric": ["node1"]}),
        (
            "networks",
            nccl("Channel 01/0 : 3[3] -> 8[0] [receive] via NET/FasTrak/3/GDRDMA/Shared"),
            {"FasTrak": ["node1"]},
        ),
        # A network that was only searched for is not used.
        ("networks", nccl("NET/IB : No device found."), {}),
        ("networks", nccl("NET/Plugin: Loaded net plugin gIB (v10)"), {}),
        ("detours", nccl(NVLS.format("not ")), {"NVLS off": ["node1"]}),
        ("detours", nccl(NVLS.format("")), {}),
        ("detours", group(nodes=1, used=0), {}),
        ("detours", group(nodes=2, used=0), {"MNNVL off": ["node1"]}),
        ("detours", group(nodes=2, used=1, clique=8), {}),
        ("detours", group(nodes=2, used=1, clique=4), {"MNNVL off": ["node1"]}),
        # Older releases of NCCL write no size.
        ("detours", group(nodes=2, used=1), {}),
        # Slower paths are kept wherever they are reported.
        *(
            ("detours", text, EXPECTED["ways"]["detours"])
            for text in (
                fixture("ways"),
                CLEAN + fixture("ways"),
                "[1,3]<stdout>:" + fixture("ways"),
            )
        ),
        ("nics", "".join(NICS), {"node1": {"0": ["mlx5_2", "mlx5_3"], "1": ["mlx5_3"]}}),
    ],
)
def test_lines_of_nccl_show_networks_paths_and_nics(kind: str, line: str, found: Any) -> None:
    assert json.loads(json.dumps(dump(of(line * 3 + CLEAN))))[kind] == found


def test_nics_of_hosts_are_a_fact() -> None:
    log = of("".join(NICS) + CLEAN)
    (fact,) = (fact for fact in nccl_facts(log) if fact.name == "nccl-nics")
    ((_, nics),) = NCCL_NICS.of(record(step(), ["node1"], facts=(fact,)))
    assert nics == {"node1": {gpu: frozenset(names) for gpu, names in log.nics["node1"].items()}}


# -- failures --------------------------------------------------------------------------------------

SRUN = "srun: error: node2: task"
#: Causes and hosts -> the last lines of a log that was cut.
ENDS: dict[str, tuple[str, ...]] = {
    "crashed node2": (
        # Open MPI 5.0.11, which cuts the line here, and 4.1.8.
        "prterun noticed that process rank 1 with PID 1140 on node node2 exited on\nsignal 9",
        "mpirun noticed that process rank 1 with PID 0 on node node2 exited on signal 9 (Killed).",
        f"{SRUN} 3: Killed\nsrun: error: node1: task 0: Killed",
        f"{SRUN}s 2-3: Segmentation fault (core dumped)",
        "[1,3]<stdout>:node2: Test CUDA failure common.cu:892 'invalid argument'\n" * 9,
        "node2: Test NCCL failure common.cu:303 'x'\n   Exit code:    3",
    ),
    "": (
        f"{SRUN}s 0-1: Terminated",
        "srun: error: Unable to create step for job 7: More processors requested than permitted",
        "   Exit code:    0",
        "   Exit code:    7",
        f"{SRUN} 0: Exited with exit code 7",
    ),
    "crashed": (
        "node7: Test NCCL failure common.cu:777 'unhandled system error'",
        *(f"   Exit code:    {code}" for code in (1, 2, 3, 5, 6, 137, 255)),
        *(f"{SRUN} 0: Exited with exit code {code}" for code in (1, 2, 3, 5, 6, 137, 255)),
    ),
    "timed-out": ("   Exit code:    4", f"{SRUN} 0: Exited with exit code 4"),
    "wrong-command": ("node7: Test CUDA failure common.cu:892 'invalid device ordinal'",),
    "out-of-memory": ("srun: error: node7: task 3: Out Of Memory",),
}


@pytest.mark.parametrize(
    ("expected", "line"), [(expected, line) for expected, own in ENDS.items() for line in own]
)
def test_the_last_lines_show_why_a_run_ended(expected: str, line: str) -> None:
    log = of(f"{HEAD}{ROWS[2][:50]}{'-' * 20}\n{line}\n")
    *own, end = log.problems
    assert [f"{p.cause} {p.host or ''}".strip() for p in own] == [expected] * bool(expected)
    assert (end.cause, end.host) == (INCOMPLETE, None)
    code = line.rpartition(" ")[2]
    assert not (own and code.isdigit() and own[0].host is None) or code in own[0].message


def test_failures_and_warnings_are_bounded() -> None:
    lines = [b"h%d: Test NCCL failure x.cu:1 'y'\n" % i for i in range(1000)]
    lines += [b"h%d:1:2 [0] NCCL WARN broken\n" % i for i in range(1000)]
    log = parse(lines)
    assert len(log.problems) == nccl_tests_reader.MAX_FAILURES
    assert len(log.warnings) == nccl_info.MAX_WARNINGS


# -- metrics ---------------------------------------------------------------------------------------


def marked(collective: str, out: str, inp: str, bounds: str = "0 OK") -> str:
    """Return a log in which all rows have these two counts of wrong elements."""
    return table_text(collective, row=partial(row_text, wrong=(out, inp)), bounds=bounds)


@pytest.mark.parametrize(
    ("text", "cause", "counts"),
    [
        (marked("all_reduce", "N/A", "N/A"), UNCHECKED, {}),
        (with_cell(1, 12, "N/A"), UNCHECKED, {"out": 0}),
        # In-place results of these need not be checked.
        (marked("alltoall", "0", "N/A"), "", {"out": 0}),
        (marked("sendrecv", "0", "N/A"), "", {"out": 0}),
        (marked("alltoall", "N/A", "N/A"), UNCHECKED, {}),
        (marked("sendrecv", "N/A", "N/A"), UNCHECKED, {}),
        *(
            (marked("all_reduce", cell, "0", bounds="4 FAILED"), WRONG, {"out": 4 * count, "in": 4})
            for cell, count in (("1", 1), ("12", 12), ("1.2e+06", 1_200_000))
        ),
        # The end judges deviations.
        (changed((": 0 OK", ": 2 FAILED"), text=fixture("deviation")), WRONG, {"out": 2, "in": 2}),
    ],
)
def test_wrong_elements_are_counted_if_all_were_checked(
    text: str, cause: str, counts: dict[str, int]
) -> None:
    log = of(text)
    assert causes(log) == cause
    assert {str(m.placement): m.value for m in metrics(log, names=("wrong",))} == counts
    assert {p.check for p in log.problems} <= {only(log).check}


@pytest.mark.parametrize(
    ("out", "inp", "end"),
    [("7", "12", ", at 1048576 B (in-place)"), ("12", "7", ""), ("7", "7", "")],
)
def test_the_most_wrong_elements_are_named_with_their_place(out: str, inp: str, end: str) -> None:
    (problem,) = of(marked("all_reduce", out, inp, bounds="4 FAILED")).problems
    assert "first at 1048576 B (out-of-place)" in problem.message
    assert problem.message.endswith(f"elements are wrong in the worst of them{end}")


def test_metrics_are_one_per_size_and_placement() -> None:
    found = metrics(of(CLEAN))
    busbw = [m for m in found if m.name == "busbw"]
    assert len(busbw) == 8
    assert {(m.check, m.unit) for m in busbw} == {("all-reduce", "GB/s")}
    of_first = [(m.placement, m.value) for m in busbw if m.size == 1 << 20]
    assert of_first == [("out", 34.03), ("in", 33.7)]
    assert next(m.value for m in found if m.name == "time") == 46.21
    assert {m.name for m in metrics(of(CLEAN), names=("wrong", "time"))} == {"time", "wrong"}
    repeated = metrics(of(fixture("per-iteration")), names=("time-longest",))
    longest = [(m.size, m.value) for m in repeated if m.placement == "out"]
    assert longest == [(1 << 20, 60.1), (2 << 20, 96.1)]


def test_read_gives_metrics_facts_and_problems() -> None:
    parsed = read(fixture("interleaved").encode())
    assert parsed.problems == ()
    facts = {fact.name: fact for fact in parsed.facts}
    assert facts["nccl-tests"].check == "all-reduce"
    assert mapping(facts["nccl-tests"].value)["topSize"] == 1 << 22
    assert facts["nccl-networks"].value == {"IB": ["node1"], "Socket": ["node2"]}
    assert facts["nccl-warnings"].value == ["node2: NET/Socket : slow"]


# -- sources and memory ----------------------------------------------------------------------------


def test_a_log_may_come_as_bytes_as_pieces_or_as_a_file(tmp_path: Path) -> None:
    path, clean = tmp_path / "log", parse(CLEAN.encode())
    path.write_text(CLEAN)
    with path.open("rb") as file:
        assert parse(file) == clean
    pieces = CLEAN.encode().splitlines(keepends=True)
    assert parse(io.BytesIO(CLEAN.encode())) == parse(pieces) == clean
    assert parse(b"" for _ in range(3)).tables == ()
    long = b"x" * 200_000
    assert parse([*pieces[:13], long[:70_000], long, b"\n", *pieces[13:]]) == clean


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


@pytest.mark.rare
@pytest.mark.sampled
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
        assert parse(file).tables == of(CLEAN).tables


# -- properties -----------------------------------------------------------------------------------

TEXTS = [
    CLEAN.encode(),
    "\n".join(table_text(name, ranks=3) for name in COLLECTIVES).encode(),
    *(path.read_bytes() for path in sorted(LOGS.glob("*.log"))),
]
#: Bus bandwidths by collective, size and placement, over all of them.
TRUTH: dict[tuple[str | None, int, str], list[float]] = defaultdict(list)
for _text in TEXTS:
    for _table in parse(_text, collective="all_reduce").tables:
        for _row in _table.rows:
            for _place, _side in _row.sides():
                assert _side
                TRUTH[_table.collective, _row.size, _place].append(_side.busbw)


def damaged(seed: int) -> bytes:
    """Return a log with foreign text, lost, changed and repeated parts, maybe with prefixes."""
    chance = random.Random(seed)
    text = mutate.spoiled(chance, chance.choice(TEXTS), TEXTS)
    if chance.random() < 0.75:
        return text
    add = PREFIXES[chance.choice(sorted(PREFIXES))]
    return prefixed(text.decode(errors="surrogateescape"), add).encode(errors="surrogateescape")


def test_the_size_of_pieces_does_not_change_a_log() -> None:
    for seed in range(200):
        text, chance = damaged(seed), random.Random(seed)
        cuts = sorted(chance.randrange(len(text) + 1) for _ in range(5))
        pieces = [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]
        assert parse(pieces) == parse(text), seed


def test_damage_never_becomes_a_number_without_a_problem() -> None:
    for seed in range(800):
        log = parse(damaged(seed), collective="all_reduce")
        for table in log.tables if not log.problems else ():
            for row in table.rows:
                for place, side in row.sides():
                    truth = TRUTH[table.collective, row.size, place]
                    assert side is not None, seed
                    near = (abs(side.busbw - known) <= 0.02 + 0.02 * known for known in truth)
                    assert any(near), seed


@settings(max_examples=400)
@given(
    name=st.sampled_from(COLLECTIVES),
    ranks=st.sampled_from([1, 2, 8]),
    steps=st.integers(0, 6),
    share=st.floats(0, 1),
    prefix=st.sampled_from([b"", b"[1,0]<stdout>:", b"0: "]),
)
def test_a_truncated_log_is_never_complete(
    name: str, ranks: int, steps: int, share: float, prefix: bytes
) -> None:
    text = table_text(name, ranks=ranks, least=1 << 20, most=1 << (20 + steps)).encode()
    text = b"".join(prefix + line for line in text.splitlines(keepends=True))
    assert only(parse(text)).complete
    # The footer ends with the mean; only some versions print text after it.
    footer = text.index(b"Avg bus bandwidth    : ") + len(b"Avg bus bandwidth    : ")
    log = parse(text[: int(footer * share)])
    assert log.problems
    rows = only(parse(text)).rows
    for table in log.tables:
        assert not table.complete
        assert table.rows == rows[: len(table.rows)]


# -- real logs ------------------------------------------------------------------------------------


real_logs = pytest.mark.parametrize("logs", FOLDERS, ids=folder_name)


@real_logs
@pytest.mark.parametrize("folder", ["single-node", "pairwise", "multi-node"])
def test_real_logs_are_read_as_their_makers_summarized_them(logs: Path, folder: str) -> None:
    with (logs / folder / "summary.csv").open() as file:
        summary = list(csv.DictReader(file))
    assert summary
    parsed = {
        name: parse((logs / folder / name).read_bytes()) for name in {r["file"] for r in summary}
    }
    assert [log.problems for log in parsed.values()] == [()] * len(parsed)
    for line in summary:
        name = line["test"].removesuffix("_perf")
        table = next(t for t in parsed[line["file"]].tables if t.collective == name)
        assert table.complete
        assert table.ranks == int(line["N"]) * int(line["G"])
        assert (table.min_bytes, table.max_bytes) == (int(line["minBytes"]), int(line["maxBytes"]))
        assert table.average == float(line["avg_bus_bw_GBs"])
        peak = max(side.busbw for row in table.rows for _, side in row.sides() if side)
        assert peak == float(line["peak_busbw_GBs"])


@pytest.mark.parametrize("path", sorted(PUBLISHED.glob("*.log")), ids=lambda path: path.stem)
def test_excerpts_from_documentation_are_read_row_by_row(path: Path) -> None:
    """The output of nccom-test has another format, without a table of nccl-tests."""
    text = path.read_text()
    log = parse(text.encode())
    rows = re.findall(r"^\S* +\d+ +\d+ +float ", text, re.MULTILINE)  # maybe after a prefix
    average = re.findall(r"Avg bus bandwidth +: ([\d.]+)", text)
    assert sum(len(table.rows) for table in log.tables) == len(rows)
    assert [table.average for table in log.tables if table.average] == [float(a) for a in average]
    assert bool(log.tables) == (path.stem != "aws-nccom-slurm")
