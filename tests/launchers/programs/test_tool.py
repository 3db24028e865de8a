"""tool.py with real programs: each way to end badly is one clear problem, and nothing is left."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from tests.cluster.runs import until
from tests.factories.paths import PROGRAMS

from accept.core.causes import Cause
from accept.core.plan import Tool, ToolNeeds, ToolResult
from accept.core.records import Parsed
from accept.core.serde import to_json
from accept.core.tool_output import parse

SPEED = ToolResult(name="speed", unit="GB/s", line="Speed: {value} {unit}")
BIT = ToolResult(name="bit", unit="GB/s", json="/jobs/0/bw")


def tool_of(*command: str, **more: Any) -> Tool:
    own = {"timeout": 20.0, "cause": Cause.WRONG_RESULT, "meaning": "a disk is bad"}
    return Tool(**{"name": "t", "command": command, **own, **more})


def start(tool: Tool, folder: Path) -> subprocess.Popen[bytes]:
    spec = folder / "tool.json"
    spec.write_text(to_json(tool))
    return subprocess.Popen(
        [sys.executable, PROGRAMS / "tool.py", spec], stdout=subprocess.PIPE, cwd=folder
    )


def ran(tool: Tool, folder: Path) -> Parsed:
    process = start(tool, folder)
    out, _ = process.communicate()
    assert process.returncode == 0
    return parse([out], tool)


def marked(mark: str) -> list[int]:
    """Return the processes whose command line has a mark."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            found += [int(path.parent.name)] if mark.encode() in path.read_bytes() else []
    return found


def test_results_are_read_and_its_folder_is_removed(tmp_path: Path) -> None:
    script = 'cd "$1" && echo 1 > data && echo "warning" && echo \'{"jobs":[{"bw":"2.5"}]}\''
    place = tmp_path / "disk"
    place.mkdir()
    tool = tool_of(
        *("sh", "-c", script, "sh", "{folder}"),
        folder=str(place),
        needs=ToolNeeds(space=1),
        results=(BIT,),
    )
    parsed = ran(tool, tmp_path)
    assert [(m.name, m.value, m.unit) for m in parsed.metrics] == [("bit", 2.5, "GB/s")]
    assert parsed.problems == ()
    assert [*place.iterdir()] == []


CASES = {
    "missing": (
        tool_of("no-such-tool", install="apt-get install it"),
        "tool-missing",
        "install it",
    ),
    "old": (tool_of("true", version=("echo", "3.9"), least="3.10"), "tool-unusable", "3.9 is too"),
    "long version": (
        tool_of("true", version=("printf", "1.%05000d", "7"), least="1.0"),
        "tool-unusable",
        "prints no version: 1.000",
    ),
    "version without a library": (
        tool_of("true", version=("sh", "-c", "echo libx.so.12.4: no such file; exit 127")),
        "tool-unusable",
        "prints no version: libx.so.12.4: no such file",
    ),
    "library": (
        tool_of("sh", "-c", "echo libx.so: no such file >&2; exit 127"),
        "tool-unusable",
        "library that it needs, cannot be started (libx.so: no such file)",
    ),
    "device": (
        tool_of("true", needs=ToolNeeds(devices=("/dev/nothing",))),
        "tool-unusable",
        "/dev/nothing",
    ),
    "no folder": (tool_of("true", folder="/nowhere"), "tool-unusable", "No such file"),
    "no space": (
        tool_of("true", folder="/tmp", needs=ToolNeeds(space=1 << 60)),
        "tool-unusable",
        "GB needed",
    ),
    "status": (
        tool_of("sh", "-c", "echo bad block >&2; exit 4"),
        "wrong-result",
        "status 4 (bad block): a disk is bad",
    ),
    "signal": (
        tool_of("sh", "-c", "echo no memory >&2; kill -9 $$"),
        "tool-failed",
        "signal 9 ended it (no memory)",
    ),
    "endless": (tool_of("yes", results=(SPEED,)), "tool-failed", "did not stop printing"),
    "endless line": (tool_of("cat", "/dev/zero"), "tool-failed", "did not stop printing"),
    "wrong pointer": (
        tool_of("echo", '{"jobs": [{"iops": 1}]}', results=(BIT,)),
        "wrong-command",
        "/jobs/0 has no 'bw'; it has iops",
    ),
    "no number": (
        tool_of("echo", '{"jobs": [{"bw": null}]}', results=(BIT,)),
        "wrong-command",
        "null, not a number",
    ),
    "no JSON": (tool_of("echo", "bw=1", results=(BIT,)), "wrong-command", "not JSON"),
    "wrong unit": (
        tool_of("echo", "Speed: 3 MB/s", results=(SPEED,)),
        "wrong-command",
        "in MB/s, not in GB/s",
    ),
    "no line": (tool_of("echo", "Sped: 3", results=(SPEED,)), "wrong-command", "no line"),
}


@pytest.mark.parametrize("content", [b"\x7fELF broken", b"#!/no/such/shell\n"])
def test_a_program_that_cannot_be_started_is_not_tested(content: bytes, tmp_path: Path) -> None:
    program = tmp_path / "broken"
    program.write_bytes(content)
    program.chmod(0o755)
    (problem,) = ran(tool_of(str(program)), tmp_path).problems
    assert (problem.cause, "cannot be started" in problem.message) == ("tool-unusable", True)


@pytest.mark.parametrize("name", CASES)
def test_each_bad_end_is_one_clear_problem(name: str, tmp_path: Path) -> None:
    tool, cause, words = CASES[name]
    parsed = ran(tool, tmp_path)
    (problem,) = parsed.problems
    assert problem.cause == cause
    assert words in problem.message
    # Only its own status means that.
    assert (tool.meaning in problem.message) == (name == "status")
    assert parsed.metrics == ()


