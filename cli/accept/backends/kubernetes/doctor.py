"""Check a cluster against the needs of a run before anything is created."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from accept.backends.kubernetes import doctor_storage
from accept.backends.kubernetes import doctor_storage as kubernetes_doctor_storage
from accept.backends.kubernetes.client import Api, ApiError
from accept.backends.kubernetes.doctor_storage import claimed_devices, fine, lack
from accept.backends.kubernetes.rbac import CLUSTER_RULES, RULES, Rule
from accept.backends.kubernetes.scheduling import (
    expected_nodes,
    query_fits,
    request_of_run,
    resolve_place,
    shortage,
)
from accept.backends.kubernetes.status import (
    JOBSET_GROUP,
    KUEUE_GROUPS,
    has_namespace,
    makes_jobset,
    object_path,
)
from accept.backends.protocol import Say
from accept.backends.requirements import Need
from accept.core.text import plain
from accept.plan.resolve import Resolved

_JOB = "spec.replicatedJobs.template.spec"
#: Fields that the chart sets and that old versions of JobSet lack. The CRD of JobSet 0.7.0 has all
#: of them, that of 0.6.0 all but the claims: github.com/kubernetes-sigs/jobset,
#: config/components/crd.
JOBSET_FIELDS = (
    "spec.network.publishNotReadyAddresses",
    "spec.startupPolicy.startupPolicyOrder",
    "spec.ttlSecondsAfterFinished",
    f"{_JOB}.successPolicy",
    f"{_JOB}.backoffLimitPerIndex",
    f"{_JOB}.podReplacementPolicy",
    f"{_JOB}.template.spec.initContainers.restartPolicy",
)
_CLAIMS_FIELD = f"{_JOB}.template.spec.resourceClaims.resourceClaimTemplateName"


def check_controller(api: Api, run: Resolved) -> Iterator[Need]:
    """Check what runs the pods: a JobSet with all fields that the chart sets, or a plain Job."""
    wanted = run.site.kubernetes.controller
    if wanted == "job":
        yield fine("JobSet", "not asked for: a plain Job runs the pods")
        return
    group = api.find("/apis/jobset.x-k8s.io")
    versions = [v.get("version") for v in (group or {}).get("versions") or ()]
    if "v1alpha2" in versions:
        yield _check_jobset_fields(api, run)
    elif group is not None:
        found = f"jobset.x-k8s.io {', '.join(map(str, versions))}, not v1alpha2"
        yield lack("JobSet", found, "update JobSet, or set kubernetes.controller: job")
    elif wanted == "jobset":
        yield lack("JobSet", "not there", "install JobSet, or set kubernetes.controller: job")
    else:
        yield fine("JobSet", "not there: a plain Job runs the pods")


def _check_jobset_fields(api: Api, run: Resolved) -> Need:
    """Check that JobSets have the fields that the chart sets; old versions drop them silently."""
    pods = run.machine.kubernetes
    claims = claimed_devices(run) or pods.compute_domain
    wanted = (*JOBSET_FIELDS, _CLAIMS_FIELD) if claims else JOBSET_FIELDS
    try:
        document = api.get(f"/openapi/v3/{JOBSET_GROUP}")
    except ApiError as error:
        return fine("JobSet", f"jobset.x-k8s.io v1alpha2; its fields: {error.message}")
    schemas: dict[str, Any] = (document.get("components") or {}).get("schemas") or {}
    schema: dict[str, Any] = next(
        (s for name, s in schemas.items() if name.endswith(".JobSet")), {}
    )
    lacking = [field for field in wanted if not _has_field(schema, field)]
    if lacking:
        more = f" and {len(lacking) - 1} more fields" if len(lacking) > 1 else ""
        return lack(
            "JobSet",
            f"too old: it has no {lacking[0]}{more}, which the chart sets",
            "update JobSet to 0.7 or newer, or set kubernetes.controller: job",
        )
    return fine("JobSet", "jobset.x-k8s.io v1alpha2, with all that the chart sets")


def _has_field(schema: dict[str, Any], field: str) -> bool:
    for word in field.split("."):
        known = schema.get("items", schema).get("properties") or {}
        if word not in known:
            return False
        schema = known[word]
    return True


def check_queue(api: Api, run: Resolved) -> Iterator[Need]:
    """Check that Kueue's LocalQueue exists and is active."""
    name = run.site.kubernetes.queue
    if not name:
        return
    for group in KUEUE_GROUPS:
        try:
            queues = api.items(object_path(api, group, "localqueues"))
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


