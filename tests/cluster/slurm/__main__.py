"""`python -m tests.cluster.slurm up|down`: a test cluster of Slurm for manual use."""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

from tests.cluster.manual import Manual, end_by_signal
from tests.cluster.runs import VENV
from tests.cluster.slurm.cluster import SlurmCluster, why_not

_STATE = Path(tempfile.gettempdir()) / "accept-slurm.json"


def _show(found: Mapping[str, str]) -> None:
    print(f"export SLURM_CONF={found['conf']}")
    sys.stderr.write(f"nodes: {found['nodes']}; all nodes see {found['home']}\n")


_MANUAL = Manual(
    module="tests.cluster.slurm",
    state=_STATE,
    log=_STATE.with_suffix(".log"),
    seconds=300.0,
    show=_show,
    why_not=why_not,
)


def hold(nodes: int) -> int:
    """Run the cluster until a signal ends it."""
    end_by_signal()
    with SlurmCluster(nodes, venv=VENV) as cluster:
        return _MANUAL.hold(
            conf=cluster.environment["SLURM_CONF"],
            home=str(cluster.home),
            nodes=" ".join(cluster.names),
        )


def main() -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(prog="python -m tests.cluster.slurm", description=__doc__)
    parser.add_argument("verb", choices=("up", "down", "hold"))
    parser.add_argument("--nodes", type=int, default=4, help="how many nodes (default 4)")
    options = parser.parse_args()
    if options.verb == "down":
        return _MANUAL.down()
    return (_MANUAL.up if options.verb == "up" else hold)(options.nodes)


if __name__ == "__main__":
    sys.exit(main())
