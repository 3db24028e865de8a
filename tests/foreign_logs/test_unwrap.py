"""Decorations of launchers, log collectors and editors do not change the content of a log."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.factories.nccl_logs import table

from accept.foreign_logs import tables
from accept.foreign_logs.tables import NoLog
from accept.foreign_logs.unwrap import plain_text, rccl_text

TEXT = table("all_reduce", ["node1", "node2"], range(8), 320.0)
Decoration = Callable[[Sequence[str]], Sequence[str]]


def prefixed(prefix: str, end: str = "") -> Decoration:
    return lambda lines: [f"{prefix}{line}{end}" for line in lines]


def docker(lines: Sequence[str]) -> list[str]:
    return [json.dumps({"log": f"{line}\n", "stream": "stdout", "time": "x"}) for line in lines]


def parted_docker(lines: Sequence[str]) -> list[str]:
    """Return a line that docker divides, and the lines."""
    record = {"log": "x" * 16_384, "stream": "stdout"}
    return [json.dumps(record), *docker(["", *lines])]


def cloud_logging(lines: Sequence[str]) -> list[str]:
    """Return an export in which the newest record comes first."""
    records = [
        {"insertId": "a", "textPayload": line, "timestamp": f"2026-01-05T10:00:00.{i:06}Z"}
        for i, line in enumerate(lines)
    ]
    return json.dumps(records[::-1], indent=2).splitlines()


def journald(lines: Sequence[str]) -> list[str]:
    return [json.dumps({"_PID": "7", "MESSAGE": line, "_HOSTNAME": "a"}) for line in lines]


def tagged_inside(lines: Sequence[str]) -> list[str]:
    """Tag also the second part of each row, as Open MPI does if it is flushed separately."""
    return [
        f"{line[:52]}[1,0]<stdout>:{line[52:]}" if line.startswith("  ") else line for line in lines
    ]


def by_hydra(lines: Sequence[str]) -> list[str]:
    """Begin each part of a line that is written separately with its rank (`-prepend-rank`)."""
    return [
        f"[0] {line[:52]}[0] {line[52:]}" if line[:1] == " " else f"[0] {line}" for line in lines
    ]


def in_one_record(lines: Sequence[str]) -> list[str]:
    """Return plain lines, and the log of a program that wraps the full output of its command."""
    record = {"error": "exit status 0", "msg": "ran all_reduce_perf", "output": "\n".join(lines)}
    return ["Starting munge", json.dumps({"level": "info", "msg": "begin"}), json.dumps(record)]


#: Decorations of the lines themselves, below those of launchers and collectors.
SIGNS: dict[str, Decoration] = {
    "none": list,
    "removed": lambda lines: [line.lstrip("#") for line in lines],
}
PREFIXES: dict[str, Decoration] = {
    "none": list,
    "Open MPI": prefixed("[1,0]<stdout>:"),
    "Open MPI, inside lines": tagged_inside,
    "Hydra, inside lines": by_hydra,
    "journald": prefixed("Jan  5 10:00:00 node1 all_reduce_perf[4711]: "),
    "journald, ISO": prefixed("2026-01-05T10:00:00+0100 node1 slurmstepd[4711]: "),
    "Ray": prefixed("(Worker pid=17, ip=10.0.0.1) "),
    "list": prefixed("- "),
    "quotation": prefixed("> "),
    "Markdown table": prefixed("| ", " | |"),
    "grep": prefixed("logs/run-1.out:"),
    "time": prefixed("2026/01/05 10:00:00 "),
    "kubectl": prefixed("[pod/a-0/accept] 2026-01-05T10:00:00.1Z "),
}
RECORDS: dict[str, Decoration] = {
    "none": list,
    "docker": docker,
    "docker, divided line": parted_docker,
    "Cloud Logging": cloud_logging,
    "journald": journald,
    "output of a command": in_one_record,
    "logging of Python": prefixed("2026-01-05 10:00:00,123 - INFO - worker 0 "),
}
ENCODINGS = ("utf-8", "utf-8-sig", "utf-16", "utf-16-le", "utf-16-be")


def read(content: bytes, size: int = 1 << 16) -> tables.Read:
    blocks = [content[i : i + size] for i in range(0, len(content), size)]
    return tables.read("run.log", blocks)


PLAIN = read(TEXT.encode())


@given(
    signs=st.sampled_from([*SIGNS]),
    prefixes=st.lists(st.sampled_from([*PREFIXES]), max_size=2, unique=True),
    records=st.sampled_from([*RECORDS]),
    end=st.sampled_from(["\n", "\r\n"]),
    encoding=st.sampled_from(ENCODINGS),
    size=st.sampled_from([7, 4096, 1 << 16]),
)
def test_decorations_change_nothing(
    signs: str, prefixes: Sequence[str], records: str, end: str, encoding: str, size: int
) -> None:
    lines = SIGNS[signs](TEXT.splitlines())
    for prefix in prefixes:
        lines = PREFIXES[prefix](lines)
    if records == "logging of Python" and (signs == "removed" or prefixes):
        # A prefix that is not known is found by the # sign.
        records = "none"
    content = end.join(RECORDS[records](lines)) + end
    assert read(content.encode(encoding), size) == PLAIN
    assert PLAIN.tables[0].problems == ()


@pytest.mark.parametrize(
    "content", [b"", b"\0" * 5000, b"{", b'{"log":', b"\xff\xfe", b"\xff\xfe\0"]
)
def test_other_content_is_not_a_log(content: bytes) -> None:
    assert read(content).no_log in (NoLog.EMPTY, NoLog.NO_TABLE, NoLog.BINARY, NoLog.NO_RESULTS)


@given(
    st.binary(max_size=300) | st.text('{}[]"\\: logmsgtextPayload,\n', max_size=300).map(str.encode)
)
def test_no_content_raises(content: bytes) -> None:
    read(content, 13)
    read(b'{"log": "a\\n"}\n' + content, 64)


@pytest.mark.rare
def test_a_record_that_never_ends_is_read_in_bounded_memory() -> None:
    start = b'{"log": "a\\n"}\n{"log": "'
    blocks = (start if i == 0 else b"x" * (1 << 20) for i in range(12))
    assert sum(map(len, plain_text(blocks))) < 10


# The JSON of rccl-tests


@pytest.mark.parametrize(
    ("name", "collective", "factor"),
    [
        ("AllReduce", "all_reduce", 1.5),
        ("AllGather", "all_gather", 0.75),
        ("ReduceScatter", "reduce_scatter", 0.75),
        ("AlltoAll", "alltoall", 0.75),
        ("SendRecv", "sendrecv", 1.0),
    ],
)
def test_results_of_rccl_tests_in_json_have_the_figures_of_a_table(
    name: str, collective: str, factor: float
) -> None:
    records = [
        {
            "#wrong": "0",
            "algBw": size / time / 1e3,
            "busBw": size / time / 1e3 * factor,
            "gpus": 4,
            "inPlace": in_place,
            "name": name,
            "redop": "sum" if "Reduce" in name else "none",
            "size": size,
            "time": time,
            "type": "float",
        }
        for size, time in ((1 << 20, 19.5), (1 << 24, 150.25))
        for in_place in (0, 1)
    ]
    for text in ("\n".join(map(json.dumps, records)), json.dumps(records)):
        (one,) = tables.read("results.json", [text.encode()]).tables
        assert one.check == collective.replace("_", "-")
        rows = [(row.size, [s and s.busbw for _, s in row.sides()]) for row in one.rows]
        assert [size for size, _ in rows] == [1 << 20, 1 << 24]
        expected = (1 << 24) / 150.25 / 1e3 * factor
        assert rows[-1][1] == [pytest.approx(expected, abs=1e-4)] * 2


def test_a_result_of_rccl_tests_that_is_damaged_is_left_out() -> None:
    whole = '{"#wrong":"0","algBw":1.0,"busBw":1.5,"gpus":4,"inPlace":%d,"name":"AllReduce",'
    whole += '"redop":"sum","size":1024,"time":1.0,"type":"float"}'
    damaged = ['{"busBw":1.0,"name":"A B","size":[1]}', whole % 0, '{"busBw": 1', '{"busBw":"x"}']
    assert b"1024" not in b"".join(rccl_text([line.encode() for line in damaged]))
    assert b"1024 256" in b"".join(rccl_text([(whole % 0).encode(), (whole % 1).encode()]))
