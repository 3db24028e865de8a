"""Decisions of our programs on GPUs and with other releases of torch, on a fake of torch."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.factories import nvml
from tests.launchers.programs.fake_torch import fake_torch

import exact_gemm
import p2p_matrix
import patterns
import sampler
import torch_io
from gemm import lacking
from health_host import pci_name
from memory import Memory
from rank_io import Ended, Identity, cause_of
from train_options import MODELS

#: The transformers.
GPTS = [name for name in MODELS if name.startswith("gpt-") and name != "gpt-fit"]
ME = Identity(rank=11, size=16, local_rank=3, local_size=8, host="h1")


@pytest.fixture
def torch(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """Remove GPU settings from the environment."""
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.delenv("CUDA_DEVICE_ORDER", raising=False)
    return monkeypatch


def records(capsys: pytest.CaptureFixture[str]) -> list[dict[str, Any]]:
    lines = capsys.readouterr().out.splitlines()
    return [json.loads(line[7:]) for line in lines if line.startswith("ACCEPT {")]


# -- which types are measured --------------------------------------------------------------------


def why_no_fp8(size: int = 8192, **torch: Any) -> str:
    return lacking(fake_torch(**torch), "cuda:0", "fp8", "", size)


def test_fp8_is_measured_if_torch_and_gpu_support_it() -> None:
    assert why_no_fp8() == ""


@pytest.mark.parametrize(
    ("version", "returns"), [("2.1.0", 2), ("2.4.1", 2), ("2.5.0a0+872d972", 2), ("2.0.1", None)]
)
def test_fp8_is_left_out_if_torch_has_no_product_with_one_result(
    version: str, returns: int | None
) -> None:
    why = why_no_fp8(version=version, fp8_returns=returns)
    assert version in why
    assert "2.5" in why


def test_fp8_is_left_out_on_gpus_without_it() -> None:
    assert why_no_fp8(capability=(8, 0)) == "compute capability 8.0"


@given(st.integers(254, 1 << 16))
def test_fp8_is_measured_only_at_supported_sizes(size: int) -> None:
    taken = size >= 2032 and size % 16 == 0
    assert (why_no_fp8(size) == "") is taken
    if taken:
        assert exact_gemm.inner(size) % 16 == 0


def test_sizes_that_fp8_does_not_support_do_not_affect_other_types() -> None:
    assert lacking(fake_torch(), "cuda:0", "bf16", "", 256) == ""


# -- a GPU that cannot be used -------------------------------------------------------------------


def imported(monkeypatch: pytest.MonkeyPatch, fake: Any) -> None:
    """Let all later imports of torch get the fake."""
    monkeypatch.setitem(sys.modules, "torch", fake)
    monkeypatch.setitem(sys.modules, "torch.distributed", SimpleNamespace())


def refused(monkeypatch: pytest.MonkeyPatch, message: str) -> None:
    def fail() -> float:
        raise RuntimeError(message)

    imported(monkeypatch, fake_torch(first_kernel=fail))
    with pytest.raises(Ended):
        torch_io.pick_device(ME, "cuda")


def test_a_rank_uses_the_gpu_of_its_local_rank(torch: pytest.MonkeyPatch) -> None:
    imported(torch, fake_torch())
    assert torch_io.pick_device(ME, "cuda") == "cuda:3"


def test_an_unusable_gpu_is_named_with_its_host(
    torch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    refused(torch, "CUDA error: uncorrectable ECC error encountered")
    (one,) = records(capsys)
    assert (one["problem"], one["host"], one["rank"], one["gpu"]) == ("gpu-unusable", "h1", 11, "3")
    assert "ECC" in one["message"]


@pytest.mark.parametrize(
    ("message", "cause"),
    [
        ("The NVIDIA driver on your system is too old (found version 12040).", "driver-too-old"),
        ("CUDA driver version is insufficient for CUDA runtime version", "driver-too-old"),
        ("Unexpected error. Error 802: system not yet initialized", "fabric-manager"),
        ("No CUDA GPUs are available", "gpu-unusable"),
    ],
)
def test_the_reason_why_torch_cannot_use_a_gpu_decides_the_cause(
    torch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], message: str, cause: str
) -> None:
    def fail() -> None:
        raise RuntimeError(message)

    imported(torch, fake_torch(init=fail))
    with pytest.raises(Ended):
        torch_io.pick_device(ME, "cuda")
    (one,) = records(capsys)
    assert (one["problem"], one["host"]) == (cause, "h1")
    assert message in one["message"]


def test_a_torch_without_cuda_does_not_accuse_the_gpu(
    torch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    imported(torch, fake_torch(cuda=None, init=lambda: None))
    with pytest.raises(Ended):
        torch_io.pick_device(ME, "cuda")
    (one,) = records(capsys)
    assert one["problem"] == "tool-missing"


def test_a_missing_device_file_is_named(
    torch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Containers without NVIDIA's runtime lack it, as machines without a GPU do."""
    torch.setattr(Path, "exists", lambda path: path != Path("/dev/nvidia-uvm"))
    imported(torch, fake_torch(init=lambda: None))
    with pytest.raises(Ended):
        torch_io.pick_device(ME, "cuda")
    (one,) = records(capsys)
    assert one["problem"] == "gpu-unusable"
    assert "/dev/nvidia-uvm" in one["message"]


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


