"""A release, built from a copy of the project, and the environment of a user who installed it."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
from tests.factories.paths import ROOT
from tests.factories.shell import run_program

#: The pinned uv, which `make setup` installs there.
UV = ROOT / ".tools" / "bin" / "uv"
OUR_VARIABLES = ("PYTHONPATH", "VIRTUAL_ENV", "UV_PROJECT_ENVIRONMENT")


def run(*command: str | Path, cwd: Path) -> str:
    """Run a command outside the checkout's own environment; return its stdout."""
    env = {name: value for name, value in os.environ.items() if name not in OUR_VARIABLES}
    done = run_program(command, cwd=cwd, env=env)
    assert done.returncode == 0, f"{command}: {done.returncode}\n{done.stdout}{done.stderr}"
    return done.stdout


def tracked(*folders: str) -> dict[str, Path]:
    """Return the files of `folders` that belong to the project, by their path in it."""
    listed = run("git", "ls-files", "-z", "-co", "--exclude-standard", *folders, cwd=ROOT)
    return {name: ROOT / name for name in listed.split("\0") if name and (ROOT / name).is_file()}


def release(folder: Path) -> Path:
    """Build the files of a release from a copy of the project; return their folder."""
    copy = folder / "copy"
    for name, path in tracked(".").items():
        target = copy / name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(path.read_bytes())
        target.chmod(path.stat().st_mode)
    (copy / ".tools").symlink_to(UV.parents[1].resolve())
    identity = ("-c", "user.name=a", "-c", "user.email=a@example.org")
    run("git", "init", "--quiet", cwd=copy)
    run("git", "add", "--all", cwd=copy)
    run("git", *identity, "commit", "--quiet", "--message=copy", cwd=copy)
    run("bash", ".ci/release", "files", cwd=copy)
    return copy / "dist"


@pytest.fixture(scope="session")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder with the files of a release."""
    return release(tmp_path_factory.mktemp("dist"))


@pytest.fixture(scope="session")
def wheel(dist: Path) -> Path:
    """Return the wheel of a release."""
    (wheel,) = dist.glob("gpu_accept-*-py3-none-any.whl")
    return wheel


@pytest.fixture(scope="session")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Create an environment with the wheel, without a network and without access to the checkout.

    Its dependencies are the locked ones, from the cache of uv, which `make setup` fills.
    """
    home = tmp_path_factory.mktemp("installed")
    locked = ("--quiet", "--offline", "--locked", "--no-dev", "--no-install-project")
    project = ("--project", ROOT, "--python", sys.executable)
    run("env", f"UV_PROJECT_ENVIRONMENT={home / 'env'}", UV, "sync", *locked, *project, cwd=home)
    only = ("--quiet", "--offline", "--no-deps", "--python", home / "env")
    run(UV, "pip", "install", *only, wheel, cwd=home)
    return home
