"""Draw the marks that several pictures share, as data of SVG paths.

A path with many marks is a tenth of the size of one element for each. All texts reach the page
through the templates, which escape them; these functions only take numbers.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum

from markupsafe import Markup

from accept.core.by_key import by_key
from accept.core.judge.values import is_bad
from accept.report.data import Population, Sample, share_of

#: Below this share of normal, a bad value has the darkest color.
_DARKEST = 0.7


class Tone(StrEnum):
    """The color of a value; the style sheet has a rule for each."""

    NORMAL = "t0"
    #: Lower than noise explains, but the verdict accuses nothing.
    LOW = "t1"
    #: Bad by the verdict.
    SLOW = "t2"
    BAD = "t3"
    #: It was measured, but too few peers show what is normal.
    UNKNOWN = "unknown"
    #: It was measured and failed, or its data was wrong.
    FAILED = "failed"
    #: It was not measured. This is never drawn like a healthy value.
    MISSING = "missing"


#: The legend of pictures that color values.
LEGEND = (
    (Tone.NORMAL, "normal"),
    (Tone.LOW, "unusual, but nothing is accused of it"),
    (Tone.SLOW, "slow"),
    (Tone.BAD, f"below {_DARKEST:.0%} of normal, or fails its limit"),
    (Tone.UNKNOWN, "no peers to compare with"),
    (Tone.FAILED, "failed or wrong data"),
    (Tone.MISSING, "not measured"),
)


def tone(share: float | None, *, low: bool, bad: bool, fails: bool = False) -> Tone:
    """Return the color of a value that is this share of normal; None: normal is unknown.

    `low`: noise does not explain it. `bad`: the verdict accuses what it shows. `fails`: it is below
    its bound.
    """
    if fails or (bad and share is not None and share < _DARKEST):
        return Tone.BAD
    if bad:
        return Tone.SLOW
    return Tone.UNKNOWN if share is None else Tone.LOW if low else Tone.NORMAL


def tone_of(sample: Sample, population: Population) -> Tone:
    """Return the color of an execution, as the judge sees it."""
    if sample.cause or sample.value is None:
        return Tone.FAILED
    return tone(
        share_of(sample, population.normal),
        low=is_bad(sample.value, population.lowest_good),
        bad=sample.bad,
        fails=is_bad(sample.value, population.bound),
    )


@dataclass(frozen=True, kw_only=True)
class Cells:
    """Cells of one size: a path for each color, and marks that show bad ones in gray print."""

    tones: Mapping[Tone, Markup]
    height: float
    dots: Markup
    crosses: Markup


def cells(
    corners: Mapping[Tone, Iterable[tuple[float, float]]], width: float, height: float
) -> Cells:
    """Return cells by the middles of their left sides."""

    def middles(kind: Tone) -> list[tuple[float, float]]:
        return [(x + width / 2, y) for x, y in corners.get(kind, ())]

    return Cells(
        tones={
            kind: Markup("".join(f"M{short(x)} {short(y)}h{short(width)}" for x, y in own))
            for kind, own in sorted(corners.items())
        },
        height=height,
        dots=dots(middles(Tone.SLOW)),
        crosses=crosses([*middles(Tone.BAD), *middles(Tone.FAILED)], min(width, height) / 4),
    )


def short(value: float) -> str:
    """Return a coordinate with at most one decimal."""
    return f"{value:.1f}".removesuffix(".0")


def dots(points: Iterable[tuple[float, float]]) -> Markup:
    """Return a path of points, which are drawn as round ends of lines without length."""
    return Markup("".join(f"M{short(x)} {short(y)}h0" for x, y in sorted(set(points))))


def crosses(points: Iterable[tuple[float, float]], size: float) -> Markup:
    """Return a path of crosses that reach this far to each side of their middles."""
    side = short(2 * size)
    return Markup(
        "".join(
            f"M{short(x - size)} {short(y - size)}l{side} {side}m0-{side}l-{side} {side}"
            for x, y in points
        )
    )


def marks(points: Iterable[tuple[Tone, tuple[float, float]]]) -> dict[Tone, Markup]:
    """Return a path of dots for each color, but none for failures, which have no value."""
    found = sorted(by_key(points).items())
    return {kind: dots(own) for kind, own in found if kind is not Tone.FAILED}


def line(points: Iterable[tuple[float, float]]) -> Markup:
    """Return a path through points."""
    return Markup("M" + "L".join(f"{short(x)} {short(y)}" for x, y in points))


def area(upper: Iterable[tuple[float, float]], lower: Iterable[tuple[float, float]]) -> Markup:
    """Return a closed path between two lines."""
    return Markup(f"{line((*upper, *reversed(tuple(lower))))}Z")


def round_ticks(low: float, high: float) -> list[float]:
    """Return at most five round values between two limits."""
    if not 0 < high - low < math.inf:
        return [low]
    power = 10.0 ** math.floor(math.log10((high - low) / 5))
    step = next(f * power for f in (1, 2, 5, 10, 20) if (high - low) / (f * power) < 5)
    return [n * step for n in range(math.ceil(low / step), math.floor(high / step) + 1)]


def room_for(names: Iterable[str]) -> int:
    """Return the width of a column of names, which are shortened to 18 characters."""
    return 12 + round(6.6 * min(18, max(map(len, names), default=0)))
