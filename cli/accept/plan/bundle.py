"""Render a resolved run: step scripts, code for the nodes, the plan's hash, Helm values.

The same run gives the same bytes on any machine.
"""

from __future__ import annotations

import base64
import hashlib
import io
import json
import math
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
from accept.config.helm_values import Origin, Values
from accept.core.errors import BadInput
from accept.core.evidence import plan_hash
from accept.core.model import Plan
from accept.core.serde import dump
from accept.core.text import parse_size
from accept.plan.resolve import Resolved

#: A triple-quoted text that has its lines to itself: in this project a docstring. Both begin with
#: the line before them, which is found much faster than a place in front of spaces.
_DOCSTRING = re.compile(r'\n( *)r?"""[^"]*(?:"(?!"")[^"]*)*"""$', re.MULTILINE)
#: What a function returns, where its `def` or its last parameter ends: nothing reads it.
_RETURNS = re.compile(r"\) -> [^\n]+:$", re.MULTILINE)
#: Levels of indentation, one above what there is.
_DEEPEST = 12
_COMMENT = re.compile(r"\n *#.*")
_SHELL_COMMENT = re.compile(r"\n *#(?! shellcheck).*")


def lean(source: str) -> str:
    """`source` with `...` for its docstrings, tabs, and without comments that have lines to
    themselves and what functions are said to return.

    Lines keep their numbers, so that a traceback from a node leads into the real file. It knows
    this project's own style and no other; a test holds every module against its syntax tree.
    Reading the tree here would cost `accept render` more than everything else it does.
    """
    text = _COMMENT.sub("\n", _DOCSTRING.sub(_blank, "\n" + source))[1:]
    text = _RETURNS.sub("):", text)
    # The deepest first, or its beginning would be taken for a shallower one.
    for depth in range(_DEEPEST, 0, -1):
        text = text.replace("\n" + "    " * depth, "\n" + "\t" * depth)
    return text


def lean_shell(source: str) -> str:
    """`source` without comments that have lines to themselves, but the first and shellcheck's."""
    return _SHELL_COMMENT.sub("\n", source)


def _blank(match: re.Match[str]) -> str:
    # Nothing may stand before `from __future__ import`.
    stand_in = f"\n{match[1]}..." if match.start() else "\n"
    return stand_in + "\n" * (match[0].count("\n") - 1)


_PLAN = "plan.json"
#: Text that is text in every YAML, quoted or not.
_WORD = re.compile(r"[A-Za-z/][A-Za-z0-9_./-]*")
_NO_TEXT = frozenset(("y", "n", "yes", "no", "on", "off", "true", "false", "null"))
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
    """Everything that a node needs, by path, and the plan among it."""

    plan: Plan
    files: Mapping[str, bytes]

    def archive(self) -> bytes:
        """The files as one tar archive: sorted, stored, times and owners zero."""
        return _tar(self.files)

    def write(self, folder: Path) -> None:
        """Write the files into `folder`, which must be there."""
        for name, content in self.files.items():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
            path.chmod(0o755 if _runs(name) else 0o644)


def render(run: Resolved) -> Bundle:
    """Render the run. Raises what Jinja raises for a template that is wrong; never for data."""
    files = dict(_static())
    files["env.sh"] = _env(run)
    for step in run.plan.steps:
        files[step.script] = _step(run, step.script)
        if step.id in run.user_scripts:
            files[f"steps/{step.id}.user"] = run.user_scripts[step.id].encode()
    plan = replace(run.plan, version=__version__, files_hash=_digest(files))
    plan = replace(plan, hash=plan_hash(dump(plan)))
    files[_PLAN] = _json(dump(plan))
    return Bundle(plan=plan, files=files)


def load_bundle(folder: Path, plan: Plan) -> Bundle:
    """Return the bundle that was written to `folder`.

    Raises BadInput if the folder was changed since, or if it lacks a script of this version.
    """
    if not folder.is_dir():
        raise BadInput(f"{folder} is missing", hint="render the run again")
    found = (p for p in sorted(folder.rglob("*")) if p.is_file())
    files = {p.relative_to(folder).as_posix(): p.read_bytes() for p in found}
    files.pop(_PLAN, None)
    if _digest(files) != plan.files_hash or plan_hash(dump(plan)) != plan.hash:
        raise BadInput(
            f"{folder} was changed after it was rendered",
            hint="what runs is what was rendered: render again",
        )
    if not files.keys() >= {*_STATIC}:
        raise BadInput(f"another version of accept rendered {folder}", hint="render the run again")
    files[_PLAN] = _json(dump(plan))
    return Bundle(plan=plan, files=files)


