"""Write the sentences about parts, findings, verdicts and what to do next: all of them are here."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from accept.core.by_key import by_key
from accept.core.causes import Cause
from accept.core.plan import Bound, Reference, Skipped
from accept.core.signs import Sign, catalog
from accept.core.text import count, format_size, number, plain, shortened
from accept.core.verdict import (
    OF_HOST,
    WORST_FIRST,
    CheckVerdict,
    Finding,
    State,
    Suspect,
    SuspectKind,
    Verdict,
    Verification,
)

#: Maximum number of hosts, of effects, of pairs, of steps and of parts in one sentence.
_MAX_HOSTS, _MAX_EFFECTS, _MAX_PAIRS, _MAX_STEPS, _MAX_PARTS = 16, 3, 5, 5, 3
#: Maximum number of suspects or checks in the headline, and of lines of advice.
_MAX_NAMED, _MAX_ADVICE = 3, 20
#: Maximum number of hosts in the sentence on which hosts may be used.
_MAX_LISTED = 8
#: Maximum number of checks in the list of those that a user left out.
_MAX_NOT_RUN = 12
#: Maximum length of a figure in a line of advice.
_MAX_FIGURE = 160
#: Causes of a value below its bound, for which a faster NCCL profile is advised.
_TOO_SLOW = (Cause.BELOW_EXPECTED, Cause.BELOW_REFERENCE)
#: Advice about wrong data that follows no host.
_SOFTWARE = (
    "no node explains the wrong data: compare the versions of NCCL, network plugin, driver and "
    "firmware, and run the step again with another NCCL"
)
#: Advice about wrong data that many hosts share, if no host is accused.
_UNNAMED = "run the collective in pairs of nodes, which show whose it is"


# Parts


def fault_of(cause: Cause) -> str:
    """Return what is wrong with a measurement: "slow", "wrong data", or the cause."""
    if cause is Cause.WRONG_DATA:
        return "wrong data"
    return "slow" if cause.row.slow else str(cause)


def hosts_of(hosts: Sequence[str]) -> str:
    """Return the names of some hosts."""
    return shortened(list(hosts), _MAX_HOSTS)


def gpus_of(numbers: Iterable[int]) -> str:
    """Return the numbers of some GPUs, such as "GPUs 2, 3"."""
    names = [str(number) for number in sorted(numbers)]
    return f"{'GPU' if len(names) == 1 else 'GPUs'} {', '.join(names)}"


def part_name(kind: SuspectKind, hosts: Sequence[str], others: Sequence[str], device: str) -> str:
    """Return a part that the model considers, such as "leaf of h01 .. h08 through GPU 4"."""
    if kind is SuspectKind.FABRIC:
        return "the fabric"
    through = f" through GPU {device}" if device else ""
    if kind is SuspectKind.RAIL:
        return f"rail {device}"
    if kind in OF_HOST:
        return f"{kind} {', '.join(hosts)}" + (f":{device}" if device else "")
    if kind is SuspectKind.LINK:
        return f"the link {' - '.join(hosts)}"
    if kind is SuspectKind.BORDER:
        return f"the border between {hosts_of(hosts)} and {hosts_of(others)}"
    return f"{kind} of {hosts_of(hosts)}{through}"


def effect(check: str, values: str, loss: float, low: float, high: float) -> str:
    """Return what a part makes of one collective, with the 95 % interval of the loss.

    `values`: its bad values beside the normal one.
    """
    if loss >= 1:
        return f"{check} fails"
    return f"{check} {values}, {loss:.0%} slower ({low:.0%} to {high:.0%})"


def why_blamed(
    kind: SuspectKind,
    cause: Cause,
    *,
    bad: int,
    pairs: int,
    others: tuple[int, int],
    cleared: tuple[int, int] | None,
    gpus: Sequence[int],
    effects: Sequence[str],
    alike: Sequence[str],
    noun: str = "pair",
    nic: str = "",
) -> str:
    """Return the reason for blaming a part, with plain counts first.

    `others`: bad and all pairs without the part. `cleared`: its partners in bad pairs that are good
    with third hosts, and all of these partners; None: it has no partners. `nic`: the NIC that was
    measured, instead of GPUs.
    """
    lost = f": {shortened(list(effects), _MAX_EFFECTS)}" if effects else ""
    text = f"{fault_of(cause)} in {bad} of {count(pairs, noun)}"
    if kind is SuspectKind.FABRIC:
        return f"{text}, {bad / max(pairs, 1):.0%} of all{lost}; no node explains it"
    if kind is SuspectKind.LINK:
        return f"{fault_of(cause)} in each of {count(bad, 'measurement')}{lost}"
    if kind is SuspectKind.BORDER:
        text += " between the two groups"
    elif kind in (SuspectKind.SWITCH, SuspectKind.LEAF):
        text += " with other nodes" + (f" through {gpus_of(gpus)}" if gpus else "")
    elif kind is SuspectKind.RAIL:
        text += f" through local rank {', '.join(map(str, gpus))}"
    elif gpus:
        text += f" in which its {f'NIC {nic}' if nic else gpus_of(gpus)} took part"
    text += lost
    if others[1]:
        text += f"; other {noun}s: {others[0]} of {others[1]}"
    if kind in OF_HOST and cleared is not None:
        good, of = cleared
        if good < of:
            text += f"; {good} of its {of} partners are good with third nodes"
        else:
            verb = "is" if of == 1 else "are"
            text += f"; its {count(of, 'partner')} {verb} good with third nodes"
    if alike:
        text += f"; cannot be distinguished from {shortened(list(alike), _MAX_PARTS)}"
    return text


def normal_of(normal: int, measured: int) -> str:
    """Return how many of some measurements are normal, such as "44 of 44 normal"."""
    return f"{normal} of {measured} normal" if measured else "not measured"


def around(
    kind: SuspectKind, hosts: Sequence[str], device: str, *, inside: str, elsewhere: str
) -> str:
    """Return what all bad pairs of a network fault share, and what is normal around it."""
    if kind is SuspectKind.LINK:
        return f"pairs of these two with third nodes: {elsewhere}"
    if kind is SuspectKind.BORDER:
        return f"pairs inside the two groups: {inside}"
    if kind is SuspectKind.RAIL:
        return f"all of them use GPU {device} of a node"
    text = f"all of them leave {hosts_of(hosts)}; pairs inside: {inside}"
    if kind is SuspectKind.LEAF:
        text += f"; pairs with other nodes through other GPUs: {elsewhere}"
    return text


def around_fabric(hosts: int, of: int, most: int) -> str:
    """Return how the bad pairs of a fabric are spread."""
    return f"spread over {hosts} of {count(of, 'node')}; no node is in more than {most} of them"


def innocent(kind: SuspectKind, hosts: Sequence[str], named: Sequence[str]) -> str:
    """Return the hosts that are in bad pairs of a network fault without being the reason."""
    if kind is SuspectKind.LINK:
        return "these two nodes: draining one of them does not remove the fault"
    text = "single nodes"
    if kind in (SuspectKind.LEAF, SuspectKind.SWITCH):
        text = f"the {count(len(hosts), 'node')} behind it"
    elif named:
        text += f" other than {shortened(list(named), 3)}"
    return f"{text}: draining them does not remove the fault"


def gpu_or_nic(gpu: int, nics: Sequence[str]) -> str:
    """Return that pairs of hosts use both a GPU and its NIC."""
    return f"; GPU {gpu} or its NIC {', '.join(nics)}".rstrip()


def only_user(nic: str) -> str:
    """Return why a NIC is named instead of its GPUs."""
    return f"; no other GPU uses {nic}"


def below_bound(check: str, value: str, bound: str, others: int, of: int) -> str:
    """Return that a host alone is below its bound."""
    alone = f"{check}: {value}, at least {bound} is required"
    return f"{alone}; other nodes: {others} of {of}" if of else alone


# Findings on steps


def no_outlier(what: str, normal: str, detectable: float | None, unknown: str) -> str:
    """Return that no group of a step is slow."""
    text = f"{what}: no outlier from the normal value {normal}"
    if detectable is not None:
        text += f"; a node {detectable:.1%} slow would be detected"
    return f"{text}; {unknown} could not be judged" if unknown else text


def too_few(what: str, needed: int) -> str:
    """Return that a step has too few groups."""
    return f"{what}: too few to compare ({needed} needed)"


def peers_required(values: int, share: float, detectable: float | None, *, inverse: bool) -> str:
    """Return what the groups of a step were compared with.

    `share`: the lowest share of normal that is not slow. `inverse`: times were compared.
    """
    of = f"the normal value of {values}"
    if inverse and share > 0:
        return f"none above {1 / share:.0%} of {of}"
    if detectable is None:
        return f"none below {share:.0%} of {of}"
    return f"no node {detectable:.1%} below {of}"


def named(what: str, suspects: Sequence[tuple[str, str]], normal: str) -> str:
    """Return the suspects of a step, each with its name and reason."""
    texts = [f"{name}: {why}" for name, why in suspects]
    return f"{what}: {shortened(texts, _MAX_PARTS, ' | ')}" + (
        f"; normal is {normal}" * bool(normal)
    )


def open_pairs(
    step: str, pairs: Sequence[tuple[str, str]], every: Sequence[tuple[str, str]]
) -> str:
    """Return the pairs of a step that collapsed without a known reason.

    A pair has its values beside the normal one; none if it failed.
    `every`: all pairs with their values, if they are so few that any of them may be normal.
    """
    texts = [f"{name} {f'reached {values}' if values else 'failed'}" for name, values in pairs]
    if every:
        texts = [f"{name} {value}" for name, value in every]
    shown = "this pair shows it" if len(pairs) == 1 else "these pairs show it"
    return (
        f"step {step}: {shortened(texts, _MAX_PAIRS)}: the path or either node may be the reason. "
        f"No part is named, because only {shown}. More pairs of these nodes would separate them"
    )


def doubt(parts: Sequence[tuple[str, float, str]], noun: str) -> str:
    """Return the parts that are likely bad without proof, with their probabilities and values.

    `noun`: what would show more of them.
    """
    texts = [
        f"{name} (probability {min(probability, 0.999):.3g}{f', {values}' if values else ''})"
        for name, probability, values in parts
    ]
    return (
        f"likely bad, but not proven: {shortened(texts, _MAX_PARTS)}. "
        f"More {noun}s of these nodes would show it"
    )


def slower(who: str, gaps: Sequence[tuple[str, str, str, str, int, int]], reason: str) -> str:
    """Return how much slower some pairs are than the others, by step.

    `gaps`: step, lowest and highest value, the normal one, number of slow ones, and of all.
    """
    texts = [
        f"{low} to {high} instead of {normal}, slower in {slow} of {total} (step {step})"
        for step, low, high, normal, slow, total in gaps
    ]
    return f"{who} reached {shortened(texts, _MAX_STEPS, '; ')}: {reason}"


def slow_wave(step: str, wave: int, loss: float) -> str:
    """Return that a wave was slow for everybody, so that the time is the reason."""
    return (
        f"step {step}: wave {wave} was {loss:.0%} slower for everybody, so the time is the reason"
    )


def bad_blocks(step: str, blocks: Sequence[tuple[str, str, int]], others: int) -> str:
    """Return the bad blocks of a ladder, each with its values, if any, and its executions.

    `others`: number of the other blocks; they are all good.
    """
    texts = [
        f"{name} {f'reached {values}' if values else 'failed'} "
        f"in {times} of {count(times, 'execution')}"
        for name, values, times in blocks
    ]
    texts[-1] += f"; other blocks: 0 of {others}"
    return (
        f"step {step}: {shortened(texts, _MAX_PARTS)}. No part is named: pairs show whether a node "
        "or the network is the reason"
    )


def uneven(step: str, groups: int, normal: str) -> str:
    """Return that values which should be equal differ too much."""
    return (
        f"step {step}: {groups} groups that should be equal fall apart below {normal}, by more "
        "than noise explains: many are slow, or of several kinds. Judge each kind separately, "
        "or give a bound: --expect"
    )


def rare(step: str, name: str, values: str, slow: int, total: int) -> str:
    """Return that a group was slow in some of its executions only.

    `values`: those beside the normal one; empty if that is unknown.
    """
    text = f"{values or 'less'} in {slow} of {total} executions; the others were normal"
    return f"step {step}: {name} reached {text}"


DISTANCE = "distance"
SLOW_OR_FAR = (
    "slow, or on another switch. A `topology` command in the machine's file would show which"
)


# Bounds


#: Between the reason why a check has no bound, and an example of an expectation.
NO_BOUND_EXAMPLE = "; add one: --expect "


def no_bound(reason: str, expectation: str) -> str:
    """Return that a check has no bound, with an example of an expectation; empty: none."""
    example = f"{NO_BOUND_EXAMPLE}'{expectation}'" if expectation else ""
    return f"no bound on this machine{reason}{example}"


def unmeasured(bound: Reference) -> str:
    """Return that nothing was measured for a bound."""
    return f"{bound.metric}{_at(bound.size)} was never measured; expected {bound_text(bound)}"


def compared(
    bound: Reference, size: int | None, value: float, bad: int, of: int, noun: str, where: str
) -> str:
    """Return the worst value of groups or devices, how many are bad, and the bound."""
    shown = number(value)
    if bad and shown in map(number, filter(None, (bound.lower, bound.upper))):
        shown = f"{value:.8g}"
    text = f"{bound.metric}{_at(size)} of {shown} {bound.unit} is "
    text += f"{'outside' if bad else 'within'} {bound_text(bound)}"
    larger = bound.size if bound.size != size else None
    text += _at(larger)
    if of > 1 and bad:
        text += f" in {bad} of {of} {noun}, worst"
    return f"{text} on {where}{f'; measure {format_size(larger)} too' if bad and larger else ''}"


def bound_text(bound: Reference) -> str:
    """Return a bound for people: ">= 360 GB/s (floor)"."""
    limits = Bound(lower=bound.lower, upper=bound.upper, kind=bound.kind, source="")
    return f"{_limits(limits)} {bound.unit} ({bound.kind})"


def _limits(bound: Bound) -> str:
    """Return what a value must reach to pass: ">= 1", "<= 2" or ">= 1 and <= 2"."""
    parts = [f">= {number(bound.required)}"] if bound.required is not None else []
    parts += [f"<= {number(bound.upper)}"] if bound.upper is not None else []
    return " and ".join(parts)


def _at(size: int | None) -> str:
    return "" if size is None else f" at {format_size(size)}"


def sources(bound_findings: Sequence[Finding]) -> list[str]:
    """Return at most two bounds of findings, failed ones first, and two peaks, with sources.

    A bound that is the other side of one of these is included, too.
    """
    texts: dict[str, Finding] = {}
    for finding in sorted(bound_findings, key=lambda f: f.state is State.PASS):
        bound = finding.bound
        if bound is None:
            continue
        # What failed is below the lower bound; anything else is compared with what is expected.
        bound = replace(bound, expected=None) if finding.state is State.FAIL else bound
        subject = finding.metric, finding.size
        same = [f.bound for f in texts.values() if f.bound and (f.metric, f.size) == subject]
        other_side = same and (
            (bound.lower is not None and all(b.lower is None for b in same))
            or (bound.upper is not None and all(b.upper is None for b in same))
        )
        if len(texts) < 2 or other_side:
            text = f"{finding.metric} {_limits(bound)} {finding.unit}"
            texts.setdefault(f"{text}, {bound.kind}: {bound.source}", finding)
    peaks = [f"peak {number(f.peak)} {f.unit}: {f.peak_source}" for f in bound_findings if f.peak]
    return [*texts, *list(dict.fromkeys(peaks))[:2]]


# Verdicts


def headline(verdict: Verdict) -> str:
    """Return the first line for people, such as "fail: h3 host-died (strong)"."""
    state = verdict.state
    if verdict.interruption and not state.is_rejected:
        text = f"{state}: the run was interrupted: {verdict.interruption}"
    elif state is State.PASS:
        text = "pass" if verdict.gpu_tested else "pass (no GPU tested)"
    else:
        text = f"{state}: {shortened(_reasons(verdict), _MAX_NAMED) or 'no reason is recorded'}"
    if verdict.not_run:
        text += f" (not run: {shortened([skip.subject for skip in verdict.not_run], _MAX_NAMED)})"
    if verdict.part:
        text += f" ({verdict.part})"
    if verdict.edited:
        text += " (edited values)"
    if not verdict.injected:
        return text
    unseen = "; the injected fault was not detected" if state is State.PASS else ""
    return f"drill: {text}{unseen}"


def _reasons(verdict: Verdict) -> list[str]:
    """Return wrong data that no part explains, then the suspects; without any, the checks."""
    wrong = _wrong_data(verdict)
    reasons = [wrong] if wrong else []
    if verdict.suspects and verdict.state.is_rejected:
        named = (s for s in verdict.suspects if not (wrong and s.is_software))
        return reasons + [f"{s.name} {s.cause} ({s.strength})" for s in named]
    checks = [check for check in verdict.checks if check.state is verdict.state]
    for check in [check for check in checks if not check.optional] or checks:
        found = [finding for finding in check.findings if finding.state is check.state]
        found.sort(key=lambda finding: finding.cause is not Cause.WRONG_DATA)
        why = next((finding.cause or f"({finding.message})" for finding in found), "")
        if why != Cause.WRONG_DATA or not wrong:
            reasons.append(f"{check.check} {why}".strip())
    return reasons


def _wrong_data(verdict: Verdict) -> str:
    """Return how much data is wrong if no host or link explains it; empty otherwise."""
    found = verdict.unexplained_wrong_data
    if not found:
        return ""
    checks = dict.fromkeys(finding.check for finding in found)
    worst = max(found, key=lambda f: f.executions.bad if f.executions else 0)
    executions = worst.executions
    if executions is None:
        return f"wrong data in {', '.join(checks)}"
    text = f"wrong data in {executions.bad} of {count(executions.total, 'log')} of {worst.check}"
    if others := len(checks) - 1:
        text += f" and in {count(others, 'more check')}"
    common = executions.common_hosts
    if executions.bad > 1 and not common:
        return f"{text}, follows no node: software"
    return f"{text}, all with {', '.join(common)}" if 0 < len(common) <= _MAX_NAMED else text


def usable(verdict: Verdict) -> str:
    """Return which hosts may be used, as one sentence; empty for a pass and for no known host."""
    if verdict.state is State.PASS or verdict.injected or not verdict.requested:
        return ""
    hosts = count(len(verdict.requested), "node")
    if not verdict.state.is_rejected:
        return f"do not hand out the {hosts} yet: too little is known"
    network = [suspect for suspect in verdict.suspects if suspect.of_network]
    if verdict.unexplained_wrong_data or any(s.cause is Cause.WRONG_DATA for s in network):
        return f"do not hand out any of the {hosts}: results are wrong, and no node explains it"
    bad = [host for host in verdict.requested if host in verdict.accused]
    listed = shortened(bad, _MAX_LISTED)
    if network and not bad:
        return f"do not hand out the {hosts}, and drain none: the network is bad, no single node"
    if network:
        verb = "is" if len(bad) == 1 else "are"
        return (
            f"do not hand out the {hosts}: {listed} {verb} bad, and the network between the others"
        )
    if verdict.state is State.DEGRADED:
        absent = [host for host in verdict.missing if host not in bad]
        rest = [f"do not hand out {listed}"] * bool(bad)
        rest += [f"{shortened(absent, _MAX_LISTED)} never started"] * bool(absent)
        good = len({*verdict.hosts}.difference(bad))
        return f"{good} of {hosts} pass everything; {'; '.join(rest)}"
    text = f"do not hand out the {hosts}"
    return f"{text}: the rest is not shown to pass without {listed}" if bad else text


def advice(verdict: Verdict, faster_profile: str = "") -> tuple[str, ...]:
    """Return what to do next, one line for each suspect, then for each cause without a suspect.

    `faster_profile`: NCCL profile that the run did not use; see `PlannedMachine`.
    """
    lines = []
    if verdict.injected:
        faults = ", ".join(verdict.injected)
        lines += [f"this was a drill ({faults}): the verdict does not apply to the nodes"]
    if verdict.interruption:
        lines += [f"the run was interrupted ({verdict.interruption}): run it again"]
    lines += [suspect_advice(suspect, verdict.checks) for suspect in verdict.suspects]
    # Nothing is known about the settings of others.
    lines += _advice_on_findings(verdict, "" if verdict.origin else faster_profile)
    if len(lines) > _MAX_ADVICE:
        lines = [*lines[:_MAX_ADVICE], f"… and {len(lines) - _MAX_ADVICE} more: see the report"]
    return tuple(lines)


def suspect_advice(suspect: Suspect, checks: Iterable[CheckVerdict]) -> str:
    """Return the line of advice about a suspect of a verdict with these checks."""
    kind = "" if suspect.kind in (SuspectKind.RAIL, SuspectKind.FABRIC) else f"{suspect.kind} "
    meaning = "" if suspect.is_software else f"{suspect.cause.row.meaning}; "
    return f"{kind}{suspect.name}: {meaning}{action(suspect, checks)}"


def action(suspect: Suspect, checks: Iterable[CheckVerdict]) -> str:
    """Return what to do about a suspect of a verdict with these checks."""
    if suspect.is_software:
        return _SOFTWARE
    if suspect.of_network and suspect.cause.row.relative:
        return Cause.SLOW_NETWORK.row.action
    accusing = (
        _action(finding)
        for check in checks
        for finding in check.findings
        if finding.cause is suspect.cause and not {*suspect.hosts}.isdisjoint(finding.hosts)
    )
    return next(accusing, suspect.cause.row.action)


def _action(finding: Finding) -> str:
    """Return what to do about a finding with a cause: that of its known line, if it has one."""
    if sign := _sign(finding):
        return sign.action
    row = (finding.cause or Cause.UNKNOWN).row
    return row.action_of_check.get(finding.check, row.action)


def _sign(finding: Finding) -> Sign | None:
    """Return the known line of a finding if it shows the cause."""
    sign = catalog().find(finding.sign) if finding.sign else None
    return sign if sign and sign.shows_cause else None


def _advice_on_findings(verdict: Verdict, faster_profile: str) -> Iterator[str]:
    """Yield what to do about each cause that accuses no suspect, wrong data first."""
    accused = {suspect.cause for suspect in verdict.suspects}
    advised: set[tuple[Cause, str]] = set()
    found = [
        (check, finding)
        for check in sorted(verdict.checks, key=lambda check: WORST_FIRST.index(check.state))
        for finding in check.findings
        if finding.state is not State.PASS
        and not (check.optional and finding.state is not State.FAIL)
    ]
    found.sort(key=lambda one: one[1].cause is not Cause.WRONG_DATA)
    for check, finding in found:
        cause = finding.cause
        if cause is None or cause in accused or (verdict.suspects and cause.row.consequence):
            continue
        if verdict.origin and cause is Cause.CRASHED:
            continue  # the notes on the log answer it
        if (key := (cause, _action(finding))) in advised:
            continue
        if verdict.state is State.DEGRADED and not cause.row.names_no_node:
            continue  # the suspects explain it
        advised.add(key)
        executions = finding.executions
        everywhere = executions is not None and executions.bad > 1 and not executions.common_hosts
        text = _SOFTWARE
        if cause is Cause.WRONG_DATA and not everywhere:
            text = f"{cause.row.meaning}; {_UNNAMED}"
        elif cause is not Cause.WRONG_DATA:
            sign = _sign(finding)
            meaning = sign.means if sign else cause.row.meaning
            if cause is Cause.BELOW_REFERENCE:
                meaning = finding.message
            text = f"{plain(meaning, _MAX_FIGURE)}; {_action(finding)}"
        if faster_profile and (finding.nodes or 0) > 1 and cause in _TOO_SLOW:
            text += f"; repeat with `--nccl-profile {faster_profile}`, which this run did not use"
        yield f"{check.check}: {text}"


def not_run(skipped: Iterable[Skipped]) -> str:
    """Return what the user left out, with the option: "gemm, memory (--skip)"; empty: nothing."""
    by_option = by_key((s.reason, s.subject) for s in skipped if s.cause is Cause.DESELECTED)
    return plain(
        "; ".join(
            f"{shortened(names, _MAX_NOT_RUN)} ({option})" for option, names in by_option.items()
        )
    )


_VOUCHED = {
    None: "",
    Verification.SIGNED: "signed and unmodified",
    Verification.UNMODIFIED: "unmodified since it was fetched",
    Verification.NOT_VERIFIABLE: "NOT VERIFIED: no known key signed it",
}


def vouched(verdict: Verdict) -> str:
    """Return who vouches for the evidence of a verdict; empty: nothing was verified."""
    return _VOUCHED[verdict.verified]
