"""List the changes of device counters between the steps."""

from __future__ import annotations

from dataclasses import dataclass

from accept.core.judge import health
from accept.core.judge.suspects import HOSTS_STEP
from accept.report.data import Run

_MOST_ROWS = 200


@dataclass(frozen=True, kw_only=True)
class HealthRow:
    """One change of one device."""

    host: str
    when: str
    device: str
    change: str


def health_rows(run: Run) -> tuple[tuple[HealthRow, ...], int, int]:
    """Return the changes, the number of those left out, and the number of readings."""
    rows: list[HealthRow] = []
    asked = [record for record in run.records if record.step == HOSTS_STEP]
    for sweep in health.changes_of(asked, run.plan.steps):
        change = sweep.change

        def add(device: str, text: str, host: str = sweep.host, when: str = sweep.when) -> None:
            rows.append(HealthRow(host=host, when=when, device=device, change=text))

        if change.rebooted:
            add("host", "rebooted")
        for device, kind, code, fatal, _ in change.events:
            add(device, f"{kind} {code} {fatal}".strip())
        for device in change.gone:
            add(device, "disappeared")
        for device, levels in change.levels.items():
            for name, pair in levels.items():
                add(device, f"{name} {' to '.join(f'{value:g}' for value in pair)}")
        if not sweep.total:
            for device, counters in change.counters.items():
                for name, growth in counters.items():
                    add(device, f"{name} +{growth}")
        for gap in change.unread:
            add("", f"no longer readable: {gap.reason}")
    return (
        tuple(rows[:_MOST_ROWS]),
        max(0, len(rows) - _MOST_ROWS),
        len({record.wave for record in asked} - {0}),
    )
