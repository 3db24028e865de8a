"""Findings of `accept doctor` on a cluster, and refusals of a run before it creates any object.

The stand-in of tests/factories/api_server.py provides objects that a test cluster lacks.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.factories.api_server import ApiServer
from tests.factories.chart_runs import DOMAIN
from tests.factories.command_line import accept, refused
from tests.factories.helm import helm
from tests.factories.kubernetes import job, listed, node
from tests.factories.shell import write_program

from accept.backends.kubernetes.client import Api
from accept.backends.requirements import Requirement as Row
from accept.core.error_codes import Code
from accept.evidence import bucket

MACHINE = "a4-highgpu-8g"
#: Rows of `accept doctor`, by code.
Rows = dict[str, list[Any]]
#: Called with the lines after `kubernetes: {image: …}` in a site file; returns the rows.
Ask = Callable[..., Rows]
LAB = "/api/v1/namespaces/lab"
NODES, PODS, CLAIM = "/api/v1/nodes", f"{LAB}/pods", f"{LAB}/persistentvolumeclaims/mine"
SETS, SERVICE_ACCOUNT = "/apis/apps/v1/daemonsets", f"{LAB}/serviceaccounts/s"
JOBSET, SCHEMA = "/apis/jobset.x-k8s.io/v1alpha2", "/openapi/v3/apis/jobset.x-k8s.io/v1alpha2"
DEVICES = "/apis/resource.k8s.io/v1"
TEMPLATE = f"{DEVICES}/namespaces/lab/resourceclaimtemplates/default-rdma"
DEVICE_CLASS = f"{DEVICES}/deviceclasses/mrdma.google.com"
DOMAINS = "/apis/resource.nvidia.com/v1beta1"
QUEUES = "/apis/kueue.x-k8s.io/v1beta1/namespaces/lab/localqueues"
STORAGE_CLASS = "/apis/storage.k8s.io/v1/storageclasses/fast"
LATER = {"volumeBindingMode": "WaitForFirstConsumer"}


def b200(name: str, **spec: Any) -> dict[str, Any]:
    """Return a node with the labels of the machine."""
    made = node(name, **spec)
    made["metadata"]["labels"] = {"cloud.google.com/gke-accelerator": "nvidia-b200"}
    return made


@pytest.fixture
def server(server: ApiServer) -> ApiServer:
    """Give the stand-in cluster one node with eight free GPUs."""
    server.answer_with(LAB, {"metadata": {"name": "lab"}})
    server.answer_with(NODES, listed(b200("n1")))
    server.answer_with("/api/v1/pods", listed())
    return server


@pytest.fixture
def options(server: ApiServer, tmp_path: Path) -> Callable[..., list[str]]:
    def make(site: str = "", *words: str, nodes: int = 2, machine: str = MACHINE) -> list[str]:
        file = tmp_path / "site.yaml"
        file.write_text(f"kubernetes:\n  image: img:1\n{site}", encoding="utf-8")
        if machine == "domain":
            machine = str(tmp_path / "domain.yaml")
            Path(machine).write_text(DOMAIN)
        named = [f"--machine={machine}"] if machine else []
        return [*named, "--backend=kubernetes", f"--nodes={nodes}", f"--site={file}", *words]

    return make


@pytest.fixture
def ask(options: Callable[..., list[str]]) -> Ask:
    def doctor(site: str = "", **keys: Any) -> Rows:
        done = accept("doctor", *options(site, **keys), "--json")
        needs = json.loads(done.out)["needs"]
        assert done.code == (0 if all(need["good"] for need in needs) else 4)
        rows: Rows = {}
        for need in needs:
            rows.setdefault(need["code"], []).append(need)
        return rows

    return doctor


def mark(rows: Rows, code: Row) -> str:
    """Return "absent", "ok", "note", "missing" or "unchecked" for the only row with this code."""
    if code not in rows:
        return "absent"
    (row,) = rows[code]
    if not row["checked"]:
        assert row["good"]
        return "unchecked"
    return ("note" if row["advice"] else "ok") if row["good"] else "missing"


#: Settings of a site with which nodes may become free or be added.
BROUGHT = ["queue: a4", "suspend: true", "flexStart: true", "autoscaling: true"]
TAINT = {"key": "maintenance", "effect": "NoSchedule"}
TAINTED = {NODES: listed(b200("n1"), b200("n2", taints=[TAINT]))}
REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
AFFINITY = f"  affinity: {{nodeAffinity: {{{REQUIRED}: {{nodeSelectorTerms: []}}}}}}\n"
BY_NETWORK = "  networks: [{interface: eth2, network: rdma-0}]\n"
ON_CLAIM = "results: {volume: {persistentVolumeClaim: {claimName: mine}}}\n"
MOUNTED = """\
  extraVolumes: [{name: x, persistentVolumeClaim: {claimName: mine}}]
  extraVolumeMounts: [{name: x, mountPath: /data}]
