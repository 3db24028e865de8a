"""Declare the commands and their options; `accept.commands` does the work.

Each command imports its module when it runs. All modules together take three times as long to
import as Typer, which everyone who types `accept --help` or presses Tab would wait for.

Typer reads annotations, so they are objects here and not text.
"""

import inspect
from collections.abc import Callable, Iterable, Sequence
from dataclasses import fields
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Literal

import typer

from accept import __version__
from accept.app.options import (
    ClusterOptions,
    DrillOptions,
    EvidenceArgument,
    GpusOption,
    LaunchOptions,
    MaxBadOption,
    OutputOptions,
    PlanOptions,
    ReleaseOptions,
    RunArgument,
    SiteOption,
    with_groups,
)
from accept.commands.choices import Listing, Schema, Shown
from accept.core.error_codes import Code
from accept.core.errors import BadInput, Exit
from accept.core.text import plain

Collective = Literal[
    "all-reduce",
    "all-gather",
    "reduce-scatter",
    "alltoall",
    "sendrecv",
    "broadcast",
    "reduce",
    "gather",
    "scatter",
]

_HELP = """Acceptance tests for GPU nodes: is the machine good, and if not, which part is bad?

\b
Commands in their order (`run` does submit to judge; `last` names the newest run):
  accept doctor  --hosts node[01-16]     what the hosts have, and which checks will run
  accept render  --machine a4-highgpu-8g --nodes 64 --site site.yaml > values.yaml
  accept chart                           path of the Helm chart that takes these values
  accept submit  --hosts node[01-16]     start a run and return
  accept watch   last                    follow the run; can be repeated after a disconnect
  accept collect last                    fetch the evidence
  accept judge   last                    judge the evidence; can be repeated anywhere
  accept explain last node17             the evidence for and against a node
  accept retest  last                    measure its suspects again, with good nodes
  accept ticket  last node17             text and logs about a bad node for its provider
  accept report  last                    write report.html, report.md, junit.xml, node lists
  accept verify  last                    is the evidence unmodified, and who signed it?
  accept judge   my-logs/                judge nccl-tests logs from runs without accept
  accept diff    monday last             what got slower
  accept baseline last --out my-a4.yaml  your own references, for --machine
  accept run                             a full run on this machine
  accept run     --hosts node[01-16]     a full run on hosts over ssh
  accept run     --partition gpu -n 16   a full run in a job of Slurm
  accept drill   --hosts node[01-16]     does the suite catch faults? inject them one by one
  accept demo                            judge a simulated run, and open its report
  accept cancel  last                    end the run; keep what it measured
  accept delete  last                    remove the rest of the run from a cluster
  accept prune   --older-than 30d        remove the folders of old runs on this machine
  accept init    site.yaml               write a site file for a cluster
  accept nodes   --machine a4-highgpu-8g list the free nodes of a cluster
  accept list    machines                list machines, suites, checks, backends, runs or errors
  accept show    machine gpu             what results are compared with, and the sources
  accept show    error E-USAGE           what an error code means, and what to do
  accept schema  site                    the JSON Schema of a file or result

\b
Exit codes: 0 pass, 2 usage or bad input, 3 fail or degraded, 4 could not start,
5 failed during the run or timed out, 6 evidence incomplete, 7 inconclusive, 70 internal error,
130 Ctrl-C, 143 SIGTERM.
"""

#: The states of nodes that `accept show nodes` takes as options.
_STATES = ("good", "bad", "untested")
#: The functions of all commands, by name.
_COMMANDS: dict[str, Callable[..., int]] = {}


def command_line(names: Iterable[str] = _COMMANDS) -> typer.Typer:
    """Return the command line with the commands in `names`; all by default."""
    app = typer.Typer(
        help=_HELP,
        invoke_without_command=True,
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    )
    app.callback()(_accept)
    for name in names:
        function = _COMMANDS[name]
        # The list of all commands shows the docstring without the example.
        summary, _, _ = (inspect.getdoc(function) or "").partition(": accept")
        app.command(name, short_help=f"{summary}.")(with_groups(function))
    return app


