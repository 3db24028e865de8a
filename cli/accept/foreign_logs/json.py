"""Parse the JSON that nccl-tests writes with `-J FILE` into the same tables as its text.

Only one member of a document, or one result, is in memory at a time. The environment in the JSON
may contain secrets, so it is discarded at once.

Format: nccl-tests src/util.cu, JSON_FILE_VERSION 3, versions 2.17.4 to 2.19.6. Only rank 0 writes
it; after a crash the end or the footer is missing.
"""

from __future__ import annotations

import json
import re
from codecs import getincrementaldecoder
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from math import isfinite
from statistics import median
from typing import BinaryIO, NamedTuple

from accept.core.facts import mapping
from accept.core.nccl_tests import pieces
from accept.core.nccl_tests.lines import UNKNOWN_BUS, Device, Row, Side, word
from accept.core.nccl_tests.table import (
    MAX_DEVICES,
    MAX_ROWS,
    Log,
    TableBuilder,
    Tables,
    bus_factor,
    expected_sizes,
)
from accept.foreign_logs.excerpt import ExcerptTable, Hints

#: Upper limit of a member or a result, in characters. A result with the times of 20 iterations of
#: 8,192 processes (`-I 1`) has 4 million.
MAX_VALUE = 16 << 20
#: Fewest characters to read at once.
_BLOCK = 1 << 16

_NAN = float("nan")
_DECODER = json.JSONDecoder()
_SPACE = re.compile(r"[ \t\r\n]*")
#: nccl-tests quotes NaN, but it writes infinities as `inf`, which is not valid JSON.
_BARE = re.compile(r"(?<![\w-])-?(?:(inf)|nan)(?=[,\]}])")
#: The first member of each document.
_DOCUMENT = re.compile(r'\{\s{0,16}"version"\s{0,16}:')
_RESULTS = "results"
#: Members before the configuration that show that a document is one of nccl-tests.
_MEMBERS = ("args", "nccl_version")
_PLACES = ("out_of_place", "in_place")
_PROGRAM = re.compile(r"(\w{1,32}?)_perf", re.ASCII)
_BUS = re.compile(r"[0-9a-fx:.]{1,20}")
_SURROGATE = re.compile("[\ud800-\udfff]")
_ROOT = re.compile(r"-?[0-9]{1,18}")


def is_json(start: bytes) -> bool:
    """Return True if this is the beginning of a JSON object, not of text output."""
    return re.match(rb'\s*\{\s*"', start) is not None


def parse(
    source: bytes | Iterable[bytes] | BinaryIO,
    *,
    collective: str | None = None,
) -> Log:
    """Parse documents that follow each other; see `accept.foreign_logs.reader.parse`.

    A run of several groups at once (NCCL_TESTS_SPLIT) with the times of every process (`-I 1`)
    gives a table for each group, as if it had run alone; any other gives one table.
    """
    tables = Tables(partial(ExcerptTable, Hints(collective=collective)))
    text = _Text(pieces(source))
    found = text.skip_to_brace()
    while found:
        document, is_whole = _Document(), True
        try:
            for name, value in text.members():
                document.take(name, value)
        except ValueError:
            # Nothing after damage can be trusted to be a member.
            is_whole = False
        document.add_to(tables, is_whole=is_whole)
        found = text.skip_to_brace() if is_whole else text.skip_to_document()
    read, problems = tables.finish(quiet=False)
    return Log(tables=read, problems=problems, networks={}, detours={}, nccl_lines=0, warnings=())


