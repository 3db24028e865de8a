"""Which network NCCL used, against the one that the machine promises.

A fall-back to plain sockets works, and is many times slower; NCCL says so in a line of its own log
and nowhere else. The reader of nccl-tests' output keeps it as the fact `nccl-networks`: names of
networks, each with the hosts that said so.
"""

from __future__ import annotations

from collections.abc import Iterator

from accept.core.checks import Evidence
from accept.core.model import Finding, Problem, Record, State

_FACT = "nccl-networks"


def _between_hosts(evidence: Evidence) -> list[Record]:
    """Finished executions whose ranks had to use a network."""
    return [r for r in evidence.records if len(r.hosts) > 1 and r.exit == 0]


def problems(evidence: Evidence) -> Iterator[Problem]:
    """Hosts that used another network than the promised one."""
    promised = evidence.plan.machine.transport
    told: set[tuple[str, str]] = set()
    for record in _between_hosts(evidence) if promised else ():
        for fact in record.facts:
            if fact.name != _FACT or not isinstance(fact.value, dict):
                continue
            for network, hosts in fact.value.items():
                if promised.lower() in str(network).lower():
                    continue
                for host in hosts if isinstance(hosts, list) else ():
                    if (str(network), str(host)) not in told:
                        told.add((str(network), str(host)))
                        known = host if host in evidence.hosts else None
                        said = f"{host} used the network {network}; {promised} is promised"
                        yield Problem(cause="transport-fallback", message=said, host=known)


def unsaid(evidence: Evidence) -> list[Finding]:
    """A finding where a network is promised and nothing says which one was used."""
    records = _between_hosts(evidence) if evidence.plan.machine.transport else []
    said = any(fact.name == _FACT for record in records for fact in record.facts)
    if not records or said or evidence.partial:
        return []
    return [
        Finding(
            check=evidence.check,
            judgement="correctness",
            state=State.INCONCLUSIVE,
            cause="no-measurement",
            message=f"nothing says which network NCCL used; {evidence.plan.machine.transport} is "
            "promised. NCCL_DEBUG=INFO makes NCCL say it",
        )
    ]
