"""Declare the commands and their options.

The commands are implemented in `accept.commands`. Each module there is imported when its command
runs, so that help stays fast.
"""

from __future__ import annotations

import functools
from collections.abc import Container
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from accept import __version__
from accept.app.declare import Group, command
from accept.app.options import (
    CLUSTER,
    DRILL,
    EVIDENCE,
    LAUNCH,
    PLAN,
    RELEASE,
    RUN,
    place,
    plan_options,
)
from accept.core.errors import BadInput, Exit

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
  accept report  last                    write report.md and junit.xml
  accept judge   my-logs/                judge nccl-tests logs from runs without accept
  accept diff    monday last             what got slower
  accept baseline last --out my-a4.yaml  your own references, for --machine
  accept run                             a full run on this machine
  accept run     --hosts node[01-16]     a full run on hosts over ssh
  accept drill   --hosts node[01-16]     does the suite catch faults? inject them one by one
  accept cancel  last                    end the run; keep what it measured
  accept delete  last                    remove the rest of the run from a cluster
  accept init    site.yaml               write a site file for a cluster
  accept nodes   --machine a4-highgpu-8g list the free nodes of a cluster
  accept list    machines                list machines, suites, checks, backends or runs
  accept show    machine gpu             what results are compared with, and the sources
  accept schema  site                    the JSON Schema of a file or result
