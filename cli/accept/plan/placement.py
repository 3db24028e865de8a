"""Check and complete the settings of pods: image, nodes by name, GPUs of a pod, results."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from accept.config.chart_rules import chart_rules
from accept.config.container import Container, Runtime
from accept.config.fields import Plain
from accept.config.kubernetes import (
    NAME,
    RESULTS,
    Kubernetes,
    MachinePods,
    Plugin,
    PodSettings,
    Results,
)
from accept.config.machine import Machine
from accept.config.site import Site
from accept.core.error_codes import Code
from accept.core.errors import BadInput
from accept.core.serde import escaped
from accept.core.text import count, duration

#: Maximum number of nodes by name. Every pod repeats the list, and the API server stores all pods.
_MAX_NAMED_NODES = 256


def check_image(image: str | None) -> None:
    """Raise BadInput if neither the options nor the site name a container image."""
    if not image:
        raise BadInput(
            "a run on Kubernetes needs a container image",
            code=Code.SITE_NO_IMAGE,
            hint="give --image IMAGE, or name it in the site file, kubernetes: {image: …}, which "
            "`accept init --backend kubernetes` writes; hosts over ssh need none: --hosts a,b,c",
        )


def check_container(container: Container, backend: str) -> None:
    """Raise BadInput for a runtime without an image, or one that the back end does not have."""
    if container.runtime and not container.image:
        raise BadInput(
            f"container.runtime is {container.runtime}, but there is no image",
            code=Code.CONTAINER_NO_IMAGE,
            hint="give --image IMAGE, or set container.image in the site file",
        )
    if container.runtime is Runtime.PYXIS and backend != "slurm":
        raise BadInput(
            f"container.runtime is pyxis, a plugin of Slurm, but the back end is {backend}",
            code=Code.CONTAINER_RUNTIME,
            hint="set container.runtime to apptainer, docker or podman",
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
            f"node {escaped(excluded[0])} is requested and excluded",
            code=Code.NODES_EXCLUDED,
            hint="remove it from --nodes or includeNodes, or from --exclude or excludeNodes",
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
        if requested is None and not gpu_resource(machine.kubernetes.resources):
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
    if requested is None:
        _check_amount(machine, site)
    return (None if requested == count else requested), (None if used == count else used)


def _check_amount(machine: Machine, site: Kubernetes) -> None:
    """Raise BadInput if pods take another number of GPUs than a node of the machine has."""
    resources, count = _merged(machine.kubernetes.resources, site.resources), machine.gpus.count
    for kind in ("limits", "requests"):
        amounts = resources.get(kind)
        amount = amounts.get(GPU) if isinstance(amounts, dict) else None
        if amount is not None and str(amount) != str(count):
            raise BadInput(
                f"pods take {amount} {GPU} ({kind}), and machine {machine.name} has {count} GPUs",
                code=Code.MACHINE_GPU_COUNT,
                hint=f"in the machine file, make gpus.count and kubernetes.resources.{kind} equal; "
                "for some GPUs of a node: kubernetes.gpusPerPod in the site file",
            )


#: The user of pods that need no root, which the images of `docker/Dockerfile` know by name.
_USER = 1000
#: The resource of a pod that requests GPUs, unless machine or site name another.
GPU = "nvidia.com/gpu"
_GPU_TOLERATIONS: tuple[Plain, ...] = ({"key": GPU, "operator": "Exists"},)
_SPOT_TOLERATIONS: tuple[Plain, ...] = (
    {"key": "cloud.google.com/gke-spot", "operator": "Exists"},
    {"key": "kubernetes.azure.com/scalesetpriority", "operator": "Exists"},
)
_FLEX_START_TOLERATIONS: tuple[Plain, ...] = (
    {"key": "cloud.google.com/gke-flex-start", "operator": "Exists"},
    {"key": "cloud.google.com/gke-queued", "operator": "Exists"},
)
_FLEX_START_LABELS = {"cloud.google.com/gke-flex-start": "true"}


def gpu_resource(resources: Mapping[str, object]) -> str:
    """Return the resource by which a pod requests GPUs; empty if it requests none."""
    for kind in ("limits", "requests"):
        amounts = resources.get(kind)
        for name, amount in amounts.items() if isinstance(amounts, dict) else ():
            if name.endswith("/gpu") and str(amount) != "0":
                return str(name)
    return ""


def pod_settings(machine: MachinePods, site: Kubernetes, gpus: int | None = None) -> PodSettings:
    """Return the settings of the pods: the machine's with the site's, and what these imply.

    `gpus` is the number of GPUs that a pod requests; None: as in the resources. Raises BadInput if
    the machine does not support the site's way to get NCCL's plugin.
    """
    resources = _pod_resources(machine, site, gpus)
    # A cluster provides NICs by networks or by claims: those of the site replace the machine's.
    claims, networks = site.resource_claims, site.networks
    if claims is None:
        claims = () if networks else machine.resource_claims
    if networks is None:
        networks = () if site.resource_claims else machine.networks
    plugin = _plugin(machine, site)
    tolerations = (
        *machine.tolerations,
        *site.tolerations,
        *(_SPOT_TOLERATIONS if site.spot else ()),
        *(_FLEX_START_TOLERATIONS if site.flex_start else ()),
        *(_GPU_TOLERATIONS if gpu_resource(resources) == GPU else ()),
    )
    pod = PodSettings(
        node_selector={
            **machine.node_selector,
            **site.node_selector,
            **(_FLEX_START_LABELS if site.flex_start else {}),
        },
        tolerations=tuple(t for i, t in enumerate(tolerations) if t not in tolerations[:i]),
        labels={**machine.labels, **site.labels},
        annotations={**machine.annotations, **site.annotations},
        networks=networks,
        host_network=machine.host_network if site.host_network is None else site.host_network,
        resources=resources,
        reserve=machine.reserve,
        resource_claims=claims,
        compute_domain=machine.compute_domain,
        shared_memory=site.shared_memory or machine.shared_memory,
        security_context=_given_context(machine, site),
        env={**machine.env, **site.extra_env},
        volumes=(*machine.volumes, *plugin.volumes, *site.extra_volumes),
        volume_mounts=(*machine.volume_mounts, *plugin.volume_mounts, *site.extra_volume_mounts),
        init_containers=_containers(
            (*machine.init_containers, *filter(None, (plugin.installer,))),
            site.extra_init_containers,
        ),
        sidecars=_containers(machine.sidecars, site.extra_sidecars),
        source=machine.source,
    )
    is_root = _is_root(pod, site.pod_security_context)
    return replace(
        pod,
        security_context=_context(pod.security_context, drops=True, is_root=is_root),
        init_containers=_with_contexts(pod.init_containers, is_root=is_root),
        sidecars=_with_contexts(pod.sidecars, is_root=is_root),
    )


def _plugin(machine: MachinePods, site: Kubernetes) -> Plugin:
    """Return what pods need to get NCCL's plugin from the source that the site names."""
    plugin = machine.plugin
    if site.plugin == "daemonset":
        return replace(plugin, installer={})
    if not plugin.installer:
        raise BadInput(
            f"kubernetes.plugin: {site.plugin} is not possible on this machine",
            code=Code.KUBE_PLUGIN,
            hint="leave it out; the plugin and its installer: accept show machine NAME",
        )
    if site.plugin == "image":
        return Plugin()
    mounts = plugin.installer.get("volumeMounts")
    names = [m["name"] for m in mounts if isinstance(m, dict)] if isinstance(mounts, list) else []
    return replace(
        plugin,
        volumes=tuple({"name": name, "emptyDir": {}} for name in names),
        volume_mounts=tuple(m for m in plugin.volume_mounts if m.get("name") in names),
    )


