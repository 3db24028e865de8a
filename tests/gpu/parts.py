"""The parts of `make test-gpu`: the programs that each one starts, and the results it requires.

Only the standard library is imported, because the interpreter may have torch and little else.
"""

from __future__ import annotations

import json
import os
import platform
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
PROGRAMS = ROOT / "launchers" / "programs"
#: The packages that `make gpu-kit` prepared for this version of Python.
KIT = ROOT / "build" / "gpu-kit" / f"{sys.version_info.major}.{sys.version_info.minor}"
#: Folders with nccl-tests, besides PATH, as in docker/README.md.
_NCCL_TESTS = ("/opt/nccl-tests/build", "/third_party/nccl-tests/build")
#: Packages that the command line imports.
_COMMAND_LINE = ("jinja2", "pynvml", "rich", "typer", "yaml")
#: Exit codes of a run whose hardware is good: passed, or no bound is known for this GPU.
_GOOD = (0, 7)
_REJECTED = 3
_INTERRUPTED = 5
#: Seconds of the shortest run, and from a run's deadline to its end.
_LEAST_RUN, _ENDING = 60.0, 40.0


class Skipped(Exception):
    """A part cannot run here; the message is the reason."""


class Failed(Exception):
    """A part ran and its result is wrong; the message is the reason."""


@dataclass(frozen=True, kw_only=True)
class Gpus:
    """The devices that the parts use. Without GPUs, parts that need none run on the CPU."""

    count: int
    name: str
    #: Peak rates of the GPU by metric of `gemm` and `memory`; empty if unknown.
    peaks: Mapping[str, float]

    @property
    def device(self) -> str:
        """Return the programs' name of the kind of device."""
        return "cuda" if self.count else "cpu"


class Ran(NamedTuple):
    """The exit status and the output of a program."""

    exit: int
    text: str

    def records(self, key: str) -> list[dict[str, object]]:
        """Return the record lines that have a key, such as "metric"."""
        lines = (line for line in self.text.splitlines() if line.startswith("ACCEPT {"))
        parsed = (json.loads(line.removeprefix("ACCEPT ")) for line in lines)
        return [record for record in parsed if key in record]


