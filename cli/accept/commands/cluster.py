"""What is about a cluster and not about measuring: delete, free nodes, the Role, a site file."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from accept import backends
from accept.backends import Job
from accept.commands import run
from accept.config import Site, load_machine, load_site
from accept.config.expectations import parse_duration
from accept.core.errors import AcceptError, BadInput, Exit, NoEvidence, NotStarted
from accept.evidence import rundir
from accept.plan.resolve import Options, gpus_asked
from accept.report.console import Terminal

if TYPE_CHECKING:
    from accept.backends.kubernetes.init import Question


def do_delete(
    names: Sequence[str],
    terminal: Terminal,
    *,
    older_than: str | None,
    dry_run: bool,
    collects: bool,
) -> int:
    """Collect runs, then remove what they made and is still there.

    One whose evidence is there and cannot be fetched stays, unless it is not to be collected.
    """
    if bool(names) == bool(older_than):
        raise BadInput("which runs?", hint="name them, or give --older-than 24h, and not both")
    folders = [rundir.find_own(name) for name in names] or _older(older_than or "")
    removed: dict[str, list[str]] = {}
    worst: AcceptError | None = None
    for folder in folders:
        job = run.load_job(folder)
        try:
            found = _delete(job, folder, terminal, dry_run=dry_run, collects=collects)
            removed[job.attempt] = list(found)
        except AcceptError as error:
            # One that cannot be removed is no reason to leave the others.
            if len(folders) == 1:
                raise
            terminal.progress(f"{job.attempt}: {error}")
            worst = error
    word = "would remove" if dry_run else "removed"
    lines = [f"{word} {what}" for found in removed.values() for what in found]
    terminal.result({"dryRun": dry_run, "removed": removed}, "\n".join(lines) or "nothing is left")
    return Exit.PASS if worst is None else worst.code


def _delete(
    job: Job, folder: Path, terminal: Terminal, *, dry_run: bool, collects: bool
) -> tuple[str, ...]:
    backend = backends.load(job.backend)
    found = backend.delete(job, dry_run=True, say=terminal.progress)
    if dry_run or not found:
        return found
    try:
        if collects:
            run.collect(folder, terminal)
    except NoEvidence as error:
        terminal.progress(f"{job.attempt}: nothing to collect: {error.message}")
    except AcceptError:
        why = "its evidence cannot be fetched; --no-collect removes it without"
        terminal.progress(f"{job.attempt} is not removed: {why}")
        raise
    return backend.delete(job, dry_run=False, say=terminal.progress)


def _older(text: str) -> list[Path]:
    """Return the folders of submitted runs that were started at least that long ago."""
    try:
        limit = datetime.now(UTC) - timedelta(seconds=parse_duration(text))
    except ValueError as error:
        message = str(error).partition(";")[0]
        raise BadInput(f"--older-than: {message}", hint="such as 24h, 90m") from None
    found = []
    for folder in filter(rundir.is_own, rundir.listed()):
        try:
            job = run.load_job(folder)
            old = datetime.fromisoformat(job.submitted) < limit
        except (AcceptError, ValueError, TypeError):
            continue
        if old:
            found.append(folder)
    return found


def _site(path: str | None) -> Site:
    return load_site(path).value if path else Site()


def free_nodes(options: Options) -> tuple[str, ...]:
    """Every node that the run's pods match and that has all its GPUs free. Raises NotStarted."""
    from accept.backends.kubernetes import client as kubernetes_client
    from accept.backends.kubernetes import scheduling

    site = _site(options.site)
    with kubernetes_client.before_start():
        client = kubernetes_client.Api(scheduling.resolve_place(options.place, site))
        name = options.machine or scheduling.detect_machine(client)
        machine = load_machine(name).value
        used = gpus_asked(machine, site, options)
        # Where a machine says how many a node has, pods ask for whole nodes: see gpus_of_pod.
        asked = site.kubernetes.gpus_per_pod or used if machine.gpus.count == "detect" else None
        wanted = scheduling.pod_request(machine, site, asked)
        names = scheduling.free_nodes(client, wanted)
    if not names:
        raise NotStarted(
            f"no node of {name} is free in this cluster",
            hint=f"accept doctor --backend kubernetes --machine {name} --nodes 1 says why",
        )
    return names


def do_nodes(
    place: dict[str, str],
    terminal: Terminal,
    *,
    machine: str | None,
    site: str | None,
    gpus_per_node: int | None,
) -> int:
    """One name a line, as `--nodes @FILE` takes them."""
    names = free_nodes(
        Options(machine=machine or "", site=site, gpus_per_node=gpus_per_node, place=place)
    )
    terminal.result({"nodes": list(names)}, "\n".join(names))
    return Exit.PASS


def do_rbac(place: dict[str, str], terminal: Terminal, *, site: str | None) -> int:
    """The Role that a run needs, as YAML."""
    from accept.backends.kubernetes import rbac, scheduling

    try:
        name = scheduling.resolve_place(place, _site(site)).namespace
    except (NotStarted, BadInput):
        # The Role can be printed before there is any access, and without the Kubernetes client.
        # But a kubeconfig or context that the user names must exist.
        if place.get("kubeconfig") or place.get("context"):
            raise
        name = place.get("namespace") or _site(site).kubernetes.namespace or "default"
    text = rbac.role_yaml(name)
    terminal.result({"yaml": text}, text)
    return Exit.PASS


def do_init(
    out: Path, place: dict[str, str], terminal: Terminal, *, given: Mapping[str, str | None]
) -> int:
    """Write a site file; what cannot be seen is asked for where somebody can answer."""
    from accept.backends.kubernetes import client as kubernetes_client
    from accept.backends.kubernetes import init
    from accept.backends.kubernetes.client import find_place

    if out.exists():
        raise BadInput(f"{out} is there already", hint="name another file, or remove that one")
    with kubernetes_client.before_start():
        client = kubernetes_client.Api(
            find_place(**{k: v for k, v in place.items() if k != "release"})
        )
        seen = init.survey_cluster(client)
    for line in seen.notes:
        terminal.progress(line)
    asks = sys.stdin.isatty() and sys.stderr.isatty()
    answers = {q.key: _answer(q, given.get(q.key), asks=asks) for q in seen.questions}
    text = init.site_text(seen, answers)
    try:
        out.write_text(text, encoding="utf-8")
    except OSError as error:
        raise BadInput(f"{out} cannot be written: {error.strerror}", hint="name another") from None
    machine = answers.get("machine") or "NAME"
    terminal.progress(
        f"next: accept doctor --backend kubernetes --machine {machine} --nodes 2 --site {out}"
    )
    terminal.result({"site": str(out), **answers}, str(out))
    return Exit.PASS


def _answer(question: Question, given: str | None, *, asks: bool) -> str:
    """What was given, else the only candidate, else what somebody at the terminal says."""
    if given is not None:
        return "" if given == "none" else given
    if len(question.candidates) == 1 and not question.optional:
        return question.candidates[0]
    if not asks:
        if question.optional:
            return question.default
        there = ", ".join(question.candidates) or "none to be seen"
        raise BadInput(
            f"{question.text}: which? there are: {there}", hint=f"give --{question.option}"
        )
    shown = f" ({', '.join(question.candidates)})" if question.candidates else ""
    standard = f" [{question.default or 'none'}]" if question.optional else ""
    while True:
        sys.stderr.write(f"{question.text}{shown}{standard}: ")
        sys.stderr.flush()
        line = sys.stdin.readline()
        if not line:
            raise BadInput(f"{question.text}: no answer", hint=f"give --{question.option}")
        if line.strip() or question.optional:
            return line.strip() or question.default
