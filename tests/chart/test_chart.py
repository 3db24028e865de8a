"""The chart: objects that Helm 3 and 4 render from the output of `accept render`."""

from __future__ import annotations

import base64
import json
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.factories import chart_values_table
from tests.factories.chart_runs import IMAGE, KINDS, MACHINES, SITES, Write, gke_positions
from tests.factories.helm import (
    CHART,
    KUBERNETES,
    call,
    container,
    environment,
    job,
    objects,
    pod,
    record,
    refusal,
    text,
    values_in,
)

from accept import __version__, config
from accept.config.chart_values import Values, chart_schema
from accept.config.kubernetes import CodeSource
from accept.core.error_codes import Code
from accept.core.errors import BadInput
from accept.core.serde import fields_of, read, split
from accept.plan import helm_values, node_code
from accept.plan.helm_values import record_parts

#: `kubectl apply` copies a ConfigMap into an annotation of at most 262,144 bytes.
CONFIGMAP_LIMIT = 240_000
#: Kubernetes refuses Secrets above 1 MiB, and Helm keeps a release in one.
RECORD_LIMIT = 1024 * 1024
SAME = ("--set", "attempt=a1,ssh.existingSecret=mine")
KNOWN = "a4-highgpu-8g"
#: Machines that need a privileged container.
PRIVILEGED = [
    name
    for name in MACHINES
    if config.load_machine(name).value.kubernetes.security_context.get("privileged")
]


def texts(data: Any) -> Iterator[str]:
    """Yield every text in an object, including keys."""
    if isinstance(data, dict):
        for key, value in data.items():
            yield key
            yield from texts(value)
    elif isinstance(data, list):
        for item in data:
            yield from texts(item)
    elif isinstance(data, str):
        yield data


class TestChart:
    def test_has_the_version_of_the_package(self) -> None:
        chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
        assert (chart["version"], chart["appVersion"]) == (__version__, __version__)
        assert chart["kubeVersion"] == ">=1.31.0-0"

    def test_its_values_are_those_that_are_rendered_and_no_others(self) -> None:
        data = yaml.safe_load((CHART / "values.yaml").read_text())
        assert read(Values, data) == Values()
        assert _keys(data) == _fields(Values)

    def test_every_value_is_read_by_a_template(self) -> None:
        templates = "".join(path.read_text() for path in sorted(CHART.rglob("templates/*")))
        keys = _fields(Values) - {"pod.source"}
        # A template reads them in a loop.
        keys = {key for key in keys if not key.startswith("collectives.")}
        words = set(re.findall(r"\.(\w+)", templates))
        assert [key for key in sorted(keys) if key.rpartition(".")[2] not in words] == []

    def test_its_schema_is_that_of_the_types_that_are_rendered(self) -> None:
        """`accept show schema values > chart/values.schema.json` writes it."""
        written = json.loads((CHART / "values.schema.json").read_text())
        assert written == chart_schema()
        assert written["$schema"] == "http://json-schema.org/draft-07/schema#"

    def test_its_table_in_the_docs_is_current(self) -> None:
        """`python -m tests.factories.chart_values_table` writes it."""
        assert chart_values_table.PAGE.read_text() == chart_values_table.page()

    def test_its_error_codes_are_explained(self) -> None:
        templates = "".join(path.read_text() for path in sorted(CHART.rglob("templates/*")))
        codes = re.findall(r"\[(E-[A-Z-]+)\]", templates)
        assert codes.count(Code.HELM_NO_PLAN) == 1
        assert set(codes) <= {code.value for code in Code}
        assert len(codes) == templates.count("fail ")

    def test_only_the_name_of_a_run_depends_on_the_time(self) -> None:
        for path in sorted(CHART.rglob("templates/*")):
            found = re.findall(
                r"\b(now|date|uuidv4|rand[A-Z]\w+|gen[A-Z]\w+|lookup)\b", path.read_text()
            )
            allowed = {
                "_helpers.tpl": {"randAlphaNum", "now"},
                "secret.yaml": {"genPrivateKey", "lookup"},
                "test.yaml": {"lookup"},
                "validate.yaml": {"lookup"},
            }.get(path.name, set())
            assert set(found) <= allowed, path


