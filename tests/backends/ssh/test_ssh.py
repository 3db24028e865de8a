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
from accept.core.errors import AcceptError, BadInput, Exit, Interrupted, NoEvidence
from accept.core.records import Problem
from accept.core.runner.host_setup import Ready
from accept.core.runner.ssh import MARKER
from accept.core.serde import dump
from accept.evidence import rundir
from accept.plan.bundle import render
from accept.plan.resolve import ClusterPlace, Options, Resolved, resolve

#: Starts a process with variables in its environment.
Start = Callable[..., subprocess.Popen[bytes]]
GREETING = "Welcome to the lab!\nstarted ready 12 34\n"
no_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can change a folder's owner")


def ignore(_: str) -> None:
    """Ignore a line of progress."""


class HostRun:
    """A run on hosts that all are this machine, behind a stand-in ssh."""

    def __init__(self, hosts: StandinSsh, tmp_path: Path) -> None:
        self.hosts = hosts
        #: The run's folder on the workstation.
        self.folder = rundir.create("one")
        #: The run's folder on the first host after a reboot that ended all its processes.
        self.node = tmp_path / "accept-one"
        self.node.mkdir()
        (self.node / "run").write_text("one\n")
        (self.node / "guard.pid").write_text("1 1\n")
        (self.node / "key").write_text("secret\n")
        (self.node / "console.log").write_text("".join(f"line {n}\n" for n in range(100)))
        shutil.copy(resources.launchers() / "kill.sh", self.node)
        os.mkfifo(self.node / "events")
        sample_evidence.write(self.node / "evidence")
        self.job = self.on("h1")

    def on(self, *names: str, node: Path | None = None) -> Job:
        """Let the run be on these hosts; return its job."""
        place = str(node or self.node)
        self.job = Job(
            schema=1, backend="ssh", attempt="one", hosts=names, first=names[0], folder=place
        )
        return self.job

    def pack(self) -> None:
        """Leave the evidence as a guard does at the end of a run."""
        sample_evidence.archive(self.node / "evidence", self.node / "evidence.tar")
        shutil.rmtree(self.node / "evidence")
        (self.node / "status").write_text("0\n")

    def move(self, how: str) -> None:
        """Let a link, or a folder of another user, be in the place of the run's folder."""
        if how == "another user":
            os.chown(self.node, 65534, 65534)
            return
        link = self.node.parent / "scratch" / "accept-one"
        link.parent.mkdir()
        link.symlink_to(self.node)
        self.on("h1", node=link)

    def collect(self) -> Path:
        return backend.collect(self.job, folder=self.folder, say=ignore)

    def cancel(self) -> None:
        backend.cancel(self.job, folder=self.folder, say=ignore)

    def delete(self, *, dry_run: bool = False) -> tuple[str, ...]:
        return backend.delete(self.job, dry_run=dry_run, say=ignore)

    def watch(self, log: Callable[[str], None] = ignore) -> int:
        return backend.watch(self.job, folder=self.node, say=log, log=log)


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> HostRun:
    monkeypatch.setenv("ACCEPT_RUNS", str(tmp_path / "runs"))
    monkeypatch.delenv("ACCEPT_SSH_CONFIG", raising=False)
    return HostRun(standin_ssh(tmp_path / "ssh", monkeypatch), tmp_path)


def fails(error: type[AcceptError], code: Code, act: Callable[[], object]) -> AcceptError:
    """Do what fails with an error and its code; return the error."""
    with pytest.raises(error) as caught:
        act()
    assert caught.value.code is code
    return caught.value


