"""Each command that a screen, report, error or ticket suggests works as printed, for every run.

`follow` executes the suggestions of a command, then those of their output, and so on. A suggestion
fails if it ends with an error: no other exit code shows that it was a bad advice. Some commands are
only parsed; `PARSED` has the reasons. The first command of each form is executed by a real shell,
too, and so is each command in the texts of the program, with examples of what the reader fills in.
"""

from __future__ import annotations

import html
import json
import os
import re
import shlex
import shutil
import subprocess
import zipfile
from collections import deque
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from unittest import mock

import pytest
import typer
from tests.factories import nccl_logs
from tests.factories.api_server import api_server
from tests.factories.chart_runs import Write
from tests.factories.command_line import Done, accept, installed
from tests.factories.helm import CHART, call
from tests.factories.shell import run_program
from tests.factories.standin_slurm import StandinSlurm
from tests.factories.standin_ssh import standin_ssh
from tests.promises.pool import Kind, PooledRun, runs
from tests.promises.suggestions import VALUE, in_sources, parse, suggested

from accept.app import help as layout
from accept.commands.choices import Listing, Shown

#: Commands that are parsed and not executed, with the reason.
PARSED = {
    "run": "it measures for minutes, on hosts that only the user has",
    "submit": "as `run`",
    "drill": "as `run`, once for each fault",
    "watch": "the hosts of the run are gone",
    "collect": "as `watch`",
    "cancel": "as `watch`",
    "clean": "it removes the run that the next suggestions are about",
    "doctor": "it connects to the hosts or the cluster of the run",
    "init": "as `doctor`",
}
#: Words that the reader replaces, in commands of the documentation that are only parsed.
PLACEHOLDER = r"\b[A-Z]{3,}\b|\bmy-logs/|\bnode17\b"
#: Outputs that are the same on every machine, so they cannot know where the program is: report.md
#: is also written on nodes.
PORTABLE = ("md", "--json")
#: Errors that no suggestion could foresee without the work of the command itself.
UNKNOWABLE = ("E-BASELINE-DIVIDED",)
#: Programs of clusters in suggestions. They change nodes, so only their syntax is checked.
OTHERS = ("scontrol", "kubectl", "gcloud", "helm", "sudo", "pdsh")
#: A stand-in: there is no pod, then a pod whose container is created, then a pod that runs.
KUBECTL = """\
#!/bin/sh
case $* in *" logs "*)
    [ "$(cat "$STATE")" = xxx ] || { echo 'is waiting to start: ContainerCreating' >&2; exit 1; }
    echo 'the log';;
*)
    printf x >> "$STATE"
    case $(cat "$STATE") in x) ;; xx) printf Pending ;; *) printf Running ;; esac;;
esac
"""
#: Longest chain of suggestions that is followed for one run.
_MOST = 60
#: The forms of commands that a real shell has executed: `explain * *`.
_FORMS: set[str] = set()


class Started(Exception):
    """Raised in place of the start of a run, after everything before it has worked."""


def bash(command: str, folder: Path, **more: str) -> subprocess.CompletedProcess[str]:
    """Execute a command line as a user's shell does, with more variables."""
    return run_program(["bash", "-c", command], cwd=folder, env={**os.environ, **more})


def form_of(command: str) -> str:
    """Return a command without the names in it: `explain * *`, `report * --format html`."""
    first, *words = shlex.split(command)
    kinds = {*Listing, *Shown, "html", "md", "all", ">"}
    return " ".join([first, *(w if w[:1] == "-" or w in kinds else "*" for w in words)])


