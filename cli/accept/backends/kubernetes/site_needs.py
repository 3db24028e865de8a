"""What a site file names, asked of the cluster: controller, queue, networks, accounts, image."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from accept.backends.kubernetes.client import Api, ApiError
from accept.backends.kubernetes.device_needs import claimed
from accept.backends.kubernetes.look import JOBSETS, KUEUE, path
from accept.backends.kubernetes.need import fine, lack
from accept.backends.requirements import Need
from accept.core.text import plain
from accept.plan.resolve import Resolved

_JOB = "spec.replicatedJobs.template.spec"
#: What the chart sets of a JobSet and older ones lack. All of it is in the CRD of JobSet 0.7.0, and
#: all but the claims in that of 0.6.0: github.com/kubernetes-sigs/jobset, config/components/crd.
FIELDS = (
    "spec.network.publishNotReadyAddresses",
    "spec.startupPolicy.startupPolicyOrder",
    "spec.ttlSecondsAfterFinished",
    f"{_JOB}.successPolicy",
    f"{_JOB}.backoffLimitPerIndex",
    f"{_JOB}.podReplacementPolicy",
    f"{_JOB}.template.spec.initContainers.restartPolicy",
)
_CLAIMS = f"{_JOB}.template.spec.resourceClaims.resourceClaimTemplateName"


def controller(api: Api, run: Resolved) -> Iterator[Need]:
    """What is to run the pods: a JobSet that knows what the chart sets, or a plain Job."""
    wanted = run.site.kubernetes.controller
    if wanted == "job":
        yield fine("JobSet", "not asked for: a plain Job runs the pods")
        return
    group = api.find("/apis/jobset.x-k8s.io")
    versions = [v.get("version") for v in (group or {}).get("versions") or ()]
    if "v1alpha2" in versions:
        yield _fields(api, run)
    elif group is not None:
        found = f"jobset.x-k8s.io {', '.join(map(str, versions))}, not v1alpha2"
        yield lack("JobSet", found, "update JobSet, or set kubernetes.controller: job")
    elif wanted == "jobset":
        yield lack("JobSet", "not there", "install JobSet, or set kubernetes.controller: job")
    else:
        yield fine("JobSet", "not there: a plain Job runs the pods")


def _fields(api: Api, run: Resolved) -> Need:
    """Whether the cluster's JobSets have what the chart sets; older ones drop it without a word."""
    pods = run.machine.kubernetes
    claims = claimed(run) or pods.compute_domain
    wanted = (*FIELDS, _CLAIMS) if claims else FIELDS
    try:
        document = api.get(f"/openapi/v3/{JOBSETS}")
    except ApiError as error:
        return fine("JobSet", f"jobset.x-k8s.io v1alpha2; its fields: {error.message}")
    schemas: dict[str, Any] = (document.get("components") or {}).get("schemas") or {}
    schema: dict[str, Any] = next(
        (s for name, s in schemas.items() if name.endswith(".JobSet")), {}
    )
    lacking = [field for field in wanted if not _has(schema, field)]
    if lacking:
        more = f" and {len(lacking) - 1} more fields" if len(lacking) > 1 else ""
        return lack(
            "JobSet",
            f"too old: it has no {lacking[0]}{more}, which the chart sets",
            "update JobSet to 0.7 or newer, or set kubernetes.controller: job",
        )
    return fine("JobSet", "jobset.x-k8s.io v1alpha2, with all that the chart sets")


def _has(schema: dict[str, Any], field: str) -> bool:
    for word in field.split("."):
        known = schema.get("items", schema).get("properties") or {}
        if word not in known:
            return False
        schema = known[word]
    return True


def queue(api: Api, run: Resolved) -> Iterator[Need]:
    """Kueue's LocalQueue, and whether it is active."""
    name = run.site.kubernetes.queue
    if not name:
        return
    for group in KUEUE:
        try:
            queues = api.items(path(api, group, "localqueues"))
        except ApiError as error:
            if error.gone:
                continue
            yield fine("queue", f"{name} cannot be looked at: {error.message}")
            return
        by_name = {str(q["metadata"]["name"]): q for q in queues}
        if name not in by_name:
            there = ", ".join(sorted(by_name)) or "none"
            advice = f"kubernetes.queue in the site file; there are: {there}"
            yield lack("queue", f"{name} is not in namespace {api.place.namespace}", advice)
            return
        conditions = by_name[name].get("status", {}).get("conditions") or ()
        active: dict[str, Any] = next((c for c in conditions if c.get("type") == "Active"), {})
        if active.get("status") == "False":
            why = plain(active.get("message") or active.get("reason"), 200)
            yield lack("queue", f"{name} is not active: {why}", "ask whoever runs Kueue")
        else:
            yield fine("queue", name)
        return
    yield lack("queue", f"{name} is wanted, and Kueue is not there", "leave kubernetes.queue out")


def networks(api: Api, run: Resolved) -> Iterator[Need]:
    """The networks of GKE that the pods' interfaces are in."""
    of_site, of_machine = run.site.kubernetes, run.machine.kubernetes
    host = of_machine.host_network if of_site.host_network is None else of_site.host_network
    wanted = of_machine.networks if of_site.networks is None else of_site.networks
    if host or not wanted:
        return
    try:
        there = {
            str(n["metadata"]["name"]) for n in api.items("/apis/networking.gke.io/v1/networks")
        }
    except ApiError as error:
        if not error.gone:
            yield fine("networks", f"they cannot be looked at: {error.message}")
            return
        there = set()
    missing = sorted({n.network for n in wanted} - there)
    if missing:
        names = ", ".join(sorted(there)) or "none"
        advice = f"kubernetes.networks in the site file; there are: {names}"
        yield lack("networks", f"{', '.join(missing)} not there", advice)
    else:
        yield fine("networks", ", ".join(n.network for n in wanted))


def named(api: Api, run: Resolved) -> Iterator[Need]:
    """The service account and the pull secrets that the site file names."""
    k8s = run.site.kubernetes
    asked = [("serviceaccounts", "service account", k8s.service_account)]
    asked += [("secrets", "pull secret", name) for name in k8s.image_pull_secrets]
    for kind, what, name in asked:
        if not name:
            continue
        try:
            there = api.find(path(api, "api/v1", kind, name))
        except ApiError as error:
            yield fine(what, f"{name} cannot be looked at: {error.message}")
            continue
        if there is None:
            advice = f"make it in namespace {api.place.namespace}, or correct the site file"
            yield lack(what, f"{name} is not there", advice)
        else:
            yield fine(what, name)


def image(image: str | None) -> Need:
    """Whether what the image is called says which one it is."""
    if not image:
        return lack("image", "none is named", "kubernetes.image in the site file")
    last = image.rpartition("/")[2]
    if "@sha256:" in last:
        return fine("image", image)
    if ":" in last and not last.endswith(":latest"):
        return fine("image", f"{image}; a digest would say exactly which")
    advice = "name it with a tag or, better, a digest: NAME@sha256:..."
    return lack("image", f"{image} may be another one tomorrow", advice)
