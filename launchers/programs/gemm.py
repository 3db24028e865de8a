"""Multiply matrices on every device: rates over time, rates alone, and correct results.

One process per device: mpirun -n 8 python gemm.py --seconds 60. For each data type all devices of a
host multiply random matrices at the same time for a given time, which shows the effects of power
and heat. Then each device does so alone. The types are bf16, fp8, tf32 and fp32 on GPUs that have
them, and fp32 on a CPU (one thread per rank). Operands and result are allocated once. CUDA events
take the time, and the host does not wait inside a window.

The results are compared in three ways:

* with a known product (exact_gemm explains why it is exact in every type): every element, bit for
  bit, on the device, immediately after the load while it is hot; then on the CPU, as a digest;
* with themselves: the product of the random operands after every window, with the first one;
* with other devices: equal devices must have equal digests of both products (fact `digest`). cuBLAS
  gives equal bits on GPUs of one kind: https://docs.nvidia.com/cuda/cublas/#results-reproducibility

Printed by each rank, check `gemm`, TYPE being a data type:

* metric `TYPE` (TFLOP/s): median over time, all devices at once; `TYPE-p5`, `TYPE-least`,
  `TYPE-most`; `TYPE-alone`, and its own `-p5`, `-least`, `-most`; `TYPE-wrong`: wrong elements;
* fact `curve`: rates over time; `load`: clocks (MHz), power (W), temperature (C), and the reasons
  for lower clocks during the load; `left-out`: types that were not measured, and why;
* problem `wrong-result`, and `not-finite` if an element is not finite.

Injected faults (ACCEPT_INJECT): flip turns one bit of the known product, nan puts NaN into one
element of an operand; hang and die strike in the middle of the load; slow loses 50 ms before each
product.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import exact_gemm
from sampler import Sampler
from windowed_timer import Bench, WindowedTimer, print_rates

CHECK = "gemm"
#: Data types, in the order of measurement.
KINDS = ("bf16", "fp8", "tf32", "fp32")
#: Default rows and columns: LARGE on GPUs with at least MUCH bytes of memory, SMALL on others, CPU.
LARGE, MUCH, SMALL, CPU = 8192, 30e9, 4096, 512
#: Seconds of warm-up, on a GPU and on a CPU.
WARM, WARM_CPU = 0.3, 0.01
#: Minimum compute capability for fp8 on tensor cores, and for TF32 and bf16:
#: https://docs.nvidia.com/cuda/cuda-c-programming-guide/#compute-capabilities
FP8, TENSOR = (8, 9), (8, 0)
#: torch's `_scaled_mm` requires that every side of an fp8 matrix is a multiple of FP8_STEP. The
#: sides of the known product are, from the size FP8_LEAST on.
FP8_STEP, FP8_LEAST = 16, exact_gemm.PERIOD * 16


def lacking(kind: str, wanted: str, size: int, capability: tuple[int, int] | None, fp8: Any) -> str:
    """Return why a type is not measured on a device, or "". `wanted` is a comma list; "" is all.

    `capability` is that of the GPU, None for a CPU, and `fp8` is the schema of torch's fp8 product.
    """
    if wanted and kind not in wanted.split(","):
        return "not requested"
    if capability is None:
        asked = kind == "bf16" and wanted
        return "" if kind == "fp32" or asked else "a type for GPUs"
    # Before 2.5, it also returned the largest magnitude: https://github.com/pytorch/pytorch/pull/128683.
    # The version does not decide, because vendors build torch from commits between two releases.
    if kind == "fp8" and len(fp8.returns) != 1:
        return "this torch lacks an fp8 product with one result; install 2.5 or newer"
    if kind == "fp8" and (size % FP8_STEP or exact_gemm.inner(size) % FP8_STEP):
        return f"size {size}: fp8 needs a multiple of {FP8_STEP} of at least {FP8_LEAST}"
    least = {"fp8": FP8, "fp32": (0, 0)}.get(kind, TENSOR)
    return "" if capability >= least else "compute capability {}.{}".format(*capability)


def left_out(device: str, wanted: str, size: int) -> dict[str, str]:
    """Return the types that are not measured on a device, with the reasons."""
    import torch

    capability = None if device == "cpu" else torch.cuda.get_device_capability(device)
    fp8 = torch.ops.aten._scaled_mm.default._schema
    return {kind: why for kind in KINDS if (why := lacking(kind, wanted, size, capability, fp8))}


def side(device: str) -> int:
    """Return the default number of rows and columns for a device."""
    import torch

    if device == "cpu":
        return CPU
    return LARGE if torch.cuda.get_device_properties(device).total_memory >= MUCH else SMALL


class Product:
    """The product of two square matrices of one type, in memory that is allocated once."""

    def __init__(self, device: str, kind: str, size: int) -> None:
        import torch

        self.torch, self.kind, self.size = torch, kind, size
        low = {"bf16": torch.bfloat16}.get(kind, torch.float32)
        given = torch.float8_e4m3fn if kind == "fp8" else low
        self.a, self.b = (torch.empty(size, size, dtype=given, device=device) for _ in range(2))
        result = torch.bfloat16 if kind == "fp8" else low
        self.out = torch.empty(size, size, dtype=result, device=device)
        self.one = torch.ones((), device=device)
        torch.set_float32_matmul_precision("high" if kind == "tf32" else "highest")
        # Partial sums of the known product need more than the eight bits of bf16.
        torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = False

    def fill(self, seed: int) -> None:
        """Fill the operands with normally distributed random numbers."""
        generator = self.torch.Generator(device=self.out.device).manual_seed(seed)
        for operand in (self.a, self.b):
            shape, device = operand.shape, self.out.device
            operand.copy_(self.torch.randn(shape, generator=generator, device=device))

    def first(self, k: int) -> tuple[Any, Any]:
        """Return the start of the operands' memory, as matrices with inner dimension `k`."""
        return (
            self.a.view(-1)[: self.size * k].view(self.size, k),
            self.b.view(-1)[: k * self.size].view(
                *((self.size, k) if self.kind == "fp8" else (k, self.size))
            ),
        )

    def multiply(self, a: Any = None, b: Any = None, *, fast: bool = True) -> None:
        """Enqueue one product. For fp8 the second operand is in column-major order.

        `fast` lets the hardware accumulate fp8 products faster, in fewer bits than fp32 has.
        """
        a, b = self.a if a is None else a, self.b if b is None else b
        if self.kind != "fp8":
            self.torch.mm(a, b, out=self.out)
            return
        self.torch._scaled_mm(
            a, b.t(), scale_a=self.one, scale_b=self.one, out_dtype=self.out.dtype,
            use_fast_accum=fast, out=self.out,
        )  # fmt: skip


