"""Collectives over torch.distributed, printed as nccl-tests prints them.

Started once per rank by mpirun (or torchrun); one process group serves all collectives asked for.
On CPU the ranks talk through gloo, on CUDA through NCCL (control traffic stays on gloo). For each
collective rank 0 prints the table of nccl-tests: same columns, sizes, rounding of counts, algorithm
and bus bandwidth (nccl-tests doc/PERFORMANCE.md). What differs, and only this:

* time is the mean over the iterations on each rank, then the maximum over the ranks;
* bandwidths below 1 GB/s have four decimals where nccl-tests has two;
* a size of less than 16 B a rank is left out, and said to be, instead of being listed as 0;
* iterations are cut where they would take longer than --limit together, and that is said;
* torch has no all_reduce out of place: a copy before it is part of that time; gloo has no
  reduce-scatter of its own: it is an all-to-all and a local sum, both inside the time.

The data are integers that float holds exactly and that depend on rank, index and trial:
a(index, trial) + rank * b(index, trial). Before the checked iteration every buffer is refilled and
what will be received is poisoned; then every element on every rank is compared. `#wrong` is the sum
over ranks. In place, alltoall and sendrecv overwrite what they send, so there is nothing to check
(N/A, as in nccl-tests).

Who is wrong is printed as problem records (`blame` has the rules). Planted faults (ACCEPT_PLANT):
wrong and nan spoil one element of what a rank contributes to each checked operation; hang and die
strike in the middle of the run before an operation; slow loses 50 ms before each operation.

Exit status: 0, 7 wrong data (rank 0 only), 1 could not go on, 2 bad usage.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import rank_io
import torch_io
from expected import (
    COLLECTIVES,
    FLOAT,
    Collective,
    Part,
    Pattern,
    blame,
    count_of,
    observers,
    parts,
)

UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
#: Elements a rank contributes to a probe, and the number of probes of one collective.
PROBE, PROBES = 4096, 2
#: Iterations of the largest size, if so many are asked for, however long they take.
TOP_ITERS = 5
#: At most so many ranks are named for one collective.
NAMED = 8


def read_size(text: str) -> int:
    """Bytes from "8", "32K", "8M", "1G" (binary, as nccl-tests). Raises for argparse."""
    digits, unit = (text[:-1], text[-1].upper()) if text[-1:].isalpha() else (text, "")
    if not digits.isdigit() or unit not in UNITS or int(digits) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a size such as 32K, 8M or 1G")
    return int(digits) * UNITS[unit]


def read_collectives(text: str) -> list[Collective]:
    """Collectives from "all_reduce,all-gather". Raises for argparse."""
    names = [name.strip().replace("-", "_") for name in text.split(",") if name.strip()]
    unknown = [name for name in names if name not in COLLECTIVES]
    if unknown or not names:
        known = ", ".join(COLLECTIVES)
        raise argparse.ArgumentTypeError(f"unknown {unknown or 'empty list'}; there are: {known}")
    return [COLLECTIVES[name] for name in names]


def fixed(value: float, width: int) -> str:
    """A number in `width` characters with up to two decimals, as nccl-tests prints times."""
    digits = len(str(int(value)))
    if digits < width - 2:
        return f"{value:{width}.2f}"
    if digits < width - 1:
        return f"{value:{width}.1f}"
    return f"{value:{width}.0f}" if digits <= width else f"{value:{width}.1e}"


def bandwidth(value: float) -> str:
    """GB/s in six characters; four decimals below 1, where two would be too coarse."""
    return f"{value:6.4f}" if value < 1 else f"{value:6.2f}"


@dataclass(frozen=True, kw_only=True)
class Measured:
    """One size: seconds of the slower placement, busbw of both, how many had wrong data."""

    seconds: float
    busbw: list[float]
    failed: int


class Bench:
    """The measurement: buffers, the pattern, and what has been seen so far."""

    def __init__(
        self,
        options: argparse.Namespace,
        me: rank_io.Identity,
        plant: rank_io.Plant,
        progress: rank_io.Progress,
        device: str,
    ) -> None:
        import torch
        import torch.distributed

        self.torch, self.dist = torch, torch.distributed
        self.options, self.me, self.plant, self.progress = options, me, plant, progress
        self.device = device
        self.sizes = []
        size = options.min
        while size <= options.max:
            self.sizes.append(size)
            size *= options.factor
        self.pattern = Pattern(me.size, device)
        room = max(self.sizes[-1] // FLOAT, PROBE * me.size)
        self.send = torch.zeros(room, dtype=torch.float32, device=device)
        self.recv = torch.zeros(room, dtype=torch.float32, device=device)
        self.trial = 0
        self.hosts: list[str] = []
        self.devices: list[str] = []
        self.named: set[tuple[str, int]] = set()
        self.probed: set[str] = set()

    # -- operations -----------------------------------------------------------------------------

    def exchange(self, values: Sequence[float]) -> list[list[float]]:
        """`values` of every rank, on every rank."""
        mine = self.torch.tensor(values, dtype=self.torch.float64)
        every = self.torch.empty(self.me.size * len(values), dtype=self.torch.float64)
        self.progress.enter("exchange", FLOAT * 2 * len(values))
        self.dist.all_gather_into_tensor(every, mine)
        rows: list[list[float]] = every.view(self.me.size, -1).tolist()
        return rows

    def operate(self, kind: Collective, send: Any, recv: Any, size: int) -> None:
        """Do `kind` once. On CUDA it is only enqueued."""
        self.plant.drag()
        self.progress.enter(kind.name, size)
        dist, ranks = self.dist, self.me.size
        if kind.name == "all_reduce":
            if recv.data_ptr() != send.data_ptr():
                recv.copy_(send)
            dist.all_reduce(recv)
        elif kind.name == "all_gather":
            dist.all_gather_into_tensor(recv, send)
        elif kind.name == "reduce_scatter" and self.device != "cpu":
            dist.reduce_scatter_tensor(recv, send)
        elif kind.name == "reduce_scatter":
            blocks = self.torch.empty_like(send)
            dist.all_to_all_single(blocks, send)
            self.torch.sum(blocks.view(ranks, -1), dim=0, out=recv)
        elif kind.name == "alltoall":
            dist.all_to_all_single(recv, send)
        elif ranks == 1:
            recv.copy_(send)
        else:
            after, before = (self.me.rank + 1) % ranks, (self.me.rank - 1) % ranks
            swaps = [dist.P2POp(dist.isend, send, after), dist.P2POp(dist.irecv, recv, before)]
            for request in dist.batch_isend_irecv(swaps):
                request.wait()

    def buffers(self, kind: Collective, count: int, *, in_place: bool) -> tuple[Any, Any]:
        """What `kind` sends from and receives into."""
        ranks, rank = self.me.size, self.me.rank
        total = count * ranks if kind.split else count
        if kind.name == "all_gather":
            whole = self.recv[:total]
            mine = whole[rank * count : (rank + 1) * count]
            return (mine if in_place else self.send[:count]), whole
        if kind.name == "reduce_scatter":
            whole = self.send[:total]
            mine = whole[rank * count : (rank + 1) * count]
            return whole, (mine if in_place else self.recv[:count])
        return (self.recv if in_place else self.send)[:total], self.recv[:total]

    def finish(self) -> None:
        """Wait until what was enqueued is done."""
        if self.device != "cpu":
            self.torch.cuda.synchronize()

    # -- measuring ------------------------------------------------------------------------------

    def timed(
        self,
        kind: Collective,
        count: int,
        size: int,
        iters: int,
        *,
        in_place: bool = False,
        strike: bool = False,
    ) -> float:
        """Seconds of one iteration on this rank: the mean of `iters`."""
        send, recv = self.buffers(kind, count, in_place=in_place)
        self.finish()
        self.progress.enter("barrier")
        torch_io.wait_for_all()
        start = time.perf_counter()
        for iteration in range(iters):
            if strike and iteration == iters // 2:
                self.plant.strike()
            self.operate(kind, send, recv, size)
        self.finish()
        return (time.perf_counter() - start) / iters

    def checked(
        self, kind: Collective, count: int, size: int, *, in_place: bool
    ) -> tuple[int, list[int]]:
        """One operation on fresh data: wrong elements received, and by whose they are.

        The second counts, per source, what came from it wrong; this rank's own entry includes what
        is wrong in its own contribution.
        """
        self.trial += 1
        rank, ranks = self.me.rank, self.me.size
        send, recv = self.buffers(kind, count, in_place=in_place)
        recv.fill_(-1.0)
        self.pattern.fill(send, rank, self.trial)
        if "wrong" in self.plant:
            send[len(send) // 2] += 1
        if "nan" in self.plant:
            send[len(send) // 2] = float("nan")
        self.operate(kind, send, recv, size)
        total, by_source = 0, [0] * ranks
        for part in parts(kind, count, rank, ranks):
            wrong = self.pattern.wrong(recv, part, self.trial)
            total += wrong
            if part.source is not None:
                by_source[part.source] += wrong
        if not in_place:
            own = Part(offset=0, length=len(send), start=0, ones=1, weight=rank, source=rank)
            by_source[rank] += self.pattern.wrong(send, own, self.trial)
        return total, by_source

    def size(
        self, kind: Collective, count: int, size: int, iters: int, *, strike: bool
    ) -> Measured:
        """Measure one size in both placements, print its row, and name who spoiled data."""
        if self.options.warmup:
            self.timed(kind, count, size, min(self.options.warmup, iters))
        mine: list[float] = []
        sources: list[list[int]] = []
        for in_place in (False, True):
            now = strike and not in_place
            mine.append(self.timed(kind, count, size, iters, in_place=in_place, strike=now))
            total, by_source = 0, [0] * self.me.size
            if kind.checked_in_place or not in_place:
                total, by_source = self.checked(kind, count, size, in_place=in_place)
            mine.append(total)
            sources.append(by_source)
        # One exchange for all of it: on small sizes it costs as much as what is measured.
        every = self.exchange(mine)
        row = f"{size:>12d}  {count:>12d}  {'float':>8}  {kind.redop:>6}  {-1:>6d}"
        times, speeds, wrongs = [], [], []
        for side, in_place in enumerate((False, True)):
            seconds = max(values[2 * side] for values in every)
            wrong = [int(values[2 * side + 1]) for values in every]
            algbw = size / seconds / 1e9
            busbw = algbw * kind.factor(self.me.size)
            row += f"  {fixed(seconds * 1e6, 7)}  {bandwidth(algbw)}  {bandwidth(busbw)}"
            checked = kind.checked_in_place or not in_place
            row += f"  {sum(wrong) if checked else 'N/A':>6}"
            times.append(seconds)
            speeds.append(busbw)
            wrongs.append(wrong)
        self.print(row)
        places = ("out of place", "in place")
        for wrong, by_source, place in zip(wrongs, sources, places, strict=True):
            if any(wrong):
                self.accuse(kind, f"{size} B {place}", by_source, wrong)
        return Measured(seconds=max(times), busbw=speeds, failed=sum(map(any, wrongs)))

    def table(self, kind: Collective, *, middle: bool) -> int:
        """Measure and print one collective; returns the number of measurements with wrong data."""
        options, ranks = self.options, self.me.size
        self.header(kind)
        failed, cut, longest = 0, 0, 0.0
        speeds: list[float] = []
        for number, wanted in enumerate(self.sizes):
            count = count_of(kind, wanted, ranks)
            size = count * FLOAT * (ranks if kind.split else 1)
            if not count:
                self.print(f"# Size {wanted} left out: less than 16 B a rank")
                continue
            # By the time of the size before, which all ranks agree on. The largest is the one that
            # is judged for speed: two iterations would leave it to chance.
            least = TOP_ITERS if number == len(self.sizes) - 1 else 2
            iters = options.iters
            if longest * iters > options.limit:
                iters = min(iters, max(least, int(options.limit / longest)))
                cut = cut or (size if iters < options.iters else 0)
            now = middle and number == len(self.sizes) // 2
            done = self.size(kind, count, size, iters, strike=now)
            longest = done.seconds
            speeds += done.busbw
            failed += done.failed
        if cut:
            self.print(f"# Fewer iterations from size {cut} on (--limit {options.limit:g} s)")
        self.print(f"# Out of bounds values : {failed} {'FAILED' if failed else 'OK'}")
        mean = sum(speeds) / len(speeds) if speeds else 0.0
        self.print(f"# Avg bus bandwidth    : {mean:g} ")
        self.print(f"#\n# Collective test concluded: {kind.name}_perf\n#\n")
        return failed

    # -- printing -------------------------------------------------------------------------------

    def print(self, line: str) -> None:
        """Print a line on rank 0."""
        if self.me.rank == 0:
            rank_io.say(line)

    def header(self, kind: Collective) -> None:
        """Print what stands above the rows."""
        options, torch = self.options, self.torch
        backend = "gloo" if self.device == "cpu" else "nccl"
        counts = f"step: {options.factor}(factor) warmup iters: {options.warmup} "
        counts += f"iters: {options.iters} agg iters: 1 validation: 1 graph: 0"
        side = f"{'time':>9}{'algbw':>8}{'busbw':>8}{'#wrong':>8}"
        units = f"{'(GB/s)':>8}{'(GB/s)':>8}{'':>8}"
        lines = [
            f"# accept collective.py, torch {torch.__version__}, {backend}; table as nccl-tests",
            f"# Collective test starting: {kind.name}_perf",
            f"# nThread 1 nGpus 1 minBytes {options.min} maxBytes {options.max} {counts}",
            "#",
            "# Using devices",
            *self.devices,
            "#",
            f"#{'out-of-place':>74}{'in-place':>31}          ",
            f"#{'size':>11}{'count':>14}{'type':>10}{'redop':>8}{'root':>8}{side}{side}",
            f"#{'(B)':>11}{'(elements)':>14}{'(us)':>35}{units}{'(us)':>9}{units}",
        ]
        self.print("\n".join(lines))

    def gather_devices(self) -> None:
        """Learn every rank's host and device, for the header and for naming."""
        me, name = self.me, "CPU"
        number, bus = 0, "0x00"
        if self.device != "cpu":
            number = int(self.device.partition(":")[2])
            shown = self.torch.cuda.get_device_properties(number)
            ids = (getattr(shown, f"pci_{part}_id", 0) for part in ("domain", "bus", "device"))
            name, bus = shown.name, "{:04x}:{:02x}:{:02x}".format(*ids)
        self.progress.enter("hosts")
        lines = torch_io.gather_text(f"{os.getpid()}\t{me.host}\t{number}\t{bus}\t{name}", 384)
        rows = [line.split("\t") for line in lines]
        self.hosts = [row[1] for row in rows]
        self.devices = [
            f"#  Rank {rank:2d} Group  0 Pid {int(pid):6d} on {host:>10} device {int(number):2d} "
            f"[{bus}] {name}"
            for rank, (pid, host, number, bus, name) in enumerate(rows)
        ]

    # -- who is to blame ------------------------------------------------------------------------

    def accuse(self, kind: Collective, where: str, by_source: list[int], wrong: list[int]) -> None:
        """Find out who spoiled the data and print it. All ranks call it together.

        Where the operation alone does not show it (a sum hides its terms, a single pair has two
        ends), an all-gather over the same ranks is checked beside it, once per collective.
        """
        ranks = self.me.size
        names = self.verdict(kind, by_source)
        probing = not names and kind.check not in self.probed
        if probing:
            gather = COLLECTIVES["all_gather"]
            summed = [0] * ranks
            for _ in range(PROBES):
                _, found = self.checked(gather, PROBE, PROBE * ranks * FLOAT, in_place=False)
                summed = [a + b for a, b in zip(summed, found, strict=True)]
            names = self.verdict(gather, summed)
        if names or probing:
            self.probed.add(kind.check)
        hit = [rank for rank, count in enumerate(wrong) if count]
        total = f"{sum(wrong)} wrong elements on {len(hit)} of {ranks} ranks at {where}"
        if not names and probing:
            if kind.name == "all_reduce" and len(hit) == 1 and ranks > 2:
                names = {hit[0]: "alone has a wrong sum"}
            else:
                receivers = ", ".join(f"{rank} on {self.hosts[rank]}" for rank in hit[:NAMED])
                self.problem(kind, f"{total}; found by rank {receivers}; source not known")
        if len(names) > NAMED:
            self.problem(kind, f"{total}; {len(names)} ranks are to blame, too many to name")
            self.named.update((kind.check, rank) for rank in names)
        for rank, why in names.items():
            if (kind.check, rank) not in self.named:
                self.named.add((kind.check, rank))
                host = self.hosts[rank]
                self.problem(kind, f"rank {rank} on {host} {why}: {total}", host=host, rank=rank)

    def verdict(self, kind: Collective, by_source: list[int]) -> dict[int, str]:
        """The ranks that `blame` names, with why, from every rank's counts."""
        ranks = self.me.size
        matrix = [[int(count) for count in row] for row in self.exchange(by_source)]
        seen_by = [observers(kind, source, ranks) for source in range(ranks)]
        senders, receivers = blame(matrix, seen_by)
        names = dict.fromkeys(senders, "contributes wrong data")
        names.update(dict.fromkeys(receivers, "gets wrong data from several ranks"))
        return names

    def problem(self, kind: Collective, message: str, **labels: Any) -> None:
        """Print on rank 0 that data were wrong."""
        if self.me.rank == 0:
            rank_io.problem("wrong-data", message, check=kind.check, **labels)


