"""Findings of `accept doctor` on a cluster, and refusals of a run before it creates any object.

The stand-in of tests/factories/api_server.py provides objects that a test cluster lacks.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.factories.api_server import ApiServer, api_server
from tests.factories.chart_runs import DOMAIN
from tests.factories.command_line import accept, refused
from tests.factories.helm import helm
from tests.factories.kubernetes import job, node

from accept.backends.kubernetes.client import Api
from accept.backends.requirements import Requirement
from accept.core.error_codes import Code
from accept.evidence import bucket

MACHINE = "a4-highgpu-8g"
#: Rows of `accept doctor`, by code.
Rows = dict[str, list[Any]]
#: Called with the lines after `kubernetes: {image: …}` in a site file; returns the rows.
Ask = Callable[..., Rows]


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ApiServer]:
    """Run a stand-in cluster of one node with eight free GPUs."""
    monkeypatch.setenv("ACCEPT_RUNS", str(tmp_path / "runs"))
    with api_server() as one:
        monkeypatch.setenv("KUBECONFIG", str(one.kubeconfig(tmp_path)))
        one.answer_with("/version", {"gitVersion": "v1.34.4"})
        one.answer_with("/api/v1/namespaces/lab", {"metadata": {"name": "lab"}})
        there = node("n1")
        there["metadata"]["labels"] = {"cloud.google.com/gke-accelerator": "nvidia-b200"}
        one.answer_with("/api/v1/nodes", {"items": [there]})
        one.answer_with("/api/v1/pods", {"items": []})
        yield one


@pytest.fixture
def options(server: ApiServer, tmp_path: Path) -> Callable[..., list[str]]:
    def make(site: str = "", *words: str, nodes: int = 2, machine: str = MACHINE) -> list[str]:
        file = tmp_path / "site.yaml"
        file.write_text(f"kubernetes:\n  image: img:1\n{site}", encoding="utf-8")
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


def mark(rows: Rows, code: Requirement) -> str:
    """Return "ok", "missing", or "unchecked" for the only row with this code."""
    (row,) = rows[code]
    if not row["checked"]:
        assert row["good"]
        return "unchecked"
    return "ok" if row["good"] else "missing"


def refused_kinds(rows: Rows) -> dict[str, bool]:
    """Return the kinds without all rights, and whether a run starts without them."""
    kinds = {row["what"]: row["good"] for row in rows[Requirement.RBAC]}
    return {what.split()[-1]: good for what, good in kinds.items() if what != "RBAC"}


#: Settings of a site with which nodes may become free or be added.
BROUGHT = ["queue: a4", "suspend: true", "flexStart: true", "autoscaling: true"]


class TestTooFewNodes:
    def test_prevent_a_start(self, options: Callable[..., list[str]]) -> None:
        done = accept("submit", *options())
        assert (done.code, done.error) == (4, Code.KUBE_NODES_TOO_FEW)

    @pytest.mark.parametrize("setting", BROUGHT)
    def test_do_not_prevent_a_start_if_others_may_come(
        self, options: Callable[..., list[str]], monkeypatch: pytest.MonkeyPatch, setting: str
    ) -> None:
        # The start gets as far as helm, which is missing.
        monkeypatch.setenv("PATH", "/nonexistent")
        done = accept("submit", *options(f"  {setting}\n"))
        assert (done.code, done.error) == (4, Code.HELM_MISSING)

    def test_are_missing_for_doctor(self, ask: Ask) -> None:
        assert mark(ask(), Requirement.NODES_FREE) == "missing"

    @pytest.mark.parametrize("setting", [one for one in BROUGHT if "flex" not in one])
    def test_are_fine_for_doctor_if_others_may_come(self, ask: Ask, setting: str) -> None:
        (row,) = ask(f"  {setting}\n")[Requirement.NODES_FREE]
        assert row["good"]
        assert row["advice"]

    @pytest.mark.parametrize("setting", BROUGHT)
    def test_are_fine_without_any_node_if_others_may_come(
        self, server: ApiServer, ask: Ask, setting: str
    ) -> None:
        server.answer_with("/api/v1/nodes", {"items": []})
        assert mark(ask(f"  {setting}\n"), Requirement.NODES) == "ok"

    def test_do_not_identify_the_machine(
        self, server: ApiServer, options: Callable[..., list[str]]
    ) -> None:
        server.answer_with("/api/v1/nodes", {"items": []})
        words = options("  autoscaling: true\n", machine="")
        refused("submit", *words, code=4, error=Code.KUBE_MACHINE_UNKNOWN)


def test_a_node_affinity_is_not_checked(ask: Ask) -> None:
    required = "requiredDuringSchedulingIgnoredDuringExecution"
    site = f"  affinity: {{nodeAffinity: {{{required}: {{nodeSelectorTerms: []}}}}}}\n"
    assert mark(ask(site), Requirement.AFFINITY) == "unchecked"


class TestATaintThatNothingTolerates:
    @pytest.fixture(autouse=True)
    def nodes(self, server: ApiServer) -> None:
        """Add one usable node and one with a taint."""
        there = [node("n1"), node("n2")]
        for one in there:
            one["metadata"]["labels"] = {"cloud.google.com/gke-accelerator": "nvidia-b200"}
        there[1]["spec"]["taints"] = [{"key": "maintenance", "effect": "NoSchedule"}]
        server.answer_with("/api/v1/nodes", {"items": there})

    def test_is_reported_if_enough_other_nodes_are_free(self, ask: Ask) -> None:
        (row,) = ask(nodes=1)[Requirement.TAINTS]
        assert row["good"]
        assert "maintenance:NoSchedule" in row["found"]

    def test_is_missing_if_nodes_are_short(self, ask: Ask) -> None:
        assert mark(ask(nodes=2), Requirement.TAINTS) == "missing"


class TestARunThatIsSubmitted:
    @pytest.fixture(autouse=True)
    def arguments(self, server: ApiServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
        """Use a helm that has no release, and reports the same object for every installation.

        Returns the file with the words that it was called with.
        """
        made = job()
        env = [{"name": "ACCEPT_HOST_PREFIX", "value": "a-1-w-0-"}]
        env += [{"name": "ACCEPT_RESULTS", "value": "/accept/results"}]
        containers = [{"name": "accept", "env": env}]
        made |= {"kind": "Job"}
        made["spec"]["template"] = {"spec": {"containers": containers}}
        manifest = "".join(f"---\n{yaml.safe_dump(one)}" for one in ({"kind": "ConfigMap"}, made))
        record, words = tmp_path / "record.json", tmp_path / "words"
        record.write_text(json.dumps({"manifest": manifest}))
        helm = tmp_path / "bin" / "helm"
        helm.parent.mkdir()
        helm.write_text(
            '#!/bin/sh\n[ "$1" != get ] || { echo "Error: release: not found" >&2; exit 1; }\n'
            f"printf '%s\\n' \"$@\" > {words}\ncat {record}\n"
        )
        helm.chmod(0o755)
        monkeypatch.setenv("PATH", f"{helm.parent}:/usr/bin:/bin")
        for kind in ("secrets", "configmaps"):
            server.answer_with(f"/api/v1/namespaces/lab/{kind}", {"metadata": {"name": "one"}})
        return words

    def test_is_known_by_what_the_chart_made(self, options: Callable[..., list[str]]) -> None:
        done = accept("submit", *options("", "--json", "--attempt=a", nodes=1))
        assert done.code == 0, done.err
        submitted = json.loads(done.out)
        assert submitted["first"] == "a-1-w-0-0"
        assert submitted["place"]["results"] == "/accept/results"

    def test_leaves_out_nodes_with_maintenance_during_the_run_and_names_them(
        self, server: ApiServer, options: Callable[..., list[str]], arguments: Path
    ) -> None:
        due, good = node("n1"), node("n2")
        for one in (due, good):
            one["metadata"]["labels"] = {"cloud.google.com/gke-accelerator": "nvidia-b200"}
        due["metadata"]["labels"]["cloud.google.com/scheduled-maintenance-time"] = "1"
        server.answer_with("/api/v1/nodes", {"items": [due, good]})
        done = accept("submit", *options("  excludeNodes: [n9]\n", "--attempt=a", nodes=1))
        assert done.code == 0, done.err
        assert "n1 is left out" in done.err
        assert 'site.excludeNodes=["n9", "n1"]' in arguments.read_text().splitlines()


JOBSET = "/apis/jobset.x-k8s.io"
OLD_FIELD = "spec.replicatedJobs.template.spec.template.spec.initContainers"
#: A field that JobSet 0.7 has, and older versions do not.
CLAIM_FIELD = (
    "spec.replicatedJobs.template.spec.template.spec.resourceClaims.resourceClaimTemplateName"
)


def jobset(*fields: str) -> dict[str, Any]:
    """Return the OpenAPI document of a JobSet with these fields, as the API server serves it."""
    schema: dict[str, Any] = {}
    for field in fields:
        inner = schema
        for word in field.split("."):
            inner = inner.setdefault("properties", {}).setdefault(word, {})
    # Lists of objects, where a path goes through their items.
    spec = schema["properties"]["spec"]["properties"]
    spec["replicatedJobs"] = {"type": "array", "items": spec["replicatedJobs"]}
    return {"components": {"schemas": {"io.x-k8s.jobset.v1alpha2.JobSet": schema}}}


class TestJobSet:
    @pytest.fixture(autouse=True)
    def served(self, server: ApiServer) -> None:
        server.serves("jobset.x-k8s.io", "v1alpha2")

    @pytest.mark.parametrize(("field", "expected"), [(CLAIM_FIELD, "ok"), (OLD_FIELD, "missing")])
    def test_must_be_of_version_0_7(
        self, server: ApiServer, ask: Ask, field: str, expected: str
    ) -> None:
        server.answer_with(f"/openapi/v3{JOBSET}/v1alpha2", jobset(field))
        assert mark(ask(), Requirement.JOBSET) == expected

    def test_does_not_matter_for_a_plain_job(self, server: ApiServer, ask: Ask) -> None:
        server.answer_with(f"/openapi/v3{JOBSET}/v1alpha2", jobset("spec.replicatedJobs"))
        assert mark(ask("  controller: job\n"), Requirement.JOBSET) == "ok"

    def test_is_unchecked_if_its_schema_may_not_be_read(self, server: ApiServer, ask: Ask) -> None:
        server.answer_with(f"/openapi/v3{JOBSET}/v1alpha2", 403)
        assert mark(ask(), Requirement.JOBSET) == "unchecked"


class TestRights:
    @pytest.fixture
    def refuse(self, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
        """Allow everything but these kinds."""

        def refuse(*kinds: str) -> None:
            monkeypatch.setattr(Api, "may", lambda _, __, kind, **___: kind not in kinds)

        return refuse

    @pytest.mark.parametrize(
        ("controller", "served", "needed"),
        [
            ("jobset", True, True),
            ("auto", True, True),
            ("auto", False, False),
            ("job", True, False),
        ],
    )
    def test_on_jobsets_are_needed_if_the_run_creates_one(
        self,
        server: ApiServer,
        ask: Ask,
        refuse: Callable[..., None],
        controller: str,
        served: bool,  # noqa: FBT001
        needed: bool,  # noqa: FBT001
    ) -> None:
        refuse("jobsets")
        if served:
            server.answer_with(f"{JOBSET}/v1alpha2", {"resources": [{"name": "jobsets"}]})
        rows = ask(f"  controller: {controller}\n")
        assert refused_kinds(rows) == ({"jobsets": False} if needed else {})

    @pytest.mark.parametrize(
        ("site", "machine", "kind", "needed"),
        [
            ("", MACHINE, "networkpolicies", True),
            ("  networkPolicy: false\n", MACHINE, "networkpolicies", False),
            ("", MACHINE, "computedomains", False),
            ("", "a4x-highgpu-4g", "computedomains", True),
            ("", MACHINE, "resourceclaimtemplates", False),
            ("", "domain", "resourceclaimtemplates", True),
            ("  resourceClaims: []\n", "domain", "resourceclaimtemplates", False),
        ],
    )
    def test_on_objects_are_needed_if_the_run_creates_them(
        self,
        ask: Ask,
        refuse: Callable[..., None],
        tmp_path: Path,
        site: str,
        machine: str,
        kind: str,
        needed: bool,  # noqa: FBT001
    ) -> None:
        refuse(kind)
        if machine == "domain":
            machine = str(tmp_path / "domain.yaml")
            Path(machine).write_text(DOMAIN)
        assert refused_kinds(ask(site, machine=machine)) == ({kind: False} if needed else {})

    def test_on_events_are_optional(self, ask: Ask, refuse: Callable[..., None]) -> None:
        refuse("events")
        assert refused_kinds(ask()) == {"events": True}


class TestPlugin:
    SETS = "/apis/apps/v1/daemonsets"

    def sets(self, name: str, ready: int, folder: str = "/") -> dict[str, Any]:
        status = {"desiredNumberScheduled": 2, "numberReady": ready}
        volumes = [{"name": "x", "hostPath": {"path": folder}}, {"name": "y", "emptyDir": {}}]
        spec = {"template": {"spec": {"volumes": volumes}}}
        return {"items": [{"metadata": {"name": name}, "spec": spec, "status": status}]}

    def test_is_installed_by_a_daemon_set(self, server: ApiServer, ask: Ask) -> None:
        server.answer_with(self.SETS, self.sets("nccl-rdma-installer", 2))
        (row,) = ask()[Requirement.PLUGIN]
        assert (row["good"], row["advice"]) == (True, "")

    @pytest.mark.parametrize("folder", ["/", "/home/kubernetes/bin/nvidia", "/home/kubernetes/bi"])
    def test_whose_folders_nothing_makes_is_missing(
        self, server: ApiServer, ask: Ask, folder: str
    ) -> None:
        server.answer_with(self.SETS, self.sets("another", 2, folder))
        (row,) = ask()[Requirement.PLUGIN]
        assert row["good"] is False
        assert "/home/kubernetes/bin/gib" in row["advice"]

    @pytest.mark.parametrize(
        ("name", "ready", "folder"),
        [("nccl-rdma-installer", 1, "/"), ("another", 2, "/home/kubernetes/bin")],
    )
    def test_that_is_not_ready_or_has_another_name_only_informs(
        self, server: ApiServer, ask: Ask, name: str, ready: int, folder: str
    ) -> None:
        server.answer_with(self.SETS, self.sets(name, ready, folder))
        (row,) = ask()[Requirement.PLUGIN]
        assert (row["good"], row["advice"] != "") == (True, True)

    def test_objects_that_the_user_may_not_read_are_unchecked(
        self, server: ApiServer, ask: Ask
    ) -> None:
        server.answer_with(self.SETS, 403)
        assert mark(ask(), Requirement.PLUGIN) == "unchecked"

    def test_of_each_pod_needs_no_daemon_set(self, ask: Ask) -> None:
        assert Requirement.PLUGIN not in ask("  plugin: init\n")


class TestAdmission:
    """A pod of the run, rendered by a real helm, as a server-side dry run."""

    PODS = "/api/v1/namespaces/lab/pods"

    @pytest.fixture(autouse=True)
    def allowed(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        (tmp_path / "bin").mkdir()
        (tmp_path / "bin" / "helm").symlink_to(helm(4))
        monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:/usr/bin:/bin")
        monkeypatch.setattr(Api, "may", lambda *_, **__: True)

    def test_tries_the_pod_of_the_run_and_creates_nothing(
        self, server: ApiServer, ask: Ask
    ) -> None:
        server.answer_with(self.PODS, {})
        assert mark(ask(), Requirement.ADMISSION) == "ok"
        (request,) = [one for one in server.seen if one[:2] == ("POST", self.PODS)]
        assert request[2] == {"dryRun": "All"}
        (sent,) = [body for body in server.bodies if body["kind"] == "Pod"]
        (container,) = sent["spec"]["containers"]
        assert container["resources"]["limits"] == {"nvidia.com/gpu": 8}
        assert "networking.gke.io/interfaces" in sent["metadata"]["annotations"]

    def test_renders_claims_of_devices_as_the_cluster_serves_them(
        self, server: ApiServer, ask: Ask
    ) -> None:
        server.serves("resource.k8s.io", "v1")
        server.answer_with(self.PODS, {})
        assert mark(ask(machine="a4x-highgpu-4g"), Requirement.ADMISSION) == "ok"

    def test_a_refused_pod_is_missing(self, server: ApiServer, ask: Ask) -> None:
        server.answer_with(self.PODS, 403)
        assert mark(ask(), Requirement.ADMISSION) == "missing"

    def test_a_broken_api_shows_nothing(self, server: ApiServer, ask: Ask) -> None:
        server.answer_with(self.PODS, 500)
        assert mark(ask(), Requirement.ADMISSION) == "unchecked"

    def test_limits_that_a_policy_adds_are_named(self, server: ApiServer, ask: Ask) -> None:
        limited = {"name": "accept", "resources": {"limits": {"cpu": "500m"}}}
        server.answer_with(self.PODS, {"spec": {"containers": [limited]}})
        (row,) = ask()[Requirement.ADMISSION]
        assert row["good"]
        assert "cpu=500m" in row["found"]

    def test_needs_the_right_to_create_pods(
        self, ask: Ask, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(Api, "may", lambda _, __, kind, **___: kind != "pods")
        assert mark(ask(), Requirement.ADMISSION) == "unchecked"


CLAIMS = "/apis/resource.k8s.io"
DOMAINS = "/apis/resource.nvidia.com/v1beta1"


class TestDevicesThatAreClaimed:
    """Devices of a machine of one NVLink domain that names one template and defines another."""

    @pytest.fixture
    def domain(self, ask: Ask, tmp_path: Path) -> Ask:
        machine = tmp_path / "domain.yaml"
        machine.write_text(DOMAIN)
        return lambda site="": ask(site, machine=str(machine))

    @pytest.fixture(autouse=True)
    def served(self, server: ApiServer) -> None:
        """Serve all kinds that it needs."""
        server.serves("resource.k8s.io", "v1", "v1beta1")
        server.answer_with(f"{CLAIMS}/v1/namespaces/lab/resourceclaimtemplates/default-rdma", {})
        server.answer_with(f"{CLAIMS}/v1/deviceclasses/mrdma.google.com", {})
        server.answer_with(DOMAINS, {"resources": [{"name": "computedomains"}]})

    def test_are_fine_if_the_cluster_has_everything(self, domain: Ask) -> None:
        rows = domain()
        for code, found in (
            (Requirement.DEVICE_CLAIMS, "resource.k8s.io/v1"),
            (Requirement.CLAIM_TEMPLATE, "default-rdma"),
            (Requirement.DEVICE_CLASS, "mrdma.google.com"),
            (Requirement.COMPUTE_DOMAIN, "resource.nvidia.com/v1beta1"),
        ):
            assert mark(rows, code) == "ok"
            assert rows[code][0]["found"] == found

    @pytest.mark.parametrize("versions", [(), ("v1alpha3",)])
    def test_need_a_version_that_the_chart_writes(
        self, server: ApiServer, domain: Ask, versions: tuple[str, ...]
    ) -> None:
        server.serves("resource.k8s.io", *versions)
        assert mark(domain(), Requirement.DEVICE_CLAIMS) == "missing"

    def test_need_their_class(self, server: ApiServer, domain: Ask) -> None:
        """Without it the pods are created, but stay pending."""
        server.answer_with(f"{CLAIMS}/v1/deviceclasses/mrdma.google.com", 404)
        assert mark(domain(), Requirement.DEVICE_CLASS) == "missing"
        server.answer_with(f"{CLAIMS}/v1/deviceclasses/mrdma.google.com", 403)
        assert mark(domain(), Requirement.DEVICE_CLASS) == "unchecked"

    def test_need_the_template_that_is_named(self, server: ApiServer, domain: Ask) -> None:
        server.answer_with(f"{CLAIMS}/v1/namespaces/lab/resourceclaimtemplates/default-rdma", 404)
        assert mark(domain(), Requirement.CLAIM_TEMPLATE) == "missing"

    def test_objects_that_the_user_may_not_read_are_unchecked(
        self, server: ApiServer, domain: Ask
    ) -> None:
        server.answer_with(f"{CLAIMS}/v1/namespaces/lab/resourceclaimtemplates/default-rdma", 403)
        assert mark(domain(), Requirement.CLAIM_TEMPLATE) == "unchecked"

    @pytest.mark.parametrize("answer", [404, {"resources": [{"name": "others"}]}])
    def test_need_nvidias_kind_for_a_domain(
        self, server: ApiServer, domain: Ask, answer: Any
    ) -> None:
        server.answer_with(DOMAINS, answer)
        assert mark(domain(), Requirement.COMPUTE_DOMAIN) == "missing"

    def test_are_not_checked_if_the_machine_claims_none(self, ask: Ask) -> None:
        assert not {Requirement.DEVICE_CLAIMS, Requirement.COMPUTE_DOMAIN} & set(ask())

    def test_are_not_checked_if_networks_provide_the_nics(self, domain: Ask) -> None:
        rows = domain("  networks: [{interface: eth2, network: rdma-0}]\n")
        assert Requirement.CLAIM_TEMPLATE not in rows
        assert mark(rows, Requirement.COMPUTE_DOMAIN) == "ok"


CLAIM = "/api/v1/namespaces/lab/persistentvolumeclaims/mine"
ON_CLAIM = "results: {volume: {persistentVolumeClaim: {claimName: mine}}}\n"
MOUNTED = """\
  extraVolumes: [{name: x, persistentVolumeClaim: {claimName: mine}}]
  extraVolumeMounts: [{name: x, mountPath: /data}]
