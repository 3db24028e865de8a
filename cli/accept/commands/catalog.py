"""List and show machines, suites, checks, back ends, runs, causes, errors and schemas."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Final

import yaml

from accept import backends, config
from accept.commands import runs
from accept.commands.check_page import check_page, check_text
from accept.commands.choices import Listing, Schema, Shown
from accept.config import floors, resources, site_file
from accept.config.chart_values import chart_schema
from accept.config.explanations import explanations
from accept.config.machine import Confidence
from accept.config.references import Figure
from accept.config.tools import check_names, check_of
from accept.core import causes, checks, signs
from accept.core.by_key import by_key
from accept.core.catalog.faults import FAULTS, Scope
from accept.core.error_codes import Code
from accept.core.errors import BadInput, Exit
from accept.core.judge.rounds import identified_by
from accept.core.plan import GroupKind
from accept.core.sentences import bound_text
from accept.core.serde import did_you_mean, dump, known, schema
from accept.core.signs import Layer, SignOwner
from accept.core.text import count, duration, format_size, plain
from accept.plan.chart import chart_folder
from accept.plan.steps import Inputs, steps_of
from accept.report.console import Table, Terminal


@dataclass(frozen=True, kw_only=True)
class Entry:
    """A line of a list, or an error code."""

    name: str
    about: str
    #: How sure a machine's file is.
    confidence: Confidence | None = None
    #: Of a sign: the software that prints it, the part that has to be changed, and the source.
    layer: Layer | None = None
    owner: SignOwner | None = None
    source: str | None = None

    @property
    def columns(self) -> tuple[str, ...]:
        """Return its columns in a list."""
        return (self.name, *filter(None, (self.confidence, self.layer, self.owner)), self.about)


@dataclass(frozen=True, kw_only=True)
class Listed:
    """The list that was requested: `accept list`."""

    machines: tuple[Entry, ...] | None = None
    #: NCCL profiles.
    profiles: tuple[Entry, ...] | None = None
    suites: tuple[Entry, ...] | None = None
    checks: tuple[Entry, ...] | None = None
    causes: tuple[Entry, ...] | None = None
    #: Known lines of programs; `accept show cause` takes their names, too.
    signs: tuple[Entry, ...] | None = None
    faults: tuple[Entry, ...] | None = None
    backends: tuple[Entry, ...] | None = None
    sites: tuple[Entry, ...] | None = None
    errors: tuple[Entry, ...] | None = None
    schemas: tuple[Entry, ...] | None = None


@dataclass(frozen=True, kw_only=True)
class SignPage:
    """A known line of a program, such as an Xid of NVIDIA's driver."""

    name: str
    layer: Layer
    #: The part that has to be changed.
    owner: SignOwner
    source: str


@dataclass(frozen=True, kw_only=True)
class CausePage:
    """A cause and its section of docs/causes.md, or a sign of it: `accept show cause`."""

    cause: causes.Cause
    meaning: str
    action: str
    #: The party that has to act.
    owner: causes.Owner
    section: str
    #: The sign that was named; meaning and action are then its own.
    sign: SignPage | None = None


@dataclass(frozen=True, kw_only=True)
class FaultPage:
    """A fault that a drill can inject: `accept show fault`."""

    fault: str
    about: str
    #: The part of a run that it affects; it decides how --inject names it.
    scope: Scope
    #: Checks that can detect it.
    checks: tuple[str, ...]
    #: Causes for which a run with it is correctly rejected.
    causes: tuple[causes.Cause, ...]


@dataclass(frozen=True, kw_only=True)
class ChartPath:
    """The path of the Helm chart: `accept chart`."""

    chart: str


#: The site file that comes with `accept`, as `accept show site` names it.
_EXAMPLE: Final = "example"


def do_list(what: Listing, terminal: Terminal, *, url: str | None = None) -> int:
    """Print one line for each entry, its name first; of the runs in a bucket if `url` names one."""
    if url is not None and (what is not Listing.RUNS or not runs.is_place(url)):
        raise BadInput(
            f"{plain(url, 200)} is not a bucket or folder with runs",
            code=Code.USAGE,
            hint="accept list runs gs://BUCKET/PATH, or the absolute path of a shared folder",
        )
    if what is Listing.RUNS:
        return runs.do_list_runs(terminal, url)
    entries = _LISTS[what]()
    table = Table(rows=[entry.columns for entry in entries])
    terminal.result(Listed(**{what.value: entries}), table)
    return Exit.PASS


