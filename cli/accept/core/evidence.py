"""Write and read the evidence folder of a run; this module alone knows its layout."""

from __future__ import annotations

import base64
import errno
import hashlib
import json
import os
import re
import tarfile
import zlib
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, fields, replace
from datetime import datetime, timezone
from functools import lru_cache, partial
from pathlib import Path, PurePosixPath
from typing import TypeVar

from accept.core.error_codes import Code
from accept.core.errors import BadEvidence
from accept.core.plan import SCHEMA, Plan, Step
from accept.core.records import Record
from accept.core.safe_read import BLOCK, DAMAGE, Tar, is_linked, open_regular, read_whole
from accept.core.serde import dump, from_json, read, to_json
from accept.core.text import markdown, plain, shortened
from accept.core.verdict import Verdict

T = TypeVar("T")

PLAN = "plan.json"
#: The input of the run besides its plan: the attempt and the requested hosts.
HOSTS = "hosts.json"
RECORDS = "records.jsonl"
STEP = "step.json"
RUN_END = "run-end.json"
VERDICT = "verdict.json"
REPORT = "report.md"
JUNIT = "junit.xml"
README = "README.txt"
CONSOLE = "console.log"
CHECKSUMS = "SHA256SUMS"
#: Signatures of SHA256SUMS: with the key of the run, and with that of a user.
RUN_SIGNATURE = "SHA256SUMS.sig"
USER_SIGNATURE = "SHA256SUMS.user.sig"
#: The coordinator prints this and the reason, if it cannot sign.
NOT_SIGNED = "the evidence is not signed"
#: For people: all tables of nccl-tests, and which ranks answered.
TABLES = "nccl-test-results.txt"
CONNECTIVITY = "connectivity-test.log"
#: The beginning of the tables, by which readers of logs see that they are copies.
TABLES_BEGIN = "# Tables of nccl-tests, copied from logs by accept"
LOGS = "logs"
#: In the folder of the logs: a table of them.
LOG_INDEX = "INDEX.md"
PODS = "pods"
#: Output of the site's collectors: `collectors/HOST/NAME.txt`.
COLLECTORS = "collectors"

#: Files that SHA256SUMS does not cover, because they change later: another judgement replaces the
#: verdict and the reports, and the console log still grows. No judgement may depend on them.
_REPORTS = (VERDICT, REPORT, JUNIT, CONSOLE, "report.html")
#: Written last into a bucket or a shared folder; no reader of a folder uses it.
MANIFEST = "MANIFEST.json"
_NOT_COVERED = (CHECKSUMS, RUN_SIGNATURE, USER_SIGNATURE, MANIFEST, *_REPORTS)
#: Suffix of a file that is being written.
_UNFINISHED = re.compile(r"\.[0-9a-f]{16}\.new$")

#: If a step has more groups than this, its logs go into one archive, `logs/STEP.tar`.
LOOSE_LOGS = 64
#: Upper limit of the packed evidence at the end of a console or pod log, in bytes.
PACKED_LIMIT = 1 << 20

#: The first line of packed evidence, before a digest, and the last line.
PACKED_BEGIN = "-----BEGIN ACCEPT EVIDENCE-----"
PACKED_END = "-----END ACCEPT EVIDENCE-----"
_LINE_LENGTH = 4096
#: Upper limit of unpacked evidence in bytes, because a small packed text can be huge when unpacked.
_UNPACKED_LIMIT = 32 << 20
#: Upper limit of the line of one record, in bytes.
_RECORD_LIMIT = 32 << 20
#: Upper limit of all records. Those of 1,000 hosts and 100 waves have about 100 MB.
_RECORDS_LIMIT = 1 << 30
#: Maximum depth of folders in evidence. Deeper ones are reported like files that are not in
#: SHA256SUMS.
_MAX_DEPTH = 16
#: Characters that log names replace, and the longest part of a log name, such as a host.
_NOT_IN_NAMES, _LONGEST_NAME = re.compile(r"[^A-Za-z0-9.-]"), 60
#: Files that desktop systems add to any folder; those of macOS also start with `._`.
_OF_DESKTOPS = (".DS_Store", "Thumbs.db", "desktop.ini")


