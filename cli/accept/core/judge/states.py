"""Which state follows from a cause, and from several states."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TypeVar

from accept.core import causes
from accept.core.judge.evidence import Evidence
from accept.core.model import WORST_FIRST, CheckVerdict, Finding, State
from accept.core.typed import read

P = TypeVar("P")

_CORRECTNESS = frozenset(
    {
        "wrong-data",
        "wrong-result",
        "not-finite",
        "parameters-differ",
        "gradients-differ",
        "loss-differs",
        "loss-not-falling",
    }
)
_CONSISTENCY = frozenset({"inventory-mismatch", "clock-skew", "gpu-duplicate"})
#: A device did worse than the bound that is stated for it.
_ABSOLUTE = frozenset(
    {
        *("gpu-xid", "gpu-row-remap", "gpu-throttled", "nvlink-errors", "pcie-errors"),
        *("pcie-degraded", "link-down", "nic-errors", "host-errors"),
    }
)


def worst(states: Iterable[State]) -> State:
    """The worst of `states`; pass where there are none."""
    found = set(states)
    return next((state for state in WORST_FIRST if state in found), State.PASS)


def state_of(cause: str) -> State:
    """The state that a problem of this cause means for its check."""
    if cause in causes.NOT_TESTED:
        return State.NOT_TESTED
    return State.INCONCLUSIVE if cause == "no-reference" else State.FAIL


def judgement_of(cause: str) -> str:
    """The judgement that a problem of this cause belongs to."""
    if cause in _CORRECTNESS:
        return "correctness"
    if cause in _ABSOLUTE:
        return "absolute"
    return "consistency" if cause in _CONSISTENCY else "completeness"


def verdict_of(
    evidence: Evidence, findings: Sequence[Finding], *, measured: str = "", against: str = ""
) -> CheckVerdict:
    """The verdict that follows from a check's findings.

    Without records and findings nothing of it applies: its groups need two hosts and there is one.
    """
    alone = not evidence.records and not findings
    if alone:
        findings = (
            Finding(
                check=evidence.check,
                judgement="completeness",
                state=State.NOT_TESTED,
                message="needs two hosts, and this run has one",
            ),
        )
    return CheckVerdict(
        check=evidence.check,
        state=worst(finding.state for finding in findings),
        optional=alone or evidence.optional,
        measured=measured,
        against=against,
        findings=tuple(findings),
    )


def params_of(evidence: Evidence, kind: type[P]) -> P:
    """The parameters of a check's first step; the defaults where they cannot be read."""
    for step in evidence.steps:
        try:
            return read(kind, step.params)
        except ValueError:
            break
    return kind()
