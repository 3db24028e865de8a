"""Change the plan and the records of evidence, and write the hashes that belong to them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from accept.core import evidence

Plan = dict[str, Any]
Records = list[dict[str, Any]]
#: Changes a plan and records in place.
Edit = Callable[[Plan, Records], object]


def opened(folder: Path) -> tuple[Plan, Records]:
    """Return the plan and the records of evidence."""
    lines = (folder / evidence.RECORDS).read_text().splitlines()
    return json.loads((folder / evidence.PLAN).read_text()), [*map(json.loads, lines)]


def write(folder: Path, plan: Plan, records: Records) -> None:
    """Write plan and records, and the list of checksums."""
    evidence.write(folder / evidence.PLAN, json.dumps(plan))
    lines = (json.dumps(record) + "\n" for record in records)
    evidence.write(folder / evidence.RECORDS, "".join(lines))
    evidence.write_checksums(folder)


def hashed(edit: Edit) -> Edit:
    """Return an edit that also writes the hash of the changed plan."""

    def both(plan: Plan, records: Records) -> None:
        edit(plan, records)
        plan["hash"] = evidence.plan_hash(plan)

    return both
