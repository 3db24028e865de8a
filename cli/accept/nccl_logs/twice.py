"""What is there twice, and is read once: copies, and the JSON (`-J`) of what was also printed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from accept.core.nccl_tests.nccl_table import Row, Table
from accept.nccl_logs.tables import Measured, Read


def once(found: Sequence[Read]) -> tuple[list[Read], list[Read]]:
    """Leave out tables that are here twice; returns the rest, and the files that are left out.

    Of copies the first stays. Of two equal tables the text's stays: it says more. Of a split run
    the JSON's stay, one for each group, where the text has only the mean over all groups.
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
    """The first of tables that are equal to the last figure; the files that have only others."""
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
    """Whether others say all that this table says."""
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
    """Whether a JSON's rows are those of a text; of a run that was ended it may have fewer."""
    fewer = len(text.rows) - len(document.rows)
    return (fewer == 0 or (fewer > 0 and not document.complete)) and all(
        _same(*pair) for pair in zip(document.rows, text.rows, strict=False)
    )


def _same(mine: Row, text: Row) -> bool:
    """Whether the times of a row are the text's, which prints seven characters of them."""
    if mine.size != text.size:
        return False
    for (_, a), (_, b) in zip(mine.sides(), text.sides(), strict=True):
        if a is None or b is None:
            if a is not b:
                return False
        elif abs(a.time - b.time) > 0.0051 + (6e-6 if a.time < 9_999_999 else 0.06) * a.time:
            return False
    return True
