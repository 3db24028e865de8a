"""List words that the project avoids, and find places that use them.

`python -m tests.words` prints every place; tests/repository/test_words.py fails if there is one.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from tests.factories.paths import ROOT

#: Code and documentation that people of this project wrote.
_PLACES = (
    *("cli/", "launchers/", "chart/", "tests/", "benchmarks/", "docs/"),
    *("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "docker/README.md"),
)
_SUFFIXES = {".in", ".j2", ".md", ".py", ".sh", ".tpl", ".txt", ".yaml", ".yml"}
#: The only JSON that people write.
_CAUSES = "cli/accept/core/causes.json"
#: Logs and licenses of others, and the table itself.
_EXEMPT = ("tests/data/", "tests/logs/", "tests/words.py", "tests/repository/test_words.py")

#: Between two words there may be a line break, a comment sign, the end and start of a string, or
#: the underscore of a name.
_GAP = r"(?:[\s#\"'*]+|_)"
_NUMBER = r"(?:\d|two|three|four|five|ten|twenty|dozens?|hundred|thousand)"


@dataclass(frozen=True, kw_only=True)
class Pattern:
    """An expression that is counted."""

    #: The text in CONTRIBUTING.md under "do not write".
    avoid: str
    #: The text in CONTRIBUTING.md under "write".
    write: str
    #: A regular expression without regard to case. A space stands for any gap between two words;
    #: it matches whole words, also as parts of names such as `hosts_told`.
    expression: str

    @property
    def regex(self) -> re.Pattern[str]:
        """Return the compiled expression."""
        return _compiled(self.expression)


@cache
def _compiled(expression: str) -> re.Pattern[str]:
    spaced = expression.replace(" ", _GAP)
    return re.compile(rf"(?<![A-Za-z])(?:{spaced})(?![A-Za-z])", re.IGNORECASE)


def _row(avoid: str, write: str, expression: str = "") -> Pattern:
    return Pattern(
        avoid=avoid, write=write, expression=expression or re.escape(avoid).replace("\\ ", " ")
    )


#: First words of docstrings that are a clause and not a sentence; a docstring begins with a verb.
_CLAUSES = {"How", "Of", "That", "What", "Where", "Whether", "Which", "Who", "Whom", "Whose"}
DOCSTRINGS = Pattern(
    avoid="docstrings that start with What, Whether, Which, Who, Where, How, Of, That",
    write="an imperative verb: Return, Parse, Check",
    expression="",
)

PATTERNS = (
    _row(
        "all of it, the whole of it",
        "everything, the full run",
        r"all of it|the whole of (?:it|them)",
    ),
    _row("as it was written", "unmodified", r"as (?:it was|they were) written"),
    _row("asked for", "requested"),
    _row(
        "broke off",
        "was interrupted, timed out, failed",
        r"(?:broke|broken|breaks?|breaking) off|(?<![`\"])brokenOff",  # quoted: the key of 0.1
    ),
    _row("data right", "results correct"),
    _row("equals (noun)", "peers", r"(?:its|their|the|other|of|healthy) equals"),
    _row("held against", "compared with", r"(?:held|holds?|holding) against"),
    _row(
        "hosts that answered", "reachable hosts", r"(?:hosts?|nodes?|ones|those) that answer(?:ed)?"
    ),
    _row(
        "is no X",
        "is not a valid X",
        r"(?<!there[\s_])(?:is|are|was|were) no(?! longer| more| less| fewer| later)",
    ),
    _row("is not there", "is missing", r"(?:is|are|was|were) not there"),
    _row("lies, lie (in a place)", "is in", r"lies|lie (?:in|on|under|below|beside|there)"),
    _row("nobody's leave", "without special permissions", r"nobody'?s? leave"),
    _row("of use, of no use", "useful, not usable", r"(?<!out\s)of (?:no )?use"),
    _row("of which", "a second sentence"),
    _row(
        "once (as soon as)",
        "when, after",
        r"(?<!at[\s_])(?<!than[\s_])once (?:it|they|the|all|every|each|that|this|everything)",
    ),
    # `--plant` and `planted` in quotes are the option and the key of 0.1.
    _row("plant (a fault)", "inject", r"(?<![`\"-])plant(?:s|ed|ing)?"),
    _row("some (before a number)", "about", rf"some {_NUMBER}"),
    # Not in names: `speedPromised` is a key of machines and plans.
    _row("speed promised", "speed target", r"speed[\s#\"'*]+promised"),
    _row("stands (is)", "is in, is listed", r"stands(?! for| out| alone| in for)|stands? there"),
    _row("stands out", "is an outlier", r"(?:stands?|stood|standing) out"),
    _row("told, tells, said, says", "reported, reports, shows", r"told|tells|said|says"),
    _row("way (between GPUs)", "path, link", r"ways? (?:between|that NCCL|of NCCL|NCCL)"),
    _row("what there is", "the available X", r"what there (?:is|are|was|were)"),
    _row(
        "where there is, where there are",
        "if there is, if there are",
        r"where there (?:is|are|was|were)",
    ),
    _row(
        "whence, whereof, thereof",
        "from which source, a second sentence",
        r"whence|whereof|thereof|wherein",
    ),
    _row("whom", "a second sentence"),
    DOCSTRINGS,
)


#: What no screen or report shows. Host is what ssh reaches: people get nodes.
SCREENS = {
    "nodes": re.compile(
        r"\b(?:\d+|no|single|third|other|these|the|all|each) hosts?\b(?! file)", re.IGNORECASE
    ),
    "plan HASH": re.compile(r"\brun [0-9a-f]{12}\b"),
    "a share with its %": re.compile(r"\btested\W{1,3}0\.\d"),
}


@dataclass(frozen=True, kw_only=True)
class Place:
    """One use of an expression."""

    path: str
    line: int
    text: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.text}"


def _listed() -> list[str]:
    """Return the paths of the files that are, or would be, committed."""
    command = ["git", "ls-files", "-z", "-co", "--exclude-standard", *_PLACES]
    done = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True)
    names = sorted(name for name in done.stdout.split("\0") if name)
    ours = [n for n in names if Path(n).suffix in _SUFFIXES or n == _CAUSES]
    return [name for name in ours if not name.startswith(_EXEMPT)]


def _counted(path: str, text: str) -> str:
    """Return the part of a file that is counted, with all line numbers unchanged."""
    if path == "CHANGELOG.md":  # entries of versions that are out stay as they are
        second = [match.start() for match in re.finditer(r"^## ", text, re.MULTILINE)][1:2]
        return text[: second[0]] if second else text
    if path == "CONTRIBUTING.md":  # its section on language shows the words
        return re.sub(
            r"^## Language\n.*?(?=^## |\Z)",
            lambda section: "\n" * section[0].count("\n"),
            text,
            flags=re.MULTILINE | re.DOTALL,
        )
    return text


@cache
def _texts() -> Mapping[str, str]:
    files = ((name, ROOT / name) for name in _listed())
    return {n: _counted(n, p.read_text(encoding="utf-8")) for n, p in files if p.is_file()}


def lines_of(path: str, text: str, pattern: Pattern) -> list[int]:
    """Return the numbers of the lines on which an expression is used, repeated if it is often."""
    if pattern is not DOCSTRINGS:
        return [text.count("\n", 0, m.start()) + 1 for m in pattern.regex.finditer(text)]
    if not path.endswith(".py"):
        return []
    found = []
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            first = (ast.get_docstring(node) or "").split()[:1]
            if first and first[0].rstrip(",.:") in _CLAUSES:
                found.append(node.body[0].lineno)
    return sorted(found)


def places(pattern: Pattern) -> list[Place]:
    """Return every use of an expression, in the order of files and lines."""
    found = []
    for path, text in _texts().items():
        lines = text.splitlines()
        numbers = lines_of(path, text, pattern)
        found += [Place(path=path, line=n, text=lines[n - 1].strip()) for n in numbers]
    return found


def main() -> int:
    """Print every place. Returns 1 if there is one."""
    found = [(pattern, place) for pattern in PATTERNS for place in places(pattern)]
    for pattern, place in found:
        print(f"{place}\n  {pattern.avoid}  ->  {pattern.write}")
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main())
