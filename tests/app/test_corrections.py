"""A refused command line is answered with the command that was meant, and that command works."""

from __future__ import annotations

import os
import re
import shlex
import sys
from pathlib import Path
from unittest import mock

import pytest
from tests.factories.command_line import SOURCE, accept
from tests.factories.shell import run_program
from tests.promises.suggestions import parse, suggested

from accept.app.corrections import COMMAND_WORDS, OPTION_WORDS, SITE_KEYS

#: What users type, and the command that the answer names. `demo` is the newest run; it accuses
#: gpu17.
MEANT = {
    "version": "--version",
    "status": "list runs",
    "status --json": "list runs --json",
    "logs demo": "judge demo",
    "open demo": "report demo",
    "rm demo": "clean demo --dry-run",
    "machines": "list machines",
    "gpu17": "explain last gpu17",
    "gemm": "show check gemm",
    "my-logs": "judge my-logs",
    "jugde demo": "judge demo",
    "ticket gpu17": "ticket last gpu17",
    "ticket demo": "ticket demo gpu17",
    "ticket demo --fabric": "ticket demo gpu17",
    "ticket": "ticket last gpu17",
    "explain gpu17": "explain last gpu17",
    "explain demo": "explain demo gpu17",
    "explain": "explain last gpu17",
    "report gpu17": "explain last gpu17",
    "judge gpu17": "explain last gpu17",
    "retest gpu17": "retest last gpu17",
    "judge demo.tgz": "judge demo",
    "verify /etc/passwd": "list runs",
    "report --html": "report --format html",
    "report --format json": "report --json",
    "report demo gpu17": "explain demo gpu17",
    "show": "show nodes last",
    "show nodes": "show nodes last",
    "show machine": "show machine a100-8",
    "show gemm": "show check gemm",
    "show gpu17": "explain last gpu17",
    "show demo": "show run demo",
    "show s3://b/runs/a": "judge s3://b/runs/a",
    "show run s3://b/runs/a": "judge s3://b/runs/a",
    "show hceck gemm": "show check gemm",
    "list": "list runs",
    "list machine": "list machines",
    "diff": "diff last last",
    "diff demo": "diff demo last",
    "schema": "show schema machine",
    "list nodes demo": "show nodes demo",
    "prune": "clean --folders --older-than 30d --dry-run",
    "delete": "clean last --dry-run",
    "judge --mahcine=h100-8": "judge --machine=h100-8",
    "run --host node01": "run --hosts node01",
    "run --host=node01": "run --hosts=node01",
    "run --hosts node01 node02 -m h100-8": "run --hosts node01,node02 -m h100-8",
    "run --only gemm memory": "run --only gemm,memory",
    "-N 64 -p gpu": "run -N 64 -p gpu",
    "run node[01-16]": "run --hosts 'node[01-16]'",
    "run gemm": "run --only gemm",
    "run standard": "run --suite standard",
    "run h100-8": "run --machine h100-8",
    "run --timeout 5m --hostfile=hosts.txt": "run --deadline 5m --hosts @hosts.txt",
}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder in which `accept demo` was run."""
    folder = tmp_path_factory.mktemp("place")
    (folder / "my-logs").mkdir()
    (folder / "hosts.txt").write_text("node01\n")
    with mock.patch.dict(os.environ, ACCEPT_RUNS=str(folder / "runs")):
        assert accept("demo", "--no-open", "-q").error == ""
    return folder


@pytest.fixture(autouse=True)
def _there(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(place)
    monkeypatch.setenv("ACCEPT_RUNS", str(place / "runs"))
    monkeypatch.setattr("accept.app.corrections.shutil.which", lambda _: None)


def answered(typed: str) -> str:
    """Return the first command in the answer to a refused line."""
    done = accept(*shlex.split(typed))
    assert done.error, f"{typed} works"
    (command, *_) = suggested(done.err)
    return command


@pytest.mark.sampled
@pytest.mark.parametrize("typed", MEANT)
def test_the_answer_names_a_command_that_works(typed: str) -> None:
    command = answered(typed)
    assert command == MEANT[typed]
    if command.startswith(("run", "retest", "clean", "judge my-logs", "judge s3:")):
        parse(command)
    else:
        done = accept(*shlex.split(command))
        assert done.error == "", done.err


@pytest.mark.parametrize("word", COMMAND_WORDS)
def test_commands_of_other_tools_are_answered(word: str) -> None:
    command = answered(word)
    wanted = COMMAND_WORDS[word]
    assert command.startswith("explain last gpu17" if word in ("why", "blame") else wanted)
    if command != "--version":
        parse(command)


@pytest.mark.parametrize(("typed", "meant"), {"nodes": "list nodes", "rendr": "render"}.items())
def test_help_of_an_unknown_command_is_answered_like_the_command(typed: str, meant: str) -> None:
    assert f"did you mean: accept {meant};" in accept(typed, "--help").err


@pytest.mark.parametrize("option", SITE_KEYS)
def test_an_option_that_is_a_setting_of_the_site_names_its_key(option: str) -> None:
    error = accept("render", option, "x").err
    key = SITE_KEYS[option]
    assert f"in the site file: {key}; " in error
    assert re.search(
        rf"^ *#? *{key.rpartition('.')[2]}:", accept("show", "site", "example").out, re.M
    )


@pytest.mark.parametrize("option", ["--project", "--zone"])
def test_an_option_that_is_not_similar_is_not_corrected(option: str) -> None:
    assert "did you mean" not in accept("render", option, "x").err


@pytest.mark.parametrize("option", OPTION_WORDS)
def test_options_of_other_tools_are_answered(option: str) -> None:
    """On the first of some commands that has the option that replaces it."""
    template = OPTION_WORDS[option]
    own, _, value = template.partition(" ")
    given = {"--gpus-per-node": "4", "--deadline": "5m", "--time": "5m"}.get(own, "text")
    typed = f"{option} {given}" if value.endswith("VALUE") else option
    for command in ("run", "report", "render"):
        meant = f"{command} {template.replace('VALUE', given)}".strip()
        if meant in suggested(accept(command, *shlex.split(typed)).err):
            return parse(meant)
    raise AssertionError(f"{option} has no answer")


def test_a_node_count_alone_is_for_slurm_where_its_programs_are(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    typed = ("run", "--nodes", "64", "--dry-run")
    init = "init --backend kubernetes"
    assert suggested(accept(*typed).err) == [init]
    monkeypatch.setattr("accept.app.corrections.shutil.which", {"sinfo": "/bin/sinfo"}.get)
    assert suggested(accept(*typed).err) == [init, "run --nodes 64 --dry-run --backend slurm"]


@pytest.mark.rare
def test_a_threshold_without_quotes_is_recognized_in_a_shell() -> None:
    """The shell makes a file of the part after `>`."""
    command = f"{shlex.quote(sys.executable)} -m accept judge --expect all-reduce>=380"
    done = run_program(["sh", "-c", command], env={**os.environ, "PYTHONPATH": str(SOURCE)})
    assert Path("=380").is_file()
    (meant,) = suggested(done.stderr, re.findall(r"\S+ -m accept", done.stderr)[0])
    assert meant == "judge --expect 'all-reduce>=380'"


def test_a_setting_of_nccl_without_its_prefix_is_answered_with_the_option() -> None:
    assert "did you mean: --nccl NCCL_DEBUG=INFO\n" in accept("run", "--nccl", "DEBUG=INFO").err


def test_nothing_is_suggested_for_a_line_that_means_nothing_here() -> None:
    assert suggested(accept("qwxyz").err) == ["help all"]
    assert suggested(accept("--yes").err) == ["--help"]
    assert suggested(accept("run", "--qwxyz").err) == ["run --help"]
