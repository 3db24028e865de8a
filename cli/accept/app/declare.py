"""How commands are declared and parsed: with options that they share, and without pydantic."""

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

#: What takes text as it was typed.
_TEXT = (str, str | None, list[str] | None)


class Command(TyperCommand):
    """A command that asks pydantic about nothing but numbers, paths and choices that were given.

    Typer has it check every value, and importing it takes as long as all of `accept render`.
    """

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the command line."""
        declared = inspect.signature(self.callback).parameters if self.callback else {}
        kinds = {name: get_args(one.annotation)[:1] for name, one in declared.items()}
        _shorten(
            self, ctx, texts={name for name, kind in kinds.items() if kind and kind[0] in _TEXT}
        )
        return super().parse_args(ctx, args)


class Group(TyperGroup):
    """The same for what stands before the command."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the command line up to the command."""
        _shorten(self, ctx, texts=set())
        return super().parse_args(ctx, args)


def _shorten(command: Any, ctx: Any, *, texts: set[str]) -> None:
    """Let options return at once what needs no conversion: nothing, and text that stays text."""
    for param in command.get_params(ctx):
        param.process_value = functools.partial(
            _process_value, param, param.process_value, param.name in texts
        )


def _refuse_blank(param: Any, ctx: Any, value: Any) -> None:
    """Raise BadInput for an empty value on the command line: most likely an unset shell variable.

    Left alone, `--machine "$MACHINE"` would start another run than the one that is meant.
    """
    source = ctx.get_parameter_source(param.name)
    if ctx.resilient_parsing or source is None or source.name != "COMMANDLINE":
        return
    values = value if isinstance(value, (list, tuple)) else (value,)
    if any(isinstance(one, str) and not one.strip() for one in values):
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
    stays = is_text or not isinstance(value, (str, list, tuple))
    if param.callback or value in (None, ()) or not stays:
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
        # The list of commands is no place for the example, which would be cut off there.
        short = (function.__doc__ or "").partition(": accept")[0] + "."
        name = function.__name__.rstrip("_")
        app.command(name=name, cls=Command, short_help=short)(exits)
        return exits

    return declare


def only(app: typer.Typer, name: str) -> typer.Typer:
    """`app` with the command of this name alone, where there is one: Typer makes all it has."""
    named = [one for one in app.registered_commands if one.name == name]
    if not named:
        return app
    alone = copy.copy(app)
    alone.registered_commands = named
    return alone
