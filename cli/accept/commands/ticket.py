"""Write a ticket about a bad node, or about the network: a text, and an archive to send.

The collectors of a site run on the node over the connection of the run.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from shlex import quote

from accept import backends
from accept.backends.remote import Reach, Reply, last_line
from accept.commands.explain import check_node, explain, named
from accept.commands.judged import OF_EVIDENCE, GivenBounds, Judged, judge_path
from accept.commands.next_steps import out_of_service, suspects_at
from accept.commands.order import read_run
from accept.commands.report import not_written, reported
from accept.config.collectors import USUAL_COLLECTORS, SiteCollector, planned_collectors
from accept.core import bounded
from accept.core.error_codes import Code
from accept.core.errors import BadInput, Exit, NotStarted
from accept.core.evidence import write_below
from accept.core.judge.summary import node_lists
from accept.core.plan import Collector
from accept.core.runner.collectors import bounded_command, exit_of
from accept.core.runner.ssh import MARKER
from accept.core.text import byte_count, command_line, plain
from accept.core.verdict import Suspect
from accept.evidence import bucket, rundir
from accept.evidence.untrusted import Limits, walk
from accept.plan.bundle import net_channels
from accept.report.console import Terminal
from accept.report.node_commands import saved_nodes
from accept.report.repro import Settings
from accept.report.ticket import TicketWriter
from accept.report.ticket_faults import TicketFault

#: Seconds for a connection, besides the time of the collector.
_CONNECT_SECONDS = 90.0
#: A folder like that of a run for collectors that write files; it is removed at the end.
_IN_A_FOLDER = """\
ACCEPT_DIR=$(mktemp -d) && trap 'rm -rf "$ACCEPT_DIR"' EXIT && mkdir "$ACCEPT_DIR/tmp" || exit
export ACCEPT_DIR
"""


@dataclass(frozen=True, kw_only=True)
class TicketFiles:
    """The files of a ticket: `accept ticket`."""

    text: str
    archive: str
    redacted: bool
    faults: tuple[TicketFault, ...]
    #: The evidence; its SHA-256 is that of its list of checksums, empty without one.
    evidence: str
    evidence_sha256: str
    #: Commands that take the node out of service and report it; `accept` never executes them.
    commands: tuple[str, ...]


def do_ticket(
    name: str,
    node: str | None,
    terminal: Terminal,
    *,
    fabric: bool,
    redact: bool,
    collect: bool = False,
    by: GivenBounds = OF_EVIDENCE,
) -> int:
    """Write the ticket beside the evidence of an own run, else into the working folder.

    `fabric`: about the network instead of a node. `collect`: with the output of the site's
    collectors on the node now.
    """
    if fabric == (node is not None):
        raise BadInput(
            "a ticket is about one node or about the network",
            code=Code.USAGE,
            hint="name the run, and a node or --fabric: accept ticket last NODE; "
            "your runs: accept list runs",
        )
    judged = judge_path(name, by)
    part = named(judged.verdict, node) if node else ""
    parts = tuple(s for s in judged.verdict.suspects if s.name == part)
    if parts:
        # The ticket about a part of a node is that of the node.
        node = None if parts[0].of_network else parts[0].hosts[0]
    suspects = _suspects(judged, node, name)
    suspects = tuple(s for s in suspects if s in parts) if node is None and parts else suspects
    if judged.folder is None and not judged.logs:
        raise BadInput(
            "there is no folder for the ticket, and no logs for it",
            code=Code.EVIDENCE_NO_FOLDER,
            hint=f"fetch it: {command_line('accept', 'collect', name)}, and name the run"
            if bucket.is_url(name)
            else "unpack it, and name its folder",
        )
    fresh = _collect_now(judged, node, name, terminal) if collect else {}
    run = reported(judged)
    commands = out_of_service(judged, node) if node else ()
    made = TicketWriter(
        run,
        judged.folder,
        suspects,
        node=node,
        title=part or "fabric",
        nodes=saved_nodes(judged.run_folder),
        settings=_settings(judged.run_folder),
        redact=redact,
        read_log=None if judged.folder else partial(_log_of, judged.logs),
        excluded=explain(judged.run, node or suspects[0].name, name).excluded,
        commands=commands,
        fresh=fresh,
    ).write()
    stem = f"{rundir.TICKETS}/{made.name}-redacted" if redact else f"{rundir.TICKETS}/{made.name}"
    try:
        text, archive = (
            _written(judged.folder, f"{stem}{suffix}", content)
            for suffix, content in ((".md", made.text), (".zip", made.archive()))
        )
    except OSError as error:
        raise not_written(error, judged.folder) from None
    files = TicketFiles(
        text=text,
        archive=archive,
        redacted=redact,
        faults=made.faults,
        evidence="" if redact else str(judged.folder or judged.source),
        evidence_sha256=run.evidence_hash,
        commands=() if redact else commands,
    )
    terminal.result(files, files.text, files.archive)
    more = "" if redact else "; with --redact they have no names and addresses"
    terminal.suggest(f"send the archive, with the text as the message{more}")
    return Exit.PASS


def _collect_now(
    judged: Judged, node: str | None, name: str, terminal: Terminal
) -> dict[str, bytes]:
    """Return what each of the site's collectors prints on the node now, by its name.

    The commands come from the run folder on this workstation, and never from evidence. Raises
    NotStarted if the node cannot be reached, BadInput if there is no connection.
    """
    folder = judged.run_folder
    if node is None or folder is None or not (folder / rundir.JOB).is_file():
        raise BadInput(
            "only a node of a run of this workstation can be asked now",
            code=Code.NODE_UNREACHABLE,
            hint=f"{command_line('accept', 'ticket', name, node or '--fabric')}, without --collect",
        )
    job = backends.load_job(folder)
    run = read_run(folder)
    reach = backends.load(job.backend).reach(job, run)
    named: Mapping[str, SiteCollector] = run.site.collectors or {
        name: SiteCollector() for name in USUAL_COLLECTORS
    }
    found: dict[str, bytes] = {}
    for collector in planned_collectors(named):
        reply = _call(reach, node, collector)
        # What a node printed before it stopped to answer is kept.
        if not (reply.began or found):
            raise NotStarted(
                f"{plain(node, 80)} {_end(reply, collector)}",
                code=Code.NODE_UNREACHABLE,
                hint=f"{reach.refusal}; " * bool(reach.refusal)
                + "without what is on the node now: "
                + command_line("accept", "ticket", folder.name, node),
            )
        end, kept = _end(reply, collector), reply.out[: collector.max_bytes]
        found[collector.name] = kept or f"{end}\n".encode()
        terminal.progress(f"{collector.name} on {plain(node, 80)}: {byte_count(len(kept))}, {end}")
    return found


def _call(reach: Reach, node: str, collector: Collector) -> Reply:
    """Run one collector; its output has the limits of the site file, whatever the node prints."""
    argv = reach.argv(node, f"{_IN_A_FOLDER}/bin/sh -c {quote(bounded_command(collector))}")
    seconds = collector.timeout + _CONNECT_SECONDS
    try:
        done = bounded.run(argv, timeout=seconds, most=collector.max_bytes + (1 << 20))
    except FileNotFoundError:
        raise reach.not_installed(node) from None
    _, found, out = done.out.partition(MARKER)
    return Reply(exit=exit_of(done.err), out=out, err=done.err, began=bool(found))


def _end(reply: Reply, collector: Collector) -> str:
    """Return how a collector ended."""
    if not reply.began:
        return f"cannot be reached: {plain(last_line(reply.errors), 200)}"
    if len(reply.out) > collector.max_bytes:
        return "printed too much and was cut off"
    if reply.exit in (None, 124, 137):
        return "did not end in time and was cut off"
    last = plain(last_line(reply.text), 120)
    return "complete" if reply.exit == 0 else f"exit status {reply.exit}: {last}"


def _written(evidence: Path | None, name: str, content: str | bytes) -> str:
    """Write a file about evidence, or about logs into the working folder; return its path."""
    if evidence:
        return str(rundir.write_about(evidence, name, content))
    write_below(Path(), name, content)
    return name


def _log_of(paths: Sequence[Path], name: str) -> Iterator[bytes]:
    """Yield the content of a log of nccl-tests, found again by the name that its record has."""
    for path in paths:
        for entry in walk(path, Limits()):
            if entry.name == name:
                yield from entry.blocks
                return


def _suspects(judged: Judged, node: str | None, name: str) -> tuple[Suspect, ...]:
    """Return the suspects that the ticket is about. Raises BadInput if there are none."""
    verdict = judged.verdict
    shown = plain(name, 200)
    if node is not None:
        check_node(judged, node, name)
    of_network = tuple(s for s in verdict.suspects if s.of_network)
    bad = node_lists(verdict).bad[:4]
    if verdict.injected or not verdict.suspects or (node is None and not of_network):
        what = "no part of the network" if node is None and verdict.suspects else "no suspect"
        raise BadInput(
            f"{shown} accuses {what}"
            + (": it was a drill, which shows nothing about nodes" if verdict.injected else ""),
            code=Code.RUN_NO_SUSPECT,
            hint=f"bad nodes: {', '.join(bad)}: {command_line('accept', 'ticket', name, bad[0])}"
            if bad and not verdict.injected
            else f"its nodes: {command_line('accept', 'show', 'nodes', name)}",
        )
    if node is None:
        return of_network
    suspects = suspects_at(verdict, node)
    if not suspects:
        state = "good" if node in node_lists(verdict).good else "not shown to be bad"
        fabric = command_line("accept", "ticket", name, "--fabric")
        raise BadInput(
            f"{plain(node, 80)} is {state} in {shown}",
            code=Code.NODE_NOT_BAD,
            hint=f"bad nodes: {command_line('accept', 'show', 'nodes', name, '--bad')}"
            + (f"; the network: {fabric}" if of_network else ""),
        )
    return suspects


def _settings(folder: Path | None) -> Settings:
    """Return what the run folder knows about the ranks, if this workstation made it."""
    if folder is None:
        return Settings()
    try:
        run = read_run(folder)
    except BadInput:
        return Settings()
    return Settings(
        trusted=True,
        script=run.script,
        changed={name: changes.env for name, changes in run.profiles.items()},
        removed={name: changes.removed for name, changes in run.profiles.items()},
        net_channels=net_channels(run.machine),
    )