@dataclass(frozen=True, kw_only=True)
class RunEnd:
    """Record the end of a run, in a file of its own, so that SHA256SUMS covers it."""

    schema: int
    #: Reason for the interruption; empty if the run was not interrupted.
    interruption: str
    #: Time of the end, in seconds since 1970; 0: unknown.
    end: float = 0.0


@dataclass(frozen=True, kw_only=True)
class CurrentStep:
    """The step that the run executes now, or executed last."""

    #: Counted from 1.
    number: int
    steps: int


@dataclass(frozen=True, kw_only=True)
class StoredVerdict:
    """The part of a stored verdict that `accept` reads. All versions have the first three keys."""

    headline: str
    attempt: str
    interruption: str
    machine: str = ""
    suite: str = ""
    hosts: tuple[str, ...] = ()
    #: Seconds since 1970 of the first and last measurement; 0: unknown.
    start: float = 0.0
    end: float = 0.0

    @staticmethod
    def adapt(data: dict[str, object]) -> dict[str, object]:
        """Return the keys that are read from a verdict of any version."""
        used = {field.name for field in fields(StoredVerdict)}
        return {key: value for key, value in data.items() if key in used}


def write(path: Path, content: str | bytes) -> Path:
    """Write a file atomically, and return its path. Raises OSError if its folder is a link."""
    return write_below(path.parent, path.name, content)


def write_below(folder: Path, name: str, content: str | bytes, *, mode: int = 0o666) -> Path:
    """Write a file such as "nodes/bad.txt" below a folder atomically, and return its path.

    The folders in `name` are made. No link is followed, because evidence may come from anybody and
    could link to any file of this user: a link in the place of the file is replaced, and one in the
    place of a folder raises OSError.
    """
    target, inner = folder / name, PurePosixPath(name)
    if inner.is_absolute() or ".." in inner.parts:
        raise OSError(errno.EINVAL, "a name outside of the folder", str(target))
    with ExitStack() as opened:
        within = _open_folder(folder, None)
        opened.callback(os.close, within)
        for part in inner.parent.parts:
            with suppress(FileExistsError):
                os.mkdir(part, dir_fd=within)
            within = _open_folder(part, within)
            opened.callback(os.close, within)
        temporary = f"{target.name}.{os.urandom(8).hex()}.new"
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        try:
            with os.fdopen(os.open(temporary, flags, mode, dir_fd=within), "wb") as file:
                file.write(content.encode() if isinstance(content, str) else content)
            os.replace(temporary, target.name, src_dir_fd=within, dst_dir_fd=within)
        except BaseException as error:
            with suppress(OSError):
                os.unlink(temporary, dir_fd=within)
            if isinstance(error, OSError):
                raise OSError(error.errno, error.strerror, str(target)) from None
            raise
    return target


def _open_folder(folder: str | Path, within: int | None) -> int:
    """Open a folder, which `within` contains if its path is relative."""
    try:
        flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
        return os.open(folder, flags, dir_fd=within)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENOTDIR):
            reason = "a link or a file is in the place of this folder"
            raise OSError(error.errno, reason, str(folder)) from None
        raise


def plan_hash(plan: Mapping[str, object]) -> str:
    """Return the hash that identifies a run, from its plan as plain data.

    It is the SHA-256 of the plan as JSON with sorted keys and an empty `hash`. It also covers all
    other rendered files, because the plan contains their hash. Nodes that the run leaves out do not
    change what it runs.
    """
    own = {key: value for key, value in plan.items() if key != "leftOut"}
    text = json.dumps({**own, "hash": ""}, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode("ascii")).hexdigest()


def write_run_end(folder: Path, interruption: str, end: float = 0.0) -> None:
    """Record when and why the run was interrupted; an empty reason means that it was not."""
    run_end = RunEnd(schema=SCHEMA, interruption=interruption, end=end)
    write(folder / RUN_END, to_json(run_end) + "\n")


