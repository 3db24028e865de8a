"""Measure how fast nccl-tests output is read: many small logs, and a large one full of NCCL lines.

One process uses one core. A figure is the best of five passes, because other processes slow passes
down. `python -m benchmarks.parse` prints the table; `rows` returns it for `python -m benchmarks`.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

if __name__ == "__main__":
    root = Path(__file__).resolve().parents[1]
    sys.path[:0] = [str(root), str(root / "cli")]

from accept.core.checks import REGISTRY, parse_log
from accept.core.groups import pair_rounds
from accept.core.judge import judge
from accept.core.nccl_tests import metrics, parse, read
from accept.core.plan import GroupKind, Plan, PlannedMachine, Step
from accept.core.records import Record
from accept.core.verdict import State, Verdict
from benchmarks import Row
from benchmarks.nccl_text import COLLECTIVES, table_text

PASSES = 5
LOGS = 10_000
NODES = tuple(f"node{number}" for number in range(1, 1025))


@dataclass(frozen=True, kw_only=True)
class Figure:
    """A row of the table: the work, megabytes of text, MB/s, and the minimum MB/s."""

    what: str
    megabytes: float
    speed: float
    bar: float | None


def pairs(logs: int) -> list[tuple[int, int, tuple[str, ...]]]:
    """Return wave, group and hosts of `logs` pairs, from rounds over 1,024 hosts."""
    waves = pair_rounds(NODES, rounds=-(-logs // (len(NODES) // 2)), seed=1)
    found = [(w, g, group.hosts) for w, wave in enumerate(waves) for g, group in enumerate(wave)]
    return found[:logs]


def small_log(number: int, hosts: tuple[str, ...]) -> bytes:
    """Return the log of one pair: five collectives, 16 ranks, four sizes, different numbers."""
    speed = 300.0 + (number * 7919 % 10_007) / 5000
    tables = (
        table_text(name, ranks=16, least=1 << 30, most=1 << 33, speed=speed + i, hosts=hosts)
        for i, name in enumerate(COLLECTIVES)
    )
    return "\n".join(tables).encode()


def large_log(megabytes: int) -> bytes:
    """Return a table with NCCL_DEBUG=INFO lines of 16 ranks in the middle of it."""
    text = table_text(ranks=16).encode()
    head, mark, rest = text.partition(b"#\n#    ")
    kinds = (
        "Channel {c:02d}/16 : {r}[{d}] -> {n}[{d}] [send] via NET/gIB/{d}/GDRDMA",
        "Channel {c:02d}/16 : {r}[{d}] -> {n}[{d}] via P2P/CUMEM",
        "Trees [0] {n}/-1/-1->{r}->-1 [1] {n}/-1/-1->{r}->-1 [2] -1/-1/-1->{r}->{n}",
        "Connected all rings, use ring PXN 0 GDR 1",
        "NCCL_MIN_NCHANNELS set by environment to 16.",
        "comm 0x55f68495f4f0 rank {r} nranks 16 cudaDev {d} nvmlDev {d} busId 1b000 - Init START",
    )
    lines = [
        f"node{r // 8 + 1}:{41000 + r}:{41200 + r} [{r % 8}] NCCL INFO "
        + kind.format(c=c, r=r, n=(r + 8) % 16, d=r % 8)
        for c in range(16)
        for r in range(16)
        for kind in kinds
    ]
    block = ("\n".join(lines) + "\n").encode()
    return head + block * (megabytes * 1_000_000 // len(block)) + mark + rest


def best(work: Callable[[], object], passes: int = PASSES) -> float:
    """Return the CPU seconds of the fastest pass."""
    seconds = []
    for _ in range(passes):
        start = time.process_time()
        work()
        seconds.append(time.process_time() - start)
    return min(seconds)


def each(work: Callable[[bytes], object], logs: Sequence[bytes]) -> None:
    for log in logs:
        work(log)


def judged(
    planned: Plan, met: Sequence[tuple[int, int, tuple[str, ...]]], logs: list[bytes]
) -> Verdict:
    """Read and judge the logs as `accept judge` does."""
    (step,) = planned.steps
    records = [Record(step="00-hosts", checks=("hosts",), wave=0, group=0, hosts=NODES, exit=0)]
    for (wave, group, hosts), log in zip(met, logs, strict=True):
        parsed = parse_log(step.checks, (log,), hosts)
        records.append(
            Record(
                step=step.id,
                checks=step.checks,
                wave=wave,
                group=group,
                hosts=hosts,
                ranks=16,
                exit=0,
                metrics=parsed.metrics,
                facts=parsed.facts,
                problems=parsed.problems,
            )
        )
    return judge(planned, records, checks=REGISTRY, attempt="benchmark")


def planned(logs: int) -> Plan:
    """Return the plan of the logs: five collectives on pairs."""
    step = Step(
        id="10-collectives-pairs",
        checks=tuple(name.replace("_", "-") for name in COLLECTIVES),
        script="steps/10-collectives-pairs.sh",
        groups=GroupKind.PAIRS,
        rounds=-(-logs // (len(NODES) // 2)),
        params={"min": "1G", "max": "8G", "factor": 2, "iters": 20, "warmup": 5, "dtype": "float"},
    )
    machine = PlannedMachine(name="benchmark", gpus=8, ranks=8)
    return Plan(
        schema=1,
        version="0",
        hash="0",
        machine=machine,
        suite="benchmark",
        nodes=None,
        steps=(step,),
    )


def figures(logs: int = LOGS, megabytes: int = 100) -> list[Figure]:
    """Measure everything. Raises ValueError if a log is read or judged wrongly."""
    met = pairs(logs)
    small = [small_log(number, hosts) for number, (_, _, hosts) in enumerate(met)]
    large = [large_log(megabytes)]
    for log in (parse(small[0]), parse(large[0])):
        if log.problems or not all(table.complete for table in log.tables):
            raise ValueError(f"the benchmark's own log is not read: {log.problems}")
    tagged = [b"[1,0]<stdout>:" + large[0].replace(b"\n", b"\n[1,0]<stdout>:")]
    chosen = ("busbw", "wrong")
    jobs: list[tuple[str, Callable[[bytes], object], list[bytes], float | None]] = [
        (f"{logs:,} small logs, tables", parse, small, 20.0),
        ("… with all metrics and facts", read, small, None),
        ("… with busbw and wrong only", lambda log: metrics(parse(log), names=chosen), small, None),
        ("one large log full of NCCL lines", parse, large, 20.0),
        ("… with mpirun's tags", parse, tagged, None),
    ]
    found = []
    for what, work, texts, bar in jobs:
        size = sum(map(len, texts)) / 1e6
        found.append(
            Figure(
                what=what, megabytes=size, speed=size / best(partial(each, work, texts)), bar=bar
            )
        )
    plan = planned(logs)
    verdict = judged(plan, met, small)
    if verdict.state is State.FAIL:
        raise ValueError(f"the benchmark's own logs are rejected: {verdict.headline}")
    size = sum(map(len, small)) / 1e6
    seconds = best(lambda: judged(plan, met, small), passes=1)
    found.insert(
        3, Figure(what="… parsed and judged", megabytes=size, speed=size / seconds, bar=None)
    )
    return found


def rows(logs: int = LOGS, megabytes: int = 100) -> list[Row]:
    """Return the figures as rows of the common table."""
    return [
        Row(
            what=figure.what,
            measured=f"{figure.speed:.0f} MB/s of {figure.megabytes:.0f} MB",
            bar="" if figure.bar is None else f"at least {figure.bar:.0f} MB/s",
            met=None if figure.bar is None else figure.speed >= figure.bar,
        )
        for figure in figures(logs, megabytes)
    ]


def main() -> None:
    print(f"{'':36}{'MB':>8}{'MB/s':>8}{'wanted':>8}")
    for row in figures():
        wanted = f">= {row.bar:g}" if row.bar else ""
        print(f"{row.what:36}{row.megabytes:8.1f}{row.speed:8.1f}{wanted:>8}")


if __name__ == "__main__":
    main()
