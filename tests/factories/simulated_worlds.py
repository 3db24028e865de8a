"""Simulated clusters with faults, each with the suspects that an ideal judge would name."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import NamedTuple

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
    fixed_gpus,
    leaf,
    only,
    shared_nic,
    slow_gpus,
    slow_link,
    slow_nodes,
    slow_rail,
)
from tests.factories.simulated_runs import SimulatedRun

from accept.core.groups import pair_rounds
from accept.core.plan import GroupKind
from accept.core.verdict import OF_HOST, Suspect, SuspectKind

_FOUR = ("all-reduce", "all-gather", "reduce-scatter", "alltoall")
#: The local rank with a fault.
_GPU = 3
#: Three slow nodes of so few make more than half of the pairs slow.
_SMALL = 20


_GROUP_KINDS = (SuspectKind.BORDER, SuspectKind.LEAF, SuspectKind.SWITCH, SuspectKind.RAIL)
_NETWORK_KINDS = (SuspectKind.FABRIC, SuspectKind.LINK)


class Score(NamedTuple):
    """The suspects of a cluster compared with those of an ideal judge."""

    #: Faults; those found at all; those with the right kind and members.
    faults: int
    found: int
    right: int
    #: Suspects, and those that are faults.
    named: int
    true: int
    #: A node is accused that is neither bad nor a member of a faulty group.
    innocent: bool
    #: A node is accused that is only a member of a faulty group.
    member: bool
    #: Something else is named that is not a fault.
    other: bool
    #: The fabric or a link is named.
    network: bool


def named(suspects: Iterable[Suspect], *kinds: SuspectKind) -> set[int]:
    """Return the hosts that are accused as one of these kinds (none given: a host or its part)."""
    kinds = kinds or OF_HOST
    return {int(host[1:]) for one in suspects if one.kind in kinds for host in one.hosts}


def score(cluster: Cluster, run: SimulatedRun) -> Score:
    """Compare the suspects with those of an ideal judge.

    All pairs of a bad host are bad on either side of a group, so good and bad pairs are equally
    likely with the host inside and outside: it may be missing from the group.
    """
    blamed, bad = run.verdict.suspects, cluster.bad
    nodes = named(blamed)
    found, right = len(nodes & bad), len(named(blamed, SuspectKind.NODE) & bad)
    true = [one for one in blamed if _is_true(one, cluster)]
    members: set[int] = set()
    owners: set[int] = set()
    faults = len(bad)
    for fault in cluster.faults:
        # The larger side of a border is not its group.
        least = min(map(len, fault.members))
        own = {host for side in fault.members if len(side) == least for host in side}
        hidden = fault.hidden(run.measured) if fault.devices else set[int]()
        visible = own - hidden - bad
        if own and len(visible) <= (SuspectKind.LEAF in fault.kinds or bool(own & bad)):
            # The measurements show no slow host or only one, so naming that host is correct.
            owners |= own
            continue
        faults += 1
        exact = [one for one in blamed if fault.is_named_by(one, hidden | bad)]
        true += [one for one in exact if one not in true]
        right += bool(exact)
        if SuspectKind.LINK in fault.kinds:
            found += bool(exact)
        elif fault.kinds.isdisjoint(_GROUP_KINDS):
            owners |= own
            found += bool(nodes & own)
        else:
            members |= own
            found += any(one.kind in _GROUP_KINDS for one in blamed)
    return Score(
        faults=faults,
        found=found,
        right=right,
        named=len(blamed),
        true=len(true),
        innocent=bool(nodes - bad - members - owners),
        member=bool(nodes & members - bad - owners),
        other=any(one not in true and one.kind not in OF_HOST for one in blamed),
        network=any(one.kind in _NETWORK_KINDS for one in blamed),
    )


def _is_true(one: Suspect, cluster: Cluster) -> bool:
    """Return True for a bad node, and for the network of a cluster with random bad pairs."""
    if one.kind in OF_HOST:
        return int(one.hosts[0][1:]) in cluster.bad
    return one.kind in _NETWORK_KINDS and cluster.flaky


@dataclass(frozen=True, kw_only=True)
class Draw:
    """The sizes and the random numbers from which a world is drawn."""

    count: int
    rounds: int
    chance: random.Random
    #: Seed of the rounds of pairs.
    schedule: int

    def some(self, number: int) -> frozenset[int]:
        """Return distinct hosts."""
        return frozenset(self.chance.sample(range(self.count), min(number, self.count)))


@dataclass(frozen=True)
class World:
    """A kind of cluster."""

    name: str
    text: str
    make: Callable[[Draw], Cluster]

    def cluster(
        self, count: int, rounds: int, seed: int, *, noise: int = 0, schedule: int = 1
    ) -> Cluster:
        """Return the cluster with a seed; `noise` gives the same one with other noise.

        `schedule`: the seed of the rounds in which it is measured.
        """
        key = f"{self.name}:{count}:{seed}"
        draw = Draw(count=count, rounds=rounds, chance=random.Random(key), schedule=schedule)
        made = self.make(draw)
        return replace(made, schedule=key, chance=random.Random(f"{key}:{noise}"))


def _healthy(*effects: Effect) -> _Make:
    return lambda draw: Cluster(count=draw.count, effects=effects)


def _nodes(number: int, factor: float, *, often: float = 1.0) -> _Make:
    """Return a world with slow nodes, 2 at most in small clusters."""

    def make(draw: Draw) -> Cluster:
        bad = draw.some(number if draw.count > _SMALL else min(number, 2))
        return Cluster(count=draw.count, effects=(slow_nodes(bad, factor, often),), bad=bad)

    return make


def _share_of_nodes(share: float, factor: float) -> _Make:
    return lambda draw: _nodes(max(1, round(share * draw.count)), factor)(draw)


def _border(share: float, factor: float) -> _Make:
    """Return a world with a border around a share of the hosts (0: a random one)."""

    def make(draw: Draw) -> Cluster:
        part = share or draw.chance.uniform(0.2, 0.5)
        group = draw.some(max(2, round(part * draw.count)))
        fault = _group_fault(draw, group)
        return Cluster(count=draw.count, effects=(border(group, factor),), faults=(fault,))

    return make


def _group_fault(draw: Draw, group: frozenset[int]) -> Fault:
    """Return a fault of the connection between a group and all other hosts."""
    rest = frozenset(range(draw.count)) - group
    kinds = frozenset((SuspectKind.BORDER, SuspectKind.SWITCH))
    return Fault(kinds=kinds, members=(group, rest))


def _leaf(factor: float, gpus: int | None, *, size: int = 0, fixed: bool = False) -> _Make:
    """Return a world with a leaf, of 15 % of the hosts unless it has a size.

    If all GPUs take part, it looks like a border; if each host has the same GPUs in all pairs, like
    a border around the hosts with this GPU.
    """

    def make(draw: Draw) -> Cluster:
        number = size or max(2, round(0.15 * draw.count))
        users = [h for h in range(draw.count) if not fixed or _GPU in fixed_gpus(h, gpus or 8)]
        group = frozenset(draw.chance.sample(users, min(number, len(users))))
        fault = _group_fault(draw, group)
        if gpus is not None:
            fault = Fault(
                kinds=frozenset((SuspectKind.LEAF, *(fault.kinds if fixed else ()))),
                members=(group,),
                devices=_devices(_GPU),
            )
        effects = (leaf(group, _GPU, factor),)
        return Cluster(count=draw.count, effects=effects, gpus=gpus, fixed=fixed, faults=(fault,))

    return make


def _rail(factor: float) -> _Make:
    """Return a world in which a local rank is slow, in jobs with 4 of 8 GPUs."""
    fault = Fault(
        kinds=frozenset((SuspectKind.RAIL,)), members=(frozenset(),), devices=_devices(_GPU)
    )
    effects = (slow_rail(_GPU, factor),)
    return lambda draw: Cluster(count=draw.count, effects=effects, gpus=4, faults=(fault,))


def _link(factor: float) -> _Make:
    """Return a world in which one of the planned pairs is slow or fails."""

    def make(draw: Draw) -> Cluster:
        names = Cluster(count=draw.count).hosts
        planned = pair_rounds(names, rounds=draw.rounds, seed=draw.schedule)
        pair = frozenset(int(host[1:]) for host in draw.chance.choice(planned[0]).hosts)
        fault = Fault(kinds=frozenset((SuspectKind.LINK,)), members=(pair,))
        return Cluster(count=draw.count, effects=(slow_link(pair, factor),), faults=(fault,))

    return make


def _shared_nic(factor: float) -> _Make:
    """Return a world in which a GPU without its NIC uses that of another, 6 of 8 take part."""
    kinds = frozenset((SuspectKind.GPU, SuspectKind.NIC, SuspectKind.NODE))

    def make(draw: Draw) -> Cluster:
        (host,) = group = draw.some(1)
        fault = Fault(kinds=kinds, members=(group,), devices=_devices(2, 3))
        effects = (shared_nic(host, 2, 3, factor),)
        return Cluster(count=draw.count, effects=effects, gpus=6, faults=(fault,))

    return make


def _gpus(factor: float, *numbers: int) -> _Make:
    """Return a world in which some GPUs of a host are slow, in jobs with 4 of 8 GPUs."""
    # The judge does not know which GPUs share a NIC, so their host is right, too.
    kinds = {SuspectKind.GPU, SuspectKind.NIC, *([SuspectKind.NODE] if len(numbers) > 1 else [])}

    def make(draw: Draw) -> Cluster:
        (host,) = group = draw.some(1)
        fault = Fault(kinds=frozenset(kinds), members=(group,), devices=_devices(*numbers))
        effects = (slow_gpus(host, numbers, factor),)
        return Cluster(count=draw.count, effects=effects, gpus=4, faults=(fault,))

    return make


def _devices(*numbers: int) -> frozenset[str]:
    return frozenset(map(str, numbers))


def _apart(loss: float) -> _Make:
    """Return a world with blocks of neighbors, and distance between these."""
    return lambda draw: Cluster(
        count=draw.count, effects=(distance(max(4, draw.count // 4), loss),)
    )


def _disturbed(waves: int, factor: float) -> _Make:
    """Return a world in which some of the planned waves are slow for everybody."""

    def make(draw: Draw) -> Cluster:
        slow = draw.chance.sample(range(draw.rounds), min(waves, draw.rounds))
        return Cluster(count=draw.count, effects=(disturbed(slow, factor),))

    return make


def _and(
    make: _Make,
    *effects: Effect,
    pairs: tuple[float, float] | None = None,
    node: float | None = None,
    law: Law = "normal",
    gpus: int | None = None,
    fixed: bool = False,
    noise: float = 0.01,
) -> _Make:
    """Return a world with more effects, also a share of slow pairs or one more slow node."""

    def more(draw: Draw) -> Cluster:
        made = make(draw)
        added = list(effects)
        bad = made.bad
        if pairs is not None:
            added.append(bad_pairs(*pairs, draw.chance.randrange(1 << 30)))
        if node is not None:
            bad |= draw.some(1)
            added.append(slow_nodes(bad - made.bad, node))
        return replace(
            made,
            effects=(*made.effects, *added),
            bad=bad,
            flaky=made.flaky or pairs is not None or bool(effects),
            law=law,
            gpus=gpus or made.gpus,
            fixed=fixed or made.fixed,
            noise=noise,
        )

    return more


def _collectives(
    make: _Make,
    *,
    check: str = "",
    gpus: int | None = 0,
    more: tuple[tuple[GroupKind, int | None], ...] = (),
) -> _Make:
    """Return a world in which four collectives are measured, and also `more`.

    Its faults are limited to one of the collectives, or to groups with a number of GPUs.
    """

    def of_four(draw: Draw) -> Cluster:
        made = make(draw)
        effects = tuple(only(effect, check=check, gpus=gpus) for effect in made.effects)
        return replace(made, effects=effects, checks=_FOUR, more=more)

    return of_four


def _pairs(share: float, factor: float) -> _Make:
    return _and(_healthy(), pairs=(share, factor))


def _mixed(draw: Draw) -> Cluster:
    """Draw a fault, a law of noise, and a rate of random bad pairs."""
    chance = draw.chance
    factor = chance.choice((0.0, 0.3, 0.5, 0.7, 0.85, 0.93))
    coarse = chance.choice((0.1, 0.3, 0.5, 0.7))
    makes: tuple[_Make, ...] = (
        _healthy(),
        _nodes(1, factor),
        _nodes(2, factor),
        _nodes(3, factor),
        _border(0, coarse),
        _leaf(coarse, 4),
        _rail(coarse),
        _gpus(coarse, _GPU),
    )
    return _and(
        chance.choice(makes),
        pairs=chance.choice((None, None, (0.01, 0.06), (0.05, 0.7), (0.1, 0.06))),
        law=chance.choice(("normal", "heavy", "switch")),
    )(draw)


_Make = Callable[[Draw], Cluster]

#: The worlds in which the methods are compared.
COMPARED = (
    World("w0", "healthy", _healthy()),
    World("w1", "a node 6 % slow", _nodes(1, 0.94)),
    World("w2", "3 nodes 6 % slow", _nodes(3, 0.94)),
    World("w3", "5 % of the pairs at 6 %", _pairs(0.05, 0.06)),
    World("w4", "10 % of the pairs at 70 %", _pairs(0.1, 0.7)),
    World("w5", "a node at 50 %, w4", _and(_nodes(1, 0.5), pairs=(0.1, 0.7))),
    World("w6", "a node at 50 % in half of its pairs", _nodes(1, 0.5, often=0.5)),
    World("w7", "two halves, 25 % between them", _border(0.5, 0.25)),
    World("w8", "a wave at 70 % for everybody", _disturbed(1, 0.7)),
    World("w9", "heavy tails", _and(_healthy(), law="heavy")),
)
_NODES = (
    *(World(f"node-{n}", f"a node {n} % slow", _nodes(1, 1 - n / 100)) for n in (3, 15, 50)),
    World("node-dead", "a node that always fails", _nodes(1, 0)),
    World("two-nodes", "2 nodes 7 % slow", _nodes(2, 0.93)),
    World("tenth", "10 % of the nodes at 50 %", _share_of_nodes(0.1, 0.5)),
    World(
        "node-pairs-70",
        "a node 6 % slow, 5 % of the pairs at 70 %",
        _and(_nodes(1, 0.94), pairs=(0.05, 0.7)),
    ),
    World(
        "node-pairs-6",
        "a node 6 % slow, 5 % of the pairs at 6 %",
        _and(_nodes(1, 0.94), pairs=(0.05, 0.06)),
    ),
    World(
        "bad-node-pairs",
        "a node at 50 %, 10 % of the pairs at 6 %",
        _and(_nodes(1, 0.5), pairs=(0.1, 0.06)),
    ),
    World(
        "often-pairs",
        "a node at 50 % in half of its pairs, 1 % of the pairs at 70 %",
        _and(_nodes(1, 0.5, often=0.5), pairs=(0.01, 0.7)),
    ),
    World(
        "node-collisions",
        "a node at 50 %, 5 % collisions at 60 %",
        _and(_nodes(1, 0.5), collisions(0.05, 0.6)),
    ),
    World("node-heavy", "a node 6 % slow, heavy tails", _and(_nodes(1, 0.94), law="heavy")),
    World("node-switch", "a node 6 % slow, noise by switch", _and(_nodes(1, 0.94), law="switch")),
    World("node-noise", "a node 15 % slow, 3 % noise", _and(_nodes(1, 0.85), noise=0.03)),
    World("node-wave", "a node at 50 %, a wave at 70 %", _and(_disturbed(1, 0.7), node=0.5)),
    World("node-apart", "a node at 50 %, blocks 10 % apart", _and(_apart(0.1), node=0.5)),
    World("node-gpus", "a node at 50 %, 4 of 8 GPUs", _and(_nodes(1, 0.5), gpus=4)),
)
_FLAKY = (
    *(
        World(
            f"pairs-{share}-{factor}",
            f"{share} % of the pairs at {factor} %",
            _pairs(share / 100, factor / 100),
        )
        for share, factor in ((1, 6), (1, 70), (2, 6), (5, 70), (10, 6), (20, 6), (20, 70))
    ),
    World("pairs-dead", "5 % of the pairs fail", _pairs(0.05, 0)),
    World("collisions", "10 % collisions at 60 %", _and(_healthy(), collisions(0.1, 0.6))),
    World(
        "pairs-heavy",
        "5 % of the pairs at 70 %, heavy tails",
        _and(_pairs(0.05, 0.7), law="heavy"),
    ),
    World(
        "pairs-apart",
        "5 % of the pairs at 6 %, blocks 10 % apart",
        _and(_apart(0.1), pairs=(0.05, 0.06)),
    ),
    World(
        "pairs-gpus",
        "10 % of the pairs at 6 %, 4 of 8 GPUs",
        _and(_healthy(), pairs=(0.1, 0.06), gpus=4),
    ),
)
_HEALTHY = (
    *(World(f"apart-{n}", f"blocks {n} % apart", _apart(n / 100)) for n in (5, 10, 15)),
    World("by-switch", "noise by switch", _and(_healthy(), law="switch")),
    World("two-waves", "2 waves at 70 % for everybody", _disturbed(2, 0.7)),
    World("some-gpus", "4 of 8 GPUs", _and(_healthy(), gpus=4)),
    World("same-gpus", "4 of 8 GPUs, each host the same", _and(_healthy(), gpus=4, fixed=True)),
)
_GROUPS = (
    *(World(f"border-{n}", f"a border, {n} % across", _border(0, n / 100)) for n in (10, 50, 80)),
    World("switch", "a switch of 15 % of the hosts at 70 %", _border(0.15, 0.7)),
    World(
        "border-pairs",
        "a border, 50 % across, 5 % of the pairs at 6 %",
        _and(_border(0, 0.5), pairs=(0.05, 0.06)),
    ),
    World("border-node", "a border, 50 % across, a node at 30 %", _and(_border(0, 0.5), node=0.3)),
    World("leaf-all", "a leaf at 30 %, all GPUs", _leaf(0.3, None)),
    World("leaf", "a leaf at 30 %, 4 of 8 GPUs", _leaf(0.3, 4)),
    World("leaf-two", "a leaf of 2 hosts at 30 %, 4 of 8 GPUs", _leaf(0.3, 4, size=2)),
    World(
        "leaf-same",
        "a leaf at 30 %, 4 of 8 GPUs, each host the same",
        _leaf(0.3, 4, fixed=True),
    ),
    World(
        "leaf-pairs",
        "a leaf at 30 %, 4 of 8 GPUs, 5 % of the pairs at 70 %",
        _and(_leaf(0.3, 4), pairs=(0.05, 0.7)),
    ),
    World("rail", "a rail at 50 %, 4 of 8 GPUs", _rail(0.5)),
    World(
        "rail-same", "a rail at 50 %, 4 of 8 GPUs, each host the same", _and(_rail(0.5), fixed=True)
    ),
    World(
        "rail-pairs",
        "a rail at 50 %, 4 of 8 GPUs, 5 % of the pairs at 6 %",
        _and(_rail(0.5), pairs=(0.05, 0.06)),
    ),
    World("gpu", "a GPU at 50 %, 4 of 8 GPUs", _gpus(0.5, _GPU)),
    World("nic", "a NIC of 2 GPUs at 50 %, 4 of 8 GPUs", _gpus(0.5, 2, 3)),
    # One of 512 GPUs of 64 hosts, at most wrong in one of 1,000 clusters, needs log odds of 13.1.
    # Beside 5 % of 300 others, four bad pairs of four give 11.9, and five give 14.7. A GPU that
    # took part in fewer pairs is not found.
    World(
        "gpu-pairs",
        "a GPU at 50 %, 4 of 8 GPUs, 5 % of the pairs at 70 %",
        _and(_gpus(0.5, _GPU), pairs=(0.05, 0.7)),
    ),
)
_ALLTOALL, _EACH = "alltoall", ((GroupKind.EACH, None),)
#: Four collectives in each log, and faults that show in a part of what is measured.
_PARTIAL = (
    World("four", "healthy, 4 collectives", _collectives(_healthy())),
    World(
        "four-heavy",
        "healthy, 4 collectives, single hosts, too; heavy tails",
        _collectives(_and(_healthy(), law="heavy"), more=_EACH),
    ),
    World(
        "four-noise",
        "healthy, 4 collectives, single hosts, too; 3 % of noise with heavy tails",
        _collectives(_and(_healthy(), law="heavy", noise=0.03), more=_EACH),
    ),
    World(
        "singles-node",
        "a node 15 % slow, also alone, heavy tails",
        _collectives(_and(_nodes(1, 0.85), law="heavy"), more=_EACH),
    ),
    World("four-node", "a node 6 % slow in 4 collectives", _collectives(_nodes(1, 0.94))),
    World("four-gpu", "a GPU at 70 % in 4 collectives", _collectives(_gpus(0.7, _GPU))),
    World("four-leaf", "a leaf at 50 % in 4 collectives", _collectives(_leaf(0.5, 4))),
    World("four-border", "a border at 70 % in 4 collectives", _collectives(_border(0, 0.7))),
    World("four-often", "a node at 60 %, often", _collectives(_nodes(1, 0.6, often=0.5))),
    World(
        "node-alltoall",
        "a node at 70 % in alltoall only",
        _collectives(_nodes(1, 0.7), check=_ALLTOALL),
    ),
    World(
        "gpu-alltoall",
        "a GPU at 60 % in alltoall only",
        _collectives(_gpus(0.6, _GPU), check=_ALLTOALL),
    ),
    World(
        "leaf-alltoall",
        "a leaf at 50 % in alltoall only",
        _collectives(_leaf(0.5, 4), check=_ALLTOALL),
    ),
    World(
        "border-alltoall",
        "a border at 70 % in alltoall only",
        _collectives(_border(0, 0.7), check=_ALLTOALL),
    ),
    World(
        "leaf-node", "a leaf at 50 %, a node at 60 %", _collectives(_and(_leaf(0.5, 4), node=0.6))
    ),
    World(
        "border-8",
        "a border at 60 % with all GPUs only, also measured with 4",
        _collectives(_border(0, 0.6), gpus=None, more=((GroupKind.PAIRS, 4),)),
    ),
    World("nic-shared", "two GPUs at 60 % that share a NIC", _collectives(_shared_nic(0.6))),
    World("link-dead", "a pair that always fails", _collectives(_link(0.0))),
    World("link", "a pair at 30 %", _collectives(_link(0.3))),
)
WORLDS = (*COMPARED, *_NODES, *_FLAKY, *_HEALTHY, *_GROUPS, *_PARTIAL)
_OF_KIND = {
    "healthy": "w0 w8 w9 apart-5 apart-10 apart-15 by-switch two-waves some-gpus same-gpus "
    "four four-heavy four-noise",
    "bad pairs": "w3 w4 pairs-1-6 pairs-1-70 pairs-2-6 pairs-5-70 pairs-10-6 pairs-20-6 "
    "pairs-20-70 pairs-dead collisions pairs-heavy pairs-apart pairs-gpus",
    "node": "w1 w2 node-3 node-15 node-50 node-dead two-nodes tenth node-heavy node-switch "
    "node-noise node-wave node-apart node-gpus four-node singles-node",
    "node beside bad pairs": "w5 node-pairs-70 node-pairs-6 bad-node-pairs node-collisions",
    "node at times": "w6 often-pairs four-often",
    "GPU": "gpu gpu-pairs four-gpu",
    "NIC": "nic nic-shared",
    "rail": "rail rail-same rail-pairs",
    "leaf": "leaf leaf-two leaf-same leaf-pairs leaf-all four-leaf",
    "border or switch": "w7 border-10 border-50 border-80 switch border-pairs four-border",
    "link": "link link-dead",
    "in one collective": "node-alltoall gpu-alltoall leaf-alltoall border-alltoall",
    "two parts": "border-node leaf-node border-8",
}
#: The worlds by kind of fault; each is in one.
KINDS = {
    kind: tuple(world for world in WORLDS if world.name in names.split())
    for kind, names in _OF_KIND.items()
}
#: Faults of all kinds, with and without random bad pairs and under all laws of noise.
MIXED = World("mixed", "any fault", _mixed)
BY_NAME = {world.name: world for world in (*WORLDS, MIXED)}
