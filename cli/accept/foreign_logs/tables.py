"""Read the tables of one log file, and drop tables that two files of a run both contain."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from itertools import chain
from pathlib import Path

from accept.core import nccl_tests, record_protocol, signs
from accept.core.by_key import by_key
from accept.core.causes import Cause
from accept.core.evidence import TABLES_BEGIN
from accept.core.failures import OF_TABLES, decided, launch_problems
from accept.core.nccl_tests.lines import UNKNOWN_BUS, Device, Row
from accept.core.nccl_tests.table import Log, Table
from accept.core.records import Fact, Problem
from accept.core.text import count, plain
from accept.foreign_logs import bug_report, dcgm, each_host, perftest, state_text, tool_files
from accept.foreign_logs import json as nccl_tests_json
from accept.foreign_logs.answer import Answer, answer_of
from accept.foreign_logs.host_state import Report
from accept.foreign_logs.reader import parse
from accept.foreign_logs.unwrap import OWN, plain_text


class NoLog(StrEnum):
    """A reason why a file is not a log of nccl-tests."""

    EMPTY = "the file is empty"
    NO_TABLE = "no nccl-tests results table in this file"
    NO_RESULTS = "JSON without results of nccl-tests"
    BINARY = "not a text file"
    PACKED = "packed with zstd, 7-Zip, RAR or lz4: unpack it first"
    OTHER_KIND = "not a log, by its name"
    COPIES = "tables that accept copied from logs"
    VERDICT = "a verdict of accept"
    LAUNCHER = "errors of a launcher, but no output of nccl-tests"


class Duplicate(StrEnum):
    """A file in the other format that has the same results."""

    TEXT = "same results as in a text log"
    JSON = "same results as in JSON files, one for each group"


@dataclass(frozen=True, kw_only=True)
class SkippedFile:
    """A file that was left out."""

    file: str
    reason: str


_StateReader = Callable[[str, Iterable[bytes]], Iterable[Report]]
#: Functions that recognize the beginning of a file about hosts, each with the reader of such files.
#: A reader takes the name and the content of a file, and no content raises an error.
_OF_HOSTS: tuple[tuple[Callable[[bytes], bool], _StateReader], ...] = (
    (bug_report.is_bug_report, bug_report.read),
    (dcgm.is_diag, dcgm.read),
    (perftest.is_perftest, perftest.read),
    (tool_files.is_tool, tool_files.read),
    (state_text.is_state, state_text.read),
)
#: What a record with a problem contains, and the number of them that is read.
_PROBLEM, _MOST_PROBLEMS = b'"problem"', 1000
#: A file is text if this many bytes at its start contain no NUL.
_START = 1 << 16
#: First bytes of zstd, 7-Zip, RAR and lz4.
_PACKED = (b"\x28\xb5\x2f\xfd", b"7z\xbc\xaf\x27\x1c", b"Rar!\x1a\x07", b"\x04\x22\x4d\x18")
#: Number of bytes at the end of a file that are searched for its last line.
_MAX_END = 4096


@dataclass(frozen=True, kw_only=True)
class Execution:
    """One measurement of a collective, with the hosts and GPUs that took part."""

    file: str
    #: The check of the collective; None: the log does not name the collective.
    check: str | None
    #: None: the log ends before its table.
    table: Table | None = None
    #: The devices of the table, or of all tables of processes that ran alone.
    devices: tuple[Device, ...] = ()
    #: In rank order, if the log lists them.
    hosts: tuple[str, ...] = ()
    #: Numbers of the GPUs that took part, by host; hosts without known GPUs are missing.
    gpus: dict[str, tuple[int, ...]] = field(default_factory=dict)
    #: A GPU that two ranks list, for people; "" if there is none. Then the hosts are not known.
    shared: str = ""
    problems: tuple[Problem, ...] = ()
    facts: tuple[Fact, ...] = ()

    @property
    def file_name(self) -> str:
        """Return the name of the file without its folder or archive."""
        return re.split("[/:]", self.file)[-1]

    @property
    def rows(self) -> tuple[Row, ...]:
        """Return the rows of the table, if there is one."""
        return self.table.rows if self.table else ()

    @property
    def is_split(self) -> bool:
        """Return True if several groups ran at once, so that the rows are only their mean."""
        return self.table is not None and self.table.split

    @property
    def count(self) -> int:
        """Return the most common number of GPUs on a host."""
        return Counter(map(len, self.gpus.values())).most_common(1)[0][0] if self.gpus else 0

    @property
    def with_fewer_gpus(self) -> dict[str, int]:
        """Return the number of GPUs of each host that took part with fewer than most hosts."""
        return {host: len(gpus) for host, gpus in self.gpus.items() if len(gpus) < self.count}


@dataclass(frozen=True, kw_only=True)
class Read:
    """The content of a file."""

    file: str
    #: An execution for each table.
    tables: tuple[Execution, ...] = ()
    #: Problems that belong to no table, such as launches that failed.
    problems: tuple[Problem, ...] = ()
    #: None: it is a log. A text for a file that cannot be read. A file of another program may have
    #: a problem that a known line shows.
    no_log: NoLog | str | None = None
    #: True if the file was written with `-J`.
    json: bool = False
    #: True if the problems are those of a launcher, and neither nccl-tests nor NCCL wrote a line.
    #: Any text can quote such errors: sources, notes, logs of the system.
    launcher_only: bool = False
    #: Why the job failed; None: the log shows no failure.
    answer: Answer | None = None
    #: An error beside complete tables.
    error: Problem | None = None
    #: What a program of a run reports, if no table has rows.
    reported: tuple[Problem, ...] = ()
    #: The last line that is not empty, if no table has rows.
    last: str = ""
    #: What it shows of the state of hosts, if it is such a file and no log.
    reports: tuple[Report, ...] = ()

    @property
    def has_failed(self) -> bool:
        """Return True if a program or its launcher reports a failure."""
        problems = chain(self.problems, *(table.problems for table in self.tables))
        return any(problem.cause not in OF_TABLES for problem in problems)


def read(name: str, blocks: Iterable[bytes], *, collective: str | None = None) -> Read:
    """Read a file once, in bounded memory. No content raises an error.

    `collective` ("all_reduce") is that of tables without a name; None: it is inferred.
    """
    blocks = plain_text(blocks)
    start = next(blocks, b"")
    if start.startswith(_PACKED):
        return Read(file=name, no_log=NoLog.PACKED)
    if b"\0" in start[:_START]:
        return Read(file=name, no_log=NoLog.BINARY)
    finder, end, records = signs.Finder(signs.catalog()), _End(), _Records()
    if start.startswith(TABLES_BEGIN.encode()):
        return Read(file=name, no_log=NoLog.COPIES)
    if OWN.match(start):
        return Read(file=name, no_log=NoLog.VERDICT)
    whole = chain((start,), blocks)
    if each_host.is_of_hosts(start[:_START], lambda text: _reader_of(text) is not None):
        return Read(file=name, reports=tuple(each_host.read(name, whole, _read_state)))
    if read_state := _reader_of(start):
        return Read(file=name, reports=tuple(read_state(name, whole)))
    if json := nccl_tests_json.is_json(start):
        log = nccl_tests_json.parse(whole, collective=collective)
        if not any(table.rows for table in log.tables):
            return Read(file=name, no_log=NoLog.NO_RESULTS)
    else:
        path = Path(name)
        log = parse(
            finder.watch(end.watch(records.watch(whole))),
            collective=collective,
            names=(path.name, path.parent.name),
        )
    found = finder.ranked()
    answer = answer_of(name, log, found)
    last = "" if any(table.rows for table in log.tables) else end.last
    log = replace(log, problems=decided(log.problems, found))
    launch = (*decided(launch_problems(found), found), *records.problems)
    if not log.tables:
        no_log = NoLog.NO_TABLE if start.strip() else NoLog.EMPTY
        without = _without_tables(name, log, launch, found, no_log)
        return replace(without, answer=answer, last=last, reported=records.problems)
    cause = next((match for match in found if match.sign.shows_cause), None)
    error = cause.problem() if cause and not (launch or log.problems) else None
    if len(log.tables) == 1:
        log, launch = replace(log, problems=(*launch, *log.problems)), ()
    return Read(
        file=name,
        tables=tuple(_tables(name, log)),
        problems=launch,
        error=error,
        json=json,
        answer=answer,
        last=last,
    )


class _Records:
    """Keeps the problems that the programs of a run report, for its raw logs without its records.

    A rank that found wrong data ends with exit code 0, so nothing else in its log shows that.
    """

    def __init__(self) -> None:
        self._rest = b""
        self._lines: list[bytes] = []

    def watch(self, blocks: Iterable[bytes]) -> Iterator[bytes]:
        """Pass blocks on."""
        for block in blocks:
            self._add(block)
            yield block
        self._add(b"\n")

    def _add(self, block: bytes) -> None:
        text = self._rest + block
        end = text.rfind(b"\n") + 1
        if _PROBLEM in text[:end]:
            self._lines += (line for line in text[:end].split(b"\n") if _PROBLEM in line)
            del self._lines[_MOST_PROBLEMS:]
        self._rest = text[end:][: record_protocol.MAX_LINE]

    @property
    def problems(self) -> tuple[Problem, ...]:
        """Return the problems, without those of checks that did not run."""
        found = record_protocol.parse(self._lines).problems
        return tuple(problem for problem in found if not problem.cause.row.not_tested)


def _reader_of(start: bytes) -> _StateReader | None:
    """Return the reader of a file about hosts that begins with `start`; None: it is another one."""
    return next((read_state for is_of_kind, read_state in _OF_HOSTS if is_of_kind(start)), None)


def _read_state(name: str, content: bytes) -> Iterable[Report]:
    read_state = _reader_of(content[:_START])
    return read_state(name, [content]) if read_state else ()


class _End:
    """Keeps the end of a text."""

    def __init__(self) -> None:
        self._end = b""

    def watch(self, blocks: Iterable[bytes]) -> Iterator[bytes]:
        """Pass blocks on."""
        for block in blocks:
            self._end = (self._end + block[-_MAX_END:])[-_MAX_END:]
            yield block

    @property
    def last(self) -> str:
        """Return the last line with a letter or a digit; empty if there is none."""
        lines = self._end.decode("utf-8", "replace").splitlines()
        return next((line.strip() for line in reversed(lines) if any(map(str.isalnum, line))), "")


def _without_tables(
    name: str, log: Log, launch: Sequence[Problem], found: Sequence[signs.Match], no_log: NoLog
) -> Read:
    """Return a file without tables: a log if it shows why it has none."""
    known = (Cause.UNPARSABLE, Cause.NO_TABLE)
    own = tuple(problem for problem in log.problems if problem.cause not in known)
    if not own and not launch and log.nccl_lines:
        message = f"{count(log.nccl_lines, 'line')} of NCCL's own and no table"
        shown = next((match.problem() for match in found if match.sign.shows_cause), None)
        # Nothing shows that the host in such a line was measured.
        own = (replace(shown or Problem(cause=Cause.NO_MEASUREMENT, message=message), host=None),)
    if own or launch:
        is_of_tests = any(match.sign.layer is signs.Layer.NCCL_TESTS for match in found)
        launcher_only = not is_of_tests and not log.nccl_lines
        return Read(file=name, problems=(*launch, *own), launcher_only=launcher_only)
    return Read(file=name, problems=tuple(m.problem() for m in found[:1]), no_log=no_log)


def _tables(name: str, log: Log) -> Iterator[Execution]:
    alone = [table for table in log.tables if table.alone]
    tables = [table for table in log.tables if not table.alone]
    if alone:
        # Each process ran as if it were the only one. Together they are one execution.
        devices = tuple(device for table in alone for device in table.devices)
        problems = tuple(problem for problem in log.problems if problem.host is None)
        execution = _execution(name, alone[0], devices, problems, log)
        check = next((table.check for table in log.tables if table.check), None)
        yield replace(execution, check=check)
    of_tables = {problem for table in tables for problem in table.problems}
    of_log = [p for p in log.problems if p not in of_tables] if not alone else []
    unfinished = [table for table in tables if not table.complete] or tables
    for table in tables:
        own = [
            problem
            for problem in of_log
            if _last(unfinished, problem) is table
            or (not table.rows and _is_failure_of(problem, table))
        ]
        # Problems of the table itself are a consequence of the others, so they come last.
        of_table = table.problems
        if not table.rows and any(problem.cause not in OF_TABLES for problem in own):
            of_table = tuple(p for p in of_table if p.cause is not Cause.INCOMPLETE_LOG)
        yield _execution(name, table, table.devices, (*own, *of_table), log)


def _is_failure_of(problem: Problem, table: Table) -> bool:
    """Return True if a program of this check failed."""
    return problem.cause not in OF_TABLES and problem.check in (None, table.check)


def _last(tables: list[Table], problem: Problem) -> Table:
    """Return the table of a problem of the file: the last one, if possible with its check."""
    fitting = [table for table in tables if problem.check in (None, table.check)]
    return (fitting or tables)[-1]


def _execution(
    name: str, table: Table, devices: tuple[Device, ...], problems: tuple[Problem, ...], log: Log
) -> Execution:
    if table.rows and not table.alone and len(devices) != table.ranks:
        # The list has gaps, so other hosts may have taken part in what the rows measured.
        devices = ()
    shared = _shared(devices) if not table.alone else ""
    devices = () if shared else devices
    return Execution(
        file=name,
        check=table.check,
        table=table,
        devices=devices,
        hosts=tuple(dict.fromkeys(device.host for device in devices)),
        shared=shared,
        problems=tuple(replace(p, host=None) for p in problems) if shared else problems,
        facts=(*nccl_tests.nccl_facts(log), nccl_tests.table_fact(table)),
    )


#: Buses of GPUs that have a PCI domain each. Old builds do not print the domain.
_BUSES_OF_DOMAINS = ("0x00", "0x01")


def _shared(devices: Sequence[Device]) -> str:
    """Return the first GPU that two ranks list, for people; "" if there is none."""
    seen: set[tuple[str, int, str]] = set()
    for device in devices:
        gpu = device.host, device.device, device.bus
        if gpu in seen and device.bus not in (UNKNOWN_BUS, *_BUSES_OF_DOMAINS):
            return f"GPU {device.device} [{plain(device.bus)}] of {plain(device.host, 80)}"
        seen.add(gpu)
    return ""


def deduplicate(files: Sequence[Read]) -> tuple[list[Read], list[SkippedFile]]:
    """Drop duplicate tables. Return the other files, and those that have only duplicates.

    Of several copies, the first stays. Of a table in text and in JSON, the text stays because it
    contains more. Of a split run, the JSON tables stay: there is one for each group, but the text
    has only the mean over all groups.
    """
    files, skipped = _without_copies(files)
    texts, documents = (
        by_key((table.check, table) for file in files if file.json is json for table in file.tables)
        for json in (False, True)
    )
    kept = []
    for file in files:
        others = texts if file.json else documents
        tables = tuple(
            table
            for table in file.tables
            if not _is_in(others.get(table.check, ()), table, json=file.json)
        )
        if tables or not file.tables:
            kept.append(replace(file, tables=tables))
        else:
            reason = Duplicate.TEXT if file.json else Duplicate.JSON
            skipped.append(SkippedFile(file=file.file, reason=reason))
    return kept, skipped


def _without_copies(files: Sequence[Read]) -> tuple[list[Read], list[SkippedFile]]:
    """Drop tables whose rows equal those of an earlier one; return files as `deduplicate` does.

    A table without a list of devices is also a copy if another one with such a list begins with its
    rows: the log of a run and notes of people repeat tables in this form, sometimes cut.
    """
    first: dict[tuple[object, ...], str] = {}
    listed = by_key(
        (table.rows[0], (table.rows, file.file))
        for file in files
        for table in file.tables
        if table.devices and table.rows
    )
    kept, skipped = [], []
    for file in files:
        tables = []
        original = ""
        for table in file.tables:
            rows = table.rows
            key = (table.check, *_gpus(table), rows, file.json)
            alike = listed.get(rows[0], ()) if rows and not table.devices else ()
            excerpt_of = [name for others, name in alike if others[: len(rows)] == rows]
            if excerpt_of or (rows and key in first):
                original = excerpt_of[0] if excerpt_of else first[key]
            else:
                first[key] = file.file
                tables.append(table)
        if tables or not original:
            kept.append(replace(file, tables=tuple(tables)))
        else:
            skipped.append(SkippedFile(file=file.file, reason=f"a copy of {original}"))
    return kept, skipped


def _is_in(others: Sequence[Execution], execution: Execution, *, json: bool) -> bool:
    """Return True if tables of the other format contain all results of this one."""
    gpus = _gpus(execution)
    if json:
        return any(_are_equal(execution, text) for text in others if _gpus(text) == gpus)
    if not execution.is_split:
        return False
    groups = [other for other in others if not other.is_split]
    return {*gpus} == {gpu for group in groups for gpu in _gpus(group)} != set()


def _gpus(execution: Execution) -> list[tuple[str, int]]:
    """Return host and number of the GPU of each rank."""
    return [(device.host, device.device) for device in execution.devices]


def _are_equal(document: Execution, text: Execution) -> bool:
    """Return True if a JSON table has the rows of a text table, or fewer if it was interrupted."""
    fewer = len(text.rows) - len(document.rows)
    is_whole = document.table is not None and document.table.complete
    return (fewer == 0 or (fewer > 0 and not is_whole)) and all(
        _are_equal_rows(*pair) for pair in zip(document.rows, text.rows, strict=False)
    )


def _are_equal_rows(document: Row, text: Row) -> bool:
    """Return True if a JSON row equals a text row, whose times have only seven characters."""
    if document.size != text.size:
        return False
    for (_, exact), (_, printed) in zip(document.sides(), text.sides(), strict=True):
        if exact is None or printed is None:
            if exact is not printed:
                return False
        else:
            share = 6e-6 if exact.time < 9_999_999 else 0.06
            if abs(exact.time - printed.time) > 0.0051 + share * exact.time:
                return False
    return True
