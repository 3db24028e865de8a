"""`python -m benchmarks [NAME...]`: run all or the named benchmarks, and print a Markdown table."""

from __future__ import annotations

import os
import pkgutil
import platform
import sys
import time
from importlib import import_module

import benchmarks
from benchmarks import Row, table

#: A machine with a higher load average is reported as not quiet.
_QUIET_LOAD = 1.0


def _names() -> list[str]:
    modules = (f"{benchmarks.__name__}.{m.name}" for m in pkgutil.iter_modules(benchmarks.__path__))
    names = (name for name in modules if not name.endswith("__main__"))
    return [name.rpartition(".")[2] for name in names if hasattr(import_module(name), "rows")]


def main(requested: list[str]) -> int:
    """Print the table. Return 1 if a bar is missed, 2 if a name is unknown."""
    known = _names()
    if unknown := [name for name in requested if name not in known]:
        sys.stderr.write(f"unknown benchmark {', '.join(unknown)}; available: {', '.join(known)}\n")
        return 2
    load = os.getloadavg()[0]
    rows: list[Row] = []
    for name in requested or known:
        sys.stderr.write(f"{name} ...\n")
        rows += import_module(f"{benchmarks.__name__}.{name}").rows()
    print(
        f"{time.strftime('%Y-%m-%d')}, {os.cpu_count()} cores, Python {platform.python_version()}, "
        f"load at the start {load:.1f}{' (not quiet)' * (load > _QUIET_LOAD)}\n"
    )
    print(table(rows))
    return int(any(row.met is False for row in rows))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
