"""The registered checks: how they are found, what they need, how their logs are read."""

from __future__ import annotations

import itertools
import json
import re
from dataclasses import fields
from functools import partial

import pytest
from benchmarks.nccl_text import row_text, table_text
from hypothesis import given
from hypothesis import strategies as st
from tests.factories.paths import ROOT
from tests.factories.verdicts import COLLECTIVE, TOP, step

from accept import config
from accept.config.tools import check_exists
from accept.core import checks, facts
from accept.core.catalog.faults import FAULTS
from accept.core.checks import REGISTRY, parse_log, with_problems_seen
from accept.core.checks.check import launch_seconds
from accept.core.checks.collectives import CollectiveChanges, Params, changed
from accept.core.facts import RANK, FactKind
from accept.core.plan import GroupKind
from accept.core.records import Parsed, Problem, Record
from accept.core.serde import Invalid
from accept.core.serde import read as read_typed
from accept.core.table import Outcome, Row, message_sizes, nominal, planned_sizes, table_of
from accept.core.text import format_size, parse_size
from accept.core.tool_output import ENDING
from accept.plan.resolve import Options, resolve

# -- sizes ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "size"), [("1", 1), ("512", 512), ("1K", 1024), ("8g", 8 << 30), (" 2T ", 2 << 40)]
)
def test_sizes_are_read_as_nccl_tests_reads_them(text: str, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["8X", "", "-1", "0", "1.5G", "8GB", "1 G", "²", "9" * 40])
def test_invalid_sizes_are_refused_with_examples(text: str) -> None:
    with pytest.raises(ValueError, match="K, M, G or T"):
        parse_size(text)


@given(st.integers(1, 1 << 50))
def test_a_formatted_size_is_read_back(size: int) -> None:
    assert parse_size(format_size(size)) == size


# -- the list ------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", checks.REGISTRY)
def test_each_check_is_complete(name: str) -> None:
    check = checks.REGISTRY[name]
    assert check.name == name
    assert len(check.summary) < 100
    assert (ROOT / "launchers" / "steps" / check.template).is_file()
    assert check.groups
    assert set(check.faults) <= set(FAULTS)
    metrics = [spec.name for spec in check.metrics]
    assert len(set(metrics)) == len(metrics)
    assert not check.metrics or check.metrics[0].bounds or not any(m.bounds for m in check.metrics)
    params = check.params()
    assert launch_seconds(1) < launch_seconds(128) < 60
    for item in fields(check.params):
        assert item.metadata["doc"], item.name
    assert 0 < params.estimate(1, 1) <= params.estimate(1000, 8) < 3600


def test_one_check_gates_the_measurements_and_one_runs_scripts() -> None:
    """The run ends after a gate unless all ranks reported the fact that it declares."""
    assert [c.name for c in REGISTRY.values() if c.gate] == ["connectivity"]
    assert RANK in REGISTRY["connectivity"].facts
    assert [c.name for c in REGISTRY.values() if c.user_script] == ["script"]


def test_every_fact_that_a_program_reports_is_declared_or_evidence_only() -> None:
    declared = {kind.name for check in REGISTRY.values() for kind in check.facts}
    general = {kind.name for kind in vars(facts).values() if isinstance(kind, FactKind)}
    general.add(ENDING.name)
    #: Printed for people; no rule depends on them.
    evidence_only = {
        *("curve", "latency", "loss-curve", "mpi-rank", "p2p", "p2p-least", "ping-pairs"),
        *("slowest-rank", "tested"),
    }
    printed = set()
    for path in [*(ROOT / "launchers").rglob("*.py"), *(ROOT / "launchers").rglob("*.sh*")]:
        text = path.read_text()
        printed |= set(re.findall(r'"fact":"([a-z0-9-]+)"', text))
        printed |= set(re.findall(r'(?<![a-z])fact\((?:CHECK, )?"([a-z0-9-]+)"', text))
    assert printed
    assert printed - declared - general == evidence_only


@pytest.mark.parametrize(
    ("check", "params", "name"),
    [
        ("all-reduce", {"min": "8X"}, "8X"),
        ("all-reduce", {"min": "8M", "max": "1M"}, "min"),
        ("all-reduce", {"factor": 1}, "factor"),
        ("all-reduce", {"iters": 0}, "iters"),
        ("all-reduce", {"itres": 5}, "itres"),
        ("train", {"steps": 3}, "steps"),
        ("train", {"ratio": 1.5}, "ratio"),
        ("train", {"batch": 3}, "batch"),
        ("train", {"by": 61}, "by"),
        ("train", {"every": 0}, "every"),
        ("train", {"model": "gpt-2"}, "model"),
        ("train", {"dataset": "cifar-10"}, "path"),
        ("train", {"dataset": "cifar-10", "path": "data"}, "path"),
        ("train", {"dataset": "cifar-10", "path": "/data", "model": "gpt-tiny"}, "model"),
        ("train", {"download": True}, "download"),
        ("connectivity", {"pings": -1}, "pings"),
        ("script", {"seconds": 0}, "seconds"),
        ("health", {"few": -1}, "few"),
    ],
)
def test_invalid_parameters_are_named(check: str, params: dict[str, object], name: str) -> None:
    with pytest.raises(Invalid, match=name):
        read_typed(checks.REGISTRY[check].params, params)


