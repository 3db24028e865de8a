"""The folder a run leaves: the one place that names its files, writes them and reads them back."""

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

from accept.core.errors import BadEvidence
from accept.core.model import SCHEMA, Plan, Record, Verdict
from accept.core.report import text as report_text
from accept.core.report.markdown import render_markdown
from accept.core.serde import dump, read, to_json

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

#: Files that SHA256SUMS leaves out, because they are written after it: a later judgement replaces
#: the verdict and the reports, and the console still grows. No judgement may use them.
_NOT_COVERED = (CHECKSUMS, VERDICT, REPORT, JUNIT, CONSOLE, "report.html")
#: Ending of a file that is being written.
_UNFINISHED = ".new"

#: Above this many groups in a step its logs go into one archive, `logs/STEP.tar`.
LOOSE_LOGS = 64
#: What the packed lines may take at the end of a console or pod log, in bytes.
PACKED_LIMIT = 1 << 20

#: Errors that tarfile and gzip raise for damaged archives. TypeError and its like are not among
#: them: those are defects of a program.
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

_BEGIN = "-----BEGIN ACCEPT EVIDENCE-----"
_END = "-----END ACCEPT EVIDENCE-----"
_LINE = 4096
_BLOCK = 1 << 20
#: Upper bound of what these unpack to: a small text must not grow without end.
_UNPACKED_LIMIT = 32 << 20
#: Upper bound of a file that is read as a whole.
_FILE_LIMIT = 1 << 30


@dataclass(frozen=True, kw_only=True)
class RunEnd:
    """How a run ended. A file of its own, so that SHA256SUMS covers it."""

    schema: int
    #: Why the run was interrupted; empty: it was not.
    interruption: str


def write(path: Path, text: str) -> None:
    """Write a file completely or not at all."""
    temporary = path.with_name(path.name + _UNFINISHED)
    try:
        temporary.write_text(text, encoding="utf-8")
        temporary.replace(path)
    except BaseException:
        with suppress(OSError):
            temporary.unlink()
        raise


def plan_hash(plan: Mapping[str, object]) -> str:
    """Return the hash that names a run, from its plan as plain data.

    It is the SHA-256 of the plan as JSON with sorted keys and an empty `hash`. The plan holds a
    hash of all other rendered files, so this covers those too.
    """
    text = json.dumps({**plan, "hash": ""}, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode("ascii")).hexdigest()


def write_judgement(folder: Path, plan: Plan, verdict: Verdict) -> None:
    """Write what a judgement leaves: the verdict, and reports for people and for CI systems."""
    write(folder / VERDICT, to_json(verdict) + "\n")
    write(folder / REPORT, render_markdown(verdict, plan))
    write(folder / JUNIT, report_text.junit(verdict))


def write_run_end(folder: Path, interruption: str) -> None:
    """Write why the run was interrupted; empty if it was not."""
    end = RunEnd(schema=SCHEMA, interruption=interruption)
    write(folder / RUN_END, to_json(end) + "\n")


def append_record(folder: Path, record: Record) -> None:
    """Add one line to `records.jsonl`."""
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


def _refuse_changed_plan(plan: Plan, data: Mapping[str, object], where: str) -> None:
    """Raise BadEvidence if a plan does not have the hash that it names.

    Plans of versions without `files_hash` pass, because their hash cannot be computed from them.
    """
    if plan.files_hash and (found := plan_hash(data)) != plan.hash:
        raise BadEvidence(
            f"{where}: the plan was changed after it was rendered "
            f"(its hash is {found[:12]}, not {plan.hash[:12]})",
            hint="collect the run again, or ask who changed it",
        )


def read_verdict(folder: Path) -> Verdict:
    """Read the verdict; raises BadEvidence if it is missing or unreadable."""
    return _parse(Verdict, read_text(folder / VERDICT), str(folder / VERDICT))


def read_interruption(folder: Path) -> str:
    """Return why the run was interrupted; empty if it was not.

    Evidence of older versions has this in the verdict alone. Raises BadEvidence if the file is
    missing or unreadable.
    """
    path = folder / RUN_END
    # SHA256SUMS does not cover links.
    if path.exists() and not path.is_symlink():
        return _parse(RunEnd, read_text(path), str(path)).interruption
    return read_verdict(folder).broken_off


