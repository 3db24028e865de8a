"""The words of the table in CONTRIBUTING.md are not used."""

from __future__ import annotations

import re

import pytest
from tests.factories.paths import ROOT
from tests.words import DOCSTRINGS, PATTERNS, Pattern, lines_of, places

#: The most places that a failure lists.
SHOWN = 40


def named(avoid: str) -> Pattern:
    (pattern,) = (one for one in PATTERNS if one.avoid.startswith(avoid))
    return pattern


@pytest.mark.parametrize("pattern", PATTERNS, ids=lambda pattern: pattern.avoid)
def test_no_word_of_the_table_is_used(pattern: Pattern) -> None:
    listed = "\n".join(f"  {place}" for place in places(pattern)[:SHOWN])
    assert not listed, f"write {pattern.write!r} instead of {pattern.avoid!r}:\n{listed}"


def test_the_table_for_people_is_the_table_of_the_test() -> None:
    page = (ROOT / "CONTRIBUTING.md").read_text()
    rows = re.findall(r"^\| (.+?) \| (.+?) \|$", page.partition("## Language")[2], re.MULTILINE)
    assert rows[0] == ("do not write", "write")
    assert rows[1:] == [(pattern.avoid, pattern.write) for pattern in PATTERNS]


@pytest.mark.parametrize(
    ("avoid", "text"),
    [
        ("told", "said = 1"),
        ("told", "hosts_told = 1"),
        ("told", "# What it Says"),
        ("asked for", "# what was asked\n    # for"),
        ("is no X", 'f"{name} is "\n    "no host"'),
        ("plant", "planted"),
        ("once", "once it ended"),
        ("of which", "of\nwhich"),
        ("some", "some 40 nodes"),
    ],
)
def test_an_expression_is_found_across_lines_and_in_names(avoid: str, text: str) -> None:
    assert lines_of("a.md", text, named(avoid)) == [1]


@pytest.mark.parametrize(
    ("avoid", "text"),
    [
        ("told", "retold, essays, saying"),
        ("is no X", "there is no such file, and it is no longer needed"),
        ("plant", "transplant, plantation; `--plant`, `planted`"),
        ("broke off", "`brokenOff`"),
        ("speed promised", "speed_promised"),
        ("once", "at once; more than once; once per host"),
        ("stands (is)", "NIC stands for network interface card"),
        ("some", "some hosts"),
        ("way", "in no way"),
    ],
)
def test_plain_english_is_not_counted(avoid: str, text: str) -> None:
    assert lines_of("a.md", text, named(avoid)) == []


def test_docstrings_that_are_a_clause_are_found_in_modules_classes_and_functions() -> None:
    text = '''"""What it is."""

class A:
    """Of the run, the part."""

def whether() -> bool:
    """Whether it is."""

def good() -> bool:
    """Return True if it is, which is rare."""
'''
    assert lines_of("a.py", text, DOCSTRINGS) == [1, 4, 7]
    assert lines_of("a.md", text, DOCSTRINGS) == []
