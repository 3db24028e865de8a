"""The decisions of a verdict as plain data: states, nodes, suspects, findings and counts."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping

from accept.core.judge.summary import node_lists
from accept.core.verdict import Finding, MeasuredRange, State, Suspect, Verdict

#: The decisions of one verdict, by name: plain data in a fixed order.
View = Mapping[str, object]
#: Significant digits of values.
_DIGITS = 4


def view(verdict: Verdict) -> dict[str, object]:
    """Return everything that a verdict decides."""
    lists = node_lists(verdict)
    covered = verdict.coverage
    shown: dict[str, object] = {
        "state": verdict.state,
        "exit": verdict.exit,
        "accepted": verdict.accepted,
        "gpu-tested": verdict.gpu_tested,
        "interrupted": bool(verdict.interruption),
        "hosts": len(verdict.hosts),
        "missing": _names(verdict.missing),
        "good": _names(lists.good),
        "bad": _names(lists.bad),
        "untested": _names(lists.untested),
        "detectable": _rounded(verdict.detectable.slowdown) if verdict.detectable else None,
        "untested-gpus": len(covered.gpus_untested),
        "untested-nics": len(covered.nics_untested),
        "suspects": sorted(map(_suspect, verdict.suspects), key=_line),
        "checks": {check.check: check.state for check in verdict.checks},
        "findings": sorted(
            (
                _finding(found)
                for check in verdict.checks
                for found in check.findings
                if found.state is not State.PASS
            ),
            key=_line,
        ),
        "passed": _passed(verdict),
        "ranges": dict(sorted(map(_range, verdict.ranges))),
        "scaling": {
            f"{one.step} {one.check}": [
                [p.nodes, _rounded(p.value), _rounded(p.efficiency)] for p in one.points
            ]
            for one in verdict.scaling
        },
    }
    # As a file gives it.
    data: dict[str, object] = json.loads(json.dumps(_without_empty(shown)))
    return data


def _names(hosts: Iterable[str]) -> str:
    """Return hosts as one text."""
    return " ".join(sorted(hosts))


def _rounded(value: float | None) -> float | None:
    return None if value is None else float(f"{value:.{_DIGITS}g}")


def _without_empty(data: Mapping[str, object]) -> dict[str, object]:
    return {key: value for key, value in data.items() if value not in (None, "", [], {}, False, 0)}


def _line(data: object) -> str:
    return json.dumps(data, ensure_ascii=False)


def _suspect(one: Suspect) -> dict[str, object]:
    return _without_empty(
        {
            "kind": one.kind,
            "hosts": _names(one.hosts),
            "others": _names(one.others),
            "device": one.device,
            "cause": one.cause,
            "strength": one.strength,
            "pairs": len(one.pairs),
        }
    )


def _finding(one: Finding) -> dict[str, object]:
    bound, counts = one.bound, one.executions
    return _without_empty(
        {
            "check": one.check,
            "judgement": one.judgement,
            "state": one.state,
            "cause": one.cause,
            "metric": one.metric,
            "size": one.size,
            "nodes": one.nodes,
            "hosts": _names(one.hosts),
            "value": _rounded(one.value),
            "unit": one.unit,
            "required": _rounded(bound.required) if bound else None,
            "most": _rounded(bound.upper) if bound else None,
            "kind": bound.kind if bound else None,
            "bad": counts.bad if counts else None,
            "total": counts.total if counts else None,
            "common": _names(counts.common_hosts) if counts else "",
            "logs": len(one.evidence),
        }
    )


def _passed(verdict: Verdict) -> dict[str, int]:
    """Return the number of passed findings of each kind."""
    found = (f for check in verdict.checks for f in check.findings if f.state is State.PASS)
    kinds = Counter(" ".join(filter(None, (f.check, f.judgement, f.metric))) for f in found)
    return dict(sorted(kinds.items()))


def _range(one: MeasuredRange) -> tuple[str, list[object]]:
    size = "" if one.size is None else str(one.size)
    required = _rounded(one.bound.required) if one.bound else None
    key = " ".join(filter(None, (one.check, one.metric, size, f"{one.nodes} nodes")))
    return key, [one.values, _rounded(one.worst), _rounded(one.median), required]


def differences(old: View, new: View) -> Iterator[str]:
    """Yield a line for each decision that differs."""
    for key in dict.fromkeys((*old, *new)):
        before, after = old.get(key), new.get(key)
        if before == after:
            continue
        if not isinstance(before or after, list | dict):
            yield f"  {key}: {before} -> {after}"
            continue
        left, right = _parts(before), _parts(after)
        yield from (f"  {key} - {one}" for one in (left - right).elements())
        yield from (f"  {key} + {one}" for one in (right - left).elements())


def _parts(value: object) -> Counter[str]:
    if isinstance(value, dict):
        return Counter(f"{key}: {_line(one)}" for key, one in value.items())
    return Counter(map(_line, value)) if isinstance(value, list) else Counter()


def text(views: Mapping[str, View]) -> str:
    """Return verdicts as the JSON of a file, with a line for each decision, so diffs are short."""
    runs = (f"{_line(name)}: {{\n{_decisions(one)}\n}}" for name, one in views.items())
    return "{\n" + ",\n".join(runs) + "\n}\n"


def _decisions(one: View) -> str:
    return ",\n".join(f" {_line(key)}: {_value(value)}" for key, value in one.items())


def _value(value: object) -> str:
    """Return a value in one line, and lists of objects with a line for each."""
    if isinstance(value, list) and any(isinstance(item, dict) for item in value):
        return "[\n  " + ",\n  ".join(map(_line, value)) + "\n ]"
    return _line(value)