results: {location: /data/runs}
"""


def claim(phase: str, *modes: str, of_class: str = "fast") -> dict[str, Any]:
    spec = {"accessModes": list(modes or ["ReadWriteMany"]), "storageClassName": of_class}
    return {"spec": spec, "status": {"phase": phase}}


class TestAClaimForResults:
    @pytest.mark.parametrize("site", [ON_CLAIM, MOUNTED])
    def test_that_is_bound_is_fine(self, server: ApiServer, ask: Ask, site: str) -> None:
        server.answer_with(CLAIM, claim("Bound"))
        assert mark(ask(site), Requirement.RESULTS) == "ok"

    def test_that_does_not_exist_is_missing(self, ask: Ask) -> None:
        assert mark(ask(ON_CLAIM), Requirement.RESULTS) == "missing"

    def test_may_be_bound_by_the_first_pod(self, server: ApiServer, ask: Ask) -> None:
        server.answer_with(CLAIM, claim("Pending"))
        mode = {"volumeBindingMode": "WaitForFirstConsumer"}
        server.answer_with("/apis/storage.k8s.io/v1/storageclasses/fast", mode)
        assert mark(ask(ON_CLAIM), Requirement.RESULTS) == "ok"

    @pytest.mark.parametrize("of_class", ["fast", "none", ""])
    def test_that_nothing_binds_is_missing(
        self, server: ApiServer, ask: Ask, of_class: str
    ) -> None:
        server.answer_with(CLAIM, claim("Pending", of_class=of_class))
        mode = {"volumeBindingMode": "Immediate"}
        server.answer_with("/apis/storage.k8s.io/v1/storageclasses/fast", mode)
        assert mark(ask(ON_CLAIM), Requirement.RESULTS) == "missing"

    def test_that_lost_its_volume_is_missing(self, server: ApiServer, ask: Ask) -> None:
        server.answer_with(CLAIM, claim("Lost"))
        assert mark(ask(ON_CLAIM), Requirement.RESULTS) == "missing"

    def test_of_one_node_is_not_usable_for_two_nodes(self, server: ApiServer, ask: Ask) -> None:
        server.answer_with(CLAIM, claim("Bound", "ReadWriteOnce"))
        assert mark(ask(ON_CLAIM), Requirement.RESULTS) == "missing"
        assert mark(ask(ON_CLAIM, nodes=1), Requirement.RESULTS) == "ok"

    def test_objects_that_the_user_may_not_read_are_unchecked(
        self, server: ApiServer, ask: Ask
    ) -> None:
        server.answer_with(CLAIM, 403)
        assert mark(ask(ON_CLAIM), Requirement.RESULTS) == "unchecked"


class TestABucketForResults:
    @pytest.mark.parametrize(
        ("reach", "expected"),
        [
            ((True, ""), "ok"),
            ((None, "no rights"), "unchecked"),
            ((False, "it does not exist"), "missing"),
        ],
    )
    def test_is_read_from_this_machine(
        self,
        ask: Ask,
        monkeypatch: pytest.MonkeyPatch,
        reach: tuple[bool | None, str],
        expected: str,
    ) -> None:
        # tests/evidence/test_bucket.py tests the answers of buckets.
        monkeypatch.setattr(bucket, "reach", lambda _: reach)
        site = "  serviceAccount: s\nresults: {location: 'gs://mine/x'}\n"
        rows = ask(site)
        assert mark(rows, Requirement.RESULTS) == expected
        assert reach[1] in rows[Requirement.RESULTS][0]["found"]

    def test_that_is_mounted_in_the_pods_is_unchecked(self, ask: Ask) -> None:
        site = "results: {volume: {csi: {driver: gcsfuse.csi.storage.gke.io}}}\n"
        assert mark(ask(site), Requirement.RESULTS) == "unchecked"
