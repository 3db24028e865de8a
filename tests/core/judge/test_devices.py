"""gemm and memory: which GPU of sixteen is named if one is slow, wrong or reports nothing."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tests.factories import verdicts
from tests.factories.judging import accused, evidence
from tests.factories.judging import judged as judge_all

from accept import config
from accept.config.expectations import parse_expectation
from accept.config.floors import bounds
from accept.core.causes import Cause
from accept.core.checks import REGISTRY
from accept.core.facts import mapping
from accept.core.judge.evidence import Judged
from accept.core.plan import PlannedMachine, Step
from accept.core.records import Fact, Metric, Problem, Record
from accept.core.verdict import State
from accept.plan.resolve import Options, resolve

GPUS = 8
HOSTS = verdicts.hosts(2)
EVERY = {(host, gpu) for host in HOSTS for gpu in range(GPUS)}
#: Invented figures of a healthy H200 in TFLOP/s and GB/s, all above the floors.
HEALTHY = {"bf16": 780.0, "fp8": 1450.0, "tf32": 370.0, "fp32": 50.0}
WAYS = ("host-to-device", "device-to-host")
GEMM: Step = verdicts.step("gemm", "each", params={}, checks=("gemm",))
MEMORY: Step = verdicts.step("memory", "each", params={}, checks=("memory",), number=20)
MACHINE = config.load_machine("h200-8").value
CPUS = replace(verdicts.CPU, ranks=GPUS)
VALUES: dict[str, dict[str, tuple[float, str]]] = {
    "memory": {
        **dict.fromkeys(("copy", "triad", "copy-p5", "copy-alone"), (4200.0, "GB/s")),
        **dict.fromkeys(WAYS, (55.0, "GB/s")),
        **dict.fromkeys(("p2p-out", "p2p-in"), (390.0, "GB/s")),
        "tested": (0.9, ""),
        "p2p-least": (0.97, ""),
        "wrong": (0.0, "count"),
    },
    "gemm": {
        **{f"{k}{t}": (v, "TFLOP/s") for k, v in HEALTHY.items() for t in ("", "-p5", "-alone")},
        **{f"{kind}-wrong": (0.0, "count") for kind in HEALTHY},
    },
}

#: (host, GPU, metric, its healthy value) -> the measured value; None: it was not measured.
Change = Callable[[str, int, str, float], float | None]
#: (host, GPU) -> the facts that it reports besides its digests.
Facts = Callable[[str, int], list[Fact]]
BAD = ("h1", 3)
SLOW, LOST, BELOW, WRONG = "slow-outlier", "no-measurement", "below-reference", "wrong-result"


def only(factor: float | None, *names: str, at: Collection[tuple[str, int]] = (BAD,)) -> Change:
    """Change GPUs to a share of their speed, in the named metrics or all; None drops them."""

    def change(host: str, gpu: int, name: str, value: float) -> float | None:
        if (host, gpu) not in at or (names and name not in names):
            return value
        return None if factor is None else value * factor

    return change


def value_of(name: str, value: float) -> Change:
    """Give GPU 3 of h1 another value."""
    return lambda h, g, n, usual: value if ((h, g), n) == (BAD, name) else usual


def digest(kind: str = "bf16", **changes: Any) -> dict[str, Any]:
    equal = {"device": "NVIDIA H200", "software": "torch 2.9, CUDA 13.0"}
    return {"type": kind, "size": 8192, "exact": "aa", "random": "bb", **equal, **changes}


def reported(
    name: str, value: object, others: object = None, at: Collection[tuple[str, int]] = (BAD,)
) -> Facts:
    """Return facts with a value on the GPUs `at`, and another elsewhere."""
    check = "memory" if name in ("pcie", "left-out", "p2p-least") else "gemm"

    def facts(host: str, gpu: int) -> list[Fact]:
        own = value if (host, gpu) in at else others
        fact = Fact(name=name, value=own, check=check, host=host, rank=gpu)
        return [] if own is None else [fact]

    return facts


def records(
    change: Change = only(1.0),  # noqa: B008
    step: Step = GEMM,
    facts: Facts = lambda _host, _gpu: [],
    problems: tuple[Problem, ...] = (),
) -> list[Record]:
    """Return the records of all GPUs of two hosts, which differ by a few tenths of a percent."""
    check, made = step.checks[0], []
    for number, host in enumerate(HOSTS):
        metrics, own = [], []
        for gpu in range(GPUS):
            for name, (value, unit) in VALUES[check].items():
                found = change(host, gpu, name, value * (1 + 0.001 * ((gpu * 3 + number) % 5)))
                if found is not None:
                    metrics.append(verdicts.of_gpu(check, name, found, unit, host, gpu))
            given = facts(host, gpu)
            types = {mapping(f.value).get("type") for f in given if f.name == "digest"}
            own += given
            own += [
                Fact(name="digest", value=digest(kind), check="gemm", host=host, rank=gpu)
                for kind in HEALTHY
                if kind not in types
            ]
        mine = tuple(problem for problem in problems if problem.host == host)
        made.append(
            verdicts.record(
                step, (host,), *metrics, number=number, ranks=GPUS, facts=tuple(own),
                problems=mine, status=7 if mine else 0,
            )
        )  # fmt: skip
    return made


def judged(found: list[Record], machine: PlannedMachine | None = None, **more: Any) -> Judged:
    check = found[0].checks[0]
    step = GEMM if check == "gemm" else MEMORY
    references = more.get("references", () if machine else bounds(MACHINE))
    names = () if machine else ("NVIDIA H200",)
    of = evidence(step, found, HOSTS, machine or MACHINE.planned(), references, devices=names)
    return REGISTRY[check].judge(of)


def failed(found: Judged) -> set[str | None]:
    return {f.cause for f in found.verdict.findings if f.state is State.FAIL}


def test_healthy_gpus_pass_and_show_their_share_of_the_peak() -> None:
    for step, shown in (
        (GEMM, "bf16 780 TFLOP/s (slowest of 16 GPUs, 79% of the peak)"),
        (MEMORY, "copy 4200 GB/s (slowest of 16 GPUs, 88% of the peak)"),
    ):
        found = judged(records(step=step))
        assert (found.verdict.state, found.suspects) == (State.PASS, ())
        assert shown in found.verdict.measured


@pytest.mark.parametrize(
    ("step", "change", "cause"),
    [
        (GEMM, only(0.3), BELOW),
        (GEMM, only(0.85), SLOW),
        (GEMM, only(0.5, "bf16-p5"), SLOW),
        (GEMM, value_of("bf16-wrong", 1.0), WRONG),
        *((GEMM, only(None, name), LOST) for name in ("bf16-wrong", "fp8", "bf16-alone")),
        *((GEMM, value_of("bf16", value), LOST) for value in (0.0, -5.0, 1e12)),
        (MEMORY, value_of("wrong", 1.0), "wrong-data"),
        (MEMORY, only(0.4, "p2p-out", "p2p-in"), BELOW),
        (MEMORY, only(0.4, *WAYS), BELOW),
        *((MEMORY, only(None, name), LOST) for name in (*WAYS, "tested")),
        *((MEMORY, value_of("tested", share), LOST) for share in (0.0, 0.3)),
    ],
)
def test_a_gpu_with_a_bad_or_missing_value_is_named(step: Step, change: Change, cause: str) -> None:
    found = judged(records(change, step))
    assert (found.verdict.state, accused(found)) == (State.FAIL, {"h1:3": cause})
    assert {suspect.kind for suspect in found.suspects} == {"gpu"}


@given(st.sampled_from(sorted(EVERY)), st.floats(0.3, 0.85))
def test_one_slow_gpu_of_sixteen_is_named_and_no_other(at: tuple[str, int], share: float) -> None:
    assert list(accused(judged(records(only(share, at=[at]))))) == [f"{at[0]}:{at[1]}"]


CAPPED, FREE, HIGHEST = {"power-cap": 1.0}, {"power-cap": 0.0}, 1980


def load(
    held: dict[str, float], mhz: int = HIGHEST, samples: int = 20, kind: str = "fp32"
) -> dict[str, Any]:
    """Return the state of a GPU under load."""
    clocks = {"MHz": [mhz] * 3, "MHz-max": HIGHEST, "C": [60, 91, 92]}
    return {"type": kind, "held": held, "looks": samples, **clocks}


@pytest.mark.parametrize(
    ("own", "others", "cause"),
    [
        # A fault limits the clock, at any speed. One sample may be chance.
        (load({"power-brake": 0.1}), load({}), "gpu-throttled"),
        (load({"thermal-hardware": 0.1}), load({}), "gpu-throttled"),
        (load({"power-brake": 0.06}, samples=100), load({}), "gpu-throttled"),
        (load({"power-brake": 0.04}, samples=100), load({}), None),
        (load({"power-brake": 1.0}, samples=1), load({}), None),
        (load({"application-clocks": 1.0}), load({}), "gpu-settings"),
        *((load({name: 1.0}), load({}), None) for name in ("power-cap", "thermal-software")),
        # 15 % below the highest clock, and no reason for it.
        (load(FREE, 1680), load(FREE), "gpu-settings"),
        (load(FREE, 1680), load(CAPPED, 1965), "gpu-settings"),
        (load(FREE, 1200), load(CAPPED, 1400), "gpu-settings"),
        (load(FREE, 1680, 4), load(FREE), "gpu-settings"),
        (load(FREE, 1680, 3), load(FREE), None),
        (load(FREE, 1920), load(FREE), None),
        # Others are at their power limit at that clock, so it costs nothing.
        (load(FREE, 1680), load(CAPPED, 1650), None),
        # Its own power limit, which differs between healthy GPUs.
        (load(CAPPED, 1680), load(FREE), None),
        (load({"thermal-software": 0.5}, 1680), load(FREE), None),
        # All GPUs have it: a setting of the site.
        (load({"application-clocks": 1.0}),) * 2 + (None,),
        (load(FREE, 1680),) * 2 + (None,),
    ],
)
def test_a_clock_that_a_fault_or_nothing_explains_is_named(
    own: dict[str, Any], others: dict[str, Any], cause: str | None
) -> None:
    found = judged(records(facts=reported("load", own, others)))
    assert accused(found) == ({} if cause is None else {"h1:3": cause})
    assert (found.verdict.state is State.PASS) is (cause is None)
    if own == others == load(FREE, 1680):
        assert any("1680" in finding.message for finding in found.verdict.findings)


def test_a_gpu_that_is_slow_only_with_the_others_is_reported_as_hot() -> None:
    facts = reported("load", load({"thermal-hardware": 0.8}, kind="bf16"))
    hot = judged(records(only(0.85, "bf16", "bf16-p5"), facts=facts)).suspects
    assert {(s.name, s.cause) for s in hot} == {("h1:3", SLOW), ("h1:3", "gpu-throttled")}
    slow = next(one for one in hot if one.cause == SLOW)
    assert "alone it is as fast as the others" in slow.why
    assert "thermal-hardware 80% of the time" in slow.why
    (alone,) = judged(records(only(0.7))).suspects
    assert "heat" not in alone.why


FULL = {"width": 16, "width-max": 16, "generation": 5, "generation-max": 5}
#: Facts of links that were not read.
UNREAD: tuple[Any, ...] = (
    {**FULL, "width": "8"}, None, [], {"unread": "no pynvml"}, {"width": True}
)  # fmt: skip


@pytest.mark.parametrize(
    ("link", "gigabytes", "named"),
    [
        (FULL, 30.0, False),
        # Half of the lanes: the rate is too close to the median of the run.
        ({**FULL, "width": 8}, 28.0, True),
        ({**FULL, "generation": 4}, 28.0, True),
        # More than that link can carry: another path, or a reading while the link was idle.
        ({**FULL, "width": 1, "generation": 1}, 55.0, False),
        ({**FULL, "generation": 9, "generation-max": 10}, 30.0, False),
        *((link, 28.0, False) for link in UNREAD),
    ],
)
def test_a_gpu_whose_link_has_less_than_it_can_while_it_carries_data_is_named(
    link: Any, gigabytes: float, *, named: bool
) -> None:
    made = records(only(gigabytes / 55, *WAYS), MEMORY, reported("pcie", link, FULL))
    # Without bounds, so that only the link can accuse the GPU.
    found = judged(made, references=())
    assert accused(found) == ({"h1:3": "pcie-degraded"} if named else {})


@pytest.mark.parametrize("usual", [1.0, 0.43])
def test_a_slow_pair_of_gpus_is_named_also_if_many_paths_are_slow(usual: float) -> None:
    at = {("h1", 2), ("h1", 5)}

    def change(host: str, gpu: int, name: str, value: float) -> float:
        if name != "p2p-least":
            return value
        return 0.1 if (host, gpu) in at else value * usual

    path = reported("p2p-least", "GPU 2 to GPU 5: 39 GB/s", at=at)
    found = judged(records(change, MEMORY, path))
    assert accused(found) == {"h1:2": SLOW, "h1:5": SLOW}
    assert "p2p-least 0.1 (GPU 2 to GPU 5: 39 GB/s), " in found.suspects[1].why


def test_a_gpu_that_is_slow_in_some_executions_is_named() -> None:
    for slow, cause in ((1, None), (2, "intermittent"), (5, BELOW)):
        bad = [one for _ in range(slow) for one in records(only(0.6, "bf16"))]
        good = [one for _ in range(5 - slow) for one in records()]
        assert accused(judged([*bad, *good])) == ({"h1:3": cause} if cause else {})


@given(st.floats(0.1, 0.6))
@example(0.53515625)
def test_gpus_that_are_all_slow_fail_against_the_floor_and_nobody_is_named(share: float) -> None:
    found = judged(records(only(share, at=EVERY)))
    assert (found.verdict.state, failed(found), found.suspects) == (State.FAIL, {BELOW}, ())
    finding = next(f for f in found.verdict.findings if f.metric == "bf16" and f.peak)
    assert finding.peak == 989


WITHOUT_FP8 = only(None, "fp8", "fp8-p5", "fp8-alone", "fp8-wrong", at=EVERY)
LEFT = Fact(name="left-out", value={"fp8": "not requested"}, check="gemm", host="h0", rank=0)


@pytest.mark.parametrize(
    ("change", "facts", "more", "state", "causes"),
    [
        # An expectation of the user has priority; without any bound, the check is inconclusive.
        (only(1.0), lambda *_: [], {"references": (
            parse_expectation("gemm.bf16>=900", source="--expect"), *bounds(MACHINE))},
         State.FAIL, {BELOW}),
        (only(1.0), lambda *_: [], {"references": ()}, State.INCONCLUSIVE, {"no-reference"}),
        # A bound without a measurement does not pass, unless the program explains it.
        (WITHOUT_FP8, lambda *_: [], {}, State.INCONCLUSIVE, {LOST}),
        (WITHOUT_FP8, lambda *_: [LEFT], {}, State.PASS, set()),
        # Without a speed target, no device is slow.
        (only(0.1), lambda *_: [], {"machine": CPUS}, State.PASS, set()),
        (only(None, at=EVERY), lambda *_: [], {}, State.FAIL, {LOST}),
    ],
)  # fmt: skip
def test_what_is_required_follows_from_the_bounds_and_the_machine(
    change: Change, facts: Facts, more: Any, state: State, causes: set[str]
) -> None:
    found = judged(records(change, facts=facts), **more)
    assert (found.verdict.state, found.suspects) == (state, ())
    assert {f.cause for f in found.verdict.findings if f.state is state and f.cause} == causes


# -- digests, and missing results ------------------------------------------------------------------


def crashed(rank: int, check: str, cause: Cause = Cause.CRASHED) -> tuple[Problem, ...]:
    return (Problem(cause=cause, message="GPU", check=check, host="h1", rank=rank, gpu=str(rank)),)


H1 = {(host, gpu) for host, gpu in EVERY if host == "h1"}
OTHER_SOFTWARE = {"random": "cc", "software": "torch 2.6, CUDA 12.4"}


@pytest.mark.parametrize(
    ("odd", "at", "problems", "fails", "named"),
    [
        ({"random": "cc"}, {BAD}, (), True, {"h1:3": WRONG}),
        # A problem of the same GPU is not repeated, and neither is a count of wrong elements.
        ({"exact": "cc"}, {BAD}, crashed(3, "gemm", Cause.WRONG_RESULT), True, {}),
        # Other software may give other bits, but not of the known product. Half of the GPUs have
        # each digest then: nobody can be named.
        (OTHER_SOFTWARE, H1, (), False, {}),
        ({**OTHER_SOFTWARE, "exact": "dd"}, H1, (), True, {}),
    ],
)
def test_a_gpu_whose_digest_differs_from_that_of_equal_gpus_is_named(
    odd: dict[str, str], at: set[tuple[str, int]], problems: Any, *, fails: bool, named: Any
) -> None:
    change = value_of("bf16-wrong", 1.0) if problems else only(1.0)
    found = judged(records(change, GEMM, reported("digest", digest(**odd), digest(), at), problems))
    assert (failed(found), accused(found)) == ({WRONG} if fails else set(), named)
    assert not problems or len([f for f in found.verdict.findings if f.state is State.FAIL]) == 1


P2P = ("p2p-out", "p2p-in", "p2p-least")
NO_PATHS = only(None, *P2P, at=H1)


def without(gpu: int, *more: tuple[int, str]) -> Change:
    """Drop a GPU of h1, and single metrics of other GPUs there."""
    return lambda h, g, n, value: None if h == "h1" and (g == gpu or (g, n) in more) else value


@pytest.mark.parametrize(
    ("change", "facts", "problems", "named"),
    [
        # The first GPU measures the paths of its host, whichever check its problem belongs to.
        (lambda *of: NO_PATHS(*of) and without(0)(*of), None, crashed(0, "memory"), {}),
        (lambda *of: NO_PATHS(*of) and without(0)(*of), None, crashed(0, "gemm"), {"h1:0": LOST}),
        (without(3, (5, "p2p-in")), None, crashed(3, "memory"), {"h1:5": LOST}),
        # A host must have these metrics, or a reason.
        (NO_PATHS, None, (), {"h1": LOST}),
        (NO_PATHS, reported("left-out", dict.fromkeys(P2P, "1 of 8 GPUs"), at={("h1", 0)}), (), {}),
        # A process that may not run near its GPU reports other metrics, and why.
        (only(None, *WAYS, at=H1), reported("left-out", dict.fromkeys(WAYS, "no CPU"), at=H1), (),
         {}),
    ],
)  # fmt: skip
def test_a_reason_or_a_failure_of_the_first_gpu_excuses_what_its_host_lacks(
    change: Change, facts: Facts | None, problems: Any, named: dict[str, str]
) -> None:
    found = judged(records(change, MEMORY, facts or (lambda *_: []), problems))
    assert {n if n in named else n.partition(":")[0] for n in accused(found)} == {*named}


@pytest.mark.parametrize("ranks", [range(GPUS), range(1, GPUS, 2)])
@pytest.mark.parametrize("lacks", ["all", "exact", "random"])
def test_a_gpu_that_does_not_report_its_products_does_not_pass(ranks: range, lacks: str) -> None:
    def cut(fact: Fact) -> Fact:
        kept = {k: v for k, v in mapping(fact.value).items() if lacks not in ("all", k)}
        return replace(fact, value=kept) if fact.rank in ranks else fact

    made = [replace(r, facts=tuple(map(cut, r.facts))) for r in records()]
    assert failed(judged(made)) == {LOST}


@pytest.mark.parametrize(("tested", "state"), [(0.004, State.PASS), (0.0, State.FAIL)])
def test_a_small_share_of_the_memory_of_a_cpu_host_is_enough(tested: float, state: State) -> None:
    def on_cpu(m: Metric) -> Metric:
        return replace(m, gpu=None, value=tested if m.name == "tested" else m.value)

    made = [replace(r, metrics=tuple(map(on_cpu, r.metrics))) for r in records(step=MEMORY)]
    assert judged(made, CPUS).verdict.state is state


def test_a_gpu_that_broke_is_named_and_the_others_are_judged() -> None:
    inventory = verdicts.step("inventory", "each", number=5)
    h200 = {host: [{**gpu, "name": "NVIDIA H200"} for gpu in verdicts.gpus(host)] for host in HOSTS}
    facts = (verdicts.inventory_of(host, gpus=listed) for host, listed in h200.items())
    listed = verdicts.inventories(inventory, facts, ranks=GPUS)
    machine = replace(MACHINE.planned(), rdma_devices=0, transport="")
    plan = verdicts.plan(inventory, GEMM, machine=machine, nodes=2, references=bounds(MACHINE))
    made = records(without(4), problems=crashed(4, "gemm"))
    found = judge_all(plan, verdicts.hosts_record(HOSTS), *listed, *made)
    assert (found.state, found.exit) == (State.DEGRADED, 3)
    assert [(s.kind, s.name) for s in found.suspects] == [("gpu", "h1:4")]


@pytest.mark.parametrize("suite", config.names("suites"))
def test_both_checks_share_one_launch_in_every_suite(suite: str) -> None:
    for machine in ("cpu", "h200-8"):
        options = Options(machine=machine, suite=suite, nodes=2, hosts=HOSTS, backend="ssh")
        steps = resolve(options).plan.steps
        (step,) = [one for one in steps if {"gemm", "memory"} & {*one.checks}]
        assert step.groups == "each"
