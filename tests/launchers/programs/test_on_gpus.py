"""Decisions of our programs on GPUs: the real torch and bindings, above stand-ins for libraries."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.factories import cuda, nvml
from tests.factories.paths import PROGRAMS
from tests.factories.programs import records_of
from tests.factories.shell import run_program
from tests.factories.torch_releases import RELEASES

import exact_gemm
import memory
import sampler
import torch_io
from gemm import lacking
from pci import short_name
from rank_io import Identity, cause_of
from train import MODELS

#: The transformers.
GPTS = [name for name in MODELS if name.startswith("gpt-") and name != "gpt-fit"]
real = pytest.mark.real


@pytest.fixture(autouse=True)
def all_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    """Remove GPU settings from the environment."""
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.delenv("CUDA_DEVICE_ORDER", raising=False)


# -- which types are measured --------------------------------------------------------------------

#: Signatures of `aten::_scaled_mm` in native_functions.yaml of torch 2.4.1 and 2.6.0, without the
#: arguments that both take.
OLD_FP8 = "_scaled_mm(Tensor self, Tensor mat2) -> (Tensor, Tensor)"
NEW_FP8 = "_scaled_mm(Tensor self, Tensor mat2, Tensor scale_a, Tensor scale_b) -> Tensor"


def why_no_fp8(
    schema: str = NEW_FP8, size: int = 8192, capability: tuple[int, int] = (9, 0)
) -> str:
    parse = pytest.importorskip("torch")._C.parse_schema
    return lacking("fp8", "", size, capability, parse(schema))


@real
def test_fp8_is_measured_if_torch_and_gpu_support_it() -> None:
    assert why_no_fp8() == ""
    assert "2.5" in why_no_fp8(OLD_FP8)
    assert why_no_fp8(capability=(8, 0)) == "compute capability 8.0"


@real
@given(st.integers(254, 1 << 16))
def test_fp8_is_measured_only_at_supported_sizes(size: int) -> None:
    taken = size >= 2032 and size % 16 == 0
    assert (why_no_fp8(size=size) == "") is taken
    if taken:
        assert exact_gemm.inner(size) % 16 == 0


def test_sizes_that_fp8_does_not_support_do_not_affect_other_types() -> None:
    assert lacking("bf16", "", 256, (9, 0), None) == ""


# -- a GPU that cannot be used -------------------------------------------------------------------

#: The fault of a call of CUDA -> the cause, and the GPU that is named. Codes: driver_types.h.
FAULTS = {
    "cudaMalloc:3:214": ("gpu-unusable", "3"),  # uncorrectable ECC error
    "cudaMalloc:3:46": ("gpu-unusable", "3"),  # another process has it
    "cudaMalloc:3:2": ("out-of-memory", "3"),
    "cudaLaunchKernel:3:209": ("tool-missing", None),  # no kernel image
    "cudaMalloc:3:35": ("driver-too-old", "3"),
    "cudaGetDeviceCount:0:35": ("driver-too-old", None),
    "cudaGetDeviceCount:0:802": ("fabric-manager", None),  # not yet initialized
    "cudaGetDeviceCount:0:100": ("gpu-unusable", None),  # no GPU
}


#: The parts of on_cuda.py, with their faults.
PARTS = ["pick ", *(f"pick {faults}" for faults in FAULTS), "peers cudaMalloc:1:46"]
#: What each part prints.
Printed = dict[str, list[dict[str, Any]]]


@pytest.fixture(scope="module", params=RELEASES)
def found(request: pytest.FixtureRequest) -> Printed:
    command = [request.param, Path(__file__).with_name("on_cuda.py"), *PARTS]
    environment = os.environ | cuda.env(request.param) | {"PYTHONPATH": str(PROGRAMS)}
    done = run_program(command, env=environment, check=True)
    texts = done.stdout.split("next\n")[:-1]
    assert "Traceback" not in done.stderr, done.stderr
    return {part: records_of(text) for part, text in zip(PARTS, texts, strict=True)}


@real
class TestAboveCuda:
    def test_a_rank_uses_the_gpu_of_its_local_rank_and_all_types(self, found: Printed) -> None:
        facts = {record["fact"]: record["value"] for record in found["pick "]}
        assert facts == {"device": ["cuda:3", nvml.uuid(3)], "left-out": {}}

    @pytest.mark.parametrize("fault", FAULTS)
    def test_a_fault_has_its_cause_and_names_a_gpu_only_if_it_is_of_the_gpu(
        self, found: Printed, fault: str
    ) -> None:
        (record,) = found[f"pick {fault}"]
        assert (record["problem"], record.get("gpu")) == FAULTS[fault]
        assert (record["host"], record["rank"]) == ("h1", 11)

    def test_the_words_of_cuda_are_in_the_message(self, found: Printed) -> None:
        assert "uncorrectable ECC" in found["pick cudaMalloc:3:214"][0]["message"]

    def test_a_missing_device_file_is_named(self, found: Printed) -> None:
        """Containers without NVIDIA's runtime lack it, as machines without a GPU do."""
        message = found["pick cudaGetDeviceCount:0:100"][0]["message"]
        assert ("/dev/nvidia-uvm" in message) is not Path("/dev/nvidia-uvm").exists()

    def test_gpus_that_one_process_cannot_use_leave_out_p2p_and_accuse_nobody(
        self, found: Printed
    ) -> None:
        (record,) = found["peers cudaMalloc:1:46"]
        assert record["fact"] == "left-out"
        assert record["value"].keys() == {"p2p-out", "p2p-in"}
        assert "busy or unavailable" in record["value"]["p2p-out"]


