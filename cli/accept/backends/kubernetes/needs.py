"""What a run needs of a cluster: the questions of `accept doctor`."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from accept.backends import Say
from accept.backends.kubernetes.api import Api, ApiError
from accept.backends.kubernetes.capacity import shortage
from accept.backends.kubernetes.look import path
from accept.backends.kubernetes.nodes import fits_of, place_of, to_come, wanted_of
from accept.backends.kubernetes.rules import CLUSTER_RULES, RULES, Rule
from accept.core.plaintext import plain
from accept.probe import Need
from accept.resolve import Resolved

_OLDEST = (1, 31)
_SHOWN = 12
_KUEUE = ("v1beta2", "v1beta1")


def needs(run: Resolved, *, say: Say) -> tuple[Need, ...]:
    """One need a line: what the run needs of the cluster, whether it is there, what to do."""
    api = Api(place_of(run.place, run.site))
    try:
        version = api.get("/version")
    except ApiError as error:
        return (_need("API", f"{error.message}", error.hint or "try: kubectl get pods"),)
    found = [
        _version(version, api),
        *_tools(),
        *_namespace(api),
        *_allowed(api),
        *_controller(api, run),
        *_queue(api, run),
        *_nodes(api, run),
        *_networks(api, run),
        *_named(api, run),
        _image(run.site.kubernetes.image),
        *_storage(run),
    ]
    return tuple(found)


def _need(what: str, found: str, advice: str = "", *, good: bool = False) -> Need:
    return Need(host="cluster", what=what, good=good, found=found, advice=advice)


def _fine(what: str, found: str, advice: str = "") -> Need:
    return _need(what, found, advice, good=True)


def _version(version: dict[str, Any], api: Api) -> Need:
    text = plain(version.get("gitVersion"), 60)
    numbers = [int(n) for n in re.findall(r"\d+", text)[:2]]
    found = f"{text}, context {api.place.context or 'of this pod'}"
    if tuple(numbers) < _OLDEST:
        return _need("API", found, "Kubernetes 1.31 or newer is needed")
    return _fine("API", found)


def _tools() -> Iterator[Need]:
    for tool, advice in (
        ("helm", "install helm 3 or 4: https://helm.sh"),
        ("ssh-keygen", "install the OpenSSH client"),
    ):
        there = shutil.which(tool) or ""
        yield Need(
            host="here",
            what=tool,
            good=bool(there),
            found=there or "not found",
            advice="" if there else advice,
        )


def _namespace(api: Api) -> Iterator[Need]:
    name = api.place.namespace
    try:
        there = api.find(f"/api/v1/namespaces/{name}")
    except ApiError:
        yield _fine("namespace", f"{name}; it may not be looked at")
        return
    if there is None:
        yield _need("namespace", f"{name} is not there", f"kubectl create namespace {name}")
    else:
        yield _fine("namespace", name)


def _allowed(api: Api) -> Iterator[Need]:
    """One need for everything that is allowed, and one for each thing that is not."""
    asked = [
        (rule, resource, verb, namespace)
        for rules, namespace in ((RULES, api.place.namespace), (CLUSTER_RULES, ""))
        for rule in rules
        for resource in rule.resources
        for verb in rule.verbs
    ]
    try:
        with ThreadPoolExecutor(8) as pool:
            answers = list(pool.map(lambda one: _may(api, *one), asked))
    except ApiError as error:
        yield _fine("RBAC", f"it cannot be asked: {error.message}")
        return
    refused: dict[tuple[str, bool, str], list[str]] = {}
    for (rule, resource, verb, namespace), allowed in zip(asked, answers, strict=True):
        if not allowed:
            where = "" if namespace else " in the whole cluster"
            key = (f"{resource}{where}", rule.optional, rule.why)
            refused.setdefault(key, []).append(verb)
    for (resource, optional, why), verbs in refused.items():
        found = f"not allowed to {', '.join(verbs)}: {why}"
        advice = "have the Role made: accept doctor --backend kubernetes --rbac"
        yield _need(f"RBAC for {resource}", found, advice, good=optional)
    if not refused:
        yield _fine("RBAC", f"all {len(asked)} verbs that are used")


def _may(api: Api, rule: Rule, resource: str, verb: str, namespace: str) -> bool:
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


def _controller(api: Api, run: Resolved) -> Iterator[Need]:
    wanted = run.site.kubernetes.controller
    group = api.find("/apis/jobset.x-k8s.io")
    versions = [v.get("version") for v in (group or {}).get("versions") or ()]
    if "v1alpha2" in versions:
        yield _fine("JobSet", f"jobset.x-k8s.io {', '.join(map(str, versions))}")
    elif group is not None:
        found = f"jobset.x-k8s.io {', '.join(map(str, versions))}, not v1alpha2"
        yield _need("JobSet", found, "update JobSet, or set kubernetes.controller: job")
    elif wanted == "jobset":
        yield _need("JobSet", "not there", "install JobSet, or set kubernetes.controller: job")
    else:
        yield _fine("JobSet", "not there: a plain Job runs the pods")


def _queue(api: Api, run: Resolved) -> Iterator[Need]:
    name = run.site.kubernetes.queue
    if not name:
        return
    for version in _KUEUE:
        where = path(api, f"apis/kueue.x-k8s.io/{version}", "localqueues")
        try:
            queues = api.items(where)
        except ApiError as error:
            if error.gone:
                continue
            yield _fine("queue", f"{name} cannot be looked at: {error.message}")
            return
        by_name = {str(q["metadata"]["name"]): q for q in queues}
        if name not in by_name:
            there = ", ".join(sorted(by_name)) or "none"
            advice = f"kubernetes.queue in the site file; there are: {there}"
            yield _need("queue", f"{name} is not in namespace {api.place.namespace}", advice)
            return
        conditions = by_name[name].get("status", {}).get("conditions") or ()
        active: dict[str, Any] = next((c for c in conditions if c.get("type") == "Active"), {})
        if active.get("status") == "False":
            why = plain(active.get("message") or active.get("reason"), 200)
            yield _need("queue", f"{name} is not active: {why}", "ask whoever runs Kueue")
        else:
            yield _fine("queue", name)
        return
    yield _need("queue", f"{name} is wanted, and Kueue is not there", "leave kubernetes.queue out")


def _nodes(api: Api, run: Resolved) -> Iterator[Need]:
    """Machine, taints and free GPUs: of the whole cluster, then of each node that lacks some."""
    wanted = wanted_of(run)
    try:
        found = fits_of(api, wanted)
    except ApiError as error:
        yield _fine("nodes", f"not counted: {error.message}")
        return
    meant, come = [f for f in found if f.meant], to_come(run.site, wanted)
    selector = ", ".join(f"{k}={v}" for k, v in wanted.selector.items()) or "any label"
    if not meant:
        reasons = "; ".join(f"{f.node}: {f.why}" for f in found[:3]) or "the cluster has no nodes"
        if come:
            yield _fine("nodes", f"none with {selector} yet: {come}")
            return
        advice = "another --machine? nodeSelector, affinity, includeNodes in the site file?"
        yield _need("nodes", f"none with {selector}; {reasons}", advice)
        return
    yield _fine("nodes", f"{len(meant)} with {selector}")
    taints = sorted({t for f in meant for t in f.taints})
    if taints:
        advice = "kubernetes.tolerations in the site file, if they are meant for you"
        yield _need("taints", f"nothing tolerates {', '.join(taints)}", advice)
    what = wanted.resource or "nodes"
    nodes = run.plan.nodes or 1
    if short := shortage(found, nodes, wanted):
        advice = come or "wait for them, or ask for fewer --nodes"
        yield _need(f"free {what}", short, advice, good=bool(come))
    else:
        good = sum(1 for f in found if not f.why)
        yield _fine(f"free {what}", f"{nodes} nodes are wanted, {good} are free")
    lacking = [f for f in meant if f.why]
    for fit in lacking[:_SHOWN]:
        yield Need(host=fit.node, what=what, good=True, found=f"left out: {fit.why}")
    if len(lacking) > _SHOWN:
        yield _fine(what, f"{len(lacking) - _SHOWN} more nodes are left out")


def _networks(api: Api, run: Resolved) -> Iterator[Need]:
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
            yield _fine("networks", f"they cannot be looked at: {error.message}")
            return
        there = set()
    missing = sorted({n.network for n in wanted} - there)
    if missing:
        names = ", ".join(sorted(there)) or "none"
        advice = f"kubernetes.networks in the site file; there are: {names}"
        yield _need("networks", f"{', '.join(missing)} not there", advice)
    else:
        yield _fine("networks", ", ".join(n.network for n in wanted))


def _named(api: Api, run: Resolved) -> Iterator[Need]:
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
            yield _fine(what, f"{name} cannot be looked at: {error.message}")
            continue
        if there is None:
            advice = f"make it in namespace {api.place.namespace}, or correct the site file"
            yield _need(what, f"{name} is not there", advice)
        else:
            yield _fine(what, name)


def _image(image: str | None) -> Need:
    if not image:
        return _need("image", "none is named", "kubernetes.image in the site file")
    last = image.rpartition("/")[2]
    if "@sha256:" in last:
        return _fine("image", image)
    if ":" in last and not last.endswith(":latest"):
        return _fine("image", f"{image}; a digest would say exactly which")
    advice = "name it with a tag or, better, a digest: NAME@sha256:..."
    return _need("image", f"{image} may be another one tomorrow", advice)


def _storage(run: Resolved) -> Iterator[Need]:
    location = run.site.results.location
    if not location and run.site.results.volume:
        yield _fine("results", "the volume of the site file; whether it is there is not checked")
        return
    if not location:
        hold = run.site.results.hold_seconds
        yield _fine("results", f"no location: index 0 holds them {hold:.0f} s for collect")
        return
    who = "written by the pods' own identity; not tried from here"
    yield _fine("results", f"{location}; {who}")
