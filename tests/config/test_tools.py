"""The file of a tool: every mistake is one error with its line; shipped ones are complete."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from tests.factories.command_line import accept
from tests.factories.paths import TESTS

from accept.config.tools import names, tool_of
from accept.core.causes import Cause
from accept.core.error_codes import Code
from accept.core.plan import Tool, ToolParts, ToolResult
from accept.core.records import Parsed
from accept.core.tool_output import MOST_VALUES, parse, parse_of_others

TOOL = yaml.safe_load((TESTS / "data" / "mistakes.yaml").read_text())["tool"]["file"]
SUITE = "name: mine\ndescription: Mine.\nchecks:\n  - {check: ./mine.yaml, params: {size: 1G}}\n"


def planned(folder: Path, *options: str) -> tuple[str, str]:
    """Return code and text of the error of a plan with the file."""
    (folder / "mine.yaml").write_text(TOOL)
    suite = folder / "suite.yaml"
    suite.write_text(SUITE)
    done = accept("run", "--machine", "cpu", "--suite", suite, "--dry-run", *options)
    return done.error, done.err + done.out


def test_a_shipped_tool_is_planned_on_pairs_of_nodes_with_gpus(tmp_path: Path) -> None:
    suite = tmp_path / "suite.yaml"
    suite.write_text(
        "name: nics\ndescription: NICs.\nchecks:\n"
        "  - {check: rdma, groups: pairs, params: {cuda: 0}}\n  - {check: storage, groups: alone,"
        " params: {path: /mnt, size: 1G}}\n"
    )
    options = ("--machine", "h100-8", "--hosts", "node[1-8]", "--dry-run")
    done = accept("run", *options, "--suite", suite)
    assert "rdma on pairs x" in done.out + done.err, done.err
    assert "storage on alone" in done.out + done.err


def test_a_correct_file_is_planned(tmp_path: Path) -> None:
    error, text = planned(tmp_path)
    assert not error, text
    assert "20-mine-each: mine on each" in text


@pytest.mark.parametrize("value", ["-rf", "a\\nb", "x" * 201])
def test_values_that_a_command_must_not_get_are_refused(value: str, tmp_path: Path) -> None:
    error, text = planned(tmp_path, "--set", f'mine.size="{value}"')
    assert error == Code.PARAM_INVALID, text


def test_a_required_parameter_is_named_with_an_example(tmp_path: Path) -> None:
    suite = tmp_path / "suite.yaml"
    suite.write_text("name: s\ndescription: S.\nchecks: [{check: storage}]\n")
    done = accept("run", "--machine", "cpu", "--suite", suite, "--dry-run")
    assert done.error == Code.PARAM_INVALID
    assert "path=/mnt/nvme" in done.err


@pytest.mark.parametrize("name", names())
def test_each_shipped_tool_has_its_name_and_can_be_shown(name: str) -> None:
    tool = tool_of(name, "")
    assert tool is not None
    assert (tool.value.name, bool(tool.value.install)) == (name, True)
    assert accept("show", "check", name).code == 0


RESULTS = (
    ToolResult(name="a", unit="GB/s", json="/*/*/x"),
    ToolResult(name="b", unit="s", line="{_} time: {value}{unit} {_}"),
)
READER = Tool(name="t", command=("t",), timeout=1.0, cause=Cause.TOOL_FAILED, results=RESULTS)
ENDED = b'\nACCEPT {"fact":"tool","check":"t","host":"h","value":{"exit":0}}\n'


@given(st.binary(max_size=400), st.sampled_from([b"", b"{", b'[{"x":', b"a time: 1", b"[" * 5000]))
def test_no_output_breaks_the_reader(rest: bytes, begin: bytes) -> None:
    parsed = parse([b"tool out| " + begin + rest + ENDED], READER)
    assert all(metric.name in ("a", "b") for metric in parsed.metrics)


def _read(output: list[str], **place: object) -> Parsed:
    """Return what is read of an output, at one place."""
    result = ToolResult(name="a", unit="GB/s", **place)  # type: ignore[arg-type]
    lines = "\n".join(f"tool out| {line}" for line in output)
    return parse([lines.encode() + ENDED], replace(READER, results=(result,)))


@pytest.mark.parametrize(
    ("output", "scale"),
    [
        (f'{{"a": {"9" * 400}}}', 1.0),
        ('{"a": NaN}', 1.0),
        ('{"a": -Infinity}', 1.0),
        ('{"a": 1e400}', 1.0),
        ('{"a": "1e400"}', 1.0),
        ('{"a": 1e299}', 1000.0),
        (f'{{"a": {"[" * 990}{"]" * 990}}}', 1.0),
    ],
)
def test_an_impossible_number_is_not_a_result(output: str, scale: float) -> None:
    parsed = _read([output], json="/a", scale=scale)
    assert (parsed.metrics, [p.cause for p in parsed.problems]) == ((), [Cause.WRONG_COMMAND])


def test_a_repeated_key_counts_only_with_one_value() -> None:
    (problem,) = _read(['{"a": {"b": 1, "b": 3, "c": 2, "c": 2}}'], json="/a/b").problems
    assert "/a/b has more than one value" in problem.message
    assert [
        m.value for m in _read(['{"a": {"b": 1, "b": 3, "c": 2, "c": 2}}'], json="/a/c").metrics
    ] == [2]


@pytest.mark.parametrize(
    "output",
    [
        '[{"s": "good"}, {"s": "bad", "s": "good"}]',
        '[{"s": "good"}, {"s": ["bad"]}]',
        '{"a": {"s": "good"}, "b": {"s": "bad"}, "b": {"s": "good"}}',
    ],
)
def test_a_part_with_an_unclear_state_does_not_pass_because_of_others(output: str) -> None:
    parts = ToolParts(json="/*", state="s", good=("good",), bad=("bad",))
    tool = replace(READER, results=(), parts=parts)
    (problem,) = parse_of_others(output, tool).problems
    assert problem.cause is Cause.PARTIAL_LOG
    (problem,) = parse([f"tool out| {output}".encode() + ENDED], tool).problems
    assert problem.cause is Cause.WRONG_COMMAND


@pytest.mark.parametrize("number", ["3,512.5", "nan", "-inf", "N/A", "1.", ".5", "3.5x", "3 x"])
def test_a_line_with_another_form_of_number_is_not_left_out(number: str) -> None:
    output = ["Speed: 3.5 GB/s", "Speed: test starts", f"Speed: {number} GB/s"]
    (problem,) = _read(output, line="Speed: {value} GB/s").problems
    assert problem.cause is Cause.WRONG_COMMAND
    assert f"Speed: {number} GB/s" in problem.message


def test_a_hexadecimal_number_is_read() -> None:
    assert [m.value for m in _read(["a : 0x1f"], line="a : {value}").metrics] == [31]


@pytest.mark.parametrize("line", ["{_}:{_}:{_}:{_}:{_} {value}", "{_}.{_}.{_} {value}{unit} {_}"])
@pytest.mark.parametrize("text", [":" * 200, "a:" * 900, "a." * 100 + "!", "9" * 1999])
def test_no_output_makes_the_search_for_a_line_slow(line: str, text: str) -> None:
    # Regular expressions of this form took days.
    assert _read([text] * 2000, line=line).metrics == ()


def test_the_first_values_of_an_endless_output_count() -> None:
    assert len(_read(["[" + "0," * 2_000_000 + "0]"], json="/*").metrics) == MOST_VALUES
    assert len(_read(["a 1"] * 300_000, line="a {value}").metrics) == MOST_VALUES


def test_a_bad_part_counts_wherever_it_is_printed() -> None:
    parts = ToolParts(json="", state="", line="test: {state}", good=("ok",), bad=("bad",))
    lines = [*(f"tool out| test: {word}" for word in ["ok"] * 1000 + ["bad"])]
    parsed = parse(["\n".join(lines).encode() + ENDED], replace(READER, results=(), parts=parts))
    assert [problem.message for problem in parsed.problems] == ["t: test: bad"]


def test_lines_that_evidence_of_others_names_are_read_or_refused() -> None:
    for line in ("{_}{_}{_} {value}", "{value} {value}"):
        (problem,) = _read(["a 1"], line=line).problems
        assert problem.cause is Cause.WRONG_COMMAND
    assert [m.value for m in _read(["{size} 1"], line="{size} {value}").metrics] == [1.0]
