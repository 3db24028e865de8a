"""`make demo` and `make run` on a bare machine: Debian with git, make and Python, and no root."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.cluster import debian
from tests.factories.paths import ROOT

SUITE = "bookworm"
PACKAGES = ("ca-certificates", "git", "make", "python3", "python3-venv")
#: What a person has set so that package indexes are reached at all.
CARRIED = ("PIP_", "UV_", "SSL_CERT_", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY")
#: What only fits this machine.
NOT_CARRIED = (
    "PIP_FIND_LINKS",
    "PIP_TARGET",
    "PIP_PREFIX",
    "UV_CACHE_DIR",
    "UV_PROJECT",
    "UV_PYTHON",
)
NVIDIA = "0x10de"


def carried() -> list[str]:
    """Return NAME=VALUE for the variables that give access to the package indexes."""
    return [
        f"{name}={value}"
        for name, value in sorted(os.environ.items())
        if name.upper().startswith(CARRIED) and not name.startswith(NOT_CARRIED)
    ]


@pytest.fixture(scope="module")
def base() -> Path:
    """Return a minimal Debian."""
    if reason := debian.why_not():
        pytest.skip(reason)
    return debian.make(SUITE, PACKAGES)


@pytest.fixture
def scratch(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Create a folder for one copy with the project in it; remove it after use (6 GB)."""
    folder = tmp_path_factory.mktemp("bare")
    listed = subprocess.run(
        ["git", "ls-files", "-z", "-co", "--exclude-standard"],
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    for name in filter(None, listed.split("\0")):
        target = folder / "home" / "accept" / name
        target.parent.mkdir(parents=True, exist_ok=True)
        if (ROOT / name).is_file():
            shutil.copy(ROOT / name, target)
    for settings in (".config/pip", ".config/uv"):
        if (Path.home() / settings).is_dir():
            shutil.copytree(Path.home() / settings, folder / "home" / settings)
    yield folder
    shutil.rmtree(folder)


def on_bare(
    base: Path, scratch: Path, script: str, *, prepare: str = ""
) -> subprocess.CompletedProcess[str]:
    """Run `script` as a user in a copy of `base`, after `prepare` as root."""
    (scratch / "prepare").write_text(prepare)
    namespaces = ["unshare", "--mount", "--pid", "--fork", "--kill-child"]
    command = ["bash", str(ROOT / "tests" / "cluster" / "bare.sh"), str(base), str(scratch), script]
    return subprocess.run(
        [*namespaces, *command, *carried()],
        check=False,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=1500,
    )


def test_make_demo_needs_no_torch_and_no_mpi(base: Path, scratch: Path) -> None:
    installed = "ls .venv/lib/python3*/site-packages >&2"
    done = on_bare(base, scratch, f"cd accept && make demo ARGS=--json && {installed}")
    assert done.returncode == 0, done.stdout + done.stderr
    assert json.loads(done.stdout)["state"] == "degraded"
    assert not {"torch", "mpi4py", "numpy", "pytest"} & set(done.stderr.split())


def test_make_run_accepts_a_bare_machine(base: Path, scratch: Path) -> None:
    vendors = Path("/sys/bus/pci/devices").glob("*/vendor")
    if NVIDIA in {vendor.read_text().strip() for vendor in vendors}:
        pytest.skip("an NVIDIA device is here, and the bare machine has no driver for it")
    assert not any(
        (base / folder / "ssh").exists() for folder in ("usr/bin", "bin", "usr/local/bin")
    )
    done = on_bare(base, scratch, "cd accept && make run")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "✔ ACCEPTED (no GPU tested)" in done.stdout, done.stdout
    assert done.stderr.startswith("make: downloads "), done.stderr


@pytest.mark.parametrize(
    ("missing", "package"),
    [
        ("rm -r /usr/lib/python3.*/ensurepip", "python3-venv"),
        ("rm /usr/bin/python3", "python3"),
        ("printf '#!/bin/sh\\nexit 1\\n' >/usr/bin/python3", "python3.11"),
    ],
    ids=["no venv", "no python", "too old a python"],
)
def test_make_names_the_missing_package_in_one_line(
    base: Path, scratch: Path, missing: str, package: str
) -> None:
    done = on_bare(base, scratch, "cd accept && make run", prepare=missing)
    assert done.returncode != 0
    ours = [line for line in done.stderr.splitlines() if not line.startswith("make: ***")]
    assert len(ours) == 1, done.stderr
    assert f"apt-get install {package}" in ours[0]
