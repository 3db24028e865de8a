"""Weigh a candidate by how much likelier the data are if it is at fault.

    log value = normal value - loss + noise

The loss of an execution is at least the largest effect of the parts that it exercises and that are
hit, and at most their sum. A share of the pairs and of the logs is bad without a known reason, with
losses whose distribution is learned: the background. A pair can therefore support a candidate by
at most -log(share of bad pairs).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import exp, hypot, inf, log, log1p, sqrt
from statistics import median

from accept.core.judge.effects import populations
from accept.core.judge.effects.background import (
    ALL_LOGS,
    ALL_VALUES,
    BINS,
    FIRST,
    PRIOR_COUNT,
    VARIES,
    Background,
    Table,
    bin_of,
    density,
    log_add,
    log_choose,
    near_bins,
    rate_of,
    shares_of,
)
from accept.core.judge.effects.explanation import Part
from accept.core.judge.effects.units import Units
from accept.core.verdict import SuspectKind

#: A loss below this many sigma is never a fault: healthy hosts differ, too.
LEAST = 2.5
#: Share of logs in which a steady fault shows, and an intermittent one; the price of the latter.
STEADY, AT_TIMES = 0.98, 0.5
_AT_TIMES_PRICE = log(4)
#: Share of faults that show everywhere, only with a network, or only without one.
_USUAL = 0.9
#: A host's smallest loss with a network is at least its largest one divided by this; smaller ones
#: are noise.
_UNLIKE = 12.0
#: Probability that an execution fails without a fault: over a network, and on a host alone.
FAILS, _FAILS_ALONE = 1e-5, 1e-7
#: A host alone is intermittent if this many of its executions are slow, and more than this share.
_SLOW_ALONE, _OFTEN_ALONE, _SIGMAS_ALONE = 2, 0.25, 4.0
#: Loss of an execution that always fails.
DEAD = 3.0
#: An accepted part is replaced by another one whose score is better by this.
_BETTER = 0.5
#: A cluster with values below a bound is not healthy: less caution is needed.
_BELOW_BOUND = log(10)
#: Rounds of expectation maximization.
_ROUNDS = 4


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """A part that could explain losses, the executions that exercise it, and its price."""

    part: Part
    cover: frozenset[int]
    price: float
    #: The share of the price that makes accusations rare; the rest is a prior probability.
    caution: float = 0.0
    #: Hosts by number.
    group: frozenset[int] = frozenset()
    #: Steps and numbers of waves: the time is the reason.
    waves: tuple[tuple[str, int], ...] = ()
    #: These are bad one by one.
    each: tuple[Candidate, ...] = ()
    #: Its executions may be bad only at times.
    of_host: bool = False

    @property
    def key(self) -> tuple[object, ...]:
        """Return what distinguishes it from others."""
        return self.part, self.waves, bool(self.each), self.cover


@dataclass(frozen=True, kw_only=True)
class Weighed:
    """A candidate with its effects, and how well it explains the data."""

    candidate: Candidate
    #: Log likelihood ratio, and the same after all prices.
    gain: float
    score: float
    #: Share of logs in which it shows.
    rate: float
    #: Population -> log loss, and how much the losses vary if that is known.
    loss: Mapping[int, float]
    spread: Mapping[int, float] = field(default_factory=dict)
    #: Share of failures in its bad executions.
    dead: float
    hits: frozenset[int] = frozenset()


class Evidence:
    """The data, what accepted parts and distance explain of them, and the background."""

    def __init__(self, units: Units) -> None:
        self.units = units
        count = len(units.executions)
        #: What distance costs each execution.
        self.far = [0.0] * count
        #: How much it varies, by population.
        self._far_spread: Mapping[int, float] = {}
        self.low, self.high = [0.0] * count, [0.0] * count
        self._scale, self._fails = [0.0] * count, [FAILS] * count
        #: Log density, bin of the loss that is left (-1: none), and clearly bad or not.
        self._normal, self._bin, self.loud = [0.0] * count, [-1] * count, [False] * count
        self._near: dict[int, list[tuple[int, float]]] = {}
        #: Log density of each log if it is normal, and if it is bad without a bad value.
        self._of_log, self._bad_log = [0.0] * len(units.logs), [0.0] * len(units.logs)
        self._suspicious: dict[int, list[int]] = {}
        self._none: dict[int, float] = {}
        self._cache: dict[object, Weighed | None] = {}
        self.background = self._no_background()
        self.accepted: list[Weighed] = []
        self.explain(())

    # What is explained

    def set_distance(
        self, losses: Mapping[int, float], far: Collection[int], common: Mapping[int, float]
    ) -> None:
        """Predict the losses of far executions, and of all of some populations."""
        self._far_spread = self.spread(far, losses) | self.spread(range(len(self.far)), common)
        for i in far:
            self.far[i] = losses.get(self.units.population[i], 0.0)
        for k, loss in common.items():
            for i in self.units.of_population[k]:
                self.far[i] = loss
        self.explain(())

    @property
    def explained(self) -> set[int]:
        """Return the executions that the accepted parts explain."""
        return {i for part in self.accepted for i in part.hits}

    def explain(self, accepted: Sequence[Weighed]) -> None:
        """Predict losses from distance and the accepted parts, and estimate the background."""
        self.accepted = list(accepted)
        self.predict(range(len(self.far)), self.accepted)
        self.estimate()

    def predict(self, executions: Iterable[int], accepted: Sequence[Weighed]) -> None:
        """Predict the losses of some executions from distance and some parts."""
        units = self.units
        hits: dict[int, list[Weighed]] = {}
        for part in accepted:
            for i in part.hits:
                hits.setdefault(i, []).append(part)
        for i in executions:
            k, far, loss = units.population[i], self.far[i], units.loss[i]
            low, high, fails = far, far, FAILS
            # Distance varies less than a fault.
            varies = min(self._far_spread.get(k, inf), VARIES * far)
            for part in hits.get(i, ()):
                own = part.loss.get(k, 0.0)
                varies = max(varies, part.spread.get(k, VARIES * own))
                low, high, fails = max(own, low), own + high, max(fails, part.dead)
            scale = hypot(units.sigma[k], varies)
            self.low[i], self.high[i], self._scale[i], self._fails[i] = low, high, scale, fails
            self._normal[i] = density(loss, low, high, scale, fails)
            self.loud[i] = fails < 0.01 if loss is None else loss - high > 2 * scale
            bin_ = self._bin[i] = self._bin_of(i)
            if 0 <= bin_ < BINS and loss is not None:
                self._near[i] = near_bins(loss - high, bin_)
        self._cache = {}

    def _bin_of(self, i: int) -> int:
        """Return the bin of the loss that is left; -1: none, or its host was alone."""
        loss = self.units.loss[i]
        if self.units.alone[self.units.unit_of[i]]:
            return -1
        if loss is None:
            return BINS
        rest = loss - self.high[i]
        if rest < max(FIRST, LEAST * self._scale[i]):
            return -1
        return bin_of(rest)

    def collapsed(self, i: int, limit: float) -> bool:
        """Return True if an execution failed, or lost more than a limit, without a reason."""
        loss = self.units.loss[i]
        if loss is None:
            return self._fails[i] < 0.01
        return loss - self.high[i] > max(limit, LEAST * self._scale[i])

    def given_others(
        self, found: Weighed, alternatives: Callable[[], Iterable[Candidate]]
    ) -> tuple[Weighed | None, Weighed | None, list[Weighed]]:
        """Return an accepted part, weighed as if only the others explained anything.

        The second one is the best alternative, weighed with its hits; None: none is better. The
        last ones are all alternatives.
        """
        before = self.background, self._of_log, self._bad_log, self._suspicious, self._none
        self.predict(found.hits, [other for other in self.accepted if other is not found])
        self.estimate()
        result, better = self.weigh(found.candidate), None
        weighed = [other for one in alternatives() if (other := self.weigh(one)) is not None]
        for other in weighed:
            least = max(0.0, (better or result or other).score)
            if other.candidate.of_host and other.score > least + _BETTER:
                better = other
        better = self.with_hits(better) if better else None
        self.predict(found.hits, self.accepted)
        self.background, self._of_log, self._bad_log, self._suspicious, self._none = before
        return result, better, weighed

    # Background

    def estimate(self) -> None:
        """Estimate the background by expectation maximization."""
        units = self.units
        self._suspicious = {}
        for i, bin_ in enumerate(self._bin):
            if bin_ >= 0:
                self._suspicious.setdefault(units.log_of[i], []).append(i)
        self._of_log = [sum([self._normal[i] for i in own]) for own in units.logs]
        self._set_background(self._no_background())
        for _ in range(_ROUNDS):
            self._set_background(self._step())
        self._cache = {}

    def _set_background(self, background: Background) -> None:
        """Replace the background, and what follows from it."""
        self.background, self._none = background, {}
        of_values, population = background.of_values, self.units.population
        self._bad_log = [
            sum([of_values[population[i]][1] for i in own], normal)
            for own, normal in zip(self.units.logs, self._of_log, strict=True)
        ]

    def _no_background(self) -> Background:
        """Return what is known about the background without data."""
        units = self.units
        rate, _ = rate_of(0.0, 0.0)
        empty = [[0.0] * (BINS + 1) for _ in units.keys]
        return Background(
            pair_rate=rate,
            log_rate=rate,
            pairs={},
            logs={},
            bad={},
            table=Table(empty),
            of_values=[shares_of(0.0, 0.0, ALL_VALUES)] * len(units.keys),
            of_logs=dict.fromkeys(units.kinds, shares_of(0.0, 0.0, ALL_LOGS)),
        )

    def _step(self) -> Background:
        """Return the background after one round of expectation maximization."""
        units, old = self.units, self.background
        log_p, log_q = log(old.pair_rate), log(old.log_rate)
        pairs: dict[int, float] = {}
        logs: dict[int, float] = {}
        bad: dict[int, float] = {}
        bins = [[0.0] * (BINS + 1) for _ in units.keys]
        of_values = [[0.0, 0.0] for _ in units.keys]
        of_logs: dict[tuple[int, ...], list[float]] = {}
        suspicious = dict.fromkeys(units.unit_of_log[number] for number in self._suspicious)
        for unit in suspicious:
            good, of_bad, rows = log1p(-old.pair_rate), log_p, []
            for number in units.logs_of[unit]:
                normal, in_bad = self._of_log[number], self._bad(number, old.table)
                normal_log = log_add(log1p(-old.log_rate) + normal, log_q + in_bad)
                most, few = old.of_logs[units.kinds[number]]
                bad_log = log_add(few + normal_log, most + in_bad)
                rows.append(
                    (number, exp(log_q + in_bad - normal_log), exp(most + in_bad - bad_log))
                )
                good += normal_log
                of_bad += bad_log
            weight = pairs[unit] = 1 / (1 + exp(min(good - of_bad, 700.0)))
            logs[unit] = sum((1 - weight) * at_random for _, at_random, _ in rows)
            for number, at_random, of_pair in rows:
                in_log = (1 - weight) * at_random + weight * of_pair
                shares = of_logs.setdefault(units.kinds[number], [0.0, 0.0])
                shares[0] += weight * of_pair
                shares[1] += weight
                for i in units.logs[number]:
                    k, bin_ = units.population[i], self._bin[i]
                    of_values[k][1] += in_log
                    if bin_ >= 0:
                        log_bad, log_good = old.of_values[k]
                        density = log_bad + self._of_bad(i, old.table)
                        total = log_add(density, log_good + self._normal[i])
                        bad[i] = in_log * exp(density - total)
                        bins[k][bin_] += bad[i]
                        of_values[k][0] += bad[i]
        shared = len(units.shared)
        all_logs = sum(len(units.logs_of[u]) for u in units.shared)
        return Background(
            pair_rate=rate_of(sum(pairs.values()), shared)[0],
            log_rate=rate_of(sum(logs.values()), all_logs)[0],
            pairs=pairs,
            logs=logs,
            bad=bad,
            table=Table(bins),
            of_values=[shares_of(x, n, ALL_VALUES) for x, n in of_values],
            of_logs=dict(old.of_logs)
            | {kind: shares_of(x, n, ALL_LOGS) for kind, (x, n) in of_logs.items()},
        )

    def _of_bad(self, i: int, table: Table) -> float:
        """Return the log density of the loss of a bad execution."""
        row, bin_ = table[self.units.population[i]], self._bin[i]
        return log(row[bin_] if bin_ == BINS else sum([row[b] * x for b, x in self._near[i]]))

    def _bad(self, number: int, table: Table) -> float:
        """Return the log density of a bad log."""
        of_values, population = self.background.of_values, self.units.population
        total = self._bad_log[number]
        for i in self._suspicious.get(number, ()):
            bad, good = of_values[population[i]]
            normal = self._normal[i]
            total += log_add(good + normal, bad + self._of_bad(i, table)) - normal - good
        return total

    def without(self, cover: Collection[int]) -> tuple[float, float, Table]:
        """Return the rates and the table of the background without the units of a candidate."""
        touched = {self.units.unit_of[i] for i in cover}
        p, q, table, _ = self._without(cover, touched)
        return p, q, table

    def _without(
        self, cover: Collection[int], touched: Collection[int]
    ) -> tuple[float, float, Table, float]:
        """Return the background without the units of a candidate, and how much better it fits."""
        units, old = self.units, self.background
        own = [u for u in touched if not units.alone[u]]
        own_logs = sum([len(units.logs_of[u]) for u in own])
        all_logs = sum([len(units.logs_of[u]) for u in units.shared])
        rates, better = [], 0.0
        for weights, before, total, rate in (
            (old.pairs, len(units.shared), len(units.shared) - len(own), old.pair_rate),
            (old.logs, all_logs, all_logs - own_logs, old.log_rate),
        ):
            every = sum(weights.values())
            bad = max(every - sum([x for u, x in weights.items() if u in touched]), 0.0)
            new, likelihood = rate_of(bad, total)
            better += likelihood - rate_of(every, before)[1]
            better += (every - bad) * log(rate)
            better += (before - total - every + bad) * log1p(-rate)
            rates.append(new)
        mine = [i for i in cover if i in old.bad]
        if not mine:
            return rates[0], rates[1], old.table, better
        table = old.table.without((units.population[i], self._bin[i], old.bad[i]) for i in mine)
        return rates[0], rates[1], table, better

    # Likelihood

    def _pattern_price(self, sizes: Mapping[int, int], losses: Mapping[int, float]) -> float:
        """Return the price of choosing the affected ones among the covered populations.

        Most faults show everywhere, or only with a network, or only without one. Populations with
        nothing else to compare with, or with so much noise that they cannot show such losses, do
        not count. `sizes`: population -> covered executions, if another part does not explain all.
        """
        units, largest, affected = self.units, max(losses.values()), losses.keys()
        comparable = {
            k
            for k, own in sizes.items()
            if len(units.of_population[k]) > own and LEAST * units.sigma[k] < largest
        }
        comparable.update(affected)
        alone = {k for k in comparable if self._is_alone[k]}
        usual = {frozenset(own) for own in (comparable, alone, comparable - alone) if own}
        if len(comparable) < 2:
            return 0.0
        if frozenset(affected) in usual:
            return log(len(usual)) - log(_USUAL)
        chosen = log(len(comparable) + 1) + log_choose(len(comparable), len(affected))
        return chosen - log1p(-_USUAL)

    @cached_property
    def _is_alone(self) -> list[bool]:
        """Return whether a population has no execution of several hosts."""
        units = self.units
        return [all(units.alone[units.unit_of[i]] for i in own) for own in units.of_population]

    def total(self) -> float:
        """Return the log likelihood of all data and of the rates, after the prices of all parts."""
        units, old = self.units, self.background
        result = sum(self.none(unit) for unit in units.shared)
        all_logs = sum(len(units.logs_of[u]) for u in units.shared)
        for weights, every, rate in (
            (old.pairs, len(units.shared), old.pair_rate),
            (old.logs, all_logs, old.log_rate),
        ):
            bad = sum(weights.values())
            result += rate_of(bad, every)[1] - bad * log(rate) - (every - bad) * log1p(-rate)
        for found in self.accepted:
            cover = found.candidate.cover
            alone = {units.unit_of[i] for i in cover if units.alone[units.unit_of[i]]}
            result += self._alone(cover, alone)[0] if found.candidate.of_host else 0.0
            result -= found.gain - found.score - found.candidate.caution
            logs = {units.log_of[i] for i in cover if units.population[i] in found.loss}
            hit = len(logs & {units.log_of[i] for i in found.hits})
            result += hit * log(found.rate) + (len(logs) - hit) * log1p(-found.rate)
        return result

    def none(self, unit: int) -> float:
        """Return the log likelihood of a unit without any other part."""
        if unit not in self._none:
            old = self.background
            self._none[unit] = self.likelihood(
                unit, {}, None, (old.pair_rate, old.log_rate, old.table)
            )
        return self._none[unit]

    def likelihood(
        self,
        unit: int,
        covered: Mapping[int, Collection[int]],
        fault: Weighed | None,
        background: tuple[float, float, Table],
    ) -> float:
        """Return the log likelihood of a unit with a fault; `covered`: log -> its executions."""
        return self._hit(self._rows(unit, covered, background), fault)

    def _rows(
        self,
        unit: int,
        covered: Mapping[int, Collection[int]],
        background: tuple[float, float, Table],
    ) -> _Rows:
        """Return what the likelihood of a unit needs, apart from the effects of a fault."""
        p, q, table = background
        units = self.units
        log_p, log_q = log(p), log(q)
        not_q = log1p(-q)
        fixed, bad_pair, rows = log1p(-p), log_p, []
        of_logs = self.background.of_logs
        for number in units.logs_of[unit]:
            normal, in_bad = self._of_log[number], self._bad(number, table)
            normal_log = log_add(not_q + normal, log_q + in_bad)
            most, few = of_logs[units.kinds[number]]
            bad_pair += log_add(few + normal_log, most + in_bad)
            if number in covered:
                rows.append((normal, not_q, log_q + in_bad, normal_log, covered[number]))
            else:
                fixed += normal_log
        return fixed, bad_pair, rows

    def _hit(self, rows: _Rows, fault: Weighed | None) -> float:
        hit, bad_pair, logs = rows
        if fault is not None:
            is_hit, not_hit = log(fault.rate), log1p(-fault.rate)
            for normal, not_q, bad, normal_log, own in logs:
                more = self._more(own, fault)
                if more == 0.0:
                    hit += normal_log
                else:
                    with_fault = log_add(not_q + normal + more, bad)
                    hit += log_add(is_hit + with_fault, not_hit + normal_log)
        return log_add(hit, bad_pair)

    def _more(self, executions: Iterable[int], fault: Weighed) -> float:
        """Return how much likelier some executions are if a fault hits them."""
        units, total, losses = self.units, 0.0, fault.loss
        for i in executions:
            k = units.population[i]
            if k in losses:
                effect, low = losses[k], self.low[i]
                least = effect if effect > low else low
                if k in fault.spread:
                    scale = hypot(units.sigma[k], fault.spread[k])
                elif effect <= (1 + VARIES) * low:
                    scale = self._scale[i]  # another part shows how much the losses vary
                else:
                    scale = hypot(units.sigma[k], VARIES * least)
                fails = max(fault.dead, self._fails[i])
                hit = density(units.loss[i], least, effect + self.high[i], scale, fails)
                total += hit - self._normal[i]
        return total

    def _alone(
        self, cover: Collection[int], units_of_host: Iterable[int]
    ) -> tuple[float, dict[int, float]]:
        """Return the evidence of hosts that were measured alone, and the loss by population.

        The executions of a host alone are one witness: a host that is a little slower by nature is
        so every time. The population in which it is clearest counts.
        """
        total = 0.0
        losses: dict[int, float] = {}
        for unit in units_of_host:
            by_population: dict[int, list[float]] = {}
            for i in self.units.of_unit(unit):
                if i in cover:
                    loss = self.units.loss[i]
                    rest = inf if loss is None else loss - self.low[i]
                    if not (loss is None and self._fails[i] > 0.01):
                        by_population.setdefault(self.units.population[i], []).append(rest)
            best = 0.0
            for k, own in by_population.items():
                gain, loss = self._alone_in(k, own)
                if gain > 0:
                    losses[k] = max(loss, losses.get(k, 0.0))
                best = max(best, gain)
            total += best
        return total, losses

    def _alone_in(self, k: int, losses: Sequence[float]) -> tuple[float, float]:
        """Return the evidence of the losses of one host alone in a population, and its loss."""
        sigma, weights = self.units.sigma[k], self.units.weights
        steady, wide = min(losses), hypot(sigma, self.units.within[k])
        slow = [x for x in losses if x > max(_SIGMAS_ALONE * wide, FIRST)]
        often = len(slow) >= _SLOW_ALONE and len(slow) > _OFTEN_ALONE * len(losses)
        best = (0.0, 0.0)
        for loss, width, price in (
            (steady, sigma, 0.0),
            (median(slow) if often else 0.0, wide, _AT_TIMES_PRICE),
        ):
            if loss == inf:
                gain = log(0.9) - log(_FAILS_ALONE)
            elif loss < LEAST * width:
                continue
            else:
                peak = populations.log_density(0.0, weights) + log(
                    width / hypot(width, VARIES * loss)
                )
                gain = peak - populations.log_density(loss / width, weights)
            best = max(best, (gain - price, DEAD if loss == inf else loss))
        return best

    # Candidates

    def losses(self, cover: Iterable[int], *, at_times: bool) -> tuple[dict[int, float], float]:
        """Return the loss in each population that a part affects, and the share of failures."""
        units, low = self.units, self.low
        by_population: dict[int, list[int]] = {}
        for i in cover:
            if not units.alone[units.unit_of[i]]:
                by_population.setdefault(units.population[i], []).append(i)
        result: dict[int, float] = {}
        dead = hit = 0
        for k, every in by_population.items():
            # If something explains a part of some losses, the other executions show more.
            free = [i for i in every if low[i] < FIRST]
            own = free if 2 * len(free) >= len(every) or len(free) > 3 else every
            rest = [inf if (x := units.loss[i]) is None else x - low[i] for i in own]
            least = LEAST * units.sigma[k]
            if at_times:
                rest = [x for x in rest if x > least]
            if not rest or (middle := median(rest)) < least:
                continue
            measured = [x for x in rest if least < x < inf]
            if middle == inf:
                middle = median(measured) if measured else DEAD
            result[k] = middle
            dead += sum(x == inf for x in rest)
            hit += len(rest)
        return result, (dead + 0.1) / (hit + 1) if hit else FAILS

    def weigh(self, candidate: Candidate) -> Weighed | None:
        """Return a candidate with its effects and score; None if it loses nothing."""
        key = (candidate.cover, candidate.price, candidate.of_host)
        if key not in self._cache:
            self._cache[key] = self._weigh(candidate)
        found = self._cache[key]
        return None if found is None else replace(found, candidate=candidate)

    def _weigh(self, candidate: Candidate) -> Weighed | None:
        units, cover = self.units, candidate.cover
        touched: dict[int, dict[int, list[int]]] = {}
        sizes, free = Counter[int](), set[int]()
        for i in sorted(cover):
            own = touched.setdefault(units.unit_of[i], {})
            own.setdefault(units.log_of[i], []).append(i)
            sizes[units.population[i]] += 1
            if self.low[i] < self.far[i] + FIRST:
                free.add(units.population[i])
        alone, of_alone = 0.0, dict[int, float]()
        if candidate.of_host:
            alone, of_alone = self._alone(cover, [u for u in touched if units.alone[u]])
        rows: list[tuple[float, _Rows]] | None = None
        p, better = 0.0, 0.0
        # A full rail measures the rail by itself, so chance plays no part.
        of_rail = candidate.part.kind is SuspectKind.RAIL
        direct = [u for u in touched if of_rail and units.direct[u]]
        shared = [u for u in touched if not (units.alone[u] or (of_rail and units.direct[u]))]
        best: Weighed | None = None
        for rate, at_times in ((STEADY, False), (AT_TIMES, True)):
            if at_times and not candidate.of_host:
                continue
            losses, dead = self.losses(cover, at_times=at_times)
            if not candidate.of_host:
                # If it takes part in all executions, its own speed is what is normal.
                losses = {k: x for k, x in losses.items() if len(units.of_population[k]) > sizes[k]}
            elif losses:
                # The noise of one full rail must not choose a GPU of a bad host.
                least = max(losses.values()) / _UNLIKE
                losses = {k: x for k, x in losses.items() if x >= least}
            # A host alone in none but these populations.
            both = {k: x for k, x in of_alone.items() if k not in losses} | losses
            if not both:
                continue
            one = Weighed(
                candidate=candidate, gain=0.0, score=0.0, rate=rate, loss=losses, dead=dead
            )
            gain = alone
            if losses:
                if rows is None:
                    p, q, table, better = self._without(cover, touched)
                    rows = [
                        (self.none(u), self._rows(u, touched[u], (p, q, table))) for u in shared
                    ]
                gain += better
                # The losses of a bad pair are alike, so it is one witness at most.
                gain += sum([min(self._hit(row, one) - none, -log(p)) for none, row in rows])
                for of_log in (of_log for u in direct for of_log in touched[u].values()):
                    gain += log_add(log(rate) + self._more(of_log, one), log1p(-rate))
            price = self._pattern_price({k: sizes[k] for k in free}, both)
            price += candidate.price + (_AT_TIMES_PRICE if at_times else 0.0)
            if losses and all(self._is_below_bound(k, loss) for k, loss in losses.items()):
                price -= min(_BELOW_BOUND, candidate.caution)
            # If one pair shows what is normal, that one may be too fast.
            price += 0.0 if any(units.is_sure[k] for k in both) else candidate.caution
            if best is None or gain - price > best.score:
                best = replace(one, gain=gain, score=gain - price, loss=both)
        return best

    def _is_below_bound(self, k: int, loss: float) -> bool:
        """Return whether a loss leaves less than healthy executions of a population reach."""
        center, least = self.units.center[k], self.units.least[k]
        return center is not None and least is not None and center.log_value - loss < least

    def spread(self, executions: Iterable[int], losses: Mapping[int, float]) -> dict[int, float]:
        """Return how much the losses by one fault vary; few losses show little about that."""
        units = self.units
        deviations: dict[int, list[float]] = {}
        for i in executions:
            k, loss = units.population[i], units.loss[i]
            if k in losses and loss is not None and loss - self.low[i] > losses[k] / 2:
                deviations.setdefault(k, []).append(abs(loss - self.low[i] - losses[k]))
        result = {}
        for k, own in deviations.items():
            wide, count = populations.MAD * median(own), len(own)
            prior = PRIOR_COUNT * (VARIES * losses[k]) ** 2
            result[k] = sqrt((prior + count * wide**2) / (PRIOR_COUNT + count))
        return result

    def with_hits(self, found: Weighed) -> Weighed:
        """Return a candidate with the executions that it explains rather than chance."""
        units, cover, hits = self.units, found.candidate.cover, set()
        by_log: dict[int, list[int]] = {}
        for i in sorted(cover):
            if units.population[i] in found.loss:
                by_log.setdefault(units.log_of[i], []).append(i)
        prior = log(found.rate) - log1p(-found.rate)
        for own in by_log.values():
            if self._more(own, found) + prior > 0 or any(self.loud[i] for i in own):
                hits.update(own)
        return replace(found, hits=frozenset(hits), spread=self.spread(hits, found.loss))


#: The log likelihood of the logs that a fault does not touch, that of a bad pair, and for each
#: other log: normal, share of good logs, bad, both together, and the covered executions.
_Rows = tuple[float, float, list[tuple[float, float, float, float, Collection[int]]]]
