"""A reference figure: what a metric of a machine should be, when, and who says so."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from accept.config.expectations import Bytes, check_metric
from accept.config.fields import Url, check_parameters
from accept.core.model import BoundKind, Reference
from accept.core.serde import Bounds, Doc, Invalid, Pattern


@dataclass(frozen=True, kw_only=True)
class Figure:
    """A reference figure of the machine: what a metric should be, under which conditions.

    The bound is `lower` or `upper`, or `share` of `value`, which is a lower bound.
    """

    check: Annotated[str, Doc("The check it belongs to.")]
    metric: Annotated[str, Doc("The metric of that check.")] = "busbw"
    unit: Annotated[str, Doc("Unit of the metric.")] = "GB/s"
    kind: Annotated[BoundKind, Doc("measured, spec (a specification), floor (a share of one).")]
    source: Annotated[
        str,
        Pattern(r"(https?://|run:)\S+", "a URL, or run:ATTEMPT for a figure of your own"),
        Doc("Where the figure is from: a URL, or run:ATTEMPT for one of your own."),
    ]
    value: Annotated[float | None, Doc("The published figure itself.")] = None
    share: Annotated[
        Annotated[float, Bounds(min=0.01, max=1)] | None,
        Doc("Share of `value` that must be reached."),
    ] = None
    lower: Annotated[float | None, Doc("Smallest value that holds.")] = None
    upper: Annotated[float | None, Doc("Largest value that holds.")] = None
    peak: Annotated[float | None, Doc("Theoretical peak, for the share of it in the report.")] = (
        None
    )
    peak_source: Url | None = None
    size: Annotated[Bytes | None, Doc("Message size it is about.")] = None
    min_nodes: Annotated[Annotated[int, Bounds(min=1)] | None, Doc("Fewest nodes.")] = None
    max_nodes: Annotated[Annotated[int, Bounds(min=1)] | None, Doc("Most nodes.")] = None
    algorithm: Annotated[str | None, Doc("NCCL algorithm it is about; none: any.")] = None
    profiles: Annotated[tuple[str, ...], Doc("NCCL profiles of the machine that it is about.")] = (
        "default",
    )
    device: Annotated[str | None, Doc("GPU it is about, as nvidia-smi calls it; none: any.")] = None
    one_domain: Annotated[
        bool, Doc("Whether it is about nodes of one NVLink domain, such as a rack.")
    ] = False
    why: Annotated[str, Doc("Why this figure, share and range of nodes.")] = ""

    def __post_init__(self) -> None:
        """Raise Invalid for a figure that bounds nothing, or cannot be meant so."""
        check_parameters({self.check: {}}, ())
        check_metric(self.check, self.metric, self.unit)
        if self.kind == "expectation":
            raise Invalid(
                ("kind",), "an expectation is the user's, not the machine's", "use `expect:`"
            )
        if self.share is not None and (self.value is None or self.lower is not None):
            raise Invalid(("share",), "a share needs `value` and no `lower`")
        if self.share is None and self.lower is None and self.upper is None:
            raise Invalid((), "the figure has no bound", "add `share`, `lower` or `upper`")
        if self.peak_source and self.peak is None:
            raise Invalid(("peakSource",), "the source of which peak?", "add `peak`")
        if self.min_nodes and self.max_nodes and self.max_nodes < self.min_nodes:
            raise Invalid(("maxNodes",), f"{self.max_nodes} is less than minNodes {self.min_nodes}")

    def reference(self) -> Reference:
        """The bound as the judge knows it."""
        share = self.value * self.share if self.value is not None and self.share else None
        return Reference(
            check=self.check,
            metric=self.metric,
            unit=self.unit,
            kind=self.kind,
            source=self.source,
            value=self.value,
            lower=round(share, 6) if share is not None else self.lower,
            upper=self.upper,
            size=self.size,
            min_nodes=self.min_nodes,
            max_nodes=self.max_nodes,
            algorithm=self.algorithm,
            device=self.device,
            one_domain=self.one_domain,
            peak=self.peak,
            peak_source=self.peak_source or (self.source if self.peak else ""),
        )
