"""The command line: what commands and options there are, and the one place where errors end.

What the commands do is in `accept.commands`, imported when one is used, so that help stays fast.
"""

from __future__ import annotations

import functools
import gc
import inspect
import os
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

import typer
from typer.core import TyperCommand, TyperGroup

from accept import __version__
from accept.core.errors import AcceptError, Exit

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
  accept cancel  last                    end it; what was measured is kept
  accept delete  last                    remove what is left of it on a cluster
  accept init    site.yaml               a site file from what a cluster shows
  accept nodes   --machine a4-highgpu-8g the nodes of a cluster that are free
  accept list    machines                suites, checks, backends, runs
  accept show    machine gpu             what it is held against, with sources
  accept schema  site                    the JSON Schema of a file or result
\b
Exit codes: 0 pass, 2 usage or bad input, 3 fail or degraded, 4 could not start,
5 broke off or timed out, 6 evidence incomplete, 7 inconclusive, 130 Ctrl-C.
"""

#: Nodes by name: a file, or names with a digit, a dot, a dash, a comma or a range in them.
_NODE_LIST = r"@.+|[A-Za-z][A-Za-z]*[0-9.,\[-].*"

#: What takes text as it was typed.
_TEXT = (str, str | None, list[str] | None)


class _Command(TyperCommand):
    """A command that asks pydantic about nothing but numbers, paths and choices that were given.

    Typer has it check every value, and importing it takes as long as all of `accept render`.
    """

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the command line."""
        declared = inspect.signature(self.callback or main).parameters
        kinds = {name: get_args(one.annotation)[:1] for name, one in declared.items()}
        _shorten(
            self, ctx, texts={name for name, kind in kinds.items() if kind and kind[0] in _TEXT}
        )
        return super().parse_args(ctx, args)


class _Group(TyperGroup):
    """The same for what stands before the command."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the command line up to the command."""
        _shorten(self, ctx, texts=set())
        return super().parse_args(ctx, args)


def _shorten(command: Any, ctx: Any, *, texts: set[str]) -> None:
    """Let options return at once what needs no conversion: nothing, and text that stays text."""
    for param in command.get_params(ctx):
        param.process_value = functools.partial(
            _process_value, param, param.process_value, param.name in texts
        )


def _process_value(param: Any, convert: Any, is_text: bool, ctx: Any, value: Any) -> Any:  # noqa: FBT001 - click's order
    if value is None and not param.required:
        return param.callback(ctx, param, None) if param.callback else None
    stays = is_text or not isinstance(value, (str, list, tuple))
    if param.callback or value in (None, ()) or not stays:
        return convert(ctx, value)
    return value


#: Both script names; completion is for the one that is asked.
_NAMES = ("accept", "gpu-accept")

app = typer.Typer(
    cls=_Group,
    help=_HELP,
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)

_OUTPUT: dict[str, tuple[Any, Any]] = {
    "json_": (
        Annotated[
            bool, typer.Option("--json", help="The result as JSON on stdout, and nothing else.")
        ],
        False,
    ),
    "quiet": (Annotated[bool, typer.Option("--quiet", "-q", help="No progress.")], False),
    "verbose": (Annotated[bool, typer.Option("--verbose", "-v", help="More progress.")], False),
}


def _many(text: str, *names: str) -> tuple[Any, Any]:
    return Annotated[list[str] | None, typer.Option(*names, help=text)], None


def _one(kind: Any, text: str, *names: str) -> tuple[Any, Any]:
    return Annotated[kind | None, typer.Option(*names, help=text)], None