def environment(**more: str) -> dict[str, str]:
    """Return the environment of the programs: the kit, this interpreter, and no other run's."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("ACCEPT_", "OMPI_", "PMIX_"))}
    if KIT.is_dir():
        kept["PATH"] = f"{KIT / 'bin'}:{kept.get('PATH', '')}"
    beside = str(Path(sys.executable).parent)
    kept["PATH"] = f"{beside}:{kept.get('PATH', '')}"
    paths = (str(ROOT / "cli"), str(KIT), kept.get("PYTHONPATH", ""))
    kept["PYTHONPATH"] = ":".join(path for path in paths if path)
    return {**kept, "ACCEPT_PYTHON": sys.executable, **more}


def start(command: list[str], seconds: float, **more: str) -> Ran:
    """Run a program for at most `seconds`. Raises Failed if it takes longer."""
    with subprocess.Popen(
        command,
        env=environment(**more),
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    ) as process:
        try:
            output, _ = process.communicate(timeout=max(1.0, seconds))
        except subprocess.TimeoutExpired as error:
            # The ranks, too, because they would keep the GPUs busy.
            os.killpg(process.pid, signal.SIGKILL)
            raise Failed(f"did not end within {seconds:.0f} s: {' '.join(command[:4])}") from error
    return Ran(process.returncode, output.decode(errors="replace"))


def fail(problem: str, ran: Ran) -> Failed:
    """Return the failure of a program, with the end of its output."""
    last = " / ".join(ran.text.strip().splitlines()[-3:])
    return Failed(f"{problem}; exit {ran.exit}: {last[:400]}")


def completed(command: list[str], seconds: float) -> Ran:
    """Run a program that must succeed and report no problem. Raises Failed."""
    ran = start(command, seconds)
    if ran.exit != 0 or ran.records("problem"):
        raise fail("failed or found a problem", ran)
    return ran


def with_peaks(ran: Ran, gpus: Gpus) -> str:
    """Return the median rate of each metric that has a peak, and its share of the peak."""
    rates: dict[str, list[float]] = {}
    units: dict[str, str] = {}
    for record in ran.records("metric"):
        name, value = str(record["metric"]), record.get("value")
        if isinstance(value, int | float) and re.fullmatch("bf16|fp8|tf32|fp32|copy|triad", name):
            rates.setdefault(name, []).append(float(value))
            units[name] = str(record.get("unit", ""))
    parts = []
    for name, values in rates.items():
        rate = sorted(values)[len(values) // 2]
        peak = gpus.peaks.get(name)
        share = f", {rate / peak:.0%} of {peak:g}" if peak else ""
        parts.append(f"{name} {rate:.3g} {units[name]}{share}")
    return "; ".join(parts)


def _program(name: str, *arguments: str) -> list[str]:
    return [sys.executable, str(PROGRAMS / name), *arguments]


def _ranks(gpus: Gpus, name: str, *arguments: str) -> list[str]:
    """Return a command that starts one rank for each GPU, or two on the CPU."""
    ranks = str(gpus.count or 2)
    launcher = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", ranks]
    # After `--`, torchrun does not take options such as --max for its own.
    return [*launcher, "--master-port", "29577", "--", str(PROGRAMS / name), *arguments]


def health(gpus: Gpus, seconds: float) -> str:
    """Read the health of every GPU."""
    ran = completed(_program("health.py", "--quiet"), seconds)
    values = [record["value"] for record in ran.records("fact")]
    devices = [d for v in values if isinstance(v, dict) for d in v.get("devices", ())]
    found = [device for device in devices if device.get("kind") == "gpu"]
    unread = [gap for v in values if isinstance(v, dict) for gap in v.get("unread", ())]
    if len(found) < gpus.count:
        raise fail(f"{len(found)} of {gpus.count} GPUs were read", ran)
    reasons = ", ".join(str(gap.get("reason")) for gap in unread) or "nothing"
    return f"{len(found)} GPUs, {len(devices)} devices; not readable: {reasons}"


def inventory(gpus: Gpus, seconds: float) -> str:
    """List the GPUs of this machine."""
    ran = completed(_program("inventory.py"), seconds)
    (value,) = (r["value"] for r in ran.records("fact") if r["fact"] == "inventory")
    assert isinstance(value, dict)
    listed = value.get("gpus") or []
    if len(listed) < gpus.count:
        raise fail(f"{len(listed)} of {gpus.count} GPUs are listed", ran)
    return ", ".join(f"{key} {text}" for key, text in value.get("versions", {}).items() if text)


def gemm(gpus: Gpus, seconds: float) -> str:
    """Multiply matrices on every GPU."""
    command = _ranks(gpus, "gemm.py", "--seconds", "2", "--device", gpus.device)
    return with_peaks(completed(command, seconds), gpus)


def memory(gpus: Gpus, seconds: float) -> str:
    """Test the memory of every GPU."""
    command = _ranks(gpus, "memory.py", "--seconds", "2", "--device", gpus.device)
    return with_peaks(completed(command, seconds), gpus)


def collectives(gpus: Gpus, seconds: float) -> str:
    """Run the collectives of torch on all GPUs."""
    if gpus.count == 1:
        raise Skipped("one GPU has no peer")
    size = ("--min", "1M", "--max", "256M") if gpus.count else ("--min", "4K", "--max", "1M")
    completed(_ranks(gpus, "collective.py", *size, "--device", gpus.device), seconds)
    return f"{gpus.count or 2} ranks, results correct"


def train(gpus: Gpus, seconds: float) -> str:
    """Train two small models."""
    texts, end = [], time.monotonic() + seconds
    for model in ("mlp", "gpt-tiny"):
        command = _ranks(gpus, "train.py", "--model", model, "--device", gpus.device)
        ran = completed(command, end - time.monotonic())
        rates = [r["value"] for r in ran.records("metric") if r["metric"] == "throughput"]
        texts.append(f"{model}: {', '.join(f'{float(str(rate)):.3g}' for rate in rates)} samples/s")
    return "; ".join(texts)


def ping(gpus: Gpus, seconds: float) -> str:
    """Connect the ranks over MPI."""
    _needs_mpi()
    command = ["mpirun", "--allow-run-as-root", "--oversubscribe", "-n", "2"]
    completed([*command, *_program("ping.py")], seconds)
    return "2 ranks"


def faults(gpus: Gpus, seconds: float) -> str:
    """Inject the faults of a drill into the programs, which must report each one."""
    cases = (
        ("gemm.py", "flip", ("--seconds", "0.5", "--alone", "0"), "wrong-result"),
        ("memory.py", "flip", ("--seconds", "0.5", "--alone", "0"), "wrong-data"),
        ("gemm.py", "nan", ("--seconds", "0.5", "--alone", "0"), "not-finite"),
        ("train.py", "nan", (), "not-finite"),
    )
    end = time.monotonic() + seconds
    for program, fault, options, cause in cases:
        ran = start(
            _ranks(gpus, program, "--device", gpus.device, *options),
            end - time.monotonic(),
            ACCEPT_HOST="h0",
            ACCEPT_INJECT=f"{fault}@h0:0",
        )
        causes = {record["problem"] for record in ran.records("problem")}
        if cause not in causes:
            raise fail(f"{fault} in {program} was not reported as {cause}", ran)
    return ", ".join(f"{fault} in {program}" for program, fault, _, _ in cases)


def nccl_tests(gpus: Gpus, seconds: float) -> str:
    """Run nccl-tests, if they are installed."""
    if not gpus.count:
        raise Skipped("no GPU")
    search = ":".join((os.environ.get("PATH", ""), *_NCCL_TESTS, str(KIT / "nccl-tests")))
    program = shutil.which("all_reduce_perf", path=search)
    if program is None:
        raise Skipped("nccl-tests are not installed")
    ran = start([program, "-b", "8M", "-e", "1G", "-f", "2", "-g", str(gpus.count)], seconds)
    if ran.exit != 0 or "0 OK" not in ran.text:
        raise fail("all_reduce_perf failed", ran)
    found = re.search(r"Avg bus bandwidth\s*:\s*([\d.]+)", ran.text)
    return f"average {found[1]} GB/s" if found else "results correct"


def run_quick(gpus: Gpus, seconds: float) -> str:
    """Run the suite quick with the command line."""
    return _accept(gpus, "run", "--suite", "quick", seconds=seconds, codes=_GOOD)


def run_faulty(gpus: Gpus, seconds: float) -> str:
    """Run gemm and memory with a flipped bit in GPU 0; the run must be rejected."""
    inject = f"flip@{platform.node()}:0"
    command = ("run", "--suite", str(_device_suite()), "--inject", inject)
    return _accept(gpus, *command, seconds=seconds, codes=(_REJECTED,))


def run_standard(gpus: Gpus, seconds: float) -> str:
    """Run the suite standard on one GPU, within the time that is left."""
    one = ("--gpus-per-node", "1") if gpus.count else ()
    return _accept(gpus, "run", "--suite", "standard", *one, seconds=seconds, codes=_GOOD)


def _device_suite() -> Path:
    """Write a suite of the two checks of single GPUs; return its file."""
    path = Path(tempfile.mkdtemp(prefix="accept-gpu-")) / "devices.yaml"
    path.write_text(
        "name: devices\ndescription: Single GPUs.\ndeadline: 10m\nchecks:\n"
        "  - check: inventory\n  - {check: gemm, params: {seconds: 1}}\n"
        "  - {check: memory, params: {seconds: 1}}\n"
    )
    return path


def _accept(gpus: Gpus, *arguments: str, seconds: float, codes: tuple[int, ...]) -> str:
    """Run the command line; return the verdict and the measured rates of single GPUs."""
    _needs_mpi()
    if sys.version_info < (3, 11):
        raise Skipped("the command line needs Python 3.11")
    if missing := [name for name in _COMMAND_LINE if not _has(name)]:
        raise Skipped(f"this Python lacks {', '.join(missing)}: make gpu-kit")
    if seconds < _LEAST_RUN:
        raise Skipped(f"only {seconds:.0f} s are left")
    machine = () if gpus.count else ("--machine", "cpu")
    # A run is not killed with its command, so it must end before, and is cancelled otherwise.
    deadline = ("--deadline", f"{seconds - _ENDING:.0f}s")
    with tempfile.TemporaryDirectory(prefix="accept-gpu-") as runs:
        command = [sys.executable, "-m", "accept", *arguments, *machine, *deadline]
        try:
            ran = start(command, seconds, ACCEPT_RUNS=runs)
        except Failed:
            cancel = [sys.executable, "-m", "accept", "cancel", "last"]
            start(cancel, _ENDING, ACCEPT_RUNS=runs)
            raise
        verdicts = [json.loads(path.read_bytes()) for path in Path(runs).rglob("verdict.json")]
    if ran.exit == _INTERRUPTED:
        raise Skipped(f"did not end within {seconds - _ENDING:.0f} s")
    if ran.exit not in codes or not verdicts:
        raise fail(f"accept {' '.join(arguments[:3])} must exit with one of {codes}", ran)
    measured = [c["measured"] for c in verdicts[0]["checks"] if c["check"] in ("gemm", "memory")]
    return "; ".join((f"exit {ran.exit}: {verdicts[0]['headline']}", *filter(None, measured)))


def _needs_mpi() -> None:
    if shutil.which("mpirun", path=environment()["PATH"]) is None:
        raise Skipped("no mpirun: make gpu-kit")
    if not _has("mpi4py"):
        raise Skipped("this Python lacks mpi4py: make gpu-kit")


def _has(name: str) -> bool:
    return find_spec(name) is not None or (KIT / name).is_dir() or (KIT / f"{name}.py").is_file()


#: In the order of execution: short ones first.
PARTS: tuple[Callable[[Gpus, float], str], ...] = (
    inventory, health, ping, gemm, memory, collectives, train, nccl_tests, faults,
    run_quick, run_faulty, run_standard,
)  # fmt: skip
