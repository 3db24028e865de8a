"""Programs of others: whether a node is named for how they ended."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.factories.judging import blamed
from tests.factories.verdicts import hosts, hosts_record, plan, record, step

from accept.config.tool_file import planned_checks
from accept.core.causes import Cause
from accept.core.checks import REGISTRY
from accept.core.judge import judge
from accept.core.model import Problem, State, Tool, Verdict

TOOL = Tool(name="t", command=("t",), timeout=1.0, cause=Cause.WRONG_RESULT)
STEP = replace(step("t", "each", params={}), tool=TOOL)


def verdict_of(count: int, cause: Cause) -> Verdict:
    """Return the verdict on hosts; the first one has a problem."""
    bad = (Problem(cause=cause, message="t on h0: it is bad", check="t"),)
    records = [hosts_record(hosts(count))]
    records += [
        record(STEP, [host], number=i, problems=() if i else bad)
        for i, host in enumerate(hosts(count))
    ]
    planned = plan(STEP)
    checks = {**REGISTRY, **{check.name: check for check in planned_checks(planned)}}
    return judge(planned, records, checks=checks, attempt="a-1")


@pytest.mark.parametrize(
    ("count", "cause", "state", "named"),
    [
        (1, Cause.TOOL_FAILED, State.FAIL, set()),
        (3, Cause.TOOL_FAILED, State.DEGRADED, {("node", "h0", "tool-failed")}),
        (1, Cause.WRONG_RESULT, State.FAIL, {("node", "h0", "wrong-result")}),
    ],
)
def test_without_peers_only_what_a_tool_found_names_a_node(
    count: int, cause: Cause, state: State, named: set[tuple[str, str, str]]
) -> None:
    verdict = verdict_of(count, cause)
    assert (verdict.state, blamed(verdict)) == (state, named)
