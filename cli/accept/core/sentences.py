"""Write the sentences about parts, their effects and what remains open: all of them are here."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from accept.core.causes import Cause
from accept.core.model import OF_HOST, SuspectKind
from accept.core.text import count, shortened

#: Maximum number of hosts, of effects, of pairs, of steps and of parts in one sentence.
_MAX_HOSTS, _MAX_EFFECTS, _MAX_PAIRS, _MAX_STEPS, _MAX_PARTS = 16, 3, 5, 5, 3


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


def effect(check: str, loss: float, low: float, high: float) -> str:
    """Return how much slower a part makes one collective, with the 95 % interval."""
    return f"{check} fails" if loss >= 1 else f"{check} {loss:.0%} slower ({low:.0%} to {high:.0%})"


def why_blamed(
    kind: SuspectKind,
    cause: Cause,
    *,
    bad: int,
    pairs: int,
    share: float | None,
    others: tuple[int, int],
    cleared: tuple[int, int] | None,
    gpus: Sequence[int],
    effects: Sequence[str],
    alike: Sequence[str],
    noun: str = "pair",
) -> str:
    """Return the reason for blaming a part, with plain counts first.

    `others`: bad and all pairs without the part. `cleared`: its partners in bad pairs that are good
    with third hosts, and all of these partners; None: it has no partners.
    """
    lost = f" ({share:.0%} of normal)" if share is not None else ""
    text = f"{fault_of(cause)} in {bad} of {count(pairs, noun)}"
    if kind is SuspectKind.FABRIC:
        return f"{text}, {bad / max(pairs, 1):.0%} of all{lost}; no host explains it"
    if kind is SuspectKind.LINK:
        return f"{fault_of(cause)} in each of {count(bad, 'measurement')}{lost}"
    if kind is SuspectKind.BORDER:
        text += " between the two groups"
    elif kind in (SuspectKind.SWITCH, SuspectKind.LEAF):
        text += " with other hosts" + (f" through {gpus_of(gpus)}" if gpus else "")
    elif kind is SuspectKind.RAIL:
        text += f" through local rank {', '.join(map(str, gpus))}"
    elif gpus:
        text += f" in which its {gpus_of(gpus)} took part"
    text += lost
    if others[1]:
        text += f"; other {noun}s: {others[0]} of {others[1]}"
    if kind in OF_HOST and cleared is not None:
        good, of = cleared
        if good < of:
            text += f"; {good} of its {of} partners are good with third hosts"
        else:
            verb = "is" if of == 1 else "are"
            text += f"; its {count(of, 'partner')} {verb} good with third hosts"
    if effects:
        text += f"; {shortened(list(effects), _MAX_EFFECTS)}"
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
        return f"pairs of these two with third hosts: {elsewhere}"
    if kind is SuspectKind.BORDER:
        return f"pairs inside the two groups: {inside}"
    if kind is SuspectKind.RAIL:
        return f"all of them use GPU {device} of a host"
    text = f"all of them leave {hosts_of(hosts)}; pairs inside: {inside}"
    if kind is SuspectKind.LEAF:
        text += f"; pairs with other hosts through other GPUs: {elsewhere}"
    return text


def around_fabric(hosts: int, of: int, most: int) -> str:
    """Return how the bad pairs of a fabric are spread."""
    return f"spread over {hosts} of {count(of, 'host')}; no host is in more than {most} of them"


def innocent(kind: SuspectKind, hosts: Sequence[str], named: Sequence[str]) -> str:
    """Return the hosts that are in bad pairs of a network fault without being the reason."""
    if kind is SuspectKind.LINK:
        return "these two hosts: draining one of them does not remove the fault"
    text = "single hosts"
    if kind in (SuspectKind.LEAF, SuspectKind.SWITCH):
        text = f"the {count(len(hosts), 'host')} behind it"
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
    return f"{check}: {value}, at least {bound} is required; other hosts: {others} of {of}"


# Findings on steps


def no_outlier(what: str, normal: str, detectable: float | None, unknown: str) -> str:
    """Return that no group of a step is slow."""
    text = f"{what}: no outlier from {normal}"
    if detectable is not None:
        text += f"; a node {detectable:.1%} slow would be detected"
    return f"{text}; {unknown} could not be judged" if unknown else text


def too_few(what: str, needed: int) -> str:
    """Return that a step has too few groups."""
    return f"{what}: too few to compare ({needed} needed)"


def named(what: str, suspects: Sequence[tuple[str, str]], normal: str) -> str:
    """Return the suspects of a step, each with its name and reason."""
    texts = [f"{name}: {why}" for name, why in suspects]
    return f"{what}: {shortened(texts, _MAX_PARTS, ' | ')}" + (
        f"; normal is {normal}" * bool(normal)
    )


def open_pairs(
    step: str, pairs: Sequence[tuple[str, float | None]], every: Sequence[tuple[str, str]]
) -> str:
    """Return the pairs of a step that collapsed without a known reason.

    `every`: all pairs with their values, if they are so few that any of them may be normal.
    """
    texts = [
        f"{name} reached {share:.0%} of normal" if share is not None else f"{name} failed"
        for name, share in pairs
    ]
    if every:
        texts = [f"{name} {value}" for name, value in every]
    shown = "this pair shows it" if len(pairs) == 1 else "these pairs show it"
    return (
        f"step {step}: {shortened(texts, _MAX_PAIRS)}: the path or either host may be the reason. "
        f"No part is named, because only {shown}. More pairs of these hosts would separate them"
    )


def doubt(parts: Sequence[tuple[str, float]]) -> str:
    """Return the parts that are likely bad without proof, with their probabilities."""
    texts = [f"{name} ({probability:.0%})" for name, probability in parts]
    return (
        f"likely bad, but not proven: {shortened(texts, _MAX_PARTS)}. "
        "More pairs of these hosts would show it"
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


def bad_blocks(
    step: str, blocks: Sequence[tuple[str, float | None, int]], others: tuple[int, int]
) -> str:
    """Return the bad blocks of a ladder, each with its share of normal and its executions."""
    texts = [
        f"{name} {f'reached {share:.0%} of normal' if share is not None else 'failed'} "
        f"in {times} of {count(times, 'execution')}"
        for name, share, times in blocks
    ]
    texts[-1] += f"; other blocks: {others[0]} of {others[1]}"
    return (
        f"step {step}: {shortened(texts, _MAX_PARTS)}. No part is named: pairs show whether a host "
        "or the network is the reason"
    )


def uneven(step: str, groups: int, normal: str) -> str:
    """Return that values which should be equal differ too much."""
    return (
        f"step {step}: {groups} groups that should be equal fall apart below {normal}, by more "
        "than noise explains: many are slow, or of several kinds. Judge each kind separately, "
        "or give a bound: --expect"
    )


def rare(step: str, name: str, share: float | None, slow: int, total: int) -> str:
    """Return that a group was slow in some of its executions only."""
    reached = f"{share:.0%} of normal" if share is not None else "nothing"
    text = f"{reached} in {slow} of {total} executions; the others were normal"
    return f"step {step}: {name} reached {text}"


DISTANCE = "distance"
SLOW_OR_FAR = (
    "slow, or on another switch. A `topology` command in the machine's file would show which"
)
