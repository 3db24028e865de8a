"""`python -m tests.mutation`: edit verdict code at random, and count the edits that tests notice.

A mutant is one small edit in a function: `<` becomes `<=`, a number grows by 1, a condition is
negated. All tests are collected once. Each mutant has a forked process, which replaces the code of
the function in memory and runs the tests that reach the edited statement, the fastest first, until
one fails. Programs that a test starts do not see the edit. A second call goes on with the first.
"""

from __future__ import annotations

import argparse
import ast
import builtins
import gc
import json
import os
import random
import resource
import signal
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import chain
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any, NamedTuple

import pytest
from tests.factories.paths import CLI, ROOT, TESTS

PACKAGES = ("core/judge", "core/nccl_tests", "evidence", "plan")
_FOLDERS = ("core/judge", "golden", "core/nccl_tests", "foreign_logs", "evidence", "plan")
_OPTIONS = "-qq --no-summary -p no:cacheprovider --sample 2 --hypothesis-profile few"
#: CPU seconds of a test that takes part, of all tests of a mutant; bytes of memory of a mutant.
_TEST_SECONDS, _SECONDS, _MEMORY = 2, 20, 6 << 30
_EDITS = "Lt LtE GtE, LtE Lt Gt, Gt GtE LtE, GtE Gt Lt, Eq NotEq, NotEq Eq, In NotIn, NotIn In, "
_EDITS += "Is IsNot, IsNot Is, And Or, Or And, Add Sub, Sub Add, Mult Div, Div Mult, BitOr BitAnd, "
_EDITS += "BitAnd BitOr, min max, max min, any all, all any, sorted list"
#: Operator or function -> what replaces it.
_OTHERS = {one: others for one, *others in map(str.split, _EDITS.split(", "))}


class Mutant(NamedTuple):
    """An edit of one line, named so that it is found again after the line moved."""

    package: str
    module: str
    function: str
    edit: str
    line: str
    #: Number of equal edits before this one in the module.
    nth: int


class Site(NamedTuple):
    """A place in a syntax tree; `mark` inserts a statement before that of the edit."""

    name: str
    edit: Callable[[], object]
    mark: Callable[[ast.stmt], object]
    line: int


def _edits(node: ast.AST) -> Iterator[tuple[str, Callable[[], object]]]:
    """Yield the edits of a node, without those of its children."""
    compared = node.ops if isinstance(node, ast.Compare) else []
    for place, operator in enumerate(compared or [getattr(node, "op", None)]):
        name = type(operator).__name__
        for other in _OTHERS.get(name, ()):
            edit = (
                partial(compared.__setitem__, place) if compared else partial(setattr, node, "op")
            )
            yield f"{name} to {other}", partial(edit, getattr(ast, other)())
    match node:
        case ast.Constant(value=bool(value)):
            yield f"{value} to {not value}", partial(setattr, node, "value", not value)
        case ast.Constant(value=int(value) | float(value)):
            yield f"{value} plus 1", partial(setattr, node, "value", value + 1)
        case ast.If(test=test) | ast.IfExp(test=test) | ast.While(test=test):
            yield "negate", partial(setattr, node, "test", ast.UnaryOp(ast.Not(), test))
        case ast.UnaryOp(op=ast.Not(), operand=value):
            yield "drop not", partial(setattr, node, "operand", ast.UnaryOp(ast.Not(), value))
        case ast.comprehension(ifs=[test, *_]):
            yield "negate", partial(node.ifs.__setitem__, 0, ast.UnaryOp(ast.Not(), test))
        case ast.Return(value=ast.expr() as value) if ast.unparse(value) != "None":
            yield "return None", partial(setattr, node, "value", ast.Constant(None))
        case ast.Call(func=ast.Name(id=name) as called) if name in _OTHERS:
            yield f"{name} to {_OTHERS[name][0]}", partial(setattr, called, "id", _OTHERS[name][0])


