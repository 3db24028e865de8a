"""Commands about clusters that need no real cluster: names, Roles, site files, leftovers."""

from __future__ import annotations

import json
import re
import sys
import tarfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.factories import sample_evidence
from tests.factories.api_server import ApiServer, api_server
from tests.factories.command_line import accept, refused
from tests.factories.kubernetes import node, pod_on, running, stored_job

from accept import backends
from accept.backends.job import Job
from accept.backends.kubernetes import backend as kubernetes_backend
from accept.backends.kubernetes import client, rbac, submit
from accept.backends.kubernetes import client as kubernetes_client
from accept.backends.kubernetes import collect as kubernetes_collect
from accept.backends.kubernetes.init import Survey, match_networks, survey_cluster
from accept.backends.kubernetes.status import read_state
from accept.backends.protocol import Question
from accept.commands import cluster, judge
from accept.config import load_site
from accept.core import evidence
from accept.core.errors import BadEvidence, BadInput, BrokenOff, Exit
from accept.core.serde import dump, read
from accept.evidence import bucket as evidence_bucket
from accept.evidence import rundir


@pytest.fixture(autouse=True)
def nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Use an empty folder of runs, and hide all clusters from the test."""
    monkeypatch.setenv("ACCEPT_RUNS", str(tmp_path / "runs"))
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("KUBECONFIG", raising=False)


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ApiServer]:
    """Run a stand-in cluster that reports its version and that commands find."""
    with api_server() as one:
        monkeypatch.setenv("KUBECONFIG", str(one.kubeconfig(tmp_path)))
        one.says("/version", {"gitVersion": "v1.34.0"})
        yield one


class TestTheNameOfARun:
    @pytest.mark.parametrize(
        ("attempt", "release", "full"),
        [
            ("20261121-045334-1a2b", "", "accept-20261121-045334-1a2b-1"),
            ("mine", "", "mine-1"),
            ("mine", "lab", "lab-mine"),
            ("lab-two", "", "lab-two-1"),
            ("2", "", "accept-2-1"),
        ],
    )
    def test_is_release_and_attempt(self, attempt: str, release: str, full: str) -> None:
        assert submit.run_name(attempt, release).full == full

    @pytest.mark.parametrize("attempt", ["20261121-045334-1a2b", "mine", "lab-two"])
    def test_stays_what_it_is_when_it_is_read_again(self, attempt: str) -> None:
        name = submit.run_name(attempt)
        assert submit.run_name(name.full) == name

    def test_of_two_launches_is_of_two_releases(self) -> None:
        # Within the same second, too.
        one, two = (
            submit.run_name("20261121-045334-1a2b"),
            submit.run_name("20261121-045334-3c4d"),
        )
        assert one.release != two.release
        assert submit.run_name("one").release != submit.run_name("two").release

    def test_may_have_what_a_pods_name_leaves(self) -> None:
        fits = submit.RunName(release="a" * 46, attempt="bcde")
        submit.check_run_name(fits, 10)
        with pytest.raises(BadInput, match="51 characters") as caught:
            submit.check_run_name(fits, 11)
        assert "at most 50" in caught.value.hint

    @pytest.mark.parametrize("release", ["Lab", "1lab", "lab_", "-lab"])
    def test_is_one_that_dns_takes(self, release: str) -> None:
        with pytest.raises(BadInput, match="cannot be used"):
            submit.check_run_name(submit.RunName(release=release, attempt="a"), 2)


class TestTheRole:
    def test_is_yaml_that_names_the_namespace(self) -> None:
        done = accept("doctor", "--rbac", "--namespace", "lab")
        assert done.code == 0
        role, look = yaml.safe_load_all(done.out)
        assert (role["kind"], role["metadata"]["namespace"]) == ("Role", "lab")
        assert look["kind"] == "ClusterRole"

    def test_is_of_the_namespace_that_a_run_would_go_to(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        file = ApiServer().kubeconfig(tmp_path, namespace="lab")
        monkeypatch.setenv("KUBECONFIG", str(file))
        assert "namespace: lab\n" in accept("doctor", "--rbac").out
        monkeypatch.delenv("KUBECONFIG")
        assert "namespace: default\n" in accept("doctor", "--rbac").out

    def test_only_reads_outside_of_the_namespace(self) -> None:
        _, look = yaml.safe_load_all(rbac.role_yaml("lab"))
        assert {verb for rule in look["rules"] for verb in rule["verbs"]} == {"get", "list"}

    def test_has_no_wildcard(self) -> None:
        assert "*" not in re.sub(r"#.*", "", rbac.role_yaml("lab"))


class TestWithoutACluster:
    @pytest.mark.parametrize("command", [["nodes"], ["init"], ["nodes", "--machine", "cpu"]])
    def test_a_command_says_how_to_name_one(self, command: list[str], tmp_path: Path) -> None:
        words = [*command, str(tmp_path / "site.yaml")] if command == ["init"] else command
        assert "KUBECONFIG" in refused(*words, code=4)

    def test_all_nodes_cannot_be_rendered(self) -> None:
        assert "accept nodes" in refused("render", "--machine", "cpu", "--nodes", "all")

    def test_nothing_is_left_of_a_run_that_could_not_start(self, tmp_path: Path) -> None:
        site = tmp_path / "site.yaml"
        site.write_text("kubernetes: {image: 'img:1'}\n", encoding="utf-8")
        refused("run", "--machine", "cpu", "--nodes", "2", "--site", site, code=4)
        assert not list((tmp_path / "runs").iterdir())


class TestDeleting:
    def test_has_to_know_which(self) -> None:
        assert "which runs" in refused("delete")
        assert "not both" in refused("delete", "last", "--older-than", "24h")
        assert "24h" in refused("delete", "--older-than", "soon")

    def test_finds_nothing_where_nothing_is_old(self) -> None:
        done = accept("delete", "--older-than", "24h", "--dry-run")
        assert (done.code, done.out) == (0, "nothing is left\n")

    def test_takes_runs_that_were_started_so_long_ago(self) -> None:
        for name, when in (
            ("old", "2020-01-01T00:00:00+00:00"),
            ("new", "2999-01-01T00:00:00+00:00"),
        ):
            folder = rundir.create(name)
            one = Job(
                schema=1, backend="local", attempt=name, hosts=(), first="",
                folder=str(folder / "node"), submitted=when,
            )  # fmt: skip
            evidence.write(folder / rundir.JOB, json.dumps(dump(one)))
            (folder / "node").mkdir()
        done = accept("delete", "--older-than", "24h", "--dry-run", "--json")
        assert list(json.loads(done.out)["removed"]) == ["old"]

    def test_of_a_run_on_this_machine_removes_its_folder(self, monkeypatch: Any) -> None:
        folder = rundir.create("one")
        one = Job(
            schema=1, backend="local", attempt="one", hosts=(), first="",
            folder=str(folder / "node"),
        )  # fmt: skip
        evidence.write(folder / rundir.JOB, json.dumps(dump(one)))
        sample_evidence.write(folder / rundir.EVIDENCE)
        (folder / "node").mkdir()
        (folder / "node" / "kill.sh").write_text("", encoding="utf-8")
        assert accept("delete", "one").out == f"removed {folder / 'node'}\n"
        assert not (folder / "node").exists()
        assert accept("delete", "one").out == "nothing is left\n"


class TestAJob:
    def test_that_was_written_before_there_were_clusters_is_read(self) -> None:
        old = {
            "schema": 1,
            "backend": "ssh",
            "attempt": "a",
            "hosts": ["h1"],
            "first": "h1",
            "folder": "/tmp/accept-a",
        }
        assert read(Job, old).place == {}

    def test_says_where_the_cluster_keeps_it(self) -> None:
        assert read(Job, dump(stored_job())) == stored_job()


class TestWhatALogStillTells:
    def collected(
        self, log: str | None, *, code: int | None = None, results: str = ""
    ) -> tuple[Path, list[str]]:
        """Collect evidence from the log of index 0, when nothing else is available."""
        folder = rundir.create("run")
        (folder / rundir.RENDERED).mkdir()
        evidence.write(folder / rundir.JOB, json.dumps(dump(stored_job())))
        evidence.write(
            folder / rundir.RENDERED / "plan.json", json.dumps(dump(sample_evidence.PLAN))
        )
        logs = folder / kubernetes_collect.CLUSTER_FOLDER / "logs"
        logs.mkdir(parents=True)
        if log is not None:
            (logs / "run-w-0-0-abcde.accept.log").write_text(log, encoding="utf-8")
        first = running(0)
        if code is not None:
            first["status"]["containerStatuses"][0]["state"] = {"terminated": {"exitCode": code}}
        state = read_state(jobset=None, job=None, pods=[first])
        target = folder / rundir.EVIDENCE
        one = replace(stored_job(), place={**stored_job().place, "results": results})
        return folder, kubernetes_collect._from_log(one, state, folder, target)

    def test_is_judged_like_the_evidence_it_was(self) -> None:
        folder, missing = self.collected(sample_evidence.console(sample_evidence.record()))
        judged = judge.judge_path(str(folder), expect=())
        assert judged.verdict == sample_evidence.verdict_of(sample_evidence.record())
        assert "raw logs" in missing[0]

    def test_is_written_as_a_report_like_any(self) -> None:
        folder, _ = self.collected(sample_evidence.console(sample_evidence.record()))
        assert accept("report", "run").code == 0
        assert (folder / rundir.EVIDENCE / evidence.REPORT).is_file()

    @pytest.mark.parametrize("log", [None, "it began\n", "-----BEGIN ACCEPT EVIDENCE----- x\ncut"])
    def test_is_a_run_that_broke_off_where_it_tells_too_little(self, log: str | None) -> None:
        folder, missing = self.collected(log)
        verdict = judge.judge_path(str(folder), expect=()).verdict
        assert verdict.broken_off
        assert verdict.exit == 5
        assert any("records" in line for line in missing)

    @pytest.mark.parametrize("code", [0, 3, 6, 7])
    @pytest.mark.parametrize(
        ("results", "where"),
        [
            ("/accept/results", "/accept/results/runs/run in the pods"),
            ("gs://bucket/x/", "accept judge gs://bucket/x/runs/run"),
            ("", "held on index 0 for a while"),
        ],
    )
    def test_of_a_run_that_ended_is_no_run_that_broke_off(
        self, monkeypatch: pytest.MonkeyPatch, code: int, results: str, where: str
    ) -> None:
        # As with thousands of records: then the log holds the verdict alone.
        monkeypatch.setattr(evidence, "PACKED_LIMIT", 100)
        log = sample_evidence.console(sample_evidence.record())
        with pytest.raises(BadEvidence, match=f"ended with exit status {code}") as caught:
            self.collected(log, code=code, results=results)
        assert where in str(caught.value)
        assert "run-w-0-0-abcde.accept.log" in caught.value.hint


class TestAnArchive:
    def test_that_was_changed_on_the_way_is_refused(self, tmp_path: Path) -> None:
        left = sample_evidence.write(tmp_path / "left")
        (left / sample_evidence.record().log).write_text("another\n", encoding="utf-8")
        packed = sample_evidence.archive(left, tmp_path / "a.tar")
        with pytest.raises(BadEvidence, match="was modified"):
            kubernetes_collect.unpack_archive(packed, tmp_path, tmp_path / "target")

    def test_that_reaches_outside_is_refused(self, tmp_path: Path) -> None:
        packed = tmp_path / "a.tar"
        with tarfile.open(packed, "w") as tar:
            tar.add(__file__, arcname="../outside")
        with pytest.raises(BadEvidence, match="outside"):
            kubernetes_collect.unpack_archive(packed, tmp_path / "in", tmp_path / "target")

    def test_comes_out_whole(self, tmp_path: Path) -> None:
        left = sample_evidence.write(tmp_path / "left")
        kubernetes_collect.unpack_archive(
            sample_evidence.archive(left, tmp_path / "a.tar"), tmp_path, tmp_path / "target"
        )
        assert evidence.check_checksums(tmp_path / "target") == ()


class TestASiteFile:
    SEEN = Survey(
        context="lab",
        namespace="gpu",
        questions=(),
        networks={"a4-highgpu-8g": (("eth0", "default"), ("eth2", "my-rdma-0"))},
        jobsets=True,
        notes=(),
    )

    def read(self, tmp_path: Path, text: str) -> Any:
        file = tmp_path / "site.yaml"
        file.write_text(text, encoding="utf-8")
        return load_site(str(file)).value

    def test_is_one_that_accept_reads(self, tmp_path: Path) -> None:
        answers = {
            "machine": "a4-highgpu-8g",
            "queue": "a4",
            "serviceAccount": "runner",
            "image": "img:1",
            "results": "gs://bucket/x",
        }
        site = self.read(tmp_path, self.SEEN.site_text(answers))
        pods = site.kubernetes
        assert (site.backend, pods.namespace, pods.queue) == ("kubernetes", "gpu", "a4")
        assert (pods.image, pods.service_account) == ("img:1", "runner")
        assert [n.network for n in pods.networks] == ["default", "my-rdma-0"]
        assert site.results.location == "gs://bucket/x"

    def test_says_what_is_still_open(self, tmp_path: Path) -> None:
        text = self.SEEN.site_text({"machine": "gpu"})
        assert self.read(tmp_path, text).kubernetes.image is None
        assert "kubernetes.image" in text.partition("name:")[0]

    def test_is_never_written_over_another(self, tmp_path: Path) -> None:
        (tmp_path / "site.yaml").write_text("mine\n", encoding="utf-8")
        assert "exists already" in refused("init", tmp_path / "site.yaml")

    @pytest.mark.parametrize(
        ("there", "matched"),
        [
            (("default", "x-rdma-1", "x-rdma-0"), ("x-rdma-0", "x-rdma-1")),
            (("gvnic-1", "sub-rdma-10", "sub-rdma-9"), ("sub-rdma-9", "sub-rdma-10")),
            (("a-0", "a-1"), ("a-0", "a-1")),
            (("x-rdma-0",), None),
        ],
    )
    def test_has_the_networks_in_the_order_of_their_numbers(
        self, there: tuple[str, ...], matched: tuple[str, ...] | None
    ) -> None:
        wanted = (("eth0", "default"), ("eth2", "rdma-0"), ("eth3", "rdma-1"))
        found = match_networks(wanted, there)
        if matched is None:
            assert found is None
        else:
            assert found == (("eth0", "default"), ("eth2", matched[0]), ("eth3", matched[1]))


class TestTheNodesThatAreFree:
    """A cluster whose machines have no distinguishing labels."""

    @pytest.fixture(autouse=True)
    def nodes(self, server: ApiServer) -> None:
        there = [node("cpu1", gpus=0), node("g0"), node("g1", gpus=4), node("g2")]
        server.says("/api/v1/nodes", {"items": there})
        server.says("/api/v1/pods", {"items": [pod_on("g2", 1)]})

    def free(self, *words: str) -> list[str]:
        done = accept("nodes", *words)
        assert done.code == 0, done.err
        return done.out.split()

    def test_have_gpus_where_the_machine_has_some(self) -> None:
        assert self.free("--machine", "gpu") == ["g0", "g1"]

    def test_have_as_many_gpus_as_are_asked_for(self, tmp_path: Path) -> None:
        site = tmp_path / "site.yaml"
        site.write_text("gpusPerNode: 8\n", encoding="utf-8")
        assert self.free("--machine", "gpu", "--gpus-per-node", "8") == ["g0"]
        assert self.free("--machine", "gpu", "--site", str(site)) == ["g0"]
        assert self.free("--machine", "gpu", "--site", str(site), "--gpus-per-node=4") == [
            "g0",
            "g1",
        ]

    def test_need_none_where_the_machine_has_none(self, server: ApiServer) -> None:
        untainted = {**node("cpu1", gpus=0), "spec": {}}
        server.says("/api/v1/nodes", {"items": [untainted]})
        assert self.free("--machine", "cpu") == ["cpu1"]

    def test_are_whole_where_the_machine_says_what_that_is(self, tmp_path: Path) -> None:
        """On several nodes, pods request all GPUs, even if fewer are tested."""
        machine = tmp_path / "mine.yaml"
        limits = "{limits: {nvidia.com/gpu: 8}}"
        machine.write_text(
            "name: mine\ndescription: Eight GPUs.\ngpus: {count: 8}\n"
            f"kubernetes: {{resources: {limits}}}\n"
        )
        assert self.free("--machine", str(machine), "--gpus-per-node", "4") == ["g0"]

    def test_are_not_asked_for_with_a_number_that_cannot_be(self) -> None:
        said = refused("nodes", "--machine", "cpu", "--gpus-per-node", "8")
        assert "8 GPUs a node is not possible on cpu" in said

    def test_are_all_that_a_run_takes(self, tmp_path: Path) -> None:
        site = tmp_path / "site.yaml"
        site.write_text("kubernetes: {image: 'img:1'}\ngpusPerNode: 8\n", encoding="utf-8")
        words = ("--machine=gpu", "--nodes=all", f"--site={site}", "--dry-run")
        done = accept("run", *words)
        assert done.code == 0, done.err
        assert "nodes: all 1 that are free and match" in done.err


class TestTheQueuesOfACluster:
    """As detected by `accept init`."""

    GROUP = "/apis/kueue.x-k8s.io"
    OWN = "namespaces/lab/localqueues"

    def queues(self) -> tuple[tuple[str, ...], str]:
        """Return the candidates of the question, and the other output."""
        seen = survey_cluster(client.Api(kubernetes_client.find_place()))
        found = [q.candidates for q in seen.questions if q.key == "queue"]
        return (found[0] if found else ()), "\n".join(seen.notes)

    def listed(self, *names: tuple[str, str]) -> dict[str, Any]:
        return {"items": [{"metadata": {"name": n, "namespace": ns}} for ns, n in names]}

    def test_are_those_of_the_namespace_and_others_are_said(self, server: ApiServer) -> None:
        found = self.listed(("lab", "a4"), ("other", "b"))
        server.says(f"{self.GROUP}/v1beta1/localqueues", found)
        queues, said = self.queues()
        assert queues == ("a4",)
        assert "namespaces other" in said

    def test_are_seen_by_who_may_see_those_of_the_namespace_alone(self, server: ApiServer) -> None:
        server.says(f"{self.GROUP}/v1beta2/localqueues", 403)
        server.says(f"{self.GROUP}/v1beta1/localqueues", 403)
        server.says(f"{self.GROUP}/v1beta1/{self.OWN}", self.listed(("lab", "a4")))
        queues, said = self.queues()
        assert queues == ("a4",)
        assert "queues" not in said

    def test_that_nobody_may_see_are_said_once(self, server: ApiServer) -> None:
        for version in ("v1beta2", "v1beta1"):
            server.says(f"{self.GROUP}/{version}/localqueues", 403)
            server.says(f"{self.GROUP}/{version}/{self.OWN}", 403)
        queues, said = self.queues()
        assert queues == ()
        assert said.count("queues cannot be seen") == 1


class TestTheNamespaceOfASiteFile:
    """As detected by `accept init`."""

    WHERE = "/api/v1/namespaces/lab"

    def said(self) -> str:
        return "\n".join(survey_cluster(client.Api(kubernetes_client.find_place())).notes)

    def test_is_said_with_what_to_do_where_it_is_not_there(self, server: ApiServer) -> None:
        named = [{"metadata": {"name": n}} for n in ("kube-system", "default", "team")]
        server.says("/api/v1/namespaces", {"items": named})
        assert (
            "namespace lab is not there: kubectl create namespace lab, or --namespace; "
            "there are: default, kube-system, team"
        ) in self.said()

    def test_is_said_without_the_others_where_they_cannot_be_seen(self, server: ApiServer) -> None:
        server.says("/api/v1/namespaces", 403)
        assert "namespace lab is not there: kubectl create namespace lab" in self.said()

    @pytest.mark.parametrize("answer", [403, {"metadata": {"name": "lab"}}])
    def test_is_nothing_to_tell_where_it_is_there_or_may_not_be_seen(
        self, server: ApiServer, answer: Any
    ) -> None:
        server.says(self.WHERE, answer)
        assert "namespace" not in self.said()


class TestTheNetworksOfASiteFile:
    """On a GKE cluster, as detected by `accept init`."""

    NETWORKING = "/apis/networking.gke.io/v1"

    @pytest.fixture
    def server(self, server: ApiServer) -> ApiServer:
        there = node("n1")
        there["metadata"]["labels"] = {"cloud.google.com/gke-accelerator": "nvidia-b200"}
        server.says("/api/v1/nodes", {"items": [there]})
        return server

    def named(self, *names: str) -> dict[str, Any]:
        return {"items": [{"metadata": {"name": n}} for n in names]}

    def test_are_those_that_pods_can_name(self, server: ApiServer) -> None:
        found = self.named("default", "gvnic-1", *(f"my-rdma-{n}" for n in range(8)))
        server.says(f"{self.NETWORKING}/networks", found)
        seen = survey_cluster(client.Api(kubernetes_client.find_place()))
        assert ("eth2", "my-rdma-0") in seen.networks["a4-highgpu-8g"]

    @pytest.mark.parametrize("networks", [403, {"items": []}])
    def test_are_never_parameters_of_networks(self, server: ApiServer, networks: Any) -> None:
        """A pod names a Network; the name of a GKENetworkParamSet can differ from it."""
        server.says(f"{self.NETWORKING}/networks", networks)
        sets = [f"set-rdma-{n}" for n in range(8)]
        server.says(f"{self.NETWORKING}/gkenetworkparamsets", self.named("gvnic-1", *sets))
        seen = survey_cluster(client.Api(kubernetes_client.find_place()))
        said = "\n".join(seen.notes)
        assert seen.networks == {}
        assert "network parameters (not networks that pods can name): gvnic-1, set-rdma-0" in said
        assert "give kubernetes.networks by hand" in said


class TestAQuestion:
    def test_with_one_candidate_is_not_asked(self) -> None:
        only = Question(key="queue", text="Queue", option="queue", candidates=("a4",))
        assert cluster._answer(only, None, ask=False) == "a4"

    def test_that_nobody_can_answer_says_what_there_is(self) -> None:
        two = Question(key="queue", text="Queue", option="queue", candidates=("a", "b"))
        with pytest.raises(BadInput, match="there are: a, b") as caught:
            cluster._answer(two, None, ask=False)
        assert "--queue" in caught.value.hint

    def test_that_was_answered_is_not_asked(self) -> None:
        two = Question(key="queue", text="Queue", option="queue", candidates=("a", "b"))
        assert cluster._answer(two, "b", ask=True) == "b"
        assert cluster._answer(two, "none", ask=True) == ""

    def test_may_stay_open_where_it_can(self) -> None:
        image = Question(key="image", text="Image", option="image", optional=True)
        assert cluster._answer(image, None, ask=False) == ""


class TestABackEndThatIsAFolder:
    def test_is_found_like_the_others(self) -> None:
        assert "kubernetes" in backends.BACKENDS
        assert backends.load("kubernetes").__doc__


class TestWithoutTheClient:
    """The `kubernetes` extra is not installed."""

    @pytest.fixture(autouse=True)
    def not_installed(self, monkeypatch: pytest.MonkeyPatch) -> None:
        # Its dependencies stay, because threads of earlier tests may still use them.
        monkeypatch.setitem(sys.modules, "kubernetes", None)

    @pytest.mark.parametrize(
        "command", [["watch"], ["collect"], ["cancel"], ["delete"], ["delete", "--no-collect"]]
    )
    def test_a_command_on_a_run_names_the_extra(self, command: list[str]) -> None:
        folder = rundir.create("run")
        evidence.write(folder / rundir.JOB, json.dumps(dump(stored_job())))
        assert "[kubernetes]'" in refused(*command, "run", code=Exit.USAGE)

    def test_the_role_is_still_printed(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("KUBECONFIG", str(ApiServer().kubeconfig(tmp_path)))
        done = accept("doctor", "--rbac", "--namespace", "lab")
        assert done.code == Exit.PASS, done.err
        assert "namespace: lab\n" in done.out

    @pytest.mark.parametrize("command", [["nodes"], ["init", "site.yaml"]])
    def test_a_command_on_a_cluster_names_the_extra(self, command: list[str]) -> None:
        assert "[kubernetes]'" in refused(*command, code=Exit.USAGE)


class TestCollecting:
    def test_of_a_run_that_was_cut_off_waits_for_its_end(self, monkeypatch: Any) -> None:
        # What asks the cluster is tested on a real one; here that the refusal is not swallowed.
        folder = rundir.create("run")
        evidence.write(folder / rundir.JOB, json.dumps(dump(stored_job())))

        def goes_on(*_: Any, **__: Any) -> Path:
            raise BrokenOff("run is still running", hint="accept watch run")

        monkeypatch.setattr(kubernetes_backend, "collect", goes_on)
        assert "still running" in refused("collect", "run", code=5)
        assert backends.load_job(folder) == stored_job()


class TestEvidenceThatIsOnlyALog:
    """Index 0 is gone, and its results cannot be read at the moment."""

    PODS = "/api/v1/namespaces/lab/pods"

    @pytest.fixture
    def bucket(self, tmp_path: Path) -> Path:
        """Return a bucket with the measurements from before index 0 was lost."""
        return sample_evidence.write(tmp_path / "bucket" / "runs" / "run", whole=False)

    @pytest.fixture
    def folder(self, tmp_path: Path, bucket: Path) -> Iterator[Path]:
        folder = rundir.create("run")
        (folder / rundir.RENDERED).mkdir()
        evidence.write(
            folder / rundir.RENDERED / "plan.json", json.dumps(dump(sample_evidence.PLAN))
        )
        results = f"file://{bucket.parents[1]}"
        site = {"results": {"location": results}}
        evidence.write(folder / rundir.RUN, json.dumps({"run": {"site": site}}))
        with api_server() as server:
            file = str(server.kubeconfig(tmp_path))
            place = {**stored_job().place, "kubeconfig": file, "results": results}
            evidence.write(
                folder / rundir.JOB, json.dumps(dump(replace(stored_job(), place=place)))
            )
            server.says(self.PODS, {"items": []})
            yield folder

    @pytest.fixture
    def unreadable(self, monkeypatch: pytest.MonkeyPatch) -> Iterator[pytest.MonkeyPatch]:
        def fails(*_: Any, **__: Any) -> bool:
            raise BadEvidence("no answer")

        with monkeypatch.context() as patch:
            patch.setattr(evidence_bucket, "fetch", fails)
            yield patch

    def test_is_never_sent_over_what_was_measured(
        self, folder: Path, bucket: Path, unreadable: pytest.MonkeyPatch
    ) -> None:
        before = {path: path.read_bytes() for path in bucket.rglob("*") if path.is_file()}
        done = accept("collect", "run")
        assert done.code == 0, done.err
        assert "not sent" in done.err
        assert {path: path.read_bytes() for path in bucket.rglob("*") if path.is_file()} == before
        assert judge.judge_path(str(folder), expect=()).verdict.broken_off

    def test_gives_way_to_what_was_measured_once_that_can_be_read(
        self, folder: Path, unreadable: pytest.MonkeyPatch
    ) -> None:
        assert accept("collect", "run").code == 0
        kept = folder / kubernetes_collect.CLUSTER_FOLDER / "pods.json"
        kept.write_text("[1]")
        unreadable.undo()
        assert accept("collect", "run").code == 0
        assert (folder / rundir.EVIDENCE / evidence.RECORDS).stat().st_size > 0
        assert not (folder / rundir.FROM_LOG).exists()
        assert kept.read_text() == "[1]"

    def test_stays_where_there_is_no_more(
        self, folder: Path, unreadable: pytest.MonkeyPatch
    ) -> None:
        for _ in range(2):
            assert accept("collect", "run").code == 0
            assert (folder / rundir.FROM_LOG).exists()
        assert judge.judge_path(str(folder), expect=()).verdict.exit == 5


class TestEvidenceThatCannotBeFetched:
    """The evidence exists but arrives incomplete, so no copy of it is removed."""

    @pytest.fixture
    def removed(self, monkeypatch: pytest.MonkeyPatch) -> list[str]:
        folder = rundir.create("run")
        evidence.write(folder / rundir.JOB, json.dumps(dump(stored_job())))
        removed: list[str] = []

        def delete(job: Job, *, dry_run: bool, say: Any) -> tuple[str, ...]:
            if not dry_run:
                removed.append(job.attempt)
            return ("Pod run-w-0-0",)

        def collect(*_: Any, **__: Any) -> Path:
            raise BadEvidence("3 of 9 bytes came whole", hint="collect again")

        back_end = backends.load("kubernetes")
        monkeypatch.setattr(back_end, "delete", delete)
        monkeypatch.setattr(back_end, "collect", collect)
        monkeypatch.setattr(back_end, "cancel", lambda *_, **__: None)
        return removed

    def test_keeps_the_run_from_being_deleted(self, removed: list[str]) -> None:
        said = refused("delete", "run", code=6)
        assert "3 of 9 bytes" in said
        assert "--no-collect" in said
        assert removed == []

    def test_does_not_where_it_is_not_wanted(self, removed: list[str]) -> None:
        assert accept("delete", "run", "--no-collect").code == 0
        assert removed == ["run"]

    def test_keeps_a_run_that_is_cancelled(self, removed: list[str]) -> None:
        done = accept("cancel", "run")
        assert done.code == 6
        assert "accept collect run, then accept delete run" in done.err
        assert removed == []
