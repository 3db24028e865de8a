"""The test hosts themselves: isolation, effects of faults, and cleanup."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.cluster.folders import PREFIX, sweep
from tests.cluster.hosts import Hosts, traces
from tests.cluster.machines import HostGone
from tests.cluster.network import bits, execute, inside
from tests.cluster.runs import until

Make = Callable[..., Hosts]
PYTHON = sys.executable
MPIRUN = Path(sys.prefix) / "bin" / "mpirun"

#: Receives everything from COUNT senders; prints the bytes, and the seconds since the first byte.
RECEIVER = """
import selectors, socket, sys, time
server = socket.create_server(("", 5001))
print("up", flush=True)
open_ = [server.accept()[0] for _ in range(int(sys.argv[1]))]
wait = selectors.DefaultSelector()
for each in open_:
    wait.register(each, selectors.EVENT_READ)
total, start = 0, None
while open_:
    for key, _ in wait.select():
        start = start or time.monotonic()
        data = key.fileobj.recv(1 << 20)
        total += len(data)
        if not data:
            wait.unregister(key.fileobj)
            open_.remove(key.fileobj)
            key.fileobj.close()
print(total, time.monotonic() - start)
"""
SENDER = """
import socket, sys
with socket.create_connection((sys.argv[1], 5001)) as out:
    out.sendall(bytes(int(sys.argv[2])))
"""


def ssh(hosts: Hosts, name: str, command: str = "hostname") -> subprocess.CompletedProcess[str]:
    """Run a command on a host over ssh, as the workstation."""
    options = ["-F", str(hosts.ssh_config), "-o", "ConnectTimeout=8"]
    return subprocess.run(
        ["ssh", *options, name, command], capture_output=True, text=True, check=False
    )


def transfer(hosts: Hosts, receiver: str, *senders: str, size: int) -> float:
    """Return the bit rate at which a host receives `size` bytes from each of the others."""
    server = hosts.popen(receiver, [PYTHON, "-c", RECEIVER, str(len(senders))])
    assert server.stdout
    assert server.stdout.readline() == "up\n"
    started = [
        hosts.popen(sender, [PYTHON, "-c", SENDER, hosts.address(receiver), str(size)])
        for sender in senders
    ]
    out, err = server.communicate(timeout=60)
    assert [each.wait() for each in started] == [0] * len(senders), err
    total, seconds = out.split()
    assert int(total) == size * len(senders)
    return 8 * int(total) / float(seconds)


def dropped(hosts: Hosts, name: str) -> int:
    """Return how many packets the shaper of a host's own end has dropped."""
    text = execute([*inside(hosts.init(name)), "tc", "-s", "qdisc", "show", "dev", "eth0"])
    return int(text.split("(dropped ")[1].split(",")[0])


