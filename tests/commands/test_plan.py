"""Decisions and refusals before a run starts: back end, machine, hosts, and options."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.factories.api_server import ApiServer, api_server
from tests.factories.command_line import Done, accept, parsers, refused
from tests.factories.disks import full_disk
from tests.factories.keys import KEYS
from typer.core import TyperOption

from accept.backends.requirements import Requirement
from accept.core.errors import Exit
from accept.evidence import rundir

IMAGE = "kubernetes: {image: 'registry.example/accept:1'}\n"
#: Calls `accept run` with a site file that names an image.
Run = Callable[..., Done]


def node(name: str, gpus: int = 0, **labels: str) -> dict[str, Any]:
    """Return a node as the API shows it."""
    capacity = {"nvidia.com/gpu": str(gpus)} if gpus else {}
    return {
        "metadata": {"name": name, "labels": labels},
        "spec": {},
        "status": {"capacity": capacity, "allocatable": capacity, "conditions": []},
    }


@pytest.fixture(autouse=True)
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Use an empty folder of runs, and hide all clusters from the test."""
    monkeypatch.setenv("ACCEPT_RUNS", str(tmp_path / "runs"))
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("KUBECONFIG", raising=False)
    return tmp_path / "runs"


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ApiServer]:
    """Run a stand-in cluster of one B200 node."""
    with api_server() as cluster:
        monkeypatch.setenv("KUBECONFIG", str(cluster.kubeconfig(tmp_path)))
        b200 = node("n1", 8, **{"cloud.google.com/gke-accelerator": "nvidia-b200"})
        cluster.answer_with("/api/v1/nodes", {"items": [b200]})
        cluster.answer_with("/api/v1/pods", {"items": []})
        yield cluster


@pytest.fixture
def site(tmp_path: Path) -> Callable[[str], Path]:
    def write(text: str) -> Path:
        path = tmp_path / "site.yaml"
        path.write_text(text)
        return path

    return write


