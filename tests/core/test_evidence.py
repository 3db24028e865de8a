"""The evidence folder: written completely, read strictly, packed at the end of a log."""

from __future__ import annotations

import base64
import errno
import hashlib
import os
import tarfile
import tracemalloc
import zlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from tests.factories import sample_evidence, verdicts
from tests.factories.disks import full_disk
from tests.factories.shell import run_program

from accept.core import evidence
from accept.core.error_codes import Code
from accept.core.errors import BadEvidence
from accept.core.records import Fact
from accept.core.report import write_judgement


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return sample_evidence.write(tmp_path / "evidence")


#: The function that reads each file.
READERS: dict[str, Callable[[Path], object]] = {
    evidence.PLAN: evidence.read_plan,
    evidence.RECORDS: lambda folder: tuple(evidence.read_records(folder)),
    evidence.RUN_END: evidence.read_run_end,
    evidence.VERDICT: evidence.read_verdict,
}


class TestFolder:
    def test_a_file_is_written_completely_or_not_at_all(self, tmp_path: Path) -> None:
        evidence.write(tmp_path / "a", "first")
        with pytest.raises(UnicodeEncodeError):
            evidence.write(tmp_path / "a", "second \udcff")
        assert (tmp_path / "a").read_text() == "first"

    @pytest.mark.parametrize("before", [None, "first"])
    def test_a_failed_write_leaves_no_other_file(self, tmp_path: Path, before: str | None) -> None:
        if before:
            (tmp_path / "a").write_text(before)
        with full_disk(free=100), pytest.raises(OSError) as error:  # noqa: PT011
            evidence.write(tmp_path / "a", "x" * 1000)
        assert error.value.errno == errno.EFBIG
        assert [path.read_text() for path in tmp_path.iterdir()] == ([before] if before else [])

    def test_a_report_on_a_full_disk_does_not_spoil_the_evidence(self, folder: Path) -> None:
        before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
        verdict = sample_evidence.verdict_of(sample_evidence.record())
        with full_disk(), pytest.raises(OSError) as error:  # noqa: PT011
            write_judgement(folder, sample_evidence.PLAN, verdict)
        assert error.value.errno == errno.EFBIG
        assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before
        assert evidence.check_checksums(folder) == ()

    @pytest.mark.parametrize("name", sorted(READERS))
    @pytest.mark.parametrize(
        "content", [b"", b"{}", b"[]", b"null", b"{", b"\xff", b"[" * 100_000, b'{"schema":"x"}']
    )
    def test_a_damaged_file_is_named_and_nothing_else_is_raised(
        self, folder: Path, name: str, content: bytes
    ) -> None:
        (folder / name).write_bytes(content)
        if name == evidence.RECORDS and not content:
            assert tuple(evidence.read_records(folder)) == ()
            return
        with pytest.raises(BadEvidence) as error:
            READERS[name](folder)
        assert error.value.code in (Code.EVIDENCE_DAMAGED, Code.EVIDENCE_UNREADABLE)
        assert name in error.value.message
        assert error.value.hint

    def test_a_file_larger_than_any_evidence_is_not_read(self, tmp_path: Path) -> None:
        with (tmp_path / evidence.RECORDS).open("wb") as file:
            file.truncate(1 << 40)
        with pytest.raises(BadEvidence) as error:
            tuple(evidence.read_records(tmp_path))
        assert error.value.code is Code.EVIDENCE_UNREADABLE

    def test_a_damaged_record_is_named_by_its_line(self, folder: Path) -> None:
        path = folder / evidence.RECORDS
        path.write_text(path.read_text() + '{"step":\n')
        with pytest.raises(BadEvidence, match=r"records\.jsonl:3"):
            tuple(evidence.read_records(folder))


#: Files that a judgement writes.
JUDGEMENT = (evidence.VERDICT, evidence.REPORT, evidence.JUNIT, evidence.CHECKSUMS)


