"""Declare the commands and their options; `accept.commands` does the work.

Each command imports its module when it runs. All modules together take three times as long to
import as Typer, which everyone who types `accept --help` or presses Tab would wait for.

Typer reads annotations, so they are objects here and not text.
"""

import inspect
import shlex
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, Literal

import typer

from accept.app import complete
from accept.app.options import (
    AccountOption,
    BackendOption,
    BoundsOptions,
    CheckOptions,
    ClusterOptions,
    DrillOptions,
    DryRunOption,
    EvidenceArgument,
    FetchedArgument,
    FormatOptions,
    GpusOption,
    HostsOption,
    KeysOption,
    LauncherOption,
    LaunchOptions,
    MachineOption,
    MaxBadOption,
    NodesOption,
    OutputOptions,
    Panel,
    PartitionOption,
    PathsArgument,
    PlanOptions,
    ReleaseOptions,
    RemovalDryRunOption,
    RunArgument,
    SiteOption,
    SuiteOption,
    argument,
    file_of,
)
from accept.commands.choices import Listing, OnTimeout, Shown
from accept.core.error_codes import Code
from accept.core.errors import BadInput, Exit
from accept.core.text import command_line, plain
from accept.report.console import Terminal

if TYPE_CHECKING:
    from accept.plan.resolve import Options

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

#: The states of nodes that `accept show nodes` takes as options.
_STATES = ("good", "bad", "untested")
#: Options of `accept doctor` that do not change what `accept run` tests.
_OUTPUT_FLAGS = ("--json", "-q", "--quiet", "-v", "--verbose")
#: The functions of all commands, by name.
COMMANDS: Final[dict[str, Callable[..., int]]] = {}


def summary(name: str) -> str:
    """Return what a command does: its docstring without the example."""
    text, _, _ = (inspect.getdoc(COMMANDS[name]) or "").partition(": accept")
    return f"{text}."


def _command(function: Callable[..., int]) -> Callable[..., int]:
    """Add a function to the commands."""
    COMMANDS[function.__name__.rstrip("_")] = function
    return function


def _options(
    plan: DrillOptions,
    terminal: Terminal,
    *,
    launch: LaunchOptions | None = None,
    cluster: ClusterOptions | None = None,
    finds_site: bool = True,
) -> "Options":
    """Return the options of a run as `accept.plan` takes them, by default with the site file."""
    from accept.app.parse import parse_options, with_site

    options = parse_options(plan, launch=launch, cluster=cluster)
    return with_site(options, terminal) if finds_site else options


@_command
def doctor(
    *,
    rbac: Annotated[
        bool, Panel.OTHER.flag("--rbac", "Kubernetes: only print the Role that a run needs.")
    ] = False,
    plan: PlanOptions,
    place: ClusterOptions,
    output: OutputOptions,
) -> int:
    """Show what the hosts have and lack, and which checks will run: accept doctor --hosts a,b"""
    from accept.commands import doctor as doctors

    terminal = output.terminal()
    options = _options(plan, terminal, cluster=place)
    if rbac:
        return doctors.do_rbac(options, terminal)
    run = shlex.join(("accept", "run", *_without_output(sys.argv[2:])))
    return doctors.do_doctor(options, terminal, run=run)


def _without_output(words: Sequence[str]) -> Iterator[str]:
    """Yield the words of a command line without those about its output."""
    rest = iter(words)
    for word in rest:
        if word in ("-o", "--out"):
            next(rest, None)
        elif word not in _OUTPUT_FLAGS and not word.startswith(("-o", "--out=")):
            yield word


@_command
def render(
    *,
    out: Annotated[
        Path | None,
        Panel.OTHER.option(
            "FOLDER",
            "Folder for the rendered run, or FILE.yaml for the Helm values; -: stdout.",
            "--out",
            "-o",
        ),
    ] = None,
    plan: PlanOptions,
    output: FormatOptions,
) -> int:
    """Print a run as Helm values, or write it to a folder: accept render -m cpu --out run1"""
    from accept.commands import plan as plans

    terminal = output.terminal()
    if out is not None and (file_of(out) is None or out.suffix in (".yaml", ".yml")):
        terminal, out = replace(terminal, file=file_of(out)), None
    return plans.do_render(_options(plan, terminal), terminal, out=out)


