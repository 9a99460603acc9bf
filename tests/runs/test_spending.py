# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import numpy as np
import pytest

from dpcohort import Population, Training, certify_epsilon, make_plan
from dpcohort.errors import InputError
from dpcohort.runs.spending import certified_spending

from .conftest import small_plan


def test_the_plan_keeps_its_promises_and_one_more_draw_does_not(plan):
    counts = plan.schedule.counts
    spent = certified_spending(plan, counts)
    private = ~plan.population.public
    assert (spent[private] <= plan.population.epsilon[private]).all()
    assert np.isnan(spent[plan.population.public]).all()
    more = certified_spending(plan, 2 * counts)
    drawn = private & (counts > 0)
    assert (more[drawn] > plan.population.epsilon[drawn]).all()


def test_is_what_the_accountant_says(plan):
    k = int(np.flatnonzero(plan.drawn & ~plan.population.public)[0])
    wanted = certify_epsilon(
        noise_multiplier=float(plan.noise_multipliers[k]),
        delta=1e-5,
        sampling_rate=float(plan.sampling_rates[k]),
        steps=3,
        method="pld",
    )
    draws = np.zeros(len(plan.population), dtype=np.int64)
    draws[k] = 3
    found = certified_spending(plan, draws, clients=np.array([k]), method="pld")
    assert found[0] == wanted


def test_every_local_step_of_a_draw_is_spent():
    clients = Population.from_arrays(sizes=[90], epsilon=[2.0], delta=1e-5)
    training = Training(rounds=2, cohort_size=1, batch_size=9, local_steps=3)
    plan = make_plan(clients, training, seed=0)
    wanted = certify_epsilon(
        noise_multiplier=float(plan.noise_multipliers[0]),
        delta=1e-5,
        sampling_rate=0.1,
        steps=6,
        method="pld",
    )
    assert certified_spending(plan, np.array([2]), method="pld")[0] == wanted


def test_less_draws_spend_less_and_none_nothing(plan):
    none = certified_spending(plan, np.zeros(8, dtype=np.int64))
    assert np.nansum(none) == 0
    fewer = certified_spending(plan, plan.schedule.counts // 2)
    assert (fewer[:7] <= certified_spending(plan, plan.schedule.counts)[:7]).all()


def test_a_draw_without_planned_noise_is_refused():
    plan = small_plan(rounds=1, cohort_size=1)
    with pytest.raises(InputError, match="never draws"):
        certified_spending(plan, np.where(plan.drawn, 0, 1))
