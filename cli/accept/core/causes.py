"""The closed list of causes: every failed node, step or check has one of these.

Each has a line that says what it means, and one that says what to do. `docs/causes.md` has a
section for each: how to confirm it by hand, and what to tell the provider.
"""

from __future__ import annotations

from typing import NamedTuple


class Cause(NamedTuple):
    """One line on what a cause means, and one on what to do next."""

    meaning: str
    action: str


CAUSES: dict[str, Cause] = {
    # A host that never took part.
    "unreachable-dns": Cause(
        "the host's name has no address",
        "check the name, and that the host exists; `getent hosts NAME` from the first host",
    ),
    "unreachable-refused": Cause(
        "the host answers and nothing listens on its ssh port",
        "start the host's sshd, or look why it stopped",
    ),
    "unreachable-timeout": Cause(
        "the host did not answer before the deadline",
        "check that it is powered on, and the routes and firewalls between the hosts",
    ),
    "key-refused": Cause(
        "the host refused the ssh key",
        "install the key for that user, and look at the host's sshd log",
    ),
    "host-key-mismatch": Cause(
        "another host key than the pinned one answered: another machine, or a reinstalled one",
        "find out which machine has that name now, then update known_hosts",
    ),
    # A host or a rank that was lost on the way.
    "host-died": Cause(
        "the host stopped answering in the middle of a step",
        "read its console and system log, take it out, and ask the provider to replace it",
    ),
    "rank-hung": Cause(
        "a rank stopped making progress while the others waited for it",
        "look at the host's kernel log, its GPU (Xid) and NIC errors, then run the step again",
    ),
    "timed-out": Cause(
        "the step was not done within its time, and no single rank could be named",
        "read the step's log; where its ranks were still going on, give the step a longer "
        "`timeout`; run `pairs` over the same hosts to find who is slow or stuck",
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
        "not exactly the planned ranks took part",
        "check the host file and slots; MPI may have run on the first host only",
    ),
    "unkillable": Cause(
        "a process of a step survived being killed: it hangs in the kernel",
        "reboot the host; look in its kernel log for the driver it hangs in",
    ),
    # Wrong results.
    "wrong-data": Cause(
        "data arrived wrong: memory, a GPU, a link or a NIC corrupts silently",
        "take the host out of use at once; run the step again without it to be sure",
    ),
    "wrong-result": Cause(
        "a GPU (or CPU) computed wrong numbers from right data, without an error",
        "take the GPU out of use at once; run `gemm` on its host again to be sure",
    ),
    "not-finite": Cause(
        "a result is not a finite number",
        "read the step's log; suspect the device that computed it",
    ),
    "parameters-differ": Cause(
        "after training, a rank's model is not the one the others have",
        "take the host out of use; its GPU or memory computes or receives wrong numbers",
    ),
    "gradients-differ": Cause(
        "a rank computes another gradient than the others from the same samples and parameters",
        "take the GPU out of use; run the step again without it to be sure",
    ),
    "loss-differs": Cause(
        "the training loss is not the one that healthy hardware has with this seed",
        "run `train` on each host alone and compare the curves to find where it leaves it",
    ),
    "loss-not-falling": Cause(
        "the training loss did not fall as far as it does on healthy hardware",
        "run `train` on each host alone to find where it fails",
    ),
    # Too slow.
    "below-reference": Cause(
        "a measurement is below what this machine should reach",
        "check the NCCL settings and the transport first, then run `pairs` to find a slow host",
    ),
    "slow-outlier": Cause(
        "clearly slower than its equals in the same run",
        "swap the host out or have its links, NICs and GPUs (clocks, throttling) looked at",
    ),
    "intermittent": Cause(
        "slow in some of its executions and fine in others, in the same run",
        "measure it again, several times; look at its links' error counters and its clocks",
    ),
    "transport-fallback": Cause(
        "NCCL used another network than the machine promises, or a slower way: sockets, no RDMA",
        "check that the network plugin is installed and its settings reached the ranks",
    ),
    # Missing or damaged output.
    "incomplete-log": Cause(
        "the output breaks off before its end",
        "run the step again; if it was killed, look for the out-of-memory killer and full disks",
    ),
    "no-measurement": Cause(
        "a step ended without the measurement it was made for",
        "read the step's log",
    ),
    "unparsable": Cause(
        "a line of the output cannot be read",
        "read the step's log; if it looks right, report it as a defect of accept",
    ),
    "top-size-missing": Cause(
        "the largest message was never measured, so the full speed is unknown",
        "look for too little memory, or lower the check's `max`",
    ),
    "evidence-missing": Cause(
        "the plan has an execution of which there is no record",
        "collect the evidence again; if it is gone, run again",
    ),
    # The host as it was found.
    "disk-full": Cause(
        "a disk that the run writes to is full",
        "free space in the run folder's file system",
    ),
    "gpu-missing": Cause(
        "the host shows fewer GPUs than the machine has",
        "look in the kernel log for Xid errors and GPUs fallen off the bus; have the host repaired",
    ),
    "gpu-unusable": Cause(
        "a GPU is on the PCI bus and the driver does not show it, or it cannot be used",
        "check that the driver is loaded (`nvidia-smi`), then the kernel log",
    ),
    "gpu-busy": Cause(
        "somebody is using a GPU, so it is not measured",
        "wait for them, end their processes, or say `--busy-ok`",
    ),
    "gpu-duplicate": Cause(
        "one GPU appears twice: two names for one host, or two ranks on one GPU",
        "check the list of hosts for aliases and what each rank sees",
    ),
    "gpu-ecc": Cause(
        "the GPU counts memory errors that could not be corrected",
        "have the GPU reset or replaced; it may return wrong data",
    ),
    # What devices counted while a step ran.
    "gpu-xid": Cause(
        "the driver reported an error of the GPU or of an NVSwitch (Xid) while a step ran",
        "look the number up in NVIDIA's catalogue of Xids; have the GPU reset or replaced",
    ),
    "gpu-row-remap": Cause(
        "the GPU took a part of its memory out of use",
        "reset the GPU; where it happens again or the remapping failed, have it replaced",
    ),
    "gpu-throttled": Cause(
        "the GPU was slowed by heat or by its power supply",
        "look at its cooling and at the host's power supplies; compare with its neighbours",
    ),
    "nvlink-errors": Cause(
        "an NVLink had to send again or to recover, or was lost",
        "reset the GPUs; where it comes back, have the GPU, its baseboard or cable replaced",
    ),
    "pcie-errors": Cause(
        "the GPU's PCIe link repeats more than a healthy one does",
        "have the GPU reseated, then its riser or the GPU replaced",
    ),
    "pcie-degraded": Cause(
        "a PCIe link is narrower or slower than it can be",
        "reboot the host; where it stays, have the card reseated or replaced",
    ),
    "link-down": Cause(
        "a network link went down or came back slower while a step ran",
        "look at the cable and the port at its other end, and at the switch's log",
    ),
    "nic-errors": Cause(
        "a network port counts more errors than a healthy link",
        "have the cable or transceiver cleaned or replaced, then the port",
    ),
    "host-errors": Cause(
        "the host's memory had errors that could not be corrected",
        "have the named memory module replaced",
    ),
    "inventory-mismatch": Cause(
        "the host differs from the others or from its machine type",
        "compare the named property by hand; have the host made equal or taken out",
    ),
    "clock-skew": Cause(
        "the host's clock differs from the others'",
        "start time synchronisation (chrony, systemd-timesyncd) on the host",
    ),
    "memlock-limited": Cause(
        "locked memory is limited, so RDMA cannot register its buffers",
        "raise the limit (`ulimit -l unlimited`) for the user that starts the ranks",
    ),
    # Not tested, or without a measure.
    "tool-missing": Cause(
        "a program that the check needs is not there",
        "install it on the host, or name its path in the site file; `accept doctor` lists all",
    ),
    "over-budget": Cause(
        "the time budget left no room for it",
        "raise `--budget`",
    ),
    "no-reference": Cause(
        "there is nothing to hold the measurement against",
        "state what it should be: `--expect 'CHECK@SIZE>=VALUE'`, or `expect:` in the site file",
    ),
    "script-failed": Cause(
        "the user's script ended with a status other than 0",
        "read the script's log",
    ),
}

#: Causes that say a check did not run, not that something is broken.
NOT_TESTED = frozenset({"tool-missing", "over-budget", "evidence-missing"})

#: Causes that mostly follow from another one, and then say nothing of their own.
CONSEQUENCES = frozenset(
    {"crashed", "timed-out", "launch-failed", "incomplete-log", "no-measurement", "unparsable"}
)


#: A GPU that cannot be used, and what may follow from that and is then not blamed itself.
NO_GPU = frozenset({"gpu-missing", "gpu-unusable"})
FOLLOWS_NO_GPU = CONSEQUENCES | {
    *("rank-count", "below-reference", "slow-outlier", "intermittent"),
    *("transport-fallback", "top-size-missing"),
}


def meaning(cause: str) -> str:
    """What `cause` means, in one line; for a cause not on the list, that it is not."""
    return CAUSES[cause].meaning if cause in CAUSES else "a cause that is not on the list"


def action(cause: str) -> str:
    """What to do about `cause`, in one line."""
    return CAUSES[cause].action if cause in CAUSES else "read the step's log"