@_command
def submit(
    *,
    parsed: typer.Context,
    folder: Annotated[
        str | None, argument("FOLDER", "Rendered run: accept render -m cpu --out run1.")
    ] = None,
    plan: PlanOptions,
    launch: LaunchOptions,
    place: ReleaseOptions,
    output: OutputOptions,
) -> int:
    """Start a run and return: accept submit --hosts a,b"""
    from accept.commands import run as runs

    terminal = output.terminal()
    options = _options(plan, terminal, launch=launch, cluster=place, finds_site=folder is None)
    if folder is not None:
        _refuse_plan_options(parsed)
    return runs.do_submit(options, terminal, folder=folder, dry_run=launch.dry_run)


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
    """Follow a run to its end and judge it: accept watch last"""
    from accept.commands import run as runs

    return runs.do_watch(run, output.terminal())


@_command
def collect(*, run: FetchedArgument = "last", output: OutputOptions) -> int:
    """Fetch the evidence and release the hosts: accept collect last"""
    from accept.commands import collect as collecting

    return collecting.do_collect(run, output.terminal())


@_command
def judge(
    *,
    paths: PathsArgument = None,
    bounds: BoundsOptions,
    collective: Annotated[
        Collective | None, Panel.OTHER.option("NAME", "Collective of logs that do not name theirs.")
    ] = None,
    max_bad: MaxBadOption = 0,
    public_key: KeysOption = None,
    verified: Annotated[
        bool, Panel.OTHER.flag("--verified", "End with 7 unless somebody vouches for it.")
    ] = False,
    output: OutputOptions,
) -> int:
    """Judge evidence, logs or reports of hosts: accept judge last, accept judge my-logs/"""
    from accept.commands.judge import do_judge

    return do_judge(
        tuple(paths or ()),
        output.terminal(),
        by=bounds.given(),
        collective=collective,
        max_bad=max_bad,
        keys=tuple(public_key or ()),
        must_be_verified=verified,
    )


@_command
def report(
    *,
    run: EvidenceArgument = "last",
    form: Annotated[
        Literal["files", "html", "md", "junit"],
        Panel.OTHER.option("NAME", "Write all files, or print html, md or junit.", "--format"),
    ] = "files",
    bounds: BoundsOptions,
    output: OutputOptions,
) -> int:
    """Write report.html, report.md and junit.xml, or print one: accept report last"""
    from accept.commands.report import do_report

    return do_report(run, output.terminal(), form=form, by=bounds.given())


@_command
def diff(
    *,
    before: Annotated[str, argument("A", "Run, evidence or logs: before.", complete.runs)],
    after: Annotated[str, argument("B", "Run, evidence or logs: after.", complete.runs)],
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
        Path | None,
        Panel.OTHER.option("FILE", "File to write; default, and -: stdout.", "--out", "-o"),
    ] = None,
    machine: Annotated[
        str | None, Panel.OTHER.machine("Machine to extend; default: that of the run.")
    ] = None,
    share: Annotated[
        float,
        Panel.OTHER.option("SHARE", "Share of each measured value that later runs must reach."),
    ] = 0.95,
    force: Annotated[
        bool, Panel.OTHER.flag("--force", "Allow a run that was not accepted; replace the file.")
    ] = False,
    output: FormatOptions,
) -> int:
    """Write a machine file with your own references: accept baseline last --out my-a4.yaml"""
    from accept.commands import baseline as baselines

    return baselines.do_baseline(
        run, output.terminal(), out=file_of(out), machine=machine, share=share, force=force
    )


