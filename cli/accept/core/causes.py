"""Define the closed list of causes. Every failed node, step or check has one of them.

Each cause has one line with its meaning and one with the next action. `docs/causes.md` has a
section for each: how to confirm it by hand, and what to report to the provider.
"""

from __future__ import annotations

from typing import NamedTuple


class Cause(NamedTuple):
    """The meaning of a cause and the next action, one line each."""

    meaning: str
    action: str


CAUSES: dict[str, Cause] = {
    # A host that never took part.
    "unreachable-dns": Cause(
        "the host's name has no address",
        "check the name, and that the host exists; `getent hosts NAME` from the first host",
    ),
    "unreachable-refused": Cause(
        "the host answers, but nothing listens on its ssh port",
        "start the host's sshd, or find out why it stopped",
    ),
    "unreachable-timeout": Cause(
        "the host did not answer before the deadline",
        "check that it is powered on, then check routes and firewalls between the hosts",
    ),
    "key-refused": Cause(
        "the host refused the ssh key",
        "install the key for that user, and read the host's sshd log",
    ),
    "host-key-mismatch": Cause(
        "the host key differs from the pinned one: another machine, or a reinstalled host",
        "find out which machine has that name now, then update known_hosts",
    ),
    # A host or a rank that was lost during the run.
    "host-died": Cause(
        "the host stopped answering during a step",
        "read its console and system log, remove it, and ask the provider to replace it",
    ),
    "rank-hung": Cause(
        "a rank stopped making progress while the others waited for it",
        "check the host's kernel log, its GPU (Xid) and NIC errors, then run the step again",
    ),
    "timed-out": Cause(
        "the step exceeded its time limit, and no single rank could be blamed",
        "read the step's log; if its ranks still made progress, give the step a longer "
        "`timeout`; run `pairs` over the same hosts to find slow or stuck hosts",
    ),
    "crashed": Cause(
        "a program ended with an error",
        "read the end of the step's log",
    ),
    "launch-failed": Cause(
        "the ranks could not be started",
        "read the step's log; check that MPI is the same on all hosts and may open connections",
    ),
    "rank-count": Cause(
        "the ranks that took part are not exactly the planned ones",
        "check the host file and slots; MPI may have run on the first host only",
    ),
    "unkillable": Cause(
        "a process of a step could not be killed because it hangs in the kernel",
        "reboot the host; find the driver that hangs in its kernel log",
    ),
    # Wrong results.
    "wrong-data": Cause(
        "data arrived wrong: memory, a GPU, a link or a NIC corrupts data silently",
        "take the host out of use at once; run the step again without it to be sure",
    ),
    "wrong-result": Cause(
        "a GPU (or CPU) computed wrong numbers from correct data, without an error",
        "take the GPU out of use at once; run `gemm` on its host again to be sure",
    ),
    "not-finite": Cause(
        "a result is not a finite number",
        "read the step's log; suspect the device that computed it",
    ),
    "parameters-differ": Cause(
        "after training, the model of one rank differs from the other ranks' model",
        "take the host out of use; its GPU or memory computes or receives wrong numbers",
    ),
    "gradients-differ": Cause(
        "a rank computes a different gradient from the same samples and parameters",
        "take the GPU out of use; run the step again without it to be sure",
    ),
    "loss-differs": Cause(
        "the training loss differs from that of healthy hardware with this seed",
        "run `train` on each host alone and compare the curves to find the host that differs",
    ),
    "loss-not-falling": Cause(
        "the training loss did not fall as far as on healthy hardware",
        "run `train` on each host alone to find the host that fails",
    ),
    # Too slow.
    "below-reference": Cause(
        "a measurement is below what this machine should reach",
        "check the NCCL settings and the transport first, then run `pairs` to find a slow host",
    ),
    "slow-outlier": Cause(
        "clearly slower than its peers in the same run",
        "replace the host, or have its links, NICs and GPUs (clocks, throttling) checked",
    ),
    "intermittent": Cause(
        "slow in some of its executions and fine in others, in the same run",
        "measure it again, several times; check the error counters of its links and its clocks",
    ),
    "transport-fallback": Cause(
        "NCCL used another network than expected, or a slower path: sockets, no RDMA",
        "check that the network plugin is installed and its settings reached the ranks",
    ),
    # Missing or damaged output.
    "incomplete-log": Cause(
        "the output is cut off",
        "run the step again; if it was killed, look for the out-of-memory killer and full disks",
    ),
    "no-measurement": Cause(
        "a step ended without its measurement",
        "read the step's log",
    ),
    "unparsable": Cause(
        "a line of the output cannot be read",
        "read the step's log; if it looks right, report it as a defect of accept",
    ),
    "top-size-missing": Cause(
        "the largest message was never measured, so the full speed is unknown",
        "check for too little memory, or lower the check's `max`",
    ),
    "evidence-missing": Cause(
        "a planned execution has no record",
        "collect the evidence again; if it is gone, run again",
    ),
    # Problems of the host that existed before the run.
    "disk-full": Cause(
        "a disk that the run writes to is full",
        "free space in the run folder's file system",
    ),
    "gpu-missing": Cause(
        "the host shows fewer GPUs than the machine has",
        "search the kernel log for Xid errors and GPUs off the bus; have the host repaired",
    ),
    "gpu-unusable": Cause(
        "a GPU is on the PCI bus, but the driver does not show it or it is not usable",
        "check that the driver is loaded (`nvidia-smi`), then read the kernel log",
    ),
    "gpu-busy": Cause(
        "other processes use a GPU, so it is not measured",
        "wait for them, end them, or add `--busy-ok`",
    ),
    "gpu-duplicate": Cause(
        "one GPU appears twice: two names for one host, or two ranks on one GPU",
        "check the list of hosts for aliases, and the GPUs that each rank sees",
    ),
    "gpu-ecc": Cause(
        "the GPU had memory errors that it could not correct",
        "have the GPU reset or replaced; it may return wrong data",
    ),
    # Errors of devices during a step.
    "gpu-xid": Cause(
        "the driver reported an error of the GPU or of an NVSwitch (Xid) while a step ran",
        "look up the number in NVIDIA's Xid catalog; have the GPU reset or replaced",
    ),
    "gpu-row-remap": Cause(
        "the GPU remapped a damaged part of its memory",
        "reset the GPU; if it happens again or the remapping failed, have the GPU replaced",
    ),
    "gpu-throttled": Cause(
        "the GPU was slowed by heat or by its power supply",
        "check its cooling and the host's power supplies; compare it with its neighbors",
    ),
    "nvlink-errors": Cause(
        "an NVLink replayed data, had to recover, or was lost",
        "reset the GPUs; if it happens again, have the GPU, its baseboard or cable replaced",
    ),
    "pcie-errors": Cause(
        "the GPU's PCIe link has more replays than a healthy link",
        "have the GPU reseated, then its riser or the GPU replaced",
    ),
    "pcie-degraded": Cause(
        "a PCIe link is narrower or slower than the hardware supports",
        "reboot the host; if that does not help, have the card reseated or replaced",
    ),
    "link-down": Cause(
        "a network link went down or came back slower while a step ran",
        "check the cable and the port at its other end, and read the switch's log",
    ),
    "nic-errors": Cause(
        "a network port has more errors than a healthy link",
        "have the cable or transceiver cleaned or replaced, then the port",
    ),
    "host-errors": Cause(
        "the host's memory had uncorrectable errors",
        "have the named memory module replaced",
    ),
    "inventory-mismatch": Cause(
        "the host differs from the others or from its machine type",
        "check the named property by hand; have the host corrected or removed",
    ),
    "clock-skew": Cause(
        "the host's clock differs from the others'",
        "start time synchronisation (chrony, systemd-timesyncd) on the host",
    ),
    "memlock-limited": Cause(
        "locked memory is limited, so RDMA cannot register its buffers",
        "raise the limit (`ulimit -l unlimited`) for the user that starts the ranks",
    ),
    # Not tested, or not judged.
    "tool-missing": Cause(
        "a program that the check needs is missing",
        "install it on the host, or set its path in the site file; `accept doctor` lists all",
    ),
    "over-budget": Cause(
        "the time budget was too small for it",
        "raise `--budget`",
    ),
    "no-reference": Cause(
        "no expected value is known for the measurement",
        "state what it should be: `--expect 'CHECK@SIZE>=VALUE'`, or `expect:` in the site file",
    ),
    "script-failed": Cause(
        "the user's script ended with a status other than 0",
        "read the script's log",
    ),
}

#: Causes of checks that did not run. Nothing is known to be broken.
NOT_TESTED = frozenset({"tool-missing", "over-budget", "evidence-missing"})

#: Causes that usually follow from another one and then add no information.
CONSEQUENCES = frozenset(
    {"crashed", "timed-out", "launch-failed", "incomplete-log", "no-measurement", "unparsable"}
)


#: Causes of an unusable GPU, and the causes that may follow and are then not blamed.
NO_GPU = frozenset({"gpu-missing", "gpu-unusable"})
FOLLOWS_NO_GPU = CONSEQUENCES | {
    *("rank-count", "below-reference", "slow-outlier", "intermittent"),
    *("transport-fallback", "top-size-missing"),
}


def meaning(cause: str) -> str:
    """Return the meaning of `cause` as one line, also for an unknown cause."""
    return CAUSES[cause].meaning if cause in CAUSES else "a cause that is not on the list"


def action(cause: str) -> str:
    """Return the next action for `cause` as one line."""
    return CAUSES[cause].action if cause in CAUSES else "read the step's log"
