"""Wheel and sdist contain the data, and the wheel works without a checkout."""

from __future__ import annotations

import os
import tarfile
import zipfile
from hashlib import sha256
from pathlib import Path

import pytest
import yaml
from tests.factories.helm import call
from tests.factories.paths import ROOT
from tests.factories.release import run, tracked

from accept import __version__
from accept.plan.bundle import code as read_code
from accept.plan.chart import chart_folder
from accept.plan.node_code import chart_files

#: The folders that are shipped inside the package.
FOLDERS = ("chart", "launchers", "values")

pytestmark = pytest.mark.real


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


def test_a_release_is_complete_and_has_checksums(dist: Path) -> None:
    stem = f"gpu_accept-{__version__}"
    files = {f"{stem}-py3-none-any.whl", f"{stem}.tar.gz", f"{stem}.cdx.json"}
    files.add(f"accept-{__version__}.tgz")
    assert {path.name for path in dist.iterdir()} == files | {"SHA256SUMS"}
    listed = (dist / "SHA256SUMS").read_text().splitlines()
    sums = {name: digest for digest, name in (line.split() for line in listed)}
    assert sums == {name: sha256((dist / name).read_bytes()).hexdigest() for name in files}


@pytest.mark.rare
def test_a_release_has_the_same_bytes_if_it_is_built_again(dist: Path) -> None:
    copy = dist.parent
    first = (dist / "SHA256SUMS").read_text()
    run("bash", ".ci/release", "files", cwd=copy)
    assert (dist / "SHA256SUMS").read_text() == first


def test_the_chart_of_a_release_is_that_of_the_wheel(dist: Path) -> None:
    chart = chart_folder()
    with tarfile.open(dist / f"accept-{__version__}.tgz") as archive:
        files = {m.name: archive.extractfile(m) for m in archive.getmembers() if m.isfile()}
        packed = {name: file.read() for name, file in files.items() if file is not None}
    assert packed == {
        f"accept/{path.relative_to(chart)}": path.read_bytes()
        for path in chart.rglob("*")
        if path.is_file()
    }


@pytest.mark.parametrize("major", [3, 4])
def test_helm_reads_the_chart_of_a_release(dist: Path, major: int) -> None:
    shown = yaml.safe_load(call(major, "show", "chart", dist / f"accept-{__version__}.tgz").stdout)
    assert (shown["version"], shown["appVersion"]) == (__version__, __version__)


def test_both_commands_work_outside_a_checkout(installed: Path) -> None:
    commands = installed / "env" / "bin"
    for name in ("accept", "gpu-accept"):
        assert __version__ in run(commands / name, "--version", cwd=installed)
        assert "doctor" in run(commands / name, "--help", cwd=installed)
        example = run(commands / name, "show", "site", "example", cwd=installed)
        assert example == (ROOT / "values" / "site.example.yaml").read_text()


def test_the_machines_are_found_outside_a_checkout(installed: Path) -> None:
    listed = run(installed / "env" / "bin" / "accept", "list", "machines", cwd=installed)
    assert {path.stem for path in (ROOT / "values" / "machines").glob("*.yaml")} <= {
        word for line in listed.splitlines() for word in line.split()[:1]
    }


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