class TestApart:
    def test_each_host_is_reached_over_ssh_by_its_name(self, make_hosts: Make) -> None:
        hosts = make_hosts(8)
        assert [ssh(hosts, name).stdout.strip() for name in hosts.names] == list(hosts.names)

    def test_a_host_has_files_and_a_home_of_its_own(self, make_hosts: Make) -> None:
        hosts = make_hosts(2)
        places = "/tmp /var/tmp /dev/shm /run /root"
        hosts.run("h1", f"for place in {places}; do echo one > $place/{PREFIX}file; done")
        for place in places.split():
            assert f"{place}/{PREFIX}file" in hosts.tree("h1")
            assert f"{place}/{PREFIX}file" not in hosts.tree("h2")
            assert not Path(place, f"{PREFIX}file").exists()

    def test_a_host_sees_its_own_processes_alone(self, make_hosts: Make) -> None:
        hosts = make_hosts(2)
        hosts.popen("h1", ["sleep", "1234.5"])
        seen = "cat /proc/[0-9]*/cmdline | tr '\\0' ' '"
        pattern = "sleep 1234.5"
        until(lambda: pattern in hosts.run("h1", seen).stdout)
        assert pattern not in hosts.run("h2", seen).stdout
        assert [each.command for each in hosts.processes("h1")].count(pattern) == 1
        assert pattern not in {each.command for each in hosts.processes("h2")}

    def test_a_host_has_this_python_and_this_repository(self, make_hosts: Make) -> None:
        hosts = make_hosts(1)
        code = "import socket, tests.cluster.network; print(socket.gethostname())"
        done = hosts.run("h1", ["env", "-C", str(Path.cwd()), PYTHON, "-c", code])
        assert done.stdout == "h1\n"

    def test_listening_agrees_with_ss(self, make_hosts: Make) -> None:
        hosts = make_hosts(1)
        shown = hosts.run("h1", "ss --no-header --tcp --listening --numeric").stdout
        addresses = sorted(line.split()[3] for line in shown.splitlines())
        assert addresses == list(hosts.listening("h1"))
        assert "0.0.0.0:22" in hosts.listening("h1")

    def test_the_tree_is_the_same_until_a_file_changes(self, make_hosts: Make) -> None:
        hosts = make_hosts(1)
        hosts.run("h1", "echo one > /tmp/file")
        before = hosts.tree("h1")
        assert ssh(hosts, "h1", "touch /tmp/file").returncode == 0
        assert hosts.tree("h1") == before
        hosts.run("h1", "echo two > /tmp/file")
        assert hosts.tree("h1") != before

    def test_hosts_trust_each_other_only_if_requested(self, make_hosts: Make) -> None:
        hosts = make_hosts(2)
        command = "ssh -o BatchMode=yes h2 hostname"
        assert hosts.run("h1", command, check=False).returncode == 255
        hosts.trust()
        assert hosts.run("h1", command).stdout == "h2\n"

    def test_a_domain_makes_full_names(self, make_hosts: Make) -> None:
        hosts = make_hosts(2, domain="rack.test")
        assert hosts.names == ("h1.rack.test", "h2.rack.test")
        assert ssh(hosts, "h2.rack.test").stdout == "h2\n"
        hosts.trust()
        assert hosts.run("h1.rack.test", "ssh h2.rack.test hostname").stdout == "h2\n"

    def test_two_sets_of_hosts_do_not_meet(self, make_hosts: Make) -> None:
        one, two = make_hosts(2), make_hosts(2)
        assert not one.switch.network.overlaps(two.switch.network)
        one.run("h1", "echo one > /tmp/file")
        assert "/tmp/file" not in two.tree("h1")
        one.kill("h1")
        assert ssh(two, "h1").stdout == "h1\n"

    def test_a_command_that_takes_too_long_is_killed(self, make_hosts: Make) -> None:
        hosts = make_hosts(1)
        before = {each.command for each in hosts.processes("h1")}
        with pytest.raises(subprocess.TimeoutExpired):
            hosts.run("h1", "sleep 1000 & sleep 1000; true", timeout=0.5)
        until(lambda: {each.command for each in hosts.processes("h1")} == before)

    def test_many_hosts_hear_each_other(self, make_hosts: Make) -> None:
        hosts = make_hosts(32)
        code = (
            "import socket, sys\n"
            "for name in sys.argv[1:]:\n"
            "    with socket.create_connection((name, 22)) as link:\n"
            "        assert link.recv(4) == b'SSH-'\n"
            "print(len(sys.argv) - 1)"
        )
        for name in ("h1", "h32"):
            assert hosts.run(name, [PYTHON, "-c", code, *hosts.names]).stdout == "32\n"


