"""Declare the options that commands share.

A group is a dataclass whose fields are options: type, names and help for Typer, and the default.
Typer has no groups of options, so `with_groups` gives Typer a function with one parameter for each
field. So an option is declared in one place, however many commands have it.

Typer reads annotations, so they are objects here and not text.
"""

import functools
import inspect
import sys
from collections.abc import Callable
from dataclasses import dataclass, fields, is_dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Literal, get_type_hints

import typer

from accept.app import complete
from accept.app.help import as_called
from accept.report.console import Terminal


class Panel(StrEnum):
    """A group of options in the help of a command; Typer's `rich_help_panel`."""

    OTHER = "Options"
    TARGET = "What to test"
    CHECKS = "Checks"
    TIMES = "Time limits"
    SLURM = "Slurm"
    KUBERNETES = "Kubernetes"
    OUTPUT = "Output"


RunArgument = Annotated[
    str,
    typer.Argument(metavar="RUN", help="Attempt, folder, or `last`.", autocompletion=complete.runs),
]


def _refuse_unnamed_input(
    parsed: typer.Context, param: typer.CallbackParam, value: str | list[str] | None
) -> str | list[str] | None:
    """Return the value of an argument. Raises BadInput if it is not given, but input is piped."""
    is_default = str(parsed.get_parameter_source(str(param.name))).endswith("DEFAULT")
    if is_default and not parsed.resilient_parsing:
        from accept.evidence import standard_input

        standard_input.refuse_unnamed(sys.argv[1:])
    return value


