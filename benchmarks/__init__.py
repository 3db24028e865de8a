"""Measure the speed of accept: `rows()` of each module returns its figures.

Each figure is compared with a yardstick, measured in the same minutes on the same machine, because
seconds alone depend mostly on the machine.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Row:
    """One line of the table."""

    what: str
    #: With its unit.
    measured: str
    #: The yardstick and its own figure; empty if the bar is absolute.
    yardstick: str = ""
    #: The measured figure divided by the yardstick, or a share that has a limit.
    ratio: float | None = None
    #: Empty if the figure is only reported.
    bar: str = ""
    met: bool | None = None

    def cells(self) -> tuple[str, ...]:
        """Return the row's cells as texts."""
        ratio = "" if self.ratio is None else f"{self.ratio:.2f}"
        met = {True: "yes", False: "**no**", None: ""}[self.met]
        return self.what, self.measured, self.yardstick, ratio, self.bar, met


def beside(
    what: str, measured: str, yardstick: str, *, ours: float, theirs: float, bar: float
) -> Row:
    """Return a row that compares two times in seconds, whose ratio may be at most `bar`."""
    return Row(
        what=what,
        measured=measured,
        yardstick=yardstick,
        ratio=ours / theirs,
        bar=f"{bar}",
        met=ours <= bar * theirs,
    )


HEAD = ("what", "measured", "yardstick", "ratio", "bar", "met")


def table(rows: list[Row]) -> str:
    """Return the rows as a Markdown table."""
    lines = [HEAD, ("---",) * len(HEAD), *(row.cells() for row in rows)]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)
