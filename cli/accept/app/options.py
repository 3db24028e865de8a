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
from typing import TYPE_CHECKING, Annotated, Literal, get_type_hints

import typer
from typer.models import ArgumentInfo, OptionInfo

from accept.app import complete
from accept.app.help import as_called
from accept.report.console import Terminal

if TYPE_CHECKING:
    from accept.commands.judged import GivenBounds

#: Returns the names that can follow in the shell.
Complete = Callable[..., list[str]]


class Panel(StrEnum):
    """A group of options in the help of a command; Typer's `rich_help_panel`."""

    OTHER = "Options"
    TARGET = "What to test"
    CHECKS = "Checks"
    TIMES = "Time limits"
    SLURM = "Slurm"
    KUBERNETES = "Kubernetes"
    OUTPUT = "Output"

    def option(
        self,
        value: str,
        text: str,
        *names: str,
        completion: Complete | None = None,
        least: int | None = None,
        most: int | None = None,
    ) -> OptionInfo:
        """Declare an option: its kind of value, help, and names other than that of its field.

        A number is in the range from `least` to `most`.
        """
        option: OptionInfo = typer.Option(
            *names,
            metavar=value,
            help=text,
            rich_help_panel=self._title,
            autocompletion=completion,
            min=least,
            max=most,
        )
        return option

    def flag(self, *names_and_text: str) -> OptionInfo:
        """Declare an option without a value by its names and, last, its help."""
        *names, text = names_and_text
        flag: OptionInfo = typer.Option(*names, help=text, rich_help_panel=self._title)
        return flag

    def machine(self, text: str) -> OptionInfo:
        """Declare --machine by its help."""
        return self.option("NAME", text, "--machine", "-m", completion=complete.machines)

    @property
    def _title(self) -> str | None:
        return None if self is Panel.OTHER else self.value


def argument(
    value: str,
    text: str,
    completion: Complete | None = None,
    callback: Callable[..., object] | None = None,
) -> ArgumentInfo:
    """Declare an argument; if it has a closed set of values, its help names them."""
    argument: ArgumentInfo = typer.Argument(
        metavar=value, help=text, autocompletion=completion, callback=callback, show_choices=False
    )
    return argument


