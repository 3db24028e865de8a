"""Output of nccl-tests made to measure, for the benchmark of its reader and for the tests."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from accept.core.nccl_table import UNCHECKED_IN_PLACE, bus_factor

HOSTS = ("node1", "node2")
COLLECTIVES = ("all_reduce", "all_gather", "reduce_scatter", "alltoall", "sendrecv")


def fixed(value: float, width: int) -> str:
    """A number as nccl-tests prints it: as many of two decimals as fit, else 1.0e+07."""
    for decimals in (2, 1, 0):
        text = f"{value:{width}.{decimals}f}"
        if len(text) <= width:
            return text
    return f"{value:{width}.1e}"


def devices(ranks: int, hosts: Sequence[str] = HOSTS) -> list[str]:
    """The lines of "Using devices", ranks in blocks over the hosts."""
    each = max(1, ranks // len(hosts))
    return [
        f"#  Rank {rank:2d} Group  0 Pid {41000 + rank:6d} on "
        f"{hosts[min(rank // each, len(hosts) - 1)]:>10} device {rank % each:2d} "
        f"[0000:{27 + rank % each:02x}:00] NVIDIA H100 80GB HBM3"
        for rank in range(ranks)
    ]


def row_text(
    collective: str,
    ranks: int,
    size: int,
    *,
    speed: float = 40.0,
    wrong: tuple[str, str] | None = None,
) -> str:
    """A row: size / (20 us + size / speed) out of place, 1 % slower in place."""
    factor = bus_factor(collective, ranks) or 0.0
    out, inp = wrong or ("0", "N/A" if collective in UNCHECKED_IN_PLACE else "0")
    text = f"{size:12d}  {size // 4:12d}  {'float':>8}  {'sum':>6}  {-1:6d}"
    for slower, bad in ((1.0, out), (1.01, inp)):
        time = (20 + size / speed / 1e3) * slower
        algbw = size / time / 1e3
        text += f"  {fixed(time, 7)}  {fixed(algbw, 6)}  {fixed(algbw * factor, 6)}  {bad:>6}"
    return text


def table_text(
    collective: str = "all_reduce",
    *,
    ranks: int = 4,
    least: int = 1 << 20,
    most: int = 1 << 23,
    speed: float = 40.0,
    hosts: Sequence[str] = HOSTS,
    row: Callable[..., str] = row_text,
    bounds: str = "0 OK",
) -> str:
    """A whole table as nccl-tests 2.17 prints it."""
    sizes = [least << i for i in range((most // least).bit_length())]
    rows = [row(collective, ranks, size, speed=speed) for size in sizes]
    buses = [float(cell) for line in rows for cell in (line.split()[7], line.split()[11])]
    mean = sum(buses) / len(buses)
    lines = [
        "# nccl-tests version 2.17.8 nccl-headers=22902 nccl-library=22902",
        f"# Collective test starting: {collective}_perf",
        (
            f"# nThread 1 nGpus 1 minBytes {least} maxBytes {most} step: 2(factor) "
            "warmup iters: 5 iters: 20 agg iters: 1 validation: 1 graph: 0"
        ),
        "#",
        "# Using devices",
        *devices(ranks, hosts),
        "#",
        f"#{'out-of-place':>73}{'in-place':>31}          ",
        f"#{'size':>11}{'count':>14}{'type':>10}{'redop':>8}{'root':>8}"
        + f"{'time':>9}{'algbw':>8}{'busbw':>8}{'#wrong':>8}" * 2
        + " ",
        f"#{'(B)':>11}{'(elements)':>14}{'(us)':>35}{'(GB/s)':>8}{'(GB/s)':>8}",
        *rows,
        f"# Out of bounds values : {bounds}",
        f"# Avg bus bandwidth    : {mean:g} ",
        "#",
        f"# Collective test concluded: {collective}_perf",
        "#",
        "",
    ]
    return "\n".join(lines) + "\n"
