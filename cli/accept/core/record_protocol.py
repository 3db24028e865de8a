"""Parse records, the lines `ACCEPT {json}` of a raw log, into metrics, facts and problems.

Logs are untrusted. Invalid records become problems, and no function raises for them. The length and
depth of a record and the number of records are limited.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from typing import Any

from accept.core import causes
from accept.core.causes import Cause
from accept.core.model import Fact, Metric, Parsed, Placement, Problem
from accept.core.nccl_tests.lines import clean
from accept.core.text import plain

#: Upper limit of a record in bytes; the inventory of a host takes a few thousand.
MAX_LINE = 64 << 10
#: Records above this number are ignored: the program is out of control.
MAX_RECORDS = 200_000

#: Upper limit of the nesting of facts, because the code that writes them again is recursive.
MAX_DEPTH = 32

_MARK = b"ACCEPT {"
_NON_FINITE = {"nan", "inf", "-inf", "infinity", "-infinity"}
#: Longest text of each label, in characters.
_TEXT_LIMITS = {"check": 64, "host": 255, "gpu": 128, "algorithm": 64}
_PLACEMENTS = {placement.value: placement for placement in Placement}


def parse(lines: Iterable[bytes], check: str | None = None) -> Parsed:
    """Parse every record in `lines`, which are single lines or blocks of lines.

    `check` is the check of records without one.
    """
    metrics: list[Metric] = []
    facts: list[Fact] = []
    problems: list[Problem] = []
    count = 0
    marked = (line for block in lines if _MARK in block for line in block.split(b"\n"))
    for line in marked:
        if _MARK not in line:
            continue
        text = clean(line).strip()
        if not text.startswith(_MARK):
            continue
        count += 1
        if count > MAX_RECORDS:
            message = f"more than {MAX_RECORDS} records: the rest was not read"
            problems.append(Problem(cause=Cause.UNPARSABLE, message=message, check=check))
            break
        _read(text[len(_MARK) - 1 :], check, metrics, facts, problems)
    return Parsed(metrics=tuple(metrics), facts=tuple(facts), problems=tuple(problems))


def _read(
    text: bytes,
    check: str | None,
    metrics: list[Metric],
    facts: list[Fact],
    problems: list[Problem],
) -> None:
    if len(text) > MAX_LINE:
        problems.append(_bad(check, f"a record of {len(text)} bytes"))
        return
    try:
        data = json.loads(
            text.decode("utf-8"),
            parse_constant=str.lower,
            parse_float=_parse_float,
            parse_int=_parse_int,
        )
    except (ValueError, RecursionError):
        problems.append(_bad(check, f"invalid JSON: {_excerpt(text)}"))
        return
    if _is_deeper(data, MAX_DEPTH):
        problems.append(_bad(check, f"nested too deeply: {_excerpt(text)}"))
        return
    labels = {key: data.get(key) for key in (*_TEXT_LIMITS, "placement", "rank", "size")}
    invalid = [k for k, v in labels.items() if v is not None and not _is_valid(k, v)]
    if invalid:
        problems.append(_bad(check, f"invalid {invalid[0]}: {_excerpt(text)}"))
        return
    labels["check"] = labels["check"] or check
    labels["placement"] = _PLACEMENTS.get(labels["placement"])
    if isinstance(data.get("metric"), str):
        _metric(data, labels, metrics, problems, text)
    elif isinstance(data.get("fact"), str) and "value" in data:
        facts.append(
            Fact(
                name=data["fact"][:64],
                value=data["value"],
                **_selected(labels, "check", "host", "rank"),
            )
        )
    elif isinstance(data.get("problem"), str):
        message = plain(str(data.get("message", "")), 500)
        cause, message = causes.reported(plain(data["problem"], 64), message)
        problems.append(
            Problem(
                cause=cause,
                message=message,
                **_selected(labels, "check", "host", "rank", "gpu"),
            )
        )
    else:
        problems.append(_bad(check, f"neither metric, fact nor problem: {_excerpt(text)}"))


def _metric(
    data: dict[str, Any],
    labels: dict[str, Any],
    metrics: list[Metric],
    problems: list[Problem],
    text: bytes,
) -> None:
    name, value, unit = data["metric"][:64], data.get("value"), data.get("unit", "")
    if isinstance(value, str) and value.lower() in _NON_FINITE:
        where = _selected(labels, "check", "host", "rank", "gpu")
        problems.append(Problem(cause=Cause.NOT_FINITE, message=f"{name} is {value}", **where))
    elif isinstance(value, bool) or not isinstance(value, int | float) or not isinstance(unit, str):
        problems.append(_bad(labels["check"], f"{name} is not a number: {_excerpt(text)}"))
    elif abs(value) > 1e300:
        problems.append(_bad(labels["check"], f"{name} is too large"))
    elif labels["check"] is None:
        problems.append(_bad(None, f"{name} belongs to no check"))
    else:
        metrics.append(Metric(name=name, value=float(value), unit=unit[:32], **labels))


def _parse_float(text: str) -> float | str:
    """Return a JSON number, or its name ("inf") if it is too large for a float."""
    value = float(text)
    return value if math.isfinite(value) else str(value)


def _parse_int(text: str) -> int:
    """Return a JSON integer. Raise ValueError, as for invalid JSON, if it needs over 64 bits."""
    if len(text) > 19 or not -(2**63) <= int(text) < 2**63:
        raise ValueError(f"a number of {len(text)} digits")
    return int(text)


def _is_deeper(data: object, levels: int) -> bool:
    """Return True if a value is nested deeper than `levels`."""
    if isinstance(data, dict | list):
        values = data.values() if isinstance(data, dict) else data
        return levels == 0 or any(_is_deeper(value, levels - 1) for value in values)
    return False


def _is_valid(key: str, value: object) -> bool:
    if key in _TEXT_LIMITS:
        return isinstance(value, str) and len(value) <= _TEXT_LIMITS[key] and value.isprintable()
    if key == "placement":
        # A script may use words of its own; they count as no placement.
        return isinstance(value, str) and len(value) <= 16
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 62


def _selected(labels: dict[str, Any], *keys: str) -> dict[str, Any]:
    return {key: labels[key] for key in keys}


def _excerpt(text: bytes) -> str:
    return ascii(text[:120].decode("utf-8", errors="replace"))[1:-1]


def _bad(check: str | None, message: str) -> Problem:
    return Problem(
        cause=Cause.UNPARSABLE, message=f"a record is not readable: {message}", check=check
    )
