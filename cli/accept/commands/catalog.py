"""List and show machines, suites, checks, back ends, runs, causes, errors and schemas."""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import yaml

from accept import backends, config
from accept.backends.job import Job
from accept.backends.protocol import Phase
from accept.commands import baseline, cluster, diff, doctor, drill, judge, plan, run
from accept.commands.choices import Listing, Schema, Shown
from accept.config import floors, resources
from accept.config.chart_values import Values, chart_schema
from accept.config.faults import Drill
from accept.config.references import Figure
from accept.core import causes, checks, evidence
from accept.core.catalog.metrics import Better
from accept.core.error_codes import Code
from accept.core.errors import AcceptError, BadInput, Exit
from accept.core.judge.bounds import bound_text
from accept.core.model import GroupKind, Plan, Record, Verdict
from accept.core.serde import dump, fields_of, known, nearest, read, schema
from accept.core.text import count, format_size, plain
from accept.evidence import rundir
from accept.report.console import Table, Terminal


@dataclass(frozen=True, kw_only=True)
class Entry:
    """A line of a list, or an error code."""

    name: str
    about: str
    #: The folder of a run.
    folder: str | None = None


@dataclass(frozen=True, kw_only=True)
class Listed:
    """The list that was requested: `accept list`."""

    machines: tuple[Entry, ...] | None = None
    suites: tuple[Entry, ...] | None = None
    checks: tuple[Entry, ...] | None = None
    backends: tuple[Entry, ...] | None = None
    #: Newest first.
    runs: tuple[Entry, ...] | None = None
    errors: tuple[Entry, ...] | None = None


@dataclass(frozen=True, kw_only=True)
class Parameter:
    """A parameter of a check."""

    default: bool | int | float | str
    about: str


@dataclass(frozen=True, kw_only=True)
class MetricEntry:
    """A metric of a check; its unit is empty if it is a share or a count."""

    unit: str
    better: Better


@dataclass(frozen=True, kw_only=True)
class CheckPage:
    """The declaration of a check: `accept show check`."""

    check: str
    about: str
    #: The first is the default.
    groups: tuple[GroupKind, ...]
    params: dict[str, Parameter]
    metrics: dict[str, MetricEntry]
    #: One tool of each entry is enough.
    tools: tuple[tuple[str, ...], ...]
    #: Faults of a drill that it can detect.
    faults: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class CausePage:
    """A cause and its section of docs/causes.md: `accept show cause`."""

    cause: causes.Cause
    meaning: str
    action: str
    section: str


@dataclass(frozen=True, kw_only=True)
class ChartPath:
    """The path of the Helm chart: `accept chart`."""

    chart: str


#: The types of files, and of what commands print with --json.
_TYPES: Final[Mapping[Schema, type]] = {
    Schema.MACHINE: config.Machine,
    Schema.SITE: config.Site,
    Schema.SUITE: config.Suite,
    Schema.PLAN: Plan,
    Schema.RECORD: Record,
    Schema.VERDICT: Verdict,
    Schema.DRILL: Drill,
    Schema.VALUES: Values,
    Schema.DRY_RUN: plan.PlannedRun,
    Schema.RENDER: plan.RenderedRun,
    Schema.SUBMIT: Job,
    Schema.WATCH: run.Watched,
    Schema.COLLECT: run.Collected,
    Schema.CANCEL: run.Cancelled,
    Schema.DELETE: run.Deleted,
    Schema.JUDGE: judge.JudgedVerdict,
    Schema.REPORT: judge.Reports,
    Schema.DIFF: diff.Diff,
    Schema.BASELINE: baseline.BaselineFile,
    Schema.DRILL_DRY_RUN: drill.PlannedDrill,
    Schema.DOCTOR: doctor.Requirements,
    Schema.RBAC: doctor.Role,
    Schema.NODES: cluster.FreeNodes,
    Schema.INIT: cluster.SiteFile,
    Schema.LIST: Listed,
    Schema.CHECK: CheckPage,
    Schema.CAUSE: CausePage,
    Schema.ERROR: Entry,
    Schema.CHART: ChartPath,
}


def do_list(what: Listing, terminal: Terminal) -> int:
    """Print one line for each entry, its name first."""
    entries = _LISTS[what]()
    result = Listed(**{what.value: entries})
    table = Table(rows=[(entry.name, entry.about) for entry in entries])
    terminal.result(result, table if entries else f"no {what}")
    return Exit.PASS


