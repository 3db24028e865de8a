"""The record format: lines `ACCEPT {json}`, from untrusted logs."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from accept.core import record_protocol
from accept.core.causes import Cause
from accept.core.model import Fact, Metric, Parsed, Placement, Problem
from accept.core.record_protocol import MAX_DEPTH, MAX_LINE, parse


def line(prefix: str = "", **record: Any) -> bytes:
    return f"{prefix}ACCEPT {json.dumps(record)}\n".encode()


def causes(parsed: Parsed) -> list[str]:
    return [problem.cause for problem in parsed.problems]


def test_a_metric_keeps_its_number_unit_and_labels() -> None:
    record = line(
        metric="busbw",
        value=12,
        unit="GB/s",
        check="all-reduce",
        size=1024,
        host="h1",
        rank=3,
        gpu="GPU-1",
        placement="out",
        algorithm="ring",
    )
    assert parse([record]).metrics == (
        Metric(
            check="all-reduce",
            name="busbw",
            value=12.0,
            unit="GB/s",
            size=1024,
            host="h1",
            rank=3,
            gpu="GPU-1",
            placement=Placement.OUT,
            algorithm="ring",
        ),
    )


def test_a_fact_has_any_value() -> None:
    value = {"gpus": [{"name": "NVIDIA H200", "ecc": None}], "share": 0.5}
    parsed = parse([line(fact="node", value=value, host="h1", rank=0)])
    assert parsed.facts == (Fact(name="node", value=value, host="h1", rank=0),)
    assert parse([line(fact="empty", value=None)]).facts == (Fact(name="empty", value=None),)


def test_a_problem_has_a_cause_and_a_message() -> None:
    parsed = parse([line(problem="wrong-data", message="3 elements", host="h1", rank=1, gpu="0")])
    assert parsed.problems == (
        Problem(cause=Cause.WRONG_DATA, message="3 elements", host="h1", rank=1, gpu="0"),
    )


def test_records_without_a_check_belong_to_the_default_one() -> None:
    records = [line(metric="a", value=1, unit=""), line(metric="b", value=2, unit="", check="own")]
    assert [m.check for m in parse(records, check="train").metrics] == ["train", "own"]


def test_a_metric_without_a_check_is_a_problem() -> None:
    parsed = parse([line(metric="a", value=1, unit="")])
    assert (parsed.metrics, causes(parsed)) == ((), ["unparsable"])


@pytest.mark.parametrize(
    "prefix",
    [
        "[1,0]<stdout>:",
        "[prterun-h1-77@1,0]<stdout>: ",
        "[h1:3] ",
        "[pod/accept-0-x7k2p/accept] ",
        "12: ",
        "h1: ",
        "2026-07-10T12:00:00.1Z stdout F ",
        "\x1b[32m[1,0]<stdout>:\x1b[0m",
        "  ",
    ],
)
def test_prefixes_of_launchers_are_removed(prefix: str) -> None:
    assert parse([line(prefix, fact="began", value=1)]).facts == (Fact(name="began", value=1),)


def test_carriage_returns_are_removed() -> None:
    assert parse([line(fact="a", value=1)[:-1] + b"\r\n"]).facts == (Fact(name="a", value=1),)


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"hello\n",
        b"+ echo ACCEPT {}\n",
        b"say 'ACCEPT {\"fact\": 1}'\n",
        b"ACCEPT\n",
        b"# ACCEPT {\n",
    ],
)
def test_other_lines_are_not_records(text: bytes) -> None:
    assert parse([text]) == Parsed()


@pytest.mark.parametrize("value", ["nan", "NaN", "inf", "-Infinity"])
def test_a_value_that_is_not_finite_is_a_problem_and_no_metric(value: str) -> None:
    parsed = parse([line(metric="loss", value=value, unit="", check="train", host="h2", rank=1)])
    assert parsed.metrics == ()
    assert [(p.cause, p.check, p.host, p.rank) for p in parsed.problems] == [
        ("not-finite", "train", "h2", 1)
    ]


@pytest.mark.parametrize("value", ["NaN", "Infinity", "-Infinity", "1e999", "-1e999"])
def test_json_beyond_numbers_is_not_finite_either(value: str) -> None:
    text = (
        b'ACCEPT {"metric": "loss", "value": %s, "unit": "", "check": "train"}\n' % value.encode()
    )
    parsed = parse([text])
    assert (parsed.metrics, causes(parsed)) == ((), ["not-finite"])


def test_a_fact_never_holds_a_number_that_json_cannot_write() -> None:
    parsed = parse([b'ACCEPT {"fact": "a", "value": [1e999, NaN]}\n'])
    json.dumps(parsed.facts[0].value, allow_nan=False)


@pytest.mark.parametrize("value", [None, True, "12", "twelve", [1], {"a": 1}])
def test_a_value_of_another_type_is_a_problem_and_no_metric(value: object) -> None:
    parsed = parse([line(metric="loss", value=value, unit="", check="train")])
    assert (parsed.metrics, causes(parsed)) == ((), ["unparsable"])


def test_an_unknown_cause_is_kept_in_the_message() -> None:
    parsed = parse([line(problem="gremlins\x1b[31m", message="seen"), line(problem="x" * 99)])
    assert parsed.problems == (
        Problem(cause=Cause.UNKNOWN, message="gremlins: seen"),
        Problem(cause=Cause.UNKNOWN, message="x" * 63 + "…"),
    )


@pytest.mark.parametrize(
    "labels",
    [
        {"rank": "0"},
        {"rank": -1},
        {"rank": True},
        {"rank": 0.5},
        {"size": 1 << 70},
        {"host": 7},
        {"host": "h" * 300},
        {"host": "h1\nACCEPT"},
        {"host": "\x1b[31mh1"},
        {"check": ["a"]},
        {"gpu": {}},
        {"placement": "everywhere and nowhere"},
    ],
)
def test_labels_of_another_type_or_length_are_problems(labels: dict[str, Any]) -> None:
    for record in (
        {"metric": "a", "value": 1, "unit": ""},
        {"fact": "a", "value": 1},
        {"problem": "a"},
    ):
        parsed = parse([line(**record, **labels)], check="train")
        assert (parsed.metrics, parsed.facts, causes(parsed)) == ((), (), ["unparsable"])


@pytest.mark.parametrize(
    "text",
    [
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
    ],
)
def test_a_record_that_cannot_be_read_is_a_problem(text: bytes) -> None:
    parsed = parse([text + b"\n"], check="train")
    assert (parsed.metrics, parsed.facts, causes(parsed)) == ((), (), ["unparsable"])
    assert len(parsed.problems[0].message) < 1000
    assert parsed.problems[0].message.isprintable()


def test_facts_may_be_nested_to_a_bound() -> None:
    def nested(depth: int) -> Parsed:
        value: list[Any] = []
        for _ in range(depth - 2):
            value = [value]
        return parse([line(fact="a", value=value)])

    assert len(nested(MAX_DEPTH).facts) == 1
    assert causes(nested(MAX_DEPTH + 1)) == ["unparsable"]


def test_a_line_beyond_the_limit_is_a_problem() -> None:
    parsed = parse([line(fact="a", value="x" * MAX_LINE), line(fact="b", value=1)])
    assert [fact.name for fact in parsed.facts] == ["b"]
    assert causes(parsed) == ["unparsable"]


def test_more_records_than_can_be_kept_are_a_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(record_protocol, "MAX_RECORDS", 10)
    parsed = parse(line(fact="a", value=i) for i in range(100))
    assert len(parsed.facts) == 10
    assert causes(parsed) == ["unparsable"]


def test_long_runs_of_blanks_before_a_record_take_linear_time() -> None:
    assert parse([b" " * 50_000 + b"x" + line(fact="a", value=1)]) == Parsed()


@settings(max_examples=200)
@given(st.lists(st.binary(max_size=80).map(lambda tail: b"ACCEPT {" + tail)))
def test_any_bytes_are_read_without_an_exception(lines: list[bytes]) -> None:
    parsed = parse(lines)
    assert len(parsed.metrics) + len(parsed.facts) + len(parsed.problems) == len(lines)


KEYS = ["metric", "fact", "problem", "value", "unit", "check", "size", "host", "rank", "message"]
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3)
    ),
    max_leaves=6,
)


@settings(max_examples=200)
@given(
    st.dictionaries(
        st.sampled_from(KEYS),
        JSON | st.sampled_from(["busbw", "nan", "h1"]),
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
