"""The output of nccl-tests with `-J`: the same model as from its text, without the environment."""

from __future__ import annotations

import json
import tracemalloc
from collections.abc import Iterator
from typing import Any

import pytest
from benchmarks.nccl_text import COLLECTIVES, SECRET, document, json_text, split, table_text
from hypothesis import given, settings
from hypothesis import strategies as st

from accept.core import nccl_tests
from accept.core.nccl_tests import metrics
from accept.core.nccl_tests.table import Log, Table
from accept.foreign_logs import json as nccl_tests_json
from accept.foreign_logs.json import parse

TEXT = table_text()


def made(**members: Any) -> dict[str, Any]:
    return {**document(TEXT), **members}


def read(data: dict[str, Any]) -> Log:
    return parse(json_text(data).encode())


def only(log: Log) -> Table:
    assert len(log.tables) == 1
    return log.tables[0]


def causes(log: Log) -> list[str]:
    return [problem.cause for problem in log.problems]


def contents(log: Log) -> list[Any]:
    """Return the parts of a log that both formats have; only the text has the version."""
    whole = [
        (
            (t.collective, t.ranks, t.devices, t.min_bytes, t.max_bytes, t.reduced_max, t.rows),
            (t.out_of_bounds, t.average, t.complete, t.alone, t.split),
        )
        for t in log.tables
    ]
    return [whole, log.problems, metrics(log)]


# -- one model ------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", COLLECTIVES)
def test_json_and_text_give_the_same_tables(name: str) -> None:
    text = table_text(name, ranks=8, least=8, most=1 << 30)
    assert contents(read(document(text))) == contents(nccl_tests.parse(text.encode()))


ROWS = "".join(line for line in TEXT.splitlines(keepends=True) if line.startswith(" "))


@pytest.mark.parametrize(
    "changes",
    [
        {"54.78       0": "54.78       3", ": 0 OK": ": 12 FAILED"},
        {"       0\n": "     N/A\n"},
        {"      0  ": "1.2e+06  ", "       0\n": "     N/A\n", ": 0 OK": ": 4 FAILED"},
        {": 0 OK": ": 4 FAILED"},
        {"   54.78": "   99.78"},
        {"   54.78": "     inf"},
        {"45.4313": "nan"},
        {"45.4313": "95.4313"},
        {ROWS: ROWS * 3},
        {ROWS.splitlines(keepends=True)[1]: ""},
        {"_perf": "_confuse_perf"},
    ],
)
def test_what_is_wrong_in_a_text_is_wrong_in_its_json(changes: dict[str, str]) -> None:
    text = TEXT
    for old, new in changes.items():
        assert old in text
        text = text.replace(old, new)
    log = read(document(text))
    assert contents(log) == contents(nccl_tests.parse(text.encode()))
    assert bool(log.problems) is (ROWS * 3 not in text)


@pytest.mark.parametrize("value", ["nan", float("nan"), float("inf"), float("-inf"), "inf", None])
def test_invalid_numbers_are_problems_and_not_metrics(value: object) -> None:
    data = made()
    data["results"][3]["in_place"]["bus_bw"] = value
    log = read(data)
    assert causes(log) == ["not-finite"]
    assert len(metrics(log, names=("busbw",))) == 7


@pytest.mark.parametrize("given", [(9, "true"), (0, "false")])
def test_a_number_of_values_out_of_bounds_fits_its_judgement(given: tuple[int, str]) -> None:
    log = read(made(out_of_bounds=dict(zip(("count", "okay"), given, strict=True))))
    assert causes(log) == ["incomplete-log"]


def test_cpu_times_do_not_have_to_agree_with_the_bandwidth() -> None:
    data = made()
    for row in data["results"]:
        for place in ("out_of_place", "in_place"):
            del row[place]["time"]
            row[place]["cpu_time"] = 12.0
    assert read(data).problems == ()


def test_versions_before_2_17_9_misspell_the_mean() -> None:
    data = document(TEXT)
    mean = data.pop("average_bus_bandwidth")
    data["average_bus_bandwidith"] = {"bandwidith": mean["bandwidth"], "okay": "unchecked"}
    assert read(data).problems == ()


