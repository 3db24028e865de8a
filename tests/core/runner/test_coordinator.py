"""The coordinator with hosts of a GPU machine that show no GPU; all hosts are this machine."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from tests.factories import verdicts

from accept.core import evidence
from accept.core.model import Fact, PlannedMachine
from accept.core.runner import coordinator
from accept.core.runner.coordinator import HOSTS, Launch, coordinate
from accept.core.runner.discovery import Candidate, Found
from accept.core.runner.ssh import Host
from accept.core.serde import dump
from accept.plan.bundle import render
from accept.plan.resolve import Options, resolve

MACHINE = PlannedMachine(name="big", gpus=8, ranks=None, device="B200", speed_promised=False)
INVENTORY = verdicts.step("inventory", "each", number=10)
SCRIPT = verdicts.step("script", "each", number=20, params={})
#: A step script that prints what its host reports.
PRINT = 'read -r name rest\n[ ! -e "{folder}/$name" ] || cat "{folder}/$name"\n'


def node(
    tmp_path: Path, gpus: dict[str, int], monkeypatch: pytest.MonkeyPatch, **more: Any
) -> Path:
    """Return a coordinator's folder; its hosts, all this machine, show this many GPUs."""
    folder = tmp_path / "node"
    (folder / "tmp").mkdir(parents=True)
    render(resolve(Options(machine="cpu", nodes=1))).write(folder)
    plan = verdicts.plan(INVENTORY, SCRIPT, machine=MACHINE, nodes=len(gpus), **more)
    (folder / evidence.PLAN).write_text(json.dumps(dump(plan)))
    records = tmp_path / "records"
    records.mkdir()
    for name, count in gpus.items():
        fact = verdicts.inventory_of(name, gpus=verdicts.gpus(name)[:count], pciNvidia=count)
        data = {"fact": "inventory", "check": "inventory", "host": name, "value": fact.value}
        (records / name).write_text(f"ACCEPT {json.dumps(data)}\n")
    (folder / INVENTORY.script).write_text(PRINT.format(folder=records))
    (folder / SCRIPT.script).write_text("read -r name rest\necho ran\n")
    candidates = tuple(Candidate(name=name, local=True) for name in gpus)
    launch = Launch(attempt="one", hosts=candidates, start_seconds=2.0)
    (folder / HOSTS).write_text(json.dumps(dump(launch)))

    # One rank, if no host shows a GPU.
    slots = min([count for count in gpus.values() if count], default=1)

    async def discover(found: Sequence[Candidate], **_: Any) -> Found:
        hosts = tuple(
            Host(
                name=c.name, mpi_name=c.name, address="127.0.0.1", port=22, slots=slots, local=True
            )
            for c in found
        )
        return Found(
            hosts=hosts,
            problems=(),
            facts=(Fact(name="hostnames", value={}, check="hosts"),),
            metrics=(),
        )

    monkeypatch.setattr(coordinator, "discover", discover)
    return folder


def coordinated(folder: Path) -> Any:
    """Run the coordinator; return its verdict after comparing the exit status."""
    code = asyncio.run(coordinate(folder))
    verdict = json.loads((folder / "evidence" / evidence.VERDICT).read_text())
    assert verdict["exit"] == code
    return verdict


def ran(folder: Path, step: str) -> set[str]:
    """Return the hosts on which a step was executed."""
    records = evidence.read_records(folder / "evidence")
    return {host for record in records if record.step == step for host in record.hosts}


def blamed(verdict: Any) -> list[tuple[str, str]]:
    return [(suspect["name"], suspect["cause"]) for suspect in verdict["suspects"]]


def test_hosts_with_their_gpus_run_to_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = node(tmp_path, {"h0": 8, "h1": 8}, monkeypatch)
    verdict = coordinated(folder)
    assert (verdict["exit"], verdict["gpuTested"]) == (0, True)
    assert ran(folder, SCRIPT.id) == {"h0", "h1"}


@pytest.mark.parametrize("hosts", [("h0",), ("h0", "h1", "h2")])
def test_nothing_is_measured_if_no_host_shows_a_gpu(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    hosts: tuple[str, ...],
) -> None:
    folder = node(tmp_path, dict.fromkeys(hosts, 0), monkeypatch)
    verdict = coordinated(folder)
    assert (verdict["state"], verdict["exit"]) == ("fail", 3)
    assert "gpu-missing" in verdict["headline"]
    assert ran(folder, SCRIPT.id) == set()
    (line,) = (one for one in capsys.readouterr().out.splitlines() if one.startswith("[1/2]"))
    assert f"0 good, {len(hosts)} with problems" in line


def test_a_host_without_gpus_is_left_out_and_the_others_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = node(tmp_path, {"h0": 8, "h1": 0, "h2": 8}, monkeypatch)
    verdict = coordinated(folder)
    assert (verdict["state"], verdict["exit"], verdict["interruption"]) == ("fail", 3, "")
    assert blamed(verdict) == [("h1", "gpu-missing")]
    assert ran(folder, SCRIPT.id) == {"h0", "h2"}


def test_a_run_that_requires_all_nodes_ends_at_the_first_without_gpus(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = node(tmp_path, {"h0": 8, "h1": 0}, monkeypatch, require_all_nodes=True)
    verdict = coordinated(folder)
    assert verdict["exit"] == 3
    assert blamed(verdict) == [("h1", "gpu-missing")]
    assert ran(folder, SCRIPT.id) == set()


def test_a_host_that_lacks_some_of_its_gpus_takes_part(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = node(tmp_path, {"h0": 8, "h1": 7}, monkeypatch)
    verdict = coordinated(folder)
    assert blamed(verdict) == [("h1", "gpu-missing")]
    assert ran(folder, SCRIPT.id) == {"h0", "h1"}
