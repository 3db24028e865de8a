"""Report what hosts or a cluster have and lack for a run, and the permissions that a run needs."""

from __future__ import annotations

import re
import shutil
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from accept import backends
from accept.backends.requirements import Need, Requirement
from accept.commands.plan import prepare
from accept.core.error_codes import Code
from accept.core.errors import Exit, warning
from accept.core.text import count, folded, shortened
from accept.plan.resolve import Options, Resolved, site_of
from accept.report.console import Table, Terminal


@dataclass(frozen=True, kw_only=True)
class Requirements:
    """The requirements of a run, met and missing: `accept doctor`."""

    #: True if no requirement is missing.
    ready: bool
    needs: tuple[Need, ...]


@dataclass(frozen=True, kw_only=True)
class Role:
    """The permissions that a run on a cluster needs: `accept doctor --rbac`."""

    yaml: str


def do_doctor(options: Options, terminal: Terminal, *, run: str) -> int:
    """Print what the hosts have and lack, and which checks will run.

    `run` is the command that starts the run.
    """
    if other := _other_program():
        text = f"{other} is another program called accept; this one is gpu-accept, too"
        terminal.notice(warning(Code.NAME_TAKEN, text))
    resolved, _ = prepare(options, terminal)
    needs = backends.load(resolved.backend).doctor(resolved)
    ready = all(need.good for need in needs)
    rows = [*_rows(needs, resolved)]
    terminal.result(Requirements(ready=ready, needs=needs), Table(rows=rows))
    terminal.suggest(run if ready else "correct what is missing, and repeat this")
    return Exit.PASS if ready else Exit.NOT_STARTED


def _rows(needs: Sequence[Need], run: Resolved) -> Iterator[tuple[str, str]]:
    """Yield the requirements, those of hosts with the same result together, and the conclusion."""
    checks = run.plan.checks
    for alike in _grouped(needs):
        need = alike[0]
        state = "unknown" if not need.checked else "ok" if need.good else "missing"
        yield state, f"{_hosts(alike)}: {need.what}: {need.found}"
        if not need.good and need.checks:
            yield "", f"needed by {shortened(need.checks, 4)}"
        if need.advice:
            yield "", need.advice
    left_out = _left_out(needs, run)
    counted = [need for need in needs if need.host not in left_out]
    lacking = {check for need in counted if not need.good for check in need.checks}
    if any(not (need.good or need.checks) for need in counted):
        # Without it no run starts.
        lacking = {*checks}
    usable = [host for host in run.hosts if host not in left_out]
    where = f" on {len(usable)} of {count(len(run.hosts), 'host')}: {folded(usable)}"
    will_run = ", ".join(name for name in checks if name not in lacking)
    yield "will run", f"{will_run}{where if left_out else ''}" if will_run else "nothing"
    if lacking:
        yield "will not", ", ".join(name for name in checks if name in lacking)
    missing = [need for need in needs if not need.good]
    if missing:
        bad = folded(tuple(dict.fromkeys(need.host for need in missing)))
        yield "not ready", f"{count(len(missing), 'requirement')} missing on {bad}"
    else:
        taking_part = (n.host for n in needs if n.code is not Requirement.NODE_LEFT_OUT)
        hosts = folded(tuple(dict.fromkeys(taking_part)))
        unknown = tuple(dict.fromkeys(need.what for need in needs if not need.checked))
        open_questions = f"; not checked: {', '.join(unknown)}" if unknown else ""
        yield "ready", f"nothing is missing on {hosts or 'this machine'}{open_questions}"


def _left_out(needs: Sequence[Need], run: Resolved) -> set[str]:
    """Return the hosts without which a run over ssh starts on the others; none if it does not."""
    if run.backend != "ssh" or run.plan.require_all_nodes:
        return set()
    unusable = {
        need.host
        for need in needs
        if not need.good
        and need.code not in (Requirement.GPUS_IDLE, Requirement.OWN_MACHINE)
        and (not need.checks or {*run.plan.checks} <= {*need.checks})
    }
    return unusable if unusable < {*run.hosts} else set()


def _grouped(needs: Sequence[Need]) -> list[list[Need]]:
    """Return the needs in groups that differ only in their host, in order of their first."""
    groups: dict[tuple[object, ...], list[Need]] = {}
    for need in needs:
        # Messages of ssh contain the name of the host.
        own = re.compile(rf"(?<![\w.-]){re.escape(need.host)}(?![\w-])")
        found, advice = own.sub("", need.found), own.sub("", need.advice)
        key = (need.code, need.what, need.good, need.checked, found, need.checks, advice)
        groups.setdefault(key, []).append(need)
    return [*groups.values()]


def _hosts(needs: Sequence[Need]) -> str:
    hosts = tuple(dict.fromkeys(need.host for need in needs))
    return hosts[0] if len(hosts) == 1 else f"{len(hosts)} hosts: {folded(hosts)}"


def _other_program() -> str:
    """Return the program that `accept` starts in a shell, if it is not this one; else ""."""
    first = shutil.which("accept")
    here = {Path(sys.argv[0]).parent.resolve(), Path(sys.executable).parent.resolve()}
    if first is None or Path(first).parent.resolve() in here:
        return ""
    return "" if b"accept.__main__" in Path(first).read_bytes()[:4096] else first


def do_rbac(options: Options, terminal: Terminal) -> int:
    """Print the permissions that a run on a cluster needs, as YAML."""
    text = backends.CLUSTER.role(options.place, site_of(options))
    terminal.document(Role(yaml=text), text)
    return Exit.PASS
