"""Runs over ssh after their start: follow, collect, cancel, delete, and login greetings."""

from __future__ import annotations

import json
import math
import os
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest
from tests.factories import sample_evidence
from tests.factories.clock import PATIENCE, Clock
from tests.factories.command_line import accept
from tests.factories.keys import KEYS
from tests.factories.standin_ssh import StandinSsh, standin_ssh

from accept.backends import manage
from accept.backends.job import Job, SshAccess
from accept.backends.protocol import FirstHostLost
from accept.backends.remote import Reply, call
from accept.backends.requirements import Requirement
from accept.backends.ssh import backend, prepare
from accept.backends.ssh.client import reach_of
from accept.backends.ssh.prepare import Absent
from accept.config import Site, resources
from accept.core import evidence
from accept.core.causes import Cause
from accept.core.error_codes import Code
from accept.core.errors import AcceptError, BadEvidence, BadInput, Exit, Interrupted, NoEvidence
from accept.core.model import Problem
from accept.core.runner.host_setup import Ready
from accept.core.runner.ssh import MARKER
from accept.core.serde import dump
from accept.evidence import rundir
from accept.plan.bundle import render
from accept.plan.resolve import ClusterPlace, Options, Resolved, resolve

GREETING = "Welcome to the lab!\nstarted ready 12 34\n"


@pytest.fixture
def hosts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> StandinSsh:
    """Return hosts that all are this machine, behind a stand-in ssh."""
    monkeypatch.setenv("ACCEPT_RUNS", str(tmp_path / "runs"))
    monkeypatch.delenv("ACCEPT_SSH_CONFIG", raising=False)
    return standin_ssh(tmp_path / "ssh", monkeypatch)


@pytest.fixture
def folder(hosts: StandinSsh) -> Path:
    """Return the run's folder on the workstation."""
    return rundir.create("one")


@pytest.fixture
def node(tmp_path: Path) -> Path:
    """Return the run's folder on the first host after a reboot that ended all its processes."""
    node = tmp_path / "accept-one"
    node.mkdir()
    (node / "run").write_text("one\n")
    (node / "guard.pid").write_text("1 1\n")
    (node / "key").write_text("secret\n")
    (node / "console.log").write_text("".join(f"line {n}\n" for n in range(100)))
    shutil.copy(resources.launchers() / "kill.sh", node)
    os.mkfifo(node / "events")
    sample_evidence.write(node / "evidence")
    return node


def job_in(node: Path, *hosts: str) -> Job:
    names = hosts or ("h1",)
    return Job(
        schema=1, backend="ssh", attempt="one", hosts=names, first=names[0], folder=str(node)
    )


@pytest.fixture
def job(node: Path) -> Job:
    return job_in(node)


def stored(job: Job, folder: Path) -> None:
    """Write job.json, as a submitted run has it."""
    evidence.write(folder / rundir.JOB, json.dumps(dump(job)))


def pack(node: Path) -> None:
    """Leave the evidence as a guard does at the end of a run."""
    sample_evidence.archive(node / "evidence", node / "evidence.tar")
    shutil.rmtree(node / "evidence")
    (node / "status").write_text("0\n")


