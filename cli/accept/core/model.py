"""What is planned, what was recorded and what was judged, as plain data.

Every class here is read from and written to JSON by `accept.core.serde`, which also makes the
schemas. In JSON the names are camelCase. Times are Unix seconds, durations seconds, sizes bytes.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Literal

from accept.core.errors import Exit

SCHEMA = 1

GroupKind = Literal["all", "each", "pairs", "rails", "ladder", "halves"]
BoundKind = Literal["measured", "spec", "floor", "expectation"]


class State(str, Enum):
    """The state of a verdict or of one check. Only `pass` is accepted."""

    PASS = "pass"
    DEGRADED = "degraded"
    FAIL = "fail"
    INCONCLUSIVE = "inconclusive"
    NOT_TESTED = "not-tested"


#: The exit code of each state, worst state first.
EXITS = {
    State.FAIL: Exit.REJECTED,
    State.DEGRADED: Exit.REJECTED,
    State.INCONCLUSIVE: Exit.INCONCLUSIVE,
    State.NOT_TESTED: Exit.INCOMPLETE,
    State.PASS: Exit.PASS,
}
WORST_FIRST = tuple(EXITS)
#: Exit codes of verdicts, worst first. A failure that was found before an interruption is still a
#: failure; any other state of an interrupted run is not final.
WORST_EXITS = tuple(dict.fromkeys((Exit.REJECTED, Exit.BROKEN_OFF, *EXITS.values())))


def worst_exit(exits: Iterable[int]) -> Exit:
    """Return the worst of the exit codes of verdicts. Raise ValueError for any other code."""
    return min(map(Exit, exits), key=WORST_EXITS.index)


@dataclass(frozen=True, kw_only=True)
class Reference:
    """What a metric should be on a machine, and where that figure comes from.

    It applies where check and metric are equal and each of `size`, `algorithm` that is given equals
    the metric's, and where min_nodes <= nodes <= max_nodes (None: open). A metric holds when
    value >= lower and value <= upper, for whichever is given.
    """

    check: str
    metric: str
    unit: str
    kind: BoundKind
    source: str
    value: float | None = None
    lower: float | None = None
    upper: float | None = None
    size: int | None = None
    min_nodes: int | None = None
    max_nodes: int | None = None
    algorithm: str | None = None
    device: str | None = None
    #: Only of groups of hosts whose GPUs are in one NVLink domain.
    one_domain: bool = False
    #: For collectives: what `value` bounds is the theoretical peak, used for "share of the peak".
    peak: float | None = None
    peak_source: str = ""


@dataclass(frozen=True, kw_only=True)
class Step:
    """A rendered script, the checks it serves in one launch, and where it is to be executed."""

    id: str
    checks: tuple[str, ...]
    script: str
    groups: GroupKind
    params: dict[str, Any] = field(default_factory=dict)
    rounds: int = 1
    timeout: float = 300.0
    estimate: float = 0.0
    optional: bool = False


@dataclass(frozen=True, kw_only=True)
class Skipped:
    """A check that the suite asks for and the plan leaves out, and why."""

    check: str
    reason: str
    optional: bool = False


@dataclass(frozen=True, kw_only=True)
class PlannedMachine:
    """What the nodes need to know of a machine."""

    name: str
    #: GPUs a node must have; 0: a machine without GPUs; None: as many as each shows, at least 1.
    gpus: int | None
    #: Ranks a node; None: one for each GPU found.
    ranks: int | None
    #: What `nvidia-smi` calls the device, or None where any will do.
    device: str | None = None
    #: False: judged by correctness alone, and the report says "no speed promised".
    speed_promised: bool = True
    #: Noise floor of the population test, as a share of the median.
    noise: float = 0.01
    #: Interface of the bootstrap and control traffic; empty: the route to the other hosts.
    interface: str = ""
    #: Command that prints one line, the node's place in the topology; empty: none.
    topology: str = ""
    #: What NCCL's own log must name as its network ("gIB", "IB"); empty: nothing is promised.
    transport: str = ""
    #: Other names that the log may have for it.
    transport_aliases: tuple[str, ...] = ()
    #: Whether it must say GDRDMA of that network.
    gpu_direct: bool = False
    #: Whether the GPUs of a node reach each other directly, by NVLink.
    peer_to_peer: bool = False
    #: RDMA devices that a node must show as up, and the rate of each in 10^9 bits a second.
    rdma_devices: int = 0
    rdma_gbps: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Plan:
    """All that a run needs, with nothing left to default."""

    schema: int
    version: str
    #: Names the run: `accept.core.evidence.plan_hash` of this plan.
    hash: str
    machine: PlannedMachine
    suite: str
    #: Number of nodes wanted, or None where the back end's list of hosts says it.
    nodes: int | None
    steps: tuple[Step, ...]
    skipped: tuple[Skipped, ...] = ()
    references: tuple[Reference, ...] = ()
    seed: int = 1
    require_all_nodes: bool = False
    #: GPUs a node that take part, where fewer than it has; None: all.
    gpus_used: int | None = None
    #: GPUs a node that the run is given, where others may have the rest; None: all.
    gpus_given: int | None = None
    busy_ok: bool = False
    #: Longest wait for hosts to answer.
    start_seconds: float = 300.0
    #: Longest run after the hosts are found.
    deadline_seconds: float = 3600.0
    hold_seconds: float = 0.0
    keep_seconds: float = 86400.0
    #: Faults planted on purpose ("wrong@host"); such a run is a drill and never an acceptance.
    planted: tuple[str, ...] = ()
    #: What the plan was made from, where nobody planned: logs that were found. All there is was
    #: asked for then, and no more. Empty: a run of ours.
    origin: str = ""
    #: SHA-256 over all other rendered files, so that `hash` covers them too. Empty: rendered by a
    #: version whose hashes cannot be verified from the plan alone.
    files_hash: str = ""


@dataclass(frozen=True, kw_only=True)
class Metric:
    """One measured number. `check` is the check it belongs to (a launch may serve several)."""

    check: str
    name: str
    value: float
    unit: str
    size: int | None = None
    host: str | None = None
    rank: int | None = None
    gpu: str | None = None
    #: "out" or "in" (place), for collectives.
    placement: str | None = None
    algorithm: str | None = None


@dataclass(frozen=True, kw_only=True)
class Fact:
    """Something a program said that is no number to judge: an inventory line, a rank's identity."""

    name: str
    value: Any
    check: str | None = None
    host: str | None = None
    rank: int | None = None


