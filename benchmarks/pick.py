"""Choose 64 of 66 simulated nodes, as `accept pick` does, and count bad nodes among them.

`python -m benchmarks.pick --trials 299 --worlds w0 w1` prints the table; the same seed gives the
same clusters.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from tests.factories.simulated_cluster import rate
from tests.factories.simulated_runs import run_of
from tests.factories.simulated_worlds import BY_NAME

from accept.core.checks import REGISTRY
from accept.core.judge.ranking import choose, doubts

_SEED, _NODES, _NEED, _ROUNDS = 20_261_127, 66, 64, 4
_WORLDS = ("w0", "w1", "node-15", "node-50", "node-dead", "node-pairs-70")


def picked(name: str, trials: int) -> tuple[int, int, int]:
    """Count clusters in which a bad node is chosen, an innocent one accused, nothing started."""
    chosen = innocent = refused = 0
    for seed in range(trials):
        cluster = BY_NAME[name].cluster(_NODES, _ROUNDS, _SEED + seed, schedule=seed)
        run = run_of(cluster, _ROUNDS, seed=seed, again=True)
        choice = choose(
            run.verdict,
            _NEED,
            measured=run.verdict.hosts,
            in_doubt=doubts(run.plan, run.records, checks=REGISTRY),
        )
        bad = {cluster.hosts[index] for index in cluster.bad}
        starts = not choice.refused and len(choice.chosen) == _NEED
        chosen += bool(bad & {*choice.chosen}) and starts
        innocent += any(one.host not in bad and not one.is_spare for one in choice.left_out)
        refused += not starts
    return chosen, innocent, refused


def main(arguments: Sequence[str]) -> None:
    """Print a table of worlds."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trials", type=int, default=299)
    parser.add_argument("--worlds", nargs="*", default=_WORLDS)
    options = parser.parse_args(arguments)
    print("| world | clusters | bad node chosen | innocent accused | not started |")
    print("| --- | --- | --- | --- | --- |")
    for name in options.worlds:
        counts = picked(name, options.trials)
        cells = [f"{events} (at most {rate(events, options.trials)[1]:.1%})" for events in counts]
        print(f"| {name} | {options.trials} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
