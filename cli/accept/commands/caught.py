"""Whether a planted fault was caught: a pure function of choice, plan, records and verdict."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from accept.commands.drill_faults import FAULTS, Choice
from accept.config.drill import Result
from accept.config.faults import FAULTS as ON_RANKS
from accept.core.catalog.faults import EVERYWHERE, NOT_PLANTED, NOT_UNDONE, PLANTED
from accept.core.causes import CONSEQUENCES
from accept.core.checks import REGISTRY
from accept.core.judge import judge
from accept.core.judge.suspects import host_of
from accept.core.model import Fact, Plan, Record, State, Suspect, Verdict


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
