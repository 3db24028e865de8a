"""Choose 64 of 66 simulated nodes, as `accept pick` does, and count what goes wrong.

`python -m benchmarks.pick` prints the table, `--trials 20 --worlds w1` a part. The same seed gives
the same clusters. `--real 20` instead picks 6 of 8 hosts over ssh, one with a link at 60 %.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from tests.cluster.hosts import Hosts
from tests.cluster.network import bits
from tests.cluster.runs import Lab
from tests.factories.simulated_cluster import rate
from tests.factories.simulated_runs import run_of
from tests.factories.simulated_worlds import BY_NAME

from accept.commands.pick import chosen_of

_SEED, _NODES, _NEED, _ROUNDS = 20_261_127, 66, 64, 4
_WORLDS = ("w0", "w1", "node-50", "node-dead", "node-pairs-70")


def picked(name: str, trials: int) -> tuple[int, int, int, int]:
    """Count clusters with a bad node, with all of them left out, with an innocent, not started.

    Innocent means that a good node is accused, although the spares suffice for the bad ones.
    """
    bad_clusters = avoided = innocent = refused = 0
    for seed in range(trials):
        cluster = BY_NAME[name].cluster(_NODES, _ROUNDS, _SEED + seed, schedule=seed)
        choice, reason = chosen_of(run_of(cluster, _ROUNDS, seed=seed, again=True), _NEED)
        bad = {cluster.hosts[index] for index in cluster.bad}
        bad_clusters += bool(bad)
        avoided += bool(bad) and bad.isdisjoint(choice.chosen)
        innocent += any(one.host not in bad and not one.is_spare for one in choice.left_out)
        refused += bool(reason)
    return bad_clusters, avoided, innocent, refused


def pick_really(trials: int) -> None:
    """Pick 6 of 8 hosts; print after how long the command started, and whether on good ones."""
    with tempfile.TemporaryDirectory(prefix="accept-bench-") as folder, Hosts(8) as hosts:
        lab = Lab(hosts, Path(folder))
        slow = lab.names[2]
        hosts.shape(slow, f"{bits(hosts.rate or '') * 6 // 10_000}kbit")
        words = ("--hosts", ",".join(lab.names), "--machine", str(lab.machine))
        command = ("--", "sh", "-c", 'echo "$ACCEPT_NODELIST"')
        for _ in range(trials):
            began = time.monotonic()
            done = lab.do("pick", "--need", "6", *words, "--site", str(lab.site), *command)
            started = done.exit == 0 and slow not in done.out.strip().split(",")
            print(f"{'good' if started else 'bad'}: {time.monotonic() - began:.0f} s", flush=True)


def main(arguments: Sequence[str]) -> None:
    """Print a table of worlds."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trials", type=int, default=299)
    parser.add_argument("--worlds", nargs="*", default=_WORLDS)
    parser.add_argument("--real", type=int, default=0)
    options = parser.parse_args(arguments)
    if options.real:
        pick_really(options.real)
        return
    trials = options.trials
    print("| cluster | bad node left out | innocent node accused | nothing started |")
    print("| --- | --- | --- | --- |")
    for name in options.worlds:
        bad, avoided, *others = picked(name, trials)
        left_out = f"{avoided} of {bad} (at least {rate(avoided, bad)[0]:.1%})" if bad else "-"
        cells = [f"{n} of {trials} (at most {rate(n, trials)[1]:.1%})" for n in others]
        print(f"| {BY_NAME[name].text} | {left_out} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
