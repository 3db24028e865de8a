"""What a run needs of a cluster: the questions of `accept doctor`."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from accept.backends import Say
from accept.backends.kubernetes import device_needs, doctor_storage, site_needs
from accept.backends.kubernetes.client import Api, ApiError
from accept.backends.kubernetes.look import has_namespace, makes_jobset
from accept.backends.kubernetes.need import fine, lack
from accept.backends.kubernetes.nodes import fits_of, place_of, to_come, wanted_of
from accept.backends.kubernetes.rbac import CLUSTER_RULES, RULES, Rule
from accept.backends.kubernetes.scheduling import shortage
from accept.backends.requirements import Need
from accept.core.text import plain
from accept.plan.resolve import Resolved

_OLDEST = (1, 31)
_SHOWN = 12


def needs(run: Resolved, *, say: Say) -> tuple[Need, ...]:
    """One need a line: what the run needs of the cluster, whether it is there, what to do."""
    api = Api(place_of(run.place, run.site))
    try:
        version = api.get("/version")
    except ApiError as error:
        return (lack("API", f"{error.message}", error.hint or "try: kubectl get pods"),)
    found = [
        _version(version, api),
        *_tools(),
        *_namespace(api),
        *_allowed(api, run),
        *site_needs.controller(api, run),
        *site_needs.queue(api, run),
        *_nodes(api, run),
        *site_needs.networks(api, run),
        *device_needs.devices(api, run),
        *site_needs.named(api, run),
        site_needs.image(run.site.kubernetes.image),
        *doctor_storage.results(api, run),
    ]
    return tuple(found)


def _version(version: dict[str, Any], api: Api) -> Need:
    text = plain(version.get("gitVersion"), 60)
    numbers = [int(n) for n in re.findall(r"\d+", text)[:2]]
    found = f"{text}, context {api.place.context or 'of this pod'}"
    if tuple(numbers) < _OLDEST:
        return lack("API", found, "Kubernetes 1.31 or newer is needed")
    return fine("API", found)


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
    there = has_namespace(api)
    if there is None:
        yield fine("namespace", f"{name}; it may not be looked at")
    elif there:
        yield fine("namespace", name)
    else:
        yield lack("namespace", f"{name} is not there", f"kubectl create namespace {name}")


def _rules(api: Api, run: Resolved) -> tuple[Rule, ...]:
    """Those of the namespace that this run uses: what it does not make it needs no right to."""
    made = {
        "jobsets": makes_jobset(api, run.site.kubernetes.controller),
        "networkpolicies": run.site.kubernetes.network_policy,
        "resourceclaimtemplates": any(not c.template for c in device_needs.claimed(run)),
        "computedomains": run.machine.kubernetes.compute_domain,
    }
    return tuple(rule for rule in RULES if all(made.get(kind, True) for kind in rule.resources))


def _allowed(api: Api, run: Resolved) -> Iterator[Need]:
    """One need for everything that is allowed, and one for each thing that is not."""
    try:
        asked = [
            (rule, resource, verb, namespace)
            for rules, namespace in ((_rules(api, run), api.place.namespace), (CLUSTER_RULES, ""))
            for rule in rules
            for resource in rule.resources
            for verb in rule.verbs
        ]
        with ThreadPoolExecutor(8) as pool:
            answers = list(pool.map(lambda one: _may(api, *one), asked))
    except ApiError as error:
        yield fine("RBAC", f"it cannot be asked: {error.message}")
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
        yield lack(f"RBAC for {resource}", found, advice, good=optional)
    if not refused:
        yield fine("RBAC", f"all {len(asked)} verbs that are used")


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


def _nodes(api: Api, run: Resolved) -> Iterator[Need]:
    """Machine, taints and free GPUs: of the whole cluster, then of each node that lacks some."""
    wanted = wanted_of(run)
    try:
        found = fits_of(api, wanted)
    except ApiError as error:
        yield fine("nodes", f"not counted: {error.message}")
        return
    meant, come = [f for f in found if f.meant], to_come(run.site, wanted)
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
        # Of a control plane, say: nothing to act on while the others are enough.
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
    for fit in lacking[:_SHOWN]:
        yield Need(host=fit.node, what=what, good=True, found=f"left out: {fit.why}")
    if len(lacking) > _SHOWN:
        yield fine(what, f"{len(lacking) - _SHOWN} more nodes are left out")
