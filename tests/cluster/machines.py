"""Hosts that start, run commands and end; `tests.cluster.hosts` adds what tests do to them.

Each one's first process (init.sh) holds the reading end of a pipe whose other end this process has.
When that closes, however this process ends, the host ends, and with it all its processes, mounts
and links.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Self

from tests.cluster import folders
from tests.cluster.network import MOST, Switch, address, host_batch, inside

HERE = Path(__file__).parent
KINDS = ("mount", "uts", "ipc", "net", "pid", "root", "wd")
#: What a session over ssh would have; nothing of this process's own environment reaches a host.
ENVIRONMENT = {
    "HOME": "/root",
    "LANG": "C.UTF-8",
    "LOGNAME": "root",
    "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
    "SHELL": "/bin/bash",
    "USER": "root",
}
#: Starts sshd and waits until it listens: the start ends before that, and the title comes after it.
SSHD = (
    "rm -f /run/sshd.pid; /usr/sbin/sshd -E /etc/ssh/sshd.log &&"
    " until grep -qs '\\[listener\\]' \"/proc/$(cat /run/sshd.pid 2>/dev/null)/cmdline\";"
    " do sleep 0.02; done"
)


class HostGone(Exception):
    """The host did not start, or was killed or stopped: nothing can be done on it."""


class Machines:
    """N hosts, up from the start of the `with` block to its end.

    `rate` shapes every host's link (None: not at all). `late` names hosts whose sshd isn't started.
    `share` names folders, such as virtual environments, that hosts see even if they are under /tmp,
    /root or another hidden place. Hosts always see this repository and this Python. `size` is that
    of each private place. `base` is the folder of their system: this machine's own, or one of
    `tests.cluster.debian`.
    """

    def __init__(
        self,
        count: int,
        *,
        rate: str | None = "100mbit",
        late: Collection[str] = (),
        share: Iterable[Path] = (),
        size: str = "1g",
        base: Path = Path("/"),
    ) -> None:
        if not 1 <= count <= MOST:
            raise ValueError(f"{count} hosts: 1 to {MOST} can be made")
        self.names = tuple(f"h{number}" for number in range(1, count + 1))
        self.rate = rate
        self.size = size
        self._late = frozenset(late)
        used = [HERE.parent.parent, *folders.environment_of(Path(sys.executable))]
        for folder in share:
            used += [folder, *folders.environment_of(folder / "bin" / "python")]
        self._base = base
        self._shared = folders.shares(used, all_of_them=base != Path("/"))
        self._index = {name: index for index, name in enumerate(self.names)}
        self._host_keys: dict[str, str] = {}
        self._holders: dict[str, subprocess.Popen[str]] = {}
        self._init: dict[str, int] = {}
        self._started: list[subprocess.Popen[str]] = []
        self._unnamed: set[str] = set()
        self._switch: Switch | None = None
        self._owner: int | None = None

    # The beginning and the end.

    def __enter__(self) -> Self:
        folders.sweep()
        self.state, self._owner = folders.make()
        try:
            self._switch = Switch()
            self._own_key = folders.keygen(self._workstation / "id_ed25519", "workstation")
            self._each(self._prepare, self.names)
            known = (
                f"{name},{self.address(name)} {self._host_keys[name]}\n" for name in self.names
            )
            self.known_hosts.write_text("".join(known))
            self._write_names()
            self.start(*self.names)
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End all hosts and remove what was made for them. May be called twice."""
        if self._switch:
            self._switch.close()
        for name in list(self._holders):
            self._end(name)
        for process in self._started:
            process.wait()
            _close(process)
        if self._owner is not None:
            shutil.rmtree(self.state)
            os.close(self._owner)
            self._owner = None

    def _each(self, work: Callable[[str], object], names: Iterable[str]) -> None:
        with ThreadPoolExecutor(8) as pool:
            list(pool.map(work, names))

    def _prepare(self, name: str) -> None:
        network = host_batch(self.switch.network, self._index[name], len(self.names))
        folder = self.state / name
        key = folders.prepare(folder, name, authorized=self._own_key, network=network)
        self._host_keys[name] = key

    @property
    def switch(self) -> Switch:
        """The middle of the network, once there is one."""
        if self._switch is None:
            raise HostGone("these hosts were not started")
        return self._switch

    def start(self, *names: str) -> None:
        """Start hosts: all at the beginning, and again those that were stopped or killed."""
        self._each(self._boot, names)
        indexes = [self._index[name] for name in names]
        self.switch.join(indexes, [self._init[name] for name in names], len(self.names))
        self._each(self._go, names)
        if self.rate:
            self._each(self.shape, names)

    def _boot(self, name: str) -> None:
        """Start the first process of a host and wait for its file systems."""
        spaces = ["--mount", "--net", "--uts", "--ipc", "--pid", "--fork", "--kill-child"]
        command = ["bash", str(HERE / "init.sh"), str(self.state), name, self.size]
        command += [str(self._base), *self._shared]
        with (self.state / name / "init.log").open("a") as log:
            self._holders[name] = subprocess.Popen(
                ["unshare", *spaces, *command],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                env=ENVIRONMENT,
                start_new_session=True,
            )
        self._init[name] = int(self._answer(name))

    def _go(self, name: str) -> None:
        """Let a host whose link is laid start its network and its sshd."""
        pipe = self._holders[name].stdin
        assert pipe
        pipe.write("go\n" if name in self._late else f"go {SSHD}\n")
        pipe.flush()
        self._answer(name)

    def _answer(self, name: str) -> str:
        pipe = self._holders[name].stdout
        assert pipe
        line = pipe.readline()
        if not line:
            log = (self.state / name / "init.log").read_text()
            raise HostGone(f"{name} did not start: {log.strip()}")
        return line

    def _end(self, name: str) -> None:
        """End every process of a host, all at once, and wait until they are gone."""
        holder = self._holders.pop(name)
        init = self._init.pop(name, None)
        if init is not None and holder.poll() is None:
            with suppress(ProcessLookupError):
                os.kill(init, signal.SIGKILL)
        else:
            holder.kill()
        holder.wait()
        _close(holder)

    # What a workstation needs to know.

    @property
    def _workstation(self) -> Path:
        return self.state / "workstation"

    @property
    def ssh_config(self) -> Path:
        """Configuration for `ssh -F`, with a pinned key for each host."""
        return self._workstation / "ssh_config"

    @property
    def known_hosts(self) -> Path:
        """The host keys, as the workstation knows them."""
        return self._workstation / "known_hosts"

    def address(self, name: str) -> str:
        """Return the address of a host."""
        return str(address(self.switch.network, self._index[name]))

    def _write_names(self) -> None:
        """Write who is called what, for the workstation and on every host."""
        named = [name for name in self.names if name not in self._unnamed]
        lines = [f"{self.address(name)} {name}" for name in named]
        text = "\n".join(["127.0.0.1 localhost", *lines]) + "\n"
        for name in self.names:
            # In place: the file is bound into the host.
            (self.state / name / "hosts").write_text(text)
        # RFC 6761: what ends in "invalid" never resolves.
        targets = {name: f"{name}.invalid" for name in self._unnamed}
        targets |= {name: self.address(name) for name in named}
        folder = self._workstation
        self.ssh_config.write_text(
            "".join(
                folders.SSH_CONFIG.format(name=name, address=targets[name], folder=folder)
                for name in self.names
            )
        )

    # Doing things on a host, without ssh.

    def init(self, name: str) -> int:
        """Return the machine's id of the host's first process."""
        if name not in self._index:
            raise KeyError(f"{name}: the hosts are {self.names[0]} to {self.names[-1]}")
        if name not in self._init:
            raise HostGone(f"{name} is gone")
        return self._init[name]

    def is_up(self, name: str) -> bool:
        """Return True if a host has started and was not killed or stopped."""
        return name in self._init

    def path(self, name: str, path: str) -> Path:
        """Return how this process reaches a file of a host."""
        return Path(f"/proc/{self.init(name)}/root{path}")

    def popen(
        self,
        name: str,
        command: str | Sequence[str],
        *,
        env: Mapping[str, str] | None = None,
        stdin: int | None = subprocess.DEVNULL,
        stdout: int | None = subprocess.PIPE,
        stderr: int | None = subprocess.PIPE,
    ) -> subprocess.Popen[str]:
        """Start a command on a host, in /root, in a session of its own; a string is for `sh -c`."""
        words = ["sh", "-c", command] if isinstance(command, str) else list(command)
        started = subprocess.Popen(
            [*inside(self.init(name), *KINDS), "setsid", *words],
            stdin=stdin,
            stdout=stdout,
            stderr=stderr,
            text=True,
            env={**ENVIRONMENT, **(env or {})},
        )
        self._started.append(started)
        return started

    def end(self, process: subprocess.Popen[str]) -> None:
        """Kill the session that `popen` started, without what left it; `wait` is the caller's."""
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
        with suppress(FileNotFoundError, ProcessLookupError):
            for child in children.read_text().split():
                os.killpg(int(child), signal.SIGKILL)

    def run(
        self,
        name: str,
        command: str | Sequence[str],
        *,
        env: Mapping[str, str] | None = None,
        timeout: float = 60.0,
        check: bool = True,
    ) -> subprocess.CompletedProcess[str]:
        """Run a command on a host to its end; a string is for `sh -c`.

        Raises CalledProcessError with the output, and TimeoutExpired after killing the command.
        """
        process = self.popen(name, command, env=env)
        self._started.remove(process)
        try:
            out, err = process.communicate(timeout=timeout)
        except BaseException:
            # There may be nothing to kill yet.
            while process.poll() is None:
                self.end(process)
                time.sleep(0.02)
            process.communicate()
            raise
        done = subprocess.CompletedProcess(command, process.returncode, out, err)
        if check and done.returncode:
            raise subprocess.CalledProcessError(done.returncode, command, out, err)
        return done

    def shape(self, name: str, rate: str | None = None) -> None:
        """Limit the link of a host, either way; without a rate to what all have, if any."""
        rate = rate or self.rate
        if rate:
            self.switch.shape(self._index[name], self.init(name), rate)
        else:
            self.switch.unshape(self._index[name], self.init(name))


def _close(process: subprocess.Popen[str]) -> None:
    for pipe in (process.stdin, process.stdout, process.stderr):
        if pipe:
            with suppress(OSError):
                pipe.close()
