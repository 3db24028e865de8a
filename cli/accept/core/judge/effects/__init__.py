"""Explain the losses and failures of executions by the parts that these exercise.

Every accusation rests on one generative model of continuous values. `docs/blame.md` explains it.
In its modules `i` is the number of an execution, `k` that of a population, and `x` a loss.
"""
