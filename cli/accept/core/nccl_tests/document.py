"""One JSON document of nccl-tests, made into text: one table, or one for each group."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from math import isfinite
from statistics import median
from typing import Any, NamedTuple

from accept.core.nccl_tests.cells import NAN, line, members_of, number, whole, word, wrong
from accept.core.nccl_tests.nccl_table import bus_factor, expected_sizes
from accept.core.nccl_tests.reader import MAX_DEVICES, MAX_ROWS
from accept.core.nccl_tests.stream import RESULTS, load

#: In the place of the PCI address of a GPU that the JSON does not list.
UNKNOWN_BUS = "x"
_PLACES = ("out_of_place", "in_place")


class _Row(NamedTuple):
    """One result."""

    size: int
    #: Size, count, type, operation and root, as the text has them.
    head: str
    #: Of each placement: time, algbw and busbw, and the cell `#wrong`.
    sides: tuple[tuple[tuple[float, float, float], str], ...]
    #: Of each group: the time of each placement in us. Empty where nothing says.
    times: tuple[tuple[float, ...], ...]

    def text(self) -> str:
        cells = (f"{' '.join(map(repr, numbers))} {count}" for numbers, count in self.sides)
        return f" {self.head} {' '.join(cells)}"


class Document:
    """One document while it is read."""

    def __init__(self) -> None:
        self._program = ""
        self._config: dict[str, Any] = {}
        self._devices: list[dict[str, Any]] = []
        #: Of each group: the numbers of its processes.
        self._groups: dict[int | None, list[int]] = {}
        self._rows: list[_Row] = []
        self._cells = 0
        self._cpu_time = False
        self._damaged = False
        self._bounds: int | None = None
        self._mean: float | None = None

    def take(self, key: bytes, raw: bytes) -> None:
        """Take one member, or one result."""
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
        """GPUs of a process."""
        threads, gpus = (whole(self._config.get(name)) for name in ("nthreads", "ngpus"))
        return (threads or 1) * (gpus or 1)

    def _factor(self, processes: int) -> float | None:
        """See `bus_factor`, of a group of so many processes."""
        return bus_factor(self._program.rpartition("_perf")[0], processes * self._gpus())

    def _row(self, data: dict[str, Any]) -> _Row | None:
        """Read one result."""
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
        """The times of each group, where there are several and every process's times are there."""
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
        """The tables."""
        rows = self._rows
        # Without a formula for its bandwidth a group measured nothing.
        each = bool(rows) and all(row.times for row in rows) and self._factor(1) is not None
        known = {count for row in rows for _, count in row.sides} <= {"0", "N/A"}
        if self._config and not (each and known and not self._bounds):
            # Wrong elements are counted over all groups: nothing says whose they are.
            devices = list(self._listed(range(len(self._devices)), alone=False))
            yield self._table(devices, rows, self._mean, self._bounds)
        for place, processes in enumerate(self._groups.values() if each else ()):
            yield self._group(place, processes)

    def _group(self, place: int, processes: Sequence[int]) -> bytes:
        """The table of one group, as if it had run alone."""
        factor = self._factor(len(processes)) or 0.0
        rows, buses = [], []
        for row in self._rows:
            sides = []
            for time, (_, count) in zip(row.times[place], row.sides, strict=True):
                algbw = row.size / time * 1e-3 if time > 0 else NAN
                buses.append(algbw * factor)
                # A sum of nothing is nothing in each; any other is not known of any.
                sides.append(((time, algbw, buses[-1]), "0" if count == "0" else "N/A"))
            rows.append(row._replace(sides=tuple(sides)))
        finite = [busbw for busbw in buses if isfinite(busbw)]
        mean = sum(finite) / max(1, len(finite))
        bounds = None if self._bounds is None or self._mean is None else 0
        return self._table(list(self._listed(processes, alone=True)), rows, mean, bounds)

    def _listed(self, processes: Sequence[int], *, alone: bool) -> Iterator[str]:
        """The list of devices of some processes; `alone`: as if there were no others.

        Of a process with several GPUs only the first is there. The others follow it, as nccl-tests
        numbers ranks and devices in one go; their bus ids are not known.
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
        """The text of a table."""
        config = self._config
        least, most = whole(config.get("minimum_bytes")), whole(config.get("maximum_bytes"))
        factor, step = whole(config.get("step_factor")), whole(config.get("step_bytes"))
        stepping = f"{step}(bytes)" if factor is None else f"{factor}(factor)"
        # Where the CPU's time was measured, a group's own is still the GPU's.
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
                    # The text says that memory was too small for more; the JSON just ends before.
                    lines.append(f"# Reducing maxBytes to {reached} due to memory limitation")
            lines.append(f"# Out of bounds values : {bounds} {'FAILED' if bounds else 'OK'}")
            lines.append(f"# Avg bus bandwidth    : {mean!r}")
        return ("\n".join(lines) + "\n").encode("utf-8", "replace")


def _slowest(report: dict[str, Any], processes: Sequence[int]) -> float:
    """Time of a group in us: the median over the iterations of its slowest process's.

    So does nccl-tests summarize (src/common.cu, ReduceProcessMaxIterTimes), and it leaves out
    leading iterations (`-K`).
    """
    every = report["per_process_max_times_us"]
    rows = [[number(time) for time in every[process]] for process in processes]
    same = len({*map(len, rows)}) == 1 and isfinite(sum(map(sum, rows)))
    times = [max(column) for column in zip(*rows, strict=True)] if same else []
    times = times[whole(report.get("skipped_iterations")) or 0 :]
    return median(times) if times else NAN
