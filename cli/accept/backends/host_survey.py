"""Write a first site file for hosts without Kubernetes: `accept init` over ssh and with Slurm."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from shlex import quote

from accept import config
from accept.backends.protocol import Question
from accept.backends.requirements import count, scratch_lines, survey_script
from accept.config.collectors import USUAL_COLLECTORS
from accept.core.by_key import by_key
from accept.core.judge.hosts import is_device
from accept.core.text import folded, plain

Answers = Mapping[str, list[str]]

#: Where packages and vendors put Open MPI, besides PATH.
_MPIRUNS = (
    "/usr/lib64/openmpi/bin/mpirun",
    "/usr/local/openmpi/bin/mpirun",
    "/opt/openmpi/bin/mpirun",
    "/opt/hpcx/ompi/bin/mpirun",
)
#: Folders for the run, the best first; the default of site files is the first.
_SCRATCH = ("/tmp", "/var/tmp", "/local", "/scratch")

IMAGE = Question(key="image", text="Container image of the run", option="image", optional=True)
RESULTS = Question(
    key="results", text="Bucket or folder for the evidence", option="results", optional=True
)


def host_script() -> str:
    """Return sh lines that print what a site file can contain, in the format of the survey."""
    folders = "".join(scratch_lines(folder) for folder in _SCRATCH)
    return f"""{survey_script()}
for path in {" ".join(map(quote, _MPIRUNS))}; do
    [ ! -x "$path" ] || echo "mpirun-path $path"
done
nvidia-smi --query-gpu=name --format=csv,noheader 2>/dev/null |
    sort -u | head -n 4 | sed 's/^/gpu-name /'
