"""Train a seeded model, with the same loss curve for every number of ranks.

Data-parallel training over gloo on CPU and NCCL on CUDA, started by torchrun (or mpirun). On CUDA
torch's DistributedDataParallel or FSDP (fully_shard) averages the gradients. On CPU one all-reduce
does, because importing those classes takes seconds there. --parallel selects, and the fact
`training` reports it. It has not been tested with CUDA, NCCL and FSDP on GPUs.

The batch is global and fixed. Each rank takes a slice of it, in pieces (--micro), and weights its
loss so that the averaged gradient is that of the full batch, even if the slices differ in size. If
there are more ranks than samples, the batch grows to one sample per rank. So the losses mean the
same on 1 and on 1,000 ranks, and curves differ by rounding only. If train_reference.json has a
curve for the settings, the loss curve is compared with it.

Every --every steps, before each print, and at the end, all ranks compute the same samples, and
their parameters and gradients are compared (train_compare). With FSDP no rank has the full gradient
before communication, so the outputs are compared instead.

Printed by rank 0, check `train`, at the end and every --report seconds before it:

* metric `loss-first`, `loss-last`: global mean loss over the first and last 5 steps so far;
  `loss-target`: maximum of the last loss, as a share of the first; `loss-by`: mean over the 5 steps
  up to --by;
* metric `throughput` (samples/s), `tokens` (tokens/s, transformers): of the global batch, each
  counted once, over the wall time of the steps after the warm-up on the slowest rank; `flops`
  (TFLOP/s per rank: train_models.flops_of) and, with --peak, `mfu` (its share of that); all for the
  run so far. `sustained`: `flops` of gpt-fit, which loads the GPU. `step-p50` (s): median over
  steps of the slowest rank's time, the maximum of all prints so far; `time-input`, `time-compute`,
  `time-communication` (s): mean of a step over ranks since the last print (not with FSDP);
* metric `curve-deviation`: largest distance from the reference curve, as a share of its first loss;
* metric `checkpoint-write`, `checkpoint-read` (GB/s): bytes of all ranks over the slowest one's
  time;
* fact `training`: the settings and the device; `loss-curve`: the first 500 losses; `slowest-rank`:
  the rank that the others waited for since the last print, with its own time and the median of all
  ranks (s);
* at the end, for each rank: metric `rank-own` (s): its median time until its gradients were ready
  (not with FSDP); `rank-step-p50`, `rank-step-p95`, `rank-step-p99` (s); all for the interval
  between two prints in which one rank kept the others waiting longest, relative to the median; fact
  `digest` of its result in the comparison before the first step, on synthetic data, if the device
  repeats its results: {type, size, random, device}, equal on equal devices of all executions;
* problem `not-finite`, `wrong-data` (other samples than most; a checkpoint that differs from what
  was written), `parameters-differ`, `gradients-differ`, `loss-differs`: see docs/causes.md.

Injected faults (ACCEPT_INJECT), all in the middle of the run: wrong adds 0.001 to one parameter
after an update, and before that to one element of its gradient of the compared samples; nan makes
its loss NaN; hang and die strike before a step; slow loses 50 ms per step.

Exit status: 0, 7 a problem above (rank 0 only), 1 could not go on, 2 bad usage.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import rank_io
import torch_io
from train_parallel import Parallel, pieces_of

MODELS = (
    "mlp", "resnet18", "resnet50",
    "gpt-tiny", "gpt-16", "gpt-40", "gpt-80", "gpt-141", "gpt-192", "gpt-fit",
)  # fmt: skip
DATASETS = ("synthetic", "fashion-mnist", "cifar-10", "cifar-100", "image-folder")
PRECISIONS = ("fp32", "autocast", "bf16")
#: With fewer, the loss of a healthy run may not fall by half. With these, it fell below 0.12 of
#: the first loss for each of the seeds 1 to 5 (mlp, default rate and width).
LEAST_STEPS, LEAST_BATCH = 20, 16
#: Learning rates at which the loss falls smoothly from the start. Not tested: transformers above
#: gpt-tiny.
#: That of gpt-fit follows from its width: RATE_TIMES_WIDTH.
RATES = {"mlp": 0.05, "resnet18": 0.02, "resnet50": 0.02, "gpt-tiny": 0.05, "gpt-fit": 0.0}
RATE = 0.01
#: Steps before the clock starts.
WARMUP = 5
MOMENTUM = 0.9
#: Learning rate of gpt-fit, times its width: the loss fell smoothly with 2.5 to 5 on CPUs, at
#: widths of 64 to 512, and the logits change in proportion to both.
RATE_TIMES_WIDTH = 4.0
#: Forward passes of each rank in a step of gpt-fit, so that averaging gradients takes little time.
PIECES = 4
#: The next action of all ranks.
GO_ON, END, PRINT = 0, 1, 2
#: Seconds between two looks at the clock, roughly.
LOOK_SECONDS = 10.0


def options_of(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """Return the parsed command line."""
    parser = argparse.ArgumentParser(
        description="A seeded data-parallel training run (gloo on CPU, NCCL on CUDA). "
        "torchrun --nproc-per-node 4 train.py",
    )

    def add(name: str, default: Any, text: str, **more: Any) -> None:
        kind: dict[str, Any] = {} if "choices" in more else {"type": type(default)}
        shown = f" (default {default})" if default != "" else ""
        parser.add_argument(name, default=default, help=text + shown, **kind, **more)

    add("--model", "mlp", "gpt-N fills a GPU of N GB, gpt-fit loads any", choices=MODELS)
    add("--precision", "fp32", "autocast: bf16 except weights", choices=PRECISIONS)
    add(
        "--parallel",
        "auto",
        "flat: one all-reduce of all gradients; auto: ddp on CUDA, flat on CPU",
        choices=("auto", "ddp", "fsdp", "flat"),
    )
    add("--norm", "group", "norm layers of ResNets; sync: SyncBatchNorm", choices=("group", "sync"))
    add("--steps", 60, "optimizer steps")
    add("--minutes", 0.0, "run for this long instead of --steps")
    add("--batch", 64, "samples per step, over all ranks")
    add("--micro", 0, "samples per forward pass; 0: the default of the model")
    add("--ratio", 0.5, "maximum of last loss over first")
    add("--by", 0, "step by which the loss must have fallen to --ratio; 0: the last")
    add("--every", 100, "steps between comparisons of the ranks")
    add("--report", 300.0, "seconds between intermediate reports")
    add("--seed", 1, "seed of data and model")
    add("--width", 256, "width of an mlp's layers")
    add("--image", 64, "pixels along a side of images, synthetic or of a folder")
    add("--rate", 0.0, "learning rate; 0: the default of the model")
    add("--dataset", "synthetic", "data set to learn", choices=DATASETS)
    add("--path", "", "folder of the data set")
    parser.add_argument("--download", action="store_true", help="fetch it with torchvision")
    add("--checkpoint", "", "folder for a checkpoint, written at the end and read back")
    add("--peak", 0.0, "TFLOP/s of one device at this precision, for `mfu`; 0: unknown")
    torch_io.add_options(parser)
    options = parser.parse_args(arguments)
    if options.steps < LEAST_STEPS or options.batch < LEAST_BATCH:
        parser.error(
            f"--steps must be at least {LEAST_STEPS} and --batch at least {LEAST_BATCH}: "
            "with fewer, the loss may not fall even on healthy hardware"
        )
    for name in ("width", "timeout", "every", "report", "image"):
        if not getattr(options, name) > 0:
            parser.error(f"--{name} must be above 0")
    for name in ("rate", "micro", "minutes", "peak", "by"):
        if not getattr(options, name) >= 0:
            parser.error(f"--{name} must not be below 0")
    if not 0 < options.ratio < 1:
        parser.error("--ratio must be above 0 and below 1, so that the loss has to fall")
    if not options.minutes and options.by > options.steps:
        parser.error(f"--by {options.by} is after the last of {options.steps} steps")
    if (options.dataset == "synthetic") == bool(options.path):
        parser.error("--path and a --dataset other than synthetic must be given together")
    if options.download and options.dataset in ("synthetic", "image-folder"):
        parser.error("--download fetches fashion-mnist, cifar-10 or cifar-100")
    options.rate = options.rate or RATES.get(options.model, RATE)
    return options


class Clock:
    """Decide by the clock of rank 0 when a run prints and ends, at the same step on all ranks.

    The clocks of the ranks may differ, and a broadcast at every step would cost time. So rank 0
    also sends the number of steps to its next answer. `agree` broadcasts rank 0's two numbers.
    """

    def __init__(
        self, options: argparse.Namespace, agree: Callable[[int, int], tuple[int, int]]
    ) -> None:
        self.options, self.agree = options, agree
        now = time.monotonic()
        self.end = now + 60 * options.minutes if options.minutes else float("inf")
        self.due = now + options.report
        #: Step of the next look; a run of fewer steps has nothing to print.
        self.next = LEAST_STEPS + 1

    def look(self, step: int, last: float) -> int:
        """Return what to do before this step; the previous step took `last` seconds."""
        if step != self.next:
            return GO_ON
        now = time.monotonic()
        action = END if now >= self.end else PRINT if now >= self.due else GO_ON
        action, ahead = self.agree(action, self.ahead(step, last))
        self.next += ahead
        if action == PRINT:
            self.due = now + self.options.report
        return action

    def ahead(self, step: int, last: float) -> int:
        """Return the steps to the next look: at most to the next comparison of the ranks."""
        every: int = self.options.every
        return max(1, min(int(LOOK_SECONDS / last), every - step % every))


class Training:
    """The training run on this rank: model, data and state."""

    def __init__(self, options: argparse.Namespace, rank: rank_io.Rank) -> None:
        import torch
        import torch.distributed

        import train_compare
        import train_data
        import train_models
        import train_times

        self.torch, self.dist = torch, torch.distributed
        me, progress, device = rank.me, rank.progress, rank.device
        self.options, self.me, self.injected, self.progress = options, me, rank.injected, progress
        self.device = device
        self.loads = options.model == train_models.FIT
        if self.loads and device != "cpu":
            total = torch.cuda.get_device_properties(device).total_memory / 1e9
            # The ranks train one model, so the smallest GPU decides.
            train_models.load_gpu(-torch_io.most(-total))
        gpt = train_models.GPT.get(options.model)
        self.tokens = gpt.sequence if gpt else 0
        self.batch = max(options.batch, me.size)
        if gpt and self.loads:
            self.batch = max(options.batch, me.size * PIECES * (options.micro or gpt.micro))
            options.rate = options.rate or RATE_TIMES_WIDTH / gpt.width
        self.micro = options.micro or (gpt.micro if gpt else self.batch)
        self.alike = gpt.fitting(self.micro) if gpt else self.micro
        self.pieces = pieces_of(me.rank, me.size, self.batch, self.micro)
        progress.enter("model")
        if options.download:
            train_data.fetch(options, me, progress)
        self.data = train_data.load(options, self.batch, device)
        self.layers = self._made(train_models)
        sample, _ = self.take(0, 1)
        with self.precise():
            self.flops = train_models.flops_of(self.layers, sample)
        self.size = sum(parameter.numel() for parameter in self.layers.parameters())
        self.gigabytes = gpt.gigabytes if gpt else None
        self.watch = train_times.StepTimer(device)
        self.kind = options.parallel
        if self.kind == "auto":
            self.kind = "flat" if device == "cpu" else "ddp"
        self._refuse()
        self.parallel = Parallel(self.layers, self.kind, self.batch, rank, self.watch)
        self.parameters = self.parallel.parameters
        # Not torch.optim, which imports as much as DistributedDataParallel. Not Adam, which divides
        # by small numbers and so magnifies rounding differences.
        self.velocity = [torch.zeros_like(parameter) for parameter in self.parameters]
        self.step_now = 0
        #: Since the last print: the loss of each step on this rank, and the parts of its time.
        self.losses: list[float] = []
        self.seconds: list[train_times.Split] = []
        self.replicas = train_compare.Replicas(self)

    def _made(self, models: Any) -> Any:
        """Return the model, with equal weights on equal devices."""
        options, torch = self.options, self.torch
        torch.manual_seed(options.seed)
        where = models.build_device(options.model, self.device)
        with torch.device(where) if where != "cpu" else nullcontext():
            layers = models.build(
                options.model,
                self.data.shape,
                self.data.classes,
                norm=options.norm,
                width=options.width,
            )
        if self.device != "cpu":
            # TF32 rounds to ten bits, and the curve would differ from that of a CPU.
            torch.backends.cudnn.allow_tf32 = False
        # NVIDIA's images enable TF32 here (TORCH_ALLOW_TF32_CUBLAS_OVERRIDE).
        torch.set_float32_matmul_precision("highest")
        dtype = torch.bfloat16 if options.precision == "bf16" else torch.float32
        return layers.to(self.device, dtype)

    def _refuse(self) -> None:
        """Raise Unusable if these ranks or this device do not support the options."""
        if self.options.norm == "sync" and (self.device == "cpu" or len(self.pieces) > 1):
            raise rank_io.Unusable("--norm sync needs CUDA, and a rank's samples in one piece")
        # fully_shard uses it, also on CPUs.
        can_shard = self.device != "cpu" or hasattr(self.torch.cpu.Stream, "record_event")
        if self.kind == "fsdp" and not can_shard:
            version = self.torch.__version__
            raise rank_io.Unusable(f"on CPUs fsdp needs a newer torch, this is {version}")
        counts = {
            len(pieces_of(rank, self.me.size, self.batch, self.micro))
            for rank in range(self.me.size)
        }
        if self.kind == "fsdp" and len(counts) > 1:
            raise rank_io.Unusable(
                f"fsdp needs equally many pieces on all ranks: {self.me.size} ranks do not divide "
                f"{self.batch} samples in pieces of {self.micro}"
            )

    def precise(self) -> AbstractContextManager[Any]:
        """Return the context of the forward pass: autocast, if it is requested."""
        if self.options.precision != "autocast":
            return nullcontext()
        casting: AbstractContextManager[Any] = self.torch.autocast(
            self.device.partition(":")[0], dtype=self.torch.bfloat16
        )
        return casting

    def take(self, first: int, count: int) -> tuple[Any, Any]:
        """Return samples of the run, in the model's precision."""
        inputs, labels = self.data.take(first, count)
        if self.options.precision == "bf16" and inputs.is_floating_point():
            inputs = inputs.bfloat16()
        return inputs, labels

    def loss_of(self, model: Any, inputs: Any, labels: Any) -> Any:
        """Return the summed loss of samples; for text it is the mean over the tokens."""
        with self.precise():
            output = model(inputs)
        if self.tokens:
            output, labels = output.flatten(0, 1), labels.flatten()
        loss = self.torch.nn.functional.cross_entropy(output.float(), labels, reduction="sum")
        return loss / (self.tokens or 1)

    def update(self) -> None:
        """Update the parameters by gradient descent with momentum, and drop the gradients."""
        with self.torch.no_grad():
            for parameter, velocity in zip(self.parameters, self.velocity, strict=True):
                velocity.mul_(MOMENTUM).add_(parameter.grad)
                parameter.sub_(velocity, alpha=self.options.rate)
                parameter.grad = None

    def step(self) -> None:
        """Do one optimizer step on this rank's slice of the global batch."""
        step, watch, parallel = self.step_now, self.watch, self.parallel
        middle = step == self.options.steps // 2
        start, reading = watch.mark(), 0.0
        if middle:
            self.injected.strike()
        self.injected.drag()
        parallel.step = step
        for piece in self.pieces:
            asked = time.perf_counter()
            inputs, labels = self.take(step * self.batch + piece.start, len(piece))
            reading += time.perf_counter() - asked
            with parallel.gather(last=piece is self.pieces[-1]):
                part = self.loss_of(parallel.model, inputs, labels)
                if middle and "nan" in self.injected:
                    part = part * float("nan")
                parallel.look(part, gradient=False)
                (part * parallel.weight).backward()
        if parallel.kind != "ddp":
            parallel.average()
        averaged = watch.mark()
        self.update()
        self.seconds.append(watch.split(start, parallel.ready, averaged, reading))
        if middle and "wrong" in self.injected:
            parallel.spoil()

    def run(self) -> bool:
        """Do all steps, with comparisons and prints; return True without any problem."""
        from train_report import Report

        options, report, clock = self.options, Report(self), Clock(self.options, self.agree)
        while options.minutes or self.step_now < options.steps:
            what = clock.look(self.step_now, self.seconds[-1].whole if self.seconds else 0.0)
            if what == END:
                break
            if what == PRINT or self.step_now % options.every == 0:
                self.settle()
            if what == PRINT and not report.interim():
                return False
            self.step()
            self.step_now += 1
            if self.step_now == WARMUP:
                self.seconds.clear()
        self.settle()
        return report.final()

    def settle(self) -> None:
        """Read the losses of the last steps, and compute the samples that all ranks compute."""
        self.losses += self.parallel.settle()
        self.replicas.compare()

    def agree(self, wish: int, ahead: int) -> tuple[int, int]:
        """Return the two numbers of rank 0, on all ranks."""
        decision = self.torch.tensor([wish, ahead])
        self.progress.enter("agree", 16)
        self.dist.broadcast(decision, src=0)
        return int(decision[0]), int(decision[1])


def main() -> None:
    """Train, compare and print; exit the process."""
    options = options_of()

    def work(me: rank_io.Identity, progress: rank_io.Progress) -> int:
        rank = torch_io.begin(me, progress, options)
        # Building the model may import more of torch; that does not count as work.
        training = Training(options, rank)
        if me.rank == 0:
            rank_io.fact("began", time.time(), check="train")
        return torch_io.finish(rank, well=training.run())

    rank_io.run(work, "torchrun", "mpirun")


if __name__ == "__main__":
    main()
