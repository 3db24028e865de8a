"""Does a verdict hold? `python -m tests.cluster.repeat` runs the same case again and again.

Two cases, 20 times each: eight good hosts are accepted; of eight hosts with one slow link that one
is named and no other. Prints a table, and ends with 1 where one run came to another verdict.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from tests.cluster.hosts import Hosts, why_not
from tests.cluster.runs import ALL_REDUCE, CONNECT, PAIRS, Lab

CHECKS = ("check: inventory", *CONNECT, *ALL_REDUCE, *PAIRS)

Suspects = set[tuple[str, str]]
#: What is done to the hosts, and the verdict that has to follow: ending and suspects.
CASES: dict[str, tuple[Callable[[Hosts], None], tuple[str, int], Suspects]] = {
    "accepted": (lambda hosts: None, ("pass", 0), set()),
    "slow link": (lambda hosts: hosts.slow("h5"), ("degraded", 3), {("h5", "slow-outlier")}),
}


def once(case: str) -> str:
    """Run a case on new hosts; return what was wrong, or ""."""
    fault, ending, suspects = CASES[case]
    with Hosts(8) as hosts, tempfile.TemporaryDirectory(prefix="accept-repeat-") as folder:
        lab = Lab(hosts, Path(folder))
        fault(hosts)
        try:
            done = lab.run(checks=CHECKS)
            if (done.ending, done.suspects) != (ending, suspects):
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
            wrong = once(case)
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
