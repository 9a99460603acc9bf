# SPDX-License-Identifier: Apache-2.0
"""The two moves that adaptive rules share: draw without replacement, and take the largest."""

from __future__ import annotations

import numpy as np

from dpcohort._validate import FloatArray, IntArray
from dpcohort.adaptive.view import RoundView

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
    to their sizes. If there are fewer candidates than draws, those with most draws left are drawn
    again in the same round, as virtual clients with batches and noise of their own. A plan exists
    only if all caps together hold all draws, so a cohort can always be filled.
    """
    size = view.cohort_size
    cohort = [int(k) for k in chosen[:size]]
    rest = np.setdiff1d(view.candidates, np.asarray(cohort, dtype=np.int64))
    more = draw_without_replacement(
        view, rest, size - len(cohort), weights=view.sizes.astype(np.float64), purpose="fallback"
    )
    cohort += [int(k) for k in more]
    left = view.draws_left.copy()
    np.subtract.at(left, np.asarray(cohort, dtype=np.int64), 1)
    dice = view.chances("again")
    while len(cohort) < size:
        k = int(np.lexsort((dice, -left))[0])
        cohort.append(k)
        left[k] -= 1
    return np.asarray(cohort, dtype=np.int64)
