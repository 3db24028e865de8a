"""Query the partition and the nodes of a Slurm cluster, and the user's own allocation."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from accept.backends.protocol import FreeNodes
from accept.backends.slurm.client import expand_nodes, query
from accept.config import Site
from accept.config.slurm import Slurm
from accept.core.error_codes import Code
from accept.core.errors import BadInput, NotStarted
from accept.core.plan import LeftOutNode
from accept.core.text import count, decimal, plain, shortened

#: States of nodes that Slurm gives to no job, by the first word that `sinfo` prints.
_UNUSABLE = re.compile(r"down|drain|fail|err|unk|inval|maint|resv|planned|power|no_respond|reboot")
_IDLE = re.compile(r"idle~?")
_GPUS = re.compile(r"gpu(?::[^:,()]+)?:(\d+)")


@dataclass(frozen=True, kw_only=True)
class Node:
    """A node of a partition."""

    name: str
    #: The state, such as `idle`, `allocated`, `drained` or `down*`.
    state: str
    #: The reason that the administrator gave; empty if there is none.
    reason: str
    gres: str

    @property
    def usable(self) -> bool:
        """Return True if Slurm can give the node to a job, now or later."""
        return not _UNUSABLE.match(self.state) and "*" not in self.state

    @property
    def idle(self) -> bool:
        """Return True if Slurm can give the node to a job now."""
        return _IDLE.fullmatch(self.state) is not None

    @property
    def gpus(self) -> int:
        """Return the number of GPUs that Slurm lists."""
        return sum(int(number) for number in _GPUS.findall(self.gres))

    @property
    def why(self) -> str:
        """Return the state and the reason for people."""
        return f"{self.state}{f': {self.reason}' if self.reason else ''}"

    @property
    def text(self) -> str:
        """Return the name, the state and the reason for people."""
        return f"{self.name} ({self.why})"


def partition_of(slurm: Slurm) -> str:
    """Return the partition of the settings, or else the default one. Raises BadInput."""
    names = query("sinfo", "--noheader", "--format=%P").split()
    known = {name.rstrip("*") for name in names}
    if slurm.partition is None:
        # Without a default partition, the controller decides about a job that names none.
        return next((name.rstrip("*") for name in names if name.endswith("*")), "")
    for name in slurm.partition.split(","):
        if name not in known:
            raise BadInput(
                f"Slurm has no partition {plain(name, 80)!r}",
                code=Code.SLURM_PARTITION,
                hint=f"partitions: {shortened(sorted(known), 12)}",
            )
    return slurm.partition


def nodes_of(partition: str) -> tuple[Node, ...]:
    """Return the nodes of a partition, in Slurm's order."""
    where = f"--partition={partition}" if partition else "--all"
    words = ["sinfo", "--noheader", "--Node", "--format=%N|%T|%G|%E", where]
    nodes = {}
    for line in query(*words).splitlines():
        name, _, rest = line.partition("|")
        state, _, rest = rest.partition("|")
        gres, _, reason = rest.partition("|")
        reason = "" if reason.strip() in ("none", "None", "(null)") else plain(reason.strip(), 120)
        nodes[name] = Node(name=name, state=state.strip().lower(), reason=reason, gres=gres.strip())
    return tuple(nodes.values())


def allocated_nodes() -> tuple[str, ...]:
    """Return the nodes of the allocation in which this process runs (salloc); empty: in none."""
    if not decimal(os.environ.get("SLURM_JOB_ID", "")):
        return ()
    return expand_nodes(os.environ.get("SLURM_JOB_NODELIST", ""))


