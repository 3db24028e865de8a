"""A suite: an ordered list of checks with parameters, as `values/suites/NAME.yaml` holds it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from accept.config.expectations import Seconds
from accept.config.fields import Name
from accept.core import checks
from accept.core.model import GroupKind
from accept.core.serde import Bounds, Doc, Invalid, Pattern, known

#: Rounds of pairs: far more than `auto` ever plans, and few enough that a slip of the pen is seen.
Rounds = Annotated[int, Bounds(min=1, max=64)]


@dataclass(frozen=True, kw_only=True)
class SuiteCheck:
    """One check of a suite, on one kind of groups."""

    check: Annotated[str, Doc("Name of the check: `accept list checks`.")]
    groups: Annotated[
        GroupKind | None,
        Doc(
            "On which groups of hosts; none: the check's own. "
            "On one host, groups of two or more are left out."
        ),
    ] = None
    rounds: Annotated[
        Rounds | Literal["auto"],
        Doc("Rounds of disjoint pairs, for `pairs`; auto: as many as the number of nodes needs."),
    ] = "auto"
    optional: Annotated[
        bool, Doc("Whether a run can be accepted where it could not be tested.")
    ] = False
    timeout: Annotated[Seconds | None, Doc("Longest time of one execution.")] = None
    params: Annotated[dict[str, Any], Doc("Its parameters; `accept list checks` names them.")] = (
        field(default_factory=dict)
    )
    script: Annotated[
        str | None, Doc("For `script`: the script, relative to the suite's file.")
    ] = None
    name: Annotated[
        Annotated[str, Pattern(r"[a-z0-9][a-z0-9-]{0,40}", "a name of a-z, 0-9 and '-'")] | None,
        Doc("For `script`: what the report calls it; none: the file's name."),
    ] = None

    def __post_init__(self) -> None:
        """Raise Invalid for a check that does not exist, and for keys that do not go together."""
        if self.check not in checks.names():
            raise Invalid(
                ("check",),
                f"check {self.check!r} does not exist",
                known(self.check, checks.names()),
            )
        if self.rounds != "auto" and self.rounds > 1 and self.groups != "pairs":
            raise Invalid(("rounds",), "only `groups: pairs` has rounds")
        scripted = self.check == "script"
        if scripted and not self.script:
            raise Invalid((), "the check `script` needs a script", "add `script: PATH`")
        if not scripted and (self.script or self.name):
            key = "script" if self.script else "name"
            raise Invalid((key,), "only the check `script` has this key")


@dataclass(frozen=True, kw_only=True)
class Suite:
    """An ordered list of checks."""

    name: Name
    description: Annotated[str, Doc("One line for people.")]
    deadline: Annotated[Seconds, Doc("Longest run after the hosts are found.")] = 3600.0
    checks: Annotated[tuple[SuiteCheck, ...], Bounds(min=1), Doc("The checks, in order.")]
