"""Read what tools printed to others, by the files of these tools: `values/tools/NAME.yaml`."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable

from accept.config.tool_file import Others
from accept.config.tools import of_others
from accept.core.by_key import by_key
from accept.core.causes import Cause
from accept.core.plan import Tool
from accept.core.records import Problem
from accept.core.text import count, number, plain
from accept.core.tool_output import parse_of_others
from accept.evidence.untrusted import first_bytes
from accept.foreign_logs.host_state import Report, ReportKind

#: Lines in which the last line of a complete output is: others may have added some.
_LAST_LINES = 100
#: Bytes that are read, and those in which the beginning of an output is looked for.
_MAX_BYTES, _START = 4 << 20, 16384

#: The text that nvbandwidth prints without `-j`, in the forms of 0.2 to 0.10: output.cpp,
#: nvbandwidth.cpp and error_handling.h of NVIDIA/nvbandwidth.
_NVBANDWIDTH = "nvbandwidth Version: "
#: The text that ends with this line, and the versions that print no last line.
_NVBANDWIDTH_END = "NOTE: The reported results"
_NVBANDWIDTH_WITHOUT_END = re.compile(rf"{_NVBANDWIDTH}v0\.[1-5]\b")
#: Lines that are read; a full run on eight GPUs prints about 700.
_MAX_LINES = 20_000
_RUNNING = re.compile(r"Running (\w{1,80})\.\s*$")
_DEVICE = re.compile(r"Device \d{1,3}: ")
_HOST = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,252}")
#: A row of a matrix: the number of the row, then a value or N/A for each column.
_ROW = re.compile(r"\s*\d{1,4}((?:\s+(?:\d{1,9}\.\d{1,4}|N/A)){1,128})\s*$")
#: `Waiving NAME.` up to 0.2, then `Waived: ` without a name.
_WAIVED = re.compile(r"Waiving (\w{1,80})\.\s*$|Waived: ?$")
_ERROR = re.compile(r"(Error: .{1,200})")
_FAILED = re.compile(
    r"\s*(ASSERT in expression .{1,300}|\[CUDA_ERROR\w{1,60}\] .{1,300}|"
    r"Invalid value when checking the pattern .{1,100})"
)
#: Devices in JSON: `0: NVIDIA H100 (00000000:18:00): (gpu017)`.
_LISTED_HOST = re.compile(r"\((" + _HOST.pattern + r")\)$")


def is_tool(start: bytes) -> bool:
    """Return True if a file begins like the output of a known tool."""
    return _tool_of(start) is not None


def _tool_of(start: bytes) -> tuple[Others, Tool] | None:
    begin = start[:_START]
    for others, tool in of_others():
        if any(text.encode() in begin for text in others.starts):
            return others, tool
    return None


def _without_cut_line(text: str, tool: Tool) -> str:
    """Return the output of a tool that prints lines without a last one that has no end."""
    prints_lines = any(r.line for r in tool.results) or bool(tool.parts and tool.parts.line)
    return text[: text.rfind("\n") + 1] if prints_lines else text


def _missing_end(text: str, others: Others) -> str:
    """Return the line that an output should have near its end; empty: it has it, or needs none."""
    start, ends = text[:_START], others.ends
    if _NVBANDWIDTH in start and not _NVBANDWIDTH_WITHOUT_END.search(start):
        ends = _NVBANDWIDTH_END
    has_end = any(line.startswith(ends) for line in text.splitlines()[-_LAST_LINES:])
    return "" if has_end else ends


def read(file: str, blocks: Iterable[bytes]) -> list[Report]:
    """Return the figures and the bad parts. No content raises an error."""
    content = first_bytes(blocks, _MAX_BYTES)
    found = _tool_of(content)
    if found is None:
        return []
    others, tool = found
    text = _without_cut_line(content.decode("utf-8", "replace"), tool)
    end = _missing_end(text, others)
    if _NVBANDWIDTH in text[:_START]:
        text = nvbandwidth_json(text)
    parsed = parse_of_others(text, tool)
    problems = parsed.problems
    if end:
        message = f"{tool.name}: its output has no line {end!r} near its end"
        problems += (Problem(cause=Cause.PARTIAL_LOG, message=message, check=tool.name),)
    values = by_key((f"{m.name} {{}} {m.unit}", m.value) for m in parsed.metrics)
    shown = [form.format(number(min(own))) for form, own in values.items()]
    shown += [count(len(problems), "problem")] if problems else []
    return [
        Report(
            file=file,
            kind=ReportKind.TOOL,
            host=host_of(text),
            tool=tool,
            metrics=parsed.metrics,
            facts=parsed.facts,
            problems=problems,
            shows=plain(f"{tool.name}: {', '.join(shown)}", 300),
        )
    ]


def nvbandwidth_json(text: str) -> str:
    """Return a printed output as the JSON that `-j` prints, with the first matrix of each test."""
    tests: list[dict[str, object]] = []
    matrix: list[list[str]] = []
    for line in text.splitlines()[:_MAX_LINES]:
        if found := _RUNNING.match(line):
            matrix = []
            tests.append({"name": found[1], "status": "Running", "bandwidth_matrix": matrix})
        elif found := _WAIVED.match(line):
            tests.append({"name": found[1] or "", "status": "Waived"})
        elif not tests:
            continue
        elif found := _FAILED.match(line) or _ERROR.match(line):
            # The first line of an error shows most.
            if tests[-1]["status"] == "Running":
                tests[-1] |= {"status": "Error", "error": found[1].strip()}
        elif line.startswith("SUM "):
            tests[-1]["status"] = "Passed"
            matrix = []
        elif (found := _ROW.match(line)) and tests[-1]["status"] == "Running":
            matrix.append(found[1].split())
    return json.dumps(
        {"nvbandwidth": {"testcases": tests, "GPU Device list": [_printed_host(text)]}}
    )


def _printed_host(text: str) -> str:
    """Return the host above the devices, as newer versions print it, in the form of JSON."""
    before = ""
    for line in text.splitlines()[:200]:
        if _DEVICE.match(line):
            return f"({before})" if _HOST.fullmatch(before) else ""
        before = line.strip()
    return ""


def host_of(document: str) -> str:
    """Return the only host of the devices in JSON; empty: none, or several."""
    try:
        listed = json.loads(document)["nvbandwidth"]["GPU Device list"]
        found = {match[1] for one in listed if (match := _LISTED_HOST.search(str(one)))}
    except (ValueError, KeyError, TypeError, RecursionError):
        return ""
    return found.pop() if len(found) == 1 else ""
