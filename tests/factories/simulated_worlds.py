"""Simulated clusters with faults, each with what an ideal judge would name."""

from __future__ import annotations

import random
from collections.abc import Callable, Collection
from dataclasses import dataclass, replace

from tests.factories.simulated_cluster import (
    Cluster,
    Effect,
    Fault,
    Law,
    bad_pairs,
    border,
    collisions,
    distance,
    disturbed,
    leaf,
    slow_gpus,
    slow_nodes,
    slow_rail,
)

from accept.core.model import SuspectKind

#: The local rank with a fault.
_GPU = 3


@dataclass(frozen=True, kw_only=True)
class Draw:
    """What a world is drawn from."""

    count: int
    rounds: int
    chance: random.Random

    def some(self, number: int) -> frozenset[int]:
        """Return distinct hosts."""
        return frozenset(self.chance.sample(range(self.count), min(number, self.count)))

    def random_pairs(self, share: float, factor: float) -> Effect:
        """Slow a share of all pairs."""
        return bad_pairs(share, factor, self.chance.randrange(1 << 30))


@dataclass(frozen=True, kw_only=True)
class World:
    """A kind of cluster."""

    name: str
    text: str
    make: Callable[[Draw], Cluster]

    def cluster(self, count: int, rounds: int, seed: int, *, noise: int = 0) -> Cluster:
        """Return the cluster with a seed; `noise` gives the same one with other noise."""
        key = f"{self.name}:{count}:{seed}"
        made = self.make(Draw(count=count, rounds=rounds, chance=random.Random(key)))
        return replace(made, chance=random.Random(f"{key}:{noise}"))


def _nodes(number: int, factor: float, *more: tuple[float, float], often: float = 1.0) -> _Make:
    """Return a world with bad nodes and, for each (share, factor), random bad pairs."""

    def make(draw: Draw) -> Cluster:
        bad = draw.some(number)
        pairs = [draw.random_pairs(*one) for one in more]
        return Cluster(count=draw.count, effects=(slow_nodes(bad, factor, often), *pairs), bad=bad)

    return make


def _share_of_nodes(share: float, factor: float) -> _Make:
    return lambda draw: _nodes(max(1, round(share * draw.count)), factor)(draw)


def _pairs(share: float, factor: float, gpus: int | None = None) -> _Make:
    return lambda draw: Cluster(
        count=draw.count, effects=(draw.random_pairs(share, factor),), gpus=gpus
    )


def _healthy(*effects: Effect, law: Law = "normal", gpus: int | None = None) -> _Make:
    return lambda draw: Cluster(count=draw.count, effects=effects, law=law, gpus=gpus)


def _group_fault(draw: Draw, group: frozenset[int]) -> Fault:
    """Return the fault of what connects a group with all other hosts."""
    rest = frozenset(range(draw.count)) - group
    kinds = frozenset((SuspectKind.BORDER, SuspectKind.SWITCH))
    return Fault(kinds=kinds, members=(group, rest))


def _border(share: float, factor: float, *more: tuple[float, float], node: float = 1.0) -> _Make:
    """Return a world with a border around a share of the hosts (0: a random one)."""

    def make(draw: Draw) -> Cluster:
        part = share or draw.chance.uniform(0.2, 0.5)
        group = draw.some(max(2, round(part * draw.count)))
        bad = draw.some(1) if node < 1 else frozenset[int]()
        pairs = [draw.random_pairs(*one) for one in more]
        return Cluster(
            count=draw.count,
            effects=(border(group, factor), *pairs, slow_nodes(bad, node)),
            bad=bad,
            faults=(_group_fault(draw, group),),
        )

    return make


