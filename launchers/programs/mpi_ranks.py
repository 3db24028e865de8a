"""Print which rank the MPI library believes this process is, and of how many: "rank 1 of 2".

It calls the library itself, because a node need not have mpi4py. Exit status 3: no MPI library.
"""

from __future__ import annotations

import ctypes
import ctypes.util
import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

EXIT_NO_LIBRARY = 3
#: MPI_COMM_WORLD of MPICH and of libraries with the same binary interface, such as Intel's.
_MPICH_WORLD = 0x44000000


def candidates() -> Iterator[str]:
    """Yield the possible paths of the library, first those beside mpirun, as its programs do."""
    mpirun = shutil.which("mpirun")
    if mpirun:
        for base in (Path(mpirun).parent.parent, Path(mpirun).resolve().parent.parent):
            for folder in ("lib", "lib64"):
                yield from map(str, sorted((base / folder).glob("libmpi.so*")))
    yield from ("libmpi.so.40", "libmpi.so.12", "libmpi.so")
    yield ctypes.util.find_library("mpi") or "libmpi.so"


def library() -> ctypes.CDLL | None:
    """Return the first library that can be loaded; None if there is none."""
    for name in candidates():
        try:
            return ctypes.CDLL(name, mode=ctypes.RTLD_GLOBAL)
        except OSError:
            continue
    return None


def main() -> int:
    """Initialize MPI, and print the rank in one write."""
    mpi = library()
    if mpi is None:
        return EXIT_NO_LIBRARY
    world: ctypes.c_void_p | ctypes.c_int
    try:
        symbol = ctypes.c_char.in_dll(mpi, "ompi_mpi_comm_world")
        world = ctypes.c_void_p(ctypes.addressof(symbol))
    except ValueError:
        world = ctypes.c_int(_MPICH_WORLD)
    rank, size = ctypes.c_int(-1), ctypes.c_int(-1)
    mpi.MPI_Init(None, None)
    mpi.MPI_Comm_rank(world, ctypes.byref(rank))
    mpi.MPI_Comm_size(world, ctypes.byref(size))
    os.write(1, f"rank {rank.value} of {size.value}\n".encode())
    mpi.MPI_Finalize()
    return 0


if __name__ == "__main__":
    sys.exit(main())
