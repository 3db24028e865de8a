"""Check what a run needs from a cluster's storage and devices: results, volumes, claims."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial

from accept.backends.kubernetes.client import Api, ApiError
from accept.backends.kubernetes.objects import (
    CLAIM_TEMPLATES,
    COMPUTE_DOMAIN,
    DAEMON_SET,
    DEVICE_CLASSES,
    STORAGE_CLASS,
    VOLUME_CLAIM,
    DaemonSet,
    Kind,
    Object,
    text_at,
)
from accept.backends.requirements import Need, Requirement, need_of
from accept.config.fields import Plain
from accept.core.text import count, duration, plain
from accept.evidence import bucket
from accept.plan.placement import volumes_at
from accept.plan.resolve import Resolved

#: A need that the cluster meets, one that it lacks, and one that cannot be checked from here. With
#: `good`, the run starts without what it lacks.
fine = partial(need_of, host="cluster")
lack = partial(need_of, host="cluster", good=False)
unchecked = partial(need_of, host="cluster", checked=False)


def check_object(api: Api, kind: Kind[Object], code: Requirement, name: str, advice: str) -> Need:
    """Check that an object exists; without it, no pods can start."""
    try:
        found = api.find(kind, name)
    except ApiError as error:
        return unchecked(code, f"{name} cannot be checked: {error.message}")
    if found is not None:
        return fine(code, name)
    absent = f"is not in namespace {api.place.namespace}" if kind.namespaced else "does not exist"
    return lack(code, f"{plain(name, 253)} {absent}", advice)


def check_devices(api: Api, run: Resolved) -> Iterator[Need]:
    """Check the API, the templates and the domain; yield nothing if the run claims no devices."""
    claims, domain = run.pod.resource_claims, run.pod.compute_domain
    if not claims and not domain:
        return
    group, versions = CLAIM_TEMPLATES[0].group, [kind.version for kind in CLAIM_TEMPLATES]
    served = api.versions(group)
    kind = next((kind for kind in CLAIM_TEMPLATES if kind.version in served), None)
    if kind is None:
        found = f"the cluster serves no {group}/{', '.join(versions[:-1])} or {versions[-1]}"
        advice = "Kubernetes 1.34 or newer does, older ones where that API is switched on"
        yield lack(Requirement.DEVICE_CLAIMS, found, advice)
    else:
        yield fine(Requirement.DEVICE_CLAIMS, f"{group}/{kind.version}")
        yield from _claimed_objects(api, run, kind)
    if domain:
        yield _domains(api)


def _claimed_objects(api: Api, run: Resolved, kind: Kind[Object]) -> Iterator[Need]:
    """Check the templates and the device classes of the run's claims.

    Without a class, pods stay pending.
    """
    claims = run.pod.resource_claims
    for name in sorted({claim.template for claim in claims if claim.template}):
        advice = "create it there, or set kubernetes.resourceClaims in the site file"
        yield check_object(api, kind, Requirement.CLAIM_TEMPLATE, name, advice)
    classes = next(found for found in DEVICE_CLASSES if found.version == kind.version)
    for name in sorted({name for claim in claims for name in claim.classes}):
        advice = (
            "install its DRA driver; if the cluster provides its NICs as networks, set "
            "kubernetes.networks in the site file"
        )
        yield check_object(api, classes, Requirement.DEVICE_CLASS, name, advice)


def check_plugin(api: Api, run: Resolved) -> Iterator[Need]:
    """Look for the DaemonSets that prepare the nodes.

    Pods that mount a missing folder never start. A DaemonSet with another name may make the folder,
    and one that is ready on some nodes may become so on the others: both only inform.
    """
    plugin = run.machine.kubernetes.plugin
    if not plugin.daemon_sets or run.site.kubernetes.plugin != "daemonset":
        return
    try:
        sets = api.find_all(DAEMON_SET, everywhere=True)
    except ApiError as error:
        found = f"{', '.join(plugin.daemon_sets)} cannot be checked: {error.message}"
        yield unchecked(Requirement.PLUGIN, found)
        return
    for name in plugin.daemon_sets:
        # Google's manifests for several kinds of nodes have the same name, or add to it.
        matching = [s for s in sets if s.name.startswith(name) or name in s.images]
        ready, nodes = sum(s.ready for s in matching), sum(s.wanted for s in matching)
        found = f"there is no DaemonSet {name}"
        if matching:
            found = f"DaemonSet {name}: {ready} of {count(nodes, 'node')} ready"
        if not matching or (nodes and not ready):
            volumes = plugin.volumes if name == plugin.daemon_sets[0] else ()
            yield _without_plugin(run, found, volumes, sets)
        elif ready < nodes:
            advice = "pods on the other nodes wait for it, or NCCL uses another network"
            yield lack(Requirement.PLUGIN, found, advice, good=True)
        else:
            images = [s.images[name] for s in matching if name in s.images]
            yield _check_pair(run, found, images)


def _without_plugin(
    run: Resolved, found: str, volumes: Sequence[Plain], sets: Sequence[DaemonSet]
) -> Need:
    """Return what it means that no node has the pods of a DaemonSet, which fills `volumes`."""
    running = [each for each in sets if each.ready or not each.wanted]
    made = [folder.rstrip("/") for each in running for folder in each.folders]
    missing = [
        path
        for volume in volumes
        if text_at(volume, "hostPath", "type") == "Directory"
        and (path := text_at(volume, "hostPath", "path"))
        # Many pods mount the root folder, or one like /dev in it, and make none of these.
        and not any(f"{path}/".startswith(f"{f}/") for f in made if f.count("/") > 1)
    ]
    installer = run.machine.kubernetes.plugin.installer
    other = "; or kubernetes.plugin: init in the site file" if installer else ""
    install = f"install it, or correct it (docs/machines.md){other}"
    if missing:
        advice = f"pods mount {', '.join(missing)} and do not start without it; {install}"
        return lack(Requirement.PLUGIN, found, advice)
    advice = "unless another one does the same, the run does not start or NCCL uses another network"
    return lack(Requirement.PLUGIN, found, f"{advice}; {install}", good=True)


def _check_pair(run: Resolved, found: str, images: Sequence[str]) -> Need:
    """Compare the versions of the plugin's images with that of its daemon in the run's pods."""
    machine = run.machine.kubernetes
    pairs = machine.plugin.daemons
    name = next((text_at(sidecar, "name") for sidecar in machine.sidecars), "")
    image = next((text_at(s, "image") for s in run.pod.sidecars if text_at(s, "name") == name), "")
    version, plugins = _tag(image), {plain(_tag(each), 60) for each in images}
    unpaired = sorted(tag for tag in plugins if tag and version and pairs.get(tag) != version)
    if not pairs or not unpaired:
        return fine(Requirement.PLUGIN, found)
    found = f"{found}; the plugin is {', '.join(unpaired)}, but the run's {name} is {version}"
    advice = "look up the plugin's daemon, and name it in the site file (docs/machines.md)"
    if wanted := pairs.get(unpaired[0]):
        one = image.partition("@")[0].removesuffix(version) + wanted
        advice = f"in the site file: kubernetes.extraSidecars: [{{name: {name}, image: '{one}'}}]"
    return lack(Requirement.PLUGIN, found, advice, good=True)


def _tag(image: str) -> str:
    """Return the tag of an image; empty if it has none."""
    return image.partition("@")[0].rpartition("/")[2].partition(":")[2]


def _domains(api: Api) -> Need:
    """Check that the cluster has ComputeDomain, NVIDIA's kind for nodes that share NVLink."""
    group = f"{COMPUTE_DOMAIN.group}/{COMPUTE_DOMAIN.version}"
    if api.serves(COMPUTE_DOMAIN):
        return fine(Requirement.COMPUTE_DOMAIN, group)
    advice = "install NVIDIA's DRA driver: https://github.com/NVIDIA/k8s-dra-driver-gpu"
    return lack(Requirement.COMPUTE_DOMAIN, f"the cluster has no such kind in {group}", advice)


