"""Find outliers among comparable executions that were measured one by one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import hypot
from types import MappingProxyType
from typing import NamedTuple

from accept.core.causes import Cause
from accept.core.judge.robust_stats import SIGMAS, Spread, median_of, spread

#: Values that vary by more than this many times the noise are not comparable.
_UNEVEN = 3.0

#: Hosts and local ranks of an execution.
_Group = tuple[tuple[str, ...], tuple[int, ...]]


class Sample(NamedTuple):
    """The result of one execution."""

    hosts: tuple[str, ...]
    #: The measured value, higher is better; None: nothing was measured.
    value: float | None
    #: Cause that makes it bad regardless of its value: failed, wrong data.
    cause: Cause | None = None
    #: Path of the raw log.
    log: str = ""
    #: Local ranks of each host that took part; empty: all.
    ranks: tuple[int, ...] = ()


class Outlier(NamedTuple):
    """A bad member of a population, the sample that shows it, and the spread of its peers."""

    sample: Sample
    cause: Cause
    peers: Spread | None
    #: The number of its bad executions, and of all its executions.
    executions: tuple[int, int] = (1, 1)
    #: The number of bad groups among the others, and of all others.
    others: tuple[int, int] = (0, 0)

    @property
    def share(self) -> str:
        """Return its value as a share of the median, and how often it was slow.

        Empty if nothing was measured.
        """
        value, peers = self.sample.value, self.peers
        if self.sample.cause or value is None or not peers or not peers.median:
            return ""
        often = ""
        if self.cause is Cause.INTERMITTENT:
            slow, count = self.executions
            often = f"; slow in {slow} of {count} executions"
        return f"{value / peers.median:.0%} of the median of {peers.count}{often}"


class Outliers(NamedTuple):
    """The bad members of a population, by index, and the spread of the population."""

    bad: Mapping[int, Outlier]
    spread: Spread | None
    #: Index of the slowest execution of a group that is slow too rarely to be bad -> the number
    #: of slow executions, and of all its executions.
    rare: Mapping[int, tuple[int, int]] = MappingProxyType({})
    #: The values differ by so much that slow and normal members cannot be distinguished.
    uneven: bool = False


def outliers(
    samples: Sequence[Sample], noise: float, bound: float | None = None, *, fixed: bool = False
) -> Outliers:
    """Return the executions that failed, had wrong data, or are below `bound` or clearly slower.

    A group that ran several times is judged by its best value, by wrong data, and by how often it
    was slow. If more than half of the groups are bad, the fault is not in one of them, and none is
    returned. `noise` and `fixed`: see `spread`.
    """
    floor = float("-inf") if bound is None else bound
    values: dict[_Group, dict[int, float]] = {}
    shown: dict[_Group, int] = {}
    wrong = set()
    for index, sample in enumerate(samples):
        group = (sample.hosts, sample.ranks)
        if group not in wrong:
            shown[group] = index
        if sample.cause is Cause.WRONG_DATA:
            wrong.add(group)
        elif sample.value is not None and not sample.cause:
            values.setdefault(group, {})[index] = sample.value
    best = {group: max(by_index.values()) for group, by_index in values.items()}
    peers = spread(list(best.values()), noise, fixed=fixed)
    limit, uneven = floor, False
    if peers:
        fast = sum(value > peers.median * (1 + SIGMAS * noise) for value in best.values())
        # If most values are slow, the others look fast.
        uneven = is_uneven(peers, noise) or 3 * fast >= len(best)
        # A bound within the noise of healthy values does not separate slow from normal ones.
        limit = max(min(floor, peers.median * (1 - SIGMAS * noise)), peers.limit)
    executions: dict[_Group, tuple[int, int]] = {}
    for sample in samples:
        group = (sample.hosts, sample.ranks)
        failed = sample.value is None or bool(sample.cause) or sample.value < limit
        count, total = executions.get(group, (0, 0))
        executions[group] = count + failed, total + 1
    bad, rare = {}, {}
    for group, index in shown.items():
        if group in wrong or group not in best or best[group] < limit:
            sample = samples[index]
            below = sample.value is not None and sample.value < floor
            cause = sample.cause or (Cause.BELOW_REFERENCE if below else Cause.SLOW_OUTLIER)
            bad[index] = Outlier(sample, cause, peers, executions[group])
    for group, slow in _slow_executions(values, peers) if peers else ():
        slowest = min(slow, key=values[group].__getitem__)
        slow_of = len(slow), len(values[group])
        if shown[group] in bad:
            continue
        if is_frequent(*slow_of):
            bad[slowest] = Outlier(samples[slowest], Cause.INTERMITTENT, peers, slow_of)
        else:
            rare[slowest] = slow_of
    if len(shown) > 1 and len(bad) * 2 > len(shown):
        return Outliers({}, peers, uneven=uneven)
    others = len(bad) - 1, len(shown) - 1
    bad = {index: bad[index]._replace(others=others) for index in sorted(bad)}
    return Outliers(bad, peers, rare, uneven)


def is_frequent(slow: int, executions: int) -> bool:
    """Return True if a group is slow too often for chance: twice, and in more than a quarter.

    With heavy-tailed noise, some member of a large population is slow twice in many executions.
    """
    return slow > 1 and slow * 4 > executions


def is_uneven(peers: Spread, noise: float) -> bool:
    """Return True if values that should be equal differ by too much to tell which are slow.

    Many slow values widen the limit that should detect them.
    """
    return peers.sigma > _UNEVEN * noise * abs(peers.median)


def _slow_executions(
    values: Mapping[_Group, Mapping[int, float]], peers: Spread
) -> Iterator[tuple[_Group, list[int]]]:
    """Yield the groups that have slow executions, with the indices of these.

    `peers` is the spread of the best values. The variation within groups widens the limit.
    """
    medians = {group: median_of(by_index.values()) for group, by_index in values.items()}
    within = spread([v - medians[g] for g, own in values.items() for v in own.values()], 0.0)
    sigma = hypot(peers.sigma, within.sigma if within else 0.0)
    limit = median_of(medians.values()) - SIGMAS * sigma
    for group, by_index in values.items():
        slow = [index for index, value in by_index.items() if value < limit]
        if len(by_index) > 1 and slow:
            yield group, slow
