"""Commands of README and docs run from the installed wheel, in order, in an empty folder.

What cannot run here is in `NOT_HERE`, with the reason.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.factories import sample_evidence
from tests.factories.clock import PATIENCE
from tests.factories.command_line import trust
from tests.factories.doc_examples import CODE_BLOCK, examples
from tests.factories.paths import ROOT
from tests.factories.real_logs import REPOSITORY
from tests.factories.release import OUR_VARIABLES

from accept.core.errors import Exit

#: Commands that cannot run here, as a pattern of the whole command, and the reason. The first match
#: counts, and each one must match some command.
NOT_HERE = {
    r"make .*": "needs a checkout; CI runs these targets",
    r"pipx .*|uvx .*": "needs a package index; `installed` is what they install",
    r"(gcloud|gsutil|skopeo|crane) .*": "needs a cloud or a registry",
    r".*\bdocker (build|run) .*": "needs Docker; docker/self_test.sh runs in CI",
    r"(helm (install|template)|kubectl) .*": "needs a cluster; tests/cluster/kube runs them",
    r"helm (package|push) .*": "needs a registry; tests/chart runs them",
    r".*/opt/accept/.*|accept-mpirun .*|.* ACCEPT_GROUP=.*": "runs inside a pod",
    r"(tar -xf|accept judge) (evidence\.tar|evidence|pod\.log)": "reads what a pod left behind",
    r"accept judge (gpu017/.*|- < kern\.log|nvidia-bug-report\.log\.gz)": (
        "reads files of the reader's hosts; tests/foreign_logs judges such files"
    ),
    r"accept (init|doctor|list nodes) .*|accept doctor": "needs the hosts, the cluster or Slurm",
    r"accept (run|drill)(?!.*--dry-run).*": "needs nodes; tests/cluster runs them",
    r"accept run (--partition gpu|--machine a4-highgpu-8g) .*--dry-run": (
        "asks Slurm, or needs the site file of a cluster"
    ),
    r"accept (retest|clean) last": "needs the nodes of a run",
    r"accept (baseline|diff) (last|weekly-.*) .*|accept judge .* --machine my-a4\.yaml": (
        "needs an accepted run of nodes with GPUs"
    ),
    r"(accept|gpu-accept) --install-completion": "changes the files of the reader's shell",
    r"cp -r .*|printf 'FROM .*": "prepares a build with Docker",
}
PAGES = sorted(
    path
    for path in [ROOT / "README.md", *(ROOT / "docs").rglob("*.md"), ROOT / "docker" / "README.md"]
    if "```console" in path.read_text()
)
#: Exit codes of commands that judge, beside 0.
_VERDICTS = {Exit.REJECTED, Exit.INCOMPLETE, Exit.INCONCLUSIVE}


def screens(page: Path) -> list[tuple[str, str]]:
    """Return the commands of a page, each with the screen that follows it, or an empty text."""
    pairs: list[tuple[str, str]] = []
    for kind, _, block in CODE_BLOCK.findall(page.read_text()):
        if kind == "console":
            pairs += [(line.removeprefix("$ "), "") for line in block.splitlines()]
        elif kind == "text" and pairs and not pairs[-1][1]:
            pairs[-1] = (pairs[-1][0], block)
    return pairs


def reason(command: str) -> str:
    """Return why a command cannot run here; empty if it can."""
    return next((why for what, why in NOT_HERE.items() if re.fullmatch(what, command)), "")


def missing(screen: str, output: str) -> list[str]:
    """Return the pieces of a shortened screen that an output lacks, in their order."""
    lacking = []
    pieces = [piece for line in screen.splitlines() for piece in line.split("…") if piece.strip()]
    for piece in pieces:
        before, found, after = output.partition(piece)
        output = after if found else before
        lacking += [] if found else [piece]
    return lacking


@pytest.fixture
def reader(tmp_path: Path, installed: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """Return the environment of a reader in an empty folder, where only the wheel is installed."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / ".config"))
    programs = f"{installed / 'env' / 'bin'}:/usr/local/bin:/usr/bin:/bin"
    kept = {k: v for k, v in os.environ.items() if k not in OUR_VARIABLES}
    kept = {k: v for k, v in kept.items() if not k.startswith(("ACCEPT_", "XDG_"))}
    return {**kept, "HOME": str(tmp_path), "PATH": programs}


def _given(page: Path, folder: Path) -> Iterator[str]:
    """Write the files that a page shows or presumes; yield commands that the page presumes.

    The reader trusts the site file.
    """
    text = page.read_text()
    if "--site site.yaml" in text:
        (folder / "site.yaml").write_text(examples("docs/kubernetes.md")["site.yaml"])
    for name, content in examples(str(page.relative_to(ROOT))).items():
        write = trust if name == "site.yaml" else Path.write_text
        write(folder / name, content)
    if "my-logs" in text:
        for day in ("monday", "friday"):
            shutil.copytree(REPOSITORY / "single-node", folder / "my-logs" / day)
        for log in (REPOSITORY / "pairwise").glob("*.log"):
            shutil.copy(log, folder / "my-logs")
        yield "tar -czf logs.tgz my-logs"
    if "evidence.tgz" in text:
        sample_evidence.write(folder / "evidence")
        yield "tar -czf evidence.tgz evidence && rm -r evidence"
    if " last" in text and "accept demo" not in text:
        yield "accept demo --quiet || true"


@pytest.mark.real
@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_the_commands_of_a_page_run_in_order(
    page: Path, reader: dict[str, str], tmp_path: Path
) -> None:
    for command in _given(page, tmp_path):
        subprocess.run(["sh", "-c", command], cwd=tmp_path, env=reader, check=True)
    for command, screen in screens(page):
        if reason(command):
            continue
        done = subprocess.run(
            ["sh", "-c", command],
            cwd=tmp_path,
            env=reader,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            check=False,
        )
        output = done.stdout + done.stderr
        judges = re.match("accept (judge|demo|diff|explain|verify)", command)
        assert done.returncode in {0, *(_VERDICTS if judges else ())}, f"{command}\n{output}"
        if page.parent.name == "tutorials":
            assert missing(screen, output) == [], command


def test_every_reason_is_needed() -> None:
    shown = [command for page in PAGES for command, _ in screens(page)]
    assert [what for what in NOT_HERE if not any(re.fullmatch(what, one) for one in shown)] == []
