"""Decide where to inject each fault of a drill, and whether the verdict caught it."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from accept.config.faults import FAULTS as ON_RANKS
from accept.config.faults import Result
from accept.core import checks
from accept.core.catalog.faults import EVERYWHERE, NOT_PLANTED, NOT_UNDONE, PLANTED
from accept.core.causes import CONSEQUENCES
from accept.core.checks import REGISTRY
from accept.core.judge import judge
from accept.core.judge.robust_stats import FEWEST
from accept.core.judge.suspects import host_of
from accept.core.model import Fact, Plan, Record, State, Step, Suspect, Verdict

#: Fewest hosts among which pairs name one, where a bound says what is slow.
_FEWEST_BOUND = 3


@dataclass(frozen=True, kw_only=True)
class Fault:
    """What is planted, and for which causes that is rightly rejected."""

    about: str
    causes: frozenset[str]


_SLOW = frozenset({"slow-outlier", "below-reference", "intermittent"})
#: In the order in which they are planted.
FAULTS: dict[str, Fault] = {
    "slow": Fault(about="a rank loses 50 ms before every operation", causes=_SLOW),
    "wrong": Fault(
        about="a rank contributes one wrong element",
        causes=frozenset({"wrong-data", "parameters-differ", "gradients-differ"}),
    ),
    "nan": Fault(
        about="a rank contributes one element that is no number",
        causes=frozenset({"wrong-data", "not-finite", "parameters-differ"}),
    ),
    "flip": Fault(
        about="one bit of a product of matrices, and of a pattern in memory, is flipped",
        causes=frozenset({"wrong-result", "wrong-data"}),
    ),
    # Where the step's time is longer than what the others wait for a rank, these end by themselves.
    "hang": Fault(about="a rank stops", causes=frozenset({"rank-hung", "crashed"})),
    "die": Fault(about="a rank is killed", causes=frozenset({"crashed"})),
    "sockets": Fault(
        about="the settings turn off the fast network", causes=frozenset({"transport-fallback"})
    ),
    "slow-link": Fault(about="a host sends at 20 Mbit/s", causes=_SLOW),
    "full-disk": Fault(
        about="what ranks write on a host meets a full disk", causes=frozenset({"disk-full"})
    ),
    "unreachable": Fault(
        about="the coordinator looks for a host at a closed port",
        causes=frozenset({"unreachable-refused", "unreachable-timeout"}),
    ),
}


@dataclass(frozen=True, kw_only=True)
class Choice:
    """A fault, whom it is planted on, and what is to see it."""

    fault: str
    #: For the plan of its run; empty where the fault is left out.
    planted: str = ""
    #: Steps that are to see it; none: finding the hosts is enough.
    steps: tuple[str, ...] = ()
    #: Why it is left out.
    reason: str = ""


def choose(plan: Plan, fault: str, hosts: Sequence[str], seed: int) -> Choice:
    """Whom `fault` is planted on, among at least one of `hosts`: the same for the same seed.

    The first of them leads the run, and is never cut off. Other faults do not change the choice.
    """
    steps, reason = _seen_by(plan, fault, len(hosts))
    if reason:
        return Choice(fault=fault, reason=reason)
    chance = random.Random(f"{seed} {fault}")
    host = chance.choice(hosts[1:] if fault == "unreachable" else hosts)
    planted = f"{fault}@{'*' if fault in EVERYWHERE else host}"
    if fault in ON_RANKS:
        planted += f":{chance.randrange(_ranks(plan))}"
    return Choice(fault=fault, planted=planted, steps=tuple(step.id for step in steps))


def _ranks(plan: Plan) -> int:
    """Ranks of each host, as far as they are known before it was asked."""
    return plan.gpus_used or plan.machine.ranks or plan.machine.gpus or 1


def _seen_by(plan: Plan, fault: str, hosts: int) -> tuple[tuple[Step, ...], str]:
    """The steps that can find the fault and name who has it, or why there are none."""
    if fault == "unreachable":
        return (), "" if hosts > 1 else "needs at least 2 hosts: the first leads the run"
    if fault == "sockets":
        if not plan.machine.transport:
            return (), f"does not apply: {plan.machine.name} promises no network"
        steps = tuple(s for s in plan.steps if _scored(s) and _largest(s, hosts) > 1)
        few = "needs at least 2 hosts: one alone uses no network"
        return steps, "" if steps else few if hosts < 2 else _NOT_IN_SUITE
    if fault == "slow-link" and plan.machine.gpus != 0:
        return (), "does not apply: between GPUs data bypass the queues of the kernel, and tc"
    carried = "slow" if fault == "slow-link" else fault
    takers = [s for s in plan.steps if any(carried in checks.load(c).faults for c in s.checks)]
    if not takers:
        return (), _NOT_IN_SUITE
    if carried == "slow":
        found = tuple(s for s in takers if _compares(plan, s, hosts, alone=fault == "slow"))
        return found, "" if found else _few_to_compare(hosts)
    enough = tuple(s for s in takers if _names(plan, s, fault, hosts))
    return enough, "" if enough else "no step has enough ranks to tell one from the others"


_NOT_IN_SUITE = "not in this suite: no check of it can have it and find it"


def _few_to_compare(hosts: int) -> str:
    if hosts < _FEWEST_BOUND:
        where = "one host" if hosts == 1 else f"{hosts} hosts"
        return f"cannot be found on {where}: needs {_FEWEST_BOUND} with a bound, or {FEWEST}"
    if hosts < FEWEST:
        bound = "a bound (--expect 'all-reduce@SIZE>=GB/s')"
        return f"cannot be found on {hosts} hosts without {bound}: needs that, or {FEWEST} hosts"
    return "not in this suite: it takes a collective on pairs, or on each host alone, to name one"


def _largest(step: Step, hosts: int) -> int:
    """Most hosts that a group of the step has."""
    return {"each": 1, "pairs": min(2, hosts), "halves": (hosts + 1) // 2}.get(step.groups, hosts)


def _names(plan: Plan, step: Step, fault: str, hosts: int) -> bool:
    """Whether some group of the step has the ranks that naming one takes."""
    ranks = _largest(step, hosts) * (1 if step.groups == "rails" else _ranks(plan))
    needed = (checks.load(check).faults.get(fault) for check in step.checks)
    return any(count is not None and ranks >= count for count in needed)


def _scored(step: Step) -> bool:
    """Whether groups of the step are compared by their bandwidth."""
    return any("slow" in checks.load(check).faults for check in step.checks)


def _compares(plan: Plan, step: Step, hosts: int, *, alone: bool) -> bool:
    """Whether the step finds a slow host among its equals, or below a bound; see `judge.compare`.

    `alone`: also where hosts are measured by themselves, on no link.
    """
    nodes = {"pairs": 2, "each": 1}.get(step.groups, 0)
    if not nodes or (nodes == 1 and not alone):
        return False
    bounded = any(
        one.check in step.checks
        and one.lower is not None
        and (one.min_nodes or 1) <= nodes <= (one.max_nodes or nodes)
        for one in plan.references
    )
    # Of one pair, or of one that is slow with its only partner, nothing says which host it is.
    return hosts >= FEWEST or (bounded and (nodes == 1 or hosts >= _FEWEST_BOUND))


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What a drilled run showed."""

    result: Result
    why: str
    after: float | None = None


