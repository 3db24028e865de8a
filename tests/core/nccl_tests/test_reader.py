"""The reader of nccl-tests output: correct for all versions, and it reports all damage."""

from __future__ import annotations

import csv
import io
import json
import random
import re
from collections import defaultdict
from collections.abc import Callable
from functools import partial
from pathlib import Path

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
from accept.core.nccl_tests.table import Log, Table, bus_factor
from accept.core.serde import dump

LOGS = TESTS / "logs"

CLEAN = table_text().encode()
NCCL = b"node2:41001:41050 [1] NCCL INFO Channel 00/0 : 1[0] -> 0[0] [send] via NET/IB/0/GDRDMA\n"


def only(log: Log) -> Table:
    assert len(log.tables) == 1
    return log.tables[0]


def fixture(name: str) -> bytes:
    return (LOGS / f"{name}.log").read_bytes()


def causes(log: Log) -> list[str]:
    return [problem.cause for problem in log.problems]


def lines_of(text: bytes) -> list[bytes]:
    return text.splitlines(keepends=True)


def without(text: bytes, part: bytes) -> bytes:
    """Return the text without the lines that contain `part`."""
    kept = [line for line in lines_of(text) if part not in line]
    assert len(kept) < len(lines_of(text))
    return b"".join(kept)


INCOMPLETE, INFINITE, WRONG, UNCHECKED = (
    "incomplete-log",
    "not-finite",
    "wrong-data",
    "results-unchecked",
)
#: Damaged logs, by the kind of damage, with the causes of their problems.
BROKEN: dict[str, tuple[bytes, str]] = {
    "it does not name its collective": (without(CLEAN, b"Collective test"), INCOMPLETE),
    "its end is of another table": (
        CLEAN.replace(b"concluded: all_reduce", b"concluded: all_gather"),
        INCOMPLETE,
    ),
    "its collective is unknown": (CLEAN.replace(b"all_reduce", b"all_confuse"), INCOMPLETE),
    "no parameters": (without(CLEAN, b"nThread"), INCOMPLETE),
    "no devices": (without(CLEAN, b"#  Rank "), INCOMPLETE),
    "a gap in the devices": (without(CLEAN, b"#  Rank  1"), INCOMPLETE),
    "no column names": (without(CLEAN, b"redop"), INCOMPLETE),
    "no rows": (without(CLEAN, b"    float"), INCOMPLETE),
    "only rows": (b"".join(line for line in lines_of(CLEAN) if line[:1] == b" "), INCOMPLETE),
    "a row too few": (without(CLEAN, b"     4194304"), INCOMPLETE),
    "other sizes": (
        CLEAN.replace(b"     8388608       2097152", b"    33554432       8388608"),
        INCOMPLETE,
    ),
    "sizes without an end": (CLEAN.replace(b"step: 2(factor)", b"step: 0(bytes)"), INCOMPLETE),
    "a row that contradicts itself": (CLEAN.replace(b"   54.78", b"   99.78"), INCOMPLETE),
    "a row that was cut": (
        CLEAN.replace(b"   232.01   36.16   54.23       0\n", b"   232.01"),
        INCOMPLETE,
    ),
    "no values out of bounds": (without(CLEAN, b"Out of bounds"), INCOMPLETE),
    "no mean": (without(CLEAN, b"Avg bus"), INCOMPLETE),
    "another mean": (CLEAN.replace(b"45.4313", b"95.4313"), INCOMPLETE),
    "a mean that is not finite": (
        CLEAN.replace(b"45.4313", b"nan"),
        f"{INFINITE} {INCOMPLETE}",
    ),
    "a bandwidth that is not finite": (CLEAN.replace(b"   54.78", b"     inf"), INFINITE),
    "one wrong element": (CLEAN.replace(b"54.78       0", b"54.78       1"), WRONG),
    "wrong elements": (CLEAN.replace(b"54.78       0", b"54.78      32"), WRONG),
    "values out of bounds": (CLEAN.replace(b"values : 0 OK", b"values : 4 FAILED"), WRONG),
    "values out of bounds that are OK": (CLEAN.replace(b": 0 OK", b": 9 OK"), INCOMPLETE),
    "no values out of bounds that failed": (CLEAN.replace(b": 0 OK", b": 0 FAILED"), INCOMPLETE),
    "nothing was checked": (CLEAN.replace(b"54.78       0", b"54.78     N/A"), UNCHECKED),
    "a group that the rows do not fit": (
        CLEAN.replace(b"Rank  3 Group  0", b"Rank  3 Group  1"),
        INCOMPLETE,
    ),
    "nothing": (b"", "no-table"),
    "no table": (b"hello\n" * 50, "no-table"),
    "only lines of NCCL": (NCCL, "no-table"),
    "no MPI": (fixture("no-mpi"), "rank-count"),
    "a crash": (fixture("crashed"), f"crashed timed-out {INCOMPLETE}"),
    "too few GPUs": (
        b"Invalid number of GPUs: 8 requested but only 4 were found\n",
        "gpu-missing",
    ),
}
#: A message is a sentence if it has one of these verbs.
VERBS = re.compile(
    r"\b(is|are|was|were|has|have|ran|had|shows|reports|reported|gives|contradicts|ended|failed|took)\b"
)


