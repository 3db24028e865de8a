"""Locate the Helm chart with the code for the nodes; in a checkout, build it first."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

from accept.config import resources
from accept.core.error_codes import Code
from accept.core.errors import BadInput
from accept.plan import node_code
from accept.plan.bundle import code


def chart_folder() -> Path:
    """Return the folder of the Helm chart with the code for the nodes.

    A package contains both. A checkout builds this chart in a folder that is named after the
    contents of all sources, so it is never outdated, and commands that start at the same time
    do not disturb each other. Raises BadInput if the checkout cannot be written.
    """
    source = resources.chart()
    if (source / node_code.CHART_FOLDER).is_dir():
        return source
    sources = {
        path.relative_to(source).as_posix(): path.read_bytes()
        for path in source.rglob("*")
        if path.is_file()
    }
    packer = {"node_code.py": Path(node_code.__file__).read_bytes()}
    key = node_code.digest({**sources, **packer, **code()})
    folder = resources.build() / f"chart-{key[:16]}"
    if folder.is_dir():
        return folder
    try:
        folder.parent.mkdir(exist_ok=True)
        with tempfile.TemporaryDirectory(prefix="chart-", dir=folder.parent) as temporary:
            chart = Path(shutil.copytree(source, Path(temporary) / "chart"))
            (chart / node_code.CHART_FOLDER).mkdir()
            for name, content in node_code.chart_files(code()).items():
                (chart / name).write_bytes(content)
            try:
                chart.rename(folder)
            except OSError:
                # Another command has built it meanwhile.
                if not folder.is_dir():
                    raise
    except OSError as error:
        raise BadInput(
            f"the Helm chart cannot be built in {folder.parent}: {error.strerror}",
            code=Code.OUTPUT_WRITE,
            hint="make this folder writable, or install the package",
        ) from None
    return folder
