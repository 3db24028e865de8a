"""The contract of every rank program: what it refuses, and how it ends if a rank hangs or dies."""

from __future__ import annotations

import pytest
from tests.factories.programs import Start, refusal

import burn
import collective
import devices
import ping
import train

COLLECTIVE = ("collective.py", "--min", "1K", "--max", "64K", "--factor", "8", "--iters", "2")
_DEVICES = ("devices.py", "--seconds", "0.05", "--alone", "0", "--size", "256")
MEMORY = (*_DEVICES, "--most", "4194304", "--checks", "memory")
PROGRAMS = {one.__name__: one for one in (burn, collective, devices, ping, train)}

#: Program -> options that it refuses, and names in its message.
REFUSED = {
    "burn": ("--seconds 0", "--size 10", "--room many", "--timeout 0"),
    "collective": (
        *("--max 8X", "--collectives broadcast", "--min 2M --max 1M", "--factor 1"),
        *("--timeout 0", "--iters 0", "--limit 0"),
    ),
    "devices": (
        *("--seconds 0", "--types bf16,int3", "--size 100", "--share 1.5", "--most 10"),
        "--checks gemm,disk",
    ),
    "ping": ("--pings 0",),
    # The results could not be judged.
    "train": (
        *(f"--steps {train.LEAST_STEPS - 1}", f"--batch {train.LEAST_BATCH - 1}", "--ratio 1"),
        *("--every 0", "--peak -1", "--by 61", "--path /data", "--download"),
    ),
}


@pytest.mark.parametrize(
    ("program", "options"), [(name, one) for name, each in REFUSED.items() for one in each]
)
def test_impossible_options_are_refused(
    program: str, options: str, capsys: pytest.CaptureFixture[str]
) -> None:
    words = options.split()
    assert words[0] in refusal(PROGRAMS[program].options_of, words, capsys)


@pytest.mark.sampled
@pytest.mark.real
@pytest.mark.parametrize("program", [COLLECTIVE, ("train.py",)], ids=["collective", "train"])
def test_ranks_wait_for_a_rank_that_hangs_and_accuse_nobody(
    start: Start, program: tuple[str, ...]
) -> None:
    ran = start(program[0], 3, *program[1:], "--timeout", "12", inject="hang@h1:0")
    assert ran.exit != 0
    seq = {rank: int(words[0]) for rank, words in ran.progress.items()}
    assert seq[0] == seq[2] == seq[1] + 1
    assert ran.progress[0][1:] == ran.progress[2][1:]
    assert "crashed" in {record["problem"] for record in ran.problems}
    assert not any("host" in record for record in ran.problems)
    waited = {record["rank"] for record in ran.records if record.get("fact") == "waited"}
    assert waited
    assert waited <= {0, 2}
    assert "Traceback" not in ran.text


@pytest.mark.sampled
@pytest.mark.real
@pytest.mark.parametrize(
    ("program", "ranks"),
    [(COLLECTIVE, 3), (("train.py",), 2), (MEMORY, 2)],
    ids=["collective", "train", "memory"],
)
def test_a_rank_that_dies_ends_the_run_and_is_behind(
    start: Start, program: tuple[str, ...], ranks: int
) -> None:
    last = ranks - 1
    ran = start(program[0], ranks, *program[1:], inject=f"die@h{last}:0")
    assert ran.exit != 0
    if program is MEMORY:
        # What it measured before is in the log.
        assert any(r.get("metric") == "copy" and r["rank"] == last for r in ran.records)
        return
    seq = {rank: int(words[0]) for rank, words in ran.progress.items()}
    assert seq[last] == min(seq.values()) < max(seq.values())