@pytest.mark.parametrize("message", ["Torch not compiled with CUDA enabled", "No HIP GPUs"])
def test_a_torch_for_other_devices_does_not_accuse_the_gpu(message: str) -> None:
    assert torch_io.cause_of_start(AssertionError(message)) == "tool-missing"


@pytest.mark.parametrize(
    ("error", "cause"),
    [
        (RuntimeError("CUDA error: out of memory"), "out-of-memory"),
        (RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling"), "out-of-memory"),
        (MemoryError(), "out-of-memory"),
        (type("OutOfMemoryError", (RuntimeError,), {})("tried to allocate 2 GiB"), "out-of-memory"),
        (RuntimeError("CUDA error: an illegal memory access was encountered"), "crashed"),
    ],
)
def test_a_lack_of_memory_is_a_cause_of_its_own(error: BaseException, cause: str) -> None:
    assert cause_of(error) == cause


# -- numbers of GPUs -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("shown", "index", "number"),
    [
        (None, 3, "3"),
        ("4,5,6,7", 3, "7"),
        ("6", 0, "6"),
        ("GPU-12ab", 0, "3"),
        ("4,5", 3, "3"),
    ],
)
def test_gpus_have_the_numbers_of_nvidia_smi(
    monkeypatch: pytest.MonkeyPatch, shown: str | None, index: int, number: str
) -> None:
    if shown is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", shown)
    assert torch_io.gpu_number(index, 3) == number


@pytest.fixture
def h100(tmp_path: Path) -> nvml.Scenario:
    scenario = nvml.Scenario(tmp_path / "scenario", "h100", 8)
    scenario.load()
    return scenario


@pytest.mark.usefixtures("h100")
def test_a_gpu_is_opened_by_its_uuid() -> None:
    bindings, handle = sampler._open(nvml.uuid(6))
    assert short_name(bindings.nvmlDeviceGetPciInfo(handle).busId) == nvml.address(6)


def link(h100: nvml.Scenario, *widths: int) -> dict[str, Any]:
    """Return the readings of a link with this many lanes each time."""
    found = sampler.Link(nvml.uuid(0))
    for width in widths:
        h100.change(f"nvmlDeviceGetCurrPcieLinkWidth * : 0 {width}")
        found.look()
    return found.seen


def test_the_widest_reading_of_a_link_is_reported(h100: nvml.Scenario) -> None:
    whole = {"width": 16, "width-max": 16, "generation": 5, "generation-max": 5}
    assert link(h100, 4, 16, 16) == whole
    assert link(h100, 8, 8) == {**whole, "width": 8}