@pytest.mark.parametrize("name", BROKEN)
def test_damage_has_a_cause_and_is_reported_as_full_sentences(name: str) -> None:
    text, expected = BROKEN[name]
    log = parse(text)
    assert " ".join(causes(log)) == expected
    incomplete = [table for table in log.tables if not (table.complete or table.alone)]
    assert bool(incomplete) is (INCOMPLETE in expected)
    for message in (problem.message for problem in log.problems):
        head, _, rest = message.partition(": ")
        # The text after "reported" is a quotation.
        sentences = (rest if rest and not head.endswith("reported") else head).split("; ")
        assert [sentence for sentence in sentences if not VERBS.search(sentence)] == []


# -- captured logs ---------------------------------------------------------------------------------

EXPECTED = json.loads((LOGS / "expected.json").read_text())


@pytest.mark.parametrize("path", sorted(LOGS.glob("*.log")), ids=lambda path: path.stem)
def test_a_captured_log_is_read_completely(path: Path) -> None:
    log = dump(parse(path.read_bytes(), collective="all_reduce"))
    assert json.loads(json.dumps(log)) == EXPECTED[path.stem]
    assert fixture("clean") == CLEAN


def test_a_log_holds_a_table_for_each_collective() -> None:
    text = "\n".join(table_text(name) for name in COLLECTIVES).encode()
    log = parse(text)
    assert log.problems == ()
    assert [table.collective for table in log.tables] == list(COLLECTIVES)


def test_a_single_rank_correctly_has_no_bus_bandwidth() -> None:
    log = parse(table_text(ranks=1).encode())
    assert log.problems == ()
    assert {side.busbw for row in only(log).rows for _, side in row.sides() if side} == {0.0}


@pytest.mark.parametrize(
    ("name", "ranks", "factor"),
    [
        ("all_reduce", 16, 1.875),
        ("all_gather", 4, 0.75),
        ("sendrecv", 4, 1.0),
        ("alltoall", 2, 0.5),
    ],
)
def test_bus_factors_are_those_of_nccl_tests(name: str, ranks: int, factor: float) -> None:
    assert bus_factor(name, ranks) == factor


def test_a_collective_without_a_known_formula_has_no_factor() -> None:
    assert bus_factor("hypercube", 4) is None
    assert bus_factor("all_reduce", None) is None


# -- versions -------------------------------------------------------------------------------------


def test_times_of_repetitions_are_metrics() -> None:
    found = metrics(parse(fixture("per-iteration")))
    longest = [m for m in found if m.name == "time-longest" and m.placement == "out"]
    assert [(m.size, m.value) for m in longest] == [(1 << 20, 60.1), (2 << 20, 96.1)]


def test_logs_of_old_builds_do_not_name_the_collective() -> None:
    log = parse(fixture("deviation"))
    assert causes(log) == ["incomplete-log"]
    assert metrics(log) == ()


def test_the_footer_judges_deviations() -> None:
    text = fixture("deviation").replace(b": 0 OK", b": 2 FAILED")
    log = parse(text, collective="all_reduce")
    assert causes(log) == ["wrong-data"]
    assert [m.value for m in metrics(log, names=("wrong",))] == [2.0, 2.0]


