"""Write a verdict as one screen for the terminal.

Everything that came from hosts and logs is untrusted: it is bounded and escaped.
"""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone

from accept.core.catalog.metrics import BUSBW
from accept.core.causes import Cause, Judgement
from accept.core.judge.summary import node_lists, not_good, worst_state
from accept.core.plan import BoundKind
from accept.core.sentences import NO_BOUND_EXAMPLE, action, not_run, suspect_advice, usable, vouched
from accept.core.text import command_line, count, duration, format_size, number, plain, shortened
from accept.core.verdict import (
    WORST_FIRST,
    BadPair,
    CheckVerdict,
    Finding,
    MeasuredRange,
    Scaling,
    State,
    Strength,
    Suspect,
    SuspectKind,
    Verdict,
)

#: Maximum number of lines for any verdict.
MOST_LINES = 30
#: Maximum number of suspects with their reason, and of suspects that are only named.
_FULL_SUSPECTS, _NAMED_SUSPECTS = 2, 12
#: Maximum number of figures (fewer if something else needs the room), findings, lines of advice
#: and notes.
_MOST_ROWS, _FEWER_ROWS, _MOST_FINDINGS, _MOST_ADVICE, _MOST_NOTES = 8, 6, 5, 2, 6
#: Maximum number of bad pairs of a network fault, and of names in the last line.
_SCREEN_PAIRS, _MOST_NAMES = 5, 16
#: Beginning of the last line of every screen.
VERDICT_LINE = "VERDICT "
#: Widest column of commands. A longer command does not move the purposes of the others.
_COMMAND = 44
#: Maximum number of suspects in the summary.
_SUMMARY_SUSPECTS = 20
#: Maximum number of lines of one text, and of one advice.
_TEXT_LINES, _ADVICE_LINES = 3, 5
#: Maximum number of collectives whose efficiency over the number of nodes is shown.
_MOST_SCALING = 2
#: Maximum number of listed nodes that the run left out.
_MAX_LEFT_OUT = 4
#: Maximum number of listed steps of an earlier attempt.
_MAX_KEPT = 12

_RED, _GREEN, _YELLOW, _BLUE, _CYAN = "31", "32", "33", "34", "36"
_BOLD, _DIM = "1", "2"
_COLORS = {
    State.PASS: _GREEN,
    State.DEGRADED: _YELLOW,
    State.FAIL: _RED,
    State.INCONCLUSIVE: _BLUE,
    State.NOT_TESTED: _BLUE,
}
_TAGS = {Strength.STRONG: "37;41", Strength.MODERATE: _YELLOW, Strength.WEAK: _DIM}


@dataclass(frozen=True, kw_only=True)
class Place:
    """The additions of the workstation to a screen: the report's path, and commands."""

    report: str = ""
    #: Command and purpose, in order.
    commands: tuple[tuple[str, str], ...] = ()
    #: Returns a text whose commands start as the user's shell needs it.
    as_called: Callable[[str], str] = str
    #: True if the machine comes with `accept`, which can show its sources then.
    knows_machine: bool = False
    #: Remarks, one sentence each.
    notes: tuple[str, ...] = ()
    #: Name of a suspect -> what was measured to be normal in it, so that it is not the cause.
    normal: Mapping[str, str] = field(default_factory=dict)


def table(
    verdict: Verdict, width: int = 80, *, color: bool = False, place: Place | None = None
) -> str:
    """Return the verdict for a terminal of `width` columns, in at most MOST_LINES lines.

    The first lines answer which nodes may be used, which not and why; the last one is for grep. No
    word is cut: a name that is longer than the line stays whole.
    """
    screen = _Screen(verdict, max(60, min(width, 100)), color, place or Place())
    return "\n".join(screen.lines())


