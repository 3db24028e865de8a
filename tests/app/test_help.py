"""The help: short for the first minute, complete on request, under the name that was called."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest
from tests.factories.command_line import accept, installed, program, refused
from tests.factories.shell import run_program, write_program

from accept.app.commands import COMMANDS
from accept.app.help import COMMANDS as LISTED
from accept.app.help import TOPICS
from accept.core.error_codes import Code
from accept.core.errors import Exit

pytestmark = pytest.mark.usefixtures("runs")

MAIN = [name for topic in TOPICS for name in topic.main]


def listed(text: str) -> list[str]:
    """Return the names in the sections of commands."""
    sections = text.partition("Examples:\n")[2].partition("\n\n")[2].partition("\nMore:")[0]
    return re.findall(r"^  ([a-z]+) +[A-Z]", sections, re.MULTILINE)


def examples(text: str) -> list[str]:
    """Return the commands in the examples."""
    section = text.partition("Examples:\n")[2].partition("\n\n")[0]
    return re.findall(r"^  ((?:gpu-)?accept .*?)(?:  |$)", section, re.MULTILINE)


class TestTheShortHelp:
    def test_lists_about_twelve_commands(self) -> None:
        shown = listed(accept("--help").out)
        assert shown == MAIN
        assert 10 <= len(shown) <= 14

    @pytest.mark.parametrize("words", [[], ["help"], ["--help"], ["-h"]], ids=str)
    def test_is_shown_in_each_of_these_ways(self, words: list[str]) -> None:
        done = accept(*words)
        assert (done.code, done.out, done.err) == (0, accept("help").out, "")

    def test_shows_examples_first(self) -> None:
        text = accept("--help").out
        assert text.index("Examples:") < text.index("  doctor ")
        assert {example.split()[1] for example in examples(text)} <= set(COMMANDS)

    def test_leads_to_the_rest(self) -> None:
        text = accept("--help").out
        assert "accept help all" in text
        assert "accept help COMMAND" in text
        assert "gpu-accept" in text


class TestTheFullHelp:
    def test_lists_every_command_once(self) -> None:
        assert sorted(listed(accept("help", "all").out)) == sorted(COMMANDS)
        assert sorted(LISTED) == sorted(COMMANDS)

    def test_names_every_exit_code_and_no_other(self) -> None:
        text = accept("help", "all").out.partition("Exit codes:")[2]
        assert {int(code) for code in re.findall(r"\b\d+\b", text)} == {*map(int, Exit)}


class TestTheHelpOfACommand:
    @pytest.mark.parametrize("name", COMMANDS)
    def test_has_a_summary_and_an_example(self, name: str) -> None:
        for words in ((name, "--help"), (name, "-h"), ("help", name)):
            done = accept(*words)
            assert done.code == 0
            assert done.out.startswith(f"Usage: accept {name}")
            assert f"accept {name}" in done.out.partition("\n")[2]

    @pytest.mark.parametrize("name", COMMANDS)
    def test_names_the_values_of_options_in_words(self, name: str) -> None:
        options = accept("help", name).out.partition("\nOptions:")[2]
        values = re.findall(r"^  (?:-\w, )?--[a-z-]+ (\S+)", options, re.MULTILINE)
        assert [value for value in values if not re.fullmatch(r"[A-Z][A-Z.=]*", value)] == []
        assert "TEXT" not in options

    def test_shows_the_options_of_a_run_in_groups(self) -> None:
        text = accept("help", "run").out
        titles = re.findall(r"^(\w.*):$", text, re.MULTILINE)
        assert {"What to test", "Checks", "Time limits", "Slurm", "Kubernetes"} <= set(titles)

    def test_is_suggested_for_an_unknown_option(self) -> None:
        shown = refused("run", "--machin", "cpu", error="E-USAGE")
        assert "--machine" in shown
        assert "accept run --help" in shown


@pytest.mark.parametrize("words", [["help"], ["help", "all"], *(["help", n] for n in COMMANDS)])
def test_every_help_fits_80_columns(words: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    assert max(map(len, accept(*words).out.splitlines())) <= 80


@pytest.mark.parametrize(
    ("words", "meant"),
    [(["rendr"], "render"), (["jud"], "judge"), (["help", "ren"], "render"), (["re"], "report")],
)
def test_an_unknown_command_is_refused_with_the_nearest(words: list[str], meant: str) -> None:
    shown = refused(*words, error="E-USAGE")
    assert meant in shown
    assert "accept help all" in shown


class TestTheCalledName:
    @pytest.mark.sampled
    @pytest.mark.parametrize("name", ["accept", "gpu-accept"])
    @pytest.mark.parametrize("kind", ["on PATH", "below here", "elsewhere", "here"])
    def test_is_that_of_help_and_hints(self, name: str, kind: str, tmp_path: Path) -> None:
        """It is the name if the shell finds that, else the path; so a copied command works."""
        script = installed(name)
        work = tmp_path / "work"
        work.mkdir()
        path = "/usr/bin:/bin"
        called, shown = str(script), str(script)
        if kind == "on PATH":
            path, called, shown = f"{script.parent}:{path}", name, name
        if kind in ("below here", "here"):
            folder = work / "bin" if kind == "below here" else work
            folder.mkdir(exist_ok=True)
            (folder / name).symlink_to(script)
            called = shown = f"bin/{name}" if kind == "below here" else f"./{name}"

        def call(words: str) -> subprocess.CompletedProcess[str]:
            return run_program(
                ["/bin/bash", "-c", f"{called} {words}"],
                cwd=work,
                env={"PATH": path, "HOME": str(tmp_path)},
            )

        lines = call("help").stdout.partition("Examples:\n")[2].partition("\n\n")[0].splitlines()
        assert all(line.startswith(f"  {shown} ") for line in lines), lines
        assert call("help run").stdout.startswith(f"Usage: {shown} run")
        assert f" {shown} help all" in call("rendr").stderr
        assert f" {shown} submit " in call("render -m cpu -n 1 --out run").stderr

    def test_of_a_module_is_the_python_that_runs_it(self) -> None:
        assert re.match(r"Usage: \S*python\S* -m accept ", program("help").out)

    def test_of_another_program_first_on_path_is_a_warning_of_the_doctor(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        write_program(tmp_path / "accept", "")
        assert Code.NAME_TAKEN not in accept("doctor", "-m", "cpu").err
        monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
        assert Code.NAME_TAKEN in accept("doctor", "-m", "cpu").err