def start_of(pid: int) -> str:
    """Return when a process started, in clock ticks since the boot."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]


@pytest.fixture
def process() -> Iterator[Start]:
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
def sshd(run: HostRun, process: Start) -> subprocess.Popen[bytes]:
    """Let the other hosts, which are this machine, have an sshd that lost the coordinator."""
    made = process()
    (run.node / "sshd.pid").write_text(f"{made.pid} {start_of(made.pid)}\n")
    return made


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """Return the clock that code on the workstation uses."""
    return Clock(monkeypatch)


class TestALoginShellThatPrintsText:
    def test_does_not_damage_the_evidence(self, run: HostRun) -> None:
        run.pack()
        run.hosts.greet(GREETING)
        assert evidence.check_checksums(run.collect()) == ()

    @pytest.mark.usefixtures("clock")
    def test_does_not_shift_the_console_after_a_reconnect(self, run: HostRun) -> None:
        (run.node / "status").write_text("3\n")
        run.hosts.greet(GREETING)
        run.hosts.cut(200, 200)
        lines: list[str] = []
        assert run.watch(lines.append) == 3
        printed = [line for line in lines if line.startswith("line")]
        assert printed == [f"line {n}" for n in range(100)]
        assert not [line for line in lines if "lab" in line]

    @pytest.mark.usefixtures("clock")
    def test_does_not_keep_an_absent_host_alive(self, run: HostRun) -> None:
        run.hosts.greet(GREETING)
        run.hosts.cut(*[0] * 200)
        fails(Interrupted, Code.SSH_NO_ANSWER, run.watch)

    def test_is_a_note_in_doctor_and_not_a_failure(self, run: HostRun) -> None:
        planned_run = planned("h1")
        run.hosts.greet(GREETING)
        needs = backend.doctor(planned_run)
        (note,) = (need for need in needs if need.code is Requirement.LOGIN_SHELL)
        assert note.good
        assert note.advice
        run.hosts.greet("")
        codes = [need.code for need in backend.doctor(planned_run)]
        assert Requirement.LOGIN_SHELL not in codes


class TestAFirstHostThatDoesNotAnswer:
    @pytest.fixture(autouse=True)
    def down(self, run: HostRun) -> None:
        """Let h1 not answer."""
        run.on("h1", "h2", "h3")
        run.hosts.take_down("h1")

    @pytest.mark.usefixtures("sshd")
    def test_is_lost_after_one_or_two_questions_if_the_others_have_lost_the_coordinator(
        self, run: HostRun, clock: Clock
    ) -> None:
        began = clock.now
        with pytest.raises(FirstHostLost) as error:
            run.watch()
        assert (error.value.lost, error.value.others) == (("h1",), ("h2", "h3"))
        assert clock.now - began < 150

    def test_may_run_on_if_the_coordinator_is_connected_to_the_others(
        self, run: HostRun, clock: Clock
    ) -> None:
        began = clock.now
        # This process has a child, as the sshd of a connected host has.
        with subprocess.Popen(["sleep", "60"]) as session:
            (run.node / "sshd.pid").write_text(f"{os.getpid()} {start_of(os.getpid())}\n")
            fails(Interrupted, Code.SSH_NO_ANSWER, run.watch)
            session.kill()
        assert clock.now - began >= 600


@pytest.mark.usefixtures("sshd")
class TestAFirstHostThatRestarted:
    @pytest.mark.rare
    def test_is_lost_if_it_was_started_after_the_submission(self, run: HostRun) -> None:
        # This machine was started after that.
        run.job = replace(run.on("h1", "h2"), submitted="2000-01-01T00:00:00+00:00")
        with pytest.raises(FirstHostLost) as error:
            run.watch()
        assert (error.value.lost, error.value.others) == (("h1",), ("h2",))

    @pytest.mark.rare
    def test_has_only_lost_its_processes_if_it_was_started_before(self, run: HostRun) -> None:
        run.job = replace(run.on("h1", "h2"), submitted=datetime.now(UTC).isoformat())
        fails(Interrupted, Code.RUN_COORDINATOR_DIED, run.watch)


def test_heartbeats_are_not_printed(monkeypatch: pytest.MonkeyPatch) -> None:
    chunks = [b"one\nt\x1e\nw", b"o\n\x1e", b"\n\x1eended 0\n"]
    monkeypatch.setattr(manage, "_follow", lambda *_: (chunk for chunk in chunks))
    lines: list[str] = []
    console = manage.Console(lines.append)
    assert console.follow(reach_of(SshAccess()), "h1", "/nowhere") == "0"
    assert (lines, console.seen) == (["one", "two"], len("one\ntwo\n"))


@pytest.mark.usefixtures("run")
def test_doctor_names_the_program_that_unpacks_the_archives() -> None:
    needs = backend.doctor(planned("h1"))
    (need,) = (need for need in needs if need.what == "bzip2 or Python")
    assert (need.good, need.found[:1]) == (True, "/")


def planned(*names: str) -> Resolved:
    return resolve(Options(machine="cpu", nodes=len(names) or 1, backend="ssh", hosts=names))


class TestCollect:
    def test_continues_at_the_byte_where_the_connection_was_cut_and_leaves_no_copy(
        self, run: HostRun
    ) -> None:
        run.pack()
        assert (run.node / "evidence.tar").stat().st_size > 6000
        # The first connection announces the archive.
        run.hosts.cut("whole", 4000, 2000)
        assert evidence.check_checksums(run.collect()) == ()
        first, second = 4000 - len(MARKER), 2000 - len(MARKER)
        assert offsets_sent(run.hosts) == [0, first, first + second]
        assert not run.node.exists()
        assert [path.name for path in run.folder.iterdir()] == [rundir.EVIDENCE]

    def test_continues_where_an_earlier_command_ended(
        self, run: HostRun, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        run.pack()
        run.hosts.cut("whole", 4000)
        with monkeypatch.context() as patch:
            patch.setattr("accept.evidence.archive._PAUSES", ())
            with pytest.raises(AcceptError):
                run.collect()
        assert evidence.check_checksums(run.collect()) == ()
        assert offsets_sent(run.hosts) == [0, 4000 - len(MARKER)]

    def test_takes_evidence_for_which_the_host_had_no_room_to_pack(self, run: HostRun) -> None:
        (run.node / "status").write_text("0\n")
        (run.node / "unpacked").touch()
        run.hosts.cut("whole", 4000)
        assert evidence.check_checksums(run.collect()) == ()

    def test_finds_nothing_if_the_folder_is_gone(self, run: HostRun) -> None:
        shutil.rmtree(run.node)
        fails(NoEvidence, Code.RUN_GONE, run.collect)


def offsets_sent(hosts: StandinSsh) -> list[int]:
    """Return the offsets from which the archive was requested."""
    return [int(call.rstrip("'").split()[-1]) for call in hosts.calls if " send " in call]


class TestAFolderOfAnotherUser:
    """It took the place of the run's folder, by itself or behind a link."""

    @pytest.fixture(params=["a link", pytest.param("another user", marks=no_root)], autouse=True)
    def moved(self, run: HostRun, request: pytest.FixtureRequest) -> Iterator[None]:
        """Change the place of the folder; nothing may be taken from there or removed there."""
        run.pack()
        run.move(request.param)
        yield
        assert (run.node / "key").exists()
        assert list(run.folder.iterdir()) == []

    def test_is_not_collected(self, run: HostRun) -> None:
        fails(NoEvidence, Code.SSH_FOREIGN_FOLDER, run.collect)

    def test_is_not_watched(self, run: HostRun, clock: Clock) -> None:
        left = iter(range(3))

        def count() -> None:
            if next(left, None) is None:
                pytest.fail("the host is asked again and again")

        clock.on_sleep(count)
        lines: list[str] = []
        fails(Interrupted, Code.SSH_FOREIGN_FOLDER, lambda: run.watch(lines.append))
        assert lines == []

    def test_is_not_removed(self, run: HostRun) -> None:
        fails(Interrupted, Code.SSH_NOT_REMOVED, run.delete)


