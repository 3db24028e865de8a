"""Suggest what to do after a verdict: commands for its nodes, its pairs and the next run."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from accept import backends, config
from accept.commands.judged import OF_EVIDENCE, GivenBounds, Judged, is_reference, ranks_per_host
from accept.core.judge.summary import node_lists
from accept.core.plan import GroupKind
from accept.core.report.text import Place
from accept.core.text import command_line, count
from accept.core.verdict import State, Suspect, SuspectKind, Verdict
from accept.evidence import rundir
from accept.report.node_commands import node_commands, saved_provider_ids

#: Hosts in one command; the list in `nodes/bad.txt` has all.
_MOST_EXCLUDED = 8


def place_of(judged: Judged, by: GivenBounds = OF_EVIDENCE) -> Place:
    """Return where the report is, and what to type next with the back end of the run."""
    folder = judged.run_folder
    knows_machine = judged.verdict.machine in config.names("machines")
    commands: list[tuple[str, str]] = []

    def add(purpose: str, *words: str) -> None:
        commands.append((command_line("accept", *words), purpose))

    if folder is None:
        if judged.candidates and judged.logs and judged.verdict.state is not State.PASS:
            machine = ("--machine", judged.candidates[0])
            add(
                "if it is your machine: with its references",
                "judge",
                *map(str, judged.logs),
                *machine,
            )
        return Place(commands=tuple(commands), knows_machine=knows_machine)
    report = folder / rundir.REPORT
    # A drill shows nothing about nodes.
    bad = () if judged.verdict.injected else node_lists(judged.verdict).bad
    if bad:
        left = len(bad) - _MOST_EXCLUDED
        purpose = f"and {left} more: nodes/bad.txt" if left > 0 else "keep new work away"
        drain = _drain(judged, bad[:_MOST_EXCLUDED])
        commands += zip(drain, (purpose, "after the repair"), strict=False)
    if by != OF_EVIDENCE:
        # The other commands judge without them.
        if bad:
            add("evidence for and against", "explain", folder.name, bad[0], *by.words)
        return Place(commands=tuple(commands), knows_machine=knows_machine)
    if bad:
        if can_retest(judged):
            add("measure it again, with good nodes", "retest", folder.name)
            if _asks_for_rails(judged):
                add("is it one NIC? each rail by itself", "retest", folder.name, "--rails")
        add("evidence for and against", "explain", folder.name, bad[0])
        if can_write_ticket(judged, bad[0]):
            add("text and logs for the provider", "ticket", folder.name, bad[0])
        add("the list, one per line", "show", "nodes", folder.name, "--bad")
        if node_commands(judged.verdict, saved_provider_ids(folder)):
            purpose = "label them, report their hosts"
            add(purpose, "show", "nodes", folder.name, "--commands")
    of_network = [suspect for suspect in judged.verdict.suspects if suspect.of_network]
    if of_network and not judged.verdict.injected:
        if can_retest(judged) and any(suspect.pairs for suspect in of_network):
            add("measure its bad pairs again", "retest", folder.name, "--pairs")
        add("pairs and logs for the network", "ticket", folder.name, "--fabric")
    can_refer = any(map(is_reference, judged.figures))
    # Without a GPU, the next run on a busier machine would be below its own references.
    is_steady = judged.verdict.gpu_tested
    if judged.verdict.state is State.PASS and knows_machine and can_refer and is_steady:
        add("tighter bounds next time", "baseline", folder.name, "--out", "my.yaml")
    return Place(
        report=str(report) if report.is_file() else "",
        commands=tuple(commands),
        normal=_normal(judged),
        knows_machine=knows_machine,
    )


def _normal(judged: Judged) -> dict[str, str]:
    """Return, for each node that is slow only with others, how near its GPUs are to the median."""
    run = judged.run
    suspects = judged.verdict.suspects
    texts = {}
    for suspect in _slow_with_others(judged.verdict) if run.verdict.gpu_tested else ():
        host = suspect.hosts[0]
        own = {
            (one.check, one.metric, rank): abs(value / one.median - 1)
            for one in run.devices
            if one.median and len({at for at, _ in one.values}) > 1
            for rank, value in one.of_host(host).items()
        }
        alone = all(host not in s.hosts for s in suspects if s.kind is SuspectKind.GPU)
        if own and alone:
            gpus = count(len({rank for *_, rank in own}), "GPU")
            names = " and ".join(dict.fromkeys(check for check, *_ in own))
            texts[suspect.name] = (
                f"its {gpus}: within {max(own.values()):.1%} of the median ({names})"
            )
    return texts


def _slow_with_others(verdict: Verdict) -> Iterator[Suspect]:
    """Yield the nodes that are slow in their pairs."""
    for suspect in verdict.suspects:
        if suspect.kind is SuspectKind.NODE and suspect.cause.row.slow and suspect.pairs:
            yield suspect


def _asks_for_rails(judged: Judged) -> bool:
    """Return True if a node is slow in its pairs, and no step measured its rails one by one."""
    return (
        any(_slow_with_others(judged.verdict))
        and judged.plan.machine.gpus != 0
        and all(step.groups is not GroupKind.RAIL_PAIRS for step in judged.plan.steps)
        and ranks_per_host(judged.records) > 1
    )


def _drain(judged: Judged, hosts: Sequence[str]) -> tuple[str, ...]:
    """Return the command of the run's back end that takes hosts out of use, and its reverse."""
    folder = judged.run_folder
    if folder is None or not (folder / rundir.JOB).is_file():
        return ()
    backend = backends.load_job(folder).backend
    return backends.load(backend).drain(hosts, _reason(judged.verdict, hosts[0]))


def out_of_service(judged: Judged, node: str | None = None) -> tuple[str, ...]:
    """Return commands that take a bad node, or all, out of use, and report it to its provider.

    `accept` never executes them.
    """
    if judged.verdict.injected:
        return ()
    bad = [host for host in node_lists(judged.verdict).bad if node in (None, host)]
    ids = saved_provider_ids(judged.run_folder)
    of_cluster = node_commands(judged.verdict, {host: ids[host] for host in bad if host in ids})
    return of_cluster or (_drain(judged, bad)[:1] if bad else ())


def can_retest(judged: Judged) -> bool:
    """Return True if `accept retest` can repeat the run: one of this machine, with a suspect."""
    folder, verdict = judged.run_folder, judged.verdict
    is_repeatable = folder is not None and (folder / rundir.RUN).is_file()
    return is_repeatable and bool(verdict.suspects) and not verdict.injected


def can_write_ticket(judged: Judged, node: str) -> bool:
    """Return True if `accept ticket` has something to report about a node, and its logs."""
    has_logs = judged.folder is not None or bool(judged.logs)
    return has_logs and not judged.verdict.injected and bool(suspects_at(judged.verdict, node))


def suspects_at(verdict: Verdict, node: str) -> tuple[Suspect, ...]:
    """Return the suspects that are a node or a part of it, and not of the network."""
    return tuple(s for s in verdict.suspects if node in s.hosts and not s.of_network)


def _reason(verdict: Verdict, host: str) -> str:
    """Return why a bad host is taken out of use, for the records of a cluster."""
    suspects = (f"{s.cause} {{}} ({s.strength})" for s in verdict.suspects if host in s.hosts)
    return next(suspects, "{}").format(verdict.attempt)
