"""Render a resolved run: step scripts, code for the nodes, the plan's hash, Helm values.

The same run gives the same bytes on every machine.
"""

from __future__ import annotations

import json
import math
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

from accept import __version__
from accept.config import resources
from accept.config.machine import Machine
from accept.core.catalog.tools import NCCL_TESTS_FOLDERS
from accept.core.checks import REGISTRY, load
from accept.core.error_codes import Code
from accept.core.errors import BadInput
from accept.core.evidence import plan_hash
from accept.core.plan import Plan, Step
from accept.core.serde import dump
from accept.core.text import parse_size
from accept.plan import node_code
from accept.plan.resolve import Resolved

PLAN_FILE, ENV_FILE = "plan.json", "env.sh"
#: The settings of all ranks as shell commands. The chart writes the same from `launcher.env`.
SETTINGS_FILE = "settings.sh"
#: The container of the run, for launchers/container.sh; a run without a container has no such file.
CONTAINER_FILE = "container.env"
#: GB/s of one channel to a peer on another node, as NCCL assumes, and its choice for 400 Gbit/s:
#: https://github.com/NVIDIA/nccl/blob/04cdb808a1072d24b1b87b1f712d072aff2e9bf2/src/graph/paths.cc
_CHANNEL_GBYTES, _NET_CHANNELS = 14, 4


@dataclass(frozen=True, kw_only=True)
class Bundle:
    """The files that a node needs, including the plan, by their paths in the run's folder."""

    plan: Plan
    files: Mapping[str, bytes]

    @property
    def scripts(self) -> Mapping[str, str]:
        """Return the scripts of this run: `env.sh`, those of its steps, and the user's own."""
        return {
            name: content.decode()
            for name, content in self.files.items()
            if name == ENV_FILE or name.startswith("steps/")
        }

    @cached_property
    def _packed(self) -> Mapping[str, bytes]:
        """Return the files that every node gets; cached, because many nodes get them."""
        return node_code.pack(self.files)

    def archive(self, private: Mapping[str, bytes] | None = None) -> bytes:
        """Return everything that a node gets as one tar archive: plain files and archives of code.

        The files in `private` are added, readable only by their owner.
        """
        private = private or {}
        return node_code.tar({**self._packed, **private}, private=private)

    def write(self, folder: Path) -> None:
        """Write the files into `folder`, which must exist."""
        for name, content in self.files.items():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
            path.chmod(node_code.mode(name))


def render(run: Resolved) -> Bundle:
    """Render the run.

    Raises jinja2.TemplateError only if a template itself is broken, never because of data.
    """
    files = dict(code())
    env = {name: run.env[name].value for name in sorted(run.env)}
    files[ENV_FILE] = _env(run)
    files[SETTINGS_FILE] = "".join(_export(name, env[name]) for name in env).encode()
    if run.backend != "kubernetes" and run.site.container.image:
        files[CONTAINER_FILE] = container_env(run).encode()
    for step in run.plan.steps:
        files[step.script] = _step(run, step)
        if step.id in run.user_scripts:
            files[f"steps/{step.id}.user"] = run.user_scripts[step.id].encode()
    origins: dict[str, tuple[str, ...]] = {}
    for name in env:
        origin = run.env[name].origin
        origins[origin] = (*origins.get(origin, ()), name)
    plan = replace(run.plan, version=__version__, env=env, env_origins=origins)
    plan = replace(plan, files_hash=node_code.digest(files))
    data = dump(plan)
    plan = replace(plan, hash=plan_hash(data))
    files[PLAN_FILE] = _json({**data, "hash": plan.hash})
    return Bundle(plan=plan, files=files)


def load_bundle(folder: Path, plan: Plan) -> Bundle:
    """Return the bundle that was written to `folder`.

    Raises BadInput if the folder was changed since, or if it lacks a script of this version.
    """
    if not (folder / PLAN_FILE).is_file():
        raise BadInput(
            f"{folder} is missing or incomplete",
            code=Code.RUN_NOT_RENDERED,
            hint="render the run again",
        )
    paths = (p for p in sorted(folder.rglob("*")) if p.is_file())
    files = {p.relative_to(folder).as_posix(): p.read_bytes() for p in paths}
    files.pop(PLAN_FILE, None)
    other_version = BadInput(
        f"another version of accept rendered {folder}",
        code=Code.RUN_OTHER_VERSION,
        hint="render the run again",
    )
    if plan.version != __version__:
        raise other_version
    if node_code.digest(files) != plan.files_hash or plan_hash(dump(plan)) != plan.hash:
        raise BadInput(
            f"{folder} was changed after it was rendered",
            code=Code.RUN_CHANGED,
            hint="a run needs the unmodified files: render the run again",
        )
    if not files.keys() >= set(node_code.SCRIPTS):
        raise other_version
    files[PLAN_FILE] = _json(dump(plan))
    return Bundle(plan=plan, files=files)


