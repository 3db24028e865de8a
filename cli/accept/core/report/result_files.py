"""Write what people read with `cat`: all tables of nccl-tests, and which ranks answered.

Both files repeat what the logs and the records contain, so no judgement reads them.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from pathlib import Path

from accept.core import evidence
from accept.core.checks import REGISTRY
from accept.core.checks.connectivity import NETWORK
from accept.core.facts import NCCL_TESTS, RANK, FactKind, mapping
from accept.core.judge.hosts import find
from accept.core.nccl_tests.lines import Layout, clean, is_cut_row, layout_of, parse_row, split_nccl
from accept.core.plan import Plan
from accept.core.records import Record
from accept.core.report.text import aligned, utc
from accept.core.text import count, folded, format_size, nccl_version, number, plain

#: Lines of nccl-tests: the library, the program and the parameters of the next table, and the
#: average below a table.
_LIBRARY = re.compile(rb"# nccl-tests version [ -~]{0,80} nccl-library=(\d{4,6})")
_TORCH = re.compile(rb"# accept collective\.py, (torch [\w.+-]{1,40}), [ -~]{1,80}")
_PROGRAM = re.compile(rb"# Collective test starting: ([a-z0-9_]{1,40})")
_PARAMETERS = re.compile(
    rb"# nThreads?:? \d+ nGpus:? \d+ minBytes:? (\d{1,18}) maxBytes:? (\d{1,18}) "
    rb"step:? (\d{1,18})\((factor|bytes)\)(?: warmup iters:? (\d{1,9}) iters:? (\d{1,9}))?[ -~]*"
)
_AVERAGE = re.compile(rb"# Avg bus bandwidth *: [ -~]{1,40}")
#: The two lines above the rows of a table.
_HEADER = re.compile(rb"# +(?:size +count|\(B\) +\(elements\)) +[ -~]{0,200}")
#: The lines of a block that may be part of a table, also after the prefix of a launcher. Most
#: lines are messages of NCCL, which begin with a host, and a large run has thousands of logs.
_OF_TABLES = re.compile(rb"\n([ #\[0-9][^\n]*)")
#: Maximum length of a row, and a row of characters that control no terminal.
_LONGEST = 400
_TEXT = re.compile(rb"[ -~]{1,400}")
#: Maximum number of rows of one table, and of characters of all tables.
_MAX_ROWS, _MAX_SIZE = 1000, 16 << 20


def tables(
    folder: Path, record: Record, profile: str = "", *, most_rows: int = _MAX_ROWS
) -> Iterator[str]:
    """Yield the lines of the tables of nccl-tests in the log of an execution.

    Each table has a title, the names of its columns, and its average. `folder` is that of the
    evidence, `profile` the NCCL profile of the step if it is not that of the run.
    """
    hosts = {host for _, table in NCCL_TESTS.of(record) for host in table.hosts or ()}
    ranks = [f"{count(record.ranks, 'rank')} on"] if record.ranks else []
    group = " ".join((*ranks, count(len(record.hosts), "node")))
    program, library, parameters, in_header = "", "", "", False
    layout: Layout | None = None
    rows, cut = 0, b""
    blocks = evidence.open_log(folder, record.log) or ()
    found_lines = (_OF_TABLES.findall(b"\n" + block) for block in blocks)
    for line in map(clean, chain.from_iterable(found_lines)):
        if b" NCCL " in line:
            # It may follow the beginning of a row, and the rest of the row comes later.
            split = split_nccl(line, hosts, inside=bool(cut))
            cut = (cut + split[0])[:_LONGEST] if split is not None and split[0].strip() else cut
            continue
        if found := _LIBRARY.fullmatch(line):
            library = f"NCCL {nccl_version(int(found[1]))}"
        elif found := _TORCH.fullmatch(line):
            library = found[1].decode("ascii")
        elif found := _PROGRAM.fullmatch(line):
            program = found[1].decode("ascii")
        elif found := _PARAMETERS.fullmatch(line):
            parameters = _options(found)
        is_header = _HEADER.fullmatch(line) is not None
        if is_header and not in_header:
            words = (program or "nccl-tests", group, library, profile and f"profile {profile}")
            yield f"# {', '.join(word for word in (*words, parameters) if word)}"
            rows, layout, cut, parameters = 0, layout_of(line), b"", ""
        in_header = is_header
        row = next((text for text in (cut + line, line) if _is_row(text, layout)), b"")
        rows += bool(row)
        if row:
            cut = b""
        elif layout is not None and is_cut_row(line, layout, 3):
            cut = line[:_LONGEST]
        if is_header or _AVERAGE.fullmatch(line) or (row and rows <= most_rows):
            yield (row or line).decode("ascii").rstrip()


def _is_row(line: bytes, layout: Layout | None) -> bool:
    """Return True for a complete row of a table whose columns are known."""
    return layout is not None and bool(_TEXT.fullmatch(line)) and bool(parse_row(line, layout))


def _options(found: re.Match[bytes]) -> str:
    """Return the parameters of a table as options of nccl-tests, such as -b 8M -e 8G -f 2."""
    least, most, step, kind, warmup, iterations = found.groups()
    size = format_size(int(step))
    words = ["-b", format_size(int(least)), "-e", format_size(int(most))]
    words += ["-f", str(int(step))] if kind == b"factor" else ["-i", size]
    words += ["-w", warmup.decode(), "-n", iterations.decode()] if warmup else []
    return " ".join(words)


def write_result_files(folder: Path, plan: Plan, attempt: str, records: Sequence[Record]) -> None:
    """Write both files if the plan has such checks. Call this before `write_checksums`."""
    run = f"run {plain(attempt, 80)}, machine {plain(plan.machine.name, 80)}"
    run += f", suite {plain(plan.suite, 80)}, accept {plan.version}"
    if any(_has(name, NCCL_TESTS) for name in plan.checks):
        text = "".join(f"{line}\n" for line in _all_tables(folder, plan, records, run))
        evidence.write(folder / evidence.TABLES, text)
    if any(_has(name, RANK) for name in plan.checks):
        text = "".join(f"{line}\n" for line in _answers(records, run))
        evidence.write(folder / evidence.CONNECTIVITY, text)


def _has(check: str, kind: FactKind[object]) -> bool:
    """Return True if a check declares a kind of fact."""
    return check in REGISTRY and kind in REGISTRY[check].facts


def _all_tables(folder: Path, plan: Plan, records: Iterable[Record], run: str) -> Iterator[str]:
    yield f"{evidence.TABLES_BEGIN}: {run}"
    yield "# Their figures are those of the logs, which `accept judge` reads instead of this file."
    profiles = {step.id: step.profile for step in plan.steps}
    size = left_out = 0
    for record in records:
        if not any(_has(check, NCCL_TESTS) for check in record.checks):
            continue
        if size > _MAX_SIZE:
            left_out += 1
            continue
        lines = [*tables(folder, record, profiles.get(record.step, ""))]
        shown = sum(not line.startswith("#") for line in lines)
        measured = sum(table.rows for _, table in NCCL_TESTS.of(record))
        if not lines:
            lines.append(f"# {', '.join(record.checks)}: no table; {_end(record)}")
        elif shown < measured:
            lines.append(f"# {count(measured - shown, 'more row')}: read the log")
        size += sum(map(len, lines))
        yield from ("", _origin(record), *lines)
    if left_out:
        yield f"\n# {count(left_out, 'more log')}: see {evidence.LOGS}/{evidence.LOG_INDEX}"


def _answers(records: Sequence[Record], run: str) -> Iterator[str]:
    yield f"# hostname on every rank, over MPI: {run}"
    for record in records:
        if any(_has(check, RANK) for check in record.checks):
            yield from ("", _origin(record), *_answers_of(record))
    found = find(records)
    if found.missing:
        yield "\n# not reached"
    messages = {problem.host: problem for problem in found.problems}
    for host in found.missing:
        yield f"{plain(host, 80)}  {plain(messages[host].message)} ({messages[host].cause})"


def _answers_of(record: Record) -> Iterator[str]:
    hostnames: dict[str | None, str] = {}
    for fact, _ in RANK.of(record):
        hostnames.setdefault(fact.host, plain(mapping(fact.value).get("hostname") or "-", 80))
    ranks = Counter(fact.host for fact, _ in RANK.of(record))
    networks = {fact.host: network.text for fact, network in NETWORK.of(record)}
    pings = {m.host: f"{number(m.value)} {m.unit}" for m in record.metrics if m.name == "ping"}
    planned = record.ranks // max(1, len(record.hosts))
    yield f"# {ranks.total()} of {count(record.ranks, 'rank')} answered; {_end(record)}"
    rows = [("# node", "hostname", "ranks", "ping", "network")]
    for host in record.hosts:
        answer = (hostnames.get(host, "-"), f"{ranks[host]} of {planned}", pings.get(host, "-"))
        rows.append((plain(host, 80), *answer, plain(networks.get(host, "-"))))
    yield from aligned(rows)


def _origin(record: Record) -> str:
    """Return a line with the log, the start and the hosts of an execution."""
    start = utc(record.start, "%Y-%m-%d %H:%M:%S UTC, ")
    return f"# {plain(record.log, 300)}, {start}{plain(folded(record.hosts), 2000)}"


def _end(record: Record) -> str:
    """Return how an execution ended: its exit status and the causes of its problems."""
    status = "killed" if record.exit is None else f"exit {record.exit}"
    return ", ".join(dict.fromkeys((status, *(problem.cause for problem in record.problems))))
