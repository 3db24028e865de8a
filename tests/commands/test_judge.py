"""`accept judge` on folders, archives and saved logs, intact and damaged."""

from __future__ import annotations

import io
import json
import os
import shutil
import sys
import tarfile
import zipfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from benchmarks.nccl_text import document, json_text, table_text
from tests.factories import nccl_logs, sample_evidence, simulated_evidence, verdicts
from tests.factories.command_line import accept, refused
from tests.factories.simulated_worlds import BY_NAME

from accept.commands import judged
from accept.core import evidence
from accept.core.plan import BoundKind, Injection, Plan, Reference

pytestmark = pytest.mark.usefixtures("runs")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return sample_evidence.write(tmp_path / "evidence")


def with_bound(metric: str) -> Plan:
    """Return the plan with an expectation of 8 m/s of a metric."""
    kind, source = BoundKind.EXPECTATION, "site.yaml:12"
    own = Reference(check="script", metric=metric, unit="m/s", kind=kind, source=source, lower=8.0)
    return sample_evidence.hashed(replace(sample_evidence.PLAN, references=(own,)))


class TestTheSameVerdict:
    def test_by_the_name_of_the_run_or_of_its_folders(self, runs: Path) -> None:
        folder = sample_evidence.write(runs / "one" / "evidence")
        places: tuple[list[object], ...] = ([folder], [runs / "one"], ["one"], ["last"], [])
        found = [accept("judge", *place, "--json") for place in places]
        assert {done.code for done in found} == {0}
        assert len({done.out for done in found}) == 1
        assert json.loads(found[0].out)["headline"] == "pass (no GPU tested)"

    def test_figures_come_from_the_raw_log_and_not_from_the_record(self, folder: Path) -> None:
        records = folder / evidence.RECORDS
        records.write_text(records.read_text().replace("7.5", "9999.0"))
        evidence.write_checksums(folder)
        done = accept("judge", folder, "--expect", "script.speed>=8")
        assert done.code == 3
        assert "7.5" in done.out
        assert "9999" not in done.out


class TestExpect:
    def test_a_threshold_of_the_user_is_applied_and_named(self, folder: Path) -> None:
        assert accept("judge", folder, "--expect", "script.speed>=7").code == 0
        done = accept("judge", folder, "--expect", "script.speed>=8")
        assert done.code == 3
        assert "--expect" in done.out
        assert "8" in done.out
        refused("judge", folder, "--expect", "fast", error="E-EXPECT-SYNTAX")

    def test_thresholds_of_the_run_hold_with_another_machine(self, tmp_path: Path) -> None:
        folder = sample_evidence.write(tmp_path / "evidence", plan=with_bound("speed"))
        for machine in ((), ("--machine", "cpu")):
            done = accept("judge", folder, *machine)
            assert done.code == 3
            assert "site.yaml:12" in done.out


class TestSeveral:
    def test_the_order_is_that_of_one_run(self, tmp_path: Path) -> None:
        """A run with an inconclusive and an untested check exits with 7, so two runs do as well."""
        inconclusive = sample_evidence.write(tmp_path / "inconclusive", plan=with_bound("other"))
        untested = sample_evidence.write(
            tmp_path / "untested", 'ACCEPT {"problem":"tool-missing","message":"no tool"}\n'
        )
        interrupted = sample_evidence.write(tmp_path / "interrupted", whole=False)
        alone = [accept("judge", path).code for path in (inconclusive, untested, interrupted)]
        assert alone == [7, 6, 5]
        assert accept("judge", inconclusive, untested).code == 7
        assert accept("judge", untested, inconclusive).code == 7
        assert accept("judge", untested, inconclusive, interrupted).code == 5


