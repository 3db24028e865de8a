"""`python -m tests.cluster.kube up|down|status`: a test cluster for manual use."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping

import yaml
from tests.cluster.kube.build import NotBuilt, cache, program
from tests.cluster.kube.cluster import Cluster, why_not
from tests.cluster.kube.control import NotUp
from tests.cluster.kube.desk import site_of
from tests.cluster.kube.nodes import sweep_groups
from tests.cluster.manual import Manual, end_by_signal


def _show(found: Mapping[str, str]) -> None:
    print(f"export KUBECONFIG={found['kubeconfig']}")
    print(f"export PATH={cache() / 'cluster-bin'}:$PATH")
    sys.stderr.write(f"nodes: {found['nodes']}; bucket server: {found['bucket']}\n")
    nodes = len(found["nodes"].split())
    sys.stderr.write(f"accept run --machine cpu --nodes {nodes} --site {found['site']}\n")


def manual() -> Manual:
    """Return the cluster for manual use."""
    return Manual(
        module="tests.cluster.kube",
        state=cache() / "cluster.json",
        log=cache() / "cluster.log",
        seconds=3600.0,
        show=_show,
        why_not=why_not,
    )


def hold(nodes: int) -> int:
    """Run the cluster until a signal ends it."""
    end_by_signal()
    with Cluster(nodes) as cluster:
        tools = cache() / "cluster-bin"
        tools.mkdir(exist_ok=True)
        for name, target in (("kubectl", "kubectl"), ("helm", "helm4"), ("helm3", "helm3")):
            (tools / name).unlink(missing_ok=True)
            (tools / name).symlink_to(program(target))
        site = cache() / "cluster-site.yaml"
        site.write_text(yaml.safe_dump(site_of(cluster, "default"), sort_keys=False))
        return manual().hold(
            site=str(site),
            kubeconfig=str(cluster.kubeconfig),
            nodes=" ".join(cluster.nodes),
            bucket=cluster.bucket_server,
        )


def main() -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(prog="python -m tests.cluster.kube", description=__doc__)
    parser.add_argument("verb", choices=("up", "down", "status", "hold"))
    parser.add_argument("--nodes", type=int, default=3, help="how many nodes (default 3)")
    options = parser.parse_args()
    started = manual()
    try:
        if options.verb == "up":
            return started.up(options.nodes)
        if options.verb == "hold":
            return hold(options.nodes)
    except (NotBuilt, NotUp) as error:
        sys.stderr.write(f"{error}\n")
        return 1
    found = started.running()
    if options.verb == "down":
        if not found:
            sweep_groups()
        return started.down()
    if found:
        _show(found)
    else:
        sys.stderr.write("no cluster is running: python -m tests.cluster.kube up\n")
    return 0 if found else 1


if __name__ == "__main__":
    sys.exit(main())
