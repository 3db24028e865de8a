"""Compare the resident program with `mpirun` for each pair: the same pairs, on simulated hosts.

Each host has a network of its own, with a link at a fixed rate, so both must measure the same
speed. A pair measures from the moment at which its ranks have joined to its end; the rest of the
round is launching, and waiting for other pairs. The hosts share the cores of this machine, so the
share of launching is larger than on a cluster. `python -m benchmarks.pairs --hosts 64` has more.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from statistics import mean, median

from tests.cluster.hosts import Hosts
from tests.cluster.runs import CONNECT, Lab

from accept.core.evidence import read_records
from accept.core.records import Placement, Record
from benchmarks import Row, table

_HOSTS, _ROUNDS, _ITERS = 8, 8, 20
#: Limits: difference of the speeds, and the share of a round in which a pair measures.
_DIFFERENCE, _SHARE = 0.03, 0.70


def _measured(lab: Lab, launcher: str, rounds: int, iters: int) -> list[Record]:
    """Return the records of the pairs of a run."""
    pairs = f"check: all-gather, groups: pairs, rounds: {rounds}, timeout: 20m, "
    pairs += f"params: {{sizes: 1, iters: {iters}, warmup: 1}}"
    done = lab.run("--launcher", launcher, checks=[*CONNECT, pairs])
    records = read_records(lab.evidence(done.result["attempt"]))
    return [record for record in records if record.step.endswith("-pairs")]


def _speeds(records: Sequence[Record]) -> dict[tuple[str, ...], float]:
    """Return the bus bandwidth of each pair."""
    return {
        record.hosts: metric.value
        for record in records
        for metric in record.metrics
        if metric.name == "busbw" and metric.placement is Placement.OUT
    }


def _rounds(records: Sequence[Record]) -> tuple[float, float]:
    """Return the median seconds of a round, and the share of it in which a pair measures."""
    walls, shares = [], []
    for wave in {record.wave for record in records}:
        own = [record for record in records if record.wave == wave]
        wall = max(r.end for r in own) - min(r.start for r in own)
        walls.append(wall)
        shares.append(mean(r.end - (r.began or r.end) for r in own) / wall)
    return median(walls), median(shares)


def rows(hosts: int = _HOSTS, rounds: int = _ROUNDS, iters: int = _ITERS) -> list[Row]:
    """Measure with both, and compare."""
    with tempfile.TemporaryDirectory(prefix="accept-bench-") as folder, Hosts(hosts) as machines:
        lab = Lab(machines, Path(folder))
        resident = _measured(lab, "resident", rounds, iters)
        each = _measured(lab, "nccl-tests", rounds, iters)
    own, others = _speeds(resident), _speeds(each)
    differences = [abs(own[pair] / others[pair] - 1) for pair in own.keys() & others.keys()]
    seconds, share = _rounds(resident)
    seconds_each, share_each = _rounds(each)
    return [
        Row(
            what=f"a round of pairs of {hosts} hosts, resident",
            measured=f"{seconds:.1f} s",
            yardstick=f"`mpirun` for each pair {seconds_each:.1f} s",
            ratio=seconds / seconds_each,
        ),
        Row(
            what="… share of measuring",
            measured=f"{share:.0%}",
            yardstick=f"`mpirun` for each pair {share_each:.0%}",
            bar=f"{_SHARE:.0%}",
            met=share >= _SHARE,
        ),
        Row(
            what=f"difference of the speeds, median of {len(differences)} pairs",
            measured=f"{median(differences):.1%}",
            bar=f"{_DIFFERENCE:.0%}",
            met=median(differences) <= _DIFFERENCE,
        ),
    ]


def main(arguments: Sequence[str]) -> None:
    """Print the rows."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--hosts", type=int, default=_HOSTS)
    parser.add_argument("--rounds", type=int, default=_ROUNDS)
    parser.add_argument("--iters", type=int, default=_ITERS)
    options = parser.parse_args(arguments)
    print(table(rows(options.hosts, options.rounds, options.iters)))


if __name__ == "__main__":
    main(sys.argv[1:])
