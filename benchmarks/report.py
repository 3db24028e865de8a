"""Measure size and time of `report.html` and `report.md` for simulated runs of 8 to 4,096 nodes.

Each run has three rounds of pairs, the figures of eight GPUs on each node, and one node that is
38 % slow.
"""

from __future__ import annotations

import time
from collections.abc import Iterator

from tests.factories.reported_runs import reported

from accept.core.report.markdown import render_markdown
from accept.report.html import render_html
from benchmarks import Row

#: Nodes -> the largest page in bytes.
_LIMITS = {8: 400_000, 64: 400_000, 1024: 400_000, 4096: 2_000_000}


def _rows() -> Iterator[Row]:
    for nodes, limit in _LIMITS.items():
        run = reported(str(nodes))
        began = time.perf_counter()
        page = render_html(run).encode()
        html_seconds = time.perf_counter() - began
        began = time.perf_counter()
        text = render_markdown(run.verdict, run.plan, run.records).encode()
        text_seconds = time.perf_counter() - began
        yield Row(
            what=f"`report.html` of {nodes:,} nodes",
            measured=f"{len(page) / 1e3:.0f} kB in {html_seconds:.2f} s",
            bar=f"{limit / 1e3:,.0f} kB",
            met=len(page) <= limit,
        )
        yield Row(
            what=f"… `report.md` of {nodes:,} nodes",
            measured=f"{len(text) / 1e3:.0f} kB in {text_seconds:.2f} s",
        )


def rows() -> list[Row]:
    """Return the figures."""
    return list(_rows())
