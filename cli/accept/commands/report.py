"""Show a judgement: on the screen, as report.html, and as files beside its evidence."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass, replace
from pathlib import Path

from accept.commands.judged import OF_EVIDENCE, GivenBounds, Judged, judge_path
from accept.commands.next_steps import place_of
from accept.core import evidence
from accept.core.error_codes import Code
from accept.core.errors import BadInput, Exit
from accept.core.judge.summary import node_lists
from accept.core.report import judgement
from accept.core.report import text as reports
from accept.core.report.junit import junit
from accept.core.report.markdown import render_markdown
from accept.core.text import command_line, count, plain, shortened
from accept.evidence import bucket, rundir
from accept.report.console import Terminal
from accept.report.data import Run
from accept.report.html import render_html

#: Most files without results that a terminal shows; --json has all.
_MAX_SKIPPED = 3


@dataclass(frozen=True, kw_only=True)
class Reports:
    """The output of `accept report --json`: the files that it wrote, or the one that it printed."""

    files: tuple[str, ...] | None = None
    html: str | None = None
    md: str | None = None
    junit: str | None = None


def screen(judged: Judged, terminal: Terminal, by: GivenBounds = OF_EVIDENCE) -> str:
    """Return the verdict, judged `by` a user's bounds, as text for the terminal."""
    place = replace(place_of(judged, by), as_called=terminal.as_called)
    notes = [*judged.notes]
    if judged.skipped:
        files = [f"{skipped.file} ({skipped.reason})" for skipped in judged.skipped]
        left_out = f"Left out: {count(len(files), 'file')} without results: "
        notes.append(left_out + shortened(files, _MAX_SKIPPED))
    return reports.table(
        judged.verdict,
        width=min(terminal.width, 80),
        color=terminal.color,
        place=replace(place, notes=tuple(notes)),
    )


def write_reports(judged: Judged, terminal: Terminal) -> tuple[str, ...]:
    """Write the verdict, the lists of nodes and all reports, and return the paths.

    Those of an own run replace those in its evidence. Raises BadInput if there is no folder.
    """
    if judged.folder is None:
        raise BadInput(
            "there is no folder to write to",
            code=Code.EVIDENCE_NO_FOLDER,
            hint="give --format html, md or junit",
        )
    try:
        written = write_verdict(judged, judged.folder)
        page = rundir.write_about(judged.folder, rundir.REPORT, html_page(judged, terminal))
    except OSError as error:
        raise not_written(error, judged.folder) from None
    return (*written, str(page))


def write_verdict(judged: Judged, folder: Path) -> tuple[str, ...]:
    """Write the verdict, its short reports and the lists of nodes, and return the paths.

    `folder` is that of the evidence. The lists are never in it, because its checksums cover all
    files. In the folder of a run they show that this workstation has judged it.
    """
    files = judgement(judged.plan, judged.verdict, judged.records)
    if rundir.is_own_evidence(folder):
        written = [evidence.write(folder / name, text) for name, text in files.items()]
    else:
        written = [rundir.write_about(folder, *file) for file in files.items()]
    for name, hosts in vars(node_lists(judged.verdict)).items():
        text = "".join(f"{plain(host)}\n" for host in hosts)
        written.append(rundir.write_about(folder, f"{rundir.NODES}/{name}.txt", text))
    return tuple(map(str, written))


def not_written(error: OSError, folder: Path | None) -> BadInput:
    """Return the error for a file about the evidence in `folder` that cannot be written."""
    # Files about evidence of others are in the working folder.
    is_own = folder is not None and rundir.is_own_evidence(folder)
    other = "copy the evidence to a folder" if is_own else "run this command in a folder"
    return BadInput(
        f"{plain(error.filename, 200)} cannot be written: {error.strerror}",
        code=Code.OUTPUT_WRITE,
        hint=f"free space if that disk is full, or {other} that you can write to",
    )


def html_page(judged: Judged, terminal: Terminal) -> str:
    """Return the report as a page, with commands that work in the shell of this user."""
    run = reported(judged)
    commands = tuple((terminal.as_called(command), purpose) for command, purpose in run.commands)
    return render_html(replace(run, commands=commands))


def reported(judged: Judged) -> Run:
    """Return what a report shows of a judgement."""
    commands = place_of(judged).commands
    return replace(judged.run, evidence_hash=judged.evidence_hash, commands=commands)


def write_page(judged: Judged, terminal: Terminal) -> None:
    """Write the verdict and the reports of a run of this workstation, instead of its host's.

    The verdict matters more than its report: if that cannot be written, progress shows why.
    """
    if judged.run_folder is None:
        return
    try:
        write_reports(judged, terminal)
    except BadInput as error:
        terminal.progress(f"report.html was not written: {error.message}")


def _add_page(url: str, terminal: Terminal) -> str:
    """Write report.html beside the evidence in a bucket, and return its URL.

    The other reports are there already, because the coordinator wrote them.
    """
    with tempfile.TemporaryDirectory(prefix="accept-report-") as scratch:
        folder = Path(scratch) / rundir.EVIDENCE
        bucket.fetch(url, folder, partial=False)
        page = Path(scratch) / rundir.REPORT
        page.write_text(html_page(judge_path(str(folder)), terminal), encoding="utf-8")
        error = bucket.send(page, url, attempt="", partial=True)
    if error:
        raise BadInput(
            f"{rundir.REPORT} was not written to {plain(url, 200)}: {error}",
            code=Code.OUTPUT_WRITE,
            hint=f"{command_line('accept', 'report', url, '--format', 'html')} > {rundir.REPORT}",
        )
    return f"{url.rstrip('/')}/{rundir.REPORT}"


def do_report(name: str, terminal: Terminal, *, form: str, by: GivenBounds) -> int:
    """Write the reports, or print one of them.

    Those beside the evidence are by its own bounds. Raises BadInput if others are to be written.
    """
    if form == "files" and by != OF_EVIDENCE:
        page = command_line("accept", "report", name, *by.words, "--format", "html")
        raise BadInput(
            "the reports beside the evidence have its own machine and thresholds",
            code=Code.USAGE,
            hint=f"print one with yours: {page} > report.html",
        )
    if form == "files" and bucket.is_url(name):
        page = _add_page(name, terminal)
        terminal.result(Reports(files=(page,)), page)
        return Exit.PASS
    judged = judge_path(name, by)
    if form == "files":
        files = write_reports(judged, terminal)
        terminal.result(Reports(files=files), "\n".join(files))
        terminal.suggest("open report.html in a browser, or send it: it needs no other file")
    elif form == "html":
        html = html_page(judged, terminal)
        terminal.document(Reports(html=html), html)
    elif form == "md":
        page = render_markdown(judged.verdict, judged.plan, judged.records)
        terminal.document(Reports(md=page), page)
    else:
        xml = junit(judged.verdict, judged.records)
        terminal.document(Reports(junit=xml), xml)
    return Exit.PASS