def test_a_run_whose_start_was_not_confirmed_is_not_followed(run: HostRun) -> None:
    run.job = replace(run.on("h1"), first="")
    fails(Interrupted, Code.RUN_GONE, run.watch)


class TestDelete:
    """After a reboot, or if the guard was killed, no process of the run answers on the host."""

    def test_removes_the_folder_of_version_0_1_which_had_no_guard_pid(self, run: HostRun) -> None:
        (run.node / "guard.pid").unlink()
        run.hosts.do_not_wait()
        run.delete()
        assert not run.node.exists()

    def test_ends_processes_that_a_killed_guard_left(
        self, run: HostRun, process: Start, sshd: subprocess.Popen[bytes]
    ) -> None:
        rank = process(ACCEPT_RUN="one", ACCEPT_DIR=str(run.node))
        timer = process(ACCEPT_GUARD=str(run.node))
        run.delete()
        assert [one.wait() for one in (rank, sshd, timer)] == [-15, -15, -15]

    def test_touches_no_process_of_a_local_run_or_with_the_same_id(
        self, run: HostRun, process: Start
    ) -> None:
        local = process(ACCEPT_RUN="one", ACCEPT_DIR="/home/user/runs/one/node")
        other = process()
        (run.node / "sshd.pid").write_text(f"{other.pid} 1\n")
        (run.node / "guard.pid").write_text(f"{other.pid} {start_of(other.pid)}\n")
        run.delete()
        assert not run.node.exists()
        assert [one.poll() for one in (local, other)] == [None, None]

    def test_reports_a_process_that_does_not_end(self, run: HostRun) -> None:
        (run.node / "kill.sh").write_text("echo 1\n")
        error = fails(Interrupted, Code.SSH_NOT_REMOVED, run.delete)
        assert "process 1 " in error.message

    def test_fails_when_a_host_does_not_answer(self, run: HostRun) -> None:
        evidence.write(run.folder / rundir.JOB, json.dumps(dump(run.on("h1", "h2"))))
        run.hosts.take_down("h2")
        done = accept("clean", "one", "--no-collect")
        assert (done.code, done.error) == (Exit.INTERRUPTED, Code.SSH_NOT_REMOVED)
        assert "h2" in done.err
        assert not run.node.exists()


