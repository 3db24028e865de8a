"""Define what a check declares about a metric, and declare the metrics that checks share."""

from __future__ import annotations

from dataclasses import dataclass

from accept.core.text import TextEnum


class Better(TextEnum):
    """The direction in which a metric improves; `accept diff` compares metrics that have one."""

    HIGHER = "higher"
    LOWER = "lower"
    #: No direction, a count of errors, or another unit of a metric that is compared.
    NONE = "none"


@dataclass(frozen=True, kw_only=True)
class MetricSpec:
    """Declare a metric that the program of a check prints."""

    name: str
    #: Empty: no unit, such as a share.
    unit: str
    better: Better = Better.NONE
    #: Example of the message size that an expectation must name; empty: the metric has no size.
    size: str = ""
    #: False if users cannot set a bound for it.
    bounds: bool = True
    #: True if `accept baseline` makes a reference of it, as a lower bound.
    baseline: bool = False
    #: True if the log of a run shows it after the step.
    in_log: bool = False


# The metrics of nccl-tests.
BUSBW = MetricSpec(name="busbw", unit="GB/s", better=Better.HIGHER, size="8G", baseline=True)
TIME = MetricSpec(name="time", unit="us", better=Better.LOWER, size="8")
TIME_P99 = MetricSpec(name="time-p99", unit="us", size="8G", bounds=False)
TIME_LONGEST = MetricSpec(name="time-longest", unit="us", size="8G", bounds=False)
WRONG = MetricSpec(name="wrong", unit="count")

#: Direction of metrics that no check declares, by unit: those of the users' own scripts, of tools,
#: and of collectives that only logs of other programs have.
BETTER_BY_UNIT = {
    "GB/s": Better.HIGHER,
    "MB/s": Better.HIGHER,
    "Gbit/s": Better.HIGHER,
    "GFLOP/s": Better.HIGHER,
    "TFLOP/s": Better.HIGHER,
    "IOPS": Better.HIGHER,
    "samples/s": Better.HIGHER,
    "drives": Better.HIGHER,
    "TB": Better.HIGHER,
    "% used": Better.LOWER,
    "errors": Better.LOWER,
    "ms": Better.LOWER,
    "us": Better.LOWER,
    "s": Better.LOWER,
}
