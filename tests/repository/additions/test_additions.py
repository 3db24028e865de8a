"""Follow CONTRIBUTING.md to add a check, tool, cause, fault, machine and suite to a copy.

Write only the files that the recipes name; everything else must find the additions by itself.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from tests.factories.paths import ROOT

HERE = Path(__file__).parent
FAULT = """\
    Fault(
        name="sample-fault",
        about="a fault of a test",
        scope=Scope.HOST,
        injector=Injector.SCRIPT,
        causes=frozenset({Cause.CRASHED}),
    ),
)
#: All faults by name"""
CAUSE = """\
    SAMPLE_CAUSE = "sample-cause"
    # Not on this list"""
ROW = """\
  "sample-cause": {
    "owner": "provider",
    "meaning": "a cause of a test",
    "action": "remove the test"
  },
  "unknown-cause": {"""
SECTION = """
### sample-cause
A cause of a test.
- Confirm: run the test again.
- Provider: nothing.
"""
INJECTION = """\
    sample-fault) echo injected ;;
    undo)"""


def replace_once(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert text.count(old) == 1, path
    path.write_text(text.replace(old, new))


@pytest.mark.rare
def test_additions_need_no_other_change(tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    for name in ("cli/accept", "launchers", "values", "chart"):
        shutil.copytree(ROOT / name, copy / name, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(HERE / "sample.py", copy / "cli/accept/core/checks/sample.py")
    shutil.copy(HERE / "sample.sh.j2", copy / "launchers/steps/sample.sh.j2")
    shutil.copy(HERE / "machine.yaml", copy / "values/machines/sample.yaml")
    shutil.copy(HERE / "suite.yaml", copy / "values/suites/sample.yaml")
    shutil.copy(HERE / "tool.yaml", copy / "values/tools/sample-tool.yaml")
    replace_once(copy / "cli/accept/core/causes.py", "    # Not on this list", CAUSE)
    replace_once(copy / "cli/accept/core/causes.json", '  "unknown-cause": {', ROW)
    (copy / "docs").mkdir()
    page = (ROOT / "docs/causes.md").read_text(encoding="utf-8")
    (copy / "docs/causes.md").write_text(page + SECTION, encoding="utf-8")
    faults = copy / "cli/accept/core/catalog/faults.py"
    replace_once(faults, ")\n#: All faults by name", FAULT)
    replace_once(copy / "launchers/inject_fault.sh", "    undo)", INJECTION)
    work = tmp_path / "work"
    work.mkdir()
    (work / "env.sh").touch()
    for name in ("inject_fault.sh", "interface.sh"):
        shutil.copy(copy / "launchers" / name, work)
    path = os.pathsep.join(map(str, (copy / "cli", ROOT)))
    done = subprocess.run(
        [sys.executable, HERE / "use.py", work],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": path, "ACCEPT_RUNS": str(tmp_path / "runs")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
