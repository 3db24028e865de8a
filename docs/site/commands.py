"""Generate the reference of the command line from the objects that parse it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import typer.main
from docs.site.program import code, prose, table

from accept.app.command_line import command_line
from accept.app.help import TOPICS


def reference() -> str:
    """Return a section for each topic, with the commands: examples, arguments and options."""
    group: Any = typer.main.get_command(command_line())
    return "\n".join(
        part
        for topic in TOPICS
        for part in (
            f"## {topic.title}\n",
            *(
                line
                for name in (*topic.main, *topic.more)
                for line in _command(name, group.commands[name])
            ),
        )
    )


def _command(name: str, command: Any) -> Iterator[str]:
    context = command.make_context(name, [], resilient_parsing=True)
    params = [param for param in command.params if not getattr(param, "hidden", False)]
    arguments = [param for param in params if param.param_type_name == "argument"]
    options = [param for param in params if param.param_type_name == "option"]
    summary, examples = _help(command.help or "")
    yield f"(command-{name})=\n### {name}\n"
    yield f"{prose(summary)}\n"
    yield f"```text\naccept {name} {' '.join(command.collect_usage_pieces(context))}\n```\n"
    if examples:
        lines = "\n".join(f"$ {example}" for example in examples)
        yield f"```console\n{lines}\n```\n"
    if arguments:
        meanings = ((code(param.make_metavar(context)), _meaning(param)) for param in arguments)
        yield table(("argument", "meaning"), meanings)
    for panel in dict.fromkeys(_panel(param) for param in options):
        yield f"**{panel}**\n" if panel else ""
        rows = (
            (_names(param), _value(param, context), _meaning(param))
            for param in options
            if _panel(param) == panel
        )
        yield table(("option", "value", "meaning"), rows)


def _help(text: str) -> tuple[str, tuple[str, ...]]:
    """Return the summary of a command, and the examples that follow it."""
    summary, _, rest = " ".join(text.split()).partition(": accept ")
    examples = re.split(r"[;,] (?=accept |helm )", f"accept {rest}") if rest else ()
    return f"{summary.rstrip('.')}.", tuple(examples)


def _panel(param: Any) -> str:
    """Return the title of the options that a parameter is shown with; empty: no title."""
    return getattr(param, "rich_help_panel", None) or ""


def _names(param: Any) -> str:
    return ", ".join(code(name) for name in (*param.opts, *param.secondary_opts))


def _value(param: Any, context: Any) -> str:
    if param.is_flag:
        return ""
    repeated = ", repeatable" if param.multiple else ""
    return code(param.make_metavar(context).strip("[]<>")) + repeated


def _meaning(param: Any) -> str:
    required = " Required." if param.required else ""
    shown = param.default not in (None, False, (), [], "") and not callable(param.default)
    default = f" Default: `{param.default}`." if shown else ""
    return prose(param.help or "") + required + default
