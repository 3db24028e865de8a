"""Compare the versions that were loaded together with those that their makers support."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping

from accept.core.causes import Cause
from accept.core.facts import NCCL_VERSIONS, Inventory
from accept.core.judge.evidence import Evidence
from accept.core.judge.findings import finding
from accept.core.judge.summary import state_of
from accept.core.plan import Plan
from accept.core.records import Record
from accept.core.verdict import Finding

#: Beginning of a line of the log that names a combination.
NOT_SUPPORTED = "NOT SUPPORTED: "
#: Component of the table that the inventory of a host reports.
_DRIVER = "driver"
_NUMBER = re.compile(r"\d{1,6}(?:\.\d{1,6}){0,5}")


def unsupported(plan: Plan, versions: Mapping[str, str]) -> Iterator[str]:
    """Yield a sentence for each component that is older than another one supports.

    `versions`: component -> its version. A component without a version is not judged.
    """
    for row in plan.supported:
        own = versions.get(row.component, "")
        if not _in_order(row.since, own) or (row.before and _in_order(row.before, own)):
            continue
        for component, least in row.needs.items():
            other = versions.get(component, "")
            if _in_order(other, least) and not _in_order(least, other):
                yield (
                    f"{row.component} {own} supports {component} {least} and newer, and "
                    f"{component} {other} is loaded ({row.source})"
                )


def loaded(record: Record, inventories: Mapping[str, Inventory]) -> dict[str, str]:
    """Return the versions that one execution loaded, without those that differ between hosts."""
    found = {name: {*texts} for _, own in NCCL_VERSIONS.of(record) for name, texts in own.items()}
    if found:
        hosts = (inventories[host] for host in record.hosts if host in inventories)
        found[_DRIVER] = {gpu.driver or "" for host in hosts for gpu in host.gpus}
    versions = {name: text.pop() for name, text in found.items() if len(text) == 1}
    # The texts are untrusted; only their numbers are used.
    return {name: number[0] for name, text in versions.items() if (number := _NUMBER.match(text))}


def shown(
    plan: Plan, records: Iterable[Record], inventories: Mapping[str, Inventory]
) -> tuple[str, ...]:
    """Return lines for the log, each once: the versions that were loaded, and what is wrong."""
    lines: dict[str, None] = {}
    for record in records:
        if own := loaded(record, inventories):
            lines[f"loaded: {', '.join(f'{name} {text}' for name, text in own.items())}"] = None
            lines |= {f"{NOT_SUPPORTED}{text}": None for text in unsupported(plan, own)}
    return tuple(lines)


def findings(
    plan: Plan, evidences: Iterable[Evidence], inventories: Mapping[str, Inventory]
) -> Iterator[Finding]:
    """Yield each combination that is not supported, for the first check that loaded it."""
    seen: set[str] = set()
    cause = Cause.UNSUPPORTED_VERSIONS
    for evidence in evidences if plan.supported else ():
        for record in evidence.records:
            for text in unsupported(plan, loaded(record, inventories)):
                if text not in seen:
                    seen.add(text)
                    judgement, state = cause.row.judgement, state_of(cause)
                    logs = (record.log,)
                    yield finding(evidence.check, judgement, state, text, cause, logs=logs)


def _in_order(first: str, second: str) -> bool:
    """Return True if both are versions and the first is not newer than the second."""
    one, other = _numbers(first), _numbers(second)
    return bool(one and other) and one <= other


def _numbers(version: str) -> tuple[int, ...]:
    """Return the leading numbers of a version such as 1.13.2-aws, without zeros at the end."""
    found = _NUMBER.match(version)
    numbers = [int(text) for text in found[0].split(".")] if found else []
    while len(numbers) > 1 and not numbers[-1]:
        numbers.pop()
    return tuple(numbers)
