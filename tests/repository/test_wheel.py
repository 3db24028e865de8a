"""Wheel and sdist contain the data, and the wheel works without a checkout."""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest
from tests.factories.paths import ROOT

from accept import __version__
from accept.plan.bundle import code as read_code
from accept.plan.chart import chart_folder
from accept.plan.node_code import chart_files

#: The pinned uv, which `make setup-dev` installs there.
UV = ROOT / ".tools" / "bin" / "uv"
#: The folders that are shipped inside the package.
FOLDERS = ("chart", "launchers", "values")
OUR_VARIABLES = ("PYTHONPATH", "VIRTUAL_ENV", "UV_PROJECT_ENVIRONMENT")

pytestmark = pytest.mark.real


def run(*command: str | Path, cwd: Path) -> str:
    """Run a command outside the checkout's own environment; return its stdout."""
    env = {name: value for name, value in os.environ.items() if name not in OUR_VARIABLES}
    done = subprocess.run(
        [str(part) for part in command],
        check=False,
        cwd=cwd,
        env=env,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, f"{command}: {done.returncode}\n{done.stdout}{done.stderr}"
    return done.stdout


def tracked(*folders: str) -> dict[str, Path]:
    """Return the files of `folders` that belong to the project, by their path in it."""
    listed = run("git", "ls-files", "-z", "-co", "--exclude-standard", *folders, cwd=ROOT)
    return {name: ROOT / name for name in listed.split("\0") if name and (ROOT / name).is_file()}


@pytest.fixture(scope="module")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the sdist from a copy of the project's files, and the wheel from that sdist."""
    copy = tmp_path_factory.mktemp("copy")
    for name, path in tracked(".").items():
        target = copy / name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(path.read_bytes())
        target.chmod(path.stat().st_mode)
    out = tmp_path_factory.mktemp("dist")
    run(UV, "build", "--quiet", "--out-dir", out, copy, cwd=copy)
    return out


@pytest.fixture(scope="module")
def wheel(dist: Path) -> Path:
    (wheel,) = dist.glob("gpu_accept-*-py3-none-any.whl")
    return wheel


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Create an environment with only the wheel, without access to the checkout."""
    home = tmp_path_factory.mktemp("installed")
    run(UV, "venv", "--quiet", "--no-project", "--python", sys.executable, home / "env", cwd=home)
    run(UV, "pip", "install", "--quiet", "--python", home / "env", wheel, cwd=home)
    return home


def test_the_wheel_holds_every_file_of_the_data_folders_unchanged(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        prefix = "accept/_assets/"
        shipped = {
            name.removeprefix(prefix): archive.read(name)
            for name in archive.namelist()
            if name.startswith(prefix)
        }
    data = {**tracked(*FOLDERS), **tracked("docs/causes.md")}
    code = {f"chart/{name}": text for name, text in chart_files(read_code()).items()}
    assert shipped == code | {name: path.read_bytes() for name, path in data.items()}


def test_the_wheel_keeps_run_bits(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        bits = {
            info.filename.removeprefix("accept/_assets/"): bool(info.external_attr >> 16 & 0o100)
            for info in archive.infolist()
        }
    for name, path in tracked(*FOLDERS).items():
        assert bits[name] == os.access(path, os.X_OK), name


def test_the_wheel_holds_the_package_and_nothing_else(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    code = {name for name in names if not name.startswith("accept/_assets/")}
    ours = {name.removeprefix("cli/") for name in tracked("cli")}
    assert {name for name in code if ".dist-info/" not in name} == ours
    assert any(name.endswith(".dist-info/licenses/LICENSE") for name in code)
    assert "accept/_assets/__init__.py" not in names


def test_the_sdist_can_be_tested(dist: Path) -> None:
    (sdist,) = dist.glob("gpu_accept-*.tar.gz")
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert names >= set(tracked("cli", "tests", "docker", ".github", "cloudbuild.yml", *FOLDERS))
    assert names >= {"LICENSE", "Makefile", "README.md", "pyproject.toml", "uv.lock"}


def test_both_commands_work_outside_a_checkout(installed: Path) -> None:
    commands = installed / "env" / "bin"
    for name in ("accept", "gpu-accept"):
        assert __version__ in run(commands / name, "--version", cwd=installed)
        assert "render" in run(commands / name, "--help", cwd=installed)


def test_the_machines_are_found_outside_a_checkout(installed: Path) -> None:
    listed = run(installed / "env" / "bin" / "accept", "list", "machines", cwd=installed)
    assert {path.stem for path in (ROOT / "values" / "machines").glob("*.yaml")} <= {
        word for line in listed.splitlines() for word in line.split()[:1]
    }


def test_a_run_can_be_rendered_outside_a_checkout(installed: Path) -> None:
    accept = installed / "env" / "bin" / "accept"
    run(accept, "render", "--machine", "cpu", "--nodes", "1", "--out", "plan", cwd=installed)
    assert list((installed / "plan" / "rendered" / "steps").glob("*.sh"))


def test_the_chart_is_found_outside_a_checkout(installed: Path) -> None:
    shown = run(installed / "env" / "bin" / "accept", "chart", cwd=installed)
    shipped, built = (
        {path.relative_to(chart): path.read_bytes() for path in chart.rglob("*") if path.is_file()}
        for chart in (Path(shown.strip()), chart_folder())
    )
    assert shipped == built


def test_a_plain_install_stays_small(installed: Path) -> None:
    """The size is tens of MB: `render` and `judge` need no package of the extras."""
    packages = next((installed / "env" / "lib").glob("python3*")) / "site-packages"
    size = sum(path.stat().st_size for path in packages.rglob("*") if path.is_file())
    assert size < 50_000_000
    assert not {"torch", "mpi4py", "numpy", "kubernetes", "obstore"} & {
        path.name for path in packages.iterdir()
    }
