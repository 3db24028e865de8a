"""The parts of `make test-gpu`: the programs that each one starts, and the results it requires.

A part that starts `accept run` is judged by its verdict, with the readers and rules of every run.
The output of each program is kept in the folder of raw outputs, and can become a fixture.
Only the standard library is imported, because the interpreter may have torch and little else.
"""

from __future__ import annotations

import json
import os
import platform
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).parents[2]
PROGRAMS = ROOT / "launchers" / "programs"
#: The packages that `tests/gpu/kit.sh` prepared for this version of Python.
KIT = ROOT / "build" / "gpu-kit" / f"{sys.version_info.major}.{sys.version_info.minor}"
#: Packages that the command line imports.
_COMMAND_LINE = ("jinja2", "pynvml", "rich", "typer", "yaml")
#: Exit codes of a run whose hardware is good: passed, or no bound is known for this GPU.
_GOOD = (0, 7)
_REJECTED = 3
#: Seconds in which the driver reports an Xid to its watcher.
_XID_SECONDS = 10.0
_INTERRUPTED = 5
#: Error code of a run whose deadline is shorter than its estimate.
_TOO_SHORT = "E-OPTION-DEADLINE"
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
    #: Folder of the raw outputs.
    out: Path

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


def start(command: list[str], seconds: float, keep: Path | None = None, **more: str) -> Ran:
    """Run a program for at most `seconds`, `keep` its output. Raises Failed if it takes longer."""
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
    ran = Ran(process.returncode, output.decode(errors="replace"))
    if keep is not None:
        keep.parent.mkdir(parents=True, exist_ok=True)
        keep.write_text(f"$ {shlex.join(command)}\n{ran.text}# exit {ran.exit}\n")
    return ran


def fail(problem: str, ran: Ran) -> Failed:
    """Return the failure of a program, with the end of its output."""
    last = " / ".join(ran.text.strip().splitlines()[-3:])
    return Failed(f"{problem}; exit {ran.exit}: {last[:400]}")


def completed(command: list[str], seconds: float, keep: Path | None = None) -> Ran:
    """Run a program that must succeed and report no problem. Raises Failed."""
    ran = start(command, seconds, keep)
    if ran.exit != 0 or ran.records("problem"):
        raise fail("failed or found a problem", ran)
    return ran


def _program(name: str, *arguments: str) -> list[str]:
    return [sys.executable, str(PROGRAMS / name), *arguments]


def _ranks(gpus: Gpus, name: str, *arguments: str) -> list[str]:
    """Return a command that starts one rank for each GPU, or two on the CPU."""
    ranks = str(gpus.count or 2)
    launcher = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", ranks]
    # After `--`, torchrun does not take options such as --max for its own.
    return [*launcher, "--master-port", "29577", "--", str(PROGRAMS / name), *arguments]


def facts(gpus: Gpus, seconds: float) -> str:
    """Record what NVIDIA's tools and bindings print here."""
    completed([sys.executable, "-m", "tests.gpu.facts", str(gpus.out / "facts")], seconds)
    return str(gpus.out / "facts")


def readings(gpus: Gpus, seconds: float) -> str:
    """Start the programs that read GPUs as a person would, and require every GPU."""
    end = time.monotonic() + seconds
    texts = []
    for name, options in (("inventory", ()), ("health", ()), ("health", ("--quiet",))):
        began = time.monotonic()
        keep = gpus.out / f"{'-'.join((name, *(o.strip('-') for o in options)))}.txt"
        ran = completed(_program(f"{name}.py", *options), end - began, keep)
        found = _gpus_in(ran)
        if found < gpus.count:
            raise fail(f"{name} shows {found} of {gpus.count} GPUs", ran)
        texts.append(f"{name} {time.monotonic() - began:.1f} s")
    return f"{gpus.count} GPUs; {', '.join(texts)}"


def _gpus_in(ran: Ran) -> int:
    """Return the number of GPUs in the facts `inventory` or `health`."""
    values = [record["value"] for record in ran.records("fact")]
    parts = [value for value in values if isinstance(value, dict)]
    listed = [gpu for value in parts for gpu in value.get("gpus") or ()]
    read = [d for value in parts for d in value.get("devices", ()) if d.get("kind") == "gpu"]
    return len(listed) + len(read)


#: Write far beyond an array: the driver reports Xid 31, or 13.
_ILLEGAL_ACCESS = """
import torch
source = 'extern "C" __global__ void write(float *data) { data[1LL << 40] = 1; }'
kernel = torch.cuda._compile_kernel(source, "write")
kernel((1, 1, 1), (1, 1, 1), (torch.empty(1, device="cuda"),))
torch.cuda.synchronize()
"""


