"""Compare two runs or two folders of logs: what became slower, and is it more than noise."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import sqrt
from statistics import median
from typing import Any, NamedTuple

from accept.commands import judge
from accept.commands import judge as commands_judge
from accept.commands.judge import Judged, Measurement, measurements
from accept.core.errors import BadInput, Exit
from accept.core.judge import completeness
from accept.core.judge.collective_metrics import number
from accept.core.judge.robust_stats import SIGMAS, spread
from accept.core.model import GroupKind, Plan, Record, State
from accept.core.text import format_size, plain
from accept.report.console import Terminal

#: Least noise of one measurement, as a share: no change below it means anything.
NOISE = 0.01
_MEDIAN = 1.2533
#: +1: more is better; -1: less is.
_BETTER = {"GB/s": 1, "samples/s": 1, "us": -1, "s": -1}


class Kind(NamedTuple):
    """What makes measurements of two runs comparable."""

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
    """One kind of measurement in both runs. Shares are of A; above 0 is better."""

    kind: Kind
    a: float
    b: float
    change: float
    #: What the change must exceed to mean something.
    noise: float
    #: Groups in A and B, and those that were compared with themselves.
    counts: tuple[int, int, int]
    significant: bool
    #: Hosts that lost more than the others did, and how much.
    hosts: tuple[tuple[str, float], ...] = ()

    @property
    def slower(self) -> bool:
        """Whether it got worse, for all or for one."""
        return bool(self.hosts) or (self.significant and self.change < 0)


_Group = tuple[tuple[str, ...], tuple[int, ...]]
_Groups = dict[_Group, float]


def kinds(found: Iterable[Measurement]) -> dict[Kind, _Groups]:
    """Measurements by kind and group; the median of what was repeated."""
    values: dict[Kind, dict[_Group, list[float]]] = {}
    for one in found:
        if one.unit in _BETTER and one.value > 0:
            kind = Kind(*one[:4], len(one.hosts), len(one.ranks), one.size)
            group = (tuple(sorted(one.hosts)), one.ranks)
            values.setdefault(kind, {}).setdefault(group, []).append(one.value)
    return {
        kind: {group: median(several) for group, several in groups.items()}
        for kind, groups in values.items()
    }


def changes(a: Mapping[Kind, _Groups], b: Mapping[Kind, _Groups]) -> tuple[Change, ...]:
    """What both have, in the order of A."""
    return tuple(_change(kind, a[kind], b[kind]) for kind in a if kind in b)


def _change(kind: Kind, a: _Groups, b: _Groups) -> Change:
    sign = _BETTER[kind.unit]
    ratios = {group: (b[group] / a[group]) ** sign for group in a if group in b}
    hosts: tuple[tuple[str, float], ...] = ()
    if len(ratios) * 2 >= min(len(a), len(b)):
        centre, sigma = _of(list(ratios.values()))
        error = sigma / sqrt(len(ratios))
        hosts = tuple(_hosts(ratios, centre, sigma)) if kind.nodes < 3 else ()
    else:
        (one, s_a), (two, s_b) = _of(list(a.values())), _of(list(b.values()))
        centre = (two / one) ** sign
        error = sqrt((s_a / one) ** 2 / len(a) + (s_b / two) ** 2 / len(b))
    noise = max(NOISE, SIGMAS * _MEDIAN * error)
    return Change(
        kind=kind,
        a=median(a.values()),
        b=median(b.values()),
        change=centre - 1,
        noise=noise,
        counts=(len(a), len(b), len(ratios)),
        significant=abs(centre - 1) > noise,
        hosts=hosts,
    )


def _of(values: Sequence[float]) -> tuple[float, float]:
    """Median and sigma of one value; of too few, sigma is that of two measurements."""
    among = spread(values, NOISE)
    centre = median(values)
    return (centre, among.sigma) if among else (centre, sqrt(2) * NOISE * abs(centre))


def _hosts(
    ratios: Mapping[_Group, float], centre: float, sigma: float
) -> Iterator[tuple[str, float]]:
    """Hosts whose groups lost more than the median group did."""
    mine: dict[str, list[float]] = {}
    for (hosts, _), ratio in ratios.items():
        for host in hosts:
            mine.setdefault(host, []).append(ratio)
    for host, several in mine.items():
        lost = median(several) / centre - 1
        if len(mine) > 2 and lost < -max(2 * NOISE, SIGMAS * _MEDIAN * sigma / sqrt(len(several))):
            yield host, lost


def failed(plan: Plan, records: Sequence[Record]) -> set[tuple[str, tuple[str, ...]]]:
    """Checks that measured nothing, with the hosts that were to."""
    have = {(one.check, one.hosts, one.log) for one in measurements(plan, records)}
    return {
        (check, tuple(sorted(record.hosts)))
        for record in records
        for check in record.checks
        if record.exit != 0 and (check, record.hosts, record.log) not in have
    }


_BAD = (State.FAIL, State.DEGRADED)
#: Most that a terminal is told of each.
_SCREEN = 20


def do_diff(a: str, b: str, terminal: Terminal) -> int:
    """Compare B with A. Raises BadInput where nothing was measured in both."""
    one, two = (judge.judge_path(path, expect=()) for path in (a, b))
    before, after = (
        kinds(commands_judge.measurements(judged.plan, judged.records)) for judged in (one, two)
    )
    found = changes(before, after)
    if not found:
        raise BadInput(
            f"{plain(a, 100)} and {plain(b, 100)} measured nothing in common: "
            f"{_listed(before)}, and {_listed(after)}",
            hint="compare runs of the same checks, sizes and numbers of nodes",
        )
    lost = failed(two.plan, two.records) - failed(one.plan, one.records)
    worse = two.verdict.state in _BAD and one.verdict.state not in _BAD
    accused = _accused(two) - _accused(one)
    regression = bool(lost or accused) or worse or any(change.slower for change in found)
    result = {
        "regression": regression,
        "a": _side(a, one),
        "b": _side(b, two),
        "changes": [_as_json(change) for change in found],
        "failed": [{"check": check, "hosts": list(hosts)} for check, hosts in sorted(lost)],
        "accused": [{"name": name, "cause": cause} for name, cause in sorted(accused)],
        "hosts_only_in_a": [h for h in one.verdict.hosts if h not in two.verdict.hosts],
        "only_in_a": [_name(kind) for kind in before if kind not in after],
        "only_in_b": [_name(kind) for kind in after if kind not in before],
    }
    terminal.result(result, _text(result, found))
    return Exit.REJECTED if regression else Exit.PASS


def _accused(judged: Judged) -> set[tuple[str, str]]:
    """Who was named, and for what; how fast somebody is the figures themselves tell."""
    slow = ("slow-outlier", "intermittent", "below-reference")
    return {(s.name, s.cause) for s in judged.verdict.suspects if s.cause not in slow}


def _listed(found: dict[Kind, Any]) -> str:
    names = [_name(kind) for kind in found]
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
    """Words for a kind: "alltoall at 16G on pairs, 4 GPUs of each"."""
    size = f" at {format_size(kind.size)}" if kind.size else ""
    metric = "" if kind.metric == "busbw" else f" {kind.metric}"
    where = {"each": "each node", "pairs": "pairs"}.get(kind.groups, "")
    where = where or f"{kind.groups} ({kind.nodes} nodes)"
    gpus = f", {kind.gpus} GPU{'s' * (kind.gpus != 1)} of each" if kind.gpus else ""
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
        "hosts": [{"host": host, "change": round(lost, 6)} for host, lost in change.hosts],
    }


def _text(result: dict[str, Any], found: tuple[Change, ...]) -> str:
    slower = [change for change in found if change.slower]
    faster = [c for c in found if c.significant and c.change > 0 and not c.hosts]
    if slower:
        first = f"slower: {len(slower)} of {len(found)} figures"
    else:
        first = "no figure is slower" + ("; something failed" if result["regression"] else "")
    lines = [first, *(f"{key.upper()}: {_about(result[key])}" for key in ("a", "b")), ""]
    for title, some in (("Slower", slower), ("Faster", faster)):
        lines += [title] if some else []
        lines += [line for change in some[:_SCREEN] for line in _lines(change)]
        lines += [f"  … and {len(some) - _SCREEN} more: see --json"] * (len(some) > _SCREEN)
    same = len(found) - len(slower) - len(faster)
    lines.append(f"Unchanged within noise: {same} of {len(found)} figures")
    for one in result["failed"][:_SCREEN]:
        hosts = plain(", ".join(one["hosts"]), 120) or "hosts that nothing tells"
        lines.append(f"Failed in B alone: {one['check']} on {hosts}")
    for one in result["accused"][:_SCREEN]:
        lines.append(f"Accused in B alone: {plain(one['name'], 120)} ({one['cause']})")
    if gone := result["hosts_only_in_a"]:
        lines.append(f"Hosts of A that are not in B: {plain(completeness.host_list(gone), 300)}")
    for key, word in (("only_in_a", "A"), ("only_in_b", "B")):
        if result[key]:
            lines.append(f"Measured in {word} alone: {plain('; '.join(result[key][:6]), 300)}")
    return "\n".join(lines)


def _about(side: dict[str, Any]) -> str:
    return f"{plain(side['path'], 120)}, {side['hosts']} hosts, {plain(side['headline'], 120)}"


def _lines(change: Change) -> list[str]:
    kind = change.kind
    values = f"{number(change.a)} -> {number(change.b)} {kind.unit}"
    mark = "" if change.significant else ", within noise"
    both = f"{change.counts[2] or 'no'} groups in both"
    lines = [
        f"  {_name(kind)}: {values}, {change.change:+.1%} (noise {change.noise:.1%}{mark}, {both})"
    ]
    lines += [
        f"    {plain(host, 80)}: {lost:+.1%} against the others"
        for host, lost in change.hosts[:_SCREEN]
    ]
    return lines
