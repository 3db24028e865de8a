"""Runs with other names, and views of verdicts that do not depend on names or order."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from accept.core import serde
from accept.core.facts import GPUS
from accept.core.judge.summary import node_lists
from accept.core.plan import Plan
from accept.core.records import Record
from accept.core.verdict import Finding, Suspect, Verdict


def shown(verdict: Verdict, old: Callable[[str], str] = str) -> object:
    """Return everything that a verdict decides, with the old names of hosts and in no order."""

    def named(*hosts: str) -> frozenset[str]:
        return frozenset(map(old, hosts))

    def finding(one: Finding) -> tuple[object, ...]:
        # Executions that failed in the same way are shown in the order of the run.
        count = (one.executions.bad, one.executions.total) if one.executions else None
        return (one.judgement, one.state, one.cause, named(*one.hosts), one.metric, one.size, count)

    lists = node_lists(verdict)
    return (
        verdict.state,
        verdict.exit,
        named(*lists.good),
        named(*lists.bad),
        named(*lists.untested),
        frozenset((*part(s, old), s.cause, s.strength) for s in verdict.suspects),
        frozenset(
            (check.check, check.state, frozenset(map(finding, check.findings)))
            for check in verdict.checks
        ),
        verdict.detectable,
    )


def part(one: Suspect, old: Callable[[str], str] = str) -> tuple[object, ...]:
    """Return what a suspect is: its kind, its sides and its device."""
    sides = frozenset(frozenset(map(old, side)) for side in (one.hosts, one.others))
    return one.kind, sides, one.device


class Renamed:
    """Other names for hosts, wherever they occur in texts and data."""

    def __init__(self, new: dict[str, str]) -> None:
        """Take the new name of each host."""
        self._new = new
        self._old = {name: host for host, name in new.items()}
        # Without hosts, nothing matches.
        names = "|".join(map(re.escape, sorted(new, key=len, reverse=True))) or "(?!)"
        self._pattern = re.compile(rf"(?<![A-Za-z0-9.-])({names})(?![A-Za-z0-9-])")

    def __call__(self, text: str) -> str:
        """Return a text with the new names."""
        return self._pattern.sub(lambda match: self._new[match[1]], text)

    def old(self, name: str) -> str:
        """Return the name that a host had before."""
        return self._old.get(name, name)

    def data(self, data: object) -> object:
        """Return data in which all texts have the new names, also those of keys."""
        if isinstance(data, str):
            return self(data)
        if isinstance(data, dict):
            return {self.data(key): self.data(value) for key, value in data.items()}
        return [self.data(one) for one in data] if isinstance(data, list) else data

    def plan(self, plan: Plan) -> Plan:
        """Return a plan with the new names."""
        return serde.read(Plan, self.data(serde.dump(plan)))

    def records(self, records: Iterable[Record]) -> tuple[Record, ...]:
        """Return records with the new names."""
        return tuple(serde.read(Record, self.data(serde.dump(record))) for record in records)


def longer(hosts: Sequence[str]) -> Renamed:
    """Return names of other lengths, and in the opposite order."""
    count, ordered = len(hosts), sorted(hosts)
    new = [f"q{count - i:04d}{'-rack' * (i % 3)}" for i in range(count)]
    return Renamed(dict(zip(ordered, new, strict=True)))


def dealt(hosts: Sequence[str], chance: random.Random) -> Renamed:
    """Return the same names, dealt to other hosts."""
    return Renamed(dict(zip(hosts, chance.sample(hosts, len(hosts)), strict=True)))


def reordered(records: Iterable[Record], chance: random.Random) -> list[Record]:
    """Return records in another order; half of the pairs have their hosts in the opposite order."""
    result = [
        replace(record, hosts=record.hosts[::-1])
        if len(record.hosts) == 2 and chance.random() < 0.5
        else record
        for record in records
    ]
    chance.shuffle(result)
    return result


def renumbered(records: Iterable[Record], numbers: Sequence[int]) -> list[Record]:
    """Return records in which the GPUs that took part have other numbers."""
    return [
        replace(
            record,
            facts=tuple(
                replace(fact, value=sorted(numbers[gpu] for gpu in fact.value))
                if fact.name == GPUS.name and isinstance(fact.value, list)
                else fact
                for fact in record.facts
            ),
        )
        for record in records
    ]
