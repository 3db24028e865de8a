"""Check a cluster against the needs of a run before anything is created."""

from __future__ import annotations

import re
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from accept.backends.kubernetes import doctor_storage
from accept.backends.kubernetes.client import Api, ApiError, resolve_place
from accept.backends.kubernetes.doctor_storage import check_object, fine, lack, unchecked
from accept.backends.kubernetes.nodes import (
    expected_nodes,
    pod_request,
    query_fits,
    requires_affinity,
    shortage,
)
from accept.backends.kubernetes.objects import (
    CLAIM_TEMPLATES,
    JOBSET,
    LOCAL_QUEUES,
    MAIN_CONTAINER,
    NETWORK,
    SECRET,
    SERVICE_ACCOUNT,
    Document,
    list_at,
    text_at,
    texts_at,
    value_at,
)
from accept.backends.kubernetes.rbac import Rule, rights
from accept.backends.kubernetes.status import has_namespace
from accept.backends.kubernetes.submit import helm, last_line
from accept.backends.requirements import Need, Requirement, need_of, tool_need
from accept.core.by_key import by_key
from accept.core.error_codes import Code
from accept.core.errors import NotStarted
from accept.core.text import count, plain
from accept.plan.bundle import render
from accept.plan.chart import chart_folder
from accept.plan.helm_values import helm_values
from accept.plan.resolve import Resolved

#: JobSet 0.7.0 has this field, and 0.6.0 lacks it: github.com/kubernetes-sigs/jobset,
#: config/components/crd. 0.7.0 has all other fields that the chart sets, too.
_FIELD_OF_0_7 = (
    "spec.replicatedJobs.template.spec.template.spec.resourceClaims.resourceClaimTemplateName"
)


def check_controller(api: Api, run: Resolved) -> Iterator[Need]:
    """Check the controller of the pods: a JobSet of version 0.7 or newer, or a plain Job."""
    wanted = run.site.kubernetes.controller
    if wanted == "job":
        yield fine(Requirement.JOBSET, "not requested: a plain Job runs the pods")
        return
    versions = api.versions(JOBSET.group)
    if JOBSET.version in versions:
        yield _check_jobset_version(api)
    elif versions:
        found = f"{JOBSET.group} {', '.join(map(plain, versions))}, not {JOBSET.version}"
        yield lack(Requirement.JOBSET, found, "update JobSet, or set kubernetes.controller: job")
    elif wanted == "jobset":
        yield lack(
            Requirement.JOBSET, "not installed", "install JobSet, or set kubernetes.controller: job"
        )
    else:
        yield fine(Requirement.JOBSET, "not installed: a plain Job runs the pods")


def _check_jobset_version(api: Api) -> Need:
    """Check the version of JobSet by a field: old versions drop unknown fields silently."""
    served = f"{JOBSET.group} {JOBSET.version}"
    try:
        has_field = api.has_field(JOBSET, _FIELD_OF_0_7)
    except ApiError as error:
        return unchecked(
            Requirement.JOBSET, f"{served}; its fields cannot be read: {error.message}"
        )
    if not has_field:
        return lack(
            Requirement.JOBSET,
            "older than 0.7: it drops fields that the chart sets",
            "update JobSet to 0.7 or newer, or set kubernetes.controller: job",
        )
    return fine(Requirement.JOBSET, f"{served}, of JobSet 0.7 or newer")


def check_queue(api: Api, run: Resolved) -> Iterator[Need]:
    """Check that Kueue's LocalQueue exists and is active."""
    name = run.site.kubernetes.queue
    if not name:
        return
    try:
        by_name = {queue.name: queue for queue in api.find_served(LOCAL_QUEUES)}
    except ApiError as error:
        if not error.gone:
            yield unchecked(Requirement.QUEUE, f"{name} cannot be checked: {error.message}")
            return
        found = f"{name} is configured, but Kueue is not installed"
        yield lack(Requirement.QUEUE, found, "leave kubernetes.queue out")
        return
    if name not in by_name:
        available = ", ".join(sorted(by_name)) or "none"
        found = f"{name} is not in namespace {api.place.namespace}"
        advice = f"kubernetes.queue in the site file; available: {available}"
        yield lack(Requirement.QUEUE, found, advice)
        return
    active = by_name[name].condition("Active")
    if active is not None and not active.holds:
        found = f"{name} is not active: {plain(active.message or active.reason, 200)}"
        yield lack(Requirement.QUEUE, found, "ask the administrator of Kueue")
    else:
        yield fine(Requirement.QUEUE, name)


