"""List the rights that a user of this back end needs, and print them as a Role."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Rule:
    """Verbs on resources that a user of this back end needs."""

    group: str
    resources: tuple[str, ...]
    verbs: tuple[str, ...]
    why: str
    #: Whether a run also starts without it, but then reports less.
    optional: bool = False


_ALL = ("get", "list", "create", "patch", "update", "delete")
#: In the run's namespace.
RULES = (
    Rule(group="jobset.x-k8s.io", resources=("jobsets",), verbs=_ALL, why="to run the pods"),
    Rule(group="batch", resources=("jobs",), verbs=_ALL, why="to run and follow the pods"),
    Rule(group="", resources=("pods",), verbs=("get", "list", "delete"), why="to follow them"),
    Rule(
        group="",
        resources=("pods",),
        verbs=("create",),
        why="to test with a dry run whether the cluster admits the pods",
        optional=True,
    ),
    Rule(group="", resources=("pods/log",), verbs=("get",), why="to show and collect logs"),
    # A websocket is opened with GET; newer API servers check `create` as well.
    Rule(group="", resources=("pods/exec",), verbs=("create", "get"), why="to collect and cancel"),
    Rule(group="", resources=("secrets",), verbs=_ALL, why="for the run's key and helm's records"),
    Rule(group="", resources=("configmaps", "services"), verbs=_ALL, why="for what the pods run"),
    Rule(
        group="networking.k8s.io",
        resources=("networkpolicies",),
        verbs=_ALL,
        why="to keep other pods away from the run's pods",
    ),
    Rule(
        group="resource.k8s.io",
        resources=("resourceclaimtemplates",),
        verbs=_ALL,
        why="for machines whose devices are claimed (DRA)",
    ),
    Rule(
        group="resource.nvidia.com",
        resources=("computedomains",),
        verbs=_ALL,
        why="for machines of one NVLink domain",
    ),
    Rule(
        group="",
        resources=("events",),
        verbs=("get", "list"),
        why="to show why pods wait",
        optional=True,
    ),
    Rule(
        group="",
        resources=("serviceaccounts",),
        verbs=("get", "list"),
        why="to check the site file",
        optional=True,
    ),
    Rule(
        group="",
        resources=("persistentvolumeclaims",),
        verbs=("get",),
        why="to check where results go",
        optional=True,
    ),
    Rule(
        group="kueue.x-k8s.io",
        resources=("localqueues", "workloads"),
        verbs=("get", "list"),
        why="to show why a run is suspended",
        optional=True,
    ),
)
#: In the whole cluster.
CLUSTER_RULES = (
    Rule(
        group="",
        resources=("nodes", "pods"),
        verbs=("get", "list"),
        why="to count free nodes, and to report their state",
        optional=True,
    ),
    Rule(
        group="storage.k8s.io",
        resources=("storageclasses",),
        verbs=("get",),
        why="to check where results go",
        optional=True,
    ),
    Rule(
        group="kueue.x-k8s.io",
        resources=("topologies",),
        verbs=("get", "list"),
        why="to offer where a queue can place pods",
        optional=True,
    ),
    Rule(
        group="resource.k8s.io",
        resources=("deviceclasses",),
        verbs=("get", "list"),
        why="to check the claims of devices",
        optional=True,
    ),
    Rule(
        group="apps",
        resources=("daemonsets",),
        verbs=("list",),
        why="to look for what installs NCCL's plugin",
        optional=True,
    ),
    Rule(
        group="networking.gke.io",
        resources=("networks", "gkenetworkparamsets"),
        verbs=("get", "list"),
        why="to check the site file",
        optional=True,
    ),
)


def role_yaml(namespace: str) -> str:
    """Return the Role of a run, and the read-only ClusterRole, as YAML."""
    return (
        "# The rights of a user who starts a run; the pods need no rights on the API.\n"
        f"# kubectl create rolebinding accept -n {namespace} --role=accept --user=NAME\n"
        f"{_yaml('Role', {'name': 'accept', 'namespace': namespace}, RULES)}---\n"
        "# Reading only, to count free nodes before a start; a run starts without it.\n"
        "# kubectl create clusterrolebinding accept-look --clusterrole=accept-look --user=NAME\n"
        f"{_yaml('ClusterRole', {'name': 'accept-look'}, CLUSTER_RULES)}"
    )


def _yaml(kind: str, metadata: dict[str, str], rules: tuple[Rule, ...]) -> str:
    import yaml

    role = {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": kind,
        "metadata": metadata,
        "rules": [
            {"apiGroups": [r.group], "resources": list(r.resources), "verbs": list(r.verbs)}
            for r in rules
        ],
    }
    text: str = yaml.safe_dump(role, sort_keys=False)
    return text
