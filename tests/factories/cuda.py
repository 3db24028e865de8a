"""A stand-in for CUDA below a real torch: programs with `env` see eight GPUs that compute nothing.

`cuda.c` describes the faults. It needs no GPU and no driver. Kernels leave their results unset, so
tests can check decisions with it, but no results.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.factories.paths import ROOT

_SOURCE = Path(__file__).with_name("cuda.c")


def _folders(python: Path, pattern: str) -> list[Path]:
    """Return the folders with a file beside the torch of a Python."""
    return [p.parent for p in python.parent.parent.glob(f"lib/python3.*/site-packages/{pattern}")]


def library(python: Path) -> Path:
    """Return the library for the torch of a Python; skip the test without the headers of CUDA."""
    newest = Path(sys.executable)
    # Packages of CUDA 12 lack the folder `crt`, which is the same in CUDA 13.
    headers = [
        *_folders(python, "nvidia/cuda_runtime/include/cuda_runtime_api.h"),
        *_folders(newest, "triton/backends/nvidia/include/cuda_runtime_api.h"),
    ]
    if not _folders(python, "torch/lib/libtorch_cuda.so") or not headers:
        pytest.skip(f"no torch with CUDA beside {python}: make setup .venv-torch26/.stamp")
    content = hashlib.sha256(_SOURCE.read_bytes() + str(headers).encode()).hexdigest()[:16]
    made = ROOT / "build" / "cuda" / f"{content}.so"
    if not made.exists():
        made.parent.mkdir(parents=True, exist_ok=True)
        new = made.with_suffix(f".{os.getpid()}")
        options = ["-shared", "-fPIC", "-O1", "-Wall", "-Wextra", "-Werror"]
        options += ["-Wl,-soname,libcuda.so.1", *(f"-isystem{folder}" for folder in headers)]
        subprocess.run(["cc", *options, "-o", new, _SOURCE], check=True)
        # Test processes that run at the same time make the same file.
        new.replace(made)
    return made


def env(python: Path) -> dict[str, str]:
    """Return the environment of a program that sees the GPUs."""
    return {"LD_PRELOAD": str(library(python))}
