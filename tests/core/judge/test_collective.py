"""Collectives: correct data, and the network that NCCL used."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

import pytest
from tests.factories.judging import (
    ALL,
    EIGHT,
    PAIRS,
    blamed,
    causes,
    gpu_inventory,
    gpu_plan,
    judged,
)
from tests.factories.verdicts import (
    FLOOR,
    GPU,
    hosts_record,
    measured,
    plan,
    record,
    slow,
    step,
    table,
)

from accept.core.causes import Cause
from accept.core.model import Fact, PlannedMachine, Problem, State, Step, Verdict

# -- correctness ----------------------------------------------------------------------------------


def test_wrong_data_in_the_pairs_of_one_host_name_it() -> None:
    records = [
        replace(r, exit=7, metrics=table("all-reduce", 10, wrong=5)) if "h2" in r.hosts else r
        for r in measured(PAIRS, EIGHT, slow())
    ]
    verdict = judged(plan(PAIRS), hosts_record(EIGHT), *records)
    assert blamed(verdict) == {("node", "h2", "wrong-data")}
    assert verdict.state is State.DEGRADED
    assert verdict.exit == 3


def test_wrong_data_whose_source_the_program_names() -> None:
    named = Problem(cause=Cause.WRONG_DATA, message="rank 4", check="all-reduce", host="h2", rank=4)
    made = record(ALL, EIGHT, *table("all-reduce", 10, wrong=5), status=7, problems=(named,))
    verdict = judged(plan(ALL), hosts_record(EIGHT), made)
    assert blamed(verdict) == {("node", "h2", "wrong-data")}
    assert verdict.state is State.FAIL


def test_wrong_data_of_everybody_accuse_nobody() -> None:
    made = record(ALL, EIGHT, *table("all-reduce", 10, wrong=5), status=7)
    verdict = judged(plan(ALL), hosts_record(EIGHT), made)
    assert (verdict.state, verdict.suspects) == (State.FAIL, ())
    assert causes(verdict) == {"wrong-data"}


@pytest.mark.parametrize("wrong", [0.2, 0.5, 1.0])
def test_a_finding_on_wrong_data_counts_at_least_one_element(wrong: float) -> None:
    """Programs may report the mean of several ranks or iterations."""
    made = record(ALL, EIGHT, *table("all-reduce", 10, wrong=wrong), status=7)
    (finding,) = (
        f
        for c in judged(plan(ALL), hosts_record(EIGHT), made).checks
        for f in c.findings
        if f.cause is Cause.WRONG_DATA
    )
    assert re.match("[1-9]", finding.message)


def test_data_that_were_not_checked_do_not_pass() -> None:
    metrics = [m for m in table("all-reduce", 10) if m.name != "wrong"]
    verdict = judged(plan(ALL), hosts_record(EIGHT), record(ALL, EIGHT, *metrics))
    assert (verdict.state, causes(verdict)) == (State.FAIL, {"no-measurement"})


@pytest.mark.parametrize("check", ["alltoall", "sendrecv"])
def test_some_collectives_cannot_be_checked_in_place(check: str) -> None:
    of = step(check)
    verdict = judged(plan(of), hosts_record(EIGHT), record(of, EIGHT, *table(check, 10)))
    assert verdict.state is State.PASS


# -- transport ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("networks", "state", "cause"),
    [
        ({"gIB": ["h0", "h1"]}, State.PASS, set()),
        ({"gIB": ["h0"], "Socket": ["h1"]}, State.FAIL, {"transport-fallback"}),
        (None, State.INCONCLUSIVE, {"no-measurement"}),
    ],
)
def test_the_required_network_must_have_been_used(
    networks: dict[str, list[str]] | None, state: State, cause: set[str]
) -> None:
    of, listed = gpu_inventory()
    facts = () if networks is None else (Fact(name="nccl-networks", value=networks),)
    made = [replace(r, facts=facts) for r in measured(ALL, EIGHT, slow(usual=360))]
    promised = replace(
        gpu_plan(of, ALL, references=(FLOOR,)), machine=replace(GPU, transport="gIB")
    )
    verdict = judged(promised, hosts_record(EIGHT), *listed, *made)
    assert (verdict.state, causes(verdict)) == (state, cause)
    names = {("node", "h1", "transport-fallback")} if state is State.FAIL else set()
    assert blamed(verdict) == names


@pytest.mark.parametrize("network", ["uninitialized_shim_v7", "Socket"])
def test_a_network_may_have_other_names_in_the_log(network: str) -> None:
    machine = replace(GPU, transport="FasTrak", transport_aliases=("uninitialized_shim",))
    verdict = judged_ways(machine, ALL, EIGHT, {}, network=network)
    assert causes(verdict) == ({"transport-fallback"} if network == "Socket" else set())


@pytest.mark.parametrize(
    ("detours", "words"),
    [
        ({"NET/gIB": ["h1"]}, "h1 used gIB without GDRDMA: data goes through host memory"),
        (
            {"SHM": ["h1"]},
            "h1 moved data between its GPUs through shared memory; NVLink is promised",
        ),
        (
            {"P2P off": ["h1"]},
            "h1 reports that P2P is disabled between its GPUs; NVLink is promised",
        ),
        # Only switches of newer machines can reduce.
        ({"NVLS off": ["h1"]}, ""),
        # Between hosts, the network is the expected path.
        ({"NET": ["h0", "h1"]}, ""),
    ],
)
def test_a_slower_path_than_required_fails_at_any_bandwidth(
    detours: dict[str, list[str]], words: str
) -> None:
    machine = replace(GPU, transport="gIB", gpu_direct=True, peer_to_peer=True)
    verdict = judged_ways(machine, ALL, EIGHT, detours)
    failures = [f.message for c in verdict.checks for f in c.findings if f.state is State.FAIL]
    assert failures == ([words] if words else [])
    assert causes(verdict) == ({"transport-fallback"} if words else set())
    assert blamed(verdict) == ({("node", "h1", "transport-fallback")} if words else set())


@pytest.mark.parametrize("hosts", [["h1"], [f"h{n}" for n in range(8)]])
def test_switches_that_cannot_reduce_fail_at_any_bandwidth(hosts: list[str]) -> None:
    verdict = judged_ways(replace(GPU, nvls=True), ALL, EIGHT, {"NVLS off": hosts})
    assert (verdict.state, causes(verdict)) == (State.FAIL, {"nvls-off"})


def test_a_slower_path_that_the_machine_allows_is_not_a_failure() -> None:
    ways = {"NET/gIB": ["h1"], "SHM": ["h1"], "P2P off": ["h1"]}
    machine = replace(GPU, transport="gIB")
    assert judged_ways(machine, ALL, EIGHT, ways).state is State.PASS


def test_inside_one_host_with_nvlink_no_network_is_required() -> None:
    each = step(groups="each")
    machine = replace(GPU, peer_to_peer=True)
    verdict = judged_ways(machine, each, ("h0",), {"NET": ["h0"]})
    failures = [f.message for c in verdict.checks for f in c.findings if f.state is State.FAIL]
    assert failures == ["h0 moved data between its GPUs over the network; NVLink is promised"]


def judged_ways(
    machine: PlannedMachine,
    of_step: Step,
    names: Sequence[str],
    detours: dict[str, list[str]],
    network: str = "gIB",
) -> Verdict:
    """Judge a fast run on the promised network in which hosts used paths that may be slower."""
    of, listed = gpu_inventory(len(names))
    facts = (
        Fact(name="nccl-networks", value={network: list(names)}),
        Fact(name="nccl-detours", value=detours),
    )
    made = [replace(r, facts=facts) for r in measured(of_step, names, slow(usual=360))]
    plan_of = replace(gpu_plan(of, of_step, references=(FLOOR,)), machine=machine)
    return judged(plan_of, hosts_record(names), *listed, *made)