def test_cpu_times_do_not_have_to_agree_with_the_bandwidth() -> None:
    row = row_text("all_reduce", 4, 1 << 23)
    text = CLEAN.replace(row.encode(), row.replace(row.split()[5], " 12.00", 1).encode())
    assert causes(parse(text)) == ["incomplete-log"]
    assert causes(parse(text.replace(b"     time", b"  cputime"))) == []


# -- text around the lines ------------------------------------------------------------------------

PREFIXES: dict[str, Callable[[int, bytes], bytes]] = {
    "Open MPI 4": lambda i, line: b"[1,0]<stdout>:" + line,
    "Open MPI 5": lambda i, line: b"[prterun-node1-77@1,0]<stdout>: " + line,
    "srun": lambda i, line: b"0: " + line,
    "srun of many tasks": lambda i, line: b"   0: " + line,
    "hydra": lambda i, line: b"[0] " + line,
    "host and rank": lambda i, line: b"[node1:0]: " + line,
    "kubectl": lambda i, line: b"[pod/accept-0-x7k2p/accept] " + line,
    "kubectl with times": lambda i, line: (
        b"[pod/run-workers-0-0-x7k2p/accept] 2026-07-10T12:00:%02d.123456789Z " % (i % 60) + line
    ),
    "stern": lambda i, line: b"accept-0-x7k2p accept \xe2\x80\xba " + line,
    "compose": lambda i, line: b"accept-1  | " + line,
    "pdsh": lambda i, line: b"node1: " + line,
    "time": lambda i, line: b"2026-07-10T12:00:%02d.123456789Z " % (i % 60) + line,
    "time in brackets": lambda i, line: b"[2026-07-10 12:00:%02d] " % (i % 60) + line,
    "containerd": lambda i, line: b"2026-07-10T12:00:%02d.1Z stdout F " % (i % 60) + line,
    "time and tag": lambda i, line: b"2026-07-10T12:00:%02d.1Z [1,0]<stdout>:" % (i % 60) + line,
    "colors": lambda i, line: b"\x1b[32m[1,0]<stdout>:\x1b[0m" + line[:-1] + b"\x1b[K\n",
    "carriage returns": lambda i, line: line[:-1] + b"\r\n",
}


@pytest.mark.parametrize("name", PREFIXES)
def test_prefixes_of_launchers_and_collectors_change_nothing(name: str) -> None:
    add = PREFIXES[name]
    text = b"".join(add(i, line) for i, line in enumerate(lines_of(CLEAN)))
    assert parse(text) == parse(CLEAN)


@pytest.mark.parametrize("at", range(1, len(lines_of(CLEAN)[13])))
def test_a_line_of_nccl_may_land_at_any_byte_of_a_row(at: int) -> None:
    lines = lines_of(CLEAN)
    assert lines[13].split()[0] == b"1048576"
    lines[13] = lines[13][:at] + NCCL + lines[13][at:]
    log = parse(b"".join(lines))
    assert (log.tables, log.problems) == (parse(CLEAN).tables, ())
    assert log.networks == {"IB": ("node2",)}


@pytest.mark.parametrize("number", range(1, 14))
def test_lines_of_nccl_may_be_between_any_two_lines(number: int) -> None:
    lines = lines_of(CLEAN)
    log = parse(b"".join([*lines[:number], NCCL, NCCL, *lines[number:]]))
    assert (log.tables, log.problems) == (parse(CLEAN).tables, ())
    assert log.nccl_lines == 2


@pytest.mark.parametrize(
    ("message", "networks"),
    [
        ("Using network gIB", ["gIB"]),
        ("Using network AWS Libfabric", ["AWS Libfabric"]),
        ("Channel 01/0 : 3[3] -> 8[0] [receive] via NET/FasTrak/3/GDRDMA/Shared", ["FasTrak"]),
        ("NET/IB : No device found.", []),
        ("NET/Plugin: Loaded net plugin gIB (v10)", []),
    ],
)
def test_a_network_that_was_only_searched_for_is_not_used(
    message: str, networks: list[str]
) -> None:
    line = f"node1:1:2 [0] NCCL INFO {message}\n".encode()
    assert [*parse(line * 3 + CLEAN).networks] == networks


