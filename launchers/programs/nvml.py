"""Import NVIDIA's bindings of NVML (package nvidia-ml-py).

A host's own package comes first. Otherwise the copy that travels with this code is used: one file
of pure Python, BSD license, in the folder `bindings`.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

_BINDINGS = str(Path(__file__).with_name("bindings"))


def load() -> Any:
    """Return the module `pynvml`. Raises ImportError if there is none."""
    if _BINDINGS not in sys.path:
        sys.path.append(_BINDINGS)
    import pynvml

    return pynvml


def text(value: str | bytes) -> str:
    """Return a text of NVML; old bindings return bytes."""
    return value.decode() if isinstance(value, bytes) else value