def read_records(folder: Path) -> tuple[Record, ...]:
    """Read the records in the order of writing; BadEvidence names the line that is unreadable."""
    path = folder / RECORDS
    lines = read_text(path).splitlines()
    return tuple(_parse(Record, line, f"{path}:{n}") for n, line in enumerate(lines, 1))


def log_path(step: str, wave: int, group: int) -> str:
    """Where the raw log of one execution lies, relative to the folder."""
    return f"{LOGS}/{step}/{wave}-{group}.log"


def archive_logs(folder: Path, step: str) -> None:
    """Move the loose logs of a step into its one archive."""
    loose = folder / LOGS / step
    with tarfile.open(folder / LOGS / f"{step}.tar", "w") as archive:
        for path in sorted(loose.iterdir()):
            archive.add(path, arcname=path.name)
    for path in loose.iterdir():
        path.unlink()
    loose.rmdir()


def open_log(folder: Path, log: str) -> Iterable[bytes] | None:
    """A raw log in blocks of whole lines, loose or in its step's archive; None: there is none."""
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
        found = _members(archive, stamp.st_mtime_ns, stamp.st_size).get(path.name)
    except (OSError, ValueError):
        return None
    return None if found is None else _blocks(archive, *found)


@lru_cache(maxsize=8)
def _members(archive: Path, _changed: int, _size: int) -> dict[str, tuple[int, int]]:
    """Where each log of an archive lies, and its length; nothing beyond where it is damaged."""
    found: dict[str, tuple[int, int]] = {}
    try:
        with tarfile.open(archive, "r:") as tar:
            for member in tar:
                if member.type in (tarfile.REGTYPE, tarfile.AREGTYPE) and not member.issparse():
                    found[member.name] = (member.offset_data, member.size)
    except TAR_DAMAGE:
        return found
    return found


def _blocks(path: Path, start: int = 0, size: int = 1 << 62) -> Iterator[bytes]:
    with path.open("rb") as file:
        file.seek(start)
        while block := file.read(min(_BLOCK, start + size - file.tell())):
            if not block.endswith(b"\n"):
                block += file.readline(min(1 << 16, start + size - file.tell()))
            yield block


def write_checksums(folder: Path) -> None:
    """Write SHA256SUMS, as `sha256sum --check` reads it, over all files that a judgement uses."""
    write(folder / CHECKSUMS, "".join(f"{digest}  {name}\n" for name, digest in _digests(folder)))


def check_checksums(folder: Path) -> tuple[str, ...]:
    """What is wrong with the folder, a sentence each: files missing, changed, or no sums at all."""
    path = folder / CHECKSUMS
    if not path.is_file():
        return (f"{CHECKSUMS} is missing: the evidence was never finished",)
    found = dict(_digests(folder))
    lines = (line.partition("  ") for line in read_text(path).splitlines())
    listed = {name: digest for digest, _, name in lines}
    wrong = [f"{name} is missing" for name in listed if name not in found]
    wrong += [f"{n} is not as it was written" for n, d in listed.items() if found.get(n, d) != d]
    wrong += [f"{name} is not in {CHECKSUMS}" for name in found if name not in listed]
    return tuple(wrong)


def _digests(folder: Path) -> Iterator[tuple[str, str]]:
    for path in sorted(p for p in folder.rglob("*") if p.is_file() and not p.is_symlink()):
        name = path.relative_to(folder).as_posix()
        # Writing one of them may have been killed halfway.
        if name in _NOT_COVERED or name.removesuffix(_UNFINISHED) in _NOT_COVERED:
            continue
        # Each pod adds its own log, after the coordinator has closed the evidence.
        if name.startswith(f"{PODS}/"):
            continue
        digest = hashlib.sha256()
        with path.open("rb") as file:
            while block := file.read(1 << 20):
                digest.update(block)
        yield name, digest.hexdigest()


