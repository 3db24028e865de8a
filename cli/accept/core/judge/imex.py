"""Judge what the IMEX services of hosts report about their NVLink domain."""

from __future__ import annotations

import re
from collections.abc import Container, Mapping

from accept.core.causes import Cause
from accept.core.facts import Imex, Inventory
from accept.core.judge.findings import Problems
from accept.core.records import Problem
from accept.core.text import count, shortened

#: Words of nvidia-imex-ctl if the service is configured, but does not serve this host.
_NO_SERVICE = re.compile(r"failed to connect|refused|no answer|timed out|not a node", re.IGNORECASE)


def problems(inventories: Mapping[str, Inventory]) -> Problems:
    """Return the hosts that IMEX lost, services that do not answer, and notes.

    A host is lost if most others of its domain have no connection with it. If no majority names a
    host, the failed connections are reported without one. A host that waits for lost nodes is not
    blamed, and neither is a domain that is only DEGRADED: healthy ones report that, too.
    """
    views = {host: i.imex for host, i in inventories.items() if i.imex and i.imex.state}
    by_address = _hosts_by_address(views, inventories)
    found: list[Problem] = []
    notes: list[str] = []
    links: dict[tuple[str, ...], str] = {}
    for address in dict.fromkeys(a for view in views.values() for a in view.lost):
        host = by_address.get(address)
        others = {name: v for name, v in views.items() if name != host and address in v.connections}
        seeing = {name: view for name, view in others.items() if address in view.lost}
        if host is None:
            notes.append(_lost_text(address, seeing, len(others)))
        elif len(seeing) > 1 and 2 * len(seeing) > len(others):
            found.append(_problem(_lost_text(address, seeing, len(others), "it"), host))
        else:
            for name, view in seeing.items():
                links.setdefault(tuple(sorted((name, host))), view.connections[address])
    for host, view in views.items():
        waits = view.lost and view.state.startswith("WAITING")
        # Lost hosts explain a service that is not ready.
        if view.state != "READY" and not waits and by_address.keys().isdisjoint(view.lost):
            found.append(
                _problem(f"its IMEX service is {view.state} instead of READY; see its log", host)
            )
    named = {problem.host for problem in found}
    pairs = [
        f"{' - '.join(pair)} ({state})"
        for pair, state in sorted(links.items())
        if named.isdisjoint(pair)
    ]
    if pairs:
        text = f"the IMEX services of these hosts are not connected: {shortened(pairs, 4)}"
        found.append(_problem(text))
    unclear = []
    down = [host for host, view in views.items() if view.domain == "DOWN"]
    if down and not found:
        states = ", ".join(sorted({views[host].state for host in down}))
        text = f"the IMEX services of {shortened(down, 4)} report that their domain is DOWN, and "
        unclear = [_problem(f"{text}themselves {states}; check nvidia-imex-ctl -N")]
    # A host that others list as a node takes part, whatever its own service reports.
    listed = {by_address.get(address) for view in views.values() for address in view.connections}
    silent = _silent({h: i for h, i in inventories.items() if h not in named}, inventories, listed)
    return Problems(found + silent.problems, unclear + silent.unclear, notes + silent.notes)


def _problem(text: str, host: str | None = None) -> Problem:
    return Problem(cause=Cause.FABRIC_MANAGER, message=text, host=host)


def _lost_text(address: str, seeing: Mapping[str, Imex], others: int, name: str = "") -> str:
    """Return what services report about a lost node; without a `name` it is outside of the run."""
    views = seeing.values()
    if not name:
        names = {view.names.get(address) or address for view in views}
        name = f"{', '.join(sorted(names))}, which is not part of the run"
    states = ", ".join(sorted({view.connections[address] for view in views}))
    domain = ", ".join(sorted({view.domain for view in views if view.domain}))
    text = f"IMEX of {len(seeing)} of {count(others, 'other host')} is not "
    return f"{text}connected with {name} ({states}; the domain is {domain or 'unknown'})"


def _hosts_by_address(
    views: Mapping[str, Imex], inventories: Mapping[str, Inventory]
) -> dict[str, str]:
    """Return the hosts of the run by the addresses of their IMEX services.

    A service knows its own address best; others may know a host only by its name.
    """
    found = {view.host: host for host, view in views.items()}
    for view in views.values():
        for address, name in view.names.items():
            if name in inventories:
                found.setdefault(address, name)
    return found


def _silent(
    asked: Mapping[str, Inventory],
    inventories: Mapping[str, Inventory],
    listed: Container[str | None],
) -> Problems:
    """Return the `asked` hosts whose IMEX service showed no state; others have `listed` some."""
    found = Problems([], [], [])
    for host, inventory in asked.items():
        if not inventory.domain or inventory.imex is None or inventory.imex.state:
            continue
        words = inventory.imex.words
        text = f"its IMEX service showed no state: {words or 'an unknown answer'}"
        same = [i for h, i in inventories.items() if h != host and i.domain == inventory.domain]
        joined = [i.imex for i in same if i.imex and i.imex.state]
        connected = [view for view in joined if not view.lost]
        if not joined and not _NO_SERVICE.search(words):
            found.notes.append(f"{host}: {text}")
        elif host not in listed and len(connected) > 1 and 2 * len(connected) > len(same):
            text += f"; {len(connected)} of {count(len(same), 'other host')} are connected "
            found.problems.append(_problem(f"{text}without it", host))
        else:
            found.unclear.append(_problem(text, host))
    return found
