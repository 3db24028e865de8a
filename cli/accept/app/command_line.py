"""Make the command line from the declared commands, and run the command that the words name.

Typer reads annotations, so they are objects here and not text.
"""

import os
import re
from collections.abc import Iterable, MutableMapping, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Annotated

import typer
from typer.core import TyperCommand, TyperGroup

from accept import __version__
from accept.app import help as layout
from accept.app.commands import COMMANDS, summary
from accept.app.options import Panel, with_groups
from accept.core.error_codes import Code
from accept.core.errors import BadInput, Exit
from accept.core.text import decimal, plain

if TYPE_CHECKING:
    from typer._click import Command, Context, HelpFormatter

_HELP_OPTIONS = ["-h", "--help"]


class _Group(TyperGroup):
    """All commands."""

    def format_help(self, ctx: "Context", formatter: "HelpFormatter") -> None:  # noqa: ARG002
        """Write the short help."""
        formatter.write(short_help() + "\n")


class _Command(TyperCommand):
    """A command, whose help shows its options in groups."""

    def get_help(self, ctx: "Context") -> str:
        """Return the help, whose commands start with what starts this program."""
        return layout.as_called(super().get_help(ctx))

    def format_options(self, ctx: "Context", formatter: "HelpFormatter") -> None:
        """Write the arguments, then the options of each panel."""
        rows: dict[str, list[tuple[str, str]]] = {panel: [] for panel in ("Arguments", *Panel)}
        for param in self.get_params(ctx):
            record = param.get_help_record(ctx)
            if record is None:
                continue
            panel = getattr(param, "rich_help_panel", None) or Panel.OTHER
            is_argument = param.param_type_name == "argument"
            rows["Arguments" if is_argument else panel].append(record)
        # One width for all: the longest option would otherwise move the texts of its panel only.
        width = min(28, max((len(name) for all_ in rows.values() for name, _ in all_), default=0))
        for title, records in rows.items():
            if records:
                with formatter.section(title):
                    formatter.write_dl([(name.ljust(width), text) for name, text in records], 30)


def short_help() -> str:
    """Return the help with the main commands."""
    return layout.short_help({name: summary(name) for name in COMMANDS})


def command_line(names: Iterable[str] = COMMANDS) -> typer.Typer:
    """Return the command line with the commands in `names`; all by default."""
    app = typer.Typer(
        cls=_Group,
        invoke_without_command=True,
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": _HELP_OPTIONS, "max_content_width": 100},
    )
    app.callback()(_accept)
    for name in names:
        app.command(name, cls=_Command, short_help=summary(name))(with_groups(COMMANDS[name]))
    return app


def _parser(names: tuple[str, ...]) -> "Command":
    """Return the parser of a command line with the commands in `names`."""
    return typer.main.get_command(command_line(names))


def call(words: Sequence[str]) -> int:
    """Run the command that the words after the program's name give, and return its exit code.

    Raises BadInput if they are not a valid command line.
    """
    script = layout.name()
    if f"_{script.upper().replace('-', '_')}_COMPLETE" in os.environ:
        return _complete(script)
    _refuse_blank_words(script, words)
    words = _with_command_first(words)
    first = words[0] if words else ""
    if first == "help" and len(words) == 2 and words[1] in COMMANDS:
        first, words = words[1], (words[1], _HELP_OPTIONS[-1])
    if first and not first.startswith("-") and first not in COMMANDS:
        from accept.app import corrections

        raise BadInput(
            f"there is no command {plain(first, 60)!r}",
            code=Code.USAGE,
            hint="; ".join(
                filter(None, (corrections.of_command(words, _refusal), "all: accept help all"))
            ),
        )
    # Declaring only the command that runs saves Typer the work for all others.
    names = (first,) if first in COMMANDS else ()
    try:
        # The help of a command passes `as_called`; scripts for completion need the name.
        prog_name = layout.NAMES[0] if names else script
        code: int = _parser(names)(args=words, prog_name=prog_name, standalone_mode=False)
    except typer.TyperException as error:
        message = getattr(error, "message", "") if hasattr(error, "option_name") else ""
        message = " ".join((message or error.format_message()).split())
        hint = f"usage and examples: {' '.join(('accept', *names, '--help'))}"
        raise BadInput(
            re.sub(r"is not a valid (int|float)\b( range)?", "is not a valid number", message),
            code=Code.USAGE,
            hint="; ".join(filter(None, (_correction(words, error), hint))),
        ) from None
    except BadInput as error:
        meant = _correction(words, error)
        # Another back end needs no image, but only the user knows whether it has the nodes.
        keeps = error.code is Code.SITE_NO_IMAGE and meant
        error.hint = f"{error.hint}; {meant}" if keeps else meant or error.hint
        raise
    return code


