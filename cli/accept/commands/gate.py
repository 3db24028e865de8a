"""Test this host in seconds, before a job or after it: `accept gate`.

A gate is a run of a small suite on this machine, with a time limit and an answer of one line.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from accept.commands.choices import OnTimeout
from accept.commands.plan import plan_text, planned
from accept.commands.timed import measure, prepare_with_gpus
from accept.core.errors import AcceptError, BadInput, Exit
from accept.core.records import Record
from accept.core.text import duration, plain
from accept.core.verdict import Finding, State, Verdict
from accept.plan.resolve import Options
from accept.report.console import Terminal


@dataclass(frozen=True, kw_only=True)
class Reason:
    """One reason to keep jobs off this host; `measured` and `required` have the unit `unit`."""

    #: Empty: the gate could not measure.
    check: str
    #: The stable code of the cause or of the error; empty: a comparison without a cause.
    code: str
    message: str
    metric: str | None = None
    measured: float | None = None
    #: The required values; both None: the reason is not about a value with a bound.
    lower: float | None = None
    upper: float | None = None
    unit: str = ""

    @property
    def text(self) -> str:
        """Return the reason for people."""
        what = " ".join(filter(None, (self.check, self.code)))
        return f"{what}: {plain(self.message, 300)}"


@dataclass(frozen=True, kw_only=True)
class Gated:
    """The answer of `accept gate`."""

    passed: bool
    host: str = field(default_factory=lambda: os.uname().nodename)
    #: False on a machine without GPUs.
    gpu_tested: bool = False
    reasons: tuple[Reason, ...] = ()
    #: Checks that did not finish within the time limit.
    unfinished: tuple[str, ...] = ()
    #: The site's choice for them.
    on_timeout: OnTimeout
    #: The time limit and the time taken, in seconds.
    limit: float = 0.0
    seconds: float = 0.0
    #: Name of the run, for `accept explain`; empty: nothing was started.
    attempt: str = ""

    @property
    def line(self) -> str:
        """Return the answer as one line."""
        outcome = "pass" if self.passed else "fail"
        parts = [f"GATE {outcome} {plain(self.host, 80)}"]
        parts[0] += " (no GPU tested)" * (self.passed and not self.gpu_tested)
        if self.reasons:
            first, *more = self.reasons
            parts.append(first.text + (f" (and {len(more)} more)" if more else ""))
        if self.unfinished:
            names = ", ".join(self.unfinished)
            parts.append(f"not finished within {duration(self.limit)}: {names}")
        parts.append(f"{duration(self.seconds)}, on-timeout {self.on_timeout}")
        parts += [f"run {self.attempt}"] * bool(self.attempt)
        return " · ".join(parts)


def do_gate(
    options: Options, terminal: Terminal, *, limit: float, on_timeout: OnTimeout, dry_run: bool
) -> int:
    """Test this host, print the answer, and return exit code 0 or 3.

    What keeps it from measuring is a reason, too. Raises BadInput for invalid options.
    """
    began = time.monotonic()
    if dry_run:
        plan = planned(prepare_with_gpus(options, terminal)[0])
        # Estimates are for slow hosts; docs/gate.md has measured times.
        limit_text = (
            f"limit: {duration(limit)} (--time); the estimate counts a start of torch for each "
            "check: quiet hosts, which start it once, took less than half of it"
        )
        terminal.result(plan, plan_text(plan), limit_text)
        return Exit.PASS
    if not terminal.verbose:
        # The answer is the only line.
        terminal = replace(terminal, quiet=True)
    try:
        answer = _measured(options, terminal, limit=limit, on_timeout=on_timeout)
    except BadInput:
        raise
    except AcceptError as error:
        reason = Reason(check="", code=error.code, message=error.message)
        answer = Gated(passed=False, reasons=(reason,), on_timeout=on_timeout)
    answer = replace(answer, limit=limit, seconds=round(time.monotonic() - began, 2))
    terminal.result(answer, answer.line)
    return Exit.PASS if answer.passed else Exit.REJECTED


def _measured(
    options: Options, terminal: Terminal, *, limit: float, on_timeout: OnTimeout
) -> Gated:
    """Run the suite for `limit` seconds at most, and return the answer."""
    answer = Gated(passed=False, unfinished=("start",), on_timeout=on_timeout)
    ended = measure(partial(prepare_with_gpus, options, terminal), terminal, limit=limit)
    if ended.job:
        answer = replace(answer, attempt=ended.job.attempt)
    if judged := ended.judged:
        reasons, unfinished = answer_of(judged.verdict, judged.records, is_late=ended.is_late)
        tested = judged.verdict.gpu_tested
        answer = replace(answer, reasons=reasons, unfinished=unfinished, gpu_tested=tested)
    is_forgiven = on_timeout is OnTimeout.PASS or not answer.unfinished
    return replace(answer, passed=not answer.reasons and is_forgiven)


def answer_of(
    verdict: Verdict, records: Sequence[Record], *, is_late: bool
) -> tuple[tuple[Reason, ...], tuple[str, ...]]:
    """Return why a host does not pass, and which checks did not finish within the time limit.

    Only a pass of every required check passes: what is inconclusive or not tested does not.
    """
    measured = {check for record in records for check in record.checks}
    reasons: list[Reason] = []
    unfinished: list[str] = []
    for check in verdict.checks:
        if check.state is State.PASS or (check.state is State.NOT_TESTED and check.optional):
            continue
        if is_late and check.check not in measured:
            unfinished.append(check.check)
        else:
            reasons += [_reason(one) for one in check.findings if one.state is check.state]
    if not (verdict.accepted or reasons or unfinished):
        reasons.append(Reason(check="", code="", message=verdict.headline))
    return tuple(dict.fromkeys(reasons)), tuple(unfinished)


def _reason(finding: Finding) -> Reason:
    bound = finding.bound
    return Reason(
        check=finding.check,
        code=finding.code,
        message=finding.message,
        metric=finding.metric,
        measured=finding.value,
        lower=bound.required if bound else None,
        upper=bound.upper if bound else None,
        unit=finding.unit,
    )