def check_networks(api: Api, run: Resolved) -> Iterator[Need]:
    """Check GKE's networks for the interfaces of the pods."""
    if run.pod.host_network or not run.pod.networks:
        return
    try:
        available = {network.name for network in api.find_all(NETWORK)}
    except ApiError as error:
        if not error.gone:
            yield unchecked(Requirement.NETWORKS, f"they cannot be checked: {error.message}")
            return
        available = set()
    missing = sorted({n.network for n in run.pod.networks} - available)
    if missing:
        names = ", ".join(sorted(available)) or "none"
        advice = f"kubernetes.networks in the site file; available: {names}"
        yield lack(Requirement.NETWORKS, f"missing: {', '.join(missing)}", advice)
    else:
        yield fine(Requirement.NETWORKS, ", ".join(n.network for n in run.pod.networks))


def check_named_objects(api: Api, run: Resolved) -> Iterator[Need]:
    """Check the service account and the pull secrets that the site file names."""
    k8s = run.site.kubernetes
    named = [(SERVICE_ACCOUNT, Requirement.SERVICE_ACCOUNT, k8s.service_account)]
    named += [(SECRET, Requirement.PULL_SECRET, name) for name in k8s.image_pull_secrets]
    for kind, code, name in named:
        if name:
            yield check_object(api, kind, code, name, "create it, or correct the site file")


def check_image(image: str | None) -> Need:
    """Check that the name of the image identifies one image."""
    if not image:
        return lack(Requirement.IMAGE, "none is set", "set kubernetes.image in the site file")
    last = image.rpartition("/")[2]
    if "@sha256:" in last:
        return fine(Requirement.IMAGE, image)
    if ":" in last and not last.endswith(":latest"):
        return fine(Requirement.IMAGE, f"{image}; a digest would be exact")
    advice = "name it with a tag or, better, a digest: NAME@sha256:..."
    return lack(Requirement.IMAGE, f"{image} may change without notice", advice)


def check_admission(api: Api, run: Resolved, version: str) -> Iterator[Need]:
    """Check that the cluster admits a pod of the run, by a server-side dry run."""
    if not run.site.kubernetes.image:
        return
    try:
        if not api.may("create", "pods", group="", namespace=api.place.namespace):
            yield unchecked(Requirement.ADMISSION, "not tested: this user may not create pods")
            return
        pod = _rendered_pod(api, run, version)
        admitted = api.try_pod(pod)
    except NotStarted as error:
        yield unchecked(Requirement.ADMISSION, f"not tested: {error.message}")
        return
    except ApiError as error:
        if error.passing or error.gone:
            yield unchecked(Requirement.ADMISSION, f"not tested: {error.message}")
        else:
            advice = "change the site file or the namespace (docs/kubernetes-rights.md)"
            yield lack(Requirement.ADMISSION, f"a pod is refused: {error.message}", advice)
        return
    given, limits = (_limits(of) for of in (pod, admitted))
    added = [f"{name}={plain(limits[name], 40)}" for name in ("cpu", "memory") if name in limits]
    if added and not {"cpu", "memory"} & given.keys():
        found = f"a pod is admitted, but a LimitRange or policy limits it to {', '.join(added)}"
        advice = "set kubernetes.resources in the site file, or measurements may be slow"
        yield lack(Requirement.ADMISSION, found, advice, good=True)
    else:
        yield fine(Requirement.ADMISSION, "a pod of the run is admitted (dry run)")


def _limits(pod: Document) -> Mapping[str, str]:
    containers = list_at(pod, "spec", "containers")
    main = next((c for c in containers if text_at(c, "name") == MAIN_CONTAINER), {})
    return texts_at(main, "resources", "limits")


