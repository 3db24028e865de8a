"""Logs in the exact format of nccl-tests, with invented results of a cluster."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from itertools import combinations
from pathlib import Path

from accept.core.nccl_tests.table import bus_factor

DEVICE = "NVIDIA H100 80GB HBM3"
NODES = tuple(f"node{i}" for i in range(1, 9))
TOP = 4 << 30
#: GB/s on (one host, more hosts), by collective.
USUAL = {"all_reduce": (480.0, 320.0), "alltoall": (348.0, 92.0)}

#: (collective, hosts, GPUs of each) -> share of the usual speed; None if nothing was measured.
Speed = Callable[[str, Sequence[str], Sequence[int]], float | None]


def table(
    collective: str,
    hosts: Sequence[str],
    gpus: Sequence[int],
    busbw: float,
    *,
    sizes: Sequence[int] = (1 << 30, 2 << 30, TOP),
    factor: int = 2,
    checked: bool = True,
    device: str = DEVICE,
    missing: int = 0,
) -> str:
    """Return a complete table with header and footer; the last host has `missing` ranks less."""
    ranks = [(host, gpu) for host in hosts for gpu in gpus]
    ranks = ranks[: len(ranks) - missing]
    asked = f"minBytes {sizes[0]} maxBytes {sizes[-1]} step: {factor}(factor) warmup iters: 5"
    lines = [
        "# nccl-tests version 2.17.8 nccl-headers=22902 nccl-library=22902",
        f"# Collective test starting: {collective}_perf",
        f"# nThread 1 nGpus 1 {asked} iters: 20 agg iters: 1 validation: 1 graph: 0",
        "#",
        "# Using devices",
    ]
    lines += [
        f"#  Rank {rank:2d} Group  0 Pid {1000 + rank:6d} on {host} device {gpu:2d} "
        f"[0000:{gpu + 16:02x}:00] {device}"
        for rank, (host, gpu) in enumerate(ranks)
    ]
    side = f"{'time':>9}{'algbw':>8}{'busbw':>8}{'#wrong':>8}"
    units = f"{'(GB/s)':>8}{'(GB/s)':>8}{'':>8}"
    lines += [
        "#",
        f"#{'out-of-place':>74}{'in-place':>31}          ",
        f"#{'size':>11}{'count':>14}{'type':>10}{'redop':>8}{'root':>8}{side}{side}",
        f"#{'(B)':>11}{'(elements)':>14}{'(us)':>35}{units}{'(us)':>9}{units}",
    ]
    # A single rank sends nothing; nccl-tests reports a bus bandwidth of 0.
    share = bus_factor(collective, len(ranks))
    share = 1.0 if share is None else share
    redop = "sum" if collective == "all_reduce" else "none"
    for size in sizes:
        algbw = busbw / (share or 1.0)
        side = f"{_time(size / algbw / 1e3):>9}{algbw:>8.2f}{algbw * share:>8.2f}"
        out = "0" if checked else "N/A"
        inside = "N/A" if collective == "alltoall" or not checked else "0"
        lines.append(
            f"{size:>12}{size // 4:>14}{'float':>10}{redop:>8}{-1:>8}{side}{out:>8}"
            f"{side}{inside:>8}"
        )
    lines += [
        "# Out of bounds values : 0 OK",
        f"# Avg bus bandwidth    : {busbw * bool(share):g} ",
        "#",
        f"# Collective test concluded: {collective}_perf",
        "#",
        "",
    ]
    return "\n".join(lines)


def _time(microseconds: float) -> str:
    """Return a time with the digits of nccl-tests."""
    digits = 0 if microseconds >= 10_000 else 1 if microseconds >= 100 else 2
    return f"{microseconds:.{digits}f}"


def log(hosts: Sequence[str], gpus: Sequence[int], speed: Speed, *, seed: object = 0) -> str:
    """Return a log with one table for each collective, with 0.2 % of noise."""
    chance = random.Random(f"{seed} {hosts} {gpus}")
    parts: list[str] = []
    for collective, (alone, together) in USUAL.items():
        share = speed(collective, hosts, gpus)
        if share is None:
            return "".join(parts)
        usual = alone if len(hosts) == 1 else together
        busbw = usual * share * (1 + chance.gauss(0, 0.002))
        parts.append(table(collective, hosts, gpus, round(busbw, 2)))
    return "\n".join(parts)


def fine(_: str, __: Sequence[str], ___: Sequence[int]) -> float:
    """Return the usual speed for all."""
    return 1.0


def slow(*names: str, share: float = 0.9, gpu: int | None = None) -> Speed:
    """Return a speed that is lower if one of `names`, or its GPU `gpu`, takes part."""

    def speed(_: str, hosts: Sequence[str], gpus: Sequence[int]) -> float:
        bad = not set(names).isdisjoint(hosts) and (gpu is None or gpu in gpus)
        return share if bad else 1.0

    return speed


def corpus(
    folder: Path,
    speed: Speed = fine,
    *,
    nodes: Sequence[str] = NODES,
    gpus: Sequence[Sequence[int]] = (range(8),),
    all_nodes: bool = True,
    seed: object = 0,
) -> Path:
    """Write logs of each node, each pair and all nodes, on each set of GPUs; return `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    groups: list[tuple[str, ...]] = [(node,) for node in nodes]
    groups += combinations(nodes, 2)
    groups += [tuple(nodes)] if all_nodes and len(nodes) > 2 else []
    for gpu_set in gpus:
        for hosts in groups:
            name = "_".join(hosts) if len(hosts) < 3 else f"all{len(hosts)}"
            path = folder / f"G{'-'.join(map(str, gpu_set))}_{name}.log"
            path.write_text(log(hosts, tuple(gpu_set), speed, seed=seed))
    return folder


def rails(folder: Path, bad: int | None = None) -> Path:
    """Write one log for each rail, over all nodes; return `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    for rail in range(8):
        share = 0.9 if rail == bad else 1.0
        text = log(NODES, (rail,), lambda *_, share=share: share)
        (folder / f"rail{rail}.log").write_text(text)
    return folder
