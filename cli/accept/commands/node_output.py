"""Run the collectors of a site on a node after the run, over the connection of the run."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from shlex import quote

from accept import backends
from accept.backends.remote import Reach, Reply, last_line
from accept.commands.order import read_run
from accept.config.collectors import USUAL_COLLECTORS, SiteCollector, planned_collectors
from accept.core import bounded
from accept.core.error_codes import Code
from accept.core.errors import NotStarted
from accept.core.model import Collector
from accept.core.runner.collectors import bounded_command, exit_of
from accept.core.runner.ssh import MARKER
from accept.core.text import byte_count, command_line, plain
from accept.report.console import Terminal

#: Seconds for a connection, besides the time of the collector.
_CONNECT_SECONDS = 90.0
#: A folder like that of a run for collectors that write files; it is removed at the end.
_IN_A_FOLDER = """\
ACCEPT_DIR=$(mktemp -d) && trap 'rm -rf "$ACCEPT_DIR"' EXIT && mkdir "$ACCEPT_DIR/tmp" || exit
export ACCEPT_DIR
"""


def collect_now(folder: Path, node: str, terminal: Terminal) -> dict[str, bytes]:
    """Return the output of each collector on a node of a run, by its name.

    `folder` is the run folder on this workstation: the commands come from there and never from
    evidence. Raises NotStarted if the node cannot be reached, BadInput if there is no connection.
    """
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
    return Reply(exit=exit_of(done.err), out=out, err=done.errors, began=bool(found))


def _end(reply: Reply, collector: Collector) -> str:
    """Return how a collector ended."""
    if not reply.began:
        return f"cannot be reached: {plain(last_line(reply.err), 200)}"
    if len(reply.out) > collector.max_bytes:
        return "printed too much and was cut off"
    if reply.exit in (None, 124, 137):
        return "did not end in time and was cut off"
    last = plain(last_line(reply.out.decode(errors="replace")), 120)
    return "complete" if reply.exit == 0 else f"exit status {reply.exit}: {last}"
