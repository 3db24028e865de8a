"""Parse the output of nccl-tests, and of our own program that prints the same.

`parse` takes any bytes and never raises. It accepts the columns of every version, prefixes of
launchers and log collectors, lost `#` signs, colors, CRLF, and NCCL's own messages between and
inside lines. RCCL's tests print the same.
Missing or damaged output becomes a problem with a cause, never a number. The log is read in pieces,
so fixed limits bound the memory, not the length of the log.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from functools import partial
from typing import BinaryIO

from accept.core.catalog.metrics import BUSBW, TIME, TIME_LONGEST, TIME_P99, WRONG, MetricSpec
from accept.core.facts import (
    NCCL_DETOURS,
    NCCL_NETWORKS,
    NCCL_NICS,
    NCCL_TESTS,
    NCCL_VERSIONS,
    NCCL_WARNINGS,
)
from accept.core.nccl_tests.lines import Side
from accept.core.nccl_tests.reader import Reader, TableLines
from accept.core.nccl_tests.table import Log, Table, TableBuilder, Tables
from accept.core.records import Fact, Metric, Parsed, Placement

#: The metrics of a size, and how to read them from a row. `algbw` is left out because it is size /
#: time.
_BY_SIZE: tuple[tuple[MetricSpec, Callable[[Side], float | None]], ...] = (
    (BUSBW, lambda side: side.busbw),
    (TIME, lambda side: side.time),
    (TIME_P99, lambda side: side.p99),
    (TIME_LONGEST, lambda side: side.longest),
)
NAMES = (*(spec.name for spec, _ in _BY_SIZE), WRONG.name)
_PIECE = 1 << 20
#: A table that lists more hosts is damaged.
_MAX_HOSTS = 1 << 14


def parse(
    source: bytes | Iterable[bytes] | BinaryIO,
    *,
    collective: str | None = None,
    reader: Reader | None = None,
) -> Log:
    """Parse a log from bytes, from pieces of any size, or from an open binary file.

    `collective` ("all_reduce") is the default for tables without a name, as those of old builds.
    A `reader` of logs that are not our own may be more forgiving.
    """
    reader = reader or Reader(TableLines(Tables(partial(TableBuilder, collective))))
    for piece in pieces(source):
        reader.feed(piece)
    return reader.close()


def pieces(source: bytes | Iterable[bytes] | BinaryIO) -> Iterator[bytes]:
    """Cut a source into pieces of bounded size."""
    if isinstance(source, bytes):
        if len(source) <= _PIECE:
            yield source
            return
        source = (source,)
    elif hasattr(source, "read"):
        source = iter(partial(source.read, _PIECE), b"")
    for piece in source:
        for start in range(0, len(piece), _PIECE):
            yield piece[start : start + _PIECE]


def read(
    source: bytes | Iterable[bytes] | BinaryIO,
    *,
    collective: str | None = None,
    names: Collection[str] = NAMES,
) -> Parsed:
    """Parse a log into the metrics, facts and problems of checks."""
    log = parse(source, collective=collective)
    return Parsed(metrics=metrics(log, names=names), facts=facts(log), problems=log.problems)


def metrics(log: Log, *, names: Collection[str] = NAMES) -> tuple[Metric, ...]:
    """Return the metrics of all tables with the given names; see `table_metrics`."""
    return tuple(metric for table in log.tables for metric in table_metrics(table, names))


def table_metrics(table: Table, names: Collection[str] = NAMES) -> Iterator[Metric]:
    """Yield the metrics of a table with the given names.

    `busbw` (GB/s) and `time` (us) exist per row and placement; with `-N` a size repeats.
    `time-p99` and `time-longest` (us) do if the table has the times of each repetition. `wrong`
    exists per placement, without a size, and only if every row was checked; if it is missing, the
    table has a problem. Tables of a process that ran alone, or of several groups at once, give no
    metrics.
    """
    check = table.check
    if table.alone or table.split or check is None:
        return
    for placement, sides in (
        (Placement.OUT, [row.out_of_place for row in table.rows]),
        (Placement.IN, [row.in_place for row in table.rows]),
    ):
        for spec, value_of in _BY_SIZE:
            if spec.name in names:
                for row, side in zip(table.rows, sides, strict=True):
                    value = value_of(side) if side else None
                    if value is not None:
                        yield Metric(
                            check=check,
                            name=spec.name,
                            value=value,
                            unit=spec.unit,
                            size=row.size,
                            placement=placement,
                        )
        counts = [side.wrong for side in sides if side and side.wrong is not None]
        if WRONG.name in names and counts and len(counts) == len(sides):
            wrong = float(sum(counts) or table.out_of_bounds or 0)
            yield Metric(
                check=check, name=WRONG.name, value=wrong, unit=WRONG.unit, placement=placement
            )


def facts(log: Log) -> tuple[Fact, ...]:
    """Return the parameters of each table, and the networks and warnings of NCCL."""
    return (*map(table_fact, log.tables), *nccl_facts(log))


def table_fact(table: Table) -> Fact:
    """Return the parameters of a table."""
    return Fact(
        name=NCCL_TESTS.name,
        check=table.check,
        value={
            "version": table.version,
            "ranks": table.ranks,
            "hosts": table.hosts if len(table.hosts) <= _MAX_HOSTS else {},
            "minBytes": table.min_bytes,
            "maxBytes": table.max_bytes,
            "reducedMaxBytes": table.reduced_max,
            "topSize": table.top_size,
            "rows": len(table.rows),
            "complete": table.complete,
            "average": table.average,
        },
    )


def nccl_facts(log: Log) -> Iterator[Fact]:
    """Yield the networks, versions, NICs, slow paths and warnings that NCCL reports."""
    for kind, texts in (
        (NCCL_NETWORKS, log.networks),
        (NCCL_VERSIONS, log.versions),
        (NCCL_DETOURS, log.detours),
    ):
        if texts:
            value = {name: list(own) for name, own in texts.items()}
            yield Fact(name=kind.name, value=value)
    if log.nics:
        nics = {host: {str(g): list(n) for g, n in own.items()} for host, own in log.nics.items()}
        yield Fact(name=NCCL_NICS.name, value=nics)
    if log.warnings:
        yield Fact(name=NCCL_WARNINGS.name, value=list(log.warnings))