@_command
def run(
    *,
    max_bad: MaxBadOption = 0,
    repeat: Annotated[
        int,
        Panel.OTHER.option(
            "N", "Repetitions; shows the spread and the worst verdict.", least=1, most=100
        ),
    ] = 1,
    resume: Annotated[
        str | None,
        Panel.OTHER.option(
            "RUN", "Go on after the finished steps of an interrupted run.", completion=complete.runs
        ),
    ] = None,
    plan: PlanOptions,
    launch: LaunchOptions,
    place: ReleaseOptions,
    output: OutputOptions,
) -> int:
    """Run a suite and judge it: accept run; accept run --hosts a,b,c"""
    from accept.commands import run as runs

    terminal = output.terminal()
    options = _options(plan, terminal, launch=launch, cluster=place, finds_site=not resume)
    if repeat > 1 and resume:
        raise BadInput(
            "--resume and --repeat exclude each other", code=Code.USAGE, hint="leave one out"
        )
    if repeat > 1:
        from accept.commands import repeat as repeats

        return repeats.do_repeat(
            options, terminal, times=repeat, dry_run=launch.dry_run, max_bad=max_bad
        )
    return runs.do_run(options, terminal, dry_run=launch.dry_run, max_bad=max_bad, resumed=resume)


@_command
def drill(
    *,
    faults: Annotated[
        list[str] | None,
        Panel.OTHER.option(
            "LIST",
            "Inject only these faults: wrong,hang; default: all.",
            completion=complete.fault_list,
        ),
    ] = None,
    only_needed: Annotated[
        bool, Panel.OTHER.flag("--only-needed", "Run only the steps that should detect the fault.")
    ] = False,
    plan: DrillOptions,
    launch: LaunchOptions,
    place: ReleaseOptions,
    output: OutputOptions,
) -> int:
    """Prove that the suite catches faults, injected one at a time: accept drill --dry-run"""
    from accept.commands import drill as drills

    terminal = output.terminal()
    return drills.do_drill(
        _options(plan, terminal, launch=launch, cluster=place),
        terminal,
        faults=tuple(faults or ()),
        only_needed=only_needed,
        dry_run=launch.dry_run,
    )


@_command
def gate(
    *,
    checks: CheckOptions,
    suite: SuiteOption = "gate",
    time: Annotated[str, Panel.TIMES.option("TIME", "Time limit of the command.")] = "20s",
    on_timeout: Annotated[
        OnTimeout,
        Panel.TIMES.option("ANSWER", "Answer if a check does not finish in time: pass or fail."),
    ] = OnTimeout.FAIL,
    dry_run: DryRunOption = False,
    output: OutputOptions,
) -> int:
    """Test this host in seconds, for a prolog or an init container: accept gate"""
    from accept.app.parse import seconds
    from accept.commands import gate as gates

    terminal = output.terminal()
    plan = DrillOptions(**vars(checks), backend="local", suite=suite)
    return gates.do_gate(
        _options(plan, terminal),
        terminal,
        limit=seconds("time", time) or 0.0,
        on_timeout=on_timeout,
        dry_run=dry_run,
    )


@_command
def pick(
    *,
    command: Annotated[
        list[str] | None,
        argument(
            "-- COMMAND...", "Command to run on the chosen nodes; without one, they are printed."
        ),
    ] = None,
    need: Annotated[int, Panel.TARGET.option("N", "Nodes to choose.", least=1)],
    checks: CheckOptions,
    nodes: NodesOption = None,
    hosts: HostsOption = None,
    suite: SuiteOption = "pick",
    launcher: LauncherOption = None,
    time: Annotated[
        str, Panel.TIMES.option("TIME", "Time limit: what was measured until then decides.")
    ] = "90s",
    hostfile: Annotated[
        Path | None, Panel.OUTPUT.option("FILE", "Write a hostfile for mpirun, too.")
    ] = None,
    dry_run: DryRunOption = False,
    place: ClusterOptions,
    output: OutputOptions,
) -> int:
    """Choose the best nodes for a job: accept pick --need 64 -- srun --nodes 64 train.sh"""
    from accept.app.parse import seconds
    from accept.commands import pick as picks

    if command and "--" not in sys.argv:
        raise BadInput(
            f"-- is missing before the command {plain(command[0], 80)}",
            code=Code.USAGE,
            hint="accept pick --need 64 -- srun --nodes 64 train.sh",
        )
    terminal = output.terminal()
    plan = DrillOptions(**vars(checks), nodes=nodes, hosts=hosts, suite=suite, launcher=launcher)
    return picks.do_pick(
        _options(plan, terminal, cluster=place),
        terminal,
        need=need,
        limit=seconds("time", time) or 0.0,
        hostfile=hostfile,
        command=tuple(command or ()),
        dry_run=dry_run,
    )


