"""A real Kubernetes on this machine: every node a host of `tests.cluster.hosts`.

    with Cluster(3) as cluster:
        cluster.kubectl("get", "nodes")

h1 runs the control plane and the bucket server; the other hosts are the nodes. Everything ends with
the process that created it, however that process ends: no process, mount, link or file is left.
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
import socket
import ssl
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from http import HTTPStatus
from pathlib import Path
from typing import Any, Self
from urllib.error import HTTPError

from tests.cluster import folders
from tests.cluster.hosts import Hosts
from tests.cluster.hosts import why_not as why_no_hosts
from tests.cluster.kube import control, nodes
from tests.cluster.kube.build import SHORT_LIVED, cache, program
from tests.cluster.kube.control import FOLDER, until
from tests.cluster.kube.image import archives
from tests.cluster.network import inside

CONTROL = "h1"
TOOLS = ("containerd", "ctr", "runc", "openssl", "debootstrap")
#: What the nodes keep in memory: images, and what pods write.
_SIZE = "6g"
_WATCHES = 1024
#: Longest wait for what the controllers put into a new namespace, in seconds.
_FURNISHED = 300.0
_ROOT = Path(__file__).resolve().parents[3]
#: A socket belongs to the network it was made in, whoever holds it.
_LISTEN = """\
import socket, sys
made = socket.create_server((sys.argv[1], 0))
socket.send_fds(socket.socket(fileno=int(sys.argv[2])), [b"x"], [made.fileno()])
"""


def why_not() -> str:
    """Return why this machine cannot create a cluster, or "" if it can."""
    if reason := why_no_hosts():
        return reason
    path = f"{os.environ['PATH']}:/usr/sbin:/sbin"
    missing = [tool for tool in TOOLS if not shutil.which(tool, path=path)]
    if not Path("/usr/lib/cni/bridge").exists():
        missing.append("CNI plugins")
    if missing:
        return f"a cluster needs {', '.join(missing)}: see tests/debian-packages.txt"
    return ""


def _allow_watches() -> None:
    """Raise the limit of inotify instances: the usual 128 is enough for about one cluster."""
    limit = Path("/proc/sys/fs/inotify/max_user_instances")
    if int(limit.read_text()) < _WATCHES:
        limit.write_text(str(_WATCHES))


class Cluster:
    """A cluster of `count` nodes that runs during the `with` block."""

    def __init__(self, count: int = 3) -> None:
        self.hosts = Hosts(
            count + 1, rate=None, late=self._names(count + 1), share=[cache()], size=_SIZE
        )
        self.nodes = self.hosts.names[1:]
        self._authority = ""
        self._opener: urllib.request.OpenerDirector | None = None
        self._shared: list[Path] = []

    @staticmethod
    def _names(count: int) -> tuple[str, ...]:
        return tuple(f"h{number}" for number in range(1, count + 1))

    # The beginning and the end.

    def __enter__(self) -> Self:
        images = archives()
        _allow_watches()
        self.hosts.__enter__()
        nodes.sweep_groups()
        try:
            self.folder.mkdir(mode=0o700)
            self._start_control()
            with ThreadPoolExecutor(4) as pool:
                list(pool.map(lambda node: self._start_node(node, images), self.nodes))
            control.install_jobset(self.hosts, CONTROL, self._output, self._authority)
            for node in self.nodes:
                self.wait_ready(node)
        except BaseException:
            self.keep_logs()
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the cluster and remove everything created for it. May be called twice."""
        for folder in self._shared:
            shutil.rmtree(folder, ignore_errors=True)
        prefix = self.hosts.state.name if hasattr(self.hosts, "state") else ""
        self.hosts.close()
        if prefix:
            nodes.remove_groups(prefix)

    def _start_control(self) -> None:
        self._tokens = control.tokens(self.nodes)
        self._authority = control.certificates(self.hosts, CONTROL)
        (self.folder / "ca.crt").write_text(self._authority)
        self._write_config("admin", self._tokens.admin)
        lines = [
            f"{self._tokens.admin},admin,admin,system:masters",
            f"{self._tokens.proxy},system:kube-proxy,system:kube-proxy",
        ]
        lines += [
            f"{token},system:node:{name},{name},system:nodes"
            for name, token in self._tokens.nodes.items()
        ]
        control.write(self.hosts, CONTROL, f"{FOLDER}/tokens.csv", "\n".join(lines) + "\n")
        config = control.kubeconfig("127.0.0.1", self._tokens.admin, f"{FOLDER}/pki/ca.crt")
        control.write(self.hosts, CONTROL, f"{FOLDER}/admin.kubeconfig", config)
        for index in range(len(self.nodes)):
            route = f"ip route add {nodes.pods(index)} via {self.hosts.address(self.nodes[index])}"
            for name in (CONTROL, *self.nodes):
                if name != self.nodes[index]:
                    self.hosts.run(name, route)
        control.start_etcd(self.hosts, CONTROL)
        self._start_api_server()
        control.start_controllers(self.hosts, CONTROL)
        control.start_bucket(self.hosts, CONTROL)

    def _start_node(self, name: str, images: Sequence[Path]) -> None:
        config = control.kubeconfig(
            self.hosts.address(CONTROL), self._tokens.nodes[name], f"{FOLDER}/ca.crt"
        )
        nodes.prepare(
            self.hosts,
            name,
            self.nodes.index(name),
            kubeconfig=config,
            authority=self._authority,
            dns=self.hosts.address(CONTROL),
        )
        nodes.start_containerd(self.hosts, name, tuple(images))
        nodes.start_kubelet(self.hosts, name)
        proxy = control.kubeconfig(
            self.hosts.address(CONTROL), self._tokens.proxy, f"{FOLDER}/ca.crt"
        )
        nodes.start_proxy(self.hosts, name, proxy)

    def wait_ready(self, node: str, *, ready: bool = True) -> None:
        """Wait until a node is Ready, or no longer is."""
        path = "{.status.conditions[?(@.type=='Ready')].status}"
        command = ("get", "node", node, "-o", f"jsonpath={path}", "--ignore-not-found")
        log = self.hosts.path(node, f"{FOLDER}/kubelet.log") if ready else None
        until(
            f"node {node}",
            lambda: (self.kubectl(*command, check=False).stdout == "True") == ready,
            log,
        )

    # Talking to it.

    @property
    def folder(self) -> Path:
        """Return the folder of this cluster on the workstation."""
        return self.hosts.state / "kubernetes"

    @property
    def kubeconfig(self) -> Path:
        """Return the administrator's kubeconfig."""
        return self.folder / "admin.kubeconfig"

    def _write_config(self, name: str, token: str) -> Path:
        path = self.folder / f"{name}.kubeconfig"
        path.touch(mode=0o600)
        authority = str(self.folder / "ca.crt")
        path.write_text(control.kubeconfig(self.hosts.address(CONTROL), token, authority))
        return path

    def kubectl(
        self, *arguments: str, check: bool = True, stdin: str = "", timeout: float = 120.0
    ) -> subprocess.CompletedProcess[str]:
        """Run kubectl as the administrator. Raise CalledProcessError with its output."""
        # A cache of its own: another cluster may have had this address.
        options = ["--kubeconfig", str(self.kubeconfig), "--cache-dir", str(self.folder / "cache")]
        command = [str(program("kubectl")), *options, *arguments]
        done = subprocess.run(
            command,
            env={**os.environ, **SHORT_LIVED},
            input=stdin,
            capture_output=True,
            text=True,
            check=False,
            timeout=timeout,
        )
        if check and done.returncode:
            sys.stderr.write(done.stderr)
            raise subprocess.CalledProcessError(done.returncode, command, done.stdout, done.stderr)
        return done

    def _output(self, *arguments: str, stdin: str = "") -> str:
        return self.kubectl(*arguments, stdin=stdin).stdout

    def read(self, path: str) -> str:
        """Return the API server's answer to a GET. Raises OSError.

        This is for polling: it starts no process. Like kubectl, it repeats the request if the
        server asks for that: the server needs a moment to serve the objects of a new CRD.
        """
        if self._opener is None:
            trust = ssl.create_default_context(cadata=self._authority)
            # No proxy leads to a network of this machine's own.
            direct = urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=trust)
            self._opener = urllib.request.build_opener(*direct)
        server = f"https://{self.hosts.address(CONTROL)}:{control.API_PORT}"
        asked = urllib.request.Request(server + path)
        asked.add_header("Authorization", f"Bearer {self._tokens.admin}")
        for _ in range(10):
            try:
                with self._opener.open(asked, timeout=120) as answer:
                    return str(answer.read().decode(errors="replace"))
            except HTTPError as refused:
                if refused.code != HTTPStatus.TOO_MANY_REQUESTS:
                    raise
                time.sleep(float(refused.headers.get("Retry-After") or 1))
        raise TimeoutError(f"{path}: too many requests")

    def get(self, *arguments: str) -> Any:
        """Return the parsed output of `kubectl get ... -o json`."""
        return json.loads(self._output("get", *arguments, "-o", "json"))

    @contextmanager
    def namespace(self, *, wait: bool = False) -> Iterator[str]:
        """Yield a new namespace, and delete it afterwards with everything in it.

        `wait`: until it is gone, so that what comes next has the machine to itself.
        """
        name = f"test-{secrets.token_hex(3)}"
        self.kubectl("create", "namespace", name)
        try:
            self._wait_furnished(name)
            yield name
        finally:
            self.kubectl("delete", "namespace", name, f"--wait={str(wait).lower()}", timeout=180)

    def _wait_furnished(self, namespace: str) -> None:
        """Wait until the controllers have made what every pod of a namespace needs.

        This takes a tenth of a second, unless the controller manager has lost the API server.
        """
        paths = [
            f"/api/v1/namespaces/{namespace}/{path}"
            for path in ("configmaps/kube-root-ca.crt", "serviceaccounts/default")
        ]
        log = self.hosts.path(CONTROL, f"{FOLDER}/kube-controller-manager.log")
        alive = "pgrep -f '[k]ube-controller-manager-' >/dev/null && echo runs || echo has ended"
        try:
            until(
                f"service account and authority of namespace {namespace}",
                lambda: all(map(self._exists, paths)),
                log,
                _FURNISHED,
            )
        except control.NotUp as error:
            state = self.hosts.run(CONTROL, alive).stdout.strip()
            raise control.NotUp(f"{error}\nthe controller manager {state}") from None

    def _exists(self, path: str) -> bool:
        try:
            self.read(path)
        except HTTPError as refused:
            if refused.code != HTTPStatus.NOT_FOUND:
                raise
            return False
        return True

    def kubeconfig_for(self, namespace: str, rules: Sequence[Mapping[str, Any]]) -> Path:
        """Return a kubeconfig of a service account with the permissions `rules` in `namespace`."""
        name = f"limited-{secrets.token_hex(3)}"
        self.kubectl("-n", namespace, "create", "serviceaccount", name)
        role = {
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": "Role",
            "metadata": {"name": name, "namespace": namespace},
            "rules": list(rules),
        }
        self.kubectl("apply", "-f", "-", stdin=json.dumps(role))
        who = f"--serviceaccount={namespace}:{name}"
        self.kubectl("-n", namespace, "create", "rolebinding", name, f"--role={name}", who)
        token = self._output("-n", namespace, "create", "token", name).strip()
        # The API server learns some time later of what it has stored.
        one = rules[0]
        kind = f"{one['resources'][0]}.{one['apiGroups'][0]}".removesuffix(".")
        asked = ("auth", "can-i", one["verbs"][0], kind)
        may = ("-n", namespace, *asked, f"--as=system:serviceaccount:{namespace}:{name}")
        until(f"the rights of {name}", lambda: self.kubectl(*may, check=False).returncode == 0)
        return self._write_config(name, token)

    def load_image(self, archive: Path, *names: str) -> None:
        """Import an image archive on nodes, by default on all."""
        with ThreadPoolExecutor(4) as pool:
            list(pool.map(lambda n: nodes.load(self.hosts, n, archive), names or self.nodes))

    def remove_image(self, image: str, *names: str) -> None:
        """Remove an image from nodes, by default from all."""
        for name in names or self.nodes:
            nodes.unload(self.hosts, name, image)

    @staticmethod
    def checkout_volumes() -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
        """Return volumes and mounts with this checkout and its Python at their paths here."""
        needed = {
            _ROOT / ".venv",
            _ROOT / ".venv-mpi4",
            *folders.environment_of(Path(sys.executable)),
        }
        volumes, mounts = [], []
        for number, path in enumerate(sorted(p for p in needed if p.is_dir())):
            name = f"checkout-{number}"
            volumes.append({"name": name, "hostPath": {"path": str(path)}})
            mounts.append({"name": name, "mountPath": str(path), "readOnly": True})
        return volumes, mounts

    def shared_folder(self, name: str) -> Path:
        """Return a folder that all nodes see at the same path; it is removed with the cluster."""
        folder = cache() / f"{self.hosts.state.name}-{name}"
        folder.mkdir(mode=0o700)
        self._shared.append(folder)
        return folder

    # The bucket.

    @property
    def bucket_server(self) -> str:
        """Return the address of fake-gcs-server, for pods and for the workstation."""
        return f"http://{self.hosts.address(CONTROL)}:{control.BUCKET_PORT}"

    def listener(self) -> socket.socket:
        """Return a listening socket of this process that pods and the workstation can reach.

        It is in the network of the control plane's host: no route leads from pods to this machine.
        """
        ours, theirs = socket.socketpair()
        with ours, theirs:
            command = [sys.executable, "-c", _LISTEN, self.hosts.address(CONTROL)]
            entered = [*inside(self.hosts.init(CONTROL)), *command, str(theirs.fileno())]
            subprocess.run(entered, pass_fds=[theirs.fileno()], check=True)
            _, (made,), _, _ = socket.recv_fds(ours, 1, 1)
        return socket.socket(fileno=made)

    # Faults.

    def cut(self, node: str) -> None:
        """Pull the cable of a node."""
        self.hosts.cut(node)

    def join(self, node: str) -> None:
        """Plug the cable of a node in again."""
        self.hosts.restore(node)

    def stop_kubelet(self, node: str) -> None:
        """Stop a node's kubelet; its pods go on."""
        nodes.stop_kubelet(self.hosts, node)

    def start_kubelet(self, node: str) -> None:
        """Start the kubelet of a node again."""
        nodes.start_kubelet(self.hosts, node)

    def stop_api(self) -> None:
        """Stop the API server and the controllers, as if the control plane's machine was off."""
        control.stop_api(self.hosts, CONTROL)

    def start_api(self) -> None:
        """Start the API server and the controllers again, and wait until they answer."""
        self._start_api_server()
        control.start_controllers(self.hosts, CONTROL)
        control.start_jobset(self.hosts, CONTROL)
        # A kubelet makes pauses like the controllers, see `control.stop_api`. Its pods go on.
        for node in self.nodes:
            self.stop_kubelet(node)
            self.start_kubelet(node)
        for node in self.nodes:
            self._wait_pods(node)

    def stop_dns(self) -> None:
        """Stop the DNS server, so that no name is known."""
        control.stop_dns(self.hosts, CONTROL)

    def start_dns(self) -> None:
        """Start the DNS server again."""
        control.start_dns(self.hosts, CONTROL)

    def _wait_pods(self, node: str) -> None:
        until(f"exec into pods of {node}", lambda: self._knows_its_pods(node))

    def _knows_its_pods(self, node: str) -> bool:
        """Return whether a node's kubelet has read its pods, so that it serves exec and logs."""
        assigned = f"/api/v1/pods?fieldSelector=spec.nodeName={node}"
        try:
            known = self._uids(f"/api/v1/nodes/{node}/proxy/pods")
            return self._uids(assigned) <= known
        except OSError:
            return False

    def _uids(self, path: str) -> set[str]:
        listed = json.loads(self.read(path))["items"] or []
        return {str(pod["metadata"]["uid"]) for pod in listed}

    def _start_api_server(self) -> None:
        log = control.start_api(self.hosts, CONTROL)
        ready = ("get", "--raw", "/readyz")
        until("the API server", lambda: self.kubectl(*ready, check=False).returncode == 0, log)

    def fake_gpus(self, node: str, count: int, accelerator: str) -> None:
        """Let a node report GPUs that it does not have, like their device plugin would."""
        self.kubectl("label", "node", node, f"cloud.google.com/gke-accelerator={accelerator}")
        self._patch_gpus(node, [self._gpu_patch("add", field, str(count)) for field in _GPU_FIELDS])

    def no_gpus(self, node: str) -> None:
        """Undo `fake_gpus`."""
        self.kubectl("label", "node", node, "cloud.google.com/gke-accelerator-")
        self._patch_gpus(node, [self._gpu_patch("remove", field, None) for field in _GPU_FIELDS])

    @staticmethod
    def _gpu_patch(verb: str, field: str, value: str | None) -> dict[str, Any]:
        patch = {"op": verb, "path": f"/status/{field}/nvidia.com~1gpu"}
        return patch if value is None else {**patch, "value": value}

    def _patch_gpus(self, node: str, patches: list[dict[str, Any]]) -> None:
        self.kubectl(
            "patch", "node", node, "--subresource=status", "--type=json", "-p", json.dumps(patches)
        )

    # When something went wrong.

    def keep_logs(self) -> Path:
        """Copy the logs of all processes out of the cluster; print and return the folder."""
        target = Path(tempfile.mkdtemp(prefix="accept-cluster-logs-"))
        for name in self.hosts.names:
            try:
                logs = list(self.hosts.path(name, FOLDER).glob("*.log"))
            except Exception:
                continue
            for log in logs:
                shutil.copyfile(log, target / f"{name}-{log.name}")
        sys.stderr.write(f"logs of the cluster: {target}\n")
        return target


_GPU_FIELDS = ("capacity", "allocatable")