@dataclass(frozen=True)
class _Screen:
    verdict: Verdict
    width: int
    color: bool
    place: Place

    def lines(self) -> list[str]:
        """Return head, body and tail; the body is shortened if there are too many lines."""
        do_now = [*self._do_now()]
        head, tail = [*self._head()], [*([""] * bool(do_now)), *do_now, "", *self._tail()]
        room = MOST_LINES - len(head) - len(tail)
        # Findings make room for the figures.
        bodies = (self._body(findings) for findings in range(_MOST_FINDINGS, 0, -1))
        body = next((lines for lines in bodies if len(lines) < room), self._body(1))
        if remarks := [*self._remarks()]:
            body += [*([""] if len(body) + len(remarks) < room else []), *remarks]
        if len(body) > room:
            # Nobody writes a report about logs unasked.
            more = "with --json" if self.verdict.origin else "in report.md"
            more = "in report.html" if self.place.report else more
            body = [*body[: room - 1], self._painted(f"  … more {more}", _DIM)]
        return [*head, *body, *tail]

    def _body(self, findings: int) -> list[str]:
        """Return what was found and measured, with at most so many `findings`."""
        parts = [[*part] for part in self._parts(findings)]
        return [line for part in parts if part for line in ("", *part)]

    # The first lines

    def _head(self) -> Iterator[str]:
        verdict, lists = self.verdict, node_lists(self.verdict)
        answer, color = answer_of(verdict), _COLORS[verdict.state]
        hosts = len(verdict.hosts) + len(verdict.missing)
        nodes = count(hosts, "node")
        facts = [f"{len(lists.good)} of {nodes} good" if lists.good else nodes]
        facts += [count(verdict.gpus, "GPU")] if verdict.gpus else []
        if verdict.state is State.DEGRADED and lists.good:
            facts = [f"keep back {plain(shortened(not_good(verdict), _MAX_LEFT_OUT), 200)}"]
        facts += [
            plain(verdict.machine, 60),
            *([plain(verdict.suite, 60)] if verdict.suite else []),
        ]
        if verdict.end > verdict.start > 0:
            facts.append(duration(verdict.end - verdict.start))
        first, *rest = self._wrapped(f"{answer}   {' · '.join(facts)}", "", "  ")
        yield self._painted(first, f"{_BOLD};{color}")
        yield from rest
        if verdict.origin:
            yield from self._wrapped(plain(verdict.origin), "  ", "  ")
        if verdict.injected or verdict.interruption:
            yield from self._wrapped(plain(verdict.headline), "  ", "  ")
        elif verdict.state is not State.DEGRADED and (text := usable(verdict)):
            yield from self._wrapped(plain(text), "  ", "  ")

    def _parts(self, findings: int) -> Iterator[Iterator[str]]:
        suspects = self.verdict.suspects
        for suspect in suspects[:_FULL_SUSPECTS]:
            yield self._suspect(suspect)
        if more := suspects[_FULL_SUSPECTS:]:
            yield self._more_suspects(more)
        yield self._not_tested()
        parts = [self._findings(findings), self._figures()]
        # Without a decision, what was measured comes before what is missing.
        yield from reversed(parts) if self.verdict.state in _UNDECIDED else parts

    # Suspects

    def _suspect(self, suspect: Suspect) -> Iterator[str]:
        label = "BAD" if not suspect.of_network else "NETWORK"
        kind = "" if suspect.kind in _NO_KIND else f"{suspect.kind} "
        name = f"{kind}{plain(suspect.name, 120)}"
        title = f"{label}   {name}: {plain(suspect.cause, 40)} [{suspect.strength}]"
        for line in self._wrapped(title, "  ", "    "):
            shown = line.replace(label, self._painted(label, _RED), 1)
            shown = shown.replace(name, self._painted(name, _BOLD), 1)
            tag = f"[{suspect.strength}]"
            yield shown.replace(tag, self._painted(tag, _TAGS[suspect.strength]), 1)
        for text in (suspect.why, suspect.around, self.place.normal.get(suspect.name)):
            if text:
                yield from self._wrapped(plain(text), "      ", "      ")
        if suspect.of_network and suspect.pairs:
            pairs = shortened([_pair(pair) for pair in suspect.pairs], _SCREEN_PAIRS)
            yield from self._wrapped(f"pairs: {plain(pairs)}", "      ", "      ")
        if suspect.innocent:
            yield from self._wrapped(f"NOT {plain(suspect.innocent)}", "      ", "      ")
        yield from self._wrapped(f"→ {action(suspect, self.verdict.checks)}", "      ", "        ")

    def _more_suspects(self, suspects: Sequence[Suspect]) -> Iterator[str]:
        names = [f"{plain(s.name, 60)} {s.cause} [{s.strength}]" for s in suspects]
        if len(suspects) <= _FULL_SUSPECTS:
            names = [
                f"{name}: {plain(s.why, 120)}" for name, s in zip(names, suspects, strict=True)
            ]
        label = "ALSO   " + shortened(names, _NAMED_SUSPECTS, "; ")
        yield from self._wrapped(label, "  ", "         ")

    # Findings and figures

    def _findings(self, most: int) -> Iterator[str]:
        findings = findings_of(self.verdict)
        for text in findings[:most]:
            yield from self._wrapped(text, "  ", "    ")
        if len(findings) > most:
            yield f"  … and {len(findings) - most} more"

    def _not_tested(self) -> Iterator[str]:
        if text := not_tested(self.verdict):
            yield from self._wrapped(f"not tested: {text}", "  ", "    ")

    def _figures(self) -> Iterator[str]:
        """Yield a table of what was measured, failed checks first, and the checks without one."""
        states = {check.check: check.state for check in self.verdict.checks}
        ranges = shown_ranges(self.verdict)
        ranges.sort(
            key=lambda one: (
                WORST_FIRST.index(states.get(one.check, State.PASS)),
                one.margin is not None,
            )
        )
        shown = ranges[: _MOST_ROWS if self.verdict.state is State.PASS else _FEWER_ROWS]
        rows = [range_row(one) for one in shown]
        lines = _range_table(rows)
        if max(map(len, lines), default=0) > self.width:
            rows = [(name, measured, "", *rest) for name, measured, _, *rest in rows]
            lines = _range_table(rows)
        for index, line in enumerate(lines):
            yield self._painted(line, _DIM) if index == 0 else line
        passed = [check for check in self.verdict.checks if check.state is State.PASS]
        others = [check for check in passed if check.check not in {one.check for one in shown}]
        texts = [check for check in others if check.measured and check.check not in _QUIET][:3]
        for check in texts if self.verdict.state is State.PASS else ():
            yield self._cut(f"  {plain(check.check, 20)}: {plain(check.measured, 300)}")
            others.remove(check)
        if others:
            names = ", ".join(plain(check.check, 40) for check in others)
            yield from self._wrapped(f"also passed: {names}", "  ", "    ")

    def _remarks(self) -> Iterator[str]:
        verdict = self.verdict
        for label, text in (
            ("caveat", plain(verdict.caveat, 300)),
            ("coverage", coverage(verdict)),
            ("kept", kept(verdict)),
            ("not run", not_run(verdict.not_run)),
            ("drift", drift(verdict)),
            *(("scaling", scaling_text(one)) for one in verdict.scaling[:_MOST_SCALING]),
        ):
            if text:
                yield from self._wrapped(f"{label}: {text}", "  ", "    ")
        edited = [f"edited after rendering: {plain(change, 300)}" for change in verdict.edited]
        for note in (*edited, *self.place.notes)[:_MOST_NOTES]:
            yield from self._wrapped(plain(note), "  ", "    ")
        if any(one.bound and one.bound.kind in _SPECIFIED for one in shown_ranges(verdict)):
            text = "¹ from the specification, not measured"
            if self.place.knows_machine:
                text += f": {command_line('accept', 'show', 'machine', verdict.machine)}"
            yield from self._wrapped(text, "  ", "    ")
        if not node_lists(verdict).good:
            return
        if found := verdict.detectable:
            text = f"A node more than {found.slowdown * 100:.2g}% slower in its pairs would have "
            text += f"been found with {found.probability:.0%} probability."
            yield from self._wrapped(text, "  ", "  ")

    def _do_now(self) -> Iterator[str]:
        advice = other_advice(self.verdict)[:_MOST_ADVICE]
        commands = [*self.place.commands]
        for suspect in self.verdict.suspects[:1]:
            commands.append((f"accept show cause {suspect.cause}", "how to confirm it by hand"))
        commands = [(self.place.as_called(command), purpose) for command, purpose in commands]
        if not advice and not commands:
            return
        yield f"  {self._painted('DO NOW', _BOLD)}"
        column = max((len(plain(c)) for c, _ in commands if len(plain(c)) <= _COMMAND), default=0)
        for command, purpose in commands:
            gap = " " * max(0, column - len(plain(command)))
            painted = self._painted(plain(command), _CYAN)
            yield f"    {painted}{gap}   {self._painted(purpose, _DIM)}"
        for line in advice:
            yield from self._wrapped(plain(line), "    ", "      ", most=_ADVICE_LINES)

    # The last lines

    def _tail(self) -> Iterator[str]:
        verdict = self.verdict
        if self.place.report:
            yield self._painted(f"report {plain(self.place.report)}", _DIM)
        if not verdict.origin:
            parts = [f"run {plain(verdict.attempt, 80)}", f"plan {plain(verdict.run, 80)[:12]}"]
            parts += filter(None, [vouched(verdict)])
            yield self._painted(f"{' · '.join(parts)} · exit {verdict.exit}", _DIM)
        yield verdict_line(verdict)

    # Lines

    def _wrapped(self, text: str, first: str, later: str, most: int = _TEXT_LINES) -> list[str]:
        lines = textwrap.wrap(
            text,
            self.width,
            initial_indent=first,
            subsequent_indent=later,
            break_on_hyphens=False,
            break_long_words=False,
        )
        if len(lines) > most:
            lines = [*lines[: most - 1], self._cut(f"{lines[most - 1]} …")]
        return lines or [first]

    def _cut(self, text: str) -> str:
        """Return one line that ends at a word, with an ellipsis if words are left out."""
        indent = text[: len(text) - len(text.lstrip())]
        if len(text) <= self.width:
            return text
        return indent + textwrap.shorten(text, self.width - len(indent), placeholder=" …")

    def _painted(self, text: str, code: str) -> str:
        return f"\x1b[{code}m{text}\x1b[0m" if self.color else text