def start_of(pid: int) -> str:
    """Return when a process started, in clock ticks since the boot."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]


@pytest.fixture
def process() -> Iterator[Callable[..., subprocess.Popen[bytes]]]:
    """Return a function that starts a process with variables in its environment."""
    started = []

    def start(**environment: str) -> subprocess.Popen[bytes]:
        # The empty line shows that the shell runs with its final environment.
        one = subprocess.Popen(
            ["sh", "-c", "echo; exec sleep 600"],
            env={"PATH": os.environ["PATH"], **environment},
            stdout=subprocess.PIPE,
        )
        assert one.stdout is not None
        assert one.stdout.readline() == b"\n"
        started.append(one)
        return one

    yield start
    for one in started:
        one.kill()
        one.wait()
        assert one.stdout is not None
        one.stdout.close()


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """Return the clock that code on the workstation uses."""
    return Clock(monkeypatch)


def ignore(_: str) -> None:
    """Ignore a line of progress."""


class TestALoginShellThatPrintsText:
    def test_does_not_damage_the_evidence(
        self, hosts: StandinSsh, folder: Path, node: Path, job: Job
    ) -> None:
        pack(node)
        hosts.greet(GREETING)
        place = backend.collect(job, folder=folder, say=ignore)
        assert evidence.check_checksums(place) == ()

    @pytest.mark.usefixtures("clock")
    def test_does_not_shift_the_console_after_a_reconnect(
        self, hosts: StandinSsh, node: Path, job: Job
    ) -> None:
        (node / "status").write_text("3\n")
        hosts.greet(GREETING)
        hosts.cut(200, 200)
        lines: list[str] = []
        assert backend.watch(job, folder=node, say=lines.append, log=lines.append) == 3
        assert [line for line in lines if line.startswith("line")] == [
            f"line {n}" for n in range(100)
        ]
        assert not [line for line in lines if "lab" in line]

    def test_does_not_keep_an_absent_host_alive(
        self, hosts: StandinSsh, node: Path, job: Job, clock: Clock
    ) -> None:
        hosts.greet(GREETING)
        hosts.cut(*[0] * 200)
        with pytest.raises(Interrupted):
            backend.watch(job, folder=node, say=ignore, log=ignore)

    def test_is_a_note_in_doctor_and_not_a_failure(self, hosts: StandinSsh) -> None:
        run = planned("h1")
        hosts.greet(GREETING)
        (note,) = (n for n in backend.doctor(run, say=ignore) if n.code is Requirement.LOGIN_SHELL)
        assert note.good
        assert note.advice
        hosts.greet("")
        codes = [need.code for need in backend.doctor(run, say=ignore)]
        assert Requirement.LOGIN_SHELL not in codes


class TestAFirstHostThatDoesNotAnswer:
    @pytest.fixture(autouse=True)
    def down(self, hosts: StandinSsh) -> None:
        """Let h1 not answer; the other hosts are this machine."""
        hosts.take_down("h1")

    @pytest.fixture
    def connected(self, node: Path) -> Iterator[None]:
        """Let the coordinator be connected to the other hosts."""
        # This process has a child, as the sshd of a connected host has.
        with subprocess.Popen(["sleep", "60"]) as session:
            (node / "sshd.pid").write_text(f"{os.getpid()} {start_of(os.getpid())}\n")
            yield
            session.kill()

    @pytest.fixture
    def disconnected(self, node: Path, process: Callable[..., subprocess.Popen[bytes]]) -> None:
        """Let the other hosts have lost the coordinator."""
        sshd = process()
        (node / "sshd.pid").write_text(f"{sshd.pid} {start_of(sshd.pid)}\n")

    @pytest.mark.usefixtures("disconnected")
    def test_is_lost_after_one_or_two_questions_if_the_others_have_lost_the_coordinator(
        self, node: Path, clock: Clock
    ) -> None:
        began = clock.now
        with pytest.raises(FirstHostLost) as error:
            backend.watch(job_in(node, "h1", "h2", "h3"), folder=node, say=ignore, log=ignore)
        assert (error.value.lost, error.value.others) == (("h1",), ("h2", "h3"))
        assert clock.now - began < 150

    @pytest.mark.usefixtures("disconnected")
    def test_is_not_lost_if_it_answers_after_a_minute(
        self, hosts: StandinSsh, node: Path, clock: Clock
    ) -> None:
        (node / "status").write_text("0\n")
        back = clock.now + 60

        def bring_up() -> None:
            if clock.now >= back:
                hosts.bring_up("h1")

        clock.on_sleep(bring_up)
        job = job_in(node, "h1", "h2", "h3")
        assert backend.watch(job, folder=node, say=ignore, log=ignore) == 0

    @pytest.mark.usefixtures("connected")
    def test_may_run_on_if_the_coordinator_is_connected_to_the_others(
        self, node: Path, clock: Clock
    ) -> None:
        began = clock.now
        with pytest.raises(Interrupted) as error:
            backend.watch(job_in(node, "h1", "h2"), folder=node, say=ignore, log=ignore)
        assert error.value.code is Code.SSH_NO_ANSWER
        assert clock.now - began >= 600

    @pytest.mark.usefixtures("clock")
    def test_may_run_on_if_no_host_answers(self, hosts: StandinSsh, node: Path) -> None:
        hosts.take_down("h2")
        with pytest.raises(Interrupted) as error:
            backend.watch(job_in(node, "h1", "h2"), folder=node, say=ignore, log=ignore)
        assert error.value.code is Code.SSH_NO_ANSWER


class TestAFirstHostThatRestarted:
    @pytest.fixture(autouse=True)
    def others(
        self, node: Path, process: Callable[..., subprocess.Popen[bytes]], hosts: StandinSsh
    ) -> None:
        """Let the other hosts, which are this machine, have lost the coordinator."""
        sshd = process()
        (node / "sshd.pid").write_text(f"{sshd.pid} {start_of(sshd.pid)}\n")

    def test_is_lost_if_it_was_started_after_the_submission(self, node: Path) -> None:
        # This machine was started after that.
        job = replace(job_in(node, "h1", "h2"), submitted="2000-01-01T00:00:00+00:00")
        with pytest.raises(FirstHostLost) as error:
            backend.watch(job, folder=node, say=ignore, log=ignore)
        assert (error.value.lost, error.value.others) == (("h1",), ("h2",))

    def test_has_only_lost_its_processes_if_it_was_started_before(self, node: Path) -> None:
        job = replace(job_in(node, "h1", "h2"), submitted=datetime.now(UTC).isoformat())
        with pytest.raises(Interrupted) as error:
            backend.watch(job, folder=node, say=ignore, log=ignore)
        assert error.value.code is Code.RUN_COORDINATOR_DIED


def test_heartbeats_are_not_printed(monkeypatch: pytest.MonkeyPatch) -> None:
    chunks = [b"one\nt\x1e\nw", b"o\n\x1e", b"\n\x1eended 0\n"]
    monkeypatch.setattr(manage, "_follow", lambda *_: (chunk for chunk in chunks))
    lines: list[str] = []
    console = manage.Console(lines.append)
    assert console.follow(reach_of(SshAccess()), "h1", "/nowhere") == "0"
    assert (lines, console.seen) == (["one", "two"], len("one\ntwo\n"))


def test_doctor_names_the_program_that_unpacks_the_archives(hosts: StandinSsh) -> None:
    needs = backend.doctor(planned("h1"), say=ignore)
    (need,) = (need for need in needs if need.what == "bzip2 or Python")
    assert (need.good, need.found[:1]) == (True, "/")


def planned(*names: str) -> Resolved:
    return resolve(Options(machine="cpu", nodes=len(names) or 1, backend="ssh", hosts=names))


class TestCollect:
    def test_continues_at_the_byte_where_the_connection_was_cut(
        self, hosts: StandinSsh, folder: Path, node: Path, job: Job
    ) -> None:
        pack(node)
        size = (node / "evidence.tar").stat().st_size
        assert size > 6000
        # The first connection announces the archive.
        hosts.cut("whole", 4000, 2000)
        place = backend.collect(job, folder=folder, say=ignore)
        assert evidence.check_checksums(place) == ()
        first, second = 4000 - len(MARKER), 2000 - len(MARKER)
        assert offsets_sent(hosts) == [0, first, first + second]

    def test_continues_where_an_earlier_command_ended(
        self, hosts: StandinSsh, folder: Path, node: Path, job: Job, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        pack(node)
        hosts.cut("whole", 4000)
        with monkeypatch.context() as patch:
            patch.setattr("accept.evidence.archive._PAUSES", ())
            with pytest.raises(AcceptError):
                backend.collect(job, folder=folder, say=ignore)
        place = backend.collect(job, folder=folder, say=ignore)
        assert evidence.check_checksums(place) == ()
        assert offsets_sent(hosts) == [0, 4000 - len(MARKER)]

    def test_takes_evidence_for_which_the_host_had_no_room_to_pack(
        self, hosts: StandinSsh, folder: Path, node: Path, job: Job
    ) -> None:
        (node / "status").write_text("0\n")
        (node / "unpacked").touch()
        hosts.cut("whole", 4000)
        place = backend.collect(job, folder=folder, say=ignore)
        assert evidence.check_checksums(place) == ()

    def test_takes_what_was_measured_before_the_host_was_restarted(
        self, hosts: StandinSsh, folder: Path, job: Job
    ) -> None:
        place = backend.collect(job, folder=folder, say=ignore)
        assert (place / evidence.PLAN).is_file()
        assert (place / evidence.CONSOLE).is_file()

    def test_leaves_nothing_on_the_host_and_no_archive_here(
        self, hosts: StandinSsh, folder: Path, node: Path, job: Job
    ) -> None:
        pack(node)
        backend.collect(job, folder=folder, say=ignore)
        assert not node.exists()
        assert [path.name for path in folder.iterdir()] == [rundir.EVIDENCE]

    def test_of_modified_evidence_keeps_the_copy_on_the_host(
        self, hosts: StandinSsh, folder: Path, node: Path, job: Job
    ) -> None:
        with (node / "evidence" / evidence.RECORDS).open("a") as file:
            file.write("\n")
        pack(node)
        with pytest.raises(BadEvidence) as error:
            backend.collect(job, folder=folder, say=ignore)
        assert error.value.code == Code.EVIDENCE_CHANGED
        assert (node / "evidence.tar").is_file()
        assert not (folder / rundir.EVIDENCE).exists()

    def test_of_a_running_run_is_refused(
        self,
        hosts: StandinSsh,
        folder: Path,
        node: Path,
        job: Job,
        process: Callable[..., subprocess.Popen[bytes]],
    ) -> None:
        coordinator = process(ACCEPT_DIR=str(node))
        (node / "coordinator.pid").write_text(f"{coordinator.pid}\n")
        with pytest.raises(Interrupted):
            backend.collect(job, folder=folder, say=ignore)
        assert (node / "evidence").is_dir()

    def test_finds_nothing_if_the_folder_is_gone(
        self, hosts: StandinSsh, folder: Path, tmp_path: Path
    ) -> None:
        with pytest.raises(NoEvidence):
            backend.collect(job_in(tmp_path / "accept-one"), folder=folder, say=ignore)

    def test_does_not_follow_a_link_that_took_the_place_of_the_folder(
        self, hosts: StandinSsh, folder: Path, node: Path, tmp_path: Path
    ) -> None:
        pack(node)
        link = tmp_path / "scratch" / "accept-one"
        link.parent.mkdir()
        link.symlink_to(node)
        with pytest.raises(NoEvidence):
            backend.collect(job_in(link), folder=folder, say=ignore)


def offsets_sent(hosts: StandinSsh) -> list[int]:
    """Return the offsets from which the archive was requested."""
    return [int(call.rstrip("'").split()[-1]) for call in hosts.calls if " send " in call]


@pytest.fixture
def limited_sleep(clock: Clock) -> None:
    """Fail a test that asks a host again and again."""
    left = iter(range(3))

    def count() -> None:
        if next(left, None) is None:
            pytest.fail("the host is asked again and again")

    clock.on_sleep(count)


class TestWatch:
    def test_ends_if_no_process_of_the_run_lives(
        self, hosts: StandinSsh, node: Path, job: Job
    ) -> None:
        hosts.do_not_wait()
        lines: list[str] = []
        with pytest.raises(Interrupted):
            backend.watch(job, folder=node, say=lines.append, log=lines.append)
        assert len(lines) == 100

    @pytest.mark.usefixtures("limited_sleep")
    @pytest.mark.parametrize("how", ["a link", "another user"])
    def test_ends_if_the_folder_belongs_to_another_user(
        self, hosts: StandinSsh, node: Path, tmp_path: Path, how: str
    ) -> None:
        folder = node
        if how == "a link":
            folder = tmp_path / "scratch" / "accept-one"
            folder.parent.mkdir()
            folder.symlink_to(node)
        elif os.geteuid() != 0:
            pytest.skip("only root can change the owner of a folder")
        else:
            os.chown(node, 65534, 65534)
        lines: list[str] = []
        with pytest.raises(Interrupted) as caught:
            backend.watch(job_in(folder), folder=node, say=lines.append, log=lines.append)
        assert caught.value.code == Code.SSH_FOREIGN_FOLDER
        assert lines == []


class TestDelete:
    """After a reboot, or if the guard was killed, no process of the run answers on the host."""

    def test_removes_the_folder_when_there_is_no_guard(
        self, hosts: StandinSsh, node: Path, job: Job
    ) -> None:
        assert backend.delete(job, dry_run=True, say=ignore) == (f"h1:{node}",)
        assert node.exists()
        assert backend.delete(job, dry_run=False, say=ignore) == (f"h1:{node}",)
        assert not node.exists()
        assert backend.delete(job, dry_run=False, say=ignore) == ()

    def test_removes_the_folder_of_version_0_1_which_had_no_guard_pid(
        self, hosts: StandinSsh, node: Path, job: Job
    ) -> None:
        (node / "guard.pid").unlink()
        hosts.do_not_wait()
        backend.delete(job, dry_run=False, say=ignore)
        assert not node.exists()

    def test_ends_processes_that_a_killed_guard_left(
        self,
        hosts: StandinSsh,
        node: Path,
        job: Job,
        process: Callable[..., subprocess.Popen[bytes]],
    ) -> None:
        rank = process(ACCEPT_RUN="one", ACCEPT_DIR=str(node))
        sshd, timer = process(), process(ACCEPT_GUARD=str(node))
        (node / "sshd.pid").write_text(f"{sshd.pid} {start_of(sshd.pid)}\n")
        backend.delete(job, dry_run=False, say=ignore)
        assert [one.wait() for one in (rank, sshd, timer)] == [-15, -15, -15]

    def test_does_not_touch_a_local_run_of_the_same_name(
        self,
        hosts: StandinSsh,
        node: Path,
        job: Job,
        process: Callable[..., subprocess.Popen[bytes]],
    ) -> None:
        other = process(ACCEPT_RUN="one", ACCEPT_DIR="/home/user/runs/one/node")
        backend.delete(job, dry_run=False, say=ignore)
        assert not node.exists()
        assert other.poll() is None

    def test_does_not_touch_a_process_that_only_has_the_same_id(
        self,
        hosts: StandinSsh,
        node: Path,
        job: Job,
        process: Callable[..., subprocess.Popen[bytes]],
    ) -> None:
        other = process()
        (node / "sshd.pid").write_text(f"{other.pid} 1\n")
        (node / "guard.pid").write_text(f"{other.pid} {start_of(other.pid)}\n")
        backend.delete(job, dry_run=False, say=ignore)
        assert not node.exists()
        assert other.poll() is None

    def test_reports_a_process_that_does_not_end(
        self, hosts: StandinSsh, node: Path, job: Job
    ) -> None:
        (node / "kill.sh").write_text("echo 1\n")
        with pytest.raises(Interrupted) as caught:
            backend.delete(job, dry_run=False, say=ignore)
        assert caught.value.code == Code.SSH_NOT_REMOVED
        assert "process 1 " in caught.value.message

    def test_leaves_a_link_that_took_the_place_of_the_folder(
        self, hosts: StandinSsh, node: Path, tmp_path: Path
    ) -> None:
        link = tmp_path / "scratch" / "accept-one"
        link.parent.mkdir()
        link.symlink_to(node)
        with pytest.raises(Interrupted):
            backend.delete(job_in(link), dry_run=False, say=ignore)
        assert (node / "key").exists()

    def test_leaves_a_folder_of_another_user(self, hosts: StandinSsh, node: Path, job: Job) -> None:
        if os.geteuid() != 0:
            pytest.skip("only root can change the owner of a folder")
        os.chown(node, 65534, 65534)
        with pytest.raises(Interrupted):
            backend.delete(job, dry_run=False, say=ignore)
        assert (node / "key").exists()

    def test_fails_when_a_host_does_not_answer(
        self, hosts: StandinSsh, folder: Path, node: Path
    ) -> None:
        stored(job_in(node, "h1", "h2"), folder)
        hosts.take_down("h2")
        done = accept("clean", "one", "--no-collect")
        assert (done.code, done.error) == (Exit.INTERRUPTED, Code.SSH_NOT_REMOVED)
        assert "h2" in done.err
        assert not node.exists()


class TestCancel:
    def test_ends_a_run_whose_guard_is_gone_and_keeps_its_evidence(
        self,
        hosts: StandinSsh,
        folder: Path,
        node: Path,
        job: Job,
        process: Callable[..., subprocess.Popen[bytes]],
    ) -> None:
        coordinator = process(ACCEPT_DIR=str(node), ACCEPT_RUN="one")
        (node / "coordinator.pid").write_text(f"{coordinator.pid}\n")
        backend.cancel(job, folder=folder, say=ignore)
        assert coordinator.wait() == -15
        assert (backend.collect(job, folder=folder, say=ignore) / evidence.PLAN).is_file()

    def test_fails_when_the_first_host_does_not_answer(
        self, hosts: StandinSsh, folder: Path, job: Job
    ) -> None:
        hosts.take_down("h1")
        with pytest.raises(Interrupted):
            backend.cancel(job, folder=folder, say=ignore)

    def test_removes_the_run_from_the_other_hosts_after_the_first_confirmed_its_end(
        self, hosts: StandinSsh, folder: Path, node: Path
    ) -> None:
        backend.cancel(job_in(node, "h1", "h2"), folder=folder, say=ignore)
        assert verbs_sent(hosts) == [("h1", "stop"), ("h2", "remove")]

    def test_leaves_the_other_hosts_if_the_first_does_not_answer(
        self, hosts: StandinSsh, folder: Path, node: Path
    ) -> None:
        hosts.take_down("h1")
        with pytest.raises(Interrupted) as caught:
            backend.cancel(job_in(node, "h1", "h2"), folder=folder, say=ignore)
        assert verbs_sent(hosts) == [("h1", "stop")]
        assert caught.value.code == Code.SSH_END_UNCONFIRMED
        assert node.exists()

    def test_leaves_the_other_hosts_if_the_first_keeps_a_process(
        self, hosts: StandinSsh, folder: Path, node: Path
    ) -> None:
        (node / "kill.sh").write_text("echo 1\n")
        with pytest.raises(Interrupted) as caught:
            backend.cancel(job_in(node, "h1", "h2"), folder=folder, say=ignore)
        assert verbs_sent(hosts) == [("h1", "stop")]
        assert "process 1 " in caught.value.message


def verbs_sent(hosts: StandinSsh) -> list[tuple[str, str]]:
    """Return the host and the verb of each call of manage.sh, in this order."""
    found = [re.search(r" -- (\S+) .* -s -- (\w+) ", call) for call in hosts.calls]
    return [(match[1], match[2]) for match in found if match]


class TestAConnection:
    def test_is_tried_again_if_sshd_refuses_it_because_of_many_others(
        self, hosts: StandinSsh, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("random.uniform", lambda *_: 0.0)
        hosts.refuse(2)
        assert call(reach_of(SshAccess()), "h1", "echo there", timeout=PATIENCE).out == b"there\n"


class TestSubmit:
    def test_leaves_hosts_without_files_of_the_run_out_of_the_job(
        self, folder: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Later commands would wait for them, and fail, although nothing is left there."""
        ready = Ready(name="h1", port=1, addresses=(), python=(3, 11), busy=())
        problem = Problem(cause=Cause.UNREACHABLE_TIMEOUT, message="no answer")
        results: dict[str, Ready | Absent] = {
            "h1": ready,
            "h2": Absent(problem=problem, has_files=True),
            "h3": Absent(problem=problem, has_files=False),
        }
        sent: list[bytes] = []

        def call(*_: object, stdin: bytes, **__: object) -> Reply:
            sent.append(stdin)
            return Reply(exit=0, out=b"started\n", err="")

        monkeypatch.setattr(backend, "make_ready", lambda *_, **__: results)
        monkeypatch.setattr(backend, "call", call)
        run = planned("h1", "h2", "h3")
        recorded: list[Job] = []
        job = backend.submit(
            run,
            render(run),
            attempt="one",
            folder=folder,
            record=recorded.append,
            say=ignore,
        )
        assert [(one.hosts, one.first) for one in recorded] == [(run.hosts, "")]
        assert job.hosts == ("h1", "h2")
        # The verdict names all of them.
        assert [host["name"] for host in json.loads(sent[0])["hosts"]] == ["h1", "h2", "h3"]

    @pytest.mark.parametrize(
        ("error", "has_files"),
        [
            ("ssh: Could not resolve hostname h1: Name or service not known", False),
            ("ssh: connect to host h1 port 22: Connection refused", False),
            ("root@h1: Permission denied (publickey).", False),
            ("Host key verification failed.", False),
            ("ssh: connect to host h1 port 22: Connection timed out", True),
        ],
    )
    def test_reports_whether_a_host_may_have_files(
        self, error: str, *, has_files: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        assert self.absent(monkeypatch, tmp_path, error).has_files is has_files

    @pytest.mark.usefixtures("clock")
    def test_remembers_a_try_that_may_have_made_files(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        errors = ("Connection timed out", "Permission denied (publickey).")
        assert self.absent(monkeypatch, tmp_path, *errors).has_files

    def test_trusts_no_message_of_a_command_that_began(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        error = "mkdir: cannot create directory: Permission denied"
        assert self.absent(monkeypatch, tmp_path, error, began=True).has_files

    def absent(
        self, monkeypatch: pytest.MonkeyPatch, folder: Path, *errors: str, began: bool = False
    ) -> Absent:
        """Prepare a host that fails with one error after the other; the last one is final."""
        replies = iter(Reply(exit=255, out=b"", err=error, began=began) for error in errors)
        monkeypatch.setattr(prepare, "call", lambda *_, **__: next(replies))
        run = planned("h1")
        job = job_in(folder / "accept-one")
        until = 0.0 if len(errors) == 1 else math.inf
        result = prepare.make_ready(run, render(run), job, KEYS, until=until, say=ignore)["h1"]
        assert isinstance(result, Absent)
        return result


class TestWithoutHosts:
    def test_the_machine_cannot_be_detected(self) -> None:
        with pytest.raises(BadInput):
            backend.detect((), Site(), ClusterPlace())

    def test_doctor_needs_hosts(self) -> None:
        with pytest.raises(BadInput):
            backend.doctor(planned(), say=ignore)
