"""Decide where to inject each fault of a drill, and whether the verdict caught it.

The results are defined as `drill.json` and `--json` have them.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import NamedTuple

from accept.core import checks
from accept.core.catalog.faults import FAULTS, Detection, Fault, Scope
from accept.core.causes import Cause
from accept.core.checks import REGISTRY
from accept.core.facts import INJECTED, NOT_INJECTED, NOT_UNDONE
from accept.core.groups import MAX_BLOCK
from accept.core.judge import judge
from accept.core.judge.effects.populations import FEWEST
from accept.core.plan import GroupKind, Injection, Plan, Step
from accept.core.records import Record
from accept.core.text import count, decimal
from accept.core.verdict import State, Suspect, SuspectKind, Verdict

#: Fewest hosts among which a slow one can be found in pairs, if a bound defines slow.
_FEWEST_WITH_BOUND = 3


SCHEMA = 1


class Result(StrEnum):
    """The result of injecting one fault."""

    #: Rejected for one of the fault's causes, and only the faulty part is blamed.
    CAUGHT = "caught"
    MISSED = "missed"
    #: Not injected.
    LEFT_OUT = "left-out"
    #: The run had no verdict.
    UNKNOWN = "unknown"


class DrillReason(StrEnum):
    """The reason why a fault was left out, or why a run did not prove that it is detected."""

    TWO_HOSTS = "D-TWO-HOSTS"
    NO_NETWORK = "D-NO-NETWORK"
    BYPASSES_KERNEL = "D-BYPASSES-KERNEL"
    NOT_IN_SUITE = "D-NOT-IN-SUITE"
    TOO_FEW_RANKS = "D-TOO-FEW-RANKS"
    TOO_FEW_HOSTS = "D-TOO-FEW-HOSTS"
    NO_BOUND = "D-NO-BOUND"
    NO_PAIRS = "D-NO-PAIRS"
    NOT_INJECTED = "D-NOT-INJECTED"
    NOT_UNDONE = "D-NOT-UNDONE"
    NEVER_INJECTED = "D-NEVER-INJECTED"
    NOT_REJECTED = "D-NOT-REJECTED"
    BLAMES_NOBODY = "D-BLAMES-NOBODY"
    BLAMES_OTHERS = "D-BLAMES-OTHERS"
    OTHER_CAUSE = "D-OTHER-CAUSE"
    NO_VERDICT = "D-NO-VERDICT"


@dataclass(frozen=True, kw_only=True)
class Drilled:
    """One injected fault and its result."""

    fault: str
    #: The fault in the plan of its run, as FAULT@HOST:LOCALRANK; empty if it was left out.
    injected: str = ""
    #: HOST or HOST:LOCALRANK, the part of the run that it affects.
    target: str = ""
    #: Steps of the suite that should detect it.
    steps: tuple[str, ...] = ()
    result: Result
    #: What the run detected, or why the fault was missed or left out, or its result is unknown.
    why: str
    #: Code of that reason; None if the fault was caught.
    code: DrillReason | None = None
    #: The parts that the verdict blames.
    blamed: tuple[Suspect, ...] = ()
    #: Seconds from the start of the run (all hosts found) to the end of the step that detected it.
    after: float | None = None
    #: Duration of the run in seconds.
    seconds: float | None = None
    #: Attempt of its run, a folder in that of the drill.
    attempt: str = ""


@dataclass(frozen=True, kw_only=True)
class Drill:
    """Runs of a suite: first a clean one, then one for each injected fault."""

    schema: int
    drill: str
    machine: str
    suite: str
    backend: str
    seed: int
    hosts: tuple[str, ...]
    #: First line of the clean run's verdict, and its attempt.
    clean: str
    clean_attempt: str
    faults: tuple[Drilled, ...]
    #: Why the drill ended early; empty if it did not.
    interruption: str = ""
    exit: int

    @property
    def headline(self) -> str:
        """Return the result in one line."""
        results = [fault.result for fault in self.faults]
        left_out = results.count(Result.LEFT_OUT)
        parts = [f"{results.count(Result.CAUGHT)} of {len(results) - left_out} caught"]
        missed = [fault.fault for fault in self.faults if fault.result is Result.MISSED]
        parts += [f"missed: {', '.join(missed)}"] if missed else []
        unknown = results.count(Result.UNKNOWN)
        parts += [f"{unknown} unknown"] if unknown else []
        parts += [f"{left_out} left out"] if left_out else []
        parts += [self.interruption] if self.interruption else []
        return f"drill: {'; '.join(parts)}"


class Reason(NamedTuple):
    """Why a fault is left out or was missed, or what shows that it was caught."""

    #: None: it was caught.
    code: DrillReason | None
    text: str


@dataclass(frozen=True, kw_only=True)
class Choice:
    """A fault, its target, and the steps that should detect it."""

    fault: Fault
    #: For the plan of the run; None if the fault is left out.
    injection: Injection | None = None
    #: Steps that should detect it; empty: the search for hosts does.
    steps: tuple[str, ...] = ()
    #: Why it is left out; None: it is not.
    reason: Reason | None = None

    @property
    def injected(self) -> str:
        """Return the injected fault as text; empty if it is left out."""
        return self.injection.text if self.injection else ""

    def ended(self, result: Result, reason: Reason) -> Drilled:
        """Return the result for this fault, which `reason` explains."""
        return Drilled(
            fault=self.fault.name,
            injected=self.injected,
            target=self.injection.target if self.injection else "",
            steps=self.steps,
            result=result,
            why=reason.text,
            code=reason.code,
        )


def choose(plan: Plan, fault: Fault, hosts: Sequence[str], seed: int) -> Choice:
    """Choose the target of `fault` among `hosts`, at least one.

    The choice depends only on the fault and the seed. The first host leads the run, so it is never
    made unreachable.
    """
    steps = _detecting_steps(plan, fault, len(hosts))
    if isinstance(steps, Reason):
        return Choice(fault=fault, reason=steps)
    generator = random.Random(f"{seed} {fault.name}")
    host = generator.choice(hosts[1:] if fault.detection is Detection.START else hosts)
    injection = Injection(
        fault=fault.name,
        host="*" if fault.scope is Scope.EVERYWHERE else host,
        rank=generator.randrange(plan.ranks or 1) if fault.scope is Scope.RANK else None,
    )
    return Choice(fault=fault, injection=injection, steps=tuple(step.id for step in steps))


def _detecting_steps(plan: Plan, fault: Fault, hosts: int) -> tuple[Step, ...] | Reason:
    """Return the steps that can find the fault and its target, or the reason why none can."""
    if fault.detection is Detection.START:
        first = "needs at least 2 hosts: the first leads the run"
        return () if hosts > 1 else Reason(DrillReason.TWO_HOSTS, first)
    if fault.detection is Detection.NETWORK:
        if not plan.machine.transport:
            text = f"does not apply: {plan.machine.name} specifies no network transport"
            return Reason(DrillReason.NO_NETWORK, text)
        if hosts < 2:
            text = "needs at least 2 hosts: a single host uses no network"
            return Reason(DrillReason.TWO_HOSTS, text)
        compared = (s for s in plan.steps if _is_compared(s) and _largest_group(s, hosts) > 1)
        return tuple(compared) or _NOT_IN_SUITE
    if fault.kernel_traffic and plan.machine.gpus != 0:
        text = "does not apply: traffic between GPUs bypasses the kernel, and so tc"
        return Reason(DrillReason.BYPASSES_KERNEL, text)
    declared = fault.seen_as or fault.name
    affected = [s for s in plan.steps if any(declared in c.faults for c in checks.checks_of(s))]
    if not affected:
        return _NOT_IN_SUITE
    if fault.detection is Detection.PEERS:
        alone = fault.scope is Scope.RANK
        finding = (s for s in affected if _finds_slow_host(plan, s, hosts, alone=alone))
        return tuple(finding) or _too_few_to_compare(hosts)
    enough = (s for s in affected if _has_enough_ranks(plan, s, fault, hosts))
    return tuple(enough) or _TOO_FEW_RANKS


_NOT_IN_SUITE = Reason(
    DrillReason.NOT_IN_SUITE, "not in this suite: none of its checks can detect this fault"
)
_TOO_FEW_RANKS = Reason(
    DrillReason.TOO_FEW_RANKS, "no step has enough ranks to tell one from the others"
)


def _too_few_to_compare(hosts: int) -> Reason:
    if hosts < _FEWEST_WITH_BOUND:
        where = count(hosts, "host")
        text = f"cannot be found on {where}: needs {_FEWEST_WITH_BOUND} with a bound, or {FEWEST}"
        return Reason(DrillReason.TOO_FEW_HOSTS, text)
    if hosts < FEWEST:
        advice = f"give --expect 'all-reduce@SIZE>=GB/s', or {FEWEST} hosts"
        text = f"cannot be found on {hosts} hosts without a bound: {advice}"
        return Reason(DrillReason.NO_BOUND, text)
    text = "not in this suite: needs a collective on pairs or on each host to find the slow one"
    return Reason(DrillReason.NO_PAIRS, text)


def _largest_group(step: Step, hosts: int) -> int:
    """Return the number of hosts in the largest group of the step."""
    largest = {
        GroupKind.EACH: 1,
        GroupKind.ALONE: 1,
        GroupKind.PAIRS: min(2, hosts),
        GroupKind.RAIL_PAIRS: min(2, hosts),
        GroupKind.HALVES: (hosts + 1) // 2,
        GroupKind.BLOCKS: min(MAX_BLOCK, hosts),
    }
    return largest.get(step.groups, hosts)


def _has_enough_ranks(plan: Plan, step: Step, fault: Fault, hosts: int) -> bool:
    """Return True if a group of the step has enough ranks to find the faulty one."""
    ranks = _largest_group(step, hosts) * (1 if step.groups.of_rails else plan.ranks or 1)
    needed = (check.faults.get(fault.seen_as or fault.name) for check in checks.checks_of(step))
    return any(count is not None and ranks >= count for count in needed)


def _is_compared(step: Step) -> bool:
    """Return True if the groups of the step are compared by their bandwidth."""
    return any(
        FAULTS[name].detection is Detection.PEERS
        for check in checks.checks_of(step)
        for name in check.faults
    )


def _finds_slow_host(plan: Plan, step: Step, hosts: int, *, alone: bool) -> bool:
    """Return True if the step finds a slow host among its peers or by a bound.

    See `judge.compare`. With `alone`, a step that measures each host alone counts, too; such a step
    uses no link between hosts.
    """
    nodes = 1 if step.groups.of_single_hosts else 2 * step.groups.of_pairs
    if not nodes or (nodes == 1 and not alone):
        return False
    has_bound = any(
        bound.check in step.checks
        and bound.lower is not None
        and bound.per_rail is step.groups.of_rails
        and bound.profile == step.profile
        and (bound.min_nodes or 1) <= nodes <= (bound.max_nodes or nodes)
        for bound in plan.references
    )
    # A single pair that is slow does not show which of its two hosts is slow.
    return hosts >= FEWEST or (has_bound and (nodes == 1 or hosts >= _FEWEST_WITH_BOUND))


def outcome(choice: Choice, plan: Plan, records: Sequence[Record], verdict: Verdict) -> Drilled:
    """Decide whether the fault was caught.

    A caught fault is rejected for one of its causes, and only its target is blamed.
    """
    injected = [fact for fact, text in INJECTED.of(*records) if text == choice.injected]
    targets = {fact.host for fact in injected if fact.host}
    result = Result.MISSED
    if refused := [text for _, text in NOT_INJECTED.of(*records)]:
        result = Result.LEFT_OUT
        reason = Reason(DrillReason.NOT_INJECTED, f"could not be injected: {refused[0]}")
    elif not_undone := [text for _, text in NOT_UNDONE.of(*records)]:
        text = f"not undone, so nothing else counts: {not_undone[0]}"
        reason = Reason(DrillReason.NOT_UNDONE, text)
    elif not injected:
        reason = Reason(DrillReason.NEVER_INJECTED, "the fault was never injected")
    elif missed := _why_missed(choice, verdict, targets):
        reason = missed
    else:
        result = Result.CAUGHT
        causes = ", ".join(sorted(_causes(verdict) & choice.fault.causes))
        reason = Reason(None, _with_causes(verdict.suspects) or causes)
    return replace(
        choice.ended(result, reason),
        blamed=verdict.suspects,
        attempt=verdict.attempt,
        after=_after(choice, plan, records, targets) if result is Result.CAUGHT else None,
    )


def _with_causes(suspects: Sequence[Suspect]) -> str:
    """Return the names of suspects, each with its cause."""
    return ", ".join(f"{suspect.name}: {suspect.cause}" for suspect in suspects)


def _causes(verdict: Verdict) -> set[Cause]:
    findings = (finding for check in verdict.checks for finding in check.findings)
    return {f.cause for f in findings if f.cause and f.state in (State.FAIL, State.DEGRADED)}


def _why_missed(choice: Choice, verdict: Verdict, targets: set[str]) -> Reason | None:
    """Return why the verdict missed the fault.

    None if it rejects the run for an expected cause and blames only the hosts `targets`.
    """
    if verdict.state not in (State.FAIL, State.DEGRADED):
        return Reason(DrillReason.NOT_REJECTED, f"not rejected: {verdict.state.value}")
    expected = choice.fault.causes
    if choice.fault.scope is Scope.EVERYWHERE:
        # A fault that all hosts share must not be blamed on single hosts.
        if verdict.suspects:
            return _blames_others(_with_causes(verdict.suspects))
        return None if _causes(verdict) & expected else _other_cause(_causes(verdict))
    if not verdict.suspects:
        return Reason(DrillReason.BLAMES_NOBODY, "rejected, but blamed on nobody")
    others = [s for s in verdict.suspects if not _is_on(s, targets)] or _other_gpus(verdict, choice)
    if others:
        too = "" if len(others) == len(verdict.suspects) else " too"
        return _blames_others(", ".join(s.name for s in others) + too)
    causes = {suspect.cause for suspect in verdict.suspects}
    if causes & expected and all(cause.row.consequence for cause in causes - expected):
        return None
    return _other_cause(causes - expected)


def _blames_others(suspects: str) -> Reason:
    return Reason(DrillReason.BLAMES_OTHERS, f"rejected, but blamed on {suspects}")


def _other_cause(causes: set[Cause]) -> Reason:
    text = f"rejected, but for another cause: {', '.join(sorted(causes)) or 'none'}"
    return Reason(DrillReason.OTHER_CAUSE, text)


def _is_on(suspect: Suspect, hosts: set[str]) -> bool:
    """Return True if a suspect is one of `hosts`, or a GPU of one."""
    return suspect.kind in (SuspectKind.NODE, SuspectKind.GPU) and hosts.issuperset(suspect.hosts)


def _other_gpus(verdict: Verdict, choice: Choice) -> list[Suspect]:
    """Return all suspects if each is a numbered GPU and none is the faulty one, else none."""
    numbers = {decimal(s.device or "") for s in verdict.suspects if s.kind is SuspectKind.GPU}
    rank = choice.injection.rank if choice.injection else None
    comparable = rank is not None and all(s.kind is SuspectKind.GPU for s in verdict.suspects)
    if not comparable or None in numbers or rank in numbers:
        return []
    return list(verdict.suspects)


def _after(
    choice: Choice, plan: Plan, records: Sequence[Record], targets: set[str]
) -> float | None:
    """Return the seconds until the end of the first step after which a verdict names the fault."""
    began = min((record.start for record in records), default=0.0)
    for number, record in enumerate(records, 1):
        if records[number : number + 1] and records[number].step == record.step:
            continue
        so_far = records[:number]
        if not _why_missed(choice, judge(plan, so_far, checks=REGISTRY, attempt=""), targets):
            return round(max(record.end for record in so_far) - began, 1)
    return None
