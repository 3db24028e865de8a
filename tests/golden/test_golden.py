"""Every decision of the golden verdicts is unchanged; `python -m tests.golden` writes new ones."""

from __future__ import annotations

from tests.golden.files import judged, stored
from tests.golden.runs import FAMILIES
from tests.golden.view import differences


def test_verdicts_are_those_of_the_files() -> None:
    found: list[str] = []
    for family in FAMILIES:
        old, new = stored(family), judged(family)
        assert list(old) == list(new)
        for name in new:
            lines = list(differences(old[name], new[name]))
            found += [f"{family}: {name}", *lines] if lines else []
    assert not found, "\n".join([*found, "after a review: python -m tests.golden"])
