"""Runs of a few records, each with its verdict: the state, the causes of findings, and suspects."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import combinations
from typing import Any

import pytest
from tests.factories.judging import (
    ALL,
    EACH,
    EIGHT,
    INVENTORY,
    PAIRS,
    Cases,
    by_outcome,
    gpu_inventory,
    judged,
    outcome,
)
from tests.factories.verdicts import (
    COLLECTIVE,
    FLOOR,
    GPU,
    TOP,
    gpus,
    hosts,
    hosts_record,
    inventory_of,
    measured,
    plan,
    record,
    slow,
    step,
    table,
)

from accept.config.tool_file import planned_checks
from accept.core.causes import Cause, Judgement
from accept.core.checks import REGISTRY
from accept.core.judge import judge
from accept.core.judge.summary import NodeLists, node_lists
from accept.core.plan import Bound, BoundKind, Injection, Reference, Skipped, Step, Tool
from accept.core.records import Fact, Metric, Problem, Record
from accept.core.sentences import action, advice
from accept.core.verdict import (
    CheckVerdict,
    Executions,
    Finding,
    State,
    Strength,
    Suspect,
    SuspectKind,
    Verdict,
)


def healthy(
    *steps: Step, names: Sequence[str] = EIGHT, bad: Sequence[str] = (), **speed: float
) -> list[Record]:
    return [r for of in steps for r in measured(of, names, slow(*bad, **speed))]


def run(
    *steps: Step,
    made: Sequence[Record] | None = None,
    names: Sequence[str] = EIGHT,
    bad: Sequence[str] = (),
    first: Sequence[Problem] = (),
    interruption: str = "",
    **more: Any,
) -> Verdict:
    """Judge these records, or those of healthy and of `bad` hosts.

    `first`: problems of the step that finds the hosts.
    """
    made = healthy(*steps, names=names, bad=bad) if made is None else made
    start = hosts_record(names, *first)
    return judged(plan(*steps, **more), start, *made, interruption=interruption)


def gpu_run(
    usual: float,
    *bounds: Reference,
    steps: Sequence[Step] = (ALL,),
    names: Sequence[str] = EIGHT,
    bad: Sequence[str] = (),
    factor: float = 0.5,
    facts: Mapping[str, Any] | None = None,
    **machine: Any,
) -> Verdict:
    """Judge GPU hosts that reach `usual` GB/s."""
    of, listed = gpu_inventory(len(names))
    own = tuple(Fact(name=name, value=value) for name, value in (facts or {}).items())
    made = healthy(*steps, names=names, bad=bad, usual=usual, factor=factor)
    planned = plan(of, *steps, machine=replace(GPU, **machine), references=bounds)
    records = (replace(r, facts=own) for r in made)
    return judged(planned, hosts_record(names), *listed, *records)


def one_gpu(*tables: Metric) -> Verdict:
    of, listed = step("inventory", "each", number=10), gpus("h0", 1)
    listing = record(of, ["h0"], facts=(inventory_of("h0", gpus=listed, pciNvidia=1),), ranks=1)
    planned = plan(of, ALL, machine=ONE_GPU, references=(FLOOR,))
    return judged(planned, hosts_record(["h0"]), listing, record(ALL, ["h0"], *tables, ranks=1))


def problem(cause: Cause, host: str | None = None, **more: Any) -> Problem:
    return Problem(cause=cause, message=more.pop("message", host or ""), host=host, **more)


def failed(
    *problems: Problem, of: Step = ALL, names: Sequence[str] = EIGHT, tables: Any = (), **more: Any
) -> Record:
    status = more.pop("status", None)
    return record(of, names, *tables, status=status, problems=problems, **more)


def wrong(of: Step, *bad: str, elements: float = 5, **changes: Any) -> list[Record]:
    """Return records of a step in which groups with a bad host have wrong data."""
    metrics = table("all-reduce", 10, wrong=elements)
    changes = {"metrics": metrics, **changes}
    return [replace(r, **changes) if set(bad) & set(r.hosts) else r for r in healthy(of)]


def listing(own: dict[str, str] | None, **ranks: int) -> Verdict:
    """Judge a table that lists hosts with their ranks; `own`: the hostnames of the hosts."""
    fact = Fact(name="nccl-tests", check="all-reduce", value={"ranks": 4, "hosts": ranks})
    names = () if own is None else (Fact(name="hostnames", check="hosts", value=own),)
    half, rest = healthy(HALVES, names=hosts(4))
    answers = replace(hosts_record(hosts(4)), facts=names)
    return judged(plan(HALVES), answers, replace(half, facts=(fact,)), rest)


def answers(*ranks: tuple[int, str]) -> Verdict:
    """Judge a connectivity of four ranks on two hosts in which these answered."""
    facts = tuple(
        Fact(name="rank", check="connectivity", host=host, rank=rank, value={"gpu": None})
        for rank, host in ranks
    )
    return run(CONNECTED, made=[record(CONNECTED, TWO, facts=facts, ranks=4)], names=TWO)


def slower_small() -> Verdict:
    """Judge three hosts, one slow at the sizes of a small step, with a bound at a larger size."""
    of, listed = gpu_inventory(3)
    small = [
        replace(r, metrics=tuple(m for m in r.metrics if m.size in (None, 1 << 20)))
        for r in measured(SMALL, THREE, slow("h1", usual=1300, factor=0.8))
    ]
    planned = plan(of, ALL, SMALL, machine=GPU, references=(AT_TOP,))
    made = healthy(ALL, names=THREE, usual=360)
    return judged(planned, hosts_record(THREE), *listed, *made, *small)


def by_ways(path: str, *names: str, of: Step = ALL, **machine: Any) -> Verdict:
    """Judge a fast run on the promised network in which hosts used a path that may be slower."""
    all_names = names if of is EACH else EIGHT
    facts = {"nccl-networks": {machine.pop("network", "gIB"): [*all_names]}}
    facts |= {"nccl-detours": {path: [*names]}}
    return gpu_run(360, FLOOR, steps=[of], names=all_names, facts=facts, **machine)


def of_tool(count: int, cause: Cause) -> Verdict:
    """Judge a program of others on some hosts; it reports a problem of the first one."""
    bad = (problem(cause, message="t on h0: it is bad", check="t"),)
    made = [
        record(TOOL, [host], number=n, problems=() if n else bad)
        for n, host in enumerate(hosts(count))
    ]
    planned = plan(TOOL)
    checks = {**REGISTRY, **{check.name: check for check in planned_checks(planned)}}
    records = [hosts_record(hosts(count)), *made]
    return judge(planned, records, checks=checks, attempt="a-1")


REST = tuple(host for host in EIGHT if host != "h3")
TWO, THREE = hosts(2), hosts(3)
HALVES, LADDER, SCRIPT = step(groups="halves"), step(groups="ladder"), step("script")
CONNECTED, A2A, OWN = step("connectivity"), step("alltoall"), step("own")
SENDRECV, TRAIN = step("sendrecv", "pairs", number=40), step("train", number=50)
LATER = replace(ALL, id="40")
TOOL = replace(
    step("t", "each", params={}),
    tool=Tool(name="t", command=("t",), timeout=1.0, cause=Cause.WRONG_RESULT),
)
BOTH = step("collectives", checks=("all-reduce", "all-gather"))
SMALL = replace(PAIRS, id="30-small", params={**COLLECTIVE, "max": "1M"})
OPTIONAL, MAYBE = replace(INVENTORY, optional=True), replace(ALL, optional=True)
ONE_GPU, UNRATED = replace(GPU, gpus=1, ranks=1), replace(GPU, speed_promised=False)
FAST: dict[str, Any] = {"fail_fast": True}

USER = replace(FLOOR, kind=BoundKind.EXPECTATION, source="--expect")
LARGER, LOW = replace(USER, size=8 << 30), replace(USER, lower=9)
LOW_AT_TOP, AT_TOP = replace(LOW, size=TOP), replace(FLOOR, size=TOP)
GEMM = replace(USER, check="gemm", metric="bf16")
TIERS = replace(FLOOR, expected=340)
UPPER, BOUNDED = replace(USER, lower=None, upper=400.0), replace(FLOOR, upper=400.0)

GOOD = table("all-reduce", 10)
TABLES = (*GOOD, *table("all-gather", 10))
WRONG_FIRST = (*table("all-reduce", 10, wrong=3), *table("all-gather", 10))
UNCHECKED = [m for m in GOOD if m.name != "wrong"]
ROUNDED = [replace(m, size=TOP - 64) if m.size == TOP else m for m in GOOD]
ALONE = [record(EACH, [h], *table("all-reduce", 0), ranks=1, number=n) for n, h in enumerate(EIGHT)]
ON_ONE = [record(ALL, ["h0"], *table("all-reduce", 0), ranks=1)]
TWO_RANKS = Fact(name="nccl-tests", check="all-reduce", value={"ranks": 2})
RANK = Fact(name="rank", check="connectivity", host="h0", rank=0, value={"gpu": "GPU-1"})
LACKS, FULL = problem(Cause.TOOL_MISSING), problem(Cause.DISK_FULL, "h2")
DIED, HUNG = problem(Cause.HOST_DIED, "h3", check="hosts"), problem(Cause.RANK_HUNG, "h5", rank=10)
CRASH, LATE, CRASHED = (
    problem(Cause.CRASHED),
    problem(Cause.TIMED_OUT, "h3"),
    problem(Cause.CRASHED, "h0"),
)
ENDED = problem(Cause.INCOMPLETE_LOG, check="all-reduce")
ELSEWHERE = problem(Cause.WRONG_DATA, "h2", check="elsewhere")
UNLISTED = [failed(LACKS, of=OPTIONAL, names=[h], status=0, number=n) for n, h in enumerate(EIGHT)]
ONE_SLOW = [replace(r, metrics=table("all-reduce", 3)) for r in healthy(PAIRS)[4:5]]
LOST = [
    replace(r, exit=None, metrics=(), problems=(DIED,)) if "h3" in r.hosts else r
    for r in healthy(PAIRS)
    if r.wave == 0 or "h3" not in r.hosts
]
AGAIN = [failed(DIED), *(replace(r, wave=1) for r in healthy(ALL, names=REST))]
LEFT = Skipped(check="train", reason="no room", cause=Cause.OVER_BUDGET)
NO_GEMM, MAYBE_GEMM = replace(LEFT, check="gemm"), replace(LEFT, check="gemm", optional=True)
UNASKED = replace(LEFT, reason="--skip", cause=Cause.DESELECTED, optional=True)
DIRECT: dict[str, Any] = {"transport": "gIB", "gpu_direct": True, "peer_to_peer": True}
ALIASES: dict[str, Any] = {"transport": "FasTrak", "transport_aliases": ("uninitialized_shim",)}
SOCKETS = Fact(name="nccl-networks", value={"Socket": [*EIGHT]})
MIXED = {"nccl-networks": {"gIB": ["h0"], "Socket": ["h1"]}}
PODS = {"h0": "pod-0.svc", "h1": "pod-1.svc", "h2": "pod-2"}
SAME = {"h0": "localhost", "h1": "localhost"}
DRILL = (Injection(fault="slow", host="h1", rank=0),)

#: Those of `tests/golden/runs.py`, whose full verdicts are stored, are not repeated.
CASES: Cases = {
    "pass": {
        "everything is good": lambda: run(ALL, PAIRS),
        "above the expected value": lambda: gpu_run(341, TIERS),
        "an expectation below a floor": lambda: gpu_run(250, TIERS, replace(USER, lower=200)),
        "an expectation instead of a floor": lambda: gpu_run(360, replace(FLOOR, lower=399), USER),
        "one GPU": lambda: one_gpu(*table("all-reduce", 0)),
        "small sizes below the bound": lambda: run(ALL, references=(replace(FLOOR, lower=9.5),)),
        "a size rounded down": lambda: run(
            ALL, made=[record(ALL, EIGHT, *ROUNDED)], references=(LOW_AT_TOP,)
        ),
        "alltoall is not checked in place": lambda: run(
            A2A, made=[record(A2A, EIGHT, *table("alltoall", 10))]
        ),
        "the promised network": lambda: by_ways("", transport="gIB"),
        "an alias of it": lambda: by_ways("", network="uninitialized_shim_v7", **ALIASES),
        "no NVLS on older switches": lambda: by_ways("NVLS off", "h1", **DIRECT),
        "the network between hosts": lambda: by_ways("NET", "h0", "h1", **DIRECT),
        "shared memory that is allowed": lambda: by_ways("SHM", "h1", transport="gIB"),
        "host memory that is allowed": lambda: by_ways("NET/gIB", "h1", transport="gIB"),
        "no P2P that is allowed": lambda: by_ways("P2P off", "h1", transport="gIB"),
        "ranks as listed": lambda: listing(None, h0=2, h1=2),
        "ranks on hosts with a domain": lambda: listing({}, **{"h0.rack": 2, "H1": 2}),
        "ranks by hostnames": lambda: listing(PODS, **{"pod-0": 2, "pod-1": 2}),
        "ranks by unknown names": lambda: listing(None, **{"pod-0": 2, "pod-1": 2}),
        "ranks by one name": lambda: listing(SAME, localhost=4),
        "ranks by one unknown name": lambda: listing(None, localhost=4),
        "an answer of each rank": lambda: answers((0, "h0"), (1, "h0"), (2, "h1"), (3, "h1")),
        "a GPU seen by a rank": lambda: run(
            SCRIPT, made=[record(SCRIPT, EIGHT, facts=(RANK,))], machine=UNRATED
        ),
        "no pairs of one host": lambda: run(ALL, PAIRS, names=["h0"]),
        "no other check of pairs of one host": lambda: run(
            ALL, SENDRECV, made=healthy(ALL, names=["h0"]), names=["h0"]
        ),
        "a kind of groups left out": lambda: run(
            ALL, skipped=(Skipped(check="all-reduce", reason="one", optional=True),)
        ),
        "a drill": lambda: run(ALL, injected=DRILL),
        "two hosts without a bound": lambda: run(PAIRS, names=TWO),
    },
    "pass: over-budget": {
        "no room for an optional check": lambda: run(
            ALL, references=(GEMM,), skipped=(MAYBE_GEMM,)
        ),
    },
    "pass: deselected": {"left out by the user": lambda: run(ALL, skipped=(UNASKED,))},
    "pass: tool-missing": {
        "no tool of an optional check": lambda: run(
            ALL,
            replace(TRAIN, optional=True),
            made=[*healthy(ALL), failed(LACKS, of=TRAIN, status=1)],
        ),
    },
    "inconclusive: below-expected": {"between both bounds": lambda: gpu_run(301, TIERS)},
    "inconclusive: no-reference": {
        "no bound": lambda: gpu_run(360),
        "one for one node": lambda: gpu_run(
            360, replace(FLOOR, max_nodes=1), steps=(replace(EACH, id="15"), ALL)
        ),
        "one for two": lambda: gpu_run(360, replace(FLOOR, min_nodes=2, max_nodes=2)),
        "one for a rail": lambda: gpu_run(360, replace(FLOOR, per_rail=True)),
        "one for a profile": lambda: gpu_run(360, replace(FLOOR, profile="other")),
        "one for another device": lambda: gpu_run(360, replace(FLOOR, device="H200")),
        "hosts with one GPU each": lambda: run(EACH, made=ALONE, machine=ONE_GPU),
    },
    "inconclusive: no-measurement, no-reference": {
        "one GPU with an expectation": lambda: run(
            ALL, made=ON_ONE, names=["h0"], machine=ONE_GPU, references=(USER,)
        ),
    },
    "inconclusive: no-measurement": {
        "an unknown network": lambda: gpu_run(360, FLOOR, transport="gIB"),
        "no such size": lambda: run(ALL, references=(LARGER,)),
        "only one of two sizes": lambda: run(ALL, references=(LARGER, LOW_AT_TOP)),
        "a check that did not run": lambda: run(ALL, references=(GEMM,)),
    },
    "inconclusive: unproven": {
        "smaller sizes than the bound": slower_small,
        "one slow pair": lambda: run(
            PAIRS, made=[*healthy(PAIRS)[:4], *ONE_SLOW, *healthy(PAIRS)[5:]]
        ),
    },
    "inconclusive: gpu-missing": {
        "no inventory": lambda: run(
            ALL, made=healthy(ALL, usual=360), machine=GPU, references=(FLOOR,)
        ),
        "a script": lambda: run(SCRIPT, made=[record(SCRIPT, EIGHT)], machine=UNRATED),
        "a collective": lambda: run(ALL, machine=UNRATED),
        "logs of others": lambda: run(ALL, machine=UNRATED, origin="8 logs"),
    },
    "inconclusive: gpu-missing, tool-missing": {
        "no tool of an optional inventory": lambda: run(
            OPTIONAL, SCRIPT, made=[*UNLISTED, record(SCRIPT, EIGHT)], machine=UNRATED
        ),
    },
    "not-tested": {
        "only pairs of one host": lambda: run(PAIRS, made=(), names=["h0"]),
        "an interruption": lambda: run(ALL, PAIRS, made=healthy(ALL), interruption="cancelled"),
    },
    "not-tested: over-budget": {
        "no room for a check": lambda: run(ALL, references=(GEMM,), skipped=(NO_GEMM,)),
    },
    "not-tested: tool-missing": {
        "no tool": lambda: run(ALL, TRAIN, made=[*healthy(ALL), failed(LACKS, of=TRAIN, status=1)]),
        "an unknown check": lambda: run(ALL, OWN, made=[*healthy(ALL), record(OWN, EIGHT)]),
    },
    "not-tested: evidence-missing": {
        "no record of the hosts": lambda: judged(plan(ALL), *healthy(ALL)),
        "one of pairs": lambda: run(PAIRS, made=healthy(PAIRS)[:-1]),
        "one of single hosts": lambda: run(EACH, made=healthy(EACH)[:-1]),
        "one of a ladder": lambda: run(LADDER, made=healthy(LADDER)[:-1]),
        "one of halves": lambda: run(HALVES, made=healthy(HALVES)[:-1]),
        "fail-fast after a pass": lambda: run(ALL, EACH, PAIRS, made=healthy(ALL), **FAST),
        "fail-fast without records": lambda: run(ALL, EACH, PAIRS, made=(), **FAST),
    },
    "fail: evidence-missing, slow-outlier, node h3 slow-outlier": {
        "fail-fast after a slow host": lambda: run(
            ALL, EACH, PAIRS, made=[*healthy(ALL), *healthy(EACH, bad=["h3"])], **FAST
        ),
    },
    "fail: below-reference": {
        "a little": lambda: gpu_run(299, TIERS),
        "an expectation": lambda: gpu_run(360, FLOOR, replace(USER, lower=370)),
        "two hosts": lambda: gpu_run(100, FLOOR, steps=[PAIRS], names=TWO),
    },
    "fail: no-reference, wrong-data": {
        "one GPU": lambda: one_gpu(*table("all-reduce", 0, wrong=1)),
    },
    "fail: no-measurement, no-reference": {"one GPU without values": one_gpu},
    "fail: wrong-data": {
        "everybody": lambda: run(ALL, made=wrong(ALL, "h2", exit=7)),
        "some blocks of a ladder": lambda: run(LADDER, made=wrong(LADDER, "h0", "h2", "h4")),
        "the end of a launch": lambda: run(
            BOTH, made=[record(BOTH, EIGHT, *WRONG_FIRST, status=1)]
        ),
        "an optional check": lambda: run(MAYBE, made=wrong(MAYBE, "h2")),
        "before an interruption": lambda: run(
            ALL, PAIRS, made=wrong(ALL, "h2"), interruption="cancelled"
        ),
    },
    "fail: deselected, wrong-data": {
        "fail-fast": lambda: run(ALL, EACH, PAIRS, made=wrong(ALL, "h2"), **FAST),
    },
    "fail: wrong-data, node h2 wrong-data": {
        "a rank that is named": lambda: run(
            ALL, made=wrong(ALL, "h2", problems=(problem(Cause.WRONG_DATA, "h2", rank=4),))
        ),
        "of a check that was not planned": lambda: run(
            ALL, made=[record(ALL, EIGHT, *GOOD, problems=(ELSEWHERE,))]
        ),
    },
    "degraded: wrong-data, node h2 wrong-data": {
        "ranks that end": lambda: run(PAIRS, made=wrong(PAIRS, "h2", exit=1, problems=(CRASH,))),
    },
    "inconclusive: results-unchecked": {
        "not checked": lambda: run(ALL, made=[record(ALL, EIGHT, *UNCHECKED)]),
    },
    "fail: no-measurement": {
        "nothing measured": lambda: run(ALL, made=[record(ALL, EIGHT)]),
    },
    "fail: top-size-missing": {
        "small sizes only": lambda: run(
            ALL, made=[record(ALL, EIGHT, *table("all-reduce", 10, top=TOP // 2))]
        ),
    },
    "fail: incomplete-log": {
        "no end": lambda: run(ALL, made=[failed(ENDED, tables=GOOD, status=0)]),
    },
    "fail: rank-count": {
        "no ranks": lambda: run(ALL, made=[record(ALL, EIGHT, *GOOD, ranks=0)]),
        "one rank less": lambda: run(ALL, made=[record(ALL, EIGHT, *GOOD, ranks=15)]),
        "one rank more": lambda: run(ALL, made=[record(ALL, EIGHT, *GOOD, ranks=17)]),
        "fewer ranks in a table": lambda: run(
            ALL, made=[record(ALL, EIGHT, *GOOD, facts=(TWO_RANKS,))]
        ),
        "all on the first host": lambda: listing({}, h0=4),
        "all on the first host, no names": lambda: listing(None, h0=4),
        "too many on one": lambda: listing(None, h0=3, h1=1),
        "too many on an unknown one": lambda: listing(None, **{"pod-0": 3, "pod-1": 1}),
        "on another host": lambda: listing(None, h0=2, h2=2),
        "outside of the run": lambda: listing({}, h0=2, x9=2),
        "on more hosts": lambda: listing(None, **{"pod-0": 2, "pod-1": 1, "pod-2": 1}),
        "answers of one host": lambda: answers(*((rank, "h0") for rank in range(4))),
        "answers of one rank": lambda: answers(*[(0, "h0")] * 4),
        "no answers": answers,
    },
    "fail: rank-count, node h1 rank-count": {
        "three answers of four": lambda: answers((0, "h0"), (1, "h0"), (2, "h1")),
    },
    "fail: transport-fallback": {
        "all hosts of other people's logs": lambda: run(
            ALL,
            made=[record(ALL, EIGHT, *GOOD, facts=(SOCKETS,))],
            machine=replace(UNRATED, gpus=0, transport="gIB"),
            origin="8 logs",
        ),
        "no alias": lambda: by_ways("", network="Socket", **ALIASES),
    },
    "fail: transport-fallback, node h1 transport-fallback": {
        "another network": lambda: gpu_run(360, FLOOR, facts=MIXED, transport="gIB"),
        "host memory": lambda: by_ways("NET/gIB", "h1", **DIRECT),
        "shared memory": lambda: by_ways("SHM", "h1", **DIRECT),
        "no P2P": lambda: by_ways("P2P off", "h1", **DIRECT),
    },
    "fail: transport-fallback, node h0 transport-fallback": {
        "a network inside a host": lambda: by_ways("NET", "h0", of=EACH, peer_to_peer=True),
    },
    "fail: nvls-off, node h1 nvls-off": {
        "one host": lambda: by_ways("NVLS off", "h1", nvls=True),
    },
    "fail: nvls-off": {"all hosts": lambda: by_ways("NVLS off", *EIGHT, nvls=True)},
    "fail: key-refused, node h7 key-refused": {
        "never answered, and all are required": lambda: run(
            ALL,
            names=EIGHT[:7],
            first=[problem(Cause.KEY_REFUSED, "h7")],
            require_all_nodes=True,
        ),
    },
    "fail: unreachable-dns, node h1 unreachable-dns": {
        "one of two": lambda: run(ALL, names=["h0"], first=[problem(Cause.UNREACHABLE_DNS, "h1")]),
    },
    "fail: unreachable-dns, node h1 unreachable-dns, node h2 unreachable-dns": {
        "most of three": lambda: run(
            ALL, names=["h0"], first=[problem(Cause.UNREACHABLE_DNS, host) for host in THREE[1:]]
        ),
    },
    "degraded: crashed, host-died, node h3 host-died": {
        "the rest ran again": lambda: run(ALL, made=AGAIN),
    },
    "fail: crashed, host-died, node h3 host-died": {
        "the rest crashed": lambda: run(
            ALL, made=[failed(DIED), failed(names=REST, status=1, wave=1)]
        ),
    },
    "fail: crashed, host-died, rank-hung, node h3 host-died": {
        "others waited": lambda: run(
            ALL, LATER, made=[failed(DIED, HUNG, CRASHED), *healthy(LATER, names=REST)]
        ),
    },
    "degraded: crashed, host-died, unproven, node h3 host-died": {
        "between rounds of pairs": lambda: run(PAIRS, made=LOST),
    },
    "fail: rank-hung, timed-out, node h5 rank-hung": {
        "a rank": lambda: run(ALL, made=[failed(problem(Cause.TIMED_OUT), HUNG)]),
    },
    "fail: disk-full, node h2 disk-full": {
        "before the run": lambda: run(ALL, first=[FULL]),
        "later": lambda: run(ALL, made=[replace(hosts_record(EIGHT, FULL), wave=3), *healthy(ALL)]),
    },
    # Without peers, only what a tool looks for names a host.
    "fail: tool-failed": {"a tool on one host": lambda: of_tool(1, Cause.TOOL_FAILED)},
    "degraded: tool-failed, node h0 tool-failed": {
        "a tool on one host of three": lambda: of_tool(3, Cause.TOOL_FAILED),
    },
    "fail: wrong-result, node h0 wrong-result": {
        "what a tool looks for": lambda: of_tool(1, Cause.WRONG_RESULT),
    },
    "fail: crashed": {
        "before a check": lambda: run(BOTH, made=[record(BOTH, EIGHT, *GOOD, status=1)]),
        "after all": lambda: run(BOTH, made=[record(BOTH, EIGHT, *TABLES, status=1)]),
        "killed after all": lambda: run(BOTH, made=[failed(of=BOTH, tables=TABLES)]),
    },
    "fail: rank-hung, node h5 rank-hung": {
        "before a check": lambda: run(BOTH, made=[failed(HUNG, of=BOTH, tables=GOOD)]),
    },
    "fail: timed-out, node h3 timed-out": {
        "after all": lambda: run(BOTH, made=[failed(LATE, of=BOTH, tables=TABLES)]),
    },
    "degraded: below-reference, slow-outlier, node h1 slow-outlier": {
        "of three hosts": lambda: gpu_run(
            360, UPPER, AT_TOP, steps=[PAIRS], names=THREE, bad=["h1"]
        ),
        "with a bound at any size": lambda: run(PAIRS, names=THREE, bad=["h1"], references=(LOW,)),
        "with a bound at one size": lambda: run(
            PAIRS, names=THREE, bad=["h1"], references=(LOW_AT_TOP,)
        ),
    },
}


@by_outcome(CASES)
def test_a_run_of_a_few_records_has_its_verdict(expected: str, case: Callable[[], Verdict]) -> None:
    assert outcome(case()) == expected


# -- states and exits ------------------------------------------------------------------------------


@pytest.mark.parametrize("cause", [Cause.HOST_DIED, Cause.CRASHED, Cause.GPU_LOST])
def test_the_rest_is_good_only_if_each_host_ended_an_execution_of_each_step(cause: Cause) -> None:
    once = step("all-reduce", "pairs", rounds=1, number=30)
    twice = step("all-reduce", "pairs", rounds=2, number=40)
    bad = Problem(cause=cause, message="h3", host="h3")
    records = [r for of in (once, twice) for r in measured(of, EIGHT, slow())]
    own = [r for r in records if "h3" in r.hosts]
    some = (chosen for n in range(len(own)) for chosen in combinations(own, n + 1))
    for failed in some:
        ended = [r for r in records if r not in failed]
        crashed = [replace(r, exit=1, metrics=(), problems=(bad,)) for r in failed]
        verdict = judged(plan(once, twice), hosts_record(EIGHT), *ended, *crashed)
        measured_once = {h for r in ended if r.step == once.id for h in r.hosts}
        is_good = {*EIGHT} - {"h3"} <= measured_once
        assert verdict.state is (State.DEGRADED if is_good else State.FAIL)


def test_a_drill_is_never_accepted_and_an_interruption_is_shown() -> None:
    drill = run(ALL, injected=DRILL)
    assert (drill.accepted, drill.exit, drill.headline[:11]) == (False, 7, "drill: pass")
    ended = run(ALL, PAIRS, made=healthy(ALL), interruption="cancelled")
    assert (ended.exit, "cancelled" in ended.headline) == (5, True)
    both = run(ALL, PAIRS, made=wrong(ALL, "h2"), interruption="cancelled")
    assert both.exit == 3


def test_what_was_left_out_is_named_and_not_run() -> None:
    verdict = run(ALL, skipped=(UNASKED,))
    assert verdict.not_run == (UNASKED,)
    assert "not run: train" in verdict.headline
    rest = run(ALL, EACH, PAIRS, made=wrong(ALL, "h2"), **FAST)
    assert [(s.reason, s.step) for s in rest.not_run] == [
        ("--fail-fast", EACH.id),
        ("--fail-fast", PAIRS.id),
    ]
    alone = run(ALL, SENDRECV, made=healthy(ALL, names=["h0"]), names=["h0"])
    assert (alone.checks[2].state, alone.checks[2].optional) == (State.NOT_TESTED, True)
    own = one_gpu(*table("all-reduce", 0)).checks[-1]
    assert (own.state, own.optional) == (State.NOT_TESTED, True)


def test_the_nodes_of_a_run_that_some_did_not_finish() -> None:
    unexplained = [*wrong(ALL, "h2"), *healthy(PAIRS, bad=["h3"])]
    for verdict, good, bad, untested in (
        (run(ALL, names=["h0"], first=[problem(Cause.CRASHED, "h1")]), (), ("h1",), ("h0",)),
        (run(ALL, made=AGAIN), REST, ("h3",), ()),
        (run(ALL, made=[failed(DIED), failed(names=REST, wave=1)]), (), ("h3",), REST),
        (run(ALL, EACH, PAIRS, made=wrong(ALL, "h2"), **FAST), (), (), EIGHT),
        # Wrong data that no host explains.
        (run(ALL, PAIRS, made=unexplained), (), ("h3",), REST),
    ):
        assert node_lists(verdict) == NodeLists(good=good, bad=bad, untested=untested)


# -- bounds ----------------------------------------------------------------------------------------


def test_a_value_is_shown_with_its_bound_and_as_a_share_of_the_peak() -> None:
    verdict = gpu_run(360, replace(FLOOR, lower=100), FLOOR)
    _, held = (f for f in verdict.checks[2].findings if f.bound)
    assert held.value == 360
    assert held.peak_share == pytest.approx(0.9)
    assert held.bound == Bound(lower=300, kind=BoundKind.FLOOR, source=FLOOR.source)
    (shown,) = (one for one in verdict.ranges if one.check == "all-reduce")
    assert (shown.worst, shown.bound) == (360, held.bound)
    assert "--expect 'all-reduce@4M>=360'" in gpu_run(360).checks[2].findings[-1].message


@pytest.mark.parametrize(
    ("references", "expected"),
    [
        ((BOUNDED,), {(300.0, 400.0)}),
        ((USER, UPPER), {(300.0, None), (None, 400.0)}),
        # An expectation replaces only the side of a reference that it bounds.
        ((UPPER, FLOOR), {(None, 400.0), (300.0, None)}),
        ((UPPER, replace(BOUNDED, upper=9.0)), {(None, 400.0), (300.0, None)}),
        ((USER, replace(BOUNDED, lower=9999.0)), {(300.0, None), (None, 400.0)}),
    ],
)
def test_both_sides_of_a_bound_are_compared_and_shown(
    references: tuple[Reference, ...], expected: set[tuple[float | None, float | None]]
) -> None:
    checks = [gpu_run(busbw, *references).checks[2] for busbw in (299.0, 401.0, 350.0)]
    assert [check.state for check in checks] == [State.FAIL, State.FAIL, State.PASS]
    assert {(f.bound.lower, f.bound.upper) for f in checks[2].findings if f.bound} == expected
    assert all(side in checks[2].required for side in (">= 300", "<= 400"))


@pytest.mark.parametrize(("usual", "advised"), [(299, True), (301, True), (341, False)])
def test_a_slow_network_is_advised_the_faster_profile_that_was_not_used(
    usual: float, *, advised: bool
) -> None:
    for profile in ("quick-pairs", ""):
        lines = gpu_run(usual, TIERS, faster_profile=profile).advice
        shown = any("--nccl-profile quick-pairs" in line for line in lines)
        assert shown is (advised and bool(profile))


# -- results ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("elements", [0.2, 0.5])
def test_a_finding_on_wrong_data_counts_at_least_one_element(elements: float) -> None:
    """Programs may report the mean of several ranks or iterations."""
    verdict = run(ALL, made=wrong(ALL, "h2", elements=elements))
    (found,) = (f for f in verdict.checks[1].findings if f.cause is Cause.WRONG_DATA)
    assert found.message.startswith("1 ")


@pytest.mark.parametrize(
    ("of", "bad", "shown"),
    [
        (LADDER, ("h0", "h2", "h4"), Executions(bad=6, total=7)),
        (EACH, EIGHT, Executions(bad=8, total=8)),
        (ALL, EIGHT, Executions(bad=1, total=1, common_hosts=EIGHT)),
    ],
)
def test_wrong_data_that_follows_no_host_is_software(
    of: Step, bad: Sequence[str], shown: Executions
) -> None:
    verdict = run(of, made=wrong(of, *bad))
    (found,) = (f for f in verdict.checks[1].findings if f.cause is Cause.WRONG_DATA)
    assert found.executions == shown
    assert ("software" in verdict.headline) is not bool(shown.common_hosts)
    assert verdict.headline.startswith(f"fail: wrong data in {shown.bad} of {shown.total} ")
    slower = run(ALL, PAIRS, made=[*wrong(ALL, "h2"), *healthy(PAIRS, bad=["h5"])])
    assert slower.headline.index("wrong data") < slower.headline.index("h5")


def test_a_failure_quotes_the_decisive_warning_of_nccl() -> None:
    late = problem(Cause.TIMED_OUT, message="did not end")
    for warnings, quoted in (
        (["h1: closed by h2", "h2: Got completion from peer, error 12"], "h2: Got completion"),
        (["h1: strange", "h3: Call to connect failed", "h1: timeout"], "h3: Call to connect"),
        (["h1: strange", "h1: stranger"], "h1: stranger"),
        ([], ""),
    ):
        fact = Fact(name="nccl-warnings", value=warnings)
        verdict = run(ALL, made=[failed(late, facts=(fact,))])
        (found,) = (f for c in verdict.checks for f in c.findings if f.cause is Cause.TIMED_OUT)
        assert found.message.startswith("did not end" + (quoted and f"; NCCL on {quoted}"))
        assert run(ALL, made=[replace(r, facts=(fact,)) for r in healthy(ALL)]).state is State.PASS


def test_problems_of_one_cause_outside_of_checks_are_one_finding() -> None:
    verdict = run(ALL, first=[problem(Cause.DISK_FULL, host) for host in EIGHT])
    (found,) = (f for f in verdict.checks[0].findings if f.cause is Cause.DISK_FULL)
    assert (found.message, found.hosts) == ("h0 (and 7 more problems)", EIGHT)


def test_a_step_of_a_shared_launch_is_judged_by_what_it_measured_itself() -> None:
    for made in (
        record(BOTH, EIGHT, *GOOD, status=1),
        failed(HUNG, of=BOTH, tables=GOOD),
        record(BOTH, EIGHT, *TABLES, status=1),
        failed(LATE, of=BOTH, tables=TABLES),
    ):
        states = {check.check: check.state for check in run(BOTH, made=[made]).checks}
        assert (states["all-reduce"], states["all-gather"]) == (State.PASS, State.FAIL)


# -- scaling ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("speeds", "shown"),
    [
        ({4: 9.0, 8: 5.0}, [(2, 1.0), (4, 0.9), (8, 0.5)]),
        # Failed groups have no efficiency; without the smallest, the next ones are the base.
        ({4: None}, [(2, 1.0), (8, 1.0)]),
        ({2: None, 8: 5.0}, [(4, 1.0), (8, 0.5)]),
        ({2: None, 4: None}, []),
    ],
)
def test_a_ladder_shows_the_efficiency_at_each_number_of_hosts(
    speeds: dict[int, float | None], shown: list[tuple[int, float]]
) -> None:
    made = measured(LADDER, EIGHT, lambda group: speeds.get(len(group.hosts), 10.0))
    verdict = run(LADDER, made=made)
    assert [(p.nodes, p.efficiency) for one in verdict.scaling for p in one.points] == shown


# -- advice ----------------------------------------------------------------------------------------


def low(check: str, *names: str) -> CheckVerdict:
    found = Finding(
        check=check,
        judgement=Judgement.ABSOLUTE,
        state=State.FAIL,
        cause=Cause.BELOW_REFERENCE,
        message="5 < 9",
        hosts=names,
    )
    return CheckVerdict(check=check, state=State.FAIL, findings=(found,))


def test_a_value_below_its_bound_has_the_advice_of_the_check_that_shows_it() -> None:
    row = Cause.BELOW_REFERENCE.row
    checks = tuple(map(low, ("gemm", "nic-loop", "all-reduce", "alltoall")))
    verdict = replace(run(ALL), state=State.FAIL, checks=checks)
    # Collectives have one advice in common.
    expected = [row.action_of_check[name] for name in ("gemm", "nic-loop", "all-reduce")]
    assert [line.partition("; ")[2] for line in advice(verdict)] == expected
    gpu = Suspect(
        kind=SuspectKind.GPU,
        hosts=("h1",),
        device="0",
        cause=Cause.BELOW_REFERENCE,
        strength=Strength.STRONG,
        why="5 < 9",
    )
    assert action(gpu, (low("gemm", "h0"), low("memory", "h1"))) == row.action_of_check["memory"]
    assert action(gpu, ()) == row.action
