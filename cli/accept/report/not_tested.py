"""List what the run did not test. A gap is never left out of the report."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from accept.core.judge.summary import node_lists
from accept.core.model import State
from accept.core.text import host_list
from accept.report.data import Run


@dataclass(frozen=True, kw_only=True)
class Gap:
    """Something that was not tested, and the reason."""

    subject: str
    reason: str


def gaps(run: Run) -> tuple[Gap, ...]:
    """Return what was not tested, the largest gaps first."""
    return tuple(dict.fromkeys(_gaps(run)))


def _gaps(run: Run) -> Iterator[Gap]:
    verdict = run.verdict
    if verdict.interruption:
        yield Gap(subject="the rest of the run", reason=f"interrupted: {verdict.interruption}")
    if verdict.injected:
        yield Gap(subject="the nodes", reason="this was a drill with injected faults")
    if verdict.missing:
        yield Gap(subject=host_list(verdict.missing), reason="did not take part")
    for node in verdict.left_out:
        yield Gap(subject=node.name, reason=node.reason)
    if not verdict.gpu_tested and run.plan.machine.gpus != 0:
        yield Gap(subject="GPUs", reason="no check detected a GPU")
    if verdict.part:
        yield Gap(subject="the rest of each node", reason=f"only {verdict.part} took part")
    unshown = [host for host in verdict.hosts if host in node_lists(verdict).untested]
    if unshown and verdict.suspects:
        reason = "the run does not show that they pass without the suspects"
        yield Gap(subject=host_list(unshown), reason=reason)
    for check in verdict.checks:
        for finding in check.findings:
            if finding.state in (State.NOT_TESTED, State.INCONCLUSIVE):
                subject = check.check
                yield Gap(subject=subject, reason=finding.message)
    for skipped in run.plan.skipped:
        yield Gap(subject=skipped.subject, reason=skipped.reason)