@lru_cache(maxsize=1)
def code() -> Mapping[str, bytes]:
    """Return the code for the nodes, by its paths there; cached, because a drill renders many."""
    return node_code.read_code(launchers=resources.launchers(), core=resources.core())


@lru_cache(maxsize=1)
def _templates() -> Any:
    import jinja2

    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(resources.launchers()),
        undefined=jinja2.StrictUndefined,
        keep_trailing_newline=True,
        autoescape=False,
    )
    environment.filters["bytes"] = parse_size
    environment.filters["sh"] = lambda value: shlex.quote(str(value))
    environment.filters["comment"] = lambda value: " ".join(str(value).split())[:200]
    return environment


def _env(run: Resolved) -> bytes:
    tools = run.site.tools
    folders = []
    if tools.mpirun:
        folders.append(str(Path(tools.mpirun).parent))
    if tools.venv:
        folders.append(f"{tools.venv}/bin")
    text = (
        _templates()
        .get_template("env.sh.j2")
        .render(
            path=folders[::-1],
            python=tools.python or (f"{tools.venv}/bin/python" if tools.venv else ""),
            launcher=(run.site.slurm.launcher or "") if run.backend == "slurm" else "",
            interface=run.plan.machine.interface,
            ncclTests=tools.nccl_tests or "",
            findDevices=run.machine.nccl.find_devices,
            rdmaDevices=run.plan.machine.rdma_devices or "",
            script=run.script,
            cpus=run.machine.nccl.profiles[run.site.nccl.profile].cpus,
            profiles=run.profiles,
        )
    )
    return str(text).encode()


def container_env(run: Resolved) -> str:
    """Return the shell variables that launchers/container.sh reads."""
    container = run.site.container
    values = {
        "runtimes": " ".join(container.runtimes(in_job=run.backend == "slurm")),
        "image": container.image or "",
        "mounts": "\n".join(container.full_mounts),
        "gpus": "yes" if run.plan.machine.gpus != 0 else "",
    }
    return "".join(f"container_{name}={shlex.quote(text)}\n" for name, text in values.items())


def _export(name: str, value: str) -> str:
    """Return a line of shell that sets an environment variable."""
    quoted = value.replace("'", r"'\''")
    return f"export {name}='{quoted}'\n"


def _step(run: Resolved, step: Step) -> bytes:
    text = (
        _templates()
        .get_template(f"steps/{'tool.sh.j2' if step.tool else load(step.checks[0]).template}")
        .render(
            id=step.id,
            checks=step.checks,
            collectives=[load(c).collective for c in step.checks if c in REGISTRY],
            params=step.params,
            tool=step.tool,
            gpus=run.plan.machine.gpus,
            # Specified dense TFLOP/s of one GPU by data type; {} if the machine file has none.
            peaks=run.machine.gpus.peaks.tflops if run.machine.gpus.peaks else {},
            ncclTestsFolders=NCCL_TESTS_FOLDERS,
            netChannels=net_channels(run.machine),
        )
    )
    # Branches of a template may leave empty lines at its end.
    return f"{str(text).rstrip()}\n".encode()


def net_channels(machine: Machine) -> int:
    """Return the channels of NCCL that use the NICs of one GPU fully; a power of two."""
    gpus = machine.gpus.count
    if machine.nics is None or not isinstance(gpus, int) or gpus < 1:
        return _NET_CHANNELS
    nics_per_gpu = max(1.0, machine.nics.count / gpus)
    needed = math.ceil(machine.nics.gbps * nics_per_gpu / 8 / _CHANNEL_GBYTES)
    return int(2 ** math.ceil(math.log2(needed)))


def _json(plan: Any) -> bytes:
    """Return the plan as JSON, with each step and reference on a line of its own: they are many."""
    lists = {key: plan[key] for key in ("steps", "references") if plan[key]}
    text = json.dumps({**plan, **dict.fromkeys(lists, ())}, indent=1, ensure_ascii=False)
    for key, entries in lists.items():
        lines = ",\n  ".join(json.dumps(one, ensure_ascii=False) for one in entries)
        text = text.replace(f'"{key}": []', f'"{key}": [\n  {lines}\n ]', 1)
    return f"{text}\n".encode()