def write_step(folder: Path, number: int, steps: int) -> None:
    """Record which step begins; all steps before it have ended."""
    write(folder / STEP, to_json(CurrentStep(number=number, steps=steps)) + "\n")


def read_step(folder: Path) -> CurrentStep | None:
    """Return the step that began last; None if there is none, or if the file is damaged."""
    try:
        return _parse(CurrentStep, read_text(folder / STEP), str(folder / STEP))
    except BadEvidence:
        return None


def write_readme(folder: Path, plan: Plan, attempt: str) -> None:
    """Write the folder's README: what it contains, how to verify and judge it.

    Call this before `write_checksums`.
    """
    text = f"""\
Evidence of an acceptance test of GPU nodes, written by accept {plan.version}.

Run: {plain(attempt, 80)}, machine {plain(plan.machine.name, 80)}, suite {plain(plan.suite, 80)}

Verify that no file was changed:   sha256sum --check {CHECKSUMS}
Judge it again, on any machine:    accept judge FOLDER
Write the report as a page:        accept report FOLDER

The verdict follows from these files alone. Judging reads every figure from the raw logs again.

{PLAN:<21} the plan: machine, steps, parameters, references
{RECORDS:<21} one line for each execution of a step on a group of nodes
{TABLES:<21} all tables of nccl-tests, for people: the logs contain the same
{CONNECTIVITY:<21} which ranks answered on which nodes, for people
{LOGS + "/":<21} the raw output of each execution: a list is in {LOGS}/{LOG_INDEX}
{COLLECTORS + "/":<21} output of the site's collectors on suspects, if it has any
{STEP:<21} the step that began last
{RUN_END:<21} when the run ended, and why if it was interrupted
{CONSOLE:<21} the output of the coordinator
{CHECKSUMS:<21} the checksums of all files except those of the next lines and the console
{VERDICT:<21} the verdict, for programs
{REPORT:<21} the verdict, for people
{JUNIT:<21} the verdict, for CI systems
"""
    write(folder / README, text)


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
    return _with_hash(_parse(Plan, text, str(path)), json.loads(text), str(path))


def _with_hash(plan: Plan, data: Mapping[str, object], source: str) -> Plan:
    """Return a plan with the hash of its data. Raise BadEvidence if it contains another one."""
    actual = plan_hash(data)
    if actual != plan.hash:
        raise BadEvidence(
            f"{source}: the plan was changed after it was rendered "
            f"(its hash is {actual[:12]}, not {plan.hash[:12]})",
            code=Code.EVIDENCE_PLAN_CHANGED,
            hint="collect the run again, or find out who changed the plan",
        )
    return replace(plan, hash=actual)


def read_attempt(folder: Path) -> str:
    """Return the attempt that left the evidence. Raise BadEvidence if that cannot be read."""
    try:
        return str(json.loads(read_text(folder / HOSTS))["attempt"])
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise BadEvidence(
            f"{folder / HOSTS} is damaged: {error}",
            code=Code.EVIDENCE_DAMAGED,
            hint="collect the run again",
        ) from None


def read_verdict(folder: Path) -> StoredVerdict:
    """Read the verdict of any version. Raise BadEvidence if it is missing or unreadable."""
    path = folder / VERDICT
    return _parse(StoredVerdict, read_text(path), str(path))


def read_run_end(folder: Path) -> RunEnd:
    """Return when the run ended, and why if it was interrupted. Raises BadEvidence."""
    path = folder / RUN_END
    return _parse(RunEnd, read_text(path), str(path))


def read_records(folder: Path) -> Iterator[Record]:
    """Read the records in the order of writing. Raise BadEvidence with the first bad line."""
    path = folder / RECORDS
    try:
        with open_regular(path) as file:
            if os.fstat(file.fileno()).st_size > _RECORDS_LIMIT:
                raise OSError(errno.EFBIG, "too large for evidence")
            number = 0
            while line := file.readline(_RECORD_LIMIT):
                number += 1
                yield _parse(Record, line.decode("utf-8"), f"{path}:{number}")
    except (OSError, UnicodeDecodeError) as error:
        raise _unreadable(path, error) from error


