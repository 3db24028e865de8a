"""The record format: lines `ACCEPT {json}`, from untrusted logs."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.factories.instances import PLAIN

from accept.core import record_protocol
from accept.core.causes import Cause
from accept.core.record_protocol import MAX_DEPTH, MAX_LINE, parse
from accept.core.records import Fact, Metric, Parsed, Placement, Problem


def line(prefix: str = "", **record: Any) -> bytes:
    return f"{prefix}ACCEPT {json.dumps(record)}\n".encode()


def causes(parsed: Parsed) -> list[str]:
    return [problem.cause for problem in parsed.problems]


VALUE = {"gpus": [{"name": "NVIDIA H200", "ecc": None}], "share": 0.5}
PLACE: dict[str, Any] = {"host": "h1", "rank": 3, "gpu": "GPU-1"}


@pytest.mark.parametrize(
    ("record", "item"),
    [
        (
            {
                **PLACE,
                "metric": "busbw", "value": 12, "unit": "GB/s", "check": "all-reduce",
                "size": 1024, "placement": "out", "algorithm": "ring",
            },
            Metric(
                **PLACE, check="all-reduce", name="busbw", value=12.0, unit="GB/s", size=1024,
                placement=Placement.OUT, algorithm="ring",
            ),
        ),
        # Records without a check belong to the default one.
        (
            {"metric": "a", "value": 1, "unit": ""},
            Metric(check="train", name="a", value=1, unit=""),
        ),
        (
            {"fact": "node", "value": VALUE, "host": "h1", "rank": 0},
            Fact(name="node", value=VALUE, check="train", host="h1", rank=0),
        ),
        ({"fact": "empty", "value": None}, Fact(name="empty", value=None, check="train")),
        (
            {"problem": "wrong-data", "message": "3 elements", **PLACE},
            Problem(cause=Cause.WRONG_DATA, message="3 elements", check="train", **PLACE),
        ),
        # An unknown cause is kept in the message.
        (
            {"problem": "gremlins\x1b[31m", "message": "seen"},
            Problem(cause=Cause.UNKNOWN, message="gremlins: seen", check="train"),
        ),
        (
            {"problem": "x" * 99},
            Problem(cause=Cause.UNKNOWN, message="x" * 63 + "…", check="train"),
        ),
    ],
)  # fmt: skip
def test_a_record_keeps_its_value_and_labels(
    record: dict[str, Any], item: Metric | Fact | Problem
) -> None:
    parsed = parse([line(**record)], check="train")
    assert [*parsed.metrics, *parsed.facts, *parsed.problems] == [item]


def test_prefixes_of_launchers_and_carriage_returns_are_removed() -> None:
    launchers = ("[1,0]<stdout>:", "[prterun-h1-77@1,0]<stdout>: ", "[h1:3] ", "12: ", "h1: ", "  ")
    others = ("[pod/accept-0-x7k2p/accept] ", "2026-07-10T12:00:00.1Z stdout F ")
    for prefix in (*launchers, *others, "\x1b[32m[1,0]<stdout>:\x1b[0m"):
        text = line(prefix, fact="began", value=1)
        for own in (text, text[:-1] + b"\r\n"):
            assert parse([own]).facts == (Fact(name="began", value=1),), prefix


def test_other_lines_are_not_records() -> None:
    # The last one is read in linear time.
    words = (b"", b"hello\n", b"+ echo ACCEPT {}\n", b"say 'ACCEPT {\"fact\": 1}'\n", b"ACCEPT\n")
    for text in (*words, b"# ACCEPT {\n", b" " * 50_000 + b"x" + line(fact="a", value=1)):
        assert parse([text]) == Parsed(), text[:20]


@pytest.mark.parametrize(
    "value",
    ['"nan"', '"NaN"', '"inf"', '"-Infinity"', "NaN", "Infinity", "-Infinity", "1e999", "-1e999"],
)
def test_a_value_that_is_not_finite_is_a_problem_and_no_metric(value: str) -> None:
    record = line(metric="loss", value=0, unit="", check="train", host="h2", rank=1)
    parsed = parse([record.replace(b"0", value.encode(), 1)])
    assert parsed.metrics == ()
    assert [(p.cause, p.check, p.host, p.rank) for p in parsed.problems] == [
        ("not-finite", "train", "h2", 1)
    ]


def test_a_fact_never_holds_a_number_that_json_cannot_write() -> None:
    parsed = parse([b'ACCEPT {"fact": "a", "value": [1e999, NaN]}\n'])
    json.dumps(parsed.facts[0].value, allow_nan=False)


#: Labels of another type or length.
LABELS: list[dict[str, Any]] = [
    *({"rank": rank} for rank in ("0", -1, True, 0.5)),
    *({"host": host} for host in (7, "h" * 300, "h1\nACCEPT", "\x1b[31mh1")),
    {"size": 1 << 70},
    {"check": ["a"]},
    {"gpu": {}},
    {"placement": "everywhere and nowhere"},
]
RECORDS: list[dict[str, Any]] = [
    {"metric": "a", "value": 1, "unit": ""},
    {"fact": "a", "value": 1},
    {"problem": "a"},
]


@pytest.mark.parametrize(
    "text",
    [
        *(
            line(metric="loss", value=value, unit="")
            for value in (None, True, "12", "twelve", [1], {"a": 1})
        ),
        *(line(**record, **labels) for labels in LABELS for record in RECORDS),
        b"ACCEPT {",
        b"ACCEPT {}",
        b'ACCEPT {"fact": "a"}',
        b'ACCEPT {"metric": 3, "value": 1}',
        b'ACCEPT {"fact": "a", "value": 1} and more',
        b'ACCEPT {"fact": "a", "value": 1',
        b'ACCEPT {"fact": "\xff", "value": 1}',
        b'ACCEPT {"a": ' * 3,
        b'ACCEPT {"fact": "a", "value": ' + b"[" * 20_000,
        b'ACCEPT {"fact": "a", "value": ' + b"[" * 20_000 + b"]" * 20_000 + b"}",
        *(b'ACCEPT {"fact": "a", "value": 1' + b"0" * n + b"}" for n in (20, 400, 5000)),
        b'ACCEPT {"metric": "a", "unit": "", "value": 1' + b"0" * 400 + b"}",
        line(fact="a", value="x" * MAX_LINE),
    ],
)
def test_a_record_that_cannot_be_read_is_a_problem(text: bytes) -> None:
    parsed = parse([text.rstrip() + b"\n", line(fact="next", value=1)], check="train")
    assert (parsed.metrics, causes(parsed)) == ((), ["unparsable"])
    assert [fact.name for fact in parsed.facts] == ["next"]
    assert len(parsed.problems[0].message) < 1000
    assert parsed.problems[0].message.isprintable()


def test_a_metric_without_any_check_is_a_problem() -> None:
    parsed = parse([line(metric="a", value=1, unit="")])
    assert (parsed.metrics, causes(parsed)) == ((), ["unparsable"])


def test_facts_may_be_nested_to_a_bound() -> None:
    def nested(depth: int) -> Parsed:
        value: list[Any] = []
        for _ in range(depth - 2):
            value = [value]
        return parse([line(fact="a", value=value)])

    assert len(nested(MAX_DEPTH).facts) == 1
    assert causes(nested(MAX_DEPTH + 1)) == ["unparsable"]


def test_more_records_than_can_be_kept_are_a_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(record_protocol, "MAX_RECORDS", 10)
    parsed = parse(line(fact="a", value=i) for i in range(100))
    assert len(parsed.facts) == 10
    assert causes(parsed) == ["unparsable"]


@settings(max_examples=200)
@given(st.lists(st.binary(max_size=80).map(lambda tail: b"ACCEPT {" + tail)))
def test_any_bytes_are_read_without_an_exception(lines: list[bytes]) -> None:
    parsed = parse(lines)
    assert len(parsed.metrics) + len(parsed.facts) + len(parsed.problems) == len(lines)


KEYS = ["metric", "fact", "problem", "value", "unit", "check", "size", "host", "rank", "message"]


@settings(max_examples=200)
@given(
    st.dictionaries(
        st.sampled_from(KEYS),
        PLAIN | st.floats() | st.sampled_from(["busbw", "nan", "h1"]),
    )
)
def test_any_json_gives_typed_items(record: dict[str, Any]) -> None:
    parsed = parse([line(**record)], check="train")
    assert len(parsed.metrics) + len(parsed.facts) + len(parsed.problems) == 1
    for metric in parsed.metrics:
        assert isinstance(metric.value, float)
        assert abs(metric.value) < float("inf")
        assert isinstance(metric.unit, str)
    read: list[Metric | Fact | Problem] = [*parsed.metrics, *parsed.facts, *parsed.problems]
    for one in read:
        assert one.host is None or isinstance(one.host, str)
        assert one.rank is None or one.rank >= 0
        assert one.check is None or isinstance(one.check, str)
