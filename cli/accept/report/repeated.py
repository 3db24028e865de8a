"""Sum up the repetitions of a run: the worst verdict, and the spread of each figure and node."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import mean, median, stdev

from accept.core.catalog.metrics import BUSBW
from accept.core.checks import metric_spec
from accept.core.errors import Exit
from accept.core.judge.summary import node_lists, not_good, worst_state
from accept.core.report.markdown import section
from accept.core.report.text import VERDICT_LINE, aligned, answer_of, good_of, number3
from accept.core.table import figures
from accept.core.text import count, duration, format_size, plain, shortened
from accept.core.text import markdown as escaped
from accept.core.verdict import State, Verdict, worst_exit
from accept.report.data import Run

#: Maximum number of figures and nodes on the screen, and of rows of a table in a report.
_SCREEN_ROWS, _SCREEN_NODES, _ROWS = 12, 16, 1000


@dataclass(frozen=True, kw_only=True)
class Figure:
    """The quantity that a value measures. Values of different figures are not comparable."""

    check: str
    metric: str
    unit: str
    #: Message size in bytes; None: the metric has none.
    size: int | None = None
    #: Id of the step.
    step: str
    #: Nodes of each execution.
    nodes: int

    @property
    def title(self) -> str:
        """Return the figure for people."""
        name = self.check if self.metric == BUSBW.name else f"{self.check}.{self.metric}"
        size = f" {format_size(self.size)}" if self.size else ""
        return f"{name}{size}, {count(self.nodes, 'node')}"


@dataclass(frozen=True, kw_only=True)
class NodeSpread:
    """The values of one figure on one node."""

    host: str
    #: The median of each repetition; None: it has no value.
    values: tuple[float | None, ...]
    #: Standard deviation as a share of the mean; None: fewer than two values.
    spread: float | None


@dataclass(frozen=True, kw_only=True)
class FigureSpread:
    """The values of one figure in all repetitions."""

    figure: Figure
    median: float
    #: The median of each repetition; None: it has no value.
    values: tuple[float | None, ...]
    spread: float | None
    #: The node with the largest spread first.
    hosts: tuple[NodeSpread, ...]


@dataclass(frozen=True, kw_only=True)
class Repetition:
    """The verdict of one repetition, which has evidence and reports of its own."""

    attempt: str
    #: The answer for people, such as "✔ ACCEPTED".
    answer: str
    state: State
    exit: int
    headline: str
    start: float
    end: float


@dataclass(frozen=True, kw_only=True)
class Repeated:
    """The result of `accept run --repeat`: `repeat.json`."""

    schema: int
    repeat: str
    machine: str
    suite: str
    #: Number of repetitions that were requested.
    times: int
    #: The worst answer, state and exit code of all repetitions. If one is missing, the state is at
    #: best "not tested".
    answer: str
    state: State
    exit: int
    accepted: bool
    #: Reason why repetitions are missing; empty if none is missing.
    interruption: str
    #: Nodes that are good in all repetitions, bad in at least one, and the others.
    good: tuple[str, ...]
    bad: tuple[str, ...]
    untested: tuple[str, ...]
    repetitions: tuple[Repetition, ...]
    figures: tuple[FigureSpread, ...]


def summarize(
    runs: Sequence[Run], *, name: str, times: int, interruption: str = "", code: int | None = None
) -> Repeated:
    """Return the result of the repetitions so far, at least one; `code` is that of an error."""
    verdicts = [run.verdict for run in runs]
    lists = [node_lists(verdict) for verdict in verdicts]
    hosts = dict.fromkeys(h for verdict in verdicts for h in (*verdict.hosts, *verdict.missing))
    bad = [host for host in hosts if any(host in one.bad for one in lists)]
    good = [host for host in hosts if all(host in one.good for one in lists)]
    degraded = [verdict for verdict in verdicts if verdict.state is State.DEGRADED]
    kept_back = dict.fromkeys((*bad, *(host for one in degraded for host in not_good(one))))
    exits = [verdict.exit for verdict in verdicts]
    accepted = all(verdict.accepted for verdict in verdicts) and not interruption
    max_bad = max((verdict.max_bad for verdict in verdicts), default=0)
    if len(kept_back) > max_bad:
        # Each repetition may have another bad node.
        exits.append(Exit.REJECTED)
        accepted = False
    missing = [State.NOT_TESTED] * bool(interruption)
    state = worst_state([*missing, *(verdict.state for verdict in verdicts)])
    worst = next((verdict for verdict in verdicts if verdict.state is state), None)
    return Repeated(
        schema=1,
        repeat=name,
        machine=verdicts[0].machine,
        suite=verdicts[0].suite,
        times=times,
        answer=_answer(worst, good, len(kept_back), max_bad if accepted else 0),
        state=state,
        exit=worst_exit(exits) if code is None else code,
        accepted=accepted,
        interruption=interruption,
        good=tuple(good) if not interruption else (),
        bad=tuple(bad),
        untested=tuple(h for h in hosts if h not in bad and (interruption or h not in good)),
        repetitions=tuple(
            Repetition(
                attempt=verdict.attempt,
                answer=answer_of(verdict),
                state=verdict.state,
                exit=verdict.exit,
                headline=verdict.headline,
                start=verdict.start,
                end=verdict.end,
            )
            for verdict in verdicts
        ),
        figures=tuple(_spreads(runs)),
    )


def _answer(worst: Verdict | None, good: Sequence[str], kept_back: int, max_bad: int) -> str:
    """Return the answer of the worst verdict.

    `kept_back`: the number of nodes that any run did without.
    """
    if worst is None:
        return "? INTERRUPTED"
    if worst.state is State.DEGRADED and not worst.injected:
        return good_of(len(good), len(good) + kept_back, max_bad=max_bad) if good else "✖ REJECTED"
    return answer_of(worst)


def _spreads(runs: Sequence[Run]) -> Iterator[FigureSpread]:
    values = [_values(run) for run in runs]
    for figure in dict.fromkeys(figure for own in values for figure in own):
        by_run = [own.get(figure, {}) for own in values]
        hosts = dict.fromkeys(host for by_host in by_run for host in by_host)
        of_hosts = []
        for host in hosts:
            medians = [_median(by_host.get(host, ())) for by_host in by_run]
            of_hosts.append(NodeSpread(host=host, values=tuple(medians), spread=cv(medians)))
        medians = [_median([v for own in by_host.values() for v in own]) for by_host in by_run]
        yield FigureSpread(
            figure=figure,
            median=median(value for value in medians if value is not None),
            values=tuple(medians),
            spread=cv(medians),
            hosts=tuple(sorted(of_hosts, key=lambda one: -(one.spread or 0.0))),
        )


def _values(run: Run) -> dict[Figure, dict[str, list[float]]]:
    """Return the values of each node by figure; of a collective, that at the largest size."""
    found: dict[Figure, dict[str, list[float]]] = {}
    for row in figures(run.plan.steps, run.records):
        spec = metric_spec(row.check, row.metric)
        value = row.value or 0.0
        is_rate = spec is not None and spec.baseline and value > 0
        if (is_rate or row.metric == BUSBW.name) and row.execution.record.exit == 0:
            figure = Figure(
                check=row.check,
                metric=row.metric,
                unit=row.unit,
                size=row.nominal_size,
                step=row.step.id,
                nodes=row.nodes,
            )
            by_host = found.setdefault(figure, {})
            for host in row.hosts:
                by_host.setdefault(host, []).append(value)
    return found


def _median(values: Sequence[float]) -> float | None:
    return median(values) if values else None


def cv(values: Sequence[float | None]) -> float | None:
    """Return the coefficient of variation: the standard deviation as a share of the mean.

    None: there are fewer than two values.
    """
    known = [value for value in values if value is not None]
    return stdev(known) / mean(known) if len(known) > 1 and mean(known) > 0 else None


# Texts


def headline(result: Repeated) -> str:
    """Return the answer, and in how many repetitions it was given."""
    alike = sum(one.state is result.state for one in result.repetitions)
    times = count(result.times, "repetition")
    if not alike:
        return f"{result.answer} after {len(result.repetitions)} of {times}"
    return f"{result.answer} in {alike} of {times}"


def screen(result: Repeated, report: str) -> str:
    """Return the result for a terminal; `report` is the path of the page."""
    hosts = len(result.good) + len(result.bad) + len(result.untested)
    facts = [f"{len(result.good)} of {count(hosts, 'node')} good in all"]
    facts += [plain(result.machine, 60), plain(result.suite, 60)]
    texts = [f"{headline(result)}   {' · '.join(facts)}", plain(result.interruption, 300)]
    lines = [
        line
        for text in texts
        for line in textwrap.wrap(
            text, 80, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False
        )
    ]
    lines += ["", *(f"  {line}".rstrip() for line in aligned([*_repetition_rows(result)]))]
    if rows := [*_figure_rows(result.figures[:_SCREEN_ROWS])]:
        head = ("figure", "median", "spread", "varies most")
        lines += ["", *(f"  {line}" for line in aligned([head, *rows]))]
    if more := len(result.figures) - _SCREEN_ROWS:
        lines += [f"  … and {more} more in report.md"] * (more > 0)
    lines += ["", f"report {report}", f"repeat {result.repeat} · exit {result.exit}"]
    fields = [
        f"{VERDICT_LINE}{result.state}",
        f"good={len(result.good)}",
        f"bad={','.join(result.bad[:_SCREEN_NODES]) or 'none'}",
        f"untested={len(result.untested)}",
        f"repetitions={len(result.repetitions)}",
        f"run={result.repeat}",
    ]
    return "\n".join([*lines, plain(" ".join(fields), 2000)])


def _repetition_rows(result: Repeated) -> Iterator[tuple[str, ...]]:
    for one in result.repetitions:
        took = duration(one.end - one.start) if one.end > one.start > 0 else ""
        yield plain(one.attempt, 80), plain(one.headline, 100), took


def _figure_rows(figures: Sequence[FigureSpread]) -> Iterator[tuple[str, ...]]:
    """Yield title, median, spread, and the node that varies most."""
    for one in figures:
        worst = one.hosts[0] if len(one.hosts) > 1 else None
        yield (
            plain(one.figure.title, 80),
            f"{number3(one.median)} {one.figure.unit}",
            percent(one.spread),
            f"{plain(worst.host, 60)} {percent(worst.spread)}" if worst and worst.spread else "",
        )


def percent(share: float | None) -> str:
    """Return a share as a percentage with two digits; a dash if it is unknown."""
    return "-" if share is None else f"{share * 100:.2g}%"


def node_rows(result: Repeated) -> list[tuple[str, str, str, tuple[str, ...]]]:
    """Return host, figure, spread and values of each node, the largest spreads first."""
    spreads = [(node, one.figure) for one in result.figures for node in one.hosts]
    spreads.sort(key=lambda pair: -(pair[0].spread or 0.0))
    return [
        (
            node.host,
            figure.title,
            percent(node.spread),
            tuple("-" if value is None else number3(value) for value in node.values),
        )
        for node, figure in spreads[:_ROWS]
    ]


def render_markdown(result: Repeated) -> str:
    """Return the result as a page in Markdown."""
    return "\n".join(_page(result)) + "\n"


def _page(result: Repeated) -> Iterator[str]:
    yield f"# {escaped(headline(result))}"
    yield ""
    yield f"- accepted: **{'yes' if result.accepted else 'no'}** (exit {result.exit})"
    yield f"- machine: {escaped(result.machine)}, suite: {escaped(result.suite)}"
    yield f"- run {escaped(result.repeat)}"
    if result.interruption:
        yield f"- interrupted: {escaped(result.interruption)}"
    for name, hosts in (
        ("good in all repetitions", result.good),
        ("bad in at least one", result.bad),
        ("not tested, or not shown to be good", result.untested),
    ):
        yield f"- {name} ({len(hosts)}): {escaped(shortened(hosts, _ROWS))}"
    yield from _table("Repetitions", "run | verdict | took", _repetition_rows(result))
    note = "The spread is the standard deviation of the repetitions as a share of their mean."
    yield from ("", note)
    yield from _table(
        "Figures",
        "figure | median | spread | node that varies most",
        _figure_rows(result.figures[:_ROWS]),
    )
    rows = (
        (host, title, share, ", ".join(values)) for host, title, share, values in node_rows(result)
    )
    yield from _table("Nodes", "node | figure | spread | each repetition", rows)


def _table(title: str, header: str, rows: Iterator[tuple[str, ...]]) -> Iterator[str]:
    return section(title, header, (tuple(map(escaped, row)) for row in rows))
