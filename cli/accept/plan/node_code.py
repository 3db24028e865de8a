"""The code that runs on the nodes: its files, its three archives, and its part of the Helm chart.

`hatch_build.py` imports this module to build the package, so it needs only the standard library.
"""

from __future__ import annotations

import ast
import hashlib
import io
import tarfile
import threading
from collections.abc import Collection, Mapping
from importlib import metadata
from pathlib import Path

from accept.core.error_codes import Code
from accept.core.errors import BadInput

#: The archives: the code that only the coordinator needs, and the code that every host needs.
COORDINATOR, PROGRAMS, BINDINGS = "coordinator.tar.bz2", "programs.tar.bz2", "bindings.tar.bz2"
#: These parts of the coordinator's code travel with the programs, so that each archive fits into a
#: ConfigMap.
_WITH_PROGRAMS = ("core/accept/core/report/", "core/accept/core/runner/")
#: Folder of the code in the Helm chart, and the file in it with the digest of all the code. It is
#: a chart inside the chart, which Helm leaves out of its record, so the code is there only once.
CHART_FOLDER, CHART_DIGEST = "charts/code/files", "sha256"
#: Scripts that a node needs before it has unpacked `PROGRAMS`.
_PLAIN_SCRIPTS = (
    "bootstrap_host.sh",
    "container.sh",
    "container_host.sh",
    "gpus.sh",
    "pod_entrypoint.sh",
    "slurm_host.sh",
    "sshd.sh",
    "unpack.sh",
)
#: The other scripts that are the same in every run.
_PACKED_SCRIPTS = (
    "bin/accept-mpirun",
    "bin/accept-shell",
    "check_writable.sh",
    "coordinate.sh",
    "force_command.sh",
    "inject_fault.sh",
    "interface.sh",
    "kill.sh",
    "lib.sh",
    "nccl_log.sh",
    "rank.sh",
    "resident.sh",
    "rsh_agent.sh",
    "ssh_config.in",
    "watchdog.sh",
)
SCRIPTS = (*_PLAIN_SCRIPTS, *_PACKED_SCRIPTS)
#: Files that only ssh and Slurm use. The resident program was never run in pods.
_NOT_IN_PODS = (
    "resident.sh",
    "programs/resident.py",
    "bootstrap_host.sh",
    "container.sh",
    "container_host.sh",
    "slurm_host.sh",
    "core/accept/core/runner/host_setup.py",
    "core/accept/core/runner/keys.py",
    "core/accept/core/runner/slurm.py",
    "core/accept/core/runner/slurm_step.py",
)
#: In Python 3.11 two threads that parse at the same moment break each other's recursion count:
#: https://github.com/python/cpython/issues/106905
_PARSING = threading.Lock()
_WITH_DOCSTRING = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
#: NVIDIA's bindings of NVML, for hosts that have none (`launchers/programs/nvml.py`): one file of
#: pure Python with its BSD license at the top. The version is that of pyproject.toml.
NVML_PACKAGE, NVML_VERSION, _NVML_FILE = "nvidia-ml-py", "13.615.71", "pynvml.py"


def read_code(*, launchers: Path, core: Path) -> Mapping[str, bytes]:
    """Return the files of the code, which are the same in every run, by their paths on a node.

    Raises BadInput if this Python lacks the bindings of NVML, or has another version of them.
    """
    paths = {name: launchers / name for name in SCRIPTS}
    paths["core/accept/__init__.py"] = core.parent / "__init__.py"
    for path in sorted((launchers / "programs").iterdir()):
        if path.suffix in (".py", ".sh", ".json"):
            paths[f"programs/{path.name}"] = path
    for path in sorted((*core.rglob("*.py"), *core.glob("*.json"))):
        paths[f"core/accept/core/{path.relative_to(core).as_posix()}"] = path
    paths[f"programs/bindings/{_NVML_FILE}"] = _nvml_bindings()
    return {name: path.read_bytes() for name, path in paths.items()}