def test_nics_are_known_by_gpu_if_nccl_prints_their_names_and_channels() -> None:
    lines = [
        "node1:1:2 [0] NCCL INFO NET/IB : Using [0]mlx5_3:1/IB [1]mlx5_2:1/RoCE [RO]; OOB eth0:1",
        "node1:1:2 [0] NCCL INFO Channel 00/0 : 0[0] -> 8[0] [send] via NET/IB/0/GDRDMA",
        "node1:1:2 [0] NCCL INFO Channel 01/0 : 8[0] -> 0[0] [receive] via NET/IB/1(3)/GDRDMA",
        "node1:1:3 [1] NCCL INFO Channel 00/0 : 1[1] -> 9[1] [send] via NET/IB/0",
        "node1:1:3 [-1] NCCL INFO Channel 00/0 : 2[2] -> 9[1] [send] via NET/IB/0",
        # A number without a name, and a host without any.
        "node2:1:2 [0] NCCL INFO NET/IB : Using [0]mlx5_0:1/IB [RO]; OOB eth0:1",
        "node2:1:3 [1] NCCL INFO Channel 00/0 : 1[1] -> 9[1] [send] via NET/IB/0",
        "node2:1:3 [2] NCCL INFO Channel 00/0 : 2[2] -> 9[1] [send] via NET/IB/7",
        "node3:1:3 [1] NCCL INFO Channel 00/0 : 1[1] -> 9[1] [send] via NET/IB/0",
    ]
    log = parse("".join(f"{line}\n" for line in lines).encode() + CLEAN)
    assert log.nics == {"node1": {0: ("mlx5_2", "mlx5_3"), 1: ("mlx5_3",)}}
    (fact,) = (fact for fact in nccl_facts(log) if fact.name == "nccl-nics")
    ((_, nics),) = NCCL_NICS.of(record(step(), ["node1"], facts=(fact,)))
    assert nics == {"node1": {gpu: frozenset(names) for gpu, names in log.nics["node1"].items()}}


def test_slower_paths_are_kept_wherever_they_are_reported() -> None:
    lines = fixture("ways")
    for text in (lines + CLEAN, CLEAN + lines, b"[1,3]<stdout>:" + lines):
        assert dump(parse(text))["detours"] == EXPECTED["ways"]["detours"]


@pytest.mark.parametrize(("word", "hosts"), [("not ", ("node1",)), ("", ())])
def test_switches_that_cannot_reduce_are_kept_with_their_hosts(
    word: str, hosts: tuple[str, ...]
) -> None:
    line = f"node1:1:2 [0] NCCL INFO NVLS multicast support is {word}available on dev 0\n"
    assert parse(line.encode() + CLEAN).detours.get("NVLS off", ()) == hosts


@pytest.mark.parametrize(
    ("nodes", "used", "clique", "hosts"),
    [
        (1, 0, None, ()),
        (2, 0, None, ("node1",)),
        (2, 1, 8, ()),
        (2, 1, 4, ("node1",)),
        # Older releases of NCCL write no size.
        (2, 1, None, ()),
    ],
)
def test_groups_without_nvlink_between_their_hosts_are_kept(
    nodes: int, used: int, clique: int | None, hosts: tuple[str, ...]
) -> None:
    recorded = (TESTS / "data/gpu/h100-80gb-hbm3/all_reduce_perf.log").read_text()
    (line,) = (line for line in recorded.splitlines() if line.endswith(" MNNVL 0"))
    line = line.replace("nRanks 1 nNodes 1", f"nRanks 8 nNodes {nodes}")
    line = line.replace("MNNVL 0", f"MNNVL {used}").replace("vm:", "node1:")
    text = (
        ""
        if clique is None
        else (f"node1:1:2 [0] NCCL INFO MNNVL 1 cliqueId 7ffe cliqueSize {clique} cliqueRank 0\n")
    )
    assert parse(f"{text}{line}\n".encode() + CLEAN).detours.get("MNNVL off", ()) == hosts


# -- missing parts --------------------------------------------------------------------------------


def test_rows_after_the_footer_are_not_counted_to_the_table() -> None:
    log = parse(CLEAN + row_text("all_reduce", 4, 1 << 24).encode() + b"\n")
    assert [table.complete for table in log.tables] == [True, False]
    assert causes(log) == ["incomplete-log"]


