"""Each key of a site file and of a machine file takes effect in the rendered objects."""

from __future__ import annotations

import base64
import json
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.factories.chart_runs import Write, gke_positions, resolved
from tests.factories.helm import (
    container,
    environment,
    job,
    notes_of,
    objects,
    pod,
    refusal,
    text,
    values_in,
)

from accept.config.kubernetes import CodeSource
from accept.core.error_codes import Code
from accept.core.runner.positions import read_positions
from accept.plan import bundle, node_code
from accept.plan.helm_values import code_source

pytestmark = pytest.mark.real

KNOWN = "a4-highgpu-8g"
GOLDEN = Path(__file__).parent / "golden"
KUEUE_SEPARATE = GOLDEN / "kueue-separate-coordinator.yaml"
both = pytest.mark.parametrize("major", [3, 4], ids=["helm3", "helm4"])
HARD = "requiredDuringSchedulingIgnoredDuringExecution"


@pytest.fixture
def major() -> int:
    """Return helm 4; test_chart.py shows that helm 3 renders the same."""
    return 4


def volumes(found: Any) -> dict[str, dict[str, Any]]:
    """Return the volumes of the pods by name; each occurs once."""
    listed = pod(found)["volumes"]
    by_name = {one["name"]: one for one in listed}
    assert len(by_name) == len(listed)
    return by_name


def mounts(found: Any) -> dict[str, str]:
    """Return the names of the mounted volumes by path; each path occurs once."""
    listed = container(found)["volumeMounts"]
    by_place = {one["mountPath"]: one["name"] for one in listed}
    assert len(by_place) == len(listed)
    assert set(by_place.values()) <= set(volumes(found))
    return by_place


def pod_templates(jobset: Any) -> list[dict[str, Any]]:
    """Return the templates of the pods of a JobSet, in its order."""
    return [one["template"]["spec"]["template"] for one in jobset["spec"]["replicatedJobs"]]


def read_by_kueue(jobset: Any) -> dict[str, Any]:
    """Return the fields of a JobSet that Kueue reads: queue, topology, counts, resources."""
    placement = ("nodeSelector", "tolerations", "affinity", "priorityClassName")
    return {
        "labels": {k: v for k, v in jobset["metadata"]["labels"].items() if "kueue" in k},
        "suspend": jobset["spec"]["suspend"],
        "podSets": [
            {
                "name": job["name"],
                "replicas": job["replicas"],
                "parallelism": job["template"]["spec"]["parallelism"],
                "completions": job["template"]["spec"]["completions"],
                "annotations": {
                    k: v for k, v in template["metadata"]["annotations"].items() if "kueue" in k
                },
                **{k: template["spec"][k] for k in placement if k in template["spec"]},
                "resources": {
                    one["name"]: one["resources"]
                    for one in (
                        *template["spec"].get("initContainers", []),
                        *template["spec"]["containers"],
                    )
                },
            }
            for job, template in zip(
                jobset["spec"]["replicatedJobs"], pod_templates(jobset), strict=True
            )
        ],
    }


def look(found: Any, path: str) -> Any:
    """Return the value at a path of keys; None if it is missing, or a mapping without keys.

    It begins with the kind of an object, or with a part of it; `required` is a key of affinities.
    """
    parts = {
        "pod": pod,
        "container": container,
        "env": environment,
        "notes": notes_of,
        "job": job,
        "volumes": volumes,
        "mounts": mounts,
    }
    first, *keys = (HARD if key == "required" else key for key in path.split(" "))
    value = parts[first](found) if first in parts else found.get(first)
    for key in keys:
        value = value.get(key) if isinstance(value, dict) else None
    return None if value == {} else value


@dataclass(frozen=True, kw_only=True)
class Effect:
    """Describe what a site file and a value set with helm do to the objects of a machine."""

    machine: str
    kubernetes: dict[str, object] = field(default_factory=dict)
    results: dict[str, object] = field(default_factory=dict)
    set: str = ""
    #: The value at each path; None: as in `look`.
    expected: dict[str, object]

    @property
    def site(self) -> str:
        """Return the site file, without its first lines."""
        keys = "".join(f"  {key}: {json.dumps(value)}\n" for key, value in self.kubernetes.items())
        return keys + (f"results: {json.dumps(self.results)}\n" if self.results else "")


