"""Read the rights of rendered pods: security contexts, volumes, the node's namespaces."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from accept.backends.kubernetes.objects import list_at, text_at, value_at

#: Capabilities that the standard `baseline` allows to add.
BASELINE = {
    *("AUDIT_WRITE", "CHOWN", "DAC_OVERRIDE", "FOWNER", "FSETID", "KILL", "MKNOD"),
    *("NET_BIND_SERVICE", "SETFCAP", "SETGID", "SETPCAP", "SETUID", "SYS_CHROOT"),
}


def _names(document: object, *path: str) -> frozenset[str]:
    found = value_at(document, *path)
    return frozenset(map(str, found)) if isinstance(found, list) else frozenset()


@dataclass(frozen=True, kw_only=True)
class ContainerRights:
    """The rights of a container."""

    name: str
    is_privileged: bool
    #: Kubernetes' default is that it can.
    can_gain_rights: bool
    added: frozenset[str]
    dropped: frozenset[str]
    has_host_ports: bool
    #: Names of the volumes that it can write to.
    writes: frozenset[str]


@dataclass(frozen=True, kw_only=True)
class PodRights:
    """The rights of a pod and its containers."""

    containers: tuple[ContainerRights, ...]
    #: `hostNetwork`, `hostPID`, `hostIPC`.
    host_namespaces: frozenset[str]
    #: Types of the volumes, and the folders of the node by name of the volume.
    volumes: frozenset[str]
    folders: Mapping[str, str]
    seccomp: str
    is_non_root: bool
    user: object

    @property
    def main(self) -> ContainerRights:
        """Return the container that runs the suite."""
        (main,) = (one for one in self.containers if one.name == "accept")
        return main

    @property
    def added(self) -> frozenset[str]:
        """Return the capabilities that any container adds."""
        return frozenset[str]().union(*(one.added for one in self.containers))

    @property
    def is_privileged(self) -> bool:
        """Return True if a container is privileged."""
        return any(one.is_privileged for one in self.containers)

    @property
    def standard(self) -> str:
        """Return the strictest Pod Security Standard that the pod meets.

        https://kubernetes.io/docs/concepts/security/pod-security-standards/
        """
        if self.host_namespaces or self.folders or self.is_privileged or self.added - BASELINE:
            return "privileged"
        is_restricted = (
            self.is_non_root
            and self.user != 0
            and self.seccomp in ("RuntimeDefault", "Localhost")
            and self.added <= {"NET_BIND_SERVICE"}
            and not any(one.can_gain_rights for one in self.containers)
            and all("ALL" in one.dropped for one in self.containers)
        )
        return "restricted" if is_restricted else "baseline"


def pod_rights(spec: object) -> PodRights:
    """Read the rights of a pod from its spec."""
    containers = [*list_at(spec, "initContainers"), *list_at(spec, "containers")]
    volumes = list_at(spec, "volumes")
    return PodRights(
        containers=tuple(map(_container, containers)),
        host_namespaces=frozenset(
            key for key in ("hostNetwork", "hostPID", "hostIPC") if value_at(spec, key)
        ),
        volumes=frozenset(key for volume in volumes for key in volume if key != "name"),
        folders={
            text_at(volume, "name"): text_at(volume, "hostPath", "path")
            for volume in volumes
            if "hostPath" in volume
        },
        seccomp=text_at(spec, "securityContext", "seccompProfile", "type"),
        is_non_root=bool(value_at(spec, "securityContext", "runAsNonRoot")),
        user=value_at(spec, "securityContext", "runAsUser"),
    )


def _container(container: object) -> ContainerRights:
    context = value_at(container, "securityContext")
    return ContainerRights(
        name=text_at(container, "name"),
        is_privileged=bool(value_at(context, "privileged")),
        can_gain_rights=value_at(context, "allowPrivilegeEscalation") is not False,
        added=_names(context, "capabilities", "add"),
        dropped=_names(context, "capabilities", "drop"),
        has_host_ports=any("hostPort" in port for port in list_at(container, "ports")),
        writes=frozenset(
            text_at(mount, "name")
            for mount in list_at(container, "volumeMounts")
            if not mount.get("readOnly")
        ),
    )
