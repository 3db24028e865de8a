"""Programs of others as checks, on real hosts: fio on a slow disk, iperf3 over a slow link."""

from __future__ import annotations

from collections.abc import Callable

from tests.cluster.hosts import Hosts
from tests.cluster.runs import CONNECT, Lab
from tests.factories import perftest_pairs

DISK = "/tmp/disk"
#: Bytes per second of the slow disk; the others are in memory.
SLOW = 8_000_000
WITHOUT_FIO = "mount --bind /dev/null $(command -v fio)"
STORAGE = f'check: storage, params: {{path: {DISK}, size: "32M", seconds: 1, jobs: 4}}, timeout: 4m'


def with_disks(hosts: Hosts) -> None:
    for name in hosts.names:
        hosts.disk(name, DISK)


def test_fio_names_the_host_with_a_slow_disk_although_another_host_lacks_fio(
    make_lab: Callable[..., Lab],
) -> None:
    lab = make_lab(5, before=with_disks)
    lab.hosts.slow_disk("h3", DISK, SLOW)
    lab.hosts.run("h2", WITHOUT_FIO)
    done = lab.run(checks=[*CONNECT, STORAGE, f"{STORAGE}, groups: alone"])
    assert done.suspects == {("h3", "slow-outlier")}, done.err
    assert "tool-missing" in done.causes()
    (check,) = (each for each in done.result["checks"] if each["check"] == "storage")
    assert "write" in check["measured"]
    assert "random-read" in check["measured"]
    notes = [f["message"] for f in check["findings"] if "of one alone" in f["message"]]
    assert len(notes) == 3, check["findings"]
    lab.evidence_holds(done)
    lab.nothing_is_left()


def test_a_host_without_the_tool_is_not_tested_and_nobody_is_accepted(
    make_lab: Callable[..., Lab],
) -> None:
    lab = make_lab(2, before=with_disks)
    lab.hosts.run("h2", WITHOUT_FIO)
    done = lab.run(checks=[*CONNECT, STORAGE])
    assert done.result["state"] == "not-tested", done.err
    assert not done.result["accepted"]
    assert done.causes() >= {"tool-missing"}
    assert done.suspects == set()
    lab.nothing_is_left()


def test_a_tool_that_a_site_adds_needs_only_its_file(make_lab: Callable[..., Lab]) -> None:
    lab = make_lab(2)
    (lab.folder / "own.yaml").write_text(
        """\
name: own
summary: the speed of a node
source: https://example.org/own
command: [sh, -c, 'echo "Speed: $1 GB/s"; [ "$(hostname)" != h2 ]', sh, "{speed}"]
params:
  speed: {about: what it prints, example: "3"}
seconds: 1
timeout: 60
results:
  speed:
    line: "Speed: {value} {unit}"
    unit: GB/s
    bounds: [{least: 2, source: https://example.org/figures}]
failure: {meaning: it is h2}
"""
    )
    done = lab.run(checks=[*CONNECT, "check: ./own.yaml, params: {speed: 4}"])
    assert done.suspects == {("h2", "tool-failed")}, done.err
    assert "it is h2" in done.out
    done = lab.run("--set", "own.speed=1", checks=[*CONNECT, "check: ./own.yaml"])
    assert {"below-reference", "tool-failed"} <= done.causes(), done.err
    lab.nothing_is_left()


IPERF = """\
name: iperf
summary: TCP between two nodes
source: https://software.es.net/iperf/
install: apt-get install iperf3
version: {command: [iperf3, --version], least: "3.1"}
groups: [pairs]
command: [iperf3, --client, "{peer}", --port, "{port}", --time, "2", --json]
server: [iperf3, --server, --one-off, --port, "{port}"]
seconds: 4
timeout: 60
results:
  rate: {json: /end/sum_received/bits_per_second, scale: 1.0e-9, unit: Gbit/s, noise: 0.05}
"""


def test_iperf3_names_the_node_with_the_slow_link(make_lab: Callable[..., Lab]) -> None:
    lab = make_lab(6)
    (lab.folder / "iperf.yaml").write_text(IPERF)
    lab.hosts.slow("h3")
    done = lab.run(checks=[*CONNECT, "check: ./iperf.yaml, groups: pairs, rounds: 3, timeout: 4m"])
    assert done.suspects == {("h3", "slow-outlier")}, done.err
    lab.evidence_holds(done)
    lab.nothing_is_left()


ALL = """\
name: together
summary: a program that starts on the first node and reaches the others itself
source: https://example.org/together
groups: [all]
command:
  - sh
  - -c
  - >-
    out=$(accept-mpirun -N 2 sh -c 'hostname; test $(hostname) != $0' "$1") || exit;
    set -- $out; echo "ranks : $#"
  - sh
  - "{bad}"
params:
  bad: {about: the node on which a rank fails, default: none}
seconds: 5
timeout: 60
results:
  ranks:
    line: "ranks : {value}"
    unit: drives
    bounds: [{least: 6, most: 6, source: https://example.org/together}]
failure: {meaning: a rank failed}
"""


def test_a_tool_of_all_nodes_reaches_each_and_accuses_none(make_lab: Callable[..., Lab]) -> None:
    lab = make_lab(3)
    (lab.folder / "together.yaml").write_text(ALL)
    done = lab.run(checks=[*CONNECT, "check: ./together.yaml"])
    assert (done.result["state"], done.suspects) == ("pass", set()), done.err
    done = lab.run("--set", "together.bad=h2", checks=[*CONNECT, "check: ./together.yaml"])
    assert (done.result["state"], done.suspects) == ("fail", set()), done.err
    assert "a rank failed" in done.out
    lab.nothing_is_left()


def with_nics(slow: str) -> Callable[[Hosts], None]:
    """Return what gives all hosts two NICs; the second one of a host is slow."""

    def install(hosts: Hosts) -> None:
        for name in hosts.names:
            hosts.run(name, perftest_pairs.commands(2, slow="mlx5_1" if name == slow else ""))

    return install


def test_perftest_names_the_slow_nic_and_leaves_the_other_hosts_alone(
    make_lab: Callable[..., Lab],
) -> None:
    lab = make_lab(6, before=with_nics("h2"))
    lab.machine.write_text(
        f"{lab.machine.read_text()}nics: {{count: 2, gbps: 400, rdma: true, source: https://example.org/nics}}\n"
    )
    done = lab.run(checks=[*CONNECT, "check: rdma, groups: pairs, rounds: 3, timeout: 4m"])
    print(done.out, done.err)
    assert done.suspects == {("h2:mlx5_1", "slow-outlier")}, done.err
    assert done.result["coverage"]["nics"] == 12
    assert not done.result["coverage"].get("nicsUntested")
    lab.evidence_holds(done)
    lab.nothing_is_left()
