"""Evidence that root on the first host forged: only figures can be false, nothing that was ordered.

Root there has the key of the run, so every forgery is sealed and signed again.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from tests.factories import sample_evidence
from tests.factories.command_line import accept
from tests.factories.keys import sign_evidence, write_keys
from tests.promises import pool
from tests.promises.edited import Edit, Plan, Records, hashed, opened, write
from tests.promises.pool import Kind

from accept import backends
from accept.backends.job import Job
from accept.commands.plan import write_run
from accept.core import evidence
from accept.core.error_codes import Code
from accept.core.runner.keys import KeyPair, new_keys
from accept.core.serde import dump
from accept.evidence import rundir
from accept.plan.bundle import render
from accept.plan.resolve import Options, resolve

DEMO = next(run for run in pool.runs(Kind.EVIDENCE) if run.name == "demo")
DAY = 86400.0
#: Of the runs of the pool: accepted, rejected and interrupted.
FOREIGN = ("script", "simulated-two-nodes", "interrupted")


@dataclass(frozen=True, kw_only=True)
class Order:
    """A run of this workstation that has ended, and what its first host has."""

    folder: Path
    #: The evidence as the host serves it.
    served: Path
    key: Path

    def forge(self, edit: Edit) -> None:
        """Change plan and records, and write everything that root on the host can make."""
        plan, records = opened(self.served)
        edit(plan, records)
        write(self.served, plan, records)
        self.seal(self.key)

    def seal(self, key: Path) -> None:
        evidence.write_checksums(self.served)
        sign_evidence(self.served, key, evidence.RUN_SIGNATURE)


@pytest.fixture(scope="module")
def keys() -> tuple[KeyPair, KeyPair]:
    """Make the key of the run, and one of somebody else."""
    return new_keys("accept-run"), new_keys("mallory")


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write the run folder of the demo as if this workstation had ordered it."""
    folder = tmp_path_factory.mktemp("order") / "ordered"
    folder.mkdir()
    (hosts, _) = hosts_and_start(DEMO.folder)
    run = resolve(Options(machine="h100-8", hosts=hosts, backend="ssh"))
    write_run(run, render(run), folder)
    shutil.copy(DEMO.folder / evidence.PLAN, folder / rundir.RENDERED / evidence.PLAN)
    return folder


def hosts_and_start(folder: Path) -> tuple[tuple[str, ...], float]:
    records = [*evidence.read_records(folder)]
    hosts = {host: None for record in records for host in record.hosts}
    missing = {p.host: None for record in records for p in record.problems if p.host}
    return (*{**hosts, **missing},), min(r.start for r in records if r.start)


@pytest.fixture
def order(
    runs: Path,
    tmp_path: Path,
    written: Path,
    keys: tuple[KeyPair, KeyPair],
    monkeypatch: pytest.MonkeyPatch,
) -> Order:
    folder = shutil.copytree(written, runs / "demo")
    served = shutil.copytree(DEMO.folder, tmp_path / "served")
    hosts, start = hosts_and_start(served)
    job = Job(
        schema=1,
        backend="local",
        attempt=evidence.read_attempt(served),
        hosts=hosts,
        first="",
        folder=str(folder / "node"),
        submitted=datetime.fromtimestamp(start, UTC).isoformat(timespec="seconds"),
        signer=keys[0].public.strip(),
    )
    (folder / rundir.JOB).write_text(json.dumps(dump(job)))

    def fetch(job: Job, *, folder: Path, say: Callable[[str], None]) -> Path:
        return shutil.copytree(served, folder / rundir.EVIDENCE, symlinks=True)

    monkeypatch.setattr(backends.BACKENDS["local"], "collect", fetch)
    made = Order(folder=folder, served=served, key=write_keys(tmp_path, keys[0]))
    made.seal(made.key)
    return made


def without_a_step(plan: Plan, records: Records) -> None:
    gone = plan["steps"].pop()["id"]
    records[:] = [record for record in records if record["step"] != gone]


def without_bounds(plan: Plan, _: Records) -> None:
    plan["references"] = []


PLANS: dict[str, Edit] = {
    "no step": without_a_step,
    "no bounds": without_bounds,
    "noise": lambda plan, _: plan["machine"].update(noise=0.9),
    "another machine": lambda plan, _: plan["machine"].update(name="cpu"),
    "edits": lambda plan, _: plan.update(edited=["collectives: 1M"], steps=plan["steps"][:1]),
}


def of_another_host(_: Plan, records: Records) -> None:
    host = records[0]["hosts"][0]
    for record in records:
        record["hosts"] = ["elsewhere" if name == host else name for name in record["hosts"]]


def in_each(change: Callable[[dict[str, Any]], object]) -> Edit:
    return lambda _, records: [change(record) for record in records]


def measured(days: float) -> Edit:
    return in_each(lambda r: r.update(start=r["start"] + days * DAY, end=r["end"] + days * DAY))


