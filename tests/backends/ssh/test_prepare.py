"""Reports of a host that is prepared for a run."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from tests.factories.command_line import refused
from tests.factories.shell import run_program, write_program

from accept.backends.remote import Reply
from accept.backends.ssh.prepare import understood
from accept.config import resources
from accept.core.causes import Cause
from accept.core.records import Problem
from accept.core.runner.host_setup import Ready, set_up


def parsed(text: str) -> Ready | Problem:
    return understood("h1", Reply(exit=0, out=text.encode()))


def test_a_ready_host_reports_its_port_and_python() -> None:
    found = parsed("port 40001\npython 3.11.2\naddress 10.0.0.1\nready\n")
    assert isinstance(found, Ready)
    assert (found.port, found.python, found.addresses) == (40001, (3, 11, 2), ("10.0.0.1",))


@pytest.mark.parametrize("port", ["²", "0", "65536", "99999", "9" * 5000, "-1", ""])
def test_a_host_with_an_invalid_port_is_not_ready(port: str) -> None:
    assert isinstance(parsed(f"port {port}\npython 3.11\nready\n"), Problem)


def test_parts_of_a_version_that_are_not_numbers_are_left_out() -> None:
    found = parsed(f"port 22\npython 3.²{'.' + '9' * 5000}\nready\n")
    assert isinstance(found, Ready)
    assert found.python == (3,)


def test_an_unknown_cause_is_kept_in_the_message() -> None:
    reply = Reply(exit=1, out=b"problem gremlins seen at night\n")
    problem = understood("h1", reply)
    assert problem == Problem(
        cause=Cause.UNKNOWN, message="h1: gremlins: seen at night", check="hosts", host="h1"
    )
    assert not Cause.UNKNOWN.row.permanent


@pytest.mark.parametrize(
    ("errors", "shown"),
    [
        ("tar: x: Cannot write: No space left on device\ntar: Exiting with failure", "space"),
        ("ssh: Could not resolve hostname jump\nConnection closed by UNKNOWN port 65535", "jump"),
    ],
)
def test_the_line_with_the_reason_is_shown(errors: str, shown: str) -> None:
    problem = understood("h1", Reply(exit=255, err=errors.encode()))
    assert isinstance(problem, Problem)
    assert shown in problem.message


def test_the_name_of_a_folder_is_never_a_command(tmp_path: Path) -> None:
    folder = tmp_path / "q'; touch made; echo '"
    folder.mkdir()
    done = run_program(["/bin/sh", "-c", set_up(str(folder), 1, 1)], cwd=tmp_path)
    assert done.returncode == 1
    assert f"problem launch-failed {folder} exists already: do hosts share it?" in done.stdout
    assert not (tmp_path / "made").exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make a folder of another user")
@pytest.mark.parametrize("shape", ["folder", "link"])
def test_a_folder_that_another_user_made_is_refused_and_left_alone(
    shape: str, tmp_path: Path
) -> None:
    """Names of run folders in /tmp are public, so another user may take one first."""
    theirs = tmp_path / "theirs"
    theirs.mkdir()
    (theirs / "host").write_text("h1\n")
    os.mkfifo(theirs / "events")
    os.chown(theirs, 65534, 65534)
    folder = theirs
    if shape == "link":
        folder = tmp_path / "accept-x"
        folder.symlink_to(theirs)
    done = run_program(["/bin/sh", "-c", set_up(str(folder), 1, 1).replace("@HOST@", "h1")])
    assert done.returncode == 1
    assert "belongs to another user" in done.stdout
    assert folder.exists()
    assert sorted(path.name for path in theirs.iterdir()) == ["events", "host"]


class TestAHostWithoutGpus:
    """A run on a machine with GPUs cannot use it, and does not try it again."""

    @pytest.fixture
    def host(self, tmp_path: Path) -> Path:
        """Return a folder with a bootstrap_host.sh that ends before sshd starts, without GPUs."""
        for name in ("bootstrap_host.sh", "gpus.sh", "sshd.sh", "unpack.sh"):
            (tmp_path / name).write_text((resources.launchers() / name).read_text())
        (tmp_path / "tmp").mkdir()
        write_program(tmp_path / "bin" / "nvidia-smi", "exit 9")
        return tmp_path

    def problem(self, host: Path, *words: str, path: str = "") -> Problem:
        path = path or f"{host}/bin:/usr/bin:/bin"
        environment = {"PATH": path, "ACCEPT_SYS": str(host / "sys")}
        done = run_program(
            ["/bin/sh", "./bootstrap_host.sh", "1", "1", *words], cwd=host, env=environment
        )
        found = understood("h1", Reply(exit=done.returncode, out=done.stdout.encode()))
        assert isinstance(found, Problem)
        return found

    @pytest.mark.parametrize("words", [("gpus",), ()])
    def test_is_refused_for_a_machine_with_gpus(self, host: Path, words: tuple[str, ...]) -> None:
        assert (self.problem(host, *words).cause is Cause.GPU_MISSING) is bool(words)
        assert Cause.GPU_MISSING.row.permanent

    def test_whose_account_has_no_shell_is_refused_with_the_reason(self, host: Path) -> None:
        write_program(host / "bin" / "getent", "echo me:x:7:7::/:/usr/sbin/nologin")
        problem = self.problem(host)
        assert problem.cause is Cause.LAUNCH_FAILED
        assert "/usr/sbin/nologin" in problem.message

    def test_without_a_tool_that_starts_the_watchdog_is_named_with_it(self, host: Path) -> None:
        for folder in (Path("/usr/bin"), Path("/bin")):
            for program in folder.iterdir():
                if program.name != "setsid" and not (host / "bin" / program.name).exists():
                    (host / "bin" / program.name).symlink_to(program)
        problem = self.problem(host, path=str(host / "bin"))
        assert problem.cause is Cause.TOOL_MISSING
        assert "setsid" in problem.message

    @pytest.mark.parametrize("shown_by", ["PCI bus", "driver"])
    def test_is_not_assumed_if_there_is_one(self, host: Path, shown_by: str) -> None:
        device = host / "sys" / "bus" / "pci" / "devices" / "0000:01:00.0"
        if shown_by == "driver":
            (host / "bin" / "nvidia-smi").write_text("#!/bin/sh\necho 'GPU 0: NVIDIA H100'\n")
        else:
            device.mkdir(parents=True)
            (device / "vendor").write_text("0x10de\n")
            (device / "class").write_text("0x030200\n")
        assert self.problem(host, "gpus").cause is not Cause.GPU_MISSING

    @pytest.mark.parametrize(
        ("machine", "asks"), [("cpu", "no"), ("h100-8", "yes"), ("gpu", "yes")]
    )
    def test_is_checked_only_if_the_machine_has_gpus(
        self, machine: str, asks: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        commands: list[str] = []

        def call(*words: object, **_: object) -> Reply:
            commands.append(str(words[2]))
            return Reply(exit=1, out=b"problem gpu-missing no GPU\n")

        monkeypatch.setattr("accept.backends.ssh.prepare.call", call)
        monkeypatch.setenv("ACCEPT_RUNS", str(tmp_path))
        refused("run", "--machine", machine, "--hosts", "h1", "--quiet", code=4)
        (command,) = commands
        assert command.endswith(" gpus") is (asks == "yes")
