"""Write and read the evidence folder of a run; this module alone knows its layout."""

from __future__ import annotations

import base64
import hashlib
import json
import struct
import tarfile
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path, PurePosixPath
from typing import TypeVar

from accept.core.error_codes import Code
from accept.core.errors import BadEvidence
from accept.core.model import SCHEMA, Plan, Record, Verdict
from accept.core.report import text as report_text
from accept.core.report.markdown import render_markdown
from accept.core.serde import dump, read, renamed, to_json

T = TypeVar("T")

PLAN = "plan.json"
RECORDS = "records.jsonl"
RUN_END = "run-end.json"
VERDICT = "verdict.json"
REPORT = "report.md"
JUNIT = "junit.xml"
CONSOLE = "console.log"
CHECKSUMS = "SHA256SUMS"
LOGS = "logs"
PODS = "pods"

#: Files that SHA256SUMS does not cover, because they change later: another judgement replaces the
#: verdict and the reports, and the console log still grows. No judgement may depend on them.
_NOT_COVERED = (CHECKSUMS, VERDICT, REPORT, JUNIT, CONSOLE, "report.html")
#: Suffix of a file that is being written.
_UNFINISHED = ".new"

#: If a step has more groups than this, its logs go into one archive, `logs/STEP.tar`.
LOOSE_LOGS = 64
#: Upper limit of the packed evidence at the end of a console or pod log, in bytes.
PACKED_LIMIT = 1 << 20

#: Errors that tarfile and gzip raise for damaged archives. Errors of our own code, such as
#: TypeError, are not among them.
TAR_DAMAGE = (
    tarfile.TarError,
    zlib.error,
    struct.error,
    EOFError,
    OSError,
    OverflowError,
    RecursionError,
    ValueError,
)

#: The first line of packed evidence, before a digest, and the last line.
PACKED_BEGIN = "-----BEGIN ACCEPT EVIDENCE-----"
PACKED_END = "-----END ACCEPT EVIDENCE-----"
_LINE_LENGTH = 4096
_BLOCK = 1 << 20
#: Upper limit of unpacked evidence in bytes, because a small packed text can be huge when unpacked.
_UNPACKED_LIMIT = 32 << 20
#: Upper limit of a file that is read at once, in bytes.
_FILE_LIMIT = 1 << 30


@dataclass(frozen=True, kw_only=True)
class RunEnd:
    """Record the end of a run, in a file of its own, so that SHA256SUMS covers it."""

    schema: int
    #: Reason for an interruption; empty: it was not interrupted.
    interruption: str


@dataclass(frozen=True, kw_only=True)
class StoredVerdict:
    """The part of a stored verdict that is used again; verdicts of all versions have these keys."""

    headline: str
    attempt: str
    interruption: str

    @staticmethod
    def adapt(data: dict[str, object]) -> dict[str, object]:
        """Return the keys that are used, from a verdict of any version; 0.1 wrote `brokenOff`."""
        kept = renamed(data, "brokenOff", "interruption")
        used = ("headline", "attempt", "interruption")
        return {key: kept[key] for key in used if key in kept}


def write(path: Path, text: str) -> None:
    """Write a file atomically."""
    temporary = path.with_name(path.name + _UNFINISHED)
    try:
        temporary.write_text(text, encoding="utf-8")
        temporary.replace(path)
    except BaseException:
        with suppress(OSError):
            temporary.unlink()
        raise


def plan_hash(plan: Mapping[str, object]) -> str:
    """Return the hash that identifies a run, from its plan as plain data.

    It is the SHA-256 of the plan as JSON with sorted keys and an empty `hash`. It also covers all
    other rendered files, because the plan contains their hash.
    """
    text = json.dumps({**plan, "hash": ""}, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode("ascii")).hexdigest()


def write_judgement(folder: Path, plan: Plan, verdict: Verdict) -> None:
    """Write the verdict, and the reports for people and for CI systems."""
    write(folder / VERDICT, to_json(verdict) + "\n")
    write(folder / REPORT, render_markdown(verdict, plan))
    write(folder / JUNIT, report_text.junit(verdict))


def write_run_end(folder: Path, interruption: str) -> None:
    """Write the reason for an interruption; empty: the run was not interrupted."""
    end = RunEnd(schema=SCHEMA, interruption=interruption)
    write(folder / RUN_END, to_json(end) + "\n")


def append_record(folder: Path, record: Record) -> None:
    """Append one line to `records.jsonl`."""
    with (folder / RECORDS).open("a", encoding="utf-8") as file:
        file.write(json.dumps(dump(record), separators=(",", ":")) + "\n")


def read_plan(folder: Path) -> Plan:
    """Read the plan of an evidence folder.

    Raises BadEvidence if it is missing or unreadable, or was changed after it was rendered.
    """
    path = folder / PLAN
    text = read_text(path)
    plan = _parse(Plan, text, str(path))
    _refuse_changed_plan(plan, json.loads(text), str(path))
    return plan


