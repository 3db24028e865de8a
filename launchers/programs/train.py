"""A short seeded training run whose loss curve is the same for every number of ranks.

Data-parallel training over gloo on CPU and NCCL on CUDA; started by torchrun (or mpirun). Gradients
are averaged by torch's DistributedDataParallel on CUDA; on CPU by one all-reduce of all of them,
because that class takes seconds to import there (--averaging chooses, the fact `averaging` says).

The data are ten classes of seeded points that a small network learns in a few steps. The batch is
global and fixed: rank r takes its slice of it, and its loss is weighted so that the averaged
gradient is that of the whole batch, also where the ranks do not divide it. Where there are more
ranks than samples the batch grows to one sample a rank. So first and last loss mean the same on 1
and on 1,000 ranks; curves differ by the rounding of float32 only (less than 1e-3 of the first loss
over the default 60 steps).

Printed by rank 0, check `train`:

* metric `loss-first`, `loss-last`: global mean loss over the first and last 5 steps;
  `loss-target`: what share of the first the last may be at most;
* metric `throughput` (samples/s): samples of the global batch, each counted once, over the wall
  time of the steps after the warm-up on the slowest rank; `step-p50` (s): median over these steps
  of the slowest rank's time;
* fact `loss-curve`: the loss of every step (of at most 500);
* problem `not-finite`: the ranks whose own loss or gradient, before it was averaged, was the first
  that was not a finite number;
* problem `parameters-differ`: the ranks whose parameters (SHA-256 over their bytes) are not those
  of more than half of the ranks. Hosts with different CPU types may differ by rounding: compare
  like with like.

Planted faults (ACCEPT_PLANT), all in the middle of the run: wrong adds 0.001 to one parameter after
an update, nan puts NaN into one input, hang and die strike before a step; slow loses 50 ms a step.

Exit status: 0, 7 a problem above (rank 0 only), 1 could not go on, 2 bad usage.
"""

from __future__ import annotations

import argparse
import ctypes
import hashlib
import time
from collections import Counter
from collections.abc import Sequence
from typing import Any

import rank_io
import torch_io

FEATURES, CLASSES, POOL = 64, 10, 4096
#: Steps whose mean is the first or the last loss.
ENDS = 5
#: Steps before the clock starts.
WARMUP = 5
MOMENTUM = 0.9
#: Below these the loss of a healthy run may not fall by half. From these on it fell below 0.12 of
#: the first for each of the seeds 1 to 5 (default rate and width).
LEAST_STEPS, LEAST_BATCH = 20, 16
#: At most so many ranks are named, and so many losses printed.
NAMED, CURVE = 8, 500


