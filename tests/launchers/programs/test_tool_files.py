"""The shipped tools with stand-ins that print the samples of tests/data/foreign."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from tests.factories.paths import ROOT
from tests.factories.programs import printed
from tests.factories.shell import write_program

from accept.config.tools import tool_of
from accept.core.plan import ParamValue
from accept.core.records import Parsed
from accept.core.serde import to_json
from accept.core.tool_output import parse

SAMPLES = ROOT / "tests/data/foreign"
BURN: dict[str, ParamValue] = {"kernel": "/opt/compare.ptx", "duration": 60}
#: TFLOP/s of the GPUs of gpu41.
ALL_FAULTY = [
    *(6.311, 6.44, 6.49, 6.457, 6.451, 6.454, 6.446, 6.461),
    *(6.48, 6.411, 6.66, 6.532, 6.523, 6.49, 6.432, 6.439),
]
HPL: dict[str, ParamValue] = {"path": "/tmp", "ranks": 8}


@pytest.mark.parametrize(
    ("name", "program", "params", "sample", "status", "expected", "values"),
    [
        ("dcgm", "dcgmi", {"level": 2}, "dcgm/dcgm3-pass.json", 0, [], []),
        (
            *("dcgm", "dcgmi", {"level": 2}, "dcgm/dcgm4-memory.json", 205),
            [("gpu-diagnostic", "3", "faulty memory on GPU 3")],
            [],
        ),
        (
            *("dcgm", "dcgmi", {"level": 2}, "dcgm/dcgm3-pcie.json", 226),
            [("gpu-diagnostic", "1", "PCIe link width 8 is below")],
            [],
        ),
        ("dcgm", "dcgmi", {"level": 2}, "dcgm/dcgm4-pass.json", 0, [], []),
        # Settings are not the fault of a GPU.
        (
            *("dcgm", "dcgmi", {"level": 1}, "dcgm/dcgm4-gb10.json", 226),
            [("tool-unusable", None, "Persistence mode for GPU 0 is disabled")],
            [],
        ),
        (
            *("dcgm", "dcgmi", {"level": 1}, "dcgm/dcgm4-persistence.json", 226),
            [("tool-unusable", None, f"mode for GPU {n} is disabled") for n in range(8)],
            [],
        ),
        (
            *("dcgm", "dcgmi", {"level": 3}, "dcgm/dcgm3-skip.json", 0),
            [("tool-unusable", None, "it tested nothing")],
            [],
        ),
        (
            *("dcgm", "dcgmi", {"level": 2}, "dcgm/dcgm4-runtime.json", 1),
            [("tool-unusable", None, "status 1")],
            [],
        ),
        (
            *("dcgm", "dcgmi", {"level": 2}, "dcgm/table-not-ready.txt", 0),
            [("wrong-command", None, "not JSON")],
            [],
        ),
        ("gpu-burn", "gpu_burn", BURN, "tools/gpu43-gpu-burn.txt", 0, [], [1.772]),
        ("gpu-burn", "gpu_burn", BURN, "tools/gpu42-gpu-burn-nothing.txt", 0, [], [0] * 8),
        ("gpu-burn", "gpu_burn", BURN, "tools/gpu47-gpu-burn.txt", 0, [], [359.999]),
        (
            *("gpu-burn", "gpu_burn", BURN, "tools/gpu41-gpu-burn.txt", 0),
            [("wrong-result", str(n), f"GPU {n} is FAULTY") for n in range(16)],
            ALL_FAULTY,
        ),
        ("hpl", "accept-mpirun", HPL, "tools/cpu40-hpl.out", 0, [], [0.017533, 0.017435]),
        (
            *("hpl", "accept-mpirun", HPL, "tools/cpu41-hpl-wrong.out", 0),
            [("wrong-result", None, "...... FAILED")],
            [0.017533],
        ),
    ],
)
def test_what_a_tool_prints_gives_figures_and_names_the_gpu(
    name: str,
    program: str,
    params: dict[str, ParamValue],
    sample: str,
    status: int,
    expected: list[tuple[str, str | None, str]],
    values: list[float],
    tmp_path: Path,
) -> None:
    loaded = tool_of(name, "")
    assert loaded is not None
    tool = loaded.value.planned(params, None)
    version = "[ $1 = --version ] && echo version: 4.2.3 && exit"
    write_program(tmp_path / program, f"{version}\ncat {SAMPLES / sample}\nexit {status}")
    spec = tmp_path / "tool.json"
    spec.write_text(to_json(tool))
    out = printed("tool.py", spec, PATH=f"{tmp_path}:{os.environ['PATH']}")
    parsed = parse([out.encode()], tool)
    assert [metric.value for metric in parsed.metrics] == pytest.approx(values)
    assert len(parsed.problems) == len(expected), parsed.problems
    for problem, (cause, gpu, words) in zip(parsed.problems, expected, strict=True):
        assert (problem.cause, problem.gpu) == (cause, gpu)
        assert words in problem.message


def read(name: str, out: str) -> Parsed:
    loaded = tool_of(name, "")
    assert loaded is not None
    lines = "".join(f"tool out| {line}\n" for line in out.splitlines())
    end = 'ACCEPT {"fact":"tool","value":{"exit":0,"ended":"","left":[]},"host":"h1"}\n'
    return parse([f"{lines}{end}".encode()], loaded.value.planned({}, None))


def test_nvbandwidth_gives_a_figure_for_each_gpu() -> None:
    parsed = read("nvbandwidth", (SAMPLES / "tools/gpu45-nvbandwidth-slow.json").read_text())
    assert [m.gpu for m in parsed.metrics] == [*map(str, range(8))] * 2
    assert [m.gpu for m in parsed.metrics if m.value < 20] == ["3", "3"]


def test_gpu_burn_gives_the_rate_of_each_gpu_also_of_one_whose_process_died() -> None:
    # The form of listenClients in gpu_burn-drv.cpp; the last GPU is called OK nevertheless.
    rates = "12 (5123 Gflop/s) - 9 (5001 Gflop/s) - -1 (0 Gflop/s) "
    errors = "errors: 0 - 0 - 0  (DIED!)  temps: 40 C - 41 C - -- "
    states = "".join(f"\tGPU {n}: OK\n" for n in range(3))
    parsed = read("gpu-burn", f"\r50.0%  proc'd: \r100.0%  proc'd: {rates}  {errors}\n{states}")
    assert [(m.gpu, m.value) for m in parsed.metrics] == [("0", 5.123), ("1", 5.001), ("2", 0)]


def test_dcgm_names_no_gpu_for_a_cpu() -> None:
    result = {"entity_group": "CPU", "entity_group_id": 7, "entity_id": 0, "status": "Fail"}
    tests = [{"name": "cpu_eud", "results": [result]}]
    category = {"category": "Hardware", "tests": tests}
    parsed = read("dcgm", json.dumps({"DCGM Diagnostic": {"test_categories": [category]}}))
    assert [(p.cause, p.gpu) for p in parsed.problems] == [("gpu-diagnostic", None)]


#: From https://github.com/linux-nvme/nvme-cli/issues/1037, shortened.
SMART_LOG = """\
Smart Log for NVME device:nvme0 namespace-id:ffffffff
critical_warning                        : 0
temperature                             : 42 C (315 Kelvin)
available_spare                         : 100%
percentage_used                         : 3%
endurance group critical warning summary: 0
media_errors                            : 0
"""


def test_the_wear_of_each_drive_is_read() -> None:
    parsed = read("nvme", f"drives : 2\nsectors : 7501476528\n{SMART_LOG}{SMART_LOG}")
    assert parsed.problems == ()
    assert [(m.name, round(m.value, 2), m.unit) for m in parsed.metrics] == [
        ("drives", 2, "drives"),
        ("size", 3.84, "TB"),
        ("wear", 3, "% used"),
        ("wear", 3, "% used"),
        ("warnings", 0, "errors"),
        ("warnings", 0, "errors"),
    ]


def test_the_warning_of_one_drive_counts_beside_a_drive_without() -> None:
    # nvme-cli prints it with %#x: stdout_smart_log in nvme-print-stdout.c.
    bad = SMART_LOG.replace("critical_warning                        : 0", "critical_warning : 0x4")
    assert bad != SMART_LOG
    parsed = read("nvme", f"drives : 2\nsectors : 7501476528\n{SMART_LOG}{bad}")
    assert [m.value for m in parsed.metrics if m.name == "warnings"] == [0, 4]


STREAM = (SAMPLES / "tools/cpu42-stream.txt").read_text()
#: check_errors in stream.c, which prints it with status 0.
WRONG = "Failed Validation on array a[], AvgRelAbsErr > epsilon (1.000000e-13)"


def test_stream_passes_only_if_its_results_are_valid() -> None:
    before, valid, _ = STREAM.partition("Solution Validates")
    assert valid
    assert not read("stream", STREAM).problems
    (problem,) = read("stream", f"{before}{WRONG}\n").problems
    assert (problem.cause, WRONG in problem.message) == ("wrong-result", True)
    (problem,) = read("stream", before).problems
    assert problem.cause == "tool-unusable"


def test_a_gpu_with_figures_and_without_a_state_is_not_tested() -> None:
    rates = "100.0%  proc'd: 12 (5123 Gflop/s) - 9 (5001 Gflop/s)  errors: 0 - 0"
    (problem,) = read("gpu-burn", f"{rates}\n\tGPU 0: OK\n").problems
    assert (problem.cause, "GPU 1 has" in problem.message) == ("tool-unusable", True)
