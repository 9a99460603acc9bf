# SPDX-License-Identifier: Apache-2.0
"""Schemes in which each record sends a private report of its own: through a shuffler, or plainly.

Both use the e0-private l2 randomiser of ``randomiser``. A round draws m of all n records without
replacement; each reports its gradient, and the server takes a step along the mean of the reports.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from dpcohort.clients import Population
from dpcohort.errors import BudgetExceededError
from dpcohort_lab.checks import FloatArray, IntArray
from dpcohort_lab.schemes.scheme import Account, Mode, RoundUpdate
from dpcohort_lab.schemes.shuffling import composed_closed_form, local_epsilon, shuffled_epsilon

if TYPE_CHECKING:
    from torch import Tensor

    from dpcohort_lab.schemes.simulation import Simulation

_SMALLEST, _LARGEST = 1e-4, 12.0  # e0; public records need not hide, and report with the largest
_HALVINGS = 18


def largest_local_epsilon(spent: Callable[[float], float], epsilon: float) -> float:
    """The largest e0 whose total is within epsilon, found from below.

    Args:
        spent: total epsilon at an e0, increasing.
        epsilon: promised.

    Raises:
        BudgetExceededError: even an e0 of 0.0001 spends more.

    Example:
        >>> round(largest_local_epsilon(lambda e0: 3 * e0, 1.0), 3)
        0.333
    """
    if spent(_SMALLEST) > epsilon:
        raise BudgetExceededError(
            f"even reports with a local epsilon of {_SMALLEST:g} spend more than the promised "
            f"{epsilon:g}. Take fewer rounds."
        )
    low, high = np.log(_SMALLEST), np.log(_LARGEST)
    for _ in range(_HALVINGS):
        middle = 0.5 * (low + high)
        low, high = (middle, high) if spent(float(np.exp(middle))) <= epsilon else (low, middle)
    return float(np.exp(low))


def _reporting(simulation: Simulation, own: FloatArray, std: float) -> RoundUpdate:
    """A step along the mean report, where ``own`` is e0 of each client's records."""
    from dpcohort_lab.schemes.randomiser import private_reports

    reports, each = int(simulation.batch_sizes.sum()), np.repeat(own, simulation.sizes)

    def update(t: int, weights: Tensor) -> tuple[Tensor, float]:
        mean = private_reports(simulation, t, weights, reports, each).mean(0)
        alpha = simulation.step_size(t)
        return alpha * mean, alpha * std

    return update


def shared_report_epsilon(
    population: Population, mode: Mode, *, reports: int, records: int, rounds: int
) -> float:
    """e0 of every report of :func:`cldp`: what the strictest client's budget allows."""
    some = ~population.public
    if not some.any():
        return _LARGEST
    setting: dict[str, Any] = {"reports": reports, "rate": reports / records, "rounds": rounds}
    setting["delta"] = float(population.delta[some].min())

    def total(e0: float) -> float:
        if mode == "formula":
            return composed_closed_form(local_epsilon=e0, **setting)[0]
        return shuffled_epsilon(local_epsilon=e0, **setting)

    return largest_local_epsilon(total, float(population.epsilon[some].min()))


