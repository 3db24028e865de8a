"""Read what a program of others printed, at the places that its file names.

A result is found by a JSON Pointer (RFC 6901; `*` is every element of a list or object, `KEY=VALUE`
each that has it), or by the beginning of a line with placeholders: `{value}` is a number, `{unit}`
its unit as printed, `{state}` good or bad, `{gpu}` the number of a GPU, `{_}` any word; the last
three of them end before the character that follows in the line. This form cannot make reading slow,
as a regular expression of somebody else could. Logs are untrusted: nothing here raises for them.
"""

from __future__ import annotations

import json
import math
import re
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from itertools import islice
from typing import NamedTuple

from accept.core import record_protocol
from accept.core.causes import Cause
from accept.core.facts import FactKind, integer, items, mapping, text
from accept.core.plan import Tool, ToolParts, ToolResult
from accept.core.records import Fact, Metric, Parsed, Problem
from accept.core.serde import from_json
from accept.core.text import plain

_STREAMS = (b"out", b"err")
#: Values of one result, elements of a list that are looked at, and characters of a line in which a
#: result is searched.
MOST_VALUES, _MOST_ELEMENTS, _MOST_LINE = 256, 4096, 2000
#: Bytes and lines of an output that are read: more than `launchers/programs/tool.py` prints.
_MOST_OUTPUT, _MOST_LINES = 5 << 20, 100_000
#: Statuses with which a shell or loader reports that it cannot start a program.
_NOT_STARTED = (126, 127)
#: Largest number that a result may have.
_MOST_NUMBER = 1e300
#: A number, also such as 0x4.
_NUMBER = re.compile(r"0x[\da-fA-F]{1,12}|[-+]?\d{1,30}(?:\.\d{1,30})?(?:[eE][-+]?\d{1,3})?")
#: What placeholders of a line stand for; `%s` is the character after it.
PLACEHOLDERS = {
    "value": rf"(?P<value>{_NUMBER.pattern})",
    "unit": r"(?P<unit>[^\s\d%s][^\s%s]{0,15})",
    "_": r"[^\s%s]{1,200}",
    "state": r"(?P<state>[^\s%s]{1,40})",
    "gpu": r"(?P<gpu>\d{1,4})",
}
_PLACEHOLDER = re.compile(r"\{(\w+)\}")
#: What is between the numbers of two GPUs in a line.
_BETWEEN = re.compile(r"\s+(?:-\s+)?")
#: A number of errors, a note in parentheses after it, and what is before the next number.
_ERRORS = re.compile(r"\s*(-?\d{1,20})\b\s*(?:\([^()]{1,40}\)\s*)?(-\s)?")
_NO_END = re.compile(r"\{(?:_|state|unit)\}\{")
_MARKED = re.compile(rb"tool (out|err)(?:@(\d{1,2}\.\d{1,3}))?(\+?)\| ?(.*)", re.DOTALL)


class Ending(NamedTuple):
    """The end of a tool on a host, as `launchers/programs/tool.py` reports it."""

    #: The reasons why it did not run; empty: it did.
    missing: str
    unusable: str
    #: None: it was ended, because of `ended`.
    exit: int | None
    ended: str
    #: Processes and files that it left behind. The processes were ended.
    left: tuple[str, ...]
    #: The rank in a pair (1: the server), and the number and name of the NIC.
    rank: int = 0
    number: int = 0
    nic: str = ""
    #: The reason why the other host of a pair did not take part.
    gone: str = ""

    @property
    def ended_well(self) -> bool:
        """Return True if it did what was ordered; a server is ended after that."""
        return (self.exit == 0 or self.ended == "over") and not self.left


def _ending(value: object) -> Ending:
    given = mapping(value)
    missing, unusable, ended, gone = (
        plain(text(given.get(k)) or "", 300) for k in ("missing", "unusable", "ended", "gone")
    )
    left = tuple(plain(one, 200) for one in items(given.get("left"))[:16])
    rank, number = (integer(given.get(k)) or 0 for k in ("rank", "number"))
    nic = plain(text(given.get("nic")) or "", 64)
    return Ending(
        missing, unusable, integer(given.get("exit")), ended, left, rank, number, nic, gone
    )


ENDING = FactKind("tool", _ending)


class _Repeated:
    """Stand for several values of one key: any of them may be the bad one."""


class Unread(Exception):
    """The reason why a result cannot be read, for people."""


class _Ambiguous(Unread):
    """The reason for a place with more than one value, which is not one of another form."""


