"""Run, time and check collectives over torch.distributed, in buffers that all of them share."""

from __future__ import annotations

import time
from collections.abc import Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import rank_io
import torch_io
from reference_data import FLOAT, Collective, Part, Pattern, parts
from windowed_timer import Timer


class Timed(NamedTuple):
    """The seconds of one iteration on this rank: the mean, and each."""

    mean: float
    each: list[float]


class Operations:
    """The collectives of one rank, with its test data and two buffers of `room` elements."""

    def __init__(self, rank: rank_io.Rank, room: int) -> None:
        import torch
        import torch.distributed

        self.torch, self.dist = torch, torch.distributed
        device, self.timer = rank.device, Timer(rank.device)
        self.me, self.injected, self.progress = rank.me, rank.injected, rank.progress
        self.device = device
        self.pattern = Pattern(rank.me.size, device)
        self.send = torch.zeros(room, dtype=torch.float32, device=device)
        self.recv = torch.zeros(room, dtype=torch.float32, device=device)
        self.trial = 0

    def exchange(self, values: Sequence[float]) -> list[list[float]]:
        """Return every rank's `values`, on every rank."""
        mine = self.torch.tensor(values, dtype=self.torch.float64)
        self.progress.enter("exchange", FLOAT * 2 * len(values))
        return torch_io.gather(mine)

    def operate(self, kind: Collective, send: Any, recv: Any, size: int) -> None:
        """Run `kind` once. On CUDA it is only enqueued."""
        self.injected.drag()
        self.progress.enter(kind.name, size)
        dist, ranks = self.dist, self.me.size
        if kind.name == "all_reduce":
            if recv.data_ptr() != send.data_ptr():
                recv.copy_(send)
            dist.all_reduce(recv)
        elif kind.name == "all_gather" and self.device != "cpu":
            dist.all_gather_into_tensor(recv, send)
        elif kind.name == "all_gather":
            dist.all_gather(list(recv.chunk(ranks)), send)
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
        """Return the buffers that `kind` sends from and receives into."""
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

    def timed(
        self,
        kind: Collective,
        count: int,
        size: int,
        iters: int,
        *,
        in_place: bool = False,
        strike: bool = False,
    ) -> Timed:
        """Run `iters` iterations; return the seconds of one on this rank."""
        send, recv = self.buffers(kind, count, in_place=in_place)
        self.timer.finish()
        self.progress.enter("barrier")
        torch_io.wait_for_all()
        start = time.perf_counter()
        marks = [self.timer.mark()]
        for iteration in range(iters):
            if strike and iteration == iters // 2:
                self.injected.strike()
            self.operate(kind, send, recv, size)
            marks.append(self.timer.mark())
        self.timer.finish()
        mean = (time.perf_counter() - start) / iters
        return Timed(mean, [self.timer.between(*pair) for pair in pairwise(marks)])

    def checked(
        self, kind: Collective, count: int, size: int, *, in_place: bool
    ) -> tuple[int, list[int]]:
        """Run one operation on fresh data; return the wrong elements, in total and by source.

        The entry of this rank itself includes the wrong elements of its own contribution.
        """
        self.trial += 1
        rank, ranks = self.me.rank, self.me.size
        send, recv = self.buffers(kind, count, in_place=in_place)
        recv.fill_(-1.0)
        self.pattern.fill(send, rank, self.trial)
        if "wrong" in self.injected:
            send[len(send) // 2] += 1
        if "nan" in self.injected:
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
