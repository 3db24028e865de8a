"""Report what hosts or a cluster have and lack for a run, and the permissions that a run needs."""

from __future__ import annotations

from dataclasses import dataclass

from accept import backends
from accept.backends.requirements import Need
from accept.commands.prepare import prepare
from accept.core.errors import Exit
from accept.plan.resolve import Options, site_of
from accept.report.console import Terminal


@dataclass(frozen=True, kw_only=True)
class Requirements:
    """The requirements of a run, met and missing: `accept doctor`."""

    needs: tuple[Need, ...]


@dataclass(frozen=True, kw_only=True)
class Role:
    """The permissions that a run on a cluster needs: `accept doctor --rbac`."""

    yaml: str


def do_doctor(options: Options, terminal: Terminal) -> int:
    """Print what the hosts have and lack, host by host, and which checks will run."""
    run, _ = prepare(options, terminal)
    needs = backends.load(run.backend).doctor(run, say=terminal.progress)
    lines = []
    for need in needs:
        mark = "ok     " if need.good else "missing"
        checks = f"  (for {', '.join(need.checks)})" if need.checks else ""
        lines.append(f"{mark}  {need.host}: {need.what}: {need.found}{checks}")
        if need.advice:
            lines.append(f"         {need.advice}")
    lacking = {c for need in needs if not need.good for c in need.checks}
    names = tuple(dict.fromkeys(c for step in run.plan.steps for c in step.checks))
    lines.append("will run: " + (", ".join(c for c in names if c not in lacking) or "nothing"))
    if lacking:
        lines.append("will not: " + ", ".join(c for c in names if c in lacking))
    terminal.result(Requirements(needs=needs), "\n".join(lines))
    return Exit.PASS if all(need.good for need in needs) else Exit.NOT_STARTED


def do_rbac(options: Options, terminal: Terminal) -> int:
    """Print the permissions that a run on a cluster needs, as YAML."""
    text = backends.load_cluster().role(options.place, site_of(options))
    terminal.result(Role(yaml=text), text)
    return Exit.PASS