def test_members_may_be_in_any_order_and_on_any_lines() -> None:
    text = json.dumps(document(TEXT), indent=2, sort_keys=True)
    assert contents(parse(text.encode())) == contents(nccl_tests.parse(TEXT.encode()))


def test_a_step_may_be_bytes() -> None:
    data = made()
    data["results"] = [{**data["results"][0], "size": n << 20} for n in (1, 2, 3)]
    for n, row in enumerate(data["results"], 1):
        row["out_of_place"] = {**row["out_of_place"], "time": 46.21 * n}
        row["in_place"] = {**row["in_place"], "time": 46.68 * n}
    data["config"].update(maximum_bytes=3 << 20, step_bytes=1 << 20)
    del data["config"]["step_factor"]
    buses = [34.03, 33.70]
    data["average_bus_bandwidth"]["bandwidth"] = sum(buses) / 2
    assert read(data).problems == ()


def test_sizes_beyond_memory_are_reported() -> None:
    data = made()
    data["config"]["maximum_bytes"] = 1 << 26
    table = only(read(data))
    assert table.complete
    assert (table.max_bytes, table.reduced_max, table.top_size) == (1 << 26, 1 << 23, 1 << 23)


def test_only_the_first_gpu_of_a_process_is_listed() -> None:
    data = made()
    data["config"].update(ngpus=2)
    data["config"]["devices"] = [
        {**data["config"]["devices"][0], "rank": 2 * n, "hostname": f"node{n}", "device": 0}
        for n in range(2)
    ]
    table = only(read(data))
    assert table.complete
    assert [(d.rank, d.host, d.device) for d in table.devices] == [
        (0, "node0", 0),
        (1, "node0", 1),
        (2, "node1", 0),
        (3, "node1", 1),
    ]


def test_several_documents_are_several_tables() -> None:
    text = "\n".join(json_text(document(table_text(name))) for name in COLLECTIVES)
    log = parse(text.encode())
    assert log.problems == ()
    assert [table.collective for table in log.tables] == list(COLLECTIVES)


# -- missing and damaged parts --------------------------------------------------------------------


@st.composite
def documents(draw: st.DrawFn) -> str:
    """Return a document of one table, or of one table for each group."""
    if draw(st.booleans()):
        data = document(table_text(ranks=2))
        split(data, draw(st.sampled_from([4, 6])), slow)
    else:
        name, ranks = draw(st.sampled_from(COLLECTIVES)), draw(st.sampled_from([1, 2, 8]))
        data = document(table_text(name, ranks=ranks))
    return json_text(data) if draw(st.booleans()) else json.dumps(data, indent=1)


@settings(max_examples=300)
@given(text=documents(), share=st.floats(0, 1))
def test_a_truncated_document_is_never_complete(text: str, share: float) -> None:
    whole = parse(text.encode())
    assert all(table.complete for table in whole.tables)
    log = parse(text.encode()[: int((len(text) - 1) * share)])
    assert log.problems
    assert not any(table.complete for table in log.tables)
    for table, full in zip(log.tables, whole.tables, strict=False):
        assert table.rows == full.rows[: len(table.rows)]


def test_damage_ends_a_document() -> None:
    text = json_text(made())
    log = parse(text.replace('"end_time":', '"end_time"').encode())
    assert causes(log) == ["incomplete-log"]
    assert len(only(log).rows) == 4


@pytest.mark.parametrize("raw", [b"\xff", b"\\ud800"])
def test_invalid_unicode_is_damage_only_in_used_text(raw: bytes) -> None:
    text = json_text(made()).encode()
    assert parse(text.replace(b"PATH=", b"PATH=" + raw)).problems == ()
    broken = text.replace(b'"node1"', b'"node' + raw + b'"')
    assert "node1" not in {device.host for device in only(parse(broken)).devices}


def test_a_document_closed_after_an_error_has_no_footer() -> None:
    data = made(results=made()["results"][:2])
    del data["out_of_bounds"], data["average_bus_bandwidth"]
    log = read(data)
    assert causes(log) == ["incomplete-log"]
    assert (len(only(log).rows), only(log).average) == (2, None)


