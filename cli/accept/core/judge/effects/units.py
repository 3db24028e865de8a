"""Group executions into units of evidence, and compare each with what is normal.

All executions of one pair of hosts are a unit: they share a path, so together they are one witness.
A larger group is a unit with the GPUs that it used. In a unit, the executions of one log share
their moment.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import exp, isfinite, log
from statistics import median

from accept.core.judge.effects import populations
from accept.core.judge.effects.executions import Execution, Network
from accept.core.judge.effects.flows import Covers
from accept.core.judge.effects.populations import Center

#: Lowest noise: values that are exactly equal prove no precision.
_LEAST_NOISE = 1e-3
#: Values within this many sigma are about as fast.
_NEAR = 3.0


class Units:
    """The executions of a cluster, with their losses, units and logs by number."""

    def __init__(self, executions: Sequence[Execution], network: Network) -> None:
        self.executions = executions
        self.names = _by_values(executions)
        self.covers = Covers(executions, {host: n for n, host in enumerate(self.names)})
        self.members = self.covers.members
        self.keys = sorted({e.population for e in executions})
        numbers = {key: n for n, key in enumerate(self.keys)}
        self.population = [numbers[e.population] for e in executions]
        self.of_population: list[list[int]] = [[] for _ in self.keys]
        self.unit_of: list[int] = []
        self.log_of: list[int] = []
        #: Log -> its executions and its unit; unit -> its logs.
        self.logs: list[list[int]] = []
        self.unit_of_log: list[int] = []
        self.logs_of: list[list[int]] = []
        #: Unit -> one host alone; a full rail, which measures the rail by itself.
        self.alone: list[bool] = []
        self.direct: list[bool] = []
        self._group()
        self.kinds = [tuple(sorted({self.population[i] for i in own})) for own in self.logs]
        self.hosts_of = [self.members[self.logs[logs[0]][0]] for logs in self.logs_of]
        self.units_of: list[set[int]] = [{self.unit_of[i] for i in own} for own in self.by_host]
        #: Units with several hosts, which use a network.
        self.shared = [u for u, alone in enumerate(self.alone) if not alone]
        self._compare(network)

    @property
    def by_host(self) -> list[list[int]]:
        """Return the executions of each host."""
        return self.covers.by_host

    def _group(self) -> None:
        """Give numbers to units and logs."""
        units: dict[object, int] = {}
        logs: dict[object, int] = {}
        for i, e in enumerate(self.executions):
            self.of_population[self.population[i]].append(i)
            members = tuple(sorted(self.members[i]))
            gpus = e.gpus if len(members) > 2 else ()
            unit = units.setdefault((members, gpus), len(units))
            if unit == len(self.alone):
                self.alone.append(len(members) < 2)
                rail = set(e.gpus) if len(members) > 2 else set()
                self.direct.append(len(rail) == 1 and all(own and len(own) == 1 for own in rail))
                self.logs_of.append([])
            key = (e.log,) if e.log else (e.wave, e.population, e.gpus, i if e.repeated else 0)
            one = logs.setdefault((unit, key), len(logs))
            if one == len(self.logs):
                self.logs.append([])
                self.unit_of_log.append(unit)
                self.logs_of[unit].append(one)
            self.logs[one].append(i)
            self.unit_of.append(unit)
            self.log_of.append(one)

    def _compare(self, network: Network) -> None:
        """Find what is normal in each population, and the loss of each execution."""
        #: Log loss; None: it failed. Sigma of each population.
        self.loss: list[float | None] = [None] * len(self.executions)
        self.center: list[Center | None] = []
        self.sigma: list[float] = []
        #: Sigma of the executions of one host alone, for each population.
        self.within: list[float] = []
        #: A bound, or more than one pair, shows what is normal in a population.
        self.is_sure: list[bool] = []
        #: Log of the value that healthy executions reach at least, if that is known.
        self.least: list[float | None] = []
        fast: list[float] = []
        noise = max(network.noise, _LEAST_NOISE)
        values: list[float | None] = [
            log(e.value) if e.value is not None and e.value > 0 and isfinite(e.value) else None
            for e in self.executions
        ]
        for k, own in enumerate(self.of_population):
            key = self.keys[k]
            by_host: dict[int, list[float]] = {}
            shared: list[tuple[Sequence[int], float]] = []
            failed = set()
            for i in own:
                value, members = values[i], self.members[i]
                if value is not None and len(members) == 1:
                    by_host.setdefault(members[0], []).append(value)
                elif value is not None:
                    shared.append((members, value))
                elif len(members) == 1:
                    failed.add(members[0])
            center = populations.of_network(shared, noise, network.bounds.get(key))
            single = populations.of_single_hosts(by_host, noise)
            bound = network.bounds.get(key)
            self.is_sure.append(bound is not None or _is_common(shared, center))
            self.least.append(log(bound) if bound is not None and bound > 0 else None)
            common = 2 * len(failed) > len(failed.union(by_host))
            for i in own:
                alone, value = len(self.members[i]) == 1, values[i]
                normal = single if alone else center
                if value is not None:
                    self.loss[i] = normal.log_value - value if normal else 0.0
                elif alone and common:
                    # If most hosts fail alone, the reason is not one of them.
                    self.loss[i] = 0.0
            if single:
                fast += [(max(x) - single.log_value) / single.sigma for x in by_host.values()]
            deviations = [abs(x - median(own)) for own in by_host.values() for x in own]
            self.within.append(populations.MAD * median(deviations) if deviations else 0.0)
            self.center.append(center or single)
            self.sigma.append((center or single or Center(0.0, noise)).sigma)
        self.weights = populations.weights_of_laws(fast)

    def names_of(self, group: Iterable[int]) -> tuple[str, ...]:
        """Return the names of hosts, sorted."""
        return tuple(sorted(self.names[h] for h in group))

    def of_unit(self, unit: int) -> list[int]:
        """Return the executions of a unit."""
        return [i for number in self.logs_of[unit] for i in self.logs[number]]

    def normal_value(self, k: int) -> float | None:
        """Return what healthy executions of a population reach."""
        center = self.center[k]
        return None if center is None else exp(center.log_value)


def _by_values(executions: Sequence[Execution]) -> list[str]:
    """Return the hosts in the order of their values, so that names decide nothing."""
    values: dict[str, list[tuple[str, float]]] = {}
    for e in executions:
        for host in e.hosts:
            values.setdefault(host, []).append((e.population, e.value or 0.0))
    return sorted(values, key=lambda host: (sorted(values[host]), host))


def _is_common(values: Sequence[tuple[Sequence[int], float]], center: Center | None) -> bool:
    """Return whether several groups of hosts are about as fast as what is normal, or one is all."""
    if center is None:
        return True
    near = {frozenset(h) for h, x in values if abs(x - center.log_value) <= _NEAR * center.sigma}
    return len(near) > 1 or len({frozenset(h) for h, _ in values}) == 1
