"""Measure the judging of large runs on one core: 4,096 nodes in pairs, and 10^6 values of GPUs.

The records of pairs come from two generated logs, with the hosts of each pair filled in. One node
is 6 % slow, and must be the only suspect. Of the GPUs, one is 10 % slow. Simulated
clusters with four collectives in each log follow.
"""

from __future__ import annotations

import json
import random
import resource
import subprocess
import sys
import time
from dataclasses import replace

from tests.factories.judging import judged
from tests.factories.simulated_runs import run_of
from tests.factories.simulated_worlds import BY_NAME

from accept.core import checks
from accept.core.checks import REGISTRY
from accept.core.groups import pair_rounds
from accept.core.judge import judge
from accept.core.plan import GroupKind, Plan, PlannedMachine, Step
from accept.core.records import Fact, Metric, Record
from benchmarks import Row
from benchmarks.nccl_text import table_text

NODES, ROUNDS, GPUS = 4096, 5, 8
_SECONDS, _MEGABYTES = 5.0, 500.0
_BAD = "node0007"
#: Nodes, rounds, and the most CPU seconds for the verdict on four collectives.
_FOUR = ((64, 8, 2.0), (1024, 8, 60.0))
_STEP = Step(
    id="10-all-reduce-pairs",
    checks=("all-reduce",),
    script="steps/10.sh",
    groups=GroupKind.PAIRS,
    params={"min": "512M", "max": "8G", "factor": 2, "iters": 20, "warmup": 5, "dtype": "float"},
    rounds=ROUNDS,
)


def plan() -> Plan:
    """Return a plan with pairs only, on a GPU machine."""
    machine = PlannedMachine(name="big", gpus=GPUS, ranks=GPUS, noise=0.01)
    return Plan(
        schema=1,
        version="0",
        hash="0" * 16,
        machine=machine,
        suite="pairs",
        nodes=NODES,
        steps=(_STEP,),
    )


def records() -> list[Record]:
    """Return the hosts record, and one record for each pair of each round."""
    parsed = {}
    for speed in (400.0, 376.0):
        text = table_text(ranks=2 * GPUS, least=512 << 20, most=8 << 30, speed=speed)
        parsed[speed] = checks.parse_log(("all-reduce",), text.encode().splitlines(keepends=True))
    nodes = tuple(f"node{i:04d}" for i in range(NODES))
    # With this fact, which reports no other host names, all names are compared.
    hostnames = (Fact(name="hostnames", check="hosts", value={}),)
    first = Record(
        step="00-hosts", checks=("hosts",), wave=0, group=0, hosts=nodes, exit=0, facts=hostnames
    )
    result = [first]
    chance = random.Random(1)
    for wave, groups in enumerate(pair_rounds(nodes, rounds=ROUNDS, seed=1)):
        for number, group in enumerate(groups):
            log = parsed[376.0 if _BAD in group.hosts else 400.0]
            noise = 1 + chance.gauss(0, 0.01)
            result.append(
                Record(
                    step=_STEP.id,
                    checks=_STEP.checks,
                    wave=wave,
                    group=number,
                    hosts=group.hosts,
                    ranks=2 * GPUS,
                    exit=0,
                    log=f"logs/{_STEP.id}/{wave}-{number}.log",
                    metrics=tuple(
                        replace(m, value=m.value * noise) if m.name == "busbw" else replace(m)
                        for m in log.metrics
                    ),
                    facts=tuple(_of_hosts(fact, group.hosts) for fact in log.facts),
                    problems=log.problems,
                )
            )
    return result


def _of_hosts(fact: Fact, hosts: tuple[str, ...]) -> Fact:
    """Return the fact; that of nccl-tests with the hosts of a pair."""
    if fact.name != "nccl-tests" or not isinstance(fact.value, dict):
        return fact
    return replace(fact, value={**fact.value, "hosts": dict.fromkeys(hosts, GPUS)})


