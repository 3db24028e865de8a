"""What measuring costs a training: steps of train.py against the same model in a bare torch loop.

One rank on one thread of the CPU. The bare loop reads the same samples, computes, averages and
updates as train.py does, and looks at nothing. Both take turns on the same weights, so many steps
at a time as train.py has between comparisons (a turn of train.py has one in it), now one first and
now the other; the ratio is that of their median turns.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks import Row, beside

_PROGRAMS = Path(__file__).parents[1] / "launchers" / "programs"
_BAR = 1.03
#: Turns of each, by model.
_TURNS = {"mlp": 160, "gpt-tiny": 24}


def rows() -> list[Row]:
    """One line a model."""
    found = []
    for model in _TURNS:
        command = [sys.executable, str(Path(__file__)), model]
        environment = {**os.environ, "PYTHONPATH": f"{_PROGRAMS}:{_PROGRAMS.parents[1]}"}
        ran = subprocess.run(command, env=environment, check=True, capture_output=True, text=True)
        ours, theirs = json.loads(ran.stdout.splitlines()[-1])
        found.append(
            beside(
                f"`train.py --model {model}`, a step on CPU",
                f"{1e3 * ours:.2f} ms",
                f"bare torch loop {1e3 * theirs:.2f} ms",
                ours=ours,
                theirs=theirs,
                bar=_BAR,
            )
        )
    return found


def _bare(training: Any, step: int) -> None:
    """One step that looks at nothing."""
    torch = training.torch
    for piece in training.pieces:
        inputs, labels = training.take(step * training.batch + piece.start, len(piece))
        (training.loss_of(training.layers, inputs, labels) / training.batch).backward()
    whole = torch.cat([parameter.grad.view(-1) for parameter in training.parameters])
    training.dist.all_reduce(whole)
    at = 0
    for parameter in training.parameters:
        parameter.grad.view(-1).copy_(whole[at : at + parameter.numel()])
        at += parameter.numel()
    training.update()


def measure(model: str) -> tuple[float, float]:
    """Seconds of a step of train.py and of the bare loop, on this process as the only rank."""
    import time
    from statistics import median

    import rank_io
    import torch_io
    from train import Training
    from train_options import options_of

    options = options_of(["--model", model, "--device", "cpu"])
    me, progress = rank_io.identity(), rank_io.Progress(0)
    plant, device = torch_io.begin(me, progress, options)
    training = Training(options, me, plant, progress, device)

    def seconds(turn: Callable[[], None]) -> float:
        began = time.perf_counter()
        turn()
        return (time.perf_counter() - began) / options.every

    def bare() -> None:
        for _ in range(options.every):
            _bare(training, training.step_now)
            training.step_now += 1

    def measured() -> None:
        training.settle()
        training.agree(0)
        for _ in range(options.every):
            training.step()
            training.step_now += 1

    ours: list[float] = []
    theirs: list[float] = []
    for number in range(_TURNS[model]):
        for mine in (True, False) if number % 2 else (False, True):
            (ours if mine else theirs).append(seconds(measured if mine else bare))
    # The first turns warm up.
    return median(ours[2:]), median(theirs[2:])


if __name__ == "__main__":
    print(json.dumps(measure(sys.argv[1])))