class TestFaultsOfSsh:
    def test_late_sshd(self, make_hosts: Make) -> None:
        hosts = make_hosts(2, late=["h2"])
        assert "Connection refused" in ssh(hosts, "h2").stderr
        hosts.start_sshd("h2")
        assert ssh(hosts, "h2").stdout == "h2\n"
        hosts.stop_sshd("h2")
        assert "Connection refused" in ssh(hosts, "h2").stderr
        assert ssh(hosts, "h1").stdout == "h1\n"

    def test_refused_key(self, make_hosts: Make) -> None:
        hosts = make_hosts(1)
        hosts.refuse_key("h1")
        assert "Permission denied (publickey)" in ssh(hosts, "h1").stderr
        hosts.accept_key("h1")
        assert ssh(hosts, "h1").stdout == "h1\n"

    def test_wrong_host_key(self, make_hosts: Make) -> None:
        hosts = make_hosts(2)
        hosts.change_host_key("h2")
        assert "Host key verification failed" in ssh(hosts, "h2").stderr
        assert ssh(hosts, "h1").stdout == "h1\n"

    def test_unknown_name(self, make_hosts: Make) -> None:
        hosts = make_hosts(2)
        hosts.unname("h2")
        assert "Could not resolve hostname" in ssh(hosts, "h2").stderr
        assert hosts.run("h1", "getent hosts h2", check=False).returncode == 2


class TestFaultsOfTheNetwork:
    def test_a_slow_link_has_half_the_rate_either_way_and_loses_nothing(
        self, make_hosts: Make
    ) -> None:
        hosts = make_hosts(3, rate="40mbit")
        for receiver, sender in (("h1", "h2"), ("h2", "h1")):
            usual = transfer(hosts, receiver, sender, size=4_000_000)
            assert 0.8 < usual / bits("40mbit") < 1.05
        hosts.slow("h2")
        for receiver, sender in (("h1", "h2"), ("h2", "h1")):
            slow = transfer(hosts, receiver, sender, size=4_000_000)
            assert 0.8 < slow / bits("20mbit") < 1.05
        assert transfer(hosts, "h3", "h1", size=4_000_000) / bits("40mbit") > 0.8
        hosts.shape("h2")
        assert transfer(hosts, "h1", "h2", "h3", size=2_000_000) / bits("40mbit") > 0.8
        assert [dropped(hosts, name) for name in hosts.names] == [0, 0, 0]

    def test_a_cut_host_is_silent_until_it_is_back(self, make_hosts: Make) -> None:
        hosts = make_hosts(2)
        hosts.cut("h2")
        error = ssh(hosts, "h2").stderr
        assert "timed out" in error or "No route to host" in error
        assert ssh(hosts, "h1").stdout == "h1\n"
        hosts.restore("h2")
        until(lambda: ssh(hosts, "h2").stdout == "h2\n")

    def test_an_unplugged_workstation_reaches_nobody_and_the_hosts_each_other(
        self, make_hosts: Make
    ) -> None:
        hosts = make_hosts(2)
        hosts.trust()
        hosts.unplug()
        assert ssh(hosts, "h1").returncode == 255
        assert hosts.run("h1", "ssh h2 hostname").stdout == "h2\n"
        hosts.plug()
        until(lambda: ssh(hosts, "h1").stdout == "h1\n")

    def test_a_firewall_drops_all_packets_of_a_host(self, make_hosts: Make) -> None:
        hosts = make_hosts(1)
        hosts.drop("h1")
        assert "timed out" in ssh(hosts, "h1").stderr
        hosts.undrop("h1")
        assert ssh(hosts, "h1").stdout == "h1\n"

    def test_a_firewall_drops_one_port_alone(self, make_hosts: Make) -> None:
        hosts = make_hosts(2)
        hosts.drop("h2", "5001")
        assert ssh(hosts, "h2").stdout == "h2\n"
        code = "import socket; socket.create_connection(('h2', 5001), timeout=1)"
        refused = hosts.run("h1", [PYTHON, "-c", code.replace("5001", "5002")], check=False)
        assert "ConnectionRefusedError" in refused.stderr
        server = hosts.popen("h2", [PYTHON, "-c", RECEIVER, "1"])
        assert server.stdout
        assert server.stdout.readline() == "up\n"
        done = hosts.run("h1", [PYTHON, "-c", code], check=False)
        assert "TimeoutError" in done.stderr