def check_networks(api: Api, run: Resolved) -> Iterator[Need]:
    """Check GKE's networks for the interfaces of the pods."""
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


def check_named_objects(api: Api, run: Resolved) -> Iterator[Need]:
    """Check the service account and the pull secrets that the site file names."""
    k8s = run.site.kubernetes
    asked = [("serviceaccounts", "service account", k8s.service_account)]
    asked += [("secrets", "pull secret", name) for name in k8s.image_pull_secrets]
    for kind, what, name in asked:
        if not name:
            continue
        try:
            there = api.find(object_path(api, "api/v1", kind, name))
        except ApiError as error:
            yield fine(what, f"{name} cannot be looked at: {error.message}")
            continue
        if there is None:
            advice = f"make it in namespace {api.place.namespace}, or correct the site file"
            yield lack(what, f"{name} is not there", advice)
        else:
            yield fine(what, name)


def check_image(image: str | None) -> Need:
    """Check that the name of the image identifies one image."""
    if not image:
        return lack("image", "none is named", "kubernetes.image in the site file")
    last = image.rpartition("/")[2]
    if "@sha256:" in last:
        return fine("image", image)
    if ":" in last and not last.endswith(":latest"):
        return fine("image", f"{image}; a digest would say exactly which")
    advice = "name it with a tag or, better, a digest: NAME@sha256:..."
    return lack("image", f"{image} may be another one tomorrow", advice)


_OLDEST_VERSION = (1, 31)
_NODES_SHOWN = 12


def doctor(run: Resolved, *, say: Say) -> tuple[Need, ...]:
    """Return what the run needs of the cluster, whether the cluster has it, and what to do."""
    api = Api(resolve_place(run.place, run.site))
    try:
        version = api.get("/version")
    except ApiError as error:
        return (lack("API", f"{error.message}", error.hint or "try: kubectl get pods"),)
    found = [
        _version(version, api),
        *_tools(),
        *_namespace(api),
        *_rights(api, run),
        *check_controller(api, run),
        *check_queue(api, run),
        *_nodes(api, run),
        *check_networks(api, run),
        *kubernetes_doctor_storage.check_devices(api, run),
        *check_named_objects(api, run),
        check_image(run.site.kubernetes.image),
        *doctor_storage.check_results(api, run),
    ]
    return tuple(found)


def _version(version: dict[str, Any], api: Api) -> Need:
    text = plain(version.get("gitVersion"), 60)
    numbers = [int(n) for n in re.findall(r"\d+", text)[:2]]
    found = f"{text}, context {api.place.context or 'of this pod'}"
    if tuple(numbers) < _OLDEST_VERSION:
        return lack("API", found, "Kubernetes 1.31 or newer is needed")
    return fine("API", found)


def _tools() -> Iterator[Need]:
    for tool, advice in (
        ("helm", "install helm 3 or 4: https://helm.sh"),
        ("ssh-keygen", "install the OpenSSH client"),
    ):
        path = shutil.which(tool) or ""
        yield Need(
            host="here",
            what=tool,
            good=bool(path),
            found=path or "not found",
            advice="" if path else advice,
        )


def _namespace(api: Api) -> Iterator[Need]:
    name = api.place.namespace
    exists = has_namespace(api)
    if exists is None:
        yield fine("namespace", f"{name}; it may not be looked at")
    elif exists:
        yield fine("namespace", name)
    else:
        yield lack("namespace", f"{name} is not there", f"kubectl create namespace {name}")


def _rules_of_run(api: Api, run: Resolved) -> tuple[Rule, ...]:
    """Return the namespace's rules that this run uses, without those for kinds it never makes."""
    made = {
        "jobsets": makes_jobset(api, run.site.kubernetes.controller),
        "networkpolicies": run.site.kubernetes.network_policy,
        "resourceclaimtemplates": any(
            not c.template for c in kubernetes_doctor_storage.claimed_devices(run)
        ),
        "computedomains": run.machine.kubernetes.compute_domain,
    }
    return tuple(rule for rule in RULES if all(made.get(kind, True) for kind in rule.resources))


