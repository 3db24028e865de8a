"""Write a machine file whose references are the results of a good run: `accept baseline`.

Measurements are references only if they are of one population: their median is then a good one.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from math import floor, log, sqrt
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import NamedTuple

import yaml

from accept import config
from accept.commands.diff import failures, started
from accept.commands.judged import GivenBounds, Judged, is_reference, judge_path
from accept.config.machine import Baseline, Confidence, Machine
from accept.config.references import Figure
from accept.core.causes import Cause, Judgement
from accept.core.error_codes import Code
from accept.core.errors import BadInput, Exit, warning
from accept.core.facts import INVENTORY, NCCL_TESTS
from accept.core.judge.effects.distances import LIMIT
from accept.core.judge.effects.executions import Execution, Network
from accept.core.judge.effects.populations import FEWEST
from accept.core.judge.effects.search import explain
from accept.core.judge.parts import name_of
from accept.core.judge.values import limit_of
from accept.core.limits import NAME
from accept.core.plan import BoundKind
from accept.core.records import Record
from accept.core.serde import dump
from accept.core.text import command_line, count, format_size, host_list, plain, shortened, visible
from accept.core.verdict import State, Verdict
from accept.report.console import Terminal, unwritable

#: A bound below this share of the median lets slow nodes pass, so the user is warned.
LOWEST_SHARE = 0.8
#: Most divided figures that an error names.
_MAX_DIVISIONS = 3

#: Two groups are apart if the gap between them is this many sigma of a group. Of 2,000 simulated
#: sets of normal values with the noise of the machine, none is divided by that. With ten times
#: that noise, 15 % of the sets of 4 values are, and 0.5 % of those of 8.
_GAP_SIGMAS = 6.0
#: Log of the loss between two hosts that distance explains.
_MOST_DISTANCE = -log(1 - LIMIT)
#: Most hosts of a suspect that a message names.
_MOST_NAMED = 4


class MeasuredKind(NamedTuple):
    """The properties that all measurements of a figure share."""

    check: str
    metric: str
    unit: str
    nodes: int
    size: int | None


@dataclass(frozen=True, kw_only=True)
class BaselineFile:
    """The machine file that `accept baseline --out` wrote."""

    machine: str
    #: Number of references that it added.
    figures: int


def do_baseline(
    path: str,
    terminal: Terminal,
    *,
    out: Path | None,
    machine: str | None,
    share: float,
    force: bool,
) -> int:
    """Write the machine of a run, with the run's own measurements added to its references."""
    if not 0.01 <= share <= 1:
        raise BadInput(
            f"--share {share:g} is out of range",
            code=Code.OPTION_RANGE,
            hint="give a number from 0.01 to 1",
        )
    if out is not None and out.suffix not in (".yaml", ".yml"):
        raise BadInput(
            f"{out} is not a YAML file, which --machine needs",
            code=Code.BASELINE_FILE,
            hint="name a .yaml file, such as my-a4.yaml",
        )
    judged = judge_path(path, GivenBounds(machine))
    kinds = measured_kinds(judged)
    if divided := tuple(divisions(judged, kinds)):
        more = len(divided) - _MAX_DIVISIONS
        raise BadInput(
            f"{plain(path, 100)} is not one population: "
            f"{plain('; '.join(divided[:_MAX_DIVISIONS]), 400)}"
            + (f"; and {more} more" if more > 0 else ""),
            code=Code.BASELINE_DIVIDED,
            hint="--force does not change this; see what is bad: "
            f"{command_line('accept', 'judge', path)}",
        )
    if not (judged.verdict.accepted or _lacks_only_references(judged.verdict)) and not force:
        raise BadInput(
            f"{plain(path, 100)} was not accepted: {plain(judged.verdict.headline, 200)}",
            code=Code.BASELINE_NOT_ACCEPTED,
            hint="--force uses it as a reference anyway",
        )
    base = _base(judged, machine)
    figures = tuple(_figures(judged, kinds, share))
    if not figures:
        raise BadInput(
            f"{plain(path, 100)} measured nothing that could be a reference",
            code=Code.BASELINE_EMPTY,
            hint="only bandwidths on whole nodes and training throughputs can be references",
        )
    name = out.stem if out else f"{base.name}-own"
    extended = replace(
        base,
        name=name,
        description=f"{base.description.rstrip('.')}; with references of our own.",
        confidence=Confidence.MEASURED,
        references=(*base.references, *figures),
        baseline=_provenance(judged),
    )
    text = _yaml(extended, path)
    for line in _low_bounds(figures):
        print(visible(line), file=sys.stderr)
    if out is None:
        terminal.document(extended, text)
        return Exit.PASS
    if not re.fullmatch(NAME, name):
        raise BadInput(
            f"{plain(name, 100)!r} is not a valid machine name",
            code=Code.BASELINE_FILE,
            hint="name the file with a-z, 0-9, '.' and '-', such as my-a4.yaml",
        )
    if out.exists() and not force:
        raise BadInput(
            f"{out} exists already",
            code=Code.OUTPUT_EXISTS,
            hint="name another file, or give --force",
        )
    # An existing file is kept until its replacement was read back.
    try:
        with TemporaryDirectory(dir=out.parent) as scratch:
            draft = Path(scratch) / out.name
            draft.write_text(text, encoding="utf-8")
            config.load_machine(str(draft))
            draft.replace(out)
    except OSError as error:
        raise unwritable(out, error, hint="choose another file") from None
    terminal.result(BaselineFile(machine=str(out), figures=len(figures)), str(out))
    terminal.progress(f"wrote {count(len(figures), 'reference')}")
    terminal.suggest(command_line("accept", "run", "--machine", out))
    return Exit.PASS


