"""cloudbuild.yml: its references exist, and its final output fits into a site file.

Its build step is run for real in tests/cluster/test_image.py.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml
from tests.factories import cloudbuild
from tests.factories.paths import ROOT
from tests.factories.shell import run_program, write_program

from accept import __version__
from accept.plan.node_code import CHART_FOLDER

#: https://cloud.google.com/build/docs/build-config-file-schema
KEYS = {"artifacts", "availableSecrets", "images", "logsBucket", "options", "queueTtl"} | {
    "secrets", "serviceAccount", "steps", "substitutions", "tags", "timeout",
}  # fmt: skip
STEP_KEYS = {"allowFailure", "args", "automapSubstitutions", "dir", "entrypoint", "env", "id"} | {
    "name", "script", "secretEnv", "timeout", "volumes", "waitFor",
}  # fmt: skip
DIGEST = f"sha256:{'1a' * 32}"


def test_has_only_keys_that_cloud_build_knows() -> None:
    document = cloudbuild.document()
    assert set(document) <= KEYS
    assert [set(step) - STEP_KEYS for step in document["steps"]] == [set()] * len(document["steps"])


def test_every_substitution_has_a_default_and_every_reference_a_substitution() -> None:
    """An undefined name fails a build that `gcloud builds submit` started."""
    document = cloudbuild.document()
    own = document.pop("substitutions")
    assert all(re.fullmatch(r"_[A-Z0-9_]+", name) for name in own)
    assert all(isinstance(value, str) for value in own.values())
    used = cloudbuild.names(yaml.safe_dump(document))
    within = {name for value in own.values() for name in cloudbuild.names(value)}
    assert used | within <= set(own) | set(cloudbuild.BUILT_IN)
    # One that nothing uses fails the build as well.
    assert set(own) <= used | within
    assert document["options"]["dynamicSubstitutions"] is True


def test_no_value_is_left_unfilled() -> None:
    known = cloudbuild.values()
    assert [value for value in known.values() if "$" in value] == []
    assert known["_NAME"] == "region1-docker.pkg.dev/project1/accept/accept"
    assert known["_VERSION"] == __version__


def test_has_a_timeout_and_names_a_machine_type() -> None:
    document = cloudbuild.document()
    assert re.fullmatch(r"[1-9]\d*s", document["timeout"])
    assert document["options"]["machineType"]


@pytest.mark.parametrize(("region", "code"), [("global", 1), ("us-central1", 0)])
def test_refuses_the_region_global_first(region: str, code: int) -> None:
    """It is the default of `gcloud builds submit`, and no repository can be there."""
    (first, *_) = cloudbuild.steps(LOCATION=region).values()
    done = subprocess.run([str(first.entrypoint), *first.args], capture_output=True, check=False)
    assert (done.returncode, b"--region=" in done.stderr) == (code, bool(code))


class Project:
    """A project of Cloud Build: its steps run in one folder, with a stand-in for docker."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "bin").mkdir()
        for name in ("docker", "launchers"):
            shutil.copytree(ROOT / name, folder / name)
        self.log = folder / "calls"
        log = f'printf "%s\\n" "$*" >> {self.log}'
        self.tool("docker", f"{log}; cat >/dev/null; [ ! -e {folder}/broken ]")

    def tool(self, name: str, script: str) -> None:
        """Put a program on the PATH of the steps."""
        write_program(self.folder / "bin" / name, script)

    def run(self, *names: str, **given: str) -> subprocess.CompletedProcess[str]:
        """Run steps one after the other until one fails; return the last."""
        for name in names:
            step = cloudbuild.steps(**given)[name]
            done = run_program(
                [step.entrypoint, *step.args],
                cwd=self.folder,
                env={"PATH": f"{self.folder / 'bin'}:{os.environ['PATH']}"},
            )
            if done.returncode:
                break
        return done

    def calls(self, *words: str) -> list[str]:
        """Return the calls of docker that contain all these words, in order."""
        lines = self.log.read_text().splitlines() if self.log.exists() else []
        return [line for line in lines if all(word in line.split() for word in words)]


