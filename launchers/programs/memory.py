"""Test the memory of every device: its bandwidth, its contents, and the paths in and out.

One process per device: mpirun -n 8 python memory.py. A GPU is tested on nearly all of its free
memory (--share). A CPU rank tests --most bytes; all ranks of a host together test at most a quarter
of the memory that the host and the cgroup have left.

Printed by each rank, check `memory`:

* metric `copy` (a = b) and `triad` (a = b + s * c), GB/s read and written by kernels, as a
  distribution over time, all devices at once (median; `-p5`, `-least`, `-most`), `copy-alone`, and
  on GPUs `memcpy`: a copy by the driver, whose speed differs between releases;
* metric `tested`: share of the device's memory that held a pattern, and `wrong`: words that were
  read back wrong, over all patterns (see patterns.py); each pattern is written everywhere before it
  is read anywhere;
* metric `host-to-device`, `device-to-host` (GB/s, GPUs, in turn): pinned memory of the GPU's NUMA
  node, data compared, and fact `pcie`: lanes and generation of the link during the copies, and
  their maximum. If this process may not run near the GPU, the names end with `-far`, and `left-out`
  reports that. `host-both`: both directions together, all GPUs at once;
* metric `p2p-out`, `p2p-in` (GB/s, several GPUs): medians over the other GPUs of the host, and fact
  `p2p`, the full matrix, row by row from GPU to GPU, data compared; metric `p2p-least`: its slowest
  path in either direction, as a share of the lower median of the two GPUs of that path, and fact
  `p2p-least`, that path in words. Rank 0's process measures this, so it must see and use all GPUs
  of the host. If CUDA_VISIBLE_DEVICES shows each process only its own GPU, or a GPU allows one
  process only, `left-out` reports that;
* problem `wrong-data`, with position and bits.

Injected faults (ACCEPT_INJECT): flip turns one bit in memory after each pattern is written; nan
puts NaN into the input of triad, and it shows in the sum; hang and die strike in the middle of the
copies; slow loses 50 ms before each copy.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import patterns
import pci
import rank_io
import torch_io
from patterns import WORD
from sampler import Link
from windowed_timer import WINDOW_SECONDS, Bench, WindowedTimer, print_rates

CHECK = "memory"
#: Maximum share of a host's memory that all of its ranks together use.
HOST_SHARE = 0.25
#: Words of a block: 64 MiB on a GPU, which keep it busy; on a CPU as much as its caches hold.
WORDS, WORDS_CPU = 8 << 20, 1 << 16
#: Bytes of one allocation, and of one transfer between host and GPU or between GPUs.
CHUNK, MOVED = 1 << 30, 256 << 20
#: Elements compared at a time; the comparison needs memory, and little is left.
PART = 1 << 24
#: Maximum seconds of each series of transfers.
MOVING = 0.3


class Memory:
    """The check `memory` on one device."""

    def __init__(
        self, bench: Bench, *, seconds: float, alone: float, share: float, most: int, seed: int
    ) -> None:
        self.bench, self.seconds, self.alone, self.seed = bench, seconds, alone, seed
        self.share, self.most = share, most
        self.cpu = bench.device == "cpu"
        self.total = 0

    def run(self) -> None:
        """Measure and test. All ranks call this together."""
        bench = self.bench
        bench.at_once(CHECK, "memory", self._look)
        bench.at_once(CHECK, "copies", self._copies)
        if self.alone:
            bench.in_turn(CHECK, "copy alone", self._copy_alone)
        bench.at_once(CHECK, "patterns", self._test)
        if not self.cpu:
            bench.in_turn(CHECK, "host ways", self._host)
            bench.at_once(CHECK, "host both directions", self._host_both)
            bench.at_once(CHECK, "peers", self._peers)

    def _look(self) -> None:
        """Choose how much to test, before any rank allocates, so that all ranks see the same."""
        import torch

        self.torch = torch
        self.watch = WindowedTimer(self.bench.device, 0.0 if self.cpu else WINDOW_SECONDS)
        if not self.cpu:
            # Free what earlier matrix products left in torch's cache.
            torch.cuda.empty_cache()
            free, self.total = torch.cuda.mem_get_info(self.bench.device)
            self.room = int(free * self.share)
            return
        self.total = available()
        share = int(self.total * HOST_SHARE / self.bench.me.local_size)
        self.room = min(self.most, share)

    def _three(self) -> list[Any]:
        """Return three arrays of float32 that fill the memory to test."""
        count = max(1, self.room // 12)
        make = self.torch.full
        return [make((count,), float(n), device=self.bench.device) for n in range(3)]

    def _copies(self) -> None:
        torch, injected = self.torch, self.bench.injected
        a, b, c = self._three()

        def copy() -> None:
            injected.drag()
            torch.mul(b, 1.0, out=a)

        def triad() -> None:
            injected.drag()
            torch.add(b, c, alpha=3.0, out=a)

        if "nan" in injected:
            c[len(c) // 2] = float("nan")
        for name, work, moved in (("copy", copy, 2), ("triad", triad, 3)):
            calls = self.watch.calls(work, 0.01 if self.cpu else 0.1)
            strike = injected.strike if name == "triad" else _nothing
            taken = self.watch.windows(work, calls, self.seconds, middle=strike)
            self._print_rates(name, taken, moved * b.numel() * 4 * calls)
        if not self.cpu:
            self._memcpy(c, b)
        # b is 1 and c is 2 everywhere, so a must be 7.
        wrong = sum(int((part != 7.0).sum()) for part in a.split(PART))
        if wrong:
            # The sum is not finite if any element is not.
            strange = not torch.isfinite(a.sum())
            message = f"triad: {wrong} of {a.numel()} elements are wrong"
            self.bench.wrong(CHECK, "not-finite" if strange else "wrong-data", message)
        self.wrong = wrong

    def _memcpy(self, target: Any, source: Any) -> None:
        """Measure the driver's own copy, for information."""

        def copy() -> None:
            target.copy_(source)

        calls = self.watch.calls(copy, 0.01)
        taken = self.watch.windows(copy, calls, min(self.seconds, MOVING))
        rate = rank_io.median([2 * source.numel() * 4 * calls / 1e9 / t for t in taken])
        self.bench.metric(CHECK, "memcpy", float(format(rate, ".6g")), "GB/s")

    def _copy_alone(self) -> None:
        a, b, _ = self._three()

        def copy() -> None:
            self.bench.injected.drag()
            self.torch.mul(b, 1.0, out=a)

        calls = self.watch.calls(copy, 0.01)
        taken = self.watch.windows(copy, calls, self.alone)
        self._print_rates("copy-alone", taken, 2 * b.numel() * 4 * calls)

    def _print_rates(self, name: str, taken: list[float], moved: int) -> None:
        print_rates(CHECK, name, "GB/s", taken, moved / 1e9, **self.bench.labels)

    def _blocks(self, words: int) -> list[Any]:
        """Return blocks of words that fill the memory to test, or as much of it as is available."""
        torch, blocks, left = self.torch, [], self.room
        if not self.cpu:
            torch.cuda.empty_cache()
            # The expected data and the comparison need blocks of their own.
            left -= 4 * words * WORD
        while left >= words * WORD:
            count = max(words, min(left, CHUNK) // WORD // words * words)
            try:
                chunk = torch.empty(count, dtype=torch.int64, device=self.bench.device)
            except torch.cuda.OutOfMemoryError:
                # Free memory is fragmented; the metric `tested` shows how much was tested.
                break
            blocks += chunk.split(words)
            left -= count * WORD
        return blocks

    def _test(self) -> None:
        torch, words = self.torch, WORDS_CPU if self.cpu else WORDS
        blocks = self._blocks(words)
        scratch = torch.empty(words, dtype=torch.int64, device=self.bench.device)
        for name in patterns.NAMES if blocks else ():
            one = patterns.pattern(torch, name, words, self.seed, self.bench.device)
            for number, block in enumerate(blocks):
                one.write(torch, block, number)
            if "flip" in self.bench.injected:
                blocks[len(blocks) // 2][words // 3] ^= 1 << 5
            counts = [one.differing(torch, b, n, scratch) for n, b in enumerate(blocks)]
            fault = patterns.find(torch, one, blocks, counts, words)
            if fault:
                self.wrong += fault.words
                message = f"pattern {name}: {fault}, of {len(blocks) * words * WORD} bytes tested"
                self.bench.wrong(CHECK, "wrong-data", message)
        tested = len(blocks) * words * WORD
        share = float(format(tested / max(1, self.total), ".4g"))
        self.bench.metric(CHECK, "tested", share, "")
        self.bench.fact(CHECK, "tested", {"bytes": tested, "of": self.total})
        if blocks:
            self.bench.metric(CHECK, "wrong", self.wrong, "count")

    def _host(self) -> None:
        """Measure pinned memory to the GPU and back, one direction at a time."""
        torch, device = self.torch, self.bench.device
        torch.cuda.empty_cache()
        link = Link(self.bench.uuid)
        there = patterns.pattern(torch, "random", MOVED // WORD, self.seed, device).first
        cpus = pci.near(link.address())
        # Without a list there is one NUMA node, or the GPU's node is unknown.
        with pci.on(cpus or os.sched_getaffinity(0)) as is_near:
            sent, back = (
                torch.zeros(len(there), dtype=there.dtype, pin_memory=True) for _ in range(2)
            )
        sent.copy_(there)
        there.zero_()
        ways = (("host-to-device", there, sent), ("device-to-host", back, there))
        tail = "" if is_near else "-far"
        if tail:
            why = f"this process may not run on CPUs {min(cpus)}-{max(cpus)} near the GPU"
            self.bench.fact(CHECK, "left-out", {name: why for name, _, _ in ways})
        for name, target, source in ways:
            self._print_rates(name + tail, self._moves(target, source, link), MOVED * self.moves)
        self.pinned = sent, back, there
        self.bench.fact(CHECK, "pcie", link.seen)
        wrong = int((sent != back).sum())
        if wrong:
            message = f"{wrong} of {len(sent)} words changed on the way to the GPU and back"
            self.bench.wrong(CHECK, "wrong-data", message)

    def _host_both(self) -> None:
        """Measure both directions at the same time, while the other GPUs do the same."""
        torch = self.torch
        sent, back, there = self.pinned
        arriving, leaving = torch.empty_like(there), torch.cuda.Stream(self.bench.device)

        def move() -> None:
            self.bench.injected.drag()
            # The timer's events are on the current stream, so that waits for the other one.
            here = torch.cuda.current_stream(self.bench.device)
            leaving.wait_stream(here)
            with torch.cuda.stream(leaving):
                back.copy_(there, non_blocking=True)
            arriving.copy_(sent, non_blocking=True)
            here.wait_stream(leaving)

        calls = self.watch.calls(move, 0.05)
        taken = self.watch.windows(move, calls, min(self.seconds, MOVING))
        self._print_rates("host-both", taken, 2 * MOVED * calls)
        wrong = int((arriving != there).sum())
        if wrong:
            message = f"{wrong} of {len(there)} words changed on the way to the GPU"
            self.bench.wrong(CHECK, "wrong-data", message)

    def _moves(self, target: Any, source: Any, link: Link) -> list[float]:
        def move() -> None:
            self.bench.injected.drag()
            target.copy_(source, non_blocking=True)

        self.moves = self.watch.calls(move, 0.05)
        seconds = min(self.seconds, MOVING)
        return self.watch.windows(move, self.moves, seconds, between=link.look)

    def _peers(self) -> None:
        """Measure each pair of GPUs of the host, in its first rank, which uses all of them."""
        me, torch = self.bench.me, self.torch
        torch.cuda.empty_cache()
        if me.local_rank or me.local_size < 2:
            return
        seen = torch.cuda.device_count()
        if seen < me.local_size:
            why = f"rank 0 sees {seen} of {me.local_size} GPUs (CUDA_VISIBLE_DEVICES)"
            self._no_peers(why)
            return
        gpus = range(me.local_size)
        try:
            kept = [self._sent(n, n) for n in gpus]
            into = [torch.empty_like(data) for data in kept]
        except RuntimeError as error:
            # For example, a GPU in exclusive compute mode belongs to its own rank's process.
            self._no_peers(f"rank 0 cannot use all GPUs of its host: {rank_io.one_line(error)}")
            return
        rates = [[self._between(kept, into, i, j) if i != j else 0.0 for j in gpus] for i in gpus]
        self.bench.fact(CHECK, "p2p", [[round(rate, 2) for rate in row] for row in rates])
        print_p2p(me, rates)

    def _no_peers(self, why: str) -> None:
        self.bench.fact(CHECK, "left-out", {"p2p-out": why, "p2p-in": why})

    def _sent(self, source: int, gpu: int) -> Any:
        """Return the data that GPU `source` sends to the others, generated on `gpu`."""
        return patterns.pattern(self.torch, "random", MOVED // WORD, source, f"cuda:{gpu}").first

    def _between(self, kept: list[Any], into: list[Any], i: int, j: int) -> float:
        """Return GB/s from GPU i to GPU j, by events of the sender; compare the data."""
        torch = self.torch
        into[j].zero_()
        torch.cuda.synchronize(j)
        watch = WindowedTimer(f"cuda:{i}")
        with torch.cuda.device(i):

            def move() -> None:
                into[j].copy_(kept[i], non_blocking=True)

            calls = watch.calls(move, 0.0)
            taken = watch.windows(move, calls, 0.0)
        torch.cuda.synchronize(j)
        # The expected data are generated on the receiver; copying them there would take longer.
        wrong = int((into[j] != self._sent(i, j)).sum())
        if wrong:
            message = f"{wrong} of {len(kept[i])} words changed on the way from GPU {i} to GPU {j}"
            self.bench.wrong(CHECK, "wrong-data", message)
        return MOVED * calls * len(taken) / sum(taken) / 1e9


# The paths between GPUs


def medians(rates: Sequence[Sequence[float]]) -> tuple[list[float], list[float]]:
    """Return the median rate at which each GPU sends, and at which it receives."""
    gpus = range(len(rates))
    out = [rank_io.median([rates[i][j] for j in gpus if j != i]) for i in gpus]
    came = [rank_io.median([rates[i][j] for i in gpus if i != j]) for j in gpus]
    return out, came


def slowest_paths(rates: Sequence[Sequence[float]]) -> list[tuple[float, int, int]]:
    """Return the slowest path of each GPU: share, from, to.

    The rate is compared with the lower of the two medians, so that a GPU that is slow with all
    others, or far from most of them, does not make the others look slow.
    """
    gpus = range(len(rates))
    out, came = medians(rates)
    paths = [
        (rates[i][j] / max(min(out[i], came[j]), 1e-9), i, j) for i in gpus for j in gpus if i != j
    ]
    return [min(path for path in paths if gpu in path[1:]) for gpu in gpus]


def print_p2p(me: rank_io.Identity, rates: Sequence[Sequence[float]]) -> None:
    """Print the records about each GPU of a host; `me` is its first rank, which has measured.

    `rates[i][j]` is the rate from GPU i to GPU j in GB/s; the diagonal is ignored.
    """
    out, came = medians(rates)
    numbers = [torch_io.gpu_number(gpu, gpu) for gpu in range(len(rates))]
    for gpu, (share, i, j) in enumerate(slowest_paths(rates)):
        where = {"host": me.host, "rank": me.rank + gpu, "check": CHECK}
        for name, value in (("p2p-out", out[gpu]), ("p2p-in", came[gpu])):
            rounded = float(format(value, ".6g"))
            rank_io.metric(name, rounded, "GB/s", gpu=numbers[gpu], **where)
        rank_io.metric("p2p-least", float(format(share, ".4g")), "", gpu=numbers[gpu], **where)
        path = f"GPU {numbers[i]} to GPU {numbers[j]}: {rates[i][j]:.4g} GB/s"
        rank_io.fact("p2p-least", path, **where)


# The free memory of a host, within the limits of cgroups


def left_by_cgroups(root: Path, lines: list[str]) -> int | None:
    """Return the bytes left below the memory limits of a process's cgroups; None without a limit.

    `lines` are those of /proc/self/cgroup; `root` is the mount point of the cgroups. Both cgroup
    versions are read, with all ancestors, because each may have a limit. Cache that the kernel can
    drop (inactive_file) counts as free. https://docs.kernel.org/admin-guide/cgroup-v2.html
    """
    left = None
    for line in lines:
        _, controllers, path = line.strip().split(":", 2)
        if controllers and "memory" not in controllers.split(","):
            continue
        base = root / "memory" if controllers else root
        limit, used = ("limit_in_bytes", "usage_in_bytes") if controllers else ("max", "current")
        folder = base / path.lstrip("/")
        for group in (folder, *folder.parents):
            maximum = rank_io.number(group / f"memory.{limit}")
            current = rank_io.number(group / f"memory.{used}")
            if maximum is not None and current is not None:
                free = max(0, maximum - current + _droppable(group / "memory.stat"))
                left = free if left is None else min(left, free)
            if group == base:
                break
    return left


def _droppable(stat: Path) -> int:
    try:
        rows = (line.split() for line in stat.read_text().splitlines())
        return next(int(row[1]) for row in rows if row[0] == "inactive_file")
    except (OSError, ValueError, StopIteration, IndexError):
        return 0


def available() -> int:
    """Return the bytes of host memory that this process may still allocate."""
    text = Path("/proc/meminfo").read_text()
    free = next(int(r.split()[1]) << 10 for r in text.splitlines() if r.startswith("MemAvailable"))
    lines = Path("/proc/self/cgroup").read_text().splitlines()
    left = left_by_cgroups(Path("/sys/fs/cgroup"), lines)
    return free if left is None else min(free, left)


def _nothing() -> None:
    pass


if __name__ == "__main__":
    import devices

    devices.main("memory")
