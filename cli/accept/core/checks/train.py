"""A seeded training run over all ranks: the loss must fall and all ranks must agree on the model."""

from __future__ import annotations

from dataclasses import dataclass

from accept.core.checks import param


@dataclass(frozen=True, kw_only=True)
class Params:
    """Parameters of `train`.

    Steps and the samples a rank are fixed, so that the loss gate means the same at every number of
    ranks.
    """

    steps: int = param(60, "optimizer steps, at least 10")
    batch: int = param(64, "samples a rank and step")
    ratio: float = param(0.5, "the mean loss of the last steps must be at most this share of the first")

    def __post_init__(self) -> None:
        """Raise ValueError, naming the parameter, for a run that could not be judged."""
        if self.steps < 10:
            raise ValueError(f"steps must be at least 10 to compare first with last, not {self.steps}")
        if self.batch < 1:
            raise ValueError(f"batch must be at least 1, not {self.batch}")
        if not 0 < self.ratio < 1:
            raise ValueError(f"ratio must lie between 0 and 1, not {self.ratio}")
