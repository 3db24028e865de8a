"""Divide the batch among the ranks, and average their gradients.

The batch is global. Each rank takes a slice, which goes through the model in pieces that are cut at
multiples of `micro`. The pieces do not depend on the number of ranks if the slices are whole
pieces. So 1 rank with 64 pieces and 64 ranks with 1 piece each add up the same numbers.
"""

from __future__ import annotations

import math
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import rank_io
from train_times import StepTimer


def slice_of(rank: int, ranks: int, batch: int) -> range:
    """Return the samples of the global batch that a rank takes; the slices make up the batch."""
    return range(batch * rank // ranks, batch * (rank + 1) // ranks)


def pieces_of(rank: int, ranks: int, batch: int, micro: int) -> list[range]:
    """Return a rank's slice, cut at the multiples of `micro`, which is at least 1."""
    own = slice_of(rank, ranks, batch)
    firsts = [own.start, *range((own.start // micro + 1) * micro, own.stop, micro)]
    return [range(a, b) for a, b in zip(firsts, [*firsts[1:], own.stop], strict=True)]


class Parallel:
    """A model on one rank, with the averaging of its gradients over all ranks.

    `first_bad` is when this rank's own numbers were first not finite: 2 * step for its loss, one
    more for its gradient before averaging, -1 for never. FSDP averages gradients piece by piece
    inside torch, so there this rank's part of the mean is checked instead.

    `weight` scales the loss of a sample to its part in the gradient of the whole batch.
    """

    def __init__(
        self, layers: Any, kind: str, batch: int, rank: rank_io.Rank, watch: StepTimer
    ) -> None:
        import torch
        import torch.distributed

        self.torch, self.dist = torch, torch.distributed
        self.kind, self.watch = kind, watch
        progress = self.progress = rank.progress
        self.layers = self.model = layers
        self.step = 0
        self.first_bad = -1
        self.seen: list[tuple[int, Any]] = []
        self.ready = watch.mark()
        progress.enter("parameters")
        if kind == "ddp":
            self.model = torch.nn.parallel.DistributedDataParallel(
                layers, gradient_as_bucket_view=True
            )
            self.model.register_comm_hook(None, lambda _, bucket: self._bucket(bucket))
        elif kind == "fsdp":
            self._shard()
        else:
            for parameter in layers.parameters():
                torch.distributed.broadcast(parameter.data, src=0)
        self.parameters = list(self.layers.parameters())
        # The gradients of all ranks are added; FSDP itself computes their mean.
        self.weight = (rank.me.size if kind == "fsdp" else 1) / batch

    def _shard(self) -> None:
        from torch.distributed.fsdp import fully_shard

        # Every rank starts with the weights of rank 0, as without FSDP.
        for parameter in self.layers.parameters():
            self.dist.broadcast(parameter.data, src=0)
        for layer in getattr(self.layers, "layers", ()):
            fully_shard(layer)
        fully_shard(self.layers)

    def gather(self, *, last: bool) -> AbstractContextManager[None]:
        """Return the context for a piece: ranks communicate only in the `last` of a step."""
        if self.kind == "fsdp":
            self.model.set_requires_gradient_sync(last)
        if self.kind == "ddp" and not last:
            skipping: AbstractContextManager[None] = self.model.no_sync()
            return skipping
        return nullcontext()

    def look(self, values: Any, *, gradient: bool) -> None:
        """Keep the sum of this step's loss or gradient; it shows if any number is not finite.

        `settle` reads it later, because reading a number from a GPU would make it wait.
        """
        total = values.sum() if values.dim() else values.detach()
        self.seen.append((2 * self.step + gradient, total))

    def settle(self) -> list[float]:
        """Return this rank's summed loss of each step since the last call."""
        seen, self.seen = self.seen, []
        losses: dict[int, float] = {}
        for at, total in seen:
            value = float(total)
            if self.first_bad < 0 and not math.isfinite(value):
                self.first_bad = at
            if at % 2 == 0:
                losses[at] = losses.get(at, 0.0) + value
        return list(losses.values())

    def average(self) -> None:
        """Average the gradients over all ranks, if backward has not done so."""
        if self.kind == "flat":
            whole = self.torch.cat([parameter.grad.view(-1) for parameter in self.parameters])
            self._share(whole).wait()
            at = 0
            for parameter in self.parameters:
                parameter.grad.view(-1).copy_(whole[at : at + parameter.numel()])
                at += parameter.numel()
        elif self.kind == "fsdp":
            self.ready = self.watch.mark()
            for parameter in self.parameters:
                self.look(parameter.grad.to_local(), gradient=True)

    def _share(self, gradient: Any) -> Any:
        """Start the all-reduce of a part of the gradient, or of the full gradient."""
        self.ready = self.watch.mark()
        self.look(gradient, gradient=True)
        self.progress.enter("gradients", gradient.numel() * gradient.element_size())
        return self.dist.all_reduce(gradient, async_op=True)

    def _bucket(self, bucket: Any) -> Any:
        """Reduce a bucket as DistributedDataParallel does, and check it before that."""
        work = self._share(bucket.buffer())
        return work.get_future().then(lambda future: future.value()[0])

    def local(self) -> list[Any]:
        """Return this rank's parameters, or its shards of them, as plain tensors."""
        return [p.to_local() if self.kind == "fsdp" else p.data for p in self.parameters]

    def spoil(self) -> None:
        """Add 0.001 to one parameter of this rank only."""
        with self.torch.no_grad():
            parameter = next(part for part in self.local() if part.numel())
            parameter.view(-1)[0] += 1e-3
