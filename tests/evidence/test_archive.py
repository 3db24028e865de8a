"""Evidence archives are untrusted: unpacking stays in its folder and within its size limit."""

from __future__ import annotations

import gzip
import hashlib
import io
import lzma
import tarfile
import tempfile
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
from tests.factories import sample_evidence
from tests.factories.disks import full_disk

from accept.core import evidence
from accept.core.error_codes import Code
from accept.core.errors import BadEvidence
from accept.evidence import archive


def packed(*members: tuple[tarfile.TarInfo, bytes]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for member, content in members:
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    return buffer.getvalue()


def member(name: str, kind: bytes = tarfile.REGTYPE, link: str = "") -> tarfile.TarInfo:
    made = tarfile.TarInfo(name)
    made.type, made.linkname = kind, link
    return made


def unpack(raw: bytes, target: Path) -> None:
    with tempfile.NamedTemporaryFile() as file:
        file.write(raw)
        file.flush()
        archive.unpack(Path(file.name), target, source="evidence.tar")


def refused(raw: bytes, target: Path) -> Code:
    """Expect that an archive is refused with advice; return the code."""
    with pytest.raises(BadEvidence) as error:
        unpack(raw, target)
    assert error.value.hint
    return error.value.code


def tree(folder: Path) -> dict[str, bytes]:
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


@pytest.mark.parametrize("compress", [bytes, gzip.compress], ids=["plain", "gzip"])
def test_evidence_is_unpacked_unmodified(tmp_path: Path, compress: type[bytes]) -> None:
    folder = sample_evidence.write(tmp_path / "evidence")
    path = sample_evidence.archive(folder, tmp_path / "evidence.tar")
    path.write_bytes(compress(path.read_bytes()))
    archive.unpack(path, tmp_path / "there", source=str(path))
    assert tree(tmp_path / "there" / "evidence") == tree(folder)
    assert evidence.check_checksums(tmp_path / "there" / "evidence") == ()


def test_unpacked_evidence_is_readable_only_by_its_owner(tmp_path: Path) -> None:
    open_to_all = member("evidence/logs/10-script/0-0.log")
    open_to_all.mode = 0o7777
    unpack(packed((member("evidence", tarfile.DIRTYPE), b""), (open_to_all, b"x")), tmp_path / "in")
    modes = {path.stat().st_mode & 0o7777 for path in tmp_path.rglob("*") if path.is_file()}
    assert modes == {0o600}
    folders = [path for path in (tmp_path / "in").rglob("*") if path.is_dir()]
    assert {path.stat().st_mode & 0o7777 for path in folders} == {0o700}


def test_unpacking_does_not_need_the_extraction_filters_of_newer_pythons(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def extract(*_: object, **__: object) -> None:
        raise TypeError("TarFile.extract() got an unexpected keyword argument 'filter'")

    for name in ("extract", "extractall"):
        monkeypatch.setattr(tarfile.TarFile, name, extract)
    unpack(packed((member("evidence/plan.json"), b"{}")), tmp_path / "target")
    assert tree(tmp_path / "target") == {"evidence/plan.json": b"{}"}


@pytest.mark.parametrize("defect", [TypeError, AttributeError, AssertionError, KeyError])
def test_a_defect_of_the_program_is_not_reported_as_damage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, defect: type[Exception]
) -> None:
    def fails(_: tarfile.TarInfo) -> None:
        raise defect("a defect")

    monkeypatch.setattr(archive, "_refuse", fails)
    with pytest.raises(defect):
        unpack(WHOLE, tmp_path / "target")


def test_a_file_that_is_in_the_archive_twice_is_refused(tmp_path: Path) -> None:
    raw = packed((member("evidence/plan.json"), b"{}"), (member("evidence/plan.json"), b"[]"))
    assert refused(raw, tmp_path / "target") is Code.ARCHIVE_UNSAFE


def test_a_file_below_another_file_is_damage(tmp_path: Path) -> None:
    raw = packed((member("evidence"), b"x"), (member("evidence/plan.json"), b"{}"))
    assert refused(raw, tmp_path / "target") is Code.ARCHIVE_DAMAGED


def test_headers_that_lead_to_each_other_a_thousand_times_are_damage(tmp_path: Path) -> None:
    head = member("x", tarfile.XHDTYPE)
    head.size = 1
    raw = (head.tobuf() + b"\n" + bytes(511)) * 2000
    assert refused(raw, tmp_path / "target") is Code.ARCHIVE_DAMAGED


def test_a_full_disk_is_not_reported_as_damage(tmp_path: Path) -> None:
    path = tmp_path / "evidence.tar"
    path.write_bytes(packed((member("evidence/plan.json"), b"x" * 5000)))
    with full_disk(), pytest.raises(BadEvidence) as error:
        archive.unpack(path, tmp_path / "target", source="evidence.tar")
    assert error.value.code is Code.ARCHIVE_DISK


@pytest.mark.parametrize(
    "evil",
    [
        member("../outside"),
        member("evidence/../../outside"),
        member("/outside"),
        member("evidence/link", tarfile.SYMTYPE, "../../outside"),
        member("evidence/link", tarfile.SYMTYPE, "plan.json"),
        member("evidence/link", tarfile.LNKTYPE, "/etc/hostname"),
        member("evidence/pipe", tarfile.FIFOTYPE),
        member("evidence/null", tarfile.CHRTYPE),
        member("evidence/disk", tarfile.BLKTYPE),
    ],
    ids=lambda m: f"{m.name} {m.type!r}",
)
def test_members_that_evidence_never_has_are_refused(tmp_path: Path, evil: tarfile.TarInfo) -> None:
    raw = packed((member("evidence/plan.json"), b"{}"), (evil, b""))
    assert refused(raw, tmp_path / "in" / "target") is Code.ARCHIVE_UNSAFE
    assert tree(tmp_path) == {"in/target/evidence/plan.json": b"{}"}


def test_a_bomb_is_refused_before_it_is_written(tmp_path: Path) -> None:
    raw = gzip.compress(packed((member("evidence/plan.json"), bytes(100 << 20))))
    assert len(raw) < 1 << 20
    assert refused(raw, tmp_path / "target") is Code.ARCHIVE_TOO_LARGE
    assert tree(tmp_path) == {}


def test_a_bomb_of_many_files_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archive, "MOST_FILES", 10)
    raw = packed(*((member(f"evidence/{n}"), b"") for n in range(20)))
    assert refused(raw, tmp_path / "target") is Code.ARCHIVE_TOO_LARGE
    assert len(tree(tmp_path)) == 10


