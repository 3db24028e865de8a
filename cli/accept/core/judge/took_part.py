"""Whether the hosts that a table lists are those that its execution was started on.

A host has up to two names: the run's, which programs of ours print, and its own, which nccl-tests
prints up to the first dot. Several hosts may share a name of their own; what cannot be told apart
is no finding.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from accept.core.judge.evidence import Evidence
from accept.core.model import Record


def others(
    evidence: Evidence, known: Mapping[str, set[str]], record: Record, listed: Mapping[str, Any]
) -> Iterator[str]:
    """What speaks against the hosts in `listed`, each with its number of ranks, in words.

    `known`: what `named` says of the evidence.
    """
    each = record.ranks // max(1, len(record.hosts))
    if len(listed) > len(record.hosts):
        yield f"ranks ran on {len(listed)} hosts, and were started on {len(record.hosts)}"
        return
    for name, ranks in listed.items():
        hosts = known.get(_short(name), set())
        # The names of all are known where they were written down.
        if not hosts.intersection(record.hosts) and (hosts or evidence.hostnames is not None):
            yield f"ranks ran on {name[:80]}, which is none of its hosts"
            return
        most = each * (len(hosts.intersection(record.hosts)) or len(record.hosts))
        if not isinstance(ranks, int) or ranks > most or ranks % max(1, each):
            yield f"{ranks} ranks ran on {name[:80]}, {each} were started on each host"
            return


def named(evidence: Evidence) -> dict[str, set[str]]:
    """Short name -> hosts of the run that may print it. Grows with the run: once for a check."""
    known: dict[str, set[str]] = {}
    for host in evidence.hosts:
        for name in (host, (evidence.hostnames or {}).get(host, host)):
            known.setdefault(_short(name), set()).add(host)
    return known


def _short(name: str) -> str:
    return name.partition(".")[0].lower()