_SHARED_MODE = "ReadWriteMany"
#: The binding mode of storage classes that make a volume when the first pod needs it.
_BOUND_LATER = "WaitForFirstConsumer"
_fine, _lack, _unchecked = (partial(row, Requirement.RESULTS) for row in (fine, lack, unchecked))


def check_results(api: Api, run: Resolved) -> Iterator[Need]:
    """Check the place for the evidence, as far as it is visible from here."""
    location, volume = run.site.results.location, _results_volume(run)
    if claim := text_at(volume, "persistentVolumeClaim", "claimName"):
        yield _claim(api, claim, run.plan.nodes or 1)
    elif volume or (location or "").startswith(("/", "file://")):
        yield _unchecked(
            f"{location or 'a volume'}: only the pods mount it, so it is not checked here"
        )
    elif location:
        yield _bucket(location, run.site.kubernetes.service_account)
    else:
        hold = run.site.results.hold_seconds
        yield _fine(f"no location: index 0 holds them {duration(hold)} for collect")


def _results_volume(run: Resolved) -> Mapping[str, object]:
    """Return the volume that evidence is written to; empty if it is written to none."""
    if run.site.results.volume:
        return run.site.results.volume
    folder = run.site.results.folder
    names = volumes_at(folder, run.pod) if folder else ()
    return next((v for v in run.pod.volumes if str(v.get("name")) in names), {})