@dataclass(frozen=True, kw_only=True)
class Problem:
    """Something that went wrong, with a cause out of the closed list (`accept.core.causes`)."""

    cause: str
    message: str
    check: str | None = None
    host: str | None = None
    rank: int | None = None
    gpu: str | None = None
    nic: str | None = None


@dataclass(frozen=True, kw_only=True)
class Parsed:
    """What a raw log says: the result of a check's `parse`."""

    metrics: tuple[Metric, ...] = ()
    facts: tuple[Fact, ...] = ()
    problems: tuple[Problem, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Record:
    """One execution of a step on one group."""

    step: str
    checks: tuple[str, ...]
    wave: int
    group: int
    hosts: tuple[str, ...]
    #: Local ranks that took part; empty: all of them.
    local_ranks: tuple[int, ...] = ()
    ranks: int = 0
    command: str = ""
    #: Exit status of the step script; None: it was killed or never started.
    exit: int | None = None
    start: float = 0.0
    #: When the program began its work, after launching; None where it never said so.
    began: float | None = None
    end: float = 0.0
    #: Raw log, relative to the evidence folder.
    log: str = ""
    metrics: tuple[Metric, ...] = ()
    facts: tuple[Fact, ...] = ()
    problems: tuple[Problem, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One comparison: what was measured, what it was held against, and what that says."""

    check: str
    #: completeness, correctness, absolute, population or consistency.
    judgement: str
    state: State
    message: str
    cause: str | None = None
    metric: str | None = None
    value: float | None = None
    unit: str = ""
    size: int | None = None
    #: The side of the bound that failed, else its lower side if it has one, else its upper side.
    bound: float | None = None
    #: Both sides of the bound.
    lower: float | None = None
    upper: float | None = None
    bound_kind: str = ""
    source: str = ""
    #: Share of the theoretical peak, 0 to 1, where one is known.
    peak_share: float | None = None
    peak: float | None = None
    peak_source: str = ""
    hosts: tuple[str, ...] = ()
    evidence: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Suspect:
    """Who is to blame, for what, and how strong the evidence is."""

    kind: Literal["node", "gpu", "nic", "rail", "link", "switch"]
    name: str
    cause: str
    strength: Literal["strong", "moderate", "weak"]
    why: str
    evidence: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class CheckVerdict:
    """The state of one check and the findings it follows from."""

    check: str
    state: State
    optional: bool = False
    #: One line: what was measured, for the table.
    measured: str = ""
    #: One line: what it was held against and where that comes from.
    against: str = ""
    findings: tuple[Finding, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """The answer."""

    schema: int
    state: State
    accepted: bool
    #: First line for people: "pass (no GPU tested)", "fail: h3 unreachable".
    headline: str
    machine: str
    suite: str
    run: str
    attempt: str
    gpu_tested: bool
    hosts: tuple[str, ...]
    #: Hosts asked for that never took part.
    missing: tuple[str, ...]
    checks: tuple[CheckVerdict, ...]
    suspects: tuple[Suspect, ...]
    #: The exit code: 0, 3, 5, 6 or 7.
    exit: int
    #: What to do next, one line each.
    advice: tuple[str, ...] = ()
    planted: tuple[str, ...] = ()
    #: Why the run ended early, where it did.
    broken_off: str = ""
    #: Which part of each node was tested, such as "4 of the 8 GPUs of each node"; empty: all.
    part: str = ""
    #: What was judged, where it was logs that no run of ours left.
    origin: str = ""
