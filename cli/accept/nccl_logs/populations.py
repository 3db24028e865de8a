"""Which executions are equals: those that were measured in the same way, and no others.

Logs on different GPUs or numbers of them, of different sizes or types of data, are never compared
with each other.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from accept.core.model import GroupKind
from accept.nccl_logs.corpus import Execution

#: Takes the place of a collective that a log does not say.
UNKNOWN = "unknown-collective"


class Population(NamedTuple):
    """What makes executions equal. `min`, `max`, `factor` and `type` are None where not said."""

    kind: GroupKind
    check: str
    #: GPUs of each host; 0: all of them.
    gpus: int
    #: Not the same GPUs of each host, so that their traffic crosses from rail to rail.
    crossed: bool
    #: For rails: the hosts that they span.
    hosts: tuple[str, ...]
    min: int | None = None
    max: int | None = None
    factor: int | None = None
    type: str | None = None
    #: What their GPUs are called, each once.
    devices: tuple[str, ...] = ()


def populations(
    executions: Sequence[Execution], hosts: Sequence[str], whole: int
) -> dict[Population, list[Execution]]:
    """Put executions together with their equals. `whole`: GPUs that a host has."""
    rails: dict[tuple[str | None, tuple[str, ...]], set[tuple[int, ...]]] = {}
    for one in executions:
        if one.count == 1 and not _crossed(one):
            rails.setdefault(_spanned(one), set()).update(one.gpus.values())
    blocks = _blocks(executions)
    result: dict[Population, list[Execution]] = {}
    later = []
    for one in executions:
        key = Population(
            kind="ladder" if one.hosts in blocks else _kind(one, len(hosts)),
            check=one.check or UNKNOWN,
            gpus=0 if one.count == whole else one.count,
            crossed=_crossed(one),
            hosts=(),
        )
        several = len(rails.get(_spanned(one), ())) > 1 and one.count == 1 and not key.crossed
        if several and (len(one.hosts) > 2 or len(hosts) == 2):
            key = key._replace(kind="rails", hosts=_spanned(one)[1])
        table = one.measured.table if one.measured else None
        if table is None or table.min_bytes is None or not table.rows:
            later.append((key, table, one))
            continue
        key = key._replace(
            min=table.min_bytes,
            max=table.max_bytes,
            factor=table.factor,
            type=table.rows[0].type,
            devices=_devices(one),
        )
        result.setdefault(key, []).append(one)
    for key, table, one in later:
        # What died early belongs to those that were to measure the same.
        asked = (table.min_bytes, table.max_bytes) if table else (None, None)
        like = [k for k in result if k[:5] == key[:5]]
        same = [k for k in like if (k.min, k.max) == asked] or like
        best = max(same, key=lambda k: len(result[k]), default=key)
        result.setdefault(best, []).append(one)
    return result


def _devices(one: Execution) -> tuple[str, ...]:
    return tuple(sorted({d.name for d in one.measured.devices if d.name} if one.measured else ()))


def _blocks(executions: Sequence[Execution]) -> set[tuple[str, ...]]:
    """Pairs of hosts that are the smallest blocks of a ladder: no host is in two of them, and each
    is in a larger block that is not all hosts."""
    pairs: set[tuple[str, ...]] = {one.hosts for one in executions if len(one.hosts) == 2}
    everybody = len({host for one in executions for host in one.hosts})
    larger = [{*one.hosts} for one in executions if 2 < len(one.hosts) < everybody]
    met = [host for pair in {frozenset(pair) for pair in pairs} for host in pair]
    if len({*met}) < len(met):
        return set()
    whole = all(any(block.issuperset(pair) for block in larger) for pair in pairs)
    return pairs if whole else set()


def _crossed(one: Execution) -> bool:
    return len(set(one.gpus.values())) > 1


def _spanned(one: Execution) -> tuple[str | None, tuple[str, ...]]:
    return one.check, tuple(sorted(one.hosts))


def _kind(one: Execution, all_hosts: int) -> GroupKind:
    if one.measured and len({device.group for device in one.measured.devices}) > 1:
        # One figure for several groups at once.
        return "halves"
    hosts = len(one.hosts)
    if hosts < 3:
        return "pairs" if hosts == 2 else "each"
    return "all" if hosts == all_hosts else "ladder"