def _keys(data: dict[str, Any], prefix: str = "") -> set[str]:
    found = set()
    for key, value in data.items():
        found.add(prefix + key)
        if not prefix and isinstance(value, dict):
            found |= _keys(value, f"{key}.")
    return found


def _fields(cls: Any, prefix: str = "") -> set[str]:
    found = set()
    for _, key, hint in fields_of(cls):
        found.add(prefix + key)
        if not prefix and hasattr(split(hint)[0], "__dataclass_fields__"):
            found |= _fields(split(hint)[0], f"{key}.")
    return found


@pytest.mark.real
@pytest.mark.sampled
class TestEveryRun:
    @pytest.mark.parametrize(
        ("machine", "suite", "name"),
        [
            *((one, "quick", "plain") for one in (*KINDS, "domain")),
            *(("cpu", suite, "plain") for suite in ("standard", "soak")),
            *((KNOWN, "quick", one) for one in SITES if one != "plain"),
        ],
    )
    def test_is_one_indexed_job_whose_first_pod_decides(
        self, machine: str, suite: str, name: str, write: Write
    ) -> None:
        file = write(machine, suite=suite, nodes=3, site=SITES[name])
        found = objects(4, file)
        spec = job(found)
        assert (spec["parallelism"], spec["completions"], spec["maxFailedIndexes"]) == (3,) * 3
        assert (spec["completionMode"], spec["backoffLimitPerIndex"]) == ("Indexed", 0)
        assert spec["successPolicy"] == {"rules": [{"succeededIndexes": "0"}]}
        (rule,) = spec["podFailurePolicy"]["rules"]
        assert rule["action"] == "FailJob"
        assert rule["onExitCodes"] == {
            "containerName": "accept",
            "operator": "In",
            "values": [3, 5, 6, 7],
        }
        given = values_in(file)
        # Nodes that exist only for the run may take hours.
        start = 86_400 if given["accept"]["waitsForCapacity"] else 900
        life = 2 * start + given["deadlineSeconds"] + 600
        more = 660 if environment(found)["ACCEPT_RESULTS"] else 300
        assert spec["activeDeadlineSeconds"] == life + more
        assert environment(found)["ACCEPT_LIFE_SECONDS"] == str(life)
        assert pod(found)["restartPolicy"] == "Never"
        assert pod(found)["automountServiceAccountToken"] is False
        main = container(found)
        assert main["image"] == IMAGE
        # In the node's network, only such a container has the RDMA devices.
        on_host = name == "the node's network"
        privileged = name == "strong and suspended" or machine in PRIVILEGED or on_host
        assert main["securityContext"]["privileged"] is privileged

    @pytest.mark.parametrize("machine", [*KINDS, "domain"])
    def test_is_the_same_pod_in_a_jobset_and_in_a_plain_job(
        self, machine: str, write: Write
    ) -> None:
        file = write(machine)
        jobset, plain = (
            objects(4, file, *SAME, jobset=True),
            objects(4, file, *SAME, jobset=False),
        )
        assert "JobSet" not in plain
        assert "Job" not in jobset
        first, second = pod(jobset), pod(plain)
        prefixes = [
            one["value"]
            for container in (first["containers"][0], second["containers"][0])
            for one in container["env"]
            if one["name"] == "ACCEPT_HOST_PREFIX"
        ]
        assert prefixes == ["mytest-a1-w-0-", "mytest-a1-"]
        del first["containers"][0]["env"], second["containers"][0]["env"]
        assert first == second

    @pytest.mark.parametrize(
        ("machine", "site", "kind"),
        [
            *((one, "plain", "JobSet") for one in (*MACHINES, "domain")),
            *((KNOWN, one, "JobSet") for one in SITES if one != "plain"),
            *((KNOWN, one, "Job") for one in SITES),
        ],
    )
    def test_is_the_same_from_helm_3_and_4(
        self, machine: str, site: str, kind: str, write: Write
    ) -> None:
        file = write(machine, site=SITES[site])
        three, four = (objects(major, file, *SAME, jobset=kind == "JobSet") for major in (3, 4))
        assert kind in three
        assert three == four
        assert environment(three)["ACCEPT_EDITED"] == "[]"

    def test_is_what_was_rendered(self, major: int, write: Write) -> None:
        file = write(KNOWN)
        given = values_in(file)
        found = objects(major, file)
        scripts = given["launcher"]["scripts"]
        exports = [f"export {k}='{v}'\n" for k, v in sorted(given["launcher"]["env"].items())]
        assert found["ConfigMap"]["data"] == {
            "plan.json": given["plan"],
            "settings.sh": "".join(exports),
            **{Path(path).name: text for path, text in scripts.items()},
        }
        code = dict[str, bytes]()
        for name in ("programs", "bindings", "coordinator"):
            one = found[f"ConfigMap {name}"]
            code |= {name: text.encode() for name, text in one.get("data", {}).items()}
            code |= {
                name: base64.b64decode(text, validate=True)
                for name, text in one["binaryData"].items()
            }
        folder = CHART / node_code.CHART_FOLDER
        shipped = {path.name: path.read_bytes() for path in folder.iterdir()}
        del shipped["sha256"]
        assert code == shipped

    def test_has_one_name_for_everything(self, major: int, write: Write) -> None:
        file = write()
        for jobset in (True, False):
            found = objects(major, file, "--set", "attempt=a1", jobset=jobset)
            names = {kind: one["metadata"]["name"] for kind, one in found.items()}
            assert names.pop("Secret") == "mytest-a1-ssh"
            assert names.pop("ConfigMap programs") == "mytest-a1-programs"
            assert names.pop("ConfigMap bindings") == "mytest-a1-bindings"
            assert names.pop("ConfigMap coordinator") == "mytest-a1-coordinator"
            assert set(names.values()) == {"mytest-a1"}
            for one in found.values():
                labels = one["metadata"]["labels"]
                assert one["metadata"]["namespace"] == "team"
                assert labels["accept-run"] == "mytest-a1"
                assert labels["accept-release"] == labels["app.kubernetes.io/instance"] == "mytest"
                assert labels["helm.sh/chart"] == f"accept-{__version__}"
            pods = job(found)["template"]["metadata"]["labels"]
            assert pods["accept-run"] == "mytest-a1"
            assert pods["app.kubernetes.io/version"] == __version__

    def test_sets_the_environment_of_its_pods(self, major: int, write: Write) -> None:
        found = objects(major, write(nodes=3), "--set", "attempt=a1")
        env = environment(found)
        assert {key: env[key] for key in env if key.startswith("ACCEPT_")} == {
            "ACCEPT_ATTEMPT": "mytest-a1",
            "ACCEPT_NODES": "3",
            "ACCEPT_HOST_PREFIX": "mytest-a1-w-0-",
            "ACCEPT_SSH_PORT": "2222",
            "ACCEPT_START_SECONDS": "900",
            "ACCEPT_LIFE_SECONDS": "3600",
            "ACCEPT_HOLD_SECONDS": "600",
            "ACCEPT_DEBUG_HOLD": "0",
            "ACCEPT_DEBUG_HOLD_ALWAYS": "false",
            "ACCEPT_DEADLINE": "1200",
            "ACCEPT_RESULTS": "",
            "ACCEPT_IMAGE": IMAGE,
            "ACCEPT_EDITED": "[]",
        }
        fields = {
            one["name"]: one["valueFrom"]["fieldRef"]["fieldPath"]
            for one in container(found)["env"]
            if "valueFrom" in one
        }
        assert fields == {
            "ACCEPT_NODE": "spec.nodeName",
            "ACCEPT_POD": "metadata.name",
            "ACCEPT_ADDRESSES": "status.podIPs",
        }

    def test_can_have_a_coordinator_on_a_node_without_gpus(self, major: int, write: Write) -> None:
        own = "{nodeSelector: {pool: cpu}, resources: {requests: {cpu: 3}}}"
        others = (
            "  runtimeClassName: nvidia\n  includeNodes: [a, b, c]\n"
            "  tolerations: [{operator: Exists}]\n"
            "  securityContext: {capabilities: {add: [IPC_LOCK]}}\n"
        )
        site = f"  coordinator: separate\n  coordinatorPod: {own}\n{others}"
        found = objects(major, write("a3-megagpu-8g", nodes=3, site=site), "--set", "attempt=a1")
        spec = found["JobSet"]["spec"]
        coordinator, hosts = (one["template"]["spec"] for one in spec["replicatedJobs"])
        # Only the end of the coordinator ends the run.
        assert spec["successPolicy"] == {"operator": "All", "targetReplicatedJobs": ["c"]}
        assert (coordinator["completions"], hosts["completions"]) == (1, 3)
        assert "podFailurePolicy" in coordinator
        assert not {"podFailurePolicy", "successPolicy"} & set(hosts)
        assert found["Service"]["spec"]["selector"] == {
            "accept-run": "mytest-a1",
            "accept-role": "coordinator",
        }
        one = coordinator["template"]["spec"]
        assert one["nodeSelector"] == {"pool": "cpu"}
        assert one["affinity"] == {
            "nodeAffinity": {
                "requiredDuringSchedulingIgnoredDuringExecution": {
                    "nodeSelectorTerms": [
                        {
                            "matchExpressions": [
                                {
                                    "key": "cloud.google.com/gke-accelerator",
                                    "operator": "DoesNotExist",
                                },
                                {"key": "nvidia.com/gpu.present", "operator": "DoesNotExist"},
                            ]
                        }
                    ]
                }
            }
        }
        assert not {"initContainers", "tolerations", "runtimeClassName"} & set(one)
        (main,) = one["containers"]
        assert main["resources"] == {"requests": {"cpu": 3}}
        sshd = ["AUDIT_WRITE", "SETGID", "SETUID", "SYS_CHROOT"]
        assert main["securityContext"]["capabilities"] == {"drop": ["ALL"], "add": sshd}
        (tested,) = hosts["template"]["spec"]["containers"]
        assert tested["resources"]["limits"] == {"nvidia.com/gpu": 8}
        roles = [
            {e["name"]: e.get("value") for e in container["env"]}["ACCEPT_ROLE"]
            for container in (main, tested)
        ]
        assert roles == ["coordinator", "host"]

    def test_refuses_a_separate_coordinator_without_a_jobset(
        self, major: int, write: Write
    ) -> None:
        file = write(site="  coordinator: separate\n")
        assert Code.KUBE_COORDINATOR in refusal(major, "--values", file)

    @pytest.mark.parametrize("jobset", [True, False])
    def test_has_an_address_for_index_0_only(
        self, major: int, write: Write, *, jobset: bool
    ) -> None:
        found = objects(major, write(), "--set", "attempt=a1", jobset=jobset)
        service = found["Service"]["spec"]
        # The name of a headless Service is unknown until index 0 runs, and DNS caches that.
        assert "clusterIP" not in service
        assert service["publishNotReadyAddresses"] is True
        assert service["selector"] == {
            "accept-run": "mytest-a1",
            "batch.kubernetes.io/job-completion-index": "0",
        }
        (port,) = service["ports"]
        assert (port["port"], port["targetPort"]) == (2222, 2222)

    @pytest.mark.parametrize("nodes", [2, 1000])
    def test_differs_from_the_next_only_in_its_name_and_key(
        self, major: int, nodes: int, write: Write
    ) -> None:
        file = write(KNOWN, nodes=nodes)
        first, second = (text(major, file) for _ in range(2))
        assert first != second
        assert text(major, file, *SAME) == text(major, file, *SAME)
        fixed = ("--set", "attempt=a1")
        one, two = (objects(major, file, *fixed) for _ in range(2))
        assert one.pop("Secret")["data"] != two.pop("Secret")["data"]
        assert one == two

    @pytest.mark.parametrize(
        ("machine", "nodes", "site"),
        [
            *((one, 64, "plain") for one in (*KINDS, "domain")),
            *((KNOWN, 3, one) for one in SITES if one != "plain"),
            (KNOWN, 8, "soak"),
            (KNOWN, 4000, "plain"),
            (KNOWN, 256, "names"),
            (KNOWN, 64, "positions"),
            (KNOWN, 4000, "positions"),
        ],
    )
    def test_is_within_the_limits_of_kubernetes_and_helm(
        self, machine: str, nodes: int, site: str, write: Write
    ) -> None:
        """`accept render` computes Helm's record in its parts, and Helm's own is not larger."""
        names = "".join(f"    - gke-node-pool-name-{i:08d}-abcd\n" for i in range(256))
        large = {
            "soak": "",
            "names": f"  includeNodes:\n{names}",
            "positions": f"  positions: {json.dumps(gke_positions(nodes))}\n",
        }
        suite = "soak" if site == "soak" else "quick"
        path = write(machine, suite=suite, nodes=nodes, site=large.get(site, SITES.get(site)))
        values = path.read_text()
        packed = values_in(path)["packedPositions"]
        readable = {"site": {"positions": values_in(path)["site"]["positions"]}}
        positions = packed or yaml.safe_dump(readable)
        share_of_positions = 0.35 if packed else 0.0
        shares: dict[CodeSource, float] = {"chart": 0.52, "image": 0.1}
        for source, share in shares.items():
            found = objects(4, path, "--set", f"site.code={source}")
            configs = {name: one for name, one in found.items() if one["kind"] == "ConfigMap"}
            assert all(config["immutable"] for config in configs.values())
            assert max(len(json.dumps(one)) for one in configs.values()) < CONFIGMAP_LIMIT
            computed = record_parts(values, positions, source)
            size = len(record(path, "--set", f"site.code={source}"))
            assert size <= sum(computed.values()) <= size + 0.01 * RECORD_LIMIT
            assert size <= (share + share_of_positions) * RECORD_LIMIT

    def test_too_large_for_helm_is_refused_with_the_sizes_of_its_parts(
        self, write: Write, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(helm_values, "MAX_RECORD", 550_000)
        placed = f"  code: chart\n  positions: {json.dumps(gke_positions(1000))}\n"
        with pytest.raises(BadInput) as caught:
            write(KNOWN, site=placed)
        assert caught.value.code is Code.HELM_TOO_LARGE
        assert "site.positions" in caught.value.message
        assert "site.code" in caught.value.message


@pytest.mark.real
class TestKey:
    def test_is_in_its_secret_and_nowhere_else(self, major: int, write: Write) -> None:
        found = objects(major, write())
        secret = found.pop("Secret")
        assert (secret["type"], secret["immutable"]) == ("kubernetes.io/ssh-auth", True)
        key = base64.b64decode(secret["data"]["ssh-privatekey"])
        assert key.startswith(b"-----BEGIN EC PRIVATE KEY-----")
        body = b"".join(key.splitlines()[1:-1])
        for one in texts(list(found.values())):
            for form in (body, key, base64.b64encode(key)):
                assert form.decode() not in one
        assert "PRIVATE KEY" not in yaml.safe_dump(list(found.values()))


@pytest.mark.real
class TestEdited:
    @pytest.mark.parametrize(
        ("change", "reported"),
        [
            ("launcher.env.NCCL_DEBUG=WARN", "launcher.env.NCCL_DEBUG: WARN instead of INFO"),
            ("launcher.env.NCCL_IB_TC=7", "launcher.env.NCCL_IB_TC: added, is 7"),
            ("launcher.env.NCCL_DEBUG=null", "launcher.env.NCCL_DEBUG: removed, was INFO"),
            (r"launcher.scripts.env\.sh=:", "launcher.scripts.env.sh: changed"),
            ("pod.sharedMemory=1Gi", "pod: changed"),
            ("pod.env.A=b", "pod: changed"),
            ("pod.securityContext.privileged=true", "pod: changed"),
            ("site.image=other:1", "site.image: changed"),
            ("site.extraEnvFrom[0].secretRef.name=mine", "site.extraEnvFrom: changed"),
            ("site.podSecurityContext.runAsUser=7", "site.podSecurityContext: changed"),
            ("site.runtimeClassName=mine", "site.runtimeClassName: changed"),
            ("results.holdSeconds=1", "results.holdSeconds: changed"),
            ("results.location=gs://mine", "results.location: changed"),
            ("debugHoldSeconds=1800", "debugHoldSeconds: 1800 instead of 0"),
            ("debugHoldAlways=true", "debugHoldAlways: true instead of false"),
            ("deadlineSeconds=86400", "deadlineSeconds: 86400 instead of 1200"),
            ("collectives.max=16G", "collectives.max: is 16G"),
            ("collectives.iters=5", "collectives.iters: is 5"),
        ],
    )
    def test_values_are_used_and_reported(self, change: str, reported: str, write: Write) -> None:
        found = objects(4, write(KNOWN), "--set", change)
        assert json.loads(environment(found)["ACCEPT_EDITED"]) == [reported]

    def test_settings_are_quoted_for_the_shell(self, write: Write) -> None:
        value = "a b'c\"$(x)\\"
        found = objects(4, write(KNOWN), "--set-literal", f"launcher.env.NCCL_X={value}")
        script = found["ConfigMap"]["data"]["settings.sh"] + 'printf %s "$NCCL_X"'
        done = subprocess.run(["sh", "-c", script], capture_output=True, text=True, check=True)
        assert done.stdout == value
        # Kubernetes replaces $(NAME) in the environment of a container.
        (edited,) = json.loads(environment(found)["ACCEPT_EDITED"])
        assert edited.endswith(value.replace("$(", "$$("))


@pytest.mark.real
class TestRefused:
    def test_without_a_plan(self, major: int) -> None:
        message = refusal(major)
        assert Code.HELM_NO_PLAN in message
        assert "accept render" in message

    @pytest.mark.parametrize(
        ("given", "shown"),
        [
            ("site.image=null", [Code.SITE_NO_IMAGE]),
            # A key that does not exist.
            ("gpus=1", ["gpus", "additional properties"]),
            ("site.queeu=1", ["queeu", "additional properties"]),
            ("pod.gpus=1", ["gpus", "additional properties"]),
            ("results.bucket=1", ["bucket", "additional properties"]),
            ("ssh.key=1", ["key", "additional properties"]),
            ("accept.by=1", ["by", "additional properties"]),
            # An invalid value.
            ("attempt=A_b", ["attempt"]),
            ("site.controller=pod", ["controller"]),
            ("nodes=many", ["nodes"]),
            ("ssh.port=0", ["port"]),
            ("collectives.max=8GB", ["max"]),
            ("collectives.iters=0", ["iters"]),
            ("collectives.factor=1", ["factor"]),
            ("site.includeNodes=node1", ["includeNodes"]),
            ("site.image=a b", ["image"]),
            ("site.serviceAccount=a b", ["serviceAccount"]),
            ("site.topology.required=a b", ["topology"]),
            ('results.location=gs://my"bucket', ["location"]),
            # Values of another version.
            ("accept.version=9.9.9", [Code.HELM_VERSION, "9.9.9"]),
            ("accept.code=other", [Code.HELM_VERSION, "other"]),
        ],
    )
    def test_a_wrong_value_is_named(
        self, major: int, given: str, shown: list[str], write: Write
    ) -> None:
        message = refusal(major, "--values", write(), "--set", given).lower()
        assert [text for text in shown if text.lower() not in message] == []

    @pytest.mark.parametrize(
        ("change", "code", "named"),
        [
            ("nodes=3", Code.HELM_PLAN, "--nodes"),
            ("gpusPerNode=4", Code.HELM_PLAN, "--gpus-per-node"),
            ("deadlineSeconds=10", Code.HELM_PLAN, "--deadline"),
            ("startSeconds=10", Code.HELM_PLAN, "--start-timeout"),
            ("collectives.min=16G,collectives.max=8G", Code.HELM_PLAN, "40-collectives"),
            ("site.flexStart=true", Code.HELM_PLAN, "kubernetes.flexStart"),
            ("site.flexStart=true,site.queue=q", Code.HELM_PLAN, "kubernetes.flexStart"),
            ("site.autoscaling=true", Code.HELM_PLAN, "kubernetes.autoscaling"),
            ("site.includeNodes={a}", Code.NODES_MISMATCH, "site.includeNodes"),
            ("site.excludeNodes={a b}", Code.NODES_NAME, "a b"),
            ("site.workloadPriorityClass=high", Code.KUBE_QUEUE_UNSET, "site.queue"),
            ("pod.hostNetwork=true", Code.KUBE_HOST_NETWORK, "privileged"),
            (
                "collectives.max=256K,collectives.min=2K,collectives.factor=4",
                Code.HELM_PLAN,
                "40-collectives",
            ),
            (r"pod.resources.limits.nvidia\.com/gpu=4", Code.HELM_PLAN, "--gpus-per-node"),
            (r"launcher.scripts.steps/new\.sh=x", Code.HELM_SCRIPTS, "steps/new.sh"),
            (r"launcher.scripts.env\.sh=", Code.HELM_SCRIPTS, "env.sh"),
            ("launcher.env.HF_TOKEN=x", Code.HELM_SECRET_KEY, "launcher.env.HF_TOKEN"),
            ("pod.env.AWS_SECRET_ACCESS_KEY=x", Code.HELM_SECRET_KEY, "pod.env.AWS_SECRET"),
            (
                "pod.sidecars[0].name=s,pod.sidecars[0].args={curl -u u:pw x}",
                Code.HELM_SECRET_KEY,
                "s.args",
            ),
            ("launcher.env.NCCL-ALGO=Ring", Code.ENV_INVALID, "NCCL-ALGO"),
            ("launcher.env.NCCL_ALGO=a\nb", Code.ENV_INVALID, "NCCL_ALGO"),
            ("pod.env.NCCL_DEBUG=WARN", Code.HELM_ENV, "launcher.env.NCCL_DEBUG"),
        ],
    )
    def test_an_edit_that_makes_no_sense_is_named(
        self, change: str, code: Code, named: str, write: Write
    ) -> None:
        printed = refusal(4, "--values", write(KNOWN), "--set", change)
        assert code in printed
        assert named in printed

    @pytest.mark.parametrize(
        ("edit", "code"),
        [
            (lambda values: values["plan"].replace('"seed": 1', '"seed": 2'), Code.HELM_PLAN),
            (lambda values: values["plan"][:-9], Code.HELM_PLAN),
            (
                lambda values: values["plan"].replace(
                    f'"version": "{__version__}"', '"version": "9"'
                ),
                Code.HELM_VERSION,
            ),
        ],
    )
    def test_a_plan_that_was_edited_or_is_of_another_version(
        self, edit: Callable[[dict[str, Any]], str], code: Code, write: Write
    ) -> None:
        file = write()
        values = values_in(file)
        file.write_text(yaml.safe_dump({**values, "plan": edit(values)}))
        assert code in refusal(4, "--values", file)

    def test_a_script_that_is_too_large(self, write: Write, tmp_path: Path) -> None:
        (tmp_path / "own.sh").write_text("#\n" * 100_000)
        change = rf"launcher.scripts.env\.sh={tmp_path}/own.sh"
        assert Code.HELM_TOO_LARGE in refusal(4, "-f", write(), "--set-file", change)

    def test_broken_yaml_by_its_line(self, write: Write) -> None:
        file = write()
        text = file.read_text()
        file.write_text(text.replace("\nnodes: ", "\nnodes: 1: ", 1))
        assert "yaml: line" in refusal(4, "--values", file)

    def test_the_chart_of_a_checkout_without_the_code(
        self, major: int, write: Write, tmp_path: Path
    ) -> None:
        chart = shutil.copytree(CHART, tmp_path / "chart", ignore=shutil.ignore_patterns("files"))
        done = call(major, "template", "x", chart, "-f", write(), "--kube-version", KUBERNETES)
        assert Code.HELM_NO_CODE in done.stderr

    @pytest.mark.parametrize("nodes", [1, 10, 11, 100, 1000])
    def test_a_name_that_is_too_long_with_the_longest_that_is_not(
        self, major: int, nodes: int, write: Write
    ) -> None:
        file = write(nodes=nodes)
        given = ("--set", "site.controller=jobset", "--set", "attempt=twelve-chars")
        # Helm's own bound is 53.
        message = refusal(major, "--values", file, *given, name="n" * 53)
        assert Code.KUBE_NAME_LONG in message
        longest = re.search(r"at most (\d+) characters, it has 53", message)
        assert longest is not None, message
        found = objects(major, file, *given, name="n" * int(longest[1]))
        # JobSet checks this name of a pod, and that of a plain Job is shorter.
        assert len(f"{environment(found)['ACCEPT_HOST_PREFIX']}{nodes - 1}-abcde") == 63

    @pytest.mark.parametrize("name", ["1st", "a.b"])
    def test_a_name_that_no_pod_may_have(self, major: int, name: str, write: Write) -> None:
        assert Code.KUBE_NAME in refusal(major, "--values", write(), name=name)

    def test_a_kubernetes_that_is_too_old(self, major: int, write: Write) -> None:
        done = call(major, "template", "x", CHART, "-f", write(), "--kube-version", "1.30.9")
        assert done.returncode != 0
        assert "kubeVersion" in done.stderr


@pytest.mark.real
def test_lint_finds_nothing(major: int, write: Write) -> None:
    for words, levels in (((), "WARN|ERROR"), (("--values", write(KNOWN)), "INFO|WARN|ERROR")):
        done = call(major, "lint", "--strict", CHART, "--kube-version", "1.34.0", *words)
        assert done.returncode == 0, done.stdout
        assert not re.findall(rf"\[(?:{levels}).*", done.stdout + done.stderr)


@pytest.mark.real
class TestNotes:
    CSI = "driver: gcsfuse.csi.storage.gke.io, volumeAttributes: {bucketName: ours"
    FOLDER = 'mountOptions: "implicit-dirs,only-dir=a/b"'
    WATCHED = (r"-f\b", "kubectl -n team", "accept-run=mytest-a1", "accept judge", "uninstall")

    @pytest.mark.parametrize(
        ("site", "given", "shown"),
        [
            ("", "site.controller=jobset,attempt=a1", [*WATCHED, "600 s"]),
            ("", "site.controller=job,attempt=a1", [*WATCHED, "600 s"]),
            # A run waits longer for new nodes.
            ("  autoscaling: true\n", "", ["Index 0 waits 86400 s"]),
            ("", "launcher.env.NCCL_X=7", [r"launcher\.env\.NCCL_X: added, is 7"]),
            ("results: {location: gs://bucket/p}\n", "", ["gs://bucket/p/runs/mytest-"]),
            (f"results: {{volume: {{csi: {{{CSI}}}}}}}}}\n", "", ["judge gs://ours/runs/mytest-"]),
            (
                f"results: {{volume: {{csi: {{{CSI}, {FOLDER}}}}}}}}}\n",
                "",
                ["judge gs://ours/a/b/runs/mytest-"],
            ),
            ("", "", [r"mytest-20\d{6}-\d{4}-[a-z0-9]{4}: "]),
            ("  queue: a4\n", "", ["until the queue a4 admits it"]),
            ("  suspend: true\n", "", ['"suspend":false']),
        ],
    )
    def test_show(self, site: str, given: str, shown: list[str], write: Write) -> None:
        notes = self.notes(write(site=site), *(("--set", given) if given else ()))
        assert [text for text in shown if not re.search(text, notes)] == []
        assert "Hold " not in notes

    def test_name_the_run_without_its_time_if_that_is_too_long(self, write: Write) -> None:
        assert re.search(r"r{44}-[a-z0-9]{5}: ", self.notes(write(), release="r" * 44))

    def test_wait_for_the_pod_in_every_command_that_reads_the_log(self, write: Write) -> None:
        """Before, kubectl refuses to read the log of a container that is being created."""
        reading = [line for line in self.notes(write()).splitlines() if " logs -l" in line]
        assert len(reading) == 3
        for command in reading:
            assert command.index("until kubectl") < command.index(" logs -l")

    @pytest.mark.parametrize(("always", "after"), [(True, "the run"), (False, "a failed run")])
    def test_show_a_hold_and_how_to_use_it(self, *, always: bool, after: str, write: Write) -> None:
        notes = self.notes(write(hold=600.0, hold_always=always))
        assert f"After {after}, all pods stay for 600 s" in notes

    @staticmethod
    def notes(file: Path, *words: str, release: str = "mytest") -> str:
        # Helm 3 asks a cluster even for this.
        kinds = ("--set", "site.controller=job")
        done = call(
            4, "install", release, CHART, "-n", "team", "-f", file, "--dry-run=client",
            *kinds, *words,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        return done.stdout.partition("NOTES:")[2]
