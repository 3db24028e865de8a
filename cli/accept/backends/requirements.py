"""List the tools and GPUs of a host and the programs that use them, with one sh script."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache
from pathlib import Path
from shlex import quote

from accept.config import resources
from accept.config.site import Tools
from accept.core import bounded
from accept.core.by_key import by_key
from accept.core.catalog.tools import Tool
from accept.core.checks import REGISTRY, checks_of
from accept.core.error_codes import Code
from accept.core.errors import NotStarted
from accept.core.text import decimal
from accept.plan.resolve import Resolved


def _functions(name: str) -> str:
    return (resources.launchers() / name).read_text(encoding="utf-8")


_FIXED = r"""
echo "bash $(command -v bash)"
echo "sshd $(command -v sshd || ls /usr/sbin/sshd 2>/dev/null)"
echo "unpacker $(find_unpacker)"
echo "ip $(command -v ip)"
echo "python $("$python" -c 'import sys; print("%d.%d.%d" % sys.version_info[:3])' 2>/dev/null)"
echo "pci $(count_pci_gpus)"
# Run both at the same time: without persistence mode, the driver then starts only once.
list_all_gpus | grep -c '^GPU' | sed 's/^/gpus /' &
nvidia-smi --query-compute-apps=gpu_uuid,pid,process_name --format=csv,noheader 2>/dev/null |
    grep -E '^(GPU|MIG)-' | head -n 32 | sed 's/^/busy /'
wait
"""


@lru_cache(maxsize=1)
def survey_script() -> str:
    """Return sh lines that print "KEY VALUE" lines: the tools of all checks, GPUs and their users.

    They run in plain sh after `$ACCEPT_PYTHON` and PATH are set.
    """
    tools = {tool.name: tool for c in REGISTRY.values() for need in c.needs for tool in need}
    lines = [f'echo "{tool.name} $({tool.find})"' for tool in tools.values()]
    functions = _functions("gpus.sh") + _functions("unpack.sh")
    return "\n".join((functions, "python=${ACCEPT_PYTHON:-python3}", *lines, _FIXED))


#: Timeout of a command on a host, such as the survey. It includes 90 s for the driver, as in
#: launchers/programs/inventory.py: without persistence mode, it first starts all GPUs.
SECONDS = 110.0


class Requirement(StrEnum):
    """Subject of a row of `accept doctor`: something that a run needs, or that users must know.

    A row has the same code whether the requirement is met or not.
    """

    #: The name in rows; empty if each row has its own.
    label: str

    def __new__(cls, code: str, label: str) -> Requirement:
        """Create the member `code`, a plain string with a label."""
        member = str.__new__(cls, code)
        member._value_ = code
        member.label = label
        return member

    API = "R-API", "API"
    TOOL = "R-TOOL", ""
    NAMESPACE = "R-NAMESPACE", "namespace"
    RBAC = "R-RBAC", "RBAC"
    JOBSET = "R-JOBSET", "JobSet"
    QUEUE = "R-QUEUE", "queue"
    NETWORKS = "R-NETWORKS", "networks"
    SERVICE_ACCOUNT = "R-SERVICE-ACCOUNT", "service account"
    PULL_SECRET = "R-PULL-SECRET", "pull secret"
    IMAGE = "R-IMAGE", "image"
    NODES = "R-NODES", "nodes"
    AFFINITY = "R-AFFINITY", "affinity"
    TAINTS = "R-TAINTS", "taints"
    NODES_FREE = "R-NODES-FREE", ""
    NODE_LEFT_OUT = "R-NODE-LEFT-OUT", ""
    DEVICE_CLAIMS = "R-DEVICE-CLAIMS", "claims of devices"
    DEVICE_CLASS = "R-DEVICE-CLASS", "device class"
    PLUGIN = "R-PLUGIN", "NCCL plugin"
    ADMISSION = "R-ADMISSION", "admission"
    CLAIM_TEMPLATE = "R-CLAIM-TEMPLATE", "claim template"
    COMPUTE_DOMAIN = "R-COMPUTE-DOMAIN", "ComputeDomain"
    RESULTS = "R-RESULTS", "results"
    CONTAINER_RUNTIME = "R-CONTAINER-RUNTIME", "container runtime"
    CONTAINER_IMAGE = "R-CONTAINER-IMAGE", "container image"
    SLURM_CONTROLLER = "R-SLURM-CONTROLLER", "controller"
    SLURM_PARTITION = "R-SLURM-PARTITION", "partition"
    SLURM_JOB = "R-SLURM-JOB", "sbatch --test-only"
    SSH = "R-SSH", "ssh"
    LOGIN_SHELL = "R-LOGIN-SHELL", "login shell"
    SCRATCH = "R-SCRATCH", "scratch folder"
    GPUS = "R-GPUS", "NVIDIA GPUs"
    GPUS_IDLE = "R-GPUS-IDLE", "idle GPUs"
    OWN_MACHINE = "R-OWN-MACHINE", "a machine of its own"


@dataclass(frozen=True, kw_only=True)
class Need:
    """One line of `accept doctor`: a requirement, whether a host meets it, and how to meet it."""

    code: Requirement
    host: str
    #: The name of the requirement in text.
    what: str
    good: bool
    #: False if it cannot be checked from here; it is then `good`, because the run may start.
    checked: bool = True
    found: str
    #: Checks that do not run without it.
    checks: tuple[str, ...] = ()
    advice: str = ""


def need_of(
    code: Requirement,
    found: str,
    advice: str = "",
    *,
    host: str,
    what: str = "",
    good: bool = True,
    checked: bool = True,
    checks: tuple[str, ...] = (),
) -> Need:
    """Return the line of a requirement; without `what`, it has the name of its code."""
    return Need(
        code=code,
        host=host,
        what=what or code.label,
        good=good,
        checked=checked,
        found=found,
        checks=checks,
        advice=advice,
    )


def tool_need(host: str, what: str, found: str, advice: str, checks: tuple[str, ...] = ()) -> Need:
    """Return the line about a tool; `found` is its place, or empty."""
    found, advice, good = (found, "", True) if found else ("not found", advice, False)
    return need_of(Requirement.TOOL, found, advice, host=host, what=what, good=good, checks=checks)


def scratch_lines(folder: str) -> str:
    """Return sh lines that print whether files can be written and executed in `folder`.

    They print `scratch STATE FOLDER`, in the format of the survey; STATE is exec, noexec or
    unwritable, which is followed by its reason.
    """
    return f"""