def log_path(
    step: Step,
    wave: int,
    group: int,
    *,
    hosts: Sequence[str] = (),
    local_ranks: Sequence[int] = (),
    ranks: int = 0,
    start: float = 0.0,
) -> str:
    """Return the path of the raw log of one execution, relative to the folder.

    Its name sorts by wave and group. It contains the hosts (or their number), the number of ranks
    and the local rank if there is only one, the checks (or their number), the message sizes, and
    the start in UTC: `00-0004-node17-node26-16r-all-gather-8M-8G-20261125T223105Z.log`.
    """
    parts = [f"{wave:02}-{group:04}"]
    if hosts:
        parts += hosts if len(hosts) <= 2 else [f"{len(hosts):03}n"]
    parts += [f"{ranks}r"] if ranks else []
    parts += [f"rank{local_ranks[0]}"] if len(local_ranks) == 1 else []
    parts += step.checks if len(step.checks) <= 2 else [f"{len(step.checks)}-checks"]
    parts += dict.fromkeys(str(step.params[k]) for k in ("min", "max") if k in step.params)
    if start:
        parts.append(f"{datetime.fromtimestamp(start, timezone.utc):%Y%m%dT%H%M%SZ}")
    names = (_NOT_IN_NAMES.sub("_", part)[:_LONGEST_NAME] for part in parts)
    return f"{LOGS}/{step.id}/{'-'.join(names)}.log"