@_command
def demo(
    *,
    no_open: Annotated[
        bool, Panel.OTHER.flag("--no-open", "Do not open the report in a browser.")
    ] = False,
    output: OutputOptions,
) -> int:
    """Judge a simulated run with one bad node, and open its report: accept demo"""
    from accept.commands import demo as demos

    return demos.do_demo(output.terminal(), opens=not no_open)


@_command
def cancel(*, run: RunArgument = "last", output: OutputOptions) -> int:
    """End a run, keep its results and remove the rest: accept cancel last"""
    from accept.commands import collect as collecting

    return collecting.do_cancel(run, output.terminal())


@_command
def clean(
    *,
    names: Annotated[
        list[str] | None, argument("RUN...", "Attempts, folders, or `last`.", complete.runs)
    ] = None,
    older_than: Annotated[
        str | None, Panel.OTHER.option("TIME", "All runs that are older: 30d, 24h.")
    ] = None,
    folders: Annotated[
        bool,
        Panel.OTHER.flag(
            "--folders",
            "Remove the folders of old runs on this machine, with their evidence, instead.",
        ),
    ] = False,
    dry_run: RemovalDryRunOption = False,
    no_collect: Annotated[
        bool, Panel.OTHER.flag("--no-collect", "Remove the run without fetching its evidence.")
    ] = False,
    output: OutputOptions,
) -> int:
    """Collect a run, then remove what is left of it on its nodes: accept clean last --dry-run"""
    from accept.app.parse import seconds
    from accept.commands import collect as collecting

    age = seconds("older-than", older_than)
    if not folders:
        return collecting.do_clean(
            tuple(names or ()),
            output.terminal(),
            older_than=age,
            dry_run=dry_run,
            collects=not no_collect,
        )
    if names or age is None or no_collect:
        raise BadInput(
            "--folders takes an age, and neither runs nor --no-collect",
            code=Code.USAGE,
            hint="accept clean --folders --older-than 30d --dry-run",
        )
    return collecting.do_prune(output.terminal(), older_than=age, dry_run=dry_run)


@_command
def init(
    *,
    out: Annotated[Path, argument("FILE", "File to write.")] = Path("site.yaml"),
    hosts: HostsOption = None,
    partition: PartitionOption = None,
    account: AccountOption = None,
    backend: BackendOption = None,
    machine: Annotated[str | None, Panel.OTHER.machine("Machine, if there are several.")] = None,
    queue: Annotated[str | None, Panel.KUBERNETES.option("NAME", "LocalQueue, or none.")] = None,
    topology: Annotated[
        str | None,
        Panel.KUBERNETES.option(
            "LABEL", "With a queue: label whose value all pods must share, or none."
        ),
    ] = None,
    service_account: Annotated[
        str | None, Panel.KUBERNETES.option("NAME", "Service account, or none.")
    ] = None,
    image: Annotated[
        str | None, Panel.OTHER.option("IMAGE", "Image of the run, with a digest.")
    ] = None,
    results: Annotated[
        str | None, Panel.OTHER.option("URL", "Bucket or folder for the evidence, or none.")
    ] = None,
    force: Annotated[bool, Panel.OTHER.flag("--force", "Replace a file that exists.")] = False,
    dry_run: Annotated[bool, Panel.OTHER.flag("--dry-run", "Only print the site file.")] = False,
    place: ClusterOptions,
    output: FormatOptions,
) -> int:
    """Write a site file: accept init --hosts 'node[01-16]'; accept init --partition gpu"""
    from accept.commands import cluster

    terminal = output.terminal()
    plan = DrillOptions(
        machine=machine, hosts=hosts, partition=partition, account=account, backend=backend
    )
    answers = cluster.Answers(
        machine=machine,
        queue=queue,
        topology=topology,
        service_account=service_account,
        image=image,
        results=results,
    )
    return cluster.do_init(
        None if dry_run else out,
        _options(plan, terminal, cluster=place, finds_site=False),
        terminal,
        answers=answers,
        replaces=force,
    )


