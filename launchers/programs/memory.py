"""Memory of every device: how fast, whether it keeps what is written, and the ways in and out.

One process a device: mpirun -n 8 python memory.py. On a GPU over nearly all of the memory that is
free (--share); on a CPU over --most bytes a rank, and never more, over all ranks of a host, than a
quarter of what the host and the cgroup have left.

Printed by each rank, check `memory`:

* metric `copy` (a = b) and `triad` (a = b + s * c), GB/s read and written, as a distribution over
  time, all devices at once (median; `-p5`, `-least`, `-most`), and `copy-alone`;
* metric `tested`: share of the device's memory that held a pattern, and `wrong`: words that came
  back wrong, over all patterns (`patterns` has them); every one is written everywhere before it is
  read anywhere;
* metric `host-to-device`, `device-to-host` (GB/s, GPUs, in turn): pinned memory, data compared,
  and fact `pcie`: lanes and generation of the link meanwhile, and the most it can have;
* metric `p2p-out`, `p2p-in` (GB/s, several GPUs): medians over the other GPUs of the host, and fact
  `p2p`, the whole matrix, row by row from GPU to GPU, data compared; metric and fact `p2p-least`:
  its slowest way (`peers` has the rule). Rank 0's process measures it,
  so it must see and use all GPUs of the host: where CUDA_VISIBLE_DEVICES shows each process its own
  alone, or a GPU takes one process only, `left-out` says so;
* problem `wrong-data`, with place and bits.

Planted faults (ACCEPT_PLANT): flip turns one bit in memory after each pattern was written; nan puts
NaN into what triad reads, and it shows in the sum; hang and die strike in the middle of the copies;
slow loses 50 ms before each copy.
"""

from __future__ import annotations

from typing import Any

import p2p_matrix
import patterns
import rank_io
from bench import Bench
from free_memory import available
from patterns import WORD
from sampler import Link
from windowed_timer import WINDOW, Stopwatch, tell

CHECK = "memory"
#: Of a host's memory never more than this share is used, over all of its ranks.
HOST_SHARE = 0.25
#: Words of a block: 64 MiB on a GPU, so that one fills it; on a CPU what its caches hold.
WORDS, WORDS_CPU = 8 << 20, 1 << 16
#: Bytes of one allocation, and of what goes to and from the host or another GPU.
CHUNK, MOVED = 1 << 30, 256 << 20
#: Elements that are compared at a time: nearly all of the memory is taken.
PART = 1 << 24
#: Seconds of each of these, at most.
MOVING = 0.3


