"""List the bad executions with their values, those of suspects first."""

from __future__ import annotations

from dataclasses import dataclass

from accept.report.data import Run, share_of

_MOST_ROWS = 40


@dataclass(frozen=True, kw_only=True)
class BadExecution:
    """A bad result of a pair of nodes, or of one node alone."""

    host: str
    #: Empty: it ran alone.
    partner: str
    check: str
    #: The value beside the normal one.
    measured: str
    #: Seconds since 1970; 0: unknown.
    start: float
    log: str


def bad_executions(run: Run) -> tuple[tuple[BadExecution, ...], int]:
    """Return the bad executions, accused nodes and the slowest first, and the number of others."""
    found = []
    members = {host for suspect in run.verdict.suspects for host in suspect.hosts}
    for population in run.populations:
        for sample in population.samples:
            if sample.bad:
                host, *others = sorted(sample.hosts, key=lambda one: one not in members)
                share = share_of(sample, population.normal) or 0.0
                key = host not in run.suspects, share, host, population.name
                row = BadExecution(
                    host=host,
                    partner=", ".join(others),
                    check=population.name,
                    measured=population.values_of([sample]),
                    start=sample.start,
                    log=sample.log,
                )
                found.append((key, row))
    rows = tuple(row for _, row in sorted(found, key=lambda one: one[0]))
    return rows[:_MOST_ROWS], max(0, len(rows) - _MOST_ROWS)