def call(script: str, words: Sequence[str]) -> int:
    """Run the command that the words after the script's name give, and return its exit code.

    Raises BadInput if they are not a valid command line.
    """
    _refuse_blank_words(script, words)
    # Declaring only the command that runs saves Typer the work for all others.
    first = words[0] if words else ""
    names = (first,) if first in _COMMANDS else _COMMANDS
    try:
        code: int = command_line(names)(args=words, prog_name=script, standalone_mode=False)
    except typer.TyperException as error:
        command = next((word for word in words if word in _COMMANDS), "")
        raise BadInput(
            " ".join(error.format_message().split()),
            code=Code.USAGE,
            hint=f"usage and examples: {' '.join(filter(None, (script, command, '--help')))}",
        ) from None
    return code


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


def _command(function: Callable[..., int]) -> Callable[..., int]:
    """Add a function to the commands."""
    _COMMANDS[function.__name__.rstrip("_")] = function
    return function


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
        typer.echo(parsed.get_help(), err=True)
        raise typer.Exit(Exit.USAGE)


@_command
def doctor(
    *,
    rbac: Annotated[
        bool, typer.Option("--rbac", help="Kubernetes: only print the Role that a run needs.")
    ] = False,
    plan: PlanOptions,
    place: ClusterOptions,
    output: OutputOptions,
) -> int:
    """Show what the hosts have and lack, and which checks will run: accept doctor --hosts a,b"""
    from accept.app.parse import parse_options
    from accept.commands import doctor as doctors

    options = parse_options(plan, cluster=place)
    if rbac:
        return doctors.do_rbac(options, output.terminal())
    return doctors.do_doctor(options, output.terminal())


@_command
def render(
    *,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="Folder to write the rendered run to.")
    ] = None,
    plan: PlanOptions,
    output: OutputOptions,
) -> int:
    """Print a run as Helm values, or write it to a folder: accept render -m cpu --out run1"""
    from accept.app.parse import parse_options
    from accept.commands import plan as plans

    return plans.do_render(parse_options(plan), output.terminal(), out=out)


@_command
def submit(
    *,
    parsed: typer.Context,
    folder: Annotated[
        str | None, typer.Argument(metavar="[RUN]", help="Folder that accept render wrote.")
    ] = None,
    plan: PlanOptions,
    launch: LaunchOptions,
    place: ReleaseOptions,
    output: OutputOptions,
) -> int:
    """Start a run and return: accept submit --hosts a,b"""
    from accept.app.parse import parse_options
    from accept.commands import run as runs

    if folder is not None:
        _refuse_plan_options(parsed)
    options = parse_options(plan, launch=launch, cluster=place)
    return runs.do_submit(options, output.terminal(), folder=folder, dry_run=launch.dry_run)


def _refuse_plan_options(parsed: typer.Context) -> None:
    """Raise BadInput if the command line has options that would change a rendered plan."""
    planning = {option.name for option in fields(PlanOptions)}
    given = []
    for param in parsed.command.params:
        if param.name in planning:
            source = parsed.get_parameter_source(param.name)
            if source is not None and source.name == "COMMANDLINE":
                given.append(param.opts[0])
    if given:
        raise BadInput(
            f"a rendered run takes no {', '.join(given)}: its plan was fixed by accept render",
            code=Code.PLAN_FIXED,
            hint="leave them out, or render the run again with them and submit that one",
        )


@_command
def watch(*, run: RunArgument = "last", output: OutputOptions) -> int:
    """Follow a run to its end: accept watch last"""
    from accept.commands import run as runs

    return runs.do_watch(run, output.terminal())


@_command
def collect(*, run: EvidenceArgument = "last", output: OutputOptions) -> int:
    """Fetch the evidence and release the hosts: accept collect last"""
    from accept.commands import run as runs

    return runs.do_collect(run, output.terminal())


@_command
def judge(
    *,
    paths: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[PATH]...",
            help="Run, evidence folder, archive, saved log or URL; or nccl-tests logs.",
        ),
    ] = None,
    machine: Annotated[
        str | None,
        typer.Option("--machine", "-m", help="Machine to compare with: a name or a file."),
    ] = None,
    expect: Annotated[
        list[str] | None, typer.Option(help="Threshold: 'all-reduce@8G>=380'.")
    ] = None,
    collective: Annotated[
        Collective | None,
        typer.Option(metavar="NAME", help="Collective of logs that do not name theirs."),
    ] = None,
    max_bad: MaxBadOption = 0,
    output: OutputOptions,
) -> int:
    """Judge evidence or nccl-tests logs: accept judge last, accept judge my-logs/"""
    from accept.commands import judge as judges

    return judges.do_judge(
        tuple(paths or ()),
        output.terminal(),
        expect=tuple(expect or ()),
        machine=machine,
        collective=collective,
        max_bad=max_bad,
    )


