"""The expected sizes of evidence and log, before a run."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.factories.chart_runs import resolved

from accept.commands.plan import planned
from accept.core.checks import REGISTRY
from accept.plan import sizes as module
from accept.plan.sizes import Sizes, sizes


def expected(folder: Path, nodes: int) -> Sizes:
    found = sizes(resolved(folder, "a4-highgpu-8g", nodes=nodes).plan)
    assert found is not None
    return found


def test_every_check_has_figures() -> None:
    assert set(module._CHECKS) == set(REGISTRY)


def test_evidence_grows_with_the_nodes_and_the_log_hardly_does(tmp_path: Path) -> None:
    small, large = (expected(tmp_path, nodes) for nodes in (8, 1000))
    assert 50 < large.evidence / small.evidence < 200
    assert large.log < 2 * small.log


@pytest.mark.parametrize(("nodes", "fits"), [(2, True), (1000, False)])
def test_a_plan_without_a_place_for_records_shows_if_the_log_is_too_small(
    tmp_path: Path, nodes: int, *, fits: bool
) -> None:
    run = resolved(tmp_path, "a4-highgpu-8g", nodes=nodes)
    plan = planned(run)
    assert plan.sizes is not None
    assert plan.sizes.fits_log is fits
    assert any("results.location to keep" in note for note in plan.notes) is not fits
    stored = resolved(
        tmp_path, "a4-highgpu-8g", nodes=nodes, site="results: {location: 'gs://b'}\n"
    )
    assert not any("results.location" in note for note in planned(stored).notes)
