"""Define a reference figure: the expected value of a metric, its conditions and its source."""

from dataclasses import dataclass, fields
from typing import Annotated

from accept.config.expectations import Bytes, check_metric
from accept.config.fields import Url
from accept.config.tools import check_exists
from accept.core.catalog.metrics import BUSBW
from accept.core.error_codes import Code
from accept.core.plan import BoundKind, Reference
from accept.core.serde import Bounds, Doc, Invalid, Pattern


@dataclass(frozen=True, kw_only=True)
class Figure:
    """A reference figure of the machine: the expected value of a metric and its conditions.

    The bound is `lower` or `upper`, or `share` of `value`, which is a lower bound.
    """

    check: Annotated[str, Doc("The check that measures it.")]
    metric: Annotated[str, Doc("The metric of that check.")] = BUSBW.name
    unit: Annotated[str, Doc("Unit of the metric.")] = BUSBW.unit
    kind: Annotated[
        BoundKind,
        Doc(
            "measured, spec (a specification), floor (a share of a specification), derived (such a "
            "share without a published figure) or vendor (the threshold of the vendor's own health "
            "check, which replaces floors)."
        ),
    ]
    source: Annotated[
        str,
        Pattern(r"(https?://|run:)\S+", "a URL, or run:ATTEMPT for a figure of your own"),
        Doc("Source of the figure: a URL, or run:ATTEMPT for one of your own."),
    ]
    value: Annotated[float | None, Doc("The published figure.")] = None
    share: Annotated[
        Annotated[float, Bounds(min=0.01, max=1)] | None,
        Doc("Share of `value` that must be reached."),
    ] = None
    expected: Annotated[
        Annotated[float, Bounds(min=0.01, max=2)] | None,
        Doc("Share of `value` below which the verdict is inconclusive; at least `share`."),
    ] = None
    lower: Annotated[float | None, Doc("Smallest accepted value.")] = None
    upper: Annotated[float | None, Doc("Largest accepted value.")] = None
    peak: Annotated[
        float | None, Doc("Theoretical peak; reports show the share of it that is reached.")
    ] = None
    peak_source: Url | None = None
    size: Annotated[Bytes | None, Doc("Message size that it applies to.")] = None
    min_nodes: Annotated[Annotated[int, Bounds(min=1)] | None, Doc("Smallest number of nodes.")] = (
        None
    )
    max_nodes: Annotated[Annotated[int, Bounds(min=1)] | None, Doc("Largest number of nodes.")] = (
        None
    )
    algorithm: Annotated[str | None, Doc("NCCL algorithm that it applies to; unset: any.")] = None
    profiles: Annotated[
        tuple[str, ...], Doc("NCCL profiles of the machine that it applies to.")
    ] = ("default",)
    device: Annotated[
        str | None, Doc("GPU that it applies to, with its name in nvidia-smi; unset: any.")
    ] = None
    one_domain: Annotated[
        bool, Doc("Whether it applies only to nodes of one NVLink domain, such as a rack.")
    ] = False
    per_rail: Annotated[
        bool, Doc("Whether it applies to groups with one GPU of each node, not to whole nodes.")
    ] = False
    why: Annotated[str, Doc("Reasons for the figure, the share and the range of nodes.")] = ""

    def __post_init__(self) -> None:
        """Raise Invalid for a figure without a bound, and for keys that contradict each other."""
        check_exists(self.check, ("check",))
        check_metric(self.check, self.metric, self.unit)
        if self.kind is BoundKind.EXPECTATION:
            message = "expectations belong in a site file, not in a machine"
            raise _contradiction("kind", message, "use `expect:`")
        if self.share is not None and (self.value is None or self.lower is not None):
            raise _contradiction("share", "a share needs `value` and no `lower`")
        if self.expected is not None and self.expected < (self.share or self.expected + 1):
            raise _contradiction("expected", "it needs a `share`, and cannot be below it")
        if self.share is None and self.lower is None and self.upper is None:
            hint = "add `share`, `lower` or `upper`"
            raise Invalid((), "the figure has no bound", hint, code=Code.MACHINE_NO_BOUND)
        if self.peak_source and self.peak is None:
            raise _contradiction("peakSource", "a source needs a peak", "add `peak`")
        if self.min_nodes and self.max_nodes and self.max_nodes < self.min_nodes:
            message = f"{self.max_nodes} is less than minNodes {self.min_nodes}"
            raise _contradiction("maxNodes", message)

    def reference(self) -> Reference:
        """Return the figure in the form that the judge uses."""
        same = {item.name for item in fields(Figure)} & {item.name for item in fields(Reference)}
        own = {name: getattr(self, name) for name in same - {"expected"}}
        if self.value is not None and self.share:
            own["lower"] = round(self.value * self.share, 6)
        if self.value is not None and self.expected is not None:
            own["expected"] = round(self.value * self.expected, 6)
        return Reference(**{**own, "peak_source": self.peak_source or ""})


def _contradiction(key: str, message: str, hint: str = "") -> Invalid:
    return Invalid((key,), message, hint, code=Code.MACHINE_CONTRADICTION)
