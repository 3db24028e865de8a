"""`accept judge` on logs of nccl-tests from other tools."""

from __future__ import annotations

import gzip
import io
import json
import os
import re
import resource
import shutil
import tarfile
import zipfile
from collections.abc import Callable, Sequence
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
from tests.factories import nccl_logs, sample_evidence
from tests.factories.command_line import accept, program
from tests.factories.nccl_logs import DEVICE, NODES, TOP, corpus, fine, slow, table
from tests.factories.real_logs import PUBLISHED

from accept.core.error_codes import Code
from accept.foreign_logs.tables import NoLog

pytestmark = pytest.mark.usefixtures("runs")

Suspects = set[tuple[str, str]]
EXPECTED = ("--expect", "all-reduce@4G>=200")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "logs"


def judged(*paths: Path, options: Sequence[str] = ()) -> dict[str, Any]:
    done = accept("judge", *paths, *options, "--json")
    found: dict[str, Any] = json.loads(done.out)
    assert done.code == found["exit"]
    return found


def causes(verdict: dict[str, Any]) -> set[str]:
    return {f["cause"] for c in verdict["checks"] for f in c["findings"] if f.get("cause")}


def suspects(verdict: dict[str, Any]) -> Suspects:
    return {(one["kind"], one["name"]) for one in verdict["suspects"]}


class TestVerdict:
    def test_the_first_lines_summarize_the_logs(self, folder: Path) -> None:
        lines = accept("judge", corpus(folder)).out.splitlines()
        assert lines[0].startswith("? NOT DECIDED   8 nodes")
        origin = " ".join(line.strip() for line in lines[1:3])
        assert "8 single-node logs, 28 pair logs, 1 all-node log, 8 nodes" in origin
        assert "2 collectives; from logs alone" in origin

    def test_a_run_that_meets_the_users_thresholds_is_accepted(self, folder: Path) -> None:
        bounds = ("--expect", "all-reduce@4G/2->=300", "--expect", "alltoall@4G/2->=85")
        assert judged(corpus(folder), options=bounds)["state"] == "pass"
        too_high = ("--expect", "all-reduce@4G/2->=400", "--expect", "alltoall@4G/2->=85")
        assert judged(folder, options=too_high)["exit"] == 3

    def test_checks_that_logs_cannot_show_are_not_tested_and_do_not_count(
        self, folder: Path
    ) -> None:
        verdict = judged(corpus(folder))
        reasons = {one["check"]: one["reason"] for one in verdict["notTested"]}
        assert reasons["train"] == reasons["inventory"] == "the logs do not show it"
        assert "train" not in {one["check"] for one in verdict["checks"]}

    def test_figures_and_references_are_in_the_json(self, folder: Path) -> None:
        verdict = judged(corpus(folder))
        assert len(verdict["metrics"]) == 2 * (8 + 28 + 1)
        one = next(m for m in verdict["metrics"] if m["hosts"] == ["node1", "node2"])
        assert one["size"] == nccl_logs.TOP
        assert Path(one["log"]).is_file()
        assert all(reference["source"] for reference in verdict["references"])

    def test_the_same_logs_elsewhere_are_the_same_run(self, folder: Path, tmp_path: Path) -> None:
        first = judged(corpus(folder))
        shutil.move(folder, tmp_path / "other")
        assert judged(tmp_path / "other")["run"] == first["run"]


