"""Define the content of a suite file: an ordered list of checks with parameters."""

from dataclasses import dataclass, field
from typing import Annotated, Literal

from accept.config.expectations import Seconds
from accept.config.fields import Name, Plain
from accept.core.checks import REGISTRY
from accept.core.error_codes import Code
from accept.core.plan import GroupKind, Launcher
from accept.core.serde import Bounds, Doc, Invalid, Pattern

#: Rounds of pairs. The limit is far above the rounds that `auto` plans, and catches typing errors.
Rounds = Annotated[int, Bounds(min=1, max=64)]


@dataclass(frozen=True, kw_only=True)
class SuiteCheck:
    """One check of a suite, on one kind of groups."""

    check: Annotated[
        str,
        Doc(
            "Name of the check: `accept list checks`, or a tool of the site file. Or the path of "
            "your own tool, relative to the suite's file: docs/tools.md."
        ),
    ]
    groups: Annotated[
        GroupKind | None,
        Doc(
            "Groups of hosts to run on; unset: the check's default. "
            "A run on one host skips groups of several hosts."
        ),
    ] = None
    rounds: Annotated[
        Rounds | Literal["auto"],
        Doc(
            "For `pairs` and `rail-pairs`: rounds of disjoint pairs; "
            "auto: enough for the number of nodes."
        ),
    ] = "auto"
    profile: Annotated[
        str,
        Doc(
            "NCCL profile of the machine for these ranks; empty: that of the run. "
            "A machine without this profile skips the check."
        ),
    ] = ""
    max_nodes: Annotated[
        Annotated[int, Bounds(min=1)] | None,
        Doc("A run on more nodes skips the check; unset: no limit."),
    ] = None
    optional: Annotated[
        bool, Doc("Whether a run can be accepted even if this check could not be tested.")
    ] = False
    if_open: Annotated[
        bool,
        Doc(
            "Whether it runs only if a collective before it failed or is inconclusive, "
            "because it only narrows down what others find."
        ),
    ] = False
    finds: Annotated[
        str,
        Doc("What it finds that no other check of the suite does; for `accept show suite NAME`."),
    ] = ""
    timeout: Annotated[Seconds | None, Doc("Longest time of one execution.")] = None
    params: Annotated[Plain, Doc("Its parameters; `accept show check NAME` lists them.")] = field(
        default_factory=dict
    )
    script: Annotated[
        str | None, Doc("For `script`: the script, relative to the suite's file.")
    ] = None
    name: Annotated[
        Annotated[str, Pattern(r"[a-z0-9][a-z0-9-]{0,40}", "a name of a-z, 0-9 and '-'")] | None,
        Doc("For `script`: its name in reports; unset: the name of the file."),
    ] = None

    def __post_init__(self) -> None:
        """Raise Invalid for contradicting keys."""
        runs_script = self.check in REGISTRY and REGISTRY[self.check].user_script
        of_pairs = self.groups is not None and self.groups.of_pairs
        if self.rounds != "auto" and self.rounds > 1 and not of_pairs:
            message = "only `groups: pairs` and `groups: rail-pairs` have rounds"
            raise Invalid(("rounds",), message, code=Code.SUITE_CONTRADICTION)
        if runs_script and not self.script:
            message = f"the check `{self.check}` needs a script"
            raise Invalid((), message, "add `script: PATH`", code=Code.SUITE_CONTRADICTION)
        if not runs_script and (self.script or self.name):
            key = "script" if self.script else "name"
            message = f"`{self.check}` does not have this key; `script` does"
            raise Invalid((key,), message, code=Code.SUITE_CONTRADICTION)


@dataclass(frozen=True, kw_only=True)
class Suite:
    """An ordered list of checks."""

    name: Name
    description: Annotated[str, Doc("One line for people.")]
    deadline: Annotated[Seconds, Doc("Longest run after all hosts are found.")] = 3600.0
    launcher: Annotated[
        Launcher,
        Doc(
            "What measures pairs of hosts, and each host alone, on hosts of ssh and Slurm: "
            "`nccl-tests`, which starts for each group, or `resident`, which starts once on each "
            "host. `--launcher` has precedence."
        ),
    ] = Launcher.NCCL_TESTS
    checks: Annotated[tuple[SuiteCheck, ...], Bounds(min=1), Doc("The checks, in order.")]
