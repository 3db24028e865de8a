"""The one reader of nccl-tests output, of the real program and of our own that prints the same.

`parse` takes any bytes and never raises. It bears every version's columns, prefixes of launchers
and log collectors, colours, CRLF, and NCCL's own lines between the lines and inside them. What is
missing or damaged is a problem with a cause and never a number. The log is read in pieces, so
memory is bounded by fixed limits and not by its length.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from functools import lru_cache, partial
from typing import BinaryIO

from accept.core.model import Fact, Metric, Parsed
from accept.core.nccl_tests.reader import Reader
from accept.core.nccl_tests.table import Device, Log, Row, Side, Table, bus_factor

__all__ = [
    "NAMES",
    "Device",
    "Log",
    "Row",
    "Side",
    "Table",
    "bus_factor",
    "facts",
    "metrics",
    "parse",
    "pieces",
    "read",
]

#: The metrics there are: two per size and placement, and `wrong` per placement over all sizes.
#: `algbw` is no third: it is size / time.
NAMES = ("busbw", "time", "wrong")
_UNITS = {"busbw": "GB/s", "time": "us", "wrong": "count"}
_PIECE = 1 << 20
#: A table that lists more hosts is damage.
_MOST_HOSTS = 1 << 14


def parse(source: bytes | Iterable[bytes] | BinaryIO, *, collective: str | None = None) -> Log:
    """Read a log: its bytes, its bytes in pieces of any size, or an open binary file.

    `collective` ("all_reduce") names tables that do not say theirs, as those of old builds.
    """
    reader = Reader(collective=collective)
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
    """Read a log as the checks need it."""
    log = parse(source, collective=collective)
    return Parsed(metrics=metrics(log, names=names), facts=facts(log), problems=log.problems)


def metrics(log: Log, *, names: Collection[str] = NAMES) -> tuple[Metric, ...]:
    """Return the metrics of a log, of the names wanted.

    `busbw` (GB/s) and `time` (us) come per row and placement; with `-N` a size repeats. `wrong`
    comes per table and placement, without a size, and only where every row was checked: its absence
    is a problem. A table of a process that ran alone gives none, nor one of several groups at once.
    """
    found: list[Metric] = []
    for table in log.tables:
        check = table.check
        if table.alone or table.split or check is None:
            continue
        for place, sides in (
            ("out", [row.out_of_place for row in table.rows]),
            ("in", [row.in_place for row in table.rows]),
        ):
            sized = [(row[0], side) for row, side in zip(table.rows, sides, strict=True) if side]
            if "busbw" in names:
                model = _model(check, "busbw", place)
                found += [_alike(model, side[1], size) for size, side in sized]
            if "time" in names:
                model = _model(check, "time", place)
                found += [_alike(model, side[0], size) for size, side in sized]
            counts = [side.wrong for _, side in sized if side.wrong is not None]
            if "wrong" in names and counts and len(counts) == len(sides):
                wrong = float(sum(counts) or table.out_of_bounds or 0)
                found.append(_alike(_model(check, "wrong", place), wrong, None))
    return tuple(found)


@lru_cache(maxsize=256)
def _model(check: str, name: str, placement: str) -> dict[str, object]:
    """The fields of a metric, but for its value and size."""
    unit = _UNITS[name]
    return vars(Metric(check=check, name=name, value=0.0, unit=unit, placement=placement))


def _alike(model: dict[str, object], value: float, size: int | None) -> Metric:
    """Make a metric like the model, far faster than a frozen dataclass makes itself."""
    metric: Metric = object.__new__(Metric)
    metric.__dict__.update(model, value=value, size=size)
    return metric


def facts(log: Log) -> tuple[Fact, ...]:
    """Return what a log says beside its metrics: each table's frame, and NCCL's networks."""
    found = [
        Fact(
            name="nccl-tests",
            check=table.check,
            value={
                "version": table.version,
                "ranks": table.ranks,
                "hosts": table.hosts if len(table.hosts) <= _MOST_HOSTS else {},
                "minBytes": table.min_bytes,
                "maxBytes": table.max_bytes,
                "reducedMaxBytes": table.reduced_max,
                "topSize": table.top_size,
                "rows": len(table.rows),
                "complete": table.complete,
                "average": table.average,
            },
        )
        for table in log.tables
    ]
    for name, ways in (("nccl-networks", log.networks), ("nccl-detours", log.detours)):
        if ways:
            value = {way: list(hosts) for way, hosts in ways.items()}
            found.append(Fact(name=name, value=value))
    if log.warnings:
        found.append(Fact(name="nccl-warnings", value=list(log.warnings)))
    return tuple(found)
