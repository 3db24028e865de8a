"""Collectors: their output is kept within limits, and one that hangs or floods is cut off."""

from __future__ import annotations

import asyncio
import gzip
import json
from pathlib import Path

import pytest
from tests.factories.clock import PATIENCE
from tests.factories.hosts import here
from tests.factories.verdicts import plan

from accept.core.causes import Cause
from accept.core.evidence import check_checksums, write_checksums
from accept.core.plan import Collector
from accept.core.runner import collectors
from accept.core.runner.collectors import INDEX, collect
from accept.core.runner.state import Run
from accept.core.verdict import BadPair, Strength, Suspect, SuspectKind


def collected(
    folder: Path, *commands: str, hanging: str = "", most: int = 1000
) -> dict[str, dict[str, object]]:
    """Run commands on this machine as collectors on a suspect; return the index by command.

    The `hanging` one has half a second; the others have more than they need on any machine.
    """
    planned = tuple(
        Collector(
            name=f"c{n}",
            command=command,
            timeout=0.5 if command == hanging else PATIENCE,
            max_bytes=most,
        )
        for n, command in enumerate(commands)
    )
    (folder / "evidence" / "collectors").mkdir(parents=True)
    state = Run(folder=folder, attempt="one", plan=plan(collectors=planned))
    state.hosts = here("h1", "h2")
    suspect = Suspect(
        kind=SuspectKind.NODE,
        hosts=("h1",),
        cause=Cause.SLOW_OUTLIER,
        strength=Strength.STRONG,
        why="slow",
        # Its partner is healthy.
        pairs=(BadPair(hosts=("h1", "h2")),),
    )
    asyncio.run(collect(state, (suspect,)))
    index = json.loads((folder / "evidence" / "collectors" / INDEX).read_text())["collected"]
    return {commands[int(one["collector"][1:])]: one for one in index}


def test_output_and_exit_status_are_kept_of_suspects_only(tmp_path: Path) -> None:
    missing = "no-such-command-here"
    result, other = collected(tmp_path, "echo out; echo error >&2; exit 3", missing).values()
    assert (other["exit"], other["cut"]) == (127, "")
    assert (result["exit"], result["cut"], result["host"]) == (3, "", "h1")
    assert (tmp_path / "evidence" / str(result["file"])).read_text() == "out\nerror\n"
    assert not (tmp_path / "evidence" / "collectors" / "h2").exists()


def test_one_that_hangs_is_cut_off_and_the_next_one_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(collectors, "_KILL_SECONDS", 1)
    hangs = "trap '' TERM; while :; do sleep 1; done"
    results = collected(tmp_path, hangs, "echo next", hanging=hangs)
    assert results[hangs]["cut"] == "timeout"
    assert (results["echo next"]["cut"], results["echo next"]["exit"]) == ("", 0)


def test_one_that_floods_is_cut_off_at_its_limit(tmp_path: Path) -> None:
    (result,) = collected(tmp_path, "yes", most=5000).values()
    assert (result["cut"], result["bytes"]) == ("size", 5000)
    assert (tmp_path / "evidence/collectors/h1/c0.txt").stat().st_size == 5000


def test_exactly_the_limit_is_complete(tmp_path: Path) -> None:
    (result,) = collected(tmp_path, "printf 12345", most=5).values()
    assert (result["cut"], result["bytes"]) == ("", 5)


def test_compressed_output_has_its_suffix_and_all_output_has_checksums(tmp_path: Path) -> None:
    (tmp_path / "packed").write_bytes(gzip.compress(b"hello"))
    (result,) = collected(tmp_path, f"cat {tmp_path / 'packed'}").values()
    evidence = tmp_path / "evidence"
    assert result["file"] == "collectors/h1/c0.gz"
    write_checksums(evidence)
    assert check_checksums(evidence) == ()
    (evidence / "collectors/h1/c0.gz").write_bytes(b"other")
    assert len(check_checksums(evidence)) == 1
