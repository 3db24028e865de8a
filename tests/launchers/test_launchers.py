"""The scripts that run on nodes: plain sh, tested on this machine."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tarfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.cluster.runs import VENV, VENV_MPI4
from tests.factories import sample_evidence
from tests.factories.clock import PATIENCE
from tests.factories.command_line import accept
from tests.factories.keys import sign_evidence
from tests.factories.ports import free_port
from tests.factories.shell import run_program, write_program

from accept.backends.kubernetes.watch import FINISHED
from accept.config import resources
from accept.config.images import ImageTool, PublicImage, public_images
from accept.core import evidence
from accept.core.runner.keys import new_keys
from accept.core.runner.launch import RECORDS_COPY, Launch
from accept.core.runner.resume import EARLIER
from accept.core.runner.ssh import HOST_KEY_ALIAS, KEY
from accept.core.serde import read
from accept.core.verdict import Verification
from accept.plan.bundle import render
from accept.plan.resolve import Options, resolve

LAUNCHERS = resources.launchers()
SCRIPTS = sorted(path.relative_to(LAUNCHERS).as_posix() for path in LAUNCHERS.rglob("*.sh"))
#: A process that ends by itself only long after the test.
SLEEP = (sys.executable, "-c", "import sys, time; print(flush=True); time.sleep(600)")


def sh(script: str | Path, *args: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a script with only PATH and the given variables in its environment."""
    return run_program(["sh", script, *args], env={"PATH": os.environ["PATH"], **environment})


def tell(folder: Path, event: str) -> None:
    """Send an event to the script that waits in a run's folder."""
    subprocess.run(["sh", "-c", f"echo {event} 1<>events"], cwd=folder, check=True)


def wait_for(path: Path, process: subprocess.Popen[Any]) -> None:
    """Wait until a process that lives has made a file."""
    while not path.exists():
        assert process.poll() is None
        time.sleep(0.01)


#: A machine for each property that templates depend on: GPUs, a script, detection of devices.
MACHINES = ("cpu", "gpu", "a4-highgpu-8g")


