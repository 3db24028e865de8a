"""What train.py prints: the ranks' numbers put together, and who is accused of what."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import rank_io
import torch_io
from train_checkpoint import save_and_load
from train_compare import NAMED, TOLERANCES, Accused, Replica, accuse, went_wrong
from train_models import RESNETS
from train_times import Summary, summary

#: Steps whose mean is the first or the last loss; losses that are printed.
ENDS, CURVE = 5, 500
#: Comparisons that are looked at closer at a time, where any showed a difference.
_CLOSER = 8
_REFERENCES = Path(__file__).with_name("train_reference.json")


class Place(NamedTuple):
    """Where a rank is: its host, its GPU there ("" on CPU), and what computes."""

    host: str
    gpu: str
    device: str


def ends(losses: Sequence[float]) -> tuple[float, float]:
    """Mean of the first and of the last losses."""
    return sum(losses[:ENDS]) / ENDS, sum(losses[-ENDS:]) / ENDS


def deviation(curve: Sequence[float], reference: Sequence[float]) -> float:
    """Largest distance of two curves, as far as both go, as a share of the reference's first loss.

    Not a number where one of them is not.
    """
    far = [abs(a - b) for a, b in zip(curve, reference, strict=False)]
    return max(far, key=lambda one: (one != one, one)) / reference[0]


def settings(options: Any, batch: int) -> dict[str, Any]:
    """What a reference curve is valid for."""
    kept = ("model", "dataset", "norm", "seed", "rate", "width", "image")
    return {"batch": batch, **{name: getattr(options, name) for name in kept}}


def reference_of(wanted: dict[str, Any], precision: str) -> tuple[list[float], float] | None:
    """The reference curve for these settings out of train_reference.json, and its tolerance."""
    for one in json.loads(_REFERENCES.read_text(encoding="utf-8"))["curves"]:
        if one["settings"] == wanted and precision in one["tolerance"]:
            return one["losses"], one["tolerance"][precision]
    return None


class Report:
    """Prints for all ranks, through rank 0; every rank calls all of it."""

    def __init__(self, training: Any) -> None:
        self.training = training
        self.me, self.torch, self.dist = training.me, training.torch, training.dist
        self.head: list[float] = []
        self.tail: list[float] = []
        self.steps, self.by = 0, float("nan")
        self.said: set[tuple[str, int]] = set()
        self.well = True
        gpu = training.device.partition(":")[2]
        device = self._device()
        texts = torch_io.gather_text(f"{self.me.host}\t{gpu}\t{device}", 384)
        self.places = [Place(*text.split("\t", 2)) for text in texts]

    def _device(self) -> str:
        """What computes: equal names promise equal bits."""
        torch = self.torch
        if self.training.device != "cpu":
            return f"{torch.cuda.get_device_name()}, CUDA {torch.version.cuda}, {torch.__version__}"
        name = getattr(torch.backends.cpu, "get_cpu_capability", str)()
        about = Path("/proc/cpuinfo")
        lines = about.read_text(errors="replace").splitlines() if about.exists() else []
        model = next((line.partition(":")[2] for line in lines if line.startswith("model name")), "")
        return f"{model.strip()} {name}, {torch.__version__}"

    def gather(self, values: Sequence[float]) -> list[list[float]]:
        """A row of numbers of every rank, on every rank."""
        mine = self.torch.tensor(values, dtype=self.torch.float64)
        return self._every(mine)

    def _every(self, mine: Any) -> list[list[Any]]:
        every = self.torch.empty(self.me.size * len(mine), dtype=mine.dtype)
        self.training.progress.enter("gather", 8 * len(mine))
        self.dist.all_gather_into_tensor(every, mine)
        rows: list[list[Any]] = every.view(self.me.size, -1).tolist()
        return rows

    def interim(self) -> bool:
        """Print what is known since the last time; returns whether all was well."""
        self._losses()
        mine = summary(self.training.seconds)
        slowest = self._slowest_steps()
        rows = [Summary(*row) for row in self.gather(mine)]
        self._speeds(rows, slowest)
        bad = self.gather([float(self.training.parallel.first_bad)])
        self._accuse(went_wrong([int(at) for (at,) in bad]))
        self._compare()
        self.training.seconds.clear()
        self.rows = rows
        return self.well

    def final(self) -> bool:
        """Print all that is left to print; returns whether all was well."""
        self.interim()
        for rank, row in enumerate(self.rows):
            labels = self._labels(rank)
            if self.training.kind != "fsdp":
                self._metric("rank-own", row.own, "s", **labels)
            for name in ("p50", "p95", "p99"):
                self._metric(f"rank-step-{name}", getattr(row, name), "s", **labels)
        if self.training.options.checkpoint:
            self._checkpoint()
        return self.well

    def _losses(self) -> None:
        training, options = self.training, self.training.options
        mine = self.torch.stack(training.losses).to("cpu", self.torch.float64)
        training.losses.clear()
        training.progress.enter("losses", 8 * len(mine))
        self.dist.all_reduce(mine)
        losses = (mine / training.batch).tolist()
        before = self.tail
        self.head += losses[: CURVE - len(self.head)]
        self.steps += len(losses)
        known = before + losses
        # The losses before `by`, counted from the end of what is known.
        back = self.steps - options.by
        if options.by and 0 <= back < len(losses):
            upto = known[: len(known) - back][-ENDS:]
            self.by = sum(upto) / len(upto)
        self.tail = known[-ENDS:]
        first, last = ends([*self.head[:ENDS], *self.tail])
        self._metric("loss-first", first, "")
        self._metric("loss-last", last, "")
        self._metric("loss-target", options.ratio, "")
        if options.by and options.by <= self.steps:
            self._metric("loss-by", self.by, "")
        shown = [float(format(loss, ".6g")) for loss in self.head]
        self._fact("loss-curve", shown)
        self._hold(shown)
        self._say(
            f"# {self.steps} steps of {training.batch} samples on {self.me.size} ranks "
            f"({training.device}): loss {first:.4f} -> {last:.4f}, "
            f"to be at most {options.ratio:g} x the first"
        )

    def _hold(self, curve: Sequence[float]) -> None:
        """Hold the curve against the reference, where there is one for these settings."""
        options, batch = self.training.options, self.training.batch
        reference = reference_of(settings(options, batch), options.precision)
        about = {
            **settings(options, batch),
            "precision": options.precision,
            "parallel": self.training.kind,
            "norm": options.norm if options.model in RESNETS else "of one sample, or none",
            "micro": self.training.micro,
            "parameters": self.training.size,
            "gigabytesComputed": self.training.gigabytes,
            "device": self.places[0].device,
            "compared": "outputs" if self.training.kind == "fsdp" else "parameters, gradients",
            "reference": reference is not None,
        }
        self._fact("training", about)
        if reference is None:
            return
        losses, most = reference
        far = deviation(curve, losses)
        self._metric("curve-deviation", far, "")
        self._metric("curve-tolerance", most, "")
        if not far <= most:
            seen = f"the loss curve is {far:.3g} of the first loss away from that of healthy hardware"
            self._accuse(Accused("loss-differs", (), f"{seen}; {most:g} is rounding"))

    def _slowest_steps(self) -> list[float]:
        """The slowest rank's time of each step."""
        mine = self.torch.tensor([step.whole for step in self.training.seconds])
        self.training.progress.enter("times", 4 * len(mine))
        self.dist.all_reduce(mine, op=self.dist.ReduceOp.MAX)
        slowest: list[float] = mine.tolist()
        return slowest

    def _speeds(self, rows: Sequence[Summary], slowest: Sequence[float]) -> None:
        training, options = self.training, self.training.options
        samples = training.batch * len(slowest) / max(row.total for row in rows)
        self._metric("throughput", samples, "samples/s")
        if training.tokens:
            self._metric("tokens", samples * training.tokens, "tokens/s")
        flops = samples * training.flops / self.me.size / 1e12
        self._metric("flops", flops, "TFLOP/s")
        if options.peak:
            self._metric("mfu", flops / options.peak, "")
        self._metric("step-p50", rank_io.median(slowest), "s")
        for name in ("input", "compute", "communication"):
            mean = sum(getattr(row, name) for row in rows) / len(rows)
            self._metric(f"time-{name}", mean, "s")
        # With FSDP a rank's own time has the others' in it: it waits for their parameters.
        if training.kind == "fsdp":
            return
        own = [row.own for row in rows]
        rank = own.index(max(own))
        value = {"own": own[rank], "median": rank_io.median(own)}
        self._fact("slowest-rank", value, host=self.places[rank].host, rank=rank)

    def _compare(self) -> None:
        """Look for the comparisons in which ranks differed, and accuse."""
        training, torch = self.training, self.torch
        kept = torch.stack([row for _, row in training.replicas]).cpu()
        steps = [step for step, _ in training.replicas]
        training.replicas.clear()
        both = torch.cat([kept[:, :3], ~kept[:, :3]], dim=1)
        mine = both.clone()
        training.progress.enter("compare", 8 * both.numel())
        self.dist.all_reduce(mine, op=self.dist.ReduceOp.MAX)
        # The greatest of x and the greatest of not x belong together where all are equal.
        differ = (mine[:, :3] != ~mine[:, 3:]).any(dim=1).nonzero().view(-1).tolist()
        self._fact("compared", {"times": len(steps), "differed": len(differ)})
        if not differ:
            return
        repeats = [bool(row[0]) for row in self.gather([float(training.repeats)])]
        devices = [place.device for place in self.places]
        for at in differ[:_CLOSER]:
            replicas = [self._replica(row) for row in self._every(kept[at])]
            tolerance = TOLERANCES[training.options.precision]
            for accused in accuse(replicas, devices, repeats, tolerance):
                self._accuse(accused._replace(seen=f"{accused.seen}, at step {steps[at]}"))

    def _replica(self, row: Sequence[int]) -> Replica:
        length, total = self.torch.tensor(row[3:]).view(self.torch.float64).tolist()
        return Replica(row[0], row[1], row[2], length, total)

    def _checkpoint(self) -> None:
        training = self.training
        tensors = [*training.parallel.local(), *training.velocity]
        if training.kind == "fsdp":
            tensors = tensors[: len(tensors) // 2]
        else:
            tensors = tensors[self.me.rank :: self.me.size]
        training.progress.enter("checkpoint")
        moved = save_and_load(training.options.checkpoint, tensors, self.me)
        rows = self.gather([float(value) for value in moved])
        total = sum(row[0] for row in rows) / 1e9
        self._metric("checkpoint-write", total / max(row[1] for row in rows), "GB/s")
        self._metric("checkpoint-read", total / max(row[2] for row in rows), "GB/s")
        bad = tuple(rank for rank, row in enumerate(rows) if not row[3])
        if bad:
            seen = "read another checkpoint than it wrote"
            self._accuse(Accused("wrong-data", bad[:NAMED], seen))

    def _accuse(self, accused: Accused | None) -> None:
        """Print a problem, once for each cause and rank."""
        if accused is None:
            return
        self.well = False
        for rank in accused.ranks or (-1,):
            if (accused.cause, rank) in self.said:
                continue
            self.said.add((accused.cause, rank))
            labels = self._labels(rank) if rank >= 0 else {}
            gpu = f", GPU {labels['gpu']}" if labels.get("gpu") else ""
            who = f"rank {rank} on {labels['host']}{gpu}: " if labels else ""
            if self.me.rank == 0:
                rank_io.problem(accused.cause, who + accused.seen, check="train", **labels)

    def _labels(self, rank: int) -> dict[str, Any]:
        place = self.places[rank]
        return {"host": place.host, "rank": rank, "gpu": place.gpu or None}

    def _metric(self, name: str, value: float, unit: str, **labels: Any) -> None:
        if self.me.rank == 0:
            rank_io.metric(name, value, unit, check="train", **labels)

    def _fact(self, name: str, value: Any, **labels: Any) -> None:
        if self.me.rank == 0:
            rank_io.fact(name, value, check="train", **labels)

    def _say(self, line: str) -> None:
        if self.me.rank == 0:
            rank_io.say(line)
