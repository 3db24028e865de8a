"""`python -m tests.cluster.slurm`: a test cluster of Slurm for manual use, until Enter."""

from __future__ import annotations

import argparse
import sys

from tests.cluster.runs import VENV
from tests.cluster.slurm.cluster import SlurmCluster, why_not


def main() -> None:
    """Run a cluster and print what users need."""
    parser = argparse.ArgumentParser(prog="python -m tests.cluster.slurm", description=__doc__)
    parser.add_argument("--nodes", type=int, default=4, help="how many nodes (default 4)")
    nodes = parser.parse_args().nodes
    if reason := why_not():
        sys.exit(reason)
    with SlurmCluster(nodes, venv=VENV) as cluster:
        print(f"export SLURM_CONF={cluster.environment['SLURM_CONF']}", flush=True)
        sys.stderr.write(f"nodes: {cluster.names}; all nodes see {cluster.home}\n")
        sys.stderr.write("Enter ends it\n")
        sys.stdin.readline()


if __name__ == "__main__":
    main()