@pytest.mark.parametrize(
    "text",
    ['{"a": 1}', '{"results": 3}', '{"log":"# nThread 1","stream":"stdout"}', '{"', "{}", "[1]"],
)
def test_other_json_is_not_a_log(text: str) -> None:
    log = parse(text.encode())
    assert causes(log) == ["no-table"]
    assert log.tables == ()


@pytest.mark.parametrize("member", ["size", "count", "type", "redop", "root", "in_place"])
@pytest.mark.parametrize("value", [None, True, -1, "a b", [], {}, 1 << 80])
def test_a_result_that_lacks_a_cell_is_missing(member: str, value: object) -> None:
    data = made()
    data["results"][3][member] = value
    assert set(causes(read(data))) <= {"incomplete-log", "not-finite"}
    assert causes(read(data))


def test_the_first_of_two_configurations_counts() -> None:
    data = document(table_text(ranks=2))
    split(data, 4, slow)
    other = json_text(document(TEXT)).partition('"config":')[2].partition(',"results"')[0]
    text = json_text(data)
    for twice in (
        text.replace('"results":', f'"config":{other},"results":'),
        text.replace('"out_of_bounds":', f'"config":{other},"out_of_bounds":'),
    ):
        assert contents(parse(twice.encode())) == contents(read(data))


@pytest.mark.parametrize("member", ["hostname", "rank", "device", "device_hex"])
def test_a_device_that_cannot_be_read_is_a_gap(member: str) -> None:
    data = made()
    data["config"]["devices"][2][member] = "a\nb"
    assert 2 not in [device.rank for device in only(read(data)).devices]


def test_a_row_beyond_the_limit_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nccl_tests_json, "MAX_VALUE", 200_000)
    data = made()
    data["results"][3]["times_us"] = [1.25] * 400_000
    log = read(data)
    assert causes(log) == ["incomplete-log"]
    assert len(only(log).rows) == 3


def test_the_environment_is_kept_nowhere() -> None:
    log = read(made())
    parsed = (nccl_tests.facts(log), metrics(log), log)
    assert SECRET not in repr(parsed)
    cut = json_text(made()).partition(SECRET)[0] + SECRET
    assert SECRET not in repr(parse(cut.encode()))


# -- groups ---------------------------------------------------------------------------------------


def slow(process: int, size: int) -> float:
    """Return pairs at 40 GB/s; the second one (processes 2 and 3) reaches half of that."""
    return (20e-6 + size / 40e9) * (2.0 if process == 3 else 1.0)


def test_every_group_of_a_split_run_is_a_table_of_its_own() -> None:
    data = document(table_text(ranks=2))
    split(data, 6, slow)
    log = read(data)
    assert log.problems == ()
    assert [[d.host for d in t.devices] for t in log.tables] == [
        ["node0", "node1"],
        ["node2", "node3"],
        ["node4", "node5"],
    ]
    assert [[d.rank for d in t.devices] for t in log.tables] == [[0, 1]] * 3
    speeds = [t.rows[-1].out_of_place.busbw for t in log.tables if t.rows[-1].out_of_place]
    assert speeds[0] == speeds[2] == pytest.approx(2 * speeds[1])
    assert speeds[0] == pytest.approx((1 << 23) / slow(0, 1 << 23) * 1e-9)
    assert {m.value for m in metrics(log, names=("wrong",))} == {0.0}


def test_leading_iterations_that_the_summary_skips_do_not_count() -> None:
    data = document(table_text(ranks=2))
    split(data, 4, slow)
    for row in data["results"]:
        row["out_of_place_per_iter"]["skipped_iterations"] = 0
        row["in_place_per_iter"]["skipped_iterations"] = 0
    speeds = [t.rows[-1].out_of_place for t in read(data).tables]
    assert speeds[0]
    # The median of 0.9, 1.0, 1.1 and 5.0.
    assert speeds[0].time == pytest.approx(1.05 * slow(0, 1 << 23) * 1e6)