def _refuse_changed_plan(plan: Plan, data: Mapping[str, object], source: str) -> None:
    """Raise BadEvidence if the hash of a plan is not the one that it contains.

    Plans without `files_hash`, from older versions, pass: their hash cannot be verified.
    """
    if plan.files_hash and (actual := plan_hash(data)) != plan.hash:
        raise BadEvidence(
            f"{source}: the plan was changed after it was rendered "
            f"(its hash is {actual[:12]}, not {plan.hash[:12]})",
            code=Code.EVIDENCE_PLAN_CHANGED,
            hint="collect the run again, or find out who changed the plan",
        )


def read_verdict(folder: Path) -> StoredVerdict:
    """Read the verdict of any version. Raise BadEvidence if it is missing or unreadable."""
    path = folder / VERDICT
    return _parse(StoredVerdict, read_text(path), str(path))


def read_interruption(folder: Path) -> str:
    """Return the reason why the run was interrupted; "" if it was not.

    Evidence of older versions has this only in the verdict. Raise BadEvidence if the file is
    missing or unreadable.
    """
    path = folder / RUN_END
    # SHA256SUMS does not cover links.
    if path.exists() and not path.is_symlink():
        return _parse(RunEnd, read_text(path), str(path)).interruption
    return read_verdict(folder).interruption


def read_records(folder: Path) -> tuple[Record, ...]:
    """Read the records in the order of writing. Raise BadEvidence with the first bad line."""
    path = folder / RECORDS
    lines = read_text(path).splitlines()
    return tuple(_parse(Record, line, f"{path}:{n}") for n, line in enumerate(lines, 1))


def log_path(step: str, wave: int, group: int) -> str:
    """Return the path of the raw log of one execution, relative to the folder."""
    return f"{LOGS}/{step}/{wave}-{group}.log"


def archive_logs(folder: Path, step: str) -> None:
    """Move the log files of a step into one archive."""
    step_folder = folder / LOGS / step
    with tarfile.open(folder / LOGS / f"{step}.tar", "w") as archive:
        for path in sorted(step_folder.iterdir()):
            archive.add(path, arcname=path.name)
    for path in step_folder.iterdir():
        path.unlink()
    step_folder.rmdir()


def open_log(folder: Path, log: str) -> Iterable[bytes] | None:
    """Return a raw log in blocks of whole lines, from its file or its step's archive.

    Return None if the log does not exist.
    """
    path, parts = folder / log, PurePosixPath(log).parts
    if len(parts) < 3 or parts[0] != LOGS or ".." in parts:
        return None
    try:
        if path.is_file():
            return _blocks(path)
        archive = path.parent.with_suffix(".tar")
        if not archive.is_file():
            return None
        stamp = archive.stat()
        member = _members(archive, stamp.st_mtime_ns, stamp.st_size).get(path.name)
    except (OSError, ValueError):
        return None
    return None if member is None else _blocks(archive, *member)


@lru_cache(maxsize=8)
def _members(archive: Path, _changed: int, _size: int) -> dict[str, tuple[int, int]]:
    """Return offset and length of each log in an archive, up to the first damaged one."""
    members: dict[str, tuple[int, int]] = {}
    with suppress(*TAR_DAMAGE), tarfile.open(archive, "r:") as tar:
        for member in tar:
            if member.type in (tarfile.REGTYPE, tarfile.AREGTYPE) and not member.issparse():
                members[member.name] = (member.offset_data, member.size)
    return members


def _blocks(path: Path, start: int = 0, size: int = 1 << 62) -> Iterator[bytes]:
    with path.open("rb") as file:
        file.seek(start)
        while block := file.read(min(_BLOCK, start + size - file.tell())):
            if not block.endswith(b"\n"):
                block += file.readline(min(1 << 16, start + size - file.tell()))
            yield block


def write_checksums(folder: Path) -> None:
    """Write SHA256SUMS for all files that a judgement uses, as `sha256sum --check` reads it."""
    write(folder / CHECKSUMS, "".join(f"{digest}  {name}\n" for name, digest in _digests(folder)))


def check_checksums(folder: Path) -> tuple[str, ...]:
    """Return one sentence per missing, modified or additional file; all is well if it is empty."""
    path = folder / CHECKSUMS
    if not path.is_file():
        return (f"{CHECKSUMS} is missing: the evidence was never finished",)
    actual = dict(_digests(folder))
    lines = (line.partition("  ") for line in read_text(path).splitlines())
    listed = {name: digest for digest, _, name in lines}
    errors = [f"{name} is missing" for name in listed if name not in actual]
    modified = [name for name, digest in listed.items() if actual.get(name, digest) != digest]
    errors += [f"{name} was modified (SHA-256 differs)" for name in modified]
    errors += [f"{name} is not in {CHECKSUMS}" for name in actual if name not in listed]
    return tuple(errors)


def _digests(folder: Path) -> Iterator[tuple[str, str]]:
    for path in sorted(p for p in folder.rglob("*") if p.is_file() and not p.is_symlink()):
        name = path.relative_to(folder).as_posix()
        # An unfinished file remains if its writer was killed.
        if name in _NOT_COVERED or name.removesuffix(_UNFINISHED) in _NOT_COVERED:
            continue
        # Pods add their own logs after the coordinator wrote SHA256SUMS.
        if name.startswith(f"{PODS}/"):
            continue
        digest = hashlib.sha256()
        with path.open("rb") as file:
            while block := file.read(_BLOCK):
                digest.update(block)
        yield name, digest.hexdigest()


