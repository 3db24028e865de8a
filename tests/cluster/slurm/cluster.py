"""A real Slurm on this machine: every node is a host of `tests.cluster.hosts` with its own slurmd.

    with SlurmCluster(4) as cluster:
        cluster.call("sinfo")

Nodes are called n1, n2 …, and their hostnames are h1, h2 …. One more host runs slurmctld. This
machine is the login node: commands use the configuration that `environment` names. All of them can
be of another Debian, in a folder. There is no accounting. Everything ends with the process that
made it, and no process, mount, link or file is left.
"""

from __future__ import annotations

import os
import secrets
import shlex
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Self

from tests.cluster import debian
from tests.cluster.hosts import Hosts
from tests.cluster.hosts import why_not as why_no_hosts

#: A Debian with a newer Slurm, and what it needs.
NEWER, _INCLUDED = "trixie", ("ca-certificates",)
_ADDED = (
    *("slurmctld", "slurmd", "slurm-client", "slurm-wlm-basic-plugins", "munge", "libpmix-dev"),
    *("libslurm-dev", "gcc", "libc6-dev", "openssh-server", "openssh-client", "iproute2"),
    *("bzip2", "procps", "python3", "libffi8", "libsqlite3-0"),
)
#: What a user of a login node calls.
_COMMANDS = ("salloc", "sbatch", "scancel", "scontrol", "sinfo", "squeue", "srun")
_PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "srun", "scontrol", "gcc")
#: A start takes about 3 s on an idle machine.
_START_SECONDS = 120.0
_GPUS = 8
#: The image that the stand-in for Pyxis has. Containers of it see the environment at /srv.
IMAGE = "registry.example/accept:1.0"
_PYXIS = Path(__file__).with_name("pyxis_standin.c")
#: All nodes are below `top`, in pairs.
_TOPOLOGY = "SwitchName=leaf1 Nodes=n[1-2]\nSwitchName=leaf2 Nodes=n[3-{last}]\n"
_CONF = """\
ClusterName=test
SlurmctldHost={control}({control_address})
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
StateSaveLocation={folder}/state
SlurmdSpoolDir=/run/slurmd
SlurmctldPidFile=/run/slurmctld.pid
SlurmdPidFile=/run/slurmd.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd-%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
TaskProlog={folder}/task_prolog
SelectType=select/cons_tres
SelectTypeParameters=CR_Core_Memory
TopologyPlugin=topology/tree
GresTypes=gpu
MpiDefault=none
ReturnToService=2
SlurmdTimeout=10
KillWait=10
UnkillableStepTimeout=30
InactiveLimit=0
MinJobAge=300
SchedulerParameters=sched_interval=1,sched_min_interval=0,bf_interval=2,nohold_on_prolog_fail
SlurmdParameters=config_overrides
JobCompType=jobcomp/none
PreemptType=preempt/partition_prio
PreemptMode=CANCEL
{nodes}
PartitionName=gpu Nodes=ALL Default=YES MaxTime=INFINITE State=UP PriorityTier=1 GraceTime=60
PartitionName=urgent Nodes=ALL MaxTime=INFINITE State=UP PriorityTier=2
PartitionName=closed Nodes=ALL MaxTime=INFINITE State=DOWN
"""


def why_not() -> str:
    """Return why this machine cannot run Slurm, or "" if it can."""
    if reason := why_no_hosts():
        return reason
    path = f"{os.environ['PATH']}:/usr/sbin:/sbin"
    missing = [name for name in _PROGRAMS if not shutil.which(name, path=path)]
    return f"Slurm needs {', '.join(missing)}: see tests/debian-packages.txt" if missing else ""


def newer() -> Path:
    """Return the folder of a Debian with a newer Slurm than this machine's."""
    return debian.make(NEWER, _INCLUDED, added=_ADDED)