@_command
def report(
    *,
    run: EvidenceArgument = "last",
    form: Annotated[
        Literal["files", "html", "md", "junit"],
        typer.Option("--format", help="Write all files, or print one report."),
    ] = "files",
    output: OutputOptions,
) -> int:
    """Write report.html, report.md and junit.xml, or print one: accept report last"""
    from accept.commands import judge as judges

    return judges.do_report(run, output.terminal(), form=form)


@_command
def diff(
    *,
    before: Annotated[str, typer.Argument(metavar="A", help="Run, evidence or logs: before.")],
    after: Annotated[str, typer.Argument(metavar="B", help="Run, evidence or logs: after.")],
    output: OutputOptions,
) -> int:
    """Show what got slower from A to B by more than noise: accept diff monday/ last"""
    from accept.commands import diff as diffs

    return diffs.do_diff(before, after, output.terminal())


@_command
def baseline(
    *,
    run: EvidenceArgument = "last",
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="File to write; default: stdout.")
    ] = None,
    machine: Annotated[
        str | None,
        typer.Option("--machine", "-m", help="Machine to extend; default: that of the run."),
    ] = None,
    share: Annotated[
        float, typer.Option(help="Share of each measured value that later runs must reach.")
    ] = 0.95,
    force: Annotated[
        bool, typer.Option("--force", help="Allow a run that was not accepted; replace the file.")
    ] = False,
    output: OutputOptions,
) -> int:
    """Write a machine file with your own references: accept baseline last --out my-a4.yaml"""
    from accept.commands import baseline as baselines

    return baselines.do_baseline(
        run, output.terminal(), out=out, machine=machine, share=share, force=force
    )


@_command
def run(
    *,
    max_bad: MaxBadOption = 0,
    repeat: Annotated[
        int,
        typer.Option(min=1, max=100, help="Repetitions; shows the spread and the worst verdict."),
    ] = 1,
    resume: Annotated[
        str | None,
        typer.Option(metavar="RUN", help="Go on after the finished steps of an interrupted run."),
    ] = None,
    plan: PlanOptions,
    launch: LaunchOptions,
    place: ReleaseOptions,
    output: OutputOptions,
) -> int:
    """Run a suite and judge it: accept run; accept run --hosts a,b,c"""
    from accept.app.parse import parse_options
    from accept.commands import run as runs

    options = parse_options(plan, launch=launch, cluster=place)
    if repeat > 1 and resume:
        raise BadInput(
            "--resume and --repeat exclude each other",
            code=Code.USAGE,
            hint="leave one out",
        )
    if repeat > 1:
        from accept.commands import repeat as repeats

        return repeats.do_repeat(
            options, output.terminal(), times=repeat, dry_run=launch.dry_run, max_bad=max_bad
        )
    return runs.do_run(
        options, output.terminal(), dry_run=launch.dry_run, max_bad=max_bad, resumed=resume
    )


@_command
def drill(
    *,
    faults: Annotated[
        list[str] | None, typer.Option(help="Inject only these faults: wrong,hang; default: all.")
    ] = None,
    only_needed: Annotated[
        bool,
        typer.Option("--only-needed", help="Run only the steps that should detect the fault."),
    ] = False,
    plan: DrillOptions,
    launch: LaunchOptions,
    place: ReleaseOptions,
    output: OutputOptions,
) -> int:
    """Prove that the suite catches faults, injected one at a time: accept drill --dry-run"""
    from accept.app.parse import parse_options
    from accept.commands import drill as drills

    return drills.do_drill(
        parse_options(plan, launch=launch, cluster=place),
        output.terminal(),
        faults=tuple(faults or ()),
        only_needed=only_needed,
        dry_run=launch.dry_run,
    )


@_command
def demo(
    *,
    no_open: Annotated[
        bool, typer.Option("--no-open", help="Do not open the report in a browser.")
    ] = False,
    output: OutputOptions,
) -> int:
    """Judge a simulated run with one bad node, and open its report: accept demo"""
    from accept.commands import demo as demos

    return demos.do_demo(output.terminal(), opens=not no_open)


@_command
def cancel(*, run: RunArgument = "last", output: OutputOptions) -> int:
    """End a run, keep its results and remove the rest: accept cancel last"""
    from accept.commands import run as runs

    return runs.do_cancel(run, output.terminal())