# -- sizes of a step -----------------------------------------------------------------------------


def test_a_step_has_the_sizes_of_nccl_tests() -> None:
    assert message_sizes("1M", "10M", 2) == (1 << 20, 2 << 20, 4 << 20, 8 << 20)
    assert planned_sizes(step()) == (1 << 20, 2 << 20, 4 << 20)
    assert planned_sizes(step(params={"min": "?"})) == ()


@given(st.integers(1, TOP))
def test_a_rounded_size_belongs_to_its_planned_size(size: int) -> None:
    planned = nominal(size, step())
    assert planned >= size
    assert planned == size or planned in planned_sizes(step())
    assert nominal(planned, step()) == planned


# -- logs ----------------------------------------------------------------------------------------


def log(name: str, in_place: str | None = None) -> str:
    """Return a complete table of three sizes over two ranks; all have this in-place result."""
    row = partial(row_text, wrong=("0", in_place)) if in_place else row_text
    return table_text(name, ranks=2, most=TOP, hosts=("h0", "h1"), row=row)


def lines(text: str) -> list[bytes]:
    return text.encode().splitlines(keepends=True)


def measured(check: str, parsed: Parsed) -> Row:
    """Return the result of one execution of a check."""
    of = step(check)
    record = Record(
        step=of.id,
        checks=(check,),
        wave=0,
        group=0,
        hosts=("h0", "h1"),
        exit=0,
        metrics=parsed.metrics,
    )
    (result,) = table_of((of,), [record]).at_top_size()
    return result


def test_changes_concern_the_collectives_on_all_nodes_or_blocks_of_them_and_nothing_else() -> None:
    changes = CollectiveChanges(min="2M", max="16G", factor=2, iters=7, warmup=3)
    for suite, nodes in itertools.product(config.names("suites"), (2, 16, 300)):
        plan = resolve(
            Options(
                machine="h100-8",
                backend="ssh",
                hosts=tuple(f"n{n}" for n in range(nodes)),
                suite=suite,
            )
        ).plan
        for planned in plan.steps:
            after = changed(planned, changes, hosts=nodes, ranks=8)
            wide = planned.groups in (GroupKind.ALL, GroupKind.BLOCKS)
            if check_exists(planned.checks[0]).launch == "collectives" and wide:
                keys = ("min", "max", "factor", "iters", "warmup")
                assert [after.params[key] for key in keys] == ["2M", "16G", 2, 7, 3]
                assert after.timeout >= planned.timeout
            else:
                assert after == planned
            assert changed(planned, CollectiveChanges(), hosts=nodes, ranks=8) == planned


@given(low=st.integers(1, 1 << 20), factor=st.integers(2, 64), high=st.integers(1 << 20, 1 << 40))
def test_a_planned_max_is_always_measured(low: int, factor: int, high: int) -> None:
    params = Params(min=str(low), max=str(high), factor=factor)
    if params.measures(high):
        params.check_planned()
    else:
        with pytest.raises(ValueError, match=f"max {high}"):
            params.check_planned()


@pytest.mark.parametrize(
    ("status", "cause"), [(0, "no-table"), (1, "unparsable"), (None, "unparsable")]
)
def test_only_a_launch_that_ended_well_without_a_table_is_the_users_script(
    status: int | None, cause: str
) -> None:
    log = [b"node1:7:7 [0] NCCL INFO NCCL version 2.28.3\n350 GB/s on all nodes\n"]
    assert [p.cause for p in parse_log(("all-reduce",), log, status=status).problems] == [cause]


def test_one_log_of_several_collectives_gives_each_check_its_own() -> None:
    text = (
        log("all_reduce")
        + 'ACCEPT {"fact":"began","value":1000.5}\n'
        + log("all_gather")
        + 'ACCEPT {"problem":"wrong-data","message":"rank 1","check":"all-gather","host":"h1"}\n'
    )
    parsed = parse_log(("all-reduce", "all-gather"), lines(text), ("h0", "h1"))
    for check, busbw in (("all-reduce", 33.59), ("all-gather", 16.8)):
        result = measured(check, parsed)
        assert (result.value, result.size, result.flaws) == (busbw, TOP, ())
    assert [fact.value for fact in parsed.facts if fact.name == "began"] == [1000.5]
    assert [(p.cause, p.check, p.host) for p in parsed.problems] == [
        ("wrong-data", "all-gather", "h1")
    ]


