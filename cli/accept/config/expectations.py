"""Parse durations and expectations (`all-reduce@8G>=380`), and list the metrics of checks."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Annotated

from accept.core import checks
from accept.core.checks.gemm_memory import TYPES
from accept.core.model import BoundKind, Reference
from accept.core.serde import Bounds, Invalid, Text, escaped, known
from accept.core.text import parse_size

__all__ = ["Bytes", "Seconds", "parse_duration", "parse_expectation", "parse_size"]

_SECONDS = {"d": 86400, "h": 3600, "m": 60, "s": 1}
_DURATION = re.compile(
    r"(?:(\d{1,4})d)?(?:(\d{1,6})h)?(?:(\d{1,8})m)?(?:(\d{1,9}(?:\.\d{1,3})?)s)?"
)


def parse_duration(text: str) -> float:
    """Return the seconds of "90s", "15m", "1h30m", "7d", or a plain number of seconds.

    Raises ValueError with the valid forms for any other text and for zero.
    """
    stripped = text.strip().lower()
    match = _DURATION.fullmatch(f"{stripped}s" if stripped[-1:].isdigit() else stripped)
    parts = match.groups() if match and stripped.isascii() else ()
    seconds = sum(
        float(part or 0) * _SECONDS[unit] for part, unit in zip(parts, "dhms", strict=False)
    )
    if not seconds:
        raise ValueError(
            f"{escaped(text)!r} is not a valid duration; write seconds above 0, or numbers with "
            "d, h, m, s, such as 90s, 15m or 1h30m"
        )
    return seconds


#: A time in seconds; files may also contain "15m".
Seconds = Annotated[float, Bounds(min=0.001), Text(parse_duration, "a duration such as 90s or 15m")]
#: A size in bytes; files may also contain "8G".
Bytes = Annotated[int, Bounds(min=1), Text(parse_size, "a size such as 512K or 8G")]

_COLLECTIVE = {"busbw": "GB/s", "time": "us", "wrong": "count"}
#: Suffixes: none: median over time while all GPUs of a host work; -p5: slower only 5 % of the time.
_GEMM = {
    f"{kind}{suffix}": "TFLOP/s"
    for suffix in ("", "-p5", "-least", "-most", "-alone", "-alone-p5")
    for kind in TYPES
}
_MEMORY = (
    *("copy", "copy-p5", "copy-least", "copy-most", "copy-alone"),
    *("triad", "triad-p5", "triad-least", "triad-most"),
    *("host-to-device", "device-to-host", "p2p-out", "p2p-in"),
)
#: Metrics of a check and their units. The first is the default metric of an expectation. A check
#: that is missing here (`script`) has metrics of its own, which an expectation must name.
METRICS: dict[str, dict[str, str]] = {
    "all-reduce": _COLLECTIVE,
    "all-gather": _COLLECTIVE,
    "reduce-scatter": _COLLECTIVE,
    "alltoall": _COLLECTIVE,
    "sendrecv": _COLLECTIVE,
    "latency": {"time": "us", "wrong": "count"},
    "connectivity": {"ping": "us"},
    "gemm": {**_GEMM, **{f"{kind}-wrong": "count" for kind in TYPES}},
    "memory": {**dict.fromkeys(_MEMORY, "GB/s"), "p2p-least": "", "tested": "", "wrong": "count"},
    "train": {
        "throughput": "samples/s",
        "tokens": "tokens/s",
        "flops": "TFLOP/s",
        "mfu": "",
        "step-p50": "s",
        "loss-first": "",
        "loss-last": "",
        "checkpoint-write": "GB/s",
        "checkpoint-read": "GB/s",
    },
}
#: No metric reaches this value in its unit; in microseconds it is eleven days.
_UNREACHABLE = 1e12
EXPECTATION_FORMS = (
    "CHECK[.METRIC][@SIZE][/NODES]>=NUMBER or <=NUMBER, such as all-reduce@8G>=380, "
    "all-gather@8G/4-64>=300 (on 4 to 64 nodes) or connectivity<=50"
)
_EXPECTATION = re.compile(
    r"(?P<check>[\w-]+)(?:\.(?P<metric>[\w-]+))?(?:@(?P<size>\w+))?"
    r"(?:/(?P<low>\d{1,6})(?P<range>-(?P<high>\d{1,6})?)?)?"
    r"\s*(?P<sign>>=|<=)\s*(?P<value>[^\s]+)(?:\s+(?P<unit>\S+))?",
    re.ASCII,
)


def parse_expectation(text: str, *, source: str) -> Reference:
    """Parse a threshold of the user; `source` names its place, such as "site.yaml:12".

    Raises Invalid for invalid syntax, for an unknown check or metric, for a collective without a
    size, and for a wrong unit.
    """
    match = _EXPECTATION.fullmatch(text.strip())
    if not match:
        raise Invalid(
            (), f"{escaped(text)!r} is not a valid expectation", f"write {EXPECTATION_FORMS}"
        )
    check, metric, unit = _metric(match["check"], match["metric"])
    if match["unit"] and match["unit"] != unit:
        raise Invalid((), _wrong_unit(check, metric, unit), "leave the unit out")
    if metric in ("busbw", "time") and not match["size"]:
        size = "8G" if metric == "busbw" else "8"
        example = f"such as {match[0].partition(match['sign'])[0].strip()}@{size}"
        raise Invalid((), f"{check} needs a size", f"{example}{match['sign']}{match['value']}")
    bound = _number(match["value"])
    _refuse_always_met(check, match["sign"], bound)
    low, high = _nodes(match)
    return Reference(
        check=check,
        metric=metric,
        unit=unit,
        kind=BoundKind.EXPECTATION,
        source=source,
        value=bound,
        lower=bound if match["sign"] == ">=" else None,
        upper=bound if match["sign"] == "<=" else None,
        size=_size(match["size"]),
        min_nodes=low,
        max_nodes=high,
    )


def _refuse_always_met(check: str, sign: str, bound: float) -> None:
    """Raise Invalid for a bound that every measurement meets.

    Such a bound would disable the machine's own one. The metrics of a script may have any range.
    """
    if check not in METRICS:
        return
    if sign == ">=" and bound <= 0:
        raise Invalid((), f"{check}>={bound:g} is always met", "give a lower bound above 0")
    if sign == "<=" and bound >= _UNREACHABLE:
        hint = f"give an upper bound below {_UNREACHABLE:g}"
        raise Invalid((), f"{check}<={bound:g} is always met", hint)


def _metric(check: str, metric: str | None) -> tuple[str, str, str]:
    """Return check, metric and unit; without a metric, the default one of the check."""
    if check not in checks.names():
        raise Invalid((), f"check {escaped(check)!r} does not exist", known(check, checks.names()))
    metrics = METRICS.get(check)
    if metrics is None and metric:
        return check, metric, ""
    if not metrics:
        raise Invalid((), f"{check} has no default metric", f"name one: {check}.METRIC")
    name = metric if metric is not None else next(iter(metrics))
    return check, name, _unit(check, name, metrics)


def check_metric(check: str, metric: str, unit: str) -> None:
    """Raise Invalid if the check lacks the metric, or if the unit is wrong.

    Checks that METRICS lacks may have any metric.
    """
    metrics = METRICS.get(check)
    if metrics is None:
        return
    try:
        expected = _unit(check, metric, metrics)
    except Invalid as error:
        raise error.under("metric") from None
    if unit != expected:
        raise Invalid(("unit",), _wrong_unit(check, metric, expected))


def _unit(check: str, metric: str, metrics: Mapping[str, str]) -> str:
    if metric not in metrics:
        hint = known(metric, metrics, "its metrics")
        raise Invalid((), f"{check} has no metric {escaped(metric)!r}", hint)
    return metrics[metric]


def _wrong_unit(check: str, metric: str, unit: str) -> str:
    return f"{check} {metric} is measured in {unit or 'no unit'}"


def _number(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise Invalid((), f"{escaped(text)!r} is not a number", f"write {EXPECTATION_FORMS}")
    return value


def _size(text: str | None) -> int | None:
    try:
        return parse_size(text) if text else None
    except ValueError as error:
        raise Invalid((), str(error)) from None


def _nodes(match: re.Match[str]) -> tuple[int | None, int | None]:
    """Return the smallest and the largest number of nodes; None: unlimited."""
    if match["low"] is None:
        return None, None
    low = int(match["low"])
    high = None if match["range"] and not match["high"] else int(match["high"] or low)
    if low < 1 or (high is not None and high < low):
        raise Invalid((), f"invalid range: {low} to {high} nodes", "such as /2, /4-64 or /3-")
    return low, high
