"""Each key of a site file and of a machine file takes effect in the rendered objects."""

from __future__ import annotations

import base64
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.factories.chart_runs import Write, gke_positions, resolved
from tests.factories.helm import (
    Objects,
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
KUEUE_SEPARATE = Path(__file__).parent / "golden" / "kueue-separate-coordinator.yaml"
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


def named(operator: str, node: str) -> dict[str, Any]:
    """Return a rule on the name of a node, as in a term of nodeAffinity."""
    return {"key": "metadata.name", "operator": operator, "values": [node]}


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


class TestNetwork:
    def test_of_the_machine_becomes_annotations(self, major: int, write: Write) -> None:
        annotations = notes_of(objects(major, write(KNOWN)))
        assert annotations["networking.gke.io/default-interface"] == "eth0"
        listed = json.loads(annotations["networking.gke.io/interfaces"])
        assert listed[:2] == [
            {"interfaceName": "eth0", "network": "default"},
            {"interfaceName": "eth2", "network": "rdma-0"},
        ]
        assert len(listed) == 9

    def test_of_the_site_replaces_that_of_the_machine(self, major: int, write: Write) -> None:
        site = "  networks: [{interface: eth0, network: default}, {interface: eth1, network: n}]\n"
        annotations = notes_of(objects(major, write(KNOWN, site=site)))
        assert json.loads(annotations["networking.gke.io/interfaces"])[1]["network"] == "n"
        none = notes_of(objects(major, write(KNOWN, site="  networks: []\n")))
        assert not [key for key in none if "networking" in key]

    def test_of_the_node_is_used_if_requested(self, major: int, write: Write) -> None:
        file = write(KNOWN, site="  hostNetwork: true\n")
        found = objects(major, file, "--set", "ssh.port=2345")
        assert (pod(found)["hostNetwork"], pod(found)["dnsPolicy"]) == (
            True,
            "ClusterFirstWithHostNet",
        )
        assert container(found)["ports"] == [
            {"name": "ssh", "containerPort": 2345, "hostPort": 2345, "protocol": "TCP"}
        ]
        assert environment(found)["ACCEPT_SSH_PORT"] == "2345"
        assert not [key for key in notes_of(found) if "networking" in key]

    def test_of_pods_uses_no_port_of_the_node(self, major: int, write: Write) -> None:
        found = objects(major, write(KNOWN))
        assert (pod(found)["hostNetwork"], pod(found)["dnsPolicy"]) == (False, "ClusterFirst")
        assert "hostPort" not in container(found)["ports"][0]

    def test_policy_can_be_left_out(self, major: int, write: Write) -> None:
        assert "NetworkPolicy" not in objects(major, write(site="  networkPolicy: false\n"))


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

    def test_of_a_run_are_not_read_by_default(self, major: int, write: Write) -> None:
        found = objects(major, write(KNOWN))
        assert not {"ConfigMap positions", "ServiceAccount", "ClusterRole"} & set(found)
        # `accept run` makes the ConfigMap beside the release.
        (mounted,) = (
            source["configMap"]
            for source in volumes(found)["accept-bundle"]["projected"]["sources"]
            if "items" not in source["configMap"] and "optional" in source["configMap"]
        )
        assert mounted["optional"] is True


class TestPlacement:
    def terms(self, found: Objects) -> Any:
        return pod(found)["affinity"]["nodeAffinity"][HARD]["nodeSelectorTerms"]

    def test_nodes_that_are_included_are_alternatives(self, major: int, write: Write) -> None:
        site = "  includeNodes: [n1, n2]\n  excludeNodes: [n4]\n"
        assert self.terms(objects(major, write(KNOWN, site=site))) == [
            {"matchFields": [named("In", "n1")]},
            {"matchFields": [named("In", "n2")]},
        ]

    def test_nodes_that_are_excluded_are_rules_of_one_term(self, major: int, write: Write) -> None:
        site = "  excludeNodes: [n4, n5]\n"
        assert self.terms(objects(major, write(KNOWN, site=site))) == [
            {"matchFields": [named("NotIn", "n4"), named("NotIn", "n5")]}
        ]

    def test_a_node_that_is_excluded_with_helm_is_not_included(
        self, major: int, write: Write
    ) -> None:
        file = write(KNOWN, site="  includeNodes: [n1, n2, n3]\n", nodes=2)
        found = objects(major, file, "--set", "site.excludeNodes={n2}")
        assert self.terms(found) == [
            {"matchFields": [named("In", "n1")]},
            {"matchFields": [named("In", "n3")]},
        ]

    def test_rules_are_added_to_each_of_the_sites_own_terms(self, major: int, write: Write) -> None:
        site = (
            "  excludeNodes: [n4]\n"
            f"  affinity: {{nodeAffinity: {{{HARD}: {{nodeSelectorTerms: ["
            "{matchExpressions: [{key: a, operator: Exists}]}, "
            "{matchFields: [{key: metadata.name, operator: In, values: [n1]}]}]}}}\n"
        )
        exists = {"key": "a", "operator": "Exists"}
        assert self.terms(objects(major, write(KNOWN, site=site))) == [
            {"matchExpressions": [exists], "matchFields": [named("NotIn", "n4")]},
            {"matchFields": [named("In", "n1"), named("NotIn", "n4")]},
        ]

    def test_whole_nodes_need_no_rule_to_keep_apart(self, major: int, write: Write) -> None:
        assert "affinity" not in pod(objects(major, write(KNOWN)))

    @pytest.mark.parametrize(
        ("machine", "site"), [("cpu", ""), (KNOWN, "  gpusPerPod: 4\n"), ("gpu", "")]
    )
    def test_pods_that_leave_room_keep_apart(
        self, major: int, machine: str, site: str, write: Write
    ) -> None:
        found = objects(major, write(machine, site=site), "--set", "attempt=a1")
        (rule,) = pod(found)["affinity"]["podAntiAffinity"][HARD]
        assert rule == {
            "labelSelector": {"matchLabels": {"accept-run": "mytest-a1"}},
            "topologyKey": "kubernetes.io/hostname",
        }

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

    @pytest.mark.parametrize(
        ("site", "suspended"),
        [("", False), ("  suspend: true\n", True), ("  queue: q\n  suspend: false\n", False)],
    )
    def test_suspended_as_configured(
        self,
        major: int,
        site: str,
        suspended: bool,  # noqa: FBT001
        write: Write,
    ) -> None:
        assert objects(major, write(site=site))["JobSet"]["spec"]["suspend"] is suspended


class TestVolumes:
    def test_of_every_run_are_mounted(self, major: int, write: Write) -> None:
        found = objects(major, write())
        assert mounts(found) == {
            "/accept/bundle": "accept-bundle",
            "/accept/key": "accept-key",
            "/opt/accept": "accept-run",
            "/dev/shm": "accept-shm",
        }
        assert volumes(found)["accept-shm"]["emptyDir"] == {"medium": "Memory"}

    def test_shared_memory_has_the_size_that_the_machine_names(
        self, major: int, write: Write
    ) -> None:
        found = volumes(objects(major, write(KNOWN)))["accept-shm"]
        assert found["emptyDir"] == {"medium": "Memory", "sizeLimit": "250Gi"}

    def test_shared_memory_may_be_a_volume_of_the_user(self, major: int, write: Write) -> None:
        site = (
            "  extraVolumes: [{name: mine, emptyDir: {medium: Memory}}]\n"
            "  extraVolumeMounts: [{name: mine, mountPath: /dev/shm}]\n"
        )
        found = objects(major, write(KNOWN, site=site))
        assert mounts(found)["/dev/shm"] == "mine"
        assert "accept-shm" not in volumes(found)

    def test_results_to_a_claim(self, major: int, write: Write) -> None:
        site = "results: {volume: {persistentVolumeClaim: {claimName: mine}}}\n"
        found = objects(major, write(site=site))
        assert mounts(found)["/accept/results"] == "accept-results"
        assert volumes(found)["accept-results"]["persistentVolumeClaim"] == {"claimName": "mine"}
        assert environment(found)["ACCEPT_RESULTS"] == "/accept/results"

    @pytest.mark.parametrize("host", [False, True])
    def test_results_to_a_bucket_that_is_mounted(
        self,
        major: int,
        host: bool,  # noqa: FBT001
        write: Write,
    ) -> None:
        site = (
            f"  hostNetwork: {str(host).lower()}\n"
            "results:\n  location: /accept/results/here\n  volume:\n    csi:\n"
            "      driver: gcsfuse.csi.storage.gke.io\n"
            "      volumeAttributes: {bucketName: my.bucket_1}\n"
        )
        found = objects(major, write(site=site))
        assert notes_of(found)["gke-gcsfuse/volumes"] == "true"
        assert notes_of(found)["gke-gcsfuse/memory-limit"] == "0"
        assert environment(found)["ACCEPT_BUCKET"] == "gs://my.bucket_1/here"
        attributes = volumes(found)["accept-results"]["csi"]["volumeAttributes"]
        own = {"hostNetworkPodKSA": "true"} if host else {}
        assert attributes == {"bucketName": "my.bucket_1", **own}
        assert environment(found)["ACCEPT_RESULTS"] == "/accept/results/here"

    @pytest.mark.parametrize("place", ["gs://b/p", "s3://b/p", "az://b/p"])
    def test_results_straight_to_a_bucket(self, major: int, place: str, write: Write) -> None:
        found = objects(
            major, write(site=f"  serviceAccount: s\nresults: {{location: '{place}'}}\n")
        )
        assert environment(found)["ACCEPT_RESULTS"] == place
        assert "/accept/results" not in mounts(found)
        assert pod(found)["serviceAccountName"] == "s"
        assert pod(found)["automountServiceAccountToken"] is False

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

    def test_environment(self, major: int, write: Write) -> None:
        site = (
            "  extraEnv: {BIG: 8388608, LD_LIBRARY_PATH: /mine, Q: 'a \"b\" $(C)'}\n"
            "  extraEnvFrom: [{secretRef: {name: s}}]\n"
        )
        found = objects(major, write(KNOWN, site=site))
        env = environment(found)
        assert (env["BIG"], env["Q"]) == ("8388608", 'a "b" $(C)')
        assert env["ACCEPT_LIBRARY_PATH"] == "/mine", "the entry script keeps the image's own"
        assert "LD_LIBRARY_PATH" not in env
        assert container(found)["envFrom"] == [{"secretRef": {"name": "s"}}]

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

    def test_rights(self, major: int, write: Write) -> None:
        found = objects(major, write("gpu"))
        rights = {"privileged": False, "allowPrivilegeEscalation": False}
        no_capability: dict[str, Any] = {"capabilities": {"drop": ["ALL"]}}
        assert container(found)["securityContext"] == {**rights, **no_capability}
        ids = dict.fromkeys(("runAsUser", "runAsGroup", "fsGroup"), 1000)
        profile = {"seccompProfile": {"type": "RuntimeDefault"}}
        assert pod(found)["securityContext"] == {"runAsNonRoot": True, **ids, **profile}
        site = (
            "  securityContext: {capabilities: {add: [IPC_LOCK]}}\n"
            "  podSecurityContext: {fsGroup: 7}\n"
        )
        found = objects(major, write(KNOWN, site=site))
        added = ["IPC_LOCK", "AUDIT_WRITE", "SETGID", "SETUID", "SYS_CHROOT"]
        capabilities = {"drop": ["ALL"], "add": added}
        assert container(found)["securityContext"]["capabilities"] == capabilities
        assert pod(found)["securityContext"] == {"fsGroup": 7, **profile}

    def test_image(self, major: int, write: Write) -> None:
        site = (
            "  imagePullPolicy: Never\n  imagePullSecrets: [one, two]\n  runtimeClassName: nvidia\n"
        )
        found = objects(major, write(site=site))
        assert container(found)["imagePullPolicy"] == "Never"
        assert pod(found)["imagePullSecrets"] == [{"name": "one"}, {"name": "two"}]
        assert pod(found)["runtimeClassName"] == "nvidia"

    def test_labels_and_annotations_of_the_site(self, major: int, write: Write) -> None:
        site = "  labels: {team: x, accept-run: mine}\n  annotations: {note: y}\n"
        found = objects(major, write(site=site), "--set", "attempt=a1")
        labels = job(found)["template"]["metadata"]["labels"]
        assert (labels["team"], labels["accept-run"]) == ("x", "mytest-a1")
        assert notes_of(found)["note"] == "y"


class TestLifetime:
    def test_ttl_is_set_on_the_jobset(self, major: int, write: Write) -> None:
        found = objects(major, write(site="  ttlSeconds: 60\n"))
        assert found["JobSet"]["spec"]["ttlSecondsAfterFinished"] == 60
        assert "ttlSecondsAfterFinished" not in job(found)

    def test_ttl_is_set_on_a_plain_job(self, major: int, write: Write) -> None:
        found = objects(major, write(site="  ttlSeconds: 0\n"), jobset=False)
        assert job(found)["ttlSecondsAfterFinished"] == 0

    def test_includes_a_debug_hold(self, major: int, write: Write) -> None:
        first, second = write(hold=0.0).read_text(), write(hold=3600.0)
        assert "debugHoldSeconds: 0" in first
        found = objects(major, second)
        assert environment(found)["ACCEPT_LIFE_SECONDS"] == str(3600 + 3600)
        assert environment(found)["ACCEPT_DEBUG_HOLD"] == "3600"


class TestReserve:
    """CPU and memory that a machine requests; the quota of many queues covers GPUs only."""

    @pytest.mark.parametrize(
        ("site", "change", "requested"),
        [
            ("", "", {"cpu": 32, "memory": "200Gi"}),
            ("  queue: q\n", "", {}),
            ("", "site.queue=q", {}),
            ("  queue: q\n", "site.queue=null", {"cpu": 32, "memory": "200Gi"}),
            ("  resources: {requests: {cpu: 4}}\n", "", {"cpu": 4, "memory": "200Gi"}),
            ("  queue: q\n  resources: {requests: {cpu: 4}}\n", "", {"cpu": 4}),
        ],
    )
    def test_is_requested_unless_there_is_a_queue(
        self, major: int, write: Write, site: str, change: str, requested: dict[str, object]
    ) -> None:
        found = objects(major, write(KNOWN, site=site), *(("--set", change) if change else ()))
        assert container(found)["resources"].get("requests", {}) == requested


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
