"""Find the ranks that corrupted data in a collective."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import rank_io
from reference_data import COLLECTIVES, FLOAT, Collective
from torch_collectives import Operations

#: Elements that a rank contributes to a probe, and the number of probes per collective.
PROBE, PROBES = 4096, 2
#: Maximum number of ranks that are named for one collective.
NAMED = 8


def observers(kind: Collective, source: int, ranks: int) -> list[int]:
    """Return the other ranks that receive the data of `source` unmodified."""
    if kind.redop == "sum" and kind.name != "sendrecv":
        return []
    if kind.name == "sendrecv":
        return [(source + 1) % ranks] if ranks > 1 else []
    return [rank for rank in range(ranks) if rank != source]


def blame(
    matrix: Sequence[Sequence[int]], seen_by: Sequence[Sequence[int]]
) -> tuple[list[int], list[int]]:
    """Return the ranks that sent wrong data, and the ranks that corrupt the data they receive.

    matrix[r][s] counts the wrong elements that rank r found in the data of rank s; the diagonal is
    what a rank found in its own contribution. seen_by[s] lists the ranks that receive from s.

    A sender is blamed if its own contribution is wrong, or if it has at least two receivers and
    more than half of them found its data wrong. A receiver is blamed if it found wrong data from at
    least two senders that are not blamed, and from more than half of those. With a single pair
    no rank is named, because either end may be the cause.
    """
    ranks = range(len(matrix))
    senders = [
        s
        for s in ranks
        if matrix[s][s]
        or (len(seen_by[s]) > 1 and 2 * sum(matrix[r][s] > 0 for r in seen_by[s]) > len(seen_by[s]))
    ]
    from_others: list[list[int]] = [[] for _ in ranks]
    for s in ranks:
        if s not in senders:
            for r in seen_by[s]:
                from_others[r].append(matrix[r][s])
    receivers = []
    for r in ranks:
        wrong = sum(count > 0 for count in from_others[r])
        if r not in senders and wrong > 1 and 2 * wrong > len(from_others[r]):
            receivers.append(r)
    return senders, receivers


class Accuser:
    """Find the ranks that corrupted data, and name each once per collective.

    `hosts` has the host of each rank.
    """

    def __init__(self, operations: Operations, hosts: Sequence[str]) -> None:
        self.operations, self.hosts = operations, hosts
        self.named: set[tuple[str, int]] = set()
        self.probed: set[str] = set()

    def accuse(self, kind: Collective, where: str, by_source: list[int], wrong: list[int]) -> None:
        """Find out which ranks corrupted the data, and print them. All ranks call this together.

        The operation itself may not show it: a sum hides its terms, and a pair has two ends. Then
        an all-gather over the same ranks is checked as well, once per collective.
        """
        ranks = self.operations.me.size
        names = self.verdict(kind, by_source)
        probing = not names and kind.check not in self.probed
        if probing:
            gather = COLLECTIVES["all_gather"]
            summed = [0] * ranks
            for _ in range(PROBES):
                _, found = self.operations.checked(
                    gather, PROBE, PROBE * ranks * FLOAT, in_place=False
                )
                summed = [a + b for a, b in zip(summed, found, strict=True)]
            names = self.verdict(gather, summed)
        if names or probing:
            self.probed.add(kind.check)
        hit = [rank for rank, count in enumerate(wrong) if count]
        total = f"{sum(wrong)} wrong elements on {len(hit)} of {ranks} ranks at {where}"
        if not names and probing:
            if kind.name == "all_reduce" and len(hit) == 1 and ranks > 2:
                names = {hit[0]: "alone has a wrong sum"}
            else:
                receivers = ", ".join(f"{rank} on {self.hosts[rank]}" for rank in hit[:NAMED])
                self.problem(kind, f"{total}; found by rank {receivers}; source not known")
        if len(names) > NAMED:
            self.problem(kind, f"{total}; {len(names)} ranks are to blame, too many to name")
            self.named.update((kind.check, rank) for rank in names)
        for rank, why in names.items():
            if (kind.check, rank) not in self.named:
                self.named.add((kind.check, rank))
                host = self.hosts[rank]
                self.problem(kind, f"rank {rank} on {host} {why}: {total}", host=host, rank=rank)

    def verdict(self, kind: Collective, by_source: list[int]) -> dict[int, str]:
        """Return the ranks that `blame` names, with the reason, from every rank's counts."""
        ranks = self.operations.me.size
        matrix = [[int(count) for count in row] for row in self.operations.exchange(by_source)]
        seen_by = [observers(kind, source, ranks) for source in range(ranks)]
        senders, receivers = blame(matrix, seen_by)
        names = dict.fromkeys(senders, "contributes wrong data")
        names.update(dict.fromkeys(receivers, "gets wrong data from several ranks"))
        return names

    def problem(self, kind: Collective, message: str, **labels: Any) -> None:
        """Print a wrong-data problem on rank 0."""
        if self.operations.me.rank == 0:
            rank_io.problem("wrong-data", message, check=kind.check, **labels)