@_command
def list_(
    *,
    what: Annotated[
        Listing,
        argument(
            "WHAT", f"{', '.join(Listing)}. nodes: those that match and have all their GPUs free."
        ),
    ],
    url: Annotated[str | None, argument("URL", "runs: those in a bucket or folder.")] = None,
    machine: MachineOption = None,
    site: SiteOption = None,
    gpus_per_node: GpusOption = None,
    partition: PartitionOption = None,
    place: ClusterOptions,
    output: OutputOptions,
) -> int:
    """List machines, checks, causes, runs, free nodes and more: accept list machines"""
    terminal = output.terminal()
    if what is not Listing.NODES:
        from accept.commands import catalog

        if any((machine, site, gpus_per_node, partition, place != ClusterOptions())):
            raise BadInput(
                "--machine and the options of a cluster are for its nodes",
                code=Code.USAGE,
                hint="accept list nodes",
            )
        return catalog.do_list(what, terminal, url=url)
    if url is not None:
        raise BadInput(
            f"{plain(url, 80)} is not a cluster, whose free nodes this lists",
            code=Code.USAGE,
            hint=f"the nodes of a run: {command_line('accept', 'show', 'nodes', url)}",
        )
    from accept.commands import cluster

    plan = DrillOptions(
        machine=machine, site=site, gpus_per_node=gpus_per_node, partition=partition
    )
    return cluster.do_nodes(_options(plan, terminal, cluster=place), terminal)


@_command
def show(
    *,
    what: Annotated[Shown, argument("WHAT", f"{', '.join(Shown)}.")],
    name: Annotated[
        str,
        argument(
            "NAME",
            "Its name, its file, the code of an error, or a run; site: a file, or example; "
            "schema: a file, or a result of --json.",
            complete.shown,
        ),
    ],
    good: Annotated[bool, Panel.OTHER.flag("--good", "nodes: those that are good.")] = False,
    bad: Annotated[bool, Panel.OTHER.flag("--bad", "nodes: those that are bad.")] = False,
    untested: Annotated[
        bool, Panel.OTHER.flag("--untested", "nodes: those that are not shown to be good or bad.")
    ] = False,
    folded: Annotated[
        bool, Panel.OTHER.flag("--folded", "nodes: as one host list, such as node[01-16].")
    ] = False,
    commands: Annotated[
        bool,
        Panel.OTHER.flag(
            "--commands", "nodes: commands that label and report bad ones; they are not run."
        ),
    ] = False,
    machine: Annotated[
        str | None,
        Panel.OTHER.machine(
            "suite: machine of its estimated times, default a4-highgpu-8g; nodes: machine to "
            "compare with, as for judge."
        ),
    ] = None,
    expect: Annotated[
        list[str] | None, Panel.OTHER.option("BOUND", "nodes: threshold, as for judge.")
    ] = None,
    nodes: Annotated[
        int, Panel.OTHER.option("N", "suite: nodes of its estimated times.", least=1)
    ] = 64,
    output: OutputOptions,
) -> int:
    """Show a machine, suite, check, cause, error, schema or run: accept show check gemm"""
    from accept.commands import catalog
    from accept.commands import nodes as node_commands

    states = [state for state, chosen in zip(_STATES, (good, bad, untested), strict=True) if chosen]
    by = BoundsOptions(machine=machine, expect=expect).given()
    if what is Shown.NODES and commands:
        return node_commands.do_show_commands(name, output.terminal(), by)
    if what is Shown.NODES:
        return node_commands.do_show_nodes(name, output.terminal(), by, states=states, fold=folded)
    if states or folded or commands or expect:
        raise BadInput(
            "--good, --bad, --untested, --folded, --commands and --expect are for the nodes of a "
            "run",
            code=Code.USAGE,
            hint="accept show nodes last --good",
        )
    usual = machine or "a4-highgpu-8g"
    return catalog.do_show(what, name, output.terminal(), machine=usual, nodes=nodes)


