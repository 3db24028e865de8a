"""Read what tools printed to others, by the files of these tools: `values/tools/NAME.yaml`."""

from __future__ import annotations

from collections.abc import Iterable

from accept.config.tools import of_others
from accept.core.model import Tool
from accept.core.text import count, number, plain
from accept.core.tool_output import parse_of_others
from accept.evidence.untrusted import first_bytes
from accept.foreign_logs import nvbandwidth
from accept.foreign_logs.host_state import Report, ReportKind

#: Bytes that are read, and those in which the beginning of an output is looked for.
_MAX_BYTES, _START = 4 << 20, 16384


def is_tool(start: bytes) -> bool:
    """Return True if a file begins like the output of a known tool."""
    return _tool_of(start) is not None


def _tool_of(start: bytes) -> Tool | None:
    begin = start[:_START]
    return next((tool for texts, tool in of_others() if any(t in begin for t in texts)), None)


def read(file: str, blocks: Iterable[bytes]) -> list[Report]:
    """Return the figures and the bad parts. No content raises an error."""
    content = first_bytes(blocks, _MAX_BYTES)
    tool = _tool_of(content)
    if tool is None:
        return []
    text = content.decode("utf-8", "replace")
    if nvbandwidth.START in text[:_START]:
        text = nvbandwidth.as_json(text)
    parsed = parse_of_others(text, tool)
    values: dict[str, list[float]] = {}
    for metric in parsed.metrics:
        values.setdefault(f"{metric.name} {{}} {metric.unit}", []).append(metric.value)
    shown = [form.format(number(min(own))) for form, own in values.items()]
    shown += [count(len(parsed.problems), "problem")] if parsed.problems else []
    return [
        Report(
            file=file,
            kind=ReportKind.TOOL,
            host=nvbandwidth.host_of(text),
            tool=tool,
            metrics=parsed.metrics,
            facts=parsed.facts,
            problems=parsed.problems,
            shows=plain(f"{tool.name}: {', '.join(shown)}", 300),
        )
    ]