RunArgument = Annotated[str, argument("RUN", "Attempt, folder, or `last`.", complete.runs)]


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
    argument(
        "RUN",
        "Attempt, folder, archive, `last`, URL in a bucket, or - for standard input.",
        complete.runs,
        callback=_refuse_unnamed_input,
    ),
]
FetchedArgument = Annotated[
    str, argument("RUN", "Attempt, folder, `last`, or URL in a bucket.", complete.runs)
]
PathsArgument = Annotated[
    list[str] | None,
    argument(
        "PATH...",
        "Run, evidence folder, archive, saved log or URL; or logs of nccl-tests, kernel "
        "logs, nvidia-smi -q, dcgmi diag; - reads standard input.",
        complete.runs,
        callback=_refuse_unnamed_input,
    ),
]
GpusOption = Annotated[
    int | None, Panel.TARGET.option("N", "GPUs to use on each node; default: all.")
]
MaxBadOption = Annotated[
    int,
    Panel.OTHER.option(
        "N", "Accept a run that passes without N bad or absent nodes at most.", least=0
    ),
]
MachineOption = Annotated[
    str | None,
    Panel.TARGET.machine("Machine: a name or your own file; default: detected on the hosts."),
]
SiteOption = Annotated[
    str | None,
    Panel.TARGET.option(
        "FILE",
        "Site file: describes your cluster; default: site.yaml here, after you trusted it, or "
        "in ~/.config/accept; none: no site file.",
    ),
]
NodesOption = Annotated[
    str | None,
    Panel.TARGET.option(
        "N",
        "Number of nodes, a list a,b,c, @FILE with names, or all: every free node of a cluster.",
        "--nodes",
        "-n",
        "-N",
        completion=complete.hosts,
    ),
]
HostsOption = Annotated[
    list[str] | None,
    Panel.TARGET.option(
        "LIST", "Hosts over ssh: a,b,c, node[01-16], @FILE.", completion=complete.hosts
    ),
]
PartitionOption = Annotated[
    str | None,
    Panel.SLURM.option(
        "NAME", "Partition; runs the checks in a job of Slurm.", "--partition", "-p"
    ),
]
AccountOption = Annotated[str | None, Panel.SLURM.option("NAME", "Account.")]
BackendOption = Annotated[
    str | None,
    Panel.TARGET.option(
        "NAME",
        "Back end: local, ssh, slurm or kubernetes; "
        "default: chosen by --hosts, --partition and --site.",
        completion=complete.backends,
    ),
]
BusyOption = Annotated[bool, Panel.TARGET.flag("--busy-ok", "Measure GPUs that are in use, too.")]
SuiteOption = Annotated[
    str,
    Panel.CHECKS.option(
        "NAME", "Suite: a name or your own file.", "--suite", "-s", completion=complete.suites
    ),
]
LauncherOption = Annotated[
    Literal["resident", "nccl-tests"] | None,
    Panel.CHECKS.option(
        "PROGRAM",
        "What measures pairs of nodes: resident, which starts once on each node, "
        "or nccl-tests, which starts for each pair. Default: that of the suite.",
    ),
]
SettingsOption = Annotated[
    list[str] | None,
    Panel.CHECKS.option(
        "CHECK.PARAM=VALUE",
        "Parameter of a check: accept show check NAME. max must be min times a power of factor.",
        "--set",
    ),
]
ExpectOption = Annotated[
    list[str] | None, Panel.CHECKS.option("BOUND", "Your own threshold: 'all-reduce@8G>=380'.")
]
KeysOption = Annotated[
    list[Path] | None, Panel.OTHER.option("FILE", "Public keys; one must have signed it.")
]
DryRunOption = Annotated[bool, Panel.OTHER.flag("--dry-run", "Only show the plan.")]
RemovalDryRunOption = Annotated[
    bool, Panel.OTHER.flag("--dry-run", "Only show what would be removed.")
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
        bool, Panel.OUTPUT.flag("--json", "Print only the result, as JSON, on stdout.")
    ] = False
    quiet: Annotated[bool, Panel.OUTPUT.flag("--quiet", "-q", "No progress.")] = False
    verbose: Annotated[bool, Panel.OUTPUT.flag("--verbose", "-v", "More progress.")] = False

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
        Panel.OUTPUT.option(
            "FILE", "Write the result to a file; default, and -: stdout.", "--out", "-o"
        ),
    ] = None

    def terminal(self) -> Terminal:
        """Return the terminal with these settings."""
        return replace(super().terminal(), file=file_of(self.file))


@dataclass(frozen=True, kw_only=True)
class BoundsOptions:
    """The machine and thresholds to judge by instead of those of the evidence."""

    machine: Annotated[
        str | None, Panel.OTHER.machine("Machine to compare with: a name or a file.")
    ] = None
    expect: Annotated[
        list[str] | None, Panel.OTHER.option("BOUND", "Threshold: 'all-reduce@8G>=380'.")
    ] = None

    def given(self) -> "GivenBounds":
        """Return them as commands take them."""
        from accept.commands.judged import GivenBounds

        return GivenBounds(self.machine, tuple(self.expect or ()))


@dataclass(frozen=True, kw_only=True)
class LaunchOptions:
    """The name of a launch, or only its plan."""

    attempt: Annotated[
        str | None, Panel.OTHER.option("NAME", "Name of this launch; default: generated.")
    ] = None
    dry_run: DryRunOption = False


@dataclass(frozen=True, kw_only=True)
class ClusterOptions:
    """The location of a cluster."""

    kubeconfig: Annotated[
        str | None,
        Panel.KUBERNETES.option("FILE", "Kubeconfig; default: the one that kubectl uses."),
    ] = None
    context: Annotated[
        str | None,
        Panel.KUBERNETES.option("NAME", "Context of the kubeconfig; default: its current one."),
    ] = None
    namespace: Annotated[
        str | None,
        Panel.KUBERNETES.option("NAME", "Namespace; default: the site's, else the context's."),
    ] = None


