"""The Kubernetes back end on a real cluster: start, follow, collect, end, and what it refuses."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.cluster.kube.cluster import Cluster
from tests.cluster.kube.control import until
from tests.cluster.kube.workstation import Workstation

from accept.backends.kubernetes import archive, rules
from accept.backends.kubernetes.api import Api
from accept.backends.kubernetes.execute import execute
from accept.backends.kubernetes.place import Place
from accept.core import evidence
from accept.spec import load_site

#: On one host, so that a run lasts until somebody lets it go on.
WAITS = "check: script, script: own.sh, groups: all, timeout: 200s, params: {name: wait}"
GO_ON = """
until [ -e /tmp/go-on ]; do sleep 0.5; done
echo 'ACCEPT {"metric":"x","value":1,"unit":"m"}'
"""


@pytest.fixture
def here(
    cluster: Cluster, namespace: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Workstation]:
    # What kubectl remembers of another cluster on the same address is wrong for this one.
    monkeypatch.setenv("KUBECACHEDIR", str(tmp_path / "kube-cache"))
    yield Workstation(cluster, namespace, tmp_path)
    for file in sorted(tmp_path.glob("started-*.err")):
        print(f"== {file.name}\n{file.read_text()[-4000:]}")


def first_pod(here: Workstation) -> str:
    """The name of index 0's pod, once it runs."""
    words = ("-n", here.namespace, "-l", "batch.kubernetes.io/job-completion-index=0")

    def running() -> list[Any]:
        items = here.cluster.get("pods", *words)["items"]
        return [p for p in items if p["status"]["phase"] == "Running"]

    until("index 0", lambda: bool(running()))
    return str(running()[0]["metadata"]["name"])


def let_go_on(here: Workstation) -> None:
    """Let the run end."""
    for pod in here.cluster.get("pods", "-n", here.namespace)["items"]:
        name = pod["metadata"]["name"]
        here.cluster.kubectl(
            "-n", here.namespace, "exec", name, "-c", "accept", "--", "touch", "/tmp/go-on",
            check=False,
        )  # fmt: skip


class TestARunThatPasses:
    def test_with_the_rights_of_the_printed_role_and_no_more(
        self, here: Workstation, cluster: Cluster
    ) -> None:
        before = here.objects()
        role, _ = yaml.safe_load_all(rules.role(here.namespace))
        here.kubeconfig = cluster.kubeconfig_for(here.namespace, role["rules"])
        before |= here.objects()
        done = here.accept("run", *here.plan(), "--json")
        assert done.exit == 0, done.err
        assert "free nodes are not counted" in done.err
        attempt = done.result["attempt"]
        folder = here.run_folder(attempt)
        assert evidence.check_checksums(folder / "evidence") == ()

        told = folder / "cluster"
        logs = sorted(p.name for p in (told / "logs").iterdir())
        assert len(logs) == 3
        assert all(p.stat().st_size for p in (told / "logs").iterdir())
        assert len(json.loads((told / "pods.json").read_text())) == 3
        assert json.loads((told / "events.json").read_text())
        # Of nodes this user may not know, and that is said.
        assert "node h" in (told / "missing.txt").read_text()

        jobset = f"jobset/{attempt}"
        cluster.kubectl(
            "-n", here.namespace, "wait", "--for=condition=Completed", jobset, "--timeout=60s"
        )
        self.no_key_anywhere(here, attempt)

        planned = here.accept("delete", "last", "--dry-run", "--json").result["removed"][attempt]
        assert set(planned) >= here.objects() - before - {
            o for o in here.objects() if "sh.helm" in o
        }
        assert here.accept("delete", "last").exit == 0
        assert here.objects() == before

    def no_key_anywhere(self, here: Workstation, attempt: str) -> None:
        secret = here.cluster.get("secret", f"{attempt}-ssh", "-n", here.namespace)
        coded = secret["data"]["ssh-privatekey"].encode()
        key = base64.b64decode(coded)
        shapes = (key.splitlines()[2], coded[40:120], base64.b64encode(coded)[40:120])
        for file in here.run_folder(attempt).rglob("*"):
            if file.is_file():
                content = file.read_bytes()
                assert not any(shape in content for shape in shapes), file

    def test_as_a_plain_job(self, here: Workstation) -> None:
        done = here.accept(
            "run", *here.plan(controller="job", nodes=2), "--release=plain", "--json"
        )
        assert done.exit == 0, done.err
        assert here.cluster.get("jobsets", "-n", here.namespace)["items"] == []
        assert done.result["attempt"].startswith("plain-")

    def test_is_judged_from_its_log_where_nothing_else_is_left(self, here: Workstation) -> None:
        plan = here.plan(nodes=2, results={"holdSeconds": 0})
        assert here.accept("submit", *plan, "--attempt=logonly").exit == 0
        watched = here.accept("watch", "last")
        assert watched.exit == 0, watched.err
        name = "logonly-1"
        here.cluster.kubectl(
            "-n", here.namespace, "wait", "--for=condition=Completed", f"jobset/{name}",
            "--timeout=60s",
        )  # fmt: skip
        collected = here.accept("collect", name)
        assert collected.exit == 0, collected.err
        assert "raw logs" in (here.run_folder(name) / "cluster" / "missing.txt").read_text()
        judged = here.accept("judge", name, "--json")
        assert judged.ending == ("pass", 0)


