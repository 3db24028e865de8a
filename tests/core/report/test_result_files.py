"""The files of a run for people who have only `cat`."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from tests.factories import nccl_logs, verdicts
from tests.factories.command_line import accept
from tests.factories.paths import TESTS
from tests.factories.relabeled import shown

from accept.commands.judged import GivenBounds, judge_path
from accept.core import evidence
from accept.core.causes import Cause
from accept.core.checks import parse_log
from accept.core.error_codes import Code
from accept.core.records import Fact, Metric, Problem, Record
from accept.core.report.result_files import tables, write_result_files

STEP = verdicts.step("all-reduce", "all")
HOSTS = ("node1", "node2")


def executed(folder: Path, log: str, *, status: int | None = 0) -> Record:
    """Return the record of an execution whose output is `log`."""
    record = replace(verdicts.record(STEP, HOSTS), log="logs/10-all-reduce-all/0-0.log")
    path = folder / record.log
    path.parent.mkdir(parents=True)
    path.write_text(log)
    parsed = parse_log(STEP.checks, log.encode().splitlines(keepends=True), HOSTS, status=status)
    return replace(
        record, exit=status, ranks=2, facts=parsed.facts, metrics=(), problems=parsed.problems
    )


def written(folder: Path, *records: Record, check: str = "all-reduce") -> str:
    """Return the file of tables, or that of `connectivity`."""
    write_result_files(folder, verdicts.plan(verdicts.step(check)), "one", records)
    name = evidence.CONNECTIVITY if check == "connectivity" else evidence.TABLES
    return (folder / name).read_text()


def test_rows_that_messages_of_nccl_interrupt_are_joined(tmp_path: Path) -> None:
    record = executed(tmp_path, (TESTS / "logs" / "interleaved.log").read_text())
    rows = [line.split() for line in tables(tmp_path, record) if not line.startswith("#")]
    assert [row[0] for row in rows] == ["1048576", "2097152", "4194304"]
    assert [row[5] for row in rows] == ["52.43", "104.86", "209.72"]


def test_rows_that_were_cut_are_damage_and_not_shown(tmp_path: Path) -> None:
    lines = nccl_logs.table("all_reduce", HOSTS, (0,), 100.0).splitlines()
    first = next(n for n, line in enumerate(lines) if line and not line.startswith("#"))
    lines[first] = lines[first][:86]
    record = executed(tmp_path, "\n".join(lines))
    assert {problem.cause for problem in record.problems} == {Cause.INCOMPLETE_LOG}
    text = written(tmp_path, record)
    assert sum(not line.startswith("#") for line in text.splitlines() if line) == 2


def test_an_execution_without_a_table_is_listed_with_its_cause(tmp_path: Path) -> None:
    record = executed(tmp_path, "no launch\n", status=None)
    record = replace(record, problems=(Problem(cause=Cause.TIMED_OUT, message="slow"),))
    text = written(tmp_path, record)
    assert "0-0.log, node[1-2]\n# all-reduce: no table; killed, timed-out\n" in text


def test_tables_over_the_limit_are_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    record = executed(tmp_path, nccl_logs.table("all_reduce", HOSTS, (0,), 100.0))
    monkeypatch.setattr("accept.core.report.result_files._MAX_SIZE", 100)
    text = written(tmp_path, record, record, record)
    assert text.count("# all_reduce_perf, 2 ranks on 2 nodes, NCCL 2.29.2, -b 1G -e 4G -f 2") == 1
    assert text.endswith("\n# 2 more logs: see logs/INDEX.md\n")


def test_the_answers_show_hostnames_pings_and_nodes_that_are_missing(tmp_path: Path) -> None:
    step = verdicts.step("connectivity")
    ranks = [
        Fact(name="rank", host="node1", rank=n, value={"hostname": f"pod\x1b[31m-{n // 2}"})
        for n in range(2)
    ]
    ping = Metric(check="connectivity", name="ping", value=23.4, unit="us", host="node1")
    record = replace(verdicts.record(step, HOSTS), ranks=4, exit=1, facts=tuple(ranks))
    record = replace(record, metrics=(ping,), log="logs/30/0-0.log")
    lost = Problem(cause=Cause.NOT_REGISTERED, message="no pod\n", host="node3")
    text = written(tmp_path, verdicts.hosts_record(HOSTS, lost), record, check="connectivity")
    assert text.splitlines()[1:] == [
        "",
        "# logs/30/0-0.log, node[1-2]",
        "# 2 of 4 ranks answered; exit 1",
        "# node  hostname  ranks   ping     network",
        "node1   pod-0     2 of 2  23.4 us  -",
        "node2   -         0 of 2  -        -",
        "",
        "# not reached",
        "node3  no pod (not-registered)",
    ]


def test_a_plan_without_such_checks_writes_neither(tmp_path: Path) -> None:
    write_result_files(tmp_path, verdicts.plan(verdicts.step("inventory", "each")), "one", ())
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", [evidence.TABLES, "nccl_node1_node2.log"])
def test_the_tables_alone_are_not_judged_under_any_name(tmp_path: Path, name: str) -> None:
    record = executed(tmp_path, nccl_logs.table("all_reduce", HOSTS, (0,), 100.0))
    path = tmp_path / name
    path.write_text(written(tmp_path, record))
    done = accept("judge", path)
    assert (done.code, done.error) == (6, Code.LOGS_NOT_A_LOG)


def test_the_tables_beside_logs_are_left_out_under_any_name(tmp_path: Path) -> None:
    logs = nccl_logs.corpus(tmp_path / "logs", nodes=nccl_logs.NODES[:4])
    before = judge_path(str(logs), GivenBounds("h100-8"))
    record = executed(tmp_path, nccl_logs.table("all_reduce", HOSTS, (0,), 100.0))
    name = f"G0-1-2-3-4-5-6-7_{nccl_logs.NODES[0]}_{nccl_logs.NODES[5]}.log"
    (logs / name).write_text(written(tmp_path, record))
    after = judge_path(str(logs), GivenBounds("h100-8"))
    assert shown(after.verdict) == shown(before.verdict)
    assert [Path(skipped.file).name for skipped in after.skipped] == [name]
