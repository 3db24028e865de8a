"""List the free nodes of a cluster, and write a first site file for it."""

from __future__ import annotations

import hashlib
import shlex
import sys
from dataclasses import dataclass, replace
from pathlib import Path

from accept import backends
from accept.backends.protocol import Question
from accept.commands.trust import keep_trust
from accept.config import site_file
from accept.config.hostlist import expand
from accept.core.error_codes import Code
from accept.core.errors import BadInput, Exit
from accept.core.evidence import write
from accept.core.serde import camel, read
from accept.core.text import visible
from accept.plan.resolve import Options, named_backend, site_of
from accept.report.console import Terminal, unwritable

#: The back end of a site file if the options name neither hosts nor a partition.
_DEFAULT = "kubernetes"


@dataclass(frozen=True, kw_only=True)
class FreeNodes:
    """The free nodes of a cluster: `accept list nodes`."""

    nodes: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Answers:
    """Answers for a site file by the keys of the questions; None: not answered, empty: none."""

    machine: str | None = None
    partition: str | None = None
    queue: str | None = None
    topology: str | None = None
    service_account: str | None = None
    image: str | None = None
    results: str | None = None


@dataclass(frozen=True, kw_only=True)
class SiteFile(Answers):
    """A new site file and the answers in it: `accept init`."""

    #: Its path; empty with --dry-run.
    site: str
    text: str


def do_nodes(options: Options, terminal: Terminal) -> int:
    """Print the names of the free nodes, one a line, as `--nodes @FILE` takes them."""
    name = named_backend(options, site_of(options))
    if name is None:
        terminal.progress("asking Kubernetes; for Slurm, give --partition")
    nodes = backends.NODE_LISTS.get(name or "") or backends.CLUSTER
    names = nodes.free_nodes(options).names
    terminal.result(FreeNodes(nodes=names), "\n".join(names))
    return Exit.PASS


def do_init(
    out: Path | None, options: Options, terminal: Terminal, *, answers: Answers, replaces: bool
) -> int:
    """Write a site file, and ask on a terminal for what hosts or a cluster do not show.

    If `out` is None or `-`, the text is printed. With `replaces`, a file that exists is replaced.
    """
    out = None if out == Path("-") else out
    if out is not None and out.exists() and not replaces:
        raise BadInput(
            f"{out} exists already",
            code=Code.OUTPUT_EXISTS,
            hint="name another file, or replace it with --force; --dry-run only prints",
        )
    options = replace(options, hosts=expand(options.hosts, terminal.progress))
    name = options.backend or _backend_of(options)
    if name == _DEFAULT and options.backend is None:
        terminal.progress("asking Kubernetes; else give --hosts 'node[01-16]' or --partition")
    survey = backends.load_surveyor(name).survey(options)
    for note in survey.notes:
        terminal.progress(note)
    interactive = sys.stdin.isatty() and sys.stderr.isatty()
    given = {camel(name): answer for name, answer in vars(answers).items()}
    chosen: dict[str, str] = {}
    for general in survey.questions:
        question = general.for_machine(chosen.get("machine") or answers.machine or "")
        own = given.get(question.key)
        answer = chosen[question.key] = _answer(question, own, ask=interactive)
        if own is None and question.candidates and not _is_asked(question, ask=interactive):
            terminal.progress(
                f"{question.text}: {answer or 'none'}; found: {', '.join(question.candidates)}; "
                f"another: --{question.option}"
            )
        elif own not in (None, "none", *question.candidates) and question.candidates:
            found = ", ".join(question.candidates)
            terminal.progress(f"{question.text}: {answer}, as given; found: {found}")
    text = survey.site_text(chosen)
    file = read(SiteFile, {"site": str(out or ""), "text": text, **chosen})
    if out is None:
        terminal.document(file, text)
        return Exit.PASS
    try:
        write(out, text)
    except OSError as error:
        raise unwritable(out, error, hint="choose another file") from None
    keep_trust(out, hashlib.sha256(text.encode()).hexdigest(), terminal)
    words = ["accept", "doctor"]
    # A site file of a cluster remembers it.
    if (machine := answers.machine) and not chosen.get("machine"):
        words += ["--machine", machine]
    if name in (_DEFAULT, "slurm"):
        words += ["--nodes", "2"]
    if name == _DEFAULT and not chosen.get("image"):
        words += ["--image", "IMAGE"]
    if out.resolve() != Path(site_file.NAME).resolve():
        words += ["--site", str(out)]
    terminal.result(file, str(out))
    terminal.suggest(shlex.join(words))
    return Exit.PASS


def _backend_of(options: Options) -> str:
    """Return the back end of a site file if the user names none."""
    if options.hosts:
        return "ssh"
    return "slurm" if options.slurm.partition else _DEFAULT


def _is_asked(question: Question, *, ask: bool) -> bool:
    """Return True if a person answers: a single candidate is taken unless there may be none."""
    return ask and (question.optional or len(question.candidates) != 1)


def _answer(question: Question, given: str | None, *, ask: bool) -> str:
    """Return the option's value, else the only candidate, else what the user types with `ask`.

    Raises BadInput if there is none of them.
    """
    if given is not None:
        return "" if given == "none" else given
    if not _is_asked(question, ask=ask):
        if question.optional:
            return question.default
        if len(question.candidates) == 1:
            return question.candidates[0]
        candidates = ", ".join(question.candidates) or "none found"
        raise BadInput(
            f"{question.text}: which one? found: {candidates}",
            code=Code.SITE_QUESTION,
            hint=f"give --{question.option}",
        )
    choices = f" ({', '.join(question.candidates)})" if question.candidates else ""
    default = f" [{question.default or 'none'}]" if question.optional else ""
    while True:
        sys.stderr.write(visible(f"{question.text}{choices}{default}: "))
        sys.stderr.flush()
        line = sys.stdin.readline()
        if not line:
            raise BadInput(
                f"{question.text}: no answer",
                code=Code.SITE_QUESTION,
                hint=f"give --{question.option}",
            )
        if line.strip() or question.optional:
            return line.strip() or question.default
