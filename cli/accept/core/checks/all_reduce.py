"""All-reduce: every rank ends with the sum over all ranks."""

from __future__ import annotations

from accept.core.checks import collectives

ALL_REDUCE = collectives.make("all-reduce", "all-reduce", worth=80)
CHECK = ALL_REDUCE
