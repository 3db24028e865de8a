"""`python -m tests.changed [COMMIT]`: print the tests of what changed since main, for `make check`.

Folders of tests mirror those of the code, so a changed module has the tests of the same name, or
of the nearest folder that has tests.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import PurePath

from tests.factories.paths import ROOT

#: The tests of files that are not modules, by the start of their path.
_OTHERS = {
    "launchers/": "tests/launchers",
    "values/": "tests/config",
    "docs/": "tests/repository/test_docs.py",
    "README.md": "tests/repository/test_docs.py",
    "docker/": "tests/docker",
    "chart/": "tests/chart",
}


def changed(since: str) -> list[str]:
    """Return the files that differ from a commit, with those that git does not know yet."""
    commands = (
        ("git", "diff", "--name-only", "--merge-base", since),
        ("git", "ls-files", "--others", "--exclude-standard"),
    )
    return [
        line
        for command in commands
        for line in subprocess.check_output(command, cwd=ROOT, text=True).splitlines()
    ]


def tests_of(path: str) -> str | None:
    """Return the file or folder with the tests of a changed file; None if it has none."""
    if path.startswith("tests/"):
        is_test = PurePath(path).name.startswith("test_") and path.endswith(".py")
        return path if is_test and (ROOT / path).is_file() else None
    if path.startswith("cli/accept/"):
        return next(_mirrored(PurePath(path).relative_to("cli/accept")), None)
    return next((tests for start, tests in _OTHERS.items() if path.startswith(start)), None)


def _mirrored(module: PurePath) -> Iterator[str]:
    """Yield existing tests of a module of `accept`, the nearest first."""
    folders = [folder for folder in module.parents if folder.name]
    names = [module.parent / f"test_{module.stem}.py", module.with_suffix(""), *folders]
    for name in names:
        if (ROOT / "tests" / name).exists():
            yield f"tests/{name}"


def main() -> None:
    """Print each file or folder once."""
    since = sys.argv[1] if len(sys.argv) > 1 else "main"
    found = {tests for path in changed(since) if (tests := tests_of(path))}
    print(*sorted(found), sep="\n")


if __name__ == "__main__":
    main()
