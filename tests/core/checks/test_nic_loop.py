"""nic-loop: the outputs that are read, which NIC is named, and what counts as not tested."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.factories import nccl_logs, perftest, verdicts
from tests.factories.judging import accused, evidence

from accept import config
from accept.config.floors import bounds
from accept.config.machine import Machine
from accept.core.causes import Cause
from accept.core.checks import REGISTRY, parse_log
from accept.core.judge.evidence import Judged
from accept.core.plan import Reference, Step
from accept.core.records import Fact
from accept.core.verdict import State
from accept.plan.resolve import Options, resolve

NICS = 8
#: Optional, as in the suites.
STEP: Step = verdicts.step("nic-loop", "each", params={}, optional=True)
COLLECTIVE: Step = verdicts.step()
#: The loop of a NIC -> Gbit/s or a recorded failure.
Loops = Mapping[str, float | str]


def log(
    host: str,
    nics: Mapping[str, Loops],
    *,
    near: bool = True,
    device: str = "",
    left_out: str = "nics",
) -> str:
    """Return the log of a host, as the program prints it.

    `device`: the error with which NICs cannot be opened; `left_out`: why a host without any has no
    loop.
    """
    lines = []
    for nic, loops in nics.items():
        for loop, rate in loops.items():
            failed = isinstance(rate, str)
            text = by_nccl(nic, rate) if loop == "nccl" else written(nic, rate)
            lines += [f"nic-loop {nic} {loop}| {line}" for line in text.splitlines()]
            value = {"nic": nic, "loop": loop, "exit": int(failed), "near": near, "gbps": 400}
            value |= {"device": device} if failed else {}
            fact = {"fact": "nic-loop", "value": value, "check": "nic-loop", "host": host}
            lines.append(f"ACCEPT {json.dumps(fact)}")
    if not nics:
        fact = {"fact": "left-out", "value": {left_out: "no active port"}, "check": "nic-loop"}
        lines.append(f"ACCEPT {json.dumps(fact)}")
    return "\n".join(lines)


def written(nic: str, rate: float | str) -> str:
    return perftest.recorded(rate) if isinstance(rate, str) else perftest.printed(nic, rate)


def by_nccl(nic: str, rate: float | str) -> str:
    """Return what a loop by NCCL prints; both GPUs together send `rate` Gbit/s."""
    if isinstance(rate, str):
        return f"h:1:1 [0] NCCL WARN {rate}"
    network = f"h:1:1 [0] NCCL INFO NET/IB : Using [0]{nic}:1/IB [RO]; OOB eth0:10.0.0.1<0>"
    channel = "h:1:1 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[0] [send] via NET/IB/0/GDRDMA"
    table = nccl_logs.table("all_gather", ["h"], [0, 1], rate / 16, sizes=(256 << 20,))
    return "\n".join((network, channel, table))


@lru_cache
def machine_of(name: str) -> tuple[Machine, tuple[Reference, ...]]:
    """Return a machine and its bounds."""
    machine = config.load_machine(name).value
    return machine, bounds(machine)


def judged(
    logs: Mapping[str, str], machine: str = "h100-8", network: str = "", status: int = 0
) -> Judged:
    """Judge the logs of hosts; a collective that used `network` ended with `status`."""
    loaded, references = machine_of(machine)
    records = []
    for number, (host, text) in enumerate(logs.items()):
        parsed = parse_log(("nic-loop",), [text.encode()], (host,))
        records.append(
            verdicts.record(
                STEP,
                (host,),
                *parsed.metrics,
                number=number,
                ranks=loaded.planned().gpus,
                facts=parsed.facts,
                problems=parsed.problems,
            )
        )
    networks = (Fact(name="nccl-networks", value={network: list(logs)}),)
    collective = verdicts.record(COLLECTIVE, tuple(logs), status=status, facts=networks)
    own = {COLLECTIVE.id: [collective]}
    of = evidence(STEP, records, logs, loaded.planned(), references, step_records=own)
    return REGISTRY["nic-loop"].judge(of)


def cluster(
    seed: int,
    loop: str = "ib-write-gpu",
    hosts: int = 4,
    change: Callable[[str, str], Loops | None] = lambda _host, _nic: None,
    *,
    near: bool = True,
    device: str = "",
) -> dict[str, str]:
    """Return the logs of hosts with 2 % of noise; `change` replaces the loops of a NIC."""
    draw = random.Random(seed)
    logs = {}
    for host in verdicts.hosts(hosts):
        nics = {f"mlx5_{n}": {loop: 385 * draw.gauss(1, 0.02)} for n in range(NICS)}
        changed = {nic: change(host, nic) or loops for nic, loops in nics.items()}
        logs[host] = log(host, changed, near=near, device=device)
    return logs


seeds = st.integers(0, 10**6)
loops = st.sampled_from(["ib-write-gpu", "ib-write-host", "nccl"])
#: What works on a NIC whose loop with GPU memory fails.
memories = st.sampled_from([{}, {"ib-write-host": 380.0}])


# -- outputs -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("output", "rate"),
    [("gpu", 140.40 / 8), ("duration", 42.31 / 8), ("no-mr", None)],
)
def test_recorded_outputs_of_ib_write_bw_are_read(output: str, rate: float | None) -> None:
    text = log("h1", {"mlx5_0": {"ib-write-gpu": output}}).replace('"exit": 1', '"exit": 0')
    found = parse_log(("nic-loop",), [text.encode()], ("h1",)).metrics
    values = [metric.value for metric in found if metric.name == "ib-write-gpu"]
    assert values == ([] if rate is None else [pytest.approx(rate)])


def test_nothing_counts_if_the_tool_failed_after_it_printed_a_result() -> None:
    text = log("h1", {"mlx5_0": {"ib-write-gpu": 390.0}}).replace('"exit": 0', '"exit": 1')
    assert parse_log(("nic-loop",), [text.encode()], ("h1",)).metrics == ()


def test_a_loop_by_nccl_counts_both_directions_through_this_nic_only() -> None:
    text = log("h1", {"mlx5_0": {"nccl": 384.0}})
    (metric,) = parse_log(("nic-loop",), [text.encode()], ("h1",)).metrics
    assert metric.nic == "mlx5_0"
    assert metric.value == pytest.approx(48.0)
    other = text.replace("[0]mlx5_0:1", "[0]mlx5_7:1")
    for wrong in (other, text.replace("NET/IB/0/GDRDMA", "SHM/direct/direct")):
        assert parse_log(("nic-loop",), [wrong.encode()], ("h1",)).metrics == ()


def test_wrong_data_in_a_loop_by_nccl_names_the_nic() -> None:
    logs = cluster(1, "nccl")
    logs["h2"] = re.sub(r"(mlx5_3 nccl\|  +268435456 .*) 0$", r"\1 9", logs["h2"], flags=re.M)
    found = judged(logs)
    assert found.verdict.state is State.FAIL
    assert [f.cause for f in found.verdict.findings if f.state is State.FAIL] == [Cause.WRONG_DATA]
    assert "mlx5_3 of h2" in found.verdict.findings[0].message


@given(st.binary(max_size=300), st.sampled_from(["ib-write-gpu", "nccl"]))
def test_any_output_is_read_without_an_error(noise: bytes, loop: str) -> None:
    text = b"\n".join(b"nic-loop mlx5_0 %s| " % loop.encode() + line for line in noise.split(b"\n"))
    fact = log("h1", {"mlx5_0": {loop: 1.0}}).splitlines()[-1].encode()
    found = parse_log(("nic-loop",), [text + b"\n" + fact], ("h1",))
    assert all(metric.value > 0 for metric in found.metrics)


# -- which NIC is named --------------------------------------------------------------------------


@given(seeds, loops)
def test_healthy_nics_accuse_nobody(seed: int, loop: str) -> None:
    found = judged(cluster(seed, loop))
    assert (found.verdict.state, found.suspects) == (State.PASS, ())


@given(seeds, loops, st.floats(5, 150))
def test_a_nic_that_is_slow_by_itself_is_named(seed: int, loop: str, rate: float) -> None:
    logs = cluster(
        seed, loop, change=lambda h, n: {loop: rate} if (h, n) == ("h1", "mlx5_3") else None
    )
    found = judged(logs)
    assert list(accused(found)) == ["h1:mlx5_3"]
    assert "at least" in found.suspects[0].why
    assert found.verdict.state is State.FAIL


@given(seeds, loops, st.integers(1, 4), memories)
def test_a_broken_nic_is_named(seed: int, loop: str, hosts: int, memory: Loops) -> None:
    broken = {**memory, loop: "no-mr"} if loop == "ib-write-gpu" else {loop: "no-mr"}
    logs = cluster(seed, loop, hosts, lambda h, n: broken if (h, n) == ("h0", "mlx5_3") else None)
    found = judged(logs)
    assert accused(found) == {"h0:mlx5_3": "nic-loop-failed"}
    assert State.INCONCLUSIVE not in {finding.state for finding in found.verdict.findings}


@given(seeds, st.integers(3, 6), memories)
def test_a_host_whose_nics_all_fail_is_named_once(seed: int, hosts: int, memory: Loops) -> None:
    broken: Loops = {"ib-write-gpu": "no-mr", **memory}
    found = judged(cluster(seed, hosts=hosts, change=lambda h, _: broken if h == "h1" else None))
    assert accused(found) == {"h1": "nic-loop-failed"}
    assert ("host memory works" in found.suspects[0].why) is bool(memory)


NIC = "mlx5_3"
BAD = ("h1", NIC)
NO_MR: Loops = {"ib-write-gpu": "no-mr"}
#: The loop with GPU memory fails, and that with memory of the host works.
MEMORY: Loops = {**NO_MR, "ib-write-host": 380.0}
Change = Callable[[str, str], Loops | None]


def everywhere(ways: Loops) -> Change:
    return lambda _host, _nic: ways


def only(ways: Loops, *at: str | tuple[str, str]) -> Change:
    """Return other loops of single NICs, or of all NICs of a host."""
    return lambda host, nic: ways if host in at or (host, nic) in at else None


def one_at(share: float) -> Change:
    return lambda h, n: {"ib-write-gpu": 385 * (share if (h, n) == BAD else 1)}


@pytest.mark.parametrize(
    ("hosts", "change", "machine", "state", "named"),
    [
        # 12 % below the same NIC of other hosts is the limit.
        (4, one_at(0.86), "h100-8", State.FAIL, {"h1:mlx5_3"}),
        (4, one_at(0.9), "h100-8", State.PASS, set()),
        # Below the bound, and on a single host below the other NICs.
        (2, only({"ib-write-gpu": 250.0}, BAD), "h100-8", State.FAIL, {"h1:mlx5_3"}),
        (1, only({"ib-write-gpu": 150.0}, ("h0", NIC)), "h100-8", State.FAIL, {"h0:mlx5_3"}),
        # All of them; a machine without NICs in its file has no such bound.
        (4, everywhere({"ib-write-gpu": 215.0}), "h100-8", State.FAIL, set()),
        (4, everywhere({"ib-write-gpu": 215.0}), "gpu", State.PASS, set()),
        (4, everywhere(MEMORY), "h100-8", State.INCONCLUSIVE, set()),
        (4, everywhere(MEMORY), "gpu", State.PASS, set()),
        (4, everywhere(NO_MR), "h100-8", State.NOT_TESTED, set()),
        # Broken on fewer than half of the hosts. A host without a working NIC shows nothing about
        # those of others.
        (8, only(NO_MR, BAD, ("h2", NIC)), "h100-8", State.FAIL, {"h1:mlx5_3", "h2:mlx5_3"}),
        (4, only(NO_MR, "h1", ("h0", NIC)), "h100-8", State.FAIL, {"h1", "h0:mlx5_3"}),
        (5, only(NO_MR, "h1", ("h0", NIC), ("h2", NIC)), "h100-8", State.FAIL, {"h1"}),
        # On half of the hosts, which share a reason.
        *(
            (4, only(ways, *at), machine, State.INCONCLUSIVE, set())
            for ways in (NO_MR, MEMORY)
            for machine in ("h100-8", "gpu")
            for at in (("h0", "h1"), (("h0", NIC), BAD), [(f"h{n}", NIC) for n in range(4)])
        ),
    ],
)
def test_slow_and_broken_nics_are_named_unless_most_share_the_fault(
    hosts: int, change: Change, machine: str, state: State, named: set[str]
) -> None:
    found = judged(cluster(1, hosts=hosts, change=change), machine)
    assert (found.verdict.state, {*accused(found)}) == (state, named)
    open_ones = [f for f in found.verdict.findings if f.state is State.INCONCLUSIVE]
    assert found.verdict.optional is not bool(open_ones)


def test_faster_ports_than_those_of_the_source_have_no_bound() -> None:
    names = [b.metric for b in machine_of("gb300-4")[1] if b.check == "nic-loop"]
    assert names == []


@given(seeds)
def test_nics_whose_gpu_is_distant_are_judged_by_memory_of_the_host(seed: int) -> None:
    draw = random.Random(seed)

    def distant(_host: str, _nic: str) -> Loops:
        return {
            "ib-write-gpu": draw.choice([140.0, 390.0]),
            "ib-write-host": 380 * draw.gauss(1, 0.02),
        }

    found = judged(cluster(seed, change=distant, near=False))
    assert (found.verdict.state, found.suspects) == (State.PASS, ())


# -- not tested ----------------------------------------------------------------------------------


def all_failed(output: str, device: str = "", hosts: int = 4) -> dict[str, str]:
    """Return the logs of hosts whose loops all fail."""
    ways = {"ib-write-gpu": "no-mr", "ib-write-host": output}
    return cluster(1, hosts=hosts, change=everywhere(ways), device=device)


def hung(loop: str) -> dict[str, str]:
    """Return the logs of hosts whose loops fail, some of them because they do not end."""
    logs = {h: t.replace("ib-write-host", loop) for h, t in all_failed("no-mr").items()}
    return {h: re.sub(rf'("{loop}", "exit": )1', r"\1null", t) for h, t in logs.items()}


#: What shows that a NIC or its port failed, and the error with which it cannot be opened.
BROKEN = [("no-data", ""), ("port-down", ""), ("not-opened", ""), ("no-mr", "EIO")]
BROKEN += [("no-mr", "ENODEV")]
#: What shows that the host, its container or the tool does not allow the loop.
NOT_POSSIBLE = [("no-mr", ""), ("no-data", "EACCES"), ("port-down", "ENOENT"), ("no-mr", "EPERM")]
DOWN = {"h1": log("h1", {}, left_out="ports-down")}


@pytest.mark.parametrize(
    ("logs", "options", "state"),
    [
        *((all_failed(*words, hosts), {"network": "Socket"}, State.INCONCLUSIVE)
          for words in BROKEN for hosts in (1, 4)),
        *((all_failed(*words, hosts), {}, State.NOT_TESTED)
          for words in NOT_POSSIBLE for hosts in (1, 4)),
        # A virtual machine may not allow data from a NIC that works to itself. A collective that
        # failed, or stayed in one host, shows nothing.
        (all_failed("no-data"), {"network": "IB"}, State.NOT_TESTED),
        (all_failed("no-data"), {"network": "IB", "status": 1}, State.INCONCLUSIVE),
        (all_failed("no-data", hosts=1), {"network": "IB"}, State.INCONCLUSIVE),
        # Writes that do not end; NCCL also waits for what has nothing to do with the NIC.
        (hung("ib-write-host"), {}, State.INCONCLUSIVE),
        (hung("nccl"), {}, State.NOT_TESTED),
        # Ports that should work and are all down; a host without NICs.
        (DOWN, {}, State.INCONCLUSIVE),
        (DOWN, {"machine": "gpu"}, State.NOT_TESTED),
        ({**cluster(1), **DOWN}, {}, State.INCONCLUSIVE),
        ({**cluster(1), **DOWN}, {"machine": "gpu"}, State.INCONCLUSIVE),
        ({**cluster(1), "h1": log("h1", {})}, {}, State.NOT_TESTED),
        # Loops of distant GPUs by NCCL depend on where the GPU is.
        (cluster(1, "nccl", near=False), {}, State.NOT_TESTED),
    ],
)  # fmt: skip
def test_what_no_loop_shows_is_excused_only_if_nothing_looks_broken(
    logs: dict[str, str], options: Any, state: State
) -> None:
    found = judged(logs, **options)
    assert (found.verdict.state, found.suspects) == (state, ())
    assert found.verdict.optional is (state is State.NOT_TESTED)
    causes = {f.cause for f in found.verdict.findings if f.state is state}
    assert causes == ({Cause.NIC_LOOP_FAILED} if state is State.INCONCLUSIVE else {None})


@pytest.mark.parametrize("machine", ["h100-8", "gpu", "g4-standard-48", "cpu"])
def test_machines_without_rdma_skip_the_check(machine: str) -> None:
    plan = resolve(Options(machine=machine, hosts=("a", "b"), suite="standard")).plan
    has_rdma = machine in ("h100-8", "gpu")
    assert any("nic-loop" in step.checks for step in plan.steps) is has_rdma
    skipped = [skip.optional for skip in plan.skipped if skip.check == "nic-loop"]
    assert skipped == ([] if has_rdma else [True])