#: States in which something is missing.
_UNDECIDED = (State.INCONCLUSIVE, State.NOT_TESTED)
#: Kinds of bounds that come from a specification.
_SPECIFIED = {BoundKind.FLOOR, BoundKind.DERIVED}
#: Kinds that need no label because the name of the suspect shows them.
_NO_KIND = (SuspectKind.RAIL, SuspectKind.FABRIC)
#: Checks whose pass needs no figures.
_QUIET = ("hosts", "inventory", "connectivity")


def answer_of(verdict: Verdict) -> str:
    """Return whether the nodes are accepted, such as "✔ ACCEPTED".

    ACCEPTED is in it only if the run is accepted, with exit code 0.
    """
    if verdict.injected:
        return "■ DRILL"
    if verdict.state is State.PASS:
        limits = [] if verdict.gpu_tested else ["no GPU tested"]
        limits += ["not all checks ran"] if verdict.not_run else []
        return "✔ ACCEPTED" + (f" ({', '.join(limits)})" if limits else "")
    lists = node_lists(verdict)
    if verdict.state is State.DEGRADED and lists.good:
        # A node is left out with all of its GPUs and NICs.
        return good_of(len(lists.good), len(verdict.requested), max_bad=verdict.max_bad)
    if verdict.state in (State.FAIL, State.DEGRADED):
        return "✖ REJECTED"
    if verdict.interruption:
        return "? INTERRUPTED"
    return "? NOT DECIDED" if verdict.state is State.INCONCLUSIVE else "? NOT TESTED"