def xid(gpus: Gpus, seconds: float) -> str:
    """Cause an illegal access, which the watcher of Xids must see."""
    if not gpus.count:
        raise Skipped("no GPU")
    file = gpus.out / "xids.jsonl"
    file.parent.mkdir(parents=True, exist_ok=True)
    watched = _program("health.py", "--quiet", "--watch", str(file))
    try:
        completed(watched, seconds, gpus.out / "health-before-xid.txt")
        access = [sys.executable, "-c", _ILLEGAL_ACCESS]
        ran = start(access, seconds, gpus.out / "illegal-access.txt")
        if "illegal memory access" not in ran.text:
            raise Skipped(f"this torch makes no illegal access: {ran.text.strip()[-100:]}")
        until = time.monotonic() + _XID_SECONDS
        while '"code"' not in file.read_text() and time.monotonic() < until:
            time.sleep(0.2)
        ran = completed(watched, seconds, gpus.out / "health-after-xid.txt")
        seen = file.read_text()
    finally:
        file.unlink(missing_ok=True)
    (gpus.out / "xids.txt").write_text(seen)
    codes = [line["code"] for line in map(json.loads, seen.splitlines()) if "code" in line]
    if not {13, 31} & set(codes):
        raise fail(f"the watcher saw the Xids {codes}, not 13 or 31", ran)
    return f"Xids {codes}"


def rates(gpus: Gpus, seconds: float) -> str:
    """Measure arithmetic and memory for 10 s each; no rate may miss a bound of the chip."""
    suite = _device_suite("rates", 10 if gpus.count else 1)
    command = ("run", "--suite", str(suite))
    verdict = _accept(gpus, *command, seconds=seconds, codes=_GOOD)
    room: dict[str, float] = {}
    for finding in (f for c in verdict["checks"] for f in c["findings"]):
        lower = (finding.get("bound") or {}).get("lower")
        if lower and finding.get("value"):
            name, share = finding["metric"], finding["value"] / lower - 1
            room[name] = min(share, room.get(name, share))
    if gpus.peaks and not room:
        raise Failed(f"no bound judged the rates of {gpus.name}")
    texts = (f"{name} {share:+.0%} above its bound" for name, share in sorted(room.items()))
    return "; ".join((_summary(verdict), *texts))


def collectives(gpus: Gpus, seconds: float) -> str:
    """Run the collectives of torch on all GPUs."""
    if gpus.count == 1:
        raise Skipped("one GPU has no peer")
    size = ("--min", "1M", "--max", "256M") if gpus.count else ("--min", "4K", "--max", "1M")
    command = _ranks(gpus, "collective.py", *size, "--device", gpus.device)
    completed(command, seconds, gpus.out / "collectives.txt")
    return f"{gpus.count or 2} ranks, results correct"


def train(gpus: Gpus, seconds: float) -> str:
    """Train two small models."""
    texts, end = [], time.monotonic() + seconds
    for model in ("mlp", "gpt-tiny"):
        command = _ranks(gpus, "train.py", "--model", model, "--device", gpus.device)
        ran = completed(command, end - time.monotonic(), gpus.out / f"train-{model}.txt")
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
            gpus.out / f"fault-{fault}-{program.removesuffix('.py')}.txt",
            ACCEPT_HOST="h0",
            ACCEPT_INJECT=f"{fault}@h0:0",
        )
        causes = {record["problem"] for record in ran.records("problem")}
        if cause not in causes:
            raise fail(f"{fault} in {program} was not reported as {cause}", ran)
    return ", ".join(f"{fault} in {program}" for program, fault, _, _ in cases)


def nccl_tests(gpus: Gpus, seconds: float) -> str:
    """Run nccl-tests, if they are installed."""
    # `peaks_of` has put the checkout on the path of an interpreter without accept.
    from accept.core.catalog.tools import NCCL_TESTS_FOLDERS

    if not gpus.count:
        raise Skipped("no GPU")
    search = ":".join((os.environ.get("PATH", ""), *NCCL_TESTS_FOLDERS, str(KIT / "nccl-tests")))
    program = shutil.which("all_reduce_perf", path=search)
    if program is None:
        raise Skipped("nccl-tests are not installed")
    command = [program, "-b", "8M", "-e", "1G", "-f", "2", "-g", str(gpus.count)]
    ran = start(command, seconds, gpus.out / "nccl-tests.txt")
    if ran.exit != 0 or "0 OK" not in ran.text:
        raise fail("all_reduce_perf failed", ran)
    found = re.search(r"Avg bus bandwidth\s*:\s*([\d.]+)", ran.text)
    return f"average {found[1]} GB/s" if found else "results correct"


def run_quick(gpus: Gpus, seconds: float) -> str:
    """Run the suite quick with the command line."""
    command = ("run", "--suite", "quick")
    return _summary(_accept(gpus, *command, seconds=seconds, codes=_GOOD))


