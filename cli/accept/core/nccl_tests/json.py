"""Convert the JSON that nccl-tests writes with `-J FILE` into its text output, and parse that.

The environment in the JSON may contain secrets and is skipped without parsing. Only one member, or
one row, is in memory at a time.

Format: nccl-tests src/util.cu, JSON_FILE_VERSION 3, versions 2.17.4 to 2.19.6. Only rank 0 writes
it; after a crash the end or the footer is missing.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from math import isfinite
from statistics import median
from typing import Any, BinaryIO, NamedTuple

from accept.core import nccl_tests
from accept.core.nccl_tests.reader import MAX_DEVICES, MAX_ROWS
from accept.core.nccl_tests.table import Log, bus_factor, expected_sizes

NAN = float("nan")


def members_of(data: Any) -> dict[str, Any]:
    """Return a JSON object, or an empty one for any other value."""
    return data if isinstance(data, dict) else {}


def whole(value: Any) -> int | None:
    """Return a whole number in the range of nccl-tests, or None."""
    known = isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 59
    return value if known else None


def number(value: Any) -> float:
    """Return a number, or NaN for any other value."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return NAN
    try:
        return float(value)
    except (ValueError, OverflowError):
        return NAN


def wrong(value: Any) -> str:
    """Return the cell `#wrong`; any value but a count means that nothing was checked."""
    count = number(value)
    return f"{int(count)}" if 0 <= count < 1e300 and count == int(count) else "N/A"


def line(value: Any) -> str:
    """Return text as one line."""
    return " ".join(value.split())[:128] if isinstance(value, str) else ""


def word(value: Any) -> str:
    """Return one word; any other value becomes two words, which makes its line invalid."""
    text = value.strip() if isinstance(value, str) else ""
    return text if len(text) < 4096 and len(text.split()) == 1 else "? ?"


#: Upper limit of a member or row, and of a skipped string, in bytes. A row with the times of 20
#: iterations of 8,192 processes (`-I 1`) takes 4 MB.
MAX_MEMBER, _MAX_STRING = 32 << 20, 1 << 20
_BLOCK = 1 << 16

RESULTS = b"results"
#: Members to parse. The last one is the spelling of the mean before version 2.17.9.
_WANTED = (
    b"args",
    b"config",
    b"out_of_bounds",
    b"average_bus_bandwidth",
    b"average_bus_bandwidith",
)
_TOKEN = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"(\s*:)?|[][{}"]', re.DOTALL)
_QUOTE = 0x22
#: nccl-tests quotes NaN but not infinities.
_BARE = re.compile(rb"(?<=[:,\[])(-?(?:inf|nan))(?=[,\]}])")


def members(pieces: Iterable[bytes]) -> Iterator[tuple[bytes, bytes]]:
    """Yield (name, value) for the members to parse of each document, and for each single result.

    Each document ends with (b"", b""), even if it is cut off. Members that are too long are empty.
    """
    depth, at, key, buffer = 0, 0, b"", b""
    begin: int | None = None
    for piece, last in _joined(pieces):
        buffer += piece
        for found in _TOKEN.finditer(buffer, at):
            token, start, end = found[0], *found.span()
            if token[0] == _QUOTE:
                if len(token) == 1 or (end == len(buffer) and not last):
                    # The next piece has the rest of the string, or the colon after a name.
                    at = start
                    break
                if depth == 1 and found[1]:
                    key = token[1 : token.rindex(b'"')]
                    begin = end if key in _WANTED else None
            elif token in b"{[":
                depth += 1
                if depth == 3 and key == RESULTS:
                    begin = start
            else:
                depth = max(0, depth - 1)
                if begin is not None and depth == 1 + (key == RESULTS):
                    yield key, buffer[begin:end] if end - begin <= MAX_MEMBER else b""
                    begin = None
                if depth == 0:
                    yield b"", b""
                    key, begin = b"", None
        else:
            at = len(buffer)
        if begin is not None and len(buffer) - begin > MAX_MEMBER:
            yield key, b""
            begin = None
        if len(buffer) - at > _MAX_STRING:
            break
        gone = at if begin is None else min(at, begin)
        buffer, at = buffer[gone:], at - gone
        begin = None if begin is None else begin - gone
    yield b"", b""


def _joined(pieces: Iterable[bytes]) -> Iterator[tuple[bytes, bool]]:
    """Yield pieces of at least 64 KiB, each with True if it is the last."""
    held: list[bytes] = []
    size = 0
    for piece in pieces:
        held.append(piece)
        size += len(piece)
        if size >= _BLOCK:
            yield b"".join(held), False
            held, size = [], 0
    yield b"".join(held), True


def load(raw: bytes) -> Any:
    """Parse the value of a member, or return None if it is damaged."""
    for text in (raw, _BARE.sub(rb'"\1"', raw)):
        try:
            return json.loads(text)
        except (ValueError, RecursionError):
            continue
    return None


#: Replaces the PCI address of a GPU that the JSON does not list.
UNKNOWN_BUS = "x"
_PLACES = ("out_of_place", "in_place")