def _below(node: ast.AST, mark: Any, line: int) -> Iterator[Site]:
    """Yield the edits of statements below a node; not of annotations, which nothing evaluates."""
    line = getattr(node, "lineno", line)
    yield from (Site(*edit, mark, line) for edit in (_edits(node) if mark else ()))
    unused = ("annotation", "returns", "decorator_list", "" if mark else "args")
    for field, value in ast.iter_fields(node):
        for place, child in enumerate(value if isinstance(value, list) else [value]):
            here = partial(value.insert, place) if isinstance(child, ast.stmt) else mark
            called = isinstance(child, ast.Expr) and not isinstance(child.value, ast.Constant)
            if called or isinstance(child, ast.Raise | ast.Continue | ast.Break):
                yield Site(
                    "delete", partial(value.__setitem__, place, ast.Pass()), here, child.lineno
                )
            if isinstance(child, ast.AST) and field not in unused:
                yield from _below(child, here, line)


def sites(path: Path) -> tuple[ast.Module, dict[Mutant, Site]]:
    """Return the tree of a module, and its mutants with their places in it."""
    text = path.read_text("utf-8")
    tree, lines, seen = ast.parse(text), text.splitlines(), Counter[Any]()
    package = next(one for one in PACKAGES if CLI / "accept" / one in path.parents)
    found = {}
    classes = (node for node in tree.body if isinstance(node, ast.ClassDef))
    owners: list[ast.Module | ast.ClassDef] = [tree, *classes]
    for owner in owners:
        for function in (node for node in owner.body if isinstance(node, ast.FunctionDef)):
            for site in _below(function, None, 0):
                key = (function.name, site.name, lines[site.line - 1].strip())
                found[Mutant(package, path.stem, *key, seen[key])] = site
                seen[key] += 1
    return tree, found


def drawn(package: str, count: int, like: Sequence[Mutant]) -> list[tuple[Mutant, Path]]:
    """Return mutants of a package: those of an earlier run that still exist, then random ones."""
    files = sorted((CLI / "accept" / package).rglob("*.py"))
    everything = {mutant: path for path in files for mutant in sites(path)[1]}
    by_line = {mutant[2:]: mutant for mutant in everything}
    kept = [by_line[one[2:]] for one in like if one.package == package and one[2:] in by_line]
    others = [mutant for mutant in everything if mutant not in kept]
    random.Random(package).shuffle(others)
    return [(one, everything[one]) for one in [*kept, *others][:count]]