def test_a_file_that_claims_more_than_the_disk_has_is_refused(tmp_path: Path) -> None:
    head = member("evidence/records.jsonl")
    head.size = 1 << 40
    assert refused(head.tobuf(), tmp_path / "target") is Code.ARCHIVE_TOO_LARGE


def test_a_sparse_file_is_refused(tmp_path: Path) -> None:
    head = member("evidence/records.jsonl")
    head.pax_headers = {"GNU.sparse.map": "0,1", "GNU.sparse.size": str(1 << 40)}
    raw = head.tobuf(tarfile.PAX_FORMAT) + bytes(2048)
    assert refused(raw, tmp_path / "target") is Code.ARCHIVE_UNSAFE


def test_a_header_of_gigabytes_is_not_read(tmp_path: Path) -> None:
    head = member("x", tarfile.XHDTYPE)
    head.size = 1 << 32
    assert refused(head.tobuf() + bytes(10_000), tmp_path / "target") is Code.ARCHIVE_DAMAGED


WHOLE = packed((member("evidence/plan.json"), b"x" * 3000))


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"text",
        b"\x1f\x8b",
        b"\x1f\x8b" + b"x" * 500,
        lzma.compress(WHOLE),
        WHOLE[:2000],
        WHOLE[: 512 + 3072],
        WHOLE[: 512 + 3072] + b"x" * 512,
        gzip.compress(WHOLE, mtime=0)[:80],
    ],
)
def test_an_incomplete_archive_is_refused(tmp_path: Path, raw: bytes) -> None:
    assert refused(raw, tmp_path / "target") is Code.ARCHIVE_DAMAGED


