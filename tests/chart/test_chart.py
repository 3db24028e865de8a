"""The chart: objects that Helm 3 and 4 render from the output of `accept render`."""

from __future__ import annotations

import base64
import gzip
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.factories import chart_values_table
from tests.factories.chart_runs import IMAGE, KINDS, MACHINES, SITES, Write
from tests.factories.helm import (
    CHART,
    call,
    container,
    environment,
    job,
    objects,
    pod,
    refusal,
    text,
    values_in,
)

from accept import __version__
from accept.config.chart_values import Values, chart_schema
from accept.core.error_codes import Code
from accept.core.serde import fields_of, read, split

SAME = ("--set", "attempt=a1,ssh.existingSecret=mine")
KNOWN = "a4-highgpu-8g"


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
        words = set(re.findall(r"\.(\w+)", templates))
        assert [key for key in sorted(keys) if key.rpartition(".")[2] not in words] == []

    def test_its_schema_is_that_of_the_types_that_are_rendered(self) -> None:
        """`accept schema values > chart/values.schema.json` writes it."""
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

    def test_nothing_in_it_depends_on_the_time(self) -> None:
        for path in sorted(CHART.rglob("templates/*")):
            found = re.findall(
                r"\b(now|date|uuidv4|rand[A-Z]\w+|gen[A-Z]\w+|lookup)\b", path.read_text()
            )
            allowed = {
                "_helpers.tpl": {"randAlphaNum"},
                "secret.yaml": {"genPrivateKey", "lookup"},
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
class TestEveryRun:
    @pytest.mark.parametrize(
        ("machine", "suite"),
        [*((one, "quick") for one in (*KINDS, "domain")), ("cpu", "standard"), ("cpu", "soak")],
    )
    def test_is_one_indexed_job_whose_first_pod_decides(
        self, machine: str, suite: str, write: Write
    ) -> None:
        for name, site in SITES.items():
            file = write(machine, suite=suite, nodes=3, site=site)
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
            life = 2 * 900 + given["deadlineSeconds"] + 600
            more = 660 if environment(found)["ACCEPT_RESULTS"] else 300
            assert spec["activeDeadlineSeconds"] == life + more
            assert environment(found)["ACCEPT_LIFE_SECONDS"] == str(life)
            assert pod(found)["restartPolicy"] == "Never"
            assert pod(found)["automountServiceAccountToken"] is False
            main = container(found)
            assert main["image"] == IMAGE
            assert main["securityContext"]["privileged"] is (name == "strong and suspended")

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
        assert not {"Job", "Service"} & set(jobset)
        first, second = pod(jobset), pod(plain)
        # The controller of JobSets gives its pods a subdomain by itself.
        assert second.pop("subdomain") == "mytest-a1"
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

    def test_is_what_was_rendered(self, major: int, write: Write) -> None:
        file = write(KNOWN)
        given = values_in(file)
        found = objects(major, file)["ConfigMap"]
        assert found["data"]["plan.json"] == given["plan"]
        packed = base64.b64decode(found["binaryData"]["bundle.tar"], validate=True)
        assert packed == base64.b64decode(given["bundle"])

    def test_has_one_name_for_everything(self, major: int, write: Write) -> None:
        file = write()
        for jobset in (True, False):
            found = objects(major, file, "--set", "attempt=a1", jobset=jobset)
            names = {kind: one["metadata"]["name"] for kind, one in found.items()}
            assert names.pop("Secret") == "mytest-a1-ssh"
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

    def test_tells_its_pods_where_they_are(self, major: int, write: Write) -> None:
        found = objects(major, write(nodes=3), "--set", "attempt=a1")
        env = environment(found)
        assert {key: env[key] for key in env if key.startswith("ACCEPT_")} == {
            "ACCEPT_ATTEMPT": "mytest-a1",
            "ACCEPT_NODES": "3",
            "ACCEPT_HOST_PREFIX": "mytest-a1-w-0-",
            "ACCEPT_SUBDOMAIN": "mytest-a1",
            "ACCEPT_NAMESPACE": "team",
            "ACCEPT_SSH_PORT": "2222",
            "ACCEPT_START_SECONDS": "900",
            "ACCEPT_LIFE_SECONDS": "3600",
            "ACCEPT_HOLD_SECONDS": "600",
            "ACCEPT_RESULTS": "",
            "ACCEPT_IMAGE": IMAGE,
        }
        fields = {
            one["name"]: one["valueFrom"]["fieldRef"]["fieldPath"]
            for one in container(found)["env"]
            if "valueFrom" in one
        }
        assert fields == {"ACCEPT_NODE": "spec.nodeName", "ACCEPT_POD": "metadata.name"}

    def test_needs_nothing_filled_in_by_a_webhook(self, major: int, write: Write) -> None:
        spec = objects(major, write())["JobSet"]["spec"]
        assert spec["successPolicy"] == {"operator": "All"}
        assert spec["startupPolicy"] == {"startupPolicyOrder": "AnyOrder"}
        assert spec["suspend"] is False
        network = spec["network"]
        assert network["publishNotReadyAddresses"]
        assert network["enableDNSHostnames"]
        assert "ttlSecondsAfterFinished" not in spec

    def test_of_a_plain_job_finds_its_pods_before_they_are_ready(
        self, major: int, write: Write
    ) -> None:
        service = objects(major, write(), "--set", "attempt=a1", jobset=False)["Service"]["spec"]
        assert (service["clusterIP"], service["publishNotReadyAddresses"]) == ("None", True)
        assert service["selector"] == {"accept-run": "mytest-a1"}

    def test_keeps_other_pods_away(self, major: int, write: Write) -> None:
        policy = objects(major, write(), "--set", "attempt=a1")["NetworkPolicy"]["spec"]
        own = {"matchLabels": {"accept-run": "mytest-a1"}}
        assert policy == {
            "podSelector": own,
            "policyTypes": ["Ingress"],
            "ingress": [{"from": [{"podSelector": own}]}],
        }

    @pytest.mark.parametrize("nodes", [2, 1000])
    def test_differs_from_the_next_in_its_name_and_key_alone(
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

    def test_of_a_thousand_nodes_fits_where_kubernetes_and_helm_keep_it(
        self, major: int, write: Write
    ) -> None:
        names = "".join(f"    - gke-node-pool-name-{i:08d}-abcd\n" for i in range(256))
        file = write(KNOWN, suite="soak", nodes=256, site=f"  includeNodes:\n{names}")
        wide = write(KNOWN, suite="soak", nodes=1000)
        for path in (file, wide):
            shown = text(major, path)
            (config,) = [o for o in yaml.safe_load_all(shown) if o and o["kind"] == "ConfigMap"]
            assert len(json.dumps(config)) < 700_000
            release = {
                "config": yaml.safe_load(path.read_text()),
                "manifest": shown,
                "chart": {
                    str(p): base64.b64encode(p.read_bytes()).decode()
                    for p in CHART.rglob("*")
                    if p.is_file()
                },
            }
            assert len(base64.b64encode(gzip.compress(json.dumps(release).encode()))) < 700_000


@pytest.mark.real
class TestKey:
    def test_is_in_its_secret_and_nowhere_else(self, major: int, write: Write) -> None:
        found = objects(major, write())
        secret = found.pop("Secret")
        assert secret["type"] == "kubernetes.io/ssh-auth"
        key = base64.b64decode(secret["data"]["ssh-privatekey"])
        assert key.startswith(b"-----BEGIN EC PRIVATE KEY-----")
        body = b"".join(key.splitlines()[1:-1])
        for one in texts(list(found.values())):
            for form in (body, key, base64.b64encode(key)):
                assert form.decode() not in one
        assert "PRIVATE KEY" not in yaml.safe_dump(list(found.values()))

    def test_of_the_users_own_is_left_where_it_is(self, major: int, write: Write) -> None:
        found = objects(major, write(), "--set", "ssh.existingSecret=mine")
        assert "Secret" not in found
        (key,) = [v for v in pod(found)["volumes"] if v["name"] == "accept-key"]
        assert key["secret"]["secretName"] == "mine"

    def test_can_be_read_by_its_owner_alone(self, major: int, write: Write) -> None:
        (key,) = [v for v in pod(objects(major, write()))["volumes"] if v["name"] == "accept-key"]
        assert key["secret"]["defaultMode"] == 0o400


@pytest.mark.real
class TestRefused:
    def test_without_a_plan(self, major: int) -> None:
        said = refusal(major)
        assert Code.HELM_NO_PLAN in said
        assert "accept render" in said

    def test_without_an_image(self, major: int, write: Write) -> None:
        said = refusal(major, "--values", write(), "--set", "site.image=null")
        assert Code.SITE_NO_IMAGE in said

    @pytest.mark.parametrize(
        "key", ["gpus", "site.queeu", "pod.gpus", "results.bucket", "ssh.key", "accept.by"]
    )
    def test_a_key_that_does_not_exist_is_named(self, major: int, key: str, write: Write) -> None:
        said = refusal(major, "--values", write(), "--set", f"{key}=1")
        assert key.rpartition(".")[2] in said
        assert "additional properties" in said.lower()

    @pytest.mark.parametrize(
        ("given", "said"),
        [
            ("attempt=A_b", "attempt"),
            ("site.controller=pod", "controller"),
            ("nodes=many", "nodes"),
            ("ssh.port=0", "port"),
            ("site.includeNodes=node1", "includeNodes"),
        ],
    )
    def test_a_value_that_is_none_is_named(
        self, major: int, given: str, said: str, write: Write
    ) -> None:
        assert said in refusal(major, "--values", write(), "--set", given)

    def test_values_of_another_version(self, major: int, write: Write) -> None:
        said = refusal(major, "--values", write(), "--set", "accept.version=9.9.9")
        assert Code.HELM_VERSION in said
        assert "9.9.9" in said

    @pytest.mark.parametrize("nodes", [1, 10, 11, 100, 1000])
    def test_a_name_that_is_too_long_with_the_longest_that_is_not(
        self, major: int, nodes: int, write: Write
    ) -> None:
        file = write(nodes=nodes)
        given = ("--set", "site.controller=jobset", "--set", "attempt=twelve-chars")
        # Helm's own bound is 53.
        said = refusal(major, "--values", file, *given, name="n" * 53)
        assert Code.KUBE_NAME_LONG in said
        longest = re.search(r"at most (\d+) characters, it has 53", said)
        assert longest is not None, said
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
    for words in ((), ("--values", write(KNOWN))):
        done = call(major, "lint", "--strict", CHART, "--kube-version", "1.34.0", *words)
        assert done.returncode == 0, done.stdout
        assert "[WARNING]" not in done.stdout
        assert "[ERROR]" not in done.stdout


@pytest.mark.real
class TestNotes:
    @pytest.mark.parametrize("controller", ["jobset", "job"])
    def test_say_how_to_watch_read_and_fetch(self, controller: str, write: Write) -> None:
        said = self.notes(write(), "--set", f"site.controller={controller},attempt=a1")
        for part in ("-f", "kubectl -n team", "accept-run=mytest-a1", "accept judge", "uninstall"):
            assert part in said
        assert "600 s" in said

    def test_name_the_place_of_the_evidence(self, write: Write) -> None:
        site = "results: {location: gs://bucket/p}\n"
        assert "gs://bucket/p/runs/mytest-" in self.notes(write(site=site))

    def test_say_what_a_suspended_run_waits_for(self, write: Write) -> None:
        assert "until the queue a4 admits it" in self.notes(write(site="  queue: a4\n"))
        assert '"suspend":false' in self.notes(write(site="  suspend: true\n"))

    @staticmethod
    def notes(file: Path, *words: str) -> str:
        # Helm 3 asks a cluster even for this.
        kinds = ("--set", "site.controller=job")
        done = call(
            4, "install", "mytest", CHART, "-n", "team", "-f", file, "--dry-run=client",
            *kinds, *words,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        return done.stdout.partition("NOTES:")[2]