def run_faulty(gpus: Gpus, seconds: float) -> str:
    """Run gemm and memory with a flipped bit in GPU 0; the run must be rejected."""
    inject = ("--inject", f"flip@{platform.node()}:0")
    command = ("run", "--suite", str(_device_suite("faulty", 1)), *inject)
    return _summary(_accept(gpus, *command, seconds=seconds, codes=(_REJECTED,)))


def run_standard(gpus: Gpus, seconds: float) -> str:
    """Run the suite standard on one GPU, within the time that is left."""
    one = replace(gpus, count=min(1, gpus.count))
    command = ("run", "--suite", "standard")
    return _summary(_accept(one, *command, seconds=seconds, codes=_GOOD))


def _device_suite(name: str, seconds: int) -> Path:
    """Write a suite of the two checks of single GPUs; return its file."""
    path = Path(tempfile.mkdtemp(prefix="accept-gpu-")) / f"{name}.yaml"
    path.write_text(
        f"name: {name}\ndescription: Single GPUs.\ndeadline: 10m\nchecks:\n"
        f"  - check: inventory\n  - {{check: gemm, params: {{seconds: {seconds}}}}}\n"
        f"  - {{check: memory, params: {{seconds: {seconds}}}}}\n"
    )
    return path


def _accept(gpus: Gpus, *arguments: str, seconds: float, codes: tuple[int, ...]) -> dict[str, Any]:
    """Run the command line; return the verdict. Its evidence is kept as an archive."""
    _needs_mpi()
    if sys.version_info < (3, 11):
        raise Skipped("the command line needs Python 3.11")
    if missing := [name for name in _COMMAND_LINE if not _has(name)]:
        raise Skipped(f"this Python lacks {', '.join(missing)}: tests/gpu/kit.sh")
    if seconds < _LEAST_RUN:
        raise Skipped(f"only {seconds:.0f} s are left")
    # Without the number, the time of eight GPUs is planned.
    machine = ("--gpus-per-node", str(gpus.count)) if gpus.count else ("--machine", "cpu")
    # A run is not killed with its command, so it must end before, and is cancelled otherwise.
    deadline = ("--deadline", f"{seconds - _ENDING:.0f}s")
    kept = gpus.out / f"run-{Path(arguments[2]).stem}{'-faulty' * ('--inject' in arguments)}"
    with tempfile.TemporaryDirectory(prefix="accept-gpu-") as runs:
        command = [sys.executable, "-m", "accept", *arguments, *machine, *deadline]
        try:
            ran = start(command, seconds, kept.with_suffix(".txt"), ACCEPT_RUNS=runs)
        except Failed:
            cancel = [sys.executable, "-m", "accept", "cancel", "last"]
            start(cancel, _ENDING, ACCEPT_RUNS=runs)
            raise
        verdicts = [json.loads(path.read_bytes()) for path in Path(runs).rglob("verdict.json")]
        for evidence in Path(runs).glob("*/evidence"):
            shutil.make_archive(str(kept), "gztar", evidence.parent, "evidence")
    if refusal := re.search(rf"\[{_TOO_SHORT}\]: (.*)", ran.text):
        raise Skipped(f"{refusal[1]}, which is the rest of --limit less {_ENDING:.0f} s")
    if ran.exit == _INTERRUPTED:
        raise Skipped(f"did not end within {seconds - _ENDING:.0f} s")
    if ran.exit not in codes or not verdicts:
        raise fail(f"accept {' '.join(arguments[:3])} must exit with one of {codes}", ran)
    verdict: dict[str, Any] = verdicts[0]
    return verdict


def _summary(verdict: Mapping[str, Any]) -> str:
    """Return the headline of a verdict and the measured rates of single GPUs."""
    measured = [c["measured"] for c in verdict["checks"] if c["check"] in ("gemm", "memory")]
    return "; ".join((f"exit {verdict['exit']}: {verdict['headline']}", *filter(None, measured)))


def _needs_mpi() -> None:
    if shutil.which("mpirun", path=environment()["PATH"]) is None:
        raise Skipped("no mpirun: tests/gpu/kit.sh")
    if not _has("mpi4py"):
        raise Skipped("this Python lacks mpi4py: tests/gpu/kit.sh")


def _has(name: str) -> bool:
    return find_spec(name) is not None or (KIT / name).is_dir() or (KIT / f"{name}.py").is_file()


#: Commands of at most 9 minutes each, in the order of execution. The riskiest come first.
GROUPS: Mapping[str, tuple[Callable[[Gpus, float], str], ...]] = {
    "contact": (facts, readings, run_quick, xid),
    "rates": (rates, ping, collectives, train, nccl_tests),
    "runs": (faults, run_faulty, run_standard),
}