EvidenceArgument = Annotated[
    str,
    typer.Argument(
        metavar="RUN",
        help="Attempt, folder, archive, `last`, URL in a bucket, or - for standard input.",
        autocompletion=complete.runs,
        callback=_refuse_unnamed_input,
    ),
]
ReferencesOption = Annotated[
    str | None,
    typer.Option(
        "--machine",
        "-m",
        metavar="NAME",
        help="Machine to compare with: a name or a file.",
        autocompletion=complete.machines,
    ),
]
ThresholdOption = Annotated[
    list[str] | None,
    typer.Option("--expect", metavar="BOUND", help="Threshold: 'all-reduce@8G>=380'."),
]
FetchedArgument = Annotated[
    str,
    typer.Argument(
        metavar="RUN",
        help="Attempt, folder, `last`, or URL in a bucket.",
        autocompletion=complete.runs,
    ),
]
PathsArgument = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="PATH...",
        help="Run, evidence folder, archive, saved log or URL; or logs of nccl-tests, kernel "
        "logs, nvidia-smi -q, dcgmi diag; - reads standard input.",
        autocompletion=complete.runs,
        callback=_refuse_unnamed_input,
    ),
]
GpusOption = Annotated[
    int | None,
    typer.Option(
        "--gpus-per-node",
        metavar="N",
        help="GPUs to use on each node; default: all.",
        rich_help_panel=Panel.TARGET,
    ),
]
MaxBadOption = Annotated[
    int,
    typer.Option(
        "--max-bad",
        metavar="N",
        min=0,
        help="Accept a run that passes without N bad or absent nodes at most.",
    ),
]
MachineOption = Annotated[
    str | None,
    typer.Option(
        "--machine",
        "-m",
        metavar="NAME",
        help="Machine: a name or your own file; default: detected on the hosts.",
        rich_help_panel=Panel.TARGET,
        autocompletion=complete.machines,
    ),
]
SiteOption = Annotated[
    str | None,
    typer.Option(
        "--site",
        metavar="FILE",
        help="Site file: describes your cluster; default: site.yaml here, after you trusted it, or "
        "in ~/.config/accept; none: no site file.",
        rich_help_panel=Panel.TARGET,
    ),
]
NodesOption = Annotated[
    str | None,
    typer.Option(
        "--nodes",
        "-n",
        "-N",
        metavar="N",
        help="Number of nodes, a list a,b,c, @FILE with names, "
        "or all: every free node of a cluster.",
        rich_help_panel=Panel.TARGET,
        autocompletion=complete.hosts,
    ),
]
HostsOption = Annotated[
    list[str] | None,
    typer.Option(
        "--hosts",
        metavar="LIST",
        help="Hosts over ssh: a,b,c, node[01-16], @FILE.",
        rich_help_panel=Panel.TARGET,
        autocompletion=complete.hosts,
    ),
]
PartitionOption = Annotated[
    str | None,
    typer.Option(
        "--partition",
        "-p",
        metavar="NAME",
        help="Partition; runs the checks in a job of Slurm.",
        rich_help_panel=Panel.SLURM,
    ),
]
AccountOption = Annotated[
    str | None,
    typer.Option("--account", metavar="NAME", help="Account.", rich_help_panel=Panel.SLURM),
]
BackendOption = Annotated[
    str | None,
    typer.Option(
        "--backend",
        metavar="NAME",
        help="Back end: local, ssh, slurm or kubernetes; "
        "default: chosen by --hosts, --partition and --site.",
        rich_help_panel=Panel.TARGET,
        autocompletion=complete.backends,
    ),
]
BusyOption = Annotated[
    bool,
    typer.Option(
        "--busy-ok",
        help="Measure GPUs that are in use, too.",
        rich_help_panel=Panel.TARGET,
    ),
]
SuiteOption = Annotated[
    str,
    typer.Option(
        "--suite",
        "-s",
        metavar="NAME",
        help="Suite: a name or your own file.",
        rich_help_panel=Panel.CHECKS,
        autocompletion=complete.suites,
    ),
]
LauncherOption = Annotated[
    Literal["resident", "nccl-tests"] | None,
    typer.Option(
        "--launcher",
        metavar="PROGRAM",
        help="What measures pairs of nodes: resident, which starts once on each node, "
        "or nccl-tests, which starts for each pair. Default: that of the suite.",
        rich_help_panel=Panel.CHECKS,
    ),
]
SettingsOption = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="CHECK.PARAM=VALUE",
        help="Parameter of a check: accept show check NAME. "
        "max must be min times a power of factor.",
        rich_help_panel=Panel.CHECKS,
    ),
]
ExpectOption = Annotated[
    list[str] | None,
    typer.Option(
        metavar="BOUND",
        help="Your own threshold: 'all-reduce@8G>=380'.",
        rich_help_panel=Panel.CHECKS,
    ),
]
DryRunOption = Annotated[bool, typer.Option("--dry-run", help="Only show the plan.")]
RemovalDryRunOption = Annotated[
    bool, typer.Option("--dry-run", help="Only show what would be removed.")
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
class FormatOptions:
    """The format and amount of output."""

    json: Annotated[
        bool,
        typer.Option(
            "--json",
            help="Print only the result, as JSON, on stdout.",
            rich_help_panel=Panel.OUTPUT,
        ),
    ] = False
    quiet: Annotated[
        bool, typer.Option("--quiet", "-q", help="No progress.", rich_help_panel=Panel.OUTPUT)
    ] = False
    verbose: Annotated[
        bool, typer.Option("--verbose", "-v", help="More progress.", rich_help_panel=Panel.OUTPUT)
    ] = False

    def terminal(self) -> Terminal:
        """Return the terminal with these settings."""
        return Terminal(json=self.json, quiet=self.quiet, verbose=self.verbose, as_called=as_called)


def file_of(out: Path | None) -> Path | None:
    """Return the file that -o names; None for -, which is standard output."""
    return None if out == Path("-") else out


@dataclass(frozen=True, kw_only=True)
class OutputOptions(FormatOptions):
    """The format, amount and place of output."""

    file: Annotated[
        Path | None,
        typer.Option(
            "--out",
            "-o",
            metavar="FILE",
            help="Write the result to a file; default, and -: stdout.",
            rich_help_panel=Panel.OUTPUT,
        ),
    ] = None

    def terminal(self) -> Terminal:
        """Return the terminal with these settings."""
        return replace(super().terminal(), file=file_of(self.file))


@dataclass(frozen=True, kw_only=True)
class LaunchOptions:
    """The name of a launch, or only its plan."""

    attempt: Annotated[
        str | None, typer.Option(metavar="NAME", help="Name of this launch; default: generated.")
    ] = None
    dry_run: DryRunOption = False


@dataclass(frozen=True, kw_only=True)
class ClusterOptions:
    """The location of a cluster."""

    kubeconfig: Annotated[
        str | None,
        typer.Option(
            metavar="FILE",
            help="Kubeconfig; default: the one that kubectl uses.",
            rich_help_panel=Panel.KUBERNETES,
        ),
    ] = None
    context: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Context of the kubeconfig; default: its current one.",
            rich_help_panel=Panel.KUBERNETES,
        ),
    ] = None
    namespace: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Namespace; default: the site's, else the context's.",
            rich_help_panel=Panel.KUBERNETES,
        ),
    ] = None


@dataclass(frozen=True, kw_only=True)
class ReleaseOptions(ClusterOptions):
    """The location of a cluster, and the name of a run on it."""

    release: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Name of the Helm release; default: from the attempt.",
            rich_help_panel=Panel.KUBERNETES,
        ),
    ] = None


@dataclass(frozen=True, kw_only=True)
class CheckOptions:
    """The machine, bounds and parameters of checks, on whichever hosts."""

    machine: MachineOption = None
    site: SiteOption = None
    gpus_per_node: GpusOption = None
    busy_ok: BusyOption = False
    settings: SettingsOption = None
    expect: ExpectOption = None