def check_request(
    site: Site, hosts: Sequence[str], nodes: int, *, minutes: int, enough: int
) -> tuple[Node, ...]:
    """Return the nodes of the partition that the run may use.

    `minutes` is the time limit of the job, and `enough` the shortest one for the plan.
    Raises BadInput or NotStarted if these nodes are not available, now or later.
    """
    check_results(site)
    partition = partition_of(site.slurm)
    _check_partition(site.slurm, partition, minutes, enough)
    shown = f"partition {partition or '(default)'}"
    known = {node.name: node for node in nodes_of(partition)}
    if unknown := [name for name in hosts if name not in known]:
        raise BadInput(
            f"{shown} has no node {plain(', '.join(unknown[:4]), 200)}",
            code=Code.SLURM_NODE_UNKNOWN,
            hint=f"its nodes: {shortened(list(known), 8)}; names may differ from hostnames",
        )
    if unusable := [known[name].text for name in hosts if not known[name].usable]:
        raise NotStarted(
            f"Slurm gives {count(len(unusable), 'requested node')} to no job: "
            f"{shortened(unusable, 4)}",
            code=Code.SLURM_NODE_UNUSABLE,
            hint="leave them out, or have them resumed",
        )
    excluded = excluded_by(site.slurm)
    if clash := [name for name in hosts if name in excluded]:
        raise BadInput(
            f"slurm.exclude has the requested node {clash[0]}",
            code=Code.NODES_MISMATCH,
            hint="leave it out, or correct slurm.exclude in the site file",
        )
    others = excluded.difference(known)
    if unknown := sorted(others.difference(node.name for node in nodes_of("") if others)):
        raise BadInput(
            f"--exclude: Slurm has no node {plain(unknown[0], 200)}",
            code=Code.SLURM_NODE_UNKNOWN,
            hint=f"nodes of {shown}: {shortened(list(known), 8)}",
        )
    free = [node for name, node in known.items() if name not in excluded]
    if nodes > len(free):
        raise BadInput(
            f"{count(nodes, 'node')} requested, and {shown} has {len(free)}"
            + " that are not excluded" * bool(excluded),
            code=Code.SLURM_TOO_MANY_NODES,
            hint=f"give --nodes {len(free)} or fewer",
        )
    return tuple(known[name] for name in hosts) if hosts else tuple(free)


def excluded_by(slurm: Slurm) -> set[str]:
    """Return the names of the nodes that the settings exclude."""
    return {name for pattern in slurm.exclude for name in expand_nodes(pattern)}


def _check_partition(slurm: Slurm, partition: str, minutes: int, enough: int) -> None:
    """Raise NotStarted if the partition never starts a job of so many minutes."""
    where = f"--partition={partition}"
    answer = query("sinfo", "--noheader", where, "--format=%R|%a|%l") if partition else ""
    rows = [row for line in answer.splitlines() if len(row := line.strip().split("|")) == 3]
    limits = [_minutes(limit) for _, state, limit in rows if state == "up"]
    if not rows:
        return
    if not limits:
        raise NotStarted(
            f"partition {partition} is {', '.join(dict.fromkeys(row[1] for row in rows))}",
            code=Code.SLURM_NEVER_STARTS,
            hint="give another one: sinfo lists them",
        )
    # A quality of service may allow more.
    if (most := max(limits)) < minutes and not slurm.qos:
        hint = f"give --time {most:.0f}m"
        if most < enough:
            hint = f"leave steps out (--only, --budget): this plan needs --time {enough}m"
        raise NotStarted(
            f"the job's time limit is {minutes} min, and partition {partition} allows {most:.0f}",
            code=Code.SLURM_NEVER_STARTS,
            hint=hint,
        )


def _minutes(limit: str) -> float:
    """Return a time limit of `sinfo`, such as 1-12:00:00 or 30:00; infinity if there is none."""
    if not re.fullmatch(r"(\d+-)?\d+(:\d+)*", limit):
        return math.inf
    days, _, clock = limit.rpartition("-")
    minutes = 1440.0 * int(days or 0)
    for place, part in enumerate(reversed(clock.split(":"))):
        minutes += int(part) * 60.0 ** (place - 1)
    return minutes


def check_results(site: Site) -> None:
    """Raise BadInput if the site's results go to a folder here that cannot be written to."""
    location = site.results.location or ""
    folder = Path(location.removeprefix("file://"))
    if folder.is_absolute() and not os.access(folder, os.W_OK | os.X_OK):
        raise BadInput(
            f"results.location {plain(folder, 200)} cannot be written to here",
            code=Code.SLURM_RESULTS,
            hint="create it, or correct results.location in the site file",
        )


def idle_nodes(site: Site) -> FreeNodes:
    """Return the idle nodes of the partition, and those that Slurm gives to no job.

    Raises NotStarted if no node is idle.
    """
    partition = partition_of(site.slurm)
    excluded = excluded_by(site.slurm)
    nodes = nodes_of(partition)
    idle = tuple(node.name for node in nodes if node.idle and node.name not in excluded)
    if not idle:
        raise NotStarted(
            f"no node of partition {partition or '(default)'} is idle: "
            f"{shortened([node.text for node in nodes], 4)}",
            code=Code.SLURM_NONE_IDLE,
            hint="give --nodes NUMBER to wait for nodes",
        )
    left_out = tuple(
        LeftOutNode(name=node.name, reason=node.why)
        for node in nodes
        if not node.usable and node.name not in excluded
    )
    return FreeNodes(names=idle, left_out=left_out)
