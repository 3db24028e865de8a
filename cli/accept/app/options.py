"""Declare the options that commands share, and convert their values."""

from __future__ import annotations

import re
from typing import Annotated, Any

import typer

from accept.core.errors import BadInput
from accept.plan.resolve import ClusterPlace, Options

#: A --nodes value with names: @FILE, or a text with a digit, dot, dash, comma or range in it.
_NODE_LIST = r"@.+|[A-Za-z][A-Za-z]*[0-9.,\[-].*"

OUTPUT: dict[str, tuple[Any, Any]] = {
    "json_": (
        Annotated[bool, typer.Option("--json", help="Print only the result, as JSON, on stdout.")],
        False,
    ),
    "quiet": (Annotated[bool, typer.Option("--quiet", "-q", help="No progress.")], False),
    "verbose": (Annotated[bool, typer.Option("--verbose", "-v", help="More progress.")], False),
}


def _many(text: str, *names: str) -> tuple[Any, Any]:
    return Annotated[list[str] | None, typer.Option(*names, help=text)], None


def _single(kind: Any, text: str, *names: str) -> tuple[Any, Any]:
    return Annotated[kind | None, typer.Option(*names, help=text)], None


PLAN: dict[str, tuple[Any, Any]] = {
    "machine": _single(
        str,
        "Machine: a name or your own file; default: detected on the hosts.",
        "--machine",
        "-m",
    ),
    "suite": (
        Annotated[str, typer.Option("--suite", "-s", help="Suite: a name or your own file.")],
        "quick",
    ),
    "site": _single(str, "Site file: describes your cluster.", "--site"),
    "nodes": _single(
        str,
        "Number of nodes, a list a,b,c, @FILE with names, or all: every free node of a cluster.",
        "--nodes",
        "-n",
    ),
    "hosts": _many("Hosts over ssh: a,b,c, node[01-16], @FILE.", "--hosts"),
    "backend": _single(
        str,
        "Back end: local, ssh or kubernetes; default: chosen by --hosts and --site.",
        "--backend",
    ),
    "set_": _many("Parameter of a check: CHECK.PARAM=VALUE.", "--set"),
    "nccl": _many("NCCL setting: KEY=VALUE.", "--nccl"),
    "expect": _many("Your own threshold: 'all-reduce@8G>=380'.", "--expect"),
    "gpus_per_node": _single(int, "GPUs to use on each node; default: all.", "--gpus-per-node"),
    "rounds": (
        Annotated[str, typer.Option(help="Rounds of pairs: a number or auto; default: suite's.")],
        "",
    ),
    "seed": (Annotated[int, typer.Option(help="Random seed for pairs and drills.")], 1),
    "require_all_nodes": (
        Annotated[
            bool, typer.Option("--require-all-nodes", help="Stop if any host does not respond.")
        ],
        False,
    ),
    "busy_ok": (
        Annotated[bool, typer.Option("--busy-ok", help="Measure GPUs that are in use, too.")],
        False,
    ),
    "start_timeout": _single(str, "Longest wait for hosts: 90s, 5m.", "--start-timeout"),
    "deadline": _single(str, "Longest run time after the hosts were found.", "--deadline"),
    "budget": _single(str, "Time limit: keep the checks that add most within it.", "--budget"),
    "hold": _single(str, "Keep the hosts this long after a failed run, for debugging.", "--hold"),
    "keep": _single(str, "How long the first host keeps evidence that was not fetched.", "--keep"),
    "inject": _many(
        "Inject a fault: FAULT@HOST[:LOCALRANK]. accept drill injects each in turn.", "--inject"
    ),
}
#: Without --inject, because a drill injects faults itself, and without --hold, because a drill
#: would hold the hosts after each of its runs.
DRILL = {key: option for key, option in PLAN.items() if key not in ("inject", "hold")}
LAUNCH: dict[str, tuple[Any, Any]] = {
    "attempt": (
        Annotated[str, typer.Option(help="Name of this launch; default: generated.")],
        "",
    ),
    "dry_run": (Annotated[bool, typer.Option("--dry-run", help="Only show the plan.")], False),
}
CLUSTER: dict[str, tuple[Any, Any]] = {
    "kubeconfig": _single(str, "Kubeconfig; default: the one that kubectl uses.", "--kubeconfig"),
    "context": _single(str, "Context of the kubeconfig; default: its current one.", "--context"),
    "namespace": _single(str, "Namespace; default: the site's, else the context's.", "--namespace"),
}
RELEASE = {
    "release": _single(str, "Name of the Helm release; default: from the attempt.", "--release")
}
RUN = Annotated[str, typer.Argument(metavar="RUN", help="Attempt, folder, or `last`.")]
EVIDENCE = Annotated[
    str, typer.Argument(metavar="RUN", help="Attempt, folder, `last`, or URL in a bucket.")
]


def plan_options(values: dict[str, Any]) -> Any:
    """Return the plan's options as `resolve` takes them. Raises BadInput."""
    from accept.config.expectations import parse_duration

    def seconds(name: str) -> float | None:
        text = values[name]
        try:
            return None if text is None else parse_duration(text)
        except ValueError as error:
            message, _, forms = str(error).partition("; ")
            raise BadInput(f"--{name.replace('_', '-')}: {message}", hint=forms) from None

    attempt = values.get("attempt") or ""
    if attempt:
        _check_attempt(attempt)
    nodes, hosts = values["nodes"], tuple(values["hosts"] or ())
    all_nodes = nodes == "all"
    if all_nodes:
        nodes = None
    is_list = nodes is not None and re.fullmatch(_NODE_LIST, nodes, re.DOTALL) is not None
    if nodes is not None and not is_list and not re.fullmatch(r"[0-9]{1,9}", nodes):
        raise BadInput(
            f"--nodes {nodes[:40]!r} is no number", hint="give a number, a list a,b,c, or @FILE"
        )
    if is_list:
        hosts, nodes = (*hosts, nodes), None
    return Options(
        machine=values["machine"] or "",
        suite=values["suite"],
        site=values["site"],
        nodes=None if nodes is None else int(nodes),
        hosts=hosts,
        named=is_list and not values["hosts"],
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
        inject=tuple(values["inject"] or ()),
        place=place(values),
        all_nodes=all_nodes,
        attempt=attempt,
    )


def _check_attempt(name: str) -> None:
    """Raise BadInput if no new run can have this name."""
    from accept.core.serde import escaped
    from accept.evidence import rundir

    if not rundir.is_name(name):
        raise BadInput(
            f"--attempt {escaped(name)!r} is not a valid name",
            hint="use up to 63 of a-z, 0-9 and '-', such as rack3-a; not `last`",
        )
    if (rundir.runs() / name).exists():
        raise BadInput(f"the attempt {name} exists already", hint="choose another --attempt")


def place(values: dict[str, Any]) -> ClusterPlace:
    """Return the options that place a run on a cluster. Raises BadInput."""
    given = {key: values[key] for key in (*CLUSTER, *RELEASE) if values.get(key)}
    if "namespace" in given or "release" in given:
        from accept.config.kubernetes import NAME, RELEASE_NAME
        from accept.core.serde import escaped

        patterns = {"namespace": NAME, "release": RELEASE_NAME}
        for key, pattern in patterns.items():
            if key in given and not re.fullmatch(pattern, given[key]):
                first = ", a letter first" * (key == "release")
                raise BadInput(
                    f"--{key} {escaped(given[key])!r} is not a valid name",
                    hint=f"use a-z, 0-9 and '-'{first}, such as gpu-tests",
                )
    return ClusterPlace(**given)
