# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from dpcohort.accounting import Contract, calibrate_noise
from dpcohort.clients import Budget
from dpcohort.plan import selection_problem
from dpcohort_lab.explorer import EPSILON_FACTORS, explorer_data, section


@pytest.fixture(scope="module")
def data(plan):
    return explorer_data(plan)


def solved(plan, *, rounds=None, client=None, epsilon=None):
    """Problem 1 as planning has it, with another number of rounds or another budget."""
    population = plan.population
    if client is not None:
        budget = Budget(epsilon=epsilon, delta=float(population.delta[client]))
        population = population.with_budget(population.ids[client], budget)
    problem, _ = selection_problem(
        population,
        replace(plan.training, rounds=rounds or plan.training.rounds),
        contract=plan.contract,
        noise_model=plan.participation.fixed.noise_model,
    )
    return problem


def test_the_points_of_every_path_are_the_optimum_of_planning(plan, data):
    assert len(data["paths"]) == len(data["rounds"])
    for table, rounds in zip(data["paths"], data["rounds"], strict=True):
        problem = solved(plan, rounds=rounds)
        assert table["eta"] == sorted(table["eta"])
        assert problem.eta("auto") in table["eta"]
        for eta, p in zip([*table["eta"], None], table["p"], strict=True):
            expected = problem.path().limit if eta is None else problem.solved(eta).probabilities
            assert p == pytest.approx(expected, abs=1e-7)


@pytest.mark.parametrize("changes", [{}, {"noise_model": "paper"}], ids=["exact", "paper"])
def test_between_two_points_a_line_is_as_close_as_it_says(small, changes):
    plan = small(**changes)
    dice = np.random.default_rng(0)
    for table, rounds in zip(*map(explorer_data(plan).get, ("paths", "rounds")), strict=True):
        problem, etas = solved(plan, rounds=rounds), np.log(table["eta"])
        assert table["error"] < 0.01
        for at in dice.uniform(etas[0], etas[-1], 20):
            columns = np.array(table["p"][:-1]).T
            line = np.array([np.interp(at, etas, column) for column in columns])
            p = problem.solved(float(np.exp(at))).probabilities
            assert abs(p - line).sum() / 2 < 0.02


def test_a_changed_clients_probabilities_are_those_of_planning(plan, data):
    client = 2
    for factor, p in zip(EPSILON_FACTORS, data["changed"][str(client)], strict=True):
        epsilon = factor * float(plan.population.epsilon[client])
        problem = solved(plan, client=client, epsilon=epsilon)
        expected = problem.solved(problem.eta("auto")).probabilities[client]
        assert p == pytest.approx(expected, abs=1e-12)


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


def test_where_nothing_can_be_solved_again_it_says_why(plan, small, monkeypatch):
    distributed = small(accountant=Contract(trust="distributed", colluding=1))
    shown = section(distributed, Path())
    assert "here it is distributed" in shown.data["why"]
    assert (shown.title, "here it is distributed" in shown.markup) == ("", True)
    monkeypatch.setattr("dpcohort_lab.explorer.MOST_CLIENTS", 3)
    assert "what-if" in explorer_data(plan)["why"]
