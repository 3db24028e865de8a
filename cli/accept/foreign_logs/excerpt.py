"""Build the tables of logs that are not our own, in which lines may be missing.

The collective, the ranks and the devices are inferred from names and figures if no line shows them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

from accept.core.nccl_tests.lines import UNKNOWN_BUS
from accept.core.nccl_tests.table import MAX_DEVICES, NamedBy, TableBuilder
from accept.foreign_logs.inference import infer


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
