"""How ranks share the work: whose samples are whose, and how gradients become one.

The batch is global. Rank r takes its slice of it, which goes through the model in pieces cut at
multiples of `micro`: the pieces are the same at every number of ranks that divides the batch into
whole ones, so that 1 rank with 64 pieces and 64 ranks with one each add up the same numbers.
"""

from __future__ import annotations

import math
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import rank_io


def slice_of(rank: int, ranks: int, batch: int) -> range:
    """The samples of a global batch that a rank takes: all ranks' slices are the batch."""
    return range(batch * rank // ranks, batch * (rank + 1) // ranks)


def pieces_of(rank: int, ranks: int, batch: int, micro: int) -> list[range]:
    """A rank's slice in pieces that no multiple of `micro` (at least 1) lies inside of."""
    own = slice_of(rank, ranks, batch)
    firsts = [own.start, *range((own.start // micro + 1) * micro, own.stop, micro)]
    return [range(a, b) for a, b in zip(firsts, [*firsts[1:], own.stop], strict=True)]


class Parallel:
    """A model on one rank, and its gradients on the way to being the mean of all ranks'.

    `first_bad` says when this rank's own numbers first were not finite: 2 * step for its loss, one
    more for its gradient before it was averaged; -1 for never. With FSDP gradients are averaged
    piece by piece inside of torch: what is looked at is this rank's part of their mean.

    `weight` is what makes the loss of one sample its part in the gradient of the whole batch.
    """

    def __init__(
        self,
        layers: Any,
        kind: str,
        batch: int,
        me: rank_io.Identity,
        progress: rank_io.Progress,
        watch: Any,
    ) -> None:
        import torch
        import torch.distributed

        self.torch, self.dist = torch, torch.distributed
        self.kind, self.me, self.progress, self.watch = kind, me, progress, watch
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
        # Gradients of all ranks are added up; FSDP takes their mean by itself.
        self.weight = (me.size if kind == "fsdp" else 1) / batch

    def _shard(self) -> None:
        try:
            from torch.distributed.fsdp import fully_shard
        except ImportError:
            found = self.torch.__version__
            raise rank_io.Unusable(
                f"fsdp needs torch 2.6 or newer (fully_shard), this is {found}"
            ) from None
        # Every rank begins with the weights of rank 0, as with the others.
        for parameter in self.layers.parameters():
            self.dist.broadcast(parameter.data, src=0)
        for layer in getattr(self.layers, "layers", ()):
            fully_shard(layer)
        fully_shard(self.layers)

    def gather(self, *, last: bool) -> AbstractContextManager[None]:
        """Around forward and backward of a piece: ranks talk at the `last` of a step only."""
        if self.kind == "fsdp":
            self.model.set_requires_gradient_sync(last)
        if self.kind == "ddp" and not last:
            skipping: AbstractContextManager[None] = self.model.no_sync()
            return skipping
        return nullcontext()

    def look(self, values: Any, *, gradient: bool) -> None:
        """Note loss or gradient of this step, by its sum: one number not finite spoils it.

        Looked at later, by `settle`: reading a number out of a GPU would make it wait.
        """
        one = values.sum() if values.dim() else values.detach()
        self.seen.append((2 * self.step + gradient, one))

    def settle(self) -> list[float]:
        """This rank's summed loss of each step since the last call."""
        seen, self.seen = self.seen, []
        losses: dict[int, float] = {}
        for at, one in seen:
            value = float(one)
            if self.first_bad < 0 and not math.isfinite(value):
                self.first_bad = at
            if at % 2 == 0:
                losses[at] = losses.get(at, 0.0) + value
        return list(losses.values())

    def average(self) -> None:
        """Make the gradients those of the whole batch, where backward has not done so."""
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
        """Begin to add up a part of the gradient, all that there is in one tensor."""
        self.ready = self.watch.mark()
        self.look(gradient, gradient=True)
        self.progress.enter("gradients", gradient.numel() * gradient.element_size())
        return self.dist.all_reduce(gradient, async_op=True)

    def _bucket(self, bucket: Any) -> Any:
        """What DistributedDataParallel does with a bucket, with a look at it before."""
        work = self._share(bucket.buffer())
        return work.get_future().then(lambda future: future.value()[0])

    def local(self) -> list[Any]:
        """This rank's parameters, or its shards of them, as plain tensors."""
        return [p.to_local() if self.kind == "fsdp" else p.data for p in self.parameters]

    def spoil(self) -> None:
        """Add 0.001 to one number of what this rank holds; no other rank is asked."""
        with self.torch.no_grad():
            held = next(part for part in self.local() if part.numel())
            held.view(-1)[0] += 1e-3
