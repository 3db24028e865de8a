"""`python -m tests.cluster.kube`: a test cluster for manual use, until Enter."""

from __future__ import annotations

import argparse
import sys

import yaml
from tests.cluster.kube.build import program
from tests.cluster.kube.cluster import Cluster, why_not
from tests.cluster.kube.desk import site_of


def main() -> None:
    """Run a cluster and print what users need."""
    parser = argparse.ArgumentParser(prog="python -m tests.cluster.kube", description=__doc__)
    parser.add_argument("--nodes", type=int, default=3, help="how many nodes (default 3)")
    nodes = parser.parse_args().nodes
    if reason := why_not():
        sys.exit(reason)
    with Cluster(nodes) as cluster:
        tools = cluster.kubeconfig.parent / "bin"
        tools.mkdir()
        for name, target in (("kubectl", "kubectl"), ("helm", "helm4"), ("helm3", "helm3")):
            (tools / name).symlink_to(program(target))
        site = tools.with_name("site.yaml")
        site.write_text(yaml.safe_dump(site_of(cluster, "default"), sort_keys=False))
        print(f"export KUBECONFIG={cluster.kubeconfig}\nexport PATH={tools}:$PATH", flush=True)
        sys.stderr.write(f"nodes: {cluster.nodes}; bucket server: {cluster.bucket_server}\n")
        sys.stderr.write(f"accept run --machine cpu --nodes {nodes} --site {site}\n")
        sys.stderr.write("Enter ends it\n")
        sys.stdin.readline()


if __name__ == "__main__":
    main()