@_command
def explain(
    *,
    run: EvidenceArgument,
    node: Annotated[
        str,
        argument(
            "NODE",
            "Name of a node of the run, or of a part that the verdict blames: "
            "'h1:3', 'h1 - h2', 'rail 2', fabric.",
            complete.run_hosts,
        ),
    ],
    bounds: BoundsOptions,
    output: OutputOptions,
) -> int:
    """Show the evidence for and against a node or a part: accept explain last node17"""
    from accept.commands import explain as explanations

    return explanations.do_explain(run, node, output.terminal(), bounds.given())


@_command
def retest(
    *,
    run: RunArgument = "last",
    nodes: Annotated[
        list[str] | None,
        argument("NODE...", "Suspects to measure; default: all.", complete.run_hosts),
    ] = None,
    pairs: Annotated[
        bool, Panel.OTHER.flag("--pairs", "Measure the bad pairs again, and as many good ones.")
    ] = False,
    rails: Annotated[
        bool, Panel.OTHER.flag("--rails", "Then also each rail of these pairs: which NIC is slow?")
    ] = False,
    dry_run: DryRunOption = False,
    output: OutputOptions,
) -> int:
    """Measure the suspects of a run again, with good nodes: accept retest last"""
    from accept.commands import retest as retests

    part = retests.Part.RAILS if rails else retests.Part.PAIRS if pairs else retests.Part.SUITE
    named = tuple(nodes or ())
    return retests.do_retest(run, named, output.terminal(), part, dry_run=dry_run)


@_command
def ticket(
    *,
    run: EvidenceArgument,
    node: Annotated[
        str | None,
        argument("NODE", "A bad node of the run, or a part as for explain.", complete.run_hosts),
    ] = None,
    fabric: Annotated[
        bool, Panel.OTHER.flag("--fabric", "The network between nodes instead of a node.")
    ] = False,
    redact: Annotated[
        bool,
        Panel.OTHER.flag(
            "--redact", "Replace names and addresses; serials, UUIDs and PCI addresses stay."
        ),
    ] = False,
    collect: Annotated[
        bool,
        Panel.OTHER.flag(
            "--collect", "Run the site's collectors on the node now: bug report, dmesg, SEL."
        ),
    ] = False,
    bounds: BoundsOptions,
    output: OutputOptions,
) -> int:
    """Write text and logs about a bad node for its provider: accept ticket last node17"""
    from accept.commands import ticket as tickets

    return tickets.do_ticket(
        run,
        node,
        output.terminal(),
        fabric=fabric,
        redact=redact,
        collect=collect,
        by=bounds.given(),
    )


@_command
def verify(
    *,
    run: EvidenceArgument = "last",
    public_key: KeysOption = None,
    sign: Annotated[
        Path | None, Panel.OTHER.option("KEY", "Then sign it with your own private key.")
    ] = None,
    output: OutputOptions,
) -> int:
    """Show whether evidence is unmodified, and who signed it: accept verify last"""
    from accept.commands import verify as verifying

    return verifying.do_verify(run, output.terminal(), keys=tuple(public_key or ()), own_key=sign)


@_command
def help_(
    *,
    topic: Annotated[
        str | None, argument("COMMAND", "A command, or `all`.", complete.commands)
    ] = None,
) -> int:
    """Print the help of a command, or of all: accept help all"""
    from accept.app import help as layout
    from accept.core.serde import did_you_mean

    if topic not in (None, "all"):
        raise BadInput(
            f"there is no command {plain(topic, 60)!r}",
            code=Code.USAGE,
            hint=f"{did_you_mean(str(topic), COMMANDS)}all commands: accept help all",
        )
    print_help = layout.full_help if topic else layout.short_help
    typer.echo(print_help({name: summary(name) for name in COMMANDS}))
    return Exit.PASS


@_command
def chart(*, output: OutputOptions) -> int:
    """Print the Helm chart's path: accept chart; helm install NAME "$(accept chart)" -f FILE"""
    from accept.commands import catalog

    return catalog.do_chart(output.terminal())
