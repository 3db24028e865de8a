"""docker/Dockerfile: pinned base images, documented arguments, and no secrets.

Its target `cpu` is built for real in tests/cluster/test_image.py.
"""

from __future__ import annotations

import os
import re
import subprocess
import tomllib
from pathlib import Path

import pytest
import yaml
from tests.factories import cloudbuild, dockerfile
from tests.factories.paths import ROOT
from tests.factories.shell import write_program

README = (ROOT / "docker" / "README.md").read_text()
RELEASE = yaml.safe_load((ROOT / ".github" / "workflows" / "release.yml").read_text())
PINNED = re.compile(r"[\w./-]+:[\w.-]+@sha256:[0-9a-f]{64}")
SECRET = re.compile(r"passw|secret|token|credential|private|key", re.IGNORECASE)


def test_base_images_are_pinned_by_tag_and_digest() -> None:
    assert PINNED.fullmatch(dockerfile.arguments()["BASE"])
    own = dockerfile.stages()
    assert {base for base in own.values() if base not in own} == {"${BASE}", "${RUNTIME_BASE}"}
    assert dockerfile.arguments()["RUNTIME_BASE"] == "${BASE}"
    assert "latest" not in dockerfile.FILE.read_text()


def test_all_builders_use_the_same_gpu_base(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, script in (("docker", "exit 1"), ("podman", 'printf "%s\\n" "$@"')):
        write_program(tmp_path / name, script)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    command = ["bash", str(ROOT / ".ci" / "release"), "image", "gpu"]
    built = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    for name in ("BASE", "RUNTIME_BASE"):
        base = cloudbuild.values()[f"_{name}"]
        assert PINNED.fullmatch(base)
        assert f"{name}={base}" in built
        assert base in README
    assert f"VERSION={cloudbuild.values()['_VERSION']}" in built


def test_the_image_has_a_user_that_is_not_root() -> None:
    (system,) = [one.rest for one in dockerfile.instructions() if "openssh-server" in one.rest]
    assert "useradd --uid 1000" in system


def test_nccl_tests_are_compiled_for_all_gpus_unless_some_are_named() -> None:
    """An empty variable would replace the list of the Makefile."""
    (compiles,) = [one.rest for one in dockerfile.instructions() if "MPI_HOME" in one.rest]
    assert '[ -n "$NVCC_GENCODE" ] || unset NVCC_GENCODE;' in compiles


def test_only_packages_and_one_commit_are_fetched() -> None:
    """ADD would take URLs whose content can change; COPY takes stages only."""
    found = dockerfile.instructions()
    assert {one.word for one in found} <= {"ARG", "COPY", "FROM", "LABEL", "RUN", "WORKDIR"}
    assert all(one.rest.startswith("--from=") for one in found if one.word == "COPY")
    runs = " ".join(one.rest for one in found if one.word == "RUN")
    assert not re.search(r"\b(curl|wget|https?://)", runs)
    assert re.fullmatch(r"[0-9a-f]{40}", dockerfile.arguments()["NCCL_TESTS_COMMIT"])


def test_the_target_for_bases_with_torch_and_nccl_tests_compiles_and_copies_nothing() -> None:
    own = dockerfile.stages()
    stage, stages = "ngc", set()
    while stage in own:
        stages.add(stage)
        stage = own[stage]
    words = {one.word for one in dockerfile.instructions() if one.stage in stages}
    assert "nccl-tests" not in stages
    assert "COPY" not in words


def test_no_argument_and_no_label_is_a_secret() -> None:
    """Build arguments stay readable in the history of the image."""
    settings = [
        one.rest for one in dockerfile.instructions() if one.word in ("ARG", "ENV", "LABEL")
    ]
    assert [text for text in settings if SECRET.search(text.partition("=")[0])] == []


def test_host_keys_are_removed_in_the_layer_that_made_them() -> None:
    makers = [one.rest for one in dockerfile.instructions() if "openssh-server" in one.rest]
    assert makers
    assert all(re.search(r"rm -rf .*/etc/ssh/ssh_host_\*", text) for text in makers)


def test_every_build_argument_is_documented_with_its_default() -> None:
    rows = dict(re.findall(r"^\| `([A-Z][A-Z_]+)` \| `?([^`|]*?)`? \|", README, re.MULTILINE))
    assert rows == {name: value or "\u2013" for name, value in dockerfile.arguments().items()}


def test_every_target_is_documented() -> None:
    targets = set(dockerfile.stages()) - set(dockerfile.stages().values()) - {"nccl-tests"}
    assert targets == {"cpu", "gpu", "ngc"}
    assert all(f"| `{name}` |" in README for name in targets)


def test_packages_of_python_are_those_of_the_lock() -> None:
    locked: dict[str, set[str | None]] = {}
    for package in tomllib.loads((ROOT / "uv.lock").read_text())["package"]:
        locked.setdefault(package["name"], set()).add(package.get("version"))
    given = dockerfile.arguments()
    packages = f"{given['TORCH_PACKAGES']} {given['PIP_PACKAGES']}".split()
    wanted = dict(one.split("==") for one in packages)
    assert {"mpi4py", "numpy", "nvidia-ml-py", "obstore", "pillow", "torch", "torchvision"} == {
        *wanted
    }
    assert {name for name, version in wanted.items() if version not in locked[name]} == set()


def test_everything_that_pip_installs_by_default_has_a_hash_of_the_lock() -> None:
    first, *lines = (ROOT / "docker" / "requirements.txt").read_text().splitlines()
    given = dockerfile.arguments()
    assert first == f"# {given['TORCH_PACKAGES']} {given['PIP_PACKAGES']}"
    names = {line.partition("==")[0] for line in lines if "==" in line}
    assert names > {package.partition("==")[0] for package in first[2:].split()}
    hashes = set(re.findall(r"sha256:[0-9a-f]{64}", "\n".join(lines)))
    assert hashes <= set(re.findall(r"sha256:[0-9a-f]{64}", (ROOT / "uv.lock").read_text()))
    assert len(hashes) > len(names)


def test_builders_pass_only_known_arguments_and_stages() -> None:
    jobs = RELEASE["jobs"]
    texts = [step.get("run", "") for job in jobs.values() for step in job["steps"]]
    texts.append((ROOT / ".ci" / "release").read_text())
    texts.append(" ".join(cloudbuild.steps()["build"].args))
    # BuildKit's own: https://docs.docker.com/build/cache/backends/inline/
    known = {*dockerfile.arguments(), "BUILDKIT_INLINE_CACHE"}
    passed = {name for text in texts for name in re.findall(r"--build-arg[ =]\"?(\w+)=", text)}
    assert passed <= known
    # All arguments are substitutions, with the same defaults but for the bases.
    of_cloud_build = cloudbuild.values()
    own = {name for name in dockerfile.arguments() if not name.endswith("BASE")} - {"VERSION"}
    assert {name: of_cloud_build[f"_{name}"] for name in own} == {
        name: dockerfile.arguments()[name] for name in own
    }
    (build,) = (step for step in cloudbuild.document()["steps"] if step["id"] == "build")
    steps = " ".join(build["args"])
    assert {name for name in dockerfile.arguments() if f"={name}=${{_{name}}}" in steps} == {
        *dockerfile.arguments()
    }
    assert set(jobs["image"]["strategy"]["matrix"]["target"]) <= set(dockerfile.stages())
    assert cloudbuild.values()["_TARGET"] in dockerfile.stages()


def test_documents_every_substitution_of_cloud_build() -> None:
    rows = set(re.findall(r"^\| `(_[A-Z_]+)` \|", README, re.MULTILINE))
    assert rows == set(cloudbuild.document()["substitutions"])
