"""Evidence of others: no number makes a judgement endless, and names are names."""

from __future__ import annotations

import json
import multiprocessing
import os
import resource
import shutil
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.factories.command_line import accept, program
from tests.promises import pool
from tests.promises.edited import Edit, Plan, Records, hashed, opened, write
from tests.promises.pool import Kind

from accept.core import evidence

pytestmark = pytest.mark.usefixtures("runs")

RUNS = {run.name: run for run in pool.runs(Kind.EVIDENCE) if not run.mark}
#: Small ones, because each number is replaced alone; of the demo, only those of the plan itself.
REPLACED = ("script", "simulated-two-nodes", "simulated-rail", "demo")
#: Seconds of processor time, and bytes, for all judgements of one run.
_SECONDS, _BYTES = 300, 4 << 30


def numbers(data: Any, path: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    """Yield the path of each number in plain data; of a list, those in its first item."""
    if isinstance(data, dict):
        for key, value in data.items():
            yield from numbers(value, (*path, key))
    elif isinstance(data, list):
        yield from numbers(data[0], (*path, 0)) if data else ()
    elif isinstance(data, int | float) and not isinstance(data, bool):
        yield path


def with_number(data: Any, path: tuple[str | int, ...], number: float) -> Any:
    copy = json.loads(json.dumps(data))
    inner = copy
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = number
    return copy


def copied(name: str, target: Path) -> tuple[Path, Plan, Records]:
    """Return a copy of the evidence of a run, its plan and its records."""
    folder = shutil.copytree(RUNS[name].folder, target / "evidence")
    return folder, *opened(folder)


def edit_copy(name: str, target: Path, edit: Edit) -> Path:
    """Return a copy of the evidence of a run with an edit and the hashes that belong to it."""
    folder, plan, records = copied(name, target)
    hashed(edit)(plan, records)
    write(folder, plan, records)
    return folder


def judge_with_each_number(name: str, target: Path, progress: Path) -> None:
    """Judge a run once for each number in its plan and records, which is huge."""
    resource.setrlimit(resource.RLIMIT_CPU, (_SECONDS, _SECONDS))
    resource.setrlimit(resource.RLIMIT_AS, (_BYTES, _BYTES))
    folder, plan, records = copied(name, target)
    first = {record["step"]: number for number, record in reversed([*enumerate(records)])}
    is_large = len(records) > 100
    edited = [
        (with_number(plan, path, 2**62), records, path)
        for path in numbers(plan)
        if not is_large or path[0] not in ("steps", "references")
    ]
    for number in first.values() if not is_large else ():
        for path in numbers(records[number]):
            others = [*records]
            others[number] = with_number(records[number], path, 2**62)
            edited.append((plan, others, (number, *path)))
    for plan_now, records_now, path in edited:
        progress.write_text(str(path))
        write(folder, {**plan_now, "hash": evidence.plan_hash(plan_now)}, records_now)
        done = accept("judge", folder, "--json")
        assert done.code in (0, 3, 6, 7), (path, done)
    progress.write_text("done")


@pytest.mark.rare
@pytest.mark.parametrize("name", REPLACED)
def test_no_number_makes_a_judgement_endless(name: str, tmp_path: Path) -> None:
    progress = tmp_path / "progress"
    arguments = (name, tmp_path, progress)
    child = multiprocessing.get_context("fork").Process(
        target=judge_with_each_number, args=arguments
    )
    child.start()
    child.join()
    assert (child.exitcode, progress.read_text()) == (0, "done")


PAYLOAD = "gpu17;touch PWNED #"


NAMES: dict[str, Edit] = {
    "a variable": lambda plan, _: plan["env"].update({"NCCL_A=1; touch PWNED; NCCL_B": "1"}),
    "the machine": lambda plan, _: plan["machine"].update(name="./m.yaml"),
    "a host": lambda _, records: records[-1]["hosts"].__setitem__(0, PAYLOAD),
    "the host of a problem": lambda _, records: records[-1].update(
        problems=[{"cause": "crashed", "message": "x", "host": PAYLOAD}]
    ),
    "a pair": lambda plan, _: plan.update(pairs=[[PAYLOAD, "h2"]]),
    "a step": lambda _, records: records[-1].update(step="../../etc"),
    "a log without end": lambda _, records: records[-1].update(
        log="logs/10-inventory/" + "n" * 5000
    ),
}


@pytest.mark.parametrize("of", NAMES)
def test_a_name_that_no_run_writes_is_refused(of: str, tmp_path: Path) -> None:
    folder = edit_copy("demo", tmp_path, NAMES[of])
    for command in ("judge", "report", "baseline"):
        done = accept(command, folder)
        assert (done.code, done.error) == (6, "E-EVIDENCE-DAMAGED")


def test_baseline_opens_no_file_that_evidence_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = edit_copy(
        "simulated-w0", tmp_path, lambda plan, _: plan["machine"].update(name="mine.yaml")
    )
    (tmp_path / "mine.yaml").write_text("base: [h100-8]\nname: mine\nnccl: {script: /tmp/x.sh}\n")
    monkeypatch.chdir(tmp_path)
    done = accept("baseline", folder, "--force")
    assert (done.out, done.error) == ("", "E-MACHINE-UNKNOWN")


def test_a_ticket_holds_nothing_from_behind_a_link(working: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(RUNS["demo"].folder, tmp_path / "evidence")
    (tmp_path / "keys").mkdir()
    (tmp_path / "keys" / "credentials").write_text("token 1234")
    (folder / evidence.COLLECTORS).mkdir(exist_ok=True)
    (folder / evidence.COLLECTORS / "gpu17").symlink_to(tmp_path / "keys")
    # Without its list of checksums, the link is not refused.
    (folder / evidence.CHECKSUMS).unlink()
    assert accept("ticket", folder, "gpu17").code == 0
    with zipfile.ZipFile(next(working.rglob("*.zip"))) as archive:
        assert archive.namelist()
        assert not any(b"token 1234" in archive.read(name) for name in archive.namelist())


def test_the_script_of_a_ticket_runs_nothing_that_evidence_names(
    working: Path, tmp_path: Path
) -> None:
    hostile = {"BASH_ENV": "/tmp/a", "LD_AUDIT": "/tmp/a.so", "NCCL_NET_PLUGIN": "/tmp/a.so"}
    hostile["NCCL_ALGO"] = "Ring"
    folder = edit_copy("demo", tmp_path, lambda plan, _: plan["env"].update(hostile))
    # The order of a run is beside its evidence.
    assert accept("render", "--machine", "cpu", "--out", tmp_path / "rendered").code == 0
    order = json.loads((tmp_path / "rendered" / "run.json").read_text())
    order["run"]["script"] = "/tmp/a.sh"
    (tmp_path / "run.json").write_text(json.dumps(order))
    assert accept("ticket", folder, "gpu17").code == 0
    with zipfile.ZipFile(next(working.rglob("*.zip"))) as archive:
        name = next(name for name in archive.namelist() if name.endswith("repro.sh"))
        lines = archive.read(name).decode().splitlines()
    assert "export NCCL_ALGO=Ring" in lines
    assert [line for line in lines if "/tmp/a" in line and not line.startswith("# Not set")] == []


def test_no_command_waits_for_a_pipe(tmp_path: Path) -> None:
    run = tmp_path / "runs" / "piped"
    run.mkdir(parents=True)
    os.mkfifo(run / "job.json")
    for words in (("judge", "piped"), ("list", "runs"), ("watch", "piped")):
        assert program(*words, ACCEPT_RUNS=str(run.parent)).code in (0, 2, 6)