class Shell:
    """A shell in which `accept` is called by a path, because PATH lacks it."""

    def __init__(self, folder: Path, called: str) -> None:
        self.folder, self.called = folder, called

    def call(self, command: str) -> Done:
        """Call `accept` with the words of a command line; a redirection writes its file."""
        words, _, target = command.partition(" > ")
        layout.program.cache_clear()
        with (
            mock.patch("accept.commands.retest.start", side_effect=Started),
            mock.patch("accept.commands.demo.webbrowser.open"),
            mock.patch("tests.factories.command_line.PROGRAM", self.called),
        ):
            try:
                done = accept(*shlex.split(words))
            except Started:
                done = Done(code=0, out="", err="")
        layout.program.cache_clear()
        if target:
            (self.folder / target.strip()).write_text(done.out)
        return done

    def repeat(self, command: str, done: Done) -> None:
        """Let a real shell execute the first command of each form, except those that measure."""
        form = form_of(command)
        if form in _FORMS or command.startswith("retest"):
            return
        _FORMS.add(form)
        if file := re.search(r"--out (\S+)", command):
            # A file that exists is not replaced.
            (self.folder / file[1]).unlink(missing_ok=True)
        real = bash(f"{self.called} {command}", self.folder)
        assert real.returncode == done.code, f"{command}\n{real.stdout}\n{real.stderr}"

    def suggestions(self, command: str, done: Done) -> Iterator[str]:
        """Yield the suggestions in an output, and fail if one of them has another name."""
        is_portable = any(word in command.split() for word in PORTABLE)
        for text in (done.out, done.err):
            shown = html.unescape(re.sub("</?code>", "\n", text))
            yield from suggested(shown, self.called)
            bare = suggested(shown)
            assert is_portable or bare == [], f"{command} suggests without a path: {bare}"
            yield from bare

    def follow(self, *commands: str) -> dict[str, Done]:
        """Execute commands and all that their output suggests; return the suggested ones."""
        waiting = deque(commands)
        known: dict[str, Done] = {}
        while waiting and len(known) < _MOST:
            command = waiting.popleft()
            if command in known:
                continue
            is_template = re.search(PLACEHOLDER, command)
            if command not in commands and (is_template or command.split()[0] in PARSED):
                parse(command)
                continue
            done = known[command] = self.call(command)
            if command not in commands:
                fails = done.error not in ("", *UNKNOWABLE)
                assert not fails, f"suggested, and fails: {command}\n{done.err}"
                self.repeat(command, done)
            waiting.extend(self.suggestions(command, done))
        return {command: done for command, done in known.items() if command not in commands}