def _correction(words: Sequence[str], error: Exception) -> str:
    """Return a hint with the command that was meant; "" if none is known."""
    from accept.app import corrections

    return corrections.hint(words, error, _refusal) if words else ""


def _refusal(words: Sequence[str]) -> Exception | None:
    """Return the error of a command line that cannot be parsed, else None. Runs nothing."""
    if words[0] not in COMMANDS:
        return None if list(words) == ["--version"] else BadInput("unknown", code=Code.USAGE)
    try:
        group = _parser((words[0],))
        group.commands[words[0]].make_context(words[0], list(words[1:]))  # type: ignore[attr-defined]
    except typer.TyperException as error:
        return error
    except BadInput:
        # Standard input is a pipe, and no argument names it.
        return None
    return None


#: Options of every command that may also precede its name.
_GLOBAL = ("-v", "--verbose", "-q", "--quiet", "--json")


def _with_command_first(words: Sequence[str]) -> Sequence[str]:
    """Move the options before the command behind its name: `accept -v judge last`."""
    place = next((i for i, word in enumerate(words) if word not in _GLOBAL), 0)
    return (words[place], *words[:place], *words[place + 1 :]) if place else words


def _complete(script: str) -> int:
    """Print what the shell asks for: a script for completion, or the words that can follow.

    A failure prints nothing, because it would appear in the line that the user types.
    """
    _join_values(os.environ)
    try:
        command_line()(args=(), prog_name=script)
    except SystemExit:
        pass
    except Exception:
        return Exit.INTERNAL
    return Exit.PASS


def _join_values(environment: MutableMapping[str, str]) -> None:
    """Drop the words "=" that bash makes of --machine=a4, so that Typer sees --machine a4."""
    words = environment.get("COMP_WORDS", "").split("\n")
    place = decimal(environment.get("COMP_CWORD", ""))
    if place is None or "=" not in words:
        return
    dropped = [
        index
        for index, (before, word) in enumerate(pairwise(words), 1)
        if word == "=" and before.startswith("--")
    ]
    kept = [word for index, word in enumerate(words) if index not in dropped]
    environment["COMP_WORDS"] = "\n".join(kept)
    environment["COMP_CWORD"] = str(place - sum(index < place for index in dropped))


def _refuse_blank_words(script: str, words: Sequence[str]) -> None:
    """Raise BadInput for an empty value on the command line: most likely an unset shell variable.

    Without this, `--machine "$MACHINE"` would start a run other than the intended one.
    """
    for before, word in pairwise((script, *words)):
        option, equals, value = word.partition("=")
        is_long_option = option.startswith("--") and bool(equals)
        if not (value if is_long_option else word).strip():
            raise BadInput(
                f"the value after {plain(option if is_long_option else before, 100)} is empty",
                code=Code.OPTION_EMPTY,
                hint="give a value or leave it out; is a shell variable unset?",
            )


def _print_version(value: bool) -> None:  # noqa: FBT001 - Typer's signature
    if value:
        typer.echo(f"accept {__version__}")
        raise typer.Exit


def _accept(
    parsed: typer.Context,
    *,
    _version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version."
        ),
    ] = False,
) -> None:
    if parsed.invoked_subcommand is None:
        typer.echo(short_help())
        raise typer.Exit
