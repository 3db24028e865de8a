"""Does a verdict hold? `python -m tests.cluster.repeat` runs the same case again and again.

Cases, 20 times each: eight good hosts are accepted; of eight hosts with one slow link that one is
named and no other; the slow path between two hosts is named, also while another host pauses in
every wave; the pauses alone accuse nobody. Prints a table, and ends with 1 where one run came to
another verdict.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path

from tests.cluster.hosts import Hosts, why_not
from tests.cluster.pauses import pauses
from tests.cluster.runs import ALL_REDUCE, CONNECT, PAIRS, Lab

CHECKS = ("check: inventory", *CONNECT, *ALL_REDUCE, *PAIRS)

Suspects = set[tuple[str, str]]


@dataclass(frozen=True, kw_only=True)
class Case:
    """A fault on the hosts, and the verdict that has to follow."""

    fault: Callable[[Hosts], AbstractContextManager[object]]
    ending: tuple[str, int] = ("pass", 0)
    suspects: Suspects = field(default_factory=set)
    checks: Iterable[str] = CHECKS


def _slow_link(hosts: Hosts) -> AbstractContextManager[object]:
    hosts.slow("h5")
    return nullcontext()


#: Two hosts that meet in the first round.
PATH = ("h3", "h4")
#: The share of its speed that their path keeps.
SHARE = 0.6
_NAMED: Suspects = {(" - ".join(PATH), "slow-network")}
_PAIRS = (*CONNECT, *PAIRS)


def _slow_path(hosts: Hosts) -> AbstractContextManager[object]:
    hosts.slow_path(*PATH, SHARE)
    return nullcontext()


def _slow_path_and_pauses(hosts: Hosts) -> AbstractContextManager[object]:
    hosts.slow_path(*PATH, SHARE)
    return pauses(hosts)


CASES: dict[str, Case] = {
    "accepted": Case(fault=lambda hosts: nullcontext()),
    "slow link": Case(fault=_slow_link, ending=("degraded", 3), suspects={("h5", "slow-outlier")}),
    "slow path": Case(fault=_slow_path, ending=("degraded", 3), suspects=_NAMED, checks=_PAIRS),
    "slow path and pauses": Case(
        fault=_slow_path_and_pauses, ending=("degraded", 3), suspects=_NAMED, checks=_PAIRS
    ),
    "pauses": Case(fault=pauses, checks=_PAIRS),
}


def once(case: Case) -> str:
    """Run a case on new hosts; return what was wrong, or ""."""
    with Hosts(8) as hosts, tempfile.TemporaryDirectory(prefix="accept-repeat-") as folder:
        lab = Lab(hosts, Path(folder))
        try:
            with case.fault(hosts):
                done = lab.run(checks=case.checks)
            if (done.ending, done.suspects) != (case.ending, case.suspects):
                return f"{done.result['headline']}; {sorted(done.suspects)}\n{done.err}"
            lab.nothing_is_left()
        except AssertionError as error:
            return str(error)
        finally:
            lab.close()
        return ""


def main() -> int:
    """Run all cases and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--times", type=int, default=20, help="runs of each case (default 20)")
    parser.add_argument("--case", choices=CASES, action="append", help="this case (default: all)")
    options = parser.parse_args()
    if reason := why_not():
        parser.exit(2, f"{reason}\n")
    cases = options.case or list(CASES)
    seconds: dict[str, list[float]] = {case: [] for case in cases}
    good = dict.fromkeys(cases, 0)
    for number in range(1, options.times + 1):
        for case in cases:
            began = time.monotonic()
            wrong = once(CASES[case])
            seconds[case].append(time.monotonic() - began)
            good[case] += not wrong
            result = f"WRONG: {wrong}" if wrong else "as expected"
            sys.stderr.write(f"{number:3} {case}: {seconds[case][-1]:.0f} s, {result}\n")
    print("| case | as expected | seconds a run, median | longest |\n|---|---|---|---|")
    for case in cases:
        median, longest = statistics.median(seconds[case]), max(seconds[case])
        print(f"| {case} | {good[case]} of {options.times} | {median:.0f} | {longest:.0f} |")
    return int(any(good[case] < options.times for case in cases))


if __name__ == "__main__":
    sys.exit(main())
