"""List the rights that a user of this back end needs, and print them as a Role."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from accept.config.yaml_file import read_values


@dataclass(frozen=True, kw_only=True)
class Rule:
    """Verbs on resources that a user of this back end needs."""

    group: str
    resources: tuple[str, ...]
    verbs: tuple[str, ...]
    why: str
    #: Whether a run also starts without it, but then reports less.
    optional: bool = False


@dataclass(frozen=True, kw_only=True)
class Rights:
    """The content of `values/rights.yaml`."""

    #: In the run's namespace.
    namespace: tuple[Rule, ...]
    #: In the whole cluster.
    cluster: tuple[Rule, ...]


@lru_cache(maxsize=1)
def rights() -> Rights:
    """Return the rights that a run needs."""
    return read_values(Rights, "rights")


def role_yaml(namespace: str) -> str:
    """Return the Role of a run, and the read-only ClusterRole, as YAML."""
    return (
        "# The rights of a user who starts a run; the pods need no rights on the API.\n"
        f"# kubectl create rolebinding accept -n {namespace} --role=accept --user=NAME\n"
        f"{_yaml('Role', {'name': 'accept', 'namespace': namespace}, rights().namespace)}---\n"
        "# Reading only, to count free nodes before a start; a run starts without it.\n"
        "# kubectl create clusterrolebinding accept-look --clusterrole=accept-look --user=NAME\n"
        f"{_yaml('ClusterRole', {'name': 'accept-look'}, rights().cluster)}"
    )


def _yaml(kind: str, metadata: dict[str, str], rules: Sequence[Rule]) -> str:
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