def _base(judged: Judged, machine: str | None) -> Machine:
    if judged.machine is not None:
        return judged.machine
    name = machine or judged.plan.machine.name
    # Evidence may come from anybody, and its machine may have the name of any file.
    if not machine and name not in config.names("machines"):
        raise BadInput(
            f"machine {plain(name, 80)!r} of the run does not come with accept",
            code=Code.MACHINE_UNKNOWN,
            hint="give the machine file of the run: --machine FILE",
        )
    return config.load_machine(name).value


def measured_kinds(judged: Judged) -> dict[MeasuredKind, list[Execution]]:
    """Return what can be a reference, by check, metric, unit, number of nodes and size."""
    by_kind = judged.figures.where(is_reference).by(
        lambda row: MeasuredKind(row.check, row.metric, row.unit, row.nodes, row.nominal_size)
    )
    # A log may have several results, and each needs a log of its own.
    return {
        kind: [
            Execution(
                hosts=row.hosts,
                population=row.check,
                value=row.value,
                log=f"{row.log} {number}",
                wave=(row.step.id, row.wave),
            )
            for number, row in enumerate(rows)
        ]
        for kind, rows in by_kind.items()
    }


def divisions(judged: Judged, kinds: Mapping[MeasuredKind, Sequence[Execution]]) -> Iterator[str]:
    """Yield the reasons why the results of a run are not those of equal, healthy parts."""
    yield from (f"{suspect.name} is {suspect.cause}" for suspect in judged.verdict.suspects)
    for kind, measured in kinds.items():
        if divided := _summarize(measured, judged.plan.machine.noise).divided:
            size = f" at {format_size(kind.size)}" if kind.size else ""
            yield f"{kind.check}{size} on {count(kind.nodes, 'node')}: {divided}"
    referenced = {kind.check for kind in kinds}
    for failure in failures(judged):
        if failure.check in referenced:
            yield f"{failure.check} failed on {host_list(failure.hosts) or 'unknown hosts'}"


def _lacks_only_references(verdict: Verdict) -> bool:
    """Return True if a verdict is inconclusive only because nothing was expected.

    Groups that the judge cannot tell apart do not count: `_summarize` decides about these.
    """
    findings = [
        finding
        for check in verdict.checks
        for finding in check.findings
        if finding.state is not State.PASS and not check.optional
    ]
    return (
        verdict.state is State.INCONCLUSIVE
        and not verdict.injected
        and all(
            finding.cause is Cause.NO_REFERENCE
            or (
                finding.state is State.INCONCLUSIVE
                and finding.judgement is Judgement.POPULATION
                and finding.cause in (None, Cause.UNPROVEN)
            )
            for finding in findings
        )
    )


def _figures(
    judged: Judged, kinds: Mapping[MeasuredKind, Sequence[Execution]], share: float
) -> Iterator[Figure]:
    """Return a reference for each check, size and number of nodes measured on whole nodes."""
    source = judged.verdict.attempt
    source = source if source and source.isprintable() and " " not in source else judged.plan.hash
    for kind, measured in sorted(kinds.items(), key=str):
        summary = _summarize(measured, judged.plan.machine.noise)
        required = share if summary.share is None else min(share, max(summary.share, 0.01))
        wider = " lower share, because the groups differ by more;" if required < share else ""
        yield Figure(
            check=kind.check,
            metric=kind.metric,
            unit=kind.unit,
            kind=BoundKind.MEASURED,
            source=f"run:{source}",
            value=float(f"{summary.median:.6g}"),
            share=max(0.01, floor(required * 1000) / 1000),
            size=kind.size,
            min_nodes=kind.nodes,
            max_nodes=kind.nodes,
            why=f"Median of {summary.count};{wider} only for this number of nodes.",
        )


def _low_bounds(figures: Sequence[Figure]) -> Iterator[str]:
    """Yield a warning if bounds are so low that nodes which are clearly slow would pass."""
    low = [figure for figure in figures if (figure.share or 0.0) < LOWEST_SHARE]
    if low:
        lowest = min(low, key=lambda figure: figure.share or 0.0)
        yield warning(
            Code.BASELINE_LOW,
            f"{count(len(low), 'bound')} below {LOWEST_SHARE:.0%} of the median; the lowest is "
            f"{lowest.share:.1%} ({lowest.check} on {count(lowest.min_nodes or 1, 'node')})",
        )


def _provenance(judged: Judged) -> Baseline:
    return Baseline(
        run=judged.plan.hash,
        attempt=judged.verdict.attempt,
        state=judged.verdict.state.value,
        date=started(judged.records),
        hosts=judged.verdict.hosts,
        versions={"accept": judged.plan.version, **_versions(judged.records)},
    )