class TestIncomplete:
    @pytest.mark.parametrize(("status", "code"), [(0, 5), (1, 3)])
    def test_a_run_whose_coordinator_died_does_not_pass(
        self, tmp_path: Path, status: int, code: int
    ) -> None:
        folder = sample_evidence.write(tmp_path / "evidence", status=status, whole=False)
        done = accept("judge", folder, "--json")
        assert done.code == code
        assert json.loads(done.out)["interruption"]

    def test_a_log_outside_of_the_evidence_is_not_read(self, folder: Path) -> None:
        records = folder / evidence.RECORDS
        records.write_text(records.read_text().replace("logs/10-script/", "logs/../../"))
        evidence.write_checksums(folder)
        done = accept("judge", folder)
        assert (done.code, done.error) == (6, "E-EVIDENCE-LOG-MISSING")

    def test_a_run_that_was_not_collected_is_refused_with_advice(self, runs: Path) -> None:
        (runs / "one").mkdir(parents=True)
        (runs / "one" / "job.json").write_text("{}")
        done = accept("judge", "one")
        assert (done.code, done.error) == (6, "E-EVIDENCE-NOT-COLLECTED")
        assert "accept collect one" in done.err


@pytest.fixture
def everything(folder: Path) -> Path:
    """Return an evidence folder with every kind of file of a run."""
    for name in ("env.sh", "group", "steps/10-script.sh"):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text("text\n")
    evidence.write_checksums(folder)
    for name in (evidence.CONSOLE, f"{evidence.PODS}/0.log", "report.html"):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text("text\n")
    return folder


def files_of(folder: Path) -> list[str]:
    found = (path for path in sorted(folder.rglob("*")) if path.is_file())
    return [path.relative_to(folder).as_posix() for path in found]


#: Every path that this process opened.
opened: list[str] = []


def note_opened(event: str, arguments: tuple[object, ...]) -> None:
    if event == "open" and isinstance(arguments[0], (str, os.PathLike)):
        opened.append(os.fspath(arguments[0]))


sys.addaudithook(note_opened)


