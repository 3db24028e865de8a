"""Parse durations and expectations (`all-reduce@8G>=380`)."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import Annotated

from accept.config.tools import check_exists
from accept.core.catalog.metrics import MetricSpec
from accept.core.checks.check import Check
from accept.core.error_codes import Code
from accept.core.plan import BoundKind, Reference
from accept.core.serde import Bounds, Invalid, Text, escaped, known
from accept.core.text import parse_size

_SECONDS = {"d": 86400, "h": 3600, "m": 60, "s": 1}
_DURATION = re.compile(
    r"(?:(\d{1,4})d)?(?:(\d{1,6})h)?(?:(\d{1,8})m)?(?:(\d{1,9}(?:\.\d{1,3})?)s)?"
)
#: The forms of Slurm that have days, or hours, minutes and seconds.
_CLOCK = re.compile(r"(?=.*-|.*:.*:)(?:(\d{1,4})-)?(\d{1,4})(?::(\d\d))?(?::(\d\d))?")


def parse_duration(text: str) -> float:
    """Return the seconds of "90s", "15m", "1h30m", "7d", "1-12:00:00", or a number of seconds.

    Raises Invalid, whose hint is the valid forms, for any other text and for zero.
    """
    stripped = text.strip().lower()
    plain_seconds = f"{stripped}s" if stripped[-1:].isdigit() else stripped
    match = _DURATION.fullmatch(plain_seconds) or _CLOCK.fullmatch(stripped)
    parts = match.groups() if match and stripped.isascii() else ()
    seconds = sum(
        float(part or 0) * _SECONDS[unit] for part, unit in zip(parts, "dhms", strict=False)
    )
    if not seconds:
        raise Invalid(
            (),
            f"{escaped(text)!r} is not a valid duration",
            "write seconds above 0, HH:MM:SS, or numbers with d, h, m, s such as 90s or 1h30m",
        )
    return seconds


#: A time in seconds; files may also contain "15m".
Seconds = Annotated[float, Bounds(min=0.001), Text(parse_duration, "a duration such as 90s or 15m")]
#: A size in bytes; files may also contain "8G".
Bytes = Annotated[int, Bounds(min=1), Text(parse_size, "a size such as 512K or 8G")]

#: No metric reaches this value in its unit; in microseconds it is eleven days.
_UNREACHABLE = 1e12
EXPECTATION_FORMS = (
    "CHECK[.METRIC][@SIZE][/NODES]>=NUMBER or <=NUMBER, such as all-reduce@8G>=380, "
    "all-gather@8G/4-64>=300 (on 4 to 64 nodes) or connectivity<=50"
)
_EXPECTATION = re.compile(
    r"(?P<check>[\w-]+)(?:\.(?P<metric>[\w-]+))?(?:@(?P<size>\w+))?"
    r"(?:/(?P<low>\d{1,6})(?P<range>-(?P<high>\d{1,6})?)?)?"
    r"\s*(?P<sign>>=|<=)\s*(?P<value>[-+]?\.?\d[\d.]*(?:[eE][-+]?\d+)?|\S+)"
    r"(?:\s*(?P<unit>[A-Za-z%]\S*))?",
    re.ASCII,
)


def parse_expectation(text: str, *, source: str, own: Sequence[Check] = ()) -> Reference:
    """Parse a threshold of the user; `source` names its place, such as "site.yaml:12".

    `own` are the user's tools. Raises Invalid for invalid syntax, for an unknown check or metric,
    for a collective without a size, and for a wrong unit.
    """
    match = _EXPECTATION.fullmatch(text.strip())
    if not match:
        message = f"{escaped(text)!r} is not a valid expectation"
        raise Invalid((), message, f"write {EXPECTATION_FORMS}", code=Code.EXPECT_SYNTAX)
    found = check_exists(match["check"], own=own)
    check = found.name
    spec = _metric(found, match["metric"])
    if match["unit"] and match["unit"] != spec.unit:
        message = _wrong_unit(check, spec.name, spec.unit)
        raise Invalid((), message, "leave the unit out", code=Code.METRIC_UNIT)
    bound = _number(match["value"])
    if spec.size and not match["size"]:
        name, slash, nodes = match[0].partition(match["sign"])[0].strip().partition("/")
        hint = f"such as {name}@{spec.size}{slash}{nodes}{match['sign']}{match['value']}"
        raise Invalid((), f"{check} needs a size", hint, code=Code.EXPECT_SIZE)
    _refuse_always_met(found, match["sign"], bound)
    low, high = _nodes(match)
    return Reference(
        check=check,
        metric=spec.name,
        unit=spec.unit,
        kind=BoundKind.EXPECTATION,
        source=source,
        value=bound,
        lower=bound if match["sign"] == ">=" else None,
        upper=bound if match["sign"] == "<=" else None,
        size=_size(match["size"]),
        min_nodes=low,
        max_nodes=high,
    )


def _refuse_always_met(check: Check, sign: str, bound: float) -> None:
    """Raise Invalid for a bound that every measurement meets.

    Such a bound would disable the machine's own one. The metrics of a script may have any range.
    """
    if check.user_script:
        return
    if sign == ">=" and bound <= 0:
        message = f"{check.name}>={bound:g} is always met"
        raise Invalid((), message, "give a lower bound above 0", code=Code.EXPECT_ALWAYS_MET)
    if sign == "<=" and bound >= _UNREACHABLE:
        message = f"{check.name}<={bound:g} is always met"
        hint = f"give an upper bound below {_UNREACHABLE:g}"
        raise Invalid((), message, hint, code=Code.EXPECT_ALWAYS_MET)


def _metric(check: Check, metric: str | None) -> MetricSpec:
    """Return a metric of a check; without a name, the default one of the check."""
    if metric is not None:
        return _spec(check, metric)
    if not (specs := _bounded_metrics(check)):
        own, name = check.user_script, check.name
        message = f"{name} has no {'default metric' if own else 'metric that can have a bound'}"
        hint = f"name one: {name}.METRIC" if own else "remove it, or name another check"
        raise Invalid((), message, hint, code=Code.METRIC_UNKNOWN)
    return next(iter(specs.values()))


def check_metric(check: str, metric: str, unit: str) -> None:
    """Raise Invalid if the check lacks the metric, or if the unit is wrong.

    A user's script has metrics of its own.
    """
    found = check_exists(check)
    if found.user_script:
        return
    try:
        spec = _spec(found, metric)
    except Invalid as error:
        raise error.under("metric") from None
    if unit != spec.unit:
        raise Invalid(("unit",), _wrong_unit(check, metric, spec.unit), code=Code.METRIC_UNIT)


def unit_of(check: str, metric: str) -> str:
    """Return the unit of a metric. Raise Invalid if the check does not have it."""
    return _spec(check_exists(check), metric).unit


def _bounded_metrics(check: Check) -> dict[str, MetricSpec]:
    """Return the metrics of a check that can have a bound, by name; the first is the default."""
    return {spec.name: spec for spec in check.metrics if spec.bounds}


def _spec(check: Check, metric: str) -> MetricSpec:
    if check.user_script:
        return MetricSpec(name=metric, unit="")
    specs = _bounded_metrics(check)
    if metric not in specs:
        hint = known(metric, specs, "its metrics")
        message = f"{check.name} has no metric {escaped(metric)!r}"
        raise Invalid((), message, hint, code=Code.METRIC_UNKNOWN)
    return specs[metric]


def _wrong_unit(check: str, metric: str, unit: str) -> str:
    return f"{check} {metric} is measured in {unit or 'no unit'}"


def _number(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        message = f"{escaped(text)!r} is not a number"
        raise Invalid((), message, f"write {EXPECTATION_FORMS}", code=Code.EXPECT_SYNTAX)
    return value


def _size(text: str | None) -> int | None:
    try:
        return parse_size(text) if text else None
    except ValueError as error:
        raise Invalid((), str(error), code=Code.EXPECT_SYNTAX) from None


def _nodes(match: re.Match[str]) -> tuple[int | None, int | None]:
    """Return the smallest and the largest number of nodes; None: unlimited."""
    if match["low"] is None:
        return None, None
    low = int(match["low"])
    high = None if match["range"] and not match["high"] else int(match["high"] or low)
    if low < 1 or (high is not None and high < low):
        message = f"invalid range: {low} to {high} nodes"
        raise Invalid((), message, "such as /2, /4-64 or /3-", code=Code.EXPECT_SYNTAX)
    return low, high
