"""Define verdicts as plain data: findings, suspects and coverage, and the exit code of each state.

`accept.core.serde` reads and writes all classes as JSON, as those of `accept.core.plan`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from accept.core.causes import Cause, Judgement
from accept.core.errors import Exit
from accept.core.plan import SIMULATED, Bound, GroupKind, LeftOutNode, Skipped
from accept.core.text import TextEnum


class SuspectKind(TextEnum):
    """The parts of a cluster that a verdict can blame, in the order of reports."""

    FABRIC = "fabric"
    #: The connection between two groups of hosts.
    BORDER = "border"
    #: The connection of some hosts, through one GPU or rail, to the others.
    LEAF = "leaf"
    NODE = "node"
    GPU = "gpu"
    NIC = "nic"
    RAIL = "rail"
    SWITCH = "switch"
    LINK = "link"


#: Kinds of suspects that are a host or a part of one.
OF_HOST = (SuspectKind.NODE, SuspectKind.GPU, SuspectKind.NIC)


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

    @property
    def is_rejected(self) -> bool:
        """Return True if a run in this state is rejected as it is."""
        return self in (State.FAIL, State.DEGRADED)


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
class Executions:
    """Counts of the executions of a check with the same problem, and the hosts that they share."""

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
    #: The known line that shows the cause: `accept show cause SIGN`.
    sign: str | None = None
    metric: str | None = None
    value: float | None = None
    unit: str = ""
    size: int | None = None
    #: Hosts of the execution that gave the value; None: it is of no execution.
    nodes: int | None = None
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
    #: The value beside the normal one, for people: "327.5 of 366.4 GB/s".
    compared: str = ""
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
    #: The reason for people: what is bad, with counts.
    why: str
    #: Property that all bad results share, and normal results around it; empty for hosts and
    #: devices.
    around: str = ""
    #: The hosts that look bad but are not; empty for hosts and their devices.
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
        """Return True for a part that hosts share, so that no host itself is bad."""
        return self.kind not in OF_HOST

    @property
    def is_software(self) -> bool:
        """Return True if wrong data follows no part: software is the likely cause."""
        return self.kind is SuspectKind.FABRIC and self.cause is Cause.WRONG_DATA

    @property
    def part(self) -> Part:
        """Return the blamed part; equal if suspects differ only in cause and evidence."""
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
class MeasuredRange:
    """The worst and the median of one figure over comparable executions or devices."""

    check: str
    metric: str
    unit: str
    #: Requested message size in bytes; None: the metric has none.
    size: int | None = None
    #: Nodes of each execution; 1 for devices.
    nodes: int
    #: Number of values.
    values: int
    worst: float
    #: Hosts, or host and device, of the worst value.
    worst_at: str
    median: float
    #: The bound that requires most of those that apply; None: there is none.
    bound: Bound | None = None

    @property
    def margin(self) -> float | None:
        """Return the distance of the worst value from the required one, as a share of that."""
        required = self.bound.required if self.bound else None
        return self.worst / required - 1 if required else None


@dataclass(frozen=True, kw_only=True)
class ScalingPoint:
    """The bus bandwidth of groups of one number of hosts."""

    nodes: int
    #: The median of all groups.
    value: float
    #: The value as a share of that of the fewest hosts.
    efficiency: float


@dataclass(frozen=True, kw_only=True)
class Scaling:
    """The efficiency of one collective over growing numbers of hosts, at one message size."""

    check: str
    step: str
    unit: str
    size: int
    #: The fewest hosts first.
    points: tuple[ScalingPoint, ...]


@dataclass(frozen=True, kw_only=True)
class Detectable:
    """The smallest slowdown of one node that the run would have found."""

    #: Share of the normal speed that is lost.
    slowdown: float
    #: Probability that the node would have been named.
    probability: float


@dataclass(frozen=True, kw_only=True)
class StepCoverage:
    """The parts of the cluster that one step exercised: numbers over all hosts."""

    step: str
    checks: tuple[str, ...]
    groups: GroupKind
    hosts: int
    gpus: int
    #: NICs with traffic, according to NCCL's log.
    nics: int
    #: Local ranks that communicated with other hosts.
    rails: tuple[int, ...] = ()
    #: Pairs of hosts that were measured alone.
    links: int = 0


@dataclass(frozen=True, kw_only=True)
class Coverage:
    """The parts of the cluster that each step exercised, and those that no step did."""

    steps: tuple[StepCoverage, ...] = ()
    #: GPUs and NICs that some step exercised, and the number that the hosts should have.
    gpus: int = 0
    gpus_of: int = 0
    #: GPUs that no step exercised, as HOST:LOCALRANK.
    gpus_untested: tuple[str, ...] = ()
    nics: int = 0
    nics_of: int = 0
    #: Hosts whose NICs no step used.
    nics_untested: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class KeptSteps:
    """The steps whose records were copied from an earlier attempt."""

    attempt: str
    #: Their ids, in the order of the plan.
    steps: tuple[str, ...]


class Verification(TextEnum):
    """The party that vouches for evidence, if nothing contradicts it."""

    #: A key that the user or the run folder names has signed it.
    SIGNED = "signed"
    #: It is what this workstation fetched after the run; the key of the run is not known here.
    UNMODIFIED = "unmodified"
    #: Nobody: whoever changed it could have written new checksums.
    NOT_VERIFIABLE = "not-verifiable"


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
    #: Nodes that were not requested, because they were drained, cordoned or down.
    left_out: tuple[LeftOutNode, ...] = ()
    checks: tuple[CheckVerdict, ...]
    suspects: tuple[Suspect, ...]
    #: The exit code: 0, 3, 5, 6 or 7.
    exit: int
    #: The parts that were exercised; in verdicts of older versions empty.
    coverage: Coverage = Coverage()
    #: Next actions, one line each.
    advice: tuple[str, ...] = ()
    injected: tuple[str, ...] = ()
    #: What a user changed in the Helm values after they were rendered, one text each.
    edited: tuple[str, ...] = ()
    #: Reason why the run was interrupted; empty if it was not.
    interruption: str = ""
    #: Tested part of each node, such as "4 of the 8 GPUs of each node"; empty: all.
    part: str = ""
    #: What is unproven about the machine, as a sentence; empty: nothing.
    caveat: str = ""
    #: Checks and steps that the user left out; the reason is the option: `--only`, `--skip`,
    #: `--fail-fast`.
    not_run: tuple[Skipped, ...] = ()
    #: Steps of earlier attempts (`--resume`).
    kept: tuple[KeptSteps, ...] = ()
    #: Description of the judged logs, if they are not from a run of `accept`.
    origin: str = ""
    #: Start and end of the run; 0: unknown.
    start: float = 0.0
    end: float = 0.0
    #: GPUs that the nodes reported.
    gpus: int = 0
    ranges: tuple[MeasuredRange, ...] = ()
    #: Name of the rules that find bad parts; in verdicts of older versions empty.
    rules: str = ""
    #: Only if the suite has a ladder.
    scaling: tuple[Scaling, ...] = ()
    #: None: pairs were not measured, or too few.
    detectable: Detectable | None = None
    #: Number of bad nodes with which the user accepts the run (`--max-bad`).
    max_bad: int = 0
    #: The version of `accept` that judged; older verdicts do not have it.
    version: str = ""
    #: Who vouches for the evidence; None: nothing was verified, as on the first host.
    verified: Verification | None = None

    @property
    def is_simulated(self) -> bool:
        """Return True for the run of `accept demo`, whose figures no real node reached."""
        return self.suite == SIMULATED

    @property
    def requested(self) -> tuple[str, ...]:
        """Return the requested hosts: those that took part, then those that did not."""
        return self.hosts + self.missing

    @property
    def accused(self) -> frozenset[str]:
        """Return the hosts that are bad themselves, or have a bad part."""
        return frozenset(h for s in self.suspects if not s.of_network for h in s.hosts)

    @property
    def unexplained_wrong_data(self) -> tuple[Finding, ...]:
        """Return the findings on wrong data; none if a host or the network explains it."""
        if any(s.cause is Cause.WRONG_DATA and not s.is_software for s in self.suspects):
            return ()
        return tuple(
            finding
            for check in self.checks
            for finding in check.findings
            if finding.cause is Cause.WRONG_DATA and finding.state is State.FAIL
        )
