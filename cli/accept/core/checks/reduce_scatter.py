"""Reduce-scatter: every rank ends with its share of the sum over all ranks."""

from __future__ import annotations

from accept.core.checks import collectives

REDUCE_SCATTER = collectives.make("reduce-scatter", "reduce-scatter", worth=44)
CHECK = REDUCE_SCATTER