class TestChecksums:
    def test_sha256sum_accepts_the_checksums(self, folder: Path) -> None:
        done = run_program(["sha256sum", "--check", "--strict", evidence.CHECKSUMS], cwd=folder)
        assert done.returncode == 0, done.stderr

    def test_cover_no_file_that_changes_no_judgement(self, folder: Path) -> None:
        # A copy of a bucket, and the folder to which pods write, have a manifest.
        written: dict[tuple[str, ...], int] = {(evidence.REPORT,): 0, (evidence.MANIFEST,): 0}
        # A killed writer left them, but no log.
        written |= {tuple(f"{name}.{16 * 'a'}.new" for name in JUDGEMENT): 0}
        for names, errors in (written | {("logs/10-script/0-1.log.new",): 1}).items():
            for name in names:
                (folder / name).write_text("another")
            assert len(evidence.check_checksums(folder)) == errors
            evidence.write_checksums(folder)
            assert (".new" in (folder / evidence.CHECKSUMS).read_text()) is bool(errors)

    def test_name_modified_and_missing_files(self, folder: Path) -> None:
        (folder / evidence.PLAN).write_text("{}")
        (folder / sample_evidence.record().log).unlink()
        assert evidence.check_checksums(folder) == (
            "logs/10-script/0-0.log is missing",
            "plan.json was modified (SHA-256 differs)",
        )

    def test_a_file_that_may_not_be_read_was_not_changed(
        self, folder: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        # A mode does not keep root out.
        def refuse(path: Path) -> str:
            raise PermissionError(errno.EACCES, "Permission denied", str(path))

        monkeypatch.setattr(evidence, "_sha256", refuse)
        with pytest.raises(BadEvidence, match="Permission denied") as error:
            evidence.check_checksums(folder)
        assert error.value.code is Code.EVIDENCE_UNREADABLE
        assert "owner and mode" in error.value.hint

    def test_a_file_that_is_listed_twice_is_an_error(self, folder: Path) -> None:
        listed = (folder / evidence.CHECKSUMS).read_text()
        (folder / evidence.CHECKSUMS).write_text(f"{'0' * 64}{listed[64:]}{listed}")
        assert len(evidence.check_checksums(folder)) == 1

    def test_missing_checksums_are_one_error(self, tmp_path: Path) -> None:
        folder = sample_evidence.write(tmp_path / "evidence", whole=False)
        (error,) = evidence.check_checksums(folder)
        assert error.startswith(evidence.CHECKSUMS)


class TestLogs:
    def test_archived_logs_are_read_in_blocks_of_whole_lines(self, folder: Path) -> None:
        text = b"".join(b"line %d\n" % n for n in range(300_000))
        for name in ("0-0.log", "0-1.log"):
            (folder / "logs" / "20-more").mkdir(exist_ok=True)
            (folder / "logs" / "20-more" / name).write_bytes(text)
        evidence.archive_logs(folder, "20-more")
        assert not (folder / "logs" / "20-more").exists()
        blocks = list(evidence.open_log(folder, "logs/20-more/0-1.log") or ())
        assert b"".join(blocks) == text
        assert len(blocks) > 1
        assert all(block.endswith(b"\n") for block in blocks)

    @pytest.mark.parametrize(
        ("kind", "target"),
        [
            (tarfile.SYMTYPE, "0-0.log"),
            (tarfile.SYMTYPE, "/etc/hostname"),
            (tarfile.LNKTYPE, "0-0.log"),
            (tarfile.FIFOTYPE, ""),
        ],
    )
    def test_links_and_pipes_in_an_archive_are_not_opened(
        self, folder: Path, kind: bytes, target: str
    ) -> None:
        member = tarfile.TarInfo("0-0.log")
        member.type, member.linkname = kind, target
        with tarfile.open(folder / "logs" / "20-more.tar", "w") as archive:
            archive.addfile(member)
        assert evidence.open_log(folder, "logs/20-more/0-0.log") is None

    def test_a_pipe_in_the_place_of_an_archive_is_not_waited_for(self, folder: Path) -> None:
        os.mkfifo(folder / "logs" / "20-more.tar")
        assert evidence.open_log(folder, "logs/20-more/0-0.log") is None

    def test_paths_outside_the_logs_are_not_opened(self, folder: Path) -> None:
        outside = ("logs/../plan.json", "logs/x/../../plan.json", "/etc/passwd", "plan.json")
        missing = ("", "logs", "logs/", "logs/x/9-9.log", "logs/x/" + "9" * 5000)
        for log in (*outside, *missing, "logs/x/\0", "logs/x/\ud800"):
            assert evidence.open_log(folder, log) is None, log


def crafted(raw: bytes) -> list[bytes]:
    """Return packed lines with any content and a correct checksum."""
    coded = base64.b64encode(zlib.compress(raw))
    begin = f"-----BEGIN ACCEPT EVIDENCE----- {hashlib.sha256(raw).hexdigest()}".encode()
    return [begin, coded, b"-----END ACCEPT EVIDENCE-----"]


class TestPacked:
    """The evidence at the end of a log. `packed` of tests/fuzz damages it."""

    def test_the_last_one_counts(self) -> None:
        first = sample_evidence.console(sample_evidence.record(status=1))
        text = first + sample_evidence.console(sample_evidence.record())
        _, records, _ = evidence.unpack(text.encode().splitlines(), "pod.log")
        assert records[1].exit == 0

    def test_too_many_records_are_left_out(self) -> None:
        # Digests, because repeated text would compress too well.
        noise = (hashlib.sha256(str(n).encode()).hexdigest() for n in range(30_000))
        facts = tuple(Fact(name="noise", value=text, check="script") for text in noise)
        big = replace(sample_evidence.record(), facts=facts)
        text = evidence.pack(
            sample_evidence.PLAN,
            [big, big],
            sample_evidence.verdict_of(sample_evidence.record()),
        )
        assert len(text) <= evidence.PACKED_LIMIT
        with pytest.raises(BadEvidence) as error:
            evidence.unpack(text.encode().splitlines(), "pod.log")
        assert error.value.code is Code.EVIDENCE_TOO_LARGE_FOR_LOG

    @pytest.mark.parametrize(
        "raw",
        [
            b"[]", b"3", b'"x"', b"null", b'{"records": 3}', b'{"records": [[]]}', b"{}",
            # Bombs. Values are counted before they need memory.
            b" " * (200 << 20), b"[" * 1_000_000, b"9" * 100_000, b"[" + b"[]," * 5_000_000 + b"3]",
        ],
        ids=lambda raw: repr(raw[:9]),
    )  # fmt: skip
    def test_other_content_with_a_correct_checksum_is_damaged(self, raw: bytes) -> None:
        with pytest.raises(BadEvidence) as error:
            evidence.unpack(crafted(raw), "pod.log")
        assert error.value.code is Code.EVIDENCE_DAMAGED

    def test_endless_lines_are_not_kept_in_memory(self, tmp_path: Path) -> None:
        path = tmp_path / "pod.log"
        with path.open("wb") as file:
            file.truncate(256 << 20)
        tracemalloc.start()
        with path.open("rb") as lines, pytest.raises(BadEvidence) as error:
            evidence.unpack(lines, "pod.log")
        assert error.value.code is Code.EVIDENCE_NOT_PACKED
        assert tracemalloc.get_traced_memory()[1] < 32_000_000
        tracemalloc.stop()


def test_names_of_logs_sort_and_show_nodes_ranks_sizes_and_start() -> None:
    step = replace(verdicts.step(params={"min": "8G", "max": "8G"}), id="40-x")
    pair = evidence.log_path(step, 0, 4, hosts=("n1.dc", "n/2"), ranks=16, start=1.0)
    assert pair == "logs/40-x/00-0004-n1.dc-n_2-16r-all-reduce-8G-19700101T000001Z.log"
    many = replace(step, checks=("a", "b", "c"), params={"min": "8M", "max": "../8G"})
    rail = evidence.log_path(many, 1, 20, hosts=("a",) * 64, local_ranks=(3,), ranks=64)
    assert rail == "logs/40-x/01-0020-064n-64r-rank3-3-checks-8M-.._8G.log"
    paths = [evidence.log_path(step, wave, group) for wave in range(12) for group in range(101)]
    assert paths == sorted(paths)


def test_logs_are_listed_in_the_index(tmp_path: Path) -> None:
    folder = sample_evidence.write(tmp_path / "evidence")
    evidence.write_log_index(folder, evidence.read_records(folder))
    evidence.write_checksums(folder)
    assert "| 10-script/0-0.log | script | h0 |" in (folder / "logs" / "INDEX.md").read_text()
    assert evidence.check_checksums(folder) == ()


@pytest.mark.parametrize("log", ["one.log", ".", "/one.log", ""])
def test_a_log_outside_of_the_steps_is_not_sealed_by_an_archive(log: str) -> None:
    assert not evidence.is_sealed(log, {".tar", "logs/40-collectives.tar"})