class TestFaultsOfAHost:
    def test_a_killed_host_does_not_close_its_connections(self, make_hosts: Make) -> None:
        hosts = make_hosts(3)
        hosts.trust()
        session = hosts.popen("h1", "ssh h2 'echo on; exec sleep 1000'")
        assert session.stdout
        assert session.stdout.readline() == "on\n"
        hosts.kill("h2")
        error = ssh(hosts, "h2").stderr
        assert "timed out" in error or "No route to host" in error
        assert session.poll() is None
        with pytest.raises(HostGone):
            hosts.run("h2", "true")
        assert hosts.run("h1", "ssh h3 hostname").stdout == "h3\n"

    def test_a_stopped_host_closes_its_connections(self, make_hosts: Make) -> None:
        hosts = make_hosts(2)
        hosts.trust()
        session = hosts.popen("h1", "ssh h2 'echo on; exec sleep 1000'")
        assert session.stdout
        assert session.stdout.readline() == "on\n"
        hosts.stop("h2")
        assert session.wait(timeout=30) == 255

    def test_a_killed_host_starts_again(self, make_hosts: Make) -> None:
        hosts = make_hosts(2)
        hosts.run("h2", "echo one > /tmp/file")
        hosts.kill("h2")
        hosts.start("h2")
        until(lambda: ssh(hosts, "h2").stdout == "h2\n")
        assert "/tmp/file" not in hosts.tree("h2")

    def test_a_full_disk(self, make_hosts: Make) -> None:
        hosts = make_hosts(2)
        hosts.fill("h2")
        done = hosts.run("h2", "cp /etc/passwd /tmp/file", check=False)
        assert "No space left on device" in done.stderr
        assert hosts.run("h1", "echo one > /tmp/file").returncode == 0
        hosts.empty("h2")
        assert hosts.run("h2", "echo one > /tmp/file && cat /tmp/file").stdout == "one\n"


class TestNothingIsLeft:
    def test_at_the_end_and_after_an_exception(self, make_hosts: Make) -> None:
        make_hosts(1)
        left: list[Path] = []

        def fail_among_hosts() -> None:
            with Hosts(3) as hosts:
                left.extend(traces(hosts))
                hosts.popen("h1", ["sleep", "1000"])
                hosts.kill("h3")
                assert left[0].exists()
                raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            fail_among_hosts()
        assert not any(trace.exists() for trace in left)

    def test_when_a_start_fails(self, make_hosts: Make, monkeypatch: pytest.MonkeyPatch) -> None:
        make_hosts(1)
        monkeypatch.setattr("tests.cluster.folders.SSHD_CONFIG", "Nonsense\n")
        hosts = Hosts(2)
        with pytest.raises(HostGone, match="did not start"):
            hosts.__enter__()
        assert not hosts.state.exists()
        assert not Path("/sys/class/net", hosts.switch.interface).exists()

    def test_after_the_process_was_killed(self, make_hosts: Make) -> None:
        make_hosts(1)
        code = (
            "from tests.cluster.hosts import Hosts, traces\n"
            "hosts = Hosts(2).__enter__()\n"
            "hosts.popen('h1', ['sleep', '1000'])\n"
            "print(*traces(hosts), flush=True)\n"
            "input()"
        )
        with subprocess.Popen(
            [PYTHON, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        ) as owner:
            assert owner.stdout
            state, *others = map(Path, owner.stdout.readline().split())
            owner.kill()
        until(lambda: not any(trace.exists() for trace in others))
        # The files go when hosts are made again.
        sweep()
        assert not state.exists()


@pytest.mark.skipif(not MPIRUN.exists(), reason="no Open MPI in this environment: extra `run`")
def test_mpirun_starts_a_rank_on_each_host(make_hosts: Make) -> None:
    hosts = make_hosts(8)
    hosts.trust()
    names = ",".join(f"{name}:1" for name in hosts.names)
    options = "--allow-run-as-root --map-by ppr:1:node --bind-to none"
    # 5.0 may hang at the exit of very short runs.
    command = f"{MPIRUN} {options} --host {names} sh -c 'hostname; sleep 1'"
    assert sorted(hosts.run("h1", command).stdout.split()) == sorted(hosts.names)
