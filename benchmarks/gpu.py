"""Measure how close the programs come to the best calls on this GPU; check that a cap is found.

The programs and their yardsticks run on the first GPU, each in its own process. This also works
without the packages of other benchmarks: `python -m benchmarks.gpu`, with a Python that has torch.
The GPU is only capped with ACCEPT_BENCH_CAP=1, because that changes a setting of the machine. The
old setting is restored.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks import Row, table

_ROOT = Path(__file__).parents[1]
_PROGRAMS = _ROOT / "launchers" / "programs"
#: Smallest share of the best call's rate, largest spread over the runs, longest `quick` in seconds.
_SHARE, _SPREAD, _QUICK = 0.97, 0.01, 120
#: Largest ratio of a step of train.py to one of the bare loop.
_STEP = 1.03
_RUNS = 10
#: Seconds of one measurement.
_SECONDS = 1.0
#: Share of the default power limit in the test with a cap.
_CAP = 0.85
_REJECTED = 3


def rows() -> list[Row]:
    """Measure everything. Without a GPU, return one row that gives the reason."""
    if reason := _why_not():
        return [Row(what="GPU", measured=f"not measured: {reason}")]
    return [*_gemm_rows(), *_copy_rows(), _train_row(), _quick_row(), _capped_row()]


def _why_not() -> str:
    try:
        import torch
    except ImportError as error:
        return f"{sys.executable} cannot import torch ({error})"
    return "" if torch.cuda.is_available() else f"torch {torch.__version__} sees no GPU"


def _process(*command: str) -> str:
    """Return the output of a Python program in a new process."""
    environment = {**os.environ, "PYTHONPATH": f"{_PROGRAMS}:{_ROOT}:{_ROOT / 'cli'}"}
    done = subprocess.run(
        [sys.executable, *command], env=environment, check=True, stdout=subprocess.PIPE, text=True
    )
    return done.stdout


def _yardstick(name: str, device: str) -> Any:
    """Return the JSON that this module prints in a new process."""
    return json.loads(_process(str(Path(__file__)), name, device).splitlines()[-1])


def _rates(program: str, *options: str, runs: int = _RUNS) -> dict[str, list[float]]:
    """Return the metrics of several runs of a program, by name."""
    rates: dict[str, list[float]] = {}
    for _ in range(runs):
        for line in _process(str(_PROGRAMS / program), *options).splitlines():
            record = json.loads(line[7:]) if line.startswith("ACCEPT {") else {}
            if "metric" in record:
                rates.setdefault(record["metric"], []).append(record["value"])
    return rates


def _share_row(what: str, rates: list[float], best: dict[str, float], unit: str) -> Iterator[Row]:
    """Yield the row that compares with the best call, and the row of the spread."""
    ours, name = median(rates), max(best, key=lambda call: best[call])
    yield Row(
        what=what,
        measured=f"{ours:.4g} {unit}",
        yardstick=f"best call, {name}: {best[name]:.4g} {unit}",
        ratio=ours / best[name],
        bar=f"at least {_SHARE}",
        met=ours >= _SHARE * best[name],
    )
    spread = (max(rates) - min(rates)) / ours
    yield Row(
        what=f"… spread over {len(rates)} runs",
        measured=f"{spread:.2%}",
        bar=f"at most {_SPREAD:.0%}",
        met=spread <= _SPREAD,
    )


def _gemm_rows() -> Iterator[Row]:
    rates = _rates("gemm.py", "--seconds", str(_SECONDS), "--alone", "0")
    for kind, best in _yardstick("gemm", "cuda").items():
        yield from _share_row(f"`gemm.py`, {kind}", rates[kind], best, "TFLOP/s")


def _copy_rows() -> Iterator[Row]:
    # A small share, because only the copies count here.
    options = ("--seconds", str(_SECONDS), "--alone", "0", "--share", "0.1")
    rates = _rates("memory.py", *options)["copy"]
    yield from _share_row("`memory.py`, copy", rates, _yardstick("copy", "cuda"), "GB/s")


def _train_row() -> Row:
    ours, bare = _yardstick("train", "cuda")
    return Row(
        what="`train.py`, a step on the GPU",
        measured=f"{1e3 * ours:.2f} ms",
        yardstick=f"bare torch loop {1e3 * bare:.2f} ms",
        ratio=ours / bare,
        bar=f"{_STEP}",
        met=ours <= _STEP * bare,
    )


def _accept(*arguments: str) -> tuple[int, float, str]:
    """Run `accept` on one GPU; return its exit status, its seconds, and its last line."""
    with tempfile.TemporaryDirectory() as runs:
        environment = {**os.environ, "PYTHONPATH": f"{_ROOT / 'cli'}", "ACCEPT_RUNS": runs}
        command = [sys.executable, "-m", "accept", "run", "--gpus-per-node", "1", *arguments]
        began = time.perf_counter()
        done = subprocess.run(
            command, env=environment, capture_output=True, text=True, check=False, timeout=900
        )
        lines = (done.stdout or done.stderr).strip().splitlines()
        return done.returncode, time.perf_counter() - began, lines[-1] if lines else ""


def _quick_row() -> Row:
    status, seconds, last = _accept("--suite", "quick")
    return Row(
        what="`accept run --suite quick` on one GPU",
        measured=f"{seconds:.0f} s, exit {status}" + ("" if status in (0, 7) else f": {last[:80]}"),
        bar=f"at most {_QUICK} s",
        met=status in (0, 7) and seconds <= _QUICK,
    )


def _capped_row() -> Row:
    what = f"`quick` with the power limit at {_CAP:.0%}"
    if os.environ.get("ACCEPT_BENCH_CAP") != "1":
        return Row(what=what, measured="not measured: needs ACCEPT_BENCH_CAP=1 and root")
    try:
        with _power_limit(_CAP):
            status, _, _ = _accept("--suite", "quick")
    except (OSError, subprocess.CalledProcessError, ValueError) as error:
        return Row(what=what, measured=f"not measured: {error}")
    return Row(
        what=what,
        measured=f"exit {status}",
        bar=f"exit {_REJECTED}",
        met=status == _REJECTED,
    )


@contextmanager
def _power_limit(share: float) -> Iterator[None]:
    """Set the power limit of GPU 0 to a share of its default; restore the old one at the end.

    Raises OSError, CalledProcessError or ValueError if the machine does not permit it.
    """
    smi = shutil.which("nvidia-smi")
    if smi is None:
        raise OSError("no nvidia-smi")

    def ask(*arguments: str) -> str:
        command = [smi, "--id=0", *arguments]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout

    query = "--query-gpu=power.limit,power.default_limit"
    old, default = (float(text) for text in ask(query, "--format=csv,noheader,nounits").split(","))
    ask(f"--power-limit={share * default:.0f}")
    try:
        yield
    finally:
        ask(f"--power-limit={old:.0f}")


# Yardsticks, each in its own process


def _rate(watch: Any, call: Callable[[], object], work: float, seconds: float) -> float:
    """Return the median rate of a call that does `work`."""
    calls: int = watch.calls(call, seconds / 4)
    windows: list[float] = watch.windows(call, calls, seconds)
    return work * calls / median(windows) / 1e9


def gemm(device: str, seconds: float = _SECONDS) -> dict[str, dict[str, float]]:
    """Return the rates of all calls that multiply matrices of gemm.py's size, by data type."""
    import torch

    from gemm import KINDS, Product, left_out, side
    from windowed_timer import WINDOW_SECONDS, WindowedTimer

    size = side(device)
    watch = WindowedTimer(device, 0.0 if device == "cpu" else WINDOW_SECONDS)
    work = 2 * size**3 / 1e3
    found = {}
    for kind in (kind for kind in KINDS if kind not in left_out(device, "", size)):
        product = Product(device, kind, size)
        product.fill(1)
        calls = _scaled_products(product) if kind == "fp8" else _products(torch, product)
        found[kind] = {name: _rate(watch, call, work, seconds) for name, call in calls}
    return found


