"""Compare two runs or two folders of logs, and report what became slower by more than noise."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import sqrt
from statistics import median
from typing import Any, NamedTuple

from accept.commands import judge
from accept.commands.judge import Judged, Measurement, measurements
from accept.core.errors import BadInput, Exit
from accept.core.judge import completeness
from accept.core.judge.collective_metrics import number
from accept.core.judge.robust_stats import SIGMAS, spread
from accept.core.model import GroupKind, Plan, Record, State
from accept.core.text import count, format_size, plain
from accept.report.console import Terminal

#: Least noise of one measurement, as a share. Smaller changes are never significant.
NOISE = 0.01
#: Standard error of a median divided by that of a mean, for normal noise: sqrt(pi / 2).
_MEDIAN_ERROR = 1.2533
#: By unit: +1 if more is better, -1 if less is better.
_DIRECTION = {"GB/s": 1, "samples/s": 1, "us": -1, "s": -1}


class Kind(NamedTuple):
    """The properties that comparable measurements of two runs share."""

    check: str
    metric: str
    unit: str
    groups: GroupKind
    nodes: int
    #: GPUs of each node; 0: all.
    gpus: int
    size: int | None


@dataclass(frozen=True, kw_only=True)
class Change:
    """The change of one kind of measurement from A to B, as shares of A; above 0 is better."""

    kind: Kind
    #: Medians, in the unit of the kind.
    a: float
    b: float
    change: float
    #: A change is significant if it is larger than this.
    noise: float
    #: Number of groups in A, in B, and in both.
    counts: tuple[int, int, int]
    significant: bool
    #: Hosts that became slower than the others did, with their change relative to the others.
    hosts: tuple[tuple[str, float], ...] = ()

    @property
    def slower(self) -> bool:
        """Whether all groups or single hosts became slower."""
        return bool(self.hosts) or (self.significant and self.change < 0)


_Group = tuple[tuple[str, ...], tuple[int, ...]]
_Groups = dict[_Group, float]


def kinds(measured: Iterable[Measurement]) -> dict[Kind, _Groups]:
    """Return the values by kind and group; of repeated measurements the median."""
    values: dict[Kind, dict[_Group, list[float]]] = {}
    for measurement in measured:
        check, metric, unit, groups, hosts, ranks, size, value, _ = measurement
        if unit in _DIRECTION and value > 0:
            kind = Kind(check, metric, unit, groups, len(hosts), len(ranks), size)
            group = (tuple(sorted(hosts)), ranks)
            values.setdefault(kind, {}).setdefault(group, []).append(value)
    return {
        kind: {group: median(repeated) for group, repeated in by_group.items()}
        for kind, by_group in values.items()
    }


def changes(a: Mapping[Kind, _Groups], b: Mapping[Kind, _Groups]) -> tuple[Change, ...]:
    """Return the changes of the kinds that both have, in the order of A."""
    return tuple(_change(kind, a[kind], b[kind]) for kind in a if kind in b)


def _change(kind: Kind, a: _Groups, b: _Groups) -> Change:
    """Compare each group with itself, or all groups if less than half of them are in both."""
    sign = _DIRECTION[kind.unit]
    ratios = {group: (b[group] / a[group]) ** sign for group in a if group in b}
    hosts: tuple[tuple[str, float], ...] = ()
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
        kind=kind,
        a=median(a.values()),
        b=median(b.values()),
        change=ratio - 1,
        noise=noise,
        counts=(len(a), len(b), len(ratios)),
        significant=abs(ratio - 1) > noise,
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
) -> Iterator[tuple[str, float]]:
    """Return the hosts that became slower than the median group did, with their change."""
    ratios_of: dict[str, list[float]] = {}
    for (hosts, _), ratio in ratios.items():
        for host in hosts:
            ratios_of.setdefault(host, []).append(ratio)
    for host, own in ratios_of.items():
        change = median(own) / median_ratio - 1
        noise = max(2 * NOISE, SIGMAS * _MEDIAN_ERROR * sigma / sqrt(len(own)))
        if len(ratios_of) > 2 and change < -noise:
            yield host, change


def failed(plan: Plan, records: Sequence[Record]) -> set[tuple[str, tuple[str, ...]]]:
    """Return the checks that failed and measured nothing, each with its hosts."""
    measured = {(m.check, m.hosts, m.log) for m in measurements(plan, records)}
    return {
        (check, tuple(sorted(record.hosts)))
        for record in records
        for check in record.checks
        if record.exit != 0 and (check, record.hosts, record.log) not in measured
    }


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
            hint="compare runs of the same checks, sizes and numbers of nodes",
        )
    failed_a, failed_b = (failed(j.plan, j.records) for j in (judged_a, judged_b))
    new_failures = failed_b - failed_a
    newly_rejected = judged_b.verdict.state in _BAD and judged_a.verdict.state not in _BAD
    accused = _accused(judged_b) - _accused(judged_a)
    slower = any(change.slower for change in common)
    regression = bool(new_failures or accused) or newly_rejected or slower
    hosts_a, hosts_b = judged_a.verdict.hosts, judged_b.verdict.hosts
    result = {
        "regression": regression,
        "a": _side(a, judged_a),
        "b": _side(b, judged_b),
        "changes": [_as_json(change) for change in common],
        "failed": [{"check": check, "hosts": list(hosts)} for check, hosts in sorted(new_failures)],
        "accused": [{"name": name, "cause": cause} for name, cause in sorted(accused)],
        "hosts_only_in_a": [host for host in hosts_a if host not in hosts_b],
        "only_in_a": [_name(kind) for kind in kinds_a if kind not in kinds_b],
        "only_in_b": [_name(kind) for kind in kinds_b if kind not in kinds_a],
    }
    terminal.result(result, _text(result, common))
    return Exit.REJECTED if regression else Exit.PASS


def _accused(judged: Judged) -> set[tuple[str, str]]:
    """Return names and causes of the suspects, except slow ones: the changes already show these."""
    slow = ("slow-outlier", "intermittent", "below-reference")
    return {(s.name, s.cause) for s in judged.verdict.suspects if s.cause not in slow}


def _first_names(measured: dict[Kind, Any]) -> str:
    names = [_name(kind) for kind in measured]
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return ("; ".join(names[:3]) or "nothing") + more


def _side(path: str, judged: Judged) -> dict[str, Any]:
    verdict = judged.verdict
    return {
        "path": path,
        "state": verdict.state.value,
        "headline": verdict.headline,
        "hosts": len(verdict.hosts),
    }


def _name(kind: Kind) -> str:
    """Return the name of a kind: "alltoall at 16G on pairs, 4 GPUs of each"."""
    size = f" at {format_size(kind.size)}" if kind.size else ""
    metric = "" if kind.metric == "busbw" else f" {kind.metric}"
    where = {"each": "each node", "pairs": "pairs"}.get(kind.groups, "")
    where = where or f"{kind.groups} ({count(kind.nodes, 'node')})"
    gpus = f", {count(kind.gpus, 'GPU')} of each" if kind.gpus else ""
    return f"{kind.check}{metric}{size} on {where}{gpus}"


def _as_json(change: Change) -> dict[str, Any]:
    a, b, both = change.counts
    return {
        **change.kind._asdict(),
        "a": change.a,
        "b": change.b,
        "change": round(change.change, 6),
        "noise": round(change.noise, 6),
        "significant": change.significant,
        "groups_a": a,
        "groups_b": b,
        "paired": both,
        "hosts": [{"host": host, "change": round(relative, 6)} for host, relative in change.hosts],
    }


def _text(result: dict[str, Any], changes_: tuple[Change, ...]) -> str:
    slower = [change for change in changes_ if change.slower]
    faster = [c for c in changes_ if c.significant and c.change > 0 and not c.hosts]
    if slower:
        headline = f"slower: {len(slower)} of {len(changes_)} figures"
    else:
        headline = "no figure is slower" + ("; something failed" if result["regression"] else "")
    lines = [headline, *(f"{key.upper()}: {_side_text(result[key])}" for key in ("a", "b")), ""]
    for title, group in (("Slower", slower), ("Faster", faster)):
        lines += [title] if group else []
        lines += [line for change in group[:_MAX_LINES] for line in _lines(change)]
        more = len(group) - _MAX_LINES
        lines += [f"  … and {more} more: see --json"] if more > 0 else []
    unchanged = len(changes_) - len(slower) - len(faster)
    lines.append(f"Unchanged within noise: {unchanged} of {len(changes_)} figures")
    for failure in result["failed"][:_MAX_LINES]:
        hosts = plain(", ".join(failure["hosts"]), 120) or "unknown hosts"
        lines.append(f"Failed only in B: {failure['check']} on {hosts}")
    for suspect in result["accused"][:_MAX_LINES]:
        lines.append(f"Accused only in B: {plain(suspect['name'], 120)} ({suspect['cause']})")
    if gone := result["hosts_only_in_a"]:
        lines.append(f"Hosts only in A: {plain(completeness.host_list(gone), 300)}")
    for key, word in (("only_in_a", "A"), ("only_in_b", "B")):
        if result[key]:
            lines.append(f"Measured only in {word}: {plain('; '.join(result[key][:6]), 300)}")
    return "\n".join(lines)


def _side_text(side: dict[str, Any]) -> str:
    hosts = count(side["hosts"], "host")
    return f"{plain(side['path'], 120)}, {hosts}, {plain(side['headline'], 120)}"


def _lines(change: Change) -> list[str]:
    kind = change.kind
    values = f"{number(change.a)} -> {number(change.b)} {kind.unit}"
    mark = "" if change.significant else ", within noise"
    both = f"{count(change.counts[2], 'group')} in both"
    lines = [
        f"  {_name(kind)}: {values}, {change.change:+.1%} (noise {change.noise:.1%}{mark}, {both})"
    ]
    lines += [
        f"    {plain(host, 80)}: {relative:+.1%} compared with the others"
        for host, relative in change.hosts[:_MAX_LINES]
    ]
    return lines
