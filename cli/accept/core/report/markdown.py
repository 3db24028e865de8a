"""Write a verdict as a self-contained Markdown page, to attach to the provider's ticket."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from accept.core.causes import Cause
from accept.core.facts import Inventory, inventories_of
from accept.core.judge.consistency import compared
from accept.core.judge.summary import node_lists
from accept.core.plan import Plan
from accept.core.records import Record
from accept.core.report.text import excused, kept, number3, of_total, utc
from accept.core.sentences import not_run, usable, vouched
from accept.core.text import duration, format_size, number, shortened
from accept.core.text import markdown as escaped
from accept.core.verdict import State, SuspectKind, Verdict

#: Maximum number of rows of a table.
_MAX_ROWS = 1000
#: Kinds of suspects that have many hosts.
_GROUPS = (SuspectKind.BORDER, SuspectKind.LEAF, SuspectKind.SWITCH)


def render_markdown(verdict: Verdict, plan: Plan, records: Sequence[Record] = ()) -> str:
    """Return the verdict as a self-contained Markdown page: answer, actions, reasons, details."""
    return "\n".join(_page(verdict, plan, records)) + "\n"


def _page(verdict: Verdict, plan: Plan, records: Sequence[Record]) -> Iterator[str]:
    inventories = inventories_of(records, verdict.hosts)
    yield f"# {escaped(verdict.headline)}"
    yield ""
    yield f"- accepted: **{'yes' if verdict.accepted else 'no'}** (exit {verdict.exit})"
    if text := usable(verdict):
        yield f"- {escaped(text)}"
    yield from _facts(verdict, plan)
    if verdict.advice:
        yield from ("", "## What to do next", "")
        for line in verdict.advice:
            yield f"- {escaped(line)}"
    yield from section(
        "Suspects", "suspect | cause | strength | reason | evidence", _suspects(verdict)
    )
    header = "suspect | pair | value | share of normal | log"
    yield from section("Bad pairs", header, _bad_pairs(verdict))
    for suspect in verdict.suspects:
        if suspect.kind in _GROUPS:
            yield from ("", f"Nodes of {escaped(suspect.name, 120)}: {_hosts(suspect.hosts)}")
            if suspect.others:
                yield f"on one side, on the other: {_hosts(suspect.others)}"
    yield from section("Checks", "check | state | measured | required", _check_rows(verdict))
    yield from section(
        "Scaling", "collective | nodes | GB/s | share of the fewest nodes", _scaling(verdict)
    )
    yield from section(
        "Findings",
        "check | judgement | state | cause | finding | source | evidence",
        _findings(verdict),
    )
    yield from section("Not tested", "node or check | reason", _not_tested(verdict, plan))
    yield from section(
        "Versions and settings", "property | most nodes | nodes | others", _drift(inventories)
    )
    yield from section("Nodes", "node | state | GPUs (UUID)", _nodes(verdict, inventories))
    if causes := [cause for cause in Cause if cause in _causes(verdict)]:
        heading = "Who has to act, how to confirm each by hand, and what to tell the provider:"
        yield from ("", heading, "")
        for cause in causes:
            page = f"docs/causes.md#{cause}, or `accept show cause {cause}`"
            yield f"- {cause} (owner: {cause.row.owner}): {page}"
    yield from section(
        "Coverage",
        "step | checks | groups | nodes | GPUs | NICs | rails | links",
        _covered(verdict),
    )
    covered = verdict.coverage
    if covered.gpus_untested:
        yield from ("", f"GPUs that no step exercised: {_hosts(covered.gpus_untested)}")
    if covered.nics_untested:
        yield from ("", f"Nodes whose NICs no step used: {_hosts(covered.nics_untested)}")
    yield from section("Plan", "step | checks | groups | time limit in s", _steps(plan))


def _facts(verdict: Verdict, plan: Plan) -> Iterator[str]:
    if verdict.caveat:
        yield f"- caveat: {escaped(verdict.caveat)}"
    if verdict.origin:
        yield f"- judged: {escaped(verdict.origin)}"
    yield f"- machine: {escaped(verdict.machine)}, suite: {escaped(verdict.suite)}"
    yield f"- run {escaped(verdict.attempt)}, plan {escaped(verdict.run)}"
    if text := vouched(verdict):
        yield f"- evidence: {text}"
    if 0 < verdict.start < verdict.end < 1e11:
        start = utc(verdict.start, "%Y-%m-%d %H:%M UTC")
        yield f"- time: {start}, {duration(verdict.end - verdict.start)}"
    if plan.retest_of:
        yield f"- retest of: {escaped(plan.retest_of, 80)}"
    if text := kept(verdict):
        yield f"- kept: {escaped(text)}"
    if text := not_run(verdict.not_run):
        yield f"- not run: {escaped(text)}"
    yield f"- version: accept {escaped(plan.version)}, judged by {escaped(verdict.version)}"
    yield f"- nodes that took part ({len(verdict.hosts)}): {_hosts(verdict.hosts)}"
    if verdict.missing:
        yield f"- nodes that did not ({len(verdict.missing)}): {_hosts(verdict.missing)}"
    if not plan.machine.speed_promised:
        yield "- no speed target: judged by correctness and by comparison with peers"
    if found := verdict.detectable:
        slowdown = f"{found.slowdown * 100:.2g}%"
        yield (
            f"- a node more than {slowdown} slower in its pairs would have been found with "
            f"{found.probability:.0%} probability"
        )
    if verdict.injected:
        yield f"- DRILL: injected faults: {escaped(', '.join(verdict.injected))}"
    for change in verdict.edited:
        yield f"- edited after rendering: {escaped(change)}"
    if verdict.interruption:
        yield f"- interrupted: {escaped(verdict.interruption)}"


def _scaling(verdict: Verdict) -> Iterator[tuple[str, ...]]:
    for one in verdict.scaling:
        for point in one.points:
            yield (
                escaped(f"{one.check} {format_size(one.size)}"),
                str(point.nodes),
                number3(point.value),
                f"{point.efficiency:.0%}",
            )


def _not_tested(verdict: Verdict, plan: Plan) -> Iterator[tuple[str, ...]]:
    if verdict.part:
        yield "all", f"only {escaped(verdict.part)} took part"
    for node in verdict.left_out:
        yield escaped(node.name, 120), escaped(node.reason)
    for check in verdict.checks:
        for finding in check.findings:
            if finding.state is State.NOT_TESTED:
                yield escaped(check.check), escaped(finding.message)
    known = {check.check for check in verdict.checks}
    for skipped in plan.skipped:
        if skipped.check not in known or skipped.step:
            yield escaped(skipped.subject), escaped(skipped.reason)


def _drift(inventories: Mapping[str, Inventory]) -> Iterator[tuple[str, ...]]:
    for row in compared(inventories):
        others = "; ".join(f"{value}: {shortened(hosts, 8)}" for value, hosts in row.others)
        yield escaped(row.name), escaped(row.usual), str(row.nodes), escaped(others) or "none"


def _nodes(verdict: Verdict, inventories: Mapping[str, Inventory]) -> Iterator[tuple[str, ...]]:
    for host, state in node_lists(verdict).states.items():
        gpus = inventories[host].gpus if host in inventories else ()
        uuids = " ".join(gpu.uuid for gpu in gpus)
        yield escaped(host, 120), state, escaped(uuids, 2000) or "not reported"


def section(title: str, header: str, rows: Iterable[Sequence[str]]) -> Iterator[str]:
    """Yield a heading and a table; nothing without rows. The cells are Markdown."""
    cells = list(rows)
    if cells:
        yield from ("", f"## {title}", "", *table((header.split(" | "), *cells[:_MAX_ROWS])))
    if len(cells) > _MAX_ROWS:
        yield from ("", f"… and {len(cells) - _MAX_ROWS} more: see verdict.json")


def table(rows: Iterable[Sequence[str]]) -> Iterator[str]:
    """Yield the lines of a table, whose header is the first row. The cells are Markdown."""
    for index, row in enumerate(rows):
        yield f"| {' | '.join(row)} |"
        if index == 0:
            yield "|---" * len(row) + "|"


def _hosts(hosts: Sequence[str]) -> str:
    more = f" … and {len(hosts) - 64} more" if len(hosts) > 64 else ""
    return ", ".join(escaped(host, 80) for host in hosts[:64]) + more


def _check_rows(verdict: Verdict) -> Iterator[tuple[str, ...]]:
    for check in verdict.checks:
        state = check.state.value + (" (optional)" if excused(check) else "")
        yield escaped(check.check), state, escaped(check.measured), escaped(check.required)


def _suspects(verdict: Verdict) -> Iterator[tuple[str, ...]]:
    for suspect in verdict.suspects:
        yield (
            f"{suspect.kind} {escaped(suspect.name, 120)}",
            _cause(suspect.cause),
            suspect.strength,
            escaped("; ".join(filter(None, (suspect.why, suspect.around, suspect.innocent))), 1000),
            escaped(", ".join(suspect.evidence[:8])),
        )


def _bad_pairs(verdict: Verdict) -> Iterator[tuple[str, ...]]:
    for suspect in verdict.suspects:
        for pair in suspect.pairs:
            yield (
                escaped(suspect.name, 120),
                escaped(" - ".join(pair.hosts), 200),
                escaped(pair.compared, 60),
                f"{pair.share:.0%}" if pair.share is not None else "",
                escaped(pair.log, 200),
            )


def _findings(verdict: Verdict) -> Iterator[tuple[str, ...]]:
    for check in verdict.checks:
        for finding in sorted(check.findings, key=lambda f: f.state is State.PASS):
            share, peak = finding.peak_share, ""
            if share is not None:
                top = f" {number(finding.peak)} {escaped(finding.unit)}" if finding.peak else ""
                peak = f" ({share:.0%} of the peak{top}: {escaped(finding.peak_source)})"
            yield (
                escaped(finding.check),
                escaped(finding.judgement),
                finding.state.value,
                _cause(finding.cause or ""),
                escaped(finding.message) + peak,
                escaped(finding.bound.source if finding.bound else ""),
                escaped(", ".join(finding.evidence[:3])),
            )


def _causes(verdict: Verdict) -> set[Cause | None]:
    """Return the causes of all suspects and of all findings that are not a pass."""
    findings = (f for check in verdict.checks for f in check.findings)
    bad = {f.cause for f in findings if f.state is not State.PASS}
    return bad | {suspect.cause for suspect in verdict.suspects}


def _cause(cause: str) -> str:
    return escaped(cause, 40)


def _covered(verdict: Verdict) -> Iterator[tuple[str, ...]]:
    """Yield the rows of the coverage table: each step, and all of them together."""
    covered = verdict.coverage
    for row in covered.steps:
        yield (
            escaped(row.step),
            escaped(", ".join(row.checks)),
            str(row.groups),
            *map(str, (row.hosts, row.gpus, row.nics, len(row.rails), row.links)),
        )
    if covered.steps:
        gpus, nics = (
            of_total(covered.gpus, covered.gpus_of),
            of_total(covered.nics, covered.nics_of),
        )
        yield "all steps", "", "", str(len(verdict.hosts)), gpus, nics, "", ""


def _steps(plan: Plan) -> Iterator[tuple[str, ...]]:
    for step in plan.steps:
        rounds = f" x {step.rounds}" if step.groups.of_pairs else ""
        yield (
            escaped(step.id),
            escaped(", ".join(step.checks)),
            f"{step.groups}{rounds}",
            number(step.timeout),
        )
