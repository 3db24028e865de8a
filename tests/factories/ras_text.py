"""The text of NCCL's RAS for a state, with the format strings of its src/ras/client_support.cc.

NCCL 2.24 and 2.25 have one form, and 2.26 to 2.28.3 another one. It is the answer to VERBOSE
STATUS, of a job with one process for each GPU, 2 of them on each node.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import chain

from tests.factories.ras_server import status

_HEADING = """\
NCCL version {version} compiled with CUDA 12.8
CUDA runtime version 12080, driver version 12080

Job summary
===========

  Nodes  Processes         GPUs  Processes     GPUs
(total)   per node  per process    (total)  (total)
{nodes:7d}  {per_node:9d}  {gpus:11d}  {processes:9d}  {processes:7d}

Communicators... (2.05s)
=============

Group     Comms     Nodes     Ranks     Ranks     Ranks    Status  Errors
    #  in group  per comm  per node  per comm  in group
"""
_STATES: tuple[object, ...] = ("NOCOMM", "RUNNING")
_UNREACHABLE = "(unreachable via the RAS network)"


@dataclass(frozen=True, kw_only=True)
class Job:
    """The state of a job, whose ranks all are in one communicator."""

    size: int = 8
    #: Kind of collective -> rank -> number of those that it has started.
    started: Mapping[str, Mapping[int, int]] = field(default_factory=dict)
    dead: frozenset[int] = frozenset()
    silent: frozenset[int] = frozenset()
    #: Ranks that have left the communicator, but answer.
    left: frozenset[int] = frozenset()
    #: Sizes of other communicators.
    others: tuple[int, ...] = ()

    @property
    def ranks(self) -> list[int]:
        """Return the ranks that report."""
        return [r for r in range(self.size) if r not in self.dead | self.silent | self.left]

    def json(self) -> dict[str, object]:
        """Return what NCCL 2.28.7 reports of the job."""
        answer = status(
            dict.fromkeys(self.ranks, 0), size=self.size, dead=(*self.dead,), silent=(*self.silent,)
        )
        (own,) = answer["communicators"]
        for rank in own["ranks"]:
            rank["collective_counts"] = {k: v[rank["rank"]] for k, v in self.started.items()}
        for rank in self.left:
            state = {"unresponsive": False, "considered_dead": False}
            own["missing_ranks"].append({**own["ranks"][0], "rank": rank, "status": state})
        answer["communicators"] += [
            communicator
            for size in self.others
            for communicator in status(dict.fromkeys(range(size), 9), size=size)["communicators"]
        ]
        return answer


def _gpu(rank: int) -> str:
    return f"GPU {rank % 2} managed by process {1000 + rank} on node 192.0.2.{1 + rank // 2}"


def _processes(ranks: Iterable[int]) -> list[str]:
    return [
        f"  Process {1000 + r} on node 192.0.2.{1 + r // 2} managing GPU {r % 2}"
        for r in sorted(ranks)
    ]


def _groups(job: Job, values: Mapping[int, object], text: str, zero: str = "") -> list[str]:
    """Return the ranks by value, the largest group first, as RAS does for VERBOSE STATUS."""
    groups: dict[object, list[int]] = {}
    for rank, value in sorted(values.items()):
        groups.setdefault(value, []).append(rank)
    lines = []
    order = [*_STATES, *sorted(value for value in values.values() if isinstance(value, int))]
    for value, ranks in sorted(
        groups.items(), key=lambda each: (len(each[1]), order.index(each[0])), reverse=True
    ):
        shown = zero if zero and value == 0 else text.format(value)
        if len(ranks) == 1:
            lines.append(f"  Rank {ranks[0]} has {shown} -- {_gpu(ranks[0])}")
            continue
        lines.append(f"  {len(ranks)} ranks have {shown}")
        if len(ranks) < job.size * 0.5:
            lines += [f"  Rank {rank} -- {_gpu(rank)}" for rank in ranks]
    return lines


def _unknown(job: Job, ranks: list[int]) -> list[str]:
    """Return the ranks that have left the communicator, as NCCL 2.24 and 2.25 do."""
    listed = ",".join(map(str, ranks))
    if len(ranks) == 1:
        return [f"  Rank {listed} has status UNKNOWN"]
    names = [f"  The unknown ranks: {listed}"] * (len(ranks) < job.size * 0.5)
    return [f"  {len(ranks)} ranks have status UNKNOWN", *names]


def text(job: Job, version: str) -> str:
    """Return the answer of this version to VERBOSE STATUS."""
    is_old = version.startswith(("2.24", "2.25"))
    gone = sorted(job.dead | job.silent)
    # 2.24 and 2.25 cannot tell a rank that left from one whose process does not answer.
    missing = sorted({*gone, *job.left}) if is_old and gone else gone
    left = [] if is_old and gone else sorted(job.left)
    counts = {kind: {r: ranks[r] for r in job.ranks} for kind, ranks in job.started.items()}
    if is_old:
        total = {r: sum(ranks[r] for ranks in counts.values()) for r in job.ranks}
        counts = {"collective": total}
    different = {kind: c for kind, c in counts.items() if len(set(c.values())) > 1}
    errors = ["INCOMPLETE"] * bool(missing) + ["MISMATCH"] * bool(different or left)
    nodes = (job.size + 1) // 2
    head = _HEADING.format(version=version, nodes=nodes, per_node=2, gpus=1, processes=job.size)
    sizes = sorted([(job.size, True), *((size, False) for size in job.others)], reverse=True)
    row = "{:5d}  {:8d}  {:8d}  {:>8}  {:8d}  {:8d}  {:>8}  {:>6}\n"
    for number, (size, is_own) in enumerate(sizes):
        reported = ",".join(errors) or "OK"
        ranks = job.ranks if is_own else range(size)
        on_node = Counter(rank // 2 for rank in ranks).values()
        per_node = "-".join(map(str, sorted({min(on_node), max(on_node)})))
        cells = (number, 1, len(on_node), per_node, size, len(ranks), "RUNNING")
        head += row.format(*cells, reported if is_own else "OK")
    title = f"#{sizes.index((job.size, True))}-0 (cf264af53edbe986)"
    lines = ["", "Errors", "======", ""]
    if job.silent:
        plural = "es" * (len(job.silent) > 1)
        lines += [
            "INCOMPLETE",
            f"  Missing communicator data from {len(job.silent)} job process{plural}",
        ]
        lines += [*_processes(job.silent), ""]
    if job.dead:
        plural = "es are" if len(job.dead) > 1 else " is"
        lines += [
            "DEAD",
            f"  {len(job.dead)} job process{plural} considered dead {_UNREACHABLE}",
            *_processes(job.dead),
            "",
        ]
    if missing:
        plural = "s" * (len(missing) > 1)
        lines += [
            f"{title} INCOMPLETE",
            f"  Missing communicator data from {len(missing)} rank{plural}",
        ]
        if is_old:
            lines += [f"  The missing rank{plural}: {','.join(map(str, missing))}"]
        else:
            lines += [f"  Rank {rank} -- {_gpu(rank)}" for rank in missing]
        lines += [""]
    lines += ["Warnings", "========", ""]
    if job.silent:
        lines += [
            "TIMEOUT",
            "  Encountered 2 communication timeouts while gathering communicator data",
            "",
        ]
    if "MISMATCH" in errors:
        lines += [f"{title} MISMATCH"]
        if left:
            lines += ["  Communicator ranks have different status"]
            running, unknown = dict.fromkeys(job.ranks, "RUNNING"), dict.fromkeys(left, "NOCOMM")
            if is_old:
                states = [_groups(job, running, "status {}"), _unknown(job, left)]
                lines += chain(*(states[::-1] if len(left) > len(running) else states))
            else:
                lines += _groups(job, running | unknown, "status {}")
        for kind, values in different.items():
            lines += [f"  Communicator ranks have different {kind} operation counts"]
            zero = "" if is_old else "not launched any operations"
            lines += [
                *_groups(job, values, "launched up to operation {}", zero),
                *[""] * (not is_old),
            ]
        lines += [""] * is_old
    return head + "\n".join(lines) + "\n"