def slice_of(rank: int, ranks: int, batch: int) -> range:
    """The samples of a global batch that a rank takes: all ranks' slices are the batch."""
    return range(batch * rank // ranks, batch * (rank + 1) // ranks)


def ends(losses: Sequence[float]) -> tuple[float, float]:
    """Mean of the first and of the last losses."""
    return sum(losses[:ENDS]) / ENDS, sum(losses[-ENDS:]) / ENDS


def odd_ones(digests: Sequence[str]) -> list[int] | None:
    """Ranks whose digest is not that of more than half; None where no such majority exists."""
    digest, count = Counter(digests).most_common(1)[0]
    if 2 * count <= len(digests):
        return None
    return [rank for rank, other in enumerate(digests) if other != digest]


class Training:
    """The run: model, data, and what has been measured so far."""

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
        self.batch = max(options.batch, me.size)
        torch.manual_seed(options.seed)
        centres = torch.randn(CLASSES, FEATURES)
        labels = torch.randint(CLASSES, (max(POOL, self.batch),))
        points = centres[labels] + torch.randn(len(labels), FEATURES)
        self.labels, self.points = labels.to(device), points.to(device)
        layers = torch.nn.Sequential(
            torch.nn.Linear(FEATURES, options.width),
            torch.nn.ReLU(),
            torch.nn.Linear(options.width, options.width),
            torch.nn.ReLU(),
            torch.nn.Linear(options.width, CLASSES),
        )
        self.layers = layers.to(device)
        self.parameters = list(self.layers.parameters())
        # No torch.optim: it imports as much as DistributedDataParallel. No Adam: it divides by
        # small numbers and so magnifies differences of rounding.
        self.velocity = [torch.zeros_like(parameter) for parameter in self.parameters]
        self.model: Any = self.layers
        self.ddp = options.averaging == "ddp" or (options.averaging == "auto" and device != "cpu")
        progress.enter("parameters")
        if self.ddp:
            self.model = torch.nn.parallel.DistributedDataParallel(self.layers)
            self.model.register_comm_hook(None, lambda _, bucket: self.average_bucket(bucket))
        else:
            for parameter in self.parameters:
                torch.distributed.broadcast(parameter.data, src=0)
        self.step_now = 0
        self.losses = torch.zeros(options.steps, dtype=torch.float64, device=device)
        self.finite = torch.ones(options.steps, dtype=torch.bool, device=device)
        self.seconds: list[float] = []

    def share(self, gradient: Any) -> Any:
        """Begin to average a part of the gradient, all that there is in one tensor."""
        self.finite[self.step_now] &= self.torch.isfinite(gradient).all()
        self.progress.enter("gradients", gradient.numel() * gradient.element_size())
        gradient.div_(self.me.size)
        return self.dist.all_reduce(gradient, async_op=True)

    def average_bucket(self, bucket: Any) -> Any:
        """What DistributedDataParallel does with a bucket, with a look at it before."""
        work = self.share(bucket.buffer())
        return work.get_future().then(lambda future: future.value()[0])

    def average_all(self) -> None:
        """Average all gradients at once."""
        whole = self.torch.cat([parameter.grad.view(-1) for parameter in self.parameters])
        self.share(whole).wait()
        at = 0
        for parameter in self.parameters:
            parameter.grad.view(-1).copy_(whole[at : at + parameter.numel()])
            at += parameter.numel()

    def update(self) -> None:
        """Stochastic gradient descent with momentum; forgets the gradients."""
        with self.torch.no_grad():
            for parameter, velocity in zip(self.parameters, self.velocity, strict=True):
                velocity.mul_(MOMENTUM).add_(parameter.grad)
                parameter.sub_(velocity, alpha=self.options.rate)
                parameter.grad = None

    def step(self) -> None:
        """One optimizer step on this rank's slice of the global batch."""
        torch, step = self.torch, self.step_now
        middle = step == self.options.steps // 2
        if middle:
            self.plant.strike()
        self.plant.drag()
        own = slice_of(self.me.rank, self.me.size, self.batch)
        index = torch.arange(own.start, own.stop, device=self.device) + step * self.batch
        index %= len(self.labels)
        points = self.points[index]
        if middle and "nan" in self.plant:
            points[0, 0] = float("nan")
        output = self.model(points)
        loss = torch.nn.functional.cross_entropy(output, self.labels[index], reduction="sum")
        self.losses[step] = loss.detach()
        # The sum over the ranks is divided by their number; this makes it the mean over the batch.
        (loss * (self.me.size / self.batch)).backward()
        if not self.ddp:
            self.average_all()
        self.update()
        if middle and "wrong" in self.plant:
            with torch.no_grad():
                self.parameters[0].view(-1)[0] += 1e-3

    def run(self) -> None:
        """Do all steps."""
        for step in range(self.options.steps):
            self.step_now = step
            start = time.perf_counter()
            self.step()
            if self.device != "cpu":
                self.torch.cuda.synchronize()
            self.seconds.append(time.perf_counter() - start)

    def digest(self) -> str:
        """SHA-256 over the bytes of all parameters, in hexadecimal."""
        found = hashlib.sha256()
        for tensor in self.layers.state_dict().values():
            kept = tensor.detach().cpu().contiguous()
            found.update(ctypes.string_at(kept.data_ptr(), kept.numel() * kept.element_size()))
        return found.hexdigest()

    def gather(self, values: Any) -> Any:
        """A row of numbers of every rank, as a CPU tensor of float64, on every rank."""
        mine = values.to("cpu", self.torch.float64)
        every = self.torch.empty(self.me.size * len(mine), dtype=self.torch.float64)
        self.progress.enter("gather", 8 * len(mine))
        self.dist.all_gather_into_tensor(every, mine)
        return every.view(self.me.size, -1)

    def went_wrong_at(self) -> int:
        """When this rank's own numbers first were not finite: 2 * step for its loss, and one more
        for its gradient. -1: never."""
        fine = self.torch.stack((self.torch.isfinite(self.losses), self.finite), dim=1).cpu()
        bad = (~fine.view(-1)).nonzero()
        return int(bad[0]) if len(bad) else -1

    def report(self) -> bool:
        """Compare the ranks and print what was measured; returns whether all was well."""
        options, me, torch = self.options, self.me, self.torch
        curve = (self.gather(self.losses).sum(dim=0) / self.batch).tolist()
        slowest = self.gather(torch.tensor(self.seconds)).max(dim=0).values[WARMUP:].tolist()
        wall = float(self.gather(torch.tensor([sum(self.seconds[WARMUP:])])).max())
        when = [int(row[0]) for row in self.gather(torch.tensor([self.went_wrong_at()])).tolist()]
        self.progress.enter("digests")
        digests = torch_io.gather_text(self.digest(), 64)
        hosts = torch_io.gather_text(me.host, 255)
        if me.rank:
            return True
        first, last = ends(curve)
        measured = options.steps - WARMUP
        for name, value, unit in (
            ("loss-first", first, ""),
            ("loss-last", last, ""),
            ("loss-target", options.ratio, ""),
            ("throughput", measured * self.batch / wall, "samples/s"),
            ("step-p50", rank_io.median(slowest), "s"),
        ):
            rank_io.metric(name, value, unit, check="train")
        shown = [format(loss, ".6g") for loss in curve[:CURVE]]
        rank_io.fact("loss-curve", [float(loss) for loss in shown], check="train")
        rank_io.fact("averaging", "ddp" if self.ddp else "flat", check="train")
        rank_io.say(
            f"# {options.steps} steps of {self.batch} samples on {me.size} ranks ({self.device}): "
            f"loss {first:.4f} -> {last:.4f}, to be at most {options.ratio:g} x the first"
        )
        return bool(self.tell_not_finite(when, hosts) & self.tell_different(digests, hosts))

    def tell_not_finite(self, when: Sequence[int], hosts: Sequence[str]) -> bool:
        """Print whose numbers first were not finite; returns whether all were."""
        bad = [at for at in when if at >= 0]
        if not bad:
            return True
        earliest = min(bad)
        what = "gradient" if earliest % 2 else "loss"
        where = f"{what} not finite at step {earliest // 2}"
        guilty = [rank for rank, at in enumerate(when) if at == earliest]
        if len(guilty) > NAMED or len(guilty) == self.me.size > 1:
            where = f"{where}, on {len(guilty)} of {self.me.size} ranks at once"
            rank_io.problem("not-finite", where, check="train")
            return False
        for rank in guilty:
            message = f"rank {rank} on {hosts[rank]}: {where}, before any other rank"
            rank_io.problem("not-finite", message, check="train", host=hosts[rank], rank=rank)
        return False

    def tell_different(self, digests: Sequence[str], hosts: Sequence[str]) -> bool:
        """Print who ended with other parameters; returns whether all are equal."""
        ranks = len(digests)
        odd = odd_ones(digests)
        if odd == []:
            return True
        if odd is None or len(odd) > NAMED:
            kinds = len(set(digests))
            message = f"{kinds} different sets of parameters on {ranks} ranks, none can be blamed"
            rank_io.problem("parameters-differ", message, check="train")
            return False
        for rank in odd:
            message = f"rank {rank} on {hosts[rank]} ended with other parameters than most"
            rank_io.problem(
                "parameters-differ", message, check="train", host=hosts[rank], rank=rank
            )
        return False


def options_of(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        description="A short seeded data-parallel training run (gloo on CPU, NCCL on CUDA). "
        "torchrun --nproc-per-node 4 train.py",
    )
    parser.add_argument("--steps", type=int, default=60, help="optimizer steps (default 60)")
    parser.add_argument(
        "--batch", type=int, default=64, help="samples of a step over all ranks (default 64)"
    )
    parser.add_argument(
        "--ratio", type=float, default=0.5, help="last loss over first, at most (default 0.5)"
    )
    parser.add_argument("--seed", type=int, default=1, help="of data and model (default 1)")
    parser.add_argument("--width", type=int, default=256, help="of the layers (default 256)")
    parser.add_argument("--rate", type=float, default=0.05, help="learning rate (default 0.05)")
    parser.add_argument(
        "--averaging",
        choices=("auto", "ddp", "flat"),
        default="auto",
        help="of gradients, by DistributedDataParallel or by one all-reduce of all "
        "(default: ddp on CUDA, flat on CPU)",
    )
    torch_io.add_options(parser)
    options = parser.parse_args(arguments)
    if options.steps < LEAST_STEPS or options.batch < LEAST_BATCH:
        parser.error(
            f"--steps must be at least {LEAST_STEPS} and --batch at least {LEAST_BATCH}: "
            "with fewer the loss of a healthy run need not fall"
        )
    if options.width < 1 or options.timeout <= 0 or options.rate <= 0:
        parser.error("--width, --rate and --timeout must be above 0")
    if not 0 < options.ratio < 1:
        parser.error("--ratio must lie between 0 and 1: a loss that need not fall proves nothing")
    return options


def main() -> None:
    """Train, compare, print. Leaves the process."""
    options = options_of()
    me = rank_io.identity("torchrun", "mpirun")
    progress = rank_io.Progress(me.rank)

    def work() -> int:
        plant, device = torch_io.begin(me, progress, options)
        # Making the model may import more of torch: no work yet.
        training = Training(options, me, plant, progress, device)
        if me.rank == 0:
            rank_io.fact("began", time.time(), check="train")
        training.run()
        well = training.report()
        progress.enter("barrier")
        torch_io.wait_for_all()
        progress.enter("done")
        return 0 if well else rank_io.EXIT_WRONG

    rank_io.guarded(me, progress, work)


if __name__ == "__main__":
    main()