@dataclass(frozen=True, kw_only=True)
class ReleaseOptions(ClusterOptions):
    """The location of a cluster, and the name of a run on it."""

    release: Annotated[
        str | None,
        Panel.KUBERNETES.option("NAME", "Name of the Helm release; default: from the attempt."),
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
        Panel.TARGET.option("LIST", "Nodes not to use: n7, n[01-16].", completion=complete.hosts),
    ] = None
    backend: BackendOption = None
    image: Annotated[
        str | None, Panel.TARGET.option("IMAGE", "Container image of the run; replaces the site's.")
    ] = None
    require_all_nodes: Annotated[
        bool,
        Panel.TARGET.flag(
            "--require-all-nodes", "Stop, or fail, if any host does not respond or is lost."
        ),
    ] = False
    suite: SuiteOption = "quick"
    launcher: LauncherOption = None
    nccl: Annotated[
        list[str] | None,
        Panel.CHECKS.option(
            "KEY=VALUE", "Setting of NCCL, a plugin or a transport: NCCL_DEBUG=INFO."
        ),
    ] = None
    nccl_profile: Annotated[
        str | None,
        Panel.CHECKS.option(
            "NAME",
            "NCCL profile of the machine; default: site's. Names: accept list profiles.",
            completion=complete.nccl_profiles,
        ),
    ] = None
    rounds: Annotated[
        str | None, Panel.CHECKS.option("N", "Rounds of pairs: a number or auto; default: suite's.")
    ] = None
    seed: Annotated[int, Panel.CHECKS.option("N", "Random seed for pairs and drills.")] = 1
    budget: Annotated[
        str | None,
        Panel.TIMES.option("TIME", "Keep the checks that add most within this time: 10m."),
    ] = None
    deadline: Annotated[
        str | None, Panel.TIMES.option("TIME", "Longest run time after the hosts were found.")
    ] = None
    start_timeout: Annotated[
        str | None, Panel.TIMES.option("TIME", "Longest wait for hosts: 90s, 5m.")
    ] = None
    keep: Annotated[
        str | None,
        Panel.TIMES.option("TIME", "How long the first host keeps evidence that was not fetched."),
    ] = None
    partition: PartitionOption = None
    reservation: Annotated[str | None, Panel.SLURM.option("NAME", "Reservation.")] = None
    account: AccountOption = None
    qos: Annotated[str | None, Panel.SLURM.option("NAME", "Quality of service.")] = None
    constraint: Annotated[str | None, Panel.SLURM.option("FEATURES", "Features of the nodes.")] = (
        None
    )
    time: Annotated[
        str | None, Panel.SLURM.option("TIME", "Time limit of the job; default: the run's longest.")
    ] = None
    sbatch_arg: Annotated[
        list[str] | None, Panel.SLURM.option("OPTION", "Another option of sbatch: --switches=1.")
    ] = None


@dataclass(frozen=True, kw_only=True)
class PlanOptions(DrillOptions):
    """The options of a drill, and those that a drill sets itself for each of its runs."""

    only: Annotated[
        list[str] | None,
        Panel.CHECKS.option(
            "LIST", "Run only these checks or steps: gemm,memory.", completion=complete.check_list
        ),
    ] = None
    skip: Annotated[
        list[str] | None,
        Panel.CHECKS.option(
            "LIST", "Run all but these checks or steps: train.", completion=complete.check_list
        ),
    ] = None
    fail_fast: Annotated[
        bool,
        Panel.CHECKS.flag("--fail-fast", "End the run after the first step that fails for good."),
    ] = False
    inject: Annotated[
        list[str] | None,
        Panel.CHECKS.option(
            "FAULT",
            "Inject a fault: FAULT@HOST[:LOCALRANK]. Each in turn: accept drill.",
            completion=complete.faults,
        ),
    ] = None
    hold: Annotated[
        str | None,
        Panel.TIMES.option(
            "TIME",
            "Keep the hosts this long after a failed run, for debugging: 30m; "
            "after every run: always:30m.",
        ),
    ] = None