def write_log_index(folder: Path, records: Iterable[Record]) -> None:
    """Write a table of all raw logs for people. Call this before `write_checksums`."""
    lines = ["# Logs", "", "| log | checks | nodes | start (UTC) | exit | problems |"]
    lines.append("|---|---|---|---|---|---|")
    for record in records:
        if not record.log:
            continue
        path = PurePosixPath(record.log)
        name = f"{path.parent.name}/{path.name}"
        if not (folder / record.log).is_file():
            name = f"{path.parent.name}.tar: {path.name}"
        start = datetime.fromtimestamp(record.start, timezone.utc) if record.start else None
        cells = (
            markdown(name),
            ", ".join(record.checks),
            markdown(shortened(record.hosts, 4)),
            start.strftime("%Y-%m-%d %H:%M:%S") if start else "",
            "killed" if record.exit is None else str(record.exit),
            ", ".join(dict.fromkeys(problem.cause for problem in record.problems)),
        )
        lines.append(f"| {' | '.join(cells)} |")
    (folder / LOGS).mkdir(exist_ok=True)
    write(folder / LOGS / LOG_INDEX, "\n".join(lines) + "\n")


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

    Return None if the log does not exist, is below a link, or has a name that no checksum covers.
    """
    path, parts = folder / log, PurePosixPath(log).parts
    if len(parts) < 3 or parts[0] != LOGS or ".." in parts or _is_of_desktop(path.name):
        return None
    try:
        if is_linked(folder, path):
            return None
        if path.is_file():
            return _blocks(path)
        archive = path.parent.with_suffix(".tar")
        if not archive.is_file() or archive.is_symlink():
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
    with suppress(*DAMAGE), open_regular(archive) as file:
        for member in Tar(file, seek=file.seek):
            if member.is_file:
                members[member.name] = (member.start, member.size)
    return members


def _blocks(path: Path, start: int = 0, size: int = 1 << 62) -> Iterator[bytes]:
    with open_regular(path) as file:
        file.seek(start)
        while block := file.read(min(BLOCK, start + size - file.tell())):
            if not block.endswith(b"\n"):
                block += file.readline(min(1 << 16, start + size - file.tell()))
            yield block


def checksums(folder: Path) -> str:
    """Return SHA256SUMS of all files that a judgement uses, as `sha256sum --check` reads it."""
    return "".join(f"{_sha256(path)}  {name}\n" for name, path in _covered(folder))


def write_checksums(folder: Path) -> None:
    """Write SHA256SUMS, which completes the evidence."""
    write(folder / CHECKSUMS, checksums(folder))


def root_hash(folder: Path) -> str:
    """Return the SHA-256 of SHA256SUMS, which identifies the evidence; "" if it has none."""
    path = folder / CHECKSUMS
    return _sha256(path) if path.is_file() and not path.is_symlink() else ""


def check_checksums(folder: Path) -> tuple[str, ...]:
    """Return one sentence for each missing, modified or unlisted file; none if all are intact.

    Raises BadEvidence for a file that this user may not read.
    """
    if not (folder / CHECKSUMS).is_file():
        return (f"{CHECKSUMS} is missing: the evidence was never finished",)
    lines = [line.partition("  ") for line in read_text(folder / CHECKSUMS).splitlines()]
    listed = {name: digest for digest, _, name in lines}
    errors, present = [], set()
    if len(listed) < len(lines):
        # `sha256sum --check` compares with each of them, and this function with the last one.
        errors.append(f"a file is listed twice in {CHECKSUMS}")
    if listed.pop("", None) is not None:
        errors.append(f"{CHECKSUMS} has a line without the name of a file")
    for name, path in _covered(folder, odd=True):
        present.add(name)
        shown = plain(name, 200)
        if path.is_symlink() or not (path.is_file() or path.is_dir()):
            errors.append(f"{shown} is {'a link' if path.is_symlink() else 'not a regular file'}")
            continue
        try:
            if name not in listed:
                errors.append(f"{shown} is not in {CHECKSUMS}")
            elif _sha256(path) != listed[name]:
                errors.append(f"{shown} was modified (SHA-256 differs)")
        except PermissionError as error:
            raise _unreadable(path, error) from error
        except OSError as error:
            errors.append(f"{shown} cannot be read: {error.strerror}")
    missing = (f"{plain(name, 200)} is missing" for name in listed if name not in present)
    return (*missing, *errors)


def sealed_names(folder: Path) -> frozenset[str]:
    """Return the names in SHA256SUMS."""
    lines = read_text(folder / CHECKSUMS).splitlines()
    return frozenset(line.partition("  ")[2] for line in lines)


def is_sealed(log: str, sealed: Collection[str]) -> bool:
    """Return True if the raw log of a record, or the archive of its step, is among these names."""
    step, name = PurePosixPath(log).parent, PurePosixPath(log).name
    # The file at the top of a folder is in no step.
    is_archived = bool(step.name) and step.with_suffix(".tar").as_posix() in sealed
    return log in sealed or (is_archived and not _is_of_desktop(name))


def _covered(folder: Path, *, odd: bool = False) -> Iterator[tuple[str, Path]]:
    """Yield name and path of each file that SHA256SUMS covers, in order.

    With `odd`, also links, pipes and devices: a link to a folder would show files that no checksum
    covers.
    """
    for name, path in sorted(_files(folder, odd=odd)):
        # An unfinished file remains if its writer was killed.
        is_excluded = _UNFINISHED.sub("", name) in _NOT_COVERED
        # Pods add their own logs after the coordinator wrote SHA256SUMS.
        if not _is_of_desktop(path.name) and not is_excluded and not name.startswith(f"{PODS}/"):
            yield name, path


def _is_of_desktop(name: str) -> bool:
    return name in _OF_DESKTOPS or name.startswith("._")


def _files(folder: Path, *, odd: bool) -> Iterator[tuple[str, Path]]:
    """Yield name and path of each regular file and of each folder that is too deep.

    With `odd`, also what is neither file nor folder.
    """
    folders = [(folder, 0)]
    while folders:
        current, depth = folders.pop()
        with os.scandir(current) as entries:
            for entry in entries:
                path = Path(entry.path)
                is_folder = entry.is_dir(follow_symlinks=False)
                if is_folder and depth < _MAX_DEPTH:
                    folders.append((path, depth + 1))
                elif odd or is_folder or entry.is_file(follow_symlinks=False):
                    yield path.relative_to(folder).as_posix(), path


def _sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with open_regular(path) as file:
        while block := file.read(BLOCK):
            digest.update(block)
    return digest.hexdigest()


def pack(plan: Plan, records: Sequence[Record], verdict: Verdict) -> str:
    """Return plan, records and verdict as text between two marker lines, for the end of a log.

    If that exceeds PACKED_LIMIT, the text has the number of records instead of the records.
    """
    compact = partial(json.dumps, separators=(",", ":"))
    ends = f'{{"plan":{compact(dump(plan))},', f'"verdict":{compact(dump(verdict))}}}'
    texts, size = [], 0
    for record in records:
        texts.append(compact(dump(record)))
        size += len(texts[-1])
        # The records of a large run take much memory and time.
        if size > _UNPACKED_LIMIT:
            break
    else:
        text = _packed(f'"records":[{",".join(texts)}],'.join(ends).encode())
        if len(text) <= PACKED_LIMIT:
            return text
    return _packed(f'"recordsLeftOut":{len(records)},'.join(ends).encode())


def _packed(raw: bytes) -> str:
    encoded = base64.b64encode(zlib.compress(raw, 9)).decode()
    starts = range(0, len(encoded), _LINE_LENGTH)
    lines = [encoded[start : start + _LINE_LENGTH] for start in starts]
    begin = f"{PACKED_BEGIN} {hashlib.sha256(raw).hexdigest()}"
    return "\n".join([begin, *lines, PACKED_END]) + "\n"


def is_packed(path: Path) -> bool:
    """Return True if a file contains the beginning of packed evidence."""
    with open_regular(path, follow=True) as file:
        return has_packed(iter(partial(file.read, BLOCK), b""))


def has_packed(blocks: Iterable[bytes]) -> bool:
    """Return True if blocks of a file contain the beginning of packed evidence."""
    marker, tail = PACKED_BEGIN.encode(), b""
    for block in blocks:
        if marker in tail + block:
            return True
        tail = block[-len(marker) :]
    return False


def lines_of(blocks: Iterable[bytes]) -> Iterator[bytes]:
    """Yield the lines of a file; very long lines are split into pieces."""
    rest = b""
    for block in blocks:
        *lines, rest = (rest + block).split(b"\n")
        yield from lines
        if len(rest) > BLOCK:
            yield rest
            rest = b""
    yield rest


def unpack(lines: Iterable[bytes], source: str) -> tuple[Plan, tuple[Record, ...], StoredVerdict]:
    """Read the packed evidence in a saved console or pod log, whose lines may have prefixes.

    Raise BadEvidence if the markers are missing, the text is damaged, or the records were left out.
    """
    digest, ended, size = "", False, 0
    parts: list[str] = []
    if readline := getattr(lines, "readline", None):
        # A file that is not a log may be one endless line.
        lines = iter(partial(readline, BLOCK), b"")
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
        data = from_json(raw_text)
        if not isinstance(data, dict):
            raise TypeError("it is not a JSON object")
        if "recordsLeftOut" in data:
            raise BadEvidence(
                f"{source}: {data['recordsLeftOut']} records were too many for the log",
                code=Code.EVIDENCE_TOO_LARGE_FOR_LOG,
                hint="judge the evidence folder instead; the verdict in the log is final",
            )
        return (
            _with_hash(read(Plan, data["plan"]), data["plan"], source),
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
        return read_whole(path).decode("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise _unreadable(path, error) from error


def _unreadable(path: Path, error: OSError | UnicodeDecodeError) -> BadEvidence:
    reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
    is_forbidden = isinstance(error, PermissionError)
    first = "check owner and mode of that file" if is_forbidden else "collect the run again"
    return BadEvidence(
        f"{path}: {reason}",
        code=Code.EVIDENCE_UNREADABLE,
        hint=f"{first}, or name another folder",
    )


def _parse(cls: type[T], text: str, source: str) -> T:
    """Parse JSON text."""
    try:
        return read(cls, from_json(text.encode()))
    except (ValueError, RecursionError) as error:
        raise BadEvidence(
            f"{source}: {error}",
            code=Code.EVIDENCE_DAMAGED,
            hint="the file is damaged: collect the run again",
        ) from error
