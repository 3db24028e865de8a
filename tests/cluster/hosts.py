"""Hosts to test against: N of them on this machine, each with a real sshd.

A host has its own network (one link to a common switch), processes, hostname, /etc/hosts, /etc/ssh,
/tmp, /var/tmp, /dev/shm, /run and /root; all else is this machine's own, read-write. This process
is the workstation: `ssh -F hosts.ssh_config h1` works and touches none of the user's own files.

    with Hosts(8) as hosts:
        hosts.run("h3", "hostname")
        hosts.slow("h3")

Hosts end with the process that made them, however it ends: each one's first process holds the other
end of a pipe, and with it go all its processes, mounts and links.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType

from tests.cluster import observe
from tests.cluster.network import MOST, Switch, address, bits, execute, host_batch, inside

HERE = Path(__file__).parent
REPOSITORY = HERE.parent.parent
TOOLS = ("ip", "tc", "nsenter", "unshare", "ssh", "ssh-keygen", "/usr/sbin/sshd")
PREFIX = "accept-hosts-"
#: Places that hide what this machine has there.
HIDDEN = tuple(map(Path, ("/tmp", "/var/tmp", "/run", "/root", "/dev/shm", "/var/log")))
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
SSHD_CONFIG = """\
HostKey /etc/ssh/ssh_host_ed25519_key
KbdInteractiveAuthentication no
PasswordAuthentication no
PidFile /run/sshd.pid
PrintLastLog no
PrintMotd no
Subsystem sftp internal-sftp
UsePAM no
"""
SSH_CONFIG = """\
Host {name}
  HostName {address}
  HostKeyAlias {name}
  User root
  IdentityFile {state}/workstation/id_ed25519
  IdentitiesOnly yes
  IdentityAgent none
  UserKnownHostsFile {state}/workstation/known_hosts
  GlobalKnownHostsFile /dev/null
  StrictHostKeyChecking yes
"""


class HostGone(Exception):
    """The host was killed or stopped, and nothing can be done on it."""


def why_not() -> str:
    """Return why hosts cannot be made here, or nothing where they can."""
    if os.geteuid() != 0:
        return "hosts need root (network namespaces, mounts)"
    missing = [tool for tool in TOOLS if not shutil.which(tool)]
    if missing:
        return f"hosts need {', '.join(missing)}: see tests/debian-packages.txt"
    script = "ip link set lo up && tc qdisc add dev lo root tbf rate 1mbit burst 32kb limit 1mb"
    command = [
        "unshare",
        "--mount",
        "--net",
        "--uts",
        "--ipc",
        "--pid",
        "--fork",
        "sh",
        "-c",
        script,
    ]
    tried = subprocess.run(command, capture_output=True, text=True, check=False)
    if tried.returncode:
        return f"hosts need namespaces and a traffic shaper: {tried.stderr.strip()}"
    return ""


def environment_of(python: Path) -> list[Path]:
    """Return the folders an interpreter needs: its own, and each one its links lead through."""
    needed = []
    for _ in range(10):
        needed.append(python.parent.parent)
        if not python.is_symlink():
            break
        python = python.parent / python.readlink()
    return needed


def _shares(folders: Iterable[Path]) -> list[str]:
    """Return SOURCE TARGET... of what is to be seen in spite of the hidden places, widest first."""
    hidden = {
        folder
        for folder in folders
        if any(place in folder.parents for place in HIDDEN) and folder.is_dir()
    }
    widest = [folder for folder in hidden if not hidden.intersection(folder.parents)]
    return [part for folder in sorted(widest) for part in (str(folder.resolve()), str(folder))]


@contextmanager
def _alone() -> Iterator[Path]:
    """Hold the lock on making and sweeping state folders; yield where they are made."""
    base = Path(tempfile.gettempdir())
    handle = os.open(base, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield base
    finally:
        os.close(handle)


def sweep() -> None:
    """Remove the state folders whose owner is dead; everything else of it went when it died."""
    with _alone() as base:
        for owner in base.glob(f"{PREFIX}*/owner"):
            with owner.open() as handle, suppress(BlockingIOError):
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(owner.parent, ignore_errors=True)


def _keygen(path: Path, comment: str) -> str:
    """Make a key pair and return the public half, without the comment."""
    for old in (path, path.with_suffix(".pub")):
        old.unlink(missing_ok=True)
    execute(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", comment, "-f", str(path)])
    return " ".join(path.with_suffix(".pub").read_text().split()[:2])


def _aliases(name: str) -> tuple[str, ...]:
    """Return a host's name, and its hostname where that differs."""
    short = name.partition(".")[0]
    return (name,) if short == name else (name, short)