class TestSuspects:
    def test_nodes_without_a_bound_are_not_good_because_one_is_slower(self, folder: Path) -> None:
        """All of them may be slow; with a bound that they reach, they are good."""
        corpus(folder, slow(NODES[2], share=0.5), all_nodes=False)
        verdict = judged(folder, options=("--max-bad", "1"))
        assert (verdict["state"], verdict["exit"]) == ("fail", 3)
        assert suspects(verdict) == {("node", NODES[2])}
        options = ("--expect", "all-reduce@4G>=1", "--expect", "alltoall@4G>=1", "--max-bad", "1")
        verdict = judged(folder, options=options)
        assert (verdict["state"], verdict["exit"]) == ("degraded", 0)

    def test_the_suggested_bounds_are_those_that_all_others_reach(self, folder: Path) -> None:
        verdict = judged(corpus(folder, slow("node3", share=0.5), all_nodes=False))
        messages = [f["message"] for check in verdict["checks"] for f in check["findings"]]
        options = re.findall("(--expect) '(.+?)'", "\n".join(messages))
        bounds = [word for option in options for word in option]
        assert len(bounds) == 4
        verdict = judged(folder, options=(*bounds, "--max-bad", "1"))
        assert (verdict["state"], verdict["exit"]) == ("degraded", 0)
        assert all(float(bound.partition("=")[2]) > 10 for bound in bounds[1::2])

    def test_a_ticket_has_the_pci_addresses_that_the_logs_show(
        self, folder: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        corpus(folder, slow("node3", share=0.8))
        monkeypatch.chdir(folder)
        text = Path(accept("ticket", folder, "node3").out.splitlines()[0]).read_text()
        assert f"| 7 | {DEVICE} | - | - | - | 0000:17:00 |" in text

    @pytest.mark.parametrize(
        ("slow_ones", "more", "state"),
        [
            *((0, 1.0, "pass"), (3, 1.0, "degraded")),
            *((4, 1.0, "inconclusive"), (4, 0.8, "inconclusive"), (5, 1.0, "inconclusive")),
        ],
    )
    def test_too_many_slow_nodes_to_name_any(
        self, folder: Path, slow_ones: int, more: float, state: str
    ) -> None:
        """More slow nodes never turn a rejection into a pass, although they widen the limit."""
        folder.mkdir()
        for number, node in enumerate(NODES):
            share = 0.9 if number < slow_ones else more if number == 7 else 1.0
            text = table("all_reduce", [node], range(8), 480.0 * share + number / 100)
            (folder / f"{node}.log").write_text(text)
        bounds = ("--machine", "h100-8", "--expect", "all-reduce@4G>=300")
        verdict = judged(folder, options=bounds)
        assert (verdict["state"], bool(verdict["suspects"])) == (state, state == "degraded")

    def test_a_node_that_is_slow_only_in_pairs(self, folder: Path) -> None:
        def speed(_: str, hosts: Sequence[str], __: Sequence[int]) -> float:
            return 0.9 if "node3" in hosts and len(hosts) > 1 else 1.0

        assert suspects(judged(corpus(folder, speed))) == {("node", "node3")}

    def test_a_node_with_some_gpus_if_no_single_gpu_can_be_named(self, folder: Path) -> None:
        verdict = judged(corpus(folder, slow("node3", gpu=6), gpus=(range(8), range(4))))
        assert suspects(verdict) == {("node", "node3")}
        assert "GPUs 4, 5, 6, 7" in verdict["suspects"][0]["why"]

    def test_the_smallest_slow_block_of_nested_blocks(self, folder: Path) -> None:
        folder.mkdir()
        for count in (2, 4, 8, 16):
            for first in range(0, 16, count):
                hosts = [f"n{number}" for number in range(first, first + count)]
                text = table("all_reduce", hosts, range(8), 280.0 if "n7" in hosts else 320.0)
                (folder / f"{count}-from-{first}.log").write_text(text)
        verdict = judged(folder)
        assert suspects(verdict) == set()
        assert [
            f["hosts"]
            for check in verdict["checks"]
            for f in check["findings"]
            if f.get("cause") == "slow-outlier"
        ] == [["n6", "n7"]]

    def test_other_numbers_of_gpus_are_never_compared(self, folder: Path) -> None:
        def speed(_: str, __: Sequence[str], gpus: Sequence[int]) -> float:
            return len(gpus) / 8

        sets = (range(8), range(4), range(2), (0,))
        assert suspects(judged(corpus(folder, speed, gpus=sets))) == set()

    def test_unchecked_data_fail_and_the_slow_node_is_still_named(self, folder: Path) -> None:
        corpus(folder, slow("node3"))
        for path in folder.iterdir():
            text = path.read_text().replace("       0", "     N/A")
            path.write_text(text.replace("values : 0", "values : 0"))
        verdict = judged(folder)
        assert verdict["state"] == "fail"
        assert suspects(verdict) == {("node", "node3")}

    def test_one_file_may_hold_the_logs_of_all(self, folder: Path) -> None:
        corpus(folder, slow("node3"))
        whole = "\n".join(path.read_text() for path in sorted(folder.iterdir()))
        shutil.rmtree(folder)
        folder.with_suffix(".log").write_text(whole)
        verdict = judged(folder.with_suffix(".log"))
        assert suspects(verdict) == {("node", "node3")}
        assert "28 pair logs" in verdict["origin"]

    def test_gpus_that_processes_see_alone_are_numbered_by_address(self, folder: Path) -> None:
        corpus(folder, slow("node3", gpu=1), gpus=((0,), (1,), (0, 1)))
        for path in folder.glob("G1_*"):
            path.write_text(path.read_text().replace("device  1 ", "device  0 "))
        assert suspects(judged(folder)) == {("gpu", "node3:1")}


class TestDamage:
    """A truncated log is a failure with a cause, and the file is named."""

    PAIR = "G0-1-2-3-4-5-6-7_node2_node5.log"

    def cut(self, folder: Path, name: str, text: str) -> dict[str, Any]:
        (folder / name).write_text(text)
        verdict = judged(folder)
        findings = [f for check in verdict["checks"] for f in check["findings"]]
        bad = [f for f in findings if f["state"] in ("fail", "degraded")]
        assert bad
        assert all(f["evidence"] == [str(folder / name)] for f in bad)
        return verdict

    def test_other_logs_show_the_missing_tables_of_a_cut_log(self, folder: Path) -> None:
        corpus(folder)
        text = (folder / self.PAIR).read_text()
        end = text.index("# nccl-tests version", 100)
        verdict = self.cut(folder, self.PAIR, text[:end])
        assert suspects(verdict) == set()
        findings = [f for check in verdict["checks"] for f in check["findings"]]
        assert ("alltoall", "incomplete-log", ("node2", "node5")) in {
            (f["check"], f.get("cause"), tuple(f["hosts"])) for f in findings
        }

    @pytest.mark.parametrize(
        "name", ["{}.log", "{}-{other}.log", "{other}-{}.log", "{}/nccl.log", "7_{}_all_reduce.log"]
    )
    @pytest.mark.parametrize(
        "host", ["gke-pool-9f2c-{}", "node{}", "10.0.0.{}"], ids=["random", "number", "address"]
    )
    def test_a_host_in_no_other_log_is_known_from_the_file_name(
        self, folder: Path, name: str, host: str
    ) -> None:
        random = "gke" in host
        ends = ("x7qz", "bcdf", "p2m4", "kkkk", "zz9a", "q1q1") if random else range(17, 23)
        hosts = [host.format(end) for end in ends]
        dead = hosts[1]
        for one, other in zip(hosts, (*hosts[1:], hosts[0]), strict=True):
            path = folder / name.format(one, other=other)
            path.parent.mkdir(parents=True, exist_ok=True)
            text = table("all_reduce", [one, other] if "other" in name else [one], range(8), 480)
            is_dead = dead in path.name or dead == path.parent.name
            path.write_text("" if is_dead else text)
        verdict = judged(folder, options=EXPECTED)
        assert verdict["exit"] == 3
        assert dead in verdict["hosts"]

    @pytest.mark.parametrize(
        ("log", "hosts", "other"),
        [
            ("{}.txt", ("node-a", "node-b", "node-c", "node-d", "node-e"), "node-list.txt"),
            ("{}.txt", ("node-east", "node-west", "node-3rd0", "node-main"), "node-list.txt"),
            ("{}.txt", ("h1", "h2", "h3", "h4"), "h100-notes.txt"),
            ("{}.txt", ("gpu1", "gpu2", "gpu3", "gpu4"), "all_reduce_gpu8.txt"),
            ("{}/log.txt", ("h1", "h2", "h3", "h4"), "h100/notes.txt"),
            ("{}/log.txt", ("h1", "h2", "h3", "h4"), "h1/notes.txt"),
        ],
    )
    def test_a_file_that_is_only_named_like_a_host_is_not_a_log(
        self, folder: Path, log: str, hosts: Sequence[str], other: str
    ) -> None:
        for number, host in enumerate(hosts):
            path = folder / log.format(host)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(table("all_reduce", [host], range(8), 480 + number / 10))
        (folder / other).parent.mkdir(exist_ok=True)
        (folder / other).write_text("\n".join(hosts))
        verdict = judged(folder, options=EXPECTED)
        assert (verdict["state"], verdict["hosts"]) == ("pass", sorted(hosts))
        assert [Path(one["file"]).name for one in verdict["skipped"]] == [Path(other).name]

    @pytest.mark.parametrize("content", [b"", b"Segmentation fault\n", b"\0" * 99, b"{}"])
    def test_a_file_that_is_named_like_the_logs_must_be_a_log(
        self, folder: Path, content: bytes
    ) -> None:
        folder.mkdir()
        for number, pair in enumerate(combinations(NODES, 2)):
            path = folder / f"slurm-{1000 + number}.out"
            path.write_text(table("all_reduce", pair, range(8), 320.0))
        (folder / "slurm-1003.out").write_bytes(content)
        (folder / "slurm-1003.err").write_bytes(content)
        verdict = judged(folder, options=EXPECTED)
        assert verdict["exit"] == 3
        assert [Path(one["file"]).name for one in verdict["skipped"]] == ["slurm-1003.err"]
        findings = [f for check in verdict["checks"] for f in check["findings"]]
        (one,) = [f for f in findings if f.get("cause") == "incomplete-log"]
        assert [Path(file).name for file in one["evidence"]] == ["slurm-1003.out"]

    @pytest.mark.parametrize("content", ["", "Warning: Permanently added 'h3' (ED25519).\n"])
    @pytest.mark.parametrize(
        "names",
        [
            [f"nccl-test-{end}.log" for end in ("5q86f", "gvxd7", "szdnw", "hhkcf")],
            [f"{number:08x}-6b8c-290d-32bb-a064ebc1d3d2.log" for number in range(9**8, 9**8 + 4)],
            [f"{number:064x}-json.log" for number in range(9**60, 9**60 + 4)],
            ["alpha.log", "bravo.log", "charlie.log", "delta.log"],
        ],
        ids=["pods", "UUIDs", "containers", "words"],
    )
    def test_a_log_with_a_name_by_chance_is_missed(
        self, folder: Path, names: Sequence[str], content: str
    ) -> None:
        folder.mkdir()
        for number, name in enumerate(names):
            (folder / name).write_text(table("all_reduce", [f"h{number}"], range(8), 480))
        (folder / names[2]).write_text(content)
        # A word may be the name of anything that has content.
        expected = 0 if content and names[0] == "alpha.log" else 3
        assert judged(folder, options=EXPECTED)["exit"] == expected

    @pytest.mark.parametrize(
        "line",
        [
            "ssh: connect to host node9 port 22: Connection refused",
            "srun: error: Task launch for StepId=7.3 failed on node node9: Socket timed out",
        ],
    )
    def test_a_launch_that_failed_among_many_in_one_file(self, folder: Path, line: str) -> None:
        folder.mkdir()
        parts = [table("all_reduce", pair, range(8), 320.0) for pair in combinations(NODES, 2)]
        parts.insert(20, f"{line}\n")
        (folder / "all.txt").write_text("".join(parts))
        verdict = judged(folder, options=EXPECTED)
        assert suspects(verdict) == {("node", "node9")}
        assert verdict["suspects"][0]["cause"] == "launch-failed"

    def test_a_problem_that_both_hosts_report_accuses_neither(self, folder: Path) -> None:
        corpus(folder)
        text = (folder / self.PAIR).read_text()
        start = text[: text.index("  1073741824")]
        for host in ("node2", "node5"):
            start += f"{host}: Test NCCL failure common.cu:1012 'unhandled system error'\n"
        verdict = self.cut(folder, self.PAIR, start)
        assert suspects(verdict) == set()
        assert "crashed" in causes(verdict)

    @pytest.mark.parametrize("name", ["node2_node5.log", "slurm-7.log"])
    @pytest.mark.parametrize("lost", ["Rank", "Rank  8 ", "Rank 15 "])
    def test_a_table_without_its_list_of_devices_accuses_nobody(
        self, folder: Path, name: str, lost: str
    ) -> None:
        corpus(folder)
        lines = (folder / self.PAIR).read_text().splitlines(keepends=True)
        (folder / self.PAIR).unlink()
        (folder / name).write_text("".join(line for line in lines if lost not in line))
        verdict = judged(folder, options=EXPECTED)
        assert suspects(verdict) == set()
        assert verdict["state"] != "pass"

    @pytest.mark.parametrize(
        "lost",
        [("on node1 ", "Out of bounds"), ("on node2 ", "test starting")],
        ids=["the first line and the footer", "the last line and the first of the table"],
    )
    def test_what_both_nodes_measured_names_not_the_one_whose_line_is_left(
        self, folder: Path, lost: tuple[str, ...]
    ) -> None:
        lines = table("all_gather", ("node1", "node2"), range(1), 18.0).splitlines(keepends=True)
        kept = (line for line in lines if not any(text in line for text in lost))
        folder.mkdir()
        (folder / "a.log").write_text("".join(kept))
        verdict = judged(folder)
        assert verdict["hosts"] == []
        assert "below-reference" not in causes(verdict)

    def test_a_log_that_died_after_its_first_line_is_one_of_its_kind(self, folder: Path) -> None:
        corpus(folder)
        failed = "node5: Test CUDA failure common.cu:1 'uncorrectable ECC error encountered'\n"
        text = f"# nccl-tests version 2.17.8 nccl-headers=22902 nccl-library=22902\n{failed}"
        verdict = self.cut(folder, "G0-1-2-3-4-5-6-7_node5.log", text)
        assert ("node", "node5") in suspects(verdict)
        assert {c["check"] for c in verdict["checks"]} == {"hosts", "all-reduce", "alltoall"}

    def test_wrong_data_in_a_collective_that_no_check_judges(self, folder: Path) -> None:
        corpus(folder)
        for node in NODES:
            text = table("broadcast", [node], range(8), 400.0)
            wrong = text.replace("       0", "       5", 1) if node == "node5" else text
            (folder / f"{node}-broadcast.log").write_text(wrong)
        verdict = judged(folder)
        assert suspects(verdict) == {("node", "node5")}
        states = {check["check"]: check["state"] for check in verdict["checks"]}
        assert states["broadcast"] in ("fail", "degraded")

    def test_wrong_data_of_a_single_node_names_it_in_no_collective(self, folder: Path) -> None:
        for name in ("all_reduce", "damaged_all_reduce"):
            folder.mkdir(exist_ok=True)
            wrong = table(name, ["node5"], range(8), 400.0).replace("       0", "       5", 1)
            (folder / "node5.log").write_text(wrong)
            verdict = judged(folder)
            assert (suspects(verdict), verdict["state"]) == (set(), "fail")


def _tar(folder: Path) -> list[Path]:
    with tarfile.open(folder.with_suffix(".tgz"), "w:gz") as tar:
        tar.add(folder, arcname="whatever")
    return [folder.with_suffix(".tgz")]


def _zip(folder: Path) -> list[Path]:
    with zipfile.ZipFile(folder.with_suffix(".zip"), "w") as packed:
        for path in folder.iterdir():
            packed.write(path, path.name)
    return [folder.with_suffix(".zip")]


def _gzip(folder: Path) -> list[Path]:
    for path in list(folder.iterdir()):
        path.with_name(path.name + ".gz").write_bytes(gzip.compress(path.read_bytes()))
        path.unlink()
    return [folder]


def _files(folder: Path) -> list[Path]:
    return sorted(folder.iterdir())


class TestSources:
    @pytest.mark.parametrize("pack", [_tar, _zip, _gzip, _files])
    def test_packed_logs_and_single_files_have_the_verdict_of_their_folder(
        self, folder: Path, pack: Callable[[Path], list[Path]]
    ) -> None:
        paths = pack(corpus(folder, slow("node3")))
        verdict = judged(*paths)
        assert suspects(verdict) == {("node", "node3")}
        for log in verdict["suspects"][0]["evidence"]:
            assert any(path.name in log for path in paths)
            assert "node3" in Path(log).name

    def test_evidence_and_logs_together_are_a_list(self, folder: Path, tmp_path: Path) -> None:
        ours = sample_evidence.write(tmp_path / "evidence")
        corpus(folder, nodes=NODES[:4])
        done = accept("judge", ours, folder, "--json")
        assert [one["origin"] != "" for one in json.loads(done.out)] == [False, True]

    @pytest.mark.parametrize("typed", ["{}//", "./", "././/"])
    def test_names_of_files_are_valid_however_their_folder_is_typed(
        self, folder: Path, monkeypatch: pytest.MonkeyPatch, typed: str
    ) -> None:
        corpus(folder, nodes=NODES[:4])
        (folder / "README.md").write_text("a,b\n")
        monkeypatch.chdir(folder)
        done = accept("judge", typed.format(folder), "--json")
        (name,) = [one["file"] for one in json.loads(done.out)["skipped"]]
        assert name == str(Path(name))
        assert Path(name).samefile("README.md")

    def test_other_files_are_left_out_and_listed(self, folder: Path) -> None:
        corpus(folder, nodes=NODES[:4])
        (folder / "summary.csv").write_text("a,b\n")
        (folder / "core.bin").write_bytes(b"\0" * 100)
        for name, start in (
            ("logs.tar.zst", b"\x28\xb5\x2f\xfd"),
            ("logs.7z", b"7z\xbc\xaf\x27\x1c"),
        ):
            (folder / name).write_bytes(start + b"\x04\0A\0\0hello\n")
        (folder / "result.json").write_text('{"nccl_version": 1}')
        done = accept("judge", folder)
        assert "Left out: 5 files" in done.out
        listed = {Path(one["file"]).name: one["reason"] for one in judged(folder)["skipped"]}
        assert listed["summary.csv"] == NoLog.NO_TABLE
        assert listed["core.bin"] == NoLog.BINARY
        assert listed["logs.tar.zst"] == listed["logs.7z"] == NoLog.PACKED
        assert listed["result.json"] == NoLog.NO_RESULTS

    def test_copies_are_ignored(self, folder: Path) -> None:
        corpus(folder, slow("node3", share=0.97))
        before = judged(folder)
        with tarfile.open(folder.with_suffix(".tgz"), "w:gz") as tar:
            tar.add(folder, arcname="logs")
        shutil.copytree(folder, folder / "backup")
        shutil.move(folder.with_suffix(".tgz"), folder / "logs.tgz")
        after = judged(folder)
        assert after["run"] == before["run"]
        assert after["origin"] == before["origin"]
        assert suspects(after) == suspects(before)
        assert all("a copy of" in one["reason"] for one in after["skipped"])


def single(folder: Path, **of_node3: Any) -> Path:
    """Write logs of every node alone, with a difference on node3."""
    folder.mkdir()
    for node in NODES:
        usual: dict[str, Any] = {"gpus": range(8), "busbw": 480.0}
        (folder / f"{node}.log").write_text(
            table("all_reduce", [node], **usual | (of_node3 if node == "node3" else {}))
        )
    return folder


class TestGpusOfHosts:
    def test_no_gpu_is_missing_on_a_host_with_logs_of_smaller_jobs_only(self, folder: Path) -> None:
        single(folder, gpus=range(4))
        for node in NODES[:2]:
            (folder / f"{node}-4.log").write_text(
                table("all_reduce", [node], gpus=range(4), busbw=480.0)
            )
        assert suspects(judged(folder)) == set()

    @pytest.mark.parametrize("gpus", [4, 7])
    def test_a_host_that_used_fewer_gpus_than_others_is_not_accused(
        self, folder: Path, gpus: int
    ) -> None:
        verdict = judged(single(folder, gpus=range(gpus), busbw=280.0), options=EXPECTED)
        assert (verdict["suspects"], verdict["exit"]) == ([], 7)

    def test_a_host_with_fewer_ranks_in_one_log_is_named_but_not_accused(
        self, folder: Path
    ) -> None:
        folder.mkdir()
        text = table("all_reduce", NODES[:4], range(8), 300.0, missing=4)
        (folder / "all.log").write_text(text)
        verdict = judged(folder)
        assert (verdict["suspects"], causes(verdict) & {"gpu-missing"}) == ([], set())
        assert any(
            note.startswith(f"{NODES[3]} took part with 4 GPUs") for note in verdict["notes"]
        )

    def test_hosts_that_were_measured_differently_are_reported(self, folder: Path) -> None:
        verdict = judged(single(folder, sizes=(2 << 30, TOP)), options=EXPECTED)
        assert (verdict["exit"], verdict["suspects"]) == (7, [])
        finding = verdict["checks"][0]["findings"][0]
        assert (finding["state"], finding["hosts"]) == ("inconclusive", ["node3"])

    @pytest.mark.parametrize("machine", ["a100-8", "cpu", "a4-highgpu-8g"])
    def test_of_another_kind_than_the_machine_has(self, folder: Path, machine: str) -> None:
        verdict = judged(single(folder), options=("--machine", machine))
        assert verdict["exit"] == 3
        assert verdict["suspects"] == [] or machine == "a4-highgpu-8g"
        finding = verdict["checks"][0]["findings"][0]
        assert finding["cause"] == "inventory-mismatch"

    def test_one_host_of_another_kind_than_the_machine_has(self, folder: Path) -> None:
        single(folder, device="NVIDIA A100-SXM4-80GB")
        assert suspects(judged(folder, options=("--machine", "h100-8"))) == {("node", "node3")}

    def test_kinds_are_never_compared_with_each_other(self, folder: Path) -> None:
        folder.mkdir()
        for number in range(16):
            old = number % 4 == 0
            device = "NVIDIA A100-SXM4-80GB" if old else DEVICE
            text = table("all_reduce", [f"n{number}"], range(8), 230 if old else 480, device=device)
            (folder / f"n{number}.log").write_text(text)
        verdict = judged(folder)
        assert verdict["suspects"] == []
        assert any("the GPUs differ" in note for note in verdict["notes"])


class TestMeasuredAgain:
    @staticmethod
    def runs(folder: Path, slow: int, nodes: Sequence[str] = NODES) -> Path:
        """Write five logs of every node alone; of node3, this many are slow."""
        folder.mkdir()
        for node in nodes:
            for number in range(5):
                bad = node == "node3" and number < slow
                busbw = (280.0 if bad else 480.0) + number / 10
                text = table("all_reduce", [node], range(8), busbw)
                (folder / f"{node}-{number}.log").write_text(text)
        return folder

    @staticmethod
    def intermittent(verdict: dict[str, Any]) -> list[tuple[str, list[str], list[str]]]:
        """Return state, hosts and names of logs of the findings about intermittent slowness."""
        return [
            (f["state"], f["hosts"], [Path(log).name for log in f["evidence"]])
            for check in verdict["checks"]
            for f in check["findings"]
            if f.get("cause") == "intermittent"
        ]

    @pytest.mark.parametrize("slow", [2, 4])
    def test_a_node_that_is_slow_at_times(self, folder: Path, slow: int) -> None:
        (one,) = judged(self.runs(folder, slow), options=EXPECTED)["suspects"]
        assert (one["name"], one["cause"]) == ("node3", "intermittent")
        assert f"slow in {slow} of 5 executions" in one["why"]

    def test_a_node_that_was_slow_once_is_reported(self, folder: Path) -> None:
        verdict = judged(self.runs(folder, 1), options=EXPECTED)
        assert (verdict["state"], verdict["suspects"]) == ("pass", [])
        assert self.intermittent(verdict) == [("pass", ["node3"], ["node3-0.log"])]

    def test_a_node_without_peers_is_compared_with_itself(self, folder: Path) -> None:
        verdict = judged(self.runs(folder, 2, ["node3"]), options=EXPECTED)
        assert verdict["state"] == "inconclusive"
        logs = ["node3-0.log", "node3-1.log"]
        assert self.intermittent(verdict) == [("inconclusive", ["node3"], logs)]


class TestMachine:
    def test_the_name_of_the_gpu_selects_the_machine(self, folder: Path) -> None:
        verdict = judged(corpus(folder))
        assert verdict["gpuTested"] is True
        assert any("machine" in note for note in verdict["notes"])

    @pytest.mark.parametrize(("speed", "state"), [(470.0, "pass"), (150.0, "inconclusive")])
    @pytest.mark.parametrize("machine", [None, "h100-8", "a3-megagpu-8g", "p5.48xlarge"])
    def test_a_table_that_ends_below_the_size_of_the_bound_passes_only_if_it_reaches_it(
        self, tmp_path: Path, machine: str | None, speed: float, state: str
    ) -> None:
        log = tmp_path / "one.log"
        log.write_text(table("all_reduce", ["a"], range(8), speed))
        verdict = judged(log, options=("--machine", machine) if machine else ())
        assert TOP < 8 << 30  # the size of the bound
        assert (verdict["state"], "size-not-measured" in causes(verdict)) == (
            state,
            state != "pass",
        )

    def test_logs_without_gpus_select_the_machine_without_gpus(self, folder: Path) -> None:
        folder.mkdir()
        text = table("all_reduce", ["a", "b"], (0, 1), 20.0, device="CPU")
        (folder / "x.log").write_text(text.replace("[0000:10:00]", "[0x00]"))
        verdict = judged(folder)
        assert verdict["machine"] == "cpu"
        assert verdict["gpuTested"] is False

    def test_evidence_is_compared_with_the_named_machine(self, tmp_path: Path) -> None:
        ours = sample_evidence.write(tmp_path / "evidence")
        assert judged(ours, options=("--machine", "cpu"))["machine"] == "cpu"


def error_of(*arguments: object) -> str:
    """Judge logs that are refused; return the code of the error."""
    done = accept("judge", *arguments)
    assert (done.code, done.out) == (6, "")
    return done.error


class TestRefused:
    @pytest.mark.parametrize("content", [b"", b"text\n", b"\0x" * 5000, b'{"nccl": 1}'])
    def test_a_named_file_that_is_not_a_log(self, tmp_path: Path, content: bytes) -> None:
        (tmp_path / "file.log").write_bytes(content)
        assert error_of(tmp_path / "file.log") == Code.LOGS_NOT_A_LOG

    def test_one_such_file_among_logs(self, folder: Path) -> None:
        corpus(folder, nodes=NODES[:3])
        (folder / "notes.txt").write_text("x")
        done = accept("judge", *folder.iterdir())
        assert (done.code, done.error) == (6, Code.LOGS_NOT_A_LOG)
        assert "notes.txt" in done.err

    def test_a_folder_without_any(self, tmp_path: Path) -> None:
        (tmp_path / "x.txt").write_text("x")
        assert error_of(tmp_path) == Code.EVIDENCE_NONE
        (tmp_path / "x.rar").write_bytes(b"Rar!\x1a\x07\x01\0")
        assert f"{tmp_path}/x.rar is {NoLog.PACKED}" in accept("judge", tmp_path).err

    def test_logs_that_end_before_the_list_of_devices(self, folder: Path) -> None:
        folder.mkdir()
        (folder / "a.log").write_text("a: Test NCCL failure common.cu:1 'x'\n")
        assert error_of(folder) == Code.LOGS_NOTHING_MEASURED

    def test_collectives_that_no_check_judges(self, folder: Path) -> None:
        folder.mkdir()
        (folder / "a.log").write_text(table("broadcast", ["a"], (0, 1), 90.0))
        assert error_of(folder) == Code.LOGS_NOT_JUDGED

    @pytest.mark.parametrize(
        ("header", "code"),
        [
            (
                {"GNU.sparse.major": "1", "GNU.sparse.minor": "0", "GNU.sparse.realsize": "many"},
                Code.EVIDENCE_NONE,
            ),
            ({"size": "9" * 30}, Code.ARCHIVE_DAMAGED),
            ({"size": "-1"}, Code.ARCHIVE_DAMAGED),
        ],
    )
    def test_an_archive_with_wrong_headers(
        self, tmp_path: Path, header: dict[str, str], code: Code
    ) -> None:
        with tarfile.open(tmp_path / "logs.tar", "w", format=tarfile.PAX_FORMAT) as tar:
            member = tarfile.TarInfo("a.log")
            member.pax_headers = header
            tar.addfile(member)
            tar.addfile(tarfile.TarInfo("b.log"))
        assert error_of(tmp_path / "logs.tar", "-m", "h100-8") == code

    def test_a_damaged_archive(self, folder: Path, tmp_path: Path) -> None:
        corpus(folder, nodes=NODES[:3])
        with tarfile.open(tmp_path / "logs.tgz", "w:gz") as tar:
            tar.add(folder, arcname="x")
        whole = (tmp_path / "logs.tgz").read_bytes()
        for cut in range(20, len(whole), max(1, len(whole) // 7)):
            (tmp_path / "cut.tgz").write_bytes(whole[:cut])
            assert error_of(tmp_path / "cut.tgz")

    def test_names_outside_of_the_folder_write_nothing(self, tmp_path: Path) -> None:
        with zipfile.ZipFile(tmp_path / "bad.zip", "w") as packed:
            packed.writestr("../outside.log", table("all_reduce", ["a"], (0, 1), 90.0))
        assert judged(tmp_path / "bad.zip")["hosts"] == ["a"]
        assert not list(tmp_path.rglob("outside.log"))

    def test_pipes_in_a_folder_are_not_waited_for(self, folder: Path) -> None:
        corpus(folder, fine, nodes=NODES[:3])
        os.mkfifo(folder / "pipe")
        assert judged(folder)["hosts"] == list(NODES[:3])


@pytest.mark.rare
def test_a_large_log_is_read_in_bounded_memory(tmp_path: Path) -> None:
    """The log has 48 MB of NCCL's lines around a table; the address space is limited to 250 MB."""
    text = table("all_reduce", ["a"], range(8), 480.0)
    line = "a:1:1 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[1] via P2P/IPC\n" * 20_000
    with (tmp_path / "large.log").open("w") as file:
        for _ in range(20):
            file.write(line)
        file.write(text)
        for _ in range(20):
            file.write(line)
    limit = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (250_000_000, limit[1]))
    try:
        done = program("judge", tmp_path / "large.log", "--json")
    finally:
        resource.setrlimit(resource.RLIMIT_AS, limit)
    assert json.loads(done.out)["hosts"] == ["a"]


class TestExcerpts:
    """Logs that people paste: figures and a reason, but never a pass and never an accusation."""

    @pytest.mark.parametrize(
        ("name", "check", "measured"),
        [
            ("aws-batch", "all-reduce", "483.1 GB/s at 16G"),
            ("aws-nccl-tests", "all-reduce", "78.33 GB/s at 2G"),
            ("cscs-sarus", "all-reduce", "22.86 GB/s at 128M"),
            ("deepops-kubernetes", "all-reduce", "188.5 GB/s at 4G"),
            ("deepops-slurm", "all-reduce", "191.1 GB/s at 4G"),
            ("eks-karpenter", "all-reduce", "2 GB/s at 1G"),
            ("gke-a3-mega", "all-gather", "188.7 GB/s at 8G"),
            ("gke-rdma", "all-gather", "260 GB/s at 8G"),
        ],
    )
    def test_published_logs_give_their_figure(self, name: str, check: str, measured: str) -> None:
        verdict = judged(PUBLISHED / f"{name}.log")
        found = {one["check"]: one for one in verdict["checks"]}[check]
        assert found["measured"].startswith(measured)
        assert (verdict["exit"], verdict["suspects"]) == (7, [])

    def test_the_output_of_another_program_is_refused(self) -> None:
        assert error_of(PUBLISHED / "aws-nccom-slurm.log") == Code.LOGS_NOT_A_LOG

    def test_a_table_of_unknown_hosts_is_compared_with_expectations_but_never_passes(self) -> None:
        path = PUBLISHED / "gke-a3-mega.log"
        slow = judged(path, options=("--expect", "all-gather@8G>=300"))
        good = judged(path, options=("--expect", "all-gather@8G>=100"))
        assert (slow["exit"], slow["suspects"]) == (3, [])
        assert good["state"] != "pass"
        assert good["exit"] != 0

    def test_a_cut_off_log_beside_logs_of_another_collective_accuses_nobody(
        self, folder: Path
    ) -> None:
        folder.mkdir()
        for host in ("node1", "node2"):
            (folder / f"{host}.log").write_text(table("all_gather", [host], range(8), 480.0))
        text = table("all_reduce", ["node3"], range(8), 480.0)
        (folder / "node3.log").write_text(text.partition("# Out of bounds")[0])
        verdict = judged(folder)
        assert verdict["suspects"] == []
        assert "partial-log" in causes(verdict)

    def test_a_log_never_passes_wherever_it_is_cut(self, folder: Path) -> None:
        folder.mkdir()
        tables = [table(name, ["a"], range(8), 480.0) for name in ("all_reduce", "all_gather")]
        whole = "".join(tables)
        ends = [len(tables[0]), len(whole)]
        # After its last line, a cut cannot be seen; before its first row, nothing was measured.
        first_row = whole.index("\n", whole.index("float")) + 1
        for at in range(first_row, len(whole) - 1, 97):
            if any(end - 2 <= at <= end for end in ends):
                continue
            (folder / "a.log").write_text(whole[:at])
            verdict = judged(folder, options=EXPECTED)
            assert (verdict["exit"], verdict["suspects"]) == (7, []), whole[:at][-200:]
            assert "partial-log" in causes(verdict), whole[:at][-200:]

    def test_unchecked_results_never_pass_and_accuse_nobody(self, folder: Path) -> None:
        folder.mkdir()
        text = table("all_reduce", ["a"], range(8), 480.0, checked=False)
        (folder / "a.log").write_text(text)
        verdict = judged(folder, options=EXPECTED)
        assert (verdict["exit"], verdict["suspects"]) == (7, [])
        assert "results-unchecked" in causes(verdict)

    def test_a_collective_that_nothing_shows_must_be_named(self, folder: Path) -> None:
        folder.mkdir()
        text = table("all_reduce", ["a"], (0,), 480.0)
        text = text[text.index("# nThread") :].partition("# Collective test concluded")[0]
        (folder / "a.log").write_text(text)
        assert error_of(folder) == Code.LOGS_UNKNOWN_COLLECTIVE
        verdict = judged(folder, options=("--collective", "all-reduce"))
        assert "all-reduce" in {check["check"] for check in verdict["checks"]}
        assert any("--collective" in note for note in verdict["notes"])

    def test_executions_with_other_settings_are_not_repetitions(self, folder: Path) -> None:
        folder.mkdir()
        for number, algorithm in enumerate(("Ring", "Tree", "NVLS")):
            line = f"a:1:1 [0] NCCL INFO NCCL_ALGO set by environment to {algorithm}.\n"
            for repeated in range(2):
                text = table("all_reduce", ["a"], range(8), 480.0 - 90 * number - repeated)
                (folder / f"run-{number}{repeated}.log").write_text(line + text)
        verdict = judged(folder)
        assert verdict["suspects"] == []
        assert "intermittent" not in causes(verdict)

    def test_a_network_that_no_log_shows_is_reported_once(self, folder: Path) -> None:
        verdict = judged(corpus(folder), options=("--machine", "h100-8", *EXPECTED))
        assert sum("network" in note for note in verdict["notes"]) == 1
        assert "no-measurement" not in causes(verdict)


class TestNeighbors:
    """Files beside the logs never accuse a host, and only known lines turn a pass into a doubt."""

    #: Errors of launchers, as sources, notes and logs of the system quote them.
    ERRORS = "".join(
        f"{line}\n"
        for line in (
            "[ 12.3] No space left on device",
            "ssh: connect to host node9 port 22: Connection refused",
            "srun: error: Node failure on node8",
            'assert "There are not enough slots available"',
        )
    )

    #: Files whose names show that they describe a host, or that they are not logs.
    CONTEXT = (
        *("sysinfo/dmesg_node1.log", "dmesg_node1.log", "dmesg/node1_node2.log", "README.md"),
        *("nvidia-smi_node3.log", "nvidia-smi/G0_node3.log", "test_launch.py", "client-h1.js"),
        "ibstat-node2.txt",
    )
    OTHERS = ("launch.txt", "node1.log", "core.tar.bz2")

    @staticmethod
    def write(folder: Path, name: str, text: str) -> None:
        path = folder / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
        if name.endswith(".bz2"):
            path.unlink()
            with tarfile.open(path, "w:bz2") as tar:
                for inner in ("launcher_errors.py", "notes"):
                    member = tarfile.TarInfo(f"core/{inner}")
                    member.size = len(text)
                    tar.addfile(member, io.BytesIO(text.encode()))

    @pytest.mark.parametrize(
        ("names", "text"),
        [((*CONTEXT, *OTHERS), ""), ((*CONTEXT, *OTHERS), "hello\n"), (CONTEXT, ERRORS)],
    )
    def test_files_that_are_not_logs_change_nothing(
        self, folder: Path, names: Sequence[str], text: str
    ) -> None:
        before = judged(corpus(folder, nodes=NODES[:4]), options=EXPECTED)
        for name in names:
            self.write(folder, name, text)
        after = judged(folder, options=EXPECTED)
        assert {key: after[key] for key in ("state", "suspects", "hosts", "run", "checks")} == {
            key: before[key] for key in ("state", "suspects", "hosts", "run", "checks")
        }
        assert len(after["skipped"]) >= len(names)

    @pytest.mark.parametrize("name", OTHERS)
    def test_errors_of_a_launcher_in_a_file_that_may_be_a_log_leave_it_open(
        self, folder: Path, name: str
    ) -> None:
        before = judged(corpus(folder, nodes=NODES[:4]), options=EXPECTED)
        self.write(folder, name, self.ERRORS)
        after = judged(folder, options=EXPECTED)
        assert after["state"] == "inconclusive"
        assert causes(after) - causes(before) == {"job-failed"}
        assert (after["suspects"], after["hosts"]) == ([], before["hosts"])

    def test_without_any_log(self, folder: Path) -> None:
        folder.mkdir()
        (folder / "h2.txt").write_text(self.ERRORS)
        (folder / "test_launch.py").write_text(self.ERRORS)
        assert error_of(folder) in (Code.LOGS_NOTHING_MEASURED, Code.EVIDENCE_NONE)

    def test_an_error_inside_the_output_of_a_launch_counts(self, folder: Path) -> None:
        corpus(folder, nodes=NODES[:4])
        (folder / "failed.out").write_text(
            "node9:7:7 [0] NCCL INFO Bootstrap\nsrun: error: Node failure on node9\n"
        )
        assert suspects(judged(folder, options=EXPECTED)) == {("node", "node9")}