_PLAN: dict[str, tuple[Any, Any]] = {
    "machine": _one(
        str,
        "Machine: a name, or a file of your own. Left out: found on the hosts.",
        "--machine",
        "-m",
    ),
    "suite": (
        Annotated[str, typer.Option("--suite", "-s", help="Suite: a name, or a file of your own.")],
        "quick",
    ),
    "site": _one(str, "Site file: your cluster.", "--site"),
    "nodes": _one(
        str,
        "Number of nodes, a list a,b,c, @FILE of names, or all: every free one of a cluster.",
        "--nodes",
        "-n",
    ),
    "hosts": _many("Hosts over ssh: a,b,c, node[01-16], @FILE.", "--hosts"),
    "backend": _one(
        str,
        "Back end: local, ssh, kubernetes; left out: taken from the hosts and the site.",
        "--backend",
    ),
    "set_": _many("Parameter of a check: CHECK.PARAM=VALUE.", "--set"),
    "nccl": _many("NCCL setting: KEY=VALUE.", "--nccl"),
    "expect": _many("Threshold of your own: 'all-reduce@8G>=380'.", "--expect"),
    "gpus_per_node": _one(int, "GPUs of each node to use; left out: all.", "--gpus-per-node"),
    "rounds": (
        Annotated[str, typer.Option(help="Rounds of pairs: a number, or auto; none: the suite's.")],
        "",
    ),
    "seed": (Annotated[int, typer.Option(help="Seed of the pairing of hosts.")], 1),
    "require_all_nodes": (
        Annotated[
            bool, typer.Option("--require-all-nodes", help="Stop where a host never answers.")
        ],
        False,
    ),
    "busy_ok": (
        Annotated[bool, typer.Option("--busy-ok", help="Measure GPUs that somebody uses.")],
        False,
    ),
    "start_timeout": _one(str, "Longest wait for hosts: 90s, 5m.", "--start-timeout"),
    "deadline": _one(str, "Longest run once the hosts are found.", "--deadline"),
    "budget": _one(str, "Hard limit: keep the checks that add most within it.", "--budget"),
    "hold": _one(str, "Keep the hosts this long after a failed run, to look at.", "--hold"),
    "keep": _one(str, "How long the first host keeps evidence nobody fetched.", "--keep"),
    "plant": _many(
        "Drill: plant a fault, FAULT@HOST[:LOCALRANK] (wrong, nan, hang, die, slow).", "--plant"
    ),
}
_LAUNCH: dict[str, tuple[Any, Any]] = {
    "attempt": (
        Annotated[str, typer.Option(help="Name of this launch; left out: time and chance.")],
        "",
    ),
    "dry_run": (Annotated[bool, typer.Option("--dry-run", help="Show the plan and stop.")], False),
}
_CLUSTER: dict[str, tuple[Any, Any]] = {
    "kubeconfig": _one(str, "Kubeconfig; left out: as kubectl finds it.", "--kubeconfig"),
    "context": _one(str, "Context of the kubeconfig; left out: its current one.", "--context"),
    "namespace": _one(str, "Namespace; left out: the site's, else the context's.", "--namespace"),
}
_RELEASE = {
    "release": _one(str, "Name of the helm release; left out: from the attempt.", "--release")
}
_RUN = Annotated[str, typer.Argument(metavar="RUN", help="Attempt, folder, or `last`.")]
_EVIDENCE = Annotated[
    str, typer.Argument(metavar="RUN", help="Attempt, folder, `last`, or URL in a bucket.")
]


def _command(**options: tuple[Any, Any]) -> Callable[[Callable[..., int]], Callable[..., None]]:
    """Declare a command whose function also takes `options`: annotation and default by name."""

    def declare(function: Callable[..., int]) -> Callable[..., None]:
        @functools.wraps(function)
        def command(**values: Any) -> None:
            raise typer.Exit(function(**values))

        own = [
            p
            for p in inspect.signature(function, eval_str=True).parameters.values()
            if p.kind != p.VAR_KEYWORD
        ]
        shared = [
            inspect.Parameter(
                name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=kind
            )
            for name, (kind, default) in {**options, **_OUTPUT}.items()
        ]
        command.__signature__ = inspect.Signature([*own, *shared])  # type: ignore[attr-defined]
        # The list of commands is no place for the example, which would be cut off there.
        short = (function.__doc__ or "").partition(": accept")[0] + "."
        name = function.__name__.rstrip("_")
        app.command(name=name, cls=_Command, short_help=short)(command)
        return command

    return declare


def _terminal(values: dict[str, Any]) -> Any:
    from accept.commands.terminal import Terminal

    return Terminal(json=values["json_"], quiet=values["quiet"], verbose=values["verbose"])