def _bucket(location: str, account: str | None) -> Need:
    exists, why = bucket.reach(location)
    who = f"service account {account}" if account else "the pods' own identity"
    if exists:
        return _fine(f"{location} can be listed from here; {who} writes there")
    if exists is None:
        found = f"{location} cannot be listed from here: {why}"
        return _unchecked(found, f"{who} must be allowed to write there")
    return _lack(f"{location}: {why}", "create it, or correct results.location")


def _claim(api: Api, name: str, nodes: int) -> Need:
    """Check a claim, which the pods mount on several nodes."""
    try:
        claim = api.find(VOLUME_CLAIM, name)
    except ApiError as error:
        return _unchecked(f"claim {name} cannot be checked: {error.message}")
    if claim is None:
        found = f"claim {name} is not in namespace {api.place.namespace}"
        return _lack(found, "create it, or correct results.volume")
    if nodes > 1 and _SHARED_MODE not in claim.modes:
        found = f"claim {name} is {', '.join(claim.modes) or 'of no mode'}; {nodes} nodes mount it"
        return _lack(found, f"name a claim that is {_SHARED_MODE}, or a bucket")
    if claim.phase == "Bound":
        return _fine(f"claim {name} is bound")
    if claim.phase == "Pending":
        return _pending(api, name, claim.storage_class)
    return _lack(f"claim {name} is {claim.phase or 'in no phase'}", _describe(name))


def _describe(claim: str) -> str:
    return f"kubectl describe pvc {claim} shows why"


def _pending(api: Api, name: str, class_name: str) -> Need:
    if not class_name:
        return _lack(f"claim {name} is not bound, and names no storage class", _describe(name))
    try:
        storage_class = api.find(STORAGE_CLASS, class_name)
    except ApiError as error:
        found = f"claim {name} is not bound yet; storage class {class_name}: {error.message}"
        return _unchecked(found, _describe(name))
    if storage_class is None:
        found = f"claim {name} is not bound: storage class {class_name} does not exist"
        return _lack(found, _describe(name))
    if storage_class.binding_mode == _BOUND_LATER:
        return _fine(f"claim {name} is bound when the first pod starts ({_BOUND_LATER})")
    return _lack(f"claim {name} is not bound", _describe(name))
