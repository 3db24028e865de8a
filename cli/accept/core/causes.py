"""Define the closed list of causes. Every failed node, step or check has one of them.

Everything that the program knows about a cause is in its row. `docs/causes.md` has a section for
each: how to confirm it by hand, and what to report to the provider.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

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


#: The checks of collectives.
_COLLECTIVES = ("all-reduce", "all-gather", "reduce-scatter", "alltoall", "sendrecv")


@dataclass(frozen=True, kw_only=True)
class Row:
    """Describe one cause. The default of each flag is right for most causes."""

    #: The name in JSON, on screens and in `docs/causes.md`.
    text: str
    #: One line each: the meaning, and the next action.
    meaning: str
    action: str
    #: Check -> its own next action.
    action_of_check: Mapping[str, str] = field(default_factory=dict)
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


class Cause(TextEnum):
    """The closed list of causes, one row each.

    If several causes accuse a suspect with equal strength, the first one in this list counts.
    """

    row: Row

    def __new__(cls, row: Row) -> Cause:
        """Create a member from its row: its value is the row's text, and `row` is the row."""
        member = str.__new__(cls, row.text)
        member._value_ = row.text
        member.row = row
        return member

    @property
    def code(self) -> str:
        """Return the stable code of findings with this cause, such as `W-RANK-HUNG`."""
        return f"W-{self.value.upper()}"

    # A host that never took part.
    UNREACHABLE_DNS = Row(
        text="unreachable-dns",
        meaning="the host's name has no address",
        action="check the name, and that the host exists; `getent hosts NAME` from the first host",
        owner=Owner.USER,
        unreachable=True,
        permanent=True,
        no_login=True,
    )
    UNREACHABLE_REFUSED = Row(
        text="unreachable-refused",
        meaning="the host answers, but nothing listens on its ssh port",
        action="start the host's sshd, or find out why it stopped",
        owner=Owner.NODE,
        unreachable=True,
        no_login=True,
    )
    UNREACHABLE_TIMEOUT = Row(
        text="unreachable-timeout",
        meaning="the node did not answer before the deadline",
        action="check that it is powered on, then check routes and firewalls between the nodes",
        owner=Owner.NODE,
        unreachable=True,
    )
    NOT_REGISTERED = Row(
        text="not-registered",
        meaning="the pod never started or registered: mostly capacity or scheduling; no node is "
        "blamed",
        action="`kubectl describe pod` and `kubectl logs` show whether it started, and why not",
        owner=Owner.USER,
        unreachable=True,
        no_login=True,
        names_no_node=True,
    )
    DUPLICATE_HOST = Row(
        text="duplicate-host",
        meaning="two names lead to one node, which took part once; no node is blamed",
        action="name each node once; on Kubernetes, let pods request all GPUs of a node",
        owner=Owner.USER,
        names_no_node=True,
    )
    KEY_REFUSED = Row(
        text="key-refused",
        meaning="the host refused the ssh key",
        action="install the key for that user, and read the host's sshd log",
        owner=Owner.USER,
        permanent=True,
        no_login=True,
    )
    HOST_KEY_MISMATCH = Row(
        text="host-key-mismatch",
        meaning="the host key differs from the pinned one: another machine, or a reinstalled host",
        action="find out which machine has that name now, then update known_hosts",
        owner=Owner.USER,
        permanent=True,
        no_login=True,
    )
    HOST_KEY_UNKNOWN = Row(
        text="host-key-unknown",
        meaning="ssh knows no key of the host; no node is blamed",
        action="log in once by hand and compare the fingerprint, or add its key to known_hosts",
        owner=Owner.USER,
        permanent=True,
        no_login=True,
        names_no_node=True,
    )
    # A host or a rank that was lost during the run.
    HOST_DIED = Row(
        text="host-died",
        meaning="the node stopped answering during the run",
        action="read its console and system log, remove it, and ask the provider to replace it",
        owner=Owner.PROVIDER,
        root_cause=True,
        ends_launch=True,
        loses_host=True,
    )
    CUT_OFF = Row(
        text="cut-off",
        meaning="the node no longer answered the first node during the run, but another node",
        action="check switches, routes and firewalls between the first node and it; both may be "
        "good",
        owner=Owner.FABRIC,
        root_cause=True,
        ends_launch=True,
        loses_host=True,
    )
    RANK_HUNG = Row(
        text="rank-hung",
        meaning="a rank stopped making progress while the others waited for it",
        action="check the node's kernel log, its GPU (Xid) and NIC errors, then run the step again",
        owner=Owner.NODE,
        ends_launch=True,
    )
    TIMED_OUT = Row(
        text="timed-out",
        meaning="the step exceeded its time limit, and no single rank could be blamed",
        action="read the step's log; if its ranks still made progress, give the step a longer "
        "`timeout`; run `pairs` over the same nodes to find slow or stuck nodes",
        owner=Owner.USER,
        consequence=True,
        ends_launch=True,
    )
    CRASHED = Row(
        text="crashed",
        meaning="a program ended with an error",
        action="read the end of the step's log",
        owner=Owner.USER,
        consequence=True,
        ends_launch=True,
    )
    OUT_OF_MEMORY = Row(
        text="out-of-memory",
        meaning="a program needed more memory than the GPU or node had free",
        action="end other programs that use the GPU, or give the check a smaller size, batch or "
        "model",
        owner=Owner.USER,
        ends_launch=True,
    )
    LAUNCH_FAILED = Row(
        text="launch-failed",
        meaning="the ranks could not be started",
        action="read the step's log; check that MPI is the same on all nodes and may open "
        "connections",
        owner=Owner.USER,
        consequence=True,
        permanent=True,
    )
    RANK_COUNT = Row(
        text="rank-count",
        meaning="the ranks that took part are not exactly the planned ones",
        action="check the host file and slots; MPI may have run on the first node only, or the "
        "program was built without it (nccl-tests: `make MPI=1`)",
        owner=Owner.USER,
        follows_no_gpu=True,
    )
    WRONG_COMMAND = Row(
        text="wrong-command",
        meaning="the command, its settings or the limits of its container do not fit these nodes",
        action="change what the message names, and run again; no node is to blame",
        owner=Owner.USER,
        ends_launch=True,
        names_no_node=True,
    )
    WRONG_IMAGE = Row(
        text="wrong-image",
        meaning="the image, or an installed program, lacks what the command needs",
        action="install or build what the message names, on all nodes; no node is to blame",
        owner=Owner.USER,
        ends_launch=True,
        names_no_node=True,
    )
    NETWORK_FAILED = Row(
        text="network-failed",
        meaning="nodes could not connect to each other, or lost data between them",
        action="check what the message names: interface, NIC, cable, switch, firewall; run `pairs` "
        "over the same nodes to find a bad node or link",
        owner=Owner.FABRIC,
        ends_launch=True,
    )
    UNKILLABLE = Row(
        text="unkillable",
        meaning="a process of a step could not be killed because it hangs in the kernel",
        action="reboot the node; find the driver that hangs in its kernel log",
        owner=Owner.NODE,
        root_cause=True,
        ends_launch=True,
        loses_host=True,
    )
    # Wrong results.
    WRONG_DATA = Row(
        text="wrong-data",
        meaning="received data was wrong: memory, a GPU, a link or a NIC corrupts data silently",
        action="take the node out of use at once; run the step again without it to be sure",
        owner=Owner.PROVIDER,
        judgement=Judgement.CORRECTNESS,
    )
    WRONG_RESULT = Row(
        text="wrong-result",
        meaning="a GPU (or CPU) computed wrong numbers from correct data, without an error",
        action="take the GPU out of use at once; run `gemm` on its host again to be sure",
        owner=Owner.PROVIDER,
        judgement=Judgement.CORRECTNESS,
        wrong_numbers=True,
    )
    NOT_FINITE = Row(
        text="not-finite",
        meaning="a result is not a finite number",
        action="read the step's log; suspect the device that computed it",
        owner=Owner.NODE,
        judgement=Judgement.CORRECTNESS,
        wrong_numbers=True,
    )
    PARAMETERS_DIFFER = Row(
        text="parameters-differ",
        meaning="after training, the model of one rank differs from the other ranks' model",
        action="take the node out of use; its GPU or memory computes or receives wrong numbers",
        owner=Owner.PROVIDER,
        judgement=Judgement.CORRECTNESS,
    )
    GRADIENTS_DIFFER = Row(
        text="gradients-differ",
        meaning="a rank computes a different gradient from the same samples and parameters",
        action="take the GPU out of use; run the step again without it to be sure",
        owner=Owner.PROVIDER,
        judgement=Judgement.CORRECTNESS,
    )
    LOSS_DIFFERS = Row(
        text="loss-differs",
        meaning="the training loss differs from that of healthy hardware with this seed",
        action="run `train` on each node alone and compare the curves to find the node that "
        "differs",
        owner=Owner.USER,
        judgement=Judgement.CORRECTNESS,
    )
    LOSS_NOT_FALLING = Row(
        text="loss-not-falling",
        meaning="the training loss did not fall as far as on healthy hardware",
        action="run `train` on each node alone to find the node that fails",
        owner=Owner.USER,
        judgement=Judgement.CORRECTNESS,
    )
    # Too slow.
    BELOW_REFERENCE = Row(
        text="below-reference",
        meaning="a measurement is below what this machine should reach",
        action="run the command of its log by hand, and compare with a node that is good",
        action_of_check={
            **dict.fromkeys(
                _COLLECTIVES,
                "inside a node, check NVLink (`nvidia-smi nvlink -s`) and the settings of NCCL; "
                "between nodes, check which network NCCL's log shows, then run `pairs` to find a "
                "slow node",
            ),
            "gemm": "compare clocks, power and temperature of the GPUs under load (`nvidia-smi -q "
            "-d PERFORMANCE,CLOCK,POWER`), remove limits, and repeat with `--only gemm`",
            "memory": "check the memory clock and remapped rows (`nvidia-smi -q -d "
            "CLOCK,ROW_REMAPPER`) and, for copies, the PCIe link; reset the GPU, and repeat with "
            "`--only memory`",
            "burn": "check fans, heat sinks, power supplies and power limits while it runs "
            "(`nvidia-smi -q -d PERFORMANCE,TEMPERATURE`); for `all-gather`, NVLink",
            "nic-loop": "check width and speed of the NIC's PCIe link (`lspci -vv`), ACS, IOMMU "
            "and nvidia-peermem or dma-buf, and repeat with `--only nic-loop`",
            "latency": "check the CPU's governor and idle states, the CPUs that ranks are bound to "
            "and, between nodes, which network NCCL's log shows",
            "train": "if `gemm` and the collectives of this run are good, look for slow CPUs and "
            "other programs on the nodes; else repair what they show first",
            "connectivity": "check the network that MPI uses: its interface, its route and the "
            "load of the nodes",
            "script": "read the log of the script, and compare the nodes in it",
        },
        owner=Owner.USER,
        follows_no_gpu=True,
        slow=True,
    )
    BELOW_EXPECTED = Row(
        text="below-expected",
        meaning="a measurement is not bad enough to fail, but healthy machines with good settings "
        "reach more",
        action="check power limits and the settings of NCCL and the network, and repeat; if your "
        "site cannot reach more, state that with `--expect`",
        action_of_check={
            "sendrecv": "on more than 4 nodes, NCCL sends to each peer through one channel, about "
            "14 GB/s on any NIC, unless NCCL_NCHANNELS_PER_NET_PEER is set, as accept does: set it "
            "to 4 and repeat; if it was set, check the settings of NCCL and the network"
        },
        owner=Owner.USER,
        follows_no_gpu=True,
        slow=True,
    )
    PAUSES = Row(
        text="pauses",
        meaning="single repetitions took at least 100 ms longer than the others",
        action="look for links that go down for a moment (`carrier_changes`, the switches' logs) "
        "and for programs that stop the ranks; then repeat",
        owner=Owner.FABRIC,
        judgement=Judgement.ABSOLUTE,
    )
    NVLS_OFF = Row(
        text="nvls-off",
        meaning="NCCL could not use NVLS, the reductions in NVSwitch, which this machine has",
        action="check the fabric manager, nvidia-imex and the driver on the node",
        owner=Owner.NODE,
        judgement=Judgement.CORRECTNESS,
    )
    NVLINK_DOMAIN_OFF = Row(
        text="nvlink-domain-off",
        meaning="NCCL did not use NVLink between hosts of one NVLink domain",
        action="run `nvidia-imex-ctl -N` on these nodes, and check nvidia-imex, the IMEX channels "
        "and NCCL_MNNVL_ENABLE and NCCL_CUMEM_ENABLE",
        owner=Owner.FABRIC,
        judgement=Judgement.CORRECTNESS,
    )
    SLOW_OUTLIER = Row(
        text="slow-outlier",
        meaning="clearly slower than its peers in the same run",
        action="replace the node, or have its links, NICs and GPUs (clocks, throttling) checked",
        owner=Owner.NODE,
        follows_no_gpu=True,
        slow=True,
        relative=True,
    )
    SLOW_NETWORK = Row(
        text="slow-network",
        meaning="pairs of nodes are slow or fail, and no single node explains it",
        action="check leaf and spine ports: error counters, adaptive routing, FEC, PFC pauses; "
        "then measure the same pairs again; do not drain nodes for it",
        owner=Owner.FABRIC,
        follows_no_gpu=True,
        slow=True,
        relative=True,
    )
    UNPROVEN = Row(
        text="unproven",
        meaning="bad, but measured too few times to tell which part is at fault",
        action="measure the same pair again, at last with nothing else running, and both nodes "
        "with other partners",
        owner=Owner.USER,
        not_judged=True,
    )
    INTERMITTENT = Row(
        text="intermittent",
        meaning="slow in some of its executions and fine in others, in the same run",
        action="measure it again, several times; check the error counters of its links and its "
        "clocks",
        owner=Owner.NODE,
        follows_no_gpu=True,
        slow=True,
        relative=True,
    )
    TRANSPORT_FALLBACK = Row(
        text="transport-fallback",
        meaning="NCCL did not use the expected network, or used a slower path: sockets, no RDMA",
        action="check that the network plugin is installed and its settings reached the ranks",
        owner=Owner.USER,
        follows_no_gpu=True,
    )
    # Missing or damaged output.
    INCOMPLETE_LOG = Row(
        text="incomplete-log",
        meaning="the output is cut off",
        action="run the step again; if it was killed, look for the out-of-memory killer and "
        "full disks",
        owner=Owner.USER,
        consequence=True,
        no_result=True,
    )
    PARTIAL_LOG = Row(
        text="partial-log",
        meaning="only part of the output is present",
        action="judge the complete log",
        action_of_check={
            "health": "judge all files of the node together: the output of `nvidia-smi -q`, of "
            "`nvidia-smi nvlink -s` and its kernel log; `nvidia-bug-report.sh` collects them"
        },
        owner=Owner.USER,
        consequence=True,
        no_result=True,
        not_judged=True,
    )
    JOB_FAILED = Row(
        text="job-failed",
        meaning="a file beside the logs shows a job that failed, and not on which nodes",
        action="find out from the quoted line why it failed; if it ran on these nodes, measure "
        "them again, else judge the logs without that file",
        owner=Owner.USER,
        not_judged=True,
    )
    NO_MEASUREMENT = Row(
        text="no-measurement",
        meaning="a step ended without its measurement",
        action="read the step's log",
        owner=Owner.USER,
        consequence=True,
        no_result=True,
    )
    UNPARSABLE = Row(
        text="unparsable",
        meaning="a line of the output cannot be read",
        action="read the step's log; if it looks right, report it as a defect of accept",
        owner=Owner.USER,
        consequence=True,
        no_result=True,
    )
    RESULTS_UNCHECKED = Row(
        text="results-unchecked",
        meaning="the results were not checked, so wrong data would not show",
        action="run it again without `-c 0`, which turns the check of the results off",
        owner=Owner.USER,
        judgement=Judgement.CORRECTNESS,
        not_judged=True,
    )
    TOP_SIZE_MISSING = Row(
        text="top-size-missing",
        meaning="the largest message was never measured, so the full speed is unknown",
        action="check whether memory was too small, or lower the check's `max`",
        owner=Owner.USER,
        follows_no_gpu=True,
    )
    EVIDENCE_MISSING = Row(
        text="evidence-missing",
        meaning="a planned execution has no record",
        action="collect the evidence again; if it is gone, run again",
        action_of_check={
            "hosts": "judge the complete evidence, or complete logs with their lists of devices"
        },
        owner=Owner.USER,
        not_tested=True,
    )
    # Problems of the host that existed before the run.
    DISK_FULL = Row(
        text="disk-full",
        meaning="a disk that the run writes to is full",
        action="free space in the run folder's file system",
        owner=Owner.NODE,
        root_cause=True,
        permanent=True,
    )
    GPU_MISSING = Row(
        text="gpu-missing",
        meaning="the node shows fewer GPUs than the machine has",
        action="search the kernel log for Xid errors and GPUs off the bus; have the node repaired",
        owner=Owner.PROVIDER,
        permanent=True,
        no_gpu=True,
        sets_aside=True,
    )
    GPU_UNUSABLE = Row(
        text="gpu-unusable",
        meaning="a GPU is on the PCI bus, but the driver does not show it or it is not usable",
        action="check that the driver is loaded (`nvidia-smi`), then read the kernel log",
        owner=Owner.NODE,
        no_gpu=True,
        sets_aside=True,
    )
    DRIVER_MISMATCH = Row(
        text="driver-mismatch",
        meaning="the library of NVIDIA's driver and its kernel module have different versions, so "
        "no GPU is usable",
        action="reboot the node, or end all programs that use its GPUs and reload the modules "
        "(`rmmod nvidia_uvm nvidia_drm nvidia_modeset nvidia`, `modprobe nvidia`); in a container, "
        "mount the library of the node",
        owner=Owner.NODE,
        permanent=True,
        no_gpu=True,
        sets_aside=True,
    )
    GPU_PERMISSION = Row(
        text="gpu-permission",
        meaning="the run has no permission to use a GPU",
        action="give the run the GPUs: in a container by its runtime (`--gpus all`, a device "
        "plugin), in a job by the scheduler; else the account needs access to /dev/nvidia*",
        owner=Owner.USER,
        permanent=True,
        sets_aside=True,
        not_tested=True,
    )
    DRIVER_TOO_OLD = Row(
        text="driver-too-old",
        meaning="the node's driver is too old for the CUDA that the programs were built with",
        action="update the driver, or use an image or Python whose CUDA fits it: "
        "`nvidia-smi` shows the newest CUDA that the driver supports",
        owner=Owner.NODE,
        permanent=True,
        not_tested=True,
    )
    GPU_LOST = Row(
        text="gpu-lost",
        meaning="the driver lost the GPU, or reports an error instead of its values",
        action="read the kernel log for its Xid, reboot the node, and have the GPU replaced if it "
        "happens again",
        owner=Owner.PROVIDER,
        judgement=Judgement.ABSOLUTE,
        no_gpu=True,
        sets_aside=True,
    )
    GPU_UNREPORTED = Row(
        text="gpu-unreported",
        meaning="a GPU does not report a reading that its machine or most other GPUs have",
        action="compare `nvidia-smi -q` of the GPU with that of another, and their drivers; reset "
        "the GPU or reboot the node, then run again",
        owner=Owner.NODE,
        not_judged=True,
    )
    FABRIC_MANAGER = Row(
        text="fabric-manager",
        meaning="the GPU has not joined its NVLink fabric, or the fabric is degraded",
        action="check nvidia-fabricmanager (and nvidia-imex between nodes) and its log, restart "
        "it, then reset the GPUs",
        owner=Owner.NODE,
        no_gpu=True,
        sets_aside=True,
    )
    GPU_SETTINGS = Row(
        text="gpu-settings",
        meaning="a setting of the GPU reduces what it can do: ECC, power limit, clocks",
        action="correct the named setting: `nvidia-smi -e 1`, `-pl WATTS`, `-rac`; then reset the "
        "GPU",
        owner=Owner.NODE,
        judgement=Judgement.CONSISTENCY,
    )
    GPU_MODE = Row(
        text="gpu-mode",
        meaning="MIG divides the GPU, or its compute mode does not allow several processes",
        action="turn it off: `nvidia-smi -mig 0` and a reset of the GPU, or `nvidia-smi -c 0`",
        owner=Owner.NODE,
        judgement=Judgement.CONSISTENCY,
        sets_aside=True,
    )
    GPU_RESET_REQUIRED = Row(
        text="gpu-reset-required",
        meaning="the GPU needs a reset before it can be used, to repair its memory or after an "
        "error",
        action="reset the GPU (`nvidia-smi --gpu-reset`) or reboot the node, then run again",
        owner=Owner.NODE,
        judgement=Judgement.ABSOLUTE,
        sets_aside=True,
    )
    GPU_BUSY = Row(
        text="gpu-busy",
        meaning="other processes use a GPU, so it is not measured",
        action="wait for them, end them, or add `--busy-ok`",
        owner=Owner.USER,
    )
    GPU_LIST = Row(
        text="gpu-list",
        meaning="CUDA_VISIBLE_DEVICES does not give the job the GPUs that the run tests",
        action="correct it in the environment of the run: `unset CUDA_VISIBLE_DEVICES` tests all "
        "GPUs, and `--gpus-per-node N` some; in a job, request whole GPUs from the scheduler",
        owner=Owner.USER,
        sets_aside=True,
        not_tested=True,
    )
    GPU_DUPLICATE = Row(
        text="gpu-duplicate",
        meaning="one GPU appears twice: two names for one node, or two ranks on one GPU",
        action="check the list of hosts for aliases, and the GPUs that each rank sees",
        owner=Owner.USER,
        judgement=Judgement.CONSISTENCY,
    )
    GPU_ECC = Row(
        text="gpu-ecc",
        meaning="the GPU had memory errors that it could not correct",
        action="have the GPU reset or replaced; it may return wrong data",
        owner=Owner.PROVIDER,
    )
    GPU_REMAP_FAILED = Row(
        text="gpu-remap-failed",
        meaning="the GPU has no spare memory row left for a damaged one",
        action="have the GPU replaced",
        owner=Owner.PROVIDER,
        judgement=Judgement.ABSOLUTE,
        sets_aside=True,
    )
    # Errors of devices, most of them during a step.
    GPU_XID = Row(
        text="gpu-xid",
        meaning="the driver reported an error of the GPU or of an NVSwitch (Xid) while a step ran, "
        "or before, without a reset since",
        action="look up the number in NVIDIA's Xid catalog; have the GPU reset or replaced",
        owner=Owner.PROVIDER,
        judgement=Judgement.ABSOLUTE,
    )
    GPU_ROW_REMAP = Row(
        text="gpu-row-remap",
        meaning="the GPU remapped a damaged part of its memory",
        action="reset the GPU; if it happens again or the remapping failed, have the GPU replaced",
        owner=Owner.NODE,
        judgement=Judgement.ABSOLUTE,
    )
    GPU_THROTTLED = Row(
        text="gpu-throttled",
        meaning="the GPU was slowed by heat or by its power supply",
        action="check its cooling and the node's power supplies; compare it with its neighbors",
        owner=Owner.NODE,
        judgement=Judgement.ABSOLUTE,
    )
    GPU_DIAGNOSTIC = Row(
        text="gpu-diagnostic",
        meaning="a diagnostic of the GPU's maker failed on it",
        action="run the diagnostic again on an idle node; if it fails again, have the GPU replaced",
        action_of_check=dict.fromkeys(
            ("dcgm", "health"),
            "run the test again on an idle node (`dcgmi diag -r 3 -i GPU`); if it fails again, "
            "have the GPU replaced",
        ),
        owner=Owner.PROVIDER,
        judgement=Judgement.ABSOLUTE,
    )
    NVLINK_DOWN = Row(
        text="nvlink-down",
        meaning="fewer NVLinks of the GPU are active than it has",
        action="reset the GPUs; if it stays, have the GPU, its baseboard or cable replaced",
        owner=Owner.PROVIDER,
        judgement=Judgement.ABSOLUTE,
    )
    NVLINK_ERRORS = Row(
        text="nvlink-errors",
        meaning="an NVLink replayed data, or had to recover",
        action="reset the GPUs; if it happens again, have the GPU, its baseboard or cable replaced",
        owner=Owner.PROVIDER,
        judgement=Judgement.ABSOLUTE,
    )
    PCIE_ERRORS = Row(
        text="pcie-errors",
        meaning="the PCIe link of a GPU or NIC has more errors than a healthy link",
        action="have the card reseated, then its riser or the card replaced",
        owner=Owner.PROVIDER,
        judgement=Judgement.ABSOLUTE,
    )
    PCIE_DEGRADED = Row(
        text="pcie-degraded",
        meaning="a PCIe link is narrower or slower than the hardware supports",
        action="reboot the node; if that does not help, have the card reseated or replaced",
        owner=Owner.NODE,
        judgement=Judgement.ABSOLUTE,
    )
    LINK_DOWN = Row(
        text="link-down",
        meaning="a network link went down or came back slower while a step ran",
        action="check the cable and the port at its other end, and read the switch's log",
        owner=Owner.FABRIC,
        judgement=Judgement.ABSOLUTE,
    )
    NIC_ERRORS = Row(
        text="nic-errors",
        meaning="a network port has more errors than a healthy link",
        action="have the cable or transceiver cleaned or replaced, then the port",
        owner=Owner.FABRIC,
        judgement=Judgement.ABSOLUTE,
    )
    NIC_LOOP_FAILED = Row(
        text="nic-loop-failed",
        meaning="data does not pass through the NIC and back into memory",
        action="read the step's log; check /dev/infiniband, the limit of locked memory, "
        "nvidia-peermem or dma-buf, then the NIC in the kernel log",
        owner=Owner.NODE,
        judgement=Judgement.POPULATION,
    )
    HOST_ERRORS = Row(
        text="host-errors",
        meaning="the node's memory had uncorrectable errors",
        action="have the named memory module replaced",
        owner=Owner.PROVIDER,
        judgement=Judgement.ABSOLUTE,
    )
    INVENTORY_MISMATCH = Row(
        text="inventory-mismatch",
        meaning="the node differs from the others or from its machine type",
        action="check the named property by hand; have the node corrected or removed",
        owner=Owner.NODE,
        judgement=Judgement.CONSISTENCY,
    )
    CLOCK_SKEW = Row(
        text="clock-skew",
        meaning="the node's clock differs from the others'",
        action="start time synchronization (chrony, systemd-timesyncd) on the node",
        owner=Owner.NODE,
        judgement=Judgement.CONSISTENCY,
    )
    MEMLOCK_LIMITED = Row(
        text="memlock-limited",
        meaning="locked memory is limited, so RDMA cannot register its buffers",
        action="raise the limit (`ulimit -l unlimited`) for the user that starts the ranks",
        owner=Owner.NODE,
    )
    # Not tested, or not judged.
    TOOL_MISSING = Row(
        text="tool-missing",
        meaning="a program that the check needs is missing",
        action="install it on the node, or set its path in the site file; `accept doctor` lists "
        "all",
        owner=Owner.USER,
        permanent=True,
        not_tested=True,
    )
    NO_TABLE = Row(
        text="no-table",
        meaning="a step ended with status 0 and printed no results of nccl-tests",
        action="let your script print the output of nccl-tests; if it is not yours, read its log",
        owner=Owner.USER,
        consequence=True,
        no_result=True,
        not_tested=True,
    )
    OVER_BUDGET = Row(
        text="over-budget",
        meaning="the time budget was too small for it",
        action="raise `--budget`",
        owner=Owner.USER,
        not_tested=True,
    )
    DESELECTED = Row(
        text="deselected",
        meaning="an option left it out of the run",
        action="run it without `--only`, `--skip` or `--fail-fast`",
        owner=Owner.USER,
        not_tested=True,
    )
    NO_REFERENCE = Row(
        text="no-reference",
        meaning="no expected value is known for the measurement",
        action="state what it should be: `--expect 'CHECK@SIZE>=VALUE'`, or `expect:` in the "
        "site file",
        owner=Owner.USER,
        not_judged=True,
    )
    SIZE_NOT_MEASURED = Row(
        text="size-not-measured",
        meaning="the largest message measured is smaller than that of the bound, and does not yet "
        "reach it",
        action="measure up to the size of the bound, such as with `-e 8G`, and judge that log",
        owner=Owner.USER,
        not_judged=True,
    )
    NICS_NOT_TESTED = Row(
        text="nics-not-tested",
        meaning="the suite measures the network, but no step sent data over the NICs of a node",
        action="run a suite with a `profile` that forces traffic over NICs, such as `standard`; "
        "check that NCCL_DEBUG is INFO, because only NCCL's log shows it",
        owner=Owner.USER,
        not_judged=True,
    )
    UNSUPPORTED_VERSIONS = Row(
        text="unsupported-versions",
        meaning="NCCL, its network plugin, CUDA and the driver are not supported together by "
        "their makers",
        action="use an image or a plugin with versions that the named source lists, and run again",
        owner=Owner.USER,
        judgement=Judgement.CONSISTENCY,
        not_judged=True,
    )
    SCRIPT_FAILED = Row(
        text="script-failed",
        meaning="the user's script ended with a status other than 0",
        action="read the script's log",
        owner=Owner.USER,
        ends_launch=True,
    )
    TOOL_FAILED = Row(
        text="tool-failed",
        meaning="a program of others, which a check runs, reported a fault or did not end well",
        action="read its output in the step's log; run its command by hand on that node",
        owner=Owner.NODE,
    )
    TOOL_UNUSABLE = Row(
        text="tool-unusable",
        meaning="a program is installed, but the node lacks what it needs: version, space, rights",
        action="provide what the message names, or change the check's parameters",
        owner=Owner.USER,
        permanent=True,
        not_tested=True,
    )
    # Not on this list: reported by a program or an evidence folder of another version.
    UNKNOWN = Row(
        text="unknown-cause",
        meaning="the reported cause is not on the list of this version of accept",
        action="read the message, which starts with the reported cause, and the step's log",
        owner=Owner.USER,
    )


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


_BY_TEXT = {cause.row.text: cause for cause in Cause}


def from_text(text: str) -> Cause | None:
    """Return the cause called `text`; None if there is none."""
    return _BY_TEXT.get(text)


def reported(text: str, message: str) -> tuple[Cause, str]:
    """Return the cause called `text`, and the message.

    If the cause is unknown, the message starts with its text.
    """
    cause = from_text(text)
    if cause is not None:
        return cause, message
    return Cause.UNKNOWN, f"{text[:64]}: {message}" if message else text[:64]