class TestCancel:
    def test_ends_a_run_whose_guard_is_gone_and_keeps_its_evidence(
        self, run: HostRun, process: Start
    ) -> None:
        coordinator = process(ACCEPT_DIR=str(run.node), ACCEPT_RUN="one")
        (run.node / "coordinator.pid").write_text(f"{coordinator.pid}\n")
        run.cancel()
        assert coordinator.wait() == -15
        assert (run.collect() / evidence.PLAN).is_file()

    def test_removes_the_run_from_the_other_hosts_after_the_first_confirmed_its_end(
        self, run: HostRun
    ) -> None:
        run.on("h1", "h2")
        run.cancel()
        assert verbs_sent(run.hosts) == [("h1", "stop"), ("h2", "remove")]

    @pytest.mark.parametrize("reason", ["no answer", "process 1 "])
    def test_leaves_the_other_hosts_if_the_first_does_not_confirm_its_end(
        self, run: HostRun, reason: str
    ) -> None:
        run.on("h1", "h2")
        (run.node / "kill.sh").write_text("echo 1\n")
        if reason == "no answer":
            run.hosts.take_down("h1")
        error = fails(Interrupted, Code.SSH_END_UNCONFIRMED, run.cancel)
        assert reason in error.message
        assert verbs_sent(run.hosts) == [("h1", "stop")]
        assert run.node.exists()


def verbs_sent(hosts: StandinSsh) -> list[tuple[str, str]]:
    """Return the host and the verb of each call of manage.sh, in this order."""
    found = [re.search(r" -- (\S+) .* -s -- (\w+) ", call) for call in hosts.calls]
    return [(match[1], match[2]) for match in found if match]