def parse(lines: Iterable[bytes], tool: Tool) -> Parsed:
    """Parse the log of one host or pair. Never raises."""
    outputs, others = _outputs(lines)
    records = record_protocol.parse(others, tool.name)
    metrics, problems = [*records.metrics], [*records.problems]
    endings = [*ENDING.among(records.facts)]
    for fact, ending in endings[: MOST_VALUES if tool.server or tool.per_nic else 1]:
        out, err = (outputs.get((name, ending.rank, ending.number), "") for name in _STREAMS)
        bad = [*_problems(tool, ending, fact.host, out, err)]
        if ending.exit == 0 and not ending.rank:
            read, unread = _results(tool, fact, out)
            metrics += [replace(m, nic=ending.nic) for m in read] if ending.nic else read
            bad += [*unread, *_without_state(tool, read, out)]
        if tool.server:
            # The pairs show which of its hosts is bad, but what one lacks is its own.
            own = [replace(p, host=fact.host) if p.cause.row.not_tested else p for p in bad]
            bad = [replace(p, nic=ending.nic or None) for p in own]
        problems += bad
    if not (endings and (metrics or problems)) and not problems:
        gone = next((ending.gone for _, ending in endings if ending.gone), "its log has no end")
        if not endings or tool.server:
            problems.append(_problem(tool, Cause.NO_MEASUREMENT, gone))
    return Parsed(metrics=tuple(metrics), facts=records.facts, problems=tuple(problems))


def parse_of_others(out: str, tool: Tool) -> Parsed:
    """Parse what a tool printed to others, who may have measured only a part. Never raises."""
    fact = Fact(name=ENDING.name, value={"exit": 0})
    metrics, problems = _results(tool, fact, out)
    bad = [*_bad_parts(tool, tool.parts, out)] if tool.parts else []
    lacking = [*_without_state(tool, metrics, out)]
    bad += [replace(problem, cause=Cause.PARTIAL_LOG) for problem in lacking]
    # One test of several leaves the figures of the others 0; a GPU with 0 is bad.
    metrics = [m for m in metrics if m.value or m.gpu] or metrics
    unread = () if metrics or bad else problems
    # No command was ordered that could be wrong: the file is cut, or of another version.
    problems = [
        replace(p, cause=Cause.PARTIAL_LOG) if p.cause is Cause.WRONG_COMMAND else p
        for p in (*bad, *unread)
    ]
    return Parsed(metrics=tuple(metrics), facts=(fact,), problems=tuple(problems))


def _outputs(lines: Iterable[bytes]) -> tuple[dict[tuple[bytes, int, int], str], list[bytes]]:
    """Return the outputs and errors of the tool by stream, rank and NIC; the lines with records."""
    parts: dict[tuple[bytes, int, int], list[bytes]] = {}
    others = []
    size = count = 0
    for block in lines:
        for line in block.split(b"\n"):
            if found := _MARKED.match(line):
                name, label, continues, content = found.groups()
                size, count = size + len(content), count + 1
                if size > _MOST_OUTPUT or count > _MOST_LINES:
                    continue
                rank, number = map(int, (label or b"0.0").split(b"."))
                own = parts.setdefault((name, rank, number), [])
                own += [content] if continues else [b"\n", content]
            elif b"ACCEPT {" in line:
                others.append(line)
    return {key: b"".join(own).decode(errors="replace") for key, own in parts.items()}, others


def _problem(tool: Tool, cause: Cause, message: str, host: str | None = None) -> Problem:
    """Return a problem that accuses no host: what most hosts have is not the fault of one.

    Its message names `host`.
    """
    where = f"{tool.name} on {plain(host, 64)}" if host else tool.name
    return Problem(cause=cause, message=f"{where}: {message}", check=tool.name)


def _problems(
    tool: Tool, ending: Ending, host: str | None, out: str, err: str
) -> Iterator[Problem]:
    """Yield what is wrong with the end of a tool, and with the parts that it tested."""
    reason = _why_bad(tool, ending, err or out)
    own = [_problem(tool, *reason, host)] if reason else []
    if tool.parts and ending.exit is not None:
        parts = [*_bad_parts(tool, tool.parts, out)]
        if ending.exit < 0:
            # It was interrupted, so only what it found before counts.
            parts = [p for p in parts if p.cause is tool.cause]
        elif ending.exit and any(p.cause is Cause.WRONG_COMMAND for p in parts):
            # It could not test, and no part is at fault.
            parts = [replace(p, cause=Cause.TOOL_UNUSABLE) for p in own]
        # What it reports about a part explains its status.
        own = [p for p in own if not (parts and p.cause is tool.cause)] + parts
    yield from own


