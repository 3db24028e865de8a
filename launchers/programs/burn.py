"""Load every GPU of a host with products and all-gathers at the same time, for a minute and a half.

One process per device: mpirun -n 8 python burn.py --seconds 90. In each step a rank multiplies
random matrices for about 20 ms, while all-gathers over all ranks take about as long (NCCL; gloo on
a CPU). So arithmetic, memory and NVLink of a host are at work together, as in training, until it
has its highest temperature and power. Each product is compared with the first one bit for bit, and
the last received data of each step with what the ranks sent.

Printed by each rank, check `burn`, TYPE being bf16, or fp32 on a CPU and on old GPUs:

* metric `TYPE` (TFLOP/s): median over the steps, without waiting for other ranks; `TYPE-p5`,
  `TYPE-least`, `TYPE-most`; `wrong`: wrong elements of its products;
* fact `curve`: rates over time; `load`: clocks (MHz), power (W), temperature (C), and the reasons
  for lower clocks during the load;
* problem `wrong-result`, and `wrong-data` if it received other data than were sent.

Printed by the first rank for the host: metric `step-p50` and `step-p99` (s), the times of a step on
the slowest rank, and `all-gather` (GB/s): median bus bandwidth meanwhile.

Injected faults (ACCEPT_INJECT): flip turns one bit of a product; hang strikes in the middle; slow
loses 50 ms before each product.

Exit status of rank 0: 0 done, 7 wrong results or data, 1 a rank failed, 2 bad usage.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import exact_gemm
import rank_io
import torch_io
from collective import read_size
from gemm import TENSOR, WARM, WARM_CPU, Product, side
from sampler import Sampler
from windowed_timer import WINDOW_SECONDS, Bench, WindowedTimer, print_rates, quantile

CHECK = "burn"
#: Default bytes that each all-gather delivers to a rank, on a GPU and on a CPU.
ROOM, ROOM_CPU = 256 << 20, 1 << 20
#: Number of steps that the host enqueues ahead of the GPU, and of steps between two decisions of
#: all ranks to go on.
AHEAD, DECIDE = 4, 40


class Marks(NamedTuple):
    """The start and the end of the parts of one step: events on a GPU, else seconds."""

    step: tuple[Any, Any]
    compute: tuple[Any, Any]
    gather: tuple[Any, Any]


class Burn:
    """The check `burn` on one device. Every rank must create this object and call `run`."""

    def __init__(self, bench: Bench, *, seconds: float, size: int, room: int, seed: int) -> None:
        import torch
        import torch.distributed

        self.torch, self.dist = torch, torch.distributed
        self.bench, self.seconds, device = bench, seconds, bench.device
        self.cpu = device == "cpu"
        old = self.cpu or torch.cuda.get_device_capability(device) < TENSOR
        self.kind = "fp32" if old else "bf16"
        self.product = Product(device, self.kind, size or side(device))
        self.product.fill(seed)
        me, whole = bench.me, room or (ROOM_CPU if self.cpu else ROOM)
        count = max(1, whole // 4 // me.size)
        # Small integers, which float32 holds exactly; each rank sends other ones.
        line = torch.arange(count, device=device, dtype=torch.float32) % 8191
        self.sent = line + 8192 * me.rank
        self.expected = torch.cat([line + 8192 * rank for rank in range(me.size)])
        self.received = torch.zeros_like(self.expected)
        self.watch = WindowedTimer(device, 0.0 if self.cpu else WINDOW_SECONDS)
        self.marks: list[Marks] = []
        self.wrong: list[Any] = []
        self.strange: list[Any] = []
        if not self.cpu:
            self.side = torch.cuda.Stream(device)

    def run(self) -> None:
        """Burn, and print what was measured."""
        bench, product = self.bench, self.product
        watch = self.watch
        self.calls = watch.calls(self._multiply, WARM_CPU if self.cpu else WARM)
        self.first = exact_gemm.bits(self.torch, product.out).clone()
        self.gathers = self._balanced(watch)
        with Sampler(bench.uuid) as sampler:
            self._steps()
            watch.finish()
        compute = [self.watch.between(*marks.compute) for marks in self.marks]
        work = 2 * product.size**3 * self.calls / 1e12
        print_rates(CHECK, self.kind, "TFLOP/s", compute, work, **bench.labels)
        bench.fact(CHECK, "load", {"type": self.kind, **sampler.summary()})
        self._print_host()
        self._compare()

    def _multiply(self) -> None:
        self.bench.injected.drag()
        self.product.multiply()

    def _gather(self) -> None:
        """Run one all-gather; on a GPU it is only enqueued."""
        if self.cpu:
            ranks = self.bench.me.size
            self.dist.all_gather(list(self.received.chunk(ranks)), self.sent)
        else:
            self.dist.all_gather_into_tensor(self.received, self.sent)

    def _balanced(self, watch: WindowedTimer) -> int:
        """Return the number of all-gathers that take about as long as the products of a step."""
        self.bench.progress.enter("warm-up")
        self._gather()
        watch.finish()
        torch_io.wait_for_all()
        start = time.perf_counter()
        self._gather()
        watch.finish()
        took = torch_io.most(time.perf_counter() - start)
        return 1 if self.cpu else max(1, int(WINDOW_SECONDS / took))

    def _steps(self) -> None:
        """Run steps for `seconds` on all ranks, at least one."""
        bench, start, number = self.bench, time.perf_counter(), 0
        struck = False
        while True:
            if number % (1 if self.cpu else DECIDE) == 0:
                bench.progress.enter("decide")
                passed = torch_io.most(time.perf_counter() - start)
                if number and passed >= self.seconds:
                    return
                if not struck and passed >= self.seconds / 2:
                    struck = True
                    bench.injected.strike()
            if not self.cpu and number >= AHEAD:
                self.marks[number - AHEAD].step[1].synchronize()
            bench.progress.enter("step", self.received.numel() * 4)
            self._step(number)
            number += 1

    def _step(self, number: int) -> None:
        """Run one step, and compare its results; on a GPU they are only enqueued."""
        if self.cpu:
            # gloo needs the same cores, so the products come after it.
            gather = self._timed(self._gather, 1)
            compute = self._timed(self._multiply, self.calls)
            end = compute[1]
        else:
            stream = self.torch.cuda.current_stream()
            self.side.wait_stream(stream)
            # First, so that NCCL's kernels start before the products fill all multiprocessors.
            with self.torch.cuda.stream(self.side):
                gather = self._timed(self._gather, self.gathers)
            compute = self._timed(self._multiply, self.calls)
            stream.wait_stream(self.side)
            end = self.watch.mark()
        self.marks.append(Marks((gather[0], end), compute, gather))
        out = exact_gemm.bits(self.torch, self.product.out)
        if number == 0 and "flip" in self.bench.injected:
            out[0, 0] ^= 1
        self.wrong.append((out != self.first).sum())
        self.strange.append((self.received != self.expected).sum())

    def _timed(self, work: Callable[[], None], times: int) -> tuple[Any, Any]:
        """Run `work` some times; return the marks before and after."""
        start = self.watch.mark()
        for _ in range(times):
            work()
        return start, self.watch.mark()

    def _print_host(self) -> None:
        """Print the metrics of the host, which all ranks must call together."""
        me = self.bench.me
        steps = [self.watch.between(*marks.step) for marks in self.marks]
        gathering = rank_io.median([self.watch.between(*marks.gather) for marks in self.marks])
        mine = [rank_io.median(steps), quantile(steps, 0.99), gathering]
        self.bench.progress.enter("exchange")
        every = torch_io.gather(self.torch.tensor(mine, dtype=self.torch.float64))
        if me.rank:
            return
        for index, name in enumerate(("step-p50", "step-p99")):
            value = max(row[index] for row in every)
            rank_io.metric(name, float(f"{value:.6g}"), "s", check=CHECK, host=me.host)
        if me.size > 1:
            # The rank that waits least for the others shows the time of the transfer.
            moved = self.gathers * self.sent.numel() * 4 * (me.size - 1)
            rate = moved / min(row[2] for row in every) / 1e9
            rank_io.metric("all-gather", float(f"{rate:.6g}"), "GB/s", check=CHECK, host=me.host)

    def _compare(self) -> None:
        bench = self.bench
        wrong, strange = (self.torch.stack(one).tolist() for one in (self.wrong, self.strange))
        bench.metric(CHECK, "wrong", sum(wrong), "count")
        if any(wrong):
            message = f"{self.kind}: {sum(wrong)} elements of {sum(map(bool, wrong))} of "
            message += f"{len(wrong)} products of the same matrices differ from the first product"
            bench.wrong(CHECK, "wrong-result", message)
        if any(strange):
            # Any rank of the host, or the path from it, may have changed the data.
            bench.status = rank_io.EXIT_WRONG
            message = f"{bench.who} received {sum(strange)} wrong elements in "
            message += f"{sum(map(bool, strange))} of {len(strange)} all-gathers under load"
            rank_io.problem("wrong-data", message, check=CHECK, host=bench.me.host)


def options_of(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """Return the parsed command line."""
    parser = argparse.ArgumentParser(
        description="Load every device of a host with products and all-gathers at the same time. "
        "Start one process per device: mpirun -n 8 python burn.py"
    )
    parser.add_argument("--seconds", type=float, default=90.0, help="duration (default 90)")
    parser.add_argument(
        "--size",
        type=int,
        default=0,
        help="rows and columns of the matrices (default: by the device, 8192 on large GPUs)",
    )
    parser.add_argument(
        "--room",
        type=read_size,
        default=0,
        help="size that each all-gather delivers, such as 1G (default 256M, on a CPU 1M)",
    )
    parser.add_argument("--seed", type=int, default=1, help="seed of all data (default 1)")
    torch_io.add_options(parser)
    options = parser.parse_args(arguments)
    if not 0 < options.seconds <= 86400 or options.timeout <= 0:
        parser.error("--seconds must be above 0 and at most 86400, --timeout above 0")
    if options.size and not 64 <= options.size <= 1 << 16:
        parser.error("--size must be from 64 to 65536, or 0")
    return options


def main() -> None:
    """Burn. Ends the process."""
    options = options_of()

    def work(me: rank_io.Identity, progress: rank_io.Progress) -> int:
        bench = Bench(torch_io.begin(me, progress, options), options.timeout)
        if me.rank == 0:
            rank_io.fact("began", time.time())
        names = ("seconds", "size", "room", "seed")
        Burn(bench, **{name: getattr(options, name) for name in names}).run()
        return bench.finish()

    rank_io.run(work, "mpirun", "torchrun")


if __name__ == "__main__":
    main()
