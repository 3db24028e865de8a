"""Which network NCCL used, against the one that the machine promises.

A fall-back to plain sockets works, and is many times slower; NCCL says so in a line of its own log
and nowhere else. The reader of nccl-tests' output keeps it as the fact `nccl-networks`: names of
networks, each with the hosts that said so. As quiet is a network that cannot reach GPU memory (no
GDRDMA), and are GPUs of one host that do not reach each other: the fact `nccl-detours`.
"""

from __future__ import annotations

from collections.abc import Iterator

from accept.core.judge.evidence import Evidence
from accept.core.model import Finding, PlannedMachine, Problem, Record, State

_FACT, _DETOURS = "nccl-networks", "nccl-detours"
_BETWEEN_GPUS = {
    "SHM": "moved data between its GPUs through shared memory",
    "P2P off": "says that P2P is disabled between its GPUs",
}
_AROUND = "moved data between its GPUs over the network"


def _between_hosts(evidence: Evidence) -> list[Record]:
    """Finished executions whose ranks had to use a network."""
    return [r for r in evidence.records if len(r.hosts) > 1 and r.exit == 0]


def transport_problems(evidence: Evidence) -> Iterator[Problem]:
    """Hosts that used another network, or another way to it or between GPUs, than is promised."""
    told: set[tuple[str, str]] = set()
    for said, host in _ways(evidence):
        if (said, host) not in told:
            told.add((said, host))
            known = host if host in evidence.hosts else None
            yield Problem(cause="transport-fallback", message=f"{host} {said}", host=known)


def _ways(evidence: Evidence) -> Iterator[tuple[str, str]]:
    """What each host used that it should not have: in words, and the host."""
    machine = evidence.plan.machine
    promised = machine.transport
    for record in _between_hosts(evidence) if promised else ():
        for network, host in _said(record, _FACT):
            if not _kept(machine, network):
                yield f"used the network {network}; {promised} is promised", host
    for record in evidence.records:
        alone = len(record.hosts) == 1
        for way, host in _said(record, _DETOURS):
            _, net, network = way.partition("NET/")
            if net and machine.gpu_direct and _kept(machine, network) and not alone:
                yield f"used {network} without GDRDMA: data go through host memory", host
            elif machine.peer_to_peer and (way in _BETWEEN_GPUS or (way == "NET" and alone)):
                yield f"{_BETWEEN_GPUS.get(way, _AROUND)}; NVLink is promised", host


def _kept(machine: PlannedMachine, network: str) -> bool:
    """Whether what NCCL calls the network is the promised one."""
    names = (machine.transport, *machine.transport_aliases)
    return any(name.lower() in network.lower() for name in names)


def _said(record: Record, name: str) -> Iterator[tuple[str, str]]:
    for fact in record.facts:
        if fact.name == name and isinstance(fact.value, dict):
            for way, hosts in fact.value.items():
                for host in hosts if isinstance(hosts, list) else ():
                    yield str(way)[:80], str(host)


def transport_unknown(evidence: Evidence) -> list[Finding]:
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
            message="the logs do not show which network NCCL used (expected "
            f"{evidence.plan.machine.transport}); rerun with NCCL_DEBUG=INFO",
        )
    ]
