"""The control plane of the test cluster: real processes on a separate host.

All its files are in that host's /run, which ends with the host. The workstation has the kubeconfig,
and copies of nothing else.
"""

from __future__ import annotations

import secrets
import subprocess
import textwrap
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tests.cluster.hosts import Hosts
from tests.cluster.kube.build import jobset_manifests, program

FOLDER = "/run/kube"
API_PORT, BUCKET_PORT = 6443, 4443
SERVICES = "10.96.0.0/16"
_HOOK_PORT = 9443
#: Longest wait for one thing to be up.
SECONDS = 120.0
#: What follows the API server through watches, by the pattern that finds its process.
_FOLLOWERS = ("[k]ube-controller-manager-", "[k]ube-scheduler-", "[c]oredns-", "[j]obset-v")


class NotUp(Exception):
    """A part of the cluster did not start; the message has its name and the end of its log."""


@dataclass(frozen=True, kw_only=True)
class Tokens:
    """Tokens for the API server; random for each cluster."""

    admin: str
    proxy: str
    nodes: dict[str, str]


def tokens(nodes: tuple[str, ...]) -> Tokens:
    """Return random tokens for the administrator, for kube-proxy and for each node."""
    return Tokens(
        admin=secrets.token_hex(16),
        proxy=secrets.token_hex(16),
        nodes={name: secrets.token_hex(16) for name in nodes},
    )


def until(
    what: str, ready: Callable[[], bool], log: Path | None = None, seconds: float = SECONDS
) -> None:
    """Wait until `ready` returns True. Raise NotUp with the end of the log."""
    end = time.monotonic() + seconds
    while not ready():
        if time.monotonic() > end:
            last_lines = log.read_text(errors="replace").splitlines()[-5:] if log else []
            raise NotUp("\n".join([f"{what} is not up after {seconds:.0f} s", *last_lines]))
        time.sleep(0.1)


def kubeconfig(address: str, token: str, authority: str) -> str:
    """Return a kubeconfig, with paths as its reader sees them."""
    return textwrap.dedent(f"""\
        apiVersion: v1
        kind: Config
        clusters:
          - name: test
            cluster: {{server: "https://{address}:{API_PORT}", certificate-authority: {authority}}}
        users:
          - {{name: user, user: {{token: {token}}}}}
        contexts:
          - {{name: test, context: {{cluster: test, user: user}}}}
        current-context: test
        """)


def write(hosts: Hosts, name: str, path: str, text: str) -> None:
    """Write a file on a host, readable for root only."""
    target = hosts.path(name, path)
    target.parent.mkdir(parents=True, exist_ok=True)
    target.touch(mode=0o600)
    target.write_text(text)


def start(hosts: Hosts, name: str, what: str, command: list[str]) -> Path:
    """Start a process on a host with its output in FOLDER/NAME.log there; return that log."""
    # There is memory for more garbage, and two cores for the tests and all this: with more than
    # one thread each of these looks for work in the others' queues whenever it wakes up.
    shown = f'mkdir -p {FOLDER}; GOGC=400 GOMAXPROCS=1 exec "$@" >>{FOLDER}/{what}.log 2>&1'
    hosts.popen(name, ["sh", "-c", shown, "sh", *command], stdout=None, stderr=None)
    return hosts.path(name, f"{FOLDER}/{what}.log")


