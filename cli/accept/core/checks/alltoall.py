"""All-to-all: every rank sends a part of its data to every other."""

from __future__ import annotations

from accept.core.checks import collectives

ALLTOALL = collectives.make("alltoall", "all-to-all", worth=43)
CHECK = ALLTOALL