def _machines() -> tuple[Entry, ...]:
    machines = (config.load_machine(name).value for name in config.names("machines"))
    return tuple(Entry(name=m.name, about=m.description) for m in machines)


def _suites() -> tuple[Entry, ...]:
    suites = (config.load_suite(name).value for name in config.names("suites"))
    return tuple(Entry(name=s.name, about=s.description) for s in suites)


def _checks() -> tuple[Entry, ...]:
    return tuple(Entry(name=name, about=check.summary) for name, check in checks.REGISTRY.items())


def _backends() -> tuple[Entry, ...]:
    entries = []
    for name, backend in backends.BACKENDS.items():
        text = (backend.__doc__ or "").strip().splitlines()
        entries.append(Entry(name=name, about=text[0] if text else ""))
    return tuple(entries)


def _runs() -> tuple[Entry, ...]:
    return tuple(
        Entry(name=folder.name, about=_state(folder), folder=str(folder))
        for folder in rundir.listed()[::-1]
    )


def _state(folder: Path) -> str:
    """Return the state of a run or drill in one line, as far as this machine knows it."""
    if (folder / rundir.DRILL).is_file():
        return _drill_headline(folder / rundir.DRILL)
    if (folder / rundir.EVIDENCE).is_dir():
        try:
            return evidence.read_verdict(folder / rundir.EVIDENCE).headline
        except AcceptError:
            return "collected, no verdict"
    if not (folder / rundir.JOB).is_file():
        return "rendered"
    progress = backends.progress_of(folder)
    return {
        Phase.ENDED: "ended, not collected",
        Phase.GONE: "ended, and nothing is left to collect",
    }.get(progress.phase, progress.text)


def _drill_headline(path: Path) -> str:
    try:
        return drill.headline(read(Drill, json.loads(path.read_text(encoding="utf-8"))))
    except (OSError, ValueError, RecursionError):
        return "drill: the result cannot be read"


def _errors() -> tuple[Entry, ...]:
    errors = (Entry(name=code.value, about=code.explanation) for code in Code)
    findings = (Entry(name=cause.code, about=_explanation(cause)) for cause in causes.Cause)
    return (*errors, *findings)


def _explanation(cause: causes.Cause) -> str:
    """Return a cause's meaning and next action, as the explanation of its code."""
    meaning, action = (
        text[:1].upper() + text[1:] for text in (cause.row.meaning, cause.row.action)
    )
    return f"{meaning}. {action}. More: accept show cause {cause}"


_LISTS: Final[Mapping[Listing, Callable[[], tuple[Entry, ...]]]] = {
    Listing.MACHINES: _machines,
    Listing.SUITES: _suites,
    Listing.CHECKS: _checks,
    Listing.BACKENDS: _backends,
    Listing.RUNS: _runs,
    Listing.ERRORS: _errors,
}


def do_show(what: Shown, name: str, terminal: Terminal) -> int:
    """Print a file with all defaults filled in, a check, a cause, or an error code."""
    if what is Shown.MACHINE:
        # The values of its bases are merged into it.
        machine = dataclasses.replace(config.load_machine(name).value, base=())
        terminal.result(machine, _yaml(machine) + _derived_bounds(machine))
    elif what is Shown.SUITE:
        suite = config.load_suite(name).value
        terminal.result(suite, _yaml(suite))
    elif what is Shown.SITE:
        site = config.load_site(name).value
        terminal.result(site, _yaml(site))
    elif what is Shown.CHECK:
        check = _check_page(name)
        terminal.result(check, *_check_text(check))
    elif what is Shown.CAUSE:
        page = _cause_page(name)
        terminal.result(page, f"{page.cause}\n{page.section}")
    else:
        error = _error(name)
        terminal.result(error, f"{error.name}\n{error.about}")
    return Exit.PASS


def _yaml(value: config.Machine | config.Suite | config.Site) -> str:
    return yaml.safe_dump(dump(value), sort_keys=False, allow_unicode=True, width=100)