class TestADownload:
    CONTENT = bytes(range(256)) * 400

    def download(
        self, part: Path, sent: bytes, *, pieces: int = 1000, size: int | None = None
    ) -> list[int]:
        """Download `pieces` bytes over each connection; return the offsets where they started."""
        starts = []

        def read_from(at: int, sink: Callable[[bytes], None]) -> None:
            starts.append(at)
            sink(sent[at : at + pieces])
            raise ConnectionError("cut")

        announced = archive.Announced(
            size=len(self.CONTENT) if size is None else size,
            digest=hashlib.sha256(self.CONTENT).hexdigest(),
        )
        archive.download(read_from, part, announced, source="the archive", say=print)
        return starts

    def test_continues_for_as_long_as_bytes_arrive(self, tmp_path: Path) -> None:
        part = tmp_path / "part"
        assert self.download(part, self.CONTENT) == list(range(0, len(self.CONTENT), 1000))
        assert part.read_bytes() == self.CONTENT

    def test_continues_what_an_earlier_one_left(self, tmp_path: Path) -> None:
        part = tmp_path / "part"
        part.write_bytes(self.CONTENT[:500])
        assert self.download(part, self.CONTENT, pieces=1 << 20) == [500]
        assert part.read_bytes() == self.CONTENT

    def test_starts_again_if_the_part_is_too_large(self, tmp_path: Path) -> None:
        part = tmp_path / "part"
        part.write_bytes(self.CONTENT + b"more")
        assert self.download(part, self.CONTENT, pieces=1 << 20) == [0]

    def test_ends_and_keeps_the_part_if_no_more_arrives(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(archive, "_PAUSES", (0.0, 0.0, 0.0))
        part = tmp_path / "part"
        with pytest.raises(BadEvidence) as error:
            self.download(part, self.CONTENT[:2500])
        assert error.value.code is Code.ARCHIVE_INCOMPLETE
        assert part.read_bytes() == self.CONTENT[:2500]

    @pytest.mark.parametrize(
        "sent", [CONTENT[:-1] + b"x", CONTENT + b"more"], ids=["changed", "more"]
    )
    def test_that_differs_from_the_announcement_is_removed(
        self, tmp_path: Path, sent: bytes
    ) -> None:
        part = tmp_path / "part"
        with pytest.raises(BadEvidence) as error:
            self.download(part, sent, pieces=1 << 20)
        assert error.value.code is Code.ARCHIVE_CHANGED
        assert not part.exists()

    def test_that_is_too_large_is_not_started(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        with pytest.raises(BadEvidence) as error:
            self.download(tmp_path / "part", b"", size=archive.MOST_BYTES + 1)
        assert error.value.code is Code.ARCHIVE_TOO_LARGE
        monkeypatch.setattr("shutil.disk_usage", lambda _: SimpleNamespace(free=0))
        with pytest.raises(BadEvidence) as error:
            self.download(tmp_path / "part", self.CONTENT)
        assert error.value.code is Code.ARCHIVE_DISK

    def test_reports_its_progress_if_it_is_large(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        monkeypatch.setattr(archive, "_LARGE", 1000)
        self.download(tmp_path / "part", self.CONTENT)
        assert len(capsys.readouterr().out.splitlines()) == 10


class TestEvidence:
    @staticmethod
    def unpacked(packed: Path) -> Path:
        target = packed.parent / "target"
        archive.unpack_evidence(packed, target, source="the archive")
        return target

    def test_arrives_complete(self, tmp_path: Path) -> None:
        left = sample_evidence.write(tmp_path / "left")
        target = self.unpacked(sample_evidence.archive(left, tmp_path / "a.tar"))
        assert evidence.check_checksums(target) == ()

    def test_that_was_modified_is_refused(self, tmp_path: Path) -> None:
        left = sample_evidence.write(tmp_path / "left")
        (left / sample_evidence.record().log).write_text("another\n", encoding="utf-8")
        packed = sample_evidence.archive(left, tmp_path / "a.tar")
        with pytest.raises(BadEvidence) as caught:
            self.unpacked(packed)
        assert caught.value.code is Code.EVIDENCE_CHANGED
        assert sorted(path.name for path in tmp_path.iterdir()) == ["a.tar", "left"]