def _leaf(
    share: float, factor: float, gpus: int | None, *more: tuple[float, float], size: int = 0
) -> _Make:
    """Return a world with a leaf; if all GPUs take part, it looks like a border."""

    def make(draw: Draw) -> Cluster:
        group = draw.some(size or max(2, round(share * draw.count)))
        fault = _group_fault(draw, group)
        if gpus is not None:
            kinds, devices = frozenset((SuspectKind.LEAF,)), frozenset((str(_GPU),))
            fault = Fault(kinds=kinds, members=(group,), devices=devices)
        pairs = [draw.random_pairs(*one) for one in more]
        return Cluster(
            count=draw.count,
            effects=(leaf(group, _GPU, factor), *pairs),
            gpus=gpus,
            faults=(fault,),
        )

    return make


def _rail(factor: float, *more: tuple[float, float]) -> _Make:
    fault = Fault(
        kinds=frozenset((SuspectKind.RAIL,)),
        members=(frozenset(),),
        devices=frozenset((str(_GPU),)),
    )

    def make(draw: Draw) -> Cluster:
        pairs = [draw.random_pairs(*one) for one in more]
        return Cluster(
            count=draw.count, effects=(slow_rail(_GPU, factor), *pairs), gpus=4, faults=(fault,)
        )

    return make


def _gpus(numbers: Collection[int], factor: float, *more: tuple[float, float]) -> _Make:
    """Return a world in which some GPUs of one host are slow, in jobs with 4 of 8 GPUs."""

    def make(draw: Draw) -> Cluster:
        (host,) = group = draw.some(1)
        fault = Fault(
            kinds=frozenset((SuspectKind.GPU, SuspectKind.NIC)),
            members=(group,),
            devices=frozenset(map(str, numbers)),
        )
        pairs = [draw.random_pairs(*one) for one in more]
        return Cluster(
            count=draw.count,
            effects=(slow_gpus(host, numbers, factor), *pairs),
            gpus=4,
            faults=(fault,),
        )

    return make


