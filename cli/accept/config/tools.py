"""Find tools: those that come with `accept`, and the user's, in a file or in the site file."""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

from accept.config import resources
from accept.config.tool_file import Needs, Others, ToolFile
from accept.config.yaml_file import Document, Keys, load
from accept.core import checks
from accept.core.checks.check import Check
from accept.core.error_codes import Code
from accept.core.errors import BadInput
from accept.core.plan import Tool
from accept.core.serde import Invalid, escaped, known


@dataclass(frozen=True, kw_only=True)
class LoadedTool:
    """A tool, the file that defines it, and where it is in this file."""

    value: ToolFile
    document: Document
    path: Keys = ()

    def bad(self, error: Invalid) -> BadInput:
        """Return an error about one of its keys, with the line in its file."""
        return self.document.refusal(error, self.path)


@cache
def names() -> tuple[str, ...]:
    """Return the sorted names of the tools that come with `accept`."""
    return tuple(sorted(path.stem for path in (resources.values() / "tools").glob("*.yaml")))


def check_names(own: Iterable[str] = ()) -> tuple[str, ...]:
    """Return the sorted names of all checks; `own` are those of the user's tools."""
    return tuple(sorted((*checks.REGISTRY, *names(), *own)))


def is_path(check: str) -> bool:
    """Return True if a check of a suite is the path of the user's own tool."""
    return "/" in check or check.endswith((".yaml", ".yml"))


def tool_of(check: str, suite: str, own: Sequence[LoadedTool] = ()) -> LoadedTool | None:
    """Return the tool of a check, which may be a path relative to the suite's file; None: no tool.

    `own` are the tools of the site file. Raises BadInput.
    """
    if check in checks.REGISTRY:
        return None
    if not is_path(check):
        return next((tool for tool in own if tool.value.name == check), None) or _shipped(check)
    found = _load(Path(suite).parent / check)
    try:
        check_name(found.value.name, {tool.value.name for tool in own})
    except Invalid as error:
        raise found.bad(error) from None
    return found


def check_of(check: str, suite: str, own: Sequence[LoadedTool] = ()) -> Check:
    """Return a check of a suite, which may be a tool as in `tool_of`. Raises BadInput."""
    tool = tool_of(check, suite, own)
    return tool.value.check() if tool else check_exists(check)


def check_name(name: str, others: Collection[str]) -> None:
    """Raise Invalid for the name of a user's tool that a check of `accept` or `others` have."""
    if name in check_names():
        message = f"accept has a check {name!r}"
    elif name in others:
        message = f"the site file has another tool {name!r}"
    else:
        return
    raise Invalid(("name",), message, "choose another", code=Code.TOOL_INVALID)


def _load(path: Path) -> LoadedTool:
    document = load(path, of_file=True)
    return LoadedTool(value=document.read(ToolFile), document=document)


@cache
def _shipped(name: str) -> LoadedTool:
    return _load(resources.values() / "tools" / f"{name}.yaml")


@cache
def of_others() -> tuple[tuple[Others, Tool], ...]:
    """Return the tools whose output `accept judge` reads from others, and how that looks."""
    found = []
    for file in (_shipped(name).value for name in names()):
        if file.others:
            results = file.others.results or file.results
            parts = file.others.parts or file.parts
            needs = Needs(gpus_of=file.needs.gpus_of)
            of_output = replace(file, results=results, parts=parts, needs=needs, folder="/")
            tool = of_output.planned({}, None)
            found.append((file.others, tool))
    return tuple(found)


@cache
def _shipped_check(name: str) -> Check:
    return _shipped(name).value.check()


def check_exists(name: str, path: Keys = (), own: Sequence[Check] = ()) -> Check:
    """Return the check called `name`; `own` are the user's tools. Raises Invalid if none is."""
    if name in checks.REGISTRY:
        return checks.REGISTRY[name]
    # A plan of others' output has results of a tool that a run does not have.
    if found := next((check for check in own if check.name == name), None):
        return found
    if name in names():
        return _shipped_check(name)
    hint = known(name, check_names(check.name for check in own))
    message = f"check {escaped(name)!r} does not exist"
    raise Invalid(path, message, hint, code=Code.CHECK_UNKNOWN)
