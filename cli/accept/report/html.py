"""Write a run as one HTML page, without other files, network access or time of creation.

The same run gives the same bytes. Every text from hosts and logs loses its control characters and
is escaped; the content security policy allows only the page's own style and script.
"""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Iterable
from functools import cache, partial
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from accept.core.judge.consistency import compared
from accept.core.judge.summary import node_lists
from accept.core.report.text import answer_of, kept, number3, other_advice, utc
from accept.core.sentences import action, not_run, usable, vouched
from accept.core.text import count, duration, folded, format_size, number, plain
from accept.report.certificate import certificate
from accept.report.data import Run
from accept.report.gpu_grid import gpu_grids
from accept.report.over_time import over_time
from accept.report.pair_matrix import pair_matrix
from accept.report.rail_matrix import rail_matrices
from accept.report.repeated import Repeated, headline, node_rows, percent
from accept.report.size_curves import size_curves
from accept.report.strip_plot import strip_plots
from accept.report.svg import LEGEND, short
from accept.report.tables import bad_executions, coverage_rows, gaps, health_rows
from accept.report.timeline import timeline

_TEMPLATES = Path(__file__).parent / "templates"
#: Maximum length of one text from a host or log.
_LONGEST = 2000
_ADDRESS = re.compile(r"https?://[^\s;,]+")


def render_html(run: Run) -> str:
    """Return the page."""
    style, script = _asset("report.css"), _asset("report.js")
    plots, quiet_populations = strip_plots(run)
    grids, quiet_devices = gpu_grids(run)
    facts = certificate(run)
    sources = _Sources(facts.sources)
    page = _environment().get_template("report.html.j2")
    return page.render(
        run=run,
        verdict=run.verdict,
        plan=run.plan,
        nodes=node_lists(run.verdict),
        answer=answer_of(run.verdict),
        usable=usable(run.verdict),
        not_run=not_run(run.verdict.not_run),
        kept=kept(run.verdict),
        advice=other_advice(run.verdict),
        style=style,
        script=script,
        style_hash=_hash(style),
        script_hash=_hash(script),
        strip_plots=plots,
        quiet_populations=quiet_populations,
        bad_executions=bad_executions(run),
        over_time=over_time(run),
        pair_matrix=pair_matrix(run),
        rail_matrices=rail_matrices(run),
        gpu_grids=grids,
        quiet_devices=quiet_devices,
        curves=size_curves(run),
        timeline=timeline(run),
        health=health_rows(run),
        drift=compared(run.inventories),
        coverage=coverage_rows(run),
        gaps=gaps(run),
        certificate=facts,
        sources=sources,
        vouched=vouched(run.verdict),
    )


class _Sources:
    """The sources of all figures on the page, numbered from 1."""

    def __init__(self, sources: Iterable[str]) -> None:
        self.all = [*sources]

    def numbered(self, text: str) -> str:
        """Return a text with the number of its source in place of each address."""
        return _ADDRESS.sub(self._number, text)

    def _number(self, found: re.Match[str]) -> str:
        source = found[0]
        if source not in self.all:
            self.all.append(source)
        return f"[{self.all.index(source) + 1}]"


def render_repeated(result: Repeated) -> str:
    """Return the page of a repeated run."""
    style = _asset("report.css")
    return (
        _environment()
        .get_template("repeated.html.j2")
        .render(
            result=result,
            headline=headline(result),
            nodes=node_rows(result),
            good=folded(result.good),
            bad=folded(result.bad),
            untested=folded(result.untested),
            style=style,
            style_hash=_hash(style),
        )
    )


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=FileSystemLoader(_TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=_shown,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(
        short=short,
        number=number,
        number3=number3,
        percent=percent,
        duration=duration,
        size=format_size,
        date=partial(utc, form="%Y-%m-%d %H:%M UTC", unknown="unknown"),
        clock=partial(utc, form="%H:%M:%S", unknown="unknown"),
        plain=plain,
        action=action,
    )
    environment.globals.update(count=count, legend=LEGEND)
    return environment


def _shown(value: object) -> object:
    """Return a value for the page; text from hosts loses control and invisible characters."""
    return (
        plain(value, _LONGEST)
        if isinstance(value, str) and not hasattr(value, "__html__")
        else value
    )


def _asset(name: str) -> Markup:
    return Markup((_TEMPLATES / name).read_text(encoding="utf-8"))


def _hash(text: str) -> str:
    """Return the source that a content security policy names for an inline style or script."""
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"