def _options(values: dict[str, Any]) -> Any:
    """The plan's options as `resolve` takes them."""
    from accept.core.errors import BadInput
    from accept.resolve import Options
    from accept.spec.units import parse_duration

    def seconds(name: str) -> float | None:
        text = values[name]
        try:
            return None if text is None else parse_duration(text)
        except ValueError as error:
            option = name.replace("_", "-")
            raise BadInput(f"--{option}: {error}", hint="such as 90s, 15m, 2h") from None

    nodes, hosts = values["nodes"], tuple(values["hosts"] or ())
    all_nodes = nodes == "all"
    if all_nodes:
        nodes = None
    named = nodes is not None and re.fullmatch(_NODE_LIST, nodes, re.DOTALL) is not None
    if nodes is not None and not named and not re.fullmatch(r"[0-9]{1,9}", nodes):
        raise BadInput(
            f"--nodes {nodes[:40]!r} is no number", hint="give a number, a list a,b,c, or @FILE"
        )
    if named:
        hosts, nodes = (*hosts, nodes), None
    return Options(
        machine=values["machine"] or "",
        suite=values["suite"],
        site=values["site"],
        nodes=None if nodes is None else int(nodes),
        hosts=hosts,
        named=named and not values["hosts"],
        backend=values["backend"],
        settings=tuple(values["set_"] or ()),
        nccl=tuple(values["nccl"] or ()),
        expect=tuple(values["expect"] or ()),
        gpus_per_node=values["gpus_per_node"],
        rounds=values["rounds"],
        seed=values["seed"],
        require_all_nodes=values["require_all_nodes"],
        busy_ok=values["busy_ok"],
        start_timeout=seconds("start_timeout"),
        deadline=seconds("deadline"),
        budget=seconds("budget"),
        hold=seconds("hold") or 0.0,
        keep=seconds("keep"),
        plant=tuple(values["plant"] or ()),
        place=_place(values),
        all_nodes=all_nodes,
    )


def _place(values: dict[str, Any]) -> dict[str, str]:
    """Where a cluster is to run it, as far as the options say."""
    keys = (*_CLUSTER, *_RELEASE)
    return {key: values[key] for key in keys if values.get(key)}


@_command(**_PLAN, **_CLUSTER)
def doctor(
    *,
    rbac: Annotated[
        bool, typer.Option("--rbac", help="Kubernetes: print the Role that a run needs, and stop.")
    ] = False,
    **values: Any,
) -> int:
    """What the hosts have and lack, and which checks will run: accept doctor --hosts a,b"""
    from accept.commands import flow

    if rbac:
        from accept.commands import cluster

        return cluster.do_rbac(_place(values), _terminal(values), site=values["site"])
    return flow.do_doctor(_options(values), _terminal(values))


@_command(**_PLAN)
def render(
    *,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="Write everything that would run there.")
    ] = None,
    **values: Any,
) -> int:
    """Print the run as Helm values, or write all of it: accept render -m cpu -n 2 --out run1"""
    from accept.commands import planning

    return planning.do_render(_options(values), _terminal(values), out=out)


@_command(**_PLAN, **_LAUNCH, **_CLUSTER, **_RELEASE)
def submit(
    run_: Annotated[
        str | None, typer.Argument(metavar="[RUN]", help="A run that was rendered before.")
    ] = None,
    **values: Any,
) -> int:
    """Start a run and return: accept submit --hosts a,b"""
    from accept.commands import flow

    return flow.do_submit(
        _options(values),
        _terminal(values),
        folder=run_,
        attempt=values["attempt"],
        dry_run=values["dry_run"],
    )


@_command()
def watch(run_: _RUN = "last", **values: Any) -> int:
    """Follow a run to its end: accept watch last"""
    from accept.commands import flow

    return flow.do_watch(run_, _terminal(values))


@_command()
def collect(run_: _EVIDENCE = "last", **values: Any) -> int:
    """Fetch the evidence and release the hosts: accept collect last"""
    from accept.commands import flow

    return flow.do_collect(run_, _terminal(values))


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
    from accept.commands import flow

    return flow.do_judge(
        tuple(paths or ()), _terminal(values), expect=tuple(expect or ()), machine=machine
    )


@_command()
def report(
    run_: _EVIDENCE = "last",
    format_: Annotated[
        Literal["files", "md", "junit"],
        typer.Option("--format", help="Write files, or print one form."),
    ] = "files",
    **values: Any,
) -> int:
    """Write report.md and junit.xml, or print one: accept report last --format md"""
    from accept.commands import flow

    return flow.do_report(run_, _terminal(values), form=format_)


