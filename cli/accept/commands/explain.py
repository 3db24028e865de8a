"""Show why the verdict blames a node or another part, or does not: counts, then the model."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from accept.commands.judged import GivenBounds, Judged, judge_path
from accept.commands.next_steps import can_retest, can_write_ticket
from accept.core import sentences
from accept.core.causes import Judgement
from accept.core.error_codes import Code
from accept.core.errors import BadInput, Exit
from accept.core.judge.effects.explanation import Effect, Fault, Part
from accept.core.judge.explained import Explained
from accept.core.judge.parts import name_of
from accept.core.judge.summary import NodeState, node_lists
from accept.core.report.text import range_row
from accept.core.serde import did_you_mean
from accept.core.text import command_line, count, number, plain, value_range
from accept.core.verdict import CheckVerdict, Finding, State, Suspect, Verdict
from accept.report.console import Table, Terminal
from accept.report.data import Population, Run, Sample, measured, share_of

_MOST_PARTNERS = 16


@dataclass(frozen=True, kw_only=True)
class StepCount:
    """The executions of one step that exercise the node or part."""

    #: Check and size, and the step or the kind of groups, for people.
    label: str
    check: str
    step: str
    #: `each` or `pairs`.
    groups: str
    executions: int
    #: Slower than all normal values, or below the required value.
    slow: int
    failed: int
    #: Not bad, but slower than others: distance may explain that.
    far: int
    #: Lowest and highest value as a share of normal; None: normal is unknown.
    lowest: float | None
    highest: float | None
    #: The bad, good and far values beside the normal one, for people; empty: there are none.
    bad_values: str
    good_values: str
    far_values: str


@dataclass(frozen=True, kw_only=True)
class Partner:
    """A node of the pairs that exercise the node or part."""

    host: str
    #: Its executions that exercise it, and bad ones among them.
    executions: int
    bad: int
    #: Its other executions, and bad ones among them.
    others: int
    others_bad: int
    #: The values of both, for people; those of several steps as shares of normal.
    values: str
    other_values: str


@dataclass(frozen=True, kw_only=True)
class EffectFigures:
    """The effect of a part in one population: losses are shares of the normal value."""

    check: str
    step: str
    #: None: all its executions failed.
    normal: float | None
    #: The bad values beside the normal one, for people.
    values: str
    loss: float
    #: The bounds of 95 %.
    low: float
    high: float
    pairs_hit: int
    pairs: int
    failures: int


@dataclass(frozen=True, kw_only=True)
class ModelFigures:
    """Figures of the model about a part: the explained one, or one that the node belongs to."""

    part: str
    #: False: distance explains it, so nothing is at fault.
    is_fault: bool
    #: Log of the odds against chance.
    odds: float
    effects: tuple[EffectFigures, ...]
    #: Parts that explain the same about as well.
    indistinguishable: tuple[str, ...]
    other_hit: int
    other_pairs: int


@dataclass(frozen=True, kw_only=True)
class Alternative:
    """A part that is neither accepted nor excluded."""

    part: str
    probability: float


@dataclass(frozen=True, kw_only=True)
class Explanation:
    """The evidence on one node or part: `accept explain`."""

    #: A node, or a part as the verdict names it.
    node: str
    #: good, bad or untested.
    state: str
    suspects: tuple[Suspect, ...]
    #: Evidence against it, and evidence that it is good, as sentences.
    evidence_against: tuple[str, ...]
    evidence_for: tuple[str, ...]
    #: What was measured to be normal beside it, so that it is not the cause, as sentences.
    excluded: tuple[str, ...]
    #: What all nodes measured together, which is about no single one, as sentences.
    together: tuple[str, ...]
    steps: tuple[StepCount, ...]
    partners: tuple[Partner, ...]
    model: tuple[ModelFigures, ...]
    alternatives: tuple[Alternative, ...]
    #: Share of pairs that are bad for no reason, as estimated from the run.
    background: float


@dataclass(frozen=True, kw_only=True)
class _Subject:
    """A node, or a part as the verdict names it, that is explained."""

    name: str
    state: NodeState
    suspects: tuple[Suspect, ...]
    #: The host that all its executions share, if it is one.
    host: str | None
    #: Return True for an execution that exercises it.
    covers: Callable[[Sample], bool]
    #: Return True for a part of the model that it is, or that it belongs to.
    concerns: Callable[[Part], bool]


def do_explain(name: str, subject: str, terminal: Terminal, by: GivenBounds) -> int:
    """Print the evidence for and against a node or part."""
    judged = judge_path(name, by)
    subject = named(judged.verdict, subject)
    explanation = explain(judged.run, subject, name)
    terminal.result(explanation, *_text(explanation, judged.verdict.checks))
    steps = []
    # The folder with its evidence may have been named, which no command that acts on a run takes.
    name = judged.run_folder.name if judged.run_folder else name
    if subject in node_lists(judged.verdict).states:
        if explanation.suspects and can_retest(judged):
            steps.append(command_line("accept", "retest", name, subject))
        if can_write_ticket(judged, subject):
            steps.append(command_line("accept", "ticket", name, subject, *by.words))
    if steps:
        terminal.suggest(", or ".join(steps))
    return Exit.PASS


def check_node(judged: Judged, node: str, name: str) -> None:
    """Raise BadInput if the run called `name` has no such node."""
    _check(node, [*node_lists(judged.verdict).states], name)


def _check(subject: str, names: Sequence[str], name: str) -> None:
    if subject not in names:
        raise BadInput(
            f"the run has no node {plain(subject, 80)!r}",
            code=Code.NODE_UNKNOWN,
            hint=f"{did_you_mean(subject, names)}all nodes: "
            f"{command_line('accept', 'show', 'nodes', name)}",
        )


def named(verdict: Verdict, text: str) -> str:
    """Return the name of the node or part that a user names as a screen does; unknown: the text.

    The screen prints "link h1 - h2" and, for scripts, "h1_-_h2"; the user may swap the two sides.
    """
    if text in node_lists(verdict).states:
        return text
    for one in verdict.suspects:
        if _sides(one.name) in (_sides(text), _sides(text.removeprefix(f"{one.kind} "))):
            return one.name
    return text


def _sides(name: str) -> frozenset[str]:
    """Return the sides of a link or border, or the whole name of another part."""
    return frozenset(re.split("_[-|]_", name.replace(" ", "_")))


def explain(run: Run, subject: str, name: str = "") -> Explanation:
    """Return the evidence on a node of the run called `name`, or on a part that it blames."""
    nodes, parts = node_lists(run.verdict).states, [one.name for one in run.verdict.suspects]
    _check(subject, [*nodes, *parts], name)
    about = _of_node(run, subject, nodes) if subject in nodes else _of_part(run, subject)
    steps = tuple(_steps(run, about))
    partners = tuple(sorted(_partners(run, about), key=lambda partner: -partner.bad))
    problems = {
        f"{problem.cause} in {record.step}: {problem.message}": problem.message
        for record in run.records
        for problem in record.problems
        if problem.host == subject
    }
    problems |= {one.reason: one.reason for one in run.verdict.left_out if one.name == subject}
    checks = run.verdict.checks
    counted = {one.check for one in steps if one.slow + one.failed}
    findings = [*_of_findings(about, checks, counted)]
    in_doubt = {
        check.check
        for check in checks
        for one in check.findings
        if about.name in one.hosts and _is_open(one)
    }
    # A finding on a problem quotes it.
    others = [text for text, message in problems.items() if not any(message in f for f in findings)]
    against = (*_against(steps, partners), *findings, *others)
    if not against:
        # What a check read from facts, such as the state of a GPU, is in no record's problems.
        own = (s for s in about.suspects if about.host in (None, *s.hosts))
        against = tuple(f"{s.cause}: {s.why}" for s in own)
    return Explanation(
        node=subject,
        state=about.state,
        suspects=about.suspects,
        evidence_against=against,
        evidence_for=(
            *_for(steps, partners, in_doubt),
            *_devices(run, about),
            *_passed(about, checks, steps),
        ),
        excluded=(*_good_partners(run, about), *_devices(run, about)),
        together=tuple(_together(run.verdict)) if subject in run.verdict.hosts else (),
        steps=steps,
        partners=partners[:_MOST_PARTNERS],
        model=tuple(_model(run, about)),
        alternatives=tuple(_alternatives(run, about)),
        background=run.effects.speed.explanation.background,
    )


def _of_node(run: Run, node: str, states: Mapping[str, NodeState]) -> _Subject:
    return _Subject(
        name=node,
        state=states[node],
        suspects=tuple(s for s in run.verdict.suspects if node in (*s.hosts, *s.others)),
        host=node,
        covers=lambda sample: node in sample.hosts,
        concerns=lambda part: node in (*part.hosts, *part.others),
    )


def _of_part(run: Run, name: str) -> _Subject:
    """Return a suspect, with the executions that the model found to exercise it."""
    suspects = tuple(one for one in run.verdict.suspects if one.name == name)
    own = {(frozenset(s.hosts), frozenset(s.others), s.device) for s in suspects}

    def concerns(part: Part) -> bool:
        return (frozenset(part.hosts), frozenset(part.others), part.device) in own

    covered = {
        (found.executions[i].hosts, found.executions[i].log)
        for found in run.effects.both
        for fault in found.explanation.faults
        if concerns(fault.part)
        for i in fault.covered
    }
    return _Subject(
        name=name,
        state=NodeState.BAD,
        suspects=suspects,
        host=next((s.hosts[0] for s in suspects if not s.of_network), None),
        covers=lambda sample: (sample.hosts, sample.log) in covered,
        concerns=concerns,
    )


def _steps(run: Run, about: _Subject) -> Iterator[StepCount]:
    for population in run.populations:
        own = [sample for sample in population.samples if about.covers(sample)]
        if not own:
            continue
        shares = [share_of(sample, population.normal) for sample in own]
        known = [share for share in shares if share is not None]
        failed = sum(sample.value is None or bool(sample.cause) for sample in own)
        bad = sum(sample.bad for sample in own)
        yield StepCount(
            label=population.label,
            check=population.check,
            step=population.step.id,
            groups=population.step.groups,
            executions=len(own),
            slow=bad - failed,
            failed=failed,
            far=sum(sample.far and not sample.bad for sample in own),
            lowest=min(known, default=None),
            highest=max(known, default=None),
            bad_values=population.compared(sample for sample in own if sample.bad),
            good_values=population.compared(s for s in own if not (s.bad or s.far)),
            far_values=population.compared(s for s in own if s.far and not s.bad),
        )


def _range(pairs: Sequence[tuple[Population, Sample]], *, is_one: bool) -> str:
    """Return values for people, as shares of normal if not `is_one` population; empty: none."""
    shares = [share for one in pairs if (share := share_of(one[1], one[0].normal)) is not None]
    if not is_one:
        low, high = f"{min(shares, default=0):.1%}", f"{max(shares, default=0):.1%}"
        return f"{low if low == high else f'{low} to {high}'} of normal" if shares else ""
    values = measured(sample for _, sample in pairs)
    return pairs[0][0].measure.range(values) if values else ""


def _partners(run: Run, about: _Subject) -> Iterator[Partner]:
    """Yield the hosts of the pairs that exercise a node or part, in the order of these."""
    pairs = [
        (population, sample, about.covers(sample))
        for population in run.populations
        if population.nodes == 2
        for sample in population.samples
    ]
    partners = dict.fromkeys(h for _, sample, covered in pairs if covered for h in sample.hosts)
    for partner in (host for host in partners if host != about.host):
        own = [pair for pair in pairs if partner in pair[1].hosts]
        shared = [(population, sample) for population, sample, covered in own if covered]
        others = [(population, sample) for population, sample, covered in own if not covered]
        is_one = all(population is own[0][0] for population, *_ in own)
        yield Partner(
            host=partner,
            executions=len(shared),
            bad=sum(sample.bad for _, sample in shared),
            others=len(others),
            others_bad=sum(sample.bad for _, sample in others),
            values=_range(shared, is_one=is_one),
            other_values=_range(others, is_one=is_one),
        )


def _against(steps: tuple[StepCount, ...], partners: tuple[Partner, ...]) -> Iterator[str]:
    for one in steps:
        if bad := one.slow + one.failed:
            values = f": {one.bad_values}" if one.bad_values else ""
            yield f"{one.label}: bad in {bad} of {one.executions}{values}"
    bad_with = [partner for partner in partners if partner.bad]
    good = [partner for partner in bad_with if partner.others > partner.others_bad]
    if bad_with:
        noun = count(len(bad_with), "partner")
        yield f"{len(good)} of {noun} in bad pairs are good in other pairs"


def _of_findings(
    about: _Subject, checks: Sequence[CheckVerdict], counted: set[str]
) -> Iterator[str]:
    """Yield the findings on a node that no count shows: `counted` are the checks with counts.

    Those on a group that it belongs to are not about a good node, nor what is missing of a group.
    """
    for check in checks:
        for one in check.findings:
            if one.state is State.PASS or about.name not in one.hosts:
                continue
            missing = one.judgement is Judgement.COMPLETENESS and one.state is not State.FAIL
            concerns = one.hosts == (about.name,) or not (about.state is NodeState.GOOD or missing)
            if _is_open(one) or (concerns and check.check not in counted):
                cause = f" [{one.cause}]" if one.cause else ""
                yield f"{check.check}{cause}: {one.message}"


def _is_open(finding: Finding) -> bool:
    """Return True if a node is slower than others, and nothing decides whether it is bad or far."""
    return finding.judgement is Judgement.POPULATION and finding.state is State.INCONCLUSIVE


def _for(
    steps: tuple[StepCount, ...], partners: tuple[Partner, ...], in_doubt: set[str]
) -> Iterator[str]:
    for one in steps:
        if good := one.executions - one.slow - one.failed - one.far:
            values = f": {one.good_values}" if one.good_values else ""
            yield f"{one.label}: good in {good} of {one.executions}{values}"
        if one.far and one.check not in in_doubt:
            yield (
                f"{one.label}: no slower than distance explains in {one.far} of {one.executions}: "
                f"{one.far_values}"
            )
    suspicious = [p for p in partners if p.bad and p.others and p.others_bad == p.others]
    if suspicious:
        noun = count(len(suspicious), "partner")
        yield f"{noun} in its bad pairs are bad in all other pairs, too"


def _passed(
    about: _Subject, checks: Sequence[CheckVerdict], steps: Sequence[StepCount]
) -> Iterator[str]:
    """Yield the checks that a good node passed without a figure of its own."""
    counted = {one.check for one in steps}
    names = [c.check for c in checks if c.state is State.PASS and c.check not in counted]
    if names and about.state is NodeState.GOOD:
        yield f"passed {', '.join(names)}"


def _good_partners(run: Run, about: _Subject) -> Iterator[str]:
    """Yield what the partners of bad pairs measured with other nodes, if that is good."""
    for population in run.populations:
        if population.nodes != 2:
            continue
        bad = [s for s in population.samples if s.bad and about.covers(s)]
        partners = {host for sample in bad for host in sample.hosts if host != about.host}
        others = [s for s in population.samples if not about.covers(s) and partners & {*s.hosts}]
        good = [sample for sample in others if not sample.bad]
        if values := population.compared(good) if about.host else "":
            pairs = f"{len(good)} of {count(len(others), 'pair')} without {about.host}"
            yield f"its {count(len(partners), 'partner')}: {population.title} {values} in {pairs}"


def _together(verdict: Verdict) -> Iterator[str]:
    """Yield what all nodes of a run measured together, if they are more than two; what differs."""
    for check in verdict.checks:
        for found in check.findings:
            if found.state is State.FAIL and not found.hosts:
                yield f"{check.check}{f' [{found.cause}]' if found.cause else ''}: {found.message}"
    for one in verdict.ranges:
        if one.nodes == len(verdict.hosts) > 2:
            name, measured, _, required, _ = range_row(one)
            yield f"{name}: {measured}" + f", required {required}" * bool(required)


def _devices(run: Run, about: _Subject) -> Iterator[str]:
    """Yield what tools and the GPUs of a node measured, without the GPUs that are accused."""
    accused = {suspect.device for suspect in about.suspects if suspect.device is not None}
    if not all(device.isdecimal() for device in accused):
        return
    for one in run.devices:
        of_host = one.of_host(about.host).items() if about.host else ()
        own = [value for rank, value in of_host if str(rank) not in accused]
        if own and one.unit:
            noun = f"other {run.rank_noun}" if accused else run.rank_noun
            text = f"{one.check} {one.metric}: {value_range(own)} {one.unit}"
            text += one.of_gpus * f" on {count(len(own), noun)}"
            others = len(one.values) > len(own)
            median = f"{number(one.median)} {one.unit}"
            yield text + others * f"; {median} is the median of {len(one.values)}"


def _model(run: Run, about: _Subject) -> Iterator[ModelFigures]:
    """Yield what the model found about a node or part and what it belongs to, wrong data first."""
    for found in run.effects.both:
        for faults, is_fault in (
            (found.explanation.faults, True),
            (found.explanation.apart, False),
        ):
            for fault in faults:
                if about.concerns(fault.part):
                    yield _figures(found, fault, is_fault=is_fault)


def _alternatives(run: Run, about: _Subject) -> Iterator[Alternative]:
    for found in run.effects.both:
        for doubt in found.explanation.doubtful:
            instead = doubt.instead_of
            if about.concerns(doubt.part) or (instead is not None and about.concerns(instead)):
                yield Alternative(part=name_of(doubt.part), probability=doubt.probability)


def _figures(found: Explained, fault: Fault, *, is_fault: bool) -> ModelFigures:
    def effect(one: Effect) -> EffectFigures:
        population = found.populations[one.population]
        normal = found.explanation.normal.get(one.population)
        return EffectFigures(
            check=population.check,
            step=population.step,
            normal=normal.value if normal else None,
            values=found.compared(fault.hits, one.population),
            loss=one.loss,
            low=one.low,
            high=one.high,
            pairs_hit=one.pairs_hit,
            pairs=one.pairs,
            failures=one.failures,
        )

    return ModelFigures(
        part=name_of(fault.part),
        is_fault=is_fault,
        odds=fault.odds,
        effects=tuple(map(effect, fault.effects)),
        indistinguishable=tuple(map(name_of, fault.indistinguishable)),
        other_hit=fault.other_hit,
        other_pairs=fault.other_pairs,
    )


def _text(one: Explanation, checks: Sequence[CheckVerdict]) -> Iterator[str | Table]:
    causes = ", ".join(f"{s.name} {s.cause} [{s.strength}]" for s in one.suspects)
    is_measured = one.state == "untested" and (one.steps or one.together)
    state = "undecided" if is_measured else one.state
    yield plain(f"{one.node}: {state}{f' ({causes})' if causes else ''}")
    for title, lines in (("AGAINST", one.evidence_against), ("FOR", one.evidence_for)):
        yield f"\n{title}"
        for line in lines or ("nothing",):
            yield f"  {plain(line)}"
    if one.together:
        yield "\nWITH ALL NODES, so about no single one"
        yield from (f"  {plain(line)}" for line in one.together)
    if one.partners:
        rows = [
            (
                f"  {p.host}",
                f"{p.bad} of {p.executions}",
                p.values,
                f"{p.others_bad} of {p.others}",
                p.other_values,
            )
            for p in one.partners
        ]
        yield ""
        yield Table(header=("  partner", "bad with it", "", "bad in other pairs", ""), rows=rows)
    if one.model:
        yield "\nMODEL"
        for figures in one.model:
            name, *effects = map(plain, _of_model(figures, one.background))
            yield from (f"  {name}", *(f"    {effect}" for effect in effects))
    if one.alternatives:
        yield "\nALTERNATIVES"
        for other in one.alternatives:
            yield f"  {plain(other.part)}: {other.probability:.0%}"
    for suspect in one.suspects:
        yield f"\nDO  {sentences.action(suspect, checks)}"


def _of_model(figures: ModelFigures, background: float) -> Iterator[str]:
    """Yield the lines about one part: its effects with their intervals, and what is like it."""
    kind = "" if figures.is_fault else " (distance, no fault)"
    others = f"{figures.other_hit} of {figures.other_pairs} other executions are bad"
    yield f"{figures.part}{kind}: {others}; without a fault, {background:.1%} are"
    for one in figures.effects:
        failed = f", {one.failures} failed" if one.failures else ""
        values = f"; {one.values}" if one.values else ""
        yield (
            f"{one.check} ({one.step}): {one.loss:.1%} slower ({one.low:.1%} to {one.high:.1%})"
            f" in {one.pairs_hit} of {count(one.pairs, 'pair')}{failed}{values}"
        )
    if figures.indistinguishable:
        yield f"cannot be distinguished from {', '.join(figures.indistinguishable[:4])}"
