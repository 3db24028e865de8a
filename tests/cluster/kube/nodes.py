"""A node of the test cluster: a host with a containerd and a kubelet of its own."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
import textwrap
from contextlib import suppress
from pathlib import Path

from tests.cluster.folders import PREFIX
from tests.cluster.hosts import Hosts
from tests.cluster.kube.build import program
from tests.cluster.kube.control import FOLDER, SERVICES, kill, listens, start, until, write
from tests.cluster.kube.image import PAUSE

SOCKET = f"{FOLDER}/containerd.sock"
_CGROUPS = Path("/sys/fs/cgroup")
_KUBELET_PORT = 10250
#: A collector that looks after every 50 times of what it takes wakes up all the time, as there is
#: next to nothing to collect: twice what a node without work takes otherwise.
_CONTAINERD = f"""\
version = 2
root = "{FOLDER}/containerd"
state = "{FOLDER}/containerd-state"
[grpc]
  address = "{SOCKET}"
[plugins."io.containerd.gc.v1.scheduler"]
  pause_threshold = 0.0005
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "{PAUSE}"
  restrict_oom_score_adj = true
  disable_apparmor = true
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "/usr/lib/cni"
    conf_dir = "{FOLDER}/cni"
  [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
    runtime_type = "io.containerd.runc.v2"
"""


def pods(index: int) -> str:
    """Return the subnet of the pods of the node with this index."""
    return f"10.244.{index}.0/24"


def kubelet_config(dns: str, group: str) -> str:
    """Return the kubelet's configuration. `group` is the cgroup of all its pods.

    The kubelet renews a lease every two seconds, which costs less than sending its full status.
    """
    return textwrap.dedent(f"""\
        apiVersion: kubelet.config.k8s.io/v1beta1
        kind: KubeletConfiguration
        authentication: {{anonymous: {{enabled: true}}, webhook: {{enabled: false}}}}
        authorization: {{mode: AlwaysAllow}}
        cgroupDriver: cgroupfs
        cgroupRoot: /{group}
        enforceNodeAllocatable: []
        failCgroupV1: false
        failSwapOn: false
        oomScoreAdj: 0
        containerRuntimeEndpoint: unix://{SOCKET}
        clusterDomain: cluster.local
        clusterDNS: ["{dns}"]
        resolvConf: {FOLDER}/resolv.conf
        imageGCHighThresholdPercent: 100
        evictionHard: {{nodefs.available: "0%", imagefs.available: "0%", memory.available: "10Mi"}}
        podLogsDir: {FOLDER}/pod-logs
        healthzPort: 0
        makeIPTablesUtilChains: false
        nodeStatusUpdateFrequency: 2s
        nodeStatusReportFrequency: 1m
        nodeLeaseDurationSeconds: 8
        """)


def prepare(
    hosts: Hosts, name: str, index: int, *, kubeconfig: str, authority: str, dns: str
) -> None:
    """Write what a node's processes read, and lay the routes to the pods of the others."""
    network = {
        "cniVersion": "0.4.0",
        "name": "pods",
        "plugins": [
            {
                "type": "bridge",
                "bridge": "cni0",
                "isGateway": True,
                "ipam": {
                    "type": "host-local",
                    "dataDir": f"{FOLDER}/ipam",
                    "ranges": [[{"subnet": pods(index)}]],
                    "routes": [{"dst": "0.0.0.0/0"}],
                },
            }
        ],
    }
    for file, text in {
        "containerd.toml": _CONTAINERD,
        "cni/10-pods.conflist": json.dumps(network),
        "resolv.conf": f"nameserver {dns}\n",
        "kubeconfig": kubeconfig,
        "ca.crt": authority,
        "kubelet.yaml": kubelet_config(dns, group(hosts, name)),
    }.items():
        write(hosts, name, f"{FOLDER}/{file}", text)
    hosts.run(name, "echo 1 >/proc/sys/net/ipv4/ip_forward")
    _make_groups(hosts, name)


def group(hosts: Hosts, name: str) -> str:
    """Return the cgroup of a node's pods, the only part of a node that is outside of it."""
    return f"{hosts.state.name}-{name}"


def _make_groups(hosts: Hosts, name: str) -> None:
    for hierarchy in _hierarchies():
        folder = hierarchy / group(hosts, name)
        folder.mkdir(exist_ok=True)
        # A cpuset begins empty, and then takes no process.
        for file in ("cpuset.cpus", "cpuset.mems"):
            if (folder / file).exists():
                (folder / file).write_text((hierarchy / file).read_text())


def _hierarchies() -> list[Path]:
    if (_CGROUPS / "cgroup.controllers").exists():
        return [_CGROUPS]
    return [p for p in _CGROUPS.iterdir() if p.is_dir() and not p.is_symlink()]


def remove_groups(prefix: str) -> None:
    """Remove the cgroups whose name begins with `prefix`, once their processes are gone."""
    for hierarchy in _hierarchies():
        for top in hierarchy.glob(f"{prefix}*"):
            # Another cluster may be removing the same ones: `walk` takes no notice of that.
            for folder, _, _ in os.walk(top, topdown=False):
                with suppress(OSError):
                    Path(folder).rmdir()


def sweep_groups() -> None:
    """Remove the cgroups of clusters whose process was killed: their state folder is gone."""
    names = {p.name for h in _hierarchies() for p in h.glob(f"{PREFIX}*")}
    for name in names:
        state = name.rpartition("-")[0]
        if not (Path(tempfile.gettempdir()) / state).exists():
            remove_groups(name)


def start_containerd(hosts: Hosts, name: str, archives: tuple[Path, ...]) -> None:
    """Start a node's containerd and give it the images."""
    log = start(hosts, name, "containerd", ["containerd", "-c", f"{FOLDER}/containerd.toml"])
    # The kubelet gives up for good where it comes before the part that serves it.
    ready = f"ctr --address {SOCKET} plugins list | grep -q '[[:space:]]cri[[:space:]].*ok'"
    until(
        f"containerd on {name}",
        lambda: hosts.run(name, ready, check=False).returncode == 0,
        log,
    )
    for archive in archives:
        load(hosts, name, archive)


def load(hosts: Hosts, name: str, archive: Path) -> None:
    """Import an image archive on a node."""
    target = hosts.path(name, f"{FOLDER}/image.tar")
    shutil.copyfile(archive, target)
    hosts.run(
        name,
        f"ctr --address {SOCKET} --namespace k8s.io images import {FOLDER}/image.tar",
        timeout=300,
    )
    target.unlink()


def unload(hosts: Hosts, name: str, image: str) -> None:
    """Remove an image, and what it takes, from a node."""
    hosts.run(name, f"ctr --address {SOCKET} --namespace k8s.io images remove --sync {image}")


def start_kubelet(hosts: Hosts, name: str) -> None:
    """Start a node's kubelet, also after `stop_kubelet`, and wait until it serves exec and logs."""
    log = start(
        hosts,
        name,
        "kubelet",
        [
            str(program("kubelet")),
            f"--config={FOLDER}/kubelet.yaml",
            f"--kubeconfig={FOLDER}/kubeconfig",
            f"--root-dir={FOLDER}/kubelet",
            f"--hostname-override={name}",
            f"--node-ip={hosts.address(name)}",
        ],
    )
    until(f"the kubelet on {name}", lambda: listens(hosts, name, _KUBELET_PORT), log)


def start_proxy(hosts: Hosts, name: str, kubeconfig: str) -> None:
    """Start a node's kube-proxy, so that pods reach the addresses of Services."""
    # Nodes have no default route here, and a pod in the network of its node needs one that matches.
    hosts.run(name, f"ip route replace {SERVICES} dev eth0")
    write(hosts, name, f"{FOLDER}/proxy.kubeconfig", kubeconfig)
    command = [
        str(program("kube-proxy")),
        f"--kubeconfig={FOLDER}/proxy.kubeconfig",
        f"--hostname-override={name}",
        "--proxy-mode=iptables",
        # Pods of one node answer each other past the node's rules: the bridge does not call them.
        "--masquerade-all",
        # The kernel's limits are those of the whole machine.
        "--conntrack-max-per-core=0",
        "--conntrack-tcp-timeout-established=0",
        "--conntrack-tcp-timeout-close-wait=0",
        "--healthz-bind-address=",
        "--metrics-bind-address=127.0.0.1:10249",
    ]
    start(hosts, name, "kube-proxy", command)


def stop_kubelet(hosts: Hosts, name: str) -> None:
    """Stop a node's kubelet; its pods go on."""
    kill(hosts, name, "[k]ubelet.*--hostname-override")
