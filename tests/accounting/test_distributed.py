# SPDX-License-Identifier: Apache-2.0
"""Shares of noise and their lattice by themselves; test_distributed_plan.py has the plans."""

from __future__ import annotations

import math

import numpy as np
import pytest

from dpcohort import Population, Training
from dpcohort.accounting import Contract
from dpcohort.accounting._distributed import (
    NoiseShares,
    refuse_undistributable,
    refuse_weightless,
    trust_in_words,
    trust_terms,
    with_lattice,
)
from dpcohort.errors import InputError

PEOPLE = Population.from_arrays(
    ids=["north", "south"], sizes=[600, 600], epsilon=[1.0, 2.0], delta=1e-5
)
TWO = Training(cohort_size=2, batch_size=60)


def shares(**changes):
    given = {"weights": [0.5, 1.5], "shares": [0.1, 0.1]}
    arrays = {name: np.array(column) for name, column in {**given, **changes}.items()}
    return NoiseShares(honest=int(arrays.pop("honest", 2)), **arrays)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"weights": [1.0]}, "of other clients each"),
        ({"weights": [-0.5, 1.0]}, "distributed.weights = -0.5"),
        ({"shares": [0.1, math.inf]}, "distributed.shares = inf"),
        ({"shares": [0.1, 0.2]}, "all are equal"),
        ({"honest": 0}, "distributed.honest = 0"),
    ],
)
def test_what_are_no_shares_of_one_cohort_is_refused(changes, words):
    with pytest.raises(InputError, match=words):
        shares(**changes)


def test_honest_shares_add_up_like_squares_and_no_weight_needs_no_noise():
    both, batches = shares(weights=[0.0, 1.5], honest=2), np.array([60, 60])
    assert both.multipliers(batches)[1] == pytest.approx(math.sqrt(2) * 0.1 * 60 / 1.5)
    assert both.multipliers(batches)[0] == math.inf


@pytest.mark.parametrize(
    ("training", "draws", "words"),
    [
        (Training(cohort_size=4, local_steps=2), "systematic", "local_steps = 2"),
        (Training(cohort_size=4), "independent", "draws = 'independent'"),
        (Training(cohort_size=9), "systematic", "cohort_size = 9 .* at most 8"),
    ],
)
def test_what_cannot_be_distributed_is_refused_and_nothing_where_trust_is_local(
    training, draws, words
):
    with pytest.raises(InputError, match=words):
        refuse_undistributable(Contract(trust="distributed"), training, draws, clients=8)
    refuse_undistributable(Contract(), training, draws, clients=8)


@pytest.mark.parametrize(
    ("changes", "words"),
    [({"weights": [1e-30, 1.0]}, "'north' .* too small"), ({"shares": [1e-15] * 2}, "too large")],
)
def test_a_weight_that_no_lattice_holds_is_refused_by_name(changes, words):
    with pytest.raises(InputError, match=words):
        with_lattice(shares(**changes), PEOPLE, TWO, Contract())


def test_who_counts_on_nobody_needs_no_lattice():
    alone = with_lattice(shares(honest=1), PEOPLE, TWO, Contract())
    assert (alone.exponent, alone.modulus_bits) == (0, 0)


def test_a_client_that_is_drawn_has_some_weight():
    with pytest.raises(InputError, match="gives 'south' no weight"):
        refuse_weightless(PEOPLE, np.array([1.0, 0.0]), np.array([True, True]))


@pytest.mark.parametrize(
    ("trust", "said"),
    [
        ({}, "nobody helps it or drops out, so at least 3 shares"),
        ({"colluding": 1}, "at most 1 helps it, so at least 2"),
        ({"dropouts": 2}, "at most 2 drop out, so the client's own noise alone protects it"),
    ],
)
def test_on_whom_a_client_counts_is_said_in_words(trust, said):
    assert said in trust_in_words(trust_terms(Contract(trust="distributed", **trust), 3))
