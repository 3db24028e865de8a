"""The coordinator with hosts of a GPU machine that show no GPU; all hosts are this machine."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.factories import sample_evidence, verdicts
from tests.factories.clock import PATIENCE, let_wall_clock_jump
from tests.factories.keys import write_keys
from tests.factories.shell import write_program

from accept.core import evidence
from accept.core.plan import Collector, GroupKind, ParamValue, PlannedMachine, Step, Supported
from accept.core.records import Fact
from accept.core.runner import coordinator, launch, resume
from accept.core.runner.coordinator import coordinate
from accept.core.runner.discovery import Candidate, Found
from accept.core.runner.keys import new_keys
from accept.core.runner.launch import Launch
from accept.core.runner.ssh import KEY, Host
from accept.core.runner.state import Run
from accept.core.serde import dump
from accept.evidence import bucket
from accept.plan.bundle import render
from accept.plan.resolve import Options, resolve

MACHINE = PlannedMachine(name="big", gpus=8, ranks=None, device="B200", speed_promised=False)
INVENTORY = verdicts.step("inventory", "each", number=10)
SCRIPT = verdicts.step("script", "each", number=20, params={})
#: A step script that prints the facts of its host.
PRINT = 'read -r name rest\n[ ! -e "{folder}/$name" ] || cat "{folder}/$name"\n'


Node = Callable[..., Path]


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Node:
    """Return `coordinator_of` for folders below that of the test."""
    return lambda gpus, place="", **more: coordinator_of(
        tmp_path / place, gpus, monkeypatch, **more
    )


def coordinator_of(
    tmp_path: Path, gpus: dict[str, int], monkeypatch: pytest.MonkeyPatch, **more: Any
) -> Path:
    """Return a coordinator's folder; its hosts, all this machine, show this many GPUs."""
    folder = tmp_path / "node"
    (folder / "tmp").mkdir(parents=True)
    render(resolve(Options(machine="cpu", nodes=1))).write(folder)
    plan = verdicts.plan(INVENTORY, SCRIPT, machine=MACHINE, nodes=len(gpus), **more)
    plan = sample_evidence.hashed(plan)
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
    (folder / evidence.HOSTS).write_text(json.dumps(dump(launch)))

    async def discover(found: Sequence[Candidate], *, ranks: int, **_: Any) -> Found:
        hosts = tuple(
            Host(
                name=c.name, mpi_name=c.name, address="127.0.0.1", port=22, slots=ranks, local=True
            )
            for c in found
            if not c.problem
        )
        return Found(
            hosts=hosts,
            problems=tuple(c.problem for c in found if c.problem),
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
    records = tuple(evidence.read_records(folder / "evidence"))
    return {host for record in records if record.step == step for host in record.hosts}


def blamed(verdict: Any) -> list[tuple[str, str]]:
    return [(suspect["name"], suspect["cause"]) for suspect in verdict["suspects"]]


def test_hosts_with_all_gpus_run_to_the_end(node: Node, capsys: pytest.CaptureFixture[str]) -> None:
    env = {"NCCL_A": "1", "NCCL_B": "2", "NCCL_C": "3"}
    origins = {"profile x": ("NCCL_A", "NCCL_C"), "--nccl": ("NCCL_B",)}
    needs = Supported(component="CUDA", since="13", needs={"libcuda": "580"}, source="the maker")
    keys = {"env": env, "env_origins": origins, "supported": (needs,)}
    folder = node({"h0": 8, "h1": 8}, **keys)
    launch = json.loads((folder / evidence.HOSTS).read_text())
    launch["versions"] = {"CUDA": "13.0", "libcuda": "570.1", "NCCL": ""}
    launch["keptSeconds"] = 600
    (folder / evidence.HOSTS).write_text(json.dumps(launch))
    verdict = coordinated(folder)
    # Hosts and settings are at the top of the log, in one line each.
    log = capsys.readouterr().out.splitlines()
    top = "\n".join(log[:20])
    assert "settings of profile x: NCCL_A=1 NCCL_C=3\n" in top
    assert "settings of --nccl: NCCL_B=2\n" in top
    assert re.search(r"NOT SUPPORTED: CUDA 13\.0 .* libcuda 570\.1 .*the maker", top)
    assert "evidence stays here until it is collected, for at most 10 min after the run\n" in top
    assert re.search(r"hosts: 2 of 2 answered in .*: h\[0-1\]\n", top)
    assert (verdict["exit"], verdict["gpuTested"]) == (0, True)
    assert ran(folder, SCRIPT.id) == {"h0", "h1"}


MANY = {f"h{n}": 8 for n in range(64)}


@pytest.mark.parametrize(
    ("gpus", "options", "state", "bad", "measured"),
    [
        # Nothing is measured if no host shows a GPU.
        ({"h0": 0}, {}, "fail", {"h0"}, set()),
        (dict.fromkeys(("h0", "h1", "h2"), 0), {}, "fail", set(), set()),
        # One is set aside, and the others use all of their GPUs.
        *((MANY | {bad: 7}, {}, "degraded", {bad}, MANY.keys() - {bad}) for bad in ("h0", "h40")),
        # Nothing follows a final failure.
        ({"h0": 8, "h1": 0}, {"require_all_nodes": True}, "fail", {"h1"}, set()),
        ({"h0": 8, "h1": 7}, {"fail_fast": True}, "fail", {"h1"}, set()),
    ],
)
def test_hosts_that_lack_gpus_are_set_aside_while_others_can_be_measured(
    node: Node,
    capsys: pytest.CaptureFixture[str],
    gpus: dict[str, int],
    options: dict[str, bool],
    state: str,
    bad: set[str],
    measured: set[str],
) -> None:
    folder = node(gpus, **options)
    verdict = coordinated(folder)
    assert (verdict["state"], verdict["exit"]) == (state, 3)
    assert blamed(verdict) == [(host, "gpu-missing") for host in bad]
    assert "gpu-missing" in verdict["headline"]
    assert ran(folder, INVENTORY.id) == gpus.keys()
    assert ran(folder, SCRIPT.id) == measured
    records = evidence.read_records(folder / "evidence")
    assert {r.ranks for r in records if r.step == SCRIPT.id} <= {8}
    left_out = [one["check"] for one in verdict["notRun"]]
    assert left_out == ["script"] * ("fail_fast" in options)
    good = sum(count == 8 for count in gpus.values())
    summary = f"{good} good, {len(gpus) - good} with problems"
    log = capsys.readouterr().out.splitlines()
    assert any("[1/2]" in line and summary in line for line in log)


@pytest.mark.parametrize(
    ("fault", "cause", "state", "is_blamed"),
    [
        ({}, "gpu-missing", "degraded", True),
        ({"driverCode": 999}, "gpu-missing", "degraded", True),
        ({"driverCode": 18, "driverWords": "versions"}, "driver-mismatch", "degraded", True),
        ({"driverCode": 4}, "gpu-permission", "not-tested", False),
        ({"forbidden": [*range(8)]}, "gpu-permission", "not-tested", False),
    ],
)
def test_a_host_without_gpus_is_left_out_with_its_cause_and_the_others_go_on(
    node: Node, tmp_path: Path, fault: dict[str, Any], cause: str, state: str, *, is_blamed: bool
) -> None:
    folder = node({"h0": 8, "h1": 0, "h2": 8})
    printed = tmp_path / "records/h1"
    data = json.loads(printed.read_text().partition(" ")[2])
    data["value"] |= fault
    printed.write_text(f"ACCEPT {json.dumps(data)}\n")
    verdict = coordinated(folder)
    assert (verdict["state"], verdict["interruption"]) == (state, "")
    assert blamed(verdict) == [("h1", cause)] * is_blamed
    findings = [one for check in verdict["checks"] for one in check["findings"]]
    assert {one["cause"] for one in findings if one.get("cause")} == {cause}
    assert ran(folder, SCRIPT.id) == {"h0", "h2"}
    if fault.get("driverWords"):
        assert any("versions" in str(left["why"]) for left in verdict["suspects"])


def test_collectors_run_on_suspects_before_the_checksums_and_only_then(node: Node) -> None:
    one = Collector(name="uptime", command="echo up", timeout=PATIENCE, max_bytes=100)
    folder = node({"h0": 8, "h1": 0, "h2": 8}, collectors=(one,))
    coordinated(folder)
    assert (folder / "evidence/collectors/h1/uptime.txt").read_text() == "up\n"
    assert evidence.check_checksums(folder / "evidence") == ()
    good = node({"h0": 8, "h1": 8}, "good", collectors=(one,))
    assert coordinated(good)["exit"] == 0
    assert not (good / "evidence/collectors").exists()


def test_a_run_goes_on_after_the_finished_steps_of_another_attempt(
    node: Node, capsys: pytest.CaptureFixture[str]
) -> None:
    first = node({"h0": 8, "h1": 8}, "first")
    coordinated(first)
    records = first / "evidence" / evidence.RECORDS
    # The attempt ended while the last step ran: only one of two hosts has a record of it.
    kept = [line for line in records.read_text().splitlines() if '"step":"20' not in line]
    begun = next(line for line in records.read_text().splitlines() if '"step":"20' in line)
    records.write_text("\n".join([*kept, begun]) + "\n")
    second = node({"h0": 8, "h1": 8}, "second")
    plan = evidence.read_plan(first / "evidence")
    resume.copy_finished(first / "evidence", second / resume.EARLIER, plan)
    launched(second, attempt="two", earlier=str(second / resume.EARLIER))
    capsys.readouterr()
    verdict = coordinated(second)
    assert verdict["exit"] == 0
    assert verdict["kept"] == [{"attempt": "one", "steps": [INVENTORY.id]}]
    by_attempt = {
        (record.step, record.attempt) for record in evidence.read_records(second / "evidence")
    }
    assert {(INVENTORY.id, "one"), (SCRIPT.id, "")} <= by_attempt
    assert (SCRIPT.id, "one") not in by_attempt
    assert ran(second, SCRIPT.id) == {"h0", "h1"}
    assert "was finished by attempt one" in capsys.readouterr().out


def launched(folder: Path, **changes: Any) -> None:
    """Change the launch of a coordinator's folder."""
    launch = json.loads((folder / evidence.HOSTS).read_text())
    (folder / evidence.HOSTS).write_text(json.dumps({**launch, **changes}))


class TestAnEarlierAttemptThatLostItsFirstHost:
    @pytest.fixture
    def earlier(self, node: Node, tmp_path: Path) -> Path:
        """Return the copy of its evidence after the first step; h1 showed no GPU."""
        results = tmp_path / "results"
        results.mkdir()
        folder = node({"h0": 8, "h1": 0, "h2": 8}, "earlier")
        launched(folder, results=str(results))
        coordinated(folder)
        copy = results / "runs" / "one"
        lines = (copy / evidence.RECORDS).read_text().splitlines()
        before = [line for line in lines if f'"step":"{SCRIPT.id}"' not in line]
        assert len(before) == len(lines) - 2
        (copy / evidence.RECORDS).write_text("".join(f"{line}\n" for line in before))
        return copy

    @pytest.fixture
    def folder(self, node: Node, earlier: Path) -> Path:
        """Return the folder of a coordinator that cannot reach h0 and continues that attempt."""
        folder = node({"h0": 8, "h1": 8, "h2": 8}, "later")
        (found, *others) = json.loads((folder / evidence.HOSTS).read_text())["hosts"]
        cause, message = "unreachable-timeout", "h0 was lost"
        problem = {"cause": cause, "message": message, "check": "hosts", "host": "h0"}
        launched(folder, earlier=str(earlier), hosts=[{**found, "problem": problem}, *others])
        return folder

    def test_keeps_its_finished_steps_and_the_hosts_that_it_lost(self, folder: Path) -> None:
        verdict = coordinated(folder)
        assert sorted(blamed(verdict)) == [("h0", "host-died"), ("h1", "gpu-missing")]
        records = tuple(evidence.read_records(folder / "evidence"))
        assert sorted(r.hosts for r in records if r.step == INVENTORY.id) == [
            ("h0",),
            ("h1",),
            ("h2",),
        ]
        assert ran(folder, SCRIPT.id) == {"h2"}
        assert all(evidence.open_log(folder / "evidence", r.log) for r in records if r.log)

    def test_counts_for_nothing_if_a_log_is_missing(self, folder: Path, earlier: Path) -> None:
        next((earlier / "logs" / INVENTORY.id).iterdir()).unlink()
        verdict = coordinated(folder)
        assert blamed(verdict) == [("h0", "unreachable-timeout")]
        assert ran(folder, INVENTORY.id) == ran(folder, SCRIPT.id) == {"h1", "h2"}


def test_edits_are_in_log_plan_and_verdict(node: Node, capsys: pytest.CaptureFixture[str]) -> None:
    folder = node({"h0": 8})
    before = json.loads((folder / evidence.PLAN).read_text())
    edits = ["launcher.env.NCCL_X: added, is 7"]
    launched(folder, edited=edits, holdSeconds=0.2, holdAlways=True)
    verdict = coordinated(folder)
    assert "EDITED after rendering: launcher.env.NCCL_X: added, is 7" in capsys.readouterr().out
    plan = evidence.read_plan(folder / "evidence")
    assert (plan.hold_seconds, plan.hold_always) == (0.2, True)
    assert verdict["edited"] == list(plan.edited) == ["launcher.env.NCCL_X: added, is 7"]
    assert verdict["run"] == plan.hash != before["hash"]
    assert "edited" in verdict["headline"]


def with_collectives(folder: Path, **limits: float) -> Step:
    """Add a step of collectives on all nodes to the plan; it prints what it would measure."""
    params: dict[str, ParamValue] = {"min": "1K", "max": "1K"}
    step = replace(SCRIPT, id="99-collectives", script="steps/99-collectives.sh", params=params)
    step = replace(step, checks=("all-reduce",), groups=GroupKind.ALL, estimate=10.0)
    plan = json.loads((folder / evidence.PLAN).read_text())
    plan = {**plan, **limits, "steps": [*plan["steps"], dump(step)]}
    (folder / evidence.PLAN).write_text(json.dumps(plan))
    (folder / step.script).write_text(
        f'echo "$ACCEPT_MIN $ACCEPT_MAX $ACCEPT_FACTOR $ACCEPT_ITERS" > {folder}/measured\n'
    )
    return step


def test_edited_collectives_are_measured_planned_and_have_more_time(node: Node) -> None:
    folder = node({"h0": 8})
    before = with_collectives(folder)
    launched(folder, edited=["collectives"], collectives={"max": "1M", "iters": 7})
    coordinated(folder)
    assert (folder / "measured").read_text() == "1K 1M 2 7\n"
    step = evidence.read_plan(folder / "evidence").steps[-1]
    assert (step.params["max"], step.params["iters"]) == ("1M", 7)
    assert step.timeout > before.timeout
    assert step.estimate > before.estimate


def test_edited_collectives_that_outlast_the_deadline_end_the_run_at_once(
    node: Node,
) -> None:
    folder = node({"h0": 8})
    with_collectives(folder, deadlineSeconds=20.0)
    edits = {"edited": ["collectives"], "collectives": {"max": "1G", "iters": 100}}
    launched(folder, **edits)
    verdict = coordinated(folder)
    assert (verdict["exit"], blamed(verdict), ran(folder, INVENTORY.id)) == (5, [], set())
    assert "deadlineSeconds" in verdict["interruption"]


@pytest.mark.parametrize(
    ("script", "cause", "exit_code"),
    [
        ("", "no-table", 6),
        ("echo all_reduce: 350 GB/s on all nodes", "no-table", 6),
        ("echo all_reduce: 350 GB/s on all nodes; exit 1", "launch-failed", 3),
    ],
)
def test_a_launcher_without_a_table_blames_no_node_and_is_never_accepted(
    node: Node, script: str, cause: str, exit_code: int
) -> None:
    folder = node({"h0": 8, "h1": 8, "h2": 8})
    step = with_collectives(folder)
    (folder / step.script).write_text(f"{script}\n")
    launched(folder, edited=[f"launcher.scripts.{step.script}: changed"])
    verdict = coordinated(folder)
    (check,) = (one for one in verdict["checks"] if one["check"] == "all-reduce")
    assert {finding["cause"] for finding in check["findings"]} == {cause}
    assert verdict["exit"] == exit_code
    if cause == "no-table":
        assert verdict["suspects"] == []
        assert cause in verdict["headline"]


@pytest.mark.parametrize(
    ("results", "bucket", "is_printed"),
    [("gs://bucket", "", False), ("/accept/results", "gs://bucket", False), ("/volume", "", True)],
)
def test_packed_evidence_is_in_the_log_unless_a_bucket_may_take_it(
    node: Node,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    *,
    results: str,
    bucket: str,
    is_printed: bool,
) -> None:
    async def publish(*_: Any) -> bool:
        return True

    monkeypatch.setattr(coordinator, "_publish", publish)
    folder = node({"h0": 8})
    launched(folder, results=results, bucket=bucket)
    verdict = coordinated(folder)
    printed = capsys.readouterr().out
    packed = folder / "packed"
    assert (evidence.PACKED_BEGIN in printed, packed.exists()) == (is_printed, not is_printed)
    text = printed if is_printed else packed.read_text()
    assert len(evidence.unpack(text.encode().splitlines(), "log")[1]) > 0
    assert evidence.PACKED_END not in printed.partition("verdict of the coordinator")[2]
    summary = (folder / "summary").read_text()
    assert summary.splitlines()[0] == f"verdict: {verdict['headline']}"


def test_records_of_finished_steps_are_copied_to_the_pod_whose_node_comes_first(
    node: Node, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Runs the command in the folder of its host; the name of the host precedes the command.
    write_program(
        tmp_path / "bin" / "ssh",
        "for command; do host=$before before=$command; done\n"
        f'cd {tmp_path}/"$host" && exec sh -c "$command"',
    )
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:{os.environ['PATH']}")
    folder = node({"c": 8})
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
    hosts = [
        Host(name=n, mpi_name=n, address="::1", port=22, slots=1, local=n == "c") for n in "cba"
    ]
    state = Run(folder=Path(), attempt="one", plan=evidence.read_plan(folder), hosts=tuple(hosts))
    monkeypatch.chdir(folder)
    (folder / "evidence").mkdir()
    state.keep_asked(0, 0.0)
    asyncio.run(coordinator._copy_records(state))
    copy = tmp_path / "a" / launch.RECORDS_COPY
    _, records, verdict = evidence.unpack(copy.read_bytes().splitlines(), "copy")
    assert (list(records), verdict.interruption) == (state.records, launch.LOST)
    assert not (tmp_path / "b" / launch.RECORDS_COPY).exists()


@pytest.mark.parametrize(
    ("gpus", "always", "is_held", "is_cancelled"),
    [
        (8, True, True, False),
        (8, True, True, True),
        (8, False, False, False),
        (7, False, True, False),
    ],
)
def test_a_hold_begins_when_verdict_and_evidence_are_in_the_results(
    node: Node,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    *,
    gpus: int,
    always: bool,
    is_held: bool,
    is_cancelled: bool,
) -> None:
    more = {"hold_seconds": 600.0, "hold_always": always}
    folder = node({"h0": gpus, "h1": 8}, **more)
    (tmp_path / "results").mkdir()
    launched(folder, results=str(tmp_path / "results"))
    # The log, which another process writes.
    (folder / evidence.CONSOLE).write_text("the evidence is copied before the hold\n")
    sent = tmp_path / "results" / "runs" / "one"

    async def release() -> None:
        while is_held and "held for 10 min" not in capsys.readouterr().out:
            await asyncio.sleep(0.01)
        assert (sent / "MANIFEST.json").exists() == is_held
        if is_cancelled:
            os.kill(os.getpid(), signal.SIGTERM)
        else:
            (folder / "release").touch()

    async def both() -> int:
        code, _ = await asyncio.gather(coordinate(folder), release())
        return code

    assert asyncio.run(asyncio.wait_for(both(), 60)) == (0 if gpus == 8 else 3)
    if is_held:
        assert bucket.fetch(str(sent), tmp_path / "fetched")
        assert evidence.check_checksums(tmp_path / "fetched") == ()
        assert (tmp_path / "fetched" / evidence.VERDICT).exists()


@pytest.mark.parametrize("has_key", [True, False])
def test_no_moment_leaves_checksums_without_signature_or_reason(
    node: Node,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    *,
    has_key: bool,
) -> None:
    folder = node({"h0": 8})
    if has_key:
        write_keys(folder, new_keys("run"), KEY)
    own = folder / "evidence"
    real, printed = evidence.write, ""

    def write(path: Path, content: str | bytes) -> None:
        nonlocal printed
        real(path, content)
        printed += capsys.readouterr().out
        if (own / evidence.CHECKSUMS).exists():
            is_explained = evidence.NOT_SIGNED in printed
            assert (own / evidence.RUN_SIGNATURE).exists() is has_key is not is_explained

    monkeypatch.setattr(evidence, "write", write)
    coordinated(folder)
    assert (own / evidence.CHECKSUMS).exists()


@pytest.mark.parametrize("jump", [365 * 86400.0, -86400.0])
def test_a_jump_of_the_clock_changes_no_duration(
    node: Node, monkeypatch: pytest.MonkeyPatch, jump: float
) -> None:
    folder = node({"h0": 8})
    let_wall_clock_jump(monkeypatch, jump)
    coordinated(folder)
    records = tuple(evidence.read_records(folder / "evidence"))
    times = [time for record in records for time in (record.start, record.end)]
    assert 0 <= max(times) - min(times) < PATIENCE
