"""Which cluster and namespace are meant, found as kubectl finds them.

--kubeconfig, $KUBECONFIG, ~/.kube/config, the context named or the current one, else the service
account of the pod this runs in.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from accept.config.extras import Extra, install_hint
from accept.core.errors import BadInput, NotStarted
from accept.core.text import plain

_IN_CLUSTER = Path("/var/run/secrets/kubernetes.io/serviceaccount")


@dataclass(frozen=True, kw_only=True)
class Place:
    """A namespace of a cluster; texts that are empty mean what kubectl would take."""

    kubeconfig: str = ""
    context: str = ""
    namespace: str = ""

    def helm(self) -> tuple[list[str], dict[str, str]]:
        """Options and environment that send helm to the same place."""
        options = ["--namespace", self.namespace]
        if self.context:
            options += ["--kube-context", self.context]
        # As an environment variable it may be several files, as an option only one.
        return options, {"KUBECONFIG": self.kubeconfig} if self.kubeconfig else {}


def find(kubeconfig: str = "", context: str = "", namespace: str = "") -> Place:
    """The place that is meant, nothing left open. Raises NotStarted where there is no cluster."""
    config = client_config()
    named = kubeconfig or os.environ.get("KUBECONFIG", "")
    files = [str(Path(f).expanduser().absolute()) for f in named.split(os.pathsep) if f]
    if not files and not (Path.home() / ".kube" / "config").is_file():
        if not context and (_IN_CLUSTER / "token").is_file():
            own = (_IN_CLUSTER / "namespace").read_text(encoding="utf-8").strip()
            return Place(namespace=namespace or own)
        raise NotStarted(
            "there is no kubeconfig here",
            hint="give --kubeconfig FILE, or set KUBECONFIG, as for kubectl",
        )
    kubeconfig = os.pathsep.join(files) or str(Path.home() / ".kube" / "config")
    try:
        contexts, current = config.list_kube_config_contexts(config_file=kubeconfig)
    except Exception as error:
        raise NotStarted(
            f"{plain(kubeconfig)}: {plain(error)}", hint="try: kubectl config get-contexts"
        ) from None
    by_name = {c["name"]: c["context"] for c in contexts or ()}
    context = context or (current or {}).get("name", "")
    if context not in by_name:
        there = ", ".join(sorted(by_name)) or "none"
        raise NotStarted(
            f"there is no context {plain(context)!r}", hint=f"give --context; there are: {there}"
        )
    return Place(
        kubeconfig=kubeconfig,
        context=context,
        namespace=namespace or by_name[context].get("namespace") or "default",
    )


def client_config() -> Any:
    """Return the module of the Kubernetes client that reads kubeconfigs.

    Raises BadInput if the client is not installed.
    """
    try:
        from kubernetes import config
    except ImportError:
        raise BadInput(
            "the Kubernetes client is not installed here",
            hint=install_hint(Extra.KUBERNETES),
        ) from None
    return config
