"""Measure the overhead of a run: a full `quick` over ssh on 8 hosts of this machine.

Overhead is (wall - sum over waves of (last record's end - first record's start)) / wall. Wall is
the time from the start of `accept run` to its end. Inside a wave, launching is the time until the
last group begins. It has its own row, because Open MPI and torch need that time.
"""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

from tests.cluster.hosts import Hosts
from tests.cluster.runs import MACHINE, SIZES, VENV

from benchmarks import Row

_HOSTS = 8
_BAR = 0.10
_COLLECTIVES = ("all-reduce", "all-gather", "reduce-scatter", "alltoall", "sendrecv")
#: The machine of the tests, with sizes that are large enough to measure the link.
MACHINE_TEXT = MACHINE + "".join(f"  {name}: {SIZES}\n" for name in _COLLECTIVES)


def rows(count: int = _HOSTS) -> list[Row]:
    """Measure one run, which must be accepted."""
    with (
        tempfile.TemporaryDirectory(prefix="accept-bench-") as scratch,
        Hosts(count) as hosts,
    ):
        folder = Path(scratch)
        machine, site, runs = folder / "machine.yaml", folder / "site.yaml", folder / "runs"
        machine.write_text(MACHINE_TEXT)
        site.write_text(f"tools:\n  venv: {VENV}\n")
        environment = {
            **os.environ,
            "ACCEPT_SSH_CONFIG": str(hosts.ssh_config),
            "ACCEPT_RUNS": str(runs),
        }
        options = ["--hosts", ",".join(hosts.names), "--machine", str(machine)]
        began = time.time()
        subprocess.run(
            [str(VENV / "bin" / "accept"), "run", *options, "--site", str(site), "--json"],
            check=True,
            env=environment,
            stdout=subprocess.DEVNULL,
        )
        wall = time.time() - began
        (lines,) = runs.glob("*/evidence/records.jsonl")
        records = [json.loads(line) for line in lines.read_text().splitlines()]
        plan = json.loads((lines.parent / "plan.json").read_text())
    estimate = sum(step["estimate"] for step in plan["steps"] if not step.get("ifOpen"))
    return [*shares(records, wall, f"`quick` on {count} ssh hosts"), _estimated(estimate, wall)]


def _estimated(estimate: float, wall: float) -> Row:
    """Return the estimated time of a run, compared with the measured one."""
    return Row(
        what="… the plan's estimate",
        measured=f"{estimate:.1f} s",
        yardstick=f"whole run {wall:.1f} s",
        ratio=estimate / wall,
    )


def shares(
    records: list[dict[str, Any]], wall: float, what: str, bar: float = _BAR, seconds: float = 0.0
) -> list[Row]:
    """Return which parts of a run's `wall` seconds were outside the waves, and launching.

    The part outside may be the share `bar`, or `seconds` if that is more.
    """
    waves: dict[tuple[str, int], list[dict[str, Any]]] = defaultdict(list)
    measuring = launching = reading = 0.0
    for record in records:
        if record["step"] != "00-hosts":
            waves[record["step"], record["wave"]].append(record)
        elif record["wave"]:
            reading += record["end"] - record["start"]
    for wave in waves.values():
        start = min(r["start"] for r in wave)
        measuring += max(r["end"] for r in wave) - start
        launching += max((r.get("began") or start) - start for r in wave)
    share = (wall - measuring) / wall
    return [
        Row(
            what=f"{what}: outside the waves",
            measured=f"{wall - measuring:.1f} s",
            yardstick=f"whole run {wall:.1f} s",
            ratio=share,
            bar=f"{bar:.0%} or {seconds:.0f} s" if seconds else f"{bar:.0%}",
            met=wall - measuring <= max(bar * wall, seconds),
        ),
        Row(what="… reading error counters between the steps", measured=f"{reading:.1f} s"),
        Row(
            what="… launching, inside the waves",
            measured=f"{launching:.1f} s",
            yardstick=f"{len(waves)} waves, {measuring:.1f} s",
            ratio=launching / wall,
        ),
    ]
