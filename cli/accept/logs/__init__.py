"""Logs of nccl-tests that no run of ours left, made into the plan and the records of one.

What is in them says who took part. Nothing is judged here.
"""

from __future__ import annotations

from accept.logs.corpus import gather
from accept.logs.inventory import different
from accept.logs.machine import guess
from accept.logs.planned import found
from accept.logs.siblings import completed

__all__ = ["completed", "different", "found", "gather", "guess"]
