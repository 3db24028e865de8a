"""Compare two runs or two folders of logs: what became slower, failed, or was not measured."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from math import sqrt
from statistics import median

from accept.commands.host_changes import (
    MEDIAN_ERROR,
    NOISE,
    ChangedHost,
    ChangedPair,
    Figure,
    Group,
    careful_sigma,
    changed_hosts,
    changed_pairs,
)
from accept.commands.judged import Judged, judge_path
from accept.core.catalog.metrics import BUSBW, Better
from accept.core.checks import better
from accept.core.error_codes import Code
from accept.core.errors import BadInput, Exit
from accept.core.judge.effects.populations import FEWEST
from accept.core.judge.summary import NodeState, node_lists
from accept.core.judge.values import SIGMAS
from accept.core.plan import GroupKind
from accept.core.records import Record
from accept.core.table import Row, Table
from accept.core.text import count, folded, format_size, host_list, number, plain, shortened
from accept.core.verdict import State, Suspect
from accept.report.console import Terminal

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

    @property
    def sign(self) -> int:
        """Return the exponent of a ratio of two values, so that above 1 is better."""
        return _DIRECTION[better(self.check, self.metric, self.unit)]


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

    @property
    def slower(self) -> bool:
        """True if the groups became slower."""
        return self.significant and self.change < 0


@dataclass(frozen=True, kw_only=True)
class Moved(Kind):
    """The medians of one node or pair in A and in B, in the unit of the kind."""

    hosts: tuple[str, ...]
    a: float
    b: float
    #: As a share of A; above 0 is better.
    change: float


@dataclass(frozen=True, kw_only=True)
class ChangedState:
    """A node that is good, bad or untested in B, and was not in A."""

    host: str
    a: NodeState
    b: NodeState


@dataclass(frozen=True, kw_only=True)
class NotMeasured(Kind):
    """Groups that A measured and B did not."""

    #: The hosts of each missing group.
    missing: tuple[tuple[str, ...], ...]
    groups_a: int
    #: False if the check is optional.
    required: bool


@dataclass(frozen=True, kw_only=True)
class Failure:
    """A check that measured nothing on these hosts."""

    check: str
    hosts: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Side:
    """One of the two runs."""

    path: str
    attempt: str
    #: Start of the run, such as "2026-11-22 10:04 UTC"; None for logs.
    date: str | None
    state: State
    headline: str
    hosts: int


@dataclass(frozen=True, kw_only=True)
class Diff:
    """The output of `accept diff --json`."""

    #: True if B is worse than A: slower, rejected, or with new failures or suspects.
    regression: bool
    #: True if B measured everything that A did, apart from optional checks.
    complete: bool
    a: Side
    b: Side
    #: Hosts that became slower than the others did, slowest first.
    hosts: tuple[ChangedHost, ...]
    #: Pairs that collapsed, and that no host in `hosts` explains, slowest first.
    pairs: tuple[ChangedPair, ...]
    #: The figures of these hosts and pairs, and of nodes that became bad or are no longer bad, of
    #: each the one that lost most first.
    moved: tuple[Moved, ...]
    #: Nodes that both runs have, and whose state is not the same.
    states: tuple[ChangedState, ...]
    changes: tuple[Change, ...]
    #: Failures in B only.
    failed: tuple[Failure, ...]
    #: Suspects of B that A does not accuse of the same cause. Slow ones are left out, because
    #: `changes` has these.
    accused: tuple[Suspect, ...]
    not_measured: tuple[NotMeasured, ...]
    #: Checks of A or B that measured single GPUs or NICs only, which are not compared.
    not_compared: tuple[str, ...]
    hosts_only_in_a: tuple[str, ...]
    only_in_a: tuple[Kind, ...]
    only_in_b: tuple[Kind, ...]


_Groups = dict[Group, float]


def kinds(figures: Table) -> dict[Kind, _Groups]:
    """Return the values by kind and group; of repeated measurements the median."""
    comparable = figures.where(
        lambda row: (row.value or 0.0) > 0 and better(row.check, row.metric, row.unit) in _DIRECTION
    )
    return {
        kind: {group: repeated.median for group, repeated in own.by(_group).items()}
        for kind, own in comparable.by(_kind).items()
    }


def _kind(row: Row) -> Kind:
    return Kind(
        check=row.check,
        metric=row.metric,
        unit=row.unit,
        groups=row.step.groups,
        nodes=row.nodes,
        gpus=len(row.ranks),
        size=row.nominal_size,
    )


def _group(row: Row) -> Group:
    return tuple(sorted(row.hosts)), row.ranks


def changes(a: Mapping[Kind, _Groups], b: Mapping[Kind, _Groups]) -> tuple[Change, ...]:
    """Return the changes of the kinds that both have, in the order of A."""
    return tuple(_change(kind, a[kind], b[kind]) for kind in a if kind in b)


def _change(kind: Kind, a: _Groups, b: _Groups) -> Change:
    """Compare each group with itself, or all groups if less than half of them are in both."""
    sign = kind.sign
    ratios = [(b[group] / a[group]) ** sign for group in a if group in b]
    if len(ratios) * 2 >= min(len(a), len(b)):
        ratio, sigma = _median_and_sigma(ratios)
        error = sigma / sqrt(len(ratios))
    else:
        median_a, sigma_a = _median_and_sigma(list(a.values()))
        median_b, sigma_b = _median_and_sigma(list(b.values()))
        ratio = (median_b / median_a) ** sign
        error = sqrt((sigma_a / median_a) ** 2 / len(a) + (sigma_b / median_b) ** 2 / len(b))
    noise = max(NOISE, SIGMAS * MEDIAN_ERROR * error)
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
    )


def _median_and_sigma(values: Sequence[float]) -> tuple[float, float]:
    """Return the median, and the sigma of one value.

    Too few values have no sigma of their own; that of a ratio of two measurements is assumed.
    """
    center = median(values)
    lowest = NOISE if len(values) >= FEWEST else sqrt(2) * NOISE
    return center, max(lowest * abs(center), careful_sigma(values))


def figures(a: Mapping[Kind, _Groups], b: Mapping[Kind, _Groups]) -> list[Figure]:
    """Return the values of A and B of each kind on single nodes or pairs; higher is better."""
    return [
        Figure(*({group: v**sign for group, v in side[kind].items()} for side in (a, b)))
        for kind, sign in ((one, one.sign) for one in a if one in b and one.nodes < 3)
    ]


def moved(
    hosts: Sequence[str], a: Mapping[Kind, _Groups], b: Mapping[Kind, _Groups]
) -> tuple[Moved, ...]:
    """Return the figures on single nodes or pairs of a node or of a pair, worst change first.

    Groups that both runs have are compared; if there are none, all groups of the hosts.
    """
    found = []
    for kind in a:
        if kind not in b or kind.nodes > 2:
            continue
        own = [{g: v for g, v in side[kind].items() if {*hosts} <= {*g[0]}} for side in (a, b)]
        both = own[0].keys() & own[1].keys()
        values = [
            median(v for g, v in side.items() if g in both or not both) for side in own if side
        ]
        if len(values) == 2:
            ratio = (values[1] / values[0]) ** kind.sign
            found.append(
                Moved(
                    **vars(kind),
                    hosts=tuple(hosts),
                    a=values[0],
                    b=values[1],
                    change=round(ratio - 1, 6),
                )
            )
    return tuple(sorted(found, key=lambda one: one.change))


def failures(judged: Judged) -> tuple[Failure, ...]:
    """Return the checks that failed and measured nothing, each with its hosts."""
    measured = {(row.check, row.hosts, row.log) for row in judged.figures}
    failed = {
        (check, tuple(sorted(record.hosts)))
        for record in judged.records
        for check in record.checks
        if record.exit != 0 and (check, record.hosts, record.log) not in measured
    }
    return tuple(Failure(check=check, hosts=hosts) for check, hosts in sorted(failed))


def _not_measured(
    a: Mapping[Kind, _Groups],
    b: Mapping[Kind, _Groups],
    failed: Sequence[Failure],
    judged_a: Judged,
    judged_b: Judged,
) -> Iterator[NotMeasured]:
    """Yield what A measured and B did not, without what failed in B.

    Two clusters with less than half of the hosts in common are compared by their figures only. In
    runs, pairs are a sample: other pairs of the same hosts are as good.
    """
    hosts_a, hosts_b = set(judged_a.verdict.hosts), set(judged_b.verdict.hosts)
    is_same_cluster = 2 * len(hosts_a & hosts_b) >= len(hosts_a)
    optional = {
        check
        for check in {kind.check for kind in a}
        if all(step.optional for step in judged_a.plan.steps if check in step.checks)
    }
    tried = {(failure.check, failure.hosts) for failure in failed}
    sizeless = {replace(kind, nodes=0) for kind in b}
    for kind, groups in a.items():
        measured = b.get(kind, {})
        of_all = not (kind.groups.of_single_hosts or kind.groups.of_pairs)
        if not measured and of_all and replace(kind, nodes=0) in sizeless:
            continue  # another number of hosts
        seen = {host for hosts, _ in measured for host in hosts}
        is_sample = not (kind.groups.of_single_hosts or judged_b.plan.origin)
        missing = [
            hosts
            for hosts, ranks in groups
            if (hosts, ranks) not in measured
            and (kind.check, hosts) not in tried
            and (not measured or (is_same_cluster and not (is_sample and seen.issuperset(hosts))))
        ]
        if missing:
            yield NotMeasured(
                **vars(kind),
                missing=tuple(sorted(missing)),
                groups_a=len(groups),
                required=kind.check not in optional,
            )


_BAD = (State.FAIL, State.DEGRADED)
#: Most lines of each kind on a terminal.
_MAX_LINES = 20
#: Most hosts or pairs in the first line.
_MAX_NAMED = 3


def do_diff(a: str, b: str, terminal: Terminal) -> int:
    """Compare B with A. Raises BadInput if they have no measurement in common."""
    judged_a, judged_b = (judge_path(path) for path in (a, b))
    result = compare(a, judged_a, b, judged_b)
    terminal.result(result, text_of(result))
    if result.regression:
        return Exit.REJECTED
    return Exit.PASS if result.complete else Exit.INCOMPLETE


def compare(path_a: str, a: Judged, path_b: str, b: Judged) -> Diff:
    """Return what changed from A to B. Raises BadInput if they have no measurement in common."""
    kinds_a, kinds_b = (kinds(judged.figures) for judged in (a, b))
    common = changes(kinds_a, kinds_b)
    compared_checks = {kind.check for kind in (*kinds_a, *kinds_b)}
    not_compared = tuple(sorted(_of_single_devices((*a.records, *b.records)) - compared_checks))
    if not common:
        hint = "compare runs of the same checks, sizes and numbers of nodes"
        if not_compared:
            names = ", ".join(not_compared)
            hint = f"results of single GPUs or NICs are not compared ({names}); {hint}"
        raise BadInput(
            f"{plain(path_a, 100)} and {plain(path_b, 100)} measured nothing in common: "
            f"{_first_names(kinds_a)}, and {_first_names(kinds_b)}",
            code=Code.DIFF_NOTHING_IN_COMMON,
            hint=hint,
        )
    known_failures, all_failures = (failures(judged) for judged in (a, b))
    known_suspects = {(s.part, s.cause) for s in a.verdict.suspects}
    hosts_b = b.verdict.hosts
    failed = tuple(failure for failure in all_failures if failure not in known_failures)
    accused = tuple(
        suspect
        for suspect in b.verdict.suspects
        if not suspect.cause.row.slow and (suspect.part, suspect.cause) not in known_suspects
    )
    compared = figures(kinds_a, kinds_b)
    hosts = changed_hosts(compared)
    pairs = changed_pairs(compared, hosts)
    states_a, states_b = (node_lists(one.verdict).states for one in (a, b))
    states = tuple(
        ChangedState(host=host, a=state, b=states_b[host])
        for host, state in states_a.items()
        if states_b.get(host, state) is not state
    )
    in_bad = [(one.host,) for one in states if NodeState.BAD in (one.a, one.b)]
    not_measured = tuple(_not_measured(kinds_a, kinds_b, all_failures, a, b))
    newly_rejected = b.verdict.state in _BAD and a.verdict.state not in _BAD
    slower = any(change.slower for change in common)
    return Diff(
        regression=bool(hosts or pairs or failed or accused) or newly_rejected or slower,
        complete=not any(one.required for one in not_measured),
        a=_side(path_a, a),
        b=_side(path_b, b),
        hosts=hosts,
        pairs=pairs,
        moved=tuple(
            one
            for own in dict.fromkeys(
                (*((changed.host,) for changed in hosts), *(pair.hosts for pair in pairs), *in_bad)
            )
            for one in moved(own, kinds_a, kinds_b)
        ),
        states=states,
        changes=common,
        failed=failed,
        accused=accused,
        not_measured=not_measured,
        not_compared=not_compared,
        hosts_only_in_a=tuple(host for host in a.verdict.hosts if host not in hosts_b),
        only_in_a=tuple(kind for kind in kinds_a if kind not in kinds_b),
        only_in_b=tuple(kind for kind in kinds_b if kind not in kinds_a),
    )


def _of_single_devices(records: Iterable[Record]) -> set[str]:
    """Return the checks that measured single GPUs or NICs, as `figures` leaves these out."""
    metrics = (metric for record in records for metric in record.metrics)
    return {one.check for one in metrics if one.rank is not None or one.nic is not None}


def _first_names(measured: Iterable[Kind]) -> str:
    return shortened([_name(kind) for kind in measured], _MAX_NAMED, "; ") or "nothing"


def _side(path: str, judged: Judged) -> Side:
    verdict = judged.verdict
    return Side(
        path=path,
        attempt=verdict.attempt,
        date=started(judged.records),
        state=verdict.state,
        headline=verdict.headline,
        hosts=len(verdict.hosts),
    )


def started(records: Sequence[Record]) -> str | None:
    """Return the date and the time of the first record; None for logs, which have no times."""
    starts = [record.start for record in records if record.start > 0]
    return f"{datetime.fromtimestamp(min(starts), UTC):%Y-%m-%d %H:%M} UTC" if starts else None


# Text


def _name(kind: Kind) -> str:
    """Return the name of a kind: "alltoall at 16G on pairs, 4 GPUs of each"."""
    size = f" at {format_size(kind.size)}" if kind.size else ""
    metric = "" if kind.metric == BUSBW.name else f" {kind.metric}"
    where = {
        GroupKind.EACH: "each node",
        GroupKind.ALONE: "each node alone",
        GroupKind.PAIRS: "pairs",
    }.get(kind.groups, "")
    where = where or f"{kind.groups} ({count(kind.nodes, 'node')})"
    gpus = f", {count(kind.gpus, 'GPU')} of each" if kind.gpus else ""
    return f"{kind.check}{metric}{size} on {where}{gpus}"


def text_of(diff: Diff) -> str:
    """Return what `accept diff` prints."""
    slower = [change for change in diff.changes if change.slower]
    faster = [c for c in diff.changes if c.significant and c.change > 0]
    lines = [_headline(diff, slower), _side_line("A", diff.a), _side_line("B", diff.b), ""]
    unchanged = len(diff.changes) - len(slower) - len(faster)
    for title, found in (
        ("Nodes that became slower than the others", [_host_line(one, diff) for one in diff.hosts]),
        ("Pairs that collapsed", [_pair_line(one, diff) for one in diff.pairs]),
        ("Nodes in another state", [*_state_lines(diff)]),
        ("Failed only in B", [_failure_line(one) for one in diff.failed]),
        ("Accused only in B", [f"{plain(s.name, 120)} ({s.cause})" for s in diff.accused]),
        ("Slower", [_change_line(change) for change in slower]),
        ("Faster", [_change_line(change) for change in faster]),
        ("Not measured in B", [_missing_line(one) for one in diff.not_measured]),
        ("Measured only in B", [_name(kind) for kind in diff.only_in_b]),
    ):
        lines += [title] if found else []
        lines += [f"  {line}" for line in found[:_MAX_LINES]]
        more = len(found) - _MAX_LINES
        lines += [f"  … and {more} more: see --json"] if more > 0 else []
    lines.append(f"Unchanged within noise: {unchanged} of {count(len(diff.changes), 'figure')}")
    if diff.not_compared:
        lines.append(
            f"Not compared: results of single GPUs or NICs ({', '.join(diff.not_compared)})"
        )
    if diff.hosts_only_in_a:
        lines.append(f"Nodes only in A: {plain(host_list(diff.hosts_only_in_a), 300)}")
    return "\n".join(lines)


def _headline(diff: Diff, slower: Sequence[Change]) -> str:
    """Return what changed most: a host, a pair, what failed, a figure; then what is unknown."""
    parts = []
    if diff.hosts:
        parts.append(shortened([_host_line(one, diff) for one in diff.hosts], _MAX_NAMED, "; "))
    if diff.pairs:
        worst = diff.pairs[0]
        parts.append(f"{count(len(diff.pairs), 'pair')} collapsed: {_pair_line(worst, diff)}")
        parts[-1] += " (the worst)" if len(diff.pairs) > 1 else ""
    if diff.failed:
        parts.append(f"{count(len(diff.failed), 'group')} failed: {_failure_line(diff.failed[0])}")
    if diff.accused:
        parts.append(f"{plain(diff.accused[0].name, 120)} {diff.accused[0].cause}")
    if slower and not diff.hosts:
        worst_change = min(slower, key=lambda change: change.change)
        parts.append(f"{len(slower)} of {count(len(diff.changes), 'figure')} slower: ")
        parts[-1] += _values(worst_change)
    if not parts and diff.regression:
        parts.append(f"B is rejected: {plain(diff.b.headline, 120)}")
    if len(parts) == 1 and diff.hosts:
        # Groups of all hosts are as slow as the slowest host.
        lowest = diff.hosts[0].change
        rest = [c for c in slower if c.nodes < 3 or c.change < lowest - c.noise]
        parts += [] if rest else ["nothing else changed"]
    parts = parts or ["nothing became slower"]
    if not diff.complete:
        parts.append("B did not measure everything")
    return "; ".join(parts)


def _side_line(name: str, side: Side) -> str:
    attempt = "" if side.attempt in ("", side.path) else f" ({plain(side.attempt, 80)})"
    date = f", {side.date}" if side.date else ""
    hosts = count(side.hosts, "node")
    return f"{name}: {plain(side.path, 120)}{attempt}{date}, {hosts}, {plain(side.headline, 120)}"


def _host_line(one: ChangedHost, diff: Diff) -> str:
    where = f"{one.figures} of {count(one.of_figures, 'figure')}"
    worst = _worst((one.host,), diff)
    return f"{plain(one.host, 80)} is {-one.change:.1%} slower in {where}{worst}"


def _pair_line(one: ChangedPair, diff: Diff) -> str:
    where = f"{one.figures} of {count(one.of_figures, 'figure')}"
    worst = _worst(one.hosts, diff)
    return f"{plain(' - '.join(one.hosts), 160)} reaches {one.share:.0%} of A in {where}{worst}"


def _worst(hosts: tuple[str, ...], diff: Diff) -> str:
    """Return the figure in which a node or pair lost most."""
    return next((f": {_values(own)}" for own in diff.moved if own.hosts == hosts), "")


def _state_lines(diff: Diff) -> Iterator[str]:
    """Yield bad nodes, and those that were bad, with a figure; then how many others changed."""
    others: dict[str, list[str]] = {}
    for one in diff.states:
        change = f"{one.a} -> {one.b}"
        if NodeState.BAD in (one.a, one.b):
            yield f"{plain(one.host, 80)}: {change}{_worst((one.host,), diff)}"
        else:
            others.setdefault(change, []).append(one.host)
    for change, hosts in others.items():
        yield f"{plain(folded(hosts), 200)}: {change}"


def _failure_line(failure: Failure) -> str:
    return f"{failure.check} on {plain(host_list(failure.hosts), 120) or 'unknown nodes'}"


def _missing_line(one: NotMeasured) -> str:
    names = shortened([" - ".join(hosts) or "unknown nodes" for hosts in one.missing], _MAX_NAMED)
    optional = "" if one.required else ", optional"
    groups = f"{len(one.missing)} of {count(one.groups_a, 'group')}"
    return f"{_name(one)}: {groups}{optional}: {plain(names, 200)}"


def _change_line(change: Change) -> str:
    both = f"{count(change.paired, 'group')} in both"
    return f"{_values(change)} (noise {change.noise:.1%}, {both})"


def _values(one: Change | Moved) -> str:
    """Return a figure with its values: "gemm on each node: 752 -> 690 TFLOP/s, 8.2% slower".

    A time has the share of time instead: "10.0 -> 12.5 us, 25.0% more", "30 times as much".
    """
    values = f"{number(one.a)} -> {number(one.b)} {one.unit}".rstrip()
    more = one.b / one.a - 1
    if one.sign > 0:
        change = f"{abs(one.change):.1%} {'slower' if one.change < 0 else 'faster'}"
    elif more >= 1:
        change = f"{number(more + 1)} times as much"
    else:
        change = f"{abs(more):.1%} {'more' if more > 0 else 'less'}"
    return f"{_name(one)}: {values}, {change}"
