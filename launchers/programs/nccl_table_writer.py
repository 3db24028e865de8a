"""Write numbers and table headers in the format of nccl-tests."""

from __future__ import annotations

import argparse
import math
import os
from collections.abc import Sequence

import torch_io
from reference_data import Collective
from torch_collectives import Operations
from windowed_timer import quantile


def fixed(value: float, width: int) -> str:
    """Format a number in `width` characters with up to two decimals, as nccl-tests prints times."""
    digits = len(str(int(value)))
    if digits < width - 2:
        return f"{value:{width}.2f}"
    if digits < width - 1:
        return f"{value:{width}.1f}"
    return f"{value:{width}.0f}" if digits <= width else f"{value:{width}.1e}"


def bandwidth(value: float) -> str:
    """Format GB/s in six characters; below 1 with four decimals, because two are too coarse."""
    return f"{value:6.4f}" if value < 1 else f"{value:6.2f}"


def repetitions(seconds: Sequence[float]) -> str:
    """Return the columns of the times of single iterations, as nccl-tests prints them for -I 1."""
    mean = sum(seconds) / len(seconds)
    deviation = math.sqrt(sum((one - mean) ** 2 for one in seconds) / len(seconds))
    times = (min(seconds), max(seconds), quantile(seconds, 0.99))
    columns = [fixed(one * 1e6, 7) for one in times] + [fixed(100 * deviation / mean, 7)]
    return "".join(f"  {column}" for column in columns)


def devices(operations: Operations) -> tuple[list[str], list[str]]:
    """Return each rank's host, and each rank's line in the header. All ranks call this together."""
    me, device, name = operations.me, operations.device, "CPU"
    number, bus = 0, "0x00"
    if device != "cpu":
        number = int(device.partition(":")[2])
        properties = operations.torch.cuda.get_device_properties(number)
        ids = (getattr(properties, f"pci_{part}_id", 0) for part in ("domain", "bus", "device"))
        name, bus = properties.name, "{:04x}:{:02x}:{:02x}".format(*ids)
    operations.progress.enter("hosts")
    lines = torch_io.gather_text(f"{os.getpid()}\t{me.host}\t{number}\t{bus}\t{name}", 384)
    rows = [line.split("\t") for line in lines]
    return [row[1] for row in rows], [
        f"#  Rank {rank:2d} Group  0 Pid {int(pid):6d} on {host:>10} device {int(number):2d} "
        f"[{bus}] {name}"
        for rank, (pid, host, number, bus, name) in enumerate(rows)
    ]


def header(
    kind: Collective, options: argparse.Namespace, operations: Operations, devices: list[str]
) -> str:
    """Return the lines above the table's rows."""
    version = operations.torch.__version__
    backend = "gloo" if operations.device == "cpu" else "nccl"
    counts = f"step: {options.factor}(factor) warmup iters: {options.warmup} "
    counts += f"iters: {options.iters} agg iters: 1 validation: 1 graph: 0"
    side = f"{'time':>9}{'algbw':>8}{'busbw':>8}{'#wrong':>8}"
    units = f"{'(GB/s)':>8}{'(GB/s)':>8}{'':>8}"
    if options.jitter:
        side += "".join(f"{name:>9}" for name in ("i_min", "i_max", "i_p99", "i_cv%"))
        units += f"{'(us)':>9}{'(us)':>9}{'(us)':>9}{'(%)':>9}"
    lines = [
        f"# accept collective.py, torch {version}, {backend}; table as nccl-tests",
        f"# Collective test starting: {kind.name}_perf",
        f"# nThread 1 nGpus 1 minBytes {options.min} maxBytes {options.max} {counts}",
        "#",
        "# Using devices",
        *devices,
        "#",
        f"#{'out-of-place':>74}{'in-place':>31}          ",
        f"#{'size':>11}{'count':>14}{'type':>10}{'redop':>8}{'root':>8}{side}{side}",
        f"#{'(B)':>11}{'(elements)':>14}{'(us)':>35}{units}{'(us)':>9}{units}",
    ]
    return "\n".join(lines)