def _why_bad(tool: Tool, ending: Ending, output: str) -> tuple[Cause, str] | None:
    """Return the cause and the reason if a tool did not run, or did not end well."""
    if ending.missing:
        return Cause.TOOL_MISSING, ending.missing
    if ending.unusable:
        return Cause.TOOL_UNUSABLE, ending.unusable
    if ending.ended_well or ending.gone:
        return None
    cause, code = Cause.TOOL_FAILED, ending.exit
    if ending.ended == "time":
        reason = f"it did not end within {tool.timeout:g} s"
    elif ending.ended == "output":
        reason = "it did not stop printing, and was ended"
    elif ending.ended == "deaf":
        reason = f"its server did not listen on port {tool.port}"
    elif not code:
        reason = ""
    else:
        words = [line.strip() for line in output.splitlines() if line.strip()]
        quote = f" ({plain(words[-1], 160)})" if words else ""
        reason = f"signal {-code} ended it{quote}"
        if code in _NOT_STARTED:
            cause = Cause.TOOL_UNUSABLE
            reason = f"it, or a program or library that it needs, cannot be started{quote}"
        elif code > 0:
            # Only its own status means what its file states.
            cause = tool.cause
            reason = f"it ended with status {code}{quote}{': ' if tool.meaning else ''}"
            reason += tool.meaning
    left = f"it left something behind: {', '.join(ending.left)}" if ending.left else ""
    return cause, "; ".join(filter(None, (reason, left))) or "it did not end"


# Results


def _bad_parts(tool: Tool, parts: ToolParts, out: str) -> Iterator[Problem]:
    """Yield the parts that are bad by the tool's own words; also if it tested none."""
    state, keys = parts.state or "state", parts.gpu or ("gpu",)
    found: Iterable[Mapping[str, object]]
    # Not all that are found are kept: an output may have a million lines.
    bad: list[Mapping[str, object]] = []
    is_tested = False
    try:
        if parts.json:
            found = map(mapping, _at(_document(out), parts.json.split("/")[1:], ""))
        else:
            found = ({"": one.string, **one.groupdict()} for one in _lines(parts.line, out))
        for one in found:
            value = _state_of(one, state)
            if not _is_bad(parts, value):
                is_tested |= value in parts.good
            elif len(bad) < MOST_VALUES:
                bad.append(one)
    except (Unread, RecursionError) as error:
        yield _problem(tool, Cause.WRONG_COMMAND, str(error))
        return
    if not (bad or is_tested):
        yield _problem(tool, Cause.TOOL_UNUSABLE, "it tested nothing")
    for one in bad:
        is_gpu = all(one.get(key, value) == value for key, value in parts.gpu_where.items())
        numbers = (str(one[key]) for key in keys if isinstance(one.get(key), int | str))
        gpu = next(numbers, "") if is_gpu else ""
        try:
            quote = plain(next(_at(one, parts.text.split("/")[1:], "")), 300) if parts.text else ""
        except Unread:
            quote = ""
        shown = f"{f'GPU {gpu}' if gpu else state} is {plain(_state_of(one, state), 40)}"
        message = quote or (shown if gpu or parts.json else plain(str(one[""]), 200))
        if _is_untested(parts, one):
            yield _problem(tool, Cause.TOOL_UNUSABLE, message)
            continue
        named = gpu if gpu.isascii() and gpu.isdigit() and len(gpu) < 5 else None
        yield replace(_problem(tool, tool.cause, message), gpu=named)
    accused = {one.get("gpu") for one in bad}
    for gpu, errors in _errors(parts.errors, out).items():
        if gpu not in accused:
            yield replace(_problem(tool, tool.cause, f"GPU {gpu} has errors: {errors}"), gpu=gpu)


def _errors(before: str, out: str) -> dict[str, str]:
    """Return the GPUs that have errors in any line, with their last number of errors."""
    found: dict[str, str] = {}
    for line in out.splitlines() if before else ():
        own = line[:_MOST_LINE]
        position, gpu = own.find(before) + len(before), 0
        while before in own and (one := _ERRORS.match(own, position)):
            if int(one[1]):
                found[str(gpu)] = one[1]
            position, gpu = one.end(), gpu + 1
            if not one[2]:
                break
    return found


