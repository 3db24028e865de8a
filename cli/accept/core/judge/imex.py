"""Judge what the IMEX services of hosts report about their NVLink domain."""

from __future__ import annotations

import re
from collections.abc import Container, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import NamedTuple

from accept.core.causes import Cause
from accept.core.facts import Imex, Inventory
from accept.core.judge.findings import Problems
from accept.core.model import Problem
from accept.core.text import count, shortened

#: Words of nvidia-imex-ctl if the service is configured, but does not serve this host.
_NO_SERVICE = re.compile(r"failed to connect|refused|no answer|timed out|not a node", re.IGNORECASE)


class _Lost(NamedTuple):
    """A node with which IMEX services of other hosts are not connected."""

    address: str
    #: None: it is not part of the run.
    host: str | None
    #: The other hosts whose services list it, and those that are not connected with it.
    others: Mapping[str, Imex]
    seeing: Mapping[str, Imex]

    @property
    def is_named(self) -> bool:
        """Return True if the node is a host that most others, and at least two, have lost."""
        several = len(self.seeing) > 1 and 2 * len(self.seeing) > len(self.others)
        return self.host is not None and several

    def problem(self) -> Problem:
        """Return what the services report about the node."""
        host, name = self.host, "it"
        if host is None:
            names = {view.names.get(self.address) or self.address for view in self.seeing.values()}
            name = f"{', '.join(sorted(names))}, which is not part of the run"
        views = self.seeing.values()
        states = ", ".join(sorted({view.connections[self.address] for view in views}))
        domain = ", ".join(sorted({view.domain for view in views if view.domain}))
        text = f"IMEX of {len(self.seeing)} of {count(len(self.others), 'other host')} is not "
        text += f"connected with {name} ({states}; the domain is {domain or 'unknown'})"
        return Problem(cause=Cause.FABRIC_MANAGER, message=text, host=host)


def problems(inventories: Mapping[str, Inventory]) -> Problems:
    """Return the hosts that IMEX lost, services that do not answer, and notes.

    A host is lost if most others of its domain have no connection with it. If no majority names a
    host, the failed connections are reported without one. A host that waits for lost nodes is not
    blamed, and neither is a domain that is only DEGRADED: healthy ones report that, too.
    """
    views = {host: i.imex for host, i in inventories.items() if i.imex and i.imex.state}
    by_address = _hosts_by_address(views, inventories)
    lost = [*_lost_nodes(views, by_address)]
    found = [one.problem() for one in lost if one.is_named]
    found += _not_ready(views, by_address)
    named = {problem.host for problem in found}
    found += _failed_connections(lost, named)
    notes = [one.problem().message for one in lost if one.host is None]
    unclear = [] if found else [*_domains_down(views)]
    # A host that others list as a node takes part, whatever its own service reports.
    listed = {by_address.get(address) for view in views.values() for address in view.connections}
    silent = _silent({h: i for h, i in inventories.items() if h not in named}, inventories, listed)
    return Problems(found + silent.problems, unclear + silent.unclear, notes + silent.notes)


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


def _lost_nodes(views: Mapping[str, Imex], by_address: Mapping[str, str]) -> Iterator[_Lost]:
    """Yield the nodes with which a service is not connected."""
    for address in dict.fromkeys(a for view in views.values() for a in view.lost):
        host = by_address.get(address)
        others = {name: v for name, v in views.items() if name != host and address in v.connections}
        seeing = {name: view for name, view in others.items() if address in view.lost}
        yield _Lost(address, host, others, seeing)


def _not_ready(views: Mapping[str, Imex], by_address: Mapping[str, str]) -> Iterator[Problem]:
    """Yield the hosts whose service is not ready, and which lost hosts do not explain that."""
    for host, view in views.items():
        waits = view.lost and view.state.startswith("WAITING")
        if view.state != "READY" and not waits and by_address.keys().isdisjoint(view.lost):
            text = f"its IMEX service is {view.state} instead of READY; see its log"
            yield Problem(cause=Cause.FABRIC_MANAGER, message=text, host=host)


def _failed_connections(lost: Iterable[_Lost], named: Container[str | None]) -> Iterator[Problem]:
    """Yield one problem with the failed connections between hosts that are not `named`."""
    links: dict[tuple[str, ...], str] = {}
    for one in lost:
        if one.host is None or one.is_named:
            continue
        for name, view in one.seeing.items():
            links.setdefault(tuple(sorted((name, one.host))), view.connections[one.address])
    pairs = [
        f"{' - '.join(hosts)} ({links[hosts]})"
        for hosts in sorted(links)
        if not any(host in named for host in hosts)
    ]
    if pairs:
        text = f"the IMEX services of these hosts are not connected: {shortened(pairs, 4)}"
        yield Problem(cause=Cause.FABRIC_MANAGER, message=text)


def _domains_down(views: Mapping[str, Imex]) -> Iterator[Problem]:
    """Yield one problem with the hosts whose service reports that the domain is down."""
    if down := [host for host, view in views.items() if view.domain == "DOWN"]:
        states = ", ".join(sorted({views[host].state for host in down}))
        text = f"the IMEX services of {shortened(down, 4)} report that their domain is DOWN, and "
        text += f"themselves {states}; check nvidia-imex-ctl -N"
        yield Problem(cause=Cause.FABRIC_MANAGER, message=text)


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
        problem = Problem(cause=Cause.FABRIC_MANAGER, message=text, host=host)
        same = [i for h, i in inventories.items() if h != host and i.domain == inventory.domain]
        joined = [i.imex for i in same if i.imex and i.imex.state]
        connected = [view for view in joined if not view.lost]
        if not joined and not _NO_SERVICE.search(words):
            found.notes.append(f"{host}: {text}")
        elif host not in listed and len(connected) > 1 and 2 * len(connected) > len(same):
            text += f"; {len(connected)} of {count(len(same), 'other host')} are connected "
            found.problems.append(replace(problem, message=text + "without it"))
        else:
            found.unclear.append(problem)
    return found
