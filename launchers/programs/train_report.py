"""Print the records of train.py: combine the ranks' numbers and name the ranks with problems."""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import rank_io
import torch_io
from train_compare import (
    ENDS,
    NAMED,
    Accused,
    Digests,
    deviation,
    ends,
    reference_of,
    settings,
    went_wrong,
)
from train_models import RESNETS
from train_times import Summary, Windows, summary

#: Maximum number of losses that are printed.
CURVE = 500


class Place(NamedTuple):
    """The place of a rank: its host, its GPU there ("" on CPU), and the name of the device."""

    host: str
    gpu: str
    device: str


class Report:
    """Print the records of all ranks on rank 0. Every rank must call every method."""

    def __init__(self, training: Any) -> None:
        self.training = training
        self.me, self.torch, self.dist = training.me, training.torch, training.dist
        self.head: list[float] = []
        self.tail: list[float] = []
        self.steps, self.by = 0, float("nan")
        self.reported: set[tuple[str, int]] = set()
        self.well = True
        self.windows = Windows()
        index = training.device.partition(":")[2]
        gpu = torch_io.gpu_number(int(index), self.me.local_rank) if index else ""
        texts = torch_io.gather_text(f"{self.me.host}\t{gpu}\t{training.replicas.device}", 384)
        self.places = [Place(*text.split("\t", 2)) for text in texts]

    def gather(self, values: Sequence[float]) -> list[list[float]]:
        """Return every rank's numbers as a row, on every rank."""
        mine = self.torch.tensor(values, dtype=self.torch.float64)
        return self._every(mine)

    def _every(self, mine: Any) -> list[list[Any]]:
        self.training.progress.enter("gather", 8 * len(mine))
        return torch_io.gather(mine)

    def interim(self) -> bool:
        """Print the results since the last print; return True without any problem so far."""
        self._losses()
        mine = summary(self.training.seconds)
        slowest = self._slowest_steps()
        rows = [Summary(*row) for row in self.gather(mine)]
        self._speeds(rows, slowest)
        bad = self.gather([self.training.parallel.first_bad])
        self._accuse(went_wrong([int(at) for (at,) in bad]))
        self._compare()
        self.training.seconds.clear()
        return self.well

    def final(self) -> bool:
        """Print the remaining results; return True without any problem."""
        self.interim()
        for rank, row in enumerate(self.windows.worst):
            labels = self._labels(rank)
            if self.training.kind != "fsdp":
                self._metric("rank-own", row.own, "s", **labels)
            for name in ("p50", "p95", "p99"):
                self._metric(f"rank-step-{name}", getattr(row, name), "s", **labels)
        replicas = self.training.replicas
        for rank, first in enumerate(self._every(self.torch.tensor(replicas.first))):
            digest = replicas.digest_fact(first, self.places[rank].device)
            if digest is not None:
                self._fact("digest", digest, **self._labels(rank))
        if self.training.options.checkpoint:
            self._checkpoint()
        return self.well

    def _losses(self) -> None:
        training, options = self.training, self.training.options
        mine = self.torch.tensor(training.losses, dtype=self.torch.float64)
        training.losses.clear()
        training.progress.enter("losses", 8 * len(mine))
        self.dist.all_reduce(mine)
        losses = (mine / training.batch).tolist()
        before = self.tail
        self.head += losses[: CURVE - len(self.head)]
        self.steps += len(losses)
        known = before + losses
        # `back` is the number of known losses after step `by`.
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
        """Compare the curve with the reference for these settings, if one exists."""
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
            seen = (
                f"the loss curve is {far:.3g} of the first loss away from that of healthy hardware"
            )
            self._accuse(Accused("loss-differs", (), f"{seen}; {most:g} is rounding"))

    def _slowest_steps(self) -> list[float]:
        """Return the time of the slowest rank in each step."""
        mine = self.torch.tensor([step.whole for step in self.training.seconds])
        self.training.progress.enter("times", 4 * len(mine))
        self.dist.all_reduce(mine, op=self.dist.ReduceOp.MAX)
        slowest: list[float] = mine.tolist()
        return slowest

    def _speeds(self, rows: Sequence[Summary], slowest: Sequence[float]) -> None:
        training, options = self.training, self.training.options
        self.windows.add(rows, slowest)
        samples = training.batch * self.windows.rate
        self._metric("throughput", samples, "samples/s")
        if training.tokens:
            self._metric("tokens", samples * training.tokens, "tokens/s")
        flops = samples * training.flops / self.me.size / 1e12
        self._metric("flops", flops, "TFLOP/s")
        if training.loads:
            self._metric("sustained", flops, "TFLOP/s")
        if options.peak:
            self._metric("mfu", flops / options.peak, "")
        self._metric("step-p50", self.windows.p50, "s")
        # With FSDP a rank waits for the parameters of others, so its own time includes theirs.
        if training.kind == "fsdp":
            return
        for name in ("input", "compute", "communication"):
            mean = sum(getattr(row, name) for row in rows) / len(rows)
            self._metric(f"time-{name}", mean, "s")
        own = [row.own for row in rows]
        rank = own.index(max(own))
        value = {"own": own[rank], "median": rank_io.median(own)}
        self._fact("slowest-rank", value, host=self.places[rank].host, rank=rank)

    def _compare(self) -> None:
        """Find the comparisons in which ranks differed, and print the problems."""
        times, differ = self.training.replicas.differing()
        self._fact("compared", {"times": times, "differed": len(differ)})
        devices = [place.device for place in self.places]
        for accused in self.training.replicas.accused(differ, self._every, devices):
            self._accuse(accused)

    def _checkpoint(self) -> None:
        training = self.training
        # With FSDP each rank has its own part. Else tensor n belongs to rank n modulo their number.
        tensors = [*training.parallel.local(), *training.velocity]
        if training.kind == "fsdp":
            tensors = tensors[: len(tensors) // 2]
        else:
            tensors = tensors[self.me.rank :: self.me.size]
        # Storage may be much slower for one rank than for another, and the others must wait.
        waiting = torch_io.patient()
        training.progress.enter("checkpoint")
        training.progress.work(training.options.timeout)
        moved = save_and_load(training.options.checkpoint, tensors, self.me)
        training.progress.enter("checkpoints")
        torch_io.wait_for_all(waiting)
        rows = self.gather([float(value) for value in moved])
        total = sum(row[0] for row in rows) / 1e9
        self._metric("checkpoint-write", total / max(row[1] for row in rows), "GB/s")
        self._metric("checkpoint-read", total / max(row[2] for row in rows), "GB/s")
        bad = tuple(rank for rank, row in enumerate(rows) if not row[3])
        if bad:
            seen = "read another checkpoint than it wrote"
            self._accuse(Accused("wrong-data", bad[:NAMED], seen))

    def _accuse(self, accused: Accused | None) -> None:
        """Print a problem once per cause and rank."""
        if accused is None:
            return
        self.well = False
        for rank in accused.ranks or (-1,):
            if (accused.cause, rank) in self.reported:
                continue
            self.reported.add((accused.cause, rank))
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


class Transfer(NamedTuple):
    """One rank's bytes, seconds to write and to read them; `same` if they came back unchanged."""

    bytes: int
    write: float
    read: float
    same: bool


def save_and_load(folder: str, tensors: Sequence[Any], me: rank_io.Identity) -> Transfer:
    """Write `tensors` below `folder`, read them back, compare them, and remove the file.

    All ranks write their shares at the same time, as for a sharded checkpoint. The time of writing
    includes fsync. Before reading, the kernel drops the file from its page cache; the storage may
    still have caches of its own. On a full disk, print a problem and raise Ended; other errors of
    the storage raise OSError.
    """
    import torch

    copies = [tensor.detach().cpu() for tensor in tensors]
    # torch.save writes the full storage of a view.
    copies = [copy.clone() if copy.is_contiguous() else copy.contiguous() for copy in copies]
    execution = os.environ.get("ACCEPT_EXEC", "by-hand").replace("/", "-")
    path = Path(folder) / f"accept-checkpoint-{execution}-{me.rank}.pt"
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        start = time.perf_counter()
        with path.open("wb") as file:
            torch.save(copies, file)
            file.flush()
            os.fsync(file.fileno())
        write_seconds = time.perf_counter() - start
        size = path.stat().st_size
        with path.open("rb") as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        start = time.perf_counter()
        loaded = torch.load(path, map_location="cpu", weights_only=True)
        read_seconds = time.perf_counter() - start
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        message = f"rank {me.rank} on {me.host}: no room for a checkpoint in {folder}"
        rank_io.problem("disk-full", message, check="train", host=me.host, rank=me.rank)
        raise rank_io.Ended from None
    finally:
        path.unlink(missing_ok=True)
    digests = Digests("cpu")
    same = len(loaded) == len(copies) and bool(digests.digest(loaded) == digests.digest(copies))
    return Transfer(size, write_seconds, read_seconds, same)
