"""Compare pods of Google's machines with the manifests in Google's public repositories.

Each entry has the fields by which NCCL finds its network: interfaces, claims, folders of the node,
daemon, capabilities and driver paths. docs/machines.md has the differences and their reasons.
"""

from __future__ import annotations

import json
from typing import Any

import pytest
from tests.factories.chart_runs import Write
from tests.factories.helm import container, environment, job, notes_of, objects, pod

from accept.config.chart_rules import chart_rules

pytestmark = pytest.mark.real

NVIDIA, GIB = "/home/kubernetes/bin/nvidia", "/home/kubernetes/bin/gib"
TCPX = "us-docker.pkg.dev/gce-ai-infra/gpudirect-tcpx/tcpgpudmarxd-dev:v2.0.15"
TCPXO = "us-docker.pkg.dev/gce-ai-infra/gpudirect-tcpxo/tcpgpudmarxd-dev:v1.0.21"


def rdma(first: int, count: int) -> list[str]:
    """Return eth0 and the interfaces of NICs for RDMA with their networks."""
    return ["eth0=default", *(f"eth{first + n}=rdma-{n}" for n in range(count))]


def vpc(count: int) -> list[str]:
    return ["eth0=default", *(f"eth{n}=vpc{n}" for n in range(1, count + 1))]


def seen(found: Any) -> dict[str, Any]:
    """Return the fields of a rendered pod that affect its network."""
    spec, main = pod(found), container(found)
    folders = {v["name"]: v["hostPath"]["path"] for v in spec["volumes"] if "hostPath" in v}
    listed = json.loads(notes_of(found).get("networking.gke.io/interfaces", "[]"))
    inits = spec.get("initContainers", [])
    requests = [
        request["exactly"]
        for kind, one in found.items()
        if kind.startswith("ResourceClaimTemplate")
        for request in one["spec"]["spec"]["devices"]["requests"]
    ]
    shared = next(v["emptyDir"] for v in spec["volumes"] if v["name"] == "accept-shm")
    return {
        "interfaces": [f"{one['interfaceName']}={one['network']}" for one in listed],
        "claims": {one["deviceClassName"]: one["count"] for one in requests},
        "folders": {
            mount["mountPath"]: folders[mount["name"]]
            for mount in main["volumeMounts"]
            if mount["name"] in folders
        },
        "daemon": [one["image"] for one in inits if one.get("restartPolicy") == "Always"],
        "capabilities": [
            name
            for name in main["securityContext"].get("capabilities", {}).get("add", [])
            if name not in chart_rules().sshd_capabilities
        ],
        "gpus": main["resources"]["limits"]["nvidia.com/gpu"],
        "shm": shared["sizeLimit"],
        "libraries": environment(found)["ACCEPT_LIBRARY_PATH"],
    }


NONE: dict[str, Any] = {"interfaces": [], "claims": {}, "folders": {}, "daemon": []} | {
    "capabilities": [], "shm": "250Gi", "gpus": 8,
}  # fmt: skip
GIB_NODE = {
    "folders": {"/usr/local/nvidia": NVIDIA, "/usr/local/gib": GIB},
    "libraries": "/usr/local/gib/lib64:/usr/local/nvidia/lib64",
}
MAKERS = {
    # container-engine-accelerators, gpudirect-rdma/nccl-test-a4.yaml and nccl-test.yaml
    "a4-highgpu-8g": {**NONE, **GIB_NODE, "interfaces": rdma(2, 8)},
    "a3-ultragpu-8g": {**NONE, **GIB_NODE, "interfaces": rdma(2, 8)},
    # container-engine-accelerators, gpudirect-tcpxo/nccl-test-latest.yaml
    "a3-megagpu-8g": {
        **NONE,
        "interfaces": vpc(8),
        "folders": {
            "/usr/local/nvidia": NVIDIA,
            "/dev/aperture_devices": "/dev/aperture_devices",
        },
        "daemon": [TCPXO],
        "libraries": "/usr/local/nvidia/lib64",
    },
    # container-engine-accelerators, gpudirect-tcpx/nccl-test-latest.yaml and README.md
    "a3-highgpu-8g": {
        **NONE,
        "interfaces": vpc(4),
        "folders": {"/usr/local/nvidia/lib64": f"{NVIDIA}/lib64", "/run/tcpx": "/run/tcpx"},
        "daemon": [TCPX],
        "capabilities": ["IPC_LOCK"],
        "libraries": "/usr/local/nvidia/lib64",
    },
    # cluster-toolkit, examples/gke-a4x/nccl-jobset-example.yaml
    "a4x-highgpu-4g": {**NONE, **GIB_NODE, "claims": {"mrdma.google.com": 4}, "gpus": 4},
    # cluster-toolkit, examples/gke-a4x-max-bm/nccl-jobset-example.yaml
    "a4x-maxgpu-4g-metal": {
        **NONE,
        "claims": {"mrdma.google.com": 8},
        "folders": {"/usr/local/nvidia": NVIDIA},
        "capabilities": ["IPC_LOCK"],
        "gpus": 4,
        "libraries": "/usr/local/nvidia/lib64:/usr/local/gib/lib64",
    },
    # cluster-toolkit, examples/gke-g4/nccl-test.yaml
    "g4-standard-384": {**NONE, "shm": "2Gi", "libraries": "/usr/local/nvidia/lib64"},
}
MANAGED = """\
  resourceClaims:
    - name: rdma
      devices:
        requests:
          - name: req-mrdma
            exactly: {deviceClassName: mrdma.google.com, allocationMode: ExactCount, count: 8}
"""


@pytest.mark.parametrize("machine", MAKERS)
def test_pods_are_like_the_makers(machine: str, write: Write) -> None:
    found = objects(4, write(machine))
    assert seen(found) == MAKERS[machine]
    assert not pod(found)["hostNetwork"]
    # As in gpu-recipes: GKE adds this taint before it maintains a node.
    tolerated = {toleration["key"] for toleration in pod(found)["tolerations"]}
    assert "cloud.google.com/impending-node-termination" in tolerated


def test_pods_of_a4_are_like_the_makers_with_claims(write: Write) -> None:
    """As in gpudirect-rdma/nccl-test-managed-rdma.yaml."""
    found = seen(objects(4, write("a4-highgpu-8g", site=MANAGED)))
    assert found == {**NONE, **GIB_NODE, "claims": {"mrdma.google.com": 8}}


def test_pods_that_install_gib_are_like_googles_recipes(write: Write) -> None:
    """As in gpu-recipes, src/helm-charts/a4/jobset: no folder of the node, and no daemon."""
    found = objects(4, write("a4-highgpu-8g", site="  plugin: init\n"))
    assert seen(found)["folders"] == {}
    (installer,) = pod(found)["initContainers"]
    assert "nccl-plugin-gib:" in installer["image"]
    mounted = {mount["name"]: mount["mountPath"] for mount in container(found)["volumeMounts"]}
    assert mounted["gib"] == "/usr/local/gib"
    assert job(found)["parallelism"] == 2
