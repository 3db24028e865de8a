"""Pauses of single repetitions: a pausing link is never passed, and noise is never reported."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import combinations
from pathlib import Path
from statistics import median

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.factories import real_logs, verdicts
from tests.factories.judging import evidence
from tests.factories.paths import PROGRAMS
from tests.factories.programs import launch, missing_parts

from accept.core import nccl_tests
from accept.core.causes import Cause
from accept.core.checks import REGISTRY, parse_log
from accept.core.groups import pair_rounds
from accept.core.judge import pauses
from accept.core.judge.evidence import Evidence, Found
from accept.core.records import Metric, Placement, Record
from accept.core.verdict import Finding, State

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
    return evidence(STEP, records, HOSTS, verdicts.GPU if promised else verdicts.CPU)


def findings(records: list[Record]) -> list[Finding]:
    return pauses.examine(evidence_of(records))[0]


def records_of(executions: Sequence[tuple[tuple[str, ...], list[float]]]) -> list[Record]:
    return [executed(hosts, n, times) for n, (hosts, times) in enumerate(executions)]


seeds = st.integers(0, 10**6)


@given(seeds, st.floats(1e-5, 0.3), st.floats(0.001, 0.25))
def test_noise_with_long_tails_is_not_reported(seed: int, usual: float, spread: float) -> None:
    assert findings(records_of(pairs(random.Random(seed), 8, usual, spread))) == []


@given(seeds, st.floats(0.1, 10), st.sampled_from([1, 2]))
def test_pauses_of_separate_pairs_make_the_check_inconclusive_and_accuse_nobody(
    seed: int, longer: float, number: int
) -> None:
    executions = pairs(random.Random(seed), 8, 0.02, 0.05)
    # The pairs of one round have no host in common.
    for _, times in executions[:number]:
        times[3] += longer + 0.01
    evidence = evidence_of(records_of(executions))
    (found,), suspects = pauses.examine(evidence)
    assert (found.state, found.cause, found.hosts) == (State.INCONCLUSIVE, Cause.PAUSES, ())
    assert suspects == []
    assert found in REGISTRY["all-gather"].judge(evidence).verdict.findings
    (note,), _ = pauses.examine(evidence_of(records_of(executions), promised=False))
    assert (note.state, note.cause) == (State.PASS, None)


def test_a_pause_that_is_not_far_longer_than_other_delays_is_a_note() -> None:
    executions = pairs(random.Random(1), 8, 0.01, 0.05)
    for _, times in executions[1:]:
        times[0] += 0.08
    # The others' delays are 0.08 s, and a pause counts from three times as long.
    for longer, state in ((0.15, State.PASS), (0.235, State.PASS), (0.27, State.INCONCLUSIVE)):
        executions[0][1][3] = longer
        (found,) = findings(records_of(executions))
        assert found.state is state


def test_only_repetitions_of_this_check_that_were_timed_are_compared() -> None:
    executions = pairs(random.Random(1), 8, 0.01, 0.05)
    executions[0][1][3] = 0.5
    records = records_of(executions)
    others = [
        replace(r, metrics=tuple(replace(m, check="all-reduce") for m in r.metrics))
        for r in records
    ]
    untimed = [replace(r, metrics=tuple(m for m in r.metrics if m.name == "time")) for r in records]
    assert findings(records) != []
    assert findings(others) == findings(untimed) == []
    single = replace(STEP, params={**STEP.params, "iters": 1})
    evidence = replace(evidence_of(records), steps=(single,))
    assert pauses.examine(evidence) == ([], [])


#: Pair -> True if a repetition of it paused.
Paused = Callable[[tuple[str, ...]], bool]
LINK: set[str] = {"h0", "h1"}
#: Each of 24 hosts alone.
ALONE = [(host,) for host in verdicts.hosts(24)]


def rounds(hosts: int, paused: Paused, *more: tuple[str, ...]) -> Evidence:
    """Return seven rounds of pairs, in which each host has seven partners."""
    names = verdicts.hosts(hosts)
    groups = [g.hosts for wave in pair_rounds(names, rounds=7, seed=1) for g in wave]
    executions = [(g, [0.01] * 9 + [0.4 if paused(g) else 0.01]) for g in (*groups, *more)]
    return replace(evidence_of(records_of(executions)), found=Found(present=names))


def of_h5(hosts: int, number: int, *more: tuple[str, ...]) -> Paused:
    """Return the first pairs of h5 in the rounds, and more."""
    groups = pair_rounds(verdicts.hosts(hosts), rounds=7, seed=1)
    own = [g.hosts for wave in groups for g in wave if "h5" in g.hosts][:number]
    return lambda pair: pair in (*own, *more)


@pytest.mark.parametrize(
    ("evidence", "kind", "named"),
    [
        (rounds(24, of_h5(24, 3)), "", []),
        (rounds(24, of_h5(24, 4)), "node", [{"h5"}]),
        (rounds(8, of_h5(8, 7)), "node", [{"h5"}]),
        # A host that also pauses alone, unlike the others, is named after fewer pairs.
        (rounds(24, of_h5(24, 2, ("h5",)), *ALONE), "node", [{"h5"}]),
        (rounds(24, of_h5(24, 3), *ALONE), "", []),
        (rounds(16, lambda pair: bool({"h2", "h9"} & set(pair))), "node", [{"h2"}, {"h9"}]),
        # A link; if one of its hosts also pauses with others, either explains it.
        (rounds(24, lambda pair: set(pair) == LINK, *[("h0", "h1")] * 6), "link", [LINK]),
    ],
)
def test_hosts_and_links_are_named_if_the_pauses_follow_them(
    evidence: Evidence, kind: str, named: list[set[str]]
) -> None:
    (found,), suspects = pauses.examine(evidence)
    assert sorted(map(sorted, (s.hosts for s in suspects))) == sorted(map(sorted, named))
    assert {s.kind for s in suspects} <= {kind}
    assert (found.state, found.cause) == (
        State.FAIL if named else State.INCONCLUSIVE,
        Cause.PAUSES,
    )
    judged = REGISTRY["all-gather"].judge(evidence)
    assert {*suspects} <= {*judged.suspects}
    no_target = replace(evidence, plan=verdicts.plan(STEP, machine=verdicts.CPU))
    assert pauses.examine(no_target)[1] == []


@pytest.mark.parametrize("size", [2, 3])
def test_pauses_of_rails_and_of_larger_groups_name_nobody(size: int) -> None:
    evidence = rounds(24, lambda _: False)
    groups = [
        executed(("h5", *evidence.hosts[n : n + size - 1]), n, [0.01] * 9 + [0.4])
        for n in range(6, 18, size - 1)
    ]
    rails = (0,) if size == 2 else ()
    made = (*evidence.records, *(replace(group, local_ranks=rails) for group in groups))
    (found,), suspects = pauses.examine(replace(evidence, records=made))
    assert (found.state, suspects) == (State.INCONCLUSIVE, [])


def test_hosts_that_pause_with_each_other_and_met_nobody_else_are_not_named() -> None:
    names = verdicts.hosts(20)
    executions = [((a, b), [0.01] * ITERS) for a, b in combinations(names[5:], 2)]
    executions += [((a, b), [0.01] * 9 + [0.4]) for a, b in combinations(names[:5], 2)]
    evidence = replace(evidence_of(records_of(executions)), found=Found(present=names))
    (found,), suspects = pauses.examine(evidence)
    assert (found.state, suspects) == (State.INCONCLUSIVE, [])


@pytest.mark.sampled
@pytest.mark.parametrize("hosts", [8, 16])
@pytest.mark.parametrize("paused", [2, 3, 5])
def test_pauses_at_random_name_an_innocent_host_in_at_most_one_of_a_hundred_runs(
    hosts: int, paused: int
) -> None:
    names = verdicts.hosts(hosts)
    draw, named, tries = random.Random(7), 0, 100
    for seed in range(tries):
        rounds = pair_rounds(names, rounds=7, seed=seed)
        executions = [(g.hosts, [0.01] * ITERS) for wave in rounds for g in wave]
        for _, times in draw.sample(executions, paused):
            times[1] += 0.3
        evidence = replace(evidence_of(records_of(executions)), found=Found(present=names))
        (found,), suspects = pauses.examine(evidence)
        assert found.state is not State.PASS
        named += bool(suspects)
    assert named <= tries // 100


@pytest.mark.parametrize("folder", real_logs.FOLDERS, ids=real_logs.folder_name)
def test_no_repetition_of_real_healthy_runs_can_have_been_a_pause(folder: Path) -> None:
    """Compare means with their median: one repetition alone cannot have added more than that."""
    means: dict[tuple[object, ...], list[float]] = {}
    for path in sorted(folder.glob("*/*.log")):
        kind = (path.parent.name, path.name.split("_")[2])
        for metric in nccl_tests.read(path.read_bytes()).metrics:
            if metric.name == "time":
                key = (kind, metric.check, metric.size, metric.placement)
                means.setdefault(key, []).append(metric.value)
    compared = [values for values in means.values() if len(values) > 2]
    assert sum(map(len, compared)) > 500
    for values in compared:
        usual = median(values)
        longest = 20 * (max(values) - usual)
        assert longest < 100e3 or longest + usual < 3 * usual


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


@pytest.mark.rare
@pytest.mark.real
@pytest.mark.skipif(bool(missing_parts()), reason="the extra `run` is not installed")
@pytest.mark.parametrize("seconds", [0.2, 0.0])
def test_the_torch_program_shows_pauses_that_its_mean_hides(tmp_path: Path, seconds: float) -> None:
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
