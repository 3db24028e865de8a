"""burn.py: every rank is measured, and a wrong product names its rank."""

from __future__ import annotations

import pytest
from tests.factories.programs import Start

from accept.core.checks import REGISTRY

real = pytest.mark.real
SMALL = ("--seconds", "0.3", "--size", "256", "--room", "64K")


@pytest.mark.rare
@real
def test_every_rank_and_the_host_are_measured(start: Start) -> None:
    ran = start("burn.py", 2, *SMALL)
    assert (ran.exit, ran.problems) == (0, [])
    found = {(r["metric"], r.get("rank")): r["value"] for r in ran.records if "metric" in r}
    assert {name for name, _ in found} <= {spec.name for spec in REGISTRY["burn"].metrics}
    for rank in range(2):
        assert found["fp32", rank] > 0
        assert found["wrong", rank] == 0
    assert 0 < found["step-p50", None] <= found["step-p99", None]
    assert found["all-gather", None] > 0
    assert {r["rank"] for r in ran.records if r.get("fact") == "load"} == {0, 1}


@real
def test_a_flipped_bit_of_one_product_names_its_rank(start: Start) -> None:
    ran = start("burn.py", 2, *SMALL, inject="flip@h1:0")
    assert ran.exit == 7
    assert ran.blamed("burn") == {("wrong-result", "h1", 1)}
