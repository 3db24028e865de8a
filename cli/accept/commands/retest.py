"""Measure the suspects of a run again, and decide which of them are closed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from accept.commands.explain import check_node
from accept.commands.judged import Judged, judge_path, ranks_per_host
from accept.commands.order import read_run
from accept.commands.plan import plan_text, planned, tell_plan
from accept.commands.report import reported, screen
from accept.commands.run import finish, new_name, send_results, show_removal, start
from accept.core.causes import Cause, Judgement
from accept.core.checks import checks_of
from accept.core.error_codes import Code
from accept.core.errors import BadInput, Exit
from accept.core.evidence import write
from accept.core.groups import disjoint
from accept.core.judge.summary import node_lists
from accept.core.judge.values import is_bad
from accept.core.plan import GroupKind, Plan, Step
from accept.core.serde import to_json
from accept.core.text import count, plain, shortened
from accept.core.verdict import State, Suspect, Verdict, worst_exit
from accept.evidence import rundir
from accept.plan.bundle import render
from accept.plan.placement import include_nodes
from accept.plan.resolve import Resolved
from accept.report.console import Table, Terminal
from accept.report.data import Population, Run

#: Fewer good nodes would not show what is normal.
_LEAST_PARTNERS = 4
#: Good pairs that are measured again beside the bad ones, if only few are bad.
_LEAST_GOOD_PAIRS = 4


class Part(StrEnum):
    """The part of the old run that a retest repeats."""

    SUITE = "suite"
    #: The bad pairs, and as many good ones.
    PAIRS = "pairs"
    #: These pairs, and then each of their rails by itself.
    RAILS = "rails"


class Outcome(StrEnum):
    """The result of a retest for one suspect."""

    #: It was measured again, and everything is as good as normal in the old run.
    CLOSED = "closed"
    STILL_BAD = "still-bad"
    OTHER_CAUSE = "other-cause"
    #: The retest does not show it to be good or bad.
    NOT_SHOWN = "not-shown"


@dataclass(frozen=True, kw_only=True)
class Retested:
    """A suspect of the old run, and what the retest shows about it."""

    suspect: str
    hosts: tuple[str, ...]
    cause: Cause
    outcome: Outcome
    why: str
    #: Serial numbers and GPU UUIDs that its hosts reported, before and in the retest.
    before: tuple[str, ...]
    after: tuple[str, ...]

    @property
    def replaced(self) -> bool:
        """Return True if both runs reported hardware, and it differs."""
        return bool(self.before and self.after) and set(self.before) != set(self.after)


@dataclass(frozen=True, kw_only=True)
class RetestResult:
    """The verdict of a run and its retest: `accept retest`."""

    #: The names of the two runs, and the SHA-256 of their evidence's lists of checksums.
    run: str
    retest: str
    run_evidence: str
    retest_evidence: str
    accepted: bool
    exit: int
    #: Why it is not accepted although all retested suspects are closed; empty otherwise.
    reason: str
    suspects: tuple[Retested, ...]
    #: The state of the retest alone.
    state: State


def do_retest(
    name: str, nodes: Sequence[str], terminal: Terminal, part: Part, *, dry_run: bool = False
) -> int:
    """Start a run of suspects and good nodes, and return the exit code of both runs together.

    `nodes` are the suspects to measure; none: all. With `dry_run`, only print the plan.
    """
    folder = rundir.find_own(name)
    before = judge_path(str(folder))
    suspects = suspects_of(before, nodes, name, part)
    old = read_run(folder)
    run = _again(old, before, suspects, part)
    bundle = render(run)
    run = replace(run, plan=bundle.plan)
    if dry_run:
        terminal.result(planned(run), plan_text(planned(run)))
        return Exit.PASS
    tell_plan(planned(run), terminal)
    job, target = start(run, bundle, terminal, name=new_name())
    terminal.progress(f"started {job.attempt}, a retest of {folder.name}; all files: {target}")
    after = finish(job, target, terminal)
    result = compared(before, after, suspects)
    try:
        write(target / rundir.RETEST, to_json(result) + "\n")
    except OSError as error:
        terminal.progress(f"{rundir.RETEST} was not written: {error.strerror}")
    terminal.result(result, screen(after, terminal), "", *_text(result))
    send_results(after, terminal)
    show_removal(job, after.verdict.attempt, terminal)
    return result.exit


def suspects_of(judged: Judged, nodes: Sequence[str], name: str, part: Part) -> tuple[Suspect, ...]:
    """Return the suspects to measure again. Raises BadInput if there are none."""
    verdict, shown = judged.verdict, plain(name, 200)
    for node in nodes:
        check_node(judged, node, name)
    found = [s for s in verdict.suspects if _has_part(s, part)]
    if verdict.injected:
        found = []
    if not found:
        what = "no bad pairs" if part is not Part.SUITE and verdict.suspects else "no suspect"
        drill = ": it was a drill" if verdict.injected else ""
        raise BadInput(
            f"{shown} has {what}{drill}",
            code=Code.RUN_NO_SUSPECT,
            hint=f"run its suite again: accept run; its nodes: accept show nodes {shown}",
        )
    accused = [host for suspect in found for host in _hosts_of(suspect)]
    for node in nodes:
        if node not in accused:
            raise BadInput(
                f"{plain(node, 80)} is not a suspect of {shown}",
                code=Code.NODE_NOT_BAD,
                hint=f"suspects: {plain(shortened(list(dict.fromkeys(accused)), 8))}",
            )
    return tuple(s for s in found if not nodes or set(nodes) & set(_hosts_of(s)))


def _has_part(suspect: Suspect, part: Part) -> bool:
    """Return True if a retest of this part measures the suspect.

    Pairs alone do not show that a node is good again, so `PAIRS` is for the network.
    """
    match part:
        case Part.SUITE:
            return True
        case Part.PAIRS:
            return suspect.of_network and bool(suspect.pairs)
        case Part.RAILS:
            return bool(suspect.pairs)


def _hosts_of(suspect: Suspect) -> tuple[str, ...]:
    """Return the hosts that must take part to measure a suspect again."""
    in_pairs = (host for pair in suspect.pairs for host in pair.hosts)
    network = in_pairs if suspect.of_network else ()
    return tuple(dict.fromkeys((*suspect.hosts, *suspect.others, *network)))


# The new run


def _again(old: Resolved, before: Judged, suspects: Sequence[Suspect], part: Part) -> Resolved:
    """Return the old run on the suspects and good partners, without its hashes."""
    chosen = tuple(_pairs(before, suspects)) if part is not Part.SUITE else ()
    of_suspects = dict.fromkeys(host for suspect in suspects for host in _hosts_of(suspect))
    if chosen:
        wanted = {host for pair in chosen for host in pair}
    else:
        wanted = {*of_suspects, *_partners(before.verdict, list(of_suspects))}
    hosts = tuple(host for host in before.verdict.hosts if host in wanted)
    hosts += tuple(host for host in before.verdict.missing if host in wanted)
    plan = replace(
        old.plan,
        nodes=len(hosts),
        pairs=chosen,
        retest_of=before.verdict.attempt,
        # A retest without its suspects means nothing; of several, one that is absent stays open.
        require_all_nodes=len(suspects) == 1,
        fail_fast=False,
        left_out=(),
    )
    if chosen:
        plan = _of_pairs(plan, hosts, part, ranks_per_host(before.records))
    site = old.site
    if old.backend == "kubernetes":
        pods = include_nodes(site.kubernetes, names=hosts, nodes=len(hosts))
        site = replace(site, kubernetes=pods)
    return replace(
        old,
        plan=plan,
        site=site,
        hosts=() if old.backend == "local" else hosts,
        place=replace(old.place, release=None),
        lost=(),
        earlier="",
    )


def _partners(verdict: Verdict, suspects: Sequence[str]) -> list[str]:
    """Return as many good nodes as suspects, at least four, and one more for an even number.

    If the run shows no node to be good, nodes that it does not accuse take their place.
    """
    accused = {host for suspect in verdict.suspects for host in (*suspect.hosts, *suspect.others)}
    good = list(node_lists(verdict).good) or [h for h in verdict.hosts if h not in accused]
    free = [host for host in good if host not in suspects]
    wanted = max(len(suspects), _LEAST_PARTNERS)
    # With an odd number of nodes, one would be left out of each round of pairs.
    return free[: wanted + (wanted + len(suspects)) % 2]


def _pairs(before: Judged, suspects: Sequence[Suspect]) -> Iterator[tuple[str, ...]]:
    """Yield the bad pairs of the suspects, then as many good ones of the same run."""
    bad = list(dict.fromkeys(pair.hosts for suspect in suspects for pair in suspect.pairs))
    yield from bad
    known = {frozenset(pair) for pair in bad}
    wanted = max(len(bad), _LEAST_GOOD_PAIRS)
    worst: dict[frozenset[str], bool] = {}
    order: dict[frozenset[str], tuple[str, ...]] = {}
    for population in reported(before).populations:
        for sample in population.samples if population.nodes == 2 else ():
            pair = frozenset(sample.hosts)
            order.setdefault(pair, sample.hosts)
            worst[pair] = worst.get(pair, False) or sample.bad
    good = [order[pair] for pair, is_slow in worst.items() if not is_slow and pair not in known]
    yield from good[:wanted]


def _of_pairs(plan: Plan, hosts: Sequence[str], part: Part, ranks: int) -> Plan:
    """Return the plan with its steps of pairs, and those that describe and connect the hosts.

    Raises BadInput if `part` needs rails and the nodes have one, that is one rank.
    """
    rounds = len(disjoint(plan.pairs, hosts))
    if part is Part.RAILS and ranks < 2:
        raise BadInput(
            "each node of the run has one rank, so it has no rails to measure one by one",
            code=Code.RUN_NO_SUSPECT,
            hint="measure the suspects again: accept retest",
        )
    steps: list[Step] = []
    for old in plan.steps:
        if not old.groups.of_pairs:
            if any(c.gate or c.read_only for c in checks_of(old)):
                steps.append(replace(old, if_open=False))
            continue
        step = replace(old, rounds=rounds, repeats=0, if_open=False)
        steps.append(step)
        if part is Part.RAILS and old.groups is GroupKind.PAIRS:
            name = f"{old.id}-by-rail"
            # One NIC carries what all NICs of a node carry in the other step.
            steps.append(
                replace(
                    step,
                    id=name,
                    script=f"steps/{name}.sh",
                    groups=GroupKind.RAIL_PAIRS,
                    repeats=old.repeats,
                    timeout=old.timeout * ranks,
                    estimate=old.estimate * ranks,
                )
            )
    return replace(plan, steps=tuple(steps))


# The comparison


def compared(before: Judged, after: Judged, suspects: Sequence[Suspect]) -> RetestResult:
    """Return what a retest shows about `suspects` of an earlier run, and the verdict of both."""
    old, new = reported(before), reported(after)
    rows = tuple(_retested(suspect, old, new) for suspect in suspects)
    exit_code, reason = _exit(before.verdict, after.verdict, suspects, rows)
    return RetestResult(
        run=before.verdict.attempt,
        retest=after.verdict.attempt,
        run_evidence=old.evidence_hash,
        retest_evidence=new.evidence_hash,
        accepted=exit_code is Exit.PASS,
        exit=int(exit_code),
        reason=reason,
        suspects=rows,
        state=after.verdict.state,
    )


def _retested(suspect: Suspect, old: Run, new: Run) -> Retested:
    outcome, why = _outcome(suspect, old, new)
    hosts = suspect.hosts if not suspect.of_network else ()
    return Retested(
        suspect=suspect.name,
        hosts=_hosts_of(suspect),
        cause=suspect.cause,
        outcome=outcome,
        why=why,
        before=tuple(_hardware(old, hosts)),
        after=tuple(_hardware(new, hosts)),
    )


def _outcome(suspect: Suspect, old: Run, new: Run) -> tuple[Outcome, str]:
    verdict = new.verdict
    hosts = set(_hosts_of(suspect))
    accused = [s for s in verdict.suspects if _concerns(s, suspect)]
    # Which relative cause a slow host has depends on how many peers it is compared with.
    relative = suspect.cause.row.relative
    same = [s for s in accused if s.cause is suspect.cause or (relative and s.cause.row.relative)]
    if same:
        return Outcome.STILL_BAD, same[0].why
    if accused:
        return Outcome.OTHER_CAUSE, f"{accused[0].cause}: {accused[0].why}"
    if not hosts <= set(verdict.hosts):
        absent = sorted(hosts - set(verdict.hosts))
        return Outcome.NOT_SHOWN, f"{shortened(absent, 4)} took no part"
    measured, bad, worst = _measured(suspect, old, new)
    if bad:
        return Outcome.STILL_BAD, f"{bad} of {measured} below normal of the old run, {worst}"
    good = set(node_lists(verdict).good)
    if not hosts <= good:
        return Outcome.NOT_SHOWN, f"the retest is not conclusive: {verdict.headline}"
    if suspect.cause.row.relative and not measured:
        return Outcome.NOT_SHOWN, "the retest has no figures to compare with the old run"
    figures = f"{count(measured, 'figure')} as normal in the old run" if measured else "good"
    return Outcome.CLOSED, figures


def _concerns(one: Suspect, suspect: Suspect) -> bool:
    """Return True if a suspect of the retest is, or contains, a suspect of the old run."""
    if one.of_network or suspect.of_network:
        # The network between some of its nodes is bad again, or one of these is.
        return not set(_hosts_of(one)).isdisjoint(_hosts_of(suspect)) or one.kind is suspect.kind
    return not set(one.hosts).isdisjoint(suspect.hosts)


def _measured(suspect: Suspect, old: Run, new: Run) -> tuple[int, int, str]:
    """Return the number of new figures of a suspect, the number of bad ones, and the worst one.

    They are compared with what was normal in the old run, because a small retest has fewer peers.
    Executions with another node that the retest accuses are left out: that node explains them.
    """
    hosts = set(suspect.hosts)
    pairs = {frozenset(pair.hosts) for pair in suspect.pairs} if suspect.of_network else set()
    others = new.verdict.accused - hosts
    known = {_key(population): population for population in old.populations}
    figures = bad = 0
    worst, worst_share = "", 2.0
    for population in new.populations:
        normal = known.get(_key(population))
        if normal is None or (normal.normal is None and normal.bound is None):
            continue
        for sample in population.samples:
            concerned = frozenset(sample.hosts) in pairs if pairs else hosts & set(sample.hosts)
            if not concerned or others & set(sample.hosts):
                continue
            figures += 1
            bad += is_bad(sample.value, normal.lowest_good)
            share = (sample.value or 0.0) / normal.normal.value if normal.normal else 1.0
            if share < worst_share:
                worst_share = share
                worst = f"down to {share:.0%} in {population.check}"
    return figures, bad, worst


def _key(population: Population) -> tuple[str, str, int | None]:
    return population.step.id, population.check, population.size


def _hardware(run: Run, hosts: Iterable[str]) -> Iterator[str]:
    """Yield the serial numbers of hosts, and the UUIDs of their GPUs with their serial numbers."""
    for host in hosts:
        if inventory := run.inventories.get(host):
            yield from filter(None, (inventory.serial,))
            for gpu in inventory.gpus:
                yield from filter(None, (" ".join(filter(None, (gpu.uuid, gpu.serial))),))


def _exit(
    before: Verdict, after: Verdict, suspects: Sequence[Suspect], rows: Sequence[Retested]
) -> tuple[Exit, str]:
    """Return the exit code of both runs together, and why closed suspects are not enough.

    Both are accepted only if the old run passes without its suspects, each of these was closed, and
    the retest passes.
    """
    if any(row.outcome in (Outcome.STILL_BAD, Outcome.OTHER_CAUSE) for row in rows):
        return worst_exit((Exit.REJECTED, after.exit)), ""
    if any(row.outcome is Outcome.NOT_SHOWN for row in rows):
        return worst_exit((after.exit or Exit.INCONCLUSIVE, Exit.INCONCLUSIVE)), ""
    if after.exit != Exit.PASS:
        return Exit(after.exit), f"the retest itself: {after.headline}"
    if left := [s.name for s in before.suspects if s not in suspects]:
        return Exit(before.exit), f"not measured again: {shortened(left, 4)}"
    if not _explained(before):
        return Exit(before.exit), f"more is wrong in {before.attempt} than these suspects"
    return Exit.PASS, ""


def _explained(verdict: Verdict) -> bool:
    """Return True if nothing but the suspects kept a run from being accepted."""
    blamed = {host for suspect in verdict.suspects for host in suspect.hosts}
    if verdict.interruption or not blamed.issuperset(verdict.missing):
        return False
    if verdict.state is State.DEGRADED:
        return True
    causes = {suspect.cause for suspect in verdict.suspects}
    open_checks = [c for c in verdict.checks if c.state is not State.PASS and not c.optional]
    return verdict.state is State.FAIL and all(
        check.state is State.FAIL
        and all(
            finding.judgement is Judgement.POPULATION and finding.cause in causes
            for finding in check.findings
            if finding.state is not State.PASS
        )
        for check in open_checks
    )


# The text


def _text(result: RetestResult) -> Iterator[str | Table]:
    rows = [
        (f"  {plain(row.suspect, 60)}", row.cause, row.outcome, plain(row.why, 200))
        for row in result.suspects
    ]
    yield Table(header=("  suspect", "was", "now", "why"), rows=rows)
    for row in result.suspects:
        if row.replaced:
            gone = shortened([s for s in row.before if s not in row.after], 4)
            new = shortened([s for s in row.after if s not in row.before], 4)
            yield plain(f"  {row.suspect}: hardware changed: {gone or 'none'} -> {new or 'none'}")
    if result.reason:
        yield plain(f"  {result.reason}")
    state = "ACCEPTED" if result.accepted else "NOT ACCEPTED"
    yield f"{state} with the retest: run {result.run}, retest {result.retest}, exit {result.exit}"
