"""Declare the commands and their options.

What they do is in `accept.commands`, imported when a command is used, so that help stays fast.
"""

from __future__ import annotations

import functools
from collections.abc import Container
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from accept import __version__
from accept.app.declare import Group, command
from accept.app.options import CLUSTER, DRILL, EVIDENCE, LAUNCH, PLAN, RELEASE, RUN, asked, place
from accept.core.errors import BadInput, Exit

_HELP = """Acceptance of GPU nodes: is the machine good, and if not, which part of it is bad?

\b
The flow, each stage a command (`run` is all of them; `last` names the newest run):
  accept doctor  --hosts node[01-16]     what the hosts have, and which checks will run
  accept render  --machine a4-highgpu-8g --nodes 64 --site site.yaml > values.yaml
  accept chart                           where the Helm chart is that takes these values
  accept submit  --hosts node[01-16]     start, and come back later
  accept watch   last                    follow it; survives a lost connection
  accept collect last                    fetch the evidence
  accept judge   last                    judge it, again and anywhere
  accept report  last                    report.md and junit.xml
  accept judge   my-logs/                logs of nccl-tests that never saw accept
  accept diff    monday last             what got slower
  accept baseline last --out my-a4.yaml  references of your own, for --machine
  accept run                             this machine, now, all of it
  accept run     --hosts node[01-16]     a set of hosts over ssh
  accept drill   --hosts node[01-16]     would it have failed? plant faults, one by one
  accept cancel  last                    end it; what was measured is kept
  accept delete  last                    remove what is left of it on a cluster
  accept init    site.yaml               a site file from what a cluster shows
  accept nodes   --machine a4-highgpu-8g the nodes of a cluster that are free
  accept list    machines                suites, checks, backends, runs
  accept show    machine gpu             what it is held against, with sources
  accept schema  site                    the JSON Schema of a file or result
\b
Exit codes: 0 pass, 2 usage or bad input, 3 fail or degraded, 4 could not start,
5 broke off or timed out, 6 evidence incomplete, 7 inconclusive, 70 internal error,
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
        bool, typer.Option("--rbac", help="Kubernetes: print the Role that a run needs, and stop.")
    ] = False,
    **values: Any,
) -> int:
    """What the hosts have and lack, and which checks will run: accept doctor --hosts a,b"""
    from accept.commands.doctor import do_doctor, do_rbac

    if rbac:
        return do_rbac(place(values), _terminal(values), site=values["site"])
    return do_doctor(asked(values), _terminal(values))


@_command(**PLAN)
def render(
    *,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="Write everything that would run there.")
    ] = None,
    **values: Any,
) -> int:
    """Print the run as Helm values, or write all of it: accept render -m cpu --out run1"""
    from accept.commands.plan import do_render

    return do_render(asked(values), _terminal(values), out=out)


def _given(parsed: typer.Context, names: Container[str]) -> list[str]:
    """Return those of the options `names` that the user gave, even with their defaults."""
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
        str | None, typer.Argument(metavar="[RUN]", help="A run that was rendered before.")
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
        asked(values),
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
            help="Run, evidence folder, archive, saved log, URL; or logs of nccl-tests.",
        ),
    ] = None,
    machine: Annotated[
        str | None,
        typer.Option("--machine", "-m", help="Machine to hold it against: a name, or a file."),
    ] = None,
    expect: Annotated[
        list[str] | None, typer.Option(help="Threshold: 'all-reduce@8G>=380'.")
    ] = None,
    **values: Any,
) -> int:
    """Judge evidence, or logs of nccl-tests: accept judge last, accept judge my-logs/"""
    from accept.commands.judge import do_judge

    return do_judge(
        tuple(paths or ()), _terminal(values), expect=tuple(expect or ()), machine=machine
    )


@_command()
def report(
    run_: EVIDENCE = "last",
    format_: Annotated[
        Literal["files", "md", "junit"],
        typer.Option("--format", help="Write files, or print one form."),
    ] = "files",
    **values: Any,
) -> int:
    """Write report.md and junit.xml, or print one: accept report last --format md"""
    from accept.commands.judge import do_report

    return do_report(run_, _terminal(values), form=format_)


@_command()
def diff(
    before: Annotated[str, typer.Argument(metavar="A", help="Run, evidence, or logs: before.")],
    after: Annotated[str, typer.Argument(metavar="B", help="The same, after.")],
    **values: Any,
) -> int:
    """What got slower from A to B, and whether it means anything: accept diff monday/ last"""
    from accept.commands.diff import do_diff

    return do_diff(before, after, _terminal(values))


@_command()
def baseline(
    run_: EVIDENCE = "last",
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="The file to write; left out: stdout.")
    ] = None,
    machine: Annotated[
        str | None,
        typer.Option("--machine", "-m", help="Machine to add to; left out: the run's own."),
    ] = None,
    share: Annotated[
        float, typer.Option(help="Share of what was measured that must be reached from now on.")
    ] = 0.95,
    *,
    force: Annotated[
        bool, typer.Option("--force", help="Take a run that was not accepted; replace the file.")
    ] = False,
    **values: Any,
) -> int:
    """A machine file with references of your own: accept baseline last --out my-a4.yaml"""
    from accept.commands.baseline import do_baseline

    return do_baseline(run_, _terminal(values), out=out, machine=machine, share=share, force=force)


@_command(**PLAN, **LAUNCH, **CLUSTER, **RELEASE)
def run(**values: Any) -> int:
    """All of it, to a verdict: accept run; accept run --hosts a,b,c"""
    from accept.commands.run import do_run

    return do_run(
        asked(values), _terminal(values), attempt=values["attempt"], dry_run=values["dry_run"]
    )


@_command(**DRILL, **LAUNCH, **CLUSTER, **RELEASE)
def drill(
    *,
    faults: Annotated[
        list[str] | None, typer.Option(help="Plant these alone: wrong,hang; left out: all.")
    ] = None,
    only_needed: Annotated[
        bool,
        typer.Option("--only-needed", help="Of the suite, run only what is to see the fault."),
    ] = False,
    **values: Any,
) -> int:
    """Whether the suite would have failed: plant faults one by one: accept drill --dry-run"""
    from accept.commands.drill import do_drill

    return do_drill(
        asked({**values, "plant": None, "hold": None}),
        _terminal(values),
        name=values["attempt"],
        faults=tuple(faults or ()),
        only_needed=only_needed,
        dry_run=values["dry_run"],
    )


@_command()
def cancel(run_: RUN = "last", **values: Any) -> int:
    """End a run, keep what it measured, remove the rest: accept cancel last"""
    from accept.commands.run import do_cancel

    return do_cancel(run_, _terminal(values))


@_command()
def delete(
    runs: Annotated[
        list[str] | None, typer.Argument(metavar="[RUN]...", help="Attempts, folders, or `last`.")
    ] = None,
    older_than: Annotated[
        str | None, typer.Option("--older-than", help="All runs started that long ago: 24h, 90m.")
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Say what would be removed, and stop.")
    ] = False,
    no_collect: Annotated[
        bool, typer.Option("--no-collect", help="Remove it without fetching its evidence.")
    ] = False,
    **values: Any,
) -> int:
    """Collect a run, then remove what it made on a cluster: accept delete last --dry-run"""
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
    out: Annotated[Path, typer.Argument(metavar="[FILE]", help="The file to write.")] = Path(
        "site.yaml"
    ),
    machine: Annotated[str | None, typer.Option(help="Machine, where there are several.")] = None,
    queue: Annotated[str | None, typer.Option(help="LocalQueue, or none.")] = None,
    service_account: Annotated[str | None, typer.Option(help="Service account, or none.")] = None,
    image: Annotated[str | None, typer.Option(help="Image of the run, with a digest.")] = None,
    results: Annotated[str | None, typer.Option(help="Bucket for the evidence, or none.")] = None,
    **values: Any,
) -> int:
    """Write a site file from what the cluster shows: accept init site.yaml"""
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
        str | None, typer.Option("--machine", "-m", help="Machine. Left out: the cluster's one.")
    ] = None,
    site: Annotated[str | None, typer.Option(help="Site file: your cluster.")] = None,
    **values: Any,
) -> int:
    """The nodes that match and have all GPUs free: accept nodes -m a4-highgpu-8g > nodes.txt"""
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
    """What there is: accept list machines"""
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
    """A machine, suite or site as it is read, or a cause: accept show cause rank-hung"""
    from accept.commands.catalog import do_show

    return do_show(what, name, _terminal(values))


@_command()
def schema(
    what: Annotated[
        Literal["machine", "site", "suite", "plan", "record", "verdict", "drill", "values"],
        typer.Argument(help="Of what."),
    ],
    **_: Any,
) -> int:
    """The JSON Schema of a file or of a result: accept schema site"""
    from accept.commands.catalog import do_schema

    return do_schema(what)


@_command()
def chart(**values: Any) -> int:
    """Where the Helm chart is: accept chart; helm install NAME "$(accept chart)" -f FILE"""
    from accept.config import resources

    terminal, path = _terminal(values), str(resources.chart())
    terminal.result({"chart": path}, path)
    return Exit.PASS


def _version(value: bool) -> None:  # noqa: FBT001 - as typer calls it
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
