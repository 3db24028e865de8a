"""Define plans as plain data: steps, machine, references, and the tools that steps run.

`accept.core.serde` reads and writes all classes as JSON, with names in camelCase. Times are Unix
seconds, durations are seconds, sizes are bytes.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Annotated

from accept.core.causes import Cause
from accept.core.limits import (
    VARIABLES,
    Gpus,
    HostName,
    Hosts,
    MachineName,
    Parts,
    Ranks,
    Seconds,
    Share,
    StepName,
)
from accept.core.text import TextEnum

SCHEMA = 1

#: The value of a check's parameter.
ParamValue = bool | int | float | str


class GroupKind(TextEnum):
    """A division of the hosts of a step into groups."""

    ALL = "all"
    #: Every host by itself: all of them at the same time, or one after the other.
    EACH = "each"
    ALONE = "alone"
    PAIRS = "pairs"
    RAILS = "rails"
    RAIL_PAIRS = "rail-pairs"
    LADDER = "ladder"
    HALVES = "halves"
    #: Neighbors in rank order, at most `groups.MAX_BLOCK` hosts in each.
    BLOCKS = "blocks"

    @property
    def of_single_hosts(self) -> bool:
        """Return True if each group is one host."""
        return self in (GroupKind.EACH, GroupKind.ALONE)

    @property
    def of_pairs(self) -> bool:
        """Return True for rounds of disjoint pairs of hosts."""
        return self in (GroupKind.PAIRS, GroupKind.RAIL_PAIRS)

    @property
    def of_rails(self) -> bool:
        """Return True if one GPU of each host takes part in a group."""
        return self in (GroupKind.RAILS, GroupKind.RAIL_PAIRS)


class BoundKind(TextEnum):
    """The origin of a bound."""

    MEASURED = "measured"
    SPEC = "spec"
    FLOOR = "floor"
    #: A share of a specification without any published figure of healthy machines.
    DERIVED = "derived"
    #: The vendor's own health check requires it.
    VENDOR = "vendor"
    #: A requirement of the user.
    EXPECTATION = "expectation"
    #: The peers in the same run. No reference is of this kind.
    POPULATION = "population"


@dataclass(frozen=True, kw_only=True)
class Bound:
    """The limits of a measurement, both inclusive, and their source. None: no limit."""

    lower: float | None = None
    upper: float | None = None
    #: The lower side of good values if it is above `lower`: values between fail nothing, but do
    #: not pass.
    expected: float | None = None
    kind: BoundKind
    source: str

    @property
    def required(self) -> float | None:
        """Return the lower side that a value must reach to pass."""
        return self.lower if self.expected is None else self.expected


@dataclass(frozen=True, kw_only=True)
class Reference:
    """The expected value of a metric on a machine, and its source.

    It applies to metrics with the same check and name, and with the same size and algorithm unless
    these are None, on min_nodes to max_nodes nodes (None: no limit). A metric fails unless
    lower <= value <= upper (None: no limit). Below `expected` it is inconclusive.
    """

    check: str
    metric: str
    unit: str
    kind: BoundKind
    source: str
    value: float | None = None
    lower: float | None = None
    upper: float | None = None
    #: Value that healthy machines reach with good settings; at least `lower`.
    expected: float | None = None
    size: int | None = None
    min_nodes: int | None = None
    max_nodes: int | None = None
    algorithm: str | None = None
    device: str | None = None
    #: True if it applies only to groups whose GPUs are all in one NVLink domain.
    one_domain: bool = False
    #: True if it applies to groups with one GPU of each host, False for whole hosts.
    per_rail: bool = False
    #: NCCL profile of the steps that it applies to; empty: that of the run.
    profile: str = ""
    #: Theoretical peak of the metric, for "share of the peak"; its source, if that is another one.
    peak: float | None = None
    peak_source: str = ""

    @property
    def bound(self) -> Bound:
        """Return its limits."""
        return Bound(
            lower=self.lower,
            upper=self.upper,
            expected=self.expected,
            kind=self.kind,
            source=self.source,
        )


@dataclass(frozen=True, kw_only=True)
class Supported:
    """The oldest versions of other components that the maker of one supports it with."""

    #: The component, such as gIB, and its versions: from `since` on, and before `before`.
    component: str
    since: str
    #: Empty: all later versions.
    before: str = ""
    #: Component -> its oldest supported version.
    needs: dict[str, str]
    source: str


@dataclass(frozen=True, kw_only=True)
class ToolResult:
    """A number that a tool prints: its place in the output, its unit, and how peers differ."""

    name: str
    unit: str
    #: JSON Pointer (RFC 6901) into the tool's output; `*` means every element, `KEY=VALUE` those
    #: elements that have it. Empty: `line`.
    json: str = ""
    #: True if the last `*` is the number of the GPU that the value is of. In a line, what begins at
    #: its first placeholder is there once for each GPU.
    of_gpu: bool = False
    #: The beginning of a line of the output, as `accept.core.tool_output` reads it.
    line: str = ""
    #: True if only the last such line counts.
    last: bool = False
    #: Factor that turns the printed number into `unit`.
    scale: float = 1.0
    #: Standard deviation of healthy peers, as a share of their median; 0: they are not compared.
    noise: Share = 0.0
    #: True if its own bounds show only that something was measured.
    floor: bool = False


@dataclass(frozen=True, kw_only=True)
class ToolParts:
    """The good or bad results of a tool for single parts."""

    #: JSON Pointer to the objects with one result each; empty: `line`.
    json: str
    #: The key with the state in each, and its good and bad values; others are ignored. Without bad
    #: values, all others are bad.
    state: str
    #: The beginning of a line with one result, with `{state}` and perhaps `{gpu}`.
    line: str = ""
    good: tuple[str, ...]
    bad: tuple[str, ...]
    #: Keys that may have the number of the GPU.
    gpu: tuple[str, ...] = ()
    #: Keys that, if an object has them, must have these values, or the number is not of a GPU.
    gpu_where: dict[str, str] = field(default_factory=dict)
    #: JSON Pointer, from the object, to the text that explains a bad one.
    text: str = ""
    #: The text in a line before the numbers of errors of each GPU; empty: none.
    errors: str = ""
    #: Pointer to the kinds of errors of a bad one, and those that say nothing about the part.
    kind: str = ""
    untested: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class ToolNeeds:
    """Requirements of a host, without which a tool is not tested there."""

    root: bool = False
    devices: tuple[str, ...] = ()
    #: Name of a capability of Linux -> its bit.
    capabilities: dict[str, int] = field(default_factory=dict)
    #: Free bytes in the tool's folder.
    space: int = 0


@dataclass(frozen=True, kw_only=True)
class Tool:
    """A program of others that a step runs, with the parameters of the run filled in."""

    name: str
    #: The program and its arguments; `{folder}` is the tool's own folder on the host.
    command: tuple[str, ...]
    #: The command for the second host of a pair, which listens on `port` before `command` starts
    #: on the first one; empty: only the first host of a group runs something.
    server: tuple[str, ...] = ()
    port: int = 0
    #: True if it runs for each RDMA port of the host, one after the other.
    per_nic: bool = False
    env: dict[str, str] = field(default_factory=dict)
    #: The command that prints the version, and the oldest one that works; empty: any.
    version: tuple[str, ...] = ()
    least: str = ""
    #: Instructions to install it.
    install: str = ""
    #: The folder in which the tool gets its own; empty: none.
    folder: str = ""
    needs: ToolNeeds = field(default_factory=ToolNeeds)
    timeout: Seconds
    results: tuple[ToolResult, ...] = ()
    parts: ToolParts | None = None
    #: The cause if it fails, and what that means for people.
    cause: Cause
    meaning: str = ""
    #: True if its results are those of GPUs, which it cannot have without one.
    of_gpus: bool = False


@dataclass(frozen=True, kw_only=True)
class Step:
    """A rendered script, the checks of its one launch, and the groups of hosts to run it on."""

    id: StepName
    checks: tuple[str, ...]
    script: str
    groups: GroupKind
    params: dict[str, ParamValue] = field(default_factory=dict)
    rounds: Hosts = 1
    #: NCCL profile of its ranks; empty: that of the run.
    profile: str = ""
    #: Maximum number of waves of pairs that may follow the rounds to measure suspects again.
    repeats: Hosts = 0
    timeout: Seconds = 300.0
    estimate: Seconds = 0.0
    optional: bool = False
    #: True if it runs only after a step that left a question.
    if_open: bool = False
    #: The tool that it runs; None: a check of `accept`.
    tool: Tool | None = None

    @property
    def at_most(self) -> Seconds:
        """Return the estimate with all waves of pairs that may follow, in seconds."""
        return self.estimate * (1 + self.repeats / max(1, self.rounds))


@dataclass(frozen=True, kw_only=True)
class Skipped:
    """A check of the suite that the plan leaves out, and the reason for people."""

    check: str
    reason: str
    #: A cause that a user can act on; None if the check does not apply.
    cause: Cause | None = None
    optional: bool = False
    #: The step that was left out; empty if no step runs the check.
    step: str = ""

    @property
    def subject(self) -> str:
        """Return the check, and the step if only that was left out."""
        return f"{self.check} in {self.step}" if self.step else self.check


class Launcher(TextEnum):
    """The program that starts the ranks on pairs of hosts and on each host alone."""

    #: A program that stays on each host, `launchers/programs/resident.py`.
    RESIDENT = "resident"
    #: The step's script, for each group: nccl-tests, or collective.py without them.
    NCCL_TESTS = "nccl-tests"


@dataclass(frozen=True, kw_only=True)
class LeftOutNode:
    """A node of a cluster that a run on all nodes could not use."""

    name: HostName
    #: The reason for people, such as "drained: broken fan".
    reason: str


@dataclass(frozen=True, kw_only=True)
class Injection:
    """A fault of a drill, and the part of the run that it affects."""

    #: Its name in the catalog of faults.
    fault: str
    #: Name of the host, `#N` for its number from 0, or `*` for all hosts.
    host: str
    #: Local rank; None: the fault affects no single rank.
    rank: int | None = None

    @property
    def target(self) -> str:
        """Return HOST or HOST:LOCALRANK."""
        return self.host if self.rank is None else f"{self.host}:{self.rank}"

    @property
    def text(self) -> str:
        """Return FAULT@HOST or FAULT@HOST:LOCALRANK, as ranks and people read it."""
        return f"{self.fault}@{self.target}"


@dataclass(frozen=True, kw_only=True)
class PlannedMachine:
    """The properties of a machine that the nodes and the judge need."""

    name: MachineName
    #: GPUs per node; 0: a machine without GPUs; None: as many as a node shows, at least 1.
    gpus: Gpus | None
    #: Ranks per node; None: one per GPU.
    ranks: Ranks | None
    #: What is unproven about such nodes, as a sentence; empty: nothing.
    caveat: str = ""
    #: Name of the device in `nvidia-smi`; None: any.
    device: str | None = None
    #: False if the machine has no speed target: then only correctness is judged.
    speed_promised: bool = True
    #: Noise floor of the population test, as a share of the median.
    noise: Share = 0.01
    #: Interface of the bootstrap and control traffic; empty: the route to the other nodes.
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
    #: True if the NVSwitches can do reductions, so NCCL must be able to use NVLS.
    nvls: bool = False
    #: Active NVLinks that each GPU must have; 0: unknown.
    nvlinks: Parts = 0
    #: RDMA devices per node that must be up, and the rate of each in 10^9 bits per second.
    rdma_devices: Parts = 0
    rdma_gbps: float = 0.0
    #: NICs per node that carry data between GPUs; 0: unknown or none.
    nics: Parts = 0
    #: NCCL profile that is faster on some networks and was not used; empty: none.
    faster_profile: str = ""

    def promises(self, network: str) -> bool:
        """Return True if NCCL's name of a network means the promised one, or if none is."""
        names = (self.transport, *self.transport_aliases)
        return not self.transport or any(name.lower() in network.lower() for name in names)