class Gemm:
    """The check `gemm` on one device."""

    def __init__(
        self, bench: Bench, *, seconds: float, alone: float, types: str, size: int, seed: int
    ) -> None:
        self.bench, self.seconds, self.alone, self.seed = bench, seconds, alone, seed
        self.types, self.size = types, size
        self.kinds: list[str] = []
        self.product: Any = None

    def run(self) -> None:
        """Measure every type. All ranks call this together."""
        bench = self.bench
        bench.at_once(CHECK, "gemm", self._choose)
        for kind in KINDS:
            # A rank whose device lacks the type takes part in the barriers only.
            bench.at_once(CHECK, f"{kind} data", self._of(kind, self._prepare))
            bench.at_once(CHECK, f"{kind} load", self._of(kind, self._load))
            bench.at_once(CHECK, f"{kind} proof", self._of(kind, self._prove))
            if self.alone:
                bench.in_turn(CHECK, f"{kind} alone", self._of(kind, self._measure_alone))

    def _of(self, kind: str, work: Callable[[str], None]) -> Callable[[], None]:
        """Return a stage that runs `work` on a type if the device has it."""

        def stage() -> None:
            if kind in self.kinds:
                work(kind)

        return stage

    def _choose(self) -> None:
        device = self.bench.device
        self.size = self.size or side(device)
        why = left_out(device, self.types, self.size)
        self.kinds = [kind for kind in KINDS if kind not in why]
        self.bench.fact(CHECK, "left-out", why)

    def _prepare(self, kind: str) -> None:
        """Make the operands, warm up, and keep the first product for comparison with the others."""
        device = self.bench.device
        # Free the memory of the previous type before allocating this one's.
        self.product = None
        self.product = Product(device, kind, self.size)
        self.product.fill(self.seed)
        cpu = device == "cpu"
        self.watch = WindowedTimer(device, 0.0 if cpu else 0.02)
        self.calls = self.watch.calls(self._once, WARM_CPU if cpu else WARM)
        self.reference = self.product.out.clone()

    def _once(self) -> None:
        self.bench.injected.drag()
        self.product.multiply()

    def _load(self, kind: str) -> None:
        torch, product = self.product.torch, self.product
        wanted, counts = exact_gemm.bits(torch, self.reference), []

        def compare() -> None:
            counts.append((exact_gemm.bits(torch, product.out) != wanted).sum())

        with Sampler(self.bench.uuid) as sampler:
            taken = self.watch.windows(
                self._once, self.calls, self.seconds,
                between=compare, middle=self.bench.injected.strike,
            )  # fmt: skip
        self._print_rates(kind, taken)
        self.bench.fact(CHECK, "load", {"type": kind, **sampler.summary()})
        wrong = torch.stack(counts).tolist()
        self.wrong = sum(wrong)
        if self.wrong:
            at = next(index for index, count in enumerate(wrong) if count)
            when = sum(taken[: at + 1])
            message = f"{kind}: {self.wrong} elements of {sum(map(bool, wrong))} of {len(wrong)} "
            message += "products of the same matrices differ from the first product, the first "
            message += f"after {when:.1f} s of load"
            self.bench.wrong(CHECK, "wrong-result", message)

    def _print_rates(self, name: str, taken: list[float]) -> None:
        work = 2 * self.size**3 * self.calls / 1e12
        print_rates(CHECK, name, "TFLOP/s", taken, work, **self.bench.labels)

    def _measure_alone(self, kind: str) -> None:
        self._print_rates(f"{kind}-alone", self.watch.windows(self._once, self.calls, self.alone))

    def _prove(self, kind: str) -> None:
        """Check the known product, and print the digests that must be equal on equal devices."""
        product, injected, torch = self.product, self.bench.injected, self.product.torch
        k = exact_gemm.inner(self.size)
        a, b = product.first(k)
        signs = [exact_gemm.signs(self.seed + n) for n in range(2)]
        for target, values in zip((a, b), signs, strict=True):
            exact_gemm.tile(
                target, exact_gemm.block(torch, exact_gemm.shifted(values), target.shape[1], target)
            )
        if "nan" in injected:
            a.view(-1)[a.numel() // 2] = float("nan")
        product.out.fill_(float("nan"))
        product.multiply(a, b, fast=False)
        if "flip" in injected:
            exact_gemm.bits(torch, product.out)[self.size // 2, self.size // 3] ^= 1
        rows = exact_gemm.block(
            torch, exact_gemm.product(signs[0], signs[1], k), self.size, product.out
        )
        found = exact_gemm.differs(torch, product.out, rows)
        count = self.wrong + (found.elements if found else 0)
        made = exact_gemm.digest(product.out)
        if found:
            every = self.size**2
            message = (
                f"{kind}: {found.elements} of {every} elements of a known product are wrong, first "
            )
            message += f"row {found.row}, column {found.column}: "
            message += f"{found.got:.9g}, not {found.wanted:g}"
            cause = "not-finite" if found.strange else "wrong-result"
            self.bench.wrong(CHECK, cause, message)
        elif made != exact_gemm.digest_of(rows, self.size):
            count += 1
            message = f"{kind}: the known product is correct on the device, "
            message += "but the CPU reads other values"
            self.bench.wrong(CHECK, "wrong-data", message)
        self.bench.metric(CHECK, f"{kind}-wrong", count, "count")
        value = {"type": kind, "size": self.size, "exact": made}
        if self.bench.device != "cpu":
            # CPUs of one name may still use different kernels; GPUs of one name do not.
            value |= {"random": exact_gemm.digest(self.reference), **self._device()}
        self.bench.fact(CHECK, "digest", value)
        # The measurement alone uses random operands again.
        product.fill(self.seed)

    def _device(self) -> dict[str, str]:
        torch = self.product.torch
        name = torch.cuda.get_device_name(self.bench.device)
        return {"device": name, "software": f"torch {torch.__version__}, CUDA {torch.version.cuda}"}


if __name__ == "__main__":
    import devices

    devices.main("gemm")
