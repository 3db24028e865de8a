"""List the GPUs of a host whose image has no nvidia-smi, from files that a real driver wrote."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest
from tests.factories.paths import LAUNCHERS, TESTS
from tests.factories.shell import run_program

from accept.core.runner.discovery import Candidate, discover

_SEEN = json.loads((TESTS / "data/gpu/h100-80gb-hbm3/seen.json").read_text())
_INFORMATION = next(
    text
    for group in _SEEN.values()
    if isinstance(group, dict)
    for path, text in group.items()
    if str(path).endswith("/information") and "/nvidia/gpus/" in str(path)
)
_NAME = "NVIDIA H100 80GB HBM3"


def driver(root: Path, uuids: dict[int, str], *, shown: set[int]) -> Path:
    """Write the driver's files of GPUs, by minor number; `shown` have a device file."""
    (root / "dev").mkdir(parents=True)
    for place, (minor, uuid) in enumerate(uuids.items()):
        folder = root / f"proc/driver/nvidia/gpus/0000:{place:02x}:00.0"
        folder.mkdir(parents=True)
        text = _INFORMATION.replace("REMOVED", uuid).replace("Minor: \t 0", f"Minor: \t {minor}")
        (folder / "information").write_text(text)
        if minor in shown:
            (root / f"dev/nvidia{minor}").touch()
    return root


def without_smi(folder: Path) -> str:
    """Return a PATH with the programs of this machine, without nvidia-smi."""
    folder.mkdir()
    for place in ("/usr/bin", "/bin"):
        for program in Path(place).iterdir():
            link = folder / program.name
            if program.name != "nvidia-smi" and not link.exists():
                link.symlink_to(program)
    return str(folder)


@pytest.fixture
def host(tmp_path: Path) -> dict[str, str]:
    """Return the environment of a container with GPUs 1 and 0 of a host that has three."""
    root = driver(tmp_path / "root", {1: "GPU-b", 2: "GPU-c", 0: "GPU-a"}, shown={0, 1})
    return {
        "PATH": without_smi(tmp_path / "bin"),
        "ACCEPT_ROOT": str(root),
        "ACCEPT_HOST": "h0",
        "ACCEPT_SYS": str(root / "sys"),
    }


def shell(command: str, environment: dict[str, str]) -> str:
    done = run_program(["/bin/sh", "-c", command], cwd=LAUNCHERS, env=environment, check=True)
    return done.stdout


def test_gpus_with_a_device_file_are_listed_in_the_order_of_the_pci_bus(
    host: dict[str, str],
) -> None:
    assert shell(". ./gpus.sh; list_gpus", host).splitlines() == [
        f"GPU 0: {_NAME} (UUID: GPU-b)",
        f"GPU 1: {_NAME} (UUID: GPU-a)",
    ]


@pytest.mark.parametrize(("rank", "gpu"), [("0", "GPU-b"), ("1", "GPU-a"), ("2", None)])
def test_a_rank_has_the_gpu_of_its_number(rank: str, gpu: str | None, host: dict[str, str]) -> None:
    out = shell("sh programs/rank_identity.sh", host | {"ACCEPT_LOCAL_RANK": rank})
    assert json.loads(out.splitlines()[0].removeprefix("ACCEPT "))["value"]["gpu"] == gpu


def test_a_gpu_before_its_first_use_is_counted_without_an_identity(tmp_path: Path) -> None:
    unused = "GPU-????????-????-????-????-????????????"
    root = driver(tmp_path / "root", {0: unused}, shown={0})
    host = {"PATH": without_smi(tmp_path / "bin"), "ACCEPT_ROOT": str(root), "ACCEPT_HOST": "h0"}
    assert shell(". ./gpus.sh; list_gpus", host) == f"GPU 0: {_NAME} (UUID: )\n"
    fact = json.loads(
        shell("sh programs/rank_identity.sh", host).splitlines()[0].removeprefix("ACCEPT ")
    )
    assert fact["value"]["gpu"] is None


def test_an_inventory_without_python_lists_them(host: dict[str, str]) -> None:
    for name in Path(host["PATH"]).glob("python*"):
        name.unlink()
    (fact,) = shell(
        "sh programs/inventory.sh", host | {"ACCEPT_DIR": host["ACCEPT_ROOT"]}
    ).splitlines()
    gpus = json.loads(fact.removeprefix("ACCEPT "))["value"]["gpus"]
    assert [(gpu["index"], gpu["uuid"], gpu["name"]) for gpu in gpus] == [
        (0, "GPU-b", _NAME),
        (1, "GPU-a", _NAME),
    ]


def test_a_run_starts_one_rank_for_each(
    host: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "host").write_text("h0\n")
    script = (LAUNCHERS / "gpus.sh").read_text()
    (tmp_path / "gpus.sh").write_text(f"ACCEPT_ROOT={host['ACCEPT_ROOT']}\n{script}")
    monkeypatch.setenv("PATH", host["PATH"])
    candidates = [Candidate(name="h0", local=True)]
    found = asyncio.run(
        discover(candidates, folder=tmp_path, attempt="one", ranks=None, topology="", seconds=300.0)
    )
    assert [host.slots for host in found.hosts] == [2]
