"""Builds one table of nccl-tests output out of its lines, and says whether it can be believed."""

from __future__ import annotations

from collections.abc import Iterator
from math import isfinite

from accept.core.model import Problem
from accept.core.nccl_lines import BY_WIDTH, Layout, word
from accept.core.nccl_table import (
    UNCHECKED_IN_PLACE,
    Device,
    Row,
    Side,
    Table,
    bus_factor,
    expected_sizes,
)


def _wrong(token: bytes, *, deviation: bool) -> int | None:
    """Read the count of wrong elements: `%g` of an integer, or N/A. Raises ValueError.

    Where the column is a deviation, the footer alone says whether it is too large.
    """
    if token == b"N/A":
        return None
    value = float(token)
    if not isfinite(value):
        return None
    if value < 0:
        raise ValueError(token)
    if deviation:
        return 0
    return int(value) if value == int(value) else None


def _contradicts(size: int, time: float, algbw: float, busbw: float, factor: float) -> bool:
    """Say whether a row's numbers disagree by more than their printed digits allow.

    algbw = size / time and busbw = factor * algbw. Times have two decimals, or at least four
    digits (two in the form 1.0e+07); bandwidths two decimals, or at least five digits.
    """
    moved = size * 1e-3
    slack = 0.0055 * (time + algbw) + (7e-4 if time < 9.5e6 else 0.06) * moved
    if abs(moved - algbw * time) > slack:
        return True
    return abs(busbw - algbw * factor) > 0.0055 * (1 + factor) + 2e-4 * busbw