def outcome(choice: Choice, plan: Plan, records: Sequence[Record], verdict: Verdict) -> Outcome:
    """Whether the fault was caught: rejected, for its cause, and blamed on the right one alone."""
    if refused := [str(fact.value) for fact in _facts(records, NOT_PLANTED)]:
        return Outcome(result="left-out", why=f"could not be planted: {refused[0]}")
    if left := [str(fact.value) for fact in _facts(records, NOT_UNDONE)]:
        return Outcome(result="missed", why=f"not undone, so nothing else counts: {left[0]}")
    struck = [fact for fact in _facts(records, PLANTED) if fact.value == choice.planted]
    if not struck:
        return Outcome(result="missed", why="it never struck: no program that ran was told of it")
    names = {fact.host for fact in struck if fact.host}
    if wrong := _why_missed(choice, verdict, names):
        return Outcome(result="missed", why=wrong)
    why = ", ".join(blamed(verdict)) or ", ".join(sorted(_causes(verdict) & _of(choice)))
    return Outcome(result="caught", why=why, after=_after(choice, plan, records, names))


def blamed(verdict: Verdict) -> tuple[str, ...]:
    """Whom a verdict blames, and for what."""
    return tuple(f"{suspect.name}: {suspect.cause}" for suspect in verdict.suspects)


