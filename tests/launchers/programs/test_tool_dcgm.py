"""The tool `dcgm` with a stand-in for dcgmi that prints outputs of tests/data/foreign/dcgm."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.factories.paths import PROGRAMS, ROOT

from accept.config.tools import tool_of
from accept.core.serde import to_json
from accept.core.tool_output import parse

DCGM = ROOT / "tests/data/foreign/dcgm"


@pytest.mark.parametrize(
    ("sample", "status", "expected"),
    [
        ("dcgm3-pass.json", 0, []),
        ("dcgm4-memory.json", 205, [("gpu-diagnostic", "3", "faulty memory on GPU 3")]),
        ("dcgm3-pcie.json", 226, [("gpu-diagnostic", "1", "PCIe link width 8 is below")]),
        ("dcgm4-runtime.json", 1, [("tool-unusable", None, "status 1")]),
        ("table-not-ready.txt", 0, [("wrong-command", None, "not JSON")]),
    ],
)
def test_what_dcgmi_reports_names_the_gpu(
    sample: str, status: int, expected: list[tuple[str, str | None, str]], tmp_path: Path
) -> None:
    loaded = tool_of("dcgm", "")
    assert loaded is not None
    tool = loaded.value.planned({"level": 2}, None)
    assert tool.command == ("dcgmi", "diag", "-r", "2", "-j")
    stand_in = tmp_path / "dcgmi"
    version = "[ $1 = --version ] && echo version: 4.2.3 && exit"
    stand_in.write_text(f"#!/bin/sh\n{version}\ncat {DCGM / sample}\nexit {status}\n")
    stand_in.chmod(0o755)
    spec = tmp_path / "tool.json"
    spec.write_text(to_json(tool))
    done = subprocess.run(
        [sys.executable, PROGRAMS / "tool.py", spec],
        capture_output=True,
        check=True,
        env={**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"},
    )
    problems = parse([done.stdout], tool).problems
    assert len(problems) == len(expected), problems
    for problem, (cause, gpu, words) in zip(problems, expected, strict=True):
        assert (problem.cause, problem.gpu) == (cause, gpu)
        assert words in problem.message