class TestWatching:
    def test_survives_an_api_that_restarts_and_says_no_line_twice(
        self, here: Workstation, cluster: Cluster
    ) -> None:
        assert here.accept("submit", *here.plan(WAITS, script=GO_ON)).exit == 0
        watch = here.start("watch", "last")
        watch.says("[1/2]")
        cluster.stop_api()
        try:
            watch.says("no answer from the API")
        finally:
            cluster.start_api()
        watch.says("the API answers again")
        let_go_on(here)
        done = watch.wait()
        assert done.exit == 0, done.err
        assert done.err.count("[1/2]") == done.err.count("[2/2]") == 1
        assert here.accept("collect", "last").exit == 0

    def test_can_be_left_and_taken_up_again(self, here: Workstation) -> None:
        assert here.accept("submit", *here.plan(WAITS, script=GO_ON)).exit == 0
        watch = here.start("watch", "last")
        watch.says("[1/2]")
        watch.kill()
        refused = here.accept("collect", "last")
        assert (refused.exit, "still running" in refused.err) == (5, True)
        again = here.start("watch", "last")
        again.says("[1/2]")
        let_go_on(here)
        assert again.wait().exit == 0

    def test_says_that_a_run_is_suspended_and_goes_on_when_it_is_released(
        self, here: Workstation
    ) -> None:
        assert here.accept("submit", *here.plan(suspend=True), "--attempt=held").exit == 0
        watch = here.start("watch", "last")
        watch.says("suspended")
        here.cluster.kubectl(
            "-n", here.namespace, "patch", "jobset", "held-1", "--type=merge",
            "-p", '{"spec":{"suspend":false}}',
        )  # fmt: skip
        assert watch.wait().exit == 0

    def test_says_which_image_is_not_there(self, here: Workstation) -> None:
        assert here.accept("submit", *here.plan(image="localhost/none:1")).exit == 0
        watch = here.start("watch", "last")
        watch.says("ErrImageNeverPull")
        watch.kill()


class TestNodesByName:
    def test_are_meant_whatever_their_hostname_label_says(
        self, here: Workstation, cluster: Cluster
    ) -> None:
        node, label = cluster.nodes[2], "kubernetes.io/hostname"
        cluster.kubectl("label", "node", node, f"{label}=elsewhere", "--overwrite")
        try:
            done = here.accept("run", *here.plan(nodes=1), f"--nodes={node}", "--json")
        finally:
            cluster.kubectl("label", "node", node, f"{label}={node}", "--overwrite")
        assert done.exit == 0, done.err
        assert done.result["hosts"] == [node]

    def test_are_kept_out_by_name(self, here: Workstation, cluster: Cluster) -> None:
        excluded = list(cluster.nodes[:2])
        done = here.accept("run", *here.plan(nodes=1, excludeNodes=excluded), "--json")
        assert done.exit == 0, done.err
        assert done.result["hosts"] == [cluster.nodes[2]]


