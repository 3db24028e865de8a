"""`accept judge` on files about the state of hosts: public samples, with what it must say."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from benchmarks.nccl_text import table_text
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.factories.paths import ROOT

from accept.commands.explain import explain
from accept.commands.judge import with_measurements
from accept.commands.judged import GivenBounds, Judged, judge_paths
from accept.core.errors import BadEvidence
from accept.core.serde import dump
from accept.core.verdict import State
from accept.foreign_logs import (
    bug_report,
    dcgm,
    kernel_log,
    nvidia_smi,
    perftest,
    state_text,
    tool_files,
)
from accept.foreign_logs.host_state import is_label, words_of
from accept.foreign_logs.kernel_log import is_kernel_log

SAMPLES = ROOT / "tests/data/foreign"


def samples() -> Iterator[Any]:
    for expected in sorted(SAMPLES.glob("*/expected.json")):
        for name, result in json.loads(expected.read_text()).items():
            yield pytest.param(expected.parent / name, result, id=f"{expected.parent.name}/{name}")


def judged(*paths: Path | str, expect: Sequence[str] = (), machine: str | None = None) -> Judged:
    (one,) = judge_paths([str(path) for path in paths], GivenBounds(machine, tuple(expect)))
    return one


def accused(one: Judged) -> list[tuple[str, str | None, str]]:
    return sorted(((s.hosts[0], s.device, str(s.cause)) for s in one.verdict.suspects), key=repr)


def texts(one: Judged) -> str:
    findings = (f.message for check in one.verdict.checks for f in check.findings)
    return "\n".join([*one.notes, *(s.why for s in one.verdict.suspects), *findings])


@pytest.mark.parametrize(("path", "expected"), [*samples()])
def test_a_public_sample_gets_the_expected_verdict(path: Path, expected: dict[str, Any]) -> None:
    one = judged(path, expect=expected.get("expect", ()), machine=expected.get("machine"))
    assert one.verdict.state == State(expected["state"]), texts(one)
    assert accused(one) == sorted((tuple(row) for row in expected["accused"]), key=repr)
    assert [part for part in expected["shows"] if part not in texts(one)] == []
    assert set(expected.get("hosts", ())) <= {*one.verdict.hosts}
    values = {m.metric: m.value for m in with_measurements(one).metrics}
    for metric, value in expected.get("metrics", {}).items():
        assert values[metric] == pytest.approx(value, rel=1e-6)


def in_lines(text: str, mark: str) -> str:
    return "".join(f"{mark}{line}" for line in text.splitlines(keepends=True))


#: What programs that run a command on several hosts make of its output.
COLLECTED = {
    "pdsh": lambda text: in_lines(text, "n1: ") + "n2: bash: nvidia-smi: command not found\n",
    "srun": lambda text: in_lines(text, "0: ") + "srun: error: n2: task 1: Exited with code 127\n",
    "clush": lambda text: f"{'-' * 15}\nn1\n{'-' * 15}\n{text}",
    "dshbak": lambda text: f"{'-' * 16}\nn[1-2] (2)\n{'-' * 16}\n{text}",
    "ansible": lambda text: (
        f"n1 | CHANGED | rc=0 >>\n{text}n2 | FAILED | rc=127 >>\nno such file\n"
    ),
}


@pytest.mark.sampled
@pytest.mark.parametrize("form", COLLECTED)
@pytest.mark.parametrize(
    ("path", "expected"), [one for one in samples() if one.values[0].suffix in (".txt", ".xml")]
)
def test_an_output_that_was_collected_from_hosts_accuses_the_same(
    path: Path, expected: dict[str, Any], form: str, tmp_path: Path
) -> None:
    expect, machine = expected.get("expect", ()), expected.get("machine")
    alone = judged(path, expect=expect, machine=machine)
    file = tmp_path / path.name
    file.write_text(COLLECTED[form](path.read_text()))
    together = judged(file, expect=expect, machine=machine)
    known = {host: "n1" for host in alone.verdict.hosts if is_label(host)}
    known |= {f"file:{file.name}:0": "n1"}
    bad, other = (
        {(known.get(host, host), device, cause) for host, device, cause in accused(one)}
        for one in (together, alone)
    )
    if form == "dshbak" and path.parent.name == "tools":
        # A tool that fails on all hosts may have been called in a wrong way.
        assert together.verdict.state is not State.PASS or not other
        return
    if form == "dshbak":
        other |= {("n2", device, cause) for host, device, cause in other if host == "n1"}
    assert bad == other, texts(together)
    if form in ("pdsh", "ansible"):
        assert "n2" in together.verdict.hosts
        assert together.verdict.state is not State.PASS


@pytest.mark.parametrize(
    ("stamp", "state"),
    [("Mon Jan  5 00:00:00 2026", State.FAIL), ("Mon Jan 5 00:00:00 2026", State.FAIL),
     ("5/1/26 0:00", State.INCONCLUSIVE)],
)  # fmt: skip
def test_an_xid_with_any_time_beside_good_logs_prevents_a_pass(
    stamp: str, state: State, tmp_path: Path
) -> None:
    (tmp_path / "good.log").write_text(table_text())
    (tmp_path / "dmesg.txt").write_text(
        f"[{stamp}] NVRM: Xid (PCI:0000:18:00): 79, GPU has fallen off the bus.\n"
    )
    assert judged(tmp_path).verdict.state is state


def test_a_problem_in_the_raw_logs_of_a_run_is_that_of_the_run(tmp_path: Path) -> None:
    (tmp_path / "good.log").write_text(table_text())
    host = judged(tmp_path).verdict.hosts[0]
    problem = {"problem": "wrong-data", "message": "1 word differs", "check": "memory"}
    (tmp_path / "60.log").write_text(f"ACCEPT {json.dumps(problem | {'host': host})}")
    assert accused(judged(tmp_path)) == [(host, None, "wrong-data")]
    (tmp_path / "60.log").write_text(f"ACCEPT {json.dumps(problem)}\n")
    assert judged(tmp_path).verdict.state is State.INCONCLUSIVE


@pytest.mark.parametrize("is_xid", [True, False])
def test_an_error_below_a_complete_table_is_shown_and_one_of_the_kernel_prevents_a_pass(
    tmp_path: Path, *, is_xid: bool
) -> None:
    xid = "NVRM: Xid (PCI:0000:18:00): 79, GPU has fallen off the bus."
    line = xid if is_xid else "n1:7:9 [3] NCCL WARN Cuda failure 'unspecified launch failure'"
    log = tmp_path / "good.log"
    log.write_text(table_text())
    alone = judged(log, expect=["all-reduce@8M>=1"]).verdict.state
    log.write_text(f"{table_text()}{line}\n")
    one = judged(log, expect=["all-reduce@8M>=1"])
    assert line in texts(one)
    assert (alone, one.verdict.state) == (
        State.PASS, State.INCONCLUSIVE if is_xid else State.PASS,
    )  # fmt: skip


#: Outputs of one node, with their commands.
OUTPUTS = {
    "nvidia-smi": "nvidia-smi/summary.txt",
    "nvidia-smi -q": "nvidia-smi/a10.txt",
    "nvidia-smi -q -x": "nvidia-smi/a100-mig.xml",
    "nvidia-smi nvlink -s": "nvidia-smi/nvlink.txt",
    "dmesg -T": "kernel-log/xid119-ctime.txt",
}


@pytest.mark.parametrize("query", ["nvidia-smi -q", "nvidia-smi -q -x"])
@pytest.mark.parametrize("is_reversed", [False, True])
@pytest.mark.parametrize("prompt", ["", "user@gpu1:~$ "])
def test_each_output_in_one_file_counts(
    tmp_path: Path, query: str, prompt: str, *, is_reversed: bool
) -> None:
    names = ["nvidia-smi", query, "nvidia-smi nvlink -s", "dmesg -T"]
    parts = [
        (f"{prompt}{name}\n" if prompt else "") + (SAMPLES / OUTPUTS[name]).read_text() + "\n"
        for name in (reversed(names) if is_reversed else names)
    ]
    file = tmp_path / "node.txt"
    # One kind of GPU. A terminal shows tabs as spaces.
    of_h100 = re.sub(r"NVIDIA A10[\w-]*", "NVIDIA H100 80GB HBM3", "".join(parts))
    file.write_text(of_h100.replace("\t Link", "         Link"))
    one = judged(file)
    mode = [("file:node.txt", "0", "gpu-mode")] if query.endswith("-x") else []
    bad = [("file:node.txt", "0000:9b:00", "gpu-xid"), ("file:node.txt", "1", "nvlink-down")]
    assert accused(one) == [*mode, *bad]
    assert "add the" not in texts(one)
    # Jobs print the state of their nodes before they start.
    file.write_text("".join([*parts, table_text()]))
    assert judged(file).plan.steps[0].checks == ("all-reduce",)


def test_outputs_of_other_gpus_in_one_file_are_of_another_node(tmp_path: Path) -> None:
    bad, good = (
        (SAMPLES / "nvidia-smi" / name).read_text() for name in ("a100-pending.txt", "a10.txt")
    )
    file = tmp_path / "all.txt"
    for texts_of_nodes in ((bad, good), (good, bad)):
        first, second = texts_of_nodes
        file.write_text(first + re.sub(r"GPU-0{8}", "GPU-11111111", second))
        one = judged(file)
        assert {host for host, *_ in accused(one)} == {one.verdict.hosts[texts_of_nodes.index(bad)]}
        assert one.verdict.hosts == ("file:all.txt", "file:all.txt:2")


#: Samples of healthy tools, and what their figures must reach.
GOOD_TOOLS = {
    "tools/cpu40-hpl.out": "hpl.rate>=0.001",
    "tools/cpu42-stream.txt": "stream.triad>=10",
    "tools/gpu40-fio.json": "storage.write>=0.05",
    "tools/gpu43-gpu-burn.txt": "gpu-burn.rate>=1",
    "tools/gpu46-nvbandwidth.json": "nvbandwidth.host-to-device>=5",
    "tools/mi41-rocm-bandwidth-test.txt": "rocm-bandwidth-test.bandwidth>=5",
    "perftest/gpu30-ib-write-bw-gbits.json": "script.ib-write-bw@8M>=45",
    "perftest/gpu32-ib-write-bw.txt": "script.ib-write-bw@64K>=5",
}


@pytest.mark.parametrize("name", GOOD_TOOLS)
def test_a_cut_output_of_a_tool_neither_passes_nor_accuses(name: str, tmp_path: Path) -> None:
    content = (SAMPLES / name).read_bytes().rstrip(b"-=}\n ")
    content = content.removesuffix(b"End of Tests.")
    cut = tmp_path / "cut.log"
    judge_cut = partial(judged, cut, expect=(GOOD_TOOLS[name],), machine="cpu")
    for size in sorted({len(content) * i // 12 for i in range(4, 12)} | {len(content) - 1}):
        cut.write_bytes(content[:size])
        try:
            one = judge_cut()
        except BadEvidence:
            continue
        assert (one.verdict.accepted, accused(one)) == (False, []), size
    cut.write_bytes((SAMPLES / name).read_bytes())
    assert judge_cut().verdict.accepted


def test_a_cut_output_of_gpu_burn_shows_the_errors_of_a_gpu_and_which_lack_a_state(
    tmp_path: Path,
) -> None:
    names = "".join(f"GPU {i}: NVIDIA H100 80GB HBM3 (UUID: GPU-{i})\n" for i in range(3))
    figures = " - ".join(["560 (48210 Gflop/s)"] * 3)
    rest = f"100.0%  proc'd: {figures}   errors: 0 - 17  (WARNING!)- 0   temps: 55 C\n\tGPU 0: OK\n"
    cut = tmp_path / "burn.txt"
    cut.write_text(names + rest)
    one = judged(cut, expect=("gpu-burn.rate>=40",))
    assert accused(one) == [("file:burn.txt", "1", "wrong-result")]
    cut.write_text(names + rest.replace("17  (WARNING!)", "0 "))
    one = judged(cut, expect=("gpu-burn.rate>=40",))
    assert (one.verdict.state, accused(one)) == (State.INCONCLUSIVE, [])


@pytest.mark.parametrize(("version", "accepted"), [("0.2", True), ("0.8", False)])
def test_nvbandwidth_is_cut_without_the_note_of_its_version(
    version: str, tmp_path: Path, *, accepted: bool
) -> None:
    # output.cpp of NVIDIA/nvbandwidth v0.6: printInfo.
    path = tmp_path / "n.txt"
    text = f"nvbandwidth Version: v{version}\n\nRunning host_to_device_memcpy_ce.\n"
    text += (
        "           0         1\n 0     55.30     55.32\n\nSUM host_to_device_memcpy_ce 110.62\n"
    )
    path.write_text(text)
    expect = ("nvbandwidth.host-to-device>=50",)
    assert judged(path, expect=expect).verdict.accepted is accepted
    path.write_text(f"{text}\nNOTE: The reported results may not reflect the platform.\n")
    assert judged(path, expect=expect).verdict.accepted


def test_an_error_of_fio_is_not_accepted(tmp_path: Path) -> None:
    # EILSEQ: other data than was written.
    text = (SAMPLES / "tools/gpu40-fio.json").read_text()
    bad = tmp_path / "fio.json"
    bad.write_text(text.replace('"error": 0', '"error": 84', 1))
    one = judged(bad, expect=("storage.write>=0.05",), machine="cpu")
    assert (one.verdict.state, "error is 84" in texts(one)) == (State.FAIL, True)


@pytest.mark.parametrize(("path", "expected"), [*samples()])
def test_a_sample_is_recognized_by_content_and_not_by_name(
    path: Path, expected: dict[str, Any], tmp_path: Path
) -> None:
    other = tmp_path / "host77" / "x.log"
    other.parent.mkdir()
    if path.is_dir():
        for number, file in enumerate(sorted(path.iterdir())):
            shutil.copy(file, other.with_name(f"{number}.log"))
    else:
        shutil.copy(path, other)
    one = judged(other.parent, expect=expected.get("expect", ()), machine=expected.get("machine"))
    assert one.verdict.state == State(expected["state"])
    assert len(one.verdict.suspects) == len(expected["accused"])


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("gpu017/dmesg.txt", "gpu017"),
        ("logs/gpu017/var/log/kern.log.1", "gpu017"),
        ("nvidia-smi-q-gpu017.xml", "gpu017"),
        ("gpu017-dmesg.log.gz", "gpu017"),
        ("13-xid-45-previous/dev/kmsg", "13-xid-45-previous"),
        ("dmesg.txt", ""),
        ("logs/dmesg.txt", ""),
    ],
)
def test_files_of_one_host_have_the_same_words_in_their_paths(path: str, words: str) -> None:
    assert words_of(Path(path).parts) == words


def dmesg(path: Path) -> Path:
    return kern_log(path, "[ 86404.100000] " + XID.partition("] ")[2])


@pytest.mark.parametrize(
    ("names", "hosts"),
    [
        (["82-dcgm-skip.txt"], {"file:82-dcgm-skip.txt"}),
        (["fn/dmesg.txt"], {"files:fn"}),
        (["fn/dmesg.txt", "fn/job 4711 dmesg (1).txt"], {"files:fn"}),
        (["gpu1/dmesg.txt", "gpu2/dmesg.txt"], {"files:gpu1", "files:gpu2"}),
        (["dmesg-gpu1.txt", "dmesg-gpu2.txt"], {"file:dmesg-gpu1.txt", "file:dmesg-gpu2.txt"}),
    ],
)
def test_a_file_that_names_no_host_accuses_a_file(
    tmp_path: Path, names: list[str], hosts: set[str]
) -> None:
    for name in names:
        dmesg(tmp_path / name)
    assert {host for host, *_ in accused(judged(tmp_path))} == hosts
    assert all(map(is_label, hosts))
    # With another file that shows such a host, it is a host.
    kern_log(tmp_path / "messages", XID)
    others = {host for host in hosts if "gpu1" not in host}
    assert {host for host, *_ in accused(judged(tmp_path))} == {"gpu1", *others}


@pytest.mark.parametrize("folder", ["gpu17", "logs"])
def test_files_of_one_folder_are_of_one_host_however_they_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, folder: str
) -> None:
    own = tmp_path / folder
    own.mkdir()
    files = [dmesg(own / "dmesg.txt"), own / "nvidia-smi-q.xml"]
    shutil.copy(HEALTHY, files[1])
    monkeypatch.chdir(own)
    for paths in ([own], files, ["."], [file.name for file in files]):
        one = judged(*paths)
        assert one.verdict.hosts == (f"files:{folder}",), paths
    assert judged(".").verdict.attempt == folder
    # Other GPUs are of another host.
    links = "GPU 0: NVIDIA H100 80GB HBM3 (UUID: GPU-1)\n\t Link 0: 26.562 GB/s\n"
    (own / "nvlink.txt").write_text(links)
    assert len(judged(*files, "nvlink.txt").verdict.hosts) == 3


UCX = "[1700000000.123456] [gpu01:31180:0]     ucp_context.c:1770 UCX  ERROR no usable transports"


@pytest.mark.parametrize(
    ("line", "is_kernel"),
    [
        ("node1: NCCL INFO Bootstrap : Using eth0", False),
        ("2025-11-25T10:21:33.123456Z all_reduce_perf started", False),
        ("[2025-11-25T10:21:33.123] error: slurmd: launch failed", False),
        ("Nov 25 10:21:33 gpu1 sshd[1]: Accepted publickey", False),
        ("       8388608       2097152     float     sum      -1    94.3   88.9", False),
        # github.com/openucx/ucx/blob/v1.17.0/src/ucs/debug/log.c
        (UCX, False),
        (UCX.replace("1700000000", "    12"), False),
        # The kernel writes the seconds since boot with at least five characters, and no process.
        ("[1700000000.123456] a program: iteration 5", False),
        ("[12.345678] a program: iteration 5", False),
        ("[   12.345678] a driver: probed", True),
        ("[123456.345678] a driver: probed", True),
        ("[12.345678] NVRM: Xid (PCI:0000:19:00): 79, GPU has fallen off the bus.", True),
        ("[   12.345678][ T1] a driver: probed", True),
    ],
)
def test_logs_of_other_programs_are_not_kernel_logs(line: str, *, is_kernel: bool) -> None:
    assert is_kernel_log(f"{line}\n".encode() * 3) is is_kernel


HEALTHY = (SAMPLES / "../gpu/h100-80gb-hbm3/nvidia-smi-q.xml").resolve()
ENTITIES = """<?xml version="1.0"?>
<!DOCTYPE nvidia_smi_log [
  <!ENTITY a "aaaaaaaaaaaaaaaaaaaa"><!ENTITY b "&a;&a;&a;&a;&a;&a;&a;&a;&a;&a;">
  <!ENTITY outside SYSTEM "file:///etc/hostname">
]>
<nvidia_smi_log><attached_gpus>1</attached_gpus>
<gpu id="00000000:00:06.0"><product_name>&b;&outside;</product_name></gpu></nvidia_smi_log>
"""


def test_the_text_form_gives_the_values_of_the_xml_form() -> None:
    text = (SAMPLES / "nvidia-smi/a10.txt").read_bytes()
    names = {"fabric-state", "fabric-status", "fabric-health", "memory-temperature", "mig"}
    (of_text,) = nvidia_smi.read_query("a", [text])
    (of_xml,) = nvidia_smi.read_query("b", [HEALTHY.read_bytes()])
    first, second = (one.reading.devices[0] for one in (of_text, of_xml))
    assert first.levels.keys() - names == second.levels.keys() - names
    assert of_text.reading.read == of_xml.reading.read


@pytest.mark.parametrize("outside", [True, False])
def test_entities_of_a_document_are_refused_and_nothing_is_fetched(
    tmp_path: Path, *, outside: bool
) -> None:
    file = tmp_path / "gpu1.xml"
    file.write_text(ENTITIES if outside else ENTITIES.replace("&outside;", ""))
    one = judged(file)
    assert one.verdict.state is State.INCONCLUSIVE
    assert "aaaa" not in texts(one)
    assert "declares an entity" in texts(one)


@given(cut=st.integers(min_value=200, max_value=HEALTHY.stat().st_size - 20))
@settings(max_examples=30, deadline=None)
def test_a_cut_file_is_never_complete(cut: int) -> None:
    (report,) = nvidia_smi.read_query("x", [HEALTHY.read_bytes()[:cut]])
    assert report.reading.unread


READERS = [
    *(kernel_log.read, nvidia_smi.read_query, nvidia_smi.read_nvlink, bug_report.read, dcgm.read),
    *(perftest.read, state_text.read),
]
LINES = [
    line + b"\n"
    for path in sorted(SAMPLES.glob("*/*.*"))
    for line in path.read_bytes().split(b"\n")
]


@given(
    content=st.lists(
        st.one_of(
            st.sampled_from(LINES),
            st.binary(max_size=60),
        ),
        max_size=40,
    ),
    reader=st.sampled_from(READERS),
)
@settings(max_examples=200, deadline=None)
def test_no_content_raises_an_error(content: list[bytes], reader: Any) -> None:
    for report in reader("x", content):
        assert len(report.shows) < 2000
        assert report.shows.isprintable()
        dump(report.reading)


def kern_log(path: Path, *lines: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f"{line}\n" for line in lines))
    return path


BOOT = "Nov 25 10:05:01 gpu1 kernel: [    0.000000] Linux version 6.8.0-60-generic (buildd@lcy02)"
XID = "Nov 24 09:44:44 gpu1 kernel: [86404.100000] NVRM: Xid (PCI:0000:00:06): 79, GPU is lost"


def test_an_older_log_from_before_the_last_boot_accuses_nobody(tmp_path: Path) -> None:
    old = kern_log(tmp_path / "kern.log.1", XID)
    new = kern_log(tmp_path / "kern.log", BOOT)
    one = judged(tmp_path)
    assert (one.verdict.suspects, [skipped.file for skipped in one.skipped]) == ((), [str(old)])
    assert judged(new, old).verdict.suspects == ()


def test_two_logs_of_one_boot_count_together(tmp_path: Path) -> None:
    kern_log(tmp_path / "gpu1/kern.log.1", XID)
    kern_log(tmp_path / "gpu1/kern.log", XID.replace("Nov 24", "Nov 25").replace("79", "31"))
    assert accused(judged(tmp_path)) == [("gpu1", "0000:00:06", "gpu-xid")]


def test_files_of_one_host_make_one_host_with_named_gpus(tmp_path: Path) -> None:
    kern_log(tmp_path / "gpu1/dmesg.txt", "[ 86404.100000] " + XID.partition("] ")[2])
    shutil.copy(HEALTHY, tmp_path / "gpu1/nvidia-smi.xml")
    one = judged(tmp_path)
    assert one.verdict.hosts == ("files:gpu1",)
    assert accused(one) == [("files:gpu1", "0", "gpu-xid")]


def test_several_bad_hosts_are_all_named(tmp_path: Path) -> None:
    for host in ("gpu1", "gpu2", "gpu3"):
        kern_log(tmp_path / host / "kern.log", XID.replace("gpu1", host))
    assert {host for host, *_ in accused(judged(tmp_path))} == {"gpu1", "gpu2", "gpu3"}


def test_of_two_reports_about_the_same_gpus_the_newer_one_counts(tmp_path: Path) -> None:
    text = (SAMPLES / "nvidia-smi/a100-pending.txt").read_text()
    kern_log(tmp_path / "gpu1/nvidia-smi.txt", text)
    newer = text.replace("Nov 18", "Nov 19").replace(": Yes", ": No")
    kern_log(tmp_path / "gpu1/nvidia-smi-q.txt", newer)
    one = judged(tmp_path)
    assert (one.verdict.suspects, len(one.skipped)) == ((), 1)


def test_logs_of_nccl_tests_and_the_state_of_their_hosts_make_one_run(tmp_path: Path) -> None:
    logs = ROOT / "tests/data/nccl-logs/single-node"
    log = sorted(logs.rglob("*.log"))[0]
    shutil.copy(log, tmp_path / log.name)
    (host,) = judged(log).verdict.hosts
    kern_log(tmp_path / "kern.log", XID.replace("gpu1", host))
    one = judged(tmp_path)
    assert one.verdict.hosts == (host,)
    assert {check.check for check in one.verdict.checks} > {"health", "all-reduce"}
    assert (host, "0000:00:06", "gpu-xid") in accused(one)


def test_no_text_makes_reading_slow() -> None:
    # These took minutes to days.
    for text in (
        b"GPU 0: H100 (UUID: GPU-\n" * 80_000,
        b"GPU 0: a (UUID: GPU-1)" + b"\n" * 999_999,
    ):
        assert not nvidia_smi.is_nvlink(text)
    printed = (SAMPLES / "perftest/gpu32-ib-write-bw.txt").read_bytes()
    (report,) = perftest.read("x", [printed, b"#bytes ", b"a[" * 500_000])
    assert report.metrics


def test_a_bandwidth_without_a_known_unit_is_left_out() -> None:
    content = (SAMPLES / "perftest/ib-write-bw.json").read_bytes()
    (report,) = perftest.read("x", [content.replace(b"2229.27", b"9000.00")])
    assert [metric.unit for metric in report.metrics] == ["M/s"]


def test_a_bound_for_one_test_does_not_pass_another(tmp_path: Path) -> None:
    for name in ("gpu30-ib-read-lat", "gpu30-ib-write-bw-gbits"):
        shutil.copy(SAMPLES / f"perftest/{name}.json", tmp_path / f"{name}.json")
    both = ["script.ib-write-bw@8M>=45", "script.ib-read-lat<=3"]
    assert judged(tmp_path, expect=both, machine="cpu").verdict.state is State.PASS
    assert judged(tmp_path, expect=both[:1], machine="cpu").verdict.state is State.INCONCLUSIVE


def suggested(one: Judged) -> str:
    (bound,) = re.findall("--expect '(.+?)'", texts(one))
    return str(bound)


def test_figures_of_a_network_claim_nothing_about_gpus_and_reach_the_suggested_bound() -> None:
    path = SAMPLES / "perftest/gpu32-ib-write-bw.txt"
    one = judged(path, expect=(suggested(judged(path)),))
    assert (one.verdict.state, one.verdict.gpu_tested) == (State.PASS, False)
    above = judged(path, expect=("script.ib-write-bw@64K>=1000",))
    assert "GB/s is outside >= 1000 GB/s" in texts(above)


def test_a_suggested_bound_may_be_of_a_result_that_no_run_has() -> None:
    path = SAMPLES / "tools/gpu52-nvbandwidth.txt"
    assert judged(path, expect=(suggested(judged(path)),)).verdict.accepted


def test_a_suggested_bound_is_not_what_a_bad_gpu_reached() -> None:
    bound = suggested(judged(SAMPLES / "tools/gpu45-nvbandwidth-slow.json"))
    assert bound == "nvbandwidth.host-to-device>=55"


def test_a_verdict_on_the_state_of_a_host_names_no_part(tmp_path: Path) -> None:
    shutil.copy(HEALTHY, tmp_path / "q.xml")
    assert judged(tmp_path, machine="h100-8").verdict.part == ""


def test_a_kernel_log_without_faults_does_not_change_the_verdict_on_logs(tmp_path: Path) -> None:
    log = sorted((ROOT / "tests/data/nccl-logs/single-node").rglob("*.log"))[0]
    alone = judged(log, machine="h100-8")
    shutil.copy(log, tmp_path / log.name)
    kern_log(tmp_path / "kern.log", BOOT.replace("gpu1", alone.verdict.hosts[0]))
    assert judged(tmp_path, machine="h100-8").verdict.state is alone.verdict.state


def test_the_evidence_against_a_gpu_is_what_its_files_show() -> None:
    one = judged(SAMPLES / "kernel-log/central-messages.txt")
    (against,) = explain(one.run, "gpu12").evidence_against
    assert against.startswith("health [gpu-xid]: ")
    assert explain(one.run, "gpu11").evidence_against == ()


def test_a_boot_without_times_since_boot_ends_the_one_before(tmp_path: Path) -> None:
    lines = (XID, BOOT)
    without = (re.sub(r"kernel: \[.*?\]", "kernel:", line) for line in lines)
    one = judged(kern_log(tmp_path / "journal.txt", *without))
    assert one.verdict.suspects == ()
    assert "before the last boot: Xid 79" in texts(one)


def test_only_this_boot_counts_in_the_scanned_logs_of_a_bug_report() -> None:
    one = judged(SAMPLES / "bug-report/restricted-nvidia-bug-report.log")
    assert "Xid 79" not in texts(one)


def test_counts_of_memory_errors_are_shown(tmp_path: Path) -> None:
    text = (SAMPLES / "nvidia-smi/a10.txt").read_text()
    old = re.search(r"DRAM Uncorrectable +: 0", text)
    assert old
    path = tmp_path / "a.txt"
    path.write_text(text.replace(old[0], f"{old[0][:-1]}3"))
    assert "gpu 0: ecc-uncorrected 3, ecc-uncorrected-aggregate 3" in texts(judged(path))
    assert "ecc-uncorrected" not in texts(judged(SAMPLES / "nvidia-smi/a10.txt"))


def test_gpus_that_a_file_counts_and_does_not_list_are_not_read() -> None:
    text = (SAMPLES / "nvidia-smi/a10.txt").read_bytes()
    attached = b"Attached GPUs                             : "
    (report,) = nvidia_smi.read_query("x", [text.replace(attached + b"1", attached + b"2")])
    assert [gap.reason for gap in report.reading.unread] == ["1 of 2 GPUs"]


@pytest.mark.parametrize(("attached", "missing"), [(8, 0), (7, 1), (4, 0), (1, 0)])
def test_a_node_with_fewer_gpus_than_its_machine_lost_one_or_has_an_equal_share(
    attached: int, missing: int, tmp_path: Path
) -> None:
    # `-i 0` lists one GPU, and counts all.
    path = tmp_path / "q.xml"
    count = f"<attached_gpus>{attached}<"
    path.write_text(HEALTHY.read_text().replace("<attached_gpus>1<", count))
    one = judged(path, machine="h100-8")
    assert accused(one) == [("file:q.xml", None, "gpu-missing")] * missing
    assert ("--machine gpu" in texts(one)) == (attached < 8)
    assert accused(judged(path, machine="gpu")) == []


@pytest.mark.parametrize("gpus", [1, 2])
def test_a_cut_list_of_links_accuses_no_gpu(gpus: int, tmp_path: Path) -> None:
    links = "".join(f"\t Link {i}: 26.562 GB/s\n" for i in range(18))
    lists = [f"GPU {i}: NVIDIA H100 80GB HBM3 (UUID: GPU-{i})\n{links}" for i in range(gpus)]
    path = tmp_path / "nvlink.txt"
    path.write_text("".join(lists)[:-120])
    one = judged(path, machine="h100-8")
    assert (accused(one), f"all links of GPU {gpus - 1} (" in texts(one)) == ([], True)
    path.write_text("".join(lists).replace("17: 26.562 GB/s", "17: <inactive>"))
    assert len(accused(judged(path, machine="h100-8"))) == gpus


@settings(deadline=None)
@given(st.text(max_size=300))
def test_no_text_breaks_the_reader_of_nvbandwidth(text: str) -> None:
    begin = "nvbandwidth Version: v0.8\nDevice 0: X\nRunning a.\n 0 1.00 "
    assert tool_files.host_of(tool_files.nvbandwidth_json(begin + text)) == ""
