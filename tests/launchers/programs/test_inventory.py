"""The inventory of a host whose tools give known answers."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.factories.paths import PROGRAMS

PROGRAM = PROGRAMS / "inventory.py"
CLUSTER = "9f4d6c0e-1b2a-4c3d-8e5f-0a1b2c3d4e5f"
ZERO = "00000000-0000-0000-0000-000000000000"


def inventory_fact(folder: Path, fabric: str) -> dict[str, Any]:
    """Return the fact with an nvidia-smi that knows only the fabric of its GPUs."""
    smi = folder / "nvidia-smi"
    smi.write_text(f'#!/bin/sh\ncase $1 in *fabric*) printf "{fabric}" ;; *) exit 1 ;; esac\n')
    smi.chmod(0o755)
    path = f"{folder}:{os.environ['PATH']}"
    made = subprocess.run(
        [sys.executable, str(PROGRAM)],
        env={**os.environ, "PATH": path},
        capture_output=True,
        text=True,
        check=True,
    )
    value: dict[str, Any] = json.loads(made.stdout.partition("ACCEPT ")[2])["value"]
    return value


@pytest.mark.parametrize(
    ("fabric", "domain"),
    [
        (f"{CLUSTER}, 7\\n{CLUSTER}, 7\\n", f"{CLUSTER}/7"),
        # Inside one host alone, of two kinds, not yet registered, without such a fabric.
        (f"{ZERO}, 0\\n{ZERO}, 0\\n", None),
        (f"{CLUSTER}, 7\\n{CLUSTER}, 8\\n", None),
        (f"{CLUSTER}, [N/A]\\n", None),
        ("[N/A], [N/A]\\n", None),
    ],
)
def test_the_nvlink_domain_is_that_of_all_gpus(
    tmp_path: Path, fabric: str, domain: str | None
) -> None:
    assert inventory_fact(tmp_path, fabric)["domain"] == domain


def test_an_unknown_domain_is_left_out(tmp_path: Path) -> None:
    assert "domain" not in inventory_fact(tmp_path, "")


def test_a_domain_that_is_not_reported_in_time_is_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(PROGRAM.parent))
    inventory = importlib.import_module("inventory")
    smi = tmp_path / "nvidia-smi"
    smi.write_text("#!/bin/sh\nexec sleep 600\n")
    smi.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setattr(inventory, "SECONDS", 0.1)
    assert inventory.domain() == {}


def test_the_permission_to_lock_memory_comes_from_the_kernel(tmp_path: Path) -> None:
    held = next(
        int(line.split()[1], 16)
        for line in Path("/proc/self/status").read_text().splitlines()
        if line.startswith("CapEff:")
    )
    first = Path("/proc/self/uid_map").read_text().split() == ["0", "0", "4294967295"]
    assert inventory_fact(tmp_path, "")["ipcLock"] is (first and bool(held & 1 << 14))


def test_a_host_without_python_counts_only_display_controllers_as_gpus(tmp_path: Path) -> None:
    classes = {"gpu": "0x030200", "nvswitch": "0x068000", "audio": "0x040300"}
    for name, number in classes.items():
        device = tmp_path / "sys" / "bus" / "pci" / "devices" / name
        device.mkdir(parents=True)
        (device / "vendor").write_text("0x10de\n")
        (device / "class").write_text(f"{number}\n")
    programs = tmp_path / "bin"
    programs.mkdir()
    for name in ("python3", "python"):
        (programs / name).write_text("#!/bin/sh\nexit 1\n")
        (programs / name).chmod(0o755)
    environment = {
        "PATH": f"{programs}:/usr/bin:/bin",
        "ACCEPT_DIR": str(tmp_path),
        "ACCEPT_SYS": str(tmp_path / "sys"),
    }
    done = subprocess.run(
        ["/bin/sh", str(PROGRAMS / "inventory.sh")],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    assert json.loads(done.stdout.partition("ACCEPT ")[2])["value"]["pciNvidia"] == 1