def _scaled_products(product: Any) -> Iterator[tuple[str, Callable[[], object]]]:
    """Yield the fp8 product with fast accumulation, and with accumulation in full precision."""
    yield "_scaled_mm", product.multiply
    yield "_scaled_mm in full precision", lambda: product.multiply(fast=False)


def _products(torch: Any, product: Any) -> Iterator[tuple[str, Callable[[], object]]]:
    """Yield a product in every layout with both of NVIDIA's libraries.

    The library is chosen when a call is yielded, so each must be measured before the next one.
    """
    a, b, out = product.a, product.b, product.out
    layouts = {"NN": (a, b), "NT": (a, b.t()), "TN": (a.t(), b), "TT": (a.t(), b.t())}
    for library in ("cublas", "cublaslt") if a.is_cuda else ("",):
        if library:
            torch.backends.cuda.preferred_blas_library(library)
        for layout, (first, second) in layouts.items():
            yield f"mm {layout} {library}".strip(), partial(torch.mm, first, second, out=out)


def copy(device: str, seconds: float = _SECONDS) -> dict[str, float]:
    """Return the rates of all kernels that copy an array, in GB/s."""
    import torch

    from windowed_timer import WINDOW_SECONDS, WindowedTimer

    watch = WindowedTimer(device, 0.0 if device == "cpu" else WINDOW_SECONDS)
    count = (4 << 30 if device != "cpu" else 1 << 22) // 4
    a, b = (torch.zeros(count, dtype=torch.float32, device=device) for _ in range(2))
    kernels: dict[str, Callable[[], object]] = {
        "copy_": lambda: a.copy_(b),
        "abs": lambda: torch.abs(b, out=a),
        "mul": lambda: torch.mul(b, 1.0, out=a),
        "add": lambda: torch.add(b, 0.0, out=a),
    }
    work = 2.0 * count * 4
    return {name: _rate(watch, kernel, work, seconds) for name, kernel in kernels.items()}


def train(device: str) -> tuple[float, float]:
    """Return the seconds of a step of train.py and of the bare loop."""
    from benchmarks.training import measure

    return measure("--model gpt-tiny --parallel flat", steps=200, device=device)


_YARDSTICKS: dict[str, Callable[[str], object]] = {"gemm": gemm, "copy": copy, "train": train}

if __name__ == "__main__":
    if len(sys.argv) == 1:
        print(table(rows()))
    else:
        print(json.dumps(_YARDSTICKS[sys.argv[1]](sys.argv[2])))