def pack(plan: Plan, records: Sequence[Record], verdict: Verdict) -> str:
    """Return plan, records and verdict as text between two marker lines, for the end of a log.

    If that exceeds PACKED_LIMIT, the text has the number of records instead of the records.
    """
    data = {"plan": dump(plan), "records": [dump(r) for r in records], "verdict": dump(verdict)}
    raw = json.dumps(data, separators=(",", ":")).encode()
    text = _packed(raw)
    if len(text) > PACKED_LIMIT or len(raw) > _UNPACKED_LIMIT:
        short = {"plan": data["plan"], "verdict": data["verdict"], "recordsLeftOut": len(records)}
        text = _packed(json.dumps(short, separators=(",", ":")).encode())
    return text


def _packed(raw: bytes) -> str:
    encoded = base64.b64encode(zlib.compress(raw, 9)).decode()
    starts = range(0, len(encoded), _LINE_LENGTH)
    lines = [encoded[start : start + _LINE_LENGTH] for start in starts]
    begin = f"{PACKED_BEGIN} {hashlib.sha256(raw).hexdigest()}"
    return "\n".join([begin, *lines, PACKED_END]) + "\n"


def is_packed(path: Path) -> bool:
    """Return True if a file contains the beginning of packed evidence."""
    marker, tail = PACKED_BEGIN.encode(), b""
    with path.open("rb") as file:
        while block := file.read(_BLOCK):
            if marker in tail + block:
                return True
            tail = block[-len(marker) :]
    return False


def unpack(lines: Iterable[bytes], source: str) -> tuple[Plan, tuple[Record, ...], StoredVerdict]:
    """Read the packed evidence in a saved console or pod log, whose lines may have prefixes.

    Raise BadEvidence if the markers are missing, the text is damaged, or the records were left out.
    """
    digest, ended, size = "", False, 0
    parts: list[str] = []
    if readline := getattr(lines, "readline", None):
        # A file that is not a log may be one endless line.
        lines = iter(partial(readline, _BLOCK), b"")
    for raw in lines:
        line = raw.decode("ascii", errors="replace").rstrip()
        if PACKED_BEGIN in line:
            digest, parts, ended, size = line.rpartition(" ")[2], [], False, 0
        elif PACKED_END in line:
            ended = True
        elif digest and not ended and size <= PACKED_LIMIT:
            parts.append(line.rpartition(" ")[2])
            size += len(parts[-1])
    if not digest:
        raise BadEvidence(
            f"{source} contains no packed evidence",
            code=Code.EVIDENCE_NOT_PACKED,
            hint="use the log of the pod with index 0, which ends with the packed evidence",
        )
    if not ended:
        raise BadEvidence(
            f"{source}: the packed evidence is cut off",
            code=Code.EVIDENCE_CUT_OFF,
            hint="fetch the log again",
        )
    try:
        compressed = base64.b64decode("".join(parts), validate=True)
        raw_text = zlib.decompressobj().decompress(compressed, _UNPACKED_LIMIT)
        if hashlib.sha256(raw_text).hexdigest() != digest:
            raise ValueError("its checksum is wrong")
        data = json.loads(raw_text)
        if not isinstance(data, dict):
            raise TypeError("it is not a JSON object")
        if "recordsLeftOut" in data:
            raise BadEvidence(
                f"{source}: {data['recordsLeftOut']} records were too many for the log",
                code=Code.EVIDENCE_TOO_LARGE_FOR_LOG,
                hint="judge the evidence folder instead; the verdict in the log is final",
            )
        plan = read(Plan, data["plan"])
        _refuse_changed_plan(plan, data["plan"], source)
        return (
            plan,
            tuple(read(Record, r) for r in data["records"]),
            read(StoredVerdict, data["verdict"]),
        )
    except (ValueError, KeyError, TypeError, RecursionError, zlib.error) as error:
        raise BadEvidence(
            f"{source}: the packed evidence is damaged: {error}",
            code=Code.EVIDENCE_DAMAGED,
            hint="fetch the log again",
        ) from error


def read_text(path: Path) -> str:
    """Read a file of an evidence folder. Raise BadEvidence if it is missing or unreadable."""
    try:
        # Reading a pipe or a device would never end.
        if path.exists() and (not path.is_file() or path.stat().st_size > _FILE_LIMIT):
            raise OSError(0, "not a regular file, or too large for evidence")
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise BadEvidence(
            f"{path}: {reason}",
            code=Code.EVIDENCE_UNREADABLE,
            hint="collect the run again, or name another folder",
        ) from error


def _parse(cls: type[T], text: str, source: str) -> T:
    """Parse JSON text."""
    try:
        return read(cls, json.loads(text))
    except (ValueError, RecursionError) as error:
        raise BadEvidence(
            f"{source}: {error}",
            code=Code.EVIDENCE_DAMAGED,
            hint="the file is damaged: collect the run again",
        ) from error
