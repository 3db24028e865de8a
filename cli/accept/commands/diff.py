"""`accept diff`: what got slower from one run, or folder of logs, to another."""

from __future__ import annotations

from typing import Any

from accept.commands import difference, figures, judge
from accept.commands.difference import Change, Kind
from accept.commands.judge import Judged
from accept.core.errors import BadInput, Exit
from accept.core.judge import completeness
from accept.core.judge.collective_metrics import number
from accept.core.model import State
from accept.core.sizes import format_size
from accept.core.text import plain
from accept.report.console import Terminal

_BAD = (State.FAIL, State.DEGRADED)
#: Most that a terminal is told of each.
_SCREEN = 20


def do_diff(a: str, b: str, terminal: Terminal) -> int:
    """Compare B with A. Raises BadInput where nothing was measured in both."""
    one, two = (judge.judge_path(path, expect=()) for path in (a, b))
    before, after = (
        difference.kinds(figures.measurements(judged.plan, judged.records)) for judged in (one, two)
    )
    found = difference.changes(before, after)
    if not found:
        raise BadInput(
            f"{plain(a, 100)} and {plain(b, 100)} measured nothing in common: "
            f"{_listed(before)}, and {_listed(after)}",
            hint="compare runs of the same checks, sizes and numbers of nodes",
        )
    lost = difference.failed(two.plan, two.records) - difference.failed(one.plan, one.records)
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
        lines.append(f"Hosts of A that are not in B: {plain(completeness.some(gone), 300)}")
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
