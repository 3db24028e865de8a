"""Define the closed list of causes. Every failed node, step or check has one of them.

Everything that the program knows about a cause is in its row in `causes.json`, beside this module.
`docs/causes.md` has a section for each: how to confirm it by hand, and what to report to the
provider.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from accept.core.serde import from_json, read
from accept.core.text import TextEnum


class Owner(TextEnum):
    """A party that has to act on a cause."""

    #: The operators of the host.
    NODE = "node"
    #: The person who started the run: settings, limits, tools, the list of hosts.
    USER = "user"
    #: The operators of the network.
    FABRIC = "fabric"
    #: The provider or vendor that replaces hardware.
    PROVIDER = "provider"


class Judgement(TextEnum):
    """The kind of comparison that leads to a finding."""

    #: Everything planned ran, and left complete output.
    COMPLETENESS = "completeness"
    #: Results are correct.
    CORRECTNESS = "correctness"
    #: Values reach their bounds.
    ABSOLUTE = "absolute"
    #: Groups are compared with their peers in the same run.
    POPULATION = "population"
    #: Hosts are equal to each other and to their machine type.
    CONSISTENCY = "consistency"


@dataclass(frozen=True, kw_only=True)
class Advice:
    """The next action of some checks, instead of that of the cause."""

    checks: tuple[str, ...]
    action: str


@dataclass(frozen=True, kw_only=True)
class Row:
    """Describe one cause. The default of each flag is right for most causes."""

    #: One line each: the meaning, and the next action.
    meaning: str
    action: str
    action_of_checks: tuple[Advice, ...] = ()
    owner: Owner
    #: The judgement that a problem of this cause belongs to.
    judgement: Judgement = Judgement.COMPLETENESS
    #: True if it explains all other problems of its execution. For example, when a host dies, the
    #: ranks that wait for it hang, and the launcher ends the others.
    root_cause: bool = False
    #: True if it usually follows from another cause and then adds no information.
    consequence: bool = False
    #: True if it only reports missing results, which a failed launch explains.
    no_result: bool = False
    #: True if it ends a launch, no matter which of its checks was running.
    ends_launch: bool = False
    #: True if it excludes the host from the rest of the run.
    loses_host: bool = False
    #: True if no connection to the host could be made.
    unreachable: bool = False
    #: True if it is about a host that never got a node, so no node is blamed.
    names_no_node: bool = False
    #: True if no command can have started on the host. After a timeout, one may have started.
    no_login: bool = False
    #: True if another attempt to prepare the host would give the same result.
    permanent: bool = False
    #: True if collectives with the host would crash, hang, or use fewer GPUs. If a host has it at
    #: the start, the others are measured without it.
    sets_aside: bool = False
    #: True if a GPU is missing or unusable.
    no_gpu: bool = False
    #: True if it may follow from a missing or unusable GPU. It is then not blamed, like every
    #: consequence.
    follows_no_gpu: bool = False
    #: True if a GPU or CPU computed wrong numbers.
    wrong_numbers: bool = False
    #: True if a value is too low.
    slow: bool = False
    #: True if only the comparison with peers shows it.
    relative: bool = False
    #: True if the check did not run, so nothing is known to be bad.
    not_tested: bool = False
    #: True if the value cannot be judged.
    not_judged: bool = False

    @property
    def action_of_check(self) -> dict[str, str]:
        """Return the checks that have a next action of their own, each with this action."""
        return {check: own.action for own in self.action_of_checks for check in own.checks}


_ROWS = read(dict[str, Row], from_json(Path(__file__).with_name("causes.json").read_bytes()))


class Cause(TextEnum):
    """The closed list of causes: their names in JSON, on screens and in `docs/causes.md`.

    If several causes accuse a suspect with equal strength, the first one in this list counts.
    """

    row: Row

    def __new__(cls, text: str) -> Cause:
        """Create a member with its row. Raises KeyError if the file has none."""
        member = str.__new__(cls, text)
        member._value_ = text
        member.row = _ROWS[text]
        return member

    @property
    def code(self) -> str:
        """Return the stable code of findings with this cause, such as `W-RANK-HUNG`."""
        return f"W-{self.value.upper()}"

    # A host that never took part.
    UNREACHABLE_DNS = "unreachable-dns"
    UNREACHABLE_REFUSED = "unreachable-refused"
    UNREACHABLE_TIMEOUT = "unreachable-timeout"
    NOT_REGISTERED = "not-registered"
    DUPLICATE_HOST = "duplicate-host"
    KEY_REFUSED = "key-refused"
    HOST_KEY_MISMATCH = "host-key-mismatch"
    HOST_KEY_UNKNOWN = "host-key-unknown"
    # A host or a rank that was lost during the run.
    HOST_DIED = "host-died"
    CUT_OFF = "cut-off"
    RANK_HUNG = "rank-hung"
    TIMED_OUT = "timed-out"
    CRASHED = "crashed"
    OUT_OF_MEMORY = "out-of-memory"
    LAUNCH_FAILED = "launch-failed"
    RANK_COUNT = "rank-count"
    WRONG_COMMAND = "wrong-command"
    WRONG_IMAGE = "wrong-image"
    NETWORK_FAILED = "network-failed"
    UNKILLABLE = "unkillable"
    # Wrong results.
    WRONG_DATA = "wrong-data"
    WRONG_RESULT = "wrong-result"
    NOT_FINITE = "not-finite"
    PARAMETERS_DIFFER = "parameters-differ"
    GRADIENTS_DIFFER = "gradients-differ"
    LOSS_DIFFERS = "loss-differs"
    LOSS_NOT_FALLING = "loss-not-falling"
    # Too slow.
    BELOW_REFERENCE = "below-reference"
    BELOW_EXPECTED = "below-expected"
    PAUSES = "pauses"
    NVLS_OFF = "nvls-off"
    NVLINK_DOMAIN_OFF = "nvlink-domain-off"
    SLOW_OUTLIER = "slow-outlier"
    SLOW_NETWORK = "slow-network"
    UNPROVEN = "unproven"
    INTERMITTENT = "intermittent"
    TRANSPORT_FALLBACK = "transport-fallback"
    # Missing or damaged output.
    INCOMPLETE_LOG = "incomplete-log"
    PARTIAL_LOG = "partial-log"
    JOB_FAILED = "job-failed"
    NO_MEASUREMENT = "no-measurement"
    UNPARSABLE = "unparsable"
    RESULTS_UNCHECKED = "results-unchecked"
    TOP_SIZE_MISSING = "top-size-missing"
    EVIDENCE_MISSING = "evidence-missing"
    # Problems of the host that existed before the run.
    DISK_FULL = "disk-full"
    GPU_MISSING = "gpu-missing"
    GPU_UNUSABLE = "gpu-unusable"
    DRIVER_MISMATCH = "driver-mismatch"
    GPU_PERMISSION = "gpu-permission"
    DRIVER_TOO_OLD = "driver-too-old"
    GPU_LOST = "gpu-lost"
    GPU_UNREPORTED = "gpu-unreported"
    FABRIC_MANAGER = "fabric-manager"
    GPU_SETTINGS = "gpu-settings"
    GPU_MODE = "gpu-mode"
    GPU_RESET_REQUIRED = "gpu-reset-required"
    GPU_BUSY = "gpu-busy"
    GPU_LIST = "gpu-list"
    GPU_DUPLICATE = "gpu-duplicate"
    GPU_ECC = "gpu-ecc"
    GPU_REMAP_FAILED = "gpu-remap-failed"
    # Errors of devices, most of them during a step.
    GPU_XID = "gpu-xid"
    GPU_ROW_REMAP = "gpu-row-remap"
    GPU_THROTTLED = "gpu-throttled"
    GPU_DIAGNOSTIC = "gpu-diagnostic"
    NVLINK_DOWN = "nvlink-down"
    NVLINK_ERRORS = "nvlink-errors"
    PCIE_ERRORS = "pcie-errors"
    PCIE_DEGRADED = "pcie-degraded"
    LINK_DOWN = "link-down"
    NIC_ERRORS = "nic-errors"
    NIC_LOOP_FAILED = "nic-loop-failed"
    HOST_ERRORS = "host-errors"
    KERNEL_CRASHED = "kernel-crashed"
    INVENTORY_MISMATCH = "inventory-mismatch"
    CLOCK_SKEW = "clock-skew"
    MEMLOCK_LIMITED = "memlock-limited"
    # Not tested, or not judged.
    TOOL_MISSING = "tool-missing"
    NO_TABLE = "no-table"
    OVER_BUDGET = "over-budget"
    DESELECTED = "deselected"
    NO_REFERENCE = "no-reference"
    SIZE_NOT_MEASURED = "size-not-measured"
    NICS_NOT_TESTED = "nics-not-tested"
    UNSUPPORTED_VERSIONS = "unsupported-versions"
    SCRIPT_FAILED = "script-failed"
    TOOL_FAILED = "tool-failed"
    TOOL_UNUSABLE = "tool-unusable"
    # Not on this list: reported by a program or an evidence folder of another version.
    UNKNOWN = "unknown-cause"


#: NVML's return codes for a GPU that is lost, and for one that needs a reset (nvml.h,
#: NVML_ERROR_GPU_IS_LOST, NVML_ERROR_RESET_REQUIRED).
GPU_IS_LOST, RESET_REQUIRED = 15, 16


#: NVML's codes of a missing permission, and of a library and a module that do not match (nvml.h,
#: nvmlReturn_t: NO_PERMISSION, LIB_RM_VERSION_MISMATCH).
_AT_START = {4: Cause.GPU_PERMISSION, 18: Cause.DRIVER_MISMATCH}


def start_cause(code: int) -> Cause | None:
    """Return the cause of a driver that shows no GPU, by the code of NVML's start; None: others."""
    return _AT_START.get(code)


def driver_cause(code: int) -> Cause:
    """Return the cause that an error of NVIDIA's driver for a GPU indicates, by NVML's code."""
    return Cause.GPU_RESET_REQUIRED if code == RESET_REQUIRED else Cause.GPU_LOST


def from_text(text: str) -> Cause | None:
    """Return the cause called `text`; None if there is none."""
    return Cause(text) if text in _ROWS else None


def reported(text: str, message: str) -> tuple[Cause, str]:
    """Return the cause called `text`, and the message.

    If the cause is unknown, the message starts with its text.
    """
    cause = from_text(text)
    if cause is not None:
        return cause, message
    return Cause.UNKNOWN, f"{text[:64]}: {message}" if message else text[:64]