def cldp(simulation: Simulation, mode: Mode) -> tuple[RoundUpdate, Account]:
    """CLDP-SGD of Girgis et al.: each record sends a private report of its own, through a shuffler.

    A. Girgis, D. Data, S. Diggavi, P. Kairouz and A. T. Suresh, "Shuffled model of differential
    privacy in federated learning", AISTATS 2021 (authors' code read). One e0 serves all, since a
    shuffler hides nobody whose reports look different; so it is set by the strictest client, and
    larger budgets are not used up.

    Three epsilons of the same training:

    - against a server behind an honest shuffler, *certified* by the computed clones bound, sampling
      and composition (:func:`dpcohort_lab.schemes.shuffling.shuffled_epsilon`);
    - the same, *claimed* by the closed form and advanced composition; where the closed form's
      condition fails there is no amplification by shuffling, and the receipt says so;
    - against whoever sees a record's own reports, without trust in anyone: local, far larger
      (:func:`ldp` trains with that promise).

    ``honest`` calibrates e0 on the first, ``formula`` on the second. The paper's own amplification
    bound is older and was not read; the closed form, which is proved, stands in its place.
    """
    from dpcohort_lab.schemes.randomiser import report_length

    people, rounds = simulation.population, simulation.training.rounds
    records, reports = simulation.total_size, int(simulation.batch_sizes.sum())
    e0 = shared_report_epsilon(people, mode, reports=reports, records=records, rounds=rounds)
    length = report_length(
        clip=simulation.training.clip, local_epsilon=e0, dimension=simulation.dimension
    )
    # A report has length M in a nearly uniform direction: M / sqrt(D) in each coordinate.
    std = float(length / np.sqrt(simulation.dimension * reports))

    def account() -> dict[str, Any]:
        certified, claimed = np.full((2, len(people)), np.nan)
        amplified, notes = True, []
        deltas = sorted(set(people.delta[~people.public].tolist()))
        setting: dict[str, Any] = {"rate": reports / records, "rounds": rounds}
        setting |= {"local_epsilon": e0, "reports": reports}
        for delta in deltas:
            same = people.delta == delta
            certified[same] = shuffled_epsilon(delta=delta, **setting)
            claimed[same], shuffling_helps = composed_closed_form(delta=delta, **setting)
            amplified &= shuffling_helps
        if deltas:
            alone = local_epsilon(report_epsilon=e0, reports=rounds, delta=deltas[0])
            notes.append(
                f"Each of {reports} reports a round is {e0:.3g}-private; without the shuffler a "
                f"record that reported in all {rounds} rounds would have epsilon {alone:.3g}."
            )
        return {
            "claimed": claimed,
            "certified": certified,
            "uses": np.full(len(people), rounds),
            "assumptions": [
                "the shuffler is honest and hides which records reported",
                f"each report alone is {e0:.4g}-private, against anyone",
                "the closed form amplifies"
                if amplified
                else "the closed form's condition fails here: it gives no amplification by "
                "shuffling, only by sampling",
            ],
            "notes": notes,
        }

    return _reporting(simulation, np.full(len(people), e0), std), account


def own_report_epsilons(population: Population, uses: IntArray) -> FloatArray:
    """e0 of each client's reports in :func:`ldp`, from how often its busiest record reports.

    Example:
        >>> people = Population.from_arrays(sizes=[9, 9], epsilon=[1.0, 4.0], delta=1e-5)
        >>> own_report_epsilons(people, np.array([4, 1])).round(2).tolist()
        [0.25, 4.0]
    """
    found = np.full(len(population), _LARGEST)
    for k in np.flatnonzero(~population.public & (uses > 0)).tolist():
        found[k] = largest_local_epsilon(
            lambda e0, k=k: _local_total(population, k, e0, uses),  # type: ignore[misc]
            float(population.epsilon[k]),
        )
    return found


def ldp(simulation: Simulation, mode: Mode) -> tuple[RoundUpdate, Account]:
    """CLDP-SGD without its shuffler: records are protected against whoever receives their reports.

    The same randomiser as in :func:`cldp` with nobody to trust. What is lost is the amplification
    by shuffling and by sampling; what is won is that clients may use their own e0, since no report
    has to look like another. The rounds in which a record reports are drawn before training; a
    client's e0 is the largest with which its busiest record keeps (epsilon_k, delta_k), by the
    exact composition of randomised response. This is what CLDP-SGD falls back to where no
    amplification is proved. There is no formula mode.
    """
    from dpcohort_lab.schemes.randomiser import report_length, sampled_records

    people, reports = simulation.population, int(simulation.batch_sizes.sum())
    drawn = np.zeros(simulation.total_size, dtype=np.int64)
    for t in range(simulation.training.rounds):
        drawn[sampled_records(simulation, t, reports)] += 1
    owner = np.repeat(np.arange(len(people)), simulation.sizes)
    busiest = np.zeros(len(people), dtype=np.int64)
    np.maximum.at(busiest, owner, drawn)
    own = own_report_epsilons(people, busiest)
    clip, dimension = simulation.training.clip, simulation.dimension
    lengths = np.array(
        [report_length(clip=clip, local_epsilon=e0, dimension=dimension) for e0 in own.tolist()]
    )
    mean_square = float((lengths[owner] ** 2).mean())
    std = float(np.sqrt(mean_square / (dimension * reports)))

    def account() -> dict[str, Any]:
        certified = np.full(len(people), np.nan)
        for k in np.flatnonzero(~people.public).tolist():
            certified[k] = _local_total(people, k, float(own[k]), busiest)
        return {
            "certified": certified,
            "uses": busiest,
            "assumptions": ["which records report in which round is public"],
        }

    return _reporting(simulation, own, std), account


def _local_total(population: Population, k: int, e0: float, uses: IntArray) -> float:
    """What a client's busiest record spends with reports of this e0."""
    return local_epsilon(report_epsilon=e0, reports=int(uses[k]), delta=float(population.delta[k]))
