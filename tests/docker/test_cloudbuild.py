"""cloudbuild.yml: its references exist, and its final output fits into a site file.

Its build step is run for real in tests/cluster/test_image.py.
"""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest
import yaml
from tests.factories import cloudbuild
from tests.factories.paths import ROOT

from accept import __version__

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


def test_tests_the_image_before_it_is_pushed(tmp_path: Path) -> None:
    names = list(cloudbuild.steps())
    assert names.index("build") < names.index("self-test") < names.index("push")
    step = cloudbuild.steps()["self-test"]
    docker = tmp_path / "docker"
    # The last argument is the script; its files come from standard input.
    docker.write_text(
        f'#!/bin/sh\nprintf "%s " "$@" >> {tmp_path}/words\ntar -tf - >> {tmp_path}/files\n'
        f"[ ! -e {tmp_path}/broken ]\n"
    )
    docker.chmod(0o755)

    def run() -> int:
        return subprocess.run(
            [str(step.entrypoint), *step.args],
            env={"PATH": f"{tmp_path}:{os.environ['PATH']}"},
            cwd=ROOT,
            capture_output=True,
            check=False,
        ).returncode

    assert run() == 0
    words = (tmp_path / "words").read_text()
    assert [user in words for user in ("--user 0 ", "--user 1000 ")] == [True, True]
    assert "self_test.sh gpu" in words
    assert {"docker/self_test.sh", "launchers/pod_entrypoint.sh"} <= {
        *(tmp_path / "files").read_text().splitlines()
    }
    (tmp_path / "broken").touch()
    assert run() != 0


def test_pushes_the_tags_that_it_built() -> None:
    steps = cloudbuild.steps()
    built = {word.removeprefix("--tag=") for word in steps["build"].args if "--tag=" in word}
    pushed = {step.args[1] for step in steps.values() if step.args[0] == "push"}
    assert built == pushed
    images = {
        cloudbuild.filled(text, cloudbuild.values()) for text in cloudbuild.document()["images"]
    }
    assert images <= built
    assert list(steps)[-1] == "digest"


def test_the_cache_is_a_tag_that_an_earlier_version_has_left() -> None:
    def cache(version: str) -> list[str]:
        words = cloudbuild.steps(_VERSION=version)["build"].args
        return [word.partition("=")[2] for word in words if word.startswith("--cache-from=")]

    assert cache("1.0.0") == cache("2.0.0")
    (name,) = cache("2.0.0")
    assert f"--tag={name}" in cloudbuild.steps(_VERSION="1.0.0")["build"].args


@pytest.fixture
def digest_step_output(tmp_path: Path) -> str:
    """Return the output of the last step if docker has the image also from another registry."""
    step = cloudbuild.steps()["digest"]
    name = cloudbuild.values()["_NAME"]
    docker = tmp_path / "docker"
    docker.write_text(f"#!/bin/sh\necho other.example/accept@{DIGEST}\necho {name}@{DIGEST}\n")
    docker.chmod(0o755)
    done = subprocess.run(
        [str(step.entrypoint), *step.args],
        env={"PATH": f"{tmp_path}:{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout


def test_ends_with_lines_for_a_site_file(digest_step_output: str) -> None:
    _, _, piece = digest_step_output.partition("\n")
    name = cloudbuild.values()["_NAME"]
    assert yaml.safe_load(piece) == {"kubernetes": {"image": f"{name}@{DIGEST}"}}