@_command()
def diff(
    before: Annotated[str, typer.Argument(metavar="A", help="Run, evidence, or logs: before.")],
    after: Annotated[str, typer.Argument(metavar="B", help="The same, after.")],
    **values: Any,
) -> int:
    """What got slower from A to B, and whether it means anything: accept diff monday/ last"""
    from accept.commands import comparing

    return comparing.do_diff(before, after, _terminal(values))


@_command()
def baseline(
    run_: _EVIDENCE = "last",
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
    from accept.commands import references

    return references.do_baseline(
        run_, _terminal(values), out=out, machine=machine, share=share, force=force
    )


@_command(**_PLAN, **_LAUNCH, **_CLUSTER, **_RELEASE)
def run(**values: Any) -> int:
    """All of it, to a verdict: accept run; accept run --hosts a,b,c"""
    from accept.commands import flow

    return flow.do_run(
        _options(values), _terminal(values), attempt=values["attempt"], dry_run=values["dry_run"]
    )


@_command()
def cancel(run_: _RUN = "last", **values: Any) -> int:
    """End a run, keep what it measured, remove the rest: accept cancel last"""
    from accept.commands import flow

    return flow.do_cancel(run_, _terminal(values))


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
    **values: Any,
) -> int:
    """Collect a run, then remove what it made on a cluster: accept delete last --dry-run"""
    from accept.commands import cluster

    return cluster.do_delete(
        tuple(runs or ()), _terminal(values), older_than=older_than, dry_run=dry_run
    )


@_command(**_CLUSTER)
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
    return cluster.do_init(out, _place(values), _terminal(values), given=given)


@_command(**_CLUSTER)
def nodes(
    *,
    machine: Annotated[
        str | None, typer.Option("--machine", "-m", help="Machine. Left out: the cluster's one.")
    ] = None,
    site: Annotated[str | None, typer.Option(help="Site file: your cluster.")] = None,
    **values: Any,
) -> int:
    """The nodes that match and have all GPUs free: accept nodes -m a4-highgpu-8g > nodes.txt"""
    from accept.commands import cluster

    return cluster.do_nodes(_place(values), _terminal(values), machine=machine, site=site)


@_command()
def list_(
    what: Annotated[
        Literal["machines", "suites", "checks", "backends", "runs"],
        typer.Argument(help="What to list."),
    ],
    **values: Any,
) -> int:
    """What there is: accept list machines"""
    from accept.commands import about

    return about.do_list(what, _terminal(values))


@_command()
def show(
    what: Annotated[Literal["machine", "suite", "site"], typer.Argument(help="What to show.")],
    name: Annotated[str, typer.Argument(help="Its name, or its file.")],
    **values: Any,
) -> int:
    """A machine, suite or site as it is read, with its sources: accept show machine gpu"""
    from accept.commands import about

    return about.do_show(what, name, _terminal(values))


@_command()
def schema(
    what: Annotated[
        Literal["machine", "site", "suite", "plan", "record", "verdict", "values"],
        typer.Argument(help="Of what."),
    ],
    **_: Any,
) -> int:
    """The JSON Schema of a file or of a result: accept schema site"""
    from accept.commands import about

    return about.do_schema(what)


@_command()
def chart(**values: Any) -> int:
    """Where the Helm chart is: accept chart; helm install NAME "$(accept chart)" -f FILE"""
    from accept import assets

    terminal, path = _terminal(values), str(assets.chart())
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


def main() -> None:
    """Run a command; every failure a user can cause ends here, in one message and its exit code."""
    # What starting allocates stays; looking through it for garbage costs a tenth of the start.
    gc.set_threshold(50_000)
    try:
        called = Path(sys.argv[0]).name
        app(prog_name=called if called in _NAMES else _NAMES[0])
    except AcceptError as error:
        sys.stderr.write(f"accept: {error}\n")
        sys.exit(int(error.code))
    except KeyboardInterrupt:
        sys.exit(int(Exit.INTERRUPTED))
    except BrokenPipeError:
        # Whoever read our output is gone; nothing more can be said to them.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(int(Exit.USAGE))


if __name__ == "__main__":
    main()
