"""Show the page of a check: its parameters, metrics and faults, and the tool that it runs."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from accept import config
from accept.config.tool_file import ToolBound, ToolFile
from accept.config.tools import LoadedTool, check_names, is_path, tool_of
from accept.config.tools import names as tool_names
from accept.core import causes, checks
from accept.core.catalog.metrics import Better
from accept.core.error_codes import Code
from accept.core.errors import BadInput
from accept.core.plan import GroupKind
from accept.core.serde import keys_of, known
from accept.core.text import command_line, duration, plain
from accept.report.console import Table


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
    #: Limits of good values of a tool, with their sources.
    bounds: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class ToolPage:
    """The program of others that a check runs, as its file defines it."""

    program: str
    #: The oldest version that works; empty: any.
    version: str
    install: str
    command: tuple[str, ...]
    #: For pairs of hosts: the command on the second one; empty: that command without `{peer}`.
    server: tuple[str, ...]
    #: Requirements of a host.
    needs: tuple[str, ...]
    #: Expected and longest duration.
    seconds: float
    timeout: float
    #: The cause if it ends with another status than 0.
    failure: causes.Cause
    meaning: str
    source: str
    #: FILE:LINE of its definition.
    file: str


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
    #: The program of others that it runs; None: a check of `accept`.
    tool: ToolPage | None = None


def check_page(name: str) -> CheckPage:
    """Return what a check declares; `name` may be the path of a tool's file. Raises BadInput."""
    own = config.trusted_tools()
    names = check_names(tool.value.name for tool in own)
    if name not in names and not is_path(name):
        tools = (*own, *filter(None, (tool_of(tool, "") for tool in tool_names())))
        running = [tool.value.name for tool in tools if _program(tool.value) == name]
        shown = [command_line("accept", "show", "check", tool) for tool in running]
        raise BadInput(
            f"there is no check {plain(name, 60)!r}",
            code=Code.CHECK_UNKNOWN,
            hint=f"checks that run it: {'; '.join(shown)}" if shown else known(name, names),
        )
    tool = tool_of(name, "", own)
    check = tool.value.check() if tool else checks.REGISTRY[name]
    results = tool.value.results if tool else {}
    defaults = check.params()
    return CheckPage(
        check=check.name,
        about=check.summary,
        groups=check.groups,
        params={
            key: Parameter(default=getattr(defaults, item.name), about=item.metadata["doc"])
            for item, key in keys_of(check.params)
        },
        metrics={
            spec.name: MetricEntry(
                unit=spec.unit,
                better=spec.better,
                bounds=tuple(map(_bound, results[spec.name].bounds if tool else ())),
            )
            for spec in check.metrics
        },
        tools=((_program(tool.value),),)
        if tool
        else tuple(tuple(tool.name for tool in tools) for tools in check.needs),
        faults=tuple(check.faults),
        tool=_tool_page(tool) if tool else None,
    )


def _program(tool: ToolFile) -> str:
    """Return the program of a tool, which a shell may start."""
    return (tool.version.command if tool.version else tool.command)[0]


def _bound(bound: ToolBound) -> str:
    """Return a limit such as "at least 2, on cpu (https://…)"."""
    limits = {"at least": bound.least, "at most": bound.most}
    text = " and ".join(
        f"{words} {value:g}" for words, value in limits.items() if value is not None
    )
    return f"{text}{f', on {bound.machine}' if bound.machine else ''} ({bound.source})"


def _tool_page(tool: LoadedTool) -> ToolPage:
    value, needs = tool.value, tool.value.needs
    return ToolPage(
        program=_program(value),
        version=value.version.least if value.version else "",
        install=value.install,
        command=value.command,
        server=value.server,
        needs=(
            *(["root"] if needs.root else []),
            *([f"GPUs of {needs.gpus_of}"] if needs.gpus_of else []),
            *needs.devices,
            *(f"capability {name}" for name in needs.capabilities),
            *([f"{needs.space} free in {value.folder}"] if needs.space else []),
        ),
        seconds=value.seconds,
        timeout=value.timeout,
        failure=value.failure.cause,
        meaning=value.failure.meaning,
        source=value.source,
        file=tool.document.where(tool.path),
    )


def _tool_rows(tool: ToolPage) -> Iterator[tuple[str, str]]:
    """Yield what the page of a check shows of the program that it runs."""

    def line(words: Sequence[str]) -> str:
        return " ".join(shlex.quote(w) if any(map(str.isspace, w)) else w for w in words)

    yield "program", f"{tool.program}{f', {tool.version} or newer' if tool.version else ''}"
    yield "install", tool.install
    yield "command", line(tool.command)
    yield "server", line(tool.server)
    yield "needs", ", ".join(tool.needs)
    yield "time", f"about {duration(tool.seconds)}, at most {duration(tool.timeout)}"
    yield "failure", f"{tool.failure}{f': {tool.meaning}' if tool.meaning else ''}"
    yield "source", tool.source
    yield "file", tool.file


def check_text(page: CheckPage) -> Iterator[str | Table]:
    """Yield the texts and tables of a check's page."""
    default, *others = page.groups
    lists = {
        "groups": (f"{default} (default)", *others),
        "tools": () if page.tool else tuple(" or ".join(names) for names in page.tools),
        "faults": page.faults,
    }
    rows = [(name, ", ".join(texts) or "none") for name, texts in lists.items()]
    if page.tool:
        rows = [*rows[:1], *(row for row in _tool_rows(page.tool) if row[1])]
    params: list[tuple[str, ...]] = [
        # An empty text and booleans as YAML writes them.
        (
            key,
            p.default if p.default and isinstance(p.default, str) else json.dumps(p.default),
            p.about,
        )
        for key, p in page.params.items()
    ]
    bounded = ("BOUNDS",) if any(metric.bounds for metric in page.metrics.values()) else ()
    metrics = [
        (name, metric.better, metric.unit, *("; ".join(metric.bounds) for _ in bounded))
        for name, metric in page.metrics.items()
    ]
    yield f"{page.check}: {page.about}"
    yield Table(rows=rows)
    for header, lines in (
        (("PARAMETER", "DEFAULT", "MEANING"), params),
        (("METRIC", "BETTER", "UNIT", *bounded), metrics),
    ):
        if lines:
            yield ""
            yield Table(header=header, rows=lines)
