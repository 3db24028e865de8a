"""All-gather: every rank ends with the data of all ranks."""

from __future__ import annotations

from accept.core.checks import collectives

ALL_GATHER = collectives.make("all-gather", "all-gather", worth=45)
CHECK = ALL_GATHER
