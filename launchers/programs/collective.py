"""Measure collectives over torch.distributed, and print tables in the format of nccl-tests.

mpirun or torchrun starts one process per rank. One process group serves all requested collectives:
gloo on CPU, NCCL on CUDA (control traffic stays on gloo). For each collective rank 0 prints the
table of nccl-tests: same columns, sizes, rounding of counts, algorithm and bus bandwidth
(nccl-tests doc/PERFORMANCE.md). These are all differences:

* time is the mean over the iterations on each rank, then the maximum over the ranks; with
  --jitter, as with -I 1, the times of single iterations are the maximum over the ranks;
* bandwidths below 1 GB/s have four decimals, where nccl-tests prints two;
* a size of less than 16 B per rank is left out with a comment line, not listed as 0;
* fewer iterations run, with a comment line, if all would take longer than --limit (2 s on CUDA,
  20 ms on CPU);
* torch has no out-of-place all_reduce, so its time includes a copy; gloo has no reduce-scatter,
  so its time is that of an all-to-all and a local sum.

The data are integers that float32 represents exactly. They depend on rank, index and trial:
a(index, trial) + rank * b(index, trial). Before the checked iteration every buffer is refilled and
every receive buffer poisoned; then every element on every rank is compared. `#wrong` is the sum
over ranks. In place, alltoall and sendrecv overwrite the data that they send, so they are not
checked (N/A, as in nccl-tests).

Ranks with wrong data are printed as problems (see corruption_source.py). Injected faults
(ACCEPT_INJECT): `wrong` and `nan` corrupt one element of a rank's contribution to each checked
operation; `hang` and `die` happen before an operation in the middle of the run; `slow` adds 50 ms
before each operation.

Exit status: 0 done, 7 wrong data (rank 0 only), 1 failed, 2 bad usage.
"""

from __future__ import annotations

import argparse
import math
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import rank_io
import torch_io
from corruption_source import PROBE, Accuser
from reference_data import COLLECTIVES, FLOAT, Collective, count_of
from torch_collectives import Operations
from windowed_timer import quantile

UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
#: Iterations of the largest size, however long they take, unless fewer are requested.
TOP_ITERS = 5
#: Default of --limit in seconds. On CUDA, 200 iterations of 10 ms fit. On CPU, ranks share the
#: cores, and a run should end within seconds.
LIMIT, LIMIT_CPU = 2.0, 0.02


def read_size(text: str) -> int:
    """Return the bytes of "8", "32K", "8M" or "1G" (binary, as nccl-tests). Raises for argparse."""
    digits, unit = (text[:-1], text[-1].upper()) if text[-1:].isalpha() else (text, "")
    if not digits.isdigit() or unit not in UNITS or int(digits) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a size such as 32K, 8M or 1G")
    return int(digits) * UNITS[unit]


def read_collectives(text: str) -> list[Collective]:
    """Return the collectives of a list like "all_reduce,all-gather". Raises for argparse."""
    names = [name.strip().replace("-", "_") for name in text.split(",") if name.strip()]
    unknown = [name for name in names if name not in COLLECTIVES]
    if unknown or not names:
        known = ", ".join(COLLECTIVES)
        raise argparse.ArgumentTypeError(f"unknown {unknown or 'empty list'}; there are: {known}")
    return [COLLECTIVES[name] for name in names]


@dataclass(frozen=True, kw_only=True)
class Measured:
    """One size: seconds of the slower placement, busbw of both, number of them with wrong data."""

    seconds: float
    busbw: list[float]
    failed: int


def sizes_of(options: argparse.Namespace) -> list[int]:
    """Return the requested sizes in bytes."""
    sizes, size = [], options.min
    while size <= options.max:
        sizes.append(size)
        size *= options.factor
    return sizes