def good_of(good: int, nodes: int, *, max_bad: int) -> str:
    """Return the answer if the other nodes are bad or never started.

    `max_bad`: the user accepts the run without them.
    """
    shown = f"{good} OF {count(nodes, 'NODE', 'NODES')} GOOD"
    return f"▲ ACCEPTED: {shown} (--max-bad {max_bad})" if max_bad else f"▲ {shown}"


def summary(verdict: Verdict) -> str:
    """Return headline, identity and suspects in a few lines of at most 4,000 bytes."""
    lines = [f"verdict: {plain(verdict.headline, 400)}", plain(usable(verdict), 400), _run(verdict)]
    suspects = verdict.suspects[:_SUMMARY_SUSPECTS]
    lines += [plain(f"{s.kind} {s.name}: {s.cause} ({s.strength}): {s.why}", 200) for s in suspects]
    if more := len(verdict.suspects) - len(suspects):
        lines.append(f"  … and {more} more: see report.md")
    text = "".join(f"{line}\n" for line in lines if line)
    # Kubernetes keeps 4,096 bytes of a pod's last message.
    return text.encode()[:4000].decode(errors="ignore")


def _run(verdict: Verdict) -> str:
    parts = [
        f"machine {plain(verdict.machine, 80)}",
        f"suite {plain(verdict.suite, 80)}",
        count(len(verdict.hosts), "node"),
        f"run {plain(verdict.attempt, 80)}",
        f"plan {plain(verdict.run, 80)[:12]}",
        f"exit {verdict.exit}",
    ]
    if verdict.missing:
        parts.insert(3, f"missing: {plain(', '.join(verdict.missing[:8]), 200)}")
    return ", ".join(parts)


