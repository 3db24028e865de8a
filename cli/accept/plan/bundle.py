"""Render a resolved run: step scripts, code for the nodes, the plan's hash, Helm values.

The same run gives the same bytes on every machine.
"""

from __future__ import annotations

import hashlib
import io
import json
import shlex
import tarfile
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

from accept import __version__
from accept.config import resources
from accept.core.catalog.tools import NCCL_TESTS_FOLDERS
from accept.core.checks import load
from accept.core.error_codes import Code
from accept.core.errors import BadInput
from accept.core.evidence import plan_hash
from accept.core.model import Plan, Step
from accept.core.serde import dump
from accept.core.text import parse_size
from accept.plan.resolve import Resolved

PLAN_FILE = "plan.json"
#: The archives of the code for nodes: what only the coordinator needs, and what every host needs.
COORDINATOR, PROGRAMS = "coordinator.tar.bz2", "programs.tar.bz2"
#: Scripts that a node needs before it has unpacked `PROGRAMS`.
_PLAIN_SCRIPTS = (
    "bootstrap_host.sh",
    "gpus.sh",
    "pod_entrypoint.sh",
    "sshd.sh",
    "unpack.sh",
)
#: The other scripts that are the same in every run.
_PACKED_SCRIPTS = (
    "check_writable.sh",
    "coordinate.sh",
    "force_command.sh",
    "inject_fault.sh",
    "interface.sh",
    "kill.sh",
    "lib.sh",
    "rank.sh",
    "rsh_agent.sh",
    "ssh_config.in",
    "watchdog.sh",
)


@dataclass(frozen=True, kw_only=True)
class Bundle:
    """The files that a node needs, including the plan, by their paths in the run's folder."""

    plan: Plan
    files: Mapping[str, bytes]

    @cached_property
    def code_archives(self) -> Mapping[str, bytes]:
        """Return the archives of the code for nodes, by name; they unpack to paths in `files`.

        bzip2 gives the same bytes everywhere: it has one stable implementation, while deflate has
        several. Raises BadInput if this Python was built without bzip2.
        """
        try:
            import bz2
        except ImportError as error:
            raise BadInput(
                "this Python has no module bz2, which packs the code for the nodes",
                code=Code.RUN_NO_BZ2,
                hint="install a Python with libbz2, such as your distribution's",
            ) from error
        contents: dict[str, dict[str, bytes]] = {COORDINATOR: {}, PROGRAMS: {}}
        for name, content in self.files.items():
            if archive := _archive_of(name):
                contents[archive][name] = content
        return {name: bz2.compress(_tar(files)) for name, files in contents.items()}

    def archive(self, private: Mapping[str, bytes] | None = None) -> bytes:
        """Return what a node gets, as one tar archive: plain files and the archives of the code.

        The files in `private` are added, readable only by their owner.
        """
        plain = {name: content for name, content in self.files.items() if not _archive_of(name)}
        private = private or {}
        return _tar({**plain, **self.code_archives, **private}, private=private)

    def write(self, folder: Path) -> None:
        """Write the files into `folder`, which must exist."""
        for name, content in self.files.items():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
            path.chmod(_mode(name))


def _archive_of(name: str) -> str:
    """Return the archive that a file travels in; empty if it travels unpacked."""
    if name.startswith("core/"):
        return COORDINATOR
    return PROGRAMS if name.startswith("programs/") or name in _PACKED_SCRIPTS else ""


def render(run: Resolved) -> Bundle:
    """Render the run.

    Raises jinja2.TemplateError only if a template itself is broken, never because of data.
    """
    files = dict(_static())
    files["env.sh"] = _env(run)
    for step in run.plan.steps:
        files[step.script] = _step(run, step)
        if step.id in run.user_scripts:
            files[f"steps/{step.id}.user"] = run.user_scripts[step.id].encode()
    plan = replace(run.plan, version=__version__, files_hash=_digest(files))
    plan = replace(plan, hash=plan_hash(dump(plan)))
    files[PLAN_FILE] = _json(dump(plan))
    return Bundle(plan=plan, files=files)


def load_bundle(folder: Path, plan: Plan) -> Bundle:
    """Return the bundle that was written to `folder`.

    Raises BadInput if the folder was changed since, or if it lacks a script of this version.
    """
    if not folder.is_dir():
        raise BadInput(
            f"{folder} is missing", code=Code.RUN_NOT_RENDERED, hint="render the run again"
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
    if _digest(files) != plan.files_hash or plan_hash(dump(plan)) != plan.hash:
        raise BadInput(
            f"{folder} was changed after it was rendered",
            code=Code.RUN_CHANGED,
            hint="a run uses the files unmodified: render again",
        )
    if not files.keys() >= {*_PLAIN_SCRIPTS, *_PACKED_SCRIPTS}:
        raise other_version
    files[PLAN_FILE] = _json(dump(plan))
    return Bundle(plan=plan, files=files)


def _digest(files: Mapping[str, bytes]) -> str:
    """Return the SHA-256 over the names, sizes and contents of files."""
    digest = hashlib.sha256()
    for name in sorted(files):
        digest.update(f"{name}\0{len(files[name])}\0".encode() + files[name])
    return digest.hexdigest()


@lru_cache(maxsize=1)
def _static() -> Mapping[str, bytes]:
    """Return the files that are the same in every run; cached, because a drill renders many."""
    launchers, core = resources.launchers(), resources.core()
    paths = {name: launchers / name for name in (*_PLAIN_SCRIPTS, *_PACKED_SCRIPTS)}
    paths["core/accept/__init__.py"] = core.parent / "__init__.py"
    for path in sorted((launchers / "programs").iterdir()):
        if path.suffix in (".py", ".sh", ".json"):
            paths[f"programs/{path.name}"] = path
    for path in sorted(core.rglob("*.py")):
        paths[f"core/accept/core/{path.relative_to(core).as_posix()}"] = path
    return {name: path.read_bytes() for name, path in paths.items()}


def _tar(files: Mapping[str, bytes], *, private: Collection[str] = ()) -> bytes:
    """Return an archive with the same bytes for the same files, without times and owners."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.USTAR_FORMAT) as tar:
        for name in sorted(files):
            info = tarfile.TarInfo(name)
            info.size = len(files[name])
            info.mode = 0o600 if name in private else _mode(name)
            tar.addfile(info, io.BytesIO(files[name]))
    return buffer.getvalue()


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
            interface=run.plan.machine.interface,
            ncclTests=tools.nccl_tests or "",
            findDevices=run.machine.nccl.find_devices,
            script=run.script,
            env=run.env,
        )
    )
    return str(text).encode()


def _step(run: Resolved, step: Step) -> bytes:
    text = (
        _templates()
        .get_template(f"steps/{load(step.checks[0]).template}")
        .render(
            id=step.id,
            checks=step.checks,
            collectives=[load(name).runs or name.replace("-", "_") for name in step.checks],
            params=step.params,
            gpus=run.plan.machine.gpus,
            # Specified dense TFLOP/s of one GPU by data type; {} if the machine file has none.
            peaks=run.machine.gpus.peaks.tflops if run.machine.gpus.peaks else {},
            ncclTestsFolders=NCCL_TESTS_FOLDERS,
        )
    )
    return str(text).encode()


def _mode(name: str) -> int:
    """Return the permissions of a file: scripts are executable."""
    return 0o755 if name.endswith((".sh", ".user")) else 0o644


def _json(data: Any) -> bytes:
    return (json.dumps(data, indent=1, ensure_ascii=False) + "\n").encode()
