"""Define plans, records and verdicts as plain data.

`accept.core.serde` reads and writes all classes as JSON, with names in camelCase. Times are Unix
seconds, durations are seconds, sizes are bytes.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from accept.core import causes
from accept.core.causes import Cause, Judgement
from accept.core.errors import Exit
from accept.core.serde import renamed
from accept.core.text import TextEnum

SCHEMA = 1

#: The value of a check's parameter.
ParamValue = bool | int | float | str


class GroupKind(TextEnum):
    """A division of the hosts of a step into groups."""

    ALL = "all"
    EACH = "each"
    PAIRS = "pairs"
    RAILS = "rails"
    LADDER = "ladder"
    HALVES = "halves"


class BoundKind(TextEnum):
    """The origin of a bound."""

    MEASURED = "measured"
    SPEC = "spec"
    FLOOR = "floor"
    #: A requirement of the user.
    EXPECTATION = "expectation"
    #: The peers in the same run. No reference is of this kind.
    POPULATION = "population"


class Placement(TextEnum):
    """The buffer of a collective's result: another than its input, or the same."""

    OUT = "out"
    IN = "in"


class SuspectKind(TextEnum):
    """The parts of a cluster that a verdict can blame, in the order of reports."""

    FABRIC = "fabric"
    #: What connects two groups of hosts.
    BORDER = "border"
    #: What connects some hosts, through one GPU or rail, to the others.
    LEAF = "leaf"
    NODE = "node"
    GPU = "gpu"
    NIC = "nic"
    RAIL = "rail"
    SWITCH = "switch"
    LINK = "link"


class Strength(TextEnum):
    """The strength of the evidence against a suspect, strongest first."""

    STRONG = "strong"
    MODERATE = "moderate"
    WEAK = "weak"


class State(TextEnum):
    """State of a verdict or of one check. Only `pass` is accepted."""

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
#: Exit codes of verdicts, worst first. A failure before an interruption is final; other states
#: of an interrupted run are not.
WORST_EXITS = tuple(dict.fromkeys((Exit.REJECTED, Exit.INTERRUPTED, *EXITS.values())))


def worst_exit(exits: Iterable[int]) -> Exit:
    """Return the worst of the exit codes of verdicts. Raise ValueError for any other code."""
    return min(map(Exit, exits), key=WORST_EXITS.index)