@_command
def delete(
    *,
    names: Annotated[
        list[str] | None, typer.Argument(metavar="[RUN]...", help="Attempts, folders, or `last`.")
    ] = None,
    older_than: Annotated[
        str | None, typer.Option("--older-than", help="All runs that are older: 24h, 90m.")
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only show what would be removed.")
    ] = False,
    no_collect: Annotated[
        bool, typer.Option("--no-collect", help="Remove the run without fetching its evidence.")
    ] = False,
    output: OutputOptions,
) -> int:
    """Collect a run, then remove it from the cluster: accept delete last --dry-run"""
    from accept.app.parse import seconds
    from accept.commands import run as runs

    return runs.do_delete(
        tuple(names or ()),
        output.terminal(),
        older_than=seconds("older-than", older_than),
        dry_run=dry_run,
        collects=not no_collect,
    )


@_command
def prune(
    *,
    older_than: Annotated[
        str, typer.Option("--older-than", help="Runs that are older: 30d, 24h.", show_default=False)
    ],
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only show what would be removed.")
    ] = False,
    output: OutputOptions,
) -> int:
    """Remove folders of old runs on this machine: accept prune --older-than 30d --dry-run"""
    from accept.app.parse import seconds
    from accept.commands import prune as pruning

    age = seconds("older-than", older_than)
    return pruning.do_prune(output.terminal(), older_than=age or 0.0, dry_run=dry_run)


@_command
def init(
    *,
    out: Annotated[Path, typer.Argument(metavar="[FILE]", help="File to write.")] = Path(
        "site.yaml"
    ),
    machine: Annotated[str | None, typer.Option(help="Machine, if there are several.")] = None,
    queue: Annotated[str | None, typer.Option(help="LocalQueue, or none.")] = None,
    service_account: Annotated[str | None, typer.Option(help="Service account, or none.")] = None,
    image: Annotated[str | None, typer.Option(help="Image of the run, with a digest.")] = None,
    results: Annotated[str | None, typer.Option(help="Bucket for the evidence, or none.")] = None,
    place: ClusterOptions,
    output: OutputOptions,
) -> int:
    """Write a site file for a cluster: accept init site.yaml"""
    from accept.app.parse import parse_place
    from accept.commands import cluster

    answers = cluster.Answers(
        machine=machine,
        queue=queue,
        service_account=service_account,
        image=image,
        results=results,
    )
    return cluster.do_init(out, parse_place(place), output.terminal(), answers=answers)


@_command
def nodes(
    *,
    machine: Annotated[
        str | None,
        typer.Option("--machine", "-m", help="Machine; default: the cluster's only one."),
    ] = None,
    site: SiteOption = None,
    gpus_per_node: GpusOption = None,
    partition: Annotated[
        str | None, typer.Option("--partition", help="Slurm: list the idle nodes of a partition.")
    ] = None,
    place: ClusterOptions,
    output: OutputOptions,
) -> int:
    """List matching nodes with all GPUs free: accept nodes -m a4-highgpu-8g > nodes.txt"""
    from accept.app.parse import parse_place, parse_slurm
    from accept.commands import cluster
    from accept.plan.resolve import Options

    options = Options(
        machine=machine or "",
        site=site,
        gpus_per_node=gpus_per_node,
        place=parse_place(place),
        slurm=parse_slurm(DrillOptions(partition=partition)),
    )
    return cluster.do_nodes(options, output.terminal())


@_command
def list_(
    *,
    what: Annotated[Listing, typer.Argument(help="What to list.")],
    url: Annotated[
        str | None, typer.Argument(metavar="[URL]", help="runs: those in a bucket or folder.")
    ] = None,
    output: OutputOptions,
) -> int:
    """List machines, suites, checks, back ends, runs or errors: accept list machines"""
    from accept.commands import catalog

    return catalog.do_list(what, output.terminal(), url=url)