def _versions(records: Sequence[Record]) -> dict[str, str]:
    """Return the software versions on the hosts; at most 4 different ones of each name."""
    by_name: dict[str, dict[str, None]] = {}
    tests = (("nccl-tests", table.version) for _, table in NCCL_TESTS.of(*records))
    others = (item for _, i in INVENTORY.of(*records) for item in i.versions.items())
    for name, version in (*tests, *others):
        if version:
            by_name.setdefault(plain(name, 40), {})[plain(version, 80)] = None
    return {name: ", ".join(list(versions)[:4]) for name, versions in sorted(by_name.items())}


def _yaml(machine: Machine, path: str) -> str:
    data = _without_empty(dump(machine))
    body = yaml.safe_dump(data, sort_keys=False, allow_unicode=True, width=100)
    return f"# References from {plain(path, 100)}, written by `accept baseline`.\n{body}"


def _without_empty(value: object) -> object:
    """Return `value` without keys that have an empty value, recursively."""
    if isinstance(value, dict):
        items = {key: _without_empty(item) for key, item in value.items()}
        return {key: item for key, item in items.items() if item not in (None, "", [], {})}
    return [_without_empty(item) for item in value] if isinstance(value, list) else value


# One population


@dataclass(frozen=True, kw_only=True)
class _Summary:
    """The median and the spread of comparable measurements."""

    #: Number of measurements that count. Those of a wave that was slow for all hosts do not.
    count: int
    median: float
    #: What healthy measurements reach, as a share of the median. None: too few to know.
    share: float | None
    #: Why this is not one population, for people; empty if it is one.
    divided: str = ""


def _summarize(measured: Sequence[Execution], noise: float) -> _Summary:
    """Return the median and the spread of measurements, and whether they are of one population.

    Values are above 0, and higher is better. Each measurement has a log of its own. `noise` is the
    lowest sigma of healthy values, as a share. Pairs are examined as in a verdict: two groups of
    hosts may be apart by no more than distance explains, and a wave may be slow for all hosts.
    """
    parts: list[list[Execution]] = [list(measured)]
    divided, lowest_gap = "", 0.0
    if all(len(set(m.hosts)) == 2 for m in measured):
        parts, divided = _examine_pairs(measured, noise)
        lowest_gap = _MOST_DISTANCE
    values = [one.value for part in parts for one in part if one.value]
    middle = median(values)
    return _Summary(
        count=len(values),
        median=middle,
        share=min(_lowest_healthy(part, noise) for part in parts) / middle
        if len(values) >= FEWEST
        else None,
        divided=divided or _two_groups(values, noise, lowest_gap),
    )


def _examine_pairs(
    measured: Sequence[Execution], noise: float
) -> tuple[list[list[Execution]], str]:
    """Return near pairs and far pairs, and why they are not one population."""
    found = explain(measured, Network(noise=noise))
    divided = [
        f"{name_of(one.part)}: {one.pairs_hit} of {count(one.pairs, 'pair')} bad"
        for one in found.faults
    ]
    if found.open_pairs:
        names = [" - ".join(one.hosts) for one in found.open_pairs]
        collapsed = f"{len(names)} of {count(len(measured), 'pair')} collapsed"
        divided.append(f"{collapsed}: {shortened(names, _MOST_NAMED)}")
    far = {i for one in found.apart for i in one.hits}
    far |= {*found.distance.far} if found.distance else set()
    # What was measured at a bad time shows nothing.
    disturbed = {i for wave in found.waves for i in wave.hits}
    parts = [
        [one for i, one in enumerate(measured) if i not in disturbed and (i in far) is is_far]
        for is_far in (False, True)
    ]
    return [part for part in parts if part] or [list(measured)], "; ".join(divided)


def _lowest_healthy(own: Sequence[Execution], noise: float) -> float:
    """Return the lowest value that is not slow; of too few values, the lowest one."""
    values = [one.value for one in own if one.value]
    alone = [Execution(hosts=(str(i),), population="", value=v) for i, v in enumerate(values)]
    normal = explain(alone, Network(noise=noise)).normal.get("") if len(values) >= FEWEST else None
    return limit_of(normal) if normal else min(values)


def _two_groups(values: Sequence[float], noise: float, lowest_gap: float) -> str:
    """Return the two groups at the widest gap between the logs of values; empty if it is noise."""
    logs = sorted(map(log, values))
    widest, index = max(((b - a, i) for i, (a, b) in enumerate(pairwise(logs), 1)), default=(0, 0))
    groups = (logs[:index], logs[index:])
    freedom = max(1, len(logs) - 2)
    squares = sum((value - sum(g) / len(g)) ** 2 for g in groups for value in g)
    sigma = max(noise, sqrt(squares / freedom))
    if widest <= max(_GAP_SIGMAS * sigma, lowest_gap):
        return ""
    low, high = (median(sorted(values)[part]) for part in (slice(index), slice(index, None)))
    return f"{index} of {len(values)} at {low / high:.0%} of the others"
