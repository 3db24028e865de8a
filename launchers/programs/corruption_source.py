"""Who is to blame where ranks hold wrong data after a collective."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import rank_io
from reference_data import COLLECTIVES, FLOAT, Collective
from torch_collectives import Operations

#: Elements a rank contributes to a probe, and the number of probes of one collective.
PROBE, PROBES = 4096, 2
#: At most so many ranks are named for one collective.
NAMED = 8


def observers(kind: Collective, source: int, ranks: int) -> list[int]:
    """The other ranks that receive the data of `source` as they are."""
    if kind.redop == "sum" and kind.name != "sendrecv":
        return []
    if kind.name == "sendrecv":
        return [(source + 1) % ranks] if ranks > 1 else []
    return [rank for rank in range(ranks) if rank != source]


def blame(
    matrix: Sequence[Sequence[int]], seen_by: Sequence[Sequence[int]]
) -> tuple[list[int], list[int]]:
    """Ranks that sent wrong data, and ranks that spoil what they receive.

    matrix[r][s] counts the wrong elements that rank r found in what came from rank s; on the
    diagonal, what a rank found wrong in its own contribution. seen_by[s] lists the ranks that
    receive from s. A sender is blamed when its own contribution is wrong, or when more than half of
    at least two receivers found its data wrong; a receiver when that holds for the data of at least
    two senders not blamed, and of more than half of them. A single pair cannot tell which of its
    ends is to blame, and nobody is named.
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
        wrong = sum(found > 0 for found in from_others[r])
        if r not in senders and wrong > 1 and 2 * wrong > len(from_others[r]):
            receivers.append(r)
    return senders, receivers


class Accuser:
    """Finds who spoiled data, names each once for a collective. `hosts` are those of the ranks."""

    def __init__(self, operations: Operations, hosts: Sequence[str]) -> None:
        self.operations, self.hosts = operations, hosts
        self.named: set[tuple[str, int]] = set()
        self.probed: set[str] = set()

    def accuse(self, kind: Collective, where: str, by_source: list[int], wrong: list[int]) -> None:
        """Find out who spoiled the data and print it. All ranks call it together.

        Where the operation alone does not show it (a sum hides its terms, a single pair has two
        ends), an all-gather over the same ranks is checked beside it, once per collective.
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
        """The ranks that `blame` names, with why, from every rank's counts."""
        ranks = self.operations.me.size
        matrix = [[int(count) for count in row] for row in self.operations.exchange(by_source)]
        seen_by = [observers(kind, source, ranks) for source in range(ranks)]
        senders, receivers = blame(matrix, seen_by)
        names = dict.fromkeys(senders, "contributes wrong data")
        names.update(dict.fromkeys(receivers, "gets wrong data from several ranks"))
        return names

    def problem(self, kind: Collective, message: str, **labels: Any) -> None:
        """Print on rank 0 that data were wrong."""
        if self.operations.me.rank == 0:
            rank_io.problem("wrong-data", message, check=kind.check, **labels)
