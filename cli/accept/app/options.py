"""Declare the options that commands share.

A group is a dataclass whose fields are options: type, names and help for Typer, and the default.
Typer has no groups of options, so `with_groups` gives Typer a function with one parameter for each
field. So an option is declared in one place, however many commands have it.

Typer reads annotations, so they are objects here and not text.
"""

import functools
import inspect
from collections.abc import Callable
from dataclasses import dataclass, fields, is_dataclass
from typing import Annotated, get_type_hints

import typer

from accept.report.console import Terminal

RunArgument = Annotated[str, typer.Argument(metavar="RUN", help="Attempt, folder, or `last`.")]
EvidenceArgument = Annotated[
    str, typer.Argument(metavar="RUN", help="Attempt, folder, `last`, or URL in a bucket.")
]
GpusOption = Annotated[
    int | None,
    typer.Option("--gpus-per-node", help="GPUs to use on each node; default: all."),
]
MaxBadOption = Annotated[
    int,
    typer.Option("--max-bad", min=0, help="Accept a run that passes without N bad nodes at most."),
]
SiteOption = Annotated[
    str | None, typer.Option("--site", help="Site file: describes your cluster.")
]


def with_groups(command: Callable[..., int]) -> Callable[..., int]:
    """Return `command` with one keyword parameter for each option of its groups.

    Typer reads the options of a command from its signature, as `inspect.signature` returns it.
    """
    parameters: list[inspect.Parameter] = []
    groups: dict[str, type] = {}
    for parameter in inspect.signature(command, eval_str=True).parameters.values():
        group = parameter.annotation
        if isinstance(group, type) and is_dataclass(group):
            groups[parameter.name] = group
            parameters += _parameters(group)
        else:
            parameters.append(parameter.replace(kind=parameter.KEYWORD_ONLY))

    @functools.wraps(command)
    def call(**values: object) -> int:
        for name, group in groups.items():
            values[name] = group(
                **{option.name: values.pop(option.name) for option in fields(group)}
            )
        return command(**values)

    call.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    return call


@functools.cache
def _parameters(group: type) -> tuple[inspect.Parameter, ...]:
    """Return one parameter for each option of a group; cached, because commands share groups."""
    types = get_type_hints(group, include_extras=True)
    return tuple(
        inspect.Parameter(
            option.name,
            inspect.Parameter.KEYWORD_ONLY,
            default=option.default,
            annotation=types[option.name],
        )
        for option in fields(group)
    )


@dataclass(frozen=True, kw_only=True)
class OutputOptions:
    """The format and amount of output."""

    json: Annotated[
        bool, typer.Option("--json", help="Print only the result, as JSON, on stdout.")
    ] = False
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress.")] = False
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="More progress.")] = False

    def terminal(self) -> Terminal:
        """Return the terminal with these settings."""
        return Terminal(json=self.json, quiet=self.quiet, verbose=self.verbose)


@dataclass(frozen=True, kw_only=True)
class LaunchOptions:
    """The name of a launch, or only its plan."""

    attempt: Annotated[
        str | None, typer.Option(help="Name of this launch; default: generated.")
    ] = None
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show the plan.")] = False


@dataclass(frozen=True, kw_only=True)
class ClusterOptions:
    """The location of a cluster."""

    kubeconfig: Annotated[
        str | None, typer.Option(help="Kubeconfig; default: the one that kubectl uses.")
    ] = None
    context: Annotated[
        str | None, typer.Option(help="Context of the kubeconfig; default: its current one.")
    ] = None
    namespace: Annotated[
        str | None, typer.Option(help="Namespace; default: the site's, else the context's.")
    ] = None


@dataclass(frozen=True, kw_only=True)
class ReleaseOptions(ClusterOptions):
    """The location of a cluster, and the name of a run on it."""

    release: Annotated[
        str | None, typer.Option(help="Name of the Helm release; default: from the attempt.")
    ] = None


