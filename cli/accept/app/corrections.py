"""Find the command that a refused command line meant.

Users bring the words of kubectl, sbatch, mpirun and pytest, name a node instead of a run, or let
the shell take a part of their line. Each function yields command lines that may be meant; only one
that the real command line takes is shown, so it can be copied.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections.abc import Callable, Iterator, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Final

from accept.app import complete
from accept.app.help import COMMANDS
from accept.commands.choices import Listing, Shown
from accept.core.error_codes import Code
from accept.core.errors import AcceptError
from accept.core.serde import did_you_mean, nearest
from accept.core.text import command_line, plain

#: Commands of other tools, and the command that does it here. `last` gives way to what follows.
COMMAND_WORDS: Final = {
    "version": "--version",
    **dict.fromkeys(("status", "ls", "ps", "get", "history", "squeue"), "list runs"),
    **dict.fromkeys(("open", "html", "summary"), "report last"),
    **dict.fromkeys(("result", "results", "verdict", "logs", "analyze"), "judge last"),
    **dict.fromkeys(("describe", "info", "inspect"), "show run last"),
    **dict.fromkeys(("attach", "follow", "tail", "wait"), "watch last"),
    **dict.fromkeys(("test", "start", "launch", "exec", "srun", "apply", "bench"), "run"),
    **dict.fromkeys(("plan", "preview"), "run --dry-run"),
    **dict.fromkeys(("stop", "kill", "abort", "scancel"), "cancel last"),
    **dict.fromkeys(("rm", "remove", "uninstall", "delete"), "clean last --dry-run"),
    **dict.fromkeys(("prune", "cleanup", "gc"), "clean --folders --older-than 30d --dry-run"),
    **dict.fromkeys(("check", "preflight", "probe", "validate"), "doctor"),
    **dict.fromkeys(("setup", "configure", "config"), "init --dry-run"),
    **dict.fromkeys(("compare", "delta"), "diff last last"),
    **dict.fromkeys(("template", "manifest"), "render --machine cpu --nodes 2 --image IMAGE"),
    **dict.fromkeys(("drain", "cordon"), "show nodes last --commands"),
    **dict.fromkeys(("why", "blame"), "explain last"),
    **dict.fromkeys(("rma", "issue"), "ticket last"),
    "again": "retest last",
    "nodes": "list nodes",
    "tools": "list checks",
    "schema": "show schema",
    "sbatch": "submit",
}
#: Options of other tools, and what replaces them here. VALUE is the value that was given.
OPTION_WORDS: Final = {
    **{f"--{form}": f"--format {form}" for form in ("html", "md", "junit")},
    "--markdown": "--format md",
    "--xml": "--format junit",
    **dict.fromkeys(("--output", "-O"), "--out VALUE"),
    **dict.fromkeys(("-H", "--host-list", "--servers"), "--hosts VALUE"),
    **dict.fromkeys(("-w", "--nodelist"), "--nodes VALUE"),
    **dict.fromkeys(("--hostfile", "--machinefile", "--hosts-file"), "--hosts @VALUE"),
    **dict.fromkeys(("--gpus", "--ngpus", "--gres"), "--gpus-per-node VALUE"),
    **dict.fromkeys(("-x", "--env", "--export"), "--nccl VALUE"),
    **dict.fromkeys(
        ("-k", "--test", "--tests", "--check", "--checks", "--include"), "--only VALUE"
    ),
    **dict.fromkeys(("--deselect", "--without"), "--skip VALUE"),
    **dict.fromkeys(("--config", "--cluster", "--site-file"), "--site VALUE"),
    **dict.fromkeys(("--threshold", "--bound", "--min-bw"), "--expect VALUE"),
    **dict.fromkeys(("--param", "--option"), "--set VALUE"),
    **dict.fromkeys(("--timeout", "--max-time"), "--deadline VALUE"),
    "-C": "--constraint VALUE",
    "-A": "--account VALUE",
    "-t": "--time VALUE",
    **dict.fromkeys(("--plan", "--check-only", "--dryrun", "--no-act"), "--dry-run"),
    **dict.fromkeys(("--debug", "-d"), "-v"),
    "--silent": "-q",
    **dict.fromkeys(("-j", "--format=json"), "--json"),
    **dict.fromkeys(("-y", "--yes"), ""),
}
#: Options of other tools whose setting is in the site file, and its key there.
SITE_KEYS: Final = {
    "--namespace": "kubernetes.namespace",
    "--service-account": "kubernetes.serviceAccount",
    "--node-selector": "kubernetes.nodeSelector",
    "--priority-class": "kubernetes.priorityClassName",
    "--queue": "kubernetes.queue",
    "--labels": "kubernetes.labels",
    "--annotations": "kubernetes.annotations",
    "--image-pull-secret": "kubernetes.imagePullSecrets",
    **dict.fromkeys(("--toleration", "--tolerations"), "kubernetes.tolerations"),
    **dict.fromkeys(("--bucket", "--results", "--output-bucket"), "results.location"),
}
_VALUE = "VALUE"
#: Options are similar from this ratio of their letters on: "--machin" and "--machine".
_SIMILAR = 0.75
#: Commands that take the options of a plan, and no other words (`submit`: a folder).
_PLANNING = ("run", "doctor", "render", "drill", "submit")
_HELP = ("-h", "--help")
#: Most mistakes in one line that are corrected.
_MOST = 3

Parse = Callable[[Sequence[str]], Exception | None]


def hint(words: Sequence[str], error: Exception, parse: Parse) -> str:
    """Return a hint with the command that was meant; "" if none is known.

    `parse` returns the error of a command line, or None.
    """
    words = [word for word in words if word not in _HELP]
    if key := SITE_KEYS.get(str(getattr(error, "option_name", ""))):
        example = command_line("accept", "show", "site", "example")
        return f"in the site file: {key}; example: {example}"
    meant = _meant(words, error, parse, _MOST) if words else None
    return _shown(meant, _reason(words, error)) if meant else ""


def _shown(meant: Sequence[str], reason: str = "did you mean") -> str:
    return f"{reason}: {command_line('accept', *meant)}"


def _reason(words: Sequence[str], error: Exception) -> str:
    """Return what the user may not know about the line."""
    code = getattr(error, "code", Code.USAGE)
    if code is Code.EXPECT_SYNTAX:
        return f"the shell took {taken_by_shell()!r} for the file of the output; quote it"
    if code is Code.SITE_NO_IMAGE:
        return "this machine has Slurm; for nodes of Slurm"
    known = nodes() if code in (Code.USAGE, Code.RUN_UNKNOWN) else []
    if node := next((word for word in words[1:2] if word in known), ""):
        return f"{plain(node, 80)} is a node of the last run"
    return "did you mean"


def _meant(words: list[str], error: Exception, parse: Parse, most: int) -> list[str] | None:
    """Return the first candidate that can be parsed, after corrections of its own."""
    for candidate in _candidates(words, error):
        if not candidate or candidate == words:
            continue
        remaining = parse(candidate)
        if remaining is None:
            return candidate
        if most > 1 and (meant := _meant(candidate, remaining, parse, most - 1)):
            return meant
    return None


def _candidates(words: list[str], error: Exception) -> Iterator[list[str]]:
    if isinstance(error, AcceptError):
        if known := _OF_CODES.get(error.code):
            yield from known(words)
        return
    option = getattr(error, "option_name", None)
    param = getattr(error, "param", None)
    if option is not None:
        yield from _of_option(words, str(option), error)
        if words[0].startswith("-") and len(words) > 1:
            yield ["run", *words]
    elif words[0] == "show":
        yield from _of_show(words)
    elif words[0] == "list":
        yield from _of_list(words)
    elif param is None:
        yield from _of_more_words(words, error)
    elif param.param_type_name == "argument" or param.required:
        yield from _of_missing(words, str(param.name))
    else:
        yield from _of_value(words, error)


def of_command(words: Sequence[str], parse: Parse) -> str:
    """Return the hint for a line whose first word is not a command.

    If several commands begin with it, all are named; "" if none is known.
    """
    words = [word for word in words if word not in _HELP]
    for candidate in _of_command(words):
        remaining = parse(candidate)
        meant = candidate if remaining is None else _meant(candidate, remaining, parse, _MOST)
        if meant:
            return _shown(meant)
    return did_you_mean(words[0], COMMANDS).rstrip("? ")


def _of_command(words: list[str]) -> Iterator[list[str]]:
    first, more = words[0], words[1:]
    if template := COMMAND_WORDS.get(first.lower()):
        meant = template.split()
        if more and "last" in meant:
            place = meant.index("last")
            yield [*meant[:place], *more, *meant[place + 1 :]]
        # A list of runs is about no single one.
        yield [*meant, *(word for word in more if meant[0] != "list" or word.startswith("-"))]
        yield meant
    if first in [*Listing]:
        yield ["list", first]
    if Path(first).exists() or first == "-" or first in complete.runs():
        yield ["judge", *words]
    if first in nodes():
        yield ["explain", "last", first]
    for kind in _kinds(first):
        yield ["show", kind, first]
    if len(near := nearest(first, COMMANDS)) == 1:
        yield [near[0], *more]


# An option that does not exist


def _of_option(words: list[str], option: str, error: Exception) -> Iterator[list[str]]:
    """Yield the line with another option: of the same meaning, or of nearly the same name."""
    for place, word in enumerate(words):
        is_short = not option.startswith("--") and word.startswith(option)
        if word != option and not word.startswith(f"{option}=") and not is_short:
            continue
        before, after = words[:place], words[place + 1 :]
        attached = word[len(option) :].removeprefix("=")
        command = getattr(getattr(error, "ctx", None), "command", None)
        options = [name for param in getattr(command, "params", ()) for name in param.opts]
        template = OPTION_WORDS.get(option)
        if template is not None and (not template or template.split()[0] in options):
            if _VALUE not in template:
                yield [*before, *template.split(), *after]
            elif attached:
                yield [*before, *template.replace(_VALUE, attached).split(), *after]
            elif after:
                yield [*before, *template.replace(_VALUE, after[0]).split(), *after[1:]]
        longer = [name for name in options if name.startswith(option) and option.startswith("--")]
        letters = {name.lstrip("-"): name for name in options}
        similar = get_close_matches(option.lstrip("-"), letters, 1, _SIMILAR)
        for near in (*longer, *(letters[name] for name in similar)):
            yield [*before, f"{near}={attached}" if attached else near, *after]


def _of_value(words: list[str], error: Exception) -> Iterator[list[str]]:
    """Yield the line with another value of an option that has a closed set of them."""
    param = getattr(error, "param", None)
    choices = [str(choice) for choice in getattr(param.type, "choices", ())] if param else []
    for place, word in enumerate(words):
        option, _, value = word.partition("=")
        if param is None or option not in param.opts:
            continue
        is_joined = bool(value)
        value = value or "".join(words[place + 1 : place + 2])
        after = words[place + (1 if is_joined else 2) :]
        if value == "json":
            yield [*words[:place], "--json", *after]
        for near in nearest(value, choices):
            yield [*words[:place], option, near, *after]


# Words that are missing, or too many


def _of_missing(words: list[str], missing: str) -> Iterator[list[str]]:
    """Yield the line with what is missing: the newest run, or the first node that it accuses."""
    if len(words) > 1 and words[1] in nodes():
        yield [words[0], "last", *words[1:]]
    if missing == "node" and (bad := [*bad_nodes(_run_of(words)), *nodes(_run_of(words))]):
        yield [*words, bad[0]]
    if missing == "after":
        yield [words[0], *words[1:], "last"]
    if missing == "before" and (others := complete.runs()[2:] or ["last"]):
        yield [words[0], others[0], "last", *words[1:]]
    if missing == "run" and words[0] == "ticket" and (bad := bad_nodes()):
        yield [words[0], "last", bad[0], *words[1:]]
    if missing == "run":
        yield [words[0], "last", *words[1:]]
    if missing == "what":
        yield [words[0], "site"]
    if missing == "older_than":
        yield [*words, "--older-than", "30d", "--dry-run"]


def _run_of(words: Sequence[str]) -> str:
    return next((word for word in words[1:] if not word.startswith("-")), "last")


def _of_more_words(words: list[str], error: Exception) -> Iterator[list[str]]:
    """Yield the line without words that are too many: joined to a list, or with their option."""
    lists = _list_options(error)
    for place, word in enumerate(words):
        if word in lists and place + 2 < len(words):
            end = place + 2
            while end < len(words) and not words[end].startswith("-"):
                end += 1
            yield [*words[: place + 1], ",".join(words[place + 1 : end]), *words[end:]]
    if words[0] in _PLANNING:
        for place, word in enumerate(words[1:], 1):
            if option := _option_for(word):
                yield [*words[:place], option, *words[place:]]
        return
    if len(words) == 3 and words[2] in nodes(words[1]):
        yield ["explain", *words[1:]]
    for end in range(len(words) - 1, 1, -1):
        yield words[:end]


def _list_options(error: Exception) -> list[str]:
    """Return the options of the command that take a list."""
    command = getattr(getattr(error, "ctx", None), "command", None)
    return [
        name
        for param in getattr(command, "params", ())
        if param.metavar == "LIST" or param.name == "nodes"
        for name in param.opts
    ]


def _option_for(word: str) -> str:
    """Return the option of a plan that takes a word; "" if none does."""
    if word.startswith("-"):
        return ""
    if word in complete.checks():
        return "--only"
    if word in complete.suites():
        return "--suite"
    if word in complete.machines():
        return "--machine"
    if word.endswith((".yaml", ".yml")):
        return "--site"
    is_list = re.search(r"[0-9,\[@.]", word) is not None and "/" not in word
    return "--hosts" if is_list or word in nodes() else ""


# Names of another kind


def _of_show(words: list[str]) -> Iterator[list[str]]:
    names = [word for word in words[1:] if not word.startswith("-")]
    if not names:
        yield ["show", "nodes", "last"]
        return
    yield from _of_url(words)
    kind, *more = names
    if kind in [*Shown]:
        if shown := complete.SHOWN[Shown(kind)]():
            yield [*words, shown[0]]
        return
    if node := next((name for name in (*more, kind) if name in nodes()), ""):
        yield ["explain", "last", node]
    if kind in ("tool", "tools"):
        yield ["show", "check", *more] if more else ["list", "checks"]
    for near in nearest(kind, [*Shown]):
        yield [word if word != kind else near for word in words]
    for name in (kind, *more):
        for found in _kinds(name):
            yield ["show", found, name]
    if kind in [*Listing]:
        yield ["list", kind]
    yield ["show", "run", kind]


def _of_list(words: list[str]) -> Iterator[list[str]]:
    names = [word for word in words[1:] if not word.startswith("-")] or ["runs"]
    if names[0] in ("node", "hosts") or (names[0] == "nodes" and names[1:]):
        yield ["show", "nodes", *(names[1:] or ["last"])]
    if names[0] in ("tool", "tools"):
        yield ["list", "checks"]
    for near in (*nearest(names[0], [*Listing]), "runs"):
        yield ["list", near]


def _of_url(words: Sequence[str]) -> Iterator[list[str]]:
    """Yield the line that judges a run in a bucket."""
    from accept.evidence import bucket

    yield from (["judge", word] for word in words if bucket.is_url(word))


def _kinds(name: str) -> Iterator[str]:
    """Yield what `accept show` calls a name."""
    for kind in (Shown.CHECK, Shown.MACHINE, Shown.SUITE, Shown.CAUSE, Shown.FAULT, Shown.ERROR):
        if name in complete.SHOWN[kind]():
            yield kind


def nodes(run: str = "last") -> list[str]:
    """Return the nodes of a run; none if it is not known."""
    return _of_run(run, complete.hosts_of)


def bad_nodes(run: str = "last") -> list[str]:
    """Return the nodes that a run accuses; none if it is not known."""
    return _of_run(run, complete.bad_hosts_of)


def _of_run(run: str, read: Callable[[Path], Iterator[str]]) -> list[str]:
    from accept.evidence import rundir

    try:
        return [*read(rundir.find(run))]
    except (AcceptError, OSError, ValueError):
        return []


# Lines that can be parsed, and were refused later


def _of_unknown_run(words: list[str]) -> Iterator[list[str]]:
    """Yield the line with a run instead of a node, or with a run of nearly the same name."""
    yield from _of_url(words)
    names = complete.runs()
    for place, word in enumerate(words[1:], 1):
        if word.startswith("-") or word in names:
            continue
        if word in nodes():
            if words[0] in ("ticket", "retest"):
                yield [words[0], "last", *words[1:]]
            yield ["explain", "last", word]
        for near in nearest(word, names):
            yield [*words[:place], near, *words[place + 1 :]]


def _of_ticket(words: list[str]) -> Iterator[list[str]]:
    if words[0] == "ticket":
        if words[1] in nodes():
            yield ["ticket", "last", *words[1:]]
        for node in bad_nodes(_run_of(words))[:1]:
            yield [*words, node]


def _of_image(words: list[str]) -> Iterator[list[str]]:
    """Yield the line for Slurm, if this machine has its programs."""
    if shutil.which("sinfo"):
        yield [*words, "--backend", "slurm"]


def _of_threshold(words: list[str]) -> Iterator[list[str]]:
    """Yield the line with the threshold whose end the shell took for the name of a file."""
    rest = taken_by_shell()
    for place, word in enumerate(words):
        if rest and words[place - 1] == "--expect" and not re.search("[<>=]", word):
            yield [*words[:place], f"{word}>{rest}", *words[place + 1 :]]


def taken_by_shell() -> str:
    """Return the name of the file that stdout is redirected to if it starts with "=", else ""."""
    try:
        output = os.fstat(sys.stdout.fileno())
        files = [path for path in Path().iterdir() if path.name.startswith("=")]
        return next((f.name for f in files if os.path.samestat(output, f.stat())), "")
    except (OSError, ValueError):
        return ""


_OF_CODES: Final[dict[Code, Callable[[list[str]], Iterator[list[str]]]]] = {
    Code.RUN_UNKNOWN: _of_unknown_run,
    Code.USAGE: _of_ticket,
    Code.SITE_NO_IMAGE: _of_image,
    Code.EXPECT_SYNTAX: _of_threshold,
}
