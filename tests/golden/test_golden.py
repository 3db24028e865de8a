"""Every decision of the golden verdicts is unchanged; `python -m tests.golden` writes new ones."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from tests.golden.files import stored
from tests.golden.runs import FAMILIES
from tests.golden.view import differences, view

from accept.commands.explain import Explanation, explain
from accept.core import judge
from accept.core.causes import Judgement
from accept.core.judge.summary import node_lists
from accept.core.model import Finding, Plan, Record, State
from accept.core.sentences import SLOW_OR_FAR
from accept.report.data import Run


@pytest.fixture(scope="module")
def verdicts() -> Mapping[str, Mapping[str, Run]]:
    """Judge all runs once; return them by family and name."""
    gathered, inputs = judge.gathered, []

    def noted(plan: Plan, records: Sequence[Record], **options: Any) -> Any:
        inputs.append((plan, tuple(records)))
        return gathered(plan, records, **options)

    found: dict[str, dict[str, Run]] = {}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(judge, "gathered", noted)
        for family, runs in FAMILIES.items():
            for name, make in runs.items():
                verdict = make()
                plan, records = inputs[-1]
                run = Run(plan=plan, verdict=verdict, records=records)
                found.setdefault(family, {})[name] = run
                inputs.clear()
    return found


def test_verdicts_are_those_of_the_files(verdicts: Mapping[str, Mapping[str, Run]]) -> None:
    found: list[str] = []
    for family, runs in verdicts.items():
        old, new = stored(family), {name: view(run.verdict) for name, run in runs.items()}
        assert list(old) == list(new)
        for name, decided in new.items():
            lines = list(differences(old[name], decided))
            found += [f"{family}: {name}", *lines] if lines else []
    assert not found, "\n".join([*found, "after a review: python -m tests.golden"])


def test_an_explanation_agrees_with_the_findings(
    verdicts: Mapping[str, Mapping[str, Run]],
) -> None:
    explained = 0
    for run in (run for runs in verdicts.values() for run in runs.values()):
        for node in _nodes(run):
            one = explain(run, node)
            about = f"{run.verdict.attempt} {node}: {one.evidence_against}"
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
            explained += 1
    assert explained > 500


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
