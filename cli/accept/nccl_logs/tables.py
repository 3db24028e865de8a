"""Read the tables of one log file, and drop tables that two files of a run both contain."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path

from accept.core import launcher_errors, nccl_tests
from accept.core.causes import Cause
from accept.core.model import Fact, Problem
from accept.core.nccl_tests import json as nccl_tests_json
from accept.core.nccl_tests.table import COLLECTIVES, Device, Log, Row, Table
from accept.core.text import count

#: Reasons why a file is not a log, although it may have been meant to be one.
EMPTY, NO_TABLE = "it is empty", "no nccl-tests results table in this file"
JSON = "JSON without results of nccl-tests"
#: A file is text if this many bytes at its start contain no NUL.
_START = 1 << 16


@dataclass(frozen=True, kw_only=True)
class Measured:
    """One table of one file: the results of a collective on some GPUs."""

    file: str
    #: The check of the collective; None: the log does not name the collective.
    check: str | None
    #: In rank order.
    hosts: tuple[str, ...]
    devices: tuple[Device, ...] = ()
    table: Table | None = None
    problems: tuple[Problem, ...] = ()
    facts: tuple[Fact, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Read:
    """The content of a file."""

    file: str
    tables: tuple[Measured, ...] = ()
    #: Problems that belong to no table, such as launches that failed.
    problems: tuple[Problem, ...] = ()
    #: Why it is not a log; empty: it is one.
    reason: str = ""
    #: True if the file was written with `-J`.
    json: bool = False


def read(name: str, blocks: Iterable[bytes]) -> Read:
    """Read a file once, in bounded memory. No content raises an error."""
    blocks = iter(blocks)
    start = next(blocks, b"")
    if b"\0" in start[:_START]:
        return Read(file=name, reason="it is no text")
    launch: list[Problem] = []
    whole = chain((start,), blocks)
    if json := nccl_tests_json.is_json(start):
        log = nccl_tests_json.parse(whole, collective=_named(name))
        if not any(table.rows for table in log.tables):
            return Read(file=name, reason=JSON)
    else:
        log = nccl_tests.parse(launcher_errors.watch(whole, launch), collective=_named(name))
    problems = tuple(p for p in log.problems if p.cause is not Cause.UNPARSABLE or log.tables)
    if not log.tables:
        said = (*launch, *problems)
        if not said and log.nccl_lines:
            text = f"{count(log.nccl_lines, 'line')} of NCCL's own and no table"
            said = (Problem(cause=Cause.NO_MEASUREMENT, message=text),)
        reason = NO_TABLE if start.strip() else EMPTY
        return Read(file=name, problems=said, reason="" if said else reason)
    if len(log.tables) == 1:
        problems, launch = (*launch, *problems), []
    tables = tuple(_tables(name, replace(log, problems=problems)))
    return Read(file=name, tables=tables, problems=tuple(launch), json=json)


def _named(file: str) -> str | None:
    """Return the collective in the name of a file, because old builds do not print it."""
    names = (name for name in COLLECTIVES if f"{name}_perf" in Path(file).name)
    return max(names, key=len, default=None)


def _tables(name: str, log: Log) -> Iterator[Measured]:
    alone = [table for table in log.tables if table.alone]
    tables = [table for table in log.tables if not table.alone]
    if alone:
        # Each process ran as if it were the only one. Together they are one execution.
        devices = tuple(device for table in alone for device in table.devices)
        yield _of(name, alone[0], devices, tuple(p for p in log.problems if p.host is None), log)
    own = {problem for table in tables for problem in table.problems}
    rest = [problem for problem in log.problems if problem not in own] if not alone else []
    unfinished = [table for table in tables if not table.complete] or tables
    for table in tables:
        mine = [p for p in rest if _last(unfinished, p) is table]
        # Problems of the table itself are a consequence of the others, so they come last.
        yield _of(name, table, table.devices, (*mine, *table.problems), log)


def _last(tables: list[Table], problem: Problem) -> Table:
    """Return the table of a problem of the file: the last one, if possible with its check."""
    fitting = [table for table in tables if problem.check in (None, table.check)]
    return (fitting or tables)[-1]


def _of(
    name: str, table: Table, devices: tuple[Device, ...], problems: tuple[Problem, ...], log: Log
) -> Measured:
    facts = tuple(f for f in nccl_tests.facts(log) if f.check is None)
    facts += nccl_tests.facts(replace(log, tables=(table,), networks={}, warnings=()))
    return Measured(
        file=name,
        check=table.check,
        hosts=tuple(dict.fromkeys(device.host for device in devices)),
        devices=devices,
        table=table,
        problems=problems,
        facts=facts,
    )


def once(found: Sequence[Read]) -> tuple[list[Read], list[Read]]:
    """Drop duplicate tables; return the remaining files, and those that had only duplicates.

    Of copies the first stays. Of a table in text and in JSON, the text stays because it contains
    more. Of a split run, the JSON tables stay: there is one for each group, but the text has only
    the mean over all groups.
    """
    found, copies = _without_copies(found)
    texts = _by_kind(one for one in found if not one.json)
    documents = _by_kind(one for one in found if one.json)
    kept, left = [], copies
    for one in found:
        others = texts if one.json else documents
        tables = tuple(
            table
            for table in one.tables
            if not _spare(table, others.get(table.check, ()), json=one.json)
        )
        if tables or not one.tables:
            kept.append(replace(one, tables=tables))
        else:
            said = "the text says the same" if one.json else "the JSON says it of each group"
            left.append(replace(one, reason=said))
    return kept, left


def _without_copies(found: Sequence[Read]) -> tuple[list[Read], list[Read]]:
    """Drop tables whose rows equal those of an earlier one; return files as `once` does."""
    first: dict[tuple[object, ...], str] = {}
    kept, left = [], []
    for one in found:
        fresh = []
        copied = ""
        for table in one.tables:
            rows = table.table.rows if table.table else ()
            key = (table.check, *_places(table), rows, one.json)
            if rows and key in first:
                copied = first[key]
            else:
                first[key] = one.file
                fresh.append(table)
        if fresh or not copied:
            kept.append(replace(one, tables=tuple(fresh)))
        else:
            left.append(replace(one, reason=f"a copy of {copied}"))
    return kept, left


def _by_kind(some: Iterator[Read]) -> dict[str | None, list[Measured]]:
    found: dict[str | None, list[Measured]] = {}
    for one in some:
        for table in one.tables:
            found.setdefault(table.check, []).append(table)
    return found


def _spare(mine: Measured, others: Sequence[Measured], *, json: bool) -> bool:
    """Return True if `others` contain all results of this table."""
    table = mine.table
    if table is None or (not json and not table.split):
        return False
    ranks = _places(mine)
    if json:
        same = (o.table for o in others if o.table and _places(o) == ranks)
        return any(_printed(table, text) for text in same)
    groups = [other for other in others if other.table and not other.table.split]
    return {*ranks} == {place for group in groups for place in _places(group)} != set()


def _places(measured: Measured) -> list[tuple[str, int]]:
    return [(device.host, device.device) for device in measured.devices]


def _printed(document: Table, text: Table) -> bool:
    """Return True if a JSON table has the rows of a text table, or fewer if it was interrupted."""
    fewer = len(text.rows) - len(document.rows)
    return (fewer == 0 or (fewer > 0 and not document.complete)) and all(
        _same(*pair) for pair in zip(document.rows, text.rows, strict=False)
    )


def _same(mine: Row, text: Row) -> bool:
    """Return True if a JSON row equals a text row, whose times have only seven characters."""
    if mine.size != text.size:
        return False
    for (_, a), (_, b) in zip(mine.sides(), text.sides(), strict=True):
        if a is None or b is None:
            if a is not b:
                return False
        elif abs(a.time - b.time) > 0.0051 + (6e-6 if a.time < 9_999_999 else 0.06) * a.time:
            return False
    return True
