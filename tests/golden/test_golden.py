"""Every decision of the golden verdicts is unchanged; `python -m tests.golden` writes new ones."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from tests.golden.files import stored
from tests.golden.runs import FAMILIES, Make
from tests.golden.view import differences, view

from accept.commands.explain import Explanation, explain
from accept.core import judge
from accept.core.causes import Judgement
from accept.core.judge.summary import node_lists
from accept.core.plan import Plan
from accept.core.records import Record
from accept.core.sentences import SLOW_OR_FAR
from accept.core.verdict import Finding, State
from accept.report.data import Run


def _judged(make: Make) -> Run:
    """Judge a run; return it with the plan and the records that the judge was given last."""
    gathered, inputs = judge.gathered, []

    def noted(plan: Plan, records: Sequence[Record], **options: Any) -> Any:
        inputs.append((plan, tuple(records)))
        return gathered(plan, records, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(judge, "gathered", noted)
        verdict = make()
    plan, records = inputs[-1]
    return Run(plan=plan, verdict=verdict, records=records)


@pytest.mark.parametrize("family", FAMILIES)
def test_the_file_of_a_family_has_its_runs(family: str) -> None:
    assert list(stored(family)) == list(FAMILIES[family])


@pytest.mark.parametrize(("family", "name"), [(f, name) for f in FAMILIES for name in FAMILIES[f]])
def test_a_verdict_is_that_of_the_file_and_is_explained(family: str, name: str) -> None:
    run = _judged(FAMILIES[family][name])
    changes = list(differences(stored(family)[name], view(run.verdict)))
    assert not changes, "\n".join([*changes, "after a review: python -m tests.golden"])
    nodes = _nodes(run)
    assert nodes or not run.verdict.requested
    for node in nodes:
        one = explain(run, node)
        about = f"{node}: {one.evidence_against}"
        assert one.evidence_against or one.state != "bad", about
        for check, finding in _findings(run):
            own = finding.hosts == (node,)
            missing = finding.judgement is Judgement.COMPLETENESS
            if own or (node in finding.hosts and one.state != "good" and not missing):
                heads = (f"{check} ", f"{check}: ", f"{finding.cause} in ")
                assert any(line.startswith(heads) for line in one.evidence_against), about
            if own and SLOW_OR_FAR in finding.message and finding.executions:
                good, every = _good(one, check)
                assert good + finding.executions.bad <= every, about
        for suspect in (s for s in one.suspects if not s.of_network and s.device is None):
            partners = {p.host for p in one.partners if p.bad}
            assert partners or not suspect.pairs or not one.partners, about


def _nodes(run: Run) -> Sequence[str]:
    """Return some nodes in each state, and those that a finding names alone."""
    alone = [f.hosts[0] for _, f in _findings(run) if len(f.hosts) == 1]
    some = (host for own in vars(node_lists(run.verdict)).values() for host in own[:3])
    hosts = {host for own in vars(node_lists(run.verdict)).values() for host in own}
    return [host for host in dict.fromkeys((*some, *alone[:6])) if host in hosts]


def _findings(run: Run) -> Sequence[tuple[str, Finding]]:
    return [
        (check.check, finding)
        for check in run.verdict.checks
        for finding in check.findings
        if finding.state is not State.PASS
    ]


def _good(one: Explanation, check: str) -> tuple[int, int]:
    """Return the good executions of pairs of a check, and all of them."""
    own = [step for step in one.steps if step.check == check and step.groups == "pairs"]
    bad = sum(step.slow + step.failed + step.far for step in own)
    every = sum(step.executions for step in own)
    return every - bad, every
