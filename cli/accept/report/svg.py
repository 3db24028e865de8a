"""Draw the marks that several pictures share, as data of SVG paths.

A path with many marks is a tenth of the size of one element for each. All texts reach the page
through the templates, which escape them; these functions only take numbers.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum

from markupsafe import Markup


class Tone(StrEnum):
    """The color of a value, by its share of normal; the style sheet has a rule for each."""

    NORMAL = "t0"
    LOW = "t1"
    SLOW = "t2"
    BAD = "t3"
    #: It was measured, but too few peers show what is normal.
    UNKNOWN = "unknown"
    #: It was measured and failed, or its data was wrong.
    FAILED = "failed"
    #: It was not measured. This is never drawn like a healthy value.
    MISSING = "missing"


#: The lowest shares of normal of the first tones.
_SHARES = ((0.97, Tone.NORMAL), (0.9, Tone.LOW), (0.7, Tone.SLOW))
#: The legend of pictures that color values by their share of normal.
LEGEND = (
    (Tone.NORMAL, "at least 97 % of normal"),
    (Tone.LOW, "90 to 97 %"),
    (Tone.SLOW, "70 to 90 %"),
    (Tone.BAD, "below 70 %, or failed below its limit"),
    (Tone.UNKNOWN, "no peers to compare with"),
    (Tone.FAILED, "failed or wrong data"),
    (Tone.MISSING, "not measured"),
)


def tone(share: float | None, *, is_below_bound: bool = False) -> Tone:
    """Return the color of a value that is this share of normal; None: normal is unknown."""
    if is_below_bound:
        return Tone.BAD
    if share is None:
        return Tone.UNKNOWN
    return next((tone for lowest, tone in _SHARES if share >= lowest), Tone.BAD)


def short(value: float) -> str:
    """Return a coordinate with at most one decimal."""
    return f"{value:.1f}".removesuffix(".0")


def dots(points: Iterable[tuple[float, float]]) -> Markup:
    """Return a path of points, which are drawn as round ends of lines without length."""
    return Markup("".join(f"M{short(x)} {short(y)}h0" for x, y in sorted(set(points))))


def cells(corners: Iterable[tuple[float, float]], width: float) -> Markup:
    """Return a path of cells by the middles of their left sides; the stroke is their height."""
    return Markup("".join(f"M{short(x)} {short(y)}h{short(width)}" for x, y in corners))


def line(points: Iterable[tuple[float, float]]) -> Markup:
    """Return a path through points."""
    return Markup("M" + "L".join(f"{short(x)} {short(y)}" for x, y in points))


def area(upper: Iterable[tuple[float, float]], lower: Iterable[tuple[float, float]]) -> Markup:
    """Return a closed path between two lines."""
    return Markup(f"{line((*upper, *reversed(tuple(lower))))}Z")
