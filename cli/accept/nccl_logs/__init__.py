"""Logs of nccl-tests that no run of ours left, made into the plan and the records of one.

What is in them says who took part. Nothing is judged here.
"""

from __future__ import annotations

from accept.nccl_logs.corpus import gather
from accept.nccl_logs.fill_gaps import completed
from accept.nccl_logs.to_run import different, found, guess

__all__ = ["completed", "different", "found", "gather", "guess"]
