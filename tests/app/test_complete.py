"""Completion in a real bash: the names of everything, and silence if something is wrong."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest
from tests.factories import sample_evidence
from tests.factories.command_line import installed, trust
from tests.factories.shell import run_program

from accept import config
from accept.config import tools
from accept.config.explanations import explanations
from accept.core import causes, evidence
from accept.core.catalog.faults import FAULTS
from accept.evidence import rundir

BASH = shutil.which("bash")
NAMES = ("accept", "gpu-accept")


@pytest.fixture(autouse=True)
def home(runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Work in an empty folder, and with an empty folder of runs."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def complete(*words: str, name: str = "accept") -> list[str]:
    """Return what a real bash completes after the words; the last is what was typed so far."""
    if BASH is None:
        pytest.skip("no bash")
    program = installed(name)
    script = f"""
        eval "$({name} --show-completion bash)"
        COMP_WORDS=({" ".join(f"'{word}'" for word in (name, *words))})
        COMP_CWORD={len(words)}
        function=$(complete -p {name} | sed 's/.*-F \\([^ ]*\\).*/\\1/')
        "$function" {name}
        printf '%s\\n' "${{COMPREPLY[@]}}"
    """
    done = run_program(
        [BASH, "--norc", "--noprofile", "-c", script],
        env={**os.environ, "PATH": f"{program.parent}:{os.environ['PATH']}", **SHELL},
    )
    assert done.stderr == ""
    return [line for line in done.stdout.splitlines() if line]


#: Without it, Typer asks for the parent process, which is bash only in a terminal.
SHELL = {"_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION": "1"}


def write_run(folder: Path, *hosts: str) -> None:
    """Write the job of a run on these hosts."""
    folder.mkdir(parents=True)
    (folder / rundir.JOB).write_text(json.dumps({"hosts": hosts}))


@pytest.mark.sampled
@pytest.mark.parametrize("name", NAMES)
def test_commands_and_options_are_completed(name: str) -> None:
    assert complete("co", name=name) == ["collect"]
    assert complete("run", "--mac", name=name) == ["--machine"]
    assert complete("help", "ren", name=name) == ["render"]


@pytest.mark.sampled
@pytest.mark.parametrize(
    ("words", "names"),
    [
        (["show", "machine", ""], config.names("machines")),
        (["run", "--machine", ""], config.names("machines")),
        (["run", "-m", ""], config.names("machines")),
        (["judge", "x", "--machine", ""], config.names("machines")),
        (["show", "suite", ""], config.names("suites")),
        (["run", "--suite", ""], config.names("suites")),
        (["show", "check", ""], tools.check_names()),
        (["run", "--only", ""], tools.check_names()),
        (["show", "cause", ""], tuple(causes.Cause)),
        (["show", "fault", ""], tuple(FAULTS)),
        (["drill", "--faults", ""], tuple(FAULTS)),
        (["show", "error", "E-"], tuple(one for one in explanations() if one[:2] == "E-")),
        (["show", "backend", ""], ("local", "ssh", "slurm", "kubernetes")),
        (["show", "site", "ex"], ("example",)),
        (["show", "machine", "a4-"], ("a4-highgpu-8g",)),
        (["run", "--only", "gemm,me"], ("gemm,memory",)),
        (["run", "--only", "gemm,ge"], ()),
        (["report", ""], ("last",)),
        (["explain", "no-such-run", ""], ()),
        (["show", "nothing", ""], ()),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_names_are_completed(words: list[str], names: tuple[str, ...]) -> None:
    assert complete(*words) == [str(name) for name in names]


@pytest.mark.parametrize("words", [["--machine", "=", "a4-"], ["--machine", "=", ""]])
def test_a_value_after_an_equals_sign_is_completed(words: list[str]) -> None:
    """Bash makes three words of --machine=a4-."""
    assert "a4-highgpu-8g" in complete("run", *words)


class TestRuns:
    def test_are_completed_newest_first(self, runs: Path) -> None:
        for age, name in enumerate(("monday", "tuesday")):
            write_run(runs / name)
            os.utime(runs / name, ns=(age, age))
        for words in (["judge", ""], ["watch", ""], ["show", "run", ""], ["explain", ""]):
            assert complete(*words) == ["last", "tuesday", "monday"]


class TestHosts:
    def test_of_a_run_are_those_of_its_evidence(self, runs: Path) -> None:
        sample_evidence.write(runs / "one" / "evidence")
        hosts = evidence.read_verdict(runs / "one" / "evidence").hosts
        assert complete("explain", "one", "") == [*hosts]
        assert complete("ticket", "last", "") == [*hosts]

    @pytest.mark.rare
    def test_of_earlier_runs_and_of_the_site_file_are_completed(
        self, runs: Path, home: Path
    ) -> None:
        write_run(runs / "one", "node1", "node2")
        trust(home / "site.yaml", "ssh: {hosts: ['gpu[1-2]']}\n")
        assert complete("run", "--hosts", "") == ["gpu1", "gpu2", "node1", "node2"]
        assert complete("run", "--hosts", "node1,no") == ["node1,node2"]
        (home / "site.yaml").write_text("ssh: {hosts: [changed]}\n")
        assert complete("run", "--hosts", "") == ["node1", "node2"]

    def test_that_a_shell_would_execute_are_left_out(self, runs: Path) -> None:
        write_run(runs / "one", "$(touch bad)", "`id`", "a b", "*", "-x", "node1")
        assert complete("run", "--hosts", "") == ["node1"]


@pytest.mark.rare
def test_an_error_prints_nothing(runs: Path, home: Path) -> None:
    (home / "site.yaml").write_text("[")
    assert complete("run", "--hosts", "") == []
    write_run(runs / "one")
    (runs / "one" / rundir.JOB).write_text("[")
    (home / "site.yaml").unlink()
    assert complete("run", "--hosts", "") == []


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    ("shell", "sign"), [("bash", "complete "), ("zsh", "#compdef"), ("fish", "complete ")]
)
def test_a_script_is_printed_for_each_shell(name: str, shell: str, sign: str) -> None:
    done = run_program(
        [installed(name), "--show-completion", shell], env={**os.environ, **SHELL}, check=True
    )
    assert sign in done.stdout
    assert name in done.stdout
