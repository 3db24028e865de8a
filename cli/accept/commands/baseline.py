"""Write a machine file whose references are the results of a good run: `accept baseline`."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from math import floor
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

import yaml

from accept import config
from accept.commands import judge
from accept.commands.judge import Judged, measurements
from accept.config.fields import NAME
from accept.config.machine import Baseline, Machine
from accept.config.references import Figure
from accept.core import checks
from accept.core.error_codes import Code
from accept.core.errors import BadInput, Exit
from accept.core.facts import INVENTORY, NCCL_TESTS
from accept.core.judge.robust_stats import spread
from accept.core.model import BoundKind, Record
from accept.core.serde import dump
from accept.core.text import plain
from accept.report.console import Terminal


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
    judged = judge.judge_path(path, expect=(), machine=machine)
    if not judged.verdict.accepted and not force:
        raise BadInput(
            f"{plain(path, 100)} was not accepted: {plain(judged.verdict.headline, 200)}",
            code=Code.BASELINE_NOT_ACCEPTED,
            hint="--force uses it as a reference anyway",
        )
    base = _base(judged, machine)
    figures = tuple(_figures(judged, share))
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
        references=(*base.references, *figures),
        baseline=_provenance(judged),
    )
    text = _yaml(extended, path)
    if out is None:
        terminal.result(extended, text)
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
        raise BadInput(
            f"{out} cannot be written: {error.strerror}",
            code=Code.OUTPUT_WRITE,
            hint="choose another file",
        ) from None
    terminal.result(BaselineFile(machine=str(out), figures=len(figures)), str(out))
    terminal.progress(f"wrote {len(figures)} references; use them with --machine {out}")
    return Exit.PASS


def _base(judged: Judged, machine: str | None) -> Machine:
    if judged.machine is not None:
        return judged.machine
    name = machine or judged.plan.machine.name
    try:
        return config.load_machine(name).value
    except BadInput as error:
        if machine:
            raise
        hint = "give the machine file of the run: --machine FILE"
        raise BadInput(error.message, code=error.code, hint=hint) from None


def _figures(judged: Judged, share: float) -> Iterator[Figure]:
    """Return a reference for each check, size and number of nodes measured on whole nodes."""
    source = judged.verdict.attempt
    source = source if source and source.isprintable() and " " not in source else judged.plan.hash
    by_kind: dict[tuple[str, str, str, int, int | None], list[float]] = {}
    for measurement in measurements(judged.plan, judged.records):
        spec = checks.metric_spec(measurement.check, measurement.metric)
        is_usable = not measurement.ranks and measurement.value > 0
        if spec is not None and spec.baseline and is_usable:
            nodes = len(measurement.hosts)
            kind = (measurement.check, spec.name, spec.unit, nodes, measurement.size)
            by_kind.setdefault(kind, []).append(measurement.value)
    for (check, metric, unit, nodes, size), values in sorted(by_kind.items(), key=str):
        among = spread(values, judged.plan.machine.noise)
        required = min(share, max(among.share, 0.01)) if among else share
        wider = " lower share, because the groups differ by more;" if required < share else ""
        yield Figure(
            check=check,
            metric=metric,
            unit=unit,
            kind=BoundKind.MEASURED,
            source=f"run:{source}",
            value=float(f"{median(values):.6g}"),
            share=max(0.01, floor(required * 1000) / 1000),
            size=size,
            min_nodes=nodes,
            max_nodes=nodes,
            why=f"Median of {len(values)};{wider} only for this number of nodes.",
        )


def _provenance(judged: Judged) -> Baseline:
    starts = [record.start for record in judged.records if record.start > 0]
    date = f"{datetime.fromtimestamp(min(starts), UTC):%Y-%m-%d %H:%M} UTC" if starts else None
    return Baseline(
        run=judged.plan.hash,
        attempt=judged.verdict.attempt,
        state=judged.verdict.state.value,
        date=date,
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