@_command
def show(
    *,
    what: Annotated[Shown, typer.Argument(help="What to show.")],
    name: Annotated[
        str, typer.Argument(help="Its name, its file, the code of an error, or a run.")
    ],
    good: Annotated[bool, typer.Option("--good", help="nodes: those that are good.")] = False,
    bad: Annotated[bool, typer.Option("--bad", help="nodes: those that are bad.")] = False,
    untested: Annotated[
        bool, typer.Option("--untested", help="nodes: those that are not shown to be good or bad.")
    ] = False,
    folded: Annotated[
        bool, typer.Option("--folded", help="nodes: as one host list, such as node[01-16].")
    ] = False,
    commands: Annotated[
        bool,
        typer.Option(
            "--commands", help="nodes: commands that label and report bad ones; they are not run."
        ),
    ] = False,
    machine: Annotated[
        str, typer.Option(metavar="NAME", help="Machine of a suite's estimated times.")
    ] = "a4-highgpu-8g",
    nodes: Annotated[
        int, typer.Option(metavar="NUMBER", min=1, help="Nodes of a suite's estimated times.")
    ] = 64,
    output: OutputOptions,
) -> int:
    """Show a machine, suite, check, cause, error or a run's nodes: accept show check gemm"""
    from accept.commands import catalog
    from accept.commands import nodes as node_commands

    states = [state for state, chosen in zip(_STATES, (good, bad, untested), strict=True) if chosen]
    if what is Shown.NODES and commands:
        return node_commands.do_show_commands(name, output.terminal())
    if what is Shown.NODES:
        return node_commands.do_show_nodes(name, output.terminal(), states=states, fold=folded)
    if states or folded or commands:
        raise BadInput(
            "--good, --bad, --untested, --folded and --commands are for the nodes of a run",
            code=Code.USAGE,
            hint="accept show nodes last --good",
        )
    return catalog.do_show(what, name, output.terminal(), machine=machine, nodes=nodes)


@_command
def explain(
    *,
    run: EvidenceArgument,
    node: Annotated[str, typer.Argument(help="Name of a node of the run.")],
    output: OutputOptions,
) -> int:
    """Show the evidence for and against a node: accept explain last node17"""
    from accept.commands import explain as explanations

    return explanations.do_explain(run, node, output.terminal())


@_command
def retest(
    *,
    run: RunArgument = "last",
    nodes: Annotated[
        list[str] | None,
        typer.Argument(metavar="[NODE]...", help="Suspects to measure; default: all."),
    ] = None,
    pairs: Annotated[
        bool, typer.Option("--pairs", help="Measure the bad pairs again, and as many good ones.")
    ] = False,
    output: OutputOptions,
) -> int:
    """Measure the suspects of a run again, with good nodes: accept retest last"""
    from accept.commands import retest as retests

    return retests.do_retest(run, tuple(nodes or ()), output.terminal(), pairs=pairs)


@_command
def ticket(
    *,
    run: EvidenceArgument,
    node: Annotated[
        str | None, typer.Argument(metavar="[NODE]", help="A bad node of the run.")
    ] = None,
    fabric: Annotated[
        bool, typer.Option("--fabric", help="The network between nodes instead of a node.")
    ] = False,
    redact: Annotated[
        bool,
        typer.Option(
            "--redact", help="Replace names and addresses; serials, UUIDs and PCI addresses stay."
        ),
    ] = False,
    output: OutputOptions,
) -> int:
    """Write text and logs about a bad node for its provider: accept ticket last node17"""
    from accept.commands import ticket as tickets

    return tickets.do_ticket(run, node, output.terminal(), fabric=fabric, redact=redact)


@_command
def verify(
    *,
    run: EvidenceArgument = "last",
    public_key: Annotated[
        list[Path] | None,
        typer.Option("--public-key", metavar="FILE", help="Public keys; one must have signed it."),
    ] = None,
    sign: Annotated[
        Path | None,
        typer.Option("--sign", metavar="KEY", help="Then sign it with your own private key."),
    ] = None,
    output: OutputOptions,
) -> int:
    """Show whether evidence is unmodified, and who signed it: accept verify last"""
    from accept.commands import verify as verifying

    return verifying.do_verify(run, output.terminal(), keys=tuple(public_key or ()), own_key=sign)


@_command
def schema(
    *,
    what: Annotated[
        Schema,
        typer.Argument(
            metavar="NAME",
            show_choices=False,
            help=f"A file, or what a command prints with --json: {', '.join(Schema)}.",
        ),
    ],
    _output: OutputOptions,
) -> int:
    """Print the JSON Schema of a file or result: accept schema site"""
    from accept.commands import catalog

    return catalog.do_schema(what)


@_command
def chart(*, output: OutputOptions) -> int:
    """Print the Helm chart's path: accept chart; helm install NAME "$(accept chart)" -f FILE"""
    from accept.commands import catalog

    return catalog.do_chart(output.terminal())
