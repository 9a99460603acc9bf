# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import numpy as np
import pytest

from dpcohort import make_plan
from dpcohort.clients import Budget
from dpcohort.config import commented_config, loads_config
from dpcohort.errors import InputError
from dpcohort.plan import selection_problem
from dpcohort.runs import configured_data
from dpcohort.selection import rule_from_settings
from dpcohort.tuning import PROBLEMS, Worth, worth
from dpcohort.tuning._search import counted

CHANGES = ["training.rounds=4", "run.evaluate_every=4", "training.sampling_rate=1.0"]


@pytest.fixture(scope="module")
def config():
    return loads_config(commented_config("digits")).with_overrides(CHANGES)


@pytest.fixture(scope="module")
def found(config):
    return worth(config, factors=[0.25, 8.0], seeds=2, problems=PROBLEMS[:1], device="cpu")


def noise(config, population):
    problem, _ = selection_problem(
        population, config.training, contract=config.contract, noise_model=config.noise_model
    )
    p = rule_from_settings(config.rule, **config.rule_settings).select(problem).probabilities
    return float((problem.noise_costs * p**2 + problem.linear_costs * p).sum())


def test_the_noise_of_a_doubled_budget_is_that_of_a_new_plan(config, found):
    people = config.population()
    for gain in found.gains[:3]:
        assert gain.epsilon == people[gain.client].budget.epsilon
        richer = people.with_budget(gain.client, Budget(2 * gain.epsilon, 1e-5))
        expected = np.sqrt(noise(config, richer) / noise(config, people))
        assert gain.noise == pytest.approx(expected, rel=1e-6)
    shares = [gain.noise for gain in found.gains]
    assert shares == sorted(shares)
    assert len(found.gains) == len(people)


def test_more_budget_is_less_noise_and_more_accuracy(config, found):
    assert found.factors == (0.25, 1.0, 8.0)
    assert found.noise[0] > found.noise[1] > found.noise[2]
    plan = make_plan(
        config.population(),
        config.training,
        selection=rule_from_settings(config.rule, **config.rule_settings),
        seed=1,
    )
    assert found.noise[1] == pytest.approx(plan.noise_to_clip, rel=0.2)
    low, _, high = found.curve("clear")
    assert high.mean > low.mean
    assert found.gains[0].accuracy.mean > 0


def test_a_model_that_nobody_counted_is_counted_before_budgets_are_weighed(config, found):
    left_out = config.with_overrides(["training.dimension="])
    told = worth(left_out, factors=[1.0], seeds=1, problems=PROBLEMS[:1], device="cpu")
    for gain, known in zip(told.gains, found.gains, strict=True):
        assert (gain.client, gain.noise) == (known.client, pytest.approx(known.noise))
        assert gain.probability == pytest.approx(known.probability)
    assert counted(left_out, configured_data(left_out)).training == config.training


def test_the_factor_a_target_needs_lies_between_those_that_were_tried():
    scores = ((0.4, 0.2), (0.6, 0.2), (0.8, 0.3))
    told = Worth(source="", factors=(1.0, 2.0, 4.0), noise=(3.0, 2.0, 1.0), sets=("a", "b"),
                 scores=scores, gains=())  # fmt: skip
    assert told.needed(0.7) == {"a": pytest.approx(2 * 2**0.5, rel=1e-3), "b": None}
    assert told.needed(0.3)["a"] == 1.0
    with pytest.raises(InputError, match="target"):
        told.needed(80)


def test_a_rule_that_decides_during_the_training_is_refused(config):
    with pytest.raises(InputError, match="planned rule"):
        worth(config.with_overrides(["selection.rule=power-of-choice", "selection.d=12"]))