def test_a_tool_that_hangs_is_ended_with_all_its_processes(tmp_path: Path) -> None:
    mark = f"86{os.getpid()}"
    script = f'trap "" TERM; setsid sleep {mark} & sleep {mark}'
    (problem,) = ran(tool_of("sh", "-c", script, timeout=1.0), tmp_path).problems
    assert (problem.cause, "did not end within 1 s" in problem.message) == ("tool-failed", True)
    assert marked(mark) == []


@pytest.mark.parametrize("output", ["", ">/dev/null 2>&1"])
def test_a_tool_that_forks_and_stays_does_not_pass(output: str, tmp_path: Path) -> None:
    mark = f"87{os.getpid()}"
    script = f"setsid sleep {mark} {output} & echo Speed: 3 GB/s"
    parsed = ran(tool_of("sh", "-c", script, results=(SPEED,)), tmp_path)
    (problem,) = parsed.problems
    assert problem.cause == "tool-failed"
    assert "left something behind: sleep" in problem.message
    assert marked(mark) == []


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_killed_run_leaves_no_files(number: int, tmp_path: Path) -> None:
    place = tmp_path / "disk"
    place.mkdir()
    script = 'cd "$1"; echo data > file; echo started; sleep 600'
    tool = tool_of("sh", "-c", script, "sh", "{folder}", folder=str(place))
    with start(tool, tmp_path) as process:
        assert process.stdout is not None
        while b"out| started" not in process.stdout.readline():
            pass
        assert len([*place.rglob("file")]) == 1
        process.send_signal(number)
    until(lambda: not [*place.iterdir()])
    # KILL leaves the processes of the tool to the run's own kill.sh.
    for pid in marked(str(place)) if number == signal.SIGKILL else ():
        os.kill(pid, signal.SIGKILL)
    until(lambda: not marked(str(place)))


def test_output_is_evidence_and_cannot_forge_records(tmp_path: Path) -> None:
    forged = json.dumps({"metric": "speed", "value": 9, "unit": "GB/s"})
    long = "x" * 20_000
    tool = tool_of("printf", "ACCEPT %s\nSpeed: 3 GB/s\n%s\n", forged, long, results=(SPEED,))
    process = start(tool, tmp_path)
    out, _ = process.communicate()
    assert [m.value for m in parse([out], tool).metrics] == [3.0]
    copied = [line for line in out.splitlines() if line.startswith(b"tool out")]
    assert b"".join(copied).count(b"x") == len(long)


# Pairs


def ran_as_pair(tool: Tool, folder: Path) -> Parsed:
    """Run both hosts of a pair on this one."""
    spec = folder / "tool.json"
    spec.write_text(to_json(tool))
    processes = []
    for rank in ("0", "1"):
        ranks = {f"OMPI_COMM_WORLD_{name}": rank for name in ("RANK", "LOCAL_RANK")}
        sizes = {f"OMPI_COMM_WORLD_{name}": "2" for name in ("SIZE", "LOCAL_SIZE")}
        env = {**os.environ, **ranks, **sizes, "ACCEPT_PEERS": "127.0.0.1 127.0.0.1"}
        env |= {"ACCEPT_HOST": f"h{rank}"}
        command = [sys.executable, str(PROGRAMS / "tool.py"), str(spec)]
        processes.append(subprocess.Popen(command, env=env, stdout=subprocess.PIPE, cwd=folder))
    outputs = [process.communicate()[0] for process in processes]
    assert [process.returncode for process in processes] == [0, 0]
    return parse(outputs, tool)


LISTEN = "import socket, time; s = socket.create_server(('', {port})); "
CONNECT = "import socket; socket.create_connection(('{peer}', {port})); "
PYTHON = (sys.executable, "-c")


def pair_of(server: str, client: str, port: int) -> Tool:
    return tool_of(*(*PYTHON, client), server=(*PYTHON, server), port=port, results=(SPEED,))


def tool_port() -> int:
    """Return a free port whose next one is free as well."""
    while True:
        with socket.create_server(("", 0)) as found:
            port = int(found.getsockname()[1])
            with contextlib.suppress(OSError, OverflowError), socket.create_server(("", port + 1)):
                return port


PAIRS = {
    "served": (LISTEN + "s.accept()", CONNECT + "print('Speed: 3 GB/s')", ""),
    "server stays": (LISTEN + "time.sleep(600)", CONNECT + "print('Speed: 3 GB/s')", ""),
    "client fails": (LISTEN + "s.accept()", CONNECT + "exit(3)", "status 3"),
    "server fails": ("exit(4)", "print('Speed: 3 GB/s')", "status 4"),
    "server fails later": (LISTEN + "s.accept(); exit(5)", CONNECT + "exit(3)", "status"),
}


@pytest.mark.parametrize("name", PAIRS)
def test_the_end_of_a_pair_is_a_figure_or_a_problem_of_neither_host(
    name: str, tmp_path: Path
) -> None:
    server, client, words = PAIRS[name]
    parsed = ran_as_pair(pair_of(server, client, tool_port()), tmp_path)
    assert [m.value for m in parsed.metrics] == ([] if words else [3.0])
    assert bool(parsed.problems) == bool(words), parsed.problems
    assert all(words in p.message and p.host is None for p in parsed.problems)


def test_a_host_of_a_pair_without_the_tool_is_named_and_the_other_one_is_not(
    tmp_path: Path,
) -> None:
    tool = tool_of("echo", "Speed: 3 GB/s", server=("no-such-tool",), port=tool_port())
    (problem,) = ran_as_pair(tool, tmp_path).problems
    assert (problem.cause, problem.host) == (Cause.TOOL_MISSING, "h1")