def _check_page(name: str) -> CheckPage:
    """Return what a check declares. Raises BadInput."""
    if name not in checks.REGISTRY:
        raise BadInput(
            f"there is no check {plain(name, 60)!r}",
            code=Code.CHECK_UNKNOWN,
            hint=known(name, checks.names()),
        )
    check = checks.load(name)
    defaults = check.params()
    return CheckPage(
        check=name,
        about=check.summary,
        groups=check.groups,
        params={
            key: Parameter(default=getattr(defaults, item.name), about=item.metadata["doc"])
            for item, key, _ in fields_of(check.params)
        },
        metrics={
            spec.name: MetricEntry(unit=spec.unit, better=spec.better) for spec in check.metrics
        },
        tools=tuple(tuple(tool.name for tool in tools) for tools in check.needs),
        faults=tuple(check.faults),
    )


def _check_text(page: CheckPage) -> Iterator[str | Table]:
    """Yield the texts and tables of a check's page."""
    default, *others = page.groups
    lists = {
        "groups": (f"{default} (default)", *others),
        "tools": tuple(" or ".join(names) for names in page.tools),
        "faults": page.faults,
    }
    params = [
        # An empty text and booleans as YAML writes them.
        (
            key,
            p.default if p.default and isinstance(p.default, str) else json.dumps(p.default),
            p.about,
        )
        for key, p in page.params.items()
    ]
    metrics = [(name, metric.better, metric.unit) for name, metric in page.metrics.items()]
    yield f"{page.check}: {page.about}"
    yield Table(rows=[(name, ", ".join(texts) or "none") for name, texts in lists.items()])
    for header, rows in (
        (("PARAMETER", "DEFAULT", "MEANING"), params),
        (("METRIC", "BETTER", "UNIT"), metrics),
    ):
        if rows:
            yield ""
            yield Table(header=header, rows=rows)


def _cause_page(name: str) -> CausePage:
    """Return the section of docs/causes.md about a cause. Raises BadInput."""
    cause = causes.from_text(name)
    if cause is None:
        raise BadInput(
            f"there is no cause {plain(name, 60)!r}",
            code=Code.CAUSE_UNKNOWN,
            hint=known(name, causes.Cause),
        )
    page = resources.causes().read_text(encoding="utf-8")
    section = page.partition(f"\n### {name}\n")[2].partition("\n##")[0].strip()
    row = cause.row
    return CausePage(cause=cause, meaning=row.meaning, action=row.action, section=section)


def _error(name: str) -> Entry:
    """Return the explanation of an error code. Raises BadInput."""
    entries = {entry.name: entry for entry in _errors()}
    if name.upper() not in entries:
        closest = nearest(name, entries)
        suggestion = f"did you mean {closest}? " if closest else ""
        raise BadInput(
            f"there is no error code {plain(name, 60)!r}",
            code=Code.CODE_UNKNOWN,
            hint=f"{suggestion}all codes: accept list errors",
        )
    return entries[name.upper()]


def _derived_bounds(machine: config.Machine) -> str:
    """Return the bounds that follow from the hardware, as YAML comments."""
    lines = [
        f"# - {f.check} {_subject(f)}: {bound_text(f.reference())}, "
        f"{f.share:g} of {f.value:g}; {f.source}"
        for f in floors.figures(machine)[len(machine.references) :]
    ]
    return "\n".join(("# Bounds that follow from its hardware:", *lines)) if lines else ""


def _subject(figure: Figure) -> str:
    """Return what a figure applies to: a message size on some nodes, or a metric of each GPU."""
    if figure.size is None:
        return f"{figure.metric} of each GPU"
    domain = " of one NVLink domain" if figure.one_domain else ""
    return f"at {format_size(figure.size)}{_nodes(figure)}{domain}"


def _nodes(figure: Figure) -> str:
    low, high = figure.min_nodes or 1, figure.max_nodes
    if low == high:
        return f" on {count(low, 'node')}"
    return f" on {low} nodes or more" if high is None else f" on {low} to {high} nodes"


def do_schema(what: Schema) -> int:
    """Print a JSON Schema, with and without --json."""
    data = chart_schema() if what is Schema.VALUES else schema(_TYPES[what])
    sys.stdout.write(json.dumps(data, indent=1, ensure_ascii=False) + "\n")
    return Exit.PASS


def do_chart(terminal: Terminal) -> int:
    """Print the path of the Helm chart."""
    path = str(resources.chart())
    terminal.result(ChartPath(chart=path), path)
    return Exit.PASS