class TestARunThatCannotStart:
    def test_says_what_is_short_and_leaves_nothing(self, here: Workstation) -> None:
        before = here.objects()
        resources = {"requests": {"memory": "900Ti"}}
        done = here.accept("run", *here.plan(resources=resources), "--start-timeout=5s")
        assert done.exit == 4, done.err
        assert "Insufficient memory" in done.err
        assert here.objects() == before

    def test_does_not_start_on_fewer_gpus_than_asked(
        self, here: Workstation, cluster: Cluster
    ) -> None:
        before = here.objects()
        plan = ["--machine=a4-highgpu-8g", "--suite=quick", f"--site={here.site()}"]
        for node in cluster.nodes[:2]:
            cluster.fake_gpus(node, 8, "nvidia-b200")
        try:
            done = here.accept("run", *plan, "--nodes=3")
            assert done.exit == 4
            assert "3 nodes are wanted, and there are 2" in done.err
            assert "traceback" not in done.err.lower()
            doctor = here.accept("doctor", *plan, "--nodes=3")
            assert doctor.exit == 4
            assert "rdma-0" in doctor.out
            free = here.accept("nodes", "--machine=a4-highgpu-8g")
            assert tuple(free.out.split()) == cluster.nodes[:2]
            planned = here.accept("run", *plan, "--nodes=all", "--dry-run", "--json")
            assert planned.result["nodes"] == 2
        finally:
            for node in cluster.nodes[:2]:
                cluster.no_gpus(node)
        assert here.objects() == before

    def test_says_which_release_is_there_already(self, here: Workstation) -> None:
        plan = here.plan(suspend=True)
        assert here.accept("submit", *plan, "--release=same", "--attempt=one").exit == 0
        before = here.objects()
        done = here.accept("submit", *plan, "--release=same", "--attempt=two")
        assert (done.exit, "release same" in done.err) == (4, True)
        assert here.objects() == before

    def test_says_what_the_chart_refuses_and_leaves_nothing(self, here: Workstation) -> None:
        before = here.objects()
        plan = here.plan(affinity={"nodeAffinity": {"nonsense": True}})
        done = here.accept("submit", *plan)
        assert (done.exit, "helm install" in done.err) == (4, True)
        assert here.objects() == before

    def test_says_that_a_name_is_too_long(self, here: Workstation) -> None:
        done = here.accept("submit", *here.plan(), f"--release={'a' * 50}", "--attempt=b")
        assert (done.exit, "at most 51" in done.err) == (2, True)


class TestCancelling:
    def test_keeps_the_evidence_and_leaves_nothing_else(self, here: Workstation) -> None:
        before = here.objects()
        assert here.accept("submit", *here.plan(WAITS, script=GO_ON)).exit == 0
        watch = here.start("watch", "last")
        watch.says("[1/2]")
        done = here.accept("cancel", "last")
        assert done.exit == 0, done.err
        assert here.objects() == before
        judged = here.accept("judge", "last", "--json")
        assert judged.exit == 5
        assert "cancelled" in judged.result["brokenOff"]
        watch.kill()

    def test_of_a_run_that_never_started_leaves_nothing(self, here: Workstation) -> None:
        before = here.objects()
        assert here.accept("submit", *here.plan(suspend=True)).exit == 0
        assert here.accept("cancel", "last").exit == 0
        assert here.objects() == before

    def test_two_runs_do_not_touch_each_other(self, here: Workstation) -> None:
        plan = here.plan(suspend=True)
        assert here.accept("submit", *plan, "--attempt=one").exit == 0
        mine = here.objects()
        assert here.accept("submit", *plan, "--attempt=two").exit == 0
        assert here.accept("cancel", "two-1").exit == 0
        assert here.objects() == mine


class TestExec:
    def test_brings_any_bytes_whole(self, here: Workstation, tmp_path: Path) -> None:
        assert here.accept("submit", *here.plan(WAITS, script=GO_ON), "--attempt=bytes").exit == 0
        pod = first_pod(here)
        place = Place(kubeconfig=str(here.kubeconfig), namespace=here.namespace)
        api = Api(place)
        there = "/opt/accept/evidence.tar"
        made = f"head -c 5000003 /dev/urandom > {there}; sha256sum {there}"
        done = execute(api, pod, "accept", ["sh", "-c", made])
        assert done.exit == 0
        digest = done.out.split()[0]
        target = tmp_path / "bytes"
        archive.copy(api, pod, target, 5000003, digest)
        assert hashlib.sha256(target.read_bytes()).hexdigest() == digest
        assert execute(api, pod, "accept", ["sh", "-c", "exit 7"]).exit == 7
        api.close()


class TestThePodsFirstProcess:
    def test_keeps_no_dead_ones_of_those_it_was_left(self, here: Workstation) -> None:
        assert here.accept("submit", *here.plan(WAITS, script=GO_ON), "--attempt=dead").exit == 0
        pod = first_pod(here)
        api = Api(Place(kubeconfig=str(here.kubeconfig), namespace=here.namespace))
        orphans = "for n in 1 2 3; do sh -c 'sleep 0.1 & echo $!'; done"
        left = execute(api, pod, "accept", ["sh", "-c", orphans]).out.split()
        assert len(left) == 3
        gone = "for one; do until [ ! -d /proc/$one ]; do sleep 0.05; done; done"
        done = execute(api, pod, "accept", ["sh", "-c", gone, "sh", *left], timeout=30)
        assert done.exit == 0
        api.close()


class TestTheSiteFile:
    def test_is_written_from_what_the_cluster_shows(self, here: Workstation) -> None:
        file = here.folder / "new.yaml"
        done = here.accept("init", str(file), f"--namespace={here.namespace}", "--image=img:1")
        assert done.exit == 0, done.err
        site = load_site(str(file)).value
        assert (site.backend, site.kubernetes.namespace) == ("kubernetes", here.namespace)
        assert site.kubernetes.image == "img:1"