class _Text:
    """JSON text; only the current value is in memory.

    All methods raise ValueError if the text is damaged, ends too early, or has too long a value.
    """

    def __init__(self, source: Iterable[bytes]) -> None:
        self._pieces = iter(source)
        # Any bytes may be in the environment.
        self._decode = getincrementaldecoder("utf-8")("surrogateescape").decode
        self._text = ""
        self._at = 0

    def _read_more(self) -> bool:
        """Double the text in memory; return False at the end, or if that would be too much."""
        parts = [self._text[self._at :]]
        size = before = len(parts[0])
        while size < min(max(2 * before, _BLOCK), MAX_VALUE) and (piece := next(self._pieces, b"")):
            parts.append(self._decode(piece))
            size += len(parts[-1])
        self._text, self._at = "".join(parts), 0
        return size > before

    def _peek(self) -> str:
        """Return the next character after white space; "" at the end."""
        while True:
            found = _SPACE.match(self._text, self._at)
            self._at = found.end() if found else self._at
            if self._at < len(self._text):
                return self._text[self._at]
            if not self._read_more():
                return ""

    def _next(self, expected: str) -> str:
        """Return the next character, which must be one of `expected`."""
        character = self._peek()
        if not character or character not in expected:
            raise ValueError(f"{character!r} instead of one of {expected}")
        self._at += 1
        return character

    def skip_to_brace(self) -> bool:
        """Skip everything before the next opening brace; return False if none follows."""
        while (found := self._text.find("{", self._at)) < 0:
            self._at = len(self._text)
            if not self._read_more():
                return False
        self._at = found
        return True

    def skip_to_document(self) -> bool:
        """Skip damage before the next document; return False if none follows."""
        while not (found := _DOCUMENT.search(self._text, self._at)):
            # The beginning of a document may be cut.
            self._at = max(self._at, len(self._text) - 64)
            if not self._read_more():
                return False
        self._at = found.start()
        return True

    def _value(self) -> object:
        while True:
            self._peek()
            try:
                value, end = _DECODER.raw_decode(self._text, self._at)
            except RecursionError:
                raise ValueError("nested too deeply") from None
            except ValueError:
                # Either the value continues, or it has infinities.
                rest = self._text[self._at :]
                self._text, self._at = _BARE.sub(_constant, rest), 0
                if self._text == rest and not self._read_more():
                    raise
            else:
                # A number at the end may continue.
                if end < len(self._text) or not self._read_more():
                    self._at = end
                    return value

    def _items(self, opening: str, closing: str) -> Iterator[None]:
        """Yield before each item between two brackets, so that the caller can read the item."""
        self._next(opening)
        if self._peek() == closing:
            self._next(closing)
            return
        yield
        while self._next(f",{closing}") == ",":
            yield

    def members(self) -> Iterator[tuple[str, object]]:
        """Yield name and value of each member of the object that follows.

        Each element of `results` is yielded as a member of that name.
        """
        for _ in self._items("{", "}"):
            name = str(self._value())
            self._next(":")
            if name == _RESULTS and self._peek() == "[":
                for _ in self._items("[", "]"):
                    yield name, self._value()
            else:
                yield name, self._value()


def _constant(found: re.Match[str]) -> str:
    """Return the constant that Python reads instead of inf, -inf, nan or -nan."""
    return found[0].replace("inf", "Infinity") if found[1] else "NaN"


class _Result(NamedTuple):
    """One element of `results`."""

    row: Row
    #: For each group, the time of each placement in us. Empty if not known.
    times: tuple[tuple[float, ...], ...]