def test_repeated_runs_over_all_sizes_are_complete() -> None:
    rows = [line for line in lines_of(CLEAN) if line.startswith(b" ")]
    text = CLEAN.replace(rows[-1], rows[-1] + b"".join(rows))
    log = parse(text)
    assert log.problems == ()
    assert len(only(log).rows) == 8
    assert causes(parse(text.replace(rows[1], b"", 1))) == ["incomplete-log"]


def test_a_reduced_maximum_is_noted() -> None:
    rows = [line for line in lines_of(CLEAN) if line.startswith(b" ")]
    note = b"#\n# Reducing maxBytes to 5000000 due to memory limitation\n#\n# "
    mean = sum(float(row.split()[i]) for row in rows[:3] for i in (7, 11)) / 6
    text = CLEAN.replace(rows[3], b"").replace(b"#\n#  ", note, 1)
    text = text.replace(
        CLEAN[CLEAN.index(b"# Avg") :].split(b"\n")[0], b"# Avg bus bandwidth : %f" % mean
    )
    table = only(parse(text))
    assert table.complete
    assert (table.max_bytes, table.reduced_max, table.top_size) == (1 << 23, 5000000, 1 << 22)


def test_sizes_that_our_program_leaves_out_are_not_missing() -> None:
    rows = [line for line in lines_of(CLEAN) if line.startswith(b" ")]
    mean = sum(float(row.split()[i]) for row in rows[1:] for i in (7, 11)) / 6
    text = CLEAN.replace(rows[0], b"# Size 1048576 left out: less than 16 B per rank\n")
    text = text.replace(
        CLEAN[CLEAN.index(b"# Avg") :].split(b"\n")[0], b"# Avg bus bandwidth : %f" % mean
    )
    assert parse(text).problems == ()


# -- damaged parts --------------------------------------------------------------------------------


@pytest.mark.parametrize("cell", [0, 5, 7, 9, 11])
def test_a_contradictory_row_is_not_a_measurement(cell: int) -> None:
    row = row_text("all_reduce", 4, 1 << 22)
    right = row.split()[cell]
    damaged = row.replace(right, str(int(right[0]) % 9 + 1) + right[1:])
    log = parse(CLEAN.replace(row.encode(), damaged.encode()))
    assert causes(log) == ["incomplete-log"]
    assert [row.size for row in only(log).rows] == [1 << 20, 1 << 21, 1 << 23]


@pytest.mark.parametrize("size", [1 << 14, 1 << 24])
def test_a_row_that_was_not_requested_is_not_a_measurement(size: int) -> None:
    right = row_text("all_reduce", 4, 1 << 22)
    log = parse(CLEAN.replace(right.encode(), row_text("all_reduce", 4, size).encode()))
    assert causes(log) == ["incomplete-log"]
    assert [row.size for row in only(log).rows] == [1 << 20, 1 << 21, 1 << 23]


@pytest.mark.parametrize("word", ["nan", "-nan", "inf"])
def test_invalid_numbers_are_problems_and_not_metrics(word: str) -> None:
    row = row_text("all_reduce", 4, 1 << 23)
    damaged = row.replace(row.split()[7], f"{word:>{len(row.split()[7])}}", 1)
    log = parse(CLEAN.replace(row.encode(), damaged.encode()))
    assert causes(log) == ["not-finite"]
    found = metrics(log, names=("busbw",))
    assert [m.size for m in found if m.placement == "out"] == [1 << 20, 1 << 21, 1 << 22]
    assert [m.size for m in found if m.placement == "in"][-1] == 1 << 23


def test_the_hosts_of_a_table_without_any_finite_number_are_known() -> None:
    numbers = (row_text("all_reduce", 4, 1 << 20 + n).encode() for n in range(4))
    text = CLEAN
    for row in numbers:
        for cell in {*row.split()[5:8], *row.split()[9:12]}:
            text = text.replace(b" " + cell + b" ", b" " + b"nan".rjust(len(cell)) + b" ")
    log = parse(text)
    assert causes(log) == ["not-finite"]
    assert only(log).hosts == only(parse(CLEAN)).hosts


