"""Write commands that take bad nodes of a cluster out of service. `accept` never executes them."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from accept.config.kubernetes import NAME
from accept.core.causes import Cause
from accept.core.facts import mapping
from accept.core.safe_read import open_regular
from accept.core.verdict import Strength, Suspect, Verdict

#: Size of the largest file with nodes that is read.
_MAX_BYTES = 64 << 20


class Fault(StrEnum):
    """The kind of fault that a provider's report names; the values are Google's."""

    WRONG = "SILENT_DATA_CORRUPTION"
    GPU = "UNRECOVERABLE_GPU_ERROR"
    SLOW = "PERFORMANCE"


#: Causes in the hardware. A provider cannot do anything about others, such as a missing tool.
FAULTS = {
    **dict.fromkeys(
        (Cause.WRONG_DATA, Cause.WRONG_RESULT, Cause.PARAMETERS_DIFFER, Cause.GRADIENTS_DIFFER),
        Fault.WRONG,
    ),
    **dict.fromkeys(
        (
            Cause.GPU_MISSING,
            Cause.GPU_UNUSABLE,
            Cause.GPU_LOST,
            Cause.GPU_ECC,
            Cause.GPU_REMAP_FAILED,
            Cause.GPU_XID,
            Cause.NVLINK_DOWN,
        ),
        Fault.GPU,
    ),
    **dict.fromkeys(
        (
            Cause.SLOW_OUTLIER,
            Cause.SLOW_NETWORK,
            Cause.GPU_THROTTLED,
            Cause.NVLINK_ERRORS,
            Cause.PCIE_ERRORS,
            Cause.PCIE_DEGRADED,
            Cause.LINK_DOWN,
            Cause.NIC_ERRORS,
        ),
        Fault.SLOW,
    ),
}


@dataclass(frozen=True, kw_only=True)
class Provider:
    """A cloud: the form of `spec.providerID` of its nodes, and its command for a faulty host."""

    #: Pattern of the id. It matches only characters that a shell does not interpret.
    provider_id: str
    #: The command, with the groups of `provider_id`, `{fault}` and `{cause}` as placeholders.
    command: str
    faults: Mapping[Fault, str]
    source: str


_PROVIDERS = (
    Provider(
        provider_id=r"gce://(?P<project>[\w.:-]+)/(?P<zone>[\w-]+)/(?P<instance>[\w-]+)",
        command=(
            "gcloud compute instances report-host-as-faulty {instance} --project={project} "
            "--zone={zone} --disruption-schedule=IMMEDIATE "
            "--fault-reasons=behavior={fault},description={cause}"
        ),
        faults={fault: fault.value for fault in Fault},
        source="https://cloud.google.com/sdk/gcloud/reference/compute/instances/report-host-as-faulty",
    ),
    Provider(
        provider_id=r"aws:///(?P<region>[a-z]+(?:-[a-z]+)+-\d+)[\w-]*/(?P<instance>i-[0-9a-f]+)",
        command=(
            "aws ec2 report-instance-status --region {region} --instances {instance} "
            "--status impaired --reason-codes {fault} --description {cause}"
        ),
        faults={Fault.WRONG: "other", Fault.GPU: "other", Fault.SLOW: "performance-other"},
        source="https://docs.aws.amazon.com/cli/latest/reference/ec2/report-instance-status.html",
    ),
    # Azure's command moves the machine to another host; the others only report it or stop it.
    Provider(
        provider_id=r"azure://(?P<resource>(?:/[\w.-]+)+)",
        command=(
            "az rest --method post "
            '--url "https://management.azure.com{resource}/redeploy?api-version=2024-07-01"'
        ),
        faults=dict.fromkeys(Fault, ""),
        source=(
            "https://learn.microsoft.com/en-us/rest/api/compute/"
            "virtual-machine-scale-set-vms/redeploy"
        ),
    ),
)


def node_commands(verdict: Verdict, provider_ids: Mapping[str, str]) -> tuple[str, ...]:
    """Return the commands for the nodes that the verdict accuses; none if faults were injected.

    `provider_ids` are those of all nodes of the run by name; other hosts have no commands.
    """
    if verdict.injected:
        return ()
    accused: dict[str, Suspect] = {}
    for suspect in verdict.suspects:
        if not suspect.of_network and suspect.strength is not Strength.WEAK:
            for host in suspect.hosts:
                if host in provider_ids and re.fullmatch(NAME, host):
                    accused.setdefault(host, suspect)
    lines: list[str] = []
    for host, suspect in accused.items():
        lines += _commands(host, suspect, provider_ids[host])
    return tuple(lines)


def _commands(node: str, suspect: Suspect, provider_id: str) -> Iterator[str]:
    yield f"kubectl cordon {node}"
    yield f"kubectl label node {node} accept-cause={suspect.cause} --overwrite"
    fault = FAULTS.get(suspect.cause)
    for provider in _PROVIDERS if fault else ():
        found = re.fullmatch(provider.provider_id, provider_id, re.ASCII)
        if found and fault:
            named = {"fault": provider.faults[fault], "cause": suspect.cause.value}
            yield provider.command.format(**found.groupdict(), **named)


@dataclass(frozen=True, kw_only=True)
class SavedNode:
    """A node of a cluster, as `accept collect` saved it beside the evidence."""

    #: The provider's id of the machine; empty: none.
    provider_id: str
    labels: Mapping[str, str]


def saved_nodes(run: Path | None) -> dict[str, SavedNode]:
    """Return the nodes of a run's cluster by name; none for runs that were not on a cluster.

    `run` is the folder of a run of this workstation. Beside evidence of others, no signature
    covers which machine a node is.
    """
    if run is None:
        return {}
    try:
        with open_regular(run / "cluster" / "nodes.json") as file:
            nodes = json.loads(file.read(_MAX_BYTES))
    except (OSError, ValueError, RecursionError):
        return {}
    listed = [node for node in nodes if isinstance(node, dict)] if isinstance(nodes, list) else []
    return {
        str(node.get("name")): SavedNode(
            provider_id=str(node.get("providerID") or ""),
            labels={str(name): str(label) for name, label in mapping(node.get("labels")).items()},
        )
        for node in listed
    }


def saved_provider_ids(run: Path | None) -> dict[str, str]:
    """Return the provider's id of each of these nodes."""
    return {name: node.provider_id for name, node in saved_nodes(run).items()}