def _of(choice: Choice) -> frozenset[str]:
    return FAULTS[choice.fault].causes


def _facts(records: Sequence[Record], name: str) -> Iterator[Fact]:
    return (fact for record in records for fact in record.facts if fact.name == name)


def _causes(verdict: Verdict) -> set[str]:
    found = (finding for check in verdict.checks for finding in check.findings)
    return {f.cause for f in found if f.cause and f.state in (State.FAIL, State.DEGRADED)}


def _why_missed(choice: Choice, verdict: Verdict, names: set[str]) -> str:
    """Empty where the verdict rejects for the right cause, and blames the right one alone."""
    if verdict.state not in (State.FAIL, State.DEGRADED):
        return f"not rejected: {verdict.state.value}"
    right = _of(choice)
    if choice.fault in EVERYWHERE:
        # What all hosts have in common is no single one's.
        if verdict.suspects:
            return f"rejected, but blamed on {', '.join(blamed(verdict))}"
        return "" if _causes(verdict) & right else _for_another(_causes(verdict))
    if not verdict.suspects:
        return "rejected, but blamed on nobody"
    others = [s for s in verdict.suspects if not _is_on(s, names)] or _other_gpus(verdict, choice)
    if len(others) == len(verdict.suspects):
        return f"rejected, but blamed on {', '.join(s.name for s in others)}"
    if others:
        return f"rejected, but blamed on {', '.join(s.name for s in others)} too"
    found = {suspect.cause for suspect in verdict.suspects}
    if found & right and found - right <= CONSEQUENCES:
        return ""
    return _for_another(found - right)


def _for_another(found: set[str]) -> str:
    return f"rejected, but for another cause: {', '.join(sorted(found)) or 'none'}"


def _is_on(suspect: Suspect, names: set[str]) -> bool:
    """Whether a suspect is the host that has the fault, or a GPU of it."""
    return suspect.kind in ("node", "gpu") and host_of(suspect) in names


def _other_gpus(verdict: Verdict, choice: Choice) -> list[Suspect]:
    """The suspects, where all are GPUs known by number, and none is the one with the fault."""
    numbers = {s.name.rpartition(":")[2] if s.kind == "gpu" else "" for s in verdict.suspects}
    right = choice.planted.rpartition(":")[2]
    told = choice.fault in ON_RANKS and all(number.isdigit() for number in numbers)
    return list(verdict.suspects) if told and right not in numbers else []


def _after(choice: Choice, plan: Plan, records: Sequence[Record], names: set[str]) -> float | None:
    """Seconds until the first step whose end let the verdict name it."""
    began = min((record.start for record in records), default=0.0)
    for count, record in enumerate(records, 1):
        if records[count : count + 1] and records[count].step == record.step:
            continue
        known = records[:count]
        if not _why_missed(choice, judge(plan, known, checks=REGISTRY, attempt=""), names):
            return round(max(record.end for record in known) - began, 1)
    return None
