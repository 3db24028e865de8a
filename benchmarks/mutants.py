"""Measure which small edits of the code its tests notice: `python -m benchmarks.mutants PACKAGE`.

mutmut makes the edits, called mutants, and runs the tests. This module copies a commit into
build/mutants and draws mutants by a hash of their names, so samples of two commits share mutants
where the code is the same. It leaves out edits of texts, because wording may change freely.
"""

from __future__ import annotations

import argparse
import gc
import hashlib
import os
import shutil
import subprocess
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import _lru_cache_wrapper
from multiprocessing import get_context
from pathlib import Path
from typing import Any
from unittest import mock

ROOT = Path(__file__).resolve().parents[1]
#: The tests of each package.
TESTS = {
    "core/judge": "tests/core/judge tests/core/checks tests/golden",
    "core/nccl_tests": "tests/core/nccl_tests tests/core/checks tests/foreign_logs",
    "evidence": "tests/evidence tests/core/test_evidence.py tests/commands/test_run_folders.py "
    "tests/commands/test_judge.py tests/foreign_logs/test_nccl_logs.py",
    "plan": "tests/plan",
}
#: Statistics over simulated clusters, and measurements of memory, take too long for each mutant.
_SLOW = ("tests/core/judge/test_simulated.py", "tests/foreign_logs/test_injected_faults.py")
#: The threads of obstore, the client of buckets, do not survive the fork of a mutant.
_BUCKET, _OF_BUCKET = "src/accept/evidence/bucket.py", "tests/evidence/test_bucket.py"
_SLOW_NAMES = "not memory_does_not_grow and not bounded_memory"


def copy(commit: str, package: str) -> Path:
    """Extract a commit into a folder below build, with the settings of mutmut; return the folder.

    mutmut finds the name of a module from its path only below `src`, so `cli` becomes a link to it.
    """
    folder = ROOT / "build" / "mutants" / commit / package.replace("/", "-")
    shutil.rmtree(folder, ignore_errors=True)
    (folder / "mutants").mkdir(parents=True)
    archive = subprocess.run(["git", "archive", commit], cwd=ROOT, check=True, capture_output=True)
    subprocess.run(["tar", "-x"], cwd=folder, check=True, input=archive.stdout)
    (folder / "cli").rename(folder / "src")
    also = sorted(path.name for path in folder.iterdir() if path.name not in ("src", "mutants"))
    for place in (folder, folder / "mutants"):
        (place / "cli").symlink_to("src")
    options = ["-p", "no:cacheprovider", "--hypothesis-profile", "few"]
    options += ["-m", "not real and not cluster", "-k", _SLOW_NAMES]
    options += [f"--ignore={path}" for path in (*_SLOW, _OF_BUCKET)]
    with (folder / "pyproject.toml").open("a") as stream:
        stream.write(
            f"\n[tool.mutmut]\nsource_paths = ['src']\nonly_mutate = ['src/accept/{package}/*']\n"
            f"do_not_mutate = ['{_BUCKET}']\n"
            f"also_copy = {also}\npytest_add_cli_args = {options}\n"
            f"pytest_add_cli_args_test_selection = {TESTS[package].split()}\n"
            "timeout_multiplier = 4.0\ntimeout_constant = 30.0\ntrack_dependencies = false\n"
        )
    return folder


def _caches() -> Iterator[Any]:
    """Yield the functions of accept whose results are stored."""
    for one in gc.get_objects():
        if isinstance(one, _lru_cache_wrapper) and one.__module__.startswith("accept."):
            yield one


def run(folder: Path, sample_size: int, seed: str) -> tuple[dict[str, str], int, float]:
    """Run mutmut in a folder; return the drawn mutants with outcomes, the number of all, seconds.

    It changes this process: mutmut reads its settings when it is imported, and tests import what
    it has written.
    """
    os.chdir(folder)
    # Programs that the tests start import the mutants, too.
    os.environ |= {"CI": "true", "PYTHONPATH": str(folder / "mutants" / "src")}
    from mutmut import __main__ as mutmut
    from mutmut.mutation import file_mutation, mutators
    from mutmut.stats import status_by_exit_code
    from mutmut.utils.format_utils import get_mutant_name, orig_function_and_class_names_from_key
    from mutmut.workers.isolation import ForkRunner

    mutators.mutation_operators.remove((mutators.cst.BaseString, mutators.operator_string))
    with (
        mock.patch.object(file_mutation, "deep_replace", lambda tree, *_: tree),
        mock.patch.object(file_mutation, "render_and_collect_line_spans", return_value=("", {})),
    ):  # only the names are needed
        names = [
            get_mutant_name(path, name)
            for path in mutmut.walk_mutatable_files()
            for name in mutmut.mutate_file_contents(str(path), path.read_text("utf-8")).mutant_names
        ]
    names.sort(key=lambda name: hashlib.sha256(f"{seed} {name}".encode()).digest())
    sample = names[:sample_size]

    # A function with mutants is many times slower, so the others get none.
    functions = {orig_function_and_class_names_from_key(name)[0] for name in sample}
    create_mutations = file_mutation.create_mutations

    def create_some(*args: Any) -> Any:
        module, mutations, *ignored = create_mutations(*args)
        owners = ((one, one.contained_by_top_level_function) for one in mutations)
        kept = [
            one
            for one, owner in owners
            if isinstance(owner, mutators.cst.FunctionDef) and owner.name.value in functions
        ]
        return module, kept, *ignored

    file_mutation.create_mutations = create_some
    # The tests have just passed when mutmut recorded which functions they call.
    ForkRunner.run_clean_tests = lambda *_, **__: 0
    # Each mutant begins in a fork of this process: without what its tests have stored.
    ForkRunner.startup = lambda *_: [one.cache_clear() for one in _caches()]
    mutmut._run(sample, 1)
    mutants, _ = mutmut.collect_source_file_mutation_data(mutant_names=sample)
    results = {name: status_by_exit_code[code] for _, name, code in mutants}
    for name, result in results.items():
        if result != "killed":
            print(f"\n{result}: {name}\n{mutmut.get_diff_for_mutant(name)}")
    return results, len(names), sum(os.times()[:4])


def main() -> None:
    """Print each mutant of a sample that no test failed for, and the share of killed mutants."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("package", choices=TESTS)
    parser.add_argument("--commit", default="HEAD", help="whose code and tests (default: HEAD)")
    parser.add_argument("--sample", type=int, default=60, help="number of mutants")
    parser.add_argument("--seed", default="1")
    given = parser.parse_args()
    commit = subprocess.check_output(
        ["git", "rev-parse", "--short", given.commit], cwd=ROOT, text=True
    ).strip()
    folder = copy(commit, given.package)
    with ProcessPoolExecutor(1, get_context("fork")) as pool:
        results, every, seconds = pool.submit(run, folder, given.sample, given.seed).result()
    from benchmarks.blame import share  # imports `accept`, which the copy has to import by itself

    killed = sum(result in ("killed", "timeout") for result in results.values())
    print(f"{given.package} at {commit}: {killed} killed, {share(killed, len(results))}")
    print(f"{len(results)} of {every} mutants, {seconds:.0f} s of CPU")


if __name__ == "__main__":
    main()
