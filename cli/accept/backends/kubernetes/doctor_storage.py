"""Check what a run needs from a cluster's storage and devices: results, volumes, claims."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from accept.backends.kubernetes.client import Api, ApiError
from accept.backends.kubernetes.status import (
    CLAIMS_GROUP,
    CLAIMS_VERSIONS,
    DOMAINS_GROUP,
    object_path,
)
from accept.backends.requirements import Need
from accept.config.kubernetes import Claim
from accept.core.text import duration, plain
from accept.evidence import bucket
from accept.plan.resolve import Resolved


def lack(what: str, found: str, advice: str = "", *, good: bool = False) -> Need:
    """Return a need that the cluster does not meet; `good`: the run starts anyway."""
    return Need(host="cluster", what=what, good=good, found=found, advice=advice)


def fine(what: str, found: str, advice: str = "") -> Need:
    """Return a need that the cluster meets."""
    return lack(what, found, advice, good=True)


def claimed_devices(run: Resolved) -> tuple[Claim, ...]:
    """Return a run's claims, by the rule of accept.devicesClaimed in chart/templates/_pod.tpl."""
    of_site = run.site.kubernetes
    if of_site.resource_claims is not None:
        return of_site.resource_claims
    return () if of_site.networks else run.machine.kubernetes.resource_claims


def check_devices(api: Api, run: Resolved) -> Iterator[Need]:
    """Check the API, the templates and the domain; yield nothing if the run claims no devices."""
    claims, domain = claimed_devices(run), run.machine.kubernetes.compute_domain
    if not claims and not domain:
        return
    version = _served_version(api)
    if version:
        yield fine("claims of devices", f"{_group_name(CLAIMS_GROUP)}/{version}")
        for name in sorted({c.template for c in claims if c.template}):
            yield _template(api, version, name)
    else:
        *newer, last = CLAIMS_VERSIONS
        found = f"the cluster serves no {_group_name(CLAIMS_GROUP)}/{', '.join(newer)} or {last}"
        advice = "Kubernetes 1.34 or newer does, older ones where that API is switched on"
        yield lack("claims of devices", found, advice)
    if domain:
        yield _domains(api)


def _group_name(group: str) -> str:
    """Return a group of the API as people write it."""
    return group.removeprefix("apis/")


def _served_version(api: Api) -> str:
    """Return the newest version of claims that cluster and chart have in common, or nothing."""
    versions = (api.find(f"/{CLAIMS_GROUP}") or {}).get("versions") or ()
    served = {v.get("version") for v in versions}
    return next((version for version in CLAIMS_VERSIONS if version in served), "")


def _template(api: Api, version: str, name: str) -> Need:
    """Check a ResourceClaimTemplate that machine or site name; without it there are no pods."""
    what = "claim template"
    try:
        there = api.find(
            object_path(api, f"{CLAIMS_GROUP}/{version}", "resourceclaimtemplates", name)
        )
    except ApiError as error:
        return fine(what, f"{name} cannot be looked at: {error.message}")
    if there is None:
        found = f"{plain(name, 253)} is not in namespace {api.place.namespace}"
        return lack(what, found, "make it there, or set kubernetes.resourceClaims in the site file")
    return fine(what, name)


def _domains(api: Api) -> Need:
    """Check that the cluster has ComputeDomain, NVIDIA's kind for nodes that share NVLink."""
    served: dict[str, Any] = api.find(f"/{DOMAINS_GROUP}") or {}
    kinds = {r.get("name") for r in served.get("resources") or ()}
    if "computedomains" in kinds:
        return fine("ComputeDomain", _group_name(DOMAINS_GROUP))
    advice = "install NVIDIA's DRA driver: https://github.com/NVIDIA/k8s-dra-driver-gpu"
    return lack(
        "ComputeDomain", f"the cluster has no such kind in {_group_name(DOMAINS_GROUP)}", advice
    )


_SHARED_MODE = "ReadWriteMany"
#: The binding mode of storage classes that make a volume when the first pod needs it.
_BOUND_LATER = "WaitForFirstConsumer"