@dataclass(frozen=True, kw_only=True)
class Reference:
    """The expected value of a metric on a machine, and its source.

    It applies to metrics with the same check and name, and with the same size and algorithm unless
    these are None, on min_nodes to max_nodes nodes (None: no limit). A metric passes if
    lower <= value <= upper (None: no limit).
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
    #: True if it applies only to groups whose GPUs are all in one NVLink domain.
    one_domain: bool = False
    #: Theoretical peak of the metric, for "share of the peak".
    peak: float | None = None
    peak_source: str = ""


@dataclass(frozen=True, kw_only=True)
class Step:
    """A rendered script, the checks of its one launch, and the groups of hosts to run it on."""

    id: str
    checks: tuple[str, ...]
    script: str
    groups: GroupKind
    params: dict[str, ParamValue] = field(default_factory=dict)
    rounds: int = 1
    #: Most waves of pairs that may follow the rounds to measure suspects again.
    repeats: int = 0
    timeout: float = 300.0
    estimate: float = 0.0
    optional: bool = False


@dataclass(frozen=True, kw_only=True)
class Skipped:
    """A check of the suite that the plan leaves out, and the reason for people."""

    check: str
    reason: str
    #: A cause that a user can act on; None if the check does not apply, or in plans of 0.1.
    cause: Cause | None = None
    optional: bool = False


@dataclass(frozen=True, kw_only=True)
class PlannedMachine:
    """The properties of a machine that the nodes and the judge need."""

    name: str
    #: GPUs per node; 0: a machine without GPUs; None: as many as a node shows, at least 1.
    gpus: int | None
    #: Ranks per node; None: one per GPU.
    ranks: int | None
    #: Name of the device in `nvidia-smi`; None: any.
    device: str | None = None
    #: False if the machine has no speed target: then only correctness is judged.
    speed_promised: bool = True
    #: Noise floor of the population test, as a share of the median.
    noise: float = 0.01
    #: Interface of the bootstrap and control traffic; empty: the route to the other hosts.
    interface: str = ""
    #: Command that prints the node's position in the topology as one line; empty: none.
    topology: str = ""
    #: Network that NCCL's log must report ("gIB", "IB"); empty: any.
    transport: str = ""
    #: Other names of this network in the log.
    transport_aliases: tuple[str, ...] = ()
    #: True if the log must report GDRDMA for this network.
    gpu_direct: bool = False
    #: True if the GPUs of a node are connected directly, by NVLink.
    peer_to_peer: bool = False
    #: RDMA devices per node that must be up, and the rate of each in 10^9 bits per second.
    rdma_devices: int = 0
    rdma_gbps: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Plan:
    """A complete description of a run, with all defaults resolved."""

    schema: int
    version: str
    #: Identity of the run: `accept.core.evidence.plan_hash` of this plan.
    hash: str
    machine: PlannedMachine
    suite: str
    #: Number of requested nodes; None: all hosts of the back end's list.
    nodes: int | None
    steps: tuple[Step, ...]
    skipped: tuple[Skipped, ...] = ()
    references: tuple[Reference, ...] = ()
    seed: int = 1
    require_all_nodes: bool = False
    #: GPUs per node that take part; None: all.
    gpus_used: int | None = None
    #: GPUs per node that are allocated to the run, if other jobs may use the rest; None: all.
    gpus_given: int | None = None
    busy_ok: bool = False
    #: Time limit for hosts to answer.
    start_seconds: float = 300.0
    #: Time limit of the run after discovery.
    deadline_seconds: float = 3600.0
    hold_seconds: float = 0.0
    keep_seconds: float = 86400.0
    #: Injected faults ("wrong@host"); such a run is a drill and never an acceptance.
    injected: tuple[str, ...] = ()
    #: Description of the logs that the plan was derived from; then exactly their contents count as
    #: requested. Empty for a run of `accept`.
    origin: str = ""
    #: SHA-256 over all other rendered files, so that `hash` covers them too. Empty if an older
    #: version rendered the plan: its hash cannot be verified from the plan alone.
    files_hash: str = ""

    @staticmethod
    def adapt(data: dict[str, object]) -> dict[str, object]:
        """Return the data of any version; 0.1 wrote `planted`."""
        return renamed(data, "planted", "injected")


@dataclass(frozen=True, kw_only=True)
class Metric:
    """One measured number of one check."""

    check: str
    name: str
    value: float
    unit: str
    size: int | None = None
    host: str | None = None
    rank: int | None = None
    gpu: str | None = None
    #: Only for collectives.
    placement: Placement | None = None
    algorithm: str | None = None

    @staticmethod
    def adapt(data: dict[str, object]) -> dict[str, object]:
        """Return the data of any version; 0.1 kept any short text as the placement."""
        placement = data.get("placement")
        known = placement is None or placement in list(Placement)
        return data if known else {key: data[key] for key in data if key != "placement"}


@dataclass(frozen=True, kw_only=True)
class Fact:
    """A report of a program that is not a measured number: an inventory, a rank's identity."""

    name: str
    #: Untrusted; `accept.core.facts` reads it.
    value: object
    check: str | None = None
    host: str | None = None
    rank: int | None = None


@dataclass(frozen=True, kw_only=True)
class Problem:
    """Something that went wrong, with a cause from the closed list (`accept.core.causes`)."""

    cause: Cause
    message: str
    check: str | None = None
    host: str | None = None
    rank: int | None = None
    gpu: str | None = None
    nic: str | None = None

    @staticmethod
    def adapt(data: dict[str, object]) -> dict[str, object]:
        """Return JSON data of any version with a cause that this version knows."""
        text, message = data.get("cause"), data.get("message")
        if not isinstance(text, str) or not isinstance(message, str):
            return data
        cause, message = causes.reported(text, message)
        return {**data, "cause": cause.value, "message": message}