@pytest.fixture
def project(tmp_path: Path) -> Project:
    return Project(tmp_path)


#: The steps that make an image, in the order of the file.
MAKE = ("code", "build", "self-test", "push")
NAME = cloudbuild.values()["_NAME"]
TAG = f"{NAME}:{__version__}-gpu"
PLATFORMS = pytest.mark.parametrize("architectures", [("amd64",), ("arm64",), ("amd64", "arm64")])


def test_the_steps_are_in_this_order() -> None:
    assert tuple(cloudbuild.steps()) == ("region", *MAKE, "digest")


@PLATFORMS
def test_builds_tests_and_pushes_an_image_for_each_platform_under_one_tag(
    project: Project, architectures: tuple[str, ...]
) -> None:
    platforms = [f"linux/{name}" for name in architectures]
    assert project.run(*MAKE, _PLATFORMS=" ".join(platforms)).returncode == 0
    emulated = project.calls("--privileged", "arm64")
    assert len(emulated) == ("arm64" in architectures)
    tags = [f"{TAG}-{name}" for name in architectures]
    for platform, tag in zip(platforms, tags, strict=True):
        (built,) = project.calls("build", f"--platform={platform}")
        assert {"--target=gpu", "--load"} <= set(built.split())
        for user in ("0", "1000"):
            (tested,) = project.calls("run", "--platform", platform, user, tag)
            assert "self_test.sh gpu" in tested
        (pushed,) = project.calls("push", tag)
        assert project.calls().index(tested) < project.calls().index(pushed)
    assert project.calls("imagetools") == [f"buildx imagetools create --tag {TAG} {' '.join(tags)}"]


def test_pushes_nothing_if_a_step_before_fails(project: Project) -> None:
    (project.folder / "broken").touch()
    assert project.run(*MAKE).returncode != 0
    assert project.calls("push") == []


def test_the_self_test_gets_the_files_that_it_needs(project: Project) -> None:
    files = project.folder / "files"
    project.tool("docker", f"tar -tf - >> {files}")
    (project.folder / "tag-end").touch()
    assert project.run("self-test").returncode == 0
    assert {"docker/self_test.sh", "launchers/pod_entrypoint.sh"} <= {
        *files.read_text().splitlines()
    }


def test_the_code_of_the_checkout_is_in_an_image_whose_tag_shows_it(project: Project) -> None:
    """As `accept` recognizes it: plan/helm_values.py."""
    code = project.folder / "made" / "accept" / "_assets" / "chart" / CHART_FOLDER
    code.mkdir(parents=True)
    (code / "sha256").write_text(f"{'ab' * 32}\n")
    # Stands in for pip and for unpacking the wheel that it makes.
    project.tool("python3", "case $2 in pip) mkdir wheel ;; zipfile) mv made/accept wheel ;; esac")
    assert project.run(*MAKE, "digest", _CODE="1").returncode == 0
    (built,) = project.calls("--file=-")
    assert f"--tag={TAG}-code-abababababab-amd64" in built.split()
    assert built.split()[-1] == "accept-code"
    (joined,) = project.calls("create")
    assert f"{TAG}-code-abababababab" in joined.split()


def test_without_the_code_no_second_image_is_built(project: Project) -> None:
    project.tool("python3", "exit 1")
    assert project.run(*MAKE).returncode == 0
    assert project.calls("--file=-") == []


def test_the_cache_is_a_tag_that_an_earlier_version_has_left(project: Project) -> None:
    for version in ("1.0.0", "2.0.0"):
        assert project.run(*MAKE, _VERSION=version).returncode == 0
    first, second = project.calls("--load")
    (cache,) = (word for word in second.split() if word.startswith("--cache-from="))
    assert f"--tag={cache.removeprefix('--cache-from=')}" in first.split()


def test_ends_with_lines_for_a_site_file(project: Project) -> None:
    project.tool("docker", f"echo {DIGEST}")
    (project.folder / "tag-end").touch()
    _, _, piece = project.run("digest").stdout.partition("\n")
    assert yaml.safe_load(piece) == {"kubernetes": {"image": f"{TAG}@{DIGEST}"}}
