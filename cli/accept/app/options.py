"""The options that commands share, and what the user asks for with them."""

from __future__ import annotations

import re
from typing import Annotated, Any

import typer

from accept.core.errors import BadInput

#: Nodes by name: a file, or names with a digit, a dot, a dash, a comma or a range in them.
_NODE_LIST = r"@.+|[A-Za-z][A-Za-z]*[0-9.,\[-].*"

OUTPUT: dict[str, tuple[Any, Any]] = {
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


PLAN: dict[str, tuple[Any, Any]] = {
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
    "seed": (Annotated[int, typer.Option(help="Seed of what is left to chance: pairs.")], 1),
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
        "Plant a fault: FAULT@HOST[:LOCALRANK]. accept drill plants all, one by one.", "--plant"
    ),
}
#: Of a drill: it plants by itself, and would hold hosts after each of its runs.
DRILL = {key: option for key, option in PLAN.items() if key not in ("plant", "hold")}
LAUNCH: dict[str, tuple[Any, Any]] = {
    "attempt": (
        Annotated[str, typer.Option(help="Name of this launch; left out: time and chance.")],
        "",
    ),
    "dry_run": (Annotated[bool, typer.Option("--dry-run", help="Show the plan and stop.")], False),
}
CLUSTER: dict[str, tuple[Any, Any]] = {
    "kubeconfig": _one(str, "Kubeconfig; left out: as kubectl finds it.", "--kubeconfig"),
    "context": _one(str, "Context of the kubeconfig; left out: its current one.", "--context"),
    "namespace": _one(str, "Namespace; left out: the site's, else the context's.", "--namespace"),
}
RELEASE = {
    "release": _one(str, "Name of the helm release; left out: from the attempt.", "--release")
}
RUN = Annotated[str, typer.Argument(metavar="RUN", help="Attempt, folder, or `last`.")]
EVIDENCE = Annotated[
    str, typer.Argument(metavar="RUN", help="Attempt, folder, `last`, or URL in a bucket.")
]


def asked(values: dict[str, Any]) -> Any:
    """The plan's options as `resolve` takes them."""
    from accept.config.expectations import parse_duration
    from accept.plan.resolve import Options

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


def place(values: dict[str, Any]) -> dict[str, str]:
    """Return the options that say where on a cluster a run goes. Raises BadInput."""
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
    return given