@pytest.fixture(scope="module")
def rendered(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Render all files of a run for several machines, each into its own folder."""
    folder = tmp_path_factory.mktemp("rendered")
    for machine in MACHINES:
        (folder / machine).mkdir()
        options = Options(
            machine=machine, hosts=("a", "b"), suite="standard", nccl=("NCCL_X=a 'b'",)
        )
        render(resolve(options)).write(folder / machine)
    return folder


@pytest.mark.parametrize("machine", MACHINES)
def test_rendered_scripts_are_valid_sh(rendered: Path, machine: str) -> None:
    scripts = sorted((rendered / machine).rglob("*.sh"))
    assert len(scripts) > 12
    for script in scripts:
        for shell in filter(shutil.which, ("sh", "bash", "dash")):
            command = [shell, "-n", str(script)]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            assert (done.returncode, done.stderr) == (0, ""), script


def test_rendered_scripts_pass_shellcheck(rendered: Path) -> None:
    beside = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    checker = shutil.which("shellcheck", path=beside)
    if not checker:
        pytest.skip("no shellcheck here")
    # With GPUs and without: the templates make no other distinction.
    folders = [rendered / "cpu", rendered / "gpu"]
    scripts = [path for f in folders for path in (*sorted(f.glob("steps/*.sh")), f / "env.sh")]
    command = [checker, "--external-sources", f"--source-path={LAUNCHERS}", *map(str, scripts)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "")


@pytest.mark.parametrize("name", SCRIPTS)
def test_scripts_use_sh_and_not_bash(name: str) -> None:
    first = (LAUNCHERS / name).read_text().splitlines()[0]
    assert first in ("#!/bin/sh", "# shellcheck shell=sh")


class TestKill:
    """kill.sh ends exactly the processes with its mark, also in other sessions."""

    @pytest.fixture
    def started(self) -> Iterator[list[subprocess.Popen[bytes]]]:
        processes: list[subprocess.Popen[bytes]] = []
        yield processes
        for process in processes:
            process.kill()
            process.wait()
            if process.stdout:
                process.stdout.close()

    def start(
        self, started: list[subprocess.Popen[bytes]], mark: str, *command: str
    ) -> subprocess.Popen[bytes]:
        name, _, value = mark.partition("=")
        process = subprocess.Popen(
            command or SLEEP,
            env={"PATH": os.environ["PATH"], name: value},
            stdout=subprocess.PIPE,
            start_new_session=True,
        )
        started.append(process)
        assert process.stdout is not None
        process.stdout.readline()
        return process

    def test_ends_marked_processes_also_in_other_sessions(
        self, started: list[subprocess.Popen[bytes]]
    ) -> None:
        mark = f"ACCEPT_EXEC=test-{os.getpid()}/10-x/0-0"
        ours = [self.start(started, mark), self.start(started, mark)]
        other = self.start(started, f"{mark}1")
        done = sh(LAUNCHERS / "kill.sh", mark)
        assert (done.returncode, done.stdout) == (0, "")
        assert [process.wait(PATIENCE) for process in ours] == [-15, -15]
        assert other.poll() is None

    @pytest.mark.rare
    def test_ends_a_process_that_ignores_the_first_signal(
        self, started: list[subprocess.Popen[bytes]]
    ) -> None:
        mark = f"ACCEPT_EXEC=test-{os.getpid()}/20-x/0-0"
        deaf = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); "
        process = self.start(started, mark, SLEEP[0], SLEEP[1], deaf + SLEEP[2])
        assert sh(LAUNCHERS / "kill.sh", mark).returncode == 0
        assert process.wait(PATIENCE) == -9

    def test_compares_the_full_mark_and_not_a_pattern(
        self, started: list[subprocess.Popen[bytes]]
    ) -> None:
        mark = f"ACCEPT_EXEC=test-{os.getpid()}"
        process = self.start(started, f"{mark}/30-x")
        for pattern in ("ACCEPT_EXEC=.*", "ACCEPT_EXEC", mark, f"{mark}/nothing"):
            done = sh(LAUNCHERS / "kill.sh", pattern)
            assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
        assert process.poll() is None


class TestRank:
    """rank.sh gives a rank the environment of its node, and its identity."""

    SHOW = ("sh", "-c", "env")

    @pytest.fixture
    def node(self, tmp_path: Path) -> Path:
        (tmp_path / "site.yaml").write_text("nccl: {env: {NCCL_OWN: 'a b'}}\n")
        options = Options(machine="cpu", hosts=("a", "b"), site=str(tmp_path / "site.yaml"))
        folder = tmp_path / "node"
        folder.mkdir()
        render(resolve(options)).write(folder)
        (folder / "host").write_text("h7\n")
        return folder

    def env(self, node: Path, **given: str) -> Mapping[str, str]:
        done = sh(node / "rank.sh", *self.SHOW, **given)
        assert done.returncode == 0, done.stderr
        return dict(line.split("=", 1) for line in done.stdout.splitlines() if "=" in line)

    @pytest.mark.parametrize(
        ("given", "expected"),
        [
            (
                {"OMPI_COMM_WORLD_LOCAL_RANK": "3"},
                {"ACCEPT_HOST": "h7", "ACCEPT_LOCAL_RANK": "3", "ACCEPT_DIR": "NODE"},
            ),
            # The settings and the scratch folder of the node, and on one host the loopback.
            ({}, {"NCCL_OWN": "a b", "TMPDIR": "NODE/tmp", "GLOO_SOCKET_IFNAME": "lo"}),
            ({"NCCL_SOCKET_IFNAME": "eth7"}, {"NCCL_SOCKET_IFNAME": "eth7"}),
            # The back end describes the host.
            ({}, {"ACCEPT_PYTHON": "/opt/python"}),
            # On a rail, the GPU from the list.
            (
                {"ACCEPT_LOCAL_RANKS": "2,5", "OMPI_COMM_WORLD_LOCAL_RANK": "0"},
                {"ACCEPT_LOCAL_RANK": "2", "NCCL_TESTS_DEVICE": "2"},
            ),
            (
                {"ACCEPT_LOCAL_RANKS": "2,5", "OMPI_COMM_WORLD_LOCAL_RANK": "1"},
                {"ACCEPT_LOCAL_RANK": "5", "NCCL_TESTS_DEVICE": "4"},
            ),
        ],
    )
    def test_has_its_identity_and_the_environment_of_its_node(
        self, node: Path, given: dict[str, str], expected: dict[str, str]
    ) -> None:
        (node / "host.env").write_text("ACCEPT_PYTHON=/opt/python\nexport ACCEPT_PYTHON\n")
        found = self.env(node, **given)
        assert {name: found[name].replace(str(node), "NODE") for name in expected} == expected

    def test_uses_the_nccl_profile_of_the_step(self, tmp_path: Path) -> None:
        (tmp_path / "own.yaml").write_text(
            "name: own\ndescription: one\nchecks:\n- {check: all-gather, profile: rdma}\n"
        )
        options = Options(
            machine="gb200-4x", hosts=("a", "b"), suite=str(tmp_path / "own.yaml"), backend="ssh"
        )
        folder = tmp_path / "node"
        folder.mkdir()
        render(resolve(options)).write(folder)
        for profile, multi_node in (("", "1"), ("rdma", "0")):
            assert self.env(folder, ACCEPT_PROFILE=profile)["NCCL_MNNVL_ENABLE"] == multi_node

    def test_makes_the_folder_for_progress_and_ends_as_its_program(self, node: Path) -> None:
        done = sh(node / "rank.sh", "sh", "-c", "exit 7", ACCEPT_PROGRESS=f"{node}/progress/deep")
        assert (done.returncode, (node / "progress/deep").is_dir()) == (7, True)


class TestSteps:
    """Each step reports missing tools as records before it starts anything."""

    @pytest.fixture
    def node(self, tmp_path: Path) -> Path:
        render(resolve(Options(machine="cpu", nodes=1))).write(tmp_path)
        (tmp_path / "tmp").mkdir()
        (tmp_path / "group").write_text("h0 h0 127.0.0.1 22 2\n")
        # The tools that every host has.
        (tmp_path / "bin").mkdir(exist_ok=True)
        basic = (*("sh", "cat", "dirname", "env", "getent", "grep"), *("head", "id", "mkdir", "rm"))
        for name in (*basic, "sed"):
            (tmp_path / "bin" / name).symlink_to(shutil.which(name) or "")
        return tmp_path

    @pytest.mark.parametrize("check", ["connectivity", "collectives", "train"])
    def test_without_mpirun(self, node: Path, check: str) -> None:
        (script,) = (node / "steps").glob(f"*-{check}.sh")
        path = f"{node}/bin"
        done = sh(script, PATH=path, ACCEPT_PYTHON=sys.executable)
        assert done.returncode == 1
        assert '"problem":"tool-missing"' in done.stdout
        assert "mpirun" in done.stdout

    def test_without_a_group(self, node: Path) -> None:
        (node / "group").write_text("")
        (script,) = (node / "steps").glob("*-connectivity.sh")
        assert '"problem":"launch-failed"' in sh(script).stdout

    @pytest.mark.parametrize(
        ("version", "has", "has_not"),
        [
            ("4.1.8", "plm_rsh_agent", "plm_ssh_agent"),
            ("5.0.8", "plm_ssh_agent", "orte_keep_fqdn_hostnames"),
        ],
    )
    def test_prints_a_command_with_the_parameter_names_of_each_open_mpi(
        self, node: Path, version: str, has: str, has_not: str
    ) -> None:
        answer = f'[ "$1" != --version ] || echo "mpirun (Open MPI) {version}"'
        write_program(node / "bin/mpirun", answer)
        (script,) = (node / "steps").glob("*-collectives.sh")
        done = sh(script, PATH=f"{node}/bin", ACCEPT_PYTHON=sys.executable)
        line = rf"^# Open MPI {version[0]}: 'mpirun' .*'-np' '2' "
        assert re.search(line, done.stdout, re.MULTILINE)
        assert has in done.stdout
        assert has_not not in done.stdout
        # No file of the run's folder is executed, because that may be mounted noexec.
        assert f"'{has}' '/bin/sh " in done.stdout

    @pytest.mark.parametrize(("build", "is_asked"), [("per_iter_timing", True), ("", False)])
    def test_times_each_repetition_only_with_builds_that_support_it(
        self, node: Path, tmp_path: Path, build: str, *, is_asked: bool
    ) -> None:
        folder = tmp_path / "gpus"
        render(resolve(Options(machine="h100-8", nodes=1))).write(folder)
        (folder / "group").write_text("h0 h0 127.0.0.1 22 8\n")
        programs = ("all_reduce", "all_gather", "reduce_scatter", "alltoall", "sendrecv")
        for name in ("mpirun", *(f"{program}_perf" for program in programs)):
            write_program(node / "bin" / name, f"# {build}\necho 'mpirun (Open MPI) 5.0.8'")
        (script,) = (folder / "steps").glob("*-collectives.sh")
        done = sh(script, PATH=f"{node}/bin:{os.environ['PATH']}", ACCEPT_PYTHON=sys.executable)
        assert ("'-I' '1'" in done.stdout) is is_asked, done.stdout
        assert "--jitter" in script.read_text(), "the torch program"


class TestUnpack:
    """unpack.sh unpacks the archives of code with bzip2, or else with a Python."""

    @pytest.fixture
    def node(self, tmp_path: Path) -> Path:
        """Return a run's folder before its programs were unpacked, and `bin` with few tools."""
        archive = render(resolve(Options(machine="cpu", nodes=1))).archive()
        subprocess.run(["tar", "-xf", "-", "-C", tmp_path], input=archive, check=True)
        (tmp_path / "bin").mkdir()
        write_program(tmp_path / "bin/python3", "exit 1")
        return tmp_path

    @pytest.mark.parametrize(
        ("tools", "python", "archive", "status"),
        [
            (("bzip2",), "", None, 0),
            # The Python of the site.
            ((), sys.executable, None, 0),
            ((), "", None, 2),
            (("bzip2",), "", b"damaged", 1),
        ],
    )
    def test_uses_bzip2_or_a_python_and_reports_that_neither_works(
        self, node: Path, tools: tuple[str, ...], python: str, archive: bytes | None, status: int
    ) -> None:
        for name in ("sh", "tar", *tools):
            (node / "bin" / name).symlink_to(shutil.which(name) or "")
        if archive is not None:
            (node / "programs.tar.bz2").write_bytes(archive)
        (node / "test.sh").write_text(f"cd {node}; . ./unpack.sh; unpack_programs\n")
        done = sh(node / "test.sh", PATH=f"{node}/bin", ACCEPT_PYTHON=python)
        assert done.returncode == status
        assert status != 1 or done.stderr
        if status == 0:
            own = (LAUNCHERS / "programs/health.py").read_bytes()
            assert (node / "programs/health.py").read_bytes() == own
            assert os.access(node / "kill.sh", os.X_OK)


class TestUserScript:
    """A user's script runs with its own interpreter, also if files cannot be executed."""

    @pytest.fixture
    def make(self, tmp_path: Path) -> Callable[[str], Path]:
        def make(script: str) -> Path:
            """Render a run of `script`; return the script of its step."""
            (tmp_path / "own").write_text(script)
            suite = tmp_path / "suite.yaml"
            checks = "- {check: script, script: own, groups: all}\n"
            suite.write_text(f"name: own\ndescription: Own.\nchecks:\n{checks}")
            node = tmp_path / "node"
            node.mkdir()
            options = Options(machine="cpu", nodes=1, suite=str(suite))
            render(resolve(options)).write(node)
            (node / "tmp").mkdir()
            (node / "group").write_text("h0 h0 127.0.0.1 22 2\n")
            (step,) = (node / "steps").glob("*-script.sh")
            step.with_suffix(".user").chmod(0o600)
            return step

        return make

    @pytest.mark.parametrize(
        ("first_line", "options"),
        [
            ("#!/bin/sh", ""),
            ("#! \t/bin/sh -e ", "e"),
            ("#!/usr/bin/env -S sh -e -f", "ef"),
        ],
    )
    def test_is_started_by_its_first_line(
        self, make: Callable[[str], Path], first_line: str, options: str
    ) -> None:
        step = make(f"{first_line}\necho $- | tr -cd ef\nexit 7\n")
        done = sh(step)
        assert (done.returncode, set(done.stdout)) == (7, set(options)), done.stderr

    @pytest.mark.skipif(os.geteuid() != 0, reason="needs root: mounts a folder")
    def test_runs_in_a_folder_that_is_mounted_noexec(self, make: Callable[[str], Path]) -> None:
        step = make("#!/bin/sh\necho $ACCEPT_HOSTS; exit 7\n")
        folder = step.parent.parent
        script = (
            f"cp -a {folder} {folder}.copy && mount -t tmpfs -o noexec none {folder} && "
            f"cp -a {folder}.copy/. {folder} && exec sh {step}"
        )
        command = ["unshare", "--mount", "sh", "-c", script]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert (done.returncode, done.stdout) == (7, "1\n"), done.stderr


class TestWatchdog:
    """watchdog.sh removes the run's folder in all cases."""

    @pytest.fixture
    def node(self, tmp_path: Path) -> Path:
        node = tmp_path / "accept-test"
        node.mkdir()
        render(resolve(Options(machine="cpu", nodes=1))).write(node)
        (node / "run").write_text(f"guard-{os.getpid()}\n")
        os.mkfifo(node / "events")
        # Prints that it listens, as an sshd does, and waits for its end.
        listens = "echo 'Server listening on 0.0.0.0 port 1.' >&2\nexec sleep 600"
        write_program(tmp_path / "sshd", listens)
        return node

    def guard(
        self, node: Path, seconds: str, keep: str, *, wait: bool = True
    ) -> subprocess.Popen[bytes]:
        """Start the watchdog, and wait until its sshd listens."""
        guard = subprocess.Popen(
            ["sh", str(node / "watchdog.sh"), seconds, keep, str(node.parent / "sshd")],
            cwd=node,
            stdin=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            env={**os.environ, "ACCEPT_GUARD": str(node)},
        )
        if wait:
            wait_for(node / "port", guard)
        return guard

    def test_after_remove_it_leaves_nothing(self, node: Path) -> None:
        guard = self.guard(node, "600", "600")
        tell(node, "remove")
        guard.wait(PATIENCE)
        assert not node.exists()
        assert not self.left(node)

    def test_after_its_time_limit_it_leaves_nothing(self, node: Path) -> None:
        self.guard(node, "1", "1", wait=False).wait(PATIENCE)
        assert not node.exists()
        assert not self.left(node)

    def test_the_first_host_keeps_only_the_evidence_until_remove(self, node: Path) -> None:
        (node / "evidence").mkdir()
        (node / "evidence" / "plan.json").write_text("{}")
        guard = self.guard(node, "600", "600")
        tell(node, "over")
        wait_for(node / "kept", guard)
        assert {path.name for path in node.iterdir()} <= {
            "evidence.tar", "status", "console.log", "events", "run", "timer", "kept",
            "guard.pid", "kill.sh",
        }  # fmt: skip
        tell(node, "remove")
        guard.wait(PATIENCE)
        assert not node.exists()

    def test_uncollected_evidence_is_removed_after_a_while(self, node: Path) -> None:
        (node / "evidence").mkdir()
        guard = self.guard(node, "600", "1")
        tell(node, "over")
        guard.wait(PATIENCE)
        assert not node.exists()

    def test_remove_makes_the_watchdog_remove_the_folder(self, node: Path) -> None:
        guard = self.guard(node, "600", "600")
        # The workstation would end the processes with kill.sh; the watchdog does not need it.
        (node / "kill.sh").write_text("exit 1\n")
        done = sh(LAUNCHERS / "manage.sh", "remove", str(node))
        assert (done.returncode, done.stdout) == (0, "")
        assert guard.wait(PATIENCE) == 0
        assert not node.exists()

    def test_a_run_of_the_same_name_in_another_folder_goes_on(
        self, node: Path, tmp_path: Path
    ) -> None:
        attempt = (node / "run").read_text().strip()
        own, other = (
            subprocess.Popen(
                SLEEP,
                env={"PATH": os.environ["PATH"], "ACCEPT_RUN": attempt, "ACCEPT_DIR": str(folder)},
                stdout=subprocess.PIPE,
            )
            for folder in (node, tmp_path / "other")
        )
        try:
            for process in (own, other):
                assert process.stdout
                process.stdout.readline()
            guard = self.guard(node, "600", "600")
            tell(node, "remove")
            guard.wait(PATIENCE)
            assert own.wait(PATIENCE) == -signal.SIGTERM
            assert other.poll() is None
        finally:
            for process in (own, other):
                process.kill()
                process.communicate()

    def test_remove_ends_the_processes_of_a_killed_watchdog(self, node: Path) -> None:
        guard = self.guard(node, "600", "600")
        sshd = (node / "sshd.pid").read_text().split()[0]
        assert self.lives(sshd)
        guard.kill()
        guard.wait()
        done = sh(LAUNCHERS / "manage.sh", "remove", str(node))
        assert (done.returncode, done.stdout) == (0, "")
        assert not node.exists()
        assert not self.lives(sshd)
        assert not self.left(node)

    def lives(self, pid: str) -> bool:
        """Return True if a process lives; a zombie, which has no command line, does not."""
        path = Path("/proc", pid, "cmdline")
        return path.exists() and path.read_bytes() != b""

    def left(self, node: Path) -> list[str]:
        """Return the processes that still use the folder in their command line."""
        found = []
        for path in Path("/proc").glob("[0-9]*/cmdline"):
            try:
                if str(node).encode() in path.read_bytes():
                    found.append(str(path))
            except OSError:
                continue
        return found


#: An sshd in FIPS mode: it refuses other algorithms, and a configuration that names one.
FIPS_SSHD = """\
#!/bin/sh
! grep -q 25519 sshd_config || exit 1
exec {sshd} -o KexAlgorithms=ecdh-sha2-nistp256 -o HostKeyAlgorithms=ecdsa-sha2-nistp256 \
    -o PubkeyAcceptedAlgorithms=ecdsa-sha2-nistp256 "$@"
"""


@pytest.mark.real
def test_the_sshd_of_a_run_works_in_fips_mode_and_limits_logins(tmp_path: Path) -> None:
    """SECURITY.md: "No passwords, no forwarding", a number of logins, and no PAM."""
    sshd = shutil.which("sshd", path=f"{os.environ['PATH']}:/usr/sbin")
    if not sshd:
        pytest.skip("no sshd here")
    if os.geteuid() == 0:
        Path("/run/sshd").mkdir(exist_ok=True)
    port = free_port()
    for name in ("sshd.sh", "ssh_config.in", "force_command.sh"):
        shutil.copy(LAUNCHERS / name, tmp_path)
    keys = new_keys(HOST_KEY_ALIAS)
    (tmp_path / "key").write_bytes(keys.private)
    (tmp_path / "key").chmod(0o600)
    for name, text in {
        "authorized_keys": keys.public,
        "known_hosts": f"{HOST_KEY_ALIAS} {keys.public}",
        "run": "one\n",
        "env.sh": "",
        "logins": "18\n",
        "fips": FIPS_SSHD.format(sshd=sshd),
    }.items():
        (tmp_path / name).write_text(text)
    (tmp_path / "fips").chmod(0o755)
    script = f"""\
ACCEPT_DIR=$PWD
. ./sshd.sh
write_sshd_config ./fips
listen ./fips {port} || {{ cat sshd.log >&2; exit 1; }}
sed "s|@FOLDER@|$PWD|" ssh_config.in > ssh_config
ssh -F ssh_config -p {port} 127.0.0.1 'echo run $ACCEPT_RUN'
kill "$daemon"
{sshd} -T -f sshd_config > settings
"""
    done = run_program(["sh", "-c", script], cwd=tmp_path)
    assert done.stdout.splitlines() == ["run one"], done.stderr
    settings = {*(tmp_path / "settings").read_text().splitlines()}
    refused = [
        *("passwordauthentication", "kbdinteractiveauthentication", "usepam", "permittunnel"),
        *("allowtcpforwarding", "allowagentforwarding", "x11forwarding", "permituserrc"),
    ]
    assert settings >= {"maxstartups 18:30:18", *(f"{key} no" for key in refused)}


def test_ports_are_in_the_range_that_the_security_page_names() -> None:
    page = (LAUNCHERS.parent / "SECURITY.md").read_text()
    ((first, last),) = {*re.findall(r"from (\d+) to (\d+)", page)}
    guard = (LAUNCHERS / "watchdog.sh").read_text()
    (of_sshd,) = re.findall(r"^ *port=.*$", guard, re.M)
    width = int(last) - int(first)
    drawn = [_shell(f"od() {{ echo {n}; }}; {of_sshd}; echo $port") for n in (0, width, width + 1)]
    assert drawn == [first, last, first]
    lib = (LAUNCHERS / "lib.sh").read_text()
    picking = re.findall(r"^pick_master\(\) \{$.*?^\}$", lib, re.M | re.S)
    pick = f"{picking[0]}\npick_master; echo $ACCEPT_MASTER_PORT"
    of_torch = {_shell(pick) for _ in range(20)}
    assert first <= min(of_torch) <= max(of_torch) <= last


def _shell(script: str) -> str:
    """Return the last line that a script of the launchers prints."""
    env = {"PATH": os.environ["PATH"], "ACCEPT_PYTHON": sys.executable}
    done = run_program(["/bin/sh", "-c", script], cwd=LAUNCHERS, env=env, check=True)
    return done.stdout.split()[-1]


@pytest.mark.real
@pytest.mark.parametrize("venv", [VENV, VENV_MPI4], ids=["Open MPI 5", "Open MPI 4"])
def test_mpirun_starts_daemons_on_a_thousand_hosts(tmp_path: Path, venv: Path) -> None:
    """The names do not resolve, like those of pods. Each start calls the agent, which fails.

    None fails before a hundred are called, because mpirun ends at the first failure that it sees.
    """
    if not (venv / "bin" / "mpirun").exists():
        pytest.skip(f"no mpirun in {venv}")
    bundle = render(resolve(Options(machine="cpu", hosts=("a", "b"))))
    bundle.write(tmp_path)
    (tmp_path / "rsh_agent.sh").write_text(
        'cd "$ACCEPT_DIR/started"; printf "%s" "$*" > "$1"\n'
        "while [ $(ls | wc -l) -lt 100 ]; do sleep 0.1; done; exit 1\n"
    )
    (tmp_path / "started").mkdir()
    (tmp_path / "tmp").mkdir()
    hosts = [f"mytest-attempt-w-0-{n}" for n in range(1000)]
    (tmp_path / "group").write_text(
        "".join(f"gke-pool-{n:04x}-abcd {name} 10.0.0.1 22 8\n" for n, name in enumerate(hosts))
    )
    script = ". ./lib.sh; route_interface() { :; }; read_group; launch 8 true"
    done = run_program(
        ["timeout", "-s", "KILL", "60", "/bin/sh", "-c", script],
        cwd=tmp_path,
        env={
            "PATH": f"{venv}/bin:/usr/bin:/bin",
            "HOME": str(tmp_path),
            "ACCEPT_DIR": str(tmp_path),
            "ACCEPT_EXEC": "e/s/0-0",
            "ACCEPT_RUN": "e",
        },
    )
    started = list((tmp_path / "started").iterdir())
    assert len(started) >= 100, done.stdout[-500:] + done.stderr[-1000:]
    # Linux limits an argument to 128 KiB.
    assert max(path.stat().st_size for path in started) < 4096
    hostfile = (tmp_path / "exec" / "e" / "s" / "0-0" / "hostfile").read_text().splitlines()
    assert hostfile == [f"{name} slots=8" for name in hosts]
    # The command line is in the record, and names no host.
    line = next(line for line in done.stdout.splitlines() if line.startswith("# Open MPI "))
    assert len(line) < 2000


class TestPodEntrypoint:
    """pod_entrypoint.sh: an sshd until the run ends; coordinator and evidence on index 0."""

    @pytest.fixture
    def pod(self, tmp_path: Path) -> Path:
        if not shutil.which("ssh-keygen"):
            pytest.skip("no ssh-keygen here")
        pod = tmp_path / "pod"
        pod.mkdir()
        self.fill(pod)
        # Helm makes a key like this, and the pod gets only its private half.
        options = ("-q", "-t", "ecdsa", "-m", "PEM", "-N", "")
        words = ["ssh-keygen", *options, "-f", str(tmp_path / "key")]
        subprocess.run(words, check=True)
        (tmp_path / "key.pub").unlink()
        tools = tmp_path / "bin"
        tools.mkdir()
        # Prints that it listens, as an sshd does, and waits for its end.
        write_program(
            tools / "sshd",
            '[ "$1" != -t ] || exit 0; echo "Server listening" >&2; exec sleep 600',
        )
        write_program(tools / "mpirun", "exit 1")
        return pod

    def fill(self, pod: Path, **scripts: str) -> None:
        """Unpack the files of a pod, with some scripts replaced."""
        bundle = render(resolve(Options(machine="cpu", hosts=("a", "b"))))
        changed = {f"{name}.sh": text.encode() for name, text in scripts.items()}
        archive = replace(bundle, files={**bundle.files, **changed}).archive()
        subprocess.run(["tar", "-xf", "-", "-C", pod], input=archive, check=True)

    def start(self, pod: Path, *before: str, **environment: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [*before, "/bin/sh", str(pod / "pod_entrypoint.sh")],
            env={
                "PATH": f"{pod.parent / 'bin'}:/usr/bin:/bin",
                "ACCEPT_ATTEMPT": f"entry-{os.getpid()}",
                "ACCEPT_NODES": "2",
                "ACCEPT_HOST_PREFIX": "entry-w-0-",
                "ACCEPT_NODE": "node-1",
                "ACCEPT_ADDRESSES": "10.0.0.2",
                "ACCEPT_SSH_PORT": "2222",
                "ACCEPT_START_SECONDS": "600",
                "ACCEPT_LIFE_SECONDS": "600",
                "ACCEPT_RESULTS": "",
                "ACCEPT_KEY": str(pod.parent / "key"),
                "JOB_COMPLETION_INDEX": "1",
                **environment,
            },
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )

    def ended(self, entry: subprocess.Popen[str]) -> tuple[int, str]:
        try:
            output, _ = entry.communicate(timeout=PATIENCE)
        except subprocess.TimeoutExpired:
            os.killpg(entry.pid, signal.SIGKILL)
            entry.communicate()
            raise
        return entry.returncode, output.splitlines()[-1]

    def ready(self, pod: Path, entry: subprocess.Popen[str]) -> None:
        # The file exists a moment before its content is written.
        timer = pod / "timer"
        while not timer.exists() or not timer.read_text().strip():
            assert entry.poll() is None
            time.sleep(0.01)

    @pytest.mark.parametrize(
        ("options", "event", "status", "last"),
        [
            ({}, "over", 0, "the run is over"),
            # Its pod is deleted.
            ({}, "TERM", 23, "ended before the run was over (ending)"),
            ({"ACCEPT_LIFE_SECONDS": "1"}, "", 23, "ended before the run was over (expired)"),
            (
                {"ACCEPT_START_SECONDS": "2", "ACCEPT_LOOK_SECONDS": "1"},
                *("", 21, "no coordinator came within 4 s"),
            ),
        ],
    )
    def test_ends_with_the_reason(
        self, pod: Path, options: dict[str, str], event: str, status: int, last: str
    ) -> None:
        entry = self.start(pod, **options)
        if event:
            self.ready(pod, entry)
        if event == "TERM":
            entry.terminate()
        elif event:
            tell(pod, event)
        assert self.ended(entry) == (status, last)
        assert "node-1" in (pod / "pod.log").read_text()

    def test_signs_evidence_with_the_key_of_the_run(self, pod: Path, tmp_path: Path) -> None:
        """Verify it as docs/evidence.md shows for a bare `helm install`."""
        entry = self.start(pod)
        self.ready(pod, entry)
        folder = sample_evidence.write(tmp_path / "evidence")
        sign_evidence(folder, pod / KEY, evidence.RUN_SIGNATURE)
        entry.terminate()
        self.ended(entry)
        words = ["ssh-keygen", "-y", "-f", str(tmp_path / "key")]
        public = tmp_path / "run.pub"
        public.write_bytes(subprocess.run(words, capture_output=True, check=True).stdout)
        done = accept("verify", folder, "--public-key", public, "--json")
        assert (done.code, json.loads(done.out)["outcome"]) == (0, Verification.SIGNED)

    def test_stays_if_the_coordinator_asks_for_it(self, pod: Path) -> None:
        """Index 0 is a host like the others if the coordinator has a pod of its own."""
        write_program(
            pod.parent / "bin" / "sshd",
            '[ "$1" != -t ] || exit 0; echo "Server listening" >&2; trap "touch gone; exit" TERM\n'
            "while :; do sleep 0.1; done",
        )
        entry = self.start(pod, ACCEPT_ROLE="host", JOB_COMPLETION_INDEX="0")
        self.ready(pod, entry)
        (pod / "stay").touch()
        tell(pod, "over")
        wait_for(pod / "gone", entry)
        entry.terminate()
        assert self.ended(entry) == (0, "the run is over")
        assert (pod / "ending").exists()

    def test_all_hosts_register_with_a_separate_coordinator(self, pod: Path) -> None:
        self.fill(pod, coordinate=': > "$2"; echo 5 > status; echo over 1<>events\n')
        entry = self.start(
            pod, ACCEPT_ROLE="coordinator", JOB_COMPLETION_INDEX="0", ACCEPT_HOLD_SECONDS="0"
        )
        assert self.ended(entry)[0] == 5
        launch = read(Launch, json.loads((pod / "hosts.json").read_text()))
        assert [host.name for host in launch.hosts] == ["entry-w-0-0", "entry-w-0-1"]
        assert launch.is_separate

    @pytest.mark.parametrize("sent", [True, False])
    def test_the_coordinator_waits_for_a_limited_time_for_finished_steps(
        self, pod: Path, *, sent: bool
    ) -> None:
        self.fill(pod, coordinate=': > "$2"; echo 5 > status; echo over 1<>events\n')
        options = {"ACCEPT_RESUMED": "yes", "ACCEPT_RESUME_SECONDS": "60" if sent else "1"}
        entry = self.start(pod, JOB_COMPLETION_INDEX="0", ACCEPT_HOLD_SECONDS="0", **options)
        if sent:
            self.ready(pod, entry)
            (pod.parent / EARLIER).mkdir()
            (pod.parent / EARLIER / "plan.json").touch()
            with tarfile.open(pod / "new", "w:bz2") as archive:
                archive.add(pod.parent / EARLIER, EARLIER)
            (pod / "new").rename(pod / FINISHED)
        assert self.ended(entry)[0] == 5
        launch = read(Launch, json.loads((pod / "hosts.json").read_text()))
        assert launch.earlier == (str(pod / EARLIER) if sent else "")
        assert (pod / EARLIER / "plan.json").exists() == sent

    def test_prints_the_records_that_it_keeps_if_the_coordinator_is_lost(self, pod: Path) -> None:
        entry = self.start(pod)
        self.ready(pod, entry)
        (pod / RECORDS_COPY).write_text("records\n")
        (pod / "reason").write_text("22\n")
        tell(pod, "unwanted")
        assert self.ended(entry) == (22, "records")

    @pytest.mark.skipif(os.geteuid() != 0, reason="needs root: processes of its own")
    def test_as_the_first_process_reaps_dead_children(self, pod: Path) -> None:
        # An sshd whose sessions end before the processes that they started.
        write_program(
            pod.parent / "bin" / "sshd",
            '[ "$1" != -t ] || exit 0; echo "Server listening" >&2\n'
            "for n in 1 2 3; do sh -c 'sleep 0.1 & echo $!'; done > orphans\n"
            "while read -r one; do while [ -d /proc/$one ]; do sleep 0.02; done; done < orphans\n"
            "touch none-left; exec sleep 600",
        )
        alone = ("unshare", "--pid", "--fork", "--kill-child", "--mount-proc")
        entry = self.start(pod, *alone, ACCEPT_LIFE_SECONDS="600")
        wait_for(pod / "none-left", entry)
        assert len((pod / "orphans").read_text().split()) == 3
        tell(pod, "over")
        assert self.ended(entry) == (0, "the run is over")

    def first(self, pod: Path, results: Path, *, records: int) -> subprocess.Popen[str]:
        """Run index 0 of an accepted run that leaves this many bytes of records."""
        results.mkdir()
        self.fill(
            pod,
            coordinate=f'mkdir evidence; : > "$2"; '
            f"head -c {records} /dev/zero > evidence/records.jsonl\n"
            "echo 0 > status; echo over 1<>events\n",
        )
        return self.start(
            pod,
            JOB_COMPLETION_INDEX="0",
            ACCEPT_RESULTS=str(results),
            ACCEPT_HOLD_SECONDS="600",
        )

    def test_index_0_ends_when_its_evidence_is_in_the_folder(
        self, pod: Path, tmp_path: Path
    ) -> None:
        entry = self.first(pod, tmp_path / "results", records=1 << 20)
        code, last = self.ended(entry)
        assert (code, last) == (0, f"evidence: {tmp_path}/results/runs/entry-{os.getpid()}")
        assert not (pod / "evidence.tar").exists()

    @pytest.mark.parametrize("kernel", ["x86_64 Kernel Module", "Open Kernel Module for x86_64"])
    @pytest.mark.parametrize(
        ("content", "cuda"),
        [(b"\0\x7fELF\0NCCL version 2.28.3+cuda13.0\0\n\xff", "13.0"), (b"\0\x7fELF", "")],
    )
    def test_index_0_names_the_image_the_driver_and_the_nccl_that_is_loaded(
        self, pod: Path, tmp_path: Path, kernel: str, content: bytes, cuda: str
    ) -> None:
        (tmp_path / "driver" / "nvidia").mkdir(parents=True)
        (tmp_path / "driver" / "nvidia" / "version").write_text(
            f"NVRM version: NVIDIA UNIX {kernel}  580.95.05  Sat Nov  1 00:59:57 UTC 2025\n"
            "GCC version: gcc version 13.3.0\n"
        )
        plugin = tmp_path / "plugin"
        plugin.mkdir()
        (plugin / "libnccl.so.2.28.3").write_bytes(content)
        (plugin / "libnccl.so.2").symlink_to("libnccl.so.2.28.3")
        (plugin / "libcuda.so.580.95.05").touch()
        (plugin / "libcuda.so.1").symlink_to("libcuda.so.580.95.05")
        self.fill(pod, coordinate="mkdir evidence; touch evidence/records.jsonl console.log\n"
                  'echo verdict > "$2"; echo 0 > status; echo over 1<>events\n')  # fmt: skip
        entry = self.start(
            pod, JOB_COMPLETION_INDEX="0", ACCEPT_RESULTS=str(tmp_path), ACCEPT_IMAGE="img:1",
            ACCEPT_PROC=str(tmp_path), LD_LIBRARY_PATH=f"/missing::{plugin}",
        )  # fmt: skip
        assert self.ended(entry)[0] == 0
        log = (pod / "pod.log").read_text()
        assert "\nimage: img:1\n" in log
        of_cuda = f" with CUDA {cuda}" if cuda else ""
        assert f"\ndriver 580.95.05; NCCL 2.28.3{of_cuda} from {plugin}/libnccl.so.2\n" in log
        assert json.loads((pod / "hosts.json").read_text())["versions"] == {
            "driver": "580.95.05", "NCCL": "2.28.3", "CUDA": cuda, "libcuda": "580.95.05",
        }  # fmt: skip

    def test_index_0_waits_if_only_the_folder_has_all_records(
        self, pod: Path, tmp_path: Path
    ) -> None:
        entry = self.first(pod, tmp_path / "results", records=(1 << 20) + 1)
        wait_for(pod / "evidence.tar", entry)
        assert (tmp_path / "results" / "runs" / f"entry-{os.getpid()}" / "MANIFEST.json").exists()
        (pod / "collected").touch()
        code, last = self.ended(entry)
        assert (code, last.startswith("evidence is kept here for 600 s")) == (0, True)

    def test_index_0_leaves_evidence_alone_that_was_sent_before_a_hold(
        self, pod: Path, tmp_path: Path
    ) -> None:
        results = tmp_path / "results"
        results.mkdir()
        # The log of the run has lines of the hold, which the log in the evidence lacks.
        self.fill(
            pod,
            coordinate="mkdir evidence; touch evidence/records.jsonl\n"
            'echo verdict > evidence/console.log; printf "verdict\\nheld\\n" > "$2"\n'
            '"$1" programs/upload.py evidence "$ACCEPT_RESULTS" --attempt "$ACCEPT_ATTEMPT"\n'
            "echo 3 > status; echo over 1<>events\n",
        )
        entry = self.start(pod, JOB_COMPLETION_INDEX="0", ACCEPT_RESULTS=str(results))
        sent = results / "runs" / f"entry-{os.getpid()}"
        assert self.ended(entry) == (3, f"evidence: {sent}")
        assert (sent / "console.log").read_text() == "verdict\n"
        assert (sent / "pods" / "0.log").exists()

    #: In place of a coordinator that accepts at once.
    COORDINATES = (
        "mkdir evidence; touch evidence/records.jsonl console.log\n"
        'echo "used $1" > "$2"; echo 0 > status; echo over 1<>events\n'
    )

    def tools(self, pod: Path, *without: str) -> Path:
        """Return a folder with the programs of this machine, without those that begin like this."""
        folder = pod.parent / f"without-{'-'.join(without)}"
        folder.mkdir()
        for tool in Path("/usr/bin").iterdir():
            if not tool.name.startswith(without):
                (folder / tool.name).symlink_to(tool)
        return folder

    def test_ends_if_the_image_cannot_unpack_the_programs(self, pod: Path) -> None:
        path = f"{pod.parent / 'bin'}:{self.tools(pod, 'bzip2', 'python')}"
        entry = self.start(pod, PATH=path)
        assert self.ended(entry)[0] == 20
        assert "lacks: bzip2" in (pod / "pod.log").read_text()

    def test_lists_required_tools_that_the_image_lacks(self, pod: Path) -> None:
        entry = self.start(pod, PATH=str(self.tools(pod, "ssh", "mpirun")), ACCEPT_IMAGE="img:1")
        code, last = self.ended(entry)
        assert (code, last.partition(";")[0]) == (20, "every run needs: ssh ssh-keygen mpirun")
        log = (pod / "pod.log").read_text()
        assert log.splitlines()[1] == "the image img:1 lacks: ssh ssh-keygen mpirun"

    def image(self, pod: Path, has: frozenset[ImageTool]) -> str:
        """Make the root folder of an image with these tools; return its PATH."""
        root = pod.parent / "root"
        own = root / "usr" / "local" / "bin"
        own.mkdir(parents=True)
        names = {
            ImageTool.PYTHON: "python",
            ImageTool.SSH: "ssh",
            ImageTool.SSHD: "sshd",
            ImageTool.MPIRUN: "mpirun",
        }
        system = self.tools(pod, *(name for tool, name in names.items() if tool not in has))
        if ImageTool.SSHD in has:
            (root / "usr" / "sbin").mkdir()
            (pod.parent / "bin" / "sshd").rename(root / "usr" / "sbin" / "sshd")
        if ImageTool.MPIRUN in has:
            (pod.parent / "bin" / "mpirun").rename(own / "mpirun")
        if ImageTool.NCCL_TESTS in has:
            write_program(own / "all_reduce_perf_mpi", "")
        if ImageTool.PYTHON in has:
            write_program(own / "python3", self.FULL if ImageTool.TORCH in has else self.BARE)
        # The script looks for sshd in folders of the root, too.
        finds = (resources.launchers() / "sshd.sh").read_text().replace(" /usr/", f" {root}/usr/")
        self.fill(pod, sshd=finds, coordinate=self.COORDINATES)
        return f"{own}:{system}"

    @pytest.mark.sampled
    @pytest.mark.parametrize("python", [{ImageTool.PYTHON}, set()], ids=["python", "none"])
    @pytest.mark.parametrize("public", public_images(), ids=lambda one: one.image)
    def test_on_a_public_image_starts_or_names_what_is_missing(
        self, pod: Path, public: PublicImage, python: set[ImageTool]
    ) -> None:
        """Give it what it is known to have, ssh, and Python in one of two cases."""
        has = (public.has | {ImageTool.SSH}) - {ImageTool.TORCH, ImageTool.PYTHON} | python
        (pod.parent / "nvidiactl").touch()
        path, dev = self.image(pod, has), str(pod.parent)
        entry = self.start(
            pod, PATH=path, ACCEPT_DEV=dev, ACCEPT_IMAGE="img:1", JOB_COMPLETION_INDEX="0",
            ACCEPT_HOLD_SECONDS="0",
        )  # fmt: skip
        lacking = {"sshd": ImageTool.SSHD, "python-3.10-or-newer": ImageTool.PYTHON}
        missing = [name for name, tool in lacking.items() if tool not in has]
        if missing:
            code, last = self.ended(entry)
            assert (code, last.partition(";")[0]) == (5, f"every run needs: {' '.join(missing)}")
            log = (pod / "pod.log").read_text()
            assert log.splitlines()[1] == f"the image img:1 lacks: {' '.join(missing)}"
            return
        assert self.ended(entry)[0] == 0
        log = (pod / "pod.log").read_text()
        assert "lacks" not in log
        assert "torch (" in log
        assert "nccl-tests (" not in log

    def test_uses_a_newer_python_beside_an_old_one(self, pod: Path) -> None:
        folder = pod.parent / "bin"
        write_program(folder / "python3", "exit 1")
        write_program(folder / "python", "exit 1")
        write_program(folder / "python3.12", self.FULL)
        path = f"{folder}:{self.tools(pod, 'python')}"
        self.fill(pod, coordinate=self.COORDINATES)
        entry = self.start(pod, JOB_COMPLETION_INDEX="0", PATH=path, ACCEPT_RESULTS=str(folder))
        assert self.ended(entry)[0] == 0
        assert "used python3.12\n" in (pod / "console.log").read_text()

    def optional(self, pod: Path, python: str, **environment: str) -> str:
        """Return the line about missing optional tools, or ""."""
        write_program(pod.parent / "bin" / "python3", python)
        first = {"ACCEPT_ROLE": "host", "JOB_COMPLETION_INDEX": "0", **environment}
        entry = self.start(pod, ACCEPT_IMAGE="img:1", **first)
        self.ready(pod, entry)
        entry.terminate()
        self.ended(entry)
        after = (pod / "pod.log").read_text().splitlines()[1]
        return after if "has no" in after else ""

    #: A Python without the packages installed into it, and one with all of them. No bucket is read.
    BARE, FULL = (
        f'case $1 in programs/*) exit 1 ;; esac\nexec {sys.executable} {option} "$@"'
        for option in ("-S", "")
    )

    def test_lists_missing_optional_tools_with_the_consequences(self, pod: Path) -> None:
        (pod.parent / "nvidiactl").touch()
        line = self.optional(pod, self.BARE, ACCEPT_RESULTS="az://mine", ACCEPT_DEV=str(pod.parent))
        assert line == (
            "the image img:1 has no: "
            "torch (checks that need it fail); "
            "mpi4py (the latency between hosts is not measured); "
            "nccl-tests (torch measures collectives in their place); "
            "obstore (no evidence is sent)"
        )

    def test_does_not_list_tools_that_the_run_does_not_need(self, pod: Path) -> None:
        """No GPUs, and no bucket."""
        line = self.optional(pod, self.BARE, ACCEPT_RESULTS="/folder", ACCEPT_DEV="/nonexistent")
        assert line.endswith("mpi4py (the latency between hosts is not measured)")

    @pytest.mark.real
    def test_prints_nothing_if_no_tool_is_missing(self, pod: Path) -> None:
        for program in ("all_reduce_perf", "gcloud"):
            write_program(pod.parent / "bin" / program, "")
        (pod.parent / "nvidiactl").touch()
        dev = str(pod.parent)
        assert self.optional(pod, self.FULL, ACCEPT_RESULTS="gs://mine", ACCEPT_DEV=dev) == ""

    def test_works_without_a_python(self, pod: Path) -> None:
        """Expect an empty answer: only the coordinator needs Python."""
        path = f"{pod.parent / 'bin'}:{self.tools(pod, 'python')}"
        assert self.optional(pod, "exit 127", ACCEPT_DEV="/nonexistent", PATH=path) == ""

    def test_lists_no_tools_on_pods_other_than_the_first(self, pod: Path) -> None:
        none = self.optional(pod, self.BARE, ACCEPT_DEV="/nonexistent", JOB_COMPLETION_INDEX="1")
        assert none == ""

    def test_an_invalid_key_is_reported(self, pod: Path) -> None:
        (pod.parent / "key").write_text("no key\n")
        assert self.ended(self.start(pod)) == (20, "ssh-keygen cannot read the run's key")

    def test_saves_the_environment_of_the_container_without_its_own_variables(
        self, pod: Path
    ) -> None:
        entry = self.start(pod, LD_LIBRARY_PATH="/own 'lib'", ACCEPT_LIBRARY_PATH="/plugin")
        self.ready(pod, entry)
        entry.terminate()
        self.ended(entry)
        script = f'. "{pod}/host.env"; env'
        done = run_program(["/bin/sh", "-c", script], env={}, check=True)
        assert "LD_LIBRARY_PATH=/plugin:/own 'lib'" in done.stdout.splitlines()
        assert "ACCEPT_" not in done.stdout
