"""What is claimed about speed, measured: each module here has `rows()`, the figures it measures.

A figure stands beside its yardstick, measured in the same minutes on the same machine, because
seconds alone say more of the machine than of the product.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Row:
    """One line of the table."""

    what: str
    #: With its unit.
    measured: str
    #: What it is held against and how much that took; empty where the bar is absolute.
    yardstick: str = ""
    #: Measured over yardstick, or the share that is limited.
    ratio: float | None = None
    #: Empty: told, not judged.
    bar: str = ""
    met: bool | None = None

    def cells(self) -> tuple[str, ...]:
        """The line as texts."""
        ratio = "" if self.ratio is None else f"{self.ratio:.2f}"
        met = {True: "yes", False: "**no**", None: ""}[self.met]
        return self.what, self.measured, self.yardstick, ratio, self.bar, met


def beside(
    what: str, measured: str, yardstick: str, *, ours: float, theirs: float, bar: float
) -> Row:
    """A line whose two times, in seconds, may stand to each other as `bar` at most."""
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
    """The rows as a Markdown table."""
    lines = [HEAD, ("---",) * len(HEAD), *(row.cells() for row in rows)]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)
