"""Properties of the repository: links, versions, import rules, no private names."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

from tests.factories.paths import CLI, PROGRAMS, ROOT, TESTS

from accept import __version__

CORE = CLI / "accept" / "core"
MACHINES = ROOT / "values" / "machines"
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())

LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
QUOTED = re.compile(r"`([^`\n]+)`")
TARGET = re.compile(r"`make ([a-z-]+)")
#: A test module or a conftest by its full name, also in code that a test passes to another Python.
TEST_MODULE = re.compile(r"\btests(?:\.\w+)*\.(?:test_\w+|conftest)\b")


def project_files() -> list[Path]:
    """Return the files that are, or would be, committed."""
    command = ["git", "ls-files", "-z", "-co", "--exclude-standard"]
    listed = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    return [ROOT / name for name in listed.split("\0") if name and (ROOT / name).is_file()]


FILES = project_files()
PAGES = {path: path.read_text() for path in FILES if path.suffix == ".md"}


def nodes(*folders: Path) -> Iterator[tuple[str, ast.AST]]:
    """Yield the name of each module below some folders with each node of its syntax."""
    for path in (path for folder in folders for path in sorted(folder.rglob("*.py"))):
        yield from ((short(path), node) for node in ast.walk(ast.parse(path.read_text())))


def short(path: Path) -> str:
    return str(path.relative_to(ROOT))


def imported(folder: Path) -> Iterator[tuple[str, str]]:
    """Yield each module below a folder with the full name of each import, anywhere in it."""
    for path, node in nodes(folder):
        if isinstance(node, ast.Import):
            yield from ((path, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield from ((path, f"{node.module}.{alias.name}") for alias in node.names)


def test_links_between_pages_exist() -> None:
    links = [
        (page, link.partition("#")[0])
        for page, text in PAGES.items()
        for link in LINK.findall(text)
    ]
    relative = [(page, link) for page, link in links if link and ":" not in link]
    assert [
        (short(page), link) for page, link in relative if not (page.parent / link).exists()
    ] == []


def test_both_copies_of_the_license_are_the_same() -> None:
    # GitHub and wheels need the first, REUSE the second.
    assert (ROOT / "LICENSE").read_bytes() == (ROOT / "LICENSES" / "Apache-2.0.txt").read_bytes()


def test_contributing_names_files_that_exist() -> None:
    """Paths in backquotes start at the top of the project; NAME in them stands for anything."""
    quoted = QUOTED.findall((ROOT / "CONTRIBUTING.md").read_text())
    paths = [text for text in quoted if re.fullmatch(r"[\w.-]+(/[\w.-]*)+", text)]
    assert paths
    assert [path for path in paths if not list(ROOT.glob(path.replace("NAME", "*")))] == []


def test_pages_name_make_targets_that_exist() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert {name for text in PAGES.values() for name in TARGET.findall(text)} <= targets


def test_the_changelog_begins_with_the_version_of_the_package() -> None:
    heading = re.search(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert heading is not None
    assert heading[1] == __version__


def test_the_lock_names_the_public_index_and_no_other() -> None:
    hosts = set(re.findall(r"https?://([^/\"]+)", (ROOT / "uv.lock").read_text()))
    assert hosts == {"pypi.org", "files.pythonhosted.org"}


def test_every_rule_about_imports_is_a_contract() -> None:
    contracts = {one["name"]: one for one in PYPROJECT["tool"]["importlinter"]["contracts"]}
    assert contracts["An upper layer imports lower ones, never backwards"]["exhaustive"]
    assert contracts["In core: runner, then checks, then judge, then plain data"]["exhaustive"]
    assert contracts["No cycles, also through imports inside functions"]["ancestors"] == ["accept"]
    judge = contracts[
        "The judge and the readers start no process, open no socket and read no clock"
    ]
    assert {"socket", "subprocess", "time", "urllib"} <= set(judge["forbidden_modules"])
    independent = {
        module
        for one in contracts.values()
        if one["type"] == "independence"
        for module in one["modules"]
    }
    names = ("kubernetes", "local", "slurm", "ssh")
    back_ends = {f"accept.backends.{name}" for name in names}
    assert independent == back_ends | {"accept.core.checks.*"}


def test_core_imports_the_standard_library_and_itself_only() -> None:
    others = [
        (path, name)
        for path, name in imported(CORE)
        if not f"{name}.".startswith("accept.core.")
        and name.partition(".")[0] not in sys.stdlib_module_names
    ]
    assert others == []


def test_programs_of_the_ranks_import_nothing_of_ours() -> None:
    assert not [row for row in imported(PROGRAMS) if row[1].partition(".")[0] == "accept"]


def test_no_test_helper_lives_in_a_test_file() -> None:
    """Helpers of several test files have their own module, for example in tests/factories."""
    named = [
        (short(path), found)
        for path in TESTS.rglob("*.py")
        for found in TEST_MODULE.findall(path.read_text())
    ]
    assert named + [row for row in imported(TESTS) if TEST_MODULE.fullmatch(row[1])] == []


def test_the_commands_load_without_optional_libraries() -> None:
    """`accept --help` and `render` stay fast: heavy modules are imported where they are used."""
    heavy = {"jinja2", "kubernetes", "matplotlib", "mpi4py", "numpy", "obstore", "rich", "torch"}
    script = "import sys, accept.__main__; print(*sorted(sys.modules))"
    command = [sys.executable, "-c", script]
    done = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True)
    assert heavy & set(done.stdout.split()) == set()


def test_no_code_compares_the_name_of_a_machine() -> None:
    # `gpu` is also a kind of suspect.
    machines = {path.stem for path in MACHINES.glob("*.yaml")} - {"gpu"}
    compared = [
        (path, leaf.value)
        for path, node in nodes(CLI)
        if isinstance(node, ast.Compare | ast.MatchValue)
        for leaf in ast.walk(node)
        if isinstance(leaf, ast.Constant) and leaf.value in machines
    ]
    assert compared == []


#: Functions that return everything that a program prints.
WHOLE = ("communicate", "check_output", "getoutput", "getstatusoutput", "popen")
#: Modules that read a pipe of another program, each up to a limit; all others call these.
READERS = {
    "launchers/programs/tool.py",
    "cli/accept/core/bounded.py",
    # Programs of the ranks cannot import it.
    "launchers/programs/commands.py",
    # Streams that are read in the event loop.
    "cli/accept/core/runner/ssh.py",
    # Steps of Slurm that go on while their lines are read.
    "cli/accept/core/runner/slurm_step.py",
}


def test_output_of_other_programs_is_read_in_few_places_and_never_whole() -> None:
    readers = set()
    for path, node in nodes(CLI, PROGRAMS):
        # They keep everything that a program prints.
        assert not (isinstance(node, ast.keyword) and node.arg == "capture_output"), path
        assert not (isinstance(node, ast.Attribute) and node.attr in WHOLE), path
        is_output = isinstance(node, ast.keyword) and node.arg in ("stdout", "stderr")
        if is_output and "PIPE" in ast.dump(node):
            readers.add(path)
    assert readers == READERS


def test_no_file_contains_a_path_of_the_developers_machine() -> None:
    everywhere = {Path(name) for name in ("/", "/opt", "/root", "/srv", "/tmp", "/usr/src")}
    places = {f"{place}/" for place in {ROOT.parent, Path.home()} - everywhere}
    named = [
        (short(path), place)
        for path in FILES
        for place in places
        if place.encode() in path.read_bytes()
    ]
    assert named == []