EFFECTS = [Effect(**one) for one in yaml.safe_load((GOLDEN / "effects.yaml").read_text())]


@pytest.mark.parametrize("effect", EFFECTS, ids=lambda one: f"{one.kubernetes} {one.set}"[:60])
def test_a_key_takes_effect(effect: Effect, write: Write) -> None:
    words = ("--set", "attempt=a1", *(("--set", effect.set) if effect.set else ()))
    found = objects(4, write(effect.machine, site=effect.site), *words)
    assert {path: look(found, path) for path in effect.expected} == effect.expected


class TestCode:
    @pytest.mark.parametrize(
        ("site", "image", "source"),
        [
            ("auto", "registry.example:5000/accept:1", "chart"),
            ("auto", "registry.example:5000/accept:1-code-{code}", "image"),
            ("auto", "registry.example/accept:1-code-{code}@sha256:1", "image"),
            ("auto", "registry.example/accept:1-code-000000000000", "chart"),
            ("chart", "registry.example/accept:1-code-{code}", "chart"),
            ("image", "registry.example/accept:1", "image"),
        ],
    )
    def test_comes_from_the_image_if_its_tag_or_the_site_file_shows_it(
        self, tmp_path: Path, site: CodeSource, image: str, source: str
    ) -> None:
        run = resolved(tmp_path)
        digest = node_code.digest(bundle.code())[:12]
        of_site = replace(run.site.kubernetes, code=site, image=image.format(code=digest))
        run = replace(run, site=replace(run.site, kubernetes=of_site))
        assert code_source(run) == source

    def test_in_the_image_is_not_in_the_manifest(self, major: int, write: Write) -> None:
        file = write(site="  code: image\n")
        found = objects(major, file)
        assert [kind for kind in found if kind.startswith("ConfigMap")] == ["ConfigMap"]
        sources = volumes(found)["accept-bundle"]["projected"]["sources"]
        name = found["ConfigMap"]["metadata"]["name"]
        assert [source["configMap"]["name"] for source in sources] == [name, f"{name}-positions"]
        # A pod whose image contains another version ends before it starts anything.
        assert f"= {values_in(file)['accept']['code']} ] || leave" in container(found)["command"][2]


OWN_NETWORKS = "  networks: [{interface: eth0, network: default}, {interface: eth1, network: n}]\n"


class TestNetworks:
    @pytest.mark.parametrize(
        ("site", "number", "second"),
        [
            ("", 9, {"interfaceName": "eth2", "network": "rdma-0"}),
            (OWN_NETWORKS, 2, {"interfaceName": "eth1", "network": "n"}),
        ],
    )
    def test_of_the_machine_or_the_site_become_annotations(
        self, major: int, site: str, number: int, second: dict[str, str], write: Write
    ) -> None:
        notes = notes_of(objects(major, write(KNOWN, site=site)))
        listed = json.loads(notes["networking.gke.io/interfaces"])
        assert listed[:2] == [{"interfaceName": "eth0", "network": "default"}, second]
        assert len(listed) == number


