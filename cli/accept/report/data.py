"""Prepare the data that several figures of a report share: populations, inventories, times."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from statistics import median
from typing import NamedTuple

from accept.core.causes import Cause
from accept.core.checks import REGISTRY
from accept.core.facts import Inventory, inventories_of
from accept.core.judge import bounds, gathered
from accept.core.judge.effects.explanation import Normal
from accept.core.judge.evidence import Evidence, Found
from accept.core.judge.explained import Effects
from accept.core.judge.peers import far_from_median
from accept.core.judge.results import compare, scored
from accept.core.judge.values import is_bad, limit_of, lowest_good
from accept.core.plan import GroupKind, Plan, Step
from accept.core.records import Record
from accept.core.table import BANDWIDTH, LATENCY, Measure, Row, planned_sizes
from accept.core.text import format_size
from accept.core.verdict import Verdict

#: Suffixes of metrics that repeat another one under other conditions.
_TAILS = ("-p5", "-least", "-most", "-alone", "-wrong")


class Sample(NamedTuple):
    """The result of one execution, as the judge sees it."""

    hosts: tuple[str, ...]
    #: Higher is better; None: nothing was measured.
    value: float | None
    #: The cause of a failure.
    cause: Cause | None
    log: str
    #: It failed, is below its bound or slower than noise and distance explain, or a fault explains
    #: what it lost.
    bad: bool
    #: Start of the execution in seconds since 1970; 0: unknown.
    start: float = 0.0
    #: It is not bad, but slower than others: distance may explain that.
    far: bool = False


@dataclass(frozen=True, kw_only=True)
class Population:
    """Executions of one check that healthy hosts finish equally fast."""

    check: str
    step: Step
    #: Number of hosts of each execution.
    nodes: int
    measure: Measure
    #: Message size in bytes; None: the metric has none.
    size: int | None
    samples: tuple[Sample, ...]
    #: What the healthy ones reach; None: too few.
    normal: Normal | None
    #: The value below which one fails; None: no bound.
    bound: float | None
    #: True if other steps measured the same check on the same kind of groups.
    is_one_of_several: bool = False

    @property
    def lowest_good(self) -> float | None:
        """Return the value below which an execution is bad; None: nothing shows it."""
        return lowest_good(self.normal, self.bound)

    @property
    def band(self) -> tuple[float, float] | None:
        """Return the limits of what is as usual; None: too few values."""
        if self.normal is None:
            return None
        lowest = limit_of(self.normal)
        return lowest, 2 * self.normal.value - lowest

    @property
    def name(self) -> str:
        """Return check and size."""
        return f"{self.check} {format_size(self.size)}" if self.size else self.check

    @property
    def label(self) -> str:
        """Return check and size, and the step or the kind of groups."""
        return self.title if self.is_one_of_several else f"{self.name} ({self.step.groups})"

    @property
    def title(self) -> str:
        """Return check and size, and the step if others measured the same."""
        return f"{self.name} (step {self.step.id})" if self.is_one_of_several else self.name

    def compared(self, samples: Iterable[Sample]) -> str:
        """Return what samples measured, beside normal if it is known; empty if nothing was."""
        values = measured(samples)
        if not (values and self.normal):
            return self.measure.range(values) if values else ""
        return self.measure.compared(values, self.normal.value)

    @property
    def limits(self) -> str:
        """Return what is normal, slow and a failure, for people; empty if all is unknown."""
        side = "above" if self.measure.inverse else "below"
        parts = (
            ("normal", self.normal.value if self.normal else None),
            (f"slow {side}", limit_of(self.normal) if self.normal else None),
            (f"fails {side}", self.bound),
        )
        return ", ".join(f"{name} {self.measure.text(value)}" for name, value in parts if value)

    def values_of(self, samples: Iterable[Sample]) -> str:
        """Return the values of samples beside the normal one, and how many are bad, for people."""
        own = list(samples)
        values = measured(own)
        parts = [*dict.fromkeys(str(one.cause) for one in own if one.cause)]
        if values:
            parts.insert(0, self.compared(own))
        elif not parts:
            parts.append("nothing was measured")
        bad = sum(one.bad for one in own)
        if len(own) > 1:
            parts.append(f"{bad or 'none'} of {len(own)} bad")
        return ", ".join(parts)


@dataclass(frozen=True, kw_only=True)
class DeviceValues:
    """One metric that each GPU measured by itself, or a tool on each node."""

    check: str
    metric: str
    unit: str
    #: False: the values are those of nodes.
    of_gpus: bool = True
    #: Host and local rank, or host and GPU for a tool -> value.
    values: Mapping[tuple[str, int], float]
    median: float
    #: The lowest value that noise explains; None: too few to compare.
    lowest: float | None

    @property
    def title(self) -> str:
        """Return check and metric."""
        return f"{self.check} {self.metric}"

    def of_host(self, host: str) -> dict[int, float]:
        """Return the values of one node by local rank or GPU."""
        return {number: value for (name, number), value in self.values.items() if name == host}


@dataclass(frozen=True, kw_only=True)
class Run:
    """Everything that a report shows: plan, verdict and records of a run."""

    plan: Plan
    verdict: Verdict
    records: tuple[Record, ...]
    #: SHA-256 of the evidence's list of checksums; empty: it has none.
    evidence_hash: str = ""
    #: The next commands to type, in order, each with its purpose.
    commands: tuple[tuple[str, str], ...] = ()

    @cached_property
    def _gathered(self) -> tuple[Found, dict[str, Evidence]]:
        return gathered(
            self.plan, self.records, checks=REGISTRY, interruption=self.verdict.interruption
        )

    @property
    def found(self) -> Found:
        """Return the hosts of the run."""
        return self._gathered[0]

    @property
    def evidences(self) -> Mapping[str, Evidence]:
        """Return the evidence of each check."""
        return self._gathered[1]

    @cached_property
    def effects(self) -> Effects:
        """Return what explains the results of all collectives."""
        return compare(scored(self.evidences.values(), REGISTRY))

    @cached_property
    def order(self) -> tuple[str, ...]:
        """Return all hosts by their places in the network, then in the run's order."""
        places = self.found.places
        hosts = (*self.verdict.hosts, *self.verdict.missing)
        position = {host: index for index, host in enumerate(hosts)}
        return tuple(sorted(position, key=lambda host: (places.get(host, "~"), position[host])))

    @cached_property
    def suspects(self) -> frozenset[str]:
        """Return the hosts that are bad themselves."""
        return self.verdict.accused

    @property
    def rank_noun(self) -> str:
        """Return the noun for what a rank uses; without GPUs, that is nothing but the rank."""
        return "GPU" if self.verdict.gpu_tested else "rank"

    @cached_property
    def inventories(self) -> Mapping[str, Inventory]:
        """Return the last inventory of each host, in the run's order."""
        return inventories_of(self.records, self.verdict.hosts)

    @cached_property
    def populations(self) -> tuple[Population, ...]:
        """Return the populations of single hosts and of pairs, in the order of the plan."""
        return tuple(self._populations())

    @cached_property
    def _starts(self) -> Mapping[str, Mapping[tuple[frozenset[str], str], float]]:
        """Return the start of each execution by its step, hosts and log."""
        found: dict[str, dict[tuple[frozenset[str], str], float]] = {}
        for one in self.records:
            found.setdefault(one.step, {})[frozenset(one.hosts), one.log] = one.start
        return found

    def _populations(self) -> Iterator[Population]:
        for evidence in scored(self.evidences.values(), REGISTRY):
            inverse = evidence.check == "latency"
            measure = LATENCY if inverse else BANDWIDTH
            for step in evidence.steps:
                nodes = {GroupKind.EACH: 1, GroupKind.PAIRS: 2}.get(step.groups)
                if nodes is None:
                    continue
                found, sizes = self.effects.speed, planned_sizes(step)
                bound = bounds.lowest(evidence, step, measure, nodes)
                starts = self._starts.get(step.id, {})
                wrong = {e.log for e in self.effects.wrong.executions if e.value is None}
                samples = [
                    Sample(
                        one.hosts,
                        one.value,
                        Cause.WRONG_DATA if one.log in wrong else found.causes.get(i),
                        one.log,
                        found.is_affected(i) or one.log in wrong or is_bad(one.value, bound),
                        starts.get((frozenset(one.hosts), one.log), 0.0),
                        found.is_far(i),
                    )
                    for i in found.of(evidence.check, step)
                    if len((one := found.executions[i]).hosts) == nodes
                ]
                if samples:
                    yield Population(
                        is_one_of_several=sum(s.groups is step.groups for s in evidence.steps) > 1,
                        check=evidence.check,
                        step=step,
                        nodes=nodes,
                        measure=measure,
                        size=sizes[-1] if sizes and not inverse else None,
                        samples=tuple(samples),
                        normal=found.normal(evidence.check, step),
                        bound=bound,
                    )

    @cached_property
    def pairs(self) -> frozenset[frozenset[str]]:
        """Return the pairs that suspects make bad."""
        found = (frozenset(pair.hosts) for s in self.verdict.suspects for pair in s.pairs)
        return frozenset(found)

    @cached_property
    def devices(self) -> tuple[DeviceValues, ...]:
        """Return the rates that each GPU measured by itself, and the figures of tools."""
        rows = (
            row
            for evidence in self.evidences.values()
            for row in evidence.table
            if row.rank is not None and _is_of_device(row)
        )
        found: dict[tuple[str, str, str, bool], dict[tuple[str, int], float]] = {}
        for row in rows:
            host = row.host or (row.hosts[0] if row.nodes == 1 else "")
            # Rates without a unit are shares.
            unit, scale = (row.unit, 1) if row.unit else ("%", 100)
            number = row.rank or 0
            if row.step.tool is not None and row.gpu is not None and row.gpu.isdecimal():
                number = int(row.gpu)
            of_gpus = row.step.tool is None or row.gpu is not None
            own = found.setdefault((row.check, row.metric, unit, of_gpus), {})
            own[host, number] = scale * (row.value or 0.0)
        noise = self.plan.machine.noise
        return tuple(
            DeviceValues(
                check=check,
                metric=metric,
                unit=unit,
                of_gpus=of_gpus,
                values=own,
                median=median(own.values()),
                lowest=limit_of(normal) if normal else None,
            )
            for (check, metric, unit, of_gpus), own in found.items()
            for normal, _ in (far_from_median({f"{at}": v for at, v in own.items()}, noise),)
        )


def _is_of_device(row: Row) -> bool:
    """Return True for a figure of one GPU, or of a tool on one node."""
    if row.step.tool is not None:
        return row.nodes == 1 and row.value is not None
    rules = REGISTRY.get(row.check)
    spec = rules.metric(row.metric) if rules and rules.devices else None
    return spec is not None and spec.unit != "count" and not spec.name.endswith(_TAILS)


def measured(samples: Iterable[Sample]) -> list[float]:
    """Return the values of the samples that did not fail."""
    return [s.value for s in samples if s.value is not None and not s.cause]


def share_of(sample: Sample, normal: Normal | None) -> float | None:
    """Return a value as a share of normal; None if it failed or normal is unknown."""
    if sample.value is None or sample.cause or normal is None or normal.value <= 0:
        return None
    return sample.value / normal.value
