"""Judge runs of the shipped suites on simulated fabrics with slow NICs."""

from __future__ import annotations

from itertools import product

import pytest
from tests.factories.simulated_fabric import Fabric, run, whole

from accept.config import load_machine, names
from accept.core.causes import Cause
from accept.core.model import State, SuspectKind, Verdict


def named(verdict: Verdict, kind: SuspectKind) -> set[tuple[str, str | None]]:
    """Return the only host and the device of the suspects, which are all of one kind."""
    assert {suspect.kind for suspect in verdict.suspects} == {kind}
    return {("".join(s.hosts), s.device) for s in verdict.suspects}


@pytest.mark.parametrize(
    ("machine", "nodes"), [("h100-8", 64), ("b200-8", 8), ("a4-highgpu-8g", 4), ("gb200-4x", 4)]
)
def test_a_healthy_cluster_passes_and_uses_all_its_nics(machine: str, nodes: int) -> None:
    fabric = Fabric(machine=machine, count=nodes)
    verdict = run(fabric)
    assert verdict.state is State.PASS
    assert not verdict.suspects
    covered = verdict.coverage
    assert covered.gpus == covered.gpus_of == nodes * fabric.ranks
    assert covered.nics == covered.nics_of == nodes * fabric.ranks
    assert max(row.links for row in covered.steps) >= nodes


def _with_fast_nics() -> list[str]:
    machines = ((name, load_machine(name).value) for name in names("machines"))
    return [name for name, one in machines if one.nvlink and one.nics]


@pytest.mark.parametrize("machine", _with_fast_nics())
def test_two_healthy_nodes_of_every_machine_pass(machine: str) -> None:
    verdict = run(Fabric(machine=machine, count=2))
    assert (verdict.state, verdict.suspects) == (State.PASS, ())


def test_slow_nics_on_different_rails_are_named() -> None:
    """Each rail is as fast as its slowest NIC, so half of the rails are slow."""
    slow = {("h3", 0): 0.7, ("h17", 2): 0.7, ("h30", 5): 0.7, ("h41", 7): 0.7}
    verdict = run(Fabric(slow=slow))
    assert verdict.state in (State.FAIL, State.DEGRADED)
    assert named(verdict, SuspectKind.NIC) == {(host, f"mlx5_{rank}") for host, rank in slow}


def test_two_slow_nics_of_one_host_are_named() -> None:
    verdict = run(Fabric(count=16, slow={("h3", 0): 0.7, ("h3", 5): 0.7}))
    assert named(verdict, SuspectKind.NIC) == {("h3", "mlx5_0"), ("h3", "mlx5_5")}


def test_a_rack_whose_nics_are_all_slow_is_rejected() -> None:
    verdict = run(Fabric(count=16, slow=whole(range(4), 0.7)))
    assert not verdict.accepted
    assert {host for suspect in verdict.suspects for host in suspect.hosts} == {
        f"h{i}" for i in range(4)
    }


def test_a_cluster_whose_nics_are_all_slow_fails_without_accusing_a_host() -> None:
    verdict = run(Fabric(count=8, slow=whole(range(8), 0.7)))
    assert verdict.state is State.FAIL
    assert not verdict.suspects


def test_an_expectation_for_whole_hosts_lowers_the_bound_of_their_rails() -> None:
    slow = whole(range(8), 0.69)
    of_rings = (f"{name}@8G>=200" for name in ("all-reduce", "all-gather", "reduce-scatter"))
    expect = (*of_rings, "alltoall@8G>=10", "sendrecv@8G>=10")
    assert run(Fabric(count=8, slow=slow, expect=expect)).state is State.PASS


def test_half_of_the_rails_slow_are_named() -> None:
    slow = {(f"h{i}", rank): 0.7 for i, rank in product(range(16), range(4))}
    verdict = run(Fabric(count=16, slow=slow))
    assert not verdict.accepted
    assert named(verdict, SuspectKind.RAIL) == {("", str(rank)) for rank in range(4)}


@pytest.mark.parametrize("rails", [5, 8])
def test_most_rails_slow_with_all_their_hosts_fail(rails: int) -> None:
    """They are not outliers, and their pairs are good, so only the bound of a rail shows it."""
    crowded = dict.fromkeys(range(rails), 0.7)
    assert run(Fabric(count=8, crowded=crowded)).state is State.FAIL


# -- Steps that run only after a question ----------------------------------------------------------


def test_the_ladder_runs_only_if_earlier_steps_leave_a_question() -> None:
    ran = [
        any("ladder" in row.step and row.hosts for row in run(f).coverage.steps)
        for f in (Fabric(count=4), Fabric(count=4, slow={("h1", 3): 0.7}))
    ]
    assert ran == [False, True]


def test_a_ladder_that_should_have_run_is_missing() -> None:
    verdict = run(Fabric(count=4, slow={("h1", 3): 0.7}, without="ladder"))
    causes = {f.cause for check in verdict.checks for f in check.findings}
    assert Cause.EVIDENCE_MISSING in causes


# -- NICs that nothing uses -----------------------------------------------------------------------


def test_the_nics_of_a_single_host_are_measured() -> None:
    assert run(Fabric(count=1)).coverage.nics == 8
    slow = run(Fabric(count=1, slow={("h0", 2): 0.4}))
    assert slow.state is State.FAIL


def test_a_suite_that_measures_one_host_alone_only_shows_that_its_nics_were_not_used() -> None:
    verdict = run(Fabric(suite="quick", count=1))
    assert verdict.state is State.PASS
    assert verdict.coverage.nics_untested == ("h0",)


def test_nics_that_no_step_used_are_inconclusive_if_the_suite_measures_the_network() -> None:
    verdict = run(Fabric(machine="gb200-4x", suite="quick", count=4, uses_nics=False))
    assert verdict.state is State.INCONCLUSIVE
    (check,) = (check for check in verdict.checks if check.state is not State.PASS)
    assert [finding.cause for finding in check.findings] == [Cause.NICS_NOT_TESTED]
    assert len(check.findings[0].hosts) == 4
