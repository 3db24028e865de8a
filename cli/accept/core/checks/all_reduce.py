"""All-reduce: every rank ends with the sum over all ranks."""

from __future__ import annotations

from accept.core import collectives

CHECK = collectives.make("all-reduce", "all-reduce", worth=80)
