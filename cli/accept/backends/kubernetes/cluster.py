"""Implement commands that start nothing: list free nodes, print permissions, write a site file."""

from __future__ import annotations

from accept.backends.kubernetes import nodes, rbac
from accept.backends.kubernetes import survey as cluster_survey
from accept.backends.kubernetes.client import Api, before_start, resolve_place
from accept.backends.protocol import FreeNodes
from accept.config import Site, load_machine, load_site, load_suite, site_tools
from accept.core.error_codes import Code
from accept.core.errors import BadInput, NotStarted
from accept.plan.placement import gpu_resource, pod_settings
from accept.plan.resolve import ClusterPlace, Options, gpus_to_use


def free_nodes(options: Options) -> FreeNodes:
    """Return every node that the run matches and that has all its GPUs free.

    Raises NotStarted if there is none, or if the cluster cannot be reached.
    """
    loaded = load_site(options.site) if options.site else None
    site = loaded.value if loaded else Site()
    if nodes.requires_affinity(site):
        raise BadInput(
            "the free nodes cannot be listed: the site file has a required node affinity "
            "(kubernetes.affinity), which only the scheduler evaluates",
            code=Code.KUBE_NODES_AFFINITY,
            hint="use kubernetes.nodeSelector instead, or name the nodes: --nodes a,b,c",
        )
    with before_start():
        api = Api(resolve_place(options.place, site))
        name = options.machine or nodes.detect_machine(api)
        machine = load_machine(name).value
        used = gpus_to_use(machine, site, options)
        detects = machine.gpus.count == "detect"
        # If a machine states how many GPUs a node has, pods take whole nodes: see gpus_of_pod.
        gpus = site.kubernetes.gpus_per_pod or (used if detects else None)
        pod = pod_settings(machine.kubernetes, site.kubernetes, gpus)
        if detects and not gpu_resource(pod.resources):
            # A node without any GPU is not of this machine type.
            pod = pod_settings(machine.kubernetes, site.kubernetes, 1)
        suite = load_suite(options.suite, site_tools(loaded)).value
        deadline = options.deadline or site.deadline or suite.deadline
        wanted = nodes.pod_request(pod, site.kubernetes, seconds=deadline)
        fits = nodes.query_fits(api, wanted)
        free = nodes.free_nodes(fits)
    if not free.names:
        reasons = nodes.misfits(fits, wanted) or "other pods use GPUs of each"
        raise NotStarted(
            f"no {name} node of this cluster is free; {reasons}",
            code=Code.KUBE_NODES_NONE_FREE,
            hint="more about a node: kubectl describe node NAME",
        )
    return free


def allocated_nodes() -> tuple[str, ...]:
    """Return no node: a run on Kubernetes gets its nodes when it starts."""
    return ()


def role(place: ClusterPlace, site: Site) -> str:
    """Return the Role and RoleBinding that a run needs, as YAML."""
    try:
        namespace = resolve_place(place, site).namespace
    except (NotStarted, BadInput):
        # The Role can be printed before there is any access, and without the Kubernetes client.
        # But a kubeconfig or context that the user names must exist.
        if place.kubeconfig or place.context:
            raise
        namespace = place.namespace or site.kubernetes.namespace or "default"
    return rbac.role_yaml(namespace)


def survey(options: Options) -> cluster_survey.Survey:
    """Return what the cluster shows of what a site file needs. Raises NotStarted."""
    with before_start():
        return cluster_survey.survey_cluster(Api(resolve_place(options.place, Site())))