class _Row(NamedTuple):
    """One result."""

    size: int
    #: Size, count, type, operation and root, as in the text output.
    head: str
    #: (time, algbw, busbw) and the cell `#wrong` for each placement.
    sides: tuple[tuple[tuple[float, float, float], str], ...]
    #: Time of each placement in us, for each group. Empty if not known.
    times: tuple[tuple[float, ...], ...]

    def text(self) -> str:
        cells = (f"{' '.join(map(repr, numbers))} {count}" for numbers, count in self.sides)
        return f" {self.head} {' '.join(cells)}"


class Document:
    """Collects the members of one document."""

    def __init__(self) -> None:
        self._program = ""
        self._config: dict[str, Any] = {}
        self._devices: list[dict[str, Any]] = []
        #: Numbers of the processes of each group.
        self._groups: dict[int | None, list[int]] = {}
        self._rows: list[_Row] = []
        self._cells = 0
        self._cpu_time = False
        self._damaged = False
        self._bounds: int | None = None
        self._mean: float | None = None

    def take(self, key: bytes, raw: bytes) -> None:
        """Add one member, or one result."""
        data = load(raw)
        if key == RESULTS:
            row = self._row(members_of(data))
            if row and self._cells < MAX_ROWS:
                self._rows.append(row)
                self._cells += max(1, len(row.times))
            else:
                self._damaged = True
        elif key == b"args":
            first = data[0] if isinstance(data, list) and data else None
            self._program = word(re.split(r"[\\/]", first)[-1] if isinstance(first, str) else "")
        elif key == b"config" and not self._config:
            self._config = members_of(data)
            devices = self._config.get("devices")
            listed = isinstance(devices, list) and len(devices) * self._gpus() <= MAX_DEVICES
            self._devices = [members_of(device) for device in devices or ()] if listed else []
            for process, device in enumerate(self._devices):
                self._groups.setdefault(whole(device.get("group")), []).append(process)
        elif key == b"out_of_bounds":
            self._bounds = whole(members_of(data).get("count"))
        elif key != b"config":
            mean = members_of(data)
            self._mean = number(mean.get("bandwidth", mean.get("bandwidith")))

    def _gpus(self) -> int:
        """Return the number of GPUs per process."""
        threads, gpus = (whole(self._config.get(name)) for name in ("nthreads", "ngpus"))
        return (threads or 1) * (gpus or 1)

    def _factor(self, processes: int) -> float | None:
        """Return the `bus_factor` of a group with this number of processes."""
        return bus_factor(self._program.rpartition("_perf")[0], processes * self._gpus())

    def _row(self, data: dict[str, Any]) -> _Row | None:
        """Return one result as a row, or None if it is damaged."""
        size, count = whole(data.get("size")), whole(data.get("count"))
        sides = [members_of(data.get(place)) for place in _PLACES]
        if size is None or count is None or not all(sides):
            return None
        self._cpu_time = any("cpu_time" in side for side in sides)
        head = [word(data.get(name)) for name in ("type", "redop", "root")]
        return _Row(
            size=size,
            head=" ".join([f"{size} {count}", *head]),
            sides=tuple(
                (
                    (
                        number(side.get("cpu_time", side.get("time"))),
                        number(side.get("alg_bw")),
                        number(side.get("bus_bw")),
                    ),
                    wrong(side.get("nwrong")),
                )
                for side in sides
            ),
            times=self._times([members_of(data.get(f"{place}_per_iter")) for place in _PLACES]),
        )

    def _times(self, reports: Sequence[dict[str, Any]]) -> tuple[tuple[float, ...], ...]:
        """Return the times of each group, or () for a single group or if times are missing."""
        every = [report.get("per_process_max_times_us") for report in reports]
        fit = (
            isinstance(rows, list)
            and len(rows) == len(self._devices)
            and all(isinstance(row, list) for row in rows)
            for rows in every
        )
        if len(self._groups) < 2 or not all(fit):
            return ()
        return tuple(
            tuple(_slowest(report, processes) for report in reports)
            for processes in self._groups.values()
        )

    def text(self) -> Iterator[bytes]:
        """Yield the tables as text."""
        rows = self._rows
        # Without a formula for the bandwidth, a group has no result of its own.
        each = bool(rows) and all(row.times for row in rows) and self._factor(1) is not None
        known = {count for row in rows for _, count in row.sides} <= {"0", "N/A"}
        if self._config and not (each and known and not self._bounds):
            # Wrong elements are counted over all groups, so they need the common table.
            devices = list(self._listed(range(len(self._devices)), alone=False))
            yield self._table(devices, rows, self._mean, self._bounds)
        for place, processes in enumerate(self._groups.values() if each else ()):
            yield self._group(place, processes)

    def _group(self, place: int, processes: Sequence[int]) -> bytes:
        """Return the table of one group, as if it had run alone."""
        factor = self._factor(len(processes)) or 0.0
        rows, buses = [], []
        for row in self._rows:
            sides = []
            for time, (_, count) in zip(row.times[place], row.sides, strict=True):
                algbw = row.size / time * 1e-3 if time > 0 else NAN
                buses.append(algbw * factor)
                # Only a sum of 0 shows the count of each group.
                sides.append(((time, algbw, buses[-1]), "0" if count == "0" else "N/A"))
            rows.append(row._replace(sides=tuple(sides)))
        finite = [busbw for busbw in buses if isfinite(busbw)]
        mean = sum(finite) / max(1, len(finite))
        bounds = None if self._bounds is None or self._mean is None else 0
        return self._table(list(self._listed(processes, alone=True)), rows, mean, bounds)

    def _listed(self, processes: Sequence[int], *, alone: bool) -> Iterator[str]:
        """Yield the lines about devices of processes; with `alone`, as if no others existed.

        The JSON lists only the first GPU of each process. The others follow it, because nccl-tests
        numbers ranks and devices consecutively; their bus ids are not known.
        """
        gpus = self._gpus()
        for place, process in enumerate(processes):
            device = self._devices[process]
            rank = place * gpus if alone else whole(device.get("rank"))
            group = 0 if alone else whole(device.get("group"))
            host, first = word(device.get("hostname")), whole(device.get("device"))
            bus, name = word(device.get("device_hex")), line(device.get("device_info"))
            for i in range(gpus if rank is not None and first is not None else 0):
                yield (
                    f"#  Rank {(rank or 0) + i} Group {group} Pid 0 on {host} "
                    f"device {(first or 0) + i} [{UNKNOWN_BUS if i else bus}] {name}"
                )

    def _table(
        self, devices: Sequence[str], rows: Sequence[_Row], mean: float | None, bounds: int | None
    ) -> bytes:
        """Return the text of a table."""
        config = self._config
        least, most = whole(config.get("minimum_bytes")), whole(config.get("maximum_bytes"))
        factor, step = whole(config.get("step_factor")), whole(config.get("step_bytes"))
        stepping = f"{step}(bytes)" if factor is None else f"{factor}(factor)"
        # Even with the CPU's time (`-C`), the times of single groups are the GPU's.
        time = "cputime" if self._cpu_time and rows is self._rows else "time"
        lines = [
            f"# Collective test starting: {self._program}",
            f"# nThread 1 nGpus 1 minBytes {least} maxBytes {most} step: {stepping}",
            "# Using devices",
            *devices,
            f"# size count type redop root{f' {time} algbw busbw #wrong' * 2}",
            *(row.text() for row in rows),
        ]
        if bounds is not None and mean is not None:
            if rows and least is not None and most is not None and not self._damaged:
                sizes = expected_sizes(least, most, factor or step or 0, factor=factor is not None)
                top = max(row.size for row in rows)
                reached = next((size for size in sizes or () if size >= top), most)
                if sizes and reached < sizes[-1]:
                    # The text reports a lack of memory; the JSON only ends earlier.
                    lines.append(f"# Reducing maxBytes to {reached} due to memory limitation")
            lines.append(f"# Out of bounds values : {bounds} {'FAILED' if bounds else 'OK'}")
            lines.append(f"# Avg bus bandwidth    : {mean!r}")
        return ("\n".join(lines) + "\n").encode("utf-8", "replace")


