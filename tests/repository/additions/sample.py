"""Define the check `sample`, as an addition to the product would: it times a loop in sh."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from accept.core import record_protocol
from accept.core.catalog.metrics import Better, MetricSpec
from accept.core.catalog.tools import Tool
from accept.core.checks.check import Check, CheckParams
from accept.core.facts import FactKind, text
from accept.core.judge.conclusion import conclude
from accept.core.judge.evidence import Evidence, Judged
from accept.core.plan import GroupKind
from accept.core.records import Parsed
from accept.core.serde import param

DELAY = MetricSpec(name="delay", unit="us", better=Better.LOWER, in_log=True)
CLOCK = FactKind("sample-clock", text)
SED = Tool(name="sed", find="command -v sed", advice="apt-get install sed")


@dataclass(frozen=True, kw_only=True)
class Params(CheckParams):
    """Parameters of `sample`."""

    count: int = param(2, "number of loops")

    def estimate(self, _hosts: int, _ranks: int) -> float:
        """Return one second per loop."""
        return float(self.count)


def parse(lines: Iterable[bytes]) -> Parsed:
    """Return the metrics and facts of one host."""
    return record_protocol.parse(lines, check="sample")


def judge(evidence: Evidence) -> Judged:
    """Pass if every host reported, and met the bounds of the user."""
    clocks = {clock for _, clock in CLOCK.of(*evidence.records)}
    measured = f"clock: {', '.join(sorted(clocks))}"
    return conclude(evidence, measured=measured, required="no bound of its own")


SAMPLE = Check(
    name="sample",
    summary="a loop in sh",
    template="sample.sh.j2",
    params=Params,
    groups=(GroupKind.EACH,),
    needs=((SED,),),
    metrics=(DELAY,),
    facts=(CLOCK,),
    parse=parse,
    judge=judge,
    faults={"sample-fault": 1},
)

CHECKS = (SAMPLE,)