def gpu_records(step: Step) -> list[Record]:
    """Return 18 values of each GPU of 7,000 nodes: 1,008,000 in total."""
    kinds = ("bf16", "fp8", "tf32")
    tails = ("", "-p5", "-least", "-most", "-alone", "-wrong")
    nodes = tuple(f"node{i:04d}" for i in range(7000))
    result = [
        Record(step="00-hosts", checks=("hosts",), wave=0, group=0, hosts=nodes, exit=0, ranks=1)
    ]
    chance = random.Random(2)
    for number, node in enumerate(nodes):
        metrics = tuple(
            Metric(
                check="gemm",
                name=f"{kind}{tail}",
                value=0.0 if tail == "-wrong" else speed * chance.gauss(1, 0.005),
                unit="count" if tail == "-wrong" else "TFLOP/s",
                host=node,
                rank=rank,
                gpu=str(rank),
            )
            for rank in range(GPUS)
            for speed in (630.0 if (node, rank) == (_BAD, 3) else 700.0,)
            for kind in kinds
            for tail in tails
        )
        own = Record(
            step=step.id,
            checks=step.checks,
            wave=0,
            group=number,
            hosts=(node,),
            ranks=GPUS,
            exit=0,
            log=f"logs/{step.id}/{number}.log",
            metrics=metrics,
        )
        result.append(own)
    return result


def measured(case: str) -> dict[str, float]:
    """Return the seconds of CPU of judging, and the peak memory of this process in MB."""
    judged_plan, all_records, bad = plan(), records() if case == "pairs" else [], _BAD
    if case == "gpus":
        step = replace(_STEP, id="20-gemm", checks=("gemm",), groups=GroupKind.EACH, params={})
        judged_plan, all_records = replace(judged_plan, steps=(step,)), gpu_records(step)
        bad = f"{_BAD}:3"
    began = time.process_time()
    verdict = judge(judged_plan, all_records, checks=REGISTRY, attempt="benchmark")
    seconds = time.process_time() - began
    if [suspect.name for suspect in verdict.suspects] != [bad]:
        raise RuntimeError(f"the suspects are {verdict.suspects[:3]}")
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3
    return {"seconds": seconds, "megabytes": peak}


def _four(count: int, rounds: int, most: float) -> Row:
    """Return the CPU time of the verdict on a simulated cluster with one slow node."""
    run = run_of(BY_NAME["four-node"].cluster(count, rounds, 1), rounds)
    began = time.process_time()
    judged(run.plan, *run.records)
    seconds = time.process_time() - began
    metrics = sum(len(record.metrics) for record in run.records)
    return Row(
        what=f"judging {count:,} nodes x {rounds} rounds x 4 collectives, {metrics:,} metrics",
        measured=f"{seconds:.1f} s of CPU",
        bar=f"{most:.0f} s",
        met=seconds <= most,
    )


def rows() -> list[Row]:
    """Measure each case in a separate process, for its peak memory."""
    pairs = f"judging {NODES:,} nodes x {ROUNDS} rounds x {GPUS} GPUs"
    cases = (
        ("pairs", pairs, _SECONDS, _MEGABYTES),
        ("gpus", "judging 1,008,000 values of GPUs", 30.0, 800.0),
    )
    found = []
    for case, what, seconds, megabytes in cases:
        command = [sys.executable, "-m", "benchmarks.judging", case]
        done = subprocess.run(command, check=True, capture_output=True, text=True)
        result = json.loads(done.stdout)
        found += [
            Row(
                what=what,
                measured=f"{result['seconds']:.1f} s",
                bar=f"{seconds:.0f} s",
                met=result["seconds"] <= seconds,
            ),
            Row(
                what="… memory, records included",
                measured=f"{result['megabytes']:.0f} MB",
                bar=f"{megabytes:.0f} MB",
                met=result["megabytes"] <= megabytes,
            ),
        ]
    return [*found, *(_four(*one) for one in _FOUR)]


if __name__ == "__main__":
    print(json.dumps(measured(sys.argv[1] if len(sys.argv) > 1 else "pairs")))