def pack(plan: Plan, records: Sequence[Record], verdict: Verdict) -> str:
    """Plan, records and verdict as text between two marker lines, for the end of a console log.

    Above PACKED_LIMIT the records are left out, and the packed text says so.
    """
    whole = {"plan": dump(plan), "records": [dump(r) for r in records], "verdict": dump(verdict)}
    raw = json.dumps(whole, separators=(",", ":")).encode()
    text = _packed(raw)
    if len(text) > PACKED_LIMIT or len(raw) > _UNPACKED_LIMIT:
        less = {"plan": whole["plan"], "verdict": whole["verdict"], "recordsLeftOut": len(records)}
        text = _packed(json.dumps(less, separators=(",", ":")).encode())
    return text


def _packed(raw: bytes) -> str:
    coded = base64.b64encode(zlib.compress(raw, 9)).decode()
    lines = [coded[i : i + _LINE] for i in range(0, len(coded), _LINE)]
    return "\n".join([f"{_BEGIN} {hashlib.sha256(raw).hexdigest()}", *lines, _END]) + "\n"


def is_packed(path: Path) -> bool:
    """Whether a text holds what `pack` wrote, whole or not."""
    mark, tail = _BEGIN.encode(), b""
    with path.open("rb") as file:
        while block := file.read(_BLOCK):
            if mark in tail + block:
                return True
            tail = block[-len(mark) :]
    return False


def unpack(lines: Iterable[bytes], source: str) -> tuple[Plan, tuple[Record, ...], Verdict]:
    """Read what `pack` left in a saved console or pod log; prefixes before the text do no harm.

    Raises BadEvidence where the markers are missing, the text is damaged, or it says that the
    records were left out.
    """
    digest, ended, size = "", False, 0
    parts: list[str] = []
    if readline := getattr(lines, "readline", None):
        # What is no log at all may be one line without an end.
        lines = iter(partial(readline, _BLOCK), b"")
    for raw in lines:
        line = raw.decode("ascii", errors="replace").rstrip()
        if _BEGIN in line:
            digest, parts, ended, size = line.rpartition(" ")[2], [], False, 0
        elif _END in line:
            ended = True
        elif digest and not ended and size <= PACKED_LIMIT:
            parts.append(line.rpartition(" ")[2])
            size += len(parts[-1])
    if not digest:
        raise BadEvidence(
            f"{source} holds no packed evidence", hint="it is the last part of index 0's log"
        )
    if not ended:
        raise BadEvidence(f"{source}: the packed evidence is cut off", hint="fetch the log again")
    try:
        unzip = zlib.decompressobj()
        raw_text = unzip.decompress(
            base64.b64decode("".join(parts), validate=True), _UNPACKED_LIMIT
        )
        if hashlib.sha256(raw_text).hexdigest() != digest:
            raise ValueError("its checksum is wrong")
        data = json.loads(raw_text)
        if not isinstance(data, dict):
            raise TypeError("it holds no object")
        if "records" not in data:
            raise BadEvidence(
                f"{source}: {data.get('recordsLeftOut')} records were too many for the log",
                hint="the verdict in the log is final; judge the evidence folder instead",
            )
        plan = read(Plan, data["plan"])
        _refuse_changed_plan(plan, data["plan"], source)
        return (
            plan,
            tuple(read(Record, r) for r in data["records"]),
            read(Verdict, data["verdict"]),
        )
    except (ValueError, KeyError, TypeError, RecursionError, zlib.error) as error:
        raise BadEvidence(
            f"{source}: the packed evidence is damaged: {error}", hint="fetch the log again"
        ) from error


def read_text(path: Path) -> str:
    """Read a file of an evidence folder; raises BadEvidence if it is missing or unreadable."""
    try:
        # A pipe or a device would never end.
        if path.exists() and (not path.is_file() or path.stat().st_size > _FILE_LIMIT):
            raise OSError(0, "no file of a size that evidence has")
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise BadEvidence(
            f"{path}: {reason}", hint="collect the run again, or name another folder"
        ) from error


def _parse(cls: type[T], text: str, where: str) -> T:
    try:
        return read(cls, json.loads(text))
    except (ValueError, RecursionError) as error:
        raise BadEvidence(f"{where}: {error}", hint="the file is damaged: collect again") from error
