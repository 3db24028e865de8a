"""Read the answers of NCCL's RAS: JSON since NCCL 2.28.7, and the text for people of older ones.

Both become the same type. A text counts only if it is complete and each line of it that matters
has the form of src/ras/client_support.cc, which is equal in 2.24 and 2.25, and from 2.26 to 2.28.3.
It names nobody in these cases, in which JSON may:

- Two or more groups of ranks are given only by their size: RAS lists the ranks of a group that is
  smaller than half of the communicator, so only the ranks of one other group follow from it.
- Several communicators have all ranks: the text does not show which has the most collectives.
- One of several communicators lacks ranks: 2.26 to 2.28.3 read those after it at a wrong address,
  because rasClientRunComms does not skip the missing ranks.
- NCCL 2.24 and 2.25 report different collective counts. Theirs also differ on healthy ranks, if
  collectives are in CUDA graphs: see ncclProfilerStartTaskEvents in src/plugin/profiler.cc of 2.26.
- NCCL 2.24 and 2.25 report both dead processes and silent ones: they list ranks without processes.

A text has counts only of collectives that differ, so only those show that a rank moved.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from accept.core import facts

#: What `launchers/programs/nccl_ras.py` writes before each line of a text, and after all of them.
_PREFIX, _END = "# ", "# end of text"


@dataclass(frozen=True, kw_only=True)
class Status:
    """The state of the ranks of an execution, as RAS reports it."""

    #: Rank -> number of collectives that it has started. A text leaves out kinds of collectives
    #: that all ranks have started equally often.
    started: Mapping[int, int]
    #: Ranks whose process is dead, or does not answer.
    dead: frozenset[int]
    silent: frozenset[int]


def statuses(answer: str, total: int) -> Iterator[Status]:
    """Yield the states in a host's answer, of the communicator with all `total` ranks.

    Each line of JSON is one, and so is each text. Of several communicators in a line of JSON, the
    one with the most collectives counts. Other lines are skipped.
    """
    text: list[str] = []
    for line in answer.splitlines():
        if line == _END:
            if status := _of_text("\n".join(text), total):
                yield status
            text = []
        elif line.startswith(_PREFIX):
            text.append(line.removeprefix(_PREFIX))
        else:
            yield from _of_json(line, total)


# JSON


def _of_json(line: str, total: int) -> Iterator[Status]:
    """Yield the state in a line of JSON, if it has one."""
    try:
        status = facts.mapping(json.loads(line))
    except (ValueError, RecursionError):
        return
    communicators = [facts.mapping(each) for each in facts.items(status.get("communicators"))]
    complete = [_communicator(each, total) for each in communicators if each.get("size") == total]
    if complete:
        yield max(complete, key=lambda each: sum(each.started.values()))


def _communicator(communicator: Mapping[str, object], total: int) -> Status:
    started: dict[int, int] = {}
    missing: dict[int, Mapping[str, object]] = {}
    for rank in map(facts.mapping, facts.items(communicator.get("ranks"))):
        number = facts.integer(rank.get("rank"))
        if number is not None and 0 <= number < total:
            counts = facts.mapping(rank.get("collective_counts")).values()
            started[number] = sum(map(facts.whole, counts))
    for rank in map(facts.mapping, facts.items(communicator.get("missing_ranks"))):
        number = facts.integer(rank.get("rank"))
        if number is not None and 0 <= number < total:
            missing[number] = facts.mapping(rank.get("status"))
    return Status(
        started=started,
        dead=frozenset(r for r, s in missing.items() if s.get("considered_dead") is True),
        silent=frozenset(r for r, s in missing.items() if s.get("unresponsive") is True),
    )


# Text

_HEAD = re.compile(
    r"NCCL version 2\.(?P<minor>2[4-8])\.\S+ compiled with CUDA \S+\n"
    r"CUDA runtime version -?\d+, driver version -?\d+\n\n"
    r"Job summary\n===========\n\n(?P<summary>(?:.*\n)*?)"
    r"\nCommunicators\.\.\. \(\d+\.\d\ds\)\n=============\n\n"
    r"Group     Comms     Nodes     Ranks     Ranks     Ranks    Status  Errors\n"
    r"    #  in group  per comm  per node  per comm  in group\n"
    r"(?P<groups>(?:(?: +\d{1,9}){3} +[\d-]+(?: +\d{1,9}){2} +[A-Z]+ +[A-Z,]+\n)+)"
)
#: The summary of a job with one GPU in each process.
_ONE_GPU_EACH = re.compile(
    r"  Nodes  Processes         GPUs  Processes     GPUs\n"
    r"\(total\)   per node  per process    \(total\)  \(total\)\n"
    r" +\d+ +\d+ +1 +(?P<processes>\d+) +\d+\n"
)
_ERRORS, _WARNINGS = "\nErrors\n======\n\n", "Warnings\n========\n\n"
#: The first line of a block. The others are indented.
_TITLE = re.compile(
    r"(?:#(\d{1,9}-\d{1,9}) \([0-9a-f]{16}\) )?(INCOMPLETE|ERROR|MISMATCH|DEAD|TIMEOUT)"
)
_GPUS = r"[\d,]+(?: \(NVML [\d,]+\))?"
_PROCESS = re.compile(rf"  Process (\d+) on node ([\da-fA-F.:]+) managing GPUs? {_GPUS}")
_OF_RANK = rf"GPU {_GPUS} managed by process (?P<pid>\d+) on node (?P<node>[\da-fA-F.:]+)"
_RANK = re.compile(rf"  Rank (?P<rank>\d{{1,9}}) -- {_OF_RANK}")
_MISSING_RANKS = re.compile(r"  The missing ranks?: (\d{1,9}(?:,\d{1,9})*)")
#: The size of a buffer of 2.24 and 2.25, which cuts the list of missing ranks.
_LINE_BUFFER = 1024
_VALUE = (
    r"(?:status (?P<status>NOCOMM|INIT|RUNNING|FINALIZE|ABORT)"
    r"|launched up to operation (?P<count>\d{1,19})|not launched any operations)"
)
_GROUP = re.compile(rf"  (?P<size>\d{{1,9}}) ranks have {_VALUE}")
_SINGLE = re.compile(rf"  Rank (?P<rank>\d{{1,9}}) has {_VALUE} -- {_OF_RANK}")
_DIFFERENT = re.compile(r"  Communicator ranks have different (status|\w+ operation counts)")

_Process = tuple[str, str]


class _FormError(ValueError):
    """A text does not have the form of NCCL's, or does not show which ranks it is about."""