def _slowest(report: dict[str, Any], processes: Sequence[int]) -> float:
    """Return the time of a group in us: the median over iterations of the slowest process.

    nccl-tests summarizes in the same way (src/common.cu, ReduceProcessMaxIterTimes) and skips
    leading iterations (`-K`).
    """
    every = report["per_process_max_times_us"]
    rows = [[number(time) for time in every[process]] for process in processes]
    same = len({*map(len, rows)}) == 1 and isfinite(sum(map(sum, rows)))
    times = [max(column) for column in zip(*rows, strict=True)] if same else []
    times = times[whole(report.get("skipped_iterations")) or 0 :]
    return median(times) if times else NAN


def parse(source: bytes | Iterable[bytes] | BinaryIO, *, collective: str | None = None) -> Log:
    """Read a log of nccl-tests, text or JSON; see `accept.core.nccl_tests.parse`.

    A run of several groups at once (NCCL_TESTS_SPLIT) with the times of every process (`-I 1`)
    gives a table for each group, as if it had run alone; any other gives one table.
    """
    blocks = nccl_tests.pieces(source)
    start = b""
    for block in blocks:
        start = (start + block).lstrip()
        if len(start) > 64:
            break
    whole = chain((start,), blocks)
    return nccl_tests.parse(_as_text(whole) if is_json(start) else whole, collective=collective)


def is_json(start: bytes) -> bool:
    """Return True if this is the beginning of a JSON object, not of text output."""
    return re.match(rb'\s*\{\s*"', start) is not None


def _as_text(pieces: Iterable[bytes]) -> Iterator[bytes]:
    """Yield the text that nccl-tests prints together with the JSON."""
    document = Document()
    for key, raw in members(pieces):
        if key:
            document.take(key, raw)
        else:
            yield from document.text()
            document = Document()
