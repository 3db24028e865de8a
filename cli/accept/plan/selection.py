"""Choose the checks of a run by name: `--only` and `--skip`."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from accept.core.causes import Cause
from accept.core.error_codes import Code
from accept.core.errors import BadInput
from accept.core.plan import Skipped
from accept.core.serde import escaped, known


@dataclass(frozen=True, kw_only=True)
class Selection:
    """The checks or steps that the user names. The gates of the suite always run."""

    #: Only these run; empty: all.
    only: tuple[str, ...] = ()
    skip: tuple[str, ...] = ()


EVERYTHING = Selection()


@dataclass(frozen=True, kw_only=True)
class Part:
    """A check in a step."""

    #: The id of the step.
    step: str
    #: Its name without the number, and that of the user's script.
    names: tuple[str, ...]
    check: str
    #: True if every run needs the check.
    required: bool

    def is_named(self, names: Collection[str]) -> bool:
        """Return True if `names` has the check or its step."""
        return any(name in names for name in (self.check, self.step, *self.names))


def select(
    parts: Sequence[Part], selection: Selection, checks: Collection[str]
) -> tuple[set[tuple[str, str]], tuple[Skipped, ...]]:
    """Return step and check of each part that runs, and the checks that are left out.

    `checks` are those of the suite. A name of one of them is valid even if no step runs it. Raises
    BadInput.
    """
    _refuse_unknown(parts, selection, checks)
    kept, left_out = [], []
    for part in parts:
        is_named = part.is_named(selection.only)
        if part.is_named(selection.skip):
            left_out.append((part, "--skip"))
        elif part.required or is_named or not selection.only:
            kept.append(part)
        else:
            left_out.append((part, "--only"))
    if left_out and not any(not part.required or part.is_named(selection.only) for part in kept):
        raise BadInput(
            "--only and --skip leave no check to run",
            code=Code.OPTION_CHECK_NONE,
            hint="the suite has " + ", ".join(dict.fromkeys(part.check for part in parts)),
        )
    running = {part.check for part in kept}
    skipped = dict.fromkeys(
        Skipped(
            check=part.check,
            reason=option,
            cause=Cause.DESELECTED,
            optional=True,
            step=part.step if part.check in running else "",
        )
        for part, option in left_out
    )
    return {(part.step, part.check) for part in kept}, tuple(skipped)


def _refuse_unknown(parts: Sequence[Part], selection: Selection, checks: Collection[str]) -> None:
    """Raise BadInput if a name is unknown, or if a check is skipped that every run needs."""
    names = dict.fromkeys((*checks, *(name for p in parts for name in (p.check, *p.names))))
    steps = {part.step for part in parts}
    for option, given in (("--only", selection.only), ("--skip", selection.skip)):
        for name in given:
            if name not in names and name not in steps:
                raise BadInput(
                    f"{option} {escaped(name)}: the suite has no such check or step",
                    code=Code.OPTION_CHECK,
                    hint=known(name, names),
                )
    required = [part.check for part in parts if part.required and part.is_named(selection.skip)]
    if required:
        raise BadInput(
            f"--skip {required[0]}: every run needs it, because all planned ranks must answer "
            "before anything is measured",
            code=Code.OPTION_CHECK,
            hint=f"leave {required[0]} out of --skip",
        )
