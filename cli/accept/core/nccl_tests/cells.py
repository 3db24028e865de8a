"""Values of untrusted JSON as cells of nccl-tests' text. What is none spoils its line there."""

from __future__ import annotations

from typing import Any

NAN = float("nan")


def members_of(data: Any) -> dict[str, Any]:
    """An object; empty where it is none."""
    return data if isinstance(data, dict) else {}


def whole(value: Any) -> int | None:
    """A whole number that nccl-tests can mean, or None."""
    known = isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 59
    return value if known else None


def number(value: Any) -> float:
    """A number; NaN where it is none."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return NAN
    try:
        return float(value)
    except (ValueError, OverflowError):
        return NAN


def wrong(value: Any) -> str:
    """The cell `#wrong`: what is no count was not checked."""
    count = number(value)
    return f"{int(count)}" if 0 <= count < 1e300 and count == int(count) else "N/A"


def line(value: Any) -> str:
    """A text on one line."""
    return " ".join(value.split())[:128] if isinstance(value, str) else ""


def word(value: Any) -> str:
    """A text without blanks around it. Any other becomes two words, so that its line is none."""
    text = value.strip() if isinstance(value, str) else ""
    return text if len(text) < 4096 and len(text.split()) == 1 else "? ?"
