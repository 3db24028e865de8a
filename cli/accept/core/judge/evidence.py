"""What the judge works on: the evidence of one check, its conclusion, and how a check judges."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from accept.core.model import CheckVerdict, Plan, Record, Step, Suspect


class Share(NamedTuple):
    """What one execution measured; `share` and `sigma` are shares of the median of its peers."""

    check: str
    record: Record
    measured: float
    share: float
    sigma: float


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """What a check is judged by: its planned steps, and the records of these steps."""

    check: str
    plan: Plan
    steps: tuple[Step, ...]
    records: tuple[Record, ...]
    #: Hosts that answered at the start, in the run's order.
    hosts: tuple[str, ...]
    #: Hosts asked for that never answered.
    missing: tuple[str, ...] = ()
    #: Hosts lost on the way, with the cause.
    lost: dict[str, str] = field(default_factory=dict)
    #: Where hosts are, as the machine's `topology` said: `row/rack/host`.
    places: Mapping[str, str] = field(default_factory=dict)
    #: Hosts of one NVLink domain, in as many sets as there are domains of several.
    domains: tuple[frozenset[str], ...] = ()
    #: Host -> what it calls itself, where that is another name; None: nobody wrote it down.
    hostnames: Mapping[str, str] | None = None
    #: What asking the hosts, at first and between the steps, brought for this check alone.
    asked: tuple[Record, ...] = ()
    #: Names of the GPUs that the inventory found.
    devices: tuple[str, ...] = ()
    broken_off: str = ""
    #: What each execution of any check reached against its equals, by log, as logs alone show it.
    shares: dict[str, list[Share]] = field(default_factory=dict)
    #: Hosts that are near each other, in blocks, as their pairs show it or their
    #: NVLink domains are; none: nothing is known.
    near: tuple[frozenset[str], ...] = ()
    #: Records were left out on purpose ("would the rest pass?"): what is missing is no finding.
    partial: bool = False

    def of_step(self, step: Step) -> list[Record]:
        """Return the records of one step."""
        return [record for record in self.records if record.step == step.id]

    def together(self, hosts: Iterable[str]) -> bool:
        """Return True if the hosts are known to be in one NVLink domain."""
        return any(domain.issuperset(hosts) for domain in self.domains)

    @property
    def optional(self) -> bool:
        """Return True if every step of the check is optional."""
        return bool(self.steps) and all(step.optional for step in self.steps)


#: (record, its step) -> the number that groups of equal kind are compared by, higher is better, and
#: the cause for which it does not count ("wrong-data") or "". None where the record lacks it.
Score = Callable[[Record, Step], tuple[float | None, str]]


class Judged(NamedTuple):
    """What a check concludes from its evidence."""

    verdict: CheckVerdict
    #: Those that its own measurements and facts accuse. Whom a problem of a record names is added
    #: for all checks together.
    suspects: tuple[Suspect, ...] = ()


@dataclass(frozen=True, kw_only=True)
class CheckRules:
    """How a check judges its evidence. The registry of checks is passed to the judge as these."""

    name: str
    judge: Callable[[Evidence], Judged]
    #: For checks that compare groups of one kind.
    score: Score | None = None


#: The checks that the judge knows, by name.
Checks = Mapping[str, CheckRules]
