"""Commands about clusters that need no real cluster: names, Roles, free nodes, deleting."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import pytest
import yaml
from tests.factories.api_server import ApiServer
from tests.factories.command_line import accept, refused
from tests.factories.kubernetes import node, pod_on, stored_job

from accept.backends.job import Job
from accept.backends.kubernetes import submit
from accept.core import evidence
from accept.core.error_codes import Code
from accept.core.errors import BadInput, Exit
from accept.core.serde import Invalid, dump, read
from accept.evidence import rundir

pytestmark = pytest.mark.usefixtures("nowhere")


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
def test_the_name_of_a_run_is_release_and_attempt(attempt: str, release: str, full: str) -> None:
    name = submit.run_name(attempt, release)
    assert name.full == full
    assert submit.run_name(name.full).full == full if not release else name.release == release


def test_two_launches_within_a_second_have_two_releases() -> None:
    names = ("20261121-045334-1a2b", "20261121-045334-3c4d", "one", "two")
    assert len({submit.run_name(name).release for name in names}) == len(names)


@pytest.mark.parametrize(
    ("release", "attempt", "nodes", "code"),
    [
        ("a" * 46, "bcde", 10, None),
        # The names of pods have one more digit.
        ("a" * 46, "bcde", 11, Code.KUBE_NAME_LONG),
        *((release, "a", 2, Code.KUBE_NAME) for release in ("Lab", "1lab", "lab_", "-lab")),
    ],
)
def test_the_name_of_a_run_is_one_that_pods_may_have(
    release: str, attempt: str, nodes: int, code: Code | None
) -> None:
    name = submit.RunName(release=release, attempt=attempt)
    if code is None:
        submit.check_run_name(name, nodes)
        return
    with pytest.raises(BadInput) as caught:
        submit.check_run_name(name, nodes)
    assert caught.value.code is code


class TestTheRole:
    def test_names_the_namespace_and_only_reads_outside_of_it(self) -> None:
        done = accept("doctor", "--rbac", "--namespace", "lab")
        assert done.code == 0
        role, look = yaml.safe_load_all(done.out)
        assert (role["kind"], role["metadata"]["namespace"]) == ("Role", "lab")
        assert look["kind"] == "ClusterRole"
        assert {verb for rule in look["rules"] for verb in rule["verbs"]} == {"get", "list"}
        assert "*" not in re.sub(r"#.*", "", done.out)

    def test_is_of_the_namespace_that_a_run_would_go_to(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        file = ApiServer().kubeconfig(tmp_path, namespace="lab")
        monkeypatch.setenv("KUBECONFIG", str(file))
        assert "namespace: lab\n" in accept("doctor", "--rbac").out
        monkeypatch.delenv("KUBECONFIG")
        assert "namespace: default\n" in accept("doctor", "--rbac").out


class TestWithoutACluster:
    @pytest.mark.parametrize("words", [("list", "nodes"), ("list", "nodes", "-m", "cpu")])
    def test_a_command_reports_that_the_kubeconfig_is_missing(self, words: tuple[str, ...]) -> None:
        refused(*words, code=4, error=Code.KUBE_CONFIG_MISSING)

    def test_no_site_file_is_written(self, tmp_path: Path) -> None:
        refused("init", tmp_path / "site.yaml", code=4, error=Code.KUBE_CONFIG_MISSING)
        assert not (tmp_path / "site.yaml").exists()

    def test_all_nodes_cannot_be_rendered(self) -> None:
        assert "accept list nodes" in refused("render", "--machine", "cpu", "--nodes", "all")


class TestDeleting:
    @pytest.mark.parametrize(
        ("words", "error"),
        [
            ((), Code.RUN_WHICH),
            (("last", "--older-than", "24h"), Code.RUN_WHICH),
            (("--older-than", "soon"), Code.OPTION_DURATION),
        ],
    )
    def test_needs_names_or_an_age(self, words: tuple[str, ...], error: Code) -> None:
        assert accept("clean", *words).error == error

    def test_removes_runs_older_than_the_age(self) -> None:
        done = accept("clean", "--older-than", "24h", "--dry-run")
        assert (done.code, done.out) == (0, "nothing is left\n")
        for name, year in (("old", 2020), ("new", 2999)):
            folder = rundir.create(name)
            (folder / "node").mkdir()
            one = Job(
                schema=1,
                backend="local",
                attempt=name,
                hosts=(),
                first="",
                folder=str(folder / "node"),
                submitted=f"{year}-01-01T00:00:00+00:00",
            )
            evidence.write(folder / rundir.JOB, json.dumps(dump(one)))
        old = rundir.find("old") / "node"
        for word in ("--dry-run", "--no-collect"):
            done = accept("clean", "--older-than", "24h", "--json", word)
            assert list(json.loads(done.out)["removed"]) == ["old"], done.err
            assert old.exists() is (word == "--dry-run")


class TestAJob:
    @pytest.mark.parametrize(
        ("backend", "place"), [("local", {"namespace": "a"}), ("kubernetes", None)]
    )
    def test_has_a_place_only_if_it_is_in_a_cluster(
        self, backend: str, place: dict[str, str] | None
    ) -> None:
        with pytest.raises(Invalid) as error:
            read(Job, {**dump(stored_job()), "backend": backend, "place": place})
        assert error.value.path == ("place",)


class TestTheNodesThatAreFree:
    """A cluster whose machines have no distinguishing labels."""

    @pytest.fixture(autouse=True)
    def nodes(self, server: ApiServer) -> None:
        there = [node("cpu1", gpus=0), node("g0"), node("g1", gpus=4), node("g2")]
        server.answer_with("/api/v1/nodes", {"items": there})
        server.answer_with("/api/v1/pods", {"items": [pod_on("g2", 1)]})

    def free(self, *words: str) -> list[str]:
        done = accept("list", "nodes", *words)
        assert done.code == 0, done.err
        return done.out.split()

    def test_have_gpus_if_the_machine_has_gpus(self) -> None:
        assert self.free("--machine", "gpu") == ["g0", "g1"]

    def test_have_as_many_gpus_as_are_requested(self, tmp_path: Path) -> None:
        site = tmp_path / "site.yaml"
        site.write_text("gpusPerNode: 8\n", encoding="utf-8")
        assert self.free("--machine", "gpu", "--gpus-per-node", "8") == ["g0"]
        assert self.free("--machine", "gpu", "--site", str(site)) == ["g0"]
        fewer = ("--site", str(site), "--gpus-per-node=4")
        assert self.free("--machine", "gpu", *fewer) == ["g0", "g1"]

    def test_are_not_listed_if_only_the_scheduler_knows_them(self, tmp_path: Path) -> None:
        site = tmp_path / "site.yaml"
        required = "requiredDuringSchedulingIgnoredDuringExecution"
        affinity = f"{{nodeAffinity: {{{required}: {{nodeSelectorTerms: []}}}}}}"
        site.write_text(f"kubernetes: {{affinity: {affinity}}}\n", encoding="utf-8")
        words = ("list", "nodes", "--machine", "gpu", "--site", site)
        refused(*words, code=Exit.USAGE, error=Code.KUBE_NODES_AFFINITY)

    def test_need_no_gpus_if_the_machine_has_none(self, server: ApiServer) -> None:
        untainted = {**node("cpu1", gpus=0), "spec": {}}
        server.answer_with("/api/v1/nodes", {"items": [untainted]})
        assert self.free("--machine", "cpu") == ["cpu1"]

    def test_have_as_many_gpus_as_the_pods_of_the_machine_request(self, tmp_path: Path) -> None:
        """On several nodes, pods request all GPUs, even if fewer are tested."""
        machine = tmp_path / "mine.yaml"
        limits = "{limits: {nvidia.com/gpu: 8}}"
        machine.write_text(
            "name: mine\ndescription: Eight GPUs.\ngpus: {count: 8}\n"
            f"kubernetes: {{resources: {limits}}}\n"
        )
        assert self.free("--machine", str(machine), "--gpus-per-node", "4") == ["g0"]

    def test_with_more_gpus_than_the_machine_has_are_refused(self) -> None:
        message = refused("list", "nodes", "--machine", "cpu", "--gpus-per-node", "8")
        assert "8 GPUs per node cannot be used on cpu" in message

    def test_are_all_used_by_a_run_on_all_nodes(self, tmp_path: Path) -> None:
        site = tmp_path / "site.yaml"
        site.write_text("kubernetes: {image: 'img:1'}\ngpusPerNode: 8\n", encoding="utf-8")
        words = ("--machine=gpu", "--nodes=all", f"--site={site}", "--dry-run")
        done = accept("run", *words)
        assert done.code == 0, done.err
        assert "nodes: all 1 that are free and match" in done.err


class TestWithoutTheClient:
    """The `kubernetes` extra is not installed."""

    @pytest.fixture(autouse=True)
    def not_installed(self, monkeypatch: pytest.MonkeyPatch) -> None:
        # Its dependencies stay, because threads of earlier tests may still use them.
        monkeypatch.setitem(sys.modules, "kubernetes", None)

    @pytest.mark.parametrize(
        "words",
        [
            *((command, "run") for command in ("watch", "collect", "cancel", "clean")),
            ("clean", "--no-collect", "run"),
            ("list", "nodes"),
            ("init", "site.yaml"),
        ],
    )
    def test_a_command_names_the_extra(self, words: tuple[str, ...]) -> None:
        folder = rundir.create("run")
        evidence.write(folder / rundir.JOB, json.dumps(dump(stored_job())))
        message = refused(*words, code=Exit.USAGE, error=Code.KUBE_CLIENT_MISSING)
        assert "[kubernetes]'" in message

    def test_the_role_is_still_printed(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("KUBECONFIG", str(ApiServer().kubeconfig(tmp_path)))
        done = accept("doctor", "--rbac", "--namespace", "lab")
        assert done.code == Exit.PASS, done.err
        assert "namespace: lab\n" in done.out
