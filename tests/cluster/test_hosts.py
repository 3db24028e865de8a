"""The test hosts themselves: isolation, what tests observe of them, and cleanup.

Tests of runs show that each fault is one: they name its host and its cause.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.cluster.folders import PREFIX, sweep
from tests.cluster.hosts import Hosts, traces
from tests.cluster.runs import until

Make = Callable[..., Hosts]
PYTHON = sys.executable


class TestApart:
    def test_a_host_has_files_and_a_home_of_its_own(self, make_hosts: Make) -> None:
        hosts = make_hosts(2)
        places = "/tmp /var/tmp /dev/shm /run /root"
        hosts.run("h1", f"for place in {places}; do echo one > $place/{PREFIX}file; done")
        for place in places.split():
            assert f"{place}/{PREFIX}file" in hosts.tree("h1")
            assert f"{place}/{PREFIX}file" not in hosts.tree("h2")
            assert not Path(place, f"{PREFIX}file").exists()

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
        hosts.run("h1", "touch /tmp/file")
        assert hosts.tree("h1") == before
        hosts.run("h1", "echo two > /tmp/file")
        assert hosts.tree("h1") != before


@pytest.mark.parametrize("is_killed", [True, False])
def test_a_stopped_host_closes_its_connections_and_a_killed_one_does_not(
    make_hosts: Make, *, is_killed: bool
) -> None:
    hosts = make_hosts(1)
    words = ["ssh", "-F", str(hosts.ssh_config), "h1", "echo on; exec sleep 1000"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as session:
        assert session.stdout
        assert session.stdout.readline() == "on\n"
        if is_killed:
            hosts.kill("h1")
            with pytest.raises(subprocess.TimeoutExpired):
                session.wait(timeout=3)
            session.kill()
        else:
            hosts.stop("h1")
            assert session.wait(timeout=30) == 255


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
