"""Add the code for the nodes to the Helm chart in the wheel."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class CustomBuildHook(BuildHookInterface):  # type: ignore[type-arg]
    """Write the files that the chart needs in addition to its sources."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Write them to a folder, and add that to the wheel; a checkout builds its own chart."""
        if version == "editable":
            return
        root = Path(self.root)
        sys.path.insert(0, str(root / "cli"))
        from accept.plan import node_code

        code = node_code.read_code(
            launchers=root / "launchers", core=root / "cli" / "accept" / "core"
        )
        folder = root / "build" / "wheel"
        for name, content in node_code.chart_files(code).items():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
            build_data["force_include"][str(path)] = f"accept/_assets/chart/{name}"
