"""Racks whose nodes share NVLink: bounds within a rack, and between two racks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from tests.factories.judging import causes
from tests.factories.judging import judged as judge_all
from tests.factories.verdicts import (
    gpus,
    hosts,
    hosts_record,
    inventories,
    inventory_of,
    measured,
    plan,
    record,
    step,
    table,
)

from accept.core.checks import REGISTRY
from accept.core.groups import Group
from accept.core.judge.hosts import domains
from accept.core.judge.remeasure import waves_again
from accept.core.plan import BoundKind, PlannedMachine, Reference
from accept.core.records import Fact, Record
from accept.core.verdict import State, Verdict

EIGHT = hosts(8)
#: No host reports whether it is in a rack.
UNKNOWN: dict[str, str] = {}
RACK = {host: f"cluster/{place // 4}" for place, host in enumerate(EIGHT)}
MACHINE = PlannedMachine(name="racks", gpus=8, ranks=2, device="B200", noise=0.01)
INVENTORY = step("inventory", "each", number=10)
PAIRS = step("all-reduce", "pairs", rounds=5, number=20)
LADDER = step("all-reduce", "ladder", number=30)
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


def speed(racks: dict[str, str] = RACK, **slow: float) -> Speed:
    """Return a speed of 800 GB/s over NVLink and 190 over NICs; slow hosts reach a share of it."""

    def of(group: Group) -> float:
        together = len({racks[host] for host in group.hosts}) == 1
        return (800 if together else 190) * min(slow.get(host, 1.0) for host in group.hosts)

    return of


def records(
    *made: Record, racks: dict[str, str] = RACK, channels: int | None = 2048
) -> list[Record]:
    """Return these records after the inventories of all hosts; `racks`: host -> its rack."""

    def domain(host: str) -> dict[str, str | None]:
        return {} if racks is UNKNOWN else {"domain": racks.get(host)}

    facts = (
        inventory_of(host, gpus=gpus(host), imexChannels=channels, **domain(host)) for host in EIGHT
    )
    return [hosts_record(EIGHT), *inventories(INVENTORY, facts), *made]


def judged(reached: Speed, racks: dict[str, str] = RACK, **more: int | None) -> Verdict:
    run = plan(INVENTORY, PAIRS, machine=MACHINE, references=(NVLINK, NICS))
    return judge_all(run, *records(*measured(PAIRS, EIGHT, reached), racks=racks, **more))


def alone(*names: str) -> dict[str, str]:
    """Return the racks if these hosts are each in a rack of its own."""
    return {host: f"cluster/{host}" if host in names else rack for host, rack in RACK.items()}


#: A rack of four hosts, and hosts that are in none although they should be.
OUTSIDE = {host: rack for host, rack in RACK.items() if host != "h3"}
BY_NICS: Speed = lambda _: 190.0  # noqa: E731


@pytest.mark.parametrize(
    ("reached", "racks", "channels", "expected"),
    [
        (speed(), RACK, 2048, "pass"),
        # Their pairs fell back to the NICs, which only their speed shows.
        (BY_NICS, RACK, 2048, "fail below-reference"),
        (speed(h1=0.8), RACK, 2048, "degraded slow-outlier node h1"),
        (speed(h6=0.8), RACK, 2048, "degraded slow-outlier node h6"),
        (BY_NICS, UNKNOWN, 2048, "inconclusive no-measurement"),
        # NCCL falls back to the NICs without a word, and these are as fast as they should be.
        (BY_NICS, {"nobody": ""}, 2048, "fail fabric-manager"),
        (speed(alone("h3")), OUTSIDE, 2048, "degraded fabric-manager inventory-mismatch node h3"),
        (speed(), RACK, 0, "fail fabric-manager"),
        (speed(), RACK, 1, "pass"),
        (speed(), RACK, None, "pass"),
    ],
)
def test_pairs_are_compared_with_nvlink_in_one_rack_and_with_nics_between_two(
    reached: Speed, racks: dict[str, str], channels: int | None, expected: str
) -> None:
    verdict = judged(reached, racks, channels=channels)
    named = {f"{suspect.kind} {suspect.name}" for suspect in verdict.suspects}
    assert " ".join([verdict.state, *sorted(causes(verdict)), *sorted(named)]) == expected


@pytest.mark.parametrize(
    ("together", "profile", "found"), [(True, "", True), (False, "", False), (True, "rdma", False)]
)
def test_hosts_of_one_rack_that_do_without_nvlink_are_reported_and_not_accused(
    *, together: bool, profile: str, found: bool
) -> None:
    def seen(one: Record) -> Record:
        if (len({RACK[host] for host in one.hosts}) == 1) is not together:
            return one
        return replace(one, facts=(Fact(name="nccl-detours", value={"MNNVL off": [*one.hosts]}),))

    pairs = replace(PAIRS, profile=profile)
    run = plan(INVENTORY, pairs, machine=MACHINE, references=(NVLINK, NICS))
    run = replace(run, profiles={"rdma": replace(MACHINE, name="rdma")})
    verdict = judge_all(run, *records(*map(seen, measured(PAIRS, EIGHT, speed()))))
    assert ("nvlink-domain-off" in causes(verdict)) is (verdict.state is State.FAIL) is found
    assert verdict.suspects == ()


@pytest.mark.parametrize("names", [(), ("h7",), ("h3", "h7")])
def test_a_healthy_host_alone_in_its_rack_is_neither_slow_nor_measured_again(
    names: tuple[str, ...],
) -> None:
    racks = alone(*names)
    done = measured(PAIRS, EIGHT, speed(racks))
    verdict = judged(speed(racks), racks)
    assert (verdict.state, verdict.suspects) == (State.PASS, ())
    run, known = plan(PAIRS, machine=MACHINE), domains(records(*done, racks=racks))
    assert waves_again(run, PAIRS, done, EIGHT, {}, known, checks=REGISTRY) == ()


def test_blocks_of_a_ladder_are_compared_with_those_of_their_own_kind() -> None:
    """Their efficiency is that of the fabric, so groups inside a rack do not count."""
    run = plan(INVENTORY, LADDER, machine=MACHINE, references=(NVLINK, NICS))
    pairs = [Group(hosts=EIGHT[i : i + 2]) for i in range(7)]
    made = [
        record(LADDER, pair, *table("all-reduce", speed()(pair)), number=number)
        for number, pair in enumerate(pairs)
    ]
    assert judge_all(run, *records(*made)).suspects == ()
    # Only all eight hosts are in more than one rack.
    assert judge_all(run, *records(*measured(LADDER, EIGHT, speed()))).scaling == ()