def with_an_unordered_step(_: Plan, records: Records) -> None:
    problem = {"cause": "crashed", "message": "x", "host": records[0]["hosts"][0]}
    records.append({**records[-1], "step": "99-gemm", "log": "", "problems": [problem]})


_LOST = {"cause": "host-lost", "message": "x", "host": "elsewhere"}
_VALUE = {"check": "hosts", "name": "x", "value": 1.0, "unit": "s", "host": "elsewhere"}
OTHER_RUNS: dict[str, Edit] = {
    "another host": of_another_host,
    "a problem elsewhere": lambda _, records: records[-1].update(problems=[_LOST]),
    "a value elsewhere": lambda _, records: records[0].update(metrics=[_VALUE]),
    "kept": in_each(lambda record: record.update(attempt="earlier")),
    "before the order": measured(-400.0),
    "after today": measured(4000.0),
    "no times": in_each(lambda record: record.update(start=0.0, began=None, end=0.0)),
    "ended long ago": lambda _, records: records[-1].update(end=records[-1]["end"] - 4000 * DAY),
    "a step that was not ordered": with_an_unordered_step,
}


def assert_refused(order: Order, code: Code) -> None:
    """Assert that the evidence is neither fetched, nor judged where it is or anywhere else."""
    done = accept("collect", "demo")
    assert (done.code, done.error) == (6, code)
    assert not (order.folder / rundir.EVIDENCE).exists()
    refused = order.folder / f"{rundir.EVIDENCE}-refused"
    # As if the command had been killed before it compared anything, and as somebody may send it.
    in_place = shutil.copytree(refused, order.folder / rundir.EVIDENCE, symlinks=True)
    for place in ("demo", refused):
        done = accept("verify", place)
        assert (done.code, done.error) == (6, code), place
    shutil.rmtree(in_place)


def test_what_was_ordered_is_fetched_signed_and_judged(order: Order) -> None:
    assert accept("collect", "demo").code == 0
    verdict = json.loads(accept("judge", "demo", "--json").out)
    assert verdict["verified"] == "signed"
    assert backends.load_job(order.folder).evidence == evidence.root_hash(order.served)


@pytest.mark.parametrize("name", PLANS)
def test_another_plan_is_refused(order: Order, name: str) -> None:
    order.forge(hashed(PLANS[name]))
    assert_refused(order, Code.EVIDENCE_PLAN_CHANGED)


@pytest.mark.sampled
@pytest.mark.parametrize("name", OTHER_RUNS)
def test_other_hosts_times_and_steps_are_refused(order: Order, name: str) -> None:
    order.forge(OTHER_RUNS[name])
    assert_refused(order, Code.EVIDENCE_OTHER_RUN)


@pytest.mark.parametrize("name", ["env.sh", "settings.sh", "steps/99-other.sh"])
def test_another_script_is_refused(order: Order, name: str) -> None:
    rendered = order.folder / rundir.RENDERED / "env.sh"
    evidence.write_below(order.served, name, f"{rendered.read_text()}exit 0\n")
    order.seal(order.key)
    assert_refused(order, Code.EVIDENCE_PLAN_CHANGED)
    (order.served / name).unlink()
    shutil.copy(rendered, order.served)
    order.seal(order.key)
    assert accept("collect", "demo").code == 0


def test_runs_are_listed_with_the_verdict_of_this_workstation(order: Order) -> None:
    claimed = json.loads((order.served / evidence.VERDICT).read_text())
    claimed["headline"] = "pass: all nodes are good"
    (order.served / evidence.VERDICT).write_text(json.dumps(claimed))
    assert accept("collect", "demo").code == 0
    assert "collected, not judged" in accept("list", "runs").out
    verdict = json.loads(accept("judge", "demo", "--json").out)
    assert verdict["headline"] != claimed["headline"]
    assert verdict["headline"] in accept("list", "runs", "--json").out


@pytest.mark.parametrize(
    "words",
    [
        *(["judge"], ["report"], ["baseline"], ["show", "nodes"]),
        *(["explain", "{}", "h1"], ["ticket", "{}", "h1"], ["diff", "{}", "{}"]),
    ],
)
def test_every_command_that_shows_a_run_refuses_it(order: Order, words: list[str]) -> None:
    order.forge(hashed(without_bounds))
    accept("collect", "demo")
    refused = order.folder / f"{rundir.EVIDENCE}-refused"
    shutil.copytree(refused, order.folder / rundir.EVIDENCE)
    for place in ("demo", refused):
        with_place = [word.format(place) for word in words]
        done = accept(*with_place, *([place] if with_place == words else []))
        assert (done.code, done.error) == (6, Code.EVIDENCE_PLAN_CHANGED), place


def test_evidence_of_another_run_is_refused(order: Order) -> None:
    launch = json.loads((order.served / evidence.HOSTS).read_text())
    (order.served / evidence.HOSTS).write_text(json.dumps({**launch, "attempt": "other"}))
    order.seal(order.key)
    done = accept("collect", "demo")
    assert (done.code, done.error) == (6, Code.EVIDENCE_OTHER_RUN)


