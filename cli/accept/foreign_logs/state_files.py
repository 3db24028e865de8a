"""Recognize files that describe the state of hosts by their content."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from accept.foreign_logs import bug_report, dcgm, kernel_log, nvidia_smi, perftest, tool_files
from accept.foreign_logs.host_state import Report

#: Reads a file: its name and its content. No content raises an error.
Reader = Callable[[str, Iterable[bytes]], Iterable[Report]]
#: Whether a file begins like one of a kind, and the reader of that kind.
_KINDS: tuple[tuple[Callable[[bytes], bool], Reader], ...] = (
    (bug_report.is_bug_report, bug_report.read),
    (dcgm.is_diag, dcgm.read),
    (perftest.is_perftest, perftest.read),
    (tool_files.is_tool, tool_files.read),
    (nvidia_smi.is_query, nvidia_smi.read_query),
    (nvidia_smi.is_nvlink, nvidia_smi.read_nvlink),
    (kernel_log.is_kernel_log, kernel_log.read),
)


def reader_of(start: bytes) -> Reader | None:
    """Return the reader of a file that begins with these bytes; None: it is of another kind."""
    return next((reader for fits, reader in _KINDS if fits(start)), None)
