"""List the free nodes of a cluster, and write a first site file for it."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path

from accept import backends
from accept.backends.protocol import Question
from accept.core.errors import BadInput, Exit
from accept.plan.resolve import ClusterPlace, Options
from accept.report.console import Terminal


def do_nodes(
    place: ClusterPlace,
    terminal: Terminal,
    *,
    machine: str | None,
    site: str | None,
    gpus_per_node: int | None,
) -> int:
    """Print the names of the free nodes, one a line, as `--nodes @FILE` takes them."""
    names = backends.CLUSTERS["kubernetes"].free_nodes(
        Options(machine=machine or "", site=site, gpus_per_node=gpus_per_node, place=place)
    )
    terminal.result({"nodes": list(names)}, "\n".join(names))
    return Exit.PASS


def do_init(
    out: Path, place: ClusterPlace, terminal: Terminal, *, given: Mapping[str, str | None]
) -> int:
    """Write a site file, and ask on a terminal for what the cluster does not show."""
    if out.exists():
        raise BadInput(f"{out} exists already", hint="name another file, or remove that one")
    survey = backends.CLUSTERS["kubernetes"].survey(place)
    for line in survey.notes:
        terminal.progress(line)
    interactive = sys.stdin.isatty() and sys.stderr.isatty()
    answers = {q.key: _answer(q, given.get(q.key), ask=interactive) for q in survey.questions}
    text = survey.site_text(answers)
    try:
        out.write_text(text, encoding="utf-8")
    except OSError as error:
        hint = "choose another file"
        raise BadInput(f"{out} cannot be written: {error.strerror}", hint=hint) from None
    machine = answers.get("machine") or "NAME"
    terminal.progress(
        f"next: accept doctor --backend kubernetes --machine {machine} --nodes 2 --site {out}"
    )
    terminal.result({"site": str(out), **answers}, str(out))
    return Exit.PASS


def _answer(question: Question, given: str | None, *, ask: bool) -> str:
    """Return the option's value, else the only candidate, else what the user types with `ask`.

    Raises BadInput if none of them is there.
    """
    if given is not None:
        return "" if given == "none" else given
    if len(question.candidates) == 1 and not question.optional:
        return question.candidates[0]
    if not ask:
        if question.optional:
            return question.default
        candidates = ", ".join(question.candidates) or "none found"
        raise BadInput(
            f"{question.text}: which? there are: {candidates}", hint=f"give --{question.option}"
        )
    choices = f" ({', '.join(question.candidates)})" if question.candidates else ""
    default = f" [{question.default or 'none'}]" if question.optional else ""
    while True:
        sys.stderr.write(f"{question.text}{choices}{default}: ")
        sys.stderr.flush()
        line = sys.stdin.readline()
        if not line:
            raise BadInput(f"{question.text}: no answer", hint=f"give --{question.option}")
        if line.strip() or question.optional:
            return line.strip() or question.default
