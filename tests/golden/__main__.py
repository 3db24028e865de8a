"""`python -m tests.golden`: judge all runs, print what differs from the files, and write these."""

from __future__ import annotations

from tests.golden.files import judged, store, stored
from tests.golden.runs import FAMILIES
from tests.golden.view import differences


def main() -> None:
    """Print the differences for review, and store the new verdicts."""
    count = 0
    for family in FAMILIES:
        old, new = stored(family), judged(family)
        for name in dict.fromkeys((*old, *new)):
            lines = list(differences(old.get(name, {}), new.get(name, {})))
            if lines:
                count += 1
                print(f"{family}: {name}", *lines, sep="\n")
        store(family, new)
    print(f"{count} of {sum(map(len, FAMILIES.values()))} verdicts differ")


if __name__ == "__main__":
    main()