def _pod_resources(machine: MachinePods, site: Kubernetes, gpus: int | None) -> Plain:
    resources = _merged(machine.resources, site.resources)
    if gpus is None:
        return resources
    name = gpu_resource(resources) or GPU
    requests = resources.get("requests")
    is_requested = isinstance(requests, dict) and name in requests
    kinds = ("limits", "requests") if is_requested else ("limits",)
    return _merged(resources, {kind: {name: gpus} for kind in kinds})


def _given_context(machine: MachinePods, site: Kubernetes) -> Plain:
    """Return the security context that machine and site give the main container.

    In the node's own network, no Network objects or claims give RDMA devices to pods; only a
    privileged one has them. https://github.com/AI-Hypercomputer/gpu-recipes sets both, too.
    """
    loses_nics = bool(site.host_network and (machine.networks or machine.resource_claims))
    given = _merged(machine.security_context, site.security_context)
    context = {"privileged": loses_nics, **given}
    if loses_nics and not context["privileged"]:
        raise BadInput(
            "kubernetes.hostNetwork with securityContext.privileged: false: only a privileged pod "
            "then has the RDMA devices of this machine",
            code=Code.KUBE_HOST_NETWORK,
            hint="leave out one of them",
        )
    return context


def pod_security_context(pod: PodSettings, given: Plain) -> Plain:
    """Return the security context of a pod: the site's, and what the standard `restricted` asks.

    A pod that needs rights of root, or folders of its node, runs as the image's user.
    """
    base: Plain = {"seccompProfile": {"type": "RuntimeDefault"}}
    if not _is_root(pod, given):
        ids = dict.fromkeys(("runAsUser", "runAsGroup", "fsGroup"), _USER)
        base = {"runAsNonRoot": True, **ids, **base}
    return _merged(base, given)


