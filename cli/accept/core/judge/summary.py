"""Reduce findings to the state of a check, and a verdict to lists of good and bad nodes."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import TypeVar

from accept.core.causes import Cause
from accept.core.errors import Exit
from accept.core.judge.evidence import Evidence
from accept.core.serde import read
from accept.core.text import TextEnum
from accept.core.verdict import WORST_FIRST, CheckVerdict, Finding, State, Verdict

P = TypeVar("P")


class NodeState(TextEnum):
    """The list of a verdict that a node is in."""

    GOOD = "good"
    BAD = "bad"
    UNTESTED = "untested"


@dataclass(frozen=True, kw_only=True)
class NodeLists:
    """The nodes of a run by what the verdict shows about them."""

    good: tuple[str, ...]
    bad: tuple[str, ...]
    #: Nodes that did not take part or were left out, and those that are not shown to be good.
    untested: tuple[str, ...]

    @property
    def states(self) -> dict[str, NodeState]:
        """Return the state of each node, list by list."""
        lists = vars(self).items()
        return {host: NodeState(name) for name, hosts in lists for host in hosts}


# States


def worst_state(states: Iterable[State]) -> State:
    """Return the worst of `states`; pass if there are none."""
    present = set(states)
    return next((state for state in WORST_FIRST if state in present), State.PASS)


def state_of(cause: Cause) -> State:
    """Return the state of a check with a problem of this cause."""
    if cause.row.not_tested:
        return State.NOT_TESTED
    return State.INCONCLUSIVE if cause.row.not_judged else State.FAIL


def with_finding(verdict: CheckVerdict, found: Finding) -> CheckVerdict:
    """Return a verdict with one finding more."""
    state = worst_state((verdict.state, found.state))
    return replace(verdict, state=state, findings=(*verdict.findings, found))


def params_of(evidence: Evidence, kind: type[P]) -> P:
    """Return the parameters of a check's first step; the defaults if they are invalid."""
    for step in evidence.steps:
        try:
            return read(kind, step.params)
        except ValueError:
            break
    return kind()


# Lists of nodes


def node_lists(verdict: Verdict) -> NodeLists:
    """Return which nodes are good, bad and not tested, in the run's order.

    Nodes are good if the run is a pass, or if it passes without the bad ones and the network is not
    blamed. A requested node that did not take part is bad if it is blamed for that, else it was not
    tested. A drill shows nothing about nodes.
    """
    left_out = tuple(node.name for node in verdict.left_out)
    if verdict.injected:
        return NodeLists(good=(), bad=(), untested=(*verdict.hosts, *verdict.missing, *left_out))
    accused = verdict.accused
    bad = tuple(host for host in verdict.requested if host in accused)
    without_bad = (
        verdict.state is State.DEGRADED
        and not any(s.of_network for s in verdict.suspects)
        and not verdict.unexplained_wrong_data
    )
    is_good = (verdict.state is State.PASS or without_bad) and not verdict.interruption
    rest = tuple(host for host in verdict.hosts if host not in accused)
    return NodeLists(
        good=rest if is_good else (),
        bad=bad,
        untested=(
            *(() if is_good else rest),
            *(host for host in verdict.missing if host not in accused),
            *left_out,
        ),
    )


def not_good(verdict: Verdict) -> tuple[str, ...]:
    """Return the requested nodes that are not shown to be good: bad, or never started."""
    good = {*node_lists(verdict).good}
    return tuple(host for host in verdict.requested if host not in good)


def tolerated(verdict: Verdict, most: int) -> Verdict:
    """Return the verdict if the user accepts a run that does without at most `most` nodes.

    These are the bad ones, and those that never started. Only a run that passes without them can be
    accepted, and never a drill.
    """
    good = node_lists(verdict).good
    if not (verdict.state is State.DEGRADED and good and len(not_good(verdict)) <= most):
        return verdict
    return replace(verdict, accepted=True, exit=int(Exit.PASS), max_bad=most)