class TestPositions:
    @pytest.mark.parametrize("nodes", [1, 4000])
    def test_of_the_site_file_reach_index_0_unmodified(
        self, major: int, write: Write, tmp_path: Path, nodes: int
    ) -> None:
        given = gke_positions(nodes)
        found = objects(major, write(KNOWN, site=f"  positions: {json.dumps(given)}\n"))
        made = found["ConfigMap positions"]
        for name, content in made.get("data", {}).items():
            (tmp_path / name).write_text(content)
        for name, content in made.get("binaryData", {}).items():
            (tmp_path / name).write_bytes(base64.b64decode(content))
        assert read_positions(tmp_path) == (given, "")
        assert not {"ServiceAccount", "ClusterRole"} & set(found)

    @pytest.mark.parametrize("account", ["", "mine"])
    def test_are_read_by_an_identity_that_may_only_list_nodes(
        self, major: int, write: Write, account: str
    ) -> None:
        site = f"  readNodes: true\n{f'  serviceAccount: {account}' if account else ''}\n"
        found = objects(major, write(KNOWN, site=site), "--set", "attempt=a1")
        name = account or "mytest-a1"
        assert found["ClusterRole"]["rules"] == [
            {"apiGroups": [""], "resources": ["nodes"], "verbs": ["list"]}
        ]
        (subject,) = found["ClusterRoleBinding"]["subjects"]
        assert (subject["name"], pod(found)["serviceAccountName"]) == (name, name)
        assert ("ServiceAccount" in found) is (not account)
        assert pod(found)["automountServiceAccountToken"] is False

    def test_may_come_from_a_config_map_beside_the_release(self, major: int, write: Write) -> None:
        found = objects(major, write(KNOWN))
        # `accept run` makes it.
        (mounted,) = (
            source["configMap"]
            for source in volumes(found)["accept-bundle"]["projected"]["sources"]
            if "items" not in source["configMap"] and "optional" in source["configMap"]
        )
        assert mounted["optional"] is True


class TestPlacement:
    def test_no_request_is_above_a_limit_of_the_site(self, major: int, write: Write) -> None:
        found = objects(major, write(KNOWN, site="  resources: {limits: {cpu: 16}}\n"))
        (main, *_) = pod(found)["containers"]
        resources = main["resources"]
        assert resources["limits"]["cpu"] == 16
        assert resources["requests"].keys() == {"memory"}

    def test_one_rack_without_a_queue_becomes_an_affinity(self, major: int, write: Write) -> None:
        mine = (
            "  affinity: {podAffinity: {preferredDuringSchedulingIgnoredDuringExecution: "
            "[{weight: 1, podAffinityTerm: {topologyKey: mine}}]}}\n"
        )
        ours = {"labelSelector": {"matchLabels": {"accept-run": "mytest-a1"}}}
        required = objects(
            major, write(KNOWN, site="  topology: {required: rack}\n"), "--set", "attempt=a1"
        )
        assert pod(required)["affinity"]["podAffinity"] == {HARD: [{**ours, "topologyKey": "rack"}]}
        preferred = objects(
            major, write(KNOWN, site=f"  topology: {{preferred: rack}}\n{mine}"), "--set",
            "attempt=a1",
        )  # fmt: skip
        wishes = pod(preferred)["affinity"]["podAffinity"][
            "preferredDuringSchedulingIgnoredDuringExecution"
        ]
        assert [wish["podAffinityTerm"]["topologyKey"] for wish in wishes] == ["mine", "rack"]
        assert wishes[1]["podAffinityTerm"] == {**ours, "topologyKey": "rack"}
        assert not [key for found in (required, preferred) for key in notes_of(found)
                    if "kueue" in key]  # fmt: skip

    def test_spot_and_flex_start_are_tolerated_and_selected(self, major: int, write: Write) -> None:
        found = objects(major, write(KNOWN, site="  spot: true\n  flexStart: true\n  queue: q\n"))
        keys = {one["key"] for one in pod(found)["tolerations"]}
        assert keys >= {"cloud.google.com/gke-spot", "cloud.google.com/gke-queued"}
        assert pod(found)["nodeSelector"]["cloud.google.com/gke-flex-start"] == "true"
        longest = str(job(found)["activeDeadlineSeconds"])
        assert found["JobSet"]["metadata"]["annotations"] == {
            "provreq.kueue.x-k8s.io/maxRunDurationSeconds": longest
        }

    @pytest.mark.parametrize("jobset", [True, False])
    def test_queue(self, major: int, jobset: bool, write: Write) -> None:  # noqa: FBT001
        site = (
            "  queue: a4\n  workloadPriorityClass: high\n  priorityClassName: urgent\n"
            "  topology: {required: block, slice: rack, sliceSize: 16}\n"
        )
        found = objects(major, write(KNOWN, site=site), jobset=jobset)
        queued = found["JobSet" if jobset else "Job"]
        assert queued["spec"]["suspend"] is True
        labels = queued["metadata"]["labels"]
        assert labels["kueue.x-k8s.io/queue-name"] == "a4"
        assert labels["kueue.x-k8s.io/priority-class"] == "high"
        assert "affinity" not in pod(found)
        annotations = {key: value for key, value in notes_of(found).items() if "kueue" in key}
        assert annotations == {
            "kueue.x-k8s.io/podset-required-topology": "block",
            "kueue.x-k8s.io/podset-slice-required-topology": "rack",
            "kueue.x-k8s.io/podset-slice-size": "16",
        }
        assert not [k for k in job(found)["template"]["metadata"]["labels"] if "kueue" in k]
        assert pod(found)["priorityClassName"] == "urgent"

    def test_queue_gets_the_pod_sets_of_the_golden_file(self, major: int, write: Write) -> None:
        site = (
            "  queue: a4\n  topology: {required: cloud.google.com/gce-topology-block}\n"
            "  coordinator: separate\n  coordinatorPod:\n    nodeSelector: {pool: cpu}\n"
            "    resources: {requests: {cpu: 4, memory: 8Gi}}\n"
        )
        found = objects(major, write(KNOWN, nodes=4, site=site))["JobSet"]
        assert read_by_kueue(found) == yaml.safe_load(KUEUE_SEPARATE.read_text())

    def test_one_rack_does_not_contain_a_coordinator_of_its_own(
        self, major: int, write: Write
    ) -> None:
        site = "  coordinator: separate\n  topology: {required: rack}\n"
        found = objects(major, write(KNOWN, site=site), "--set", "attempt=a1")["JobSet"]
        coordinator, hosts = pod_templates(found)
        assert "podAffinity" not in coordinator["spec"]["affinity"]
        (rule,) = hosts["spec"]["affinity"]["podAffinity"][HARD]
        assert rule["labelSelector"]["matchLabels"] == {
            "accept-run": "mytest-a1",
            "accept-role": "host",
        }


