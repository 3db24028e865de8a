"""Racks whose nodes share NVLink: bounds within a rack, and between two racks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from tests.factories.verdicts import (
    gpus,
    hosts,
    hosts_record,
    inventory_of,
    measured,
    plan,
    record,
    step,
    table,
)

from accept.core.checks import REGISTRY
from accept.core.groups import Group
from accept.core.judge import judge
from accept.core.judge.hosts import domains
from accept.core.judge.remeasure import waves_again
from accept.core.model import BoundKind, Fact, PlannedMachine, Record, Reference, State, Verdict

EIGHT = hosts(8)
#: No host reports whether it is in a rack.
UNKNOWN: dict[str, str] = {}
RACK = {host: f"cluster/{place // 4}" for place, host in enumerate(EIGHT)}
MACHINE = PlannedMachine(name="racks", gpus=8, ranks=2, device="B200", noise=0.01)
INVENTORY = step("inventory", "each", number=10)
PAIRS = step("all-reduce", "pairs", rounds=5, number=20)
NICS = Reference(
    check="all-reduce",
    metric="busbw",
    unit="GB/s",
    kind=BoundKind.FLOOR,
    source="the NICs' data sheet",
    lower=120.0,
    min_nodes=2,
)
NVLINK = replace(NICS, source="NVLink's data sheet", lower=450.0, max_nodes=18, one_domain=True)

Speed = Callable[[Group], float]


def speed(**slow: float) -> Speed:
    """Return a speed of 800 GB/s over NVLink and 190 over NICs; slow hosts reach a share of it."""

    def of(group: Group) -> float:
        together = len({RACK[host] for host in group.hosts}) == 1
        return (800 if together else 190) * min(slow.get(host, 1.0) for host in group.hosts)

    return of


def records(reached: Speed, racks: dict[str, str], *, channels: int | None = 2048) -> list[Record]:

    def domain(host: str) -> dict[str, str | None]:
        return {} if racks is UNKNOWN else {"domain": racks.get(host)}

    inventories = [
        record(
            INVENTORY,
            [host],
            facts=(inventory_of(host, gpus=gpus(host), imexChannels=channels, **domain(host)),),
            number=number,
        )
        for number, host in enumerate(EIGHT)
    ]
    return [hosts_record(EIGHT), *inventories, *measured(PAIRS, EIGHT, reached)]


def judged(reached: Speed, racks: dict[str, str] = RACK) -> Verdict:
    run = plan(INVENTORY, PAIRS, machine=MACHINE, references=(NVLINK, NICS))
    return judge(run, records(reached, racks), checks=REGISTRY, attempt="one")


def causes(verdict: Verdict) -> set[str]:
    return {f.cause for one in verdict.checks for f in one.findings if f.cause}


def test_pairs_of_two_racks_are_compared_with_nics_only() -> None:
    verdict = judged(speed())
    assert (verdict.state, verdict.suspects) == (State.PASS, ())


def test_pairs_of_one_rack_are_compared_with_nvlink() -> None:
    """They fell back to the NICs, which only their speed shows."""
    verdict = judged(lambda _: 190.0)
    assert verdict.state is State.FAIL
    assert "below-reference" in causes(verdict)


@pytest.mark.parametrize(
    ("together", "profile", "found"), [(True, "", True), (False, "", False), (True, "rdma", False)]
)
def test_hosts_of_one_rack_that_do_without_nvlink_are_reported_and_not_accused(
    *, together: bool, profile: str, found: bool
) -> None:
    pairs = replace(PAIRS, profile=profile)

    def seen(one: Record) -> Record:
        same = len({RACK[host] for host in one.hosts}) == 1
        if one.step != PAIRS.id or same is not together:
            return one
        fact = Fact(name="nccl-detours", value={"MNNVL off": list(one.hosts)})
        return replace(one, facts=(*one.facts, fact))

    profiles = {"rdma": replace(MACHINE, name="rdma")}
    run = plan(INVENTORY, pairs, machine=MACHINE, references=(NVLINK, NICS))
    run = replace(run, profiles=profiles)
    made = [seen(one) for one in records(speed(), RACK)]
    verdict = judge(run, made, checks=REGISTRY, attempt="one")
    assert ("nvlink-domain-off" in causes(verdict)) is found
    assert (verdict.state is State.FAIL) is found
    assert verdict.suspects == ()


@pytest.mark.parametrize("bad", ["h1", "h6"])
def test_a_slow_host_is_named_among_pairs_of_its_own_kind(bad: str) -> None:
    verdict = judged(speed(**{bad: 0.8}))
    assert [(suspect.kind, suspect.hosts) for suspect in verdict.suspects] == [("node", (bad,))]


@pytest.mark.parametrize("alone", [("h7",), ("h3", "h7")])
def test_a_healthy_host_alone_in_its_rack_is_neither_slow_nor_far(alone: tuple[str, ...]) -> None:
    """Its rack is known, so its pairs need no further measurement."""
    racks = {host: f"cluster/{host}" if host in alone else rack for host, rack in RACK.items()}

    def reached(group: Group) -> float:
        return 800 if len({racks[host] for host in group.hosts}) == 1 else 190

    verdict = judged(reached, racks)
    assert (verdict.state, verdict.suspects) == (State.PASS, ())
    done = [one for one in records(reached, racks) if one.step == PAIRS.id]
    known = domains(records(reached, racks))
    assert (
        waves_again(plan(PAIRS, machine=MACHINE), PAIRS, done, EIGHT, {}, known, checks=REGISTRY)
        == ()
    )


def test_blocks_of_a_ladder_are_compared_with_those_of_their_own_kind() -> None:
    blocks = step("all-reduce", "ladder", number=30)
    pairs = [EIGHT[i : i + 2] for i in range(7)]
    made = [
        record(blocks, pair, *table("all-reduce", speed()(Group(hosts=pair))), number=number)
        for number, pair in enumerate(pairs)
    ]
    run = plan(INVENTORY, blocks, machine=MACHINE, references=(NVLINK, NICS))
    others = [one for one in records(speed(), RACK) if one.step != PAIRS.id]
    assert judge(run, [*others, *made], checks=REGISTRY, attempt="one").suspects == ()


def test_efficiency_over_the_fabric_leaves_nvlink_out() -> None:
    ladder = step("all-reduce", "ladder", number=30)
    others = [one for one in records(speed(), RACK) if one.step != PAIRS.id]
    run = plan(INVENTORY, ladder, machine=MACHINE)
    made = measured(ladder, EIGHT, speed())
    # Only all eight hosts are in more than one rack.
    assert judge(run, [*others, *made], checks=REGISTRY, attempt="one").scaling == ()


def test_racks_also_decide_what_is_measured_again() -> None:
    healthy = [one for one in records(speed(), RACK) if one.step == PAIRS.id]
    run = plan(INVENTORY, PAIRS, machine=MACHINE)
    racks = (frozenset(EIGHT[:4]), frozenset(EIGHT[4:]))
    assert waves_again(run, PAIRS, healthy, EIGHT, {}, racks, checks=REGISTRY) == ()


def test_if_no_host_reports_its_rack_nvlink_between_hosts_is_not_tested() -> None:
    verdict = judged(lambda _: 190.0, UNKNOWN)
    assert verdict.state is State.INCONCLUSIVE
    assert causes(verdict) == {"no-measurement"}


def test_hosts_that_are_all_outside_of_a_rack_fail() -> None:
    """NCCL falls back to the NICs without a word, and the NICs are as fast as they should be."""
    verdict = judged(lambda _: 190.0, {"nobody": ""})
    assert verdict.state is State.FAIL
    assert "fabric-manager" in causes(verdict)


def test_a_host_outside_of_all_racks_is_named() -> None:
    racks = {host: rack for host, rack in RACK.items() if host != "h3"}
    named = {(s.hosts, s.cause) for s in judged(speed(), racks).suspects}
    assert (("h3",), "fabric-manager") in named


@pytest.mark.parametrize(
    ("channels", "state"), [(0, State.FAIL), (1, State.PASS), (None, State.PASS)]
)
def test_without_imex_channels_nvlink_between_hosts_fails(
    channels: int | None, state: State
) -> None:
    run = plan(INVENTORY, PAIRS, machine=MACHINE, references=(NVLINK, NICS))
    made = records(speed(), RACK, channels=channels)
    assert judge(run, made, checks=REGISTRY, attempt="one").state is state