class TestCoverage:
    """The checksums cover all files that a judgement uses."""

    @pytest.mark.parametrize("edit", ["change", "cut", "remove", "replace"])
    def test_an_edited_file_stops_the_judgement_or_is_not_used(
        self, everything: Path, edit: str
    ) -> None:
        before = accept("judge", everything, "--json")
        assert before.code == 0
        used = []
        for name in files_of(everything):
            path = everything / name
            content = path.read_bytes()
            path.unlink()
            if edit != "remove":
                path.write_bytes(
                    {
                        "change": content.replace(b"pass", b"fail") + b"\n",
                        "cut": content[: len(content) // 2],
                        "replace": b"{}\n",
                    }[edit]
                )
            after = accept("judge", everything, "--json")
            if (after.code, after.out) != (before.code, before.out):
                used.append(name)
                # Evidence without SHA256SUMS is that of a run that never finished.
                unfinished = name == evidence.CHECKSUMS and edit == "remove"
                assert after.code == (5 if unfinished else 6), name
                assert unfinished or name in after.err, name
            path.write_bytes(content)
        assert set(used) >= {
            evidence.PLAN,
            evidence.RECORDS,
            evidence.RUN_END,
            evidence.CHECKSUMS,
            "hosts.json",
            sample_evidence.record().log,
        }
        listed = (everything / evidence.CHECKSUMS).read_text()
        assert all(name == evidence.CHECKSUMS or f"  {name}\n" in listed for name in used)

    def test_no_other_file_is_opened(self, everything: Path) -> None:
        opened.clear()
        assert accept("judge", everything).code == 0
        names = {
            Path(path).relative_to(everything).as_posix()
            for path in opened
            if Path(path).is_relative_to(everything) and Path(path).is_file()
        }
        listed = (everything / evidence.CHECKSUMS).read_text()
        assert evidence.PLAN in names
        assert {name for name in names if f"  {name}\n" not in listed} == {evidence.CHECKSUMS}


class TestInterrupted:
    @pytest.fixture
    def cancelled(self, tmp_path: Path) -> Path:
        return sample_evidence.write(tmp_path / "cancelled", interruption="the run was cancelled")

    @pytest.mark.parametrize(
        "content",
        [None, b"", b"{}", b"[" * 100_000, {"interruption": ""}, {"interruption": "late"}],
    )
    @pytest.mark.parametrize("interruption", ["", "the run was cancelled"])
    def test_run_and_any_other_does_not_depend_on_its_old_verdict(
        self, tmp_path: Path, interruption: str, content: bytes | dict[str, str] | None
    ) -> None:
        folder = sample_evidence.write(tmp_path / "evidence", interruption=interruption)
        before = accept("judge", folder, "--json")
        path = folder / evidence.VERDICT
        stored = json.loads(path.read_text())
        path.unlink()
        if content is not None:
            edited = json.dumps(stored | content).encode() if isinstance(content, dict) else content
            path.write_bytes(edited)
        assert accept("judge", folder, "--json") == before

    @pytest.mark.usefixtures("working")
    def test_run_is_judged_the_same_after_its_report_was_written_again(
        self, cancelled: Path
    ) -> None:
        before = accept("judge", cancelled, "--json")
        assert accept("report", cancelled).code == 0
        assert accept("judge", cancelled, "--json") == before

    def test_run_lasts_until_its_end_is_recorded(self, cancelled: Path) -> None:
        start = json.loads(accept("judge", cancelled, "--json").out)["start"]
        evidence.write_run_end(cancelled, "the run was cancelled", start + 9000)
        evidence.write_checksums(cancelled)
        assert json.loads(accept("judge", cancelled, "--json").out)["end"] == start + 9000

    def test_run_end_that_is_a_link_is_refused(self, cancelled: Path, folder: Path) -> None:
        (cancelled / evidence.RUN_END).unlink()
        evidence.write_checksums(cancelled)
        (cancelled / evidence.RUN_END).symlink_to(folder / evidence.RUN_END)
        refused("judge", cancelled, code=6, error="E-EVIDENCE-CHANGED")


class TestPlan:
    """The hash in reports is the hash of the judged plan."""

    @pytest.mark.parametrize(
        ("key", "value"),
        [
            ("hash", "0" * 64),
            ("filesHash", "0" * 64),
            ("filesHash", ""),
            ("seed", 2),
            ("injected", [{"fault": "wrong", "host": "h0"}]),
        ],
    )
    def test_that_was_edited_is_refused_even_with_new_checksums(
        self, tmp_path: Path, key: str, value: object
    ) -> None:
        folder = sample_evidence.write(tmp_path / "evidence", plan=sample_evidence.PLAN)
        path = folder / evidence.PLAN
        path.write_text(json.dumps({**json.loads(path.read_text()), key: value}))
        evidence.write_checksums(folder)
        refused("judge", folder, code=6, error="E-EVIDENCE-PLAN-CHANGED")

    def test_that_was_edited_is_refused_in_a_log_too(self, tmp_path: Path) -> None:
        kept = (verdicts.hosts_record(("h0",)), sample_evidence.record())
        verdict = sample_evidence.verdict_of(sample_evidence.record())
        log = tmp_path / "pod.log"
        log.write_text(evidence.pack(sample_evidence.PLAN, kept, verdict))
        assert accept("judge", log).code == 0
        log.write_text(evidence.pack(replace(sample_evidence.PLAN, seed=2), kept, verdict))
        refused("judge", log, code=6, error="E-EVIDENCE-PLAN-CHANGED")


def test_a_pipe_instead_of_the_hosts_file_does_not_block(tmp_path: Path) -> None:
    for whole, code in ((True, 6), (False, 5)):
        folder = sample_evidence.write(tmp_path / str(whole), whole=whole)
        (folder / "hosts.json").unlink()
        os.mkfifo(folder / "hosts.json")
        assert accept("judge", folder).code == code


class TestNoEvidence:
    @pytest.mark.parametrize("content", [b"", b"text\n", b"\x00" * 10_000, bytes(range(256)) * 40])
    def test_a_file_without_evidence_is_refused(self, tmp_path: Path, content: bytes) -> None:
        (tmp_path / "file").write_bytes(content)
        done = accept("judge", tmp_path / "file")
        assert (done.code, done.out) == (6, "")
        assert done.error in ("E-LOGS-NOT-A-LOG", "E-EVIDENCE-NONE")

    def test_a_folder_without_evidence_is_refused(self, tmp_path: Path) -> None:
        refused("judge", tmp_path, code=6, error="E-EVIDENCE-NONE")

    @pytest.mark.parametrize(
        "name", ["nosuch", "/no/such/place", "", "a\nb", "\x1b[31m", "x" * 5000]
    )
    def test_a_missing_path_is_refused(self, name: str) -> None:
        assert "\x1b" not in refused("judge", name)

    def test_a_pipe_is_refused_without_waiting(self, tmp_path: Path) -> None:
        os.mkfifo(tmp_path / "pipe")
        refused("judge", tmp_path / "pipe", error="E-RUN-UNKNOWN")


class TestArchives:
    def test_without_evidence_are_refused(self, tmp_path: Path) -> None:
        (tmp_path / "other").write_text("x")
        with tarfile.open(tmp_path / "other.tar", "w") as tar:
            tar.add(tmp_path / "other", arcname="other")
        refused("judge", tmp_path / "other.tar", code=6, error="E-EVIDENCE-NONE")

    @pytest.mark.parametrize(
        ("name", "kind"),
        [
            ("../outside", tarfile.REGTYPE),
            ("/tmp/outside", tarfile.REGTYPE),
            ("evidence/../../outside", tarfile.REGTYPE),
            ("evidence/plan.json", tarfile.SYMTYPE),
        ],
    )
    def test_that_reach_outside_read_and_write_nothing_there(
        self, tmp_path: Path, name: str, kind: bytes
    ) -> None:
        info = tarfile.TarInfo(name.replace("/tmp", str(tmp_path)))
        info.type, info.linkname, info.size = kind, "/etc/passwd", int(kind == tarfile.REGTYPE)
        with tarfile.open(tmp_path / "bad.tar", "w") as tar:
            tar.addfile(info, io.BytesIO(b"x"))
        code = "E-ARCHIVE-UNSAFE" if kind == tarfile.SYMTYPE else ""
        refused("judge", tmp_path / "bad.tar", code=6, error=code)
        assert not list(tmp_path.rglob("outside"))

    def test_a_bomb_is_refused_and_leaves_nothing(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        scratch = tmp_path / "scratch"
        scratch.mkdir()
        monkeypatch.setattr("tempfile.tempdir", str(scratch))
        bomb = tmp_path / "evidence.tar.gz"
        with tarfile.open(bomb, "w:gz") as tar:
            head = tarfile.TarInfo("evidence/plan.json")
            head.size = 100 << 20
            tar.addfile(head, io.BytesIO(bytes(head.size)))
        refused("judge", bomb, code=6, error="E-ARCHIVE-TOO-LARGE")
        assert list(scratch.iterdir()) == []


def without_a_sign(text: str) -> str:
    """Return a console without one sign in the last line of the packed evidence."""
    lines = text.splitlines()
    lines[-2] = lines[-2][:50] + lines[-2][51:]
    return "\n".join(lines) + "\n"


class TestLogs:
    @pytest.mark.parametrize(
        ("edit", "code"),
        [
            (lambda text: text[:-60], "E-EVIDENCE-CUT-OFF"),
            (without_a_sign, "E-EVIDENCE-DAMAGED"),
        ],
        ids=["cut off", "edited"],
    )
    def test_that_are_damaged_are_refused(
        self, tmp_path: Path, edit: Callable[[str], str], code: str
    ) -> None:
        (tmp_path / "pod.log").write_text(edit(sample_evidence.console(sample_evidence.record())))
        refused("judge", tmp_path / "pod.log", code=6, error=code)

    def test_beside_a_plan_or_records_are_not_used(self, tmp_path: Path) -> None:
        """The plan is missing, or the files that it is compared with were changed."""
        for left in (evidence.CHECKSUMS, evidence.RECORDS):
            folder = sample_evidence.write(tmp_path / left)
            (folder / evidence.CONSOLE).write_text(
                sample_evidence.console(sample_evidence.record())
            )
            (folder / evidence.PLAN).unlink()
            for other in {evidence.CHECKSUMS, evidence.RECORDS} - {left}:
                (folder / other).unlink()
            code = "CHANGED" if left == evidence.CHECKSUMS else "UNREADABLE"
            assert evidence.PLAN in refused("judge", folder, code=6, error=f"E-EVIDENCE-{code}")


def test_a_log_that_lost_what_its_record_has_is_refused(tmp_path: Path) -> None:
    """Its checksum may have been written after the damage."""
    folder = tmp_path / "evidence"
    simulated_evidence.write(folder, BY_NAME["w0"].cluster(2, 2, seed=1), rounds=2, name="one")
    record = next(r for r in evidence.read_records(folder) if r.metrics and r.log)
    log = folder / record.log
    lines = log.read_text().splitlines(keepends=True)
    log.write_text("".join(lines[: len(lines) // 2]))
    evidence.write_checksums(folder)
    assert record.log in refused("judge", folder, code=6, error="E-EVIDENCE-DAMAGED")


@pytest.mark.parametrize(
    "name", ["0-0.log", "0-0-node1-node2-all-reduce.log", "00-0000-064n-512r-2-checks-8G.log"]
)
def test_a_plan_with_logs_is_incomplete_evidence_and_not_logs_of_others(
    tmp_path: Path, name: str
) -> None:
    folder = tmp_path / "sent" / "of-one"
    (folder / "logs" / "40-collectives").mkdir(parents=True)
    (folder / evidence.PLAN).write_text("{}")
    table = nccl_logs.table("all_reduce", ("node1", "node2"), range(8), 350.0)
    (folder / "logs" / "40-collectives" / name).write_text(table)
    refused("judge", folder.parent, code=6, error="E-EVIDENCE-DAMAGED")


class TestReport:
    def test_files_are_written_and_named(self, runs: Path) -> None:
        folder = sample_evidence.write(runs / "one" / "evidence")
        for name in (evidence.REPORT, evidence.JUNIT):
            (folder / name).unlink()
        done = accept("report", folder)
        lists = [f"nodes/{name}.txt" for name in ("good", "bad", "untested")]
        assert done.out.splitlines() == [
            *(f"{folder}/{name}" for name in ("verdict.json", "report.md", "junit.xml")),
            *(f"{folder.parent}/{name}" for name in (*lists, "report.html")),
        ]
        assert (folder / evidence.REPORT).read_text().startswith("# pass")
        assert evidence.check_checksums(folder) == ()

    def test_a_run_folder_has_report_and_lists_beside_its_evidence(self, runs: Path) -> None:
        folder = sample_evidence.write(runs / "one" / "evidence")
        assert accept("judge", "one").code == 0
        first = (runs / "one" / "report.html").read_bytes()
        assert (runs / "one" / "nodes" / "good.txt").read_text() == "h0\n"
        assert (runs / "one" / "nodes" / "bad.txt").read_text() == ""
        (runs / "one" / "report.html").unlink()
        accept("judge", "one", "--machine", "cpu")
        assert not (runs / "one" / "report.html").exists()
        assert str(runs / "one" / "report.html") in accept("report", "one").out
        assert (runs / "one" / "report.html").read_bytes() == first
        assert evidence.check_checksums(folder) == ()

    def test_of_an_older_run_does_not_make_it_the_last(self, runs: Path) -> None:
        for number, name in enumerate(("one", "two")):
            sample_evidence.write(runs / name / "evidence")
            os.utime(runs / name, (number, number))
        accept("report", "one")
        assert str(runs / "two") in accept("report", "last").out

    def test_names_the_folder_that_cannot_be_written_to(
        self, folder: Path, runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.chdir(tmp_path)
        own = sample_evidence.write(runs / "one" / "evidence")
        for path, where in ((folder, "run this command in"), (own, "copy the evidence to")):
            name = f"{tmp_path.name}-report" if path is folder else runs / "one" / "nodes"
            Path(name).write_text("")
            assert f"{where} a folder" in refused("report", path, error="E-OUTPUT-WRITE")

    def test_a_verdict_does_not_depend_on_its_report(self, runs: Path) -> None:
        sample_evidence.write(runs / "one" / "evidence")
        (runs / "one" / "nodes").write_text("in the way")
        done = accept("judge", "one")
        assert (done.code, "report.html was not written" in done.err) == (0, True)

    @pytest.mark.usefixtures("working")
    def test_a_format_is_printed_also_as_json_and_of_an_archive(
        self, tmp_path: Path, folder: Path
    ) -> None:
        archive = sample_evidence.archive(folder, tmp_path / "evidence.tar")
        for place in (folder, archive):
            for form, start in (("md", "# pass"), ("junit", "<?xml"), ("html", "<!doctype html>")):
                printed = accept("report", place, "--format", form)
                assert printed.out.startswith(start)
                as_json = accept("report", place, "--format", form, "--json")
                assert json.loads(as_json.out)[form].rstrip() == printed.out.rstrip()
        assert set(json.loads(accept("report", folder, "--json").out)) == {"files"}
        refused("report", archive, error="E-EVIDENCE-NO-FOLDER")


def tar(folder: Path, target: Path, inner: str) -> Path:
    with tarfile.open(target, "w:gz") as packed:
        packed.add(folder, arcname=inner)
    return target


def zipped(folder: Path, target: Path, inner: str) -> Path:
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as packed:
        for path in sorted(folder.rglob("*")):
            packed.write(path, f"{inner}/{path.relative_to(folder)}".lstrip("/"))
    return target


def copied(folder: Path, target: Path, inner: str) -> Path:
    shutil.copytree(folder, target / inner)
    return target


def zipped_tar(folder: Path, target: Path, inner: str) -> Path:
    packed = tar(folder, target.with_suffix(".inner"), inner)
    with zipfile.ZipFile(target, "w") as outer:
        outer.write(packed, "evidence.tar.gz")
    return target


Form = Callable[[Path, Path, str], Path]
FORMS = [copied, tar, zipped, zipped_tar]


@pytest.mark.parametrize("form", FORMS)
class TestAnyForm:
    def test_a_drill_stays_a_drill(self, tmp_path: Path, form: Form) -> None:
        faults = (Injection(fault="wrong", host="h0"),)
        drill = sample_evidence.hashed(replace(sample_evidence.PLAN, injected=faults))
        folder = sample_evidence.write(tmp_path / "evidence", plan=drill)
        found = accept("judge", folder, "--json")
        assert json.loads(found.out)["injected"]
        given = accept("judge", form(folder, tmp_path / "given", "x/evidence"), "--json")
        assert (given.code, given.out) == (found.code, found.out)

    @pytest.mark.sampled
    @pytest.mark.parametrize(
        "name", [evidence.PLAN, evidence.RECORDS, sample_evidence.record().log]
    )
    @pytest.mark.parametrize("edit", ["change", "remove", "add"])
    def test_modified_evidence_is_refused(
        self, tmp_path: Path, folder: Path, form: Form, name: str, edit: str
    ) -> None:
        path = folder / name
        if edit == "change":
            path.write_text(path.read_text() + "\n")
        elif edit == "remove":
            path.unlink()
        else:
            path.with_name("more.log").write_text("x")
        for inner in ("x/evidence", "x"):
            given = form(folder, tmp_path / f"given-{len(inner)}", inner)
            assert "given" in refused("judge", given, code=6)

    def test_several_runs_are_judged_one_by_one(
        self, tmp_path: Path, folder: Path, form: Form
    ) -> None:
        both = tmp_path / "both"
        shutil.copytree(folder, both / "good")
        sample_evidence.write(both / "customer" / "bad", status=1)
        given = form(both, tmp_path / "given", "all")
        found = accept("judge", given, "--json")
        assert [one["state"] for one in json.loads(found.out)] == ["fail", "pass"]
        assert found.code == 3
        shown = accept("judge", given)
        assert all(f"{name}:\n" in shown.out for name in ("all/customer/bad", "all/good"))
        for command in ("report", "baseline"):
            assert accept(command, given).error == "E-EVIDENCE-SEVERAL"

    def test_other_files_beside_a_run_do_not_count(
        self, tmp_path: Path, folder: Path, form: Form
    ) -> None:
        ticket = tmp_path / "ticket"
        shutil.copytree(folder, ticket / "evidence")
        nccl_logs.corpus(ticket / "old-logs", nccl_logs.slow("node3"), nodes=nccl_logs.NODES[:4])
        (ticket / "dmesg_h0.log").write_text("srun: error: Node failure on h0\n")
        (ticket / "pod.log").write_text(sample_evidence.console(sample_evidence.record()))
        found = json.loads(accept("judge", form(ticket, tmp_path / "given", "x"), "--json").out)
        assert (found["state"], found["hosts"]) == ("pass", ["h0"])
        assert "other files" in found["notes"][0]

    def test_a_saved_log_is_found_among_other_files(self, tmp_path: Path, form: Form) -> None:
        folder = nccl_logs.corpus(tmp_path / "logs", nodes=nccl_logs.NODES[:3])
        for name, status in {"a.txt": 0, "b/b.txt": 1}.items():
            (folder / name).parent.mkdir(exist_ok=True)
            record = sample_evidence.record(status=status)
            (folder / name).write_text(sample_evidence.console(record))
        found = accept("judge", form(folder, tmp_path / "given", "x"), "--json")
        # The two logs are of the same run and attempt.
        assert json.loads(found.out)["state"] == "pass"


def test_a_link_inside_of_packed_evidence_is_refused(tmp_path: Path, folder: Path) -> None:
    (folder / "logs" / "more").symlink_to("/etc/passwd")
    refused(
        "judge", tar(folder, tmp_path / "a.tgz", "x/evidence"), code=6, error="E-ARCHIVE-UNSAFE"
    )


@pytest.mark.parametrize(
    "name", ["evidence/logs", "evidence/" + "n" * 300, "evidence/a/plan.json/x"]
)
def test_names_that_no_folder_can_have_are_refused(tmp_path: Path, folder: Path, name: str) -> None:
    packed = zipped(folder, tmp_path / "a.zip", "evidence")
    with zipfile.ZipFile(packed, "a") as more:
        more.writestr("evidence/a/plan.json", "x")
        more.writestr(name, "x")
    refused("judge", packed, code=6)


def test_files_of_desktops_do_not_change_evidence(folder: Path) -> None:
    for name in (".DS_Store", "logs/._10-script", "logs/Thumbs.db"):
        (folder / name).write_bytes(b"x")
    assert accept("judge", folder).code == 0


def test_many_files_are_announced_before_they_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(judged, "_MANY_FILES", 5)
    for number in range(4):
        (tmp_path / f"{number}.py").write_text("x")
        (tmp_path / f"{number}.txt").write_text("x")
    done = accept("judge", tmp_path)
    assert done.error == "E-EVIDENCE-NONE"
    assert "4 of 8 files look like logs" in done.err


def test_a_damaged_number_of_gpus_takes_neither_minutes_nor_all_memory(tmp_path: Path) -> None:
    data = document(table_text())
    data |= {"args": ["alltoall_perf"], "config": {**data["config"], "ngpus": 7216}}
    log = tmp_path / "pair.json"
    log.write_text(json_text(data))
    assert accept("judge", log).code == 7