def _machines() -> tuple[Entry, ...]:
    machines = (config.load_machine(name).value for name in config.names("machines"))
    return tuple(Entry(name=m.name, about=m.description, confidence=m.confidence) for m in machines)


def _profiles() -> tuple[Entry, ...]:
    """Return the NCCL profiles with their machines; a name can mean other settings on others."""
    machines = (config.load_machine(name).value for name in config.names("machines"))
    owners = by_key(
        ((name, profile.description or "The settings of the vendor."), machine.name)
        for machine in machines
        for name, profile in machine.nccl.profiles.items()
    )
    return tuple(
        Entry(name=name, about=f"{about} Machines: {', '.join(names)}")
        for (name, about), names in sorted(owners.items())
    )


def _suites() -> tuple[Entry, ...]:
    suites = (config.load_suite(name).value for name in config.names("suites"))
    return tuple(Entry(name=s.name, about=s.description) for s in suites)


def _checks() -> tuple[Entry, ...]:
    own = config.trusted_tools()
    found = (check_of(name, "", own) for name in check_names(tool.value.name for tool in own))
    return tuple(Entry(name=check.name, about=check.summary) for check in found)


def _backends() -> tuple[Entry, ...]:
    entries = []
    for name, backend in backends.BACKENDS.items():
        text = (backend.__doc__ or "").strip().splitlines()
        entries.append(Entry(name=name, about=text[0] if text else ""))
    return tuple(entries)


def _signs() -> tuple[Entry, ...]:
    """Return the known lines in the order of their layers, each followed by its numbers."""
    rows = (
        row
        for sign in signs.catalog().signs
        for row in (sign, *(sign.of_code(code) for code in sign.codes))
    )
    return tuple(
        Entry(name=row.name, about=row.means, layer=row.layer, owner=row.owner, source=row.source)
        for row in sorted(rows, key=lambda row: [*Layer].index(row.layer))
    )


def _sites() -> tuple[Entry, ...]:
    """Return the site files that are found without --site, and the example."""
    found = site_file.find_site()
    here = " after you trusted it" if found == site_file.candidates()[0] else ""
    entries = [
        Entry(name=str(path), about=f"found; commands that plan a run use it{here}")
        if path == found
        else Entry(name=str(path), about="not used" if path.exists() else "does not exist")
        for path in site_file.candidates()
    ]
    if named := site_file.named_site():
        about = f"{site_file.VARIABLE}; commands that plan a run use it"
        others = (
            replace(e, about=e.about.replace("found; ", "found; without it, ")) for e in entries
        )
        entries = [Entry(name=named, about=about), *others]
    about = "an example with every key: accept show site example > site.yaml"
    return (*entries, Entry(name=_EXAMPLE, about=about))


def _errors() -> tuple[Entry, ...]:
    errors = (Entry(name=code, about=text) for code, text in explanations().items())
    findings = (Entry(name=cause.code, about=_explanation(cause)) for cause in causes.Cause)
    return (*errors, *findings)


def _explanation(cause: causes.Cause) -> str:
    """Return a cause's meaning and next action, as the explanation of its code."""
    meaning, action = (
        text[:1].upper() + text[1:] for text in (cause.row.meaning, cause.row.action)
    )
    return f"{meaning}. {action}. More: accept show cause {cause}"


def _schemas() -> tuple[Entry, ...]:
    return tuple(Entry(name=what, about=str(_schema(what)["description"])) for what in Schema)


_LISTS: Final[Mapping[Listing, Callable[[], tuple[Entry, ...]]]] = {
    Listing.MACHINES: _machines,
    Listing.PROFILES: _profiles,
    Listing.SUITES: _suites,
    Listing.CHECKS: _checks,
    Listing.CAUSES: lambda: tuple(Entry(name=c, about=c.row.meaning) for c in causes.Cause),
    Listing.SIGNS: _signs,
    Listing.FAULTS: lambda: tuple(Entry(name=n, about=f.about) for n, f in FAULTS.items()),
    Listing.BACKENDS: _backends,
    Listing.SITES: _sites,
    Listing.ERRORS: _errors,
    Listing.SCHEMAS: _schemas,
}