@dataclass(frozen=True, kw_only=True)
class Parsed:
    """The contents of a raw log: the result of a check's `parse`."""

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
    #: Local ranks that took part; empty: all.
    local_ranks: tuple[int, ...] = ()
    ranks: int = 0
    command: str = ""
    #: Exit status of the step script; None if it was killed or never started.
    exit: int | None = None
    start: float = 0.0
    #: Time at which the program began its work, after the launch; None if it did not report that.
    began: float | None = None
    end: float = 0.0
    #: Raw log, relative to the evidence folder.
    log: str = ""
    metrics: tuple[Metric, ...] = ()
    facts: tuple[Fact, ...] = ()
    problems: tuple[Problem, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Bound:
    """The limits of a measurement, both inclusive, and their source. None: no limit."""

    lower: float | None = None
    upper: float | None = None
    kind: BoundKind
    source: str


@dataclass(frozen=True, kw_only=True)
class Executions:
    """How many executions of a check have the same problem, and which hosts all of these share."""

    bad: int
    total: int
    #: Hosts that took part in all bad ones; none: the problem follows no host.
    common_hosts: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One comparison: the measured value, the required value, and the resulting state."""

    check: str
    judgement: Judgement
    state: State
    message: str
    cause: Cause | None = None
    #: The stable code of the cause, such as W-RANK-HUNG; empty without a cause.
    code: str = field(init=False)
    metric: str | None = None
    value: float | None = None
    unit: str = ""
    size: int | None = None
    bound: Bound | None = None
    #: Share of the theoretical peak, 0 to 1; None if no peak is known.
    peak_share: float | None = None
    peak: float | None = None
    peak_source: str = ""
    hosts: tuple[str, ...] = ()
    #: Executions with wrong, missing or unchecked results; None for other findings.
    executions: Executions | None = None
    evidence: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Derive the code."""
        object.__setattr__(self, "code", self.cause.code if self.cause else "")


def _range(hosts: tuple[str, ...]) -> str:
    return " .. ".join((*hosts[:1], *hosts[-1:]))


#: Kind, hosts and device of a suspect.
Part = tuple[SuspectKind, tuple[str, ...], str | None]


@dataclass(frozen=True, kw_only=True)
class BadPair:
    """A pair of hosts that a suspect makes bad, with its worst result."""

    hosts: tuple[str, ...]
    #: The value as a share of normal; None: nothing was measured, or only the data is wrong.
    share: float | None = None
    log: str = ""


@dataclass(frozen=True, kw_only=True)
class Suspect:
    """A part of the cluster that the verdict blames, with cause and strength of the evidence."""

    kind: SuspectKind
    #: The host of a node, GPU or NIC, the two of a link, those behind a switch or leaf or on one
    #: side of a border, in the run's order; none for the fabric or a rail.
    hosts: tuple[str, ...]
    #: The hosts on the other side of a border.
    others: tuple[str, ...] = ()
    #: Number of a GPU or rail (a local rank), name of a NIC; None for other kinds.
    device: str | None = None
    #: Name for people: "h1:3" for a GPU, "h1 - h2" for a link, "h1 .. h8" for a switch, "rail 2",
    #: "h1 .. h4 | h5 .. h8" for a border, "h1 .. h4 GPU 3" for a leaf, "fabric".
    name: str = field(init=False)
    cause: Cause
    strength: Strength
    #: What is bad, with counts.
    why: str
    #: What all bad results share, and what is normal around it; empty for hosts and their devices.
    around: str = ""
    #: Who looks bad and is not; empty for hosts and their devices.
    innocent: str = ""
    #: The bad pairs, worst first.
    pairs: tuple[BadPair, ...] = ()
    evidence: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.kind is SuspectKind.FABRIC:
            name = "fabric"
        elif self.kind is SuspectKind.RAIL:
            name = f"rail {self.device}"
        elif self.kind is SuspectKind.BORDER:
            name = f"{_range(self.hosts)} | {_range(self.others)}"
        elif self.kind is SuspectKind.LEAF:
            name = f"{_range(self.hosts)} GPU {self.device}"
        elif self.kind is SuspectKind.SWITCH:
            name = _range(self.hosts)
        else:
            name = " - ".join(self.hosts) + (f":{self.device}" if self.device else "")
        object.__setattr__(self, "name", name)

    @property
    def of_network(self) -> bool:
        """Whether hosts share it, so that no host is bad itself."""
        return self.kind not in (SuspectKind.NODE, SuspectKind.GPU, SuspectKind.NIC)

    @property
    def part(self) -> Part:
        """The identity of the blamed part: equal if suspects differ only in cause and evidence."""
        return self.kind, self.hosts, self.device


@dataclass(frozen=True, kw_only=True)
class CheckVerdict:
    """The state of one check and the findings that lead to it."""

    check: str
    state: State
    optional: bool = False
    #: Measured values as one line, for the table.
    measured: str = ""
    #: Required values and their source as one line, for the table.
    required: str = ""
    findings: tuple[Finding, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """The result of a run."""

    schema: int
    state: State
    accepted: bool
    #: First line of every report: "pass (no GPU tested)", "fail: h3 unreachable".
    headline: str
    machine: str
    suite: str
    run: str
    attempt: str
    gpu_tested: bool
    hosts: tuple[str, ...]
    #: Requested hosts that did not take part.
    missing: tuple[str, ...]
    checks: tuple[CheckVerdict, ...]
    suspects: tuple[Suspect, ...]
    #: The exit code: 0, 3, 5, 6 or 7.
    exit: int
    #: Next actions, one line each.
    advice: tuple[str, ...] = ()
    injected: tuple[str, ...] = ()
    #: Reason why the run was interrupted; empty if it was not.
    interruption: str = ""
    #: Tested part of each node, such as "4 of the 8 GPUs of each node"; empty: all.
    part: str = ""
    #: Description of the judged logs, if they are not from a run of `accept`.
    origin: str = ""