class TestLifetime:
    def test_includes_a_debug_hold(self, major: int, write: Write) -> None:
        first, second = write(hold=0.0).read_text(), write(hold=3600.0)
        assert "debugHoldSeconds: 0" in first
        found = objects(major, second)
        assert environment(found)["ACCEPT_LIFE_SECONDS"] == str(3600 + 3600)
        assert environment(found)["ACCEPT_DEBUG_HOLD"] == "3600"

    def test_ttl_is_set_on_a_plain_job(self, major: int, write: Write) -> None:
        found = objects(major, write(site="  ttlSeconds: 0\n"), jobset=False)
        assert job(found)["ttlSecondsAfterFinished"] == 0

    def test_failed_uploads_do_not_shorten_the_hold(self, major: int, write: Write) -> None:
        keeps = job(objects(major, write()))["activeDeadlineSeconds"]
        sends = job(objects(major, write(site="results: {location: 'gs://b/p'}\n")))
        # Index 0 tries to upload for this long: pod_entrypoint.sh.
        assert sends["activeDeadlineSeconds"] - keeps >= 300


class TestContainers:
    def test_sidecars_end_with_the_run(self, major: int, write: Write) -> None:
        site = (
            "  extraInitContainers: [{name: first, image: i}]\n"
            "  extraSidecars: [{name: beside, image: i}]\n"
        )
        found = pod(objects(major, write("a3-megagpu-8g", site=site)))
        order = [(one["name"], one.get("restartPolicy")) for one in found["initContainers"]]
        assert order == [("first", None), ("tcpxo-daemon", "Always"), ("beside", "Always")]
        assert len(found["containers"]) == 1

    @both
    def test_text_stays_text_after_helm(self, major: int, write: Write) -> None:
        values = ["y", "N", "on", "~", "null", "1e3", "0o17", "0x1f", "1_000", "12:30", "=", "- a",
                  "2026-11-21", ".5", "+1", "'", "#", "{a", "é", " ", ""]  # fmt: skip
        given = {f"TEXT{number}": value for number, value in enumerate(values)}
        site = f"  extraEnv: {json.dumps(given, ensure_ascii=False)}\n"
        found = environment(objects(major, write(site=site)))
        assert {name: found[name] for name in given} == given

    @both
    def test_numbers_given_to_helm_keep_their_form(self, major: int, write: Write) -> None:
        found = objects(major, write(), "--set", "pod.env.BIG=8388608,site.ttlSeconds=8388608")
        assert environment(found)["BIG"] == "8388608"
        assert found["JobSet"]["spec"]["ttlSecondsAfterFinished"] == 8388608

    def test_names_occur_once(self, major: int, write: Write) -> None:
        found = objects(major, write(site="  extraEnv: {ACCEPT_NODES: 9, ACCEPT_NODE: x}\n"))
        names = [one["name"] for one in container(found)["env"]]
        assert len(set(names)) == len(names)
        assert environment(found)["ACCEPT_NODES"] == "2"