def do_show(what: Shown, name: str, terminal: Terminal, *, machine: str, nodes: int) -> int:
    """Print a file with all defaults filled in, a run, or the page of a name.

    `machine` and `nodes` are those of the estimated times of a suite.
    """
    if what is Shown.MACHINE:
        # The values of its bases are merged into it.
        shown = replace(config.load_machine(name).value, base=())
        terminal.document(shown, _yaml(shown) + _derived_bounds(shown))
    elif what is Shown.SUITE:
        own_site = config.trusted_site()
        suite = config.load_suite(name, config.site_tools(own_site))
        times = _step_times(config.load_machine(machine), suite, own_site, nodes)
        terminal.document(suite.value, _yaml(suite.value) + times)
    elif what is Shown.SITE:
        example = resources.values() / "site.example.yaml"
        site = config.load_site(str(example) if name == _EXAMPLE else name).value
        text = example.read_text(encoding="utf-8") if name == _EXAMPLE else _yaml(site)
        terminal.document(site, text)
    elif what is Shown.CHECK:
        check = check_page(name)
        terminal.result(check, *check_text(check))
    elif what is Shown.CAUSE:
        page = _cause_page(name)
        terminal.result(page, _cause_text(page))
    elif what is Shown.FAULT:
        fault = _fault_page(name)
        terminal.result(fault, *_fault_text(fault))
    elif what is Shown.BACKEND:
        backends.load(name)
        entry = next(entry for entry in _backends() if entry.name == name)
        terminal.result(entry, f"{entry.name}: {entry.about}")
    elif what is Shown.RUN:
        runs.do_show_run(name, terminal)
    elif what is Shown.SCHEMA:
        _show_schema(name, terminal)
    else:
        error = _error(name)
        terminal.result(error, f"{error.name}\n{error.about}")
    return Exit.PASS


def _yaml(value: config.Machine | config.Suite | config.Site) -> str:
    return yaml.safe_dump(dump(value), sort_keys=False, allow_unicode=True, width=100)


def _cause_page(name: str) -> CausePage:
    """Return the section of docs/causes.md about a cause. Raises BadInput."""
    cause = causes.from_text(name)
    sign = None if cause else signs.catalog().find(name)
    cause = sign.cause if sign else cause
    if cause is None:
        raise BadInput(
            f"there is no cause {plain(name, 60)!r}",
            code=Code.CAUSE_UNKNOWN,
            hint=f"{did_you_mean(name, causes.Cause)}all causes: accept list causes; "
            "known lines of programs: accept list signs",
        )
    return CausePage(
        cause=cause,
        meaning=sign.means if sign else cause.row.meaning,
        action=sign.action if sign else cause.row.action,
        owner=cause.row.owner,
        section=resources.cause_section(cause),
        sign=SignPage(name=sign.name, layer=sign.layer, owner=sign.owner, source=sign.source)
        if sign
        else None,
    )


def _cause_text(page: CausePage) -> str:
    """Return the section about a cause, or the meaning of a sign of it."""
    if page.sign is None:
        return f"{page.cause} (owner: {page.owner})\n{page.section}"
    return (
        f"{page.sign.name} (owner: {page.sign.owner})\n{page.meaning}\n"
        f"next: {page.action}\ncause: {page.cause}\nsource: {page.sign.source}"
    )


def _fault_page(name: str) -> FaultPage:
    """Return what a fault declares. Raises BadInput."""
    if name not in FAULTS:
        raise BadInput(
            f"there is no fault {plain(name, 60)!r}",
            code=Code.FAULT_UNKNOWN,
            hint=known(name, FAULTS),
        )
    fault = FAULTS[name]
    seen_as = fault.seen_as or name
    return FaultPage(
        fault=name,
        about=fault.about,
        scope=fault.scope,
        checks=tuple(check.name for check in checks.REGISTRY.values() if seen_as in check.faults),
        causes=tuple(sorted(fault.causes)),
    )


#: How --inject names a fault, by its scope.
_INJECTED = {
    Scope.RANK: "{}@HOST:LOCALRANK",
    Scope.HOST: "{}@HOST",
    Scope.EVERYWHERE: "'{}@*'",
}