def test_a_gpu_that_is_full_is_not_unusable(
    torch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    refused(torch, "CUDA error: out of memory")
    (one,) = records(capsys)
    assert (one["problem"], one["gpu"]) == ("out-of-memory", "3")


def test_a_torch_without_kernels_for_a_gpu_does_not_accuse_the_gpu(
    torch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    refused(torch, "CUDA error: no kernel image is available for execution on the device")
    (one,) = records(capsys)
    assert one["problem"] == "tool-missing"
    assert "gpu" not in one
    assert "2.5.1" in one["message"]


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
    torch: pytest.MonkeyPatch, shown: str | None, index: int, number: str
) -> None:
    if shown is not None:
        torch.setenv("CUDA_VISIBLE_DEVICES", shown)
    assert torch_io.gpu_number(index, ME.local_rank) == number


@pytest.fixture
def h100(tmp_path: Path) -> nvml.Scenario:
    scenario = nvml.Scenario(tmp_path / "scenario", "h100", 8)
    scenario.load()
    return scenario


def opened(monkeypatch: pytest.MonkeyPatch, uuid: str | None) -> str:
    """Return the address of the GPU that is opened for cuda:2."""
    imported(monkeypatch, fake_torch("2.3.0", uuid=uuid))
    bindings, handle = sampler._open("cuda:2")
    return pci_name(bindings.nvmlDeviceGetPciInfo(handle).busId)


@pytest.mark.usefixtures("h100")
def test_a_gpu_is_opened_by_its_uuid(torch: pytest.MonkeyPatch) -> None:
    torch.setenv("CUDA_VISIBLE_DEVICES", "4,5,6,7")
    assert opened(torch, nvml.uuid(6).removeprefix("GPU-")) == nvml.address(6)


@pytest.mark.usefixtures("h100")
def test_without_a_uuid_from_torch_a_gpu_is_opened_by_its_number(
    torch: pytest.MonkeyPatch,
) -> None:
    assert opened(torch, None) == nvml.address(2)


def link(torch: pytest.MonkeyPatch, h100: nvml.Scenario, *widths: int) -> dict[str, Any]:
    """Return the readings of a link with this many lanes each time."""
    imported(torch, fake_torch("2.3.0", uuid=None))
    found = sampler.Link("cuda:0")
    for width in widths:
        h100.change(f"nvmlDeviceGetCurrPcieLinkWidth * : 0 {width}")
        found.look()
    return found.seen


def test_the_widest_reading_of_a_link_is_reported(
    torch: pytest.MonkeyPatch, h100: nvml.Scenario
) -> None:
    whole = {"width": 16, "width-max": 16, "generation": 5, "generation-max": 5}
    assert link(torch, h100, 4, 16, 16) == whole
    assert link(torch, h100, 8, 8) == {**whole, "width": 8}


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
    torch: pytest.MonkeyPatch, h100: nvml.Scenario, faults: tuple[str, ...], missing: set[str]
) -> None:
    h100.change(*faults)
    imported(torch, fake_torch("2.3.0", uuid=None))
    found = sampler.Sampler("cuda:0")
    bindings, handle = sampler._open("cuda:0")
    for _ in range(2):
        found._look(bindings, handle)
    summary = found.summary()
    assert {"MHz", "MHz-max", "W", "C", "looks", "held"} - summary.keys() == missing
    assert ("unread" in summary) == bool(missing)


