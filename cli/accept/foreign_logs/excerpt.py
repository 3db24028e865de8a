"""Build the tables of logs that are not our own, in which lines may be missing.

The collective, the ranks and the devices are inferred from names and figures if no line shows them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import ceil, floor

from accept.core.nccl_tests.lines import UNKNOWN_BUS, Row, Side
from accept.core.nccl_tests.table import (
    IN_PARTS,
    MAX_DEVICES,
    UNCHECKED_IN_PLACE,
    NamedBy,
    TableBuilder,
)


@dataclass(frozen=True, kw_only=True)
class Hints:
    """Facts about a log that are not in its text."""

    #: The collective of tables that do not name it; None: not known.
    collective: str | None = None
    #: Collectives that the name of the file contains, and its folder's name.
    names: tuple[tuple[str, ...], ...] = ()


class ExcerptTable(TableBuilder):
    """Collects the contents of one table whose lines may be missing."""

    def __init__(self, hints: Hints, commands: tuple[str, ...] = ()) -> None:
        """Begin a table below command lines that name the collectives `commands`."""
        super().__init__(hints.collective)
        self._hints, self.commands = hints, commands

    def ranks(self) -> int | None:
        """Return the number of ranks; a shortened list of devices is completed."""
        listed = super().ranks()
        if listed is None and self.devices:
            self._fill_devices()
            listed = super().ranks()
        return listed

    def _identify(self, listed: int | None, /) -> None:
        super()._identify(listed)
        if self.collective is not None:
            return
        shown = None if self._cpu_time else infer(self.rows, listed, unit=self._unit)
        sources = [(NamedBy.FILE, names) for names in self._hints.names]
        for source, names in (*sources, (NamedBy.COMMAND, self.commands)):
            fitting = tuple(name for name in names if not shown or name in shown.possible)
            if len(fitting) == 1:
                self.collective, self.named_by = fitting[0], source
                return
        if shown and len(shown.collectives) == 1 and self.rows:
            self.collective = shown.collectives[0]
        self.named_by = NamedBy.TABLE

    def _participants(self, listed: int | None) -> int | None:
        """Return the number of ranks that the figures show if their list does not."""
        if listed is not None or self._cpu_time:
            return listed
        shown = infer(self.rows, None, unit=self._unit)
        return shown.ranks if shown and shown.collectives == (self.collective,) else None

    def _missing(self, listed: int | None) -> list[str]:
        """Return what is missing; nothing above the rows if these and the footer agree."""
        below = [*self._missing_below()]
        if not self.rows and self.sizes is None:
            below.append("it has no rows")
        return [*self._missing_above(listed), *below] if below else []

    def _missing_above(self, ranks: int | None) -> Iterator[str]:
        yield from list(super()._missing_above(ranks))[self.collective is None :]

    def _is_mean(self, mean: float, printed: float) -> bool:
        # A build that prints only one side may divide by the number of both.
        one_side = not any(row.out_of_place and row.in_place for row in self.rows)
        return super()._is_mean(mean, printed) or (one_side and super()._is_mean(mean / 2, printed))

    def _fill_devices(self) -> None:
        """Complete a shortened list of devices, as "…" between two GPUs of one host."""
        devices = sorted(self.devices)
        for first, last in pairwise(sorted(self.devices)):
            gap = last.rank - first.rank
            if gap == last.device - first.device and last.host == first.host:
                devices += [
                    first._replace(rank=first.rank + i, device=first.device + i, bus=UNKNOWN_BUS)
                    for i in range(1, min(gap, MAX_DEVICES))
                ]
        # Without a gap, the line that was damaged had the last rank.
        has_gap = len(devices) > len(self.devices)
        if has_gap and {device.rank for device in devices} == {*range(len(devices))}:
            self.devices, self.devices_cut = sorted(devices), False


# Inference from names and figures: builds before June 2025 print no name, and excerpts lose it

#: Patterns in names of files and commands, and the collectives they mean. Longer names come first.
_NAMES = (
    ("alltoallv", r"all[-_. ]?to[-_. ]?allv(?![a-z])"),
    ("all_reduce", r"all[-_. ]?reduce"),
    ("all_gather", r"all[-_. ]?gather"),
    ("alltoall", r"all[-_. ]?(?:to|2)[-_. ]?all"),
    ("reduce_scatter", r"reduce[-_. ]?scatter"),
    ("sendrecv", r"send[-_. ]?recv"),
    ("broadcast", r"(?<![a-z])(?:broadcast|bcast)(?![a-z])"),
    ("hypercube", r"(?<![a-z])hypercube(?![a-z])"),
    ("reduce", r"(?<![a-z])reduce(?![a-z])"),
    ("gather", r"(?<![a-z])gather(?![a-z])"),
    ("scatter", r"(?<![a-z])scatter(?![a-z])"),
)
_IN_NAME = re.compile("|".join(f"({pattern})" for _, pattern in _NAMES), re.IGNORECASE)


def named_in(text: str) -> tuple[str, ...]:
    """Return the collectives that a name contains, such as that of a file."""
    found = (_NAMES[(match.lastindex or 1) - 1][0] for match in _IN_NAME.finditer(text))
    return tuple(dict.fromkeys(found))


#: The collectives of rows, by (with an operation, with a root).
_BY_COLUMNS = {
    # Builds before June 2025 print `sum` for sendrecv.
    (True, False): ("all_reduce", "reduce_scatter", "sendrecv"),
    (True, True): ("reduce",),
    (False, False): ("all_gather", "alltoall", "sendrecv"),
    (False, True): ("broadcast", "gather", "scatter"),
}
#: Bytes of an element of each type.
TYPE_BYTES = {
    **dict.fromkeys(("int8", "uint8", "char", "f8e4m3", "f8e5m2", "fp8_e4m3", "fp8_e5m2"), 1),
    **dict.fromkeys(("half", "bfloat16"), 2),
    **dict.fromkeys(("int32", "uint32", "int", "float"), 4),
    **dict.fromkeys(("int64", "uint64", "double"), 8),
}
#: Above this number of ranks, busbw / algbw does not show how many there are.
_MAX_RANKS = 1 << 16


@dataclass(frozen=True, kw_only=True)
class Inference:
    """The conclusions from the figures of a table."""

    #: The collectives that fit.
    collectives: tuple[str, ...]
    #: The collectives that do not contradict the figures, if a name names one of them.
    possible: tuple[str, ...]
    #: The number of ranks, if only one fits the only collective.
    ranks: int | None = None


def infer(rows: Sequence[Row], ranks: int | None, *, unit: float = 1.0) -> Inference | None:
    """Return the collectives that the rows fit, or None if the rows contradict each other.

    `ranks` is None if it is not known. `unit`: microseconds per unit of the printed times.
    """
    columns = {(row.redop != "none", row.root >= 0) for row in rows}
    if len(columns) != 1:
        return None
    has_operation, has_root = columns.pop()
    candidates = _by_checks(rows, _BY_COLUMNS[has_operation, has_root])
    factors = _factor_range(rows, unit)
    if factors is None:
        return None
    low, high = factors
    fitting = {name: _ranks_that_fit(name, low, high, ranks) for name in candidates}
    fitting = {name: numbers for name, numbers in fitting.items() if numbers}
    possible = tuple(fitting)
    if has_operation and len(fitting) > 1:
        # Between two ranks, only the name distinguishes it from all_reduce without checks.
        fitting.pop("sendrecv", None)
    parts = _parts(rows)
    if len(fitting) > 1 and parts and ranks != 1:
        kept = {
            name: numbers
            for name, numbers in fitting.items()
            if (name in IN_PARTS) == (parts > 1) and (parts == 1 or parts in numbers)
        }
        fitting = kept or fitting
    if len(fitting) == 1 and ranks is None:
        ((name, numbers),) = fitting.items()
        if name in IN_PARTS and parts in numbers:
            ranks = parts
        elif len(numbers) == 1:
            ranks = numbers[0]
    return Inference(collectives=tuple(fitting), possible=possible, ranks=ranks)


def _by_checks(rows: Sequence[Row], candidates: tuple[str, ...]) -> tuple[str, ...]:
    """Return the candidates that fit the checked results: some have no in-place checks."""
    pairs = [(row.out_of_place, row.in_place) for row in rows if row.size > 0]
    if any(inside and inside.wrong is not None for _, inside in pairs):
        return tuple(name for name in candidates if name not in UNCHECKED_IN_PLACE)
    if any(out and inside and out.wrong is not None for out, inside in pairs):
        return tuple(name for name in candidates if name in UNCHECKED_IN_PLACE)
    return candidates


def _factor_range(rows: Sequence[Row], unit: float) -> tuple[float, float] | None:
    """Return the range of busbw / algbw that all rows allow, or None if there is none.

    One row in ten may be damaged.
    """
    ranges = sorted(
        (
            _range(row.size, side, unit)
            for row in rows
            for _, side in row.sides()
            if side and row.size > 0 and side.busbw > 0 and side.time > 0
        ),
        key=lambda found: found[1] - found[0],
    )
    if not ranges:
        return 0.0, float("inf")
    narrow = sorted(ranges[: 1 + len(ranges) // 2])
    middle = narrow[len(narrow) // 2]
    fitting = [r for r in ranges if r[0] <= middle[1] and r[1] >= middle[0]]
    if len(fitting) < 0.9 * len(ranges):
        return None
    low, high = max(r[0] for r in fitting), min(r[1] for r in fitting)
    return (low, high) if low <= high else (middle[0], middle[1])


def _range(size: int, side: Side, unit: float) -> tuple[float, float]:
    """Return the range of busbw / algbw that one side allows, by the digits that are printed.

    Bandwidths have two decimals; times at least four digits, and at most two decimals.
    """
    factor = side.busbw * side.time * 1e3 / size
    if side.time >= 9.5e6:
        slack = 0.06
    elif unit > 1:
        slack = 0.55 / side.time
    else:
        digits = 0.0055 if side.time < 100 else 0.055 if side.time < 1e4 else 0.55
        slack = digits / side.time
    slack += 0.0055 / side.busbw + 1e-6
    return factor * (1 - slack), factor * (1 + slack)


def _ranks_that_fit(name: str, low: float, high: float, ranks: int | None) -> range:
    """Return the numbers of ranks with which `name` has a busbw / algbw in this range."""
    known = range(ranks, ranks + 1) if ranks else range(2, _MAX_RANKS)
    if high == float("inf"):
        return known
    if name in IN_PARTS:
        first, last = _ranks_of(low, high)
    elif name == "all_reduce":
        first, last = _ranks_of(low / 2, high / 2)
    elif not low <= 1 <= high:
        return range(0)
    else:
        first, last = 1, _MAX_RANKS
    return range(max(known.start, first), min(known.stop, last + 1))


def _ranks_of(low: float, high: float) -> tuple[int, int]:
    """Return the first and the last n with (n - 1) / n in a range."""
    if low >= 1:
        return _MAX_RANKS, 0
    last = _MAX_RANKS if high >= 1 else floor(1 / (1 - high) + 1e-9)
    return ceil(1 / (1 - low) - 1e-9), last


def _parts(rows: Sequence[Row]) -> int | None:
    """Return the number of parts of each message, or None if the rows do not show it."""
    parts = {*_parts_of(rows)}
    return parts.pop() if len(parts) == 1 else None


def _parts_of(rows: Sequence[Row]) -> Iterator[int]:
    for row in rows:
        width = TYPE_BYTES.get(row.type)
        if width and row.elements and row.size:
            number, rest = divmod(row.size, width * row.elements)
            yield number if not rest else 0
