"""Compare things of one kind that were measured one by one: GPUs, hosts, full rails, blocks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median
from typing import NamedTuple

from accept.core.causes import Cause
from accept.core.judge.effects.executions import Execution, Network
from accept.core.judge.effects.explanation import Normal
from accept.core.judge.effects.populations import robust_sigma
from accept.core.judge.effects.search import explain
from accept.core.judge.explained import UNEVEN, limit_of
from accept.core.judge.rounds import FEWEST, SIGMAS

#: What healthy peers that differ reach, as a share of their median.
LEAST_OF_UNEVEN = 0.5


class Peer(NamedTuple):
    """The result of one execution of one thing."""

    #: What was measured, such as a host, or a host and a rank.
    name: str
    #: Higher is better; None: nothing was measured.
    value: float | None
    #: Cause that makes it bad regardless of its value: failed, wrong data.
    cause: Cause | None = None
    #: Path of the raw log.
    log: str = ""


class Outlier(NamedTuple):
    """A bad peer, and what is normal."""

    #: Index of the execution that shows it.
    at: int
    cause: Cause
    #: Its value as a share of normal; None: it failed, or normal is unknown.
    share: float | None
    normal: Normal | None
    #: The number of its bad executions, and of all its executions.
    executions: tuple[int, int] = (1, 1)
    #: The number of bad peers among the others, and of all others.
    others: tuple[int, int] = (0, 0)

    @property
    def text(self) -> str:
        """Return its value as a share of normal, and how often it was slow; empty if unknown."""
        if self.share is None or self.normal is None:
            return ""
        often = ""
        if self.cause is Cause.INTERMITTENT:
            often = f"; slow in {self.executions[0]} of {self.executions[1]} executions"
        return f"{self.share:.0%} of the normal value of {self.normal.values}{often}"


class Compared(NamedTuple):
    """The bad peers in the order of their names, and what is normal."""

    bad: tuple[Outlier, ...]
    #: None: too few to compare.
    normal: Normal | None
    #: The values differ by so much that slow and normal peers cannot be distinguished.
    uneven: bool = False


def compare_peers(
    peers: Sequence[Peer], noise: float, bound: float | None = None, *, uneven: bool = False
) -> Compared:
    """Return the peers that failed, had wrong data, are below `bound`, or are slow by the model.

    If more than half of the peers are bad, the fault is not in one of them, and none is returned.
    `noise`: the lowest sigma of healthy values, as a share. `uneven`: healthy values differ, so
    only those below `LEAST_OF_UNEVEN` of the median are slow.
    """
    of_name: dict[str, list[int]] = {}
    for index, peer in enumerate(peers):
        of_name.setdefault(peer.name, []).append(index)
    live = [i for i, peer in enumerate(peers) if peer.value is not None and not peer.cause]
    measured = frozenset(live)
    known, slow = _halves(peers, live) if uneven else _by_model(peers, live, noise)
    bad: dict[str, Outlier] = {}
    for name, own in of_name.items():
        values = {i: peers[i].value or 0.0 for i in own if i in measured}
        best = max(values, key=values.__getitem__, default=None)
        shown = next((i for i in own if peers[i].cause is Cause.WRONG_DATA), None)
        cause: Cause | None = None
        if shown is not None or best is None:
            shown = own[-1] if shown is None else shown
            cause = peers[shown].cause or Cause.NO_MEASUREMENT
        elif bound is not None and values[best] < bound:
            shown, cause = best, Cause.BELOW_REFERENCE
        elif name in slow:
            # A peer that is at times as fast as others is slow by what it shows then.
            at_times = known is not None and values[best] >= limit_of(known)
            shown = min(values, key=values.__getitem__) if at_times else best
            cause = Cause.INTERMITTENT if at_times else Cause.SLOW_OUTLIER
        if shown is None or cause is None:
            continue
        failed = sum(_is_bad(peers[i], known, bound) for i in own)
        value = None if peers[shown].cause else peers[shown].value
        share = value / known.value if known and known.value and value is not None else None
        bad[name] = Outlier(shown, cause, share, known, (failed, len(own)))
    values_of_all = [peers[i].value or 0.0 for i in live]
    wide = known is not None and not uneven and _is_uneven(values_of_all, known, noise)
    if len(of_name) > 1 and 2 * len(bad) > len(of_name):
        return Compared((), known, wide)
    others = len(bad) - 1, len(of_name) - 1
    return Compared(tuple(one._replace(others=others) for one in bad.values()), known, wide)


def far_from_median(values: Mapping[str, float], noise: float) -> tuple[Normal | None, list[str]]:
    """Return what is normal, and the names far from it on both sides, the farthest first.

    Such values are unusual, and no fault. None: too few to compare.
    """
    if len(values) < FEWEST:
        return None, []
    middle = median(values.values())
    sigma = max(noise * abs(middle), robust_sigma(list(values.values())))
    distances = {name: abs(value - middle) for name, value in values.items()}
    far = [name for name, distance in distances.items() if distance > SIGMAS * sigma]
    share = sigma / abs(middle) if middle else 0.0
    normal = Normal(value=middle, sigma=share, values=len(values), hosts=len(values))
    return normal, sorted(far, key=lambda name: -distances[name])


def _by_model(
    peers: Sequence[Peer], live: Sequence[int], noise: float
) -> tuple[Normal | None, set[str]]:
    """Return what is normal, and the slow peers."""
    executions = [
        Execution(hosts=(peers[i].name,), population="", value=peers[i].value, log=peers[i].log)
        for i in live
    ]
    if len({one.hosts for one in executions}) < FEWEST:
        return None, set()
    found = explain(executions, Network(noise=noise))
    faults = (fault for fault in found.faults if len(fault.part.hosts) == 1)
    return found.normal.get(""), {one.part.hosts[0] for one in faults}


def _halves(peers: Sequence[Peer], live: Sequence[int]) -> tuple[Normal | None, set[str]]:
    """Return the median as the normal value, and the peers below half of it."""
    best: dict[str, float] = {}
    for i in live:
        best[peers[i].name] = max(best.get(peers[i].name, float("-inf")), peers[i].value or 0.0)
    if len(best) < FEWEST:
        return None, set()
    middle = median(best.values())
    normal = Normal(
        value=middle, sigma=(1 - LEAST_OF_UNEVEN) / SIGMAS, values=len(live), hosts=len(best)
    )
    return normal, {name for name, value in best.items() if value < LEAST_OF_UNEVEN * middle}


def _is_bad(peer: Peer, normal: Normal | None, bound: float | None) -> bool:
    if peer.value is None or peer.cause:
        return True
    limits = [bound] if bound is not None else []
    limits += [limit_of(normal)] if normal else []
    return peer.value < max(limits, default=float("-inf"))


def _is_uneven(values: Sequence[float], normal: Normal, noise: float) -> bool:
    """Return True if values that should be equal differ by too much to tell which are slow."""
    low = sum(value < limit_of(normal) for value in values)
    return normal.sigma > UNEVEN * noise or 2 * low > len(values)
