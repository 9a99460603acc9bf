# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import numpy as np
import pytest

from dpcohort.accounting import Contract
from dpcohort.clients import Population
from dpcohort.errors import InputError
from dpcohort.explain import Scenario, sweep
from dpcohort.plan import make_plan
from dpcohort.training import Training


@pytest.fixture
def scenario():
    return Scenario(
        population=Population.from_arrays(
            sizes=[500] * 8, epsilon=np.linspace(0.2, 5, 8), delta=1e-5, ids=list("abcdefgh")
        ),
        training=Training(rounds=30, cohort_size=4, batch_size=50),
        rule_settings={},
        contract=Contract.of("tight"),
    )


def test_more_eta_moves_more_draws_and_lowers_the_noise(scenario):
    outcomes = sweep(scenario, "eta", [0.0, 1e-3, 1e-1, 1e3])
    bias = [o["bias"] for o in outcomes]
    noise = [o["noise_to_clip"] for o in outcomes]
    assert bias == sorted(bias)
    assert noise == sorted(noise, reverse=True)
    assert bias[0] == 0


def test_a_bias_cap_is_met(scenario):
    for outcome in sweep(scenario, "bias_cap", [0.0, 0.1, 0.3]):
        assert outcome["bias"] == pytest.approx(outcome["value"], abs=1e-9)


def test_a_sweep_of_one_value_is_the_plan(scenario):
    (outcome,) = sweep(scenario, "rounds", [60], client="c")
    plan = make_plan(scenario.population, Training(rounds=60, cohort_size=4, batch_size=50), seed=0)
    assert outcome["client_probability"] == plan.selection.probabilities[2]
    assert outcome["noise_to_clip"] == pytest.approx(plan.noise_to_clip, rel=0.15)


def test_a_larger_epsilon_of_one_client_raises_its_probability(scenario):
    p = [o["client_probability"] for o in sweep(scenario, "epsilon", [0.5, 2, 8], client="a")]
    assert p == sorted(p)
    assert p[0] < p[-1]


def test_the_tight_accountant_needs_less_noise(scenario):
    paper, tight = sweep(scenario, "accountant", ["paper", "tight"])
    assert tight["noise_to_clip"] < paper["noise_to_clip"] / 2


def test_batch_sizes(scenario):
    small, large = sweep(scenario, "batch_size", [10, 100])
    assert large["noise_to_clip"] < small["noise_to_clip"]


def test_eta_replaces_a_bias_cap(scenario):
    from dataclasses import replace

    capped = replace(scenario, rule_settings={"bias_cap": 0.1})
    (outcome,) = sweep(capped, "eta", [5.0])
    assert outcome["bias"] > 0.1


@pytest.mark.parametrize(
    ("setting", "values", "client", "message"),
    [
        ("etta", [1], None, "eta"),
        ("epsilon", [1], None, "needs a client"),
        ("epsilon", [-1], "a", "epsilon"),
        ("epsilon", [1], "zz", "zz"),
        ("rounds", [0], None, "rounds"),
        ("batch_size", [10_000], None, "batch"),
        ("accountant", ["tite"], None, "tight"),
        ("eta", [-1.0], None, "eta"),
    ],
)
def test_bad_sweeps_are_named(scenario, setting, values, client, message):
    with pytest.raises(InputError, match=message):
        sweep(scenario, setting, values, client=client)
