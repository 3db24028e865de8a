"""Parse the output of nccl-tests, and of our own program that prints the same.

`parse` takes any bytes and never raises. It accepts the columns of every version, prefixes of
launchers and log collectors, colors, CRLF, and NCCL's own messages between and inside lines.
Missing or damaged output becomes a problem with a cause, never a number. The log is read in pieces,
so fixed limits bound the memory, not the length of the log.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from functools import lru_cache, partial
from typing import BinaryIO

from accept.core.model import Fact, Metric, Parsed, Placement
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

#: Names of the metrics: two per size and placement, and `wrong` per placement over all sizes.
#: `algbw` is left out because it is size / time.
NAMES = ("busbw", "time", "wrong")
_UNITS = {"busbw": "GB/s", "time": "us", "wrong": "count"}
_PIECE = 1 << 20
#: A table that lists more hosts is damaged.
_MAX_HOSTS = 1 << 14


def parse(source: bytes | Iterable[bytes] | BinaryIO, *, collective: str | None = None) -> Log:
    """Parse a log from bytes, from pieces of any size, or from an open binary file.

    `collective` ("all_reduce") is the default for tables without a name, as those of old builds.
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
    """Parse a log into the metrics, facts and problems of checks."""
    log = parse(source, collective=collective)
    return Parsed(metrics=metrics(log, names=names), facts=facts(log), problems=log.problems)


def metrics(log: Log, *, names: Collection[str] = NAMES) -> tuple[Metric, ...]:
    """Return the metrics of a log with the given names.

    `busbw` (GB/s) and `time` (us) exist per row and placement; with `-N` a size repeats. `wrong`
    exists per table and placement, without a size, and only if every row was checked; if it is
    missing, the log has a problem. Tables of a process that ran alone, or of several groups at
    once, give no metrics.
    """
    result: list[Metric] = []
    for table in log.tables:
        check = table.check
        if table.alone or table.split or check is None:
            continue
        for place, sides in (
            (Placement.OUT, [row.out_of_place for row in table.rows]),
            (Placement.IN, [row.in_place for row in table.rows]),
        ):
            sized = [(row[0], side) for row, side in zip(table.rows, sides, strict=True) if side]
            if "busbw" in names:
                model = _model(check, "busbw", place)
                result += [_metric(model, side[1], size) for size, side in sized]
            if "time" in names:
                model = _model(check, "time", place)
                result += [_metric(model, side[0], size) for size, side in sized]
            counts = [side.wrong for _, side in sized if side.wrong is not None]
            if "wrong" in names and counts and len(counts) == len(sides):
                wrong = float(sum(counts) or table.out_of_bounds or 0)
                result.append(_metric(_model(check, "wrong", place), wrong, None))
    return tuple(result)


@lru_cache(maxsize=256)
def _model(check: str, name: str, placement: Placement) -> dict[str, object]:
    """Return the fields of a metric, to be completed with value and size."""
    unit = _UNITS[name]
    return vars(Metric(check=check, name=name, value=0.0, unit=unit, placement=placement))


def _metric(model: dict[str, object], value: float, size: int | None) -> Metric:
    """Return a metric like the model; far faster than the constructor of a frozen dataclass."""
    metric: Metric = object.__new__(Metric)
    metric.__dict__.update(model, value=value, size=size)
    return metric


def facts(log: Log) -> tuple[Fact, ...]:
    """Return the parameters of each table, and the networks and warnings of NCCL."""
    result = [
        Fact(
            name="nccl-tests",
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
        for table in log.tables
    ]
    for name, paths in (("nccl-networks", log.networks), ("nccl-detours", log.detours)):
        if paths:
            value = {path: list(hosts) for path, hosts in paths.items()}
            result.append(Fact(name=name, value=value))
    if log.warnings:
        result.append(Fact(name="nccl-warnings", value=list(log.warnings)))
    return tuple(result)