def _rendered_pod(api: Api, run: Resolved, version: str) -> Document:
    """Return the pod that the chart makes of the run. Raises NotStarted if helm fails."""
    import yaml

    served = api.versions(CLAIM_TEMPLATES[0].group)
    known = [f"{kind.group}/{kind.version}" for kind in CLAIM_TEMPLATES if kind.version in served]
    with tempfile.TemporaryDirectory(prefix="accept-") as folder:
        values = Path(folder) / "values.yaml"
        values.write_text(helm_values(run, render(run)), encoding="utf-8")
        done = helm(
            api.place,
            *("template", "accept", str(chart_folder()), "--values", str(values)),
            *("--set", "attempt=doctor,site.controller=job,ssh.existingSecret=doctor"),
            *("--show-only", "templates/job.yaml", "--kube-version", version),
            *(word for api_version in known for word in ("--api-versions", api_version)),
        )
    if done.exit != 0:
        raise NotStarted(
            f"helm template: {last_line(done.errors)}", code=Code.HELM_FAILED, hint="see above"
        )
    template = value_at(yaml.safe_load(done.text), "spec", "template")
    marks = {key: texts_at(template, "metadata", key) for key in ("labels", "annotations")}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"generateName": "accept-doctor-", **marks},
        "spec": value_at(template, "spec"),
    }


_OLDEST_VERSION = (1, 31)
_NODES_SHOWN = 12


def doctor(run: Resolved) -> tuple[Need, ...]:
    """Return what the run needs from the cluster, whether the cluster has it, and what to do."""
    api = Api(resolve_place(run.place, run.site))
    try:
        version = api.version()
    except ApiError as error:
        return (lack(Requirement.API, error.message, error.hint or "try: kubectl get pods"),)
    found = [
        _version(version, api),
        *_tools(),
        *_namespace(api),
        *_rights(api, run),
        *check_controller(api, run),
        *check_queue(api, run),
        *_nodes(api, run),
        *check_networks(api, run),
        *doctor_storage.check_devices(api, run),
        *doctor_storage.check_plugin(api, run),
        *check_named_objects(api, run),
        *check_admission(api, run, version),
        check_image(run.site.kubernetes.image),
        *doctor_storage.check_results(api, run),
    ]
    return tuple(found)


def _version(version: str, api: Api) -> Need:
    text = plain(version, 60)
    numbers = [int(n) for n in re.findall(r"\d+", text)[:2]]
    found = f"{text}, context {api.place.context or 'of this pod'}"
    if tuple(numbers) < _OLDEST_VERSION:
        return lack(Requirement.API, found, "Kubernetes 1.31 or newer is needed")
    return fine(Requirement.API, found)


def _tools() -> Iterator[Need]:
    for tool, advice in (
        ("helm", "install helm 3 or 4: https://helm.sh"),
        ("ssh-keygen", "install the OpenSSH client"),
    ):
        yield tool_need("here", tool, shutil.which(tool) or "", advice)


def _namespace(api: Api) -> Iterator[Need]:
    name = api.place.namespace
    exists = has_namespace(api)
    if exists is None:
        yield unchecked(Requirement.NAMESPACE, f"{name}; this user may not read it")
    elif exists:
        yield fine(Requirement.NAMESPACE, name)
    else:
        yield lack(
            Requirement.NAMESPACE, f"{name} does not exist", f"kubectl create namespace {name}"
        )


def _rules_of_run(api: Api, run: Resolved) -> tuple[Rule, ...]:
    """Return the namespace's rules that this run uses, without those for kinds it never makes."""
    made = {
        "jobsets": run.site.kubernetes.controller != "job" and api.serves(JOBSET),
        "networkpolicies": run.site.kubernetes.network_policy,
        "resourceclaimtemplates": any(not c.template for c in run.pod.resource_claims),
        "computedomains": run.pod.compute_domain,
    }
    return tuple(
        rule for rule in rights().namespace if all(made.get(kind, True) for kind in rule.resources)
    )