def test_a_missing_signature_is_refused_unless_the_run_gave_a_reason(order: Order) -> None:
    (order.served / evidence.RUN_SIGNATURE).unlink()
    assert_refused(order, Code.EVIDENCE_SIGNATURE)
    reason = "ssh-keygen failed: too old"
    (order.served / evidence.CONSOLE).write_text(f"  9.1 s  {evidence.NOT_SIGNED}: {reason}\n")
    done = accept("collect", "demo")
    assert (done.code, reason in done.err) == (0, True)
    assert json.loads(accept("judge", "demo", "--json").out)["verified"] == "not-verifiable"
    assert accept("verify", "demo").code == 7


def test_the_signature_of_another_key_is_refused(
    order: Order, tmp_path: Path, keys: tuple[KeyPair, KeyPair]
) -> None:
    order.seal(write_keys(tmp_path, keys[1], "other"))
    assert_refused(order, Code.EVIDENCE_SIGNATURE)


def outside_of_the_seal(order: Order, log: Path) -> None:
    """Name a log as desktop systems name their files, which the list of checksums leaves out."""
    log.rename(log.with_name("._0.log"))


def behind_a_link(order: Order, log: Path) -> None:
    """Put the logs of a step where pods write theirs, which the list of checksums leaves out."""
    place = order.served / evidence.PODS / log.parent.name
    place.parent.mkdir()
    log.parent.rename(place)
    log.parent.symlink_to(place)


def with_an_archive(hide: Callable[[Order, Path], None]) -> Callable[[Order, Path], None]:
    """Hide the log of a step whose archive is in the list of checksums."""

    def both(order: Order, log: Path) -> None:
        step = log.parent
        copy = shutil.copytree(step, order.served.parent / step.name)
        evidence.archive_logs(order.served, step.name)
        copy.rename(step)
        hide(order, log)

    return both


@pytest.mark.parametrize(
    "hide",
    [
        *(outside_of_the_seal, behind_a_link),
        *(with_an_archive(outside_of_the_seal), with_an_archive(behind_a_link)),
    ],
)
def test_a_log_that_the_seal_leaves_out_is_refused(
    order: Order, hide: Callable[[Order, Path], None]
) -> None:
    log = next((order.served / evidence.LOGS).rglob("*.log"))
    name = log.relative_to(order.served).as_posix()

    def change(plan: Plan, records: Records) -> None:
        record = next(record for record in records if record["log"] == name)
        hide(order, log)
        if not log.exists():
            record["log"] = (Path(name).parent / "._0.log").as_posix()

    order.forge(change)
    assert_refused(order, Code.EVIDENCE_CHANGED)


def test_fetched_evidence_that_was_reduced_to_a_log_is_refused(order: Order) -> None:
    assert accept("collect", "demo").code == 0
    fetched = order.folder / rundir.EVIDENCE
    shutil.rmtree(fetched)
    fetched.mkdir()
    console = sample_evidence.console(sample_evidence.record(), attempt="demo")
    (fetched / evidence.CONSOLE).write_text(console)
    done = accept("judge", "demo")
    assert (done.code, done.error) == (6, Code.EVIDENCE_CHANGED)


def test_an_own_run_is_judged_by_the_plan_of_this_workstation(order: Order) -> None:
    """Nodes that a run leaves out are not part of the hash of its plan."""
    order.forge(lambda plan, _: plan.update(leftOut=[{"name": "h99", "reason": "down"}]))
    assert accept("collect", "demo").code == 0
    assert json.loads(accept("judge", "demo", "--json").out)["leftOut"] == []


@pytest.mark.parametrize("run", [run for run in pool.runs(Kind.EVIDENCE) if run.name in FOREIGN])
def test_foreign_evidence_is_shown_as_not_verified_wherever_a_verdict_is(
    run: pool.PooledRun, runs: Path, tmp_path: Path, keys: tuple[KeyPair, KeyPair]
) -> None:
    copy = shutil.copytree(run.folder, tmp_path / "evidence")
    before = accept("judge", copy)
    verdict = json.loads(accept("judge", copy, "--json").out)
    assert verdict["verified"] == "not-verifiable"
    assert "verified=not-verifiable" in before.out.splitlines()[-1]
    for form in ("html", "md"):
        assert "NOT VERIFIED" in accept("report", copy, "--format", form).out
    assert accept("judge", copy, "--verified").code == (before.code or 7)
    if (copy / evidence.CHECKSUMS).is_file():
        own = write_keys(tmp_path, keys[1], "own")
        sign_evidence(copy, own, evidence.USER_SIGNATURE)
        options = ("--public-key", own.with_suffix(".pub"))
        assert accept("judge", copy, "--verified", *options).code == before.code
        other = write_keys(tmp_path, keys[0], "other").with_suffix(".pub")
        refused = accept("judge", copy, "--public-key", other)
        assert (refused.code, refused.error) == (6, Code.EVIDENCE_SIGNATURE)
