# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from dpcohort.accounting import Segment
from dpcohort.accounting.calibration import calibrate_noise
from dpcohort.clients import Budget
from dpcohort.plan import selection_problem
from dpcohort.report.html.explorer import EPSILON_FACTORS, explorer_data


@pytest.fixture(scope="module")
def data(plan):
    return explorer_data(plan)


def levels(plan, *, rounds, client=None, epsilon=None):
    population = plan.population
    if client is not None:
        budget = Budget(epsilon=epsilon, delta=float(population.delta[client]))
        population = population.with_budget(population.ids[client], budget)
    _, found = selection_problem(
        population,
        replace(plan.training, rounds=rounds),
        contract=plan.contract,
        noise_model=plan.fixed_cohorts.noise_model,
    )
    return found


def test_levels_at_every_stop_are_those_of_planning(plan, data):
    for stop, rounds in enumerate(data["rounds"]):
        level, floor = levels(plan, rounds=rounds)
        np.testing.assert_allclose(data["levels"][stop]["level"], level, rtol=1e-12)
        np.testing.assert_allclose(data["levels"][stop]["floor"], floor, rtol=1e-12)


@pytest.mark.parametrize("factor", EPSILON_FACTORS)
def test_levels_of_a_changed_client_are_those_of_planning(plan, data, factor):
    client, stop = 2, len(data["rounds"]) - 1
    found = data["changed"][str(client)]
    level, floor = levels(
        plan,
        rounds=data["rounds"][stop],
        client=client,
        epsilon=factor * float(plan.population.epsilon[client]),
    )
    at = EPSILON_FACTORS.index(factor)
    assert found["level"][stop][at] == pytest.approx(float(level[client]), rel=1e-12)
    assert found["floor"][stop][at] == pytest.approx(float(floor[client]), rel=1e-12)


def test_the_noise_table_is_never_below_the_calibration_or_the_plan(plan, data):
    table = data["noise"]
    draws = np.array(table["draws"])
    assert draws[0] == 1
    assert draws[-1] == max(data["rounds"]) * plan.training.cohort_size
    for k in np.flatnonzero(~plan.population.public):
        column = np.array(table["own"][str(k)])
        exact = calibrate_noise(
            epsilon=plan.population.epsilon[k],
            delta=plan.population.delta[k],
            sampling_rate=plan.sampling_rates[k],
            steps=draws * plan.training.local_steps,
        )
        assert (column >= exact).all()
        assert (column <= 1.01 * exact).all()


def test_too_many_clients_have_no_explorer(plan, monkeypatch):
    monkeypatch.setattr("dpcohort.report.html.explorer.MOST_POINTS", 3)
    assert "what-if" in explorer_data(plan)["why"]


def test_what_is_left_of_budgets_has_no_explorer(plan):
    earlier = Segment(plan="", ledger="", rounds=1, source="seed", spent={})
    assert "dpcohort replan" in explorer_data(replace(plan, before=(earlier,)))["why"]