@pytest.fixture
def shell(runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Shell:
    """Work in an empty folder, with a program that is not on PATH."""
    folder = tmp_path / "a folder"
    folder.mkdir()
    runs.mkdir()
    monkeypatch.chdir(folder)
    program = folder / "bin" / "accept"
    program.parent.mkdir()
    program.symlink_to(installed("accept"))
    return Shell(folder, "bin/accept")


def questions(shell: Shell, name: str) -> list[str]:
    """Return the commands that a user may type about a run, right or wrong."""
    done = shell.call(f"judge {name} --json")
    verdict = json.loads(done.out)
    if isinstance(verdict, list):
        return [f"judge {name}"]
    accused = dict.fromkeys(
        host for s in verdict["suspects"] for host in (*s["hosts"], *s["others"])
    )
    others = [h for h in (*verdict["hosts"], *verdict["missing"]) if h not in accused]
    nodes = [shlex.quote(host) for host in [*list(accused)[:3], *others[:1], *others[-1:]]]
    about = [f"{what} {name} {node}" for what in ("explain", "ticket", "retest") for node in nodes]
    more = ["ticket {} --fabric", "explain {} no-such-node", "retest {}", "show nodes {}"]
    forms = ["report {}", "report {} --format html", "report {} --format md", "verify {}"]
    return [f"judge {name}", *about, *(text.format(name) for text in (*more, *forms))]


@pytest.mark.parametrize("run", runs(Kind.EVIDENCE))
def test_suggestions_about_a_run_of_this_machine_work(
    run: PooledRun, shell: Shell, runs: Path
) -> None:
    shutil.copytree(run.folder.parent, runs / "monday", symlinks=True) if (
        run.folder.parent / "job.json"
    ).is_file() else shutil.copytree(run.folder, runs / "monday" / "evidence", symlinks=True)
    shell.follow(*questions(shell, "monday"), *questions(shell, "last"))


@pytest.mark.parametrize("run", runs())
def test_suggestions_about_evidence_and_logs_of_others_work(run: PooledRun, shell: Shell) -> None:
    place = "theirs" if run.kind is Kind.EVIDENCE else "some logs"
    shutil.copytree(run.folder, shell.folder / place, symlinks=True)
    shell.follow(*questions(shell, shlex.quote(place)))


@pytest.mark.rare
@pytest.mark.parametrize("run", [run for run in runs() if run.name in ("demo", "public-logs")])
def test_suggestions_about_an_archive_work(run: PooledRun, shell: Shell) -> None:
    shutil.make_archive(str(shell.folder / "sent"), "gztar", run.folder.parent, run.folder.name)
    shell.follow(*questions(shell, "sent.tar.gz"))


def test_suggestions_about_logs_with_a_bad_node_work(shell: Shell) -> None:
    """The ticket is written into the working folder, because logs have no folder of a run."""
    nccl_logs.corpus(shell.folder / "some logs", nccl_logs.slow("node3", share=0.7))
    shell.follow(*questions(shell, "'some logs'"))
    followed = shell.follow("explain 'some logs' node3")
    assert followed["ticket 'some logs' node3"].out.split() == [
        "tickets/node3.md",
        "tickets/node3.zip",
    ]
    with zipfile.ZipFile("tickets/node3.zip") as archive:
        assert any(name.endswith("_node3.log") for name in archive.namelist())


def test_suggestions_after_the_demo_work(shell: Shell) -> None:
    followed = shell.follow("demo --no-open", "list runs", "list runs --json")
    assert {"explain demo gpu17", "ticket demo gpu17"} <= set(followed)


def test_examples_in_the_help_work(shell: Shell) -> None:
    """Those that need no run, file, host or cluster of the reader are executed, runs as a dry run.

    The help of single commands is part of the sources, which another test reads.
    """
    for command in ("help", "help all"):
        shown = [*shell.suggestions(command, shell.call(command))]
        assert len(shown) > 5
        for example in shown:
            parse(example)
            if example.split()[0] in ("demo", "help", "render", "run", "show"):
                if re.search("--(site|partition|hosts)|COMMAND", example):
                    continue
                dry = example.startswith("run") and "--dry-run" not in example
                done = shell.call(example + " --dry-run" * dry)
                assert done.error == "", (example, done.err)


@pytest.mark.rare
def test_the_suggestions_of_the_demo_work_without_the_program_on_path(tmp_path: Path) -> None:
    """As after `make demo`: the program is in `.venv/bin`, and PATH has no such folder."""
    program = installed("accept")
    (tmp_path / ".venv").symlink_to(program.parent.parent)
    own = {"HOME": str(tmp_path), "PATH": "/usr/bin:/bin", "ACCEPT_RUNS": str(tmp_path / "runs")}
    demo = bash(".venv/bin/accept demo --no-open", tmp_path, **own)
    lines = [
        line.strip()
        for line in demo.stdout.partition("DO NOW\n")[2].partition("\n\n")[0].splitlines()
    ]
    commands = [line.partition("   ")[0] for line in lines]
    assert commands
    for command in commands:
        assert command.startswith(".venv/bin/accept "), command
        done = bash(command, tmp_path, **own)
        assert done.returncode == 0, (command, done.stderr)


#: Examples of what the reader fills in, by command, and words after a command that are dropped.
EXAMPLES = (
    (r" (?:tries again|where that volume is mounted|…)$", ""),
    (r"^ticket (?:X|RUN) NODE --collect", "ticket ended $(hostname) --collect"),
    (r"\bnode17\b|\bNODE\b", "gpu17"),
    (r"gs://BUCKET/PATH", "$PWD/shared"),
    (r"\bFILE\b", "nodes.txt"),
    (r"--site site.yaml", "--site shared/site.yaml"),
    (r"> site.yaml", "> example.yaml"),
    (r"--partition gpu --nodes 16", "--partition gpu --nodes 2"),
    (r"^(init\b.*)", r"\1 --dry-run"),
    (r"^list nodes( -m gpu)?", "list nodes --partition gpu"),
    (r"^pick ", "pick --hosts node[01-66] -m cpu "),
    (r"^(diff \S+) last", r"\1 demo"),
    (r"^ticket X$", "ticket demo gpu17"),
    (r"^judge -$", "judge - < my-logs/$(ls my-logs | head -n 1)"),
    (r"\bIMG\b|\bIMAGE\b", "registry.example/accept:1"),
    (r"^help COMMAND", "help judge"),
    (r"^list X", "list machines"),
    (r"^show check \S+", "show check gemm"),
    (r"^show suite NAME", "show suite quick"),
    (r"^show machine \S+", "show machine cpu"),
    (r"^show error X", "show error E-USAGE"),
    (r"^show cause X", "show cause rank-hung"),
    (r"^doctor --hosts X", "doctor --hosts h1"),
    (r"^run --machine X", "run --machine cpu"),
    (r"^run --inject X", "run --inject hang"),
    (r"^(watch|collect|cancel|clean) (?:last|X|NAME|RUN)", r"\1 ended"),
    (r"^(watch|collect|cancel)$", r"\1 ended"),
    (r"^(retest|ticket|explain) X X", r"\1 demo gpu17"),
    (r"^(ticket|baseline|show nodes|explain|judge|report) (?:X|RUN|last)\b", r"\1 demo"),
    (r"^(judge|report) FOLDER", r"\1 monday"),
    (r"^submit (?:X|FOLDER)", "submit rendered"),
    (r"^list runs X", 'list runs "$PWD"'),
    (r"^report (.*) > X", r"report \1 > page.html"),
)


#: What the reader has: a simulated run, one that was measured here, evidence, logs and a site file.
SETUP = (
    "accept demo --no-open",
    'cp -r "$ACCEPT_RUNS/demo" "$ACCEPT_RUNS/monday" && cp -r "$ACCEPT_RUNS/demo" monday',
    "accept run --machine cpu --only inventory --attempt ended",
    "mkdir my-logs && cp monday/evidence/logs/50-collectives-pairs/* my-logs",
    "accept render -m cpu --out rendered",
    "mkdir shared && accept init --hosts 'node[01-16]' --dry-run > shared/site.yaml",
)
#: Commands that measure or start a run, so they are only planned.
PLANNED = r"^((?:run|drill|gate|pick|submit)\b(?!.* --dry-run).*?)(?= -- |$)"
#: Commands that a text only names, without what they are about.
NAMED = ("baseline", "clean", "render", "judge", "doctor", "init", "collect")


#: Errors about the example, which the text could not know: this machine has no GPU, its run accuses
#: nobody, and the simulated one accuses a node.
OF_THE_EXAMPLE = (
    "E-LOCAL-NO-GPU",
    "E-RUN-NO-SUSPECT",
    "E-BASELINE-DIVIDED",
    "E-FAULT-SYNTAX",
    "E-KUBE-NOT-FOUND",
    "E-SITE-NO-IMAGE",
)


def example_of(command: str) -> str:
    """Return a suggested command with examples of what its reader fills in."""
    for pattern, value in EXAMPLES:
        command = re.sub(pattern, value, command)
    return re.sub(PLANNED, r"\1 --dry-run", command)


@cache
def examples_in_sources() -> dict[str, str]:
    """Return an example of each command in the texts of the program, with its first place."""
    return {example_of(text): place for place, text in reversed([*in_sources()])}


#: The commands in the texts of the program are executed in parts.
_PARTS = 6


@pytest.fixture(scope="module")
def reader(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, dict[str, str]]]:
    """Return a folder with what the reader has, and the environment of the reader's shell.

    Its hosts, Slurm and Kubernetes are stand-ins.
    """
    place = tmp_path_factory.mktemp("reader")
    made = place / "here"
    made.mkdir()
    with api_server() as kubernetes:
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("XDG_CONFIG_HOME", str(place / "config"))
            patch.setenv("ACCEPT_RUNS", str(place / "runs"))
            patch.setenv("HOME", str(place / "home"))
            standin_ssh(place / "ssh", patch)
            slurm = StandinSlurm(place / "slurm")
            path = f"{installed('accept').parent}:{slurm.folder}:{os.environ['PATH']}"
            patch.setenv("PATH", path)
            patch.setenv("KUBECONFIG", str(kubernetes.kubeconfig(place)))
            for line in SETUP:
                done = bash(line, made)
                assert done.returncode in (0, 3), (line, done.stderr)
            # The other tests of this file need a PATH without `accept`.
            environment = dict(os.environ)
        yield made, environment