@pytest.mark.parametrize("check", ["all-reduce", "train"])
def test_warnings_of_nccl_are_facts_of_any_check(check: str) -> None:
    text = "h1:7:8 [3] init.cc:9 NCCL WARN Cuda failure 700\n" * 2
    parsed = parse_log((check,), lines(text), ("h0", "h1"))
    facts = [fact.value for fact in parsed.facts if fact.name == "nccl-warnings"]
    assert facts == [["h1: Cuda failure 700"]]


def test_in_place_results_must_be_checked_except_of_alltoall() -> None:
    parsed = parse_log(("alltoall",), lines(log("alltoall", in_place="N/A")))
    assert (parsed.problems, measured("alltoall", parsed).flaws) == ((), ())
    parsed = parse_log(("all-reduce",), lines(log("all_reduce", in_place="N/A")))
    flaws = measured("all-reduce", parsed).flaws
    assert [(flaw.metric, flaw.outcome) for flaw in flaws] == [("wrong", Outcome.MISSING)]


def test_a_missing_tool_explains_the_missing_table() -> None:
    record = 'ACCEPT {"problem":"tool-missing","message":"no mpirun"}\n'
    parsed = parse_log(("all-reduce",), lines(record))
    assert [problem.cause for problem in parsed.problems] == ["tool-missing"]
    assert parse_log(("all-reduce",), lines("nothing\n")).problems


def test_facts_of_a_group_of_one_host_belong_to_it() -> None:
    text = 'ACCEPT {"fact":"inventory","value":{"cpus":4}}\n'
    assert parse_log(("inventory",), lines(text), ("h7",)).facts[0].host == "h7"
    assert parse_log(("inventory",), lines(text), ("h7", "h8")).facts[0].host is None


def test_the_launchers_host_names_become_those_of_the_run() -> None:
    words = "prterun noticed that process rank 1 with PID 153 on node h8 exited on"
    text = f"{words}\nsignal 9 (Killed).\n"

    def named(*hosts: str) -> set[str | None]:
        found = parse_log(("all-reduce",), lines(log("all_reduce") + text), hosts).problems
        return {problem.host for problem in found}

    assert named("h7", "h8") == {"h8"}
    assert named("h7.rack", "h8.rack") == {"h8.rack"}
    assert named("node-a", "node-b") == {None}, "the name of a pod is none of a node"


@given(
    st.lists(st.sampled_from(sorted(checks.REGISTRY)), min_size=1, max_size=3),
    st.lists(
        st.binary(max_size=80)
        | st.sampled_from(lines(log("all_reduce")))
        | st.binary(max_size=60).map(lambda tail: b"ACCEPT {" + tail)
    ),
)
def test_any_log_can_be_read_by_every_check(names: list[str], raw: list[bytes]) -> None:
    parsed = parse_log(names, raw, ("h0",))
    for metric in parsed.metrics:
        assert isinstance(metric.value, float)


def crashed(rank: int, message: str) -> bytes:
    return json.dumps({"problem": "crashed", "rank": rank, "message": message}).encode()


def test_equal_problems_of_several_ranks_are_merged() -> None:
    raw = [b"ACCEPT " + crashed(rank, f"seen by {rank}") for rank in (0, 1, 0)]
    parsed = parse_log(["script"], raw, ("h0",))
    assert [p.message for p in parsed.problems] == ["seen by 0", "seen by 1"]


PROBLEMS = st.lists(
    st.builds(
        Problem,
        cause=st.sampled_from(["crashed", "rank-hung"]),
        message=st.text(max_size=4),
        check=st.just("script"),
        rank=st.none() | st.integers(0, 2),
        nic=st.none() | st.just("mlx5_0"),
    )
)


@given(PROBLEMS, st.lists(st.tuples(st.integers(0, 2), st.text(max_size=4))))
def test_a_log_that_is_read_again_leaves_the_problems_as_they_were(
    outside: list[Problem], ranks: list[tuple[int, str]]
) -> None:
    parsed = parse_log(["script"], [b"ACCEPT " + crashed(*one) for one in ranks], ("h0",))
    merged = with_problems_seen(outside, parsed)
    assert with_problems_seen(merged, parsed) == merged
    assert set(parsed.problems) <= set(merged)
    what = [(p.cause, p.host, p.rank, p.nic) for p in merged]
    assert len(set(what)) == len(what)
    assert {(p.cause, p.host, p.rank, p.nic) for p in outside} <= set(what)


def test_the_parameters_of_simulated_runs_are_those_of_the_check() -> None:
    assert vars(read_typed(Params, COLLECTIVE)) == COLLECTIVE


def test_the_log_of_a_check_that_this_version_lacks_gives_nothing() -> None:
    assert parse_log(("later",), [b"anything\n"]) == Parsed()
