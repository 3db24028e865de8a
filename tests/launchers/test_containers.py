"""container.sh: the command line of each runtime. The runtimes are stand-ins that print theirs."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from tests.factories.command_line import refused
from tests.factories.shell import run_program, write_program

from accept.config import resources
from accept.plan.bundle import container_env
from accept.plan.resolve import Options, resolve

IMAGE = "registry.example/accept:1.0"
#: Devices that this host has, and one that it lacks.
DEVICES = "/dev/null /dev/zero /dev/no-such-device"

DOCKER = """\
docker run --rm --network=host --pid=host --ipc=host --uts=host --entrypoint=
--security-opt=label=disable --security-opt=seccomp=unconfined
--cap-add=IPC_LOCK --cap-add=SYS_NICE --cap-add=SYS_PTRACE --cap-add=SYSLOG --user=0:0
--ulimit=memlock=-1:-1 --gpus=all --device=/dev/zero --device=/dev/null
--workdir=FOLDER --mount=type=bind,source=FOLDER,target=FOLDER
--mount=type=bind,source=/lustre,target=/scratch,readonly
--mount=type=bind,source=/data,target=/data
registry.example/accept:1.0 /bin/sh ./coordinate.sh two words
"""
PODMAN = """\
podman run --rm --network=host --pid=host --ipc=host --uts=host --entrypoint=
--security-opt=label=disable --security-opt=seccomp=unconfined
--cap-add=IPC_LOCK --cap-add=SYS_NICE --cap-add=SYS_PTRACE --cap-add=SYSLOG --user=0:0
--device=nvidia.com/gpu=all --device=/dev/zero --device=/dev/null
--workdir=FOLDER --mount=type=bind,source=FOLDER,target=FOLDER
--mount=type=bind,source=/lustre,target=/scratch,readonly
--mount=type=bind,source=/data,target=/data
registry.example/accept:1.0 /bin/sh ./coordinate.sh two words
"""
APPTAINER = """\
apptainer exec --cleanenv --no-home --writable-tmpfs --nv
--pwd=FOLDER --bind=FOLDER:FOLDER --bind=/lustre:/scratch:ro --bind=/data:/data
docker://registry.example/accept:1.0 /bin/sh ./coordinate.sh two words
"""

Run = Callable[..., subprocess.CompletedProcess[str]]


def settings(site: Path, *, runtime: str, image: str = IMAGE, machine: str = "gpu") -> str:
    """Return the settings of a run on a host, as the bundle of the run has them."""
    mounts = "[/data, '/lustre:/scratch:ro']"
    site.write_text(f"container: {{runtime: {runtime}, mounts: {mounts}}}\n")
    options = Options(machine=machine, hosts=("h1",), site=str(site), image=image)
    return container_env(resolve(options))


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """Return a function that runs sh lines after container.sh; `runtimes` are those on PATH."""

    def call(
        lines: str, *, env: str, runtimes: Sequence[str] = ("apptainer", "docker", "podman")
    ) -> subprocess.CompletedProcess[str]:
        programs = tmp_path / "bin"
        for name in runtimes:
            write_program(programs / name, f'case $1 in info) ;; *) echo {name} "$@" ;; esac')
        for name in ("cat", "id", "printf", "tail"):
            (programs / name).symlink_to(f"/usr/bin/{name}")
        functions = (resources.launchers() / "container.sh").read_text()
        root = "id() { echo 0; }"
        text = f"{env}{functions}\ncontainer_devices='{DEVICES}'\n{root}\n{lines}"
        return run_program(["/bin/sh", "-c", text], cwd=tmp_path, env={"PATH": str(programs)})

    return call


@pytest.mark.parametrize(
    ("runtime", "expected"),
    [("docker", DOCKER), ("podman", PODMAN), ("apptainer", APPTAINER)],
)
def test_each_runtime_has_its_command_line(
    runtime: str, expected: str, run: Run, tmp_path: Path
) -> None:
    env = settings(tmp_path / "site.yaml", runtime=runtime)
    words = f"find_runtime && in_container {tmp_path} /bin/sh ./coordinate.sh 'two words'"
    shown = run(words, env=env).stdout
    assert shown.split() == expected.replace("FOLDER", str(tmp_path)).split()


@pytest.mark.parametrize("runtime", ["docker", "podman", "apptainer"])
def test_no_gpus_are_requested_for_a_machine_without(
    runtime: str, run: Run, tmp_path: Path
) -> None:
    env = settings(tmp_path / "site.yaml", runtime=runtime, machine="cpu")
    shown = run("find_runtime && in_container '' true", env=env).stdout.split()
    assert not {"--nv", "--gpus=all", "--device=nvidia.com/gpu=all"} & set(shown)


def test_docker_runs_as_the_user_of_the_host_who_gets_a_name(run: Run, tmp_path: Path) -> None:
    env = settings(tmp_path / "site.yaml", runtime="docker")
    user = "id() { case $1 in -un) echo ann ;; *) echo 1001 ;; esac; }"
    shown = run(f"{user}; find_runtime && in_container {tmp_path} true", env=env).stdout.split()
    assert {"--user=1001:1001", f"--volume={tmp_path}/passwd:/etc/passwd:ro"} <= set(shown)
    line = (tmp_path / "passwd").read_text().splitlines()[1]
    assert line == f"ann:x:1001:1001::{tmp_path}:/bin/sh"


@pytest.mark.parametrize(
    ("runtimes", "found"),
    [
        (("apptainer", "docker", "podman"), "docker"),
        (("apptainer", "podman"), "podman"),
        (("apptainer",), "apptainer"),
    ],
)
def test_a_runtime_of_the_host_is_found(
    runtimes: Sequence[str], found: str, run: Run, tmp_path: Path
) -> None:
    env = settings(tmp_path / "site.yaml", runtime="null")
    assert run('find_runtime && echo "$runtime"', env=env, runtimes=runtimes).stdout == f"{found}\n"


def test_a_file_is_an_image_of_apptainer(run: Run, tmp_path: Path) -> None:
    image = tmp_path / "accept.sif"
    env = settings(tmp_path / "site.yaml", runtime="apptainer", image=str(image))
    shown = run(f"find_runtime; full_image; image_state; : > {image}; image_state", env=env).stdout
    assert shown.splitlines() == [str(image), f"missing {image} is not readable", "present"]


class TestErrors:
    """A run that cannot start ends with one clear error."""

    @pytest.mark.parametrize(
        ("site", "options", "code"),
        [
            ("{runtime: rkt, image: a}", [], "E-VALUE-INVALID"),
            ("{runtime: podman}", [], "E-CONTAINER-NO-IMAGE"),
            ("{runtime: pyxis, image: a}", [], "E-CONTAINER-RUNTIME"),
            ("{image: a, mounts: [data]}", [], "E-VALUE-INVALID"),
            ("{image: -v}", [], "E-VALUE-INVALID"),
            ("{}", ["--image", "--privileged"], "E-CONTAINER-IMAGE-NAME"),
        ],
    )
    def test_in_the_site_file(
        self, site: str, options: Sequence[str], code: str, tmp_path: Path
    ) -> None:
        (tmp_path / "site.yaml").write_text(f"container: {site}\n")
        words = ("run", "-m", "cpu", "--dry-run", "--site", tmp_path / "site.yaml", *options)
        refused(*words, error=code, code=2)

    def here(self, script: str, folder: Path, monkeypatch: pytest.MonkeyPatch, code: str) -> str:
        """Start a run on this machine with a stand-in for podman, and return the error."""
        write_program(folder / "podman", script)
        (folder / "site.yaml").write_text("container: {runtime: podman}\n")
        monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin" if script else "/nothing")
        monkeypatch.setenv("ACCEPT_RUNS", f"{folder}/runs")
        words = ("run", "-m", "cpu", "--site", folder / "site.yaml", "--image", IMAGE, "--quiet")
        return refused(*words, error=code, code=4)

    def test_no_runtime(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.here("", tmp_path, monkeypatch, "E-CONTAINER-RUNTIME-MISSING")

    def test_an_image_that_does_not_start(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        script = '[ "$1" != run ] || { echo "manifest unknown" >&2; exit 125; }'
        shown = self.here(script, tmp_path, monkeypatch, "E-CONTAINER-IMAGE")
        assert "manifest unknown" in shown

    def test_an_image_without_python(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        script = '[ "$1" != run ] || echo "pci 0"'
        self.here(script, tmp_path, monkeypatch, "E-CONTAINER-IMAGE-LACKS")


def test_the_option_replaces_the_image_of_every_back_end(tmp_path: Path) -> None:
    site = tmp_path / "site.yaml"
    site.write_text("kubernetes: {image: a:1}\ncontainer: {image: b:1}\n")

    def images(**more: Any) -> tuple[str, str | None, str | None]:
        run = resolve(Options(machine="cpu", site=str(site), image="c:1", **more))
        return run.backend, run.site.kubernetes.image, run.site.container.image

    assert images(nodes=2) == ("kubernetes", "c:1", "c:1")
    assert images(hosts=("h1",)) == ("ssh", "a:1", "c:1")
    site.write_text("{}\n")
    assert images() == ("local", None, "c:1")
