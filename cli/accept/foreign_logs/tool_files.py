"""Read what tools printed to others, by the files of these tools: `values/tools/NAME.yaml`."""

from __future__ import annotations

from collections.abc import Iterable

from accept.config.tool_file import Others
from accept.config.tools import of_others
from accept.core.causes import Cause
from accept.core.model import Problem, Tool
from accept.core.text import count, number, plain
from accept.core.tool_output import parse_of_others
from accept.evidence.untrusted import first_bytes
from accept.foreign_logs import nvbandwidth
from accept.foreign_logs.host_state import Report, ReportKind

#: Lines in which the last line of a complete output is: others may have added some.
_LAST_LINES = 100
#: Bytes that are read, and those in which the beginning of an output is looked for.
_MAX_BYTES, _START = 4 << 20, 16384


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


def _is_cut(text: str, others: Others) -> bool:
    last = text.splitlines()[-_LAST_LINES:]
    return bool(others.ends) and not any(line.startswith(others.ends) for line in last)


def read(file: str, blocks: Iterable[bytes]) -> list[Report]:
    """Return the figures and the bad parts. No content raises an error."""
    content = first_bytes(blocks, _MAX_BYTES)
    found = _tool_of(content)
    if found is None:
        return []
    others, tool = found
    text = _without_cut_line(content.decode("utf-8", "replace"), tool)
    if nvbandwidth.START in text[:_START]:
        text = nvbandwidth.as_json(text)
    parsed = parse_of_others(text, tool)
    problems = parsed.problems
    if _is_cut(text, others):
        message = f"{tool.name}: its output has no line {others.ends!r} near its end"
        problems += (Problem(cause=Cause.PARTIAL_LOG, message=message, check=tool.name),)
    values: dict[str, list[float]] = {}
    for metric in parsed.metrics:
        values.setdefault(f"{metric.name} {{}} {metric.unit}", []).append(metric.value)
    shown = [form.format(number(min(own))) for form, own in values.items()]
    shown += [count(len(problems), "problem")] if problems else []
    return [
        Report(
            file=file,
            kind=ReportKind.TOOL,
            host=nvbandwidth.host_of(text),
            tool=tool,
            metrics=parsed.metrics,
            facts=parsed.facts,
            problems=problems,
            shows=plain(f"{tool.name}: {', '.join(shown)}", 300),
        )
    ]