class TableBuilder:
    """A table while it is read."""

    def __init__(self, collective: str | None = None) -> None:
        #: How far down the table the reader is; a line from further up begins the next table.
        self.stage = 0
        self.collective = collective
        self.version: str | None = None
        #: Least and largest size, step, and whether the step multiplies.
        self.sizes: tuple[int, int, int, bool] | None = None
        self.reduced: int | None = None
        self.devices: list[Device] = []
        self.ranks_cut = False
        self.header = False
        self.layout: Layout | None = None
        self.rows: list[Row] = []
        self.damaged = 0
        self.first_damage = ""
        self.not_finite: list[str] = []
        self.bounds: int | None = None
        self.average: float | None = None
        #: The next table began before this one's footer.
        self.overtaken = False
        self._factor: float | None = None
        self._sum = 0.0
        self._checked = True

    def ranks(self) -> int | None:
        """Return the number of ranks, or None where the list of devices is not whole."""
        count = len(self.devices)
        if not count or self.ranks_cut or {d.rank for d in self.devices} != set(range(count)):
            return None
        return count

    def begin_rows(self, layout: Layout | None) -> None:
        """Take the line of column names."""
        self.header = True
        self.layout = layout
        ranks = self.ranks()
        if ranks and any(device.group for device in self.devices):
            group = self.devices[0].group
            ranks = sum(device.group == group for device in self.devices)
        self._factor = bus_factor(self.collective, ranks)

    def take_average(self, token: bytes) -> None:
        """Take the footer's mean bus bandwidth."""
        try:
            value = float(token)
        except ValueError:
            return
        if isfinite(value):
            self.average = value
        else:
            self.not_finite.append(f"the footer's average is {value}")

    def damage(self, what: str) -> None:
        """Note a row that cannot be believed."""
        self.damaged += 1
        self.first_damage = self.first_damage or what

    def add(self, line: bytes) -> bool:
        """Take a line if it is a whole row; False where it is none."""
        tokens = line.split()
        layout = self.layout or BY_WIDTH.get(len(tokens))
        if layout is None or len(tokens) != layout.width:
            return False
        if layout.lacks:
            tokens += (b"none", b"-1")
        cells = layout.pick(tokens)
        size_, count_, type_, redop_, root_, ot, oa, ob, ow, it, ia, ib, iw = cells
        kind, redop = word(type_), word(redop_)
        # Python would read 1_000 as a number.
        if not kind or not redop or (b"_" in line and b"_" in b"".join(cells[4:] + cells[:2])):
            return False
        try:
            size, count, root = int(size_), int(count_), int(root_)
            otime, oalg, obus = float(ot), float(oa), float(ob)
            itime, ialg, ibus = float(it), float(ia), float(ib)
            owrong = 0 if ow == b"0" else _wrong(ow, deviation=layout.deviation)
            iwrong = 0 if iw == b"0" else _wrong(iw, deviation=layout.deviation)
        except ValueError:
            return False
        if not (0 <= size < 1 << 63 and 0 <= count < 1 << 63):
            return False
        out: Side | None = Side(otime, oalg, obus, owrong)
        inp: Side | None = Side(itime, ialg, ibus, iwrong)
        factor = self._factor
        if not isfinite(otime + oalg + obus + itime + ialg + ibus):
            out, inp = self._finite(size, "out of", out), self._finite(size, "in", inp)
        elif (
            factor is not None
            and not layout.cpu_time
            and (
                _contradicts(size, otime, oalg, obus, factor)
                or _contradicts(size, itime, ialg, ibus, factor)
            )
        ):
            self.damage(f"the row of {size} B contradicts itself")
            return True
        self._sum += obus + ibus
        if owrong != 0 or iwrong != 0:
            self._checked = False
        self.rows.append(Row(size, count, kind, redop, root, out, inp))
        return True

    def _finite(self, size: int, where: str, side: Side | None) -> Side | None:
        """Return the side, or None and a note where a number of it is not finite."""
        if side is None or all(isfinite(value) for value in side[:3]):
            return side
        named = zip(("time", "algbw", "busbw"), side[:3], strict=True)
        bad = ", ".join(f"{name} {value}" for name, value in named if not isfinite(value))
        if len(self.not_finite) < 4:
            self.not_finite.append(f"{size} B {where} place: {bad}")
        return None

    def _missing(self) -> Iterator[str]:
        """Say what the table lacks to be complete."""
        if self.collective is None:
            yield "which collective it is"
        if self.sizes is None:
            yield "no line of parameters"
        if self.ranks() is None:
            yield "the list of devices has gaps"
        if self.layout is None:
            yield "the line of column names is missing or unknown"
        if self.damaged:
            yield f"{self.damaged} damaged rows ({self.first_damage})"
        if self.sizes is not None:
            least, most, step, factor = self.sizes
            yield from self._missing_rows(least, most, step, factor=factor)
        if self.bounds is None or self.average is None:
            yield "no footer"
        elif self.rows and not self.damaged and not self.not_finite:
            mean = self._sum / (2 * len(self.rows))
            if abs(mean - self.average) > 0.0055 + 2e-4 * abs(mean):
                yield f"the rows' mean busbw is {mean:g}, the footer says {self.average:g}"

    def _missing_rows(self, least: int, most: int, step: int, *, factor: bool) -> Iterator[str]:
        """Say which of the expected rows are absent (`-N` repeats all of them)."""
        top = most if self.reduced is None else min(most, self.reduced)
        sizes = expected_sizes(least, top, step, factor=factor)
        have = [row.size for row in self.rows]
        if not have:
            yield "no rows"
        elif sizes is not None and (not sizes or len(have) % len(sizes)):
            yield f"{len(have)} rows where {len(sizes)} sizes were to be measured"
        elif sizes is not None and not all(
            # Sizes are rounded down to a multiple of the number of ranks.
            have[i] <= sizes[i % len(sizes)] < 2 * have[i] + 65536
            for i in range(len(have))
        ):
            yield "sizes other than the ones asked for"

    def _correctness(self) -> Iterator[tuple[str, str]]:
        """Say what is wrong with the data, as pairs of cause and message."""
        wrong, unchecked = [], []
        by_design = self.collective in UNCHECKED_IN_PLACE
        for row in () if self._checked else self.rows:
            for where, side in row.sides():
                if side is None or side.wrong == 0:
                    continue
                if side.wrong is not None:
                    wrong.append(f"{side.wrong} wrong elements at {row.size} B {where} place")
                elif not (by_design and where == "in"):
                    unchecked.append(f"{row.size} B {where} place")
        if self.bounds and not wrong:
            wrong.append(f"the footer counts {self.bounds} out of bounds")
        if wrong:
            yield "wrong-data", _some(wrong)
        if unchecked:
            yield "no-measurement", "the data were not checked (#wrong is N/A): " + _some(unchecked)
        if self.not_finite:
            yield "not-finite", _some(self.not_finite)

    def lonely(self) -> bool:
        """Say whether no rank but 0 was seen, once or many times."""
        return all(device.rank == 0 for device in self.devices)

    def finish(self, *, alone: bool = False) -> tuple[Table, tuple[Problem, ...]]:
        """Return the table and what is wrong with it, of which nothing is said if it is alone."""
        missing = "; ".join(self._missing())
        table = Table(
            collective=self.collective,
            version=self.version,
            ranks=self.ranks(),
            devices=tuple(self.devices),
            min_bytes=self.sizes[0] if self.sizes else None,
            max_bytes=self.sizes[1] if self.sizes else None,
            reduced_max=self.reduced,
            rows=tuple(self.rows),
            out_of_bounds=self.bounds,
            average=self.average,
            complete=not missing,
            alone=alone,
        )
        if alone:
            return table, ()
        found = list(self._correctness())
        if missing:
            found.append(("incomplete-log", missing))
        name = self.collective or "nccl-tests"
        problems = (Problem(cause=c, message=f"{name}: {m}", check=table.check) for c, m in found)
        return table, tuple(problems)


def _some(messages: list[str]) -> str:
    """Join the first few messages."""
    more = f", and {len(messages) - 4} more" if len(messages) > 4 else ""
    return ", ".join(messages[:4]) + more
