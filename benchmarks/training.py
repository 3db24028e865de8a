"""What measuring costs a training: steps of train.py against the same model in a bare torch loop.

One rank on one thread of the CPU. The bare loop reads the same samples, computes, averages and
updates as train.py does, and looks at nothing. Both take turns, a step each on the same weights,
now one first and now the other. What measuring costs is the median difference of neighbours and a
step's share of what train.py compares every so many steps: it shows most where a step takes a
millisecond, as with the default model.
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
#: Steps of each, by what is asked of train.py.
_STEPS = {"--model mlp": 8000, "--model mlp --width 1024": 1500, "--model gpt-tiny": 400}


def rows() -> list[Row]:
    """One line a model."""
    found = []
    for asked in _STEPS:
        command = [sys.executable, str(Path(__file__)), asked]
        environment = {**os.environ, "PYTHONPATH": f"{_PROGRAMS}:{_PROGRAMS.parents[1]}"}
        ran = subprocess.run(command, env=environment, check=True, capture_output=True, text=True)
        ours, theirs = json.loads(ran.stdout.splitlines()[-1])
        found.append(
            beside(
                f"`train.py {asked}`, a step on CPU",
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


def measure(asked: str) -> tuple[float, float]:
    """Seconds of a step of train.py and of the bare loop, on this process as the only rank."""
    import time
    from statistics import median

    import rank_io
    import torch_io
    from train import Training
    from train_options import options_of

    options = options_of([*asked.split(), "--device", "cpu"])
    me, progress = rank_io.identity(), rank_io.Progress(0)
    plant, device = torch_io.begin(me, progress, options)
    training = Training(options, me, plant, progress, device)

    def seconds(turn: Callable[[], None]) -> float:
        began = time.perf_counter()
        turn()
        return time.perf_counter() - began

    def bare() -> None:
        _bare(training, training.step_now)
        training.step_now += 1

    def measured() -> None:
        training.step()
        training.step_now += 1

    def compare() -> None:
        training.settle()
        training.agree(0, 1)

    theirs: list[float] = []
    more: list[float] = []
    comparing: list[float] = []
    for number in range(_STEPS[asked]):
        if number % options.every == 0:
            comparing.append(seconds(compare))
        for mine in (True, False) if number % 2 else (False, True):
            if mine:
                ours = seconds(measured)
            else:
                theirs.append(seconds(bare))
        more.append(ours - theirs[-1])
    # The first steps warm up, and the first comparison is made twice.
    step = median(theirs[options.every :])
    share = median(comparing[1:]) / options.every
    return step + median(more[options.every :]) + share, step


if __name__ == "__main__":
    print(json.dumps(measure(sys.argv[1])))
