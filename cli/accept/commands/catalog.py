"""What there is and how it reads: `list`, `show`, `schema`."""

from __future__ import annotations

import dataclasses
import json
import sys
from pathlib import Path
from typing import Any

from accept import backends, config
from accept.backends.protocol import Phase
from accept.commands import drill
from accept.config import floors, resources
from accept.config.faults import Drill
from accept.config.references import Figure
from accept.core import causes, checks, evidence
from accept.core.errors import AcceptError, BadInput, Exit
from accept.core.judge.bounds import bound_text
from accept.core.serde import camel, dump, known, read
from accept.core.text import format_size, plain
from accept.evidence import rundir
from accept.report.console import Terminal


def do_list(what: str, terminal: Terminal) -> int:
    """One line a thing, its name first."""
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
    found = (config.load_machine(name).value for name in config.names("machines"))
    return [{"name": m.name, "about": m.description} for m in found]


def _suites() -> list[dict[str, Any]]:
    found = (config.load_suite(name).value for name in config.names("suites"))
    return [{"name": s.name, "about": s.description} for s in found]


def _checks() -> list[dict[str, Any]]:
    rows = []
    for name in checks.names():
        check = checks.load(name)
        params = {
            camel(f.name): {"default": f.default, "about": f.metadata.get("doc", "")}
            for f in dataclasses.fields(check.params)
        }
        shown = "".join(f"\n      {k} = {v['default']}: {v['about']}" for k, v in params.items())
        about = f"{check.summary} On: {', '.join(check.groups)}.{shown}"
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
            state = _drill(folder / rundir.DRILL)
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
        Phase.GONE: "ended, nothing is left of it",
    }.get(progress.phase, progress.text)


def _drill(path: Path) -> str:
    try:
        return drill.headline(read(Drill, json.loads(path.read_text(encoding="utf-8"))))
    except (OSError, ValueError, RecursionError):
        return "a drill whose result cannot be read"


def do_show(what: str, name: str, terminal: Terminal) -> int:
    """The file as it was read, nothing left to default, with the source of every figure."""
    import yaml

    if what == "cause":
        return _show_cause(name, terminal)
    load: Any = {
        "machine": config.load_machine,
        "suite": config.load_suite,
        "site": config.load_site,
    }[what]
    value, more = load(name).value, ""
    if isinstance(value, config.Machine):
        # The bases are in it, and the file stands alone.
        value = dataclasses.replace(value, base=())
        more = _floors(value)
    text = yaml.safe_dump(dump(value), sort_keys=False, allow_unicode=True, width=100)
    terminal.result(value, text + more)
    return Exit.PASS


def _show_cause(name: str, terminal: Terminal) -> int:
    """Its section of docs/causes.md."""
    if name not in causes.CAUSES:
        raise BadInput(f"there is no cause {plain(name, 60)!r}", hint=known(name, causes.CAUSES))
    page = resources.causes().read_text(encoding="utf-8")
    section = page.partition(f"\n### {name}\n")[2].partition("\n##")[0].strip()
    meant = causes.CAUSES[name]
    data = {"cause": name, "meaning": meant.meaning, "action": meant.action, "section": section}
    terminal.result(data, f"{name}\n{section}")
    return Exit.PASS


def _floors(machine: config.Machine) -> str:
    """The bounds that follow from its hardware, as comments: no file needs to repeat them."""
    lines = [
        f"# - {f.check} {_what(f)}: {bound_text(f.reference())}, "
        f"{f.share:g} of {f.value:g}; {f.source}"
        for f in floors.figures(machine)[len(machine.references) :]
    ]
    return "\n".join(("# Bounds that follow from its hardware:", *lines, "")) if lines else ""


def _what(figure: Figure) -> str:
    """What a figure is about: a size on some nodes, or a metric of each GPU by itself."""
    if figure.size is None:
        return f"{figure.metric} of each GPU"
    where = " of one NVLink domain" if figure.one_domain else ""
    return f"at {format_size(figure.size)}{_on(figure)}{where}"


def _on(figure: Figure) -> str:
    low, high = figure.min_nodes or 1, figure.max_nodes
    if low == high:
        return f" on {low} node{'s' * (low > 1)}"
    return f" on {low} nodes or more" if high is None else f" on {low} to {high} nodes"


def do_schema(what: str) -> int:
    """The JSON Schema, which is JSON with or without --json."""
    sys.stdout.write(json.dumps(config.schema_for(what), indent=1, ensure_ascii=False) + "\n")
    return Exit.PASS
