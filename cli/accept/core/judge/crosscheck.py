"""Check suspects against other collectives and against executions on other GPUs.

Logs of several kinds show the same host in several ways. They show which of its GPUs is bad,
whether it is slow only in one collective, and whether another suspect explains it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from accept.core.facts import GPUS
from accept.core.judge.evidence import Evidence, Share
from accept.core.judge.robust_stats import median_of, spread
from accept.core.model import Record, Step, Strength, Suspect, SuspectKind
from accept.core.table import Outcome

#: One execution in this many may contradict the GPU that is named.
_EXECUTIONS_PER_EXCEPTION = 10


def shares_by_log(scored: Iterable[Evidence]) -> dict[str, list[Share]]:
    """Return, by log, the result of each execution as a share of the median of its peers."""
    result: dict[str, list[Share]] = {}
    for evidence in scored:
        for step in evidence.steps:
            for share in _shares(evidence, step):
                result.setdefault(share.record.log, []).append(share)
    return result


def _shares(part: Evidence, step: Step) -> Iterator[Share]:
    """Yield the share of each execution of one step. There are none without enough peers."""
    results = part.results(step=step)
    peers = spread(results.scores, part.plan.machine.noise)
    if peers is None or peers.median <= 0:
        return
    for row in results:
        if row.outcome is not Outcome.MISSING:
            share = row.share_of(peers.median) or 0.0
            sigma = peers.sigma / peers.median
            yield Share(row.execution.record, share, sigma)


def without_explained(
    suspects: Sequence[Suspect], by_log: Mapping[str, Sequence[Share]]
) -> tuple[Suspect, ...]:
    """Return the suspects that no stronger one explains; a GPU replaces its node if it is known."""
    strong = {host for s in suspects if s.strength is Strength.STRONG for host in s.hosts[:1]}
    kept = [suspect for suspect in suspects if not _is_explained(suspect, strong, by_log)]
    shares = [share for shares_of_log in by_log.values() for share in shares_of_log]
    return tuple(_narrowed(s, shares) if s.kind is SuspectKind.NODE else s for s in kept)


def _is_explained(
    suspect: Suspect, strong: set[str], by_log: Mapping[str, Sequence[Share]]
) -> bool:
    """Return True if a strong suspect took part in every execution that accuses a weaker one."""
    if suspect.strength is Strength.STRONG or suspect.kind not in (
        SuspectKind.NODE,
        SuspectKind.LINK,
    ):
        return False
    others = strong.difference(suspect.hosts[:1])
    logs = [by_log.get(log, ()) for log in suspect.evidence]
    return bool(logs) and all(
        any(not others.isdisjoint(share.record.hosts) for share in shares) for shares in logs
    )


def _narrowed(suspect: Suspect, shares: Sequence[Share]) -> Suspect:
    """Name the GPUs of a node that took part in its slow executions only, with few exceptions."""
    (host,), logs = suspect.hosts, set(suspect.evidence)
    own = [share for share in shares if host in share.record.hosts]
    accusing = [1 - s.share for s in own if s.record.log in logs and s.share < 1]
    if not accusing:
        return suspect
    deficit = median_of(accusing)
    # Noisy executions would hide the deficit.
    clear = [share for share in own if share.sigma * 3 < deficit]
    slow = [share for share in clear if 1 - share.share > deficit / 2]
    # A host alone may be fast although its network is slow, so only like is compared with like.
    kinds = {len(share.record.hosts) > 1 for share in slow}
    normal = [
        share
        for share in clear
        if 1 - share.share <= deficit / 2 and (len(share.record.hosts) > 1) in kinds
    ]
    runs = [(_gpus(share.record, host), True) for share in slow]
    runs += [(_gpus(share.record, host), False) for share in normal]
    every = {gpu for gpus, _ in runs for gpu in gpus or ()}
    exceptions = {
        gpu: sum((gpus is None or gpu in gpus) is not is_slow for gpus, is_slow in runs)
        for gpu in every
    }
    fewest = min(exceptions.values(), default=0)
    likely = sorted(gpu for gpu in every if exceptions[gpu] == fewest)
    if not normal or len(likely) == len(every) or fewest * _EXECUTIONS_PER_EXCEPTION > len(runs):
        return suspect
    if len(likely) > 1:
        names = ", ".join(map(str, likely))
        return replace(suspect, why=f"{suspect.why}; only when its GPUs {names} took part")
    return replace(
        suspect,
        kind=SuspectKind.GPU,
        device=str(likely[0]),
        why=f"{suspect.why}; only when its GPU {likely[0]} took part",
    )


def _gpus(record: Record, host: str) -> frozenset[int] | None:
    """Return the GPUs of a host that took part; None: all."""
    return next((gpus for fact, gpus in GPUS.of(record) if fact.host == host), None)