def test_wrong_elements_of_a_split_run_are_reported_without_a_host() -> None:
    data = document(table_text(ranks=2))
    split(data, 4, slow)
    data["results"][0]["in_place"]["nwrong"] = 7.0
    data["out_of_bounds"] = {"count": 7, "okay": "false"}
    log = read(data)
    assert [table.split for table in log.tables] == [True, False, False]
    assert causes(log) == ["no-measurement", "wrong-data", "results-unchecked", "results-unchecked"]
    assert [m.value for m in metrics(log, names=("wrong",))] == [0.0, 0.0]


def test_a_split_run_without_the_times_of_every_process_measures_no_group() -> None:
    data = document(table_text(ranks=2))
    split(data, 4, slow)
    for row in data["results"]:
        del row["in_place_per_iter"]
    log = read(data)
    assert causes(log) == ["no-measurement"]
    assert metrics(log) == ()


def test_a_group_without_a_known_formula_measures_nothing() -> None:
    data = document(table_text(ranks=2))
    split(data, 4, slow)
    data["args"][0] = "hypercube_perf"
    log = read(data)
    assert causes(log) == ["no-measurement"]
    assert metrics(log) == ()


@pytest.mark.parametrize("times", [[], [[1.0]] * 3, [1.0] * 4, None])
def test_times_of_other_processes_are_ignored(times: object) -> None:
    data = document(table_text(ranks=2))
    split(data, 4, slow)
    data["results"][0]["in_place_per_iter"]["per_process_max_times_us"] = times
    assert causes(read(data)) == ["no-measurement"]


@pytest.mark.parametrize("value", ["nan", None, float("inf"), "x"])
def test_an_invalid_time_affects_only_its_group(value: object) -> None:
    data = document(table_text(ranks=2))
    split(data, 4, slow)
    data["results"][0]["in_place_per_iter"]["per_process_max_times_us"][3][1:] = [value] * 3
    log = read(data)
    assert causes(log) == ["not-finite"]
    assert [len(metrics(log, names=("busbw",)))] == [15]


# -- sources and limits ---------------------------------------------------------------------------


@settings(max_examples=100)
@given(st.data())
def test_the_size_of_pieces_does_not_change_a_document(data: st.DataObject) -> None:
    text = (json_text(made()) + json_text(document(table_text("alltoall")))).encode()
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=5)))
    pieces = [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    assert parse(pieces) == parse(text)


def test_pieces_of_one_byte_and_of_64_kib_meet_every_token(monkeypatch: pytest.MonkeyPatch) -> None:
    text = json_text(made()).encode()
    monkeypatch.setattr(nccl_tests_json, "_BLOCK", 1)
    assert parse(text[n : n + 1] for n in range(len(text))) == parse(text)


def endless(megabytes: int) -> Iterator[bytes]:
    """Return a truncated run with the times of every iteration of very many processes."""
    head, _, _ = json_text(made(results=[])).partition('"results":[')
    yield head.encode() + b'"results":['
    row = json_text({"row": made()["results"][0]})[7:-2]
    times = ",".join(["123.456789"] * 5000)
    one = f'{row},"in_place_per_iter":{{"times_us":[{times}]}}}},'.encode()
    for _ in range(megabytes * 1_000_000 // len(one)):
        yield one


@pytest.mark.rare
def test_memory_does_not_grow_with_the_length() -> None:
    peaks = []
    for megabytes in (2, 12):
        tracemalloc.start()
        log = parse(endless(megabytes))
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
        assert causes(log) == ["incomplete-log"]
    assert peaks[1] < peaks[0] + 2_000_000


def test_an_endless_environment_is_read_in_bounded_memory() -> None:
    def pieces() -> Iterator[bytes]:
        yield b'{"version":3,"env":["'
        for _ in range(20):
            yield b"x" * 1_000_000

    tracemalloc.start()
    log = parse(pieces())
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert causes(log) == ["no-table"]
    assert peak < 3 * nccl_tests_json.MAX_VALUE


@pytest.mark.parametrize("end", [20, 150])
def test_documents_after_a_damaged_one_are_read(end: int) -> None:
    whole = json_text(document(table_text()))
    log = parse(f"{whole[:end]}\n{whole}".encode())
    assert [table.complete for table in log.tables][-1]
    assert log.tables[-1].rows == parse(whole.encode()).tables[0].rows