def _is_root(pod: PodSettings, given: Plain) -> bool:
    """Return True if the pod runs as root, or as the user of its image, which usually is root.

    A capability has an effect only for root. Containers beside the main one, and folders of the
    node, may be made for root.
    """
    chosen = {**given, **pod.security_context}
    if "runAsUser" in chosen or "runAsNonRoot" in chosen:
        return not (chosen.get("runAsUser") or chosen.get("runAsNonRoot"))
    return bool(
        pod.security_context.get("privileged")
        or _capabilities(pod.security_context).get("add")
        or pod.host_network
        or pod.init_containers
        or pod.sidecars
        or any("hostPath" in volume for volume in pod.volumes)
    )


def _context(given: Plain, *, drops: bool, is_root: bool) -> Plain:
    """Return the security context of a container, without the rights that it does not need.

    With `drops`, it also has no capability but those that it adds and that the run's sshd needs.
    """
    capabilities = _capabilities(given)
    added = capabilities.get("add")
    adds = [str(name) for name in added] if isinstance(added, list | tuple) else []
    context = dict(given)
    # A privileged container has all capabilities. Kubernetes refuses
    # `allowPrivilegeEscalation: false` for it, and for a container with SYS_ADMIN.
    if given.get("privileged"):
        return context
    if not {"SYS_ADMIN", "ALL"} & set(adds):
        context.setdefault("allowPrivilegeEscalation", False)
    if drops or not is_root:
        # Without its capabilities, root cannot even start sshd.
        needed = chart_rules().sshd_capabilities if drops and is_root else ()
        adds = list(dict.fromkeys((*adds, *needed)))
        capabilities = {"drop": ["ALL"], **capabilities, **({"add": adds} if adds else {})}
        context["capabilities"] = capabilities
    return context


def _with_contexts(containers: Sequence[Plain], *, is_root: bool) -> tuple[Plain, ...]:
    """Return containers beside the main one with their security contexts.

    Those that run as root keep the default capabilities, because their images are of others.
    """
    return tuple(
        {**container, "securityContext": _context(context, drops=False, is_root=is_root)}
        for container in containers
        for context in (_mapping(container.get("securityContext")),)
    )


def _capabilities(context: Plain) -> Plain:
    return _mapping(context.get("capabilities"))


def _mapping(value: object) -> Plain:
    return dict(value) if isinstance(value, dict) else {}


def _containers(of_machine: Sequence[Plain], of_site: Sequence[Plain]) -> tuple[Plain, ...]:
    """Return the containers; the site's are merged into the machine's with the same name."""
    by_name = {str(container.get("name")): container for container in of_site}
    changed = [_merged(c, by_name.pop(str(c.get("name")), {})) for c in of_machine]
    return (*changed, *by_name.values())