def verdict_line(verdict: Verdict) -> str:
    """Return the last line of every screen, for grep: fields without blanks."""
    lists = node_lists(verdict)
    network = [s.name for s in verdict.suspects if s.of_network]
    left_out = [*dict.fromkeys(skip.check for skip in verdict.not_run)]
    fields = [
        f"{VERDICT_LINE}{verdict.state}",
        f"good={len(lists.good)}",
        f"bad={_names(lists.bad)}",
        f"untested={len(lists.untested)}",
        *([f"notrun={_names(left_out)}"] if left_out else []),
        *(["drill=yes"] if verdict.injected else []),
        *([f"network={_names(network)}"] if network else []),
        *([f"verified={verdict.verified}"] if verdict.verified else []),
        f"run={_name(verdict.attempt)}",
    ]
    return " ".join(fields)


def _names(names: Sequence[str]) -> str:
    more = f",+{len(names) - _MOST_NAMES}" if len(names) > _MOST_NAMES else ""
    return (",".join(map(_name, names[:_MOST_NAMES])) or "none") + more


def _name(name: str) -> str:
    return plain(name, 80).replace(" ", "_") or "none"


def shown_ranges(verdict: Verdict) -> list[MeasuredRange]:
    """Return one figure of each check: that with the smallest margin, else of the most nodes.

    If a check is undecided because it has no bound, the figure that lacks it is there as well.
    """
    lacking = {
        check.check
        for check in verdict.checks
        if any(finding.cause is Cause.NO_REFERENCE for finding in check.findings)
    }
    best: dict[tuple[str, bool], MeasuredRange] = {}
    for one in verdict.ranges:
        key = one.check, one.check in lacking and one.margin is None
        if key not in best or _tightness(one) < _tightness(best[key]):
            best[key] = one
    return [*best.values()]


def _tightness(one: MeasuredRange) -> tuple[bool, float, int]:
    return one.margin is None, one.margin or 0.0, -one.nodes


def aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """Return rows as lines, with two spaces between columns."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(map(str.ljust, row, widths)).rstrip() for row in rows]


def _range_table(rows: Sequence[tuple[str, ...]]) -> list[str]:
    """Return a header and rows of figures as lines, without columns that are empty."""
    if not rows:
        return []
    # The footnote may be cut from the screen.
    required = f"required{' (¹ spec)' if any('¹' in row[3] for row in rows) else ''}"
    header = ("check", "worst / median", "at", required, "margin")
    columns = zip(header, zip(*rows, strict=True), strict=True)
    shown = [(title, *cells) for title, cells in columns if any(cells)]
    return [f"  {line}" for line in aligned([*zip(*shown, strict=True)])]


def range_row(one: MeasuredRange) -> tuple[str, ...]:
    """Return a figure as cells: check, worst and median, place, required, margin."""
    name, unit = plain(one.check, 30), plain(one.unit, 30)
    if one.metric not in (BUSBW.name, one.check):
        name += f".{plain(one.metric, 30)}"
    if one.size:
        name += f" {format_size(one.size)}"
    if one.nodes > 1:
        name += f", {one.nodes} nodes"
    measured = f"{number3(one.worst)} / {number3(one.median)} {unit}"
    if one.values == 1:
        measured = f"{number3(one.worst)} {unit}"
    at = plain(one.worst_at, 40) if one.values > 1 else ""
    if one.bound is None or one.bound.required is None:
        return name, measured, at, "", ""
    own = " (yours)" if one.bound.kind is BoundKind.EXPECTATION else ""
    mark = " ¹" if one.bound.kind in _SPECIFIED else own
    margin = "" if one.margin is None else f"{one.margin:+.0%}" if one.margin < 10 else "> +1000%"
    return name, measured, at, f"≥ {number3(one.bound.required)} {unit}{mark}", margin


def number3(value: float) -> str:
    """Return a number with three significant digits, without an exponent if possible."""
    return number(float(f"{value:.3g}"))


def utc(seconds: float, form: str, unknown: str = "") -> str:
    """Return a time in UTC in a form of `strftime`; `unknown` for times that no run has."""
    if not 0 < seconds < 1e11:
        return unknown
    return datetime.fromtimestamp(seconds, timezone.utc).strftime(form)


def other_advice(verdict: Verdict) -> list[str]:
    """Return the advice that is not shown beside a suspect."""
    beside = {suspect_advice(suspect, verdict.checks) for suspect in verdict.suspects}
    return [line for line in verdict.advice if line not in beside]


def not_tested(verdict: Verdict) -> str:
    """Return what the run did not test, as one line; empty if it tested everything."""
    parts = [f"only {plain(verdict.part)}"] if verdict.part else []
    untested = {*node_lists(verdict).untested}
    if absent := [host for host in verdict.missing if host in untested]:
        parts.append(f"{count(len(absent), 'node')} did not take part")
    nodes = [f"{node.name} ({node.reason})" for node in verdict.left_out]
    parts += [plain(shortened(nodes, _MAX_LEFT_OUT))] * bool(nodes)
    left_out = {skip.check for skip in verdict.not_run}
    checks = [check for check in verdict.checks if check.state is State.NOT_TESTED]
    checks = [check for check in checks if check.check not in left_out]
    names = [plain(check.check, 40) + (" (optional)" if check.optional else "") for check in checks]
    return "; ".join([*parts, *([", ".join(names)] if names else [])])


def scaling_text(scaling: Scaling) -> str:
    """Return the efficiency over the number of nodes: "…, 2 nodes 92 GB/s, 4 nodes 99%"."""
    first, *others = scaling.points
    points = [f"{count(point.nodes, 'node')} {point.efficiency:.0%}" for point in others]
    base = f"{count(first.nodes, 'node')} {number3(first.value)} {scaling.unit}"
    return plain(f"{scaling.check} {format_size(scaling.size)}, {', '.join([base, *points])}")


def kept(verdict: Verdict) -> str:
    """Return which steps earlier attempts executed, as one line; empty: none."""
    texts = [
        f"{shortened(one.steps, _MAX_KEPT)} from attempt {one.attempt}" for one in verdict.kept
    ]
    return plain("; ".join(texts))


def of_total(exercised: int, total: int) -> str:
    """Return how many of all parts were exercised: "512 of 512"; "0" if none are expected."""
    return f"{exercised} of {total}" if total else str(exercised)


def coverage(verdict: Verdict) -> str:
    """Return the GPUs and NICs that some step exercised, as one line; empty if nothing ran."""
    covered = verdict.coverage
    if not covered.steps:
        return ""
    gpus, nics = of_total(covered.gpus, covered.gpus_of), of_total(covered.nics, covered.nics_of)
    parts = (("not exercised", covered.gpus_untested), ("NICs not used", covered.nics_untested))
    untested = [f"; {label}: {shortened(names, 4)}" for label, names in parts if names]
    return plain(f"{gpus} GPUs, {nics} NICs{''.join(untested)}")


def drift(verdict: Verdict) -> str:
    """Return whether hardware, versions and settings are equal; empty if nothing was compared."""
    check = next((check for check in verdict.checks if check.check == "inventory"), None)
    if check is None or len(verdict.hosts) < 2 or check.state is State.NOT_TESTED:
        return ""
    differences = [f for f in check.findings if f.cause is Cause.INVENTORY_MISMATCH]
    notes = [f for f in check.findings if f.judgement is Judgement.CONSISTENCY]
    if not differences and not notes:
        return f"hardware, versions and settings are equal on {len(verdict.hosts)} nodes"
    return plain((differences or notes)[0].message, 200)


def excused(check: CheckVerdict) -> bool:
    """Return True if the run can be accepted although this check has no result."""
    return check.optional and check.state in (State.NOT_TESTED, State.INCONCLUSIVE)


def notable(check: CheckVerdict) -> list[Finding]:
    """Return the findings of a check that are not a pass."""
    return [finding for finding in check.findings if finding.state is not State.PASS]


def finding_text(finding: Finding, checks: Sequence[str] = (), logs: int = 3) -> str:
    """Return a finding as one line: check, cause or judgement, message, source and evidence.

    `checks` lists all checks with the same finding; by default it is the finding's own. `logs` is
    the highest number of logs.
    """
    kind = f" [{plain(finding.cause or finding.judgement, 40)}]"
    check_names = ", ".join(dict.fromkeys(checks)) or finding.check
    text = f"{plain(check_names, 100)}{kind}: {plain(finding.message)}"
    if finding.bound and finding.bound.source:
        text += f"; source: {plain(finding.bound.source, 200)}"
    if finding.evidence:
        text += f"; see {plain(', '.join(finding.evidence[:logs]), 200)}"
    return text


def findings_of(verdict: Verdict) -> list[str]:
    """Return the notable findings as lines, without consequences of other findings.

    Findings of several checks with the same cause and message share one line, also if they
    differ in the example of a missing bound.
    """
    grouped: dict[tuple[str, str], list[Finding]] = {}
    for check in verdict.checks:
        bad = [finding for finding in notable(check) if finding.cause is not Cause.DESELECTED]
        roots = [finding for finding in bad if not _is_consequence(finding)]
        # A finding that is milder than the check's state does not explain that state, and the lack
        # of a bound explains no other finding.
        worst = worst_state(finding.state for finding in bad)
        explains = (f.state is worst and f.cause is not Cause.NO_REFERENCE for f in roots)
        for finding in roots if any(explains) else bad:
            if not _is_of_suspects(finding, verdict.suspects):
                message, *_ = finding.message.split(NO_BOUND_EXAMPLE)
                grouped.setdefault((finding.cause or "", message), []).append(finding)
    groups = sorted(grouped.values(), key=lambda group: group[0].cause is not Cause.WRONG_DATA)
    return [
        finding_text(_without_source(group[0]), checks=[finding.check for finding in group], logs=1)
        for group in groups
    ]


def _without_source(finding: Finding) -> Finding:
    """Return a finding without the source of a reference, which a footnote of the table has."""
    is_own = finding.bound is not None and finding.bound.kind is BoundKind.EXPECTATION
    return finding if is_own else replace(finding, bound=None)


def _is_of_suspects(finding: Finding, suspects: Sequence[Suspect]) -> bool:
    """Return True if a finding only repeats a suspect.

    It lists the outliers among peers, or one host, or wrong data that all comes with an accused
    host.
    """
    common = finding.executions.common_hosts if finding.executions else ()
    if finding.cause is Cause.WRONG_DATA and common:
        wrong = (s for s in suspects if s.cause is Cause.WRONG_DATA and not s.of_network)
        return any(host in common for suspect in wrong for host in suspect.hosts)
    hosts = {host for suspect in suspects for host in suspect.hosts}
    return (
        (finding.judgement is Judgement.POPULATION or len(finding.hosts) == 1)
        and finding.state is not State.INCONCLUSIVE
        and finding.cause in {suspect.cause for suspect in suspects}
        and hosts.issuperset(finding.hosts)
    )


def _is_consequence(finding: Finding) -> bool:
    """Return True if the finding may follow from another one.

    Only findings about completeness may: results that were not checked need their own line.
    """
    is_completeness = finding.judgement is Judgement.COMPLETENESS
    return is_completeness and finding.cause is not None and finding.cause.row.consequence


def _pair(pair: BadPair) -> str:
    values = f" ({pair.compared})" if pair.compared else ""
    return f"{' - '.join(pair.hosts)}{values}"