@dataclass(frozen=True, kw_only=True)
class DrillOptions(CheckOptions):
    """Checks, hosts and time limits of a run."""

    nodes: NodesOption = None
    hosts: HostsOption = None
    exclude: Annotated[
        list[str] | None,
        typer.Option(
            metavar="LIST",
            help="Nodes not to use: n7, n[01-16].",
            rich_help_panel=Panel.TARGET,
            autocompletion=complete.hosts,
        ),
    ] = None
    backend: BackendOption = None
    image: Annotated[
        str | None,
        typer.Option(
            metavar="IMAGE",
            help="Container image of the run; replaces the site's.",
            rich_help_panel=Panel.TARGET,
        ),
    ] = None
    require_all_nodes: Annotated[
        bool,
        typer.Option(
            "--require-all-nodes",
            help="Stop, or fail, if any host does not respond or is lost.",
            rich_help_panel=Panel.TARGET,
        ),
    ] = False
    suite: SuiteOption = "quick"
    launcher: LauncherOption = None
    nccl: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KEY=VALUE",
            help="Setting of NCCL, a plugin or a transport: NCCL_DEBUG=INFO.",
            rich_help_panel=Panel.CHECKS,
        ),
    ] = None
    nccl_profile: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="NCCL profile of the machine; default: site's. Names: accept list profiles.",
            rich_help_panel=Panel.CHECKS,
            autocompletion=complete.nccl_profiles,
        ),
    ] = None
    rounds: Annotated[
        str | None,
        typer.Option(
            metavar="N",
            help="Rounds of pairs: a number or auto; default: suite's.",
            rich_help_panel=Panel.CHECKS,
        ),
    ] = None
    seed: Annotated[
        int,
        typer.Option(
            metavar="N",
            help="Random seed for pairs and drills.",
            rich_help_panel=Panel.CHECKS,
        ),
    ] = 1
    budget: Annotated[
        str | None,
        typer.Option(
            metavar="TIME",
            help="Keep the checks that add most within this time: 10m.",
            rich_help_panel=Panel.TIMES,
        ),
    ] = None
    deadline: Annotated[
        str | None,
        typer.Option(
            metavar="TIME",
            help="Longest run time after the hosts were found.",
            rich_help_panel=Panel.TIMES,
        ),
    ] = None
    start_timeout: Annotated[
        str | None,
        typer.Option(
            metavar="TIME",
            help="Longest wait for hosts: 90s, 5m.",
            rich_help_panel=Panel.TIMES,
        ),
    ] = None
    keep: Annotated[
        str | None,
        typer.Option(
            metavar="TIME",
            help="How long the first host keeps evidence that was not fetched.",
            rich_help_panel=Panel.TIMES,
        ),
    ] = None
    partition: PartitionOption = None
    reservation: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Reservation.", rich_help_panel=Panel.SLURM),
    ] = None
    account: AccountOption = None
    qos: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Quality of service.", rich_help_panel=Panel.SLURM),
    ] = None
    constraint: Annotated[
        str | None,
        typer.Option(
            metavar="FEATURES", help="Features of the nodes.", rich_help_panel=Panel.SLURM
        ),
    ] = None
    time: Annotated[
        str | None,
        typer.Option(
            metavar="TIME",
            help="Time limit of the job; default: the run's longest.",
            rich_help_panel=Panel.SLURM,
        ),
    ] = None
    sbatch_arg: Annotated[
        list[str] | None,
        typer.Option(
            metavar="OPTION",
            help="Another option of sbatch: --switches=1.",
            rich_help_panel=Panel.SLURM,
        ),
    ] = None


@dataclass(frozen=True, kw_only=True)
class PlanOptions(DrillOptions):
    """The options of a drill, and those that a drill sets itself for each of its runs."""

    only: Annotated[
        list[str] | None,
        typer.Option(
            metavar="LIST",
            help="Run only these checks or steps: gemm,memory.",
            rich_help_panel=Panel.CHECKS,
            autocompletion=complete.check_list,
        ),
    ] = None
    skip: Annotated[
        list[str] | None,
        typer.Option(
            metavar="LIST",
            help="Run all but these checks or steps: train.",
            rich_help_panel=Panel.CHECKS,
            autocompletion=complete.check_list,
        ),
    ] = None
    fail_fast: Annotated[
        bool,
        typer.Option(
            "--fail-fast",
            help="End the run after the first step that fails for good.",
            rich_help_panel=Panel.CHECKS,
        ),
    ] = False
    inject: Annotated[
        list[str] | None,
        typer.Option(
            metavar="FAULT",
            help="Inject a fault: FAULT@HOST[:LOCALRANK]. Each in turn: accept drill.",
            rich_help_panel=Panel.CHECKS,
            autocompletion=complete.faults,
        ),
    ] = None
    hold: Annotated[
        str | None,
        typer.Option(
            metavar="TIME",
            help="Keep the hosts this long after a failed run, for debugging: 30m; "
            "after every run: always:30m.",
            rich_help_panel=Panel.TIMES,
        ),
    ] = None
