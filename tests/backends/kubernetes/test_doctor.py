"""Findings of `accept doctor` on a cluster, and refusals of a run before it creates any object.

The cluster is the stand-in of tests/factories/api_server.py: it plays what a test cluster has not.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.factories.api_server import ApiServer, api_server
from tests.factories.chart_runs import DOMAIN
from tests.factories.command_line import accept, refused
from tests.factories.kubernetes import job, node

from accept.backends.kubernetes.client import Api
from accept.core.error_codes import Code
from accept.evidence import bucket

MACHINE = "a4-highgpu-8g"
#: Called with what follows `kubernetes: {image: …}` in a site file; returns what was said.
Ask = Callable[..., str]


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ApiServer]:
    """Run a stand-in cluster of one node with eight free GPUs."""
    monkeypatch.setenv("ACCEPT_RUNS", str(tmp_path / "runs"))
    with api_server() as one:
        monkeypatch.setenv("KUBECONFIG", str(one.kubeconfig(tmp_path)))
        one.says("/version", {"gitVersion": "v1.34.4"})
        one.says("/api/v1/namespaces/lab", {"metadata": {"name": "lab"}})
        there = node("n1")
        there["metadata"]["labels"] = {"cloud.google.com/gke-accelerator": "nvidia-b200"}
        one.says("/api/v1/nodes", {"items": [there]})
        one.says("/api/v1/pods", {"items": []})
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
    def doctor(site: str = "", **keys: int) -> str:
        done = accept("doctor", *options(site, **keys))
        assert done.code in (0, 4)
        return done.out

    return doctor


def line(said: str, what: str) -> tuple[str, str]:
    """Return the mark of the item `what`, and its text with the advice."""
    found = re.search(rf"^(ok|missing) +\S+: {re.escape(what)}: (.*(?:\n {{9}}.*)?)", said, re.M)
    assert found, said
    return found[1], found[2]


BROUGHT = [
    ("  queue: a4\n", "queue a4"),
    ("  suspend: true\n", "until it is resumed"),
    ("  flexStart: true\n", "flex-start"),
    ("  autoscaling: true\n", "kubernetes.autoscaling"),
]


class TestTooFewNodes:
    def test_are_no_start(self, options: Callable[..., list[str]]) -> None:
        done = accept("submit", *options())
        assert (done.code, done.error) == (4, Code.KUBE_NODES_TOO_FEW)
        assert "2 nodes requested, 1 free" in done.err

    @pytest.mark.parametrize(("site", "who"), BROUGHT)
    def test_are_said_where_something_brings_the_others(
        self,
        options: Callable[..., list[str]],
        monkeypatch: pytest.MonkeyPatch,
        site: str,
        who: str,
    ) -> None:
        # As far as helm, which is not there.
        monkeypatch.setenv("PATH", "/nonexistent")
        said = accept("submit", *options(site))
        assert (said.code, said.error) == (4, Code.HELM_MISSING)
        assert re.search(rf"2 nodes requested, [01] free .*; .*{who}", said.err)

    def test_are_missing_for_doctor(self, ask: Ask) -> None:
        assert line(ask(), "free nvidia.com/gpu")[0] == "missing"

    @pytest.mark.parametrize(("site", "who"), [one for one in BROUGHT if "flex" not in one[0]])
    def test_are_fine_for_doctor_where_something_brings_the_others(
        self, ask: Ask, site: str, who: str
    ) -> None:
        mark, said = line(ask(site), "free nvidia.com/gpu")
        assert mark == "ok"
        assert who in said

    @pytest.mark.parametrize(("site", "who"), BROUGHT)
    def test_may_be_none_at_all(self, server: ApiServer, ask: Ask, site: str, who: str) -> None:
        server.says("/api/v1/nodes", {"items": []})
        mark, said = line(ask(site), "nodes")
        assert mark == "ok"
        assert who in said

    def test_do_not_say_which_machine_is_meant(
        self, server: ApiServer, options: Callable[..., list[str]]
    ) -> None:
        server.says("/api/v1/nodes", {"items": []})
        words = options("  autoscaling: true\n", machine="")
        assert "give --machine NAME" in refused("submit", *words, code=4)


def test_a_node_affinity_is_not_checked(ask: Ask) -> None:
    required = "requiredDuringSchedulingIgnoredDuringExecution"
    site = f"  affinity: {{nodeAffinity: {{{required}: {{nodeSelectorTerms: []}}}}}}\n"
    assert line(ask(site), "affinity")[0] == "ok"


class TestATaintThatNothingTolerates:
    @pytest.fixture(autouse=True)
    def nodes(self, server: ApiServer) -> None:
        """Add one usable node and one with a taint."""
        there = [node("n1"), node("n2")]
        for one in there:
            one["metadata"]["labels"] = {"cloud.google.com/gke-accelerator": "nvidia-b200"}
        there[1]["spec"]["taints"] = [{"key": "maintenance", "effect": "NoSchedule"}]
        server.says("/api/v1/nodes", {"items": there})

    def test_is_said_where_enough_other_nodes_are_free(self, ask: Ask) -> None:
        mark, said = line(ask(nodes=1), "taints")
        assert (mark, "maintenance:NoSchedule" in said) == ("ok", True)

    def test_is_what_the_run_lacks_where_nodes_are_short(self, ask: Ask) -> None:
        mark, said = line(ask(nodes=2), "taints")
        assert (mark, "kubernetes.tolerations" in said) == ("missing", True)


class TestARunThatIsSubmitted:
    def test_is_known_by_what_the_chart_made(
        self,
        server: ApiServer,
        options: Callable[..., list[str]],
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        # A helm that has no release, and reports the same object for every installation.
        made = job()
        env = [{"name": "ACCEPT_HOST_PREFIX", "value": "a-1-w-0-"}]
        env += [{"name": "ACCEPT_RESULTS", "value": "/accept/results"}]
        containers = [{"name": "accept", "env": env}]
        made |= {"kind": "Job"}
        made["spec"]["template"] = {"spec": {"containers": containers}}
        manifest = "".join(f"---\n{yaml.safe_dump(one)}" for one in ({"kind": "ConfigMap"}, made))
        record = tmp_path / "record.json"
        record.write_text(json.dumps({"manifest": manifest}))
        helm = tmp_path / "bin" / "helm"
        helm.parent.mkdir()
        helm.write_text(
            '#!/bin/sh\n[ "$1" != get ] || { echo "Error: release: not found" >&2; exit 1; }\n'
            f"cat {record}\n"
        )
        helm.chmod(0o755)
        monkeypatch.setenv("PATH", f"{helm.parent}:/usr/bin:/bin")
        server.says("/api/v1/namespaces/lab/secrets", {"metadata": {"name": "key"}})
        done = accept("submit", *options("", "--json", "--attempt=a", nodes=1))
        assert done.code == 0, done.err
        submitted = json.loads(done.out)
        assert submitted["first"] == "a-1-w-0-0"
        assert submitted["place"]["results"] == "/accept/results"


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

    @pytest.mark.parametrize(("field", "mark"), [(CLAIM_FIELD, "ok"), (OLD_FIELD, "missing")])
    def test_must_be_of_version_0_7(
        self, server: ApiServer, ask: Ask, field: str, mark: str
    ) -> None:
        server.says(f"/openapi/v3{JOBSET}/v1alpha2", jobset(field))
        assert line(ask(), "JobSet")[0] == mark

    def test_does_not_matter_where_a_plain_job_is_asked_for(
        self, server: ApiServer, ask: Ask
    ) -> None:
        server.says(f"/openapi/v3{JOBSET}/v1alpha2", jobset("spec.replicatedJobs"))
        assert line(ask("  controller: job\n"), "JobSet")[0] == "ok"

    def test_may_keep_its_fields_to_itself(self, server: ApiServer, ask: Ask) -> None:
        server.says(f"/openapi/v3{JOBSET}/v1alpha2", 403)
        assert line(ask(), "JobSet")[0] == "ok"


class TestRights:
    @pytest.fixture
    def refuse(self, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
        """Allow everything but these kinds."""

        def refuse(*kinds: str) -> None:
            monkeypatch.setattr(Api, "may", lambda _, __, kind, **___: kind not in kinds)

        return refuse

    @pytest.mark.parametrize(
        ("controller", "served", "mark"),
        [
            ("jobset", True, "missing"),
            ("auto", True, "missing"),
            ("auto", False, "ok"),
            ("job", True, "ok"),
        ],
    )
    def test_on_jobsets_are_needed_where_the_run_makes_one(
        self,
        server: ApiServer,
        ask: Ask,
        refuse: Callable[..., None],
        controller: str,
        served: bool,  # noqa: FBT001
        mark: str,
    ) -> None:
        refuse("jobsets")
        if served:
            server.says(f"{JOBSET}/v1alpha2", {"resources": [{"name": "jobsets"}]})
        said = ask(f"  controller: {controller}\n")
        assert line(said, "RBAC for jobsets" if mark == "missing" else "RBAC")[0] == mark

    @pytest.mark.parametrize(
        ("site", "machine", "kind", "mark"),
        [
            ("", MACHINE, "networkpolicies", "missing"),
            ("  networkPolicy: false\n", MACHINE, "networkpolicies", "ok"),
            ("", MACHINE, "computedomains", "ok"),
            ("", "a4x-highgpu-4g", "computedomains", "missing"),
            ("", MACHINE, "resourceclaimtemplates", "ok"),
            ("", "domain", "resourceclaimtemplates", "missing"),
            ("  resourceClaims: []\n", "domain", "resourceclaimtemplates", "ok"),
        ],
    )
    def test_on_what_a_run_makes_are_needed_where_it_does(
        self,
        options: Callable[..., list[str]],
        refuse: Callable[..., None],
        tmp_path: Path,
        site: str,
        machine: str,
        kind: str,
        mark: str,
    ) -> None:
        refuse(kind)
        if machine == "domain":
            machine = str(tmp_path / "domain.yaml")
            Path(machine).write_text(DOMAIN)
        said = accept("doctor", *options(site, machine=machine)).out
        assert line(said, f"RBAC for {kind}" if mark == "missing" else "RBAC")[0] == mark

    def test_on_what_only_tells_more_are_not_missing(
        self, ask: Ask, refuse: Callable[..., None]
    ) -> None:
        refuse("events")
        assert line(ask(), "RBAC for events")[0] == "ok"


CLAIMS = "/apis/resource.k8s.io"
DOMAINS = "/apis/resource.nvidia.com/v1beta1"


class TestDevicesThatAreClaimed:
    """Devices of a machine of one NVLink domain that names one template and defines another."""

    @pytest.fixture
    def domain(self, options: Callable[..., list[str]], tmp_path: Path) -> Ask:
        machine = tmp_path / "domain.yaml"
        machine.write_text(DOMAIN)
        return lambda site="": accept("doctor", *options(site, machine=str(machine))).out

    @pytest.fixture(autouse=True)
    def served(self, server: ApiServer) -> None:
        """Serve all kinds that it needs."""
        server.serves("resource.k8s.io", "v1", "v1beta1")
        server.says(f"{CLAIMS}/v1/namespaces/lab/resourceclaimtemplates/default-rdma", {})
        server.says(DOMAINS, {"resources": [{"name": "computedomains"}]})

    def test_are_fine_where_the_cluster_has_it_all(self, domain: Ask) -> None:
        said = domain()
        assert line(said, "claims of devices") == ("ok", "resource.k8s.io/v1")
        assert line(said, "claim template") == ("ok", "default-rdma")
        assert line(said, "ComputeDomain") == ("ok", "resource.nvidia.com/v1beta1")

    @pytest.mark.parametrize("versions", [(), ("v1alpha3",)])
    def test_need_a_version_that_the_chart_writes(
        self, server: ApiServer, domain: Ask, versions: tuple[str, ...]
    ) -> None:
        server.serves("resource.k8s.io", *versions)
        mark, said = line(domain(), "claims of devices")
        assert (mark, "Kubernetes 1.34 or newer" in said) == ("missing", True)

    def test_need_the_template_that_is_named(self, server: ApiServer, domain: Ask) -> None:
        server.says(f"{CLAIMS}/v1/namespaces/lab/resourceclaimtemplates/default-rdma", 404)
        mark, said = line(domain(), "claim template")
        assert (mark, "default-rdma is not in namespace lab" in said) == ("missing", True)

    def test_may_be_nobodys_to_look_at(self, server: ApiServer, domain: Ask) -> None:
        server.says(f"{CLAIMS}/v1/namespaces/lab/resourceclaimtemplates/default-rdma", 403)
        assert line(domain(), "claim template")[0] == "ok"

    @pytest.mark.parametrize("answer", [404, {"resources": [{"name": "others"}]}])
    def test_need_nvidias_kind_for_a_domain(
        self, server: ApiServer, domain: Ask, answer: Any
    ) -> None:
        server.says(DOMAINS, answer)
        mark, said = line(domain(), "ComputeDomain")
        assert (mark, "NVIDIA's DRA driver" in said) == ("missing", True)

    def test_are_none_where_the_machine_claims_none(self, ask: Ask) -> None:
        assert "claim" not in ask()
        assert "ComputeDomain" not in ask()

    def test_are_not_the_machines_where_networks_bring_the_nics(self, domain: Ask) -> None:
        said = domain("  networks: [{interface: eth2, network: rdma-0}]\n")
        assert "claim template" not in said
        assert line(said, "ComputeDomain")[0] == "ok"


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
        server.says(CLAIM, claim("Bound"))
        assert line(ask(site), "results") == ("ok", "claim mine is bound")

    def test_that_is_not_there_is_missing(self, ask: Ask) -> None:
        mark, said = line(ask(ON_CLAIM), "results")
        assert (mark, "not in namespace lab" in said) == ("missing", True)

    def test_may_be_bound_when_the_first_pod_comes(self, server: ApiServer, ask: Ask) -> None:
        server.says(CLAIM, claim("Pending"))
        mode = {"volumeBindingMode": "WaitForFirstConsumer"}
        server.says("/apis/storage.k8s.io/v1/storageclasses/fast", mode)
        assert line(ask(ON_CLAIM), "results")[0] == "ok"

    @pytest.mark.parametrize("of_class", ["fast", "none", ""])
    def test_that_nothing_binds_is_missing(
        self, server: ApiServer, ask: Ask, of_class: str
    ) -> None:
        server.says(CLAIM, claim("Pending", of_class=of_class))
        mode = {"volumeBindingMode": "Immediate"}
        server.says("/apis/storage.k8s.io/v1/storageclasses/fast", mode)
        mark, said = line(ask(ON_CLAIM), "results")
        assert (mark, "kubectl describe pvc mine" in said) == ("missing", True)

    def test_that_lost_its_volume_is_missing(self, server: ApiServer, ask: Ask) -> None:
        server.says(CLAIM, claim("Lost"))
        assert line(ask(ON_CLAIM), "results")[0] == "missing"

    def test_of_one_node_is_none_for_two(self, server: ApiServer, ask: Ask) -> None:
        server.says(CLAIM, claim("Bound", "ReadWriteOnce"))
        mark, said = line(ask(ON_CLAIM), "results")
        assert (mark, "2 nodes mount it" in said) == ("missing", True)
        assert line(ask(ON_CLAIM, nodes=1), "results")[0] == "ok"

    def test_may_be_nobodys_to_look_at(self, server: ApiServer, ask: Ask) -> None:
        server.says(CLAIM, 403)
        assert line(ask(ON_CLAIM), "results")[0] == "ok"


class TestABucketForResults:
    @pytest.mark.parametrize(
        ("reach", "mark", "words"),
        [
            ((True, ""), "ok", "can be listed from here; service account s writes there"),
            ((None, "no rights"), "ok", "cannot be listed from here: no rights"),
            ((False, "it is not there"), "missing", "create it, or correct results.location"),
        ],
    )
    def test_is_tried_from_here(
        self,
        ask: Ask,
        monkeypatch: pytest.MonkeyPatch,
        reach: tuple[bool | None, str],
        mark: str,
        words: str,
    ) -> None:
        # What buckets answer is tested on some, in test_storage.py.
        monkeypatch.setattr(bucket, "reach", lambda _: reach)
        site = "  serviceAccount: s\nresults: {location: 'gs://mine/x'}\n"
        found, said = line(ask(site), "results")
        assert (found, words in said) == (mark, True)

    def test_that_is_a_folder_of_the_pods_only_they_can_know(self, ask: Ask) -> None:
        site = "results: {volume: {csi: {driver: gcsfuse.csi.storage.gke.io}}}\n"
        mark, said = line(ask(site), "results")
        assert (mark, "not checked here" in said) == ("ok", True)
