"""Published figures of healthy nodes are not rejected, and every bound leaves room below them.

The figures are data: tests/data/published.yaml. Whole logs are in tests/data, too.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Annotated, Literal

import pytest
from tests.factories import verdicts
from tests.factories.command_line import accept
from tests.factories.paths import TESTS
from tests.factories.real_logs import PUBLISHED, REPOSITORY

from accept import config
from accept.config.floors import Floor, bounds, figures_of, floors
from accept.config.machine import Machine
from accept.config.yaml_file import read_file
from accept.core.causes import Cause, Judgement
from accept.core.checks import REGISTRY
from accept.core.judge import judge
from accept.core.plan import BoundKind, GroupKind, Plan
from accept.core.records import Metric, Placement
from accept.core.serde import Pattern
from accept.core.text import parse_size
from accept.core.verdict import Finding, State
from accept.plan.resolve import Options, resolve


@dataclass(frozen=True, kw_only=True)
class Row:
    """A published figure of healthy nodes."""

    machine: str
    check: str
    metric: str = "busbw"
    figure: float
    unit: str
    size: str = ""
    nodes: int = 1
    gpus_per_node: Literal[1] | None = None
    profile: str = "default"
    kind: Literal["measured", "threshold"] = "measured"
    settings: Literal["good", "other"] = "good"
    date: Annotated[str, Pattern(r"\d{4}-\d\d-\d\d", "a day")]
    source: Annotated[str, Pattern(r"(https://|run:)\S+", "a URL, or run:NAME")]

    @property
    def name(self) -> str:
        """Return the name for the ID of a test."""
        return f"{self.machine}-{self.check}.{self.metric}-{self.nodes}-{self.figure:g}"

    def loaded(self) -> Machine:
        """Return the machine."""
        return config.load_machine(self.machine).value


@dataclass(frozen=True, kw_only=True)
class _File:
    figures: tuple[Row, ...]


ROWS = read_file(_File, TESTS / "data" / "published.yaml").figures


def findings(row: Row, share: float = 1.0) -> list[Finding]:
    """Judge a run in which everything reached a share of a figure; return its bounds."""
    machine = row.loaded()
    hosts = verdicts.hosts(row.nodes)
    ranks = row.gpus_per_node or machine.planned().gpus or 1
    groups = GroupKind.RAILS if row.gpus_per_node else GroupKind.ALL
    step = verdicts.step(row.check, groups, params=dict(machine.parameters.get(row.check, {})))
    inventory = verdicts.step("inventory", "each", number=5)
    plan = verdicts.plan(
        inventory,
        step,
        machine=machine.planned(row.profile),
        nodes=row.nodes,
        references=bounds(machine, row.profile),
    )
    listed = [{**gpu, "name": machine.gpus.device} for gpu in verdicts.gpus("", ranks)]
    rack = {"domain": "c/7"} if row.nodes <= (machine.nvlink.nodes if machine.nvlink else 1) else {}
    facts = [verdicts.inventory_of(host, gpus=listed, **rack) for host in hosts]
    each = [
        verdicts.record(inventory, (host,), facts=(fact,), number=number, ranks=ranks)
        for number, (host, fact) in enumerate(zip(hosts, facts, strict=True))
    ]
    record = verdicts.record(step, hosts, _metric(row, share, hosts[0]), ranks=ranks * row.nodes)
    if row.gpus_per_node:
        record = replace(record, local_ranks=(0,))
    verdict = judge(
        plan, [verdicts.hosts_record(hosts), *each, record], checks=REGISTRY, attempt="one"
    )
    return [
        finding
        for check in verdict.checks
        for finding in check.findings
        if finding.judgement is Judgement.ABSOLUTE and finding.metric == row.metric
    ]


def _metric(row: Row, share: float, host: str) -> Metric:
    value = row.figure * share * (1 + 1e-9)
    metric = Metric(check=row.check, name=row.metric, value=value, unit=row.unit)
    if REGISTRY[row.check].devices:
        return replace(metric, host=host, rank=0, gpu="0")
    top = row.size or str(row.loaded().parameters[row.check]["max"])
    return replace(metric, size=parse_size(top), placement=Placement.OUT)


def _failed(found: list[Finding]) -> list[str]:
    return [finding.message for finding in found if finding.state is State.FAIL]


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_a_published_figure_has_a_bound_with_room_below_it(row: Row) -> None:
    found = findings(row)
    assert found
    assert _failed(found) == []
    if row.kind == "measured":
        assert _failed(_ours(findings(row, 0.85))) == []
    if row.kind == "measured" and row.settings == "good":
        assert {finding.state for finding in found} == {State.PASS}
        below = _ours(findings(row, 0.92))
        assert [f.message for f in below if f.state is not State.PASS] == []


def _lowest() -> dict[tuple[str, str], Row]:
    """Return the lowest figure of each chip and data type for which its machine states one."""
    lowest: dict[tuple[str, str], Row] = {}
    for row in ROWS:
        stated = {f.metric for f in row.loaded().references if f.check == row.check == "gemm"}
        if row.metric in stated:
            one = row.machine, row.metric
            lowest[one] = min(row, lowest.get(one, row), key=lambda r: r.figure)
    return lowest


@pytest.mark.parametrize("row", _lowest().values(), ids=lambda row: row.name)
def test_gpus_that_are_all_15_percent_slower_do_not_pass(row: Row) -> None:
    """A clock that is limited on all GPUs leaves no peer to compare with."""
    assert State.PASS not in {finding.state for finding in findings(row, 0.85)}


def _ours(found: list[Finding]) -> list[Finding]:
    """Return findings of bounds that we chose; for its own threshold the vendor answers."""
    return [f for f in found if f.bound is None or f.bound.kind is not BoundKind.VENDOR]


@lru_cache(maxsize=1)
def _published_floors() -> frozenset[tuple[int, str]]:
    """Return the position and check of each floor that bounds some published figure."""
    return frozenset(
        (position, check)
        for position, floor in enumerate(floors())
        for row in ROWS
        if row.source.startswith("https:") and _bounds(floor, row)
        for check in _same_path(floor, row.check)
    )


def _same_path(floor: Floor, check: str) -> set[str]:
    """Return the checks of a floor for which a figure of one of them counts.

    A reduce-scatter sends what an all-gather sends, in the other direction. An all-reduce between
    single GPUs of nodes is both, one after the other.
    """
    halves = {"all-gather", "reduce-scatter"}
    if check in halves or (check == "all-reduce" and floor.of == "gpu"):
        return {check, *halves}
    return {check}


def _bounds(floor: Floor, row: Row) -> bool:
    """Return True if a bound from this floor applies to a figure."""
    return any(
        (figure.check, figure.metric) == (row.check, row.metric)
        and (figure.min_nodes or 1) <= row.nodes <= (figure.max_nodes or row.nodes)
        and figure.per_rail is bool(row.gpus_per_node)
        for figure in figures_of(floor, row.loaded(), row.profile)
    )


@pytest.mark.parametrize(
    ("position", "check"),
    [(position, check) for position, floor in enumerate(floors()) for check in floor.checks],
)
def test_a_floor_without_a_published_figure_of_its_check_is_derived(
    position: int, check: str
) -> None:
    floor = floors()[position]
    name = f"{check} {floor.of} {floor.reach} {floor.min_nodes}"
    published = (position, check) in _published_floors()
    assert (floor.kind is BoundKind.FLOOR) is published, name
    assert floor.kind is not BoundKind.DERIVED or floor.share <= 0.5, name


def _machines() -> list[str]:
    return [name for name in config.names("machines") if config.load_machine(name).value.references]


@pytest.mark.parametrize("name", _machines())
def test_a_figure_of_a_machine_is_published_and_has_room(name: str) -> None:
    published = {(row.check, row.metric, row.nodes, row.figure) for row in ROWS}
    for figure in config.load_machine(name).value.references:
        if figure.upper is None and figure.kind not in (BoundKind.DERIVED, BoundKind.FLOOR):
            subject = figure.check, figure.metric, figure.min_nodes or 1, figure.value
            assert subject in published, subject
            if figure.kind is BoundKind.MEASURED:
                assert (figure.share or 1) <= 0.85, subject
                assert (figure.expected or 0) <= 0.92, subject


@pytest.mark.parametrize("name", _machines())
def test_no_floor_requires_more_than_the_vendor_of_the_same_path(name: str) -> None:
    machine = config.load_machine(name).value
    for own in (one for one in machine.references if one.kind is BoundKind.VENDOR):
        same = {check for floor in floors() if own.check in floor.checks for check in floor.checks}
        for bound in bounds(machine):
            same_nodes = (bound.min_nodes, bound.max_nodes) == (own.min_nodes, own.max_nodes)
            if bound.check in same and same_nodes and bound.metric == own.metric:
                assert (bound.lower or 0) <= (own.value or 0) * (own.share or 1) + 1e-9


#: Chips whose figures are published, by a machine that has them.
_CHIPS = sorted({row.machine for row in ROWS if row.check == "gemm"})


@pytest.mark.parametrize("name", _CHIPS)
def test_a_host_that_shows_one_gpu_has_the_bounds_of_its_chip(name: str) -> None:
    chip = config.load_machine(name).value
    here = {
        (b.check, b.metric, b.lower, b.expected)
        for b in bounds(config.load_machine("gpu").value)
        if b.device == chip.gpus.device and REGISTRY[b.check].devices
    }
    own = {(b.check, b.metric, b.lower, b.expected) for b in bounds(chip, gpus_per_node=1)}
    assert here <= own
    published = {(r.check, r.metric) for r in ROWS if REGISTRY[r.check].devices}
    published = {one for one in published if one in {(c, m) for c, m, *_ in own}}
    assert {(check, metric) for check, metric, *_ in here} >= {
        (check, metric)
        for check, metric in published
        if metric not in ("p2p-in", "p2p-out", "triad")
    }


@pytest.mark.parametrize("name", _CHIPS)
def test_one_gpu_of_a_big_machine_can_be_judged_by_its_bounds(name: str) -> None:
    plan, failed = _with_one_gpu(name, shown=1)
    assert failed == []
    assert (plan.machine.nvlinks, plan.machine.rdma_devices) == (0, 0)


def test_a_host_that_lacks_one_of_its_gpus_fails_if_the_run_uses_one() -> None:
    _, failed = _with_one_gpu("h100-8", shown=7)
    assert [finding.cause for finding in failed] == [Cause.GPU_MISSING]


def _with_one_gpu(machine: str, *, shown: int) -> tuple[Plan, list[Finding]]:
    """Judge the inventory of a host that shows some GPUs, in a run that uses one."""
    options = Options(machine=machine, backend="local", nodes=1, gpus_per_node=1)
    plan = resolve(options).plan
    (inventory,) = [step for step in plan.steps if step.checks == ("inventory",)]
    plan = replace(plan, steps=(inventory,), skipped=())
    listed = [{**gpu, "name": plan.machine.device} for gpu in verdicts.gpus("", shown)]
    fact = verdicts.inventory_of("h0", gpus=listed, pciNvidia=shown)
    records = [
        verdicts.hosts_record(("h0",)),
        verdicts.record(inventory, ("h0",), facts=(fact,), ranks=1),
    ]
    verdict = judge(plan, records, checks=REGISTRY, attempt="one")
    return plan, [f for c in verdict.checks for f in c.findings if f.state is State.FAIL]


#: Machines of the published logs that name none, and the number of nodes that their tables imply.
LOGS = {
    "aws-nccl-tests": "p5.48xlarge",
    "gke-a3-mega": "a3-megagpu-8g",
    "gke-rdma": "a4-highgpu-8g",
}


@pytest.mark.parametrize("name", LOGS)
def test_a_published_log_of_a_vendor_is_not_rejected(name: str) -> None:
    done = accept("judge", PUBLISHED / f"{name}.log", "--machine", LOGS[name], "--json")
    assert done.code in (0, 6, 7), done.out


def test_logs_of_healthy_nodes_are_not_rejected() -> None:
    done = accept("judge", REPOSITORY, "--machine", "h100-8", "--json")
    assert done.code in (0, 7), done.out