results: {location: /data/runs}
"""
IN_PODS = "results: {volume: {csi: {driver: gcsfuse.csi.storage.gke.io}}}\n"
BIN = "/home/kubernetes/bin"
SIDECAR = "  extraSidecars: [{name: tcpxo-daemon, image: 'my@sha256:0'}]"
POD_SPEC = "spec.replicatedJobs.template.spec.template.spec"


def queue(active: str) -> dict[str, Any]:
    state = {"type": "Active", "status": active, "message": "no quota"}
    return listed({"metadata": {"name": "a4"}, "status": {"conditions": [state]}})


def jobset(field: str) -> dict[str, Any]:
    """Return the OpenAPI document of a JobSet with a field, as the API server serves it."""
    schema: dict[str, Any] = {}
    inner = schema
    for word in f"{POD_SPEC}.{field}".split("."):
        inner = inner.setdefault("properties", {}).setdefault(word, {})
    # Lists of objects, where a path goes through their items.
    spec = schema["properties"]["spec"]["properties"]
    spec["replicatedJobs"] = {"type": "array", "items": spec["replicatedJobs"]}
    return {"components": {"schemas": {"io.x-k8s.jobset.v1alpha2.JobSet": schema}}}


#: JobSet 0.7 has the first field, and older versions have only the second.
NEW, OLD = jobset("resourceClaims.resourceClaimTemplateName"), jobset("initContainers")


def daemon_set(name: str, ready: int, folder: str = "/", image: str = "") -> dict[str, Any]:
    status = {"desiredNumberScheduled": 2, "numberReady": ready}
    volumes = [{"name": "x", "hostPath": {"path": folder}}, {"name": "y", "emptyDir": {}}]
    containers = [{"name": name, "image": image}] if image else []
    spec = {"template": {"spec": {"volumes": volumes, "initContainers": containers}}}
    return listed({"metadata": {"name": name}, "spec": spec, "status": status})


def devices(**given: Any) -> dict[str, Any]:
    """Return everything that the machine `domain` needs: a template that it names, and a class."""
    needed = {TEMPLATE: {}, DEVICE_CLASS: {}, DOMAINS: {"resources": [{"name": "computedomains"}]}}
    return {"machine": "domain", "resource.k8s.io": ("v1", "v1beta1"), **needed, **given}


def claim(phase: str, mode: str = "ReadWriteMany", of_class: str = "fast") -> dict[str, Any]:
    """Return a site file whose results go to a claim, and the claim, whose class binds at once."""
    spec = {"accessModes": [mode], "storageClassName": of_class}
    found = {"spec": spec, "status": {"phase": phase}}
    return {"site": ON_CLAIM, CLAIM: found, STORAGE_CLASS: {"volumeBindingMode": "Immediate"}}


#: A row, its mark, a text that it shows, and the arguments of `ask`, answers by path, or served
#: versions by group.
CASES: list[tuple[Row, str, str, dict[str, Any]]] = [
    (Row.NODES_FREE, "missing", "2 nodes requested, 1 free with 8 nvidia.com/gpu wait", {}),
    (Row.NODES_FREE, "ok", "1 node requested, 1 free", {"nodes": 1}),
    *((Row.NODES_FREE, "note", "", {"site": f"  {s}\n"}) for s in BROUGHT if "flex" not in s),
    *((Row.NODES, "ok", "", {"site": f"  {s}\n", NODES: listed()}) for s in BROUGHT),
    (Row.AFFINITY, "unchecked", "", {"site": AFFINITY}),
    (Row.TAINTS, "note", "maintenance:NoSchedule", {"nodes": 1, **TAINTED}),
    (Row.TAINTS, "missing", "maintenance:NoSchedule", TAINTED),
    (Row.QUEUE, "missing", "not installed", {"site": "  queue: a4\n"}),
    (Row.QUEUE, "ok", "a4", {"site": "  queue: a4\n", QUEUES: queue("True")}),
    (Row.QUEUE, "missing", "no quota", {"site": "  queue: a4\n", QUEUES: queue("False")}),
    (Row.QUEUE, "missing", "available: a4", {"site": "  queue: b\n", QUEUES: queue("True")}),
    (Row.QUEUE, "unchecked", "status 403", {"site": "  queue: a4\n", QUEUES: 403}),
    (Row.JOBSET, "ok", "0.7 or newer", {SCHEMA: NEW}),
    (Row.JOBSET, "missing", "older than 0.7", {SCHEMA: OLD}),
    (Row.JOBSET, "ok", "plain Job", {SCHEMA: OLD, "site": "  controller: job\n"}),
    (Row.JOBSET, "unchecked", "", {SCHEMA: 403}),
    (Row.PLUGIN, "ok", "2 of 2", {SETS: daemon_set("nccl-rdma-installer", 2)}),
    (Row.PLUGIN, "note", "1 of 2", {SETS: daemon_set("nccl-rdma-installer", 1)}),
    (Row.PLUGIN, "note", "", {SETS: daemon_set("another", 2, BIN)}),
    (Row.PLUGIN, "missing", f"{BIN}/gib", {SETS: daemon_set("another", 2)}),
    (Row.PLUGIN, "missing", f"{BIN}/gib", {SETS: daemon_set("another", 2, f"{BIN}/nvidia")}),
    (Row.PLUGIN, "missing", f"{BIN}/gib", {SETS: daemon_set("another", 2, BIN[:-1])}),
    (Row.PLUGIN, "missing", f"{BIN}/gib", {SETS: daemon_set("nccl-rdma-installer", 0, BIN)}),
    (Row.PLUGIN, "unchecked", "", {SETS: 403}),
    (Row.PLUGIN, "absent", "", {"site": "  plugin: init\n"}),
    (Row.DEVICE_CLAIMS, "ok", "resource.k8s.io/v1", devices()),
    (Row.CLAIM_TEMPLATE, "ok", "default-rdma", devices()),
    (Row.DEVICE_CLASS, "ok", "mrdma.google.com", devices()),
    (Row.COMPUTE_DOMAIN, "ok", "resource.nvidia.com/v1beta1", devices()),
    (Row.DEVICE_CLAIMS, "missing", "", devices(**{"resource.k8s.io": ()})),
    (Row.DEVICE_CLAIMS, "missing", "", devices(**{"resource.k8s.io": ("v1alpha3",)})),
    # Without a class, the pods are created, but stay pending.
    (Row.DEVICE_CLASS, "missing", "does not exist", devices(**{DEVICE_CLASS: 404})),
    (Row.DEVICE_CLASS, "unchecked", "", devices(**{DEVICE_CLASS: 403})),
    (Row.CLAIM_TEMPLATE, "missing", "namespace lab", devices(**{TEMPLATE: 404})),
    (Row.CLAIM_TEMPLATE, "unchecked", "", devices(**{TEMPLATE: 403})),
    (Row.COMPUTE_DOMAIN, "missing", "", devices(**{DOMAINS: 404})),
    (Row.COMPUTE_DOMAIN, "missing", "", devices(**{DOMAINS: {"resources": [{"name": "x"}]}})),
    (Row.CLAIM_TEMPLATE, "absent", "", devices(site=BY_NETWORK)),
    (Row.COMPUTE_DOMAIN, "ok", "", devices(site=BY_NETWORK)),
    (Row.DEVICE_CLAIMS, "absent", "", {}),
    (Row.COMPUTE_DOMAIN, "absent", "", {}),
    (Row.RESULTS, "ok", "bound", claim("Bound")),
    (Row.RESULTS, "ok", "bound", {**claim("Bound"), "site": MOUNTED}),
    (Row.RESULTS, "missing", "namespace lab", {"site": ON_CLAIM}),
    (Row.RESULTS, "ok", "first pod", {**claim("Pending"), STORAGE_CLASS: LATER}),
    (Row.RESULTS, "missing", "", claim("Pending")),
    (Row.RESULTS, "missing", "does not exist", claim("Pending", of_class="none")),
    (Row.RESULTS, "missing", "no storage class", claim("Pending", of_class="")),
    (Row.RESULTS, "missing", "Lost", claim("Lost")),
    (Row.RESULTS, "missing", "ReadWriteOnce", claim("Bound", "ReadWriteOnce")),
    (Row.RESULTS, "ok", "", {**claim("Bound", "ReadWriteOnce"), "nodes": 1}),
    (Row.RESULTS, "unchecked", "", {"site": ON_CLAIM, CLAIM: 403}),
    (Row.RESULTS, "unchecked", "only the pods mount it", {"site": IN_PODS}),
    (Row.SERVICE_ACCOUNT, "ok", "s", {"site": "  serviceAccount: s\n", SERVICE_ACCOUNT: {}}),
    (Row.SERVICE_ACCOUNT, "missing", "namespace lab", {"site": "  serviceAccount: s\n"}),
    (Row.PULL_SECRET, "missing", "namespace lab", {"site": "  imagePullSecrets: [s]\n"}),
]


@pytest.mark.sampled
@pytest.mark.parametrize(("code", "expected", "shows", "given"), CASES)
def test_a_cluster_gives_the_row(
    server: ApiServer, ask: Ask, code: Row, expected: str, shows: str, given: dict[str, Any]
) -> None:
    server.serves("jobset.x-k8s.io", "v1alpha2")
    for key, value in given.items():
        if key.startswith("/"):
            server.answer_with(key, value)
        elif "." in key:
            server.serves(key, *value)
    rows = ask(**{key: given[key] for key in ("site", "machine", "nodes") if key in given})
    assert mark(rows, code) == expected, rows.get(code)
    assert all(shows in f"{row['found']} {row['advice']}" for row in rows.get(code, ()))


@pytest.mark.parametrize(
    ("image", "site", "expected", "shows"),
    [
        ("", "", "missing", "/dev/aperture_devices"),
        ("mirror:5000/plugin:v1.0.15@sha256:0", "", "ok", ""),
        ("plugin:v1.0.16", "", "note", "gpudirect-tcpxo/tcpgpudmarxd-dev:v1.0.22'"),
        ("plugin:v1.0.17", "", "note", "look up"),
        (
            "plugin:v1.0.17",
            SIDECAR,
            "ok",
            "",
        ),
    ],
)
def test_the_plugin_on_the_nodes_and_its_daemon_in_the_pods_are_a_pair(
    server: ApiServer, ask: Ask, image: str, site: str, expected: str, shows: str
) -> None:
    installer = "nccl-tcpxo-installer" if image else "device-injector"
    server.answer_with(SETS, daemon_set(installer, 2, "/dev", image))
    rows = ask(f"{site}\n", machine="a3-megagpu-8g")[Row.PLUGIN]
    row = next(row for row in rows if "nccl-tcpxo-installer" in row["found"])
    assert mark({Row.PLUGIN: [row]}, Row.PLUGIN) == expected, row
    assert shows in row["advice"]


@pytest.mark.parametrize(
    ("reach", "expected"),
    [((True, ""), "ok"), ((None, "no rights"), "unchecked"), ((False, "is missing"), "missing")],
)
def test_a_bucket_for_results_is_read_from_this_machine(
    ask: Ask, monkeypatch: pytest.MonkeyPatch, reach: tuple[bool | None, str], expected: str
) -> None:
    # tests/evidence/test_bucket.py tests the answers of buckets.
    monkeypatch.setattr(bucket, "reach", lambda _: reach)
    rows = ask("  serviceAccount: s\nresults: {location: 'gs://mine/x'}\n")
    (row,) = rows[Row.RESULTS]
    assert reach[1] in row["found"]
    assert (row["good"], row["checked"]) == (expected != "missing", expected != "unchecked")


class TestTooFewNodes:
    def test_prevent_a_start(self, options: Callable[..., list[str]]) -> None:
        refused("submit", *options(), code=4, error=Code.KUBE_NODES_TOO_FEW)

    @pytest.mark.parametrize("setting", BROUGHT)
    def test_do_not_prevent_a_start_if_others_may_come(
        self, options: Callable[..., list[str]], monkeypatch: pytest.MonkeyPatch, setting: str
    ) -> None:
        # The start gets as far as helm, which is missing.
        monkeypatch.setenv("PATH", "/nonexistent")
        refused("submit", *options(f"  {setting}\n"), code=4, error=Code.HELM_MISSING)

    def test_do_not_identify_the_machine(
        self, server: ApiServer, options: Callable[..., list[str]]
    ) -> None:
        server.answer_with(NODES, listed())
        words = options("  autoscaling: true\n", machine="")
        refused("submit", *words, code=4, error=Code.KUBE_MACHINE_UNKNOWN)


def test_a_submitted_run_leaves_out_nodes_with_maintenance_and_is_known_by_what_the_chart_made(
    server: ApiServer,
    options: Callable[..., list[str]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Helm has no release, and reports the same object for every installation."""
    made = {"kind": "Job", **job()}
    given = {"ACCEPT_HOST_PREFIX": "a-1-w-0-", "ACCEPT_RESULTS": "/accept/results"}
    env = [{"name": name, "value": value} for name, value in given.items()]
    made["spec"]["template"] = {"spec": {"containers": [{"name": "accept", "env": env}]}}
    manifest = "".join(f"---\n{yaml.safe_dump(one)}" for one in ({"kind": "ConfigMap"}, made))
    (tmp_path / "record.json").write_text(json.dumps({"manifest": manifest}))
    script = write_program(
        tmp_path / "bin" / "helm",
        '[ "$1" != get ] || { echo "Error: release: not found" >&2; exit 1; }\n'
        f"printf '%s\\n' \"$@\" > {tmp_path}/words\ncat {tmp_path}/record.json",
    )
    monkeypatch.setenv("PATH", f"{script.parent}:/usr/bin:/bin")
    for kind in ("secrets", "configmaps"):
        server.answer_with(f"{LAB}/{kind}", {"metadata": {"name": "one"}})
    due = b200("n1")
    due["metadata"]["labels"]["cloud.google.com/scheduled-maintenance-time"] = "1"
    server.answer_with(NODES, listed(due, b200("n2")))
    words = options("  excludeNodes: [n9]\n", "--json", "--attempt=a", nodes=1)
    done = accept("submit", *words)
    assert done.code == 0, done.err
    submitted = json.loads(done.out)
    assert submitted["first"] == "a-1-w-0-0"
    assert submitted["place"]["results"] == "/accept/results"
    assert "n1 is left out" in done.err
    assert 'site.excludeNodes=["n9", "n1"]' in (tmp_path / "words").read_text().splitlines()


