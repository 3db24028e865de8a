"""Gather what the printed first page certifies: what was accepted, by which criteria."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from accept.core.causes import Judgement
from accept.core.facts import Inventory
from accept.core.judge.summary import node_lists
from accept.core.plan import Bound, BoundKind
from accept.core.serde import dump
from accept.core.text import folded, format_size, number
from accept.core.verdict import Finding
from accept.report.data import Run

#: With more nodes, only the digest of the list of devices is printed.
_MOST_LISTED = 128


@dataclass(frozen=True, kw_only=True)
class Criterion:
    """A bound that judged a figure, or an expectation of the user without a figure."""

    check: str
    figure: str
    #: Nodes of the measured groups; empty: nothing was measured.
    nodes: str
    #: Limits with unit; empty: none on this side.
    fail_below: str
    expected: str
    at_most: str
    #: The worst value; empty: nothing was measured.
    measured: str
    #: Number of the source in the list of sources, from 1.
    source: int
    #: True if it is the user's own.
    own: bool


@dataclass(frozen=True, kw_only=True)
class NodeDevices:
    """A node with its serial number, and its GPUs."""

    host: str
    #: Empty: not reported.
    serial: str
    #: UUID and serial number of each GPU, as far as they are known.
    gpus: tuple[str, ...]
    state: str


@dataclass(frozen=True, kw_only=True)
class Certificate:
    """The facts of the first page when the report is printed."""

    good: str
    bad: str
    untested: str
    gpus: int
    gpu_hours: float
    criteria: tuple[Criterion, ...]
    #: The sources of the criteria, in order.
    sources: tuple[str, ...]
    #: SHA-256 of the user's expectations as JSON, one line each, sorted; empty: there are none.
    expectations_hash: str
    #: Name and value, as most nodes reported it.
    versions: tuple[tuple[str, str], ...]
    nodes: tuple[NodeDevices, ...]
    #: SHA-256 of all nodes and UUIDs, one line each, sorted.
    devices_hash: str


def certificate(run: Run) -> Certificate:
    """Return the facts about a run for its certificate."""
    lists = node_lists(run.verdict)
    inventories = run.inventories
    devices = tuple(
        NodeDevices(
            host=host,
            serial=inventories[host].serial if host in inventories else "",
            gpus=tuple(_gpus(inventories[host])) if host in inventories else (),
            state=lists.states[host],
        )
        for host in (*run.verdict.hosts, *run.verdict.missing)
    )
    gpus = sum(len(inventory.gpus) for inventory in inventories.values())
    per_node = run.plan.gpus_used or run.plan.machine.gpus or 0
    counted = gpus if run.plan.gpus_used is None and gpus else per_node * len(run.verdict.hosts)
    listed = sorted(
        f"{host} {gpu.uuid}" for host, one in inventories.items() for gpu in one.gpus if gpu.uuid
    )
    judged = _judged(run)
    sources = tuple(dict.fromkeys(bound.source for _, bound in judged))
    return Certificate(
        good=folded(lists.good),
        bad=folded(lists.bad),
        untested=folded(lists.untested),
        gpus=gpus,
        gpu_hours=counted * max(run.verdict.end - run.verdict.start, 0.0) / 3600,
        criteria=tuple(_criterion(finding, bound, sources) for finding, bound in judged),
        sources=sources,
        expectations_hash=_expectations_hash(run),
        versions=tuple(_versions(run)),
        nodes=devices if len(devices) <= _MOST_LISTED else (),
        devices_hash=hashlib.sha256("\n".join(listed).encode()).hexdigest() if listed else "",
    )


def _gpus(inventory: Inventory) -> Iterator[str]:
    for gpu in inventory.gpus:
        serial = f"({gpu.serial})" if gpu.serial else ""
        if text := " ".join(filter(None, (gpu.uuid, serial))):
            yield text


def _expectations_hash(run: Run) -> str:
    """Return the hash of the user's expectations, without the places of their definition."""
    own = [r for r in run.plan.references if r.kind is BoundKind.EXPECTATION]
    lines = sorted(json.dumps(dump(replace(one, source="")), sort_keys=True) for one in own)
    return hashlib.sha256("\n".join(lines).encode()).hexdigest() if lines else ""


def _judged(run: Run) -> list[tuple[Finding, Bound]]:
    """Return the findings about bounds, the user's own first; of equal ones, the worst value."""
    worst: dict[tuple[object, ...], tuple[Finding, Bound]] = {}
    for check in run.verdict.checks:
        for finding in check.findings:
            bound = finding.bound
            if finding.judgement is not Judgement.ABSOLUTE or bound is None:
                continue
            key = (finding.check, finding.metric, finding.size, finding.nodes, bound)
            known = worst.setdefault(key, (finding, bound))[0]
            if _badness(finding, bound) > _badness(known, bound):
                worst[key] = finding, bound
    return sorted(worst.values(), key=lambda one: one[1].kind is not BoundKind.EXPECTATION)


def _badness(finding: Finding, bound: Bound) -> float:
    value = finding.value or 0.0
    return value if bound.lower is None else -value


def _criterion(finding: Finding, bound: Bound, sources: Sequence[str]) -> Criterion:
    def text(value: float | None) -> str:
        return "" if value is None else f"{number(value)} {finding.unit}"

    return Criterion(
        check=finding.check,
        figure=f"{finding.metric} {format_size(finding.size) if finding.size else ''}".strip(),
        nodes=str(finding.nodes or ""),
        fail_below=text(bound.lower),
        expected=text(bound.expected),
        at_most=text(bound.upper),
        measured=text(finding.value),
        source=sources.index(bound.source) + 1,
        own=bound.kind is BoundKind.EXPECTATION,
    )


def _versions(run: Run) -> list[tuple[str, str]]:
    counts: dict[str, Counter[str]] = {}
    for inventory in run.inventories.values():
        for gpu in inventory.gpus[:1]:
            if gpu.driver:
                counts.setdefault("driver", Counter())[gpu.driver] += 1
        for name, version in inventory.versions.items():
            if version:
                counts.setdefault(name, Counter())[version] += 1
        if inventory.kernel:
            counts.setdefault("kernel", Counter())[inventory.kernel] += 1
    return [
        (name, " and ".join(value for value, n in own.items() if n == max(own.values())))
        for name, own in counts.items()
    ]
