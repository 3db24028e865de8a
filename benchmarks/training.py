"""Measure the cost of measuring in train.py: compare it with a bare torch loop.

One rank runs on one CPU thread. The bare loop reads the same samples, computes, averages and
updates like train.py, but measures nothing. Both take turns, one step each on the same weights,
in alternating order. The cost is the median difference of neighboring steps, plus one step's share
of a comparison of the ranks. It is largest if a step takes about 1 ms, as with the default model.
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
#: Options of train.py -> steps of each loop.
_STEPS = {"--model mlp": 8000, "--model mlp --width 1024": 1500, "--model gpt-tiny": 400}


def rows() -> list[Row]:
    """Measure every model. Return one row each."""
    measured = []
    for arguments in _STEPS:
        command = [sys.executable, str(Path(__file__)), arguments]
        environment = {**os.environ, "PYTHONPATH": f"{_PROGRAMS}:{_PROGRAMS.parents[1]}"}
        done = subprocess.run(command, env=environment, check=True, capture_output=True, text=True)
        ours, theirs = json.loads(done.stdout.splitlines()[-1])
        measured.append(
            beside(
                f"`train.py {arguments}`, a step on CPU",
                f"{1e3 * ours:.2f} ms",
                f"bare torch loop {1e3 * theirs:.2f} ms",
                ours=ours,
                theirs=theirs,
                bar=_BAR,
            )
        )
    return measured


def _bare(training: Any, step: int) -> None:
    """Make one step without any measurement."""
    torch = training.torch
    for piece in training.pieces:
        inputs, labels = training.take(step * training.batch + piece.start, len(piece))
        (training.loss_of(training.layers, inputs, labels) / training.batch).backward()
    gradient = torch.cat([parameter.grad.view(-1) for parameter in training.parameters])
    training.dist.all_reduce(gradient)
    offset = 0
    for parameter in training.parameters:
        parameter.grad.view(-1).copy_(gradient[offset : offset + parameter.numel()])
        offset += parameter.numel()
    training.update()


def measure(arguments: str, *, steps: int, device: str = "cpu") -> tuple[float, float]:
    """Return the seconds of a step of train.py and of the bare loop, in this process alone."""
    import time
    from statistics import median

    import rank_io
    import torch_io
    from train import Training, options_of

    options = options_of([*arguments.split(), "--device", device])
    me, progress = rank_io.identity(), rank_io.Progress(0)
    training = Training(options, torch_io.begin(me, progress, options))

    def seconds(turn: Callable[[], None]) -> float:
        began = time.perf_counter()
        turn()
        if device != "cpu":
            training.torch.cuda.synchronize()
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

    bare_steps: list[float] = []
    differences: list[float] = []
    comparisons: list[float] = []
    for number in range(steps):
        if number % options.every == 0:
            comparisons.append(seconds(compare))
        if number % 2:
            measured_step, bare_step = seconds(measured), seconds(bare)
        else:
            bare_step, measured_step = seconds(bare), seconds(measured)
        bare_steps.append(bare_step)
        differences.append(measured_step - bare_step)
    # The first steps warm up, and the first comparison is made twice.
    step = median(bare_steps[options.every :])
    share = median(comparisons[1:]) / options.every
    return step + median(differences[options.every :]) + share, step


if __name__ == "__main__":
    print(json.dumps(measure(sys.argv[1], steps=_STEPS[sys.argv[1]])))
