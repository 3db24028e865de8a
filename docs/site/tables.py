"""Generate tables of machines, suites, checks, causes and codes from the program's own lists."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from docs.site.program import Json, code, items, mapping, prose, result_of, table, texts

from accept.core.causes import Cause
from accept.core.text import count

#: First characters of codes, and the title of their table.
_KINDS: Final = {
    "E": "Errors",
    "W": "Warnings and findings",
    "R": "Rows of accept doctor",
    "D": "Reasons in a drill",
}


def machines() -> str:
    """Return a table of all machines."""
    names = [texts(entry)["name"] for entry in items(result_of("list", "machines")["machines"])]
    rows = []
    for name in names:
        machine = result_of("show", "machine", name)
        rows.append(
            (
                code(name),
                str(machine["description"]),
                _nvlink(machine.get("nvlink")),
                _nics(machine.get("nics")),
                str(machine["confidence"]),
            )
        )
    return table(("machine", "node", "NVLink of a GPU", "NICs", "confidence"), rows)


def _nvlink(value: Json) -> str:
    if value is None:
        return ""
    nvlink = mapping(value)
    nodes = f", {nvlink['nodes']} nodes" if nvlink["nodes"] != 1 else ""
    return f"{_number(nvlink['gbytesPerSecond'])} GB/s{nodes}"


def _nics(value: Json) -> str:
    if value is None:
        return ""
    nics = mapping(value)
    rdma = ", RDMA" if nics["rdma"] else ""
    return f"{nics['count']} x {_number(nics['gbps'])} Gbit/s{rdma}"


def _number(value: Json) -> str:
    assert isinstance(value, int | float)
    return f"{value:g}"


def suites() -> str:
    """Return the checks of each suite in their order."""
    return "\n".join(
        part
        for entry in items(result_of("list", "suites")["suites"])
        for part in _suite(texts(entry)["name"])
    )


def _suite(name: str) -> Iterator[str]:
    suite = result_of("show", "suite", name)
    yield f"### Suite {name}\n\n{prose(str(suite['description']))}\n"
    rows = []
    for value in items(suite["checks"]):
        entry = mapping(value)
        params = ", ".join(f"{key}: {item}" for key, item in mapping(entry["params"]).items())
        check = str(entry["check"])
        rows.append(
            (
                f"[{check}](#check-{check})",
                code(str(entry["groups"])) if entry.get("groups") else "",
                code(params) if params else "",
                prose(str(entry.get("finds", ""))),
            )
        )
    yield table(("check", "groups", "parameters", "finds what no other check of it does"), rows)


def checks() -> str:
    """Return a section for each check: groups, tools, parameters, metrics and faults."""
    names = [texts(entry)["name"] for entry in items(result_of("list", "checks")["checks"])]
    return "\n".join(part for name in names for part in _check(name))


def _check(name: str) -> Iterator[str]:
    check = result_of("show", "check", name)
    groups = [code(str(group)) for group in items(check["groups"])]
    tools = [" or ".join(map(str, items(names))) for names in items(check["tools"])]
    faults = [code(str(fault)) for fault in items(check["faults"])]
    yield f"(check-{name})=\n### {name}\n"
    about = str(check["about"])
    yield f"{prose(about[:1].upper() + about[1:])}.\n"
    yield f"- Groups: {', '.join(groups)}; the first is the default"
    yield f"- Tools: {', '.join(tools) or 'none'}"
    yield f"- Faults of a drill that it detects: {', '.join(faults) or 'none'}\n"
    if params := mapping(check["params"]):
        yield table(("parameter", "default", "meaning"), map(_parameter, params.items()))
    if metrics := mapping(check["metrics"]):
        rows = [(code(key), *_metric(mapping(value))) for key, value in metrics.items()]
        yield table(("metric", "unit", "better"), rows)


def _parameter(item: tuple[str, Json]) -> tuple[str, str, str]:
    name, value = item
    parameter = mapping(value)
    default = parameter["default"]
    shown = str(default).lower() if isinstance(default, bool) else str(default)
    return code(name), code(shown) if shown else "empty", prose(str(parameter["about"]))


def _metric(metric: Mapping[str, Json]) -> tuple[str, str]:
    return str(metric["unit"]), str(metric["better"])


def causes() -> str:
    """Return a table of all causes, the most severe first."""
    rows = [
        (
            f"[{cause}](#{cause})",
            str(cause.row.owner),
            prose(cause.row.meaning),
            prose(cause.row.action),
        )
        for cause in Cause
    ]
    return table(("cause", "who acts", "meaning", "next"), rows)


def signs() -> str:
    """Return the number of known lines of each layer, then a table of them for each layer."""
    by_layer: dict[str, list[tuple[str, ...]]] = {}
    for value in items(result_of("list", "signs")["signs"]):
        sign = texts(value)
        row = (
            code(sign["name"]),
            prose(sign["about"]),
            sign["owner"],
            f"[{sign['source'].split('/')[2]}]({sign['source']})",
        )
        by_layer.setdefault(sign["layer"], []).append(row)
    parts = [table(("layer", "known lines"), [(k, str(len(v))) for k, v in by_layer.items()])]
    for layer, rows in by_layer.items():
        heading = f"## Layer {layer}: {count(len(rows), 'known line')}"
        parts.append(f"{heading}\n\n{table(('name', 'meaning', 'who acts', 'source'), rows)}")
    return "\n".join(parts)


def error_codes() -> str:
    """Return a table for each kind of code."""
    entries = [texts(entry) for entry in items(result_of("list", "errors")["errors"])]
    parts = []
    for letter, title in _KINDS.items():
        rows = [
            (_target(entry["name"]) + code(entry["name"]), prose(entry["about"]))
            for entry in entries
            if entry["name"].startswith(f"{letter}-")
        ]
        parts.append(f"## {title}\n\n{table(('code', 'meaning and next step'), rows)}")
    assert sum(part.count("\n| <a ") for part in parts) == len(entries)
    return "\n".join(parts)


def _target(name: str) -> str:
    """Return a target for links, such as `#e-usage`."""
    return f'<a id="{name.lower()}"></a>'
