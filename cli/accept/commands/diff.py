"""Compare two runs or two folders of logs, and report what became slower by more than noise."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import sqrt
from statistics import median

from accept.commands import judge
from accept.commands.judge import Judged, Measurement, measurements
from accept.core.catalog.metrics import BUSBW, Better
from accept.core.checks import better
from accept.core.error_codes import Code
from accept.core.errors import BadInput, Exit
from accept.core.judge import completeness
from accept.core.judge.collective_metrics import number
from accept.core.judge.robust_stats import SIGMAS, spread
from accept.core.model import GroupKind, Plan, Record, State, Suspect
from accept.core.text import count, format_size, plain
from accept.report.console import Terminal

#: Least noise of one measurement, as a share. Smaller changes are never significant.
NOISE = 0.01
#: Standard error of a median divided by that of a mean, for normal noise: sqrt(pi / 2).
_MEDIAN_ERROR = 1.2533
#: Exponent of a ratio, so that above 1 is better.
_DIRECTION = {Better.HIGHER: 1, Better.LOWER: -1}


@dataclass(frozen=True, kw_only=True)
class Kind:
    """The properties that comparable measurements of two runs share."""

    check: str
    metric: str
    unit: str
    groups: GroupKind
    nodes: int
    #: GPUs of each node; 0: all.
    gpus: int
    #: Message size in bytes; None: the metric has no size.
    size: int | None


@dataclass(frozen=True, kw_only=True)
class SlowerHost:
    """A host that became slower than the others did."""

    host: str
    #: Its change compared with the others, as a share.
    change: float


@dataclass(frozen=True, kw_only=True)
class Change(Kind):
    """The change of one kind of measurement from A to B, as shares of A; above 0 is better."""

    #: Medians, in the unit of the kind.
    a: float
    b: float
    change: float
    #: A change is significant if it is larger than this.
    noise: float
    significant: bool
    #: Number of groups in A, in B, and in both.
    groups_a: int
    groups_b: int
    paired: int
    hosts: tuple[SlowerHost, ...] = ()

    @property
    def slower(self) -> bool:
        """True if all groups or single hosts became slower."""
        return bool(self.hosts) or (self.significant and self.change < 0)


@dataclass(frozen=True, kw_only=True)
class Failure:
    """A check that measured nothing on these hosts."""

    check: str
    hosts: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Side:
    """One of the two runs."""

    path: str
    state: State
    headline: str
    hosts: int


@dataclass(frozen=True, kw_only=True)
class Diff:
    """The output of `accept diff --json`."""

    #: True if B is worse than A: slower, rejected, or with new failures or suspects.
    regression: bool
    a: Side
    b: Side
    changes: tuple[Change, ...]
    #: Failures in B only.
    failed: tuple[Failure, ...]
    #: Suspects of B that A does not accuse of the same cause. Slow ones are left out, because
    #: `changes` has these.
    accused: tuple[Suspect, ...]
    hosts_only_in_a: tuple[str, ...]
    only_in_a: tuple[Kind, ...]
    only_in_b: tuple[Kind, ...]


_Group = tuple[tuple[str, ...], tuple[int, ...]]
_Groups = dict[_Group, float]


def kinds(measured: Iterable[Measurement]) -> dict[Kind, _Groups]:
    """Return the values by kind and group; of repeated measurements the median."""
    values: dict[Kind, dict[_Group, list[float]]] = {}
    for measurement in measured:
        direction = better(measurement.check, measurement.metric, measurement.unit)
        if direction in _DIRECTION and measurement.value > 0:
            kind = Kind(
                check=measurement.check,
                metric=measurement.metric,
                unit=measurement.unit,
                groups=measurement.groups,
                nodes=len(measurement.hosts),
                gpus=len(measurement.ranks),
                size=measurement.size,
            )
            group = (tuple(sorted(measurement.hosts)), measurement.ranks)
            values.setdefault(kind, {}).setdefault(group, []).append(measurement.value)
    return {
        kind: {group: median(repeated) for group, repeated in by_group.items()}
        for kind, by_group in values.items()
    }


def changes(a: Mapping[Kind, _Groups], b: Mapping[Kind, _Groups]) -> tuple[Change, ...]:
    """Return the changes of the kinds that both have, in the order of A."""
    return tuple(_change(kind, a[kind], b[kind]) for kind in a if kind in b)


def _change(kind: Kind, a: _Groups, b: _Groups) -> Change:
    """Compare each group with itself, or all groups if less than half of them are in both."""
    sign = _DIRECTION[better(kind.check, kind.metric, kind.unit)]
    ratios = {group: (b[group] / a[group]) ** sign for group in a if group in b}
    hosts: tuple[SlowerHost, ...] = ()
    if len(ratios) * 2 >= min(len(a), len(b)):
        ratio, sigma = _median_and_sigma(list(ratios.values()))
        error = sigma / sqrt(len(ratios))
        hosts = tuple(_slower_hosts(ratios, ratio, sigma)) if kind.nodes < 3 else ()
    else:
        median_a, sigma_a = _median_and_sigma(list(a.values()))
        median_b, sigma_b = _median_and_sigma(list(b.values()))
        ratio = (median_b / median_a) ** sign
        error = sqrt((sigma_a / median_a) ** 2 / len(a) + (sigma_b / median_b) ** 2 / len(b))
    noise = max(NOISE, SIGMAS * _MEDIAN_ERROR * error)
    return Change(
        **vars(kind),
        a=median(a.values()),
        b=median(b.values()),
        change=round(ratio - 1, 6),
        noise=round(noise, 6),
        significant=abs(ratio - 1) > noise,
        groups_a=len(a),
        groups_b=len(b),
        paired=len(ratios),
        hosts=hosts,
    )


def _median_and_sigma(values: Sequence[float]) -> tuple[float, float]:
    """Return the median, and the sigma of one value.

    Too few values have no sigma of their own; that of a ratio of two measurements is assumed.
    """
    among = spread(values, NOISE)
    center = median(values)
    return center, among.sigma if among else sqrt(2) * NOISE * abs(center)


def _slower_hosts(
    ratios: Mapping[_Group, float], median_ratio: float, sigma: float
) -> Iterator[SlowerHost]:
    """Yield the hosts that became slower than the median group did, with their change."""
    ratios_of: dict[str, list[float]] = {}
    for (hosts, _), ratio in ratios.items():
        for host in hosts:
            ratios_of.setdefault(host, []).append(ratio)
    for host, own in ratios_of.items():
        change = median(own) / median_ratio - 1
        noise = max(2 * NOISE, SIGMAS * _MEDIAN_ERROR * sigma / sqrt(len(own)))
        if len(ratios_of) > 2 and change < -noise:
            yield SlowerHost(host=host, change=round(change, 6))


def failures(plan: Plan, records: Sequence[Record]) -> tuple[Failure, ...]:
    """Return the checks that failed and measured nothing, each with its hosts."""
    measured = {(m.check, m.hosts, m.log) for m in measurements(plan, records)}
    failed = {
        (check, tuple(sorted(record.hosts)))
        for record in records
        for check in record.checks
        if record.exit != 0 and (check, record.hosts, record.log) not in measured
    }
    return tuple(Failure(check=check, hosts=hosts) for check, hosts in sorted(failed))


_BAD = (State.FAIL, State.DEGRADED)
#: Most lines of each kind on a terminal.
_MAX_LINES = 20


def do_diff(a: str, b: str, terminal: Terminal) -> int:
    """Compare B with A. Raises BadInput if they have no measurement in common."""
    judged_a, judged_b = (judge.judge_path(path, expect=()) for path in (a, b))
    kinds_a, kinds_b = (kinds(measurements(j.plan, j.records)) for j in (judged_a, judged_b))
    common = changes(kinds_a, kinds_b)
    if not common:
        raise BadInput(
            f"{plain(a, 100)} and {plain(b, 100)} measured nothing in common: "
            f"{_first_names(kinds_a)}, and {_first_names(kinds_b)}",
            code=Code.DIFF_NOTHING_IN_COMMON,
            hint="compare runs of the same checks, sizes and numbers of nodes",
        )
    known_failures = failures(judged_a.plan, judged_a.records)
    new_failures = failures(judged_b.plan, judged_b.records)
    known_suspects = {(s.part, s.cause) for s in judged_a.verdict.suspects}
    hosts_b = judged_b.verdict.hosts
    failed = tuple(failure for failure in new_failures if failure not in known_failures)
    accused = tuple(
        suspect
        for suspect in judged_b.verdict.suspects
        if not suspect.cause.row.slow and (suspect.part, suspect.cause) not in known_suspects
    )
    newly_rejected = judged_b.verdict.state in _BAD and judged_a.verdict.state not in _BAD
    slower = any(change.slower for change in common)
    result = Diff(
        regression=bool(failed or accused) or newly_rejected or slower,
        a=_side(a, judged_a),
        b=_side(b, judged_b),
        changes=common,
        failed=failed,
        accused=accused,
        hosts_only_in_a=tuple(host for host in judged_a.verdict.hosts if host not in hosts_b),
        only_in_a=tuple(kind for kind in kinds_a if kind not in kinds_b),
        only_in_b=tuple(kind for kind in kinds_b if kind not in kinds_a),
    )
    terminal.result(result, _text(result))
    return Exit.REJECTED if result.regression else Exit.PASS


def _first_names(measured: Iterable[Kind]) -> str:
    names = [_name(kind) for kind in measured]
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return ("; ".join(names[:3]) or "nothing") + more


def _side(path: str, judged: Judged) -> Side:
    verdict = judged.verdict
    return Side(path=path, state=verdict.state, headline=verdict.headline, hosts=len(verdict.hosts))


def _name(kind: Kind) -> str:
    """Return the name of a kind: "alltoall at 16G on pairs, 4 GPUs of each"."""
    size = f" at {format_size(kind.size)}" if kind.size else ""
    metric = "" if kind.metric == BUSBW.name else f" {kind.metric}"
    where = {GroupKind.EACH: "each node", GroupKind.PAIRS: "pairs"}.get(kind.groups, "")
    where = where or f"{kind.groups} ({count(kind.nodes, 'node')})"
    gpus = f", {count(kind.gpus, 'GPU')} of each" if kind.gpus else ""
    return f"{kind.check}{metric}{size} on {where}{gpus}"


def _text(diff: Diff) -> str:
    slower = [change for change in diff.changes if change.slower]
    faster = [c for c in diff.changes if c.significant and c.change > 0 and not c.hosts]
    if slower:
        headline = f"slower: {len(slower)} of {len(diff.changes)} figures"
    else:
        headline = "no figure is slower" + ("; something failed" if diff.regression else "")
    lines = [headline, f"A: {_side_text(diff.a)}", f"B: {_side_text(diff.b)}", ""]
    for title, group in (("Slower", slower), ("Faster", faster)):
        lines += [title] if group else []
        lines += [line for change in group[:_MAX_LINES] for line in _lines(change)]
        more = len(group) - _MAX_LINES
        lines += [f"  … and {more} more: see --json"] if more > 0 else []
    unchanged = len(diff.changes) - len(slower) - len(faster)
    lines.append(f"Unchanged within noise: {unchanged} of {len(diff.changes)} figures")
    for failure in diff.failed[:_MAX_LINES]:
        hosts = plain(", ".join(failure.hosts), 120) or "unknown hosts"
        lines.append(f"Failed only in B: {failure.check} on {hosts}")
    for suspect in diff.accused[:_MAX_LINES]:
        lines.append(f"Accused only in B: {plain(suspect.name, 120)} ({suspect.cause})")
    if diff.hosts_only_in_a:
        hosts = completeness.host_list(diff.hosts_only_in_a)
        lines.append(f"Hosts only in A: {plain(hosts, 300)}")
    for side, only in (("A", diff.only_in_a), ("B", diff.only_in_b)):
        if only:
            names = "; ".join(_name(kind) for kind in only[:6])
            lines.append(f"Measured only in {side}: {plain(names, 300)}")
    return "\n".join(lines)


def _side_text(side: Side) -> str:
    return f"{plain(side.path, 120)}, {count(side.hosts, 'host')}, {plain(side.headline, 120)}"


def _lines(change: Change) -> list[str]:
    values = f"{number(change.a)} -> {number(change.b)} {change.unit}"
    mark = "" if change.significant else ", within noise"
    both = f"{count(change.paired, 'group')} in both"
    noise = f"(noise {change.noise:.1%}{mark}, {both})"
    lines = [f"  {_name(change)}: {values}, {change.change:+.1%} {noise}"]
    lines += [
        f"    {plain(slower.host, 80)}: {slower.change:+.1%} compared with the others"
        for slower in change.hosts[:_MAX_LINES]
    ]
    return lines