class _Document:
    """Collects the members of one document."""

    def __init__(self) -> None:
        self._collective: str | None = None
        self._config: Mapping[str, object] = {}
        #: The first GPU of each process; None if it is damaged.
        self._devices: list[Device | None] = []
        #: Numbers of the processes of each group.
        self._groups: dict[int | None, list[int]] = {}
        self._results: list[_Result] = []
        self._cells = 0
        self._cpu_time = False
        self._is_damaged = False
        self._is_known = False
        self._bounds: int | None = None
        self._mean: float | None = None

    def take(self, name: str, value: object) -> None:
        """Add one member, or one result; of two configurations the first counts."""
        data = mapping(value)
        self._is_known |= name in _MEMBERS
        if name == _RESULTS:
            result = self._result(data)
            if result and self._cells < MAX_ROWS:
                self._results.append(result)
                self._cells += max(1, len(result.times))
            else:
                self._is_damaged = True
        elif name == "args" and isinstance(value, list) and value:
            program = _PROGRAM.match(re.split(r"[\\/]", _line(value[0]))[-1])
            self._collective = program[1] if program else None
        elif name == "config" and not self._config:
            self._config = data
            devices = data.get("devices")
            if isinstance(devices, list) and len(devices) * self._gpus() <= MAX_DEVICES:
                self._devices = [_device(mapping(device)) for device in devices]
            for process, device in enumerate(self._devices):
                self._groups.setdefault(device.group if device else None, []).append(process)
        elif name == "out_of_bounds":
            count = _whole(data.get("count"))
            fits = data.get("okay") != ("false" if count == 0 else "true")
            self._bounds = count if fits else None
        elif name in ("average_bus_bandwidth", "average_bus_bandwidith") and data:
            # The second spelling is that of versions before 2.17.9.
            self._mean = _number(data.get("bandwidth", data.get("bandwidith")))

    def _gpus(self) -> int:
        """Return the number of GPUs per process."""
        threads, gpus = (_whole(self._config.get(name)) for name in ("nthreads", "ngpus"))
        return (threads or 1) * (gpus or 1)

    def _factor(self, processes: int) -> float | None:
        """Return the `bus_factor` of a group with this number of processes."""
        return bus_factor(self._collective, processes * self._gpus())

    def _result(self, data: Mapping[str, object]) -> _Result | None:
        """Return one result, or None if it is damaged."""
        size, count = _whole(data.get("size")), _whole(data.get("count"))
        kind, redop = (word(_line(data.get(name)).encode()) for name in ("type", "redop"))
        root = _line(data.get("root"))
        sides = [mapping(data.get(place)) for place in _PLACES]
        if size is None or count is None or not (kind and redop and all(sides)):
            return None
        if not _ROOT.fullmatch(root):
            return None
        self._cpu_time = any("cpu_time" in side for side in sides)
        out, inp = (
            Side(
                _number(side.get("cpu_time", side.get("time"))),
                _number(side.get("bus_bw")),
                _wrong(side.get("nwrong")),
            )
            for side in sides
        )
        times = self._times([mapping(data.get(f"{place}_per_iter")) for place in _PLACES])
        return _Result(Row(size, kind, redop, int(root), out, inp, count), times)

    def _times(self, reports: Sequence[Mapping[str, object]]) -> tuple[tuple[float, ...], ...]:
        """Return the times of each group, or () for a single group or if times are missing."""
        times = [report.get("per_process_max_times_us") for report in reports]
        skipped = [_whole(report.get("skipped_iterations")) or 0 for report in reports]
        if len(self._groups) < 2:
            return ()
        by_place: list[list[list[object]]] = []
        for rows in times:
            if not isinstance(rows, list) or len(rows) != len(self._devices):
                return ()
            if not all(isinstance(row, list) for row in rows):
                return ()
            by_place.append(rows)
        return tuple(
            tuple(
                _slowest([rows[process] for process in processes], leave_out)
                for rows, leave_out in zip(by_place, skipped, strict=True)
            )
            for processes in self._groups.values()
        )

    def add_to(self, tables: Tables, *, is_whole: bool) -> None:
        """Add the tables of the document."""
        results = self._results
        # Without a formula for the bandwidth, a group has no result of its own.
        each = bool(results) and all(r.times for r in results) and self._factor(1) is not None
        counts = {side.wrong for r in results for _, side in r.row.sides() if side}
        if (self._config or (self._is_known and not is_whole)) and not (
            each and counts <= {0, None} and not self._bounds
        ):
            # Wrong elements are counted over all groups, so they need the common table.
            table = self._begin(tables, range(len(self._devices)), is_whole=is_whole)
            table.begin_rows(cpu_time=self._cpu_time)
            self._add_results(tables, table, [r.row for r in results], self._bounds, self._mean)
        for place, processes in enumerate(self._groups.values() if each else ()):
            table = self._begin(tables, processes, is_whole=is_whole, alone=True)
            # Even with the CPU's time (`-C`), the times of single groups are the GPU's.
            table.begin_rows()
            rows = [self._row_of_group(r, place, len(processes)) for r in results]
            buses = [side.busbw for row in rows for _, side in row.sides() if side]
            finite = [busbw for busbw in buses if isfinite(busbw)]
            mean = None if self._mean is None else sum(finite) / max(1, len(finite))
            self._add_results(tables, table, rows, None if self._bounds is None else 0, mean)

    def _begin(
        self,
        tables: Tables,
        processes: Sequence[int],
        *,
        is_whole: bool,
        alone: bool = False,
    ) -> TableBuilder:
        """Begin the table of these processes; with `alone`, as if no others existed."""
        table = tables.begin()
        table.collective = self._collective
        table.cut_off = not is_whole
        least, most, factor, step = (
            _whole(self._config.get(name))
            for name in ("minimum_bytes", "maximum_bytes", "step_factor", "step_bytes")
        )
        step = step if factor is None else factor
        if least is not None and most is not None and step is not None:
            table.sizes = least, most, step, factor is not None
        for place, process in enumerate(processes):
            for device in self._devices_of(process, place if alone else None):
                tables.add_device(table, device)
        return table

    def _devices_of(self, process: int, place: int | None) -> Iterator[Device | None]:
        """Yield the GPUs of a process; `place` is its number in its group, as if it ran alone.

        The JSON lists only the first GPU of each process. The others follow it, because nccl-tests
        numbers ranks and devices consecutively; their bus ids are not known.
        """
        device = self._devices[process]
        if device is None:
            yield None
            return
        gpus = self._gpus()
        if place is not None:
            device = device._replace(rank=place * gpus, group=0)
        yield device
        for i in range(1, gpus):
            number = device.device + i
            yield device._replace(rank=device.rank + i, device=number, bus=UNKNOWN_BUS)

    def _row_of_group(self, result: _Result, place: int, processes: int) -> Row:
        """Return the row of one group, as if it had run alone."""
        row, factor = result.row, self._factor(processes) or 0.0
        out, inp = (
            Side(
                time,
                row.size / time * 1e-3 * factor if time > 0 else _NAN,
                # Only a sum of 0 shows the count of each group.
                0 if side and side.wrong == 0 else None,
            )
            for time, (_, side) in zip(result.times[place], row.sides(), strict=True)
        )
        return row._replace(out_of_place=out, in_place=inp)

    def _add_results(
        self,
        tables: Tables,
        table: TableBuilder,
        rows: Sequence[Row],
        bounds: int | None,
        mean: float | None,
    ) -> None:
        """Add the rows and the footer to a table."""
        for row in rows:
            tables.add_row(table, row)
        if self._is_damaged:
            table.damage("a result cannot be read")
        if bounds is None or mean is None:
            return
        table.bounds = bounds
        table.take_average(mean)
        if rows and table.sizes and not self._is_damaged:
            least, most, step, factor = table.sizes
            sizes = expected_sizes(least, most, step, factor=factor)
            top = max(row.size for row in rows)
            reached = next((size for size in sizes or () if size >= top), most)
            if sizes and reached < sizes[-1]:
                # The text reports a lack of memory; the JSON only ends earlier.
                table.reduced = reached