def _merged(base: Plain, changes: Plain) -> Plain:
    """Return `base` with `changes`; mappings in both are merged, any other value is replaced."""
    result = {**base, **changes}
    for key in base.keys() & changes.keys():
        old, new = base[key], changes[key]
        if isinstance(old, dict) and isinstance(new, dict):
            result[key] = _merged(old, new)
    return result


def check_results(results: Results, pod: PodSettings) -> None:
    """Raise BadInput if results go to a folder inside the pod, which is deleted with the pod."""
    if results.folder and not results.volume and not volumes_at(results.folder, pod):
        raise BadInput(
            f"results.location {escaped(results.folder)} is inside the pod and is deleted with it",
            code=Code.SITE_RESULTS_IN_POD,
            hint=f"name a bucket, or give results.volume, which is mounted at {RESULTS}",
        )


def volumes_at(folder: str, pod: PodSettings) -> tuple[str, ...]:
    """Return the names of the volumes that pods mount at a folder, or at one above it."""
    mounts = ((str(m.get("name")), str(m.get("mountPath") or "")) for m in pod.volume_mounts)
    return tuple(name for name, path in mounts if path and _is_below(folder, path))


def _is_below(folder: str, path: str) -> bool:
    return f"{folder}/".startswith(f"{path.rstrip('/')}/")


def pod_notes(machine: Machine, site: Site, nodes: int) -> Iterator[str]:
    """Yield notes on the evidence, the places and the machine of pods."""
    if not (site.results.location or site.results.volume):
        held = f"{duration(site.results.hold_seconds)} after the verdict"
        yield f"no results.location: the evidence stays in the pod of index 0 for {held}"
    named, all_nics = (
        [n for n in networks or () if n.network != "default"]
        for networks in (site.kubernetes.networks, machine.kubernetes.networks)
    )
    if named and len(named) < len(all_nics) and not site.kubernetes.resource_claims:
        nics = f"{len(named)} of the {count(len(all_nics), 'NIC')} of {machine.name}"
        yield f"kubernetes.networks gives pods {nics}: fewer than the bounds expect"
    yield from _placement_notes(machine, site, nodes)
    if machine.note:
        yield machine.note


def _placement_notes(machine: Machine, site: Site, nodes: int) -> Iterator[str]:
    """Yield where the pods go, and how pods share NVLink if the site does not decide it."""
    link, topology = machine.nvlink, site.kubernetes.topology
    by = f"queue {site.kubernetes.queue}" if site.kubernetes.queue else "affinity"
    if topology and topology.slice and topology.slice_size:
        slices = count(math.ceil(nodes / topology.slice_size), "slice")
        size = count(min(nodes, topology.slice_size), "pod")
        most = "at most " if nodes % topology.slice_size and nodes > topology.slice_size else ""
        yield f"placement by {by}: {slices} of {most}{size}, each on nodes of one {topology.slice}"
    if topology and (label := topology.required or topology.preferred):
        wish = "" if topology.required else ", if that is possible"
        yield f"placement by {by}: all {count(nodes, 'pod')} on nodes of one {label}{wish}"
    kept = topology and (topology.slice or (topology.required and link and nodes <= link.nodes))
    if link is None or link.nodes == 1 or nodes == 1 or kept:
        return
    note = "pods may be in several NVLink domains; NVLink bounds apply only to groups in one domain"
    together = next(n for n in range(min(nodes, link.nodes), 0, -1) if nodes % n == 0)
    if together > 1:
        key = "required: LABEL" if together == nodes else f"slice: LABEL, sliceSize: {together}"
        queue = "" if together == nodes or site.kubernetes.queue else "kubernetes.queue with "
        note += f". {queue}kubernetes.topology: {{{key}}} keeps {together} pods in one rack; LABEL "
        note += "is cloud.google.com/gce-topology-subblock on GKE, else nvidia.com/gpu.clique"
    yield note
