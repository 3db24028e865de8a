"""Whether pods can be placed as asked: image, nodes by name, GPUs of a pod, where results go."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

from accept.config.kubernetes import NAME, RESULTS, Kubernetes, MachineKubernetes, Results
from accept.config.machine import Machine
from accept.core.errors import BadInput
from accept.core.serde import escaped

#: Each pod repeats the list, and the API server keeps all of them.
MOST_NAMED = 256


def check_image(site: Kubernetes) -> None:
    """Raise BadInput if the site names no container image."""
    if not site.image:
        raise BadInput(
            "a run on Kubernetes needs a container image",
            hint="name it in the site file, kubernetes: {image: …}, and give --site; "
            "hosts over ssh need none: --hosts a,b,c",
        )


def placed(site: Kubernetes, *, names: Sequence[str], nodes: int) -> Kubernetes:
    """Return the site's pod settings for a run on `nodes` nodes, or only on those in `names`.

    Raises BadInput if the node lists leave too few nodes, are too long, or hold an invalid name.
    """
    included = tuple(names) or site.include_nodes
    for name in (*included, *site.exclude_nodes):
        if not re.fullmatch(NAME, name):
            raise BadInput(
                f"{escaped(name)!r} is no name of a node: they are of a-z, 0-9, '.' and '-'",
                hint="kubectl get nodes lists their names",
            )
    excluded = [name for name in included if name in site.exclude_nodes]
    if excluded:
        raise BadInput(
            f"node {escaped(excluded[0])} is asked for, and excluded by the site file",
            hint="leave it out of one of them",
        )
    named = len(included) + len(site.exclude_nodes)
    if named > MOST_NAMED:
        raise BadInput(
            f"{named} nodes by name, and every pod repeats the list: {MOST_NAMED} are possible",
            hint="label them (kubectl label node … accept=yes) and name the label in the site file "
            "(kubernetes.nodeSelector), or let a queue choose: kubernetes.queue, --nodes NUMBER",
        )
    if included and len(included) < nodes:
        raise BadInput(
            f"{nodes} nodes, and includeNodes names {len(included)}",
            hint="name more, or ask for fewer: --nodes",
        )
    return replace(site, include_nodes=included)


def gpus_of_pod(
    machine: Machine, site: Kubernetes, *, nodes: int, used: int | None
) -> tuple[int | None, int | None]:
    """GPUs that a pod asks for where that is not the whole node, and GPUs that are tested.

    `used` is what the options and the site file say of each node. A part of a node is asked for on
    one node, or where the site says gpusPerPod; otherwise nodes are asked for whole. Raises
    BadInput.
    """
    asked, count = site.gpus_per_pod, machine.gpus.count
    if asked is not None and used is not None and asked < used:
        raise BadInput(
            f"{used} GPUs of each node, and pods that ask for {asked}",
            hint="make gpusPerNode and kubernetes.gpusPerPod equal",
        )
    if count == "detect":
        asked = asked or used
        if asked is None and not _asks_for_gpus(machine.kubernetes):
            raise BadInput(
                f"machine {machine.name} does not say how many GPUs a node has, and pods must ask",
                hint="give --gpus-per-node 8, or name a machine: accept list machines",
            )
        return asked, used
    if asked is None and nodes == 1:
        asked = used
    if asked is not None and used is None:
        used = asked
    return (None if asked == count else asked), (None if used == count else used)


def _asks_for_gpus(machine: MachineKubernetes) -> bool:
    return "nvidia.com/gpu" in (machine.resources.get("limits") or {})


def check_results(results: Results, machine: MachineKubernetes, site: Kubernetes) -> None:
    """Raise BadInput for a folder that would go with the pod."""
    location = (results.location or "").removeprefix("file://")
    if not location.startswith("/") or results.volume:
        return
    mounts = [m.get("mountPath") for m in (*machine.volume_mounts, *site.extra_volume_mounts)]
    if not any(f"{location}/".startswith(f"{str(path).rstrip('/')}/") for path in mounts if path):
        raise BadInput(
            f"results.location {escaped(location)} is a folder of the pod, and goes with it",
            hint=f"name a bucket, or give results.volume, which is mounted at {RESULTS}",
        )
