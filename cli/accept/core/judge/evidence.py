"""Define what the judge works on: evidence of a check, its conclusion, and how a check judges."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

from accept.core.causes import Cause
from accept.core.judge.effects.executions import Flow
from accept.core.judge.explained import Effects
from accept.core.plan import Plan, Step
from accept.core.records import Problem, Record
from accept.core.table import (
    BANDWIDTH,
    Execution,
    Measure,
    Row,
    Table,
    executions,
    result_of,
    rows_of,
)
from accept.core.verdict import CheckVerdict, Suspect


@dataclass(frozen=True, kw_only=True)
class Found:
    """The hosts of a run, in the run's order."""

    #: Hosts that were reachable at the start.
    present: tuple[str, ...]
    #: Requested hosts that never answered.
    missing: tuple[str, ...] = ()
    #: Hosts lost during the run -> the cause.
    lost: dict[str, Cause] = field(default_factory=dict)
    #: Problems of the step that found the hosts; in a run made from logs, also of present hosts.
    problems: tuple[Problem, ...] = ()
    #: Host -> its place, as the machine's `topology` reported it: `row/rack/host`.
    places: Mapping[str, str] = field(default_factory=dict)
    #: NVLink domains of more than one host, as the drivers reported them.
    domains: tuple[frozenset[str], ...] = ()
    #: Host -> its own hostname if it differs; None: not recorded.
    hostnames: Mapping[str, str] | None = None
    #: True if there is a record of the step that found the hosts.
    recorded: bool = True


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """The evidence of one check: its planned steps and the records of these steps."""

    check: str
    plan: Plan
    steps: tuple[Step, ...]
    records: tuple[Record, ...]
    found: Found
    #: Answers of the hosts, at the start and between the steps, for this check only.
    host_answers: tuple[Record, ...] = ()
    #: Step -> the records of the run, of all checks.
    step_records: Mapping[str, Sequence[Record]] = field(default_factory=dict, repr=False)
    #: Names of the GPUs that the inventory found.
    devices: tuple[str, ...] = ()
    interruption: str = ""
    #: The path of its data between hosts.
    flow: Flow = Flow.RAILS
    #: What explains the results of all checks together; None: this check is judged by its own.
    effects: Effects | None = None
    #: True if records were removed on purpose, to judge the rest; then missing ones are ignored.
    partial: bool = False
    #: Hosts that are left out then. `host_answers` and `step_records` still have theirs.
    set_aside: frozenset[str] = frozenset()
    #: Results by record and measure, which evidence made of this one shares.
    _results: dict[tuple[int, Measure], Row] = field(
        default_factory=dict, repr=False, compare=False
    )

    @property
    def hosts(self) -> tuple[str, ...]:
        """Return the hosts that were reachable at the start, in the run's order."""
        return self.found.present

    def of_step(self, step: Step) -> list[Record]:
        """Return the records of one step."""
        return [record for record in self.records if record.step == step.id]

    @cached_property
    def executions(self) -> tuple[Execution, ...]:
        """Return the executions of the steps."""
        return tuple(executions(self.steps, self.records))

    @property
    def table(self) -> Table:
        """Return everything that was measured for this check."""
        return Table(tuple(row for e in self.executions for row in rows_of(e, self.check)))

    def results(self, measure: Measure = BANDWIDTH, step: Step | None = None) -> Table:
        """Return the result of each execution, of one step if it is given."""
        return Table(
            tuple(
                self._result(execution, measure)
                for execution in self.executions
                if step is None or execution.step.id == step.id
            )
        )

    def _result(self, execution: Execution, measure: Measure) -> Row:
        # The row keeps the record alive, so that its id stays unique.
        key = id(execution.record), measure
        if key not in self._results:
            self._results[key] = result_of(execution, self.check, measure)
        return self._results[key]

    def together(self, hosts: Iterable[str]) -> bool:
        """Return True if the hosts are known to be in one NVLink domain."""
        return any(domain.issuperset(hosts) for domain in self.found.domains)

    @property
    def optional(self) -> bool:
        """Return True if every step of the check is optional."""
        return bool(self.steps) and all(step.optional for step in self.steps)


class Judged(NamedTuple):
    """The conclusion of a check from its evidence."""

    verdict: CheckVerdict
    #: Suspects that the check's own measurements and facts accuse. Those that problems of records
    #: name are added for all checks together.
    suspects: tuple[Suspect, ...] = ()


@dataclass(frozen=True, kw_only=True)
class CheckRules:
    """The functions and properties by which the judge judges a check; its registry has them."""

    name: str
    judge: Callable[[Evidence], Judged]
    #: The metric by which groups of the same kind are compared; None: groups are not compared.
    measure: Measure | None = None
    #: The path of its data between hosts.
    flow: Flow = Flow.RAILS
    #: True if its ranks work on GPUs.
    loads_gpus: bool = False


#: The checks that the judge knows, by name.
Checks = Mapping[str, CheckRules]
