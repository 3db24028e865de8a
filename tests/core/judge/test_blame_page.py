"""`docs/blame.md`: its picture is up to date, and its example has the figures of the code."""

from __future__ import annotations

from math import exp
from xml.etree import ElementTree

import pytest
from tests.factories.blame_cases import BAD, case
from tests.factories.blame_picture import PICTURE, picture
from tests.factories.judging import judged
from tests.factories.paths import ROOT

from accept.core.judge import blame
from accept.core.judge.pairs import COLLAPSED
from accept.core.judge.robust_stats import (
    FALSE_ALARMS,
    MIN_SIGMAS,
    MOST_REPEATS,
    MOST_ROUNDS,
    slowdown_found,
)
from accept.core.judge.topology import DISTANCE
from accept.core.model import SuspectKind, Verdict
from accept.core.report import text

PAGE = " ".join((ROOT / "docs" / "blame.md").read_text().split())
ROUNDS = 5


def after_the_rounds() -> Verdict:
    """Return the verdict of the example before pairs were measured again."""
    found = case("node")
    repeated = {r.log for r in found.records if "pairs" in r.step and r.wave >= ROUNDS}
    return judged(found.plan, *(r for r in found.records if r.log not in repeated))


def likelier(bad: int, pairs: int, others: tuple[int, int], law: tuple[float, float]) -> float:
    """Return how much likelier the counts are if a host is bad."""
    everything = (bad + others[0], pairs + others[1])
    return exp(
        blame._evidence((bad, pairs), law)
        + blame._evidence(others, blame._BACKGROUND)
        - blame._evidence(everything, blame._BACKGROUND)
    )


def test_the_picture_is_up_to_date() -> None:
    assert PICTURE.read_text() == picture()
    ElementTree.fromstring(picture())


def test_the_example_has_the_figures_of_the_code() -> None:
    early, fabric = after_the_rounds().suspects
    assert early.hosts == (f"h{BAD}",)
    assert early.why.startswith("slow in 5 of 5 pairs (62% of normal); other pairs: 9 of 155")
    assert fabric.kind is SuspectKind.FABRIC
    assert "h43" in {host for pair in fabric.pairs for host in pair.hosts}
    assert f"{round(likelier(5, 5, (9, 155), blame._STEADY), -3):,.0f} times likelier" in PAGE
    assert f"{likelier(2, 5, (7, 150), blame._INTERMITTENT):.1f} times likelier" in PAGE
    assert f"{len(fabric.pairs)} pairs ({len(fabric.pairs) / 155:.1%})".replace("%", " %") in PAGE
    late = case("node").verdict.suspects[0]
    assert "slow in 15 of 15 pairs, and the others in 26 of 456" in PAGE
    assert late.why.startswith("slow in 15 of 15 pairs (62% of normal); other pairs: 26 of 456")
    shown = " ".join(" ".join(text.table(case("node").verdict).splitlines()[:6]).split())
    assert shown in PAGE


def test_the_page_has_the_limits_of_the_code() -> None:
    assert (MIN_SIGMAS, MOST_ROUNDS, MOST_REPEATS, FALSE_ALARMS) == (3.0, 5, 10, 1e-3)
    assert "at most five rounds" in PAGE
    assert "up to ten" in PAGE
    assert f"{slowdown_found(0.01, 64):.1%} at".replace("%", " %") in PAGE
    assert f"up to {DISTANCE:.0%} slower".replace("%", " %") in PAGE
    assert pytest.approx(1 - COLLAPSED) == DISTANCE
