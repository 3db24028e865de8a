"""The probe of `accept doctor` on hosts: plain sh, run on this machine."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from tests.factories.shell import run_program

from accept.backends.requirements import answers, scratch_lines


def scratch_state(folder: Path, *before: str) -> str:
    """Return the probe's report on `folder`; `before` is a command line that runs the probe."""
    done = run_program([*before, "sh", "-c", scratch_lines(str(folder))], check=True)
    assert done.stderr == ""
    (answer,) = answers(done.stdout)["scratch"]
    state, _, shown = answer.partition(" ")
    reason = ": No such file or directory" if state == "unwritable" else ""
    assert shown == f"{folder}{reason}"
    return state


class TestScratchFolder:
    def test_that_allows_executing_files_is_reported_as_executable(self, tmp_path: Path) -> None:
        assert scratch_state(tmp_path) == "exec"

    def test_is_left_unchanged(self, tmp_path: Path) -> None:
        scratch_state(tmp_path)
        assert list(tmp_path.iterdir()) == []

    def test_that_is_missing_is_reported_as_not_writable(self, tmp_path: Path) -> None:
        assert scratch_state(tmp_path / "missing") == "unwritable"

    @pytest.mark.skipif(os.geteuid() != 0, reason="needs root: mounts a folder")
    def test_that_is_mounted_noexec_is_reported_as_noexec(self, tmp_path: Path) -> None:
        mount = f'mount -t tmpfs -o noexec none {tmp_path} && exec "$@"'
        before = ("unshare", "--mount", "sh", "-c", mount, "sh")
        assert scratch_state(tmp_path, *before) == "noexec"
