"""Judge runs of the shipped suites on simulated fabrics with slow NICs."""

from __future__ import annotations

import pytest
from tests.factories.simulated_fabric import Fabric, run, whole

from accept.config import load_machine, names
from accept.core.causes import Cause
from accept.core.verdict import State

_RINGS = ("all-reduce@8G>=200", "all-gather@8G>=200", "reduce-scatter@8G>=200")
#: NICs on different rails: each rail is as fast as its slowest NIC, so half of them are slow.
_RAILS = {("h3", 0): 0.7, ("h17", 2): 0.7, ("h30", 5): 0.7, ("h41", 7): 0.7}


@pytest.mark.sampled
@pytest.mark.parametrize(
    ("machine", "nodes"), [("h100-8", 64), ("b200-8", 8), ("a4-highgpu-8g", 4), ("gb200-4x", 4)]
)
def test_a_healthy_cluster_passes_and_uses_all_its_nics(machine: str, nodes: int) -> None:
    fabric = Fabric(machine=machine, count=nodes)
    verdict = run(fabric)
    assert (verdict.state, verdict.suspects) == (State.PASS, ())
    covered = verdict.coverage
    assert covered.gpus == covered.gpus_of == nodes * fabric.ranks
    assert covered.nics == covered.nics_of == nodes * fabric.ranks
    assert max(row.links for row in covered.steps) >= nodes


def _with_fast_nics() -> list[str]:
    machines = ((name, load_machine(name).value) for name in names("machines"))
    return [name for name, one in machines if one.nvlink and one.nics]


@pytest.mark.sampled
@pytest.mark.parametrize("machine", _with_fast_nics())
def test_two_healthy_nodes_of_every_machine_pass(machine: str) -> None:
    verdict = run(Fabric(machine=machine, count=2))
    assert (verdict.state, verdict.suspects) == (State.PASS, ())


@pytest.mark.rare
def test_slow_nics_are_named_if_others_are_faster() -> None:
    """Other fabrics with slow NICs are in `tests/golden`, without what a run measures again."""
    verdict = run(Fabric(slow=_RAILS))
    named = {f"{suspect.kind} {suspect.name}" for suspect in verdict.suspects}
    assert named >= {f"nic {host}:mlx5_{rank}" for host, rank in _RAILS}
    all_slow = run(Fabric(count=8, slow=whole(range(8), 0.7)))
    assert (all_slow.accepted, all_slow.suspects) == (False, ())


def test_an_expectation_for_whole_hosts_lowers_the_bound_of_their_rails() -> None:
    expect = (*_RINGS, "alltoall@8G>=10", "sendrecv@8G>=10")
    fabric = Fabric(count=8, slow=whole(range(8), 0.69), expect=expect)
    assert run(fabric).state is State.PASS


def test_the_ladder_runs_only_if_earlier_steps_leave_a_question() -> None:
    slow = {("h1", 3): 0.7}
    for fabric, expected in ((Fabric(count=4), False), (Fabric(count=4, slow=slow), True)):
        rows = run(fabric).coverage.steps
        assert any("ladder" in row.step and row.hosts for row in rows) is expected
    verdict = run(Fabric(count=4, slow=slow, without="ladder"))
    causes = {f.cause for check in verdict.checks for f in check.findings}
    assert Cause.EVIDENCE_MISSING in causes


def test_nics_that_no_step_used_are_shown() -> None:
    """They are inconclusive only if the suite measures the network."""
    assert run(Fabric(count=1)).coverage.nics == 8
    alone = run(Fabric(suite="quick", count=1))
    assert (alone.state, alone.coverage.nics_untested) == (State.PASS, ("h0",))
    verdict = run(Fabric(machine="gb200-4x", suite="quick", count=4, uses_nics=False))
    assert verdict.state is State.INCONCLUSIVE
    (check,) = (check for check in verdict.checks if check.state is not State.PASS)
    (found,) = check.findings
    assert (found.cause, len(found.hosts)) == (Cause.NICS_NOT_TESTED, 4)