def _without_state(tool: Tool, metrics: Iterable[Metric], out: str) -> Iterator[Problem]:
    """Yield the GPUs that have figures, and no line with their state."""
    parts = tool.parts
    if parts is None or "{gpu}" not in parts.line:
        return
    # Other lines may begin like these, such as those with the names of the GPUs.
    shown = {
        found["gpu"]
        for found in _lines(parts.line, out)
        if found["state"] in parts.good or _is_bad(parts, found["state"])
    }
    for gpu in dict.fromkeys(m.gpu for m in metrics if m.gpu and m.gpu not in shown):
        yield _problem(tool, Cause.TOOL_UNUSABLE, f"GPU {gpu} has figures, but no state")


def _state_of(one: Mapping[str, object], key: str) -> str:
    """Return the state of a part as text, also that of a number; empty: it has none.

    Raises Unread for one of another form: left out, a bad part would pass because of the others.
    """
    value = one.get(key)
    if isinstance(value, _Repeated):
        raise _Ambiguous(f"{key} has more than one value")
    if isinstance(value, int | str):
        return str(value)
    if value is not None:
        raise Unread(f"{key} is {plain(json.dumps(value, default=str), 60)}, not a text")
    return ""


def _is_bad(parts: ToolParts, value: str) -> bool:
    return value in parts.bad if parts.bad else value not in ("", *parts.good)


def _is_untested(parts: ToolParts, one: Mapping[str, object]) -> bool:
    """Return True if all errors of a bad part are of kinds that say nothing about it."""
    try:
        kinds = {str(kind) for kind in _at(one, parts.kind.split("/")[1:], "")}
    except Unread:
        return False
    return bool(parts.kind) and kinds <= {*parts.untested}


def _results(tool: Tool, fact: Fact, out: str) -> tuple[list[Metric], list[Problem]]:
    metrics, problems = [], []
    for result in tool.results:
        try:
            values = [*islice(_values(result, out), MOST_VALUES)]
            if not values:
                raise Unread(f"its output has no line {result.line!r}")
        except (Unread, RecursionError) as error:
            reason = f"no {result.name}: {error}"
            problems.append(_problem(tool, Cause.WRONG_COMMAND, reason))
            continue
        metrics += [
            Metric(
                check=tool.name,
                name=result.name,
                value=value,
                unit=result.unit,
                host=fact.host,
                rank=gpu,
                gpu=None if gpu is None else str(gpu),
            )
            for value, gpu in values
        ]
    return metrics, problems


def _values(result: ToolResult, out: str) -> Iterator[tuple[float, int | None]]:
    """Yield the numbers of a result, each with its GPU. Raises Unread."""
    if result.json:
        keys, after = result.json.split("/")[1:], 0
        if result.of_gpu:
            after = keys[::-1].index("*") + 1
        for value in _at(_document(out), keys[: len(keys) - after], ""):
            if not after:
                yield _number(value, result), None
                continue
            for gpu, one in enumerate(items(value)):
                for inner in _at(one, keys[len(keys) - after + 1 :], ""):
                    # A GPU has no figure with itself.
                    if inner != "N/A":
                        yield _number(inner, result), gpu
        return
    before, _, _ = result.line.partition("{value}")
    begin = _begin_pattern("" if _PLACEHOLDER.search(before) else before)
    lines = _lines(result.line, out, begin)
    for found in deque(lines, maxlen=1) if result.last else lines:
        if found.re is begin:
            # Left out, the number of a bad part would pass because of those of the others.
            line = plain(json.dumps(found.string), 100)
            raise Unread(f"its line {line} does not have the form {result.line!r}")
        printed = found.groupdict().get("unit") or result.unit
        if printed != result.unit:
            raise Unread(f"it is printed in {plain(printed, 16)}, not in {result.unit}")
        if not result.of_gpu:
            yield _number(found["value"], result), None
            continue
        for gpu, own in enumerate(_of_each_gpu(result.line, found)):
            yield _number(own["value"], result), gpu


def _of_each_gpu(line: str, found: re.Match[str]) -> Iterator[re.Match[str]]:
    """Yield what begins at the first placeholder of a line, as often as it is repeated there."""
    before, brace, after = line.partition("{")
    pattern, position = line_pattern(brace + after), len(before.split())
    words = [*re.finditer(r"\S+", found.string)][position:]
    position = words[0].start() if words else len(found.string)
    while own := pattern.match(found.string, position):
        yield own
        between = _BETWEEN.match(found.string, own.end())
        position = between.end() if between else len(found.string)


def _lines(line: str, out: str, begin: re.Pattern[str] | None = None) -> Iterator[re.Match[str]]:
    """Yield the lines of an output that begin like `line`, or else like `begin`."""
    pattern = line_pattern(line)
    for text_ in out.splitlines() if line else ():
        own = text_[:_MOST_LINE].strip()
        if found := pattern.match(own) or (begin and begin.match(own)):
            yield found


