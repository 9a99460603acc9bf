# SPDX-License-Identifier: Apache-2.0
"""What one data set has spent over all its runs, and whether one more draw fits its cap.

Each run is charged at the least noise its terms allow, so a run's draws are equal steps and a
number counts them. Runs with different noise or rate compose as the sum of their privacy losses,
by the certified upper bound of :class:`~dpcohort.accounting._events.History`.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from fractions import Fraction
from functools import lru_cache
from operator import add, le

from dpcohort.accounting import Event, History, affordable_steps
from dpcohort.accounting._events import Mechanism
from dpcohort.accounting._sampler import Neighbours
from dpcohort.deploy.ledger._terms import LifetimeCap, RunTerms
from dpcohort.errors import BudgetExceededError

#: Terms of a run, and how many of its draws and (if it has any) of its reports are looked at.
Run = tuple[RunTerms, *tuple[int, ...]]
Draws = Collection[Run]
#: The same as counted so far, of every accepted run of a data set, by the run's name.
Counted = Mapping[str, Run]
_MOST = 10**9
#: By data set: its cap, and what of each run is certified to fit it together.
Certified = dict[str, tuple[LifetimeCap, Counted]]


class LifetimeCapError(BudgetExceededError):
    """A draw would take a data set over its lifetime cap; nothing was spent.

    The message says what was spent, what it would be with the draw, and how many steps still fit.
    """


def counted_relation(cap: LifetimeCap, draws: Draws) -> Neighbours:
    """The relation that a total over these draws speaks of.

    One composition needs one relation: replace-one as soon as one part asks for it. A sum of
    epsilons speaks of the cap's own, each run being counted under it.
    """
    if cap.across_runs == "summed":
        return cap.neighbours
    found = {cap.neighbours} | {terms.neighbours for terms, *counts in draws if any(counts)}
    return "zero-out" if found == {"zero-out"} else "replace-one"


def composed(cap: LifetimeCap, draws: Draws) -> History:
    """All draws and reports as one history, equal steps of different runs taken together."""
    uses: Counter[Mechanism] = Counter()
    relation = counted_relation(cap, draws)
    for terms, *counts in draws:
        for event in terms.history(*counts).events if any(counts) else ():
            uses[replace(event.mechanism, neighbours=relation)] += event.count
    mechanisms = sorted(uses, key=lambda one: one.sort_key)
    return History(tuple(Event(one, uses[one]) for one in mechanisms))


def fits_cap(cap: LifetimeCap, draws: Draws) -> bool:
    """Whether all of these draws are within the cap.

    Example:
        >>> terms = RunTerms(epsilon=2.0, delta=1e-5, clip=1.0, sampling_rate=0.1, local_steps=1,
        ...                  rounds=60, draws=60, least_noise_multiplier=2.0)
        >>> fits_cap(LifetimeCap(epsilon=2.0, delta=1e-5), [(terms, 30), (terms, 30)])
        True
    """
    if cap.across_runs == "summed":
        epsilon, delta = _sums(cap, draws)
        return epsilon <= _exact(cap.epsilon) and delta <= _exact(cap.delta)
    return _delta(composed(cap, draws), cap.epsilon) <= cap.delta


def spent_epsilon(cap: LifetimeCap, draws: Draws) -> float:
    """An upper bound on the ε spent, at the cap's δ.

    For ``summed`` caps, the sum over begun runs of the ε of all the draws they may make.

    Example:
        >>> terms = RunTerms(epsilon=2.0, delta=1e-5, clip=1.0, sampling_rate=0.1, local_steps=1,
        ...                  rounds=60, draws=60, least_noise_multiplier=2.0)
        >>> round(spent_epsilon(LifetimeCap(epsilon=2.0, delta=1e-5), [(terms, 60)]), 2)
        1.81
    """
    if cap.across_runs == "summed":
        return float(_sums(cap, draws)[0])
    return _epsilon(composed(cap, draws), cap.delta)


def summed(cap: LifetimeCap, draws: Draws) -> tuple[float, float]:
    """Sums of ε and of δ over begun runs, each with all the draws it may make; never understated.

    Example:
        >>> terms = RunTerms(epsilon=2.0, delta=1e-5, clip=1.0, sampling_rate=0.1, local_steps=1,
        ...                  rounds=60, draws=60, least_noise_multiplier=2.0)
        >>> summed(LifetimeCap(epsilon=4.0, delta=1e-4, across_runs="summed"), [(terms, 1)])
        (2.0000..., 1.0000...e-05)
    """
    epsilon, delta = (math.nextafter(float(total), math.inf) for total in _sums(cap, draws))
    return epsilon, min(1.0, delta)


def _sums(cap: LifetimeCap, draws: Draws) -> tuple[Fraction, Fraction]:
    # As written, not as stored in binary: ten runs of 0.1 are 1.
    begun = [terms for terms, *counts in draws if any(counts)]
    epsilon = sum((_exact(_whole_run(cap, terms)) for terms in begun), Fraction(0))
    return epsilon, sum((_exact(terms.delta) for terms in begun), Fraction(0))


def _whole_run(cap: LifetimeCap, terms: RunTerms) -> float:
    """The ε of all draws of a run, at its own δ, under the cap's relation.

    The ε in zero-out terms says nothing about replacing a record, which moves a sum by 2C: under a
    replace-one cap the same draws are counted anew. The other way round replace-one terms cover a
    zero-out cap as they stand.
    """
    if cap.neighbours == "zero-out" or terms.neighbours == "replace-one":
        return terms.epsilon
    replaced = terms.history(*terms.most).promoted()
    return max(terms.epsilon, _epsilon(replaced, terms.delta))


def check_cap(
    certified: Certified,
    dataset: str,
    cap: LifetimeCap,
    runs: Counted,
    run: str,
    *,
    report: bool = False,
    left: int = _MOST,
    again: Callable[[], str] = str,
) -> None:
    """Refuse one more draw of ``run`` if it would exceed the cap; quick, thousands of times.

    What fits for many draws fits for fewer. So a set of counts that was once certified to fit is
    kept, and a request within it needs no composition. When a request leaves it, the largest of a
    few counts between here and everything accepted that fits is certified next.

    Args:
        certified: what is known to fit, by data set; empty at first, and kept by the caller.
        dataset: the data set's name.
        cap: its cap.
        runs: terms and draws counted so far (in the cap's window) of every accepted run.
        run: which of them asks.
        report: for a report, not for a draw.
        left: draws that the run's own terms still allow.
        again: says when such a draw fits again; nothing for never.

    Raises:
        LifetimeCapError: it would; the message has the numbers.
    """
    wanted = with_one_more(runs, run, report=report)
    begun = {key: found for key, found in wanted.items() if any(found[1:])}
    known_cap, known = certified.get(dataset, (None, {}))
    if known_cap == cap and all(
        key in known and all(map(le, counts, known[key][1:])) for key, (_, *counts) in begun.items()
    ):
        return
    ahead = {
        key: [max(0, most - count) for most, count in zip(terms.most, counts, strict=False)]
        for key, (terms, *counts) in begun.items()
    }
    while True:
        trial: dict[str, Run] = {
            key: (terms, *map(add, counts, ahead[key])) for key, (terms, *counts) in begun.items()
        }
        if fits_cap(cap, trial.values()):
            certified[dataset] = (cap, trial)
            return
        if not any(map(any, ahead.values())):
            break
        ahead = {key: [extra // 2 for extra in more] for key, more in ahead.items()}
    spent, requested = (spent_epsilon(cap, some.values()) for some in (runs, wanted))
    what, size = ("report", "") if report else ("draw", f" ({runs[run][0].local_steps} steps)")
    fit, later = fitting_steps(cap, runs, run, left=left), again()
    next_one = f" The next {what} fits after {later}." if later else ""
    raise LifetimeCapError(
        f"{dataset}: a further {what} of run {run!r}{size} would exceed the cap epsilon "
        f"{cap.epsilon:g} at delta {cap.delta:g} {cap.per.scope}. Spent so far: {spent:.6g}; "
        f"with the {what}: {requested:.6g}. {fit} steps of this run still fit. Nothing was "
        f"spent.{next_one}"
    )


def fitting_steps(cap: LifetimeCap, runs: Counted, run: str, *, left: int = _MOST) -> int:
    """How many more noisy steps of an accepted run fit the cap and the run's own terms.

    Args:
        cap: the data set's cap.
        runs: terms and draws counted so far (in the cap's window) of every accepted run.
        run: which of them asks.
        left: draws that the run's own terms still allow.

    Example:
        >>> terms = RunTerms(epsilon=2.0, delta=1e-5, clip=1.0, sampling_rate=0.1, local_steps=1,
        ...                  rounds=60, draws=60, least_noise_multiplier=2.0)
        >>> fitting_steps(LifetimeCap(epsilon=1.5, delta=1e-5), {"spring": (terms, 10)}, "spring")
        30
    """
    terms, *counts = runs[run]
    at_most = min(left, max(0, terms.draws - counts[0])) * terms.local_steps
    after = with_one_more(runs, run).values()
    if cap.across_runs == "summed":
        return at_most if fits_cap(cap, after) else 0
    history, relation = composed(cap, runs.values()), counted_relation(cap, after)
    return affordable_steps(
        history if history.neighbours == relation else history.promoted(),
        epsilon=cap.epsilon,
        delta=cap.delta,
        noise_multiplier=terms.least_noise_multiplier,
        sampling_rate=terms.sampling_rate,
        sampler=terms.drawn_by,
        neighbours=relation,
        at_most=at_most,
    )


def with_one_more(runs: Counted, run: str, *, report: bool = False) -> Counted:
    """The counts after a further draw, or report, of a run."""
    terms, *counts = runs[run]
    counts[report] += 1
    return {**runs, run: (terms, *counts)}


def _exact(value: float) -> Fraction:
    return Fraction(repr(value))


@lru_cache(maxsize=4096)
def _delta(history: History, epsilon: float) -> float:
    return history.delta(epsilon) if history.steps else 0.0


@lru_cache(maxsize=4096)
def _epsilon(history: History, delta: float) -> float:
    return history.epsilon(delta) if history.steps else 0.0
