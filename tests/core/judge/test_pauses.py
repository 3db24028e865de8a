"""Pauses of single repetitions: a pausing link is never passed, and noise is never reported."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.factories import verdicts
from tests.factories.paths import PROGRAMS
from tests.factories.programs import launch, missing_parts

from accept.core.causes import Cause
from accept.core.checks import REGISTRY, parse_log
from accept.core.judge import pauses
from accept.core.judge.evidence import Evidence
from accept.core.model import Finding, Metric, Placement, Record, State

HOSTS = verdicts.hosts(8)
ITERS = 10
STEP = verdicts.step(
    "all-gather", "pairs", checks=("all-gather",), params={**verdicts.COLLECTIVE, "iters": ITERS}
)


def executed(hosts: tuple[str, ...], number: int, seconds: list[float]) -> Record:
    """Return the record of an execution whose repetitions took these times."""
    values = {"time": sum(seconds) / len(seconds), "time-longest": max(seconds)}
    metrics = [
        Metric(
            check="all-gather", name=name, value=value * 1e6, unit="us", size=1 << 30,
            placement=Placement.OUT,
        )
        for name, value in values.items()
    ]  # fmt: skip
    return verdicts.record(STEP, hosts, *metrics, number=number)


def pairs(
    draw: random.Random, rounds: int, usual: float, spread: float
) -> list[tuple[tuple[str, ...], list[float]]]:
    """Return the pairs of some rounds, and the times of their repetitions: long-tailed noise."""
    found: list[tuple[tuple[str, ...], list[float]]] = []
    for _ in range(rounds):
        order = draw.sample(HOSTS, len(HOSTS))
        for pair in zip(order[::2], order[1::2], strict=True):
            times = [usual * draw.lognormvariate(0, spread) for _ in range(ITERS)]
            found.append((pair, times))
    return found


def evidence_of(records: list[Record], *, promised: bool = True) -> Evidence:
    machine = verdicts.GPU if promised else verdicts.CPU
    return Evidence(
        check="all-gather",
        plan=verdicts.plan(STEP, machine=machine),
        steps=(STEP,),
        records=tuple(records),
        hosts=HOSTS,
    )


def findings(records: list[Record], *, promised: bool = True) -> list[Finding]:
    return list(pauses.findings(evidence_of(records, promised=promised)))


def records_of(executions: list[tuple[tuple[str, ...], list[float]]]) -> list[Record]:
    return [executed(hosts, n, times) for n, (hosts, times) in enumerate(executions)]


seeds = st.integers(0, 10**6)


@given(seeds, st.floats(1e-5, 0.3), st.floats(0.001, 0.25))
def test_noise_with_long_tails_is_not_reported(seed: int, usual: float, spread: float) -> None:
    assert findings(records_of(pairs(random.Random(seed), 8, usual, spread))) == []


@given(seeds, st.floats(0.1, 10))
def test_one_pause_of_each_of_two_pairs_is_a_note(seed: int, longer: float) -> None:
    executions = pairs(random.Random(seed), 8, 0.02, 0.05)
    # The pairs of one round have no host in common.
    for _, times in executions[:2]:
        times[3] += longer + 0.01
    (found,) = findings(records_of(executions))
    assert (found.state, found.cause, found.hosts) == (State.PASS, None, ())


@given(seeds, st.floats(1e-5, 0.06), st.floats(0.2, 10))
def test_a_host_that_pauses_in_two_executions_makes_the_check_inconclusive(
    seed: int, usual: float, longer: float
) -> None:
    executions = pairs(random.Random(seed), 8, usual, 0.05)
    own = [times for pair, times in executions if "h5" in pair]
    for times in own[:2]:
        times[3] += longer
    (found,) = findings(records_of(executions))
    assert (found.state, found.cause, found.hosts) == (State.INCONCLUSIVE, Cause.PAUSES, ())
    assert "h5" in found.message
    judged = REGISTRY["all-gather"].judge(evidence_of(records_of(executions)))
    assert found in judged.verdict.findings
    assert Cause.PAUSES not in {suspect.cause for suspect in judged.suspects}
    (note,) = findings(records_of(executions), promised=False)
    assert note.state is State.PASS


#: The torch program, on whose rank 1 every 15th operation is late by 200 ms.
PAUSING = f"""
import sys, time
sys.path.insert(0, {str(PROGRAMS)!r})
import collective, torch_collectives
count, operate = 0, torch_collectives.Operations.operate
def pausing(self, *arguments):
    global count
    count += 1
    if self.me.rank == 1 and count % 15 == 0:
        time.sleep(0.2)
    operate(self, *arguments)
torch_collectives.Operations.operate = pausing
collective.main()
"""


@pytest.mark.real
@pytest.mark.skipif(bool(missing_parts()), reason="the extra `run` is not installed")
@pytest.mark.parametrize("seconds", [0.2, 0.0])
def test_the_torch_program_shows_a_pause_that_its_mean_hides(
    tmp_path: Path, seconds: float
) -> None:
    program, progress = tmp_path / "pausing.py", tmp_path / "progress"
    progress.mkdir()
    program.write_text(PAUSING.replace("0.2", str(seconds)))
    options = ("--collectives", "all_gather", "--min", "64K", "--max", "64K", "--jitter")
    ran = launch(progress, program, 2, *options, "--iters", str(ITERS), "--limit", "10")
    assert (ran.exit, ran.problems) == (0, [])
    parsed = parse_log(("all-gather",), ran.text.encode().splitlines(keepends=True))
    record = replace(executed(HOSTS[:2], 0, [1.0] * ITERS), metrics=parsed.metrics)
    states = [f.state for f in findings([record, replace(record, group=1)])]
    assert states == ([State.INCONCLUSIVE] if seconds else [])
