"""Lay out the help: commands in groups, examples first, under the name that the user called."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final

#: Both names of the program. CUPS installs another program called `accept`.
NAMES: Final = ("accept", "gpu-accept")


@dataclass(frozen=True, kw_only=True)
class Topic:
    """A group of commands."""

    title: str
    #: The commands in the short help.
    main: tuple[str, ...] = ()
    #: The other commands, which only the full help lists.
    more: tuple[str, ...] = ()


TOPICS: Final = (
    Topic(title="Prepare", main=("init", "doctor")),
    Topic(
        title="Test nodes",
        main=("run", "gate", "pick", "watch", "cancel", "retest"),
        more=("drill",),
    ),
    Topic(
        title="Read results",
        main=("judge", "explain", "report", "ticket"),
        more=("diff", "baseline", "verify", "demo"),
    ),
    Topic(title="Look up", main=("list", "show"), more=("help",)),
    Topic(
        title="The steps of a run, one by one",
        more=("render", "chart", "submit", "collect", "clean"),
    ),
)
COMMANDS: Final = tuple(name for topic in TOPICS for name in (*topic.main, *topic.more))

_ABOUT = "Acceptance tests for GPU nodes: may they be used? If not, which part is bad?"
_EXAMPLES: Final = (
    ("accept demo", "judge a simulated run with a bad node"),
    ("accept run", "test this machine"),
    ("accept run --hosts 'node[01-16]'", "test hosts over ssh"),
    ("accept run --partition gpu --nodes 16", "test nodes of Slurm"),
    ("accept run --nodes 16 --site site.yaml", "test nodes of Kubernetes"),
    ("accept gate", "test this host before a job"),
    ("accept pick --need 64 -- srun job.sh", "start a job on the best nodes"),
    ("accept judge my-logs/", "judge nccl-tests logs or evidence"),
    ("accept ticket last node17", "report a bad node to its provider"),
)
_MORE_EXAMPLES: Final = (
    ("accept run --suite standard --dry-run", "what would run, and how long"),
    ("accept render -m cpu -n 2 --image accept:cpu", "print the values for Helm"),
    ("accept explain last node17", "the evidence for and against a node"),
    ("accept diff monday last", "what got slower"),
    ("accept baseline last --out my-a4.yaml", "your own references, for --machine"),
    ("accept show error E-USAGE", "what an error code means"),
)
_OTHER_PROGRAM = """\
CUPS has a program called accept, too. gpu-accept is always this one."""
_EXIT_CODES_SHORT = "Exit code 0: accepted; 3: not accepted; the others: accept help all"
_EXIT_CODES = """\
Exit codes: 0 pass, 2 usage or bad input, 3 fail or degraded, 4 could not start,
5 failed during the run or timed out, 6 evidence incomplete, 7 inconclusive,
70 internal error, 130 Ctrl-C, 143 SIGTERM.
"""
_OPTIONS = """\
Options:
  --version             Print the version.
  --install-completion  Complete names with Tab in this shell.
  --show-completion     Print the script for that.
  -h, --help            Print this help.
"""


#: The first word of a suggested command; a color may come directly before it.
_COMMAND: Final = re.compile(
    rf"(^|[^\w./-]|\x1b\[[0-9;]*m)(?<!-m ){NAMES[0]}"
    rf"(?= (?:{'|'.join(COMMANDS)}|--help|--version)\b)",
    re.MULTILINE,
)


def name() -> str:
    """Return the name of the program that was called, without its folder."""
    called = Path(sys.argv[0]).name
    return called if called in NAMES else NAMES[0]


@cache
def program() -> str:
    """Return what starts this program in the shell: its name, or its path if PATH lacks it."""
    path = Path(sys.argv[0])
    if path.name == "__main__.py" and path.parent.name == NAMES[0]:
        return f"{_from_here(Path(sys.executable))} -m {NAMES[0]}"
    return _from_here(path) if path.name in NAMES else NAMES[0]


def _from_here(path: Path) -> str:
    """Return the name of a program if the shell finds it, else its path from the working folder."""
    found = shutil.which(path.name)
    if not path.is_file() or (found and path.samefile(found)):
        return path.name
    path = Path(os.path.abspath(path))  # noqa: PTH100 - a link in .venv/bin is not followed
    here = Path.cwd()
    shown = str(path.relative_to(here) if path.is_relative_to(here) else path)
    return shlex.quote(shown if os.sep in shown else f"./{shown}")


def as_called(text: str) -> str:
    """Return a text whose commands start with what starts this program in the user's shell."""
    return _COMMAND.sub(lambda found: f"{found[1]}{program()}", text)


def short_help(summaries: Mapping[str, str]) -> str:
    """Return the help with the main commands."""
    hidden = len(COMMANDS) - sum(len(topic.main) for topic in TOPICS)
    more = (
        ("accept help all", f"{hidden} more commands, all exit codes"),
        ("accept help COMMAND", "options and an example"),
    )
    lines = [*_head(_EXAMPLES)]
    for topic in TOPICS:
        lines += _section(topic.title, topic.main, summaries)
    lines += ["", "More:", *_columns(more), "", _EXIT_CODES_SHORT, _OTHER_PROGRAM]
    return as_called("\n".join(lines))


def full_help(summaries: Mapping[str, str]) -> str:
    """Return the help with all commands, options and exit codes."""
    lines = [*_head((*_EXAMPLES, *_MORE_EXAMPLES))]
    for topic in TOPICS:
        lines += _section(topic.title, (*topic.main, *topic.more), summaries)
    return as_called("\n".join((*lines, "", _OPTIONS, _EXIT_CODES, _OTHER_PROGRAM)))


def _head(examples: tuple[tuple[str, str], ...]) -> list[str]:
    return [
        f"Usage: {program()} COMMAND [OPTIONS]",
        "",
        _ABOUT,
        "",
        "Examples:",
        *_columns(examples),
    ]


def _section(title: str, names: tuple[str, ...], summaries: Mapping[str, str]) -> list[str]:
    if not names:
        return []
    return ["", f"{title}:", *(f"  {name:<9} {summaries[name]}" for name in names)]


def _columns(examples: tuple[tuple[str, str], ...]) -> list[str]:
    """Return commands with what they do."""
    return [f"  {command:<38}  {about}" for command, about in examples]