def certificates(hosts: Hosts, host: str) -> str:
    """Create a CA, and certificates of the API server and the webhooks; return the CA."""
    folder = hosts.path(host, f"{FOLDER}/pki")
    folder.mkdir(parents=True, mode=0o700)
    address = hosts.address(host)

    def openssl(*arguments: str) -> None:
        subprocess.run(["openssl", *arguments], cwd=folder, check=True, capture_output=True)

    request = ("-newkey", "rsa:2048", "-nodes")
    openssl("req", "-x509", *request, "-keyout", "ca.key", "-out", "ca.crt", "-subj", "/CN=test-ca")
    names = {
        "api": f"IP:{address},IP:127.0.0.1,IP:10.96.0.1,DNS:kubernetes.default.svc",
        "tls": "IP:127.0.0.1",
    }
    for name, also in names.items():
        (folder / f"{name}.ext").write_text(f"subjectAltName={also}\n")
        openssl(
            "req", *request, "-keyout", f"{name}.key", "-out", f"{name}.csr", "-subj", f"/CN={name}"
        )
        signed = ("-CA", "ca.crt", "-CAkey", "ca.key", "-CAcreateserial", "-days", "30")
        openssl(
            "x509",
            "-req",
            "-in",
            f"{name}.csr",
            *signed,
            "-extfile",
            f"{name}.ext",
            "-out",
            f"{name}.crt",
        )
    openssl("genrsa", "-out", "sa.key", "2048")
    openssl("rsa", "-in", "sa.key", "-pubout", "-out", "sa.pub")
    return (folder / "ca.crt").read_text()


def start_etcd(hosts: Hosts, host: str) -> None:
    """Start etcd."""
    client = "http://127.0.0.1:2379"
    start(
        hosts,
        host,
        "etcd",
        [
            str(program("etcd")),
            f"--data-dir={FOLDER}/etcd",
            "--unsafe-no-fsync",
            f"--listen-client-urls={client}",
            f"--advertise-client-urls={client}",
            "--listen-peer-urls=http://127.0.0.1:2380",
        ],
    )


def start_api(hosts: Hosts, host: str) -> Path:
    """Start the API server; return its log."""
    pki = f"{FOLDER}/pki"
    return start(
        hosts,
        host,
        "kube-apiserver",
        [
            str(program("kube-apiserver")),
            "--etcd-servers=http://127.0.0.1:2379",
            f"--advertise-address={hosts.address(host)}",
            f"--secure-port={API_PORT}",
            f"--cert-dir={FOLDER}/api",
            f"--tls-cert-file={pki}/api.crt",
            f"--tls-private-key-file={pki}/api.key",
            f"--token-auth-file={FOLDER}/tokens.csv",
            "--authorization-mode=Node,RBAC",
            f"--service-cluster-ip-range={SERVICES}",
            f"--service-account-key-file={pki}/sa.pub",
            f"--service-account-signing-key-file={pki}/sa.key",
            "--service-account-issuer=https://kubernetes.default.svc",
            "--allow-privileged=true",
            # Versions of claims that the chart makes for older clusters.
            "--runtime-config=resource.k8s.io/v1beta1=true,resource.k8s.io/v1beta2=true",
            "--kubelet-preferred-address-types=InternalIP",
        ],
    )


def kill(hosts: Hosts, name: str, pattern: str) -> None:
    """Kill the processes of a host whose command matches, and wait until they are gone."""
    gone = f"while pgrep -f '{pattern}' >/dev/null; do sleep 0.05; done"
    hosts.run(name, f"pkill -KILL -f '{pattern}'; {gone}")


def stop_api(hosts: Hosts, host: str) -> None:
    """Stop the API server, and what follows it.

    A process that finds no API server asks again after ever longer pauses. After 20 s without one,
    the controller manager took up to 50 s until it saw a new namespace. The pauses may double to a
    minute each, so that it misses every limit of a test. A process that is started later does not
    pause.
    """
    for pattern in ("[k]ube-apiserver-", *_FOLLOWERS):
        kill(hosts, host, pattern)


def stop_dns(hosts: Hosts, host: str) -> None:
    """Stop the DNS server."""
    kill(hosts, host, "[c]oredns")


def start_controllers(hosts: Hosts, host: str) -> None:
    """Start the controller manager, the scheduler and the DNS server."""
    config = f"--kubeconfig={FOLDER}/admin.kubeconfig"
    start(
        hosts,
        host,
        "kube-controller-manager",
        [
            str(program("kube-controller-manager")),
            config,
            "--leader-elect=false",
            f"--service-account-private-key-file={FOLDER}/pki/sa.key",
            f"--root-ca-file={FOLDER}/pki/ca.crt",
            # Lost nodes are found out in seconds, not in the usual 40.
            "--node-monitor-period=1s",
            "--node-monitor-grace-period=10s",
        ],
    )
    start(
        hosts,
        host,
        "kube-scheduler",
        [str(program("kube-scheduler")), config, "--leader-elect=false"],
    )
    start_dns(hosts, host)


