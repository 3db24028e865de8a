"""The key of a run is admitted from its hosts only, while the run goes on."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from tests.cluster.runs import CONNECT, Done, Lab

Make = Callable[..., Lab]


@contextmanager
def held(lab: Lab, hosts: list[str]) -> Iterator[tuple[str, list[Done]]]:
    """Run on hosts and hold them; yield the folder of the run, and a list for the result."""
    lab.names = tuple(hosts)
    run = lab.start("--hold", "always:10m", checks=CONNECT)
    run.wait_for("held for 10 min")
    (folder,) = lab.hosts.run(hosts[0], "ls -d /tmp/accept-*").stdout.split()
    done: list[Done] = []
    yield folder, done
    lab.hosts.run(hosts[0], f"touch {folder}/release")
    done.append(run.wait())


def test_a_key_that_left_the_hosts_of_the_run_is_refused(make_lab: Make) -> None:
    lab = make_lab(3)
    with held(lab, ["h1", "h2"]) as (folder, done):
        group = lab.hosts.run("h1", f"cat {folder}/group").stdout.splitlines()
        (port,) = (line.split()[3] for line in group if line.startswith("h2 "))
        key = lab.hosts.run("h1", f"cat {folder}/key").stdout
        login = f"ssh -o BatchMode=yes -o StrictHostKeyChecking=no -p {port} -i /tmp/stolen"
        reached = {}
        for name in ("h1", "h3"):
            lab.hosts.run(name, f"umask 077; printf '%s' '{key}' >/tmp/stolen")
            to = f"{login} {lab.hosts.address('h2')} echo reached"
            reached[name] = lab.hosts.run(name, to, check=False).stdout.strip()
            lab.hosts.run(name, "rm -rf /tmp/stolen ~/.ssh/known_hosts")
    assert reached == {"h1": "reached", "h3": ""}
    assert done[0].ending == ("pass", 0), done[0].err
    lab.nothing_is_left()


#: Opens connections and never logs in; prints how many of them sshd greets.
CLIENTS = """
import socket, sys
links = [socket.create_connection((sys.argv[1], int(sys.argv[2])), 30) for _ in range(60)]
print(sum(link.recv(4) == b"SSH-" for link in links))
"""


def test_the_sshd_of_a_run_serves_a_limited_number_of_clients_that_log_in(make_lab: Make) -> None:
    lab = make_lab(2)
    with held(lab, ["h1", "h2"]) as (folder, done):
        group = lab.hosts.run("h1", f"cat {folder}/group").stdout.splitlines()
        (port,) = (line.split()[3] for line in group if line.startswith("h2 "))
        words = [sys.executable, "-c", CLIENTS, lab.hosts.address("h2"), port]
        greeted = int(lab.hosts.run("h1", words).stdout)
    assert greeted == len(lab.names) + 16
    assert done[0].ending == ("pass", 0), done[0].err
    lab.nothing_is_left()


def test_hosts_behind_address_translation_are_not_accused(make_lab: Make) -> None:
    lab = make_lab(3)
    lab.hosts.translate("h3", "h2")
    with held(lab, ["h1", "h2", "h3"]) as (folder, done):
        keys = lab.hosts.run("h3", f"cat {folder}/authorized_keys").stdout
    assert "from=" not in keys
    assert "the run's key is admitted from everywhere" in done[0].err
    assert done[0].ending == ("pass", 0), done[0].err
    lab.nothing_is_left()
