"""Options are declared once: Typer shows them, and commands get typed objects."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Annotated, get_args, get_type_hints

import pytest
import typer
from tests.factories.command_line import accept

from accept.app.options import DrillOptions, OutputOptions, PlanOptions, ReleaseOptions, with_groups
from accept.app.parse import parse_options

#: Texts that the options need; all others take any text.
TEXTS = {"nodes": "2", "start_timeout": "5m", "deadline": "5m", "budget": "5m", "keep": "5m"}
TEXTS |= {"hold": "5m", "time": "5m", "sbatch_arg": "--switches=1"}
#: Options of a closed set of words, each with one that is not its default.
WORDS = {"launcher": "resident"}


def sample(name: str) -> object:
    """Return a value of an option that is not its default."""
    base = get_args(get_type_hints(PlanOptions, include_extras=True)[name])[0]
    kinds = get_args(base) or (base,)
    if bool in kinds:
        return True
    if int in kinds:
        return 2
    text = TEXTS.get(name, "text")
    return WORDS.get(name) or (text if str in kinds else [text])


@pytest.mark.parametrize("name", [option.name for option in fields(PlanOptions)])
def test_every_option_of_a_plan_reaches_help_and_the_plan(name: str) -> None:
    declared = get_type_hints(PlanOptions, include_extras=True)[name].__metadata__[0]
    spelled = (
        (declared.default, *(declared.param_decls or ())) if declared.default is not ... else ()
    )
    option = next(
        (text for text in spelled if text.startswith("--")), f"--{name.replace('_', '-')}"
    )
    for command in ("doctor", "render", "submit", "run"):
        assert option in accept(command, "--help").out
    given: Callable[..., PlanOptions] = PlanOptions
    assert parse_options(given(**{name: sample(name)})) != parse_options(PlanOptions())


@pytest.mark.parametrize(
    ("text", "always"), [("5m", False), ("failed:5m", False), ("always:5m", True)]
)
def test_a_hold_has_a_time_and_may_state_when(text: str, *, always: bool) -> None:
    options = parse_options(PlanOptions(hold=text))
    assert (options.hold, options.hold_always) == (300.0, always)


def test_a_drill_sets_some_options_itself() -> None:
    own = {option.name for option in fields(DrillOptions)}
    of_a_run = {option.name for option in fields(PlanOptions)} - own
    assert of_a_run == {"only", "skip", "fail_fast", "hold", "inject"}
    shown = accept("drill", "--help").out
    assert not [name for name in of_a_run if f"--{name.replace('_', '-')} " in shown]


@dataclass(frozen=True, kw_only=True)
class SampleOptions(ReleaseOptions):
    """A group with one option more, as CONTRIBUTING.md describes it."""

    rack: Annotated[str | None, typer.Option(help="Rack to test; default: all.")] = None


def test_a_sample_option_needs_one_declaration(capsys: pytest.CaptureFixture[str]) -> None:
    received: list[tuple[str, SampleOptions, OutputOptions]] = []

    def command(*, name: str, sample: SampleOptions, output: OutputOptions) -> int:
        received.append((name, sample, output))
        return 0

    app = typer.Typer(rich_markup_mode=None)
    app.command()(with_groups(command))
    app(["--rack", "r1", "--release", "gpu", "-q", "a"], standalone_mode=False)
    assert received == [("a", SampleOptions(rack="r1", release="gpu"), OutputOptions(quiet=True))]
    app(["--help"], standalone_mode=False)
    assert "Rack to test; default: all." in capsys.readouterr().out