@dataclass(frozen=True, kw_only=True)
class DrillOptions:
    """Checks, hosts and time limits of a run."""

    machine: Annotated[
        str | None,
        typer.Option(
            "--machine",
            "-m",
            help="Machine: a name or your own file; default: detected on the hosts.",
        ),
    ] = None
    suite: Annotated[str, typer.Option("--suite", "-s", help="Suite: a name or your own file.")] = (
        "quick"
    )
    site: SiteOption = None
    nodes: Annotated[
        str | None,
        typer.Option(
            "--nodes",
            "-n",
            help="Number of nodes, a list a,b,c, @FILE with names, "
            "or all: every free node of a cluster.",
        ),
    ] = None
    hosts: Annotated[
        list[str] | None, typer.Option(help="Hosts over ssh: a,b,c, node[01-16], @FILE.")
    ] = None
    backend: Annotated[
        str | None,
        typer.Option(
            help="Back end: local, ssh, slurm or kubernetes; "
            "default: chosen by --hosts, --partition and --site."
        ),
    ] = None
    settings: Annotated[
        list[str] | None, typer.Option("--set", help="Parameter of a check: CHECK.PARAM=VALUE.")
    ] = None
    nccl: Annotated[list[str] | None, typer.Option(help="NCCL setting: KEY=VALUE.")] = None
    expect: Annotated[
        list[str] | None, typer.Option(help="Your own threshold: 'all-reduce@8G>=380'.")
    ] = None
    gpus_per_node: GpusOption = None
    rounds: Annotated[
        str | None, typer.Option(help="Rounds of pairs: a number or auto; default: suite's.")
    ] = None
    seed: Annotated[int, typer.Option(help="Random seed for pairs and drills.")] = 1
    require_all_nodes: Annotated[
        bool, typer.Option("--require-all-nodes", help="Stop if any host does not respond.")
    ] = False
    busy_ok: Annotated[
        bool, typer.Option("--busy-ok", help="Measure GPUs that are in use, too.")
    ] = False
    start_timeout: Annotated[str | None, typer.Option(help="Longest wait for hosts: 90s, 5m.")] = (
        None
    )
    deadline: Annotated[
        str | None, typer.Option(help="Longest run time after the hosts were found.")
    ] = None
    budget: Annotated[
        str | None, typer.Option(help="Time limit: keep the checks that add most within it.")
    ] = None
    keep: Annotated[
        str | None,
        typer.Option(help="How long the first host keeps evidence that was not fetched."),
    ] = None
    image: Annotated[
        str | None,
        typer.Option(help="Container image of the run; replaces the site's."),
    ] = None
    partition: Annotated[
        str | None, typer.Option(help="Slurm: partition; runs the checks in a job of Slurm.")
    ] = None
    exclude: Annotated[
        list[str] | None, typer.Option(help="Slurm: nodes not to use: n7, n[01-16].")
    ] = None
    reservation: Annotated[str | None, typer.Option(help="Slurm: reservation.")] = None
    account: Annotated[str | None, typer.Option(help="Slurm: account.")] = None
    qos: Annotated[str | None, typer.Option(help="Slurm: quality of service.")] = None
    constraint: Annotated[str | None, typer.Option(help="Slurm: features of the nodes.")] = None
    time: Annotated[
        str | None, typer.Option(help="Slurm: time limit of the job; default: the run's longest.")
    ] = None
    sbatch_arg: Annotated[
        list[str] | None, typer.Option(help="Slurm: another option of sbatch: --switches=1.")
    ] = None


@dataclass(frozen=True, kw_only=True)
class PlanOptions(DrillOptions):
    """The options of a drill, and those that a drill sets itself for each of its runs."""

    only: Annotated[
        list[str] | None, typer.Option(help="Run only these checks or steps: gemm,memory.")
    ] = None
    skip: Annotated[
        list[str] | None, typer.Option(help="Run all but these checks or steps: train.")
    ] = None
    fail_fast: Annotated[
        bool,
        typer.Option("--fail-fast", help="End the run after the first step that fails for good."),
    ] = False
    hold: Annotated[
        str | None,
        typer.Option(
            help="Keep the hosts this long after a failed run, for debugging: 30m; "
            "after every run: always:30m."
        ),
    ] = None
    inject: Annotated[
        list[str] | None,
        typer.Option(
            help="Inject a fault: FAULT@HOST[:LOCALRANK]. accept drill injects each in turn."
        ),
    ] = None