class Mutation:
    """A plugin of pytest that runs the tests of each mutant instead of all tests."""

    def __init__(self, mutants: Mapping[Mutant, Path], output: Path) -> None:
        self.mutants = mutants
        self.output = output
        self.failed = False
        self.functions = defaultdict[Any, list[FunctionType]](list)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Note that a test failed."""
        self.failed |= report.failed

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """Find the tests of each mutant, then run them; append each outcome to the output."""
        for one in gc.get_objects():
            if isinstance(one, FunctionType):
                self.functions[_key(one.__code__)].append(one)
        gc.freeze()
        stored = self.output.with_suffix(".reached")
        if not stored.exists():
            _fork(lambda: self.reach(session.items, stored))
        reaching = defaultdict[Mutant, list[tuple[float, int]]](list)
        for place, (seconds, mutants) in enumerate(json.loads(stored.read_text())):
            for mutant in mutants:
                reaching[Mutant(*mutant)].append((seconds, place))
        done = {mutant for mutant, *_ in outcomes(self.output)}
        for mutant in (one for one in self.mutants if one not in done):
            tests = [(time, session.items[place]) for time, place in sorted(reaching[mutant])]
            status = _fork(partial(self.judge, mutant, tests))
            with self.output.open("a") as stream:
                print(json.dumps([mutant, status != 0, len(tests)]), file=stream)
        return True

    def reach(self, items: Sequence[pytest.Item], stored: Path) -> None:
        """Run all tests; store CPU seconds and mutants of each, without mutants if it fails."""
        reached, found_by = set[Mutant](), []
        vars(builtins)["reached"] = lambda *mutant: reached.add(Mutant(*mutant))
        for path in set(self.mutants.values()):
            tree, found = sites(path)
            for mutant, site in reversed(found.items()):
                if mutant in self.mutants:
                    site.mark(ast.parse(f"reached{tuple(mutant)}").body[0])
            self._replace(path, tree)
        for item, following in zip(items, [*items[1:], None], strict=True):
            reached.clear()
            seconds = self._run(item, following, _TEST_SECONDS, _too_slow)
            found_by.append((seconds, [] if self.failed else sorted(reached)))
        stored.write_text(json.dumps(found_by))

    def judge(self, mutant: Mutant, tests: Sequence[tuple[float, pytest.Item]]) -> bool:
        """Apply a mutant, and run its tests until one fails; return True if one does."""
        resource.setrlimit(resource.RLIMIT_AS, (_MEMORY, _MEMORY))
        tree, found = sites(self.mutants[mutant])
        found[mutant].edit()
        self._replace(self.mutants[mutant], tree)
        left = float(_SECONDS)
        for seconds, item in tests:
            left -= self._run(item, None, 10 * seconds + 5, signal.SIG_DFL)
            if self.failed or left < 0:
                break
        return self.failed

    def _run(
        self, item: pytest.Item, following: pytest.Item | None, most: float, late: Any
    ) -> float:
        """Run a test for at most some CPU seconds; return those of it and of its programs."""
        self.failed, before = False, sum(os.times()[:4])
        signal.signal(signal.SIGPROF, late)
        signal.setitimer(signal.ITIMER_PROF, most)
        item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
        signal.setitimer(signal.ITIMER_PROF, 0)
        return sum(os.times()[:4]) - before

    def _replace(self, path: Path, tree: ast.Module) -> None:
        """Give all functions of a module the code of a changed syntax tree."""
        pending = [compile(ast.fix_missing_locations(tree), str(path), "exec")]
        for code in pending:
            pending += [one for one in code.co_consts if isinstance(one, CodeType)]
            for function in self.functions[_key(code)]:
                function.__code__ = code


def _key(code: CodeType) -> object:
    return code.co_filename, code.co_qualname, code.co_firstlineno


def _too_slow(*_: object) -> None:
    raise TimeoutError


def _fork(work: Callable[[], object]) -> int:
    """Do some work in a forked process; return 0 if it ended and returned nothing true."""
    child = os.fork()
    if not child:
        os._exit(bool(work()))
    return os.waitpid(child, 0)[1]


def outcomes(path: Path) -> list[tuple[Mutant, bool, int]]:
    """Return the mutants of a file, with whether a test failed and the number of their tests."""
    lines = path.read_text("utf-8").splitlines() if path.exists() else []
    return [(Mutant(*mutant), *rest) for mutant, *rest in map(json.loads, lines)]


def main() -> None:
    """Judge the mutants without an outcome; print the survivors, and the counts of each package."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=60, help="mutants of each package")
    parser.add_argument(
        "--like", type=Path, default=Path(os.devnull), help="output of an earlier run: same mutants"
    )
    parser.add_argument("--output", type=Path, default=ROOT / "build" / "mutants.jsonl")
    given = parser.parse_args()
    given.output.parent.mkdir(exist_ok=True)
    like = [mutant for mutant, *_ in outcomes(given.like)]
    each = [drawn(package, given.count, like) for package in PACKAGES]
    mutants = dict(chain.from_iterable(zip(*each, strict=True)))
    os.environ["CI"] = "true"  # makes the examples of Hypothesis the same each time
    folders = [str(TESTS / one) for one in _FOLDERS]
    options = [*_OPTIONS.split(), "-m", "not real and not cluster", *folders]
    pytest.main(options, plugins=[Mutation(mutants, given.output)])
    results = outcomes(given.output)
    print(*(mutant for mutant, killed, _ in results if not killed), sep="\n")
    for package in PACKAGES:
        killed = [killed for mutant, killed, _ in results if mutant.package == package]
        print(f"{package}: {sum(killed)} of {len(killed)} killed")


if __name__ == "__main__":
    main()
