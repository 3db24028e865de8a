"""Parse records, the lines `ACCEPT {json}` of a raw log, into metrics, facts and problems.

Logs are untrusted. Invalid records become problems, and no function raises for them. The length and
depth of a record and the number of records are limited.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping

from accept.core import causes
from accept.core.causes import Cause
from accept.core.nccl_tests.lines import clean
from accept.core.records import Fact, Metric, Parsed, Placement, Problem
from accept.core.text import plain

#: Upper limit of a record in bytes; the inventory of a host takes a few thousand.
MAX_LINE = 64 << 10
#: Records above this number are ignored: the program is out of control.
MAX_RECORDS = 200_000

#: Upper limit of the nesting of facts, because the code that writes them again is recursive.
MAX_DEPTH = 32

_MARK = b"ACCEPT {"
_NON_FINITE = {"nan", "inf", "-inf", "infinity", "-infinity"}
_PLACEMENTS = {placement.value: placement for placement in Placement}

_Item = Metric | Fact | Problem


class _Unreadable(ValueError):
    """The reason why a record is not readable."""


def parse(lines: Iterable[bytes], check: str | None = None) -> Parsed:
    """Parse every record in `lines`, which are single lines or blocks of lines.

    `check` is the check of records without one.
    """
    items: list[_Item] = []
    marked = (line for block in lines if _MARK in block for line in block.split(b"\n"))
    for line in marked:
        if _MARK not in line:
            continue
        text = clean(line).strip()
        if not text.startswith(_MARK):
            continue
        if len(items) >= MAX_RECORDS:
            message = f"more than {MAX_RECORDS} records: the rest was not read"
            items.append(Problem(cause=Cause.UNPARSABLE, message=message, check=check))
            break
        try:
            items.append(_item(text[len(_MARK) - 1 :], check))
        except _Unreadable as error:
            message = f"a record is not readable: {error}"
            items.append(Problem(cause=Cause.UNPARSABLE, message=message, check=check))
    return Parsed(
        metrics=tuple(item for item in items if isinstance(item, Metric)),
        facts=tuple(item for item in items if isinstance(item, Fact)),
        problems=tuple(item for item in items if isinstance(item, Problem)),
    )


def _item(text: bytes, default_check: str | None) -> _Item:
    """Return the contents of one record. Raise _Unreadable if it is invalid."""
    if len(text) > MAX_LINE:
        raise _Unreadable(f"a record of {len(text)} bytes")
    excerpt = ascii(text[:120].decode("utf-8", errors="replace"))[1:-1]
    try:
        data = json.loads(
            text.decode("utf-8"),
            parse_constant=str.lower,
            parse_float=_parse_float,
            parse_int=_parse_int,
        )
    except (ValueError, RecursionError):
        raise _Unreadable(f"invalid JSON: {excerpt}") from None
    if _is_deeper(data, MAX_DEPTH):
        raise _Unreadable(f"nested too deeply: {excerpt}")
    try:
        check = _label(data, "check", 64) or default_check
        host, gpu = _label(data, "host", 255), _label(data, "gpu", 128)
        algorithm = _label(data, "algorithm", 64)
        # Other words, which a user's script may print, count as no placement.
        placement = _PLACEMENTS.get(_label(data, "placement", 16) or "")
        rank, size = _count(data, "rank"), _count(data, "size")
    except _Unreadable as error:
        raise _Unreadable(f"{error}: {excerpt}") from None
    name, value, unit = data.get("metric"), data.get("value"), data.get("unit", "")
    fact, problem = data.get("fact"), data.get("problem")
    if isinstance(name, str):
        name = name[:64]
        if isinstance(value, str) and value.lower() in _NON_FINITE:
            message = f"{name} is {value}"
            return Problem(
                cause=Cause.NOT_FINITE, message=message, check=check, host=host, rank=rank, gpu=gpu
            )
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if not is_number or not isinstance(unit, str):
            raise _Unreadable(f"{name} is not a number: {excerpt}")
        if abs(value) > 1e300:
            raise _Unreadable(f"{name} is too large")
        if check is None:
            raise _Unreadable(f"{name} belongs to no check")
        return Metric(
            check=check,
            name=name,
            value=float(value),
            unit=unit[:32],
            size=size,
            host=host,
            rank=rank,
            gpu=gpu,
            placement=placement,
            algorithm=algorithm,
        )
    if isinstance(fact, str) and "value" in data:
        return Fact(name=fact[:64], value=value, check=check, host=host, rank=rank)
    if isinstance(problem, str):
        message = plain(str(data.get("message", "")), 500)
        cause, message = causes.reported(plain(problem, 64), message)
        return Problem(cause=cause, message=message, check=check, host=host, rank=rank, gpu=gpu)
    raise _Unreadable(f"neither metric, fact nor problem: {excerpt}")


def _parse_float(text: str) -> float | str:
    """Return a JSON number, or its name ("inf") if it is too large for a float."""
    value = float(text)
    return value if math.isfinite(value) else str(value)


def _parse_int(text: str) -> int:
    """Return a JSON integer. Raise ValueError, as for invalid JSON, if it exceeds 64 bits."""
    if len(text) > 19 or not -(2**63) <= int(text) < 2**63:
        raise ValueError(f"a number of {len(text)} digits")
    return int(text)


def _is_deeper(data: object, levels: int) -> bool:
    """Return True if a value is nested deeper than `levels`."""
    if isinstance(data, dict | list):
        values = data.values() if isinstance(data, dict) else data
        return levels == 0 or any(_is_deeper(value, levels - 1) for value in values)
    return False


def _label(data: Mapping[str, object], key: str, limit: int) -> str | None:
    """Return a text of at most `limit` characters; None if it is missing."""
    text = data.get(key)
    if text is None or (isinstance(text, str) and len(text) <= limit and text.isprintable()):
        return text
    raise _Unreadable(f"invalid {key}")


def _count(data: Mapping[str, object], key: str) -> int | None:
    """Return a count below 2^62; None if it is missing."""
    number = data.get(key)
    if number is None:
        return None
    if isinstance(number, int) and not isinstance(number, bool) and 0 <= number < 1 << 62:
        return number
    raise _Unreadable(f"invalid {key}")