@pytest.fixture
def elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fail the test if it inspects this machine or opens an ssh connection."""

    def contacted(*_: object) -> None:
        raise AssertionError("a host was contacted")

    monkeypatch.setattr("accept.backends.local.tools_here", contacted)
    monkeypatch.setattr("accept.backends.ssh.backend.on_all", contacted)


@pytest.mark.usefixtures("elsewhere")
class TestMachineOfACluster:
    """The back end of the run detects the machine."""

    @pytest.mark.parametrize("nodes", ["64", "n1,n2"])
    def test_comes_from_the_accelerator_label_of_its_nodes(
        self, server: ApiServer, site: Callable[[str], Path], nodes: str
    ) -> None:
        done = accept("run", "--nodes", nodes, "--site", site(IMAGE), "--dry-run")
        assert done.code == 0, done.err
        assert "machine a4-highgpu-8g" in done.out
        assert "over kubernetes" in done.out

    def test_is_not_guessed_if_no_node_shows_gpus(
        self, server: ApiServer, site: Callable[[str], Path]
    ) -> None:
        server.answer_with("/api/v1/nodes", {"items": [node("n1")]})
        words = ("run", "--nodes", "2", "--site", site(IMAGE))
        refused(*words, code=Exit.NOT_STARTED, error="E-KUBE-MACHINE-UNKNOWN")

    def test_must_be_named_if_no_cluster_can_be_reached(
        self, site: Callable[[str], Path], runs: Path
    ) -> None:
        words = ("run", "--nodes", "64", "--site", site(IMAGE))
        refused(*words, code=Exit.NOT_STARTED, error="E-KUBE-CONFIG-MISSING")
        assert not runs.exists()

    def test_of_all_nodes_comes_from_the_cluster(
        self, server: ApiServer, site: Callable[[str], Path]
    ) -> None:
        server.answer_with("/version", {"gitVersion": "v1.34.0"})
        words = ("run", "--nodes", "all", "--site", site(IMAGE))
        error = refused(*words, code=Exit.NOT_STARTED, error="E-KUBE-NODES-NONE-FREE")
        assert "a4-highgpu-8g" in error

    def test_is_not_requested_for_options_that_are_refused(
        self, server: ApiServer, site: Callable[[str], Path]
    ) -> None:
        refused("run", "--nodes", "2", error="E-SITE-NO-IMAGE")
        words = ("--site", site(IMAGE), "--nodes")
        refused("run", *words, "all", "--hosts", "a,b", error="E-NODES-ALL")
        for nodes in ("64", "n1,n2"):
            refused("render", *words, nodes, error="E-MACHINE-MISSING")
        assert server.seen == []


@pytest.mark.usefixtures("elsewhere")
class TestBackendAndHosts:
    @pytest.mark.parametrize(
        ("options", "error"),
        [
            (["--backend", "local", "--hosts", "a,b"], "E-LOCAL-HOSTS"),
            (["--backend", "local", "--hosts", "a"], "E-LOCAL-HOSTS"),
            (["--backend", "local", "--nodes", "a,b"], "E-LOCAL-HOSTS"),
            (["--backend", "local", "--nodes", "2"], "E-LOCAL-HOSTS"),
            (["--backend", "local", "--nodes", "all"], "E-NODES-ALL"),
            (["--backend", "ssh"], "E-SSH-NO-HOSTS"),
            (["--backend", "ssh", "--nodes", "2"], "E-SSH-NO-HOSTS"),
            (["--backend", "ssh", "--nodes", "all"], "E-NODES-ALL"),
            (["--backend", "pbs"], "E-OPTION-BACKEND"),
            (["--backend", "pbs", "--nodes", "2"], "E-OPTION-BACKEND"),
            (["--backend", "slurm"], "E-NODES-UNKNOWN"),
        ],
    )
    @pytest.mark.parametrize("machine", [[], ["--machine", "cpu"]], ids=["detected", "named"])
    @pytest.mark.parametrize("dry", [[], ["--dry-run"]], ids=["run", "dry-run"])
    def test_that_contradict_each_other_are_refused(
        self, options: list[str], error: str, machine: list[str], dry: list[str], runs: Path
    ) -> None:
        refused("run", *options, *machine, *dry, error=error)
        assert not runs.exists()

    def test_a_local_run_ignores_hosts_of_the_site_file(self, site: Callable[[str], Path]) -> None:
        done = accept(
            *("run", "--machine", "cpu", "--backend", "local", "--dry-run"),
            *("--site", site("ssh: {hosts: [a, b]}\n")),
        )
        assert done.code == 0, done.err
        assert "1 node over local" in done.out


class TestRenderToStdout:
    """Helm values are for clusters; other back ends need a folder."""

    @pytest.mark.parametrize("options", [["--hosts", "a,b"], [], ["--hosts", "a,b", "--json"]])
    def test_of_a_run_without_a_cluster_is_refused(self, options: list[str]) -> None:
        refused("render", "--machine", "cpu", *options, error="E-HELM-BACKEND")

    def test_into_a_folder_on_a_full_disk_leaves_nothing(self, tmp_path: Path) -> None:
        out = tmp_path / "out"
        with full_disk(free=20_000):
            refused("render", "--machine", "cpu", "--out", out, error="E-OUTPUT-WRITE")
        assert list(tmp_path.iterdir()) == []


#: The answers of a host with a driver for eight GPUs, and of a host without GPUs.
EIGHT = {"mpirun": ["5.0.8"], "torch": ["2.9"], "mpi4py": ["4.1"], "gpus": ["8"], "pci": ["8"]}
NONE = {**EIGHT, "gpus": ["0"], "pci": ["0"]}


class TestGpusOfThisMachine:
    """If the machine has GPUs, at least one must be detected before any measurement."""

    @pytest.mark.parametrize("machine", ["h100-8", "gpu"])
    def test_a_gpu_machine_without_any_does_not_start(
        self, machine: str, runs: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("accept.backends.local.tools_here", lambda _: NONE)
        words = ("run", "--machine", machine, "--quiet")
        refused(*words, code=Exit.NOT_STARTED, error="E-LOCAL-NO-GPU")
        assert rundir.listed() == ()

    @pytest.mark.parametrize(
        "found", [{"gpus": ["4"], "pci": ["8"]}, {"gpus": ["0"], "pci": ["8"]}, {"gpus": ["4"]}]
    )
    def test_fewer_than_the_machine_has_are_judged(
        self, found: dict[str, list[str]], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("accept.backends.local.tools_here", lambda _: {**NONE, **found})
        monkeypatch.setattr("accept.backends.local.new_keys", lambda *_: KEYS)
        started = []
        monkeypatch.setattr(
            "accept.backends.local.subprocess.run", lambda *args, **_: started.append(args)
        )
        assert accept("submit", "--machine", "h100-8", "--quiet").code == 0
        assert started

    @pytest.mark.parametrize(
        ("found", "runs_none"), [(NONE, True), ({**EIGHT, "gpus": ["4"]}, False)]
    )
    def test_doctor_lists_the_checks_that_need_what_is_missing(
        self, found: dict[str, list[str]], *, runs_none: bool, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("accept.backends.local.tools_here", lambda _: found)
        done = accept("doctor", "--machine", "h100-8", "--json")
        assert done.code == Exit.NOT_STARTED
        needs = {need["code"]: need for need in json.loads(done.out)["needs"]}
        gpus = needs[Requirement.GPUS]
        assert not gpus["good"]
        assert ("inventory" in gpus["checks"]) is bool(gpus["checks"]) is runs_none


def blanks() -> Iterator[tuple[str, ...]]:
    """Yield every command with one blank option, and with blank arguments."""
    group = parsers()
    for name, command in group.commands.items():
        options = [p for p in command.params if isinstance(p, TyperOption) and not p.is_flag]
        yield from ((name, f"{option.opts[0]}=") for option in options)
        if arguments := [p for p in command.params if p.param_type_name == "argument"]:
            yield (name, *[""] * len(arguments))


@pytest.mark.usefixtures("elsewhere")
class TestEmptyValues:
    """An unset shell variable never starts a run."""

    @pytest.mark.parametrize("blank", ["", " "], ids=["empty", "blank"])
    def test_are_refused_by_every_command(self, blank: str) -> None:
        for command, *rest in blanks():
            refused(command, *(f"{word}{blank}" for word in rest), error="E-OPTION-EMPTY")

    @pytest.mark.parametrize(
        ("words", "named"),
        [
            *((["run", option, ""], option) for option in ("--machine", "--hosts", "--rounds")),
            (["submit", ""], "submit"),
            (["run", "--set", "connectivity.pings=1", "--set", ""], "--set"),
        ],
    )
    def test_are_refused_with_the_word_before(self, words: list[str], named: str) -> None:
        assert named in refused(*words, error="E-OPTION-EMPTY")


@pytest.mark.usefixtures("elsewhere")
class TestNonsense:
    """A dry run refuses all that the run would refuse, and meaningless options."""

    @pytest.mark.parametrize(
        ("options", "error"),
        [
            (["--attempt", "../../x"], "E-ATTEMPT-NAME"),
            (["--attempt", "last"], "E-ATTEMPT-NAME"),
            (["--release", "A B"], "E-KUBE-NAME"),
            (["--release=-x"], "E-KUBE-NAME"),
            (["--namespace", "a/../b"], "E-KUBE-NAME"),
            (["--inject", "wrong@nosuch:1"], "E-FAULT-HOST"),
            (["--inject", "wrong@nosuch:1", "--inject", "hang@nosuch"], "E-FAULT-HOST"),
            (["--set", "connectivity.pings=999999999999"], "E-PARAM-INVALID"),
            (["--set", "train.minutes=1e18"], "E-PARAM-INVALID"),
            (["--set", "all-reduce.max=999999999999T"], "E-PARAM-INVALID"),
            (["--set", "all-reduce.iters=99999999999"], "E-PARAM-INVALID"),
            (["--set", "health.limitedShare=1e300"], "E-PARAM-INVALID"),
            (["--expect", "all-reduce@8G>=-1"], "E-EXPECT-ALWAYS-MET"),
            (["--expect", "all-reduce@8G>=0"], "E-EXPECT-ALWAYS-MET"),
            (["--expect", "connectivity<=1e308"], "E-EXPECT-ALWAYS-MET"),
        ],
    )
    def test_is_refused_by_run_and_dry_run(
        self, options: list[str], error: str, runs: Path
    ) -> None:
        for dry in ([], ["--dry-run"]):
            refused("run", "--machine", "cpu", *options, *dry, error=error)
        assert not runs.exists()

    def test_more_gpus_than_any_node_has_are_refused(self) -> None:
        words = ("run", "--machine", "gpu", "--dry-run", "--gpus-per-node")
        assert accept(*words, 64).code == 0
        refused(*words, 65, error="E-GPUS-PER-NODE")

    def test_bounds_that_can_fail_are_accepted(self) -> None:
        for text in ("all-reduce@1M>=0.1", "all-reduce.wrong@1M<=0", "connectivity<=1e6"):
            done = accept("run", "--machine", "cpu", "--expect", text, "--dry-run")
            assert done.code == 0, done.err

    def test_a_fault_on_this_machine_is_planned(self) -> None:
        fault = f"wrong@{os.uname().nodename}:1"
        assert accept("run", "--machine", "cpu", "--inject", fault, "--dry-run").code == 0

    def test_an_existing_name_is_refused(self) -> None:
        rundir.create("mine")
        words = ("run", "--machine", "cpu", "--attempt", "mine")
        for dry in ([], ["--dry-run"]):
            refused(*words, *dry, error="E-ATTEMPT-EXISTS")

    def test_a_name_that_is_too_long_for_pods_is_refused(self, site: Callable[[str], Path]) -> None:
        words = ("run", "-m", "cpu", "-n", 2, "--site", site(IMAGE), "--dry-run", "--release")
        assert accept(*words, "a" * 20).code == 0
        refused(*words, "a" * 60, error="E-KUBE-NAME-LONG")

    def test_a_limit_in_a_site_file_is_named_with_its_line(
        self, site: Callable[[str], Path]
    ) -> None:
        text = "parameters:\n  connectivity:\n    pings: 999999999999\n"
        words = ("run", "--machine", "cpu", "--site", site(text), "--dry-run")
        assert "site.yaml:3" in refused(*words, error="E-VALUE-INVALID")

    @pytest.mark.parametrize(
        ("words", "named"),
        [
            ("run -m cpu --set all-reduce.max=1Z", "all-reduce.max"),
            ("run -m cpu --set health.limited_share=0.02", "limitedShare"),
            ("run -m cpu --set gemm.sise=1", "size"),
            ("run -m cpu --deadline 5x", "--deadline"),
            ("clean --older-than 5x", "--older-than"),
        ],
    )
    def test_what_is_wrong_is_named_and_a_hint_is_given_once(self, words: str, named: str) -> None:
        error = refused(*words.split())
        assert named in error
        assert error.count("such as") + error.count("known keys") == 1

    @pytest.mark.parametrize(
        ("words", "error"),
        [
            (["render", "-m", "cpu", "-n", "2", "--backend", "pbs"], "E-OPTION-BACKEND"),
            (["doctor", "--rbac", "--namespace", "x\ny: z"], "E-KUBE-NAME"),
            (["baseline", ".", "--out", "x.txt"], "E-BASELINE-FILE"),
        ],
    )
    @pytest.mark.usefixtures("working")
    def test_is_refused_by_other_commands(self, words: list[str], error: str) -> None:
        refused(*words, error=error)
        assert not Path("x.txt").exists()