@pytest.mark.parametrize(
    ("kind", "site", "machine", "needed"),
    [
        ("jobsets", "  controller: jobset\n", MACHINE, True),
        ("jobsets", "", MACHINE, True),
        ("jobsets", "  controller: job\n", MACHINE, False),
        ("networkpolicies", "", MACHINE, True),
        ("networkpolicies", "  networkPolicy: false\n", MACHINE, False),
        ("computedomains", "", MACHINE, False),
        ("computedomains", "", "a4x-highgpu-4g", True),
        ("resourceclaimtemplates", "", MACHINE, False),
        ("resourceclaimtemplates", "", "domain", True),
        ("resourceclaimtemplates", "  resourceClaims: []\n", "domain", False),
        # A run starts without this one.
        ("events", "", MACHINE, None),
    ],
)
def test_rights_are_needed_on_what_the_run_creates(
    server: ApiServer,
    ask: Ask,
    monkeypatch: pytest.MonkeyPatch,
    kind: str,
    site: str,
    machine: str,
    *,
    needed: bool | None,
) -> None:
    monkeypatch.setattr(Api, "may", lambda _, __, resource, **___: resource != kind)
    server.answer_with(JOBSET, {"resources": [{"name": "jobsets"}]})
    rows = ask(site, machine=machine)[Row.RBAC]
    named = {row["what"].split()[-1]: row["good"] for row in rows if row["what"] != "RBAC"}
    assert named == ({} if needed is False else {kind: needed is None})


