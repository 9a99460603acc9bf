# SPDX-License-Identifier: Apache-2.0
"""What adaptive rules share: draw without replacement, take the largest, fill a cohort."""

from __future__ import annotations

import numpy as np

from dpcohort._validate import FloatArray, IntArray
from dpcohort.adaptive.view import RoundView
from dpcohort.errors import BudgetExceededError

__all__ = ["draw_without_replacement", "filled_cohort", "largest", "shrunk"]


def draw_without_replacement(
    view: RoundView, among: IntArray, count: int, *, weights: FloatArray, purpose: str
) -> IntArray:
    """Clients drawn one after the other, each with probability proportional to its weight.

    The clients with the smallest E_k / w_k, E_k exponential: that is the same law (Efraimidis and
    Spirakis, 2006), and each client's E_k is its own public number.

    Args:
        view: whose dice are used.
        among: positions to draw from.
        count: how many; all of them if there are fewer.
        weights: one for each client of the population; a weight of 0 comes last.
        purpose: names the dice.
    """
    waiting = -np.log(view.chances(purpose)[among])
    weight = np.asarray(weights, dtype=np.float64)[among]
    with np.errstate(divide="ignore"):
        keys = np.where(weight > 0, waiting / weight, np.inf)
    order = np.lexsort((waiting, keys))
    return np.asarray(among[order[:count]], dtype=np.int64)


def largest(view: RoundView, among: IntArray, count: int, *, scores: FloatArray) -> IntArray:
    """The ``count`` clients of largest score, ties broken by public dice.

    Args:
        view: whose dice break ties.
        among: positions to choose from.
        count: how many.
        scores: one for each entry of ``among``.

    Example:
        >>> view = RoundView(round=0, cohort_size=1, ids=("a", "b", "c"), sizes=np.ones(3, int),
        ...                  epsilon=np.ones(3), public=np.zeros(3, bool),
        ...                  draws_left=np.ones(3, int), reports_left=np.ones(3, int), seed=0)
        >>> largest(view, np.arange(3), 2, scores=np.array([0.1, 3.0, 2.0])).tolist()
        [1, 2]
    """
    order = np.lexsort((view.chances("ties")[among], -np.asarray(scores, dtype=np.float64)))
    return np.asarray(among[order[:count]], dtype=np.int64)


def shrunk(answers: FloatArray, stds: FloatArray) -> FloatArray:
    """Noisy reports drawn towards their mean, the noisier the more.

    ::

        score_k = m + v / (v + s_k²) (a_k − m),

    m the mean weighted by 1/s², v the spread of the true values by DerSimonian and Laird's moment
    estimate (1986). The largest of many noisy numbers is mostly that with the largest noise, which
    here is the client with the strictest budget; a score is the best guess instead. The noise is
    public, so this is post-processing. Where a report has no noise, nothing is changed.

    Example:
        >>> shrunk(np.array([1.0, 2.0, 9.0]), np.array([0.1, 0.1, 8.0])).round(2)
        array([1.01, 1.99, 1.56])
    """
    a, s = np.asarray(answers, dtype=np.float64), np.asarray(stds, dtype=np.float64)
    if a.size < 2 or not (s > 0).all():
        return a
    w = 1 / s**2
    middle = float((w * a).sum() / w.sum())
    excess = float((w * (a - middle) ** 2).sum()) - (a.size - 1)
    spread = max(0.0, excess / float(w.sum() - (w**2).sum() / w.sum()))
    return np.asarray(middle + spread / (spread + s**2) * (a - middle))


def filled_cohort(view: RoundView, chosen: IntArray) -> IntArray:
    """A whole cohort from what a rule chose: the fallback when it chose too few.

    Nothing here depends on data. First, candidates that were not chosen are drawn in proportion
    to their sizes. If there are fewer candidates than draws, clients below their caps are drawn
    again in the same round, as virtual clients with batches and noise of their own: always one
    with the fewest draws in this round and, of these, with the fewest in all rounds. So they are
    heard as evenly as the caps allow; a public client, which has no cap, is heard no more often
    than the others. A plan exists only if all caps together hold all draws, so a cohort can
    always be filled.

    Raises:
        BudgetExceededError: the caps do not hold the cohort.

    Example:
        >>> view = RoundView(round=0, cohort_size=7, ids=("a", "b", "c"), sizes=np.ones(3, int),
        ...                  epsilon=np.array([1, 1, np.nan]), public=np.array([0, 0, 1], bool),
        ...                  draws_left=np.array([1, 9, 90]), reports_left=np.ones(3, int), seed=0)
        >>> np.bincount(filled_cohort(view, np.array([2]))).tolist()
        [1, 3, 3]
    """
    size, left = view.cohort_size, view.draws_left
    if left[view.candidates].sum() < size:
        raise BudgetExceededError(
            f"the clients have {left[view.candidates].sum()} draws left in all, too few for a "
            f"cohort of {size}."
        )
    cohort = np.asarray(chosen[:size], dtype=np.int64)
    rest = np.setdiff1d(view.candidates, cohort)
    more = draw_without_replacement(
        view, rest, size - cohort.size, weights=view.sizes.astype(np.float64), purpose="fallback"
    )
    cohort = np.concatenate([cohort, more])
    return np.concatenate([cohort, _drawn_again(view, cohort)])


def _drawn_again(view: RoundView, cohort: IntArray) -> IntArray:
    """Second draws of a cohort that is too small although every candidate is in it."""
    spare: list[int] = []
    if cohort.size < view.cohort_size:
        clients, dice = len(view.ids), view.chances("again")
        now = np.bincount(cohort, minlength=clients)
        before = np.bincount(np.concatenate([cohort, *view.cohorts]), minlength=clients)
        while cohort.size + len(spare) < view.cohort_size:
            free = np.flatnonzero(now < view.draws_left)
            k = int(free[np.lexsort((dice[free], before[free], now[free]))[0]])
            spare.append(k)
            now[k] += 1
    return np.asarray(spare, dtype=np.int64)