@lru_cache(maxsize=64)
def _begin_pattern(before: str) -> re.Pattern[str] | None:
    """Return the pattern of a text with some number after it, also in an unknown form."""
    if not before.strip():
        return None
    words = r"\s+".join(map(re.escape, before.split()))
    blank = r"\s+" if before[-1].isspace() else ""
    return re.compile(rf"{words}{blank}[-+.]{{0,2}}(?:\d|nan|inf|n/a)", re.ASCII | re.IGNORECASE)


def _number(value: object, result: ToolResult) -> float:
    """Return a number, also one that is printed as a text, in the result's unit. Raises Unread."""
    number = value
    if isinstance(number, str) and _NUMBER.fullmatch(number.strip()):
        number = int(number, 16) if "x" in number else float(number)
    if isinstance(number, bool) or not isinstance(number, int | float):
        number = math.nan
    # Not all integers can become a float.
    if abs(number) <= _MOST_NUMBER and abs(number * result.scale) <= _MOST_NUMBER:
        return float(number * result.scale)
    place = result.json or result.line
    raise Unread(f"{place} is {plain(json.dumps(value), 60)}, not a number")


def why_ambiguous(line: str) -> str:
    """Return why the end of a placeholder of a line cannot be found; empty: it can."""
    names = [name for name in _PLACEHOLDER.findall(line) if name in PLACEHOLDERS and name != "_"]
    if _NO_END.search(line):
        return "after {_}, {state} and {unit}, a blank or a text must follow"
    if len(names) > len({*names}):
        return "only {_} can be in a line more than once"
    return ""


@lru_cache(maxsize=64)
def line_pattern(line: str) -> re.Pattern[str]:
    """Return the pattern of the beginning of a line; blanks mean any white space. Raises Unread."""
    if reason := why_ambiguous(line):
        raise Unread(f"{plain(line, 100)}: {reason}")
    words = []
    for word in line.split():
        parts = _PLACEHOLDER.split(word)
        texts = [re.escape(text_) for text_ in parts[::2]]
        names = zip(parts[1::2], parts[2::2], strict=True)
        # No character may belong to a placeholder and to what follows: reading takes one way.
        parts[1::2] = (
            PLACEHOLDERS[name].replace("%s", re.escape(after[:1]))
            if name in PLACEHOLDERS
            else re.escape(f"{{{name}}}")
            for name, after in names
        )
        parts[::2] = texts
        words.append("".join(parts))
    return re.compile(r"\s+".join(words) + r"(?!\S)", re.ASCII)


@lru_cache(maxsize=1)
def _document(out: str) -> object:
    """Return the JSON document of an output; lines before it are skipped. Raises Unread."""
    begin = re.search(r"^[ \t]*[{\[]", out, re.MULTILINE)
    body = out[begin.start() :].rstrip() if begin else ""
    end = max(body.rfind("}"), body.rfind("]")) + 1
    try:
        return from_json(body[:end].encode(), repeated=_Repeated())
    except (ValueError, RecursionError):
        raise Unread("its output is not JSON") from None


def _at(value: object, keys: Sequence[str], path: str) -> Iterator[object]:
    """Yield the values at a pointer. Raises Unread, with what is there instead."""
    if isinstance(value, _Repeated):
        raise _Ambiguous(f"{path} has more than one value")
    if not keys:
        yield value
        return
    key = keys[0].replace("~1", "/").replace("~0", "~")
    inside = mapping(value)
    if isinstance(value, list):
        inside = {str(number): one for number, one in enumerate(value[:_MOST_ELEMENTS])}
    name, selects, wanted = key.partition("=")
    names = [key] if key in inside else []
    if key == "*" or selects:
        names = [*islice(inside, _MOST_ELEMENTS)]
    if selects:
        names = [one for one in names if str(mapping(inside[one]).get(name)) == wanted]
    if not names:
        known = ", ".join(islice(inside, 8)) or "nothing"
        raise Unread(f"{path or 'the output'} has no {key!r}; it has {plain(known, 200)}")
    if key != "*" and not selects:
        yield from _at(inside[key], keys[1:], f"{path}/{key}")
        return
    # Elements of another form are left out, unless all are.
    reasons: list[Unread] = []
    for name in names:
        try:
            yield from _at(inside[name], keys[1:], f"{path}/{name}")
        except _Ambiguous:
            raise
        except Unread as error:
            reasons.append(error)
    if len(reasons) == len(names):
        raise reasons[0]