def test_rights_on_jobsets_are_not_needed_if_the_cluster_has_none(
    ask: Ask, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Api, "may", lambda _, __, resource, **___: resource != "jobsets")
    assert mark(ask(), Row.RBAC) == "ok"


class TestAdmission:
    """A pod of the run, rendered by a real helm, as a server-side dry run."""

    @pytest.fixture(autouse=True)
    def allowed(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        (tmp_path / "bin").mkdir()
        (tmp_path / "bin" / "helm").symlink_to(helm(4))
        monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:/usr/bin:/bin")
        monkeypatch.setattr(Api, "may", lambda *_, **__: True)

    def test_tries_the_pod_of_the_run_and_creates_nothing(
        self, server: ApiServer, ask: Ask
    ) -> None:
        server.answer_with(PODS, {})
        assert mark(ask(), Row.ADMISSION) == "ok"
        (request,) = [one for one in server.seen if one[:2] == ("POST", PODS)]
        assert request[2] == {"dryRun": "All"}
        (sent,) = [body for body in server.bodies if body["kind"] == "Pod"]
        (container,) = sent["spec"]["containers"]
        assert container["resources"]["limits"] == {"nvidia.com/gpu": 8}
        assert "networking.gke.io/interfaces" in sent["metadata"]["annotations"]

    @pytest.mark.parametrize(
        ("answer", "expected", "shows"),
        [
            (403, "missing", ""),
            (500, "unchecked", ""),
            (
                {"spec": {"containers": [{"name": "accept", "resources": {"limits": {"cpu": 1}}}]}},
                "note",
                "cpu=1",
            ),
        ],
        ids=["refused", "broken API", "limited by a policy"],
    )
    def test_reports_what_the_api_answers(
        self, server: ApiServer, ask: Ask, answer: Any, expected: str, shows: str
    ) -> None:
        server.answer_with(PODS, answer)
        rows = ask()
        assert mark(rows, Row.ADMISSION) == expected
        assert shows in rows[Row.ADMISSION][0]["found"]

    def test_renders_claims_of_devices_as_the_cluster_serves_them(
        self, server: ApiServer, ask: Ask
    ) -> None:
        server.serves("resource.k8s.io", "v1")
        server.answer_with(PODS, {})
        assert mark(ask(machine="a4x-highgpu-4g"), Row.ADMISSION) == "ok"


def test_admission_needs_the_right_to_create_pods(
    ask: Ask, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Api, "may", lambda _, __, kind, **___: kind != "pods")
    assert mark(ask(), Row.ADMISSION) == "unchecked"
