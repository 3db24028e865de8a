"""`accept init`: a first site file from what hosts over ssh or Slurm show."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
import yaml
from tests.factories.command_line import accept, refused
from tests.factories.standin_slurm import StandinSlurm
from tests.factories.standin_ssh import StandinSsh, standin_ssh

from accept import config
from accept.backends.host_survey import find, fitting_machines, scalar
from accept.config.site import Site
from accept.core.error_codes import Code
from accept.core.errors import Exit

pytestmark = pytest.mark.usefixtures("runs", "working")

#: The answer of a host that lacks nothing.
WHOLE = {
    "mpirun": ["5.0.8"],
    "torch": ["2.6"],
    "gpus": ["8"],
    "pci": ["8"],
    "gpu-name": ["NVIDIA H100 80GB HBM3"],
    "interface": ["bond0"],
    "scratch": ["exec /tmp", "exec /var/tmp"],
}


@pytest.fixture
def ssh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> StandinSsh:
    """Return hosts over ssh, which are this machine."""
    return standin_ssh(tmp_path / "ssh", monkeypatch)


@pytest.fixture
def slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> StandinSlurm:
    """Return a cluster of three nodes, one of them drained."""
    monkeypatch.setenv("PATH", f"{tmp_path}/slurm{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setattr("accept.backends.slurm.client._PAUSE", 0.0)
    return StandinSlurm(tmp_path / "slurm")


def site_at(path: Path) -> Site:
    """Read a site file as a run does."""
    return config.load_site(str(path)).value


@pytest.mark.usefixtures("ssh")
class TestOverSsh:
    @pytest.mark.rare
    def test_a_run_finds_the_file_and_its_hosts(self, working: Path) -> None:
        done = accept("init", "--hosts", "node[01-16]")
        assert (done.code, done.out) == (0, "site.yaml\n"), done.err
        assert site_at(working / "site.yaml").ssh.hosts == ("node[01-16]",)
        planned = json.loads(accept("run", "-m", "cpu", "--dry-run", "--json").out)
        assert (planned["backend"], planned["nodes"]) == ("ssh", 16)

    def test_the_next_command_is_the_doctor_of_the_new_file(self) -> None:
        assert "next: accept doctor\n" in accept("init", "--hosts", "n1").err
        shown = accept("init", "own.yaml", "--hosts", "n1", "-m", "h100-8").err
        assert "next: accept doctor --machine h100-8 --site own.yaml\n" in shown

    def test_options_answer_what_hosts_do_not_show(self, working: Path) -> None:
        options = ("--image", "registry.example/accept:1.0", "--results", "gs://bucket/x")
        accept("init", "--hosts", "n1", *options)
        site = site_at(working / "site.yaml")
        assert (site.container.image, site.results.location) == (options[1], options[3])

    def test_hosts_without_an_answer_stay_in_the_file(self, working: Path, ssh: StandinSsh) -> None:
        ssh.take_down("n2")
        done = accept("init", "--hosts", "n[1-3]")
        assert done.code == 0
        assert "no answer from n2" in done.err
        assert site_at(working / "site.yaml").ssh.hosts == ("n[1-3]",)

    def test_an_error_is_reported_if_no_host_answers(self, working: Path, ssh: StandinSsh) -> None:
        ssh.take_down("n1")
        refused("init", "--hosts", "n1", error=Code.SSH_NO_ANSWER, code=Exit.NOT_STARTED)
        assert list(working.iterdir()) == []


class TestTheFile:
    @pytest.fixture(autouse=True)
    def existing(self, working: Path, ssh: StandinSsh) -> Path:
        """Return a site file that exists."""
        path = working / "site.yaml"
        path.write_text("mine\n")
        return path

    def test_is_never_replaced_by_itself(self, existing: Path) -> None:
        refused("init", "--hosts", "n1", error=Code.OUTPUT_EXISTS)
        printed = accept("init", "--hosts", "n1", "--dry-run").out
        made = json.loads(accept("init", "--hosts", "n1", "--dry-run", "--json").out)
        assert (made["site"], made["text"].strip()) == ("", printed.strip())
        assert yaml.safe_load(printed)["ssh"] == {"hosts": ["n1"]}
        assert existing.read_text() == "mine\n"

    def test_is_replaced_with_force(self, existing: Path) -> None:
        assert accept("init", "--hosts", "n1", "--force").code == 0
        assert site_at(existing).backend == "ssh"


class TestWithSlurm:
    def test_a_run_finds_the_file_and_its_partition(
        self, working: Path, slurm: StandinSlurm
    ) -> None:
        done = accept("init", "--partition", "gpu", "--account", "infra")
        assert done.code == 0, done.err
        assert "partition gpu: 3 nodes, 2 idle" in done.err
        site = site_at(working / "site.yaml")
        assert (site.backend, site.slurm.partition, site.slurm.account) == ("slurm", "gpu", "infra")
        planned = json.loads(accept("run", "-n", 2, "-m", "cpu", "--dry-run", "--json").out)
        assert planned["backend"] == "slurm"

    def test_the_default_partition_is_named(self, working: Path, slurm: StandinSlurm) -> None:
        assert accept("init", "--backend", "slurm").code == 0
        assert site_at(working / "site.yaml").slurm.partition == "gpu"

    def test_one_of_several_partitions_must_be_named(self, slurm: StandinSlurm) -> None:
        refused("init", "--partition", "gup", error=Code.SLURM_PARTITION)
        slurm.set("sinfo", "case $* in *%P*) echo gpu; echo cpu ;; esac")
        shown = refused("init", "--backend", "slurm", error=Code.SITE_QUESTION)
        assert "gpu, cpu" in shown


@pytest.mark.parametrize("name", ["local", "sssh"])
def test_a_back_end_without_a_cluster_is_refused(name: str) -> None:
    refused("init", "--backend", name, error=Code.OPTION_BACKEND)


class TestWhatHostsShow:
    def test_is_in_the_file_if_all_agree(self) -> None:
        found = find({"n1": WHOLE, "n2": WHOLE})
        assert (found.interface, found.scratch, found.gpus) == ("bond0", "/tmp", 8)
        assert found.remarks == ()

    def test_is_a_remark_if_they_differ(self) -> None:
        found = find(
            {"n1": WHOLE, "n2": {**WHOLE, "interface": ["eth0"], "gpus": ["7"], "pci": []}}
        )
        assert (found.interface, found.gpus) == ("", 0)
        assert len(found.remarks) == 2
        assert all("n2" in remark for remark in found.remarks)

    def test_has_an_mpirun_only_if_path_lacks_it(self) -> None:
        path = "/usr/lib64/openmpi/bin/mpirun"
        without = {key: value for key, value in WHOLE.items() if key != "mpirun"}
        assert find({"n1": {**WHOLE, "mpirun-path": [path]}}).mpirun == ""
        assert find({"n1": {**without, "mpirun-path": [path]}}).mpirun == path
        assert "n1" in find({"n1": without}).remarks[0]

    def test_has_the_first_folder_that_can_be_used(self) -> None:
        folders = ["unwritable /tmp", "noexec /var/tmp", "exec /scratch"]
        assert find({"n1": {**WHOLE, "scratch": folders}}).scratch == "/scratch"

    @pytest.mark.parametrize("gpu", ["NVIDIA H100 80GB HBM3", "h100", "H100"])
    def test_fits_machines_and_those_of_any_site_first(self, gpu: str) -> None:
        names = fitting_machines(gpu, 8)
        assert names[0] == "h100-8"
        assert "p5.48xlarge" in names
        assert not {"b200-8", "h200-8", "gpu"} & {*names}
        assert fitting_machines(gpu, 3) == ()

    @pytest.mark.parametrize(
        "text",
        ["a", "/tmp", "yes", "1", "a: b", "#x", "a\nb: c", "'", "[", "\x1b[31mred", "*x", ""],
    )
    def test_stays_one_yaml_text_whatever_it_is(self, text: str) -> None:
        assert isinstance(yaml.safe_load(f"key: {scalar(text)}")["key"], str)