def _rights(api: Api, run: Resolved) -> Iterator[Need]:
    """Yield one need for everything that is allowed, and one for each right that is missing."""
    try:
        questions = [
            (rule, resource, verb, namespace)
            for rules, namespace in (
                (_rules_of_run(api, run), api.place.namespace),
                (CLUSTER_RULES, ""),
            )
            for rule in rules
            for resource in rule.resources
            for verb in rule.verbs
        ]
        with ThreadPoolExecutor(8) as pool:
            answers = list(pool.map(lambda question: _may(api, *question), questions))
    except ApiError as error:
        yield fine("RBAC", f"it cannot be asked: {error.message}")
        return
    refused: dict[tuple[str, bool, str], list[str]] = {}
    for (rule, resource, verb, namespace), allowed in zip(questions, answers, strict=True):
        if not allowed:
            where = "" if namespace else " in the whole cluster"
            key = (f"{resource}{where}", rule.optional, rule.why)
            refused.setdefault(key, []).append(verb)
    for (resource, optional, why), verbs in refused.items():
        found = f"not allowed to {', '.join(verbs)}: {why}"
        advice = "have the Role made: accept doctor --backend kubernetes --rbac"
        yield lack(f"RBAC for {resource}", found, advice, good=optional)
    if not refused:
        yield fine("RBAC", f"all {len(questions)} verbs that are used")


def _may(api: Api, rule: Rule, resource: str, verb: str, namespace: str) -> bool:
    """Return whether this user may use a verb on a resource."""
    name, _, sub = resource.partition("/")
    about = {"group": rule.group, "resource": name, "verb": verb}
    about |= {"subresource": sub} if sub else {}
    about |= {"namespace": namespace} if namespace else {}
    answer = api.create(
        "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews",
        {
            "apiVersion": "authorization.k8s.io/v1",
            "kind": "SelfSubjectAccessReview",
            "spec": {"resourceAttributes": about},
        },
    )
    return bool(answer.get("status", {}).get("allowed"))


def _nodes(api: Api, run: Resolved) -> Iterator[Need]:
    """Yield machine, taints and free GPUs of the cluster, and then each node that is left out."""
    wanted = request_of_run(run)
    try:
        found = query_fits(api, wanted)
    except ApiError as error:
        yield fine("nodes", f"not counted: {error.message}")
        return
    meant, come = [f for f in found if f.meant], expected_nodes(run.site, wanted)
    selector = ", ".join(f"{k}={v}" for k, v in wanted.selector.items()) or "any label"
    if not meant:
        reasons = "; ".join(f"{f.node}: {f.why}" for f in found[:3]) or "the cluster has no nodes"
        if come:
            yield fine("nodes", f"none with {selector} yet: {come}")
            return
        advice = "another --machine? nodeSelector, affinity, includeNodes in the site file?"
        yield lack("nodes", f"none with {selector}; {reasons}", advice)
        return
    yield fine("nodes", f"{len(meant)} with {selector}")
    what = wanted.resource or "nodes"
    nodes = run.plan.nodes or 1
    short = shortage(found, nodes, wanted)
    taints = sorted({t for f in meant for t in f.taints})
    if taints:
        # For example those of a control plane: harmless while the other nodes are enough.
        enough = not short or bool(come)
        advice = "kubernetes.tolerations in the site file, if they are meant for you"
        yield lack("taints", f"nothing tolerates {', '.join(taints)}", advice, good=enough)
    if short:
        advice = come or "wait for them, or ask for fewer --nodes"
        yield lack(f"free {what}", short, advice, good=bool(come))
    else:
        good = sum(1 for f in found if not f.why)
        yield fine(f"free {what}", f"{nodes} nodes are wanted, {good} are free")
    lacking = [f for f in meant if f.why]
    for fit in lacking[:_NODES_SHOWN]:
        yield Need(host=fit.node, what=what, good=True, found=f"left out: {fit.why}")
    if len(lacking) > _NODES_SHOWN:
        yield fine(what, f"{len(lacking) - _NODES_SHOWN} more nodes are left out")
