"""gemm and memory: which GPU of sixteen is named if one is slow, wrong or reports nothing."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tests.factories import verdicts

from accept import config
from accept.config.expectations import parse_expectation
from accept.config.floors import bounds
from accept.core import checks
from accept.core.causes import Cause
from accept.core.checks import REGISTRY
from accept.core.facts import mapping
from accept.core.judge import judge as judge_run
from accept.core.judge.evidence import Evidence, Found, Judged
from accept.core.model import Fact, Metric, Plan, Problem, Record, State, Step, Verdict
from accept.plan.resolve import Options, resolve

GPUS = 8
HOSTS = verdicts.hosts(2)
#: Invented figures of a healthy H200 in TFLOP/s and GB/s, all above the floors.
HEALTHY = {"bf16": 780.0, "fp8": 1450.0, "tf32": 370.0, "fp32": 50.0}
STEP: Step = verdicts.step("gemm", "each", params={}, checks=("gemm",))
MEMORY_STEP: Step = verdicts.step("memory", "each", params={}, checks=("memory",), number=20)
MACHINE = config.load_machine("h200-8").value

#: (host, GPU, metric, its healthy value) -> the measured value; None: it was not measured.
Change = Callable[[str, int, str, float], float | None]


def same(_host: str, _gpu: int, _name: str, value: float) -> float | None:
    return value


def only(where: tuple[str, int], factor: float | None, *names: str) -> Change:
    """Slow one GPU to a share of its speed, in the named metrics or all; None drops the metric."""

    def change(host: str, gpu: int, name: str, value: float) -> float | None:
        if (host, gpu) != where or (names and name not in names):
            return value
        return None if factor is None else value * factor

    return change


def metric(check: str, host: str, gpu: int, name: str, value: float, unit: str) -> Metric:
    return Metric(check=check, name=name, value=value, unit=unit, host=host, rank=gpu, gpu=str(gpu))


def healthy(check: str) -> dict[str, tuple[float, str]]:
    if check == "memory":
        rates = ("copy", "triad", "copy-p5", "copy-alone")
        ways = {"host-to-device": 55.0, "device-to-host": 55.0, "p2p-out": 390.0, "p2p-in": 390.0}
        found = dict.fromkeys(rates, (4200.0, "GB/s")) | {k: (v, "GB/s") for k, v in ways.items()}
        shares = {"tested": (0.9, ""), "p2p-least": (0.97, "")}
        return found | shares | {"wrong": (0.0, "count")}
    return {
        f"{kind}{tail}": (
            0.0 if tail == "-wrong" else value,
            "count" if "wrong" in tail else "TFLOP/s",
        )
        for kind, value in HEALTHY.items()
        for tail in ("", "-p5", "-alone", "-wrong")
    }


def digest(kind: str = "bf16", **changes: Any) -> dict[str, Any]:
    equal = {"device": "NVIDIA H200", "software": "torch 2.9, CUDA 13.0"}
    return {"type": kind, "size": 8192, "exact": "aa", "random": "bb", **equal, **changes}


def _digested(host: str, gpu: int, kind: str) -> Fact:
    return Fact(name="digest", value=digest(kind), check="gemm", host=host, rank=gpu)


#: (host, GPU) -> the facts that it reports besides its digests.
Facts = Callable[[str, int], list[Fact]]


def reported(
    name: str, value: object, others: object = None, *, at: Collection[tuple[str, int]] = ()
) -> Facts:
    """Return facts with a value on the GPUs `at` (default: GPU 3 of h1), and another elsewhere."""
    bad = at or {("h1", 3)}

    def facts(host: str, gpu: int) -> list[Fact]:
        own = value if (host, gpu) in bad else others
        check = "memory" if name in ("pcie", "left-out", "p2p-least") else "gemm"
        fact = Fact(name=name, value=own, check=check, host=host, rank=gpu)
        return [] if own is None else [fact]

    return facts


def records(
    change: Change = same,
    *,
    step: Step = STEP,
    facts: Facts = lambda _host, _gpu: [],
    problems: tuple[Problem, ...] = (),
    status: int | None = 0,
) -> list[Record]:
    """Return the records of all GPUs of two hosts, which differ by a few tenths of a percent."""
    check = step.checks[0]
    made = []
    for number, host in enumerate(HOSTS):
        metrics, host_facts = [], []
        for gpu in range(GPUS):
            for name, (value, unit) in healthy(check).items():
                usual = value * (1 + 0.001 * ((gpu * 3 + number) % 5))
                found = change(host, gpu, name, usual)
                if found is not None:
                    metrics.append(metric(check, host, gpu, name, found, unit))
            given = facts(host, gpu)
            types = {mapping(f.value).get("type") for f in given if f.name == "digest"}
            host_facts += [*given, *(_digested(host, gpu, k) for k in HEALTHY if k not in types)]
        mine = tuple(problem for problem in problems if problem.host == host)
        made.append(
            verdicts.record(
                step,
                (host,),
                *metrics,
                number=number,
                ranks=GPUS,
                facts=tuple(host_facts),
                problems=mine,
                status=status if mine or status == 0 else 0,
            )
        )
    return made


def planned(step: Step = STEP, **more: Any) -> Plan:
    return verdicts.plan(
        step, machine=MACHINE.planned(), references=more.pop("references", bounds(MACHINE)), **more
    )


def judged(found: list[Record], step: Step = STEP, **more: Any) -> Judged:
    evidence = Evidence(
        check=step.checks[0],
        plan=planned(step, **more),
        steps=(step,),
        records=tuple(found),
        found=Found(present=HOSTS),
        devices=("NVIDIA H200",),
    )
    return checks.REGISTRY[step.checks[0]].judge(evidence)


def blamed(found: Judged) -> dict[str, str]:
    return {suspect.name: suspect.cause for suspect in found.suspects}


def failed(found: Judged) -> set[str | None]:
    return {f.cause for f in found.verdict.findings if f.state is State.FAIL}


# -- which GPU is named ---------------------------------------------------------------------------


@pytest.mark.parametrize("step", [STEP, MEMORY_STEP], ids=["gemm", "memory"])
def test_healthy_gpus_pass_and_the_table_shows_the_share_of_the_peak(step: Step) -> None:
    found = judged(records(step=step), step)
    assert (found.verdict.state, found.suspects) == (State.PASS, ())
    rate = "bf16 780 TFLOP/s" if step is STEP else "copy 4200 GB/s"
    share = "79%" if step is STEP else "88%"
    assert f"{rate} (slowest of 16 GPUs, {share} of the peak)" in found.verdict.measured


BAD = ("h1", 3)
EVERY = {(host, gpu) for host in HOSTS for gpu in range(GPUS)}
WAYS = ("host-to-device", "device-to-host")
LOST = "no-measurement"


def value_of(name: str, value: float) -> Change:
    """Give GPU 3 of h1 another value."""
    return lambda h, g, n, usual: value if ((h, g), n) == (BAD, name) else usual


@pytest.mark.parametrize(
    ("step", "change", "cause"),
    [
        (STEP, only(BAD, 0.3), "below-reference"),
        (STEP, only(BAD, 0.85), "slow-outlier"),
        (STEP, only(BAD, 0.5, "bf16-p5"), "slow-outlier"),
        (STEP, value_of("bf16-wrong", 1.0), "wrong-result"),
        *((STEP, only(BAD, None, name), LOST) for name in ("bf16-wrong", "fp8", "bf16-alone")),
        *((STEP, value_of("bf16", value), LOST) for value in (0.0, -5.0, 1e12)),
        (MEMORY_STEP, only(BAD, 0.4, "p2p-out", "p2p-in"), "below-reference"),
        (MEMORY_STEP, only(BAD, 0.4, *WAYS), "below-reference"),
        *((MEMORY_STEP, only(BAD, None, way), LOST) for way in WAYS),
        (MEMORY_STEP, only(BAD, None, "tested"), LOST),
        *((MEMORY_STEP, value_of("tested", share), LOST) for share in (0.0, 0.3)),
    ],
)
def test_the_gpu_with_a_bad_or_missing_value_is_named(
    step: Step, change: Change, cause: str
) -> None:
    found = judged(records(change, step=step), step)
    assert (found.verdict.state, blamed(found)) == (State.FAIL, {"h1:3": cause})
    assert {suspect.kind for suspect in found.suspects} == {"gpu"}


@given(st.sampled_from(HOSTS), st.integers(0, GPUS - 1), st.floats(0.3, 0.85))
def test_one_slow_gpu_of_sixteen_is_named_and_no_other(host: str, gpu: int, share: float) -> None:
    assert list(blamed(judged(records(only((host, gpu), share))))) == [f"{host}:{gpu}"]


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
    assert blamed(found) == ({} if cause is None else {"h1:3": cause})
    assert (found.verdict.state is State.PASS) is (cause is None)
    if own == others == load(FREE, 1680):
        assert any("1680" in finding.message for finding in found.verdict.findings)


def test_a_gpu_that_is_slow_only_with_the_others_is_reported_as_hot() -> None:
    facts = reported("load", load({"thermal-hardware": 0.8}, kind="bf16"))
    hot = judged(records(only(BAD, 0.85, "bf16", "bf16-p5"), facts=facts)).suspects
    assert {(one.name, one.cause) for one in hot} == {
        ("h1:3", "slow-outlier"),
        ("h1:3", "gpu-throttled"),
    }
    slow = next(one for one in hot if one.cause == "slow-outlier")
    assert "alone it is as fast as the others: heat or power" in slow.why
    assert "thermal-hardware 80% of the time" in slow.why
    (alone,) = judged(records(only(BAD, 0.7))).suspects
    assert "heat" not in alone.why


#: Facts of links that were not read.
UNREAD: tuple[Any, ...] = (None, [], {"unread": "no pynvml"}, {"width": True})
FULL = {"width": 16, "width-max": 16, "generation": 5, "generation-max": 5}


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
        ({**FULL, "width": "8"}, 28.0, False),
        *((link, 28.0, False) for link in UNREAD),
    ],
)
def test_a_gpu_whose_link_has_less_than_it_can_while_it_carries_data_is_named(
    link: Any, gigabytes: float, *, named: bool
) -> None:
    def change(host: str, gpu: int, name: str, value: float) -> float | None:
        return gigabytes if (host, gpu) == BAD and name in WAYS else value

    made = records(change, step=MEMORY_STEP, facts=reported("pcie", link, FULL))
    # Without bounds, so that only the link can accuse the GPU.
    assert blamed(judged(made, MEMORY_STEP, references=())) == (
        {"h1:3": "pcie-degraded"} if named else {}
    )


@pytest.mark.parametrize("usual", [0.97, 0.42])
def test_a_slow_pair_of_gpus_is_named(usual: float) -> None:
    """The slow path is named even if many paths are slow, as without NVLink."""

    def change(host: str, gpu: int, name: str, value: float) -> float | None:
        if name != "p2p-least":
            return value
        return 0.1 if host == "h1" and gpu in (2, 5) else usual

    path = reported("p2p-least", "GPU 2 to GPU 5: 39 GB/s", at={("h1", 2), ("h1", 5)})
    found = judged(records(change, step=MEMORY_STEP, facts=path), MEMORY_STEP)
    assert blamed(found) == {"h1:2": "slow-outlier", "h1:5": "slow-outlier"}
    assert "p2p-least 0.1 (GPU 2 to GPU 5: 39 GB/s), " in found.suspects[1].why


@pytest.mark.parametrize("gpus", [range(GPUS), range(4)])
def test_copies_with_memory_of_the_other_socket_accuse_nobody(gpus: range) -> None:
    """A process that may not run near its GPU reports other metrics, and why."""

    def far(_host: str, gpu: int, name: str, value: float) -> float | None:
        return None if name in WAYS and gpu in gpus else value

    at = {(host, gpu) for host, gpu in EVERY if gpu in gpus}
    facts = reported("left-out", dict.fromkeys(WAYS, "no CPU near it"), {}, at=at)
    found = judged(records(far, step=MEMORY_STEP, facts=facts), MEMORY_STEP)
    assert (found.verdict.state, found.suspects) == (State.PASS, ())


@pytest.mark.parametrize(
    ("slow", "accused"), [(1, {}), (2, {"h0:5": "intermittent"}), (5, {"h0:5": "below-reference"})]
)
def test_a_gpu_that_is_slow_in_part_of_five_executions_is_named(
    slow: int, accused: dict[str, str]
) -> None:
    bad = [one for _ in range(slow) for one in records(only(("h0", 5), 0.6, "bf16"))]
    found = judged([*bad, *(one for _ in range(5 - slow) for one in records())])
    assert blamed(found) == accused
    if slow == 2:
        assert "slow in 2 of 5 executions" in found.suspects[0].why


@given(st.floats(0.1, 0.6))
@example(0.53515625)
def test_gpus_that_are_all_slow_fail_against_the_floor_and_nobody_is_named(share: float) -> None:
    found = judged(records(lambda _h, _g, _n, value: value * share))
    assert found.verdict.state is State.FAIL
    assert failed(found) == {"below-reference"}
    assert found.suspects == ()
    finding = next(f for f in found.verdict.findings if f.metric == "bf16" and f.peak)
    assert "in 16 of 16 devices, worst on GPU" in finding.message
    assert finding.peak == 989


def test_an_expectation_of_the_user_has_priority() -> None:
    wanted = parse_expectation("gemm.bf16>=900", source="--expect")
    found = judged(records(), references=(wanted, *bounds(MACHINE)))
    assert failed(found) == {"below-reference"}
    assert any(f.bound and f.bound.kind == "expectation" for f in found.verdict.findings)


def test_without_any_bound_it_is_inconclusive_and_shows_what_to_add() -> None:
    found = judged(records(), references=())
    assert found.verdict.state is State.INCONCLUSIVE
    assert any("--expect 'gemm.bf16>=TFLOP/s'" in f.message for f in found.verdict.findings)


def test_a_bound_without_a_measurement_does_not_pass() -> None:
    found = judged(records(lambda _h, _g, name, v: None if name.startswith("fp8") else v))
    assert found.verdict.state is State.INCONCLUSIVE
    left = Fact(name="left-out", value={"fp8": "not requested"}, check="gemm", host="h0", rank=0)
    explained = records(
        lambda _h, _g, name, v: None if name.startswith("fp8") else v, facts=lambda *_: [left]
    )
    assert judged(explained).verdict.state is State.PASS


def test_on_machines_without_a_speed_target_no_device_is_slow() -> None:
    found = judged(records(only(("h1", 3), 0.1)))
    assert found.suspects
    evidence = Evidence(
        check="gemm",
        plan=verdicts.plan(STEP, machine=replace(verdicts.CPU, ranks=GPUS)),
        steps=(STEP,),
        records=tuple(records(only(("h1", 3), 0.1))),
        found=Found(present=HOSTS),
    )
    found = checks.REGISTRY["gemm"].judge(evidence)
    assert (found.verdict.state, found.suspects) == (State.PASS, ())
    assert "no speed target" in found.verdict.required


# -- digests -------------------------------------------------------------------------------------


WRONG_3 = Problem(
    cause=Cause.WRONG_RESULT, message="GPU 3 of h1", check="gemm", host="h1", rank=3, gpu="3"
)
H1 = {(host, gpu) for host, gpu in EVERY if host == "h1"}
OTHER_SOFTWARE = {"random": "cc", "software": "torch 2.6, CUDA 12.4"}


@pytest.mark.parametrize(
    ("odd", "at", "problems", "fails", "named"),
    [
        ({"random": "cc"}, {BAD}, (), True, {"h1:3": "wrong-result"}),
        # A problem of the same GPU is not repeated.
        ({"exact": "cc"}, {BAD}, (WRONG_3,), True, {}),
        # Other software may give other bits, but not of the known product. Half of the GPUs have
        # each digest then: nobody can be named.
        (OTHER_SOFTWARE, H1, (), False, {}),
        ({**OTHER_SOFTWARE, "exact": "dd"}, H1, (), True, {}),
    ],
)
def test_a_gpu_whose_digest_differs_from_that_of_equal_gpus_is_named(
    odd: dict[str, str],
    at: set[tuple[str, int]],
    problems: tuple[Problem, ...],
    *,
    fails: bool,
    named: dict[str, str],
) -> None:
    facts = reported("digest", digest(**odd), digest(), at=at)
    # A count of wrong elements is not repeated either.
    change = value_of("bf16-wrong", 1.0) if problems else same
    found = judged(records(change, facts=facts, problems=problems, status=7))
    assert (failed(found), blamed(found)) == ({"wrong-result"} if fails else set(), named)
    messages = [f.message for f in found.verdict.findings if f.state is State.FAIL]
    assert not problems or messages == ["GPU 3 of h1"]


# -- missing results never pass ------------------------------------------------------------------


def broken(rank: int, check: str) -> tuple[Problem, ...]:
    message = f"GPU {rank} of h1 failed in copies"
    return (
        Problem(
            cause=Cause.CRASHED, message=message, check=check, host="h1", rank=rank, gpu=str(rank)
        ),
    )


def without_ways(host: str, gpu: int, name: str, value: float) -> float | None:
    """Drop all metrics of the first GPU of h1, and the paths between the GPUs of its host."""
    gone = host == "h1" and (gpu == 0 or name.startswith("p2p"))
    return None if gone else value


@pytest.mark.parametrize(
    ("check", "accused"), [("memory", {}), ("gemm", {"h1:0": "no-measurement"})]
)
def test_if_the_first_gpu_of_a_host_fails_the_others_are_not_accused(
    check: str, accused: dict[str, str]
) -> None:
    """The record has the problem of the first GPU, whichever check it belongs to."""
    made = records(without_ways, step=MEMORY_STEP, problems=broken(0, check), status=1)
    assert blamed(judged(made, MEMORY_STEP)) == accused


def test_if_another_gpu_fails_the_paths_of_its_host_are_still_required() -> None:
    def change(host: str, gpu: int, name: str, value: float) -> float | None:
        gone = host == "h1" and (gpu == 3 or (gpu == 5 and name == "p2p-in"))
        return None if gone else value

    made = records(change, step=MEMORY_STEP, problems=broken(3, "memory"), status=1)
    assert blamed(judged(made, MEMORY_STEP)) == {"h1:5": "no-measurement"}


def test_a_host_that_reports_why_it_left_out_the_paths_between_its_gpus_is_not_accused() -> None:
    def left(host: str, gpu: int) -> list[Fact]:
        why = dict.fromkeys(("p2p-out", "p2p-in"), "rank 0 sees 1 of 8 GPUs")
        fact = Fact(name="left-out", value=why, check="memory", host="h1", rank=0)
        return [fact] if (host, gpu) == ("h1", 0) else []

    def change(host: str, _gpu: int, name: str, value: float) -> float | None:
        return None if host == "h1" and name.startswith("p2p") else value

    found = judged(records(change, step=MEMORY_STEP, facts=left), MEMORY_STEP)
    assert (found.verdict.state, found.suspects) == (State.PASS, ())
    assert any("sees 1 of 8 GPUs" in f.message for f in found.verdict.findings)
    silent = judged(records(change, step=MEMORY_STEP), MEMORY_STEP)
    assert silent.verdict.state is State.FAIL, "a host without a reason must have the metrics"


@pytest.mark.parametrize("ranks", [range(GPUS), range(1, GPUS, 2)])
@pytest.mark.parametrize("lacks", ["all", "exact", "random"])
def test_a_gpu_that_does_not_report_its_products_does_not_pass(ranks: range, lacks: str) -> None:
    def cut(fact: Fact) -> Fact:
        kept = (
            {} if lacks == "all" else {k: v for k, v in mapping(fact.value).items() if k != lacks}
        )
        return replace(fact, value=kept) if fact.rank in ranks else fact

    made = [replace(r, facts=tuple(map(cut, r.facts))) for r in records()]
    assert failed(judged(made)) == {"no-measurement"}


@pytest.mark.parametrize(("tested", "state"), [(0.004, State.PASS), (0.0, State.FAIL)])
def test_a_small_share_of_the_memory_of_a_cpu_host_is_enough(tested: float, state: State) -> None:
    made = [
        replace(
            r,
            metrics=tuple(
                replace(m, gpu=None, value=tested if m.name == "tested" else m.value)
                for m in r.metrics
            ),
        )
        for r in records(step=MEMORY_STEP)
    ]
    machine = replace(verdicts.CPU, ranks=GPUS)
    evidence = Evidence(
        check="memory",
        plan=verdicts.plan(MEMORY_STEP, machine=machine),
        steps=(MEMORY_STEP,),
        records=tuple(made),
        found=Found(present=HOSTS),
    )
    assert checks.REGISTRY["memory"].judge(evidence).verdict.state is state


def test_a_log_without_measurements_does_not_pass() -> None:
    found = judged(records(lambda *_: None))
    assert found.verdict.state is State.FAIL
    assert failed(found) == {"no-measurement"}


def test_not_a_number_in_a_log_is_a_failure_of_that_gpu() -> None:
    line = (
        b'ACCEPT {"metric":"bf16","value":"nan","unit":"TFLOP/s","check":"gemm",'
        b'"host":"h1","rank":7,"gpu":"7"}\n'
    )
    (problem,) = checks.REGISTRY["gemm"].parse([line]).problems
    assert (problem.cause, problem.host, problem.gpu) == ("not-finite", "h1", "7")


@given(st.recursive(st.none() | st.integers() | st.text(), st.lists))
def test_damaged_facts_do_not_end_the_judge(value: Any) -> None:
    names = ("digest", "load", "left-out")
    damaged = [Fact(name=name, value=value, check="gemm", host="h0", rank=0) for name in names]
    held = Fact(name="load", value={"type": "bf16", "held": value, "MHz": value}, rank=3)
    judged(records(only(("h1", 3), 0.5), facts=lambda *_: [*damaged, held]))


# -- one device does not hide the others ---------------------------------------------------------


def test_a_gpu_that_broke_is_named_and_the_others_are_judged() -> None:
    broke = Problem(
        cause=Cause.CRASHED, message="GPU 4 of h1 failed", check="gemm", host="h1", rank=4, gpu="4"
    )
    gone = only(("h1", 4), None)
    found = verdict(records(gone, problems=(broke,), status=1))
    assert (found.state, found.exit) == (State.DEGRADED, 3)
    assert [(s.kind, s.name) for s in found.suspects] == [("gpu", "h1:4")]


def verdict(found: list[Record]) -> Verdict:
    step = verdicts.step("inventory", "each", number=5)
    inventories = [
        verdicts.record(
            step,
            (host,),
            facts=(verdicts.inventory_of(host, gpus=_h200(host)),),
            number=number,
            ranks=GPUS,
        )
        for number, host in enumerate(HOSTS)
    ]
    machine = replace(MACHINE.planned(), rdma_devices=0, transport="")
    plan = verdicts.plan(step, STEP, machine=machine, nodes=2, references=bounds(MACHINE))
    return judge_run(
        plan, [verdicts.hosts_record(HOSTS), *inventories, *found], checks=REGISTRY, attempt="one"
    )


def _h200(host: str) -> list[dict[str, Any]]:
    return [{**gpu, "name": "NVIDIA H200"} for gpu in verdicts.gpus(host)]


# -- bounds and plans ----------------------------------------------------------------------------


@pytest.mark.parametrize("name", config.names("machines"))
def test_every_gpu_machine_has_a_bound_for_compute_and_for_memory(name: str) -> None:
    machine = config.load_machine(name).value
    bounded = {bound.check for bound in bounds(machine)}
    wanted = {"gemm", "memory"} if machine.gpus.count != 0 else set()
    assert bounded >= wanted
    assert machine.gpus.count != 0 or not bounded


@pytest.mark.parametrize(
    ("name", "lower"),
    [("g4-standard-48", 19.2), ("a100-8", 20.8), ("h200-8", 38.4), ("gb200-4x", 67.5)],
)
def test_the_links_to_the_host_have_bounds(name: str, lower: float) -> None:
    found = {one.metric: one for one in bounds(config.load_machine(name).value)}
    assert [found[way].lower for way in WAYS] == [pytest.approx(lower)] * 2


def test_bounds_of_single_gpus_and_nics_apply_to_a_part_of_a_node() -> None:
    part = bounds(MACHINE, "default", 4)
    assert {bound.check for bound in part} == {"burn", "gemm", "memory", "nic-loop"}


@pytest.mark.parametrize("suite", config.names("suites"))
def test_both_checks_share_one_launch_in_every_suite(suite: str) -> None:
    for machine in ("cpu", "h200-8"):
        steps = resolve(
            Options(machine=machine, suite=suite, nodes=2, hosts=HOSTS, backend="ssh")
        ).plan.steps
        (step,) = [one for one in steps if "gemm" in one.checks]
        assert (step.checks, step.groups) == (("gemm", "memory"), "each")


def test_soak_keeps_all_gpus_at_their_limit_for_an_hour_and_ends_before_its_deadline() -> None:
    options = Options(machine="h200-8", suite="soak", nodes=2, hosts=HOSTS, backend="ssh")
    plan = resolve(options).plan
    (step,) = [one for one in plan.steps if "gemm" in one.checks]
    assert float(step.params["seconds"]) * len(HEALTHY) >= 3600
    assert step.timeout > 1.5 * step.estimate
    (train,) = [one for one in plan.steps if one.checks == ("train",)]
    assert train.estimate < step.estimate, "a small model leaves a GPU nearly idle"
    assert sum(one.estimate for one in plan.steps) < 0.8 * plan.deadline_seconds
