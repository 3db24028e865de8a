"""Measure the judging of a large run: 4,096 nodes with 8 GPUs, 5 rounds of pairs, on one core.

The records come from two generated logs, with the hosts of each pair filled in. One node is 6 %
slow, and must be the only suspect.
"""

from __future__ import annotations

import json
import random
import resource
import subprocess
import sys
import time
from dataclasses import replace

from accept.core import checks
from accept.core.checks import REGISTRY
from accept.core.groups import pair_rounds
from accept.core.judge import judge
from accept.core.model import Fact, GroupKind, Plan, PlannedMachine, Record, Step
from benchmarks import Row
from benchmarks.nccl_text import table_text

NODES, ROUNDS, GPUS = 4096, 5, 8
_SECONDS, _MEGABYTES = 5.0, 500.0
_BAD = "node0007"
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


def measured() -> dict[str, float]:
    """Return the seconds of judging, and the peak memory of this process in MB."""
    judged_plan, all_records = plan(), records()
    began = time.perf_counter()
    verdict = judge(judged_plan, all_records, checks=REGISTRY, attempt="benchmark")
    seconds = time.perf_counter() - began
    if [suspect.name for suspect in verdict.suspects] != [_BAD]:
        raise RuntimeError(f"the suspects are {verdict.suspects[:3]}")
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3
    return {"seconds": seconds, "megabytes": peak}


def rows() -> list[Row]:
    """Measure in a separate process, for its peak memory."""
    command = [sys.executable, "-m", "benchmarks.judging"]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    result = json.loads(done.stdout)
    what = f"judging {NODES:,} nodes x {ROUNDS} rounds x {GPUS} GPUs"
    return [
        Row(
            what=what,
            measured=f"{result['seconds']:.1f} s",
            bar=f"{_SECONDS:.0f} s",
            met=result["seconds"] <= _SECONDS,
        ),
        Row(
            what="… memory, records included",
            measured=f"{result['megabytes']:.0f} MB",
            bar=f"{_MEGABYTES:.0f} MB",
            met=result["megabytes"] <= _MEGABYTES,
        ),
    ]


if __name__ == "__main__":
    print(json.dumps(measured()))