def iterations(requested: int, each: float, limit: float, least: int) -> int:
    """Return how many of the requested iterations, at `each` s, fit into `limit` s; or `least`."""
    if each * requested <= limit:
        return requested
    return min(requested, max(least, int(limit / each)))


class Bench:
    """Measure all sizes. Every rank must create this object and call every method."""

    def __init__(self, options: argparse.Namespace, rank: rank_io.Rank) -> None:
        self.options, self.me = options, rank.me
        self.sizes = sizes_of(options)
        room = max(self.sizes[-1] // FLOAT, PROBE * rank.me.size)
        self.operations = Operations(rank, room)
        self.limit = options.limit or (LIMIT_CPU if rank.device == "cpu" else LIMIT)
        hosts, self.devices = devices(self.operations)
        self.accuser = Accuser(self.operations, hosts)

    def size(
        self, kind: Collective, count: int, size: int, iters: int, *, strike: bool
    ) -> Measured:
        """Measure one size in both placements, print its row, and name ranks with wrong data."""
        operations = self.operations
        if self.options.warmup:
            operations.timed(kind, count, size, min(self.options.warmup, iters))
        own: list[float] = []  # seconds and wrong elements out of place, then both in place
        each: list[float] = []  # seconds of each iteration, in the same order
        sources: list[list[int]] = []
        for in_place in (False, True):
            inject = strike and not in_place
            timed = operations.timed(kind, count, size, iters, in_place=in_place, strike=inject)
            own.append(timed.mean)
            each += timed.each
            total, by_source = 0, [0] * self.me.size
            if kind.checked_in_place or not in_place:
                total, by_source = operations.checked(kind, count, size, in_place=in_place)
            own.append(total)
            sources.append(by_source)
        # Only one exchange, because on small sizes it takes as long as a measurement.
        by_rank = operations.exchange(own + (each if self.options.jitter else []))
        slowest = [
            max(values) for values in zip(*(row[len(own) :] for row in by_rank), strict=True)
        ]
        row = f"{size:>12d}  {count:>12d}  {'float':>8}  {kind.redop:>6}  {-1:>6d}"
        times, speeds, wrongs = [], [], []
        for side, in_place in enumerate((False, True)):
            seconds = max(values[2 * side] for values in by_rank)
            wrong = [int(values[2 * side + 1]) for values in by_rank]
            algbw = size / seconds / 1e9
            busbw = algbw * kind.factor(self.me.size)
            row += f"  {fixed(seconds * 1e6, 7)}  {bandwidth(algbw)}  {bandwidth(busbw)}"
            checked = kind.checked_in_place or not in_place
            row += f"  {sum(wrong) if checked else 'N/A':>6}"
            if slowest:
                row += repetitions(slowest[side * iters : (side + 1) * iters])
            times.append(seconds)
            speeds.append(busbw)
            wrongs.append(wrong)
        self.print(row)
        places = ("out of place", "in place")
        for wrong, by_source, place in zip(wrongs, sources, places, strict=True):
            if any(wrong):
                self.accuser.accuse(kind, f"{size} B {place}", by_source, wrong)
        return Measured(seconds=max(times), busbw=speeds, failed=sum(map(any, wrongs)))

    def table(self, kind: Collective, *, middle: bool) -> int:
        """Measure and print one collective. Return the number of measurements with wrong data."""
        options, ranks = self.options, self.me.size
        self.print(header(kind, options, self.operations, self.devices))
        failed, cut_from, last_seconds = 0, 0, 0.0
        speeds: list[float] = []
        for number, requested in enumerate(self.sizes):
            count = count_of(kind, requested, ranks)
            size = count * FLOAT * (ranks if kind.split else 1)
            if not count:
                self.print(f"# Size {requested} left out: less than 16 B per rank")
                continue
            # All ranks know the same time of the previous size. The largest size is judged for
            # speed, and two iterations would vary too much.
            least = TOP_ITERS if number == len(self.sizes) - 1 else 2
            iters = iterations(options.iters, last_seconds, self.limit, least)
            cut_from = cut_from or (size if iters < options.iters else 0)
            inject = middle and number == len(self.sizes) // 2
            measured = self.size(kind, count, size, iters, strike=inject)
            last_seconds = measured.seconds
            speeds += measured.busbw
            failed += measured.failed
        if cut_from:
            self.print(f"# Fewer iterations from size {cut_from} on (--limit {self.limit:g} s)")
        self.print(f"# Out of bounds values : {failed} {'FAILED' if failed else 'OK'}")
        mean = sum(speeds) / len(speeds) if speeds else 0.0
        self.print(f"# Avg bus bandwidth    : {mean:g} ")
        self.print(f"#\n# Collective test concluded: {kind.name}_perf\n#\n")
        return failed

    def print(self, line: str) -> None:
        """Print a line on rank 0."""
        if self.me.rank == 0:
            rank_io.say(line)


# The table, in the format of nccl-tests


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


# The program


def options_of(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """Return the parsed command line."""
    parser = argparse.ArgumentParser(
        description="Measure collectives over torch.distributed (gloo on CPU, NCCL on CUDA), check "
        "every element, and print tables as nccl-tests does. Start one process per rank: "
        "mpirun -n 4 python collective.py",
    )
    parser.add_argument(
        "--collectives",
        type=read_collectives,
        default=list(COLLECTIVES.values()),
        metavar="LIST",
        help=f"comma list of {', '.join(COLLECTIVES)} (default: all)",
    )
    parser.add_argument("--min", type=read_size, default="1K", help="smallest size (default 1K)")
    parser.add_argument("--max", type=read_size, default="8M", help="largest size (default 8M)")
    parser.add_argument("--factor", type=int, default=2, help="factor between sizes (default 2)")
    parser.add_argument("--iters", type=int, default=5, help="timed iterations (default 5)")
    parser.add_argument("--warmup", type=int, default=1, help="warm-ups per size (default 1)")
    parser.add_argument(
        "--jitter", action="store_true", help="also print the times of single iterations"
    )
    parser.add_argument(
        "--limit",
        type=float,
        help="maximum seconds for the iterations of one measurement, estimated from the previous "
        "size; otherwise fewer iterations run, at least 2, and 5 of the largest size "
        f"(default {LIMIT:g} on CUDA, {LIMIT_CPU:g} on a CPU)",
    )
    torch_io.add_options(parser)
    options = parser.parse_args(arguments)
    if options.factor < 2 or options.iters < 1 or options.warmup < 0 or options.timeout <= 0:
        parser.error("least values: --factor 2, --iters 1, --warmup 0; --timeout above 0")
    if options.limit is not None and options.limit <= 0:
        parser.error("--limit must be above 0")
    if options.min < FLOAT or options.max < options.min:
        parser.error(f"--min must be at least {FLOAT} and --max at least --min")
    return options


def measure(
    options: argparse.Namespace,
    me: rank_io.Identity,
    progress: rank_io.Progress,
    *,
    program: str = "collective.py",
    store: Callable[[], Any] | None = None,
) -> int:
    """Measure every requested collective as a rank, and return its exit status.

    `program` is the one that runs; the ranks meet as `torch_io.join` describes.
    """
    rank = torch_io.begin(me, progress, options, store)
    bench = Bench(options, rank)
    if me.rank == 0:
        rank_io.fact("began", time.time())
        # So that its times are not mistaken for those of nccl-tests.
        rank_io.fact("program", program)
    failed = 0
    for number, kind in enumerate(options.collectives):
        failed += bench.table(kind, middle=number == len(options.collectives) // 2)
    return torch_io.finish(rank, well=not failed)


def main() -> None:
    """Measure every requested collective. Ends the process."""
    options = options_of()
    rank_io.run(partial(measure, options), "mpirun", "torchrun")


if __name__ == "__main__":
    main()
