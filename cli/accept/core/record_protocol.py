"""The one record format: lines `ACCEPT {json}` in a raw log, read into metrics, facts and problems.

Logs are untrusted. Nothing here raises; a line that cannot be what it says becomes a problem, and
how long a line, how deep its JSON and how many of them count are bounded.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from typing import Any

from accept.core.model import Fact, Metric, Parsed, Problem
from accept.core.text import plain

#: Longest line that is read, in bytes; the inventory of a host takes a few thousand.
MAX_LINE = 64 << 10
#: A log with more records than this has run wild.
MAX_RECORDS = 200_000

#: Facts nested deeper than this are refused: what writes them again goes down level by level.
MAX_DEPTH = 32

_MARK = b"ACCEPT {"
_NON_FINITE = {"nan", "inf", "-inf", "infinity", "-infinity"}
_TEXT = {"check": 64, "host": 255, "gpu": 128, "placement": 16, "algorithm": 64}


def parse(lines: Iterable[bytes], check: str | None = None) -> Parsed:
    """Read every record of `lines`, each one line or a block of them.

    `check` is the check of records that name none.
    """
    # Those who only plan load this module too, and need no patterns of NCCL's lines.
    from accept.core.nccl_tests.lines import clean

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
            problems.append(Problem(cause="unparsable", message=message, check=check))
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
            text.decode("utf-8"), parse_constant=str.lower, parse_float=_finite, parse_int=_whole
        )
    except (ValueError, RecursionError):
        problems.append(_bad(check, f"no JSON: {_shown(text)}"))
        return
    if _deep(data):
        problems.append(_bad(check, f"nested too deeply: {_shown(text)}"))
        return
    labels = {key: data.get(key) for key in (*_TEXT, "rank", "size")}
    wrong = [k for k, v in labels.items() if v is not None and not _fits(k, v)]
    if wrong:
        problems.append(_bad(check, f"{wrong[0]} is no {wrong[0]}: {_shown(text)}"))
        return
    labels["check"] = labels["check"] or check
    if isinstance(data.get("metric"), str):
        _metric(data, labels, metrics, problems, text)
    elif isinstance(data.get("fact"), str) and "value" in data:
        facts.append(
            Fact(
                name=data["fact"][:64],
                value=data["value"],
                **_only(labels, "check", "host", "rank"),
            )
        )
    elif isinstance(data.get("problem"), str):
        message = plain(str(data.get("message", "")), 500)
        problems.append(
            Problem(
                cause=data["problem"][:64],
                message=message,
                **_only(labels, "check", "host", "rank", "gpu"),
            )
        )
    else:
        problems.append(_bad(check, f"neither metric, fact nor problem: {_shown(text)}"))


def _metric(
    data: dict[str, Any],
    labels: dict[str, Any],
    metrics: list[Metric],
    problems: list[Problem],
    text: bytes,
) -> None:
    name, value, unit = data["metric"][:64], data.get("value"), data.get("unit", "")
    if isinstance(value, str) and value.lower() in _NON_FINITE:
        where = _only(labels, "check", "host", "rank", "gpu")
        problems.append(Problem(cause="not-finite", message=f"{name} is {value}", **where))
    elif isinstance(value, bool) or not isinstance(value, int | float) or not isinstance(unit, str):
        problems.append(_bad(labels["check"], f"{name} is no number: {_shown(text)}"))
    elif abs(value) > 1e300:
        problems.append(_bad(labels["check"], f"{name} is beyond all bounds"))
    elif labels["check"] is None:
        problems.append(_bad(None, f"{name} belongs to no check"))
    else:
        metrics.append(Metric(name=name, value=float(value), unit=unit[:32], **labels))


def _finite(text: str) -> float | str:
    """A JSON number, or its name where it is beyond what a float holds: never an infinity."""
    value = float(text)
    return value if math.isfinite(value) else str(value)


def _whole(text: str) -> int:
    """A JSON integer that 64 bits hold; ValueError for what is none, as for what is no JSON."""
    if len(text) > 19 or not -(2**63) <= int(text) < 2**63:
        raise ValueError(f"a number of {len(text)} digits")
    return int(text)


def _deep(data: object, room: int = MAX_DEPTH) -> bool:
    """Say whether a value is nested deeper than `room` levels."""
    if isinstance(data, dict | list):
        inner = data.values() if isinstance(data, dict) else data
        return room == 0 or any(_deep(value, room - 1) for value in inner)
    return False


def _fits(key: str, value: object) -> bool:
    if key in _TEXT:
        return isinstance(value, str) and len(value) <= _TEXT[key] and value.isprintable()
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 62


def _only(labels: dict[str, Any], *keys: str) -> dict[str, Any]:
    return {key: labels[key] for key in keys}


def _shown(text: bytes) -> str:
    return ascii(text[:120].decode("utf-8", errors="replace"))[1:-1]


def _bad(check: str | None, message: str) -> Problem:
    return Problem(
        cause="unparsable", message=f"a record that cannot be read: {message}", check=check
    )
