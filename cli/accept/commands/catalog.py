"""List and show machines, suites, checks, back ends, runs, causes and schemas."""

from __future__ import annotations

import dataclasses
import json
import sys
from pathlib import Path
from typing import Any

from accept import backends, config
from accept.backends.protocol import Phase
from accept.commands import drill
from accept.commands.diff import Diff
from accept.commands.judge import JudgedVerdict, Reports
from accept.config import floors, resources
from accept.config.faults import Drill
from accept.config.references import Figure
from accept.core import causes, checks, evidence
from accept.core.errors import AcceptError, BadInput, Exit
from accept.core.judge.bounds import bound_text
from accept.core.serde import camel, dump, known, read, schema
from accept.core.text import count, format_size, plain
from accept.evidence import rundir
from accept.report.console import Terminal


def do_list(what: str, terminal: Terminal) -> int:
    """Print one line for each entry, its name first."""
    rows = {
        "machines": _machines,
        "suites": _suites,
        "checks": _checks,
        "backends": _backends,
        "runs": _runs,
    }[what]()
    width = max((len(row["name"]) for row in rows), default=0)
    lines = [f"{row['name']:<{width}}  {row['about']}" for row in rows]
    terminal.result({what: rows}, "\n".join(lines) or f"no {what}")
    return Exit.PASS


def _machines() -> list[dict[str, Any]]:
    machines = (config.load_machine(name).value for name in config.names("machines"))
    return [{"name": m.name, "about": m.description} for m in machines]


def _suites() -> list[dict[str, Any]]:
    suites = (config.load_suite(name).value for name in config.names("suites"))
    return [{"name": s.name, "about": s.description} for s in suites]


def _checks() -> list[dict[str, Any]]:
    rows = []
    for name in checks.names():
        check = checks.load(name)
        params = {
            camel(f.name): {"default": f.default, "about": f.metadata.get("doc", "")}
            for f in dataclasses.fields(check.params)
        }
        lines = "".join(f"\n      {k} = {v['default']}: {v['about']}" for k, v in params.items())
        about = f"{check.summary} On: {', '.join(check.groups)}.{lines}"
        rows.append({"name": name, "about": about, "groups": list(check.groups), "params": params})
    return rows


def _backends() -> list[dict[str, Any]]:
    rows = []
    for name, backend in backends.BACKENDS.items():
        text = (backend.__doc__ or "").strip().splitlines()
        rows.append({"name": name, "about": text[0] if text else ""})
    return rows


def _runs() -> list[dict[str, Any]]:
    rows = []
    for folder in rundir.listed()[::-1]:
        state = "rendered"
        if (folder / rundir.DRILL).is_file():
            state = _drill_headline(folder / rundir.DRILL)
        elif (folder / rundir.EVIDENCE).is_dir():
            try:
                state = evidence.read_verdict(folder / rundir.EVIDENCE).headline
            except AcceptError:
                state = "collected, no verdict"
        elif (folder / rundir.JOB).is_file():
            state = _submitted(folder)
        rows.append({"name": folder.name, "about": state, "folder": str(folder)})
    return rows


def _submitted(folder: Path) -> str:
    """Return the state of a run that was not collected, as far as this machine knows it."""
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


def do_show(what: str, name: str, terminal: Terminal) -> int:
    """Print a file with all defaults filled in, or a cause."""
    import yaml

    if what == "cause":
        return _show_cause(name, terminal)
    load: Any = {
        "machine": config.load_machine,
        "suite": config.load_suite,
        "site": config.load_site,
    }[what]
    value, bounds = load(name).value, ""
    if isinstance(value, config.Machine):
        # The values of its bases are merged into it.
        value = dataclasses.replace(value, base=())
        bounds = _derived_bounds(value)
    text = yaml.safe_dump(dump(value), sort_keys=False, allow_unicode=True, width=100)
    terminal.result(value, text + bounds)
    return Exit.PASS


def _show_cause(name: str, terminal: Terminal) -> int:
    """Print the section of docs/causes.md about a cause."""
    cause = causes.from_text(name)
    if cause is None:
        raise BadInput(f"there is no cause {plain(name, 60)!r}", hint=known(name, causes.Cause))
    page = resources.causes().read_text(encoding="utf-8")
    section = page.partition(f"\n### {name}\n")[2].partition("\n##")[0].strip()
    row = cause.row
    data = {"cause": name, "meaning": row.meaning, "action": row.action, "section": section}
    terminal.result(data, f"{name}\n{section}")
    return Exit.PASS


def _derived_bounds(machine: config.Machine) -> str:
    """Return the bounds that follow from the hardware, as YAML comments."""
    lines = [
        f"# - {f.check} {_subject(f)}: {bound_text(f.reference())}, "
        f"{f.share:g} of {f.value:g}; {f.source}"
        for f in floors.figures(machine)[len(machine.references) :]
    ]
    return "\n".join(("# Bounds that follow from its hardware:", *lines, "")) if lines else ""


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


#: The output of commands with --json, by the name of the command.
_OUTPUTS: dict[str, type] = {"judge": JudgedVerdict, "report": Reports, "diff": Diff}


def do_schema(what: str) -> int:
    """Print a JSON Schema, with and without --json."""
    described = schema(_OUTPUTS[what]) if what in _OUTPUTS else config.schema_for(what)
    sys.stdout.write(json.dumps(described, indent=1, ensure_ascii=False) + "\n")
    return Exit.PASS
