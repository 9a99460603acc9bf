# SPDX-License-Identifier: Apache-2.0
"""What all aggregation rules have in common, and how one is made from a name."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from dpcohort import Population, Training, make_plan
from dpcohort.aggregation import for_plan
from dpcohort.errors import InputError
from dpcohort.plugins import make_rule, rule_names

#: Five clients that differ in everything; the last one is public.
DIFFERENT = {
    "size-weighted": {"sizes": [10, 20, 30, 40, 50]},
    "importance-compensated": {
        "probabilities": [0.1, 0.15, 0.2, 0.25, 0.3], "unbiased": [0.3, 0.1, 0.2, 0.25, 0.15],
    },
    "epsilon-weighted": {"epsilon": [0.5, 1.0, 2.0, 4.0, np.nan]},
    "clipped-mean": {"bound": 2.0},
    "trimmed-mean": {"trim": 0.2},
}  # fmt: skip
ALIKE = {
    "size-weighted": {"sizes": [10] * 5},
    "importance-compensated": {"probabilities": [0.2] * 5, "unbiased": [0.2] * 5},
    "epsilon-weighted": {"epsilon": [2.0] * 5},
    "clipped-mean": {"bound": 1e6},
    "trimmed-mean": {"trim": 0.1},
}
#: Rules that give the plain mean of clients that are alike; the others look at the updates.
AGGREGATIONS = rule_names("aggregation")  # those of the lab too
EXACT = sorted(set(AGGREGATIONS) - {"geometric-median", "estimated-noise"})
STDS = [4.0, 2.0, 1.0, 0.5, 0.0]


def randn(*shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


@pytest.mark.parametrize("name", AGGREGATIONS)
def test_the_order_of_draws_does_not_matter(name, make_cohort):
    rule = make_rule("aggregation", name, DIFFERENT.get(name, {}))
    updates, clients = randn(7, 12), np.array([0, 1, 2, 3, 4, 1, 4])
    order = np.array([4, 6, 1, 0, 5, 3, 2])
    stds = np.array(STDS)[clients]
    first = rule.combine(updates, make_cohort(stds, clients))
    again = rule.combine(updates[order], make_cohort(stds[order], clients[order]))
    torch.testing.assert_close(again, first, rtol=1e-9, atol=1e-12)
    assert first.shape == (12,)
    assert first.dtype == updates.dtype


@pytest.mark.parametrize("name", EXACT)
def test_clients_that_are_alike_give_the_plain_mean(name, make_cohort):
    rule = make_rule("aggregation", name, ALIKE.get(name, {}))
    updates = randn(5, 12)
    torch.testing.assert_close(rule.combine(updates, make_cohort([0.7] * 5)), updates.mean(0))


@pytest.mark.parametrize("name", AGGREGATIONS)
def test_the_engines_memory_is_left_alone(name, make_cohort):
    rule = make_rule("aggregation", name, DIFFERENT.get(name, {}))
    updates = randn(5, 12)
    before = updates.clone()
    combined = rule.combine(updates, make_cohort(STDS))
    assert torch.equal(updates, before)
    updates.zero_()
    assert float(combined.norm()) > 0.0  # a copy, not a view


@pytest.mark.parametrize("name", sorted(set(AGGREGATIONS) - {"mean"}))
def test_what_is_not_finite_is_refused(name, make_cohort):
    rule = make_rule("aggregation", name, DIFFERENT.get(name, {}))
    updates = randn(5, 12)
    for value in (torch.nan, torch.inf):
        updates[1, 3] = value
        with pytest.raises(InputError, match=r"client 1 .* is not finite"):
            rule.combine(updates, make_cohort(STDS))


@pytest.mark.parametrize(
    ("name", "settings", "message"),
    [
        ("trimed-mean", {}, "Did you mean 'trimmed-mean'"),
        ("best", {}, "one of epsilon-weighted, "),
        ("trimmed-mean", {"trimm": 0.1}, "Did you mean 'trim'"),
        ("mean", {"trim": 0.1}, "has no settings"),
        ("clipped-mean", {}, "needs the setting 'bound', which is not given.$"),
        ("size-weighted", {}, "needs the setting 'sizes'.* use for_plan"),
        ("trimmed-mean", {"trim": 0.7}, "trim = 0.7"),
    ],
)
def test_bad_names_and_settings_are_explained(name, settings, message):
    with pytest.raises(InputError, match=message):
        make_rule("aggregation", name, settings)


@pytest.fixture(scope="module")
def plan():
    clients = Population.from_arrays(
        sizes=[300, 100, 200], epsilon=[1.0, 8.0, np.nan], delta=1e-5, public=[False, False, True]
    )
    training = Training(rounds=4, cohort_size=3, batch_size=20, dimension=10)
    return make_plan(clients, training, selection="unbiased", seed=1)


def test_a_plan_fills_in_what_it_knows(plan):
    assert for_plan("size-weighted", plan).sizes.tolist() == [300.0, 100.0, 200.0]
    rule = for_plan("importance-compensated", plan)
    assert np.array_equal(rule.probabilities, plan.selection.probabilities)
    assert np.array_equal(rule.unbiased, plan.population.unbiased)
    weighted = for_plan("epsilon-weighted", plan, public_epsilon=2.0)
    assert np.array_equal(weighted.epsilon, [1.0, 8.0, np.nan], equal_nan=True)
    assert weighted.public_epsilon == 2.0
    assert for_plan("size-weighted", plan, sizes=[1, 1, 1]).sizes.tolist() == [1.0] * 3


def test_a_rule_objects_to_a_plan_that_does_its_work_already(plan):
    size, importance = (for_plan(f"{n}", plan) for n in ("size-weighted", "importance-compensated"))
    assert "size would count twice" in size.objection(plan)
    assert "nothing to compensate" in importance.objection(plan)
    uniform = make_plan(plan.population, plan.training, selection="uniform", seed=1)
    assert (size.objection(uniform), importance.objection(uniform)) == (None, None)


def test_an_unknown_name_is_explained_for_a_plan_too(plan):
    with pytest.raises(InputError, match="Did you mean 'mean'"):
        for_plan("meen", plan)


@pytest.mark.parametrize("name", AGGREGATIONS)
def test_a_single_draw_is_the_result(name, make_cohort):
    rule = make_rule("aggregation", name, ALIKE.get(name, {}))
    updates = randn(1, 12)
    for std in (0.0, 1.5):
        combined = rule.combine(updates, make_cohort([std], clients=[3]))
        torch.testing.assert_close(combined, updates[0])