def _of_text(text: str, total: int) -> Status | None:
    """Return the state in a text; None if it does not show exactly one."""
    try:
        return _read(text, total)
    except _FormError:
        return None


def _read(text: str, total: int) -> Status:
    head, errors, rest = text.partition(_ERRORS)
    body, warnings, last = rest.partition(_WARNINGS)
    match = _HEAD.fullmatch(head)
    if not (match and errors and warnings):
        raise _FormError
    is_old = int(match["minor"]) < 26
    # From 2.26 on, only some blocks have an empty line after them.
    if not text.endswith("\n\n" if is_old else "\n"):
        raise _FormError
    groups = [line.split() for line in match["groups"].splitlines()]
    are_several = sum(int(group[1]) for group in groups) > 1
    if are_several and not is_old and re.search("INCOMPLETE|NOCOMM", text):
        raise _FormError
    whole = [group for group in groups if group[4] == str(total)]
    if [group[1] for group in whole] != ["1"]:
        raise _FormError
    ((number, *_, reported),) = whole
    blocks = _blocks([*body.splitlines(), *last.splitlines()])
    own = {title: lines for (name, title), lines in blocks.items() if name == f"{number}-0"}
    if reported != (",".join(t for t in ("INCOMPLETE", "ERROR", "MISMATCH") if t in own) or "OK"):
        raise _FormError
    dead = _processes(
        blocks.get(("", "DEAD")),
        r"  (\d+) job process(?:es are| is) considered dead \(unreachable via the RAS network\)",
    )
    silent = _processes(
        blocks.get(("", "INCOMPLETE")), r"  Missing communicator data from (\d+) job process(?:es)?"
    )
    everyone = frozenset(range(total))
    if is_old:
        missing = _missing_ranks(own.get("INCOMPLETE"), everyone)
        one_each = _ONE_GPU_EACH.fullmatch(match["summary"])
        # A missing rank may also be one that left the communicator, unless the numbers are equal.
        if missing and not (
            one_each
            and one_each["processes"] == str(total)
            and len(missing) == len(dead) + len(silent)
            and not (dead and silent)
        ):
            raise _FormError
        nobody = frozenset[int]()
        return Status(
            started={}, dead=missing if dead else nobody, silent=nobody if dead else missing
        )
    processes = _processes_of_missing_ranks(own.get("INCOMPLETE"), everyone)
    if any((process in dead) == (process in silent) for process in processes.values()):
        raise _FormError
    return Status(
        started=_started(own.get("MISMATCH"), everyone - processes.keys()),
        dead=frozenset(rank for rank, process in processes.items() if process in dead),
        silent=frozenset(processes),
    )


