"""Programs of others as checks, on real hosts: fio on a slow disk, and one that a host lacks."""

from __future__ import annotations

from collections.abc import Callable

from tests.cluster.hosts import Hosts
from tests.cluster.runs import CONNECT, Lab

DISK = "/tmp/disk"
#: Bytes per second of the slow disk; the others are in memory.
SLOW = 8_000_000
STORAGE = f'check: storage, params: {{path: {DISK}, size: "32M", seconds: 1, jobs: 4}}, timeout: 4m'


def with_disks(hosts: Hosts) -> None:
    for name in hosts.names:
        hosts.disk(name, DISK)


def test_fio_names_the_host_with_a_slow_disk_and_leaves_no_file(
    make_lab: Callable[..., Lab],
) -> None:
    lab = make_lab(4, before=with_disks)
    lab.hosts.slow_disk("h3", DISK, SLOW)
    done = lab.run(checks=[*CONNECT, STORAGE])
    assert done.suspects == {("h3", "slow-outlier")}, done.err
    (check,) = (each for each in done.result["checks"] if each["check"] == "storage")
    assert "write" in check["measured"]
    assert "random-read" in check["measured"]
    lab.evidence_holds(done)
    lab.nothing_is_left()


def test_a_host_without_the_tool_is_not_tested_and_nobody_is_accepted(
    make_lab: Callable[..., Lab],
) -> None:
    lab = make_lab(2, before=with_disks)
    lab.hosts.run("h2", "mount --bind /dev/null $(command -v fio)")
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
