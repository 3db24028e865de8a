"""The Kubernetes back end on a real cluster: start, follow, collect, end, and what it refuses."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from tests.cluster.kube.cluster import Cluster
from tests.cluster.kube.desk import WAITS, Desk
from tests.cluster.runs import CONNECT

from accept.backends.kubernetes import rbac
from accept.config import load_site
from accept.core import evidence


@pytest.fixture
def desk(cluster: Cluster, namespace: str, tmp_path: Path) -> Iterator[Desk]:
    made = Desk(cluster, namespace, tmp_path, results={"holdSeconds": 120})
    yield made
    made.close()
    for file in sorted(tmp_path.glob("command-*.err")):
        print(f"== {file.name}\n{file.read_text()[-4000:]}")


class TestARunThatPasses:
    @pytest.mark.smoke
    def test_with_the_rights_of_the_printed_role_and_no_more(
        self, desk: Desk, cluster: Cluster
    ) -> None:
        """SECURITY.md: "a Role of one namespace that is enough for a run"."""
        before = desk.made()
        role, _ = yaml.safe_load_all(rbac.role_yaml(desk.namespace))
        limited = cluster.kubeconfig_for(desk.namespace, role["rules"])
        desk.environment["KUBECONFIG"] = str(limited)
        before |= desk.made()
        done = desk.run()
        assert done.exit == 0, done.err
        assert "free nodes are not counted" in done.err
        attempt = done.result["attempt"]
        folder = desk.runs / attempt
        assert evidence.check_checksums(folder / "evidence") == ()

        saved = folder / "cluster"
        logs = sorted(p.name for p in (saved / "logs").iterdir())
        assert len(logs) == 3
        assert all(p.stat().st_size for p in (saved / "logs").iterdir())
        assert len(json.loads((saved / "pods.json").read_text())) == 3
        assert json.loads((saved / "events.json").read_text())
        # This user may not read nodes; missing.txt shows that.
        assert "node h" in (saved / "missing.txt").read_text()

        assert desk.ended() == "Completed"
        self.no_key_anywhere(desk, attempt)

        planned = desk.do("clean", "last", "--dry-run", "--json").result["removed"][attempt]
        assert set(planned) >= desk.made() - before - {o for o in desk.made() if "sh.helm" in o}
        assert desk.do("clean", "last").exit == 0
        assert desk.made() == before

    def no_key_anywhere(self, desk: Desk, attempt: str) -> None:
        secret = desk.cluster.get("secret", f"{attempt}-ssh", "-n", desk.namespace)
        coded = secret["data"]["ssh-privatekey"].encode()
        key = base64.b64decode(coded)
        shapes = (key.splitlines()[2], coded[40:120], base64.b64encode(coded)[40:120])
        for file in (desk.runs / attempt).rglob("*"):
            if file.is_file():
                content = file.read_bytes()
                assert not any(shape in content for shape in shapes), file


class TestWatching:
    def test_shows_that_a_run_is_suspended_and_goes_on_after_its_release(self, desk: Desk) -> None:
        desk.configure(suspend=True)
        assert desk.submit("--attempt=held").exit == 0
        watch = desk.command("watch", "last")
        watch.wait_for("suspended")
        desk.cluster.kubectl(
            "-n", desk.namespace, "patch", "jobset", "held-1", "--type=merge",
            "-p", '{"spec":{"suspend":false}}',
        )  # fmt: skip
        assert watch.wait().exit == 0


class TestNodesByName:
    def test_are_used_whatever_their_hostname_label_is(self, desk: Desk, cluster: Cluster) -> None:
        node, label = cluster.nodes[2], "kubernetes.io/hostname"
        cluster.kubectl("label", "node", node, f"{label}=elsewhere", "--overwrite")
        try:
            done = desk.run(nodes=node)
        finally:
            cluster.kubectl("label", "node", node, f"{label}={node}", "--overwrite")
        assert done.exit == 0, done.err
        assert done.result["hosts"] == [node]


class TestARunThatCannotStart:
    @pytest.mark.smoke
    def test_reports_the_missing_resource_and_leaves_nothing(self, desk: Desk) -> None:
        before = desk.made()
        desk.configure(resources={"requests": {"memory": "900Ti"}})
        done = desk.run("--start-timeout=12s")
        assert done.exit == 4, done.err
        assert "Insufficient memory" in done.err
        assert desk.made() == before

    def test_does_not_start_on_fewer_gpus_than_asked(self, desk: Desk, cluster: Cluster) -> None:
        before = desk.made()
        plan = ["--machine=a4-highgpu-8g", "--suite=quick", f"--site={desk.site}"]
        for node in cluster.nodes[:2]:
            cluster.fake_gpus(node, 8, "nvidia-b200")
        try:
            done = desk.do("run", *plan, "--nodes=3")
            assert done.exit == 4
            assert "error[E-KUBE-NODES-TOO-FEW]" in done.err
            doctor = desk.do("doctor", *plan, "--nodes=3", "--json")
            assert doctor.exit == 4
            rows = {need["code"]: need for need in doctor.result["needs"]}
            assert "rdma-0" in rows["R-NETWORKS"]["found"]
            assert (rows["R-JOBSET"]["good"], rows["R-JOBSET"]["checked"]) == (True, True)
            free = desk.do("list", "nodes", "--machine=a4-highgpu-8g")
            assert tuple(free.out.split()) == cluster.nodes[:2]
            planned = desk.do("run", *plan, "--nodes=all", "--dry-run", "--json")
            assert planned.result["nodes"] == 2
        finally:
            for node in cluster.nodes[:2]:
                cluster.no_gpus(node)
        assert desk.made() == before

    def test_of_two_started_at_once_as_one_release_one_goes_on(self, desk: Desk) -> None:
        desk.configure(suspend=True)
        options = ["--release=same", *desk.options(3, ())]
        started = {
            attempt: desk.command("submit", *options, f"--attempt={attempt}")
            for attempt in ("one", "two")
        }
        exits = {attempt: command.wait().exit for attempt, command in started.items()}
        loser, winner = sorted(exits, key=lambda attempt: -exits[attempt])
        assert (exits[winner], exits[loser]) == (0, 4)
        made = desk.complete()
        assert {f"JobSet same-{winner}", f"Secret same-{winner}-ssh"} <= made
        assert not any(f"same-{loser}" in name for name in made)


class TestCancelling:
    @pytest.mark.smoke
    def test_keeps_the_evidence_and_leaves_nothing_else(self, desk: Desk) -> None:
        before = desk.made()
        assert desk.submit(checks=[*CONNECT, WAITS]).exit == 0
        watch = desk.command("watch", "last")
        watch.wait_for("[1/2]")
        done = desk.do("cancel", "last")
        assert done.exit == 0, done.err
        assert desk.made() == before
        judged = desk.do("judge", "last", "--json")
        assert judged.exit == 5
        assert "cancelled" in judged.result["interruption"]
        watch.kill()

    def test_two_runs_do_not_touch_each_other(self, desk: Desk) -> None:
        desk.configure(suspend=True)
        assert desk.submit("--attempt=one").exit == 0
        mine = desk.complete()
        assert desk.submit("--attempt=two").exit == 0
        assert desk.do("cancel", "two-1").exit == 0
        assert desk.made() == mine

    def test_an_old_attempt_is_removed_without_the_release_that_a_new_one_has(
        self, desk: Desk
    ) -> None:
        desk.configure(suspend=True)
        assert desk.submit("--release=same", "--attempt=one").exit == 0
        assert desk.do("clean", "same-one").exit == 0
        assert desk.submit("--release=same", "--attempt=two").exit == 0
        before = desk.complete()
        again = desk.do("clean", "same-one", "--json")
        assert (again.exit, again.result["removed"]) == (0, {"same-one": []}), again.err
        assert desk.made() == before


class TestTheSiteFile:
    def test_is_written_from_what_the_cluster_shows(self, desk: Desk) -> None:
        file = desk.folder / "new.yaml"
        done = desk.do("init", str(file), f"--namespace={desk.namespace}", "--image=img:1")
        assert done.exit == 0, done.err
        site = load_site(str(file)).value
        assert (site.backend, site.kubernetes.namespace) == ("kubernetes", desk.namespace)
        assert site.kubernetes.image == "img:1"