def _blocks(lines: Sequence[str]) -> dict[tuple[str, str], list[str]]:
    """Return the blocks of errors and warnings: number of the communicator, title -> lines."""
    blocks: dict[tuple[str, str], list[str]] = {}
    current: list[str] | None = None
    for line in filter(None, lines):
        if line.startswith("  ") and current is not None:
            current.append(line)
        elif (match := _TITLE.fullmatch(line)) and (match[1] or "", match[2]) not in blocks:
            current = blocks[match[1] or "", match[2]] = []
        else:
            raise _FormError
    return blocks


def _counted(lines: Sequence[str], count: str, size: int) -> bool:
    """Return True if the first line gives this size."""
    match = re.fullmatch(count, lines[0]) if lines else None
    return match is not None and match[1] == str(size)


def _processes(lines: Sequence[str] | None, count: str) -> frozenset[_Process]:
    """Return the processes of a block; none without it."""
    if lines is None:
        return frozenset()
    matches = [match for line in lines[1:] if (match := _PROCESS.fullmatch(line))]
    found = frozenset((match[1], match[2]) for match in matches)
    if not len(found) == len(matches) == len(lines) - 1 or not _counted(lines, count, len(found)):
        raise _FormError
    return found


_COUNT_OF_RANKS = r"  Missing communicator data from (\d+) ranks?"


def _processes_of_missing_ranks(
    lines: Sequence[str] | None, everyone: frozenset[int]
) -> dict[int, _Process]:
    if lines is None:
        return {}
    matches = [match for line in lines[1:] if (match := _RANK.fullmatch(line))]
    found = {int(match["rank"]): (match["pid"], match["node"]) for match in matches}
    if (
        not len(found) == len(matches) == len(lines) - 1
        or not _counted(lines, _COUNT_OF_RANKS, len(found))
        or not found.keys() <= everyone
    ):
        raise _FormError
    return found


def _missing_ranks(lines: Sequence[str] | None, everyone: frozenset[int]) -> frozenset[int]:
    """Return the missing ranks in the form of NCCL 2.24 and 2.25."""
    if lines is None:
        return frozenset()
    match = _MISSING_RANKS.fullmatch(lines[1]) if len(lines) == 2 else None
    listed = [int(rank) for rank in match[1].split(",")] if match else []
    found = frozenset(listed)
    if (
        match is None
        or len(match[1]) >= _LINE_BUFFER - 1
        or listed != sorted(found)
        or not _counted(lines, _COUNT_OF_RANKS, len(found))
        or not found <= everyone
    ):
        raise _FormError
    return found


def _started(lines: Sequence[str] | None, ranks: frozenset[int]) -> dict[int, int]:
    """Return the collectives that each rank has started, of the kinds in a block of NCCL 2.26."""
    started = dict.fromkeys(ranks, 0)
    if lines is None:
        return started
    kinds: dict[str, list[str]] = {}
    current: list[str] | None = None
    for line in lines:
        if (match := _DIFFERENT.fullmatch(line)) and match[1] not in kinds:
            current = kinds[match[1]] = []
        elif current is not None:
            current.append(line)
        else:
            raise _FormError
    if not kinds:
        raise _FormError
    for kind, differences in kinds.items():
        groups = _ranks_by_value(differences, frozenset(started))
        if any((value in _STATUSES) != (kind == "status") for value in groups):
            raise _FormError
        if kind == "status":
            # These have left the communicator, and have no counts.
            for rank in groups.get("NOCOMM", ()):
                del started[rank]
            continue
        for value, members in groups.items():
            for rank in members:
                started[rank] += int(value)
    return started


_STATUSES = ("NOCOMM", "INIT", "RUNNING", "FINALIZE", "ABORT")


def _ranks_by_value(lines: Sequence[str], ranks: frozenset[int]) -> dict[str, frozenset[int]]:
    """Return the ranks of each group, by the value that they share."""
    sizes: dict[str, int] = {}
    listed: dict[str, list[int]] = {}
    current: str | None = None
    for line in lines:
        if match := _GROUP.fullmatch(line) or _SINGLE.fullmatch(line):
            current = match["status"] or match["count"] or "0"
            if current in sizes:
                raise _FormError
            is_group = match.re is _GROUP
            sizes[current] = int(match["size"]) if is_group else 1
            listed[current] = [] if is_group else [int(match["rank"])]
        elif (match := _RANK.fullmatch(line)) and current is not None:
            listed[current].append(int(match["rank"]))
        else:
            raise _FormError
    rest = ranks.difference(*listed.values())
    unlisted = [value for value, members in listed.items() if not members]
    found = {v: frozenset(members) if members else rest for v, members in listed.items()}
    if (
        len(unlisted) > 1
        or any(len(found[value]) != size for value, size in sizes.items())
        or any(len(members) not in (0, sizes[value]) for value, members in listed.items())
        or sum(sizes.values()) != len(ranks)
        or frozenset().union(*found.values()) != ranks
    ):
        raise _FormError
    return found