\b
Exit codes: 0 pass, 2 usage or bad input, 3 fail or degraded, 4 could not start,
5 failed during the run or timed out, 6 evidence incomplete, 7 inconclusive, 70 internal error,
130 Ctrl-C.
"""

app = typer.Typer(
    cls=Group,
    help=_HELP,
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)

_command = functools.partial(command, app)


def _terminal(values: dict[str, Any]) -> Any:
    from accept.report.console import Terminal

    return Terminal(json=values["json_"], quiet=values["quiet"], verbose=values["verbose"])


@_command(**PLAN, **CLUSTER)
def doctor(
    *,
    rbac: Annotated[
        bool, typer.Option("--rbac", help="Kubernetes: only print the Role that a run needs.")
    ] = False,
    **values: Any,
) -> int:
    """Show what the hosts have and lack, and which checks will run: accept doctor --hosts a,b"""
    from accept.commands.doctor import do_doctor, do_rbac

    if rbac:
        return do_rbac(place(values), _terminal(values), site=values["site"])
    return do_doctor(plan_options(values), _terminal(values))


@_command(**PLAN)
def render(
    *,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="Folder to write the rendered run to.")
    ] = None,
    **values: Any,
) -> int:
    """Print a run as Helm values, or write it to a folder: accept render -m cpu --out run1"""
    from accept.commands.plan import do_render

    return do_render(plan_options(values), _terminal(values), out=out)


def _given(parsed: typer.Context, names: Container[str]) -> list[str]:
    """Return those of the options `names` that are on the command line."""
    given = []
    for param in parsed.command.params:
        source = parsed.get_parameter_source(param.name or "")
        if param.name in names and source is not None and source.name == "COMMANDLINE":
            given.append(param.opts[0])
    return given


@_command(**PLAN, **LAUNCH, **CLUSTER, **RELEASE)
def submit(
    parsed: typer.Context,
    run_: Annotated[
        str | None, typer.Argument(metavar="[RUN]", help="Folder that accept render wrote.")
    ] = None,
    **values: Any,
) -> int:
    """Start a run and return: accept submit --hosts a,b"""
    from accept.commands import run as commands_run

    if run_ is not None and (given := _given(parsed, PLAN)):
        raise BadInput(
            f"a rendered run takes no {', '.join(given)}: its plan was fixed by accept render",
            hint="leave them out, or render the run again with them and submit that one",
        )
    return commands_run.do_submit(
        plan_options(values),
        _terminal(values),
        folder=run_,
        attempt=values["attempt"],
        dry_run=values["dry_run"],
    )


@_command()
def watch(run_: RUN = "last", **values: Any) -> int:
    """Follow a run to its end: accept watch last"""
    from accept.commands.run import do_watch

    return do_watch(run_, _terminal(values))


@_command()
def collect(run_: EVIDENCE = "last", **values: Any) -> int:
    """Fetch the evidence and release the hosts: accept collect last"""
    from accept.commands.run import do_collect

    return do_collect(run_, _terminal(values))


@_command()
def judge(
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
    **values: Any,
) -> int:
    """Judge evidence or nccl-tests logs: accept judge last, accept judge my-logs/"""
    from accept.commands.judge import do_judge

    return do_judge(
        tuple(paths or ()), _terminal(values), expect=tuple(expect or ()), machine=machine
    )


@_command()
def report(
    run_: EVIDENCE = "last",
    format_: Annotated[
        Literal["files", "md", "junit"],
        typer.Option("--format", help="Write both files, or print one report."),
    ] = "files",
    **values: Any,
) -> int:
    """Write report.md and junit.xml, or print one: accept report last --format md"""
    from accept.commands.judge import do_report

    return do_report(run_, _terminal(values), form=format_)


@_command()
def diff(
    before: Annotated[str, typer.Argument(metavar="A", help="Run, evidence or logs: before.")],
    after: Annotated[str, typer.Argument(metavar="B", help="Run, evidence or logs: after.")],
    **values: Any,
) -> int:
    """Show what got slower from A to B by more than noise: accept diff monday/ last"""
    from accept.commands.diff import do_diff

    return do_diff(before, after, _terminal(values))


@_command()
def baseline(
    run_: EVIDENCE = "last",
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
    *,
    force: Annotated[
        bool, typer.Option("--force", help="Allow a run that was not accepted; replace the file.")
    ] = False,
    **values: Any,
) -> int:
    """Write a machine file with your own references: accept baseline last --out my-a4.yaml"""
    from accept.commands.baseline import do_baseline

    return do_baseline(run_, _terminal(values), out=out, machine=machine, share=share, force=force)


@_command(**PLAN, **LAUNCH, **CLUSTER, **RELEASE)
def run(**values: Any) -> int:
    """Run a suite and judge it: accept run; accept run --hosts a,b,c"""
    from accept.commands.run import do_run

    return do_run(
        plan_options(values),
        _terminal(values),
        attempt=values["attempt"],
        dry_run=values["dry_run"],
    )


@_command(**DRILL, **LAUNCH, **CLUSTER, **RELEASE)
def drill(
    *,
    faults: Annotated[
        list[str] | None, typer.Option(help="Inject only these faults: wrong,hang; default: all.")
    ] = None,
    only_needed: Annotated[
        bool,
        typer.Option("--only-needed", help="Run only the steps that should detect the fault."),
    ] = False,
    **values: Any,
) -> int:
    """Prove that the suite catches faults, injected one at a time: accept drill --dry-run"""
    from accept.commands.drill import do_drill

    return do_drill(
        plan_options({**values, "plant": None, "hold": None}),
        _terminal(values),
        name=values["attempt"],
        faults=tuple(faults or ()),
        only_needed=only_needed,
        dry_run=values["dry_run"],
    )


@_command()
def cancel(run_: RUN = "last", **values: Any) -> int:
    """End a run, keep its results and remove the rest: accept cancel last"""
    from accept.commands.run import do_cancel

    return do_cancel(run_, _terminal(values))


@_command()
def delete(
    runs: Annotated[
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
    **values: Any,
) -> int:
    """Collect a run, then remove it from the cluster: accept delete last --dry-run"""
    from accept.commands.run import do_delete

    return do_delete(
        tuple(runs or ()),
        _terminal(values),
        older_than=older_than,
        dry_run=dry_run,
        collects=not no_collect,
    )


@_command(**CLUSTER)
def init(
    out: Annotated[Path, typer.Argument(metavar="[FILE]", help="File to write.")] = Path(
        "site.yaml"
    ),
    machine: Annotated[str | None, typer.Option(help="Machine, if there are several.")] = None,
    queue: Annotated[str | None, typer.Option(help="LocalQueue, or none.")] = None,
    service_account: Annotated[str | None, typer.Option(help="Service account, or none.")] = None,
    image: Annotated[str | None, typer.Option(help="Image of the run, with a digest.")] = None,
    results: Annotated[str | None, typer.Option(help="Bucket for the evidence, or none.")] = None,
    **values: Any,
) -> int:
    """Write a site file for a cluster: accept init site.yaml"""
    from accept.commands import cluster

    given = {
        "machine": machine,
        "queue": queue,
        "serviceAccount": service_account,
        "image": image,
        "results": results,
    }
    return cluster.do_init(out, place(values), _terminal(values), given=given)


@_command(gpus_per_node=PLAN["gpus_per_node"], **CLUSTER)
def nodes(
    *,
    machine: Annotated[
        str | None,
        typer.Option("--machine", "-m", help="Machine; default: the cluster's only one."),
    ] = None,
    site: Annotated[str | None, typer.Option(help="Site file: describes your cluster.")] = None,
    **values: Any,
) -> int:
    """List matching nodes with all GPUs free: accept nodes -m a4-highgpu-8g > nodes.txt"""
    from accept.commands.cluster import do_nodes

    return do_nodes(
        place(values),
        _terminal(values),
        machine=machine,
        site=site,
        gpus_per_node=values["gpus_per_node"],
    )


@_command()
def list_(
    what: Annotated[
        Literal["machines", "suites", "checks", "backends", "runs"],
        typer.Argument(help="What to list."),
    ],
    **values: Any,
) -> int:
    """List machines, suites, checks, backends or runs: accept list machines"""
    from accept.commands.catalog import do_list

    return do_list(what, _terminal(values))


@_command()
def show(
    what: Annotated[
        Literal["machine", "suite", "site", "cause"], typer.Argument(help="What to show.")
    ],
    name: Annotated[str, typer.Argument(help="Its name, or its file.")],
    **values: Any,
) -> int:
    """Show a machine, suite or site with all defaults, or a cause: accept show cause rank-hung"""
    from accept.commands.catalog import do_show

    return do_show(what, name, _terminal(values))


@_command()
def schema(
    what: Annotated[
        Literal[
            "machine",
            "site",
            "suite",
            "plan",
            "record",
            "verdict",
            "drill",
            "values",
            "judge",
            "report",
            "diff",
        ],
        typer.Argument(help="File or result that the schema describes."),
    ],
    **_: Any,
) -> int:
    """Print the JSON Schema of a file or result: accept schema site"""
    from accept.commands.catalog import do_schema

    return do_schema(what)


@_command()
def chart(**values: Any) -> int:
    """Print the Helm chart's path: accept chart; helm install NAME "$(accept chart)" -f FILE"""
    from accept.config import resources

    terminal, path = _terminal(values), str(resources.chart())
    terminal.result({"chart": path}, path)
    return Exit.PASS


def _version(value: bool) -> None:  # noqa: FBT001 - typer's signature
    if value:
        typer.echo(f"accept {__version__}")
        raise typer.Exit


@app.callback()
def _accept(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    pass