def _digest(files: Mapping[str, bytes]) -> str:
    """Return the SHA-256 over the names, sizes and contents of files."""
    digest = hashlib.sha256()
    for name in sorted(files):
        digest.update(f"{name}\0{len(files[name])}\0".encode() + files[name])
    return digest.hexdigest()


def helm_values(run: Resolved, bundle: Bundle) -> str:
    """The run as Helm values, for the chart: YAML, every key in the order of `values_of`."""
    import yaml

    class Dumper(yaml.SafeDumper):
        pass

    def text(dumper: yaml.SafeDumper, value: str) -> yaml.Node:
        # Helm's YAML takes more for numbers and booleans than this one knows to quote: y, 1e3.
        plain = _WORD.fullmatch(value) and value.lower() not in _NO_TEXT
        style = "|" if "\n" in value else None if plain else "'"
        return dumper.represent_scalar("tag:yaml.org,2002:str", value, style=style)

    Dumper.add_representer(str, text)
    *rest, (_, coded) = values_of(run, bundle).items()
    head = yaml.dump(dict(rest), Dumper=Dumper, sort_keys=False, width=1000, allow_unicode=True)
    # As the dumper writes it, but that looks at half a million characters one by one.
    return f"{head}bundle: |\n" + "".join(f"  {line}\n" for line in coded.splitlines())


def values_of(run: Resolved, bundle: Bundle) -> dict[str, Any]:
    """The run as Helm values, in plain data; what is long comes last."""
    plan = bundle.plan
    coded = base64.b64encode(bundle.archive()).decode()
    machine = run.machine.kubernetes
    values = Values(
        accept=Origin(version=__version__, run=plan.hash, machine=plan.machine.name),
        nodes=plan.nodes or 0,
        gpus_per_node=plan.gpus_used if plan.gpus_used is not None else plan.machine.gpus,
        # As text: Helm writes a number of seven digits with an exponent.
        machine=replace(machine, env={key: str(value) for key, value in machine.env.items()}),
        site=replace(
            run.site.kubernetes,
            gpus_per_pod=run.gpus_per_pod,
            extra_env={key: str(value) for key, value in run.site.kubernetes.extra_env.items()},
        ),
        results=run.site.results,
        deadline_seconds=math.ceil(plan.deadline_seconds),
        start_seconds=math.ceil(plan.start_seconds),
        debug_hold_seconds=math.ceil(plan.hold_seconds),
        plan=bundle.files[_PLAN].decode(),
        bundle="\n".join(coded[i : i + 120] for i in range(0, len(coded), 120)) + "\n",
    )
    data: dict[str, Any] = dump(values)
    return data


@lru_cache(maxsize=1)
def _static() -> Mapping[str, bytes]:
    """What is the same in every run: made once by a command that renders many, such as a drill."""
    return dict(_read_static())


def _read_static() -> Iterator[tuple[str, bytes]]:
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
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.USTAR_FORMAT) as tar:
        for name in sorted(files):
            info = tarfile.TarInfo(name)
            info.size = len(files[name])
            info.mode = 0o755 if _runs(name) else 0o644
            tar.addfile(info, io.BytesIO(files[name]))
    return buffer.getvalue()


def _package() -> bytes:
    """The package as the coordinator sees it: its version and `core`, as a tar archive by bzip2.

    It is the larger part of all that travels, and only the host that coordinates needs it. Other
    than of deflate, there is one implementation of bzip2, and it rests.
    Raises BadInput where this Python was built without it.
    """
    try:
        import bz2
    except ImportError as error:
        raise BadInput(
            "this Python has no bz2, which the package for the nodes is packed with",
            hint="install Python with libbz2, such as your distribution's",
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
            # Dense TFLOP/s of one GPU by data type, of its specification: {} where none is known.
            peaks=run.machine.gpus.peaks.tflops if run.machine.gpus.peaks else {},
            ncclTestsFolders=("/third_party/nccl-tests/build", "/opt/nccl-tests/build"),
        )
    )
    return str(text).encode()


def _runs(name: str) -> bool:
    return name.endswith((".sh", ".user"))


def _json(data: Any) -> bytes:
    return (json.dumps(data, indent=1, ensure_ascii=False) + "\n").encode()
