"""Merge accusations into one list of suspects, each named once."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType

from accept.core.causes import Cause
from accept.core.judge.findings import first_logs
from accept.core.records import Problem, Record
from accept.core.table import root_problems
from accept.core.verdict import Part, Strength, Suspect, SuspectKind

#: Worst first, or in the order of reports.
_CAUSES, _STRENGTHS, _KINDS = tuple(Cause), tuple(Strength), tuple(SuspectKind)
#: The step that finds the hosts and checks which of them are still alive.
HOSTS_STEP = "00-hosts"

#: Host -> number of a GPU -> the NICs that NCCL used for it.
NicsOfGpus = Mapping[str, Mapping[int, Collection[str]]]
_OF_HOST = (SuspectKind.NODE, SuspectKind.GPU)


def from_records(records: Iterable[Record], host_count: int) -> Iterator[Suspect]:
    """Yield the suspects that a program, the launcher or the coordinator named.

    If one cause names more than half of the `host_count` hosts in one execution, the fault is in
    something they share, and no host is accused. Hosts that never answered are always named.
    """
    for record in records:
        if record.problems:
            limit = host_count if record.step != HOSTS_STEP else len(record.problems) * 2
            yield from from_problems(root_problems(record.problems), record.log, limit)


def from_problems(problems: Sequence[Problem], log: str, host_count: int) -> Iterator[Suspect]:
    """Yield the suspects that problems name; `host_count` as for `from_records`."""
    hosts: dict[Cause, set[str]] = {}
    for problem in problems:
        if problem.host:
            hosts.setdefault(problem.cause, set()).add(problem.host)
    for problem in problems:
        shared = len(hosts.get(problem.cause, ()))
        if not problem.host or (shared > 1 and shared * 2 > host_count):
            continue
        host_or_nic = SuspectKind.NIC if problem.nic else SuspectKind.NODE
        yield Suspect(
            kind=SuspectKind.GPU if problem.gpu else host_or_nic,
            hosts=(problem.host,),
            device=problem.gpu or problem.nic or None,
            cause=problem.cause,
            strength=Strength.MODERATE if problem.cause.row.consequence else Strength.STRONG,
            why=problem.message or problem.cause.row.meaning,
            evidence=first_logs([log]),
        )


def merged(
    suspects: Iterable[Suspect], hosts: Sequence[str], nics: NicsOfGpus = MappingProxyType({})
) -> tuple[Suspect, ...]:
    """Return each suspect once, with its most serious cause and all evidence.

    Wrong data comes first, then the strongest evidence. A missing GPU is more serious than its
    consequences, such as a value below its bound. A link that an accused node explains is left out,
    and a rail that a leaf explains.
    """
    suspects = list(suspects)
    by_part: dict[Part, list[Suspect]] = {}
    # A GPU or host that is slow by itself has no fault of its NIC.
    slow_alone = {
        host
        for suspect in suspects
        if suspect.kind in _OF_HOST and suspect.cause.row.slow and not suspect.pairs
        for host in suspect.hosts
    }
    for named in suspects:
        suspect = _of_nic(named, nics) if slow_alone.isdisjoint(named.hosts) else named
        by_part.setdefault(suspect.part, []).append(suspect)
    result = []
    for same in by_part.values():
        no_gpu = any(suspect.cause.row.no_gpu for suspect in same)
        same.sort(
            key=lambda s: (
                no_gpu and (s.cause.row.consequence or s.cause.row.follows_no_gpu),
                s.cause is not Cause.WRONG_DATA,
                _STRENGTHS.index(s.strength),
                _CAUSES.index(s.cause),
            )
        )
        first = same[0]
        others = tuple(dict.fromkeys(s.cause for s in same if s.cause != first.cause))
        in_pairs = next((s for s in same if s.pairs), first)
        counts = f"; {in_pairs.why}" if in_pairs.why != first.why else ""
        result.append(
            replace(
                first,
                why=first.why + counts + (f" (also {', '.join(others[:4])})" if others else ""),
                pairs=in_pairs.pairs,
                evidence=first_logs(log for suspect in same for log in suspect.evidence),
            )
        )
    order = {host: index for index, host in enumerate(hosts)}
    blamed = (s for s in result if s.kind is SuspectKind.NODE and s.strength is not Strength.WEAK)
    nodes = {host for suspect in blamed for host in suspect.hosts}
    leaves = {s.device for s in result if s.kind is SuspectKind.LEAF}
    kept = [
        s
        for s in _merged_parts(result, slow_alone, nics)
        if not (s.kind is SuspectKind.LINK and not nodes.isdisjoint(s.hosts))
        and not (s.kind is SuspectKind.RAIL and s.device in leaves)
    ]
    kept.sort(
        key=lambda s: (
            s.cause is not Cause.WRONG_DATA,
            _STRENGTHS.index(s.strength),
            s.of_network,
            _KINDS.index(s.kind),
            [order.get(host, len(order)) for host in s.hosts],
            s.name,
        )
    )
    return tuple(kept)


def _of_nic(suspect: Suspect, nics: NicsOfGpus) -> Suspect:
    """Return a GPU that is slow only in pairs as its NIC, if no other GPU uses that NIC."""
    slow_gpu = suspect.kind is SuspectKind.GPU and suspect.cause.row.slow and suspect.pairs
    if not slow_gpu or suspect.device is None:
        return suspect
    nic = nic_of(nics.get(suspect.hosts[0], {}), (int(suspect.device),))
    return replace(suspect, kind=SuspectKind.NIC, device=nic) if nic else suspect


def _merged_parts(
    suspects: Sequence[Suspect], slow_alone: set[str], nics_of: NicsOfGpus
) -> list[Suspect]:
    """Merge the suspects of one host that have one likely reason: the most specific part is named.

    A NIC with errors explains a host, or a GPU, that is slow only together with other hosts. A GPU
    explains its node if both have a fault of one sort. Several NICs or GPUs explain nothing.
    """
    result = list(suspects)
    for host in dict.fromkeys(s.hosts for s in suspects if len(s.hosts) == 1):
        own = [s for s in suspects if s.hosts == host]
        nics = [s for s in own if s.kind is SuspectKind.NIC and s.strength is not Strength.WEAK]
        slow = [s for s in own if s.kind in _OF_HOST and _sort(s.cause) == "slow"]
        if len(nics) == 1 and slow and host[0] not in slow_alone:
            used = {str(gpu): names for gpu, names in nics_of.get(host[0], {}).items()}
            name = nics[0].device
            if all(name in used.get(s.device or "", (name,)) for s in slow):
                _fold(result, nics[0], slow)
                continue
        gpus = [s for s in own if s.kind is SuspectKind.GPU]
        if len(gpus) == 1 and (sort := _sort(gpus[0].cause)):
            weak = gpus[0].strength is Strength.WEAK
            nodes = [s for s in own if s.kind is SuspectKind.NODE and _sort(s.cause) == sort]
            _fold(result, gpus[0], [s for s in nodes if s.strength is Strength.WEAK or not weak])
    return result


def _fold(suspects: list[Suspect], part: Suspect, others: Sequence[Suspect]) -> None:
    """Replace a part, and others that it explains, by the part with all evidence."""
    why = [f"; {'its host' if o.kind is SuspectKind.NODE else o.name}: {o.why}" for o in others]
    suspects[suspects.index(part)] = replace(
        part,
        why="".join((part.why, *why)),
        pairs=part.pairs or next((o.pairs for o in others if o.pairs), ()),
        evidence=first_logs(log for s in (part, *others) for log in s.evidence),
    )
    for other in others:
        suspects.remove(other)


def _sort(cause: Cause) -> str | None:
    """Return the sort of a fault that a part and its host can have in common; None for others."""
    if cause.row.slow or cause is Cause.PAUSES:
        return "slow"
    return "wrong" if cause is Cause.WRONG_DATA else None


def nic_of(by_gpu: Mapping[int, Collection[str]], gpus: Collection[int]) -> str:
    """Return the NIC that these GPUs of a host use, and no other GPU; empty: there is none.

    `by_gpu`: number of a GPU of the host -> the NICs that NCCL used for it.
    """
    used = {frozenset(by_gpu.get(gpu, ())) for gpu in gpus}
    shared = next(iter(used), frozenset())
    others = (names for gpu, names in by_gpu.items() if gpu not in gpus)
    is_one = len(used) == len(shared) == 1 and all(shared.isdisjoint(o) for o in others)
    return min(shared) if is_one else ""