def _slowest(rows: Sequence[Sequence[object]], leave_out: int) -> float:
    """Return the time of a group in us: the median over iterations of the slowest process.

    `rows` are the times of each process. nccl-tests summarizes in the same way (src/common.cu,
    ReduceProcessMaxIterTimes) and skips leading iterations (`-K`).
    """
    numbers = [[_number(time) for time in row] for row in rows]
    same = len({*map(len, numbers)}) == 1 and isfinite(sum(map(sum, numbers)))
    times = [max(column) for column in zip(*numbers, strict=True)] if same else []
    return median(times[leave_out:]) if times[leave_out:] else _NAN


def _device(data: Mapping[str, object]) -> Device | None:
    """Return the device of a process, or None if it is damaged."""
    rank, group, number = (_whole(data.get(name)) for name in ("rank", "group", "device"))
    host, bus, name = (_line(data.get(n)) for n in ("hostname", "device_hex", "device_info"))
    if rank is None or group is None or number is None or max(rank, group) >= 10**7:
        return None
    if number >= 10**4 or len(host.split()) != 1 or len(host) > 255 or not _BUS.fullmatch(bus):
        return None
    return Device(rank, group, host, number, bus, name[:128])


def _whole(value: object) -> int | None:
    """Return a whole number in the range of nccl-tests, or None."""
    if isinstance(value, bool) or not isinstance(value, int):
        return None
    return value if 0 <= value < 1 << 59 else None


def _number(value: object) -> float:
    """Return a number, or NaN for any other value."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return _NAN
    try:
        return float(value)
    except (ValueError, OverflowError):
        return _NAN


def _wrong(value: object) -> int | None:
    """Return a count of wrong elements; None for any other value: nothing was checked."""
    count = _number(value)
    return int(count) if 0 <= count < 1e300 and count == int(count) else None


def _line(value: object) -> str:
    """Return text as one line; "" for any other value and for damaged text."""
    text = " ".join(value.split()) if isinstance(value, str) else ""
    return "" if _SURROGATE.search(text) else text
