"""Parse faults to inject: `FAULT@HOST[:LOCALRANK]`."""

from __future__ import annotations

import re
from collections.abc import Sequence

from accept.core.catalog.faults import FAULTS, Fault, Injector, Scope
from accept.core.error_codes import Code
from accept.core.errors import BadInput
from accept.core.plan import Injection
from accept.core.serde import escaped, known

#: FAULT@HOST[:LOCALRANK]; a host is also `*` for all, or `#N` by its number from 0.
_FORM = re.compile(
    r"(?P<fault>[a-z][a-z-]*)@(?P<host>[A-Za-z0-9_][A-Za-z0-9_.-]*|\*|#[0-9]{1,4})"
    r"(?::(?P<rank>[0-9]{1,3}))?"
)
_SYNTAX = {
    Scope.RANK: "FAULT@HOST:LOCALRANK",
    Scope.HOST: "FAULT@HOST",
    Scope.EVERYWHERE: "FAULT@*",
}


def _hint() -> str:
    """Return the syntax of each scope, with its faults."""
    faults = {s: ", ".join(f.name for f in FAULTS.values() if f.scope is s) for s in Scope}
    forms = [f"{_SYNTAX[scope]} ({faults[scope]})" for scope in Scope]
    return f"write {', '.join(forms[:-1])} or {forms[-1]}"


def parse_faults(
    texts: Sequence[str], hosts: Sequence[str], ranks: int | None = None
) -> tuple[Injection, ...]:
    """Return the faults that `--inject` names; the default rank is 0.

    `hosts` are the hosts that take part; empty if they are unknown. `ranks` are those of each host;
    None if they are unknown. Raises BadInput.
    """
    faults = []
    for text in texts:
        match = _FORM.fullmatch(text)
        fault = FAULTS.get(match["fault"]) if match else None
        if not match or not fault or not _fits(fault, match["host"], match["rank"]):
            raise BadInput(
                f"--inject {escaped(text)!r} is not a valid fault",
                code=Code.FAULT_SYNTAX,
                hint=_hint(),
            )
        host = match["host"]
        if hosts and host[0] not in "*#" and host not in hosts:
            raise BadInput(
                f"--inject {escaped(text)}: {escaped(host)} is not a host of this run",
                code=Code.FAULT_HOST,
                hint=known(host, hosts, "hosts"),
            )
        rank = int(match["rank"] or 0) if fault.scope is Scope.RANK else None
        if ranks and rank and rank >= ranks:
            raise BadInput(
                f"--inject {escaped(text)}: {escaped(host)} has no local rank {rank} in this run",
                code=Code.FAULT_HOST,
                hint=f"local ranks: {', '.join(map(str, range(ranks)))}",
            )
        faults.append(Injection(fault=fault.name, host=host, rank=rank))
    return tuple(faults)


def _fits(fault: Fault, host: str, rank: str | None) -> bool:
    """Return True if the fault can be injected at that host and rank."""
    if fault.scope is Scope.RANK:
        return host[0] not in "*#"
    if rank or (host == "*") != (fault.scope is Scope.EVERYWHERE):
        return False
    return not host.startswith("#") or fault.injector is Injector.PORT
