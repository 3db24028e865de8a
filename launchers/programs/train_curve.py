"""The loss curve: its ends, and the curve that healthy hardware has for the same settings."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

#: Steps whose mean is the first or the last loss.
ENDS = 5
_REFERENCES = Path(__file__).with_name("train_reference.json")


def ends(losses: Sequence[float]) -> tuple[float, float]:
    """Mean of the first and of the last losses."""
    return sum(losses[:ENDS]) / ENDS, sum(losses[-ENDS:]) / ENDS


def deviation(curve: Sequence[float], reference: Sequence[float]) -> float:
    """Largest distance of two curves, as far as both go, as a share of the reference's first loss.

    Not a number where one of them is not.
    """
    far = [abs(a - b) for a, b in zip(curve, reference, strict=False)]
    return max(far, key=lambda one: (one != one, one)) / reference[0]


def settings(options: Any, batch: int) -> dict[str, Any]:
    """What a reference curve is valid for."""
    kept = ("model", "dataset", "norm", "seed", "rate", "width", "image")
    return {"batch": batch, **{name: getattr(options, name) for name in kept}}


def reference_of(wanted: dict[str, Any], precision: str) -> tuple[list[float], float] | None:
    """The reference curve for these settings out of train_reference.json, and its tolerance."""
    for one in json.loads(_REFERENCES.read_text(encoding="utf-8"))["curves"]:
        if one["settings"] == wanted and precision in one["tolerance"]:
            return one["losses"], one["tolerance"][precision]
    return None
