"""Files that a user or another file names: pipes with names of their own are not waited for."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
from tests.factories.command_line import SOURCE, accept, program
from tests.factories.shell import run_program

pytestmark = pytest.mark.usefixtures("runs")

COMMANDS = [
    "show machine {pipe}",
    "run --machine {pipe} --dry-run",
    "run --machine cpu --suite {pipe} --dry-run",
    "run --machine cpu --site {pipe} --dry-run",
    "run --machine cpu --hosts @{pipe} --dry-run",
    "run --machine cpu --site {site} --dry-run",
    "show machine {base}",
]


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ACCEPT_RUNS", str(tmp_path / "runs"))


@pytest.mark.sampled
@pytest.mark.parametrize("command", COMMANDS)
def test_a_pipe_is_refused_at_once(command: str, tmp_path: Path) -> None:
    pipe, site, base = (tmp_path / name for name in ("p.yaml", "site.yaml", "machine.yaml"))
    os.mkfifo(pipe)
    write_references(site, base, pipe)
    done = program(*command.format(pipe=pipe, site=site, base=base).split())
    assert (done.code, done.error) in ((2, "E-YAML-UNREADABLE"), (2, "E-HOSTLIST-FILE"))


def write_references(site: Path, base: Path, named: object) -> None:
    site.write_text(f'backend: ssh\nssh: {{hosts: ["@{named}"]}}\n')
    base.write_text(f"name: own\nbase: [{named}]\n")


@pytest.mark.rare
@pytest.mark.sampled
@pytest.mark.parametrize("name", ["/dev/stdin", "/dev/fd/0"])
@pytest.mark.parametrize("command", COMMANDS[-2:])
def test_only_the_command_line_can_name_an_inherited_pipe(
    command: str, name: str, tmp_path: Path
) -> None:
    site, base = tmp_path / "site.yaml", tmp_path / "machine.yaml"
    write_references(site, base, name)
    words = command.format(site=site, base=base).split()
    for_reading, for_writing = os.pipe()
    try:
        done = run_program(
            [sys.executable, "-m", "accept", *words],
            env={**os.environ, "PYTHONPATH": str(SOURCE)},
            stdin=for_reading,
        )
    finally:
        os.close(for_reading)
        os.close(for_writing)
    assert (done.returncode, "it is not a regular file" in done.stderr) == (2, True), done.stderr


@pytest.mark.sampled
@pytest.mark.parametrize(
    "command",
    [
        "show machine <(cat {machine})",
        "show machine /dev/stdin <{machine}",
        "run --machine cpu --hosts @<(echo h1) --dry-run",
        "run --site <(echo machine: cpu) --dry-run",
    ],
)
def test_a_pipe_of_the_shell_is_read(command: str, tmp_path: Path) -> None:
    machine = tmp_path / "machine.yaml"
    machine.write_text("name: own\nbase: [cpu]\n")
    words = command.format(machine=machine)
    done = run_program(
        ["bash", "-c", f"{sys.executable} -m accept {words}"],
        env={**os.environ, "PYTHONPATH": str(SOURCE)},
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("option", ["--machine", "--suite"])
def test_a_name_that_no_file_can_have_does_not_exist(option: str) -> None:
    kind = option.removeprefix("--").upper()
    done = accept("run", "--machine", "cpu", option, "n" * 571, "--dry-run")
    assert (done.code, done.error) == (2, f"E-{kind}-UNKNOWN")


def test_a_base_that_no_file_can_have_does_not_exist(tmp_path: Path) -> None:
    file = tmp_path / "machine.yaml"
    file.write_text(f"name: own\nbase: [{'n' * 571}]\n")
    assert accept("show", "machine", file).error == "E-MACHINE-BASE-UNKNOWN"