@pytest.mark.real
@pytest.mark.sampled
@pytest.mark.parametrize("part", range(_PARTS))
def test_each_command_in_the_texts_of_the_program_works_in_a_real_shell(
    part: int, reader: tuple[Path, dict[str, str]]
) -> None:
    """Nothing is measured or changed on the hosts, Slurm and Kubernetes."""
    folder, environment = reader
    places = examples_in_sources()
    commands = [c for c in places if c not in NAMED and not c.startswith("retest")]
    assert len(commands) > 70
    failed = []
    for command in commands[part::_PARTS]:
        done = bash(f"accept {command}", folder, **environment)
        errors = re.findall(r"^error\[(.*?)\]|^(Traceback)", done.stderr, re.MULTILINE)
        if any(code not in OF_THE_EXAMPLE for code, _ in errors):
            failed.append(f"{places[command]}: accept {command}\n{done.stderr}")
    assert not failed, "\n".join(failed)


@pytest.mark.real
@pytest.mark.parametrize(
    ("site", "options"),
    [
        ("", ("--set", "site.controller=jobset")),
        ("", ()),
        ("  suspend: true\n", ()),
        ("results: {location: gs://bucket/p}\n", ()),
    ],
    ids=["jobset", "job", "suspended", "bucket"],
)
def test_the_commands_of_the_notes_work(
    site: str, options: tuple[str, ...], write: Write, tmp_path: Path
) -> None:
    """`kubectl` is a stand-in whose pod is created only after it was asked three times."""
    kubectl = tmp_path / "bin" / "kubectl"
    kubectl.parent.mkdir()
    kubectl.write_text(KUBECTL)
    kubectl.chmod(0o755)
    kinds = ("--set", "site.controller=job,attempt=a1", *options)
    done = call(4, "install", "mytest", CHART, "-f", write(site=site), "--dry-run=client", *kinds)
    assert done.returncode == 0, done.stderr
    notes = done.stdout.partition("NOTES:")[2]
    assert suggested(notes)
    for command in suggested(notes):
        parse(command)
    commands = re.findall(r"^.*?\b((?:until|test|kubectl -n|helm -n) .*)", notes, re.MULTILINE)
    assert len(commands) > 4
    watch = next(command for command in commands if command.endswith(" -f"))
    for command in commands:
        subprocess.run(["bash", "-n", "-c", command], check=True)
    followed = subprocess.run(
        ["bash", "-c", watch.replace("sleep 5", "sleep 0")],
        env={"PATH": f"{kubectl.parent}:/usr/bin:/bin", "STATE": str(tmp_path / "state")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (followed.returncode, followed.stdout) == (0, "the log\n"), followed.stderr


def test_each_suggestion_of_the_program_can_be_parsed() -> None:
    wrong = []
    for place, command in in_sources():
        try:
            parse(command)
        except typer.TyperException as error:
            # Only the running program knows the value.
            if f"'{VALUE}'" not in error.format_message():
                wrong.append(f"{place}: accept {command}: {error.format_message()}")
    assert wrong == []