def _rights(api: Api, run: Resolved) -> Iterator[Need]:
    """Yield one need for everything that is allowed, and one for each right that is missing."""
    try:
        questions = [
            (rule, resource, verb, namespace)
            for rules, namespace in (
                (_rules_of_run(api, run), api.place.namespace),
                (rights().cluster, ""),
            )
            for rule in rules
            for resource in rule.resources
            for verb in rule.verbs
        ]
        with ThreadPoolExecutor(8) as pool:
            answers = list(pool.map(lambda question: _may(api, *question), questions))
    except ApiError as error:
        yield unchecked(Requirement.RBAC, f"it cannot be checked: {error.message}")
        return
    refused = by_key(
        ((resource + " in the whole cluster" * (not namespace), rule.optional, rule.why), verb)
        for (rule, resource, verb, namespace), allowed in zip(questions, answers, strict=True)
        if not allowed
    )
    for (resource, optional, why), verbs in refused.items():
        found = f"not allowed to {', '.join(verbs)}: {why}"
        advice = "ask an administrator for this Role: accept doctor --backend kubernetes --rbac"
        yield lack(Requirement.RBAC, found, advice, good=optional, what=f"RBAC for {resource}")
    if not refused:
        yield fine(Requirement.RBAC, f"all {len(questions)} verbs that are used")


def _may(api: Api, rule: Rule, resource: str, verb: str, namespace: str) -> bool:
    """Return whether this user may use a verb on a resource."""
    return api.may(verb, resource, group=rule.group, namespace=namespace)


def _nodes(api: Api, run: Resolved) -> Iterator[Need]:
    """Yield machine, taints and free GPUs of the cluster, and then each node that is left out."""
    seconds = run.plan.start_seconds + run.plan.deadline_seconds
    wanted = pod_request(run.pod, run.site.kubernetes, seconds=seconds)
    try:
        found = query_fits(api, wanted)
    except ApiError as error:
        yield unchecked(Requirement.NODES, f"not counted: {error.message}")
        return
    matching, expected = [f for f in found if f.matches], expected_nodes(run.site)
    selector = ", ".join(f"{k}={v}" for k, v in wanted.selector.items()) or "any label"
    if not matching:
        reasons = "; ".join(f"{f.node}: {f.why}" for f in found[:3]) or "the cluster has no nodes"
        if expected:
            yield fine(Requirement.NODES, f"none with {selector} yet: {expected}")
            return
        advice = "check --machine, and nodeSelector and includeNodes in the site file"
        yield lack(Requirement.NODES, f"none with {selector}; {reasons}", advice)
        return
    yield fine(Requirement.NODES, f"{len(matching)} with {selector}")
    if requires_affinity(run.site):
        yield unchecked(
            Requirement.AFFINITY, "not checked: only the scheduler evaluates kubernetes.affinity"
        )
    what = wanted.resource or "nodes"
    nodes = run.plan.nodes or 1
    short = shortage(found, nodes, wanted)
    taints = sorted({t for f in matching for t in f.taints})
    if taints:
        # For example those of a control plane: harmless while the other nodes are enough.
        enough = not short or bool(expected)
        advice = "if you may use these nodes: kubernetes.tolerations in the site file"
        yield lack(Requirement.TAINTS, f"not tolerated: {', '.join(taints)}", advice, good=enough)
    if short:
        advice = expected or "wait for them, or request fewer --nodes"
        yield lack(Requirement.NODES_FREE, short, advice, good=bool(expected), what=f"free {what}")
    else:
        good = sum(1 for f in found if f.misfit is None)
        free = f"{count(nodes, 'node')} requested, {good} free"
        yield fine(Requirement.NODES_FREE, free, what=f"free {what}")
    lacking = [f for f in matching if f.misfit is not None]
    for fit in lacking[:_NODES_SHOWN]:
        why = f"left out: {fit.why}"
        yield need_of(Requirement.NODE_LEFT_OUT, why, host=fit.node, what=what)
    if len(lacking) > _NODES_SHOWN:
        more = f"{len(lacking) - _NODES_SHOWN} more nodes are left out"
        yield fine(Requirement.NODE_LEFT_OUT, more, what=what)
