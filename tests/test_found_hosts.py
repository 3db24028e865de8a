"""Finding the hosts of a run, all of them this machine."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from accept.core.hosts import Candidate, discover

#: Ends when two hosts run it at the same time.
MEET = "if mkdir first; then read -r _ < meet; else echo > meet; fi; echo rack"


def test_a_host_that_is_slow_to_tell_its_gpus_does_not_keep_others_from_being_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("accept.core.hosts._HANDSHAKES", 1)
    monkeypatch.setattr("accept.core.hosts._SMI_SECONDS", 0.0)
    (tmp_path / "host").write_text("h0\n")
    os.mkfifo(tmp_path / "meet")
    found = asyncio.run(
        discover(
            [Candidate(name="h0", local=True)] * 2,
            folder=tmp_path,
            attempt="one",
            ranks=1,
            topology=MEET,
            seconds=1.0,
        )
    )
    assert [host.name for host in found.hosts] == ["h0"]
    assert [problem.message for problem in found.problems] == [
        "h0 is on h0 too, which was counted already"
    ]