def test_a_connection_is_tried_again_if_sshd_refuses_it_because_of_many_others(
    run: HostRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("random.uniform", lambda *_: 0.0)
    run.hosts.refuse(2)
    assert call(reach_of(SshAccess()), "h1", "echo there", timeout=PATIENCE).out == b"there\n"


class TestSubmit:
    def test_leaves_hosts_without_files_of_the_run_out_of_the_job(
        self, run: HostRun, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Later commands would wait for them, and fail, although nothing is left there."""
        problem = Problem(cause=Cause.UNREACHABLE_TIMEOUT, message="no answer")
        results: dict[str, Ready | Absent] = {
            "h1": Ready(name="h1", port=1, addresses=(), python=(3, 11), busy=()),
            "h2": Absent(problem=problem, has_files=True),
            "h3": Absent(problem=problem, has_files=False),
        }
        sent: list[bytes] = []

        def call(*_: object, stdin: bytes, **__: object) -> Reply:
            sent.append(stdin)
            return Reply(exit=0, out=b"started\n")

        monkeypatch.setattr(backend, "make_ready", lambda *_, **__: results)
        monkeypatch.setattr(backend, "call", call)
        resolved = planned("h1", "h2", "h3")
        recorded: list[Job] = []
        job = backend.submit(
            resolved,
            render(resolved),
            attempt="one",
            folder=run.folder,
            record=recorded.append,
            say=ignore,
        )
        assert [(one.hosts, one.first) for one in recorded] == [(resolved.hosts, "")]
        assert job.hosts == ("h1", "h2")
        # The verdict names all of them.
        assert [host["name"] for host in json.loads(sent[0])["hosts"]] == ["h1", "h2", "h3"]

    @pytest.mark.usefixtures("clock")
    @pytest.mark.parametrize(
        ("errors", "began", "has_files"),
        [
            (["ssh: Could not resolve hostname h1: Name or service not known"], False, False),
            (["ssh: connect to host h1 port 22: Connection refused"], False, False),
            (["root@h1: Permission denied (publickey)."], False, False),
            (["Host key verification failed."], False, False),
            (["ssh: connect to host h1 port 22: Connection timed out"], False, True),
            # A try that may have made files is remembered.
            (["Connection timed out", "Permission denied (publickey)."], False, True),
            # No message of a command that began is trusted.
            (["mkdir: cannot create directory: Permission denied"], True, True),
        ],
    )
    def test_remembers_whether_a_host_may_have_files(
        self,
        errors: list[str],
        *,
        began: bool,
        has_files: bool,
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        replies = iter(Reply(exit=255, err=error.encode(), began=began) for error in errors)
        monkeypatch.setattr(prepare, "call", lambda *_, **__: next(replies))
        resolved = planned("h1")
        place = str(tmp_path / "accept-one")
        job = Job(schema=1, backend="ssh", attempt="one", hosts=("h1",), first="h1", folder=place)
        until = 0.0 if len(errors) == 1 else math.inf
        made = prepare.make_ready(resolved, render(resolved), job, KEYS, until=until, say=ignore)
        result = made["h1"]
        assert isinstance(result, Absent)
        assert result.has_files is has_files


def test_ctrl_c_while_hosts_are_prepared_waits_for_no_host(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def answer(_: object, host: str, *__: object, **___: object) -> Reply:
        if host == "h1":
            raise KeyboardInterrupt
        return Reply(exit=255, err=b"Connection refused")

    monkeypatch.setattr(prepare, "call", answer)
    run = planned("h1", "h2")
    job = Job(schema=1, backend="ssh", attempt="one", hosts=(), first="", folder="/x/accept-one")
    with pytest.raises(KeyboardInterrupt):
        prepare.make_ready(run, render(run), job, KEYS, until=math.inf, say=ignore)


class TestTwoNamesOfOneMachine:
    def test_are_refused_before_the_start_and_no_other_host_waits(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        machine = "machine 0a0ebd2f-6b5b-4d7e-8a4c-111111111111 {}:2\n"
        lines = {
            "h1": machine.format(1) + "problem launch-failed exists already",
            "H1": machine.format(1) + "port 1\nready",
            "h2": machine.format(9) + "problem disk-full there is no space",
        }

        def answer(_: object, host: str, *__: object, **___: object) -> Reply:
            return Reply(exit=0, out=lines[host].encode())

        monkeypatch.setattr(prepare, "call", answer)
        run = planned(*lines)
        job = Job(
            schema=1, backend="ssh", attempt="one", hosts=(), first="", folder="/x/accept-one"
        )
        with pytest.raises(BadInput, match="h1 and H1 are the same machine") as caught:
            prepare.make_ready(run, render(run), job, KEYS, until=math.inf, say=ignore)
        assert caught.value.code is Code.HOSTLIST_DUPLICATE

    @pytest.mark.usefixtures("run")
    def test_are_not_ready_in_doctor(self) -> None:
        needs = backend.doctor(planned("h1", "h1.example.com"))
        (need,) = (need for need in needs if need.code is Requirement.OWN_MACHINE)
        assert (need.host, need.good) == ("h1.example.com", False)


@pytest.mark.parametrize(
    "act",
    [
        lambda: backend.detect((), Site(), ClusterPlace()),
        lambda: backend.doctor(planned()),
    ],
)
def test_a_list_of_hosts_is_needed(act: Callable[[], object]) -> None:
    fails(BadInput, Code.SSH_NO_HOSTS, act)