scratch={quote(folder)}
probe=$scratch/.accept-probe-$$
state=noexec
if error=$({{ mkdir -m 700 "$probe" && echo '#!/bin/sh' | cat > "$probe/program"; }} 2>&1); then
    error=
    chmod 700 "$probe/program" && "$probe/program" 2>/dev/null && state=exec
else
    state=unwritable error=": ${{error##*: }}"
fi
rm -rf "$probe"
echo "scratch $state $scratch$error"
"""


def answers(text: str) -> dict[str, list[str]]:
    """Parse the output of the survey into values by key, without empty values."""
    lines = (line.partition(" ") for line in text.splitlines())
    return by_key((key, value.strip()[:200]) for key, _, value in lines if value.strip())


def tools_here(script: str, seconds: float | None = None) -> dict[str, list[str]]:
    """Run a script with the survey here, and return its values by key.

    Raises NotStarted after `seconds`; the default is SECONDS. What it started ends with it.
    """
    seconds = SECONDS if seconds is None else seconds
    # Python would import modules from the folder that the user is in.
    words = ["/bin/sh", "-c", script]
    done = bounded.run(words, cwd=Path("/"), session=True, timeout=seconds)
    if done.exit is None:
        raise NotStarted(
            f"listing the tools and GPUs of this machine did not end within {seconds:g} s",
            code=Code.LOCAL_SURVEY_TIMEOUT,
            hint="check whether nvidia-smi hangs: time nvidia-smi; dmesg -T | grep -i nvrm",
        )
    return answers(done.text)


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
    """Return a number that the survey printed; 0 if it printed none."""
    return decimal((found.get(key) or ["0"])[0]) or 0


def tool_lines(tools: Tools) -> str:
    """Return sh lines that set the paths of the site file for the survey."""
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

    `found` are the values that the survey printed. `advice` replaces that of each missing tool.
    """
    checks_by_need: dict[tuple[Tool, ...], list[str]] = {}
    for step in run.plan.steps:
        for check in checks_of(step):
            for need in check.needs:
                usable = tuple(t for t in need if run.plan.machine.gpus != 0 or not t.needs_gpus)
                checks_by_need.setdefault(usable, []).append(check.name)
    needs = []
    for tools, checks in checks_by_need.items():
        names = [tool.name for tool in tools]
        available = next((f"{name} {found[name][0]}" for name in names if found.get(name)), "")
        affected = tuple(dict.fromkeys(checks))
        advised = advice or tools[0].advice
        needs.append(tool_need(host, " or ".join(names), available, advised, affected))
    if count(found, "pci") or run.plan.machine.gpus != 0:
        needs.append(_gpu_need(host, found, run))
    if scratch := found.get("scratch"):
        needs.append(_scratch_need(host, scratch[0]))
    idle, advice = Requirement.GPUS_IDLE, "wait, or give --busy-ok"
    needs += [
        need_of(idle, line, advice, host=host, good=False) for line in found.get("busy", ())[:4]
    ]
    return tuple(needs)


def _gpu_need(host: str, found: Mapping[str, list[str]], run: Resolved) -> Need:
    """Return the line about the GPUs."""
    shown, on_bus = count(found, "gpus"), count(found, "pci")
    has_none = lacks_gpus(found, run)
    advice = "" if shown >= on_bus else "the driver does not show all GPUs: see nvidia-smi, dmesg"
    return need_of(
        Requirement.GPUS,
        f"{shown} shown by the driver, {on_bus} on the PCI bus",
        WITHOUT_GPUS if has_none else advice,
        host=host,
        good=shown >= max(on_bus, run.plan.machine.gpus or 1),
        # A host with too few GPUs is tested and gets a verdict; without any, no check can run.
        checks=run.plan.checks if has_none else (),
    )


def _scratch_need(host: str, answer: str) -> Need:
    """Return the line about the scratch folder from the output of `scratch_lines`."""
    state, _, folder = answer.partition(" ")
    shown = {
        "exec": folder,
        "noexec": f"{folder} does not allow executing files (noexec); a run does not need it",
    }
    if state in shown:
        return need_of(Requirement.SCRATCH, shown[state], host=host)
    advice = "free space there or make it writable, or set tools.scratch to another local folder"
    found = f"cannot write to {folder}"
    return need_of(Requirement.SCRATCH, found, advice, host=host, good=False)