@dataclass(frozen=True, kw_only=True)
class Collector:
    """A command whose output the run keeps from its suspects."""

    name: str
    #: Commands of plain sh.
    command: str
    timeout: float
    max_bytes: int


#: Name of the suite of simulated runs.
SIMULATED = "simulated"


@dataclass(frozen=True, kw_only=True)
class Plan:
    """A complete description of a run, with all defaults resolved."""

    schema: int
    version: str
    #: Identity of the run: `accept.core.evidence.plan_hash` of this plan.
    hash: str
    machine: PlannedMachine
    #: The machine with each NCCL profile that a step uses instead of the run's profile.
    profiles: dict[str, PlannedMachine] = field(default_factory=dict)
    suite: str
    #: Number of requested nodes; None: all hosts of the back end's list.
    nodes: Hosts | None
    #: With `--nodes all`: the other nodes, which were drained, cordoned or down.
    left_out: tuple[LeftOutNode, ...] = ()
    steps: tuple[Step, ...]
    skipped: tuple[Skipped, ...] = ()
    references: tuple[Reference, ...] = ()
    #: Versions that their makers support together.
    supported: tuple[Supported, ...] = ()
    seed: int = 1
    #: Pairs of hosts that steps of pairs measure instead of rounds; empty: rounds.
    pairs: tuple[tuple[HostName, ...], ...] = ()
    launcher: Launcher = Launcher.NCCL_TESTS
    #: Name of the run whose suspects this run measures again; empty: none.
    retest_of: str = ""
    require_all_nodes: bool = False
    #: GPUs per node that take part; None: all.
    gpus_used: Gpus | None = None
    #: GPUs per node that are allocated to the run, if other jobs may use the rest; None: all.
    gpus_given: Gpus | None = None
    busy_ok: bool = False
    #: Time limit for hosts to answer.
    start_seconds: Seconds = 300.0
    #: Time limit of the run after discovery.
    deadline_seconds: Seconds = 3600.0
    #: True if the run ends after the first step with a bad result that no later step can change.
    fail_fast: bool = False
    #: Time for which the hosts stay up for debugging after the verdict.
    hold_seconds: Seconds = 0.0
    #: True if they also stay up after a run that was accepted.
    hold_always: bool = False
    keep_seconds: Seconds = 86400.0
    #: Commands for suspects after the steps, and their longest time together.
    collectors: tuple[Collector, ...] = ()
    collect_seconds: Seconds = 0.0
    #: Injected faults; such a run is a drill and never an acceptance.
    injected: tuple[Injection, ...] = ()
    #: Environment variables of all ranks as rendered, most of them settings of NCCL.
    env: Annotated[dict[str, str], VARIABLES] = field(default_factory=dict)
    #: Names of these variables by their origin for people, such as `--nccl`.
    env_origins: dict[str, tuple[str, ...]] = field(default_factory=dict)
    #: What a user changed in the Helm values after they were rendered, one text each.
    edited: tuple[str, ...] = ()
    #: Description of the logs that the plan was derived from; the request is then exactly what they
    #: contain. Empty for a run of `accept`.
    origin: str = ""
    #: SHA-256 over all other rendered files, so that `hash` covers them too.
    files_hash: str = ""

    @property
    def longest_seconds(self) -> float:
        """Return the maximum time of the coordinator's work, and of a hold after it."""
        work = self.start_seconds + self.deadline_seconds + self.collect_seconds
        return work + self.hold_seconds

    @property
    def ranks(self) -> int | None:
        """Return the planned ranks on each host; None: as many as the host has GPUs."""
        return self.gpus_used or self.machine.ranks or self.machine.gpus or None

    @property
    def enough_minutes(self) -> int:
        """Return the shortest time limit of a job of Slurm in which all steps fit.

        Slurm announces the limit up to 3 minutes before, and the run then ends.
        """
        steps = sum(step.at_most for step in self.steps)
        return math.ceil((self.start_seconds + steps + self.collect_seconds) / 60) + 3

    @property
    def checks(self) -> tuple[str, ...]:
        """Return the checks of all steps, each once."""
        return tuple(dict.fromkeys(check for step in self.steps for check in step.checks))

    def machine_in(self, step: Step) -> PlannedMachine:
        """Return the machine with the NCCL profile of a step."""
        return self.profiles.get(step.profile, self.machine)