def _fault_text(page: FaultPage) -> Iterator[str | Table]:
    """Yield the page of a fault."""
    yield f"{page.fault}: {page.about}"
    rows = [
        ("inject", f"accept run --inject {_INJECTED[page.scope].format(page.fault)}"),
        ("checks", ", ".join(page.checks) or "none; the search for hosts or the network shows it"),
        ("causes", ", ".join(page.causes)),
    ]
    yield Table(rows=rows)


def _error(name: str) -> Entry:
    """Return the explanation of an error code. Raises BadInput."""
    entries = {entry.name: entry for entry in _errors()}
    if name.upper() not in entries:
        raise BadInput(
            f"there is no error code {plain(name, 60)!r}",
            code=Code.CODE_UNKNOWN,
            hint=f"{did_you_mean(name, entries)}all codes: accept list errors",
        )
    return entries[name.upper()]


def _derived_bounds(machine: config.Machine) -> str:
    """Return the bounds that follow from the hardware, as YAML comments."""
    lines = [
        f"# - {f.check} {_subject(f)}: {bound_text(f.reference())}, "
        f"{f.share:g} of {f.value:g}{f', {f.expected:g} expected' if f.expected else ''}; "
        f"{f.source}"
        for f in floors.figures(machine)[len(machine.references) :]
    ]
    return "\n".join(("# Bounds that follow from its hardware:", *lines)) if lines else ""


def _step_times(
    machine: config.Loaded[config.Machine],
    suite: config.Loaded[config.Suite],
    site: config.Loaded[config.Site] | None,
    nodes: int,
) -> str:
    """Return the estimated time of each step, and what only it finds, as YAML comments."""
    steps, _, _ = steps_of(
        Inputs(machine=machine, suite=suite, site=site, nodes=nodes, profile="default", gpus=None)
    )
    own = config.site_tools(site)
    entries = [
        (entry, check_of(entry.check, suite.document.name, own)) for entry in suite.value.checks
    ]
    lines = [f"# Estimated times on {count(nodes, 'node')} of {machine.value.name}:"]
    for step in steps:
        finds = (
            entry.finds
            for entry, check in entries
            if check.name in step.checks
            and (entry.groups or check.groups[0]) is step.groups
            and entry.profile == step.profile
            and entry.params.items() <= step.params.items()
        )
        found = "; ".join(dict.fromkeys(filter(None, finds)))
        condition = ", only if a step before it leaves a question" if step.if_open else ""
        lines.append(f"# - {step.id}: {duration(step.estimate)}{condition}")
        lines += [f"#   finds {found}"] if found else []
        named = identified_by(step.rounds) if step.groups is GroupKind.PAIRS else ""
        rounds = count(step.rounds, "round")
        lines += [f"#   {rounds} name a bad part exactly (simulated): {named}"] if named else []
    total = duration(sum(step.estimate for step in steps if not step.if_open))
    return "\n".join([*lines, f"# Together, if nothing is found: {total}"])


def _subject(figure: Figure) -> str:
    """Return what a figure applies to: a message size on some nodes, or a metric of each GPU."""
    if figure.size is None:
        return f"{figure.metric} of each {figure.device or 'GPU'}"
    domain = " of one NVLink domain" if figure.one_domain else ""
    return f"at {format_size(figure.size)}{_nodes(figure)}{domain}"


def _nodes(figure: Figure) -> str:
    low, high = figure.min_nodes or 1, figure.max_nodes
    if low == high:
        return f" on {count(low, 'node')}"
    return f" on {low} nodes or more" if high is None else f" on {low} to {high} nodes"


def _show_schema(name: str, terminal: Terminal) -> None:
    """Print a JSON Schema, with and without --json. Raises BadInput."""
    if name not in [*Schema]:
        raise BadInput(
            f"there is no schema {plain(name, 60)!r}",
            code=Code.USAGE,
            hint=f"{did_you_mean(name, Schema)}all schemas: accept list schemas",
        )
    text = json.dumps(_schema(Schema(name)), indent=1, ensure_ascii=False)
    replace(terminal, json=False).document(None, text)


def _schema(what: Schema) -> Mapping[str, object]:
    return chart_schema() if what is Schema.VALUES else schema(what.value_type)


def do_chart(terminal: Terminal) -> int:
    """Print the path of the Helm chart."""
    path = str(chart_folder())
    terminal.result(ChartPath(chart=path), path)
    return Exit.PASS
