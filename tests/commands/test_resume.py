"""`accept run --resume`: which run it continues, and when it is refused."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.factories import verdicts
from tests.factories.command_line import accept, refused
from tests.factories.jobs import job_of, submitted

from accept.backends.slurm.submit import batch_script
from accept.commands.plan import write_run
from accept.commands.resume import prepare_resumed
from accept.core import evidence
from accept.core.causes import Cause
from accept.core.error_codes import Code
from accept.core.errors import BadInput, NotStarted
from accept.core.records import Problem
from accept.core.runner.launch import Launch
from accept.core.runner.resume import finished_steps
from accept.core.runner.slurm_step import SlurmRun
from accept.core.serde import dump, read
from accept.evidence import rundir
from accept.plan.bundle import load_bundle, render
from accept.plan.resolve import Options, Resolved, resolve
from accept.report.console import Terminal

HERE = os.uname().nodename
Interrupted = Callable[..., Path]


@pytest.fixture
def interrupted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Interrupted:
    """Return a function that writes a run on this machine which ended during a step."""
    monkeypatch.setenv("ACCEPT_RUNS", str(tmp_path / "runs"))

    def make(
        *,
        steps: int = 2,
        host: str = HERE,
        over: bool = False,
        backend: str = "local",
        lost: tuple[Problem, ...] = (),
        nodes: int = 1,
    ) -> Path:
        run = resolve(Options(machine="cpu", nodes=nodes, image="i" if nodes > 1 else None))
        bundle = render(run)
        run = replace(run, plan=bundle.plan, backend=backend, lost=lost)
        folder = rundir.create("old")
        write_run(run, bundle, folder)
        job = job_of(folder, hosts=(host,), submitted="2026-11-01T00:00:00+00:00")
        submitted(folder, job)
        target = folder / rundir.EVIDENCE
        target.mkdir()
        (target / evidence.PLAN).write_bytes(bundle.files["plan.json"])
        launch = Launch(attempt="old", hosts=(), start_seconds=1.0)
        (target / evidence.HOSTS).write_text(json.dumps(dump(launch)))
        start = datetime.fromisoformat(job.submitted).timestamp()
        evidence.append_record(target, replace(verdicts.hosts_record([host]), start=start))
        for step in bundle.plan.steps[:steps]:
            evidence.append_record(target, replace(verdicts.record(step, [host]), start=start))
        for log in {record.log for record in evidence.read_records(target)} - {""}:
            (target / log).parent.mkdir(parents=True, exist_ok=True)
            (target / log).touch()
        if over:
            evidence.write_run_end(target, "")
            evidence.write_checksums(target)
        return folder

    return make


def planned(*options: str) -> dict[str, bool]:
    """Return the steps of a resumed run, and whether each is kept."""
    done = accept("run", "--resume", "old", "--dry-run", "--json", *options)
    assert done.code == 0, done.err
    return {step["id"]: step["kept"] for step in json.loads(done.out)["steps"]}


def test_the_plan_marks_the_steps_that_were_finished(interrupted: Interrupted) -> None:
    interrupted(steps=3)
    for options in ((), ("--machine", "cpu", "--suite", "quick")):
        kept = [step for step, is_kept in planned(*options).items() if is_kept]
        assert kept == ["10-inventory", "20-health"]


@pytest.mark.parametrize(
    ("options", "named"),
    [
        (("--machine", "gpu"), "machine"),
        (("--suite", "standard"), "suite"),
        (("--hosts", "h1"), "hosts"),
        (("--machine", "cpu", "--set", "train.steps=20"), "train.steps"),
        (("--machine", "cpu", "--nccl", "NCCL_X=1"), "NCCL_X"),
    ],
)
def test_another_run_is_refused_and_the_difference_is_named(
    interrupted: Interrupted, options: tuple[str, ...], named: str
) -> None:
    interrupted()
    words = ("--machine", "cpu") * ("--machine" not in options)
    error = refused("run", "--resume", "old", *words, *options, error=Code.RESUME_DIFFERENT)
    assert named in error.splitlines()[0]


def test_another_machine_with_the_same_run_is_refused(interrupted: Interrupted) -> None:
    interrupted(host="elsewhere")
    assert "elsewhere" in refused("run", "--resume", "old", error=Code.RESUME_DIFFERENT)


@pytest.mark.parametrize(("steps", "over"), [(0, False), (1, False), (9, True)])
def test_a_run_with_all_steps_or_none_is_refused(
    interrupted: Interrupted, *, steps: int, over: bool
) -> None:
    interrupted(steps=steps, over=over)
    refused("run", "--resume", "old", error=Code.RESUME_NOTHING)


def test_a_host_that_was_lost_before_still_counts(interrupted: Interrupted) -> None:
    lost = Problem(cause=Cause.UNREACHABLE_TIMEOUT, message="h0 was lost", host="h0")
    folder = interrupted(steps=3, lost=(lost,))
    before = read(Resolved, json.loads((folder / rundir.RUN).read_text())["run"])
    run, _, kept = prepare_resumed(
        Options(machine=""), Terminal(quiet=True), folder=folder, before=before
    )
    assert (run.lost, kept) == ((lost,), ("10-inventory", "20-health"))
    assert run.earlier == str(folder / rundir.EVIDENCE)


def resumed(folder: Path) -> Resolved:
    """Return the run that continues the one in `folder`."""
    before = read(Resolved, json.loads((folder / rundir.RUN).read_text())["run"])
    terminal = Terminal(quiet=True)
    return prepare_resumed(Options(machine=""), terminal, folder=folder, before=before)[0]


def test_a_cluster_runs_the_rest_on_the_same_nodes(interrupted: Interrupted) -> None:
    assert resumed(interrupted(steps=3, backend="slurm")).hosts == (HERE,)


def test_pods_run_the_rest_on_the_same_nodes(interrupted: Interrupted) -> None:
    run = resumed(interrupted(steps=3, backend="kubernetes"))
    assert run.site.kubernetes.include_nodes == (HERE,)


def test_slurm_gets_no_node_that_was_lost(interrupted: Interrupted) -> None:
    folder = interrupted(steps=3, backend="slurm", nodes=2)
    lost = Problem(cause=Cause.HOST_DIED, message="h1 died", check="hosts", host="h1")
    target = folder / rundir.EVIDENCE
    records = [*evidence.read_records(target)]
    (target / evidence.RECORDS).unlink()
    for record in [replace(records[0], hosts=(HERE, "h1")), *records[1:]]:
        problems = (lost,) if record.step == "10-inventory" else ()
        evidence.append_record(target, replace(record, problems=(*record.problems, *problems)))
    run = resumed(folder)
    assert (run.hosts, [problem.host for problem in run.lost]) == ((HERE,), ["h1"])


def test_steps_that_are_too_large_for_the_script_of_a_job_are_refused(
    interrupted: Interrupted,
) -> None:
    folder = interrupted(steps=3, backend="slurm")
    target = folder / rundir.EVIDENCE
    (log,) = {one.log for one in evidence.read_records(target) if one.step == "20-health"}
    (target / log).write_bytes(os.urandom(4 << 20))
    run = resumed(folder)
    job = SlurmRun(
        attempt="new", folder="/new", shared="/new", start_seconds=1.0, life_seconds=1.0,
        keep_seconds=1.0, enough_minutes=7, hold_seconds=1.0, gpus=False, busy_ok=False,
    )  # fmt: skip
    bundle = load_bundle(folder / rundir.RENDERED, run.plan)
    with pytest.raises(NotStarted) as error:
        batch_script(job, bundle, Path(run.earlier))
    assert error.value.code is Code.RESUME_NOT_SENT


def test_pods_whose_nodes_are_not_known_are_refused(interrupted: Interrupted) -> None:
    folder = interrupted(steps=3, backend="kubernetes", nodes=2)
    with pytest.raises(BadInput) as error:
        resumed(folder)
    assert error.value.code is Code.RESUME_NODES


def test_a_run_whose_logs_are_lost_is_refused(interrupted: Interrupted) -> None:
    folder = interrupted(steps=3, backend="kubernetes")
    (folder / rundir.FROM_LOG).touch()
    with pytest.raises(BadInput) as error:
        resumed(folder)
    assert error.value.code is Code.RESUME_NOTHING


def test_changed_evidence_is_refused(interrupted: Interrupted) -> None:
    folder = interrupted(steps=3, over=True)
    (folder / rundir.EVIDENCE / evidence.RECORDS).write_text("")
    refused("run", "--resume", "old", code=6, error=Code.EVIDENCE_CHANGED)


def test_a_resumed_run_is_not_repeated() -> None:
    refused("run", "--resume", "old", "--repeat", "2", error=Code.USAGE)


STEPS = tuple(verdicts.step("script", "each", number=10 * n) for n in range(1, 6))


@given(st.sets(st.integers(0, 4)), st.integers(0, 6))
def test_the_last_step_counts_only_if_a_later_one_has_begun(ran: set[int], begun: int) -> None:
    records = [verdicts.record(STEPS[number], ["h0"]) for number in sorted(ran)]
    steps = finished_steps(records, verdicts.plan(*STEPS), begun)
    expected = [n for n in sorted(ran) if n != max(ran) or begun > n + 1]
    assert [*steps] == [STEPS[number].id for number in expected]
