"""Find which executions a part covers: those whose data, or whose GPUs, exercise it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from functools import lru_cache
from itertools import product

from accept.core.judge.effects.executions import Execution, Flow

Gpus = tuple[int, ...]

#: CROSSES[mask][2 * a + b]: a flow leaves a group of hosts, if the first host of a pair is in the
#: group (a) or not, and the second one (b). Bit 2 * x + y of a mask: there is a flow that uses the
#: GPU at the first host (x), at the second one (y).
CROSSES = [
    [
        any(
            mask >> (2 * x + y) & 1 and (x and a) != (y and b) for x, y in product((0, 1), repeat=2)
        )
        for a, b in product((0, 1), repeat=2)
    ]
    for mask in range(16)
]
#: The mask of a pair whose GPUs are unknown: its data uses any GPU at both ends.
_ANY = 8


@lru_cache(maxsize=4096)
def flows(first: Gpus, second: Gpus, flow: Flow) -> frozenset[tuple[int, int]]:
    """Return the GPUs at both ends of the data that two hosts exchange."""
    one, other = set(first), set(second)
    if flow is not Flow.RAILS:
        ring = flow is Flow.RING
        there = {(first[-1], second[0])} if ring else {(s, d) for s in first for d in second}
        back = {(first[0], second[-1])} if ring else {(d, s) for s in second for d in first}
        # What is for GPU d leaves by the sender's own GPU d if the sender uses one (PXN).
        sent = {(d if d in one else s, d) for s, d in there}
        return frozenset(sent | {(d, d if d in other else s) for d, s in back})
    shared = {(gpu, gpu) for gpu in one & other}
    # Data of other GPUs changes the rail.
    return frozenset(shared | {(s, d) for s in one - other for d in other - one})


@lru_cache(maxsize=4096)
def _masks(first: Gpus, second: Gpus, flow: Flow) -> Mapping[int, int]:
    """Return how the data between two hosts uses each GPU; see `CROSSES`."""
    found = flows(first, second, flow)
    masks = dict.fromkeys({*first, *second}, 0)
    touched = Counter[int]()
    for a, b in found:
        masks[a] |= 1 << (3 if a == b else 2)
        if a != b:
            masks[b] |= 1 << 1
        touched.update({a, b})
    for gpu in masks:
        masks[gpu] |= touched[gpu] < len(found)
    return masks


class Covers:
    """Index of executions by host, by GPU that takes part, and by GPU through which data flows."""

    def __init__(self, executions: Iterable[Execution], hosts: Mapping[str, int]) -> None:
        self.members: list[tuple[int, ...]] = []
        self.by_host: list[list[int]] = [[] for _ in hosts]
        #: Host and GPU -> executions in which it takes part, and in which data flows through it.
        self.by_gpu: dict[tuple[int, int], list[int]] = {}
        self.by_port: dict[tuple[int, int], list[int]] = {}
        self._masks: list[Mapping[int, int] | None] = []
        known = [tuple(zip(e.hosts, e.gpus, strict=False)) for e in executions]
        self.gpus = tuple(sorted({g for own in known for _, gpus in own for g in gpus or ()}))
        for i, (e, own) in enumerate(zip(executions, known, strict=True)):
            members = tuple(dict.fromkeys(hosts[host] for host in e.hosts))
            self.members.append(members)
            gpus = {hosts[host]: numbers for host, numbers in own if numbers}
            masks = None
            if len(members) == 2 and len(gpus) == 2:
                masks = _masks(gpus[members[0]], gpus[members[1]], e.flow)
            self._masks.append(masks)
            for position, h in enumerate(members):
                self.by_host[h].append(i)
                for g in gpus.get(h, self.gpus):
                    self.by_gpu.setdefault((h, g), []).append(i)
                if len(members) > 1:
                    for g in self._ports(gpus.get(h), masks, position, e.flow):
                        self.by_port.setdefault((h, g), []).append(i)

    def _ports(
        self, gpus: Gpus | None, masks: Mapping[int, int] | None, position: int, flow: Flow
    ) -> Iterable[int]:
        """Return the GPUs of a host through which data of an execution flows."""
        if gpus is None:
            return self.gpus
        if masks is not None:
            used = 0b1100 if position == 0 else 0b1010
            return [g for g in gpus if masks[g] & used]
        return dict.fromkeys((gpus[0], gpus[-1])) if flow is Flow.RING else gpus

    def mask(self, i: int, gpu: int | None) -> int:
        """Return how the data of a pair uses a GPU, or any; see `CROSSES`."""
        masks = self._masks[i]
        return _ANY if gpu is None or masks is None else masks.get(gpu, 0)

    def touch(self, group: Iterable[int], gpu: int | None = None) -> frozenset[int]:
        """Return the executions of any host of a group, with data through one GPU or any."""
        if gpu is None:
            return frozenset(i for h in group for i in self.by_host[h])
        return frozenset(i for h in group for i in self.by_port.get((h, gpu), ()))

    def cut(self, group: Collection[int], gpu: int | None = None) -> frozenset[int]:
        """Return the executions with data that leaves a group of hosts, through one GPU or any."""
        result = set()
        for i in self.touch(group, gpu):
            members = self.members[i]
            if len(members) == 2:
                a, b = members
                if CROSSES[self.mask(i, gpu)][2 * (a in group) + (b in group)]:
                    result.add(i)
            elif not all(h in group for h in members):
                result.add(i)
        return frozenset(result)