class SlurmCluster:
    """`count` nodes with 8 pretended GPUs each, from the start of the `with` block to its end.

    `venv` is an environment that the ranks use. `size` is that of each private place of a node.
    """

    def __init__(self, count: int, *, venv: Path, base: Path = Path("/"), size: str = "1g") -> None:
        self.names = tuple(f"n{number}" for number in range(1, count + 1))
        self._count = count
        self._venv = venv
        self._base = base
        self._size = size
        self._is_own = base == Path("/")
        self._exit = ExitStack()

    def __enter__(self) -> Self:
        try:
            self.folder = Path(tempfile.mkdtemp(prefix="accept-slurm-"))
            self._exit.callback(shutil.rmtree, self.folder, ignore_errors=True)
            self.folder.chmod(0o755)
            self.home.mkdir()
            share = [self.folder, self._venv, self._venv.resolve()]
            hosts = Hosts(self._count + 1, share=share, base=self._base, size=self._size)
            self.hosts = self._exit.enter_context(hosts)
            self.environment = {"SLURM_CONF": str(self.folder / "slurm.conf")}
            if not self._is_own:
                self._add_commands()
            self._configure()
            self._start()
        except BaseException:
            self._exit.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.stop_jobs()
        self._exit.close()

    @property
    def home(self) -> Path:
        """Return a folder that all nodes see at the same path, as a shared home would be."""
        return self.folder / "home"

    def host(self, node: str) -> str:
        """Return the host that a node is."""
        return self.hosts.names[self.names.index(node)]

    @property
    def _control(self) -> str:
        return self.hosts.names[-1]

    def _add_commands(self) -> None:
        """Put the commands of the other Debian before those of this machine."""
        # Jobs get the PATH of the login node, and the nodes have commands of their own.
        folder = Path(self._exit.enter_context(tempfile.TemporaryDirectory()))
        for name in _COMMANDS:
            command = shlex.join(debian.chroot(self._base, f"/usr/bin/{name}"))
            (folder / name).write_text(f'#!/bin/sh\nexec {command} "$@"\n')
            (folder / name).chmod(0o755)
        self.environment["PATH"] = f"{folder}:{os.environ['PATH']}"
        # From 23.11 on, the controller resolves the name of the login node.
        for host in self.hosts.names:
            with self.hosts.path(host, "/etc/hosts").open("a") as file:
                file.write(f"{self.hosts.switch.network[1]} {socket.gethostname()}\n")

    def _configure(self) -> None:
        lines = [
            f"NodeName={node} NodeHostname={self.host(node)} NodeAddr={self.address(node)} "
            f"CPUs=2 RealMemory=4000 Gres=gpu:{_GPUS} State=UNKNOWN"
            for node in self.names
        ]
        text = _CONF.format(
            folder=self.folder,
            control=self._control,
            control_address=self.hosts.address(self._control),
            nodes="\n".join(lines),
        )
        (self.folder / "slurm.conf").write_text(text)
        (self.folder / "gres.conf").write_text(f"Name=gpu File=/run/fakegpu[0-{_GPUS - 1}]\n")
        (self.folder / "cgroup.conf").write_text(
            "CgroupPlugin=cgroup/v1\nCgroupMountpoint=/sys/fs/cgroup\n"
        )
        (self.folder / "topology.conf").write_text(
            _TOPOLOGY.format(last=self._count) + "SwitchName=top Switches=leaf[1-2]\n"
        )
        # Sites print from it: what a task prints is not only its own output.
        prolog = self.folder / "task_prolog"
        prolog.write_text("#!/bin/sh\necho print Welcome to the test cluster\n")
        prolog.chmod(0o755)
        (self.folder / "state").mkdir()
        self._configure_pyxis()
        key = self.folder / "munge.key"
        key.write_bytes(secrets.token_bytes(128))
        key.chmod(0o600)

    def _configure_pyxis(self) -> None:
        """Add the stand-in for Pyxis, with one image, which has the environment of the ranks."""
        self.images.mkdir()
        (self.images / IMAGE.replace("/", "#", 1)).symlink_to(self._venv)
        plugin = self.folder / "pyxis_standin.so"
        source = str(shutil.copy(_PYXIS, self.folder))
        words = ["gcc", "-shared", "-fPIC", "-o", str(plugin), source]
        subprocess.run(words if self._is_own else debian.chroot(self._base, *words), check=True)
        (self.folder / "plugstack.conf").write_text(f"required {plugin} {self.images}\n")

    @property
    def images(self) -> Path:
        """Return the folder of the stand-in for Pyxis."""
        return self.folder / "images"

    def address(self, node: str) -> str:
        """Return the address of a node."""
        return self.hosts.address(self.host(node))

    def _start(self) -> None:
        # A socket in the file system can be reached from all hosts, so one munged serves them.
        words = ["munged", "--foreground", "--force"]
        for option, name in (("socket", "munge.socket"), ("key-file", "munge.key")):
            words.append(f"--{option}={self.folder / name}")
        words += [
            f"--{option}={self.folder / 'munge'}.{option}"
            for option in ("pid-file", "seed-file", "log-file")
        ]
        self.hosts.popen(self._control, words, stdout=None, stderr=None)
        self._wait((self.folder / "munge.socket").exists, "munged")
        self._run(self._control, "slurmctld")
        for node in self.names:
            self._start_slurmd(node)
        self.wait_until_idle()

    def _start_slurmd(self, node: str) -> None:
        gpus = " ".join(f"/run/fakegpu{index}" for index in range(_GPUS))
        make = f"for gpu in {gpus}; do mknod $gpu c 1 3; done; exec slurmd -N {node}"
        self._run(self.host(node), make)

    def _run(self, host: str, command: str) -> None:
        self.hosts.run(host, command, env={"SLURM_CONF": self.environment["SLURM_CONF"]})

    def wait_until_idle(self) -> None:
        """Wait until no job uses a node."""
        self._wait(lambda: self.states() == dict.fromkeys(self.names, "idle"), "idle nodes")

    def stop(self, node: str) -> None:
        """End a node and its connections; Slurm notices it now, not after SlurmdTimeout."""
        self.hosts.stop(self.host(node))
        self.call("scontrol", "update", f"nodename={node}", "state=down", "reason=test")

    def boot(self, node: str) -> None:
        """Start a node again that has lost its power, and its slurmd."""
        self.hosts.start(self.host(node))
        self._start_slurmd(node)

    def revive(self, node: str) -> None:
        """Start a node again that was stopped, and let Slurm use it at once."""
        self.boot(node)
        self.call("scontrol", "update", f"nodename={node}", "state=resume", check=False)

    def restart_controller(self) -> None:
        """Kill slurmctld, start another one, and wait until it answers."""
        self.stop_controller()
        self.start_controller()

    def stop_controller(self) -> None:
        """Kill slurmctld."""
        self._run(self._control, "kill -KILL $(cat /run/slurmctld.pid)")

    def start_controller(self) -> None:
        """Start slurmctld again, and wait until it answers."""
        self._run(self._control, "exec slurmctld")
        self._wait(lambda: " is UP" in self.call("scontrol", "ping", check=False), "slurmctld")

    def _wait(self, holds: Callable[[], bool], what: str) -> None:
        until = time.monotonic() + _START_SECONDS
        while not holds():
            if time.monotonic() > until:
                logs = [path.read_text()[-1000:] for path in self.folder.glob("*.log")]
                raise TimeoutError(f"{what} did not start: {logs}")
            time.sleep(0.1)

    def call(self, *words: str, check: bool = True) -> str:
        """Run a command of Slurm on the login node; return what it printed."""
        environment = {**os.environ, **self.environment}
        done = subprocess.run(
            words,
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )
        if check and done.returncode:
            raise subprocess.CalledProcessError(done.returncode, words, done.stdout, done.stderr)
        return done.stdout

    def states(self) -> dict[str, str]:
        """Return the state of each node, such as `idle` or `down*`."""
        lines = self.call("sinfo", "-h", "-N", "-p", "gpu", "-o", "%N %t", check=False).splitlines()
        return dict(line.split() for line in lines)

    def jobs(self) -> list[str]:
        """Return the ids of the jobs that have not ended."""
        return self.call("squeue", "-h", "-o", "%A").split()

    def stop_jobs(self) -> None:
        """End all jobs."""
        if jobs := self.jobs():
            self.call("scancel", *jobs, check=False)

    def leftovers(self) -> list[str]:
        """Return the processes and files of runs that are left on the nodes that are up."""
        found = []
        for node in self.names:
            host = self.host(node)
            if not self.hosts.is_up(host):
                continue
            for each in self.hosts.processes(host):
                if any(text.startswith("ACCEPT_") for text in each.environment):
                    found.append(f"{node}: process {each.command}")
            files = self.hosts.tree(host)
            found += [f"{node}: {path}" for path in files if path.startswith("/tmp/accept-2")]
        return found
