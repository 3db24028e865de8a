"""Report what hosts or a cluster have and lack for a run, and the permissions that a run needs."""

from __future__ import annotations

from accept import backends
from accept.commands.plan import prepare
from accept.config import Site, load_site
from accept.core.errors import Exit
from accept.core.serde import dump
from accept.plan.resolve import ClusterPlace, Options
from accept.report.console import Terminal


def do_doctor(options: Options, terminal: Terminal) -> int:
    """Print what the hosts have and lack, host by host, and which checks will run."""
    run, _ = prepare(options, terminal, probe=True)
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
    terminal.result({"needs": [dump(n) for n in needs]}, "\n".join(lines))
    return Exit.PASS if all(need.good for need in needs) else Exit.NOT_STARTED


def do_rbac(place: ClusterPlace, terminal: Terminal, *, site: str | None) -> int:
    """Print the permissions that a run on a cluster needs, as YAML."""
    loaded = load_site(site).value if site else Site()
    text = backends.CLUSTERS["kubernetes"].role(place, loaded)
    terminal.result({"yaml": text}, text)
    return Exit.PASS