@pytest.mark.parametrize("text", ["1_048_576", "+-1", "0x10", "1e3", "9" * 30, "-5"])
def test_invalid_sizes_make_no_row(text: str) -> None:
    log = parse(CLEAN.replace(b"     1048576  ", text.encode() + b"  ", 1))
    assert causes(log) == ["incomplete-log"]
    assert len(only(log).rows) == 3


# -- correct and wrong results --------------------------------------------------------------------


def marked(collective: str, out: str, inp: str, bounds: str = "0 OK") -> Log:
    """Return a log in which all rows have these two cells."""
    row = partial(row_text, wrong=(out, inp))
    return parse(table_text(collective, row=row, bounds=bounds).encode())


def test_data_that_were_not_checked_are_a_problem_and_never_zero() -> None:
    log = marked("all_reduce", "N/A", "N/A")
    assert causes(log) == ["results-unchecked"]
    assert {side.wrong for row in only(log).rows for _, side in row.sides() if side} == {None}
    assert metrics(log, names=("wrong",)) == ()


@pytest.mark.parametrize("collective", ["alltoall", "sendrecv"])
def test_unchecked_in_place_results_may_be_correct(collective: str) -> None:
    log = marked(collective, "0", "N/A")
    assert log.problems == ()
    assert [(m.placement, m.value) for m in metrics(log, names=("wrong",))] == [("out", 0.0)]
    assert causes(marked(collective, "N/A", "N/A")) == ["results-unchecked"]


def test_one_unchecked_size_leaves_the_placement_unchecked() -> None:
    row = row_text("all_reduce", 4, 1 << 21)
    text = CLEAN.replace(row.encode(), row[:-1].encode() + b"N/A")
    log = parse(text)
    assert causes(log) == ["results-unchecked"]
    assert [m.placement for m in metrics(log, names=("wrong",))] == ["out"]


@pytest.mark.parametrize(("cell", "count"), [("1", 1), ("12", 12), ("1.2e+06", 1_200_000)])
def test_wrong_elements_are_counted(cell: str, count: int) -> None:
    log = marked("all_reduce", cell, "0", bounds="4 FAILED")
    assert causes(log) == ["wrong-data"]
    assert log.problems[0].check == "all-reduce"
    assert [m.value for m in metrics(log, names=("wrong",))] == [4 * count, 4.0]


# -- failures -------------------------------------------------------------------------------------


def test_a_build_without_mpi_is_recognized_and_measures_nothing() -> None:
    log = parse(fixture("no-mpi"), collective="all_reduce")
    assert causes(log) == ["rank-count"]
    assert metrics(log) == ()


def test_consecutive_tables_of_one_gpu_are_not_a_build_without_mpi() -> None:
    assert parse(table_text(ranks=1, hosts=["node1"]).encode() * 2).problems == ()


def test_the_same_table_from_two_hosts_of_one_rank_is_a_build_without_mpi() -> None:
    text = table_text(ranks=1, hosts=["node1"]) + table_text(ranks=1, hosts=["node2"])
    assert causes(parse(text.encode())) == ["rank-count"]


def test_a_crash_before_the_first_table_is_a_crash() -> None:
    log = parse(b"[1,3]<stdout>:node7: Test CUDA failure common.cu:892 'invalid argument'\n" * 9)
    assert [(p.cause, p.host) for p in log.problems] == [("crashed", "node7")]


@pytest.mark.parametrize(
    ("line", "cause"),
    [
        ("node7: Test CUDA failure common.cu:892 'invalid device ordinal'", "wrong-command"),
        ("node7: Test NCCL failure common.cu:777 'unhandled system error'", "crashed"),
        ("srun: error: node7: task 3: Out Of Memory", "out-of-memory"),
    ],
)
def test_a_mistake_of_the_command_accuses_no_host(line: str, cause: str) -> None:
    log = parse(f"[1,3]<stdout>:{line}\n".encode())
    assert [(p.cause, p.host) for p in log.problems] == [(cause, None)]


