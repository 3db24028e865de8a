"""Show which nodes of a run are good, bad or not tested."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from accept.commands.judged import GivenBounds, judge_path
from accept.commands.next_steps import out_of_service
from accept.core.errors import Exit
from accept.core.judge.summary import node_lists
from accept.core.text import folded, plain
from accept.report.console import Table, Terminal


def do_show_nodes(
    name: str, terminal: Terminal, by: GivenBounds, *, states: Sequence[str], fold: bool
) -> int:
    """Print the nodes of a run: those in `states`, one per line, or all with their states.

    With `fold`, the nodes of a state are one host list, such as node[01-16].
    """
    verdict = judge_path(name, by).verdict
    lists = node_lists(verdict)
    by_state: dict[str, tuple[str, ...]] = vars(lists)
    if states:
        nodes = [host for state in states for host in by_state[state]]
        text = folded(nodes) if fold else "\n".join(nodes)
        terminal.result(lists, *([plain(text, 1 << 20)] if fold and text else map(plain, nodes)))
        return Exit.PASS
    if fold:
        by_count = [(state, str(len(own)), folded(own) or "-") for state, own in by_state.items()]
        terminal.result(lists, Table(rows=by_count))
    else:
        reasons = {node.name: node.reason for node in verdict.left_out}
        rows: list[tuple[str, ...]] = [
            (host, state, *([plain(reasons.get(host, ""), 200)] * bool(reasons)))
            for state, own in by_state.items()
            for host in own
        ]
        terminal.result(lists, Table(rows=rows) if rows else "no nodes")
    return Exit.PASS


@dataclass(frozen=True, kw_only=True)
class NodeCommands:
    """Commands that a user may run for the bad nodes of a run."""

    commands: tuple[str, ...]


def do_show_commands(name: str, terminal: Terminal, by: GivenBounds) -> int:
    """Print commands that take the bad nodes of a run out of service. They are not executed."""
    judged = judge_path(name, by)
    commands = out_of_service(judged)
    if not commands:
        bad = node_lists(judged.verdict).bad
        why = "the run is of no cluster whose commands are known" if bad else "no node is accused"
        terminal.progress(f"no commands: {why}")
    terminal.result(NodeCommands(commands=commands), *commands)
    return Exit.PASS
