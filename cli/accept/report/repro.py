"""Write a script that repeats the measurement of a ticket with Open MPI and nccl-tests alone."""

from __future__ import annotations

import math
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from accept.config import resources
from accept.core.catalog.tools import NCCL_TESTS_FOLDERS
from accept.core.checks import REGISTRY
from accept.core.checks.check import CheckParams
from accept.core.plan import Step
from accept.core.records import Record
from accept.core.serde import Invalid, read
from accept.core.text import plain
from accept.report.data import Population, Run, Sample, measured

#: `collective.py`, the modules that it imports, and what these read.
_PROGRAMS = (
    *("amd_gpus.py", "collective.py", "commands.py", "corruption_source.py", "given_gpus.py"),
    *("gpu_inventory.py", "health_host.py", "kernel_events.json", "nvml.py", "pci.py"),
    *("rank_io.py", "reference_data.py", "torch_collectives.py", "torch_io.py"),
    "windowed_timer.py",
)
#: Variables that are left out because their output would hide the table.
_LEFT_OUT = ("NCCL_DEBUG", "NCCL_DEBUG_SUBSYS", "NCCL_DEBUG_FILE")
#: Variables of others that a script may set: those of the libraries, without a path.
_HARMLESS_NAME = re.compile(r"(?:NCCL|GLOO|CUDA)_")
_HARMLESS_VALUE = re.compile(r"[\w.,:;=^+ -]{0,300}", re.ASCII)


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Settings of the ranks that only the workstation that rendered the run knows."""

    #: True if this workstation ordered the plan, so that no stranger chose its environment.
    trusted: bool = False
    #: The environment script of NCCL's plugin; empty: none, or unknown.
    script: str = ""
    #: NCCL profile of a step -> the variables that it sets and removes.
    changed: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    removed: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    #: Channels of NCCL to each peer of sendrecv; 0: NCCL's choice.
    net_channels: int = 0


def script_of(
    run: Run,
    population: Population,
    sample: Sample,
    settings: Settings,
    accused: Sequence[Sample] = (),
) -> str:
    """Return the script for one execution of a collective on one or two nodes; "" for others.

    `accused`: the executions of the subject that the verdict calls bad.
    """
    check, step = REGISTRY[population.check], population.step
    record = _record_of(run, population, sample)
    if check.template != "collectives.sh.j2" or record is None or len(record.hosts) > 2:
        return ""
    collective = check.collective
    removed = (*_LEFT_OUT, *settings.removed.get(step.profile, ()))
    env = {**run.plan.env, **settings.changed.get(step.profile, {})}
    env = {name: value for name, value in env.items() if name not in removed}
    held = {} if settings.trusted else {n: v for n, v in env.items() if not _is_harmless(n, v)}
    env = {name: value for name, value in env.items() if name not in held}
    if collective == "sendrecv" and settings.net_channels:
        env.setdefault("NCCL_NCHANNELS_PER_NET_PEER", str(settings.net_channels))
    pair = len(record.hosts) == 2
    # The script reads bandwidths, and a latency is a time.
    limit = None if population.measure.inverse else _lowest_good(population, accused)
    of_gpus = run.plan.machine.gpus != 0
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent / "templates"),
        undefined=StrictUndefined,
        keep_trailing_newline=True,
        autoescape=False,
    )
    environment.filters["sh"] = lambda value: shlex.quote(str(value))
    return environment.get_template("repro.sh.j2").render(
        collective=collective.replace("_", "-"),
        program=f"{collective}_perf",
        where="between two nodes" if pair else "on one node",
        pair=pair,
        hosts=record.hosts,
        ranks=max(1, record.ranks // len(record.hosts)),
        devices=record.local_ranks if of_gpus else (),
        interface=run.plan.machine_in(step).interface,
        folders=NCCL_TESTS_FOLDERS,
        env=env,
        held=[plain(f"{name}={shlex.quote(value)}", 300) for name, value in sorted(held.items())],
        others=sorted(n for n in env if not n.startswith(("NCCL_", "GLOO_", "CUDA_"))),
        script=settings.script,
        params=_params(check.params, step),
        limit=limit,
        limit_text=population.measure.text(limit) if limit else "",
        against=_against(population, limit) if limit else "",
        failed=sample.value is None or sample.cause is not None,
        result=_result(population, sample),
    )


def _is_harmless(name: str, value: str) -> bool:
    """Return True if a variable cannot make a program load or run a file."""
    return bool(_HARMLESS_NAME.match(name) and _HARMLESS_VALUE.fullmatch(value))


def _lowest_good(population: Population, accused: Sequence[Sample]) -> float | None:
    """Return the value below which a repetition is bad; None: nothing shows it.

    Several values accuse a part that are each too close to normal to be bad alone, so a value as
    low as these is bad as well. No limit is higher than two sigma below normal, which healthy
    nodes reach in 98 of 100 measurements.
    """
    lowest, normal = population.lowest_good, population.normal
    own = measured(one for one in population.samples if one in accused)
    if lowest is None or normal is None or not own:
        return lowest
    highest = math.nextafter(max(own), math.inf)
    return max(lowest, min(highest, normal.value * (1 - 2 * normal.sigma)))


def _against(population: Population, limit: float) -> str:
    """Return what the script compares its value with, for people."""
    text, normal = population.measure.text, population.normal
    usual = f"of {text(normal.value)} (normal)" if normal else "GB/s"
    return plain(f"{usual}; good from {text(limit)}")


def _params(kind: type[CheckParams], step: Step) -> dict[str, object]:
    """Return the parameters of a step; the defaults if they are invalid."""
    try:
        return vars(read(kind, step.params))
    except Invalid:
        return vars(kind())


def _result(population: Population, sample: Sample) -> tuple[str, ...]:
    """Return what the run measured, for comparison, as lines of plain text."""
    size = f" at {population.size} bytes" if population.size else ""
    show = population.measure.text
    value = show(sample.value) if sample.value is not None else "nothing"
    lines = [f"# the run measured {value}{size}"]
    if sample.cause:
        lines[0] += f" ({sample.cause})"
    if population.normal is not None:
        others = f"by {population.normal.values} values"
        lines.append(f"# normal: {show(population.normal.value)}, {others}")
    return tuple(plain(line) for line in lines)


def _record_of(run: Run, population: Population, sample: Sample) -> Record | None:
    """Return the record of an execution."""
    wanted = (population.step.id, sample.hosts, sample.log)
    for record in run.records:
        if (record.step, record.hosts, record.log) == wanted and not record.local_ranks:
            return record
    return None


def programs() -> dict[str, str]:
    """Return the programs that replace nccl-tests, by their paths beside the script."""
    folder = resources.launchers() / "programs"
    return {f"programs/{name}": (folder / name).read_text(encoding="utf-8") for name in _PROGRAMS}