def test_groups_of_a_split_run_have_their_own_number_of_ranks() -> None:
    text = table_text(ranks=2).replace("Using devices\n", "Using devices\n" + "%s")
    more = "".join(
        f"#  Rank {rank:2d} Group  1 Pid  41000 on      node3 device  0 [0000:1b:00] NVIDIA H100\n"
        for rank in (2, 3)
    )
    lines = text.replace("%s", "").splitlines(keepends=True)
    last = max(i for i, line in enumerate(lines) if "Rank" in line)
    log = parse("".join([*lines[: last + 1], more, *lines[last + 1 :]]).encode())
    # The bandwidth is that of two ranks; the mean over the groups is not that of any group.
    assert (causes(log), only(log).complete, only(log).split) == (["no-measurement"], True, True)
    assert (only(log).ranks, metrics(log)) == (4, ())


# -- metrics --------------------------------------------------------------------------------------


def test_metrics_are_one_per_size_and_placement() -> None:
    found = metrics(parse(CLEAN))
    busbw = [m for m in found if m.name == "busbw"]
    assert len(busbw) == 8
    assert {(m.check, m.unit) for m in busbw} == {("all-reduce", "GB/s")}
    assert [m.value for m in busbw if m.size == 1 << 20] == [34.03, 33.7]
    assert [m.placement for m in busbw if m.size == 1 << 20] == ["out", "in"]
    time = [m.value for m in found if m.name == "time"]
    assert time[0] == 46.21


def test_metrics_can_be_chosen() -> None:
    assert {m.name for m in metrics(parse(CLEAN), names=("wrong", "time"))} == {"time", "wrong"}


def test_read_gives_metrics_facts_and_problems() -> None:
    parsed = read(fixture("interleaved"))
    assert parsed.problems == ()
    facts = {fact.name: fact for fact in parsed.facts}
    assert facts["nccl-tests"].check == "all-reduce"
    assert mapping(facts["nccl-tests"].value)["topSize"] == 1 << 22
    assert facts["nccl-networks"].value == {"IB": ["node1"], "Socket": ["node2"]}
    assert facts["nccl-warnings"].value == ["node2: NET/Socket : slow"]


# -- sources and limits ---------------------------------------------------------------------------


def test_a_log_may_come_as_bytes_as_pieces_or_as_a_file(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_bytes(CLEAN)
    with path.open("rb") as file:
        assert parse(file) == parse(CLEAN)
    assert parse(io.BytesIO(CLEAN)) == parse(CLEAN)
    assert parse(lines_of(CLEAN)) == parse(CLEAN)
    assert parse(b"" for _ in range(3)).tables == ()


def test_a_line_beyond_the_limit_is_left_out() -> None:
    long = b"x" * 200_000
    lines = lines_of(CLEAN)
    lines.insert(13, long + b"\n")
    assert parse(b"".join(lines)) == parse(CLEAN)
    assert parse([*lines[:13], long[:70_000], long, b"\n", *lines[14:]]) == parse(CLEAN)
    lines[13] = lines[12][:-1] + b" " * 70_000 + b"\n"
    assert parse(b"".join(lines)) == parse(CLEAN)


def test_more_rows_than_can_be_kept_are_a_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nccl_tests_table, "MAX_ROWS", 6)
    log = parse(CLEAN * 3)
    assert sum(len(table.rows) for table in log.tables) == 6
    assert causes(log)[-1] == "unparsable"


def test_more_devices_or_tables_than_can_be_kept_are_a_problem(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(nccl_tests_table, "MAX_DEVICES", 6)
    monkeypatch.setattr(nccl_tests_table, "MAX_TABLES", 2)
    log = parse(CLEAN * 3)
    assert [table.ranks for table in log.tables] == [4, None]
    assert causes(log)[-1] == "unparsable"


def test_failures_and_warnings_are_bounded() -> None:
    lines = [b"h%d: Test NCCL failure x.cu:1 'y'\n" % i for i in range(1000)]
    lines += [b"h%d:1:2 [0] NCCL WARN broken\n" % i for i in range(1000)]
    log = parse(lines)
    assert len(log.problems) == nccl_tests_reader.MAX_FAILURES
    assert len(log.warnings) == nccl_info.MAX_WARNINGS


# -- properties -----------------------------------------------------------------------------------

TEXTS = [
    CLEAN,
    b"\n".join(table_text(name, ranks=3).encode() for name in COLLECTIVES),
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
    return b"".join(add(i, line) for i, line in enumerate(lines_of(text)))


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
    text = b"".join(prefix + line for line in lines_of(text))
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