@pytest.mark.parametrize(
    ("faults", "missing"),
    [
        ((), set()),
        (("nvmlDeviceGetCurrentClocksEventReasons * : 13",), set()),
        (("nvmlDeviceGetPowerUsage * : 3",), {"W"}),
        (("nvmlDeviceGetClockInfo * : 3",), {"MHz"}),
        (("nvmlDeviceGetMaxClockInfo * : 3",), {"MHz-max"}),
        (("nvmlDeviceGetTemperature * : 999",), {"C"}),
        (
            (
                "nvmlDeviceGetCurrentClocksEventReasons * : 13",
                "nvmlDeviceGetCurrentClocksThrottleReasons * : 3",
            ),
            {"looks", "held"},
        ),
    ],
)
def test_a_value_that_cannot_be_sampled_costs_no_other(
    h100: nvml.Scenario, faults: tuple[str, ...], missing: set[str]
) -> None:
    h100.change(*faults)
    found = sampler.Sampler(nvml.uuid(0))
    bindings, handle = sampler._open(nvml.uuid(0))
    for _ in range(2):
        found._look(bindings, handle)
    summary = found.summary()
    assert {"MHz", "MHz-max", "W", "C", "looks", "held"} - summary.keys() == missing
    assert ("unread" in summary) == bool(missing)


@pytest.mark.usefixtures("h100")
def test_an_unreadable_link_is_reported_with_the_reason() -> None:
    found = sampler.Link(nvml.uuid(99))
    found.look()
    assert "Not Found" in found.seen["unread"]


# -- paths between GPUs --------------------------------------------------------------------------


def matrix(slow: dict[tuple[int, int], float], gpus: int = 8) -> list[list[float]]:
    return [[slow.get((i, j), 400.0) if i != j else 0.0 for j in range(gpus)] for i in range(gpus)]


def p2p_records(
    rates: list[list[float]], capsys: pytest.CaptureFixture[str]
) -> tuple[dict[str, float], dict[int, str]]:
    """Return `p2p-least` by GPU number, and by rank the path in its fact."""
    me = Identity(rank=8, size=16, local_rank=0, local_size=8, host="h1")
    memory.print_p2p(me, rates)
    printed = records_of(capsys.readouterr().out)
    shares = {one["gpu"]: one["value"] for one in printed if one.get("metric") == "p2p-least"}
    return shares, {one["rank"]: one["value"] for one in printed if "fact" in one}


def test_one_slow_path_is_reported_for_both_of_its_gpus(
    capsys: pytest.CaptureFixture[str],
) -> None:
    shares, paths = p2p_records(matrix({(2, 5): 40.0}), capsys)
    assert shares == {str(gpu): 0.1 if gpu in (2, 5) else 1.0 for gpu in range(8)}
    assert paths[10] == paths[13] == "GPU 2 to GPU 5: 40 GB/s"


def test_a_gpu_that_is_slow_with_all_others_makes_none_of_them_slow(
    capsys: pytest.CaptureFixture[str],
) -> None:
    slow = {way: 40.0 for gpu in range(8) for way in ((gpu, 6), (6, gpu))}
    shares, _ = p2p_records(matrix(slow), capsys)
    assert set(shares.values()) == {1.0}, "its medians tell it"


@given(st.integers(2, 8), st.floats(1.0, 400.0))
def test_gpus_on_two_sockets_have_no_slow_path(near: int, far: float) -> None:
    slow = {(i, j): far for i in range(8) for j in range(8) if (i < near) != (j < near)}
    assert min(share for share, _, _ in memory.slowest_paths(matrix(slow))) >= 1.0


# -- memory of comparisons -----------------------------------------------------------------------


@real
@given(st.sampled_from(GPTS), st.integers(1, 64))
def test_compared_samples_with_their_attention_take_no_more_than_a_piece(
    name: str, micro: int
) -> None:
    from train_models import GPT

    gpt = GPT[name]
    count = gpt.fitting(micro)
    whole = 46 * gpt.width + 5 * gpt.heads * gpt.sequence
    assert count == 1 or count * whole <= micro * 34 * gpt.width
    assert 1 <= count <= micro
