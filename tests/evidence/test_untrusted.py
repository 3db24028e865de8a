"""Folders and archives from others: the files that are read or left out, and the limits."""

from __future__ import annotations

import bz2
import contextlib
import gzip
import io
import lzma
import os
import tarfile
import tempfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from accept.core.error_codes import Code
from accept.core.errors import BadEvidence
from accept.evidence.untrusted import Limits, walk

FILES = {"a.log": b"first\n" * 500, "logs/b.log": b"", "logs/c.txt": b"x" * 3_000_000}


def tar(files: dict[str, bytes], form: int = tarfile.GNU_FORMAT) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=form) as archive:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return buffer.getvalue()


def zipped(files: dict[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return buffer.getvalue()


PACKERS: dict[str, Callable[[dict[str, bytes]], bytes]] = {
    "tar": tar,
    "pax": lambda files: tar(files, tarfile.PAX_FORMAT),
    "tar.gz": lambda files: gzip.compress(tar(files)),
    "tar.bz2": lambda files: bz2.compress(tar(files)),
    "tar.xz": lambda files: lzma.compress(tar(files)),
    "two streams": lambda files: b"".join(map(bz2.compress, (tar(files)[:700], tar(files)[700:]))),
    "zip": zipped,
    "zip in tar.gz": lambda files: gzip.compress(tar({"inner.zip": zipped(files)})),
    "tar.gz in zip": lambda files: zipped({"x/inner.tgz": gzip.compress(tar(files))}),
}


def contents(path: Path, limits: Limits | None = None) -> dict[str, bytes]:
    return {e.name: b"".join(e.blocks) for e in walk(path, limits or Limits()) if not e.unread}


def refused(path: Path, limits: Limits | None = None) -> Code:
    with pytest.raises(BadEvidence) as error:
        contents(path, limits)
    return error.value.code


@pytest.mark.parametrize("packer", PACKERS)
def test_archives_of_all_formats_have_the_same_files(tmp_path: Path, packer: str) -> None:
    (tmp_path / "x").write_bytes(PACKERS[packer](FILES | {"n" * 300 + ".log": b"long\n"}))
    found = contents(tmp_path / "x", Limits(ratio=10_000))
    assert {
        name.rpartition(":")[2].rpartition("/")[2]: content for name, content in found.items()
    } == {
        "a.log": FILES["a.log"],
        "b.log": b"",
        "c.txt": FILES["logs/c.txt"],
        "n" * 300 + ".log": b"long\n",
    }


@pytest.mark.parametrize("packer", PACKERS)
def test_an_archive_that_is_cut_off_is_refused(tmp_path: Path, packer: str) -> None:
    whole = PACKERS[packer](FILES)
    for end in (len(whole) // 2, len(whole) * 2 // 3):
        (tmp_path / "x").write_bytes(whole[:end].rstrip(b"\0"))
        assert refused(tmp_path / "x") in (Code.ARCHIVE_DAMAGED, Code.ARCHIVE_TOO_LARGE)


def test_only_regular_files_are_read(tmp_path: Path) -> None:
    (tmp_path / "real.log").write_bytes(b"x")
    os.mkfifo(tmp_path / "pipe.log")
    (tmp_path / "device.log").symlink_to("/dev/zero")
    (tmp_path / "link.log").symlink_to("real.log")
    (tmp_path / "up").symlink_to("..")
    assert contents(tmp_path) == {str(tmp_path / "real.log"): b"x"}
    assert sorted(e.parts[-1] for e in walk(tmp_path, Limits()) if e.unread) == [
        *("device.log", "link.log", "up")
    ]


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="needs Linux's /proc")
def test_a_file_that_the_system_does_not_let_anyone_read_is_named() -> None:
    entries = [e for e in walk(Path("/proc/self/task"), Limits()) if e.parts[-1] == "clear_refs"]
    assert entries
    assert all(e.unread for e in entries)


def test_a_link_that_the_user_names_is_followed(tmp_path: Path) -> None:
    (tmp_path / "real.log").write_bytes(b"x")
    (tmp_path / "link.log").symlink_to("real.log")
    assert contents(tmp_path / "link.log") == {str(tmp_path / "link.log"): b"x"}


def test_a_hole_of_any_size_is_read_as_a_few_bytes(tmp_path: Path) -> None:
    with (tmp_path / "x.log").open("wb") as file:
        file.write(b"text\n")
        file.seek(1 << 40)
        file.write(b"more\n")
        file.truncate(1 << 42)
    (content,) = contents(tmp_path / "x.log").values()
    assert len(content) < 4 << 20
    assert content.replace(b"\0", b"") == b"text\nmore\n"


class TestLimits:
    @pytest.mark.parametrize("kind", [tarfile.GNUTYPE_LONGNAME, tarfile.XHDTYPE, tarfile.XGLTYPE])
    def test_of_headers(self, tmp_path: Path, kind: bytes) -> None:
        head = tarfile.TarInfo("x")
        head.type, head.size = kind, 300 << 20
        (tmp_path / "x.tar").write_bytes(head.tobuf() + bytes(5000))
        assert refused(tmp_path / "x.tar") is Code.ARCHIVE_DAMAGED

    @pytest.mark.parametrize(
        "packer", [gzip.compress, bz2.compress, lzma.compress, lambda raw: zipped({"x.log": raw})]
    )
    def test_of_the_ratio(self, tmp_path: Path, packer: Callable[[bytes], bytes]) -> None:
        (tmp_path / "x").write_bytes(packer(b"\n" * 2_000_000))
        assert refused(tmp_path / "x", Limits(free=1_000_000)) is Code.ARCHIVE_TOO_LARGE

    def test_of_bytes_files_and_time(self, tmp_path: Path) -> None:
        for number in range(5):
            (tmp_path / f"{number}.log").write_bytes(b"x" * 1000)
        assert refused(tmp_path, Limits(total=4500)) is Code.ARCHIVE_TOO_LARGE
        assert refused(tmp_path, Limits(files=4)) is Code.LOGS_TOO_MANY
        assert refused(tmp_path, Limits(until=0.0)) is Code.ARCHIVE_TOO_LARGE

    def test_of_nested_folders(self, tmp_path: Path) -> None:
        (tmp_path / "/".join("abcdef")).mkdir(parents=True)
        assert contents(tmp_path, Limits(folders=6)) == {}
        assert refused(tmp_path, Limits(folders=5)) is Code.LOGS_TOO_MANY

    @pytest.mark.parametrize("packer", PACKERS)
    def test_of_nested_folders_in_archives(self, tmp_path: Path, packer: str) -> None:
        (tmp_path / "a").write_bytes(PACKERS[packer]({"d/" * 1500 + "a.log": b"x"}))
        with pytest.raises(BadEvidence) as error:
            list(walk(tmp_path / "a", Limits()))
        assert error.value.code == Code.LOGS_TOO_MANY

    def test_of_nested_archives(self, tmp_path: Path) -> None:
        raw = tar({"x.log": b"x"})
        for _ in range(20):
            raw = zipped({"x.zip": raw})
        (tmp_path / "x.zip").write_bytes(raw)
        assert refused(tmp_path / "x.zip") is Code.ARCHIVE_TOO_LARGE

    def test_of_the_list_in_a_zip_archive(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("accept.evidence.untrusted._MAX_DIRECTORY", 5000)
        (tmp_path / "x.zip").write_bytes(zipped({f"{number}.log": b"" for number in range(100)}))
        assert refused(tmp_path / "x.zip") is Code.ARCHIVE_DAMAGED


@given(
    st.sampled_from(sorted(PACKERS)),
    st.lists(st.tuples(st.integers(0, 4000), st.binary(max_size=8))),
)
def test_any_archive_is_read_or_refused(packer: str, edits: list[tuple[int, bytes]]) -> None:
    raw = bytearray(PACKERS[packer]({"a.log": b"first\n" * 99, "b.log": b"second"}))
    for at, new in edits:
        raw[at % len(raw) : at % len(raw) + len(new)] = new
    with tempfile.TemporaryDirectory() as scratch:
        path = Path(scratch, "x")
        path.write_bytes(raw)
        with contextlib.suppress(BadEvidence):
            contents(path)
