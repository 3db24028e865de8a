"""Gather what the printed first page certifies: what was accepted, by which criteria."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace

from accept.core.facts import Inventory
from accept.core.judge.bounds import bound_text
from accept.core.judge.summary import node_lists
from accept.core.model import BoundKind, Reference
from accept.core.serde import dump
from accept.core.text import folded, format_size
from accept.report.data import Run

#: With more nodes, only the digest of the list of devices is printed.
_MOST_LISTED = 128


@dataclass(frozen=True, kw_only=True)
class Criterion:
    """A bound that the run was judged by."""

    check: str
    figure: str
    required: str
    source: str
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
    states = {host: name for name, hosts in vars(lists).items() for host in hosts}
    inventories = run.inventories
    devices = tuple(
        NodeDevices(
            host=host,
            serial=inventories[host].serial if host in inventories else "",
            gpus=tuple(_gpus(inventories[host])) if host in inventories else (),
            state=states.get(host, "untested"),
        )
        for host in (*run.verdict.hosts, *run.verdict.missing)
    )
    gpus = sum(len(inventory.gpus) for inventory in inventories.values())
    per_node = run.plan.gpus_used or run.plan.machine.gpus or 0
    counted = gpus if run.plan.gpus_used is None and gpus else per_node * len(run.verdict.hosts)
    listed = sorted(
        f"{host} {gpu.uuid}" for host, one in inventories.items() for gpu in one.gpus if gpu.uuid
    )
    return Certificate(
        good=folded(lists.good),
        bad=folded(lists.bad),
        untested=folded(lists.untested),
        gpus=gpus,
        gpu_hours=counted * max(run.verdict.end - run.verdict.start, 0.0) / 3600,
        criteria=tuple(_criteria(run)),
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


def _criteria(run: Run) -> list[Criterion]:
    measured = {check for step in run.plan.steps for check in step.checks}
    bounds = [r for r in run.plan.references if r.check in measured and _has_limit(r)]
    bounds.sort(key=lambda bound: bound.kind is not BoundKind.EXPECTATION)
    return [
        Criterion(
            check=bound.check,
            figure=f"{bound.metric} {format_size(bound.size) if bound.size else ''}".strip(),
            required=bound_text(bound),
            source=bound.source,
            own=bound.kind is BoundKind.EXPECTATION,
        )
        for bound in bounds
    ]


def _has_limit(bound: Reference) -> bool:
    return bound.lower is not None or bound.upper is not None


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
    return [(name, values.most_common(1)[0][0]) for name, values in counts.items()]