class Memory:
    """The check on one device."""

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
            bench.at_once(CHECK, "peers", self._peers)

    def _look(self) -> None:
        """How much is tested. Before any rank takes some, that all of a host see the same."""
        import torch

        self.torch, self.watch = torch, Stopwatch(self.bench.device, 0.0 if self.cpu else WINDOW)
        if not self.cpu:
            # What the products before left in torch's own store is free for this.
            torch.cuda.empty_cache()
            free, self.total = torch.cuda.mem_get_info(self.bench.device)
            self.room = int(free * self.share)
            return
        self.total = available()
        mine = int(self.total * HOST_SHARE / self.bench.me.local_size)
        self.room = min(self.most, mine)

    def _three(self) -> list[Any]:
        """Three arrays of float32 that fill the room."""
        count = max(1, self.room // 12)
        make = self.torch.full
        return [make((count,), float(n), device=self.bench.device) for n in range(3)]

    def _copies(self) -> None:
        torch, plant = self.torch, self.bench.plant
        a, b, c = self._three()

        def copy() -> None:
            plant.drag()
            a.copy_(b)

        def triad() -> None:
            plant.drag()
            torch.add(b, c, alpha=3.0, out=a)

        if "nan" in plant:
            c[len(c) // 2] = float("nan")
        for name, work, moved in (("copy", copy, 2), ("triad", triad, 3)):
            calls = self.watch.calls(work, 0.01 if self.cpu else 0.1)
            strike = plant.strike if name == "triad" else _nothing
            taken = self.watch.windows(work, calls, self.seconds, middle=strike)
            self._tell(name, taken, moved * b.numel() * 4 * calls)
        # b is 1 and c is 2 everywhere, so a is 7: what was moved so fast must have arrived.
        wrong = sum(int((part != 7.0).sum()) for part in a.split(PART))
        if wrong:
            # Whatever is no number spoils the sum.
            strange = not torch.isfinite(a.sum())
            said = f"triad: {wrong} of {a.numel()} elements are wrong"
            self.bench.wrong(CHECK, "not-finite" if strange else "wrong-data", said)
        self.wrong = wrong

    def _copy_alone(self) -> None:
        a, b, _ = self._three()

        def copy() -> None:
            self.bench.plant.drag()
            a.copy_(b)

        calls = self.watch.calls(copy, 0.01)
        taken = self.watch.windows(copy, calls, self.alone)
        self._tell("copy-alone", taken, 2 * b.numel() * 4 * calls)

    def _tell(self, name: str, taken: list[float], moved: int) -> None:
        tell(CHECK, name, "GB/s", taken, moved / 1e9, **self.bench.labels)

    def _blocks(self, words: int) -> list[Any]:
        """Blocks of words over all of the room, or over as much of it as there is."""
        torch, blocks, left = self.torch, [], self.room
        if not self.cpu:
            torch.cuda.empty_cache()
            # What is written is expected in a block of its own, and compared in another.
            left -= 4 * words * WORD
        while left >= words * WORD:
            count = max(words, min(left, CHUNK) // WORD // words * words)
            try:
                chunk = torch.empty(count, dtype=torch.int64, device=self.bench.device)
            except torch.cuda.OutOfMemoryError:
                # Memory in pieces: what there is in one is tested, and the share says how much.
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
            if "flip" in self.bench.plant:
                blocks[len(blocks) // 2][words // 3] ^= 1 << 5
            counts = [one.differing(torch, b, n, scratch) for n, b in enumerate(blocks)]
            fault = patterns.find(torch, one, blocks, counts, words)
            if fault:
                self.wrong += fault.words
                said = f"pattern {name}: {fault}, of {len(blocks) * words * WORD} bytes tested"
                self.bench.wrong(CHECK, "wrong-data", said)
        tested = len(blocks) * words * WORD
        share = float(format(tested / max(1, self.total), ".4g"))
        self.bench.metric(CHECK, "tested", share, "")
        self.bench.fact(CHECK, "tested", {"bytes": tested, "of": self.total})
        if blocks:
            self.bench.metric(CHECK, "wrong", self.wrong, "count")

    def _host(self) -> None:
        """Pinned memory to the GPU and back, each way by itself."""
        torch, device = self.torch, self.bench.device
        torch.cuda.empty_cache()
        there = patterns.pattern(torch, "random", MOVED // WORD, self.seed, device).first
        sent, back = (torch.zeros(len(there), dtype=there.dtype, pin_memory=True) for _ in range(2))
        sent.copy_(there)
        there.zero_()
        ways = (("host-to-device", there, sent), ("device-to-host", back, there))
        link = Link(device)
        for name, target, source in ways:
            self._tell(name, self._moves(target, source, link), MOVED * self.moves)
        self.bench.fact(CHECK, "pcie", link.seen)
        wrong = int((sent != back).sum())
        if wrong:
            said = f"{wrong} of {len(sent)} words changed on the way to the GPU and back"
            self.bench.wrong(CHECK, "wrong-data", said)

    def _moves(self, target: Any, source: Any, link: Link) -> list[float]:
        def move() -> None:
            self.bench.plant.drag()
            target.copy_(source, non_blocking=True)

        self.moves = self.watch.calls(move, 0.05)
        seconds = min(self.seconds, MOVING)
        return self.watch.windows(move, self.moves, seconds, between=link.look)

    def _peers(self) -> None:
        """Every GPU of the host to every other: by its first rank, which then uses them all."""
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
            into = [torch.empty_like(one) for one in kept]
        except RuntimeError as error:
            # As where a GPU takes one process only (compute mode): its own rank has measured it.
            self._no_peers(f"rank 0 cannot use all GPUs of its host: {rank_io.one_line(error)}")
            return
        rates = [[self._between(kept, into, i, j) if i != j else 0.0 for j in gpus] for i in gpus]
        self.bench.fact(CHECK, "p2p", [[round(rate, 2) for rate in row] for row in rates])
        p2p_matrix.tell(CHECK, me, rates)

    def _no_peers(self, why: str) -> None:
        self.bench.fact(CHECK, "left-out", {"p2p-out": why, "p2p-in": why})

    def _sent(self, source: int, gpu: int) -> Any:
        """What GPU `source` sends to the others, made on `gpu`."""
        return patterns.pattern(self.torch, "random", MOVED // WORD, source, f"cuda:{gpu}").first

    def _between(self, kept: list[Any], into: list[Any], i: int, j: int) -> float:
        """GB/s from GPU i to GPU j, by events of the one that sends; the data are compared."""
        torch = self.torch
        into[j].zero_()
        torch.cuda.synchronize(j)
        watch = Stopwatch(f"cuda:{i}")
        with torch.cuda.device(i):

            def move() -> None:
                into[j].copy_(kept[i], non_blocking=True)

            calls = watch.calls(move, 0.0)
            taken = watch.windows(move, calls, 0.0)
        torch.cuda.synchronize(j)
        # Made again where it arrived: nothing passes the CPU, which would take most of the time.
        wrong = int((into[j] != self._sent(i, j)).sum())
        if wrong:
            said = f"{wrong} of {len(kept[i])} words changed on the way from GPU {i} to GPU {j}"
            self.bench.wrong(CHECK, "wrong-data", said)
        return MOVED * calls * len(taken) / sum(taken) / 1e9


def _nothing() -> None:
    pass


if __name__ == "__main__":
    import devices

    devices.main("memory")
