"""`accept baseline`: a good run as references of one's own, in a machine file that names it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from math import floor
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

from accept import config
from accept.commands import judge
from accept.commands.judge import Judged, measurements
from accept.config.fields import NAME
from accept.config.machine import Baseline, Machine
from accept.config.references import Figure
from accept.core import checks
from accept.core.errors import BadInput, Exit
from accept.core.judge.robust_stats import spread
from accept.core.model import Record
from accept.core.serde import dump
from accept.core.text import plain
from accept.report.console import Terminal

#: Metrics of which more is better, as a lower bound says.
_METRICS = ("busbw", "throughput")


def do_baseline(
    path: str,
    terminal: Terminal,
    *,
    out: Path | None,
    machine: str | None,
    share: float,
    force: bool,
) -> int:
    """Write the machine of a run with what that run measured as its references."""
    if not 0.01 <= share <= 1:
        raise BadInput(f"--share {share:g} is no share", hint="give a number from 0.01 to 1")
    if out is not None and out.suffix not in (".yaml", ".yml"):
        raise BadInput(
            f"{out} is not a file that --machine takes",
            hint="name a .yaml file, such as my-a4.yaml",
        )
    judged = judge.judge_path(path, expect=(), machine=machine)
    if not judged.verdict.accepted and not force:
        raise BadInput(
            f"{plain(path, 100)} was not accepted: {plain(judged.verdict.headline, 200)}",
            hint="--force makes references of it all the same",
        )
    base = _base(judged, machine)
    figures = tuple(_figures(judged, share))
    if not figures:
        raise BadInput(
            f"{plain(path, 100)} measured nothing that could be a reference",
            hint="a bandwidth on whole nodes, or a training throughput, can be one",
        )
    name = out.stem if out else f"{base.name}-own"
    made = replace(
        base,
        name=name,
        description=f"{base.description.rstrip('.')}; figures of our own.",
        references=(*base.references, *figures),
        baseline=_provenance(judged),
    )
    text = _yaml(made, path)
    if out is None:
        terminal.result(made, text)
        return Exit.PASS
    if not re.fullmatch(NAME, name):
        raise BadInput(
            f"{plain(name, 100)!r} is no name of a machine",
            hint="name the file with a-z, 0-9, '.' and '-', such as my-a4.yaml",
        )
    if out.exists() and not force:
        raise BadInput(f"{out} is there already", hint="name another file, or give --force")
    # What is there stays until what replaces it can be read.
    try:
        with TemporaryDirectory(dir=out.parent) as scratch:
            made_first = Path(scratch) / out.name
            made_first.write_text(text, encoding="utf-8")
            config.load_machine(str(made_first))
            made_first.replace(out)
    except OSError as error:
        raise BadInput(f"{out} cannot be written: {error.strerror}", hint="name another") from None
    terminal.result({"machine": str(out), "figures": len(figures)}, str(out))
    terminal.progress(f"{len(figures)} figures; use them: --machine {out}")
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
        raise BadInput(error.message, hint="name the machine file of the run: --machine") from None


def _figures(judged: Judged, share: float) -> Iterator[Figure]:
    """One for each check, size and number of nodes that was measured on whole nodes."""
    source = judged.verdict.attempt
    source = source if source and source.isprintable() and " " not in source else judged.plan.hash
    found: dict[tuple[str, str, str, int, int | None], list[float]] = {}
    for one in measurements(judged.plan, judged.records):
        if one.check not in checks.names():
            continue
        if one.metric in _METRICS and not one.ranks and one.value > 0:
            key = (one.check, one.metric, one.unit, len(one.hosts), one.size)
            found.setdefault(key, []).append(one.value)
    for (check, metric, unit, nodes, size), values in sorted(found.items(), key=str):
        among = spread(values, judged.plan.machine.noise)
        held = min(share, max(among.share, 0.01)) if among else share
        wider = " the groups themselves differ by more than that;" if held < share else ""
        yield Figure(
            check=check,
            metric=metric,
            unit=unit,
            kind="measured",
            source=f"run:{source}",
            value=float(f"{median(values):.6g}"),
            share=max(0.01, floor(held * 1000) / 1000),
            size=size,
            min_nodes=nodes,
            max_nodes=nodes,
            why=f"Median of {len(values)};{wider} of other numbers of nodes it says nothing.",
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
    """Versions that were seen; several of one thing are all named."""
    seen: dict[str, dict[str, None]] = {}
    for record in records:
        for fact in record.facts:
            value = fact.value if isinstance(fact.value, dict) else {}
            found: dict[str, Any] = {}
            if fact.name == "nccl-tests":
                found = {"nccl-tests": value.get("version")}
            elif fact.name == "inventory":
                versions = value.get("versions")
                found = dict(versions) if isinstance(versions, dict) else {}
            for name, version in found.items():
                if isinstance(version, str) and version:
                    seen.setdefault(plain(name, 40), {})[plain(version, 80)] = None
    return {name: ", ".join(list(several)[:4]) for name, several in sorted(seen.items())}


def _yaml(machine: Machine, path: str) -> str:
    import yaml

    data = _kept(dump(machine))
    body = yaml.safe_dump(data, sort_keys=False, allow_unicode=True, width=100)
    return f"# References from {plain(path, 100)}, written by `accept baseline`.\n{body}"


def _kept(value: Any) -> Any:
    """Data without what is nothing: those keys may be left out."""
    if isinstance(value, dict):
        made = {key: _kept(item) for key, item in value.items()}
        return {key: item for key, item in made.items() if item not in (None, "", [], {})}
    return [_kept(item) for item in value] if isinstance(value, list) else value