def check_results(api: Api, run: Resolved) -> Iterator[Need]:
    """Check the place for the evidence, as far as it is visible from here."""
    location, volume = run.site.results.location, _results_volume(run)
    claim = volume.get("persistentVolumeClaim")
    if isinstance(claim, dict):
        yield _claim(api, str(claim.get("claimName", "")), run.plan.nodes or 1)
    elif volume or (location or "").startswith(("/", "file://")):
        yield fine("results", f"{location or 'a volume'}: what the pods mount only they can know")
    elif location:
        yield _bucket(location, run.site.kubernetes.service_account)
    else:
        hold = run.site.results.hold_seconds
        yield fine("results", f"no location: index 0 holds them {duration(hold)} for collect")


def _results_volume(run: Resolved) -> dict[str, Any]:
    """Return the volume that evidence is written to; empty if it is written to none."""
    of_site, of_machine = run.site.kubernetes, run.machine.kubernetes
    if run.site.results.volume:
        return run.site.results.volume
    location = (run.site.results.location or "").removeprefix("file://")
    if not location.startswith("/"):
        return {}
    named = {
        str(mount.get("name"))
        for mount in (*of_machine.volume_mounts, *of_site.extra_volume_mounts)
        if f"{location}/".startswith(f"{str(mount.get('mountPath')).rstrip('/')}/")
    }
    found = (*of_machine.volumes, *of_site.extra_volumes)
    return next((v for v in found if str(v.get("name")) in named), {})


def _bucket(location: str, account: str | None) -> Need:
    there, why = bucket.reach(location)
    who = f"service account {account}" if account else "the pods' own identity"
    if there:
        return fine("results", f"{location} can be listed from here; {who} writes there")
    if there is None:
        found = f"{location} cannot be listed from here, so only the pods can know: {why}"
        return fine("results", found, f"{who} has to be allowed to write there")
    return lack("results", f"{location}: {why}", "make it, or correct results.location")


def _claim(api: Api, name: str, nodes: int) -> Need:
    """Check a claim, which the pods mount on several nodes."""
    try:
        there = api.find(object_path(api, "api/v1", "persistentvolumeclaims", name))
    except ApiError as error:
        return fine("results", f"claim {name} cannot be looked at: {error.message}")
    if there is None:
        found = f"claim {name} is not in namespace {api.place.namespace}"
        return lack("results", found, "make it, or correct results.volume")
    spec, status = there.get("spec", {}), there.get("status", {})
    phase = str(status.get("phase", ""))
    modes = [str(m) for m in status.get("accessModes") or spec.get("accessModes") or ()]
    if nodes > 1 and _SHARED_MODE not in modes:
        found = f"claim {name} is {', '.join(modes) or 'of no mode'}, and {nodes} nodes mount it"
        return lack("results", found, f"name a claim that is {_SHARED_MODE}, or a bucket")
    if phase == "Bound":
        return fine("results", f"claim {name} is bound")
    if phase == "Pending":
        return _pending(api, name, str(spec.get("storageClassName") or ""))
    return lack("results", f"claim {name} is {phase or 'in no phase'}", "kubectl describe pvc")


def _pending(api: Api, name: str, of_class: str) -> Need:
    advice = f"kubectl describe pvc {name} says why"
    if not of_class:
        return lack("results", f"claim {name} is not bound, and names no storage class", advice)
    try:
        there = api.find(f"/apis/storage.k8s.io/v1/storageclasses/{of_class}")
    except ApiError as error:
        found = f"claim {name} is not bound yet; storage class {of_class}: {error.message}"
        return fine("results", found, advice)
    if there is None:
        found = f"claim {name} is not bound: there is no storage class {of_class}"
        return lack("results", found, advice)
    if there.get("volumeBindingMode") == _BOUND_LATER:
        return fine("results", f"claim {name} is bound when the first pod comes ({_BOUND_LATER})")
    return lack("results", f"claim {name} is not bound", advice)