def start_dns(hosts: Hosts, host: str) -> None:
    """Start the DNS server."""
    corefile = f"""\
        .:53 {{
          bind {hosts.address(host)}
          errors
          kubernetes cluster.local in-addr.arpa {{
            kubeconfig {FOLDER}/admin.kubeconfig
            pods insecure
            ttl 30
          }}
          cache 30
        }}
        """
    write(hosts, host, f"{FOLDER}/Corefile", textwrap.dedent(corefile))
    start(hosts, host, "coredns", [str(program("coredns")), "-conf", f"{FOLDER}/Corefile"])


def install_jobset(hosts: Hosts, host: str, kubectl: Callable[..., str], authority: str) -> Path:
    """Install JobSet's CRD and webhooks, and start its controller; return its log."""
    manifests = jobset_manifests()
    kubectl("apply", "--server-side", "-f", str(manifests / "crd" / "bases"))
    config = f"""\
        apiVersion: config.jobset.x-k8s.io/v1alpha1
        kind: Configuration
        leaderElection: {{leaderElect: false}}
        internalCertManagement: {{enable: false}}
        webhook: {{port: {_HOOK_PORT}, certDir: {FOLDER}/pki}}
        """
    write(hosts, host, f"{FOLDER}/jobset.yaml", textwrap.dedent(config))
    log = start_jobset(hosts, host)
    kubectl("apply", "-f", "-", stdin=_webhooks(manifests, authority))
    return log


def start_jobset(hosts: Hosts, host: str) -> Path:
    """Start JobSet's controller, and wait until its webhooks listen; return its log."""
    log = start(
        hosts,
        host,
        "jobset",
        [
            str(program("jobset")),
            f"--config={FOLDER}/jobset.yaml",
            f"--kubeconfig={FOLDER}/admin.kubeconfig",
            "--metrics-bind-address=0",
            "--health-probe-bind-address=127.0.0.1:8089",
            "--leader-elect=false",
        ],
    )
    until("the JobSet controller", lambda: listens(hosts, host, _HOOK_PORT), log)
    return log


def listens(hosts: Hosts, host: str, port: int) -> bool:
    """Return whether a process of a host listens on a port."""
    return any(place.endswith(f":{port}") for place in hosts.listening(host))


def _webhooks(manifests: Path, authority: str) -> str:
    """Return JobSet's webhook manifests with URLs, because no Service leads to this process."""
    import base64

    import yaml

    found = []
    text = (manifests / "webhook" / "manifests.yaml").read_text()
    for document in yaml.safe_load_all(text):
        for hook in document["webhooks"]:
            path = hook["clientConfig"].pop("service")["path"]
            hook["clientConfig"]["url"] = f"https://127.0.0.1:{_HOOK_PORT}{path}"
            hook["clientConfig"]["caBundle"] = base64.b64encode(authority.encode()).decode()
            if "pod" in path:
                # As in a release: otherwise no pod at all starts while the controller is away.
                key = "jobset.sigs.k8s.io/jobset-name"
                hook["objectSelector"] = {"matchExpressions": [{"key": key, "operator": "Exists"}]}
        found.append(document)
    return str(yaml.safe_dump_all(found))


def start_bucket(hosts: Hosts, host: str) -> None:
    """Start fake-gcs-server as a stand-in for Google Cloud Storage."""
    start(
        hosts,
        host,
        "fake-gcs-server",
        [
            str(program("fake-gcs-server")),
            "-scheme=http",
            f"-port={BUCKET_PORT}",
            "-backend=filesystem",
            f"-filesystem-root={FOLDER}/buckets",
            f"-public-host={hosts.address(host)}:{BUCKET_PORT}",
        ],
    )
    until("fake-gcs-server", lambda: listens(hosts, host, BUCKET_PORT))