ip -o route show default 2>/dev/null | sed -n '1s/.* dev \\([^ ]*\\).*/interface \\1/p'
{folders}"""


@dataclass(frozen=True, kw_only=True)
class Finding:
    """The settings that a site file can have, from the answers of one or several hosts."""

    #: Path of mpirun if PATH lacks it; empty: on PATH, or not found.
    mpirun: str = ""
    scratch: str = ""
    interface: str = ""
    #: Name of the GPUs and their number on each host; empty and 0 without GPUs.
    gpu: str = ""
    gpus: int = 0
    #: What users should know: comments of the site file, and progress.
    remarks: tuple[str, ...] = field(default=())


def find(by_host: Mapping[str, Answers]) -> Finding:
    """Compare the answers of hosts to `host_script`: a site file has what is the same on all."""
    remarks: list[str] = []

    def common(what: str, read: Callable[[Answers], str]) -> str:
        """Return what all hosts answered; "" with a remark if they differ."""
        hosts = by_key((read(answers), host) for host, answers in by_host.items())
        if len(hosts) == 1:
            return next(iter(hosts))
        shown = "; ".join(f"{plain(v, 80) or 'none'} on {folded(h)}" for v, h in hosts.items())
        remarks.append(f"{what} differs: {shown}")
        return ""

    mpirun = common("mpirun", _mpirun)
    scratch = common("the scratch folder", _scratch)
    interface = common("the interface of the default route", lambda a: _first(a, "interface"))
    gpu = common("the GPU", lambda a: _first(a, "gpu-name"))
    number = common("the number of GPUs", lambda a: str(max(count(a, "pci"), count(a, "gpus"))))
    without_mpirun = [h for h, a in by_host.items() if not a.get("mpirun") and not _mpirun(a)]
    if without_mpirun:
        remarks.append(f"no Open MPI on {folded(without_mpirun)}: set tools.mpirun or an image")
    if without_torch := [host for host, answers in by_host.items() if not answers.get("torch")]:
        remarks.append(f"no torch on {folded(without_torch)}: set tools.venv or an image")
    return Finding(
        mpirun=mpirun,
        scratch=scratch,
        interface=interface,
        gpu=gpu,
        gpus=int(number or 0),
        remarks=tuple(remarks),
    )


def _first(answers: Answers, key: str) -> str:
    return (answers.get(key) or [""])[0]


def _mpirun(answers: Answers) -> str:
    """Return the path of an mpirun that is not on PATH."""
    return "" if answers.get("mpirun") else _first(answers, "mpirun-path")


def _scratch(answers: Answers) -> str:
    """Return the best folder in which files can be written and executed."""
    usable = [
        text.removeprefix("exec ") for text in answers.get("scratch", ()) if text[:5] == "exec "
    ]
    return usable[0] if usable else ""


def fitting_machines(gpu: str, gpus: int) -> tuple[str, ...]:
    """Return the machines with GPUs of this name or type, such as h100, and this number of them.

    A machine that any site can have comes before those of a cloud.
    """
    if not gpu or not gpus:
        return ()
    names = []
    for name in config.names("machines"):
        machine = config.load_machine(name).value
        device = machine.gpus.device
        words = re.split(r"[\s-]+", (device or "").lower())
        if (
            device
            and machine.gpus.count == gpus
            and (is_device(device, gpu) or gpu.lower() in words)
        ):
            names.append(name)
    generic = re.compile(rf"[a-z]+[0-9]+-{gpus}")
    return tuple(sorted(names, key=lambda name: (not generic.fullmatch(name), name)))


@dataclass(frozen=True, kw_only=True)
class HostSurvey:
    """The findings on hosts, and the site file, which is written line by line for its comments."""

    name: str
    backend: str
    #: Returns the lines of the section of the back end, without its heading, for the answers.
    section: Callable[[Mapping[str, str]], Sequence[str]]
    found: Finding
    notes: tuple[str, ...]
    questions: tuple[Question, ...] = (IMAGE, RESULTS)
    #: False if the tools were found on another machine than the nodes.
    from_nodes: bool = True

    def site_text(self, answers: Mapping[str, str]) -> str:
        """Return the site file as YAML, with comments on what is still open."""
        found = self.found
        machines = fitting_machines(found.gpu, found.gpus)
        lines = [
            "# Written by `accept init`. Every key, with examples: accept show site example",
            *self._machine_lines(machines),
            *(f"# {plain(remark)}" for remark in found.remarks),
            f"name: {scalar(self.name)}",
            f"backend: {self.backend}",
            f"{self.backend}:",
            *(f"  {line}" for line in self.section(answers)),
            *self._tool_lines(),
        ]
        if found.interface:
            lines += [
                "# The default route. Without this line: the interface that routes to the hosts.",
                f"# interface: {scalar(found.interface)}",
            ]
        lines += ["# An image that has all tools, instead of tools on the hosts."]
        lines += (
            ["container:", f"  image: {scalar(answers['image'])}"]
            if answers.get("image")
            else ["# container: {image: registry.example/accept:1.0}"]
        )
        lines += ["# A bucket, or a folder that all hosts share, for the evidence."]
        lines += (
            ["results:", f"  location: {scalar(answers['results'])}"]
            if answers.get("results")
            else ["# results: {location: gs://my-bucket/accept}"]
        )
        if found.gpus:
            lines += [
                "# Kept from a bad node; to fetch it now: accept ticket RUN NODE --collect",
                "collectors:",
                *(f"  {name}: {{}}" for name in USUAL_COLLECTORS),
            ]
        return "\n".join(lines) + "\n"

    def _machine_lines(self, machines: Sequence[str]) -> list[str]:
        found = self.found
        if not found.gpus:
            return ["# No GPUs were found, so the machine is cpu or must be given: --machine NAME"]
        shown = f"{found.gpus} GPUs each" + (f", {plain(found.gpu, 60)}" if found.gpu else "")
        lines = [f"# The nodes: {shown}."]
        if machines:
            names = ", ".join(machines[:4])
            lines.append(
                f"# Machines that fit, for --machine: {names}. Default: gpu, with fewer bounds."
            )
        return lines

    def _tool_lines(self) -> list[str]:
        found = self.found
        lines = (
            [f"mpirun: {scalar(found.mpirun)}"] if found.mpirun else ["# mpirun: /usr/bin/mpirun"]
        )
        lines += ["# venv: /opt/accept/venv"]
        lines += [f"scratch: {scalar(found.scratch)}"] if found.scratch else ["# scratch: /tmp"]
        head = "# Tools without a path are searched on PATH."
        if not self.from_nodes:
            head = "# Found on this login node, not on the nodes. Tools without a path are on PATH."
        if not self.from_nodes or all(line.startswith("#") for line in lines):
            return [head, "# tools:", *(f"#   {line.removeprefix('# ')}" for line in lines)]
        return [head, "tools:", *(f"  {line}" for line in lines)]


def scalar(text: str) -> str:
    """Return untrusted text as a YAML scalar of one line."""
    text = plain(text, 200)
    # JSON is YAML; only words that cannot be anything else need no quotes.
    return (
        text
        if re.fullmatch(r"[A-Za-z/][A-Za-z0-9_./-]*", text) and text.lower() not in _WORDS
        else json.dumps(text)
    )


_WORDS = ("true", "false", "yes", "no", "on", "off", "null", "none", "y", "n")