class TestDevices:
    """Dynamic resource allocation, as on machines of one NVLink domain."""

    def test_are_claimed_by_every_pod(self, major: int, write: Write) -> None:
        found = objects(major, write("domain", nodes=18), "--set", "attempt=a1")
        assert pod(found)["resourceClaims"] == [
            {"name": "theirs", "resourceClaimTemplateName": "default-rdma"},
            {"name": "rdma", "resourceClaimTemplateName": "mytest-a1-rdma"},
            {"name": "compute-domain-channel", "resourceClaimTemplateName": "mytest-a1-channel"},
        ]
        claims = container(found)["resources"]["claims"]
        assert [one["name"] for one in claims] == ["theirs", "rdma", "compute-domain-channel"]
        template = found["ResourceClaimTemplate"]
        assert template["metadata"]["name"] == "mytest-a1-rdma"
        (request,) = template["spec"]["spec"]["devices"]["requests"]
        assert request["exactly"]["deviceClassName"] == "mrdma.google.com"
        domain = found["ComputeDomain"]["spec"]
        assert domain["numNodes"] == 18
        assert domain["channel"]["resourceClaimTemplate"]["name"] == "mytest-a1-channel"

    @pytest.mark.parametrize(
        ("site", "claims"),
        [
            ("", [("rdma", "mytest-a1-rdma")]),
            ("  networks: [{interface: eth2, network: rdma-0}]\n", []),
            ("  networks: []\n", [("rdma", "mytest-a1-rdma")]),
            ("  resourceClaims: []\n", []),
            ("  resourceClaims: [{name: nics, template: t}]\n", [("nics", "t")]),
            ("  networks: [{interface: a, network: n}]\n  resourceClaims: []\n", []),
        ],
    )
    def test_nics_come_by_claims_or_by_networks(
        self, major: int, site: str, claims: list[tuple[str, str]], write: Write
    ) -> None:
        found = objects(major, write("a4x-highgpu-4g", site=site), "--set", "attempt=a1")
        *listed, domain = pod(found)["resourceClaims"]
        assert domain["name"] == "compute-domain-channel"
        assert [(one["name"], one["resourceClaimTemplateName"]) for one in listed] == claims
        assert ("ResourceClaimTemplate" in found) == (claims[:1] == [("rdma", "mytest-a1-rdma")])

    @pytest.mark.parametrize(
        ("kubernetes", "version"),
        [("1.35.2", "v1"), ("1.34.0-gke.1", "v1"), ("1.33.9", "v1beta2"), ("1.32.0", "v1beta1")],
    )
    def test_are_claimed_by_the_version_that_the_cluster_serves(
        self, major: int, kubernetes: str, version: str, write: Write
    ) -> None:
        found = objects(major, write("domain"), "--kube-version", kubernetes)
        template = found["ResourceClaimTemplate"]
        assert template["apiVersion"] == f"resource.k8s.io/{version}"
        (request,) = template["spec"]["spec"]["devices"]["requests"]
        asked = {"deviceClassName": "mrdma.google.com", "allocationMode": "All"}
        expected = asked if version == "v1beta1" else {"exactly": asked}
        assert request == {"name": "nics", **expected}

    def test_are_refused_if_the_cluster_serves_none(self, major: int, write: Write) -> None:
        message = refusal(major, "--values", write("domain"), "--kube-version", "1.31.4")
        assert Code.HELM_NO_CLAIMS in message
        text(major, write(KNOWN), "--kube-version", "1.31.4")
