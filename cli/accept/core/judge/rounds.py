"""Plan rounds of pairs: how many a cluster needs, and the smallest slowdown that they show."""

from __future__ import annotations

from math import comb, expm1, log, sqrt

from accept.core.judge.effects.populations import NETWORK

#: Share of healthy clusters in which a host may be measured again by chance.
_CANDIDATES = 0.05
#: Deficit that the rounds should detect if the machine has a speed target: bad B200 nodes in the
#: field were 6 to 6.7 % slow (https://github.com/togethercomputer/together-nccl-tests).
DEFICIT = 0.06
#: The same without a speed target.
GROSS = 0.5
#: Share of the other hosts that may be bad.
BAD = 0.02
#: Rate of undetected bad hosts, half of it due to bad partners, half due to noise.
_MISSED = 1e-3
#: The one-sided quantile of the normal distribution for half of `_MISSED`.
_POWER = 3.29
#: Maximum number of waves of pairs that may follow the rounds of a step to measure suspects again.
MOST_REPEATS = 10
#: Maximum number of rounds, because each more costs minutes and detects little more.
MOST_ROUNDS = 5


def rounds_for(hosts: int, noise: float, deficit: float = DEFICIT) -> int:
    """Return the number of rounds of pairs that detect 99.9 % of the hosts with this deficit.

    `noise`: sigma of healthy pairs, as a share. `deficit` is a share, too. Pairs with a bad partner
    show nothing. Detected hosts are measured again, so the threshold is that of candidates.
    """
    shift = -log(1 - deficit) / noise
    # Beyond that of one sigma, the average of a healthy deviation.
    mean = NETWORK.log_density(1.0) - NETWORK.log_density(shift)
    slope = NETWORK.slope(shift)
    required = log(hosts / _CANDIDATES)
    # With an odd number of hosts, each round leaves one out, and there is one more round.
    highest = min(MOST_ROUNDS, hosts - 1 + hosts % 2)
    for rounds in range(2, highest):
        useful = rounds - _bad_partners(rounds)
        if useful > 0 and useful * mean - _POWER * slope * sqrt(useful) >= required:
            return rounds
    return max(1, highest)


def _bad_partners(rounds: int) -> int:
    """Return the number of bad partners that is exceeded with half of `_MISSED` (binomial)."""
    bad, tail = 0, 1 - (1 - BAD) ** rounds
    while tail > _MISSED / 2:
        bad += 1
        tail -= comb(rounds, bad) * BAD**bad * (1 - BAD) ** (rounds - bad)
    return bad


#: Probability for which `slowdown_found` is stated.
FOUND = 0.99
#: Lowest number of hosts on which a slowdown of this many sigma is found with that probability. The
#: numbers were simulated: hundreds of clusters with one slow host, the schedule and the repetitions
#: of a run, and 1 % of noise (tests/core/judge/test_simulated.py). On small clusters few pairs show
#: what is normal, so the slowdown must be larger. Below 8 hosts nothing is promised.
_SIGMAS_FOUND = ((64, 4.3), (16, 5.0), (8, 7.0))


def slowdown_found(sigma: float, hosts: int) -> float | None:
    """Return the slowdown of one host, as a share, that is found with the probability `FOUND`.

    `sigma`: sigma of healthy pairs, as a share, after at least `rounds_for` rounds. Return None for
    too few hosts.
    """
    sigmas = next((sigmas for fewest, sigmas in _SIGMAS_FOUND if hosts >= fewest), None)
    return None if sigmas is None else -expm1(-sigmas * sigma)


#: Share of simulated clusters with one fault in which the pairs name exactly the part at fault, by
#: the lowest number of rounds: the lowest of clusters of 10, 16 and 64 nodes, 100 each (benchmarks,
#: "What the rounds identify"). A rail or GPU took part in half of the executions.
_IDENTIFIED = (
    (8, {"node": 0.99, "GPU": 0.99, "NIC": 0.99, "rail": 0.99, "leaf": 0.99, "border": 0.99}),
    (4, {"node": 0.99, "border": 0.99, "rail": 0.97, "NIC": 0.95, "leaf": 0.94, "GPU": 0.86}),
)


def identified_by(rounds: int) -> str:
    """Return what rounds of pairs name exactly, with shares of clusters; empty: not measured."""
    shares = next((shares for fewest, shares in _IDENTIFIED if rounds >= fewest), {})
    kinds: dict[float, list[str]] = {}
    for kind, share in shares.items():
        kinds.setdefault(share, []).append(kind)
    return "; ".join(f"{', '.join(own)} {share:.0%}" for share, own in kinds.items())