def _nvml_bindings() -> Path:
    """Return the file of the bindings of NVML, as this package requires them."""
    try:
        package = metadata.distribution(NVML_PACKAGE)
    except metadata.PackageNotFoundError:
        found = "is missing"
    else:
        if package.version == NVML_VERSION:
            return Path(str(package.locate_file(_NVML_FILE)))
        found = f"has version {package.version}"
    raise BadInput(
        f"the package {NVML_PACKAGE}, which travels to the nodes, {found}; "
        f"version {NVML_VERSION} is required",
        code=Code.RUN_NVML_BINDINGS,
        hint=f"pip install {NVML_PACKAGE}=={NVML_VERSION}",
    )


def pack(files: Mapping[str, bytes]) -> Mapping[str, bytes]:
    """Return files as a node gets them: the code in its archives, all others unmodified.

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
    packed: dict[str, bytes] = {}
    contents: dict[str, dict[str, bytes]] = {COORDINATOR: {}, PROGRAMS: {}, BINDINGS: {}}
    for name, content in files.items():
        archive = _archive_of(name)
        (contents[archive] if archive else packed)[name] = content
    return packed | {name: bz2.compress(tar(members)) for name, members in contents.items()}


def _archive_of(name: str) -> str:
    """Return the archive that a file travels in; empty if it travels unpacked."""
    if name.startswith("programs/bindings/"):
        return BINDINGS
    if name.startswith("core/") and not name.startswith(_WITH_PROGRAMS):
        return COORDINATOR
    return PROGRAMS if name.startswith(("programs/", "core/")) or name in _PACKED_SCRIPTS else ""


def chart_files(code: Mapping[str, bytes]) -> Mapping[str, bytes]:
    """Return the files that the chart needs in addition to its sources, by their paths in it.

    Python is without comments there, because ConfigMaps and Helm's record of a release have limits.
    The digest is that of the unmodified code.
    """
    of_pods = {
        name: without_comments(content) if name.endswith(".py") else content
        for name, content in code.items()
        if name not in _NOT_IN_PODS
    }
    files = {**pack(of_pods), CHART_DIGEST: f"{digest(code)}\n".encode()}
    return {f"{CHART_FOLDER}/{name}": content for name, content in files.items()}


def without_comments(source: bytes) -> bytes:
    """Return a Python module without docstrings and lines of comments; statements keep their lines.

    The lines before the first statement stay, because licenses are there.
    """
    with _PARSING:
        tree = ast.parse(source)
    lines = source.decode().split("\n")
    texts: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant | ast.JoinedStr):
            last = node.end_lineno or node.lineno
            texts.update(range(node.lineno, last + 1) if last > node.lineno else ())
        elif isinstance(node, _WITH_DOCSTRING) and ast.get_docstring(node, clean=False) is not None:
            doc = node.body[0]
            # An empty text, because it may be the only statement of a block.
            filler = [" " * doc.col_offset + '""']
            lines[doc.lineno - 1 : doc.end_lineno] = filler + [""] * (
                (doc.end_lineno or doc.lineno) - doc.lineno
            )
    first = tree.body[0].lineno if tree.body else len(lines)
    for number, line in enumerate(lines[first:], first + 1):
        if number not in texts and line.lstrip().startswith("#"):
            lines[number - 1] = ""
    return "\n".join(lines).encode()


def digest(files: Mapping[str, bytes]) -> str:
    """Return the SHA-256 over the names, sizes and contents of files."""
    result = hashlib.sha256()
    for name in sorted(files):
        result.update(f"{name}\0{len(files[name])}\0".encode() + files[name])
    return result.hexdigest()


def tar(files: Mapping[str, bytes], *, private: Collection[str] = ()) -> bytes:
    """Return an archive with the same bytes for the same files, without times and owners.

    The files in `private` are readable only by their owner.
    """
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.USTAR_FORMAT) as archive:
        for name in sorted(files):
            info = tarfile.TarInfo(name)
            info.size = len(files[name])
            info.mode = 0o600 if name in private else mode(name)
            archive.addfile(info, io.BytesIO(files[name]))
    return buffer.getvalue()


def mode(name: str) -> int:
    """Return the permissions of a file: scripts are executable."""
    return 0o755 if name.endswith((".sh", ".user")) or name.startswith("bin/") else 0o644