def _apart(loss: float, *more: tuple[float, float], node: float = 1.0) -> _Make:
    """Return a world with blocks of neighbors, and distance between these."""

    def make(draw: Draw) -> Cluster:
        bad = draw.some(1) if node < 1 else frozenset[int]()
        pairs = [draw.random_pairs(*one) for one in more]
        blocks = distance(max(4, draw.count // 4), loss)
        return Cluster(count=draw.count, effects=(blocks, slow_nodes(bad, node), *pairs), bad=bad)

    return make


def _disturbed(waves: int, factor: float, node: float = 1.0) -> _Make:
    """Return a world in which some of the planned waves are slow for everybody."""

    def make(draw: Draw) -> Cluster:
        slow = draw.chance.sample(range(draw.rounds), min(waves, draw.rounds))
        bad = draw.some(1) if node < 1 else frozenset[int]()
        return Cluster(
            count=draw.count, effects=(disturbed(slow, factor), slow_nodes(bad, node)), bad=bad
        )

    return make


def _and(
    make: _Make, *, law: Law = "normal", gpus: int | None = None, noise: float = 0.01
) -> _Make:
    """Return a world with other noise, or with jobs of fewer GPUs."""
    return lambda draw: replace(make(draw), law=law, gpus=gpus, noise=noise)


def _with(make: _Make, *effects: Effect) -> _Make:
    """Return a world with more effects."""

    def more(draw: Draw) -> Cluster:
        made = make(draw)
        return replace(made, effects=(*made.effects, *effects))

    return more


def _mixed(draw: Draw) -> Cluster:
    """Draw a fault, healthy pairs' law, and a rate of random bad pairs."""
    chance = draw.chance
    pairs = chance.choice(((), (), ((0.01, 0.06),), ((0.05, 0.7),), ((0.1, 0.06),)))
    factor = chance.choice((0.0, 0.3, 0.5, 0.7, 0.85, 0.93))
    coarse = chance.choice((0.1, 0.3, 0.5, 0.7))
    makes: tuple[_Make, ...] = (
        _nodes(0, 1.0, *pairs),
        _nodes(1, factor, *pairs),
        _nodes(2, factor, *pairs),
        _nodes(3, factor, *pairs),
        _border(0, coarse, *pairs),
        _leaf(0.15, coarse, 4, *pairs),
        _rail(coarse, *pairs),
        _gpus((_GPU,), coarse, *pairs),
    )
    made = chance.choice(makes)(draw)
    return replace(made, law=chance.choice(("normal", "heavy", "switch")))


_Make = Callable[[Draw], Cluster]

#: The worlds in which the methods are compared.
COMPARED = (
    World(name="w0", text="healthy", make=_healthy()),
    World(name="w1", text="a node 6 % slow", make=_nodes(1, 0.94)),
    World(name="w2", text="3 nodes 6 % slow", make=_nodes(3, 0.94)),
    World(name="w3", text="5 % of the pairs at 6 %", make=_pairs(0.05, 0.06)),
    World(name="w4", text="10 % of the pairs at 70 %", make=_pairs(0.1, 0.7)),
    World(
        name="w5", text="a node at 50 %, 10 % of the pairs at 70 %", make=_nodes(1, 0.5, (0.1, 0.7))
    ),
    World(name="w6", text="a node at 50 % in half of its pairs", make=_nodes(1, 0.5, often=0.5)),
    World(name="w7", text="two halves, 25 % between them", make=_border(0.5, 0.25)),
    World(name="w8", text="a wave at 70 % for everybody", make=_disturbed(1, 0.7)),
    World(name="w9", text="heavy tails", make=_healthy(law="heavy")),
)
WORLDS = (
    *COMPARED,
    *(
        World(
            name=f"pairs-{share}-{factor}",
            text=f"{share} % of the pairs at {factor} %",
            make=_pairs(share / 100, factor / 100),
        )
        for share, factor in ((1, 6), (1, 70), (2, 6), (5, 70), (10, 6), (20, 6), (20, 70), (5, 0))
    ),
    World(name="collisions", text="10 % collisions at 60 %", make=_healthy(collisions(0.1, 0.6))),
    *(
        World(name=f"node-{slow}", text=f"a node {slow} % slow", make=_nodes(1, 1 - slow / 100))
        for slow in (3, 15, 50, 100)
    ),
    World(name="two-nodes", text="2 nodes 7 % slow", make=_nodes(2, 0.93)),
    World(name="tenth", text="10 % of the nodes at 50 %", make=_share_of_nodes(0.1, 0.5)),
    World(
        name="node-pairs-70",
        text="a node 6 % slow, 5 % of the pairs at 70 %",
        make=_nodes(1, 0.94, (0.05, 0.7)),
    ),
    World(
        name="node-pairs-6",
        text="a node 6 % slow, 5 % of the pairs at 6 %",
        make=_nodes(1, 0.94, (0.05, 0.06)),
    ),
    World(
        name="bad-node-pairs",
        text="a node at 50 %, 10 % of the pairs at 6 %",
        make=_nodes(1, 0.5, (0.1, 0.06)),
    ),
    World(
        name="often-pairs",
        text="a node at 50 % in half of its pairs, 1 % of the pairs at 70 %",
        make=_nodes(1, 0.5, (0.01, 0.7), often=0.5),
    ),
    World(
        name="node-collisions",
        text="a node at 50 %, 5 % collisions at 60 %",
        make=_with(_nodes(1, 0.5), collisions(0.05, 0.6)),
    ),
    World(name="border-10", text="a border, 10 % across", make=_border(0, 0.1)),
    World(name="border-50", text="a border, 50 % across", make=_border(0, 0.5)),
    World(name="border-80", text="a border, 80 % across", make=_border(0, 0.8)),
    World(name="switch", text="a switch of 15 % of the hosts at 70 %", make=_border(0.15, 0.7)),
    World(
        name="border-pairs",
        text="a border, 50 % across, 5 % of the pairs at 6 %",
        make=_border(0, 0.5, (0.05, 0.06)),
    ),
    World(
        name="border-node",
        text="a border, 50 % across, and a node at 30 %",
        make=_border(0, 0.5, node=0.3),
    ),
    World(
        name="leaf-all",
        text="a leaf of 15 % of the hosts at 30 %, 8 GPUs",
        make=_leaf(0.15, 0.3, None),
    ),
    World(
        name="leaf",
        text="a leaf of 15 % of the hosts at 30 %, 4 of 8 GPUs",
        make=_leaf(0.15, 0.3, 4),
    ),
    World(
        name="leaf-2", text="a leaf of 2 hosts at 30 %, 4 of 8 GPUs", make=_leaf(0, 0.3, 4, size=2)
    ),
    World(
        name="leaf-pairs",
        text="a leaf of 15 % of the hosts at 30 %, 4 of 8 GPUs, 5 % of the pairs at 70 %",
        make=_leaf(0.15, 0.3, 4, (0.05, 0.7)),
    ),
    World(name="rail", text="a rail at 50 %, 4 of 8 GPUs", make=_rail(0.5)),
    World(
        name="rail-pairs",
        text="a rail at 50 %, 4 of 8 GPUs, 5 % of the pairs at 6 %",
        make=_rail(0.5, (0.05, 0.06)),
    ),
    World(name="gpu", text="a GPU at 50 %, 4 of 8 GPUs", make=_gpus((_GPU,), 0.5)),
    World(name="nic", text="a NIC of 2 GPUs at 50 %, 4 of 8 GPUs", make=_gpus((2, 3), 0.5)),
    World(
        name="gpu-pairs",
        text="a GPU at 50 %, 4 of 8 GPUs, 5 % of the pairs at 70 %",
        make=_gpus((_GPU,), 0.5, (0.05, 0.7)),
    ),
    World(name="some-gpus", text="healthy, 4 of 8 GPUs", make=_healthy(gpus=4)),
    World(
        name="some-gpus-pairs",
        text="10 % of the pairs at 6 %, 4 of 8 GPUs",
        make=_pairs(0.1, 0.06, gpus=4),
    ),
    World(
        name="some-gpus-node", text="a node at 50 %, 4 of 8 GPUs", make=_and(_nodes(1, 0.5), gpus=4)
    ),
    *(
        World(name=f"distance-{loss}", text=f"blocks {loss} % apart", make=_apart(loss / 100))
        for loss in (5, 10, 15)
    ),
    World(
        name="distance-node", text="blocks 10 % apart, a node at 50 %", make=_apart(0.1, node=0.5)
    ),
    World(
        name="distance-pairs",
        text="blocks 10 % apart, 5 % of the pairs at 6 %",
        make=_apart(0.1, (0.05, 0.06)),
    ),
    World(name="by-switch", text="noise by switch", make=_healthy(law="switch")),
    World(
        name="by-switch-node",
        text="a node 6 % slow, noise by switch",
        make=_and(_nodes(1, 0.94), law="switch"),
    ),
    World(
        name="heavy-node",
        text="a node 6 % slow, heavy tails",
        make=_and(_nodes(1, 0.94), law="heavy"),
    ),
    World(
        name="heavy-pairs",
        text="5 % of the pairs at 70 %, heavy tails",
        make=_and(_pairs(0.05, 0.7), law="heavy"),
    ),
    World(name="two-waves", text="2 waves at 70 % for everybody", make=_disturbed(2, 0.7)),
    World(
        name="wave-node", text="a node at 50 %, a wave at 70 %", make=_disturbed(1, 0.7, node=0.5)
    ),
    World(
        name="noise-node",
        text="a node 15 % slow, 3 % noise",
        make=_and(_nodes(1, 0.85), noise=0.03),
    ),
)
#: Faults of all kinds, with and without random bad pairs and under all laws of noise.
MIXED = World(name="mixed", text="any fault", make=_mixed)
BY_NAME = {world.name: world for world in (*WORLDS, MIXED)}
