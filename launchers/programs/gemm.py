"""Matrix products on every device: how fast over time, how fast alone, and whether they are right.

One process a device: mpirun -n 8 python gemm.py --seconds 60. Per data type all devices of a host
multiply random matrices at once, for a stated time; that is when power and heat show. Then each
does so alone. bf16, fp8, tf32 and fp32 on GPUs that have them, fp32 on a CPU (one thread a rank).
Operands and result are allocated once; time is taken by CUDA events, without a wait of the host
inside a window.

Whether they are right is held against three things:

* operands whose product is known (`exact` says why it is exact in every type): every element, bit
  for bit, on the device, right after the load, while it is hot; then once more by the CPU, as a
  digest;
* itself: the product of the random operands after every window of the load, with the first one;
* the others: digests of both products, in the fact `digest`, to be equal on equal devices. cuBLAS
  gives equal bits on GPUs of one kind: https://docs.nvidia.com/cuda/cublas/#results-reproducibility

Printed by each rank, check `gemm`, TYPE being a data type:

* metric `TYPE` (TFLOP/s): median over time, all devices at once; `TYPE-p5`, `TYPE-least`,
  `TYPE-most`; `TYPE-alone`, and its own `-p5`, `-least`, `-most`; `TYPE-wrong`: wrong elements;
* fact `curve`: rates over time; `load`: clocks (MHz), power (W), temperature (C), and what held the
  clock back, meanwhile; `left-out`: types that were not measured, and why;
* problem `wrong-result`, and `not-finite` where an element is no number.

Planted faults (ACCEPT_PLANT): flip turns one bit of the known product, nan puts NaN into one
element of an operand; hang and die strike in the middle of the load; slow loses 50 ms before each
product.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import exact_gemm
from bench import Bench
from sampler import Sampler
from windowed_timer import Stopwatch, tell

CHECK = "gemm"
#: In the order they are measured.
KINDS = ("bf16", "fp8", "tf32", "fp32")
#: Rows and columns by default: on a GPU with so many bytes of memory or more, on others, on a CPU.
LARGE, MUCH, SMALL, CPU = 8192, 30e9, 4096, 512
#: Seconds of warm-up, on a GPU and on a CPU.
WARM, WARM_CPU = 0.3, 0.01
#: Compute capability from which on tensor cores take fp8, and TF32 and bf16:
#: https://docs.nvidia.com/cuda/cuda-c-programming-guide/#compute-capabilities
FP8, TENSOR = (8, 9), (8, 0)
#: Every side of matrices of fp8 is a multiple of this (torch's `_scaled_mm` refuses others), that
#: of the known product too, which at this least size it is first.
FP8_STEP, FP8_LEAST = 16, exact_gemm.PERIOD * 16


def lacking(torch: Any, device: str, kind: str, wanted: str, size: int) -> str:
    """Why a type is not measured on a device; empty: it is. `wanted`: comma list, empty: all."""
    if wanted and kind not in wanted.split(","):
        return "not asked for"
    if device == "cpu":
        asked = kind == "bf16" and wanted
        return "" if kind == "fp32" or asked else "a type for GPUs"
    having = torch.cuda.get_device_capability(device)
    if kind == "fp8" and not _multiplies_fp8(torch):
        return f"torch {torch.__version__} multiplies no fp8 into one tensor; 2.5 does"
    if kind == "fp8" and (size % FP8_STEP or exact_gemm.inner(size) % FP8_STEP):
        return f"size {size}: fp8 takes multiples of {FP8_STEP} from {FP8_LEAST} on"
    least = {"fp8": FP8, "fp32": (0, 0)}.get(kind, TENSOR)
    return "" if having >= least else f"compute capability {having[0]}.{having[1]}"


def _multiplies_fp8(torch: Any) -> bool:
    """Whether torch's product of fp8 returns the result alone, as it does from 2.5 on.

    Before, it returned the largest magnitude too: https://github.com/pytorch/pytorch/pull/128683.
    Asked of the operator itself, as vendors' builds lie between releases.
    """
    if not hasattr(torch, "float8_e4m3fn") or not hasattr(torch, "_scaled_mm"):
        return False
    return len(torch.ops.aten._scaled_mm.default._schema.returns) == 1


def side(device: str) -> int:
    """Rows and columns that suit a device."""
    import torch

    if device == "cpu":
        return CPU
    return LARGE if torch.cuda.get_device_properties(device).total_memory >= MUCH else SMALL


class Product:
    """The product of two square matrices of one type, in memory allocated once."""

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
        # Sums of parts of the known product need more than the eight bits that bf16 keeps.
        torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = False

    def fill(self, seed: int) -> None:
        """Random operands, normally distributed."""
        maker = self.torch.Generator(device=self.out.device).manual_seed(seed)
        for one in (self.a, self.b):
            shape, place = one.shape, self.out.device
            one.copy_(self.torch.randn(shape, generator=maker, device=place))

    def first(self, k: int) -> tuple[Any, Any]:
        """The beginning of the operands' memory, as matrices with `k` between them."""
        return (
            self.a.view(-1)[: self.size * k].view(self.size, k),
            self.b.view(-1)[: k * self.size].view(
                *((self.size, k) if self.kind == "fp8" else (k, self.size))
            ),
        )

    def multiply(self, a: Any = None, b: Any = None, *, fast: bool = True) -> None:
        """Enqueue one product. Tensor cores take fp8 with the second operand column by column.

        `fast`: fp8 is summed up as fast as the hardware does, in fewer bits than fp32 has.
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
    """The check on one device."""

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
            # A rank without the type waits with the others: equal devices have equal types.
            bench.at_once(CHECK, f"{kind} data", self._of(kind, self._prepare))
            bench.at_once(CHECK, f"{kind} load", self._of(kind, self._load))
            bench.at_once(CHECK, f"{kind} proof", self._of(kind, self._prove))
            if self.alone:
                bench.in_turn(CHECK, f"{kind} alone", self._of(kind, self._measure_alone))

    def _of(self, kind: str, work: Callable[[str], None]) -> Callable[[], None]:
        """`work` on a type, where the device has it."""

        def stage() -> None:
            if kind in self.kinds:
                work(kind)

        return stage

    def _choose(self) -> None:
        import torch

        device = self.bench.device
        self.size = self.size or side(device)
        why = {kind: lacking(torch, device, kind, self.types, self.size) for kind in KINDS}
        self.kinds = [kind for kind in KINDS if not why[kind]]
        self.bench.fact(CHECK, "left-out", {kind: text for kind, text in why.items() if text})

    def _prepare(self, kind: str) -> None:
        """Operands, warm-up, and the first product, which all others are to equal."""
        device = self.bench.device
        # What the type before held is free again before this one's is taken.
        self.product = None
        self.product = Product(device, kind, self.size)
        self.product.fill(self.seed)
        cpu = device == "cpu"
        self.watch = Stopwatch(device, 0.0 if cpu else 0.02)
        self.calls = self.watch.calls(self._once, WARM_CPU if cpu else WARM)
        self.reference = self.product.out.clone()

    def _once(self) -> None:
        self.bench.plant.drag()
        self.product.multiply()

    def _load(self, kind: str) -> None:
        torch, product = self.product.torch, self.product
        wanted, counts = exact_gemm.bits(torch, self.reference), []

        def compare() -> None:
            counts.append((exact_gemm.bits(torch, product.out) != wanted).sum())

        with Sampler(self.bench.device) as sampler:
            taken = self.watch.windows(
                self._once, self.calls, self.seconds,
                between=compare, middle=self.bench.plant.strike,
            )  # fmt: skip
        self._tell(kind, taken)
        self.bench.fact(CHECK, "load", {"type": kind, **sampler.summary()})
        wrong = torch.stack(counts).tolist()
        self.wrong = sum(wrong)
        if self.wrong:
            at = next(index for index, count in enumerate(wrong) if count)
            when = sum(taken[: at + 1])
            said = f"{kind}: {self.wrong} elements of {sum(map(bool, wrong))} of {len(wrong)} "
            said += "products of the same matrices differ from the first product, from "
            said += f"{when:.1f} s of load on"
            self.bench.wrong(CHECK, "wrong-result", said)

    def _tell(self, name: str, taken: list[float]) -> None:
        work = 2 * self.size**3 * self.calls / 1e12
        tell(CHECK, name, "TFLOP/s", taken, work, **self.bench.labels)

    def _measure_alone(self, kind: str) -> None:
        self._tell(f"{kind}-alone", self.watch.windows(self._once, self.calls, self.alone))

    def _prove(self, kind: str) -> None:
        """The product that is known, and what is to be equal on equal devices."""
        product, plant, torch = self.product, self.bench.plant, self.product.torch
        k = exact_gemm.inner(self.size)
        a, b = product.first(k)
        signs = [exact_gemm.signs(self.seed + n) for n in range(2)]
        for target, values in zip((a, b), signs, strict=True):
            exact_gemm.tile(
                target, exact_gemm.block(torch, exact_gemm.shifted(values), target.shape[1], target)
            )
        if "nan" in plant:
            a.view(-1)[a.numel() // 2] = float("nan")
        product.out.fill_(float("nan"))
        product.multiply(a, b, fast=False)
        if "flip" in plant:
            exact_gemm.bits(torch, product.out)[self.size // 2, self.size // 3] ^= 1
        rows = exact_gemm.block(
            torch, exact_gemm.product(signs[0], signs[1], k), self.size, product.out
        )
        found = exact_gemm.differs(torch, product.out, rows)
        count = self.wrong + (found.elements if found else 0)
        made = exact_gemm.digest(product.out)
        if found:
            every = self.size**2
            said = (
                f"{kind}: {found.elements} of {every} elements of a known product are wrong, first "
            )
            said += f"row {found.row}, column {found.column}: {found.got:.9g}, not {found.wanted:g}"
            cause = "not-finite" if found.strange else "wrong-result"
            self.bench.wrong(CHECK, cause, said)
        elif made != exact_gemm.digest_of(rows, self.size):
            count += 1
            said = f"{kind}: the known product is right on the device, not where the CPU reads it"
            self.bench.wrong(CHECK, "wrong-data", said)
        self.bench.metric(CHECK, f"{kind}-wrong", count, "count")
        value = {"type": kind, "size": self.size, "exact": made}
        if self.bench.device != "cpu":
            # CPUs of one name may still take different ways; GPUs of one name do not.
            value |= {"random": exact_gemm.digest(self.reference), **self._device()}
        self.bench.fact(CHECK, "digest", value)
        # The load of those who measure alone is random again.
        product.fill(self.seed)

    def _device(self) -> dict[str, str]:
        torch = self.product.torch
        name = torch.cuda.get_device_name(self.bench.device)
        return {"device": name, "software": f"torch {torch.__version__}, CUDA {torch.version.cuda}"}


if __name__ == "__main__":
    import devices

    devices.main("gemm")