def test_an_unreadable_link_is_reported_with_the_reason(torch: pytest.MonkeyPatch) -> None:
    def refuse(_: str) -> Any:
        raise ImportError("No module named 'pynvml'")

    torch.setattr(sampler, "_open", refuse)
    found = sampler.Link("cuda:0")
    found.look()
    assert "pynvml" in found.seen["unread"]


@pytest.mark.usefixtures("h100")
def test_no_gpu_is_opened_by_a_number_that_may_differ(torch: pytest.MonkeyPatch) -> None:
    torch.setenv("CUDA_VISIBLE_DEVICES", "4,5,6,7")
    with pytest.raises(LookupError, match="UUID"):
        opened(torch, None)


# -- GPUs that take one process only -------------------------------------------------------------


def test_gpus_that_one_process_cannot_use_leave_out_p2p_and_accuse_nobody(
    torch: pytest.MonkeyPatch,
) -> None:
    printed: dict[str, Any] = {}
    fake = fake_torch()
    fake.cuda.empty_cache = lambda: None
    bench: Any = SimpleNamespace(
        me=Identity(rank=8, size=16, local_rank=0, local_size=8, host="h1"),
        device="cuda:0",
        fact=lambda _check, name, value: printed.update({name: value}),
    )

    def exclusive(*_: object) -> None:
        raise RuntimeError("CUDA error: CUDA-capable device(s) is/are busy or unavailable")

    torch.setattr(patterns, "pattern", exclusive)
    checked = Memory(bench, seconds=1.0, alone=0.0, share=0.9, most=1 << 20, seed=1)
    checked.torch = fake
    checked._peers()
    assert printed.keys() == {"left-out"}
    assert printed["left-out"].keys() == {"p2p-out", "p2p-in"}
    assert "busy or unavailable" in printed["left-out"]["p2p-out"]


def matrix(slow: dict[tuple[int, int], float], gpus: int = 8) -> list[list[float]]:
    return [[slow.get((i, j), 400.0) if i != j else 0.0 for j in range(gpus)] for i in range(gpus)]


def p2p_records(
    rates: list[list[float]], capsys: pytest.CaptureFixture[str]
) -> tuple[dict[str, float], dict[int, str]]:
    """Return `p2p-least` by GPU number, and by rank the path in its fact."""
    me = Identity(rank=8, size=16, local_rank=0, local_size=8, host="h1")
    p2p_matrix.print_p2p("memory", me, rates)
    printed = records(capsys)
    shares = {one["gpu"]: one["value"] for one in printed if one.get("metric") == "p2p-least"}
    return shares, {one["rank"]: one["value"] for one in printed if "fact" in one}


def test_one_slow_path_is_reported_for_both_of_its_gpus(
    torch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    shares, paths = p2p_records(matrix({(2, 5): 40.0}), capsys)
    assert shares == {str(gpu): 0.1 if gpu in (2, 5) else 1.0 for gpu in range(8)}
    assert paths[10] == paths[13] == "GPU 2 to GPU 5: 40 GB/s"


def test_a_gpu_that_is_slow_with_all_others_makes_none_of_them_slow(
    torch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    slow = {way: 40.0 for gpu in range(8) for way in ((gpu, 6), (6, gpu))}
    shares, _ = p2p_records(matrix(slow), capsys)
    assert set(shares.values()) == {1.0}, "its medians tell it"


@given(st.integers(2, 8), st.floats(1.0, 400.0))
def test_gpus_on_two_sockets_have_no_slow_path(near: int, far: float) -> None:
    slow = {(i, j): far for i in range(8) for j in range(8) if (i < near) != (j < near)}
    assert min(share for share, _, _ in p2p_matrix.slowest_paths(matrix(slow))) >= 1.0


# -- memory of comparisons -----------------------------------------------------------------------


@pytest.mark.real
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


@pytest.mark.real
@pytest.mark.parametrize("name", [name for name in GPTS if name != "gpt-tiny"])
def test_one_sample_with_its_attention_fits_into_the_gpu_of_the_model(name: str) -> None:
    from train_models import GPT

    gpt = GPT[name]
    more = 12 * gpt.width + 5 * gpt.heads * gpt.sequence
    one = gpt.gigabytes + gpt.fitting(gpt.micro) * gpt.sequence * gpt.layers * more / 1e9
    assert one <= 0.95 * float(name.partition("-")[2])
