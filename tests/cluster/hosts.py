"""Hosts to test against: N of them on this machine, each with a real sshd.

A host has its own network (one link to a common switch), processes, hostname, /etc/hosts, /etc/ssh,
/tmp, /var/tmp, /dev/shm, /run and /root; all else is this machine's own, read-write. This process
is the workstation: `ssh -F hosts.ssh_config h1` works and touches none of the user's own files.

    with Hosts(8) as hosts:
        hosts.run("h3", "hostname")
        hosts.slow("h3")
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from contextlib import suppress
from pathlib import Path

from tests.cluster import folders, observe
from tests.cluster.machines import SSHD, Machines
from tests.cluster.network import bits, execute, inside, small_segments

TOOLS = ("ip", "tc", "nsenter", "unshare", "ssh", "ssh-keygen", "/usr/sbin/sshd")


def why_not() -> str:
    """Return why this machine cannot create hosts, or "" if it can."""
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


class Hosts(Machines):
    """N hosts, with methods to observe them and to cause faults.

    Faults last until undone or until the host is started again.
    """

    # Looking at a host.

    def processes(self, name: str) -> tuple[observe.Process, ...]:
        """Return the host's processes, by id, without its first."""
        return observe.processes(self.init(name))

    def ranks(self, name: str) -> tuple[observe.Process, ...]:
        """Return the ranks of collectives on the host, which the resident program may have.

        Not the shells that start a rank or that program, and have its name in their command.
        """
        processes = [each for each in self.processes(name) if "rank.sh" not in each.command]
        programs = {each.pid for each in processes if "resident.py" in each.command}
        return tuple(
            each
            for each in processes
            if "collective.py" in each.command or (each.pid in programs and each.parent in programs)
        )

    def listening(self, name: str) -> tuple[str, ...]:
        """Return where the host accepts TCP connections: "0.0.0.0:22"."""
        return observe.listening(self.init(name))

    def tree(self, name: str) -> dict[str, str]:
        """Return the files in the host's private folders: path to kind, size and digest."""
        return observe.tree(self.init(name))

    # Trust and sshd.

    def start_sshd(self, *names: str) -> None:
        """Start the sshd of hosts."""
        for name in names:
            self.run(name, SSHD)

    def stop_sshd(self, *names: str) -> None:
        """Stop the sshd of hosts: new connections are refused, open ones stay."""
        for name in names:
            # It removes the file some time before it is gone.
            self.run(
                name,
                "pid=$(cat /run/sshd.pid); kill $pid && "
                "while [ -e /proc/$pid/exe ] || [ -e /run/sshd.pid ]; do :; done",
            )

    def trust(self) -> None:
        """Let the hosts reach each other over ssh, as root, with one key; they can't otherwise."""
        key = self.state / "workstation" / "common"
        public = key.with_suffix(".pub")
        if not key.exists():
            folders.keygen(key, "common")
        for name in self._init:
            home = self.path(name, "/root/.ssh")
            shutil.copyfile(self.known_hosts, home / "known_hosts")
            with (home / "authorized_keys").open("a") as file:
                file.write(public.read_text())
            shutil.copy(key, home / "id_ed25519")

    def refuse_key(self, name: str) -> None:
        """Make a host refuse the workstation's key and expect another."""
        other = folders.keygen(self.state / name / "other", "another")
        self.path(name, "/root/.ssh/authorized_keys").write_text(other + "\n")

    def change_host_key(self, name: str) -> None:
        """Give a host an unknown host key, like a reinstalled host."""
        self.stop_sshd(name)
        folders.keygen(self.state / name / "ssh" / "ssh_host_ed25519_key", name)
        self.start_sshd(name)

    def unname(self, name: str) -> None:
        """Make the name of a host unknown to the workstation and to all hosts."""
        self._unnamed.add(name)
        self._write_names()

    def name(self, name: str) -> None:
        """Make the name of a host known again."""
        self._unnamed.discard(name)
        self._write_names()

    # Faults of the network; see also `shape`.

    def slow(self, name: str) -> None:
        """Limit a host's link to half the rate of the others."""
        if not self.rate:
            raise ValueError("these links have no rate to halve")
        self.shape(name, f"{bits(self.rate) // 2000}kbit")

    def slow_path(self, one: str, other: str, share: float) -> None:
        """Slow TCP between two hosts to a share of the rate; their other paths stay as they are.

        They send each other small segments, so that headers fill the rest. A queue that chooses
        by destination would be simpler, but many kernels lack the classifiers.
        """
        size = str(small_segments(share))
        for name, peer in ((one, other), (other, one)):
            route = ["ip", "route", "add", f"{self.address(peer)}/32", "dev", "eth0"]
            execute([*inside(self.init(name)), *route, "advmss", size])

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

    def lose(self, name: str, share: float) -> None:
        """Drop a share of the packets from and to a host, at random, like a bad link.

        The receivers drop: a sender that drops its own packets notices it.
        """
        match = f"-m statistic --mode random --probability {share} -j DROP"
        for other in self.names:
            source = "" if other == name else f"-s {self.address(name)}"
            rule = f"-A INPUT -i eth0 {source} {match}"
            execute([*inside(self.init(other)), "iptables", *rule.split()])

    def separate(self, name: str, *others: str) -> None:
        """Let a host and some others no longer reach each other; all else stays as it is."""
        for other in others:
            for here, there in ((name, other), (other, name)):
                route = ["ip", "route", "add", "blackhole", f"{self.address(there)}/32"]
                execute([*inside(self.init(here)), *route])

    def translate(self, name: str, other: str) -> None:
        """Let a host see logins of another one under an address that nobody has.

        Other ports stay as they are, because Open MPI does not work with translated addresses.
        """
        inner = inside(self.init(name))
        rule = f"INPUT -p tcp --dport 20000:32767 -s {self.address(other)}"
        target = "SNAT --to-source 192.0.2.1"
        execute([*inner, "iptables", "-t", "nat", "-A", *rule.split(), "-j", *target.split()])
        # Answers are routed before the address is translated back.
        execute([*inner, "ip", "route", "add", "192.0.2.1/32", "dev", "eth0"])

    # Faults of a host.

    def pause(self, name: str, seconds: float) -> None:
        """Stop all processes of a host for a time, like a machine that lost its clock."""
        pids = observe.global_ids(self.init(name))
        for signal_number in (signal.SIGSTOP, signal.SIGCONT):
            for pid in pids:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal_number)
            if signal_number == signal.SIGSTOP:
                time.sleep(seconds)

    def kill(self, name: str) -> None:
        """End a host like a power failure: it sends nothing any more."""
        self.cut(name)
        self._gone(name)

    def stop(self, name: str) -> None:
        """End all processes of a host while its link is up (connections are closed), and it too."""
        # -1: all that the caller can see, but itself and the first.
        self.run(name, "kill -KILL -1")
        self._gone(name)

    def _gone(self, name: str) -> None:
        self._end(name)
        self.switch.leave(self._index[name])

    def fill(self, name: str, place: str = "/tmp") -> None:
        """Fill one of the host's private folders."""
        # Whoever runs there goes on writing: the new limit must not be below what is used by now.
        self.run(
            name,
            f"used=$(df --output=used -k {place} | tail -1)"
            f" && mount -o remount,size=$((used + 1024))k {place}",
        )
        self.run(name, f"cat /dev/zero > {place}/ballast", check=False)

    def empty(self, name: str, place: str = "/tmp") -> None:
        """Undo `fill`."""
        self.run(name, f"rm -f {place}/ballast && mount -o remount,size={self.size} {place}")

    def disk(self, name: str, place: str, megabytes: int = 96) -> None:
        """Mount a disk of the host's own at `place`: a file system in a file."""
        image = f"/var/tmp/disk-{name}"
        self.run(
            name,
            f"truncate -s {megabytes}M {image} && mkfs.ext4 -q -F {image} && mkdir -p {place}"
            f" && mount -o loop {image} {place} && rm -r {place}/lost+found {image}",
        )

    def slow_disk(self, name: str, place: str, rate: int) -> None:
        """Let a disk write `rate` bytes per second at most, by control groups of version 1 or 2."""
        device = self.run(name, f"mountpoint -d {place}").stdout.strip()
        groups = Path("/sys/fs/cgroup")
        if (old := groups / "blkio/blkio.throttle.write_bps_device").exists():
            old.write_text(f"{device} {rate}")
            return
        own = groups / f"accept-test-{name}-{os.getpid()}"
        (groups / "cgroup.subtree_control").write_text("+io")
        own.mkdir()
        (own / "io.max").write_text(f"{device} wbps={rate}")
        for path in Path("/proc").glob("[0-9]*/root"):
            with suppress(OSError):
                if path.samefile(self.path(name, "/")):
                    (own / "cgroup.procs").write_text(path.parent.name)


def traces(hosts: Hosts) -> list[Path]:
    """Return the paths that hosts have on this machine: state, interface, init processes."""
    inits = [Path(f"/proc/{hosts.init(name)}") for name in hosts.names]
    return [hosts.state, Path("/sys/class/net", hosts.switch.interface), *inits]