def options_of(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        description="Collectives over torch.distributed (gloo on CPU, NCCL on CUDA), with every "
        "element checked, printed as nccl-tests prints them. Start one process per rank: "
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
    parser.add_argument("--factor", type=int, default=2, help="between sizes (default 2)")
    parser.add_argument("--iters", type=int, default=5, help="timed iterations (default 5)")
    parser.add_argument("--warmup", type=int, default=1, help="warm-ups a size (default 1)")
    parser.add_argument(
        "--limit",
        type=float,
        default=0.02,
        help="seconds that the iterations of one measurement may take; where the size before says "
        "that they would take longer, fewer are done: at least 2, and 5 of the largest size "
        "(default 0.02)",
    )
    parser.add_argument(
        "--timeout", type=float, default=60, help="seconds to wait for other ranks (default 60)"
    )
    parser.add_argument(
        "--device", choices=("auto", "cpu", "cuda"), default="auto", help="default auto"
    )
    options = parser.parse_args(arguments)
    if options.factor < 2 or options.iters < 1 or options.warmup < 0 or options.timeout <= 0:
        parser.error("least values: --factor 2, --iters 1, --warmup 0; --timeout above 0")
    if options.min < FLOAT or options.max < options.min:
        parser.error(f"--min must be at least {FLOAT} and --max at least --min")
    return options


def main() -> None:
    """Measure every collective asked for. Leaves the process."""
    options = options_of()
    me = rank_io.identity("mpirun", "torchrun")
    progress = rank_io.Progress(me.rank)

    def work() -> int:
        plant = rank_io.planted(me)
        device = torch_io.pick_device(me, options.device)
        progress.enter("rendezvous")
        torch_io.join(me, device, options.timeout)
        bench = Bench(options, me, plant, progress, device)
        bench.gather_devices()
        if me.rank == 0:
            rank_io.fact("began", time.time())
        failed = 0
        for number, kind in enumerate(options.collectives):
            failed += bench.table(kind, middle=number == len(options.collectives) // 2)
        progress.enter("barrier")
        torch_io.wait_for_all()
        progress.enter("done")
        # Only rank 0, which has printed everything by now: another's exit could cut that short.
        return rank_io.EXIT_WRONG if failed and me.rank == 0 else 0

    rank_io.guarded(me, progress, work)


if __name__ == "__main__":
    main()
