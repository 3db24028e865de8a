"""Check and complete the settings of pods: image, nodes by name, GPUs of a pod, results."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

from accept.config.kubernetes import NAME, RESULTS, Kubernetes, MachineKubernetes, Results
from accept.config.machine import Machine
from accept.core.error_codes import Code
from accept.core.errors import BadInput
from accept.core.serde import escaped

#: Every pod repeats the list, and the API server stores all of them.
_MAX_NAMED_NODES = 256


def check_image(site: Kubernetes) -> None:
    """Raise BadInput if the site names no container image."""
    if not site.image:
        raise BadInput(
            "a run on Kubernetes needs a container image",
            code=Code.SITE_NO_IMAGE,
            hint="name it in the site file, kubernetes: {image: …}, and give --site; "
            "hosts over ssh need none: --hosts a,b,c",
        )


def include_nodes(site: Kubernetes, *, names: Sequence[str], nodes: int) -> Kubernetes:
    """Return the site's pod settings for a run on `nodes` nodes, or only on those in `names`.

    Raises BadInput if the node lists leave too few nodes, are too long, or hold an invalid name.
    """
    included = tuple(names) or site.include_nodes
    for name in (*included, *site.exclude_nodes):
        if not re.fullmatch(NAME, name):
            raise BadInput(
                f"{escaped(name)!r} is not a valid node name: only a-z, 0-9, '.' and '-'",
                code=Code.NODES_NAME,
                hint="kubectl get nodes lists their names",
            )
    excluded = [name for name in included if name in site.exclude_nodes]
    if excluded:
        raise BadInput(
            f"node {escaped(excluded[0])} is requested, but the site file excludes it",
            code=Code.NODES_EXCLUDED,
            hint="remove it from --nodes or includeNodes, or from excludeNodes",
        )
    named = len(included) + len(site.exclude_nodes)
    if named > _MAX_NAMED_NODES:
        raise BadInput(
            f"{named} nodes by name: at most {_MAX_NAMED_NODES} are possible, "
            "because every pod repeats them",
            code=Code.NODES_TOO_MANY_NAMES,
            hint="label them (kubectl label node … accept=yes) and name the label in the site file "
            "(kubernetes.nodeSelector), or let a queue choose: kubernetes.queue, --nodes NUMBER",
        )
    if included and len(included) < nodes:
        raise BadInput(
            f"{nodes} nodes requested, but includeNodes names only {len(included)}",
            code=Code.NODES_MISMATCH,
            hint="name more, or request fewer: --nodes",
        )
    return replace(site, include_nodes=included)


def gpus_of_pod(
    machine: Machine, site: Kubernetes, *, nodes: int, used: int | None
) -> tuple[int | None, int | None]:
    """Return the GPUs that a pod requests and the GPUs that are tested; None: all of a node's.

    `used` is the number of GPUs to test on each node, from the options or the site file. A pod
    requests only some GPUs of its node if the run has one node or the site sets gpusPerPod.
    Raises BadInput.
    """
    requested, count = site.gpus_per_pod, machine.gpus.count
    if requested is not None and used is not None and requested < used:
        raise BadInput(
            f"{used} GPUs of each node, but pods request only {requested}",
            code=Code.SITE_GPUS_PER_POD,
            hint="make gpusPerNode and kubernetes.gpusPerPod equal",
        )
    if count == "detect":
        requested = requested or used
        if requested is None and not _requests_gpus(machine.kubernetes):
            raise BadInput(
                f"pods must request GPUs, but machine {machine.name} has no number of GPUs",
                code=Code.MACHINE_GPU_COUNT,
                hint="give --gpus-per-node 8, or name a machine: accept list machines",
            )
        return requested, used
    if requested is None and nodes == 1:
        requested = used
    if requested is not None and used is None:
        used = requested
    return (None if requested == count else requested), (None if used == count else used)


def _requests_gpus(machine: MachineKubernetes) -> bool:
    limits = machine.resources.get("limits")
    return isinstance(limits, dict) and "nvidia.com/gpu" in limits


def check_results(results: Results, machine: MachineKubernetes, site: Kubernetes) -> None:
    """Raise BadInput if results go to a folder inside the pod, which is deleted with the pod."""
    location = (results.location or "").removeprefix("file://")
    if not location.startswith("/") or results.volume:
        return
    mounts = [m.get("mountPath") for m in (*machine.volume_mounts, *site.extra_volume_mounts)]
    if not any(f"{location}/".startswith(f"{str(path).rstrip('/')}/") for path in mounts if path):
        raise BadInput(
            f"results.location {escaped(location)} is inside the pod and is deleted with it",
            code=Code.SITE_RESULTS_IN_POD,
            hint=f"name a bucket, or give results.volume, which is mounted at {RESULTS}",
        )
