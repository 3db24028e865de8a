"""Declare and parse commands with shared options, and avoid the slow import of pydantic."""

from __future__ import annotations

import copy
import functools
import inspect
from collections.abc import Callable
from typing import Any, get_args

import typer
from typer.core import TyperCommand, TyperGroup

from accept.app.options import OUTPUT
from accept.core.errors import BadInput

#: Types of options whose text needs no conversion.
_TEXT_TYPES = (str, str | None, list[str] | None)


class Command(TyperCommand):
    """A command that uses pydantic only for the numbers, paths and choices on the command line.

    Typer lets pydantic check every value, but its import takes as long as a full `accept render`.
    """

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the command line."""
        declared = inspect.signature(self.callback).parameters if self.callback else {}
        kinds = {name: get_args(param.annotation)[:1] for name, param in declared.items()}
        texts = {name for name, kind in kinds.items() if kind and kind[0] in _TEXT_TYPES}
        _skip_conversions(self, ctx, texts=texts)
        return super().parse_args(ctx, args)


class Group(TyperGroup):
    """The group of all commands: the same for the options before the command."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the command line up to the command."""
        _skip_conversions(self, ctx, texts=set())
        return super().parse_args(ctx, args)


def _skip_conversions(command: Any, ctx: Any, *, texts: set[str]) -> None:
    """Let options return missing values, and the texts of the options `texts`, unconverted."""
    for param in command.get_params(ctx):
        param.process_value = functools.partial(
            _process_value, param, param.process_value, param.name in texts
        )


def _refuse_blank(param: Any, ctx: Any, value: Any) -> None:
    """Raise BadInput for an empty value on the command line: most likely an unset shell variable.

    Without this, `--machine "$MACHINE"` would start a run other than the intended one.
    """
    source = ctx.get_parameter_source(param.name)
    if ctx.resilient_parsing or source is None or source.name != "COMMANDLINE":
        return
    values = value if isinstance(value, (list, tuple)) else (value,)
    if any(isinstance(text, str) and not text.strip() for text in values):
        is_option = param.param_type_name == "option"
        names = param.opts if is_option else [param.metavar or param.name.upper()]
        raise BadInput(
            f"{max(names, key=len).strip('[].')} is empty",
            hint="give a value or leave it out; is a shell variable unset?",
        )


def _process_value(param: Any, convert: Any, is_text: bool, ctx: Any, value: Any) -> Any:  # noqa: FBT001 - click's order
    _refuse_blank(param, ctx, value)
    if value is None and not param.required:
        return param.callback(ctx, param, None) if param.callback else None
    is_final = is_text or not isinstance(value, (str, list, tuple))
    if param.callback or value in (None, ()) or not is_final:
        return convert(ctx, value)
    return value


def command(
    app: typer.Typer, **options: tuple[Any, Any]
) -> Callable[[Callable[..., int]], Callable[..., None]]:
    """Declare a command whose function also takes `options`: annotation and default by name."""

    def declare(function: Callable[..., int]) -> Callable[..., None]:
        @functools.wraps(function)
        def exits(**values: Any) -> None:
            raise typer.Exit(function(**values))

        own = [
            p
            for p in inspect.signature(function, eval_str=True).parameters.values()
            if p.kind != p.VAR_KEYWORD
        ]
        shared = [
            inspect.Parameter(
                name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=kind
            )
            for name, (kind, default) in {**options, **OUTPUT}.items()
        ]
        exits.__signature__ = inspect.Signature([*own, *shared])  # type: ignore[attr-defined]
        # The list of commands would cut off the example.
        short = (function.__doc__ or "").partition(": accept")[0] + "."
        name = function.__name__.rstrip("_")
        app.command(name=name, cls=Command, short_help=short)(exits)
        return exits

    return declare


def with_only_command(app: typer.Typer, name: str) -> typer.Typer:
    """Return `app` with only the command `name`, or unchanged if there is no such command.

    Typer builds every registered command, which takes time.
    """
    commands = [command for command in app.registered_commands if command.name == name]
    if not commands:
        return app
    reduced = copy.copy(app)
    reduced.registered_commands = commands
    return reduced
