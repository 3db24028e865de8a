"""Render a resolved run: step scripts, code for the nodes, the plan's hash, Helm values.

The same run gives the same bytes on every machine.
"""

from __future__ import annotations

import hashlib
import io
import json
import re
import shlex
import tarfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from accept import __version__
from accept.config import resources
from accept.core.catalog.tools import NCCL_TESTS_FOLDERS
from accept.core.errors import BadInput
from accept.core.evidence import plan_hash
from accept.core.model import Plan
from accept.core.serde import dump
from accept.core.text import parse_size
from accept.plan.resolve import Resolved

#: A triple-quoted string on lines of its own, which in this project is always a docstring. This
#: pattern and `_COMMENT` start at the newline before: that is much faster than starting at spaces.
_DOCSTRING = re.compile(r'\n( *)r?"""[^"]*(?:"(?!"")[^"]*)*"""$', re.MULTILINE)
#: The return annotation of a function; nothing reads it at run time.
_RETURN_ANNOTATION = re.compile(r"\) -> [^\n]+:$", re.MULTILINE)
#: One more than the deepest indentation in this project.
_MAX_INDENT_LEVELS = 12
_COMMENT = re.compile(r"\n *#.*")
_SHELL_COMMENT = re.compile(r"\n *#(?! shellcheck).*")


def lean(source: str) -> str:
    """Return Python source without docstrings, comment lines and return annotations.

    Tabs replace the indentation. Line numbers do not change, so a traceback from a node matches the
    real file. The patterns rely on this project's style; a test compares the syntax tree of every
    module before and after. Working on the tree here would take longer than the rest of
    `accept render`.
    """
    text = _COMMENT.sub("\n", _DOCSTRING.sub(_blank_docstring, "\n" + source))[1:]
    text = _RETURN_ANNOTATION.sub("):", text)
    # The deepest level first: a shallower pattern would match its beginning.
    for depth in range(_MAX_INDENT_LEVELS, 0, -1):
        text = text.replace("\n" + "    " * depth, "\n" + "\t" * depth)
    return text


def lean_shell(source: str) -> str:
    """Return shell source without comment lines, except the first line and those for shellcheck."""
    return _SHELL_COMMENT.sub("\n", source)


def _blank_docstring(match: re.Match[str]) -> str:
    # `...` must not precede `from __future__ import`: a module docstring becomes empty lines.
    placeholder = f"\n{match[1]}..." if match.start() else "\n"
    return placeholder + "\n" * (match[0].count("\n") - 1)


PLAN_FILE = "plan.json"
#: Scripts that are the same in every run.
_STATIC = (
    "bootstrap_host.sh",
    "check_writable.sh",
    "coordinate.sh",
    "force_command.sh",
    "inject_fault.sh",
    "interface.sh",
    "kill.sh",
    "lib.sh",
    "pod_entrypoint.sh",
    "rank.sh",
    "rsh_agent.sh",
    "ssh_config.in",
    "sshd.sh",
    "watchdog.sh",
)


@dataclass(frozen=True, kw_only=True)
class Bundle:
    """The files that a node needs, including the plan, by path."""

    plan: Plan
    files: Mapping[str, bytes]

    def archive(self) -> bytes:
        """Return the files as one tar archive: sorted, not compressed, times and owners zero."""
        return _tar(self.files)

    def write(self, folder: Path) -> None:
        """Write the files into `folder`, which must exist."""
        for name, content in self.files.items():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
            path.chmod(_mode(name))


def render(run: Resolved) -> Bundle:
    """Render the run.

    Raises jinja2.TemplateError only if a template itself is broken, never because of data.
    """
    files = dict(_static())
    files["env.sh"] = _env(run)
    for step in run.plan.steps:
        files[step.script] = _step(run, step.script)
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
        raise BadInput(f"{folder} is missing", hint="render the run again")
    paths = (p for p in sorted(folder.rglob("*")) if p.is_file())
    files = {p.relative_to(folder).as_posix(): p.read_bytes() for p in paths}
    files.pop(PLAN_FILE, None)
    if _digest(files) != plan.files_hash or plan_hash(dump(plan)) != plan.hash:
        raise BadInput(
            f"{folder} was changed after it was rendered",
            hint="a run uses the files unmodified: render again",
        )
    if not files.keys() >= {*_STATIC}:
        raise BadInput(f"another version of accept rendered {folder}", hint="render the run again")
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
    return dict(_read_static())


def _read_static() -> Iterator[tuple[str, bytes]]:
    """Yield the path and the content of each file that is the same in every run."""
    launchers = resources.launchers()
    for name in _STATIC:
        yield name, lean_shell((launchers / name).read_text(encoding="utf-8")).encode()
    for path in sorted((launchers / "programs").iterdir()):
        if path.suffix == ".py":
            yield f"programs/{path.name}", lean(path.read_text(encoding="utf-8")).encode()
        elif path.suffix in (".sh", ".json"):
            yield f"programs/{path.name}", path.read_bytes()
    yield "core.tar.bz2", _package()


def _tar(files: Mapping[str, bytes]) -> bytes:
    """Return an archive with the same bytes for the same files."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.USTAR_FORMAT) as tar:
        for name in sorted(files):
            info = tarfile.TarInfo(name)
            info.size = len(files[name])
            info.mode = _mode(name)
            tar.addfile(info, io.BytesIO(files[name]))
    return buffer.getvalue()


def _package() -> bytes:
    """Return the package for the coordinator: version and `core`, as a tar archive with bzip2.

    It is a file of its own because it is the largest one and only the coordinator unpacks it. bzip2
    gives the same bytes everywhere: it has one stable implementation, while deflate has several.
    Raises BadInput if this Python was built without bzip2.
    """
    try:
        import bz2
    except ImportError as error:
        raise BadInput(
            "this Python has no module bz2, which packs the code for the nodes",
            hint="install a Python with libbz2, such as your distribution's",
        ) from error
    core = resources.core()
    files = {"accept/__init__.py": f'__version__ = "{__version__}"\n'.encode()}
    for path in sorted(core.rglob("*.py")):
        name = f"accept/core/{path.relative_to(core).as_posix()}"
        files[name] = lean(path.read_text(encoding="utf-8")).encode()
    return bz2.compress(_tar(files))


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


def _step(run: Resolved, script: str) -> bytes:
    from accept.core.checks import load

    step = next(s for s in run.plan.steps if s.script == script)
    check = load(step.checks[0])
    text = (
        _templates()
        .get_template(f"steps/{check.template}")
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
