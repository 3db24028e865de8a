"""Generate the reference of the command line from the objects that parse it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import typer.main
from docs.site.program import code, prose, table

from accept.app.commands import command_line


def reference() -> str:
    """Return a section for each command: usage, summary, examples, arguments and options."""
    group: Any = typer.main.get_command(command_line())
    return "\n".join(
        part for name in sorted(group.commands) for part in _command(name, group.commands[name])
    )


def _command(name: str, command: Any) -> Iterator[str]:
    context = command.make_context(name, [], resilient_parsing=True)
    params = [param for param in command.params if not getattr(param, "hidden", False)]
    arguments = [param for param in params if param.param_type_name == "argument"]
    options = [param for param in params if param.param_type_name == "option"]
    summary, examples = _help(command.help or "")
    usage = [param.make_metavar(context) for param in arguments]
    yield f"(command-{name})=\n## {name}\n"
    yield f"{prose(summary)}\n"
    yield f"```text\naccept {' '.join((name, *usage))} [OPTIONS]\n```\n"
    if examples:
        lines = "\n".join(f"$ {example}" for example in examples)
        yield f"```console\n{lines}\n```\n"
    if arguments:
        rows = [
            (code(param.make_metavar(context)), _meaning(param, context)) for param in arguments
        ]
        yield table(("argument", "meaning"), rows)
    if options:
        yield table(
            ("option", "value", "meaning"),
            [
                (_names(param), _value(param, context), _meaning(param, context))
                for param in options
            ],
        )


def _help(text: str) -> tuple[str, tuple[str, ...]]:
    """Return the summary of a command, and the examples that follow it."""
    summary, _, rest = " ".join(text.split()).partition(": accept ")
    examples = re.split(r"[;,] (?=accept |helm )", f"accept {rest}") if rest else ()
    return f"{summary.rstrip('.')}.", tuple(examples)


def _names(param: Any) -> str:
    return ", ".join(code(name) for name in (*param.opts, *param.secondary_opts))


def _value(param: Any, context: Any) -> str:
    if param.is_flag:
        return ""
    repeated = ", repeatable" if param.multiple else ""
    return code(param.make_metavar(context).strip("[]<>")) + repeated


def _meaning(param: Any, _context: Any) -> str:
    required = " Required." if param.required else ""
    shown = param.default not in (None, False, (), [], "") and not callable(param.default)
    default = f" Default: `{param.default}`." if shown else ""
    return prose(param.help or "") + required + default
