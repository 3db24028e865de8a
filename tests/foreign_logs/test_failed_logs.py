"""A job that failed gets an answer: decisive lines, cause, next step; no innocent host is named."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.factories.command_line import accept
from tests.factories.nccl_logs import table
from tests.factories.paths import TESTS

from accept.core import signs
from accept.core.causes import Cause
from accept.core.error_codes import Code
from accept.core.failures import decided
from accept.core.records import Problem
from accept.foreign_logs.answer import answer_of
from accept.foreign_logs.reader import parse
from accept.foreign_logs.tables import NoLog
from accept.foreign_logs.unwrap import plain_text

pytestmark = pytest.mark.usefixtures("runs")

LOGS = TESTS / "data" / "failed-logs"


def judged(*words: Path | str) -> dict[str, Any]:
    done = accept("judge", *words, "--json")
    verdict: dict[str, Any] = json.loads(done.out)
    assert done.code == verdict["exit"]
    return verdict


def causes(verdict: dict[str, Any]) -> set[str]:
    return {f["cause"] for c in verdict["checks"] for f in c["findings"] if f.get("cause")}


@pytest.mark.parametrize(
    ("name", "cause", "quoted"),
    [
        ("shared-memory", Cause.WRONG_COMMAND, "/dev/shm/nccl-KWfVyt"),
        ("no-warning", Cause.CRASHED, "unhandled system error"),
        ("too-many-gpus", Cause.WRONG_COMMAND, "invalid device ordinal"),
    ],
)
def test_a_job_that_died_before_its_first_row_fails_and_names_no_host(
    name: str, cause: Cause, quoted: str
) -> None:
    verdict = judged(LOGS / f"{name}.log")
    assert (verdict["state"], verdict["exit"], verdict["suspects"]) == ("fail", 3, [])
    assert causes(verdict) - {"no-reference"} == {cause}
    assert sum(quoted in note for note in verdict["notes"]) == 1
    assert not any(quoted in f["message"] for c in verdict["checks"] for f in c["findings"])
    rows = (Cause.CRASHED.row, Cause.INCOMPLETE_LOG.row)
    assert not any(row.action in advice for row in rows for advice in verdict["advice"])
    assert sum(note.startswith("not known: ") for note in verdict["notes"]) == 1


@pytest.mark.parametrize(
    ("name", "quoted"), [("only-nccl", "ibv_modify_qp"), ("no-address", "worker-3")]
)
def test_a_log_that_measured_nothing_gets_its_answer_for_people_and_in_json(
    name: str, quoted: str
) -> None:
    answer = no_verdict(LOGS / f"{name}.log")["answer"]
    assert 1 <= len(answer["lines"]) <= 3
    assert any(quoted in line for line in answer["lines"])
    assert answer["cause"] in {*Cause}
    assert answer["isEvident"]


def test_a_log_of_nccl_alone_has_its_cause_beside_logs_with_results(tmp_path: Path) -> None:
    shutil.copy(LOGS / "only-nccl.log", tmp_path / "a.log")
    (tmp_path / "b.log").write_text(table("all_reduce", ["node1", "node2"], range(8), 95.0))
    verdict = judged(tmp_path)
    assert (verdict["exit"], verdict["suspects"]) == (3, [])
    assert causes(verdict) & {"network-failed", "no-measurement"} == {"network-failed"}
    assert verdict["answer"]["isEvident"]


def no_verdict(*paths: Path) -> dict[str, Any]:
    """Judge logs without a result, and return why there is no verdict."""
    done = accept("judge", *paths)
    assert (done.code, done.error, done.out) == (6, Code.LOGS_NOTHING_MEASURED, "")
    in_json = accept("judge", *paths, "--json")
    assert (in_json.code, in_json.err) == (done.code, done.err)
    shown: dict[str, Any] = json.loads(in_json.out)
    assert (shown["state"], shown["exit"], shown["code"]) == (None, 6, done.error)
    assert (shown["suspects"], shown["metrics"]) == ([], [])
    answer = shown["answer"]
    for text in (answer["means"], *answer["lines"], answer["action"], answer["unknown"]):
        assert text
        assert text in done.err
    return shown


def test_a_log_that_ends_before_its_first_row_shows_its_last_line(tmp_path: Path) -> None:
    text = table("all_reduce", ["a", "b"], range(8), 95.0)
    path = tmp_path / "a.log"
    path.write_text(text[: text.index("#       size")] + "waiting for GPUs\n \n")
    answer = no_verdict(path)["answer"]
    assert (answer["cause"], answer["lines"]) == ("incomplete-log", ["waiting for GPUs"])


NVLS = "transport/nvls.cc:158 NCCL WARN Cuda failure 1 'invalid argument'"
REFUSED = "NCCL WARN socketStartConnect: Connect to 10.0.0.7<45211> failed : Connection refused"
MODIFY = "misc/ibvwrap.cc:339 NCCL WARN Call to ibv_modify_qp failed with 110 Connection timed out"


@pytest.mark.parametrize(
    ("warning", "error", "cause", "suspects"),
    [
        (NVLS, "cuda", Cause.FABRIC_MANAGER, {("node2",)}),
        (MODIFY, "cuda", Cause.NETWORK_FAILED, set()),
        (REFUSED, "system", Cause.NETWORK_FAILED, set()),
    ],
)
@pytest.mark.parametrize("hosts", [["node2"], ["node1", "node2", "node3"]])
def test_a_warning_decides_the_cause_of_a_program_that_ended(
    tmp_path: Path,
    warning: str,
    error: str,
    cause: Cause,
    suspects: set[tuple[str, ...]],
    hosts: list[str],
) -> None:
    text = table("all_reduce", hosts, range(8), 95.0)
    head = text[: text.index("#       size")]
    path = tmp_path / "a.log"
    failure = f"node2: Test NCCL failure common.cu:1005 'unhandled {error} error / '"
    path.write_text(f"{head}node2:1:2 [5] {warning}\n{failure}\n")
    verdict = judged(path)
    assert causes(verdict) - {"no-reference"} == {cause}
    assert {tuple(suspect["hosts"]) for suspect in verdict["suspects"]} == suspects


#: github.com/NVIDIA/nccl-tests/issues/166, github.com/NVIDIA/nccl/issues/473 and
#: github.com/NVIDIA/nccl/blob/5067397/src/bootstrap.cc.
NO_ROUTE = "misc/socket.cc:483 NCCL WARN Connect to 10.0.0.2<45763> failed : No route to host"
NO_INTERFACE = "bootstrap.cc:45 NCCL WARN Bootstrap : no socket interface found"
SMALL_SHM = (
    "misc/shmutils.cc:88 NCCL WARN Error: failed to extend /dev/shm/nccl-WU88OE to 9637892 bytes, "
    "error: No space left on device (28)"
)


@pytest.mark.parametrize("warning", [NO_ROUTE, NO_INTERFACE, SMALL_SHM])
@pytest.mark.parametrize("is_named", [True, False])
@pytest.mark.parametrize("is_listed", [True, False])
def test_a_mistake_in_one_of_several_logs_names_no_host(
    tmp_path: Path, warning: str, *, is_named: bool, is_listed: bool
) -> None:
    for host in ("node1", "node2", "node3", "node4"):
        text = table("all_reduce", [host], range(8), 480.0)
        (tmp_path / f"all_reduce_{host}.log").write_text(text)
    lists = table("all_reduce", ["node5"], range(8), 480.0).partition("#       size")[0]
    failure = "node5: Test NCCL failure common.cu:958 'unhandled system error / '"
    path = tmp_path / ("all_reduce_node5.log" if is_named else "x.log")
    path.write_text(f"{lists * is_listed}node5:1:2 [0] {warning}\n{failure}\n")
    verdict = judged(tmp_path)
    assert (verdict["state"], verdict["suspects"]) == ("fail", [])
    assert not causes(verdict) & {Cause.CRASHED, Cause.DISK_FULL}
    assert not any("without a complete list" in note for note in verdict["notes"])


KILLED = "mpirun noticed that process rank 5 with PID 1 on node node3 exited on signal 9 (Killed)."
TIME_LIMIT = (
    "slurmstepd: error: *** STEP 7.0 ON node3 CANCELLED AT 2026-01-31T10:00:00 DUE TO TIME LIMIT "
    "***\nsrun: error: node3: tasks 0-7: Killed"
)
ABORTED = "MPI_ABORT was invoked on rank 3 in communicator MPI_COMM_WORLD"
LOST = (
    "node3:5:6 [5] NCCL WARN NET/IB : Got completion from peer 10.0.0.7<45211> with status=12\n"
    "node3: Test NCCL failure common.cu:401 'remote process exited or there was a network error'"
)


@pytest.mark.parametrize("end", [KILLED, TIME_LIMIT, ABORTED, LOST])
def test_one_end_from_outside_or_of_a_connection_accuses_no_host_but_a_second_one_counts(
    tmp_path: Path, end: str
) -> None:
    for host in ("node1", "node2", "node3", "node4", "node5"):
        for collective in ("all_reduce", "all_gather"):
            text = table(collective, [host], range(8), 480.0)
            (tmp_path / f"{collective}_{host}.log").write_text(text)
    for count, collective in enumerate(("all_reduce", "all_gather"), 1):
        head = table(collective, ["node3"], range(8), 480.0).partition("  2147483648")[0]
        (tmp_path / f"{collective}_node3.log").write_text(f"{head}{end}\n")
        verdict = judged(tmp_path)
        assert verdict["exit"] == 3
        assert [s["hosts"] for s in verdict["suspects"]] == [["node3"]] * (count - 1)


def test_the_only_host_is_not_accused_by_its_own_report_without_a_list_of_devices(
    tmp_path: Path,
) -> None:
    text = table("all_reduce", ["node1"], range(3), 0.1).partition("# Out of bounds")[0]
    failure = "node1: Test NCCL failure common.cu:1005 'unhandled CUDA error'"
    listed = [line for line in text.splitlines() if "nThread" not in line and "Rank  2" not in line]
    (tmp_path / "a.log").write_text("\n".join([failure, *listed]) + "\n")
    verdict = judged(tmp_path / "a.log")
    assert (verdict["state"], verdict["suspects"]) == ("fail", [])
    assert Cause.CRASHED in causes(verdict)


def test_a_host_that_only_the_failure_in_its_log_names_is_a_host_of_the_run(tmp_path: Path) -> None:
    (tmp_path / "a.log").write_text(table("all_reduce", ["node1"], range(8), 480.0))
    head = table("all_reduce", ["gpu9"], range(8), 480.0).partition("#  Rank")[0]
    failure = "gpu9: Test CUDA failure common.cu:892 'out of memory'"
    (tmp_path / "b.log").write_text(f"{head}{failure}\n")
    verdict = judged(tmp_path)
    assert [suspect["hosts"] for suspect in verdict["suspects"]] == [["gpu9"]]
    assert set(verdict["hosts"]) == {"gpu9", "node1"}
    assert verdict["state"] == "degraded"


HOSTS = st.sampled_from([None, "a", "b"])
PROBLEMS = st.builds(
    Problem,
    cause=st.sampled_from([Cause.CRASHED, Cause.TIMED_OUT, Cause.INCOMPLETE_LOG]),
    message=st.just(""),
    check=st.sampled_from([None, "all-reduce"]),
    host=HOSTS,
)
MATCHES = st.builds(
    signs.Match, sign=st.sampled_from(signs.catalog().signs), line=st.just(""), host=HOSTS
)


@given(st.lists(PROBLEMS), st.lists(MATCHES))
def test_signs_accuse_no_other_host_and_hide_no_failure(
    problems: list[Problem], matches: list[signs.Match]
) -> None:
    found = decided(problems, matches)
    assert bool(found) == bool(problems)
    assert {p.cause for p in found} <= {p.cause for p in problems} | {
        match.sign.cause for match in matches if match.sign.shows_cause
    }
    for host in {p.host for p in found if p.host and p.cause is not Cause.INCOMPLETE_LOG}:
        assert host in {p.host for p in problems}
        own = [match for match in matches if match.host in (None, host)]
        assert not own or not own[0].sign.is_mistake


@pytest.mark.parametrize("is_mixed", [True, False])
def test_processes_that_each_ran_alone_measured_nothing(tmp_path: Path, *, is_mixed: bool) -> None:
    """Each process prints its own list of devices, mixed with that of the other or not."""
    text = (LOGS / "built-without-mpi.log").read_text()
    if not is_mixed:
        lists = text.index("# nThread", 1), text.index("#  Rank  0 Group  0 Pid   2451")
        lines = text[lists[1] :].splitlines(keepends=True)
        first = text[: lists[0]] + "".join(text[: lists[1]].splitlines(keepends=True)[-2:])
        text = first + text[: lists[0]] + "".join(lines[:2] + lines[6:])
    path = tmp_path / "a.log"
    path.write_text(text)
    verdict = judged(path)
    assert (verdict["state"], verdict["suspects"], verdict["metrics"]) == ("fail", [], [])
    assert causes(verdict) - {"no-reference"} == {Cause.RANK_COUNT}
    assert verdict["answer"]["cause"] == Cause.RANK_COUNT


@pytest.mark.parametrize("form", ["{}", "[{}]"])
def test_a_verdict_beside_the_logs_is_not_read_as_one_of_them(tmp_path: Path, form: str) -> None:
    """Its messages quote lines of the logs."""
    (tmp_path / "a.log").write_text((TESTS / "logs/crashed.log").read_text())
    before = judged(tmp_path)
    (tmp_path / "b.json").write_text(form.format(json.dumps(before)))
    after = judged(tmp_path)
    assert [one["reason"] for one in after.pop("skipped")] == [NoLog.VERDICT]
    assert after == {key: value for key, value in before.items() if key != "skipped"}


def test_a_row_below_the_parameters_is_a_part_of_their_table() -> None:
    verdict = judged(LOGS / "cut-row.log")
    assert verdict["state"] == "inconclusive"
    assert "partial-log" in causes(verdict)
    assert [one["value"] for one in verdict["metrics"] if one["metric"] == "busbw"] == [17.21]
    # The lack of a bound does not explain what is missing.
    assert "[partial-log]: a table of alltoall" in accept("judge", LOGS / "cut-row.log").out


@pytest.mark.parametrize("state", ["", "node1: Test NCCL failure common.cu:1 'internal error'\n"])
def test_a_gpu_that_is_listed_twice_leaves_the_hosts_unknown(tmp_path: Path, state: str) -> None:
    """Two machines of one name, or two ranks on one GPU: the list cannot distinguish them."""
    text = table("all_reduce", ["a", "b"], range(8), 95.0)
    text = text.replace(" on a ", " on node1 ").replace(" on b ", " on node1 ")
    assert text.count("node1") == 16
    path = tmp_path / "a.log"
    path.write_text(text + state)
    verdict = judged(path, "--machine", "h100-8")
    assert verdict["state"] == ("fail" if state else "inconclusive")
    assert verdict["suspects"] == []
    assert "below-reference" not in causes(verdict)
    assert any("same name" in note and "same GPU" in note for note in verdict["notes"])


@pytest.mark.parametrize("checked", [True, False])
def test_sendrecv_of_old_builds_prints_an_operation(tmp_path: Path, *, checked: bool) -> None:
    lines = table("sendrecv", ["a", "b"], [0], 20.0, checked=checked).splitlines(keepends=True)
    body = "".join(line for line in lines if "version" not in line and "Coll" not in line)
    body = body.replace("       0\n", "     N/A\n")
    path = tmp_path / "a.log"
    path.write_text("$ mpirun ./sendrecv_perf\n" + body.replace("none      -1", " sum      -1"))
    assert {one["check"] for one in judged(path)["metrics"]} == {"sendrecv"}


def test_a_gpu_of_a_virtual_machine_counts_at_any_address(tmp_path: Path) -> None:
    text = table("all_reduce", ["a"], range(8), 480.0)
    path = tmp_path / "a.log"
    path.write_text("".join(_with_bus(line) for line in text.splitlines(keepends=True)))
    assert judged(path)["gpus"] == 8


def _with_bus(line: str) -> str:
    head, bracket, rest = line.partition(" [")
    return f"{head} [0x00]{rest.partition(']')[2]}" if "Rank " in line and bracket else line


LINES = st.sampled_from(
    [
        *(line for log in sorted(LOGS.glob("*.log")) for line in log.read_text().splitlines()),
        "\x1b[2Jnode1:1:2 [0] NCCL WARN \x1b]0;x\x07 " + "x" * 3000,
        "node1: Test NCCL failure a.cu:1 '\u202e'",
    ]
)


@given(st.lists(LINES, max_size=12))
def test_an_answer_quotes_at_most_three_bounded_lines_of_plain_text(lines: list[str]) -> None:
    text = "\n".join(lines).encode()
    answer = answer_of("a.log", parse(text), signs.decisive(text))
    if answer is not None:
        assert len(answer.lines) <= 3
        assert answer.means or answer.lines
        assert all(len(line) <= 260 and line.isprintable() for line in answer.lines)
        assert answer.action
        assert answer.unknown


@pytest.mark.parametrize(
    "line",
    [
        "slurmstepd: error: Detected 1 oom_kill event in StepId=7.0. Some of the step tasks",
        "slurmstepd: error: Detected 2 oom_kill events in StepId=7.0. Some of the step tasks",
        # Slurm up to 22
        "slurmstepd: error: Detected 1 oom-kill event(s) in StepId=7.0. Some of your processes",
        "slurmstepd: error: Detected 2 oom-kill event(s) in step 7.batch cgroup. Some of your",
    ],
)
def test_slurm_reports_a_step_without_memory_in_two_wordings(line: str) -> None:
    (match,) = signs.decisive(line.encode())
    assert match.sign.name == "slurm-out-of-memory"


#: github.com/pytorch/pytorch/blob/v2.6.0/c10/cuda/CUDACachingAllocator.cpp and
#: github.com/pytorch/pytorch/blob/v2.6.0/torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp.
MEMORY = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.96 GiB.\n"
REMOTE = "torch.distributed.DistBackendError: NCCL error in: ../NCCLUtils.hpp:268, remote process\n"
EXITED = "srun: error: node7: task 3: Exited with exit code 1\n"


@pytest.mark.parametrize("dead", [[MEMORY], [REMOTE], [EXITED], [REMOTE, MEMORY, EXITED]])
@pytest.mark.parametrize("is_named", [True, False])
def test_a_job_that_died_beside_a_good_log_is_never_accepted(
    tmp_path: Path, dead: list[str], *, is_named: bool
) -> None:
    good = tmp_path / "all_reduce_node1.log"
    good.write_text(table("all_reduce", ["node1"], range(8), 480.0))
    assert judged(tmp_path)["state"] == "pass"
    files = [tmp_path / f"train{number}.err" for number in range(len(dead))]
    for file, text in zip(files, dead, strict=True):
        file.write_text(text)
    verdict = judged(*([good, *files] if is_named else [tmp_path]))
    assert verdict["state"] in ("inconclusive", "fail" if is_named else "inconclusive")
    assert "node1" not in {host for suspect in verdict["suspects"] for host in suspect["hosts"]}
    found = [f["message"] for check in verdict["checks"] for f in check["findings"]]
    logs = [log for c in verdict["checks"] for f in c["findings"] for log in f["evidence"]]
    assert all(any(file.name in text for text in (*found, *logs)) for file in files)
    assert verdict["answer"]["lines"]
    assert verdict["skipped"] == []
    good.unlink()
    shown = no_verdict(*(files if is_named else [tmp_path]))
    shown_files = [shown["answer"]["file"], *(one["file"] for one in shown["alsoFailed"])]
    assert sorted(shown_files) == sorted(map(str, files))
    assert shown["answer"]["isEvident"] or len(dead) == 1


def test_a_job_that_is_named_like_the_good_logs_failed_for_the_reason_in_it(tmp_path: Path) -> None:
    for host in ("node1", "node2"):
        text = table("all_reduce", [host], range(8), 480.0)
        (tmp_path / f"run_{host}.log").write_text(text)
    (tmp_path / "run_node3.log").write_text(MEMORY)
    verdict = judged(tmp_path)
    assert verdict["state"] in ("fail", "degraded")
    assert Cause.OUT_OF_MEMORY in causes(verdict)
    assert Cause.INCOMPLETE_LOG not in causes(verdict)


@pytest.mark.parametrize("speed", [100.0, 150.0, 480.0])
def test_a_node_passes_only_if_it_reaches_what_each_machine_with_such_gpus_requires(
    tmp_path: Path, speed: float
) -> None:
    """Several machines have eight H100, and some of them require more inside a node than others."""
    path = tmp_path / "a.log"
    path.write_text(table("all_reduce", ["a"], range(8), speed, sizes=(1 << 30, 8 << 30), factor=8))
    verdict = judged(path)
    states = {judged(path, "--machine", name)["state"] for name in ("h100-8", "a3-highgpu-8g")}
    expected = {100.0: "fail", 150.0: "inconclusive", 480.0: "pass"}[speed]
    assert verdict["state"] == expected
    assert verdict["suspects"] == [] or expected == "fail"
    if expected == "pass":
        assert states == {"pass"}
    elif expected == "inconclusive":
        assert states == {"fail", "pass"}


def colored(line: str, number: int) -> str:
    """Return a line as a terminal shows it: colors around words, and a title of the window."""
    color = f"\x1b[{30 + number % 8};1m"
    return f"\x1b]0;{number}\x07{color}{line}\x1b[0m"


@pytest.mark.parametrize("size", [5, 64, 1 << 20])
def test_colors_do_not_become_parts_of_hosts_and_signs(size: int) -> None:
    text = (LOGS / "shared-memory.log").read_text()
    shown = "\n".join(colored(line, number) for number, line in enumerate(text.splitlines()))
    blocks = [shown.encode()[at : at + size] for at in range(0, len(shown.encode()), size)]
    assert b"".join(plain_text(blocks)).decode().splitlines() == text.splitlines()