class Hosts:
    """N hosts, up from the start of the `with` block to its end.

    `rate` shapes every host's link (None: not at all). `late` names hosts whose sshd isn't started.
    `share` names folders (virtual environments, say) to be seen on the hosts although they lie
    under /tmp, /root or another hidden place; this repository and this Python always are. `size` is
    that of each private place. With `domain` the names are h1.DOMAIN and the hostnames h1.
    """

    def __init__(
        self,
        count: int,
        *,
        rate: str | None = "100mbit",
        late: Collection[str] = (),
        share: Iterable[Path] = (),
        size: str = "1g",
        domain: str = "",
    ) -> None:
        if not 1 <= count <= MOST:
            raise ValueError(f"{count} hosts: 1 to {MOST} can be made")
        tail = f".{domain}" if domain else ""
        self.names = tuple(f"h{number}{tail}" for number in range(1, count + 1))
        self.rate = rate
        self._late = frozenset(late)
        self._size = size
        used = [REPOSITORY, *environment_of(Path(sys.executable))]
        for folder in share:
            used += [folder, *environment_of(folder / "bin" / "python")]
        self._shared = _shares(used)
        self._index = {name: index for index, name in enumerate(self.names)}
        self._holders: dict[str, subprocess.Popen[str]] = {}
        self._init: dict[str, int] = {}
        self._timers: list[threading.Timer] = []
        self._started: list[subprocess.Popen[str]] = []
        self._unnamed: set[str] = set()
        self._switch: Switch | None = None
        self._owner: int | None = None

    # The beginning and the end.

    def __enter__(self) -> Hosts:
        sweep()
        with _alone() as base:
            self.state = Path(tempfile.mkdtemp(prefix=PREFIX, dir=base))
            self._owner = os.open(self.state / "owner", os.O_CREAT | os.O_RDONLY, 0o600)
            fcntl.flock(self._owner, fcntl.LOCK_EX)
        try:
            self._switch = Switch()
            (self.state / "root").mkdir()
            (self.state / "workstation").mkdir()
            self._own_key = _keygen(self.state / "workstation" / "id_ed25519", "workstation")
            self._each(self._prepare, self.names)
            self.known_hosts.write_text("".join(map(self._known_line, self.names)))
            self._write_names()
            self.start(*self.names)
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """End all hosts and remove what was made for them. May be called twice."""
        for timer in self._timers:
            timer.cancel()
        for timer in self._timers:
            timer.join()
        if self._switch:
            self._switch.close()
        for name in list(self._holders):
            self._end(name)
        for process in self._started:
            process.wait()
            for pipe in (process.stdin, process.stdout, process.stderr):
                if pipe:
                    with suppress(OSError):
                        pipe.close()
        if self._owner is not None:
            shutil.rmtree(self.state)
            os.close(self._owner)
            self._owner = None

    def _each(self, work: Callable[[str], object], names: Iterable[str]) -> None:
        with ThreadPoolExecutor(8) as pool:
            list(pool.map(work, names))

    def _prepare(self, name: str) -> None:
        """Make the files of one host."""
        folder = self.state / name
        (folder / "ssh").mkdir(parents=True)
        (folder / "ssh" / "sshd_config").write_text(SSHD_CONFIG)
        (folder / "ssh" / "ssh_config").touch()
        _keygen(folder / "ssh" / "ssh_host_ed25519_key", name)
        (folder / "authorized_keys").write_text(self._own_key + "\n")
        (folder / "hostname").write_text(name.partition(".")[0] + "\n")
        (folder / "shadow").write_text("root:*:19000::::::\n")
        (folder / "hosts").touch()
        (folder / "resolv.conf").touch()
        index = self._index[name]
        (folder / "network").write_text(host_batch(self.switch.network, index, len(self.names)))

    @property
    def switch(self) -> Switch:
        """The network's middle, once there is one."""
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
        command = ["bash", str(HERE / "init.sh"), str(self.state), name, self._size, *self._shared]
        with (self.state / name / "init.log").open("a") as log:
            holder = subprocess.Popen(
                ["unshare", *spaces, *command],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                env=ENVIRONMENT,
                start_new_session=True,
            )
        self._holders[name] = holder
        self._init[name] = int(self._answer(name))

    def _go(self, name: str) -> None:
        """Let a host whose link is laid start its network and its sshd."""
        pipe = self._holders[name].stdin
        assert pipe
        pipe.write("go\n" if name in self._late else "go sshd\n")
        pipe.flush()
        self._answer(name)

    def _answer(self, name: str) -> str:
        pipe = self._holders[name].stdout
        assert pipe
        line = pipe.readline()
        if not line:
            said = (self.state / name / "init.log").read_text()
            raise HostGone(f"{name} did not start: {said.strip()}")
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
        for pipe in (holder.stdin, holder.stdout):
            if pipe:
                with suppress(OSError):
                    pipe.close()

    # What a workstation needs to know.

    @property
    def ssh_config(self) -> Path:
        """Configuration for `ssh -F`, with a pinned key for each host."""
        return self.state / "workstation" / "ssh_config"

    @property
    def known_hosts(self) -> Path:
        """The host keys, as the workstation knows them."""
        return self.state / "workstation" / "known_hosts"

    def address(self, name: str) -> str:
        """Return the address of a host."""
        return str(address(self.switch.network, self._index[name]))

    def _known_line(self, name: str) -> str:
        key = (self.state / name / "ssh" / "ssh_host_ed25519_key.pub").read_text().split()
        return f"{name},{self.address(name)} {key[0]} {key[1]}\n"

    def _write_names(self) -> None:
        """Write who is called what, for the workstation and on every host."""
        named = [name for name in self.names if name not in self._unnamed]
        lines = [" ".join((self.address(name), *_aliases(name))) for name in named]
        text = "\n".join(["127.0.0.1 localhost", *lines]) + "\n"
        for name in self.names:
            # In place: the file is bound into the host.
            (self.state / name / "hosts").write_text(text)
        self.ssh_config.write_text(
            "".join(
                SSH_CONFIG.format(
                    name=name,
                    # RFC 6761: this never resolves.
                    address=self.address(name) if name in named else f"{name}.invalid",
                    state=self.state,
                )
                for name in self.names
            )
        )

    # Doing things on a host, without ssh.

    def init(self, name: str) -> int:
        """Return the machine's id of the host's first process."""
        if name not in self._init:
            raise HostGone(f"{name} is gone")
        return self._init[name]

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
        """Kill what `popen` started, with the whole session where the command leads one."""
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

        Raises CalledProcessError, with what it said, and TimeoutExpired, after killing it.
        """
        process = self.popen(name, command, env=env)
        self._started.remove(process)
        try:
            out, err = process.communicate(timeout=timeout)
        except BaseException:
            self.end(process)
            process.communicate()
            raise
        done = subprocess.CompletedProcess(command, process.returncode, out, err)
        if check and done.returncode:
            raise subprocess.CalledProcessError(done.returncode, command, out, err)
        return done

    # Looking at a host.

    def processes(self, name: str) -> tuple[observe.Process, ...]:
        """Return the host's processes, by id, without its first."""
        return observe.processes(self.init(name))

    def listening(self, name: str) -> tuple[str, ...]:
        """Return where the host accepts TCP connections: "0.0.0.0:22"."""
        return observe.listening(self.init(name))

    def tree(self, name: str) -> dict[str, str]:
        """Return what is in the host's private places: path to kind, size and digest."""
        return observe.tree(self.init(name))

    # Trust and sshd.

    def start_sshd(self, *names: str, after: float = 0.0) -> None:
        """Start the sshd of hosts, now or in `after` seconds."""
        if after:
            timer = threading.Timer(after, self.start_sshd, names)
            self._timers.append(timer)
            timer.start()
            return
        for name in names:
            self.run(name, ["/usr/sbin/sshd", "-E", "/etc/ssh/sshd.log"])

    def stop_sshd(self, *names: str) -> None:
        """Stop the sshd of hosts: new connections are refused, open ones stay."""
        for name in names:
            self.run(name, 'kill "$(cat /run/sshd.pid)" && while [ -e /run/sshd.pid ]; do :; done')

    def trust(self) -> None:
        """Let the hosts reach each other over ssh, as root, with one key; they can't otherwise."""
        key = self.state / "workstation" / "common"
        public = key.with_suffix(".pub")
        if not key.exists():
            _keygen(key, "common")
        for name in self._init:
            home = self.path(name, "/root/.ssh")
            shutil.copyfile(self.known_hosts, home / "known_hosts")
            with (home / "authorized_keys").open("a") as file:
                file.write(public.read_text())
            shutil.copy(key, home / "id_ed25519")

    def refuse_key(self, name: str) -> None:
        """Make a host refuse the workstation's key: it expects another."""
        other = _keygen(self.state / name / "other", "another")
        self.path(name, "/root/.ssh/authorized_keys").write_text(other + "\n")

    def accept_key(self, name: str) -> None:
        """Make a host accept the workstation's key again, and no other."""
        self.path(name, "/root/.ssh/authorized_keys").write_text(self._own_key + "\n")

    def change_host_key(self, name: str) -> None:
        """Give a host a key that nobody knows, as a reinstalled one has."""
        self.stop_sshd(name)
        _keygen(self.state / name / "ssh" / "ssh_host_ed25519_key", name)
        self.start_sshd(name)

    def unname(self, name: str) -> None:
        """Make the name of a host unknown to the workstation and to all hosts."""
        self._unnamed.add(name)
        self._write_names()

    # Faults of the network.

    def shape(self, name: str, rate: str | None = None) -> None:
        """Limit the link of a host, either way; without a rate to what all have, if any."""
        rate = rate or self.rate
        if rate:
            self.switch.shape(self._index[name], self.init(name), rate)
        else:
            self.switch.unshape(self._index[name], self.init(name))

    def slow(self, name: str) -> None:
        """Give a host's link half the rate of the others."""
        if not self.rate:
            raise ValueError("these links have no rate to halve")
        self.shape(name, f"{bits(self.rate) // 2000}kbit")

    def cut(self, name: str) -> None:
        """Pull the cable of a host."""
        self.switch.link(self._index[name], up=False)

    def restore(self, name: str) -> None:
        """Plug the cable of a host in again."""
        self.switch.link(self._index[name], up=True)

    def unplug(self) -> None:
        """Pull the cable of the workstation."""
        self.switch.uplink(up=False)

    def plug(self) -> None:
        """Plug the cable of the workstation in again."""
        self.switch.uplink(up=True)

    def drop(self, name: str, ports: str = "") -> None:
        """Let nothing out of a host, as a firewall does that drops: who connects gets no answer.

        With `ports` ("22", "1024-65534") only what comes from these TCP ports of the host.
        """
        self._rule("add", name, ports)

    def undrop(self, name: str, ports: str = "") -> None:
        """Undo `drop` with the same ports."""
        self._rule("delete", name, ports)

    def _rule(self, verb: str, name: str, ports: str) -> None:
        scope = ["ipproto", "tcp", "sport", ports] if ports else ["to", str(self.switch.network)]
        # Ahead of the table of local addresses (0), the machine's own included, there is no place;
        # that table is left alone, so the host still reaches itself.
        command = ["ip", "rule", verb, *scope, "priority", "10", "blackhole"]
        execute([*inside(self.init(name)), *command])

    # Faults of a host.

    def kill(self, name: str) -> None:
        """Let a host die as of a power failure: nobody hears anything from it again."""
        self.cut(name)
        self._gone(name)

    def stop(self, name: str) -> None:
        """End all processes of a host while its link is up (connections are closed), and it too."""
        for process in self.processes(name):
            with suppress(subprocess.CalledProcessError):
                self.run(name, ["kill", "-KILL", str(process.pid)])
        self._gone(name)

    def _gone(self, name: str) -> None:
        self._end(name)
        self.switch.leave(self._index[name])

    def fill(self, name: str, place: str = "/tmp") -> None:
        """Leave no room in one of the host's private places."""
        used = self.run(name, f"df --output=used -k {place} | tail -1").stdout.strip()
        # Zero would mean no limit.
        self.run(name, f"mount -o remount,size={max(4, int(used))}k {place}")
        self.run(name, f"cat /dev/zero > {place}/ballast", check=False)

    def empty(self, name: str, place: str = "/tmp") -> None:
        """Undo `fill`."""
        self.run(name, f"rm -f {place}/ballast && mount -o remount,size={self._size} {place}")
